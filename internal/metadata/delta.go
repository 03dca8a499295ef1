package metadata

import (
	"fmt"
	"maps"
)

// Delta collects the records after an image and makes the next image. It is owned by one goroutine.
//
// Records between BeginTransaction and its end are applied at once but are not to be shown: while
// InTransaction, a publisher waits, and what it has is Image.Stable.
type Delta struct {
	base *Image
	next Image
	Changes
	// atBegin is what had changed when the open transaction began.
	atBegin Changes
}

// Changes is what a Delta touched. A name or id is listed when a record spoke of it, even if in the end
// nothing differs.
type Changes struct {
	// Topics by id; a topic that was made and removed again within the delta is listed as removed.
	Topics map[UUID]*TopicChange
	// Brokers and Controllers by id, also removed ones.
	Brokers     map[int32]bool
	Controllers map[int32]bool
	Configs     map[ConfigResource]bool
	Features    bool
	Quotas      map[string]bool
	ProducerIDs bool
	ACLs        bool
	Scram       bool
	Tokens      bool
}

// TopicChange is what a Delta did to one topic.
type TopicChange struct {
	Name string
	// Created and Removed say that the topic was not there before, or is not there any more.
	Created, Removed bool
	// Partitions that were made or changed.
	Partitions map[int32]bool
}

func newChanges() Changes {
	return Changes{Topics: map[UUID]*TopicChange{}, Brokers: map[int32]bool{}, Controllers: map[int32]bool{}, Configs: map[ConfigResource]bool{}, Quotas: map[string]bool{}}
}

func (c Changes) clone() Changes {
	topics := make(map[UUID]*TopicChange, len(c.Topics))
	for id, t := range c.Topics {
		copied := *t
		copied.Partitions = maps.Clone(t.Partitions)
		topics[id] = &copied
	}
	c.Topics = topics
	c.Brokers, c.Controllers = maps.Clone(c.Brokers), maps.Clone(c.Controllers)
	c.Configs, c.Quotas = maps.Clone(c.Configs), maps.Clone(c.Quotas)
	return c
}

func (c Changes) topic(id UUID, name string) *TopicChange {
	t := c.Topics[id]
	if t == nil {
		t = &TopicChange{Name: name, Partitions: map[int32]bool{}}
		c.Topics[id] = t
	}
	return t
}

// NewDelta begins a delta after base.
func NewDelta(base *Image) *Delta {
	return &Delta{base: base, next: *base, Changes: newChanges(), atBegin: newChanges()}
}

// Base is the image the delta began after.
func (d *Delta) Base() *Image { return d.base }

// InTransaction says whether a transaction is open after the records so far.
func (d *Delta) InTransaction() bool { return d.next.before != nil }

// ReplayError is a record that does not fit the state before it. A controller that meets one must stop.
type ReplayError struct {
	Offset int64
	Record string
	Reason string
}

func (e *ReplayError) Error() string {
	return fmt.Sprintf("%s at offset %d: %s", e.Record, e.Offset, e.Reason)
}

// Apply makes the next image, which ends at this offset of this epoch: the last of the batch, control
// batches included. The delta must not be used afterwards.
func (d *Delta) Apply(offset int64, epoch int32) *Image {
	d.next.offset, d.next.epoch = offset, epoch
	if d.next.before != nil {
		before := *d.next.before
		before.offset, before.epoch = offset, epoch
		d.next.before = &before
	}
	// A pointer into the delta would keep the delta, with that the image it began after, and so all images there ever were.
	img := d.next
	return &img
}

// Replay applies one record that stands at offset in the log. After an error (*ReplayError) the delta is of no use.
func (d *Delta) Replay(rec Record, offset int64) error {
	i := &d.next
	fail := func(format string, args ...any) error {
		return &ReplayError{offset, RecordName(rec), fmt.Sprintf(format, args...)}
	}
	switch r := rec.(type) {
	case *RegisterBrokerRecord:
		d.Brokers[r.BrokerID] = true
		i.brokers = i.brokers.Set(r.BrokerID, newBrokerRegistration(r, offset))
	case *UnregisterBrokerRecord:
		if err := d.changeBroker(r.BrokerID, r.BrokerEpoch, func(*BrokerRegistration) {}); err != "" {
			return fail("%s", err)
		}
		i.brokers = i.brokers.Delete(r.BrokerID)
	case *FenceBrokerRecord:
		if err := d.changeBroker(r.ID, r.Epoch, func(b *BrokerRegistration) { b.Fenced = true }); err != "" {
			return fail("%s", err)
		}
	case *UnfenceBrokerRecord:
		if err := d.changeBroker(r.ID, r.Epoch, func(b *BrokerRegistration) { b.Fenced = false }); err != "" {
			return fail("%s", err)
		}
	case *BrokerRegistrationChangeRecord:
		if err := d.changeBroker(r.BrokerID, r.BrokerEpoch, func(b *BrokerRegistration) { b.change(r) }); err != "" {
			return fail("%s", err)
		}
	case *RegisterControllerRecord:
		d.Controllers[r.ControllerID] = true
		i.controllers = i.controllers.Set(r.ControllerID, newControllerRegistration(r))
	case *UnregisterControllerRecord:
		if _, ok := i.controllers.Get(r.ControllerID); !ok {
			return fail("controller %d is not registered", r.ControllerID)
		}
		d.Controllers[r.ControllerID] = true
		i.controllers = i.controllers.Delete(r.ControllerID)
	case *TopicRecord, *PartitionRecord, *PartitionChangeRecord, *RemoveTopicRecord, *ClearELRRecord:
		if err := d.replayTopics(rec); err != "" {
			return fail("%s", err)
		}
	case *ConfigRecord:
		d.replayConfig(r)
	case *FeatureLevelRecord:
		if r.Name == FeatureKRaftVersion {
			return nil
		}
		if r.Name == FeatureMetadataVersion && !Level(r.FeatureLevel).Supported() {
			return fail("level %d of %s is not supported, only %d to %d", r.FeatureLevel, r.Name, LevelMin, LevelLatest)
		}
		d.Features = true
		if r.FeatureLevel == 0 {
			i.features = i.features.Delete(r.Name)
		} else {
			i.features = i.features.Set(r.Name, r.FeatureLevel)
		}
	case *ClientQuotaRecord:
		d.replayQuota(r)
	case *ProducerIDsRecord:
		if r.NextProducerID <= i.nextProducerID {
			return fail("next producer id %d is not above %d", r.NextProducerID, i.nextProducerID)
		}
		d.ProducerIDs = true
		i.nextProducerID = r.NextProducerID
	case *AccessControlEntryRecord, *RemoveAccessControlEntryRecord, *UserScramCredentialRecord, *RemoveUserScramCredentialRecord, *DelegationTokenRecord, *RemoveDelegationTokenRecord:
		if err := d.replaySecurity(rec); err != "" {
			return fail("%s", err)
		}
	case *BeginTransactionRecord:
		if i.before != nil {
			return fail("a transaction is open already")
		}
		before := *i
		i.before, d.atBegin = &before, d.Changes.clone()
	case *EndTransactionRecord:
		if i.before == nil {
			return fail("no transaction is open")
		}
		i.before = nil
	case *AbortTransactionRecord:
		if i.before == nil {
			return fail("no transaction is open")
		}
		d.next, d.Changes = *i.before, d.atBegin
	case *NoOpRecord, *ZkMigrationStateRecord:
	default:
		return fail("no rule to apply it")
	}
	return nil
}

// changeBroker replaces a registration by a changed copy, if it has this epoch; otherwise it says why not.
func (d *Delta) changeBroker(id int32, epoch int64, change func(*BrokerRegistration)) string {
	b, ok := d.next.brokers.Get(id)
	if !ok {
		return fmt.Sprintf("broker %d is not registered", id)
	}
	if b.Epoch != epoch {
		return fmt.Sprintf("broker %d has epoch %d, not %d", id, b.Epoch, epoch)
	}
	changed := *b
	change(&changed)
	d.Brokers[id] = true
	d.next.brokers = d.next.brokers.Set(id, &changed)
	return ""
}

// Current is the state after the records so far, at the offset of the base. It stays as it is when more
// records follow.
func (d *Delta) Current() *Image {
	current := d.next
	return &current
}
