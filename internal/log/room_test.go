package log

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/vfs"
)

// fillingDirs are the log directories of a node whose volumes are as full as the test says.
func fillingDirs(t *testing.T, limits RoomLimits, paths ...string) (*broker, *Dirs, *vfs.Fault) {
	t.Helper()
	x := newBroker(t, paths...)
	fault := vfs.NewFault(x.mem)
	for _, p := range paths {
		fault.SetUsage(p, 1<<30, 1<<29)
	}
	x.fs = fault
	o := x.options()
	o.Limits = limits
	d, err := OpenDirs(o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Load(context.Background(), keepAll); err != nil {
		t.Fatal(err)
	}
	return x, d, fault
}

func entriesLike(t *testing.T, x *broker, dir, part string) (n int) {
	t.Helper()
	entries, err := x.mem.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.Contains(e.Name(), part) {
			n++
		}
	}
	return n
}

func mustAppend(t *testing.T, l *Log, o AppendOptions) AppendInfo {
	t.Helper()
	info, err := l.AppendAsLeader(batch(1, 1000, ts0), 0, o)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// TestE072_reserve_refuses_clients_alone: with free space down to the reserve a client's write is refused and said to be
// a full disk, while the coordinators', reads, deletes and retention go on and nothing is offline; freed space brings
// writes back by itself; the offsets have no gap.
func TestE072_reserve_refuses_clients_alone(t *testing.T) {
	t.Parallel()
	x, d, fault := fillingDirs(t, RoomLimits{Soft: 0, Reserve: 10000}, "/a", "/b")
	l, err := d.Create(TopicPartition{"t", 0}, topicID, Config{}, "/a", true)
	if err != nil {
		t.Fatal(err)
	}
	other, err := d.Create(TopicPartition{"u", 0}, topicID, Config{}, "/b", true)
	if err != nil {
		t.Fatal(err)
	}
	mustAppend(t, l, AppendOptions{})
	fault.SetUsage("/a", 1<<30, 12000)
	x.now = x.now.Add(2 * time.Second)
	d.WatchRoom(x.now)
	// 2000 bytes are above the reserve: no look at the volume is due, yet what was written since counts.
	written := 0
	for ; written < 10; written++ {
		if _, err = l.AppendAsLeader(batch(1, 1000, ts0), 0, AppendOptions{}); err != nil {
			break
		}
	}
	var no *NoRoomError
	if !errors.As(err, &no) || !IsFull(err) || written < 1 || written > 3 {
		t.Fatalf("after %d writes into 2000 bytes: %v", written, err)
	}
	if !strings.Contains(err.Error(), "log.dir.reserve.bytes") {
		t.Errorf("the message does not say what to do: %v", err)
	}
	mustAppend(t, l, AppendOptions{Origin: OriginCoordinator})
	mustAppend(t, other, AppendOptions{})
	v := l.View()
	if data, err := v.Read(0, v.EndOffset, 1<<20, true); err != nil || data.Length == 0 {
		t.Errorf("read: %v", err)
	}
	v.Release()
	if err := l.AdvanceLogStart(0, "test"); err != nil {
		t.Error(err)
	}
	if len(d.Offline()) > 0 {
		t.Error("offline:", d.Offline())
	}
	if !d.WatchRoom(x.now.Add(time.Second)) {
		t.Error("retention is not asked for")
	}
	if _, err := l.AppendAsLeader(batch(1, 5000, ts0), 0, AppendOptions{}); !IsFull(err) {
		t.Errorf("a larger write: %v", err)
	}
	fault.SetUsage("/a", 1<<30, 14000) // more than the margin, less than what was wanted
	d.WatchRoom(x.now.Add(2 * time.Second))
	if rooms := d.Room(); len(rooms) != 2 || rooms[0].Level != RoomReserve || rooms[0].Refused != 2 || rooms[1].Level != RoomPlenty {
		t.Errorf("%+v", rooms)
	}
	fault.SetUsage("/a", 1<<30, 1<<29)
	x.now = x.now.Add(3 * time.Second)
	if info := mustAppend(t, l, AppendOptions{}); info.BaseOffset != int64(written)+2 {
		t.Errorf("base offset %d after %d writes", info.BaseOffset, written+2)
	}
	if err := d.Close(context.Background(), 1); err != nil {
		t.Error(err)
	}
}

// TestE072_soft_limit_slows_producers: below the soft limit writes succeed and say how long their writer should wait,
// retention is asked for, and what waits for its deletion goes at once.
func TestE072_soft_limit_slows_producers(t *testing.T) {
	t.Parallel()
	x, d, fault := fillingDirs(t, RoomLimits{Soft: 1 << 20, Reserve: 1 << 10}, "/a")
	l, err := d.Create(TopicPartition{"t", 0}, topicID, Config{}, "", true)
	if err != nil {
		t.Fatal(err)
	}
	gone, err := d.Create(TopicPartition{"gone", 0}, topicID, Config{}, "", true)
	if err != nil {
		t.Fatal(err)
	}
	mustAppend(t, gone, AppendOptions{})
	if err := d.Delete(TopicPartition{"gone", 0}); err != nil {
		t.Fatal(err)
	}
	d.Housekeep(x.now)
	if n := entriesLike(t, x, "/a", "-delete"); n != 1 {
		t.Fatalf("%d directories wait for their deletion", n)
	}
	fault.SetUsage("/a", 1<<30, 1<<19)
	x.now = x.now.Add(2 * time.Second)
	if !d.WatchRoom(x.now) {
		t.Error("retention is not asked for")
	}
	d.Housekeep(x.now)
	if n := entriesLike(t, x, "/a", "-delete"); n != 0 {
		t.Errorf("%d directories still wait for their deletion", n)
	}
	slowed := time.Duration(0)
	for range 60 {
		slowed += mustAppend(t, l, AppendOptions{}).Throttle
	}
	if slowed <= 0 {
		t.Error("nobody is slowed down")
	}
	if info := mustAppend(t, l, AppendOptions{Origin: OriginCoordinator}); info.Throttle != 0 {
		t.Error("the coordinator is")
	}
	if err := d.Close(context.Background(), 1); err != nil {
		t.Error(err)
	}
}

// A volume that does not say how full it is refuses nothing, and neither do limits of zero.
func TestRoomUnknownAdmits(t *testing.T) {
	t.Parallel()
	x, d, fault := fillingDirs(t, RoomLimits{Soft: -1, Reserve: -1}, "/a", "/b")
	fault.Add(vfs.Rule{Kind: vfs.OpStat, Name: "/a", Count: -1, Err: errors.New("no idea")})
	fault.SetUsage("/b", 1<<30, 0)
	for _, path := range []string{"/a", "/b"} {
		if path == "/b" {
			d.SetRoomLimits(RoomLimits{})
		}
		r, _ := d.dir(path)
		for range 3 {
			if wait, err := r.room.admit(1<<20, func() time.Time { return x.now }); err != nil || wait != 0 {
				t.Errorf("%s: %v %v", path, wait, err)
			}
		}
	}
	if err := d.Close(context.Background(), 1); err != nil {
		t.Error(err)
	}
}

// What grows is told by topic, fastest first, and a new level is one line.
func TestGrowingTopicsAreTold(t *testing.T) {
	t.Parallel()
	x, d, fault := fillingDirs(t, RoomLimits{Soft: 1 << 20, Reserve: 1 << 10}, "/a")
	fill := func(topic string, n int) {
		l, err := d.Create(TopicPartition{topic, 0}, topicID, Config{}, "", true)
		if err != nil {
			t.Fatal(err)
		}
		for range n {
			mustAppend(t, l, AppendOptions{})
		}
	}
	fill("idle", 20)
	for range 2 {
		x.now = x.now.Add(growthStretch)
		d.WatchRoom(x.now)
	}
	fill("slow", 1)
	fill("fast", 10)
	got := d.Growing("/a", 5)
	if len(got) != 2 || got[0].Topic != "fast" || got[1].Topic != "slow" || got[0].BytesPerSecond < 20 {
		t.Errorf("%+v", got)
	}
	fault.SetUsage("/a", 1<<30, 100)
	x.now = x.now.Add(10 * time.Second)
	for range 5 {
		x.now = x.now.Add(time.Second)
		d.WatchRoom(x.now)
	}
	told := x.out.String()
	if n := strings.Count(told, "log directory is full"); n != 1 || !strings.Contains(told, "growing=\"[fast slow]\"") {
		t.Errorf("%d lines:\n%s", n, told)
	}
	if err := d.Close(context.Background(), 1); err != nil {
		t.Error(err)
	}
}

// The ballast is written where there is room, given up by a start on a full disk, and put back.
func TestBallastMakesRoomForAStart(t *testing.T) {
	t.Parallel()
	x, d, fault := fillingDirs(t, RoomLimits{Soft: -1, Reserve: -1}, "/a")
	d.WatchRoom(x.now)
	if n := Ballast(x.mem, "/a"); n != mostBallast {
		t.Fatalf("ballast of %d bytes", n)
	}
	fault.SetUsage("/a", 1<<30, 0)
	if err := d.Close(context.Background(), 1); err != nil {
		t.Fatal(err)
	}
	o := x.options()
	o.Limits = RoomLimits{Soft: -1, Reserve: -1}
	d, err := OpenDirs(o)
	if err != nil {
		t.Fatal(err)
	}
	if n := Ballast(x.mem, "/a"); n != mostBallast-ballastSlice {
		t.Errorf("%d bytes of ballast on a full disk", n)
	}
	for i := range 6 {
		if !d.ReleaseBallast("/a") {
			t.Errorf("slice %d not released", i)
		}
	}
	d.WatchRoom(x.now.Add(time.Second))
	if n := Ballast(x.mem, "/a"); n != ballastSlice {
		t.Errorf("%d bytes of ballast are left on a full disk", n)
	}
	if !d.ReleaseBallast("/a") || d.ReleaseBallast("/a") || Ballast(x.mem, "/a") != 0 {
		t.Error("the last slice, and none after it")
	}
	fault.SetUsage("/a", 1<<30, 1<<29)
	d.WatchRoom(x.now.Add(2 * time.Second))
	if n := Ballast(x.mem, "/a"); n != mostBallast {
		t.Errorf("%d bytes of ballast with room again", n)
	}
	if err := d.Close(context.Background(), 1); err != nil {
		t.Error(err)
	}
}
