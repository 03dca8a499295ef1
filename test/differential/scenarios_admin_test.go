//go:build interop

package differential

import (
	"encoding/binary"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/wire"
)

func init() {
	scenarios = append(scenarios,
		scenario{name: "api-versions", needs: []int16{18}, turns: 2, play: apiVersionsPlay},
		scenario{name: "cluster", needs: []int16{60}, turns: 2, play: clusterPlay},
		scenario{name: "quorum", needs: []int16{55}, turns: 2, play: quorumPlay},
		scenario{name: "features", needs: []int16{57}, play: featuresPlay},
		scenario{name: "log-dirs", needs: []int16{35}, alone: true, turns: 2, play: logDirsPlay},
		scenario{name: "quotas", needs: []int16{48, 49}, alone: true, turns: 2, play: quotasPlay},
		scenario{name: "resources", needs: []int16{74, 44}, alone: true, turns: 2, play: resourcesPlay},
		scenario{name: "topic-partitions", needs: []int16{75}, alone: true, turns: 3, play: topicPartitionsPlay},
		scenario{name: "frames", turns: 2, play: framesPlay},
		scenario{name: "tags", alone: true, turns: 1, play: tagsPlay},
	)
}

func apiVersionsPlay(l *lane) {
	ask := func(version int16, change func(*kmsg.ApiVersionsRequest)) {
		req := kmsg.NewPtrApiVersionsRequest()
		req.ClientSoftwareName, req.ClientSoftwareVersion = "some-client", "1.2.3"
		if change != nil {
			change(req)
		}
		l.do(version, req)
	}
	for v := int16(0); v <= l.versions[18][1]; v++ {
		ask(v, nil)
	}
	for _, name := range []string{"", "sp ace", "a.b-c", "-a", "a-", ".a", "\u00fc", "UPPER", strings.Repeat("n", 300), "under_score"} {
		ask(l.version(18, 3), func(r *kmsg.ApiVersionsRequest) { r.ClientSoftwareName = name })
		ask(l.version(18, 3), func(r *kmsg.ApiVersionsRequest) { r.ClientSoftwareVersion = name })
	}
	if l.versions[18][1] >= 5 {
		for _, node := range []int32{-1, 1, 0, 2, -2} {
			for _, cluster := range []*string{nil, ptr(clusterSymbol), ptr(""), ptr("another-cluster-000000")} {
				ask(5, func(r *kmsg.ApiVersionsRequest) { r.NodeID, r.ClusterID = node, cluster })
			}
		}
	}
	for _, v := range []int16{6, 7, 99, 32767, -1} {
		req := kmsg.NewPtrApiVersionsRequest()
		l.bytes(v, req, true, func(int) []byte {
			return wire.AppendFrame(nil, func(b []byte) []byte {
				return wire.AppendRequestHeader(b, 18, v, 77, &clientID, v >= 3)
			})
		}, (*side).raw)
	}
}

func clusterPlay(l *lane) {
	ask := func(change func(*kmsg.DescribeClusterRequest)) {
		req := kmsg.NewPtrDescribeClusterRequest()
		change(req)
		l.do(l.version(60), req)
	}
	for _, kind := range []int8{0, 1, 2, 3, -1} {
		ask(func(r *kmsg.DescribeClusterRequest) { r.EndpointType = kind })
		ask(func(r *kmsg.DescribeClusterRequest) {
			r.EndpointType, r.IncludeClusterAuthorizedOperations, r.IncludeFencedBrokers = kind, true, true
		})
	}
}

func quorumPlay(l *lane) {
	ask := func(topics ...any) {
		req := kmsg.NewPtrDescribeQuorumRequest()
		for i := 0; i < len(topics); i += 2 {
			t := kmsg.NewDescribeQuorumRequestTopic()
			t.Topic = topics[i].(string)
			t.Partitions = append(t.Partitions, kmsg.DescribeQuorumRequestTopicPartition{Partition: int32(topics[i+1].(int))})
			req.Topics = append(req.Topics, t)
		}
		l.do(l.version(55), req)
	}
	ask()
	ask("__cluster_metadata", 0)
	ask("__cluster_metadata", 1)
	ask("__cluster_metadata", -1)
	ask("no-such-topic", 0)
	ask("", 0)
	ask("__cluster_metadata", 0, "__cluster_metadata", 0)
	ask("__cluster_metadata", 0, "no-such-topic", 0)
	ask("__cluster_metadata", 0)
}

func featuresPlay(l *lane) {
	update := func(version int16, validate bool, updates ...kmsg.UpdateFeaturesRequestFeatureUpdate) {
		req := kmsg.NewPtrUpdateFeaturesRequest()
		req.TimeoutMillis, req.ValidateOnly, req.FeatureUpdates = 20000, validate, updates
		l.do(version, req)
		l.do(l.version(18, 3), func() kmsg.Request {
			r := kmsg.NewPtrApiVersionsRequest()
			r.ClientSoftwareName, r.ClientSoftwareVersion = "a", "1"
			return r
		}())
	}
	to := func(feature string, level int16, kind int8) kmsg.UpdateFeaturesRequestFeatureUpdate {
		u := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
		u.Feature, u.MaxVersionLevel, u.UpgradeType, u.AllowDowngrade = feature, level, kind, kind > 1
		return u
	}
	for v := l.versions[57][0]; v <= l.versions[57][1]; v++ {
		update(v, true)
		update(v, v > 0)
		for _, level := range []int16{0, 1, 6, 7, 8, 29, 30, 31, 32, 33, 34, 99, -1} {
			for _, kind := range []int8{0, 1, 2, 3, 4} {
				if v > 0 {
					update(v, true, to("metadata.version", level, kind))
				} else if level > 33 || level < 7 {
					update(v, false, to("metadata.version", level, kind))
				}
			}
		}
		for _, name := range []string{"no.such", "", "kraft.version", "METADATA.VERSION"} {
			if v == 0 && name == "kraft.version" {
				continue // Kafka would do it, for good
			}
			for _, level := range []int16{0, 1, 2} {
				update(v, v > 0, to(name, max(level, 1), 1))
				if v > 0 {
					update(v, true, to(name, level, 2))
				}
			}
		}
		if v > 0 {
			update(v, true, to("metadata.version", 33, 1), to("no.such", 1, 1))
			update(v, true, to("metadata.version", 33, 1), to("metadata.version", 33, 1))
		}
	}
}

func logDirsPlay(l *lane) {
	f := l.fixture()
	ask := func(topics ...any) {
		req := kmsg.NewPtrDescribeLogDirsRequest()
		for i := 0; i < len(topics); i += 2 {
			t := kmsg.NewDescribeLogDirsRequestTopic()
			t.Topic, t.Partitions = topics[i].(string), topics[i+1].([]int32)
			req.Topics = append(req.Topics, t)
		}
		l.do(l.version(35), req)
	}
	ask()
	ask(f.one, []int32{0})
	ask(f.three, []int32{2, 0, 0}, f.one, []int32{0})
	ask(f.three, []int32{})
	ask(f.three, []int32{9}, "no-such-topic", []int32{0}, "", []int32{0})
	ask(f.one, []int32{0}, f.one, []int32{0})
	none := kmsg.NewPtrDescribeLogDirsRequest()
	none.Topics = []kmsg.DescribeLogDirsRequestTopic{}
	l.do(l.version(35), none)
}

func quotasPlay(l *lane) {
	type entity = kmsg.AlterClientQuotasRequestEntryEntity
	alter := func(validate bool, entities []entity, ops ...kmsg.AlterClientQuotasRequestEntryOp) {
		req := kmsg.NewPtrAlterClientQuotasRequest()
		req.ValidateOnly = validate
		e := kmsg.NewAlterClientQuotasRequestEntry()
		e.Entity, e.Ops = entities, ops
		req.Entries = append(req.Entries, e)
		l.do(l.version(49), req)
	}
	describe := func(strict bool, components ...kmsg.DescribeClientQuotasRequestComponent) {
		req := kmsg.NewPtrDescribeClientQuotasRequest()
		req.Strict, req.Components = strict, components
		l.do(l.version(48), req)
	}
	op := func(key string, value float64, remove bool) kmsg.AlterClientQuotasRequestEntryOp {
		return kmsg.AlterClientQuotasRequestEntryOp{Key: key, Value: value, Remove: remove}
	}
	where := func(kind string, match int8, name *string) kmsg.DescribeClientQuotasRequestComponent {
		return kmsg.DescribeClientQuotasRequestComponent{EntityType: kind, MatchType: kmsg.QuotasMatchType(match), Match: name}
	}
	user, client := l.fresh("user"), l.fresh("client")
	describe(false)
	big := float64(1 << 40)
	alter(false, []entity{{Type: "user", Name: &user}}, op("producer_byte_rate", big, false), op("consumer_byte_rate", big+0.5, false))
	alter(false, []entity{{Type: "user", Name: &user}, {Type: "client-id", Name: &client}}, op("request_percentage", 500, false))
	alter(false, []entity{{Type: "client-id", Name: nil}}, op("producer_byte_rate", big, false))
	alter(true, []entity{{Type: "client-id", Name: &client}}, op("producer_byte_rate", big, false))
	describe(false)
	describe(true)
	for _, strict := range []bool{false, true} {
		describe(strict, where("user", 0, &user))
		describe(strict, where("user", 2, nil))
		describe(strict, where("user", 1, nil))
		describe(strict, where("client-id", 1, nil))
		describe(strict, where("client-id", 2, nil), where("user", 2, nil))
		describe(strict, where("user", 0, &user), where("client-id", 0, &client))
		describe(strict, where("user", 0, nil))
		describe(strict, where("user", 1, &user))
		describe(strict, where("user", 2, &user))
		describe(strict, where("user", 3, &user))
		describe(strict, where("user", -1, nil))
		describe(strict, where("ip", 2, nil))
		describe(strict, where("ip", 2, nil), where("user", 2, nil))
		describe(strict, where("nonsense", 2, nil))
		describe(strict, where("", 2, nil))
		describe(strict, where("user", 0, &user), where("user", 0, &user))
	}
	for _, entities := range [][]entity{
		nil, {{Type: "nonsense", Name: &user}}, {{Type: "", Name: &user}}, {{Type: "user", Name: ptr("")}}, {{Type: "user", Name: &user}, {Type: "user", Name: &user}},
		{{Type: "ip", Name: ptr("127.0.0.9")}}, {{Type: "ip", Name: ptr("not an address at all")}}, {{Type: "ip", Name: nil}}, {{Type: "ip", Name: ptr("127.0.0.9")}, {Type: "user", Name: &user}},
	} {
		for _, o := range []kmsg.AlterClientQuotasRequestEntryOp{op("producer_byte_rate", big, false), op("connection_creation_rate", 1000, false), op("nonsense", 1, false), op("producer_byte_rate", 0, true)} {
			alter(l.chance(50), entities, o)
		}
	}
	for _, value := range []float64{0, -1, 0.5, 1e300} {
		alter(true, []entity{{Type: "user", Name: &user}}, op("producer_byte_rate", value, false))
		alter(true, []entity{{Type: "user", Name: &user}}, op("request_percentage", value, false))
		alter(true, []entity{{Type: "user", Name: &user}}, op("controller_mutation_rate", value, false))
	}
	alter(false, []entity{{Type: "user", Name: &user}})
	alter(false, []entity{{Type: "user", Name: &user}}, op("producer_byte_rate", big, false), op("producer_byte_rate", 0, true))
	alter(false, []entity{{Type: "user", Name: &user}}, op("consumer_byte_rate", 0, true), op("consumer_byte_rate", 0, true))
	alter(false, []entity{{Type: "client-id", Name: nil}}, op("producer_byte_rate", 0, true))
	clear := func(entities ...entity) {
		req := kmsg.NewPtrAlterClientQuotasRequest()
		e := kmsg.NewAlterClientQuotasRequestEntry()
		e.Entity, e.Ops = entities, []kmsg.AlterClientQuotasRequestEntryOp{op("producer_byte_rate", 0, true), op("consumer_byte_rate", 0, true)}
		req.Entries = append(req.Entries, e)
		l.tidy(1, req)
	}
	clear(entity{Type: "user", Name: &user})
	describe(false)
	two := kmsg.NewPtrAlterClientQuotasRequest()
	for range 2 {
		e := kmsg.NewAlterClientQuotasRequestEntry()
		e.Entity, e.Ops = []entity{{Type: "client-id", Name: &client}}, []kmsg.AlterClientQuotasRequestEntryOp{op("producer_byte_rate", big, false)}
		two.Entries = append(two.Entries, e)
	}
	l.do(l.version(49), two)
	clear(entity{Type: "client-id", Name: &client})
	l.do(l.version(49), kmsg.NewPtrAlterClientQuotasRequest())
	describe(false)
}

func resourcesPlay(l *lane) {
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	addAlter(req, kmsg.ConfigResourceType(16), l.fresh("metrics"), 0, "interval.ms", ptr("60000"))
	addAlter(req, kmsg.ConfigResourceType(32), l.fresh("group"), 0, "consumer.session.timeout.ms", ptr("50000"))
	l.do(l.version(44), req)
	l.createTopic(l.fresh("t"), 1)
	for _, kinds := range [][]int8{nil, {}, {2}, {4}, {8}, {16}, {32}, {0}, {99}, {-1}, {16, 32}, {4, 99}, {16, 16}} {
		list := kmsg.NewPtrListConfigResourcesRequest()
		list.ResourceTypes = kinds
		l.do(l.version(74), list)
	}
}

func topicPartitionsPlay(l *lane) {
	f := l.fixture()
	ask := func(limit int32, cursor *kmsg.DescribeTopicPartitionsRequestCursor, topics ...string) {
		req := kmsg.NewPtrDescribeTopicPartitionsRequest()
		req.ResponsePartitionLimit, req.Cursor = limit, cursor
		for _, name := range topics {
			t := kmsg.NewDescribeTopicPartitionsRequestTopic()
			t.Topic = name
			req.Topics = append(req.Topics, t)
		}
		l.do(0, req)
	}
	at := func(topic string, partition int32) *kmsg.DescribeTopicPartitionsRequestCursor {
		c := kmsg.NewDescribeTopicPartitionsRequestCursor()
		c.Topic, c.Partition = topic, partition
		return &c
	}
	ask(2000, nil)
	for _, limit := range []int32{1, 2, 3, 4, 5, 2000, 2001, 0, -1} {
		ask(limit, nil, f.three, f.one, f.growing)
	}
	ask(2000, nil, f.three, f.three)
	ask(2000, nil, strangeNames...)
	ask(2000, nil, "no-such-topic", f.one)
	for _, name := range []string{f.one, f.three, f.growing, "", "zzzz", "aaaa", "bad name"} {
		for _, p := range []int32{0, 1, 3, -1, -2} {
			ask(2, at(name, p), f.one, f.three, f.growing)
		}
		ask(3, at(name, 0))
	}
}

// framesPlay breaks what stands before the request.
func framesPlay(l *lane) {
	req := kmsg.NewPtrApiVersionsRequest()
	send := func(b []byte, key, version int16) {
		l.bytes(0, req, true, func(int) []byte { return append([]byte{}, b...) }, func(s *side, c string, b []byte, _, _ int16, id int32) outcome {
			return s.raw(c, b, key, version, id)
		})
	}
	header := func(key, version int16) []byte {
		return wire.AppendFrame(nil, func(b []byte) []byte {
			return wire.AppendRequestHeader(b, key, version, 77, &clientID, false)
		})
	}
	for _, key := range []int16{-1, 4, 5, 6, 7, 62, 63, 58, 95, 99, 999, 32767, -32768} {
		for _, version := range []int16{0, 1, -1, 99} {
			send(header(key, version), key, version)
		}
	}
	for _, key := range NodeKeys {
		if served, ok := l.versions[key]; ok && key != 18 {
			send(header(key, served[1]+1), key, served[1]+1)
			send(header(key, -1), key, -1)
			if served[0] > 0 {
				send(header(key, served[0]-1), key, served[0]-1)
			}
		}
	}
	size := func(n uint32, rest ...byte) []byte { return append(binary.BigEndian.AppendUint32(nil, n), rest...) }
	for _, b := range [][]byte{size(0), size(1, 0), size(0xffffffff), size(0x80000000), size(0x7fffffff), size(104857601), size(4, 0, 18, 0, 0), size(8, 0, 18, 0, 0, 0, 0, 0, 77),
		size(10, 0, 18, 0, 0, 0, 0, 0, 77, 0xff, 0xff), size(10, 0, 18, 0, 0, 0, 0, 0, 77, 0xff, 0xfe), size(10, 0, 18, 0, 0, 0, 0, 0, 77, 0x7f, 0xff), []byte("GET / HTTP/1.1\r\nHost: here\r\n\r\n"), {0x16, 3, 1, 0, 200, 1, 0, 0}} {
		send(b, 18, 0)
	}
	// A name that is no UTF-8.
	broken := describeGroups("broken-\xff")
	l.bytes(5, broken, true, func(int) []byte { return frame(broken, 5, 77, &clientID) }, (*side).raw)
	// No client id, an empty one, one that is no UTF-8.
	for _, id := range []*string{nil, ptr(""), ptr("\xff\xfe"), ptr(strings.Repeat("c", 30000))} {
		b := frame(kmsg.NewPtrApiVersionsRequest(), 0, 77, id)
		l.bytes(0, req, false, func(int) []byte { return append([]byte{}, b...) }, (*side).raw)
		m := kmsg.NewPtrMetadataRequest()
		m.Topics = []kmsg.MetadataRequestTopic{}
		b = frame(m, 12, 77, id)
		l.bytes(12, m, false, func(int) []byte { return append([]byte{}, b...) }, (*side).raw)
	}
}

// tagsPlay puts unknown tagged fields into the header and the body of every flexible version: they are to be skipped.
func tagsPlay(l *lane) {
	f := l.fixture()
	for _, key := range NodeKeys {
		served, ok := l.versions[key]
		if !ok {
			continue
		}
		for v := served[0]; v <= served[1]; v++ {
			req := generators[key](l, f, v)
			if req.SetVersion(v); !req.IsFlexible() || refused(key, v) {
				continue
			}
			resolved := l.resolved(req, v)
			l.bytes(v, req, false, func(i int) []byte {
				head := frame(resolved[i], v, 77, &clientID)
				at := body(head, resolved[i])
				tags := []byte{2, 50, 3, 'a', 'b', 'c', 100, 0}
				// The header's tags are its last byte, the body's are the request's last.
				b := append(append(append([]byte{}, head[:at-1]...), tags...), head[at:len(head)-1]...)
				return resize(append(b, tags...))
			}, (*side).raw)
		}
	}
}
