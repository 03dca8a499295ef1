package node

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// resources lists config resources as type:name.
func (c *client) resources(version int16, kinds ...kmsg.ConfigResourceType) string {
	c.t.Helper()
	req := kmsg.NewPtrListConfigResourcesRequest()
	for _, kind := range kinds {
		req.ResourceTypes = append(req.ResourceTypes, int8(kind))
	}
	resp := do[*kmsg.ListConfigResourcesResponse](c, version, req)
	if resp.ErrorCode != 0 {
		return fmt.Sprintf("!%d", resp.ErrorCode)
	}
	var list []string
	for _, r := range resp.ConfigResources {
		kind := kmsg.ConfigResourceType(r.Type)
		if version == 0 {
			kind = ofMetrics // the type came with v1
		}
		list = append(list, fmt.Sprintf("%d:%s", kind, r.Name))
	}
	return strings.Join(list, " ")
}

func TestListConfigResources(t *testing.T) {
	// ListConfigResources v0 lists subscriptions to metrics; v1 the types asked for, all for none: groups and subscriptions that have settings, brokers, their loggers, topics; an unknown type is 35 for all.
	t.Parallel()
	c := start(t).dial(t)
	c.createTopic("tt", 1)
	if got := c.resources(1); got != "8:1 4:1 2:tt" {
		t.Errorf("nothing set: %q", got)
	}
	for _, r := range []altered{
		{ofGroup, "g1", []alteration{set("consumer.session.timeout.ms", "50000")}},
		{ofMetrics, "m1", []alteration{set("interval.ms", "60000")}},
		{ofTopic, "tt", []alteration{set("retention.ms", "60000")}},
	} {
		if code := c.alter(r.kind, r.name, r.changes...); code != 0 {
			t.Fatalf("%+v: %d", r, code)
		}
	}
	c.wantConfig(ofTopic, "tt", "retention.ms", "60000", kmsg.ConfigSourceDynamicTopicConfig)
	for want, kinds := range map[string][]kmsg.ConfigResourceType{
		"32:g1 16:m1 8:1 4:1 2:tt": nil,
		"2:tt":                     {ofTopic},
		"4:1":                      {ofBroker},
		"8:1":                      {ofLogger},
		"16:m1":                    {ofMetrics},
		"32:g1":                    {ofGroup},
		"4:1 2:tt":                 {ofTopic, ofBroker, ofTopic},
		"!35":                      {ofTopic, 99},
	} {
		if got := c.resources(1, kinds...); got != want {
			t.Errorf("%v: %q, want %q", kinds, got, want)
		}
	}
	if got := c.resources(0); got != "16:m1" {
		t.Errorf("v0: %q", got)
	}
	c.alter(ofMetrics, "m1", unset("interval.ms"))
	c.eventually("the subscription is gone", func() bool { return c.resources(0) == "" })
}

func TestM049_groups_and_subscriptions(t *testing.T) {
	// Settings of groups and of subscriptions to clients' metrics: each illegal name, value and operation with Kafka's code, by broker and by controller; what was set is shown with its source, the rest with its default.
	t.Parallel()
	n := start(t)
	c, controller := n.dial(t), n.controller(t)
	for name, row := range map[string]struct {
		target altered
		want   int16
	}{
		"group":                {altered{ofGroup, "g", []alteration{set("consumer.session.timeout.ms", "50000")}}, 0},
		"unknown name":         {altered{ofGroup, "g", []alteration{set("no.such", "1")}}, 40},
		"no number":            {altered{ofGroup, "g", []alteration{set("consumer.session.timeout.ms", "x")}}, 40},
		"below the bound":      {altered{ofGroup, "g", []alteration{set("consumer.session.timeout.ms", "44999")}}, 40},
		"above the bound":      {altered{ofGroup, "g", []alteration{set("consumer.session.timeout.ms", "60001")}}, 40},
		"heartbeat":            {altered{ofGroup, "g", []alteration{set("consumer.heartbeat.interval.ms", "15001")}}, 40},
		"no group":             {altered{ofGroup, "", []alteration{set("consumer.session.timeout.ms", "50000")}}, 42},
		"append":               {altered{ofGroup, "g", []alteration{add("streams.rack.aware.assignment.tags", "a")}}, 40},
		"append to a number":   {altered{ofGroup, "g", []alteration{add("consumer.session.timeout.ms", "1")}}, 40},
		"deliveries":           {altered{ofGroup, "g", []alteration{set("share.delivery.count.limit", "11")}}, 40},
		"reset by duration":    {altered{ofGroup, "g", []alteration{set("share.auto.offset.reset", "by_duration:PT1H")}}, 0},
		"reset by nothing":     {altered{ofGroup, "g", []alteration{set("share.auto.offset.reset", "by_duration:P")}}, 40},
		"reset to the past":    {altered{ofGroup, "g", []alteration{set("share.auto.offset.reset", "by_duration:-PT1S")}}, 40},
		"subscription":         {altered{ofMetrics, "m", []alteration{set("interval.ms", "100"), set("metrics", "org.apache."), set("match", "client_id=a.*, client_software_name=b")}}, 0},
		"metrics name":         {altered{ofMetrics, "m", []alteration{set("no.such", "1")}}, 42},
		"metrics too often":    {altered{ofMetrics, "m", []alteration{set("interval.ms", "99")}}, 42},
		"metrics too seldom":   {altered{ofMetrics, "m", []alteration{set("interval.ms", "3600001")}}, 42},
		"metrics no number":    {altered{ofMetrics, "m", []alteration{set("interval.ms", "x")}}, 40},
		"metrics selector":     {altered{ofMetrics, "m", []alteration{set("match", "planet=x")}}, 40},
		"metrics no pattern":   {altered{ofMetrics, "m", []alteration{set("match", "client_id")}}, 40},
		"metrics bad pattern":  {altered{ofMetrics, "m", []alteration{set("match", "client_id=*")}}, 40},
		"metrics append":       {altered{ofMetrics, "m", []alteration{add("metrics", "x.")}}, 40},
		"metrics subtract":     {altered{ofMetrics, "m", []alteration{subtract("metrics", "x.")}}, 40},
		"no subscription":      {altered{ofMetrics, "", []alteration{set("interval.ms", "100")}}, 42},
		"subscription, delete": {altered{ofMetrics, "gone", []alteration{unset("interval.ms")}}, 0},
	} {
		for where, c := range map[string]*client{"broker": c, "controller": controller} {
			if got := c.alterAll(1, true, row.target)[0]; got.ErrorCode != row.want || (row.want != 0) != (deref(got.ErrorMessage) != "") {
				t.Errorf("%s at the %s: %d %q, want %d", name, where, got.ErrorCode, deref(got.ErrorMessage), row.want)
			}
			if row.want == 0 {
				if got := c.alterAll(1, false, row.target)[0]; got.ErrorCode != 0 {
					t.Errorf("%s at the %s: %d", name, where, got.ErrorCode)
				}
			}
		}
	}
	c.wantConfig(ofGroup, "g", "consumer.session.timeout.ms", "50000", kmsg.ConfigSource(8))
	c.wantConfig(ofMetrics, "m", "interval.ms", "100", kmsg.ConfigSource(7))
	c.wantConfig(ofMetrics, "m", "match", "client_id=a.*, client_software_name=b", kmsg.ConfigSource(7))
	c.wantConfig(ofMetrics, "none", "interval.ms", "300000", kmsg.ConfigSourceDefaultConfig)
	if entry := c.config(ofGroup, "g", "consumer.session.timeout.ms"); len(entry.ConfigSynonyms) != 2 || entry.ConfigSynonyms[1].Name != "group.consumer.session.timeout.ms" {
		t.Errorf("%+v", entry)
	}
	if entry := c.config(ofMetrics, "m", "metrics"); len(entry.ConfigSynonyms) != 1 || entry.ConfigSynonyms[0].Source != 7 {
		t.Errorf("%+v", entry)
	}
	if code := c.replace(2, false, ofMetrics, "m", "metrics=*"); code != 0 {
		t.Errorf("replace: %d", code)
	}
	c.wantConfig(ofMetrics, "m", "interval.ms", "300000", kmsg.ConfigSourceDefaultConfig)
	for _, kind := range []kmsg.ConfigResourceType{ofGroup, ofMetrics, ofLogger, 99} {
		if got := c.configs(4, kind, ""); got.ErrorCode != 42 || len(got.Configs) != 0 {
			t.Errorf("type %d without a name: %+v", kind, got)
		}
	}
}

func TestControllerDescribesConfigs(t *testing.T) {
	// A controller answers DescribeConfigs 1 to 4 as its node's broker does: topics, groups, subscriptions, its own node, all brokers, its logger; another node is 42.
	t.Parallel()
	n := start(t, "log.retention.bytes=7000000")
	c, controller := n.dial(t), n.controller(t)
	tp := c.topic(1, "retention.ms=5000")
	c.alter(ofGroup, "g", set("consumer.session.timeout.ms", "50000"))
	c.alter(ofMetrics, "m", set("interval.ms", "100"))
	c.alter(ofBroker, "", set("log.cleaner.threads", "2"))
	c.wantConfig(ofBroker, "1", "log.cleaner.threads", "2", kmsg.ConfigSourceDynamicDefaultBrokerConfig)
	for version := int16(1); version <= 4; version++ {
		for _, r := range []struct {
			kind kmsg.ConfigResourceType
			name string
			want int16
		}{
			{ofTopic, tp.name, 0}, {ofTopic, "no-such-topic", 3}, {ofTopic, "b/ad", 17}, {ofTopic, "", 17},
			{ofBroker, "1", 0}, {ofBroker, "", 0}, {ofBroker, "99", 42}, {ofBroker, "x", 42},
			{ofGroup, "g", 0}, {ofGroup, "unknown", 0}, {ofGroup, "", 42}, {ofMetrics, "m", 0}, {ofMetrics, "", 42},
			{ofLogger, "1", 0}, {ofLogger, "", 42}, {ofLogger, "99", 42}, {99, "x", 42},
		} {
			at, there := c.configs(version, r.kind, r.name), controller.configs(version, r.kind, r.name)
			if at.ErrorCode != r.want || there.ErrorCode != r.want || len(at.Configs) != len(there.Configs) || r.want == 0 && len(at.Configs) == 0 {
				t.Errorf("v%d, type %d %q: codes %d and %d, want %d; %d and %d settings", version, r.kind, r.name, at.ErrorCode, there.ErrorCode, r.want, len(at.Configs), len(there.Configs))
				continue
			}
			for i := range at.Configs {
				if a, b := fmt.Sprintf("%+v", plainConfig(at.Configs[i])), fmt.Sprintf("%+v", plainConfig(there.Configs[i])); a != b {
					t.Errorf("v%d: broker has %s, controller %s", version, a, b)
				}
			}
		}
	}
}

// plainConfig is a setting without pointers.
func plainConfig(entry kmsg.DescribeConfigsResponseResourceConfig) []string {
	out := []string{entry.Name, deref(entry.Value), fmt.Sprint(entry.Source, entry.ConfigType, entry.ReadOnly, entry.IsSensitive)}
	for _, s := range entry.ConfigSynonyms {
		out = append(out, s.Name, deref(s.Value), fmt.Sprint(s.Source))
	}
	return out
}

func TestLoggers(t *testing.T) {
	// A node's one logger, root, is shown with its level and takes another at once, by broker and controller; validate_only, unknown levels, loggers and operations, the old AlterConfigs and another node's loggers change nothing; a restart takes it back.
	t.Parallel()
	n := start(t)
	c := n.dial(t)
	level := func() string { return deref(c.config(ofLogger, "1", "root").Value) }
	if level() != "INFO" {
		t.Errorf("at first: %s", level())
	}
	for name, row := range map[string]struct {
		node   string
		change alteration
		want   int16
	}{
		"no such level":  {"1", set("root", "LOUD"), 40},
		"lower case":     {"1", set("root", "debug"), 40},
		"no such logger": {"1", set("kafka", "DEBUG"), 40},
		"delete":         {"1", unset("root"), 42},
		"append":         {"1", add("root", "DEBUG"), 42},
		"null":           {"1", alteration{"root", kmsg.IncrementalAlterConfigOpSet, nil}, 42},
		"another node":   {"2", set("root", "DEBUG"), 42},
		"no node":        {"", set("root", "DEBUG"), 42},
		"a word":         {"x", set("root", "DEBUG"), 42},
	} {
		for where, c := range map[string]*client{"broker": c, "controller": n.controller(t)} {
			if got := c.alterAll(1, false, altered{ofLogger, row.node, []alteration{row.change}})[0]; got.ErrorCode != row.want || deref(got.ErrorMessage) == "" {
				t.Errorf("%s at the %s: %d %q, want %d", name, where, got.ErrorCode, deref(got.ErrorMessage), row.want)
			}
		}
	}
	if code := c.replace(2, false, ofLogger, "1", "root=DEBUG"); code != 42 {
		t.Errorf("AlterConfigs: %d", code)
	}
	debug := altered{ofLogger, "1", []alteration{set("root", "DEBUG")}}
	if code := c.alterAll(1, true, debug)[0].ErrorCode; code != 0 || level() != "INFO" {
		t.Errorf("validate only: %d, then %s", code, level())
	}
	tp := c.topic(1)
	got := c.alterAll(1, false, debug, altered{ofTopic, tp.name, []alteration{set("retention.ms", "1")}}, altered{ofTopic, "no-such-topic", nil})
	if codes := []int16{got[0].ErrorCode, got[1].ErrorCode, got[2].ErrorCode}; !slices.Equal(codes, []int16{0, 0, 3}) || level() != "DEBUG" {
		t.Errorf("%v, then %s", codes, level())
	}
	if code := n.controller(t).alterAll(1, false, altered{ofLogger, "1", []alteration{set("root", "FATAL")}})[0].ErrorCode; code != 0 || level() != "FATAL" {
		t.Errorf("at the controller: %d, then %s", code, level())
	}
	c.alter(ofLogger, "1", set("root", "INFO"))
	n.restart(t)
	c = n.dial(t)
	if level() != "INFO" {
		t.Errorf("after a restart: %s", level())
	}
}
