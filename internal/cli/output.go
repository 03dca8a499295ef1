package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
)

// table is what a command shows a person: a header and rows of cells.
type table struct {
	header []string
	rows   [][]string
}

func (t *table) add(cells ...any) {
	row := make([]string, len(cells))
	for i, cell := range cells {
		row[i] = fmt.Sprint(cell)
	}
	t.rows = append(t.rows, row)
}

// show prints value as JSON for scripts, or t for people. Both hold the same
// facts; field names in JSON are the table's words in lower camel case.
func (e *env) show(value any, t table) error {
	if e.output == "json" {
		return e.json(value)
	}
	w := tabwriter.NewWriter(e.out, 0, 4, 2, ' ', 0)
	if len(t.header) > 0 {
		fmt.Fprintln(w, strings.Join(t.header, "\t"))
	}
	for _, row := range t.rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}

func (e *env) json(value any) error {
	encoder := json.NewEncoder(e.out)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}

// say writes one line for people; scripts that asked for JSON do not get it.
func (e *env) say(format string, args ...any) {
	if e.output != "json" {
		fmt.Fprintf(e.out, format+"\n", args...)
	}
}

// joinInts prints a list of ids the way Kafka's tools do: 1,2,3.
func joinInts(ids []int32) string {
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = fmt.Sprint(id)
	}
	return strings.Join(texts, ",")
}

// orEmpty makes a list that JSON shows as [], never as null.
func orEmpty(ids []int32) []int32 {
	if ids == nil {
		return []int32{}
	}
	return ids
}

// orDash shows the absent as "-", never as a plausible number.
func orDash(value int64) string {
	if value < 0 {
		return "-"
	}
	return fmt.Sprint(value)
}

// topicPartition names one partition.
type topicPartition struct {
	Topic     string
	Partition int32
}

// describeEach looks each name up, then shows them all: nothing is printed when one of them fails.
func describeEach[V any](e *env, names []string, show func(V) error, describe func(name string) (V, error)) error {
	views := make([]V, 0, len(names))
	for _, name := range names {
		view, err := describe(name)
		if err != nil {
			return err
		}
		views = append(views, view)
	}
	if e.output == "json" {
		return e.json(views)
	}
	for _, view := range views {
		if err := show(view); err != nil {
			return err
		}
	}
	return nil
}
