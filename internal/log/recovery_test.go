package log

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
)

// segments of 100 records in 10 batches each, and a last one of 50.
func threeSegments(t *testing.T) *tester {
	x := newTester(t, Config{SegmentBytes: 10 * 400, IndexIntervalBytes: 500}).open()
	one := batch(10, 400, ts0)
	x.log.SetConfig(Config{SegmentBytes: int32(10 * len(one)), IndexIntervalBytes: 500})
	x.cfg = x.log.Config()
	for range 25 {
		x.append(one)
	}
	if n := x.log.SegmentCount(); n != 3 || x.leo() != 250 {
		t.Fatalf("%d segments to %d", n, x.leo())
	}
	return x
}

// flip damages one byte of the batch at offset.
func flip(x *tester, segment, offset int64) {
	data := slices.Clone(x.file(logName(segment)))
	for b := range record.Batches(data) {
		if b.BaseOffset() == offset {
			b[len(b)-2] ^= 0x10
		}
	}
	x.put(logName(segment), data)
}

// Each row of the recovery table: what is scanned, cut and kept after an unclean stop.
func TestS057_recovery_table(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		prepare  func(x *tester)
		point    int64
		logStart int64
		clean    bool

		leo, wantPoint, wantStart int64
		dropped                   bool
		segments                  int
		scanned                   int // segments, from the last one back
	}{
		{"all sound", nil, 200, -1, false, 250, 200, 0, false, 3, 1},
		{"from 150", nil, 150, -1, false, 250, 150, 0, false, 3, 2},
		{"bad CRC above the point", func(x *tester) { flip(x, 100, 150) }, 100, -1, false, 150, 100, 0, true, 2, 2},
		{"bad CRC below the point", func(x *tester) { flip(x, 100, 150) }, 200, -1, false, 250, 200, 0, false, 3, 1},
		{"no recovery point", func(x *tester) { flip(x, 100, 150) }, -1, -1, false, 150, 0, 0, true, 2, 2},
		{"garbage at the end", func(x *tester) { appendTo(x, 200, bytes.Repeat([]byte{0xa5}, 300)) }, 200, -1, false, 250, 200, 0, true, 3, 1},
		{"zeros at the end", func(x *tester) { appendTo(x, 200, make([]byte, 4096)) }, 200, -1, false, 250, 200, 0, true, 3, 1},
		{"garbage after a clean stop", func(x *tester) { appendTo(x, 200, bytes.Repeat([]byte{0xa5}, 300)) }, 250, -1, true, 250, 250, 0, true, 3, 1},
		{"log start above the end", nil, 200, 260, false, 260, 200, 260, false, 1, 1},
		{"log start 120", nil, 200, 120, false, 250, 200, 120, false, 3, 1},
		{"clean", nil, 200, -1, true, 250, 250, 0, false, 3, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			x := threeSegments(t)
			if c.clean {
				x.close()
			}
			if c.prepare != nil {
				c.prepare(x)
			}
			x.events = nil
			var sizes []int64
			for _, base := range []int64{0, 100, 200} {
				sizes = append(sizes, int64(len(x.file(logName(base)))))
			}
			scanned, want := int64(0), int64(0)
			x.open(func(o *Options) {
				o.RecoveryPoint, o.LogStart, o.Clean = c.point, c.logStart, c.clean
				o.Scanned = func(n int64) { scanned += n }
			})
			first := 3 - c.scanned
			if strings.HasPrefix(c.name, "bad CRC above") || c.name == "no recovery point" {
				first = 2 - c.scanned // the damage in the second one ends it
			}
			for _, size := range sizes[first : first+c.scanned] {
				want += size
			}
			if c.name == "bad CRC above the point" {
				want = sizes[1]
			}
			if scanned != want {
				t.Errorf("%d bytes were scanned, want %d of segments with %v", scanned, want, sizes)
			}
			v := x.log.View()
			defer v.Release()
			if v.EndOffset != c.leo || v.LogStartOffset != c.wantStart || x.log.RecoveryPoint() != c.wantPoint {
				t.Errorf("log [%d,%d) recovery point %d, want [%d,%d) %d", v.LogStartOffset, v.EndOffset, x.log.RecoveryPoint(),
					c.wantStart, c.leo, c.wantPoint)
			}
			if n := x.count(EventRecovered); (n == 1) != c.dropped {
				t.Errorf("%d recovery events", n)
			}
			if n := x.log.SegmentCount(); n != c.segments {
				t.Errorf("%d segments, want %d", n, c.segments)
			}
			if info, err := x.try(batch(1, 100, ts0), 0, AppendOptions{}); err != nil || info.BaseOffset != c.leo {
				t.Errorf("next append at %d, %v", info.BaseOffset, err)
			}
			if c.name != "bad CRC below the point" {
				x.offsets()
			}
		})
	}
}

func appendTo(x *tester, segment int64, tail []byte) {
	x.put(logName(segment), append(slices.Clone(x.file(logName(segment))), tail...))
}

// A torn last batch and a tail of zeros are cut to the last whole batch, with one warning that names the bytes.
func TestA13_torn_and_zero_tails(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func([]byte) ([]byte, int64){
		"torn": func(b []byte) ([]byte, int64) { return b[:len(b)-200], int64(500 - 200) },
		"zero": func(b []byte) ([]byte, int64) { clear(b[len(b)-500:]); return b, 500 },
		"half": func(b []byte) ([]byte, int64) { clear(b[len(b)-200:]); return b, 500 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newTester(t, Config{}).open()
			for range 3 {
				x.append(exactly(500, ts0))
			}
			data, dropped := damage(slices.Clone(x.file(logName(0))))
			x.put(logName(0), data)
			x.events = nil
			x.open()
			if x.leo() != 2 || len(x.file(logName(0))) != 1000 {
				t.Errorf("end %d, %d bytes", x.leo(), len(x.file(logName(0))))
			}
			if x.count(EventRecovered) != 1 || x.events[len(x.events)-1].Bytes != dropped {
				t.Errorf("events %v, want one of %d bytes", x.events, dropped)
			}
		})
	}
}

// A damaged length, a cut of 1 to 61 bytes, a flipped byte, zeros and noise at the end never keep a log from
// opening, and only the damage is lost.
func TestB084_damaged_tails(t *testing.T) {
	t.Parallel()
	length := func(v uint32) func([]byte) []byte {
		return func(b []byte) []byte {
			at := len(b) - 500 + 8
			b[at], b[at+1], b[at+2], b[at+3] = byte(v>>24), byte(v>>16), byte(v>>8), byte(v)
			return b
		}
	}
	damages := map[string]func([]byte) []byte{
		"length 0": length(0), "length -1": length(0xffffffff), "length max": length(0x7fffffff),
		"flip": func(b []byte) []byte { b[len(b)-3] ^= 1; return b },
	}
	for i := 1; i <= 61; i += 4 {
		damages[fmt.Sprintf("cut %d", i)] = func(b []byte) []byte { return b[:len(b)-i] }
	}
	for name, damage := range damages {
		x := newTester(t, Config{}).open()
		for range 3 {
			x.append(exactly(500, ts0))
		}
		x.put(logName(0), damage(slices.Clone(x.file(logName(0)))))
		x.open()
		if got := x.offsets(); fmt.Sprint(got) != "[0 1]" {
			t.Errorf("%s: batches %v", name, got)
		}
		if info := x.append(batch(1, 80, ts0)); info.BaseOffset != 2 {
			t.Errorf("%s: next append at %d", name, info.BaseOffset)
		}
	}
}

// Bytes that were written, but neither indexed nor published, before the process died are there after the restart,
// with index and epoch.
func TestA7_crash_after_the_bytes(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{IndexIntervalBytes: 100}).open()
	for i := range 10 {
		x.append(batch(10, 400, ts0+int64(i)))
	}
	lost := batch(10, 400, ts0+100)
	lost.SetBaseOffset(100)
	lost.SetPartitionLeaderEpoch(0)
	appendTo(x, 0, lost)
	x.crash(vfs.LoseNothing, 0).open()
	if x.leo() != 110 {
		t.Fatalf("end offset %d", x.leo())
	}
	v := x.log.View()
	defer v.Release()
	if f, ok, err := v.OffsetForTime(ts0+100, 110); err != nil || !ok || f.Offset != 100 {
		t.Errorf("by time: %+v %v %v", f, ok, err)
	}
	if n := v.active.offsets.len(); n != 10 {
		t.Errorf("%d index entries", n)
	}
	if e, ok := v.Epochs.Latest(); !ok || e.Epoch != 0 {
		t.Errorf("epochs %v", v.Epochs)
	}
}

// An epoch that was assigned, but got no data before the process died, is gone after the restart.
func TestA8_crash_after_the_epoch(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{}).open()
	x.append(batch(100, 2000, ts0))
	x.put("leader-epoch-checkpoint", []byte("0\n2\n0 0\n6 100\n"))
	x.crash(vfs.LoseNothing, 0).open()
	v := x.log.View()
	if v.EndOffset != 100 || v.Epochs.String() != "{0:0}" {
		t.Errorf("end %d, epochs %v", v.EndOffset, v.Epochs)
	}
	v.Release()
	if start, err := x.log.BecomeLeader(7); err != nil || start != 100 {
		t.Errorf("epoch 7 at %d, %v", start, err)
	}
	if _, err := x.try(batch(1, 80, ts0), 7, AppendOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := string(x.file("leader-epoch-checkpoint")); got != "0\n2\n0 0\n7 100\n" {
		t.Errorf("checkpoint %q", got)
	}
}

// A lost or damaged epoch checkpoint is rebuilt from the batches, whether the stop was clean or not.
func TestEpochVectorsRebuild(t *testing.T) {
	t.Parallel()
	for _, damage := range []string{"lost", "", "0\n", "0\n5\n0 0\n", "0\n2\n0 0\nx 1\n", "0\n2\n3 0\n1 5\n", "7\n0\n"} {
		for _, wasClean := range []bool{true, false} {
			x := newTester(t, Config{SegmentBytes: 300}).open()
			for e := range int32(4) {
				for range 3 {
					if _, err := x.try(batch(1, 120, ts0), e*2, AppendOptions{}); err != nil {
						t.Fatal(err)
					}
				}
			}
			x.close()
			if damage == "lost" {
				x.remove("leader-epoch-checkpoint")
			} else {
				x.put("leader-epoch-checkpoint", []byte(damage))
			}
			x.open(func(o *Options) { o.Clean, o.RecoveryPoint = wasClean, 7 })
			v := x.log.View()
			if v.Epochs.String() != "{0:0, 2:3, 4:6, 6:9}" {
				t.Errorf("%q clean %v: epochs %v", damage, wasClean, v.Epochs)
			}
			v.Release()
			kept := false
			for _, n := range must(fileNames(x.fs, x.dir)) {
				kept = kept || strings.HasPrefix(n, "leader-epoch-checkpoint.corrupt-")
			}
			if damaged := len(damage) > 4; kept != (damaged || damage == "7\n0\n") && damage != "lost" {
				t.Errorf("%q: kept aside %v", damage, kept)
			}
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Any of the derived files may be deleted, cut, zeroed or filled with noise: the log opens and reads as before.
func TestS059_derived_files(t *testing.T) {
	t.Parallel()
	derivedFiles(t, func(string) bool { return true })
	for _, ext := range []string{".index", ".timeindex", ".txnindex", ".snapshot"} {
		derivedFiles(t, func(name string) bool { return strings.HasSuffix(name, ext) })
	}
}

// derivedFiles damages the files of that kind, in each way, after a clean stop and after none.
func derivedFiles(t *testing.T, ofKind func(string) bool) {
	t.Helper()
	for name, damage := range damages {
		for _, wasClean := range []bool{true, false} {
			x := newTester(t, Config{SegmentBytes: 4000, IndexIntervalBytes: 300}).open()
			for i := range 40 {
				x.append(idempotent(1, 0, int32(i*5), 5, false))
				x.append(batch(5, 200, ts0+int64(i*10)))
			}
			for i := range 12 {
				x.append(idempotent(5, 0, int32(i*5), 5, true))
				x.end(marker(5, 0, i%3 == 0, 0))
				x.append(batch(5, 1000, ts0))
			}
			want, end := x.offsets(), x.leo()
			x.log.SetHighWatermark(end)
			aborted := x.aborted()
			if len(aborted) != 8 {
				t.Fatalf("%d aborted transactions", len(aborted))
			}
			x.close()
			for _, n := range must(fileNames(x.fs, x.dir)) {
				if strings.HasSuffix(n, ".log") || !strings.HasPrefix(n, "0") || !ofKind(n) {
					continue
				}
				if damage == nil {
					x.remove(n)
				} else {
					x.put(n, damage(slices.Clone(x.file(n))))
				}
			}
			x.open(func(o *Options) { o.Clean, o.RecoveryPoint, o.HighWatermark = wasClean, end, end })
			if got := x.offsets(); !slices.Equal(got, want) {
				t.Errorf("%s: batches %v, want %v", name, got, want)
			}
			if got := x.aborted(); !slices.Equal(got, aborted) {
				t.Errorf("%s: aborted transactions %v, were %v", name, got, aborted)
			}
			v := x.log.View()
			for i := range 40 {
				if f, ok, err := v.OffsetForTime(ts0+int64(i*10)-4, v.EndOffset); err != nil || !ok || f.Timestamp < ts0+int64(i*10)-4 {
					t.Errorf("%s: time of %d: %+v %v %v", name, i, f, ok, err)
				}
				if d, err := v.Read(int64(i*10+3), v.EndOffset, 1, true); err != nil || d.Length == 0 {
					t.Errorf("%s: read %d: %v", name, i*10+3, err)
				}
			}
			v.Release()
			if info := x.append(idempotent(1, 0, 39*5, 5, false)); !info.Duplicate {
				t.Errorf("%s: the retry was stored at %d", name, info.BaseOffset)
			}
		}
	}
}

// The files of an interrupted swap are completed or taken back: always the records of before or of after.
func TestS058_interrupted_swap(t *testing.T) {
	t.Parallel()
	old0, old5 := record.Batch(nil), record.Batch(nil)
	set := func(n int, at int64) record.Batch {
		b := batch(n, 100*n, ts0)
		b.SetBaseOffset(at)
		b.SetPartitionLeaderEpoch(0)
		return b
	}
	old0, old5 = set(5, 0), set(5, 5)
	merged := append(slices.Clone(set(5, 0)), set(5, 5)...)
	for _, c := range []struct {
		name  string
		files map[string][]byte
		want  string
		left  string
	}{
		{"writing", map[string][]byte{logName(0): old0, logName(5): old5, logName(0) + ".cleaned": merged}, "[0 5]", "0 5"},
		{"renaming", map[string][]byte{logName(0): old0, logName(5): old5, logName(0) + ".swap": merged, indexName(0) + ".cleaned": nil}, "[0 5]", "0 5"},
		{"swapped", map[string][]byte{logName(0): old0, logName(5): old5, logName(0) + ".swap": merged, indexName(0) + ".swap": nil, snapshotName(5): {1}}, "[0 5]", "0"},
		{"half deleted", map[string][]byte{logName(0) + ".deleted": old0, logName(5): old5, logName(0) + ".swap": merged}, "[0 5]", "0"},
		{"last renames", map[string][]byte{logName(0): merged, indexName(0) + ".swap": nil}, "[0 5]", "0"},
	} {
		x := newTester(t, Config{})
		if err := x.fs.MkdirAll(x.dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for n, data := range c.files {
			x.put(n, data)
		}
		x.open()
		if got := fmt.Sprint(x.offsets()); got != c.want {
			t.Errorf("%s: batches %s", c.name, got)
		}
		var left []string
		for _, n := range must(fileNames(x.fs, x.dir)) {
			o, ok := fileOffset(n)
			if ok && n == logName(o) {
				left = append(left, fmt.Sprint(o))
			}
			if strings.HasSuffix(n, ".cleaned") || strings.HasSuffix(n, ".swap") || strings.HasSuffix(n, ".deleted") {
				t.Errorf("%s: %s is left", c.name, n)
			}
		}
		if strings.Join(left, " ") != c.left {
			t.Errorf("%s: segments %v, want %s", c.name, left, c.left)
		}
	}
}

// A batch whose leader epoch is lower than its predecessor's makes the log unusable: it is not cut, not served.
func TestRecoveryRefusesFallingEpochs(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{}).open()
	if _, err := x.try(batch(1, 100, ts0), 5, AppendOptions{}); err != nil {
		t.Fatal(err)
	}
	b := batch(1, 100, ts0)
	b.SetBaseOffset(1)
	b.SetPartitionLeaderEpoch(3)
	appendTo(x, 0, b)
	_, err := Open(x.options())
	var ce *CorruptError
	if !errors.As(err, &ce) || ce.Offset != 1 {
		t.Errorf("open: %v", err)
	}
}

// With preallocation the file is as long as a segment while it is written, and has its true size after a roll, a
// clean stop, and a crash.
func TestS029_preallocate(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{Preallocate: true, SegmentBytes: 1000}).open()
	x.append(exactly(400, ts0))
	if n := len(x.file(logName(0))); n != 1000 {
		t.Errorf("%d bytes while active", n)
	}
	x.append(exactly(400, ts0))
	x.append(exactly(400, ts0))
	if n := len(x.file(logName(0))); n != 800 {
		t.Errorf("%d bytes after the roll", n)
	}
	crashed := x.fork(vfs.LoseNothing, 0).open()
	if crashed.leo() != 3 || len(crashed.file(logName(2))) != 400 {
		t.Errorf("after a crash: end %d, %d bytes", crashed.leo(), len(crashed.file(logName(2))))
	}
	x.close()
	if n := len(x.file(logName(2))); n != 400 {
		t.Errorf("%d bytes after a clean stop", n)
	}
}

// A sealed segment whose structure is damaged below the recovery point is neither cut nor skipped over: the log
// opens as long as it was, and who reads the damage is told.
func TestDamageBelowTheRecoveryPoint(t *testing.T) {
	t.Parallel()
	for _, wasClean := range []bool{true, false} {
		x := threeSegments(t).close()
		data := slices.Clone(x.file(logName(0)))
		at := len(data) / 10 * 5
		data[at+8], data[at+9] = 0x7f, 0xff // the length of batch 50
		x.put(logName(0), data)
		x.remove(indexName(0))
		x.open(func(o *Options) { o.RecoveryPoint, o.Clean = 200, wasClean })
		if x.leo() != 250 || len(x.file(logName(0))) != len(data) {
			t.Errorf("clean %v: end %d, %d bytes of %d", wasClean, x.leo(), len(x.file(logName(0))), len(data))
		}
		v := x.log.View()
		for offset, sound := range map[int64]bool{0: true, 49: true, 50: false, 99: false, 100: true, 240: true} {
			_, err := v.Read(offset, 250, 100, true)
			var ce *CorruptError
			if (err == nil) != sound || err != nil && !errors.As(err, &ce) {
				t.Errorf("clean %v: read %d: %v", wasClean, offset, err)
			}
		}
		v.Release()
		x.log.SetHighWatermark(250)
		if info := x.append(batch(1, 80, ts0)); info.BaseOffset != 250 {
			t.Errorf("next append at %d", info.BaseOffset)
		}
	}
}

// A log whose last segment is gone or empty opens with what is left, and says which offsets the checkpoints had seen:
// nothing else in the directory tells.
func TestLostTailIsTold(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(x *tester){
		"gone":  func(x *tester) { x.remove(logName(200)) },
		"empty": func(x *tester) { x.put(logName(200), nil) },
		"none":  func(x *tester) {},
	} {
		for _, wasClean := range []bool{true, false} {
			x := threeSegments(t).close()
			damage(x)
			x.open(func(o *Options) { o.RecoveryPoint, o.HighWatermark, o.Clean = 220, 250, wasClean })
			want, told := int64(250), ""
			if name != "none" {
				want, told = 200, "log recovered: t-0 from 250 to 200, leader epoch 0: the log ends below its last recovery point, 220; the log ends below its last high watermark, 250"
			}
			got := ""
			for _, e := range x.events {
				if e.Kind == EventRecovered {
					got += e.String()
				}
			}
			if x.leo() != want || got != told {
				t.Errorf("%s, clean %v: end %d, want %d; told %q, want %q", name, wasClean, x.leo(), want, got, told)
			}
		}
	}
}

// After an unclean stop a sound batch that does not follow the one before it ends the log, like damage.
func TestRecoveryEndsAtABatchThatDoesNotFollow(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{}).open()
	for range 3 {
		x.append(exactly(100, ts0))
	}
	again := append([]byte(nil), x.file(logName(0))[100:]...)
	x.put(logName(0), append(x.file(logName(0)), again...))
	x.open(recoverFrom(0))
	if got := x.offsets(); len(got) != 3 || len(x.file(logName(0))) != 300 {
		t.Errorf("batches at %v in %d bytes", got, len(x.file(logName(0))))
	}
}

// A hole between segments that were never synced is a loss, and ends the log there, also in a compacted log; below the
// cleaner's checkpoint it is the cleaner's work, and all stays.
func TestHoleBetweenSegments(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		cleanup   Cleanup
		cleanedTo int64
		want      int
	}{{CleanupDelete, -1, 2}, {CleanupCompact, -1, 2}, {CleanupCompact, 8, 8}, {CleanupCompactDelete, 8, 8}} {
		x := newTester(t, Config{SegmentBytes: 350, Cleanup: c.cleanup}).open()
		for range 9 {
			b := record.NewBuilder(record.BuilderOptions{})
			if err := b.Append(ts0, []byte("k"), []byte(strings.Repeat("v", 30)), nil); err != nil {
				t.Fatal(err)
			}
			x.append(b.Bytes())
		}
		data := x.file(logName(0))
		x.put(logName(0), data[:len(data)/3*2])
		x.open(recoverFrom(0), func(o *Options) { o.CleanedTo = c.cleanedTo })
		if got := len(x.offsets()); got != c.want {
			t.Errorf("%+v: %d batches", c, got)
		}
	}
}

// A finished swap replaces all that belonged to the segments it was made of, also a transaction index that it has none for.
func TestSwapReplacesEverything(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{}).open()
	x.append(exactly(100, ts0))
	x.close()
	x.put(logName(0)+swapSuffix, x.file(logName(0)))
	x.put(txnName(0), formatTxnEntries([]txnEntry{{1, 0, 0, 1}}))
	x.open(clean)
	v := x.log.View()
	defer v.Release()
	if got := v.AbortedTxns(0, 1); len(got) != 0 || len(x.offsets()) != 1 {
		t.Errorf("aborted %v", got)
	}
}

// A time index that ends in zeros has lost entries, of which the last tells of the latest record of its segment: it is made anew,
// where Kafka has left room for entries behind it too.
func TestTimeIndexThatEndsInZeros(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{true, false} {
		x := newTester(t, Config{SegmentBytes: 1000, IndexIntervalBytes: 200}).open()
		for i := range 10 {
			x.append(batch(1, 200, ts0+int64(i*1000)))
		}
		first := x.log.SegmentCount() - 1
		if first < 1 {
			t.Fatal("one segment")
		}
		for range 8 {
			x.append(batch(1, 200, ts0))
		}
		x.close()
		var name string
		for _, n := range must(fileNames(x.fs, x.dir)) { // of the segment that holds the latest record
			if o, ok := fileOffset(n); ok && n == timeName(o) && o <= 9 {
				name = n
			}
		}
		data := slices.Clone(x.file(name))
		if len(data) < 2*timeEntrySize {
			t.Fatalf("%s has %d bytes", name, len(data))
		}
		if lost {
			clear(data[len(data)-timeEntrySize:])
		} else {
			data = append(data, make([]byte, 3*timeEntrySize)...)
		}
		x.put(name, data)
		x.open(clean)
		x.log.SetHighWatermark(18)
		v := x.log.View()
		if f, ok, err := v.MaxTimestamp(18); err != nil || !ok || f.Offset != 9 || f.Timestamp != ts0+9000 {
			t.Errorf("lost %v: largest %+v %v %v", lost, f, ok, err)
		}
		if f, ok, err := v.OffsetForTime(ts0+8500, 18); err != nil || !ok || f.Offset != 9 {
			t.Errorf("lost %v: by time %+v %v %v", lost, f, ok, err)
		}
		v.Release()
		x.close()
	}
}
