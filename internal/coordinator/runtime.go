package coordinator

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/group"
	"github.com/stelelog/stele/internal/metadata"
)

// loadingAtOnce is how many shards read their logs at the same time: each holds a
// piece of its log in memory.
const loadingAtOnce = 4

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
	opts  Options
	image atomic.Pointer[metadata.Image] // the one applied last, nil before the first
	slots chan struct{}                  // taken while a shard loads

	mu         sync.RWMutex
	partitions int32 // of __consumer_offsets; 0 while the topic is unknown
	shards     map[int32]*runner
	closed     bool

	waitMu  sync.Mutex
	waiting map[group.ReplyTo]chan group.Response
	lastTo  group.ReplyTo
}

// New makes a runtime without shards.
func New(opts Options) *Runtime {
	if opts.CommitTimeout == 0 {
		opts.CommitTimeout = 5 * time.Second
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	return &Runtime{
		opts: opts, slots: make(chan struct{}, loadingAtOnce), shards: map[int32]*runner{}, waiting: map[group.ReplyTo]chan group.Response{},
	}
}

// SetPartitions says how many partitions __consumer_offsets has.
func (r *Runtime) SetPartitions(n int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.partitions = n
}

// Elected begins to load the shard of a partition that this broker now leads in
// leaderEpoch. An older epoch than the one known, or the same, is ignored; a
// higher one loads the shard again, because another leader may have reigned
// between.
func (r *Runtime) Elected(partition, leaderEpoch int32, p Partition) {
	r.mu.Lock()
	old := r.shards[partition]
	if r.closed || old != nil && old.epoch >= leaderEpoch {
		r.mu.Unlock()
		return
	}
	delete(r.shards, partition)
	r.mu.Unlock()
	if old != nil {
		old.stop()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	r.shards[partition] = r.newRunner(partition, p, leaderEpoch)
}

// Resigned unloads a shard whose leadership ended by leaderEpoch. An epoch that is
// not newer than the one the shard was loaded under is ignored. -1 always unloads:
// the partition is gone.
func (r *Runtime) Resigned(partition, leaderEpoch int32) {
	r.mu.Lock()
	old := r.shards[partition]
	if old == nil || leaderEpoch >= 0 && old.epoch >= leaderEpoch {
		r.mu.Unlock()
		return
	}
	delete(r.shards, partition)
	r.mu.Unlock()
	old.stop()
}

// Close unloads every shard and waits for their goroutines.
func (r *Runtime) Close() {
	r.mu.Lock()
	r.closed = true
	shards := r.shards
	r.shards = map[int32]*runner{}
	r.mu.Unlock()
	for _, shard := range shards {
		shard.cancel()
	}
	for _, shard := range shards {
		<-shard.done
	}
}

// TopicsDeleted removes every group's offsets of topics that are gone. A shard that
// is loading is passed over: it asks itself which topics are gone once it has loaded.
func (r *Runtime) TopicsDeleted(ctx context.Context, topics []group.DeletedTopic) {
	for _, shard := range r.all() {
		_ = shard.enqueue(ctx, func(s *group.Shard, _ time.Time) group.Effects { return s.TopicsDeleted(topics) })
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

// PartitionFor is the partition of __consumer_offsets that a group lives on, and
// false while that topic does not exist.
func (r *Runtime) PartitionFor(groupID string) (int32, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.partitions == 0 {
		return 0, false
	}
	return javaHash(groupID) % r.partitions, true
}

// javaHash is the absolute value of String.hashCode over UTF-16 units, 0 for the
// one int32 that has none: how Kafka spreads groups, so that a log written by one
// is found by the other. (Clearing the sign bit instead sends every group with a
// negative hash elsewhere.)
func javaHash(text string) int32 {
	var h int32
	for _, c := range text {
		if c > 0xffff {
			c -= 0x10000
			h = 31*h + (0xd800 + c>>10)
			c = 0xdc00 + c&0x3ff
		}
		h = 31*h + c
	}
	if h < 0 {
		h = -h
	}
	return max(h, 0)
}

func (r *Runtime) shardOf(groupID string) (*runner, error) {
	partition, ok := r.PartitionFor(groupID)
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.closed {
		return nil, group.ErrCoordinatorNotAvailable
	}
	if shard := r.shards[partition]; ok && shard != nil {
		return shard, nil
	}
	return nil, group.ErrNotCoordinator
}

func (r *Runtime) all() []*runner {
	r.mu.RLock()
	defer r.mu.RUnlock()
	partitions := make([]int32, 0, len(r.shards))
	for partition := range r.shards {
		partitions = append(partitions, partition)
	}
	slices.Sort(partitions)
	shards := make([]*runner, len(partitions))
	for i, partition := range partitions {
		shards[i] = r.shards[partition]
	}
	return shards
}

func (r *Runtime) deliver(to group.ReplyTo, response group.Response) {
	r.waitMu.Lock()
	ch := r.waiting[to]
	delete(r.waiting, to)
	r.waitMu.Unlock()
	if ch != nil {
		ch <- response
	}
}

func (r *Runtime) wait() (group.ReplyTo, chan group.Response) {
	ch := make(chan group.Response, 1)
	r.waitMu.Lock()
	defer r.waitMu.Unlock()
	r.lastTo++
	r.waiting[r.lastTo] = ch
	return r.lastTo, ch
}

func (r *Runtime) forget(to group.ReplyTo) {
	r.waitMu.Lock()
	defer r.waitMu.Unlock()
	delete(r.waiting, to)
}

// ask runs one request on the shard of a group and waits for its reply.
func ask[T group.Response](ctx context.Context, r *Runtime, groupID string, request func(s *group.Shard, now time.Time, to group.ReplyTo) group.Effects) (T, error) {
	return askAndPark[T](ctx, r, groupID, nil, request)
}

// askAndPark is ask for a request whose reply may be long in coming. parked, unless nil, is called, by this goroutine, when
// the shard has taken what it wants of the request and no reply is there yet.
func askAndPark[T group.Response](ctx context.Context, r *Runtime, groupID string, parked func(), request func(s *group.Shard, now time.Time, to group.ReplyTo) group.Effects) (T, error) {
	var none T
	shard, err := r.shardOf(groupID)
	if err != nil {
		return none, err
	}
	to, reply := r.wait()
	defer r.forget(to)
	var taken chan struct{}
	if parked != nil {
		taken = make(chan struct{})
	}
	err = shard.enqueue(ctx, func(s *group.Shard, now time.Time) group.Effects {
		if taken != nil {
			defer close(taken)
		}
		return request(s, now, to)
	})
	if err != nil {
		return none, err
	}
	if taken != nil {
		select {
		case response := <-reply:
			return response.(T), nil
		case <-taken:
			parked()
		case <-ctx.Done():
			return none, ctx.Err()
		case <-shard.done:
		}
	}
	select {
	case response := <-reply:
		return response.(T), nil
	case <-ctx.Done():
		return none, ctx.Err()
	case <-shard.done:
	}
	select {
	case response := <-reply:
		return response.(T), nil
	default:
		return none, group.ErrNotCoordinator
	}
}

// read runs a look at one shard's state, which changes nothing.
func read[T any](ctx context.Context, shard *runner, look func(s *group.Shard, now time.Time) T) (T, error) {
	var none T
	seen := make(chan T, 1)
	err := shard.enqueue(ctx, func(s *group.Shard, now time.Time) group.Effects {
		seen <- look(s, now)
		return group.Effects{}
	})
	if err != nil {
		return none, err
	}
	select {
	case found := <-seen:
		return found, nil
	case <-ctx.Done():
		return none, ctx.Err()
	case <-shard.done:
		return none, group.ErrNotCoordinator
	}
}

// JoinGroup answers one JoinGroup; it may wait for a whole rebalance. parked is called when it begins to wait:
// nothing is kept of the request by then.
func (r *Runtime) JoinGroup(ctx context.Context, client group.RequestContext, req *kmsg.JoinGroupRequest, parked func()) (*group.JoinReply, error) {
	if err := r.opts.Config.ValidateJoin(req); err != nil {
		return &group.JoinReply{Err: err, Generation: -1, MemberID: req.MemberID}, nil
	}
	return askAndPark[*group.JoinReply](ctx, r, req.Group, parked, func(s *group.Shard, now time.Time, to group.ReplyTo) group.Effects {
		return s.JoinGroup(now, to, client, req)
	})
}

// SyncGroup answers one SyncGroup; it may wait for the leader's. parked is called as by JoinGroup.
func (r *Runtime) SyncGroup(ctx context.Context, req *kmsg.SyncGroupRequest, parked func()) (*group.SyncReply, error) {
	return askAndPark[*group.SyncReply](ctx, r, req.Group, parked, func(s *group.Shard, now time.Time, to group.ReplyTo) group.Effects {
		return s.SyncGroup(now, to, req)
	})
}

// Heartbeat answers one Heartbeat.
func (r *Runtime) Heartbeat(ctx context.Context, req *kmsg.HeartbeatRequest) (*group.HeartbeatReply, error) {
	return ask[*group.HeartbeatReply](ctx, r, req.Group, func(s *group.Shard, now time.Time, to group.ReplyTo) group.Effects {
		return s.Heartbeat(now, to, req)
	})
}

// LeaveGroup answers one LeaveGroup.
func (r *Runtime) LeaveGroup(ctx context.Context, req *kmsg.LeaveGroupRequest) (*group.LeaveReply, error) {
	return ask[*group.LeaveReply](ctx, r, req.Group, func(s *group.Shard, now time.Time, to group.ReplyTo) group.Effects {
		return s.LeaveGroup(now, to, req)
	})
}

// OffsetCommit answers one OffsetCommit, once what it stores is committed.
func (r *Runtime) OffsetCommit(ctx context.Context, req *kmsg.OffsetCommitRequest) (*group.CommitReply, error) {
	return ask[*group.CommitReply](ctx, r, req.Group, func(s *group.Shard, now time.Time, to group.ReplyTo) group.Effects {
		return s.OffsetCommit(now, to, req)
	})
}

// OffsetFetch reads committed offsets of one group. With stable it waits for
// commits that are under way, and tells of open transactions.
func (r *Runtime) OffsetFetch(ctx context.Context, req group.FetchRequest, stable bool) (*group.FetchReply, error) {
	if stable {
		return ask[*group.FetchReply](ctx, r, req.Group, func(s *group.Shard, _ time.Time, to group.ReplyTo) group.Effects {
			return s.FetchStable(to, req)
		})
	}
	shard, err := r.shardOf(req.Group)
	if err != nil {
		return nil, err
	}
	return read(ctx, shard, func(s *group.Shard, _ time.Time) *group.FetchReply { return s.FetchCommitted(req) })
}

// OffsetDelete answers one OffsetDelete.
func (r *Runtime) OffsetDelete(ctx context.Context, req *kmsg.OffsetDeleteRequest) (*group.OffsetDeleteReply, error) {
	return ask[*group.OffsetDeleteReply](ctx, r, req.Group, func(s *group.Shard, now time.Time, to group.ReplyTo) group.Effects {
		return s.OffsetDelete(now, to, req)
	})
}

// DescribeGroup shows one group.
func (r *Runtime) DescribeGroup(ctx context.Context, groupID string) (group.DescribedGroup, error) {
	shard, err := r.shardOf(groupID)
	if err != nil {
		return group.DescribedGroup{}, err
	}
	return read(ctx, shard, func(s *group.Shard, now time.Time) group.DescribedGroup { return s.DescribeGroup(now, groupID) })
}

// ListGroups lists the groups of every shard here. A shard that is just leaving
// counts as empty; one that is loading is an error, since the list would be short.
func (r *Runtime) ListGroups(ctx context.Context, states, types []string) ([]group.ListedGroup, error) {
	if r.isClosed() {
		return nil, group.ErrCoordinatorNotAvailable
	}
	var listed []group.ListedGroup
	for _, shard := range r.all() {
		part, err := read(ctx, shard, func(s *group.Shard, now time.Time) []group.ListedGroup { return s.ListGroups(now, states, types) })
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
	for _, shard := range r.all() {
		st, err := read(ctx, shard, func(s *group.Shard, _ time.Time) group.Stats { return s.Stats() })
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

func (r *Runtime) isClosed() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.closed
}

// DeleteGroup deletes one group.
func (r *Runtime) DeleteGroup(ctx context.Context, groupID string) (*group.DeleteReply, error) {
	return ask[*group.DeleteReply](ctx, r, groupID, func(s *group.Shard, now time.Time, to group.ReplyTo) group.Effects {
		return s.DeleteGroup(now, to, groupID)
	})
}
