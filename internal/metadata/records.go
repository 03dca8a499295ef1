// Package metadata holds the records of the metadata log and of its control batches with their codecs,
// the files beside that log, the table of feature levels, and the image: the state of the cluster that the
// records add up to.
//
// Everything but the image's Delta is a value or a pure function; images are immutable and may be shared.
package metadata

import (
	"encoding/binary"
	"fmt"
	"reflect"
)

// Record is one record of the metadata log, a pointer to one of the structs below.
type Record interface {
	// RecordKey is the number of the record's kind.
	RecordKey() int16
}

// Endpoint is one advertised address of a broker or controller.
type Endpoint struct {
	Name             string
	Host             string
	Port             uint16
	SecurityProtocol int16
	Unknown          Tags
}

// FeatureRange is a feature with the levels a node can work with.
type FeatureRange struct {
	Name                string
	MinSupportedVersion int16
	MaxSupportedVersion int16
	Unknown             Tags
}

// RegisterBrokerRecord replaces the registration of a broker.
type RegisterBrokerRecord struct {
	BrokerID             int32
	IsMigratingZkBroker  bool `kafka:"since=2"`
	IncarnationID        UUID
	BrokerEpoch          int64
	EndPoints            []Endpoint
	Features             []FeatureRange
	Rack                 *string
	Fenced               bool   `kafka:"default=true"`
	InControlledShutdown bool   `kafka:"since=1"`
	LogDirs              []UUID `kafka:"since=3,tag=0"`
	CordonedLogDirs      []UUID `kafka:"since=4,tag=1,nullable"`
	Unknown              Tags
}

// UnregisterBrokerRecord removes a broker.
type UnregisterBrokerRecord struct {
	BrokerID    int32
	BrokerEpoch int64
	Unknown     Tags
}

// TopicRecord adds a topic without partitions.
type TopicRecord struct {
	Name    string
	TopicID UUID
	Unknown Tags
}

// PartitionRecord adds or replaces a partition.
type PartitionRecord struct {
	PartitionID            int32 `kafka:"default=-1"`
	TopicID                UUID
	Replicas               []int32
	ISR                    []int32
	RemovingReplicas       []int32
	AddingReplicas         []int32
	Leader                 int32   `kafka:"default=-1"`
	LeaderRecoveryState    int8    `kafka:"tag=0"`
	LeaderEpoch            int32   `kafka:"default=-1"`
	PartitionEpoch         int32   `kafka:"default=-1"`
	Directories            []UUID  `kafka:"since=1"`
	EligibleLeaderReplicas []int32 `kafka:"since=2,tag=1,nullable"`
	LastKnownELR           []int32 `kafka:"since=2,tag=2,nullable"`
	Unknown                Tags
}

// ConfigRecord sets one configuration value, or removes it when Value is nil.
type ConfigRecord struct {
	ResourceType int8
	ResourceName string
	Name         string
	Value        *string
	Unknown      Tags
}

// LeaderUnchanged is the Leader of a PartitionChangeRecord that sets none.
const LeaderUnchanged int32 = -2

// PartitionChangeRecord changes a partition; nil, LeaderUnchanged and recovery state -1 leave things as they are.
type PartitionChangeRecord struct {
	PartitionID            int32 `kafka:"default=-1"`
	TopicID                UUID
	ISR                    []int32 `kafka:"tag=0,nullable"`
	Leader                 int32   `kafka:"tag=1,default=-2"`
	Replicas               []int32 `kafka:"tag=2,nullable"`
	RemovingReplicas       []int32 `kafka:"tag=3,nullable"`
	AddingReplicas         []int32 `kafka:"tag=4,nullable"`
	LeaderRecoveryState    int8    `kafka:"tag=5,default=-1"`
	EligibleLeaderReplicas []int32 `kafka:"since=2,tag=6,nullable"`
	LastKnownELR           []int32 `kafka:"since=2,tag=7,nullable"`
	Directories            []UUID  `kafka:"since=1,tag=8,nullable"`
	Unknown                Tags
}

// FenceBrokerRecord fences a broker; not written since level 6.
type FenceBrokerRecord struct {
	ID      int32
	Epoch   int64
	Unknown Tags
}

// UnfenceBrokerRecord unfences a broker; not written since level 6.
type UnfenceBrokerRecord struct {
	ID      int32
	Epoch   int64
	Unknown Tags
}

// RemoveTopicRecord removes a topic with its partitions and settings.
type RemoveTopicRecord struct {
	TopicID UUID
	Unknown Tags
}

// DelegationTokenRecord adds or replaces a token.
type DelegationTokenRecord struct {
	Owner               string
	Requester           string
	Renewers            []string
	IssueTimestamp      int64
	MaxTimestamp        int64
	ExpirationTimestamp int64
	TokenID             string
	Unknown             Tags
}

// UserScramCredentialRecord adds or replaces a credential.
type UserScramCredentialRecord struct {
	Name       string
	Mechanism  int8
	Salt       []byte
	StoredKey  []byte
	ServerKey  []byte
	Iterations int32
	Unknown    Tags
}

// FeatureLevelRecord finalizes a feature at a level; level 0 removes it.
type FeatureLevelRecord struct {
	Name         string
	FeatureLevel int16
	Unknown      Tags
}

// QuotaEntity is one part of the entity a quota is for; a nil name is the default entity.
type QuotaEntity struct {
	EntityType string
	EntityName *string
	Unknown    Tags
}

// ClientQuotaRecord sets or removes one quota of an entity.
type ClientQuotaRecord struct {
	Entity  []QuotaEntity
	Key     string
	Value   float64
	Remove  bool
	Unknown Tags
}

// ProducerIDsRecord says that all producer ids below NextProducerID are given out.
type ProducerIDsRecord struct {
	BrokerID       int32
	BrokerEpoch    int64 `kafka:"default=-1"`
	NextProducerID int64
	Unknown        Tags
}

// BrokerRegistrationChangeRecord changes parts of a registration.
type BrokerRegistrationChangeRecord struct {
	BrokerID             int32
	BrokerEpoch          int64
	Fenced               int8   `kafka:"tag=0"`
	InControlledShutdown int8   `kafka:"since=1,tag=1"`
	LogDirs              []UUID `kafka:"since=2,tag=2"`
	CordonedLogDirs      []UUID `kafka:"since=3,tag=3,nullable"`
	Unknown              Tags
}

// AccessControlEntryRecord adds an access rule.
type AccessControlEntryRecord struct {
	ID             UUID
	ResourceType   int8
	ResourceName   string
	PatternType    int8
	Principal      string
	Host           string
	Operation      int8
	PermissionType int8
	Unknown        Tags
}

// RemoveAccessControlEntryRecord removes an access rule.
type RemoveAccessControlEntryRecord struct {
	ID      UUID
	Unknown Tags
}

// NoOpRecord changes nothing but the offset.
type NoOpRecord struct{ Unknown Tags }

// ZkMigrationStateRecord is from the days of ZooKeeper; accepted and ignored.
type ZkMigrationStateRecord struct {
	ZkMigrationState int8
	Unknown          Tags
}

// RemoveUserScramCredentialRecord removes a credential.
type RemoveUserScramCredentialRecord struct {
	Name      string
	Mechanism int8
	Unknown   Tags
}

// BeginTransactionRecord opens a group of records that takes effect as a whole or not at all.
type BeginTransactionRecord struct {
	Name    *string `kafka:"tag=0"`
	Unknown Tags
}

// EndTransactionRecord makes the records since BeginTransaction take effect.
type EndTransactionRecord struct{ Unknown Tags }

// AbortTransactionRecord undoes the records since BeginTransaction.
type AbortTransactionRecord struct {
	Reason  *string `kafka:"tag=0"`
	Unknown Tags
}

// RemoveDelegationTokenRecord removes a token.
type RemoveDelegationTokenRecord struct {
	TokenID string
	Unknown Tags
}

// RegisterControllerRecord replaces the registration of a controller.
type RegisterControllerRecord struct {
	ControllerID     int32
	IncarnationID    UUID
	ZkMigrationReady bool
	EndPoints        []Endpoint
	Features         []FeatureRange
	Unknown          Tags
}

// ClearELRRecord empties the eligible leader replicas of a topic, or of all topics when the name is empty.
type ClearELRRecord struct {
	TopicName string
	Unknown   Tags
}

// UnregisterControllerRecord removes a controller.
type UnregisterControllerRecord struct {
	ControllerID int32
	Unknown      Tags
}

// RecordKey implements Record.
func (*RegisterBrokerRecord) RecordKey() int16            { return 0 }
func (*UnregisterBrokerRecord) RecordKey() int16          { return 1 }  // RecordKey implements Record.
func (*TopicRecord) RecordKey() int16                     { return 2 }  // RecordKey implements Record.
func (*PartitionRecord) RecordKey() int16                 { return 3 }  // RecordKey implements Record.
func (*ConfigRecord) RecordKey() int16                    { return 4 }  // RecordKey implements Record.
func (*PartitionChangeRecord) RecordKey() int16           { return 5 }  // RecordKey implements Record.
func (*FenceBrokerRecord) RecordKey() int16               { return 7 }  // RecordKey implements Record.
func (*UnfenceBrokerRecord) RecordKey() int16             { return 8 }  // RecordKey implements Record.
func (*RemoveTopicRecord) RecordKey() int16               { return 9 }  // RecordKey implements Record.
func (*DelegationTokenRecord) RecordKey() int16           { return 10 } // RecordKey implements Record.
func (*UserScramCredentialRecord) RecordKey() int16       { return 11 } // RecordKey implements Record.
func (*FeatureLevelRecord) RecordKey() int16              { return 12 } // RecordKey implements Record.
func (*ClientQuotaRecord) RecordKey() int16               { return 14 } // RecordKey implements Record.
func (*ProducerIDsRecord) RecordKey() int16               { return 15 } // RecordKey implements Record.
func (*BrokerRegistrationChangeRecord) RecordKey() int16  { return 17 } // RecordKey implements Record.
func (*AccessControlEntryRecord) RecordKey() int16        { return 18 } // RecordKey implements Record.
func (*RemoveAccessControlEntryRecord) RecordKey() int16  { return 19 } // RecordKey implements Record.
func (*NoOpRecord) RecordKey() int16                      { return 20 } // RecordKey implements Record.
func (*ZkMigrationStateRecord) RecordKey() int16          { return 21 } // RecordKey implements Record.
func (*RemoveUserScramCredentialRecord) RecordKey() int16 { return 22 } // RecordKey implements Record.
func (*BeginTransactionRecord) RecordKey() int16          { return 23 } // RecordKey implements Record.
func (*EndTransactionRecord) RecordKey() int16            { return 24 } // RecordKey implements Record.
func (*AbortTransactionRecord) RecordKey() int16          { return 25 } // RecordKey implements Record.
func (*RemoveDelegationTokenRecord) RecordKey() int16     { return 26 } // RecordKey implements Record.
func (*RegisterControllerRecord) RecordKey() int16        { return 27 } // RecordKey implements Record.
func (*ClearELRRecord) RecordKey() int16                  { return 28 } // RecordKey implements Record.
func (*UnregisterControllerRecord) RecordKey() int16      { return 29 } // RecordKey implements Record.

// schema is a kind of record: its newest version, a maker of empty ones, and its field plan.
type schema struct {
	name       string
	maxVersion int16
	typ        reflect.Type
	plan       *structPlan
}

var schemas = func() map[int16]*schema {
	out := map[int16]*schema{}
	for _, s := range []struct {
		rec Record
		max int16
	}{
		{&RegisterBrokerRecord{}, 4}, {&UnregisterBrokerRecord{}, 0}, {&TopicRecord{}, 0}, {&PartitionRecord{}, 2},
		{&ConfigRecord{}, 0}, {&PartitionChangeRecord{}, 2}, {&FenceBrokerRecord{}, 0}, {&UnfenceBrokerRecord{}, 0},
		{&RemoveTopicRecord{}, 0}, {&DelegationTokenRecord{}, 0}, {&UserScramCredentialRecord{}, 0}, {&FeatureLevelRecord{}, 0},
		{&ClientQuotaRecord{}, 0}, {&ProducerIDsRecord{}, 0}, {&BrokerRegistrationChangeRecord{}, 3}, {&AccessControlEntryRecord{}, 0},
		{&RemoveAccessControlEntryRecord{}, 0}, {&NoOpRecord{}, 0}, {&ZkMigrationStateRecord{}, 0}, {&RemoveUserScramCredentialRecord{}, 0},
		{&BeginTransactionRecord{}, 0}, {&EndTransactionRecord{}, 0}, {&AbortTransactionRecord{}, 0}, {&RemoveDelegationTokenRecord{}, 0},
		{&RegisterControllerRecord{}, 0}, {&ClearELRRecord{}, 0}, {&UnregisterControllerRecord{}, 0},
	} {
		t := reflect.TypeOf(s.rec).Elem()
		out[s.rec.RecordKey()] = &schema{name: t.Name(), maxVersion: s.max, typ: t, plan: planOf(t)}
	}
	return out
}()

// frameVersion is the version of the frame around a record: version, key, record version, body.
const frameVersion = 1

// FrameVersionError is a record in a frame that we do not know.
type FrameVersionError struct{ Version uint32 }

func (e *FrameVersionError) Error() string {
	return fmt.Sprintf("metadata record has frame version %d, want %d", e.Version, frameVersion)
}

// UnknownRecordError is a record of a kind that we do not know.
type UnknownRecordError struct{ Key uint32 }

func (e *UnknownRecordError) Error() string {
	return fmt.Sprintf("metadata record of unknown kind %d", e.Key)
}

// RecordVersionError is a record at a version that we do not know.
type RecordVersionError struct {
	Name    string
	Version uint32
	Max     int16
}

func (e *RecordVersionError) Error() string {
	return fmt.Sprintf("%s at version %d, newest known is %d", e.Name, e.Version, e.Max)
}

// TrailingBytesError is a record that is followed by bytes that are not part of it.
type TrailingBytesError struct {
	Name  string
	Count int
}

func (e *TrailingBytesError) Error() string {
	return fmt.Sprintf("%s is followed by %d bytes that are not part of it", e.Name, e.Count)
}

// AppendRecord appends the value of a metadata log record to dst. Fields that the version does not have are
// left out: the writer chooses a version that holds what it says (see Features.RecordVersion).
func AppendRecord(dst []byte, rec Record, version int16) ([]byte, error) {
	s := schemas[rec.RecordKey()]
	if version < 0 || version > s.maxVersion {
		return dst, &RecordVersionError{s.name, uint32(version), s.maxVersion}
	}
	dst = binary.AppendUvarint(dst, frameVersion)
	dst = binary.AppendUvarint(dst, uint64(rec.RecordKey()))
	dst = binary.AppendUvarint(dst, uint64(version))
	return appendStruct(dst, s.plan, reflect.ValueOf(rec).Elem(), version), nil
}

// DecodeRecord reads the value of a metadata log record. It keeps nothing of b. Any fault is one of
// *FrameVersionError, *UnknownRecordError, *RecordVersionError, *TrailingBytesError and *MalformedError.
func DecodeRecord(b []byte) (rec Record, version int16, err error) {
	r := reader{b: b}
	frame := r.uvarint("frame version")
	if r.err == nil && frame != frameVersion {
		return nil, 0, &FrameVersionError{uint32(frame)}
	}
	key := r.uvarint("record kind")
	v := r.uvarint("record version")
	if r.err != nil {
		return nil, 0, r.err
	}
	s, ok := schemas[int16(min(key, 1<<15-1))]
	if !ok {
		return nil, 0, &UnknownRecordError{uint32(key)}
	}
	if v > uint64(s.maxVersion) {
		return nil, 0, &RecordVersionError{s.name, uint32(v), s.maxVersion}
	}
	p := reflect.New(s.typ)
	readStruct(&r, s.plan, p.Elem(), int16(v))
	if r.err != nil {
		return nil, 0, fmt.Errorf("%s version %d: %w", s.name, v, r.err)
	}
	if r.left() > 0 {
		return nil, 0, &TrailingBytesError{s.name, r.left()}
	}
	return p.Interface().(Record), int16(v), nil
}

// RecordName is the name of a record's kind, for logs and dumps.
func RecordName(rec Record) string { return schemas[rec.RecordKey()].name }
