package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/group"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/replica"
)

// truncate cuts what is above the high watermark, as a leader elsewhere may have
// it done before this broker leads again.
func (p *memoryPartition) truncate(rng *rand.Rand) {
	p.mu.Lock()
	defer p.mu.Unlock()
	above := 0
	for above < len(p.batches) && p.batches[len(p.batches)-1-above].LastOffset() >= p.hw {
		above++
	}
	for range rng.IntN(above + 1) {
		last := len(p.batches) - 1
		p.end = p.batches[last].BaseOffset()
		p.batches = p.batches[:last]
	}
}

// stranger appends one commit as another leader would.
func (p *memoryPartition) stranger(t *testing.T, offset int64) {
	t.Helper()
	b := record.NewBuilder(record.BuilderOptions{})
	key, value, err := group.EncodeRecord(&group.OffsetCommitRecord{Group: "stranger", Topic: "t", Value: &group.OffsetCommitValue{Offset: offset, LeaderEpoch: 1, ExpireTimestamp: -1}})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Append(1, key, value, nil); err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse == nil {
		p.appendLocked(b.Bytes(), 1)
	}
}

// Under failing appends, a high watermark that stands still, leaders that come and
// go and logs that are cut above the high watermark, every request is answered once,
// with an error that clients know, and what was acknowledged is there after a load.
func TestEveryRequestIsAnsweredAndAcknowledgedOffsetsStay(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { synctest.Test(t, func(t *testing.T) { stress(t, seed) }) })
	}
}

func stress(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	p := newMemoryPartition()
	p.limit = 2000 // a few commits fill a batch
	r := newTestRuntime(p)
	defer r.Close()
	synctest.Wait()

	stop := make(chan struct{})
	stopped := func() bool {
		select {
		case <-stop:
			return true
		default:
			return false
		}
	}
	var clients sync.WaitGroup
	// Each commit is to a partition of its own, so that a later one does not hide that it is gone.
	acknowledged := make([][]int32, 16)
	for i := range acknowledged {
		wait := rand.New(rand.NewPCG(seed, uint64(100+i)))
		clients.Go(func() {
			for n := int32(0); !stopped(); n++ {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+wait.IntN(20))*time.Second)
				reply, err := r.OffsetCommit(ctx, commitOf(fmt.Sprintf("g%d", i), n, int64(n), 1))
				cancel()
				switch {
				case err == nil && commitError(reply) == nil:
					acknowledged[i] = append(acknowledged[i], n)
				case err == nil:
					err = commitError(reply)
					fallthrough
				default:
					checkRetriable(t, err)
				}
				time.Sleep(time.Duration(10+wait.IntN(40)) * time.Millisecond) // house:allow sleep: the time of a synctest bubble
			}
		})
	}
	for i := range 6 {
		clients.Go(func() { member(t, r, fmt.Sprintf("m%d", i%2), stopped) })
	}

	epoch := int32(0)
	for range 120 {
		time.Sleep(time.Duration(rng.IntN(200)) * time.Millisecond) // house:allow sleep: the time of a synctest bubble
		switch rng.IntN(12) {
		case 0:
			p.fail(errNotEnough)
		case 1:
			p.fail(replica.ErrNotLeaderOrFollower)
		case 2, 3, 4:
			p.fail(nil)
		case 5:
			p.hold()
		case 6, 7:
			p.release()
		case 8:
			epoch++
			r.Resigned(0, epoch)
			p.truncate(rng)
		case 9, 10:
			epoch++
			r.Elected(0, epoch, p)
		case 11:
			p.stranger(t, int64(epoch))
		}
	}
	close(stop)
	p.fail(nil)
	p.release()
	clients.Wait()
	r.waitMu.Lock()
	waiting := len(r.waiting)
	r.waitMu.Unlock()
	if waiting != 0 {
		t.Errorf("%d requests are still waited for", waiting)
	}

	epoch++
	r.Elected(0, epoch, p)
	synctest.Wait()
	for i, want := range acknowledged {
		reply, err := r.OffsetFetch(t.Context(), fetchOf(fmt.Sprintf("g%d", i)), true)
		if err != nil || reply.Err != nil {
			t.Fatalf("g%d: %v, %+v", i, err, reply)
		}
		there := map[int32]bool{}
		for _, topic := range reply.Topics {
			for _, p := range topic.Partitions {
				there[p.Partition] = p.Offset == int64(p.Partition)
			}
		}
		for _, n := range want {
			if !there[n] {
				t.Errorf("g%d: commit %d was acknowledged and is gone after the load", i, n)
			}
		}
	}
}

func checkRetriable(t *testing.T, err error) {
	for _, known := range []error{ErrLoading, group.ErrNotCoordinator, group.ErrCoordinatorNotAvailable, group.ErrRebalanceInProgress, group.ErrUnknownMemberID, group.ErrIllegalGeneration, context.DeadlineExceeded} {
		if errors.Is(err, known) {
			return
		}
	}
	t.Errorf("a client is told %v", err)
}

// member joins, syncs and heartbeats for ever.
func member(t *testing.T, r *Runtime, groupID string, stopped func() bool) {
	memberID := ""
	for !stopped() {
		join := kmsg.NewPtrJoinGroupRequest()
		join.Version, join.Group, join.MemberID = 3, groupID, memberID
		join.SessionTimeoutMillis, join.RebalanceTimeoutMillis, join.ProtocolType = 6000, 6000, "consumer"
		join.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range", Metadata: []byte{1}}}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		joined, err := r.JoinGroup(ctx, group.RequestContext{ClientID: "c", ClientHost: "/127.0.0.1"}, join, nil)
		if err == nil {
			err = joined.Err
		}
		if err == nil {
			memberID = joined.MemberID
			err = stay(ctx, r, groupID, joined, stopped)
		}
		cancel()
		if err != nil {
			checkRetriable(t, err)
			if errors.Is(err, group.ErrUnknownMemberID) {
				memberID = ""
			}
			time.Sleep(100 * time.Millisecond) // house:allow sleep: the time of a synctest bubble
		}
	}
}

func stay(ctx context.Context, r *Runtime, groupID string, joined *group.JoinReply, stopped func() bool) error {
	sync := kmsg.NewPtrSyncGroupRequest()
	sync.Version, sync.Group, sync.MemberID, sync.Generation = 3, groupID, joined.MemberID, joined.Generation
	for _, m := range joined.Members {
		sync.GroupAssignment = append(sync.GroupAssignment, kmsg.SyncGroupRequestGroupAssignment{MemberID: m.MemberID, MemberAssignment: []byte{2}})
	}
	synced, err := r.SyncGroup(ctx, sync, nil)
	if err == nil {
		err = synced.Err
	}
	for err == nil && !stopped() {
		beat := kmsg.NewPtrHeartbeatRequest()
		beat.Group, beat.MemberID, beat.Generation = groupID, joined.MemberID, joined.Generation
		var reply *group.HeartbeatReply
		if reply, err = r.Heartbeat(ctx, beat); err == nil {
			err = reply.Err
		}
		time.Sleep(500 * time.Millisecond) // house:allow sleep: the time of a synctest bubble
	}
	return err
}

// Offsets of a topic that was deleted while no shard was there to be told are gone
// once the shard has loaded; those of a topic that lives on stay, and so do offsets
// that were stored without an id.
func TestB013_topics_deleted_while_unloaded(t *testing.T) {
	// A group's offsets of a topic that was deleted are never given to a topic of the same name.
	synctest.Test(t, func(t *testing.T) {
		p := newMemoryPartition()
		b := record.NewBuilder(record.BuilderOptions{})
		gone, kept := [16]byte{15: 9}, metadata.UUID{15: 7}
		for i, c := range []group.OffsetCommitRecord{
			{Group: "g", Topic: "t", Partition: 0, Value: &group.OffsetCommitValue{Offset: 1, TopicID: gone, ExpireTimestamp: -1}},
			{Group: "g", Topic: "t", Partition: 1, Value: &group.OffsetCommitValue{Offset: 2, TopicID: kept, ExpireTimestamp: -1}},
			{Group: "h", Topic: "deleted", Partition: 0, Value: &group.OffsetCommitValue{Offset: 3, ExpireTimestamp: -1}},
		} {
			key, value, err := group.EncodeRecord(&c)
			if err != nil {
				t.Fatal(err)
			}
			if err := b.Append(int64(i), key, value, nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Append(b.Bytes(), 0, 0, AppendOptions{}); err != nil {
			t.Fatal(err)
		}
		r := New(Options{Config: group.Config{NewUUID: func() string { return "" }}, Logger: slog.New(slog.DiscardHandler)})
		defer r.Close()
		delta := metadata.NewDelta(metadata.EmptyImage())
		if err := delta.Replay(&metadata.TopicRecord{Name: "t", TopicID: kept}, 0); err != nil {
			t.Fatal(err)
		}
		r.image.Store(delta.Apply(0, 0))
		r.SetPartitions(1)
		r.Elected(0, 1, p)
		waitActive(t, r)
		reply, err := r.OffsetFetch(t.Context(), fetchOf("g"), true)
		if err != nil || len(reply.Topics) != 1 || len(reply.Topics[0].Partitions) != 1 || reply.Topics[0].Partitions[0].Offset != 2 {
			t.Errorf("g: %+v, %v; want partition 1 alone", reply, err)
		}
		if reply, err := r.OffsetFetch(t.Context(), fetchOf("h"), true); err != nil || len(reply.Topics) != 0 {
			t.Errorf("h: %+v, %v; want nothing", reply, err)
		}
	})
}

// A request that got into the queue of a shard just before the shard ended, or could
// not be loaded again, is answered all the same.
func TestShardThatCannotLoadAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newMemoryPartition()
		r := newTestRuntime(p)
		defer r.Close()
		waitActive(t, r)
		gate := make(chan struct{})
		if err := r.shards[0].enqueue(t.Context(), func(*runner[*group.Shard, group.Record]) { <-gate }); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		answered := make(chan error, 2)
		for range 2 {
			go func() {
				reply, err := r.OffsetCommit(t.Context(), commitOf("g", 0, 1, 1))
				if err == nil {
					err = commitError(reply)
				}
				answered <- err
			}()
		}
		synctest.Wait()
		p.stranger(t, 1)
		p.spoil()
		close(gate)
		for range 2 {
			if err := <-answered; !errors.Is(err, group.ErrNotCoordinator) {
				t.Errorf("answered %v", err)
			}
		}
		synctest.Wait() // the answers come before the shard is loaded again, in vain
		if _, err := r.OffsetFetch(t.Context(), fetchOf("g"), false); !errors.Is(err, group.ErrNotCoordinator) {
			t.Errorf("a shard that could not be loaded answers %v", err)
		}
	})
}

// spoil puts a record in the log that nobody can read.
func (p *memoryPartition) spoil() {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := record.NewBuilder(record.BuilderOptions{})
	if err := b.Append(1, []byte{0, 1, 0, 1}, []byte{0}, nil); err != nil {
		panic(err)
	}
	batch := b.Bytes()
	batch.SetBaseOffset(p.end)
	p.batches = append(p.batches, batch)
	p.end++
}
