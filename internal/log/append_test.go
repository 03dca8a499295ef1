package log

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
)

// onFault puts a fault file system between the log and its memory.
func (x *tester) onFault() *vfs.Fault {
	f := vfs.NewFault(x.mem)
	x.fs = f
	return f
}

// Readers that ask for the largest timestamp, for times, and apply retention, while a writer with alternating
// timestamps rolls all the time, see neither an error nor an answer that falls.
func TestA1_readers_under_a_rolling_writer(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{SegmentBytes: 1200, IndexIntervalBytes: 100, RetentionBytes: 2500, RetentionMs: -1})
	rolled := make(chan *View, 4) // as a roll has published them, before the batch that made it
	x.open(func(o *Options) {
		o.OnEvent = func(e Event) {
			if e.Kind != EventSegmentRolled {
				return
			}
			v := x.log.View()
			select {
			case rolled <- v:
			default:
				v.Release()
			}
		}
	})
	done := make(chan struct{})
	var wg sync.WaitGroup
	var operations atomic.Int64
	for range 16 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			best := int64(-1)
			for round := 0; ; round++ {
				select {
				case <-done:
					return
				default:
				}
				v := x.log.View()
				f, ok, err := v.MaxTimestamp(v.HighWatermark)
				if err != nil {
					t.Error(err)
				}
				if ok && f.Timestamp < best {
					t.Errorf("the largest timestamp fell from %d to %d", best, f.Timestamp)
				}
				if ok {
					best = f.Timestamp
				}
				operations.Add(1)
				if round%4 == 0 {
					operations.Add(1)
					if _, _, err := v.OffsetForTime(best-5, v.HighWatermark); err != nil {
						t.Error(err)
					}
				}
				v.Release()
				if round%16 == 0 {
					operations.Add(1)
					if _, err := x.log.Retain(x.now); err != nil {
						t.Error(err)
					}
				}
			}
		}()
	}
	n, largest, began := int64(0), int64(-1), time.Now()
	for ; n < 1500 || operations.Load()+n < listOperations; n++ {
		ts := ts0 + n
		if n%2 == 1 {
			ts -= 100
		}
		x.append(batch(1, 120, ts))
		// One more reader takes its steps where they hurt: it looks at what a roll has published when the batch is there.
		v := x.log.View()
		f, ok, err := v.MaxTimestamp(v.EndOffset)
		v.Release()
		if err != nil || !ok || f.Timestamp < largest {
			t.Fatalf("after batch %d: %+v %v %v, the largest was %d", n, f, ok, err, largest)
		}
		largest = f.Timestamp
		select {
		case slow := <-rolled:
			if _, _, err := slow.MaxTimestamp(slow.EndOffset); err != nil {
				t.Fatal(err)
			}
			slow.Release()
		default:
		}
	}
	close(done)
	wg.Wait()
	t.Logf("%d appends in %d segments and %d operations of readers in %v", n, x.log.SegmentCount(), operations.Load(), time.Since(began).Round(time.Millisecond))
	if x.leo() != n {
		t.Errorf("end offset %d", x.leo())
	}
	v := x.log.View()
	defer v.Release()
	for i := range v.list.segs {
		last := timeEntry{-1, 0}
		for j := range v.state(i).times.len() {
			e := must(v.state(i).times.at(j))
			if e.timestamp <= last.timestamp || e.rel < last.rel {
				t.Fatalf("time index of segment %d: %v after %v", i, e, last)
			}
			last = e
		}
	}
}

// Just after a roll a reader of the largest timestamp stands still on its first step while two batches come, the
// second one earlier than the first: nothing is lost, and nothing refuses.
func TestA2_reader_across_a_roll(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{IndexIntervalBytes: 1, SegmentBytes: 2400})
	x.now = time.UnixMilli(1749554797191)
	x.open(startAt(572579050))
	for x.log.SegmentCount() < 2 {
		x.append(batch(1, 80, record.NoTimestamp))
	}
	v := x.log.View() // just after the roll
	for x.leo() < 572579088 {
		x.append(batch(1, 80, record.NoTimestamp))
	}
	x.append(batch(1, 80, 1749554797191))
	if _, _, err := v.MaxTimestamp(v.EndOffset); err != nil {
		t.Error(err)
	}
	v.Release()
	x.append(batch(1, 80, 1749554796970))
	v = x.log.View()
	defer v.Release()
	f, ok, err := v.MaxTimestamp(v.EndOffset)
	if err != nil || !ok || f.Offset != 572579088 || f.Timestamp != 1749554797191 {
		t.Errorf("%+v %v %v", f, ok, err)
	}
}

// An index file that cannot be written neither fails a produce nor moves an offset, and lookups go on.
func TestA3_index_write_fails(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{SegmentBytes: 2000, IndexIntervalBytes: 100})
	f := x.onFault()
	x.open()
	f.Add(vfs.Rule{Kind: vfs.OpWrite, Name: "timeindex", Count: -1, Err: syscall.EIO})
	for i := range 20 {
		if info := x.append(batch(10, 400, ts0+int64(i))); info.BaseOffset != int64(10*i) {
			t.Fatalf("base offset %d", info.BaseOffset)
		}
	}
	check := func() {
		t.Helper()
		v := x.log.View()
		defer v.Release()
		for i := range 20 {
			if f, ok, err := v.OffsetForTime(ts0+int64(i), v.EndOffset); err != nil || !ok || f.Offset != int64(10*i) {
				t.Errorf("time %d: %+v %v %v", i, f, ok, err)
			}
		}
	}
	check()
	if x.count(EventRebuilt) == 0 {
		t.Error("nobody was told")
	}
	f.Clear()
	x.close().open(clean)
	check()
}

// A panic in the middle of an append leaves the log as it was: the bytes are gone, the next batch gets the offset.
func TestA4_panic_during_an_append(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{})
	f := x.onFault()
	x.open().append(batch(100, 2000, ts0))
	size := len(x.file(logName(0)))
	f.Add(vfs.Rule{Kind: vfs.OpWrite, Name: ".log", Panic: true})
	_, err := x.try(batch(10, 400, ts0), 0, AppendOptions{})
	var se *StorageError
	if !errors.As(err, &se) || !errors.Is(err, errPanic) || se.Offline {
		t.Fatalf("%v", err)
	}
	if x.leo() != 100 || len(x.file(logName(0))) != size {
		t.Errorf("end %d, %d bytes", x.leo(), len(x.file(logName(0))))
	}
	if info := x.append(batch(10, 400, ts0)); info.BaseOffset != 100 {
		t.Errorf("base offset %d", info.BaseOffset)
	}
}

// A4 with the panic behind the bytes: an index that panics takes nothing back and gives no offset again, the next batch follows;
// where it strikes in a roll the log may end, and no offset is given again either.
func TestA4_index_panics_behind_the_bytes(t *testing.T) {
	t.Parallel()
	for file, kind := range map[string]vfs.OpKind{indexName(0): vfs.OpWrite, timeName(0): vfs.OpWrite, ".log": vfs.OpCreate, ".snapshot": vfs.OpCreate} {
		for skip := range 3 {
			x := newTester(t, Config{IndexIntervalBytes: 1, SegmentBytes: 20_000})
			f := x.onFault()
			x.open()
			f.Add(vfs.Rule{Kind: kind, Name: file, Skip: skip, Panic: true})
			panicked, next := false, int64(0)
			for i := range pendingIndexEntries*4 + 20 {
				info, err := x.try(batch(1, 100, ts0+int64(i)), 0, AppendOptions{})
				if err != nil {
					panicked = true
					if !errors.Is(err, errPanic) {
						t.Fatalf("%s: %v", file, err)
					}
					if x.log.Err() != nil {
						break
					}
					next = max(next, x.leo())
					continue
				}
				if info.BaseOffset < next {
					t.Fatalf("%s: offset %d was given again", file, info.BaseOffset)
				}
				next = info.LastOffset + 1
			}
			f.Clear()
			last := int64(-1)
			y := x.fork(vfs.LoseNothing, 0).open(recoverFrom(0))
			for _, o := range y.offsets() {
				if o <= last {
					t.Fatalf("%s: offset %d after %d", file, o, last)
				}
				last = o
			}
			if y.leo() < next {
				t.Errorf("%s, panicked %v: %d were given out, the log ends at %d", file, panicked, next, y.leo())
			}
		}
	}
}

// The disk is full after 137 of a batch's bytes: the produce fails, the file is cut back and that is synced, and
// once there is room again the offset is given to the next batch, once.
func TestA5_disk_full(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{})
	f := x.onFault()
	x.open().append(batch(100, 4096, ts0))
	size := len(x.file(logName(0)))
	f.Add(vfs.Rule{Kind: vfs.OpWrite, Name: ".log", Short: 137})
	f.Trace()
	_, err := x.try(batch(10, 500, ts0), 0, AppendOptions{})
	var se *StorageError
	if !errors.As(err, &se) || se.Offline || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("%v", err)
	}
	if x.leo() != 100 || len(x.file(logName(0))) != size {
		t.Errorf("end %d, %d bytes", x.leo(), len(x.file(logName(0))))
	}
	path := x.dir + "/" + logName(0)
	if got, want := f.Operations(), []string{"write " + path, "truncate " + path, "sync " + path}; !slices.Equal(got, want) {
		t.Errorf("operations %v, want %v", got, want)
	}
	if x.log.Err() != nil {
		t.Errorf("the log is out: %v", x.log.Err())
	}
	if info := x.append(batch(10, 500, ts0)); info.BaseOffset != 100 || fmt.Sprint(x.offsets()) != "[0 100]" {
		t.Errorf("base offset %d, batches %v", info.BaseOffset, x.offsets())
	}
}

// When the cut fails too the directory is offline: no more appends, and after a restart the log ends where it did.
func TestA6_cut_fails(t *testing.T) {
	t.Parallel()
	for _, kind := range []vfs.OpKind{vfs.OpTruncate, vfs.OpSync} {
		x := newTester(t, Config{})
		f := x.onFault()
		var offline *StorageError
		x.open(func(o *Options) { o.OnOffline = func(se *StorageError) { offline = se } })
		x.append(batch(100, 4096, ts0))
		f.Add(vfs.Rule{Kind: vfs.OpWrite, Name: ".log", Short: 137})
		f.Add(vfs.Rule{Kind: kind, Name: ".log", Err: syscall.EIO})
		for range 2 {
			_, err := x.try(batch(10, 500, ts0), 0, AppendOptions{})
			var se *StorageError
			if !errors.As(err, &se) || !se.Offline {
				t.Errorf("%v: %v", kind, err)
			}
		}
		if offline == nil {
			t.Errorf("%v: nobody was told", kind)
		}
		v := x.log.View()
		var se *StorageError
		if _, err := v.Read(0, 100, 1, true); !errors.As(err, &se) {
			t.Errorf("%v: read: %v", kind, err)
		}
		v.Release()
		if x.crash(vfs.LoseNothing, 0).open(); x.leo() != 100 {
			t.Errorf("%v: end %d after the restart", kind, x.leo())
		}
	}
}

// A failed batch never comes back at an offset that another one was given since, whatever a crash keeps.
func TestA9_failed_batch_stays_dead(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		x := newTester(t, Config{})
		f := x.onFault()
		x.open().append(batch(100, 4096, ts0))
		if err := x.log.Flush(); err != nil {
			t.Fatal(err)
		}
		dead := idempotent(666, 0, 0, 10, false)
		f.Add(vfs.Rule{Kind: vfs.OpWrite, Name: ".log", Short: len(dead)})
		if _, err := x.try(dead, 0, AppendOptions{}); err == nil {
			t.Fatal("no error")
		}
		x.append(batch(1, 100, ts0))
		x.crash(vfs.LoseSome, seed).open(recoverFrom(100))
		v := x.log.View()
		for _, b := range readAll(t, v) {
			if b.ProducerID() == 666 {
				t.Errorf("seed %d: the dead batch is back", seed)
			}
		}
		v.Release()
	}
}

// At each single file operation of an append that rolls a failure leaves strictly rising offsets and an end offset
// that agrees with the bytes, and a follower that replays the log agrees.
func TestA10_every_operation_fails(t *testing.T) {
	t.Parallel()
	for _, how := range []error{syscall.ENOSPC, syscall.EIO} {
		for n := 0; ; n++ {
			x := newTester(t, Config{SegmentBytes: 1000, IndexIntervalBytes: 100})
			f := x.onFault()
			x.open()
			for i := range 9 {
				x.append(exactly(110, ts0+int64(i)))
			}
			f.Trace()
			f.Add(vfs.Rule{Kind: vfs.OpAny, Skip: n, Err: how, Short: 50})
			_, err := x.try(exactly(110, ts0), 3, AppendOptions{})
			ops := f.Changes()
			f.Clear()
			want := 9
			if err == nil {
				want++
			}
			if x.leo() != int64(want) {
				t.Errorf("%v at operation %d (%v): end %d, want %d", how, n, f.Operations(), x.leo(), want)
			}
			if x.log.Err() == nil {
				if got := len(x.offsets()); got != want {
					t.Errorf("%v at operation %d (%v): %d batches, want %d", how, n, f.Operations(), got, want)
				}
				if info, err := x.try(exactly(110, ts0), 3, AppendOptions{}); err != nil || info.BaseOffset != int64(want) {
					t.Errorf("%v at operation %d: next %d, %v", how, n, info.BaseOffset, err)
				}
				want++
			}
			x.crash(vfs.LoseNothing, 0).open()
			if got := len(x.offsets()); got != want {
				t.Errorf("%v at operation %d: %d batches after a restart, want %d", how, n, got, want)
			}
			if n > ops {
				break
			}
		}
	}
}

// When the epoch checkpoint cannot be synced nothing is written, and the epoch is not kept.
func TestA11_epoch_sync_fails(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{})
	f := x.onFault()
	x.open().append(batch(1, 100, ts0))
	size := len(x.file(logName(0)))
	f.Add(vfs.Rule{Kind: vfs.OpSync, Name: "leader-epoch-checkpoint", Err: syscall.EIO})
	_, err := x.try(batch(1, 100, ts0), 1, AppendOptions{})
	var se *StorageError
	if !errors.As(err, &se) || !se.Offline {
		t.Fatalf("%v", err)
	}
	v := x.log.View()
	defer v.Release()
	if v.EndOffset != 1 || len(x.file(logName(0))) != size || v.Epochs.String() != "{0:0}" {
		t.Errorf("end %d, %d bytes, epochs %v", v.EndOffset, len(x.file(logName(0))), v.Epochs)
	}
}

// Each row of the roll table.
func TestS031_when_segments_roll(t *testing.T) {
	t.Parallel()
	hour := int64(3600000)
	for _, c := range []struct {
		name        string
		cfg         Config
		first       record.Batch
		firstSize   int
		next        func(x *tester) batchInfo
		rolls       bool
		alsoCreated time.Duration
	}{
		{"fits exactly", Config{SegmentBytes: 1000}, exactly(900, ts0), 900, sized(100, ts0), false, 0},
		{"one byte too many", Config{SegmentBytes: 1000}, exactly(900, ts0), 900, sized(101, ts0), true, 0},
		{"age equal", ageConfig(hour), exactly(100, 1000), 100, sized(100, 1000+hour), false, 0},
		{"age above", ageConfig(hour), exactly(100, 1000), 100, sized(100, 1001+hour), true, 0},
		{"first in the future", ageConfig(hour), exactly(100, ts0+hour-1), 100, sized(100, ts0), false, 48 * time.Hour},
		{"no timestamp, old", ageConfig(hour), exactly(100, -1), 100, sized(100, ts0), true, 2 * time.Hour},
		{"no timestamp, young", ageConfig(hour), exactly(100, -1), 100, sized(100, ts0), false, time.Minute},
		{"offset index full", fullIndex(8), exactly(100, ts0), 100, sized(100, ts0), true, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			x := newTester(t, c.cfg).open()
			x.append(c.first)
			if c.name == "offset index full" {
				x.append(exactly(100, ts0+1))
			}
			x.now = x.now.Add(c.alsoCreated)
			b := c.next(x)
			if got := x.log.mustRoll(&b, x.log.active.size, true); got != c.rolls {
				t.Errorf("rolls: %v", got)
			}
		})
	}
	x := newTester(t, Config{}).open(startAt(10))
	if b := (batchInfo{size: 100, last: 10 + math.MaxInt32}); x.log.mustRoll(&b, 0, false) {
		t.Error("the last relative offset rolls")
	}
	if b := (batchInfo{size: 100, last: 11 + math.MaxInt32}); !x.log.mustRoll(&b, 0, false) {
		t.Error("an offset beyond int32 does not roll")
	}
	_, err := newTester(t, Config{SegmentBytes: 1000}).open().try(exactly(1001, ts0), 0, AppendOptions{})
	if !errors.Is(err, ErrRecordListTooLarge) {
		t.Errorf("a batch above segment.bytes: %v", err)
	}
}

func sized(size int, ts int64) func(*tester) batchInfo {
	return func(x *tester) batchInfo {
		return batchInfo{size: size, base: x.leo(), last: x.leo(), maxTimestamp: ts}
	}
}

func ageConfig(ms int64) Config {
	c := DefaultConfig()
	c.SegmentMs = ms
	return c
}

func fullIndex(bytes int32) Config {
	c := DefaultConfig()
	c.SegmentIndexBytes, c.IndexIntervalBytes = bytes, 0
	return c
}

// A log idle for eight days does not roll by itself; the next append rolls by the first batch's timestamp.
func TestS032_idle_segment(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{RetentionMs: -1}).open()
	x.append(batch(1, 100, ts0))
	x.now = x.now.Add(8 * 24 * time.Hour)
	if n, err := x.log.Retain(x.now); err != nil || n != 0 || x.log.SegmentCount() != 1 {
		t.Errorf("%d segments went, %d left, %v", n, x.log.SegmentCount(), err)
	}
	if x.append(batch(1, 100, x.now.UnixMilli())); x.log.SegmentCount() != 2 {
		t.Errorf("%d segments", x.log.SegmentCount())
	}
}

// A follower keeps offsets and epochs as they come, ignores batches of newer epochs than it asked for, and refuses
// overlaps, falling epochs and damage without storing anything.
func TestFollowerAppend(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{SegmentBytes: 1000}).open()
	set := func(base int64, epoch int32) record.Batch {
		b := batch(10, 300, ts0)
		b.SetBaseOffset(base)
		b.SetPartitionLeaderEpoch(epoch)
		return b
	}
	fetched := slices.Concat(set(0, 5), set(10, 5), set(20, 6), set(30, 7), set(40, 7)[:50])
	info, err := x.log.AppendAsFollower(fetched, 6)
	if err != nil || info.BaseOffset != 0 || info.LastOffset != 29 || x.leo() != 30 {
		t.Fatalf("%+v, end %d, %v", info, x.leo(), err)
	}
	v := x.log.View()
	if v.Epochs.String() != "{5:0, 6:20}" {
		t.Errorf("epochs %v", v.Epochs)
	}
	v.Release()
	if info, err := x.log.AppendAsFollower(set(30, 7), 6); err != nil || info.LastOffset != 29 {
		t.Errorf("only a newer epoch: %+v, %v", info, err)
	}
	var off *UnexpectedOffsetError
	if _, err := x.log.AppendAsFollower(slices.Concat(set(30, 6), set(35, 6)), 6); !errors.As(err, &off) || off.Expected != 40 {
		t.Errorf("overlap: %v", err)
	}
	var ep *UnexpectedEpochError
	if _, err := x.log.AppendAsFollower(set(30, 5), 6); !errors.As(err, &ep) {
		t.Errorf("falling epoch: %v", err)
	}
	bad := set(30, 6)
	bad[len(bad)-2] ^= 1
	var corrupt *record.CorruptError
	if _, err := x.log.AppendAsFollower(slices.Concat(set(30, 6), bad), 6); !errors.As(err, &corrupt) {
		t.Errorf("damage: %v", err)
	}
	if x.leo() != 30 {
		t.Fatalf("end %d", x.leo())
	}
	// Gaps, as compaction leaves them, are followed; a batch larger than a segment gets one of its own.
	big := exactly(5000, ts0)
	big.SetBaseOffset(95)
	big.SetPartitionLeaderEpoch(6)
	if _, err := x.log.AppendAsFollower(slices.Concat(set(50, 6), big), 6); err != nil || x.leo() != 96 {
		t.Fatalf("end %d, %v", x.leo(), err)
	}
	if got := fmt.Sprint(x.offsets()); got != "[0 10 20 50 95]" {
		t.Errorf("batches %s", got)
	}
}

// The quorum's entries are stored byte for byte, several epochs in one append, only at the exact end offset.
func TestQuorumAppend(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{}).open()
	set := func(base int64, epoch int32) record.Batch {
		b := record.NewControlBatch(ts0, record.ControlRecord{Type: record.LeaderChange, Value: []byte{1, 2}})
		b.SetBaseOffset(base)
		b.SetPartitionLeaderEpoch(epoch)
		return b
	}
	entries := slices.Concat(set(0, 1), set(1, 1), set(2, 4))
	want := slices.Clone(entries)
	o := AppendOptions{Origin: OriginQuorum, CheckEndOffset: true}
	if info, err := x.log.AppendAsLeader(entries, 0, o); err != nil || info.LastOffset != 2 {
		t.Fatalf("%+v %v", info, err)
	}
	if !bytes.Equal(x.file(logName(0)), want) {
		t.Error("the bytes differ")
	}
	if err := x.log.Flush(); err != nil || x.log.RecoveryPoint() != 3 {
		t.Errorf("recovery point %d, %v", x.log.RecoveryPoint(), err)
	}
	var off *UnexpectedOffsetError
	if _, err := x.log.AppendAsLeader(set(3, 4), 0, o); !errors.As(err, &off) {
		t.Errorf("wrong end offset: %v", err)
	}
	o.ExpectedEndOffset = 3
	if _, err := x.log.AppendAsLeader(set(4, 4), 0, o); !errors.As(err, &off) {
		t.Errorf("a gap: %v", err)
	}
	if err := x.log.TruncateTo(1, "conflict"); err != nil || x.leo() != 1 {
		t.Fatalf("end %d, %v", x.leo(), err)
	}
	x.log.SetHighWatermark(1)
	if err := x.log.AdvanceLogStart(1, "snapshot"); err != nil {
		t.Fatal(err)
	}
	o.ExpectedEndOffset = 1
	if _, err := x.log.AppendAsLeader(set(1, 5), 0, o); err != nil {
		t.Fatal(err)
	}
	x.close().open(clean, startAt(1))
	if got := fmt.Sprint(x.offsets()); got != "[1]" {
		t.Errorf("batches %s", got)
	}
}

// With flush.messages=1 every acknowledged batch survives the loss of all that was not synced; without, what is
// lost is a tail.
func TestS040_flush_messages(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		x := newTester(t, Config{FlushMessages: 1, SegmentBytes: 700}).open()
		rng := rand.New(rand.NewPCG(seed, 1))
		n := 1 + rng.IntN(20)
		for range n {
			x.append(exactly(100, ts0))
		}
		for _, loss := range []vfs.Loss{vfs.LoseUnsynced, vfs.LoseSome} {
			y := x.fork(loss, seed).open(recoverFrom(0))
			if got := len(y.offsets()); got != n {
				t.Errorf("%d of %d batches are left", got, n)
			}
		}
	}
	x := newTester(t, Config{SegmentBytes: 700}).open()
	for range 30 {
		x.append(exactly(100, ts0))
	}
	if err := x.log.flushSealed(); err != nil || x.log.RecoveryPoint() < 20 {
		t.Fatalf("recovery point %d, %v", x.log.RecoveryPoint(), err)
	}
	for seed := range uint64(30) {
		y := x.fork(vfs.LoseSome, seed).open(recoverFrom(0))
		if y.leo() < x.log.RecoveryPoint() {
			t.Fatalf("seed %d: the log ends at %d, below the recovery point %d", seed, y.leo(), x.log.RecoveryPoint())
		}
		for i, o := range y.offsets() {
			if o != int64(i) {
				t.Fatalf("seed %d: batch %d at offset %d", seed, i, o)
			}
		}
	}
}

// On a full disk produce is refused and may be tried again, reads and retention go on, and a log opens; the directory
// stays online, and with room appends go on at the right offset.
func TestB086_full_disk(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{SegmentBytes: 500, IndexIntervalBytes: 100, RetentionBytes: 500, RetentionMs: -1})
	f := x.onFault()
	x.open()
	for i := range int32(12) {
		x.append(idempotent(1, 0, i*3, 3, false))
	}
	full := func() {
		f.Add(vfs.Rule{Kind: vfs.OpWrite, Count: -1})
		f.Add(vfs.Rule{Kind: vfs.OpCreate, Count: -1})
	}
	full()
	refused := func() {
		t.Helper()
		for range 3 {
			_, err := x.try(idempotent(1, 0, 36, 3, false), 2, AppendOptions{})
			var se *StorageError
			if !errors.As(err, &se) || se.Offline || !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("%v", err)
			}
		}
		if x.log.Err() != nil {
			t.Fatalf("the log is out: %v", x.log.Err())
		}
	}
	refused()
	want := len(x.offsets())
	if n, err := x.log.Retain(x.now); err != nil || n == 0 {
		t.Errorf("%d segments went, %v", n, err)
	} else if got := len(x.offsets()); got >= want {
		t.Errorf("%d batches are left of %d", got, want)
	}
	want = len(x.offsets())
	f.Clear()
	x.crash(vfs.LoseNothing, 0)
	f = x.onFault()
	for _, n := range must(fileNames(x.mem, x.dir)) {
		if o, ok := fileOffset(n); ok && n == indexName(o) {
			if err := x.mem.Remove(x.dir + "/" + n); err != nil {
				t.Fatal(err)
			}
		}
	}
	full()
	x.open(recoverFrom(30))
	if got := len(x.offsets()); got != want || x.leo() != 36 {
		t.Errorf("after a restart: %d batches of %d, end %d", got, want, x.leo())
	}
	refused()
	f.Clear()
	if info, err := x.try(idempotent(1, 0, 36, 3, false), 2, AppendOptions{}); err != nil || info.BaseOffset != 36 {
		t.Errorf("with room: %+v, %v", info, err)
	}
}
