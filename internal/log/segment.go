package log

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"

	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
)

const (
	// inMemoryIndexEntries is the largest index that a sealed segment keeps in memory instead of in its file.
	inMemoryIndexEntries = 512
	// pendingIndexEntries is how many entries of the last segment may wait to be written to the index files. They
	// are safe: a crash makes recovery rebuild the last segment's indexes anyway.
	pendingIndexEntries = 512
)

// createSegment makes an empty segment at base, in place of whatever files of that base are left over.
func (l *Log) createSegment(base int64) (*segment, error) {
	for _, name := range [...]string{indexName(base), timeName(base), txnName(base)} {
		if err := removeIfExists(l.o.FS, l.path(name)); err != nil {
			return nil, err
		}
	}
	f, err := l.o.FS.OpenFile(l.path(logName(base)), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return nil, err
	}
	if c := l.config.Load(); c.Preallocate {
		if err := f.Truncate(int64(c.SegmentBytes)); err != nil {
			f.Close()
			// Left behind, it would hide what the segment before it still takes at these offsets.
			return nil, errors.Join(err, removeIfExists(l.o.FS, l.path(logName(base))))
		}
	}
	l.dirChanges++
	return &segment{base: base, file: l.o.Handles.adopt(f, l.o.Dir, base, logFile, false)}, nil
}

// emptyState is the state of a segment without batches.
func emptyState(base int64) segmentState {
	return segmentState{end: base, largest: timestampOffset{record.NoTimestamp, base}}
}

func (l *Log) newMeta() activeMeta {
	return activeMeta{created: l.now(), jitterMs: l.drawJitter(), firstTimestamp: record.NoTimestamp,
		allocated: l.config.Load().Preallocate}
}

func removeIfExists(fsys vfs.FS, path string) error {
	if err := fsys.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// add notes a batch at the end of the segment, with the index entries it is due. sinceIndexEntry is the number of
// bytes since the last one.
func (st *segmentState) add(base int64, b *batchInfo, sinceIndexEntry *int64, interval int64) {
	if b.maxTimestamp > st.largest.timestamp {
		st.largest = timestampOffset{b.maxTimestamp, b.last}
	}
	if *sinceIndexEntry > interval && st.size <= math.MaxInt32 {
		st.offsets.entries = append(st.offsets.entries, offsetEntry{int32(b.last - base), int32(st.size)})
		st.addTimeEntry(base)
		*sinceIndexEntry = 0
	}
	*sinceIndexEntry += int64(b.size)
	st.size += int64(b.size)
	st.end = b.last + 1
}

// addTimeEntry indexes the largest timestamp so far, if it is later than the last one indexed.
func (st *segmentState) addTimeEntry(base int64) {
	n := len(st.times.entries)
	if st.largest.timestamp < 0 || n > 0 && st.times.entries[n-1].timestamp >= st.largest.timestamp {
		return
	}
	st.times.entries = append(st.times.entries, timeEntry{st.largest.timestamp, int32(st.largest.offset - base)})
}

// cut is the state with everything from position pos on, which is offset end, taken away. The slices of st are
// not disturbed by appends to the answer.
func (st segmentState) cut(base, pos, end int64) segmentState {
	n := 0
	for n < len(st.offsets.entries) && int64(st.offsets.entries[n].pos) < pos {
		n++
	}
	st.offsets.entries = st.offsets.entries[:n:n]
	n = 0
	for n < len(st.times.entries) && base+int64(st.times.entries[n].rel) < end {
		n++
	}
	st.times.entries = st.times.entries[:n:n]
	n = 0
	for n < len(st.txns) && st.txns[n].lastOffset < end {
		n++
	}
	st.txns = st.txns[:n:n]
	st.size, st.end = pos, end
	return st
}

// largestOf finds the largest timestamp of the segment's first st.size bytes, from the last time index entry on.
func largestOf(f vfs.File, base int64, st *segmentState) (timestampOffset, error) {
	largest := timestampOffset{record.NoTimestamp, base}
	from := int64(0)
	if n := len(st.times.entries); n > 0 {
		e := st.times.entries[n-1]
		largest = timestampOffset{e.timestamp, base + int64(e.rel)}
		pos, err := st.offsets.lookup(int64(e.rel))
		if err != nil {
			return largest, err
		}
		from = pos
	}
	r := newHeaderReader(f, st.size)
	defer r.close()
	for pos := from; ; {
		b, err := r.header(pos)
		if err == io.EOF {
			return largest, nil
		}
		if err != nil {
			return largest, err
		}
		if b.MaxTimestamp() > largest.timestamp {
			largest = timestampOffset{b.MaxTimestamp(), b.LastOffset()}
		}
		pos += int64(b.Length())
	}
}

// writeIndexes brings the last segment's index files up to date with its entries. Indexes are caches: an error is
// reported, the entries stay in memory and the next call tries again. So is a panic: it comes behind bytes that stay.
func (l *Log) writeIndexes(create bool) (err error) {
	base, st, m := l.list.last().base, &l.active, &l.activeMeta
	defer func() {
		if r := recover(); r != nil {
			m.offsetsWritten, m.timesWritten, m.txnsWritten = -1, -1, -1
			err = fmt.Errorf("%w: %v", errPanic, r)
		}
	}()
	err1 := writeIndexTail(l.o.FS, l.path(indexName(base)), offsetEntrySize, &m.offsetsWritten, len(st.offsets.entries), create,
		func(from int) []byte { return formatOffsetEntries(st.offsets.entries[from:]) })
	err2 := writeIndexTail(l.o.FS, l.path(timeName(base)), timeEntrySize, &m.timesWritten, len(st.times.entries), create,
		func(from int) []byte { return formatTimeEntries(st.times.entries[from:]) })
	err3 := writeIndexTail(l.o.FS, l.path(txnName(base)), txnEntrySize, &m.txnsWritten, len(st.txns), create && l.wantsTxnIndex(st.size),
		func(from int) []byte { return formatTxnEntries(st.txns[from:]) })
	return errors.Join(err1, err2, err3)
}

// writeIndexTail writes the entries from *written on; a negative *written says that the file holds something else
// and is to be written anew. create makes the file exist even without entries.
func writeIndexTail(fsys vfs.FS, path string, entrySize int, written *int, count int, create bool, format func(int) []byte) error {
	if *written == count && !(create && count == 0) {
		return nil
	}
	if *written < 0 && count == 0 && !create {
		if err := removeIfExists(fsys, path); err != nil {
			return err
		}
		*written = 0
		return nil
	}
	if *written < 0 {
		// The old file stays as it is for readers of the segment that this one was cut from.
		if err := vfs.ReplaceFile(fsys, path, format(0)); err != nil {
			return err
		}
		*written = count
		return nil
	}
	from := *written
	*written = -1 // until this has succeeded
	f, err := fsys.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(int64(from) * int64(entrySize)); err != nil {
		return err
	}
	if data := format(from); len(data) > 0 {
		if _, err := f.WriteAt(data, int64(from)*int64(entrySize)); err != nil {
			return err
		}
	}
	*written = count
	return nil
}

// indexTrouble notes that index files could not be written. Nothing but speed depends on them; a file that is
// missing or wrong is rebuilt when the log is opened.
func (l *Log) indexTrouble(err error) {
	base := l.list.last().base
	l.event(Event{Kind: EventRebuilt, From: base, To: l.leo, Cause: "index of segment " + logName(base) + " not written: " + err.Error()})
}

// seal ends the last segment: last time entry, index files, true size. It returns the state for readers.
func (l *Log) seal() (segmentState, error) {
	seg := l.list.last()
	l.active.addTimeEntry(seg.base)
	if l.activeMeta.allocated {
		if err := seg.file.Truncate(l.active.size); err != nil {
			return segmentState{}, err
		}
		l.activeMeta.allocated = false
	}
	if err := l.writeIndexes(true); err != nil {
		l.indexTrouble(err)
		for _, name := range [...]string{indexName(seg.base), timeName(seg.base), txnName(seg.base)} {
			// A missing index is rebuilt at the next start; a half-written one might not be noticed.
			_ = removeIfExists(l.o.FS, l.path(name))
		}
		// Should the next segment not come to be, this one goes on, and its files are to be written whole.
		l.activeMeta.offsetsWritten, l.activeMeta.timesWritten, l.activeMeta.txnsWritten = -1, -1, -1
		return l.active, nil
	}
	return compactIndexes(l.active, l.indexFiles(seg.base)), nil
}

// indexFiles opens the index files of a sealed segment when they are used.
func (l *Log) indexFiles(base int64) func(fileKind) (vfs.File, error) {
	return func(kind fileKind) (vfs.File, error) { return l.o.Handles.lazy(l.o.FS, l.o.Dir, base, kind) }
}

// compactIndexes makes large indexes of a sealed segment live in their files, and small ones take no more memory than
// they need.
func compactIndexes(st segmentState, open func(fileKind) (vfs.File, error)) segmentState {
	if n := len(st.offsets.entries); n > inMemoryIndexEntries {
		if f, err := open(offsetIndexFile); err == nil {
			st.offsets = offsetIndex{file: f, count: n}
		}
	} else {
		st.offsets.entries = append([]offsetEntry(nil), st.offsets.entries...)
	}
	if n := len(st.times.entries); n > inMemoryIndexEntries {
		if f, err := open(timeIndexFile); err == nil {
			st.times = timeIndex{file: f, count: n}
		}
	} else {
		st.times.entries = append([]timeEntry(nil), st.times.entries...)
	}
	return st
}

// inMemory is st with its indexes read back into memory, for a sealed segment that becomes the last one again.
func (st segmentState) inMemory() (segmentState, error) {
	if st.offsets.file != nil {
		entries := make([]offsetEntry, st.offsets.count)
		for i := range entries {
			e, err := st.offsets.at(i)
			if err != nil {
				return st, err
			}
			entries[i] = e
		}
		st.offsets = offsetIndex{entries: entries}
	}
	if st.times.file != nil {
		entries := make([]timeEntry, st.times.count)
		for i := range entries {
			e, err := st.times.at(i)
			if err != nil {
				return st, err
			}
			entries[i] = e
		}
		st.times = timeIndex{entries: entries}
	}
	return st, nil
}
