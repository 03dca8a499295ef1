package replica

import (
	"errors"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/record"
)

// Partition is a replica hosted on this broker. All methods may be called concurrently.
type Partition struct {
	topic   string
	id      int32
	topicID metadata.UUID
	m       *Manager
	traffic *topicTraffic
	// held is the log. It is replaced when the partition has moved to another log directory, with roleMu and mu held; the
	// old one can be read a while longer.
	held atomic.Pointer[log.Log]
	// leaderThrottled and followerThrottled say that replication quotas apply to this broker's replica.
	leaderThrottled, followerThrottled atomic.Bool

	// roleMu is held shared by an append and exclusively by a change of role: so a change of role waits for the append
	// in flight, and no append of an old reign comes after it.
	roleMu sync.RWMutex
	// mu guards state, and orders high watermark updates.
	mu    sync.Mutex
	state *State

	role atomic.Pointer[Role]  // state's, for readers
	gone atomic.Pointer[error] // why the partition cannot be used any more
	wait watchList
}

func newPartition(m *Manager, topic string, id int32, topicID metadata.UUID, l *log.Log, minISR int) *Partition {
	p := &Partition{topic: topic, id: id, topicID: topicID, m: m, traffic: m.traffic.join(topic), state: NewState(m.o.BrokerID, topic, id, minISR)}
	p.role.Store(p.state.Role())
	p.held.Store(l)
	l.SetOnFlushed(p.flushed)
	return p
}

// log is the log that serves.
func (p *Partition) log() *log.Log { return p.held.Load() }

// Topic, ID and TopicID say which partition this is.
func (p *Partition) Topic() string { return p.topic }

// ID is the partition's number.
func (p *Partition) ID() int32 { return p.id }

// TopicID is the id of the topic incarnation whose records the log holds.
func (p *Partition) TopicID() metadata.UUID { return p.topicID }

// Role is the present role, an immutable value.
func (p *Partition) Role() *Role { return p.role.Load() }

// Err is why the partition can no longer be used (deleted, reassigned, directory offline, log corrupt), or nil.
func (p *Partition) Err() error {
	if e := p.gone.Load(); e != nil {
		return *e
	}
	return nil
}

// Positions are the log's offsets now.
func (p *Partition) Positions() Positions {
	v := p.log().View()
	defer v.Release()
	return positionsOf(v)
}

// roleAndView are the role and the log of one moment: a log that was cut, or has grown, under a later role is never
// shown under an earlier one. The caller releases the view.
func (p *Partition) roleAndView() (*Role, *log.View) {
	for {
		role, l := p.role.Load(), p.log()
		v := l.View()
		if p.role.Load() == role && p.log() == l {
			return role, v
		}
		v.Release()
	}
}

func positionsOf(v *log.View) Positions {
	return Positions{
		LogStart: v.LogStartOffset, LocalLogStart: v.LocalLogStartOffset, HighWatermark: v.HighWatermark,
		LastStable: v.LastStableOffset, End: v.EndOffset, AckEnd: v.AckEnd,
	}
}

// usable checks that the partition is still here, and that it is the topic incarnation that is meant (zero: whichever).
func (p *Partition) usable(topicID metadata.UUID) error {
	if err := p.Err(); err != nil {
		return err
	}
	if topicID != (metadata.UUID{}) && p.topicID != (metadata.UUID{}) && topicID != p.topicID {
		return &InconsistentTopicIDError{Topic: p.topic, Partition: p.id, Requested: topicID, Have: p.topicID}
	}
	return nil
}

// stop ends the partition's use with err, the first of which stays, and wakes all who wait. An append in flight is
// waited for.
func (p *Partition) stop(err error) {
	p.roleMu.Lock()
	p.gone.CompareAndSwap(nil, &err)
	p.roleMu.Unlock()
	p.wait.all()
}

// lead takes over leadership as l says, or a changed ISR of the reign in force. changed is false when l is stale.
func (p *Partition) lead(l LeaderAndISR, now time.Time) (was, is *Role, changed bool, err error) {
	p.roleMu.Lock()
	p.mu.Lock()
	was = p.state.Role()
	v := p.log().View()
	end := v.EndOffset
	v.Release()
	start, ok := p.state.BecomeLeader(l, end, now)
	if ok && start.NewEpoch {
		_, err = p.log().BecomeLeader(l.LeaderEpoch)
	}
	is = p.state.Role()
	if ok && err == nil {
		p.role.Store(is)
		p.advanceLocked(now)
	}
	p.mu.Unlock()
	p.roleMu.Unlock()
	if err != nil {
		p.stop(err)
		return was, was, false, err
	}
	if ok {
		p.wait.all()
	}
	return was, is, ok, nil
}

// follow becomes a follower as l says. start is for the fetcher.
func (p *Partition) follow(l LeaderAndISR) (was, is *Role, start FollowerStart, changed bool) {
	p.roleMu.Lock()
	p.mu.Lock()
	was = p.state.Role()
	v := p.log().View()
	latest, known := v.Epochs.Latest()
	start, changed = p.state.BecomeFollower(l, positionsOf(v), latest.Epoch, known)
	v.Release()
	is = p.state.Role()
	p.role.Store(is)
	p.mu.Unlock()
	p.roleMu.Unlock()
	if changed {
		p.wait.all()
	}
	return was, is, start, changed
}

// advanceLocked moves the high watermark as far as the replicas allow, this one with what flush.messages lets it
// acknowledge: consumers see a record after its flush, followers may fetch it before. mu is held.
func (p *Partition) advanceLocked(now time.Time) (moved bool) {
	v := p.log().View()
	hw, end := v.HighWatermark, v.AckEnd
	v.Release()
	next, ok := p.state.NextHighWatermark(hw, end, now, p.m.o.ReplicaLagMax, p.m.broker)
	if ok {
		p.log().SetHighWatermark(next)
	}
	return ok
}

// moved wakes those who wait for what has just been reached.
func (p *Partition) moved() {
	if !p.wait.empty() {
		p.wait.passed(p.Positions())
	}
}

// flushed hears from the log that a flush which appends had left to it is done, or has failed.
func (p *Partition) flushed(err error) {
	if err != nil {
		_ = p.failedIO(err) // whoever waits asks the partition
		p.wait.all()
		return
	}
	p.mu.Lock()
	if p.Err() == nil {
		p.advanceLocked(p.m.now())
	}
	p.mu.Unlock()
	p.moved()
}

// setMinISR takes over a changed min.insync.replicas.
func (p *Partition) setMinISR(n int) {
	p.mu.Lock()
	p.state.SetMinISR(n)
	moved := p.Err() == nil && p.advanceLocked(p.m.now())
	p.mu.Unlock()
	if moved {
		p.moved()
	}
}

// append writes one batch as the leader. all: the rule of acks=all applies. leaderEpoch, unless -1, must be the one in
// force. The role cannot change before the batch is written and published. A batch that is written by a leader without
// other replicas is acknowledged with that.
func (p *Partition) append(records []byte, all bool, leaderEpoch int32, o log.AppendOptions) (info log.AppendInfo, role *Role, err error) {
	p.roleMu.RLock()
	role = p.role.Load()
	if err = p.Err(); err == nil {
		err = role.Check(leaderEpoch, leaderEpoch != NoEpoch, true)
	}
	if err == nil {
		p.mu.Lock()
		if all {
			err = p.state.CheckAppendAll()
		}
		o.Alone, o.Deferred = p.state.Alone(), true
		p.mu.Unlock()
	}
	if err == nil {
		info, err = p.log().AppendAsLeader(records, role.LeaderEpoch, o)
	}
	if err == nil && !info.Duplicate && !info.Replicated {
		p.mu.Lock()
		p.advanceLocked(p.m.now())
		p.mu.Unlock()
	}
	p.roleMu.RUnlock()
	if err != nil {
		return log.AppendInfo{}, role, p.failedIO(err)
	}
	p.moved()
	return info, role, nil
}

// failedIO looks whether err means that the log cannot go on, and stops the partition if so. A refused write that was
// taken back leaves it usable. It returns err, or what ended the partition when that is why the log was closed.
func (p *Partition) failedIO(err error) error {
	var storage *log.StorageError
	var corrupt *log.CorruptError
	switch {
	case errors.As(err, &storage) && storage.Offline:
		p.m.DirectoryOffline(storage.Dir, storage)
	case errors.As(err, &corrupt):
		if p.Err() == nil {
			p.log().MarkLost(corrupt)
			p.stop(err)
			p.m.lost(p.topicID, p.id)
		}
	case errors.Is(err, log.ErrClosed) && p.Err() != nil:
		return p.Err()
	}
	return err
}

// acked says whether a batch that was appended in epoch and ends below required is acknowledged by all in-sync replicas.
func (p *Partition) acked(required int64, epoch int32) (done bool, err error) {
	if err := p.Err(); err != nil {
		return true, err
	}
	// Role and high watermark are looked at together: a follower's high watermark, which may pass other records at these
	// offsets, is never taken for that of the reign before.
	p.mu.Lock()
	defer p.mu.Unlock()
	role := p.state.Role()
	if role.Kind != RoleLeader || epoch < role.LeadingSince {
		return true, role.notLeader()
	}
	v := p.log().View()
	defer v.Release()
	return p.state.AckedAll(required, v.HighWatermark)
}

// flushedTo says whether what was appended below required in epoch is as durable as flush.messages asks for.
func (p *Partition) flushedTo(required int64, epoch int32) (done bool, err error) {
	if err := p.Err(); err != nil {
		return true, err
	}
	role, v := p.roleAndView()
	defer v.Release()
	if v.EndOffset < required && (role.Kind != RoleLeader || epoch < role.LeadingSince) {
		return true, role.notLeader() // another leader's word has cut it off
	}
	return v.AckEnd >= required, nil
}

// followerFetched records a follower's fetch, made under role, and moves what it allows to move.
func (p *Partition) followerFetched(f FollowerFetch, role *Role) error {
	p.mu.Lock()
	now := p.state.Role()
	if now.LeaderEpoch != role.LeaderEpoch || now.Kind != RoleLeader {
		p.mu.Unlock()
		return now.notLeader()
	}
	if err := p.state.UpdateFollower(f, p.m.broker); err != nil {
		p.mu.Unlock()
		return err
	}
	v := p.log().View()
	hw := v.HighWatermark
	v.Release()
	change, propose := p.state.ProposeExpand(f.ReplicaID, hw, p.m.broker)
	p.advanceLocked(f.At)
	p.mu.Unlock()
	if propose {
		p.m.proposeISR(p, change)
	}
	p.moved()
	return nil
}

// shrinkISR takes laggards out of the in-sync set.
func (p *Partition) shrinkISR(now time.Time) {
	if p.Err() != nil || len(p.role.Load().ISR) < 2 {
		return
	}
	p.mu.Lock()
	v := p.log().View()
	end := v.EndOffset
	v.Release()
	change, ok := p.state.ProposeShrink(end, now, p.m.o.ReplicaLagMax, p.m.broker)
	p.mu.Unlock()
	if ok {
		p.m.proposeISR(p, change)
	}
}

// alterPartitionDone takes the controller's answer to an ISR change.
func (p *Partition) alterPartitionDone(sent AlterPartition, outcome AlterOutcome, returned LeaderAndISR) (was, is *Role, reaction AlterReaction) {
	p.roleMu.Lock()
	p.mu.Lock()
	was = p.state.Role()
	reaction = p.state.AlterPartitionDone(sent, outcome, returned)
	is = p.state.Role()
	p.role.Store(is)
	moved := reaction == AlterAdopted && p.Err() == nil && p.advanceLocked(p.m.now())
	p.mu.Unlock()
	p.roleMu.Unlock()
	if moved {
		p.moved()
	}
	return was, is, reaction
}

// AppendCoordinator appends a batch of an internal topic by the rules of acks=all. leaderEpoch is the epoch in which
// the caller became coordinator: if it is no longer the one in force nothing is written, and the error is a
// *FencedLeaderEpochError, *UnknownLeaderEpochError or *NotLeaderOrFollowerError. Nor is anything written when the log
// does not end at expectedEnd (unless that is -1): *log.UnexpectedOffsetError. The batch counts when the high watermark
// has passed last (WatchHighWatermark).
func (p *Partition) AppendCoordinator(records []byte, leaderEpoch int32, expectedEnd int64, c CoordinatorAppend) (base, last int64, err error) {
	o := log.AppendOptions{Origin: log.OriginCoordinator, CheckEndOffset: expectedEnd != NoOffset, ExpectedEndOffset: expectedEnd, Guard: c.Guard, TxnV2: c.TxnV2}
	info, _, err := p.append(records, true, leaderEpoch, o)
	if err != nil {
		return NoOffset, NoOffset, err
	}
	return info.BaseOffset, info.LastOffset, nil
}

// CoordinatorAppend is what goes with a coordinator's batch of a transaction, as in log.AppendOptions.
type CoordinatorAppend struct {
	Guard TxnGuard
	TxnV2 bool
}

// TxnGuard is log.TxnGuard, for the coordinator.
type TxnGuard = log.TxnGuard

// GuardTxnOffsets is log.Log's, of the leader.
func (p *Partition) GuardTxnOffsets(producerID int64, producerEpoch int16, v2 bool) (TxnGuard, error) {
	if err := p.Role().Check(NoEpoch, false, true); err != nil {
		return TxnGuard{}, err
	}
	return p.log().GuardTxnOffsets(producerID, producerEpoch, v2)
}

// MaxBatchBytes is the largest batch that the topic takes.
func (p *Partition) MaxBatchBytes() int { return int(p.log().Config().MaxMessageBytes) }

// WatchHighWatermark calls fn with the high watermark after each change of the partition, until cancel. fn is called
// without locks, on the goroutine that made the change; calls may overlap and come out of order, so keep the greatest. fn
// must not block. A call may still be under way when cancel returns.
func (p *Partition) WatchHighWatermark(fn func(hw int64)) (cancel func()) {
	w := &watch{kind: boundAny, waiter: callback(func() { fn(p.Positions().HighWatermark) })}
	p.wait.add(w)
	return w.remove
}

// ReadLog reads whole raw batches, the first of which holds offset, up to the log end, committed or not. It fills buf,
// grown if not even one batch fits, and returns the part that was read; nothing at the log end. Errors:
// *log.OffsetOutOfRangeError below the log start or above the end, what Err says, and failed reads.
func (p *Partition) ReadLog(offset int64, buf []byte) ([]byte, error) {
	if err := p.Err(); err != nil {
		return nil, err
	}
	v := p.log().View()
	defer v.Release()
	d, err := v.Read(offset, v.EndOffset, cap(buf), true)
	if err == nil {
		buf, err = d.ReadAll(buf[:0])
	}
	if err != nil {
		return nil, p.failedIO(err)
	}
	whole := 0
	for b, err := range record.Batches(buf) {
		if err != nil {
			return nil, err
		}
		whole += b.Length()
	}
	return buf[:whole], nil
}

// directory is the log directory the partition lies in.
func (p *Partition) directory() string { return filepath.Dir(p.log().Dir()) }
