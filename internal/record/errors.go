package record

import (
	"errors"
	"fmt"
)

// ErrShort says that the bytes end before the batch that starts in them does. It is not damage: the
// rest may simply not have been read.
var ErrShort = errors.New("record: bytes end inside a batch")

// ErrBatchFull says that a Builder cannot take a record: the batch would outgrow what its 32-bit fields can
// say, or the record alone has more headers than any reader takes (2^20).
var ErrBatchFull = errors.New("record: batch is full")

// CorruptError says that bytes are not a whole, undamaged batch (Kafka's CORRUPT_MESSAGE).
type CorruptError struct {
	Reason string
}

func (e *CorruptError) Error() string { return "corrupt batch: " + e.Reason }

// RecordError names one refused record of a batch.
type RecordError struct {
	Index   int32 // position in the batch, from 0
	Message string
}

// InvalidRecordError says that an undamaged batch breaks a rule of the format or of its topic
// (Kafka's INVALID_RECORD).
type InvalidRecordError struct {
	Index   int32 // the record at fault, -1 when it is the batch as a whole
	Reason  string
	Records []RecordError // each refused record; at most MaxRecordErrors of them; nil when the batch as a whole is refused
	Err     error         // the decompressor's own error, where there is one
}

func (e *InvalidRecordError) Error() string {
	msg := "invalid record: " + e.Reason
	if e.Index >= 0 {
		msg = fmt.Sprintf("invalid record %d of the batch: %s", e.Index, e.Reason)
	}
	if e.Err != nil {
		msg += ": " + e.Err.Error()
	}
	return msg
}

func (e *InvalidRecordError) Unwrap() error { return e.Err }

// InvalidTimestampError says that at least one record's timestamp is not acceptable to the topic
// (Kafka's INVALID_TIMESTAMP). Records also lists records that are refused for other reasons.
type InvalidTimestampError struct {
	Records []RecordError // at most MaxRecordErrors
}

func (e *InvalidTimestampError) Error() string {
	if len(e.Records) == 0 {
		return "invalid timestamp"
	}
	return fmt.Sprintf("record %d of the batch: %s", e.Records[0].Index, e.Records[0].Message)
}

// TooLargeError says that a batch is larger than max.message.bytes (Kafka's MESSAGE_TOO_LARGE).
type TooLargeError struct {
	Size int // bytes of the whole batch; when Rebuilt, what it had reached when building stopped
	Max  int
	// Rebuilt says that it is the recompressed batch that is too large, not the one received.
	Rebuilt bool
}

func (e *TooLargeError) Error() string {
	if e.Rebuilt {
		return fmt.Sprintf("batch needs more than max.message.bytes %d once rebuilt for the topic's compression.type", e.Max)
	}
	return fmt.Sprintf("batch of %d bytes exceeds max.message.bytes %d", e.Size, e.Max)
}

// UnsupportedCodecError says that a codec may not be used with the request's version (Kafka's
// UNSUPPORTED_COMPRESSION_TYPE).
type UnsupportedCodecError struct {
	Codec   Codec
	Version int16
}

func (e *UnsupportedCodecError) Error() string {
	return fmt.Sprintf("codec %v is not allowed in a Produce request of version %d", e.Codec, e.Version)
}

// invalidBatch is the InvalidRecordError of a batch as a whole.
func invalidBatch(format string, args ...any) error {
	return &InvalidRecordError{Index: -1, Reason: fmt.Sprintf(format, args...)}
}

func corrupt(format string, args ...any) error {
	return &CorruptError{Reason: fmt.Sprintf(format, args...)}
}
