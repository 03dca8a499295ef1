package replica

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/vfs"
)

// TestAPartitionThatAFullDiskHasNoRoomForIsOpenedLater: nothing goes offline, nobody is told that the replica is lost,
// and with room again the partition is led.
func TestAPartitionThatAFullDiskHasNoRoomForIsOpenedLater(t *testing.T) {
	t.Parallel()
	strict := func(o *Options) {
		o.DirectoryAssigned = func(_ metadata.UUID, _ int32, dir metadata.UUID) {
			if dir == metadata.DirLost {
				t.Error("the replica was given up as lost")
			}
		}
		o.DirectoryFailed = func(path string, cause error) { t.Errorf("%s was taken offline: %v", path, cause) }
	}
	n := newNode(t, strict)
	fault := vfs.NewFault(n.fs)
	n.files = fault
	if err := n.m.Close(t.Context(), -1); err != nil {
		t.Fatal(err)
	}
	n.start(strict)
	fault.Add(vfs.Rule{Kind: vfs.OpWrite, Name: "late-0", Count: -1})
	n.create("late", 1)
	n.m.retryUnopened()
	if _, err := n.m.Partition("late", 0); !log.IsFull(err) {
		t.Fatalf("on a full disk: %v", err)
	}
	if lines := strings.Count(n.logs.String(), "replica not opened"); lines != 1 {
		t.Errorf("%d lines say so, want 1", lines)
	}
	fault.Clear()
	n.m.retryUnopened()
	if p, err := n.m.Partition("late", 0); err != nil {
		t.Fatal(err)
	} else if err := p.Err(); err != nil {
		t.Fatal(err)
	}
	n.mustProduce("late", 1)
}

// A follower whose disk is full goes on by itself when there is room: it is not left behind until the leader epoch rises.
func TestFollowerGoesOnAfterAFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		fault := vfs.NewFault(p.f.fs)
		p.f.files = fault
		if err := p.f.m.Close(t.Context(), -1); err != nil {
			t.Fatal(err)
		}
		p.f.start(func(o *Options) {
			o.BrokerID = 2
			o.Leader = func(int32) Leader { return p.line }
		})
		p.l.create("t", 1, 1, 2)
		p.f.create("t", 1, 1, 2)
		settle(time.Second)
		fault.Add(vfs.Rule{Kind: vfs.OpWrite, Name: "t-0", Count: -1, Short: 7})
		if r := p.l.produceAcks("t", 1, stamped(3, 1000)); r.Err != nil {
			t.Fatal(r.Err)
		}
		settle(10 * time.Second)
		if end := p.f.partition("t").Positions().End; end != 0 {
			t.Fatalf("on a full disk the follower ends at %d", end)
		}
		if n := p.f.m.Stats().Failed; n != 0 {
			t.Errorf("%d partitions count as failed", n)
		}
		fault.Clear()
		settle(3 * time.Second)
		p.same(t)
	})
}
