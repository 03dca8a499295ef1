package node

import (
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// wanted is a topic to create. Zero partitions and factor stand for -1.
type wanted struct {
	name        string
	partitions  int32
	factor      int16
	configs     []string // name=value; name alone: null
	assignments map[int32][]int32
	exact       bool // partitions and factor as they are
}

func createRequest(validateOnly bool, topics ...wanted) *kmsg.CreateTopicsRequest {
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis, req.ValidateOnly = 10000, validateOnly
	for _, w := range topics {
		t := kmsg.NewCreateTopicsRequestTopic()
		t.Topic, t.NumPartitions, t.ReplicationFactor = w.name, w.partitions, w.factor
		if w.partitions == 0 && !w.exact {
			t.NumPartitions = -1
		}
		if w.factor == 0 && !w.exact {
			t.ReplicationFactor = -1
		}
		for i := int32(0); i < int32(len(w.assignments))+5 && len(w.assignments) > 0; i++ {
			if replicas, ok := w.assignments[i]; ok {
				a := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
				a.Partition, a.Replicas = i, replicas
				t.ReplicaAssignment = append(t.ReplicaAssignment, a)
			}
		}
		for _, s := range w.configs {
			t.Configs = append(t.Configs, topicSetting(s))
		}
		req.Topics = append(req.Topics, t)
	}
	return req
}

func topicSetting(s string) kmsg.CreateTopicsRequestTopicConfig {
	c := kmsg.NewCreateTopicsRequestTopicConfig()
	c.Name = s
	for i := range s {
		if s[i] == '=' {
			value := s[i+1:]
			c.Name, c.Value = s[:i], &value
			break
		}
	}
	return c
}

// create returns the code of each topic, and fails when the answer is not one for each name.
func (c *client) create(version int16, validateOnly bool, topics ...wanted) map[string]int16 {
	c.t.Helper()
	resp := do[*kmsg.CreateTopicsResponse](c, version, createRequest(validateOnly, topics...))
	codes := map[string]int16{}
	for _, t := range resp.Topics {
		if _, twice := codes[t.Topic]; twice {
			c.t.Errorf("CreateTopics v%d answers %s twice", version, t.Topic)
		}
		codes[t.Topic] = t.ErrorCode
	}
	for _, w := range topics {
		if _, ok := codes[w.name]; !ok {
			c.t.Errorf("CreateTopics v%d does not answer %s", version, w.name)
		}
	}
	return codes
}

// named asks Metadata for topics by name.
func (c *client) named(version int16, autoCreate bool, names ...string) *kmsg.MetadataResponse {
	c.t.Helper()
	req := kmsg.NewPtrMetadataRequest()
	req.AllowAutoTopicCreation = autoCreate
	for _, name := range names {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = &name
		req.Topics = append(req.Topics, t)
	}
	return do[*kmsg.MetadataResponse](c, version, req)
}

// awaitTopic polls until a topic is there.
func (c *client) awaitTopic(name string) kmsg.MetadataResponseTopic {
	c.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if t := c.named(12, false, name).Topics[0]; t.ErrorCode == 0 {
			return t
		}
	}
	c.t.Fatalf("topic %s does not come", name)
	return kmsg.MetadataResponseTopic{}
}

// absent fails if a topic is there.
func (c *client) absent(name string) {
	c.t.Helper()
	if t := c.named(12, false, name).Topics[0]; t.ErrorCode != 3 {
		c.t.Errorf("topic %s: error %d, want 3", name, t.ErrorCode)
	}
}

// Types of configuration resources.
const (
	ofTopic   = kmsg.ConfigResourceTypeTopic
	ofBroker  = kmsg.ConfigResourceTypeBroker
	ofLogger  = kmsg.ConfigResourceTypeBrokerLogger
	ofMetrics = kmsg.ConfigResourceTypeClientMetrics
	ofGroup   = kmsg.ConfigResourceTypeGroupConfig
)

func describeRequest(kind kmsg.ConfigResourceType, name string, names ...string) *kmsg.DescribeConfigsRequest {
	req := kmsg.NewPtrDescribeConfigsRequest()
	req.IncludeSynonyms, req.IncludeDocumentation = true, true
	r := kmsg.NewDescribeConfigsRequestResource()
	r.ResourceType, r.ResourceName, r.ConfigNames = kind, name, names
	req.Resources = append(req.Resources, r)
	return req
}

func (c *client) configs(version int16, kind kmsg.ConfigResourceType, name string, names ...string) kmsg.DescribeConfigsResponseResource {
	c.t.Helper()
	resp := do[*kmsg.DescribeConfigsResponse](c, version, describeRequest(kind, name, names...))
	if len(resp.Resources) != 1 {
		c.t.Fatalf("DescribeConfigs v%d: %d resources", version, len(resp.Resources))
	}
	return resp.Resources[0]
}

// config finds one setting.
func (c *client) config(kind kmsg.ConfigResourceType, resource, name string) kmsg.DescribeConfigsResponseResourceConfig {
	c.t.Helper()
	found := c.configs(4, kind, resource, name)
	if found.ErrorCode != 0 {
		c.t.Fatalf("DescribeConfigs of %q: error %d", resource, found.ErrorCode)
	}
	for _, entry := range found.Configs {
		if entry.Name == name {
			return entry
		}
	}
	return kmsg.DescribeConfigsResponseResourceConfig{}
}

// alteration is one change of a setting.
type alteration struct {
	name  string
	op    kmsg.IncrementalAlterConfigOp
	value *string
}

func set(name, value string) alteration {
	return alteration{name, kmsg.IncrementalAlterConfigOpSet, &value}
}
func unset(name string) alteration { return alteration{name, kmsg.IncrementalAlterConfigOpDelete, nil} }
func add(name, value string) alteration {
	return alteration{name, kmsg.IncrementalAlterConfigOpAppend, &value}
}
func subtract(name, value string) alteration {
	return alteration{name, kmsg.IncrementalAlterConfigOpSubtract, &value}
}

// altered is one resource to change.
type altered struct {
	kind    kmsg.ConfigResourceType
	name    string
	changes []alteration
}

func (c *client) alterAll(version int16, validateOnly bool, resources ...altered) []kmsg.IncrementalAlterConfigsResponseResource {
	c.t.Helper()
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	req.ValidateOnly = validateOnly
	for _, r := range resources {
		out := kmsg.NewIncrementalAlterConfigsRequestResource()
		out.ResourceType, out.ResourceName = r.kind, r.name
		for _, change := range r.changes {
			one := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
			one.Name, one.Op, one.Value = change.name, change.op, change.value
			out.Configs = append(out.Configs, one)
		}
		req.Resources = append(req.Resources, out)
	}
	return do[*kmsg.IncrementalAlterConfigsResponse](c, version, req).Resources
}

// alter changes one resource and returns the code.
func (c *client) alter(kind kmsg.ConfigResourceType, name string, changes ...alteration) int16 {
	c.t.Helper()
	return c.alterAll(1, false, altered{kind, name, changes})[0].ErrorCode
}

// replace is the old AlterConfigs.
func (c *client) replace(version int16, validateOnly bool, kind kmsg.ConfigResourceType, name string, settings ...string) int16 {
	c.t.Helper()
	req := kmsg.NewPtrAlterConfigsRequest()
	req.ValidateOnly = validateOnly
	out := kmsg.NewAlterConfigsRequestResource()
	out.ResourceType, out.ResourceName = kind, name
	for _, s := range settings {
		made := topicSetting(s)
		one := kmsg.NewAlterConfigsRequestResourceConfig()
		one.Name, one.Value = made.Name, made.Value
		out.Configs = append(out.Configs, one)
	}
	req.Resources = append(req.Resources, out)
	return do[*kmsg.AlterConfigsResponse](c, version, req).Resources[0].ErrorCode
}

// eventually polls until a setting has a value: the controller answers before the
// broker has applied the change.
func (c *client) eventually(what string, done func() bool) {
	c.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if done() {
			return
		}
	}
	c.t.Errorf("%s: not in time", what)
}

func (c *client) wantConfig(kind kmsg.ConfigResourceType, resource, name, value string, source kmsg.ConfigSource) {
	c.t.Helper()
	var last kmsg.DescribeConfigsResponseResourceConfig
	c.eventually(fmt.Sprintf("%s=%s, source %d", name, value, source), func() bool {
		last = c.config(kind, resource, name)
		return deref(last.Value) == value && last.Source == source
	})
	if c.t.Failed() {
		c.t.Logf("%s is %s, source %d", name, deref(last.Value), last.Source)
	}
}

// controller dials the controller listener of a node, which DescribeQuorum names.
func (n *node) controller(t testing.TB) *client {
	t.Helper()
	req := kmsg.NewPtrDescribeQuorumRequest()
	one := kmsg.NewDescribeQuorumRequestTopic()
	one.Topic = "__cluster_metadata"
	one.Partitions = append(one.Partitions, kmsg.NewDescribeQuorumRequestTopicPartition())
	req.Topics = append(req.Topics, one)
	found := do[*kmsg.DescribeQuorumResponse](n.dial(t), 2, req)
	if len(found.Nodes) != 1 || len(found.Nodes[0].Listeners) != 1 {
		t.Fatalf("DescribeQuorum: %+v", found)
	}
	l := found.Nodes[0].Listeners[0]
	return (&node{addr: net.JoinHostPort(l.Host, strconv.Itoa(int(l.Port)))}).dial(t)
}
