package cli

import (
	"context"
	"slices"

	"github.com/stelelog/stele/consumer"
)

// progress is how far a consumer has come in each partition, and with --stop-at-end when it is done. It belongs to the
// goroutine that polls.
type progress struct {
	bounded bool
	limits  map[topicPartition]limit
	joined  bool // in a group: this member was told what it has
}

// limit is where reading begins when nothing is committed, and where it ends.
type limit struct{ first, end int64 }

func newProgress(bounded bool) *progress {
	return &progress{bounded: bounded, limits: map[topicPartition]limit{}}
}

// bounds notes a partition's limits as found before the start.
func (p *progress) bounds(at topicPartition, first, end int64) { p.limits[at] = limit{first, end} }

// begin assigns the partitions that have something to read, with exact offsets, to a consumer without a group.
func (p *progress) begin(c *consumer.Consumer) error {
	var chosen []consumer.TopicPartition
	for at, l := range p.limits {
		if !p.bounded || l.first < l.end {
			chosen = append(chosen, consumer.TopicPartition(at))
		}
	}
	slices.SortFunc(chosen, func(a, b consumer.TopicPartition) int { return int(a.Partition - b.Partition) })
	if err := c.Assign(chosen...); err != nil {
		return err
	}
	for _, tp := range chosen {
		if err := c.Seek(tp, consumer.Position{Offset: p.limits[topicPartition(tp)].first}); err != nil {
			return err
		}
	}
	p.joined = true
	return nil
}

// assigned is the group's callback.
func (p *progress) assigned(context.Context, []consumer.TopicPartition) { p.joined = true }

// wants says whether a record is to be printed.
func (p *progress) wants(r *consumer.Record) bool {
	return !p.bounded || r.Offset < p.limits[topicPartition(r.TopicPartition())].end
}

// done says whether all that this consumer has was read to its end. Positions that are being looked up are not.
func (p *progress) done(ctx context.Context, c *consumer.Consumer) bool {
	if !p.bounded || !p.joined {
		return false
	}
	now, cancel := context.WithCancel(ctx)
	cancel()
	for _, tp := range c.Assignment() {
		if at, err := c.Position(now, tp); err != nil || at.Offset < p.limits[topicPartition(tp)].end {
			return false
		}
	}
	return true
}
