package replica

import (
	"context"
	"errors"

	"github.com/stelelog/stele/internal/metadata"
)

// Leader is what partitions are copied from: another broker that leads them, or, for the copy of a partition that moves to
// another log directory, this broker's own replica, whatever its role. Both keep to one contract. It is used by one goroutine. Whoever implements it turns
// what the other side answers into this package's errors.
type Leader interface {
	// Fetch asks for what follows each position, in the order of asked, and waits a while if there is nothing. An answer
	// holds partitions that have news; the others may be left out. The error is that of all. Records are valid until the
	// next call. When ctx ends the call returns, and what was asked is forgotten.
	Fetch(ctx context.Context, asked []FollowQuery) ([]Followed, error)
	// Offset asks for a position in one partition, with its epoch, by LatestTimestamp, EarliestTimestamp,
	// EarliestLocalTimestamp or EarliestPendingUploadTimestamp. What is not known is -1, also the epoch of a known offset.
	Offset(ctx context.Context, q FollowQuery, timestamp int64) (OffsetAndEpoch, error)
	// EndOffset asks where an epoch ends: the greatest known one that is not above it, and the end of that. Both are -1 when
	// it is not known.
	EndOffset(ctx context.Context, q FollowQuery, epoch int32) (OffsetAndEpoch, error)
	// Close lets go of the leader.
	Close()
}

// FollowQuery is what a follower asks about one partition.
type FollowQuery struct {
	Topic     string
	TopicID   metadata.UUID
	Partition int32
	FollowPosition
	LogStart int64 // of the follower's log
}

// Followed is the answer for one partition.
type Followed struct {
	TopicID   metadata.UUID
	Partition int32
	FollowAnswer
	DivergingEpoch OffsetAndEpoch // with Diverging
	HighWatermark  int64          // the leader's, -1 unknown
	LogStart       int64          // the leader's, -1 unknown
	Records        []byte         // raw batches, the last may be cut
}

// ErrLeaderFailed is matched by an error of a leader that says nothing about the follower's log: ask again later.
var ErrLeaderFailed = errors.New("the leader failed")
