package cli

import (
	"math"
	"testing"
)

// File handles are shared out between segments' files and connections so that both together fit, with some to spare.
func TestHandlesAreSharedOut(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ setting, configured, handles, files, connections int }{
		{-1, -1, 1024, 256, 640},
		{-1, math.MaxInt32, 1024, 256, 640},
		{-1, 100, 1024, 256, 100},
		{-1, -1, 20000, 5000, 14872},
		{-1, -1, 1 << 20, 16384, 1<<20 - 128 - 16384},
		{500, -1, 1024, 500, 396},
		{0, -1, 1024, 0, 896},
		{-1, -1, math.MaxInt32, 16384, -1},
		{1000, -1, 1024, 1000, 16},
	} {
		if got := maxOpenFiles(c.setting, c.handles); got != c.files {
			t.Errorf("%+v: %d files", c, got)
		}
		if got := maxConnections(c.configured, c.setting, c.handles); got != c.connections {
			t.Errorf("%+v: %d connections", c, got)
		}
	}
}
