package telemetry

import (
	"sort"
	"sync"
)

// Readiness is the set of conditions that must hold before a node is ready. Each is not met until someone
// says so, and may be lost again. Safe for concurrent use.
type Readiness struct {
	mu      sync.Mutex
	reasons map[string]string // by condition; "" is met
	explain map[string]func() string
}

// NewReadiness returns a readiness that waits for the named conditions.
func NewReadiness(conditions ...string) *Readiness {
	r := &Readiness{reasons: make(map[string]string, len(conditions)), explain: map[string]func() string{}}
	for _, c := range conditions {
		r.reasons[c] = "has not been reached yet"
	}
	return r
}

// Met says that a condition holds.
func (r *Readiness) Met(condition string) { r.set(condition, "") }

// NotMet says that a condition does not hold, and why.
func (r *Readiness) NotMet(condition, reason string) {
	if reason == "" {
		reason = "is not met"
	}
	r.set(condition, reason)
}

func (r *Readiness) set(condition, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reasons[condition] = reason
}

// Explain has how say, each time that somebody asks, why a condition does not hold; nil: what NotMet said.
func (r *Readiness) Explain(condition string, how func() string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if how == nil {
		delete(r.explain, condition)
		return
	}
	r.explain[condition] = how
}

// Missing returns a line for each condition that does not hold, in order of names: none when ready.
func (r *Readiness) Missing() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for condition, reason := range r.reasons {
		if how := r.explain[condition]; how != nil && reason != "" {
			reason = how()
		}
		if reason != "" {
			out = append(out, condition+": "+reason)
		}
	}
	sort.Strings(out)
	return out
}
