package wire

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// SendfileThreshold is the length in bytes from which a range of records goes from its file to the
// socket by sendfile. Below it the extra system calls cost more than copying the bytes into the answer.
const SendfileThreshold = 64 << 10

// maxInline bounds the record bytes that one answer copies, however many small ranges it has.
const maxInline = 1 << 20

// File is the file of a range of records: immutable where the range lies, for as long as the
// answer is being sent.
type File interface {
	io.ReaderAt
	// OSFile is the file to lend to sendfile, when there is one.
	OSFile() (*os.File, bool)
}

// FileRange is a range of a file. Zero Length: no range.
type FileRange struct {
	File     File
	Position int64
	Length   int
}

// Lend is the operating system's file for sendfile, until done is called, when there is one. A file that may be closed
// while nobody uses it, and opened again, has a Lend of its own.
func (r FileRange) Lend() (f *os.File, done func(), ok bool) {
	if lender, is := r.File.(interface {
		Lend() (f *os.File, done func(), ok bool)
	}); is {
		return lender.Lend()
	}
	f, ok = r.File.OSFile()
	return f, func() {}, ok
}

// FetchResponsePartition is one partition of an answer. Its records are Range when that is not
// empty, else RecordBatches (nil is null).
type FetchResponsePartition struct {
	kmsg.FetchResponseTopicPartition
	Range FileRange
}

// FetchResponseTopic is one topic of an answer, by name up to version 12, by id after.
type FetchResponseTopic struct {
	Topic      string
	TopicID    [16]byte
	Partitions []FetchResponsePartition
}

// FetchResponse is an answer to Fetch whose records may still be in files.
type FetchResponse struct {
	Version        int16
	ThrottleMillis int32
	ErrorCode      int16
	SessionID      int32
	Topics         []FetchResponseTopic
	Brokers        []kmsg.FetchResponseBroker // node endpoints of the leaders named, from version 16
}

// Segment is a part of an outgoing frame: Bytes, or a Range of a file when Bytes is nil.
type Segment struct {
	Bytes []byte
	Range FileRange
}

// Segments is an outgoing frame in parts.
type Segments struct {
	List  []Segment
	Total int // length of the frame in bytes, its size field included
	head  *Buffer
}

// Release gives back the memory of the parts that are bytes.
func (s *Segments) Release() {
	if s.head != nil {
		s.head.Release()
		s.head, s.List = nil, nil
	}
}

// ShortFileError reports that a file ended before the range of records it was to give.
type ShortFileError struct {
	Name     string
	Position int64
	Length   int
	Err      error
}

func (e *ShortFileError) Error() string {
	return fmt.Sprintf("cannot read %d bytes of records at %d of %s: %v", e.Length, e.Position, e.Name, e.Err)
}

func (e *ShortFileError) Unwrap() error { return e.Err }

// NewShortFileError returns the error for a range that could not be read whole.
func NewShortFileError(r FileRange, err error) *ShortFileError {
	name := "a file in memory"
	if f, ok := r.File.OSFile(); ok {
		name = f.Name()
	} else if f, ok := r.File.(interface{ Name() string }); ok {
		name = f.Name()
	}
	return &ShortFileError{Name: name, Position: r.Position, Length: r.Length, Err: err}
}

// Append lays the answer out as a whole frame: bytes, and between them the ranges that are long
// enough for sendfile. Shorter ranges are read here. Fields and tags that the version does not have are
// left out. The only error is *ShortFileError; nothing needs releasing then.
func (f *FetchResponse) Append(correlationID int32) (Segments, error) {
	w := fetchWriter{buf: NewBuffer(f.headSize()), flexible: f.Version >= 12, version: f.Version}
	dst := append(w.buf.B, 0, 0, 0, 0)
	dst = AppendResponseHeader(dst, KeyFetch, correlationID, w.flexible)
	dst = kbin.AppendInt32(dst, f.ThrottleMillis)
	if f.Version >= 7 {
		dst = kbin.AppendInt16(dst, f.ErrorCode)
		dst = kbin.AppendInt32(dst, f.SessionID)
	}
	dst = w.arrayLen(dst, len(f.Topics))
	for i := range f.Topics {
		t := &f.Topics[i]
		if f.Version >= 13 {
			dst = append(dst, t.TopicID[:]...)
		} else {
			dst = w.str(dst, t.Topic)
		}
		dst = w.arrayLen(dst, len(t.Partitions))
		for j := range t.Partitions {
			dst = w.partition(dst, &t.Partitions[j])
			if w.err != nil {
				w.buf.B = dst
				w.buf.Release()
				return Segments{}, w.err
			}
		}
		dst = w.noTags(dst)
	}
	if w.flexible {
		dst = w.brokers(dst, f.Brokers)
	}
	w.buf.B = dst
	return w.finish(), nil
}

// headSize estimates the bytes of the answer that are not left in files, so that the buffer seldom grows.
func (f *FetchResponse) headSize() int {
	n := 64 + 96*len(f.Brokers)
	inline := 0
	for i := range f.Topics {
		n += 24 + len(f.Topics[i].Topic)
		for j := range f.Topics[i].Partitions {
			p := &f.Topics[i].Partitions[j]
			n += 96 + 17*len(p.AbortedTransactions)
			if p.Range.Length > 0 && p.Range.Length < SendfileThreshold && inline+p.Range.Length <= maxInline {
				inline += p.Range.Length
			} else if p.Range.Length == 0 {
				n += len(p.RecordBatches)
			}
		}
	}
	return n + inline
}

// fetchWriter lays out one answer. Cuts are kept as offsets because the buffer may move as it grows.
type fetchWriter struct {
	buf      *Buffer
	version  int16
	flexible bool
	inline   int
	cuts     []cut
	err      error
}

type cut struct {
	at int // offset in the buffer before which the range stands
	r  FileRange
}

func (w *fetchWriter) partition(dst []byte, p *FetchResponsePartition) []byte {
	dst = kbin.AppendInt32(dst, p.Partition)
	dst = kbin.AppendInt16(dst, p.ErrorCode)
	dst = kbin.AppendInt64(dst, p.HighWatermark)
	dst = kbin.AppendInt64(dst, p.LastStableOffset)
	if w.version >= 5 {
		dst = kbin.AppendInt64(dst, p.LogStartOffset)
	}
	if p.AbortedTransactions == nil {
		dst = w.null(dst)
	} else {
		dst = w.arrayLen(dst, len(p.AbortedTransactions))
	}
	for i := range p.AbortedTransactions {
		dst = kbin.AppendInt64(dst, p.AbortedTransactions[i].ProducerID)
		dst = kbin.AppendInt64(dst, p.AbortedTransactions[i].FirstOffset)
		dst = w.noTags(dst)
	}
	if w.version >= 11 {
		dst = kbin.AppendInt32(dst, p.PreferredReadReplica)
	}
	dst = w.records(dst, p)
	if w.flexible {
		dst = appendPartitionTags(dst, &p.FetchResponseTopicPartition)
	}
	return dst
}

func (w *fetchWriter) records(dst []byte, p *FetchResponsePartition) []byte {
	r := p.Range
	if r.Length == 0 {
		if p.RecordBatches == nil {
			return w.null(dst)
		}
		dst = w.arrayLen(dst, len(p.RecordBatches))
		return append(dst, p.RecordBatches...)
	}
	dst = w.arrayLen(dst, r.Length)
	if r.Length >= SendfileThreshold || w.inline+r.Length > maxInline {
		w.cuts = append(w.cuts, cut{at: len(dst), r: r})
		return dst
	}
	w.inline += r.Length
	start := len(dst)
	dst = grow(dst, r.Length)
	n, err := r.File.ReadAt(dst[start:], r.Position)
	if n < r.Length {
		if err == nil {
			err = io.ErrUnexpectedEOF
		}
		w.err = NewShortFileError(r, err)
	}
	return dst
}

func appendPartitionTags(dst []byte, p *kmsg.FetchResponseTopicPartition) []byte {
	diverging := p.DivergingEpoch.Epoch != -1 || p.DivergingEpoch.EndOffset != -1
	leader := p.CurrentLeader.LeaderID != -1 || p.CurrentLeader.LeaderEpoch != -1
	snapshot := p.SnapshotID.EndOffset != -1 || p.SnapshotID.Epoch != -1
	count := byte(0)
	for _, present := range []bool{diverging, leader, snapshot} {
		if present {
			count++
		}
	}
	dst = append(dst, count)
	if diverging {
		dst = append(dst, 0, 13)
		dst = kbin.AppendInt32(dst, p.DivergingEpoch.Epoch)
		dst = kbin.AppendInt64(dst, p.DivergingEpoch.EndOffset)
		dst = append(dst, 0)
	}
	if leader {
		dst = append(dst, 1, 9)
		dst = kbin.AppendInt32(dst, p.CurrentLeader.LeaderID)
		dst = kbin.AppendInt32(dst, p.CurrentLeader.LeaderEpoch)
		dst = append(dst, 0)
	}
	if snapshot {
		dst = append(dst, 2, 13)
		dst = kbin.AppendInt64(dst, p.SnapshotID.EndOffset)
		dst = kbin.AppendInt32(dst, p.SnapshotID.Epoch)
		dst = append(dst, 0)
	}
	return dst
}

// brokers appends the tagged fields at the end of the message. Node endpoints exist from version 16: a
// tag in an earlier version would be one that its readers have never heard of.
func (w *fetchWriter) brokers(dst []byte, brokers []kmsg.FetchResponseBroker) []byte {
	if len(brokers) == 0 || w.version < 16 {
		return append(dst, 0)
	}
	var field []byte
	field = w.arrayLen(field, len(brokers))
	for i := range brokers {
		b := &brokers[i]
		field = kbin.AppendInt32(field, b.NodeID)
		field = kbin.AppendCompactString(field, b.Host)
		field = kbin.AppendInt32(field, b.Port)
		field = kbin.AppendCompactNullableString(field, b.Rack)
		field = append(field, 0)
	}
	dst = append(dst, 1, 0)
	dst = kbin.AppendUvarint(dst, uint32(len(field)))
	return append(dst, field...)
}

func (w *fetchWriter) arrayLen(dst []byte, n int) []byte {
	if w.flexible {
		return kbin.AppendUvarint(dst, uint32(n)+1)
	}
	return kbin.AppendInt32(dst, int32(n))
}

func (w *fetchWriter) null(dst []byte) []byte {
	if w.flexible {
		return append(dst, 0)
	}
	return kbin.AppendInt32(dst, -1)
}

func (w *fetchWriter) str(dst []byte, s string) []byte {
	if w.flexible {
		return kbin.AppendCompactString(dst, s)
	}
	return kbin.AppendString(dst, s)
}

func (w *fetchWriter) noTags(dst []byte) []byte {
	if w.flexible {
		return append(dst, 0)
	}
	return dst
}

// finish writes the frame size and cuts the buffer where the ranges stand.
func (w *fetchWriter) finish() Segments {
	b := w.buf.B
	s := Segments{Total: len(b), head: w.buf, List: make([]Segment, 0, 2*len(w.cuts)+1)}
	from := 0
	for _, c := range w.cuts {
		s.List = append(s.List, Segment{Bytes: b[from:c.at:c.at]}, Segment{Range: c.r})
		s.Total += c.r.Length
		from = c.at
	}
	if from < len(b) {
		s.List = append(s.List, Segment{Bytes: b[from:]})
	}
	binary.BigEndian.PutUint32(b, uint32(s.Total-FrameSizeBytes))
	return s
}

func grow(b []byte, n int) []byte {
	if cap(b)-len(b) >= n {
		return b[:len(b)+n]
	}
	return append(b, make([]byte, n)...)
}
