package record

import (
	"bytes"
	"iter"
	"sync"
)

// Header is one header of a record. Keys are UTF-8 by convention, which nobody checks.
type Header struct {
	Key   []byte
	Value []byte // nil is null
}

// Record is one record as its batch stores it; Batch.OffsetOf and Batch.TimestampOf make its deltas absolute.
type Record struct {
	Attributes     int8 // unused
	TimestampDelta int64
	OffsetDelta    int32
	Key            []byte // nil is null
	Value          []byte // nil is null
	Headers        []Header
}

// Clone copies the record, so that it outlives the iterator's next step.
func (r *Record) Clone() *Record {
	c := *r
	c.Key = bytes.Clone(r.Key)
	c.Value = bytes.Clone(r.Value)
	c.Headers = nil
	for _, h := range r.Headers {
		c.Headers = append(c.Headers, Header{Key: bytes.Clone(h.Key), Value: bytes.Clone(h.Value)})
	}
	return &c
}

// Limits bound what reading a batch may cost.
type Limits struct {
	// MaxDecompressed is how many bytes of records may come out of a compressed batch; 0 means 2^31-1.
	MaxDecompressed int64
}

// RecordIterator walks the records of a batch, decompressing as it goes. It checks the structure of every
// record, and at the end that the batch held exactly its count; what it has returned until it finds a fault
// is right. It does not check the CRC, nor the order of offsets.
type RecordIterator struct {
	src   source
	rec   Record
	count int32
	index int32
	err   error
	done  bool
}

var iterators = sync.Pool{New: func() any { return new(RecordIterator) }}

// NewRecordIterator starts a walk over b, which must not change until Close. The iterator is reused
// after Close.
func NewRecordIterator(b Batch, limits Limits) *RecordIterator {
	it := iterators.Get().(*RecordIterator)
	it.count, it.index, it.err, it.done = b.Count(), 0, nil, false
	if it.count < 0 {
		it.err = invalidBatch("record count %d", it.count)
		return it
	}
	if it.count == 0 && len(b.Payload()) == 0 {
		it.done = true // emptied by the cleaner, whatever the codec says
		return it
	}
	it.err = it.src.open(b, limits.MaxDecompressed)
	return it
}

// Next moves to the next record; false at the end and after a fault.
func (it *RecordIterator) Next() bool {
	if it.err != nil || it.done {
		return false
	}
	if it.index == it.count {
		it.done = true
		if !it.src.end() {
			it.err = it.src.malformed(-1, reasonMore)
		}
		return false
	}
	reason := it.read()
	if reason != "" {
		it.err = it.src.malformed(it.index, reason)
		return false
	}
	it.index++
	return true
}

// Record is the record Next moved to. It and all it points to are valid until the next call of Next or Close.
func (it *RecordIterator) Record() *Record { return &it.rec }

// Err is the InvalidRecordError that ended the walk, or nil.
func (it *RecordIterator) Err() error { return it.err }

// Close ends the walk; the iterator and its last record must not be used after it.
func (it *RecordIterator) Close() {
	it.src.close()
	headers := it.rec.Headers[:0]
	if cap(headers) > 1024 {
		headers = nil
	}
	clear(headers[:cap(headers)])
	it.rec = Record{Headers: headers}
	it.err = nil
	iterators.Put(it)
}

// read parses the next record, whole, from the window.
func (it *RecordIterator) read() string {
	length, reason := it.src.length()
	if reason != "" {
		return reason
	}
	b := it.src.peek(length)
	if len(b) < length {
		return reasonOverrun
	}
	it.src.r += length
	return it.rec.parse(b[:length:length])
}

// parse reads the body of a record, which must fill b exactly. Key, value and headers point into b.
func (r *Record) parse(b []byte) string {
	if len(b) == 0 {
		return reasonFixed
	}
	r.Attributes = int8(b[0])
	b = b[1:]
	var n int
	if r.TimestampDelta, n = varlong(b); n == 0 {
		return reasonFixed
	}
	b = b[n:]
	if r.OffsetDelta, n = varint(b); n == 0 {
		return reasonFixed
	}
	b = b[n:]
	var ok bool
	if r.Key, b, ok = field(b); !ok {
		return reasonKey
	}
	if r.Value, b, ok = field(b); !ok {
		return reasonValue
	}
	headers, n := varint(b)
	b = b[n:]
	if n == 0 || headers < 0 || int(headers) > len(b) {
		return reasonHeaderCount
	}
	if headers > maxHeaders {
		return reasonManyHeaders
	}
	r.Headers = r.Headers[:0]
	for range headers {
		var h Header
		if h.Key, b, ok = field(b); !ok || h.Key == nil {
			return reasonHeader
		}
		if h.Value, b, ok = field(b); !ok {
			return reasonHeader
		}
		r.Headers = append(r.Headers, h)
	}
	if len(b) != 0 {
		return reasonBody
	}
	return ""
}

// field reads a length and as many bytes; a negative length is null.
func field(b []byte) (f, rest []byte, ok bool) {
	v, n := varint(b)
	if n == 0 {
		return nil, b, false
	}
	b = b[n:]
	if v < 0 {
		return nil, b, true
	}
	if int(v) > len(b) {
		return nil, b, false
	}
	return b[:v:v], b[v:], true
}

// Records walks the records of b, as RecordIterator does; each record is valid until the next. A fault
// comes last, with a nil record.
func (b Batch) Records(limits Limits) iter.Seq2[*Record, error] {
	return func(yield func(*Record, error) bool) {
		it := NewRecordIterator(b, limits)
		defer it.Close()
		for it.Next() {
			if !yield(it.Record(), nil) {
				return
			}
		}
		if it.Err() != nil {
			yield(nil, it.Err())
		}
	}
}
