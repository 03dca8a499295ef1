package consumer

import (
	"time"
)

// state is what may be done with a partition's position.
type state int8

const (
	initializing    state = iota // no position yet: the committed offset is asked for
	awaitReset                   // no position: the log's ends are asked for
	awaitValidation              // a position that has to be checked before it is used
	fetching                     // a position that may be fetched from and committed
	failed                       // a position that needs a Seek
)

// leaderAndEpoch is who leads a partition, as far as is known.
type leaderAndEpoch struct {
	node  int32 // -1: nobody
	epoch Epoch
}

// tuning is what a machine has to know of the consumer's options.
type tuning struct {
	policy          ResetPolicy
	group           string
	commits         bool // there is a group to ask for a committed offset
	retryBackoff    time.Duration
	retryBackoffMax time.Duration
	requestTimeout  time.Duration
	metadataMaxAge  time.Duration
	transientLimit  time.Duration // how long an offset within the log may be refused
	lastEpoch       bool          // fetches carry the position's epoch
}

// machine is the position of one partition and what may happen to it. It is pure: events and answers go in by its
// methods with the time, questions come out of want and fetchable, and all else that follows is in the effects. It
// belongs to one goroutine at a time.
type machine struct {
	tp TopicPartition
	t  *tuning

	state  state
	has    bool     // there is a position
	pos    Position // of what was consumed
	known  bool     // its epoch is that of a consumed batch, not of a lookup
	ahead  Position // where fetching goes on: pos, and what is buffered above it
	leader leaderAndEpoch
	id     [16]byte // topic id, zero when unknown
	// confirmed is how often the metadata repeated a leader epoch that is older than the position's.
	confirmed int

	history   history
	committed Optional[Position] // as it stands at the coordinator, as far as is known

	replica      int32 // to fetch from instead of the leader, -1 none
	replicaUntil time.Time
	stalled      bool // fetching stopped at ahead; it begins again when all below it is consumed

	asked int32 // by a validation: the epoch to ask about, and how far the histories may agree
	limit int64

	lookup *lookup

	// generation counts the moves: what was fetched before one is not used after it.
	generation uint64
	flight     uint64 // the question under way, 0 none
	questions  uint64

	retryAt  time.Time
	attempts int
	refused  time.Time // since when an offset within the log is refused; zero: it is not
	err      error     // of failed
}

// effects is what follows from an event.
type effects struct {
	refresh bool         // the metadata is, or may be, out of date
	events  []ResetEvent // moves, in order
	raise   error        // for Poll to return once; the error of a failed machine is returned until it is mended
	discard bool         // what is buffered must not be handed out
}

func newMachine(tp TopicPartition, t *tuning) *machine {
	return &machine{tp: tp, t: t, leader: leaderAndEpoch{node: -1}, replica: -1}
}

// askKind is a kind of question.
type askKind int8

const (
	askCommitted askKind = iota // of the coordinator
	askStart                    // ListOffsets -2
	askEnd                      // ListOffsets -1
	askTime                     // ListOffsets by time
	askEpochEnd                 // OffsetForLeaderEpoch
)

// question is one that the machine wants answered.
type question struct {
	kind      askKind
	number    uint64
	node      int32 // the leader; not for askCommitted
	current   Epoch // the leader's epoch
	epoch     int32 // for askEpochEnd
	timestamp int64 // for the others
}

// answer is the reply to a question.
type answer struct {
	number      uint64
	err         error // no reply: the network, or a broker that is not known
	code        int16
	offset      int64
	epoch       int32
	timestamp   int64
	unsupported bool // the broker does not know the request in a version that can be used
	consumed    bool // askCommitted: the epoch is marked as that of a consumed batch
}

// want is the next question, if there is one to ask now; otherwise until says when to look again, zero for not before
// something happens.
func (m *machine) want(now time.Time) (q question, ok bool, until time.Time) {
	if m.flight != 0 || m.state == failed {
		return question{}, false, time.Time{}
	}
	if m.state == initializing && !m.t.commits {
		m.begin(CauseNoCommit, m.t.policy)
	}
	if m.state == fetching {
		if now.Before(m.retryAt) {
			return question{}, false, m.retryAt
		}
		return question{}, false, time.Time{}
	}
	q = question{node: m.leader.node, current: m.leader.epoch}
	switch {
	case m.state == initializing:
		q.kind = askCommitted
	case m.leader.node < 0 || m.outdated():
		return question{}, false, time.Time{}
	case m.lookup != nil:
		q.kind, q.timestamp, q.epoch = m.lookup.next(now, m.asked)
	default:
		q.kind, q.epoch = askEpochEnd, m.asked
	}
	if now.Before(m.retryAt) {
		return question{}, false, m.retryAt
	}
	m.questions++
	m.flight, q.number = m.questions, m.questions
	return q, true, time.Time{}
}

// fetchTag is what a fetch of the partition was made with; its result is judged by it.
type fetchTag struct {
	node       int32
	leader     bool // the node was asked as the leader
	current    Epoch
	offset     int64
	last       Epoch // LastFetchedEpoch
	generation uint64
}

// fetchable is how to fetch the partition now, if it may be.
func (m *machine) fetchable(now time.Time) (fetchTag, bool) {
	if m.state != fetching || m.leader.node < 0 || m.outdated() || now.Before(m.retryAt) {
		return fetchTag{}, false
	}
	if m.stalled {
		if m.ahead.Offset != m.pos.Offset {
			return fetchTag{}, false
		}
		m.stalled = false
	}
	tag := fetchTag{node: m.leader.node, leader: true, current: m.leader.epoch, offset: m.ahead.Offset, generation: m.generation}
	if m.replica >= 0 {
		if now.Before(m.replicaUntil) {
			tag.node, tag.leader = m.replica, false
		} else {
			m.replica = -1
		}
	}
	if m.t.lastEpoch {
		tag.last = m.ahead.Epoch
	}
	return tag, true
}

// outdated says that the position is of a later epoch than the leader that is known: an older leader would not know the
// epoch, and would seem to have lost it. Metadata that says the same again and again is believed.
func (m *machine) outdated() bool {
	epoch, ok := m.pos.Epoch.Get()
	current, known := m.leader.epoch.Get()
	return m.has && ok && known && epoch > current && m.confirmed < confirmations
}

// confirmations is how often metadata has to repeat an epoch older than a position's.
const confirmations = 3

// usable says whether there is a position that may be committed.
func (m *machine) usable() bool { return m.has && m.state == fetching }

func (m *machine) backoff(now time.Time) {
	wait := m.t.retryBackoff << min(m.attempts, 10)
	m.attempts++
	m.retryAt = now.Add(min(wait, m.t.retryBackoffMax))
}

func (m *machine) settled() { m.attempts, m.retryAt = 0, time.Time{} }

// learn takes what the metadata says of the partition: a leader that is not older than the one before it.
func (m *machine) learn(leader leaderAndEpoch, id [16]byte, now time.Time) (eff effects) {
	recreated := m.id != id && m.id != [16]byte{} && id != [16]byte{}
	if id != [16]byte{} {
		m.id = id
	}
	if !recreated && leader == m.leader {
		if m.outdated() {
			m.confirmed++
		}
		return eff
	}
	m.leader, m.replica, m.confirmed = leader, -1, 0
	m.settled()
	if m.lookup != nil {
		m.lookup.restart()
		m.forget()
	}
	switch {
	case recreated && m.has && m.state != failed:
		eff.discard = true
		m.begin(CauseTopicRecreated, m.t.policy)
	case m.state == awaitValidation && m.lookup == nil, m.state == fetching:
		eff.discard = m.check()
	}
	return eff
}

// forget makes the answer to a question under way be ignored.
func (m *machine) forget() { m.flight = 0 }

// check begins to check the position, if it can be; it says whether it has to be.
func (m *machine) check() bool {
	m.forget()
	epoch, ok := m.pos.Epoch.Get()
	if !ok || !m.leader.epoch.known {
		m.state = fetching
		return false
	}
	m.state, m.asked, m.limit = awaitValidation, epoch, m.pos.Offset
	m.ahead, m.stalled = m.pos, false
	return true
}

// place puts the position somewhere; all that was fetched before is void.
func (m *machine) place(to Position, known bool) {
	m.has, m.pos, m.ahead, m.known = true, to, to, known
	m.lookup, m.err, m.stalled, m.refused = nil, nil, false, time.Time{}
	m.state = fetching
	m.generation++
	m.forget()
	m.settled()
}

// seek puts the position where the program wants it; one with an epoch is checked first.
func (m *machine) seek(to Position, now time.Time) (eff effects) {
	ev := m.event(CauseSeek, now)
	ev.To = Known(to)
	m.span(&ev)
	if first, ok := m.history.first(); ok && to.Offset >= first.start && to.Offset <= m.pos.Offset {
		m.history.cut(to.Offset)
	} else {
		m.history.clear()
	}
	m.place(to, false)
	m.check()
	eff.discard = true
	if ev.Moved() {
		eff.events = append(eff.events, ev)
	}
	return eff
}

// seekByPolicy puts the position where a policy says.
func (m *machine) seekByPolicy(policy ResetPolicy) (eff effects) {
	m.begin(CauseSeek, policy)
	return effects{discard: true}
}

// seekNearest goes to the place nearest to the position that is in the log and has the history that was consumed.
func (m *machine) seekNearest(now time.Time) (eff effects) {
	eff.discard = true
	cut, ok := m.err.(*LogTruncationError)
	switch {
	case ok && cut.Divergent.known:
		at, _ := cut.Divergent.Get()
		m.lookup = &lookup{cause: CauseTruncated, policy: Nearest, start: cut.LogStart, end: cut.LogEnd}
		m.part(at, cut.AtMost, now, &eff)
	case ok && cut.TopicRecreated:
		m.begin(CauseTopicRecreated, Nearest)
	case ok:
		m.begin(CauseTruncated, Nearest)
	case m.has:
		m.begin("", Nearest)
	default:
		m.begin(CauseNoCommit, Nearest)
	}
	return eff
}

// restore begins at a committed position.
func (m *machine) restore(to Position, consumed bool) {
	m.committed = Known(to)
	m.history.clear()
	m.place(to, consumed)
	m.check()
}

// deliver notes that the program was given records of one batch, or that there were none to give, up to an offset. It
// is ignored after a move.
func (m *machine) deliver(generation uint64, epoch int32, from, to int64) {
	if generation != m.generation || from != m.pos.Offset || to <= from {
		return
	}
	m.pos = Position{Offset: to, Epoch: fromWire(epoch)}
	m.known = true
	if epoch >= 0 {
		m.history.assign(epoch, from)
	}
	if m.ahead.Offset < to {
		m.ahead = m.pos
	}
	if m.state == awaitValidation && m.lookup == nil {
		m.check() // of the new position; the answer about the old one says too little
	}
}

// rewind makes fetching go on at the position again: what was fetched above it is gone.
func (m *machine) rewind() { m.ahead, m.stalled = m.pos, false }

// fetched is the result of a fetch of the partition.
type fetched struct {
	code      int16
	records   bool
	next      Position // after the last batch, when there are records
	diverging Optional[Position]
	preferred int32 // replica to read from, -1 none
}

// take judges the result of a fetch made with a tag; it says whether the records may be buffered.
func (m *machine) take(tag fetchTag, f fetched, now time.Time) (use bool, eff effects) {
	if m.state != fetching || tag.generation != m.generation || tag.offset != m.ahead.Offset || tag.current != m.leader.epoch || tag.leader && tag.node != m.leader.node {
		return false, eff
	}
	ahead := m.ahead.Offset != m.pos.Offset
	switch at, diverges := f.diverging.Get(); {
	case f.code == codeNone && diverges && ahead:
		m.stalled = true
	case f.code == codeNone && diverges:
		m.asked, m.limit = orMinus(tag.last), m.pos.Offset
		m.state = awaitValidation
		m.answered(answer{offset: at.Offset, epoch: orMinus(at.Epoch)}, now, &eff)
	case f.code == codeNone:
		m.settled()
		m.refused = time.Time{}
		if f.records {
			m.ahead = f.next
			return true, eff
		}
		if tag.leader && f.preferred >= 0 && f.preferred != m.leader.node {
			m.replica, m.replicaUntil = f.preferred, now.Add(m.t.metadataMaxAge)
		}
	case f.code == codeOffsetOutOfRange && !tag.leader:
		m.replica = -1
	case f.code == codeOffsetOutOfRange && ahead:
		m.stalled = true
	case f.code == codeOffsetOutOfRange:
		m.begin("", m.t.policy)
	case f.code == codeUnknownLeaderEpoch:
		m.backoff(now)
	case f.code == codeCorruptMessage:
		m.backoff(now)
		eff.raise = &CorruptRecordError{TopicPartition: m.tp, Offset: m.ahead.Offset, Err: codeError(f.code)}
	case retriable(f.code):
		m.replica = -1
		m.backoff(now)
		eff.refresh = true
	default:
		m.backoff(now)
		eff.raise = &PartitionError{TopicPartition: m.tp, Offset: Known(m.ahead.Offset), Err: codeError(f.code)}
	}
	return false, eff
}

// damaged says that bytes at an offset cannot be read. The position stays before them.
func (m *machine) damaged(offset int64, err error, now time.Time) (eff effects) {
	m.backoff(now)
	eff.raise = &CorruptRecordError{TopicPartition: m.tp, Offset: offset, Err: err}
	return eff
}

// reply takes the answer to a question.
func (m *machine) reply(a answer, now time.Time) (eff effects) {
	if a.number != m.flight || m.flight == 0 {
		return eff
	}
	m.flight = 0
	if m.state == initializing {
		m.found(a, now, &eff)
		return eff
	}
	switch {
	case a.unsupported && m.lookup == nil:
		m.state = fetching
	case a.unsupported:
		m.lookup.unchecked = true
		m.decide(now, &eff)
	case a.err != nil || a.code != codeNone && retriable(a.code):
		// An unknown epoch is one that the broker has not heard of yet: asking for metadata would not help it.
		eff.refresh = a.code != codeUnknownLeaderEpoch
		m.backoff(now)
		if m.lookup != nil {
			m.lookup.restart()
		}
	case a.code != codeNone:
		m.backoff(now)
		eff.raise = &PartitionError{TopicPartition: m.tp, Offset: m.offset(), Err: codeError(a.code)}
	case m.lookup != nil && m.lookup.step == stepTime:
		m.settled()
		m.timed(a, now, &eff)
	case m.lookup != nil && m.lookup.step != stepCheck:
		m.settled()
		m.lookup.take(a)
		m.decide(now, &eff)
	default:
		m.settled()
		m.answered(a, now, &eff)
	}
	return eff
}

func (m *machine) offset() Offset {
	if !m.has {
		return Offset{}
	}
	return Known(m.pos.Offset)
}

// found takes the coordinator's answer about the committed offset.
func (m *machine) found(a answer, now time.Time, eff *effects) {
	switch {
	case a.err != nil || a.code != codeNone && retriable(a.code):
		m.backoff(now)
	case a.code != codeNone:
		m.backoff(now)
		eff.raise = &PartitionError{TopicPartition: m.tp, Err: codeError(a.code)}
	case a.offset < 0:
		m.settled()
		m.begin(CauseNoCommit, m.t.policy)
		if m.t.policy.kind == resetNone {
			m.fail(&NoOffsetError{m.tp})
		}
	default:
		m.restore(Position{a.offset, fromWire(a.epoch)}, a.consumed)
	}
}

// answered takes a leader's answer about an epoch, of a validation or of a lookup that checks.
func (m *machine) answered(a answer, now time.Time, eff *effects) {
	r, at, atMost := judge(m.pos, m.known, &m.history, m.asked, m.limit, a.offset, a.epoch)
	switch r {
	case askBelow:
		m.asked, m.limit = orMinus(at.Epoch), at.Offset
	case stands, unfamiliar:
		if m.lookup != nil {
			m.transient(now, eff)
			return
		}
		m.state = fetching
		if r == unfamiliar {
			ev := m.event(CauseHistoryDiffers, now)
			ev.To, ev.AtMost = Known(m.pos), true
			eff.events = append(eff.events, ev)
		}
	case lost:
		eff.discard = true
		if m.lookup != nil {
			m.byPolicy(CauseTruncated, now, eff)
			return
		}
		m.begin(CauseTruncated, m.t.policy)
		if m.t.policy.kind == resetNone {
			m.fail(&LogTruncationError{TopicPartition: m.tp, Position: m.pos})
		}
	case parts:
		m.part(at, atMost, now, eff)
	}
}

// part goes to where the histories part, or fails there without a policy.
func (m *machine) part(at Position, atMost bool, now time.Time, eff *effects) {
	eff.discard = true
	ev := m.event(CauseTruncated, now)
	if ev.Policy.kind == resetNone {
		m.fail(&LogTruncationError{TopicPartition: m.tp, Position: m.pos, Divergent: Known(at), AtMost: atMost, LogStart: ev.LogStart, LogEnd: ev.LogEnd})
		return
	}
	ev.To, ev.Divergent, ev.AtMost = Known(at), Known(at.Offset), atMost
	m.span(&ev)
	m.history.cut(at.Offset)
	m.place(at, m.history.epochBefore(at.Offset) == at.Epoch)
	eff.events = append(eff.events, ev)
}

func (m *machine) fail(err error) {
	m.state, m.err, m.lookup = failed, err, nil
	m.ahead = m.pos
	m.generation++
	m.forget()
}

// event is one about the position as it stands.
func (m *machine) event(cause Cause, now time.Time) ResetEvent {
	ev := ResetEvent{Time: now, Group: m.t.group, TopicPartition: m.tp, Cause: cause, Policy: m.t.policy, Leader: m.leader.node, LeaderEpoch: m.leader.epoch}
	if m.has {
		ev.From = Known(m.pos)
	}
	if m.lookup != nil {
		ev.LogStart, ev.LogEnd, ev.Policy = m.lookup.start, m.lookup.end, m.lookup.policy
	}
	return ev
}

// span counts what a move passes over or repeats.
func (m *machine) span(ev *ResetEvent) {
	to, _ := ev.To.Get()
	from, ok := ev.From.Get()
	switch start, known := ev.LogStart.Get(); {
	case !ok && known:
		ev.Skipped = max(0, to.Offset-start)
	case ok:
		ev.Skipped, ev.Repeated = max(0, to.Offset-from.Offset), max(0, from.Offset-to.Offset)
	}
}
