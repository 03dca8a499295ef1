package cli

import (
	"context"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// progress is how far a consumer has come in each partition, and with --stop-at-end
// when it is done. The group's callbacks call it from the client's goroutines.
type progress struct {
	mu       sync.Mutex
	bounded  bool
	limits   map[topicPartition]limit
	position map[topicPartition]int64
	// In a group: what this member has, once it was told.
	joined bool
	mine   map[topicPartition]bool
}

// limit is where reading begins when nothing is committed, and where it ends.
type limit struct{ first, end int64 }

func newProgress(bounded bool) *progress {
	return &progress{bounded: bounded, limits: map[topicPartition]limit{}, position: map[topicPartition]int64{}, mine: map[topicPartition]bool{}}
}

// bounds notes a partition's limits as found before the start.
func (p *progress) bounds(at topicPartition, first, end int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limits[at] = limit{first, end}
}

// begin gives the partitions that have something to read, with exact offsets: a
// consumer without a group.
func (p *progress) begin() map[string]map[int32]kgo.Offset {
	p.mu.Lock()
	defer p.mu.Unlock()
	chosen := map[string]map[int32]kgo.Offset{}
	for at, l := range p.limits {
		p.mine[at], p.position[at] = true, l.first
		if p.bounded && l.first >= l.end {
			continue
		}
		if chosen[at.Topic] == nil {
			chosen[at.Topic] = map[int32]kgo.Offset{}
		}
		chosen[at.Topic][at.Partition] = kgo.NewOffset().At(l.first)
	}
	p.joined = true
	return chosen
}

// assigned, revoked and adjust are a group's callbacks. adjust sees the committed
// offsets before reading starts: a commit may stand at the end already.
func (p *progress) assigned(_ context.Context, _ *kgo.Client, added map[string][]int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.joined = true
	for topic, partitions := range added {
		for _, partition := range partitions {
			p.mine[topicPartition{topic, partition}] = true
		}
	}
}

func (p *progress) revoked(_ context.Context, _ *kgo.Client, removed map[string][]int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for topic, partitions := range removed {
		for _, partition := range partitions {
			at := topicPartition{topic, partition}
			delete(p.mine, at)
			delete(p.position, at)
		}
	}
}

func (p *progress) adjust(_ context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for topic, partitions := range offsets {
		for partition, offset := range partitions {
			at := topicPartition{topic, partition}
			if p.position[at] = offset.EpochOffset().Offset; p.position[at] < 0 {
				p.position[at] = p.limits[at].first
			}
		}
	}
	return offsets, nil
}

// wants says whether a record is to be printed, and notes that it was passed.
func (p *progress) wants(r *kgo.Record) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := topicPartition{r.Topic, r.Partition}
	p.position[at] = r.Offset + 1
	return !p.bounded || r.Offset < p.limits[at].end
}

// done says whether all that this consumer has was read to its end.
func (p *progress) done() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.bounded || !p.joined {
		return false
	}
	for at := range p.mine {
		if position, ok := p.position[at]; !ok || position < p.limits[at].end {
			return false
		}
	}
	return true
}

// unfinished are the positions in the partitions that were not read to their ends.
func (p *progress) unfinished() map[topicPartition]int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := map[topicPartition]int64{}
	for at := range p.mine {
		if position, ok := p.position[at]; ok && p.bounded && position < p.limits[at].end {
			left[at] = position
		}
	}
	return left
}

func (p *progress) endOf(at topicPartition) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.limits[at].end
}

// pass moves the position of a partition that this consumer still has.
func (p *progress) pass(at topicPartition, to int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mine[at] {
		p.position[at] = max(p.position[at], to)
	}
}
