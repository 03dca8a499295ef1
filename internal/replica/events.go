package replica

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stelelog/stele/internal/log"
)

// Events counts each change of a role, of an in-sync set and of a log's positions. The log lines are written where the
// change is made. The zero value is ready; all methods may be called concurrently.
type Events struct {
	roles    [RoleFollower + 1]atomic.Int64
	shrinks  atomic.Int64
	expands  atomic.Int64
	timedOut atomic.Int64
	fenced   atomic.Int64
	unknown  atomic.Int64
	unclean  atomic.Int64
	cut      [2]atomic.Int64 // above and below the high watermark
	logs     [log.EventHeldByFuture + 1]atomic.Int64
}

// Counts is what has been counted since the start.
type Counts struct {
	// RoleChanges counts changes of a partition's leader or leader epoch, by the role this broker has after it.
	RoleChanges map[RoleKind]int64
	// ISRShrinks and ISRExpands count the committed changes of in-sync sets that this broker leads.
	ISRShrinks, ISRExpands int64
	// ProduceTimeouts counts partitions of Produce requests that were not acknowledged in time.
	ProduceTimeouts int64
	// EpochsFenced and EpochsUnknown count the answers that a request's leader epoch is older, or newer, than the one here.
	EpochsFenced, EpochsUnknown int64
	// UncleanElections counts how often this broker came to lead a partition without being known to have all that was
	// acknowledged.
	UncleanElections int64
	// CutUncommitted and CutCommitted count the offsets that followers here have cut because the leader's log has others:
	// above the high watermark, where only acks=1 or 0 had acknowledged anything, and below it.
	CutUncommitted, CutCommitted int64
	// LogEvents counts truncations, moves of log start, recoveries and other events of logs.
	LogEvents map[log.EventKind]int64
}

// Counts is a snapshot.
func (e *Events) Counts() Counts {
	c := Counts{RoleChanges: map[RoleKind]int64{}, LogEvents: map[log.EventKind]int64{},
		ISRShrinks: e.shrinks.Load(), ISRExpands: e.expands.Load(), ProduceTimeouts: e.timedOut.Load(),
		EpochsFenced: e.fenced.Load(), EpochsUnknown: e.unknown.Load(), UncleanElections: e.unclean.Load(),
		CutUncommitted: e.cut[0].Load(), CutCommitted: e.cut[1].Load()}
	for k := range e.roles {
		c.RoleChanges[RoleKind(k)] = e.roles[k].Load()
	}
	for k := range e.logs {
		c.LogEvents[log.EventKind(k)] = e.logs[k].Load()
	}
	return c
}

// LogEvent counts an event of a log; give it to the log directories as their OnEvent.
func (e *Events) LogEvent(ev log.Event) {
	if k := int(ev.Kind); k >= 0 && k < len(e.logs) {
		e.logs[k].Add(1)
	}
}

func (e *Events) roleChanged(k RoleKind) { e.roles[k].Add(1) }
func (e *Events) isrChanged(shrink bool) {
	if shrink {
		e.shrinks.Add(1)
	} else {
		e.expands.Add(1)
	}
}
func (e *Events) produceTimedOut() { e.timedOut.Add(1) }

// offsetsCut counts what a cut from end to offset to takes.
func (e *Events) offsetsCut(pos Positions, to int64) {
	e.cut[0].Add(max(0, pos.End-max(to, pos.HighWatermark)))
	e.cut[1].Add(max(0, pos.HighWatermark-to))
}

// uncleanElection tells and counts that this broker leads without being known to have all that was acknowledged. What was
// lost shows where the others cut their logs.
func (s *storm) uncleanElection(is *Role, pos Positions) {
	s.events.unclean.Add(1)
	s.logger.Warn("unclean leader election: records that this replica does not have are lost", "topic", is.Topic, "partition", is.Partition,
		"leaderEpoch", is.LeaderEpoch, "partitionEpoch", is.PartitionEpoch, "highWatermark", pos.HighWatermark, "endOffset", pos.End,
		"isr", is.ISR, "replicas", is.Replicas, "cause", "no replica that was in sync is there")
}

// applyLines is how many changes of one Apply are each told in full at info, fullLines how many requests in one second
// are; of a storm of more the rest is told at debug, and summed up in one line.
const (
	applyLines = 5
	fullLines  = 20
)

// storm tells the role changes of one Apply.
type storm struct {
	logger *slog.Logger
	events *Events
	told   int
	more   map[RoleKind]int
	drops  int
}

// roleChange tells one change: what the partition was, what it is, and why.
func (s *storm) roleChange(was, is *Role, end int64, cause string) {
	if was.Kind == is.Kind && was.Leader == is.Leader && was.LeaderEpoch == is.LeaderEpoch {
		return
	}
	s.events.roleChanged(is.Kind)
	level := slog.LevelInfo
	if s.told++; s.told > applyLines {
		level = slog.LevelDebug
		if s.more == nil {
			s.more = map[RoleKind]int{}
		}
		s.more[is.Kind]++
	}
	s.logger.Log(context.Background(), level, "leader change", "topic", is.Topic, "partition", is.Partition, "role", is.Kind.String(),
		"fromLeader", was.Leader, "toLeader", is.Leader, "fromEpoch", was.LeaderEpoch, "leaderEpoch", is.LeaderEpoch,
		"partitionEpoch", is.PartitionEpoch, "endOffset", end, "isr", is.ISR, "cause", cause)
}

// dropped tells that a replica was removed from here.
func (s *storm) dropped(p *Partition, cause string) {
	level := slog.LevelInfo
	if s.drops++; s.drops > applyLines {
		level = slog.LevelDebug
	}
	s.logger.Log(context.Background(), level, "replica deleted", "topic", p.topic, "partition", p.id,
		"leaderEpoch", p.Role().LeaderEpoch, "endOffset", p.Positions().End, "cause", cause)
}

// done sums up what was told at debug only.
func (s *storm) done(offset int64) {
	if s.told > applyLines {
		s.logger.Info("leader changes, more of the same", "leaders", s.more[RoleLeader], "followers", s.more[RoleFollower],
			"none", s.more[RoleNone], "metadataOffset", offset)
	}
	if s.drops > applyLines {
		s.logger.Info("replicas deleted, more of the same", "partitions", s.drops-applyLines, "metadataOffset", offset)
	}
}

// throttle lets fullLines lines through in each second.
type throttle struct {
	mu     sync.Mutex
	second time.Time
	lines  int
}

// take says whether a line may be told in full, and how many of an earlier second were not, the first time it can.
func (t *throttle) take(now time.Time) (full bool, hidden int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.second) >= time.Second {
		hidden = max(0, t.lines-fullLines)
		t.second, t.lines = now, 0
	}
	t.lines++
	return t.lines <= fullLines, hidden
}

// tellEpoch tells and counts that a request was refused for its leader epoch; other errors are not its business.
func (m *Manager) tellEpoch(api string, replicaID int32, err error) {
	var fenced *FencedLeaderEpochError
	var unknown *UnknownLeaderEpochError
	var tp topicPartition
	var requested int32
	var current LeaderAndEpoch
	msg := "fenced leader epoch"
	switch {
	case errors.As(err, &fenced):
		m.events.fenced.Add(1)
		tp, requested, current = topicPartition{fenced.Topic, fenced.Partition}, fenced.Requested, fenced.Current
	case errors.As(err, &unknown):
		m.events.unknown.Add(1)
		msg = "unknown leader epoch"
		tp, requested, current = topicPartition{unknown.Topic, unknown.Partition}, unknown.Requested, unknown.Current
	default:
		return
	}
	full, hidden := m.epochLines.take(m.now())
	if hidden > 0 {
		m.o.Logger.Info("fenced or unknown leader epochs, more of the same", "partitions", hidden)
	}
	level := slog.LevelInfo
	if !full {
		level = slog.LevelDebug
	}
	m.o.Logger.Log(context.Background(), level, msg, "topic", tp.topic, "partition", tp.partition, "requested", requested,
		"leaderEpoch", current.Epoch, "leader", current.Leader, "cause", api, "replica", replicaID)
}

// tellISR tells and counts one committed change of the in-sync set of a partition that this broker leads.
func (m *Manager) tellISR(was, is *Role, cause string) {
	if was.Kind != RoleLeader || slices.Equal(was.ISR, is.ISR) {
		return
	}
	m.events.isrChanged(len(is.ISR) < len(was.ISR))
	full, hidden := m.isrLines.take(m.now())
	if hidden > 0 {
		m.o.Logger.Info("isr changes, more of the same", "partitions", hidden)
	}
	level := slog.LevelInfo
	if !full {
		level = slog.LevelDebug
	}
	m.o.Logger.Log(context.Background(), level, "isr change", "topic", is.Topic, "partition", is.Partition, "from", was.ISR,
		"to", is.ISR, "leaderEpoch", is.LeaderEpoch, "partitionEpoch", is.PartitionEpoch, "cause", cause)
}

// FollowEvent is what a follower made of its leader's answer for one partition: the step it took, with the error that it
// names; or where it is about to cut its log. It is for tests that count which of them a run has seen.
type FollowEvent struct {
	Partition *Partition
	Answer    FollowAnswer
	Step      FollowStep
	Err       error
	// Leader is where the leader's history ends that differs, and Cut where this one is cut; nil unless it is.
	Leader OffsetAndEpoch
	Cut    *Truncation
}

func (m *Manager) tellFollow(e FollowEvent) {
	if m.o.Follow != nil {
		m.o.Follow(e)
	}
}
