package cli

import (
	"context"
	"net"
	"testing"

	"github.com/stelelog/stele/internal/wire"
)

// Clients that come while a node starts are told its API versions at any moment of it: the listeners are there
// before the parts behind them. Meant for the race detector.
func TestClientsDuringStart(t *testing.T) {
	t.Parallel()
	reserved, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := reserved.Addr().String()
	if err := reserved.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan int)
	go func() {
		n := 0
		for ctx.Err() == nil {
			if conn, err := wire.Dial(ctx, (&net.Dialer{}).DialContext, addr, wire.DialOptions{}); err == nil {
				conn.Close()
				n++
			}
		}
		asked <- n
	}()
	n, err := startFor(t.Context(), t.TempDir(), "listeners=PLAINTEXT://"+addr+",CONTROLLER://127.0.0.1:0", "http.listen=")
	cancel()
	count := <-asked
	if err != nil {
		t.Fatal(err)
	}
	defer n.stop()
	if count == 0 {
		t.Error("no client was answered during the start")
	}
}
