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

// Sink takes the samples of one look at the metrics. Labels are name and value by turns.
type Sink struct{ out chan<- prometheus.Metric }

// Value takes the value of a counter or gauge.
func (s Sink) Value(m Metric, value float64, labels ...string) {
	kind := prometheus.GaugeValue
	if m.Kind == Counter {
		kind = prometheus.CounterValue
	}
	desc, values := describe(m, labels)
	s.put(prometheus.NewConstMetric(desc, kind, value, values...))
}

// Durations takes a histogram.
func (s Sink) Durations(m Metric, d *Durations, labels ...string) {
	buckets, all := d.upTo()
	desc, values := describe(m, labels)
	s.put(prometheus.NewConstHistogram(desc, all, d.Sum().Seconds(), buckets, values...))
}

func (s Sink) put(m prometheus.Metric, err error) {
	if err != nil {
		m = prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
	}
	s.out <- m
}

func describe(m Metric, labels []string) (desc *prometheus.Desc, values []string) {
	var names []string
	for i := 0; i+1 < len(labels); i += 2 {
		names = append(names, labels[i])
		values = append(values, strings.ToValidUTF8(labels[i+1], "\uFFFD"))
	}
	return prometheus.NewDesc(m.Name, m.Help, names, nil), values
}

// Registry gathers metrics from those who keep the numbers: each registers a function that is called when
// someone looks, and reads them then. So the rooms that count link no metrics library. Safe for
// concurrent use.
type Registry struct {
	prometheus *prometheus.Registry

	mu      sync.Mutex
	collect []func(Sink)
}

// NewRegistry returns a registry that knows the numbers of the Go runtime and of the process.
func NewRegistry() *Registry {
	r := &Registry{prometheus: prometheus.NewRegistry()}
	r.prometheus.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), gathered{r},
	)
	return r
}

// NewSubset returns a registry of nothing but what is registered with it.
func NewSubset() *Registry {
	r := &Registry{prometheus: prometheus.NewRegistry()}
	r.prometheus.MustRegister(gathered{r})
	return r
}

// Register adds a collector. It may be called at any time, from any goroutine, and must not block.
func (r *Registry) Register(collect func(Sink)) {
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
		c(Sink{out})
	}
}
