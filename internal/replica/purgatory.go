package replica

import (
	"sync"
	"sync/atomic"
	"time"
)

// waiter is somebody who waits for partitions to get somewhere. wake is called without any lock held, on the goroutine
// that made the change, possibly concurrently and more often than needed; it must not block.
type waiter interface{ wake() }

// boundKind names the position of a log that a waiter waits for.
type boundKind int8

const (
	boundEnd           boundKind = iota // log end offset: replicas
	boundHighWatermark                  // consumers, acks=all
	boundLastStable                     // read_committed consumers
	boundAck                            // acks=1 with flush.messages
	boundAny                            // any change at all
)

func (k boundKind) of(pos Positions) int64 {
	switch k {
	case boundEnd:
		return pos.End
	case boundLastStable:
		return pos.LastStable
	case boundAck:
		return pos.AckEnd
	default:
		return pos.HighWatermark
	}
}

// watch is one waiter's interest in one partition: it is woken each time the partition changes while its bound is
// above offset.
type watch struct {
	kind   boundKind
	offset int64
	waiter waiter
	list   *watchList
	at     int // index in the list, -1 when not in it
}

// watchList holds the watches of one partition. The common case, nobody waiting, costs one atomic load.
type watchList struct {
	count   atomic.Int32
	mu      sync.Mutex
	watches []*watch
}

func (l *watchList) add(w *watch) {
	l.mu.Lock()
	w.list, w.at = l, len(l.watches)
	l.watches = append(l.watches, w)
	l.count.Store(int32(len(l.watches)))
	l.mu.Unlock()
}

// remove ends the watch; once more does nothing.
func (w *watch) remove() {
	l := w.list
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.at < 0 {
		return
	}
	last := len(l.watches) - 1
	moved := l.watches[last]
	l.watches[w.at], moved.at = moved, w.at
	l.watches[last] = nil
	l.watches = l.watches[:last]
	w.at = -1
	l.count.Store(int32(last))
}

func (l *watchList) empty() bool { return l.count.Load() == 0 }

// passed wakes those whose bound lies above what they wait for.
func (l *watchList) passed(pos Positions) {
	l.wake(func(w *watch) bool { return w.kind == boundAny || w.kind.of(pos) > w.offset })
}

// all wakes everyone: role, truncation, deletion.
func (l *watchList) all() { l.wake(func(*watch) bool { return true }) }

func (l *watchList) wake(due func(*watch) bool) {
	if l.empty() {
		return
	}
	var few [8]waiter
	woken := few[:0]
	l.mu.Lock()
	for _, w := range l.watches {
		if due(w) {
			woken = append(woken, w.waiter)
		}
	}
	l.mu.Unlock()
	for _, w := range woken {
		w.wake()
	}
}

// purgatory bounds how many requests wait at once in all. A request that finds it full is answered as if its time
// had run out.
type purgatory struct {
	limit   int64
	waiting atomic.Int64
}

func (p *purgatory) enter() bool {
	if p.waiting.Add(1) > p.limit {
		p.waiting.Add(-1)
		return false
	}
	return true
}

func (p *purgatory) leave() { p.waiting.Add(-1) }

// signal is a waiter that a goroutine waits on: wakes that come while it is busy are merged into one.
type signal chan struct{}

func newSignal() signal { return make(signal, 1) }

func (s signal) wake() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// callback is a waiter that calls.
type callback func()

func (c callback) wake() { c() }

// until is how long from now to deadline, never negative.
func until(now, deadline time.Time) time.Duration { return max(0, deadline.Sub(now)) }
