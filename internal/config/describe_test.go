package config

import (
	"errors"
	"reflect"
	"testing"
)

func entry(t *testing.T, entries []Entry, name string) Entry {
	t.Helper()
	for _, e := range entries {
		if e.Name == name {
			return e
		}
	}
	t.Fatalf("%s is not listed", name)
	return Entry{}
}

// A topic's value comes from the topic, one broker, all brokers, the file, or the default, in this order,
// and the synonyms list all of them.
func TestB105_topic_values_say_where_they_come_from(t *testing.T) {
	t.Parallel()
	static, _, err := Parse(Sources{File: "log.retention.hours=1\nmin.insync.replicas=2"})
	if err != nil {
		t.Fatal(err)
	}
	type source struct {
		name  string
		value string
		from  Source
	}
	for _, c := range []struct {
		topic, broker, cluster map[string]string
		name, value            string
		synonyms               []source
	}{
		{name: "retention.ms", value: "3600000", synonyms: []source{{"log.retention.hours", "1", StaticBroker}, {"log.retention.hours", "168", Default}}},
		{cluster: map[string]string{"log.retention.ms": "7"}, name: "retention.ms", value: "7",
			synonyms: []source{{"log.retention.ms", "7", DynamicDefaultBroker}, {"log.retention.hours", "1", StaticBroker}, {"log.retention.hours", "168", Default}}},
		{topic: map[string]string{"retention.ms": "5"}, broker: map[string]string{"log.retention.ms": "6"}, cluster: map[string]string{"log.retention.ms": "7"}, name: "retention.ms", value: "5",
			synonyms: []source{{"retention.ms", "5", DynamicTopic}, {"log.retention.ms", "6", DynamicBroker}, {"log.retention.ms", "7", DynamicDefaultBroker}, {"log.retention.hours", "1", StaticBroker}, {"log.retention.hours", "168", Default}}},
		{name: "min.insync.replicas", value: "2", synonyms: []source{{"min.insync.replicas", "2", StaticBroker}, {"min.insync.replicas", "1", Default}}},
		{name: "cleanup.policy", value: "delete", synonyms: []source{{"log.cleanup.policy", "delete", Default}}},
		{name: "remote.storage.enable", value: "false"},
	} {
		layers := Layers{Broker: c.broker, Cluster: c.cluster, Static: static}
		e := entry(t, layers.DescribeTopic(c.topic), c.name)
		var got []source
		for _, s := range e.Synonyms {
			got = append(got, source{s.Name, *s.Value, s.Source})
		}
		wantSource := Default
		if len(c.synonyms) > 0 {
			wantSource = c.synonyms[0].from
		}
		if *e.Value != c.value || e.Source != wantSource || !reflect.DeepEqual(got, c.synonyms) {
			t.Errorf("%s: value %s source %d synonyms %v, want %s %v", c.name, *e.Value, e.Source, got, c.value, c.synonyms)
		}
		if text := layers.Topic(c.topic).String(c.name); text != c.value {
			t.Errorf("%s: effective %s, want %s", c.name, text, c.value)
		}
	}
}

// Passwords are listed without a value, dynamic settings are not read-only.
func TestB107_broker_listing_hides_secrets_only(t *testing.T) {
	t.Parallel()
	static, _, err := Parse(Sources{Set: []string{"ssl.key.password=x"}})
	if err != nil {
		t.Fatal(err)
	}
	entries := Layers{Static: static, Cluster: map[string]string{"follower.replication.throttled.rate": "9"}}.DescribeBroker()
	if e := entry(t, entries, "ssl.key.password"); e.Value != nil || !e.Sensitive || e.Source != StaticBroker {
		t.Errorf("%+v", e)
	}
	if e := entry(t, entries, "follower.replication.throttled.rate"); *e.Value != "9" || e.Sensitive || e.ReadOnly || e.Source != DynamicDefaultBroker || len(e.Synonyms) != 1 {
		t.Errorf("%+v", e)
	}
	if e := entry(t, entries, "node.id"); !e.ReadOnly || *e.Value != "1" {
		t.Errorf("%+v", e)
	}
}

// Topic overrides are refused by name, by type, by range and by the rules between values.
func TestValidateTopic(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, value string
		kind        any
	}{
		{"retention.ms", "-1", nil},
		{"cleanup.policy", "compact,delete", nil},
		{"cleanup.policy", "", nil},
		{"cleanup.policy", "shred", new(*ValueError)},
		{"compression.gzip.level", "-1", nil},
		{"compression.gzip.level", "0", new(*ValueError)},
		{"segment.bytes", "1048575", new(*ValueError)},
		{"segment.bytes", "4294967296", new(*ValueError)},
		{"no.such.key", "1", new(*UnknownError)},
		{"min.cleanable.dirty.ratio", "1.1", new(*ValueError)},
		{"preallocate", "yes", new(*ValueError)},
		{"leader.replication.throttled.replicas", "*", nil},
		{"leader.replication.throttled.replicas", "0:1, 12:34", nil},
		{"leader.replication.throttled.replicas", "", nil},
		{"follower.replication.throttled.replicas", "x", new(*ValueError)},
		{"follower.replication.throttled.replicas", "0:1,*", new(*ValueError)},
		{"remote.storage.enable", "TRUE", new(*CrossError)},
	} {
		err := ValidateTopic(map[string]string{c.name: c.value})
		if c.kind == nil && err != nil || c.kind != nil && !errors.As(err, c.kind) {
			t.Errorf("%s=%s: %v", c.name, c.value, err)
		}
	}
	err := ValidateTopic(map[string]string{"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"})
	if !errors.As(err, new(*CrossError)) {
		t.Error(err)
	}
}

// What is stored and is no value of its setting counts as not set: whoever alters broker settings at a controller
// may store anything, and neither a read nor a restart may stumble over it.
func TestStoredNonsenseCountsAsNotSet(t *testing.T) {
	t.Parallel()
	nonsense := map[string]string{"min.insync.replicas": "x", "log.retention.ms": "-7", "log.retention.hours": "1e99", "log.cleaner.min.cleanable.ratio": "NaN"}
	layers := Layers{Broker: nonsense, Cluster: map[string]string{"min.insync.replicas": "2", "log.retention.ms": "y"}}
	topic := layers.Topic(map[string]string{"segment.bytes": "much", "cleanup.policy": "burn"})
	if topic.Int("min.insync.replicas") != 2 || topic.Long("retention.ms") != 604800000 || topic.Int("segment.bytes") != 1<<30 ||
		topic.Double("min.cleanable.dirty.ratio") != 0.5 || topic.List("cleanup.policy")[0] != "delete" {
		t.Error(topic.Int("min.insync.replicas"), topic.Long("retention.ms"), topic.Int("segment.bytes"), topic.List("cleanup.policy"))
	}
	if got := entry(t, layers.DescribeBroker(), "min.insync.replicas"); text(got.Value) != "2" || got.Source != DynamicDefaultBroker {
		t.Errorf("%+v", got)
	}
	if got := entry(t, layers.DescribeTopic(map[string]string{"segment.bytes": "much"}), "segment.bytes"); got.Source != Default {
		t.Errorf("%+v", got)
	}
	layers.DescribeGroup(map[string]string{"consumer.session.timeout.ms": "x"})
}
