package config

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

type kafkaConfig struct {
	Name      string
	Value     *string
	ReadOnly  bool
	Source    Source
	Sensitive bool `json:"isSensitive"`
	Synonyms  []struct {
		Name   string
		Value  *string
		Source Source
	} `json:"configSynonyms"`
	Type Type `json:"configType"`
}

// kafkaConfigs reads what a real Kafka 4.4 answered to DescribeConfigs.
func kafkaConfigs(t *testing.T, file string) []kafkaConfig {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../../test/reference/testdata/kafka-4.4.0/api", file))
	if err != nil {
		t.Fatal(err)
	}
	var answer struct {
		Resources []struct{ Configs []kafkaConfig }
	}
	if err := json.Unmarshal(b, &answer); err != nil || len(answer.Resources) != 1 {
		t.Fatal(err)
	}
	return answer.Resources[0].Configs
}

func text(s *string) string {
	if s == nil {
		return "<null>"
	}
	return *s
}

// ours are the settings whose default is Stele's own.
var ours = map[string]bool{
	"node.id": true, "process.roles": true, "listeners": true, "controller.listener.names": true, "log.dir": true, "log.dirs": true,
	"offsets.topic.replication.factor": true, "transaction.state.log.replication.factor": true, "transaction.state.log.min.isr": true,
	"share.coordinator.state.topic.replication.factor": true, "share.coordinator.state.topic.min.isr": true,
}

// Every setting that Kafka lists is known, with Kafka's type, default, sensitivity and way to change it;
// what Kafka does not list is internal, or ours.
func TestB105_every_kafka_setting_is_known(t *testing.T) {
	t.Parallel()
	// Kafka wrote this setting itself when it finalized eligible.leader.replicas.version.
	layers := Layers{Cluster: map[string]string{"min.insync.replicas": "1"}}
	for _, c := range []struct {
		file string
		got  []Entry
		own  []string
	}{
		{"DescribeConfigs-topic-v4.json", layers.DescribeTopic(nil), nil},
		{"DescribeConfigs-group-v4.json", layers.DescribeGroup(nil), nil},
		{"DescribeConfigs-client-metrics-v4.json", DescribeClientMetrics(nil), nil},
		{"DescribeConfigs-broker-v4.json", layers.DescribeBroker(), []string{"http.listen", "cluster.id", "metrics.max.topics", "producer.id.max.count", "log.dir.reserve.bytes", "log.max.open.files", "log.dir.soft.limit.bytes", "group.coordinator.max.bytes", "max.incremental.fetch.session.cache.bytes"}},
	} {
		got := map[string]Entry{}
		for _, e := range c.got {
			got[e.Name] = e
		}
		for _, name := range c.own {
			delete(got, name)
		}
		for _, k := range kafkaConfigs(t, c.file) {
			e, known := got[k.Name]
			delete(got, k.Name)
			static := k.Source == StaticBroker
			value := text(k.Value)
			switch {
			case !known:
				t.Errorf("%s: %s is not known (type %d, default %s, read-only %v)", c.file, k.Name, k.Type, value, k.ReadOnly)
				continue
			case e.Type != k.Type, e.ReadOnly != k.ReadOnly, e.Sensitive != k.Sensitive:
				t.Errorf("%s: %s is type %d, read-only %v, sensitive %v; Kafka has %d, %v, %v", c.file, k.Name, e.Type, e.ReadOnly, e.Sensitive, k.Type, k.ReadOnly, k.Sensitive)
			case !static && !ours[k.Name] && text(e.Value) != value:
				t.Errorf("%s: default of %s is %s, Kafka has %s", c.file, k.Name, text(e.Value), value)
			}
			if static || ours[k.Name] {
				continue
			}
			if len(e.Synonyms) != len(k.Synonyms) {
				t.Errorf("%s: synonyms of %s are %+v, Kafka has %+v", c.file, k.Name, e.Synonyms, k.Synonyms)
				continue
			}
			for i, s := range k.Synonyms {
				if e.Synonyms[i].Name != s.Name || text(e.Synonyms[i].Value) != text(s.Value) || e.Synonyms[i].Source != s.Source {
					t.Errorf("%s: synonym %d of %s is %+v, Kafka has %+v", c.file, i, k.Name, e.Synonyms[i], s)
				}
			}
		}
		for name := range got {
			t.Errorf("%s: Kafka does not list %s", c.file, name)
		}
	}
}
