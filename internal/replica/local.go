package replica

import (
	"context"
	"slices"
	"time"
)

// localWait is how long a fetch of the copy of a partition waits for more.
const localWait = 200 * time.Millisecond

// localLeader is this broker's own replica as what its copy in another directory is fetched from. It answers as another
// broker would, with these differences: it need not lead; there is no broker epoch, and no progress is noted; the epoch at
// the end of a log that does not lead is that of its last record, since a copy ends in it too.
type localLeader struct{ m *Manager }

// Local makes an endpoint of this broker's own replicas, which answers to what the copy of a partition asks.
func (m *Manager) Local() Leader { return localLeader{m} }

func (l localLeader) Close() {}

// Fetch is Leader's.
func (l localLeader) Fetch(ctx context.Context, asked []FollowQuery) ([]Followed, error) {
	most := l.m.moveRate.most(localMaxBytes)
	req := FetchRequest{ReplicaID: FutureReplicaID, ReplicaEpoch: -1, Version: followerFetchVersion, MinBytes: 1, MaxBytes: most, MaxWait: localWait}
	for _, q := range asked {
		req.Partitions = append(req.Partitions, FetchPartition{Topic: q.Topic, TopicID: q.TopicID, Partition: q.Partition, CurrentLeaderEpoch: q.CurrentLeaderEpoch,
			FetchOffset: q.FetchOffset, LastFetchedEpoch: q.LastFetchedEpoch, LogStartOffset: q.LogStart, MaxBytes: most})
	}
	res := l.m.fetch(ctx, req)
	defer res.Release()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	out := make([]Followed, 0, len(res.Partitions))
	for i := range res.Partitions {
		f := &res.Partitions[i]
		a := Followed{TopicID: asked[i].TopicID, Partition: f.Partition, FollowAnswer: FollowAnswer{Err: f.Err, Diverging: f.HasDiverging},
			DivergingEpoch: f.DivergingEpoch, HighWatermark: f.HighWatermark, LogStart: f.LogStartOffset}
		if f.Records.Length > 0 {
			records, err := f.Records.ReadAll(nil)
			if err != nil {
				return nil, err
			}
			a.Records = slices.Clip(records)
		}
		out = append(out, a)
	}
	return out, nil
}

// localMaxBytes is how much is copied at a time.
const localMaxBytes = 1 << 20

// Offset is Leader's.
func (l localLeader) Offset(_ context.Context, q FollowQuery, timestamp int64) (OffsetAndEpoch, error) {
	unknown := OffsetAndEpoch{Offset: NoOffset, Epoch: NoEpoch}
	p, err := l.m.find(q.Topic, q.TopicID, q.Partition)
	if err != nil {
		return unknown, err
	}
	t, err := p.ListOffset(OffsetQuery{Timestamp: timestamp, ReplicaID: FutureReplicaID, CurrentLeaderEpoch: q.CurrentLeaderEpoch})
	return OffsetAndEpoch{Offset: t.Offset, Epoch: t.Epoch}, err
}

// EndOffset is Leader's.
func (l localLeader) EndOffset(_ context.Context, q FollowQuery, epoch int32) (OffsetAndEpoch, error) {
	unknown := OffsetAndEpoch{Offset: NoOffset, Epoch: NoEpoch}
	p, err := l.m.find(q.Topic, q.TopicID, q.Partition)
	if err != nil {
		return unknown, err
	}
	role, v := p.roleAndView()
	defer v.Release()
	if err := role.Check(q.CurrentLeaderEpoch, q.CurrentLeaderEpoch != NoEpoch, false); err != nil || epoch < 0 {
		return unknown, err
	}
	found, end := v.Epochs.EndOffsetFor(epoch, v.EndOffset)
	return OffsetAndEpoch{Offset: end, Epoch: found}, nil
}
