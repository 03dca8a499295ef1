package replica

import "github.com/stelelog/stele/internal/epoch"

// Truncation is where a follower cuts its log.
type Truncation struct {
	To int64
	// Finished: the histories agree below To. When false the follower asks again with Epoch, the greatest epoch of its
	// own that is not above the leader's; with Fetch this simply is the next fetch.
	Finished bool
	Epoch    int32
}

// TruncationFor decides where to cut, given where the leader says an epoch ends (its diverging epoch, or its
// answer to OffsetForLeaderEpoch). hw is the follower's high watermark, end its log end. Cutting below the high
// watermark is legal here: it happens after an unclean election.
func TruncationFor(leader OffsetAndEpoch, epochs epoch.Cache, hw, end int64) Truncation {
	if leader.Offset == NoOffset {
		return Truncation{To: min(hw, end), Finished: true, Epoch: NoEpoch}
	}
	if leader.Epoch == NoEpoch {
		return Truncation{To: min(leader.Offset, end), Finished: true, Epoch: NoEpoch}
	}
	own, ownEnd := epochs.EndOffsetFor(leader.Epoch, end)
	switch {
	case own == NoEpoch:
		return Truncation{To: min(leader.Offset, end), Finished: true, Epoch: NoEpoch}
	case own == leader.Epoch:
		return Truncation{To: min(ownEnd, leader.Offset, end), Finished: true, Epoch: own}
	default:
		return Truncation{To: min(ownEnd, end), Epoch: own}
	}
}

// OutOfRangeStep is what a follower does about a position that its leader says is out of range.
type OutOfRangeStep int8

// The steps out of range.
const (
	// RangeUnknown: an answer was unknown, so there is no offset to act on; back off and ask again.
	RangeUnknown OutOfRangeStep = iota
	// RangeTruncate: the leader ends before this log does; cut to To. This follows an unclean election.
	RangeTruncate
	// RangeStartOver: the leader begins after this log ends; drop everything and begin at To, last epoch unknown.
	RangeStartOver
	// RangeGoOn: the logs overlap; go on fetching at To, the own log end.
	RangeGoOn
)

// OutOfRange decides it. end is the follower's log end, latest and earliest the leader's answers (-1 unknown).
// Kafka asks for earliest only when latest is not below end; earliest is not looked at then.
func OutOfRange(end, latest, earliest int64) (step OutOfRangeStep, to int64) {
	switch {
	case latest < 0:
		return RangeUnknown, NoOffset
	case latest < end:
		return RangeTruncate, latest
	case earliest < 0:
		return RangeUnknown, NoOffset
	case earliest > end:
		return RangeStartOver, earliest
	default:
		return RangeGoOn, end
	}
}
