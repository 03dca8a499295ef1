package replica

import (
	"slices"

	"github.com/stelelog/stele/internal/epoch"
)

// Isolation says up to where a reader may see.
type Isolation int8

// The isolation levels, with the numbers of the wire.
const (
	ReadUncommitted Isolation = 0 // up to the high watermark
	ReadCommitted   Isolation = 1 // up to the last stable offset
)

func (r *Role) notLeader() error {
	return &NotLeaderOrFollowerError{Topic: r.Topic, Partition: r.Partition, Current: r.Current()}
}

// CheckEpoch compares a request's leader epoch with the one in force. The caller has already mapped "absent" to
// given=false, which differs by API: in Fetch every negative epoch is absent, elsewhere only -1 is.
func (r *Role) CheckEpoch(requested int32, given bool) error {
	switch {
	case !given || requested == r.LeaderEpoch:
		return nil
	case requested < r.LeaderEpoch && mutantFencedAccepted:
		return nil
	case requested < r.LeaderEpoch:
		return &FencedLeaderEpochError{Topic: r.Topic, Partition: r.Partition, Requested: requested, Current: r.Current()}
	default:
		return &UnknownLeaderEpochError{Topic: r.Topic, Partition: r.Partition, Requested: requested, Current: r.Current()}
	}
}

// Check is the check common to every data API: first the epoch, then the role. So a follower answers a wrong
// epoch with fenced or unknown, and only the right one with not-leader.
func (r *Role) Check(requested int32, given, leaderRequired bool) error {
	if err := r.CheckEpoch(requested, given); err != nil {
		return err
	}
	if leaderRequired && r.Kind != RoleLeader || r.Kind == RoleNone {
		return r.notLeader()
	}
	return nil
}

// FetchQuery is what decides about one partition of a Fetch.
type FetchQuery struct {
	ReplicaID          int32 // >= 0 a follower, else ConsumerID, DebugConsumerID or FutureReplicaID
	CurrentLeaderEpoch int32 // negative: absent
	FetchOffset        int64
	LastFetchedEpoch   int32 // negative: absent
	Isolation          Isolation
	// MayReadFollower: the fetcher knows how to read from a follower (Fetch v11 and later).
	MayReadFollower bool
}

// fromFollower says whether a broker that replicates this partition asks.
func (q *FetchQuery) fromFollower() bool { return q.ReplicaID >= 0 }

// isReplica says whether the fetcher copies the log, here or elsewhere.
func (q *FetchQuery) isReplica() bool { return q.ReplicaID >= 0 || q.ReplicaID == FutureReplicaID }

// Bound is the exclusive bound of what the fetcher may read: the log end for a replica, else by isolation.
func (q *FetchQuery) Bound(pos Positions) int64 {
	switch {
	case q.isReplica() || mutantReadsAboveWatermark:
		return pos.End
	case q.Isolation == ReadCommitted:
		return pos.LastStable
	default:
		return pos.HighWatermark
	}
}

// FetchDecision says what a Fetch that met no error gets.
type FetchDecision struct {
	// Diverging: the fetcher's history is not a prefix of this log's. DivergingEpoch is the greatest common epoch as
	// known here, and where it ends here. No records, and no progress for a follower (KAFKA-13141).
	Diverging      bool
	DivergingEpoch OffsetAndEpoch
	// AtEnd: nothing to read yet; the fetch may wait.
	AtEnd bool
	// Remote: the offset lies below the local log start; a consumer reads it from the remote tier.
	Remote bool
	// Bound is where reading has to stop, exclusive.
	Bound int64
}

// CheckFetchRole is the first half of a Fetch's checks: epoch, role, and that a follower is one of ours.
func (r *Role) CheckFetchRole(q FetchQuery) error {
	given := q.CurrentLeaderEpoch >= 0
	leaderRequired := q.fromFollower() || !q.MayReadFollower && q.ReplicaID != FutureReplicaID
	if err := r.Check(q.CurrentLeaderEpoch, given, leaderRequired); err != nil {
		return err
	}
	if q.fromFollower() && !slices.Contains(r.Replicas, q.ReplicaID) {
		// A replica that was just added may ask before this broker has heard of it.
		if given {
			return &UnknownLeaderEpochError{Topic: r.Topic, Partition: r.Partition, Requested: q.CurrentLeaderEpoch, Current: r.Current()}
		}
		return r.notLeader()
	}
	return nil
}

// CheckFetchOffset is the second half: history, then range, then what there is to read. A position below the
// log start is out of range even if its epoch diverges as well (KAFKA-12996).
func (r *Role) CheckFetchOffset(q FetchQuery, pos Positions, epochs epoch.Cache) (FetchDecision, error) {
	if q.LastFetchedEpoch >= 0 {
		found, end := epochs.EndOffsetFor(q.LastFetchedEpoch, pos.End)
		if found < 0 || end < 0 || q.FetchOffset < pos.LogStart {
			return FetchDecision{}, r.outOfRange(q, pos, epochs)
		}
		if found < q.LastFetchedEpoch || end < q.FetchOffset && !mutantSkipsDivergence {
			return FetchDecision{Diverging: true, DivergingEpoch: OffsetAndEpoch{Offset: end, Epoch: found}}, nil
		}
	}
	if q.FetchOffset > pos.End || q.FetchOffset < pos.LogStart {
		return FetchDecision{}, r.outOfRange(q, pos, epochs)
	}
	if q.FetchOffset < pos.LocalLogStart {
		if q.isReplica() {
			return FetchDecision{}, ErrOffsetMovedToTieredStorage
		}
		return FetchDecision{Remote: true, Bound: q.Bound(pos)}, nil
	}
	bound := q.Bound(pos)
	return FetchDecision{Bound: bound, AtEnd: q.FetchOffset >= bound}, nil
}

func (r *Role) outOfRange(q FetchQuery, pos Positions, epochs epoch.Cache) error {
	e := &OffsetOutOfRangeError{
		Topic: r.Topic, Partition: r.Partition, Requested: q.FetchOffset, LogStart: pos.LogStart, LogEnd: pos.End,
		LastFetchedEpoch: max(q.LastFetchedEpoch, NoEpoch), LatestEpoch: NoEpoch,
	}
	if latest, ok := epochs.Latest(); ok {
		e.LatestEpoch = latest.Epoch
	}
	return e
}

// EndOffsetForEpoch answers OffsetForLeaderEpoch: where epoch asked ends in this leader's log. Both are -1 when
// that is unknown. The end may lie above the high watermark.
func (r *Role) EndOffsetForEpoch(current int32, asked int32, pos Positions, epochs epoch.Cache) (OffsetAndEpoch, error) {
	if err := r.Check(current, current != NoEpoch, true); err != nil {
		return OffsetAndEpoch{Offset: NoOffset, Epoch: NoEpoch}, err
	}
	found, end := epochs.EndOffsetFor(asked, pos.End)
	return OffsetAndEpoch{Offset: end, Epoch: found}, nil
}
