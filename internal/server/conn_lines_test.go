package server

import (
	"testing"
	"time"
)

// Of a storm of lines about connections a second shows the first twenty, and the next one to be shown says
// how many were left out.
func TestStormOfConnectionLines(t *testing.T) {
	t.Parallel()
	var l connLines
	now := time.Unix(1000, 0)
	shown := 0
	for range 5000 {
		if ok, untold := l.admit(now); ok {
			shown++
			if untold != 0 {
				t.Errorf("%d left out before any was", untold)
			}
		}
		now = now.Add(time.Second / 5000)
	}
	if shown != connLinesPerSecond {
		t.Errorf("%d lines in a second", shown)
	}
	if ok, untold := l.admit(now); !ok || untold != 5000-connLinesPerSecond {
		t.Errorf("the next second: %v, %d left out", ok, untold)
	}
	if ok, untold := l.admit(now); !ok || untold != 0 {
		t.Errorf("told twice: %v, %d left out", ok, untold)
	}
}
