package replica

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stelelog/stele/internal/epoch"
	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/vfs"
)

// moving is a node with two more log directories, /b and /c.
func moving(t *testing.T, with ...func(*Options)) *node {
	t.Helper()
	n := &node{t: t, fs: vfs.NewMem(), logs: &bytesLogger{}, img: metadata.EmptyImage(), configs: map[string]TopicConfig{},
		events: &Events{}, altered: make(chan altered, 100), more: []string{"/b", "/c"}}
	n.files = n.fs
	n.start(with...)
	t.Cleanup(func() { _ = n.m.Close(t.Context(), -1) })
	return n
}

func (n *node) move(to string) {
	n.t.Helper()
	if err := n.m.MoveReplica("t", 0, to); err != nil {
		n.t.Fatal(err)
	}
}

// replicas are those of DescribeLogDirs, as directory, future or not, and lag.
func (n *node) replicas() (all []string) {
	for _, d := range n.m.DescribeLogDirs() {
		for _, r := range d.Replicas {
			what := "live"
			if r.IsFuture {
				what = "future"
			}
			all = append(all, fmt.Sprintf("%s %s lag %d", d.Path, what, r.OffsetLag))
		}
	}
	return all
}

// found are the partition directories on disk, with random parts of names left out.
func found(t *testing.T, fs vfs.FS) (all []string) {
	t.Helper()
	for _, dir := range []string{"/data", "/b", "/c"} {
		entries, err := fs.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if !e.IsDir() {
				continue
			}
			name := e.Name()
			if at := strings.IndexByte(name, '.'); at >= 0 {
				name = name[:at] + "..." + name[strings.LastIndexByte(name, '-'):]
			}
			all = append(all, dir+"/"+name)
		}
	}
	return all
}

// bytesOf is the whole log of partition 0 of t.
func (n *node) bytesOf() string {
	n.t.Helper()
	p := n.partition("t")
	raw, err := p.ReadLog(p.Positions().LogStart, make([]byte, 1<<20))
	if err != nil {
		n.t.Fatal(err)
	}
	return string(raw)
}

// E-078: topic t of F1 moves to another directory. DescribeLogDirs shows the copy, and a lag that falls to 0; afterwards
// every epoch ends where it did, those without records too, the checkpoint is in the new directory, and the old one is gone.
func TestE078_a_move(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rate := atomic.Int64{}
		rate.Store(1)
		n := moving(t, func(o *Options) {
			o.Rates = func(*metadata.Image) Rates { r := NoRates; r.Moves = rate.Load(); return r }
		})
		n.create("t", 1)
		for e, count := range []int{10, 0, 5, 0, 0, 5, 0} {
			if e > 0 {
				n.elect("t", 1)
			}
			if count > 0 {
				n.mustProduce("t", count)
			}
		}
		p := n.partition("t")
		raw, pos := n.bytesOf(), p.Positions()
		n.m.setRates(Rates{Leader: 1, Follower: 1, Moves: 1})
		n.m.moveRate.took(1000, n.m.now())
		n.move("/b")
		if got := n.replicas(); !slices.Equal(got, []string{"/b future lag 20", "/data live lag 0"}) {
			t.Errorf("while it moves: %v", got)
		}
		n.m.setRates(NoRates)
		settle(5 * time.Second)
		if got := n.replicas(); !slices.Equal(got, []string{"/b live lag 0"}) {
			t.Errorf("afterwards: %v\n%s", got, n.logs)
		}
		if got := found(t, n.fs); !slices.Equal(got, []string{"/data/t-0...-delete", "/b/t-0"}) {
			t.Errorf("on disk: %v", got)
		}
		if n.bytesOf() != raw || p.Positions() != pos {
			t.Errorf("positions %+v, were %+v", p.Positions(), pos)
		}
		current := p.Role().LeaderEpoch
		for asked, want := range map[int32]OffsetAndEpoch{0: {10, 0}, 1: {10, 0}, 2: {15, 2}, 4: {15, 2}, 5: {20, 5}, current: {20, current}} {
			if got, err := p.OffsetForLeaderEpoch(current, asked); err != nil || got != want {
				t.Errorf("epoch %d ends: %+v, %v, want %+v", asked, got, err, want)
			}
		}
		held, err := vfs.ReadFile(n.fs, "/b/t-0/"+epoch.CheckpointName)
		if err != nil || string(held) != "0\n7\n0 0\n1 10\n2 10\n3 15\n4 15\n5 15\n6 20\n" && string(held) != "0\n4\n0 0\n2 10\n5 15\n6 20\n" {
			t.Errorf("checkpoint: %q, %v", held, err)
		}
		n.mustProduce("t", 3)
		n.restart()
		if pos := n.partition("t").Positions(); pos.End != 23 || pos.HighWatermark != 23 {
			t.Errorf("after a restart: %+v", pos)
		}
		if got := found(t, n.fs); !slices.Contains(got, "/b/t-0") || slices.Contains(got, "/data/t-0") {
			t.Errorf("on disk after a restart: %v", got)
		}
		if _, err := n.fs.Stat("/b/t-0/copy"); err == nil {
			t.Error("it is still marked as a copy")
		}
	})
}

// E-079: records come in and are read all through a move. Offsets are contiguous, no reader is told that it is out of
// range, and the high watermark never falls.
func TestE079_a_move_under_load(t *testing.T) {
	t.Parallel()
	n := moving(t)
	n.create("t", 1)
	n.mustProduce("t", 100)
	stop, written, read := make(chan struct{}), make(chan error, 1), make(chan error, 1)
	var end atomic.Int64
	end.Store(100)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				written <- nil
				return
			default:
			}
			r := n.produce("t", stamped(7, int64(i)*1000))
			if r.Err != nil || r.BaseOffset != end.Load() {
				written <- fmt.Errorf("produce at %d: %+v", end.Load(), r)
				return
			}
			end.Add(7)
		}
	}()
	go func() {
		p, hw, at := n.partition("t"), int64(0), int64(0)
		for {
			select {
			case <-stop:
				read <- nil
				return
			default:
			}
			if now := p.Positions().HighWatermark; now < hw {
				read <- fmt.Errorf("high watermark %d after %d", now, hw)
				return
			} else {
				hw = now
			}
			got := n.fetch(consume(at, -1, -1))
			if !strings.HasPrefix(got, fmt.Sprintf("[%d-", at)) {
				read <- fmt.Errorf("fetch at %d: %s", at, got)
				return
			}
			if at = 100 + 7*((hw-100)/7) - 7; at < 100 {
				at = 0
			}
		}
	}()
	for _, to := range []string{"/b", "/c", "/data", "/b"} {
		n.move(to)
		for deadline := time.Now().Add(30 * time.Second); n.partition("t").directory() != to; {
			if time.Now().After(deadline) {
				t.Fatalf("not moved to %s: %v\n%s", to, n.replicas(), n.logs)
			}
			<-time.After(time.Millisecond)
		}
	}
	close(stop)
	if err := errors.Join(<-written, <-read); err != nil {
		t.Error(err)
	}
	if pos := n.partition("t").Positions(); pos.End != end.Load() || pos.HighWatermark != pos.End {
		t.Errorf("%+v, want the end at %d", pos, end.Load())
	}
	end.Store(0)
	raw := n.bytesOf()
	n.crash()
	if n.bytesOf() != raw {
		t.Error("after a kill the log differs")
	}
}

// E-080: while a partition moves it is wanted elsewhere: the first copy goes. An unknown path is 57, the directory that it
// is in nothing, and ends the move; a partition without a replica here 9, and the wish is kept; an unknown one 3.
func TestE080_other_directories_are_wanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := moving(t)
		n.create("t", 1)
		n.mustProduce("t", 50)
		n.m.setRates(Rates{Leader: 1, Follower: 1, Moves: 1})
		n.m.moveRate.took(100000, n.m.now())
		n.move("/b")
		n.move("/c")
		if got := found(t, n.fs); !slices.Equal(got, []string{"/data/t-0", "/b/t-0...-delete", "/c/t-0...-future"}) {
			t.Errorf("on disk: %v", got)
		}
		for _, c := range []struct {
			topic, path string
			want        error
		}{{"t", "/nowhere", ErrUnknownLogDir}, {"t", "/c", nil}, {"no", "/b", ErrUnknownTopicOrPartition},
			{strings.Repeat("x", 220), "/b", ErrTopicNameTooLong}} {
			if err := n.m.MoveReplica(c.topic, 0, c.path); !errors.Is(err, c.want) {
				t.Errorf("%.5s to %s: %v, want %v", c.topic, c.path, err, c.want)
			}
		}
		n.m.o.Dirs.Cordon([]string{"/b"})
		if err := n.m.MoveReplica("t", 0, "/b"); !errors.Is(err, ErrCordonedLogDir) {
			t.Errorf("to a cordoned directory: %v", err)
		}
		n.m.o.Dirs.Cordon(nil)
		n.move("/data")
		if got := n.replicas(); !slices.Equal(got, []string{"/data live lag 0"}) {
			t.Errorf("after the move was cancelled: %v", got)
		}
		settle(2 * time.Second)
		if got := found(t, n.fs); !slices.Equal(got, []string{"/data/t-0"}) {
			t.Errorf("on disk in the end: %v", got)
		}
		n.m.setRates(NoRates)
		n.create("other", 1, 2, 3)
		if err := n.m.MoveReplica("other", 0, "/c"); !errors.Is(err, ErrReplicaNotHere) {
			t.Errorf("without a replica: %v", err)
		}
		wider := metadata.NewPartitionChange(topicID("other"), 0)
		wider.Replicas, wider.Directories = []int32{2, 3, 1}, make([]metadata.UUID, 3)
		n.replay(wider)
		settle(3 * time.Second)
		if p, err := n.m.Partition("other", 0); err != nil || p.directory() != "/c" {
			t.Errorf("the wish was not kept: %v", err)
		}
	})
}

// E-081: the replica that is copied is cut to 60 while it moves. Its copy, at 80, is cut too and catches up; one at 55 stays
// as it is. In the end the epochs are equal.
func TestE081_the_log_is_cut_while_it_moves(t *testing.T) {
	for _, at := range []int64{80, 55} {
		synctest.Test(t, func(t *testing.T) {
			n := moving(t)
			n.create("t", 1, 1, 2)
			n.setISR("t", 1)
			for i := range 100 {
				if i == 50 {
					n.elect("t", 1)
				}
				if r := n.produceAcks("t", 1, stamped(1, int64(i))); r.Err != nil {
					t.Fatal(r.Err)
				}
			}
			p := n.partition("t")
			n.m.setRates(Rates{Leader: 1, Follower: 1, Moves: 1})
			n.m.moveRate.took(10_000_000, n.m.now())
			n.move("/b")
			settle(time.Second)
			copied, ok := n.m.o.Dirs.Future(log.TopicPartition{Topic: "t"})
			if !ok {
				t.Fatal("no copy")
			}
			raw, err := p.ReadLog(0, make([]byte, 1<<20))
			if err != nil {
				t.Fatal(err)
			}
			if copied.View().EndOffset == 0 {
				if _, err := copied.AppendAsFollower(raw, 1); err != nil {
					t.Fatal(err)
				}
			}
			if err := copied.TruncateTo(at, "for the test"); err != nil {
				t.Fatal(err)
			}
			n.elect("t", 2)
			if err := p.log().TruncateTo(60, "for the test"); err != nil {
				t.Fatal(err)
			}
			n.elect("t", 1)
			for i := range 10 {
				if r := n.produceAcks("t", 1, stamped(1, int64(1000+i))); r.Err != nil {
					t.Fatal(r.Err)
				}
			}
			n.m.setRates(NoRates)
			before := fmt.Sprint(p.log().View().Epochs.Entries())
			settle(5 * time.Second)
			if p.directory() != "/b" {
				t.Fatalf("not moved: %v\n%s", n.replicas(), n.logs)
			}
			if pos := p.Positions(); pos.End != 70 {
				t.Errorf("%+v", pos)
			}
			if got := fmt.Sprint(p.log().View().Epochs.Entries()); got != before {
				t.Errorf("epochs %s, were %s", got, before)
			}
			all, err := p.ReadLog(0, make([]byte, 1<<20))
			if err != nil || !slices.Equal(all[:100], raw[:100]) {
				t.Errorf("records differ: %v", err)
			}
		})
	}
}

// E-082: the copy's directory fails: the move is over, the partition goes on where it was. The directory of the replica
// fails: the copy cannot stand in for it.
func TestE082_a_directory_fails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := make(chan metadata.UUID, 10)
		n := moving(t)
		n.m.o.DirectoryAssigned = func(_ metadata.UUID, _ int32, dir metadata.UUID) { lost <- dir }
		n.create("t", 1)
		n.mustProduce("t", 50)
		n.m.setRates(Rates{Leader: 1, Follower: 1, Moves: 1})
		n.m.moveRate.took(1000000, n.m.now())
		n.move("/b")
		settle(time.Second)
		n.m.DirectoryOffline("/b", errors.New("pulled out"))
		settle(time.Second)
		if got := n.replicas(); !slices.Equal(got, []string{"/data live lag 0"}) {
			t.Errorf("after the copy's directory failed: %v", got)
		}
		n.mustProduce("t", 1)
		n.move("/c")
		settle(time.Second)
		n.m.DirectoryOffline("/data", errors.New("pulled out"))
		n.m.setRates(NoRates)
		settle(5 * time.Second)
		if _, err := n.m.Partition("t", 0); err == nil {
			t.Error("the copy stands in for the replica")
		}
		if got := n.replicas(); len(got) > 0 {
			t.Errorf("after the replica's directory failed: %v", got)
		}
	})
}

// E-082, and P8: the process dies at any change to the disk during a move, with or without what was not synced. Each time
// one replica is left after the start, with every record, and the move can be made again.
func TestE082_a_crash_at_any_point_of_a_move(t *testing.T) {
	t.Parallel()
	for _, loss := range []vfs.Loss{vfs.LoseNothing, vfs.LoseUnsynced} {
		for stop := 0; ; stop++ {
			if crashWhileMoving(t, loss, stop) {
				if stop < 20 {
					t.Errorf("a move changes the disk %d times only", stop)
				}
				break
			}
		}
	}
}

// changesDisk are the operations that change what a crash leaves.
var changesDisk = map[vfs.OpKind]bool{vfs.OpWrite: true, vfs.OpTruncate: true, vfs.OpSync: true, vfs.OpRename: true, vfs.OpRemove: true,
	vfs.OpMkdir: true, vfs.OpSyncDir: true, vfs.OpCreate: true}

// crashWhileMoving takes the picture of the disk before change number stop since the move began; it is true when the move
// was done before.
func crashWhileMoving(t *testing.T, loss vfs.Loss, stop int) (finished bool) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := moving(t)
		n.configs["t"] = TopicConfig{MinISR: 1}
		c := n.configs["t"]
		c.Log.FlushMessages = 1
		n.configs["t"] = c
		fault := vfs.NewFault(n.fs)
		n.files = fault
		n.restart()
		n.create("t", 1)
		n.mustProduce("t", 5)
		n.elect("t", 1)
		n.mustProduce("t", 5)
		raw := n.bytesOf()
		settle(7 * time.Second)
		var picture *vfs.Mem
		changes := 0
		fault.Watch(func(op vfs.Operation) *vfs.Failure {
			if changesDisk[op.Kind] {
				if changes == stop {
					picture = n.fs.CrashClone(loss, 1)
				}
				changes++
			}
			return nil
		})
		n.move("/b")
		settle(3 * time.Second)
		fault.Watch(nil)
		if picture == nil {
			finished = true
			return
		}
		fs := n.fs
		n.fs, n.files = picture, picture
		old := n.m
		n.start()
		n.m.Apply(n.img, nil)
		settle(5 * time.Second)
		live := slices.DeleteFunc(found(t, picture), func(s string) bool { return strings.Contains(s, "...") })
		if len(live) != 1 {
			t.Errorf("%v, change %d: live %v\n%s", loss, stop, live, n.logs)
		} else if n.bytesOf() != raw {
			t.Errorf("%v, change %d: the log differs: %+v", loss, stop, n.partition("t").Positions())
		}
		n.move("/c")
		settle(5 * time.Second)
		if dir := n.partition("t").directory(); dir != "/c" || n.bytesOf() != raw {
			t.Errorf("%v, change %d: in %s after another move", loss, stop, dir)
		}
		if err := n.m.Close(t.Context(), -1); err != nil {
			t.Error(err)
		}
		n.fs, n.files, n.m = fs, fs, old
	})
	return finished
}

// The controller hears of a move when the copy has everything, and the copy takes over only when metadata say so. A cancel
// after that takes the report back.
func TestAMoveWaitsForTheController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := metadata.UUID{0: 9, 15: 1}, metadata.UUID{0: 9, 15: 2}
		var told []metadata.UUID
		n := moving(t, func(o *Options) {
			o.Directories = map[metadata.UUID]string{a: "/data", b: "/b"}
			o.DirectoryAssigned = func(_ metadata.UUID, _ int32, dir metadata.UUID) { told = append(told, dir) }
		})
		n.replay(&metadata.TopicRecord{Name: "t", TopicID: topicID("t")}, &metadata.PartitionRecord{TopicID: topicID("t"), Replicas: []int32{1}, ISR: []int32{1},
			Leader: 1, Directories: []metadata.UUID{a}})
		n.mustProduce("t", 5)
		n.move("/b")
		settle(3 * time.Second)
		if !slices.Equal(told, []metadata.UUID{b}) || n.partition("t").directory() != "/data" {
			t.Fatalf("told %v, in %s", told, n.partition("t").directory())
		}
		n.move("/data")
		settle(time.Second)
		if !slices.Equal(told, []metadata.UUID{b, a}) {
			t.Errorf("told after the cancel: %v", told)
		}
		n.move("/b")
		settle(3 * time.Second)
		n.mustProduce("t", 5)
		c := metadata.NewPartitionChange(topicID("t"), 0)
		c.Directories = []metadata.UUID{b}
		n.replay(c)
		settle(time.Second)
		if n.partition("t").directory() != "/b" || n.partition("t").Positions().HighWatermark != 10 {
			t.Errorf("in %s, %+v", n.partition("t").directory(), n.partition("t").Positions())
		}
	})
}
