package node

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// quota is one limit; a value of 0 removes it.
type quota struct {
	key   string
	value float64
}

// entity is whose quota: pairs of a type and a name, "<default>" for the default.
type entity []string

func who(parts ...string) entity { return parts }

type quotaChange struct {
	entity entity
	quotas []quota
}

func nameOf(part string) *string {
	if part == "<default>" {
		return nil
	}
	return &part
}

func alterQuotasRequest(validateOnly bool, changes ...quotaChange) *kmsg.AlterClientQuotasRequest {
	req := kmsg.NewPtrAlterClientQuotasRequest()
	req.ValidateOnly = validateOnly
	for _, change := range changes {
		entry := kmsg.NewAlterClientQuotasRequestEntry()
		for i := 0; i+1 < len(change.entity); i += 2 {
			part := kmsg.NewAlterClientQuotasRequestEntryEntity()
			part.Type, part.Name = change.entity[i], nameOf(change.entity[i+1])
			entry.Entity = append(entry.Entity, part)
		}
		for _, q := range change.quotas {
			op := kmsg.NewAlterClientQuotasRequestEntryOp()
			op.Key, op.Value, op.Remove = q.key, q.value, q.value == 0
			entry.Ops = append(entry.Ops, op)
		}
		req.Entries = append(req.Entries, entry)
	}
	return req
}

// alterQuotas returns the code of each entity, in the order of the request.
func (c *client) alterQuotas(version int16, validateOnly bool, changes ...quotaChange) []int16 {
	c.t.Helper()
	var codes []int16
	for i, entry := range do[*kmsg.AlterClientQuotasResponse](c, version, alterQuotasRequest(validateOnly, changes...)).Entries {
		var parts entity
		for _, part := range entry.Entity {
			name := "<default>"
			if part.Name != nil {
				name = *part.Name
			}
			parts = append(parts, part.Type, name)
		}
		if !slices.Equal(parts, changes[i].entity) {
			c.t.Errorf("answer %d is for %v, want %v", i, parts, changes[i].entity)
		}
		if (entry.ErrorCode != 0) != (deref(entry.ErrorMessage) != "") {
			c.t.Errorf("answer %d: code %d with message %q", i, entry.ErrorCode, deref(entry.ErrorMessage))
		}
		codes = append(codes, entry.ErrorCode)
	}
	return codes
}

// match is one component of a filter.
type match struct {
	kind string
	how  kmsg.QuotasMatchType
	name *string
}

func byName(kind, name string) match { return match{kind, kmsg.QuotasMatchTypeExact, &name} }
func byDefault(kind string) match    { return match{kind, kmsg.QuotasMatchTypeDefault, nil} }
func byAny(kind string) match        { return match{kind, kmsg.QuotasMatchTypeAny, nil} }

func quotasRequest(strict bool, filter ...match) *kmsg.DescribeClientQuotasRequest {
	req := kmsg.NewPtrDescribeClientQuotasRequest()
	req.Strict = strict
	for _, m := range filter {
		one := kmsg.NewDescribeClientQuotasRequestComponent()
		one.EntityType, one.MatchType, one.Match = m.kind, m.how, m.name
		req.Components = append(req.Components, one)
	}
	return req
}

// quotas lists what a filter finds, one line for each entity, sorted.
func (c *client) quotas(version int16, strict bool, filter ...match) (lines []string, code int16) {
	c.t.Helper()
	resp := do[*kmsg.DescribeClientQuotasResponse](c, version, quotasRequest(strict, filter...))
	if (resp.ErrorCode != 0) != (deref(resp.ErrorMessage) != "") || (resp.ErrorCode != 0) != (resp.Entries == nil) {
		c.t.Errorf("code %d, message %q, entries %v", resp.ErrorCode, deref(resp.ErrorMessage), resp.Entries)
	}
	for _, entry := range resp.Entries {
		var line []string
		for _, part := range entry.Entity {
			name := "<default>"
			if part.Name != nil {
				name = *part.Name
			}
			line = append(line, part.Type+"="+name)
		}
		slices.Sort(line)
		var values []string
		for _, v := range entry.Values {
			values = append(values, fmt.Sprintf("%s:%v", v.Key, v.Value))
		}
		slices.Sort(values)
		lines = append(lines, strings.Join(line, ",")+" "+strings.Join(values, ","))
	}
	slices.Sort(lines)
	return lines, resp.ErrorCode
}

func (c *client) wantQuotas(want []string, strict bool, filter ...match) {
	c.t.Helper()
	slices.Sort(want)
	var got []string
	c.eventually(fmt.Sprintf("quotas %v, strict %t", want, strict), func() bool {
		got, _ = c.quotas(1, strict, filter...)
		return slices.Equal(got, want)
	})
	if !slices.Equal(got, want) {
		c.t.Logf("got %v", got)
	}
}

const producerRate = "producer_byte_rate"

func TestM054_client_quotas(t *testing.T) {
	// Client quotas are set, found by every kind of filter, changed and removed, through brokers and controllers; validate_only changes nothing; they outlive a restart.
	t.Parallel()
	n := start(t)
	c := n.dial(t)
	for version := int16(0); version <= 1; version++ {
		if codes := c.alterQuotas(version, true, quotaChange{who("user", "ann"), []quota{{producerRate, 1}}}); !slices.Equal(codes, []int16{0}) {
			t.Errorf("v%d, validate only: %v", version, codes)
		}
		if lines, code := c.quotas(version, false); len(lines) > 0 || code != 0 {
			t.Errorf("v%d, after validate only: %v, code %d", version, lines, code)
		}
	}
	codes := c.alterQuotas(1, false,
		quotaChange{who("user", "ann"), []quota{{producerRate, 1000}, {"request_percentage", 12.5}}},
		quotaChange{who("client-id", "app", "user", "ann"), []quota{{"consumer_byte_rate", 5}}},
		quotaChange{who("user", "<default>"), []quota{{"controller_mutation_rate", 0.5}}},
		quotaChange{who("client-id", "<default>", "user", "<default>"), []quota{{producerRate, 7}}},
		quotaChange{who("client-id", "app"), []quota{{producerRate, 9}}},
		quotaChange{who("ip", "10.0.0.9"), []quota{{"connection_creation_rate", 3}}},
		quotaChange{who("ip", "<default>"), []quota{{"connection_creation_rate", 4}}})
	if !slices.Equal(codes, make([]int16, 7)) {
		t.Fatalf("%v", codes)
	}
	const (
		ann     = "user=ann producer_byte_rate:1000,request_percentage:12.5"
		annApp  = "client-id=app,user=ann consumer_byte_rate:5"
		anybody = "user=<default> controller_mutation_rate:0.5"
		anyPair = "client-id=<default>,user=<default> producer_byte_rate:7"
		app     = "client-id=app producer_byte_rate:9"
		address = "ip=10.0.0.9 connection_creation_rate:3"
		anyIP   = "ip=<default> connection_creation_rate:4"
	)
	all := []string{ann, annApp, anybody, anyPair, app, address, anyIP}
	check := func() {
		t.Helper()
		c.wantQuotas(all, false)
		c.wantQuotas(nil, true)
		c.wantQuotas([]string{ann, annApp}, false, byName("user", "ann"))
		c.wantQuotas([]string{ann}, true, byName("user", "ann"))
		c.wantQuotas([]string{anybody, anyPair}, false, byDefault("user"))
		c.wantQuotas([]string{anybody}, true, byDefault("user"))
		c.wantQuotas([]string{ann, annApp, anybody, anyPair}, false, byAny("user"))
		c.wantQuotas([]string{annApp, anyPair}, true, byAny("user"), byAny("client-id"))
		c.wantQuotas([]string{annApp}, true, byName("client-id", "app"), byAny("user"))
		c.wantQuotas([]string{address, anyIP}, true, byAny("ip"))
		c.wantQuotas([]string{address}, false, byName("ip", "10.0.0.9"))
		c.wantQuotas(nil, false, byName("user", "nobody"))
		if lines, code := c.quotas(0, true, byName("user", "ann")); code != 0 || !slices.Equal(lines, []string{ann}) {
			t.Errorf("v0: %v, code %d", lines, code)
		}
	}
	check()
	n.restart(t)
	c = n.dial(t)
	check()

	if codes := n.controller(t).alterQuotas(1, false, quotaChange{who("user", "ann"), []quota{{producerRate, 2000}, {"request_percentage", 0}, {"consumer_byte_rate", 0}}}); !slices.Equal(codes, []int16{0}) {
		t.Errorf("at the controller: %v", codes)
	}
	c.wantQuotas([]string{"user=ann producer_byte_rate:2000"}, true, byName("user", "ann"))
	if codes := c.alterQuotas(1, false, quotaChange{who("user", "ann"), []quota{{producerRate, 0}}}, quotaChange{who("user", "nobody"), []quota{{producerRate, 0}}}); !slices.Equal(codes, []int16{0, 0}) {
		t.Errorf("removal: %v", codes)
	}
	c.wantQuotas([]string{annApp}, false, byName("user", "ann"))
}

func TestM054_client_quota_faults(t *testing.T) {
	// Each fault of AlterClientQuotas is 42, spoils its own entity only, and is answered in the request's order; each of a filter is 42, an unknown kind of entity in it 35.
	t.Parallel()
	c := start(t).dial(t)
	fine := []quota{{producerRate, 5}}
	for name, row := range map[string]quotaChange{
		"no entity":          {nil, fine},
		"unknown type":       {who("planet", "x"), fine},
		"empty name":         {who("user", ""), fine},
		"two users":          {who("user", "a", "user", "b"), fine},
		"address and user":   {who("ip", "1.2.3.4", "user", "a"), fine},
		"no address":         {who("ip", "no address at all"), []quota{{"connection_creation_rate", 1}}},
		"unknown quota":      {who("user", "a"), []quota{{"speed", 1}}},
		"of addresses":       {who("user", "a"), []quota{{"connection_creation_rate", 1}}},
		"of users":           {who("ip", "1.2.3.4"), fine},
		"negative":           {who("user", "a"), []quota{{producerRate, -1}}},
		"fraction":           {who("user", "a"), []quota{{producerRate, 1.5}}},
		"too large":          {who("user", "a"), []quota{{producerRate, 1e30}}},
		"too large a rate":   {who("ip", "1.2.3.4"), []quota{{"connection_creation_rate", 1e10}}},
		"no number":          {who("user", "a"), []quota{{"request_percentage", math.NaN()}}},
		"infinite":           {who("user", "a"), []quota{{"request_percentage", math.Inf(1)}}},
		"quota twice":        {who("user", "a"), []quota{{producerRate, 5}, {producerRate, 6}}},
		"one of two unknown": {who("user", "a"), []quota{{producerRate, 5}, {"speed", 6}}},
	} {
		before, after := quotaChange{who("user", "before "+name), fine}, quotaChange{who("user", "after "+name), fine}
		if codes := c.alterQuotas(1, false, before, row, after); !slices.Equal(codes, []int16{0, 42, 0}) {
			t.Errorf("%s: %v", name, codes)
		}
		c.wantQuotas([]string{"user=after " + name + " producer_byte_rate:5"}, false, byName("user", "after "+name))
	}
	if codes := c.alterQuotas(1, false, quotaChange{who("user", "a"), fine}, quotaChange{who("user", "a"), fine}); !slices.Equal(codes, []int16{42, 42}) {
		t.Errorf("entity twice: %v", codes)
	}
	c.wantQuotas(nil, false, byName("user", "a"))
	if codes := c.alterQuotas(1, true, quotaChange{who("user", "a"), []quota{{producerRate, 1.00000001}}}, quotaChange{who("ip", "::1"), []quota{{"connection_creation_rate", 1}}},
		quotaChange{who("ip", "localhost"), []quota{{"connection_creation_rate", 1}}}, quotaChange{who("user", "a"), nil}); !slices.Equal(codes, []int16{42, 0, 0, 42}) {
		t.Errorf("an entity twice, an address and a host: %v", codes)
	}
	if codes := c.alterQuotas(1, false); len(codes) != 0 {
		t.Errorf("nothing: %v", codes)
	}
	some := "x"
	for name, row := range map[string]struct {
		filter []match
		code   int16
	}{
		"exact without a name": {[]match{{"user", kmsg.QuotasMatchTypeExact, nil}}, 42},
		"default with a name":  {[]match{{"user", kmsg.QuotasMatchTypeDefault, &some}}, 42},
		"any with a name":      {[]match{{"user", kmsg.QuotasMatchTypeAny, &some}}, 42},
		"unknown match":        {[]match{{"user", 3, nil}}, 42},
		"no type":              {[]match{byAny("")}, 42},
		"unknown type":         {[]match{byAny("planet")}, 35},
		"twice":                {[]match{byAny("user"), byDefault("user")}, 42},
		"address and user":     {[]match{byAny("ip"), byAny("user")}, 42},
	} {
		for version := int16(0); version <= 1; version++ {
			if lines, code := c.quotas(version, false, row.filter...); code != row.code || lines != nil {
				t.Errorf("%s, v%d: code %d, %v", name, version, code, lines)
			}
		}
	}
}
