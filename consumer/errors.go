package consumer

import (
	"errors"
	"fmt"
	"strings"
)

// ErrClosed is returned by a Consumer that was closed.
var ErrClosed = errors.New("consumer: closed")

// ErrConcurrentPoll is returned by a Poll that begins while another one runs.
var ErrConcurrentPoll = errors.New("consumer: Poll is called by two goroutines at once")

// OffsetOutOfRangeError says that the position of a partition is not in its log, and that no reset policy is set to go
// on by. The position stands where it was, and nothing more of the partition is read until a Seek. With a policy it is
// returned only for a position that lies within the log and yet was refused by the leader for half a minute.
type OffsetOutOfRangeError struct {
	TopicPartition
	Position Position
	LogStart Offset // where known
	LogEnd   Offset // the high watermark, or the last stable offset with read_committed
}

// Error names the partition, the position and the log's ends.
func (e *OffsetOutOfRangeError) Error() string {
	return fmt.Sprintf("consumer: position %v of %s is out of range: the log holds [%v, %v)", e.Position, e.TopicPartition, e.LogStart, e.LogEnd)
}

// NoOffsetError says that a partition has no committed offset, and that no reset policy is set to begin by.
type NoOffsetError struct{ TopicPartition }

// Error names the partition.
func (e *NoOffsetError) Error() string {
	return fmt.Sprintf("consumer: %s has no committed offset, and auto.offset.reset is none", e.TopicPartition)
}

// PartitionError is a failure of one partition that the broker reported and that does not mend by itself, such as a
// missing right. The position is kept, and the request is made again.
type PartitionError struct {
	TopicPartition        // Partition is -1 when it is the topic that failed
	Offset         Offset // of the position, where there is one
	Err            error  // a *kerr.Error
}

// Error names the partition, the position and the failure.
func (e *PartitionError) Error() string {
	if e.Partition < 0 {
		return fmt.Sprintf("consumer: topic %s: %v", e.Topic, e.Err)
	}
	return fmt.Sprintf("consumer: %s at offset %v: %v", e.TopicPartition, e.Offset, e.Err)
}

// Unwrap is the failure.
func (e *PartitionError) Unwrap() error { return e.Err }

// CorruptRecordError says that the bytes at an offset are damaged. The position stays before them, and they are asked
// for again; Seek passes them by.
type CorruptRecordError struct {
	TopicPartition
	Offset int64
	Err    error
}

// Error names the partition and the offset.
func (e *CorruptRecordError) Error() string {
	return fmt.Sprintf("consumer: %s is damaged at offset %d: %v", e.TopicPartition, e.Offset, e.Err)
}

// Unwrap is what is wrong with the bytes.
func (e *CorruptRecordError) Unwrap() error { return e.Err }

// NotAssignedError says that partitions do not belong to this consumer, or no longer: they were lost or given to
// another member. Nothing was sent.
type NotAssignedError struct{ Partitions []TopicPartition }

// Error names the partitions.
func (e *NotAssignedError) Error() string {
	return "consumer: not assigned to this consumer: " + join(e.Partitions)
}

// NoEpochError says that offsets were to be committed of which the epoch is not known: the next owner of the partition
// could not check them. Commit records or positions, or say WithoutEpoch. Nothing was sent.
type NoEpochError struct{ Partitions []TopicPartition }

// Error names the partitions.
func (e *NoEpochError) Error() string {
	return "consumer: no epoch is known for the offsets of " + join(e.Partitions) + "; commit records or positions, or say WithoutEpoch"
}

// CommitError says that the coordinator refused a commit. Of a commit for several partitions some may have been kept.
type CommitError struct {
	Group  string
	Failed map[TopicPartition]error // each a *kerr.Error
}

// Error names a failed partition and why.
func (e *CommitError) Error() string {
	partitions := sortedKeys(e.Failed)
	text := fmt.Sprintf("consumer: commit in group %s: %s: %v", e.Group, partitions[0], e.Failed[partitions[0]])
	if n := len(partitions) - 1; n > 0 {
		text += fmt.Sprintf(", and %d more", n)
	}
	return text
}

// Unwrap is the causes.
func (e *CommitError) Unwrap() (causes []error) {
	for _, tp := range sortedKeys(e.Failed) {
		causes = append(causes, e.Failed[tp])
	}
	return causes
}

// GroupError says that the group does not take this consumer, or that it cannot go on in it.
type GroupError struct {
	Group string
	What  string // what was asked of the coordinator
	Err   error
}

// Error names the group and what failed.
func (e *GroupError) Error() string {
	return fmt.Sprintf("consumer: group %s: %s: %v", e.Group, e.What, e.Err)
}

// Unwrap is the cause.
func (e *GroupError) Unwrap() error { return e.Err }

func join(partitions []TopicPartition) string {
	names := make([]string, len(partitions))
	for i, tp := range partitions {
		names[i] = tp.String()
	}
	return strings.Join(names, ", ")
}
