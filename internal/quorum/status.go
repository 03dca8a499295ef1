package quorum

import (
	"sync"
)

// Status is the quorum as this node knew it at one instant. It is immutable.
type Status struct {
	// LeaderID is the node that leads, -1 while none is known. LeaderEpoch is raft's term.
	LeaderID    int32
	LeaderEpoch int32
	// Leading: this node is the leader. Active: and its controller answers, since everything earlier leaders left is
	// applied, and what the controller begins with is committed.
	Leading, Active bool
	// HighWatermark is the offset below which all is committed and applied here, -1 while that is unknown.
	HighWatermark int64
	// Voters are the members as of the high watermark.
	Voters []Voter

	closing   bool
	snapshots []SnapshotID // oldest first
	changed   chan struct{}
}

// Changed is closed when there is a newer status.
func (s *Status) Changed() <-chan struct{} { return s.changed }

// voter is the member with that node id.
func (s *Status) voter(nodeID int32) (Voter, bool) {
	for _, v := range s.Voters {
		if v.VoterID == nodeID {
			return v, true
		}
	}
	return Voter{}, false
}

// checkEpoch says whether a request under that leader epoch can be answered here.
func (s *Status) checkEpoch(epoch int32) error {
	switch {
	case epoch < s.LeaderEpoch:
		return &FencedLeaderEpochError{Asked: epoch, Current: s.LeaderEpoch}
	case epoch > s.LeaderEpoch:
		return &UnknownLeaderEpochError{Asked: epoch, Current: s.LeaderEpoch}
	case !s.Leading:
		return ErrNotLeaderOrFollower
	case s.closing:
		return ErrBrokerNotAvailable
	}
	return nil
}

// statusBoard holds the newest status. One goroutine changes it, any may read it and wait for the next.
type statusBoard struct {
	mu  sync.Mutex
	cur *Status
}

func newStatusBoard(s Status) *statusBoard {
	s.changed = make(chan struct{})
	return &statusBoard{cur: &s}
}

func (b *statusBoard) get() *Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.cur
}

// update publishes what change makes of the newest status and wakes all who wait for it.
func (b *statusBoard) update(change func(*Status)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	next := *b.cur
	change(&next)
	next.changed = make(chan struct{})
	old := b.cur
	b.cur = &next
	close(old.changed)
}
