package group

import (
	"encoding/binary"
	"hash/fnv"
	"slices"
	"time"

	"github.com/stelelog/stele/internal/metadata"
)

// Kafka's defaults of a consumer group's settings.
var defaultConsumerSettings = ConsumerSettings{SessionTimeout: 45 * time.Second, HeartbeatInterval: 5 * time.Second, AssignmentInterval: time.Second}

func (s *Shard) consumerSettings(group string) ConsumerSettings {
	if s.config.ConsumerSettings == nil {
		return defaultConsumerSettings
	}
	return s.config.ConsumerSettings(s.image, group)
}

// A softConsumer is the soft state of a consumer group.
type softConsumer struct {
	clocks  map[string]*consumerClocks // by member id
	checked *metadata.Image            // the one that the group's topics were last compared with, and what they looked like
	hash    int64
	regexes regexRefresh
}

// The consumerClocks of a member are its session, and the times it has for what it must do.
type consumerClocks struct {
	session, rebalance timer
	join, sync         timer // of a member that speaks the classic protocol: to join when told to, to sync when it has joined
}

func (s *Shard) softConsumer(group string) *softConsumer {
	c := s.soft.consumers[group]
	if c == nil {
		c = &softConsumer{clocks: map[string]*consumerClocks{}}
		s.soft.consumers[group] = c
	}
	return c
}

func (s *Shard) clocksOf(group, member string) *consumerClocks {
	c := s.softConsumer(group)
	clocks := c.clocks[member]
	if clocks == nil {
		clocks = &consumerClocks{}
		c.clocks[member] = clocks
	}
	return clocks
}

func (s *Shard) restartConsumerSession(now time.Time, group, member string, timeout time.Duration) {
	s.startFence(now, &s.clocksOf(group, member).session, group, member, timeout)
}

// startRebalanceClock gives a member time to let go of partitions. It is not stopped when the member has: when it runs
// out it looks.
func (s *Shard) startRebalanceClock(now time.Time, group, member string, epoch int32, timeout time.Duration) {
	t := &s.clocksOf(group, member).rebalance
	t.fire = func(s *Shard, now time.Time, fx *Effects) {
		g := s.replicated.consumers[group]
		if g == nil {
			return
		}
		current := g.currentOf(member)
		late := current.State == memberUnrevoked && current.Epoch == epoch
		if late || g.currents.Unsettled(member) {
			s.soft.timers.set(t, now.Add(timeout)) // in case that what it did, or its removal, is not committed
		}
		if late {
			s.fenceConsumer(now, group, member, fx)
		}
	}
	s.soft.timers.set(t, now.Add(timeout))
}

// startFence removes a member when a time has run out.
func (s *Shard) startFence(now time.Time, t *timer, group, member string, after time.Duration) {
	t.fire = func(s *Shard, now time.Time, fx *Effects) { s.fenceConsumer(now, group, member, fx) }
	s.soft.timers.set(t, now.Add(after))
}

func (s *Shard) stopClocks(group, member string) {
	soft := s.soft.consumers[group]
	if soft == nil {
		return
	}
	if clocks := soft.clocks[member]; clocks != nil {
		s.soft.timers.stop(&clocks.session)
		s.soft.timers.stop(&clocks.rebalance)
		s.soft.timers.stop(&clocks.join)
		s.soft.timers.stop(&clocks.sync)
		delete(soft.clocks, member)
	}
	if len(soft.clocks) == 0 && !s.replicated.consumers[group].exists() {
		delete(s.soft.consumers, group)
	}
}

func (s *Shard) forgetConsumer(group string) {
	soft := s.soft.consumers[group]
	if soft == nil {
		return
	}
	for member := range soft.clocks {
		s.stopClocks(group, member)
	}
	delete(s.soft.consumers, group)
}

// consumersLoaded starts the clocks of all members, as if each had just been heard of.
func (s *Shard) consumersLoaded(now time.Time) {
	for _, id := range sortedKeys(s.replicated.consumers) {
		s.startConsumerClocks(now, id)
	}
}

func (s *Shard) startConsumerClocks(now time.Time, id string) {
	g := s.replicated.consumers[id]
	if !g.exists() {
		return
	}
	timeout := s.consumerSettings(id).SessionTimeout
	for _, member := range sortedKeys(g.members.Newest()) {
		s.restartConsumerSession(now, id, member, timeout)
		m, _ := g.members.Get(member)
		if current := g.currentOf(member); current.State == memberUnrevoked && m.Classic == nil {
			s.startRebalanceClock(now, id, member, current.Epoch, millis(m.RebalanceTimeoutMs))
		}
	}
}

// fenceConsumer removes a member that fell silent, or did not let go in time.
func (s *Shard) fenceConsumer(now time.Time, group, member string, fx *Effects) {
	g := s.replicated.consumers[group]
	m, ok := g.member(member)
	if !ok && (g == nil || !g.members.Unsettled(member)) {
		s.stopClocks(group, member) // its first record failed, or it left
		return
	}
	timeout := s.consumerSettings(group).SessionTimeout
	if ok && m.Classic != nil {
		timeout = millis(m.Classic.SessionTimeoutMs)
	}
	s.restartConsumerSession(now, group, member, timeout) // in case that its removal fails
	if !ok {
		return
	}
	s.removeConsumers(now, g, []string{member}, fx)
}

func (g *consumerGroup) member(id string) (*ConsumerMemberValue, bool) {
	if g == nil {
		return nil, false
	}
	return g.members.Get(id)
}

// removeConsumers removes members: what they had is free. Their clocks run on, for the write may fail and they be there
// again; one that runs out later finds nobody. If only members of the classic protocol are left, the group may
// become a classic one.
func (s *Shard) removeConsumers(now time.Time, g *consumerGroup, members []string, fx *Effects) {
	if s.downgrade(now, g, members, fx) {
		return
	}
	gone := map[string]*ConsumerMemberValue{}
	dropped := map[string]int{}
	for _, id := range members {
		fx.Append(consumerTombstones(g.id, id)...)
		gone[id] = nil
		if m, ok := g.members.Get(id); ok && deref(m.Regex) != "" {
			dropped[*m.Regex]++
		}
	}
	for _, regex := range sortedKeys(dropped) {
		if _, ok := g.regexes.Get(regex); ok && g.byRegex[regex] == dropped[regex] {
			fx.Append(&ConsumerRegexRecord{Group: g.id, Regex: regex})
		}
	}
	epoch, _ := g.groupEpoch()
	left := len(g.members.Newest()) - len(members)
	hash := int64(0)
	if left > 0 {
		hash = s.topicsHash(g.topics(gone, nil))
	}
	fx.Append(&ConsumerGroupRecord{Group: g.id, Value: &ConsumerGroupValue{Epoch: epoch + 1, MetadataHash: hash}})
	if left == 0 {
		fx.Append(&ConsumerTargetRecord{Group: g.id, Value: &ConsumerTargetValue{Epoch: epoch + 1}})
	}
}

// deleteConsumer writes the end of a group without members.
func (s *Shard) deleteConsumer(g *consumerGroup, fx *Effects) {
	for _, member := range sortedKeys(g.currents.Newest()) {
		fx.Append(&ConsumerCurrentRecord{Group: g.id, Member: member})
	}
	for _, member := range sortedKeys(g.targets.Newest()) {
		fx.Append(&ConsumerTargetMemberRecord{Group: g.id, Member: member})
	}
	if len(g.target.Newest()) > 0 {
		fx.Append(&ConsumerTargetRecord{Group: g.id})
	}
	for _, member := range sortedKeys(g.members.Newest()) {
		fx.Append(&ConsumerMemberRecord{Group: g.id, Member: member})
	}
	for _, regex := range sortedKeys(g.regexes.Newest()) {
		fx.Append(&ConsumerRegexRecord{Group: g.id, Regex: regex})
	}
	if len(g.oldHash.Newest()) > 0 {
		fx.Append(&ConsumerPartitionsRecord{Group: g.id})
	}
	fx.Append(&ConsumerGroupRecord{Group: g.id})
	if soft := s.soft.consumers[g.id]; soft != nil {
		for member := range soft.clocks {
			if g.members.Unsettled(member) {
				return // it may be there again, and its clock with it; else that runs out and finds nobody
			}
		}
	}
	s.forgetConsumer(g.id)
}

// topicsHash says what the topics of a group look like: it changes when one of them is made or deleted, grows, or moves
// to other racks. It is only compared with itself. 0: there is none.
func (s *Shard) topicsHash(names map[string]int) int64 {
	h := fnv.New64a()
	some := false
	var number [8]byte
	for _, name := range sortedKeys(names) {
		topic, ok := s.image.Topic(name)
		if !ok {
			continue
		}
		some = true
		h.Write(topic.ID[:])
		h.Write([]byte(name))
		for partition := range int32(topic.NumPartitions()) {
			binary.BigEndian.PutUint64(number[:], uint64(partition))
			h.Write(number[:])
			p, ok := topic.Partition(partition)
			if !ok {
				continue
			}
			for _, rack := range s.racksOf(p.Replicas) {
				h.Write([]byte(rack))
				h.Write([]byte{0})
			}
		}
	}
	if !some {
		return 0
	}
	return int64(h.Sum64())
}

func (s *Shard) racksOf(replicas []int32) []string {
	var racks []string
	for _, id := range replicas {
		if broker, ok := s.image.Broker(id); ok && deref(broker.Rack) != "" {
			racks = append(racks, *broker.Rack)
		}
	}
	slices.Sort(racks)
	return slices.Compact(racks)
}

// newTarget works out who is to get what.
func (s *Shard) newTarget(g *consumerGroup, members map[string]*ConsumerMemberValue, assignor string, had func(id string) []TopicPartitions) map[string][]TopicPartitions {
	partitions := map[[16]byte]int32{}
	resolve := func(name string) ([16]byte, bool) {
		topic, ok := s.image.Topic(name)
		if !ok {
			return [16]byte{}, false
		}
		partitions[topic.ID] = int32(topic.NumPartitions())
		return topic.ID, true
	}
	byRegex := map[string][][16]byte{}
	for regex := range g.regexes.Newest() {
		v, _ := g.regexes.Get(regex)
		for _, name := range v.Topics {
			if id, ok := resolve(name); ok {
				byRegex[regex] = append(byRegex[regex], id)
			}
		}
	}
	ids := sortedKeys(members)
	all := make([]assignee, len(ids))
	for i, id := range ids {
		m := members[id]
		a := assignee{id: id, instanceID: m.InstanceID, had: had(id)}
		for _, name := range m.Topics {
			if topic, ok := resolve(name); ok {
				a.topics = append(a.topics, topic)
			}
		}
		a.topics = append(a.topics, byRegex[deref(m.Regex)]...)
		slices.SortFunc(a.topics, func(x, y [16]byte) int { return slices.Compare(x[:], y[:]) })
		a.topics = slices.Compact(a.topics)
		all[i] = a
	}
	target := make(map[string][]TopicPartitions, len(ids))
	for i, set := range assignors[assignor](all, partitions) {
		target[ids[i]] = listOf(set)
	}
	return target
}
