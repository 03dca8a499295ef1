package storage

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/vfs"
)

// number reads a number of the environment.
func number(t *testing.T, name string, def uint64) uint64 {
	s := os.Getenv(name)
	if s == "" {
		return def
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("%s=%s is not a number", name, s)
	}
	return n
}

// seeds are the first seed and how many of them: SEED runs one alone, SEEDS says how many for all simulators, of which
// this one has a third.
func seeds(t *testing.T, def uint64) (first, runs uint64) {
	if os.Getenv("SEED") != "" {
		return number(t, "SEED", 1), 1
	}
	if os.Getenv("SEEDS") != "" {
		def = max(number(t, "SEEDS", 0)/3, 1)
	}
	return 1, def
}

// Random lives of a node with six partitions - producers of all kinds, transactions, compaction, retention, truncations,
// deletions, slow readers - in which at least fifty file operations fail and the node is stopped, killed and cut off from
// power: after each reopening P1, P2, P6, P7, P8 hold, and what was acknowledged and synced is there.
func TestStorageSim(t *testing.T) {
	t.Parallel()
	first, runs := seeds(t, 12)
	began, pool, counts := time.Now(), newPool(), newHistogram()
	for seed := first; seed < first+runs; seed++ {
		pool.run(func() error {
			k := newLife(seed, 0)
			if err := k.run(50, 400); err != nil {
				return fmt.Errorf("seed %d: %w\nagain: SEED=%d go test ./test/sim/storage -run TestStorageSim -count=1", seed, err, seed)
			}
			if k.faults < 50 {
				return fmt.Errorf("seed %d: only %d faults", seed, k.faults)
			}
			counts.merge(k.counts)
			return nil
		})
	}
	for i, err := range pool.wait() {
		if i < 5 {
			t.Error(err)
		}
	}
	t.Logf("%d seeds from %d in %v:\n%s", runs, first, time.Since(began).Round(time.Millisecond), counts)
}

// aims are the moments at which the machine is to die, most of them such that something is half done.
var aims = []string{"roll", "checkpoint", "cleaner swap", "rename", "epoch checkpoint", "truncation", "append", "flush", "deletion", "anything"}

// The machine loses power in the middle of what it does: with flush.messages=1 no acknowledged record is ever lost,
// without each log is a prefix of what it was. Every life dies a dozen times, aimed in turns; a quarter of them by kill -9,
// which loses nothing, a quarter on a file system that keeps no order among names.
func TestPowerLoss(t *testing.T) {
	t.Parallel()
	first, lives := seeds(t, 12)
	began, pool, counts := time.Now(), newPool(), newHistogram()
	for seed := first; seed < first+lives; seed++ {
		pool.run(func() error {
			k := newLife(seed, []int64{1, 1<<63 - 1}[seed%2])
			k.loss = []vfs.Loss{vfs.LoseSome, vfs.LoseUnsynced, vfs.LoseAny, vfs.LoseNothing}[seed/2%4]
			if err := k.die(12); err != nil {
				return fmt.Errorf("seed %d: %w\nagain: SEED=%d go test ./test/sim/storage -run TestPowerLoss -count=1", seed, err, seed)
			}
			counts.merge(k.counts)
			return nil
		})
	}
	for i, err := range pool.wait() {
		if i < 5 {
			t.Error(err)
		}
	}
	t.Logf("%d lives, %d deaths in %v:\n%s", lives, counts.total(), time.Since(began).Round(time.Millisecond), counts)
}

// die lives until the machine has died so many times, each time in the middle of something else.
func (k *life) die(times int) error {
	if err := k.boot(vfs.LoseNothing, false); err != nil {
		return err
	}
	for n := range times {
		aim := aims[(n+k.rng.IntN(3))%len(aims)]
		for range 20 + k.rng.IntN(30) {
			if err := k.step(); err != nil {
				return err
			}
		}
		k.aim, k.aimAt = aim, k.rng.IntN(4)
		for tries := 0; k.struck == nil; tries++ {
			if tries == 300 {
				k.aim = "anything" // this life does not do that any more
			}
			if err := k.step(); err != nil {
				return fmt.Errorf("before death %d: %w", n, err)
			}
			if k.chance(50) {
				k.drain()
			}
		}
		at := k.struck.at
		k.takeOver()
		if err := k.boot(k.loss, false); err != nil {
			return fmt.Errorf("death %d, before %v: %w", n, at, err)
		}
	}
	return nil
}
