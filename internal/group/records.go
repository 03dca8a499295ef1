package group

import (
	"errors"
	"fmt"
	"math"

	"github.com/twmb/franz-go/pkg/kbin"
)

// Record types of __consumer_offsets: the number that opens every key.
const (
	recordTypeOffsetCommitLegacy = 0
	recordTypeOffsetCommit       = 1
	recordTypeGroupMetadata      = 2
)

// Highest versions read; every version up to them is.
const (
	maxOffsetCommitVersion  = 4
	maxGroupMetadataVersion = 4
)

// A Record is one record of __consumer_offsets: an OffsetCommitRecord, a GroupMetadataRecord, or one of the consumer
// groups' records. Records are immutable once made.
type Record interface {
	appendKey(w *recordWriter)
	appendValue(w *recordWriter) (tombstone bool)
}

// An OffsetCommitRecord sets, or with a nil Value removes, one committed offset.
type OffsetCommitRecord struct {
	Group     string
	Topic     string
	Partition int32
	Value     *OffsetCommitValue
}

// An OffsetCommitValue is what was committed. The epoch is kept as it was sent and compared with nothing
// here: it is the committer's claim about the records it has read (P9).
type OffsetCommitValue struct {
	Offset          int64
	LeaderEpoch     int32 // -1: the committer did not say
	Metadata        string
	CommitTimestamp int64    // milliseconds since 1970
	ExpireTimestamp int64    // milliseconds; -1: expires by the group's retention
	TopicID         [16]byte // zero: not known when it was committed
}

// A GroupMetadataRecord sets, or with a nil Value removes, a classic group.
type GroupMetadataRecord struct {
	Group string
	Value *GroupMetadataValue
}

// A GroupMetadataValue is a classic group as it is written: after each leader's SyncGroup, on becoming
// Empty, when made, and when a static member is replaced.
type GroupMetadataValue struct {
	ProtocolType          string // "": none
	Generation            int32
	Protocol              *string
	Leader                *string
	CurrentStateTimestamp int64 // milliseconds; -1: not recorded (values of version 0 and 1)
	Members               []GroupMetadataMember
}

// A GroupMetadataMember is one member of a written group. Subscription is its metadata for the chosen
// protocol alone.
type GroupMetadataMember struct {
	MemberID           string
	InstanceID         *string
	ClientID           string
	ClientHost         string
	RebalanceTimeoutMs int32 // -1: not recorded (values of version 0)
	SessionTimeoutMs   int32
	Subscription       []byte
	Assignment         []byte
}

// An UnknownRecordTypeError says that a key opens with a record type of no meaning here. Whoever loads a
// partition skips such records.
type UnknownRecordTypeError struct{ Type int16 }

func (e *UnknownRecordTypeError) Error() string {
	return fmt.Sprintf("unknown record type %d in __consumer_offsets", e.Type)
}

// A CorruptRecordError says that a record of a known type cannot be read. Its partition must not be served:
// offsets could be missing.
type CorruptRecordError struct {
	Type    int16 // -1: not even the type could be read
	Version int16 // of the value; -1: it was not reached
	Reason  string
}

func (e *CorruptRecordError) Error() string {
	return fmt.Sprintf("record of type %d, value version %d, in __consumer_offsets: %s", e.Type, e.Version, e.Reason)
}

// ErrRecordField says that a record cannot be written because one of its strings is longer than its
// format allows, 32767 bytes.
var ErrRecordField = errors.New("a string is too long for a record of __consumer_offsets")

// EncodeRecord gives the key and value to append; a nil value is a tombstone. GroupMetadata is written in
// version 3. An offset is written in version 1 when it carries an expiry, in 4 when its topic's id is known,
// and otherwise in 3: each is the oldest that holds what there is to say.
func EncodeRecord(rec Record) (key, value []byte, err error) {
	var k, v recordWriter
	rec.appendKey(&k)
	tombstone := rec.appendValue(&v)
	if k.tooLong || v.tooLong {
		return nil, nil, ErrRecordField
	}
	if tombstone {
		return k.buf, nil, nil
	}
	return k.buf, v.buf, nil
}

// DecodeRecord reads one record; a nil value is a tombstone. The result shares no memory with key and
// value. Errors are *UnknownRecordTypeError and *CorruptRecordError.
func DecodeRecord(key, value []byte) (Record, error) {
	r := kbin.Reader{Src: key}
	typ := r.Int16()
	if !r.Ok() {
		return nil, &CorruptRecordError{Type: -1, Version: -1, Reason: "key is shorter than its type"}
	}
	var rec Record
	var err error
	switch typ {
	case recordTypeOffsetCommitLegacy, recordTypeOffsetCommit:
		o := &OffsetCommitRecord{Group: r.String(), Topic: r.String(), Partition: r.Int32()}
		if value != nil && r.Ok() {
			o.Value, err = decodeOffsetCommitValue(typ, value)
		}
		rec = o
	case recordTypeGroupMetadata:
		g := &GroupMetadataRecord{Group: r.String()}
		if value != nil && r.Ok() {
			g.Value, err = decodeGroupMetadataValue(value)
		}
		rec = g
	default:
		var known bool
		if rec, known, err = decodeConsumerRecord(typ, &r, value); !known {
			return nil, &UnknownRecordTypeError{Type: typ}
		}
	}
	if !r.Ok() {
		return nil, &CorruptRecordError{Type: typ, Version: -1, Reason: "key ends early"}
	}
	if err != nil {
		return nil, err
	}
	return rec, nil
}

func (o *OffsetCommitRecord) appendKey(w *recordWriter) {
	w.int16(recordTypeOffsetCommit)
	w.string(o.Group)
	w.string(o.Topic)
	w.int32(o.Partition)
}

func (o *OffsetCommitRecord) appendValue(w *recordWriter) (tombstone bool) {
	v := o.Value
	switch {
	case v == nil:
		return true
	case v.ExpireTimestamp >= 0:
		w.offsetCommitValue(v, 1)
	case v.TopicID != [16]byte{}:
		w.offsetCommitValue(v, 4)
	default:
		w.offsetCommitValue(v, 3)
	}
	return false
}

func (g *GroupMetadataRecord) appendKey(w *recordWriter) {
	w.int16(recordTypeGroupMetadata)
	w.string(g.Group)
}

func (g *GroupMetadataRecord) appendValue(w *recordWriter) (tombstone bool) {
	if g.Value == nil {
		return true
	}
	w.groupMetadataValue(g.Value, 3)
	return false
}

func decodeOffsetCommitValue(typ int16, value []byte) (*OffsetCommitValue, error) {
	r := kbin.Reader{Src: value}
	version := r.Int16()
	if !r.Ok() {
		return nil, &CorruptRecordError{Type: typ, Version: -1, Reason: "value is shorter than its version"}
	}
	if version < 0 || version > maxOffsetCommitVersion {
		return nil, &CorruptRecordError{Type: typ, Version: version, Reason: "unknown version"}
	}
	v := &OffsetCommitValue{Offset: r.Int64(), LeaderEpoch: -1, ExpireTimestamp: -1}
	if version >= 3 {
		v.LeaderEpoch = r.Int32()
	}
	if version >= 4 {
		v.Metadata = r.CompactString()
	} else {
		v.Metadata = r.String()
	}
	v.CommitTimestamp = r.Int64()
	if version == 1 {
		v.ExpireTimestamp = r.Int64()
	}
	if version >= 4 {
		readTags(&r, func(tag uint32, body *kbin.Reader) {
			if tag == 0 {
				v.TopicID = body.Uuid()
			}
		})
	}
	if !r.Ok() {
		return nil, &CorruptRecordError{Type: typ, Version: version, Reason: "value ends early"}
	}
	return v, nil
}

func decodeGroupMetadataValue(value []byte) (*GroupMetadataValue, error) {
	const typ = recordTypeGroupMetadata
	r := kbin.Reader{Src: value}
	version := r.Int16()
	if !r.Ok() {
		return nil, &CorruptRecordError{Type: typ, Version: -1, Reason: "value is shorter than its version"}
	}
	if version < 0 || version > maxGroupMetadataVersion {
		return nil, &CorruptRecordError{Type: typ, Version: version, Reason: "unknown version"}
	}
	f := fieldReader{Reader: &r, flexible: version >= 4}
	v := &GroupMetadataValue{CurrentStateTimestamp: -1}
	v.ProtocolType = f.string()
	v.Generation = r.Int32()
	v.Protocol = f.nullableString()
	v.Leader = f.nullableString()
	if version >= 2 {
		v.CurrentStateTimestamp = r.Int64()
	}
	n := f.arrayLen()
	if n < 0 {
		return nil, &CorruptRecordError{Type: typ, Version: version, Reason: "members are null"}
	}
	// Grown as it is read: a count costs one byte a member, a member in memory far more.
	for i := int32(0); i < n && r.Ok(); i++ {
		m := GroupMetadataMember{RebalanceTimeoutMs: -1}
		m.MemberID = f.string()
		if version >= 3 {
			m.InstanceID = f.nullableString()
		}
		m.ClientID = f.string()
		m.ClientHost = f.string()
		if version >= 1 {
			m.RebalanceTimeoutMs = r.Int32()
		}
		m.SessionTimeoutMs = r.Int32()
		m.Subscription = f.bytes()
		m.Assignment = f.bytes()
		f.tags()
		v.Members = append(v.Members, m)
	}
	f.tags()
	if !r.Ok() {
		return nil, &CorruptRecordError{Type: typ, Version: version, Reason: "value ends early"}
	}
	return v, nil
}

// readTags walks the tagged fields that end a flexible struct.
func readTags(r *kbin.Reader, known func(tag uint32, body *kbin.Reader)) {
	for n := r.Uvarint(); n > 0 && r.Ok(); n-- {
		tag := r.Uvarint()
		size := r.Uvarint()
		if size > math.MaxInt32 {
			size = math.MaxInt32
		}
		body := kbin.Reader{Src: r.Span(int(size))}
		if !r.Ok() {
			return
		}
		known(tag, &body)
		if !body.Ok() {
			r.Span(-1) // the field is shorter than its type: the struct is bad too
			return
		}
	}
}

// A fieldReader reads the fields that differ between the old encoding and the flexible one.
type fieldReader struct {
	*kbin.Reader
	flexible bool
}

func (f fieldReader) string() string {
	if f.flexible {
		return f.CompactString()
	}
	return f.String()
}

func (f fieldReader) nullableString() *string {
	if f.flexible {
		return f.CompactNullableString()
	}
	return f.NullableString()
}

func (f fieldReader) bytes() []byte {
	b := []byte(nil)
	if f.flexible {
		b = f.CompactBytes()
	} else {
		b = f.Bytes()
	}
	return append([]byte{}, b...)
}

func (f fieldReader) arrayLen() int32 {
	if f.flexible {
		return f.CompactArrayLen()
	}
	return f.ArrayLen()
}

func (f fieldReader) tags() {
	if f.flexible {
		readTags(f.Reader, func(uint32, *kbin.Reader) {})
	}
}

// A recordWriter appends fields and notes whether one did not fit its format.
type recordWriter struct {
	buf      []byte
	flexible bool
	tooLong  bool
}

func (w *recordWriter) offsetCommitValue(v *OffsetCommitValue, version int16) {
	w.int16(version)
	w.flexible = version >= 4
	w.int64(v.Offset)
	if version >= 3 {
		w.int32(v.LeaderEpoch)
	}
	w.string(v.Metadata)
	w.int64(v.CommitTimestamp)
	if version == 1 {
		w.int64(v.ExpireTimestamp)
	}
	if w.flexible {
		if v.TopicID == [16]byte{} {
			w.buf = append(w.buf, 0)
			return
		}
		w.buf = append(w.buf, 1, 0, byte(len(v.TopicID)))
		w.buf = append(w.buf, v.TopicID[:]...)
	}
}

func (w *recordWriter) groupMetadataValue(v *GroupMetadataValue, version int16) {
	w.int16(version)
	w.flexible = version >= 4
	w.string(v.ProtocolType)
	w.int32(v.Generation)
	w.nullableString(v.Protocol)
	w.nullableString(v.Leader)
	if version >= 2 {
		w.int64(v.CurrentStateTimestamp)
	}
	w.arrayLen(len(v.Members))
	for i := range v.Members {
		m := &v.Members[i]
		w.string(m.MemberID)
		if version >= 3 {
			w.nullableString(m.InstanceID)
		}
		w.string(m.ClientID)
		w.string(m.ClientHost)
		if version >= 1 {
			w.int32(m.RebalanceTimeoutMs)
		}
		w.int32(m.SessionTimeoutMs)
		w.bytes(m.Subscription)
		w.bytes(m.Assignment)
		w.noTags()
	}
	w.noTags()
}

func (w *recordWriter) int16(i int16) { w.buf = kbin.AppendInt16(w.buf, i) }
func (w *recordWriter) int32(i int32) { w.buf = kbin.AppendInt32(w.buf, i) }
func (w *recordWriter) int64(i int64) { w.buf = kbin.AppendInt64(w.buf, i) }

func (w *recordWriter) string(s string) {
	switch {
	case len(s) > math.MaxInt16:
		w.tooLong = true
	case w.flexible:
		w.buf = kbin.AppendCompactString(w.buf, s)
	default:
		w.buf = kbin.AppendString(w.buf, s)
	}
}

func (w *recordWriter) nullableString(s *string) {
	switch {
	case s != nil:
		w.string(*s)
	case w.flexible:
		w.buf = append(w.buf, 0)
	default:
		w.int16(-1)
	}
}

func (w *recordWriter) bytes(b []byte) {
	if w.flexible {
		w.buf = kbin.AppendCompactBytes(w.buf, b)
		return
	}
	w.buf = kbin.AppendBytes(w.buf, b)
}

func (w *recordWriter) arrayLen(n int) {
	if w.flexible {
		w.buf = kbin.AppendCompactArrayLen(w.buf, n)
		return
	}
	w.buf = kbin.AppendArrayLen(w.buf, n)
}

func (w *recordWriter) noTags() {
	if w.flexible {
		w.buf = append(w.buf, 0)
	}
}
