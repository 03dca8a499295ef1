package log

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/vfs"
)

// Size before time, each from the oldest segment on until the first that stays; the files are renamed at once and
// gone after the delay, and the log start has moved by then.
func TestS051_retention_vector(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{RetentionBytes: 700, RetentionMs: 600, TimestampBeforeMaxMs: 1 << 60})
	x.now = time.UnixMilli(900)
	x.open()
	roll := func(base int64, size int, ts int64) {
		b := exactly(size, ts)
		b.SetBaseOffset(base)
		b.SetPartitionLeaderEpoch(0)
		if base > 0 {
			x.log.SetConfig(Config{SegmentBytes: 1, RetentionBytes: 700, RetentionMs: 600})
		}
		if _, err := x.log.AppendAsFollower(b, 0); err != nil {
			t.Fatal(err)
		}
	}
	roll(0, 400, 10)
	roll(1, 400, 500)
	roll(2, 300, 300)
	x.log.SetHighWatermark(3)
	if n := must(x.log.Retain(x.now)); n != 1 {
		t.Fatalf("%d segments went", n)
	}
	check := func(start int64, segments int) {
		t.Helper()
		v := x.log.View()
		defer v.Release()
		if v.LogStartOffset != start || len(v.Segments()) != segments || v.EndOffset != 3 || v.HighWatermark != 3 {
			t.Errorf("[%d,%d) hw %d, %d segments", v.LogStartOffset, v.EndOffset, v.HighWatermark, len(v.Segments()))
		}
	}
	check(1, 2)
	if x.exists(logName(0)) || !x.exists(logName(0)+".deleted") {
		t.Error("the file is not renamed")
	}
	x.log.DeleteDue(x.now.Add(59 * time.Second))
	if !x.exists(logName(0) + ".deleted") {
		t.Error("the file is gone too early")
	}
	x.log.DeleteDue(x.now.Add(60 * time.Second))
	if x.exists(logName(0) + ".deleted") {
		t.Error("the file is still there")
	}
	if n := must(x.log.Retain(time.UnixMilli(1101))); n != 2 {
		t.Errorf("%d segments went", n)
	}
	check(3, 1)
	x.log.SetConfig(Config{})
	if info := x.append(batch(1, 100, 900)); info.BaseOffset != 3 {
		t.Errorf("next append at %d", info.BaseOffset)
	}
}

// Size retention keeps at least retention.bytes.
func TestS052_retention_bytes(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{SegmentBytes: 100, RetentionMs: -1}).open()
	for range 4 {
		x.append(exactly(100, ts0))
	}
	for _, c := range []struct {
		bytes int64
		went  int
	}{{301, 0}, {300, 1}, {-1, 0}} {
		x.log.SetConfig(Config{SegmentBytes: 100, RetentionMs: -1, RetentionBytes: c.bytes})
		if n := must(x.log.Retain(x.now)); n != c.went {
			t.Errorf("retention.bytes %d: %d went", c.bytes, n)
		}
	}
}

// A timestamp in the future keeps its segment and all later ones, and that is said once.
func TestS053_future_timestamp(t *testing.T) {
	t.Parallel()
	cfg := Config{SegmentBytes: 100, RetentionMs: 1000, TimestampAfterMaxMs: 1 << 50}
	x := newTester(t, cfg).open()
	x.append(exactly(100, ts0))
	x.append(exactly(100, ts0+365*24*3600*1000))
	x.append(exactly(100, ts0))
	x.log.SetConfig(Config{SegmentBytes: 100, RetentionMs: 1000})
	for range 3 {
		must(x.log.Retain(x.now.Add(time.Hour)))
	}
	if x.log.SegmentCount() != 2 || x.count(EventHeldByFuture) != 1 {
		t.Errorf("%d segments, told %d times", x.log.SegmentCount(), x.count(EventHeldByFuture))
	}
}

// An idle topic of one segment ends as one empty segment at the end offset, and stays so.
func TestS054_idle_topic(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{RetentionMs: 1}).open()
	x.append(batch(10, 400, ts0))
	for i, want := range []int{1, 0, 0} {
		if n := must(x.log.Retain(x.now.Add(time.Hour))); n != want {
			t.Errorf("pass %d: %d went", i, n)
		}
		v := x.log.View()
		if v.LogStartOffset != 10 || v.EndOffset != 10 || v.Size != 0 || fmt.Sprint(v.Segments()) != "[{10 10 0 -1}]" {
			t.Errorf("pass %d: [%d,%d) %v", i, v.LogStartOffset, v.EndOffset, v.Segments())
		}
		v.Release()
	}
	x.crash(vfs.LoseNothing, 0).open()
	if v := x.log.View(); v.LogStartOffset != 10 || v.EndOffset != 10 {
		t.Errorf("after a crash [%d,%d)", v.LogStartOffset, v.EndOffset)
	}
}

// DeleteRecords moves the log start, durably before it answers; whole segments go at the next pass, and never a
// segment whose end the high watermark has not reached.
func TestS055_delete_records(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{SegmentBytes: 1000, RetentionMs: -1})
	saved := 0
	x.open(func(o *Options) { o.SavePositions = func() error { saved++; return nil } })
	for range 10 {
		x.append(batch(10, 400, ts0))
	}
	segments := x.log.SegmentCount()
	if err := x.log.AdvanceLogStart(15, "DeleteRecords"); err != nil || saved != 1 {
		t.Fatalf("saved %d times, %v", saved, err)
	}
	if start, ok := x.log.LogStartToSave(); !ok || start != 15 {
		t.Errorf("to save: %d %v", start, ok)
	}
	if must(x.log.Retain(x.now)) != 0 || x.log.SegmentCount() != segments {
		t.Error("a segment went")
	}
	if err := x.log.AdvanceLogStart(20, "DeleteRecords"); err != nil {
		t.Fatal(err)
	}
	if must(x.log.Retain(x.now)) != 1 {
		t.Error("no segment went")
	}
	if _, ok := x.log.LogStartToSave(); ok {
		t.Error("a segment's name tells the log start")
	}
	var oor *OffsetOutOfRangeError
	if err := x.log.AdvanceLogStart(101, "DeleteRecords"); !errors.As(err, &oor) {
		t.Errorf("above the high watermark: %v", err)
	}
	if err := x.log.AdvanceLogStart(3, "DeleteRecords"); err != nil {
		t.Errorf("below: %v", err)
	}
	v := x.log.View()
	defer v.Release()
	if v.Epochs.String() != "{0:20}" {
		t.Errorf("epochs %v", v.Epochs)
	}
}

// Without a policy nothing goes by size or time.
func TestS056_no_policy(t *testing.T) {
	t.Parallel()
	for _, policy := range []Cleanup{CleanupNone, CleanupCompact} {
		cfg := DefaultConfig()
		cfg.SegmentBytes, cfg.RetentionMs, cfg.RetentionBytes, cfg.Cleanup = 150, 1, 1, policy
		x := newTester(t, cfg).open()
		for range 4 {
			if _, err := x.log.AppendAsFollower(at(batch(1, 120, ts0), x.leo()), 0); err != nil {
				t.Fatal(err)
			}
		}
		x.log.SetHighWatermark(4)
		if n := must(x.log.Retain(x.now.Add(time.Hour))); n != 0 {
			t.Errorf("policy %d: %d went", policy, n)
		}
		if err := x.log.AdvanceLogStart(2, "DeleteRecords"); err != nil {
			t.Fatal(err)
		}
		if n := must(x.log.Retain(x.now)); n != 2 {
			t.Errorf("policy %d: %d went by log start", policy, n)
		}
	}
}

func at[T interface {
	~[]byte
	SetBaseOffset(int64)
	SetPartitionLeaderEpoch(int32)
}](b T, offset int64) T {
	b.SetBaseOffset(offset)
	b.SetPartitionLeaderEpoch(0)
	return b
}

// Retention never takes what is above the high watermark, and readers keep what they hold.
func TestRetentionStopsAtTheHighWatermark(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{SegmentBytes: 150, RetentionMs: 1}).open()
	for range 6 {
		x.append(batch(1, 120, ts0))
	}
	x.log.SetHighWatermark(3)
	v := x.log.View()
	defer v.Release()
	if n := must(x.log.Retain(x.now.Add(time.Hour))); n != 3 {
		t.Errorf("%d went", n)
	}
	x.log.DeleteDue(x.now.Add(100 * time.Hour))
	if n := len(readAll(t, v)); n != 6 {
		t.Errorf("the old view has %d batches", n)
	}
	for _, n := range must(fileNames(x.fs, x.dir)) {
		if strings.HasSuffix(n, ".deleted") {
			t.Errorf("%s is left", n)
		}
	}
}

// The high watermark is held within the log, and the log start below the high watermark (P2).
func TestPositionsStayInOrder(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{}).open()
	for range 5 {
		x.append(exactly(100, ts0))
	}
	check := func(start, hw int64) {
		t.Helper()
		v := x.log.View()
		defer v.Release()
		if v.LogStartOffset != start || v.HighWatermark != hw || v.LastStableOffset != hw {
			t.Errorf("log start %d, last stable %d, high watermark %d; want %d and %d", v.LogStartOffset, v.LastStableOffset, v.HighWatermark, start, hw)
		}
	}
	x.log.SetHighWatermark(9)
	check(0, 5)
	x.log.SetHighWatermark(3)
	check(0, 3)
	var out *OffsetOutOfRangeError
	if err := x.log.AdvanceLogStart(4, "test"); !errors.As(err, &out) || out.Requested != 4 {
		t.Errorf("%v", err)
	}
	check(0, 3)
	if err := x.log.AdvanceLogStart(2, "test"); err != nil {
		t.Error(err)
	}
	x.log.SetHighWatermark(1)
	check(2, 2)
}

// TestB088_retention_by_what_a_record_says: a record from the year 3000 keeps its segment and those after it, and that is
// said; on a LogAppendTime topic the client's stamp counts for nothing; records without a timestamp go by the time of their
// file.
func TestB088_retention_by_what_a_record_says(t *testing.T) {
	t.Parallel()
	far := time.Date(3000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	for _, c := range []struct {
		name    string
		cfg     Config
		stamp   int64
		went    int
		message int
	}{
		{"create time", Config{TimestampAfterMaxMs: 1 << 60}, far, 10, 1},
		{"log append time", Config{LogAppendTime: true}, far, 21, 0},
		{"no timestamp", Config{}, -1, 21, 0},
	} {
		c.cfg.SegmentBytes, c.cfg.RetentionMs = 100, 2000
		x := newTester(t, c.cfg).open()
		for i := range 21 {
			stamp := ts0
			if i == 10 || c.stamp < 0 {
				stamp = c.stamp
			}
			x.append(exactly(100, stamp))
		}
		c.cfg.TimestampAfterMaxMs = 3600000
		x.log.SetConfig(c.cfg)
		if n := must(x.log.Retain(x.now.Add(2 * time.Second))); n != 0 {
			t.Errorf("%s: %d segments went at their age", c.name, n)
		}
		if n := must(x.log.Retain(x.now.Add(2001 * time.Millisecond))); n != c.went {
			t.Errorf("%s: %d segments went, want %d", c.name, n, c.went)
		}
		if n := x.count(EventHeldByFuture); n != c.message {
			t.Errorf("%s: told %d times", c.name, n)
		}
	}
}

// On a disk too full for a new segment retention lets go of all segments but the last, and of that when there is room.
func TestRetentionMakesRoomOnAFullDisk(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{SegmentBytes: 100, RetentionMs: 1000})
	fault := vfs.NewFault(x.mem)
	x.fs = fault
	x.open()
	for range 4 {
		x.append(exactly(100, ts0))
	}
	fault.Add(vfs.Rule{Kind: vfs.OpCreate, Count: -1})
	later := x.now.Add(time.Hour)
	if n := must(x.log.Retain(later)); n != 3 || x.log.SegmentCount() != 1 {
		t.Errorf("%d segments went, %d are left", n, x.log.SegmentCount())
	}
	if _, err := x.log.Retain(later); !IsFull(err) || x.log.Err() != nil {
		t.Errorf("the last one on a full disk: %v, %v", err, x.log.Err())
	}
	fault.Clear()
	if n := must(x.log.Retain(later)); n != 1 {
		t.Errorf("with room %d segments went", n)
	}
	if info := x.append(batch(1, 90, ts0)); info.BaseOffset != 4 {
		t.Errorf("next append at %d", info.BaseOffset)
	}
}
