package replica

import (
	"context"
	"errors"

	"github.com/stelelog/stele/internal/metadata"
)

// Leader is a broker that this one copies partitions from. It is used by one goroutine. Whoever implements it turns
// what the other side answers into this package's errors.
type Leader interface {
	// Fetch asks for what follows each position, in the order of asked, and waits a while if there is nothing. An answer
	// holds partitions that have news; the others may be left out. The error is that of all. Records are valid until the
	// next call. When ctx ends the call returns, and what was asked is forgotten.
	Fetch(ctx context.Context, asked []FollowQuery) ([]Followed, error)
	// LatestOffset and EarliestOffset ask where the leader's log of one partition ends and begins; -1 unknown.
	LatestOffset(ctx context.Context, q FollowQuery) (int64, error)
	EarliestOffset(ctx context.Context, q FollowQuery) (int64, error)
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
