package metadata

import (
	"encoding/binary"
	"fmt"
	"reflect"
)

// ControlType is the type in the key of a control record.
type ControlType int16

// Control record types of the metadata log; 0 and 1 are those of transactions.
const (
	ControlLeaderChange   ControlType = 2
	ControlSnapshotHeader ControlType = 3
	ControlSnapshotFooter ControlType = 4
	ControlKRaftVersion   ControlType = 5
	ControlVoters         ControlType = 6
)

// ControlRecord is the body of a control record of the metadata log, a pointer to one of the structs
// below. Tagged fields that are not Kafka's ride in its Unknown field and survive decoding and encoding.
type ControlRecord interface {
	ControlType() ControlType
}

// Voter names a voter in a LeaderChange.
type Voter struct {
	VoterID          int32
	VoterDirectoryID UUID `kafka:"since=1"`
	Unknown          Tags
}

// LeaderChange opens a leader's epoch.
type LeaderChange struct {
	Version        int16
	LeaderID       int32
	Voters         []Voter
	GrantingVoters []Voter
	Unknown        Tags
}

// SnapshotHeader opens a snapshot.
type SnapshotHeader struct {
	Version int16
	// LastContainedLogTimestamp is the append time of the last contained record, in ms.
	LastContainedLogTimestamp int64
	Unknown                   Tags
}

// SnapshotFooter closes a snapshot; a file without it is not one.
type SnapshotFooter struct {
	Version int16
	Unknown Tags
}

// KRaftVersion finalizes kraft.version.
type KRaftVersion struct {
	Version      int16
	KRaftVersion int16
	Unknown      Tags
}

// VoterEndpoint is one address of a voter.
type VoterEndpoint struct {
	Name    string
	Host    string
	Port    uint16
	Unknown Tags
}

// VersionRange is a range of kraft.version.
type VersionRange struct {
	Min     int16
	Max     int16
	Unknown Tags
}

// VotersEntry is one voter with all that the others need to know of it.
type VotersEntry struct {
	VoterID             int32
	VoterDirectoryID    UUID
	Endpoints           []VoterEndpoint
	KRaftVersionFeature VersionRange
	Unknown             Tags
}

// Voters is the whole voter set.
type Voters struct {
	Version int16
	Voters  []VotersEntry
	Unknown Tags
}

// ControlType implements ControlRecord.
func (*LeaderChange) ControlType() ControlType   { return ControlLeaderChange }
func (*SnapshotHeader) ControlType() ControlType { return ControlSnapshotHeader } // ControlType implements ControlRecord.
func (*SnapshotFooter) ControlType() ControlType { return ControlSnapshotFooter } // ControlType implements ControlRecord.
func (*KRaftVersion) ControlType() ControlType   { return ControlKRaftVersion }   // ControlType implements ControlRecord.
func (*Voters) ControlType() ControlType         { return ControlVoters }         // ControlType implements ControlRecord.

var controlSchemas = func() map[ControlType]*schema {
	out := map[ControlType]*schema{}
	for _, s := range []struct {
		rec ControlRecord
		max int16
	}{{&LeaderChange{}, 1}, {&SnapshotHeader{}, 0}, {&SnapshotFooter{}, 0}, {&KRaftVersion{}, 0}, {&Voters{}, 0}} {
		t := reflect.TypeOf(s.rec).Elem()
		out[s.rec.ControlType()] = &schema{name: t.Name(), maxVersion: s.max, typ: t, plan: planOf(t)}
	}
	return out
}()

// UnknownControlTypeError is a control record of a type that we do not know; observers skip it.
type UnknownControlTypeError struct{ Type ControlType }

func (e *UnknownControlTypeError) Error() string {
	return fmt.Sprintf("control record of unknown type %d", e.Type)
}

// ControlKey is the key of a control record of this type.
func ControlKey(t ControlType) []byte {
	return binary.BigEndian.AppendUint16([]byte{0, 0}, uint16(t))
}

// ParseControlKey reads the key of a control record. Versions above 0 may be longer.
func ParseControlKey(key []byte) (ControlType, error) {
	if len(key) < 4 || int16(binary.BigEndian.Uint16(key)) < 0 {
		return 0, &MalformedError{"control record key", len(key)}
	}
	return ControlType(binary.BigEndian.Uint16(key[2:])), nil
}

// AppendControl appends the value of a control record, at the version that its Version field says.
func AppendControl(dst []byte, rec ControlRecord) []byte {
	v := reflect.ValueOf(rec).Elem()
	return appendStruct(dst, controlSchemas[rec.ControlType()].plan, v, int16(v.FieldByName("Version").Int()))
}

// DecodeControl reads the value of a control record of type t. It keeps nothing of value.
func DecodeControl(t ControlType, value []byte) (ControlRecord, error) {
	s, ok := controlSchemas[t]
	if !ok {
		return nil, &UnknownControlTypeError{t}
	}
	if len(value) < 2 {
		return nil, fmt.Errorf("%s: %w", s.name, &MalformedError{"Version", 0})
	}
	version := int16(binary.BigEndian.Uint16(value))
	if version < 0 || version > s.maxVersion {
		return nil, &RecordVersionError{s.name, uint32(uint16(version)), s.maxVersion}
	}
	r := reader{b: value}
	p := reflect.New(s.typ)
	readStruct(&r, s.plan, p.Elem(), version)
	if r.err != nil {
		return nil, fmt.Errorf("%s: %w", s.name, r.err)
	}
	if r.left() > 0 {
		return nil, &TrailingBytesError{s.name, r.left()}
	}
	return p.Interface().(ControlRecord), nil
}
