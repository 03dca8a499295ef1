//go:build interop

package differential

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// ledger keeps what differed, in kinds.
type ledger struct {
	mu       sync.Mutex
	kinds    map[string]*kind
	accepted map[string]int // by id of the accepted difference
	examples map[string]string
	broken   []string // lanes that panicked
}

type kind struct {
	first    Finding
	count    int
	versions map[int16]int
	example  string
}

func newLedger() *ledger {
	return &ledger{kinds: map[string]*kind{}, accepted: map[string]int{}, examples: map[string]string{}}
}

// surprising says that some finding is neither on the list nor has been found several times already.
func (l *ledger) surprising(findings []Finding) bool {
	for _, f := range findings {
		if _, ok := acceptedAs(f); ok {
			continue
		}
		l.mu.Lock()
		k := l.kinds[f.kind()]
		old := k != nil && k.count >= 3
		l.mu.Unlock()
		if !old {
			return true
		}
	}
	return false
}

// kind is what findings of the same cause have in common.
func (f Finding) kind() string {
	return fmt.Sprintf("%d %s %s %s", f.Key, f.Path, generic(f.Kafka), generic(f.Stele))
}

// add keeps findings and returns how many of them are not accepted.
func (l *ledger) add(findings []Finding, example func() string) int {
	if len(findings) == 0 {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	unaccepted := 0
	for _, f := range findings {
		if id, ok := acceptedAs(f); ok {
			if l.accepted[id]++; l.accepted[id] == 1 {
				l.examples[id] = fmt.Sprintf("%s: %s\n    kafka: %s\n    stele: %s\n    %s\n", id, f.Path, f.Kafka, f.Stele, example())
			}
			continue
		}
		unaccepted++
		name := f.kind()
		k := l.kinds[name]
		if k == nil {
			k = &kind{first: f, versions: map[int16]int{}, example: example()}
			l.kinds[name] = k
		}
		k.count++
		k.versions[f.Version]++
	}
	return unaccepted
}

var variable = regexp.MustCompile(`[0-9a-f]{16,}|"TopicID":\[[0-9,]*\]|\d{3,}|-\d+\b|[A-Za-z-]+(\.\d)?-(one|three|growing|group|[a-z]+)-(\d+|#)`)

// generic leaves out of a value what differs from request to request.
func generic(s string) string {
	s = variable.ReplaceAllString(s, "#")
	if len(s) > 120 {
		s = s[:120]
	}
	return s
}

func (l *ledger) report() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b strings.Builder
	all := slices.SortedFunc(maps.Values(l.kinds), func(x, y *kind) int {
		return cmp.Or(cmp.Compare(x.first.Key, y.first.Key), cmp.Compare(x.first.Path, y.first.Path), cmp.Compare(y.count, x.count))
	})
	for i, k := range all {
		fmt.Fprintf(&b, "%d. %s (%d) v%v, %d times, %s\n    kafka: %s\n    stele: %s\n    %s\n", i+1, kmsg.NameForKey(k.first.Key), k.first.Key,
			slices.Sorted(maps.Keys(k.versions)), k.count, k.first.Path, k.first.Kafka, k.first.Stele, k.example)
	}
	return b.String()
}

// accounts are examples of what was accepted, the first of each.
func (l *ledger) accounts() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b strings.Builder
	for _, id := range slices.Sorted(maps.Keys(l.examples)) {
		b.WriteString(l.examples[id])
	}
	return b.String()
}

func acceptedAs(f Finding) (string, bool) {
	for _, a := range Accepted {
		if a.Matches(f) {
			return a.ID, true
		}
	}
	return "", false
}
