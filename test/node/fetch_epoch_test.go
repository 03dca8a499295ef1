package node

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestE021_at_and_above_the_end: a fetch at the end is empty after the wait; one above it is out of range, and all offsets are -1.
func TestE021_at_and_above_the_end(t *testing.T) {
	t.Parallel()
	c, made := histories(t)
	h := made["plain"]
	req := fetchRequest(at(h.topic, 20))
	req.MaxWaitMillis = 150
	before := time.Now()
	p := c.only(c.fetchAll(16, req))
	if waited := time.Since(before); waited < 150*time.Millisecond {
		t.Errorf("an empty fetch waited only %v", waited)
	}
	if p.ErrorCode != 0 || len(p.RecordBatches) != 0 || p.HighWatermark != 20 || p.LastStableOffset != 20 || p.LogStartOffset != 0 {
		t.Errorf("at the end: %+v", p)
	}
	req = fetchRequest(at(h.topic, 21))
	req.MaxWaitMillis = 30000
	if p := c.only(c.fetchAll(16, req)); p.ErrorCode != 1 || p.HighWatermark != -1 || p.LastStableOffset != -1 || p.LogStartOffset != -1 {
		t.Errorf("above the end: %+v", p)
	}
}

// TestE022_below_the_log_start: after DeleteRecords(12) offset 11 is out of range and 12 has records.
func TestE022_below_the_log_start(t *testing.T) {
	t.Parallel()
	c, made := histories(t)
	h := made["deleted-22"]
	c.mustDeleteRecords(h.topic, 12)
	if p := c.fetch(12, at(h.topic, 11)); p.ErrorCode != 1 {
		t.Errorf("below the log start: error %d, want 1", p.ErrorCode)
	}
	p := c.fetch(12, at(h.topic, 12))
	if p.ErrorCode != 0 || p.LogStartOffset != 12 || len(batches(t, p.RecordBatches)) != 2 {
		t.Errorf("at the log start: error %d, log start %d, %d bytes", p.ErrorCode, p.LogStartOffset, len(p.RecordBatches))
	}
}

// divergence is what a fetch with a last fetched epoch gets.
type divergence struct {
	code    int16
	epoch   int32
	end     int64
	records bool
}

func (c *client) wantDivergence(h history, offset int64, last int32, want divergence) {
	c.t.Helper()
	for _, version := range []int16{12, 13, 18} {
		where := at(h.topic, offset)
		where.epoch, where.last = h.c, last
		p := c.fetch(version, where)
		got := divergence{p.ErrorCode, p.DivergingEpoch.Epoch, p.DivergingEpoch.EndOffset, len(p.RecordBatches) > 0}
		if got != want {
			c.t.Errorf("v%d, fetch (%d, last epoch %d): %+v, want %+v", version, offset, last, got, want)
		}
	}
}

// TestE023_divergence: a fetcher whose last epoch ended below its offset is told where; one above every epoch is out of
// range; one that agrees gets records.
func TestE023_divergence(t *testing.T) {
	t.Parallel()
	c, made := histories(t)
	h := made["plain"]
	c.wantDivergence(h, 20, h.c, divergence{0, -1, -1, false})
	c.wantDivergence(h, 20, h.b, divergence{0, h.b, 15, false})
	c.wantDivergence(h, 15, h.b, divergence{0, -1, -1, true})
	c.wantDivergence(h, 12, h.a, divergence{0, h.a, 10, false})
	c.wantDivergence(h, 5, h.c+1, divergence{1, -1, -1, false})

	// A divergence is news: it does not wait.
	where := at(h.topic, 20)
	where.last = h.b
	req := fetchRequest(where)
	req.MaxWaitMillis = 30000
	before := time.Now()
	c.fetchAll(12, req)
	if waited := time.Since(before); waited > patience/2 {
		t.Errorf("a divergence waited %v", waited)
	}
}

// TestE024_divergence_below_the_log_start: below the log start a fetch is out of range even where its epoch diverges as well (KAFKA-12996).
func TestE024_divergence_below_the_log_start(t *testing.T) {
	t.Parallel()
	c, made := histories(t)
	h := made["deleted-24"]
	c.mustDeleteRecords(h.topic, 12)
	c.wantDivergence(h, 13, h.c-1, divergence{0, h.b, 15, false})
	c.wantDivergence(h, 11, h.c-1, divergence{1, -1, -1, false})
}

// TestE025_divergence_above_the_end: above the end a fetcher with the current epoch diverges at the end; without an epoch it is out of
// range.
func TestE025_divergence_above_the_end(t *testing.T) {
	t.Parallel()
	c, made := histories(t)
	h := made["plain"]
	c.wantDivergence(h, 25, h.c, divergence{0, h.c, 20, false})
	c.wantDivergence(h, 25, -1, divergence{1, -1, -1, false})
}

// TestE026_divergence_in_a_session: an incremental session reports a divergence in every answer while it lasts, and leaves the
// partition out once the fetcher has corrected itself and nothing changes.
func TestE026_divergence_in_a_session(t *testing.T) {
	t.Parallel()
	c, made := histories(t)
	h := made["session"]
	where := at(h.topic, 20)
	where.last = h.b
	s := c.session(13, where)
	for range 3 {
		if p := c.only(s.next(0)); p.DivergingEpoch.Epoch != h.b || p.DivergingEpoch.EndOffset != 15 {
			t.Fatalf("while it diverges: %+v", p)
		}
	}
	where.last = h.c
	s.next(0, where)
	for range 2 {
		if resp := s.next(0); len(resp.Topics) != 0 {
			t.Errorf("nothing changed, but the answer has %+v", resp.Topics)
		}
	}
}

// TestB044_session_remembers_the_epoch: the leader epoch given when a session began is checked in later fetches that do not repeat it; a
// plain fetch with an older or newer epoch is refused, and -1 skips the check.
func TestB044_session_remembers_the_epoch(t *testing.T) {
	t.Parallel()
	c, made := histories(t)
	h := made["session-epoch"]
	for epoch, want := range map[int32]int16{h.c - 1: 74, h.c + 5: 75, -1: 0, h.c: 0} {
		where := at(h.topic, 0)
		where.epoch = epoch
		s := c.session(9, where)
		if p := c.only(s.first); p.ErrorCode != want {
			t.Errorf("epoch %d: error %d, want %d", epoch, p.ErrorCode, want)
		}
		if p := c.only(s.next(0)); p.ErrorCode != want {
			t.Errorf("epoch %d, next fetch: error %d, want %d", epoch, p.ErrorCode, want)
		}
	}
}

// TestE029_recreated_topic: once a topic was deleted and made again, its old id is unknown and the new one
// begins in epoch 0.
func TestE029_recreated_topic(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	old := c.topic(1)
	c.mustProduce(old, 0, exampleA())
	c.deleteTopic(old)
	again := c.createTopic(old.name, 1)
	if again.id == old.id {
		t.Fatal("the new topic has the old id")
	}
	if p := c.fetch(13, at(old, 0)); p.ErrorCode != 100 {
		t.Errorf("fetch by the old id: error %d, want 100", p.ErrorCode)
	}
	if p := c.produce(13, old, 0, exampleA()); p.ErrorCode != 100 {
		t.Errorf("produce by the old id: error %d, want 100", p.ErrorCode)
	}
	if p := c.fetch(13, at(again, 0)); p.ErrorCode != 0 || p.HighWatermark != 0 {
		t.Errorf("fetch by the new id: error %d, high watermark %d", p.ErrorCode, p.HighWatermark)
	}
	if epoch := c.leaderEpoch(again); epoch != 0 {
		t.Errorf("leader epoch %d, want 0", epoch)
	}
}

func (c *client) deleteTopic(tp topic) {
	c.t.Helper()
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TopicNames, req.TimeoutMillis = []string{tp.name}, 10000
	if got := do[*kmsg.DeleteTopicsResponse](c, 4, req).Topics[0]; got.ErrorCode != 0 {
		c.t.Fatalf("delete %s: error %d", tp.name, got.ErrorCode)
	}
	for deadline := time.Now().Add(patience); c.offset(4, tp, 0, -1, -1).ErrorCode != 3; {
		if time.Now().After(deadline) {
			c.t.Fatalf("%s is still there", tp.name)
		}
	}
}

// TestE030_leader_leaves_a_long_poll: a fetch that waits at the end is answered, or cut off, as soon as
// leadership leaves by a controlled shutdown.
func TestE030_leader_leaves_a_long_poll(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.dial(t)
	tp := c.topic(1)
	c.mustProduce(tp, 0, exampleA())
	req := fetchRequest(at(tp, 2))
	req.MaxWaitMillis = 30000
	correlation := c.send(12, req)
	before := time.Now()
	n.stop(t)
	if frame, err := c.frame(); err == nil {
		p := c.only(c.decode(12, req, correlation, frame).(*kmsg.FetchResponse))
		if p.ErrorCode != 6 && p.ErrorCode != 74 {
			t.Errorf("error %d, want 6 or 74", p.ErrorCode)
		}
	}
	if waited := time.Since(before); waited > patience/2 {
		t.Errorf("the long poll ended only after %v", waited)
	}
}
