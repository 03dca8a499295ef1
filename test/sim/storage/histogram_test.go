package storage

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// histogram counts things by name. It may be used concurrently.
type histogram struct {
	mu     sync.Mutex
	counts map[string]int
}

func newHistogram() *histogram { return &histogram{counts: map[string]int{}} }

func (h *histogram) add(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts[name]++
}

func (h *histogram) total() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.counts {
		n += c
	}
	return n
}

func (h *histogram) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(h.counts)) {
		fmt.Fprintf(&b, "  %6d  %s\n", h.counts[name], name)
	}
	return b.String()
}

func (h *histogram) merge(o *histogram) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, n := range o.counts {
		h.counts[name] += n
	}
}
