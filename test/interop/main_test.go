//go:build interop

package interop

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// scratch is a folder for what all tests share: the binary, classes, the clients' own logs.
var scratch string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "stele-interop-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	scratch = dir
	code := m.Run()
	fmt.Print(results.report())
	if code == 0 {
		os.RemoveAll(dir)
	} else {
		fmt.Println("the server's logs, and what the clients said on standard error, are in", dir)
	}
	os.Exit(code)
}

// clientLog is where a client's standard error goes.
func clientLog(name string) io.Writer {
	f, err := os.OpenFile(filepath.Join(scratch, name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return os.Stderr
	}
	return f
}

// outcome counts checks: one client and one scenario each.
type outcome struct {
	mu     sync.Mutex
	passed map[string][]string // client -> scenarios
	failed map[string][]string
	cannot map[string]map[string]string // client -> scenario -> why
	gaps   []gap                        // what the target does not serve

	adminMethods []string // methods of Kafka's Admin that need what the target does not serve
}

var results = &outcome{passed: map[string][]string{}, failed: map[string][]string{}, cannot: map[string]map[string]string{}}

func (o *outcome) add(client, scenario string, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if ok {
		o.passed[client] = append(o.passed[client], scenario)
	} else {
		o.failed[client] = append(o.failed[client], scenario)
	}
}

func (o *outcome) addCannot(client, scenario, why string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.cannot[client] == nil {
		o.cannot[client] = map[string]string{}
	}
	o.cannot[client][scenario] = why
}

func (o *outcome) addGap(g gap) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.gaps = append(o.gaps, g)
}

func (o *outcome) addUnserved(methods []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.adminMethods = append(o.adminMethods, methods...)
}

func (o *outcome) report() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	names := map[string]bool{}
	for c := range o.passed {
		names[c] = true
	}
	for c := range o.failed {
		names[c] = true
	}
	if len(names) == 0 && len(o.gaps) == 0 {
		return ""
	}
	var s strings.Builder
	fmt.Fprintf(&s, "\n%-18s %6s %6s %6s\n", "client", "checks", "passed", "cannot")
	checks, passed, cannot := 0, 0, 0
	for _, c := range slices.Sorted(maps.Keys(names)) {
		n := len(o.passed[c]) + len(o.failed[c])
		fmt.Fprintf(&s, "%-18s %6d %6d %6d\n", c, n, len(o.passed[c]), len(o.cannot[c]))
		checks, passed, cannot = checks+n, passed+len(o.passed[c]), cannot+len(o.cannot[c])
	}
	fmt.Fprintf(&s, "%-18s %6d %6d %6d\n", "all", checks, passed, cannot)
	for _, c := range slices.Sorted(maps.Keys(o.failed)) {
		slices.Sort(o.failed[c])
		fmt.Fprintf(&s, "failed: %s: %s\n", c, strings.Join(o.failed[c], ", "))
	}
	if cannot > 0 {
		s.WriteString("\nwhat a client cannot do by itself, tried and confirmed:\n")
	}
	for _, c := range slices.Sorted(maps.Keys(o.cannot)) {
		for _, scenario := range slices.Sorted(maps.Keys(o.cannot[c])) {
			fmt.Fprintf(&s, "%-18s %-20s %s\n", c, scenario, o.cannot[c][scenario])
		}
	}
	if len(o.gaps) > 0 {
		s.WriteString(reportGaps(o.gaps))
	}
	if len(o.adminMethods) > 0 {
		fmt.Fprintf(&s, "\nmethods of Kafka's Admin whose API is not served yet, tried and refused:\n%s\n", strings.Join(o.adminMethods, "\n"))
	}
	return s.String()
}
