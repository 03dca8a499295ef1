package storage

import (
	"os"
	"runtime/debug"
	"testing"
)

// Thousands of small file systems come and go: the collector need not run for each.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}
