package quorum

import (
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
