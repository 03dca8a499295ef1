package record

import (
	"encoding/binary"
	"iter"
)

// minBatchLength is the batch length of a batch without records.
const minBatchLength = HeaderSize - LogOverhead

// minRecordSize is the least size field that Kafka's walk over record bytes lets pass: the smallest record
// of the oldest format.
const minRecordSize = 14

// Peek says how many bytes the batch at the start of buf has, without looking at more than its length and
// magic. When buf is shorter than that the error is ErrShort, and total is 0 only if not even length and
// magic are there. A length no batch can have and a foreign magic are a CorruptError.
func Peek(buf []byte) (total int, err error) {
	if len(buf) < headerUpToMagic {
		return 0, ErrShort
	}
	length := int32(binary.BigEndian.Uint32(buf[atBatchLength:]))
	if length < minBatchLength {
		return 0, corrupt("batch length %d is less than %d", length, minBatchLength)
	}
	if m := int8(buf[atMagic]); m != Magic {
		return 0, corrupt("magic %d", m)
	}
	total = int(length) + LogOverhead
	if total > len(buf) {
		return total, ErrShort
	}
	return total, nil
}

// Batches walks the whole batches in buf, in order. Bytes at the end that are not a whole batch end the
// walk without an error (a fetch is cut where the limit falls); damage ends it with a CorruptError.
// CRCs and records are not looked at. The batches share buf's memory.
func Batches(buf []byte) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		for len(buf) > 0 {
			total, err := Peek(buf)
			if err == ErrShort {
				return
			}
			if err != nil {
				yield(nil, err)
				return
			}
			if !yield(Batch(buf[:total:total]), nil) {
				return
			}
			buf = buf[total:]
		}
	}
}

// SplitProduce finds the one batch that the record bytes of a Produce request for one partition must hold.
// A size or magic that no format has is a CorruptError; null or empty bytes, a batch that is cut short,
// an older format, and a second whole batch are an InvalidRecordError. Bytes after the batch that announce
// more than they hold are dropped, as Kafka does.
//
// The batch shares records' memory. Only its length and magic have been checked: it may be shorter than
// HeaderSize (though Codec works), and ValidateForAppend comes next.
func SplitProduce(records []byte) (Batch, error) {
	if len(records) == 0 {
		return nil, invalidBatch("no records")
	}
	total, magic, err := nextProduced(records)
	if err != nil {
		return nil, err
	}
	if total == 0 {
		return nil, invalidBatch("the batch is cut short")
	}
	if magic != Magic {
		return nil, invalidBatch("record format v%d is not supported, only v2", magic)
	}
	second, _, err := nextProduced(records[total:])
	if err != nil {
		return nil, err
	}
	if second > 0 {
		return nil, invalidBatch("more than one batch for one partition")
	}
	return Batch(records[:total:total]), nil
}

// nextProduced is Kafka's step from batch to batch over bytes of any format; 0 when buf ends first.
func nextProduced(buf []byte) (total int, magic int8, err error) {
	if len(buf) < LogOverhead {
		return 0, 0, nil
	}
	size := int32(binary.BigEndian.Uint32(buf[atBatchLength:]))
	if size < minRecordSize {
		return 0, 0, corrupt("record size %d is less than %d", size, minRecordSize)
	}
	if len(buf) < headerUpToMagic {
		return 0, 0, nil
	}
	magic = int8(buf[atMagic])
	if magic < 0 || magic > Magic {
		return 0, 0, corrupt("magic %d", magic)
	}
	total = int(size) + LogOverhead
	if total > len(buf) {
		return 0, magic, nil
	}
	return total, magic, nil
}
