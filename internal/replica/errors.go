package replica

import (
	"errors"
	"fmt"

	"github.com/stelelog/stele/internal/log"
)

// The log's errors that pass through this package, for callers that know the log only through it.
type (
	// StorageError: a disk could not do what was asked; with Offline set, the whole directory is out.
	StorageError = log.StorageError
	// CorruptLogError: this one log is unusable.
	CorruptLogError = log.CorruptError
	// UnexpectedOffsetError: the log does not end where AppendCoordinator's caller expected.
	UnexpectedOffsetError = log.UnexpectedOffsetError
	// LogOffsetOutOfRangeError: ReadLog was asked for an offset outside of the log.
	LogOffsetOutOfRangeError = log.OffsetOutOfRangeError
)

// Errors of this package carry Kafka's names; the server alone turns them into protocol codes. Errors of
// the log (out of range, storage, corrupt batches, producer sequences) pass through unchanged.
var (
	// ErrUnknownTopicOrPartition: not hosted here, and unknown to the cluster metadata too.
	ErrUnknownTopicOrPartition = errors.New("unknown topic or partition")
	// ErrUnknownTopicID: no topic with this id in the cluster metadata.
	ErrUnknownTopicID = errors.New("unknown topic id")
	// ErrNotEnoughReplicas: acks=all, and the committed ISR is smaller than min.insync.replicas. Nothing was written.
	ErrNotEnoughReplicas = errors.New("fewer in-sync replicas than min.insync.replicas")
	// ErrNotEnoughReplicasAfterAppend: the record was written and replicated, but the ISR has fallen below
	// min.insync.replicas meanwhile. The record stays.
	ErrNotEnoughReplicasAfterAppend = errors.New("in-sync replicas fell below min.insync.replicas after the append")
	// ErrInvalidRequiredAcks: acks is none of -1, 0, 1.
	ErrInvalidRequiredAcks = errors.New("required acks must be -1, 0 or 1")
	// ErrTimedOut: the acknowledgement did not come in time; the record may or may not survive.
	ErrTimedOut = errors.New("timed out waiting for replication")
	// ErrOffsetNotAvailable: the new leader's high watermark has not yet passed the start of its epoch, so an
	// answer could go back behind one that was given before.
	ErrOffsetNotAvailable = errors.New("offset not available: the high watermark has not reached the start of the leader epoch")
	// ErrUnsupportedTimestamp: a negative timestamp that this version of ListOffsets does not define.
	ErrUnsupportedTimestamp = errors.New("timestamp has no meaning in this version")
	// ErrDuplicatePartition: one request names the same partition twice.
	ErrDuplicatePartition = errors.New("partition named more than once in the request")
	// ErrOffsetMovedToTieredStorage: a replica asked below the local log start.
	ErrOffsetMovedToTieredStorage = errors.New("offset moved to tiered storage")
	// ErrPolicyViolation: the topic's cleanup.policy does not permit the operation.
	ErrPolicyViolation = errors.New("cleanup.policy does not contain delete")
	// ErrTxnUnverified: the transaction coordinator could not be asked, or could not tell, whether the partition is part of
	// the transaction. Nothing was written; the producer tries again.
	ErrTxnUnverified = errors.New("unable to verify that the partition is part of the transaction: its coordinator is not available")
	// ErrSeveralProducers: the transactional batches of one request are of more than one producer.
	ErrSeveralProducers = errors.New("transactional records of more than one producer id or epoch in one request")
	// ErrInvalidProducerEpoch and ErrInvalidTxnState are the log's, of batches of producers.
	ErrInvalidProducerEpoch = log.ErrInvalidProducerEpoch
	ErrInvalidTxnState      = log.ErrInvalidTxnState
	errOffline              = errors.New("the directory is offline")
	// ErrClosed: the manager has been closed.
	ErrClosed = errors.New("replica manager is closed")
)

// LeaderAndEpoch names a reign: the broker that leads (-1 none) and the epoch it leads in.
type LeaderAndEpoch struct {
	Leader int32
	Epoch  int32
}

// OffsetAndEpoch is a checkable position, or the end of an epoch. -1 is unknown, for each of them.
type OffsetAndEpoch struct {
	Offset int64
	Epoch  int32
}

// NotLeaderOrFollowerError says that this broker does not hold the role that was asked of it. Current is
// the leader as far as it is known here ((-1, -1) if not).
type NotLeaderOrFollowerError struct {
	Topic     string
	Partition int32
	Current   LeaderAndEpoch
}

// ErrNotLeaderOrFollower matches every *NotLeaderOrFollowerError under errors.Is.
var ErrNotLeaderOrFollower = errors.New("not leader or follower")

func (e *NotLeaderOrFollowerError) Error() string {
	return fmt.Sprintf("not leader or follower of %s-%d: leader is %d in epoch %d", e.Topic, e.Partition, e.Current.Leader, e.Current.Epoch)
}

// Is makes errors.Is(err, ErrNotLeaderOrFollower) true.
func (e *NotLeaderOrFollowerError) Is(target error) bool { return target == ErrNotLeaderOrFollower }

// ErrDirectoryMissing says that a replica's log directory is none of this broker's any more.
var ErrDirectoryMissing = errors.New("the log directory that has its records is missing here")

// FencedLeaderEpochError says that the request's leader epoch is older than the one known here.
type FencedLeaderEpochError struct {
	Topic     string
	Partition int32
	Requested int32
	Current   LeaderAndEpoch
}

// ErrFencedLeaderEpoch matches every *FencedLeaderEpochError under errors.Is.
var ErrFencedLeaderEpoch = errors.New("fenced leader epoch")

func (e *FencedLeaderEpochError) Error() string {
	return fmt.Sprintf("leader epoch %d of %s-%d is fenced: current epoch is %d", e.Requested, e.Topic, e.Partition, e.Current.Epoch)
}

// Is makes errors.Is(err, ErrFencedLeaderEpoch) true.
func (e *FencedLeaderEpochError) Is(target error) bool { return target == ErrFencedLeaderEpoch }

// UnknownLeaderEpochError says that the request's leader epoch is newer than the one known here.
type UnknownLeaderEpochError struct {
	Topic     string
	Partition int32
	Requested int32
	Current   LeaderAndEpoch
}

// ErrUnknownLeaderEpoch matches every *UnknownLeaderEpochError under errors.Is.
var ErrUnknownLeaderEpoch = errors.New("unknown leader epoch")

func (e *UnknownLeaderEpochError) Error() string {
	return fmt.Sprintf("leader epoch %d of %s-%d is not known yet: current epoch is %d", e.Requested, e.Topic, e.Partition, e.Current.Epoch)
}

// Is makes errors.Is(err, ErrUnknownLeaderEpoch) true.
func (e *UnknownLeaderEpochError) Is(target error) bool { return target == ErrUnknownLeaderEpoch }

// InconsistentTopicIDError says that the partition of this name belongs to another topic incarnation.
type InconsistentTopicIDError struct {
	Topic           string
	Partition       int32
	Requested, Have [16]byte
}

// ErrInconsistentTopicID matches every *InconsistentTopicIDError under errors.Is.
var ErrInconsistentTopicID = errors.New("inconsistent topic id")

func (e *InconsistentTopicIDError) Error() string {
	return fmt.Sprintf("topic id %x of %s-%d is not the one stored: %x", e.Requested, e.Topic, e.Partition, e.Have)
}

// Is makes errors.Is(err, ErrInconsistentTopicID) true.
func (e *InconsistentTopicIDError) Is(target error) bool { return target == ErrInconsistentTopicID }

// OffsetOutOfRangeError says that a position lies outside of what the partition holds, or that a fetcher's
// last epoch is above every epoch known here.
type OffsetOutOfRangeError struct {
	Topic              string
	Partition          int32
	Requested          int64
	LogStart, LogEnd   int64
	LastFetchedEpoch   int32 // -1 when the fetcher gave none
	LatestEpoch        int32 // -1 when no epoch is known here
	HighWatermarkBound bool  // the upper bound that was broken is the high watermark (DeleteRecords)
}

// ErrOffsetOutOfRange matches every *OffsetOutOfRangeError under errors.Is.
var ErrOffsetOutOfRange = errors.New("offset out of range")

func (e *OffsetOutOfRangeError) Error() string {
	if e.LastFetchedEpoch > e.LatestEpoch {
		return fmt.Sprintf("last fetched epoch %d at offset %d of %s-%d is above every known epoch (latest %d)", e.LastFetchedEpoch, e.Requested, e.Topic, e.Partition, e.LatestEpoch)
	}
	bound := "end"
	if e.HighWatermarkBound {
		bound = "high watermark"
	}
	return fmt.Sprintf("offset %d of %s-%d is out of range: log start %d, %s %d", e.Requested, e.Topic, e.Partition, e.LogStart, bound, e.LogEnd)
}

// Is makes errors.Is(err, ErrOffsetOutOfRange) true.
func (e *OffsetOutOfRangeError) Is(target error) bool { return target == ErrOffsetOutOfRange }
