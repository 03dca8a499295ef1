package node

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestB023_alter_configs_replaces(t *testing.T) {
	// AlterConfigs with one setting takes the others back to their defaults; validate_only changes nothing and reports 40 for an illegal value.
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1, "compression.type=gzip", "retention.bytes=1000", "max.message.bytes=2000")
	for version := int16(0); version <= 2; version++ {
		if code := c.replace(version, true, ofTopic, tp.name, "compression.type=nonsense"); code != 40 {
			t.Errorf("v%d, illegal, validate only: %d", version, code)
		}
		if code := c.replace(version, true, ofTopic, tp.name, "compression.type=zstd"); code != 0 {
			t.Errorf("v%d, validate only: %d", version, code)
		}
		if code := c.replace(version, false, ofTopic, tp.name, "compression.type"); code != 42 {
			t.Errorf("v%d, null: %d", version, code)
		}
		if code := c.replace(version, false, ofTopic, tp.name+"-none", "compression.type=gzip"); code != 3 {
			t.Errorf("v%d, unknown topic: %d", version, code)
		}
	}
	c.wantConfig(ofTopic, tp.name, "max.message.bytes", "2000", kmsg.ConfigSourceDynamicTopicConfig)
	if code := c.replace(1, false, ofTopic, tp.name, "compression.type=gzip"); code != 0 {
		t.Fatalf("%d", code)
	}
	c.wantConfig(ofTopic, tp.name, "max.message.bytes", "1048588", kmsg.ConfigSourceDefaultConfig)
	c.wantConfig(ofTopic, tp.name, "retention.bytes", "-1", kmsg.ConfigSourceDefaultConfig)
	c.wantConfig(ofTopic, tp.name, "compression.type", "gzip", kmsg.ConfigSourceDynamicTopicConfig)
}

func TestB025_append_and_subtract(t *testing.T) {
	// APPEND and SUBTRACT work on the parts of a list, on its default when it is not set; on what is no list they are 40.
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1)
	for i, step := range []struct {
		change alteration
		want   string
	}{
		{add("cleanup.policy", "compact"), "delete,compact"},
		{add("cleanup.policy", "compact,delete"), "delete,compact"},
		{subtract("cleanup.policy", "delete"), "compact"},
		{subtract("cleanup.policy", "compact"), ""},
		{add("cleanup.policy", "compact"), "compact"},
		{add("cleanup.policy", "delete"), "compact,delete"},
	} {
		if code := c.alter(ofTopic, tp.name, step.change); code != 0 {
			t.Fatalf("step %d: %d", i, code)
		}
		c.wantConfig(ofTopic, tp.name, "cleanup.policy", step.want, kmsg.ConfigSourceDynamicTopicConfig)
	}
	if code := c.alter(ofTopic, tp.name, add("retention.ms", "1")); code != 40 {
		t.Errorf("no list: %d", code)
	}
	if code := c.alter(ofTopic, tp.name, subtract("retention.ms", "1")); code != 40 {
		t.Errorf("no list: %d", code)
	}
}

func TestM049_incremental_alter_configs(t *testing.T) {
	// IncrementalAlterConfigs: a null SET 42, 32768 characters 40, an unknown topic 3, an unknown setting 40, a resource or setting twice 42; one bad resource does not spoil another; answers are in the request's order.
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1)
	long := strings.Repeat("x", 32768)
	for name, row := range map[string]struct {
		target altered
		want   int16
	}{
		"null":            {altered{ofTopic, tp.name, []alteration{{"retention.ms", kmsg.IncrementalAlterConfigOpSet, nil}}}, 42},
		"null append":     {altered{ofTopic, tp.name, []alteration{{"cleanup.policy", kmsg.IncrementalAlterConfigOpAppend, nil}}}, 42},
		"long":            {altered{ofTopic, tp.name, []alteration{set("leader.replication.throttled.replicas", long)}}, 40},
		"unknown topic":   {altered{ofTopic, tp.name + "-none", []alteration{set("retention.ms", "1")}}, 3},
		"unknown setting": {altered{ofTopic, tp.name, []alteration{set("no.such.setting", "1")}}, 40},
		"out of range":    {altered{ofTopic, tp.name, []alteration{set("segment.bytes", "1")}}, 40},
		"setting twice":   {altered{ofTopic, tp.name, []alteration{set("retention.ms", "1"), set("retention.ms", "2")}}, 42},
		"one of two bad":  {altered{ofTopic, tp.name, []alteration{set("retention.ms", "77"), set("segment.bytes", "1")}}, 40},
		"other broker":    {altered{ofBroker, "77", []alteration{set("log.cleaner.threads", "2")}}, 42},
		"no broker id":    {altered{ofBroker, "x", []alteration{set("log.cleaner.threads", "2")}}, 42},
		"unknown op":      {altered{ofTopic, tp.name, []alteration{{"retention.ms", 9, kmsg.StringPtr("1")}}}, 42},
		"unknown type":    {altered{77, "x", []alteration{set("retention.ms", "1")}}, 42},
	} {
		good := altered{ofTopic, tp.name + "-also", []alteration{set("retention.ms", "123456")}}
		also := c.createTopic(tp.name+"-also", 1)
		for version := int16(0); version <= 1; version++ {
			if name == "long" && version == 0 {
				continue // its strings end at 32767 bytes
			}
			got := c.alterAll(version, false, row.target, good)
			if len(got) != 2 || got[0].ResourceName != row.target.name || got[0].ResourceType != row.target.kind || got[0].ErrorCode != row.want || got[1].ErrorCode != 0 || got[1].ResourceName != good.name {
				t.Errorf("%s v%d: %+v, want %d", name, version, got, row.want)
			}
			if row.want != 0 && deref(got[0].ErrorMessage) == "" {
				t.Errorf("%s: no message", name)
			}
		}
		c.wantConfig(ofTopic, good.name, "retention.ms", "123456", kmsg.ConfigSourceDynamicTopicConfig)
		c.removeTopic(also)
	}
	twice := c.alterAll(1, false, altered{ofTopic, tp.name, []alteration{set("retention.ms", "1")}}, altered{ofTopic, tp.name, []alteration{set("retention.ms", "2")}})
	if len(twice) == 0 || slices.ContainsFunc(twice, func(r kmsg.IncrementalAlterConfigsResponseResource) bool { return r.ErrorCode != 42 }) {
		t.Errorf("twice: %+v", twice)
	}
	if code := c.alter(ofTopic, tp.name, set("retention.ms", "5"), set("max.message.bytes", "3000")); code != 0 {
		t.Errorf("two settings: %d", code)
	}
	c.wantConfig(ofTopic, tp.name, "max.message.bytes", "3000", kmsg.ConfigSourceDynamicTopicConfig)
	if code := c.alterAll(1, true, altered{ofTopic, tp.name, []alteration{unset("max.message.bytes")}})[0].ErrorCode; code != 0 {
		t.Errorf("validate only: %d", code)
	}
	if code := c.alter(ofTopic, tp.name, unset("retention.ms")); code != 0 {
		t.Errorf("delete: %d", code)
	}
	c.wantConfig(ofTopic, tp.name, "retention.ms", deref(c.config(ofBroker, "1", "log.retention.ms").Value), c.config(ofBroker, "1", "log.retention.ms").Source)
	c.wantConfig(ofTopic, tp.name, "max.message.bytes", "3000", kmsg.ConfigSourceDynamicTopicConfig)
}

func TestB107_dynamic_broker_settings(t *testing.T) {
	// A setting of all brokers and one of this broker are shown with their sources; deleting them falls back to static or default; they survive a restart; an unknown one is 40, and a read-only or a malformed one 42, as Kafka's brokers say (KAFKA-13609), each with a message.
	t.Parallel()
	n := start(t, "log.retention.bytes=7000000")
	c := n.dial(t)
	for name, row := range map[string]struct {
		broker string
		change alteration
		want   int16
	}{
		"read-only":            {"", set("num.partitions", "4"), 42},
		"read-only, this":      {"1", set("num.partitions", "4"), 42},
		"read-only, delete":    {"1", unset("num.partitions"), 42},
		"unknown":              {"", set("no.such.setting", "4"), 40},
		"malformed":            {"", set("log.cleaner.threads", "many"), 42},
		"out of range":         {"", set("message.max.bytes", "-4"), 42},
		"append to a number":   {"", add("message.max.bytes", "4"), 40},
		"per broker, for all":  {"", set("listeners", "PLAINTEXT://:9"), 42},
		"null":                 {"", alteration{"log.cleaner.threads", kmsg.IncrementalAlterConfigOpSet, nil}, 42},
		"another broker":       {"2", set("log.cleaner.threads", "2"), 42},
		"this broker, allowed": {"1", set("log.cleaner.threads", "2"), 0},
	} {
		got := c.alterAll(1, false, altered{ofBroker, row.broker, []alteration{row.change}})[0]
		if got.ErrorCode != row.want || row.want != 0 && deref(got.ErrorMessage) == "" {
			t.Errorf("%s: %d %q, want %d", name, got.ErrorCode, deref(got.ErrorMessage), row.want)
		}
	}
	c.wantConfig(ofBroker, "1", "log.retention.bytes", "7000000", kmsg.ConfigSourceStaticBrokerConfig)
	tp := c.topic(1)
	for range 2 {
		if code := c.alter(ofBroker, "", set("log.retention.bytes", "8000000")); code != 0 {
			t.Fatalf("all brokers: %d", code)
		}
		c.wantConfig(ofBroker, "1", "log.retention.bytes", "8000000", kmsg.ConfigSourceDynamicDefaultBrokerConfig)
		c.wantConfig(ofBroker, "", "log.retention.bytes", "8000000", kmsg.ConfigSourceDynamicDefaultBrokerConfig)
		if code := c.alter(ofBroker, "1", set("log.retention.bytes", "9000000")); code != 0 {
			t.Fatalf("this broker: %d", code)
		}
		c.wantConfig(ofBroker, "1", "log.retention.bytes", "9000000", kmsg.ConfigSourceDynamicBrokerConfig)
		c.wantConfig(ofTopic, tp.name, "retention.bytes", "9000000", kmsg.ConfigSourceDynamicBrokerConfig)
		n.restart(t)
		c = n.dial(t)
		c.wantConfig(ofBroker, "1", "log.retention.bytes", "9000000", kmsg.ConfigSourceDynamicBrokerConfig)
		var sources []kmsg.ConfigSource
		for _, s := range c.config(ofBroker, "1", "log.retention.bytes").ConfigSynonyms {
			sources = append(sources, s.Source)
		}
		if want := []kmsg.ConfigSource{kmsg.ConfigSourceDynamicBrokerConfig, kmsg.ConfigSourceDynamicDefaultBrokerConfig, kmsg.ConfigSourceStaticBrokerConfig, kmsg.ConfigSourceDefaultConfig}; !slices.Equal(sources, want) {
			t.Errorf("synonyms %v, want %v", sources, want)
		}
		c.alter(ofBroker, "1", unset("log.retention.bytes"))
		c.wantConfig(ofBroker, "1", "log.retention.bytes", "8000000", kmsg.ConfigSourceDynamicDefaultBrokerConfig)
		c.alter(ofBroker, "", unset("log.retention.bytes"))
		c.wantConfig(ofBroker, "1", "log.retention.bytes", "7000000", kmsg.ConfigSourceStaticBrokerConfig)
	}
	if throttle := c.config(ofBroker, "1", "leader.replication.throttled.rate"); throttle.IsSensitive {
		t.Errorf("a throttle is hidden: %+v", throttle)
	}
}

func TestDynamicMessageLimit(t *testing.T) {
	// message.max.bytes of all brokers is at once the limit of topics that have none of their own.
	t.Parallel()
	c := start(t).dial(t)
	tp := c.topic(1)
	c.mustProduce(tp, 0, sized(2000, 1))
	if code := c.alter(ofBroker, "", set("message.max.bytes", "1000")); code != 0 {
		t.Fatalf("%d", code)
	}
	c.eventually("a record of 2000 bytes is refused", func() bool { return c.produce(9, tp, 0, sized(2000, 1)).ErrorCode == 10 })
	if code := c.alter(ofBroker, "", unset("message.max.bytes")); code != 0 {
		t.Fatalf("%d", code)
	}
	c.eventually("a record of 2000 bytes is taken again", func() bool { return c.produce(9, tp, 0, sized(2000, 1)).ErrorCode == 0 })
}

func TestB105_describe_configs_by_version(t *testing.T) {
	// DescribeConfigs gives all keys with sources, types (v3 and up) and synonyms in order; an unknown topic is 3; an unknown key in the filter is left out; sensitive values are null.
	t.Parallel()
	n := shared(t)
	c := n.dial(t)
	tp := c.topic(1, "retention.ms=5000")
	for version := int16(1); version <= 4; version++ {
		all := c.configs(version, ofTopic, tp.name)
		if all.ErrorCode != 0 || len(all.Configs) < 30 {
			t.Errorf("v%d: error %d, %d settings", version, all.ErrorCode, len(all.Configs))
		}
		some := c.configs(version, ofTopic, tp.name, "retention.ms", "no.such.key")
		if len(some.Configs) != 1 || some.Configs[0].Name != "retention.ms" || some.Configs[0].Source != kmsg.ConfigSourceDynamicTopicConfig {
			t.Errorf("v%d: %+v", version, some)
		}
		if version >= 3 && (some.Configs[0].ConfigType != kmsg.ConfigTypeLong || deref(some.Configs[0].Documentation) == "") {
			t.Errorf("v%d: %+v", version, some.Configs[0])
		}
		if s := some.Configs[0].ConfigSynonyms; len(s) < 1 || s[0].Name != "retention.ms" || s[0].Source != kmsg.ConfigSourceDynamicTopicConfig {
			t.Errorf("v%d: synonyms %+v", version, s)
		}
		if unknown := c.configs(version, ofTopic, tp.name+"-none"); unknown.ErrorCode != 3 || len(unknown.Configs) != 0 {
			t.Errorf("v%d: unknown topic %+v", version, unknown)
		}
		if other := c.configs(version, ofBroker, "77"); other.ErrorCode != 42 {
			t.Errorf("v%d: other broker %d", version, other.ErrorCode)
		}
	}
	for _, entry := range c.configs(4, ofBroker, "1").Configs {
		if entry.ConfigType == kmsg.ConfigTypePassword && (!entry.IsSensitive || entry.Value != nil) {
			t.Errorf("%s is shown", entry.Name)
		}
	}
	none := kmsg.NewPtrDescribeConfigsRequest()
	r := kmsg.NewDescribeConfigsRequestResource()
	r.ResourceType, r.ResourceName, r.ConfigNames = ofTopic, tp.name, []string{}
	none.Resources = append(none.Resources, r)
	if got := do[*kmsg.DescribeConfigsResponse](c, 4, none).Resources[0]; got.ErrorCode != 0 || len(got.Configs) < 30 {
		t.Errorf("an empty filter, which is none: error %d, %d settings", got.ErrorCode, len(got.Configs))
	}
}

// described is one setting as Apache Kafka's recorded answer has it.
type described struct {
	Name        string
	Value       *string
	ReadOnly    bool
	Source      int8
	IsSensitive bool
	Synonyms    []struct {
		Name   string
		Source int8
	} `json:"configSynonyms"`
	ConfigType int8
}

func recorded(t *testing.T, file string) []described {
	t.Helper()
	b, err := os.ReadFile("../reference/testdata/kafka-4.4.0/api/" + file)
	if err != nil {
		t.Fatal(err)
	}
	var answer struct {
		Resources []struct{ Configs []described }
	}
	if err := json.Unmarshal(b, &answer); err != nil {
		t.Fatal(err)
	}
	return answer.Resources[0].Configs
}

func TestB105_same_settings_as_kafka(t *testing.T) {
	// DescribeConfigs of a new topic and of the broker lists what Apache Kafka 4.4 lists, with its types, rights, secrets and synonyms in order; what differs is listed here.
	t.Parallel()
	c := start(t).dial(t)
	tp := c.topic(1)
	// What the test gives its node, and what is Stele's own default (docs/differences.md).
	given := map[string]bool{"log.retention.ms": true, "retention.ms": true, "group.initial.rebalance.delay.ms": true, "offsets.topic.num.partitions": true}
	for file, resource := range map[string]struct {
		kind kmsg.ConfigResourceType
		name string
		own  []string
	}{
		"DescribeConfigs-topic-v4.json":  {ofTopic, tp.name, nil},
		"DescribeConfigs-broker-v4.json": {ofBroker, "1", []string{"http.listen", "cluster.id", "metrics.max.topics", "producer.id.max.count", "log.dir.reserve.bytes", "log.max.open.files", "log.dir.soft.limit.bytes", "group.coordinator.max.bytes", "max.incremental.fetch.session.cache.bytes"}},
	} {
		got := map[string]kmsg.DescribeConfigsResponseResourceConfig{}
		for _, entry := range c.configs(4, resource.kind, resource.name).Configs {
			got[entry.Name] = entry
		}
		for _, name := range resource.own {
			delete(got, name)
		}
		for _, want := range recorded(t, file) {
			entry, ok := got[want.Name]
			delete(got, want.Name)
			if !ok {
				t.Errorf("%s is not listed", want.Name)
				continue
			}
			if int8(entry.ConfigType) != want.ConfigType || entry.ReadOnly != want.ReadOnly || entry.IsSensitive != want.IsSensitive {
				t.Errorf("%s: type %d, read-only %t, sensitive %t; Kafka has %d, %t, %t", want.Name, entry.ConfigType, entry.ReadOnly, entry.IsSensitive, want.ConfigType, want.ReadOnly, want.IsSensitive)
			}
			if given[want.Name] || entry.Source == kmsg.ConfigSourceStaticBrokerConfig || want.Source == int8(kmsg.ConfigSourceStaticBrokerConfig) {
				continue
			}
			// Kafka's recorder had finalized eligible.leader.replicas.version, which writes this one for all brokers.
			if want.Name == "min.insync.replicas" {
				continue
			}
			var synonyms, theirs []string
			for _, s := range entry.ConfigSynonyms {
				synonyms = append(synonyms, s.Name)
			}
			for _, s := range want.Synonyms {
				theirs = append(theirs, s.Name)
			}
			if int8(entry.Source) != want.Source || !slices.Equal(synonyms, theirs) {
				t.Errorf("%s: source %d, synonyms %v; Kafka has %d, %v", want.Name, entry.Source, synonyms, want.Source, theirs)
			}
		}
		for name := range got {
			t.Errorf("%s is listed, and Kafka has no such setting", name)
		}
	}
}

func TestGroupConfigs(t *testing.T) {
	// Settings of a group are set, shown with their source, and deleted; an unknown one is 40.
	t.Parallel()
	c := shared(t).dial(t)
	group := c.freshName()
	if code := c.alter(ofGroup, group, set("consumer.session.timeout.ms", "50000")); code != 0 {
		t.Fatalf("%d", code)
	}
	c.wantConfig(ofGroup, group, "consumer.session.timeout.ms", "50000", kmsg.ConfigSourceGroupConfig)
	if code := c.alter(ofGroup, group, set("no.such", "1")); code != 40 {
		t.Errorf("unknown: %d", code)
	}
	if code := c.alter(ofGroup, group, unset("consumer.session.timeout.ms")); code != 0 {
		t.Errorf("delete: %d", code)
	}
	c.wantConfig(ofGroup, group, "consumer.session.timeout.ms", "45000", kmsg.ConfigSourceDefaultConfig)
}
