package metadata

import (
	"fmt"
	"slices"
)

// Leader recovery states.
const (
	Recovered  int8 = 0
	Recovering int8 = 1
)

// NoLeader is the leader of a partition that has none.
const NoLeader int32 = -1

// Partition is the state of one partition. It must not be changed.
type Partition struct {
	ID       int32
	Replicas []int32
	// Directories says where each replica is, in the order of Replicas.
	Directories      []UUID
	ISR              []int32
	RemovingReplicas []int32
	AddingReplicas   []int32
	// ELR are the eligible leader replicas, LastKnownELR the leader noted down when there was none left.
	ELR            []int32
	LastKnownELR   []int32
	Leader         int32
	LeaderEpoch    int32
	PartitionEpoch int32
	RecoveryState  int8
}

// Reassigning says that replicas are being added or removed.
func (p *Partition) Reassigning() bool {
	return len(p.AddingReplicas) > 0 || len(p.RemovingReplicas) > 0
}

// Directory is where the replica on a broker is; false when the broker has none.
func (p *Partition) Directory(broker int32) (UUID, bool) {
	at := slices.Index(p.Replicas, broker)
	if at < 0 || at >= len(p.Directories) {
		return UUID{}, false
	}
	return p.Directories[at], true
}

// Record is the partition as a record.
func (p *Partition) Record(topic UUID) *PartitionRecord {
	return &PartitionRecord{
		PartitionID: p.ID, TopicID: topic, Replicas: p.Replicas, ISR: p.ISR, RemovingReplicas: p.RemovingReplicas, AddingReplicas: p.AddingReplicas,
		Leader: p.Leader, LeaderRecoveryState: p.RecoveryState, LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch,
		Directories: p.Directories, EligibleLeaderReplicas: nilIfEmpty(p.ELR), LastKnownELR: nilIfEmpty(p.LastKnownELR),
	}
}

func nilIfEmpty(ids []int32) []int32 {
	if len(ids) == 0 {
		return nil
	}
	return ids
}

// Topic is a topic with its partitions. It must not be changed.
type Topic struct {
	ID         UUID
	Name       string
	partitions Map[int32, *Partition]
}

// Partitions are the topic's partitions by number.
func (t *Topic) Partitions() Map[int32, *Partition] { return t.partitions }

// Partition returns one partition.
func (t *Topic) Partition(id int32) (*Partition, bool) { return t.partitions.Get(id) }

// NumPartitions is how many partitions the topic has.
func (t *Topic) NumPartitions() int { return t.partitions.Len() }

// Topics are all topics by name.
func (i *Image) Topics() Map[string, *Topic] { return i.topics }

// Topic returns a topic by name.
func (i *Image) Topic(name string) (*Topic, bool) { return i.topics.Get(name) }

// TopicByID returns a topic by id.
func (i *Image) TopicByID(id UUID) (*Topic, bool) {
	name, ok := i.topicNames.Get(id)
	if !ok {
		return nil, false
	}
	return i.topics.Get(name)
}

// Partition returns a partition of the topic with this name.
func (i *Image) Partition(topic string, partition int32) (*Partition, bool) {
	t, ok := i.topics.Get(topic)
	if !ok {
		return nil, false
	}
	return t.Partition(partition)
}

func newPartition(r *PartitionRecord) *Partition {
	return &Partition{
		ID: r.PartitionID, Replicas: r.Replicas, Directories: directoriesFor(r.Replicas, r.Directories), ISR: r.ISR,
		RemovingReplicas: r.RemovingReplicas, AddingReplicas: r.AddingReplicas, ELR: r.EligibleLeaderReplicas, LastKnownELR: r.LastKnownELR,
		Leader: r.Leader, LeaderEpoch: r.LeaderEpoch, PartitionEpoch: r.PartitionEpoch, RecoveryState: r.LeaderRecoveryState,
	}
}

// directoriesFor fills in Migrating where a record does not say where the replicas are.
func directoriesFor(replicas []int32, dirs []UUID) []UUID {
	if len(dirs) > 0 {
		return dirs
	}
	return make([]UUID, len(replicas))
}

// Change is the partition after a change record.
func (p *Partition) Change(r *PartitionChangeRecord) *Partition {
	n := *p
	if r.ISR != nil {
		n.ISR = r.ISR
	}
	if r.Leader != LeaderUnchanged {
		n.Leader = r.Leader
		n.LeaderEpoch++
	}
	if r.Replicas != nil {
		n.Replicas = r.Replicas
		n.Directories = directoriesFor(r.Replicas, r.Directories)
	} else if r.Directories != nil {
		n.Directories = r.Directories
	}
	if r.RemovingReplicas != nil {
		n.RemovingReplicas = r.RemovingReplicas
	}
	if r.AddingReplicas != nil {
		n.AddingReplicas = r.AddingReplicas
	}
	if r.LeaderRecoveryState != -1 {
		n.RecoveryState = r.LeaderRecoveryState
	}
	if r.EligibleLeaderReplicas != nil {
		n.ELR = r.EligibleLeaderReplicas
	}
	if r.LastKnownELR != nil {
		n.LastKnownELR = r.LastKnownELR
	}
	n.PartitionEpoch++
	return &n
}

// NewPartitionChange is a change record that changes nothing yet.
func NewPartitionChange(topic UUID, partition int32) *PartitionChangeRecord {
	return &PartitionChangeRecord{TopicID: topic, PartitionID: partition, Leader: LeaderUnchanged, LeaderRecoveryState: -1}
}

func (i *Image) topicRecords(yield func(Record) bool) bool {
	for _, t := range i.topics.All() {
		if !yield(&TopicRecord{Name: t.Name, TopicID: t.ID}) {
			return false
		}
		for _, p := range t.partitions.All() {
			if !yield(p.Record(t.ID)) {
				return false
			}
		}
	}
	return true
}

// replayTopics applies a record about topics; the answer says what is wrong, "" for nothing.
func (d *Delta) replayTopics(rec Record) string {
	i := &d.next
	switch r := rec.(type) {
	case *TopicRecord:
		if old, ok := i.topics.Get(r.Name); ok {
			return fmt.Sprintf("topic %s exists with id %s", r.Name, old.ID)
		}
		if name, ok := i.topicNames.Get(r.TopicID); ok {
			return fmt.Sprintf("id %s is taken by topic %s", r.TopicID, name)
		}
		i.topics = i.topics.Set(r.Name, &Topic{ID: r.TopicID, Name: r.Name, partitions: newOrderedMap[int32, *Partition]()})
		i.topicNames = i.topicNames.Set(r.TopicID, r.Name)
		d.topic(r.TopicID, r.Name).Created = true
	case *PartitionRecord:
		return d.setPartition(r.TopicID, r.PartitionID, func(*Partition) *Partition { return newPartition(r) }, false)
	case *PartitionChangeRecord:
		return d.setPartition(r.TopicID, r.PartitionID, func(p *Partition) *Partition { return p.Change(r) }, true)
	case *RemoveTopicRecord:
		name, ok := i.topicNames.Get(r.TopicID)
		if !ok {
			return fmt.Sprintf("no topic has id %s", r.TopicID)
		}
		i.topics = i.topics.Delete(name)
		i.topicNames = i.topicNames.Delete(r.TopicID)
		resource := ConfigResource{ResourceTopic, name}
		if _, ok := i.configs.Get(resource); ok {
			i.configs = i.configs.Delete(resource)
			d.Configs[resource] = true
		}
		d.topic(r.TopicID, name).Removed = true
	case *ClearELRRecord:
		if r.TopicName == "" {
			for name := range i.topics.All() {
				d.clearELR(name)
			}
			return ""
		}
		if _, ok := i.topics.Get(r.TopicName); !ok {
			return fmt.Sprintf("no topic is called %s", r.TopicName)
		}
		d.clearELR(r.TopicName)
	}
	return ""
}

func (d *Delta) setPartition(topic UUID, id int32, change func(*Partition) *Partition, must bool) string {
	i := &d.next
	t, ok := i.TopicByID(topic)
	if !ok {
		return fmt.Sprintf("no topic has id %s", topic)
	}
	old, ok := t.Partition(id)
	if must && !ok {
		return fmt.Sprintf("topic %s has no partition %d", t.Name, id)
	}
	changed := *t
	changed.partitions = t.partitions.Set(id, change(old))
	i.topics = i.topics.Set(t.Name, &changed)
	d.topic(topic, t.Name).Partitions[id] = true
	return ""
}

// clearELR forgets the eligible leaders of a topic, which counts as a change of each partition that had any.
func (d *Delta) clearELR(name string) {
	t, _ := d.next.topics.Get(name)
	for id, p := range t.partitions.All() {
		if len(p.ELR) == 0 && len(p.LastKnownELR) == 0 {
			continue
		}
		d.setPartition(t.ID, id, func(p *Partition) *Partition {
			n := *p
			n.ELR, n.LastKnownELR = nil, nil
			n.PartitionEpoch++
			return &n
		}, true)
	}
}
