//go:build interop

package differential

import (
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func init() {
	scenarios = append(scenarios,
		scenario{name: "topics", needs: []int16{19, 20, 37}, turns: 5, play: topicsPlay},
		scenario{name: "assignments", needs: []int16{19, 37}, turns: 2, play: assignmentsPlay},
		scenario{name: "topic-ids", needs: []int16{19, 20, 3}, turns: 3, play: topicIDsPlay},
		scenario{name: "metadata", needs: []int16{3}, alone: true, turns: 6, play: metadataPlay},
		scenario{name: "configs", needs: []int16{32, 33, 44}, turns: 5, play: configsPlay},
		scenario{name: "broker-configs", needs: []int16{32, 33, 44}, alone: true, play: brokerConfigsPlay},
		scenario{name: "delete-records", needs: []int16{21}, turns: 3, play: deleteRecordsPlay},
	)
}

func topicsPlay(l *lane) {
	create := func(version int16, change func(*kmsg.CreateTopicsRequest)) sent {
		req := kmsg.NewPtrCreateTopicsRequest()
		req.TimeoutMillis = 20000
		change(req)
		got := l.do(version, req)
		l.finish(got)
		return got
	}
	good := l.fresh("good")
	// Good and bad ones in one request fail one by one.
	create(l.version(19), func(req *kmsg.CreateTopicsRequest) {
		addCreate(req, good, 2, 1)
		for _, name := range strangeNames {
			if name != "__consumer_offsets" && name != "__transaction_state" && len(name) < 249 && name != "UPPER" && name != "nobody-made-this" {
				addCreate(req, name, 1, 1)
			}
		}
		addCreate(req, strings.Repeat("y", 250), 1, 1)
		addCreate(req, l.fresh("none"), 0, 1)
		addCreate(req, l.fresh("negative"), -2, 1)
		addCreate(req, l.fresh("replicas"), 1, 2)
		addCreate(req, l.fresh("replicas"), 1, 0)
		addCreate(req, l.fresh("replicas"), 1, -2)
		addCreate(req, l.fresh("defaults"), -1, -1)
		addCreate(req, l.fresh("huge"), 1, 32767)
	})
	create(l.version(19), func(req *kmsg.CreateTopicsRequest) { addCreate(req, good, 2, 1) })
	create(l.version(19), func(req *kmsg.CreateTopicsRequest) { addCreate(req, good, 2, 1); req.ValidateOnly = true })
	// The same name twice, with a good one beside it.
	twice := l.fresh("twice")
	create(l.version(19), func(req *kmsg.CreateTopicsRequest) {
		addCreate(req, twice, 1, 1)
		addCreate(req, l.fresh("beside"), 1, 1)
		addCreate(req, twice, 1, 1)
	})
	// Names that differ in dot and underscore collide.
	create(l.version(19), func(req *kmsg.CreateTopicsRequest) { addCreate(req, l.name+".dot_a", 1, 1) })
	create(l.version(19), func(req *kmsg.CreateTopicsRequest) { addCreate(req, l.name+"_dot.a", 1, 1) })
	create(l.version(19), func(req *kmsg.CreateTopicsRequest) {
		addCreate(req, strings.ReplaceAll(l.name, "/", "-")+".dot_a", 1, 1)
		addCreate(req, strings.ReplaceAll(l.name, "/", "-")+"_dot.a", 1, 1)
	})
	l.tidy(5, deleteRequest(strings.ReplaceAll(l.name, "/", "-")+"_dot.a", false))
	l.settle(strings.ReplaceAll(l.name, "/", "-")+"_dot.a", 0)
	create(l.version(19), func(req *kmsg.CreateTopicsRequest) {
		addCreate(req, strings.ReplaceAll(l.name, "/", "-")+"_dot_a", 1, 1)
	})
	create(l.version(19), func(req *kmsg.CreateTopicsRequest) {}) // none at all
	create(l.version(19), func(req *kmsg.CreateTopicsRequest) { addCreate(req, l.fresh("big"), 10001, 1) })
	create(l.version(19), func(req *kmsg.CreateTopicsRequest) {
		addCreate(req, l.fresh("big"), 6000, 1)
		addCreate(req, l.fresh("big"), 6000, 1)
		req.ValidateOnly = true
	})
	// Settings.
	for _, s := range [][]string{
		{"retention.ms", "-1"}, {"retention.ms", "-2"}, {"retention.ms", ""}, {"retention.ms", "1e3"}, {"retention.ms", " 7 "}, {"retention.ms", "99999999999999999999"},
		{"cleanup.policy", "compact,delete"}, {"cleanup.policy", "delete,"}, {"cleanup.policy", "both"}, {"cleanup.policy", ""}, {"cleanup.policy", "delete, compact"},
		{"compression.type", "zstd"}, {"compression.type", "uncompressed"}, {"compression.type", "none"}, {"compression.type", "ZSTD"},
		{"min.insync.replicas", "0"}, {"min.insync.replicas", "2"}, {"segment.bytes", "13"}, {"segment.bytes", "1048576"}, {"segment.bytes", "2147483648"},
		{"no.such.setting", "1"}, {"unclean.leader.election.enable", "TRUE"}, {"unclean.leader.election.enable", "yes"}, {"min.cleanable.dirty.ratio", "1.5"}, {"min.cleanable.dirty.ratio", "0.25"},
		{"message.timestamp.type", "LogAppendTime"}, {"message.timestamp.type", "logappendtime"}, {"message.format.version", "2.0"}, {"local.retention.ms", "-2"}, {"local.retention.ms", "99999999999"},
		{"leader.replication.throttled.replicas", "*"}, {"leader.replication.throttled.replicas", "0:1"}, {"leader.replication.throttled.replicas", "x"}, {"remote.storage.enable", "true"},
		{"retention.ms", "5", "retention.ms", "6"}, {"retention.bytes", "-1", "segment.ms", "0"}, {"max.compaction.lag.ms", "1", "min.compaction.lag.ms", "2"}, {"compression.gzip.level", "10"}, {"compression.lz4.level", "17"}, {"compression.zstd.level", "23"}, {"index.interval.bytes", "-1"}, {"flush.ms", "-1"}, {"flush.messages", "0"}, {"preallocate", "true"}, {"message.timestamp.before.max.ms", "-1"}, {"file.delete.delay.ms", "0"}, {"max.message.bytes", "-1"}, {"delete.retention.ms", "-1"}, {"segment.jitter.ms", "5", "segment.ms", "4"}, {"segment.index.bytes", "3"},
	} {
		if l.chance(50) {
			create(l.version(19), func(req *kmsg.CreateTopicsRequest) {
				addCreate(req, l.fresh("set"), 1, 1, s...)
				req.ValidateOnly = l.chance(70)
			})
		}
	}
	create(l.version(19), func(req *kmsg.CreateTopicsRequest) {
		addCreate(req, l.fresh("null"), 1, 1, "retention.ms", "1")
		req.Topics[0].Configs[0].Value = nil
	})
	// More partitions.
	grow := func(version int16, validate bool, topics ...any) {
		req := kmsg.NewPtrCreatePartitionsRequest()
		req.TimeoutMillis, req.ValidateOnly = 20000, validate
		for i := 0; i < len(topics); i += 2 {
			t := kmsg.NewCreatePartitionsRequestTopic()
			t.Topic, t.Count = topics[i].(string), int32(topics[i+1].(int))
			req.Topics = append(req.Topics, t)
		}
		l.finish(l.do(version, req))
	}
	grow(l.version(37), true, good, 3)
	grow(l.version(37), false, good, 3, "no-such-topic", 5)
	grow(l.version(37), false, good, 3)
	grow(l.version(37), false, good, 2)
	grow(l.version(37), false, good, 0)
	grow(l.version(37), false, good, -1)
	grow(l.version(37), false, good, 4, good, 5)
	grow(l.version(37), false, "", 3, "bad name", 4)
	grow(l.version(37), false)
	// The end.
	del := func(version int16, change func(*kmsg.DeleteTopicsRequest)) {
		req := kmsg.NewPtrDeleteTopicsRequest()
		req.TimeoutMillis = 20000
		change(req)
		l.finish(l.do(version, req))
	}
	name := func(req *kmsg.DeleteTopicsRequest, names ...string) {
		for _, n := range names {
			one := deleteRequest(n, false)
			req.Topics, req.TopicNames = append(req.Topics, one.Topics...), append(req.TopicNames, n)
		}
	}
	id := func(req *kmsg.DeleteTopicsRequest, names ...string) {
		for _, n := range names {
			req.Topics = append(req.Topics, deleteRequest(n, true).Topics...)
		}
	}
	del(l.version(20), func(req *kmsg.DeleteTopicsRequest) { name(req, "no-such-topic", twice, "") })
	del(l.version(20), func(req *kmsg.DeleteTopicsRequest) { name(req, good, good) })
	del(6, func(req *kmsg.DeleteTopicsRequest) { name(req, good); id(req, good) })
	del(6, func(req *kmsg.DeleteTopicsRequest) { id(req, good, good, "never-was") })
	del(6, func(req *kmsg.DeleteTopicsRequest) { id(req, good); req.Topics[0].Topic = ptr("both") })
	del(6, func(req *kmsg.DeleteTopicsRequest) { id(req, good); req.Topics[0].TopicID = [16]byte{} })
	del(l.version(20), func(req *kmsg.DeleteTopicsRequest) { name(req, good, "never-was") })
	del(l.version(20), func(req *kmsg.DeleteTopicsRequest) { name(req, good) })
	del(l.version(20), func(req *kmsg.DeleteTopicsRequest) {})
}

func assignmentsPlay(l *lane) {
	assign := func(partitions int32, replicas int16, sets ...[]int32) sent {
		req := createRequest(l.fresh("assigned"), partitions, replicas)
		for i, set := range sets {
			a := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
			a.Partition, a.Replicas = int32(i), set
			req.Topics[0].ReplicaAssignment = append(req.Topics[0].ReplicaAssignment, a)
		}
		got := l.do(l.version(19), req)
		l.finish(got)
		return got
	}
	good := assign(-1, -1, []int32{1}, []int32{1})
	assign(2, -1, []int32{1}, []int32{1})
	assign(-1, 1, []int32{1})
	assign(-1, -1, []int32{2})
	assign(-1, -1, []int32{1, 1})
	assign(-1, -1, []int32{})
	assign(-1, -1, []int32{-1})
	assign(-1, -1, []int32{1}, []int32{1, 2})
	assign(-1, -1, []int32{1}, []int32{})
	// Partitions that leave a gap, or come twice.
	for _, numbers := range [][]int32{{1}, {0, 2}, {0, 0}, {-1}, {1, 0}} {
		req := createRequest(l.fresh("gap"), -1, -1)
		for _, n := range numbers {
			a := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
			a.Partition, a.Replicas = n, []int32{1}
			req.Topics[0].ReplicaAssignment = append(req.Topics[0].ReplicaAssignment, a)
		}
		l.do(l.version(19), req)
	}
	topic := good.req.(*kmsg.CreateTopicsRequest).Topics[0].Topic
	for _, sets := range [][][]int32{{{1}}, {{2}}, {{1, 1}}, {{}}, {{1}, {1}}, {{-3}}} {
		req := kmsg.NewPtrCreatePartitionsRequest()
		req.TimeoutMillis = 20000
		t := kmsg.NewCreatePartitionsRequestTopic()
		t.Topic, t.Count = topic, 3
		for _, set := range sets {
			t.Assignment = append(t.Assignment, kmsg.CreatePartitionsRequestTopicAssignment{Replicas: set})
		}
		req.Topics = append(req.Topics, t)
		req.ValidateOnly = l.chance(50)
		l.finish(l.do(l.version(37), req))
	}
}

func topicIDsPlay(l *lane) {
	name := l.fresh("again")
	l.createTopic(name, 1)
	old := l.fresh("old-id-of-" + name)
	for i := range l.sides {
		l.sides[i].ids.topics[old] = l.sides[i].ids.topics[name]
	}
	l.do(9, produceRequest(-1, name, 0, plain(3, stamp)))
	l.finish(l.do(l.version(20), deleteRequest(name, false)))
	ask := func(topic string) {
		req := kmsg.NewPtrMetadataRequest()
		t := kmsg.NewMetadataRequestTopic()
		t.TopicID = topicID(topic)
		req.Topics = append(req.Topics, t)
		l.do(l.version(3, 12), req)
		req.Topics[0].Topic = &topic
		l.do(l.version(3, 10), req)
	}
	ask(name)
	l.createTopic(name, 1)
	ask(name)
	ask(old)
	for _, of := range []string{name, old} {
		p := produceRequest(-1, name, 0, plain(2, stamp))
		p.Topics[0].TopicID = topicID(of)
		l.do(13, p)
		f := fetchRequest(fetchAt{name, 0, 0})
		f.Topics[0].TopicID = topicID(of)
		l.do(l.version(1, 13), f)
		c := commitRequest(l.fresh("group"), name, 0, 1)
		c.Topics[0].TopicID = topicID(of)
		if l.versions[8][1] >= 10 {
			l.do(10, c)
		}
		req := kmsg.NewPtrOffsetFetchRequest()
		g := kmsg.NewOffsetFetchRequestGroup()
		g.Group, g.MemberEpoch = c.Group, -1
		t := kmsg.NewOffsetFetchRequestGroupTopic()
		t.Topic, t.TopicID, t.Partitions = name, topicID(of), []int32{0}
		g.Topics = append(g.Topics, t)
		req.Groups = append(req.Groups, g)
		l.do(l.version(9, 8), req)
		l.do(6, deleteRequest(old, true))
	}
	l.finish(l.do(6, deleteRequest(name, true)))
}

func metadataPlay(l *lane) {
	f := l.fixture()
	ask := func(version int16, auto bool, names ...string) {
		req := kmsg.NewPtrMetadataRequest()
		req.AllowAutoTopicCreation = auto
		req.IncludeTopicAuthorizedOperations, req.IncludeClusterAuthorizedOperations = l.chance(30), l.chance(30)
		for _, n := range names {
			t := kmsg.NewMetadataRequestTopic()
			t.Topic = &n
			req.Topics = append(req.Topics, t)
		}
		l.do(version, req)
	}
	all := kmsg.NewPtrMetadataRequest()
	l.do(l.version(3), all) // null: all of them; empty below version 1
	none := kmsg.NewPtrMetadataRequest()
	none.Topics = []kmsg.MetadataRequestTopic{}
	l.do(l.version(3, 1), none)
	l.do(0, none)
	ask(l.version(3), false, f.three, f.one)
	ask(l.version(3), false, f.one, f.three, f.one)
	ask(l.version(3, 4), false, l.fresh("missing"), f.one, l.fresh("missing"))
	ask(l.version(3, 4), false, strangeNames...)
	ask(l.version(3, 4), true, "bad name", "", "..", strings.Repeat("z", 250))
	nothing := kmsg.NewPtrMetadataRequest()
	nothing.Topics = []kmsg.MetadataRequestTopic{kmsg.NewMetadataRequestTopic()}
	l.do(l.version(3, 13), nothing)
	// Made by asking.
	auto := l.fresh("auto")
	ask(l.version(3, 4), true, auto)
	l.settle(auto, 1)
	ask(l.version(3), true, auto)
	old := l.fresh("auto")
	ask(l.version(3, 0, 3), true, old) // versions without the flag always make it
	l.settle(old, 1)
	ask(l.version(3), false, old, f.one, auto)
	if l.versions[3][1] >= 12 {
		req := kmsg.NewPtrMetadataRequest()
		for _, n := range []string{f.one, "never-was"} {
			t := kmsg.NewMetadataRequestTopic()
			t.TopicID = topicID(n)
			req.Topics = append(req.Topics, t)
		}
		l.do(l.version(3, 12), req)
		l.do(l.version(3, 10, 11), req)
		mixed := kmsg.NewPtrMetadataRequest()
		byName := kmsg.NewMetadataRequestTopic()
		byName.Topic = &f.three
		mixed.Topics = append(mixed.Topics, req.Topics[0], byName)
		l.do(l.version(3, 12), mixed)
		byBoth := kmsg.NewMetadataRequestTopic()
		byBoth.Topic, byBoth.TopicID = &f.three, topicID(f.one)
		mixed.Topics = []kmsg.MetadataRequestTopic{byBoth}
		l.do(l.version(3, 12), mixed)
		mixed.Topics[0].TopicID = topicID(f.three)
		l.do(l.version(3, 12), mixed)
	}
}

func configsPlay(l *lane) {
	topic, other := l.fresh("configured"), l.fresh("configured")
	l.createTopic(topic, 1, "cleanup.policy", "compact", "retention.ms", "1000")
	l.createTopic(other, 1)
	describe := func(settings ...string) {
		req := describeConfigs(kmsg.ConfigResourceTypeTopic, topic, settings...)
		req.IncludeSynonyms, req.IncludeDocumentation = l.chance(60), l.chance(20)
		l.do(l.version(32), req)
	}
	describe()
	describe("retention.ms", "cleanup.policy")
	describe("retention.ms", "retention.ms", "no.such", "", "cleanup.policy")
	for _, r := range []struct {
		kind kmsg.ConfigResourceType
		name string
	}{{kmsg.ConfigResourceTypeTopic, "missing"}, {kmsg.ConfigResourceTypeTopic, ""}, {kmsg.ConfigResourceTypeTopic, "bad name"}, {0, topic}, {3, topic}, {99, topic}, {-1, topic}, {16, ""}, {16, "nobody"}, {32, "a-group"}, {32, ""}} {
		l.do(l.version(32), describeConfigs(r.kind, r.name))
	}
	twice := describeConfigs(kmsg.ConfigResourceTypeTopic, topic)
	twice.Resources = append(twice.Resources, describeConfigs(kmsg.ConfigResourceTypeTopic, "missing").Resources[0], describeConfigs(kmsg.ConfigResourceTypeTopic, other, "retention.ms").Resources[0], twice.Resources[0])
	l.do(l.version(32), twice)
	l.do(l.version(32), kmsg.NewPtrDescribeConfigsRequest())

	type change struct {
		op    int8
		name  string
		value any
	}
	alter := func(changes ...change) {
		req := kmsg.NewPtrIncrementalAlterConfigsRequest()
		req.ValidateOnly = l.chance(25)
		for _, c := range changes {
			var v *string
			if s, ok := c.value.(string); ok {
				v = &s
			}
			addAlter(req, kmsg.ConfigResourceTypeTopic, topic, c.op, c.name, v)
		}
		l.do(l.version(44), req)
		if l.chance(60) {
			describe()
		}
	}
	alter(change{0, "retention.ms", "2000"})
	alter(change{1, "retention.ms", nil})
	alter(change{1, "retention.ms", "ignored"})
	alter(change{2, "cleanup.policy", "delete"})
	alter(change{2, "cleanup.policy", "delete"}) // already there
	alter(change{3, "cleanup.policy", "compact"})
	alter(change{3, "cleanup.policy", "compact"}) // no longer there
	alter(change{3, "cleanup.policy", "delete"})  // nothing left
	alter(change{2, "retention.ms", "5"})
	alter(change{3, "max.message.bytes", "5"})
	alter(change{2, "leader.replication.throttled.replicas", "0:1,1:1"})
	alter(change{3, "leader.replication.throttled.replicas", "1:1"})
	alter(change{2, "no.such", "5"})
	alter(change{0, "no.such", "5"})
	alter(change{1, "no.such", nil})
	alter(change{0, "retention.ms", nil})
	alter(change{4, "retention.ms", "4"})
	alter(change{-1, "retention.ms", "4"})
	alter(change{0, "retention.ms", "x"}, change{0, "retention.bytes", "5"})
	alter(change{0, "retention.ms", "5"}, change{1, "retention.ms", nil})
	alter(change{0, "retention.ms", "5"}, change{0, "retention.ms", "5"})
	alter(change{0, "", "5"})
	alter(change{0, "compression.type", "gzip"}, change{0, "compression.gzip.level", "9"})
	alter(change{0, "min.insync.replicas", "5"})
	alter(change{0, "segment.bytes", "1"})
	alter(change{0, "remote.storage.enable", "true"})
	alter(change{0, "message.timestamp.type", "LogAppendTime"}, change{1, "message.timestamp.type", nil})
	alter()
	// Several resources: each by itself; one of them twice.
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	addAlter(req, kmsg.ConfigResourceTypeTopic, topic, 0, "retention.ms", ptr("bad"))
	addAlter(req, kmsg.ConfigResourceTypeTopic, other, 0, "retention.ms", ptr("4000"))
	addAlter(req, kmsg.ConfigResourceTypeTopic, "missing", 0, "retention.ms", ptr("4000"))
	addAlter(req, kmsg.ConfigResourceType(0), topic, 0, "retention.ms", ptr("4000"))
	addAlter(req, kmsg.ConfigResourceType(32), "some-group", 0, "consumer.session.timeout.ms", ptr("50000"))
	addAlter(req, kmsg.ConfigResourceType(32), "", 0, "consumer.session.timeout.ms", ptr("50000"))
	addAlter(req, kmsg.ConfigResourceType(16), "", 0, "interval.ms", ptr("50000"))
	addAlter(req, kmsg.ConfigResourceTypeTopic, "", 0, "retention.ms", ptr("4000"))
	l.do(l.version(44), req)
	again := kmsg.NewPtrIncrementalAlterConfigsRequest()
	addAlter(again, kmsg.ConfigResourceTypeTopic, other, 0, "retention.ms", ptr("4001"))
	again.Resources = append(again.Resources, again.Resources[0])
	addAlter(again, kmsg.ConfigResourceTypeTopic, topic, 0, "retention.ms", ptr("4002"))
	l.do(l.version(44), again)
	l.do(l.version(32), twice)
	// Groups and client metrics.
	group, metrics := l.fresh("group"), l.fresh("metrics")
	for _, s := range [][2]string{{"consumer.session.timeout.ms", "50000"}, {"consumer.session.timeout.ms", "1"}, {"consumer.heartbeat.interval.ms", "6000"}, {"no.such", "1"}, {"share.auto.offset.reset", "earliest"}, {"streams.num.standby.replicas", "1"}} {
		req := kmsg.NewPtrIncrementalAlterConfigsRequest()
		addAlter(req, kmsg.ConfigResourceType(32), group, 0, s[0], ptr(s[1]))
		l.do(l.version(44), req)
	}
	l.do(l.version(32), describeConfigs(32, group))
	for _, s := range [][2]string{{"interval.ms", "50000"}, {"interval.ms", "1"}, {"metrics", "org.apache.kafka.producer."}, {"match", "client_id=a"}, {"match", "nonsense"}, {"no.such", "1"}} {
		req := kmsg.NewPtrIncrementalAlterConfigsRequest()
		addAlter(req, kmsg.ConfigResourceType(16), metrics, 0, s[0], ptr(s[1]))
		l.do(l.version(44), req)
	}
	l.do(l.version(32), describeConfigs(16, metrics))
	// All at once: what is not named goes back to its default.
	whole := func(kind kmsg.ConfigResourceType, name string, validate bool, settings ...string) {
		req := kmsg.NewPtrAlterConfigsRequest()
		req.ValidateOnly = validate
		r := kmsg.NewAlterConfigsRequestResource()
		r.ResourceType, r.ResourceName = kind, name
		for i := 0; i < len(settings); i += 2 {
			c := kmsg.NewAlterConfigsRequestResourceConfig()
			if c.Name = settings[i]; settings[i+1] != "null" {
				c.Value = &settings[i+1]
			}
			r.Configs = append(r.Configs, c)
		}
		req.Resources = append(req.Resources, r)
		l.do(l.version(33), req)
		describe()
	}
	whole(kmsg.ConfigResourceTypeTopic, topic, true, "retention.ms", "9")
	whole(kmsg.ConfigResourceTypeTopic, topic, false, "retention.ms", "9", "segment.bytes", "2000000")
	whole(kmsg.ConfigResourceTypeTopic, topic, false, "retention.ms", "null")
	whole(kmsg.ConfigResourceTypeTopic, topic, false, "retention.ms", "x", "segment.bytes", "2000000")
	whole(kmsg.ConfigResourceTypeTopic, topic, false, "no.such", "1")
	whole(kmsg.ConfigResourceTypeTopic, topic, false, "retention.ms", "9", "retention.ms", "10")
	whole(kmsg.ConfigResourceTypeTopic, topic, false)
	whole(kmsg.ConfigResourceTypeTopic, "missing", false, "retention.ms", "9")
	whole(kmsg.ConfigResourceTypeTopic, "", false, "retention.ms", "9")
	whole(0, topic, false, "retention.ms", "9")
	whole(32, group, false, "consumer.session.timeout.ms", "46000")
	whole(32, "", false, "consumer.session.timeout.ms", "46000")
	l.do(l.version(33), kmsg.NewPtrAlterConfigsRequest())
}

func brokerConfigsPlay(l *lane) {
	describe := func(version int16, name string, synonyms, docs bool, settings ...string) {
		req := describeConfigs(kmsg.ConfigResourceTypeBroker, name, settings...)
		req.IncludeSynonyms, req.IncludeDocumentation = synonyms, docs
		l.do(version, req)
	}
	describe(4, "1", true, true)
	describe(1, "1", true, false)
	describe(3, "1", false, false, "log.retention.ms", "num.partitions", "no.such", "log.segment.bytes")
	for _, name := range []string{"", "2", "-1", "one", "1 ", "01", "99999999999"} {
		describe(l.version(32), name, true, false, "log.retention.ms", "background.threads")
	}
	set := func(resource string, op int8, name string, value *string) {
		req := kmsg.NewPtrIncrementalAlterConfigsRequest()
		addAlter(req, kmsg.ConfigResourceTypeBroker, resource, op, name, value)
		l.do(l.version(44), req)
		describe(l.version(32), "1", true, false, "log.cleaner.threads", "max.connections.per.ip", name)
		describe(l.version(32), "", true, false, "log.cleaner.threads", name)
	}
	set("1", 0, "log.segment.bytes", ptr("1048577"))
	set("", 0, "log.segment.bytes", ptr("1048578"))
	set("1", 1, "log.segment.bytes", nil)
	set("", 1, "log.segment.bytes", nil)
	set("1", 0, "node.id", ptr("3"))
	set("1", 0, "num.partitions", ptr("3"))
	set("1", 0, "log.segment.bytes", ptr("x"))
	set("1", 0, "min.insync.replicas", ptr("0"))
	set("1", 0, "min.insync.replicas", ptr("1"))
	set("", 0, "min.insync.replicas", ptr("1"))
	set("", 1, "min.insync.replicas", nil)
	set("1", 1, "min.insync.replicas", nil)
	set("", 2, "log.cleanup.policy", ptr("compact"))
	set("", 1, "log.cleanup.policy", nil)
	set("2", 0, "log.segment.bytes", ptr("1048577"))
	set("one", 0, "log.segment.bytes", ptr("1048577"))
	set("1", 0, "leader.replication.throttled.rate", ptr("100"))
	set("1", 1, "leader.replication.throttled.rate", nil)
	set("", 0, "follower.replication.throttled.rate", ptr("100"))
	set("", 1, "follower.replication.throttled.rate", nil)
	set("1", 0, "advertised.listeners", ptr("PLAINTEXT://elsewhere:1"))
	set("1", 0, "listeners", ptr("PLAINTEXT://elsewhere:1"))
	set("", 0, "listeners", ptr("PLAINTEXT://elsewhere:1"))
	whole := kmsg.NewPtrAlterConfigsRequest()
	r := kmsg.NewAlterConfigsRequestResource()
	r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeBroker, "1"
	r.Configs = append(r.Configs, kmsg.AlterConfigsRequestResourceConfig{Name: "log.segment.bytes", Value: ptr("1048579")})
	whole.Resources = append(whole.Resources, r)
	l.do(l.version(33), whole)
	describe(l.version(32), "1", true, false, "log.segment.bytes")
	whole.Resources[0].Configs = nil
	l.do(l.version(33), whole)
	describe(l.version(32), "1", true, false, "log.segment.bytes")
}

func deleteRecordsPlay(l *lane) {
	topic := l.fresh("shrinking")
	l.createTopic(topic, 2)
	for range 3 {
		l.do(9, produceRequest(-1, topic, 0, plain(5, stamp)))
	}
	cut := func(at ...any) {
		req := kmsg.NewPtrDeleteRecordsRequest()
		req.TimeoutMillis = 10000
		for i := 0; i < len(at); i += 3 {
			t := kmsg.NewDeleteRecordsRequestTopic()
			t.Topic = at[i].(string)
			p := kmsg.NewDeleteRecordsRequestTopicPartition()
			p.Partition, p.Offset = int32(at[i+1].(int)), int64(at[i+2].(int))
			t.Partitions = append(t.Partitions, p)
			req.Topics = append(req.Topics, t)
		}
		l.do(l.version(21), req)
		l.do(l.version(2, 1), offsetsRequest(topic, -2, -2))
	}
	cut(topic, 0, 3)
	cut(topic, 0, 3)
	cut(topic, 0, 2)
	cut(topic, 0, -2)
	cut(topic, 0, 16)
	cut(topic, 0, 1<<40)
	cut(topic, 1, 0)
	cut(topic, 1, 1)
	cut(topic, 2, 0)
	cut(topic, -1, 0)
	cut("no-such-topic", 0, 0)
	cut("", 0, 0)
	cut("bad name", 0, 0)
	cut("__consumer_offsets", 0, 0)
	cut("__cluster_metadata", 0, 0)
	cut(topic, 0, 4, topic, 0, 5)
	cut(topic, 0, 6, topic, 1, 0, "no-such-topic", 0, 1)
	for _, at := range []int64{0, 5, 6, 7, 14, 15, 16} {
		l.do(l.version(1), fetchRequest(fetchAt{topic, 0, at}))
	}
	cut(topic, 0, -1)
	cut(topic, 0, -1)
	l.do(l.version(1), fetchRequest(fetchAt{topic, 0, 15}, fetchAt{topic, 0, 14}))
	cut()
	compacted := l.fresh("compacted")
	l.createTopic(compacted, 1, "cleanup.policy", "compact")
	keyed := batchKeyed(4)
	l.do(9, produceRequest(-1, compacted, 0, keyed))
	cut(compacted, 0, 1)
	both := l.fresh("both")
	l.createTopic(both, 1, "cleanup.policy", "compact,delete")
	l.do(9, produceRequest(-1, both, 0, keyed))
	cut(both, 0, 1)
}

func batchKeyed(n int) []byte {
	records := some(n, stamp)
	for i := range records {
		records[i].key = fmt.Append(nil, "key ", i)
	}
	return batch(plainOptions, records...)
}
