package controller

import (
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/config"
	"github.com/stelelog/stele/internal/metadata"
)

// MetadataTopic is the name of the metadata log, which no topic may take.
const MetadataTopic = "__cluster_metadata"

// errTooManyRecords refuses a request as soon as it has asked for too much: the controller is everybody's.
var errTooManyRecords = faultf(ErrPolicyViolation, "the request needs more than %d records, one for each topic, partition and setting, which is all that one may have: ask for fewer at a time, and add partitions afterwards", MaxRecordsPerRequest)

// CreatedTopic is the outcome for one topic.
type CreatedTopic struct {
	Name              string
	TopicID           metadata.UUID
	NumPartitions     int32
	ReplicationFactor int16
	// Configs are the effective settings, by name.
	Configs []config.Entry
	Err     *Error
}

// CreateTopicsReply answers CreateTopics. Names that are refused at the door stand after all others.
type CreateTopicsReply struct{ Topics []CreatedTopic }

// CreateTopics makes topics; all that succeed are one batch. The caller has taken out what the principal
// may not create.
func (c *Controller) CreateTopics(at At, req *kmsg.CreateTopicsRequest) Result {
	o := c.begin(at)
	var reply CreateTopicsReply
	var refused []CreatedTopic
	count, told := map[string]int{}, map[string]bool{}
	total := 0
	for _, t := range req.Topics {
		count[t.Topic]++
		if n := max(int(t.NumPartitions), len(t.ReplicaAssignment)); n > 0 {
			total += n
		}
	}
	if total > MaxRecordsPerRequest {
		return failed(faultf(ErrPolicyViolation, "%d partitions in one request, at most %d are possible: ask for fewer at a time, and add partitions afterwards", total, MaxRecordsPerRequest))
	}
	for i := range req.Topics {
		t := &req.Topics[i]
		switch {
		case count[t.Topic] > 1:
			if !told[t.Topic] {
				told[t.Topic] = true
				refused = append(refused, CreatedTopic{Name: t.Topic, NumPartitions: -1, ReplicationFactor: -1, Err: faultf(ErrInvalidRequest, "the request names topic %s more than once", t.Topic)})
			}
		case t.Topic == MetadataTopic:
			refused = append(refused, CreatedTopic{Name: t.Topic, NumPartitions: -1, ReplicationFactor: -1, Err: faultf(ErrInvalidRequest, "topic %s cannot be created", t.Topic)})
		default:
			out, err := o.createOne(t)
			if err != nil {
				out = CreatedTopic{Name: t.Topic, NumPartitions: -1, ReplicationFactor: -1, Err: err}
			}
			reply.Topics = append(reply.Topics, out)
		}
		if len(o.recs) > MaxRecordsPerRequest {
			return failed(errTooManyRecords)
		}
	}
	reply.Topics = append(reply.Topics, refused...)
	if req.ValidateOnly {
		o.recs = nil
	}
	return o.result(true, reply)
}

func (o *op) createOne(t *kmsg.CreateTopicsRequestTopic) (CreatedTopic, *Error) {
	if err := o.checkName(t.Topic); err != nil {
		return CreatedTopic{}, err
	}
	overrides, recs, err := newTopicConfigs(t)
	if err != nil {
		return CreatedTopic{}, err
	}
	partitions, err := o.planPartitions(t)
	if err != nil {
		return CreatedTopic{}, err
	}
	if err := o.charge(len(partitions)); err != nil {
		return CreatedTopic{}, err
	}
	id := o.c.newTopicID()
	o.add(&metadata.TopicRecord{Name: t.Topic, TopicID: id})
	o.add(recs...)
	if _, set := overrides["min.insync.replicas"]; set && o.img.ELREnabled() {
		o.add(&metadata.ClearELRRecord{TopicName: t.Topic})
	}
	batch := make([]metadata.Record, 0, len(partitions))
	for i, replicas := range partitions {
		batch = append(batch, o.newPartition(id, int32(i), replicas))
	}
	o.add(batch...)
	return CreatedTopic{Name: t.Topic, TopicID: id, NumPartitions: int32(len(partitions)), ReplicationFactor: int16(len(partitions[0])),
		Configs: o.c.layers(o.img).DescribeTopic(overrides)}, nil
}

func newTopicConfigs(t *kmsg.CreateTopicsRequestTopic) (map[string]string, []metadata.Record, *Error) {
	overrides := map[string]string{}
	var recs []metadata.Record
	for _, cfg := range t.Configs {
		if cfg.Value == nil {
			return nil, nil, faultf(ErrInvalidConfig, "Null value not supported for topic configs: %s", cfg.Name)
		}
		overrides[cfg.Name] = *cfg.Value
		recs = append(recs, &metadata.ConfigRecord{ResourceType: metadata.ResourceTopic, ResourceName: t.Topic, Name: cfg.Name, Value: cfg.Value})
	}
	for name, value := range overrides {
		if len(value) > maxConfigLength {
			return nil, nil, faultf(ErrInvalidConfig, "the value of %s is longer than %d", name, maxConfigLength)
		}
	}
	if err := config.ValidateTopic(overrides); err != nil {
		return nil, nil, faultf(ErrInvalidConfig, "%v", err)
	}
	return overrides, recs, nil
}

// ValidTopicName says what is wrong with a topic's name, "" for nothing.
func ValidTopicName(name string) string {
	switch {
	case name == "":
		return "Topic name is invalid: the empty string is not allowed"
	case name == "." || name == "..":
		return "Topic name is invalid: '.' or '..' is not allowed"
	case len(name) > 249:
		return "Topic name is invalid: it is longer than 249 characters"
	}
	for _, r := range name {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-') {
			return "Topic name is invalid: '" + name + "' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
		}
	}
	return ""
}

func (o *op) checkName(name string) *Error {
	if wrong := ValidTopicName(name); wrong != "" {
		return faultf(ErrInvalidTopic, "%s", wrong)
	}
	if _, exists := o.img.Topic(name); exists {
		return faultf(ErrTopicAlreadyExists, "Topic '%s' already exists.", name)
	}
	if !strings.ContainsAny(name, "._") {
		return nil
	}
	// Metrics read . as _, so two such names must not differ in this alone.
	plain := strings.ReplaceAll(name, ".", "_")
	for other := range o.img.Topics().All() {
		if len(other) == len(name) && strings.ReplaceAll(other, ".", "_") == plain {
			return faultf(ErrInvalidTopic, "Topic '%s' collides with existing topic: %s", name, other)
		}
	}
	return nil
}

// planPartitions decides the replicas of a new topic's partitions.
func (o *op) planPartitions(t *kmsg.CreateTopicsRequestTopic) ([][]int32, *Error) {
	if len(t.ReplicaAssignment) > 0 {
		return o.assignedPartitions(t)
	}
	partitions, factor := int(t.NumPartitions), int(t.ReplicationFactor)
	if factor < -1 || factor == 0 {
		return nil, faultf(ErrInvalidReplicationFactor, "Replication factor must be larger than 0, or -1 to use the default value.")
	}
	if partitions < -1 || partitions == 0 {
		return nil, faultf(ErrInvalidPartitions, "Number of partitions was set to an invalid non-positive value.")
	}
	if partitions == -1 {
		partitions = o.c.opt.Static.Int("num.partitions")
	}
	if factor == -1 {
		factor = o.c.opt.Static.Int("default.replication.factor")
	}
	return o.placeAll(partitions, factor)
}

func (o *op) placeAll(partitions, factor int) ([][]int32, *Error) {
	p := newPlacer(o.img.Brokers(), o.c.opt.Rand)
	if err := p.check(factor); err != nil {
		return nil, err
	}
	out := make([][]int32, partitions)
	for i := range out {
		out[i] = p.place(factor)
		if !slices.ContainsFunc(out[i], o.activeBroker) {
			return nil, faultf(ErrInvalidReplicationFactor, "no replica chosen for partition %d is alive", i)
		}
	}
	return out, nil
}

func (o *op) activeBroker(id int32) bool {
	b, ok := o.img.Broker(id)
	return ok && b.Active()
}

func (o *op) assignedPartitions(t *kmsg.CreateTopicsRequestTopic) ([][]int32, *Error) {
	if t.ReplicationFactor != -1 || t.NumPartitions != -1 {
		return nil, faultf(ErrInvalidRequest, "a manual assignment was given, but replication factor or partitions are not -1")
	}
	out := make([][]int32, len(t.ReplicaAssignment))
	for _, a := range t.ReplicaAssignment {
		if a.Partition < 0 || int(a.Partition) >= len(out) {
			return nil, faultf(ErrInvalidReplicaAssignment, "partition numbers must be 0 to %d, %d is not", len(out)-1, a.Partition)
		}
		if out[a.Partition] != nil {
			return nil, faultf(ErrInvalidReplicaAssignment, "partition %d is assigned twice", a.Partition)
		}
		if err := o.checkAssignment(a.Replicas, len(t.ReplicaAssignment[0].Replicas)); err != nil {
			return nil, err
		}
		out[a.Partition] = a.Replicas
	}
	return out, nil
}

func (o *op) checkAssignment(replicas []int32, factor int) *Error {
	if len(replicas) == 0 {
		return faultf(ErrInvalidReplicaAssignment, "the assignment has no replicas")
	}
	for i, id := range replicas {
		b, ok := o.img.Broker(id)
		switch {
		case !ok:
			return faultf(ErrInvalidReplicaAssignment, "broker %d is not registered", id)
		case b.AllCordoned():
			return faultf(ErrInvalidReplicaAssignment, "all log directories of broker %d are cordoned", id)
		case slices.Contains(replicas[:i], id):
			return faultf(ErrInvalidReplicaAssignment, "broker %d is assigned twice", id)
		}
	}
	if len(replicas) != factor {
		return faultf(ErrInvalidReplicaAssignment, "the assignment has %d replicas, others have %d", len(replicas), factor)
	}
	if !slices.ContainsFunc(replicas, o.activeBroker) {
		return faultf(ErrInvalidReplicaAssignment, "no assigned broker is alive")
	}
	return nil
}

// newPartition is a partition at its start: its live replicas are in sync, the first of them leads.
func (o *op) newPartition(topic metadata.UUID, id int32, replicas []int32) *metadata.PartitionRecord {
	rec := &metadata.PartitionRecord{PartitionID: id, TopicID: topic, Replicas: replicas, Leader: metadata.NoLeader}
	for _, r := range replicas {
		if o.activeBroker(r) {
			rec.ISR = append(rec.ISR, r)
		}
		if o.img.MetadataVersion() >= metadata.LevelDirectories {
			rec.Directories = append(rec.Directories, o.directoryFor(r))
		}
	}
	if len(rec.ISR) > 0 {
		rec.Leader = rec.ISR[0]
	}
	return rec
}

// DeletedTopic is the outcome for one topic; Name is empty when an unknown id was asked for.
type DeletedTopic struct {
	Name    string
	TopicID metadata.UUID
	Err     *Error
}

// DeleteTopicsReply answers DeleteTopics.
type DeleteTopicsReply struct{ Topics []DeletedTopic }

// DeleteTopics removes topics by name or by id. The caller has taken out what the principal may not delete.
func (c *Controller) DeleteTopics(at At, req *kmsg.DeleteTopicsRequest) Result {
	if !c.opt.Static.Bool("delete.topic.enable") {
		return failed(faultf(ErrTopicDeletionDisabled, "delete.topic.enable is false"))
	}
	o := c.begin(at)
	wanted := req.Topics
	for _, name := range req.TopicNames {
		wanted = append(wanted, kmsg.DeleteTopicsRequestTopic{Topic: new(name)})
	}
	names, ids := map[string]int{}, map[metadata.UUID]int{}
	for _, t := range wanted {
		if t.Topic != nil {
			names[*t.Topic]++
			if topic, ok := o.img.Topic(*t.Topic); ok {
				ids[topic.ID]++
			}
		} else {
			ids[t.TopicID]++
		}
	}
	var reply DeleteTopicsReply
	answered := map[DeletedTopic]bool{}
	for _, t := range wanted {
		out := DeletedTopic{TopicID: t.TopicID}
		if t.Topic != nil {
			out.Name = *t.Topic
		}
		if answered[out] {
			continue
		}
		answered[out] = true
		out = o.deleteOne(out, t.Topic != nil, names, ids)
		reply.Topics = append(reply.Topics, out)
	}
	return o.result(true, reply)
}

func (o *op) deleteOne(out DeletedTopic, byName bool, names map[string]int, ids map[metadata.UUID]int) DeletedTopic {
	hasID := out.TopicID != metadata.ZeroUUID
	var topic *metadata.Topic
	var ok bool
	switch {
	case byName == hasID:
		out.Err = faultf(ErrInvalidRequest, "a topic is named either by name or by id")
		return out
	case byName:
		if topic, ok = o.c.img.Topic(out.Name); !ok {
			out.Err = faultf(ErrUnknownTopicOrPartition, "no topic %s", out.Name)
		}
	default:
		if topic, ok = o.c.img.TopicByID(out.TopicID); !ok {
			out.Err = faultf(ErrUnknownTopicID, "no topic has id %s", out.TopicID)
		}
	}
	if names[out.Name] > 1 && byName || topic != nil && ids[topic.ID] > 1 || !byName && ids[out.TopicID] > 1 {
		out.Err = faultf(ErrInvalidRequest, "the request names the topic more than once")
	}
	if topic != nil {
		out.Name, out.TopicID = topic.Name, topic.ID
	}
	if out.Err == nil {
		out.Err = o.charge(topic.NumPartitions())
	}
	if out.Err == nil {
		o.add(&metadata.RemoveTopicRecord{TopicID: topic.ID})
	}
	return out
}

// GrownTopic is the outcome for one topic.
type GrownTopic struct {
	Name string
	Err  *Error
}

// CreatePartitionsReply answers CreatePartitions, names given twice last.
type CreatePartitionsReply struct{ Topics []GrownTopic }

// CreatePartitions adds partitions to topics.
func (c *Controller) CreatePartitions(at At, req *kmsg.CreatePartitionsRequest) Result {
	o := c.begin(at)
	count := map[string]int{}
	for _, t := range req.Topics {
		count[t.Topic]++
	}
	var reply CreatePartitionsReply
	for name, n := range count {
		if n > 1 {
			reply.Topics = append(reply.Topics, GrownTopic{name, faultf(ErrInvalidRequest, "the request names topic %s more than once", name)})
		}
	}
	slices.SortFunc(reply.Topics, func(a, b GrownTopic) int { return strings.Compare(a.Name, b.Name) })
	var done []GrownTopic
	for i := range req.Topics {
		if t := &req.Topics[i]; count[t.Topic] == 1 {
			done = append(done, GrownTopic{t.Topic, o.growOne(t)})
		}
		if len(o.recs) > MaxRecordsPerRequest {
			return failed(errTooManyRecords)
		}
	}
	reply.Topics = append(done, reply.Topics...)
	if req.ValidateOnly {
		o.recs = nil
	}
	return o.result(true, reply)
}

func (o *op) growOne(t *kmsg.CreatePartitionsRequestTopic) *Error {
	topic, ok := o.img.Topic(t.Topic)
	if !ok {
		return faultf(ErrUnknownTopicOrPartition, "no topic %s", t.Topic)
	}
	now := topic.NumPartitions()
	more := int(t.Count) - now
	switch {
	case more <= 0:
		return faultf(ErrInvalidPartitions, "Topic %s has %d partitions, %d were asked for", t.Topic, now, t.Count)
	case more > MaxRecordsPerRequest:
		return faultf(ErrInvalidPartitions, "%d partitions cannot be added at once", more)
	case t.Assignment != nil && len(t.Assignment) != more:
		return faultf(ErrInvalidReplicaAssignment, "%d partitions are to be added, but %d assignments are given", more, len(t.Assignment))
	}
	if err := o.charge(more); err != nil {
		return err
	}
	first, _ := topic.Partition(0)
	factor := len(first.Replicas)
	placed := make([][]int32, 0, more)
	for _, a := range t.Assignment {
		if err := o.checkAssignment(a.Replicas, factor); err != nil {
			return err
		}
		placed = append(placed, a.Replicas)
	}
	if len(placed) == 0 {
		var err *Error
		if placed, err = o.placeAll(more, factor); err != nil {
			return err
		}
	}
	recs := make([]metadata.Record, 0, more)
	for i, replicas := range placed {
		recs = append(recs, o.newPartition(topic.ID, int32(now+i), replicas))
	}
	o.add(recs...)
	return nil
}
