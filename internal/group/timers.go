package group

import (
	"container/heap"
	"time"
)

// A timer is one clock of the soft state. It is a field of what it belongs to, set again by timers.set and
// stopped by timers.stop; fire names the step that follows when it runs out.
type timer struct {
	at    time.Time
	fire  func(s *Shard, now time.Time, fx *Effects)
	seq   uint64 // order among timers of one instant: first set, first fired
	index int    // position in the heap plus one; 0: not running
}

func (t *timer) running() bool { return t.index > 0 }

// timers are the running clocks of a shard, soonest first.
type timers struct {
	heap []*timer
	seq  uint64
}

// set starts t, or starts it anew.
func (ts *timers) set(t *timer, at time.Time) {
	ts.seq++
	t.at, t.seq = at, ts.seq
	if t.running() {
		heap.Fix(ts, t.index-1)
		return
	}
	heap.Push(ts, t)
}

func (ts *timers) stop(t *timer) {
	if t.running() {
		heap.Remove(ts, t.index-1)
	}
}

func (ts *timers) next() (time.Time, bool) {
	if len(ts.heap) == 0 {
		return time.Time{}, false
	}
	return ts.heap[0].at, true
}

// popDue stops and returns the first timer that has run out at now, or nil.
func (ts *timers) popDue(now time.Time) *timer {
	if len(ts.heap) == 0 || ts.heap[0].at.After(now) {
		return nil
	}
	return heap.Pop(ts).(*timer)
}

func (ts *timers) Len() int { return len(ts.heap) }

func (ts *timers) Less(i, j int) bool {
	a, b := ts.heap[i], ts.heap[j]
	if !a.at.Equal(b.at) {
		return a.at.Before(b.at)
	}
	return a.seq < b.seq
}

func (ts *timers) Swap(i, j int) {
	ts.heap[i], ts.heap[j] = ts.heap[j], ts.heap[i]
	ts.heap[i].index, ts.heap[j].index = i+1, j+1
}

func (ts *timers) Push(x any) {
	t := x.(*timer)
	ts.heap = append(ts.heap, t)
	t.index = len(ts.heap)
}

func (ts *timers) Pop() any {
	last := len(ts.heap) - 1
	t := ts.heap[last]
	ts.heap[last] = nil
	ts.heap = ts.heap[:last]
	t.index = 0
	return t
}
