// Package quorum keeps the metadata log: it hosts raft, whose log that is, and the controller, whose state machine
// runs on it, and shows the log to its observers.
//
// One goroutine owns raft and the controller. Whatever comes in waits in a queue for it; see loop. The log's bytes
// and the published Status may be read by anybody.
package quorum

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stelelog/stele/internal/controller"
	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/vfs"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.etcd.io/raft/v3"
)

// Config is the part of the node's settings that concerns the quorum. Zero fields take Kafka's defaults.
type Config struct {
	SegmentBytes int32         // metadata.log.segment.bytes
	SegmentMs    int64         // metadata.log.segment.ms
	Snapshots    SnapshotRules // when to snapshot, and how much to keep
	// ElectionTimeout is controller.quorum.election.timeout.ms: how long followers bear with a silent leader, up to
	// twice as long.
	ElectionTimeout time.Duration
}

func (c Config) complete() Config {
	if c.SegmentBytes == 0 {
		c.SegmentBytes = 1 << 30
	}
	if c.SegmentMs == 0 {
		c.SegmentMs = 7 * 24 * 3600 * 1000
	}
	if c.ElectionTimeout == 0 {
		c.ElectionTimeout = time.Second
	}
	c.Snapshots = c.Snapshots.complete()
	return c
}

// Options is what a host is made with. FS, Dir, Identity and Controller.Rand are required.
type Options struct {
	FS       vfs.FS
	Dir      string // the metadata directory; the log lies in its __cluster_metadata-0
	Identity Identity
	// Controller is what the hosted controller is made with.
	Controller controller.Options
	Config     Config
	// Endpoints are this node's own controller listeners, named in answers. SetEndpoints changes them.
	Endpoints []metadata.VoterEndpoint
	// Transport reaches the other voters; nil if there are none.
	Transport Transport
	// ErrorCode is the table from errors to protocol codes, the server's.
	ErrorCode func(error) int16
	// NeedRoom hears, on the goroutine that must not wait, that the disk of the metadata log is full; nil: nobody.
	NeedRoom func()
	Now      func() time.Time // nil: time.Now
	Logger   *slog.Logger     // nil: slog.Default()
}

const (
	// ticksPerElection is how many of raft's ticks make an election timeout.
	ticksPerElection = 10
	// maxBatchBytes is the largest batch of the metadata log.
	maxBatchBytes = 8 << 20
	// queueLength is how many requests wait before those who bring them do.
	queueLength = 1024
	// groupLimit is how many queued requests share one write to disk.
	groupLimit = 256
)

// Host runs one voter of the quorum and its controller.
type Host struct {
	o         Options
	log       *slog.Logger
	board     *statusBoard
	observers *observers

	full   atomic.Bool // the disk is, and everything waits for room
	queue  chan *request
	posts  chan func() error
	stop   chan struct{}
	done   chan struct{}
	start  sync.Once
	once   sync.Once
	failed error // why the loop ended; to be read after done

	kraftVersion int16

	// What follows belongs to the loop.
	node    *node
	machine *machine
	keeper  *keeper
	mirror  metadata.QuorumState // as last written
	// canvassing is when this voter stands for election out of turn, canvasses how often it still does; see canvass.
	canvassing time.Time
	canvasses  int
	served     bool             // it was active, or has followed a leader
	change     *memberChange    // of the voters, nil if none is under way
	met        map[uint64]Voter // those whom this controller has met before it knew the voters, by raft id
}

// request is a Do on its way.
type request struct {
	ctx   context.Context // whoever asked waits until its end
	fn    func(c *controller.Controller, now time.Time, nextOffset int64) (controller.Result, error)
	reply any
	err   error
	done  chan struct{}
}

func (r *request) finish(reply any, err error) {
	r.reply, r.err = reply, err
	close(r.done)
}

// Open reads back this voter's state, log and newest snapshot. The directory must be formatted (ErrNotFormatted) and
// this node's own (*ForeignDiskError); a state that contradicts itself is refused (*CorruptStateError,
// *LostEntriesError). Nothing runs before Start.
func Open(o Options) (*Host, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.ErrorCode == nil {
		o.ErrorCode = func(error) int16 { return -1 }
	}
	o.Config = o.Config.complete()
	c := log.DefaultConfig()
	c.SegmentBytes, c.SegmentMs = o.Config.SegmentBytes, o.Config.SegmentMs
	c.Cleanup, c.MaxMessageBytes = log.CleanupNone, math.MaxInt32
	dir := partitionDir(o.Dir)
	store, err := openStorage(storageOptions{fs: o.FS, dir: dir, self: o.Identity, logConfig: c, logger: o.Logger})
	if err != nil {
		return nil, err
	}
	h, err := newHost(o, store, dir)
	if err != nil {
		return nil, errors.Join(err, store.log.Close())
	}
	return h, nil
}

func newHost(o Options, store *storage, dir string) (*Host, error) {
	n, err := newNode(store, nodeConfig{electionTicks: ticksPerElection, heartbeatTicks: 1, maxMessage: 1 << 20, logger: o.Logger})
	if err != nil {
		return nil, err
	}
	h := &Host{
		o: o, log: o.Logger, node: n,
		queue: make(chan *request, queueLength), posts: make(chan func() error),
		stop: make(chan struct{}), done: make(chan struct{}),
		mirror: metadata.QuorumState{LeaderID: -2}, met: map[uint64]Voter{},
	}
	store.waitForRoom, store.hasRoom = h.waitForRoom, func() { h.full.Store(false) }
	if h.keeper, err = newKeeper(o.FS, dir, store, o.Config.Snapshots, o.Now(), o.Logger); err != nil {
		return nil, err
	}
	for _, rec := range h.keeper.head {
		if version, ok := rec.(*metadata.KRaftVersion); ok {
			h.kraftVersion = version.KRaftVersion
		}
	}
	level, err := readBootstrap(o.FS, o.Dir)
	if err != nil {
		return nil, err
	}
	h.machine = newMachine(controller.New(o.Controller), n, level, o.Logger)
	if err := h.machine.load(o.FS, dir, store.state.snapshot); err != nil {
		return nil, err
	}
	h.board = newStatusBoard(Status{LeaderID: -1, LeaderEpoch: int32(n.term), HighWatermark: -1, Voters: h.endpoints(n.voters), snapshots: h.keeper.list})
	h.observers = &observers{
		clusterID: o.Identity.ClusterID, nodeID: o.Identity.NodeID, fs: o.FS, dir: dir, log: store.log, board: h.board,
		now: o.Now, code: o.ErrorCode, seen: map[observerKey]observer{},
	}
	return h, nil
}

// Start begins to vote, to lead and to answer. The only voter of a quorum leads before it is asked twice.
func (h *Host) Start() { h.start.Do(func() { go h.loop() }) }

// Close stops the host and closes the log; requests that wait get ErrNotController, fetches ErrBrokerNotAvailable.
// Its error is why the host had failed before, or what failed on closing. A closed host cannot be started.
func (h *Host) Close() error {
	h.once.Do(func() { close(h.stop) })
	h.start.Do(func() {
		h.failed = h.node.store.close()
		close(h.done)
	})
	<-h.done
	return h.failed
}

// Done is closed when the host has stopped: by Close, or because its disk failed, which Err tells apart.
func (h *Host) Done() <-chan struct{} { return h.done }

// Err is why the host stopped by itself, nil while it runs.
func (h *Host) Err() error {
	select {
	case <-h.done:
		return h.failed
	default:
		return nil
	}
}

// Status is the quorum as of now.
func (h *Host) Status() *Status { return h.board.get() }

// LeaderAndEpoch is who leads (-1 if unknown) and in which epoch.
func (h *Host) LeaderAndEpoch() (leaderID, leaderEpoch int32) {
	s := h.board.get()
	return s.LeaderID, s.LeaderEpoch
}

// Committed is the newest committed image. It holds whatever a Do that has returned changed.
func (h *Host) Committed() *metadata.Image { return h.machine.image.Load() }

// WaitActive returns when this node is the active controller, or with ctx's error or why the host stopped.
func (h *Host) WaitActive(ctx context.Context) error {
	return h.waitFor(ctx, func(s *Status) bool { return s.Active })
}

// WaitLed returns when some node is known to lead, or with ctx's error or why the host stopped.
func (h *Host) WaitLed(ctx context.Context) error {
	return h.waitFor(ctx, func(s *Status) bool { return s.LeaderID >= 0 })
}

func (h *Host) waitFor(ctx context.Context, met func(*Status) bool) error {
	for {
		s := h.board.get()
		if met(s) {
			return nil
		}
		select {
		case <-s.Changed():
		case <-ctx.Done():
			return ctx.Err()
		case <-h.done:
			return errors.Join(ErrClosed, h.failed)
		}
	}
}

// SetEndpoints says where this node's controller listeners are, for answers that name it.
func (h *Host) SetEndpoints(endpoints []metadata.VoterEndpoint) error {
	return h.post(func() error {
		h.o.Endpoints = endpoints
		h.board.update(func(s *Status) { s.Voters = h.endpoints(h.node.voters) })
		return nil
	})
}

// endpoints is voters with this node's own endpoints as they are now.
func (h *Host) endpoints(voters []Voter) []Voter {
	out := append([]Voter(nil), voters...)
	for i := range out {
		if out[i].VoterID == h.o.Identity.NodeID && len(h.o.Endpoints) > 0 {
			out[i].Endpoints = h.o.Endpoints
		}
	}
	return out
}

// KRaftVersion is the finalized kraft.version: 1 where a directory that was taken over from Apache Kafka has its voters
// in the log, else 0. It never changes.
func (h *Host) KRaftVersion() int16 { return h.kraftVersion }

// Do runs fn on the goroutine that owns the controller, appends and replays the records it returns, which were
// computed as if the first of them stood at nextOffset, and returns its reply when they, or without records all
// before them, are committed. The error is fn's, the result's, ErrNotController, or ctx's; after the latter two the
// records may still get committed. fn may read the controller, and must not keep it.
func (h *Host) Do(ctx context.Context, fn func(c *controller.Controller, now time.Time, nextOffset int64) (controller.Result, error)) (any, error) {
	r := &request{ctx: ctx, fn: fn, done: make(chan struct{})}
	select {
	case h.queue <- r:
	case <-ctx.Done():
		return nil, h.gaveUp(ctx)
	case <-h.done:
		return nil, ErrNotController
	}
	select {
	case <-r.done:
		return r.reply, r.err
	case <-ctx.Done():
		return nil, h.gaveUp(ctx)
	case <-h.done:
		select {
		case <-r.done:
			return r.reply, r.err
		default:
			return nil, ErrNotController
		}
	}
}

// gaveUp is the error of a request that waited no longer.
func (h *Host) gaveUp(ctx context.Context) error {
	if h.full.Load() {
		return &NoRoomError{Dir: h.o.Dir, Err: ctx.Err()}
	}
	return ctx.Err()
}

// Fetch answers a Fetch of the metadata log that came in on the named listener, waiting as long as it says. It may be
// called concurrently.
func (h *Host) Fetch(ctx context.Context, req *kmsg.FetchRequest, listener string) *kmsg.FetchResponse {
	return h.observers.fetch(ctx, req, listener)
}

// FetchSnapshot answers a FetchSnapshot that came in on the named listener. It may be called concurrently.
func (h *Host) FetchSnapshot(req *kmsg.FetchSnapshotRequest, listener string) *kmsg.FetchSnapshotResponse {
	return h.observers.fetchSnapshot(req, listener)
}

// post runs f on the owning goroutine and waits for it to be taken, not for its end. An error of f stops the host.
func (h *Host) post(f func() error) error { return h.postWithin(context.Background(), f) }

// postWithin is post for who waits no longer than ctx: a host whose disk is full takes nothing for as long as that lasts.
func (h *Host) postWithin(ctx context.Context, f func() error) error {
	select {
	case h.posts <- f:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-h.done:
		return ErrClosed
	}
}

// loop owns raft and the controller. Each round takes what has come in, lets raft do what it has ready (drain: save,
// then send, then apply), and, while active, proposes what was asked for and drains again: all that was proposed
// together is one write and one sync.
func (h *Host) loop() {
	defer close(h.done)
	err := h.run()
	h.machine.abandon()
	h.abandonChange()
	h.board.update(func(s *Status) { s.closing, s.Active = true, false })
	for {
		select {
		case r := <-h.queue:
			r.finish(nil, ErrNotController)
			continue
		default:
		}
		break
	}
	if err != nil {
		h.log.Error("quorum host stops", "error", err)
	}
	h.keeper.wait()
	if err == nil {
		err = h.node.store.close()
	} else {
		err = errors.Join(err, h.node.store.log.Close())
	}
	h.failed = err
}

func (h *Host) run() error {
	if err := h.settle(); err != nil {
		return err
	}
	switch {
	case h.node.alone():
		if err := h.node.campaign(); err != nil {
			return err
		}
	default:
		// Either all have just started, and nobody's silence has to be waited out, or there is a leader, and nobody who
		// hears it listens to this voter.
		h.canvass()
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	tick := h.o.Config.ElectionTimeout / ticksPerElection
	nextTick := h.o.Now().Add(tick)
	for {
		if err := h.settle(); err != nil {
			return err
		}
		timer.Reset(h.wakeUp(nextTick))
		var asked []*request
		select {
		case <-h.stop:
			return nil
		case f := <-h.posts:
			if err := f(); err != nil {
				return err
			}
		case r := <-h.queue:
			asked = h.collect(r)
		case f := <-h.keeper.finished:
			if err := h.snapshotFinished(f); err != nil {
				return err
			}
		case <-timer.C:
			// What waits comes before the clock: a heartbeat that is in the queue is a sign of life.
			select {
			case r := <-h.queue:
				asked = h.collect(r)
			default:
			}
		}
		now := h.o.Now()
		if !now.Before(nextTick) {
			nextTick = now.Add(tick)
			if err := h.node.tick(); err != nil {
				return err
			}
		}
		if err := h.stand(now); err != nil {
			return err
		}
		if err := h.settle(); err != nil {
			return err
		}
		if err := h.propose(now, asked); err != nil {
			return err
		}
		if err := h.keep(now); err != nil {
			return err
		}
	}
}

// collect takes the requests that wait already together with the first.
func (h *Host) collect(first *request) []*request {
	var asked []*request
	for r := first; ; {
		if err := r.ctx.Err(); err != nil {
			r.finish(nil, err) // whoever asked has been told that it failed: it should have
		} else {
			asked = append(asked, r)
		}
		if len(asked) == groupLimit {
			return asked
		}
		select {
		case r = <-h.queue:
		default:
			return asked
		}
	}
}

// wakeUp is how long there is nothing to do if nothing comes in.
func (h *Host) wakeUp(nextTick time.Time) time.Duration {
	now := h.o.Now()
	next := nextTick
	if at, ok := h.machine.nextDeadline(); ok && at.Before(next) {
		next = at
	}
	if h.canvasses > 0 && h.canvassing.Before(next) {
		next = h.canvassing
	}
	return max(0, next.Sub(now))
}

// canvassInterval is how long one voter waits for another's election out of turn, canvassTries how often it tries.
const (
	canvassInterval = 50 * time.Millisecond
	canvassTries    = 20
)

// canvass makes this voter stand for election soon, because there is no leader and nobody's silence has to be waited
// out: this process has just started, or the leader's has ended. The voters take turns, in the order of their ids.
func (h *Host) canvass() {
	turn := 0
	if len(h.node.voters) == 0 {
		return // nobody's vote, yet
	}
	for _, v := range h.node.voters {
		if v.VoterID < h.o.Identity.NodeID && raftIDOf(v) != h.node.leader {
			turn++
		}
	}
	h.canvassing, h.canvasses = h.o.Now().Add(time.Duration(turn+1)*canvassInterval), canvassTries
}

// stand campaigns when it is time to. It is over once a leader is known; else raft's own timeout goes on.
func (h *Host) stand(now time.Time) error {
	if h.canvasses == 0 || now.Before(h.canvassing) {
		return nil
	}
	h.canvasses--
	if h.node.leader != 0 {
		h.canvasses = 0
		return nil
	}
	h.canvassing = now.Add(time.Duration(len(h.node.voters)) * canvassInterval)
	if h.node.role != raft.StateFollower && h.node.role != raft.StatePreCandidate {
		return nil
	}
	return h.node.campaign()
}

// propose computes, appends and replays what was asked for, and what is due by the clock.
func (h *Host) propose(now time.Time, asked []*request) error {
	if !h.machine.active {
		for _, r := range asked {
			r.finish(nil, ErrNotController)
		}
		return nil
	}
	for _, r := range asked {
		if err := h.machine.handle(r, now); err != nil {
			return err
		}
	}
	if err := h.machine.tick(now); err != nil {
		return err
	}
	return h.settle()
}

// settle lets raft do all it has ready, and follows what that means for the controller and those who watch.
func (h *Host) settle() error {
	for {
		err := h.node.drain(follower{send: h.send, restored: h.restored, moved: h.machine.moved, applied: h.applied})
		if err != nil {
			return err
		}
		if err := h.machine.verify(); err != nil {
			return err
		}
		changed := h.follow()
		activated, err := h.machine.activate(h.o.Now())
		if err != nil {
			return err
		}
		h.publish(changed)
		if !activated && !h.node.raft.HasReady() {
			break
		}
	}
	return h.writeMirror()
}

// roomInterval is how often a full disk is tried again.
const roomInterval = 100 * time.Millisecond

// waitForRoom pauses the host while its disk is full: a leader answers nobody, a follower is one vote and one copy less. One
// that has not begun to serve does not wait, but fails its start.
func (h *Host) waitForRoom() bool {
	if !h.served {
		return false
	}
	if !h.full.Swap(true) && h.o.NeedRoom != nil {
		h.o.NeedRoom()
	}
	timer := time.NewTimer(roomInterval)
	defer timer.Stop()
	select {
	case <-h.stop:
		return false
	case <-timer.C:
		return true
	}
}

// follow notices a change of leader or epoch.
func (h *Host) follow() (changed bool) {
	s := h.board.get()
	leaderID := h.leaderID()
	if s.LeaderID == leaderID && s.LeaderEpoch == int32(h.node.term) && s.Leading == h.node.leading() {
		return false
	}
	h.observers.forget()
	h.abandonChange()
	h.log.Info("leader of the metadata log changed", "topic", TopicName, "partition", 0, "fromLeader", s.LeaderID,
		"toLeader", leaderID, "fromEpoch", s.LeaderEpoch, "toEpoch", h.node.term, "endOffset", h.node.store.runs.nextOffs, "cause", h.node.role.String())
	return true
}

// leaderID is the node that leads, -1 while nobody is known.
func (h *Host) leaderID() int32 {
	if h.node.leader == 0 {
		return -1
	}
	for _, v := range h.node.voters {
		if raftIDOf(v) == h.node.leader {
			return v.VoterID
		}
	}
	return -1
}

// publish shows what is known now, if it is news.
func (h *Host) publish(changed bool) {
	s := h.board.get()
	// A new leader does not know how far its predecessor had committed before its own first entry is.
	hw := int64(-1)
	if h.machine.known() {
		hw = h.node.applied.EndOffset
	}
	if !changed && s.HighWatermark == hw && s.Active == h.machine.serving() {
		return
	}
	if hw >= 0 {
		h.node.store.setHighWatermark(hw)
	}
	h.served = h.served || h.machine.serving() || h.leaderID() >= 0 && !h.node.leading()
	h.board.update(func(s *Status) {
		s.LeaderID, s.LeaderEpoch, s.Leading = h.leaderID(), int32(h.node.term), h.node.leading()
		s.HighWatermark, s.Active = hw, h.machine.serving()
		s.Voters, s.snapshots = h.endpoints(h.node.voters), h.keeper.list
	})
}

// writeMirror keeps quorum-state in step with raft's term, vote and leader.
func (h *Host) writeMirror() error {
	q := metadata.QuorumState{LeaderID: h.leaderID(), LeaderEpoch: int32(h.node.term), VotedID: -1}
	for _, v := range h.node.voters {
		q.CurrentVoters = append(q.CurrentVoters, v.VoterID)
		if raftIDOf(v) == h.node.vote {
			q.VotedID = v.VoterID
		}
	}
	if q.LeaderID == h.mirror.LeaderID && q.LeaderEpoch == h.mirror.LeaderEpoch && q.VotedID == h.mirror.VotedID && len(q.CurrentVoters) == len(h.mirror.CurrentVoters) {
		return nil
	}
	if err := writeQuorumState(h.o.FS, h.node.store.dir, q); err != nil && !log.IsFull(err) {
		return err
	} else if err == nil {
		h.mirror = q
	}
	return nil
}

// applied takes a committed entry.
func (h *Host) applied(c committed) error {
	h.keeper.grew(len(c.Batch))
	h.changed(c.Entry)
	return h.machine.apply(c)
}

// restored takes over a snapshot that the leader sent.
func (h *Host) restored(at position) error {
	if err := h.keeper.reload(h.o.Now()); err != nil {
		return err
	}
	if err := h.machine.load(h.o.FS, h.node.store.dir, at); err != nil {
		return fmt.Errorf("snapshot from the leader: %w", err)
	}
	return nil
}
