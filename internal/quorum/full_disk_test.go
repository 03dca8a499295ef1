package quorum

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stelelog/stele/internal/vfs"
	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
)

// A full disk makes the active controller wait, and go on when there is room: the request that waited is answered, and
// nothing of it was written twice. One that is closed meanwhile ends.
func TestHostWaitsForRoom(t *testing.T) {
	t.Parallel()
	waiting := func() (*Host, *vfs.Fault, chan error) {
		disk := vfs.NewFault(vfs.NewMem())
		formatHost(t, disk)
		h := startHost(t, disk, Config{})
		disk.Add(vfs.Rule{Kind: vfs.OpWrite, Name: ".log", Count: -1, Short: 7})
		answered := make(chan error, 1)
		go func() {
			_, err := setConfig(t, h, "a", "1")
			answered <- err
		}()
		select {
		case err := <-answered:
			t.Fatalf("answered on a full disk: %v", err)
		case <-time.After(3 * roomInterval):
		}
		return h, disk, answered
	}
	h, disk, answered := waiting()
	disk.Clear()
	if err := <-answered; err != nil || configOf(h.Committed(), "a") != "1" {
		t.Fatalf("with room again: %v, config %q", err, configOf(h.Committed(), "a"))
	}
	closeHost(t, h)

	h, _, answered = waiting()
	if err := h.Close(); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("closed on a full disk: %v", err)
	}
	if err := <-answered; !errors.Is(err, ErrNotController) {
		t.Fatalf("a request that waited for room when the host was closed: %v", err)
	}
}

// On a full disk a change ends when whoever asked for it waits no longer, and says why; what waits behind it unasked for is
// not carried out later, and whoever can make room is told once.
func TestHostOnAFullDiskEndsRequestsInTime(t *testing.T) {
	t.Parallel()
	disk := vfs.NewFault(vfs.NewMem())
	formatHost(t, disk)
	needed := make(chan struct{}, 100)
	h := startHost(t, disk, Config{}, func(o *Options) { o.NeedRoom = func() { needed <- struct{}{} } })
	disk.Add(vfs.Rule{Kind: vfs.OpWrite, Name: ".log", Count: -1})
	for _, key := range []string{"first", "second"} {
		ctx, cancel := context.WithTimeout(t.Context(), 3*roomInterval)
		_, err := setConfigWithin(ctx, h, key, "1")
		cancel()
		var full *NoRoomError
		if !errors.As(err, &full) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("%s on a full disk: %v", key, err)
		}
	}
	if n := len(needed); n != 1 {
		t.Errorf("room was asked for %d times", n)
	}
	disk.Clear()
	if _, err := setConfig(t, h, "third", "1"); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"first": "1", "second": "", "third": "1"} {
		if got := configOf(h.Committed(), key); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	closeHost(t, h)
}

// On a full disk the host takes no messages, and nobody waits longer than whoever sent them: connections are given up and
// made again, and what they had brought must not pile up for as long as the disk is full.
func TestMessagesDoNotPileUpOnAFullDisk(t *testing.T) {
	t.Parallel()
	disk := vfs.NewFault(vfs.NewMem())
	formatHost(t, disk)
	h := startHost(t, disk, Config{})
	disk.Add(vfs.Rule{Kind: vfs.OpWrite, Name: ".log", Count: -1})
	ctx, cancel := context.WithTimeout(t.Context(), 3*roomInterval)
	defer cancel()
	if _, err := setConfigWithin(ctx, h, "a", "1"); err == nil {
		t.Fatal("answered on a full disk")
	}
	if err := h.Receive(ctx, identityOf(testVoter(1)), nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("messages for a host that waits for room: %v", err)
	}
	disk.Clear()
	if _, err := setConfig(t, h, "b", "1"); err != nil {
		t.Fatal(err)
	}
	closeHost(t, h)
}

// A follower whose disk is full waits for room too, and takes what the leader sends when there is some: its process, which
// may be a broker as well, goes on.
func TestFollowerWaitsForRoom(t *testing.T) {
	t.Parallel()
	disk := vfs.NewFault(vfs.NewMem())
	formatTest(t, disk, testVoter(1), testVoters(1, 2, 3))
	h, err := Open(hostOptions(disk, Config{ElectionTimeout: time.Hour}))
	if err != nil {
		t.Fatal(err)
	}
	h.Start()
	leader := testVoter(2)
	receive := func(m *pb.Message) {
		t.Helper()
		m.From, m.To, m.Term = new(raftIDOf(leader)), new(raftIDOf(testVoter(1))), new(uint64(50))
		if err := h.Receive(t.Context(), identityOf(leader), []*pb.Message{m}); err != nil {
			t.Fatal(err, h.Err())
		}
	}
	receive(&pb.Message{Type: pb.MsgHeartbeat.Enum(), Commit: new(uint64(1))})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := h.WaitLed(ctx); err != nil {
		t.Fatal(err)
	}
	disk.Add(vfs.Rule{Kind: vfs.OpWrite, Name: ".log", Count: -1, Short: 7})
	receive(&pb.Message{Type: pb.MsgApp.Enum(), Index: new(uint64(1)), LogTerm: new(uint64(0)), Commit: new(uint64(2)),
		Entries: []*pb.Entry{{Index: new(uint64(2)), Term: new(uint64(50))}}})
	select {
	case <-h.Done():
		t.Fatalf("it has ended: %v", h.Err())
	case <-time.After(3 * roomInterval):
	}
	disk.Clear()
	if err := h.waitFor(ctx, func(s *Status) bool { return s.HighWatermark == 1 }); err != nil {
		t.Errorf("with room again: %v, %+v", err, h.Status())
	}
	closeHost(t, h)
}

// A snapshot that could not be written because the disk is full is tried again after a while, not at once and without end,
// also when it is due because a voter was added or removed.
func TestFailedSnapshotPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := vfs.NewFault(vfs.NewMem())
		formatHost(t, disk)
		var tried atomic.Int32
		disk.Watch(func(op vfs.Operation) *vfs.Failure {
			if op.Kind == vfs.OpWrite && strings.Contains(op.Name, partSuffix) {
				tried.Add(1)
			}
			return nil
		})
		h := startHost(t, disk, Config{})
		disk.Add(vfs.Rule{Kind: vfs.OpWrite, Name: partSuffix, Count: 1000})
		learner := uint64(77)
		err := h.post(func() error {
			return h.core.node.raft.ProposeConfChange(&pb.ConfChangeV2{
				Changes: []*pb.ConfChangeSingle{{Type: pb.ConfChangeAddLearnerNode.Enum(), NodeId: &learner}}, Context: encodeVoters(testVoters(1)),
			})
		})
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(5 * snapshotRetry / 2)
		synctest.Wait()
		if n := tried.Load(); n == 0 || n > 3 {
			t.Errorf("%d snapshots failed in two and a half pauses", n)
		}
		disk.Clear()
		<-time.After(2 * snapshotRetry)
		synctest.Wait()
		if len(h.Status().snapshots) == 0 {
			t.Error("no snapshot when there is room again")
		}
		closeHost(t, h)
	})
}

// While there is no snapshot yet with a voter that was added, none is offered: a new voter has its membership from the
// snapshot it is sent, and would not find itself in an older one.
func TestNoSnapshotIsOfferedWithoutTheNewMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := vfs.NewFault(vfs.NewMem())
		formatHost(t, disk)
		h := startHost(t, disk, Config{})
		disk.Add(vfs.Rule{Kind: vfs.OpWrite, Name: partSuffix, Count: -1})
		added := testVoter(2)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		if err := h.AddVoter(ctx, added); err != nil {
			t.Fatal(err)
		}
		offered := func() (snapshot *pb.Snapshot, err error) {
			synctest.Wait()
			posted := h.post(func() error {
				snapshot, err = h.core.node.store.Snapshot()
				return nil
			})
			if posted != nil {
				t.Fatal(posted)
			}
			synctest.Wait()
			return snapshot, err
		}
		if snapshot, err := offered(); !errors.Is(err, raft.ErrSnapshotTemporarilyUnavailable) {
			t.Errorf("offered is %v (%v), which knows nothing of the new voter", snapshot.GetMetadata(), err)
		}
		disk.Clear()
		<-time.After(2 * snapshotRetry)
		snapshot, err := offered()
		if err != nil || !slices.Contains(snapshot.GetMetadata().GetConfState().GetVoters(), raftIDOf(added)) {
			t.Errorf("with room again: %v (%v)", snapshot.GetMetadata(), err)
		}
		closeHost(t, h)
	})
}
