package replica

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/record"
)

// counting is a waiter that counts its wakes.
type counting struct {
	mu sync.Mutex
	n  int
}

func (c *counting) wake() { c.mu.Lock(); c.n++; c.mu.Unlock() }

// TestWatchesWakeWhenTheirBoundHasPassed: each kind of watch looks at its own position, is woken only above its offset, and
// not after its removal.
func TestWatchesWakeWhenTheirBoundHasPassed(t *testing.T) {
	t.Parallel()
	var l watchList
	var end, hw, lso, any counting
	watches := []*watch{{kind: boundEnd, offset: 9, waiter: &end}, {kind: boundHighWatermark, offset: 9, waiter: &hw},
		{kind: boundLastStable, offset: 9, waiter: &lso}, {kind: boundAny, waiter: &any}}
	for _, w := range watches {
		l.add(w)
	}
	check := func(what string, wantEnd, wantHW, wantLSO, wantAny int) {
		t.Helper()
		if end.n != wantEnd || hw.n != wantHW || lso.n != wantLSO || any.n != wantAny {
			t.Errorf("%s: woken %d %d %d %d, want %d %d %d %d", what, end.n, hw.n, lso.n, any.n, wantEnd, wantHW, wantLSO, wantAny)
		}
	}
	l.passed(Positions{End: 9, HighWatermark: 9, LastStable: 9})
	check("at", 0, 0, 0, 1)
	l.passed(Positions{End: 10, HighWatermark: 9, LastStable: 9})
	check("end", 1, 0, 0, 2)
	l.passed(Positions{End: 10, HighWatermark: 10, LastStable: 9})
	check("high watermark", 2, 1, 0, 3)
	l.passed(Positions{End: 10, HighWatermark: 10, LastStable: 10})
	check("last stable", 3, 2, 1, 4)
	l.all()
	check("all", 4, 3, 2, 5)
	watches[0].remove()
	watches[0].remove()
	watches[3].remove()
	l.all()
	check("removed", 4, 4, 3, 5)
	watches[1].remove()
	watches[2].remove()
	if !l.empty() {
		t.Error("not empty")
	}
}

// TestB044_a_parked_fetch_learns_of_a_new_epoch: a fetch that named the epoch in force when it was parked is fenced the moment
// a higher one begins, also when the leader stays the same; one that named none goes on waiting.
func TestB044_a_parked_fetch_learns_of_a_new_epoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.create("t", 1)
		named, unnamed := consume(0, -1, 0), consume(0, -1, -1)
		named.MaxWait, unnamed.MaxWait = time.Hour, time.Minute
		got := make(chan string, 2)
		began := time.Now()
		go func() { got <- "named " + n.fetch(named) }()
		go func() { got <- "unnamed " + n.fetch(unnamed) }()
		synctest.Wait()
		n.elect("t", 1)
		if s := <-got; s != "named 74" || time.Since(began) != 0 {
			t.Errorf("%s after %v", s, time.Since(began))
		}
		if s := <-got; s != "unnamed empty" || time.Since(began) != time.Minute {
			t.Errorf("%s after %v", s, time.Since(began))
		}
	})
}

// TestAcknowledgementOfAnEarlierReign: a batch appended before this broker followed another for a while is never
// acknowledged by a later reign, for it may have been cut: 6.
func TestAcknowledgementOfAnEarlierReign(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.create("t", 1, 1, 2)
	n.setISR("t", 1)
	n.mustProduce("t", 1)
	p := n.partition("t")
	n.elect("t", 1)
	if done, err := p.acked(1, 0); !done || err != nil {
		t.Errorf("the same reign: %v %v", done, err)
	}
	n.elect("t", 2)
	n.elect("t", 1)
	if done, err := p.acked(1, 0); !done || kind(err) != "6" {
		t.Errorf("an earlier reign: %v %v", done, err)
	}
}

// TestProgressOfAnEarlierEpochDoesNotCount: a follower's fetch that was read under an epoch that has ended meanwhile is
// refused.
func TestProgressOfAnEarlierEpochDoesNotCount(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.register(2)
	n.create("t", 1, 1, 2)
	p := n.partition("t")
	role := p.Role()
	n.elect("t", 1)
	f := FollowerFetch{ReplicaID: 2, BrokerEpoch: 20, FetchOffset: 0, LeaderEnd: 0, At: time.Now()}
	if err := p.followerFetched(f, role); kind(err) != "6" {
		t.Errorf("%v", err)
	}
	if err := p.followerFetched(f, p.Role()); err != nil {
		t.Error(err)
	}
}

// TestAnAcknowledgementBeforeParkingIsNotMissed: the high watermark passes a batch after it was looked at and before its
// watch is registered: Done is closed all the same.
func TestAnAcknowledgementBeforeParkingIsNotMissed(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.create("t", 1)
	n.mustProduce("t", 1)
	d := &DelayedProduce{m: n.m, results: make([]ProduceResult, 1)}
	d.pending = []*pendingAck{{d: d, p: n.partition("t"), result: &d.results[0], required: 1}}
	d.park(time.Hour)
	select {
	case <-d.Done(): // not a moment later: something else might wake it in time
	default:
		t.Fatal("parked, though acknowledged")
	}
	if err := d.Results()[0].Err; err != nil {
		t.Error(err)
	}
}

// TestDeletionBelowAParkedFetch: read_committed is parked at an open transaction when its records are deleted: the fetch
// learns at once that its offset is out of range.
func TestDeletionBelowAParkedFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.create("t", 1)
		b := record.NewBuilder(record.BuilderOptions{Producer: &record.Producer{ID: 7}, Transactional: true})
		if err := b.Append(1, nil, []byte("v"), nil); err != nil {
			t.Fatal(err)
		}
		d := n.m.Produce(ProduceRequest{Acks: 1, TxnVerified: true, Partitions: []ProducePartition{{Topic: "t", Records: b.Bytes()}}})
		if err := d.Results()[0].Err; err != nil {
			t.Fatal(err)
		}
		req := consume(0, -1, -1)
		req.Isolation, req.MaxWait = ReadCommitted, time.Hour
		got := make(chan string)
		began := time.Now()
		go func() { got <- n.fetch(req) }()
		synctest.Wait()
		if r := n.deleteTo(-1); r.Err != nil {
			t.Fatal(r.Err)
		}
		if s := <-got; s != "1" || time.Since(began) != 0 {
			t.Errorf("%s after %v", s, time.Since(began))
		}
	})
}

// TestEverythingAtOnce: topics are made and deleted, leadership comes and goes, while producers, parked consumers, lookups
// and deletions run: nothing hangs, every error is one of the protocol's, nothing stays parked (run with -race).
func TestEverythingAtOnce(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.create("t", 1)
	stop := make(chan struct{})
	var all sync.WaitGroup
	until := func(f func()) {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					f()
				}
			}
		})
	}
	fine := map[string]bool{"0": true, "1": true, "3": true, "6": true, "7": true, "74": true, "75": true, "100": true}
	check := func(what string, err error) {
		if !fine[kind(err)] {
			t.Errorf("%s: %v", what, err)
		}
	}
	for range 2 {
		until(func() { check("produce", n.produce("t", stamped(1, 0)).Err) })
		until(func() {
			req := consume(0, -1, -1)
			if p, err := n.m.Partition("t", 0); err == nil {
				req.Partitions[0].FetchOffset = p.Positions().End
			}
			req.MaxWait = 20 * time.Millisecond
			res := n.m.Fetch(t.Context(), req)
			f := &res.Partitions[0]
			if _, err := f.Records.ReadAll(nil); err != nil {
				t.Errorf("read: %v", err)
			}
			check("fetch", f.Err)
			res.Release()
		})
	}
	until(func() {
		check("list", n.m.ListOffsets(ListOffsetsRequest{ReplicaID: ConsumerID, Version: 7,
			Partitions: []ListOffsetsPartition{{Topic: "t", CurrentLeaderEpoch: -1, Timestamp: 1}}})[0].Err)
		check("delete", n.deleteTo(-1).Err)
	})
	for round := range byte(10) {
		id := n.partition("t").TopicID()
		for _, leader := range []int32{-1, 1, 1} {
			c := metadata.NewPartitionChange(id, 0)
			c.Leader = leader
			n.replay(c)
		}
		n.replay(&metadata.RemoveTopicRecord{TopicID: id})
		n.createWithID("t", metadata.UUID{0, 0, 0, round + 1}, 1)
		check("produce", n.produce("t", stamped(1, 0)).Err)
	}
	close(stop)
	all.Wait()
	if n.m.purgatory.waiting.Load() != 0 || !n.partition("t").wait.empty() {
		t.Error("something is still parked")
	}
}
