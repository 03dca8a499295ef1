package wire

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// The table agrees with kmsg about where each API becomes flexible, and kmsg can decode every
// version in it.
func TestTableAgreesWithKmsg(t *testing.T) {
	t.Parallel()
	for _, a := range APIs() {
		req := kmsg.RequestForKey(a.Key)
		if req == nil {
			t.Errorf("kmsg does not know %s", a.Name)
			continue
		}
		if req.MaxVersion() < a.Max {
			t.Errorf("kmsg knows %s up to %d, the table has %d", a.Name, req.MaxVersion(), a.Max)
		}
		for v := a.Min; v <= a.Max; v++ {
			req.SetVersion(v)
			if req.IsFlexible() != a.Flexible(v) {
				t.Errorf("%s %d: flexible is %v, kmsg says %v", a.Name, v, a.Flexible(v), req.IsFlexible())
			}
		}
		if got, ok := Lookup(a.Key); !ok || got != a {
			t.Errorf("Lookup(%d) gives %+v", a.Key, got)
		}
	}
	for _, key := range []int16{-1, 4, 5, 6, 7, 95, 1000, 32767, -32768} {
		if a, ok := Lookup(key); ok {
			t.Errorf("Lookup(%d) gives %+v", key, a)
		}
	}
}

// Produce is advertised from 0 and refused below 3 when used.
func TestProduceBelowThreeIsRefused(t *testing.T) {
	t.Parallel()
	a, _ := Lookup(KeyProduce)
	if a.Min != 0 || a.Supports(2) || !a.Supports(3) || !a.Supports(13) || a.Supports(14) {
		t.Fatalf("%+v", a)
	}
}

// What Apache Kafka 4.4.0 answers to ApiVersions, on either listener, is exactly what the table
// says: keys, ranges and scopes.
func TestTableIsKafkas(t *testing.T) {
	t.Parallel()
	for listener, scope := range map[string]Scope{"broker": ScopeBroker, "controller": ScopeController} {
		raw, err := os.ReadFile("../../test/reference/testdata/kafka-4.4.0/api/ApiVersions-" + listener + "-v4.json")
		if err != nil {
			t.Fatal(err)
		}
		var recorded struct {
			APIKeys []struct{ APIKey, MinVersion, MaxVersion int16 }
		}
		if err := json.Unmarshal(raw, &recorded); err != nil {
			t.Fatal(err)
		}
		seen := map[int16]bool{}
		for _, k := range recorded.APIKeys {
			seen[k.APIKey] = true
			a, ok := Lookup(k.APIKey)
			switch {
			case !ok:
				t.Errorf("%s: Kafka has key %d, versions %d to %d, we do not", listener, k.APIKey, k.MinVersion, k.MaxVersion)
			case a.Scopes&scope == 0:
				t.Errorf("%s: Kafka serves %s here, we do not", listener, a.Name)
			case a.Min != k.MinVersion || a.Max != k.MaxVersion:
				t.Errorf("%s: %s is %d to %d at Kafka, %d to %d here", listener, a.Name, k.MinVersion, k.MaxVersion, a.Min, a.Max)
			}
		}
		for _, a := range APIs() {
			// Kafka advertises client telemetry only where a plugin receives it; the recorded node has none.
			telemetry := a.Key == 71 || a.Key == 72
			if a.Scopes&scope != 0 && !seen[a.Key] && !telemetry {
				t.Errorf("%s: Kafka does not serve %s (%d) here", listener, a.Name, a.Key)
			}
		}
	}
}
