package metadata

import (
	"fmt"
	"iter"
	"slices"
)

// Image is the state of the cluster after all records up to an offset. It never changes and may be read
// from everywhere; a Delta makes the next one. All its parts are persistent maps, so a new image costs
// O(log n) per record and shares everything else with the one before: going back is keeping the old pointer.
type Image struct {
	offset      int64
	epoch       int32
	features    Map[string, int16]
	brokers     Map[int32, *BrokerRegistration]
	controllers Map[int32, *ControllerRegistration]
	topics      Map[string, *Topic]
	topicNames  Map[UUID, string]
	configs     Map[ConfigResource, Map[string, string]]
	quotas      Map[string, *ClientQuota]
	// nextProducerID is -1 until a block was given out.
	nextProducerID int64
	acls           Map[UUID, *AccessControlEntryRecord]
	scram          Map[ScramKey, *UserScramCredentialRecord]
	tokens         Map[string, *DelegationTokenRecord]
	// before is the image at BeginTransaction while a metadata transaction is open, nil otherwise.
	before *Image
}

// EmptyImage is the state before the first record.
func EmptyImage() *Image {
	return &Image{
		offset:         -1,
		epoch:          -1,
		features:       newOrderedMap[string, int16](),
		brokers:        newOrderedMap[int32, *BrokerRegistration](),
		controllers:    newOrderedMap[int32, *ControllerRegistration](),
		topics:         newOrderedMap[string, *Topic](),
		topicNames:     newMap[UUID, string](UUID.Compare),
		configs:        newMap[ConfigResource, Map[string, string]](ConfigResource.compare),
		quotas:         newOrderedMap[string, *ClientQuota](),
		nextProducerID: -1,
		acls:           newMap[UUID, *AccessControlEntryRecord](UUID.Compare),
		scram:          newMap[ScramKey, *UserScramCredentialRecord](ScramKey.compare),
		tokens:         newOrderedMap[string, *DelegationTokenRecord](),
	}
}

// Offset is the last offset of the metadata log that the image contains, -1 for none; Epoch is the leader
// epoch of that offset, -1 for none.
func (i *Image) Offset() int64 { return i.offset }

// Epoch is the leader epoch of the last contained offset, -1 for none.
func (i *Image) Epoch() int32 { return i.epoch }

// InTransaction says whether the log stands between BeginTransaction and its end.
func (i *Image) InTransaction() bool { return i.before != nil }

// Stable is the image without an unfinished transaction: this one, or the one at BeginTransaction.
func (i *Image) Stable() *Image {
	if i.before != nil {
		return i.before
	}
	return i
}

// MetadataVersion is the finalized level, 0 while there is none.
func (i *Image) MetadataVersion() Level {
	n, _ := i.features.Get(FeatureMetadataVersion)
	return Level(n)
}

// Feature is the finalized level of a feature, 0 when there is none.
func (i *Image) Feature(name string) int16 {
	n, _ := i.features.Get(name)
	return n
}

// Features are the finalized features, metadata.version among them; kraft.version never is.
func (i *Image) Features() Map[string, int16] { return i.features }

// ELREnabled says whether eligible leader replicas are kept.
func (i *Image) ELREnabled() bool { return i.Feature(FeatureELR) > 0 }

// NextProducerID is the first producer id that has not been given out.
func (i *Image) NextProducerID() int64 { return max(i.nextProducerID, 0) }

// Records yields the records that make this image out of an empty one, in the order of a snapshot, without
// an unfinished transaction. They are written at MetadataVersion().RecordVersion.
func (i *Image) Records() iter.Seq[Record] {
	i = i.Stable()
	parts := []func(func(Record) bool) bool{
		i.featureRecords, i.brokerRecords, i.controllerRecords, i.topicRecords, i.configRecords,
		i.quotaRecords, i.producerIDRecords, i.aclRecords, i.scramRecords, i.tokenRecords,
	}
	return func(yield func(Record) bool) {
		for _, part := range parts {
			if !part(yield) {
				return
			}
		}
	}
}

func (i *Image) featureRecords(yield func(Record) bool) bool {
	if l, ok := i.features.Get(FeatureMetadataVersion); ok {
		if !yield(&FeatureLevelRecord{Name: FeatureMetadataVersion, FeatureLevel: l}) {
			return false
		}
	}
	for name, level := range i.features.All() {
		if name != FeatureMetadataVersion && !yield(&FeatureLevelRecord{Name: name, FeatureLevel: level}) {
			return false
		}
	}
	return true
}

func (i *Image) producerIDRecords(yield func(Record) bool) bool {
	return i.nextProducerID < 0 || yield(&ProducerIDsRecord{BrokerID: -1, BrokerEpoch: -1, NextProducerID: i.nextProducerID})
}

// SnapshotError is a record that could not be written into a snapshot.
type SnapshotError struct {
	Record string
	Err    error
}

func (e *SnapshotError) Error() string { return fmt.Sprintf("snapshot: %s: %v", e.Record, e.Err) }
func (e *SnapshotError) Unwrap() error { return e.Err }

// Encoded is the values of Records at the image's level, one after another. Two images with equal state
// have equal values.
func (i *Image) Encoded() ([][]byte, error) {
	level := i.Stable().MetadataVersion()
	var out [][]byte
	for rec := range i.Records() {
		b, err := AppendRecord(nil, rec, level.RecordVersion(rec))
		if err != nil {
			return nil, &SnapshotError{RecordName(rec), err}
		}
		out = append(out, b)
	}
	return slices.Clip(out), nil
}
