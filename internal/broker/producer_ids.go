package broker

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// producerIDs hands out producer ids from blocks that the controller allocates
// (KIP-730). Ids of an abandoned block are never used.
type producerIDs struct {
	allocate func(ctx context.Context) (start int64, count int32, err error)

	mu       sync.Mutex
	next     int64
	end      int64         // exclusive
	fetching chan struct{} // closed when the fetch under way has ended
}

// Next returns an id that was never handed out before. It waits for the
// controller when the block is used up, until ctx ends.
func (p *producerIDs) Next(ctx context.Context) (int64, error) {
	for {
		if id, ok := p.take(); ok {
			return id, nil
		}
		if err := p.Wait(ctx); err != nil {
			return 0, err
		}
	}
}

// Try is Next for whoever must not wait: false when there is no id at hand. The next block is then on its way.
func (p *producerIDs) Try() (int64, bool) {
	id, ok := p.take()
	if !ok {
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), allocateTimeout)
			defer cancel()
			_ = p.Wait(ctx) // whoever wants an id asks again
		}()
	}
	return id, ok
}

// allocateTimeout bounds an allocation that nobody waits for.
const allocateTimeout = 30 * time.Second

func (p *producerIDs) take() (int64, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next >= p.end {
		return 0, false
	}
	p.next++
	return p.next - 1, true
}

// Wait returns when there are ids at hand, or the controller gave none, until ctx ends.
func (p *producerIDs) Wait(ctx context.Context) error {
	p.mu.Lock()
	if p.next < p.end {
		p.mu.Unlock()
		return nil
	}
	wait := p.fetching
	if wait == nil {
		wait = make(chan struct{})
		p.fetching = wait
		p.mu.Unlock()
		start, count, err := p.allocate(ctx)
		p.mu.Lock()
		if err == nil {
			p.next, p.end = start, start+int64(count)
		}
		p.fetching = nil
		close(wait)
		p.mu.Unlock()
		return err
	}
	p.mu.Unlock()
	select {
	case <-wait:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *Broker) allocateProducerIDs(ctx context.Context) (int64, int32, error) {
	req := kmsg.NewPtrAllocateProducerIDsRequest()
	req.BrokerID, req.BrokerEpoch = b.opts.NodeID, b.Epoch()
	resp, err := b.channel.Do(ctx, req)
	if err != nil {
		return 0, 0, err
	}
	answer := resp.(*kmsg.AllocateProducerIDsResponse)
	if err := kerr.ErrorForCode(answer.ErrorCode); err != nil {
		return 0, 0, fmt.Errorf("allocate producer ids: %w", err)
	}
	return answer.ProducerIDStart, answer.ProducerIDLen, nil
}
