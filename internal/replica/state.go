// Package replica hosts the partitions of one broker. It has two halves.
//
// The core is pure: State and the functions in state.go, isr.go, watermark.go, checks.go, offsets.go,
// preferred.go, truncate.go and follow.go hold what a partition knows about its role, its replicas and its in-sync set,
// and decide from it. They know no goroutine, clock, file or socket; time is an argument.
//
// The runtime (manager.go, partition.go, produce.go, fetch.go, purgatory.go, ...) puts a log under each
// State, publishes what readers need, and wakes those who wait.
//
// Lock order: Partition.roleMu, Partition.mu, the log's own locks, watchList.mu. A waiter is called with none
// of them held. Manager.mu is taken alone.
package replica

import (
	"slices"
	"time"
)

// Replica ids that name no broker, as Fetch and ListOffsets carry them.
const (
	ConsumerID      int32 = -1 // an ordinary consumer
	DebugConsumerID int32 = -2 // a consumer that may ask a follower
	FutureReplicaID int32 = -3 // the copy of a partition that moves to another log directory
)

// NoEpoch is the absent leader epoch, NoOffset the absent offset, on the wire and in results.
const (
	NoEpoch  int32 = -1
	NoOffset int64 = -1
)

// RoleKind is what a broker is for a partition.
type RoleKind int8

// The roles. RoleNone is that of a partition whose metadata has not been applied yet, or that is leaderless.
const (
	RoleNone RoleKind = iota
	RoleLeader
	RoleFollower
)

func (k RoleKind) String() string {
	switch k {
	case RoleLeader:
		return "leader"
	case RoleFollower:
		return "follower"
	default:
		return "none"
	}
}

// LeaderAndISR is what the controller has decided about a partition. The slices are never changed once
// they are in a State.
type LeaderAndISR struct {
	Leader         int32 // -1 none
	LeaderEpoch    int32
	PartitionEpoch int32
	Replicas       []int32
	ISR            []int32
	Recovering     bool // the leader came out of an unclean election and has not said yet that it has recovered
}

// Role is the part of a partition's state that its readers need. A Role is immutable: each change makes a
// new one, so it may be read without a lock.
type Role struct {
	Topic     string
	Partition int32
	Kind      RoleKind
	LeaderAndISR
	// EpochStart is the log end offset at the moment this broker took over LeaderEpoch; -1 unless Kind is RoleLeader.
	EpochStart int64
	// LeadingSince is the leader epoch in which this broker began to lead without a break since; -1 unless Kind is
	// RoleLeader. A record appended in an epoch below it may have been cut meanwhile.
	LeadingSince int32
}

// Current is the leader and epoch this role knows.
func (r *Role) Current() LeaderAndEpoch {
	return LeaderAndEpoch{Leader: r.Leader, Epoch: r.LeaderEpoch}
}

// Positions are the offsets of a partition's local log at one moment.
//
// Invariant: LogStart <= LocalLogStart <= End, LogStart <= HighWatermark <= End, LastStable <= HighWatermark.
type Positions struct {
	LogStart, LocalLogStart, HighWatermark, LastStable, End int64
	// AckEnd is how far the log may be acknowledged: End, unless a flush is under way that flush.messages asks for.
	AckEnd int64
}

// Progress is what a leader knows of one remote replica.
type Progress struct {
	ID          int32
	BrokerEpoch int64 // of the process that fetched last, -1 unknown
	End         int64 // log end offset as of its last fetch, -1 unknown: it then holds back the high watermark
	LogStart    int64 // log start offset as of its last fetch, -1 unknown
	// LastCaughtUp is when the replica was last known to hold everything the leader had. Zero: never.
	LastCaughtUp time.Time

	lastFetch          time.Time
	lastFetchLeaderEnd int64
}

// caughtUp says whether the replica lacks nothing, or has lacked something for no longer than lag.
func (p *Progress) caughtUp(leaderEnd int64, now time.Time, lag time.Duration) bool {
	return p.End == leaderEnd || now.Sub(p.LastCaughtUp) <= lag
}

// BrokerStatus is what the cluster metadata says of a broker.
type BrokerStatus struct {
	Epoch        int64 // of its registration
	Fenced       bool
	ShuttingDown bool
	Rack         string // "" none
}

// BrokerLookup finds a registered broker. ok is false when it is not registered.
type BrokerLookup func(id int32) (status BrokerStatus, ok bool)

// State is the replication state of one partition on one broker. It is pure, and not safe for concurrent
// use: its owner guards it.
//
// Invariants: leader epoch and partition epoch never fall; at most one ISR change is in flight; followers holds
// one entry for each replica but self, in the order of Replicas, and is empty unless the role is leader.
type State struct {
	self      int32
	minISR    int // the configured min.insync.replicas
	role      *Role
	followers []Progress
	pending   *pendingISR
}

// pendingISR is a change that the controller has not answered yet.
type pendingISR struct {
	change AlterPartition
	expand bool
}

// NewState is the state of a partition of which nothing is known yet: no role, leader epoch -1. minISR is
// the topic's min.insync.replicas (>= 1).
func NewState(self int32, topic string, partition int32, minISR int) *State {
	return &State{self: self, minISR: minISR, role: &Role{
		Topic: topic, Partition: partition, EpochStart: NoOffset, LeadingSince: NoEpoch,
		LeaderAndISR: LeaderAndISR{Leader: -1, LeaderEpoch: NoEpoch, PartitionEpoch: -1},
	}}
}

// Role is the present role. The value never changes.
func (s *State) Role() *Role { return s.role }

// SetMinISR takes over a changed min.insync.replicas.
func (s *State) SetMinISR(n int) { s.minISR = n }

// Followers is a copy of what is known of the remote replicas; empty unless this broker leads.
func (s *State) Followers() []Progress { return slices.Clone(s.followers) }

// stale says whether a decision of the controller is older than the one in force. An equal partition epoch is
// accepted: the same decision may arrive twice, through metadata and as an AlterPartition answer.
func (s *State) stale(p LeaderAndISR) bool { return p.PartitionEpoch < s.role.PartitionEpoch }

// LeaderStart is what BecomeLeader wants done before the partition answers as a leader.
type LeaderStart struct {
	// NewEpoch: this broker begins a reign. The log must assign (LeaderEpoch, EpochStart), durably before the first
	// batch of the epoch is written.
	NewEpoch   bool
	EpochStart int64
}

// BecomeLeader makes this broker the leader p names, or updates the ISR of the reign in force. end is the
// log end offset, which cannot move meanwhile. ok is false, and nothing changes, when p is stale.
func (s *State) BecomeLeader(p LeaderAndISR, end int64, now time.Time) (start LeaderStart, ok bool) {
	if s.stale(p) {
		return LeaderStart{}, false
	}
	wasLeader := s.role.Kind == RoleLeader
	newEpoch := !wasLeader || p.LeaderEpoch > s.role.LeaderEpoch
	epochStart, since := s.role.EpochStart, s.role.LeadingSince
	if newEpoch {
		epochStart = end
	}
	if !wasLeader {
		since = p.LeaderEpoch
	}
	// A recovering leader has recovered by leading; its next AlterPartition tells the controller.
	p.Recovering = false

	// Between two reigns of ours that are not neighbours another may have led, whom this broker never heard of, and to whose
	// log the followers may have cut theirs: what they are known to have is then what they had.
	known := wasLeader && (!newEpoch || p.LeaderEpoch == s.role.LeaderEpoch+1)
	followers := make([]Progress, 0, len(p.Replicas))
	for _, id := range p.Replicas {
		if id == s.self {
			continue
		}
		f := Progress{ID: id, BrokerEpoch: -1, End: NoOffset, LogStart: NoOffset, lastFetchLeaderEnd: NoOffset}
		inISR := slices.Contains(p.ISR, id)
		if old := s.follower(id); old != nil && known {
			f = *old
			if newEpoch {
				f.lastFetchLeaderEnd = end
				f.lastFetch, f.LastCaughtUp = time.Time{}, time.Time{}
				if inISR {
					f.lastFetch, f.LastCaughtUp = now, now
				}
			}
		} else if inISR {
			f.LastCaughtUp = now
		}
		followers = append(followers, f)
	}
	s.followers = followers
	if newEpoch || p.PartitionEpoch != s.role.PartitionEpoch {
		// The same decision once more (by metadata, after the answer to AlterPartition had brought it) says nothing about
		// a change proposed since: the controller may have committed it, and who joins by it must go on to count.
		s.pending = nil
	}
	s.setRole(RoleLeader, p, epochStart, since)
	return LeaderStart{NewEpoch: newEpoch, EpochStart: epochStart}, true
}

// FollowerStart is what BecomeFollower wants done before the partition is fetched.
type FollowerStart struct {
	// Restart: the leader epoch rose, so a running fetcher must begin anew as described below. When false the
	// fetcher goes on as it is.
	Restart bool
	// Truncate: no epoch is known, so the log is first cut to FetchOffset (its high watermark), and divergence can
	// only be found by offsets. Never done when epochs are known: that was the data loss that KIP-101 ended.
	Truncate         bool
	FetchOffset      int64
	LastFetchedEpoch int32
}

// BecomeFollower makes this broker a follower of p.Leader (-1: of nobody yet). latest is the latest epoch in
// the log's epoch cache, known false when it has none. ok is false, and nothing changes, when p is stale.
func (s *State) BecomeFollower(p LeaderAndISR, pos Positions, latest int32, known bool) (start FollowerStart, ok bool) {
	if s.stale(p) {
		return FollowerStart{}, false
	}
	start.Restart = p.LeaderEpoch > s.role.LeaderEpoch || s.role.Kind != RoleFollower
	if known && !mutantTruncatesToWatermark {
		start.FetchOffset, start.LastFetchedEpoch = pos.End, latest
	} else {
		start.FetchOffset, start.LastFetchedEpoch, start.Truncate = pos.HighWatermark, NoEpoch, start.Restart
	}
	s.followers = nil
	s.pending = nil
	s.setRole(RoleFollower, p, NoOffset, NoEpoch)
	return start, true
}

func (s *State) setRole(kind RoleKind, p LeaderAndISR, epochStart int64, since int32) {
	s.role = &Role{Topic: s.role.Topic, Partition: s.role.Partition, Kind: kind, LeaderAndISR: p, EpochStart: epochStart, LeadingSince: since}
}

// follower is the entry of a remote replica, nil when id is none.
func (s *State) follower(id int32) *Progress {
	for i := range s.followers {
		if s.followers[i].ID == id {
			return &s.followers[i]
		}
	}
	return nil
}

// FollowerFetch is one Fetch of a follower that found no divergence and no error.
type FollowerFetch struct {
	ReplicaID   int32
	BrokerEpoch int64 // -1 not supplied
	FetchOffset int64 // = the follower's log end offset
	LogStart    int64 // the follower's log start offset, -1 not supplied
	LeaderEnd   int64 // the leader's log end offset when it read for this fetch
	At          time.Time
}

// UpdateFollower records a follower's fetch. A fetch made by an older incarnation of that broker than the
// registered one is refused (KIP-903: its log may be gone), as is one by a broker that is no replica.
func (s *State) UpdateFollower(f FollowerFetch, brokers BrokerLookup) error {
	p := s.follower(f.ReplicaID)
	if p == nil {
		return s.role.notLeader()
	}
	if f.BrokerEpoch != -1 && !mutantStaleBrokerEpoch {
		if b, ok := brokers(f.ReplicaID); ok && b.Epoch > f.BrokerEpoch {
			return s.role.notLeader()
		}
	}
	if f.FetchOffset >= f.LeaderEnd {
		p.LastCaughtUp = later(p.LastCaughtUp, f.At)
	} else if p.lastFetchLeaderEnd != NoOffset && f.FetchOffset >= p.lastFetchLeaderEnd {
		p.LastCaughtUp = later(p.LastCaughtUp, p.lastFetch)
	}
	p.BrokerEpoch = f.BrokerEpoch
	p.End = f.FetchOffset
	p.LogStart = f.LogStart
	p.lastFetch = f.At
	p.lastFetchLeaderEnd = max(f.LeaderEnd, p.lastFetchLeaderEnd)
	return nil
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
