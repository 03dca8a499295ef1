package node

import (
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestM059_auto_creation(t *testing.T) {
	// A missing topic is answered 3 and then is there; with the flag off it never is; with num.partitions set at the broker it has so many.
	t.Parallel()
	c := shared(t).dial(t)
	for version := int16(0); version <= 13; version++ {
		name := c.freshName()
		got := c.named(version, true, name).Topics[0]
		if got.ErrorCode != 3 || deref(got.Topic) != name || len(got.Partitions) != 0 {
			t.Errorf("v%d: %+v", version, got)
		}
		if there := c.awaitTopic(name); len(there.Partitions) != 1 {
			t.Errorf("v%d: %d partitions", version, len(there.Partitions))
		}
		if version >= 4 {
			c.named(version, false, name+"-not")
			c.absent(name + "-not")
		}
	}
	if got := c.named(9, true, "bad/name").Topics[0]; got.ErrorCode != 17 {
		t.Errorf("bad name: %d", got.ErrorCode)
	}
	three := start(t, "num.partitions=3").dial(t)
	three.named(9, true, "three")
	if there := three.awaitTopic("three"); len(there.Partitions) != 3 {
		t.Errorf("num.partitions=3: %d partitions", len(there.Partitions))
	}
}

func TestM059_internal_topic_with_a_high_factor(t *testing.T) {
	// __consumer_offsets with factor 3 cannot be made on one broker; FindCoordinator stays at 15.
	t.Parallel()
	c := start(t, "offsets.topic.replication.factor=3").dial(t)
	for range 5 {
		find := kmsg.NewPtrFindCoordinatorRequest()
		find.CoordinatorKey = "g"
		if code := do[*kmsg.FindCoordinatorResponse](c, 3, find).ErrorCode; code != 15 {
			t.Errorf("%d", code)
		}
	}
	c.absent("__consumer_offsets")
}

func TestB038_produce_after_auto_creation(t *testing.T) {
	// Metadata creates a topic, which then takes records; Produce straight to a missing topic says 3 and creates nothing; with auto.create.topics.enable=false nothing is created.
	t.Parallel()
	c := shared(t).dial(t)
	name := c.freshName()
	if first := c.named(4, true, name).Topics[0].ErrorCode; first != 3 && first != 5 {
		t.Errorf("the first answer: %d", first)
	}
	if got := c.named(4, false, name+"-not").Topics[0].ErrorCode; got != 3 {
		t.Errorf("creation not allowed: %d", got)
	}
	there := topic{name, c.awaitTopic(name).TopicID}
	c.led(there, 1)
	if base := c.mustProduce(there, 0, plain(1, 0)); base != 0 {
		t.Errorf("produced at %d", base)
	}
	if p := c.produce(9, topic{name: name + "-straight"}, 0, plain(1, 0)); p.ErrorCode != 3 {
		t.Errorf("straight produce: %d", p.ErrorCode)
	}
	c.absent(name + "-straight")
	c.absent(name + "-not")
	off := start(t, "auto.create.topics.enable=false").dial(t)
	if got := off.named(9, true, "never").Topics[0].ErrorCode; got != 3 {
		t.Errorf("creation disabled: %d", got)
	}
	off.absent("never")
}

func TestB100_null_names_and_ids(t *testing.T) {
	// A null name or a topic id in Metadata v10 and v11 is 42; from v12 on an id works, an unknown one is 100, and neither is 42.
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1)
	ask := func(version int16, name *string, id [16]byte) kmsg.MetadataResponseTopic {
		req := kmsg.NewPtrMetadataRequest()
		one := kmsg.NewMetadataRequestTopic()
		one.Topic, one.TopicID = name, id
		req.Topics = append(req.Topics, one)
		return do[*kmsg.MetadataResponse](c, version, req).Topics[0]
	}
	for version := int16(10); version <= 11; version++ {
		if got := ask(version, nil, tp.id).ErrorCode; got != 42 {
			t.Errorf("v%d null and id: %d", version, got)
		}
		if got := ask(version, &tp.name, tp.id).ErrorCode; got != 42 {
			t.Errorf("v%d name and id: %d", version, got)
		}
		if got := ask(version, nil, [16]byte{}).ErrorCode; got != 42 {
			t.Errorf("v%d neither: %d", version, got)
		}
	}
	for version := int16(12); version <= 13; version++ {
		if got := ask(version, nil, tp.id); got.ErrorCode != 0 || deref(got.Topic) != tp.name || got.TopicID != tp.id || len(got.Partitions) != 1 {
			t.Errorf("v%d by id: %+v", version, got)
		}
		if got := ask(version, nil, [16]byte{9}); got.ErrorCode != 100 || got.Topic != nil || got.TopicID != [16]byte{9} {
			t.Errorf("v%d unknown id: %+v", version, got)
		}
		if got := ask(version, nil, [16]byte{}); got.ErrorCode != 42 {
			t.Errorf("v%d neither: %+v", version, got)
		}
	}
}

func TestM058_metadata_of_one_broker(t *testing.T) {
	// Metadata names the one broker with its listener's address, a controller that is alive, leaders with epochs, no offline replicas, and the operations 3576 and 8096 when asked.
	t.Parallel()
	n := shared(t)
	c := n.dial(t)
	tp := c.topic(2)
	for version := int16(0); version <= 13; version++ {
		req := kmsg.NewPtrMetadataRequest()
		one := kmsg.NewMetadataRequestTopic()
		one.Topic = &tp.name
		req.Topics = append(req.Topics, one)
		req.IncludeClusterAuthorizedOperations, req.IncludeTopicAuthorizedOperations = true, true
		got := do[*kmsg.MetadataResponse](c, version, req)
		if len(got.Brokers) != 1 || got.Brokers[0].NodeID != 1 || got.Brokers[0].Host != "127.0.0.1" || got.Brokers[0].Port == 0 || got.Brokers[0].Rack != nil {
			t.Errorf("v%d brokers: %+v", version, got.Brokers)
		}
		if version >= 1 && got.ControllerID != 1 || version >= 2 && deref(got.ClusterID) == "" {
			t.Errorf("v%d: controller %d, cluster %q", version, got.ControllerID, deref(got.ClusterID))
		}
		cluster, operations := int32(-2147483648), int32(-2147483648)
		if version >= 8 {
			operations = 3576
			if version <= 10 {
				cluster = 8096
			}
		}
		if got.AuthorizedOperations != cluster || got.Topics[0].AuthorizedOperations != operations {
			t.Errorf("v%d: operations %d and %d", version, got.AuthorizedOperations, got.Topics[0].AuthorizedOperations)
		}
		if version >= 10 && got.Topics[0].TopicID != tp.id || len(got.Topics[0].Partitions) != 2 {
			t.Errorf("v%d: %+v", version, got.Topics[0])
		}
		for _, p := range got.Topics[0].Partitions {
			if p.ErrorCode != 0 || p.Leader != 1 || version >= 7 && p.LeaderEpoch != 0 || len(p.Replicas) != 1 || len(p.ISR) != 1 || len(p.OfflineReplicas) != 0 {
				t.Errorf("v%d: %+v", version, p)
			}
		}
	}
}

func TestMetadata_null_and_empty_topics(t *testing.T) {
	// No topics is all of them in v0 and none from v1 on; null is all from v1 on.
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1)
	listed := func(version int16, topics []kmsg.MetadataRequestTopic) (n int, has bool) {
		req := kmsg.NewPtrMetadataRequest()
		req.Topics = topics
		for _, found := range do[*kmsg.MetadataResponse](c, version, req).Topics {
			n++
			has = has || deref(found.Topic) == tp.name
		}
		return n, has
	}
	for version := int16(0); version <= 13; version++ {
		if n, has := listed(version, []kmsg.MetadataRequestTopic{}); version == 0 && !has || version > 0 && n != 0 {
			t.Errorf("v%d empty: %d topics", version, n)
		}
		if version > 0 {
			if _, has := listed(version, nil); !has {
				t.Errorf("v%d null: the topic is not listed", version)
			}
		}
	}
}

func TestB104_internal_topics_have_their_settings(t *testing.T) {
	// __consumer_offsets is compacted and has the configured number of partitions, also when Metadata's auto-creation makes it; the transaction topic is never made with ordinary settings.
	t.Parallel()
	c := start(t, "offsets.topic.num.partitions=7", "log.retention.ms=500", "log.retention.check.interval.ms=100", "log.initial.task.delay.ms=1").dial(t)
	got := c.named(9, true, "__consumer_offsets", "__transaction_state")
	for _, topic := range got.Topics {
		if topic.ErrorCode != 3 || !topic.IsInternal {
			t.Errorf("%+v", topic)
		}
	}
	if there := c.awaitTopic("__consumer_offsets"); len(there.Partitions) != 7 || !there.IsInternal {
		t.Errorf("%+v", there)
	}
	for name, want := range map[string]string{"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600"} {
		if value := deref(c.config(ofTopic, "__consumer_offsets", name).Value); value != want {
			t.Errorf("%s=%s, want %s", name, value, want)
		}
	}
	if there := c.named(9, false, "__transaction_state").Topics[0]; there.ErrorCode == 0 {
		if value := deref(c.config(ofTopic, "__transaction_state", "cleanup.policy").Value); value != "compact" {
			t.Errorf("__transaction_state: cleanup.policy=%s", value)
		}
	}
	// What would expire in an ordinary topic stays: commits outlive the default retention by far.
	tp, group := c.topic(1), c.groupID()
	c.mustProduce(tp, 0, plain(1, time.Now().UnixMilli()))
	c.commitOffset(8, alone(group), tp, 1)
	c.eventually("an ordinary topic's record expires", func() bool { return c.offset(4, tp, 0, -2, -1).Offset == 1 })
	c.wantStored(8, group, tp, storedOffset{0, 1, -1, ""})
	if earliest := c.offset(4, topic{name: "__consumer_offsets"}, 0, -2, -1).Offset; earliest != 0 {
		t.Errorf("__consumer_offsets begins at %d", earliest)
	}
}

func TestDescribeCluster_every_version(t *testing.T) {
	// DescribeCluster lists the broker, alive as controller; another endpoint type is 114, an unknown one 115; the controller listener the reverse.
	t.Parallel()
	n := start(t)
	c := n.dial(t)
	for version := int16(0); version <= 2; version++ {
		req := kmsg.NewPtrDescribeClusterRequest()
		req.IncludeClusterAuthorizedOperations, req.IncludeFencedBrokers = true, true
		got := do[*kmsg.DescribeClusterResponse](c, version, req)
		if got.ErrorCode != 0 || got.ControllerID != 1 || len(got.Brokers) != 1 || got.Brokers[0].IsFenced || got.ClusterAuthorizedOperations != 8096 || got.ClusterID == "" {
			t.Errorf("v%d: %+v", version, got)
		}
	}
	for endpoint, want := range map[int8]int16{2: 114, 3: 115} {
		req := kmsg.NewPtrDescribeClusterRequest()
		req.EndpointType = endpoint
		if got := do[*kmsg.DescribeClusterResponse](c, 1, req).ErrorCode; got != want {
			t.Errorf("endpoint type %d: %d, want %d", endpoint, got, want)
		}
	}
	controller := n.controller(t)
	for version := int16(0); version <= 2; version++ {
		req := kmsg.NewPtrDescribeClusterRequest()
		req.EndpointType = 2
		got := do[*kmsg.DescribeClusterResponse](controller, version, req)
		if version == 0 {
			if got.ErrorCode != 42 {
				t.Errorf("controller v0: %+v", got)
			}
			continue
		}
		if got.ErrorCode != 0 || got.ControllerID != 1 || len(got.Brokers) != 1 || got.Brokers[0].NodeID != 1 || got.EndpointType != 2 {
			t.Errorf("controller v%d: %+v", version, got)
		}
	}
}

func TestM058_replicas_that_are_away(t *testing.T) {
	// A partition whose only replica is fenced has no leader (5), keeps its ISR and shows it offline; v0 leaves out replicas that are away and says 9; a leader without this listener is 72, up to v5 5.
	t.Parallel()
	n := start(t)
	c := n.dial(t)
	gone, elsewhere := n.shadow(t, 77), n.shadow(t, 78)
	for _, s := range []*shadow{gone, elsewhere} {
		req := s.registration()
		if s == elsewhere {
			req.Listeners[0].Name = "ELSEWHERE"
		}
		resp := do[*kmsg.BrokerRegistrationResponse](s.client, 4, req)
		if s.epoch = resp.BrokerEpoch; resp.ErrorCode != 0 {
			t.Fatalf("register: %d", resp.ErrorCode)
		}
		if got := s.heartbeat(1<<40, false, false); got.IsFenced {
			t.Fatalf("%+v", got)
		}
	}
	made := c.create(7, false,
		wanted{name: "alone", assignments: map[int32][]int32{0: {77}}},
		wanted{name: "both", assignments: map[int32][]int32{0: {1, 77}}},
		wanted{name: "elsewhere", assignments: map[int32][]int32{0: {78}}})
	if made["alone"] != 0 || made["both"] != 0 || made["elsewhere"] != 0 {
		t.Fatalf("%v", made)
	}
	gone.heartbeat(1<<40, true, false)
	c.eventually("the fenced leader is gone", func() bool {
		p := c.named(12, false, "alone").Topics[0].Partitions
		return len(p) == 1 && p[0].Leader == -1
	})
	for version := int16(0); version <= 13; version++ {
		for _, found := range c.named(version, false, "alone", "both", "elsewhere").Topics {
			p := found.Partitions[0]
			offline := func(want ...int32) bool { return version < 5 || slices.Equal(p.OfflineReplicas, want) }
			switch *found.Topic {
			case "alone":
				wantISR := []int32{77}
				if version == 0 {
					wantISR = nil
				}
				if p.Leader != -1 || p.ErrorCode != 5 || version >= 7 && p.LeaderEpoch != 1 || !slices.Equal(p.ISR, wantISR) || !offline(77) {
					t.Errorf("v%d alone: %+v", version, p)
				}
			case "both":
				wantReplicas, wantCode := []int32{1, 77}, int16(0)
				if version == 0 {
					wantReplicas, wantCode = []int32{1}, 9
				}
				if p.Leader != 1 || p.ErrorCode != wantCode || !slices.Equal(p.Replicas, wantReplicas) || !slices.Equal(p.ISR, []int32{1}) || !offline(77) {
					t.Errorf("v%d both: %+v", version, p)
				}
			case "elsewhere":
				wantCode := int16(5)
				if version >= 6 {
					wantCode = 72
				}
				if p.Leader != -1 || p.ErrorCode != wantCode || version >= 7 && p.LeaderEpoch != 0 || !offline(78) {
					t.Errorf("v%d elsewhere: %+v", version, p)
				}
			}
		}
		if got := c.named(max(version, 1), false); got.ControllerID != 1 || len(got.Brokers) != 1 {
			t.Errorf("v%d: controller %d, %d brokers", version, got.ControllerID, len(got.Brokers))
		}
	}
}
