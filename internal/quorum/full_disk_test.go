package quorum

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/vfs"
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
