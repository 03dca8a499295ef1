package sim

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/group"
)

const maxRebalance = 60 * time.Second

var groups = []string{"c0", "c1"}

// runGroups is one run: six consumers in two groups and an administrator, five minutes with faults, then
// three minutes without, after which every living consumer must have its share.
func runGroups(seed uint64) (*world, error) {
	w := &world{loop: newLoop(seed), handles: map[group.ReplyTo]*request{}, sessions: map[string]time.Duration{}}
	w.check = newChecker(w)
	w.elect()

	consumers := make([]*consumer, 6)
	for i := range consumers {
		c := &consumer{
			w: w, name: fmt.Sprintf("m%d", i), group: groups[i%2],
			version: []int16{3, 5, 9}[w.rng.IntN(3)], session: w.between(6*time.Second, 10*time.Second).Truncate(time.Millisecond),
			rebalance: w.between(10*time.Second, maxRebalance), commitsOnly: w.chance(50),
		}
		if w.chance(40) {
			c.instanceID, c.version = &c.name, max(c.version, 5)
		}
		consumers[i] = c
		w.sessions[c.name] = c.session
		w.after(w.between(0, 5*time.Second), c.startProcess)
	}
	repeat := func(low, high time.Duration, do func()) {
		var again func()
		again = func() {
			if !w.calm {
				do()
			}
			w.after(w.between(low, high), again)
		}
		w.after(w.between(low, high), again)
	}
	repeat(50*time.Millisecond, 500*time.Millisecond, w.administrate)
	repeat(time.Second, 40*time.Second, func() {
		if c := consumers[w.rng.IntN(len(consumers))]; c.alive {
			if w.chance(50) {
				c.leave()
			} else {
				c.crash()
			}
		}
	})
	repeat(5*time.Second, 90*time.Second, func() {
		w.depose(w.chance(50))
		w.after(w.between(0, 3*time.Second), func() {
			if w.lead == nil {
				w.elect()
			}
		})
	})
	w.after(5*time.Minute, func() { w.calm = true; w.note("calm") })

	end := w.start.Add(8 * time.Minute)
	for w.check.err == nil {
		at, ok := w.next()
		tick := false
		if w.lead != nil {
			if deadline, running := w.lead.shard.NextDeadline(); running && (!ok || !deadline.After(at)) {
				at, ok, tick = deadline, true, true
			}
		}
		if !ok || at.After(end) {
			break
		}
		if tick {
			if at.After(w.now) {
				w.now = at
			}
			w.check.tick(groups)
		} else {
			w.step()
		}
		w.check.look()
	}
	if w.check.err == nil {
		w.check.settled(consumers)
	}
	return w, w.check.err
}

// settled demands that after a time without faults every group has dealt out every partition to its living
// members.
func (k *checker) settled(consumers []*consumer) {
	for _, id := range groups {
		owners := map[int32]string{}
		for _, c := range consumers {
			if c.group != id || !c.alive {
				continue
			}
			if !c.stable {
				k.fail("%s has no assignment although there were no faults for minutes", c.name)
			}
			for _, p := range c.owned {
				if other, ok := owners[p]; ok {
					k.fail("group %s: partition %d is held by %s and %s", id, p, other, c.name)
				}
				owners[p] = c.name
			}
		}
		if len(owners) != partitions {
			k.fail("group %s: %d of %d partitions are held", id, len(owners), partitions)
		}
	}
}

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

func TestGroupSim(t *testing.T) {
	// Whatever clients, network, log and leaders do, what the checker demands holds after every event, and once
	// the faults end the groups come to rest. SEEDS says how many runs, SEED runs one alone.
	first, runs := uint64(1), number(t, "SEEDS", 10)
	if os.Getenv("SEED") != "" {
		first, runs = number(t, "SEED", 1), 1
	}
	var syncs, commits, stable, unstable int
	for seed := first; seed < first+runs; seed++ {
		w, err := runGroups(seed)
		if err != nil {
			t.Fatalf("seed %d, at %v: %v\n%s\nagain: SEED=%d go test ./test/sim -run TestGroupSim -count=1",
				seed, w.now.Sub(w.start), err, w.report(), seed)
		}
		k := w.check
		syncs, commits, stable, unstable = syncs+k.syncs, commits+k.commits, stable+k.stableFetches, unstable+k.unstable
	}
	t.Logf("%d runs: %d assignments, %d commits, %d stable fetches (%d partitions unstable)", runs, syncs, commits, stable, unstable)
	if syncs == 0 || commits == 0 || stable == 0 || unstable == 0 {
		t.Error("the runs did not do what they are there to check")
	}
}

func TestGroupSimRepeatsToTheBit(t *testing.T) {
	// One seed gives one history.
	a, errA := runGroups(7)
	b, errB := runGroups(7)
	if fmt.Sprint(errA) != fmt.Sprint(errB) || a.report() != b.report() || len(a.log) != len(b.log) || a.rng.Uint64() != b.rng.Uint64() {
		t.Fatalf("two runs of one seed differ: %v, %v\n%s\n\n%s", errA, errB, a.report(), b.report())
	}
	for i := range a.log {
		if string(a.log[i].key) != string(b.log[i].key) || string(a.log[i].value) != string(b.log[i].value) {
			t.Fatalf("the logs differ at offset %d", i)
		}
	}
}
