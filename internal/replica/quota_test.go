package replica

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
)

// throttledPair is a leader and a follower of t with these rates, of which the replicas are throttled or not.
func throttledPair(t *testing.T, rates Rates, leader, follower bool) *pair {
	p := newPair(t)
	for _, n := range []*node{p.l, p.f} {
		n.configs["t"] = TopicConfig{MinISR: 1, LeaderThrottled: Throttled{All: leader}, FollowerThrottled: Throttled{All: follower}}
		n.m.setRates(rates)
	}
	return p
}

// A follower out of sync is given what the leader's rate allows, and one in sync everything at once; a follower that is
// behind takes what its own rate allows. Replicas that are not throttled are not held back by any rate.
func TestReplicationQuotas(t *testing.T) {
	const bytes = 200_000
	for name, c := range map[string]struct {
		rates            Rates
		leader, follower bool
		inSync           bool
		slow             bool
	}{
		"leader":                {Rates{Leader: 10_000, Follower: math.MaxInt64, Moves: math.MaxInt64}, true, false, false, true},
		"leader, in sync":       {Rates{Leader: 10_000, Follower: math.MaxInt64, Moves: math.MaxInt64}, true, false, true, false},
		"leader, not listed":    {Rates{Leader: 10_000, Follower: math.MaxInt64, Moves: math.MaxInt64}, false, true, false, false},
		"follower":              {Rates{Leader: math.MaxInt64, Follower: 10_000, Moves: math.MaxInt64}, false, true, false, true},
		"follower, not listed":  {Rates{Leader: math.MaxInt64, Follower: 10_000, Moves: math.MaxInt64}, true, false, false, false},
		"neither rate is bound": {NoRates, true, true, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := throttledPair(t, c.rates, c.leader, c.follower)
				p.line.setDown(errors.New("not yet"))
				p.l.create("t", 1, 1, 2)
				p.f.create("t", 1, 1, 2)
				if !c.inSync {
					p.l.setISR("t", 1)
					settle(40 * time.Second) // until the high watermark does not wait for it any more
				}
				for size := 0; size < bytes; {
					big := sizedBatch(5000)
					size += len(big)
					if p.l.produceAcks("t", 1, big).Err != nil {
						t.Fatal("not taken")
					}
				}
				p.line.mu.Lock()
				p.line.most = 8000
				p.line.down = nil
				p.line.mu.Unlock()
				settle(8 * time.Second)
				got, all := p.f.partition("t").log().Size(), p.l.partition("t").log().Size()
				if slow := got < all; slow != c.slow || c.slow && (got < 40_000 || got > 120_000) {
					t.Errorf("%d of %d bytes after eight seconds", got, all)
				}
				if c.slow {
					p.l.m.setRates(NoRates)
					p.f.m.setRates(NoRates)
					settle(5 * time.Second)
					p.same(t)
				}
			})
		})
	}
}

// sizedBatch is a batch of one record with a value of that many bytes.
func sizedBatch(size int) []byte {
	b := record.NewBuilder(record.BuilderOptions{})
	if err := b.Append(1000, nil, []byte(strings.Repeat("x", size)), nil); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// With flush.messages=1 the partitions of one answer are flushed side by side, and none is acknowledged before its own flush.
func TestFollowerFlushesSideBySide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		fault := vfs.NewFault(p.f.fs)
		p.f.files = fault
		if err := p.f.m.Close(t.Context(), -1); err != nil {
			t.Fatal(err)
		}
		p.f.start(func(o *Options) {
			o.BrokerID = 2
			o.Leader = func(int32) Leader { return p.line }
		})
		var at, most atomic.Int64
		fault.Add(vfs.Rule{Kind: vfs.OpSync, Name: "00000000000000000000.log", Count: -1, Before: func() {
			for now := at.Add(1); ; {
				if old := most.Load(); now <= old || most.CompareAndSwap(old, now) {
					break
				}
			}
			<-time.After(100 * time.Millisecond)
			at.Add(-1)
		}})
		for _, n := range []*node{p.l, p.f} {
			n.register(1, 2)
			for i := range 8 {
				topic := fmt.Sprint("t", i)
				c := TopicConfig{MinISR: 2}
				if n == p.f {
					c.Log.FlushMessages = 1
				}
				n.configs[topic] = c
				n.create(topic, 1, 1, 2)
			}
		}
		settle(time.Second)
		p.line.setDown(errors.New("not yet"))
		var waiting []*DelayedProduce
		for i := range 8 {
			waiting = append(waiting, p.l.m.Produce(ProduceRequest{Acks: -1, Timeout: time.Minute,
				Partitions: []ProducePartition{{Topic: fmt.Sprint("t", i), Records: stamped(3, 1000)}}}))
		}
		settle(time.Second)
		began := time.Now()
		p.line.setDown(nil)
		for i, d := range waiting {
			<-d.Done()
			if err := d.Results()[0].Err; err != nil {
				t.Fatal(err)
			}
			q, err := p.f.m.Partition(fmt.Sprint("t", i), 0)
			if err != nil {
				t.Fatal(err)
			}
			if pos := q.Positions(); pos.AckEnd != 3 {
				t.Errorf("t%d was acknowledged before it was flushed: %+v", i, pos)
			}
		}
		if took := time.Since(began); most.Load() < 4 || took > 1500*time.Millisecond {
			t.Errorf("%d flushes at once at most, all took %s", most.Load(), took)
		}
	})
}
