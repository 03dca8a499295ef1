package broker

import (
	"context"
	"fmt"
	"sync"

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
		p.mu.Lock()
		if p.next < p.end {
			id := p.next
			p.next++
			p.mu.Unlock()
			return id, nil
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
			if err != nil {
				return 0, err
			}
			continue
		}
		p.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
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
