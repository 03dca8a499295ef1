//go:build interop

package differential

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// run is one run of the whole: both servers, what was sent and what differed.
type run struct {
	seed     uint64
	only     *regexp.Regexp // names of lanes
	addrs    [2]string
	started  time.Time // what requests take for now
	began    time.Time
	pairs    *pairs
	coverage *coverage
	ledger   *ledger
	tape     *tape
	versions map[int16][2]int16 // by key, what both servers advertise of the keys of one node
}

// lane is one sequence of requests, with connections and names of its own.
type lane struct {
	*run
	name   string
	rng    *rand.Rand
	sides  [2]*side // Kafka, Stele
	step   int
	made   int    // names made up so far
	damage string // what is being done to the bytes
	bent   bool   // the request has fields that make no sense
	aside  int    // above 0 while what is sent only prepares something, and is compared but not counted
}

func (r *run) lane(name string) *lane {
	h := uint64(14695981039346656037)
	for _, b := range []byte(name) {
		h = (h ^ uint64(b)) * 1099511628211
	}
	l := &lane{run: r, name: name, rng: rand.New(rand.NewPCG(r.seed, h))}
	for i, server := range []string{"kafka", "stele"} {
		l.sides[i] = &side{name: server, addr: r.addrs[i], lane: name, ids: newIDs(), conns: map[string]*conn{}}
		l.sides[i].ids.strings["cluster"] = "no-such-cluster"
	}
	l.sides[0].tape = r.tape
	return l
}

func (l *lane) close() {
	for _, s := range l.sides {
		for name := range s.conns {
			s.hangUp(name)
		}
	}
}

// both runs a function for both sides at once.
func (l *lane) both(fn func(i int, s *side)) {
	var wg sync.WaitGroup
	for i, s := range l.sides {
		wg.Go(func() { fn(i, s) })
	}
	wg.Wait()
}

// sent is one compared request.
type sent struct {
	req      kmsg.Request
	version  int16
	outcomes [2]outcome
	findings []Finding
}

// ok says that both servers answered with success.
func (s sent) ok() bool { return successful(s.outcomes[0]) && successful(s.outcomes[1]) }

// answer is what one side answered, nil when it did not.
func answer[T kmsg.Response](s sent, side int) T {
	resp, _ := s.outcomes[side].resp.(T)
	return resp
}

const mainConn = "main"

var clientID = "differential"

// readers are the APIs that change nothing: a difference is asked about again, since what was changed before may be seen
// a moment later.
var readers = map[int16]bool{2: true, 3: true, 9: true, 10: true, 15: true, 16: true, 18: true, 23: true, 32: true, 35: true, 48: true, 55: true, 60: true, 74: true, 75: true}

// waits are the errors that say "not yet", and tell a client to come again: 5 to 7 and 13 of a partition's leader, 14 to 16
// of a coordinator, 41 of the controller.
var waits = []int16{5, 6, 7, 13, 14, 15, 16, 41}

// passing says that a difference may be gone in a moment, and that asking again changes nothing but that: the request
// only reads, or one side has said that it is not ready. What is truly different stays so.
func (l *lane) passing(got sent) bool {
	if len(got.findings) == 0 || !l.ledger.surprising(got.findings) {
		return false
	}
	if readers[got.req.Key()] {
		return true
	}
	var unready [2]bool
	for i, o := range got.outcomes {
		if o.resp != nil {
			unready[i] = contains(append(nestedErrors(o.resp), topError(o.resp)), func(code int16) bool { return slices.Contains(waits, code) })
		}
	}
	return unready[0] != unready[1]
}

// do sends a request to both servers and compares their answers.
func (l *lane) do(version int16, req kmsg.Request) sent { return l.on(mainConn, version, req) }

func (l *lane) on(connection string, version int16, req kmsg.Request) sent {
	got := l.attempt(connection, version, req)
	for try := 0; try < 11 && l.passing(got); try++ {
		time.Sleep(time.Duration(min(4<<try, 500)) * time.Millisecond)
		got = l.attempt(connection, version, req)
	}
	l.record(got, connection, false)
	return got
}

func (l *lane) attempt(connection string, version int16, req kmsg.Request) sent {
	if l.late() {
		panic(errLate)
	}
	got := sent{req: req, version: version}
	resolved := l.resolved(req, version)
	began := time.Now()
	var took [2]time.Duration
	l.both(func(i int, s *side) {
		got.outcomes[i] = s.exchange(connection, resolved[i], version, &clientID, s.patience(req))
		took[i] = time.Since(began)
	})
	if slow := time.Since(began); slow > 500*time.Millisecond {
		fmt.Printf("slow: %s v%d kafka %v stele %v %s\n", kmsg.NameForKey(req.Key()), version, took[0], took[1], show(req)[:min(300, len(show(req)))])
	}
	l.after(connection, got.outcomes)
	got.findings = l.compare(got)
	l.learn(req, got.outcomes)
	return got
}

func (l *lane) resolved(req kmsg.Request, version int16) (out [2]kmsg.Request) {
	req.SetVersion(version)
	if f, ok := req.(*kmsg.FetchRequest); ok {
		onlyOfVersion(f, version)
	}
	for i, s := range l.sides {
		out[i] = s.ids.resolve(reflect.ValueOf(req).Elem()).Addr().Interface().(kmsg.Request)
	}
	return out
}

// onlyOfVersion takes out of a fetch what kmsg would lay out as tagged fields in versions that do not have them yet.
func onlyOfVersion(req *kmsg.FetchRequest, version int16) {
	if version < 15 {
		req.ReplicaState = kmsg.NewFetchRequestReplicaState()
	}
	for i := range req.Topics {
		for k := range req.Topics[i].Partitions {
			p := &req.Topics[i].Partitions[k]
			if version < 17 {
				p.ReplicaDirectoryID = [16]byte{}
			}
			if version < 18 {
				p.HighWatermark = math.MaxInt64
			}
		}
	}
}

// after hangs up on both sides when one of them did, so that the next request finds both alike.
func (l *lane) after(connection string, outcomes [2]outcome) {
	if outcomes[0].fate != answered || outcomes[1].fate != answered {
		for _, s := range l.sides {
			s.hangUp(connection)
		}
	}
}

func (l *lane) compare(got sent) []Finding {
	if got.outcomes[0].fate == untold {
		return nil
	}
	l.pair()
	c := &comparison{key: got.req.Key(), version: got.version, started: l.started, pairs: l.pairs}
	c.answers(got.outcomes[0], got.outcomes[1])
	for i := range c.found {
		c.found[i].Request, c.found[i].Malformed, c.found[i].Odd = got.req, l.damage != "", l.bent
	}
	return c.found
}

// pair notes which ids of the two servers stand for the same symbol.
func (l *lane) pair() {
	kafka, stele := l.sides[0].ids, l.sides[1].ids
	for name, id := range kafka.topics {
		if other, ok := stele.topics[name]; ok {
			l.pairs.same("uuid", fmt.Sprint(id), fmt.Sprint(other))
		}
	}
	for name, id := range kafka.strings {
		if other, ok := stele.strings[name]; ok && strings.HasPrefix(name, "member:") {
			l.pairs.same("member", fmt.Sprintf("%q", id), fmt.Sprintf("%q", other))
		}
	}
}

// tidy sends what undoes a difference, and compares nothing.
func (l *lane) tidy(version int16, req kmsg.Request) {
	resolved := l.resolved(req, version)
	l.both(func(i int, s *side) { s.exchange(mainConn, resolved[i], version, &clientID, patience) })
}

// record counts a request and keeps its differences.
func (l *lane) record(got sent, connection string, malformed bool) {
	l.step++
	l.sides[0].step = l.step
	if got.outcomes[0].fate == untold {
		return
	}
	for i := range got.findings {
		if got.findings[i].Malformed, got.findings[i].Odd = malformed, l.bent; malformed && l.damage != "" {
			got.findings[i].Path += " [" + l.damage + "]"
		}
	}
	fresh := l.ledger.add(got.findings, func() string {
		return fmt.Sprintf("lane %s step %d (%s)\n    request: %s\n    kafka:   %s\n    stele:   %s", l.name, l.step, connection,
			show(got.req), show(got.outcomes[0].resp), show(got.outcomes[1].resp))
	})
	if l.aside > 0 {
		return
	}
	l.coverage.count(got.req.Key(), got.version, got.ok() && !malformed, malformed, len(got.findings) == 0, fresh == 0)
}

func show(v any) string {
	if v == nil || reflect.ValueOf(v).IsNil() {
		return "none"
	}
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprintf("%+v", v)
	}
	if len(b) > 1500 {
		b = append(b[:1500:1500], "..."...)
	}
	return string(b)
}

// pending is a request that was sent and not yet answered.
type pending struct {
	connection string
	req        kmsg.Request
	version    int16
	ids        [2]int32
	name       string // on the tape
	failed     [2]error
}

// send sends a request that is answered only after others.
func (l *lane) send(connection string, version int16, req kmsg.Request) pending {
	p := pending{connection: connection, req: req, version: version}
	resolved := l.resolved(req, version)
	for i, s := range l.sides {
		if s.tape != nil {
			p.name = label(l.name, connection, frame(resolved[i], version, 0, &clientID))
			if s.replayed() {
				continue
			}
		}
		c, err := s.connection(connection)
		if err != nil {
			p.failed[i] = err
			continue
		}
		c.next++
		p.ids[i] = c.next
		_, p.failed[i] = c.Write(frame(resolved[i], version, c.next, &clientID))
	}
	return p
}

// await reads the answers to such a request and compares them.
func (l *lane) await(p pending) sent {
	got := sent{req: p.req, version: p.version}
	l.both(func(i int, s *side) {
		if p.failed[i] != nil {
			got.outcomes[i] = outcome{fate: closed, why: p.failed[i]}
			return
		}
		if s.replayed() {
			got.outcomes[i] = s.tape.told(p.name, s.step, p.req.Key(), p.version)
			return
		}
		got.outcomes[i] = s.await(p.connection, p.req.Key(), p.version, p.ids[i], patience)
		s.tape.tell(p.name, s.step, got.outcomes[i])
	})
	l.after(p.connection, got.outcomes)
	got.findings = l.compare(got)
	l.learn(p.req, got.outcomes)
	l.record(got, p.connection, false)
	return got
}

// quiet sends a request that may be left without an answer.
func (l *lane) quiet(version int16, req kmsg.Request) sent {
	resolved := l.resolved(req, version)
	return l.bytes(version, req, false, func(i int) []byte { return frame(resolved[i], version, 77, &clientID) }, (*side).raw)
}

// bytes sends what may be no request at all.
func (l *lane) bytes(version int16, req kmsg.Request, malformed bool, make func(i int) []byte, how func(s *side, connection string, b []byte, key, version int16, correlation int32) outcome) sent {
	got := sent{req: req, version: version}
	for try := 0; try < 5; try++ {
		began := time.Now()
		l.both(func(i int, s *side) {
			got.outcomes[i] = how(s, "raw", make(i), req.Key(), version, 77)
		})
		if slow := time.Since(began); slow > 500*time.Millisecond {
			fmt.Printf("slow: %s v%d after %v, damaged: %s; %s and %s\n", kmsg.NameForKey(req.Key()), version, slow, l.damage, got.outcomes[0].fate, got.outcomes[1].fate)
		}
		l.after("raw", got.outcomes)
		got.findings = l.compare(got)
		if !l.passing(got) {
			break
		}
		time.Sleep(time.Duration(4<<try) * time.Millisecond)
	}
	l.learn(req, got.outcomes)
	l.record(got, "raw", malformed)
	return got
}

// learn keeps the ids that the servers told.
func (l *lane) learn(req kmsg.Request, outcomes [2]outcome) {
	for i, o := range outcomes {
		if o.resp == nil {
			continue
		}
		ids := l.sides[i].ids
		switch resp := o.resp.(type) {
		case *kmsg.MetadataResponse:
			if resp.ClusterID != nil {
				ids.strings["cluster"] = *resp.ClusterID
			}
			for _, t := range resp.Topics {
				if t.Topic != nil && t.TopicID != [16]byte{} {
					ids.topics[*t.Topic] = t.TopicID
				}
			}
		case *kmsg.CreateTopicsResponse:
			for _, t := range resp.Topics {
				if t.TopicID != [16]byte{} {
					ids.topics[t.Topic] = t.TopicID
				}
			}
		}
	}
}

// keep names an id that the two servers told in an answer.
func (l *lane) keep(symbol string, got sent, number func(resp kmsg.Response) int64) {
	for i, o := range got.outcomes {
		if o.resp != nil {
			l.sides[i].ids.numbers[symbol] = number(o.resp)
		}
	}
}

func (l *lane) keepText(symbol string, got sent, text func(resp kmsg.Response) string) {
	for i, o := range got.outcomes {
		if o.resp != nil {
			if t := text(o.resp); t != "" {
				l.sides[i].ids.strings[symbol] = t
			}
		}
	}
}

// prepare sends what has to be there first.
func (l *lane) prepare(fn func()) {
	l.aside++
	defer func() { l.aside-- }()
	fn()
}

// fresh is a name that no other lane uses and this one has not used before.
func (l *lane) fresh(what string) string {
	l.made++
	return fmt.Sprintf("%s-%s-%d", strings.ReplaceAll(l.name, "/", "."), what, l.made)
}

// version picks a version of an API that both servers serve, not below lowest nor above highest.
func (l *lane) version(key int16, within ...int16) int16 {
	r, ok := l.versions[key]
	if !ok {
		panic(fmt.Sprintf("key %d is not served by both", key))
	}
	if len(within) > 0 {
		r[0] = max(r[0], within[0])
	}
	if len(within) > 1 {
		r[1] = min(r[1], within[1])
	}
	return r[0] + int16(l.rng.IntN(int(r[1]-r[0])+1))
}

func (l *lane) chance(percent int) bool { return l.rng.IntN(100) < percent }

func pick[T any](l *lane, from ...T) T { return from[l.rng.IntN(len(from))] }

// settling is how long a change of the metadata may take. Kafka makes hundreds of logs one after another before it shows
// what came behind them.
const settling = 30 * time.Second

// settle waits until both servers show a topic with so many partitions, all led; none means that the topic is gone.
func (l *lane) settle(topic string, partitions int) {
	var unsettled [2]bool
	l.both(func(i int, s *side) {
		unsettled[i] = true
		for deadline := time.Now().Add(settling); time.Now().Before(deadline); time.Sleep(3 * time.Millisecond) {
			req := kmsg.NewPtrMetadataRequest()
			req.AllowAutoTopicCreation = false
			t := kmsg.NewMetadataRequestTopic()
			t.Topic = &topic
			req.Topics = append(req.Topics, t)
			o := s.exchange("settle", req, 12, nil, patience)
			if o.fate == untold {
				unsettled[i] = false
				return
			}
			if o.fate != answered {
				s.hangUp("settle")
				continue
			}
			found := o.resp.(*kmsg.MetadataResponse).Topics[0]
			s.ids.strings["cluster"] = *o.resp.(*kmsg.MetadataResponse).ClusterID
			s.partitions = len(found.Partitions)
			if partitions == 0 && found.ErrorCode == 3 {
				unsettled[i] = false
				return
			}
			led := found.ErrorCode == 0 && len(found.Partitions) >= partitions && partitions > 0
			for _, p := range found.Partitions {
				led = led && p.ErrorCode == 0 && p.Leader >= 0
			}
			if led && s.leads(topic, partitions) {
				s.ids.topics[topic] = found.TopicID
				unsettled[i] = false
				return
			}
		}
	})
	if unsettled[0] || unsettled[1] {
		// What came now would tell of that alone.
		panic(fmt.Sprintf("topic %s does not come to %d partitions in %v, by Kafka: %t, by Stele: %t", topic, partitions, settling, !unsettled[0], !unsettled[1]))
	}
}

// leads says that every partition answers ListOffsets.
func (s *side) leads(topic string, partitions int) bool {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic = topic
	for p := range partitions {
		rp := kmsg.NewListOffsetsRequestTopicPartition()
		rp.Partition, rp.Timestamp = int32(p), -1
		t.Partitions = append(t.Partitions, rp)
	}
	req.Topics = append(req.Topics, t)
	o := s.exchange("settle", req, 4, nil, patience)
	return o.fate == answered && !contains(nestedErrors(o.resp), func(c int16) bool { return c != 0 })
}

func contains[T any](s []T, fn func(T) bool) bool {
	for _, v := range s {
		if fn(v) {
			return true
		}
	}
	return false
}

// pause gives the servers a moment.
func (l *lane) pause() { time.Sleep(10 * time.Millisecond) }
