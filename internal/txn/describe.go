package txn

import (
	"regexp"
	"slices"
	"time"
)

// A Description is one transactional id as DescribeTransactions shows it.
type Description struct {
	Err           error
	ID            string
	State         State
	TimeoutMs     int32
	Start         int64 // ms since 1970; -1: none
	LastUpdate    int64
	ProducerID    int64
	ProducerEpoch int16
	Partitions    []TopicPartition // while markers are out, those without one
	Client        Client           // the zero value: not known
}

// Describe shows an id as it is committed.
func (s *Shard) Describe(id string) Description {
	m, ok := s.ids.Committed(id)
	if !ok {
		return Description{Err: ErrTransactionalIDNotFound, ID: id}
	}
	d := Description{ID: id, State: m.State, TimeoutMs: m.TimeoutMs, Start: m.Start, LastUpdate: m.LastUpdate,
		ProducerID: m.ProducerID, ProducerEpoch: m.ProducerEpoch, Partitions: s.left(id, m), Client: m.client}
	if d.State == Empty {
		d.Start = NoTime
	}
	return d
}

// A Filter chooses transactional ids to list; what it does not say chooses all.
type Filter struct {
	States      []State
	NoState     bool // states were named, and none of them exists
	ProducerIDs []int64
	Duration    time.Duration // of the transaction, at least; negative: any
	Pattern     *regexp.Regexp
}

// A Listed is one transactional id in a list.
type Listed struct {
	ID         string
	ProducerID int64
	State      State
}

// List lists the ids that are chosen, as they are committed, in order.
func (s *Shard) List(now time.Time, f Filter) []Listed {
	var listed []Listed
	s.ids.CommittedKeys(func(id string) {
		m, _ := s.ids.Committed(id)
		switch {
		case f.NoState, len(f.States) > 0 && !slices.Contains(f.States, m.State):
		case len(f.ProducerIDs) > 0 && !slices.Contains(f.ProducerIDs, m.ProducerID):
		case f.Duration >= 0 && now.UnixMilli()-m.Start <= f.Duration.Milliseconds(): // of none (-1) it is very long, as in Kafka
		case f.Pattern != nil && !f.Pattern.MatchString(id):
		default:
			listed = append(listed, Listed{id, m.ProducerID, m.State})
		}
	})
	slices.SortFunc(listed, func(a, b Listed) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	return listed
}

// Stats counts what the shard holds and did.
type Stats struct {
	IDs      map[string]int // by state
	Commits  uint64
	Aborts   uint64
	TimedOut uint64
	Markers  int // partitions that wait for a marker
}

// Stats counts.
func (s *Shard) Stats() Stats {
	st := Stats{IDs: map[string]int{}, Commits: s.doneCommits, Aborts: s.doneAborts, TimedOut: s.timedOut}
	for _, m := range s.ids.Newest() {
		st.IDs[m.State.String()]++
	}
	for _, out := range s.sending {
		st.Markers += len(out.left)
	}
	return st
}
