package config

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// clientMetricsDefs are the settings of a subscription to clients' metrics (config resource type CLIENT_METRICS).
var clientMetricsDefs = []Def{
	{Name: "interval.ms", Type: Int, Default: new("300000"),
		Doc: "Time between two pushes of metrics by a client, 100 to 3600000."},
	{Name: "match", Type: List, Default: new(""),
		Doc: "Clients that are to push: a list of selector=regular expression, all of which must match; empty for every client."},
	{Name: "metrics", Type: List, Default: new(""),
		Doc: "Prefixes of the names of the metrics to push; * for all, empty for none."},
}

var clientMetricsTable = newTable("client metrics", clientMetricsDefs)

// clientSelectors are what a client can be matched by.
var clientSelectors = []string{"client_instance_id", "client_id", "client_software_name", "client_software_version", "client_source_address", "client_source_port"}

// RequestError says that a resource cannot have a setting or value at all: the request is wrong, not the value alone.
type RequestError struct{ Reason string }

func (e *RequestError) Error() string { return e.Reason }

// ValidateClientMetrics checks the settings of one subscription: *RequestError, *ValueError or *CrossError.
func ValidateClientMetrics(overrides map[string]string) error {
	names := make([]string, 0, len(overrides))
	for name := range overrides {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		d, known := clientMetricsTable.byName[name]
		if !known {
			return &RequestError{"Unknown client metrics configuration: " + name}
		}
		if err := d.Validate(overrides[name]); err != nil {
			return err
		}
	}
	if text, ok := overrides["interval.ms"]; ok {
		if n, _ := strconv.ParseInt(strings.TrimSpace(text), 10, 32); n < 100 || n > 3600000 {
			return &RequestError{fmt.Sprintf("Invalid value %s for interval.ms, interval must be between 100 and 3600000 (1 hour)", text)}
		}
	}
	for _, pattern := range SplitList(overrides["match"]) {
		selector, expression, ok := strings.Cut(pattern, "=")
		if _, err := regexp.Compile(strings.TrimSpace(expression)); !ok || err != nil || !slices.Contains(clientSelectors, strings.TrimSpace(selector)) {
			return &CrossError{"match", pattern, "it is not selector=regular expression with one of the selectors " + strings.Join(clientSelectors, ", ")}
		}
	}
	return nil
}

// DescribeClientMetrics lists every setting of a subscription, by name. Nothing stands in for one that is not set.
func DescribeClientMetrics(overrides map[string]string) []Entry {
	var out []Entry
	for _, d := range clientMetricsTable.sorted {
		e := Entry{Name: d.Name, Source: Default, Value: d.Default, Type: d.Type, Doc: d.Doc}
		if v, ok := overrides[d.Name]; ok {
			e.Source, e.Value = DynamicClientMetrics, new(v)
			e.Synonyms = []Synonym{{Name: d.Name, Value: e.Value, Source: DynamicClientMetrics}}
		}
		out = append(out, e)
	}
	return out
}

// ClientMetricsDefs returns all settings of subscriptions by name. The slice and its elements must not be changed.
func ClientMetricsDefs() []*Def { return clientMetricsTable.sorted }
