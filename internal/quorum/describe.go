package quorum

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/tracker"
)

// DescribeQuorum answers who leads, who votes, who watches, and how far each of them is. It may be called
// concurrently; it waits for the owning goroutine.
func (h *Host) DescribeQuorum(ctx context.Context, req *kmsg.DescribeQuorumRequest) (*kmsg.DescribeQuorumResponse, error) {
	resp := req.ResponseKind().(*kmsg.DescribeQuorumResponse)
	ends, err := h.voterEnds(ctx)
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
				part.CurrentVoters = h.describeVoters(status, ends)
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

// voterEnds is the end offset of each voter's log as far as the leader knows it, by raft id.
func (h *Host) voterEnds(ctx context.Context) (map[uint64]int64, error) {
	found := make(chan map[uint64]int64, 1)
	err := h.post(func() error {
		ends := map[uint64]int64{}
		h.core.node.raft.WithProgress(func(id uint64, _ raft.ProgressType, p tracker.Progress) {
			if end, ok := h.core.node.store.runs.offset(p.Match + 1); ok && p.Match > 0 {
				ends[id] = end
			}
		})
		ends[h.core.node.id] = h.core.node.store.runs.nextOffs
		found <- ends
		return nil
	})
	if err != nil {
		return nil, err
	}
	select {
	case ends := <-found:
		return ends, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-h.done:
		return nil, ErrClosed
	}
}

// describeVoters lists the voters. Only of itself does the leader know when it was last caught up: raft keeps no such
// times for the others.
func (h *Host) describeVoters(s *Status, ends map[uint64]int64) []kmsg.DescribeQuorumResponseTopicPartitionReplicaState {
	var out []kmsg.DescribeQuorumResponseTopicPartitionReplicaState
	for _, v := range s.Voters {
		r := kmsg.NewDescribeQuorumResponseTopicPartitionReplicaState()
		r.ReplicaID, r.ReplicaDirectoryID, r.LogEndOffset = v.VoterID, v.VoterDirectoryID, -1
		r.LastFetchTimestamp, r.LastCaughtUpTimestamp = -1, -1
		if end, ok := ends[raftIDOf(v)]; ok {
			r.LogEndOffset = end
		}
		if v.VoterID == s.LeaderID {
			now := h.core.o.Now().UnixMilli()
			r.LastFetchTimestamp, r.LastCaughtUpTimestamp = now, now
		}
		out = append(out, r)
	}
	return out
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
