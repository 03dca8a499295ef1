package consumer

import (
	"context"
	"time"
)

// TimedPosition is the first record that is not older than some time.
type TimedPosition struct {
	Position
	Timestamp time.Time // of that record
}

// BeginningOffsets is the log start of partitions, whoever reads them.
func (c *Consumer) BeginningOffsets(ctx context.Context, partitions ...TopicPartition) (map[TopicPartition]Position, error) {
	return c.ends(ctx, askStart, -2, partitions)
}

// EndOffsets is the end of partitions, whoever reads them: the high watermark, or the last stable offset with
// ReadCommitted.
func (c *Consumer) EndOffsets(ctx context.Context, partitions ...TopicPartition) (map[TopicPartition]Position, error) {
	return c.ends(ctx, askEnd, -1, partitions)
}

func (c *Consumer) ends(ctx context.Context, kind askKind, timestamp int64, partitions []TopicPartition) (map[TopicPartition]Position, error) {
	questions := map[TopicPartition]question{}
	for _, tp := range partitions {
		questions[tp] = question{kind: kind, timestamp: timestamp}
	}
	answers, err := c.query(ctx, questions)
	if err != nil {
		return nil, err
	}
	ends := map[TopicPartition]Position{}
	for tp, a := range answers {
		ends[tp] = Position{a.offset, fromWire(a.epoch)}
	}
	return ends, nil
}

// OffsetsForTimes is where the first record of each partition is that is not older than a time. Partitions without such a
// record are left out.
func (c *Consumer) OffsetsForTimes(ctx context.Context, times map[TopicPartition]time.Time) (map[TopicPartition]TimedPosition, error) {
	questions := map[TopicPartition]question{}
	for tp, at := range times {
		questions[tp] = question{kind: askTime, timestamp: max(0, at.UnixMilli())}
	}
	answers, err := c.query(ctx, questions)
	if err != nil {
		return nil, err
	}
	found := map[TopicPartition]TimedPosition{}
	for tp, a := range answers {
		if a.offset >= 0 {
			found[tp] = TimedPosition{Position{a.offset, fromWire(a.epoch)}, time.UnixMilli(a.timestamp)}
		}
	}
	return found, nil
}

// query asks leaders about partitions, and again while leaders move, until ctx ends.
func (c *Consumer) query(ctx context.Context, questions map[TopicPartition]question) (map[TopicPartition]answer, error) {
	done := map[TopicPartition]answer{}
	var last error
	for wait := c.o.RetryBackoff; ; wait = min(2*wait, c.o.RetryBackoffMax) {
		byNode, err := c.leaders(ctx, questions)
		if err != nil {
			return nil, err
		}
		for node, batch := range byNode {
			answers, err := c.askOffsets(ctx, node, batch)
			if err != nil {
				last = err
				continue
			}
			for tp, a := range answers {
				switch {
				case a.code == codeNone:
					done[tp] = a
					delete(questions, tp)
				case retriable(a.code):
					last = &PartitionError{TopicPartition: tp, Err: codeError(a.code)}
				default:
					return nil, &PartitionError{TopicPartition: tp, Err: codeError(a.code)}
				}
			}
		}
		if len(questions) == 0 {
			return done, nil
		}
		if last == nil {
			last = &PartitionError{TopicPartition: sortedKeys(questions)[0], Err: codeError(codeUnknownTopicOrPartition)}
		}
		select {
		case <-ctx.Done():
			return nil, last
		case <-c.ctx.Done():
			return nil, ErrClosed
		case <-time.After(wait):
		}
	}
}

// leaders finds who leads partitions, from fresh metadata.
func (c *Consumer) leaders(ctx context.Context, questions map[TopicPartition]question) (map[int32][]asked, error) {
	if len(questions) == 0 {
		return nil, nil
	}
	var topics []string
	for tp := range questions {
		topics = append(topics, tp.Topic)
	}
	if _, err := c.partitionCounts(ctx, topics); err != nil {
		return nil, err
	}
	byNode := map[int32][]asked{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for tp, q := range questions {
		t := c.cluster.topics[tp.Topic]
		if t == nil {
			continue
		}
		if l, ok := t.partitions[tp.Partition]; ok && l.node >= 0 {
			q.current = l.epoch
			byNode[l.node] = append(byNode[l.node], asked{&partition{tp: tp}, q})
		}
	}
	return byNode, nil
}

// Position is where a partition is: after the last record that a loop over a Fetch has taken. It waits while the position
// is looked up or checked. The error is a NotAssignedError, one that Poll would return, or that of ctx.
func (c *Consumer) Position(ctx context.Context, tp TopicPartition) (Position, error) {
	for {
		c.mu.Lock()
		c.settle()
		p := c.parts[tp]
		var pos Position
		var err error
		usable := false
		if p == nil {
			err = &NotAssignedError{[]TopicPartition{tp}}
		} else {
			pos, usable, err = p.m.pos, p.m.usable(), p.m.err
		}
		changed := c.changes
		c.mu.Unlock()
		if err != nil || usable {
			return pos, err
		}
		select {
		case <-ctx.Done():
			return Position{}, ctx.Err()
		case <-c.ctx.Done():
			return Position{}, ErrClosed
		case <-changed:
		}
	}
}

// Committed is what the group has committed. Partitions without a commit are left out.
func (c *Consumer) Committed(ctx context.Context, partitions ...TopicPartition) (map[TopicPartition]Position, error) {
	committed := map[TopicPartition]Position{}
	if len(partitions) == 0 {
		return committed, nil
	}
	for wait := c.o.RetryBackoff; ; wait = min(2*wait, c.o.RetryBackoffMax) {
		answers, err := c.fetchCommitted(ctx, partitions)
		if err != nil {
			return nil, &GroupError{c.o.GroupID, "fetch offsets", err}
		}
		var again error
		for tp, a := range answers {
			switch {
			case retriable(a.code):
				again = &PartitionError{TopicPartition: tp, Err: codeError(a.code)}
			case a.code != codeNone:
				return nil, &PartitionError{TopicPartition: tp, Err: codeError(a.code)}
			case a.offset >= 0:
				committed[tp] = Position{a.offset, fromWire(a.epoch)}
			}
		}
		if again == nil {
			return committed, nil
		}
		select {
		case <-ctx.Done():
			return nil, again
		case <-time.After(wait):
		}
	}
}

// Lag is how many offsets lie between the positions of partitions and the ends of their logs, which are asked for. A
// position below the log start counts from there. There may be fewer records than offsets.
func (c *Consumer) Lag(ctx context.Context, partitions ...TopicPartition) (map[TopicPartition]int64, error) {
	lags := map[TopicPartition]int64{}
	starts, err := c.BeginningOffsets(ctx, partitions...)
	if err != nil {
		return nil, err
	}
	ends, err := c.EndOffsets(ctx, partitions...)
	if err != nil {
		return nil, err
	}
	for _, tp := range partitions {
		pos, err := c.Position(ctx, tp)
		if err != nil {
			return nil, err
		}
		lags[tp] = max(0, ends[tp].Offset-max(pos.Offset, starts[tp].Offset))
	}
	return lags, nil
}
