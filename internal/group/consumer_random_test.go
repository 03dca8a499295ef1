package group

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// A randomMember is a client of the consumer protocol that mostly does as it should.
type randomMember struct {
	id       string
	instance string
	epoch    int32
	owned    []TopicPartitions // what it works on
	assigned []TopicPartitions // what it was told last
	topics   []string
	joined   bool
	missed   bool // an answer: the next heartbeat says all
}

func (m *randomMember) heartbeat(r *rig, full bool) *ConsumerHeartbeatReply {
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Version, req.Group, req.MemberID, req.RebalanceTimeoutMillis = 1, "g", m.id, -1
	if m.instance != "" {
		req.InstanceID = &m.instance
	}
	if req.MemberEpoch = m.epoch; !m.joined {
		req.MemberEpoch, m.owned = 0, nil
	}
	if full || m.missed || !m.joined {
		m.missed = false
		req.RebalanceTimeoutMillis, req.SubscribedTopicNames = 60000, m.topics
		req.Topics = requestOf(m.owned)
	} else if !samePartitions(m.owned, m.assigned) {
		m.owned = m.assigned
		req.Topics = requestOf(m.owned)
	}
	var reply *ConsumerHeartbeatReply
	r.told = func(_ string, response Response) { reply, _ = response.(*ConsumerHeartbeatReply) }
	r.apply(r.s.ConsumerGroupHeartbeat(r.now, r.handle(m.id), RequestContext{}, req))
	r.told = nil
	return reply
}

func requestOf(list []TopicPartitions) []kmsg.ConsumerGroupHeartbeatRequestTopic {
	topics := []kmsg.ConsumerGroupHeartbeatRequestTopic{}
	for _, t := range list {
		topics = append(topics, kmsg.ConsumerGroupHeartbeatRequestTopic{TopicID: t.TopicID, Partitions: t.Partitions})
	}
	return topics
}

// take does what an answer says.
func (m *randomMember) take(reply *ConsumerHeartbeatReply) {
	switch {
	case reply == nil:
		m.missed = true
	case reply.Err != nil:
		m.joined, m.owned, m.assigned = false, nil, nil
	default:
		m.joined, m.epoch = true, reply.Epoch
		if reply.HasAssignment {
			m.assigned = reply.Assignment
		}
	}
}

// workedOnByOne fails when two members that the group knows work on one partition.
func workedOnByOne(t *testing.T, seed uint64, r *rig, members []*randomMember) {
	t.Helper()
	workers := map[partitionID]string{}
	g := r.s.replicated.consumers["g"]
	for _, m := range members {
		if _, known := g.member(m.id); !known || !m.joined {
			continue
		}
		for p := range eachPartition(m.owned) {
			if other, taken := workers[p]; taken {
				t.Fatalf("seed %d: %s and %s both work on %s-%d", seed, other, m.id, topicName(p.topic), p.partition)
			}
			workers[p] = m.id
		}
	}
}

// TestC035_random_members: whatever members, brokers and topics do, no partition has two owners, no member's epoch is
// above the target's and the target's not above the group's (the rig looks after every step); a revert at any offset is
// the same as a fresh replay; and when all is quiet every partition is assigned, evenly where all subscribe alike (C-023).
func TestC035_random_members(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		rnd := rand.New(rand.NewPCG(seed, 35))
		alike := seed%2 == 0
		interval := int64(0)
		if seed%3 == 0 {
			interval = 1000
		}
		r := newRig(Config{ConsumerSettings: consumerConfig(step{args: map[string]string{"interval": fmt.Sprint(interval)}})})
		topics := []string{"T:8", "U:5", "V:3"}
		r.setTopics(topics)
		var members []*randomMember
		for i := range 6 {
			m := &randomMember{id: fmt.Sprint("m", i), topics: []string{"T", "U", "V"}}
			if !alike {
				m.topics = [][]string{{"T"}, {"T", "U"}, {"V"}, {"U", "V"}, {"T", "V"}, {"U"}}[i]
			}
			if i%3 == 0 {
				m.instance = fmt.Sprint("i", i)
			}
			members = append(members, m)
		}
		for range 400 {
			m := members[rnd.IntN(len(members))]
			switch n := rnd.IntN(100); {
			case n < 70:
				m.take(m.heartbeat(r, rnd.IntN(4) == 0))
			case n < 76: // the answer is lost
				m.heartbeat(r, rnd.IntN(2) == 0)
				m.missed = true
			case n < 80: // a process begins anew
				if m.instance == "" {
					m.id += "x"
				}
				m.joined, m.owned, m.assigned = false, nil, nil
			case n < 83 && m.joined:
				m.epoch = leaves
				m.heartbeat(r, false)
				m.joined = false
			case n < 90:
				r.advance(r.now.Add(time.Duration(rnd.IntN(20000)) * time.Millisecond))
			case n < 92:
				topics[rnd.IntN(3)] = fmt.Sprintf("%s:%d", []string{"T", "U", "V"}[rnd.IntN(3)], 1+rnd.IntN(9))
				slices.Sort(topics)
				r.setTopics(slices.CompactFunc(slices.Clone(topics), func(a, b string) bool { return a[0] == b[0] }))
			case n < 95:
				r.hold = true
			case n < 98 && r.hold:
				r.hold = false
				r.release()
			case r.hold:
				r.hold = false
				r.fail(ErrNotCoordinator)
				r.checkConsumers()
			}
			r.out.Reset()
			workedOnByOne(t, seed, r, members)
		}
		if r.hold {
			r.hold = false
			r.release()
		}
		for cut := r.hw; cut >= max(0, r.hw-30); cut-- {
			whole, part := NewShard(r.config), NewShard(r.config)
			for i, rec := range r.log[:r.hw] {
				whole.Replay(int64(i), -1, rec.rec)
				if i < cut {
					part.Replay(int64(i), -1, rec.rec)
				}
			}
			whole.Revert(int64(cut))
			if got, want := whole.dump(), part.dump(); got != want {
				t.Fatalf("seed %d: a revert to %d gives\n%s\nand a fresh replay\n%s", seed, cut, got, want)
			}
			whole.Release()
			part.Release()
		}

		topics = []string{"T:8", "U:5", "V:3"}
		r.setTopics(topics)
		for range 24 {
			r.advance(r.now.Add(5 * time.Second))
			for _, m := range members {
				m.take(m.heartbeat(r, false))
			}
		}
		d := r.s.DescribeConsumerGroup("g")
		if d.State != Stable || d.Epoch != d.TargetEpoch {
			t.Fatalf("seed %d: the group is %s in epoch %d, target %d\n%s", seed, d.State, d.Epoch, d.TargetEpoch, r.s.dump())
		}
		owned, least, most := 0, 100, 0
		for _, m := range d.Members {
			n := 0
			for _, topic := range m.Assigned {
				n += len(topic.Partitions)
				if !slices.Contains(m.Topics, topic.Topic) {
					t.Fatalf("seed %d: %s has %s, which it does not subscribe to", seed, m.ID, topic.Topic)
				}
			}
			owned, least, most = owned+n, min(least, n), max(most, n)
		}
		if owned != 16 || alike && most-least > 1 {
			t.Fatalf("seed %d: %d of 16 partitions are assigned, %d to %d each\n%s", seed, owned, least, most, strings.TrimSpace(r.out.String()))
		}
	}
}
