package log

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"github.com/stelelog/stele/internal/epoch"
	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
)

// Open opens a log, creating it if it does not exist. After a stop that was not clean every segment from the one
// that holds the recovery point on is read and checked; the log ends before the first damage. Index, snapshot and
// checkpoint files that are missing or damaged are rebuilt.
//
// Errors: *StorageError when the disk refuses; *CorruptError when this log cannot be used.
func Open(o Options) (*Log, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	l := &Log{o: o, logDir: filepath.Dir(o.Dir), snapshotAt: -1, largestHeld: -1, heldFrom: -1, onFlushed: o.OnFlushed}
	l.SetConfig(o.Config)
	l.cleanedTo.Store(o.CleanedTo)
	l.lastFlush = o.Now()
	ld := &loader{l: l}
	err := ld.load()
	for far := (*overflowError)(nil); errors.As(err, &far); {
		ld.closeFiles()
		if err = l.split(far.base); err != nil {
			break
		}
		l.epochs, l.epochsStale, l.producers, l.snapshotAt = epoch.Cache{}, false, producers{}, -1
		far, ld = nil, &loader{l: l}
		err = ld.load()
	}
	if err != nil {
		ld.closeFiles()
		var se *StorageError
		var ce *CorruptError
		if errors.As(err, &se) || errors.As(err, &ce) {
			return nil, err
		}
		return nil, &StorageError{Dir: filepath.Dir(o.Dir), Op: "open " + filepath.Base(o.Dir), Err: err, Offline: true}
	}
	return l, nil
}

// loader opens one log, step by step.
type loader struct {
	l      *Log
	segs   []*segment
	states []segmentState
	// recoverFrom is the first segment that must be scanned; len(segs): none.
	recoverFrom int
	// rebuildEpochs says that the epoch checkpoint was lost.
	rebuildEpochs bool
	producersDone bool
	created       bool  // there was no segment
	dropped       int64 // bytes
	scanned       int   // segments
	lastMeta      activeMeta
}

func (d *loader) closeFiles() {
	if d.l.list != nil {
		return // published, or about to be
	}
	for _, s := range d.segs {
		s.file.Close()
	}
}

func (d *loader) load() error {
	if err := d.prepareDir(); err != nil {
		return err
	}
	bases, err := d.files()
	if err != nil {
		return err
	}
	if err := d.readEpochs(len(bases) > 0); err != nil {
		return err
	}
	if err := d.openSegments(bases); err != nil {
		return err
	}
	if d.rebuildEpochs {
		if err := d.scanEpochs(d.recoverFrom); err != nil {
			return err
		}
	}
	if err := d.recoverSegments(); err != nil {
		return err
	}
	if err := d.decideBounds(); err != nil {
		return err
	}
	if err := d.install(); err != nil {
		return err
	}
	d.tellLost()
	return nil
}

// tellLost says what the log has no more: bytes that were cut off its end, and offsets that the checkpoints have seen.
// The latter is all that tells of a segment's file that is gone or was emptied.
func (d *loader) tellLost() {
	l := d.l
	e := Event{Kind: EventRecovered, From: l.leo, To: l.leo, Bytes: d.dropped}
	if d.dropped > 0 {
		e.Cause = fmt.Sprintf("%d bytes after the last whole batch dropped", d.dropped)
	}
	for _, c := range []struct {
		name   string
		offset int64
	}{{"recovery point", l.o.RecoveryPoint}, {"high watermark", l.o.HighWatermark}} {
		if c.offset <= l.leo {
			continue
		}
		e.From = max(e.From, c.offset)
		if e.Cause != "" {
			e.Cause += "; "
		}
		e.Cause += fmt.Sprintf("the log ends below its last %s, %d", c.name, c.offset)
	}
	if e.Cause != "" {
		l.event(e)
	}
}

// prepareDir makes the directory, sweeps it, and writes partition.metadata.
func (d *loader) prepareDir() error {
	l := d.l
	if _, err := l.o.FS.Stat(l.o.Dir); isNotExist(err) {
		if err := l.o.FS.MkdirAll(l.o.Dir, 0o755); err != nil {
			return err
		}
		if err := l.o.FS.SyncDir(filepath.Dir(l.o.Dir)); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	if l.o.TopicID != ([16]byte{}) && !l.o.identified {
		if err := ensurePartitionMetadata(l.o.FS, l.o.Dir, l.o.TopicID); err != nil {
			return err
		}
	}
	var err error
	l.names, err = sweep(l.o.FS, l.o.Dir)
	l.wasCopy = slices.Contains(l.names, copyMark)
	return err
}

// files lists the segments' bases, and removes indexes without a log.
func (d *loader) files() ([]int64, error) {
	l := d.l
	var bases []int64
	for _, n := range l.names {
		if o, ok := fileOffset(n); ok && n[20:] == ".log" {
			bases = append(bases, o)
		}
	}
	for _, n := range l.names {
		o, ok := fileOffset(n)
		if !ok {
			continue
		}
		if _, found := slices.BinarySearch(bases, o); !found && (n == indexName(o) || n == timeName(o) || n == txnName(o)) {
			if err := removeIfExists(l.o.FS, l.path(n)); err != nil {
				return nil, err
			}
		}
	}
	return bases, nil
}

// readEpochs loads the epoch checkpoint. One that cannot be understood is kept aside for whoever wants to know.
func (d *loader) readEpochs(haveData bool) error {
	l := d.l
	path := l.path(epoch.CheckpointName)
	c, err := epoch.Read(l.o.FS, path)
	var bad *epoch.CorruptError
	switch {
	case err == nil && c.Len() > 0:
		l.epochs = c
		return nil
	case err == nil || isNotExist(err):
		d.rebuildEpochs, l.epochsStale = haveData, haveData // a new log's file is written with its first epoch
		return nil
	case !errors.As(err, &bad):
		return err
	}
	if err := keepCorrupt(l.o.FS, path, l.now()); err != nil {
		return err
	}
	d.rebuildEpochs, l.epochsStale = true, true
	l.event(Event{Kind: EventRebuilt, Cause: err.Error()})
	return nil
}

// keepCorrupt renames a file that cannot be understood.
func keepCorrupt(fsys vfs.FS, path string, now time.Time) error {
	return fsys.Rename(path, fmt.Sprintf("%s.corrupt-%d", path, now.UnixMilli()))
}

// openSegments opens all segments and loads the indexes of those that need no scan.
func (d *loader) openSegments(bases []int64) error {
	l := d.l
	d.recoverFrom = len(bases)
	if len(bases) > 0 {
		l.loadStart = max(l.o.LogStart, bases[0])
	}
	if !l.o.Clean {
		d.recoverFrom = 0
		for i, b := range bases {
			if b <= l.o.RecoveryPoint {
				d.recoverFrom = i
			}
		}
	}
	for i, base := range bases {
		f, err := l.o.Handles.lazy(l.o.FS, l.o.Dir, base, logFile)
		if err != nil {
			return err
		}
		d.segs = append(d.segs, &segment{base: base, file: f})
		d.states = append(d.states, emptyState(base))
		if i >= d.recoverFrom {
			continue
		}
		next := int64(-1)
		if i+1 < len(bases) {
			next = bases[i+1]
		}
		ok, err := d.loadSegment(i, next)
		if err != nil {
			return err
		}
		if !ok {
			d.recoverFrom = i
		}
	}
	return nil
}

// loadSegment loads segment i without reading it, but for what the indexes do not tell about its end. Not ok means
// that it needs recovery, which only the last segment may: what was synced before is never cut off. next is the
// following segment's base, -1 for the last.
func (d *loader) loadSegment(i int, next int64) (ok bool, err error) {
	l, seg, st := d.l, d.segs[i], &d.states[i]
	if st.size, err = seg.file.Size(); err != nil {
		return false, err
	}
	if st.size == 0 && next < 0 && d.indexesEmpty(seg.base) {
		return true, nil
	}
	txns, txnErr, err := l.readTxnIndex(seg.base)
	if err != nil {
		return false, err
	}
	st.txns = txns
	indexErr, err := l.readIndexes(seg.base, st)
	if err != nil {
		return false, err
	}
	if indexErr == nil {
		if ok, err = d.findEnd(i); err != nil || !ok && next < 0 {
			return false, err
		}
		if !ok {
			indexErr = errors.New(indexName(seg.base) + ": does not fit the log")
		}
	}
	if indexErr != nil || txnErr != nil {
		unread := next >= 0 && next <= l.o.LogStart
		whole, err := d.rebuild(i, indexErr != nil, (txnErr != nil || len(txns) == 0) && !unread)
		if err != nil || !whole && next < 0 {
			return false, err
		}
		if txnErr != nil || !errors.Is(indexErr, errNoTimes) || len(st.times.entries) > 0 {
			l.event(Event{Kind: EventRebuilt, From: seg.base, To: st.end, Cause: fmt.Sprint(errors.Join(indexErr, txnErr))})
		}
		if overflows(seg.base, st.end-1) {
			return false, &overflowError{seg.base, st.end - 1}
		}
		if next < 0 {
			d.lastMeta.offsetsWritten, d.lastMeta.timesWritten, d.lastMeta.txnsWritten = -1, -1, -1
			return true, nil
		}
		if err := l.saveIndexes(seg.base, st, true); err != nil {
			st.end = next
			return IsFull(err), ifNotFull(err) // they stay in memory, and are rebuilt at the next start
		}
	}
	if overflows(seg.base, st.end-1) {
		return false, &overflowError{seg.base, st.end - 1}
	}
	if next >= 0 {
		*st = compactIndexes(*st, l.indexFiles(seg.base))
		st.end = next
	}
	return true, nil
}

// indexesEmpty says whether an empty segment has no more in its index files, as that of an idle partition.
func (d *loader) indexesEmpty(base int64) bool {
	for _, name := range [...]string{indexName(base), timeName(base), txnName(base)} {
		if _, there := slices.BinarySearch(d.l.names, name); !there {
			continue
		}
		if info, err := d.l.o.FS.Stat(d.l.path(name)); err != nil || info.Size() > 0 {
			return false
		}
	}
	return true
}

func ifNotFull(err error) error {
	if IsFull(err) {
		return nil
	}
	return err
}

// rebuild makes the offset and time index, or the transaction index, or both of segment i anew. Not whole: the
// headers do not reach the end of the file. Reads will say so where it is.
func (d *loader) rebuild(i int, indexes, txns bool) (whole bool, err error) {
	whole = true
	st := &d.states[i]
	size := st.size
	if indexes {
		if whole, err = d.rebuildIndexes(i); err != nil {
			return false, err
		}
		if !whole {
			st.size = size
		}
	}
	if txns && whole {
		return whole, d.rebuildTxnIndex(i)
	}
	return whole, nil
}

// rebuildTxnIndex finds the aborted transactions whose marker is in segment i.
func (d *loader) rebuildTxnIndex(i int) error {
	l, seg, st := d.l, d.segs[i], &d.states[i]
	p, err := l.replayProducers(d.segs[:i], func(j int) *segmentState { return &d.states[j] }, seg.base, seg.base)
	if err != nil {
		return err
	}
	st.txns = nil
	return l.replaySegment(&p, seg, st, seg.base, st.end, l.now().UnixMilli(), func(e txnEntry) { st.txns = append(st.txns, e) })
}

// belowStart says whether all of segment i lies below the log start: nobody reads it any more, and a crash may have torn
// it, since the log start takes the recovery point with it.
func (d *loader) belowStart(i int) bool {
	return i+1 < len(d.segs) && d.segs[i+1].base <= d.l.o.LogStart
}

// findEnd reads the batch headers after the last index entry: they must end exactly where the file does, and not
// before the time index.
func (d *loader) findEnd(i int) (bool, error) {
	seg, st := d.segs[i], &d.states[i]
	pos := int64(0)
	if n := len(st.offsets.entries); n > 0 {
		pos = int64(st.offsets.entries[n-1].pos)
	}
	r := newHeaderReader(seg.file, st.size)
	defer r.close()
	for {
		b, err := r.header(pos)
		switch {
		case err == io.EOF:
			n := len(st.times.entries)
			return n == 0 || seg.base+int64(st.times.entries[n-1].rel) < st.end, nil
		case errors.Is(err, errTorn):
			return false, nil
		case err != nil:
			return false, err
		}
		if b.BaseOffset() < seg.base {
			return false, nil
		}
		if b.MaxTimestamp() > st.largest.timestamp {
			st.largest = timestampOffset{b.MaxTimestamp(), b.LastOffset()}
		}
		st.end = b.NextOffset()
		pos += int64(b.Length())
	}
}

// rebuildIndexes makes the indexes of segment i from its batch headers. Not ok: the headers do not reach the end.
func (d *loader) rebuildIndexes(i int) (bool, error) {
	l, seg, st := d.l, d.segs[i], &d.states[i]
	size, txns := st.size, st.txns
	*st = emptyState(seg.base)
	st.txns = txns
	r := newHeaderReader(seg.file, size)
	defer r.close()
	var since int64
	for {
		b, err := r.header(st.size)
		switch {
		case err == io.EOF:
			st.addTimeEntry(seg.base)
			return true, nil
		case errors.Is(err, errTorn):
			return false, nil
		case err != nil:
			return false, err
		}
		info := batchInfo{size: b.Length(), base: b.BaseOffset(), last: b.LastOffset(), maxTimestamp: b.MaxTimestamp()}
		st.add(seg.base, &info, &since, int64(l.config.Load().IndexIntervalBytes))
	}
}

// coverEpochs rebuilds the epoch cache if it does not know the first batch of the log: the cache was cut at a log start
// that was then lost in a crash.
func (d *loader) coverEpochs() error {
	l := d.l
	if len(d.segs) == 0 || d.states[0].size == 0 {
		return nil
	}
	i := len(d.segs) - 1
	for i > 0 && d.segs[i].base > l.logStart {
		i--
	}
	pos, err := d.states[i].offsets.lookup(l.logStart - d.segs[i].base)
	if err != nil {
		return err
	}
	r := newHeaderReader(d.segs[i].file, d.states[i].size)
	defer r.close()
	b, err := r.header(pos)
	for ; err == nil && b.LastOffset() < l.logStart; b, err = r.header(pos) {
		pos += int64(b.Length())
	}
	if err == io.EOF {
		return nil
	}
	if err != nil {
		return l.unreadable(d.segs[i], pos, err)
	}
	first := max(b.BaseOffset(), l.logStart)
	if e, ok := l.epochs.ForOffset(first); b.PartitionLeaderEpoch() < 0 || ok && e == b.PartitionLeaderEpoch() {
		return nil
	}
	l.event(Event{Kind: EventRebuilt, From: first, To: l.leo, Cause: epoch.CheckpointName + ": does not know the first batch"})
	l.epochs, l.epochsStale = epoch.Cache{}, true
	return d.scanEpochs(len(d.segs))
}

// scanEpochs rebuilds the epoch cache from the headers of the first n segments.
func (d *loader) scanEpochs(n int) error {
	l := d.l
	for i := range n {
		if d.belowStart(i) {
			continue
		}
		r := newHeaderReader(d.segs[i].file, d.states[i].size)
		for pos := int64(0); ; {
			b, err := r.header(pos)
			if err == io.EOF {
				break
			}
			if err == nil {
				err = l.assignScanned(b)
			}
			if err != nil {
				r.close()
				return l.unreadable(d.segs[i], pos, err)
			}
			pos += int64(b.Length())
		}
		r.close()
	}
	return nil
}

// assignScanned notes the epoch of a batch found in the log.
func (l *Log) assignScanned(b record.Batch) error {
	e := b.PartitionLeaderEpoch()
	if last, ok := l.epochs.Latest(); e < 0 || ok && last.Epoch >= e {
		return nil
	}
	next, changed, err := l.epochs.Assign(e, b.BaseOffset())
	l.epochs, l.epochsStale = next, l.epochsStale || changed
	return err
}

// recoverSegments scans what an unclean stop left unsure, and ends the log at the first damage.
func (d *loader) recoverSegments() error {
	if d.recoverFrom >= len(d.segs) {
		return nil
	}
	l := d.l
	p, err := l.replayProducers(d.segs[:d.recoverFrom], func(i int) *segmentState { return &d.states[i] }, d.segs[d.recoverFrom].base,
		max(l.o.HighWatermark, l.o.LogStart))
	if err != nil {
		return err
	}
	l.producers, d.producersDone = p, true
	expected, lastEpoch := int64(0), record.NoLeaderEpoch
	for i := d.recoverFrom; i < len(d.segs); i++ {
		cut, err := d.recoverSegment(i, &expected, &lastEpoch)
		if err != nil {
			return err
		}
		d.scanned++
		if i+1 < len(d.segs) {
			if err := ifNotFull(l.saveIndexes(d.segs[i].base, &d.states[i], false)); err != nil {
				return err
			}
		}
		if cut == 0 && !d.holeAfter(i) {
			continue
		}
		d.dropped += cut
		return d.dropAfter(i)
	}
	return nil
}

// holeAfter says that segment i ends before the next one begins: the disk wrote the later one back and lost the end
// of the earlier one. Compaction leaves such gaps too, but only below the recovery point, which it has written down
// before it begins, and below its own checkpoint.
func (d *loader) holeAfter(i int) bool {
	l := d.l
	if i+1 >= len(d.segs) || l.o.RecoveryPoint < 0 {
		return false
	}
	next := d.segs[i+1].base
	if next <= max(l.o.RecoveryPoint, l.o.CleanedTo) || d.states[i].end >= next {
		return false
	}
	// Where the next batch is so far away that no segment could hold it from the end of this one on, see nextBase.
	size, err := d.segs[i+1].file.Size()
	if err != nil {
		return true
	}
	r := newHeaderReader(d.segs[i+1].file, size)
	defer r.close()
	b, err := r.header(0)
	return err != nil || !overflows(d.states[i].end, b.LastOffset())
}

// recoverSegment checks every batch of segment i, rebuilding all that derives from them, and cuts the file after
// the last good one. It returns how many bytes it cut.
func (d *loader) recoverSegment(i int, expected *int64, lastEpoch *int32) (int64, error) {
	l, seg := d.l, d.segs[i]
	st := emptyState(seg.base)
	size, err := seg.file.Size()
	if err != nil {
		return 0, err
	}
	s := &batchScanner{file: seg.file, end: size}
	*expected = max(*expected, seg.base)
	wall, interval := l.now().UnixMilli(), int64(l.config.Load().IndexIntervalBytes)
	var since, told int64
	for {
		b, err := s.next()
		if err == io.EOF || errors.Is(err, errTorn) {
			break
		}
		if err != nil {
			return 0, err
		}
		if b.BaseOffset() < *expected || b.LastOffset() < b.BaseOffset() {
			break
		}
		if overflows(seg.base, b.LastOffset()) {
			return 0, &overflowError{seg.base, b.LastOffset()}
		}
		e := b.PartitionLeaderEpoch()
		if e >= 0 && e < *lastEpoch && *expected <= l.o.LogStart {
			// What lies below the log start is nobody's any more: a follower that has nothing else left takes over another
			// history from there, which may be of older epochs.
			if found, ok := l.epochs.ForOffset(b.BaseOffset()); ok && found == *lastEpoch {
				next, _, err := l.epochs.Assign(e, b.BaseOffset())
				if err != nil {
					return 0, err
				}
				l.epochs, l.epochsStale = next, true
			}
			*lastEpoch = e
		}
		if e >= 0 && e < *lastEpoch {
			return 0, &CorruptError{l.o.Dir, logName(seg.base), b.BaseOffset(), &UnexpectedEpochError{*lastEpoch, e, b.BaseOffset()}}
		} else if e >= 0 {
			*lastEpoch = e
		}
		if st.size == 0 {
			d.lastMeta.firstTimestamp = b.MaxTimestamp()
		}
		if err := l.assignScanned(b); err != nil {
			return 0, err
		}
		info := describeBatch(b, 0)
		st.add(seg.base, &info, &since, interval)
		if aborted, ok := l.producers.appended(b, wall); ok {
			st.txns = append(st.txns, aborted)
		}
		*expected = b.NextOffset()
		if s.pos-told >= scannedStep {
			l.scanned(s.pos - told)
			told = s.pos
		}
	}
	l.scanned(size - told)
	st.addTimeEntry(seg.base)
	d.states[i] = st
	d.lastMeta.offsetsWritten, d.lastMeta.timesWritten, d.lastMeta.txnsWritten = -1, -1, -1
	if st.size == size {
		return 0, nil
	}
	if err := seg.file.Truncate(st.size); err != nil {
		return 0, err
	}
	return size - st.size, seg.file.Sync()
}

// scannedStep is after how many bytes a recovery tells how far it is.
const scannedStep = 4 << 20

func (l *Log) scanned(bytes int64) {
	if l.o.Scanned != nil {
		l.o.Scanned(bytes)
	}
}

// dropAfter takes the segments after i out of the log.
func (d *loader) dropAfter(i int) error {
	gone := d.segs[i+1:]
	for j := range gone {
		size, err := gone[j].file.Size()
		if err != nil {
			return err
		}
		d.dropped += size
	}
	if err := d.l.retireSegments(gone, true); err != nil {
		return err
	}
	for _, s := range gone {
		s.file.Close()
	}
	d.segs, d.states = d.segs[:i+1], d.states[:i+1]
	return nil
}

// decideBounds settles log start, end offset and recovery point.
func (d *loader) decideBounds() error {
	l := d.l
	if n := len(d.segs); n > 0 {
		l.leo = d.states[n-1].end
	}
	if len(d.segs) > 0 && l.leo < l.o.LogStart {
		if err := l.retireSegments(d.segs, true); err != nil {
			return err
		}
		for _, s := range d.segs {
			s.file.Close()
		}
		l.event(Event{Kind: EventStartedAt, From: l.leo, To: l.o.LogStart, Cause: "end offset below the log start of the checkpoint"})
		d.segs, d.states, d.producersDone = nil, nil, false
		l.epochs, l.epochsStale = epoch.Cache{}, true
	}
	if len(d.segs) == 0 {
		base := max(l.o.LogStart, 0)
		seg, err := l.createSegment(base)
		if err != nil {
			return err
		}
		d.segs, d.states = []*segment{seg}, []segmentState{emptyState(base)}
		d.created = true
		d.lastMeta = activeMeta{firstTimestamp: record.NoTimestamp, allocated: l.config.Load().Preallocate}
		l.leo = base
	}
	l.logStart = max(l.o.LogStart, d.segs[0].base)
	l.hw = min(max(l.o.HighWatermark, l.logStart), l.leo)
	point := min(max(l.o.RecoveryPoint, 0), l.leo)
	if l.o.Clean && d.dropped == 0 && d.scanned == 0 {
		point = l.leo
	}
	l.recoveryPoint.Store(point)
	if err := d.coverEpochs(); err != nil {
		return err
	}
	// Damage below the recovery point was cut off: what is appended in its place must not pass for synced.
	l.positionsUnsaved = point < l.o.RecoveryPoint
	if c := l.epochs.TruncateFromEnd(l.leo).TruncateFromStart(l.logStart); !c.Equal(l.epochs) {
		l.epochs, l.epochsStale = c, true
	}
	return nil
}

// install makes the loaded segments the log's, restores the producers, and publishes.
func (d *loader) install() error {
	l := d.l
	last := len(d.segs) - 1
	for i := range d.segs[:last] {
		d.segs[i].sealed = d.states[i]
	}
	created := l.newMeta()
	d.lastMeta.created, d.lastMeta.jitterMs = created.created, created.jitterMs
	l.active, l.activeMeta = d.states[last], d.lastMeta
	if d.scanned == 0 {
		if m := &l.activeMeta; m.offsetsWritten == 0 && m.timesWritten == 0 {
			m.offsetsWritten, m.timesWritten, m.txnsWritten = len(l.active.offsets.entries), len(l.active.times.entries), len(l.active.txns)
		}
		var err error
		if l.activeMeta.firstTimestamp, err = firstTimestamp(d.segs[last].file, l.active.size); err != nil {
			return err
		}
	}
	l.setSegments(d.segs)
	if !d.producersDone {
		if err := l.restoreProducers(l.leo); err != nil {
			return err
		}
	}
	if err := d.restoreTxnIndexes(); err != nil {
		return err
	}
	l.producers.replicated(l.hw)
	if !l.o.Clean {
		if err := l.checkSnapshots(); err != nil {
			return err
		}
	}
	if err := l.pruneSnapshots(); err != nil {
		return err
	}
	l.names = nil
	if l.leo > l.logStart || len(l.producers.byID) > 0 {
		if err := l.writeSnapshot(l.leo, d.scanned > 0); err != nil && !IsFull(err) {
			return err
		}
	}
	// What was dropped for want of batches does no harm until the next append, which writes it; the file loses it at every
	// start.
	if d.scanned > 0 || d.dropped > 0 || d.rebuildEpochs && l.epochs.Len() > 0 {
		if err := l.persistEpochs(); err != nil && !IsFull(err) {
			return err // on a full disk: before the next append
		}
	}
	if d.scanned > 0 {
		if err := l.writeIndexes(true); err != nil {
			l.indexTrouble(err)
		}
	}
	l.dirChanges++
	l.foundUnsynced = !l.o.Clean && !d.created
	// Nor may it be on disk that the segments below the log start are gone: the checkpoint must not forget it before.
	l.retiring.Store(l.foundUnsynced && l.o.LogStart >= 0)
	if !l.o.Clean && l.leo-l.recoveryPoint.Load() >= l.config.Load().FlushMessages {
		// What a killed process had written but not synced is there, and is about to be acknowledged to whoever asks
		// where this log ends.
		if err := l.flushLocked(); err != nil {
			return err
		}
	}
	l.publish()
	m := &l.activeMeta
	written := m.offsetsWritten >= 0 && m.timesWritten >= 0 && m.txnsWritten >= 0 && !(d.rebuildEpochs && l.epochsStale && l.epochs.Len() > 0)
	if l.o.Clean && d.scanned == 0 && written && !l.positionsUnsaved {
		l.loaded = loadedState{l.list, l.leo, l.logStart}
	}
	return nil
}
