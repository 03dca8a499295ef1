package log

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/vfs"
)

// A segment whose last offset is above its base + 2^31-1, as brokers of Kafka 2.1 and older left them, is split: all
// records are there, in segments that can be indexed, and nothing is left over; also when the machine dies at any step.
func TestS063_overflowed_segment(t *testing.T) {
	t.Parallel()
	const far = int64(1) << 31
	for _, how := range []func(*Options){clean, recoverFrom(0)} {
		for _, tail := range []string{"", "torn"} {
			var images []*tester
			x := newTester(t, Config{IndexIntervalBytes: 1})
			var raw []byte
			want := []int64{0, 1, far + 5, far + 6, 2*far + 100}
			for _, at := range want {
				b := exactly(100, ts0+at)
				b.SetBaseOffset(at)
				b.SetPartitionLeaderEpoch(0)
				raw = append(raw, b...)
			}
			if err := x.fs.MkdirAll(x.dir, 0o755); err != nil {
				t.Fatal(err)
			}
			x.put(logName(0), append(raw, tail...))
			if err := x.fs.SyncDir("/data"); err != nil {
				t.Fatal(err)
			}
			opening := true
			f := vfs.NewFault(x.mem)
			f.Watch(func(o vfs.Operation) *vfs.Failure {
				if opening && o.Kind != vfs.OpRead && o.Kind != vfs.OpStat {
					images = append(images, x.fork(vfs.LoseSome, uint64(len(images))), x.fork(vfs.LoseNothing, 0))
				}
				return nil
			})
			x.fs = f
			x.open(how)
			opening = false
			if got := x.offsets(); !slices.Equal(got, want) {
				t.Errorf("%q: batches at %v", tail, got)
			}
			v := x.log.View()
			if got := fmt.Sprint(v.Segments()); len(v.Segments()) != 3 || !strings.Contains(got, fmt.Sprint(far+5)) {
				t.Errorf("segments %s", got)
			}
			if at, ok, err := v.OffsetForTime(ts0+far+6, v.EndOffset); err != nil || !ok || at.Offset != far+6 {
				t.Errorf("by time: %+v %v %v", at, ok, err)
			}
			v.Release()
			for _, n := range must(fileNames(x.fs, x.dir)) {
				if strings.HasSuffix(n, cleanedSuffix) || strings.HasSuffix(n, swapSuffix) {
					t.Errorf("%s is left", n)
				}
			}
			if info := x.append(exactly(100, ts0)); info.BaseOffset != 2*far+101 {
				t.Errorf("the next batch is at %d", info.BaseOffset)
			}
			x.close().open(clean)
			if got := x.offsets(); len(got) != len(want)+1 {
				t.Errorf("after a restart: %v", got)
			}
			x.close()
			for i, y := range images {
				if y.open(recoverFrom(0)); !slices.Equal(y.offsets(), want) {
					t.Errorf("%q image %d of %d: %v", tail, i, len(images), y.offsets())
				}
			}
		}
	}
}

// How far a start has come is told by the bytes that have to be checked, or by logs when there are none.
func TestLoadProgress(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		p    LoadProgress
		want string
	}{
		{LoadProgress{}, "0 of 0 logs loaded, 100%"},
		{LoadProgress{Logs: 8, LogsDone: 2, Took: time.Second}, "2 of 8 logs loaded, 25%, about 3s left"},
		{LoadProgress{Logs: 8, LogsDone: 7, Bytes: 400 << 20, BytesDone: 100 << 20, Took: 20 * time.Second},
			"recovering logs: 100 of 400 MB checked, 7 of 8 logs loaded, 25%, about 1m0s left"},
		{LoadProgress{Logs: 8, Bytes: 400 << 20, Took: time.Second}, "recovering logs: 0 of 400 MB checked, 0 of 8 logs loaded, 0%"},
	} {
		if got := c.p.String(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
