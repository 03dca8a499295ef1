package replica

import "github.com/stelelog/stele/internal/epoch"

// Timestamps with a meaning of their own in ListOffsets.
const (
	LatestTimestamp                int64 = -1
	EarliestTimestamp              int64 = -2
	MaxTimestamp                   int64 = -3
	EarliestLocalTimestamp         int64 = -4
	LatestTieredTimestamp          int64 = -5
	EarliestPendingUploadTimestamp int64 = -6
)

// SupportedTimestamp says whether ListOffsets of this version defines timestamp.
func SupportedTimestamp(timestamp int64, version int16) bool {
	switch timestamp {
	case LatestTimestamp, EarliestTimestamp:
		return true
	case MaxTimestamp:
		return version >= 7
	case EarliestLocalTimestamp:
		return version >= 8
	case LatestTieredTimestamp:
		return version >= 9
	case EarliestPendingUploadTimestamp:
		return version >= 11
	default:
		return timestamp >= 0
	}
}

// OffsetQuery asks for one offset of a partition.
type OffsetQuery struct {
	Timestamp          int64
	ReplicaID          int32
	CurrentLeaderEpoch int32 // -1: absent
	Isolation          Isolation
}

// TimestampAndOffset is a record found by ListOffsets. An offset that was not found is -1 in all three; a special
// offset has no timestamp; an epoch that is not known is -1, never 0 (KAFKA-20770).
type TimestampAndOffset struct {
	Offset    int64
	Timestamp int64
	Epoch     int32
}

var noTimestampAndOffset = TimestampAndOffset{Offset: NoOffset, Timestamp: -1, Epoch: NoEpoch}

// OffsetSource is what a lookup needs to know of a partition's log.
type OffsetSource struct {
	Positions
	Epochs epoch.Cache
	// Tiered: the partition has a remote tier. HighestRemote is then the last offset in it, inclusive, -1 before the
	// first copy.
	Tiered        bool
	HighestRemote int64
	// ForTime finds the first record at or above the log start with a timestamp not below ts; ForMaxTimestamp the first
	// one with the largest timestamp. Both look at all that is local, visible or not.
	ForTime         func(ts int64) (found TimestampAndOffset, ok bool, err error)
	ForMaxTimestamp func() (found TimestampAndOffset, ok bool, err error)
}

// ListOffset answers q. A consumer asks the leader; DebugConsumerID and FutureReplicaID may ask a follower.
//
// While the high watermark of a new leader has not reached the start of its epoch ("lagging"), every answer to a
// consumer that could be smaller than one given by the leader before is ErrOffsetNotAvailable.
func (r *Role) ListOffset(q OffsetQuery, src OffsetSource) (TimestampAndOffset, error) {
	if err := r.Check(q.CurrentLeaderEpoch, q.CurrentLeaderEpoch != NoEpoch, q.ReplicaID != DebugConsumerID && q.ReplicaID != FutureReplicaID); err != nil {
		return noTimestampAndOffset, err
	}
	lastFetchable := src.End
	lagging := false
	if q.ReplicaID == ConsumerID {
		lagging = r.EpochStart > src.HighWatermark
		lastFetchable = src.HighWatermark
		if q.Isolation == ReadCommitted {
			lastFetchable = src.LastStable
		}
	}

	found, ok := noTimestampAndOffset, false
	var err error
	switch q.Timestamp {
	case LatestTimestamp:
		if lagging {
			return noTimestampAndOffset, ErrOffsetNotAvailable
		}
		if q.ReplicaID == FutureReplicaID && r.Kind != RoleLeader {
			// A follower that has no record of the reign yet ends in an older epoch, and so does its copy.
			return src.special(lastFetchable), nil
		}
		return TimestampAndOffset{Offset: lastFetchable, Timestamp: -1, Epoch: r.LeaderEpoch}, nil
	case EarliestTimestamp:
		return src.earliest(), nil
	case EarliestLocalTimestamp:
		if !src.Tiered {
			return src.earliest(), nil
		}
		return src.special(src.LocalLogStart), nil
	case LatestTieredTimestamp, EarliestPendingUploadTimestamp:
		offset := src.latestTiered()
		if q.Timestamp == EarliestPendingUploadTimestamp {
			offset = src.earliestPendingUpload()
		}
		if offset == NoOffset {
			return noTimestampAndOffset, nil
		}
		found, ok = src.special(offset), true
	case MaxTimestamp:
		found, ok, err = src.ForMaxTimestamp()
	default:
		if q.Timestamp < 0 {
			return noTimestampAndOffset, ErrUnsupportedTimestamp
		}
		found, ok, err = src.ForTime(q.Timestamp)
	}
	switch {
	case err != nil:
		return noTimestampAndOffset, err
	case ok && found.Offset < lastFetchable:
		return found, nil
	case lagging:
		return noTimestampAndOffset, ErrOffsetNotAvailable
	default:
		return noTimestampAndOffset, nil
	}
}

// earliest is the log start, with the first epoch of the cache unless that begins above it.
func (s *OffsetSource) earliest() TimestampAndOffset {
	t := TimestampAndOffset{Offset: s.LogStart, Timestamp: -1, Epoch: NoEpoch}
	if first, ok := s.Epochs.Earliest(); ok && first.StartOffset <= s.LogStart {
		t.Epoch = first.Epoch
	}
	return t
}

// special is an offset that is not that of a found record.
func (s *OffsetSource) special(offset int64) TimestampAndOffset {
	t := TimestampAndOffset{Offset: offset, Timestamp: -1, Epoch: NoEpoch}
	if e, ok := s.Epochs.ForOffset(offset); ok {
		t.Epoch = e
	}
	return t
}

func (s *OffsetSource) latestTiered() int64 {
	if !s.Tiered {
		return NoOffset
	}
	return s.HighestRemote
}

func (s *OffsetSource) earliestPendingUpload() int64 {
	switch {
	case !s.Tiered:
		return NoOffset
	case s.HighestRemote >= 0:
		return max(s.HighestRemote+1, s.LogStart)
	case s.LocalLogStart == s.LogStart:
		return s.LogStart
	default:
		return NoOffset
	}
}
