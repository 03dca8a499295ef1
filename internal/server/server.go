// Package server is what clients see of a node: listeners, connections, and one file for each family of
// APIs. It alone turns typed errors into protocol codes.
package server

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stelelog/stele/internal/security"
	"github.com/stelelog/stele/internal/wire"
)

// Options say what to serve and within which bounds. Zero values stand for Kafka's defaults.
type Options struct {
	Listeners  []Listener
	Handlers   []Handler
	Authorizer security.Authorizer // default security.AllowAll
	Logger     *slog.Logger

	ClusterID string
	NodeID    int32
	// Features is asked for each ApiVersions answer; nil: none.
	Features func() Features
	// OnPeerClosed is told as soon as the other side has closed or reset a connection, even while requests
	// of it are still being served. It must not block.
	OnPeerClosed func(PeerClosed)

	MaxRequest                   int            // socket.request.max.bytes
	RequestMemory                int64          // queued.max.request.bytes; 0 or less: DefaultRequestMemory
	MaxIdle                      time.Duration  // connections.max.idle.ms; default 10 minutes, negative for no limit
	MaxConnections               int            // max.connections; negative for none at all
	MaxConnectionsPerIP          int            // max.connections.per.ip; negative for none but those with an override
	MaxConnectionsPerIPOverrides map[string]int // max.connections.per.ip.overrides, by address
	WriteTimeout                 time.Duration  // how long a client may take no bytes of an answer; default 30 s
	MaxInFlight                  int            // Produce requests in flight on one connection; default 64
	MaxInFlightBytes             int            // their bytes not yet appended; default 8 MiB
	// Listen opens a socket; default net.Listen. The seam for networks in memory.
	Listen func(network, address string) (net.Listener, error)
}

// PeerClosed says which connection the other side has closed.
type PeerClosed struct {
	ConnID   uint64
	Listener string
	Remote   string
}

func (o Options) withDefaults() Options {
	setDefault(&o.MaxRequest, wire.DefaultMaxFrame)
	setDefault(&o.MaxIdle, 10*time.Minute)
	if o.MaxIdle < 0 {
		o.MaxIdle = math.MaxInt64
	}
	setDefault(&o.MaxConnections, math.MaxInt)
	setDefault(&o.MaxConnectionsPerIP, math.MaxInt)
	setDefault(&o.WriteTimeout, 30*time.Second)
	setDefault(&o.MaxInFlight, 64)
	setDefault(&o.MaxInFlightBytes, 8<<20)
	if o.Authorizer == nil {
		o.Authorizer = security.AllowAll{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Features == nil {
		o.Features = func() Features { return Features{FinalizedEpoch: -1} }
	}
	if o.OnPeerClosed == nil {
		o.OnPeerClosed = func(PeerClosed) {}
	}
	if o.Listen == nil {
		o.Listen = net.Listen
	}
	return o
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Server owns its listeners, connections and their goroutines: from Start until Shutdown has returned.
type Server struct {
	opts    Options
	log     *slog.Logger
	budget  *Budget
	answers *answers
	metrics *metrics
	lines   connLines

	nextConn  atomic.Uint64
	listeners []*listener
	accepting sync.WaitGroup
	serving   sync.WaitGroup
	draining  chan struct{}

	mu      sync.Mutex // guards the fields below; never held over IO
	conns   map[*conn]struct{}
	perIP   map[string]int
	stopped bool
}

// New returns a server that is not listening yet. It panics when a handler's API is not in the protocol
// table or is registered twice for a kind of listener: that is a mistake in the program.
func New(o Options) *Server {
	s := &Server{
		opts: o.withDefaults(), draining: make(chan struct{}),
		conns: make(map[*conn]struct{}), perIP: make(map[string]int),
	}
	s.log = s.opts.Logger
	s.budget = NewBudget(s.opts.RequestMemory)
	s.answers = newAnswers(s.opts.RequestMemory)
	s.metrics = newMetrics()
	s.opts.Handlers = append([]Handler{s.apiVersions()}, s.opts.Handlers...)
	s.handlersFor(wire.ScopeBroker)
	s.handlersFor(wire.ScopeController)
	return s
}

func (s *Server) handlersFor(scope wire.Scope) handlers {
	hs := make(handlers)
	for _, h := range s.opts.Handlers {
		if h.Scopes&scope == 0 {
			continue
		}
		if _, ok := wire.Lookup(h.Key); !ok || h.Handle == nil {
			panic(fmt.Sprintf("server: handler for API key %d, which has no row in the protocol table, or is nil", h.Key))
		}
		if _, twice := hs[h.Key]; twice {
			panic(fmt.Sprintf("server: two handlers for API key %d", h.Key))
		}
		hs[h.Key] = h
	}
	return hs
}

// Start opens every listener, then begins to accept. On an error, a *ListenError, none stays open.
func (s *Server) Start() error {
	for _, l := range s.opts.Listeners {
		nl, err := s.opts.Listen("tcp", l.Address)
		if err != nil {
			for _, open := range s.listeners {
				_ = open.l.Close() // nothing was accepted on it
			}
			s.listeners = nil
			return &ListenError{Listener: l.Name, Address: l.Address, Err: err}
		}
		s.listeners = append(s.listeners, &listener{name: l.Name, scope: l.Scope, protected: l.Protected, handlers: s.handlersFor(l.Scope), l: nl})
	}
	for _, ln := range s.listeners {
		s.accepting.Go(func() { s.accept(ln) })
	}
	return nil
}

// Addr returns the address that a listener is bound to, nil for a name that is not there.
func (s *Server) Addr(name string) net.Addr {
	for _, ln := range s.listeners {
		if ln.name == name {
			return ln.l.Addr()
		}
	}
	return nil
}

// Connections is the number of open connections.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// Shutdown stops accepting, lets requests in flight come to their end (parked ones are woken), and
// closes every connection. When ctx ends first, what is left is cut off and ctx's error returned. When it
// returns, no goroutine of the server is left.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	first := !s.stopped
	s.stopped = true
	conns := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	if first {
		close(s.draining)
	}
	for _, ln := range s.listeners {
		_ = ln.l.Close() // ends accept; connections are apart from it
	}
	s.accepting.Wait()
	for _, c := range conns {
		c.drain(errShutdown)
		_ = c.nc.SetReadDeadline(time.Now()) // wakes the reader; fails only on a closed socket
	}
	done := make(chan struct{})
	go func() {
		s.serving.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	for _, c := range conns {
		c.kill(errShutdown)
	}
	<-done
	return ctx.Err()
}

func (s *Server) peerClosed(c *conn) {
	s.opts.OnPeerClosed(PeerClosed{ConnID: c.id, Listener: c.ln.name, Remote: c.remote})
}
