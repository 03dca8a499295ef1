package controller

import (
	"errors"
	"fmt"
)

// The faults a request, or one item of it, may have: Kafka's names. The server alone maps them to codes.
var (
	ErrTopicAlreadyExists          = errors.New("TOPIC_ALREADY_EXISTS")
	ErrInvalidTopic                = errors.New("INVALID_TOPIC_EXCEPTION")
	ErrInvalidPartitions           = errors.New("INVALID_PARTITIONS")
	ErrInvalidReplicationFactor    = errors.New("INVALID_REPLICATION_FACTOR")
	ErrInvalidReplicaAssignment    = errors.New("INVALID_REPLICA_ASSIGNMENT")
	ErrInvalidConfig               = errors.New("INVALID_CONFIG")
	ErrInvalidRequest              = errors.New("INVALID_REQUEST")
	ErrPolicyViolation             = errors.New("POLICY_VIOLATION")
	ErrUnknownTopicOrPartition     = errors.New("UNKNOWN_TOPIC_OR_PARTITION")
	ErrUnknownTopicID              = errors.New("UNKNOWN_TOPIC_ID")
	ErrTopicDeletionDisabled       = errors.New("TOPIC_DELETION_DISABLED")
	ErrNotController               = errors.New("NOT_CONTROLLER")
	ErrControllerIDNotRegistered   = errors.New("CONTROLLER_ID_NOT_REGISTERED")
	ErrNoReassignmentInProgress    = errors.New("NO_REASSIGNMENT_IN_PROGRESS")
	ErrNotLeaderOrFollower         = errors.New("NOT_LEADER_OR_FOLLOWER")
	ErrFencedLeaderEpoch           = errors.New("FENCED_LEADER_EPOCH")
	ErrInvalidUpdateVersion        = errors.New("INVALID_UPDATE_VERSION")
	ErrIneligibleReplica           = errors.New("INELIGIBLE_REPLICA")
	ErrNewLeaderElected            = errors.New("NEW_LEADER_ELECTED")
	ErrStaleBrokerEpoch            = errors.New("STALE_BROKER_EPOCH")
	ErrBrokerIDNotRegistered       = errors.New("BROKER_ID_NOT_REGISTERED")
	ErrDuplicateBrokerRegistration = errors.New("DUPLICATE_BROKER_REGISTRATION")
	ErrInconsistentClusterID       = errors.New("INCONSISTENT_CLUSTER_ID")
	ErrInvalidRegistration         = errors.New("INVALID_REGISTRATION")
	ErrUnsupportedVersion          = errors.New("UNSUPPORTED_VERSION")
	ErrElectionNotNeeded           = errors.New("ELECTION_NOT_NEEDED")
	ErrPreferredLeaderNotAvailable = errors.New("PREFERRED_LEADER_NOT_AVAILABLE")
	ErrEligibleLeadersNotAvailable = errors.New("ELIGIBLE_LEADERS_NOT_AVAILABLE")
	ErrThrottlingQuotaExceeded     = errors.New("THROTTLING_QUOTA_EXCEEDED")
	ErrResourceNotFound            = errors.New("RESOURCE_NOT_FOUND")
	ErrDuplicateResource           = errors.New("DUPLICATE_RESOURCE")
	ErrUnacceptableCredential      = errors.New("UNACCEPTABLE_CREDENTIAL")
	ErrUnsupportedSASLMechanism    = errors.New("UNSUPPORTED_SASL_MECHANISM")
	ErrTokenAuthDisabled           = errors.New("DELEGATION_TOKEN_AUTH_DISABLED")
	ErrTokenNotFound               = errors.New("DELEGATION_TOKEN_NOT_FOUND")
	ErrTokenOwnerMismatch          = errors.New("DELEGATION_TOKEN_OWNER_MISMATCH")
	ErrTokenExpired                = errors.New("DELEGATION_TOKEN_EXPIRED")
	ErrInvalidPrincipalType        = errors.New("INVALID_PRINCIPAL_TYPE")
)

// Error is one of the faults above with what is wrong in this case.
type Error struct {
	Err     error
	Message string
}

func (e *Error) Error() string {
	if e.Message == "" {
		return e.Err.Error()
	}
	return e.Err.Error() + ": " + e.Message
}

func (e *Error) Unwrap() error { return e.Err }

func faultf(err error, format string, args ...any) *Error {
	return &Error{Err: err, Message: fmt.Sprintf(format, args...)}
}
