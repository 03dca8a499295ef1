package wire

import (
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
