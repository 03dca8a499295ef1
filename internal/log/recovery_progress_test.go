package log

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stelelog/stele/internal/vfs"
)

// A recovery takes no more memory for a long log than for a short one: it reads through one buffer, whatever it reads. Not
// parallel: it looks at what the whole process allocates.
func TestRecoveryNeedsLittleMemory(t *testing.T) {
	allocated := func(batches, size int) int64 {
		x := newTester(t, Config{SegmentBytes: 16 << 20, IndexIntervalBytes: 1 << 20}).open()
		b := batch(16, size, ts0)
		for range batches {
			x.append(b.Clone())
		}
		if err := x.log.Flush(); err != nil {
			t.Fatal(err)
		}
		x.close()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		x.open(recoverFrom(0))
		runtime.ReadMemStats(&after)
		if x.leo() != int64(16*batches) {
			t.Fatalf("the log ends at %d", x.leo())
		}
		x.close()
		return int64(after.TotalAlloc - before.TotalAlloc)
	}
	for _, size := range []int{2 << 10, 16 << 10, 900 << 10} {
		short, long := allocated(4<<20/size, size), allocated(64<<20/size, size)
		t.Logf("batches of %d KiB: %d KiB to recover 4 MiB, %d KiB to recover 64", size>>10, short>>10, long>>10)
		// What grows are the index entries, the segments' own state, and a buffer of each segment that is being read.
		if most := int64(6 << 20); long > most {
			t.Errorf("batches of %d bytes: recovering 64 MiB allocates %d bytes, want at most %d", size, long, most)
		}
	}
}

// While logs are recovered the log tells every few seconds how far that is, in percent of the bytes to check, and how long the rest
// takes: right where the pace is even. So does LoadProgress, which /readyz shows.
func TestRecoveryTellsItsProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, "/d").start()
		for p := range int32(4) {
			b.create("t", p, Config{SegmentBytes: 1000})
			b.produce("t", p, 100)
		}
		b.kill(vfs.LoseNothing)
		slow := vfs.NewFault(b.mem)
		slow.Watch(func(o vfs.Operation) *vfs.Failure {
			if o.Kind == vfs.OpRead && strings.HasSuffix(o.Name, ".log") {
				<-time.After(time.Second)
			}
			return nil
		})
		b.fs = slow
		o := b.options()
		o.Now, o.RecoveryThreads = time.Now, 1
		var out strings.Builder
		o.Logger = slog.New(slog.NewTextHandler(&out, nil))
		d, err := OpenDirs(o)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		asked := make(chan LoadProgress, 1)
		go func() {
			<-time.After(20*time.Second + time.Millisecond)
			asked <- d.LoadProgress()
		}()
		if failed, err := d.Load(context.Background(), keepAll); err != nil || len(failed) > 0 {
			t.Fatal(err, failed)
		}
		took := time.Since(began)
		lines, last := 0, -1
		for line := range strings.Lines(out.String()) {
			if !strings.Contains(line, `msg="loading logs"`) {
				continue
			}
			lines++
			var percent int
			var left time.Duration
			for _, field := range strings.Fields(line) {
				name, value, _ := strings.Cut(field, "=")
				switch name {
				case "percent":
					if _, err := fmt.Sscan(value, &percent); err != nil {
						t.Fatal(err)
					}
				case "remaining":
					if left, err = time.ParseDuration(value); err != nil {
						t.Fatal(err)
					}
				}
			}
			at := time.Duration(lines) * progressEvery
			if percent <= last && percent < 100 || percent > 100 {
				t.Errorf("%d%% after %d%%: %s", percent, last, line)
			}
			last = percent
			if is := took - at; math.Abs(float64(left-is)) > float64(took)/4 {
				t.Errorf("after %v %v are said to be left, it took %v more", at, left, is)
			}
		}
		if lines < 5 || lines != int(took/progressEvery) {
			t.Errorf("%d lines in %v:\n%s", lines, took, out.String())
		}
		halfway := <-asked
		if halfway.Bytes == 0 || halfway.BytesDone == 0 || halfway.BytesDone >= halfway.Bytes || !strings.Contains(halfway.String(), "recovering logs: ") {
			t.Errorf("after 20 s: %v", halfway)
		}
		if p := d.LoadProgress(); p.Percent() != 100 || p.LogsDone != 4 || p.BytesDone != p.Bytes {
			t.Errorf("in the end: %v", p)
		}
		b.dirs = d
		b.stop()
	})
}
