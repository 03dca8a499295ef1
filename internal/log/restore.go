package log

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/stelelog/stele/internal/vfs"
)

// restoreProducers sets the producer state to what it was at offset upTo, from the newest usable snapshot and the
// batches after it.
func (l *Log) restoreProducers(upTo int64) error {
	p, err := l.replayProducers(l.list.segs, l.stateOf, upTo, l.hw)
	if err != nil {
		return err
	}
	l.producers = p
	return nil
}

// snapshotOffsets are the offsets of the snapshot files, ascending.
func (l *Log) snapshotOffsets() ([]int64, error) {
	names := l.names
	if names == nil {
		var err error
		if names, err = fileNames(l.o.FS, l.o.Dir); err != nil {
			return nil, err
		}
	}
	var out []int64
	for _, n := range names {
		if o := snapshotOffset(n); o >= 0 {
			out = append(out, o)
		}
	}
	slices.Sort(out)
	return out, nil
}

// newestSnapshot is the producer state at the newest usable snapshot at or below upTo. Damaged ones are removed. A
// snapshot does not tell which transactions were decided above the high watermark, so one that lies above it will
// not do when there have been transactions: it is in above, so that they can be compared.
func (l *Log) newestSnapshot(upTo, hw int64) (p producers, at int64, above *producers, err error) {
	offsets, err := l.snapshotOffsets()
	if err != nil {
		return producers{}, 0, nil, err
	}
	for _, o := range slices.Backward(offsets) {
		if o > upTo || o < l.logStartForLoad() {
			continue
		}
		data, err := vfs.ReadFile(l.o.FS, l.path(snapshotName(o)))
		if err != nil {
			return producers{}, 0, nil, err
		}
		p, err := parseSnapshot(data)
		if err == nil && o > hw && p.seenMarkers() {
			if above == nil {
				above = &p
			}
			continue
		}
		if err == nil {
			return p, o, above, nil
		}
		l.names = nil
		l.event(Event{Kind: EventRebuilt, From: o, To: upTo, Cause: snapshotName(o) + ": " + err.Error()})
		if err := removeIfExists(l.o.FS, l.path(snapshotName(o))); err != nil {
			return producers{}, 0, nil, err
		}
		if l.snapshotAt == o {
			l.snapshotAt = -1
		}
	}
	return producers{}, -1, above, nil
}

// logStartForLoad is the log start as far as it is known while the log is loaded. A snapshot from below it is no use: what
// would have to be read after it, to know which transactions were decided, is not there.
func (l *Log) logStartForLoad() int64 {
	if l.list == nil {
		return l.loadStart
	}
	return l.logStart
}

// replayProducers computes the producer state at upTo, with the transactions that were decided from hw on. Without a
// snapshot it reads all batch headers.
func (l *Log) replayProducers(segs []*segment, state func(int) *segmentState, upTo, hw int64) (producers, error) {
	p, from, above, err := l.newestSnapshot(upTo, hw)
	if err != nil {
		return p, err
	}
	if !l.o.Clean && l.list == nil {
		if err := l.recall(&p, segs, state, from); err != nil {
			return p, err
		}
	}
	known := slices.Clone(p.open)
	from = max(from, l.logStartForLoad()) // what lies below may not even be on disk
	// How long ago a producer was last heard of is not known: it counts from now, so that a restart never makes a
	// retry look new.
	wall := l.now().UnixMilli()
	for _, st := range p.byID {
		st.lastSeen = max(st.lastSeen, wall)
	}
	for i, seg := range segs {
		st := state(i)
		if st.end <= from || seg.base >= upTo {
			continue
		}
		if err := l.replaySegment(&p, seg, st, from, upTo, wall, func(txnEntry) {}); err != nil {
			return p, err
		}
	}
	if above != nil {
		p.forgetDecided(known, above)
	}
	return p, nil
}

// recallBytes is how far before a snapshot recall looks.
const recallBytes = 256 << 10

// recall brings back what a snapshot at offset at does not hold: the batches before each producer's last one. After a kill
// a producer sends again all that was on its way, which may be five batches, and a segment may have been rolled among them.
func (l *Log) recall(p *producers, segs []*segment, state func(int) *segmentState, at int64) error {
	i := len(segs) - 1
	for i >= 0 && segs[i].base >= at {
		i--
	}
	if i < 0 || len(p.byID) == 0 || segs[i].base < l.logStartForLoad() || state(i).end < at {
		return nil
	}
	seg, st := segs[i], state(i)
	pos := int64(0)
	for k := st.offsets.len() - 1; k >= 0; k-- {
		e, err := st.offsets.at(k)
		if err != nil {
			return err
		}
		if int64(e.pos) < st.size-recallBytes {
			pos = int64(e.pos)
			break
		}
	}
	before := map[int64][]batchMeta{}
	r := newHeaderReader(seg.file, st.size)
	defer r.close()
	for {
		b, err := r.header(pos)
		if err == io.EOF || errors.Is(err, errTorn) || err == nil && b.BaseOffset() >= at {
			break // recovery will tell of damage
		}
		if err != nil {
			return err
		}
		if known := p.byID[b.ProducerID()]; b.HasProducerID() && !b.IsControl() && known != nil && known.epoch == b.ProducerEpoch() {
			before[known.id] = append(before[known.id], batchMeta{firstSequence: b.BaseSequence(), lastSequence: b.LastSequence(),
				offsetDelta: b.LastOffsetDelta(), lastOffset: b.LastOffset(), timestamp: b.MaxTimestamp()})
		}
		pos += int64(b.Length())
	}
	for id, batches := range before {
		known := p.byID[id]
		last, ok := known.lastBatch()
		if n := len(batches); !ok || known.count != 1 || batches[n-1].lastOffset != last.lastOffset || batches[n-1].lastSequence != last.lastSequence {
			continue
		}
		known.count = 0
		for _, m := range batches[max(0, len(batches)-rememberedBatches):] {
			known.remember(m)
		}
	}
	return nil
}

// forgetDecided closes those transactions of known, which an older snapshot had open, that a newer one has not: the marker
// that ended them was compacted away, with the data.
func (p *producers) forgetDecided(known []openTxn, newer *producers) {
	for _, t := range known {
		st := p.byID[t.producerID]
		if st == nil || st.txnFirstOffset != t.first {
			continue
		}
		if later := newer.byID[t.producerID]; later == nil || later.txnFirstOffset != t.first {
			st.txnFirstOffset = -1
			p.removeOpen(t.first)
		}
	}
}

// replaySegment feeds the segment's batches in [from, upTo) to p. aborted hears of the transactions that end by abort.
func (l *Log) replaySegment(p *producers, seg *segment, st *segmentState, from, upTo, wall int64, aborted func(txnEntry)) error {
	r := newHeaderReader(seg.file, st.size)
	defer r.close()
	pos := int64(0)
	if from > seg.base {
		var err error
		if pos, err = st.offsets.lookup(from - seg.base - 1); err != nil {
			return err
		}
	}
	for {
		b, err := r.header(pos)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return l.unreadable(seg, pos, err)
		}
		size := b.Length()
		if b.BaseOffset() >= upTo {
			return nil
		}
		if b.LastOffset() >= from && b.HasProducerID() {
			if b.IsControl() {
				if b, err = readBatch(seg.file, pos, size, nil); err != nil {
					return err
				}
			}
			if e, ok := p.appended(b, wall); ok {
				aborted(e)
			}
		}
		pos += int64(size)
	}
}

// unreadable is what a batch header that could not be read says: bytes that are no batch make this log unusable, an
// error of the disk is the directory's.
func (l *Log) unreadable(seg *segment, pos int64, err error) error {
	if !errors.Is(err, errTorn) {
		return err
	}
	return &CorruptError{Dir: l.o.Dir, Segment: logName(seg.base), Offset: seg.base, Err: fmt.Errorf("at position %d: %w", pos, err)}
}

// checkSnapshots removes snapshots that a crash caught half written.
func (l *Log) checkSnapshots() error {
	offsets, err := l.snapshotOffsets()
	if err != nil {
		return err
	}
	for _, o := range offsets {
		data, err := vfs.ReadFile(l.o.FS, l.path(snapshotName(o)))
		if err != nil {
			return err
		}
		if _, err := parseSnapshot(data); err == nil {
			continue
		}
		l.names = nil
		if err := removeIfExists(l.o.FS, l.path(snapshotName(o))); err != nil {
			return err
		}
	}
	return nil
}

// removeSnapshotsAbove removes the snapshots at offsets above offset.
func (l *Log) removeSnapshotsAbove(offset int64) error {
	return l.removeSnapshots(func(o int64) bool { return o > offset })
}

// pruneSnapshots keeps the snapshots that begin a segment, and the newest one.
func (l *Log) pruneSnapshots() error {
	offsets, err := l.snapshotOffsets()
	if err != nil {
		return err
	}
	newest := int64(-1)
	for _, o := range offsets {
		if o <= l.leo {
			newest = o
		}
	}
	return l.removeSnapshots(func(o int64) bool {
		return o > l.leo || o != newest && l.list.segs[l.list.find(o)].base != o
	})
}

func (l *Log) removeSnapshots(matches func(int64) bool) error {
	offsets, err := l.snapshotOffsets()
	if err != nil {
		return err
	}
	l.snapshotAt = -1
	for _, o := range offsets {
		if !matches(o) {
			l.snapshotAt = o
			continue
		}
		l.names = nil
		l.dirChanges++
		if err := removeIfExists(l.o.FS, l.path(snapshotName(o))); err != nil {
			return err
		}
	}
	return nil
}

// readTxnIndex reads the transaction index of a segment; a missing one is empty. rebuild says why it has to be made
// anew; err is the disk's.
func (l *Log) readTxnIndex(base int64) (entries []txnEntry, rebuild, err error) {
	data, err := vfs.ReadFile(l.o.FS, l.path(txnName(base)))
	if isNotExist(err) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	entries, rebuild = parseTxnIndex(data, base)
	return entries, rebuild, nil
}

// readIndexes loads the offset and time index of a segment. rebuild says why they have to be made anew; err is the
// disk's.
func (l *Log) readIndexes(base int64, st *segmentState) (rebuild, err error) {
	data, err := vfs.ReadFile(l.o.FS, l.path(indexName(base)))
	if err != nil {
		return missing(err)
	}
	if st.offsets.entries, rebuild = parseOffsetIndex(data, st.size); rebuild != nil {
		return rebuild, nil
	}
	if data, err = vfs.ReadFile(l.o.FS, l.path(timeName(base))); err != nil {
		return missing(err)
	}
	if st.times.entries, rebuild = parseTimeIndex(data); rebuild != nil {
		return rebuild, nil
	}
	if len(st.times.entries) == 0 && st.size > 0 {
		// Rightly so only where no record has a timestamp, or where none was due an entry yet: the headers tell.
		return fmt.Errorf("%s: %w", timeName(base), errNoTimes), nil
	}
	if n := len(st.times.entries); n > 0 {
		e := st.times.entries[n-1]
		st.largest = timestampOffset{e.timestamp, base + int64(e.rel)}
	}
	return nil, nil
}

// missing says of an error of opening a file whether the file has to be made anew, or the disk has failed.
func missing(err error) (rebuild, failed error) {
	if isNotExist(err) {
		return err, nil
	}
	return nil, err
}

// saveIndexes writes the index files of a segment that is not the last one. Those of a segment that no recovery will
// look at again are synced, and the offset index comes last: it is missed when it is not there, and then all are made
// anew, but a transaction index that is not there may be rightly so.
func (l *Log) saveIndexes(base int64, st *segmentState, sync bool) error {
	replace := vfs.ReplaceFile
	if sync {
		replace = vfs.ReplaceFileSynced
	}
	if len(st.txns) == 0 {
		if err := removeIfExists(l.o.FS, l.path(txnName(base))); err != nil {
			return err
		}
	} else if err := replace(l.o.FS, l.path(txnName(base)), formatTxnEntries(st.txns)); err != nil {
		return err
	}
	if err := replace(l.o.FS, l.path(timeName(base)), formatTimeEntries(st.times.entries)); err != nil {
		return err
	}
	return replace(l.o.FS, l.path(indexName(base)), formatOffsetEntries(st.offsets.entries))
}
