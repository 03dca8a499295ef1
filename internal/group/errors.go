package group

import (
	"errors"

	"github.com/stelelog/stele/internal/shard"
)

// The errors that replies carry, under Kafka's names. They are values to be compared with errors.Is;
// what number each has on the wire, and in which version, is the server's to know.
var (
	ErrCoordinatorNotAvailable   = shard.ErrCoordinatorNotAvailable
	ErrFencedMemberEpoch         = errors.New("fenced member epoch: the member must join anew")
	ErrInvalidRequest            = errors.New("invalid request")
	ErrInvalidRegularExpression  = errors.New("invalid regular expression")
	ErrStaleMemberEpoch          = errors.New("stale member epoch")
	ErrUnreleasedInstanceID      = errors.New("unreleased instance id: the group.instance.id is in use by another process")
	ErrUnsupportedAssignor       = errors.New("unsupported assignor")
	ErrUnsupportedVersion        = errors.New("unsupported version: members of the consumer protocol commit with version 9 and up")
	ErrFencedInstanceID          = errors.New("fenced instance id: the group.instance.id belongs to another member id")
	ErrGroupIDNotFound           = errors.New("group id not found")
	ErrGroupMaxSizeReached       = errors.New("group max size reached")
	ErrGroupSubscribedToTopic    = errors.New("group subscribed to topic")
	ErrIllegalGeneration         = errors.New("illegal generation")
	ErrInconsistentGroupProtocol = errors.New("inconsistent group protocol")
	ErrInvalidGroupID            = errors.New("invalid group id")
	ErrInvalidSessionTimeout     = errors.New("invalid session timeout")
	ErrMemberIDRequired          = errors.New("member id required")
	ErrNonEmptyGroup             = errors.New("non empty group")
	ErrNotCoordinator            = shard.ErrNotCoordinator
	ErrInvalidCommitOffsetSize   = errors.New("no room for more committed offsets")
	ErrOffsetMetadataTooLarge    = errors.New("offset metadata too large")
	ErrRebalanceInProgress       = errors.New("rebalance in progress")
	ErrUnknownMemberID           = errors.New("unknown member id")
	ErrUnknownServer             = shard.ErrUnknownServer
	ErrUnstableOffsetCommit      = errors.New("unstable offset commit: a transaction holds offsets of this partition")
)
