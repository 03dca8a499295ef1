package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/group"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/shard"
	"github.com/stelelog/stele/internal/txn"
)

// leaders stands for the brokers that markers go to.
type leaders struct {
	mu      sync.Mutex
	written []string // broker, producer, epoch, coordinator epoch, partitions
	answer  func(broker int32, m Marker) []MarkerOutcome
}

func (l *leaders) write(_ context.Context, broker int32, markers []Marker) [][]MarkerOutcome {
	l.mu.Lock()
	defer l.mu.Unlock()
	var outcomes [][]MarkerOutcome
	for _, m := range markers {
		text := fmt.Sprintf("%d: (%d,%d) epoch %d", broker, m.ProducerID, m.ProducerEpoch, m.CoordinatorEpoch)
		for _, tp := range m.Partitions {
			text += fmt.Sprintf(" %s-%d", tp.Topic, tp.Partition)
		}
		l.written = append(l.written, text)
		out := make([]MarkerOutcome, len(m.Partitions))
		for i := range out {
			out[i] = MarkerWritten
		}
		if l.answer != nil {
			out = l.answer(broker, m)
		}
		outcomes = append(outcomes, out)
	}
	return outcomes
}

func (l *leaders) taken() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.written
	l.written = nil
	return out
}

// imageOf is a cluster with a topic t of two partitions, led by these brokers.
func imageOf(t *testing.T, leaders ...int32) *metadata.Image {
	t.Helper()
	delta := metadata.NewDelta(metadata.EmptyImage())
	records := []metadata.Record{&metadata.FeatureLevelRecord{Name: metadata.FeatureTransaction, FeatureLevel: 2}, &metadata.TopicRecord{Name: "t", TopicID: metadata.UUID{7}}}
	for i, leader := range leaders {
		records = append(records, &metadata.PartitionRecord{PartitionID: int32(i), TopicID: metadata.UUID{7}, Replicas: []int32{1, 2}, ISR: []int32{1, 2}, Leader: leader})
	}
	for i, rec := range records {
		if err := delta.Replay(rec, int64(i)); err != nil {
			t.Fatal(err)
		}
	}
	return delta.Apply(int64(len(records)), 0)
}

func newTestTransactions(t *testing.T, p *memoryPartition, l *leaders, epoch int32) *Transactions {
	ids := int64(4000)
	tx := NewTransactions(TransactionOptions{
		Config:       txn.Config{NextProducerID: func() (int64, bool) { ids++; return ids - 1, true }},
		WriteMarkers: l.write, Logger: slog.New(slog.DiscardHandler),
	})
	tx.image.Store(imageOf(t, 1, 2))
	tx.level.Store(2)
	tx.SetPartitions(1)
	tx.Elected(0, epoch, p)
	synctest.Wait()
	return tx
}

func mustInit(t *testing.T, tx *Transactions, id string) *txn.InitReply {
	t.Helper()
	reply, err := tx.InitProducerID(t.Context(), txn.InitRequest{ID: id, TimeoutMs: 60000, ProducerID: -1, ProducerEpoch: -1})
	if err != nil || reply.Err != nil {
		t.Fatalf("%+v, %v", reply, err)
	}
	return reply
}

func both() []txn.TopicPartition {
	return []txn.TopicPartition{{Topic: "t"}, {Topic: "t", Partition: 1}}
}

func mustAddAndEnd(t *testing.T, tx *Transactions, id string, p *txn.InitReply, partitions ...txn.TopicPartition) *txn.EndReply {
	t.Helper()
	added, err := tx.AddPartitions(t.Context(), txn.AddRequest{ID: id, ProducerID: p.ProducerID, ProducerEpoch: p.ProducerEpoch, Version: txn.Version2, Partitions: partitions})
	if err != nil || added.Err != nil {
		t.Fatalf("%+v, %v", added, err)
	}
	ended, err := tx.EndTxn(t.Context(), txn.EndRequest{ID: id, ProducerID: p.ProducerID, ProducerEpoch: p.ProducerEpoch, Version: txn.Version2, Commit: true})
	if err != nil || ended.Err != nil {
		t.Fatalf("%+v, %v", ended, err)
	}
	return ended
}

func stateOf(t *testing.T, tx *Transactions, id string) string {
	t.Helper()
	d, err := tx.Describe(t.Context(), id)
	if err != nil || d.Err != nil {
		t.Fatalf("%+v, %v", d, err)
	}
	return d.State.String()
}

// Markers go to the leaders of the partitions, each to its own, with the coordinator's epoch. One that is refused for a
// while is sent again, to whoever leads by then; partitions that are gone are done.
func TestT030_T031_markers_until_written(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := true
		l := &leaders{answer: func(broker int32, m Marker) []MarkerOutcome {
			if broker == 2 && down {
				return nil
			}
			return slices.Repeat([]MarkerOutcome{MarkerWritten}, len(m.Partitions))
		}}
		tx := newTestTransactions(t, newMemoryPartition(), l, 8)
		defer tx.Close()
		mustAddAndEnd(t, tx, "tx", mustInit(t, tx, "tx"), both()...)
		synctest.Wait()
		if got := l.taken(); len(got) != 2 {
			t.Errorf("%q", got)
		}
		<-time.After(10 * time.Second)
		tries := l.taken()
		if len(tries) < 5 || len(tries) > 30 || stateOf(t, tx, "tx") != "PrepareCommit" {
			t.Errorf("%d tries in 10 s, state %s", len(tries), stateOf(t, tx, "tx"))
		}
		for _, try := range tries {
			if try != "2: (4000,1) epoch 8 t-1" {
				t.Errorf("%s", try)
			}
		}
		if d, err := tx.Describe(t.Context(), "tx"); err != nil || len(d.Partitions) != 1 || d.Partitions[0].Partition != 1 {
			t.Errorf("%+v, %v", d, err)
		}
		tx.image.Store(imageOf(t, 1, 1)) // the leader moves
		tx.markers.poke()
		synctest.Wait()
		if got := l.taken(); len(got) != 1 || got[0] != "1: (4000,1) epoch 8 t-1" || stateOf(t, tx, "tx") != "CompleteCommit" {
			t.Errorf("%q, state %s", got, stateOf(t, tx, "tx"))
		}
		p := mustInit(t, tx, "gone")
		down = true
		mustAddAndEnd(t, tx, "gone", p, append(both(), txn.TopicPartition{Topic: "deleted"})...)
		synctest.Wait()
		if got := stateOf(t, tx, "gone"); got != "CompleteCommit" {
			t.Errorf("with a partition that is no more: %s", got)
		}
		l.answer = func(int32, Marker) []MarkerOutcome { return []MarkerOutcome{MarkerRefused} }
		mustAddAndEnd(t, tx, "refused", mustInit(t, tx, "refused"), both()[0])
		<-time.After(10 * time.Second)
		if got := stateOf(t, tx, "refused"); got != "PrepareCommit" {
			t.Errorf("refused: %s", got)
		}
	})
}

// The next coordinator takes up what was decided, in its own epoch, and does not answer before its log is replicated.
func TestT027_next_coordinator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newMemoryPartition()
		l := &leaders{answer: func(int32, Marker) []MarkerOutcome { return nil }}
		tx := newTestTransactions(t, p, l, 7)
		ended := mustAddAndEnd(t, tx, "tx", mustInit(t, tx, "tx"), both()...)
		if ended.ProducerEpoch != 1 {
			t.Errorf("%+v", ended)
		}
		synctest.Wait()
		tx.Close()
		l = &leaders{}
		p.mu.Lock()
		p.held, p.hw = true, p.hw-1
		p.mu.Unlock()
		tx = newTestTransactions(t, p, l, 8)
		defer tx.Close()
		if _, err := tx.Describe(t.Context(), "tx"); !errors.Is(err, ErrLoading) {
			t.Errorf("before its log is replicated: %v", err)
		}
		if _, err := tx.List(t.Context(), txn.Filter{Duration: -1}); !errors.Is(err, ErrLoading) {
			t.Errorf("list before its log is replicated: %v", err)
		}
		if got := l.taken(); len(got) != 0 {
			t.Errorf("markers of what may be lost: %q", got)
		}
		p.release()
		synctest.Wait()
		if got := l.taken(); len(got) != 2 || stateOf(t, tx, "tx") != "CompleteCommit" {
			t.Errorf("%q, %s", got, stateOf(t, tx, "tx"))
		}
		if _, err := tx.Describe(t.Context(), "tx"); err != nil {
			t.Error(err)
		}
		tx.Resigned(0, 9)
		if _, err := tx.Describe(t.Context(), "tx"); !errors.Is(err, shard.ErrNotCoordinator) {
			t.Errorf("after the resignation: %v", err)
		}
	})
}

// A completion that cannot be written for want of replicas is written when they are back.
func TestT040_completion_is_tried_again(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newMemoryPartition()
		l := &leaders{answer: func(int32, Marker) []MarkerOutcome { p.fail(errNotEnough); return []MarkerOutcome{MarkerWritten} }}
		tx := newTestTransactions(t, p, l, 0)
		defer tx.Close()
		mustAddAndEnd(t, tx, "tx", mustInit(t, tx, "tx"), both()[0])
		<-time.After(time.Second)
		if got := stateOf(t, tx, "tx"); got != "PrepareCommit" {
			t.Errorf("without replicas: %s", got)
		}
		if reply, err := tx.InitProducerID(t.Context(), txn.InitRequest{ID: "other", TimeoutMs: 1, ProducerID: -1, ProducerEpoch: -1}); err != nil || !errors.Is(reply.Err, shard.ErrCoordinatorNotAvailable) {
			t.Errorf("%+v, %v", reply, err)
		}
		p.fail(nil)
		<-time.After(time.Second)
		if got := stateOf(t, tx, "tx"); got != "CompleteCommit" {
			t.Errorf("with them: %s", got)
		}
	})
}

// appendState has somebody else bring a transactional id to a state in the log.
func appendState(t *testing.T, p *memoryPartition, id string, m *txn.Metadata) {
	t.Helper()
	key, value, err := txn.EncodeRecord(&txn.Record{ID: id, Value: m})
	if err != nil {
		t.Fatal(err)
	}
	b := record.NewBuilder(record.BuilderOptions{})
	if err := b.Append(1, key, value, nil); err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.appendLocked(b.Bytes(), 0)
}

// A shard that is loaded again in its epoch sends none of the markers from before: somebody has ended their transaction.
func TestMarkersOfTheLoadBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newMemoryPartition()
		l := &leaders{answer: func(int32, Marker) []MarkerOutcome { return nil }}
		tx := newTestTransactions(t, p, l, 8)
		defer tx.Close()
		mustAddAndEnd(t, tx, "tx", mustInit(t, tx, "tx"), both()[0])
		synctest.Wait()
		if got := l.taken(); len(got) != 1 {
			t.Errorf("%q", got)
		}
		appendState(t, p, "tx", &txn.Metadata{ProducerID: 4000, PreviousProducerID: 4000, NextProducerID: txn.NoProducerID, ProducerEpoch: 1, TimeoutMs: 60000, State: txn.CompleteCommit})
		reply, err := tx.InitProducerID(t.Context(), txn.InitRequest{ID: "other", TimeoutMs: 60000, ProducerID: -1, ProducerEpoch: -1})
		if err != nil || !errors.Is(reply.Err, shard.ErrNotCoordinator) {
			t.Errorf("%+v, %v", reply, err)
		}
		synctest.Wait()
		if got := stateOf(t, tx, "tx"); got != "CompleteCommit" {
			t.Errorf("loaded again: %s", got)
		}
		l.taken()
		<-time.After(10 * time.Second)
		if got := l.taken(); len(got) != 0 {
			t.Errorf("%q", got)
		}
	})
}

// Once the log's end has moved, what is replayed until the shard is loaded again is in no log: nothing of it is decided,
// though the high watermark is above it.
func TestNothingIsDecidedOnceTheEndMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newMemoryPartition()
		l := &leaders{}
		tx := newTestTransactions(t, p, l, 8)
		defer tx.Close()
		producer := mustInit(t, tx, "tx")
		added, err := tx.AddPartitions(t.Context(), txn.AddRequest{ID: "tx", ProducerID: producer.ProducerID, ProducerEpoch: producer.ProducerEpoch, Version: txn.Version2, Partitions: both()})
		if err != nil || added.Err != nil {
			t.Fatalf("%+v, %v", added, err)
		}
		for range 3 {
			appendState(t, p, "other", nil)
		}
		var decided []txn.Marker
		one, err := tx.shardOf("tx")
		if err != nil {
			t.Fatal(err)
		}
		if err := one.enqueue(t.Context(), func(r *txnRunner) {
			r.after = func(r *txnRunner) { decided = append(decided, r.shard.TakeMarkers()...) }
			r.absorb(r.shard.InitProducerID(r.now(), 0, txn.InitRequest{ID: "new", TimeoutMs: 60000, ProducerID: -1, ProducerEpoch: -1}))
			if err := r.flush(); !errors.Is(err, errEndMoved) {
				t.Errorf("%v", err)
			}
			r.absorb(r.shard.EndTxn(r.now(), 0, txn.EndRequest{ID: "tx", ProducerID: producer.ProducerID, ProducerEpoch: producer.ProducerEpoch, Commit: true, Version: txn.Version2}))
		}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(decided) != 0 {
			t.Errorf("%+v", decided)
		}
		if got := stateOf(t, tx, "tx"); got != "Ongoing" {
			t.Errorf("loaded again: %s", got)
		}
	})
}

// A request without an id is invalid wherever it arrives.
func TestNoTransactionalID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tx := newTestTransactions(t, newMemoryPartition(), &leaders{}, 0)
		defer tx.Close()
		tx.Resigned(0, 1)
		if reply, err := tx.AddPartitions(t.Context(), txn.AddRequest{}); err != nil || !errors.Is(reply.Err, txn.ErrInvalidRequest) {
			t.Errorf("add: %+v, %v", reply, err)
		}
		if reply, err := tx.EndTxn(t.Context(), txn.EndRequest{}); err != nil || !errors.Is(reply.Err, txn.ErrInvalidRequest) || reply.ProducerID != -1 {
			t.Errorf("end: %+v, %v", reply, err)
		}
	})
}

func txnOffsetOf(groupID string, offset int64) *kmsg.TxnOffsetCommitRequest {
	req := kmsg.NewPtrTxnOffsetCommitRequest()
	req.Version, req.Group, req.ProducerID, req.ProducerEpoch, req.Generation = 5, groupID, 4000, 0, -1
	topic := kmsg.NewTxnOffsetCommitRequestTopic()
	topic.Topic = "t"
	p := kmsg.NewTxnOffsetCommitRequestTopicPartition()
	p.Offset, p.LeaderEpoch = offset, 1
	topic.Partitions = append(topic.Partitions, p)
	req.Topics = append(req.Topics, topic)
	return req
}

// A marker that arrives at a shard of a group which is loading is refused for now; written, it decides the offsets that the
// transaction holds: live, and after a load.
func TestT037_markers_go_through_the_group(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newMemoryPartition()
		p.slow = make(chan struct{})
		r := newTestRuntime(p)
		synctest.Wait()
		marker := record.EndTxnMarker{Commit: true, ProducerID: 4000, ProducerEpoch: 1, CoordinatorEpoch: 3}
		if err := r.CompleteTransaction(t.Context(), 0, marker, true); !errors.Is(err, ErrLoading) {
			t.Errorf("while it loads: %v", err)
		}
		if err := r.CompleteTransaction(t.Context(), 9, marker, true); !errors.Is(err, shard.ErrNotCoordinator) {
			t.Errorf("another partition: %v", err)
		}
		close(p.slow)
		p.slow = nil
		waitActive(t, r)
		verified := func(context.Context, int32, bool) error { return nil }
		if reply, err := r.TxnOffsetCommit(t.Context(), txnOffsetOf("g", 9), verified); err != nil || commitError(reply) != nil {
			t.Fatalf("%+v, %v", reply, err)
		}
		look := func(when string, stable bool, want int64, wantErr error) {
			t.Helper()
			reply, err := r.OffsetFetch(t.Context(), fetchOf("g"), stable)
			if err != nil {
				t.Fatal(err)
			}
			if want < 0 && len(reply.Topics) == 0 && wantErr == nil {
				return
			}
			if len(reply.Topics) == 0 || reply.Topics[0].Partitions[0].Offset != want {
				t.Errorf("%s: %+v, want %d", when, reply, want)
			}
		}
		look("open", false, -1, nil)
		p.fail(errNotEnough)
		if err := r.CompleteTransaction(t.Context(), 0, marker, true); !errors.Is(err, errNotEnough) {
			t.Errorf("without replicas: %v", err)
		}
		p.fail(nil)
		look("after a marker that was not written", false, -1, nil)
		p.hold()
		done := make(chan error, 1)
		go func() { done <- r.CompleteTransaction(t.Context(), 0, marker, true) }()
		synctest.Wait()
		look("before the marker is replicated", false, -1, nil)
		p.release()
		if err := <-done; err != nil {
			t.Error(err)
		}
		look("after the marker", false, 9, nil)
		look("after the marker", true, 9, nil)
		r.Close()
		r = newTestRuntime(p)
		defer r.Close()
		waitActive(t, r)
		look("after a load", true, 9, nil)
	})
}

// What the coordinator of the transaction says of a commit of offsets is what the group says, and nothing is written.
func TestUnverifiedOffsets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newMemoryPartition()
		p.guarded = true
		r := newTestRuntime(p)
		defer r.Close()
		waitActive(t, r)
		refuse := errors.New("refused")
		var asked []bool
		verify := func(_ context.Context, partition int32, add bool) error {
			asked = append(asked, add)
			return refuse
		}
		req := txnOffsetOf("g", 9)
		if _, err := r.TxnOffsetCommit(t.Context(), req, verify); !errors.Is(err, refuse) || p.count() != 0 {
			t.Errorf("%v, %d batches", err, p.count())
		}
		req.Version = 4
		if _, err := r.TxnOffsetCommit(t.Context(), req, verify); !errors.Is(err, refuse) || fmt.Sprint(asked) != "[true false]" {
			t.Errorf("%v, asked %v", err, asked)
		}
		refuse = nil
		if reply, err := r.TxnOffsetCommit(t.Context(), req, verify); err != nil || commitError(reply) != nil || p.guards != 1 {
			t.Errorf("%+v, %v, %d guarded appends", reply, err, p.guards)
		}
		if got := errors.Is(writeError(group.ErrNotCoordinator), shard.ErrNotCoordinator); !got {
			t.Error("the shards' errors are not one")
		}
	})
}
