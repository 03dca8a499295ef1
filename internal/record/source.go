package record

import (
	"errors"
	"io"
	"math"
)

const (
	// windowSize is what a compressed batch is decompressed through; larger records make the window grow
	// only when their keys and values are asked for.
	windowSize = 32 << 10
	// maxPooledWindow is the largest window that is kept for the next batch.
	maxPooledWindow = 1 << 20

	defaultMaxDecompressed = math.MaxInt32

	// maxHeaders is how many headers a record may have. One takes two bytes in the batch and many more in
	// memory, so that a small compressed batch could ask for more than there is.
	maxHeaders = 1 << 20
)

var (
	errTooMuchData = errors.New("decompressed records exceed the limit")
	errNoProgress  = errors.New("decompressor makes no progress")
)

// source is the bytes of a batch's records: the payload itself, or a window that moves over its
// decompressed stream. It never holds more of the stream than was asked for, and stops at a limit.
type source struct {
	buf      []byte // unread bytes are buf[r:w]
	r, w     int
	stream   decompressor // nil: buf[r:w] is all there is
	window   []byte       // kept for the next stream
	produced int64        // bytes that came from the stream
	limit    int64        // of produced
	err      error        // why the stream ended: io.EOF, or its failure
}

// open starts over on b. After an error, and when done, close must be called.
func (s *source) open(b Batch, maxDecompressed int64) error {
	if maxDecompressed <= 0 {
		maxDecompressed = defaultMaxDecompressed
	}
	s.r, s.produced, s.limit, s.err = 0, 0, maxDecompressed, nil
	codec := b.Codec()
	if codec == None {
		s.buf, s.w = b.Payload(), len(b.Payload())
		return nil
	}
	if !codec.Known() {
		return invalidBatch("unknown codec %d", codec)
	}
	if s.window == nil {
		s.window = make([]byte, windowSize)
	}
	s.buf, s.w = s.window, 0
	s.stream = acquireDecompressor(codec)
	s.stream.reset(b.Payload(), maxDecompressed)
	return nil
}

// close gives back what open took and lets go of the batch.
func (s *source) close() {
	if s.stream != nil {
		s.stream.release()
		s.stream = nil
		if len(s.buf) > len(s.window) && len(s.buf) <= maxPooledWindow {
			s.window = s.buf
		}
	}
	s.buf, s.r, s.w = nil, 0, 0
}

// fill gets at least one more byte into the window, or sets err and returns false.
func (s *source) fill() bool {
	if s.stream == nil || s.err != nil {
		return false
	}
	if s.r == s.w {
		s.r, s.w = 0, 0
	}
	if s.w == len(s.buf) {
		if s.r > 0 {
			s.w = copy(s.buf, s.buf[s.r:s.w])
			s.r = 0
		} else {
			s.buf = append(s.buf, make([]byte, len(s.buf))...)
		}
	}
	for range 100 {
		n, err := s.stream.Read(s.buf[s.w:])
		s.w += n
		s.produced += int64(n)
		if s.produced > s.limit {
			s.w -= n
			s.err = errTooMuchData
			return false
		}
		if err != nil {
			s.err = err
		}
		if n > 0 {
			return true
		}
		if err != nil {
			return false
		}
	}
	s.err = errNoProgress
	return false
}

// peek is the window with n bytes in it, or with all there are if they are fewer.
func (s *source) peek(n int) []byte {
	for s.w-s.r < n && s.fill() {
	}
	return s.buf[s.r:s.w]
}

// remaining is the largest number of bytes that can still come.
func (s *source) remaining() int64 {
	n := int64(s.w - s.r)
	if s.stream != nil && s.err == nil {
		n += s.limit - s.produced
	}
	return n
}

// skip passes over n bytes; false if there are fewer.
func (s *source) skip(n int) bool {
	for n > s.w-s.r {
		n -= s.w - s.r
		s.r = s.w
		if !s.fill() {
			return false
		}
	}
	s.r += n
	return true
}

// copyTo passes n bytes on to w; false if there are fewer.
func (s *source) copyTo(w io.Writer, n int) (bool, error) {
	for n > 0 {
		if s.r == s.w && !s.fill() {
			return false, nil
		}
		m := min(n, s.w-s.r)
		if _, err := w.Write(s.buf[s.r : s.r+m]); err != nil {
			return true, err
		}
		s.r += m
		n -= m
	}
	return true, nil
}

// end says whether all bytes have been read, to the stream's own end.
func (s *source) end() bool {
	return len(s.peek(1)) == 0 && (s.stream == nil || s.err == io.EOF)
}

// malformed is the error of record index, with the stream's own failure if that is what cut it.
func (s *source) malformed(index int32, reason string) error {
	e := &InvalidRecordError{Index: index, Reason: reason}
	if s.err != nil && s.err != io.EOF {
		e.Err = s.err
		e.Reason = "records cannot be decompressed"
	}
	return e
}

// recordHead is the fixed part of a record.
type recordHead struct {
	timestampDelta int64
	offsetDelta    int32
	left           int // bytes of the body that follow the fixed part
}

// Reasons for refusing a record, as the client is told them.
const (
	reasonFewer       = "the batch holds fewer records than it says"
	reasonMore        = "bytes follow the last record"
	reasonLength      = "record length is malformed"
	reasonOverrun     = "record is longer than the bytes left"
	reasonBody        = "record does not fill its length exactly"
	reasonFixed       = "record's timestamp or offset delta is malformed"
	reasonKey         = "record's key is malformed"
	reasonValue       = "record's value is malformed"
	reasonHeaderCount = "record's header count is malformed"
	reasonHeader      = "record header is malformed"
	reasonManyHeaders = "record has too many headers"
)

// length reads the length of the next record. A non-empty answer is the reason why not.
func (s *source) length() (int, string) {
	b := s.peek(maxVarintLen)
	if len(b) == 0 {
		return 0, reasonFewer
	}
	v, n := varint(b)
	if n == 0 || v < 0 {
		return 0, reasonLength
	}
	s.r += n
	if int64(v) > s.remaining() {
		return 0, reasonOverrun
	}
	return int(v), ""
}

// head reads length and fixed part of the next record.
func (s *source) head(h *recordHead) string {
	length, reason := s.length()
	if reason != "" {
		return reason
	}
	b := s.peek(min(length, 1+maxVarlongLen+maxVarintLen))
	if len(b) > length {
		b = b[:length]
	}
	if len(b) == 0 {
		return reasonFixed
	}
	at := 1 // attributes, which mean nothing
	ts, n := varlong(b[at:])
	if n == 0 {
		return reasonFixed
	}
	at += n
	offset, n := varint(b[at:])
	if n == 0 {
		return reasonFixed
	}
	at += n
	s.r += at
	h.timestampDelta, h.offsetDelta, h.left = ts, offset, length-at
	return ""
}

// quick passes over the next record in one go when the window has all of it, which is nearly always so, and fills h but for
// left. Whenever something is missing or wrong it takes nothing: head and skipBody find out what.
func (s *source) quick(h *recordHead) (nullKey, ok bool) {
	b := s.buf[s.r:s.w]
	length, at := tinyVarint(b)
	if at == 0 {
		length, at = longVarint(b)
	}
	if at == 0 || length <= 0 || int(length) > len(b)-at {
		return false, false
	}
	end := at + int(length)
	b = b[:end]
	at++ // attributes, which mean nothing
	n := 0
	if t, tiny := tinyVarint(b[at:]); tiny > 0 {
		h.timestampDelta, n = int64(t), tiny
	} else if h.timestampDelta, n = varlong(b[at:]); n == 0 {
		return false, false
	}
	at += n
	if h.offsetDelta, n = tinyVarint(b[at:]); n == 0 {
		if h.offsetDelta, n = longVarint(b[at:]); n == 0 {
			return false, false
		}
	}
	at += n
	key, n := tinyVarint(b[at:])
	if n == 0 {
		key, n = longVarint(b[at:])
	}
	if n == 0 || int(key) > end-at-n {
		return false, false
	}
	at += n + max(int(key), 0)
	value, n := tinyVarint(b[at:])
	if n == 0 {
		value, n = longVarint(b[at:])
	}
	if n == 0 || int(value) > end-at-n {
		return false, false
	}
	at += n + max(int(value), 0)
	if at == end-1 && b[at] == 0 { // no headers
		s.r += end
		return key < 0, true
	}
	headers, n := varint(b[at:])
	if n == 0 || headers < 0 || headers > maxHeaders {
		return false, false
	}
	at += n
	for range headers {
		key, n := varint(b[at:])
		if n == 0 || key < 0 || int(key) > end-at-n {
			return false, false
		}
		at += n + int(key)
		value, n := varint(b[at:])
		if n == 0 || int(value) > end-at-n {
			return false, false
		}
		at += n + max(int(value), 0)
	}
	if at != end {
		return false, false
	}
	s.r += end
	return key < 0, true
}

// varintWithin reads a varint that must end within *left bytes.
func (s *source) varintWithin(left *int) (int32, bool) {
	b := s.peek(min(maxVarintLen, *left))
	if len(b) > *left {
		b = b[:*left]
	}
	v, n := varint(b)
	s.r += n
	*left -= n
	return v, n > 0
}

// skipField passes over a length and as many bytes; null is a negative length.
func (s *source) skipField(left *int) (null, ok bool) {
	n, ok := s.varintWithin(left)
	if !ok {
		return false, false
	}
	if n < 0 {
		return true, true
	}
	if int(n) > *left || !s.skip(int(n)) {
		return false, false
	}
	*left -= int(n)
	return false, true
}

// skipBody passes over the rest of a record after its head, checking its structure.
func (s *source) skipBody(left int) (nullKey bool, reason string) {
	nullKey, ok := s.skipField(&left)
	if !ok {
		return false, reasonKey
	}
	if _, ok := s.skipField(&left); !ok {
		return false, reasonValue
	}
	headers, ok := s.varintWithin(&left)
	if !ok || headers < 0 || int(headers) > left {
		return false, reasonHeaderCount
	}
	if headers > maxHeaders {
		return false, reasonManyHeaders
	}
	for range headers {
		if null, ok := s.skipField(&left); !ok || null {
			return false, reasonHeader
		}
		if _, ok := s.skipField(&left); !ok {
			return false, reasonHeader
		}
	}
	if left != 0 {
		return false, reasonBody
	}
	return nullKey, ""
}
