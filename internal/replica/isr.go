package replica

import (
	"slices"
	"time"
)

// ISRMember is a member of a proposed in-sync set, with the broker epoch under which the leader knows it, so
// that the controller can refuse one that has restarted since (KIP-903). -1: not known.
type ISRMember struct {
	ID          int32
	BrokerEpoch int64
}

// AlterPartition is a wish of the leader: to have NewISR as the in-sync set. Recovering is always false: a
// leader that proposes has recovered. PartitionEpoch is that of the state it was derived from.
type AlterPartition struct {
	Topic          string
	Partition      int32
	LeaderEpoch    int32
	PartitionEpoch int32
	NewISR         []ISRMember
	// Joining is the replica that an expansion adds, -1 for a shrink. Leaving are those a shrink removes.
	Joining int32
	Leaving []int32
}

// AlterOutcome is what the controller's answer to an AlterPartition means for the leader.
type AlterOutcome int8

// The outcomes of an AlterPartition.
const (
	// AlterAccepted: the answer carries the new state.
	AlterAccepted AlterOutcome = iota
	// AlterRefused: back to the committed ISR; the controller attempted nothing or found a member ineligible.
	AlterRefused
	// AlterSuperseded: this broker's knowledge is out of date; metadata will bring the truth.
	AlterSuperseded
	// AlterRetriable: ask again with the same content after AlterPartitionRetry.
	AlterRetriable
)

// AlterPartitionRetry is how long to wait before a retriable AlterPartition is sent again.
const AlterPartitionRetry = 50 * time.Millisecond

// AlterOutcomeOf classifies the per-partition error code of an AlterPartition response. A top-level error, or
// no answer at all, is AlterRetriable.
func AlterOutcomeOf(code int16) AlterOutcome {
	switch code {
	case 0:
		return AlterAccepted
	case 55, 107: // OPERATION_NOT_ATTEMPTED, INELIGIBLE_REPLICA
		return AlterRefused
	case 3, 42, 74, 95, 100, 108: // UNKNOWN_TOPIC_OR_PARTITION, INVALID_REQUEST, FENCED_LEADER_EPOCH,
		// INVALID_UPDATE_VERSION, UNKNOWN_TOPIC_ID, NEW_LEADER_ELECTED
		return AlterSuperseded
	default:
		return AlterRetriable
	}
}

// AlterReaction is what became of a change in flight.
type AlterReaction int8

// The reactions to the answer of an AlterPartition.
const (
	AlterIgnored AlterReaction = iota // the local state has moved on since it was sent
	AlterAdopted                      // the returned state is in force
	AlterDropped                      // the committed ISR is in force, nothing is in flight
	AlterWaiting                      // still in flight: metadata will end it
	AlterRetry                        // still in flight: send the same again after AlterPartitionRetry
)

// EffectiveMinISR is min.insync.replicas, but no more than there are replicas.
func (s *State) EffectiveMinISR() int {
	return max(1, min(s.minISR, len(s.role.Replicas)))
}

// UnderMinISR says whether the committed ISR is smaller than the effective min.insync.replicas. While it is,
// the high watermark stands still and acks=all is refused.
func (s *State) UnderMinISR() bool { return len(s.role.ISR) < s.EffectiveMinISR() }

// InFlight says whether an ISR change awaits the controller's answer.
func (s *State) InFlight() bool { return s.pending != nil }

// inMaximalISR says whether id counts for the high watermark: it is in the committed ISR (a shrink in flight
// does not count before it is committed), or in an expansion in flight (which counts at once, since the
// controller may have committed it already).
func (s *State) inMaximalISR(id int32) bool {
	if s.committedISR(id) {
		return true
	}
	return !mutantJoinerUncounted && s.pending != nil && s.pending.expand && s.pending.change.Joining == id
}

func (s *State) committedISR(id int32) bool { return slices.Contains(s.role.ISR, id) }

// maximalISRSize is the number of replicas in the maximal ISR.
func (s *State) maximalISRSize() int {
	n := len(s.role.ISR)
	if s.pending != nil && s.pending.expand {
		n++
	}
	return n
}

// eligible says whether a replica may be in the ISR at all: registered, not fenced, not shutting down, and
// fetching as the incarnation that is registered.
func (s *State) eligible(p *Progress, brokers BrokerLookup) bool {
	b, ok := brokers(p.ID)
	return ok && !b.Fenced && !b.ShuttingDown && (p.BrokerEpoch == -1 || p.BrokerEpoch == b.Epoch || mutantStaleBrokerEpoch)
}

// ProposeExpand puts a follower that has caught up into the ISR: its log end has reached the high watermark
// and the start of this leader epoch. ok is false when it may not join (yet), or a change is in flight.
func (s *State) ProposeExpand(id int32, hw int64, brokers BrokerLookup) (change AlterPartition, ok bool) {
	if s.role.Kind != RoleLeader || s.pending != nil || s.inMaximalISR(id) {
		return AlterPartition{}, false
	}
	p := s.follower(id)
	if p == nil || p.End < hw || p.End < s.role.EpochStart && !mutantJoinsEarly || !s.eligible(p, brokers) {
		return AlterPartition{}, false
	}
	change = s.change(append(slices.Clone(s.role.ISR), id), brokers)
	change.Joining = id
	s.pending = &pendingISR{change: change, expand: true}
	return change, true
}

// ProposeShrink takes those followers out of the ISR that lack something and were last caught up more than
// lag ago. ok is false when there is none, or a change is in flight.
func (s *State) ProposeShrink(end int64, now time.Time, lag time.Duration, brokers BrokerLookup) (change AlterPartition, ok bool) {
	if s.role.Kind != RoleLeader || s.pending != nil {
		return AlterPartition{}, false
	}
	var stay, leave []int32
	for _, id := range s.role.ISR {
		if p := s.follower(id); p != nil && !p.caughtUp(end, now, lag) {
			leave = append(leave, id)
		} else {
			stay = append(stay, id)
		}
	}
	if len(leave) == 0 {
		return AlterPartition{}, false
	}
	change = s.change(stay, brokers)
	change.Leaving = leave
	s.pending = &pendingISR{change: change}
	return change, true
}

func (s *State) change(isr []int32, brokers BrokerLookup) AlterPartition {
	c := AlterPartition{
		Topic: s.role.Topic, Partition: s.role.Partition, LeaderEpoch: s.role.LeaderEpoch,
		PartitionEpoch: s.role.PartitionEpoch, Joining: -1, NewISR: make([]ISRMember, 0, len(isr)),
	}
	for _, id := range isr {
		m := ISRMember{ID: id, BrokerEpoch: -1}
		if p := s.follower(id); p != nil {
			m.BrokerEpoch = p.BrokerEpoch
		}
		if m.BrokerEpoch == -1 || mutantStaleBrokerEpoch {
			if b, ok := brokers(id); ok {
				m.BrokerEpoch = b.Epoch
			}
		}
		c.NewISR = append(c.NewISR, m)
	}
	return c
}

// AlterPartitionDone takes the controller's answer to sent. returned is the state in an accepted answer.
func (s *State) AlterPartitionDone(sent AlterPartition, outcome AlterOutcome, returned LeaderAndISR) AlterReaction {
	if s.pending == nil || s.pending.change.PartitionEpoch != sent.PartitionEpoch ||
		s.pending.change.LeaderEpoch != sent.LeaderEpoch || !slices.Equal(s.pending.change.NewISR, sent.NewISR) {
		return AlterIgnored
	}
	switch outcome {
	case AlterRefused:
		s.pending = nil
		return AlterDropped
	case AlterSuperseded:
		return AlterWaiting
	case AlterRetriable:
		return AlterRetry
	}
	if returned.LeaderEpoch != s.role.LeaderEpoch || returned.PartitionEpoch < s.role.PartitionEpoch {
		return AlterIgnored
	}
	s.pending = nil
	next := s.role.LeaderAndISR
	next.ISR = returned.ISR
	next.PartitionEpoch = returned.PartitionEpoch
	next.Recovering = false
	s.setRole(RoleLeader, next, s.role.EpochStart, s.role.LeadingSince)
	return AlterAdopted
}
