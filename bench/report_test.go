package main

import (
	"strings"
	"testing"
)

// A report gives the median of the ratios within rounds, not the ratio of medians, with their spread, marks what misses
// its reach, and keeps rows of earlier runs.
func TestReport(t *testing.T) {
	t.Parallel()
	samples := []sample{
		{"stele": {"rate": 100, "cpu": 1}, "kafka": {"rate": 50, "cpu": 1}},
		{"stele": {"rate": 10, "cpu": 1}, "kafka": {"rate": 10, "cpu": 2}},
		{"stele": {"rate": 90, "cpu": 1}, "kafka": {"rate": 30, "cpu": 4}},
	}
	rep := &report{}
	of := row{name: "produce", section: sectionProduce}
	rep.add(of, []figure{makeFigure("rate", "MB/s", samples[:1])})
	rep.add(of, []figure{makeFigure("rate", "MB/s", samples).atLeast(2.5), makeFigure("cpu", "CPU s/GB", samples).atMost(0.6)})
	rep.add(row{name: "alone", section: sectionProduce}, []figure{makeFigure("rate", "MB/s", []sample{{"stele": {"rate": 5}}})})
	var out strings.Builder
	rep.markdown(&out)
	for _, want := range []string{
		"| produce | 90.0, 30.0 | **2.00** (1.00 to 3.00) | 1.00, 2.00 | 0.50 (0.25 to 1.00) |",
		"| alone | 5.00 | | | |",
		"1 figures within the reach, 1 not",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}
