package log

import (
	"errors"
	"fmt"
)

// What errors.Is finds in the typed errors below.
var (
	ErrOutOfOrderSequence   = errors.New("out of order sequence number")
	ErrInvalidProducerEpoch = errors.New("invalid producer epoch")
	ErrInvalidTxnState      = errors.New("invalid transaction state")
	ErrCoordinatorFenced    = errors.New("transaction coordinator fenced")
	ErrRecordListTooLarge   = errors.New("record list larger than the segment size")
	// ErrClosed says that the log was closed or deleted.
	ErrClosed = errors.New("log is closed")
)

// OffsetOutOfRangeError says that an offset lies outside [LogStart, EndOffset].
type OffsetOutOfRangeError struct {
	Requested, LogStart, EndOffset int64
}

func (e *OffsetOutOfRangeError) Error() string {
	return fmt.Sprintf("offset %d is out of range [%d, %d]", e.Requested, e.LogStart, e.EndOffset)
}

// StorageError says that the disk refused. What was asked for did not happen.
type StorageError struct {
	Dir, Op string
	Err     error
	// Offline says that the whole log directory has become unusable. When false the operation was taken back and
	// may be tried again: a full disk, for example.
	Offline bool
}

func (e *StorageError) Error() string {
	return fmt.Sprintf("storage error in %s: %s: %v", e.Dir, e.Op, e.Err)
}

func (e *StorageError) Unwrap() error { return e.Err }

// CorruptError says that this one log is unusable: an invariant is broken, or bytes below the recovery point are
// not what was written.
type CorruptError struct {
	Dir, Segment string
	Offset       int64
	Err          error
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("log %s is corrupt in segment %s at offset %d: %v", e.Dir, e.Segment, e.Offset, e.Err)
}

func (e *CorruptError) Unwrap() error { return e.Err }

// UnexpectedOffsetError says that a batch does not continue the log: its base offset lies below the end offset,
// or a caller that gives offsets itself gave the wrong one.
type UnexpectedOffsetError struct {
	Expected, Got int64
}

func (e *UnexpectedOffsetError) Error() string {
	return fmt.Sprintf("batch at offset %d does not continue the log at %d", e.Got, e.Expected)
}

// UnexpectedEpochError says that a batch's leader epoch is lower than the log's latest.
type UnexpectedEpochError struct {
	Latest, Got int32
	Offset      int64
}

func (e *UnexpectedEpochError) Error() string {
	return fmt.Sprintf("batch at offset %d has leader epoch %d, the log is at %d", e.Offset, e.Got, e.Latest)
}

// OutOfOrderSequenceError is Kafka's OUT_OF_ORDER_SEQUENCE_NUMBER.
type OutOfOrderSequenceError struct {
	ProducerID    int64
	ProducerEpoch int16
	Expected      int32
	FirstSequence int32
	LastSequence  int32
}

func (e *OutOfOrderSequenceError) Error() string {
	return fmt.Sprintf("producer %d epoch %d sent sequences %d-%d, expected %d", e.ProducerID, e.ProducerEpoch,
		e.FirstSequence, e.LastSequence, e.Expected)
}

// Is matches ErrOutOfOrderSequence.
func (e *OutOfOrderSequenceError) Is(target error) bool { return target == ErrOutOfOrderSequence }

// InvalidProducerEpochError says that a producer's epoch is older than the one the log knows.
type InvalidProducerEpochError struct {
	ProducerID int64
	Epoch      int16
	Current    int16
}

func (e *InvalidProducerEpochError) Error() string {
	return fmt.Sprintf("producer %d sent epoch %d, current is %d", e.ProducerID, e.Epoch, e.Current)
}

// Is matches ErrInvalidProducerEpoch.
func (e *InvalidProducerEpochError) Is(target error) bool { return target == ErrInvalidProducerEpoch }

// InvalidTxnStateError says that a batch and the producer's transaction do not fit together.
type InvalidTxnStateError struct {
	ProducerID int64
	Reason     string
}

func (e *InvalidTxnStateError) Error() string {
	return fmt.Sprintf("producer %d: %s", e.ProducerID, e.Reason)
}

// Is matches ErrInvalidTxnState.
func (e *InvalidTxnStateError) Is(target error) bool { return target == ErrInvalidTxnState }

// CoordinatorFencedError says that a marker came from an older transaction coordinator than the last one did.
type CoordinatorFencedError struct {
	ProducerID     int64
	Epoch, Current int32
}

func (e *CoordinatorFencedError) Error() string {
	return fmt.Sprintf("marker for producer %d has coordinator epoch %d, current is %d", e.ProducerID, e.Epoch, e.Current)
}

// Is matches ErrCoordinatorFenced.
func (e *CoordinatorFencedError) Is(target error) bool { return target == ErrCoordinatorFenced }

// RecordListTooLargeError says that a batch is larger than segment.bytes.
type RecordListTooLargeError struct {
	Size, SegmentBytes int
}

func (e *RecordListTooLargeError) Error() string {
	return fmt.Sprintf("batch of %d bytes is larger than the segment size %d", e.Size, e.SegmentBytes)
}

// Is matches ErrRecordListTooLarge.
func (e *RecordListTooLargeError) Is(target error) bool { return target == ErrRecordListTooLarge }
