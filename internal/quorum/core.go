package quorum

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync/atomic"
	"time"

	"github.com/stelelog/stele/internal/controller"
	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.etcd.io/raft/v3"
)

// Core is one voter of the quorum and its controller without goroutines and clocks: all that a Host decides. A Host drives
// it with the machine's time and network, a simulator with its own.
//
// It belongs to one goroutine, which calls Begin and then Turn, again and again: at the latest at Deadline, and after
// anything else it told the core. An error of any of its methods means that its disk can no longer be trusted: Abandon and
// Close follow. Admit, Status, Committed, Fetch and FetchSnapshot may be called concurrently.
type Core struct {
	o         Options
	log       *slog.Logger
	board     *statusBoard
	observers *observers

	full         atomic.Bool // the disk is, and everything waits for room
	kraftVersion int16

	node    *node
	machine *machine
	keeper  *keeper
	mirror  metadata.QuorumState // as last written
	// nextTick is when raft's clock moves on.
	nextTick time.Time
	// canvassing is when this voter stands for election out of turn, canvasses how often it still does; see canvass.
	canvassing time.Time
	canvasses  int
	served     bool                  // it was active, or has followed a leader
	change     *memberChange         // of the voters, nil if none is under way
	met        map[uint64]Voter      // those whom this controller has met before it knew the voters, by raft id
	heard      map[uint64]voterTimes // of the other voters in this leader's reign, by raft id
}

// Request is a Do on its way.
type Request struct {
	// Run computes what is to be appended; see Host.Do.
	Run func(c *controller.Controller, now time.Time, nextOffset int64) (controller.Result, error)
	// Done hears the reply or the error, once, on the goroutine that owns the core.
	Done func(reply any, err error)
}

// OpenCore reads back this voter's state, log and newest snapshot, as Open does. Nothing happens before Begin.
func OpenCore(o Options) (*Core, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.ErrorCode == nil {
		o.ErrorCode = func(error) int16 { return -1 }
	}
	if o.Beside == nil {
		o.Beside = func(work func()) { go work() }
	}
	o.Config = o.Config.complete()
	lc := log.DefaultConfig()
	lc.SegmentBytes, lc.SegmentMs = o.Config.SegmentBytes, o.Config.SegmentMs
	lc.Cleanup, lc.MaxMessageBytes = log.CleanupNone, math.MaxInt32
	dir := partitionDir(o.Dir)
	store, err := openStorage(storageOptions{fs: o.FS, dir: dir, self: o.Identity, logConfig: lc, now: o.Now, logger: o.Logger})
	if err != nil {
		return nil, err
	}
	c, err := newCore(o, store, dir)
	if err != nil {
		return nil, errors.Join(err, store.log.Close())
	}
	return c, nil
}

func newCore(o Options, store *storage, dir string) (*Core, error) {
	n, err := newNode(store, nodeConfig{electionTicks: ticksPerElection, heartbeatTicks: 1, maxMessage: 1 << 20, logger: o.Logger})
	if err != nil {
		return nil, err
	}
	c := &Core{o: o, log: o.Logger, node: n, mirror: metadata.QuorumState{LeaderID: -2}, met: map[uint64]Voter{}, heard: map[uint64]voterTimes{}}
	store.waitForRoom, store.hasRoom = c.waitForRoom, func() { c.full.Store(false) }
	if c.keeper, err = newKeeper(o.FS, dir, store, o.Config.Snapshots, o.Now(), o.Beside, o.Logger); err != nil {
		return nil, err
	}
	for _, rec := range c.keeper.head {
		if version, ok := rec.(*metadata.KRaftVersion); ok {
			c.kraftVersion = version.KRaftVersion
		}
	}
	o.Controller.KRaftVersion = c.kraftVersion
	level, err := readBootstrap(o.FS, o.Dir)
	if err != nil {
		return nil, err
	}
	c.machine = newMachine(controller.New(o.Controller), n, level, o.Logger)
	if err := c.machine.load(o.FS, dir, store.state.snapshot); err != nil {
		return nil, err
	}
	c.board = newStatusBoard(Status{LeaderID: -1, LeaderEpoch: int32(n.term), HighWatermark: -1, Voters: c.endpoints(n.voters), snapshots: c.keeper.list})
	c.observers = &observers{
		clusterID: o.Identity.ClusterID, nodeID: o.Identity.NodeID, fs: o.FS, dir: dir, log: store.log, board: c.board,
		now: o.Now, code: o.ErrorCode, seen: map[observerKey]observer{},
	}
	return c, nil
}

// Begin starts to vote, to lead and to answer. The only voter of a quorum leads when it returns.
func (c *Core) Begin() error {
	if err := c.settle(); err != nil {
		return err
	}
	if c.node.alone() {
		if err := c.node.campaign(); err != nil {
			return err
		}
	} else {
		// Either all have just started, and nobody's silence has to be waited out, or there is a leader, and nobody who
		// hears it listens to this voter.
		c.canvass()
	}
	c.nextTick = c.o.Now().Add(c.tickInterval())
	return c.settle()
}

func (c *Core) tickInterval() time.Duration { return c.o.Config.ElectionTimeout / ticksPerElection }

// Turn is one round: it moves raft's clock on if it is time to, lets raft do what it has ready (drain: save, then send, then
// apply), and, while active, proposes what was asked for and drains again: all that was proposed together is one write
// and one sync.
func (c *Core) Turn(asked []*Request) error {
	now := c.o.Now()
	if !now.Before(c.nextTick) {
		c.nextTick = now.Add(c.tickInterval())
		if err := c.node.tick(); err != nil {
			return err
		}
	}
	if err := c.stand(now); err != nil {
		return err
	}
	if err := c.settle(); err != nil {
		return err
	}
	if err := c.propose(now, asked); err != nil {
		return err
	}
	if err := c.keep(now); err != nil {
		return err
	}
	return c.settle()
}

// Deadline is when there is something to do even if nothing comes in.
func (c *Core) Deadline() time.Time {
	next := c.nextTick
	if at, ok := c.machine.nextDeadline(); ok && at.Before(next) {
		next = at
	}
	if c.canvasses > 0 && c.canvassing.Before(next) {
		next = c.canvassing
	}
	return next
}

// Abandon tells all who wait that what they asked for may be lost, and shows no more leadership.
func (c *Core) Abandon() {
	c.machine.abandon()
	c.abandonChange()
	c.board.update(func(s *Status) { s.closing, s.Active = true, false })
}

// Close waits for a snapshot that is being written and closes the log. err is why the core ended, nil if it was asked to.
func (c *Core) Close(err error) error {
	c.keeper.wait()
	if err == nil {
		return c.node.store.close()
	}
	return errors.Join(err, c.node.store.log.Close())
}

// Status is the quorum as of now.
func (c *Core) Status() *Status { return c.board.get() }

// Log is the metadata log, whose views may be read.
func (c *Core) Log() *log.Log { return c.node.store.log }

// Committed is the newest committed image.
func (c *Core) Committed() *metadata.Image { return c.machine.image.Load() }

// Fetch and FetchSnapshot are as Host's.
func (c *Core) Fetch(ctx context.Context, req *kmsg.FetchRequest, listener string) *kmsg.FetchResponse {
	return c.observers.fetch(ctx, req, listener)
}

// FetchSnapshot answers a FetchSnapshot that came in on the named listener.
func (c *Core) FetchSnapshot(req *kmsg.FetchSnapshotRequest, listener string) *kmsg.FetchSnapshotResponse {
	return c.observers.fetchSnapshot(req, listener)
}

// setEndpoints says where this node's controller listeners are.
func (c *Core) setEndpoints(endpoints []metadata.VoterEndpoint) {
	c.o.Endpoints = endpoints
	c.board.update(func(s *Status) { s.Voters = c.endpoints(c.node.voters) })
}

// waitForRoom pauses while the disk is full: a leader answers nobody, a follower is one vote and one copy less. One
// that has not begun to serve does not wait, but fails its start.
func (c *Core) waitForRoom() bool {
	if !c.served || c.o.Pause == nil {
		return false
	}
	if !c.full.Swap(true) && c.o.NeedRoom != nil {
		c.o.NeedRoom()
	}
	return c.o.Pause(roomInterval)
}

// roomInterval is how often a full disk is tried again.
const roomInterval = 100 * time.Millisecond

// canvassInterval is how long one voter waits for another's election out of turn, canvassTries how often it tries.
const (
	canvassInterval = 50 * time.Millisecond
	canvassTries    = 20
)

// canvass makes this voter stand for election soon, because there is no leader and nobody's silence has to be waited
// out: this process has just started, or the leader's has ended. The voters take turns, in the order of their ids.
func (c *Core) canvass() {
	turn := 0
	if len(c.node.voters) == 0 {
		return // nobody's vote, yet
	}
	for _, v := range c.node.voters {
		if v.VoterID < c.o.Identity.NodeID && raftIDOf(v) != c.node.leader {
			turn++
		}
	}
	c.canvassing, c.canvasses = c.o.Now().Add(time.Duration(turn+1)*canvassInterval), canvassTries
}

// stand campaigns when it is time to. It is over once a leader is known; else raft's own timeout goes on.
func (c *Core) stand(now time.Time) error {
	if c.canvasses == 0 || now.Before(c.canvassing) {
		return nil
	}
	c.canvasses--
	if c.node.leader != 0 {
		c.canvasses = 0
		return nil
	}
	c.canvassing = now.Add(time.Duration(len(c.node.voters)) * canvassInterval)
	if c.node.role != raft.StateFollower && c.node.role != raft.StatePreCandidate {
		return nil
	}
	return c.node.campaign()
}

// propose computes, appends and replays what was asked for, and what is due by the clock.
func (c *Core) propose(now time.Time, asked []*Request) error {
	if !c.machine.active {
		for _, r := range asked {
			r.Done(nil, ErrNotController)
		}
		return nil
	}
	if err := c.machine.handle(asked, now); err != nil {
		return err
	}
	if err := c.machine.tick(now); err != nil {
		return err
	}
	if err := c.machine.ask(); err != nil {
		return err
	}
	return c.settle()
}

// settle lets raft do all it has ready, and follows what that means for the controller and those who watch.
func (c *Core) settle() error {
	for {
		err := c.node.drain(follower{send: c.send, restored: c.restored, moved: c.machine.moved, applied: c.applied, confirmed: c.machine.confirmed})
		if err != nil {
			return err
		}
		if err := c.machine.verify(); err != nil {
			return err
		}
		changed := c.follow()
		activated, err := c.machine.activate(c.o.Now())
		if err != nil {
			return err
		}
		c.publish(changed)
		if !activated && !c.node.raft.HasReady() {
			break
		}
	}
	return c.writeMirror()
}

// follow notices a change of leader or epoch.
func (c *Core) follow() (changed bool) {
	s := c.board.get()
	leaderID := c.leaderID()
	if s.LeaderID == leaderID && s.LeaderEpoch == int32(c.node.term) && s.Leading == c.node.leading() {
		return false
	}
	c.observers.forget()
	clear(c.heard)
	c.abandonChange()
	c.log.Info("leader of the metadata log changed", "topic", TopicName, "partition", 0, "fromLeader", s.LeaderID,
		"toLeader", leaderID, "fromEpoch", s.LeaderEpoch, "toEpoch", c.node.term, "endOffset", c.node.store.runs.nextOffs, "cause", c.node.role.String())
	return true
}

// leaderID is the node that leads, -1 while nobody is known.
func (c *Core) leaderID() int32 {
	if c.node.leader == 0 {
		return -1
	}
	for _, v := range c.node.voters {
		if raftIDOf(v) == c.node.leader {
			return v.VoterID
		}
	}
	return -1
}

// publish shows what is known now, if it is news.
func (c *Core) publish(changed bool) {
	s := c.board.get()
	// A new leader does not know how far its predecessor had committed before its own first entry is.
	hw := int64(-1)
	if c.machine.known() {
		hw = c.node.applied.EndOffset
	}
	if !changed && s.HighWatermark == hw && s.Active == c.machine.serving() {
		return
	}
	if hw >= 0 {
		c.node.store.setHighWatermark(hw)
	}
	c.served = c.served || c.machine.serving() || c.leaderID() >= 0 && !c.node.leading()
	c.board.update(func(s *Status) {
		s.LeaderID, s.LeaderEpoch, s.Leading = c.leaderID(), int32(c.node.term), c.node.leading()
		s.HighWatermark, s.Active = hw, c.machine.serving()
		s.Voters, s.snapshots = c.endpoints(c.node.voters), c.keeper.list
	})
}

// writeMirror keeps quorum-state in step with raft's term, vote and leader.
func (c *Core) writeMirror() error {
	q := metadata.QuorumState{LeaderID: c.leaderID(), LeaderEpoch: int32(c.node.term), VotedID: -1}
	for _, v := range c.node.voters {
		q.CurrentVoters = append(q.CurrentVoters, v.VoterID)
		if raftIDOf(v) == c.node.vote {
			q.VotedID = v.VoterID
		}
	}
	if q.LeaderID == c.mirror.LeaderID && q.LeaderEpoch == c.mirror.LeaderEpoch && q.VotedID == c.mirror.VotedID && len(q.CurrentVoters) == len(c.mirror.CurrentVoters) {
		return nil
	}
	if err := writeQuorumState(c.o.FS, c.node.store.dir, q); err != nil && !log.IsFull(err) {
		return err
	} else if err == nil {
		c.mirror = q
	}
	return nil
}

// applied takes a committed entry.
func (c *Core) applied(e committed) error {
	c.keeper.grew(len(e.Batch))
	if c.changed(e.Entry) && c.node.leading() {
		if err := c.machine.askAgain(); err != nil {
			return err
		}
	}
	return c.machine.apply(e)
}

// restored takes over a snapshot that the leader sent.
func (c *Core) restored(at position) error {
	if err := c.keeper.reload(c.o.Now()); err != nil {
		return err
	}
	if err := c.machine.load(c.o.FS, c.node.store.dir, at); err != nil {
		return fmt.Errorf("snapshot from the leader: %w", err)
	}
	return nil
}

// endpoints is voters with this node's own endpoints as they are now.
func (c *Core) endpoints(voters []Voter) []Voter {
	out := append([]Voter(nil), voters...)
	for i := range out {
		if out[i].VoterID == c.o.Identity.NodeID && len(c.o.Endpoints) > 0 {
			out[i].Endpoints = c.o.Endpoints
		}
	}
	return out
}
