package node

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// elected is the answer to ElectLeaders, by partition.
func elected(c *client, kind int8, topics ...kmsg.ElectLeadersRequestTopic) (top int16, codes map[string][]int16) {
	req := kmsg.NewPtrElectLeadersRequest()
	req.ElectionType, req.Topics = kind, topics
	resp := do[*kmsg.ElectLeadersResponse](c, 2, req)
	codes = map[string][]int16{}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			codes[t.Topic] = append(codes[t.Topic], p.ErrorCode)
		}
	}
	return resp.ErrorCode, codes
}

func TestM051_leaders_on_one_node(t *testing.T) {
	// M-051 on one node: a partition that its preferred replica leads needs no election (84), by name; of all (null) those are left out; an unknown one is 3; one with a leader needs no unclean election (84); type 2 is 42.
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(2)
	named := kmsg.ElectLeadersRequestTopic{Topic: tp.name, Partitions: []int32{0, 1, 99}}
	for kind, want := range map[int8][]int16{0: {84, 84, 3}, 1: {84, 84, 3}} {
		if top, codes := elected(c, kind, named); top != 0 || !slices.Equal(codes[tp.name], want) {
			t.Errorf("type %d: %d, %v", kind, top, codes)
		}
		if top, codes := elected(c, kind); top != 0 || len(codes[tp.name]) != 0 {
			t.Errorf("type %d of all: %d, %v", kind, top, codes)
		}
	}
	if top, _ := elected(c, 2, named); top != 42 {
		t.Errorf("type 2: %d", top)
	}
}

func TestM050_assignments_on_one_node(t *testing.T) {
	// M-050 in part: the assignment there is already is a success and no move; an unknown broker, an empty list and a broker twice are 39; an unknown partition is 3; cancelling what does not move is 85; v1 refuses another factor with 38; the list is empty.
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1)
	assign := func(version int16, topic string, partition int32, replicas []int32, change bool) int16 {
		req := kmsg.NewPtrAlterPartitionAssignmentsRequest()
		req.AllowReplicationFactorChange = change
		p := kmsg.NewAlterPartitionAssignmentsRequestTopicPartition()
		p.Partition, p.Replicas = partition, replicas
		one := kmsg.NewAlterPartitionAssignmentsRequestTopic()
		one.Topic, one.Partitions = topic, append(one.Partitions, p)
		req.Topics = append(req.Topics, one)
		resp := do[*kmsg.AlterPartitionAssignmentsResponse](c, version, req)
		if resp.ErrorCode != 0 || len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
			t.Fatalf("%+v", resp)
		}
		return resp.Topics[0].Partitions[0].ErrorCode
	}
	for _, row := range []struct {
		what      string
		version   int16
		topic     string
		partition int32
		replicas  []int32
		change    bool
		want      int16
	}{
		{"the same", 0, tp.name, 0, []int32{1}, true, 0},
		{"unknown broker", 0, tp.name, 0, []int32{1, 99}, true, 39},
		{"empty", 0, tp.name, 0, []int32{}, true, 39},
		{"twice", 0, tp.name, 0, []int32{1, 1}, true, 39},
		{"unknown partition", 0, tp.name, 99, []int32{1}, true, 3},
		{"unknown topic", 0, "no-such-topic", 0, []int32{1}, true, 3},
		{"cancel nothing", 0, tp.name, 0, nil, true, 85},
		{"the same, factor fixed", 1, tp.name, 0, []int32{1}, false, 0},
	} {
		if got := assign(row.version, row.topic, row.partition, row.replicas, row.change); got != row.want {
			t.Errorf("%s: %d, want %d", row.what, got, row.want)
		}
	}
	req := kmsg.NewPtrListPartitionReassignmentsRequest()
	req.Topics = append(req.Topics, kmsg.ListPartitionReassignmentsRequestTopic{Topic: tp.name, Partitions: []int32{0}})
	if resp := do[*kmsg.ListPartitionReassignmentsResponse](c, 0, req); resp.ErrorCode != 0 || len(resp.Topics) != 0 {
		t.Errorf("%+v", resp)
	}
}

func TestM027_a_live_broker_is_unregistered(t *testing.T) {
	// M-027: an unknown broker is 102; a live one is unregistered, its heartbeats are 77 from then on, which /readyz says, and it does not register again before it is started again.
	t.Parallel()
	n := start(t, "broker.heartbeat.interval.ms=100")
	c := n.dial(t)
	req := kmsg.NewPtrUnregisterBrokerRequest()
	req.BrokerID = 99
	if resp := do[*kmsg.UnregisterBrokerResponse](c, 0, req); resp.ErrorCode != 102 {
		t.Errorf("unknown: %d", resp.ErrorCode)
	}
	req.BrokerID = 1
	if resp := do[*kmsg.UnregisterBrokerResponse](c, 0, req); resp.ErrorCode != 0 {
		t.Fatalf("unregistered: %d", resp.ErrorCode)
	}
	for deadline := time.Now().Add(patience); !strings.Contains(n.log(), "the controller refuses this broker's heartbeats"); {
		if time.Now().After(deadline) {
			t.Fatalf("no heartbeat was refused:\n%s", n.log())
		}
		<-time.After(20 * time.Millisecond)
	}
	n.kill()
	n.run(t)
	if brokers := do[*kmsg.MetadataResponse](n.dial(t), 12, kmsg.NewPtrMetadataRequest()).Brokers; len(brokers) != 1 {
		t.Errorf("after the next start: %+v", brokers)
	}
}
