package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"testing"
	"testing/synctest"
)

// number is an environment variable's value, or its default.
func number(name string, standard int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return standard
}

// A whole cluster under every fault, from a seed: crashes with and without what was not synced, cut, slow and one-way
// networks, pauses, failing disks, elections clean and unclean. P1 to P9 and P11 hold after every step, and what has
// healed is whole again. SEEDS says how many seeds, SEED the first one.
func TestClusterSim(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // a seed is short-lived, and makes little that stays
	seen := newCoverage()
	first, n := number("SEED", 1), number("SEEDS", 2)
	var total struct{ elections, unclean, isr, truncations, crashes, ops, lost int }
	for i := range n {
		if t.Failed() && os.Getenv("STELE_MUTANT") != "" {
			break // caught
		}
		seed := uint64(first + i)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			var w *world
			synctest.Test(t, func(*testing.T) {
				w = newWorld(seed, seen)
				w.run()
			})
			if w.err != nil {
				file := filepath.Join(os.TempDir(), fmt.Sprintf("cluster-sim-%d.log", seed))
				_ = os.WriteFile(file, []byte(w.lines.dump()), 0o644)
				t.Fatalf("seed %d: %v\nlog lines are in %s\nagain: SEED=%d SEEDS=1 go test ./test/sim/cluster -run TestClusterSim", seed, w.err, file, seed)
			}
			moved := w.decided.elections + w.decided.isrChanges + w.judge.truncations + w.crashes
			t.Logf("seed %d: %d operations, %d acknowledged, %d shown, %d commits (%d read back), %d elections (%d unclean), %d ISR changes, %d truncations seen, %d crashes, %d ended by themselves, %d unplaced, %d producers anew, %d lost by unclean elections, %d by power",
				seed, w.ops.Load(), w.acked.Load(), w.shown.Load(), w.committed.Load(), w.checkedCommits.Load(), w.decided.elections, w.decided.unclean, w.decided.isrChanges, w.judge.truncations, w.crashes, w.endedByItself.Load(), w.unplaced.Load(), w.restartedProducers.Load(), w.judge.lost, w.judge.lostByPower)
			if moved < 200 || w.ops.Load() < 5000 {
				t.Errorf("seed %d: only %d elections, truncations, ISR changes and crashes, %d operations", seed, moved, w.ops.Load())
			}
			total.elections += w.decided.elections
			total.unclean += w.decided.unclean
			total.isr += w.decided.isrChanges
			total.truncations += w.judge.truncations
			total.crashes += w.crashes
			total.ops += int(w.ops.Load())
			total.lost += w.judge.lost
		})
	}
	t.Logf("%d seeds: %+v\n%s", n, total, seen)
}
