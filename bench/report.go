package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// sample is one round: figures by server and name.
type sample map[string]map[string]float64

// figure is one thing measured of both, by round.
type figure struct {
	Name  string    `json:"name"`
	Unit  string    `json:"unit"`
	Stele []float64 `json:"stele"`
	Kafka []float64 `json:"kafka,omitempty"`
	// Ratio is the median of Stele's to Kafka's within a round, Low and High the least and the greatest.
	Ratio float64 `json:"ratio,omitempty"`
	Low   float64 `json:"low,omitempty"`
	High  float64 `json:"high,omitempty"`
	Reach string  `json:"reach,omitempty"`
	Met   *bool   `json:"met,omitempty"`
}

func makeFigure(name, unit string, samples []sample) figure {
	f := figure{Name: name, Unit: unit}
	var ratios []float64
	for _, s := range samples {
		f.Stele = append(f.Stele, s["stele"][name])
		if k, ok := s["kafka"][name]; ok {
			f.Kafka = append(f.Kafka, k)
			if k > 0 {
				ratios = append(ratios, s["stele"][name]/k)
			}
		}
	}
	if len(ratios) > 0 {
		f.Ratio, f.Low, f.High = median(ratios), slices.Min(ratios), slices.Max(ratios)
	}
	return f
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	if len(v) == 0 {
		return 0
	}
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

func (f figure) want(text string, met bool) figure {
	f.Reach, f.Met = text, &met
	return f
}

// atMost and atLeast say what the ratio is meant to be; 0: nothing is.
func (f figure) atMost(ratio float64) figure {
	if ratio == 0 || f.Ratio == 0 {
		return f
	}
	return f.want(fmt.Sprintf("ratio <= %.3g", ratio), f.Ratio <= ratio)
}

func (f figure) atLeast(ratio float64) figure {
	if ratio == 0 || f.Ratio == 0 {
		return f
	}
	return f.want(fmt.Sprintf("ratio >= %.3g", ratio), f.Ratio >= ratio)
}

// plain leaves the ratio out, where it says nothing.
func (f figure) plain() figure {
	f.Ratio, f.Low, f.High = 0, 0, 0
	return f
}

// steleAtLeast is about Stele's own value.
func (f figure) steleAtLeast(v float64) figure {
	return f.want(fmt.Sprintf(">= %.3g", v), median(f.Stele) >= v)
}

type rowReport struct {
	Section string   `json:"section"`
	Name    string   `json:"name"`
	Rounds  int      `json:"rounds"`
	Figures []figure `json:"figures"`
}

type report struct {
	Machine machine     `json:"machine"`
	Rows    []rowReport `json:"rows"`
}

func loadReport(file string) (*report, error) {
	r := &report{}
	if file == "" {
		return r, nil
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return nil, err
	}
	return r, json.Unmarshal(text, r)
}

func (r *report) save(file string) error {
	if file == "" {
		return nil
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

// add puts a row in, in place of an earlier one of the same name.
func (r *report) add(of row, figures []figure) {
	r.Machine = thisMachine()
	next := rowReport{Section: of.section, Name: of.name, Rounds: len(figures[0].Stele), Figures: figures}
	for i := range r.Rows {
		if r.Rows[i].Name == of.name {
			r.Rows[i] = next
			return
		}
	}
	r.Rows = append(r.Rows, next)
}

// markdown writes a table for each section. A ratio in bold misses its reach.
func (r *report) markdown(w io.Writer) {
	fmt.Fprintf(w, "%s\n", r.Machine)
	for _, section := range []string{sectionProduce, sectionConsume, sectionFlush, sectionCompact, sectionTools, sectionLatency, sectionProcess, sectionCluster} {
		var rows []rowReport
		var columns []figure
		for _, row := range r.Rows {
			if row.Section != section {
				continue
			}
			rows = append(rows, row)
			for _, f := range row.Figures {
				if !slices.ContainsFunc(columns, func(c figure) bool { return c.Name == f.Name && c.Unit == f.Unit }) {
					columns = append(columns, f)
				}
			}
		}
		if len(rows) == 0 {
			continue
		}
		fmt.Fprintf(w, "\n### %s\n\n|  |", section)
		for _, c := range columns {
			fmt.Fprintf(w, " %s: Stele, Kafka | ratio |", c.Unit)
		}
		fmt.Fprintf(w, "\n| --- |%s\n", strings.Repeat(" --- | --- |", len(columns)))
		for _, row := range rows {
			fmt.Fprintf(w, "| %s |", row.Name)
			for _, c := range columns {
				i := slices.IndexFunc(row.Figures, func(f figure) bool { return c.Name == f.Name && c.Unit == f.Unit })
				if i < 0 {
					fmt.Fprint(w, " | |")
					continue
				}
				row.Figures[i].cells(w)
			}
			fmt.Fprintln(w)
		}
	}
	met, missed := 0, 0
	for _, row := range r.Rows {
		for _, f := range row.Figures {
			if f.Met != nil && *f.Met {
				met++
			} else if f.Met != nil {
				missed++
			}
		}
	}
	fmt.Fprintf(w, "\n%d figures within the reach, %d not (in bold).\n", met, missed)
}

func (f figure) cells(w io.Writer) {
	if len(f.Kafka) == 0 {
		fmt.Fprintf(w, " %s | |", format(median(f.Stele)))
		return
	}
	fmt.Fprintf(w, " %s, %s |", format(median(f.Stele)), format(median(f.Kafka)))
	if f.Ratio == 0 {
		fmt.Fprint(w, " |")
		return
	}
	ratio := fmt.Sprintf("%.2f", f.Ratio)
	if f.Met != nil && !*f.Met {
		ratio = "**" + ratio + "**"
	}
	if f.Low == f.High {
		fmt.Fprintf(w, " %s |", ratio)
		return
	}
	fmt.Fprintf(w, " %s (%.2f to %.2f) |", ratio, f.Low, f.High)
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
