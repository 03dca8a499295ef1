package log

import (
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
	names, err := fileNames(l.o.FS, l.o.Dir)
	if err != nil {
		return nil, err
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
// not do when there have been transactions.
func (l *Log) newestSnapshot(upTo, hw int64) (p producers, at int64, err error) {
	offsets, err := l.snapshotOffsets()
	if err != nil {
		return producers{}, 0, err
	}
	for _, o := range slices.Backward(offsets) {
		if o > upTo || o < l.logStartForLoad() {
			continue
		}
		data, err := vfs.ReadFile(l.o.FS, l.path(snapshotName(o)))
		if err != nil {
			return producers{}, 0, err
		}
		p, err := parseSnapshot(data)
		if err == nil && o > hw && p.seenMarkers() {
			continue
		}
		if err == nil {
			return p, o, nil
		}
		l.event(Event{Kind: EventRebuilt, From: o, To: upTo, Cause: snapshotName(o) + ": " + err.Error()})
		if err := removeIfExists(l.o.FS, l.path(snapshotName(o))); err != nil {
			return producers{}, 0, err
		}
		if l.snapshotAt == o {
			l.snapshotAt = -1
		}
	}
	return producers{}, -1, nil
}

func (l *Log) logStartForLoad() int64 {
	if l.list == nil {
		return l.o.LogStart
	}
	return l.logStart
}

// replayProducers computes the producer state at upTo, with the transactions that were decided from hw on. Without a
// snapshot it reads all batch headers.
func (l *Log) replayProducers(segs []*segment, state func(int) *segmentState, upTo, hw int64) (producers, error) {
	p, from, err := l.newestSnapshot(upTo, hw)
	if err != nil {
		return p, err
	}
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
	return p, nil
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
			return &CorruptError{Dir: l.o.Dir, Segment: logName(seg.base), Offset: pos, Err: err}
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
		l.dirChanges++
		if err := removeIfExists(l.o.FS, l.path(snapshotName(o))); err != nil {
			return err
		}
	}
	return nil
}

// readTxnIndex reads the transaction index of a segment; a missing one is empty. A part of an entry at the end is an
// error here: the abort that it told of would be forgotten.
func (l *Log) readTxnIndex(base int64) ([]txnEntry, error) {
	data, err := vfs.ReadFile(l.o.FS, l.path(txnName(base)))
	if isNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if n := len(data) % txnEntrySize; n > 0 {
		return nil, fmt.Errorf("%s: %d bytes behind the last entry", txnName(base), n)
	}
	return parseTxnIndex(data, base)
}

// readIndexes loads the offset and time index of a segment. An error says that they have to be rebuilt.
func (l *Log) readIndexes(base int64, st *segmentState) error {
	data, err := vfs.ReadFile(l.o.FS, l.path(indexName(base)))
	if err != nil {
		return err
	}
	if st.offsets.entries, err = parseOffsetIndex(data, st.size); err != nil {
		return err
	}
	if data, err = vfs.ReadFile(l.o.FS, l.path(timeName(base))); err != nil {
		return err
	}
	if st.times.entries, err = parseTimeIndex(data); err != nil {
		return err
	}
	if n := len(st.times.entries); n > 0 {
		e := st.times.entries[n-1]
		st.largest = timestampOffset{e.timestamp, base + int64(e.rel)}
	}
	return nil
}

// saveIndexes writes the index files of a segment that is not the last one.
func (l *Log) saveIndexes(base int64, st *segmentState) error {
	if err := vfs.ReplaceFile(l.o.FS, l.path(indexName(base)), formatOffsetEntries(st.offsets.entries)); err != nil {
		return err
	}
	if err := vfs.ReplaceFile(l.o.FS, l.path(timeName(base)), formatTimeEntries(st.times.entries)); err != nil {
		return err
	}
	if len(st.txns) == 0 {
		return removeIfExists(l.o.FS, l.path(txnName(base)))
	}
	return vfs.ReplaceFile(l.o.FS, l.path(txnName(base)), formatTxnEntries(st.txns))
}
