package telemetry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"sync"
	"time"
)

// Endpoint is the HTTP listener of a node: /metrics, /livez, /readyz and /debug/pprof. It owns its
// goroutines from Start until Stop has returned.
type Endpoint struct {
	server   *http.Server
	listener net.Listener
	serving  sync.WaitGroup
}

// Handler answers /metrics (Prometheus's text), /livez (200 while the process lives), /readyz (200 when
// every condition holds, else 503 with a line for each that does not) and /debug/pprof; further pages may be added.
func Handler(metrics *Registry, ready *Readiness) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics.Handler())
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if missing := ready.Missing(); len(missing) > 0 {
			http.Error(w, strings.Join(missing, "\n"), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}

// Start listens on address and serves h. The error names the address and what to do.
func Start(address string, h http.Handler) (*Endpoint, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("cannot serve metrics and health on %s (http.listen; give it another address): %w", address, err)
	}
	e := &Endpoint{listener: l, server: &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}}
	e.serving.Go(func() {
		// Serve ends only when Stop closes the listener, or when accepting fails for good; then the
		// endpoint is gone and the node's own work goes on.
		_ = e.server.Serve(l)
	})
	return e, nil
}

// Addr is the address that the endpoint is bound to.
func (e *Endpoint) Addr() net.Addr { return e.listener.Addr() }

// Stop lets answers under way finish until ctx ends, then cuts them off.
func (e *Endpoint) Stop(ctx context.Context) error {
	err := e.server.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, e.server.Close())
	}
	e.serving.Wait()
	return err
}
