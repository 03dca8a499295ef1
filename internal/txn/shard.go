package txn

import (
	"slices"
	"time"

	"github.com/stelelog/stele/internal/shard"
)

// Config is what a Shard is set to. The zero value of each duration means its default.
type Config struct {
	// MaxTimeout is the largest transaction.timeout.ms that a producer may ask for. Default 15 min.
	MaxTimeout time.Duration

	// IDExpiration is how long an id is kept that nobody uses. Default 7 days.
	IDExpiration time.Duration

	// AbortInterval is the time between two looks for transactions that ran out of time. Default 10 s.
	AbortInterval time.Duration

	// ExpiryInterval is the time between two looks for ids to forget. Default 1 h.
	ExpiryInterval time.Duration

	// NextProducerID gives a producer id that was never given before, and false when none is at hand just now. It
	// must not wait. It must be set.
	NextProducerID func() (int64, bool)
}

func (c Config) withDefaults() Config {
	orDuration := func(d *time.Duration, def time.Duration) {
		if *d <= 0 {
			*d = def
		}
	}
	orDuration(&c.MaxTimeout, 15*time.Minute)
	orDuration(&c.IDExpiration, 7*24*time.Hour)
	orDuration(&c.AbortInterval, 10*time.Second)
	orDuration(&c.ExpiryInterval, time.Hour)
	return c
}

// retryPause is how long a completion that could not be written waits.
const retryPause = 100 * time.Millisecond

// Effects is what one event leads to.
type Effects = shard.Effects[*Record]

// A Shard is the transaction coordinator of one partition of __transaction_state. The package comment says how it is
// to be driven. It must be used by one goroutine at a time; none of it survives a crash but what is replayed from the log.
type Shard struct {
	config  Config
	level   int16 // of transaction.version, finalized
	ids     *shard.Table[string, *Metadata]
	journal shard.Journal

	// What follows is soft: a revert leaves it alone.
	loaded  bool
	sending map[string]*sending // ids whose markers are out, or who are to be completed
	outbox  []Marker
	// due are completions to be written, by when.
	due          []completion
	nextAbort    time.Time
	nextExpiry   time.Time
	writes       map[shard.WriteID][]completion // completions that are being written
	lastWrite    shard.WriteID
	doneCommits  uint64
	doneAborts   uint64
	timedOut     uint64
	givenUpTotal uint64
}

// completion is an id whose markers are written: its record is due at this time.
type completion struct {
	at time.Time
	id string
	of *sending
}

// NewShard makes an empty shard, ready to replay its log.
func NewShard(config Config) *Shard {
	s := &Shard{config: config.withDefaults(), sending: map[string]*sending{}, writes: map[shard.WriteID][]completion{}}
	s.ids = shard.NewTable(shard.Watch[string, *Metadata]{Settled: s.settled})
	return s
}

// SetLevel says at which level transaction.version is finalized. It may change at any time.
func (s *Shard) SetLevel(level int16) { s.level = level }

// Replay applies one record of the log at its offset: while loading, and at once for each record that the
// shard's effects had appended.
func (s *Shard) Replay(offset, _ int64, rec *Record) {
	s.journal.Advance(offset)
	if rec.Value == nil {
		s.ids.Remove(rec.ID)
	} else {
		s.ids.Set(rec.ID, rec.Value)
	}
	s.journal.Note(offset, s.ids, nil)
}

// ReplayEndTxn does nothing: there are no transactions in __transaction_state.
func (s *Shard) ReplayEndTxn(offset, _ int64, _ bool) { s.journal.Advance(offset) }

// Revert takes back every record replayed at or above offset, which must not be below what was committed.
// Finish follows for each write that was among them.
func (s *Shard) Revert(offset int64) {
	if mutantRevertKeepsLast {
		offset++
	}
	s.journal.Revert(offset)
}

// Committed says that records below the high watermark hw can no longer be lost: reads see them, and markers of
// transactions that they decide are to be taken.
func (s *Shard) Committed(hw int64) { s.journal.Commit(hw) }

// EndOffset is one above the last offset replayed.
func (s *Shard) EndOffset() int64 { return s.journal.EndOffset() }

// settled begins what the committed record of an id leads to.
func (s *Shard) settled(id string, m *Metadata, ok bool) {
	if !s.loaded {
		return
	}
	if ok && m.State.prepared() {
		s.decide(id, m)
	} else if out := s.sending[id]; out != nil {
		delete(s.sending, id)
	}
}

// Loaded ends loading: transactions that were decided and not completed have their markers sent again, those that are
// open wait for their producer or their end of time, of which the first look is one interval away.
func (s *Shard) Loaded(now time.Time) Effects {
	s.loaded = true
	s.nextAbort, s.nextExpiry = now.Add(s.config.AbortInterval), now.Add(s.config.ExpiryInterval)
	for _, id := range s.sortedIDs() {
		if m, ok := s.ids.Committed(id); ok && m.State.prepared() {
			s.decide(id, m)
		}
	}
	return Effects{}
}

// Unload ends the shard: markers that are out are the next coordinator's.
func (s *Shard) Unload() Effects {
	s.loaded, s.outbox, s.due = false, nil, nil
	clear(s.sending)
	clear(s.writes)
	return Effects{}
}

// Release ends the use of the shard.
func (s *Shard) Release() {}

// Finish tells the outcome of a write: err is nil when its records are committed. After a failure Revert must come
// first. An unknown or finished id is ignored.
func (s *Shard) Finish(now time.Time, write shard.WriteID, err error) Effects {
	written := s.writes[write]
	delete(s.writes, write)
	if err != nil {
		for _, c := range written {
			if s.sending[c.id] == c.of {
				s.due = append(s.due, completion{now.Add(retryPause), c.id, c.of})
			}
		}
	}
	return Effects{}
}

// NextDeadline is when Tick has something to do.
func (s *Shard) NextDeadline() (at time.Time, ok bool) {
	if !s.loaded {
		return time.Time{}, false
	}
	at = s.nextAbort
	if s.nextExpiry.Before(at) {
		at = s.nextExpiry
	}
	for _, c := range s.due {
		if c.at.Before(at) {
			at = c.at
		}
	}
	return at, true
}

// Tick does what is due at now: completions, then aborts of transactions that ran out of time, then ids to forget. Each
// comes in effects of its own. A caller that has just appended their records finds the next due still.
func (s *Shard) Tick(now time.Time) Effects {
	if fx := s.complete(now); fx.Records != nil {
		return fx
	}
	if !s.nextAbort.After(now) {
		s.nextAbort = now.Add(s.config.AbortInterval)
		if fx := s.abortOverdue(now); fx.Records != nil {
			return fx
		}
	}
	if !s.nextExpiry.After(now) {
		s.nextExpiry = now.Add(s.config.ExpiryInterval)
		return s.expire(now)
	}
	return Effects{}
}

// abortOverdue aborts transactions that have been open for longer than their producer asked for.
func (s *Shard) abortOverdue(now time.Time) Effects {
	fx := Effects{Splittable: true}
	for _, id := range s.sortedIDs() {
		m := s.ids.Newest()[id]
		if m.State != Ongoing || s.busy(id) || m.unlimited() || m.Start+int64(m.TimeoutMs) >= now.UnixMilli() {
			continue
		}
		next, err := s.fence(now, m)
		if err != nil {
			continue // no producer id is at hand: at the next look
		}
		s.timedOut++
		fx.Append(s.record(id, next))
	}
	return fx
}

// expire forgets ids that nobody has used for long.
func (s *Shard) expire(now time.Time) Effects {
	fx := Effects{Splittable: true}
	for _, id := range s.sortedIDs() {
		m := s.ids.Newest()[id]
		if m.State != Empty && !m.State.completed() || s.busy(id) || m.LastUpdate > now.Add(-s.config.IDExpiration).UnixMilli() {
			continue
		}
		fx.Append(s.record(id, nil))
	}
	return fx
}

// unlimited says that the transaction never runs out of time (KIP-939).
func (m *Metadata) unlimited() bool { return m.TimeoutMs == noTimeLimit }

const noTimeLimit = 1<<31 - 1

// record makes the record of a transition, in the version that the finalized level allows.
func (s *Shard) record(id string, m *Metadata) *Record {
	rec := &Record{ID: id, Value: m}
	if s.level >= Version1 {
		rec.Version = 1
	}
	return rec
}

// busy says that the id's last transition is not finished: a record is not committed, or markers are out.
func (s *Shard) busy(id string) bool {
	m, ok := s.ids.Get(id)
	return s.ids.Unsettled(id) || ok && m.State.prepared()
}

func (s *Shard) sortedIDs() []string {
	ids := make([]string, 0, len(s.ids.Newest()))
	for id := range s.ids.Newest() {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}
