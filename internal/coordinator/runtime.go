package coordinator

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/group"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/replica"
)

// GroupTopic is the internal topic that holds groups and committed offsets.
const GroupTopic = "__consumer_offsets"

// Options of a Runtime.
type Options struct {
	Config        group.Config
	CommitTimeout time.Duration // offsets.commit.timeout.ms; zero: 5 s
	Logger        *slog.Logger
	Now           func() time.Time // nil: time.Now
}

// Runtime is this broker's group coordinator: the shards of those partitions of
// __consumer_offsets that it leads. All methods may be called concurrently. A
// request's method returns when its reply may leave; a request whose ctx ends
// first gets no reply, and what it began goes on.
type Runtime struct {
	*host[*group.Shard, group.Record]
	config group.Config
}

// New makes a runtime without shards.
func New(opts Options) *Runtime {
	if opts.CommitTimeout == 0 {
		opts.CommitTimeout = 5 * time.Second
	}
	r := &Runtime{config: opts.Config}
	r.host = newHost(kind[*group.Shard, group.Record]{
		topic: GroupTopic, make: func() *group.Shard { return group.NewShard(opts.Config) },
		encode: group.EncodeRecord, decode: decodeGroupRecord, timeout: opts.CommitTimeout, watch: r.watchLoad,
		before: func(s *group.Shard) {
			if image := r.image.Load(); image != nil {
				s.SetImage(image)
			}
		},
		outcome: func(s *group.Shard, now time.Time, of any) group.Effects {
			return s.RegexesResolved(now, of.(*group.RegexResult))
		},
	}, opts.Logger, opts.Now)
	return r
}

func decodeGroupRecord(key, value []byte) (rec group.Record, known bool, err error) {
	rec, err = group.DecodeRecord(key, value)
	var unknown *group.UnknownRecordTypeError
	if errors.As(err, &unknown) {
		return nil, false, nil
	}
	return rec, true, err
}

// Apply follows the cluster metadata after replicas has taken it over: it loads the
// shards of partitions that this broker leads now, unloads those it leads no
// longer, and removes offsets of deleted topics. delta is what led to img; nil
// makes it compare img with the image applied before. It is called from one
// goroutine.
func (r *Runtime) Apply(brokerID int32, replicas *replica.Manager, img *metadata.Image, delta *metadata.Delta) {
	before := r.apply(brokerID, replicas, img, delta)
	if deleted := deletedTopics(before, img, delta); len(deleted) > 0 {
		r.TopicsDeleted(context.Background(), deleted)
	}
}

func deletedTopics(before, after *metadata.Image, delta *metadata.Delta) []group.DeletedTopic {
	var deleted []group.DeletedTopic
	if delta != nil {
		for id, change := range delta.Topics {
			if change.Removed {
				deleted = append(deleted, group.DeletedTopic{Topic: change.Name, TopicID: id})
			}
		}
		return deleted
	}
	for _, topic := range before.Topics().All() {
		if _, ok := after.TopicByID(topic.ID); !ok {
			deleted = append(deleted, group.DeletedTopic{Topic: topic.Name, TopicID: topic.ID})
		}
	}
	return deleted
}

// storedTopics are the topics that a log holds offsets of, with the ids that the
// offsets were stored under; an id of zero is one that was not known.
type storedTopics map[string][][16]byte

func (t storedTopics) add(topic string, id [16]byte) {
	if ids := t[topic]; !slices.Contains(ids, id) {
		t[topic] = append(ids, id)
	}
}

// watchLoad finds, while a shard loads, the topics that it holds offsets of. From the end of the load on deletions
// of topics are told; those that came earlier show in the metadata.
func (r *Runtime) watchLoad() (seen func(group.Record), loaded func(*group.Shard) group.Effects) {
	stored := storedTopics{}
	return func(rec group.Record) {
			if commit, ok := rec.(*group.OffsetCommitRecord); ok && commit.Value != nil {
				stored.add(commit.Topic, commit.Value.TopicID)
			}
		}, func(s *group.Shard) group.Effects {
			if gone := r.gone(stored); len(gone) > 0 {
				return s.TopicsDeleted(gone)
			}
			return group.Effects{}
		}
}

// TopicsDeleted removes every group's offsets of topics that are gone. A shard that
// is loading is passed over: it asks itself which topics are gone once it has loaded.
func (r *Runtime) TopicsDeleted(ctx context.Context, topics []group.DeletedTopic) {
	for _, one := range r.all() {
		_ = one.enqueue(ctx, func(r *runner[*group.Shard, group.Record]) { r.absorb(r.shard.TopicsDeleted(topics)) })
	}
}

// gone are those of the topics whose offsets were stored before they were deleted:
// while no shard was there to be told. Every offset in a log was committed for a topic
// that its leader knew, so before this broker was elected by the same metadata: what
// the image of the election does not have is not younger, but deleted.
func (r *Runtime) gone(stored storedTopics) []group.DeletedTopic {
	image := r.image.Load()
	if image == nil {
		return nil
	}
	var deleted []group.DeletedTopic
	for name, ids := range stored {
		topic, exists := image.Topic(name)
		for _, id := range ids {
			if !exists || id != [16]byte{} && id != [16]byte(topic.ID) {
				deleted = append(deleted, group.DeletedTopic{Topic: name, TopicID: id})
			}
		}
	}
	return deleted
}

// JoinGroup answers one JoinGroup; it may wait for a whole rebalance. parked is called when it begins to wait:
// nothing is kept of the request by then.
func (r *Runtime) JoinGroup(ctx context.Context, client group.RequestContext, req *kmsg.JoinGroupRequest, parked func()) (*group.JoinReply, error) {
	if err := r.config.ValidateJoin(req); err != nil {
		return &group.JoinReply{Err: err, Generation: -1, MemberID: req.MemberID}, nil
	}
	return askAndPark[*group.JoinReply](ctx, r.host, req.Group, parked, func(s *group.Shard, now time.Time, to group.ReplyTo) group.Effects {
		return s.JoinGroup(now, to, client, req)
	})
}

// SyncGroup answers one SyncGroup; it may wait for the leader's. parked is called as by JoinGroup.
func (r *Runtime) SyncGroup(ctx context.Context, req *kmsg.SyncGroupRequest, parked func()) (*group.SyncReply, error) {
	return askAndPark[*group.SyncReply](ctx, r.host, req.Group, parked, func(s *group.Shard, now time.Time, to group.ReplyTo) group.Effects {
		return s.SyncGroup(now, to, req)
	})
}

// Heartbeat answers one Heartbeat.
func (r *Runtime) Heartbeat(ctx context.Context, req *kmsg.HeartbeatRequest) (*group.HeartbeatReply, error) {
	return ask[*group.HeartbeatReply](ctx, r.host, req.Group, func(s *group.Shard, now time.Time, to group.ReplyTo) group.Effects {
		return s.Heartbeat(now, to, req)
	})
}

// LeaveGroup answers one LeaveGroup.
func (r *Runtime) LeaveGroup(ctx context.Context, req *kmsg.LeaveGroupRequest) (*group.LeaveReply, error) {
	return ask[*group.LeaveReply](ctx, r.host, req.Group, func(s *group.Shard, now time.Time, to group.ReplyTo) group.Effects {
		return s.LeaveGroup(now, to, req)
	})
}

// ConsumerGroupHeartbeat answers one ConsumerGroupHeartbeat.
func (r *Runtime) ConsumerGroupHeartbeat(ctx context.Context, client group.RequestContext, req *kmsg.ConsumerGroupHeartbeatRequest) (*group.ConsumerHeartbeatReply, error) {
	if err := r.config.ValidateConsumerHeartbeat(req); err != nil {
		return &group.ConsumerHeartbeatReply{Err: err}, nil
	}
	return ask[*group.ConsumerHeartbeatReply](ctx, r.host, req.Group, func(s *group.Shard, now time.Time, to group.ReplyTo) group.Effects {
		return s.ConsumerGroupHeartbeat(now, to, client, req)
	})
}

// DescribeConsumerGroup shows one group of the consumer protocol.
func (r *Runtime) DescribeConsumerGroup(ctx context.Context, groupID string) (group.DescribedConsumerGroup, error) {
	one, err := r.shardOf(groupID)
	if err != nil {
		return group.DescribedConsumerGroup{}, err
	}
	return read(ctx, one, func(s *group.Shard, _ time.Time) group.DescribedConsumerGroup {
		return s.DescribeConsumerGroup(groupID)
	})
}

// OffsetCommit answers one OffsetCommit, once what it stores is committed.
func (r *Runtime) OffsetCommit(ctx context.Context, req *kmsg.OffsetCommitRequest) (*group.CommitReply, error) {
	return ask[*group.CommitReply](ctx, r.host, req.Group, func(s *group.Shard, now time.Time, to group.ReplyTo) group.Effects {
		return s.OffsetCommit(now, to, req)
	})
}

// OffsetFetch reads committed offsets of one group. With stable it waits for
// commits that are under way, and tells of open transactions.
func (r *Runtime) OffsetFetch(ctx context.Context, req group.FetchRequest, stable bool) (*group.FetchReply, error) {
	if stable {
		return ask[*group.FetchReply](ctx, r.host, req.Group, func(s *group.Shard, _ time.Time, to group.ReplyTo) group.Effects {
			return s.FetchStable(to, req)
		})
	}
	one, err := r.shardOf(req.Group)
	if err != nil {
		return nil, err
	}
	return read(ctx, one, func(s *group.Shard, _ time.Time) *group.FetchReply { return s.FetchCommitted(req) })
}

// OffsetDelete answers one OffsetDelete.
func (r *Runtime) OffsetDelete(ctx context.Context, req *kmsg.OffsetDeleteRequest) (*group.OffsetDeleteReply, error) {
	return ask[*group.OffsetDeleteReply](ctx, r.host, req.Group, func(s *group.Shard, now time.Time, to group.ReplyTo) group.Effects {
		return s.OffsetDelete(now, to, req)
	})
}

// DescribeGroup shows one group.
func (r *Runtime) DescribeGroup(ctx context.Context, groupID string) (group.DescribedGroup, error) {
	one, err := r.shardOf(groupID)
	if err != nil {
		return group.DescribedGroup{}, err
	}
	return read(ctx, one, func(s *group.Shard, now time.Time) group.DescribedGroup { return s.DescribeGroup(now, groupID) })
}

// ListGroups lists the groups of every shard here. A shard that is just leaving
// counts as empty; one that is loading is an error, since the list would be short.
func (r *Runtime) ListGroups(ctx context.Context, states, types []string) ([]group.ListedGroup, error) {
	if r.isClosed() {
		return nil, group.ErrCoordinatorNotAvailable
	}
	var listed []group.ListedGroup
	for _, one := range r.all() {
		part, err := read(ctx, one, func(s *group.Shard, now time.Time) []group.ListedGroup { return s.ListGroups(now, states, types) })
		switch {
		case err == nil:
			listed = append(listed, part...)
		case errors.Is(err, group.ErrNotCoordinator):
		default:
			return nil, err
		}
	}
	return listed, nil
}

// Stats counts what the shards here hold; those that load or leave are left out.
func (r *Runtime) Stats(ctx context.Context) (sum group.Stats, loaded int) {
	sum.Groups = map[string]int{}
	for _, one := range r.all() {
		st, err := read(ctx, one, func(s *group.Shard, _ time.Time) group.Stats { return s.Stats() })
		if err != nil {
			continue
		}
		loaded++
		for state, n := range st.Groups {
			sum.Groups[state] += n
		}
		sum.Members += st.Members
		sum.Offsets += st.Offsets
	}
	return sum, loaded
}

// DeleteGroup deletes one group.
func (r *Runtime) DeleteGroup(ctx context.Context, groupID string) (*group.DeleteReply, error) {
	return ask[*group.DeleteReply](ctx, r.host, groupID, func(s *group.Shard, now time.Time, to group.ReplyTo) group.Effects {
		return s.DeleteGroup(now, to, groupID)
	})
}
