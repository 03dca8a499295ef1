package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"syscall"
	"time"

	"github.com/stelelog/stele/internal/wire"
)

// Listener is one endpoint that the server opens.
type Listener struct {
	Name    string     // as in listeners, e.g. PLAINTEXT
	Address string     // host:port to bind; port 0 picks a free one
	Scope   wire.Scope // ScopeController for those in controller.listener.names, else ScopeBroker
	// Protected says that who is at the other end has proved who it is.
	Protected bool
}

// ListenError reports a listener that could not be opened.
type ListenError struct {
	Listener string
	Address  string
	Err      error
}

func (e *ListenError) Error() string {
	switch {
	case errors.Is(e.Err, syscall.EADDRINUSE):
		return fmt.Sprintf("listener %s: %s is in use by another process; stop it, or give the listener another port in listeners", e.Listener, e.Address)
	case errors.Is(e.Err, syscall.EADDRNOTAVAIL):
		return fmt.Sprintf("listener %s: %s is not an address of this machine; bind one that is in listeners, and name the one clients use in advertised.listeners", e.Listener, e.Address)
	case errors.Is(e.Err, syscall.EACCES):
		return fmt.Sprintf("listener %s: no permission to bind %s; ports below 1024 need privileges", e.Listener, e.Address)
	}
	return fmt.Sprintf("listener %s: cannot listen on %s: %v", e.Listener, e.Address, e.Err)
}

func (e *ListenError) Unwrap() error { return e.Err }

type listener struct {
	name      string
	scope     wire.Scope
	protected bool
	handlers  handlers
	l         net.Listener
}

// accept takes connections until the listener is closed.
func (s *Server) accept(ln *listener) {
	pause := time.Duration(0)
	for {
		nc, err := ln.l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Out of descriptors, most likely: others must close before another try makes sense.
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			s.log.Warn("cannot accept connections for a moment", "listener", ln.name, "cause", err, "pause", pause)
			select {
			case <-time.After(pause):
			case <-s.draining:
				return
			}
			continue
		}
		pause = 0
		s.admit(ln, nc)
	}
}

// admit starts serving a connection, or closes it when there are too many.
func (s *Server) admit(ln *listener, nc net.Conn) {
	var ip net.IP
	if a, ok := nc.RemoteAddr().(*net.TCPAddr); ok {
		ip = a.IP
	}
	from := ip.String()
	c := s.newConn(ln, nc, ip)
	limit, value := "", 0
	s.mu.Lock()
	switch {
	case s.stopped:
		limit = "shutdown"
	case len(s.conns) >= s.opts.MaxConnections:
		limit, value = "max.connections", s.opts.MaxConnections
	case s.perIP[from] >= s.ipLimit(from):
		limit, value = "max.connections.per.ip", s.ipLimit(from)
	default:
		s.conns[c] = struct{}{}
		s.perIP[from]++
		s.serving.Add(1)
	}
	s.mu.Unlock()
	if limit != "" {
		s.metrics.connectionRefused(limit)
		s.tellConn(slog.LevelInfo, "connection refused", "listener", ln.name, "client", c.remote, "limit", limit, "value", value)
		c.kill(errShutdown)
		_ = nc.Close() // it was never used
		return
	}
	s.metrics.connectionAccepted(ln.name)
	go func() {
		defer s.serving.Done()
		defer s.forget(c, from)
		c.serve()
	}()
}

func (s *Server) ipLimit(ip string) int {
	if n, ok := s.opts.MaxConnectionsPerIPOverrides[ip]; ok {
		return n
	}
	return s.opts.MaxConnectionsPerIP
}

func (s *Server) forget(c *conn, from string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	if s.perIP[from]--; s.perIP[from] == 0 {
		delete(s.perIP, from)
	}
}
