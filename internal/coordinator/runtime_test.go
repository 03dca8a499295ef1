package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/stelelog/stele/internal/group"
	"github.com/stelelog/stele/internal/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newTestRuntime(p *memoryPartition) *Runtime {
	ids := 0
	r := New(Options{
		Config: group.Config{InitialRebalanceDelay: -1, NewUUID: func() string {
			ids++
			return fmt.Sprintf("00000000-0000-0000-0000-%012d", ids)
		}},
		Logger: slog.New(slog.DiscardHandler),
	})
	r.SetPartitions(1)
	r.Elected(0, 0, p)
	return r
}

func commitOf(groupID string, partition int32, offset int64, epoch int32) *kmsg.OffsetCommitRequest {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Version = 8
	req.Group, req.Generation = groupID, -1
	topic := kmsg.NewOffsetCommitRequestTopic()
	topic.Topic = "t"
	p := kmsg.NewOffsetCommitRequestTopicPartition()
	p.Partition, p.Offset, p.LeaderEpoch = partition, offset, epoch
	topic.Partitions = append(topic.Partitions, p)
	req.Topics = append(req.Topics, topic)
	return req
}

func fetchOf(groupID string) group.FetchRequest { return group.FetchRequest{Group: groupID, All: true} }

func commitError(reply *group.CommitReply) error { return reply.Topics[0].Partitions[0].Err }

// A commit is answered when the high watermark has passed it and not before, and
// reads do not see it earlier.
func TestRepliesWaitForTheHighWatermark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newMemoryPartition()
		r := newTestRuntime(p)
		defer r.Close()
		synctest.Wait()
		p.hold()
		answered := make(chan error, 1)
		go func() {
			reply, err := r.OffsetCommit(t.Context(), commitOf("g", 0, 5, 3))
			if err == nil {
				err = commitError(reply)
			}
			answered <- err
		}()
		synctest.Wait()
		select {
		case err := <-answered:
			t.Fatalf("answered before the high watermark moved: %v", err)
		default:
		}
		if reply, err := r.OffsetFetch(t.Context(), fetchOf("g"), false); err != nil || len(reply.Topics) != 0 {
			t.Fatalf("an uncommitted commit is visible: %+v, %v", reply, err)
		}
		p.release()
		if err := <-answered; err != nil {
			t.Fatal(err)
		}
		reply, err := r.OffsetFetch(t.Context(), fetchOf("g"), false)
		if err != nil || reply.Topics[0].Partitions[0].Offset != 5 || reply.Topics[0].Partitions[0].LeaderEpoch != 3 {
			t.Fatalf("after the commit: %+v, %v", reply, err)
		}
	})
}

// What is queued while an event is handled shares its batch: 100 commits that
// wait together are one append, and all replies come after it.
func TestG058_queued_commits_share_a_batch(t *testing.T) {
	// With adaptive linger, 100 queued commits become one batch, and replies leave after its commit.
	synctest.Test(t, func(t *testing.T) {
		p := newMemoryPartition()
		r := newTestRuntime(p)
		defer r.Close()
		synctest.Wait()
		gate := make(chan struct{})
		shard := r.shards[0]
		if err := shard.enqueue(t.Context(), func(*runner[*group.Shard, group.Record]) { <-gate }); err != nil {
			t.Fatal(err)
		}
		var running sync.WaitGroup
		for i := range 100 {
			running.Go(func() {
				reply, err := r.OffsetCommit(t.Context(), commitOf(fmt.Sprintf("g%d", i), 0, int64(i), 1))
				if err != nil || commitError(reply) != nil {
					t.Errorf("commit %d: %v", i, err)
				}
			})
		}
		synctest.Wait()
		close(gate)
		running.Wait()
		if got := p.count(); got != 1 {
			t.Fatalf("100 queued commits made %d batches", got)
		}
	})
}

// A failed append takes the shard back: the client is told a retriable error, the
// offset is not there, and the next commit gets the same log offset.
func TestFailedAppendReverts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newMemoryPartition()
		r := newTestRuntime(p)
		defer r.Close()
		synctest.Wait()
		p.fail(errNotEnough)
		reply, err := r.OffsetCommit(t.Context(), commitOf("g", 0, 5, 3))
		if err != nil || !errors.Is(commitError(reply), group.ErrCoordinatorNotAvailable) {
			t.Fatalf("%+v, %v", reply, err)
		}
		p.fail(nil)
		fetched, err := r.OffsetFetch(t.Context(), fetchOf("g"), true)
		if err != nil || len(fetched.Topics) != 0 {
			t.Fatalf("the failed commit is visible: %+v, %v", fetched, err)
		}
		if reply, err := r.OffsetCommit(t.Context(), commitOf("g", 0, 6, 3)); err != nil || commitError(reply) != nil {
			t.Fatalf("%+v, %v", reply, err)
		}
		if p.end != 1 {
			t.Fatalf("log ends at %d, want 1", p.end)
		}
	})
}

// A commit that is not replicated in time is answered "coordinator not available"
// after offsets.commit.timeout.ms; its record may still commit later, and until then
// costs nothing.
func TestUnreplicatedCommitTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newMemoryPartition()
		r := newTestRuntime(p)
		defer r.Close()
		synctest.Wait()
		p.hold()
		start := time.Now()
		reply, err := r.OffsetCommit(t.Context(), commitOf("g", 0, 5, 3))
		if err != nil || !errors.Is(commitError(reply), group.ErrCoordinatorNotAvailable) || time.Since(start) != 5*time.Second {
			t.Fatalf("after %s: %+v, %v", time.Since(start), reply, err)
		}
		<-time.After(time.Minute)
		p.release()
		synctest.Wait()
		fetched, err := r.OffsetFetch(t.Context(), fetchOf("g"), false)
		if err != nil || len(fetched.Topics) != 1 {
			t.Fatalf("the late commit is lost: %+v, %v", fetched, err)
		}
	})
}

// When the log's end is not where the shard left it, somebody else has led
// meanwhile: what waits is told "not coordinator" and the shard is read again.
func TestMovedEndReloads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newMemoryPartition()
		r := newTestRuntime(p)
		defer r.Close()
		if reply, err := waitActive(t, r).OffsetCommit(t.Context(), commitOf("g", 0, 5, 3)); err != nil || commitError(reply) != nil {
			t.Fatal(err)
		}
		stranger := record.NewBuilder(record.BuilderOptions{})
		key, value, err := group.EncodeRecord(&group.OffsetCommitRecord{Group: "other", Topic: "t", Value: &group.OffsetCommitValue{Offset: 9, LeaderEpoch: 1, ExpireTimestamp: -1}})
		if err != nil {
			t.Fatal(err)
		}
		if err := stranger.Append(1, key, value, nil); err != nil {
			t.Fatal(err)
		}
		if err := p.Append(stranger.Bytes(), 1, 1, AppendOptions{}); err != nil {
			t.Fatal(err)
		}
		reply, err := r.OffsetCommit(t.Context(), commitOf("g", 0, 6, 3))
		if err != nil || !errors.Is(commitError(reply), group.ErrNotCoordinator) {
			t.Fatalf("%+v, %v", reply, err)
		}
		waitActive(t, r)
		fetched, err := r.OffsetFetch(t.Context(), fetchOf("other"), false)
		if err != nil || len(fetched.Topics) != 1 {
			t.Fatalf("the stranger's commit was not loaded: %+v, %v", fetched, err)
		}
	})
}

func waitActive(t *testing.T, r *Runtime) *Runtime {
	t.Helper()
	synctest.Wait()
	if err := r.shards[0].unavailable(); err != nil {
		t.Fatalf("shard is not active: %v", err)
	}
	return r
}

// Losing the leadership answers everything that waits, also a parked join; the
// same or an older epoch changes nothing; a higher one loads again.
func TestResignAndElect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newMemoryPartition()
		r := newTestRuntime(p)
		defer r.Close()
		waitActive(t, r)
		elected := r.shards[0]
		r.Elected(0, 0, p)
		if r.shards[0] != elected {
			t.Fatal("an election in the epoch that is known loaded the shard again")
		}
		p.hold()
		answered := make(chan *group.CommitReply, 1)
		go func() {
			reply, _ := r.OffsetCommit(context.Background(), commitOf("g", 0, 5, 3))
			answered <- reply
		}()
		synctest.Wait()
		r.Resigned(0, 0)
		if r.shards[0] == nil {
			t.Fatal("a resignation in the epoch of the election unloaded the shard")
		}
		r.Resigned(0, 1)
		if reply := <-answered; !errors.Is(commitError(reply), group.ErrNotCoordinator) {
			t.Fatalf("%+v", reply)
		}
		if _, err := r.OffsetFetch(t.Context(), fetchOf("g"), false); !errors.Is(err, group.ErrNotCoordinator) {
			t.Fatalf("after the resignation: %v", err)
		}
		p.release()
		r.Elected(0, 2, p)
		waitActive(t, r)
		fetched, err := r.OffsetFetch(t.Context(), fetchOf("g"), false)
		if err != nil || len(fetched.Topics) != 1 {
			t.Fatalf("after the election: %+v, %v", fetched, err)
		}
	})
}

// Groups are spread as Kafka spreads them: by Java's hash of the id.
func TestPartitionForIsJavasHash(t *testing.T) {
	t.Parallel()
	r := New(Options{Logger: slog.New(slog.DiscardHandler)})
	if _, ok := r.PartitionFor("g"); ok {
		t.Fatal("a partition was named before the topic exists")
	}
	r.SetPartitions(50)
	for id, hash := range map[string]int32{"": 0, "a": 97, "group": 98629247, "test-group": 627841412, "\U0001f600": 1772899,
		"dump-group": 499384986 /* the hash is negative */, "polygenelubricants": 0 /* the hash is -2^31 */} {
		if got, _ := r.PartitionFor(id); got != hash%50 {
			t.Errorf("%q: partition %d, want %d", id, got, hash%50)
		}
	}
}

func TestG056_loading(t *testing.T) {
	// While a shard loads, every request of its groups is told so, never "no such group" or "no offset"; a list would be short and is refused too.
	synctest.Test(t, func(t *testing.T) {
		p := newMemoryPartition()
		p.slow = make(chan struct{})
		r := newTestRuntime(p)
		defer r.Close()
		synctest.Wait()
		join := kmsg.NewPtrJoinGroupRequest()
		join.Group, join.SessionTimeoutMillis = "g", 6000
		sync, beat, leave := kmsg.NewPtrSyncGroupRequest(), kmsg.NewPtrHeartbeatRequest(), kmsg.NewPtrLeaveGroupRequest()
		sync.Group, beat.Group, leave.Group = "g", "g", "g"
		ctx := t.Context()
		for name, request := range map[string]func() error{
			"JoinGroup":           func() error { _, err := r.JoinGroup(ctx, group.RequestContext{}, join, nil); return err },
			"SyncGroup":           func() error { _, err := r.SyncGroup(ctx, sync, nil); return err },
			"Heartbeat":           func() error { _, err := r.Heartbeat(ctx, beat); return err },
			"LeaveGroup":          func() error { _, err := r.LeaveGroup(ctx, leave); return err },
			"OffsetCommit":        func() error { _, err := r.OffsetCommit(ctx, commitOf("g", 0, 1, 1)); return err },
			"OffsetFetch":         func() error { _, err := r.OffsetFetch(ctx, fetchOf("g"), false); return err },
			"OffsetFetch, stable": func() error { _, err := r.OffsetFetch(ctx, fetchOf("g"), true); return err },
			"DescribeGroups":      func() error { _, err := r.DescribeGroup(ctx, "g"); return err },
			"ListGroups":          func() error { _, err := r.ListGroups(ctx, nil, nil); return err },
			"DeleteGroups":        func() error { _, err := r.DeleteGroup(ctx, "g"); return err },
		} {
			if err := request(); !errors.Is(err, ErrLoading) {
				t.Errorf("%s: %v", name, err)
			}
		}
		close(p.slow)
		waitActive(t, r)
		if _, err := r.ListGroups(ctx, nil, nil); err != nil {
			t.Errorf("after the load: %v", err)
		}
		r.Close()
		if _, err := r.ListGroups(ctx, nil, nil); !errors.Is(err, group.ErrCoordinatorNotAvailable) {
			t.Errorf("after the end: %v", err)
		}
	})
}

// A write that may be split goes into as many batches as it needs; one that may not is
// refused whole when no batch holds it, and leaves nothing behind.
func TestWritesLargerThanABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newMemoryPartition()
		p.limit = 700
		r := newTestRuntime(p)
		defer r.Close()
		waitActive(t, r)
		big := commitOf("g", 0, 1, 1)
		for i := range int32(200) {
			part := kmsg.NewOffsetCommitRequestTopicPartition()
			part.Partition, part.Offset = i, 1
			big.Topics[0].Partitions = append(big.Topics[0].Partitions, part)
		}
		reply, err := r.OffsetCommit(t.Context(), big)
		if err != nil || !errors.Is(commitError(reply), group.ErrUnknownServer) || p.count() != 0 {
			t.Fatalf("%v, %+v, %d batches", err, commitError(reply), p.count())
		}
		if fetched, err := r.OffsetFetch(t.Context(), fetchOf("g"), true); err != nil || len(fetched.Topics) != 0 {
			t.Errorf("what was refused is there: %+v, %v", fetched, err)
		}
		for i := range int32(60) {
			if reply, err := r.OffsetCommit(t.Context(), commitOf("g", i, 1, 1)); err != nil || commitError(reply) != nil {
				t.Fatal(err, commitError(reply))
			}
		}
		before := p.count()
		r.TopicsDeleted(t.Context(), []group.DeletedTopic{{Topic: "t"}})
		synctest.Wait()
		if made := p.count() - before; made < 2 {
			t.Errorf("60 tombstones went into %d batches of %d bytes", made, p.limit)
		}
		if fetched, err := r.OffsetFetch(t.Context(), fetchOf("g"), true); err != nil || len(fetched.Topics) != 0 {
			t.Errorf("after the deletion: %+v, %v", fetched, err)
		}
	})
}

// A coordinator that has just been elected does not answer before its partition's high watermark has passed what it loaded:
// what a read shows as committed never goes back behind what the coordinator before has shown.
func TestB128_a_new_coordinator_never_reads_behind_the_old(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newMemoryPartition()
		r := newTestRuntime(p)
		synctest.Wait()
		if reply, err := r.OffsetCommit(t.Context(), commitOf("g", 0, 5, 3)); err != nil || commitError(reply) != nil {
			t.Fatalf("%+v, %v", reply, err)
		}
		if reply, err := r.OffsetCommit(t.Context(), commitOf("g", 0, 6, 3)); err != nil || commitError(reply) != nil {
			t.Fatalf("%+v, %v", reply, err)
		}
		r.Close()
		// The next leader was a follower: it has the second commit, and learns the high watermark one fetch later.
		p.mu.Lock()
		p.held, p.hw = true, p.hw-1
		p.mu.Unlock()
		r = newTestRuntime(p)
		defer r.Close()
		synctest.Wait()
		if reply, err := r.OffsetFetch(t.Context(), fetchOf("g"), false); !errors.Is(err, ErrLoading) && (err != nil || !errors.Is(reply.Err, ErrLoading)) {
			t.Errorf("before its high watermark is known: %+v, %v", reply, err)
		}
		p.release()
		synctest.Wait()
		if reply, err := r.OffsetFetch(t.Context(), fetchOf("g"), false); err != nil || reply.Err != nil || reply.Topics[0].Partitions[0].Offset != 6 {
			t.Errorf("afterwards: %+v, %v", reply, err)
		}
	})
}
