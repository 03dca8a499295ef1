//go:build interop

package differential

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestDifferential sends the same requests to Apache Kafka and to Stele and compares what they answer.
// STELE_DIFFERENTIAL_ONLY is a pattern for the names of the lanes to run,
// STELE_DIFFERENTIAL_SEED replays a run, STELE_DIFFERENTIAL_ADDRS=kafka,stele uses servers that run already.
func TestDifferential(t *testing.T) {
	seed := uint64(time.Now().UnixNano()) % 1_000_000_000
	if s := os.Getenv("STELE_DIFFERENTIAL_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Printf("seed %d: STELE_DIFFERENTIAL_SEED=%d replays it\n", seed, seed)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var kafka *tape
	if path := os.Getenv("STELE_DIFFERENTIAL_REPLAY"); path != "" {
		var err error
		if kafka, err = loadTape(path); err != nil {
			t.Fatal(err)
		}
	} else if path := os.Getenv("STELE_DIFFERENTIAL_RECORD"); path != "" {
		kafka = newTape()
		defer func() {
			if err := kafka.save(path); err != nil {
				t.Error(err)
			}
		}()
	}
	addrs := servers(ctx, t, kafka == nil || !kafka.replayed)
	only, err := regexp.Compile(os.Getenv("STELE_DIFFERENTIAL_ONLY"))
	if err != nil {
		t.Fatal(err)
	}
	r := &run{seed: seed, only: only, addrs: addrs, tape: kafka, started: time.Now(), pairs: &pairs{kafka: map[string]string{}, stele: map[string]string{}},
		coverage: newCoverage(), ledger: newLedger(), versions: map[int16][2]int16{}}
	if kafka != nil && kafka.replayed {
		r.started = kafka.started // requests and comparisons know the time of the run
	} else if kafka != nil {
		kafka.started = r.started
	}
	r.began = time.Now()
	r.agree(t)
	r.elect()
	r.everything()
	whole := os.Getenv("STELE_DIFFERENTIAL_ONLY") == "" && (kafka == nil || !kafka.replayed)
	table, lacking := r.table()
	fmt.Print(table)
	for _, why := range lacking {
		if whole {
			t.Error(why)
		} else {
			fmt.Println("in part:", why)
		}
	}
	for _, what := range r.ledger.broken {
		t.Error(what)
	}
	report := r.ledger.report()
	path := filepath.Join(os.TempDir(), "stele-differential.txt")
	if err := os.WriteFile(path, []byte(report+"\nAccepted, the first of each:\n"+r.ledger.accounts()), 0o644); err != nil {
		t.Error(err)
	}
	if n := len(r.ledger.kinds); n > 0 {
		t.Errorf("%d kinds of differences that nobody has accepted, all of them in %s", n, path)
		if len(report) > 20000 {
			report = report[:20000]
		}
		fmt.Print(report)
	}
	for _, a := range Accepted {
		if n := r.ledger.accepted[a.ID]; n == 0 && (!whole || a.Rare) {
			continue
		} else if n == 0 {
			t.Errorf("accepted difference %s was not seen in this run", a.ID)
		} else {
			fmt.Printf("accepted %6d times: %s\n", r.ledger.accepted[a.ID], a.ID)
		}
	}
	if kafka != nil && kafka.replayed {
		fmt.Printf("%d requests were not on the tape\n", kafka.missed)
	}
	fmt.Printf("%v\n", time.Since(r.began).Round(time.Second))
}

// agree keeps of the keys of one node those that both servers advertise, and says where they do not agree.
func (r *run) agree(t *testing.T) {
	l := r.lane("versions")
	defer l.close()
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "differential", "1"
	got := l.do(4, req)
	ranges := [2]map[int16][2]int16{{}, {}}
	for i := range got.outcomes {
		resp := answer[*kmsg.ApiVersionsResponse](got, i)
		if resp == nil {
			t.Fatalf("no answer to ApiVersions: %+v", got.outcomes[i])
		}
		for _, k := range resp.ApiKeys {
			ranges[i][k.ApiKey] = [2]int16{k.MinVersion, k.MaxVersion}
		}
	}
	for _, key := range NodeKeys {
		if both, ok := ranges[1][key]; ok {
			r.versions[key] = both
		}
	}
}

// elect has the coordinators' topic made, which the first search for a coordinator does.
func (r *run) elect() {
	l := r.lane("coordinator")
	defer l.close()
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.CoordinatorKey = "anybody"
	l.both(func(_ int, s *side) { s.exchange(mainConn, req, 2, nil, patience) })
	l.settle("__consumer_offsets", 1)
	l.both(func(_ int, s *side) {
		ids := kmsg.NewPtrInitProducerIDRequest()
		ids.TransactionTimeoutMillis = 60000
		for range 500 {
			if o := s.exchange(mainConn, ids, 0, nil, patience); topError(o.resp) != 14 {
				return
			}
			l.pause() // the first block of producer ids is on its way
		}
	})
	describe := describeGroups("anybody")
	l.both(func(_ int, s *side) {
		for range 500 {
			o := s.exchange(mainConn, describe, 0, nil, patience)
			if o.resp != nil && nestedErrors(o.resp)[0] == 0 {
				return
			}
			l.pause()
		}
	})
}

// alone are the APIs whose answers tell of what other lanes do; their lanes run by themselves.
var alone = map[int16]bool{3: true, 16: true, 32: true, 35: true, 48: true, 74: true, 75: true}

// everything runs the scenarios and then, for each key and version, valid, odd and malformed requests.
func (r *run) everything() {
	var first, then []func()
	add := func(apart bool, fn func()) {
		if apart {
			first = append(first, fn)
		} else {
			then = append(then, fn)
		}
	}
	for _, s := range scenarios {
		add(s.alone, func() { r.play(s) })
	}
	for _, key := range NodeKeys {
		if _, ok := r.versions[key]; ok {
			add(alone[key], func() { r.generate(key, "", (*lane).fill) })
		}
	}
	r.inTurn(first)
	r.atOnce(then)
	// What the scenarios sent counts too, and is often odd.
	first, then = nil, nil
	for _, key := range NodeKeys {
		if _, ok := r.versions[key]; ok {
			add(alone[key], func() { r.generate(key, "-more", (*lane).topUp) })
		}
	}
	r.inTurn(first)
	r.atOnce(then)
}

func (r *run) inTurn(work []func()) {
	for _, fn := range work {
		fn()
	}
}

func (r *run) atOnce(work []func()) {
	todo := make(chan func())
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for fn := range todo {
				fn()
			}
		})
	}
	for _, fn := range work {
		todo <- fn
	}
	close(todo)
	wg.Wait()
}

// workers is how many lanes run at once.
const workers = 5

// scenario is a script of requests that belong together.
type scenario struct {
	name  string
	needs []int16 // keys
	alone bool
	turns int // how often it is played, with other versions each time
	play  func(l *lane)
}

var scenarios []scenario

func (r *run) play(s scenario) {
	for _, key := range s.needs {
		if _, ok := r.versions[key]; !ok {
			return
		}
	}
	for turn := range max(1, s.turns) {
		r.timed(fmt.Sprintf("%s/%d", s.name, turn), s.play)
	}
}

func (r *run) timed(name string, fn func(l *lane)) {
	if !r.only.MatchString(name) || r.late() {
		return
	}
	began := time.Now()
	l := r.lane(name)
	defer l.close()
	defer func() {
		if p := recover(); p == errLate {
			fmt.Printf("out of time: %s after %d steps\n", name, l.step)
		} else if p != nil {
			r.broke(fmt.Sprintf("%s after %d steps: %v\n%s", name, l.step, p, debug.Stack()))
		}
	}()
	fn(l)
	if took := time.Since(began); took > 3*time.Second {
		fmt.Printf("%v: %s took %v for %d steps\n", time.Since(l.began).Round(time.Second), name, took.Round(time.Millisecond), l.step)
	}
}

// broke keeps the panic of one lane: the others go on.
func (r *run) broke(what string) {
	r.ledger.mu.Lock()
	defer r.ledger.mu.Unlock()
	r.ledger.broken = append(r.ledger.broken, what)
}

var errLate = errors.New("out of time")

// late says that the run has taken long enough.
func (r *run) late() bool { return time.Since(r.began) > 215*time.Second }

// generate does something for each version of one key.
func (r *run) generate(key int16, what string, each func(l *lane, f *fixture, key, version int16)) {
	r.timed(kmsg.NameForKey(key)+what, func(l *lane) {
		f := l.fixture()
		for v := r.versions[key][0]; v <= r.versions[key][1]; v++ {
			each(l, f, key, v)
		}
	})
}

// fill sends valid, odd and damaged requests of one version.
func (l *lane) fill(f *fixture, key, version int16) {
	for i := range 36 {
		req := generators[key](l, f, version)
		switch {
		case i%4 == 3:
			got := l.malformed(version, req)
			l.startOver(f, got)
		case i%6 == 4:
			l.bent = true
			got := l.sendOdd(version, l.odd(req))
			l.bent = false
			l.startOver(f, got)
		default:
			l.finish(l.do(version, req))
		}
	}
}

// topUp brings one version to its figures.
func (l *lane) topUp(f *fixture, key, version int16) {
	for range 400 {
		figures := l.coverage.of(key, version)
		switch why := figures.short(key, version); {
		case why == "":
			return
		case 100*figures.malformed < wantMalformedPercent*figures.sent:
			l.startOver(f, l.malformed(version, generators[key](l, f, version)))
		default:
			l.finish(l.do(version, generators[key](l, f, version)))
		}
	}
}

// finish waits until both servers show what a request has changed, of what both have changed alike.
func (l *lane) finish(got sent) {
	done := map[string]int{} // by topic, how many servers say so
	for _, o := range got.outcomes {
		for _, name := range changedTopics(o.resp) {
			done[name]++
		}
	}
	want := map[string]int{}
	switch req := got.req.(type) {
	case *kmsg.CreateTopicsRequest:
		if req.ValidateOnly {
			return
		}
		for _, t := range req.Topics {
			want[t.Topic] = max(1, int(t.NumPartitions), len(t.ReplicaAssignment))
		}
	case *kmsg.CreatePartitionsRequest:
		if req.ValidateOnly {
			return
		}
		for _, t := range req.Topics {
			want[t.Topic] = int(t.Count)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(done)) {
		if done[name] == len(got.outcomes) {
			l.settle(name, want[name])
		}
	}
}

// changedTopics are the topics that an answer says were made, changed or deleted.
func changedTopics(resp kmsg.Response) (names []string) {
	switch resp := resp.(type) {
	case *kmsg.CreateTopicsResponse:
		for _, t := range resp.Topics {
			if t.ErrorCode == 0 {
				names = append(names, t.Topic)
			}
		}
	case *kmsg.CreatePartitionsResponse:
		for _, t := range resp.Topics {
			if t.ErrorCode == 0 {
				names = append(names, t.Topic)
			}
		}
	case *kmsg.DeleteTopicsResponse:
		for _, t := range resp.Topics {
			if t.ErrorCode == 0 && t.Topic != nil {
				names = append(names, *t.Topic)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// sendOdd sends a request that may be left without an answer.
func (l *lane) sendOdd(version int16, req kmsg.Request) sent {
	if p, ok := req.(*kmsg.ProduceRequest); ok && p.Acks == 0 {
		return l.quiet(version, req)
	}
	got := l.do(version, req)
	l.finish(got)
	return got
}

// declined says that a server has answered, and done nothing.
func declined(o outcome) bool {
	return o.fate == answered && !slices.Contains(nestedErrors(o.resp), 0)
}

// startOver goes on with other topics when the two servers may have stored different things in these.
func (l *lane) startOver(f *fixture, got sent) {
	p, silent := got.req.(*kmsg.ProduceRequest)
	silent = silent && p.Acks == 0
	alike := len(got.findings) == 0 || declined(got.outcomes[0]) && declined(got.outcomes[1])
	if key := got.req.Key(); (key == produce || key == 21) && (silent || !alike || namesTwice(got.req)) {
		*f = *l.fixture()
	}
}
