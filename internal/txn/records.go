package txn

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// A Record sets, or with a nil Value removes, one transactional id. Records are immutable once made.
type Record struct {
	ID    string
	Value *Metadata
	// Version is that of the value: 1 holds more, and needs transaction.version 1.
	Version int16
}

// A CorruptRecordError says that a record of __transaction_state cannot be read. Its partition must not be served:
// a transaction could be missing.
type CorruptRecordError struct {
	Version int16 // of the value; -1: it was not reached
	Reason  string
}

func (e *CorruptRecordError) Error() string {
	return fmt.Sprintf("record of __transaction_state, value version %d: %s", e.Version, e.Reason)
}

// ErrRecordField says that a record cannot be written because one of its strings is longer than its format allows,
// 32767 bytes.
var ErrRecordField = errors.New("a string is too long for a record of __transaction_state")

const maxValueVersion = 1

// EncodeRecord gives the key and value to append; a nil value is a tombstone.
func EncodeRecord(rec *Record) (key, value []byte, err error) {
	if len(rec.ID) > math.MaxInt16 {
		return nil, nil, ErrRecordField
	}
	k := kmsg.NewTxnMetadataKey()
	k.TransactionalID = rec.ID
	key = k.AppendTo(nil)
	m := rec.Value
	if m == nil {
		return key, nil, nil
	}
	v := kmsg.NewTxnMetadataValue()
	v.Version = rec.Version
	v.ProducerID, v.ProducerEpoch, v.TimeoutMillis, v.State = m.ProducerID, m.ProducerEpoch, m.TimeoutMs, kmsg.TransactionState(m.State)
	v.LastUpdateTimestamp, v.StartTimestamp = m.LastUpdate, m.Start
	v.PreviousProducerID, v.NextProducerID, v.NextProducerEpoch, v.ClientTransactionVersion = m.PreviousProducerID, m.NextProducerID, m.NextProducerEpoch, m.ClientVersion
	if m.State != Empty { // null there, as Kafka writes it
		v.Topics = []kmsg.TxnMetadataValueTopic{}
	}
	for _, tp := range m.Partitions {
		if n := len(v.Topics); n == 0 || v.Topics[n-1].Topic != tp.Topic {
			if len(tp.Topic) > math.MaxInt16 {
				return nil, nil, ErrRecordField
			}
			t := kmsg.NewTxnMetadataValueTopic()
			t.Topic = tp.Topic
			v.Topics = append(v.Topics, t)
		}
		t := &v.Topics[len(v.Topics)-1]
		t.Partitions = append(t.Partitions, tp.Partition)
	}
	return key, v.AppendTo(nil), nil
}

// DecodeRecord reads one record; a nil value is a tombstone. known is false for a key of a type of no meaning here,
// which whoever loads a partition passes over. The result shares no memory with key and value. The error is a
// *CorruptRecordError.
func DecodeRecord(key, value []byte) (rec *Record, known bool, err error) {
	if len(key) < 2 {
		return nil, false, &CorruptRecordError{-1, "key is shorter than its type"}
	}
	if binary.BigEndian.Uint16(key) != 0 {
		return nil, false, nil
	}
	k := kmsg.NewTxnMetadataKey()
	if err := k.ReadFrom(key); err != nil {
		return nil, false, &CorruptRecordError{-1, "key: " + err.Error()}
	}
	rec = &Record{ID: k.TransactionalID}
	if value == nil {
		return rec, true, nil
	}
	if len(value) < 2 {
		return nil, false, &CorruptRecordError{-1, "value is shorter than its version"}
	}
	rec.Version = int16(binary.BigEndian.Uint16(value))
	if rec.Version < 0 || rec.Version > maxValueVersion {
		return nil, false, &CorruptRecordError{rec.Version, "unknown version"}
	}
	v := kmsg.NewTxnMetadataValue()
	if err := v.ReadFrom(value); err != nil {
		return nil, false, &CorruptRecordError{rec.Version, err.Error()}
	}
	state := State(v.State)
	if v.State < 0 || int(v.State) >= len(stateNames) {
		return nil, false, &CorruptRecordError{rec.Version, fmt.Sprintf("state %d", v.State)}
	}
	m := &Metadata{
		ProducerID: v.ProducerID, PreviousProducerID: v.PreviousProducerID, NextProducerID: v.NextProducerID,
		ProducerEpoch: v.ProducerEpoch, NextProducerEpoch: v.NextProducerEpoch, ClientVersion: v.ClientTransactionVersion,
		TimeoutMs: v.TimeoutMillis, State: state, LastUpdate: v.LastUpdateTimestamp, Start: v.StartTimestamp,
		lastProducerEpoch: NoEpoch,
	}
	for i := range v.Topics {
		for _, p := range v.Topics[i].Partitions {
			m.Partitions = append(m.Partitions, TopicPartition{v.Topics[i].Topic, p})
		}
	}
	slices.SortFunc(m.Partitions, comparePartitions)
	rec.Value = m
	return rec, true, nil
}
