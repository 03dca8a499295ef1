package metadata

import (
	"slices"
	"strings"
)

// ClientQuota is the quotas of one entity. It must not be changed.
type ClientQuota struct {
	// Entity is sorted by type; a nil name is the default entity.
	Entity []QuotaEntity
	values Map[string, float64]
}

// Values are the entity's quotas by key.
func (q *ClientQuota) Values() Map[string, float64] { return q.values }

// QuotaKey is a text that is the same for the same entity, in whatever order its parts are given.
func QuotaKey(entity []QuotaEntity) string {
	var b strings.Builder
	for _, e := range sortedEntity(entity) {
		b.WriteString(e.EntityType)
		if e.EntityName == nil {
			b.WriteString("\x00d")
		} else {
			b.WriteString("\x00n")
			b.WriteString(*e.EntityName)
		}
		b.WriteString("\x00\x00")
	}
	return b.String()
}

func sortedEntity(entity []QuotaEntity) []QuotaEntity {
	out := make([]QuotaEntity, len(entity))
	for i, e := range entity {
		out[i] = QuotaEntity{EntityType: e.EntityType, EntityName: e.EntityName}
	}
	slices.SortFunc(out, func(a, b QuotaEntity) int { return strings.Compare(a.EntityType, b.EntityType) })
	return out
}

// ClientQuotas are all quotas by QuotaKey of their entity.
func (i *Image) ClientQuotas() Map[string, *ClientQuota] { return i.quotas }

// ClientQuota returns one quota of an entity.
func (i *Image) ClientQuota(entity []QuotaEntity, key string) (float64, bool) {
	q, ok := i.quotas.Get(QuotaKey(entity))
	if !ok {
		return 0, false
	}
	return q.values.Get(key)
}

func (d *Delta) replayQuota(r *ClientQuotaRecord) {
	i := &d.next
	key := QuotaKey(r.Entity)
	d.Quotas[key] = true
	changed := ClientQuota{Entity: sortedEntity(r.Entity), values: newOrderedMap[string, float64]()}
	if old, ok := i.quotas.Get(key); ok {
		changed = *old
	}
	if r.Remove {
		changed.values = changed.values.Delete(r.Key)
	} else {
		changed.values = changed.values.Set(r.Key, r.Value)
	}
	if changed.values.Len() == 0 {
		i.quotas = i.quotas.Delete(key)
	} else {
		i.quotas = i.quotas.Set(key, &changed)
	}
}

func (i *Image) quotaRecords(yield func(Record) bool) bool {
	for _, q := range i.quotas.All() {
		for key, value := range q.values.All() {
			if !yield(&ClientQuotaRecord{Entity: q.Entity, Key: key, Value: value}) {
				return false
			}
		}
	}
	return true
}
