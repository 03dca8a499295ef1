package replica

import (
	"errors"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/vfs"
)

// newFlushingNode is a node on a disk that may fail, with a topic of two partitions and flush.messages=1.
func newFlushingNode(t *testing.T, replicas ...int32) (*node, *vfs.Fault) {
	t.Helper()
	mem := vfs.NewMem()
	f := vfs.NewFault(mem)
	n := newNodeOn(t, mem, f)
	n.configs["t"] = TopicConfig{MinISR: 1, Log: log.Config{FlushMessages: 1}}
	n.register(1, 2)
	n.create("t", 2, replicas...)
	return n, f
}

func (n *node) request(acks int16, timeout time.Duration, partition int32) *DelayedProduce {
	return n.m.Produce(ProduceRequest{Acks: acks, Timeout: timeout, Partitions: []ProducePartition{{Topic: "t", Partition: partition,
		Records: stamped(1, 0)}}})
}

func isDone(d *DelayedProduce) bool {
	select {
	case <-d.Done():
		return true
	default:
		return false
	}
}

// S-040, many at once: with flush.messages=1 nobody waits for another's flush to append; what has come while one is under
// way is acknowledged by the next one, all of it. Until then consumers see nothing, and the other partition is not kept.
func TestS040_one_flush_for_many(t *testing.T) {
	t.Parallel()
	n, f := newFlushingNode(t)
	var syncs atomic.Int32
	began, goOn := make(chan struct{}), make(chan struct{})
	f.Add(vfs.Rule{Kind: vfs.OpSync, Name: "t-0/00000000000000000000.log", Before: func() { close(began); <-goOn }})
	f.Add(vfs.Rule{Kind: vfs.OpSync, Name: "t-0/00000000000000000000.log", Count: -1, Before: func() { syncs.Add(1) }})
	first := n.request(1, time.Minute, 0)
	<-began
	var others []*DelayedProduce
	for i := range 50 {
		others = append(others, n.request([]int16{1, -1}[i%2], time.Minute, 0))
	}
	pos := n.partition("t").Positions()
	if isDone(first) || isDone(others[0]) || pos.HighWatermark != 0 || pos.End != 51 || pos.AckEnd != 0 {
		t.Errorf("before the flush: done %v %v, %+v", isDone(first), isDone(others[0]), pos)
	}
	<-n.request(1, time.Minute, 1).Done()
	close(goOn)
	for _, d := range append(others, first) {
		<-d.Done()
		if r := d.Results()[0]; r.Err != nil {
			t.Fatalf("%+v", r)
		}
	}
	if got := syncs.Load(); got != 1 {
		t.Errorf("%d flushes for fifty appends", got)
	}
	if pos := n.partition("t").Positions(); pos.HighWatermark != 51 || pos.AckEnd != 51 {
		t.Errorf("%+v", pos)
	}
	if n.m.purgatory.waiting.Load() != 0 || !n.partition("t").wait.empty() {
		t.Error("something still waits")
	}
}

// A flush that fails acknowledges nothing, and is not tried again: the directory is offline, and all who wait are told.
func TestFailedFlushAcknowledgesNothing(t *testing.T) {
	t.Parallel()
	n, f := newFlushingNode(t)
	began, goOn := make(chan struct{}), make(chan struct{})
	f.Add(vfs.Rule{Kind: vfs.OpSync, Name: "t-0/00000000000000000000.log", Before: func() { close(began); <-goOn }})
	first := n.request(1, time.Minute, 0)
	<-began
	f.Add(vfs.Rule{Kind: vfs.OpSync, Name: "t-0/00000000000000000000.log", Err: syscall.EIO})
	second, third := n.request(1, time.Minute, 0), n.request(-1, time.Minute, 0)
	close(goOn)
	<-first.Done()
	if r := first.Results()[0]; r.Err != nil && kind(r.Err) != "56" {
		t.Errorf("the first: %+v", r)
	}
	for _, d := range []*DelayedProduce{second, third} {
		<-d.Done()
		if r := d.Results()[0]; r.Err == nil {
			t.Errorf("acknowledged by a flush that failed: %+v", r)
		}
	}
	again := n.request(1, time.Minute, 0)
	<-again.Done()
	if r := again.Results()[0]; r.Err == nil {
		t.Errorf("written to a failed directory: %+v", r)
	}
}

// A follower that is faster than the leader's own flush does not have a record acknowledged, nor shown, that the leader
// has not flushed. Time that has run out counts from the flush on.
func TestLeaderFlushCountsForTheHighWatermark(t *testing.T) {
	t.Parallel()
	n, f := newFlushingNode(t, 1, 2)
	began, goOn := make(chan struct{}), make(chan struct{})
	f.Add(vfs.Rule{Kind: vfs.OpSync, Name: "t-0/00000000000000000000.log", Before: func() { close(began); <-goOn }})
	d := n.request(-1, 0, 0)
	<-began
	n.shadow(1, 0)
	if isDone(d) || n.partition("t").Positions().HighWatermark != 0 {
		t.Errorf("acknowledged before the leader has flushed: %+v", n.partition("t").Positions())
	}
	close(goOn)
	<-d.Done()
	if r := d.Results()[0]; r.Err != nil {
		t.Errorf("it was replicated when the flush was done: %+v", r)
	}
	late := n.request(-1, 0, 0)
	<-late.Done()
	if r := late.Results()[0]; !errors.Is(r.Err, ErrTimedOut) {
		t.Errorf("no follower has it: %+v", r)
	}
}
