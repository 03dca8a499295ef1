package replica

import "time"

// NextHighWatermark is the high watermark a leader may advance to: the least log end among itself, the
// maximal ISR, and followers outside of it that are caught up and could join (waiting for them now lets them
// join at all, since a follower must reach the high watermark to do so). advanced is false when it stays where it
// is; it never goes back. It stands still while the ISR is under min.insync.replicas (KIP-966).
//
// hw and end are the local log's. brokers is not called when there is no follower.
func (s *State) NextHighWatermark(hw, end int64, now time.Time, lag time.Duration, brokers BrokerLookup) (next int64, advanced bool) {
	if s.role.Kind != RoleLeader || s.UnderMinISR() {
		return hw, false
	}
	next = end
	for i := range s.followers {
		f := &s.followers[i]
		if mutantWatermarkEarly && f.End == NoOffset {
			continue
		}
		if f.End < next && (s.inMaximalISR(f.ID) || f.caughtUp(end, now, lag) && s.eligible(f, brokers)) {
			next = f.End
		}
	}
	if next <= hw {
		return hw, false
	}
	return next, true
}

// Alone says that this is a leader without other replicas whose high watermark is where its log ends, as
// NextHighWatermark would have it.
func (s *State) Alone() bool {
	return s.role.Kind == RoleLeader && len(s.followers) == 0 && !s.UnderMinISR()
}

// FollowerHighWatermark is the high watermark a follower takes from its leader's answer, after it has
// appended: the leader's, within the follower's own log. It may go back.
func FollowerHighWatermark(leaderHW int64, pos Positions) int64 {
	return max(pos.LogStart, min(leaderHW, pos.End))
}

// FollowerLogStart is the log start a follower takes from its leader's answer, after its high watermark. ok is
// false when it stays: the leader's is not higher, or lies above this replica's high watermark.
func FollowerLogStart(leaderLogStart int64, pos Positions) (next int64, ok bool) {
	if leaderLogStart <= pos.LogStart && !mutantLogStartBack || leaderLogStart == pos.LogStart || leaderLogStart < 0 || leaderLogStart > pos.HighWatermark {
		return pos.LogStart, false
	}
	return leaderLogStart, true
}

// LowWatermark is the least log start among the leader and its live followers: what DeleteRecords reports.
// known is false while a live follower has not said where its log starts.
func (s *State) LowWatermark(logStart int64, brokers BrokerLookup) (low int64, known bool) {
	low = logStart
	for i := range s.followers {
		f := &s.followers[i]
		if b, ok := brokers(f.ID); !ok || b.Fenced {
			continue
		}
		if f.LogStart == NoOffset {
			return NoOffset, false
		}
		low = min(low, f.LogStart)
	}
	return low, true
}

// CheckAppendAll refuses acks=all when too few replicas are in sync. Nothing may have been written yet.
func (s *State) CheckAppendAll() error {
	if s.UnderMinISR() {
		return ErrNotEnoughReplicas
	}
	return nil
}

// AckedAll says whether an append with acks=all that ended before offset required is acknowledged, at high
// watermark hw. err is ErrNotEnoughReplicasAfterAppend when it was replicated but the in-sync set has become too
// small to promise anything.
func (s *State) AckedAll(required, hw int64) (done bool, err error) {
	if hw < required && !(mutantAcksEarly && s.pending != nil && !s.pending.expand) {
		return false, nil
	}
	if s.maximalISRSize() < s.EffectiveMinISR() {
		return true, ErrNotEnoughReplicasAfterAppend
	}
	return true, nil
}
