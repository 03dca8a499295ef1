package replica

import (
	"errors"
	"time"
)

// FetchBackoff is how long a follower waits after an error that passes by itself (replica.fetch.backoff.ms).
const FetchBackoff = time.Second

// FollowStep is what a follower does next about a partition.
type FollowStep int8

// The steps of following.
const (
	FollowIgnore   FollowStep = iota // the answer is to a question no longer asked
	FollowAppend                     // append what came, then high watermark, then log start
	FollowTruncate                   // cut by epoch; leave high watermark and log start alone
	FollowRange                      // ask the leader for its range, then OutOfRange
	FollowTiered                     // rebuild from the remote tier
	FollowBackoff                    // fetch again after FetchBackoff
	FollowStop                       // do not fetch until the leader epoch rises
	FollowFail                       // as FollowStop, and count it as failed
)

// FollowPosition is where a follower stands: what its next Fetch asks.
type FollowPosition struct {
	FetchOffset        int64
	CurrentLeaderEpoch int32
	LastFetchedEpoch   int32
}

// FollowAnswer is one partition of a Fetch response, as its follower sees it.
type FollowAnswer struct {
	Err       error // nil, an error of this package, or one that ErrCorrupt matches
	Diverging bool
}

// ErrCorrupt is matched by whatever says that fetched bytes are not sound records.
var ErrCorrupt = errors.New("corrupt records")

// Follow decides what a follower that now stands at now does with an answer to a Fetch made at asked.
func Follow(asked, now FollowPosition, a FollowAnswer) FollowStep {
	if asked.FetchOffset != now.FetchOffset || asked.CurrentLeaderEpoch != now.CurrentLeaderEpoch {
		// A fenced answer to an older epoch comes here too: the newer epoch is just asked again.
		return FollowIgnore
	}
	switch {
	case a.Err == nil && a.Diverging:
		return FollowTruncate
	case a.Err == nil:
		return FollowAppend
	case errors.Is(a.Err, ErrOffsetOutOfRange):
		return FollowRange
	case errors.Is(a.Err, ErrOffsetMovedToTieredStorage):
		return FollowTiered
	case errors.Is(a.Err, ErrFencedLeaderEpoch):
		return FollowStop
	case errors.Is(a.Err, ErrUnknownLeaderEpoch), errors.Is(a.Err, ErrNotLeaderOrFollower),
		errors.Is(a.Err, ErrUnknownTopicOrPartition), errors.Is(a.Err, ErrUnknownTopicID),
		errors.Is(a.Err, ErrInconsistentTopicID), errors.Is(a.Err, ErrCorrupt), errors.Is(a.Err, ErrLeaderFailed):
		return FollowBackoff
	default:
		return FollowFail
	}
}
