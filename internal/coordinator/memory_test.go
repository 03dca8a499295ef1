package coordinator

import (
	"errors"
	"slices"
	"sync"

	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/replica"
)

// memoryPartition is a partition of an internal topic in memory, whose high
// watermark and failures a test controls.
type memoryPartition struct {
	mu       sync.Mutex
	batches  []record.Batch
	end, hw  int64
	held     bool  // the high watermark stays where it is until release
	refuse   error // what the next appends answer
	watchers map[int]func()
	next     int
	limit    int
	slow     chan struct{} // unless nil, a scan waits for it
	looks    int           // at the high watermark, since the last hold
	guarded  bool          // transactions are to be verified
	guards   int           // appends that came with a guard
}

func newMemoryPartition() *memoryPartition {
	return &memoryPartition{watchers: map[int]func(){}, limit: 1 << 20}
}

func (p *memoryPartition) Append(batch record.Batch, leaderEpoch int32, expectedEnd int64, opts AppendOptions) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if opts.Guard != nil {
		p.guards++
	}
	if p.refuse != nil {
		return p.refuse
	}
	if expectedEnd != p.end {
		return errEndMoved
	}
	p.appendLocked(batch, leaderEpoch)
	return nil
}

func (p *memoryPartition) Guard(int64, int16, bool) (TxnGuard, error) {
	if p.guarded {
		return "guard", nil
	}
	return nil, nil
}

func (p *memoryPartition) appendLocked(batch record.Batch, leaderEpoch int32) {
	batch = slices.Clone(batch)
	batch.SetBaseOffset(p.end)
	batch.SetPartitionLeaderEpoch(leaderEpoch)
	p.batches = append(p.batches, batch)
	p.end = batch.NextOffset()
	if !p.held {
		p.hw = p.end
		p.wakeLocked()
	}
}

func (p *memoryPartition) wakeLocked() {
	for _, wake := range p.watchers {
		wake()
	}
}

func (p *memoryPartition) hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held, p.looks = true, 0
}

func (p *memoryPartition) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held, p.hw = false, p.end
	p.wakeLocked()
}

func (p *memoryPartition) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = err
}

func (p *memoryPartition) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.batches)
}

func (p *memoryPartition) Scan(fn func(record.Batch) error) (int64, error) {
	if p.slow != nil {
		<-p.slow
	}
	p.mu.Lock()
	batches, end := slices.Clone(p.batches), p.end
	p.mu.Unlock()
	for _, b := range batches {
		if err := fn(b); err != nil {
			return 0, err
		}
	}
	return end, nil
}

func (p *memoryPartition) HighWatermark() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.looks++; p.held && p.looks > 10000 {
		panic("the shard looks at a high watermark that does not move, over and over")
	}
	return p.hw
}

func (p *memoryPartition) Watch(wake func()) func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next++
	id := p.next
	p.watchers[id] = wake
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.watchers, id)
	}
}

func (p *memoryPartition) MaxBatchBytes() int { return p.limit }

var errNotEnough = errors.Join(replica.ErrNotEnoughReplicas)
