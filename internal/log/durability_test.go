package log

import (
	"context"
	"errors"
	"syscall"
	"testing"

	"github.com/stelelog/stele/internal/vfs"
)

// A flush that an append asks for makes the name of a new segment durable also while a slower flush, which has noticed
// it first, is still under way.
func TestFlushWaitsForNoOther(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{FlushMessages: 3, SegmentBytes: 250})
	f := x.onFault()
	x.open(recoverFrom(0))
	x.append(exactly(100, ts0))
	if err := x.log.Flush(); err != nil {
		t.Fatal(err)
	}
	x.append(exactly(100, ts0))
	x.append(exactly(100, ts0)) // begins a segment
	began, goOn := make(chan struct{}), make(chan struct{})
	f.Add(vfs.Rule{Kind: vfs.OpSync, Name: logName(0), Before: func() { close(began); <-goOn }})
	done := make(chan error)
	go func() { done <- x.log.Flush() }()
	<-began
	x.append(exactly(100, ts0)) // the third since: it flushes
	if got := x.log.RecoveryPoint(); got != 4 {
		t.Errorf("recovery point %d", got)
	}
	if got := x.fork(vfs.LoseUnsynced, 0).open(recoverFrom(0)).leo(); got != 4 {
		t.Errorf("the log ends at %d after a loss of power, flushed were 4 records", got)
	}
	close(goOn)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// What a killed process had written and not synced is synced when the log opens, where flush.messages asks for it:
// from then on its end offset is what a follower answers for.
func TestUnsyncedTailIsFlushedAtOpen(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{}).open(recoverFrom(0))
	x.append(exactly(100, ts0))
	x.append(exactly(100, ts0))
	x.cfg.FlushMessages = 1
	x.open(recoverFrom(0)) // over what the first one had not synced
	if got := x.leo(); got != 2 {
		t.Fatalf("the log ends at %d", got)
	}
	if got := x.fork(vfs.LoseUnsynced, 0).open(recoverFrom(0)).leo(); got != 2 {
		t.Errorf("the log ended at 2, and after a loss of power at %d", got)
	}
}

// A producer snapshot of records that were cut does not come back with a crash: it would be believed about the other
// records that end at its offset by then.
func TestSnapshotOfCutRecordsStaysAway(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{}).open(recoverFrom(0))
	for i := range int32(4) {
		x.append(idempotent(1, 0, i, 1, false))
	}
	x.close().open(clean) // leaves a snapshot at 4
	if !x.exists(snapshotName(4)) {
		t.Fatal("no snapshot at the end")
	}
	if err := x.log.TruncateTo(2, "test"); err != nil {
		t.Fatal(err)
	}
	for seed := range uint64(20) {
		y := x.fork(vfs.LoseSome, seed)
		if y.exists(snapshotName(4)) {
			t.Fatalf("seed %d: the snapshot of what was cut is back", seed)
		}
	}
}

// When damage below the recovery point is cut off at the start, the lower point is on record before anything is
// appended: else the next start would take the new records for synced.
func TestLoweredRecoveryPointIsSavedBeforeAnAppend(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{}).open(recoverFrom(0))
	for range 4 {
		x.append(exactly(100, ts0))
	}
	x.close()
	data := x.file(logName(0))
	data[250] ^= 1
	x.put(logName(0), data)
	saved := int64(4)
	x.open(recoverFrom(4), func(o *Options) {
		o.SavePositions = func() error { saved = x.log.RecoveryPoint(); return nil }
	})
	if got := x.append(exactly(100, ts0)); got.BaseOffset != 2 || saved > 2 {
		t.Errorf("append at %d with %d on record as synced", got.BaseOffset, saved)
	}
}

// A truncation below a log start that DeleteRecords raised is on record before anything is appended: else the next
// start would find the log's end below its start, and drop all.
func TestLoweredLogStartIsSaved(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{}).open(recoverFrom(0))
	for range 6 {
		x.append(exactly(100, ts0))
	}
	x.crash(vfs.LoseNothing, 0)
	saved := int64(5)
	x.open(recoverFrom(0), startAt(5), func(o *Options) {
		o.SavePositions = func() error {
			var ok bool
			if saved, ok = x.log.LogStartToSave(); !ok {
				saved = 0
			}
			return nil
		}
	})
	if err := x.log.TruncateTo(3, "test"); err != nil {
		t.Fatal(err)
	}
	x.append(exactly(100, ts0))
	if saved > 3 {
		t.Errorf("the log goes on at 3, but its start is on record as %d", saved)
	}
}

// A segment that could not be made on a full disk leaves no empty file behind: smaller batches still go to the one
// before it, and would be hidden by it after a restart.
func TestFailedRollLeavesNoFile(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{SegmentBytes: 500, Preallocate: true})
	f := x.onFault()
	x.open()
	x.append(exactly(300, ts0))
	f.Add(vfs.Rule{Kind: vfs.OpTruncate, Name: logName(1)})
	if _, err := x.try(exactly(400, ts0), 0, AppendOptions{}); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("%v", err)
	}
	x.append(exactly(100, ts0))
	x.append(exactly(400, ts0))
	x.close().open(clean)
	v := x.log.View()
	defer v.Release()
	d, err := v.Read(1, 2, 1000, true)
	if err != nil || d.Length != 100 {
		t.Errorf("offset 1: %d bytes, %v", d.Length, err)
	}
}

// A follower's append that fails at a roll keeps the batches before it, and no epoch of those after.
func TestFailedAppendLeavesNoEpochAboveTheEnd(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{SegmentBytes: 250})
	f := x.onFault()
	x.open()
	var raw []byte
	for i := range int64(3) {
		b := exactly(100, ts0)
		b.SetBaseOffset(i)
		b.SetPartitionLeaderEpoch(int32(i))
		raw = append(raw, b...)
	}
	f.Add(vfs.Rule{Kind: vfs.OpOpen, Name: logName(2)})
	f.Add(vfs.Rule{Kind: vfs.OpCreate, Name: logName(2)})
	if _, err := x.log.AppendAsFollower(raw, 9); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("%v", err)
	}
	// The third batch begins where the log ends: its epoch may stand, as that of a leader without data.
	b := exactly(100, ts0)
	b.SetBaseOffset(7)
	b.SetPartitionLeaderEpoch(8)
	f.Add(vfs.Rule{Kind: vfs.OpOpen, Name: logName(2)})
	f.Add(vfs.Rule{Kind: vfs.OpCreate, Name: logName(2)})
	if _, err := x.log.AppendAsFollower(b, 9); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("%v", err)
	}
	x.log.SetHighWatermark(2)
	v := x.log.View()
	defer v.Release()
	if last, _ := v.Epochs.Latest(); v.EndOffset != 2 || last.StartOffset > 2 {
		t.Errorf("the log ends at %d, its epochs are %s", v.EndOffset, v.Epochs)
	}
}

// While a log of an unclean stop could not be opened, and so was not recovered, a stop leaves no marker that would
// spare it the recovery.
func TestNoCleanMarkerOverAnUnrecoveredLog(t *testing.T) {
	t.Parallel()
	b := newBroker(t, "/d").start()
	b.create("t", 0, Config{})
	b.create("u", 0, Config{})
	b.produce("t", 0, 3)
	b.kill(vfs.LoseNothing)
	f := vfs.NewFault(b.mem)
	b.fs = f
	f.Add(vfs.Rule{Kind: vfs.OpOpen, Name: "t-0/" + logName(0)})
	d, err := OpenDirs(b.options())
	if err != nil {
		t.Fatal(err)
	}
	b.dirs = d
	failed, err := d.Load(context.Background(), keepAll)
	if err != nil || len(failed) != 1 {
		t.Fatal(failed, err)
	}
	b.stop()
	if _, err := b.fs.Stat("/d/" + CleanShutdownName); !isNotExist(err) {
		t.Errorf("there is a marker: %v", err)
	}
	b.start().stop()
	if _, err := b.fs.Stat("/d/" + CleanShutdownName); err != nil {
		t.Errorf("all is recovered, and there is no marker: %v", err)
	}
	// Opened later in the same life it counts, too.
	b.start().kill(vfs.LoseNothing)
	f = vfs.NewFault(b.mem)
	b.fs = f
	f.Add(vfs.Rule{Kind: vfs.OpOpen, Name: "t-0/" + logName(0)})
	if b.dirs, err = OpenDirs(b.options()); err != nil {
		t.Fatal(err)
	}
	if failed, err = b.dirs.Load(context.Background(), keepAll); err != nil || len(failed) != 1 {
		t.Fatal(failed, err)
	}
	b.create("t", 0, Config{})
	b.stop()
	if _, err := b.fs.Stat("/d/" + CleanShutdownName); err != nil {
		t.Errorf("no marker: %v", err)
	}
}

// Deleting many partitions writes no checkpoint for each: they are gone from the files when those are written next,
// and positions of logs that could not be opened stay.
func TestDeletedPartitionsLeaveTheCheckpointsTogether(t *testing.T) {
	t.Parallel()
	b := newBroker(t, "/d").start()
	for p := range int32(20) {
		b.create("t", p, Config{})
		b.produce("t", p, 1)
	}
	b.create("kept", 0, Config{})
	if err := errors.Join(b.dirs.CheckpointPositions(), b.dirs.CheckpointHighWatermarks()); err != nil {
		t.Fatal(err)
	}
	b.stop()
	f := vfs.NewFault(b.mem)
	b.fs = f
	f.Add(vfs.Rule{Kind: vfs.OpOpen, Name: "t-19/" + logName(0)})
	d, err := OpenDirs(b.options())
	if err != nil {
		t.Fatal(err)
	}
	b.dirs = d
	if failed, err := d.Load(context.Background(), keepAll); err != nil || len(failed) != 1 {
		t.Fatal(failed, err)
	}
	f.Trace()
	for p := range int32(19) {
		if err := d.Delete(TopicPartition{"t", p}); err != nil {
			t.Fatal(err)
		}
	}
	if n := f.Changes(); n != 2*19 {
		t.Errorf("%d operations for 19 partitions: %v", n, f.Operations())
	}
	if err := d.CheckpointPositions(); err != nil {
		t.Fatal(err)
	}
	m, err := parseCheckpoint([]byte(b.file("/d/" + RecoveryPointCheckpoint)))
	if _, unopened := m[TopicPartition{"t", 19}]; err != nil || len(m) != 2 || !unopened {
		t.Errorf("%v %v", m, err)
	}
	b.stop()
}

// The transaction index of a sealed segment below the recovery point is whole after a crash, whether the segment was
// synced before it was sealed or while: recovery does not look at it again, and a part of it would hide aborts.
func TestTransactionIndexIsSyncedWithItsSegment(t *testing.T) {
	t.Parallel()
	for name, flush := range map[string]func(t *testing.T, x *tester, f *vfs.Fault, roll func()){
		"before": func(t *testing.T, x *tester, _ *vfs.Fault, roll func()) {
			if err := x.log.Flush(); err != nil {
				t.Fatal(err)
			}
			roll()
		},
		"while": func(t *testing.T, x *tester, f *vfs.Fault, roll func()) {
			began, goOn := make(chan struct{}), make(chan struct{})
			f.Add(vfs.Rule{Kind: vfs.OpSync, Name: logName(0), Before: func() { close(began); <-goOn }})
			done := make(chan error)
			go func() { done <- x.log.Flush() }()
			<-began
			roll()
			close(goOn)
			if err := errors.Join(<-done, x.log.Flush()); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newTester(t, Config{})
			f := x.onFault()
			x.open(recoverFrom(0))
			for i := range int64(6) {
				x.append(idempotent(1+i, 0, 0, 2, true))
				x.end(marker(1+i, 0, false, 0))
			}
			x.log.SetHighWatermark(18)
			flush(t, x, f, func() {
				x.log.SetConfig(Config{SegmentBytes: 300})
				x.append(exactly(200, ts0))
			})
			for seed := range uint64(40) {
				y := x.fork(vfs.LoseSome, seed).open(recoverFrom(x.log.RecoveryPoint()))
				v := y.log.View()
				if got := v.AbortedTxns(0, 18); len(got) != 6 {
					t.Fatalf("seed %d: %d aborted transactions, there were 6", seed, len(got))
				}
				v.Release()
			}
		})
	}
}

// A directory in which a log could not be closed cleanly gets no marker.
func TestNoCleanMarkerAfterAFailedClose(t *testing.T) {
	t.Parallel()
	b := newBroker(t, "/d")
	f := vfs.NewFault(b.mem)
	b.fs = f
	b.start()
	b.create("t", 0, Config{})
	b.create("u", 0, Config{})
	b.produce("t", 0, 3)
	f.Add(vfs.Rule{Kind: vfs.OpSync, Name: "t-0/" + logName(0), Err: syscall.EIO})
	if err := b.dirs.Close(context.Background(), 42); !errors.Is(err, syscall.EIO) {
		t.Errorf("%v", err)
	}
	if _, err := b.fs.Stat("/d/" + CleanShutdownName); !isNotExist(err) {
		t.Errorf("there is a marker: %v", err)
	}
}

// The log start stays in its checkpoint while retention takes the segments below it away: what is written of positions meanwhile
// does not leave it to the names of files that a crash brings back.
func TestLogStartStaysOnRecordWhileSegmentsGo(t *testing.T) {
	t.Parallel()
	b := newBroker(t, "/d")
	f := vfs.NewFault(b.mem)
	b.fs = f
	b.start()
	l := b.create("t", 0, Config{SegmentBytes: 350, RetentionMs: -1})
	b.produce("t", 0, 12)
	if err := l.Flush(); err != nil {
		t.Fatal(err)
	}
	v := l.View()
	border := v.list.segs[2].base
	v.Release()
	if err := l.AdvanceLogStart(border, "DeleteRecords"); err != nil {
		t.Fatal(err)
	}
	var images []*vfs.Mem
	f.Add(vfs.Rule{Kind: vfs.OpRename, Name: "/t-0/", Count: -1, Before: func() {
		if err := b.dirs.CheckpointPositions(); err != nil {
			t.Error(err)
		}
		images = append(images, b.mem.CrashClone(vfs.LoseUnsynced, 0))
	}})
	if n := must(l.Retain(b.now)); n != 2 {
		t.Fatalf("%d segments went", n)
	}
	f.Clear()
	if len(images) < 4 {
		t.Fatalf("only %d images", len(images))
	}
	b.stop()
	for i, image := range images {
		y := newBroker(t, "/d")
		y.mem, y.fs = image, image
		y.start()
		l, _ := y.dirs.Log("t", 0)
		if v := l.View(); v.LogStartOffset != border {
			t.Errorf("image %d: the log starts at %d, %d was answered", i, v.LogStartOffset, border)
		}
		y.stop()
	}
}

// Of the positions the log start is written first: a recovery point that it has raised says nothing of what lies below it, which may
// not be on disk.
func TestLogStartIsOnRecordBeforeTheRecoveryPointThatItRaised(t *testing.T) {
	t.Parallel()
	b := newBroker(t, "/d")
	f := vfs.NewFault(b.mem)
	b.fs = f
	b.start()
	l := b.create("t", 0, Config{})
	b.produce("t", 0, 12) // nothing of it is synced
	point := l.RecoveryPoint()
	if point >= 7 {
		t.Fatalf("recovery point %d", point)
	}
	read := func(m *vfs.Mem, name string) int64 {
		data, err := vfs.ReadFile(m, "/d/"+name)
		if err != nil {
			return -1
		}
		return must(ParseCheckpoint(data))[TopicPartition{"t", 0}]
	}
	operations := 0
	f.Add(vfs.Rule{Kind: vfs.OpAny, Count: -1, Before: func() {
		operations++
		for _, loss := range []vfs.Loss{vfs.LoseNothing, vfs.LoseUnsynced} {
			image := b.mem.CrashClone(loss, 0)
			if point, start := read(image, RecoveryPointCheckpoint), read(image, LogStartCheckpoint); point >= 7 && start < 7 {
				t.Errorf("at operation %d the recovery point on record is %d, the log start %d", operations, point, start)
			}
		}
	}})
	if err := l.AdvanceLogStart(7, "DeleteRecords"); err != nil {
		t.Fatal(err)
	}
	f.Clear()
	if l.RecoveryPoint() < 7 || operations < 6 || read(b.mem, RecoveryPointCheckpoint) != 7 || read(b.mem, LogStartCheckpoint) != 7 {
		t.Errorf("recovery point %d, on record %d, log start on record %d, after %d operations", l.RecoveryPoint(), read(b.mem, RecoveryPointCheckpoint), read(b.mem, LogStartCheckpoint), operations)
	}
	b.stop()
}

// A truncation that a killed process had not made durable is, before anything is appended in the place of what it cut off: whatever
// a loss of power spares then, the dead batch is not back.
func TestCutOfAKilledProcessIsDurableBeforeAnAppend(t *testing.T) {
	t.Parallel()
	cuts := 0
	for n, more := 0, true; more; n++ {
		for seed := range uint64(12) {
			x := newTester(t, Config{})
			f := x.onFault()
			x.open().append(batch(100, 4096, ts0))
			dead := x.append(idempotent(666, 0, 0, 10, false))
			if err := x.log.Flush(); err != nil {
				t.Fatal(err)
			}
			f.Add(vfs.Rule{Kind: vfs.OpAny, Skip: n, Count: -1, Err: syscall.EIO}) // here it is killed
			more = x.log.TruncateTo(100, "test") != nil
			f.Clear()
			x.fs = x.mem // the kernel has what was written; the next process finds it
			x.open(recoverFrom(100))
			if x.leo() > dead.BaseOffset {
				continue // nothing was cut yet
			}
			cuts++
			x.append(batch(1, 100, ts0))
			for _, loss := range []vfs.Loss{vfs.LoseSome, vfs.LoseUnsynced} {
				y := x.fork(loss, seed).open(recoverFrom(100))
				v := y.log.View()
				for _, b := range readAll(t, v) {
					if b.ProducerID() == 666 {
						t.Errorf("killed at operation %d, seed %d: the dead batch is back at %d", n, seed, b.BaseOffset())
					}
				}
				v.Release()
			}
		}
	}
	if cuts == 0 {
		t.Error("nothing was cut")
	}
}
