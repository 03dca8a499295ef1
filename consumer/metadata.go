package consumer

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func sortedKeys[V any](m map[TopicPartition]V) []TopicPartition {
	return slices.SortedFunc(maps.Keys(m), compareTopicPartitions)
}

// topicInfo is what is known of a topic.
type topicInfo struct {
	id         [16]byte
	internal   bool
	partitions map[int32]leaderAndEpoch
}

// cluster is the newest that any broker has said of topics and their leaders. An older epoch never takes the place of a
// newer one, nor a topic that was deleted that of the one that followed it.
type cluster struct {
	topics  map[string]*topicInfo
	names   map[[16]byte]string
	retired map[[16]byte]bool
	nodes   map[int32]bool
}

func newCluster() cluster {
	return cluster{topics: map[string]*topicInfo{}, names: map[[16]byte]string{}, retired: map[[16]byte]bool{}, nodes: map[int32]bool{}}
}

// update takes a Metadata response.
func (c *cluster) update(resp *kmsg.MetadataResponse) {
	for _, b := range resp.Brokers {
		c.nodes[b.NodeID] = true
	}
	for i := range resp.Topics {
		t := &resp.Topics[i]
		if t.Topic == nil || t.ErrorCode != codeNone || c.retired[t.TopicID] {
			continue
		}
		known := c.topics[*t.Topic]
		if known != nil && known.id != t.TopicID && known.id != [16]byte{} && t.TopicID != [16]byte{} {
			c.retired[known.id] = true
			delete(c.names, known.id)
			known = nil
		}
		if known == nil {
			known = &topicInfo{partitions: map[int32]leaderAndEpoch{}}
			c.topics[*t.Topic] = known
		}
		known.internal = t.IsInternal
		if t.TopicID != [16]byte{} {
			known.id = t.TopicID
			c.names[t.TopicID] = *t.Topic
		}
		for _, p := range t.Partitions {
			known.lead(p.Partition, leaderAndEpoch{p.Leader, fromWire(p.LeaderEpoch)})
		}
	}
}

// lead takes a partition's leader unless it is an older one; it says whether it did.
func (t *topicInfo) lead(partition int32, l leaderAndEpoch) bool {
	if l.node < 0 {
		l.node = -1
	}
	old, ok := t.partitions[partition]
	if oldEpoch, known := old.epoch.Get(); ok && known {
		if epoch, given := l.epoch.Get(); given && epoch < oldEpoch {
			return false
		}
	}
	t.partitions[partition] = l
	return true
}

// hint takes a leader that a broker named in passing (KIP-951); only one that is newer, and at a node that is known.
func (c *cluster) hint(tp TopicPartition, l leaderAndEpoch) bool {
	t := c.topics[tp.Topic]
	epoch, ok := l.epoch.Get()
	if t == nil || !ok || l.node < 0 || !c.nodes[l.node] {
		return false
	}
	old, known := t.partitions[tp.Partition].epoch.Get()
	return (!known || epoch > old) && t.lead(tp.Partition, l)
}

// refresher asks for metadata when it is wanted: soon after it is, not more often than retry.backoff.ms, and at least
// every metadata.max.age.ms.
type refresher struct {
	wanted bool
	flying bool
	last   time.Time
	rounds int // completed
}

// due says when to ask next.
func (r *refresher) due(o *Options) time.Time {
	if r.flying {
		return time.Time{}
	}
	if r.wanted {
		return r.last.Add(o.RetryBackoff)
	}
	return r.last.Add(o.MetadataMaxAge)
}

// refresh asks one broker for the topics that matter; nil asks for all.
func (c *Consumer) refresh(ctx context.Context, topics []string, all bool) {
	req := kmsg.NewPtrMetadataRequest()
	if !all {
		req.Topics = []kmsg.MetadataRequestTopic{}
		for _, name := range topics {
			t := kmsg.NewMetadataRequestTopic()
			t.Topic = kmsg.StringPtr(name)
			req.Topics = append(req.Topics, t)
		}
	}
	req.AllowAutoTopicCreation = c.o.AllowAutoCreateTopics
	ctx, cancel := context.WithTimeout(ctx, c.o.RequestTimeout)
	defer cancel()
	resp, err := req.RequestWith(ctx, c.client)
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.refreshing.flying, c.refreshing.wanted, c.refreshing.last = false, err != nil, now
	c.refreshing.rounds++
	if c.group != nil {
		signal(c.group.wake)
	}
	defer c.tick()
	if err != nil {
		c.log.Debug("metadata could not be had", "error", err)
		return
	}
	c.cluster.update(resp)
	for _, t := range resp.Topics {
		if t.Topic == nil || t.ErrorCode == codeNone {
			continue
		}
		if retriable(t.ErrorCode) {
			c.refreshing.wanted = true
		} else {
			c.raise(&PartitionError{TopicPartition: TopicPartition{*t.Topic, -1}, Err: codeError(t.ErrorCode)})
		}
	}
	for _, tp := range sortedKeys(c.parts) {
		c.teach(c.parts[tp], now)
	}
	c.subscription.update(&c.cluster)
}

// teach tells a partition's machine what the cluster knows of it.
func (c *Consumer) teach(p *partition, now time.Time) {
	t := c.cluster.topics[p.tp.Topic]
	if t == nil {
		return
	}
	leader, ok := t.partitions[p.tp.Partition]
	if !ok {
		return
	}
	c.settle()
	c.follow(p, p.m.learn(leader, t.id, now))
	if leader.node < 0 || p.m.outdated() {
		c.refreshing.wanted = true
	}
}
