package group

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
)

// The assignors of the server, by the names that members may ask for.
const (
	assignorUniform = "uniform"
	assignorRange   = "range"
)

// assignors work out who is to get which partitions. Each gives every partition of a topic that somebody subscribes to
// to one subscriber, and breaks ties in the order of member ids and partitions, so that a simulation can be replayed.
var assignors = map[string]func([]assignee, map[[16]byte]int32) []ownedSet{
	assignorUniform: assignUniform,
	assignorRange:   assignRange,
}

// Assignors are the names of those there are, the default first.
func Assignors() []string { return []string{assignorUniform, assignorRange} }

// An assignee is a member as an assignor sees it.
type assignee struct {
	id         string
	instanceID *string
	topics     [][16]byte // those that exist, sorted
	had        []TopicPartitions
}

// An ownedSet is the partitions of one member.
type ownedSet map[partitionID]struct{}

// assignRange gives each subscriber of a topic a run of its partitions, the first ones one more where they do not
// divide: static members by instance id, then the others by member id. It looks at nothing that was.
func assignRange(members []assignee, partitions map[[16]byte]int32) []ownedSet {
	order := make([]int, len(members))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		ma, mb := &members[a], &members[b]
		switch {
		case ma.instanceID != nil && mb.instanceID != nil:
			return strings.Compare(*ma.instanceID, *mb.instanceID)
		case ma.instanceID != nil:
			return -1
		case mb.instanceID != nil:
			return 1
		}
		return strings.Compare(ma.id, mb.id)
	})
	subscribers := map[[16]byte][]int{}
	for _, i := range order {
		for _, topic := range members[i].topics {
			subscribers[topic] = append(subscribers[topic], i)
		}
	}
	target := emptySets(len(members))
	for topic, who := range subscribers {
		each, more := partitions[topic]/int32(len(who)), partitions[topic]%int32(len(who))
		next := int32(0)
		for k, i := range who {
			n := each
			if int32(k) < more {
				n++
			}
			for range n {
				target[i][partitionID{topic, next}] = struct{}{}
				next++
			}
		}
	}
	return target
}

func emptySets(n int) []ownedSet {
	sets := make([]ownedSet, n)
	for i := range sets {
		sets[i] = ownedSet{}
	}
	return sets
}

// assignUniform makes the members' shares as equal as their subscriptions allow, and then moves as little as that lets.
func assignUniform(members []assignee, partitions map[[16]byte]int32) []ownedSet {
	if len(members) == 0 {
		return nil
	}
	alike := !slices.ContainsFunc(members, func(m assignee) bool { return !slices.Equal(m.topics, members[0].topics) })
	if alike {
		return assignAlike(members, partitions)
	}
	return assignMixed(members, partitions)
}

// assignAlike is for members that all subscribe to the same topics: each gets the same number, some one more, and keeps
// of what it had as much as that.
func assignAlike(members []assignee, partitions map[[16]byte]int32) []ownedSet {
	target := emptySets(len(members))
	left := ownedSet{}
	for _, topic := range members[0].topics {
		for p := range partitions[topic] {
			left[partitionID{topic, p}] = struct{}{}
		}
	}
	order := byID(members)
	quota, more := len(left)/len(members), len(left)%len(members)
	most := make([]int, len(members)) // how much each may have
	for _, i := range order {
		most[i] = quota
		for p := range eachPartition(members[i].had) {
			if _, ok := left[p]; !ok {
				continue // gone, or not subscribed to any more
			}
			if len(target[i]) == most[i] {
				if most[i] > quota || more == 0 {
					break
				}
				most[i]++
				more--
			}
			target[i][p] = struct{}{}
			delete(left, p)
		}
	}
	for _, i := range order {
		if more > 0 && most[i] == quota {
			most[i]++
			more--
		}
	}
	next := 0
	for p := range eachPartition(listOf(left)) {
		for len(target[order[next]]) == most[order[next]] {
			next = (next + 1) % len(order)
		}
		target[order[next]][p] = struct{}{}
		next = (next + 1) % len(order)
	}
	return target
}

func byID(members []assignee) []int {
	order := make([]int, len(members))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return strings.Compare(members[a].id, members[b].id) })
	return order
}

// mixed is the work of assignMixed.
type mixed struct {
	members     []assignee
	order       []int
	subscribers map[[16]byte][]int
	target      []ownedSet
	has         []map[[16]byte]int // how many partitions of a topic each member has
}

// assignMixed is for members with different subscriptions. Everyone keeps what it had; what nobody has goes to the
// subscriber with the least; then partitions move, along chains of members if need be, from who has more to who has at
// least two less, until none can.
func assignMixed(members []assignee, partitions map[[16]byte]int32) []ownedSet {
	m := &mixed{members: members, order: byID(members), subscribers: map[[16]byte][]int{}, target: emptySets(len(members)), has: make([]map[[16]byte]int, len(members))}
	for _, i := range m.order {
		m.has[i] = map[[16]byte]int{}
		for _, topic := range members[i].topics {
			m.subscribers[topic] = append(m.subscribers[topic], i)
		}
	}
	left := map[partitionID]struct{}{}
	for topic := range m.subscribers {
		for p := range partitions[topic] {
			left[partitionID{topic, p}] = struct{}{}
		}
	}
	for _, i := range m.order {
		for p := range eachPartition(members[i].had) {
			_, ok := left[p]
			if _, subscribed := slices.BinarySearchFunc(members[i].topics, p.topic, func(a, b [16]byte) int { return bytes.Compare(a[:], b[:]) }); ok && subscribed {
				m.give(i, p)
				delete(left, p)
			}
		}
	}
	for p := range eachPartition(listOf(left)) {
		m.give(slices.MinFunc(m.subscribers[p.topic], func(a, b int) int { return cmp.Compare(len(m.target[a]), len(m.target[b])) }), p)
	}
	for m.level() {
	}
	return m.target
}

func (m *mixed) give(to int, p partitionID) {
	m.target[to][p] = struct{}{}
	m.has[to][p.topic]++
}

// move hands the last partition of a topic that from has to another member.
func (m *mixed) move(from, to int, topic [16]byte) {
	last := partitionID{topic, -1}
	for p := range m.target[from] {
		if p.topic == topic && p.partition > last.partition {
			last = p
		}
	}
	delete(m.target[from], last)
	m.has[from][topic]--
	m.give(to, last)
}

// level finds the member with the most that can be relieved, and relieves it of one partition.
func (m *mixed) level() bool {
	most := slices.Clone(m.order)
	slices.SortStableFunc(most, func(a, b int) int { return cmp.Compare(len(m.target[b]), len(m.target[a])) })
	least, stuck := len(m.target[most[len(most)-1]]), map[int]bool{}
	for _, from := range most {
		if len(m.target[from]) < least+2 {
			return false
		}
		if !stuck[from] && m.relieve(from, stuck) {
			return true
		}
	}
	return false
}

// A hop is how a chain reaches a member: from another, by a partition of a topic.
type hop struct {
	from  int
	topic [16]byte
}

// relieve looks for the shortest chain from a member to one that has at least two partitions less. Where there is none, those
// that were reached are stuck: they are tried after it, have no more than it, and reach no others.
func (m *mixed) relieve(start int, stuck map[int]bool) bool {
	reached := map[int]hop{start: {-1, [16]byte{}}}
	tried := map[[16]byte]bool{}
	queue := []int{start}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		for _, topic := range m.members[at].topics {
			if m.has[at][topic] == 0 || tried[topic] {
				continue
			}
			tried[topic] = true
			for _, to := range m.subscribers[topic] {
				if _, ok := reached[to]; ok || stuck[to] {
					continue
				}
				reached[to] = hop{at, topic}
				if len(m.target[to]) <= len(m.target[start])-2 {
					for who := to; reached[who].from >= 0; who = reached[who].from {
						m.move(reached[who].from, who, reached[who].topic)
					}
					return true
				}
				queue = append(queue, to)
			}
		}
	}
	for who := range reached {
		stuck[who] = true
	}
	return false
}
