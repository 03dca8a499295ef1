package log

import (
	"sync"
	"testing"

	"github.com/stelelog/stele/internal/vfs"
)

// The indexes of a large sealed segment live in their files: lookups by offset and time are as before, after a
// reopening too, and a truncation into the segment takes them back into memory.
func TestLargeIndexesLiveInTheirFiles(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{IndexIntervalBytes: 1}).open()
	const n = 2 * inMemoryIndexEntries
	for i := range n {
		x.append(batch(2, 120, ts0+int64(i)))
	}
	x.log.SetConfig(Config{IndexIntervalBytes: 1, SegmentBytes: 200})
	x.append(batch(2, 120, ts0+n))
	check := func(when string) {
		t.Helper()
		v := x.log.View()
		defer v.Release()
		st := v.state(0)
		if st.offsets.file == nil || st.times.file == nil || st.offsets.entries != nil || st.offsets.len() != n-1 {
			t.Fatalf("%s: %d entries in memory, %d in all", when, len(st.offsets.entries), st.offsets.len())
		}
		for i := range n {
			d, err := v.Read(int64(2*i+1), v.EndOffset, 1, true)
			if err != nil || d.Position != int64(i*d.FirstBatchSize) {
				t.Fatalf("%s: read %d at %d, %v", when, 2*i+1, d.Position, err)
			}
			f, ok, err := v.OffsetForTime(ts0+int64(i), v.EndOffset)
			if err != nil || !ok || f.Offset != int64(2*i) {
				t.Fatalf("%s: time %d: %+v %v %v", when, i, f, ok, err)
			}
			if u, err := v.UpperBound(d); err != nil || u <= int64(2*i+1) || u > int64(2*i+4) {
				t.Fatalf("%s: upper bound of %d is %d, %v", when, i, u, err)
			}
		}
	}
	check("after the roll")
	x.close().open(clean)
	x.log.SetHighWatermark(x.leo())
	check("after a clean stop")
	x.crash(vfs.LoseNothing, 0).open(recoverFrom(2 * n))
	x.log.SetHighWatermark(x.leo())
	check("after a crash")
	old := x.log.View()
	if err := x.log.TruncateTo(2*700, "test"); err != nil {
		t.Fatal(err)
	}
	for i := 700; i < n; i++ {
		x.append(batch(2, 200, ts0+int64(i)))
	}
	if got := len(readAll(t, old)); got != n+1 {
		t.Errorf("the old view has %d batches", got)
	}
	for i := range n {
		if f, ok, err := old.OffsetForTime(ts0+int64(i), old.EndOffset); err != nil || !ok || f.Offset != int64(2*i) {
			t.Fatalf("the old view: time %d: %+v %v %v", i, f, ok, err)
		}
	}
	old.Release()
	if got := len(x.offsets()); got != n {
		t.Errorf("%d batches", got)
	}
}

// A view of a segment whose indexes live in their files looks times up in them still when the segment has been cut and
// holds, at the same offsets, records of other times.
func TestOldViewKeepsItsIndexFiles(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{IndexIntervalBytes: 1}).open()
	const n = 2 * inMemoryIndexEntries
	for i := range n {
		x.append(batch(2, 120, ts0+int64(i)))
	}
	x.log.SetConfig(Config{IndexIntervalBytes: 1, SegmentBytes: 200})
	x.append(batch(2, 120, ts0+n))
	x.log.SetConfig(Config{IndexIntervalBytes: 1})
	old := x.log.View()
	defer old.Release()
	if err := x.log.TruncateTo(2*100, "test"); err != nil {
		t.Fatal(err)
	}
	for i := range 5 * n {
		x.append(batch(2, 120, ts0+100+int64(i/4)))
	}
	x.close()
	for i := range n {
		if f, ok, err := old.OffsetForTime(ts0+int64(i), old.EndOffset); err != nil || !ok || f.Offset != int64(2*i) {
			t.Fatalf("time %d: %+v %v %v", i, f, ok, err)
		}
	}
}

// Flushes from several goroutines go on beside appends, truncations and retention; none of them fails, and the
// recovery point never lies above the end.
func TestFlushBesideTheWriter(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{SegmentBytes: 600, RetentionBytes: 2000, RetentionMs: -1}).open()
	done := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				select {
				case <-done:
					return
				default:
				}
				flush := x.log.Flush
				if i%2 == 0 {
					flush = x.log.flushSealed
				}
				if err := flush(); err != nil {
					t.Error(err)
					return
				}
			}
		}()
	}
	for i := range 600 {
		x.append(batch(1, 120, ts0))
		if i%7 == 0 {
			v := x.log.View()
			end := max(v.EndOffset-int64(i%13), v.LogStartOffset)
			v.Release()
			if err := x.log.TruncateTo(end, "test"); err != nil {
				t.Fatal(err)
			}
			if p := x.log.RecoveryPoint(); p > x.leo() {
				t.Errorf("recovery point %d above the end %d", p, x.leo())
			}
		}
		if i%50 == 0 {
			must(x.log.Retain(x.now))
		}
	}
	close(done)
	wg.Wait()
	if x.log.Err() != nil {
		t.Error(x.log.Err())
	}
}
