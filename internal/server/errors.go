package server

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/stelelog/stele/internal/broker"
	"github.com/stelelog/stele/internal/controller"
	"github.com/stelelog/stele/internal/coordinator"
	"github.com/stelelog/stele/internal/group"
	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/quorum"
	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/replica"
	"github.com/stelelog/stele/internal/txn"
)

// sentinel maps errors that are compared by identity.
var sentinels = []struct {
	err  error
	code *kerr.Error
}{
	{replica.ErrUnknownTopicOrPartition, kerr.UnknownTopicOrPartition},
	{replica.ErrUnknownTopicID, kerr.UnknownTopicID},
	{replica.ErrNotEnoughReplicas, kerr.NotEnoughReplicas},
	{replica.ErrNotEnoughReplicasAfterAppend, kerr.NotEnoughReplicasAfterAppend},
	{replica.ErrInvalidRequiredAcks, kerr.InvalidRequiredAcks},
	{replica.ErrTimedOut, kerr.RequestTimedOut},
	{replica.ErrOffsetNotAvailable, kerr.OffsetNotAvailable},
	{replica.ErrUnsupportedTimestamp, kerr.UnsupportedVersion},
	{replica.ErrDuplicatePartition, kerr.InvalidRequest},
	{replica.ErrOffsetMovedToTieredStorage, kerr.OffsetMovedToTieredStorage},
	{replica.ErrPolicyViolation, kerr.PolicyViolation},
	{replica.ErrTxnUnverified, kerr.NotEnoughReplicas}, // as Kafka: every client takes it for a reason to try again
	{replica.ErrSeveralProducers, kerr.InvalidProducerIDMapping},
	{replica.ErrClosed, kerr.NotLeaderForPartition},
	{replica.ErrReplicaNotHere, kerr.ReplicaNotAvailable},
	{replica.ErrUnknownLogDir, kerr.LogDirNotFound},
	{replica.ErrCordonedLogDir, kerr.InvalidReplicaAssignment},
	{replica.ErrTopicNameTooLong, kerr.InvalidTopicException},
	{replica.ErrNotLeaderOrFollower, kerr.NotLeaderForPartition},
	{replica.ErrFencedLeaderEpoch, kerr.FencedLeaderEpoch},
	{replica.ErrUnknownLeaderEpoch, kerr.UnknownLeaderEpoch},
	{replica.ErrInconsistentTopicID, kerr.InconsistentTopicID},
	{replica.ErrOffsetOutOfRange, kerr.OffsetOutOfRange},

	{log.ErrOutOfOrderSequence, kerr.OutOfOrderSequenceNumber},
	{log.ErrInvalidProducerEpoch, kerr.InvalidProducerEpoch},
	{log.ErrInvalidTxnState, kerr.InvalidTxnState},
	{log.ErrCoordinatorFenced, kerr.TransactionCoordinatorFenced},
	{log.ErrRecordListTooLarge, kerr.RecordListTooLarge},
	{log.ErrClosed, kerr.NotLeaderForPartition},

	{coordinator.ErrLoading, kerr.CoordinatorLoadInProgress},
	{group.ErrCoordinatorNotAvailable, kerr.CoordinatorNotAvailable},
	{group.ErrFencedInstanceID, kerr.FencedInstanceID},
	{group.ErrFencedMemberEpoch, kerr.FencedMemberEpoch},
	{group.ErrInvalidRequest, kerr.InvalidRequest},
	{group.ErrInvalidRegularExpression, kerr.InvalidRegularExpression},
	{group.ErrStaleMemberEpoch, kerr.StaleMemberEpoch},
	{group.ErrUnreleasedInstanceID, kerr.UnreleasedInstanceID},
	{group.ErrUnsupportedAssignor, kerr.UnsupportedAssignor},
	{group.ErrUnsupportedVersion, kerr.UnsupportedVersion},
	{group.ErrGroupIDNotFound, kerr.GroupIDNotFound},
	{group.ErrGroupMaxSizeReached, kerr.GroupMaxSizeReached},
	{group.ErrGroupSubscribedToTopic, kerr.GroupSubscribedToTopic},
	{group.ErrIllegalGeneration, kerr.IllegalGeneration},
	{group.ErrInconsistentGroupProtocol, kerr.InconsistentGroupProtocol},
	{group.ErrInvalidGroupID, kerr.InvalidGroupID},
	{group.ErrInvalidSessionTimeout, kerr.InvalidSessionTimeout},
	{group.ErrMemberIDRequired, kerr.MemberIDRequired},
	{group.ErrNonEmptyGroup, kerr.NonEmptyGroup},
	{group.ErrNotCoordinator, kerr.NotCoordinator},
	{group.ErrOffsetMetadataTooLarge, kerr.OffsetMetadataTooLarge},
	{group.ErrInvalidCommitOffsetSize, kerr.InvalidCommitOffsetSize},
	{group.ErrRebalanceInProgress, kerr.RebalanceInProgress},
	{group.ErrUnknownMemberID, kerr.UnknownMemberID},
	{group.ErrUnknownServer, kerr.UnknownServerError},
	{group.ErrUnstableOffsetCommit, kerr.UnstableOffsetCommit},

	{txn.ErrConcurrentTransactions, kerr.ConcurrentTransactions},
	{txn.ErrInvalidProducerIDMapping, kerr.InvalidProducerIDMapping},
	{txn.ErrInvalidRegularExpression, kerr.InvalidRegularExpression},
	{txn.ErrInvalidRequest, kerr.InvalidRequest},
	{txn.ErrInvalidTransactionTimeout, kerr.InvalidTransactionTimeout},
	{txn.ErrInvalidTxnState, kerr.InvalidTxnState},
	{txn.ErrNoProducerID, kerr.CoordinatorLoadInProgress}, // retriable: the controller did not answer in time
	{txn.ErrProducerFenced, kerr.ProducerFenced},
	{txn.ErrTransactionAbortable, kerr.TransactionAbortable},
	{txn.ErrTransactionalIDNotFound, kerr.TransactionalIDNotFound},
	{broker.ErrTxnNetwork, kerr.NetworkException},

	{broker.ErrNoController, kerr.RequestTimedOut},

	{controller.ErrTopicAlreadyExists, kerr.TopicAlreadyExists},
	{controller.ErrInvalidTopic, kerr.InvalidTopicException},
	{controller.ErrInvalidPartitions, kerr.InvalidPartitions},
	{controller.ErrInvalidReplicationFactor, kerr.InvalidReplicationFactor},
	{controller.ErrInvalidReplicaAssignment, kerr.InvalidReplicaAssignment},
	{controller.ErrInvalidConfig, kerr.InvalidConfig},
	{controller.ErrInvalidRequest, kerr.InvalidRequest},
	{controller.ErrPolicyViolation, kerr.PolicyViolation},
	{controller.ErrUnknownTopicOrPartition, kerr.UnknownTopicOrPartition},
	{controller.ErrUnknownTopicID, kerr.UnknownTopicID},
	{controller.ErrNoReassignmentInProgress, kerr.NoReassignmentInProgress},
	{controller.ErrNotLeaderOrFollower, kerr.NotLeaderForPartition},
	{controller.ErrControllerIDNotRegistered, kerr.ControllerIDNotRegistered},
	{controller.ErrThrottlingQuotaExceeded, kerr.ThrottlingQuotaExceeded},
	{controller.ErrResourceNotFound, kerr.ResourceNotFound},
	{controller.ErrDuplicateResource, kerr.DuplicateResource},
	{controller.ErrUnacceptableCredential, kerr.UnacceptableCredential},
	{controller.ErrUnsupportedSASLMechanism, kerr.UnsupportedSaslMechanism},
	{controller.ErrTokenAuthDisabled, kerr.DelegationTokenAuthDisabled},
	{controller.ErrTokenNotFound, kerr.DelegationTokenNotFound},
	{controller.ErrTokenOwnerMismatch, kerr.DelegationTokenOwnerMismatch},
	{controller.ErrTokenExpired, kerr.DelegationTokenExpired},
	{controller.ErrInvalidPrincipalType, kerr.InvalidPrincipalType},
	{controller.ErrTopicDeletionDisabled, kerr.TopicDeletionDisabled},
	{controller.ErrNotController, kerr.NotController},
	{controller.ErrFencedLeaderEpoch, kerr.FencedLeaderEpoch},
	{controller.ErrInvalidUpdateVersion, kerr.InvalidUpdateVersion},
	{controller.ErrIneligibleReplica, kerr.IneligibleReplica},
	{controller.ErrNewLeaderElected, kerr.NewLeaderElected},
	{controller.ErrStaleBrokerEpoch, kerr.StaleBrokerEpoch},
	{controller.ErrBrokerIDNotRegistered, kerr.BrokerIDNotRegistered},
	{controller.ErrDuplicateBrokerRegistration, kerr.DuplicateBrokerRegistration},
	{controller.ErrInconsistentClusterID, kerr.InconsistentClusterID},
	{controller.ErrInvalidRegistration, kerr.InvalidRegistration},
	{controller.ErrUnsupportedVersion, kerr.UnsupportedVersion},
	{controller.ErrElectionNotNeeded, kerr.ElectionNotNeeded},
	{controller.ErrPreferredLeaderNotAvailable, kerr.PreferredLeaderNotAvailable},
	{controller.ErrEligibleLeadersNotAvailable, kerr.EligibleLeadersNotAvailable},

	{quorum.ErrNotLeaderOrFollower, kerr.NotLeaderForPartition},
	{quorum.ErrBrokerNotAvailable, kerr.BrokerNotAvailable},
	{quorum.ErrInconsistentClusterID, kerr.InconsistentClusterID},
	{quorum.ErrInvalidRequest, kerr.InvalidRequest},
	{quorum.ErrUnknownTopicOrPartition, kerr.UnknownTopicOrPartition},
	{quorum.ErrSnapshotNotFound, kerr.SnapshotNotFound},
	{quorum.ErrPositionOutOfRange, kerr.PositionOutOfRange},
	{quorum.ErrClosed, kerr.NotController},
	{quorum.ErrDuplicateVoter, kerr.DuplicateVoter},
	{quorum.ErrVoterNotFound, kerr.VoterNotFound},
	{quorum.ErrVoterUnreachable, kerr.RequestTimedOut},
	{quorum.ErrChangePending, kerr.RequestTimedOut},
	{quorum.ErrLastVoter, kerr.VoterNotFound},
	{context.DeadlineExceeded, kerr.RequestTimedOut},
}

// protocolError turns a typed error into the protocol's. It is the one table from
// ours to Kafka's: no other package knows a code. nil is nil.
func protocolError(err error) *kerr.Error {
	if err == nil {
		return nil
	}
	var already *kerr.Error
	if errors.As(err, &already) {
		return already
	}
	for _, s := range sentinels {
		if errors.Is(err, s.err) {
			return s.code
		}
	}
	var (
		corrupt   *record.CorruptError
		invalid   *record.InvalidRecordError
		timestamp *record.InvalidTimestampError
		large     *record.TooLargeError
		codec     *record.UnsupportedCodecError
		storage   *log.StorageError
		broken    *log.CorruptError
		beyond    *log.OffsetOutOfRangeError
		fenced    *quorum.FencedLeaderEpochError
		unknown   *quorum.UnknownLeaderEpochError
	)
	switch {
	case errors.As(err, &corrupt):
		return kerr.CorruptMessage
	case errors.As(err, &timestamp):
		return kerr.InvalidTimestamp
	case errors.As(err, &large):
		return kerr.MessageTooLarge
	case errors.As(err, &codec):
		return kerr.UnsupportedCompressionType
	case errors.As(err, &invalid):
		return kerr.InvalidRecord
	case errors.As(err, &storage), errors.As(err, &broken):
		return kerr.KafkaStorageError
	case errors.As(err, &beyond):
		return kerr.OffsetOutOfRange
	case errors.As(err, &fenced):
		return kerr.FencedLeaderEpoch
	case errors.As(err, &unknown):
		return kerr.UnknownLeaderEpoch
	}
	return kerr.UnknownServerError
}

// errorCode is protocolError as a number; 0 for nil.
func errorCode(err error) int16 {
	if e := protocolError(err); e != nil {
		return e.Code
	}
	return 0
}

// ErrorCode is the table as a function, for parts that fill in answers themselves.
func ErrorCode(err error) int16 { return errorCode(err) }

// storageErrorBefore is code, unless that is KAFKA_STORAGE_ERROR and the request is of a version whose clients need not
// know it (KIP-112): NOT_LEADER_OR_FOLLOWER makes them look again and retry.
func storageErrorBefore(known, version int16, code int16) int16 {
	if code == kerr.KafkaStorageError.Code && version < known {
		return kerr.NotLeaderForPartition.Code
	}
	return code
}
