package cluster

import (
	"fmt"
	"slices"
	"time"

	"github.com/stelelog/stele/internal/replica"
)

// judge looks at every replica of every partition, and says what is wrong.
type judge struct {
	w       *world
	truth   map[place]known
	mirrors map[mirrorKey]*mirror
	buffer  []byte

	truncations, looks int
	lost, lostByPower  int // acknowledged or shown records that an unclean election, or the power of all replicas, has cost
}

// place is where records must be the same on all replicas (P4, P7).
type place struct {
	partition *partitionState
	offset    int64
	epoch     int32
}

type known struct {
	id        uint64
	crc       uint32
	before    int64 // the offset and epoch of the record before it; -1 where the log began here
	beforeIn  int32
	broker    int
	begins    bool // nothing is known of what was before
	brokerRun int
}

// mirror is the log of one replica as it was read last.
type mirror struct {
	l       *life
	p       *replica.Partition
	start   int64 // the log start seen last
	startIn int32 // the leader epoch in which it was seen
	entries []entry
	role    int32 // the leader epoch in which it was judged as a leader last
}

type mirrorKey struct {
	l *life
	p *partitionState
}

type entry struct {
	offset int64
	id     uint64
	crc    uint32
	epoch  int32
}

// evidence is a record that somebody was promised: it was acknowledged by the rules of acks=all, or a consumer has seen it.
type evidence struct {
	offset int64
	id     uint64
	// It was promised in a leader epoch of at least low and at most high.
	low, high int32
	what      string
	judgedIn  int32 // the leader epoch in which a leader was found to have it
	// isr was in sync then. When all of them have lost what was not synced since the record was written, so may the record
	// be; not so where each record is flushed before it is acknowledged.
	isr []int32
	at  time.Time // when it was written, or before
}

func newJudge(w *world) *judge {
	return &judge{w: w, truth: map[place]known{}, mirrors: map[mirrorKey]*mirror{}}
}

// end is the offset after the last record of the mirror.
func (m *mirror) end() int64 {
	if n := len(m.entries); n > 0 {
		return m.entries[n-1].offset + 1
	}
	return m.start
}

// at finds the record at offset.
func (m *mirror) at(offset int64) (entry, bool) {
	i, ok := slices.BinarySearchFunc(m.entries, offset, func(e entry, o int64) int { return int(e.offset - o) })
	if !ok {
		return entry{}, false
	}
	return m.entries[i], true
}

// look reads what is new in all logs, and checks it. whole: everything is read again.
func (j *judge) look(whole bool) error {
	j.looks++
	for key := range j.mirrors {
		if key.l.h.now() != key.l || key.p.topic.deleted {
			delete(j.mirrors, key)
		}
	}
	if err := j.w.decided.follow(); err != nil {
		return err
	}
	type leading struct {
		m    *mirror
		p    *partitionState
		role *replica.Role
		hw   int64
	}
	var leaders []leading
	for _, h := range j.w.hosts {
		l := h.now()
		if l == nil {
			continue
		}
		n := l.node.Load()
		if n == nil || n.Replicas() == nil {
			continue
		}
		for _, t := range j.w.decided.topics {
			if t.deleted {
				continue
			}
			for _, p := range t.partitions {
				one, err := n.Replicas().PartitionByID(t.id, p.id)
				if err != nil || one.Err() != nil {
					continue
				}
				role := one.Role()
				m, pos, err := j.read(l, p, one, whole)
				if err != nil {
					return fmt.Errorf("node %d, %s, %s in epoch %d: %w", h.id, p, role.Kind, role.LeaderEpoch, err)
				}
				if m != nil && l.ready.Load() && role.Kind == replica.RoleLeader && one.Role() == role {
					leaders = append(leaders, leading{m, p, role, pos.HighWatermark})
				}
			}
		}
	}
	if err := j.w.decided.follow(); err != nil {
		return err
	}
	for _, x := range leaders {
		if err := j.leads(x.m, x.p, x.role, x.hw); err != nil {
			return fmt.Errorf("node %d, leader of %s in epoch %d: %w", x.m.l.h.id, x.p, x.role.LeaderEpoch, err)
		}
	}
	return nil
}

// read brings the mirror of a replica up to date. nil: the replica went away meanwhile.
func (j *judge) read(l *life, p *partitionState, one *replica.Partition, whole bool) (*mirror, replica.Positions, error) {
	key := mirrorKey{l, p}
	m := j.mirrors[key]
	if m == nil || m.p != one {
		m = &mirror{l: l, p: one, role: -1}
		j.mirrors[key] = m
	}
	pos := one.Positions()
	if !(pos.LogStart <= pos.HighWatermark && pos.LastStable <= pos.HighWatermark && pos.HighWatermark <= pos.End) {
		return nil, pos, fmt.Errorf("P2: %+v", pos)
	}
	start := m.start
	m.start = pos.LogStart
	if whole {
		m.entries = m.entries[:0]
	}
	// What was read stays unless it was cut: the record before the end then has another epoch.
	had := len(m.entries)
	for n := len(m.entries); n > 0; n-- {
		last := m.entries[n-1]
		if last.offset < pos.End {
			raw, err := one.ReadLog(last.offset, j.space())
			if last.offset < pos.LogStart || err == nil && same(raw, last, p.topic.kind != nil) {
				break
			}
		}
		m.entries = m.entries[:n-1]
	}
	if len(m.entries) < had {
		j.truncations++
	}
	// An empty log may take the whole of a batch that begins below it, and one that was cut may begin again anywhere.
	empty := len(m.entries) == 0 && pos.End >= start && start-pos.LogStart > 3 && j.w.eligible && !p.uncleanBetween(m.startIn-2, p.leaderEpoch)
	m.startIn = p.leaderEpoch
	if pos.LogStart < start && (len(m.entries) > 0 || empty) {
		return nil, pos, fmt.Errorf("the log start has moved back from %d to %d, and nothing was cut", start, pos.LogStart)
	}
	if cut := slices.IndexFunc(m.entries, func(e entry) bool { return e.offset >= pos.LogStart }); cut > 0 {
		m.entries = append(m.entries[:0], m.entries[cut:]...)
	} else if cut < 0 {
		m.entries = m.entries[:0]
	}
	for {
		raw, err := one.ReadLog(max(m.end(), pos.LogStart), j.space())
		if err != nil {
			return nil, pos, nil // cut, closed or moved while it was read: next time
		}
		if len(raw) == 0 {
			return m, pos, nil
		}
		if err := readBatches(raw, p.topic.kind != nil, func(b *readBatch) error { return j.take(m, p, b) }); err != nil {
			return nil, pos, err
		}
	}
}

var errEnough = fmt.Errorf("enough")

// same says whether the record is still there.
func same(raw []byte, e entry, ids bool) (is bool) {
	_ = readBatches(raw, ids, func(b *readBatch) error {
		for _, r := range b.records {
			if r.offset == e.offset {
				is = b.epoch == e.epoch && b.crc == e.crc && r.id == e.id
			}
		}
		return errEnough
	})
	return is
}

func (j *judge) space() []byte {
	if j.buffer == nil {
		j.buffer = make([]byte, 0, 64<<10)
	}
	return j.buffer[:0]
}

// take adds a batch to a mirror (P1), and holds it against what other replicas have there (P4, P7).
func (j *judge) take(m *mirror, p *partitionState, b *readBatch) error {
	if len(b.records) == 0 {
		return nil
	}
	for _, r := range b.records {
		if r.offset < m.end() {
			continue // the batch began below the log start, or is known
		}
		e := entry{offset: r.offset, id: r.id, crc: b.crc, epoch: b.epoch}
		k := known{id: e.id, crc: e.crc, before: -1, beforeIn: -1, broker: m.l.h.id, brokerRun: m.l.number, begins: len(m.entries) == 0}
		if n := len(m.entries); n > 0 {
			last := m.entries[n-1]
			if e.epoch < last.epoch {
				return fmt.Errorf("P1: epoch %d at offset %d after epoch %d at offset %d", e.epoch, e.offset, last.epoch, last.offset)
			}
			if last.offset+1 != e.offset {
				return fmt.Errorf("P1: offset %d follows %d", e.offset, last.offset)
			}
			k.before, k.beforeIn = last.offset, last.epoch
		}
		at := place{p, e.offset, e.epoch}
		old, seen := j.truth[at]
		switch {
		case !seen || old.begins && !k.begins && old.id == k.id && old.crc == k.crc:
			j.truth[at] = k
		case old.id != k.id || old.crc != k.crc:
			return fmt.Errorf("P4: offset %d of epoch %d holds record %x (batch %08x), and record %x (batch %08x) on node %d.%d", e.offset, e.epoch, k.id, k.crc, old.id, old.crc, old.broker, old.brokerRun)
		case !k.begins && !old.begins && (old.before != k.before || old.beforeIn != k.beforeIn):
			return fmt.Errorf("P4: before offset %d of epoch %d stands offset %d of epoch %d, and offset %d of epoch %d on node %d.%d", e.offset, e.epoch, k.before, k.beforeIn, old.before, old.beforeIn, old.broker, old.brokerRun)
		}
		m.entries = append(m.entries, e)
	}
	return nil
}

// leads checks a leader: that it is the one (P3), that it has what was promised (P5), and that the in-sync replicas have
// what it shows (P6).
func (j *judge) leads(m *mirror, p *partitionState, role *replica.Role, hw int64) error {
	if leader, ok := p.leaders[role.LeaderEpoch]; ok && int(leader) != m.l.h.id {
		return fmt.Errorf("P3: the controllers have made broker %d leader of that epoch", leader)
	} else if !ok {
		return nil // decided, and not read off the log yet
	}
	for i := range p.evidence {
		if err := j.has(m, p, &p.evidence[i], role.LeaderEpoch, hw); err != nil {
			return err
		}
	}
	p.evidence = slices.DeleteFunc(p.evidence, func(e evidence) bool { return e.what == "" })
	if role.LeaderEpoch != p.leaderEpoch || p.topic.deleted {
		return nil
	}
	for _, id := range p.isr {
		if int(id) == m.l.h.id || !slices.Contains(role.ISR, id) {
			continue
		}
		l := j.w.hosts[id-1].now()
		if l == nil || !l.ready.Load() {
			continue // before it is registered, what it has may be less than the controllers believe
		}
		one, err := l.node.Load().Replicas().PartitionByID(p.topic.id, p.id)
		if err != nil || one.Err() != nil {
			continue
		}
		before := one.Role()
		end := one.Positions().End
		if before.Kind != replica.RoleFollower || before.LeaderEpoch != role.LeaderEpoch || one.Role() != before || !slices.Contains(before.ISR, id) {
			continue
		}
		if end < hw {
			return fmt.Errorf("P6: high watermark %d, and the log of broker %d, in sync by %v, ends at %d", hw, id, p.isr, end)
		}
	}
	return nil
}

// has checks one promise against a leader's log.
func (j *judge) has(m *mirror, p *partitionState, v *evidence, epoch int32, hw int64) error {
	if v.judgedIn >= epoch || v.offset < m.start {
		return nil
	}
	e, ok := m.at(v.offset)
	if ok && e.id == v.id {
		if v.offset < hw {
			// It is committed in this epoch too: an unclean election before does not excuse its loss any more.
			v.low, v.high = max(v.low, epoch), max(v.high, epoch)
			v.judgedIn = epoch
		}
		return nil
	}
	if epoch <= v.high {
		return nil // by a leader that was there already: its log may be cut yet
	}
	if p.uncleanBetween(v.low, epoch) {
		j.lost++
		v.what = ""
		return nil
	}
	if j.w.allLost(p, v) {
		j.lostByPower++
		v.what = ""
		return nil
	}
	found := "nothing"
	if ok {
		found = fmt.Sprintf("record %x of epoch %d", e.id, e.epoch)
	}
	return fmt.Errorf("P5: offset %d holds %s where record %x was %s in epoch %d; log start %d, end %d, unclean elections %v", v.offset, found, v.id, v.what, v.low, m.start, m.end(), p.uncleanIn)
}
