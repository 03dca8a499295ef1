package control

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// A loop is virtual time: events in the order of their instants, and of their making within one instant.
type loop struct {
	rng   *rand.Rand
	now   time.Duration // since the beginning
	queue []event       // a heap
	seq   uint64
	hash  uint64 // over all that was marked
	steps []string
	err   error // why the run is over
}

type event struct {
	at  time.Duration
	seq uint64
	run func()
}

func (e event) before(o event) bool { return e.at < o.at || e.at == o.at && e.seq < o.seq }

// epoch is when virtual time begins.
var epoch = time.UnixMilli(1_700_000_000_000)

const stepsKept = 200

func newLoop(seed uint64) *loop {
	return &loop{rng: rand.New(rand.NewPCG(seed, 0x57e1e)), hash: 14695981039346656037}
}

// at runs something at an instant.
func (l *loop) at(when time.Duration, run func()) {
	l.seq++
	l.queue = append(l.queue, event{max(when, l.now), l.seq, run})
	for i := len(l.queue) - 1; i > 0; {
		up := (i - 1) / 2
		if !l.queue[i].before(l.queue[up]) {
			break
		}
		l.queue[i], l.queue[up] = l.queue[up], l.queue[i]
		i = up
	}
}

func (l *loop) after(d time.Duration, run func()) { l.at(l.now+d, run) }

// step runs the next event; there always is one.
func (l *loop) step() {
	q := l.queue
	e, last := q[0], len(q)-1
	q[0], q[last] = q[last], event{}
	q = q[:last]
	for i := 0; ; {
		least := i
		for _, child := range [2]int{2*i + 1, 2*i + 2} {
			if child < last && q[child].before(q[least]) {
				least = child
			}
		}
		if least == i {
			break
		}
		q[i], q[least] = q[least], q[i]
		i = least
	}
	l.queue, l.now = q, e.at
	e.run()
}

func (l *loop) chance(percent float64) bool { return l.rng.Float64()*100 < percent }

// between is a random duration, from low to high.
func (l *loop) between(low, high time.Duration) time.Duration {
	return low + time.Duration(l.rng.Int64N(int64(high-low)+1))
}

func pick[T any](l *loop, from []T) T { return from[l.rng.IntN(len(from))] }

// mark makes something part of the trace.
func (l *loop) mark(kind string, values ...int64) {
	for i := range len(kind) {
		l.hash = (l.hash ^ uint64(kind[i])) * 1099511628211
	}
	l.hash = (l.hash ^ uint64(l.now)) * 1099511628211
	for _, v := range values {
		l.hash = (l.hash ^ uint64(v)) * 1099511628211
	}
}

// note marks something that a report shows.
func (l *loop) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	l.mark(text)
	if len(l.steps) >= stepsKept {
		l.steps = append(l.steps[:0], l.steps[stepsKept/2:]...)
	}
	l.steps = append(l.steps, fmt.Sprintf("%10.3f s  %s", l.now.Seconds(), text))
}

func (l *loop) report() string { return strings.Join(l.steps, "\n") }

// fail ends the run; the first reason stands.
func (l *loop) fail(format string, args ...any) {
	if l.err == nil {
		l.err = fmt.Errorf("at %v: "+format, append([]any{l.now}, args...)...)
	}
}
