package log

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
)

// damages are ways in which a file can come to harm; nil takes it away.
var damages = map[string]func([]byte) []byte{
	"deleted": nil,
	"cut":     func(b []byte) []byte { return b[:max(0, len(b)-3)] },
	"zeroed":  func(b []byte) []byte { return make([]byte, len(b)) },
	"noise": func(b []byte) []byte {
		for i := range b {
			b[i] = byte(i*31 + 7)
		}
		return b
	},
}

// mixedTransactions writes transactions of three producers over several segments: aborted, committed, and one that stays
// open over the ends of some of them before it is aborted.
func mixedTransactions(x *tester) {
	sequence := map[int64]int32{}
	add := func(pid int64, n int) {
		x.append(idempotent(pid, 0, sequence[pid], n, true))
		sequence[pid] += int32(n)
	}
	add(3, 2)
	for i := range 12 {
		pid := int64(1 + i%2)
		add(pid, 3)
		x.append(batch(1, 150, ts0))
		if i == 7 {
			x.end(marker(3, 0, false, 0))
			add(3, 1)
		}
		x.end(marker(pid, 0, i%3 == 0, 0))
	}
	x.end(marker(3, 0, true, 0))
	x.log.SetHighWatermark(x.leo())
}

// hidden reads from every offset as read_committed does, and fails unless it sees what the batches say was not aborted.
func hidden(t failer, x *tester, when string) {
	t.Helper()
	v := x.log.View()
	defer v.Release()
	all := readAll(t, v)
	lso, aborted := oracle(t, all, v.HighWatermark)
	if v.LastStableOffset != lso {
		t.Errorf("%s: last stable offset %d, want %d", when, v.LastStableOffset, lso)
	}
	for o := int64(0); o < lso; o++ {
		d, err := v.Read(o, lso, 300, true)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		data, err := d.ReadAll(nil)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		var bs []record.Batch
		var want []int64
		for b := range record.Batches(data) {
			bs = append(bs, b)
			if !b.IsControl() && !aborted[b.BaseOffset()] {
				want = append(want, b.BaseOffset())
			}
		}
		upper, err := v.UpperBound(d)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if got := visible(t, bs, v.AbortedTxns(o, upper)); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("%s: from %d read_committed sees %v, want %v", when, o, got, want)
		}
	}
}

// Each kind of derived file, and each single transaction index, may be deleted, cut, zeroed or filled with noise while the
// log is closed: what was aborted stays hidden, and no index holds anything else than before.
func TestS059_aborted_stays_hidden(t *testing.T) {
	t.Parallel()
	type target struct{ name, suffix string }
	for damage, change := range damages {
		for _, wasClean := range []bool{true, false} {
			x := newTester(t, Config{SegmentBytes: 900, IndexIntervalBytes: 200}).open()
			mixedTransactions(x)
			hidden(t, x, "at first")
			x.close()
			before := map[string][]byte{}
			targets := []target{{"", ".index"}, {"", ".timeindex"}, {"", ".txnindex"}, {"", ".snapshot"}, {"", ""}}
			for _, n := range must(fileNames(x.fs, x.dir)) {
				if strings.HasSuffix(n, ".txnindex") {
					before[n] = slices.Clone(x.file(n))
					targets = append(targets, target{n, ""})
				}
			}
			if len(before) < 3 {
				t.Fatalf("only %d transaction indexes", len(before))
			}
			for _, at := range targets {
				when := fmt.Sprintf("%s %s%s, clean %t", damage, at.name, at.suffix, wasClean)
				y := x.fork(vfs.LoseNothing, 0)
				for _, n := range must(fileNames(y.fs, y.dir)) {
					if strings.HasSuffix(n, ".log") || !strings.HasPrefix(n, "0") || !strings.HasSuffix(n, at.suffix) || at.name != "" && n != at.name {
						continue
					}
					if change == nil {
						y.remove(n)
					} else {
						y.put(n, change(slices.Clone(y.file(n))))
					}
				}
				point := int64(-1)
				if !wasClean {
					point = x.leo()
				}
				y.open(func(o *Options) { o.Clean, o.RecoveryPoint, o.HighWatermark = wasClean, point, x.leo() })
				hidden(t, y, when)
				y.close()
				for n, want := range before {
					if !y.exists(n) || !slices.Equal(y.file(n), want) {
						t.Errorf("%s: %s is not what it was", when, n)
					}
				}
			}
		}
	}
}

// What a lost transaction index costs is paid once: a large segment with markers and no abort has an empty one, from the
// moment it is sealed or closed, and a small one or one without markers has none.
func TestEmptyTxnIndexes(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{SegmentBytes: 3 << 20, MaxMessageBytes: 2 << 20}).open()
	large := func() { x.append(batch(1, emptyTxnIndexFrom, ts0)) }
	index := func() []int {
		var sizes []int
		v := x.log.View()
		defer v.Release()
		for _, s := range v.list.segs {
			if x.exists(txnName(s.base)) {
				sizes = append(sizes, len(x.file(txnName(s.base))))
			} else {
				sizes = append(sizes, -1)
			}
		}
		return sizes
	}
	roll := func() {
		x.log.mu.Lock()
		defer x.log.mu.Unlock()
		if err := x.log.roll(x.log.leo); err != nil {
			t.Fatal(err)
		}
	}
	large()
	roll()
	x.append(idempotent(1, 0, 0, 1, true))
	x.end(marker(1, 0, true, 0))
	roll()
	large()
	roll()
	large()
	x.close()
	x.open(clean)
	if got := fmt.Sprint(index()); got != "[-1 -1 0 0]" {
		t.Errorf("sizes %s", got)
	}
	v := x.log.View()
	base := v.list.segs[2].base
	v.Release()
	x.close()
	x.remove(txnName(base))
	x.open(clean)
	if got := fmt.Sprint(index()); got != "[-1 -1 0 0]" {
		t.Errorf("after the loss of one: sizes %s", got)
	}
}
