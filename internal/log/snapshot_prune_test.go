package log

import (
	"strings"
	"testing"

	"github.com/stelelog/stele/internal/vfs"
)

// A log that is opened and crashes again and again keeps the snapshot that it opened with and the one before, not one
// for every start.
func TestSnapshotsDoNotPileUpOverRestarts(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{}).open()
	for i := range 10 {
		x.append(idempotent(7, 0, int32(i), 1, false))
		x.crash(vfs.LoseNothing, uint64(i)).open()
	}
	names, err := x.fs.ReadDir(x.dir)
	if err != nil {
		t.Fatal(err)
	}
	snapshots := 0
	for _, e := range names {
		if strings.HasSuffix(e.Name(), ".snapshot") {
			snapshots++
		}
	}
	if snapshots > 2 {
		t.Errorf("%d snapshots after 10 restarts", snapshots)
	}
}
