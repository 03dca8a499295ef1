package node

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/wire"
)

// What Kafka does with requests that are odd or not quite whole, found by sending it the same ones.

// layOut is a request as a frame.
func layOut(version int16, req kmsg.Request) []byte {
	id := "node-test"
	req.SetVersion(version)
	return wire.AppendFrame(nil, func(b []byte) []byte {
		return req.AppendTo(wire.AppendRequestHeader(b, req.Key(), version, 1, &id, req.IsFlexible()))
	})
}

func sized4(b []byte) []byte { return put32(b, 0, int32(len(b)-4)) }

// A collection whose length is null or negative, where the protocol has neither, ends the connection.
func TestCollectionsWithoutALength(t *testing.T) {
	t.Parallel()
	n := shared(t)
	for version, count := range map[int16][]byte{0: {0xff, 0xff, 0xff, 0xff}, 1: {0xff, 0xff, 0xff, 0xf0}, 2: {0}} {
		whole := layOut(version, kmsg.NewPtrDeleteGroupsRequest())
		tail := 4 // the count, and the tags of a flexible version
		if version == 2 {
			tail = 2
			count = append(count, 0)
		}
		c := n.dial(t)
		c.write(sized4(append(whole[:len(whole)-tail], count...)))
		c.closed()
	}
}

// Bytes behind a request are let be.
func TestBytesBehindARequest(t *testing.T) {
	t.Parallel()
	n := shared(t)
	c := n.dial(t)
	tp := c.topic(1)
	for _, req := range []kmsg.Request{fetchRequest(at(tp, 0)), offsetsRequest(tp, -1, -1, 0), produceRequest(9, -1, tp, 0, plain(1, stamp)), kmsg.NewPtrListGroupsRequest()} {
		version := min(req.MaxVersion(), 9)
		c.write(sized4(append(layOut(version, req), 1, 2, 3)))
		if _, err := c.frame(); err != nil {
			t.Errorf("%s: %v", kmsg.NameForKey(req.Key()), err)
		}
	}
}

// Unknown tagged fields of a SyncGroup are skipped, those of its assignments too.
func TestSyncGroupWithUnknownTags(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	group := c.groupID()
	joined := c.join(3, wish{group: group})
	req := kmsg.NewPtrSyncGroupRequest()
	req.Group, req.Generation, req.MemberID = group, joined.Generation, joined.MemberID
	kind, protocol := "consumer", *joined.Protocol
	req.ProtocolType, req.Protocol = &kind, &protocol
	a := kmsg.NewSyncGroupRequestGroupAssignment()
	a.MemberID, a.MemberAssignment = joined.MemberID, []byte("mine")
	a.UnknownTags.Set(77, []byte("tag"))
	req.GroupAssignment = append(req.GroupAssignment, a)
	req.UnknownTags.Set(78, []byte("another"))
	if resp := do[*kmsg.SyncGroupResponse](c, 5, req); resp.ErrorCode != 0 || string(resp.MemberAssignment) != "mine" {
		t.Errorf("%+v", resp)
	}
}

// An id that was given to a dynamic member is not a static one's: UNKNOWN_SERVER_ERROR, and no member id beside it.
func TestStaticMemberWithADynamicID(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	req := kmsg.NewPtrJoinGroupRequest()
	req.Group, req.ProtocolType, req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = c.groupID(), "consumer", 30000, 30000
	req.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range", Metadata: []byte{1}}}
	resp := do[*kmsg.JoinGroupResponse](c, 5, req)
	if resp.ErrorCode != 79 || resp.MemberID == "" {
		t.Fatalf("without an id: %+v", resp)
	}
	static := "static"
	req.MemberID, req.InstanceID = resp.MemberID, &static
	if resp = do[*kmsg.JoinGroupResponse](c, 5, req); resp.ErrorCode != -1 || resp.MemberID != "" {
		t.Errorf("as a static member: %+v", resp)
	}
	req.InstanceID = nil
	if resp = do[*kmsg.JoinGroupResponse](c, 5, req); resp.ErrorCode != 0 || resp.Generation != 1 {
		t.Errorf("as itself: %+v", resp)
	}
}

// A client id of any negative length is none.
func TestClientIDOfNegativeLength(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	c.write([]byte{0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 0xff, 0xf0})
	if _, err := c.frame(); err != nil {
		t.Error(err)
	}
}

// To commit for it, to describe and to delete it, the empty group id is a name like any other; OffsetDelete refuses it.
func TestTheGroupWithoutAName(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1)
	c.groupID() // has the coordinator found
	commit := kmsg.NewPtrOffsetCommitRequest()
	commit.Generation = -1
	topic := kmsg.NewOffsetCommitRequestTopic()
	topic.Topic = tp.name
	p := kmsg.NewOffsetCommitRequestTopicPartition()
	p.Offset = 5
	topic.Partitions = append(topic.Partitions, p)
	commit.Topics = append(commit.Topics, topic)
	if resp := do[*kmsg.OffsetCommitResponse](c, 8, commit); resp.Topics[0].Partitions[0].ErrorCode != 0 {
		t.Errorf("commit: %+v", resp)
	}
	fetch := kmsg.NewPtrOffsetFetchRequest()
	fetch.Topics = append(fetch.Topics, kmsg.OffsetFetchRequestTopic{Topic: tp.name, Partitions: []int32{0}})
	if resp := do[*kmsg.OffsetFetchResponse](c, 5, fetch); resp.Topics[0].Partitions[0].Offset != 5 {
		t.Errorf("fetch: %+v", resp)
	}
	forget := kmsg.NewPtrOffsetDeleteRequest()
	if resp := do[*kmsg.OffsetDeleteResponse](c, 0, forget); resp.ErrorCode != 24 {
		t.Errorf("delete offsets: %+v", resp)
	}
	drop := kmsg.NewPtrDeleteGroupsRequest()
	drop.Groups = []string{""}
	if resp := do[*kmsg.DeleteGroupsResponse](c, 2, drop); resp.Groups[0].ErrorCode != 0 {
		t.Errorf("delete: %+v", resp)
	}
}

// Metadata says of a name that no topic may have that it is invalid, describes a topic once, and refuses versions 10 and
// 11 as a whole when one topic is asked for by its id.
func TestMetadataOfOddRequests(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1)
	ask := func(version int16, wanted ...kmsg.MetadataRequestTopic) *kmsg.MetadataResponse {
		req := kmsg.NewPtrMetadataRequest()
		req.Topics = wanted
		return do[*kmsg.MetadataResponse](c, version, req)
	}
	named := func(name string) kmsg.MetadataRequestTopic { return kmsg.MetadataRequestTopic{Topic: &name} }
	for _, name := range []string{"", "..", "a b"} {
		if resp := ask(9, named(name)); resp.Topics[0].ErrorCode != 17 {
			t.Errorf("%q: %+v", name, resp.Topics[0])
		}
	}
	if resp := ask(9, named(tp.name), named(tp.name)); len(resp.Topics) != 1 {
		t.Errorf("twice: %+v", resp.Topics)
	}
	resp := ask(10, named(tp.name), kmsg.MetadataRequestTopic{TopicID: tp.id})
	if len(resp.Brokers) != 0 || resp.ClusterID != nil || resp.ControllerID != -1 || resp.Topics[0].ErrorCode != 42 || resp.Topics[1].ErrorCode != 42 {
		t.Errorf("by id: %+v", resp)
	}
}

// A Metadata request that asks for any topic by its id is answered for ids alone: a name beside them is neither described
// nor made.
func TestMetadataOfNamesBesideIDs(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp, other := c.topic(1), c.topic(1)
	missing := c.groupID()
	req := kmsg.NewPtrMetadataRequest()
	req.AllowAutoTopicCreation = true
	req.Topics = []kmsg.MetadataRequestTopic{{Topic: &other.name}, {TopicID: tp.id}, {Topic: &missing}, {TopicID: [16]byte{7}, Topic: &other.name}, {}}
	resp := do[*kmsg.MetadataResponse](c, 12, req)
	if len(resp.Topics) != 2 || deref(resp.Topics[0].Topic) != tp.name || resp.Topics[0].ErrorCode != 0 ||
		resp.Topics[1].ErrorCode != 100 || resp.Topics[1].Topic != nil {
		t.Errorf("%+v", resp.Topics)
	}
	req.AllowAutoTopicCreation = false
	req.Topics = []kmsg.MetadataRequestTopic{{Topic: &missing}}
	if resp := do[*kmsg.MetadataResponse](c, 12, req); resp.Topics[0].ErrorCode != 3 {
		t.Errorf("made: %+v", resp.Topics[0])
	}
}

// The topic without a name is unknown by its name: not by its id, which nobody has given.
func TestOffsetsOfTheTopicWithoutAName(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	if p := c.offset(7, topic{}, 0, -1, -1); p.ErrorCode != 3 {
		t.Errorf("ListOffsets: %+v", p)
	}
	if e := c.offsetForEpoch(3, topic{}, 0, -1, 0); e.code != 3 {
		t.Errorf("OffsetForLeaderEpoch: %+v", e)
	}
}

// Of records without timestamps, the first is the newest.
func TestNewestOfRecordsWithoutTimestamps(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1)
	c.wantOffset(tp, -3, found{-1, -1, -1})
	c.mustProduce(tp, 0, batch(record.BuilderOptions{}, rec{-1, nil, []byte("a")}, rec{-1, nil, []byte("b")}))
	c.wantOffset(tp, -3, found{0, -1, c.leaderEpoch(tp)})
}

// FindCoordinator says NONE for no error, and from version 4 on nothing.
func TestFindCoordinatorMessages(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.CoordinatorKey, req.CoordinatorKeys = c.groupID(), []string{"g"}
	if resp := do[*kmsg.FindCoordinatorResponse](c, 2, req); deref(resp.ErrorMessage) != "NONE" {
		t.Errorf("%+v", resp)
	}
	if resp := do[*kmsg.FindCoordinatorResponse](c, 4, req); resp.Coordinators[0].ErrorMessage == nil || *resp.Coordinators[0].ErrorMessage != "" {
		t.Errorf("%+v", resp)
	}
}

// A feature level that cannot be is INVALID_UPDATE_VERSION; up to version 1 each feature is answered too.
func TestUpdateFeaturesCodes(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	req := kmsg.NewPtrUpdateFeaturesRequest()
	req.TimeoutMillis, req.ValidateOnly = 10000, true
	u := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
	u.Feature, u.MaxVersionLevel, u.UpgradeType = "metadata.version", 999, 1
	req.FeatureUpdates = append(req.FeatureUpdates, u)
	if resp := do[*kmsg.UpdateFeaturesResponse](c, 1, req); resp.ErrorCode != 95 {
		t.Errorf("%+v", resp)
	}
	req.FeatureUpdates[0].MaxVersionLevel = 33
	if resp := do[*kmsg.UpdateFeaturesResponse](c, 1, req); resp.ErrorCode != 0 || len(resp.Results) != 1 || deref(resp.Results[0].ErrorMessage) != "NONE" {
		t.Errorf("%+v", resp)
	}
}

// DescribeQuorum is about the one partition of the metadata and nothing else, or no entry is answered.
func TestDescribeQuorumOfSomethingElse(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	req := kmsg.NewPtrDescribeQuorumRequest()
	for range 2 {
		topic := kmsg.NewDescribeQuorumRequestTopic()
		topic.Topic = "__cluster_metadata"
		topic.Partitions = append(topic.Partitions, kmsg.DescribeQuorumRequestTopicPartition{})
		req.Topics = append(req.Topics, topic)
	}
	for _, p := range do[*kmsg.DescribeQuorumResponse](c, 2, req).Topics {
		if p := p.Partitions[0]; p.ErrorCode != 3 || p.LeaderID != 0 || p.HighWatermark != 0 {
			t.Errorf("%+v", p)
		}
	}
}

// DescribeCluster says what kind of endpoint it has, also when asked for another.
func TestDescribeClusterOfOtherEndpoints(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	for kind, code := range map[int8]int16{2: 114, 3: 115} {
		req := kmsg.NewPtrDescribeClusterRequest()
		req.EndpointType = kind
		if resp := do[*kmsg.DescribeClusterResponse](c, 1, req); resp.ErrorCode != code || resp.EndpointType != 1 {
			t.Errorf("%d: %+v", kind, resp)
		}
	}
}

// Settings that are refused: of all topics at once, of remote storage, and of a broker that needs a restart for them.
func TestSettingsThatAreRefused(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1)
	for _, s := range []struct {
		kind       kmsg.ConfigResourceType
		name       string
		key, value string
		code       int16
	}{
		{kmsg.ConfigResourceTypeTopic, "", "retention.ms", "5", 42},
		{kmsg.ConfigResourceTypeTopic, tp.name, "remote.storage.enable", "true", 40},
		{kmsg.ConfigResourceTypeBroker, "1", "node.id", "7", 42},
		{kmsg.ConfigResourceTypeBroker, "1", "log.segment.bytes", "x", 42},
	} {
		req := kmsg.NewPtrIncrementalAlterConfigsRequest()
		r := kmsg.NewIncrementalAlterConfigsRequestResource()
		r.ResourceType, r.ResourceName = s.kind, s.name
		r.Configs = append(r.Configs, kmsg.IncrementalAlterConfigsRequestResourceConfig{Name: s.key, Value: &s.value})
		req.Resources = append(req.Resources, r)
		if resp := do[*kmsg.IncrementalAlterConfigsResponse](c, 1, req); resp.Resources[0].ErrorCode != s.code {
			t.Errorf("%v: %+v", s, resp.Resources[0])
		}
	}
}

// An assignment of no replicas at all is not the lack of one; half a producer id is no request for a new one.
func TestEmptyIsNotAbsent(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1)
	grow := kmsg.NewPtrCreatePartitionsRequest()
	grow.TimeoutMillis = 10000
	grow.Topics = append(grow.Topics, kmsg.CreatePartitionsRequestTopic{Topic: tp.name, Count: 2, Assignment: []kmsg.CreatePartitionsRequestTopicAssignment{}})
	if resp := do[*kmsg.CreatePartitionsResponse](c, 3, grow); resp.Topics[0].ErrorCode != 39 {
		t.Errorf("%+v", resp.Topics[0])
	}
	id := kmsg.NewPtrInitProducerIDRequest()
	id.ProducerID, id.ProducerEpoch = -2, -1
	if resp := do[*kmsg.InitProducerIDResponse](c, 4, id); resp.ErrorCode != 42 {
		t.Errorf("%+v", resp)
	}
}
