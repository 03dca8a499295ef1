package server

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stelelog/stele/internal/telemetry"
	"github.com/stelelog/stele/internal/wire"
)

// Stats are the numbers of a server since it was made.
type Stats struct {
	Connections   int
	RequestMemory int64                // bytes taken from the request budget
	Accepted      map[string]uint64    // connections, by listener
	Refused       map[string]uint64    // connections closed at once, by the limit they met
	Software      map[[2]string]uint64 // connections by the client's software name and version
	Panics        uint64               // handlers that panicked, each of which cost a connection
}

type metrics struct {
	panics atomic.Uint64
	apis   [128]telemetry.Durations // by key

	mu                sync.Mutex // guards the maps; events are rare
	accepted, refused map[string]uint64
	software          map[[2]string]uint64
}

func newMetrics() *metrics {
	return &metrics{accepted: map[string]uint64{}, refused: map[string]uint64{}, software: map[[2]string]uint64{}}
}

func (m *metrics) answered(r *Request) {
	if r.Key >= 0 && int(r.Key) < len(m.apis) {
		m.apis[r.Key].Observe(time.Since(r.Received))
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
	m.mu.Lock()
	defer m.mu.Unlock()
	return Stats{
		Connections: s.Connections(), RequestMemory: s.budget.Used(), Panics: m.panics.Load(),
		Accepted: maps.Clone(m.accepted), Refused: maps.Clone(m.refused), Software: maps.Clone(m.software),
	}
}

// catalog lists what a server tells; Metrics is for the reference page.
var catalog telemetry.Catalog

var (
	metricConnections  = catalog.Gauge("stele_connections", "Open connections.", "kafka.server:type=socket-server-metrics connection-count")
	metricMemory       = catalog.Gauge("stele_request_memory_bytes", "Memory taken from the request budget (queued.max.request.bytes).", "")
	metricPanics       = catalog.Counter("stele_handler_panics_total", "Handlers that panicked; each cost one connection.", "")
	metricAccepted     = catalog.Counter("stele_connections_accepted_total", "Connections accepted, by listener.", "kafka.server:type=socket-server-metrics connection-creation-total")
	metricRefused      = catalog.Counter("stele_connections_refused_total", "Connections closed at once, by the limit they met.", "")
	metricRequests     = catalog.Histogram("stele_request_seconds", "Time from a request's last byte in to its answer's last byte out, waiting for records or replication included, by API.", "kafka.network:type=RequestMetrics,name=TotalTimeMs (and RequestsPerSec)")
	metricSoftware     = catalog.Counter("stele_client_software_total", "Connections by what their clients say they are (KIP-511); unknown for those that do not.", "kafka.server:type=socket-server-metrics connections by clientSoftwareName, clientSoftwareVersion")
	metricSessions     = catalog.Gauge("stele_fetch_sessions", "Incremental fetch sessions.", "kafka.server:type=FetchSessionCache,name=NumIncrementalFetchSessions")
	metricSessionSlots = catalog.Gauge("stele_fetch_session_partitions", "Partitions in them.", "kafka.server:type=FetchSessionCache,name=NumIncrementalFetchPartitionsCached")
	metricEvicted      = catalog.Counter("stele_fetch_sessions_evicted_total", "Fetch sessions that had to make room for others.", "kafka.server:type=FetchSessionCache,name=IncrementalFetchSessionEvictionsPerSec")
)

// Metrics are all metrics that Collect may emit.
func Metrics() []telemetry.Metric { return catalog.Metrics() }

// Collect gives the server's numbers to a telemetry.Registry.
func (s *Server) Collect(sink telemetry.Sink) {
	st := s.Stats()
	sink.Value(metricConnections, float64(st.Connections))
	sink.Value(metricMemory, float64(st.RequestMemory))
	sink.Value(metricPanics, float64(st.Panics))
	for listener, n := range st.Accepted {
		sink.Value(metricAccepted, float64(n), "listener", listener)
	}
	for limit, n := range st.Refused {
		sink.Value(metricRefused, float64(n), "limit", limit)
	}
	for software, n := range st.Software {
		sink.Value(metricSoftware, float64(n), "name", software[0], "version", software[1])
	}
	for key := range s.metrics.apis {
		if d := &s.metrics.apis[key]; d.Count() > 0 {
			api, _ := wire.Lookup(int16(key))
			sink.Durations(metricRequests, d, "api", api.Name)
		}
	}
}

// Collect gives the numbers of what clients keep here, once the API is open.
func (b *BrokerAPI) Collect(sink telemetry.Sink) {
	select {
	case <-b.opened:
	default:
		return
	}
	c := b.node.sessions
	c.mu.Lock()
	sessions, partitions, evicted := len(c.sessions), 0, c.evicted
	for _, s := range c.sessions {
		partitions += s.size
	}
	c.mu.Unlock()
	sink.Value(metricSessions, float64(sessions))
	sink.Value(metricSessionSlots, float64(partitions))
	sink.Value(metricEvicted, float64(evicted))
}
