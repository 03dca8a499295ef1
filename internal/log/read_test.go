package log

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/record"
)

func (x *tester) read(offset, bound int64, maxBytes int, minOne bool) []record.Batch {
	x.t.Helper()
	v := x.log.View()
	defer v.Release()
	d, err := v.Read(offset, bound, maxBytes, minOne)
	if err != nil {
		x.t.Fatal(err)
	}
	data := must(d.ReadAll(nil))
	var out []record.Batch
	for b, err := range record.Batches(data) {
		if err != nil {
			x.t.Fatal(err)
		}
		out = append(out, b)
	}
	return out
}

// reopen closes the log, takes away all index files, and opens it again.
func (x *tester) reopenWithoutIndexes() {
	x.close()
	for _, n := range must(fileNames(x.fs, x.dir)) {
		if o, ok := fileOffset(n); ok && n != logName(o) && n != snapshotName(o) && n != txnName(o) {
			x.remove(n)
		}
	}
	x.open(clean)
}

// A fetch from the middle of a batch returns the whole batch.
func TestS043_whole_batch(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{}).open()
	x.append(batch(10, 400, ts0))
	for range 2 {
		if b := x.read(5, 10, 1000, true); len(b) != 1 || b[0].BaseOffset() != 0 {
			t.Errorf("%d batches", len(b))
		}
		x.reopenWithoutIndexes() // S-050
	}
}

// The limit cuts later batches, never the first when one is to be had at all.
func TestS044_limits(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{}).open()
	for range 3 {
		x.append(exactly(1000, ts0))
	}
	for range 2 {
		for _, c := range []struct {
			max    int
			minOne bool
			want   int
		}{{1500, true, 1}, {10, true, 1}, {0, false, 0}, {999, false, 0}, {1000, false, 1}, {2000, true, 2}, {1 << 20, true, 3}} {
			if got := len(x.read(0, 3, c.max, c.minOne)); got != c.want {
				t.Errorf("max %d min one %v: %d batches, want %d", c.max, c.minOne, got, c.want)
			}
		}
		x.reopenWithoutIndexes()
	}
	v := x.log.View()
	defer v.Release()
	if d, err := v.Read(1, 2, 1<<20, true); err != nil || d.Length != 1000 || d.Position != 1000 {
		t.Errorf("up to the bound: %+v %v", d, err)
	}
	if d, err := v.Read(2, 2, 1<<20, true); err != nil || d.Length != 0 {
		t.Errorf("at the bound: %+v %v", d, err)
	}
	var oor *OffsetOutOfRangeError
	if _, err := v.Read(4, 3, 1, true); !errors.As(err, &oor) || oor.EndOffset != 3 {
		t.Errorf("above the end: %v", err)
	}
}

// A read stops at the end of a segment and the next one goes on; in a hole it finds the next batch.
func TestS045_across_segments_and_holes(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{SegmentBytes: 1000, IndexIntervalBytes: 200}).open()
	for _, base := range []int64{0, 10, 20, 40, 50, 90, 100} {
		b := batch(10, 300, ts0)
		b.SetBaseOffset(base)
		b.SetPartitionLeaderEpoch(0)
		if _, err := x.log.AppendAsFollower(b, 0); err != nil {
			t.Fatal(err)
		}
	}
	x.log.SetHighWatermark(110)
	for range 2 {
		for offset := range int64(110) {
			want := []int64{0, 10, 20, 40, 50, 90, 100}[slices.IndexFunc([]int64{9, 19, 29, 49, 59, 99, 109}, func(l int64) bool { return l >= offset })]
			if b := x.read(offset, 110, 1<<20, true); len(b) == 0 || b[0].BaseOffset() != want {
				t.Errorf("read %d: %v, want %d", offset, b, want)
			}
		}
		if got := fmt.Sprint(x.offsets()); got != "[0 10 20 40 50 90 100]" {
			t.Errorf("batches %s", got)
		}
		x.reopenWithoutIndexes()
		x.log.SetHighWatermark(110)
	}
}

// A range that holds only markers and emptied batches is returned, so that readers can pass it.
func TestS046_only_markers(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{}).open()
	empty := record.EmptyBatch(batch(3, 200, ts0))
	empty.SetPartitionLeaderEpoch(0)
	if _, err := x.log.AppendAsFollower(empty, 0); err != nil {
		t.Fatal(err)
	}
	x.end(marker(1, 0, true, 0))
	if b := x.read(1, 4, 1000, true); len(b) != 2 || b[1].NextOffset() != 4 {
		t.Errorf("%v", b)
	}
}

// The first unstable offset, and the aborted transactions of a read, follow the worked example of two transactions.
func TestS047_S038_transactions(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{}).open(startAt(10))
	lso := func(hw, want int64) {
		t.Helper()
		x.log.SetHighWatermark(hw)
		v := x.log.View()
		defer v.Release()
		if v.LastStableOffset != want {
			t.Errorf("hw %d: last stable offset %d, want %d", hw, v.LastStableOffset, want)
		}
	}
	put := func(b record.Batch) {
		t.Helper()
		if _, err := x.log.AppendAsLeader(b, 0, AppendOptions{TxnVerified: true}); err != nil {
			t.Fatal(err)
		}
	}
	put(idempotent(1, 0, 0, 5, true))
	put(idempotent(2, 0, 0, 3, true))
	lso(15, 10)
	x.end(marker(1, 0, false, 0))
	lso(18, 10)
	x.end(marker(2, 0, true, 0))
	lso(19, 15)
	lso(20, 20)
	for _, reopened := range []bool{false, true} {
		v := x.log.View()
		for _, c := range []struct {
			from int64
			want string
		}{{10, "[{1 10}]"}, {12, "[{1 10}]"}, {19, "[]"}} {
			d := must(v.Read(c.from, 20, 1<<20, true))
			if got := fmt.Sprint(v.AbortedTxns(c.from, must(v.UpperBound(d)))); got != c.want {
				t.Errorf("reopened %v: aborted from %d: %s, want %s", reopened, c.from, got, c.want)
			}
		}
		if got := v.AbortedTxns(19, 20); got == nil {
			t.Error("none is a null list")
		}
		v.Release()
		x.close()
		entries, err := parseTxnIndex(x.file(txnName(10)), 10)
		if err != nil || fmt.Sprint(entries) != "[{1 10 18 15}]" {
			t.Errorf("transaction index %v, %v", entries, err)
		}
		x.open(clean, func(o *Options) { o.HighWatermark = 20 })
	}
}

// An abort whose marker lies in a later segment than its data is in that segment's transaction index, in Kafka's
// bytes, and survives a crash that loses the index.
func TestS025_abort_across_segments(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{SegmentBytes: 800}).open(startAt(100))
	x.append(idempotent(4000, 5, 0, 5, true))
	x.log.SetConfig(Config{SegmentBytes: 100})
	x.end(marker(4000, 5, false, 3))
	x.log.SetConfig(Config{SegmentBytes: 800})
	x.append(idempotent(4000, 5, 5, 2, true))
	x.end(marker(4000, 5, true, 3)) // a commit adds none
	x.close()
	want := unhex("0000 0000000000000fa0 0000000000000064 0000000000000069 000000000000006a")
	if got := x.file(txnName(105)); !slices.Equal(got, want) {
		t.Errorf("transaction index %x", got)
	}
	if x.exists(txnName(100)) {
		t.Error("the data's segment has an index")
	}
	x.remove(txnName(105))
	x.open(recoverFrom(100))
	if got := fmt.Sprint(must(parseTxnIndex(x.file(txnName(105)), 105))); got != "[{4000 100 105 106}]" {
		t.Errorf("rebuilt: %s", got)
	}
}

// Lookups by time give the first record in offset order, and the largest timestamp the first record that has it.
func TestS048_by_time(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{}).open()
	put := func(ts ...int64) {
		b := record.NewBuilder(record.BuilderOptions{})
		for _, at := range ts {
			_ = b.Append(at, nil, []byte("v"), nil)
		}
		x.append(b.Bytes())
	}
	put(100, 90)
	put(80, 120)
	put(110)
	for range 2 {
		v := x.log.View()
		for ts, want := range map[int64]string{85: "{0 100 0} true", 105: "{3 120 0} true", 119: "{3 120 0} true", 121: "{0 0 0} false"} {
			f, ok, err := v.OffsetForTime(ts, 5)
			if got := fmt.Sprint(f, ok); got != want || err != nil {
				t.Errorf("time %d: %s %v, want %s", ts, got, err, want)
			}
		}
		if _, ok, err := v.OffsetForTime(105, 3); ok || err != nil {
			t.Errorf("at the bound: %v %v", ok, err)
		}
		if f, ok, err := v.MaxTimestamp(5); !ok || err != nil || f.Offset != 3 || f.Timestamp != 120 {
			t.Errorf("largest: %+v %v %v", f, ok, err)
		}
		v.Release()
		x.reopenWithoutIndexes()
		x.log.SetHighWatermark(5)
	}
	if err := x.log.AdvanceLogStart(1, "test"); err != nil {
		t.Fatal(err)
	}
	inside := x.log.View() // the log start lies inside the first batch: its record below is no answer
	defer inside.Release()
	for ts, want := range map[int64]string{85: "{1 90 0} true", 95: "{3 120 0} true"} {
		f, ok, err := inside.OffsetForTime(ts, 5)
		if got := fmt.Sprint(f, ok); got != want || err != nil {
			t.Errorf("time %d from offset 1 on: %s %v, want %s", ts, got, err, want)
		}
	}
	if _, ok, err := inside.MaxTimestamp(3); ok || err != nil {
		t.Errorf("largest at the bound: %v %v", ok, err)
	}
	if err := x.log.AdvanceLogStart(4, "test"); err != nil {
		t.Fatal(err)
	}
	v := x.log.View()
	defer v.Release()
	if f, ok, err := v.OffsetForTime(85, 5); !ok || err != nil || f.Offset != 4 {
		t.Errorf("below the log start: %+v %v %v", f, ok, err)
	}
	if f, ok, err := v.MaxTimestamp(5); !ok || err != nil || f.Offset != 4 || f.Timestamp != 110 {
		t.Errorf("largest left: %+v %v %v", f, ok, err)
	}
}

// S-050: with the index files deleted while the node was down, each kind alone and all of them, after a clean stop and after none,
// every answer of S-043 to S-048 is the same: whole batches, limits, segment ends and holes, ranges of markers, aborted lists, times.
func TestS050_index_files_deleted(t *testing.T) {
	t.Parallel()
	write := func() *tester {
		x := newTester(t, Config{SegmentBytes: 2500, IndexIntervalBytes: 300}).open()
		put := func(base int64, b record.Batch) {
			b.SetBaseOffset(base)
			b.SetPartitionLeaderEpoch(0)
			if _, err := x.log.AppendAsFollower(b, 0); err != nil {
				t.Fatal(err)
			}
		}
		for i := range int64(24) { // with a hole behind every fourth batch, and times that go up and down
			put(x.leo()+i%4/3*7, batch(3, 250, ts0+i*1000-i%3*1500))
		}
		for pid := range int64(6) {
			put(x.leo(), idempotent(pid, 0, 0, 4, true))
			put(x.leo(), batch(2, 700, ts0+30_000-pid))
			end := record.NewEndTxnBatch(record.EndTxnMarker{ProducerID: pid, Commit: pid%3 == 0}, ts0+31_000)
			put(x.leo(), end)
			put(x.leo(), record.EmptyBatch(batch(2, 100, ts0)))
		}
		return x
	}
	answers := func(x *tester) (out []string) {
		t.Helper()
		end := x.leo()
		x.log.SetHighWatermark(end)
		v := x.log.View()
		defer v.Release()
		for offset := range end {
			for _, most := range []int{10, 600, 1 << 20} {
				d, err := v.Read(offset, end, most, true)
				if err != nil {
					t.Fatal(err)
				}
				upper := must(v.UpperBound(d))
				out = append(out, fmt.Sprint("read ", offset, most, d.Position, d.Length, d.FirstBatchSize))
				if most == 1<<20 {
					// The bound may be higher without an index, never too low for what is named.
					out = append(out, fmt.Sprint("aborted ", offset, v.AbortedTxns(offset, min(upper, end))[:min(1, len(v.AbortedTxns(offset, min(upper, end))))]))
				}
			}
		}
		for ts := ts0 - 2000; ts < ts0+33_000; ts += 250 {
			f, ok, err := v.OffsetForTime(ts, end)
			out = append(out, fmt.Sprint("time ", ts-ts0, f, ok, err))
		}
		f, ok, err := v.MaxTimestamp(end)
		return append(out, fmt.Sprint("largest ", f, ok, err, v.AbortedTxns(0, end), v.LastStableOffset))
	}
	want := answers(write())
	for _, kinds := range [][]string{{".index"}, {".timeindex"}, {".txnindex"}, {".index", ".timeindex", ".txnindex"}} {
		for _, wasClean := range []bool{true, false} {
			x := write()
			end := x.leo()
			x.close()
			gone := 0
			for _, n := range must(fileNames(x.fs, x.dir)) {
				if slices.ContainsFunc(kinds, func(kind string) bool { return strings.HasSuffix(n, kind) && len(n) == 20+len(kind) }) {
					x.remove(n)
					gone++
				}
			}
			if gone < 3 {
				t.Fatalf("%v: only %d files to delete", kinds, gone)
			}
			x.open(func(o *Options) { o.Clean, o.RecoveryPoint = wasClean, end })
			got := answers(x)
			for i := range want {
				if got[i] != want[i] {
					t.Errorf("without %v, clean stop %v: %s, was %s", kinds, wasClean, got[i], want[i])
				}
			}
		}
	}
}

// Records without timestamps are never found by time, and the first of them is the newest when there are no others; for
// retention their file's time counts.
func TestS049_no_timestamps(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{SegmentBytes: 200, RetentionMs: 1000}).open()
	for range 4 {
		x.append(batch(1, 120, record.NoTimestamp))
	}
	v := x.log.View()
	if _, ok, err := v.OffsetForTime(0, 4); ok || err != nil {
		t.Errorf("by time 0: %v %v", ok, err)
	}
	if f, ok, err := v.MaxTimestamp(4); !ok || err != nil || f.Offset != 0 || f.Timestamp != record.NoTimestamp {
		t.Errorf("largest: %+v %v %v", f, ok, err)
	}
	v.Release()
	if n := must(x.log.Retain(x.now)); n != 0 {
		t.Errorf("%d segments went at once", n)
	}
	if n := must(x.log.Retain(x.now.Add(1001 * time.Millisecond))); n != 4 {
		t.Errorf("%d segments went", n)
	}
}

// A bound inside a batch shows nothing of it, however much it is wanted (P6).
func TestBoundInsideABatch(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{}).open()
	one := x.append(batch(2, 150, ts0)).Bytes
	both := one + x.append(batch(3, 150, ts0)).Bytes
	v := x.log.View()
	defer v.Release()
	for bound, want := range map[int64]int{1: 0, 2: one, 3: one, 4: one, 5: both} {
		if d, err := v.Read(0, bound, 1000, true); err != nil || d.Length != want {
			t.Errorf("up to %d: %d bytes, %v; want %d", bound, d.Length, err, want)
		}
	}
	for bound := range int64(5) {
		if d, err := v.Read(2, bound, 1000, true); err != nil || d.Length != 0 {
			t.Errorf("from 2 up to %d: %d bytes, %v", bound, d.Length, err)
		}
	}
}

// The upper bound of a range of one-record batches is above its last offset, wherever it ends.
func TestUpperBoundIsAboveTheRange(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{IndexIntervalBytes: 250, SegmentBytes: 1050}).open()
	for range 30 {
		x.append(exactly(100, ts0))
	}
	v := x.log.View()
	defer v.Release()
	for o := range int64(30) {
		for n := 1; n <= 12; n++ {
			d, err := v.Read(o, 30, 100*n, true)
			if err != nil {
				t.Fatal(err)
			}
			if u, err := v.UpperBound(d); err != nil || u < o+int64(d.Length/100) {
				t.Errorf("%d batches from %d on: upper bound %d, %v", d.Length/100, o, u, err)
			}
		}
	}
}
