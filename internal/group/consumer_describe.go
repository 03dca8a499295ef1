package group

import "slices"

// A DescribedConsumerGroup is one group of the consumer protocol as ConsumerGroupDescribe shows it. One that is not known
// has Err ErrGroupIDNotFound.
type DescribedConsumerGroup struct {
	Group              string
	Err                error
	State              string
	Epoch, TargetEpoch int32
	Assignor           string
	Members            []DescribedConsumer // in the order of their ids
}

// A DescribedConsumer is one of its members. Partitions that it has to let go of count as its own. Topics that were
// deleted are left out.
type DescribedConsumer struct {
	ID            string
	InstanceID    *string
	RackID        *string
	Epoch         int32
	ClientID      string
	ClientHost    string
	Topics        []string
	Regex         string
	Assigned      []DescribedTopic
	Target        []DescribedTopic
	SpeaksClassic bool
}

// A DescribedTopic is partitions of one topic.
type DescribedTopic struct {
	TopicID    [16]byte
	Topic      string
	Partitions []int32
}

// DescribeConsumerGroup shows a group of the consumer protocol as far as it is committed. It may be answered at once.
func (s *Shard) DescribeConsumerGroup(id string) DescribedConsumerGroup {
	g := s.replicated.consumers[id]
	if g == nil {
		return DescribedConsumerGroup{Group: id, Err: ErrGroupIDNotFound, State: Dead}
	}
	var ids []string
	g.members.CommittedKeys(func(member string) { ids = append(ids, member) })
	slices.Sort(ids)
	epoch, ok := g.epoch.Committed(struct{}{})
	if !ok && len(ids) == 0 {
		return DescribedConsumerGroup{Group: id, Err: ErrGroupIDNotFound, State: Dead}
	}
	d := DescribedConsumerGroup{Group: id, Epoch: firstConsumerEpoch, TargetEpoch: firstConsumerEpoch, State: Stable}
	if ok {
		d.Epoch = epoch.Epoch
	}
	if target, ok := g.target.Committed(struct{}{}); ok {
		d.TargetEpoch = target.Epoch
	}
	preferred := map[string]int{}
	for _, member := range ids {
		m, _ := g.members.Committed(member)
		out := DescribedConsumer{
			ID: member, InstanceID: m.InstanceID, RackID: m.RackID, ClientID: m.ClientID, ClientHost: m.ClientHost,
			Topics: m.Topics, Regex: deref(m.Regex), SpeaksClassic: m.Classic != nil,
		}
		current, ok := g.currents.Committed(member)
		if !ok {
			current = &ConsumerCurrentValue{}
		}
		out.Epoch = current.Epoch
		has := ownershipOf(current.Assigned, current.Epoch)
		for p, epoch := range ownershipOf(current.Revoking, current.Epoch) {
			has[p] = epoch
		}
		out.Assigned = s.described(listOf(has))
		if target, ok := g.targets.Committed(member); ok {
			out.Target = s.described(target.Partitions)
		}
		if current.State != memberStable || current.Epoch != d.TargetEpoch {
			d.State = Reconciling
		}
		preferred[deref(m.Assignor)]++
		d.Members = append(d.Members, out)
	}
	d.Assignor = s.config.preferred(preferred)
	switch {
	case len(ids) == 0:
		d.State = Empty
	case d.Epoch > d.TargetEpoch:
		d.State = Assigning
	}
	return d
}

func (s *Shard) described(list []TopicPartitions) []DescribedTopic {
	var topics []DescribedTopic
	for _, t := range list {
		if topic, ok := s.image.TopicByID(t.TopicID); ok {
			topics = append(topics, DescribedTopic{TopicID: t.TopicID, Topic: topic.Name, Partitions: t.Partitions})
		}
	}
	return topics
}
