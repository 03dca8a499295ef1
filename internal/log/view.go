package log

import (
	"fmt"
	"io"
	"os"
	"sync/atomic"

	"github.com/stelelog/stele/internal/epoch"
	"github.com/stelelog/stele/internal/vfs"
)

// View is all that a reader needs of a log at one instant. It is immutable, and so are the bytes it shows: not
// even a truncation changes them while the view is held. Any number of goroutines may use one view; each View()
// needs one Release, after which neither the view nor any Data read from it may be used.
type View struct {
	// LogStartOffset <= LocalLogStartOffset <= EndOffset; LogStartOffset <= HighWatermark <= EndOffset;
	// LastStableOffset <= HighWatermark.
	LogStartOffset      int64
	LocalLogStartOffset int64
	EndOffset           int64
	HighWatermark       int64
	LastStableOffset    int64
	// AckEnd is how far records may be acknowledged, and the high watermark of a leader may rise: up to EndOffset, unless
	// flush.messages asks for a flush that is still under way.
	AckEnd int64
	// Epochs is the leader epoch cache.
	Epochs epoch.Cache
	// Size is the log's size in bytes, indexes not counted.
	Size int64

	log    *Log
	list   *segmentList
	active segmentState
	// firstBase is the first segment's base; a closed log's view has it without having the segment.
	firstBase int64
	closed    bool
	unfilled  bool // of mutantLazyLargest
	refs      atomic.Int64
}

// acquire adds a reader, unless the last one has gone: then the view is no longer the published one, and the
// caller looks again. A view's memory is never reused for another, so a stale pointer finds a count of zero.
func (v *View) acquire() bool {
	for {
		n := v.refs.Load()
		if n == 0 {
			return false
		}
		if v.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Release ends the use of the view.
func (v *View) Release() {
	switch n := v.refs.Add(-1); {
	case n == 0:
		v.list.release()
	case n < 0:
		panic(fmt.Sprintf("log view of %s released %d times too often", v.log.o.Dir, -n))
	}
}

// state is segment i as this view shows it.
func (v *View) state(i int) *segmentState {
	if i == len(v.list.segs)-1 {
		return &v.active
	}
	return &v.list.segs[i].sealed
}

// largest is the largest timestamp of segment i.
func (v *View) largest(i int) timestampOffset {
	if mutantLazyLargest {
		return v.fillLargest(v.list.segs[i], v.state(i))
	}
	return v.state(i).largest
}

// Segments describes the segments, oldest first.
func (v *View) Segments() []SegmentInfo {
	out := make([]SegmentInfo, len(v.list.segs))
	for i, s := range v.list.segs {
		st := v.state(i)
		out[i] = SegmentInfo{BaseOffset: s.base, EndOffset: st.end, Size: st.size, LargestTimestamp: st.largest.timestamp}
	}
	return out
}

// SegmentInfo describes one segment.
type SegmentInfo struct {
	BaseOffset int64
	// EndOffset is the offset after the segment's last batch.
	EndOffset int64
	Size      int64
	// LargestTimestamp is -1 when no record has one.
	LargestTimestamp int64
}

// segmentList is an immutable list of segments, oldest first and never empty, counted by the views that show it.
type segmentList struct {
	segs []*segment
	refs atomic.Int64
}

// newSegmentList makes a list with one reference, its maker's.
func newSegmentList(segs []*segment) *segmentList {
	l := &segmentList{segs: segs}
	l.refs.Store(1)
	for _, s := range segs {
		s.refs.Add(1)
	}
	return l
}

func (l *segmentList) release() {
	if l.refs.Add(-1) == 0 {
		for _, s := range l.segs {
			s.release()
		}
	}
}

func (l *segmentList) last() *segment { return l.segs[len(l.segs)-1] }

// find is the index of the segment with the greatest base <= offset; 0 below all.
func (l *segmentList) find(offset int64) int {
	lo, hi := 0, len(l.segs)
	for hi-lo > 1 {
		if mid := (lo + hi) / 2; l.segs[mid].base <= offset {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo
}

// timestampOffset is a timestamp and the last offset of the batch that has it.
type timestampOffset struct {
	timestamp, offset int64
}

// segmentState is what appends change about a segment: a value, copied into each view. The slices only ever grow
// beyond what a copy can see.
type segmentState struct {
	size    int64 // bytes
	end     int64 // offset after the last batch; base when empty
	largest timestampOffset
	offsets offsetIndex
	times   timeIndex
	txns    []txnEntry
}

// segment is one .log file. It is closed when neither the log nor a view refers to it.
type segment struct {
	base int64
	file vfs.File
	// lent is file as readers outside get it.
	lent vfs.File
	refs atomic.Int64
	// sealed is the state of a segment that is not the last one; set before the list that has it in such a place
	// is published.
	sealed segmentState
}

// lentFile is a segment's file in the hands of whoever sends it to a client: that it cannot be read any more is the
// directory's matter.
type lentFile struct {
	vfs.File
	l *Log
}

// ReadAt reports an error of the disk before it returns it.
func (f lentFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(p, off)
	if err != nil && err != io.EOF {
		f.ReadFailed(err)
	}
	return n, err
}

// ReadFailed takes the log's directory offline: the file was read past ReadAt, and the disk failed.
func (f lentFile) ReadFailed(err error) {
	f.l.readFailed(&StorageError{Dir: f.l.logDir, Op: "read", Err: err, Offline: true})
}

// Lend lends the file to sendfile.
func (f lentFile) Lend() (file *os.File, done func(), ok bool) {
	if h, is := f.File.(*handle); is {
		return h.Lend()
	}
	file, ok = f.File.OSFile()
	return file, func() {}, ok
}

// hold keeps the segment's files open for those who still read them: their names are about to go.
func (s *segment) hold() {
	holdFile(s.file)
	if f := s.sealed.offsets.file; f != nil {
		holdFile(f)
	}
	if f := s.sealed.times.file; f != nil {
		holdFile(f)
	}
}

func (s *segment) release() {
	if s.refs.Add(-1) != 0 {
		return
	}
	s.file.Close()
	if s.sealed.offsets.file != nil {
		s.sealed.offsets.file.Close()
	}
	if s.sealed.times.file != nil {
		s.sealed.times.file.Close()
	}
}
