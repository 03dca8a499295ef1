package telemetry

import (
	"bufio"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
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
// someone looks, and reads them then. Safe for concurrent use.
type Registry struct {
	mu         sync.Mutex
	collectors []func(Emit)
}

// NewRegistry returns a registry that knows the numbers of the Go runtime.
func NewRegistry() *Registry {
	r := &Registry{}
	r.Register(collectRuntime)
	return r
}

// Register adds a collector. It may be called at any time, from any goroutine, and must not block.
func (r *Registry) Register(collect func(Emit)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.collectors = append(r.collectors, collect)
}

// WriteText writes every sample in the text format of Prometheus (version 0.0.4), families and samples in
// order of names.
func (r *Registry) WriteText(w io.Writer) error {
	r.mu.Lock()
	collectors := slices.Clone(r.collectors)
	r.mu.Unlock()
	families := map[string]*family{}
	for _, collect := range collectors {
		collect(func(m Metric, value float64, labels ...string) {
			f := families[m.Name]
			if f == nil {
				f = &family{Metric: m}
				families[m.Name] = f
			}
			f.lines = append(f.lines, m.Name+labelText(labels)+" "+strconv.FormatFloat(value, 'g', -1, 64))
		})
	}
	names := make([]string, 0, len(families))
	for name := range families {
		names = append(names, name)
	}
	slices.Sort(names)
	out := bufio.NewWriter(w)
	for _, name := range names {
		f := families[name]
		slices.Sort(f.lines)
		fmt.Fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, helpEscaper.Replace(f.Help), name, f.Kind)
		for _, line := range f.lines {
			fmt.Fprintln(out, line)
		}
	}
	return out.Flush()
}

type family struct {
	Metric
	lines []string
}

var (
	helpEscaper  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	labelEscaper = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

func labelText(labels []string) string {
	if len(labels) == 0 {
		return ""
	}
	var b strings.Builder
	for i := 0; i+1 < len(labels); i += 2 {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `%s="%s"`, labels[i], labelEscaper.Replace(strings.ToValidUTF8(labels[i+1], "\uFFFD")))
	}
	return "{" + b.String() + "}"
}

func collectRuntime(emit Emit) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	emit(Metric{"go_goroutines", "Goroutines that exist.", Gauge}, float64(runtime.NumGoroutine()))
	emit(Metric{"go_memstats_heap_inuse_bytes", "Heap bytes in spans in use.", Gauge}, float64(m.HeapInuse))
	emit(Metric{"go_memstats_sys_bytes", "Bytes obtained from the system.", Gauge}, float64(m.Sys-m.HeapReleased))
	emit(Metric{"go_memstats_alloc_bytes_total", "Bytes allocated on the heap.", Counter}, float64(m.TotalAlloc))
	emit(Metric{"go_gc_cycles_total", "Collections.", Counter}, float64(m.NumGC))
}
