package quorum

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/stelelog/stele/internal/epoch"
	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/vfs"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// observerExpiry is how long a silent observer stays in DescribeQuorum's list.
const observerExpiry = 5 * time.Minute

// maxObservers bounds the list: who asks says himself who he is, as often and as differently as he likes.
const maxObservers = 10_000

// maxFetchBytes bounds one answer, whatever the request allows.
const maxFetchBytes = 8 << 20

// observers answers those who follow the metadata log without a vote: Fetch and FetchSnapshot of
// __cluster_metadata-0. They see committed batches only, so the log ends for them at the high watermark and none ever
// has to truncate. All methods may be called concurrently.
type observers struct {
	clusterID string
	nodeID    int32
	fs        vfs.FS
	dir       string
	log       *log.Log
	board     *statusBoard
	now       func() time.Time
	code      func(error) int16

	mu   sync.Mutex
	seen map[observerKey]observer
}

type observerKey struct {
	id        int32
	directory metadata.UUID
}

// observer is what one observer's fetches showed.
type observer struct {
	fetchOffset  int64
	endAtFetch   int64
	lastFetch    time.Time
	lastCaughtUp time.Time
}

// fetchPoint is where a fetcher's log ends.
type fetchPoint struct {
	Offset int64
	Epoch  int32
}

// logShape is what decides how a fetch is answered.
type logShape struct {
	logStart, end int64 // end is what fetchers may see: the high watermark
	epochs        epoch.Cache
	snapshots     []SnapshotID // oldest first
}

// verdict is the kind of answer: a snapshot to fetch instead, where the fetcher's log diverges, or else records.
type verdict struct {
	snapshot  *SnapshotID
	diverging *fetchPoint
}

// judge compares a fetcher's log with this one. The first rule that fits decides.
func (s logShape) judge(at fetchPoint) verdict {
	if n := len(s.snapshots); n > 0 {
		oldest, newest := s.snapshots[0], s.snapshots[n-1]
		switch {
		case at.Offset == 0,
			at.Offset < s.logStart,
			at.Offset == s.logStart && s.logStart > 0 && at.Epoch != oldest.Epoch,
			at.Epoch < oldest.Epoch:
			return verdict{snapshot: &newest}
		case at.Offset == oldest.EndOffset && at.Epoch == oldest.Epoch:
			return verdict{} // the log need not hold a batch of that epoch any more
		}
	}
	if at.Offset == 0 && s.logStart == 0 {
		return verdict{}
	}
	e, end := s.epochs.EndOffsetFor(at.Epoch, s.end)
	if e < 0 {
		// An epoch of which nothing is committed here: all the fetcher has of it diverges.
		e, end = 0, s.end
		if latest, ok := s.epochs.ForOffset(max(s.end-1, 0)); ok {
			e = latest
		}
	}
	end = min(end, s.end)
	if e != at.Epoch || at.Offset > end {
		return verdict{diverging: &fetchPoint{Offset: end, Epoch: e}}
	}
	return verdict{}
}

// fetch answers a Fetch of the metadata log that came in on the named listener. It waits as the request says, and
// for nothing once ctx is done.
func (o *observers) fetch(ctx context.Context, req *kmsg.FetchRequest, listener string) *kmsg.FetchResponse {
	resp := req.ResponseKind().(*kmsg.FetchResponse)
	if req.ClusterID != nil && *req.ClusterID != o.clusterID {
		resp.ErrorCode = o.code(ErrInconsistentClusterID)
		return resp
	}
	if len(req.Topics) != 1 || len(req.Topics[0].Partitions) != 1 || !ours(req.Version, &req.Topics[0]) {
		resp.ErrorCode = o.code(ErrInvalidRequest)
		return resp
	}
	answer := kmsg.NewFetchResponseTopicPartition()
	status := o.waitAndRead(ctx, req, &answer)
	o.leader(status, &answer.CurrentLeader.LeaderID, &answer.CurrentLeader.LeaderEpoch)
	if e, ok := o.leaderEndpoint(status, listener); ok && req.Version >= 17 {
		b := kmsg.NewFetchResponseBroker()
		b.NodeID, b.Host, b.Port = status.LeaderID, e.Host, int32(e.Port)
		resp.Brokers = append(resp.Brokers, b)
	}
	topic := kmsg.NewFetchResponseTopic()
	topic.Topic, topic.TopicID = req.Topics[0].Topic, req.Topics[0].TopicID
	topic.Partitions = append(topic.Partitions, answer)
	resp.Topics = append(resp.Topics, topic)
	return resp
}

// ours says whether a fetch names the metadata log: by name up to version 12, by id from 13 on.
func ours(version int16, t *kmsg.FetchRequestTopic) bool {
	if version >= 13 {
		return t.TopicID == TopicID && t.Partitions[0].Partition == 0
	}
	return t.Topic == TopicName && t.Partitions[0].Partition == 0
}

// waitAndRead fills the partition's answer and returns the status it was made under.
func (o *observers) waitAndRead(ctx context.Context, req *kmsg.FetchRequest, answer *kmsg.FetchResponseTopicPartition) *Status {
	part := &req.Topics[0].Partitions[0]
	at := fetchPoint{Offset: part.FetchOffset, Epoch: part.LastFetchedEpoch}
	view := o.log.View()
	answer.HighWatermark, answer.LastStableOffset, answer.LogStartOffset = -1, -1, view.LogStartOffset
	view.Release()
	if req.MaxWaitMillis < 0 || at.Offset < 0 || at.Epoch < 0 || at.Epoch > part.CurrentLeaderEpoch {
		answer.ErrorCode = o.code(ErrInvalidRequest)
		return o.board.get()
	}
	timeout := time.NewTimer(time.Duration(req.MaxWaitMillis) * time.Millisecond)
	defer timeout.Stop()
	for waited := false; ; waited = true {
		status := o.board.get()
		err := status.checkEpoch(part.CurrentLeaderEpoch)
		var fenced *FencedLeaderEpochError
		if waited && errors.As(err, &fenced) {
			err = ErrNotLeaderOrFollower // the leadership it was waiting for is over
		}
		if err != nil {
			answer.ErrorCode = o.code(err)
			return status
		}
		if !waited {
			o.note(req, at.Offset, status)
		}
		done, err := o.read(req, at, status, answer)
		if err != nil {
			answer.ErrorCode = o.code(err)
			return status
		}
		if done || req.MaxWaitMillis == 0 || status.HighWatermark > part.HighWatermark {
			return status
		}
		select {
		case <-status.Changed():
		case <-timeout.C:
			return status
		case <-ctx.Done():
			return status
		}
	}
}

// read fills the answer with what there is now; done says that it is worth sending.
func (o *observers) read(req *kmsg.FetchRequest, at fetchPoint, status *Status, answer *kmsg.FetchResponseTopicPartition) (done bool, err error) {
	view := o.log.View()
	defer view.Release()
	end := max(status.HighWatermark, view.LogStartOffset)
	answer.HighWatermark, answer.LogStartOffset = status.HighWatermark, view.LogStartOffset
	answer.LastStableOffset = status.HighWatermark
	if status.HighWatermark < 0 {
		return false, nil
	}
	shape := logShape{logStart: view.LogStartOffset, end: end, epochs: view.Epochs, snapshots: status.snapshots}
	switch v := shape.judge(at); {
	case v.snapshot != nil:
		answer.SnapshotID.EndOffset, answer.SnapshotID.Epoch = v.snapshot.EndOffset, v.snapshot.Epoch
		return true, nil
	case v.diverging != nil:
		answer.DivergingEpoch.EndOffset, answer.DivergingEpoch.Epoch = v.diverging.Offset, v.diverging.Epoch
		return true, nil
	case at.Offset >= end:
		return false, nil
	}
	data, err := view.Read(at.Offset, end, int(min(max(req.MaxBytes, 0), maxFetchBytes)), true)
	if err != nil {
		return false, err
	}
	answer.RecordBatches, err = readData(data)
	return len(answer.RecordBatches) > 0, err
}

// leader fills in who leads, as every answer says.
func (o *observers) leader(s *Status, id, epoch *int32) { *id, *epoch = s.LeaderID, s.LeaderEpoch }

func (o *observers) leaderEndpoint(s *Status, listener string) (metadata.VoterEndpoint, bool) {
	v, ok := s.voter(s.LeaderID)
	if !ok {
		return metadata.VoterEndpoint{}, false
	}
	return endpointOf(v, listener)
}

// note keeps the observer's place for DescribeQuorum. Voters and askers without an id are not listed.
func (o *observers) note(req *kmsg.FetchRequest, offset int64, status *Status) {
	key := observerKey{id: req.ReplicaID, directory: req.Topics[0].Partitions[0].ReplicaDirectoryID}
	if req.Version >= 15 {
		key.id = req.ReplicaState.ID
	}
	if key.id < 0 {
		return
	}
	if v, ok := status.voter(key.id); ok && (key.directory == metadata.UUID{} || v.VoterDirectoryID == key.directory) {
		return
	}
	now := o.now()
	o.mu.Lock()
	defer o.mu.Unlock()
	seen, known := o.seen[key]
	if !known && len(o.seen) >= maxObservers {
		o.expire(now)
		if len(o.seen) >= maxObservers {
			return
		}
	}
	switch {
	case offset >= status.HighWatermark:
		seen.lastCaughtUp = now
	case offset >= seen.endAtFetch && !seen.lastFetch.IsZero():
		seen.lastCaughtUp = seen.lastFetch
	}
	seen.fetchOffset, seen.endAtFetch, seen.lastFetch = offset, status.HighWatermark, now
	o.seen[key] = seen
}

// list is the observers that fetched lately, by node id. A leader that is new has not heard of any.
func (o *observers) list() []kmsg.DescribeQuorumResponseTopicPartitionReplicaState {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.expire(o.now())
	var out []kmsg.DescribeQuorumResponseTopicPartitionReplicaState
	for key, seen := range o.seen {
		r := kmsg.NewDescribeQuorumResponseTopicPartitionReplicaState()
		r.ReplicaID, r.ReplicaDirectoryID, r.LogEndOffset = key.id, key.directory, seen.fetchOffset
		r.LastFetchTimestamp, r.LastCaughtUpTimestamp = seen.lastFetch.UnixMilli(), -1
		if !seen.lastCaughtUp.IsZero() {
			r.LastCaughtUpTimestamp = seen.lastCaughtUp.UnixMilli()
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b kmsg.DescribeQuorumResponseTopicPartitionReplicaState) int {
		return int(a.ReplicaID) - int(b.ReplicaID)
	})
	return out
}

// expire drops the observers that have been silent. mu is held.
func (o *observers) expire(now time.Time) {
	for key, seen := range o.seen {
		if now.Sub(seen.lastFetch) > observerExpiry {
			delete(o.seen, key)
		}
	}
}

// forget drops the list, when leadership is won or lost.
func (o *observers) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.seen)
}

// fetchSnapshot answers a FetchSnapshot that came in on the named listener.
func (o *observers) fetchSnapshot(req *kmsg.FetchSnapshotRequest, listener string) *kmsg.FetchSnapshotResponse {
	resp := req.ResponseKind().(*kmsg.FetchSnapshotResponse)
	if req.ClusterID != nil && *req.ClusterID != o.clusterID {
		resp.ErrorCode = o.code(ErrInconsistentClusterID)
		return resp
	}
	if len(req.Topics) != 1 || len(req.Topics[0].Partitions) != 1 {
		resp.ErrorCode = o.code(ErrInvalidRequest)
		return resp
	}
	part := &req.Topics[0].Partitions[0]
	status := o.board.get()
	answer := kmsg.NewFetchSnapshotResponseTopicPartition()
	answer.Partition = part.Partition
	answer.SnapshotID.EndOffset, answer.SnapshotID.Epoch = part.SnapshotID.EndOffset, part.SnapshotID.Epoch
	o.leader(status, &answer.CurrentLeader.LeaderID, &answer.CurrentLeader.LeaderEpoch)
	if err := o.readSnapshot(req, part, status, &answer); err != nil {
		answer.ErrorCode = o.code(err)
	}
	if e, ok := o.leaderEndpoint(status, listener); ok && req.Version >= 1 {
		n := kmsg.NewFetchSnapshotResponseNodeEndpoint()
		n.NodeID, n.Host, n.Port = status.LeaderID, e.Host, e.Port
		resp.NodeEndpoints = append(resp.NodeEndpoints, n)
	}
	topic := kmsg.NewFetchSnapshotResponseTopic()
	topic.Topic = req.Topics[0].Topic
	topic.Partitions = append(topic.Partitions, answer)
	resp.Topics = append(resp.Topics, topic)
	return resp
}

func (o *observers) readSnapshot(req *kmsg.FetchSnapshotRequest, part *kmsg.FetchSnapshotRequestTopicPartition, status *Status, answer *kmsg.FetchSnapshotResponseTopicPartition) error {
	if req.Topics[0].Topic != TopicName || part.Partition != 0 {
		return ErrUnknownTopicOrPartition
	}
	if err := status.checkEpoch(part.CurrentLeaderEpoch); err != nil {
		return err
	}
	id := SnapshotID{EndOffset: part.SnapshotID.EndOffset, Epoch: part.SnapshotID.Epoch}
	if !slices.Contains(status.snapshots, id) {
		return ErrSnapshotNotFound
	}
	f, err := o.fs.OpenFile(filepath.Join(o.dir, id.file()), os.O_RDONLY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return ErrSnapshotNotFound // retired just now
	}
	if err != nil {
		return err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return err
	}
	if part.Position < 0 || part.Position >= size {
		return ErrPositionOutOfRange
	}
	answer.Size, answer.Position = size, part.Position
	answer.Bytes = make([]byte, min(int64(min(max(req.MaxBytes, 0), maxFetchBytes)), size-part.Position))
	if n, err := f.ReadAt(answer.Bytes, part.Position); n < len(answer.Bytes) {
		return errors.Join(err, io.ErrUnexpectedEOF)
	}
	return nil
}
