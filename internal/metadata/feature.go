package metadata

import (
	"fmt"
	"slices"
)

// Names of features.
const (
	FeatureMetadataVersion = "metadata.version"
	FeatureKRaftVersion    = "kraft.version"
	FeatureTransaction     = "transaction.version"
	FeatureGroup           = "group.version"
	FeatureELR             = "eligible.leader.replicas.version"
	FeatureShare           = "share.version"
	FeatureStreams         = "streams.version"
)

// Level is a level of metadata.version. The zero Level means that none is finalized yet.
type Level int16

// Levels at which something that we write or serve begins. LevelLatest is what a new cluster gets.
const (
	LevelMin               Level = 7
	LevelScram             Level = 11
	LevelSkipISREpochBump  Level = 12
	LevelTransactions      Level = 13
	LevelDelegationTokens  Level = 14
	LevelControllerRecords Level = 15
	LevelDirectories       Level = 17
	LevelELR               Level = 23
	LevelELRByDefault      Level = 26
	LevelCordonedDirs      Level = 30
	LevelCIDR              Level = 32
	LevelUnregisterCtl     Level = 33
	LevelLatest            Level = 33
)

// levels is the table of metadata.version: each level's name, and whether it changed what is stored, so
// that a downgrade across it is refused.
var levels = []struct {
	level   Level
	name    string
	changed bool
}{
	{1, "3.0-IV1", true}, {2, "3.1-IV0", true}, {3, "3.2-IV0", true}, {4, "3.3-IV0", false}, {5, "3.3-IV1", true},
	{6, "3.3-IV2", true}, {7, "3.3-IV3", true}, {8, "3.4-IV0", true}, {9, "3.5-IV0", false}, {10, "3.5-IV1", false},
	{11, "3.5-IV2", true}, {12, "3.6-IV0", false}, {13, "3.6-IV1", true}, {14, "3.6-IV2", true}, {15, "3.7-IV0", true},
	{16, "3.7-IV1", false}, {17, "3.7-IV2", true}, {18, "3.7-IV3", false}, {19, "3.7-IV4", false}, {20, "3.8-IV0", false},
	{21, "3.9-IV0", false}, {22, "4.0-IV0", false}, {23, "4.0-IV1", true}, {24, "4.0-IV2", false}, {25, "4.0-IV3", false},
	{26, "4.1-IV0", false}, {27, "4.1-IV1", false}, {28, "4.2-IV0", false}, {29, "4.2-IV1", false}, {30, "4.3-IV0", true},
	{31, "4.4-IV0", false}, {32, "4.4-IV1", true}, {33, "4.4-IV2", true},
}

// String is the release name of the level, or "unknown".
func (l Level) String() string {
	if l < 1 || int(l) > len(levels) {
		return "unknown"
	}
	return levels[l-1].name
}

// Supported says whether we can work at this level.
func (l Level) Supported() bool { return l >= LevelMin && l <= LevelLatest }

// DowngradeLosesMetadata says whether some level in (to, from] changed what is stored.
func DowngradeLosesMetadata(from, to Level) bool {
	for _, l := range levels {
		if l.level > to && l.level <= from && l.changed {
			return true
		}
	}
	return false
}

// RecordVersion is the version at which rec is written at this level: the highest that the level allows,
// except for a BrokerRegistrationChange, which takes the lowest that holds its change.
func (l Level) RecordVersion(rec Record) int16 {
	switch r := rec.(type) {
	case *RegisterBrokerRecord:
		switch {
		case l >= LevelCordonedDirs:
			return 4
		case l >= LevelDirectories:
			return 3
		case l >= 8:
			return 2
		}
		return 1
	case *PartitionRecord, *PartitionChangeRecord:
		switch {
		case l >= LevelELR:
			return 2
		case l >= LevelDirectories:
			return 1
		}
		return 0
	case *BrokerRegistrationChangeRecord:
		switch {
		case r.CordonedLogDirs != nil:
			return 3
		case len(r.LogDirs) > 0:
			return 2
		case r.InControlledShutdown != 0:
			return 1
		}
		return 0
	}
	return 0
}

// Feature is a feature with the range of levels that work in this release, and the level a new cluster at
// the latest metadata.version starts with.
type Feature struct {
	Name     string
	Min, Max int16
	Default  int16
	// From is the level of metadata.version from which on a new cluster starts with Default.
	From Level
}

// SupportedFeatures is the one table of what this release announces, by name. Raising a row announces the
// feature; one with Max 0 is left out everywhere. kraft.version is the quorum's: it is announced, and
// never set by a FeatureLevel record.
func SupportedFeatures() []Feature {
	return slices.DeleteFunc(slices.Clone(features), func(f Feature) bool { return f.Max == 0 })
}

var features = []Feature{
	{FeatureELR, 0, 1, 0, LevelELRByDefault},
	{FeatureGroup, 0, 1, 1, 22},
	{FeatureKRaftVersion, 0, 1, 0, LevelMin},
	{FeatureMetadataVersion, int16(LevelMin), int16(LevelLatest), int16(LevelLatest), LevelMin},
	{FeatureShare, 0, 0, 0, 28},
	{FeatureStreams, 0, 0, 0, 29},
	{FeatureTransaction, 0, 2, 2, 24},
}

// SupportedFeature returns the range of one feature, 0-0 and false when it is not announced.
func SupportedFeature(name string) (Feature, bool) {
	for _, f := range features {
		if f.Name == name && f.Max > 0 {
			return f, true
		}
	}
	return Feature{Name: name}, false
}

// UnsupportedFeatureError is a finalized feature at a level that this release does not serve.
type UnsupportedFeatureError struct {
	Name     string
	Level    int16
	Min, Max int16
}

func (e *UnsupportedFeatureError) Error() string {
	return fmt.Sprintf("%s is finalized at level %d, this release supports %d to %d", e.Name, e.Level, e.Min, e.Max)
}

// CheckFeatures says whether all finalized features are at levels that this release serves. A controller
// must not work on an image for which this is an *UnsupportedFeatureError.
func (i *Image) CheckFeatures() error {
	for name, level := range i.features.All() {
		if f, _ := SupportedFeature(name); level < f.Min || level > f.Max {
			return &UnsupportedFeatureError{name, level, f.Min, f.Max}
		}
	}
	return nil
}
