package log

import (
	"time"

	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
)

type producers struct{}

func (p *producers) firstUnstable() (int64, bool) { return 0, false }
func (p *producers) replicated(hw int64)          {}

// Open opens a log, recovering it if its last stop was not clean.
func Open(o Options) (*Log, error) { panic("to come") }

// AppendAsLeader appends one batch, giving it offsets and the leader epoch. records may be changed in place.
func (l *Log) AppendAsLeader(records []byte, leaderEpoch int32, o AppendOptions) (AppendInfo, error) {
	panic("to come")
}

// AppendAsFollower appends batches as a leader sent them, up to the first whose epoch is above maxEpoch.
func (l *Log) AppendAsFollower(records []byte, maxEpoch int32) (AppendInfo, error) { panic("to come") }

// TruncateTo cuts the log so that it ends at offset.
func (l *Log) TruncateTo(offset int64, reason string) error { panic("to come") }

// TruncateFullyAndStartAt drops everything; the log starts over, empty, at offset.
func (l *Log) TruncateFullyAndStartAt(offset int64, reason string) error { panic("to come") }

// AdvanceLogStart moves the log start up to offset, for DeleteRecords or by the leader's word.
func (l *Log) AdvanceLogStart(offset int64, reason string) error { panic("to come") }

// Retain applies retention: start offset, size, time. It returns how many segments went.
func (l *Log) Retain(now time.Time) (int, error) { panic("to come") }

// Flush makes everything appended so far durable.
func (l *Log) Flush() error { panic("to come") }

// Close stops the log cleanly: flush, producer snapshot, indexes.
func (l *Log) Close() error { panic("to come") }

// Data is a range of raw batches in a file, valid until the view it was read from is released.
type Data struct {
	// File is nil when there is nothing: then Length is 0.
	File     vfs.File
	Position int64
	Length   int
	segment  int
}

// Read finds the bytes from the batch that holds offset on, below bound, at most maxBytes of them.
func (v *View) Read(offset, bound int64, maxBytes int, minOneBatch bool) (Data, error) {
	panic("to come")
}

// Found answers a lookup by time.
type Found struct {
	Offset, Timestamp int64
	Epoch             int32 // -1 unknown
}

// OffsetForTime finds the first record below bound whose timestamp is at least ts, in ms.
func (v *View) OffsetForTime(ts, bound int64) (f Found, ok bool, err error) { panic("to come") }

// MaxTimestamp finds the first record with the largest timestamp, if it lies below bound.
func (v *View) MaxTimestamp(bound int64) (f Found, ok bool, err error) { panic("to come") }

// AbortedTxns lists the aborted transactions that may touch the offsets [start, end).
func (v *View) AbortedTxns(start, end int64) []AbortedTxn { panic("to come") }

// UpperBound is an offset that no batch in d reaches: the end to give AbortedTxns.
func (v *View) UpperBound(d Data) (int64, error) { panic("to come") }

// ScanSegment calls fn for each batch of a segment file.
func ScanSegment(fsys vfs.FS, path string, fn func(pos int64, b record.Batch) error) error {
	panic("to come")
}
