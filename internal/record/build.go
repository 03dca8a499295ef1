package record

import (
	"fmt"
	"math"
	"slices"
)

// maxBuilderBytes bounds the records of a built batch, uncompressed, so that no codec's expansion can take
// the batch beyond its 32-bit length.
const maxBuilderBytes = 1 << 30

// Producer is who writes a batch as an idempotent or transactional producer.
type Producer struct {
	ID           int64
	Epoch        int16
	BaseSequence int32 // NoSequence in markers
}

// BuilderOptions say what the header of a batch is to hold. The zero value is a plain, uncompressed
// CreateTime batch as a producer without idempotence sends it.
type BuilderOptions struct {
	Codec Codec
	Level int // DefaultLevel, or the codec's own

	// TimestampType LogAppendTime stamps the batch with LogAppendTime, in ms.
	TimestampType TimestampType
	LogAppendTime int64

	Producer      *Producer // nil: none
	Transactional bool
	Control       bool

	// BaseOffset is 0 in what producers send. The leader epoch of a built batch is -1 until
	// Batch.SetPartitionLeaderEpoch.
	BaseOffset int64

	// DeleteHorizon, in ms, is set by the cleaner only.
	DeleteHorizon *int64

	// SizeHint is how many bytes to make room for at once.
	SizeHint int
	// Buffer, if it has the room that SizeHint asks for, is what the batch is made in.
	Buffer []byte
}

// Builder makes one batch, record by record. The records are compressed as they come.
type Builder struct {
	opts    BuilderOptions
	out     outBuf
	comp    compressor // nil for None, and once the batch is done
	scratch []byte
	size    int // bytes of records before compression
	h       header
	done    bool
}

// NewBuilder starts a batch. It panics on a codec that is not Known.
func NewBuilder(opts BuilderOptions) *Builder {
	b := &Builder{opts: opts}
	if want := HeaderSize + max(opts.SizeHint, 64); cap(opts.Buffer) >= want {
		b.out.b = opts.Buffer[:HeaderSize]
	} else {
		b.out.b = make([]byte, HeaderSize, want)
	}
	b.h = header{
		baseOffset:      opts.BaseOffset,
		leaderEpoch:     NoLeaderEpoch,
		attributes:      byte(opts.Codec) & codecMask,
		lastOffsetDelta: -1,
		baseTimestamp:   NoTimestamp,
		maxTimestamp:    NoTimestamp,
		producerID:      NoProducerID,
		producerEpoch:   NoProducerEpoch,
		baseSequence:    NoSequence,
	}
	if p := opts.Producer; p != nil {
		b.h.producerID, b.h.producerEpoch, b.h.baseSequence = p.ID, p.Epoch, p.BaseSequence
	}
	if opts.TimestampType == LogAppendTime {
		b.h.attributes |= flagLogAppendTime
	}
	if opts.Transactional {
		b.h.attributes |= flagTransactional
	}
	if opts.Control {
		b.h.attributes |= flagControl
	}
	if opts.DeleteHorizon != nil {
		b.h.attributes |= flagDeleteHorizon
		b.h.baseTimestamp = *opts.DeleteHorizon
	}
	if opts.Codec != None {
		var err error
		if b.comp, err = newCompressor(opts.Codec, opts.Level, &b.out); err != nil {
			panic(err.Error())
		}
	}
	return b
}

// Append adds a record at the offset after the last one, with a timestamp in ms. A nil key or value is null;
// nothing is kept of the arguments. The error is ErrBatchFull, and then nothing was added.
func (b *Builder) Append(timestamp int64, key, value []byte, headers []Header) error {
	if b.h.lastOffsetDelta == math.MaxInt32 {
		return ErrBatchFull
	}
	return b.AppendAt(b.h.lastOffsetDelta+1, timestamp, key, value, headers)
}

// AppendAt adds a record at an offset of its own, which must be above all before it: the cleaner leaves gaps.
func (b *Builder) AppendAt(offsetDelta int32, timestamp int64, key, value []byte, headers []Header) error {
	if b.done || offsetDelta <= b.h.lastOffsetDelta {
		panic(fmt.Sprintf("record: append at offset delta %d after %d, batch done: %t", offsetDelta, b.h.lastOffsetDelta, b.done))
	}
	base := b.h.baseTimestamp
	if b.h.count == 0 && b.opts.DeleteHorizon == nil {
		base = timestamp
	}
	r := Record{TimestampDelta: timestamp - base, OffsetDelta: offsetDelta, Key: key, Value: value, Headers: headers}
	body := r.bodySize()
	if body > maxBuilderBytes || b.size > maxBuilderBytes-body-maxVarintLen || len(headers) > maxHeaders {
		return ErrBatchFull
	}
	if b.comp == nil {
		before := len(b.out.b)
		b.out.b = r.append(b.out.b, body)
		b.size += len(b.out.b) - before
	} else {
		b.scratch = r.append(b.scratch[:0], body)
		b.size += len(b.scratch)
		if _, err := b.comp.Write(b.scratch); err != nil {
			panic(fmt.Sprintf("record: %v compressor: %v", b.opts.Codec, err)) // it writes to memory
		}
	}
	b.h.baseTimestamp = base
	b.h.maxTimestamp = max(b.h.maxTimestamp, timestamp)
	b.h.lastOffsetDelta = offsetDelta
	b.h.count++
	return nil
}

// SetLastOffsetDelta makes the batch cover offsets beyond its last record, as a cleaned batch does.
func (b *Builder) SetLastOffsetDelta(delta int32) {
	b.h.lastOffsetDelta = max(b.h.lastOffsetDelta, delta)
}

// Count is the number of records so far.
func (b *Builder) Count() int { return int(b.h.count) }

// Size is what the batch would take now, in bytes; of a compressed batch, what it would take uncompressed.
func (b *Builder) Size() int { return HeaderSize + b.size }

// SizeWith is a bound of what Size would be after one more record.
func (b *Builder) SizeWith(key, value []byte, headers []Header) int {
	return b.Size() + MaxRecordSize(key, value, headers)
}

// MaxRecordSize is a bound of what a record takes in an uncompressed batch, whatever its timestamp and offset.
func MaxRecordSize(key, value []byte, headers []Header) int {
	r := Record{TimestampDelta: math.MinInt64, OffsetDelta: math.MaxInt32, Key: key, Value: value, Headers: headers}
	return maxVarintLen + r.bodySize()
}

// Bytes ends the batch and returns it; Append must not be called after it. Without a record it is an empty
// batch of one offset, or of those SetLastOffsetDelta said.
func (b *Builder) Bytes() Batch {
	if b.done {
		return b.out.b
	}
	b.done = true
	if b.comp != nil {
		if err := b.comp.Close(); err != nil {
			panic(fmt.Sprintf("record: %v compressor: %v", b.opts.Codec, err)) // it writes to memory
		}
		b.comp.release()
		b.comp = nil
	}
	b.h.lastOffsetDelta = max(b.h.lastOffsetDelta, 0)
	if b.opts.TimestampType == LogAppendTime {
		b.h.maxTimestamp = b.opts.LogAppendTime
	}
	if b.h.count == 0 {
		b.h.attributes &^= codecMask
		b.out.b = b.out.b[:HeaderSize]
	}
	b.out.b = slices.Clip(b.out.b)
	return finishBatch(b.out.b, &b.h)
}

// EmptyBatch is what the cleaner leaves of a batch whose records are all gone while its offsets or its
// producer's state must be kept: the header with count 0, without codec, base timestamp and delete horizon.
func EmptyBatch(b Batch) Batch {
	h := header{
		baseOffset:      b.BaseOffset(),
		leaderEpoch:     b.PartitionLeaderEpoch(),
		attributes:      byte(b.Attributes()) & (flagLogAppendTime | flagTransactional | flagControl),
		lastOffsetDelta: b.LastOffsetDelta(),
		baseTimestamp:   NoTimestamp,
		maxTimestamp:    b.MaxTimestamp(),
		producerID:      b.ProducerID(),
		producerEpoch:   b.ProducerEpoch(),
		baseSequence:    b.BaseSequence(),
	}
	return finishBatch(make([]byte, HeaderSize), &h)
}

// bodySize is the size of the encoded record without its length.
func (r *Record) bodySize() int {
	n := 1 + sizeVarlong(r.TimestampDelta) + sizeVarint(r.OffsetDelta) + fieldSize(r.Key) + fieldSize(r.Value) +
		sizeVarint(int32(len(r.Headers)))
	for _, h := range r.Headers {
		n += sizeVarint(int32(len(h.Key))) + len(h.Key) + fieldSize(h.Value)
	}
	return n
}

func fieldSize(f []byte) int {
	if f == nil {
		return 1
	}
	return sizeVarint(int32(len(f))) + len(f)
}

// append encodes the record; attributes are always written 0.
func (r *Record) append(b []byte, bodySize int) []byte {
	b = appendVarint(b, int32(bodySize))
	b = append(b, 0)
	b = appendVarlong(b, r.TimestampDelta)
	b = appendVarint(b, r.OffsetDelta)
	b = appendField(b, r.Key)
	b = appendField(b, r.Value)
	b = appendVarint(b, int32(len(r.Headers)))
	for _, h := range r.Headers {
		b = appendVarint(b, int32(len(h.Key)))
		b = append(b, h.Key...)
		b = appendField(b, h.Value)
	}
	return b
}

func appendField(b, f []byte) []byte {
	if f == nil {
		return appendVarint(b, -1)
	}
	b = appendVarint(b, int32(len(f)))
	return append(b, f...)
}
