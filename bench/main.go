// Command bench measures Stele and Apache Kafka side by side on this machine: how long a start takes to the first
// acknowledged write, what a node costs when idle, and the processor time and speed of writing and reading. Clients
// are the same for both. It prints a table, and JSON with -json.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// figure is one measured value of both; lower is better unless higher says otherwise.
type figure struct {
	Name   string  `json:"name"`
	Unit   string  `json:"unit"`
	Stele  float64 `json:"stele"`
	Kafka  float64 `json:"kafka,omitempty"`
	Ratio  float64 `json:"ratio,omitempty"` // stele / kafka
	Target string  `json:"target,omitempty"`
	Met    *bool   `json:"met,omitempty"`
}

// target is what a figure must be: below an absolute value, and below a part of Kafka's; 0 for none.
type target struct{ below, ratio float64 }

type bench struct {
	ctx     context.Context
	stele   string
	scratch string
	kafka   bool
	mb      int
	profile string
	figures []figure
}

func main() {
	var b bench
	var only, jsonFile string
	flag.StringVar(&b.stele, "stele", "", "the binary")
	flag.StringVar(&only, "only", "startup,restart,memory,load", "which parts")
	flag.StringVar(&jsonFile, "json", "", "file for the figures as JSON; - is standard output")
	flag.IntVar(&b.mb, "mb", 512, "MB to write and read")
	flag.StringVar(&b.profile, "cpuprofile", "", "directory for CPU profiles of Stele under load")
	noKafka := flag.Bool("no-kafka", false, "measure Stele alone")
	flag.Parse()
	b.kafka = !*noKafka
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	b.ctx = ctx
	if err := b.run(strings.Split(only, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	b.print()
	if jsonFile == "" {
		return
	}
	text, err := json.MarshalIndent(b.figures, "", "  ")
	if err == nil && jsonFile == "-" {
		fmt.Println(string(text))
	} else if err == nil {
		err = os.WriteFile(jsonFile, append(text, '\n'), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func (b *bench) run(parts []string) (err error) {
	if b.stele == "" {
		return fmt.Errorf("-stele is missing; bench/run.sh sets it")
	}
	if b.scratch, err = os.MkdirTemp("", "stele-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.scratch)
	for _, part := range []struct {
		name string
		run  func() error
	}{{"startup", b.startup}, {"restart", b.restart}, {"memory", b.memory}, {"load", b.load}} {
		if !slices.Contains(parts, part.name) {
			continue
		}
		start := time.Now()
		if err := part.run(); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
		fmt.Fprintf(os.Stderr, "%s took %s\n", part.name, time.Since(start).Round(time.Second))
	}
	return nil
}

// servers are the two to compare, or Stele alone.
func (b *bench) servers() []server {
	if !b.kafka {
		return []server{&stele{b: b}}
	}
	return []server{&stele{b: b}, &kafka{b: b}}
}

// add notes a figure; kafka is 0 when it was not measured.
func (b *bench) add(name, unit string, stele, kafka float64, t target) {
	f := figure{Name: name, Unit: unit, Stele: stele, Kafka: kafka}
	if kafka > 0 {
		f.Ratio = stele / kafka
	}
	var wants []string
	met := true
	if t.below > 0 {
		wants = append(wants, fmt.Sprintf("< %g", t.below))
		met = met && stele < t.below
	}
	if t.ratio > 0 && kafka > 0 {
		wants = append(wants, fmt.Sprintf("<= %.3g of Kafka's", t.ratio))
		met = met && f.Ratio <= t.ratio
	}
	if len(wants) > 0 {
		f.Target, f.Met = strings.Join(wants, ", "), &met
	}
	b.figures = append(b.figures, f)
}

func (b *bench) print() {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\tStele\tKafka\tratio\ttarget\t")
	for _, f := range b.figures {
		kafka, ratio, verdict := "-", "-", ""
		if f.Kafka > 0 {
			kafka, ratio = format(f.Kafka), fmt.Sprintf("%.3f", f.Ratio)
		}
		if f.Met != nil {
			verdict = "met"
			if !*f.Met {
				verdict = "MISSED"
			}
		}
		fmt.Fprintf(w, "%s (%s)\t%s\t%s\t%s\t%s\t%s\n", f.Name, f.Unit, format(f.Stele), kafka, ratio, f.Target, verdict)
	}
	w.Flush()
}

func format(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
