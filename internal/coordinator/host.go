package coordinator

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/replica"
	"github.com/stelelog/stele/internal/shard"
)

// loadingAtOnce is how many shards of a kind read their logs at the same time: each holds a
// piece of its log in memory.
const loadingAtOnce = 4

// machine is a pure shard as its runner drives it; *group.Shard and *txn.Shard are such. R is its kind of record.
type machine[R any] interface {
	Replay(offset, producerID int64, rec R)
	ReplayEndTxn(offset, producerID int64, commit bool)
	Revert(offset int64)
	Committed(hw int64)
	Loaded(now time.Time) shard.Effects[R]
	Unload() shard.Effects[R]
	Finish(now time.Time, id shard.WriteID, err error) shard.Effects[R]
	NextDeadline() (at time.Time, ok bool)
	Tick(now time.Time) shard.Effects[R]
	Release()
}

// kind is what the shards of one internal topic have in common.
type kind[S machine[R], R any] struct {
	topic   string
	make    func() S
	encode  func(R) (key, value []byte, err error)
	decode  func(key, value []byte) (rec R, known bool, err error)
	timeout time.Duration // of a write that is not replicated
	// watch, unless nil, is called when a load begins: seen is then told of every record of the log, and loaded of the
	// end of the load.
	watch func() (seen func(R), loaded func(s S) shard.Effects[R])
	// before, unless nil, is called before each event that the shard is given.
	before func(s S)
	// outcome takes what came of an effect's work beside the shard; nil: there is none.
	outcome func(s S, now time.Time, of any) shard.Effects[R]
	// after, unless nil, is called when the shard has seen how far its log is committed.
	after func(r *runner[S, R])
}

// host holds the shards of those partitions of one internal topic that this broker leads. All methods may be called
// concurrently.
type host[S machine[R], R any] struct {
	kind   kind[S, R]
	logger *slog.Logger
	now    func() time.Time
	image  atomic.Pointer[metadata.Image] // the one applied last, nil before the first
	slots  chan struct{}                  // taken while a shard loads

	mu         sync.RWMutex
	partitions int32 // of the topic; 0 while it is unknown
	shards     map[int32]*runner[S, R]
	closed     bool

	waitMu  sync.Mutex
	waiting map[shard.ReplyTo]chan shard.Response
	lastTo  shard.ReplyTo
}

func newHost[S machine[R], R any](k kind[S, R], logger *slog.Logger, now func() time.Time) *host[S, R] {
	if now == nil {
		now = time.Now
	}
	if logger == nil {
		logger = slog.Default()
	}
	return &host[S, R]{
		kind: k, logger: logger, now: now, slots: make(chan struct{}, loadingAtOnce), shards: map[int32]*runner[S, R]{},
		waiting: map[shard.ReplyTo]chan shard.Response{},
	}
}

// SetPartitions says how many partitions the topic has.
func (h *host[S, R]) SetPartitions(n int32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.partitions = n
}

// Elected begins to load the shard of a partition that this broker now leads in
// leaderEpoch. An older epoch than the one known, or the same, is ignored; a
// higher one loads the shard again, because another leader may have reigned
// between.
func (h *host[S, R]) Elected(partition, leaderEpoch int32, p Partition) {
	h.mu.Lock()
	old := h.shards[partition]
	if h.closed || old != nil && old.epoch >= leaderEpoch {
		h.mu.Unlock()
		return
	}
	delete(h.shards, partition)
	h.mu.Unlock()
	if old != nil {
		old.stop()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	h.shards[partition] = h.newRunner(partition, p, leaderEpoch)
}

// Resigned unloads a shard whose leadership ended by leaderEpoch. An epoch that is
// not newer than the one the shard was loaded under is ignored. -1 always unloads:
// the partition is gone.
func (h *host[S, R]) Resigned(partition, leaderEpoch int32) {
	h.mu.Lock()
	old := h.shards[partition]
	if old == nil || leaderEpoch >= 0 && old.epoch >= leaderEpoch {
		h.mu.Unlock()
		return
	}
	delete(h.shards, partition)
	h.mu.Unlock()
	old.stop()
}

// Close unloads every shard and waits for their goroutines.
func (h *host[S, R]) Close() {
	h.mu.Lock()
	h.closed = true
	shards := h.shards
	h.shards = map[int32]*runner[S, R]{}
	h.mu.Unlock()
	for _, one := range shards {
		one.cancel()
	}
	for _, one := range shards {
		<-one.done
	}
}

// PartitionFor is the partition of the topic that an id lives on, and
// false while that topic does not exist.
func (h *host[S, R]) PartitionFor(id string) (int32, bool) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if h.partitions == 0 {
		return 0, false
	}
	return PartitionOf(id, h.partitions), true
}

// PartitionOf is the partition that an id lives on, of an internal topic with so many. (n is positive.)
func PartitionOf(id string, n int32) int32 { return javaHash(id) % n }

// javaHash is the absolute value of String.hashCode over UTF-16 units, 0 for the
// one int32 that has none: how Kafka spreads groups and transactional ids, so that a log written by one
// is found by the other. (Clearing the sign bit instead sends every id with a
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

func (h *host[S, R]) shardOf(id string) (*runner[S, R], error) {
	partition, ok := h.PartitionFor(id)
	if !ok {
		partition = -1
	}
	return h.shardAt(partition)
}

func (h *host[S, R]) shardAt(partition int32) (*runner[S, R], error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if h.closed {
		return nil, shard.ErrCoordinatorNotAvailable
	}
	if one := h.shards[partition]; one != nil {
		return one, nil
	}
	return nil, shard.ErrNotCoordinator
}

func (h *host[S, R]) all() []*runner[S, R] {
	partitions := h.loaded()
	slices.Sort(partitions)
	shards := make([]*runner[S, R], 0, len(partitions))
	for _, partition := range partitions {
		if one, err := h.shardAt(partition); err == nil {
			shards = append(shards, one)
		}
	}
	return shards
}

func (h *host[S, R]) loaded() []int32 {
	h.mu.RLock()
	defer h.mu.RUnlock()
	partitions := make([]int32, 0, len(h.shards))
	for partition := range h.shards {
		partitions = append(partitions, partition)
	}
	return partitions
}

func (h *host[S, R]) isClosed() bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.closed
}

func (h *host[S, R]) deliver(to shard.ReplyTo, response shard.Response) {
	h.waitMu.Lock()
	ch := h.waiting[to]
	delete(h.waiting, to)
	h.waitMu.Unlock()
	if ch != nil {
		ch <- response
	}
}

func (h *host[S, R]) wait() (shard.ReplyTo, chan shard.Response) {
	ch := make(chan shard.Response, 1)
	h.waitMu.Lock()
	defer h.waitMu.Unlock()
	h.lastTo++
	h.waiting[h.lastTo] = ch
	return h.lastTo, ch
}

func (h *host[S, R]) forget(to shard.ReplyTo) {
	h.waitMu.Lock()
	defer h.waitMu.Unlock()
	delete(h.waiting, to)
}

// ask runs one request on the shard of an id and waits for its reply.
func ask[T shard.Response, S machine[R], R any](ctx context.Context, h *host[S, R], id string, request func(s S, now time.Time, to shard.ReplyTo) shard.Effects[R]) (T, error) {
	return askAndPark[T](ctx, h, id, nil, request)
}

// askAndPark is ask for a request whose reply may be long in coming. parked, unless nil, is called, by this goroutine, when
// the shard has taken what it wants of the request and no reply is there yet.
func askAndPark[T shard.Response, S machine[R], R any](ctx context.Context, h *host[S, R], id string, parked func(), request func(s S, now time.Time, to shard.ReplyTo) shard.Effects[R]) (T, error) {
	var none T
	one, err := h.shardOf(id)
	if err != nil {
		return none, err
	}
	to, reply := h.wait()
	defer h.forget(to)
	var taken chan struct{}
	if parked != nil {
		taken = make(chan struct{})
	}
	err = one.enqueue(ctx, func(r *runner[S, R]) {
		if taken != nil {
			defer close(taken)
		}
		r.absorb(request(r.shard, r.now(), to))
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
		case <-one.done:
		}
	}
	select {
	case response := <-reply:
		return response.(T), nil
	case <-ctx.Done():
		return none, ctx.Err()
	case <-one.done:
	}
	select {
	case response := <-reply:
		return response.(T), nil
	default:
		return none, shard.ErrNotCoordinator
	}
}

// read runs a look at one shard's state, which changes nothing.
func read[T any, S machine[R], R any](ctx context.Context, one *runner[S, R], look func(s S, now time.Time) T) (T, error) {
	var none T
	seen := make(chan T, 1)
	if err := one.enqueue(ctx, func(r *runner[S, R]) { seen <- look(r.shard, r.now()) }); err != nil {
		return none, err
	}
	select {
	case found := <-seen:
		return found, nil
	case <-ctx.Done():
		return none, ctx.Err()
	case <-one.done:
		return none, shard.ErrNotCoordinator
	}
}

// apply loads the shards of partitions that this broker leads now, and unloads those it leads no longer. It returns the
// image that was applied before. See Runtime.Apply.
func (h *host[S, R]) apply(brokerID int32, replicas *replica.Manager, img *metadata.Image, delta *metadata.Delta) (before *metadata.Image) {
	before = h.image.Swap(img)
	if before == nil {
		before = metadata.EmptyImage()
	}
	topic, exists := img.Topic(h.kind.topic)
	if old, existed := before.Topic(h.kind.topic); existed && (!exists || old.ID != topic.ID) {
		// The epochs of a topic made anew begin again: they say nothing to the old shards.
		for _, partition := range h.loaded() {
			h.Resigned(partition, -1)
		}
	}
	if exists {
		h.SetPartitions(int32(topic.NumPartitions()))
	} else {
		h.SetPartitions(0)
	}
	switch {
	case !exists:
	case delta == nil:
		for id := range topic.Partitions().All() {
			h.follow(brokerID, replicas, topic, id)
		}
	default:
		if change := delta.Topics[topic.ID]; change != nil {
			for id := range change.Partitions {
				h.follow(brokerID, replicas, topic, id)
			}
		}
	}
	return before
}

// follow brings one shard in line with the metadata.
func (h *host[S, R]) follow(brokerID int32, replicas *replica.Manager, topic *metadata.Topic, id int32) {
	state, ok := topic.Partition(id)
	if !ok {
		return
	}
	if state.Leader != brokerID {
		h.Resigned(id, state.LeaderEpoch)
		return
	}
	hosted, err := replicas.Partition(h.kind.topic, id)
	if err != nil {
		h.logger.Error("coordinator shard has no log here", "topic", h.kind.topic, "partition", id, "leader_epoch", state.LeaderEpoch, "cause", err)
		h.Resigned(id, -1)
		return
	}
	h.Elected(id, state.LeaderEpoch, replicaPartition{hosted})
}
