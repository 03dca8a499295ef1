package controller

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
)

// Ways to change a feature's level.
const (
	featureUpgrade         int8 = 1
	featureSafeDowngrade   int8 = 2
	featureUnsafeDowngrade int8 = 3
)

// UpdateFeatures finalizes features at other levels, all or none. On failure Err speaks of the first
// feature that cannot be changed. kraft.version is the quorum's: it stays as it is.
func (c *Controller) UpdateFeatures(at At, req *kmsg.UpdateFeaturesRequest) Result {
	o := c.begin(at)
	var recs []metadata.Record
	proposed := map[string]int16{}
	var updates []kmsg.UpdateFeaturesRequestFeatureUpdate // of a feature that is named twice the first counts, as in Kafka
	for _, u := range req.FeatureUpdates {
		if _, twice := proposed[u.Feature]; !twice {
			proposed[u.Feature] = u.MaxVersionLevel
			updates = append(updates, u)
		}
	}
	for _, u := range updates {
		kind := u.UpgradeType
		if req.Version == 0 {
			kind = featureUpgrade
			if u.AllowDowngrade {
				kind = featureSafeDowngrade
			}
		}
		if err := o.checkFeatureUpdate(u.Feature, u.MaxVersionLevel, kind, proposed); err != nil {
			return failed(err)
		}
		if u.Feature == metadata.FeatureKRaftVersion {
			continue
		}
		recs = append(recs, &metadata.FeatureLevelRecord{Name: u.Feature, FeatureLevel: u.MaxVersionLevel})
		if u.Feature == metadata.FeatureELR && u.MaxVersionLevel > 0 {
			recs = append(o.minISRForELR(), recs...)
		}
	}
	o.add(recs...)
	if req.ValidateOnly {
		o.recs = nil
	}
	return o.result(true, nil)
}

// checkFeatureUpdate judges one update. What a feature depends on is looked for in the state as all the updates of
// the request would leave it.
func (o *op) checkFeatureUpdate(name string, level int16, kind int8, proposed map[string]int16) *Error {
	failWhole := func(format string, args ...any) *Error {
		return faultf(ErrInvalidUpdateVersion, "The update failed for all features since the following feature had an error: "+format, args...)
	}
	fail := func(format string, args ...any) *Error {
		return failWhole("Invalid update version %d for feature %s. "+format, append([]any{level, name}, args...)...)
	}
	if kind < featureUpgrade || kind > featureUnsafeDowngrade {
		return fail("The controller does not support the given upgrade type.")
	}
	if level < 0 {
		return fail("A feature version cannot be less than 0.")
	}
	supported, known := o.c.opt.Supported(name)
	if !known {
		return fail("Local controller %d does not support this feature.", o.c.opt.NodeID)
	}
	if level < supported.Min || level > supported.Max {
		return fail("Local controller %d only supports versions %d-%d", o.c.opt.NodeID, supported.Min, supported.Max)
	}
	for id, b := range o.img.Brokers().All() {
		if !b.Supports(name, level) {
			return fail("Broker %d does not support it.", id)
		}
	}
	if o.img.MetadataVersion() >= metadata.LevelControllerRecords {
		for id, c := range o.img.Controllers().All() {
			if !c.Supports(name, level) {
				return fail("Controller %d does not support it.", id)
			}
		}
	}
	current := o.img.Feature(name)
	if name == metadata.FeatureKRaftVersion {
		current = o.c.opt.KRaftVersion
	}
	version := o.img.MetadataVersion()
	if wanted, ok := proposed[metadata.FeatureMetadataVersion]; ok {
		version = metadata.Level(wanted)
	}
	switch {
	case level < current && kind == featureUpgrade:
		return fail("Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe downgrade.")
	case level > current && kind != featureUpgrade:
		return fail("Can't downgrade to a newer version.")
	case name == metadata.FeatureKRaftVersion && level != current:
		return fail("A quorum of Stele keeps the level that it began with.")
	case name == metadata.FeatureMetadataVersion && level < current && metadata.DowngradeLosesMetadata(metadata.Level(current), metadata.Level(level)):
		if kind == featureUnsafeDowngrade {
			return failWhole("Unsupported metadata.version downgrade from %d to %d. Unsafe metadata downgrade is not supported in this version.", current, level)
		}
		return failWhole("Unsupported metadata.version downgrade from %d to %d. Refusing to perform the requested downgrade because it might delete metadata information.", current, level)
	case name == metadata.FeatureELR && level > 0 && version < metadata.LevelELR:
		return fail("It needs metadata.version %d.", metadata.LevelELR)
	}
	return nil
}

// minISRForELR pins the cluster-wide minimum ISR and removes those of single brokers, without which
// eligible leaders would depend on which controller is active.
func (o *op) minISRForELR() []metadata.Record {
	const name = "min.insync.replicas"
	var recs []metadata.Record
	cluster := metadata.ConfigResource{Type: metadata.ResourceBroker}
	if _, ok := o.img.ConfigValue(cluster, name); !ok {
		recs = append(recs, &metadata.ConfigRecord{ResourceType: metadata.ResourceBroker, Name: name, Value: new(o.c.opt.Static.String(name))})
	}
	for resource, values := range o.img.ConfigResources().All() {
		if _, ok := values.Get(name); ok && resource.Type == metadata.ResourceBroker && resource.Name != "" {
			recs = append(recs, &metadata.ConfigRecord{ResourceType: metadata.ResourceBroker, ResourceName: resource.Name, Name: name})
		}
	}
	return recs
}

// Activate begins the work of a controller that has become active, after its term's first entry is applied:
// brokers get a fresh time of contact, periodic tasks are scheduled, and an empty cluster gets its first
// records. level is the metadata.version of a new cluster.
func (c *Controller) Activate(at At, level metadata.Level) Result {
	o := c.begin(at)
	c.active = true
	c.contacts = map[int32]*contact{}
	for id, b := range c.img.Brokers().All() {
		if !b.Fenced {
			c.contact(id).last = at.Now
		}
	}
	c.schedules.begin(at.Now, c.opt.Static)
	if c.img.InTransaction() {
		o.add(&metadata.AbortTransactionRecord{Reason: new("Controller failover")})
	}
	if o.img.MetadataVersion() != 0 {
		return o.result(true, nil)
	}
	recs := metadata.BootstrapRecords(level)
	for _, rec := range recs {
		if f, ok := rec.(*metadata.FeatureLevelRecord); ok && f.Name == metadata.FeatureELR {
			recs = append(recs, &metadata.ConfigRecord{ResourceType: metadata.ResourceBroker, Name: "min.insync.replicas", Value: new(c.opt.Static.String("min.insync.replicas"))})
		}
	}
	if level >= metadata.LevelTransactions {
		o.add(&metadata.BeginTransactionRecord{Name: new("Bootstrap records")})
	}
	o.add(recs...)
	if level >= metadata.LevelTransactions {
		o.add(&metadata.EndTransactionRecord{})
	}
	return o.result(true, nil)
}

// Deactivate says that leadership was lost: soft state is forgotten and what is not committed is undone.
func (c *Controller) Deactivate() {
	c.active = false
	c.contacts, c.buckets = map[int32]*contact{}, map[string]*bucket{}
	if !mutantKeepsUncommitted {
		c.Revert()
	}
}
