package log

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
)

// oracle computes from the batches alone what the log should say about transactions: the last stable offset, and
// which data batches were aborted.
func oracle(t failer, batches []record.Batch, hw int64) (lso int64, aborted map[int64]bool) {
	lso, aborted = hw, map[int64]bool{}
	open := map[int64][]record.Batch{}
	for _, b := range batches {
		if !b.IsTransactional() {
			continue
		}
		pid := b.ProducerID()
		m, isMarker, err := record.ParseEndTxnMarker(b)
		if err != nil {
			t.Fatal(err)
		}
		if !isMarker {
			open[pid] = append(open[pid], b)
			continue
		}
		for _, d := range open[pid] {
			if !m.Commit {
				aborted[d.BaseOffset()] = true
			}
			if b.LastOffset() >= hw {
				lso = min(lso, d.BaseOffset())
			}
		}
		delete(open, pid)
	}
	for _, bs := range open {
		lso = min(lso, bs[0].BaseOffset())
	}
	return lso, aborted
}

// visible filters batches as a read_committed consumer does: with the list of aborted transactions, by producer, in
// the order of their first offsets, each until its abort marker.
func visible(t failer, batches []record.Batch, list []AbortedTxn) (out []int64) {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b AbortedTxn) int { return int(a.FirstOffset - b.FirstOffset) })
	dropping := map[int64]bool{}
	for _, b := range batches {
		for len(list) > 0 && list[0].FirstOffset <= b.LastOffset() {
			dropping[list[0].ProducerID] = true
			list = list[1:]
		}
		m, isMarker, err := record.ParseEndTxnMarker(b)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case isMarker && !m.Commit:
			delete(dropping, b.ProducerID())
		case !isMarker && !(b.IsTransactional() && dropping[b.ProducerID()]):
			out = append(out, b.BaseOffset())
		}
	}
	return out
}

// Random transactions of several producers over rolls, truncations, restarts and crashes: the last stable offset
// and what a read_committed reader sees, from any offset, are those that the batches alone tell (P6, P11).
func TestTransactionsAgainstOracle(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		x := newTester(rt, Config{SegmentBytes: int32(rapid.SampledFrom([]int{200, 500, 4000}).Draw(rt, "segment.bytes")),
			IndexIntervalBytes: int32(rapid.SampledFrom([]int{1, 300}).Draw(rt, "interval"))}).open(recoverFrom(0))
		hw, point := int64(0), int64(0)
		sequences := func(pid int64) int32 {
			for _, s := range x.log.ProducerStates() {
				if s.ProducerID == pid {
					return s.LastSequence + 1
				}
			}
			return 0
		}
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			pid := rapid.Int64Range(1, 4).Draw(rt, "pid")
			switch op := rapid.IntRange(0, 12).Draw(rt, "op"); op {
			case 0, 1, 2, 3:
				b := idempotent(pid, 0, sequences(pid), rapid.IntRange(1, 3).Draw(rt, "n"), true)
				if _, err := x.log.AppendAsLeader(b, 0, AppendOptions{TxnVerified: true}); err != nil {
					rt.Fatal(err)
				}
			case 4, 5, 6, 7:
				x.end(marker(pid, 0, op > 5, 0))
			case 8:
				if _, err := x.log.AppendAsLeader(batch(2, 100, ts0), 0, AppendOptions{}); err != nil {
					rt.Fatal(err)
				}
			case 9:
				hw = rapid.Int64Range(hw, x.leo()).Draw(rt, "hw")
				x.log.SetHighWatermark(hw)
			case 10:
				if err := x.log.TruncateTo(rapid.Int64Range(0, x.leo()).Draw(rt, "truncate"), "test"); err != nil {
					rt.Fatal(err)
				}
				point = min(point, x.leo())
			case 11:
				point = x.leo()
				x.close().open(clean, func(o *Options) { o.HighWatermark = hw })
			case 12:
				loss := rapid.SampledFrom([]vfs.Loss{vfs.LoseNothing, vfs.LoseUnsynced, vfs.LoseSome}).Draw(rt, "loss")
				x.crash(loss, rapid.Uint64().Draw(rt, "seed")).open(recoverFrom(point), func(o *Options) { o.HighWatermark = hw })
			}
			hw = checkTransactions(rt, x)
		}
	})
}

func checkTransactions(t *rapid.T, x *tester) (hw int64) {
	v := x.log.View()
	defer v.Release()
	all := readAll(t, v)
	lso, aborted := oracle(t, all, v.HighWatermark)
	if v.LastStableOffset != lso {
		t.Fatalf("hw %d: last stable offset %d, want %d", v.HighWatermark, v.LastStableOffset, lso)
	}
	for o := int64(0); o < lso; o++ {
		d, err := v.Read(o, lso, rapid.IntRange(1, 1000).Draw(t, "max"), true)
		if err != nil {
			t.Fatal(err)
		}
		data, err := d.ReadAll(nil)
		if err != nil {
			t.Fatal(err)
		}
		upper, err := v.UpperBound(d)
		if err != nil {
			t.Fatal(err)
		}
		var bs []record.Batch
		var want []int64
		for b := range record.Batches(data) {
			bs = append(bs, b)
			if !b.IsControl() && !aborted[b.BaseOffset()] {
				want = append(want, b.BaseOffset())
			}
		}
		if got := visible(t, bs, v.AbortedTxns(o, upper)); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("read from %d below %d shows %v, want %v", o, lso, got, want)
		}
	}
	return v.HighWatermark
}

// A cut takes the marker that aborted a transaction, and with it the abort: the same records can be committed after.
func TestCutTakesAnAbortBack(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{}).open()
	x.append(idempotent(1, 0, 0, 2, true))
	x.end(marker(1, 0, false, 0))
	x.log.SetHighWatermark(3)
	if err := x.log.TruncateTo(2, "test"); err != nil {
		t.Fatal(err)
	}
	x.end(marker(1, 0, true, 0))
	x.log.SetHighWatermark(3)
	for range 2 {
		v := x.log.View()
		if got := v.AbortedTxns(0, 3); len(got) != 0 || v.LastStableOffset != 3 {
			t.Errorf("aborted %v, last stable offset %d", got, v.LastStableOffset)
		}
		v.Release()
		x.close().open(clean, func(o *Options) { o.HighWatermark = 3 })
	}
}

// The last stable offset is never below the log start, also when DeleteRecords has passed the beginning of an open
// transaction (P2).
func TestLogStartPassesAnOpenTransaction(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{}).open()
	x.append(idempotent(1, 0, 0, 4, true))
	if err := x.log.AdvanceLogStart(3, "test"); err != nil {
		t.Fatal(err)
	}
	v := x.log.View()
	defer v.Release()
	if v.LastStableOffset != 3 {
		t.Errorf("last stable offset %d, log start %d", v.LastStableOffset, v.LogStartOffset)
	}
}
