//go:build chaos

package chaos

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// network is what lies between the nodes of a cluster and their clients: each listener is known to the others by a proxy,
// which knows by the process that owns a connection who has opened it. A link may be cut, each way for itself: what is sent
// is held back, as by a network that loses every packet, and comes when the link is whole again. Party 0 is everybody else.
type network struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced when a cut changes
	cut     map[[2]int]bool
	pids    map[int]int // by party
}

func newNetwork() *network {
	return &network{changed: make(chan struct{}), cut: map[[2]int]bool{}, pids: map[int]int{}}
}

func (w *network) change(alter func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	alter()
	close(w.changed)
	w.changed = make(chan struct{})
}

// sever cuts what is sent from one party to another.
func (w *network) sever(from, to int) { w.change(func() { w.cut[[2]int{from, to}] = true }) }

// isolate cuts a party off from all others, both ways.
func (w *network) isolate(party, parties int) {
	for other := range parties + 1 {
		if other != party {
			w.sever(party, other)
			w.sever(other, party)
		}
	}
}

func (w *network) heal() { w.change(func() { clear(w.cut) }) }

// runs says which process a party is.
func (w *network) runs(party, pid int) { w.change(func() { w.pids[party] = pid }) }

// open waits until what from sends reaches to, or ctx ends.
func (w *network) open(ctx context.Context, from, to int) bool {
	for {
		w.mu.Lock()
		cut, changed := w.cut[[2]int{from, to}], w.changed
		w.mu.Unlock()
		if !cut {
			return ctx.Err() == nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// owner is the party whose process has the socket at that port of 127.0.0.1.
func (w *network) owner(port int) int {
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return 0
	}
	want := fmt.Sprintf("0100007F:%04X", port)
	socket := ""
	for line := range bytes.Lines(table) {
		if f := strings.Fields(string(line)); len(f) > 9 && f[1] == want {
			socket = "socket:[" + f[9] + "]"
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for party, pid := range w.pids {
		descriptors, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, d := range descriptors {
			if target, err := os.Readlink(d); err == nil && target == socket {
				return party
			}
		}
	}
	return 0
}

// proxy is one listener of a party as others see it.
type proxy struct {
	network *network
	party   int
	port    int
	backend string

	mu       sync.Mutex
	listener net.Listener
	cancel   context.CancelFunc
	wg       sync.WaitGroup
}

func (w *network) newProxy(t *testing.T, party int, backend string) *proxy {
	p := &proxy{network: w, party: party, port: freePort(t), backend: backend}
	t.Cleanup(p.down)
	return p
}

func (p *proxy) addr() string { return fmt.Sprintf("127.0.0.1:%d", p.port) }

// up lets connections in, as the party's process is there.
func (p *proxy) up() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	l, err := net.Listen("tcp", p.addr())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.listener, p.cancel = l, cancel
	p.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.carry(ctx, conn) })
		}
	})
	return nil
}

// down refuses connections and ends those there are, as the party's process is gone.
func (p *proxy) down() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener == nil {
		return
	}
	p.listener.Close()
	p.cancel()
	p.wg.Wait()
	p.listener = nil
}

func (p *proxy) carry(ctx context.Context, near net.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer near.Close()
	from := p.network.owner(near.RemoteAddr().(*net.TCPAddr).Port)
	if !p.network.open(ctx, from, p.party) {
		return
	}
	far, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", p.backend)
	if err != nil {
		return
	}
	defer far.Close()
	var both sync.WaitGroup
	pump := func(to, of net.Conn, sender, receiver int) {
		defer cancel()
		buf := make([]byte, 64<<10)
		for {
			n, err := of.Read(buf)
			if n > 0 && p.network.open(ctx, sender, receiver) {
				_, werr := to.Write(buf[:n])
				err = errorOf(err, werr)
			}
			if err != nil {
				return
			}
		}
	}
	both.Go(func() { pump(far, near, from, p.party) })
	both.Go(func() { pump(near, far, p.party, from) })
	<-ctx.Done()
	near.Close()
	far.Close()
	both.Wait()
}

func errorOf(errs ...error) error {
	for _, err := range errs {
		if err != nil && err != io.EOF {
			return err
		}
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
