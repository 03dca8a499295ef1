package broker

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/stelelog/stele/internal/record"
)

// batchAt builds a metadata batch of n records at offset in epoch.
func batchAt(t *testing.T, offset int64, epoch int32, n int) record.Batch {
	t.Helper()
	b := record.NewBuilder(record.BuilderOptions{BaseOffset: offset})
	for range n {
		if err := b.Append(1, nil, []byte("v"), nil); err != nil {
			t.Fatal(err)
		}
	}
	batch := b.Bytes()
	batch.SetPartitionLeaderEpoch(epoch)
	return batch
}

func join(batches ...record.Batch) []byte {
	var all []byte
	for _, b := range batches {
		all = append(all, b...)
	}
	return all
}

func follower(t *testing.T, epoch int32) *observerState {
	t.Helper()
	s := newObserverState()
	if err := s.learn(leader{id: 1, epoch: epoch}); err != nil {
		t.Fatal(err)
	}
	return s
}

// Batches above the high watermark wait until it has passed them, and come out
// once, in order.
func TestM043_batches_above_high_watermark_wait(t *testing.T) {
	// A batch above the high watermark is not applied; then the high watermark rises and it is.
	t.Parallel()
	s := follower(t, 3)
	if err := s.append(join(batchAt(t, 0, 3, 2), batchAt(t, 2, 3, 3), batchAt(t, 5, 3, 1))); err != nil {
		t.Fatal(err)
	}
	if got := s.advance(4); len(got) != 1 || got[0].BaseOffset() != 0 {
		t.Fatalf("at high watermark 4: %d batches", len(got))
	}
	if got := s.advance(2); len(got) != 0 || s.highWatermark != 4 {
		t.Fatalf("a lower high watermark gave %d batches and moved it to %d", len(got), s.highWatermark)
	}
	if got := s.advance(100); len(got) != 2 || got[1].BaseOffset() != 5 || s.highWatermark != 6 {
		t.Fatalf("at the end: %d batches, high watermark %d", len(got), s.highWatermark)
	}
}

// A torn or corrupt batch, or one of a later epoch, ends what is taken from an answer.
func TestObserverStopsAtWhatItCannotTrust(t *testing.T) {
	t.Parallel()
	good, torn := batchAt(t, 0, 3, 1), batchAt(t, 1, 3, 4)
	s := follower(t, 3)
	if err := s.append(append(join(good), torn[:len(torn)-3]...)); err != nil || s.end.endOffset != 1 {
		t.Fatalf("torn tail: %v, end %d", err, s.end.endOffset)
	}
	if err := s.append(join(batchAt(t, 1, 4, 1))); err != nil || s.end.endOffset != 1 {
		t.Fatalf("batch of a later epoch: %v, end %d", err, s.end.endOffset)
	}
	flipped := batchAt(t, 1, 3, 1)
	flipped[len(flipped)-2] ^= 1
	if err := s.append(flipped); err == nil || s.end.endOffset != 1 {
		t.Fatalf("flipped bit: %v, end %d", err, s.end.endOffset)
	}
	var fatal *errObserver
	if err := s.append(join(batchAt(t, 7, 3, 1))); !errors.As(err, &fatal) {
		t.Fatalf("a gap must be fatal, got %v", err)
	}
}

// A diverging epoch above the high watermark truncates; below it, it is fatal.
func TestM041_divergence(t *testing.T) {
	// DivergingEpoch above the high watermark truncates to where the histories part; below it the observer stops, loudly.
	t.Parallel()
	s := follower(t, 5)
	if err := s.append(join(batchAt(t, 0, 2, 10), batchAt(t, 10, 3, 5), batchAt(t, 15, 5, 5))); err != nil {
		t.Fatal(err)
	}
	s.advance(10)
	if err := s.truncate(4, 18); err != nil || s.end != (position{15, 3}) {
		t.Fatalf("unknown epoch 4: %v, end %v; want the end of the nearest lower epoch, (15, 3)", err, s.end)
	}
	if err := s.truncate(3, 12); err != nil || s.end != (position{10, 2}) {
		t.Fatalf("epoch 3 ends at 12 at the leader: %v, end %v; whole batches only, so (10, 2)", err, s.end)
	}
	var fatal *errObserver
	if err := s.truncate(2, 4); !errors.As(err, &fatal) {
		t.Fatalf("divergence at 4 below the high watermark 10: %v", err)
	}
}

// What an answer says of the leader is adopted by epoch; two leaders of one epoch
// are a contradiction that must not be passed over.
func TestObserverLearnsLeaders(t *testing.T) {
	t.Parallel()
	s := newObserverState()
	steps := []struct {
		answer leader
		want   leader
		err    error
	}{
		{leader{-1, 0}, leader{-1, 0}, nil},
		{leader{-1, 2}, leader{-1, 2}, nil},
		{leader{7, 2}, leader{7, 2}, nil},
		{leader{-1, 2}, leader{7, 2}, nil},
		{leader{3, 1}, leader{7, 2}, errStaleAnswer},
		{leader{3, 4}, leader{3, 4}, nil},
	}
	for i, step := range steps {
		if err := s.learn(step.answer); !errors.Is(err, step.err) || s.leader != step.want {
			t.Fatalf("step %d: %v gave %v, %v; want %v, %v", i, step.answer, s.leader, err, step.want, step.err)
		}
	}
	var fatal *errObserver
	if err := s.learn(leader{5, 4}); !errors.As(err, &fatal) {
		t.Fatalf("a second leader of epoch 4: %v", err)
	}
}

// A controller that says it is not the leader, and does not say who is, is not asked again and again: the observer forgets
// that leader and asks any controller. One that names another sends it there.
func TestObserverForgetsALeaderThatIsNone(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		named leader // in the answer
		want  int32
	}{{"nobody", leader{-1, 3}, noLeader}, {"another", leader{2, 4}, 2}} {
		o := newObserver(&Options{Logger: slog.New(slog.DiscardHandler)}, nil, nil)
		o.addrs[1], o.addrs[2], o.asking = "one:1", "two:1", "one:1"
		for _, told := range []leader{{1, 3}, test.named} {
			if err := o.state.learn(told); err != nil {
				t.Fatal(err)
			}
		}
		err := o.partitionError(kerr.NotLeaderForPartition.Code)
		if o.state.leader.id != test.want || (err == nil) != (test.want == 2) {
			t.Errorf("%s is named: leader %d, %v", test.name, o.state.leader.id, err)
		}
	}
}
