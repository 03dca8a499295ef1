package log

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
)

// The sequence vectors in order: duplicates, gaps, overlaps, old and new epochs.
func TestS033_sequence_vectors(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{}).open(startAt(100))
	for i, c := range []struct {
		epoch     int16
		first     int32
		count     int
		base      int64
		duplicate bool
		err       error
	}{
		{5, 0, 10, 100, false, nil},
		{5, 0, 10, 100, true, nil},
		{5, 10, 10, 110, false, nil},
		{5, 25, 5, 0, false, ErrOutOfOrderSequence},
		{5, 10, 5, 0, false, ErrOutOfOrderSequence},
		{4, 20, 1, 0, false, ErrInvalidProducerEpoch},
		{6, 3, 1, 0, false, ErrOutOfOrderSequence},
		{6, 0, 1, 120, false, nil},
		{5, 20, 1, 0, false, ErrInvalidProducerEpoch},
	} {
		info, err := x.try(idempotent(4000, c.epoch, c.first, c.count, false), 0, AppendOptions{})
		if !errors.Is(err, c.err) || err == nil && (info.BaseOffset != c.base || info.Duplicate != c.duplicate) {
			t.Errorf("step %d: %+v, %v", i, info, err)
		}
	}
	if x.leo() != 121 {
		t.Errorf("end offset %d", x.leo())
	}
}

// Five batches are remembered: the third of seven is a duplicate with its base offset, the second is out of order.
func TestS034_five_batches_remembered(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{}).open()
	for seq := range int32(7) {
		x.append(idempotent(1, 0, seq, 1, false))
	}
	if info := x.append(idempotent(1, 0, 2, 1, false)); !info.Duplicate || info.BaseOffset != 2 || info.LogAppendTime != ts0 {
		t.Errorf("%+v", info)
	}
	if _, err := x.try(idempotent(1, 0, 1, 1, false), 0, AppendOptions{}); !errors.Is(err, ErrOutOfOrderSequence) {
		t.Errorf("%v", err)
	}
}

// Sequence numbers go on at 0 after the largest int32.
func TestS035_sequence_wraps(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{}).open()
	x.append(idempotent(1, 0, math.MaxInt32-1, 4, false))
	x.append(idempotent(1, 0, 2, 1, false))
	if _, err := x.try(idempotent(1, 0, 1, 1, false), 0, AppendOptions{}); !errors.Is(err, ErrOutOfOrderSequence) {
		t.Errorf("%v", err)
	}
	if info := x.append(idempotent(1, 0, math.MaxInt32-1, 4, false)); !info.Duplicate {
		t.Error("the wrapping batch is not remembered")
	}
	x.close().open(clean)
	x.append(idempotent(1, 0, 3, 1, false))
}

// After a clean stop and after a kill the next sequence is accepted, and the last batch is still a duplicate.
func TestS036_sequences_survive_restarts(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{SegmentBytes: 400}).open()
	seq := int32(0)
	for i := range 12 {
		if i%2 == 0 && i > 0 {
			x.close().open(clean)
		} else if i > 0 {
			x.crash(vfs.LoseNothing, 0).open()
		}
		if i > 0 {
			if info := x.append(idempotent(1, 0, seq-2, 2, false)); !info.Duplicate {
				t.Errorf("restart %d: the last batch is not a duplicate", i)
			}
		}
		x.append(idempotent(1, 0, seq, 2, false))
		seq += 2
	}
	if x.leo() != 24 {
		t.Errorf("end offset %d", x.leo())
	}
}

// A producer that has been idle for as long as producer.id.expiration.ms may go on with any sequence; one with an
// open transaction is never forgotten, and removing the data alone forgets nobody.
func TestS037_producers_expire(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{ProducerExpirationMs: 5000, SegmentBytes: 200, RetentionMs: -1}).open()
	x.append(idempotent(1, 0, 0, 5, false))
	x.append(idempotent(2, 0, 0, 5, true))
	if err := x.log.AdvanceLogStart(10, "DeleteRecords"); err != nil {
		t.Fatal(err)
	}
	if must(x.log.Retain(x.now)) == 0 {
		t.Error("no segment went")
	}
	x.now = x.now.Add(4999 * time.Millisecond)
	if n := x.log.ExpireProducers(); n != 0 {
		t.Errorf("%d went too early", n)
	}
	if _, err := x.try(idempotent(1, 0, 77, 1, false), 0, AppendOptions{}); !errors.Is(err, ErrOutOfOrderSequence) {
		t.Errorf("before the expiry: %v", err)
	}
	x.now = x.now.Add(time.Second)
	if n := x.log.ExpireProducers(); n != 1 {
		t.Errorf("%d went", n)
	}
	x.append(idempotent(1, 0, 77, 1, false))
	now := x.now
	x.now = x.now.AddDate(10, 0, 0)
	if n := x.log.ExpireProducers(); n != 1 {
		t.Errorf("ten years later %d went, want the idle one alone", n)
	}
	x.now = now
	x.append(idempotent(1, 0, 77, 1, false))
	if st := x.log.ProducerStates(); len(st) != 2 || st[1].ProducerID != 2 || st[1].TxnStartOffset != 5 || st[0].LastSequence != 77 ||
		st[0].TxnStartOffset != -1 || st[0].CoordinatorEpoch != -1 {
		t.Errorf("%+v", st)
	}
}

// Markers of an older coordinator, plain batches inside a transaction, unverified transactions, and markers whose
// epoch is not newer under transaction.version 2 are refused.
func TestS039_transaction_fences(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{}).open()
	if _, err := x.try(idempotent(1, 1, 0, 1, true), 0, AppendOptions{}); !errors.Is(err, ErrInvalidTxnState) {
		t.Errorf("not verified: %v", err)
	}
	x.append(idempotent(1, 1, 0, 1, true))
	if _, err := x.try(idempotent(1, 1, 1, 1, false), 0, AppendOptions{}); !errors.Is(err, ErrInvalidTxnState) {
		t.Errorf("plain inside: %v", err)
	}
	if _, err := x.try(idempotent(1, 1, 1, 1, true), 0, AppendOptions{}); err != nil {
		t.Errorf("open already: %v", err)
	}
	o := AppendOptions{Origin: OriginCoordinator, TxnV2: true}
	if _, err := x.log.AppendAsLeader(marker(1, 1, true, 5), 0, o); !errors.Is(err, ErrInvalidProducerEpoch) {
		t.Errorf("marker of the same epoch: %v", err)
	}
	if _, err := x.log.AppendAsLeader(marker(1, 2, true, 5), 0, o); err != nil {
		t.Fatal(err)
	}
	if _, err := x.log.AppendAsLeader(marker(1, 2, true, 5), 0, o); err != nil {
		t.Errorf("its repeat: %v", err)
	}
	if _, err := x.log.AppendAsLeader(marker(1, 3, true, 4), 0, o); !errors.Is(err, ErrCoordinatorFenced) {
		t.Errorf("older coordinator: %v", err)
	}
	if _, err := x.log.AppendAsLeader(marker(1, 1, true, 5), 0, o); !errors.Is(err, ErrInvalidProducerEpoch) {
		t.Errorf("older producer: %v", err)
	}
	// After a bump only sequence 0 can follow.
	if _, err := x.try(idempotent(1, 2, 2, 1, true), 0, AppendOptions{TxnVerified: true}); !errors.Is(err, ErrOutOfOrderSequence) {
		t.Errorf("sequence after a bump: %v", err)
	}
	x.append(idempotent(1, 2, 0, 1, true))
}

// A duplicate that arrives when the segment is due to roll is answered as one.
func TestS042_duplicate_at_a_roll(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{SegmentBytes: 100}).open()
	b := idempotent(1, 0, 0, 3, false)
	x.append(b)
	if info := x.append(b); !info.Duplicate || info.BaseOffset != 0 || info.LastOffset != 2 || x.leo() != 3 {
		t.Errorf("%+v, end %d", info, x.leo())
	}
}

// A batch that was refused leaves no trace in the producer's sequence.
func TestB062_refused_batches_leave_no_trace(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{})
	f := x.onFault()
	x.open()
	for range 3 {
		f.Add(vfs.Rule{Kind: vfs.OpWrite, Name: ".log", Short: 20})
		if _, err := x.try(idempotent(1, 0, 0, 2, false), 0, AppendOptions{}); err == nil {
			t.Fatal("no error")
		}
	}
	x.append(idempotent(1, 0, 0, 2, false))
	if info := x.append(idempotent(1, 0, 2, 2, false)); info.BaseOffset != 2 {
		t.Errorf("%+v", info)
	}
}

// Any bytes are either a snapshot, which then comes back byte for byte in content, or an error.
func FuzzProducerSnapshot(f *testing.F) {
	p := &producers{}
	p.appended(idempotent(4000, 5, 0, 2, true), 0)
	f.Add(formatSnapshot(p))
	f.Add(formatSnapshot(&producers{}))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := parseSnapshot(data)
		if err != nil {
			return
		}
		again, err := parseSnapshot(formatSnapshot(&p))
		if err != nil || len(again.byID) != len(p.byID) || len(again.open) != len(p.open) {
			t.Fatalf("%v", err)
		}
	})
}

// Any bytes are either an index, with entries that rise, or an error.
func FuzzIndexes(f *testing.F) {
	f.Add(unhex("0000003b00001036"), int64(5000))
	f.Add(unhex("0000018bcfe568050000003b"), int64(5000))
	f.Add(unhex("00000000000000000fa000000000000000640000000000000069000000000000006a"), int64(100))
	f.Fuzz(func(t *testing.T, data []byte, size int64) {
		if es, err := parseOffsetIndex(data, size); err == nil {
			if again, err := parseOffsetIndex(formatOffsetEntries(es), size); err != nil || len(again) != len(es) {
				t.Fatal(err)
			}
		}
		if es, err := parseTimeIndex(data); err == nil {
			if again, err := parseTimeIndex(formatTimeEntries(es)); err != nil || len(again) != len(es) {
				t.Fatal(err)
			}
		}
		if es, err := parseTxnIndex(data, size); err == nil {
			if again, err := parseTxnIndex(formatTxnEntries(es), size); err != nil || len(again) != len(es) {
				t.Fatal(err)
			}
		}
	})
}

// Any bytes are either a checkpoint, which comes back as the same map, or an error.
func FuzzOffsetCheckpoint(f *testing.F) {
	f.Add([]byte("0\n2\nt 0 5\nu-v 17 9\n"))
	f.Add([]byte("9\n0\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := parseCheckpoint(data)
		if err != nil {
			return
		}
		again, err := parseCheckpoint(formatCheckpoint(m))
		if err != nil || len(again) != len(m) {
			t.Fatalf("%v", err)
		}
	})
}

// A producer whose epoch rose begins at sequence 0 again, and nothing it sends is taken for a batch of its earlier epoch.
func TestSequencesOfAnEarlierEpochAreForgotten(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{}).open()
	for seq := range int32(4) {
		x.append(idempotent(1, 0, seq, 1, false))
	}
	for seq := range int32(4) {
		if info := x.append(idempotent(1, 1, seq, 1, false)); info.Duplicate || info.BaseOffset != int64(4+seq) {
			t.Errorf("sequence %d of epoch 1: offset %d, duplicate %v", seq, info.BaseOffset, info.Duplicate)
		}
	}
}

// How long a producer has been silent is told by the clock, not by what its records say their time is.
func TestOldRecordsDoNotExpireTheirProducer(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{ProducerExpirationMs: 1000}).open()
	x.now = x.now.Add(365 * 24 * time.Hour)
	x.append(idempotent(1, 0, 0, 1, false)) // of last year
	x.now = x.now.Add(999 * time.Millisecond)
	if n := x.log.ExpireProducers(); n != 0 {
		t.Errorf("%d producers expired", n)
	}
	x.now = x.now.Add(time.Millisecond)
	if n := x.log.ExpireProducers(); n != 1 {
		t.Errorf("%d producers expired", n)
	}
}

// A node that remembers too many producers forgets, in the partition that gets new ones, those that were silent for
// longest: none with an open transaction, and none of another partition.
func TestProducersBeyondTheMostAreForgotten(t *testing.T) {
	t.Parallel()
	var total ProducerTotal
	x, y := newTester(t, Config{MaxProducers: 40}), newTester(t, Config{MaxProducers: 40})
	for _, one := range []*tester{x, y} {
		o := one.options()
		o.Producers = &total
		l, err := Open(o)
		if err != nil {
			t.Fatal(err)
		}
		one.log = l
	}
	for id := range int64(20) {
		y.append(idempotent(id, 0, 0, 1, false))
	}
	x.append(idempotent(1000, 0, 0, 1, true)) // its transaction stays open
	for id := range int64(100) {
		x.now = x.now.Add(time.Millisecond)
		x.append(idempotent(2000+id, 0, 0, 1, false))
	}
	if n := total.Count(); n > 40 || n < 30 {
		t.Errorf("%d producers are remembered", n)
	}
	if n := y.log.ProducerCount(); n != 20 {
		t.Errorf("the other partition remembers %d", n)
	}
	left := x.log.ProducerStates()
	if left[0].ProducerID != 1000 || left[len(left)-1].ProducerID != 2099 || left[1].ProducerID < 2080 {
		t.Errorf("%+v", left)
	}
	if info := x.append(idempotent(2099, 0, 0, 1, false)); !info.Duplicate {
		t.Error("the newest was forgotten")
	}
	// One that was forgotten goes on as it would after its records were deleted.
	if _, err := x.try(idempotent(2000, 0, 1, 1, false), 0, AppendOptions{}); err != nil {
		t.Error(err)
	}
	x.close()
	if n := total.Count(); n != 20 {
		t.Errorf("%d producers are remembered after one partition was closed", n)
	}
}

// What a coordinator writes in a transaction has no sequence numbers: its offset is remembered all the same, in the snapshot
// too, and it is what compaction keeps of the producer.
func TestBatchesWithoutSequences(t *testing.T) {
	t.Parallel()
	x := newTester(t, compact(Config{})).open()
	commit := keyed(ts0, record.BuilderOptions{Producer: &record.Producer{ID: 7, Epoch: 1, BaseSequence: record.NoSequence}, Transactional: true}, kv{"g", "1"})
	coordinator := AppendOptions{Origin: OriginCoordinator, TxnVerified: true}
	for range 2 {
		if _, err := x.try(commit, 0, coordinator); err != nil {
			t.Fatal(err)
		}
	}
	x.end(marker(7, 1, true, 0))
	x.append(keyed(ts0, record.BuilderOptions{}, kv{"g", "2"}))
	for _, reopened := range []bool{false, true} {
		if got := x.log.ProducerStates(); len(got) != 1 || got[0].LastSequence != -1 || got[0].TxnStartOffset != -1 {
			t.Errorf("reopened %t: %+v", reopened, got)
		}
		if got := x.log.lastOfProducers()[7]; got != (lastOfProducer{offset: 1, hasData: true, epoch: 1}) {
			t.Errorf("reopened %t: %+v", reopened, got)
		}
		x.close().open(clean, func(o *Options) { o.HighWatermark = 4 })
	}
	x.log.mu.Lock()
	err := x.log.roll(x.log.leo)
	x.log.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	x.mustPass()
	wantBatches(t, x, "compacted", "1-1 empty", "2-2 COMMIT", "3-3 3:g=2")
}

// After a kill a producer sends again the five batches that were on their way, also when a segment was rolled among them:
// each is recognised.
func TestRetriesOverARollAndAKill(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{SegmentBytes: 500}).open(recoverFrom(0))
	for i := range int32(10) {
		x.append(idempotent(7, 0, i, 1, false))
	}
	if err := x.log.flushSealed(); err != nil {
		t.Fatal(err)
	}
	point, hw := x.log.RecoveryPoint(), x.leo()
	if x.log.SegmentCount() < 2 || point != 7 {
		t.Fatalf("%d segments, recovery point %d", x.log.SegmentCount(), point)
	}
	x.open(recoverFrom(point), func(o *Options) { o.HighWatermark = hw })
	for i := int32(5); i < 10; i++ {
		if info, err := x.try(idempotent(7, 0, i, 1, false), 0, AppendOptions{}); err != nil || !info.Duplicate || info.BaseOffset != int64(i) {
			t.Errorf("batch %d again: %+v %v", i, info, err)
		}
	}
	if info := x.append(idempotent(7, 0, 10, 1, false)); info.BaseOffset != 10 {
		t.Errorf("the next is at %d", info.BaseOffset)
	}
}
