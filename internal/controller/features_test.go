package controller

import (
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
)

// everyFeature announces features that this release does not serve yet, so that their rules can be tried.
func everyFeature(k *cluster) *cluster {
	levels := map[string]int16{metadata.FeatureELR: 1, metadata.FeatureTransaction: 2, metadata.FeatureGroup: 1}
	k.c.opt.Supported = func(name string) (metadata.Feature, bool) {
		if max, ok := levels[name]; ok {
			return metadata.Feature{Name: name, Max: max}, true
		}
		return metadata.SupportedFeature(name)
	}
	return k
}

type featureUpdate struct {
	name  string
	level int16
	kind  int8
}

func (k *cluster) updateFeatures(version int16, updates ...featureUpdate) Result {
	req := kmsg.NewPtrUpdateFeaturesRequest()
	req.Version = version
	for _, u := range updates {
		one := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
		one.Feature, one.MaxVersionLevel, one.UpgradeType, one.AllowDowngrade = u.name, u.level, u.kind, u.kind == 2
		req.FeatureUpdates = append(req.FeatureUpdates, one)
	}
	return k.c.UpdateFeatures(k.at(), req)
}

// Two updates, one of which is refused, change nothing, whichever comes first; both together are one batch.
func TestM013_all_or_nothing(t *testing.T) {
	t.Parallel()
	good, bad := featureUpdate{"group.version", 1, 1}, featureUpdate{"transaction.version", 3, 1}
	for _, updates := range [][]featureUpdate{{good, bad}, {bad, good}, {bad, {"transaction.version", 2, 1}}} {
		for version := int16(0); version <= 2; version++ {
			k := everyFeature(newCluster(t))
			if r := k.updateFeatures(version, updates...); r.Err == nil || len(r.Records) > 0 {
				t.Errorf("v%d, %v: %v, %s", version, updates, r.Err, kinds(r.Records))
			}
		}
	}
	k := everyFeature(newCluster(t))
	r := k.must(k.updateFeatures(2, good, featureUpdate{"transaction.version", 2, 1}))
	if !r.Atomic || kinds(r.Records) != "FeatureLevel FeatureLevel" || k.c.Image().Feature("group.version") != 1 || k.c.Image().Feature("transaction.version") != 2 {
		t.Errorf("%v %s", r.Atomic, kinds(r.Records))
	}
}

// Eligible leader replicas need metadata.version 23, in the state as the request leaves it. Enabling them pins the
// cluster's min.insync.replicas and removes those of single brokers, in front of the level.
func TestM014_eligible_leader_replicas(t *testing.T) {
	t.Parallel()
	on := featureUpdate{metadata.FeatureELR, 1, 1}
	at := func(level int16) *cluster {
		k := everyFeature(newCluster(t, "min.insync.replicas=2"))
		k.replay([]metadata.Record{&metadata.FeatureLevelRecord{Name: metadata.FeatureMetadataVersion, FeatureLevel: level}})
		return k
	}
	if r := at(22).updateFeatures(1, on); !errors.Is(r.Err, ErrInvalidUpdateVersion) {
		t.Errorf("at 22: %v", r.Err)
	}
	for _, together := range [][]featureUpdate{{on, {metadata.FeatureMetadataVersion, 23, 1}}, {{metadata.FeatureMetadataVersion, 23, 1}, on}} {
		if r := at(22).updateFeatures(1, together...); r.Err != nil || kinds(r.Records) != "Config FeatureLevel FeatureLevel" {
			t.Errorf("22 raised to 23 with it: %v, %s", r.Err, kinds(r.Records))
		}
	}
	k := at(23)
	k.replay([]metadata.Record{
		&metadata.ConfigRecord{ResourceType: metadata.ResourceBroker, ResourceName: "1", Name: "min.insync.replicas", Value: new("1")},
		&metadata.ConfigRecord{ResourceType: metadata.ResourceBroker, ResourceName: "2", Name: "min.insync.replicas", Value: new("2")},
		&metadata.ConfigRecord{ResourceType: metadata.ResourceBroker, ResourceName: "2", Name: "log.cleaner.threads", Value: new("2")},
	})
	r := k.must(k.updateFeatures(1, on))
	if kinds(r.Records) != "Config Config Config FeatureLevel" || !r.Atomic {
		t.Fatalf("%s", kinds(r.Records))
	}
	if pinned := r.Records[0].(*metadata.ConfigRecord); pinned.ResourceName != "" || pinned.Name != "min.insync.replicas" || *pinned.Value != "2" {
		t.Errorf("%+v", pinned)
	}
	for i, broker := range []string{"1", "2"} {
		if removed := r.Records[1+i].(*metadata.ConfigRecord); removed.ResourceName != broker || removed.Name != "min.insync.replicas" || removed.Value != nil {
			t.Errorf("%+v", removed)
		}
	}
	if level := r.Records[3].(*metadata.FeatureLevelRecord); level.Name != metadata.FeatureELR || level.FeatureLevel != 1 || !k.c.Image().ELREnabled() {
		t.Errorf("%+v", level)
	}
	// A cluster-wide value that is there stays.
	k = at(33)
	k.replay([]metadata.Record{&metadata.ConfigRecord{ResourceType: metadata.ResourceBroker, Name: "min.insync.replicas", Value: new("3")}})
	if r := k.must(k.updateFeatures(1, on)); kinds(r.Records) != "FeatureLevel" {
		t.Errorf("%s", kinds(r.Records))
	}
}

// A feature goes down by a downgrade only, and at level 0 is not finalized any more.
func TestM017_transaction_version_down(t *testing.T) {
	t.Parallel()
	k := everyFeature(newCluster(t))
	k.must(k.updateFeatures(1, featureUpdate{metadata.FeatureTransaction, 2, 1}))
	if r := k.updateFeatures(1, featureUpdate{metadata.FeatureTransaction, 0, 1}); !errors.Is(r.Err, ErrInvalidUpdateVersion) || len(r.Records) > 0 {
		t.Errorf("by an upgrade: %v", r.Err)
	}
	if level, ok := k.c.Image().Features().Get(metadata.FeatureTransaction); !ok || level != 2 {
		t.Errorf("%d %v", level, ok)
	}
	r := k.must(k.updateFeatures(1, featureUpdate{metadata.FeatureTransaction, 0, 2}))
	if kinds(r.Records) != "FeatureLevel" {
		t.Errorf("%s", kinds(r.Records))
	}
	if level, ok := k.c.Image().Features().Get(metadata.FeatureTransaction); ok {
		t.Errorf("still finalized at %d", level)
	}
}

// kraft.version is the quorum's: its present level is accepted and writes nothing, any other is refused.
func TestKRaftVersionStays(t *testing.T) {
	t.Parallel()
	k := everyFeature(newCluster(t))
	for _, u := range []featureUpdate{{metadata.FeatureKRaftVersion, 0, 1}, {metadata.FeatureKRaftVersion, 0, 2}} {
		if r := k.updateFeatures(2, u); r.Err != nil || len(r.Records) > 0 {
			t.Errorf("%v: %v, %s", u, r.Err, kinds(r.Records))
		}
	}
	for _, u := range []featureUpdate{{metadata.FeatureKRaftVersion, 1, 1}, {metadata.FeatureKRaftVersion, 1, 2}, {metadata.FeatureKRaftVersion, 2, 1}} {
		if r := k.updateFeatures(2, u); !errors.Is(r.Err, ErrInvalidUpdateVersion) {
			t.Errorf("%v: %v", u, r.Err)
		}
	}
}
