package sim

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// A loop is virtual time: events in the order of their instants, and of their making within one instant.
type loop struct {
	rng   *rand.Rand
	start time.Time
	now   time.Time
	queue eventQueue
	seq   uint64
	trace []string // the last steps, for a report
}

type event struct {
	at  time.Time
	seq uint64
	run func()
}

const traceLength = 60

func newLoop(seed uint64) *loop {
	start := time.UnixMilli(1700000000000)
	return &loop{rng: rand.New(rand.NewPCG(seed, seed)), start: start, now: start}
}

func (l *loop) after(d time.Duration, run func()) {
	l.seq++
	heap.Push(&l.queue, event{l.now.Add(d), l.seq, run})
}

// next is the instant of the next event.
func (l *loop) next() (time.Time, bool) {
	if len(l.queue) == 0 {
		return time.Time{}, false
	}
	return l.queue[0].at, true
}

// step runs the next event.
func (l *loop) step() {
	e := heap.Pop(&l.queue).(event)
	l.now = e.at
	e.run()
}

func (l *loop) chance(percent float64) bool { return l.rng.Float64()*100 < percent }

// between is a random duration, from low to high.
func (l *loop) between(low, high time.Duration) time.Duration {
	return low + time.Duration(l.rng.Int64N(int64(high-low)+1))
}

func (l *loop) note(format string, args ...any) {
	if len(l.trace) >= traceLength {
		l.trace = append(l.trace[:0], l.trace[traceLength/2:]...)
	}
	l.trace = append(l.trace, fmt.Sprintf("%8d ms  ", l.now.Sub(l.start).Milliseconds())+fmt.Sprintf(format, args...))
}

func (l *loop) report() string { return strings.Join(l.trace, "\n") }

type eventQueue []event

func (q eventQueue) Len() int { return len(q) }
func (q eventQueue) Less(i, j int) bool {
	if !q[i].at.Equal(q[j].at) {
		return q[i].at.Before(q[j].at)
	}
	return q[i].seq < q[j].seq
}
func (q eventQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *eventQueue) Push(x any)   { *q = append(*q, x.(event)) }
func (q *eventQueue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	*q = (*q)[:last]
	return e
}
