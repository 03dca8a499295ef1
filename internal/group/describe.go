package group

import (
	"slices"
	"strings"
	"time"
)

// A DescribedGroup is one group as DescribeGroups shows it. A group that is not known has Err
// ErrGroupIDNotFound and the state Dead; versions below 6 show the state only.
type DescribedGroup struct {
	Group        string
	Err          error
	State        string
	ProtocolType string
	Protocol     string // "" unless Stable
	Members      []DescribedMember
}

// A DescribedMember is one member of a described group. Metadata is empty unless the group is Stable.
type DescribedMember struct {
	MemberID   string
	InstanceID *string
	ClientID   string
	ClientHost string
	Metadata   []byte
	Assignment []byte
}

// DescribeGroup shows a classic group as it is now. It may be answered at once.
func (s *Shard) DescribeGroup(now time.Time, id string) DescribedGroup {
	g := s.group(now, id)
	if g == nil {
		if s.simpleGroup(id) && !s.replicated.consumers[id].exists() {
			return DescribedGroup{Group: id, State: Empty}
		}
		return DescribedGroup{Group: id, Err: ErrGroupIDNotFound, State: Dead}
	}
	d := DescribedGroup{Group: id, State: g.state, ProtocolType: g.protocolType}
	if g.state == Stable {
		d.Protocol = deref(g.protocol)
	}
	for _, m := range g.members {
		dm := DescribedMember{
			MemberID:   m.id,
			InstanceID: m.instanceID,
			ClientID:   m.clientID,
			ClientHost: m.clientHost,
			Metadata:   []byte{},
			Assignment: append([]byte{}, m.assignment...),
		}
		if g.state == Stable {
			dm.Metadata = m.metadataOf(g.protocol)
		}
		d.Members = append(d.Members, dm)
	}
	return d
}

// simpleGroup says whether a group without members exists by its offsets, as far as they are committed.
func (s *Shard) simpleGroup(id string) bool {
	t := s.replicated.offsets[id]
	found := false
	if t != nil {
		t.CommittedKeys(func(TopicPartition) { found = true })
	}
	return found || len(s.replicated.open[id]) > 0
}

// The protocols of groups, as ListGroups names them.
const (
	ClassicType  = "classic"
	ConsumerType = "consumer"
)

// A ListedGroup is one group as ListGroups shows it. ProtocolType is "" for a simple group.
type ListedGroup struct {
	Group        string
	ProtocolType string
	State        string
	Type         string
}

// ListGroups lists the groups in the order of their ids. Filters are matched without regard to case, states
// also to blanks around them; an empty filter lets everything pass, an unknown word in it matches nothing.
// It may be answered at once.
func (s *Shard) ListGroups(now time.Time, states, types []string) []ListedGroup {
	var listed []ListedGroup
	for _, id := range s.groupIDs(now) {
		l := ListedGroup{Group: id, State: Empty, Type: ClassicType}
		if consumers := s.replicated.consumers[id]; consumers.exists() {
			l.ProtocolType, l.State, l.Type = consumerProtocolType, consumers.state(), ConsumerType
		} else if g := s.group(now, id); g != nil {
			l.ProtocolType, l.State = g.protocolType, g.state
		} else if !s.simpleGroup(id) {
			continue
		}
		if matches(states, l.State) && matches(types, l.Type) {
			listed = append(listed, l)
		}
	}
	return listed
}

func matches(filter []string, word string) bool {
	return len(filter) == 0 || slices.ContainsFunc(filter, func(f string) bool {
		return strings.EqualFold(strings.TrimSpace(f), word)
	})
}

// groupIDs lists every group, whether it has members, a record or offsets only.
func (s *Shard) groupIDs(now time.Time) []string {
	for _, id := range sortedKeys(s.replicated.groups.Newest()) {
		s.group(now, id) // made from its record, if it was not
	}
	ids := sortedKeys(s.soft.groups)
	for _, id := range s.groupsWithOffsets() {
		if s.soft.groups[id] == nil {
			ids = append(ids, id)
		}
	}
	for id := range s.replicated.consumers {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// Stats counts what a shard holds.
type Stats struct {
	Groups  map[string]int // by state; simple groups are Empty
	Members int
	Offsets int // committed ones, and those that are about to be
}

// Stats counts now.
func (s *Shard) Stats() Stats {
	st := Stats{Groups: map[string]int{}}
	for _, g := range s.soft.groups {
		st.Groups[g.state]++
		st.Members += len(g.members)
	}
	for id := range s.replicated.groups.Newest() {
		if s.soft.groups[id] == nil {
			st.Groups[Empty]++
		}
	}
	for _, g := range s.replicated.consumers {
		if g.exists() {
			st.Groups[g.state()]++
			st.Members += len(g.members.Newest())
		}
	}
	for id, t := range s.replicated.offsets {
		st.Offsets += len(t.Newest())
		if _, known := s.replicated.groups.Newest()[id]; !known && s.soft.groups[id] == nil && !s.replicated.consumers[id].exists() {
			st.Groups[Empty]++
		}
	}
	return st
}

// DeleteGroup removes an Empty group with all its offsets, also those of open transactions, in one write.
func (s *Shard) DeleteGroup(now time.Time, to ReplyTo, id string) Effects {
	var fx Effects
	reply := &DeleteReply{Group: id}
	g, consumers := s.group(now, id), s.replicated.consumers[id]
	switch {
	case g == nil && !consumers.exists() && !s.replicated.hasOffsets(id):
		reply.Err = ErrGroupIDNotFound
	case g != nil && g.state != Empty, consumers.exists() && len(consumers.members.Newest()) > 0:
		reply.Err = ErrNonEmptyGroup
	default:
		for _, tp := range s.partitionsOf(id) {
			fx.Append(offsetTombstone(id, tp))
		}
		if g != nil {
			s.removeGroup(g, &fx)
		}
		if consumers.exists() {
			s.deleteConsumer(consumers, &fx)
		}
	}
	fx.ReplyAfterCommit(to, reply)
	return fx
}
