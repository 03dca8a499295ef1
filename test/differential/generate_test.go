//go:build interop

package differential

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/record"
)

// fixture is what the valid requests of a lane are about.
type fixture struct {
	one, three, growing string // topics of 1, 3 and more and more partitions
	group               string // with committed offsets
	members             map[string]*membership
}

// membership is one member of a stable group of one.
type membership struct {
	group, symbol string
	generation    int32
}

// generator makes a request of one API that both servers ought to answer with success. It may send others before.
type generator func(l *lane, f *fixture, version int16) kmsg.Request

func (l *lane) fixture() *fixture {
	f := &fixture{one: l.fresh("one"), three: l.fresh("three"), growing: l.fresh("growing"), group: l.fresh("group"), members: map[string]*membership{}}
	l.aside++
	defer func() { l.aside-- }()
	req := createRequest(f.one, 1, 1)
	addCreate(req, f.three, 3, 1)
	addCreate(req, f.growing, 1, 1)
	l.do(l.version(19, 5), req)
	l.settle(f.one, 1)
	l.settle(f.three, 3)
	l.settle(f.growing, 1)
	for p := range int32(3) {
		l.do(9, produceRequest(-1, f.three, p, plain(5, stamp+int64(p)*1000)))
	}
	for i := range 4 {
		l.do(9, produceRequest(-1, f.one, 0, plain(5, stamp+int64(i)*1000)))
	}
	l.do(8, commitRequest(f.group, f.three, 0, 2))
	return f
}

func (l *lane) createTopic(name string, partitions int, settings ...string) sent {
	got := l.do(l.version(19, 5), createRequest(name, int32(partitions), 1, settings...))
	l.settle(name, partitions)
	return got
}

func createRequest(name string, partitions int32, replicas int16, settings ...string) *kmsg.CreateTopicsRequest {
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis = 20000
	addCreate(req, name, partitions, replicas, settings...)
	return req
}

func addCreate(req *kmsg.CreateTopicsRequest, name string, partitions int32, replicas int16, settings ...string) {
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = name, partitions, replicas
	for i := 0; i+1 < len(settings); i += 2 {
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		c.Name, c.Value = settings[i], &settings[i+1]
		t.Configs = append(t.Configs, c)
	}
	req.Topics = append(req.Topics, t)
}

func produceRequest(acks int16, topic string, partition int32, records []byte) *kmsg.ProduceRequest {
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis = acks, 10000
	addProduce(req, topic, partition, records)
	return req
}

func addProduce(req *kmsg.ProduceRequest, topic string, partition int32, records []byte) {
	p := kmsg.NewProduceRequestTopicPartition()
	p.Partition, p.Records = partition, records
	for i := range req.Topics {
		if req.Topics[i].Topic == topic {
			req.Topics[i].Partitions = append(req.Topics[i].Partitions, p)
			return
		}
	}
	t := kmsg.NewProduceRequestTopic()
	t.Topic, t.TopicID = topic, topicID(topic)
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
}

func commitRequest(group, topic string, partition int32, offset int64) *kmsg.OffsetCommitRequest {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.Generation = group, -1
	addCommit(req, topic, partition, offset)
	return req
}

func addCommit(req *kmsg.OffsetCommitRequest, topic string, partition int32, offset int64) {
	p := kmsg.NewOffsetCommitRequestTopicPartition()
	p.Partition, p.Offset, p.LeaderEpoch = partition, offset, 0
	meta := fmt.Sprint("at ", offset)
	p.Metadata = &meta
	t := kmsg.NewOffsetCommitRequestTopic()
	t.Topic, t.TopicID = topic, topicID(topic)
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
}

type fetchAt struct {
	topic     string
	partition int32
	offset    int64
}

func fetchRequest(at ...fetchAt) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaID, req.MaxWaitMillis, req.MinBytes, req.MaxBytes, req.SessionEpoch = -1, 0, 0, 50<<20, -1
	for _, a := range at {
		p := kmsg.NewFetchRequestTopicPartition()
		p.Partition, p.FetchOffset, p.CurrentLeaderEpoch, p.LastFetchedEpoch, p.LogStartOffset, p.PartitionMaxBytes = a.partition, a.offset, -1, -1, -1, 1<<20
		if n := len(req.Topics); n > 0 && req.Topics[n-1].Topic == a.topic {
			req.Topics[n-1].Partitions = append(req.Topics[n-1].Partitions, p)
			continue
		}
		t := kmsg.NewFetchRequestTopic()
		t.Topic, t.TopicID = a.topic, topicID(a.topic)
		t.Partitions = append(t.Partitions, p)
		req.Topics = append(req.Topics, t)
	}
	return req
}

func offsetsRequest(topic string, stamps ...int64) *kmsg.ListOffsetsRequest {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic = topic
	for i, at := range stamps {
		p := kmsg.NewListOffsetsRequestTopicPartition()
		p.Partition, p.Timestamp, p.CurrentLeaderEpoch = int32(i), at, -1
		t.Partitions = append(t.Partitions, p)
	}
	req.Topics = append(req.Topics, t)
	return req
}

func joinRequest(group, memberID string, version int16) *kmsg.JoinGroupRequest {
	req := kmsg.NewPtrJoinGroupRequest()
	req.Group, req.MemberID, req.ProtocolType = group, memberID, "consumer"
	req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = 300000, 300000
	for _, name := range []string{"range", "roundrobin"} {
		p := kmsg.NewJoinGroupRequestProtocol()
		p.Name, p.Metadata = name, []byte("\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00")
		req.Protocols = append(req.Protocols, p)
	}
	return req
}

// join makes a member of a group, through the dance of version 4 and up if it must, and keeps its id.
func (l *lane) join(connection, group, name string, version int16, change func(*kmsg.JoinGroupRequest)) sent {
	req := joinRequest(group, "", version)
	if change != nil {
		change(req)
	}
	got := l.on(connection, version, req)
	idOf := func(resp kmsg.Response) string { return resp.(*kmsg.JoinGroupResponse).MemberID }
	l.keepText("member:"+name, got, idOf)
	if first := answer[*kmsg.JoinGroupResponse](got, 0); first != nil && first.ErrorCode == 79 {
		again := *req
		again.MemberID = member(name)
		got = l.on(connection, version, &again)
	}
	return got
}

func syncRequest(m *membership, leader bool) *kmsg.SyncGroupRequest {
	req := kmsg.NewPtrSyncGroupRequest()
	req.Group, req.MemberID, req.Generation = m.group, member(m.symbol), m.generation
	kind, protocol := "consumer", "range"
	req.ProtocolType, req.Protocol = &kind, &protocol
	if leader {
		a := kmsg.NewSyncGroupRequestGroupAssignment()
		a.MemberID, a.MemberAssignment = member(m.symbol), []byte("\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00")
		req.GroupAssignment = append(req.GroupAssignment, a)
	}
	return req
}

// joined is a new group with one member, not yet synced.
func (l *lane) joined(version int16) *membership {
	m := &membership{group: l.fresh("g"), generation: 1}
	m.symbol = m.group + "/m"
	l.join(mainConn, m.group, m.symbol, version, nil)
	return m
}

// stable is a group with one member, synced. It lasts while nothing is done to it.
func (l *lane) stable(f *fixture, use string) *membership {
	if m := f.members[use]; m != nil {
		return m
	}
	var m *membership
	l.prepare(func() {
		m = l.joined(l.version(11))
		l.do(l.version(14), syncRequest(m, true))
	})
	f.members[use] = m
	return m
}

func ptr[T any](v T) *T { return &v }

var generators = map[int16]generator{
	0: func(l *lane, f *fixture, version int16) kmsg.Request {
		req := produceRequest(pick[int16](l, -1, 1), f.one, 0, plain(1+l.rng.IntN(5), stamp))
		if l.chance(40) {
			addProduce(req, f.three, int32(l.rng.IntN(3)), batch(record.BuilderOptions{Codec: pick(l, record.None, record.Gzip, record.Snappy, record.LZ4)}, some(3, stamp)...))
		}
		return req
	},
	1: func(l *lane, f *fixture, version int16) kmsg.Request {
		at := []fetchAt{{f.one, 0, int64(l.rng.IntN(20))}}
		for p := range int32(l.rng.IntN(4)) {
			at = append(at, fetchAt{f.three, p, int64(l.rng.IntN(6))})
		}
		req := fetchRequest(at...)
		req.IsolationLevel = int8(l.rng.IntN(2))
		req.MaxBytes = pick[int32](l, 1, 300, 1<<20)
		req.MinBytes = pick[int32](l, 0, 1)
		return req
	},
	2: func(l *lane, f *fixture, version int16) kmsg.Request {
		stamps := []int64{-1, -2, stamp, stamp + 3, stamp + 1002, stamp + 1<<20, 0}
		if version >= 7 {
			stamps = append(stamps, -3)
		}
		if version >= 8 {
			stamps = append(stamps, -4)
		}
		req := offsetsRequest(f.three, pick(l, stamps...), pick(l, stamps...))
		req.IsolationLevel = int8(l.rng.IntN(2))
		req.TimeoutMillis = 1000
		return req
	},
	3: func(l *lane, f *fixture, version int16) kmsg.Request {
		req := kmsg.NewPtrMetadataRequest()
		req.AllowAutoTopicCreation = l.chance(50)
		for _, name := range []string{f.one, f.three}[:1+l.rng.IntN(2)] {
			t := kmsg.NewMetadataRequestTopic()
			if t.Topic = &name; version >= 12 && l.chance(50) {
				t.Topic, t.TopicID = nil, topicID(name)
			}
			req.Topics = append(req.Topics, t)
		}
		req.IncludeTopicAuthorizedOperations = l.chance(30)
		req.IncludeClusterAuthorizedOperations = l.chance(30)
		return req
	},
	8: func(l *lane, f *fixture, version int16) kmsg.Request {
		req := commitRequest(f.group, f.three, int32(l.rng.IntN(3)), int64(l.rng.IntN(100)))
		req.RetentionTimeMillis = -1
		if l.chance(30) {
			addCommit(req, f.one, 0, 7)
		}
		return req
	},
	9: func(l *lane, f *fixture, version int16) kmsg.Request {
		req := kmsg.NewPtrOffsetFetchRequest()
		req.RequireStable = l.chance(30)
		if version < 8 {
			req.Group = f.group
			for _, name := range []string{f.three, f.one}[:1+l.rng.IntN(2)] {
				t := kmsg.NewOffsetFetchRequestTopic()
				t.Topic, t.Partitions = name, []int32{0, 1, int32(l.rng.IntN(4))}[:1+l.rng.IntN(3)]
				req.Topics = append(req.Topics, t)
			}
			if version >= 2 && l.chance(20) {
				req.Topics = nil
			}
			return req
		}
		g := kmsg.NewOffsetFetchRequestGroup()
		g.Group, g.MemberEpoch = f.group, -1
		for _, name := range []string{f.three, f.one}[:1+l.rng.IntN(2)] {
			t := kmsg.NewOffsetFetchRequestGroupTopic()
			t.Topic, t.TopicID, t.Partitions = name, topicID(name), []int32{0, 1, int32(l.rng.IntN(4))}[:1+l.rng.IntN(3)]
			g.Topics = append(g.Topics, t)
		}
		req.Groups = append(req.Groups, g)
		if l.chance(30) {
			other := kmsg.NewOffsetFetchRequestGroup()
			other.Group, other.MemberEpoch = f.group+"-other", -1
			req.Groups = append(req.Groups, other)
		}
		return req
	},
	10: func(l *lane, f *fixture, version int16) kmsg.Request {
		req := kmsg.NewPtrFindCoordinatorRequest()
		req.CoordinatorKey = f.group
		req.CoordinatorKeys = []string{f.group, f.group + "-other"}[:1+l.rng.IntN(2)]
		return req
	},
	11: func(l *lane, f *fixture, version int16) kmsg.Request {
		if l.chance(30) {
			m := l.stable(f, "join")
			req := joinRequest(m.group, member(m.symbol), version)
			delete(f.members, "join")
			return req
		}
		group := l.fresh("g")
		if version < 4 {
			return joinRequest(group, "", version)
		}
		if version >= 5 && l.chance(30) {
			req := joinRequest(group, "", version)
			req.InstanceID = ptr("static")
			return req
		}
		first := l.do(version, joinRequest(group, "", version))
		l.keepText("member:"+group, first, func(resp kmsg.Response) string { return resp.(*kmsg.JoinGroupResponse).MemberID })
		req := joinRequest(group, member(group), version)
		req.Reason = ptr("because")
		return req
	},
	12: func(l *lane, f *fixture, version int16) kmsg.Request {
		m := l.stable(f, "beat")
		req := kmsg.NewPtrHeartbeatRequest()
		req.Group, req.Generation, req.MemberID = m.group, m.generation, member(m.symbol)
		return req
	},
	13: func(l *lane, f *fixture, version int16) kmsg.Request {
		var m *membership
		l.prepare(func() { m = l.joined(l.version(11)) })
		req := kmsg.NewPtrLeaveGroupRequest()
		req.Group, req.MemberID = m.group, member(m.symbol)
		one := kmsg.NewLeaveGroupRequestMember()
		one.MemberID = member(m.symbol)
		req.Members = append(req.Members, one)
		return req
	},
	14: func(l *lane, f *fixture, version int16) kmsg.Request {
		if l.chance(50) {
			return syncRequest(l.stable(f, "sync"), l.chance(50))
		}
		var m *membership
		l.prepare(func() { m = l.joined(l.version(11)) })
		return syncRequest(m, true)
	},
	15: func(l *lane, f *fixture, version int16) kmsg.Request {
		req := kmsg.NewPtrDescribeGroupsRequest()
		req.Groups = []string{f.group, l.stable(f, "beat").group}[l.rng.IntN(2):]
		req.IncludeAuthorizedOperations = l.chance(30)
		return req
	},
	16: func(l *lane, f *fixture, version int16) kmsg.Request {
		req := kmsg.NewPtrListGroupsRequest()
		if l.chance(50) {
			req.StatesFilter = []string{"Empty", "Stable", "stable"}[l.rng.IntN(3):]
		}
		if l.chance(30) {
			req.TypesFilter = []string{"classic", "Consumer"}[l.rng.IntN(2):]
		}
		return req
	},
	18: func(l *lane, f *fixture, version int16) kmsg.Request {
		req := kmsg.NewPtrApiVersionsRequest()
		req.ClientSoftwareName, req.ClientSoftwareVersion = "differential", "1.0"
		if version >= 5 {
			// One without the other is refused.
			if l.chance(50) {
				req.NodeID, req.ClusterID = 1, ptr(clusterSymbol)
			}
		}
		return req
	},
	19: func(l *lane, f *fixture, version int16) kmsg.Request {
		req := createRequest(l.fresh("made"), pick[int32](l, 1, 2, -1), pick[int16](l, 1, -1))
		if version < 4 {
			req.Topics[0].NumPartitions, req.Topics[0].ReplicationFactor = 1, 1
		}
		if l.chance(40) {
			addCreate(req, l.fresh("made"), 1, 1, "retention.ms", "1000", "cleanup.policy", "compact")
		}
		req.ValidateOnly = l.chance(60)
		return req
	},
	20: func(l *lane, f *fixture, version int16) kmsg.Request {
		name := l.fresh("gone")
		l.prepare(func() { l.createTopic(name, 1) })
		return deleteRequest(name, version >= 6 && l.chance(50))
	},
	21: func(l *lane, f *fixture, version int16) kmsg.Request {
		req := kmsg.NewPtrDeleteRecordsRequest()
		req.TimeoutMillis = 10000
		t := kmsg.NewDeleteRecordsRequestTopic()
		t.Topic = f.growing
		p := kmsg.NewDeleteRecordsRequestTopicPartition()
		p.Partition, p.Offset = 0, -1
		t.Partitions = append(t.Partitions, p)
		req.Topics = append(req.Topics, t)
		l.prepare(func() { l.do(9, produceRequest(-1, f.growing, 0, plain(2, stamp))) })
		return req
	},
	22: func(l *lane, f *fixture, version int16) kmsg.Request {
		req := kmsg.NewPtrInitProducerIDRequest()
		req.TransactionTimeoutMillis = 60000
		return req
	},
	23: func(l *lane, f *fixture, version int16) kmsg.Request {
		req := kmsg.NewPtrOffsetForLeaderEpochRequest()
		req.ReplicaID = -1
		t := kmsg.NewOffsetForLeaderEpochRequestTopic()
		t.Topic = f.three
		for p := range int32(1 + l.rng.IntN(3)) {
			rp := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
			rp.Partition, rp.CurrentLeaderEpoch, rp.LeaderEpoch = p, pick[int32](l, -1, 0), 0
			t.Partitions = append(t.Partitions, rp)
		}
		req.Topics = append(req.Topics, t)
		return req
	},
	32: func(l *lane, f *fixture, version int16) kmsg.Request {
		req := describeConfigs(kmsg.ConfigResourceTypeTopic, f.one)
		req.IncludeSynonyms, req.IncludeDocumentation = l.chance(50), l.chance(30)
		if l.chance(40) {
			req.Resources[0].ConfigNames = []string{"retention.ms", "cleanup.policy"}
		}
		return req
	},
	33: func(l *lane, f *fixture, version int16) kmsg.Request {
		req := kmsg.NewPtrAlterConfigsRequest()
		r := kmsg.NewAlterConfigsRequestResource()
		r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeTopic, f.growing
		c := kmsg.NewAlterConfigsRequestResourceConfig()
		c.Name, c.Value = "retention.ms", ptr(fmt.Sprint(1000000000+l.rng.IntN(1000)))
		r.Configs = append(r.Configs, c)
		req.Resources = append(req.Resources, r)
		req.ValidateOnly = l.chance(50)
		return req
	},
	35: func(l *lane, f *fixture, version int16) kmsg.Request {
		req := kmsg.NewPtrDescribeLogDirsRequest()
		for _, name := range []string{f.one, f.three}[:1+l.rng.IntN(2)] {
			t := kmsg.NewDescribeLogDirsRequestTopic()
			t.Topic, t.Partitions = name, []int32{0}
			req.Topics = append(req.Topics, t)
		}
		return req
	},
	37: func(l *lane, f *fixture, version int16) kmsg.Request {
		l.settle(f.growing, 1)
		req := kmsg.NewPtrCreatePartitionsRequest()
		req.TimeoutMillis = 20000
		t := kmsg.NewCreatePartitionsRequestTopic()
		t.Topic, t.Count = f.growing, int32(l.sides[0].partitions+1)
		req.ValidateOnly = l.chance(60)
		req.Topics = append(req.Topics, t)
		return req
	},
	42: func(l *lane, f *fixture, version int16) kmsg.Request {
		req := kmsg.NewPtrDeleteGroupsRequest()
		group := l.fresh("dead")
		l.prepare(func() { l.do(l.version(8), commitRequest(group, f.one, 0, 1)) })
		req.Groups = []string{group}
		return req
	},
	44: func(l *lane, f *fixture, version int16) kmsg.Request {
		req := kmsg.NewPtrIncrementalAlterConfigsRequest()
		req.ValidateOnly = l.chance(50)
		addAlter(req, kmsg.ConfigResourceTypeTopic, f.growing, 0, "retention.ms", ptr(fmt.Sprint(1000000000+l.rng.IntN(1000))))
		return req
	},
	47: func(l *lane, f *fixture, version int16) kmsg.Request {
		req := kmsg.NewPtrOffsetDeleteRequest()
		req.Group = l.fresh("forgetful")
		l.prepare(func() { l.do(l.version(8), commitRequest(req.Group, f.one, 0, 1)) })
		t := kmsg.NewOffsetDeleteRequestTopic()
		t.Topic = f.one
		t.Partitions = append(t.Partitions, kmsg.OffsetDeleteRequestTopicPartition{Partition: 0})
		req.Topics = append(req.Topics, t)
		return req
	},
	48: func(l *lane, f *fixture, version int16) kmsg.Request {
		req := kmsg.NewPtrDescribeClientQuotasRequest()
		c := kmsg.NewDescribeClientQuotasRequestComponent()
		c.EntityType, c.MatchType, c.Match = "client-id", 0, ptr(f.group)
		req.Components = append(req.Components, c)
		return req
	},
	49: func(l *lane, f *fixture, version int16) kmsg.Request {
		req := kmsg.NewPtrAlterClientQuotasRequest()
		e := kmsg.NewAlterClientQuotasRequestEntry()
		e.Entity = append(e.Entity, kmsg.AlterClientQuotasRequestEntryEntity{Type: "client-id", Name: ptr(f.group)})
		e.Ops = append(e.Ops, kmsg.AlterClientQuotasRequestEntryOp{Key: "producer_byte_rate", Value: 1 << 30})
		req.Entries = append(req.Entries, e)
		req.ValidateOnly = l.chance(50)
		return req
	},
	55: func(l *lane, f *fixture, version int16) kmsg.Request {
		req := kmsg.NewPtrDescribeQuorumRequest()
		t := kmsg.NewDescribeQuorumRequestTopic()
		t.Topic = "__cluster_metadata"
		t.Partitions = append(t.Partitions, kmsg.DescribeQuorumRequestTopicPartition{Partition: 0})
		req.Topics = append(req.Topics, t)
		return req
	},
	57: func(l *lane, f *fixture, version int16) kmsg.Request {
		req := kmsg.NewPtrUpdateFeaturesRequest()
		req.TimeoutMillis = 20000
		req.ValidateOnly = true
		return req
	},
	60: func(l *lane, f *fixture, version int16) kmsg.Request {
		req := kmsg.NewPtrDescribeClusterRequest()
		req.IncludeClusterAuthorizedOperations = l.chance(50)
		req.IncludeFencedBrokers = l.chance(50)
		return req
	},
	74: func(l *lane, f *fixture, version int16) kmsg.Request {
		req := kmsg.NewPtrListConfigResourcesRequest()
		if version >= 1 {
			req.ResourceTypes = []int8{4, 16, 32}[l.rng.IntN(3):]
		}
		return req
	},
	75: func(l *lane, f *fixture, version int16) kmsg.Request {
		req := kmsg.NewPtrDescribeTopicPartitionsRequest()
		req.ResponsePartitionLimit = pick[int32](l, 1, 2, 2000)
		for _, name := range []string{f.one, f.three}[:1+l.rng.IntN(2)] {
			t := kmsg.NewDescribeTopicPartitionsRequestTopic()
			t.Topic = name
			req.Topics = append(req.Topics, t)
		}
		return req
	},
}

func deleteRequest(name string, byID bool) *kmsg.DeleteTopicsRequest {
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TimeoutMillis = 20000
	t := kmsg.NewDeleteTopicsRequestTopic()
	if t.Topic = &name; byID {
		t.Topic, t.TopicID = nil, topicID(name)
	}
	req.Topics, req.TopicNames = append(req.Topics, t), append(req.TopicNames, name)
	return req
}

func describeConfigs(kind kmsg.ConfigResourceType, name string, settings ...string) *kmsg.DescribeConfigsRequest {
	req := kmsg.NewPtrDescribeConfigsRequest()
	r := kmsg.NewDescribeConfigsRequestResource()
	r.ResourceType, r.ResourceName, r.ConfigNames = kind, name, settings
	req.Resources = append(req.Resources, r)
	return req
}

func addAlter(req *kmsg.IncrementalAlterConfigsRequest, kind kmsg.ConfigResourceType, resource string, op int8, name string, value *string) {
	c := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	c.Name, c.Op, c.Value = name, kmsg.IncrementalAlterConfigOp(op), value
	for i := range req.Resources {
		if r := &req.Resources[i]; r.ResourceType == kind && r.ResourceName == resource {
			r.Configs = append(r.Configs, c)
			return
		}
	}
	r := kmsg.NewIncrementalAlterConfigsRequestResource()
	r.ResourceType, r.ResourceName = kind, resource
	r.Configs = append(r.Configs, c)
	req.Resources = append(req.Resources, r)
}
