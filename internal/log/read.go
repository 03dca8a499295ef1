package log

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
)

// Data is a range of raw batches in a file, valid until the view it was read from is released. The bytes do not
// change in that time, and the file does not end before them.
type Data struct {
	// File is nil when there is nothing to read: then Length is 0.
	File     vfs.File
	Position int64
	Length   int
	// FirstBatchSize is the size of the first batch; when Length is less, the batch is cut.
	FirstBatchSize int

	segment int
}

// ReadAll reads the range into buf, which grows if needed.
func (d Data) ReadAll(buf []byte) ([]byte, error) {
	if d.Length == 0 {
		return buf[:0], nil
	}
	b, err := readBatch(d.File, d.Position, d.Length, buf)
	return b, err
}

// located is a batch found in a segment.
type located struct {
	pos          int64
	size         int
	base, last   int64
	maxTimestamp int64
	epoch        int32
}

// readFailed makes what a failed read of the disk means of err: the directory has become unusable, unless it is handles that are missing.
func (v *View) readFailed(err error) error {
	se := &StorageError{Dir: filepath.Dir(v.log.o.Dir), Op: "read", Err: err, Offline: !outOfHandles(err)}
	v.log.readFailed(se)
	return se
}

func (l *Log) readFailed(se *StorageError) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed == nil && !l.closed && !outOfHandles(se.Err) && !errors.Is(se.Err, ErrClosed) {
		_ = l.offline(se.Op, se.Err)
	}
}

// usable is why nothing more is read: the log was closed, or it or its directory has failed.
func (v *View) usable() error {
	if v.closed {
		return ErrClosed
	}
	if err := v.log.broken.Load(); err != nil {
		return *err
	}
	return nil
}

// locate finds the first batch of segment i whose last offset is >= offset. A position that the index gives is
// believed only if a batch lies there; the index may be damaged, the answer never is.
func (v *View) locate(i int, offset int64) (b located, ok bool, err error) {
	seg, st := v.list.segs[i], v.state(i)
	if offset >= st.end {
		return located{}, false, nil
	}
	pos, err := st.offsets.lookup(offset - seg.base)
	if err != nil {
		pos = 0
	}
	b, ok, err = v.scan(i, pos, offset)
	if pos > 0 && (errors.Is(err, errTorn) || !ok && err == nil || b.base > offset && pos == b.pos) {
		b, ok, err = v.scan(i, 0, offset)
	}
	switch {
	case err == nil:
		return b, ok, nil
	case errors.Is(err, errTorn):
		return located{}, false, &CorruptError{Dir: v.log.o.Dir, Segment: logName(seg.base), Offset: offset, Err: err}
	default:
		return located{}, false, v.readFailed(err)
	}
}

// scan walks batch headers from pos to the first batch whose last offset is >= offset.
func (v *View) scan(i int, pos, offset int64) (located, bool, error) {
	r := newHeaderReader(v.list.segs[i].file, v.state(i).size)
	defer r.close()
	for {
		b, err := r.header(pos)
		if err == io.EOF {
			return located{}, false, nil
		}
		if err != nil {
			return located{}, false, fmt.Errorf("at position %d: %w", pos, err)
		}
		if b.LastOffset() >= offset {
			return located{pos, b.Length(), b.BaseOffset(), b.LastOffset(), b.MaxTimestamp(), b.PartitionLeaderEpoch()}, true, nil
		}
		pos += int64(b.Length())
	}
}

// Read finds the bytes from the batch that holds offset on, up to bound and at most maxBytes; the range may end
// inside a batch that is not the first. bound is the end offset, the high watermark or the last stable offset.
// When the first batch alone is larger than maxBytes it is all there is with minOneBatch, else there is nothing.
// The range never crosses the end of a segment: fewer bytes than asked for does not mean that there are no more.
//
// Errors: *OffsetOutOfRangeError; *StorageError, and the directory goes offline; *CorruptError.
func (v *View) Read(offset, bound int64, maxBytes int, minOneBatch bool) (Data, error) {
	if err := v.usable(); err != nil {
		return Data{}, err
	}
	if offset < v.LogStartOffset || offset > v.EndOffset {
		return Data{}, &OffsetOutOfRangeError{Requested: offset, LogStart: v.LogStartOffset, EndOffset: v.EndOffset}
	}
	bound = min(bound, v.EndOffset)
	if offset >= bound {
		return Data{}, nil
	}
	for i := v.list.find(offset); i < len(v.list.segs); i++ {
		if v.list.segs[i].base >= bound {
			return Data{}, nil
		}
		first, ok, err := v.locate(i, offset)
		if err != nil {
			return Data{}, err
		}
		if !ok {
			continue
		}
		end, err := v.endPosition(i, bound)
		if err != nil {
			return Data{}, err
		}
		return v.list.segs[i].data(i, first, end, maxBytes, minOneBatch), nil
	}
	return Data{}, nil
}

// endPosition is where in segment i the offsets from bound on begin.
func (v *View) endPosition(i int, bound int64) (int64, error) {
	st := v.state(i)
	if bound >= st.end {
		return st.size, nil
	}
	b, ok, err := v.locate(i, bound)
	if err != nil || !ok {
		return st.size, err
	}
	return b.pos, nil
}

func (s *segment) data(i int, first located, end int64, maxBytes int, minOneBatch bool) Data {
	if end < first.pos+int64(first.size) {
		return Data{} // bound lies inside the first batch
	}
	length := int(min(end-first.pos, int64(max(maxBytes, 0))))
	if length < first.size {
		if !minOneBatch {
			return Data{}
		}
		length = first.size
	}
	return Data{File: s.lent, Position: first.pos, Length: length, FirstBatchSize: first.size, segment: i}
}

// Found answers a lookup by time.
type Found struct {
	Offset, Timestamp int64
	Epoch             int32 // of the batch; -1 unknown
}

// OffsetForTime finds the first record, in offset order and at or above the log start, whose timestamp is at least
// ts (ms). A record at or above bound is no answer.
func (v *View) OffsetForTime(ts, bound int64) (f Found, ok bool, err error) {
	if err := v.usable(); err != nil {
		return Found{}, false, err
	}
	for i := v.list.find(v.LogStartOffset); i < len(v.list.segs); i++ {
		if v.largest(i).timestamp < ts {
			continue
		}
		f, ok, err = v.findTime(i, ts)
		if err != nil || ok {
			return f, ok && f.Offset < bound, err
		}
	}
	return Found{}, false, nil
}

func (v *View) findTime(i int, ts int64) (Found, bool, error) {
	seg, st := v.list.segs[i], v.state(i)
	rel, err := st.times.lookup(ts)
	if err != nil {
		rel = 0
	}
	first, ok, err := v.locate(i, max(seg.base+rel, v.LogStartOffset))
	if err != nil || !ok {
		return Found{}, false, err
	}
	r := newHeaderReader(seg.file, st.size)
	defer r.close()
	for pos := first.pos; ; {
		h, err := r.header(pos)
		if err == io.EOF {
			return Found{}, false, nil
		}
		if err != nil {
			return Found{}, false, v.headerError(seg, pos, err)
		}
		if h.MaxTimestamp() >= ts {
			f, ok, err := v.firstRecord(seg, pos, h.Length(), ts)
			if err != nil || ok {
				return f, ok, err
			}
		}
		pos += int64(h.Length())
	}
}

func (v *View) headerError(seg *segment, pos int64, err error) error {
	if errors.Is(err, errTorn) {
		return &CorruptError{Dir: v.log.o.Dir, Segment: logName(seg.base), Offset: pos, Err: err}
	}
	return v.readFailed(err)
}

// firstRecord finds the first record of a batch with a timestamp of at least ts and not below the log start.
func (v *View) firstRecord(seg *segment, pos int64, size int, ts int64) (Found, bool, error) {
	b, err := readBatch(seg.file, pos, size, nil)
	if err != nil {
		return Found{}, false, v.readFailed(err)
	}
	for r, err := range b.Records(record.Limits{MaxDecompressed: v.log.config.Load().MaxDecompressedBytes}) {
		if err != nil {
			return Found{}, false, &CorruptError{Dir: v.log.o.Dir, Segment: logName(seg.base), Offset: b.BaseOffset(), Err: err}
		}
		if t, o := b.TimestampOf(r), b.OffsetOf(r); t >= ts && o >= v.LogStartOffset {
			return Found{Offset: o, Timestamp: t, Epoch: b.PartitionLeaderEpoch()}, true, nil
		}
	}
	return Found{}, false, nil
}

// MaxTimestamp finds the first record with the largest timestamp at or above the log start. One at or above bound
// is no answer; neither is there one when no record has a timestamp.
func (v *View) MaxTimestamp(bound int64) (f Found, ok bool, err error) {
	if err := v.usable(); err != nil {
		return Found{}, false, err
	}
	best, largest := -1, timestampOffset{record.NoTimestamp, -1}
	for i := v.list.find(v.LogStartOffset); i < len(v.list.segs); i++ {
		l := v.largest(i)
		if v.list.segs[i].base < v.LogStartOffset && l.timestamp >= 0 {
			// DeleteRecords may have taken it, also out of the batch that the log start lies in.
			b, ok, err := v.locate(i, l.offset)
			if err != nil {
				return Found{}, false, err
			}
			if !ok || b.base < v.LogStartOffset {
				if l, err = v.largestFrom(i, v.LogStartOffset); err != nil {
					return Found{}, false, err
				}
			}
		}
		if l.timestamp > largest.timestamp {
			best, largest = i, l
		}
	}
	if best < 0 {
		// No record has a timestamp: as in Kafka, the first of those without is the answer.
		if v.EndOffset <= v.LogStartOffset {
			return Found{}, false, nil
		}
		best, largest = v.list.find(v.LogStartOffset), timestampOffset{record.NoTimestamp, v.LogStartOffset}
	}
	b, ok, err := v.locate(best, largest.offset)
	if err != nil || !ok {
		return Found{}, false, err
	}
	f, ok, err = v.firstRecord(v.list.segs[best], b.pos, b.size, largest.timestamp)
	return f, ok && f.Offset < bound, err
}

// largestFrom is the largest timestamp in segment i at or above offset.
func (v *View) largestFrom(i int, offset int64) (timestampOffset, error) {
	seg, st := v.list.segs[i], v.state(i)
	largest := timestampOffset{record.NoTimestamp, seg.base}
	first, ok, err := v.locate(i, offset)
	if err != nil || !ok {
		return largest, err
	}
	r := newHeaderReader(seg.file, st.size)
	defer r.close()
	for pos := first.pos; ; {
		h, err := r.header(pos)
		if err == io.EOF {
			return largest, nil
		}
		if err != nil {
			return largest, v.headerError(seg, pos, err)
		}
		if t := h.MaxTimestamp(); t > largest.timestamp {
			last := h.LastOffset()
			if h.BaseOffset() < offset {
				if t, err = v.largestRecord(seg, pos, h.Length(), offset); err != nil {
					return largest, err
				}
			}
			if t > largest.timestamp {
				largest = timestampOffset{t, last}
			}
		}
		pos += int64(h.Length())
	}
}

// largestRecord is the largest timestamp of the batch's records from offset on, -1 when there is none.
func (v *View) largestRecord(seg *segment, pos int64, size int, offset int64) (int64, error) {
	b, err := readBatch(seg.file, pos, size, nil)
	if err != nil {
		return 0, v.readFailed(err)
	}
	largest := record.NoTimestamp
	for r, err := range b.Records(record.Limits{MaxDecompressed: v.log.config.Load().MaxDecompressedBytes}) {
		if err != nil {
			return 0, &CorruptError{Dir: v.log.o.Dir, Segment: logName(seg.base), Offset: b.BaseOffset(), Err: err}
		}
		if b.OffsetOf(r) >= offset {
			largest = max(largest, b.TimestampOf(r))
		}
	}
	return largest, nil
}

// UpperBound is an offset above all that d holds, and not far above it: the end to give AbortedTxns.
func (v *View) UpperBound(d Data) (int64, error) {
	if d.Length == 0 {
		return v.LogStartOffset, nil
	}
	st := v.state(d.segment)
	rel, ok, err := st.offsets.offsetAfter(d.Position + int64(d.Length))
	if err != nil {
		return 0, v.readFailed(err)
	}
	switch {
	case ok:
		return v.list.segs[d.segment].base + rel, nil
	case d.segment+1 < len(v.list.segs):
		return v.list.segs[d.segment+1].base, nil
	default:
		return v.EndOffset, nil
	}
}

// AbortedTxns lists the aborted transactions that may touch the offsets [start, end), in the order of their
// markers. The list may name more than it must.
func (v *View) AbortedTxns(start, end int64) []AbortedTxn {
	out := []AbortedTxn{}
	for i := v.list.find(start); i < len(v.list.segs); i++ {
		for _, e := range v.state(i).txns {
			if e.lastOffset >= start && e.firstOffset < end {
				out = append(out, AbortedTxn{e.producerID, e.firstOffset})
			}
			if e.lastStableOffset >= end {
				return out
			}
		}
	}
	return out
}
