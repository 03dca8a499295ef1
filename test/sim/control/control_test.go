package control

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/cryptotest"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/stelelog/stele/internal/config"
	"github.com/stelelog/stele/internal/metadata"
)

// world is a cluster.
type world struct {
	*loop
	net       *network
	servers   map[int32]*server
	serverIDs []int32
	static    []int32 // the voters at first
	brokers   []*broker
	everybody []int32
	check     *checker
	history   *history
	config    *config.Broker
	level     metadata.Level
	begun     *metadata.Image // when the administrators begin
	counts    map[string]int
	serial    int // of values that administrators set
	calm      bool
	changing  bool // the operator waits for an answer
}

// count is a number that the totals show, and that is part of the trace.
func (w *world) count(what string) {
	w.counts[what]++
	w.mark(what)
}

const (
	troubleFor = 9 * time.Minute
	calmFor    = 75 * time.Second
)

func newWorld(seed uint64) *world {
	w := &world{loop: newLoop(seed), servers: map[int32]*server{}, config: config.Defaults(), level: metadata.LevelLatest, counts: map[string]int{}}
	w.net = &network{w: w, cut: map[[2]int32]bool{}}
	w.check = newChecker(w)
	w.history = &history{w: w, ops: map[string][]porcupine.Operation{}}
	voters := int32(3)
	if w.chance(30) {
		voters = 5
	}
	for id := int32(1); id <= 5; id++ {
		s := &server{w: w, id: id, static: id <= voters, mem: newDisk(w), once: map[metadata.UUID]bool{}}
		w.servers[id], w.serverIDs, w.everybody = s, append(w.serverIDs, id), append(w.everybody, id)
		if s.static {
			w.static = append(w.static, id)
		}
	}
	for id := int32(101); id <= 105; id++ {
		b := &broker{w: w, id: id, last: -1}
		for range 1 + w.rng.IntN(2) {
			b.dirs = append(b.dirs, metadata.NewUUID(bytesOf{w.rng}))
		}
		w.brokers, w.everybody = append(w.brokers, b), append(w.everybody, id)
	}
	return w
}

// run is one run: trouble for a while, then calm, in which everything must come to rest.
func run(t *testing.T, seed uint64, trouble time.Duration) *world {
	// Raft draws its timeouts there.
	cryptotest.SetGlobalRandom(t, seed)
	w := newWorld(seed)
	for _, id := range w.serverIDs {
		w.after(w.between(0, 2*time.Second), w.servers[id].start)
	}
	for _, b := range w.brokers {
		w.after(w.between(0, 3*time.Second), b.start)
	}
	w.until(func() bool {
		return w.active() != nil && w.check.image.MetadataVersion() != 0 && !w.check.image.InTransaction()
	}, time.Minute, "the quorum is not formed")
	w.begun = w.check.image
	for i := range 4 {
		a := &admin{w: w, id: 200 + int32(i), leader: -1}
		w.everybody = append(w.everybody, a.id)
		a.start()
	}
	w.trouble()
	end := w.now + trouble
	w.until(func() bool { return w.now >= end }, trouble+time.Second, "")
	w.settle()
	if w.err == nil {
		w.err = w.history.linearizable()
	}
	return w
}

// until goes on until something holds.
func (w *world) until(holds func() bool, within time.Duration, or string) {
	for deadline := w.now + within; w.err == nil && !holds(); {
		if w.now > deadline {
			w.fail("%s within %v", or, within)
			return
		}
		w.step()
	}
}

// settle heals everything and demands that the cluster comes to rest.
func (w *world) settle() {
	w.calm = true
	w.note("calm")
	clear(w.net.cut)
	w.net.loss, w.net.twice, w.net.slow = 0, 0, 0
	for _, id := range w.serverIDs {
		s := w.servers[id]
		s.crashIn, s.failIn, s.slow = 0, 0, 0
		if s.failing {
			s.failing = false
			s.end(0)
		}
		s.start()
	}
	for _, b := range w.brokers {
		b.leaving, b.offline = false, nil
		b.start()
	}
	answered := 0
	rest := w.now + calmFor
	w.until(func() bool { return w.now >= rest-30*time.Second }, calmFor, "")
	mark, before := w.check.end, w.counts["admin operations answered"]
	w.until(func() bool { return w.now >= rest }, calmFor, "")
	answered = w.counts["admin operations answered"] - before
	if w.err != nil {
		return
	}
	if err := w.rested(mark, answered); err != nil {
		w.fail("after %v of calm: %v", calmFor, err)
	}
}

// rested says what is not at rest; mark is an offset that everybody must have reached.
func (w *world) rested(mark int64, answered int) error {
	if n := len(w.check.late); n > 0 {
		return fmt.Errorf("%d things were answered that nobody has committed", n)
	}
	active := w.active()
	if active == nil {
		return errors.New("no controller is active")
	}
	if answered < 20 {
		return fmt.Errorf("only %d operations were answered", answered)
	}
	for _, v := range active.core.Status().Voters {
		s := w.servers[v.VoterID]
		if w.wiped(v) {
			continue
		}
		if !s.up || s.core == nil || s.core.Status().HighWatermark < mark || s.core.Status().LeaderID != active.id {
			return fmt.Errorf("controller %d does not follow %d", s.id, active.id)
		}
		w.check.sameImage(fmt.Sprintf("controller %d", s.id), s.core.Committed())
	}
	for _, b := range w.brokers {
		registered, ok := w.check.image.Broker(b.id)
		if !ok || registered.Fenced || registered.Epoch != b.epoch || b.end < mark {
			return fmt.Errorf("broker %d is not back: epoch %d, registered %v, metadata up to %d of %d", b.id, b.epoch, registered, b.end, mark)
		}
		w.check.sameImage(fmt.Sprintf("broker %d", b.id), b.image)
	}
	for _, topic := range w.check.image.Topics().All() {
		for _, p := range topic.Partitions().All() {
			if p.Leader != metadata.NoLeader {
				continue
			}
			for _, id := range slices.Concat(p.ISR, p.ELR) {
				b, ok := w.check.image.Broker(id)
				dir, placed := p.Directory(id)
				if ok && b.Active() && (!placed || b.DirectoryOnline(dir)) {
					return fmt.Errorf("%s-%d has no leader, though %d is alive: %+v", topic.Name, p.ID, id, p)
				}
			}
		}
	}
	return nil
}

// totals adds up what runs did.
type totals map[string]int

func (t totals) String() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(t)) {
		parts = append(parts, fmt.Sprintf("%d %s", t[name], name))
	}
	return strings.Join(parts, ", ")
}

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

func TestControlSim(t *testing.T) {
	// Whatever network, disks, processes and administrators do, after every step: one leader for each partition and epoch,
	// no committed record lost or changed, one active controller in each epoch, every broker's image a prefix of the truth;
	// what is answered is committed, and was computed on the truth, under the broker's present epoch. Healed, the cluster comes
	// to rest, and what administrators have seen is linearizable. SEEDS says how many runs, SEED runs one alone, FROM says
	// where to begin.
	first, runs := number(t, "FROM", 1), number(t, "SEEDS", 3)
	if os.Getenv("SEED") != "" {
		first, runs = number(t, "SEED", 1), 1
	}
	sum := totals{}
	began := time.Now()
	for seed := first; seed < first+runs; seed++ {
		w := run(t, seed, troubleFor)
		if w.err != nil {
			t.Fatalf("seed %d: %v\n%s\n%v\nagain: SEED=%d go test ./test/sim/control -run TestControlSim -count=1", seed, w.err, w.report(), totals(w.counts), seed)
		}
		for name, n := range w.counts {
			sum[name] += n
		}
		faults := w.counts["controller crashes"] + w.counts["broker crashes"] + w.counts["elections"] + w.counts["partitions"] + w.counts["voter changes"]
		if faults < 200 || w.counts["admin operations"] < 2000 || w.now < 10*time.Minute {
			t.Errorf("seed %d: %d crashes, elections, partitions and voter changes, %d operations, %v: the run shows too little", seed, faults, w.counts["admin operations"], w.now)
		}
	}
	t.Logf("%d runs in %v: %v", runs, time.Since(began).Round(time.Second), sum)
}

func TestControlSimRepeatsToTheBit(t *testing.T) {
	// One seed gives one history.
	a, b := run(t, 7, 2*time.Minute), run(t, 7, 2*time.Minute)
	if a.hash != b.hash || a.report() != b.report() || fmt.Sprint(a.err) != fmt.Sprint(b.err) {
		t.Fatalf("two runs of one seed differ: %016x, %016x\n%s\n\n%s", a.hash, b.hash, a.report(), b.report())
	}
	if c := run(t, 8, time.Minute); c.hash == a.hash {
		t.Error("another seed gives the same history")
	}
}
