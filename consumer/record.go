package consumer

import (
	"bytes"
	"iter"
	"sync/atomic"
	"time"

	"github.com/stelelog/stele/internal/record"
)

// Header is one header of a record. Keys are UTF-8 by convention, which nobody checks.
type Header struct {
	Key   []byte
	Value []byte // nil is null
}

// Record is a record as it was read. It and the bytes it points to are valid in the step of the loop that was given it;
// Clone makes a copy that lasts.
type Record struct {
	Topic       string
	Partition   int32
	Offset      int64
	LeaderEpoch Epoch     // of the leader that appended it
	Timestamp   time.Time // of the producer, or of the append when the topic says so; zero: none
	AppendTime  bool      // Timestamp is that of the append
	Key         []byte    // nil is null
	Value       []byte    // nil is null
	Headers     []Header
}

// TopicPartition is where the record is.
func (r *Record) TopicPartition() TopicPartition { return TopicPartition{r.Topic, r.Partition} }

// Next is the position after the record.
func (r *Record) Next() Position { return Position{r.Offset + 1, r.LeaderEpoch} }

// Header is the value of the last header with a key.
func (r *Record) Header(key string) (value []byte, ok bool) {
	for i := len(r.Headers) - 1; i >= 0; i-- {
		if string(r.Headers[i].Key) == key {
			return r.Headers[i].Value, true
		}
	}
	return nil, false
}

// Clone copies the record and what it points to.
func (r *Record) Clone() *Record {
	clone := *r
	clone.Key, clone.Value, clone.Headers = bytes.Clone(r.Key), bytes.Clone(r.Value), nil
	for _, h := range r.Headers {
		clone.Headers = append(clone.Headers, Header{bytes.Clone(h.Key), bytes.Clone(h.Value)})
	}
	return &clone
}

// Fetch is what one Poll returned: whole batches, or parts of them. Positions follow the loops over its records: what
// no loop takes comes again with the next Poll, which ends the Fetch.
type Fetch struct {
	c     *Consumer
	parts []*Batch
}

// Records walks the records, partition by partition. Each is valid until the next.
func (f *Fetch) Records() iter.Seq[*Record] {
	return func(yield func(*Record) bool) {
		var r Record
		for _, b := range f.parts {
			if !b.each(&r, yield) {
				return
			}
		}
	}
}

// Batches walks the batches. Those of different partitions may be read by different goroutines at once.
func (f *Fetch) Batches() iter.Seq[*Batch] {
	return func(yield func(*Batch) bool) {
		for _, b := range f.parts {
			if !b.skip && !yield(b) {
				return
			}
		}
	}
}

// Batch is records of one partition that were appended together, or a part of them.
type Batch struct {
	c    *Consumer
	p    *partition
	void *atomic.Bool // set when the partition was moved or given away
	chunk
	taken   atomic.Int64 // up to where a loop took it
	settled int64        // up to where the position knows of it
}

// chunk is a batch, or a part of one, that follows another without a gap.
type chunk struct {
	batch      record.Batch
	epoch      int32
	from, to   int64 // offsets; to is that after the batch also where its last records are gone
	skip       bool  // no records for the program: control, or aborted
	generation uint64
	version    uint64
}

// count is a bound of the records in the chunk.
func (ch *chunk) count() int {
	if ch.skip {
		return 0
	}
	return int(min(int64(ch.batch.Count()), ch.to-max(ch.from, ch.batch.BaseOffset())))
}

// split takes as many offsets from the front as hold at most n records.
func (ch *chunk) split(n int) (front, rest chunk) {
	front, rest = *ch, *ch
	at := max(ch.from, ch.batch.BaseOffset()) + int64(n)
	front.to, rest.from = at, at
	return front, rest
}

// TopicPartition is where the records are.
func (b *Batch) TopicPartition() TopicPartition { return b.p.tp }

// LeaderEpoch is that of the leader that appended them.
func (b *Batch) LeaderEpoch() Epoch { return fromWire(b.epoch) }

// Next is the position after the batch.
func (b *Batch) Next() Position { return Position{b.to, fromWire(b.epoch)} }

// Records walks the records. Each is valid until the next.
func (b *Batch) Records() iter.Seq[*Record] {
	return func(yield func(*Record) bool) {
		var r Record
		b.each(&r, yield)
	}
}

// each hands out what no loop has taken yet, in r, until yield says stop.
func (b *Batch) each(r *Record, yield func(*Record) bool) bool {
	if b.skip || b.void.Load() {
		return true
	}
	from := b.taken.Load()
	if from >= b.to {
		return true
	}
	r.Topic, r.Partition, r.LeaderEpoch = b.p.tp.Topic, b.p.tp.Partition, fromWire(b.epoch)
	r.AppendTime = b.batch.TimestampType() == record.LogAppendTime
	it := record.NewRecordIterator(b.batch, record.Limits{})
	defer it.Close()
	for it.Next() {
		raw := it.Record()
		offset := b.batch.OffsetOf(raw)
		if offset < from {
			continue
		}
		if offset >= b.to {
			break
		}
		if b.void.Load() {
			return true
		}
		r.Offset, r.Key, r.Value = offset, raw.Key, raw.Value
		if ms := b.batch.TimestampOf(raw); ms >= 0 {
			r.Timestamp = time.UnixMilli(ms)
		} else {
			r.Timestamp = time.Time{}
		}
		r.Headers = r.Headers[:0]
		for _, h := range raw.Headers {
			r.Headers = append(r.Headers, Header(h))
		}
		b.taken.Store(offset + 1)
		if !yield(r) {
			return false
		}
	}
	if err := it.Err(); err != nil {
		b.c.damaged(b, err)
		return true
	}
	if !b.void.Load() {
		b.taken.Store(b.to)
	}
	return true
}

// read cuts the bytes of a fetch into chunks that begin at an offset. Damage ends it: what was read before is right, and
// at says where it lies.
func read(records []byte, from int64, aborted []abortedTransaction, committed, checkCRCs bool) (chunks []chunk, next int64, epoch int32, at int64, err error) {
	next, epoch = from, -1
	gone := map[int64]bool{}
	for b, err := range record.Batches(records) {
		if err == nil && checkCRCs {
			err = b.VerifyCRC()
		}
		if err != nil {
			return chunks, next, epoch, next, err
		}
		if b.NextOffset() <= next {
			continue
		}
		for committed && len(aborted) > 0 && aborted[0].first <= b.LastOffset() {
			gone[aborted[0].producer] = true
			aborted = aborted[1:]
		}
		ch := chunk{batch: b, epoch: b.PartitionLeaderEpoch(), from: next, to: b.NextOffset()}
		switch {
		case b.Count() == 0:
			ch.skip = true // emptied by the cleaner
		case b.IsControl():
			ch.skip = true
			if m, ok, err := record.ParseEndTxnMarker(b); err == nil && ok && !m.Commit {
				delete(gone, m.ProducerID)
			}
		case b.IsTransactional():
			ch.skip = gone[b.ProducerID()]
		}
		chunks = append(chunks, ch)
		next, epoch = ch.to, ch.epoch
	}
	return chunks, next, epoch, 0, nil
}

// abortedTransaction is where an aborted transaction of a producer begins.
type abortedTransaction struct{ producer, first int64 }
