package node

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// wantAppend produces a batch that must get this error and base offset.
func (c *client) wantAppend(tp topic, b []byte, code int16, base int64) {
	c.t.Helper()
	if p := c.produce(9, tp, 0, bytes.Clone(b)); p.ErrorCode != code || p.BaseOffset != base {
		c.t.Errorf("produce: error %d, base offset %d; want %d, %d", p.ErrorCode, p.BaseOffset, code, base)
	}
}

// end is where partition 0 ends.
func (c *client) end(tp topic) int64 {
	c.t.Helper()
	return c.offset(4, tp, 0, -1, -1).Offset
}

// TestB003_resent_batches: each of the last five batches sent again succeeds with its first offset and
// appends nothing; an older one is never appended again.
func TestB003_resent_batches(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1)
	id := c.producerID()
	for sequence := range int32(5) {
		c.wantAppend(tp, idempotent(id, 0, sequence, 1), 0, int64(sequence))
	}
	for _, sequence := range []int32{4, 0, 2} {
		c.wantAppend(tp, idempotent(id, 0, sequence, 1), 0, int64(sequence))
	}
	if got := c.end(tp); got != 5 {
		t.Errorf("the log ends at %d, want 5", got)
	}
	other := c.producerID()
	if other == id {
		t.Fatal("two producers have one id")
	}
	for sequence := range int32(6) {
		c.wantAppend(tp, idempotent(other, 0, sequence, 1), 0, 5+int64(sequence))
	}
	c.wantAppend(tp, idempotent(other, 0, 0, 1), 45, -1)
	c.wantAppend(tp, idempotent(other, 0, 1, 1), 0, 6)
	if got := c.end(tp); got != 11 {
		t.Errorf("the log ends at %d, want 11", got)
	}
}

// TestS033_sequences: the vectors of one producer: in order, repeated, with a gap, an overlap that is not
// exact, an older epoch, a newer one not from 0, a newer one from 0, and the old one again.
func TestS033_sequences(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1)
	c.mustProduce(tp, 0, plain(100, stamp))
	for _, step := range []struct {
		epoch    int16
		sequence int32
		n        int
		code     int16
		base     int64
	}{
		{5, 0, 10, 0, 100}, {5, 0, 10, 0, 100}, {5, 10, 10, 0, 110}, {5, 25, 5, 45, -1}, {5, 10, 5, 45, -1},
		{4, 20, 1, 47, -1}, {6, 3, 1, 45, -1}, {6, 0, 1, 0, 120}, {5, 20, 1, 47, -1},
	} {
		c.wantAppend(tp, idempotent(4000, step.epoch, step.sequence, step.n), step.code, step.base)
	}
}

// TestB062_refused_batch_leaves_no_trace: a first batch that was refused, for its CRC, by acks or as sent to a
// wrong partition, does not move the producer's sequence: 0 and then 1 succeed.
func TestB062_refused_batch_leaves_no_trace(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1)
	id := c.producerID()
	first := idempotent(id, 0, 0, 1)
	broken := bytes.Clone(first)
	broken[len(broken)-2] ^= 1
	c.wantAppend(tp, broken, 2, -1)
	if p := do[*kmsg.ProduceResponse](c, 9, produceRequest(9, 7, tp, 0, bytes.Clone(first))).Topics[0].Partitions[0]; p.ErrorCode != 21 {
		t.Errorf("acks=7: error %d", p.ErrorCode)
	}
	if p := c.produce(9, tp, 4, bytes.Clone(first)); p.ErrorCode != 3 {
		t.Errorf("partition 4: error %d", p.ErrorCode)
	}
	c.wantAppend(tp, first, 0, 0)
	c.wantAppend(tp, idempotent(id, 0, 1, 1), 0, 1)
}

// TestB064_state_expires_alone: removing a producer's records leaves its state; once it was idle for
// producer.id.expiration.ms any sequence is taken.
func TestB064_state_expires_alone(t *testing.T) {
	t.Parallel()
	n := start(t, "producer.id.expiration.ms=1500", "producer.id.expiration.check.interval.ms=100")
	c := n.dial(t)
	tp := c.topic(1)
	id := c.producerID()
	// Stamped now: state expires by the age of records.
	at := func(sequence int32, n int) []byte {
		b := idempotent(id, 0, sequence, n)
		now := time.Now().UnixMilli()
		return resealed(put64(put64(b, 27, now), atMaxStamp, now+int64(n)-1))
	}
	c.wantAppend(tp, at(0, 5), 0, 0)
	c.mustDeleteRecords(tp, 5)
	c.wantAppend(tp, at(7, 1), 45, -1)
	c.wantAppend(tp, at(5, 1), 0, 5)
	for deadline := time.Now().Add(patience); ; {
		p := c.produce(9, tp, 0, at(100, 1))
		if p.ErrorCode == 0 {
			break
		}
		if p.ErrorCode != 45 || time.Now().After(deadline) {
			t.Fatalf("after the expiry: error %d", p.ErrorCode)
		}
	}
}

// TestB066_duplicates_after_kill: after a kill -9 right behind an acknowledgement, a batch sent again is
// recognised, the next goes on, and no record is there twice.
func TestB066_duplicates_after_kill(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.dial(t)
	tp := c.topic(1)
	id := c.producerID()
	next := int32(0)
	for round := range 3 {
		for range 4 + round {
			c.wantAppend(tp, idempotent(id, 0, next, 1), 0, int64(next))
			next++
		}
		if round == 1 {
			c.send(9, produceRequest(9, -1, tp, 0, idempotent(id, 0, next, 1))) // killed before the answer is read
		}
		n.kill()
		n.run(t)
		c = n.dial(t)
		c.led(tp, 1)
		c.wantAppend(tp, idempotent(id, 0, next-1, 1), 0, int64(next-1))
		c.wantAppend(tp, idempotent(id, 0, next-3, 1), 0, int64(next-3))
		c.wantAppend(tp, idempotent(id, 0, next, 1), 0, int64(next))
		next++
	}
	var got []string
	for _, r := range recordsOf(t, c.stored(tp, 0)) {
		got = append(got, r.value)
	}
	for i := range next {
		if int(i) >= len(got) || got[i] != fmt.Sprintf("s%d", i) {
			t.Fatalf("records %v, want s0 to s%d once each", got, next-1)
		}
	}
	if len(got) != int(next) {
		t.Errorf("%d records, want %d", len(got), next)
	}
}

// TestInitProducerId: ids differ, a producer id without an epoch is invalid, and versions without these
// fields answer too.
func TestInitProducerId(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	seen := map[int64]bool{}
	for version := int16(0); version <= 5; version++ {
		req := kmsg.NewPtrInitProducerIDRequest()
		got := do[*kmsg.InitProducerIDResponse](c, version, req)
		if got.ErrorCode != 0 || got.ProducerID < 0 || got.ProducerEpoch != 0 || seen[got.ProducerID] {
			t.Errorf("v%d: %+v", version, got)
		}
		seen[got.ProducerID] = true
	}
	req := kmsg.NewPtrInitProducerIDRequest()
	req.ProducerID = 7
	if got := do[*kmsg.InitProducerIDResponse](c, 3, req); got.ErrorCode != 42 || got.ProducerID != -1 || got.ProducerEpoch != -1 {
		t.Errorf("id without epoch: %+v", got)
	}
	empty := ""
	req = kmsg.NewPtrInitProducerIDRequest()
	req.TransactionalID = &empty
	if got := do[*kmsg.InitProducerIDResponse](c, 3, req); got.ErrorCode != 42 || got.ProducerID != -1 {
		t.Errorf("empty transactional id: %+v", got)
	}
}
