package server

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stelelog/stele/internal/telemetry"
	"github.com/stelelog/stele/internal/wire"
)

// Stats are the numbers of a server since it was made; durations are sums.
type Stats struct {
	Connections   int
	RequestMemory int64             // bytes taken from the request budget
	Accepted      map[string]uint64 // connections, by listener
	Refused       map[string]uint64 // connections closed at once, by the limit they met
	Requests      map[string]APIStats
	Software      map[[2]string]uint64 // connections by the client's software name and version
	Panics        uint64               // handlers that panicked, each of which cost a connection
}

// APIStats counts the requests of one API.
type APIStats struct {
	Count uint64
	Time  time.Duration // from a request's last byte in to its answer's last byte out
}

type metrics struct {
	panics atomic.Uint64
	apis   [128]struct {
		count, nanos atomic.Uint64
	} // by key

	mu                sync.Mutex // guards the maps; events are rare
	accepted, refused map[string]uint64
	software          map[[2]string]uint64
}

func newMetrics() *metrics {
	return &metrics{accepted: map[string]uint64{}, refused: map[string]uint64{}, software: map[[2]string]uint64{}}
}

func (m *metrics) answered(r *Request) {
	if r.Key >= 0 && int(r.Key) < len(m.apis) {
		m.apis[r.Key].count.Add(1)
		m.apis[r.Key].nanos.Add(uint64(time.Since(r.Received)))
	}
}

func (m *metrics) connectionAccepted(listener string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.accepted[listener]++
}

func (m *metrics) connectionRefused(limit string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refused[limit]++
}

// maxSoftware bounds how many kinds of client software are counted apart: the words are the clients'.
const maxSoftware = 200

func (m *metrics) clientSoftware(name, version string) {
	key := [2]string{name, version}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, known := m.software[key]; !known && (len(m.software) >= maxSoftware || len(name) > 64 || len(version) > 64) {
		key = [2]string{"other", "other"}
	}
	m.software[key]++
}

// Stats returns the numbers as of now.
func (s *Server) Stats() Stats {
	m := s.metrics
	out := Stats{Connections: s.Connections(), RequestMemory: s.budget.Used(), Requests: map[string]APIStats{}, Panics: m.panics.Load()}
	for key := range m.apis {
		if n := m.apis[key].count.Load(); n > 0 {
			api, _ := wire.Lookup(int16(key))
			out.Requests[api.Name] = APIStats{Count: n, Time: time.Duration(m.apis[key].nanos.Load())}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	out.Accepted, out.Refused, out.Software = maps.Clone(m.accepted), maps.Clone(m.refused), maps.Clone(m.software)
	return out
}

// Collect gives the server's numbers to a telemetry.Registry.
func (s *Server) Collect(emit telemetry.Emit) {
	st := s.Stats()
	emit(telemetry.Metric{Name: "stele_connections", Help: "Open connections.", Kind: telemetry.Gauge}, float64(st.Connections))
	emit(telemetry.Metric{Name: "stele_request_memory_bytes", Help: "Memory taken from the request budget.", Kind: telemetry.Gauge}, float64(st.RequestMemory))
	emit(telemetry.Metric{Name: "stele_handler_panics_total", Help: "Handlers that panicked; each cost one connection.", Kind: telemetry.Counter}, float64(st.Panics))
	for listener, n := range st.Accepted {
		emit(telemetry.Metric{Name: "stele_connections_accepted_total", Help: "Connections accepted.", Kind: telemetry.Counter}, float64(n), "listener", listener)
	}
	for limit, n := range st.Refused {
		emit(telemetry.Metric{Name: "stele_connections_refused_total", Help: "Connections closed at once, by the limit they met.", Kind: telemetry.Counter}, float64(n), "limit", limit)
	}
	for api, a := range st.Requests {
		emit(telemetry.Metric{Name: "stele_requests_total", Help: "Requests answered.", Kind: telemetry.Counter}, float64(a.Count), "api", api)
		emit(telemetry.Metric{Name: "stele_request_seconds_total", Help: "Time from requests' last byte in to their answers' last byte out.", Kind: telemetry.Counter}, a.Time.Seconds(), "api", api)
	}
	for software, n := range st.Software {
		emit(telemetry.Metric{Name: "stele_client_software_total", Help: "Connections by what their clients say they are.", Kind: telemetry.Counter}, float64(n), "name", software[0], "version", software[1])
	}
}
