package log

import (
	"strings"

	"github.com/stelelog/stele/internal/vfs"
)

// A transaction index exists only where a transaction was aborted, so a lost one looks like none. What tells is the
// producer snapshot at the segment's end: where it knows of no markers there are none in the segment, as long as their
// producers have not expired. A segment that may have markers, and no index, is looked through when the log is opened. So
// that this happens once, a large one without aborted transactions then has an empty index, as one that is sealed gets at
// once.

// emptyTxnIndexFrom is the size in bytes from which a segment that has markers, and none of an abort, gets an empty
// transaction index: smaller ones are looked through faster than it takes to say so.
const emptyTxnIndexFrom = 1 << 20

// wantsTxnIndex says whether a segment of this size gets a transaction index without entries. mu is held.
func (l *Log) wantsTxnIndex(size int64) bool {
	return size >= emptyTxnIndexFrom && l.producers.seenMarkers()
}

// restoreTxnIndexes finds the aborted transactions of those segments whose transaction index was lost. Segments that were
// recovered are not among them: they have been read whole. The producers are restored before.
func (d *loader) restoreTxnIndexes() error {
	lost, err := d.lostTxnIndexes()
	if err != nil || len(lost) == 0 {
		return err
	}
	l := d.l
	first, last := lost[0], lost[len(lost)-1]
	state := func(i int) *segmentState { return &d.states[i] }
	p, err := l.replayProducers(d.segs[:first], state, d.segs[first].base, d.segs[first].base)
	if err != nil {
		return err
	}
	wall := l.now().UnixMilli()
	for i := first; i <= last; i++ {
		seg, st := d.segs[i], &d.states[i]
		if data, err := vfs.ReadFile(l.o.FS, l.path(snapshotName(seg.base))); err == nil {
			if known, err := parseSnapshot(data); err == nil {
				p = known // it has seen what was compacted away since
			}
		}
		take := func(txnEntry) {}
		mine := lost[0] == i
		if mine {
			lost = append(lost[1:], -1)
			take = func(e txnEntry) { st.txns = append(st.txns, e) }
		}
		if err := l.replaySegment(&p, seg, st, seg.base, st.end, wall, take); err != nil {
			return err
		}
		if mine && (len(st.txns) > 0 || st.size >= emptyTxnIndexFrom && p.seenMarkers()) {
			if err := d.saveTxnIndex(i); err != nil {
				return err
			}
		}
	}
	return nil
}

// saveTxnIndex writes the transaction index that was found for segment i, and puts it in place.
func (d *loader) saveTxnIndex(i int) error {
	l, seg, st := d.l, d.segs[i], &d.states[i]
	if len(st.txns) > 0 {
		l.event(Event{Kind: EventRebuilt, From: seg.base, To: st.end, Cause: txnName(seg.base) + ": lost"})
	}
	err := vfs.ReplaceFileSynced(l.o.FS, l.path(txnName(seg.base)), formatTxnEntries(st.txns))
	if err != nil && !IsFull(err) {
		return err
	}
	if i < len(d.segs)-1 {
		seg.sealed.txns = st.txns
		return nil
	}
	l.active.txns = st.txns
	if l.activeMeta.txnsWritten = len(st.txns); err != nil {
		l.activeMeta.txnsWritten = -1
	}
	return nil
}

// lostTxnIndexes are the segments that may have had a transaction index, and have none.
func (d *loader) lostTxnIndexes() ([]int, error) {
	l := d.l
	has, transactional := map[string]bool{}, l.producers.seenMarkers()
	names := l.names
	if names == nil { // they have changed
		var err error
		if names, err = fileNames(l.o.FS, l.o.Dir); err != nil {
			return nil, err
		}
	}
	for _, n := range names {
		if strings.HasSuffix(n, ".txnindex") {
			has[n], transactional = true, true
		}
	}
	if !transactional {
		return nil, nil
	}
	var lost []int
	for i := range min(d.recoverFrom, len(d.segs)) {
		seg, st := d.segs[i], &d.states[i]
		if d.belowStart(i) || st.size == 0 || len(st.txns) > 0 || has[txnName(seg.base)] {
			continue
		}
		if data, err := vfs.ReadFile(l.o.FS, l.path(snapshotName(st.end))); err == nil {
			if p, err := parseSnapshot(data); err == nil && !p.seenMarkers() {
				continue
			}
		} else if !isNotExist(err) {
			return nil, err
		}
		lost = append(lost, i)
	}
	return lost, nil
}
