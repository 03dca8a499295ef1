//go:build interop

package interop

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// gap is something that Stele does not serve yet.
type gap struct {
	capability string
	keys       []int16  // the APIs it needs
	checks     []string // the scenarios, rows and files that need it
}

// gaps is everything that Stele does not serve yet, and what each costs here. On a target that advertises the
// keys the checks run. On one that does not, they are tried where that shows something, have to fail quickly and
// with an error, and count for nothing. A target that advertises a part of a row's keys, or Stele with all of
// them, fails TestUnserved: the table is then out of date.
var gaps = []gap{
	{"share groups", []int16{76, 77, 78, 79, 90, 91, 92}, nil},
	{"streams groups", []int16{88, 89}, nil},
}

// capabilities is what a target advertises to clients.
type capabilities map[int16]bool

func capabilitiesOf(ctx context.Context, addr string) (capabilities, error) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	answer, err := kmsg.NewPtrApiVersionsRequest().RequestWith(ctx, cl)
	if err != nil {
		return nil, err
	}
	c := capabilities{}
	for _, k := range answer.ApiKeys {
		c[k.ApiKey] = true
	}
	return c, nil
}

// mustCapabilities ends the test when the target does not say.
func mustCapabilities(t *testing.T, addr string) capabilities {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := capabilitiesOf(ctx, addr)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// all says that a gap is none on this target.
func (c capabilities) all(g gap) bool {
	return !slices.ContainsFunc(g.keys, func(k int16) bool { return !c[k] })
}

func (c capabilities) has(capability string) bool {
	i := slices.IndexFunc(gaps, func(g gap) bool { return g.capability == capability })
	return c.all(gaps[i])
}

// missing is the gap that keeps a check from running on this target.
func (c capabilities) missing(check string) (gap, bool) {
	for _, g := range gaps {
		if slices.Contains(g.checks, check) && !c.all(g) {
			return g, true
		}
	}
	return gap{}, false
}

// refused judges the try of a check that needs what the target does not serve: it ended with an error, and in
// time, so that nobody waits for ever for what does not come.
func refused(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return errors.New("the target does not advertise what this needs, but it worked")
	case ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the client was left waiting instead of told at once: %w", err)
	}
	return nil
}

// TestUnserved holds the table of gaps against what the target advertises.
func TestUnserved(t *testing.T) {
	served := mustCapabilities(t, newTarget(t).Addr())
	for _, g := range gaps {
		var has []int16
		for _, k := range g.keys {
			if served[k] {
				has = append(has, k)
			}
		}
		switch {
		case len(has) == len(g.keys) && !onKafka():
			t.Errorf("%s: all of the keys %v are advertised now; take the row out of the table of gaps", g.capability, g.keys)
		case len(has) > 0 && len(has) < len(g.keys):
			t.Errorf("%s: of the keys %v only %v are advertised", g.capability, g.keys, has)
		case len(has) == 0:
			results.addGap(g)
		}
	}
	if onKafka() {
		return
	}
	// Nothing else is missing: every key that Kafka advertises to clients is served, or in the table, or about
	// security.
	known := maps.Clone(served)
	for _, g := range gaps {
		for _, k := range g.keys {
			known[k] = true
		}
	}
	security := []int16{17, 36}
	coordinators := []int16{83, 84, 85, 86, 87, 93} // spoken between brokers
	for _, k := range slices.Concat(security, coordinators) {
		known[k] = true
	}
	kafka, err := recordedKeys()
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range kafka {
		if !known[k] {
			t.Errorf("key %d is neither advertised nor in the table of gaps", k)
		}
	}
}

// recordedKeys is what Apache Kafka advertises to clients, as test/reference recorded it.
func recordedKeys() ([]int16, error) {
	root, err := moduleRoot()
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(root, "test/reference/testdata/kafka-4.4.0/api/ApiVersions-broker-v5.json"))
	if err != nil {
		return nil, err
	}
	var keys []int16
	for _, m := range regexp.MustCompile(`"apiKey"\s*:\s*(\d+)`).FindAllSubmatch(text, -1) {
		k, err := strconv.ParseInt(string(m[1]), 10, 16)
		if err != nil {
			return nil, err
		}
		keys = append(keys, int16(k))
	}
	if len(keys) == 0 {
		return nil, errors.New("the recording names no key")
	}
	return keys, nil
}

// reportGaps is the table of gaps as people read it.
func reportGaps(list []gap) string {
	var s strings.Builder
	s.WriteString("\nwhat Stele does not serve yet, confirmed; checks that need it count for nothing:\n")
	for _, g := range list {
		checks := strings.Join(g.checks, ", ")
		if checks == "" {
			checks = "-"
		}
		fmt.Fprintf(&s, "%-28s keys %-34s checks: %s\n", g.capability, strings.Trim(fmt.Sprint(g.keys), "[]"), checks)
	}
	return s.String()
}
