package telemetry

import (
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Kind is what a metric's value may do.
type Kind string

// The kinds of metric.
const (
	Counter Kind = "counter" // only rises, from 0 at start
	Gauge   Kind = "gauge"
)

// Metric describes one family of samples. Its name holds the unit, as in stele_request_seconds_total.
type Metric struct {
	Name string
	Help string
	Kind Kind
}

// Emit takes one sample of a metric; labels are name and value by turns.
type Emit func(m Metric, value float64, labels ...string)

// Registry gathers metrics from those who keep the numbers: each registers a function that is called when
// someone looks, and reads them then. So the rooms that count link no metrics library. Safe for
// concurrent use.
type Registry struct {
	prometheus *prometheus.Registry

	mu      sync.Mutex
	collect []func(Emit)
}

// NewRegistry returns a registry that knows the numbers of the Go runtime and of the process.
func NewRegistry() *Registry {
	r := &Registry{prometheus: prometheus.NewRegistry()}
	r.prometheus.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), gathered{r},
	)
	return r
}

// Register adds a collector. It may be called at any time, from any goroutine, and must not block.
func (r *Registry) Register(collect func(Emit)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.collect = append(r.collect, collect)
}

// Handler serves the samples in the text format of Prometheus.
func (r *Registry) Handler() http.Handler {
	return promhttp.HandlerFor(r.prometheus, promhttp.HandlerOpts{})
}

// gathered shows what the registered functions emit.
type gathered struct{ r *Registry }

// Describe describes nothing: which families there are is known when they are emitted.
func (g gathered) Describe(chan<- *prometheus.Desc) {}

// Collect asks every registered function.
func (g gathered) Collect(out chan<- prometheus.Metric) {
	g.r.mu.Lock()
	collect := slices.Clone(g.r.collect)
	g.r.mu.Unlock()
	for _, c := range collect {
		c(func(m Metric, value float64, labels ...string) {
			var names, values []string
			for i := 0; i+1 < len(labels); i += 2 {
				names = append(names, labels[i])
				values = append(values, strings.ToValidUTF8(labels[i+1], "\uFFFD"))
			}
			kind := prometheus.GaugeValue
			if m.Kind == Counter {
				kind = prometheus.CounterValue
			}
			metric, err := prometheus.NewConstMetric(prometheus.NewDesc(m.Name, m.Help, names, nil), kind, value, values...)
			if err != nil {
				metric = prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
			}
			out <- metric
		})
	}
}
