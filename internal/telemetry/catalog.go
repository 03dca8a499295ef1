package telemetry

// Kind is what a metric's value may do.
type Kind string

// The kinds of metric.
const (
	Counter   Kind = "counter" // only rises, from 0 at start
	Gauge     Kind = "gauge"
	Histogram Kind = "histogram"
)

// Metric describes one family of samples. Its name holds the unit, as in stele_request_seconds_total.
type Metric struct {
	Name string
	Help string
	Kind Kind
	// Kafka is the MBean of Apache Kafka that tells the same, in the words of its documentation; "" when there is none.
	Kafka string
}

// Catalog lists the metrics of one room, for the reference page. The zero value is ready. It is filled by
// package variables and not changed later.
type Catalog struct{ metrics []Metric }

// Metrics are all metrics of the catalog, in the order they were added.
func (c *Catalog) Metrics() []Metric { return c.metrics }

// Counter adds a counter.
func (c *Catalog) Counter(name, help, kafka string) Metric { return c.add(Counter, name, help, kafka) }

// Gauge adds a gauge.
func (c *Catalog) Gauge(name, help, kafka string) Metric { return c.add(Gauge, name, help, kafka) }

// Histogram adds a histogram.
func (c *Catalog) Histogram(name, help, kafka string) Metric {
	return c.add(Histogram, name, help, kafka)
}

func (c *Catalog) add(kind Kind, name, help, kafka string) Metric {
	m := Metric{Name: name, Help: help, Kind: kind, Kafka: kafka}
	c.metrics = append(c.metrics, m)
	return m
}
