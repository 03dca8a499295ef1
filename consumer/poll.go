package consumer

import (
	"context"
	"errors"
	"iter"
	"time"
)

// job is work of a rebalance that is done inside Poll.
type job struct {
	do   func(context.Context)
	done chan struct{}
}

// Poll waits for records and returns them. Before it does, the callbacks of a rebalance and OnReset are called, and
// offsets are committed when that is due. What the program did not take of the Fetch before comes again.
//
// Errors of ctx, ErrClosed and ErrConcurrentPoll end a Poll; all others are about a partition or the group, and a later
// Poll goes on. A LogTruncationError, an OffsetOutOfRangeError and a NoOffsetError come again until a Seek mends them.
func (c *Consumer) Poll(ctx context.Context) (*Fetch, error) {
	if !c.polling.CompareAndSwap(false, true) {
		return nil, ErrConcurrentPoll
	}
	defer func() {
		c.polling.Store(false)
		signal(c.polled)
	}()
	if err := c.enter(ctx); err != nil {
		return nil, err
	}
	defer c.exit()
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		select {
		case j := <-c.jobs:
			c.perform(ctx, j)
			continue
		default:
		}
		f, events, err := c.collect()
		if c.o.OnReset != nil {
			for _, ev := range events {
				c.o.OnReset(ev)
			}
		}
		if f != nil || err != nil {
			return f, err
		}
		if len(events) > 0 {
			continue // OnReset may have changed something
		}
		select {
		case <-ctx.Done():
		case <-c.ready:
		case j := <-c.jobs:
			c.perform(ctx, j)
		}
	}
}

// Records polls, and walks the records as they come. Errors are handed out in between, without a record; a loop that
// goes on after one polls again. The walk ends when ctx does, or the consumer is closed. Each record is valid until the
// next.
func (c *Consumer) Records(ctx context.Context) iter.Seq2[*Record, error] {
	return func(yield func(*Record, error) bool) {
		for {
			f, err := c.Poll(ctx)
			switch {
			case err != nil && (ctx.Err() != nil || errors.Is(err, ErrClosed)):
				return
			case err != nil:
				if !yield(nil, err) {
					return
				}
				continue
			}
			for r := range f.Records() {
				if !yield(r, nil) {
					return
				}
			}
		}
	}
}

func (c *Consumer) perform(ctx context.Context, j job) {
	defer close(j.done)
	j.do(ctx)
}

// enter begins a Poll.
func (c *Consumer) enter(ctx context.Context) error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return ErrClosed
	}
	if err := ctx.Err(); err != nil {
		c.mu.Unlock()
		return err
	}
	c.settle()
	c.giveBack()
	c.idleSince = time.Time{}
	start := c.group != nil && !c.group.started
	if start {
		c.group.started = true
		c.wg.Go(func() { c.group.run() })
		c.tick()
	}
	now := time.Now()
	due := c.o.GroupID != "" && !c.o.DisableAutoCommit && !c.committing && now.Sub(c.lastCommit) >= c.o.AutoCommitInterval
	if due {
		c.committing, c.lastCommit = true, now
		if commit := c.prepareConsumed(); commit != nil {
			c.wg.Go(func() { c.autoCommit(commit) })
		} else {
			c.committing = false
		}
	}
	c.mu.Unlock()
	if c.group != nil {
		signal(c.group.wake)
	}
	return nil
}

func (c *Consumer) exit() {
	c.mu.Lock()
	c.idleSince = time.Now()
	c.mu.Unlock()
	if c.group != nil {
		signal(c.group.wake)
	}
}

// collect takes what there is for the program: the moves first, then errors, then records.
func (c *Consumer) collect() (f *Fetch, events []ResetEvent, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, ErrClosed
	}
	c.settle()
	events, c.events = c.events, nil
	if len(events) > 0 && c.o.OnReset != nil {
		return nil, events, nil
	}
	if len(c.raised) > 0 {
		err, c.raised = c.raised[0], c.raised[1:]
		signal(c.ready)
		return nil, events, err
	}
	for _, tp := range c.turn {
		if p := c.parts[tp]; p.m.err != nil && !p.held {
			return nil, events, p.m.err
		}
	}
	return c.gather(), events, nil
}

// gather makes a Fetch of what is buffered, nil when there is nothing for the program.
func (c *Consumer) gather() *Fetch {
	f := &Fetch{c: c}
	left := c.o.MaxPollRecords
	served := 0
	for i, tp := range c.turn {
		p := c.parts[tp]
		if p.paused || p.held || p.m.state != fetching || len(p.queue) == 0 {
			continue
		}
		left = c.takeFrom(p, f, left)
		served = i + 1
		if left <= 0 {
			break
		}
	}
	if len(f.parts) == 0 {
		return nil
	}
	c.turn = append(c.turn[served:len(c.turn):len(c.turn)], c.turn[:served]...)
	c.out = f
	for _, other := range c.fetchers {
		signal(other.wake)
	}
	if left == c.o.MaxPollRecords {
		c.settle() // nothing but batches without records for the program
		c.out = nil
		signal(c.ready)
		return nil
	}
	c.stats.Records += int64(c.o.MaxPollRecords - left)
	return f
}

// takeFrom moves chunks of a partition into a Fetch, at most as many as hold left records; it says how many are left.
func (c *Consumer) takeFrom(p *partition, f *Fetch, left int) int {
	void := p.live()
	for len(p.queue) > 0 && left > 0 {
		ch := p.queue[0]
		if ch.to <= p.m.pos.Offset {
			c.unqueue(p)
			continue
		}
		ch.from = max(ch.from, p.m.pos.Offset)
		n := ch.count()
		if n > left {
			var rest chunk
			ch, rest = ch.split(left)
			p.queue[0] = rest
			n = left
		} else {
			c.unqueue(p)
		}
		left -= max(n, 0)
		b := &Batch{c: c, p: p, void: void, chunk: ch, settled: ch.from}
		b.taken.Store(ch.from)
		f.parts = append(f.parts, b)
	}
	return left
}

func (c *Consumer) unqueue(p *partition) {
	n := int64(len(p.queue[0].batch))
	p.queue[0] = chunk{}
	p.queue = p.queue[1:]
	p.bytes -= n
	c.buffered -= n
}

// settle tells the positions what the loops have taken of the last Fetch.
func (c *Consumer) settle() {
	if c.out == nil {
		return
	}
	for _, b := range c.out.parts {
		taken := b.taken.Load()
		if b.skip {
			taken = b.to
		}
		if taken > b.settled && b.settled == b.p.m.pos.Offset {
			b.p.m.deliver(b.generation, b.epoch, b.settled, taken)
			b.settled = taken
		}
	}
}

// giveBack puts what no loop has taken of the last Fetch back before what is buffered, and ends that Fetch.
func (c *Consumer) giveBack() {
	if c.out == nil {
		return
	}
	parts := c.out.parts
	c.out = nil
	for i := len(parts) - 1; i >= 0; i-- {
		b := parts[i]
		p := b.p
		if b.void.Load() || c.parts[p.tp] != p || b.settled >= b.to {
			continue
		}
		if b.version != p.version {
			if len(p.queue) == 0 {
				p.m.rewind()
			}
			continue
		}
		rest := b.chunk
		rest.from = b.settled
		p.queue = append([]chunk{rest}, p.queue...)
		p.bytes += int64(len(rest.batch))
		c.buffered += int64(len(rest.batch))
	}
	// A loop that still runs over the old Fetch would take records a second time.
	for _, b := range parts {
		b.void.Store(true)
		if b.p.void == b.void {
			b.p.void = nil
		}
	}
}
