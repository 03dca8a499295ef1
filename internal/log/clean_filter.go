package log

import (
	"cmp"
	"slices"

	"github.com/stelelog/stele/internal/record"
)

// transactions follows the transactions of a part of the log, from first to last batch, by what is known of the
// aborted ones.
type transactions struct {
	aborted   []txnEntry // that have not been reached, by first offset
	open      map[int64]*abortedTxn
	committed map[int64]bool // producers with data of a transaction that was not aborted, since their last marker
}

type abortedTxn struct {
	entry txnEntry
	seen  bool // a batch of it is still there, maybe without records
}

// transactionsOf knows the aborted transactions of the view that end at or after offset from.
func transactionsOf(v *View, from int64) *transactions {
	t := &transactions{open: map[int64]*abortedTxn{}, committed: map[int64]bool{}}
	for i := range v.list.segs {
		for _, e := range v.state(i).txns {
			if e.lastOffset >= from {
				t.aborted = append(t.aborted, e)
			}
		}
	}
	slices.SortFunc(t.aborted, func(a, b txnEntry) int { return cmp.Compare(a.firstOffset, b.firstOffset) })
	return t
}

func (t *transactions) reach(offset int64) {
	for len(t.aborted) > 0 && t.aborted[0].firstOffset <= offset {
		if e := t.aborted[0]; t.open[e.producerID] == nil {
			t.open[e.producerID] = &abortedTxn{entry: e}
		}
		t.aborted = t.aborted[1:]
	}
}

// data takes note of a data batch and says whether it belongs to an aborted transaction.
func (t *transactions) data(b record.Batch) (aborted bool) {
	t.reach(b.LastOffset())
	if !b.IsTransactional() {
		return false
	}
	if txn := t.open[b.ProducerID()]; txn != nil {
		txn.seen = true
		return true
	}
	t.committed[b.ProducerID()] = true
	return false
}

// marker takes note of a control batch. empty says that nothing of its transaction is left, so that it may go; entry is
// what a marker of an aborted transaction of which something is left needs in the index.
func (t *transactions) marker(b record.Batch) (empty bool, entry txnEntry, indexed bool, err error) {
	t.reach(b.LastOffset())
	if b.Count() == 0 {
		return true, txnEntry{}, false, nil // emptied before
	}
	m, ok, err := record.ParseEndTxnMarker(b)
	if err != nil || !ok {
		return false, txnEntry{}, false, err
	}
	if m.Commit {
		seen := t.committed[b.ProducerID()]
		delete(t.committed, b.ProducerID())
		return !seen, txnEntry{}, false, nil
	}
	txn := t.open[b.ProducerID()]
	delete(t.open, b.ProducerID())
	if txn == nil || !txn.seen {
		return true, txnEntry{}, false, nil
	}
	return false, txn.entry, true, nil
}

// lastOfProducer is the newest that the log remembers of a producer.
type lastOfProducer struct {
	offset  int64 // of its last data batch's end
	hasData bool
	epoch   int16
}

func (l *Log) lastOfProducers() map[int64]lastOfProducer {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[int64]lastOfProducer, len(l.producers.byID))
	for id, st := range l.producers.byID {
		last := lastOfProducer{epoch: st.epoch}
		if m, ok := st.lastBatch(); ok {
			last.offset, last.hasData = m.lastOffset, true
		}
		out[id] = last
	}
	return out
}

// filter decides what is left of each batch.
type filter struct {
	keys        *offsetMap
	txns        *transactions
	producers   map[int64]lastOfProducer
	nowMs       int64
	retentionMs int64 // delete.retention.ms
	uncleanable int64 // where the part that is cleaned ends
	limits      record.Limits

	keep  []bool // per record of a batch; reused
	built []byte // where batches are rebuilt; reused
}

// of says what is to be in the log in place of b: b itself, another batch, which is valid until the next call, or nothing (nil). indexed: the batch is the
// marker of an aborted transaction, and entry goes into the transaction index.
func (f *filter) of(b record.Batch) (out record.Batch, entry txnEntry, indexed bool, err error) {
	if b.IsControl() {
		empty, entry, indexed, err := f.txns.marker(b)
		if err != nil {
			return nil, entry, false, err
		}
		horizon, set := b.DeleteHorizon()
		switch {
		case !empty:
			return b, entry, indexed, nil
		case b.Count() == 0 || set && horizon <= f.nowMs:
			return f.emptied(b), entry, false, nil
		case set:
			return b, entry, false, nil
		}
		out, err := f.rebuild(b, nil, new(f.nowMs+f.retentionMs))
		return out, entry, false, err
	}
	if f.txns.data(b) {
		return f.emptied(b), entry, false, nil
	}
	if b.BaseOffset() > f.keys.latest {
		return b, entry, false, nil // nothing is known of its keys yet
	}
	kept, tombstones, err := f.decide(b)
	switch {
	case err != nil:
		return nil, entry, false, err
	case kept == 0:
		return f.emptied(b), entry, false, nil
	}
	horizon, set := b.DeleteHorizon()
	switch {
	case tombstones && !set && b.LastOffset() <= f.keys.latest: // the horizon is set once, for all in the batch
		out, err = f.rebuild(b, f.keep, new(f.nowMs+f.retentionMs))
	case kept == int(b.Count()):
		out = b
	case set:
		out, err = f.rebuild(b, f.keep, &horizon)
	default:
		out, err = f.rebuild(b, f.keep, nil)
	}
	return out, entry, false, err
}

// emptied is what is left of a batch without records: its header, when that is all that remembers its producer's last
// sequence number, or where the cleaned part ends.
func (f *filter) emptied(b record.Batch) record.Batch {
	if b.NextOffset() == f.uncleanable || f.lastOfItsProducer(b) {
		if b.Count() == 0 {
			return b
		}
		return record.EmptyBatch(b)
	}
	return nil
}

func (f *filter) lastOfItsProducer(b record.Batch) bool {
	if !b.HasProducerID() {
		return false
	}
	last, ok := f.producers[b.ProducerID()]
	if !ok {
		return false
	}
	if last.hasData {
		return last.offset == b.LastOffset()
	}
	return b.IsControl() && b.ProducerEpoch() == last.epoch
}

// decide fills f.keep for the records of b.
func (f *filter) decide(b record.Batch) (kept int, tombstones bool, err error) {
	horizon, set := b.DeleteHorizon()
	expired := set && f.nowMs >= horizon
	f.keep = f.keep[:0]
	it := record.NewRecordIterator(b, f.limits)
	defer it.Close()
	for it.Next() {
		r := it.Record()
		offset := b.OffsetOf(r)
		keep := offset > f.keys.latest || r.Key != nil && !f.keys.newer(r.Key, offset) && (r.Value != nil || !expired)
		f.keep = append(f.keep, keep)
		if keep {
			kept++
			tombstones = tombstones || r.Value == nil
		}
	}
	return kept, tombstones, it.Err()
}

// rebuild is b with the records that keep names (nil: all), at the same offsets. It is valid until the next one.
func (f *filter) rebuild(b record.Batch, keep []bool, horizon *int64) (record.Batch, error) {
	if room := record.HeaderSize + b.Length(); cap(f.built) < room {
		f.built = make([]byte, 0, max(room, cleanedBufSize))
	}
	o := record.BuilderOptions{Codec: b.Codec(), TimestampType: b.TimestampType(), LogAppendTime: b.MaxTimestamp(),
		Transactional: b.IsTransactional(), Control: b.IsControl(), BaseOffset: b.BaseOffset(), DeleteHorizon: horizon, SizeHint: b.Length(), Buffer: f.built}
	if b.HasProducerID() {
		o.Producer = &record.Producer{ID: b.ProducerID(), Epoch: b.ProducerEpoch(), BaseSequence: b.BaseSequence()}
	}
	builder := record.NewBuilder(o)
	it := record.NewRecordIterator(b, f.limits)
	defer it.Close()
	for i := 0; it.Next(); i++ {
		if keep != nil && !keep[i] {
			continue
		}
		r := it.Record()
		if err := builder.AppendAt(r.OffsetDelta, b.TimestampOf(r), r.Key, r.Value, r.Headers); err != nil {
			return nil, err
		}
	}
	if err := it.Err(); err != nil {
		return nil, err
	}
	builder.SetLastOffsetDelta(b.LastOffsetDelta())
	out := builder.Bytes()
	out.SetPartitionLeaderEpoch(b.PartitionLeaderEpoch())
	return out, nil
}
