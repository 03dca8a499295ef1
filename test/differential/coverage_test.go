//go:build interop

package differential

import (
	"fmt"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"
)

type figures struct{ sent, successful, malformed, equal, accepted int }

// coverage counts requests by key and version.
type coverage struct {
	mu sync.Mutex
	by map[[2]int16]*figures
}

func newCoverage() *coverage { return &coverage{by: map[[2]int16]*figures{}} }

func (c *coverage) count(key, version int16, successful, malformed, equal, accepted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.by[[2]int16{key, version}]
	if f == nil {
		f = &figures{}
		c.by[[2]int16{key, version}] = f
	}
	f.sent++
	for _, one := range []struct {
		is bool
		n  *int
	}{{successful, &f.successful}, {malformed, &f.malformed}, {equal, &f.equal}, {!equal && accepted, &f.accepted}} {
		if one.is {
			*one.n++
		}
	}
}

func (c *coverage) of(key, version int16) figures {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.by[[2]int16{key, version}]; f != nil {
		return *f
	}
	return figures{}
}

// The figures that each key and version must reach.
const (
	wantSent             = 30
	wantMalformedPercent = 20
)

// refused versions are advertised and never served, by either: no request of them can succeed.
func refused(key, version int16) bool { return key == 0 && version < 3 }

// short says what a key and version lacks, "" when nothing.
func (f figures) short(key, version int16) string {
	switch {
	case f.sent < wantSent:
		return fmt.Sprintf("sent %d times, want %d", f.sent, wantSent)
	case 2*f.successful < f.sent && !refused(key, version):
		return "fewer than half successful"
	case 100*f.malformed < wantMalformedPercent*f.sent:
		return fmt.Sprintf("fewer than %d%% malformed", wantMalformedPercent)
	}
	return ""
}

// table prints the figures of every key and version that both servers serve, and what falls short.
func (r *run) table() (table string, lacking []string) {
	var b strings.Builder
	fmt.Fprintf(&b, "%-26s %3s %3s %6s %10s %9s %6s %8s\n", "API", "key", "v", "sent", "successful", "malformed", "equal", "accepted")
	var total figures
	for _, key := range NodeKeys {
		served, ok := r.versions[key]
		if !ok {
			fmt.Fprintf(&b, "%-26s %3d   - not advertised\n", kmsg.NameForKey(key), key)
			continue
		}
		for v := served[0]; v <= served[1]; v++ {
			f := r.coverage.of(key, v)
			fmt.Fprintf(&b, "%-26s %3d %3d %6d %10d %9d %6d %8d\n", kmsg.NameForKey(key), key, v, f.sent, f.successful, f.malformed, f.equal, f.accepted)
			if why := f.short(key, v); why != "" {
				lacking = append(lacking, fmt.Sprintf("%s v%d: %s (%+v)", kmsg.NameForKey(key), v, why, f))
			}
			total.sent, total.successful, total.malformed = total.sent+f.sent, total.successful+f.successful, total.malformed+f.malformed
			total.equal, total.accepted = total.equal+f.equal, total.accepted+f.accepted
		}
	}
	fmt.Fprintf(&b, "%-26s %3s %3s %6d %10d %9d %6d %8d\n", "all", "", "", total.sent, total.successful, total.malformed, total.equal, total.accepted)
	return b.String(), lacking
}
