package controller

import (
	"math"
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

// quotaKind is how the value of a quota is limited.
type quotaKind int

const (
	anyNumber quotaKind = iota
	wholeLong
	wholeInt
)

var clientQuotaKeys = map[string]quotaKind{"producer_byte_rate": wholeLong, "consumer_byte_rate": wholeLong, "request_percentage": anyNumber, "controller_mutation_rate": anyNumber}

var addressQuotaKeys = map[string]quotaKind{"connection_creation_rate": wholeInt}

// AlterClientQuotas sets and removes quotas. An entity is changed whole or not at all. The caller has seen to it
// that entities of type ip name an address, or a host that has one: nobody is asked from here.
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
		return faultf(ErrInvalidRequest, "Invalid empty client quota entity")
	}
	types := map[string]bool{}
	for _, part := range entity {
		if !slices.Contains(quotaEntityTypes, part.EntityType) {
			return faultf(ErrInvalidRequest, "Unhandled client quota entity type: %s", part.EntityType)
		}
		if types[part.EntityType] {
			return faultf(ErrInvalidRequest, "the entity has two parts of type %s", part.EntityType)
		}
		types[part.EntityType] = true
		if part.EntityName != nil && *part.EntityName == "" {
			return faultf(ErrInvalidRequest, "Empty %s not supported", part.EntityType)
		}
	}
	if types["ip"] && len(types) > 1 {
		return faultf(ErrInvalidRequest, "Invalid quota entity combination, IP entity should not be combined with User or ClientId")
	}
	return nil
}

var quotaEntityTypes = []string{"user", "client-id", "ip"}

func (o *op) alterQuotas(entity []metadata.QuotaEntity, ops []kmsg.AlterClientQuotasRequestEntryOp) *Error {
	keys := clientQuotaKeys
	if entity[0].EntityType == "ip" {
		keys = addressQuotaKeys
	}
	named := map[string]bool{}
	var recs []metadata.Record
	for _, x := range ops {
		if named[x.Key] {
			return faultf(ErrInvalidRequest, "quota %s is given twice", x.Key)
		}
		named[x.Key] = true
		old, had := o.img.ClientQuota(entity, x.Key)
		if x.Remove {
			if had {
				recs = append(recs, &metadata.ClientQuotaRecord{Entity: entity, Key: x.Key, Remove: true})
			}
			continue
		}
		if err := checkQuota(keys, x.Key, x.Value); err != nil {
			return err
		}
		if !had || old != x.Value {
			recs = append(recs, &metadata.ClientQuotaRecord{Entity: entity, Key: x.Key, Value: x.Value})
		}
	}
	o.add(recs...)
	return nil
}

func checkQuota(keys map[string]quotaKind, key string, value float64) *Error {
	kind, known := keys[key]
	whole := func(limit float64, name string) *Error {
		if value >= limit {
			return faultf(ErrInvalidRequest, "Proposed value for %s is too large for %s.", key, name)
		}
		// Numbers that went through arithmetic of clients are rarely exact.
		if math.Abs(value-math.Round(value)) > 1e-6 {
			return faultf(ErrInvalidRequest, "%s cannot be a fractional value.", key)
		}
		return nil
	}
	switch {
	case !known:
		return faultf(ErrInvalidRequest, "Invalid configuration key %s", key)
	case math.IsNaN(value) || math.IsInf(value, 0):
		return faultf(ErrInvalidRequest, "Quota %s must be a finite number", key)
	case value <= 0:
		return faultf(ErrInvalidRequest, "Quota %s must be greater than 0", key)
	case kind == wholeLong:
		return whole(1<<63, "a LONG")
	case kind == wholeInt:
		return whole(1<<31, "an INT")
	}
	return nil
}

// DescribeClientQuotas lists the quotas of an image whose entity matches every component; with Strict, entities
// with other parts do not match.
func DescribeClientQuotas(image *metadata.Image, req *kmsg.DescribeClientQuotasRequest) ([]*metadata.ClientQuota, *Error) {
	types := map[string]bool{}
	for _, m := range req.Components {
		switch named := m.Match != nil; {
		case m.EntityType == "":
			return nil, faultf(ErrInvalidRequest, "Invalid empty entity type.")
		case types[m.EntityType]:
			return nil, faultf(ErrInvalidRequest, "Entity type %s cannot appear more than once in the filter.", m.EntityType)
		case !slices.Contains(quotaEntityTypes, m.EntityType):
			return nil, faultf(ErrUnsupportedVersion, "Unsupported entity type %s", m.EntityType)
		case m.MatchType == kmsg.QuotasMatchTypeExact && !named:
			return nil, faultf(ErrInvalidRequest, "Request specified MATCH_TYPE_EXACT, but set match string to null.")
		case m.MatchType == kmsg.QuotasMatchTypeDefault && named:
			return nil, faultf(ErrInvalidRequest, "Request specified MATCH_TYPE_DEFAULT, but also specified a match string.")
		case m.MatchType == kmsg.QuotasMatchTypeAny && named:
			return nil, faultf(ErrInvalidRequest, "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string.")
		case m.MatchType < kmsg.QuotasMatchTypeExact || m.MatchType > kmsg.QuotasMatchTypeAny:
			return nil, faultf(ErrInvalidRequest, "Unknown match type %d", m.MatchType)
		}
		types[m.EntityType] = true
	}
	if types["ip"] && len(types) > 1 {
		return nil, faultf(ErrInvalidRequest, "Invalid entity filter component combination. IP filter component should not be used with user or clientId filter component.")
	}
	var out []*metadata.ClientQuota
	for _, q := range image.ClientQuotas().All() {
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
