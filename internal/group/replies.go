package group

import "github.com/stelelog/stele/internal/shard"

// What all coordinators say alike.
type (
	ReplyTo = shard.ReplyTo
	Reply   = shard.Reply
	// A Response is *JoinReply, *SyncReply, *HeartbeatReply, *LeaveReply, *CommitReply, *FetchReply,
	// *OffsetDeleteReply or *DeleteReply.
	Response = shard.Response
)

// A JoinReply answers JoinGroup. Unless Err is nil, Generation is -1 and all else but MemberID is empty.
type JoinReply struct {
	Err            error
	Generation     int32
	ProtocolType   *string
	Protocol       *string // nil: none (written "" below version 7)
	Leader         string
	SkipAssignment bool
	MemberID       string
	Members        []JoinedMember // for the leader only, in the order in which they came
}

// A JoinedMember is what the leader is told of one member.
type JoinedMember struct {
	MemberID   string
	InstanceID *string
	Metadata   []byte // for the chosen protocol
}

// Failed is err with no member id: whatever id was made did not last.
func (*JoinReply) Failed(err error) Response { return joinError(err, "") }

func joinError(err error, memberID string) *JoinReply {
	return &JoinReply{Err: err, Generation: -1, MemberID: memberID}
}

// A SyncReply answers SyncGroup. Assignment is never nil.
type SyncReply struct {
	Err          error
	ProtocolType *string
	Protocol     *string
	Assignment   []byte
}

// Failed is err with an empty assignment.
func (*SyncReply) Failed(err error) Response { return syncError(err) }

func syncError(err error) *SyncReply { return &SyncReply{Err: err, Assignment: []byte{}} }

// A HeartbeatReply answers Heartbeat.
type HeartbeatReply struct{ Err error }

// Failed is err.
func (*HeartbeatReply) Failed(err error) Response { return &HeartbeatReply{Err: err} }

// A LeaveReply answers LeaveGroup: Err at the top, and for version 3 and up one entry for each member asked
// for, in their order. Below version 3 Members is empty.
type LeaveReply struct {
	Err     error
	Members []LeftMember
}

// A LeftMember is the outcome for one member of a LeaveGroup.
type LeftMember struct {
	MemberID   string
	InstanceID *string
	Err        error
}

// Failed is err at the top.
func (*LeaveReply) Failed(err error) Response { return &LeaveReply{Err: err} }

// A CommitReply answers OffsetCommit and TxnOffsetCommit, with the topics of the request in their order.
type CommitReply struct{ Topics []CommittedTopic }

// A CommittedTopic is the outcome for one topic of a commit.
type CommittedTopic struct {
	Topic      string
	TopicID    [16]byte
	Partitions []PartitionResult
}

// A PartitionResult is the outcome for one partition.
type PartitionResult struct {
	Partition int32
	Err       error
}

// Failed is err in every partition that had not been refused already.
func (r *CommitReply) Failed(err error) Response {
	failed := &CommitReply{Topics: make([]CommittedTopic, len(r.Topics))}
	for i, t := range r.Topics {
		t.Partitions = failedPartitions(t.Partitions, err)
		failed.Topics[i] = t
	}
	return failed
}

func failedPartitions(partitions []PartitionResult, err error) []PartitionResult {
	failed := make([]PartitionResult, len(partitions))
	for i, p := range partitions {
		if p.Err == nil {
			p.Err = err
		}
		failed[i] = p
	}
	return failed
}

// A FetchReply answers OffsetFetch for one group.
type FetchReply struct {
	Group  string
	Err    error
	Topics []FetchedTopic
}

// A FetchedTopic holds the offsets of one topic.
type FetchedTopic struct {
	Topic      string
	TopicID    [16]byte // as it was asked for; for all topics, as it was stored
	Partitions []FetchedPartition
}

// A FetchedPartition is one committed offset. Without one, Offset and LeaderEpoch are -1 and Metadata "",
// as they are on the wire.
type FetchedPartition struct {
	Partition   int32
	Err         error
	Offset      int64
	LeaderEpoch int32
	Metadata    string
}

// Failed is err for the group, and no topics.
func (r *FetchReply) Failed(err error) Response { return &FetchReply{Group: r.Group, Err: err} }

// An OffsetDeleteReply answers OffsetDelete. With Err at the top there are no topics.
type OffsetDeleteReply struct {
	Err    error
	Topics []CommittedTopic
}

// Failed is err at the top.
func (*OffsetDeleteReply) Failed(err error) Response { return &OffsetDeleteReply{Err: err} }

// A DeleteReply answers DeleteGroups for one group.
type DeleteReply struct {
	Group string
	Err   error
}

// Failed is err for the group.
func (r *DeleteReply) Failed(err error) Response { return &DeleteReply{Group: r.Group, Err: err} }
