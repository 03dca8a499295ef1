package replica

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/stelelog/stele/internal/epoch"
	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/metadata"
)

// Errors of MoveReplica, beside those of the log directories and of Partition.
var (
	// ErrReplicaNotHere: this broker has no replica of the partition yet. The wish is kept for when it gets one.
	ErrReplicaNotHere = errors.New("this broker has no replica of the partition")
	// ErrUnknownLogDir, ErrCordonedLogDir and ErrTopicNameTooLong are the log's.
	ErrUnknownLogDir    = log.ErrUnknownLogDir
	ErrCordonedLogDir   = log.ErrCordoned
	ErrTopicNameTooLong = log.ErrTopicNameTooLong
)

// move is a partition on its way to another log directory: its copy there follows it as a follower follows a leader, and
// takes its place once it has everything and the controller has taken note.
type move struct {
	m      *Manager
	p      *Partition
	dest   string
	destID metadata.UUID // zero: the controller need not know
	source Leader
	cancel context.CancelFunc
	done   chan struct{}

	reported bool   // the controller was told that the replica is in dest
	trouble  string // the last, as it was logged
}

// moves are those under way, and wishes those for partitions that are not here yet.
type moves struct {
	mu      sync.Mutex
	all     map[*Partition]*move
	wishes  map[log.TopicPartition]string
	slots   chan struct{}
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	ended   bool
}

func newMoves(threads int) *moves {
	s := &moves{all: map[*Partition]*move{}, wishes: map[log.TopicPartition]string{}, slots: make(chan struct{}, threads)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

func (s *moves) close() {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.cancel()
	s.running.Wait()
}

// MoveReplica makes a replica of this broker be copied to the log directory at path, and returns at once. A move of it that
// is under way to another directory ends, and its copy goes: a move to where the replica is does nothing else. Errors:
// ErrTopicNameTooLong, ErrUnknownLogDir, ErrCordonedLogDir, ErrReplicaNotHere, ErrUnknownTopicOrPartition,
// *log.StorageError.
func (m *Manager) MoveReplica(topic string, partition int32, path string) error {
	tp := log.TopicPartition{Topic: topic, Partition: partition}
	if err := m.o.Dirs.CheckFuture(tp, path); err != nil {
		return err
	}
	p, err := m.Partition(topic, partition)
	switch {
	case errors.Is(err, ErrNotLeaderOrFollower):
		m.moves.mu.Lock()
		m.moves.wishes[tp] = path
		m.moves.mu.Unlock()
		return ErrReplicaNotHere
	case err != nil:
		return err
	}
	m.applying.Lock() // the partition is not dropped meanwhile
	defer m.applying.Unlock()
	if err := p.Err(); err != nil {
		return err
	}
	if mv := m.moveOf(p); mv != nil {
		if mv.dest == path {
			return nil
		}
		m.endMove(p, "another directory is wanted")
	}
	if p.directory() == path {
		return nil
	}
	start := p.Positions().LogStart
	if _, err := m.o.Dirs.CreateFuture(tp, path, start); err != nil {
		return err
	}
	m.o.Logger.Info("replica moves to another log directory", "topic", topic, "partition", partition, "from", p.directory(), "to", path, "logStart", start,
		"endOffset", p.Positions().End)
	m.beginMove(p, path)
	return nil
}

func (m *Manager) moveOf(p *Partition) *move {
	m.moves.mu.Lock()
	defer m.moves.mu.Unlock()
	return m.moves.all[p]
}

// beginMove lets the copy that there is follow p.
func (m *Manager) beginMove(p *Partition, path string) {
	mv := &move{m: m, p: p, dest: path, source: m.Local(), done: make(chan struct{})}
	for id, at := range m.o.Directories {
		if at == path {
			mv.destID = id
		}
	}
	ctx, cancel := context.WithCancel(m.moves.ctx)
	mv.cancel = cancel
	m.moves.mu.Lock()
	defer m.moves.mu.Unlock()
	if m.moves.ended {
		cancel()
		return
	}
	m.moves.all[p] = mv
	m.moves.running.Go(func() {
		defer close(mv.done)
		defer cancel()
		mv.run(ctx)
	})
}

// resumeMoves goes on with the moves that the last process had under way, and begins those that were wished for.
func (m *Manager) resumeMoves(changed []assignment) {
	m.moves.mu.Lock()
	none := len(m.moves.wishes) == 0
	m.moves.mu.Unlock()
	if futures := m.o.Dirs.Futures(); none && len(futures) == 0 {
		return
	}
	for _, a := range changed {
		p := m.hosted(a)
		if p == nil || p.Err() != nil {
			continue
		}
		tp := log.TopicPartition{Topic: p.topic, Partition: p.id}
		m.moves.mu.Lock()
		wish, wished := m.moves.wishes[tp]
		delete(m.moves.wishes, tp)
		running := m.moves.all[p] != nil
		m.moves.mu.Unlock()
		if running {
			continue
		}
		if l, ok := m.o.Dirs.Future(tp); ok {
			path := l.LogDir()
			m.o.Logger.Info("move to another log directory goes on", "topic", p.topic, "partition", p.id, "from", p.directory(), "to", path)
			m.beginMove(p, path)
		} else if wished && wish != p.directory() {
			if _, err := m.o.Dirs.CreateFuture(tp, wish, p.Positions().LogStart); err != nil {
				m.o.Logger.Warn("replica not moved", "topic", p.topic, "partition", p.id, "to", wish, "cause", err)
				continue
			}
			m.beginMove(p, wish)
		}
	}
}

// endMove gives up a move, if there is one, and its copy. Nothing of it runs any more when it returns.
func (m *Manager) endMove(p *Partition, cause string) {
	m.moves.mu.Lock()
	mv := m.moves.all[p]
	delete(m.moves.all, p)
	m.moves.mu.Unlock()
	if mv == nil {
		return
	}
	mv.cancel()
	<-mv.done
	if p.directory() == mv.dest {
		return // it was done first
	}
	m.o.Logger.Info("move to another log directory given up", "topic", p.topic, "partition", p.id, "to", mv.dest, "cause", cause)
	if err := m.o.Dirs.DropFuture(log.TopicPartition{Topic: p.topic, Partition: p.id}); err != nil {
		m.o.Logger.Warn("copy not deleted", "topic", p.topic, "partition", p.id, "error", err)
	}
	if mv.reported && p.Err() == nil {
		m.reportPlace(p)
	}
}

// reportPlace tells the controller where the replica is.
func (m *Manager) reportPlace(p *Partition) {
	for id, path := range m.o.Directories {
		if path == p.directory() && m.o.DirectoryAssigned != nil {
			m.o.DirectoryAssigned(p.topicID, p.id, id)
		}
	}
}

// run copies until the copy has taken the partition's place, or ctx ends.
func (mv *move) run(ctx context.Context) {
	select {
	case mv.m.moves.slots <- struct{}{}:
		defer func() { <-mv.m.moves.slots }()
	case <-ctx.Done():
		return
	}
	mv.p.log().PauseCleaning(true)
	defer func() { mv.p.log().PauseCleaning(false) }()
	defer mv.source.Close()
	pause := time.Duration(0)
	for ctx.Err() == nil && mv.p.Err() == nil {
		if held := mv.m.moveRate.pause(mv.m.now()); held > 0 {
			mv.sleep(ctx, held)
			continue
		}
		copied, ok := mv.m.o.Dirs.Future(log.TopicPartition{Topic: mv.p.topic, Partition: mv.p.id})
		if !ok {
			return // promoted, or its directory has failed
		}
		step, err := mv.round(ctx, copied)
		switch {
		case ctx.Err() != nil:
			return
		case step == FollowFail:
			mv.tell("copy failed", err)
			go mv.m.endMove(mv.p, err.Error())
			return
		case err != nil:
			mv.tell("copying pauses", err)
			pause = min(max(2*pause, firstBackoff), mv.m.o.FetchBackoff)
		default:
			pause, mv.trouble = 0, ""
		}
		mv.sleep(ctx, pause)
	}
}

func (mv *move) sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func (mv *move) tell(what string, err error) {
	reason := fmt.Sprint(err)
	if reason == mv.trouble {
		return
	}
	mv.trouble = reason
	mv.m.o.Logger.Warn("move to another log directory: "+what, "topic", mv.p.topic, "partition", mv.p.id, "to", mv.dest, "cause", reason)
}

// query is what the copy asks now.
func (mv *move) query(copied *log.Log) (q FollowQuery, pos Positions, epochs epoch.Cache) {
	v := copied.View()
	defer v.Release()
	q = FollowQuery{Topic: mv.p.topic, TopicID: mv.p.topicID, Partition: mv.p.id, LogStart: v.LogStartOffset}
	q.FetchOffset, q.CurrentLeaderEpoch, q.LastFetchedEpoch = v.EndOffset, mv.p.Role().LeaderEpoch, NoEpoch
	if latest, known := v.Epochs.Latest(); known {
		q.LastFetchedEpoch = latest.Epoch
	}
	return q, positionsOf(v), v.Epochs
}

// round copies what there is, or waits a while for more, as a follower does, and looks whether the move can end.
func (mv *move) round(ctx context.Context, copied *log.Log) (FollowStep, error) {
	q, pos, epochs := mv.query(copied)
	if pos.End == mv.p.Positions().End && mv.accepted() {
		promoted, err := mv.promote(copied)
		if err != nil {
			return mv.failure(err)
		}
		if promoted {
			return FollowIgnore, nil
		}
	}
	answers, err := mv.source.Fetch(ctx, []FollowQuery{q})
	if err != nil || len(answers) != 1 {
		return FollowBackoff, err
	}
	a := &answers[0]
	switch step := Follow(q.FollowPosition, q.FollowPosition, a.FollowAnswer); step {
	case FollowAppend:
		return mv.take(copied, q, a)
	case FollowTruncate:
		cut := TruncationFor(a.DivergingEpoch, epochs, pos.HighWatermark, pos.End)
		return mv.failure(copied.TruncateTo(cut.To, "the log that is copied was cut"))
	case FollowRange:
		latest, earliest, err := askRange(ctx, mv.source, q)
		if err != nil {
			return FollowBackoff, err
		}
		switch step, to := OutOfRange(pos.End, latest, earliest); step {
		case RangeTruncate:
			return mv.failure(copied.TruncateTo(to, "the log that is copied ends earlier"))
		case RangeStartOver:
			return mv.failure(copied.TruncateFullyAndStartAt(to, "the log that is copied begins later"))
		case RangeUnknown:
			return FollowBackoff, errRangeUnknown
		}
		return FollowBackoff, errInRange
	case FollowIgnore:
		return step, nil
	default:
		return FollowBackoff, a.Err // until the role that it asks by is known, or for good with the partition
	}
}

// take appends what came, then takes over high watermark and log start.
func (mv *move) take(copied *log.Log, q FollowQuery, a *Followed) (FollowStep, error) {
	defer mv.p.wait.all() // DeleteRecords waits for the copy too
	if len(a.Records) > 0 {
		mv.m.moveRate.took(len(a.Records), mv.m.now())
		if _, err := copied.AppendAsFollower(a.Records, q.CurrentLeaderEpoch); err != nil {
			return mv.failure(err)
		}
	}
	return mv.failure(mv.bounds(copied, a.HighWatermark, a.LogStart))
}

// bounds takes over the high watermark and the log start.
func (mv *move) bounds(copied *log.Log, hw, start int64) error {
	v := copied.View()
	pos := positionsOf(v)
	v.Release()
	copied.SetHighWatermark(FollowerHighWatermark(hw, pos))
	if pos.HighWatermark = FollowerHighWatermark(hw, pos); start > pos.LogStart {
		if start > pos.End {
			// Everything that was copied so far is gone there.
			return copied.TruncateFullyAndStartAt(start, "the log that is copied begins later")
		}
		if next, ok := FollowerLogStart(start, pos); ok {
			return copied.AdvanceLogStart(next, "the log that is copied")
		}
	}
	return nil
}

// failure is what an error, if it is one, of the copy means for the move. No lock is held.
func (mv *move) failure(err error) (FollowStep, error) {
	var storage *log.StorageError
	switch {
	case err == nil:
		return FollowAppend, nil
	case errors.As(err, &storage) && storage.Offline:
		mv.m.DirectoryOffline(storage.Dir, storage)
	case log.IsFull(err):
		return FollowBackoff, err
	}
	return FollowFail, err
}

// accepted says whether the controller has taken note that the replica will be in dest; it is told, once.
func (mv *move) accepted() bool {
	if mv.destID == (metadata.UUID{}) || mv.m.o.DirectoryAssigned == nil {
		return true
	}
	if !mv.reported {
		mv.reported = true
		mv.m.o.DirectoryAssigned(mv.p.topicID, mv.p.id, mv.destID)
	}
	if t, ok := mv.m.image.Load().TopicByID(mv.p.topicID); ok {
		if state, ok := t.Partition(mv.p.id); ok {
			at, _ := state.Directory(mv.m.o.BrokerID)
			return at == mv.destID
		}
	}
	return false
}

// lastBytes is how much may be copied while nothing is appended to the partition.
const lastBytes = 4 << 20

// promote puts the copy in the partition's place. Appends, changes of role and of the high watermark wait meanwhile. It is
// false when there is too much left to copy.
func (mv *move) promote(copied *log.Log) (promoted bool, err error) {
	p := mv.p
	p.roleMu.Lock()
	p.mu.Lock()
	defer func() {
		p.mu.Unlock()
		p.roleMu.Unlock()
		p.wait.all()
	}()
	if err := p.Err(); err != nil {
		return false, err
	}
	old := p.log()
	v := old.View()
	defer v.Release()
	for left := lastBytes; ; {
		w := copied.View()
		end := w.EndOffset
		w.Release()
		if end >= v.EndOffset {
			break
		}
		if left <= 0 {
			return false, nil
		}
		d, err := v.Read(end, v.EndOffset, localMaxBytes, true)
		if err != nil {
			return false, err
		}
		buf, err := d.ReadAll(nil)
		if err != nil {
			return false, err
		}
		left -= len(buf)
		if _, err := copied.AppendAsFollower(buf, p.role.Load().LeaderEpoch); err != nil {
			return false, err
		}
	}
	if err := mv.bounds(copied, v.HighWatermark, v.LogStartOffset); err != nil {
		return false, err
	}
	w := copied.View()
	same := w.EndOffset == v.EndOffset && w.LogStartOffset == v.LogStartOffset && agree(w.Epochs, v.Epochs, v.LogStartOffset, v.EndOffset)
	w.Release()
	if !same {
		return false, nil // the next fetch finds where they part
	}
	if err := copied.AdoptEpochs(v.Epochs); err != nil {
		return false, err
	}
	from := p.directory()
	err = p.m.o.Dirs.Promote(log.TopicPartition{Topic: p.topic, Partition: p.id}, func(l *log.Log) {
		l.SetOnFlushed(p.flushed)
		p.held.Store(l)
	})
	if err != nil {
		return false, fmt.Errorf("%w: %w", errPromote, err)
	}
	p.m.moves.mu.Lock()
	delete(p.m.moves.all, p)
	p.m.moves.mu.Unlock()
	p.advanceLocked(p.m.now()) // what waited for a flush is durable in the copy
	role := p.role.Load()
	p.m.o.Logger.Info("replica has moved to another log directory", "topic", p.topic, "partition", p.id, "from", from, "to", mv.dest,
		"leaderEpoch", role.LeaderEpoch, "logStart", v.LogStartOffset, "highWatermark", v.HighWatermark, "endOffset", v.EndOffset)
	return true, nil
}

var errPromote = errors.New("the copy did not take the log's place")

// agree says whether a copy's epochs are those of the log from start to end, save reigns without records.
func agree(copied, log epoch.Cache, start, end int64) bool {
	if start == end {
		return true
	}
	entries := log.Entries()
	for _, e := range copied.Entries() {
		if e.StartOffset >= end {
			continue
		}
		at := slices.IndexFunc(entries, func(o epoch.Entry) bool { return o.Epoch == e.Epoch })
		// Compaction may have taken the first records of a reign from what was copied.
		if at < 0 || entries[at].StartOffset > e.StartOffset {
			return false
		}
	}
	a, known := copied.ForOffset(end - 1)
	b, wanted := log.ForOffset(end - 1)
	return known == wanted && a == b
}
