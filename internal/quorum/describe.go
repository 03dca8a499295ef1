package quorum

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
)

// DescribeQuorum answers who leads, who votes, who watches, and how far each of them is. It may be called
// concurrently; it waits for the owning goroutine.
func (h *Host) DescribeQuorum(ctx context.Context, req *kmsg.DescribeQuorumRequest) (*kmsg.DescribeQuorumResponse, error) {
	resp := req.ResponseKind().(*kmsg.DescribeQuorumResponse)
	places, err := h.voterPlaces(ctx)
	if err != nil {
		return nil, err
	}
	status := h.core.Status()
	// A request is about the one partition and nothing else, or none of it is answered.
	about := len(req.Topics) == 1 && req.Topics[0].Topic == TopicName && len(req.Topics[0].Partitions) == 1 && req.Topics[0].Partitions[0].Partition == 0
	for _, t := range req.Topics {
		topic := kmsg.NewDescribeQuorumResponseTopic()
		topic.Topic = t.Topic
		for _, p := range t.Partitions {
			part := kmsg.NewDescribeQuorumResponseTopicPartition()
			part.Partition = p.Partition
			switch {
			case !about:
				part.ErrorCode = h.core.o.ErrorCode(ErrUnknownTopicOrPartition)
				part.ErrorMessage = message(req.Version, ErrUnknownTopicOrPartition)
			case !status.Leading:
				part.ErrorCode = h.core.o.ErrorCode(ErrNotLeaderOrFollower)
				part.ErrorMessage = message(req.Version, ErrNotLeaderOrFollower)
			default:
				part.LeaderID, part.LeaderEpoch, part.HighWatermark = status.LeaderID, status.LeaderEpoch, status.HighWatermark
				part.CurrentVoters = describeVoters(status, places)
				part.Observers = h.core.observers.list()
				part.ErrorMessage = message(req.Version, nil)
			}
			topic.Partitions = append(topic.Partitions, part)
		}
		resp.Topics = append(resp.Topics, topic)
	}
	resp.ErrorMessage = message(req.Version, nil)
	if req.Version >= 2 && about && status.Leading {
		resp.Nodes = describeNodes(status)
	}
	return resp, nil
}

// message is what goes with an error, from version 2 on; with none it is empty.
func message(version int16, err error) *string {
	var text string
	switch {
	case version < 2:
		return nil
	case err != nil:
		text = err.Error()
	}
	return &text
}

// voterTimes is when a voter answered this leader last, when it last had all that the leader had, and the leader's last
// index at the answer.
type voterTimes struct {
	heard, caughtUp time.Time
	last            uint64
}

// hear notes, on a leader, the answer of a voter: what a fetch is in Kafka.
func (c *Core) hear(m *pb.Message) {
	if t := m.GetType(); t != pb.MsgAppResp && t != pb.MsgHeartbeatResp || !c.node.leading() {
		return
	}
	var has, last uint64
	c.node.raft.WithProgress(func(id uint64, _ raft.ProgressType, p tracker.Progress) {
		switch id {
		case m.GetFrom():
			has = p.Match
		case c.node.id:
			last = p.Match
		}
	})
	now, times := c.o.Now(), c.heard[m.GetFrom()]
	switch {
	case has >= last:
		times.caughtUp = now
	case has >= times.last && !times.heard.IsZero():
		times.caughtUp = times.heard
	}
	times.heard, times.last = now, last
	c.heard[m.GetFrom()] = times
}

// voterPlace is what the leader knows of a voter.
type voterPlace struct {
	end   int64 // of its log, -1 if unknown
	times voterTimes
}

// voterPlaces is what the leader knows of each voter, by raft id.
func (h *Host) voterPlaces(ctx context.Context) (map[uint64]voterPlace, error) {
	found := make(chan map[uint64]voterPlace, 1)
	err := h.post(func() error {
		places := map[uint64]voterPlace{}
		h.core.node.raft.WithProgress(func(id uint64, _ raft.ProgressType, p tracker.Progress) {
			place := voterPlace{end: -1, times: h.core.heard[id]}
			if end, ok := h.core.node.store.runs.offset(p.Match + 1); ok && p.Match > 0 {
				place.end = end
			}
			places[id] = place
		})
		now := h.core.o.Now()
		places[h.core.node.id] = voterPlace{end: h.core.node.store.runs.nextOffs, times: voterTimes{heard: now, caughtUp: now}}
		found <- places
		return nil
	})
	if err != nil {
		return nil, err
	}
	select {
	case places := <-found:
		return places, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-h.done:
		return nil, ErrClosed
	}
}

// describeVoters lists the voters. One that has not answered this leader yet has no times.
func describeVoters(s *Status, places map[uint64]voterPlace) []kmsg.DescribeQuorumResponseTopicPartitionReplicaState {
	var out []kmsg.DescribeQuorumResponseTopicPartitionReplicaState
	for _, v := range s.Voters {
		r := kmsg.NewDescribeQuorumResponseTopicPartitionReplicaState()
		r.ReplicaID, r.ReplicaDirectoryID, r.LogEndOffset = v.VoterID, v.VoterDirectoryID, -1
		r.LastFetchTimestamp, r.LastCaughtUpTimestamp = -1, -1
		if place, ok := places[raftIDOf(v)]; ok {
			r.LogEndOffset = place.end
			r.LastFetchTimestamp, r.LastCaughtUpTimestamp = milliOr(place.times.heard), milliOr(place.times.caughtUp)
		}
		out = append(out, r)
	}
	return out
}

// milliOr is a moment on the wire, -1 for none.
func milliOr(t time.Time) int64 {
	if t.IsZero() {
		return -1
	}
	return t.UnixMilli()
}

func describeNodes(s *Status) []kmsg.DescribeQuorumResponseNode {
	var out []kmsg.DescribeQuorumResponseNode
	for _, v := range s.Voters {
		n := kmsg.NewDescribeQuorumResponseNode()
		n.NodeID = v.VoterID
		for _, e := range v.Endpoints {
			l := kmsg.NewDescribeQuorumResponseNodeListener()
			l.Name, l.Host, l.Port = e.Name, e.Host, e.Port
			n.Listeners = append(n.Listeners, l)
		}
		out = append(out, n)
	}
	return out
}
