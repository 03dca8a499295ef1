package metadata

import (
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/stelelog/stele/internal/config"
)

// MetaProperties says to which cluster and node a log directory belongs. Absent values are nil or the zero id.
type MetaProperties struct {
	// Version is 1, or 0 for directories of a cluster that once had ZooKeeper.
	Version     int
	ClusterID   string
	NodeID      *int32
	DirectoryID UUID
}

// MetaPropertiesError names the key that makes a meta.properties unusable.
type MetaPropertiesError struct {
	Key    string
	Value  string
	Reason string
}

func (e *MetaPropertiesError) Error() string {
	return fmt.Sprintf("meta.properties: %s=%q: %s", e.Key, e.Value, e.Reason)
}

// ParseMetaProperties reads a meta.properties file of version 0 or 1. A reserved directory.id is refused.
func ParseMetaProperties(text []byte) (MetaProperties, error) {
	values := map[string]string{}
	for _, p := range config.ParseProperties(string(text)) {
		values[p.Key] = p.Value
	}
	var m MetaProperties
	switch v := values["version"]; v {
	case "", "0":
	case "1":
		m.Version = 1
	default:
		return m, &MetaPropertiesError{"version", v, "must be 0 or 1"}
	}
	m.ClusterID = values["cluster.id"]
	if !utf8.ValidString(m.ClusterID) {
		return m, &MetaPropertiesError{"cluster.id", m.ClusterID, "is not text"}
	}
	nodeKey := [...]string{"broker.id", "node.id"}[m.Version]
	if text, ok := values[nodeKey]; ok {
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil || n < 0 {
			return m, &MetaPropertiesError{nodeKey, text, "must be a number of 0 or more"}
		}
		m.NodeID = new(int32(n))
	}
	if m.Version == 1 && m.ClusterID == "" {
		return m, &MetaPropertiesError{"cluster.id", "", "is required"}
	}
	if m.Version == 1 && m.NodeID == nil {
		return m, &MetaPropertiesError{"node.id", "", "is required"}
	}
	if text, ok := values["directory.id"]; ok {
		id, err := ParseUUID(text)
		if err != nil {
			return m, &MetaPropertiesError{"directory.id", text, err.Error()}
		}
		if id.Reserved() {
			return m, &MetaPropertiesError{"directory.id", text, "is a reserved id"}
		}
		m.DirectoryID = id
	}
	return m, nil
}

// Format writes the file at its version.
func (m MetaProperties) Format() []byte {
	props := []config.Property{{Key: "version", Value: strconv.Itoa(m.Version)}}
	if m.ClusterID != "" {
		props = append(props, config.Property{Key: "cluster.id", Value: m.ClusterID})
	}
	if m.NodeID != nil {
		key := [...]string{"broker.id", "node.id"}[m.Version]
		props = append(props, config.Property{Key: key, Value: strconv.Itoa(int(*m.NodeID))})
	}
	if m.DirectoryID != ZeroUUID {
		props = append(props, config.Property{Key: "directory.id", Value: m.DirectoryID.String()})
	}
	return []byte(config.FormatProperties(props))
}

// QuorumState is the file in which a quorum member keeps its epoch, vote and leader; -1 is none.
type QuorumState struct {
	LeaderID    int32
	LeaderEpoch int32
	VotedID     int32
	// VotedDirectoryID is kept at version 1 only.
	VotedDirectoryID UUID
	// CurrentVoters is kept at version 0 only.
	CurrentVoters []int32
	DataVersion   int16
}

type quorumStateV0 struct {
	ClusterID     string        `json:"clusterId"`
	LeaderID      int32         `json:"leaderId"`
	LeaderEpoch   int32         `json:"leaderEpoch"`
	VotedID       int32         `json:"votedId"`
	AppliedOffset int64         `json:"appliedOffset"`
	CurrentVoters []quorumVoter `json:"currentVoters"`
	DataVersion   int16         `json:"data_version"`
}

type quorumVoter struct {
	VoterID int32 `json:"voterId"`
}

type quorumStateV1 struct {
	LeaderID         int32 `json:"leaderId"`
	LeaderEpoch      int32 `json:"leaderEpoch"`
	VotedID          int32 `json:"votedId"`
	VotedDirectoryID UUID  `json:"votedDirectoryId"`
	DataVersion      int16 `json:"data_version"`
}

// QuorumStateError says why a quorum-state file is unusable.
type QuorumStateError struct{ Reason string }

func (e *QuorumStateError) Error() string { return "quorum-state: " + e.Reason }

// ParseQuorumState reads the file at data_version 0 or 1.
func ParseQuorumState(text []byte) (QuorumState, error) {
	var version struct {
		DataVersion *int16 `json:"data_version"`
	}
	if err := json.Unmarshal(text, &version); err != nil {
		return QuorumState{}, &QuorumStateError{err.Error()}
	}
	if version.DataVersion == nil {
		return QuorumState{}, &QuorumStateError{"data_version is missing"}
	}
	switch *version.DataVersion {
	case 0:
		v := quorumStateV0{LeaderID: -1, VotedID: -1}
		if err := json.Unmarshal(text, &v); err != nil {
			return QuorumState{}, &QuorumStateError{err.Error()}
		}
		q := QuorumState{LeaderID: v.LeaderID, LeaderEpoch: v.LeaderEpoch, VotedID: v.VotedID}
		for _, voter := range v.CurrentVoters {
			q.CurrentVoters = append(q.CurrentVoters, voter.VoterID)
		}
		return q, nil
	case 1:
		v := quorumStateV1{LeaderID: -1, VotedID: -1}
		if err := json.Unmarshal(text, &v); err != nil {
			return QuorumState{}, &QuorumStateError{err.Error()}
		}
		return QuorumState{LeaderID: v.LeaderID, LeaderEpoch: v.LeaderEpoch, VotedID: v.VotedID, VotedDirectoryID: v.VotedDirectoryID, DataVersion: 1}, nil
	}
	return QuorumState{}, &QuorumStateError{fmt.Sprintf("data_version is %d, must be 0 or 1", *version.DataVersion)}
}

// Format writes the file at its version: one line of JSON.
func (q QuorumState) Format() []byte {
	var v any
	if q.DataVersion == 0 {
		voters := make([]quorumVoter, 0, len(q.CurrentVoters))
		for _, id := range q.CurrentVoters {
			voters = append(voters, quorumVoter{id})
		}
		v = quorumStateV0{LeaderID: q.LeaderID, LeaderEpoch: q.LeaderEpoch, VotedID: q.VotedID, CurrentVoters: voters}
	} else {
		v = quorumStateV1{q.LeaderID, q.LeaderEpoch, q.VotedID, q.VotedDirectoryID, q.DataVersion}
	}
	out, err := json.Marshal(v)
	if err != nil {
		panic("metadata: quorum-state: " + err.Error()) // plain fields always marshal
	}
	return out
}

// BootstrapRecords are the records that a new cluster at this level begins with, as a format command
// prepares them: the levels of the features this release serves, metadata.version first.
func BootstrapRecords(level Level) []Record {
	out := []Record{&FeatureLevelRecord{Name: FeatureMetadataVersion, FeatureLevel: int16(level)}}
	for _, f := range features {
		if f.Name != FeatureMetadataVersion && f.Name != FeatureKRaftVersion && f.Default > 0 && level >= f.From {
			out = append(out, &FeatureLevelRecord{Name: f.Name, FeatureLevel: f.Default})
		}
	}
	return out
}
