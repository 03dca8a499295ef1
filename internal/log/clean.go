package log

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
)

// errCleanAborted says that the log changed under the cleaner (truncated, deleted, no longer compacted): nothing was
// changed, and it may be tried again.
var errCleanAborted = errors.New("cleaning aborted")

// cleanOptions are what one pass needs to know.
type cleanOptions struct {
	now       time.Time
	mapBytes  int64
	mapLoad   float64
	throttle  func(bytes int) error // told of bytes read and written; it waits, and its error ends the pass
	cancelled <-chan struct{}
}

// CleanResult says what a pass did.
type CleanResult struct {
	From, To      int64 // the offsets that were dirty before
	BytesBefore   int64
	BytesAfter    int64
	Keys          int
	MapFull       bool // the pass ended early, for want of log.cleaner.dedupe.buffer.size
	RecordsBefore int64
	RecordsAfter  int64
}

// uncleanableError says that the cleaner cannot read what is in the log.
type uncleanableError struct {
	Offset int64 // where, or the next one before
	Err    error
}

func (e *uncleanableError) Error() string { return fmt.Sprintf("at offset %d: %v", e.Offset, e.Err) }
func (e *uncleanableError) Unwrap() error { return e.Err }

// cleaning is one pass over one log.
type cleaning struct {
	l           *Log
	dir         string // the log's directory as it was; a deleted log's is renamed
	o           cleanOptions
	view        *View
	truncations int
	dirt        Dirtiness
	filter      filter
	result      CleanResult
}

// clean removes superseded records from [start, dirt.Uncleanable). Readers, appends and everything else go on
// meanwhile. Errors: errCleanAborted; *uncleanableError; *StorageError, when the disk refused.
func (l *Log) clean(d Dirtiness, o cleanOptions) (CleanResult, error) {
	l.mu.Lock()
	truncations, dir := l.truncations, l.o.Dir
	l.mu.Unlock()
	v := l.View()
	defer v.Release()
	if v.closed {
		return CleanResult{}, errCleanAborted
	}
	c := &cleaning{l: l, o: o, dir: dir, view: v, truncations: truncations, dirt: d}
	return c.run()
}

func (c *cleaning) run() (CleanResult, error) {
	l, conf := c.l, c.l.config.Load()
	keys := newOffsetMap(c.dirt.FirstDirty, c.dirt.Uncleanable, c.o.mapBytes, c.o.mapLoad)
	end, err := c.index(keys)
	if err != nil {
		return c.result, err
	}
	c.result.From, c.result.To, c.result.Keys = c.dirt.FirstDirty, end, keys.size
	c.filter = filter{keys: keys, txns: transactionsOf(c.view, 0), nowMs: c.o.now.UnixMilli(), retentionMs: conf.DeleteRetentionMs,
		uncleanable: c.dirt.Uncleanable, limits: record.Limits{MaxDecompressed: conf.MaxDecompressedBytes}}
	for group := range c.groups(end, conf) {
		if err := c.cleanGroup(group); err != nil {
			l.dropCleaned()
			return c.result, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := c.unchanged(); err != nil {
		return c.result, err
	}
	l.cleanedTo.Store(end)
	l.event(Event{Kind: EventCleaned, From: c.result.From, To: end, Bytes: c.result.BytesBefore - c.result.BytesAfter,
		Cause: fmt.Sprintf("%d bytes became %d, %d records %d", c.result.BytesBefore, c.result.BytesAfter, c.result.RecordsBefore, c.result.RecordsAfter)})
	return c.result, nil
}

// unchanged says whether the pass may go on. mu is held.
func (c *cleaning) unchanged() error {
	l := c.l
	if err := l.usable(); err != nil || l.truncations != c.truncations || !l.config.Load().Cleanup.Compacts() {
		return errCleanAborted
	}
	return nil
}

// checked is unchanged from outside, with the throttle.
func (c *cleaning) checked(bytes int) error {
	select {
	case <-c.o.cancelled:
		return errCleanAborted
	default:
	}
	if err := c.o.throttle(bytes); err != nil {
		return errCleanAborted
	}
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	return c.unchanged()
}

// index fills keys from what is dirty. end is the offset up to which that was possible.
func (c *cleaning) index(keys *offsetMap) (end int64, err error) {
	txns := transactionsOf(c.view, c.dirt.FirstDirty)
	limits := record.Limits{MaxDecompressed: c.l.config.Load().MaxDecompressedBytes}
	segs := c.view.list.segs
	for i := c.view.list.find(c.dirt.FirstDirty); i < len(segs) && segs[i].base < c.dirt.Uncleanable; i++ {
		pos := int64(0)
		if rel := c.dirt.FirstDirty - segs[i].base - 1; rel > 0 {
			st := c.view.state(i)
			if pos, err = st.offsets.lookup(rel); err != nil {
				return 0, c.readError(segs[i].base, err)
			}
		}
		err := c.scan(i, pos, func(b record.Batch) error {
			if b.LastOffset() < c.dirt.FirstDirty && !b.IsTransactional() {
				return nil
			}
			if b.IsControl() {
				if _, _, _, err := txns.marker(b); err != nil {
					return err
				}
			} else if !txns.data(b) {
				full, err := indexBatch(keys, b, c.dirt.FirstDirty, limits)
				if err != nil {
					return err
				}
				if full {
					return errMapFull
				}
			}
			if b.LastOffset() >= c.dirt.FirstDirty {
				keys.latest = b.LastOffset()
			}
			return nil
		})
		if err == errMapFull {
			c.result.MapFull = true
			return keys.latest + 1, nil
		}
		if err != nil {
			return 0, err
		}
	}
	return c.dirt.Uncleanable, nil
}

// indexBatch notes the keys of b from offset from on.
func indexBatch(keys *offsetMap, b record.Batch, from int64, limits record.Limits) (full bool, err error) {
	it := record.NewRecordIterator(b, limits)
	defer it.Close()
	for it.Next() {
		r := it.Record()
		if offset := b.OffsetOf(r); r.Key != nil && offset >= from && !keys.put(r.Key, offset) {
			return true, nil
		}
	}
	return false, it.Err()
}

// errMapFull ends the scan that fills the map.
var errMapFull = errors.New("offset map is full")

// scan calls fn for each batch of segment i from position pos on, until it fails.
func (c *cleaning) scan(i int, pos int64, fn func(record.Batch) error) error {
	seg := c.view.list.segs[i]
	s := &batchScanner{file: seg.file, end: c.view.state(i).size, pos: pos}
	at := seg.base
	for {
		b, err := s.next()
		switch {
		case err == io.EOF:
			return nil
		case errors.Is(err, errTorn):
			return &uncleanableError{at, err}
		case err != nil:
			return c.readError(at, err)
		}
		if err := c.checked(len(b)); err != nil {
			return err
		}
		var invalid *record.InvalidRecordError
		switch err := fn(b); {
		case errors.As(err, &invalid):
			return &uncleanableError{b.BaseOffset(), err}
		case err != nil:
			return err
		}
		at = b.NextOffset()
	}
}

// readError takes the log's directory offline: an error of the disk says nothing about the bytes.
func (c *cleaning) readError(at int64, err error) error {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	if c.l.usable() != nil {
		return errCleanAborted // the file was closed under us
	}
	return c.l.offline(fmt.Sprintf("read at offset %d", at), err)
}

// groups are the runs of segments below end that fit into one new segment each, by index.
func (c *cleaning) groups(end int64, conf *Config) func(yield func([2]int) bool) {
	segs := c.view.list.segs
	n := 0
	for n < len(segs)-1 && segs[n].base < end {
		n++
	}
	lastOffset := func(i int) int64 {
		if i+1 < n {
			return segs[i+1].base - 1
		}
		return c.dirt.Uncleanable - 1
	}
	return func(yield func([2]int) bool) {
		for from := 0; from < n; {
			size, offsets, times := int64(0), 0, 0
			to := from
			for ; to < n; to++ {
				st := c.view.state(to)
				size += st.size
				offsets += st.offsets.len() * offsetEntrySize
				times += st.times.len() * timeEntrySize
				fits := size <= int64(conf.SegmentBytes) && offsets <= int(conf.SegmentIndexBytes) && times <= int(conf.SegmentIndexBytes) &&
					(st.size == 0 || lastOffset(to)-segs[from].base <= math.MaxInt32)
				if to > from && !fits {
					break
				}
			}
			if !yield([2]int{from, to}) {
				return
			}
			from = to
		}
	}
}

// cleanGroup writes what is left of the segments [group[0], group[1]) to new ones and puts those in their place.
func (c *cleaning) cleanGroup(group [2]int) error {
	old := c.view.list.segs[group[0]:group[1]]
	c.filter.producers = c.l.lastOfProducers()
	w := &cleanedWriter{l: c.l, dir: c.dir, limit: math.MaxInt32}
	defer w.close()
	if err := w.next(old[0].base); err != nil {
		return c.writeError(err)
	}
	for i := group[0]; i < group[1]; i++ {
		c.result.BytesBefore += c.view.state(i).size
		err := c.scan(i, 0, func(b record.Batch) error {
			c.result.RecordsBefore += int64(b.Count())
			out, entry, indexed, err := c.filter.of(b)
			if err != nil || out == nil {
				return err
			}
			c.result.RecordsAfter += int64(out.Count())
			if err := w.add(out, entry, indexed); err != nil {
				return c.writeError(err)
			}
			return c.o.throttle(len(out))
		})
		if err != nil {
			return err
		}
	}
	info, err := c.l.o.FS.Stat(filepath.Join(c.dir, logName(old[len(old)-1].base)))
	if err != nil {
		return errCleanAborted // it was deleted meanwhile
	}
	if err := w.finish(info.ModTime()); err != nil {
		return c.writeError(err)
	}
	if err := c.swap(old, w); err != nil {
		return err
	}
	for _, s := range w.done {
		c.result.BytesAfter += s.sealed.size
	}
	return nil
}

// writeError is the error of output that could not be written. A full disk stops this pass only; any other error of
// the disk takes the directory offline.
func (c *cleaning) writeError(err error) error {
	if IsFull(err) {
		return &StorageError{Dir: c.l.logDir, Op: "clean " + c.l.tp().String(), Err: err}
	}
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	if c.l.usable() != nil {
		return errCleanAborted
	}
	return c.l.offline("clean", err)
}

// dropCleaned removes output that is not finished.
func (l *Log) dropCleaned() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed != nil || l.closed {
		return // the next start does so
	}
	names, err := fileNames(l.o.FS, l.o.Dir)
	if err != nil {
		return
	}
	for _, n := range names {
		if _, named := fileOffset(n); named && len(n) > len(cleanedSuffix) && n[len(n)-len(cleanedSuffix):] == cleanedSuffix {
			_ = l.o.FS.Remove(l.path(n))
		}
	}
}

// cleanedWriter writes new segments, which have the suffix .cleaned until they take the place of others.
type cleanedWriter struct {
	l     *Log
	dir   string
	done  []*segment
	cur   *segment
	state segmentState
	since int64 // bytes since the last index entry
	buf   []byte
	at    int64 // where buf begins in the file
	limit int64 // of a segment's bytes
}

const cleanedBufSize = 256 << 10

func (w *cleanedWriter) path(name string) string { return filepath.Join(w.dir, name+cleanedSuffix) }

func (w *cleanedWriter) next(base int64) error {
	if w.cur != nil {
		if err := w.endSegment(); err != nil {
			return err
		}
	}
	f, err := w.l.o.FS.OpenFile(w.path(logName(base)), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	f = w.l.o.Handles.adopt(f, w.dir, base, logFile, true)
	w.cur, w.state, w.since, w.at = &segment{base: base, file: f}, emptyState(base), 0, 0
	return nil
}

// add appends one batch. What would outgrow a segment, since it was compressed anew, goes to another one.
func (w *cleanedWriter) add(b record.Batch, entry txnEntry, indexed bool) error {
	if w.state.size+int64(len(b)) > w.limit || b.LastOffset()-w.cur.base > math.MaxInt32 {
		if err := w.next(b.BaseOffset()); err != nil {
			return err
		}
	}
	info := describeBatch(b, 0)
	w.state.add(w.cur.base, &info, &w.since, int64(w.l.config.Load().IndexIntervalBytes))
	if indexed {
		w.state.txns = append(w.state.txns, entry)
	}
	if w.buf == nil {
		w.buf = make([]byte, 0, cleanedBufSize)
	}
	if len(w.buf)+len(b) > cap(w.buf) {
		if err := w.flush(); err != nil {
			return err
		}
	}
	if len(b) > cap(w.buf) {
		_, err := w.cur.file.WriteAt(b, w.at)
		w.at += int64(len(b))
		return err
	}
	w.buf = append(w.buf, b...)
	return nil
}

func (w *cleanedWriter) flush() error {
	if len(w.buf) == 0 {
		return nil
	}
	_, err := w.cur.file.WriteAt(w.buf, w.at)
	w.at += int64(len(w.buf))
	w.buf = w.buf[:0]
	return err
}

// endSegment makes the segment and its indexes durable.
func (w *cleanedWriter) endSegment() error {
	if err := w.flush(); err != nil {
		return err
	}
	if err := w.cur.file.Sync(); err != nil {
		return err
	}
	base := w.cur.base
	w.state.addTimeEntry(base)
	w.l.mu.Lock()
	empty := w.l.wantsTxnIndex(w.state.size)
	w.l.mu.Unlock()
	files := []struct {
		name string
		data []byte
	}{{indexName(base), formatOffsetEntries(w.state.offsets.entries)}, {timeName(base), formatTimeEntries(w.state.times.entries)},
		{txnName(base), formatTxnEntries(w.state.txns)}}
	for _, f := range files {
		if len(f.data) == 0 && f.name == txnName(base) && !empty {
			continue
		}
		if err := vfs.ReplaceFile(w.l.o.FS, w.path(f.name), f.data); err != nil {
			return err
		}
		if err := w.l.syncFile(w.path(f.name)); err != nil {
			return err
		}
	}
	w.cur.sealed = compactIndexes(w.state, func(kind fileKind) (vfs.File, error) {
		f, err := w.l.o.FS.OpenFile(w.path(kind.name(base)), os.O_RDONLY, 0)
		if err != nil {
			return nil, err
		}
		return w.l.o.Handles.adopt(f, w.dir, base, kind, true), nil
	})
	w.done, w.cur = append(w.done, w.cur), nil
	return nil
}

// finish ends the last segment. The files are as old as the newest that they were made of, which is what retention goes
// by where records have no timestamps.
func (w *cleanedWriter) finish(modified time.Time) error {
	if err := w.endSegment(); err != nil {
		return err
	}
	for _, s := range w.done {
		if err := w.l.o.FS.SetModTime(w.path(logName(s.base)), modified); err != nil {
			return err
		}
	}
	return nil
}

// close lets go of segments that were not taken over.
func (w *cleanedWriter) close() {
	for _, s := range append(slices.Clip(w.done), w.cur) {
		if s != nil && s.refs.Load() == 0 {
			s.refs.Store(1)
			s.release()
		}
	}
}

// cleanedFiles are the names a segment may have files of.
func cleanedFiles(base int64) []string {
	return []string{indexName(base), timeName(base), txnName(base), logName(base)}
}

// swap puts the finished segments of w in the place of old. A crash at any step leaves the old ones, or enough for the
// next start to finish the swap: first the new files get the suffix .swap, the last one last; that they all have it,
// durably, decides; then the old ones go; then the new ones take their names.
func (c *cleaning) swap(old []*segment, w *cleanedWriter) error {
	l := c.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := c.unchanged(); err != nil {
		return err
	}
	at := slices.Index(l.list.segs, old[0])
	if at < 0 || at+len(old) >= len(l.list.segs) || !slices.Equal(l.list.segs[at:at+len(old)], old) {
		return errCleanAborted // the oldest have been deleted meanwhile
	}
	vfs.Failpoint("cleaned-written")
	if err := l.renameCleaned(w.done, cleanedSuffix, swapSuffix); err != nil {
		return l.offline("swap", err)
	}
	vfs.Failpoint("swap-decided")
	segs := slices.Concat(l.list.segs[:at], w.done, l.list.segs[at+len(old):])
	l.setSegments(segs)
	l.publish()
	if err := l.retireReplaced(old); err != nil {
		return l.offline("swap", err)
	}
	vfs.Failpoint("swap-retired")
	if err := l.renameCleaned(w.done, swapSuffix, ""); err != nil {
		return l.offline("swap", err)
	}
	vfs.Failpoint("swap-done")
	for _, s := range w.done {
		nameFile(s.file)
		nameFile(s.sealed.offsets.file)
		nameFile(s.sealed.times.file)
	}
	return nil
}

// renameCleaned gives the files of segments another suffix, newest segment first.
func (l *Log) renameCleaned(segs []*segment, from, to string) error {
	// Not every file system keeps what happens in a directory in order. On the way in nothing is decided as long as a .cleaned file
	// of the oldest segment is there: it must be there before the first rename, and its last name not go before the others have
	// theirs. On the way out what still has .swap replaces all that lies among it: it must be the oldest, without a gap.
	several, in := len(segs) > 1, from == cleanedSuffix
	if several && in {
		if err := l.o.FS.SyncDir(l.o.Dir); err != nil {
			return err
		}
	}
	for i, s := range slices.Backward(segs) {
		for k, name := range cleanedFiles(s.base) {
			if several && (in && i == 0 && name == logName(s.base) || !in && k == 0 && i < len(segs)-1) {
				if err := l.o.FS.SyncDir(l.o.Dir); err != nil {
					return err
				}
			}
			vfs.Failpoint("swap-rename")
			if err := l.o.FS.Rename(l.path(name+from), l.path(name+to)); err != nil && !(name == txnName(s.base) && isNotExist(err)) {
				return err
			}
		}
	}
	return l.o.FS.SyncDir(l.o.Dir)
}

// retireReplaced renames the files of segments that others have taken the place of. The producer snapshot of the first
// stays: it still begins a segment.
func (l *Log) retireReplaced(old []*segment) error {
	due := l.now().Add(time.Duration(min(l.config.Load().FileDeleteDelayMs, int64(time.Hour.Milliseconds()*24*365))) * time.Millisecond)
	for i, s := range old {
		s.hold()
		names := cleanedFiles(s.base)
		if i > 0 {
			names = append(names, snapshotName(s.base))
		}
		for _, name := range names {
			vfs.Failpoint("swap-retire")
			if err := l.retireFile(name, due); err != nil {
				return err
			}
		}
	}
	return l.o.FS.SyncDir(l.o.Dir)
}
