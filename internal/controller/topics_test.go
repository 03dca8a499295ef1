package controller

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
)

// The placement vectors: with the start offsets fixed, brokers and racks are dealt out in stripes.
func TestM046_placement_vectors(t *testing.T) {
	t.Parallel()
	type list struct {
		unfenced, fenced []int32
		start            int
	}
	for _, c := range []struct {
		name  string
		racks []list
		rf    int
		want  []string
	}{
		{"four", []list{{unfenced: []int32{0, 1, 2, 3}}}, 3, []string{"[0 1 2]", "[1 2 3]", "[2 3 0]", "[3 0 1]"}},
		{"one fenced", []list{{unfenced: []int32{0, 2, 3, 4}, fenced: []int32{1}, start: 2}}, 5, []string{"[3 4 0 2 1]", "[4 0 2 3 1]", "[0 2 3 4 1]", "[2 3 4 0 1]"}},
		{"three racks", []list{{unfenced: []int32{1, 2}}, {unfenced: []int32{3, 4}}, {unfenced: []int32{5, 6}}}, 3, []string{"[1 3 5]", "[4 6 2]", "[5 1 3]", "[2 4 6]", "[3 5 1]", "[6 2 4]"}},
		{"uneven racks", []list{{unfenced: []int32{1, 2}}, {unfenced: []int32{3}}, {fenced: []int32{5}}}, 3, []string{"[1 3 5]", "[3 5 2]", "[1 5 3]"}},
		{"more than racks", []list{{unfenced: []int32{10, 11}, start: 1}, {unfenced: []int32{21}, fenced: []int32{20}}, {unfenced: []int32{30, 31}, start: 1}}, 4, []string{"[11 21 31 10]", "[21 30 10 20]", "[31 11 21 30]"}},
		{"never the fenced one", []list{{unfenced: []int32{0}, fenced: []int32{1}}}, 1, []string{"[0]", "[0]", "[0]"}},
	} {
		p := &placer{random: rand.New(rand.NewPCG(1, 1))}
		for _, l := range c.racks {
			p.racks = append(p.racks, &rack{unfenced: ring{brokers: l.unfenced, start: l.start}, fenced: ring{brokers: l.fenced}})
			p.usable += len(l.unfenced) + len(l.fenced)
			p.unfenced += len(l.unfenced)
		}
		for i, want := range c.want {
			if got := fmt.Sprint(p.place(c.rf)); got != want {
				t.Errorf("%s, partition %d: %s, want %s", c.name, i, got, want)
			}
		}
	}
}

// Over many partitions every broker gets its share of replicas, and no partition has one twice.
func TestPlacementIsFair(t *testing.T) {
	t.Parallel()
	k := newCluster(t)
	k.start(1, 2, 3, 4, 5)
	o := k.c.begin(k.at())
	placed, err := o.placeAll(500, 3)
	if err != nil {
		t.Fatal(err)
	}
	count, leads := map[int32]int{}, map[int32]int{}
	for _, replicas := range placed {
		leads[replicas[0]]++
		for i, id := range replicas {
			count[id]++
			if slices.Contains(replicas[:i], id) {
				t.Fatal(replicas)
			}
		}
	}
	for id := int32(1); id <= 5; id++ {
		if count[id] < 250 || count[id] > 350 || leads[id] != 100 {
			t.Errorf("broker %d has %d replicas and leads %d", id, count[id], leads[id])
		}
	}
	if _, err := o.placeAll(1, 6); !errors.Is(err, ErrInvalidReplicationFactor) {
		t.Error(err)
	}
}

func createRequest(name string, partitions int32, factor int16) kmsg.CreateTopicsRequestTopic {
	return kmsg.CreateTopicsRequestTopic{Topic: name, NumPartitions: partitions, ReplicationFactor: factor}
}

func withConfig(t kmsg.CreateTopicsRequestTopic, name string, value *string) kmsg.CreateTopicsRequestTopic {
	t.Configs = append(t.Configs, kmsg.CreateTopicsRequestTopicConfig{Name: name, Value: value})
	return t
}

func withReplicas(t kmsg.CreateTopicsRequestTopic, partition int32, replicas ...int32) kmsg.CreateTopicsRequestTopic {
	t.ReplicaAssignment = append(t.ReplicaAssignment, kmsg.CreateTopicsRequestTopicReplicaAssignment{Partition: partition, Replicas: replicas})
	return t
}

// Each check of CreateTopics fails alone among good topics, whose records are one batch; what is refused at
// the door is answered last; ValidateOnly leaves no record.
func TestM045_create_topics(t *testing.T) {
	t.Parallel()
	k := newCluster(t)
	k.start(1, 2)
	k.topic("there", []int32{1})
	k.topic("a.b", []int32{1})
	for _, c := range []struct {
		t   kmsg.CreateTopicsRequestTopic
		err error
	}{
		{createRequest("", 1, 1), ErrInvalidTopic},
		{createRequest("..", 1, 1), ErrInvalidTopic},
		{createRequest("a b", 1, 1), ErrInvalidTopic},
		{createRequest(strings.Repeat("a", 250), 1, 1), ErrInvalidTopic},
		{createRequest("a_b", 1, 1), ErrInvalidTopic},
		{createRequest("a.b", 1, 1), ErrTopicAlreadyExists},
		{createRequest("there", 1, 1), ErrTopicAlreadyExists},
		{withConfig(createRequest("x", 1, 1), "retention.ms", nil), ErrInvalidConfig},
		{withConfig(createRequest("x", 1, 1), "retention.ms", new("x")), ErrInvalidConfig},
		{withConfig(createRequest("x", 1, 1), "no.such", new("x")), ErrInvalidConfig},
		{withConfig(createRequest("x", 1, 1), "follower.replication.throttled.replicas", new(strings.Repeat("x", 32768))), ErrInvalidConfig},
		{withReplicas(createRequest("x", 1, -1), 0, 1), ErrInvalidRequest},
		{withReplicas(createRequest("x", -1, -1), 1, 1), ErrInvalidReplicaAssignment},
		{withReplicas(withReplicas(createRequest("x", -1, -1), 0, 1), 0, 1), ErrInvalidReplicaAssignment},
		{withReplicas(createRequest("x", -1, -1), 0), ErrInvalidReplicaAssignment},
		{withReplicas(createRequest("x", -1, -1), 0, 9), ErrInvalidReplicaAssignment},
		{withReplicas(createRequest("x", -1, -1), 0, 1, 1), ErrInvalidReplicaAssignment},
		{withReplicas(withReplicas(createRequest("x", -1, -1), 0, 1, 2), 1, 1), ErrInvalidReplicaAssignment},
		{createRequest("x", 1, 0), ErrInvalidReplicationFactor},
		{createRequest("x", 1, -2), ErrInvalidReplicationFactor},
		{createRequest("x", 0, 1), ErrInvalidPartitions},
		{createRequest("x", 1, 3), ErrInvalidReplicationFactor},
	} {
		req := kmsg.NewPtrCreateTopicsRequest()
		req.Topics = []kmsg.CreateTopicsRequestTopic{createRequest("twice", 1, 1), createRequest("good", 2, 2), createRequest(MetadataTopic, 1, 1), c.t, createRequest("twice", 1, 1), createRequest("good2", -1, -1)}
		r := k.c.CreateTopics(k.at(), req)
		topics := r.Reply.(CreateTopicsReply).Topics
		var names []string
		for _, t := range topics {
			names = append(names, t.Name)
		}
		if want := []string{"good", c.t.Topic, "good2", "twice", MetadataTopic}; !slices.Equal(names, want) {
			t.Errorf("order %q, want %q", names, want)
		}
		if !errors.Is(topics[1].Err, c.err) || topics[0].Err != nil || topics[2].Err != nil || !errors.Is(topics[3].Err, ErrInvalidRequest) || !errors.Is(topics[4].Err, ErrInvalidRequest) {
			t.Errorf("%q: %v, want %v", c.t.Topic, topics[1].Err, c.err)
		}
		if kinds(r.Records) != "Topic Partition Partition Topic Partition" || !r.Atomic {
			t.Errorf("records %s", kinds(r.Records))
		}
		req.ValidateOnly = true
		if r := k.c.CreateTopics(k.at(), req); len(r.Records) > 0 || len(r.Reply.(CreateTopicsReply).Topics) != 5 {
			t.Error("ValidateOnly made records")
		}
	}
	k.must(k.heartbeat(2, func(h *kmsg.BrokerHeartbeatRequest) { h.WantFence = true }))
	k.topic("fenced", []int32{1, 2})
	if p := k.partition("fenced", 0); !slices.Equal(p.Replicas, []int32{1, 2}) || !slices.Equal(p.ISR, []int32{1}) || p.LeaderEpoch != 0 || p.PartitionEpoch != 0 {
		t.Errorf("a fenced replica is placed, but not in sync: %+v", p)
	}
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Topics = []kmsg.CreateTopicsRequestTopic{withReplicas(createRequest("x", -1, -1), 0, 2), withConfig(createRequest("y", 1, 1), "retention.ms", new("7"))}
	r := k.must(k.c.CreateTopics(k.at(), req)).Reply.(CreateTopicsReply)
	if !errors.Is(r.Topics[0].Err, ErrInvalidReplicaAssignment) {
		t.Error(r.Topics[0].Err)
	}
	for _, e := range r.Topics[1].Configs {
		if e.Name == "retention.ms" && *e.Value != "7" {
			t.Error("effective settings lack the override")
		}
	}
}

// 10000 records are one batch, one more is refused, and so are 10001 partitions before anything is looked at.
func TestM047_most_partitions_of_one_request(t *testing.T) {
	t.Parallel()
	k := newCluster(t)
	k.start(1)
	for n, ok := range map[int32]bool{9999: true, 10000: false, 10001: false} {
		req := kmsg.NewPtrCreateTopicsRequest()
		req.Topics = []kmsg.CreateTopicsRequestTopic{createRequest("big", n, 1)}
		r := k.c.CreateTopics(k.at(), req)
		if ok && (r.Err != nil || len(r.Records) != 10000) || !ok && !errors.Is(r.Err, ErrPolicyViolation) {
			t.Errorf("%d partitions: %d records, %v", n, len(r.Records), r.Err)
		}
	}
}

// DeleteTopics by name and by id, and CreatePartitions, with each of their faults.
func TestM048_delete_topics_and_create_partitions(t *testing.T) {
	t.Parallel()
	k := newCluster(t)
	k.start(1, 2)
	_, b, c := k.topic("a", []int32{1}), k.topic("b", []int32{1}), k.topic("c", []int32{1, 2})
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.Topics = []kmsg.DeleteTopicsRequestTopic{
		{Topic: new("a")}, {TopicID: b.ID}, {Topic: new("no")}, {TopicID: metadata.UUID{9: 9}}, {Topic: new("c"), TopicID: c.ID}, {},
	}
	r := k.must(k.c.DeleteTopics(k.at(), req))
	for i, want := range []error{nil, nil, ErrUnknownTopicOrPartition, ErrUnknownTopicID, ErrInvalidRequest, ErrInvalidRequest} {
		if got := r.Reply.(DeleteTopicsReply).Topics[i]; want == nil && got.Err != nil || want != nil && !errors.Is(got.Err, want) {
			t.Errorf("item %d: %+v, want %v", i, got, want)
		}
	}
	if kinds(r.Records) != "RemoveTopic RemoveTopic" || k.c.Image().Topics().Len() != 1 {
		t.Error(kinds(r.Records))
	}
	req.Topics = []kmsg.DeleteTopicsRequestTopic{{Topic: new("c")}, {TopicID: c.ID}}
	if r := k.c.DeleteTopics(k.at(), req); len(r.Records) > 0 {
		t.Error("named by name and by id, and deleted")
	}
	grow := kmsg.NewPtrCreatePartitionsRequest()
	add := func(name string, count int32, assignment ...[]int32) {
		x := kmsg.CreatePartitionsRequestTopic{Topic: name, Count: count}
		for _, replicas := range assignment {
			x.Assignment = append(x.Assignment, kmsg.CreatePartitionsRequestTopicAssignment{Replicas: replicas})
		}
		grow.Topics = append(grow.Topics, x)
	}
	add("c", 3)
	for _, x := range []struct {
		name  string
		count int32
		with  [][]int32
		err   error
	}{
		{"no", 2, nil, ErrUnknownTopicOrPartition},
		{"c", 1, nil, ErrInvalidPartitions},
		{"c", 0, nil, ErrInvalidPartitions},
		{"c", 3, [][]int32{{1, 2}}, ErrInvalidReplicaAssignment},
		{"c", 2, [][]int32{{1}}, ErrInvalidReplicaAssignment},
		{"c", 2, [][]int32{{1, 7}}, ErrInvalidReplicaAssignment},
		{"c", 2, [][]int32{{2, 1}}, nil},
	} {
		grow.Topics = nil
		add(x.name, x.count, x.with...)
		err := k.c.CreatePartitions(k.at(), grow).Reply.(CreatePartitionsReply).Topics[0].Err
		if x.err == nil && err != nil || x.err != nil && !errors.Is(err, x.err) {
			t.Errorf("%+v: %v", x, err)
		}
	}
	grow.ValidateOnly = true
	if r := k.c.CreatePartitions(k.at(), grow); len(r.Records) > 0 || r.Reply.(CreatePartitionsReply).Topics[0].Err != nil {
		t.Errorf("only validated: %+v", r)
	}
	grow.ValidateOnly = false
	k.must(k.c.CreatePartitions(k.at(), grow))
	if p := k.partition("c", 1); !slices.Equal(p.Replicas, []int32{2, 1}) || p.Leader != 2 {
		t.Errorf("%+v", p)
	}
	add("c", 5)
	if r := k.c.CreatePartitions(k.at(), grow); len(r.Records) > 0 || !errors.Is(r.Reply.(CreatePartitionsReply).Topics[0].Err, ErrInvalidRequest) {
		t.Error("a name given twice")
	}
}

// ElectLeaders: what needs no election, what cannot have one, preferred and unclean.
func TestM051_elect_leaders(t *testing.T) {
	t.Parallel()
	k := newCluster(t)
	k.start(1, 2)
	k.topic("t", []int32{1, 2}, []int32{2, 1})
	elect := func(kind int8, topics ...kmsg.ElectLeadersRequestTopic) Result {
		req := kmsg.NewPtrElectLeadersRequest()
		req.ElectionType, req.Topics = kind, topics
		return k.c.ElectLeaders(k.at(), req)
	}
	of := func(partitions ...int32) kmsg.ElectLeadersRequestTopic {
		return kmsg.ElectLeadersRequestTopic{Topic: "t", Partitions: partitions}
	}
	outcome := func(r Result, i int) error {
		if err := r.Reply.(ElectLeadersReply).Partitions[i].Err; err != nil {
			return err
		}
		return nil
	}
	if r := elect(2, of(0)); !errors.Is(r.Err, ErrInvalidRequest) {
		t.Error(r.Err)
	}
	r := elect(0, of(0, 9))
	if !errors.Is(outcome(r, 0), ErrElectionNotNeeded) || !errors.Is(outcome(r, 1), ErrUnknownTopicOrPartition) {
		t.Error(r.Reply)
	}
	if r := elect(0); len(r.Reply.(ElectLeadersReply).Partitions) != 0 {
		t.Error("partitions that need nothing are left out:", r.Reply)
	}
	k.must(k.heartbeat(1, func(h *kmsg.BrokerHeartbeatRequest) { h.WantFence = true }))
	if r := elect(0, of(0)); !errors.Is(outcome(r, 0), ErrPreferredLeaderNotAvailable) {
		t.Error(r.Reply)
	}
	if r := elect(1, of(0)); !errors.Is(outcome(r, 0), ErrElectionNotNeeded) {
		t.Error(r.Reply)
	}
	k.must(k.heartbeat(2, func(h *kmsg.BrokerHeartbeatRequest) { h.WantFence = true }))
	if p := k.partition("t", 0); p.Leader != metadata.NoLeader || !slices.Equal(p.ISR, []int32{2}) {
		t.Fatalf("%+v", p)
	}
	if r := elect(1, of(0)); !errors.Is(outcome(r, 0), ErrEligibleLeadersNotAvailable) {
		t.Error(r.Reply)
	}
	k.must(k.heartbeat(1, nil))
	if k.partition("t", 0).Leader != metadata.NoLeader {
		t.Fatal("elected a replica that is not in sync")
	}
	r = k.must(elect(1, of(0)))
	if p := k.partition("t", 0); outcome(r, 0) != nil || p.Leader != 1 || p.RecoveryState != metadata.Recovering || !slices.Equal(p.ISR, []int32{1}) {
		t.Errorf("unclean: %+v %v", p, r.Reply)
	}
}

func alterRequest(k *cluster, sender int32, topic metadata.UUID, p *metadata.Partition, isr ...int32) *kmsg.AlterPartitionRequest {
	req := kmsg.NewPtrAlterPartitionRequest()
	req.Version = 3
	req.BrokerID, req.BrokerEpoch = sender, k.broker(sender).Epoch
	part := kmsg.AlterPartitionRequestTopicPartition{Partition: p.ID, LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch}
	for _, id := range isr {
		part.NewEpochISR = append(part.NewEpochISR, kmsg.AlterPartitionRequestTopicPartitionNewEpochISR{BrokerID: id, BrokerEpoch: k.broker(id).Epoch})
	}
	req.Topics = []kmsg.AlterPartitionRequestTopic{{TopicID: topic, Partitions: []kmsg.AlterPartitionRequestTopicPartition{part}}}
	return req
}

// The whole table of AlterPartition: each condition with its error, and what an accepted change does to the epochs.
func TestAlterPartitionTable(t *testing.T) {
	t.Parallel()
	k := newCluster(t)
	k.start(1, 2, 3, 4)
	topic := k.topic("t", []int32{1, 2, 3})
	k.must(k.heartbeat(3, func(h *kmsg.BrokerHeartbeatRequest) { h.WantFence = true }))
	k.must(k.heartbeat(3, nil))
	p := k.partition("t", 0) // ISR 1,2, partition epoch 1
	type change = func(*kmsg.AlterPartitionRequest, *kmsg.AlterPartitionRequestTopicPartition)
	for _, c := range []struct {
		name   string
		sender int32
		isr    []int32
		change change
		err    error
	}{
		{"topic id", 1, []int32{1}, func(r *kmsg.AlterPartitionRequest, _ *kmsg.AlterPartitionRequestTopicPartition) {
			r.Topics[0].TopicID = [16]byte{7: 7}
		}, ErrUnknownTopicID},
		{"partition", 1, []int32{1}, func(_ *kmsg.AlterPartitionRequest, x *kmsg.AlterPartitionRequestTopicPartition) { x.Partition = 9 }, ErrUnknownTopicOrPartition},
		{"leader epoch ahead", 1, []int32{1}, func(_ *kmsg.AlterPartitionRequest, x *kmsg.AlterPartitionRequestTopicPartition) { x.LeaderEpoch++ }, ErrNotController},
		{"partition epoch ahead", 1, []int32{1}, func(_ *kmsg.AlterPartitionRequest, x *kmsg.AlterPartitionRequestTopicPartition) { x.PartitionEpoch++ }, ErrNotController},
		{"leader epoch behind", 1, []int32{1}, func(_ *kmsg.AlterPartitionRequest, x *kmsg.AlterPartitionRequestTopicPartition) { x.LeaderEpoch-- }, ErrFencedLeaderEpoch},
		{"not the leader", 2, []int32{2}, nil, ErrInvalidRequest},
		{"partition epoch behind", 1, []int32{1}, func(_ *kmsg.AlterPartitionRequest, x *kmsg.AlterPartitionRequestTopicPartition) { x.PartitionEpoch-- }, ErrInvalidUpdateVersion},
		{"twice", 1, []int32{1, 2, 2}, nil, ErrInvalidRequest},
		{"no replica", 1, []int32{1, 4}, nil, ErrInvalidRequest},
		{"lacks the leader", 1, []int32{2}, nil, ErrInvalidRequest},
		{"recovering with two", 1, []int32{1, 2}, func(_ *kmsg.AlterPartitionRequest, x *kmsg.AlterPartitionRequestTopicPartition) {
			x.LeaderRecoveryState = 1
		}, ErrInvalidRequest},
		{"back to recovering", 1, []int32{1}, func(_ *kmsg.AlterPartitionRequest, x *kmsg.AlterPartitionRequestTopicPartition) {
			x.LeaderRecoveryState = 1
		}, ErrInvalidRequest},
		{"member's epoch", 1, []int32{1, 2}, func(_ *kmsg.AlterPartitionRequest, x *kmsg.AlterPartitionRequestTopicPartition) {
			x.NewEpochISR[1].BrokerEpoch--
		}, ErrIneligibleReplica},
	} {
		req := alterRequest(k, c.sender, topic.ID, p, c.isr...)
		if c.change != nil {
			c.change(req, &req.Topics[0].Partitions[0])
		}
		r := k.c.AlterPartition(k.at(), req)
		if r.Err != nil || len(r.Records) > 0 || !errors.Is(r.Reply.(AlterPartitionReply).Partitions[0].Err, c.err) {
			t.Errorf("%s: %v %v, want %v", c.name, r.Err, r.Reply, c.err)
		}
	}
	req := alterRequest(k, 1, topic.ID, p, 1, 2)
	req.BrokerEpoch--
	if r := k.c.AlterPartition(k.at(), req); !errors.Is(r.Err, ErrStaleBrokerEpoch) {
		t.Error(r.Err)
	}
	if r := k.c.AlterPartition(k.at(), alterRequest(k, 1, topic.ID, p, 1, 2)); len(r.Records) > 0 || r.Reply.(AlterPartitionReply).Partitions[0].State != p {
		t.Errorf("a change of nothing: %s", kinds(r.Records))
	}
	req = alterRequest(k, 1, topic.ID, p, 1, 2, 3)
	req.Topics[0].Partitions[0].NewEpochISR[2].BrokerEpoch = -1
	r := k.must(k.c.AlterPartition(k.at(), req))
	if s := r.Reply.(AlterPartitionReply).Partitions[0].State; s.PartitionEpoch != 2 || s.LeaderEpoch != 0 || !slices.Equal(s.ISR, []int32{1, 2, 3}) || !reflect.DeepEqual(s, k.partition("t", 0)) {
		t.Errorf("grown: %+v", s)
	}
	r = k.must(k.c.AlterPartition(k.at(), alterRequest(k, 1, topic.ID, k.partition("t", 0), 1)))
	if s := r.Reply.(AlterPartitionReply).Partitions[0].State; s.PartitionEpoch != 3 || s.LeaderEpoch != 0 {
		t.Errorf("shrunk: %+v", s)
	}
	k.must(k.heartbeat(2, func(h *kmsg.BrokerHeartbeatRequest) { h.WantFence = true }))
	r = k.c.AlterPartition(k.at(), alterRequest(k, 1, topic.ID, k.partition("t", 0), 1, 2))
	if err := r.Reply.(AlterPartitionReply).Partitions[0].Err; !errors.Is(err, ErrIneligibleReplica) {
		t.Error("a fenced member:", err)
	}
	k.replay([]metadata.Record{&metadata.PartitionChangeRecord{TopicID: topic.ID, Leader: metadata.LeaderUnchanged, LeaderRecoveryState: -1,
		Replicas: []int32{4, 3, 1}, AddingReplicas: []int32{4}, RemovingReplicas: []int32{1}}})
	r = k.must(k.c.AlterPartition(k.at(), alterRequest(k, 1, topic.ID, k.partition("t", 0), 1, 3, 4)))
	out := r.Reply.(AlterPartitionReply).Partitions[0]
	if s := k.partition("t", 0); !errors.Is(out.Err, ErrNewLeaderElected) || s.Leader != 4 || s.LeaderEpoch != 1 || !slices.Equal(s.Replicas, []int32{4, 3}) || s.Reassigning() || !slices.Equal(s.ISR, []int32{3, 4}) {
		t.Errorf("end of a reassignment: %+v %v", s, out.Err)
	}
}

// The example of eligible leader replicas: RF 3, min 2, through fencing, return and unclean stops.
func TestEligibleLeaderReplicas(t *testing.T) {
	t.Parallel()
	fresh := func() *cluster {
		k := newCluster(t, "min.insync.replicas=2")
		k.start(1, 2, 3)
		k.replay([]metadata.Record{&metadata.FeatureLevelRecord{Name: metadata.FeatureELR, FeatureLevel: 1}})
		k.topic("t", []int32{1, 2, 3})
		return k
	}
	expect := func(k *cluster, step, want string) {
		t.Helper()
		p := k.partition("t", 0)
		if got := fmt.Sprintf("%v %v %d %v %d", p.ISR, p.ELR, p.Leader, p.LastKnownELR, p.RecoveryState); got != want {
			t.Errorf("%s: %s, want %s", step, got, want)
		}
	}
	fence := func(k *cluster, id int32) {
		k.must(k.heartbeat(id, func(h *kmsg.BrokerHeartbeatRequest) { h.WantFence = true }))
	}
	down := func(k *cluster) {
		fence(k, 3)
		expect(k, "fence 3", "[1 2] [] 1 [] 0")
		fence(k, 2)
		expect(k, "fence 2", "[1] [2] 1 [] 0")
		fence(k, 1)
		expect(k, "fence 1", "[] [1 2] -1 [1] 0")
	}
	k := fresh()
	down(k)
	k.must(k.heartbeat(2, nil))
	expect(k, "unfence 2", "[2] [1] 2 [] 0")
	k.must(k.heartbeat(1, nil))
	topic, _ := k.c.Image().Topic("t")
	k.must(k.c.AlterPartition(k.at(), alterRequest(k, 2, topic.ID, k.partition("t", 0), 2, 1)))
	expect(k, "1 back", "[2 1] [] 2 [] 0")

	k = fresh()
	down(k)
	unclean := func(id int32) {
		req := registration(id, 9)
		req.Features = append(req.Features, kmsg.BrokerRegistrationRequestFeature{Name: metadata.FeatureELR, MaxSupportedVersion: 1})
		k.c.BrokerConnectionLost(k.now, id)
		k.must(k.c.RegisterBroker(k.at(), req))
	}
	unclean(2)
	expect(k, "2 stopped uncleanly", "[] [1] -1 [1] 0")
	unclean(1)
	expect(k, "1 too", "[] [] -1 [1] 0")
	k.must(k.heartbeat(1, nil))
	expect(k, "1 is unfenced", "[1] [] 1 [] 1")
}
