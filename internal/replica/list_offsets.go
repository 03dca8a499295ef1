package replica

import (
	"github.com/stelelog/stele/internal/log"
)

// ListOffsetsPartition asks for one offset.
type ListOffsetsPartition struct {
	Topic              string
	Partition          int32
	CurrentLeaderEpoch int32 // -1: absent
	Timestamp          int64
}

// ListOffsetsRequest asks for offsets by time, or for special ones.
type ListOffsetsRequest struct {
	ReplicaID  int32
	Isolation  Isolation
	Version    int16
	Partitions []ListOffsetsPartition
}

// ListedOffset is the answer for one partition; all -1 beside an error.
type ListedOffset struct {
	Topic     string
	Partition int32
	TimestampAndOffset
	Err error
}

// topicPartition names a partition.
type topicPartition struct {
	topic     string
	partition int32
}

// ListOffsets answers in the order of the request. A partition named twice is refused in every copy.
func (m *Manager) ListOffsets(req ListOffsetsRequest) []ListedOffset {
	named := make(map[topicPartition]int, len(req.Partitions))
	for i := range req.Partitions {
		named[topicPartition{req.Partitions[i].Topic, req.Partitions[i].Partition}]++
	}
	out := make([]ListedOffset, len(req.Partitions))
	for i := range req.Partitions {
		in := &req.Partitions[i]
		out[i] = ListedOffset{Topic: in.Topic, Partition: in.Partition, TimestampAndOffset: noTimestampAndOffset}
		switch {
		case named[topicPartition{in.Topic, in.Partition}] > 1:
			out[i].Err = ErrDuplicatePartition
		case !SupportedTimestamp(in.Timestamp, req.Version):
			out[i].Err = ErrUnsupportedTimestamp
		default:
			p, err := m.Partition(in.Topic, in.Partition)
			if err == nil {
				q := OffsetQuery{Timestamp: in.Timestamp, ReplicaID: req.ReplicaID, CurrentLeaderEpoch: in.CurrentLeaderEpoch, Isolation: req.Isolation}
				out[i].TimestampAndOffset, err = p.ListOffset(q)
				m.tellEpoch("ListOffsets", req.ReplicaID, err)
			}
			out[i].Err = err
		}
	}
	return out
}

// ListOffset answers one question about offsets.
func (p *Partition) ListOffset(q OffsetQuery) (TimestampAndOffset, error) {
	if err := p.Err(); err != nil {
		return noTimestampAndOffset, err
	}
	role, v := p.roleAndView()
	defer v.Release()
	// The lookups see all that is local; what of it may be shown is decided after.
	found := func(f log.Found, ok bool, err error) (TimestampAndOffset, bool, error) {
		return TimestampAndOffset{Offset: f.Offset, Timestamp: f.Timestamp, Epoch: f.Epoch}, ok, err
	}
	t, err := role.ListOffset(q, OffsetSource{
		Positions: positionsOf(v), Epochs: v.Epochs, HighestRemote: NoOffset,
		ForTime:         func(ts int64) (TimestampAndOffset, bool, error) { return found(v.OffsetForTime(ts, v.EndOffset)) },
		ForMaxTimestamp: func() (TimestampAndOffset, bool, error) { return found(v.MaxTimestamp(v.EndOffset)) },
	})
	if err != nil {
		return noTimestampAndOffset, p.failedIO(err)
	}
	return t, nil
}

// EpochQuery asks where a leader epoch ends.
type EpochQuery struct {
	Topic              string
	Partition          int32
	CurrentLeaderEpoch int32 // -1: absent
	LeaderEpoch        int32
}

// EpochEnd is the answer: the greatest epoch known that is not above the one asked for, and its end offset. Both are -1
// when unknown, and beside an error.
type EpochEnd struct {
	Topic     string
	Partition int32
	OffsetAndEpoch
	Err error
}

// OffsetForLeaderEpoch answers in the order of the request.
func (m *Manager) OffsetForLeaderEpoch(queries []EpochQuery) []EpochEnd {
	out := make([]EpochEnd, len(queries))
	for i := range queries {
		q := &queries[i]
		out[i] = EpochEnd{Topic: q.Topic, Partition: q.Partition, OffsetAndEpoch: OffsetAndEpoch{Offset: NoOffset, Epoch: NoEpoch}}
		p, err := m.Partition(q.Topic, q.Partition)
		if err == nil {
			out[i].OffsetAndEpoch, err = p.OffsetForLeaderEpoch(q.CurrentLeaderEpoch, q.LeaderEpoch)
			m.tellEpoch("OffsetForLeaderEpoch", ConsumerID, err)
		}
		out[i].Err = err
	}
	return out
}

// OffsetForLeaderEpoch says where epoch asked ends in this leader's log; current is the epoch the asker believes in.
func (p *Partition) OffsetForLeaderEpoch(current, asked int32) (OffsetAndEpoch, error) {
	if err := p.Err(); err != nil {
		return OffsetAndEpoch{Offset: NoOffset, Epoch: NoEpoch}, err
	}
	role, v := p.roleAndView()
	defer v.Release()
	return role.EndOffsetForEpoch(current, asked, positionsOf(v), v.Epochs)
}
