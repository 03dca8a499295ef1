package node

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestE066_alter_partition_is_checked(t *testing.T) {
	// AlterPartition sent to the controller by a leader, with a leader epoch of one less or more: 74, 41; a partition epoch of one
	// less or more: 95, 41; by another than the leader: 42; without the leader in the set: 42; with a fenced member: 107; with the
	// set that there is: 0 and the same epochs; under a broker epoch that is over: 77.
	t.Parallel()
	n := start(t)
	leader, fenced := n.shadow(t, 7), n.shadow(t, 8)
	for _, s := range []*shadow{leader, fenced} {
		if code := s.register(); code != 0 {
			t.Fatalf("registration of %d: %d", s.id, code)
		}
	}
	if resp := leader.heartbeat(1<<40, false, false); resp.ErrorCode != 0 || resp.IsFenced {
		t.Fatalf("heartbeat %+v", resp)
	}
	create := kmsg.NewPtrCreateTopicsRequest()
	create.TimeoutMillis = 10_000
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = "altered", -1, -1
	assigned := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
	assigned.Replicas = []int32{7, 8}
	topic.ReplicaAssignment = append(topic.ReplicaAssignment, assigned)
	create.Topics = append(create.Topics, topic)
	created := do[*kmsg.CreateTopicsResponse](n.controller(t), 7, create).Topics[0]
	if created.ErrorCode != 0 {
		t.Fatalf("create: %d", created.ErrorCode)
	}

	type change struct {
		by                          *shadow
		brokerEpoch                 int64 // added to the sender's
		leaderEpoch, partitionEpoch int32 // added to those that are
		isr                         []*shadow
	}
	var at kmsg.AlterPartitionResponseTopicPartition // the state that is
	alter := func(c change) (int16, kmsg.AlterPartitionResponseTopicPartition) {
		req := kmsg.NewPtrAlterPartitionRequest()
		req.BrokerID, req.BrokerEpoch = c.by.id, c.by.epoch+c.brokerEpoch
		topic := kmsg.NewAlterPartitionRequestTopic()
		topic.TopicID = created.TopicID
		p := kmsg.NewAlterPartitionRequestTopicPartition()
		p.LeaderEpoch, p.PartitionEpoch = at.LeaderEpoch+c.leaderEpoch, at.PartitionEpoch+c.partitionEpoch
		for _, member := range c.isr {
			m := kmsg.NewAlterPartitionRequestTopicPartitionNewEpochISR()
			m.BrokerID, m.BrokerEpoch = member.id, member.epoch
			p.NewEpochISR = append(p.NewEpochISR, m)
		}
		topic.Partitions = append(topic.Partitions, p)
		req.Topics = append(req.Topics, topic)
		resp := do[*kmsg.AlterPartitionResponse](c.by.client, 3, req)
		if resp.ErrorCode != 0 {
			return resp.ErrorCode, kmsg.AlterPartitionResponseTopicPartition{}
		}
		return resp.Topics[0].Partitions[0].ErrorCode, resp.Topics[0].Partitions[0]
	}
	alone := []*shadow{leader}
	code, first := alter(change{by: leader, isr: alone})
	if code != 0 || first.LeaderID != 7 || len(first.ISR) != 1 {
		t.Fatalf("the set that there is: %d, %+v", code, first)
	}
	at = first
	for _, c := range []struct {
		name string
		change
		want int16
	}{
		{"a leader epoch that is over", change{by: leader, leaderEpoch: -1, isr: alone}, 74},
		{"a leader epoch to come", change{by: leader, leaderEpoch: 1, isr: alone}, 41},
		{"a partition epoch that is over", change{by: leader, partitionEpoch: -1, isr: alone}, 95},
		{"a partition epoch to come", change{by: leader, partitionEpoch: 1, isr: alone}, 41},
		{"not by the leader", change{by: fenced, isr: alone}, 42},
		{"without the leader", change{by: leader, isr: []*shadow{fenced}}, 42},
		{"with a fenced member", change{by: leader, isr: []*shadow{leader, fenced}}, 107},
		{"a broker epoch that is over", change{by: leader, brokerEpoch: -1, isr: alone}, 77},
		{"the set that there is", change{by: leader, isr: alone}, 0},
	} {
		got, p := alter(c.change)
		if got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
		if c.want == 0 && (p.LeaderEpoch != first.LeaderEpoch || p.PartitionEpoch != first.PartitionEpoch) {
			t.Errorf("%s: epochs %d and %d became %d and %d", c.name, first.LeaderEpoch, first.PartitionEpoch, p.LeaderEpoch, p.PartitionEpoch)
		}
	}
}
