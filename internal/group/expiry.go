package group

import (
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
)

// consumerProtocolType is the protocol type of consumers, whose metadata can be read here.
const consumerProtocolType = "consumer"

// A subscription is the set of topics that a group's members consume; unreadable means it may be any.
type subscription struct {
	topics     map[string]bool
	readBy     func(topic string) bool // of a group of the consumer protocol, in place of topics
	unreadable bool
}

func (s subscription) has(topic string) bool {
	return s.unreadable || s.topics[topic] || s.readBy != nil && s.readBy(topic)
}

// subscription is what the members of a consumer group subscribe to, by their metadata for the chosen
// protocol. Before a protocol is chosen, and when the metadata of one member cannot be read, it is unreadable.
func (g *classicGroup) subscription() subscription {
	sub := subscription{topics: map[string]bool{}}
	for _, m := range g.members {
		topics, ok := subscribedTopics(m.metadataOf(g.protocol))
		if !ok {
			return subscription{unreadable: true}
		}
		for _, topic := range topics {
			sub.topics[topic] = true
		}
	}
	return sub
}

// subscribedTopics reads the topics of an embedded consumer protocol subscription. All its versions begin
// with the fields of version 0.
func subscribedTopics(metadata []byte) (topics []string, ok bool) {
	r := kbin.Reader{Src: metadata}
	version := r.Int16()
	for n := r.ArrayLen(); n > 0 && r.Ok(); n-- {
		topics = append(topics, r.String())
	}
	r.NullableBytes()
	return topics, r.Ok() && version >= 0
}

// fireRetention looks for expired offsets, and sets the next look.
func (s *Shard) fireRetention(now time.Time, fx *Effects) {
	s.soft.timers.set(&s.soft.retention, now.Add(s.config.RetentionCheckInterval))
	fx.Splittable = true
	for _, id := range s.groupIDs(now) {
		s.expire(now, id, fx)
	}
}

// expire writes tombstones for a group's expired offsets, and for the group if it is Empty and has none left.
func (s *Shard) expire(now time.Time, id string, fx *Effects) {
	g, consumers := s.group(now, id), s.replicated.consumers[id]
	policy := s.expiryOf(g)
	if consumers.exists() {
		policy = expiryPolicy{exempt: subscription{readBy: consumers.subscribes}, since: -1}
	}
	allGone := true
	for _, tp := range s.partitionsOf(id) {
		entry, stored := s.replicated.offset(id, tp)
		if s.replicated.isOpen(id, tp) || !stored || !policy.expired(now, tp.Topic, entry.OffsetCommitValue, s.config.OffsetsRetention) {
			allGone = false
			continue
		}
		fx.Append(offsetTombstone(id, tp))
	}
	switch {
	case !allGone:
	case g != nil && g.state == Empty:
		s.removeGroup(g, fx)
	case consumers.exists() && len(consumers.members.Newest()) == 0:
		s.deleteConsumer(consumers, fx)
	}
}

// removeGroup writes a group's tombstone and forgets it. If that fails it comes back from its record.
func (s *Shard) removeGroup(g *classicGroup, fx *Effects) {
	fx.Append(&GroupMetadataRecord{Group: g.id})
	s.forget(g)
}

// An expiryPolicy says which offsets of a group may expire, and from when their retention counts.
type expiryPolicy struct {
	exempt subscription
	since  int64 // milliseconds; -1: from each offset's own commit
}

func (s *Shard) expiryOf(g *classicGroup) expiryPolicy {
	switch {
	case g == nil || g.protocolType == "":
		return expiryPolicy{since: -1} // a simple group
	case g.state == Empty:
		return expiryPolicy{since: g.stateSince}
	case g.state == Stable && g.protocolType == consumerProtocolType:
		return expiryPolicy{exempt: g.subscription(), since: -1}
	default:
		return expiryPolicy{exempt: subscription{unreadable: true}}
	}
}

func (p expiryPolicy) expired(now time.Time, topic string, v *OffsetCommitValue, retention time.Duration) bool {
	if p.exempt.has(topic) {
		return false
	}
	if v.ExpireTimestamp >= 0 {
		return now.UnixMilli() >= v.ExpireTimestamp
	}
	base := p.since
	if base < 0 {
		base = v.CommitTimestamp
	}
	return now.UnixMilli()-base >= retention.Milliseconds()
}
