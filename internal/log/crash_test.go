package log

import (
	"fmt"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/vfs"
)

// At every single file operation of a roll, a truncation, a new start, retention and a stop the machine dies, in the
// three ways it can: what opens again is a prefix of the log before or of the log after, holds all that was synced
// and stays, and takes the next append at its end (P8).
func TestCrashAtEveryOperation(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		act func(x *tester) error
		// durable is what must be left in any case: offsets below it, from start on.
		start, durable int64
	}{
		"roll": {func(x *tester) error {
			_, err := x.try(exactly(300, ts0), 1, AppendOptions{})
			return err
		}, 0, 6},
		"truncate": {func(x *tester) error { return x.log.TruncateTo(3, "test") }, 0, 3},
		"truncate under a reader": {func(x *tester) error {
			v := x.log.View()
			defer v.Release()
			return x.log.TruncateTo(1, "test")
		}, 0, 1},
		"new start": {func(x *tester) error { return x.log.TruncateFullyAndStartAt(100, "test") }, 0, 0},
		"retention": {func(x *tester) error {
			_, err := x.log.Retain(x.now.Add(time.Hour))
			return err
		}, 6, 6},
		"stop": {func(x *tester) error { return x.log.Close() }, 0, 6},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for n, more := 0, true; more; n++ {
				more = crashAt(t, n, c.act, c.start, c.durable)
			}
		})
	}
}

// crashAt runs act and looks at what a crash before its n-th operation leaves; false when act has fewer.
func crashAt(t *testing.T, n int, act func(*tester) error, start, durable int64) bool {
	x := newTester(t, Config{SegmentBytes: 650, IndexIntervalBytes: 100, RetentionMs: 1000})
	f := x.onFault()
	x.open(recoverFrom(0))
	for range 6 {
		x.append(exactly(300, ts0))
	}
	if err := x.log.Flush(); err != nil {
		t.Fatal(err)
	}
	var images []*tester
	f.Add(vfs.Rule{Kind: vfs.OpAny, Skip: n, Before: func() {
		for seed := range uint64(6) {
			images = append(images, x.fork(vfs.LoseSome, seed))
		}
		images = append(images, x.fork(vfs.LoseNothing, 0), x.fork(vfs.LoseUnsynced, 0))
	}})
	if err := act(x); err != nil {
		t.Fatal(err)
	}
	for i, y := range images {
		y.open(recoverFrom(0))
		v := y.log.View()
		got := readAll(t, v)
		for j, b := range got {
			if v.LogStartOffset < 100 && b.BaseOffset() != v.LogStartOffset+int64(j) {
				t.Errorf("operation %d image %d: batch %d at offset %d, log starts at %d", n, i, j, b.BaseOffset(), v.LogStartOffset)
			}
		}
		if v.LogStartOffset > start && v.LogStartOffset != 100 || v.EndOffset < durable {
			t.Errorf("operation %d image %d (%s): log [%d,%d), synced are [%d,%d)", n, i, fmt.Sprint(f.Operations()),
				v.LogStartOffset, v.EndOffset, start, durable)
		}
		end := v.EndOffset
		v.Release()
		if info, err := y.try(exactly(100, ts0), 5, AppendOptions{}); err != nil || info.BaseOffset != end {
			t.Errorf("operation %d image %d: next append at %d, %v; want %d", n, i, info.BaseOffset, err, end)
		}
	}
	return len(images) > 0
}
