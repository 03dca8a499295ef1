// Package record reads, checks, builds and compresses record batches of format v2, the unit in which
// Kafka sends, stores and replicates records.
//
// A Batch is the batch's own bytes; its methods read the header in place. Bytes from outside go through
// SplitProduce and ValidateForAppend, or through Peek and a RecordIterator; none of these panics or
// allocates more than the bytes justify, whatever they hold.
//
// Functions are safe for concurrent use. A Batch may be read concurrently; its setters, a Builder and a
// RecordIterator belong to one goroutine at a time.
package record

import (
	"encoding/binary"
	"hash/crc32"
	"math"
	"slices"
)

const (
	// LogOverhead is the size of base offset and batch length, which the batch length does not count.
	LogOverhead = 12
	// HeaderSize is the size of a batch without records, and the least a batch can have.
	HeaderSize = 61
	// Magic is the one batch format that is read and written.
	Magic = 2

	// NoTimestamp, NoProducerID, NoProducerEpoch, NoSequence and NoLeaderEpoch stand in a header where
	// there is no such thing.
	NoTimestamp     int64 = -1
	NoProducerID    int64 = -1
	NoProducerEpoch int16 = -1
	NoSequence      int32 = -1
	NoLeaderEpoch   int32 = -1
)

// Where the header's fields are.
const (
	atBaseOffset      = 0
	atBatchLength     = 8
	atLeaderEpoch     = 12
	atMagic           = 16
	atCRC             = 17
	atAttributes      = 21 // the CRC covers everything from here on
	atLastOffsetDelta = 23
	atBaseTimestamp   = 27
	atMaxTimestamp    = 35
	atProducerID      = 43
	atProducerEpoch   = 51
	atBaseSequence    = 53
	atCount           = 57

	headerUpToMagic = atMagic + 1
)

const (
	codecMask         = 0x07
	flagLogAppendTime = 0x08
	flagTransactional = 0x10
	flagControl       = 0x20
	flagDeleteHorizon = 0x40
	knownAttributes   = 0x7f
)

// TimestampType says what the timestamps of a batch mean.
type TimestampType int8

const (
	// CreateTime timestamps were given by the producer, one per record.
	CreateTime TimestampType = 0
	// LogAppendTime timestamps were given by the leader: the batch's MaxTimestamp is that of every record.
	LogAppendTime TimestampType = 1
)

func (t TimestampType) String() string {
	if t == LogAppendTime {
		return "LogAppendTime"
	}
	return "CreateTime"
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Batch is one whole batch: exactly its bytes, header included. Methods panic if it is shorter than
// HeaderSize; what Peek, Batches, Builder and ValidateForAppend return never is.
type Batch []byte

func (b Batch) int32At(at int) int32 { return int32(binary.BigEndian.Uint32(b[at:])) }
func (b Batch) int64At(at int) int64 { return int64(binary.BigEndian.Uint64(b[at:])) }

// BaseOffset is the offset of the first record the batch was written with.
func (b Batch) BaseOffset() int64 { return b.int64At(atBaseOffset) }

// Length is the size in bytes of the whole batch as its header says it: batchLength + LogOverhead.
func (b Batch) Length() int { return int(b.int32At(atBatchLength)) + LogOverhead }

// PartitionLeaderEpoch is the epoch of the leader that appended the batch, -1 before that.
func (b Batch) PartitionLeaderEpoch() int32 { return b.int32At(atLeaderEpoch) }

// Magic is the format version, 2 in every usable batch.
func (b Batch) Magic() int8 { return int8(b[atMagic]) }

// CRC is the checksum in the header; VerifyCRC compares it.
func (b Batch) CRC() uint32 { return binary.BigEndian.Uint32(b[atCRC:]) }

// Attributes is the attribute field as it stands, unused bits included.
func (b Batch) Attributes() int16 { return int16(binary.BigEndian.Uint16(b[atAttributes:])) }

// Codec is the compression of the records; it may be one that does not exist (Codec.Known).
func (b Batch) Codec() Codec { return Codec(b[atAttributes+1] & codecMask) }

// TimestampType says whether MaxTimestamp is the time of every record.
func (b Batch) TimestampType() TimestampType {
	if b[atAttributes+1]&flagLogAppendTime != 0 {
		return LogAppendTime
	}
	return CreateTime
}

// IsTransactional says whether the batch belongs to a transaction (markers included).
func (b Batch) IsTransactional() bool { return b[atAttributes+1]&flagTransactional != 0 }

// IsControl says whether the records are control records, which consumers skip.
func (b Batch) IsControl() bool { return b[atAttributes+1]&flagControl != 0 }

// HasDeleteHorizon says whether the cleaner has set a delete horizon.
func (b Batch) HasDeleteHorizon() bool { return b[atAttributes+1]&flagDeleteHorizon != 0 }

// DeleteHorizon is the time in ms from which the cleaner may drop the tombstones or the marker in the
// batch, if it has been set.
func (b Batch) DeleteHorizon() (int64, bool) {
	if !b.HasDeleteHorizon() {
		return 0, false
	}
	return b.BaseTimestamp(), true
}

// LastOffsetDelta is the last offset the batch was written with, less its base offset. Cleaning does not
// change it.
func (b Batch) LastOffsetDelta() int32 { return b.int32At(atLastOffsetDelta) }

// LastOffset is the last offset the batch covers, whether or not a record still has it.
func (b Batch) LastOffset() int64 { return b.BaseOffset() + int64(b.LastOffsetDelta()) }

// NextOffset is the offset after the last one the batch covers.
func (b Batch) NextOffset() int64 { return b.LastOffset() + 1 }

// BaseTimestamp is what timestamp deltas count from, in ms; -1 in a batch without records.
func (b Batch) BaseTimestamp() int64 { return b.int64At(atBaseTimestamp) }

// MaxTimestamp is the largest timestamp of the records in ms, the append time under LogAppendTime, or -1.
func (b Batch) MaxTimestamp() int64 { return b.int64At(atMaxTimestamp) }

// ProducerID is -1 when the producer is not idempotent.
func (b Batch) ProducerID() int64 { return b.int64At(atProducerID) }

// HasProducerID says whether an idempotent or transactional producer, or a coordinator on its behalf,
// wrote the batch.
func (b Batch) HasProducerID() bool { return b.ProducerID() > NoProducerID }

// ProducerEpoch is -1 when there is no producer id.
func (b Batch) ProducerEpoch() int16 { return int16(binary.BigEndian.Uint16(b[atProducerEpoch:])) }

// BaseSequence is the sequence number of the first record, -1 when there is none (markers too).
func (b Batch) BaseSequence() int32 { return b.int32At(atBaseSequence) }

// LastSequence is the sequence number of the last record the batch was written with, -1 when there is none.
func (b Batch) LastSequence() int32 {
	if b.BaseSequence() == NoSequence {
		return NoSequence
	}
	return IncrementSequence(b.BaseSequence(), b.LastOffsetDelta())
}

// Count is the number of records in the batch; 0 only in a batch that the cleaner emptied.
func (b Batch) Count() int32 { return b.int32At(atCount) }

// Payload is what follows the header: the records, or the compressed stream of them.
func (b Batch) Payload() []byte { return b[HeaderSize:] }

// OffsetOf is the absolute offset of one of the batch's records.
func (b Batch) OffsetOf(r *Record) int64 { return b.BaseOffset() + int64(r.OffsetDelta) }

// TimestampOf is the timestamp in ms that one of the batch's records has for whoever reads it.
func (b Batch) TimestampOf(r *Record) int64 {
	if b.TimestampType() == LogAppendTime {
		return b.MaxTimestamp()
	}
	return b.BaseTimestamp() + r.TimestampDelta
}

// SetBaseOffset gives the batch its place in the log. The CRC does not cover it.
func (b Batch) SetBaseOffset(offset int64) {
	binary.BigEndian.PutUint64(b[atBaseOffset:], uint64(offset))
}

// SetPartitionLeaderEpoch says which leader appends the batch. The CRC does not cover it.
func (b Batch) SetPartitionLeaderEpoch(epoch int32) {
	binary.BigEndian.PutUint32(b[atLeaderEpoch:], uint32(epoch))
}

// SetMaxTimestamp sets timestamp type and largest timestamp, drops the unused attribute bits as Kafka does
// whenever it writes attributes, and computes the CRC anew.
func (b Batch) SetMaxTimestamp(t TimestampType, ts int64) {
	attributes := b[atAttributes+1] & (knownAttributes &^ flagLogAppendTime)
	if t == LogAppendTime {
		attributes |= flagLogAppendTime
	}
	b[atAttributes], b[atAttributes+1] = 0, attributes
	binary.BigEndian.PutUint64(b[atMaxTimestamp:], uint64(ts))
	b.updateCRC()
}

func (b Batch) computeCRC() uint32 { return crc32.Checksum(b[atAttributes:], castagnoli) }

func (b Batch) updateCRC() { binary.BigEndian.PutUint32(b[atCRC:], b.computeCRC()) }

// VerifyCRC answers a CorruptError when the batch is not exactly as long as it says, is not of format v2,
// or has a checksum that does not match.
func (b Batch) VerifyCRC() error {
	if len(b) < HeaderSize {
		return corrupt("%d bytes are fewer than a header's %d", len(b), HeaderSize)
	}
	if b.Length() != len(b) {
		return corrupt("header says %d bytes, there are %d", b.Length(), len(b))
	}
	if b.Magic() != Magic {
		return corrupt("magic %d", b.Magic())
	}
	if got := b.computeCRC(); got != b.CRC() {
		return corrupt("CRC is %08x, header says %08x", got, b.CRC())
	}
	return nil
}

// Clone copies the batch.
func (b Batch) Clone() Batch { return slices.Clone(b) }

// IncrementSequence is the sequence number n after seq; 0 follows the largest int32. Both must be >= 0.
func IncrementSequence(seq, n int32) int32 {
	if seq > math.MaxInt32-n {
		return n - (math.MaxInt32 - seq) - 1
	}
	return seq + n
}

// DecrementSequence is the sequence number n before seq, wrapping likewise.
func DecrementSequence(seq, n int32) int32 {
	if seq < n {
		return math.MaxInt32 - (n - seq) + 1
	}
	return seq - n
}

// header is what finishBatch writes.
type header struct {
	baseOffset      int64
	leaderEpoch     int32
	attributes      byte
	lastOffsetDelta int32
	baseTimestamp   int64
	maxTimestamp    int64
	producerID      int64
	producerEpoch   int16
	baseSequence    int32
	count           int32
}

// finishBatch writes h, length and CRC over the first HeaderSize bytes of buf, whose rest is the payload.
func finishBatch(buf []byte, h *header) Batch {
	be := binary.BigEndian
	be.PutUint64(buf[atBaseOffset:], uint64(h.baseOffset))
	be.PutUint32(buf[atBatchLength:], uint32(len(buf)-LogOverhead))
	be.PutUint32(buf[atLeaderEpoch:], uint32(h.leaderEpoch))
	buf[atMagic] = Magic
	buf[atAttributes], buf[atAttributes+1] = 0, h.attributes
	be.PutUint32(buf[atLastOffsetDelta:], uint32(h.lastOffsetDelta))
	be.PutUint64(buf[atBaseTimestamp:], uint64(h.baseTimestamp))
	be.PutUint64(buf[atMaxTimestamp:], uint64(h.maxTimestamp))
	be.PutUint64(buf[atProducerID:], uint64(h.producerID))
	be.PutUint16(buf[atProducerEpoch:], uint16(h.producerEpoch))
	be.PutUint32(buf[atBaseSequence:], uint32(h.baseSequence))
	be.PutUint32(buf[atCount:], uint32(h.count))
	b := Batch(buf)
	b.updateCRC()
	return b
}
