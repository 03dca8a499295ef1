package controller

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"github.com/stelelog/stele/internal/metadata"
)

type configOp struct {
	op    kmsg.IncrementalAlterConfigOp
	name  string
	value *string
}

func incremental(kind int8, name string, ops ...configOp) *kmsg.IncrementalAlterConfigsRequest {
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	r := kmsg.IncrementalAlterConfigsRequestResource{ResourceType: kmsg.ConfigResourceType(kind), ResourceName: name}
	for _, o := range ops {
		r.Configs = append(r.Configs, kmsg.IncrementalAlterConfigsRequestResourceConfig{Name: o.name, Op: o.op, Value: o.value})
	}
	req.Resources = append(req.Resources, r)
	return req
}

func outcomeOf(t *testing.T, r Result) error {
	t.Helper()
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	if err := r.Reply.(AlterConfigsReply).Resources[0].Err; err != nil {
		return err
	}
	return nil
}

// Appending and subtracting work on the stored value, or on the default when none is stored.
func TestB025_append_and_subtract(t *testing.T) {
	t.Parallel()
	k := newCluster(t)
	k.start(1)
	k.topic("t", []int32{1})
	const add, sub = kmsg.IncrementalAlterConfigOpAppend, kmsg.IncrementalAlterConfigOpSubtract
	for _, c := range []struct {
		op          kmsg.IncrementalAlterConfigOp
		value, want string
	}{{add, "compact", "delete,compact"}, {add, "compact,delete", "delete,compact"}, {sub, "delete", "compact"}, {sub, "compact", ""}} {
		if err := outcomeOf(t, k.must(k.c.IncrementalAlterConfigs(k.at(), incremental(2, "t", configOp{c.op, "cleanup.policy", new(c.value)})))); err != nil {
			t.Error(err)
		}
		if v, ok := k.c.Image().ConfigValue(metadata.ConfigResource{Type: 2, Name: "t"}, "cleanup.policy"); !ok || v != c.want {
			t.Errorf("after %d %s: %q, want %q", c.op, c.value, v, c.want)
		}
	}
	// A part is taken out where it is the same, not where it begins like another.
	const throttled = "leader.replication.throttled.replicas"
	for _, c := range []configOp{{add, throttled, new("0:1,0:10,1:1")}, {sub, throttled, new("0:1")}} {
		if err := outcomeOf(t, k.must(k.c.IncrementalAlterConfigs(k.at(), incremental(2, "t", c)))); err != nil {
			t.Error(err)
		}
	}
	if v, _ := k.c.Image().ConfigValue(metadata.ConfigResource{Type: 2, Name: "t"}, throttled); v != "0:10,1:1" {
		t.Errorf("without 0:1: %q", v)
	}
	if err := outcomeOf(t, k.c.IncrementalAlterConfigs(k.at(), incremental(2, "t", configOp{add, "retention.ms", new("1")}))); !errors.Is(err, ErrInvalidConfig) {
		t.Error(err)
	}
}

// The legacy AlterConfigs removes what it does not name; a value that is not valid changes nothing.
func TestB023_alter_configs_replaces(t *testing.T) {
	t.Parallel()
	k := newCluster(t)
	k.start(1)
	k.topic("t", []int32{1})
	resource := metadata.ConfigResource{Type: 2, Name: "t"}
	const set = kmsg.IncrementalAlterConfigOpSet
	k.must(k.c.IncrementalAlterConfigs(k.at(), incremental(2, "t", configOp{set, "compression.type", new("gzip")}, configOp{set, "retention.ms", new("1000")}, configOp{set, "max.message.bytes", new("2000")})))
	req := kmsg.NewPtrAlterConfigsRequest()
	req.Resources = []kmsg.AlterConfigsRequestResource{{ResourceType: 2, ResourceName: "t", Configs: []kmsg.AlterConfigsRequestResourceConfig{{Name: "compression.type", Value: new("brotli")}}}}
	if r := k.c.AlterConfigs(k.at(), req); !errors.Is(outcomeOf(t, r), ErrInvalidConfig) || len(r.Records) > 0 {
		t.Error("an illegal value was taken")
	}
	req.Resources[0].Configs[0].Value = new("gzip")
	r := k.must(k.c.AlterConfigs(k.at(), req))
	if got := k.c.Image().Config(resource); !reflect.DeepEqual(got, map[string]string{"compression.type": "gzip"}) || len(r.Records) != 2 {
		t.Error(got, kinds(r.Records))
	}
}

// Faults of IncrementalAlterConfigs, and which of them write records.
func TestM049_incremental_alter_configs(t *testing.T) {
	t.Parallel()
	k := newCluster(t)
	k.start(1)
	k.topic("t", []int32{1})
	const set, del = kmsg.IncrementalAlterConfigOpSet, kmsg.IncrementalAlterConfigOpDelete
	const add, sub = kmsg.IncrementalAlterConfigOpAppend, kmsg.IncrementalAlterConfigOpSubtract
	for _, c := range []struct {
		req     *kmsg.IncrementalAlterConfigsRequest
		err     error
		records int
	}{
		{incremental(2, "t", configOp{set, "retention.ms", new("1")}), nil, 1},
		{incremental(2, "t", configOp{set, "retention.ms", new("1")}), nil, 0},
		{incremental(2, "t", configOp{del, "retention.ms", nil}), nil, 1},
		{incremental(2, "t", configOp{del, "retention.ms", nil}), nil, 0},
		{incremental(2, "t", configOp{set, "no.such", new("1")}), ErrInvalidConfig, 0},
		{incremental(2, "t", configOp{set, "retention.ms", new("-2")}), ErrInvalidConfig, 0},
		{incremental(2, "t", configOp{set, "leader.replication.throttled.replicas", new(strings.Repeat("x", 32768))}), ErrInvalidConfig, 0},
		{incremental(2, "t", configOp{set, "retention.ms", new("1")}, configOp{set, "retention.ms", new("2")}), ErrInvalidRequest, 0},
		// A setting that is named twice is refused whatever is done to it first.
		{incremental(2, "t", configOp{del, "retention.ms", nil}, configOp{set, "retention.ms", new("2")}), ErrInvalidRequest, 0},
		{incremental(2, "t", configOp{del, "retention.ms", nil}, configOp{del, "retention.ms", nil}), ErrInvalidRequest, 0},
		{incremental(2, "t", configOp{add, "cleanup.policy", new("compact")}, configOp{set, "cleanup.policy", new("delete")}), ErrInvalidRequest, 0},
		{incremental(2, "t", configOp{add, "cleanup.policy", new("compact")}, configOp{sub, "cleanup.policy", new("delete")}), ErrInvalidRequest, 0},
		{incremental(2, "t", configOp{sub, "cleanup.policy", new("delete")}, configOp{add, "cleanup.policy", new("compact")}), ErrInvalidRequest, 0},
		{incremental(2, "t", configOp{sub, "cleanup.policy", new("compact")}, configOp{del, "cleanup.policy", nil}), ErrInvalidRequest, 0},
		{incremental(2, "t", configOp{9, "retention.ms", new("1")}), ErrInvalidRequest, 0},
		{incremental(2, "no", configOp{set, "retention.ms", new("1")}), ErrUnknownTopicOrPartition, 0},
		{incremental(2, "no", configOp{set, "retention.ms", new("x")}), ErrInvalidConfig, 0}, // the value is looked at first
		{incremental(4, "1", configOp{set, "log.cleaner.threads", new("2")}), nil, 1},
		{incremental(4, "1", configOp{set, "log.cleaner.threads", new("2")}), nil, 1},
		{incremental(4, "", configOp{set, "log.cleaner.threads", new("2")}), nil, 1},
		{incremental(4, "9", configOp{set, "log.cleaner.threads", new("2")}), ErrBrokerIDNotRegistered, 0},
		{incremental(4, "-1", configOp{set, "log.cleaner.threads", new("2")}), ErrInvalidRequest, 0},
		{incremental(32, "g", configOp{set, "consumer.session.timeout.ms", new("50000")}), nil, 1},
		{incremental(8, "1", configOp{set, "root", new("DEBUG")}), ErrInvalidRequest, 0},
		{incremental(7, "x", configOp{set, "a", new("b")}), ErrUnsupportedVersion, 0},
	} {
		r := k.must(k.c.IncrementalAlterConfigs(k.at(), c.req))
		err := outcomeOf(t, r)
		if c.err == nil && err != nil || c.err != nil && !errors.Is(err, c.err) || len(r.Records) != c.records {
			t.Errorf("%+v: %v, %d records", c.req.Resources[0], err, len(r.Records))
		}
	}
	twice := incremental(2, "t", configOp{set, "retention.ms", new("1")})
	twice.Resources = append(twice.Resources, twice.Resources[0])
	if r := k.c.IncrementalAlterConfigs(k.at(), twice); !errors.Is(outcomeOf(t, r), ErrInvalidRequest) || len(r.Records) > 0 {
		t.Error("a resource named twice")
	}
}

// With eligible leader replicas, min.insync.replicas is not a single broker's, and its change clears them.
func TestM050_min_isr_with_elr(t *testing.T) {
	t.Parallel()
	k := newCluster(t)
	k.start(1)
	k.topic("t", []int32{1})
	k.replay([]metadata.Record{&metadata.FeatureLevelRecord{Name: metadata.FeatureELR, FeatureLevel: 1}})
	const set, del, name = kmsg.IncrementalAlterConfigOpSet, kmsg.IncrementalAlterConfigOpDelete, "min.insync.replicas"
	if err := outcomeOf(t, k.c.IncrementalAlterConfigs(k.at(), incremental(4, "1", configOp{set, name, new("2")}))); !errors.Is(err, ErrInvalidConfig) {
		t.Error(err)
	}
	if err := outcomeOf(t, k.c.IncrementalAlterConfigs(k.at(), incremental(4, "", configOp{del, name, nil}))); !errors.Is(err, ErrInvalidConfig) {
		t.Error(err)
	}
	if r := k.must(k.c.IncrementalAlterConfigs(k.at(), incremental(2, "t", configOp{set, name, new("2")}))); kinds(r.Records) != "Config ClearELR" {
		t.Error(kinds(r.Records))
	}
	if r := k.must(k.c.IncrementalAlterConfigs(k.at(), incremental(4, "", configOp{set, name, new("2")}))); kinds(r.Records) != "Config ClearELR" {
		t.Error(kinds(r.Records))
	}
}

// A change of min.insync.replicas, of a topic or of the cluster, clears the eligible leaders of the partitions it concerns and
// raises the partition epoch of those that had any, and of no others; leaders and leader epochs stay.
func TestM050_min_isr_clears_eligible_leaders(t *testing.T) {
	t.Parallel()
	const set, name = kmsg.IncrementalAlterConfigOpSet, "min.insync.replicas"
	for what, c := range map[string]struct {
		req     *kmsg.IncrementalAlterConfigsRequest
		cleared string
	}{
		"of a topic":     {incremental(2, "t", configOp{set, name, new("1")}), "t-0"},
		"of the cluster": {incremental(4, "", configOp{set, name, new("1")}), "t-0 u-0"},
		"of another":     {incremental(2, "whole", configOp{set, name, new("1")}), ""},
	} {
		k := newCluster(t, "min.insync.replicas=2")
		k.start(1, 2, 3)
		k.replay([]metadata.Record{&metadata.FeatureLevelRecord{Name: metadata.FeatureELR, FeatureLevel: 1}})
		k.topic("t", []int32{1, 2}, []int32{1, 3})
		k.topic("u", []int32{2, 1})
		k.topic("whole", []int32{1, 3})
		k.must(k.heartbeat(2, func(h *kmsg.BrokerHeartbeatRequest) { h.WantFence = true }))
		before := map[string]*metadata.Partition{}
		for topicName, topic := range k.c.Image().Topics().All() {
			for id, p := range topic.Partitions().All() {
				before[fmt.Sprintf("%s-%d", topicName, id)] = p
			}
		}
		if len(before["t-0"].ELR) != 1 || len(before["u-0"].ELR) != 1 || len(before["t-1"].ELR) != 0 {
			t.Fatalf("%+v", before)
		}
		k.must(k.c.IncrementalAlterConfigs(k.at(), c.req))
		for key, old := range before {
			p := k.partition(key[:len(key)-2], old.ID)
			raised := int32(0)
			if slices.Contains(strings.Fields(c.cleared), key) {
				raised = 1
			}
			if p.PartitionEpoch != old.PartitionEpoch+raised || p.LeaderEpoch != old.LeaderEpoch || p.Leader != old.Leader || (len(p.ELR) > 0) != (len(old.ELR) > 0 && raised == 0) {
				t.Errorf("%s: %s was %+v, is %+v", what, key, old, p)
			}
		}
	}
}

// metadata.version moves only within what is supported, never back across a change, all features or none.
func TestM012_update_features(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		from, to metadata.Level
		kind     int8
		ok       bool
	}{
		{29, 23, 2, true}, {29, 22, 2, false}, {29, 22, 3, false}, {33, 32, 2, false}, {33, 32, 3, false}, {33, 33, 1, true},
		{29, 33, 1, true}, {29, 33, 2, false}, {29, 28, 1, false}, {33, 34, 1, false}, {33, 6, 2, false}, {29, 30, 4, false},
	} {
		k := newCluster(t)
		k.replay([]metadata.Record{&metadata.FeatureLevelRecord{Name: "metadata.version", FeatureLevel: int16(c.from)}})
		req := kmsg.NewPtrUpdateFeaturesRequest()
		req.Version = 2
		req.FeatureUpdates = []kmsg.UpdateFeaturesRequestFeatureUpdate{{Feature: "metadata.version", MaxVersionLevel: int16(c.to), UpgradeType: c.kind}}
		r := k.c.UpdateFeatures(k.at(), req)
		if (r.Err == nil) != c.ok || r.Err != nil && !errors.Is(r.Err, ErrInvalidUpdateVersion) {
			t.Errorf("%d to %d by %d: %v", c.from, c.to, c.kind, r.Err)
		}
	}
}

// A registered broker's range holds a level back, even while the broker is fenced.
func TestM015_a_broker_holds_the_level_back(t *testing.T) {
	t.Parallel()
	k := newCluster(t)
	k.replay([]metadata.Record{&metadata.FeatureLevelRecord{Name: "metadata.version", FeatureLevel: 30}})
	req := registration(1, 1)
	req.Features[0].MaxSupportedVersion = 30
	k.must(k.c.RegisterBroker(k.at(), req))
	up := kmsg.NewPtrUpdateFeaturesRequest()
	up.FeatureUpdates = []kmsg.UpdateFeaturesRequestFeatureUpdate{{Feature: "metadata.version", MaxVersionLevel: 31, UpgradeType: 1}}
	up.Version = 1
	if r := k.c.UpdateFeatures(k.at(), up); !errors.Is(r.Err, ErrInvalidUpdateVersion) {
		t.Error(r.Err)
	}
	k.must(k.c.UnregisterBroker(k.at(), 1))
	if r := k.must(k.c.UpdateFeatures(k.at(), up)); kinds(r.Records) != "FeatureLevel" {
		t.Error(kinds(r.Records))
	}
}

// Client quotas: each fault, one record per change, removal only of what is there, and what describing finds.
func TestM054_client_quotas(t *testing.T) {
	t.Parallel()
	k := newCluster(t)
	entity := func(parts ...any) (out []kmsg.AlterClientQuotasRequestEntryEntity) {
		for i := 0; i < len(parts); i += 2 {
			e := kmsg.AlterClientQuotasRequestEntryEntity{Type: parts[i].(string)}
			if name, ok := parts[i+1].(string); ok {
				e.Name = &name
			}
			out = append(out, e)
		}
		return out
	}
	alter := func(e []kmsg.AlterClientQuotasRequestEntryEntity, ops ...kmsg.AlterClientQuotasRequestEntryOp) Result {
		req := kmsg.NewPtrAlterClientQuotasRequest()
		req.Entries = []kmsg.AlterClientQuotasRequestEntry{{Entity: e, Ops: ops}}
		return k.c.AlterClientQuotas(k.at(), req)
	}
	op := func(key string, value float64) kmsg.AlterClientQuotasRequestEntryOp {
		return kmsg.AlterClientQuotasRequestEntryOp{Key: key, Value: value}
	}
	for _, r := range []Result{
		alter(nil, op("producer_byte_rate", 1)),
		alter(entity("user", ""), op("producer_byte_rate", 1)),
		alter(entity("planet", "x"), op("producer_byte_rate", 1)),
		alter(entity("user", "a", "user", "b"), op("producer_byte_rate", 1)),
		alter(entity("ip", "1.2.3.4", "user", "b"), op("connection_creation_rate", 1)),
		alter(entity("ip", "1.2.3.4"), op("connection_creation_rate", 1<<31)),
		alter(entity("user", "a"), op("producer_byte_rate", 1<<63)),
		alter(entity("user", "a"), op("request_percentage", math.NaN())),
		alter(entity("user", "a"), op("connection_creation_rate", 1)),
		alter(entity("ip", "1.2.3.4"), op("producer_byte_rate", 1)),
		alter(entity("user", "a"), op("no_such", 1)),
		alter(entity("user", "a"), op("producer_byte_rate", 0)),
		alter(entity("user", "a"), op("producer_byte_rate", 1.5)),
		alter(entity("user", "a"), op("producer_byte_rate", 1), op("producer_byte_rate", 2)),
	} {
		if a := r.Reply.(AlterClientQuotasReply).Entries[0]; !errors.Is(a.Err, ErrInvalidRequest) || len(r.Records) > 0 {
			t.Errorf("%+v accepted", a)
		}
	}
	remove := kmsg.AlterClientQuotasRequestEntryOp{Key: "consumer_byte_rate", Remove: true}
	r := k.must(alter(entity("user", "a", "client-id", nil), op("producer_byte_rate", 5), op("request_percentage", 1.5), remove))
	if kinds(r.Records) != "ClientQuota ClientQuota" {
		t.Error(kinds(r.Records), r.Reply)
	}
	k.must(alter(entity("ip", "1.2.3.4"), op("connection_creation_rate", 5)))
	describe := func(strict bool, parts ...kmsg.DescribeClientQuotasRequestComponent) int {
		req := kmsg.NewPtrDescribeClientQuotasRequest()
		req.Strict, req.Components = strict, parts
		out, err := DescribeClientQuotas(k.c.Committed(), req)
		if err != nil {
			t.Error(err)
		}
		return len(out)
	}
	user := kmsg.DescribeClientQuotasRequestComponent{EntityType: "user", MatchType: kmsg.QuotasMatchTypeExact, Match: new("a")}
	def := kmsg.DescribeClientQuotasRequestComponent{EntityType: "client-id", MatchType: kmsg.QuotasMatchTypeDefault}
	any := kmsg.DescribeClientQuotasRequestComponent{EntityType: "ip", MatchType: kmsg.QuotasMatchTypeAny}
	if describe(false) != 2 || describe(false, user) != 1 || describe(true, user) != 0 || describe(true, user, def) != 1 || describe(true, any) != 1 {
		t.Error("describing finds the wrong entities")
	}
}

// Going back at any point to the committed state gives what a fresh replay of the committed records gives,
// and going on from there works; a request of many kinds is made before each.
func TestRevertEqualsFreshReplay(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		k := newCluster(t)
		k.start(1, 2, 3)
		k.hold = true
		batches := [][]metadata.Record{slices.Clone(k.log)}
		committed := 1
		for range rapid.IntRange(1, 25).Draw(rt, "steps") {
			before := len(k.log)
			id := int32(rapid.IntRange(1, 3).Draw(rt, "broker"))
			switch rapid.IntRange(0, 7).Draw(rt, "what") {
			case 0:
				req := kmsg.NewPtrCreateTopicsRequest()
				req.Topics = []kmsg.CreateTopicsRequestTopic{createRequest(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "name"), 2, 2)}
				k.apply(k.c.CreateTopics(k.at(), req))
			case 1:
				req := kmsg.NewPtrDeleteTopicsRequest()
				req.TopicNames = []string{rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "name")}
				k.apply(k.c.DeleteTopics(k.at(), req))
			case 2:
				fence := rapid.Bool().Draw(rt, "fence")
				k.apply(k.heartbeat(id, func(h *kmsg.BrokerHeartbeatRequest) { h.WantFence = fence }))
			case 3:
				k.apply(k.c.RegisterBroker(k.at(), registration(id, byte(rapid.IntRange(1, 3).Draw(rt, "incarnation")))))
			case 4:
				k.now = k.now.Add(time.Duration(rapid.IntRange(0, 10).Draw(rt, "seconds")) * time.Second)
				k.apply(k.c.Tick(k.at()))
			case 5:
				k.apply(k.c.IncrementalAlterConfigs(k.at(), incremental(4, "", configOp{0, "log.retention.ms", new(rapid.SampledFrom([]string{"1", "2"}).Draw(rt, "value"))})))
			case 6:
				// The high watermark moves to the end of some batch.
				committed = rapid.IntRange(committed, len(batches)).Draw(rt, "committed")
				hw := int64(1)
				for _, b := range batches[:committed] {
					hw += int64(len(b))
				}
				k.c.CommittedTo(hw)
			case 7:
				k.c.Revert()
				batches = batches[:committed]
				k.log = slices.Concat(batches...)
				k.next = int64(1 + len(k.log))
				before = len(k.log)
			}
			if len(k.log) > before {
				batches = append(batches, slices.Clone(k.log[before:]))
			}
			checkPartitions(rt, k.c.Image())
			sameImage(rt, k.c.Image(), slices.Concat(batches...))
			sameImage(rt, k.c.Committed(), slices.Concat(batches[:committed]...))
		}
	})
}

// checkPartitions looks at what holds for every partition after every request: the ISR is a part of the
// replicas and, without eligible leaders, never empty; the leader is in it, registered and not fenced.
func checkPartitions(t *rapid.T, img *metadata.Image) {
	t.Helper()
	for _, topic := range img.Topics().All() {
		for _, p := range topic.Partitions().All() {
			if len(p.ISR) == 0 || !containsAll(p.Replicas, p.ISR) || len(p.Directories) != len(p.Replicas) {
				t.Fatalf("%s: %+v", topic.Name, p)
			}
			if p.Leader == metadata.NoLeader {
				continue
			}
			b, ok := img.Broker(p.Leader)
			if !ok || b.Fenced || !slices.Contains(p.ISR, p.Leader) || p.LeaderEpoch > p.PartitionEpoch {
				t.Fatalf("%s: %+v, leader %+v", topic.Name, p, b)
			}
		}
	}
}

func sameImage(t *rapid.T, got *metadata.Image, recs []metadata.Record) {
	t.Helper()
	delta := metadata.NewDelta(metadata.EmptyImage())
	for i, rec := range recs {
		if err := delta.Replay(rec, int64(1+i)); err != nil {
			t.Fatal(err)
		}
	}
	want := delta.Apply(int64(len(recs)), 1)
	a, errA := got.Encoded()
	b, errB := want.Encoded()
	if errA != nil || errB != nil || !reflect.DeepEqual(a, b) || got.Offset() != want.Offset() {
		t.Fatalf("images differ at offsets %d and %d: %v %v", got.Offset(), want.Offset(), errA, errB)
	}
	for id, w := range want.Brokers().All() {
		if g, ok := got.Broker(id); !ok || g.RegisteredAt != w.RegisteredAt {
			t.Fatalf("broker %d: registered at %+v, want %d", id, g, w.RegisteredAt)
		}
	}
}
