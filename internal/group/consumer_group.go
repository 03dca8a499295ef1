package group

import (
	"bytes"
	"slices"
	"strings"

	"github.com/stelelog/stele/internal/shard"
)

// A consumerGroup is the replicated state of one group of the consumer protocol (KIP-848): what its records say, and
// what follows from the newest of them. It is there while any record of it is.
//
// Invariants, after each write as a whole: no partition has two owners; a member's epoch is at most the target's, and
// the target's at most the group's.
type consumerGroup struct {
	id       string
	epoch    *shard.Table[struct{}, *ConsumerGroupValue]
	target   *shard.Table[struct{}, *ConsumerTargetValue]
	members  *shard.Table[string, *ConsumerMemberValue]
	targets  *shard.Table[string, *ConsumerTargetMemberValue]
	currents *shard.Table[string, *ConsumerCurrentValue]
	regexes  *shard.Table[string, *ConsumerRegexValue]
	oldHash  *shard.Table[struct{}, struct{}] // a ConsumerPartitionsRecord is there

	// What follows from the newest state.
	owners     map[partitionID]string // who has a partition, or has not yet let go of it
	instances  map[string]string      // member ids of static members
	byTopic    map[string]int         // how many members name a topic
	byRegex    map[string]int         // how many have a regular expression
	assignors  map[string]int         // how many prefer an assignor
	classic    int                    // members that speak the classic protocol
	unfinished int                    // members that are revoking or waiting
}

// A partitionID names a partition by its topic's id, as assignments do.
type partitionID struct {
	topic     [16]byte
	partition int32
}

// firstConsumerEpoch is the epoch of a group, and of its target, before the first one is written (KAFKA-20268).
const firstConsumerEpoch = 1

func newConsumerGroup(id string, h *held) *consumerGroup {
	g := &consumerGroup{
		id:     id,
		epoch:  shard.NewTable(shard.Watch[struct{}, *ConsumerGroupValue]{}),
		target: shard.NewTable(shard.Watch[struct{}, *ConsumerTargetValue]{}), oldHash: shard.NewTable(shard.Watch[struct{}, struct{}]{}),
		owners: map[partitionID]string{}, instances: map[string]string{}, byTopic: map[string]int{}, byRegex: map[string]int{}, assignors: map[string]int{},
	}
	g.members = shard.NewTable(shard.Watch[string, *ConsumerMemberValue]{
		Changed: func(id string, was, is shard.Value[*ConsumerMemberValue]) {
			if was.OK {
				g.countMember(id, was.V, -1)
			}
			if is.OK {
				g.countMember(id, is.V, 1)
			}
		},
		Size: consumerMemberBytes, Held: h.add,
	})
	g.currents = shard.NewTable(shard.Watch[string, *ConsumerCurrentValue]{
		Changed: func(id string, was, is shard.Value[*ConsumerCurrentValue]) {
			if was.OK {
				g.disown(id, was.V)
			}
			if is.OK {
				g.own(id, is.V)
			}
		},
		Size: currentBytes, Held: h.add,
	})
	g.targets = shard.NewTable(shard.Watch[string, *ConsumerTargetMemberValue]{Size: targetBytes, Held: h.add})
	g.regexes = shard.NewTable(shard.Watch[string, *ConsumerRegexValue]{Size: regexBytes, Held: h.add})
	return g
}

func add[K comparable](counts map[K]int, key K, n int) {
	if counts[key] += n; counts[key] == 0 {
		delete(counts, key)
	}
}

func (g *consumerGroup) countMember(id string, v *ConsumerMemberValue, n int) {
	if v.InstanceID != nil {
		if n > 0 {
			g.instances[*v.InstanceID] = id
		} else if g.instances[*v.InstanceID] == id {
			delete(g.instances, *v.InstanceID)
		}
	}
	for _, topic := range v.Topics {
		add(g.byTopic, topic, n)
	}
	if regex := deref(v.Regex); regex != "" {
		add(g.byRegex, regex, n)
	}
	if assignor := deref(v.Assignor); assignor != "" {
		add(g.assignors, assignor, n)
	}
	if v.Classic != nil {
		g.classic += n
	}
}

func (g *consumerGroup) own(id string, v *ConsumerCurrentValue) {
	for _, list := range [][]TopicPartitions{v.Assigned, v.Revoking} {
		for p := range eachPartition(list) {
			g.owners[p] = id
		}
	}
	if v.State != memberStable {
		g.unfinished++
	}
}

func (g *consumerGroup) disown(id string, v *ConsumerCurrentValue) {
	for _, list := range [][]TopicPartitions{v.Assigned, v.Revoking} {
		for p := range eachPartition(list) {
			if g.owners[p] == id {
				delete(g.owners, p)
			}
		}
	}
	if v.State != memberStable {
		g.unfinished--
	}
}

// eachPartition goes through the partitions of a list, in its order.
func eachPartition(list []TopicPartitions) func(func(partitionID) bool) {
	return func(yield func(partitionID) bool) {
		for _, t := range list {
			for _, partition := range t.Partitions {
				if !yield(partitionID{t.TopicID, partition}) {
					return
				}
			}
		}
	}
}

// vacant says that nothing is left of the group, in its newest and in its committed state.
func (g *consumerGroup) vacant() bool {
	return g.epoch.Vacant() && g.target.Vacant() && g.members.Vacant() && g.targets.Vacant() && g.currents.Vacant() && g.regexes.Vacant() && g.oldHash.Vacant()
}

// exists says whether requests see a group of the consumer protocol here.
func (g *consumerGroup) exists() bool {
	return g != nil && (len(g.epoch.Newest()) > 0 || len(g.members.Newest()) > 0)
}

// groupEpoch is the epoch of the group, and what its topics looked like in it.
func (g *consumerGroup) groupEpoch() (epoch int32, hash int64) {
	if v, ok := g.epoch.Get(struct{}{}); ok {
		return v.Epoch, v.MetadataHash
	}
	return firstConsumerEpoch, 0
}

// targetEpoch is the epoch of the target assignment, and when it was worked out.
func (g *consumerGroup) targetEpoch() (epoch int32, at int64) {
	if v, ok := g.target.Get(struct{}{}); ok {
		return v.Epoch, v.Timestamp
	}
	return firstConsumerEpoch, 0
}

// targetOf is what a member is to get.
func (g *consumerGroup) targetOf(member string) []TopicPartitions {
	if v, ok := g.targets.Get(member); ok {
		return v.Partitions
	}
	return nil
}

// currentOf is what a member has; before it has anything its epoch is 0.
func (g *consumerGroup) currentOf(member string) *ConsumerCurrentValue {
	if v, ok := g.currents.Get(member); ok {
		return v
	}
	return &ConsumerCurrentValue{}
}

// checkMember finds the member behind a request: ErrUnknownMemberID, or ErrFencedInstanceID when its instance id has
// passed to another member id.
func (g *consumerGroup) checkMember(id string, instanceID *string) (*ConsumerMemberValue, error) {
	if instanceID != nil {
		switch owner, ok := g.instances[*instanceID]; {
		case !ok:
			return nil, ErrUnknownMemberID
		case owner != id:
			return nil, ErrFencedInstanceID
		}
	}
	if m, ok := g.members.Get(id); ok {
		return m, nil
	}
	return nil, ErrUnknownMemberID
}

// state is the group's, as it is named on the wire.
func (g *consumerGroup) state() string {
	epoch, _ := g.groupEpoch()
	target, _ := g.targetEpoch()
	switch {
	case len(g.members.Newest()) == 0:
		return Empty
	case epoch > target:
		return Assigning
	case g.unfinished > 0:
		return Reconciling
	}
	for id := range g.members.Newest() {
		if g.currentOf(id).Epoch != target {
			return Reconciling
		}
	}
	return Stable
}

// subscribes says whether any member subscribes to a topic, by its name or by what its regular expression matched.
func (g *consumerGroup) subscribes(topic string) bool {
	if g.byTopic[topic] > 0 {
		return true
	}
	for regex := range g.byRegex {
		if v, ok := g.regexes.Get(regex); ok && slices.Contains(v.Topics, topic) {
			return true
		}
	}
	return false
}

// consumer gives the group that a record is of, and makes it.
func (r *replicated) consumer(id string) *consumerGroup {
	g := r.consumers[id]
	if g == nil {
		g = newConsumerGroup(id, r.held)
		r.consumers[id] = g
		r.held.add(consumerGroupSize)
	}
	return g
}

// replayConsumer applies a record of a consumer group. Tombstones of what is not there are ordinary: compaction may
// have removed the values.
func (r *replicated) replayConsumer(offset int64, rec Record) {
	switch rec := rec.(type) {
	case *ConsumerGroupRecord:
		g := r.consumer(rec.Group)
		setOrRemove(r, offset, g, g.epoch, struct{}{}, rec.Value, rec.Value != nil)
	case *ConsumerPartitionsRecord:
		g := r.consumer(rec.Group)
		setOrRemove(r, offset, g, g.oldHash, struct{}{}, struct{}{}, rec.Present)
	case *ConsumerMemberRecord:
		g := r.consumer(rec.Group)
		setOrRemove(r, offset, g, g.members, rec.Member, rec.Value, rec.Value != nil)
	case *ConsumerTargetRecord:
		g := r.consumer(rec.Group)
		setOrRemove(r, offset, g, g.target, struct{}{}, rec.Value, rec.Value != nil)
	case *ConsumerTargetMemberRecord:
		g := r.consumer(rec.Group)
		setOrRemove(r, offset, g, g.targets, rec.Member, rec.Value, rec.Value != nil)
	case *ConsumerCurrentRecord:
		g := r.consumer(rec.Group)
		setOrRemove(r, offset, g, g.currents, rec.Member, rec.Value, rec.Value != nil)
	case *ConsumerRegexRecord:
		g := r.consumer(rec.Group)
		setOrRemove(r, offset, g, g.regexes, rec.Regex, rec.Value, rec.Value != nil)
	}
}

func setOrRemove[K comparable, V any](r *replicated, offset int64, g *consumerGroup, t *shard.Table[K, V], key K, value V, set bool) {
	if set {
		t.Set(key, value)
	} else {
		t.Remove(key)
	}
	r.journal.Note(offset, t, func() {
		if g.vacant() && r.consumers[g.id] == g {
			delete(r.consumers, g.id)
			r.held.add(-consumerGroupSize)
		}
	})
}

func consumerMemberBytes(id string, v *ConsumerMemberValue) int64 {
	n := int64(memberSize + 2*len(id) + len(v.ClientID) + len(v.ClientHost) + len(deref(v.Regex)) + len(deref(v.InstanceID)) + len(deref(v.RackID)) + len(deref(v.Assignor)))
	for _, topic := range v.Topics {
		n += int64(len(topic) + 16)
	}
	if v.Classic != nil {
		for _, p := range v.Classic.Protocols {
			n += int64(protocolSize + len(p.Name) + len(p.Metadata))
		}
	}
	return n
}

func targetBytes(id string, v *ConsumerTargetMemberValue) int64 {
	return int64(len(id)) + assignedBytes(v.Partitions)
}

func currentBytes(id string, v *ConsumerCurrentValue) int64 {
	return int64(len(id)) + 2*(assignedBytes(v.Assigned)+assignedBytes(v.Revoking))
}

func regexBytes(regex string, v *ConsumerRegexValue) int64 {
	n := int64(len(regex) + protocolSize)
	for _, topic := range v.Topics {
		n += int64(len(topic) + 16)
	}
	return n
}

func assignedBytes(list []TopicPartitions) int64 {
	n := int64(0)
	for _, t := range list {
		n += int64(64 + 8*len(t.Partitions))
	}
	return n
}

// An ownership is partitions with the epochs in which a member got them.
type ownership map[partitionID]int32

// ownershipOf reads what a member has. Where epochs are not written, each partition counts as of the member's own.
func ownershipOf(list []TopicPartitions, epoch int32) ownership {
	o := ownership{}
	for _, t := range list {
		for i, partition := range t.Partitions {
			at := max(epoch, 0)
			if t.Epochs != nil {
				at = t.Epochs[i]
			}
			o[partitionID{t.TopicID, partition}] = at
		}
	}
	return o
}

// list is the ownership as it is written, sorted.
func (o ownership) list() []TopicPartitions {
	list := listOf(o)
	for i := range list {
		t := &list[i]
		t.Epochs = make([]int32, len(t.Partitions))
		for k, partition := range t.Partitions {
			t.Epochs[k] = o[partitionID{t.TopicID, partition}]
		}
	}
	return list
}

// listOf sorts a set of partitions and gathers them by topic.
func listOf[V any](set map[partitionID]V) []TopicPartitions {
	all := make([]partitionID, 0, len(set))
	for p := range set {
		all = append(all, p)
	}
	slices.SortFunc(all, comparePartitions)
	var list []TopicPartitions
	for _, p := range all {
		if n := len(list); n == 0 || list[n-1].TopicID != p.topic {
			list = append(list, TopicPartitions{TopicID: p.topic})
		}
		last := &list[len(list)-1]
		last.Partitions = append(last.Partitions, p.partition)
	}
	return list
}

func comparePartitions(a, b partitionID) int {
	if c := bytes.Compare(a.topic[:], b.topic[:]); c != 0 {
		return c
	}
	return int(a.partition) - int(b.partition)
}

func samePartitions(a, b []TopicPartitions) bool {
	return slices.EqualFunc(a, b, func(a, b TopicPartitions) bool {
		return a.TopicID == b.TopicID && slices.Equal(a.Partitions, b.Partitions) && slices.Equal(a.Epochs, b.Epochs)
	})
}

// sortedNames sorts a subscription and drops repeats.
func sortedNames(names []string) []string {
	sorted := slices.Clone(names)
	slices.SortFunc(sorted, strings.Compare)
	return slices.Compact(sorted)
}
