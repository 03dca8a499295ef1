package node

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// consumerJoin is the first heartbeat of a member of the consumer protocol.
func consumerJoin(group, member string, topics ...string) *kmsg.ConsumerGroupHeartbeatRequest {
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Group, req.MemberID, req.RebalanceTimeoutMillis = group, member, 60000
	req.SubscribedTopicNames, req.Topics = append([]string{}, topics...), []kmsg.ConsumerGroupHeartbeatRequestTopic{}
	return req
}

// consumerBeat is a heartbeat that says nothing new.
func consumerBeat(group, member string, epoch int32) *kmsg.ConsumerGroupHeartbeatRequest {
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Group, req.MemberID, req.MemberEpoch, req.RebalanceTimeoutMillis = group, member, epoch, -1
	return req
}

func (c *client) beat(version int16, req *kmsg.ConsumerGroupHeartbeatRequest) *kmsg.ConsumerGroupHeartbeatResponse {
	c.t.Helper()
	return do[*kmsg.ConsumerGroupHeartbeatResponse](c, version, req)
}

// joinConsumer lets a member join, and beats until it is in the epoch of its target and has partitions, or has none to wait
// for. It gives the epoch.
func (c *client) joinConsumer(group, member string, tp topic) int32 {
	c.t.Helper()
	joined := c.beat(1, consumerJoin(group, member, tp.name))
	if joined.ErrorCode != 0 || joined.Assignment == nil || deref(joined.MemberID) != member {
		c.t.Fatalf("%s joins: %+v", member, joined)
	}
	return joined.MemberEpoch
}

func TestC001_consumer_protocol_off(t *testing.T) {
	// With group.version at 0 heartbeats and descriptions of consumer groups are answered 35, whole.
	t.Parallel()
	n := start(t)
	c := n.dial(t)
	group := c.groupID()
	if resp := c.updateFeatures(1, false, 2, map[string]int16{"group.version": 0}); resp.ErrorCode != 0 {
		t.Fatalf("downgrade: %+v", resp)
	}
	for version := int16(0); version <= 1; version++ {
		for code := int16(0); code != 35; { // the broker follows soon
			code = c.beat(version, consumerBeat(group, "m", 1)).ErrorCode
		}
		req := kmsg.NewPtrConsumerGroupDescribeRequest()
		req.Groups = []string{group, "other"}
		for _, g := range do[*kmsg.ConsumerGroupDescribeResponse](c, version, req).Groups {
			if g.ErrorCode != 35 {
				t.Errorf("v%d: describe: %+v", version, g)
			}
		}
	}
}

func TestC002_malformed_heartbeats(t *testing.T) {
	// Each malformed heartbeat is answered 42 with a message, without a member id and in epoch 0; an empty member id is made by the coordinator in v0 and refused in v1 (C-003); an unknown assignor is 112 (C-004).
	t.Parallel()
	c := shared(t).dial(t)
	tp, group := c.topic(1), c.groupID()
	empty := ""
	for name, change := range map[string]func(*kmsg.ConsumerGroupHeartbeatRequest){
		"no member":            func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.MemberID = "" },
		"no group":             func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.Group = "" },
		"empty instance":       func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.InstanceID = &empty },
		"empty rack":           func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.RackID = &empty },
		"no rebalance timeout": func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.RebalanceTimeoutMillis = -1 },
		"owned is null":        func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.Topics = nil },
		"owns something": func(r *kmsg.ConsumerGroupHeartbeatRequest) {
			r.Topics = []kmsg.ConsumerGroupHeartbeatRequestTopic{{TopicID: tp.id, Partitions: []int32{0}}}
		},
		"no subscription":       func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.SubscribedTopicNames = nil },
		"leaves, no instance":   func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.MemberEpoch = -2 },
		"epoch -3":              func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.MemberEpoch = -3 },
		"leaves without member": func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.MemberEpoch, r.MemberID = -1, "" },
	} {
		req := consumerJoin(group, "m", tp.name)
		change(req)
		resp := c.beat(1, req)
		if resp.ErrorCode != 42 || deref(resp.ErrorMessage) == "" || resp.MemberID != nil || resp.MemberEpoch != 0 || resp.HeartbeatIntervalMillis != 0 || resp.Assignment != nil {
			t.Errorf("%s: %+v", name, resp)
		}
	}
	if made := c.beat(0, consumerJoin(group, "", tp.name)); made.ErrorCode != 0 || deref(made.MemberID) == "" || made.MemberEpoch != 2 {
		t.Errorf("v0 without a member id: %+v", made)
	}
	odd := consumerJoin(group, "odd", tp.name)
	odd.ServerAssignor = kmsg.StringPtr("odd")
	if resp := c.beat(1, odd); resp.ErrorCode != 112 {
		t.Errorf("an unknown assignor: %+v", resp)
	}
}

func TestC027_offset_fetch_of_members(t *testing.T) {
	// OffsetFetch v9 of a member of a consumer group: with another epoch 113, of an unknown member 25, without a member as ever.
	t.Parallel()
	c := shared(t).dial(t)
	tp, group := c.topic(1), c.groupID()
	epoch := c.joinConsumer(group, "m", tp)
	for name, test := range map[string]struct {
		member *string
		epoch  int32
		want   int16
	}{
		"its epoch": {kmsg.StringPtr("m"), epoch, 0}, "another": {kmsg.StringPtr("m"), epoch + 1, 113}, "the last": {kmsg.StringPtr("m"), epoch - 1, 113},
		"unknown": {kmsg.StringPtr("x"), epoch, 25}, "none": {nil, -1, 0},
	} {
		req := kmsg.NewPtrOffsetFetchRequest()
		one := kmsg.NewOffsetFetchRequestGroup()
		one.Group, one.MemberID, one.MemberEpoch = group, test.member, test.epoch
		req.Groups = append(req.Groups, one)
		if got := do[*kmsg.OffsetFetchResponse](c, 9, req).Groups[0].ErrorCode; got != test.want {
			t.Errorf("%s: error %d, want %d", name, got, test.want)
		}
	}
}

func TestC031_describe_of_a_mixed_group(t *testing.T) {
	// ConsumerGroupDescribe v1 says of each member of a mixed group which protocol it speaks, v0 does not; DescribeGroups knows no such group: Dead, 69 from v6 on.
	t.Parallel()
	c := shared(t).dial(t)
	tp, group := c.topic(2), c.groupID()
	c.joinConsumer(group, "native", tp)
	subscription := kmsg.ConsumerMemberMetadata{Version: 1, Topics: []string{tp.name}}
	classic := c.join(3, wish{group: group, protocols: []string{"range=" + string(subscription.AppendTo(nil))}})
	if classic.ErrorCode != 0 {
		t.Fatalf("a classic member: %+v", classic)
	}
	for version := int16(0); version <= 1; version++ {
		req := kmsg.NewPtrConsumerGroupDescribeRequest()
		req.Groups = []string{group, group + "-unknown", ""}
		groups := do[*kmsg.ConsumerGroupDescribeResponse](c, version, req).Groups
		var kinds []string
		for _, m := range groups[0].Members {
			kinds = append(kinds, fmt.Sprintf("%t:%d", m.MemberID == "native", m.MemberType))
		}
		slices.Sort(kinds)
		want := "[false:-1 true:-1]"
		if version == 1 {
			want = "[false:0 true:1]"
		}
		if groups[0].ErrorCode != 0 || fmt.Sprint(kinds) != want || groups[0].AssignorName != "uniform" {
			t.Errorf("v%d: %v, want %s: %+v", version, kinds, want, groups[0])
		}
		if groups[1].ErrorCode != 69 || groups[2].ErrorCode != 24 {
			t.Errorf("v%d: an unknown group %d, none %d", version, groups[1].ErrorCode, groups[2].ErrorCode)
		}
	}
	for _, version := range []int16{5, 6} {
		d := c.describeGroup(version, group)
		if d.State != "Dead" || d.ErrorCode != map[int16]int16{5: 0, 6: 69}[version] {
			t.Errorf("DescribeGroups v%d: %+v", version, d)
		}
	}
	if listed, ok := c.listedGroup(5, group, nil, []string{"consumer"}); !ok || listed.GroupType != "consumer" || listed.ProtocolType != "consumer" {
		t.Errorf("listed: %+v, %t", listed, ok)
	}
}

func TestC032_coordinator_moves(t *testing.T) {
	// A member has something to let go of and another waits for it when the coordinator is killed: on the next one the epochs and states are as before, and the members go on from there.
	t.Parallel()
	d := startDev(t, filepath.Join(t.TempDir(), "dev"), freePorts(t), "offsets.topic.num.partitions=1", "group.consumer.assignment.interval.ms=0")
	line := d.until("nodes are ready")
	_, bootstrap, _ := strings.Cut(line, "--bootstrap-server ")
	cl, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(strings.TrimSpace(bootstrap), ",")...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := kadm.NewClient(cl).CreateTopic(ctx, 4, 3, nil, "moved"); err != nil {
		t.Fatal(err)
	}
	beat := func(req *kmsg.ConsumerGroupHeartbeatRequest) *kmsg.ConsumerGroupHeartbeatResponse {
		t.Helper()
		last := ""
		for {
			find := kmsg.NewPtrFindCoordinatorRequest()
			find.CoordinatorKey, find.CoordinatorKeys = "g", []string{"g"}
			found, err := find.RequestWith(ctx, cl)
			if err == nil && found.Coordinators[0].ErrorCode != 0 {
				last = fmt.Sprintf("%+v", found.Coordinators[0])
				continue
			}
			if err != nil {
				t.Fatalf("no coordinator: %v, before: %s", err, last)
			}
			resp, err := req.RequestWith(ctx, cl.Broker(int(found.Coordinators[0].NodeID)))
			if ctx.Err() != nil {
				t.Fatalf("no answer: %v, before: %s", err, last)
			}
			last = fmt.Sprintf("node %d: %v, %+v", found.Coordinators[0].NodeID, err, resp)
			if err == nil && !slices.Contains([]int16{14, 15, 16}, resp.ErrorCode) {
				return resp
			}
		}
	}
	describe := func() string {
		t.Helper()
		var described kadm.DescribedConsumerGroups
		for last := ""; described["g"].State == ""; {
			cl, err := kgo.NewClient(cl.Opts()...) // one that has not heard of the old coordinator
			if err != nil {
				t.Fatal(err)
			}
			if described, err = kadm.NewClient(cl).DescribeConsumerGroups(ctx, "g"); ctx.Err() != nil {
				t.Fatalf("describe: %v, before: %s", err, last)
			}
			last = fmt.Sprint(err, described["g"].Err)
			cl.Close()
		}
		g := described["g"]
		text := fmt.Sprintf("%s epoch %d target %d", g.State, g.Epoch, g.AssignmentEpoch)
		for _, m := range g.Members {
			text += fmt.Sprintf("; %s epoch %d has %d of %d", m.MemberID, m.MemberEpoch, len(m.Assignment["moved"]), len(m.TargetAssignment["moved"]))
		}
		return text
	}
	for first := beat(consumerJoin("g", "a", "moved")); first.Assignment == nil || len(first.Assignment.Topics) == 0; {
		first = beat(consumerBeat("g", "a", first.MemberEpoch)) // the coordinator may hear of the topic a moment later
	}
	beat(consumerJoin("g", "b", "moved"))
	described, err := kadm.NewClient(cl).DescribeConsumerGroups(ctx, "g")
	if err != nil {
		t.Fatal(err)
	}
	epoch := described["g"].Members[0].MemberEpoch
	told := beat(consumerBeat("g", "a", epoch))
	if told.ErrorCode != 0 || told.Assignment == nil || len(told.Assignment.Topics[0].Partitions) != 2 {
		t.Fatalf("a is told to let go: %+v", told)
	}
	before := describe()

	find := kmsg.NewPtrFindCoordinatorRequest()
	find.CoordinatorKey, find.CoordinatorKeys = "g", []string{"g"}
	found, err := find.RequestWith(ctx, cl)
	if err != nil || found.Coordinators[0].ErrorCode != 0 {
		t.Fatalf("%v, %+v", err, found)
	}
	d.tell(fmt.Sprint("kill ", found.Coordinators[0].NodeID))
	d.until(": killed")
	same := beat(consumerBeat("g", "a", epoch))
	if same.ErrorCode != 0 || same.MemberEpoch != epoch || same.Assignment != nil {
		t.Errorf("a goes on: %+v", same)
	}
	if after := describe(); after != before {
		t.Errorf("before: %s\nafter:  %s", before, after)
	}
	ack := consumerBeat("g", "a", epoch)
	ack.Topics = []kmsg.ConsumerGroupHeartbeatRequestTopic{{TopicID: told.Assignment.Topics[0].TopicID, Partitions: told.Assignment.Topics[0].Partitions}}
	if resp := beat(ack); resp.ErrorCode != 0 || resp.MemberEpoch != epoch+1 {
		t.Errorf("a has let go: %+v", resp)
	}
	if got := beat(consumerBeat("g", "b", epoch+1)); got.ErrorCode != 0 || got.Assignment == nil || len(got.Assignment.Topics[0].Partitions) != 2 {
		t.Errorf("b gets the others: %+v", got)
	}
}
