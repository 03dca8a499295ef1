package consumer

import "time"

// lookupStep is what a lookup asks next.
type lookupStep int8

const (
	stepStart lookupStep = iota
	stepEnd
	stepCheck // the position's epoch, when it is above the end
	stepTime
)

// lookup is the search for a position, or for the reason why one is out of range: first the ends of the log, both at
// one leader, then what they do not tell.
type lookup struct {
	cause  Cause // "": an offset is out of range, and why has to be found out
	policy ResetPolicy
	step   lookupStep

	start, end           Offset
	startEpoch, endEpoch Epoch
	unchecked            bool // the broker cannot check epochs
	waited               bool // for a record that is young enough
}

// next is the question of this step; asked is the epoch of a check.
func (l *lookup) next(now time.Time, asked int32) (kind askKind, timestamp int64, epoch int32) {
	switch l.step {
	case stepStart:
		return askStart, -2, 0
	case stepEnd:
		return askEnd, -1, 0
	case stepTime:
		return askTime, now.Add(-l.policy.back).UnixMilli(), 0
	}
	return askEpochEnd, 0, asked
}

// restart asks all again: answers of different leaders do not fit together.
func (l *lookup) restart() {
	l.step, l.start, l.end, l.unchecked = stepStart, Offset{}, Offset{}, false
}

func (l *lookup) take(a answer) {
	switch l.step {
	case stepStart:
		l.start, l.startEpoch = fromWire(a.offset), fromWire(a.epoch)
	case stepEnd:
		l.end, l.endEpoch = fromWire(a.offset), fromWire(a.epoch)
	case stepTime:
	}
}

// begin starts a lookup. A position that is only looked into keeps standing until the cause is known.
func (m *machine) begin(cause Cause, policy ResetPolicy) {
	m.lookup = &lookup{cause: cause, policy: policy}
	m.state = awaitReset
	if cause == "" {
		m.state = awaitValidation
	}
	m.rewind()
	m.err = nil
	m.generation++
	m.forget()
}

// decide goes on after an answer, or after the lack of one.
func (m *machine) decide(now time.Time, eff *effects) {
	l := m.lookup
	start, startKnown := l.start.Get()
	end, endKnown := l.end.Get()
	switch {
	case l.step == stepStart && startKnown:
		l.step = stepEnd
	case l.step <= stepEnd && !(startKnown && endKnown):
		l.restart()
		m.backoff(now)
	case l.step == stepTime:
		// The answer is for timed.
	case l.cause != "":
		m.byPolicy(l.cause, now, eff)
	case m.pos.Offset < start:
		m.byPolicy(CauseBelowLogStart, now, eff)
	case m.pos.Offset > end && m.pos.Epoch.known && !l.unchecked, m.pos.Offset <= end && m.t.lastEpoch && m.pos.Epoch.known && !l.unchecked:
		l.step = stepCheck
		m.asked, m.limit = orMinus(m.pos.Epoch), m.pos.Offset
	case m.pos.Offset > end:
		m.byPolicy(CauseAboveLogEnd, now, eff)
	default:
		m.transient(now, eff)
	}
}

// transient keeps a position that the leader refuses although it lies within the log, or is borne out by its epochs:
// the high watermark, or a replica, lags behind. After a while it is an error.
func (m *machine) transient(now time.Time, eff *effects) {
	l := m.lookup
	m.lookup = nil
	m.state = fetching
	m.backoff(now)
	if m.refused.IsZero() {
		m.refused = now
	} else if now.Sub(m.refused) >= m.t.transientLimit {
		m.refused = time.Time{}
		eff.raise = &OffsetOutOfRangeError{TopicPartition: m.tp, Position: m.pos, LogStart: l.start, LogEnd: l.end}
	}
}

// byPolicy goes where the policy says, with the ends of the log known.
func (m *machine) byPolicy(cause Cause, now time.Time, eff *effects) {
	l := m.lookup
	l.cause = cause
	eff.discard = true
	start, end := orMinus(l.start), orMinus(l.end)
	first, last := Position{start, l.startEpoch}, Position{end, l.endEpoch}
	switch l.policy.kind {
	case resetEarliest:
		m.reset(first, now, eff)
	case resetLatest:
		m.reset(last, now, eff)
	case resetNearest:
		// What was cut at an unknown place, and a topic made anew, are read from the start: nothing is skipped.
		if cause == CauseAboveLogEnd {
			m.reset(last, now, eff)
		} else {
			m.reset(first, now, eff)
		}
	case resetByDuration:
		l.step = stepTime
		m.state = awaitReset
	case resetNone:
		switch {
		case cause == CauseNoCommit:
			m.fail(&NoOffsetError{m.tp})
		case cause == CauseTruncated || cause == CauseTopicRecreated:
			m.fail(&LogTruncationError{TopicPartition: m.tp, Position: m.pos, TopicRecreated: cause == CauseTopicRecreated, LogStart: l.start, LogEnd: l.end})
		default:
			m.fail(&OffsetOutOfRangeError{TopicPartition: m.tp, Position: m.pos, LogStart: l.start, LogEnd: l.end})
		}
	}
}

// timed takes the answer to a lookup by time. Without a record it waits: the end would pass over what is written
// between two questions.
func (m *machine) timed(a answer, now time.Time, eff *effects) {
	l := m.lookup
	if a.offset >= 0 {
		m.reset(Position{a.offset, fromWire(a.epoch)}, now, eff)
		return
	}
	m.retryAt = now.Add(m.t.requestTimeout)
	if !l.waited {
		l.waited = true
		eff.events = append(eff.events, m.event(CauseNoRecordYet, now))
	}
}

// reset moves the position to one that was looked up.
func (m *machine) reset(to Position, now time.Time, eff *effects) {
	ev := m.event(m.lookup.cause, now)
	ev.To = Known(to)
	m.span(&ev)
	m.history.clear()
	m.place(to, false)
	eff.discard = true
	eff.events = append(eff.events, ev)
}
