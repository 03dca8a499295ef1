package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// clientHost is where all clients are: one host, the faults of whose network are those of the nodes.
const clientHost = 0

// network is what connects hosts. Bytes are never lost in a connection; connections break, stall, or cannot be made.
type network struct {
	mu        sync.Mutex
	rng       *rand.Rand
	changed   chan struct{} // closed, and made anew, when a listener or a way may have come back
	listeners map[string]*listener
	conns     map[*conn]struct{}
	blocked   map[[2]int]int // how many faults block the way from one host to another
	slow      map[int]time.Duration
	dark      map[int]bool // the machine is off: nobody refuses a connection
	port      int
}

func newNetwork(seed uint64) *network {
	return &network{
		rng: rand.New(rand.NewPCG(seed, 0x0e7)), changed: make(chan struct{}), listeners: map[string]*listener{}, conns: map[*conn]struct{}{},
		blocked: map[[2]int]int{}, slow: map[int]time.Duration{}, dark: map[int]bool{}, port: 20000,
	}
}

// attachment is one process's place in the network; cut off, it says and hears nothing more.
type attachment struct {
	n    *network
	host int
	dead bool // n.mu
}

func (n *network) attach(host int) *attachment { return &attachment{n: n, host: host} }

func (n *network) tellLocked() {
	close(n.changed)
	n.changed = make(chan struct{})
	for c := range n.conns {
		c.wakeLocked()
	}
}

// block stops what goes from one host to another until the returned function is called.
func (n *network) block(from, to int) (heal func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	way := [2]int{from, to}
	n.blocked[way]++
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.blocked[way]--; n.blocked[way] == 0 {
			n.tellLocked()
		}
	}
}

// delay makes everything that host says or hears late.
func (n *network) delay(host int, by time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.slow[host] = by
}

// reset breaks the connections between two hosts.
func (n *network) reset(a, b int) (count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		if c.host == a && c.peer.host == b || c.host == b && c.peer.host == a {
			c.resetLocked()
			count++
		}
	}
	return count
}

// cutOff ends a process's part in the network. off: its machine goes with it, and the other ends of its connections
// notice nothing before it is back.
func (a *attachment) cutOff(off bool) {
	n := a.n
	n.mu.Lock()
	defer n.mu.Unlock()
	a.dead = true
	for addr, l := range n.listeners {
		if l.of == a {
			delete(n.listeners, addr)
			l.closeLocked()
		}
	}
	n.dark[a.host] = off
	for c := range n.conns {
		if c.of != a {
			continue
		}
		if off {
			c.closed, c.silent = true, true
			c.wakeLocked()
			delete(n.conns, c)
		} else {
			c.resetLocked()
		}
	}
}

// powerOn brings a machine back: what others still say to its old processes is refused.
func (n *network) powerOn(host int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dark[host] = false
	for c := range n.conns {
		if c.peer.host == host && c.peer.silent {
			c.resetLocked()
		}
	}
	n.tellLocked()
}

func (n *network) latencyLocked(from, to int) time.Duration {
	d := time.Duration(100+n.rng.IntN(900)) * time.Microsecond
	if n.rng.IntN(300) == 0 {
		d += time.Duration(n.rng.IntN(80)) * time.Millisecond
	}
	return d + n.slow[from] + n.slow[to]
}

// hostOf reads the host's number out of an address like n3:9092.
func hostOf(addr string) (int, error) {
	name, _, err := net.SplitHostPort(addr)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimPrefix(name, "n"))
}

var errUnplugged = errors.New("the process is dead")

// dialPatience is how long a connection is tried that nobody answers.
const dialPatience = 60 * time.Second

func (a *attachment) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	n := a.n
	to, err := hostOf(addr)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialPatience)
	defer cancel()
	n.mu.Lock()
	wait := n.latencyLocked(a.host, to)
	n.mu.Unlock()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return nil, fmt.Errorf("dial %s: %w", addr, ctx.Err())
	}
	for {
		n.mu.Lock()
		l, changed := n.listeners[addr], n.changed
		switch {
		case a.dead:
			n.mu.Unlock()
			return nil, errUnplugged
		case n.dark[to] || n.blocked[[2]int{a.host, to}] > 0 || n.blocked[[2]int{to, a.host}] > 0:
			n.mu.Unlock()
			select {
			case <-changed:
			case <-ctx.Done():
				return nil, fmt.Errorf("dial %s: %w", addr, ctx.Err())
			}
			continue
		case l == nil:
			n.mu.Unlock()
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
		}
		n.port++
		near := &conn{n: n, of: a, host: a.host, wake: make(chan struct{}, 1), name: fmt.Sprintf("n%d:%d", a.host, n.port)}
		far := &conn{n: n, of: l.of, host: to, peer: near, wake: make(chan struct{}, 1), name: addr}
		near.peer = far
		n.conns[near], n.conns[far] = struct{}{}, struct{}{}
		l.waiting = append(l.waiting, far)
		l.wakeLocked()
		n.mu.Unlock()
		return near, nil
	}
}

// listener is an open port.
type listener struct {
	n       *network
	of      *attachment
	addr    string
	waiting []*conn
	closed  bool
	wake    chan struct{}
}

func (a *attachment) listen(_, addr string) (net.Listener, error) {
	n := a.n
	n.mu.Lock()
	defer n.mu.Unlock()
	if a.dead {
		return nil, errUnplugged
	}
	if n.listeners[addr] != nil {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Err: os.NewSyscallError("bind", syscall.EADDRINUSE)}
	}
	l := &listener{n: n, of: a, addr: addr, wake: make(chan struct{}, 1)}
	n.listeners[addr] = l
	n.tellLocked()
	return l, nil
}

func (l *listener) wakeLocked() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *listener) closeLocked() {
	l.closed = true
	for _, c := range l.waiting {
		c.resetLocked()
	}
	l.waiting = nil
	l.wakeLocked()
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		l.n.mu.Lock()
		if l.closed {
			l.n.mu.Unlock()
			return nil, net.ErrClosed
		}
		if len(l.waiting) > 0 {
			c := l.waiting[0]
			l.waiting = l.waiting[1:]
			l.n.mu.Unlock()
			return c, nil
		}
		l.n.mu.Unlock()
		<-l.wake
	}
}

func (l *listener) Close() error {
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	if l.n.listeners[l.addr] == l {
		delete(l.n.listeners, l.addr)
	}
	l.closeLocked()
	return nil
}

func (l *listener) Addr() net.Addr { return address(l.addr) }

// address is a TCP address that reads as the host's name.
func address(name string) net.Addr {
	host, _ := hostOf(name)
	_, port, _ := net.SplitHostPort(name)
	number, _ := strconv.Atoi(port)
	return &net.TCPAddr{IP: net.IPv4(10, 0, 0, byte(host)), Port: number}
}

// conn is one end of a connection.
type conn struct {
	n    *network
	of   *attachment
	host int
	name string
	peer *conn
	wake chan struct{} // of its reader

	// n.mu guards these.
	in       []segment // what the peer has said and nobody has read
	eof      bool      // the peer says nothing more
	broken   bool      // reset
	closed   bool
	silent   bool // the machine is off
	deadline time.Time
}

// segment are bytes on their way.
type segment struct {
	bytes []byte
	at    time.Time
}

func (c *conn) wakeLocked() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// resetLocked breaks both ends.
func (c *conn) resetLocked() {
	for _, end := range []*conn{c, c.peer} {
		end.broken = true
		end.in = nil
		end.wakeLocked()
		delete(c.n.conns, end)
	}
}

func (c *conn) fault(op string, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

func (c *conn) Read(p []byte) (int, error) {
	for {
		n, wait, err := c.tryRead(p)
		if n > 0 || err != nil {
			return n, err
		}
		if wait < 0 {
			<-c.wake
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-c.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// tryRead reads what is there; else it says how long to wait at most, negative for ever.
func (c *conn) tryRead(p []byte) (int, time.Duration, error) {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	now := time.Now()
	switch {
	case c.closed:
		return 0, 0, c.fault("read", net.ErrClosed)
	case c.broken:
		return 0, 0, c.fault("read", os.NewSyscallError("read", syscall.ECONNRESET))
	case !c.deadline.IsZero() && !c.deadline.After(now):
		return 0, 0, c.fault("read", os.ErrDeadlineExceeded)
	}
	wait := time.Duration(-1)
	if !c.deadline.IsZero() {
		wait = c.deadline.Sub(now)
	}
	if c.n.blocked[[2]int{c.peer.host, c.host}] > 0 {
		return 0, wait, nil
	}
	if len(c.in) == 0 {
		if c.eof {
			return 0, 0, io.EOF
		}
		return 0, wait, nil
	}
	if due := c.in[0].at.Sub(now); due > 0 {
		if wait < 0 || due < wait {
			wait = due
		}
		return 0, wait, nil
	}
	n := copy(p, c.in[0].bytes)
	if c.in[0].bytes = c.in[0].bytes[n:]; len(c.in[0].bytes) == 0 {
		c.in = c.in[1:]
	}
	return n, 0, nil
}

// Write never waits: the bytes are on their way.
func (c *conn) Write(p []byte) (int, error) {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	switch {
	case c.closed:
		return 0, c.fault("write", net.ErrClosed)
	case c.broken, c.peer.closed && !c.peer.silent:
		return 0, c.fault("write", os.NewSyscallError("write", syscall.EPIPE))
	case c.peer.silent:
		return len(p), nil
	}
	at := time.Now().Add(c.n.latencyLocked(c.host, c.peer.host))
	if k := len(c.peer.in); k > 0 && c.peer.in[k-1].at.After(at) {
		at = c.peer.in[k-1].at
	}
	c.peer.in = append(c.peer.in, segment{append([]byte(nil), p...), at})
	c.peer.wakeLocked()
	return len(p), nil
}

func (c *conn) Close() error {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	c.wakeLocked()
	delete(c.n.conns, c)
	if !c.broken {
		c.peer.eof = true
		c.peer.wakeLocked()
	}
	return nil
}

func (c *conn) LocalAddr() net.Addr  { return address(c.name) }
func (c *conn) RemoteAddr() net.Addr { return address(c.peer.name) }

func (c *conn) SetReadDeadline(t time.Time) error {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	c.deadline = t
	c.wakeLocked()
	return nil
}

func (c *conn) SetDeadline(t time.Time) error    { return c.SetReadDeadline(t) }
func (c *conn) SetWriteDeadline(time.Time) error { return nil }
