package server

import (
	"container/list"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stelelog/stele/internal/wire"
)

// DefaultRequestMemory is the memory, in bytes, that requests in flight may hold on a node when
// queued.max.request.bytes is left at -1.
const DefaultRequestMemory = 64 << 20

const (
	// smallRequest is the cost up to which a request draws on the part of the budget kept for small ones.
	smallRequest = 256 << 10
	// lookEvery is how often one that waits for memory looks at its client.
	lookEvery = 50 * time.Millisecond
)

// Budget is the memory of a node that requests may hold: their bytes and what they decode to. It is
// taken before a body is read. Waiters are served in the order they came, so that a large request is
// not starved by many small ones; small ones have a quarter for themselves, so that large ones never stop
// them. A part of that is for those that are here to their last byte, so that small ones which come slowly, or
// never, do not stop them either. Safe for concurrent use.
//
// A request that may wait for long, for records or for other members of a group, must not keep others out
// meanwhile: it gives its part back and is counted apart, by what it still holds.
type Budget struct {
	mu                  sync.Mutex
	small, whole, large lane

	total  int64
	parked atomic.Int64
}

type lane struct {
	capacity, used int64
	waiting        list.List // of *waiter
}

type waiter struct {
	n     int64
	ready chan struct{}
	lane  *lane // where it stands, or what it was granted from
	place *list.Element
}

// Grant is a part of a budget; it is given back by Release. The zero Grant is empty.
type Grant struct {
	budget *Budget
	lane   *lane
	n      int64
	alone  bool // it may take more than there is for large requests in all
}

// TooCostlyError reports a request that may decode to more memory than the whole budget has.
type TooCostlyError struct {
	Key       int16
	Size      int   // bytes of the request
	Cost, Max int64 // bytes of memory
}

func (e *TooCostlyError) Error() string {
	return fmt.Sprintf("request of API %d with %d bytes may take %d bytes of memory, more than the %d that queued.max.request.bytes leaves for one", e.Key, e.Size, e.Cost, e.Max)
}

// NewBudget returns a budget of total bytes; 0 or less means DefaultRequestMemory.
func NewBudget(total int64) *Budget {
	if total <= 0 {
		total = DefaultRequestMemory
	}
	b := &Budget{total: total}
	b.whole.capacity = max(total/16, smallRequest)
	b.small.capacity = max(total/4-total/16, smallRequest)
	b.large.capacity = max(total-total/4, smallRequest)
	return b
}

// Take waits until n bytes are free and takes them. More than there is in all is granted when nothing
// else is held: the caller has decided that the request is fit to be served alone. While it waits it calls look
// now and then, if there is one: whole says that the request is here to its last byte, and an error ends the
// wait. The error is look's or ctx's.
func (b *Budget) Take(ctx context.Context, n int64, look func() (whole bool, err error)) (Grant, error) {
	l := &b.large
	if n <= smallRequest {
		l = &b.small
	}
	g := Grant{budget: b, lane: l, n: min(n, l.capacity), alone: n > l.capacity}
	b.mu.Lock()
	w := &waiter{n: g.n, lane: l}
	if l.enter(w) {
		b.mu.Unlock()
		return g, nil
	}
	b.mu.Unlock()
	var tick <-chan time.Time
	if look != nil {
		ticker := time.NewTicker(lookEvery)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		if look != nil {
			whole, err := look()
			if err != nil {
				b.leave(w)
				return Grant{}, err
			}
			if whole && l == &b.small {
				b.passSlowOnes(w)
			}
		}
		select {
		case <-w.ready:
			g.lane = w.lane
			return g, nil
		case <-tick:
		case <-ctx.Done():
			b.leave(w)
			return Grant{}, ctx.Err()
		}
	}
}

// enter takes what w wants, or else lets it stand in line; the budget is locked.
func (l *lane) enter(w *waiter) bool {
	w.lane = l
	if l.waiting.Len() == 0 && l.used+w.n <= l.capacity {
		l.used += w.n
		return true
	}
	if w.ready == nil {
		w.ready = make(chan struct{})
	}
	w.place = l.waiting.PushBack(w)
	return false
}

// passSlowOnes moves a small one that waits, and is here to its last byte, to the lane of such.
func (b *Budget) passSlowOnes(w *waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-w.ready:
		return
	default:
	}
	if w.lane == &b.whole {
		return
	}
	w.lane.waiting.Remove(w.place)
	w.lane.serve() // what stood behind us may fit
	if b.whole.enter(w) {
		close(w.ready)
	}
}

// leave ends a wait, or gives back what it has just been granted.
func (b *Budget) leave(w *waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-w.ready:
		w.lane.used -= w.n
	default:
		w.lane.waiting.Remove(w.place)
	}
	w.lane.serve() // what stood behind us may fit
}

// serve grants what fits, in order; the budget is locked.
func (l *lane) serve() {
	for front := l.waiting.Front(); front != nil; front = l.waiting.Front() {
		w := front.Value.(*waiter)
		if l.used+w.n > l.capacity {
			return
		}
		l.used += w.n
		l.waiting.Remove(front)
		close(w.ready)
	}
}

// Release gives the grant back; a second call does nothing.
func (g *Grant) Release() {
	if g.budget == nil {
		return
	}
	g.budget.mu.Lock()
	g.lane.used -= g.n
	g.lane.serve()
	g.budget.mu.Unlock()
	*g = Grant{}
}

// Contended reports whether others wait for what this grant holds.
func (g *Grant) Contended() bool {
	if g.budget == nil {
		return false
	}
	g.budget.mu.Lock()
	defer g.budget.mu.Unlock()
	return g.lane.waiting.Len() > 0
}

// park counts n bytes of a request that begins to wait. It reports false, and counts nothing, when those that
// wait hold as much as the whole budget already.
func (b *Budget) park(n int64) bool {
	if b.parked.Add(n) > b.total {
		b.parked.Add(-n)
		return false
	}
	return true
}

func (b *Budget) unpark(n int64) { b.parked.Add(-n) }

// Used is the memory taken at this moment, in bytes.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.small.used + b.whole.used + b.large.used + b.parked.Load()
}

// Bytes of memory that each byte of a request may decode to. Produce keeps its records in the frame;
// Fetch has a decoder of ours. For what kmsg decodes the worst is a small element with a small unknown
// tagged field, for which it makes a map: hundreds of bytes for five, much the same in every API.
// SyncGroup is large for good reason, and has its tagged fields looked at first.
const (
	fetchAmplification     = 24
	syncGroupAmplification = 18
	kmsgAmplification      = 110
	// emptyProduce is for the partitions without records that a Produce request may name beside its share by
	// size, which is at most its size again.
	emptyProduce = 100 << 10
	// quorumPeerMessages is for the slices of a QuorumPeer request, whose messages stay in the frame.
	quorumPeerMessages = wire.MaxQuorumPeerMessages * 32
)

// cost estimates the memory that a request of size bytes will hold, from its API alone. It returns
// *TooCostlyError for one that could take more than twice the part for large requests; one that could
// take more than the part for large requests is served alone. The estimate is the worst that bytes can do,
// so honest requests of that size take a tenth of it. A Produce request is never refused
// here: socket.request.max.bytes bounds it, and a large one is served when it can be served alone. So is one by which
// controllers replicate the metadata log: refused once, it would be sent again for ever.
func (b *Budget) cost(key int16, size int) (int64, error) {
	held := int64(wire.BufferSize(size))
	switch key {
	case wire.KeyProduce:
		return held + int64(size) + min(int64(size)*24, emptyProduce), nil
	case wire.KeyQuorumPeer:
		return held + int64(size) + quorumPeerMessages, nil // raft's entries are copied out of the frame
	case wire.KeyFetch:
		held += int64(size) * fetchAmplification
	case keySyncGroup:
		held += int64(size) * syncGroupAmplification
	default:
		held += int64(size) * kmsgAmplification
	}
	if most := 2 * b.large.capacity; held > most {
		return 0, &TooCostlyError{Key: key, Size: size, Cost: held, Max: most}
	}
	return held, nil
}
