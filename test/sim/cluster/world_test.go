package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/vfs"
)

// world is one run of the simulator.
type world struct {
	seed        uint64
	rng         *rand.Rand // of the faults; the main goroutine's
	controllers int
	eligible    bool // eligible leader replicas are kept
	net         *network
	hosts       []*host
	lines       *lines
	kinds       []*topicKind
	decided     *decisions
	judge       *judge
	coverage    *coverage
	quiet       chan struct{} // closed when faults are over: whatever waits to heal does so at once
	running     sync.WaitGroup
	load        context.Context
	endLoad     context.CancelFunc

	mu        sync.Mutex // guards what follows, and the decisions with the evidence of partitions
	err       error
	ordered   map[uint64]bool // the idempotent producers
	abandoned map[uint64]bool // records that their producers gave up

	ops, acked, shown, committed, checkedCommits, unplaced, restartedProducers, shownTruncations, endedByItself, joins, ghostsServed atomic.Int64
	crashes, faults                                                                                                                  int
}

// topicKind is one topic of the simulation.
type topicKind struct {
	name       string
	partitions int
	replicas   int
	minISR     int
	unclean    bool
	flush      bool // flush.messages=1
	volatile   bool // it is deleted and made again, and its records are deleted
}

func newWorld(seed uint64, c *coverage) *world {
	w := &world{
		seed: seed, rng: rand.New(rand.NewPCG(seed, 0xfa17)), controllers: 3, net: newNetwork(seed), lines: newLines(), coverage: c,
		quiet: make(chan struct{}), ordered: map[uint64]bool{}, abandoned: map[uint64]bool{},
		kinds: []*topicKind{
			{name: "orders", partitions: 2, replicas: 3, minISR: 2},
			{name: "events", partitions: 2, replicas: 3, minISR: 1, unclean: true},
			{name: "ledger", partitions: 1, replicas: 3, minISR: 2, flush: true},
			{name: "scratch", partitions: 1, replicas: 2, minISR: 1, volatile: true},
		},
	}
	w.eligible = seed%4 != 0
	w.decided, w.judge = newDecisions(w), newJudge(w)
	w.load, w.endLoad = context.WithCancel(context.Background())
	for id := 1; id <= 4; id++ {
		w.hosts = append(w.hosts, &host{w: w, id: id, disks: vfs.NewMem()})
	}
	return w
}

func (w *world) kindOf(name string) *topicKind {
	for _, k := range w.kinds {
		if k.name == name {
			return k
		}
	}
	return nil
}

// fail notes the first thing that is wrong; the run ends soon.
func (w *world) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failLocked(err)
}

func (w *world) failLocked(err error) {
	if w.err == nil {
		w.err = err
		w.lines.say("FAILED: %v", err)
	}
}

func (w *world) failure() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// after runs f after d, or when faults are over.
func (w *world) after(d time.Duration, f func()) {
	w.running.Go(func() {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-w.quiet:
		}
		f()
	})
}

// partition finds what the controllers say of a partition.
func (w *world) partition(id metadata.UUID, partition int32) *partitionState {
	t := w.decided.topics[id]
	if t == nil {
		return nil
	}
	return t.partitions[partition]
}

// promise keeps a record that must not be lost.
func (w *world) promise(topic metadata.UUID, partition int32, all ...evidence) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.partition(topic, partition); p != nil {
		p.evidence = append(p.evidence, all...)
	}
}

// acknowledged takes an acknowledgement: with acks=all each record is a promise from now on.
func (w *world) acknowledged(node int, topic metadata.UUID, partition int32, base int64, ids []uint64, all bool) {
	if !all {
		return
	}
	found := w.written(node, topic, partition, base, ids)
	if len(found) == len(ids) {
		w.promise(topic, partition, found...)
		return
	}
	// The leader has ended, or does not lead any more, since it answered; or it has acknowledged what it has not. The epoch
	// cannot have been far below the present one: a leader that others have succeeded soon acknowledges nothing.
	w.unplaced.Add(1)
	w.lines.say("acknowledged by node %d at %d, and not found there: %x", node, base, ids)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.decided.follow(); err != nil {
		w.failLocked(err)
	}
	p := w.partition(topic, partition)
	if p == nil {
		return
	}
	for i, id := range ids {
		p.evidence = append(p.evidence, evidence{offset: base + int64(i), id: id, low: p.leaderEpoch - 2, high: p.leaderEpoch, what: "acknowledged by all in sync", judgedIn: -1, isr: p.replicas, at: time.Now().Add(-time.Minute)})
	}
}

// written finds records in the log of the node that acknowledged them just now.
func (w *world) written(node int, topic metadata.UUID, partition int32, base int64, ids []uint64) (found []evidence) {
	n := w.hosts[node-1].node()
	if n == nil || n.Replicas() == nil {
		return nil
	}
	one, err := n.Replicas().PartitionByID(topic, partition)
	if err != nil {
		return nil
	}
	raw, err := one.ReadLog(base, make([]byte, 0, 4096))
	if err != nil {
		return nil
	}
	role := one.Role()
	_ = readBatches(raw, true, func(b *readBatch) error {
		for _, r := range b.records {
			if r.offset >= base && r.offset < base+int64(len(ids)) && r.id == ids[r.offset-base] {
				found = append(found, evidence{offset: r.offset, id: r.id, low: b.epoch, high: role.LeaderEpoch, what: "acknowledged by all in sync", judgedIn: -1, isr: role.ISR, at: b.written})
			}
		}
		return errEnough
	})
	return found
}

// replicasOf is a copy of a partition's replicas, and who leads.
func (w *world) replicasOf(topic string, partition int32) (replicas []int32, leader int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t := w.decided.names[topic]; t != nil && t.partitions[partition] != nil {
		return slices.Clone(t.partitions[partition].replicas), t.partitions[partition].leader
	}
	return nil, -1
}

// abandon notes records that their producer gives up: they may be written late, or never.
func (w *world) abandon(ids []uint64) {
	w.restartedProducers.Add(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		w.abandoned[id] = true
	}
}

// inSync is who is in sync by the leader's word.
func (w *world) inSync(node int, topic metadata.UUID, partition int32) []int32 {
	if n := w.hosts[node-1].node(); n != nil && n.Replicas() != nil {
		if one, err := n.Replicas().PartitionByID(topic, partition); err == nil {
			return one.Role().ISR
		}
	}
	return nil
}

// allLost says whether every replica that was in sync has lost what was not synced since. Where no eligible leaders are
// kept, the last one in sync leads again with what it has: then it is enough that one who has led since had lost it.
func (w *world) allLost(p *partitionState, v *evidence) bool {
	if p.topic.kind != nil && p.topic.kind.flush {
		return false
	}
	if !w.eligible {
		for epoch, leader := range p.leaders {
			if epoch > v.low && leader > 0 && w.hosts[leader-1].lost().After(v.at) {
				return true
			}
		}
	}
	for _, id := range v.isr {
		if !w.hosts[id-1].lost().After(v.at) {
			return false
		}
	}
	return len(v.isr) > 0
}

// uncleanOffsets counts the unclean elections of the offsets topic.
func (w *world) uncleanOffsets() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.decided.follow(); err != nil {
		w.failLocked(err)
	}
	for _, t := range w.decided.topics {
		if t.kind == nil {
			for _, p := range t.partitions {
				n += len(p.uncleanIn)
			}
		}
	}
	return n
}

// offsets is the partition that holds the groups' offsets, and evidence of what is written there now.
func (w *world) offsets() (p *partitionState, now evidence) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.decided.topics {
		if p := t.partitions[0]; t.kind == nil && p != nil {
			return p, evidence{isr: p.isr, at: time.Now().Add(-5 * time.Second), low: p.leaderEpoch} // a commit's patience
		}
	}
	return nil, now
}

// coordinates says whether that node coordinates the groups by the controllers' word. One that has not heard yet that it
// does not any more goes on to answer with what it has, here as in Kafka.
func (w *world) coordinates(node int) bool {
	p, _ := w.offsets()
	w.mu.Lock()
	defer w.mu.Unlock()
	return p != nil && int(p.leader) == node
}

// offsetsLost is allLost for what was written to the offsets topic.
func (w *world) offsetsLost(v *evidence) bool {
	p, _ := w.offsets()
	w.mu.Lock()
	defer w.mu.Unlock()
	return p != nil && w.allLost(p, v)
}

func (w *world) topicGone(id metadata.UUID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.decided.topics[id]
	return t == nil || t.deleted
}

const (
	faultTime = 10 * time.Minute
	// healTime is how long a healed cluster may take to be whole again.
	healTime = 3 * time.Minute
)

// run is the whole simulation.
func (w *world) run() {
	defer w.end()
	for _, h := range w.hosts {
		h.start()
	}
	if !w.prepare() {
		return
	}
	if w.eligible {
		w.enableEligible()
	}
	w.startClients()
	w.startAdmin()
	end := time.Now().Add(faultTime)
	for time.Now().Before(end) && w.failure() == nil {
		time.Sleep(time.Duration(200+w.rng.IntN(2500)) * time.Millisecond)
		w.disturb()
		w.look(w.rng.IntN(40) == 0)
	}
	if w.failure() != nil {
		return
	}
	w.heal()
	time.Sleep(10 * time.Second)
	w.endLoad()
	w.converge()
}

func (w *world) look(whole bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.judge.look(whole); err != nil {
		w.failLocked(err)
	}
}

// prepare waits for the cluster and makes the topics.
func (w *world) prepare() bool {
	c := w.newClient("prepare", 99)
	defer c.close()
	for began := time.Now(); time.Since(began) < 2*time.Minute; {
		time.Sleep(time.Second)
		missing := 0
		for _, k := range w.kinds {
			w.look(false)
			if t := w.decided.names[k.name]; t == nil || len(t.partitions) < k.partitions {
				missing++
				_ = w.createTopic(c, k)
			}
		}
		if missing == 0 {
			return true
		}
	}
	w.fail(errors.New("the cluster did not come up"))
	return false
}

// enableEligible turns eligible leader replicas on.
func (w *world) enableEligible() {
	c := w.newClient("features", 98)
	defer c.close()
	for range 10 {
		req := kmsg.NewPtrUpdateFeaturesRequest()
		req.TimeoutMillis = 3000
		f := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
		f.Feature, f.MaxVersionLevel, f.UpgradeType = metadata.FeatureELR, 1, 1
		req.FeatureUpdates = append(req.FeatureUpdates, f)
		resp, err := c.ask(context.Background(), c.anyNode(), 5*time.Second, req)
		if err == nil && resp.(*kmsg.UpdateFeaturesResponse).ErrorCode == 0 {
			return
		}
		if r, ok := resp.(*kmsg.UpdateFeaturesResponse); ok && r.ErrorMessage != nil {
			w.lines.say("features: error %d, %s", r.ErrorCode, *r.ErrorMessage)
		}
		time.Sleep(time.Second)
	}
	w.fail(errors.New("eligible leader replicas cannot be turned on"))
}

func (w *world) createTopic(c *client, k *topicKind) error {
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis = 3000
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = k.name, int32(k.partitions), int16(k.replicas)
	set := func(name, value string) {
		one := kmsg.NewCreateTopicsRequestTopicConfig()
		one.Name, one.Value = name, &value
		t.Configs = append(t.Configs, one)
	}
	set("min.insync.replicas", fmt.Sprint(k.minISR))
	set("internal.segment.bytes", "20000")
	if k.unclean {
		set("unclean.leader.election.enable", "true")
	}
	if k.flush {
		set("flush.messages", "1")
	}
	req.Topics = append(req.Topics, t)
	resp, err := c.ask(context.Background(), c.anyNode(), 5*time.Second, req)
	if err != nil {
		return err
	}
	if r := resp.(*kmsg.CreateTopicsResponse); len(r.Topics) == 1 && r.Topics[0].ErrorCode != 0 {
		return fmt.Errorf("topic %s: error %d", k.name, r.Topics[0].ErrorCode)
	}
	return nil
}

// startClients begins the load.
func (w *world) startClients() {
	number := uint64(0)
	client := func() *client {
		number++
		return w.newClient(fmt.Sprintf("client-%d", number), number)
	}
	produce := func(kind int, acks int16, idempotent bool, pace time.Duration) {
		p := &producer{client: client(), kind: w.kinds[kind], acks: acks, idempotent: idempotent, number: number, pace: pace}
		w.ordered[number] = idempotent
		w.running.Go(func() { p.run(w.load) })
	}
	produce(0, -1, true, 400*time.Millisecond)
	produce(0, -1, true, 600*time.Millisecond)
	produce(0, 1, false, 900*time.Millisecond)
	produce(1, -1, true, 600*time.Millisecond)
	produce(1, 1, false, 600*time.Millisecond)
	produce(2, -1, true, 600*time.Millisecond)
	produce(3, -1, true, 900*time.Millisecond)
	for i, k := range []int{0, 1, 2, 3} {
		c := &consumer{client: client(), kind: w.kinds[k], group: fmt.Sprintf("group-%d", i), pace: 500 * time.Millisecond}
		w.running.Go(func() { c.run(w.load) })
	}
}

// startAdmin begins what operators and groups do.
func (w *world) startAdmin() {
	a := &admin{client: w.newClient("admin", 50)}
	w.running.Go(func() { a.run(w.load) })
	book := &ledger{state: map[int32]*committed{}}
	for n := range uint64(2) {
		m := &member{ledger: book, consumer: &consumer{client: w.newClient(fmt.Sprintf("member-%d", n), 60+n), kind: w.kinds[0], group: "members", pace: 900 * time.Millisecond}}
		w.running.Go(func() { m.run(w.load) })
	}
}

// heal ends all faults.
func (w *world) heal() {
	w.lines.say("healing")
	close(w.quiet)
	for _, h := range w.hosts {
		w.net.delay(h.id, 0)
		if l := h.now(); l != nil {
			l.lagging.Store(0)
			l.rotten.Store(0)
			if l.broken.Swap(nil) != nil {
				h.crash(l, vfs.LoseNothing, false, time.Second) // its directory stays offline until then
			}
		}
	}
}

// converge waits until all replicas are whole, and checks that they are the same.
func (w *world) converge() {
	why := ""
	for began := time.Now(); time.Since(began) < healTime; {
		time.Sleep(2 * time.Second)
		w.look(false)
		if w.failure() != nil {
			return
		}
		if why = w.notWhole(); why == "" {
			w.look(true)
			w.census()
			return
		}
	}
	w.fail(fmt.Errorf("not whole %s after all faults were over: %s", healTime, why))
}

// notWhole says what is missing, "" if nothing is.
func (w *world) notWhole() string {
	for _, h := range w.hosts {
		if l := h.now(); l == nil || !l.ready.Load() {
			return fmt.Sprintf("node %d is not ready", h.id)
		}
	}
	for _, t := range w.decided.topics {
		if t.deleted {
			continue
		}
		for _, p := range t.partitions {
			if p.leader < 0 || len(p.isr) != len(p.replicas) || len(p.adding) > 0 || len(p.removing) > 0 {
				return fmt.Sprintf("%s: leader %d, in sync %v of %v, adding %v, removing %v, eligible %v, last known %v", p, p.leader, p.isr, p.replicas, p.adding, p.removing, p.elr, p.lastKnown)
			}
			end := int64(-1)
			for _, id := range p.replicas {
				one, err := w.hosts[id-1].node().Replicas().PartitionByID(t.id, p.id)
				if err != nil {
					return fmt.Sprintf("%s on %d: %v", p, id, err)
				}
				pos := one.Positions()
				if end < 0 {
					end = pos.End
				}
				if one.Err() != nil || pos.End != end || pos.HighWatermark != end {
					return fmt.Sprintf("%s on %d: %+v, another's end is %d, error %v", p, id, pos, end, one.Err())
				}
			}
		}
	}
	return ""
}

// census compares the replicas of each partition, record by record, and counts: each promise is kept, each id is there once,
// and those of one producer are in order.
func (w *world) census() {
	for _, t := range w.decided.topics {
		if t.deleted || w.failure() != nil {
			continue
		}
		for _, p := range t.partitions {
			var first *mirror
			for _, id := range p.replicas {
				m := w.judge.mirrors[mirrorKey{w.hosts[id-1].now(), p}]
				if m == nil {
					w.fail(fmt.Errorf("census: %s on broker %d was not read", p, id))
					return
				}
				if first == nil {
					first = m
					continue
				}
				start := max(first.start, m.start)
				from := func(m *mirror) []entry {
					i, _ := slices.BinarySearchFunc(m.entries, start, func(e entry, o int64) int { return int(e.offset - o) })
					return m.entries[i:]
				}
				if !slices.Equal(from(first), from(m)) {
					w.fail(fmt.Errorf("census: %s differs between brokers %d and %d", p, first.l.h.id, id))
				}
			}
			for i := range p.evidence {
				v := &p.evidence[i]
				if e, ok := first.at(v.offset); (!ok || e.id != v.id) && v.offset >= first.start && !p.uncleanBetween(v.low, p.leaderEpoch) && !w.allLost(p, v) {
					w.fail(fmt.Errorf("census: %s: offset %d, %s in epoch %d, is not there", p, v.offset, v.what, v.low))
				}
			}
			if t.kind != nil {
				w.once(p, first)
			}
		}
	}
}

// once checks that no record is there twice, and that those of an idempotent producer are in their order. A batch that a
// producer gave up may come late.
func (w *world) once(p *partitionState, m *mirror) {
	w.mu.Lock()
	defer w.mu.Unlock()
	last, seen := map[uint64]uint64{}, map[uint64]int64{}
	for _, e := range m.entries {
		if before, twice := seen[e.id]; twice {
			w.failLocked(fmt.Errorf("P11: %s: record %x is at offset %d and at offset %d", p, e.id, before, e.offset))
			return
		}
		seen[e.id] = e.offset
		producer := e.id >> 40
		if !w.ordered[producer] || w.abandoned[e.id] {
			continue
		}
		if e.id <= last[producer] {
			w.failLocked(fmt.Errorf("P11: %s: record %x at offset %d comes after %x", p, e.id, e.offset, last[producer]))
			return
		}
		last[producer] = e.id
	}
}

// end stops everything and waits for it.
func (w *world) end() {
	w.endLoad()
	select {
	case <-w.quiet:
	default:
		close(w.quiet)
	}
	time.Sleep(time.Second)
	for _, h := range w.hosts {
		h.mu.Lock()
		l := h.life
		h.mu.Unlock()
		if l != nil {
			l.cancel()
		}
	}
	w.running.Wait()
}
