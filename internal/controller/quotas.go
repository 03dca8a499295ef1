package controller

import (
	"math"
	"net/netip"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
)

// AlteredQuota is the outcome for one entity.
type AlteredQuota struct {
	Entity []metadata.QuotaEntity
	Err    *Error
}

// AlterClientQuotasReply answers AlterClientQuotas, in the order of the request.
type AlterClientQuotasReply struct{ Entries []AlteredQuota }

// clientQuotaKeys says of each quota of users and client ids whether it must be a whole number.
var clientQuotaKeys = map[string]bool{"producer_byte_rate": true, "consumer_byte_rate": true, "request_percentage": false, "controller_mutation_rate": false}

const ipQuotaKey = "connection_creation_rate"

// AlterClientQuotas sets and removes quotas. An entity is changed whole or not at all.
func (c *Controller) AlterClientQuotas(at At, req *kmsg.AlterClientQuotasRequest) Result {
	o := c.begin(at)
	var reply AlterClientQuotasReply
	count := map[string]int{}
	entities := make([][]metadata.QuotaEntity, len(req.Entries))
	for i, e := range req.Entries {
		for _, part := range e.Entity {
			entities[i] = append(entities[i], metadata.QuotaEntity{EntityType: part.Type, EntityName: part.Name})
		}
		count[metadata.QuotaKey(entities[i])]++
	}
	for i, e := range req.Entries {
		err := checkQuotaEntity(entities[i])
		if err == nil && count[metadata.QuotaKey(entities[i])] > 1 {
			err = faultf(ErrInvalidRequest, "the request names the entity more than once")
		}
		if err == nil {
			err = o.alterQuotas(entities[i], e.Ops)
		}
		reply.Entries = append(reply.Entries, AlteredQuota{entities[i], err})
	}
	if req.ValidateOnly {
		o.recs = nil
	}
	return o.result(true, reply)
}

func checkQuotaEntity(entity []metadata.QuotaEntity) *Error {
	if len(entity) == 0 {
		return faultf(ErrInvalidRequest, "the entity is empty")
	}
	types := map[string]bool{}
	for _, part := range entity {
		if !slices.Contains([]string{"user", "client-id", "ip"}, part.EntityType) {
			return faultf(ErrInvalidRequest, "entity type %q is not known", part.EntityType)
		}
		if types[part.EntityType] {
			return faultf(ErrInvalidRequest, "the entity has two parts of type %s", part.EntityType)
		}
		types[part.EntityType] = true
		if part.EntityName != nil && *part.EntityName == "" {
			return faultf(ErrInvalidRequest, "the name of the %s is empty", part.EntityType)
		}
		if part.EntityType == "ip" && part.EntityName != nil {
			if _, err := netip.ParseAddr(*part.EntityName); err != nil {
				return faultf(ErrInvalidRequest, "%s is not an address", *part.EntityName)
			}
		}
	}
	if types["ip"] && len(types) > 1 {
		return faultf(ErrInvalidRequest, "a quota of an address cannot be joined with others")
	}
	return nil
}

func (o *op) alterQuotas(entity []metadata.QuotaEntity, ops []kmsg.AlterClientQuotasRequestEntryOp) *Error {
	named := map[string]bool{}
	var recs []metadata.Record
	for _, x := range ops {
		if named[x.Key] {
			return faultf(ErrInvalidRequest, "quota %s is given twice", x.Key)
		}
		named[x.Key] = true
		whole, known := clientQuotaKeys[x.Key]
		if entity[0].EntityType == "ip" {
			whole, known = true, x.Key == ipQuotaKey
		}
		old, had := o.img.ClientQuota(entity, x.Key)
		switch {
		case !known:
			return faultf(ErrInvalidRequest, "quota %q is not known for this kind of entity", x.Key)
		case x.Remove:
			if had {
				recs = append(recs, &metadata.ClientQuotaRecord{Entity: entity, Key: x.Key, Remove: true})
			}
			continue
		case !(x.Value > 0) || math.IsInf(x.Value, 0):
			return faultf(ErrInvalidRequest, "quota %s must be above 0", x.Key)
		case whole && x.Value != math.Trunc(x.Value):
			return faultf(ErrInvalidRequest, "quota %s must be a whole number", x.Key)
		}
		if !had || old != x.Value {
			recs = append(recs, &metadata.ClientQuotaRecord{Entity: entity, Key: x.Key, Value: x.Value})
		}
	}
	o.add(recs...)
	return nil
}

// DescribeClientQuotas lists the quotas whose entity matches every component; with Strict, entities with
// other parts do not match. It reads committed state.
func (c *Controller) DescribeClientQuotas(req *kmsg.DescribeClientQuotasRequest) ([]*metadata.ClientQuota, *Error) {
	types := map[string]bool{}
	for _, m := range req.Components {
		if types[m.EntityType] {
			return nil, faultf(ErrInvalidRequest, "entity type %s is given twice", m.EntityType)
		}
		types[m.EntityType] = true
		if !slices.Contains([]string{"user", "client-id", "ip"}, m.EntityType) {
			return nil, faultf(ErrUnsupportedVersion, "entity type %q is not known", m.EntityType)
		}
		if m.MatchType < kmsg.QuotasMatchTypeExact || m.MatchType > kmsg.QuotasMatchTypeAny {
			return nil, faultf(ErrInvalidRequest, "match type %d is not known", m.MatchType)
		}
		if (m.MatchType == kmsg.QuotasMatchTypeExact) != (m.Match != nil) {
			return nil, faultf(ErrInvalidRequest, "a name is to be given for an exact match, and only then")
		}
	}
	if types["ip"] && len(types) > 1 {
		return nil, faultf(ErrInvalidRequest, "a quota of an address cannot be joined with others")
	}
	var out []*metadata.ClientQuota
	for _, q := range c.Committed().ClientQuotas().All() {
		if quotaMatches(q, req) {
			out = append(out, q)
		}
	}
	return out, nil
}

func quotaMatches(q *metadata.ClientQuota, req *kmsg.DescribeClientQuotasRequest) bool {
	if req.Strict && len(q.Entity) != len(req.Components) {
		return false
	}
	for _, m := range req.Components {
		at := slices.IndexFunc(q.Entity, func(e metadata.QuotaEntity) bool { return e.EntityType == m.EntityType })
		if at < 0 {
			return false
		}
		name := q.Entity[at].EntityName
		switch m.MatchType {
		case kmsg.QuotasMatchTypeExact:
			if name == nil || *name != *m.Match {
				return false
			}
		case kmsg.QuotasMatchTypeDefault:
			if name != nil {
				return false
			}
		}
	}
	return true
}
