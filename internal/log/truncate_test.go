package log

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
)

// generation is a batch at offset base whose value names the generation of the log it belongs to.
func generation(base int64, gen int, size int) record.Batch {
	b := record.NewBuilder(record.BuilderOptions{BaseOffset: base})
	value := bytes.Repeat([]byte{byte('A' + gen%26)}, size)
	if err := b.Append(ts0, []byte(fmt.Sprint(base)), value, nil); err != nil {
		panic(err)
	}
	out := b.Bytes()
	out.SetPartitionLeaderEpoch(int32(gen))
	return out
}

// While eight slow readers hold ranges of a segment, it is truncated and grows again with other records of the
// same size, many times: no reader ever sees a byte that was not in the log it asked for.
func TestTruncationUnderSlowReaders(t *testing.T) {
	t.Parallel()
	for _, fsys := range []string{"mem", "os"} {
		t.Run(fsys, func(t *testing.T) {
			t.Parallel()
			x := newTester(t, Config{SegmentBytes: 1 << 20})
			if fsys == "os" {
				x.fs, x.dir = vfs.OS(), t.TempDir()+"/t-0"
			}
			x.open()
			var mu sync.Mutex // guards history
			history := map[int64]map[byte]bool{}
			put := func(base int64, gen int) {
				mu.Lock()
				if history[base] == nil {
					history[base] = map[byte]bool{}
				}
				history[base][byte('A'+gen%26)] = true
				mu.Unlock()
				if _, err := x.log.AppendAsFollower(generation(base, gen, 2000), int32(gen)); err != nil {
					t.Error(err)
				}
			}
			const n = 50
			for o := range int64(n) {
				put(o, 0)
			}
			done := make(chan struct{})
			var wg sync.WaitGroup
			for r := range 8 {
				wg.Add(1)
				go func() {
					defer wg.Done()
					slowReader(t, x.log, uint64(r), done)
				}()
			}
			rng := rand.New(rand.NewPCG(1, 2))
			for gen := 1; gen < 25; gen++ {
				cut := int64(rng.IntN(n))
				if err := x.log.TruncateTo(cut, "test"); err != nil {
					t.Fatal(err)
				}
				for o := cut; o < n; o++ {
					put(o, gen)
				}
			}
			close(done)
			wg.Wait()
			if err := x.log.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// slowReader reads a range twice, piece by piece: what it saw the first time it must see again, and each batch must be
// of the epoch that the view says its offset has.
func slowReader(t *testing.T, l *Log, seed uint64, done chan struct{}) {
	rng := rand.New(rand.NewPCG(seed, 7))
	for {
		select {
		case <-done:
			return
		default:
		}
		v := l.View()
		if v.EndOffset == v.LogStartOffset {
			v.Release()
			continue
		}
		from := v.LogStartOffset + rng.Int64N(v.EndOffset-v.LogStartOffset)
		d, err := v.Read(from, v.EndOffset, 64<<10, true)
		if err != nil {
			t.Error(err)
		}
		var first []byte
		for pass := range 3 {
			var data []byte
			for at := 0; at < d.Length; {
				piece := make([]byte, min(1+rng.IntN(8000), d.Length-at))
				if _, err := d.File.ReadAt(piece, d.Position+int64(at)); err != nil {
					t.Errorf("pass %d: the file ends under a reader: %v", pass, err)
				}
				data = append(data, piece...)
				at += len(piece)
			}
			if pass == 0 {
				first = data
			} else if !bytes.Equal(first, data) {
				t.Error("bytes changed under a reader")
			}
		}
		for b, err := range record.Batches(first) {
			if err == nil {
				err = b.VerifyCRC()
			}
			if err != nil {
				t.Errorf("a batch of no log: %v", err)
				break
			}
			e, _ := v.Epochs.ForOffset(b.BaseOffset())
			if e != b.PartitionLeaderEpoch() {
				t.Errorf("offset %d has epoch %d, the view says %d", b.BaseOffset(), b.PartitionLeaderEpoch(), e)
			}
		}
		v.Release()
	}
}

// A cut at any offset, over segments, leaves the batches below it, with epochs, producers and indexes to match,
// at once and after a crash.
func TestTruncateAnywhere(t *testing.T) {
	t.Parallel()
	for cut := int64(0); cut <= 42; cut++ {
		for _, held := range []bool{false, true} {
			x := newTester(t, Config{SegmentBytes: 1000, IndexIntervalBytes: 150}).open()
			for i := range int32(20) {
				if _, err := x.try(idempotent(7, 0, i*2, 2, false), i/5, AppendOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			if err := x.log.Flush(); err != nil {
				t.Fatal(err)
			}
			v := x.log.View()
			if !held {
				v.Release()
			}
			if err := x.log.TruncateTo(cut, "test"); err != nil {
				t.Fatal(err)
			}
			if held {
				if n := len(readAll(t, v)); n != 20 {
					t.Errorf("cut %d: the old view has %d batches", cut, n)
				}
				v.Release()
			}
			end := min(cut/2*2, 40)
			check := func(when string) {
				t.Helper()
				if got := len(x.offsets()); got != int(end/2) || x.leo() != end {
					t.Errorf("cut %d %s: %d batches, end %d, want %d", cut, when, got, x.leo(), end)
				}
				w := x.log.View()
				defer w.Release()
				if last, ok := w.Epochs.Latest(); ok != (end > 0) || ok && last.Epoch != int32((end-1)/10) {
					t.Errorf("cut %d %s: epochs %v", cut, when, w.Epochs)
				}
			}
			check("now")
			if x.log.RecoveryPoint() > end {
				t.Errorf("cut %d: recovery point %d", cut, x.log.RecoveryPoint())
			}
			x.crash(vfs.LoseUnsynced, 0).open(recoverFrom(min(40, end)))
			check("after a crash")
			if end > 0 {
				if info, err := x.try(idempotent(7, 0, int32(end)-2, 2, false), 9, AppendOptions{}); err != nil || !info.Duplicate {
					t.Errorf("cut %d: the last batch is not remembered: %v", cut, err)
				}
			}
			if info, err := x.try(idempotent(7, 0, int32(end), 2, false), 9, AppendOptions{}); err != nil || info.BaseOffset != end {
				t.Errorf("cut %d: next append at %d, %v", cut, info.BaseOffset, err)
			}
		}
	}
}

// Starting over drops all data, epochs and producers, durably, also above the old end.
func TestTruncateFullyAndStartAt(t *testing.T) {
	t.Parallel()
	for _, at := range []int64{0, 3, 100} {
		x := newTester(t, Config{SegmentBytes: 300}).open()
		for i := range int32(9) {
			x.append(idempotent(7, 0, i, 1, false))
		}
		v := x.log.View()
		if err := x.log.TruncateFullyAndStartAt(at, "test"); err != nil {
			t.Fatal(err)
		}
		if n := len(readAll(t, v)); n != 9 {
			t.Errorf("the old view has %d batches", n)
		}
		v.Release()
		for _, when := range []string{"now", "after a crash"} {
			v := x.log.View()
			if v.LogStartOffset != at || v.EndOffset != at || v.HighWatermark != at || v.Epochs.Len() != 0 || x.log.SegmentCount() != 1 {
				t.Errorf("%s: [%d,%d) hw %d epochs %v", when, v.LogStartOffset, v.EndOffset, v.HighWatermark, v.Epochs)
			}
			v.Release()
			if info := x.append(idempotent(7, 0, 33, 1, false)); info.BaseOffset != at {
				t.Errorf("%s: next append at %d", when, info.BaseOffset)
			}
			if err := x.log.TruncateFullyAndStartAt(at, "again"); err != nil {
				t.Fatal(err)
			}
			x.crash(vfs.LoseUnsynced, 0).open(startAt(at))
		}
	}
}

// Truncating at the end cuts nothing but an empty reign; below the first segment everything goes.
func TestTruncateAtTheEdges(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{}).open(startAt(50))
	x.append(batch(10, 400, ts0))
	if _, err := x.log.BecomeLeader(3); err != nil {
		t.Fatal(err)
	}
	if err := x.log.TruncateTo(60, "empty reign"); err != nil {
		t.Fatal(err)
	}
	v := x.log.View()
	if v.Epochs.String() != "{0:50}" || v.EndOffset != 60 {
		t.Errorf("epochs %v, end %d", v.Epochs, v.EndOffset)
	}
	v.Release()
	if n := x.count(EventTruncated); n != 0 {
		t.Errorf("%d truncations told", n)
	}
	if err := x.log.TruncateTo(20, "below"); err != nil {
		t.Fatal(err)
	}
	if v := x.log.View(); v.LogStartOffset != 20 || v.EndOffset != 20 {
		t.Errorf("[%d,%d)", v.LogStartOffset, v.EndOffset)
	}
	if x.count(EventStartedAt) != 1 {
		t.Errorf("events %v", x.events)
	}
}

// After a cut at a batch that the index names, and other batches in its place, the index still rises, and is found
// sound when the log is closed.
func TestIndexRisesAfterACut(t *testing.T) {
	t.Parallel()
	for cut := range int64(12) {
		x := newTester(t, Config{IndexIntervalBytes: 1}).open()
		for i := range 12 {
			x.append(batch(3, 150, ts0+int64(i)))
		}
		if err := x.log.TruncateTo(3*cut, "test"); err != nil {
			t.Fatal(err)
		}
		for i := range 12 {
			x.append(batch(1, 150, ts0+int64(i)))
		}
		x.close()
		if _, err := parseOffsetIndex(x.file(indexName(0)), 1<<20); err != nil {
			t.Errorf("cut at %d: %v", 3*cut, err)
		}
		if problems, err := Verify(x.fs, x.dir); err != nil || len(problems) > 0 {
			t.Errorf("cut at %d: %v %v", 3*cut, problems, err)
		}
	}
}

// A follower whose records were all deleted takes over, from its log start on, a history of older epochs than those it had:
// what lies below the log start does not make that log corrupt when it is scanned after a crash, with the epochs' checkpoint
// and without.
func TestScanPastAnOlderHistoryAtTheLogStart(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		x := newTester(t, Config{})
		x.open()
		for o := range int64(3) {
			if _, err := x.log.AppendAsFollower(generation(o, 15, 10), 15); err != nil {
				t.Fatal(err)
			}
		}
		x.log.SetHighWatermark(3)
		if err := x.log.AdvanceLogStart(3, "test"); err != nil {
			t.Fatal(err)
		}
		if err := x.log.TruncateTo(3, "test"); err != nil { // the empty reign goes
			t.Fatal(err)
		}
		for o := int64(3); o < 6; o++ {
			if _, err := x.log.AppendAsFollower(generation(o, 14, 10), 16); err != nil {
				t.Fatal(err)
			}
		}
		if lost {
			if err := x.fs.Remove(x.dir + "/leader-epoch-checkpoint"); err != nil {
				t.Fatal(err)
			}
		}
		x.crash(vfs.LoseNothing, 1).open(startAt(3))
		v := x.log.View()
		if epoch, ok := v.Epochs.ForOffset(4); v.EndOffset != 6 || !ok || epoch != 14 {
			t.Errorf("checkpoint lost %t: end %d, epoch %d of offset 4", lost, v.EndOffset, epoch)
		}
		v.Release()
	}
}
