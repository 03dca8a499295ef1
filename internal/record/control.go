package record

import (
	"encoding/binary"
	"fmt"
)

// ControlType is what a control record says, the second half of its key.
type ControlType int16

const (
	Abort          ControlType = 0
	Commit         ControlType = 1
	LeaderChange   ControlType = 2
	SnapshotHeader ControlType = 3
	SnapshotFooter ControlType = 4
	KRaftVersion   ControlType = 5
	KRaftVoters    ControlType = 6
)

var controlNames = [...]string{"ABORT", "COMMIT", "LEADER_CHANGE", "SNAPSHOT_HEADER", "SNAPSHOT_FOOTER", "KRAFT_VERSION", "KRAFT_VOTERS"}

// Known says whether the type exists. Control records of other types are kept and skipped.
func (t ControlType) Known() bool { return t >= Abort && t <= KRaftVoters }

func (t ControlType) String() string {
	if !t.Known() {
		return fmt.Sprintf("UNKNOWN(%d)", int16(t))
	}
	return controlNames[t]
}

// ControlRecord is one record of a control batch. Value is the body of its type, encoded by whoever owns it.
type ControlRecord struct {
	Type  ControlType
	Value []byte
}

// ControlKey is the key of a control record.
func ControlKey(t ControlType) []byte {
	return binary.BigEndian.AppendUint16([]byte{0, 0}, uint16(t))
}

// ParseControlKey reads the key of a control record. Keys of a later version than 0 are read as if of 0. The
// type may be unknown. The error is an InvalidRecordError.
func ParseControlKey(key []byte) (ControlType, error) {
	if len(key) < 4 {
		return 0, invalidBatch("control record key of %d bytes", len(key))
	}
	if v := int16(binary.BigEndian.Uint16(key)); v < 0 {
		return 0, invalidBatch("control record key version %d", v)
	}
	return ControlType(binary.BigEndian.Uint16(key[2:])), nil
}

// NewControlBatch makes a batch of control records (at least one) that belongs to no producer: what the
// metadata log and its snapshots hold. Base offset and leader epoch are for the caller to set.
func NewControlBatch(timestamp int64, records ...ControlRecord) Batch {
	b := NewBuilder(BuilderOptions{Control: true})
	for _, r := range records {
		if err := b.Append(timestamp, ControlKey(r.Type), r.Value, nil); err != nil {
			panic(fmt.Sprintf("record: control record %v of %d bytes: %v", r.Type, len(r.Value), err))
		}
	}
	return b.Bytes()
}

// EndTxnMarker ends a producer's transaction in one partition.
type EndTxnMarker struct {
	Commit           bool
	ProducerID       int64
	ProducerEpoch    int16
	CoordinatorEpoch int32
}

// Type is the marker's control record type.
func (m EndTxnMarker) Type() ControlType {
	if m.Commit {
		return Commit
	}
	return Abort
}

// NewEndTxnBatch makes the batch that holds marker m, with a timestamp in ms.
func NewEndTxnBatch(m EndTxnMarker, timestamp int64) Batch {
	b := NewBuilder(BuilderOptions{
		Control:       true,
		Transactional: true,
		Producer:      &Producer{ID: m.ProducerID, Epoch: m.ProducerEpoch, BaseSequence: NoSequence},
	})
	value := binary.BigEndian.AppendUint32([]byte{0, 0}, uint32(m.CoordinatorEpoch))
	if err := b.Append(timestamp, ControlKey(m.Type()), value, nil); err != nil {
		panic(fmt.Sprintf("record: marker: %v", err)) // it has 16 bytes
	}
	return b.Bytes()
}

// ParseEndTxnMarker reads the marker in a control batch. ok is false when the batch holds none: it is not a
// control batch, was emptied by the cleaner, or its record is of another type. The error is an
// InvalidRecordError.
func ParseEndTxnMarker(b Batch) (m EndTxnMarker, ok bool, err error) {
	if !b.IsControl() || b.Count() == 0 {
		return m, false, nil
	}
	it := NewRecordIterator(b, Limits{MaxDecompressed: maxControlBytes})
	defer it.Close()
	if !it.Next() {
		return m, false, it.Err()
	}
	r := it.Record()
	t, err := ParseControlKey(r.Key)
	if err != nil {
		return m, false, err
	}
	if t != Abort && t != Commit {
		return m, false, nil
	}
	if len(r.Value) < 6 {
		return m, false, invalidBatch("transaction marker of %d bytes", len(r.Value))
	}
	if v := int16(binary.BigEndian.Uint16(r.Value)); v < 0 {
		return m, false, invalidBatch("transaction marker version %d", v)
	}
	return EndTxnMarker{
		Commit:           t == Commit,
		ProducerID:       b.ProducerID(),
		ProducerEpoch:    b.ProducerEpoch(),
		CoordinatorEpoch: int32(binary.BigEndian.Uint32(r.Value[2:])),
	}, true, nil
}

// maxControlBytes bounds a control batch that somebody compressed, which nobody should.
const maxControlBytes = 1 << 20
