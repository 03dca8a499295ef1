package control

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/stelelog/stele/internal/controller"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/quorum"
	"github.com/stelelog/stele/internal/vfs"
)

const (
	clusterID  = "simulated"
	listener   = "CONTROLLER"
	metaDir    = "/meta"
	idFile     = metaDir + "/directory.id" // stands in for meta.properties
	callWithin = 2 * time.Second           // controller.quorum.request.timeout.ms
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelError + 1}))

var (
	errPower = errors.New("power is gone")
	errDisk  = errors.New("input/output error")
)

// codes stands in for the server's table.
func codes(err error) int16 {
	var fenced *quorum.FencedLeaderEpochError
	var unknown *quorum.UnknownLeaderEpochError
	switch {
	case errors.As(err, &fenced):
		return 74
	case errors.As(err, &unknown):
		return 75
	case errors.Is(err, quorum.ErrNotLeaderOrFollower):
		return 6
	case errors.Is(err, quorum.ErrBrokerNotAvailable):
		return 8
	case errors.Is(err, quorum.ErrSnapshotNotFound):
		return 98
	case errors.Is(err, quorum.ErrPositionOutOfRange):
		return 99
	}
	return 42
}

// server is a controller's machine: a disk that outlives the process on it, a clock, and the process.
type server struct {
	w      *world
	id     int32
	static bool // it is in controller.quorum.voters

	mem  *vfs.Mem
	disk *vfs.Fault
	dir  metadata.UUID // of the disk, as the process has read it
	// once is the directories of this machine that were voters: one that was removed must not be added again.
	once    map[metadata.UUID]bool
	emptied bool // the disk is new, and no process has read it

	// The clock: what it showed at boot, and how many thousandths of a second it takes for each millisecond.
	booted time.Duration
	shown  time.Duration
	rate   int64

	life      int // of processes
	up        bool
	core      *quorum.Core
	formation *quorum.Formation
	downloads map[int32]*quorum.Download
	inbox     []func() error
	asked     []*quorum.Request
	running   bool
	busyUntil time.Duration
	again     bool          // a run is due at busyUntil
	wakeAt    time.Duration // when the process wakes by itself
	lag       time.Duration // how long the disk took in this turn

	// Faults of the disk.
	crashIn int // changes until the power goes; 0: it does not
	failIn  int // changes until the disk fails for good; 0: it does not
	dying   bool
	failing bool
	slow    time.Duration // how long a sync takes at most

	// What the checker has seen of this life.
	seen  int64 // end of the committed log that was compared
	term  int32
	image *metadata.Image
}

func (s *server) clock() time.Time {
	return epoch.Add(s.shown + time.Duration(int64(s.w.now-s.booted)*s.rate/1000))
}

// when is the instant at which the clock shows t.
func (s *server) when(t time.Time) time.Duration {
	return s.booted + time.Duration((int64(t.Sub(epoch)-s.shown)*1000+s.rate-1)/s.rate)
}

func (s *server) identity() quorum.Identity {
	return quorum.Identity{ClusterID: clusterID, NodeID: s.id, DirectoryID: s.dir}
}

func (s *server) voter() quorum.Voter {
	return quorum.Voter{
		VoterID: s.id, VoterDirectoryID: s.dir, Endpoints: []metadata.VoterEndpoint{{Name: listener, Host: "controller", Port: uint16(s.id)}},
		KRaftVersionFeature: metadata.VersionRange{Min: 0, Max: 1},
	}
}

// onDisk sees every operation of the disk.
func (s *server) onDisk(op vfs.Operation) *vfs.Failure {
	changes := op.Kind != vfs.OpRead && op.Kind != vfs.OpStat && op.Kind != vfs.OpReadDir && op.Kind != vfs.OpOpen
	short := 0
	if op.Bytes > 0 {
		short = s.w.rng.IntN(op.Bytes)
	}
	if changes && s.crashIn > 0 {
		if s.crashIn--; s.crashIn == 0 {
			s.dying = true
		}
	}
	if changes && s.failIn > 0 {
		if s.failIn--; s.failIn == 0 {
			s.failing = true
			s.w.count("disk failures")
		}
	}
	switch {
	case s.dying:
		return &vfs.Failure{Err: errPower, Short: short}
	case s.failing && changes:
		return &vfs.Failure{Err: errDisk, Short: short}
	}
	if op.Kind == vfs.OpSync || op.Kind == vfs.OpSyncDir {
		if s.slow > 0 {
			s.lag += s.w.between(0, s.slow)
		} else {
			s.lag += 20 * time.Microsecond
		}
	}
	return nil
}

// start boots a process on the disk.
func (s *server) start() {
	if s.up {
		return
	}
	w := s.w
	s.life++
	s.up, s.dying, s.failing, s.crashIn, s.failIn, s.slow = true, false, false, 0, 0, 0
	s.booted, s.shown, s.rate = w.now, w.now+w.between(0, 10*time.Second)-5*time.Second, 950+w.rng.Int64N(101)
	if w.calm {
		s.shown, s.rate = w.now, 1000
	}
	s.inbox, s.asked, s.busyUntil, s.again, s.wakeAt, s.lag = nil, nil, 0, false, -1, 0
	s.downloads = map[int32]*quorum.Download{}
	s.seen, s.term, s.image = -1, -1, nil
	s.disk = vfs.NewFault(s.mem)
	s.disk.Watch(s.onDisk)
	w.mark("start", int64(s.id))
	if err := s.boot(); err != nil || s.dying {
		s.failed(err)
	}
}

func (s *server) boot() error {
	if err := s.format(); err != nil {
		return err
	}
	forming, err := quorum.Forming(s.disk, metaDir)
	if err != nil {
		return err
	}
	if !forming {
		return s.open()
	}
	s.formation = quorum.NewFormation(s.voter, s.w.static)
	s.askAround(s.life)
	return nil
}

// format makes an empty disk a controller's, and reads whose it is.
func (s *server) format() error {
	s.emptied = false
	raw, err := vfs.ReadFile(s.disk, idFile)
	if err == nil {
		copy(s.dir[:], raw)
		return nil
	}
	if err := s.disk.MkdirAll(metaDir, 0o755); err != nil {
		return err
	}
	if err := s.disk.SyncDir("/"); err != nil {
		return err
	}
	var known bool
	if s.dir, known = quorum.StoredDirectoryID(s.disk, metaDir); !known {
		s.dir = metadata.NewUUID(bytesOf{s.w.rng})
		if s.static {
			err = quorum.MarkForming(s.disk, metaDir)
		} else {
			err = s.formatNoVoter()
		}
		if err != nil {
			return err
		}
	}
	return vfs.WriteFileAtomic(s.disk, idFile, s.dir[:])
}

type bytesOf struct{ r *rand.Rand }

func (b bytesOf) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(b.r.Uint64() >> 32)
	}
	return len(p), nil
}

func (s *server) formatNoVoter() error {
	return quorum.FormatNoVoter(quorum.FormatOptions{
		FS: s.disk, Dir: metaDir, Identity: s.identity(), Bootstrap: metadata.BootstrapRecords(s.w.level), Now: s.clock,
	})
}

// askAround asks the other voters what they know, until the quorum is formed.
func (s *server) askAround(life int) {
	if !s.alive(life) || s.formation == nil {
		return
	}
	for _, id := range s.w.static {
		if id == s.id {
			continue
		}
		peer, from, st := s.w.servers[id], s.identity(), s.formation.Statement()
		s.w.net.call(s.id, id, callWithin, func(answer func(any)) {
			if !peer.up {
				return
			}
			if peer.formation != nil {
				peer.formation.Heard(from, st)
			}
			said, who := quorum.Statement{}, peer.identity()
			switch {
			case peer.core != nil:
				said = peer.core.Statement(peer.voter())
			case peer.formation != nil:
				said = peer.formation.Statement()
			default:
				return
			}
			answer(func() { s.formation.Heard(who, said) })
		}, func(answer any, ok bool) {
			if ok && s.alive(life) && s.formation != nil {
				answer.(func())()
				s.decide()
			}
		})
	}
	s.w.after(50*time.Millisecond, func() { s.askAround(life) })
}

// decide follows what the formation has come to.
func (s *server) decide() {
	voters, _, err := s.formation.Decide()
	var emptied *quorum.EmptiedDiskError
	switch {
	case errors.As(err, &emptied):
		s.w.count("emptied disks refused")
		if err = s.formatNoVoter(); errors.Is(err, quorum.ErrFormatted) {
			err = nil
		}
	case err != nil:
	case voters == nil:
		return
	default:
		err = quorum.Format(quorum.FormatOptions{
			FS: s.disk, Dir: metaDir, Identity: s.identity(), Voters: voters, Bootstrap: metadata.BootstrapRecords(s.w.level), Now: s.clock,
		})
		s.formation.Wrote()
	}
	if err == nil {
		err = quorum.Formed(s.disk, metaDir)
	}
	if err == nil {
		err = s.open()
	}
	if err != nil || s.dying {
		s.failed(err)
	}
}

func (s *server) open() error {
	s.formation = nil
	life := s.life
	core, err := quorum.OpenCore(quorum.Options{
		FS: s.disk, Dir: metaDir, Identity: s.identity(),
		Controller: controller.Options{NodeID: s.id, ClusterID: clusterID, Static: s.w.config, Rand: rand.New(rand.NewPCG(s.w.rng.Uint64(), 1))},
		Config: quorum.Config{SegmentBytes: 1 << 15, Snapshots: quorum.SnapshotRules{
			BytesBetween: 15_000, MaxInterval: 2 * time.Minute, RetentionBytes: 60_000, DeleteDelay: 5 * time.Second,
		}},
		Endpoints: s.voter().Endpoints, Transport: transport{s}, ErrorCode: codes, Now: s.clock, Logger: quiet,
		Beside: func(work func()) { s.beside(life, work) },
	})
	if err != nil {
		return err
	}
	s.core = core
	s.running = true
	err = core.Begin()
	s.running = false
	if err != nil {
		return err
	}
	s.w.check.after(s)
	s.sleep()
	return nil
}

// beside writes a snapshot later, and reports it later still.
func (s *server) beside(life int, work func()) {
	s.w.after(s.w.between(0, 30*time.Millisecond), func() {
		if !s.alive(life) {
			return
		}
		work()
		if s.dying {
			s.failed(errPower)
			return
		}
		s.w.count("snapshots")
		s.w.after(s.w.between(0, 30*time.Millisecond), func() {
			if s.alive(life) {
				s.post(s.core.SnapshotWritten)
			}
		})
	})
}

func (s *server) alive(life int) bool { return s.up && s.life == life }

// post has the process do something when it can, and then take its turn.
func (s *server) post(f func() error) {
	if s.up && s.core != nil {
		s.inbox = append(s.inbox, f)
		s.run()
	}
}

// ask brings a request to the controller.
func (s *server) ask(r *quorum.Request) {
	s.asked = append(s.asked, r)
	s.run()
}

// run does what has come in, unless the process stands still.
func (s *server) run() {
	if s.running || !s.up || s.core == nil || s.w.err != nil {
		return
	}
	if s.busyUntil > s.w.now {
		if !s.again {
			s.again = true
			life := s.life
			s.w.at(s.busyUntil, func() {
				if s.alive(life) {
					s.again = false
					s.run()
				}
			})
		}
		return
	}
	// Which of what waits comes first is anybody's guess, as where a process selects among channels.
	inbox, asked := s.inbox, s.asked
	s.inbox, s.asked = nil, nil
	switch {
	case len(inbox) == 0 || len(asked) == 0:
	case s.w.chance(40):
		s.inbox, inbox = inbox, nil
	case s.w.chance(40):
		s.asked, asked = asked, nil
	}
	s.lag, s.running = 0, true
	var err error
	for _, f := range inbox {
		if err = f(); err != nil {
			break
		}
	}
	if err == nil {
		err = s.core.Turn(asked)
	}
	s.running = false
	if err != nil || s.dying {
		s.failed(err)
		return
	}
	s.w.check.after(s)
	s.busyUntil = s.w.now + s.lag
	if len(s.inbox)+len(s.asked) > 0 {
		s.run()
	}
	s.sleep()
}

// sleep sees to it that the process wakes when it wants to.
func (s *server) sleep() {
	if !s.up || s.core == nil {
		return
	}
	at := max(s.when(s.core.Deadline()), s.w.now, s.busyUntil)
	if at == s.wakeAt {
		return
	}
	s.wakeAt = at
	life := s.life
	s.w.at(at, func() {
		if s.alive(life) && s.wakeAt == at {
			s.wakeAt = -1
			s.run()
		}
	})
}

// failed is the end of a process whose disk has failed, or lost its power; anything else must not happen.
func (s *server) failed(err error) {
	s.w.check.ended()
	switch {
	case s.dying:
		s.crash(pick(s.w.loop, []vfs.Loss{vfs.LoseNothing, vfs.LoseUnsynced, vfs.LoseSome}))
	case s.failing:
		s.w.note("controller %d: its disk fails", s.id)
		if s.core != nil {
			s.running = true
			s.core.Abandon()
			_ = s.core.Close(err)
			s.running = false
		}
		s.end(pick(s.w.loop, []vfs.Loss{vfs.LoseNothing, vfs.LoseUnsynced, vfs.LoseSome}))
	default:
		s.w.fail("controller %d stops without cause: %v", s.id, err)
	}
}

// crash ends the process at once.
func (s *server) crash(loss vfs.Loss) {
	if !s.up {
		return
	}
	s.w.count("controller crashes")
	s.w.note("controller %d crashes, loss %d", s.id, loss)
	s.end(loss)
}

// stop ends the process as it wants to be ended.
func (s *server) stop() {
	if !s.up || s.core == nil {
		return
	}
	s.w.count("controller stops")
	s.w.note("controller %d stops", s.id)
	s.running = true
	s.core.Abandon()
	err := s.core.Close(nil)
	s.running = false
	if err != nil && !s.dying && !s.failing {
		s.w.fail("controller %d does not stop: %v", s.id, err)
	}
	s.end(vfs.LoseNothing)
}

func (s *server) end(loss vfs.Loss) {
	life, voter := s.life, s.voter()
	s.up, s.core, s.formation, s.inbox, s.asked = false, nil, nil, nil, nil
	if loss != vfs.LoseNothing {
		s.mem = s.mem.CrashClone(loss, s.w.rng.Uint64())
	}
	// Who had a connection sees that it is closed, and looks whether anybody listens.
	for _, id := range s.w.serverIDs {
		peer := s.w.servers[id]
		if peer == s || !s.w.chance(70) {
			continue
		}
		s.w.net.once(s.id, peer.id, func() {
			if s.life == life && !s.up {
				peer.post(func() error { return peer.core.VoterGone(voter) })
			}
		})
	}
	s.w.after(s.w.between(100*time.Millisecond, 8*time.Second), func() {
		if s.life == life && !s.up {
			s.start()
		}
	})
}

// transport brings what one server's raft says to others.
type transport struct{ s *server }

func (t transport) Send(to quorum.Voter, messages []*pb.Message) {
	s := t.s
	peer := s.w.servers[to.VoterID]
	if peer == nil || s.dying {
		return
	}
	from, self, life := s.identity(), s.voter(), s.life
	report := func(f func()) {
		if s.alive(life) && s.core != nil {
			s.post(func() error { f(); return nil })
		}
	}
	for _, m := range messages {
		raw, err := proto.Marshal(m)
		if err != nil {
			s.w.fail("message: %v", err)
			return
		}
		if m.GetType() == pb.MsgSnap {
			s.w.count("snapshots sent")
			s.w.net.call(s.id, to.VoterID, 20*time.Second, func(answer func(any)) {
				peer.take(from, self, raw, func(taken bool) { answer(taken) })
			}, func(answer any, ok bool) {
				report(func() {
					if ok && answer.(bool) {
						s.core.SnapshotDelivered(to)
					} else {
						s.core.SnapshotLost(to)
					}
				})
			})
			continue
		}
		sent := s.w.net.send(s.id, to.VoterID, s.lag, func() { peer.take(from, self, raw, nil) })
		if !sent && s.w.chance(20) {
			s.w.after(s.w.between(20*time.Millisecond, 2*time.Second), func() { report(func() { s.core.Unreachable(to) }) })
		}
	}
}

// take takes a message as Mesh does; done hears what became of it.
func (s *server) take(from quorum.Identity, self quorum.Voter, raw []byte, done func(taken bool)) {
	if done == nil {
		done = func(bool) {}
	}
	if !s.up {
		return
	}
	if s.core == nil || s.core.Admit(from) != nil {
		s.w.counts["messages refused"]++
		done(false)
		return
	}
	m := new(pb.Message)
	if err := proto.Unmarshal(raw, m); err != nil {
		s.w.fail("message: %v", err)
		return
	}
	receive := func() {
		s.post(func() error {
			s.core.Meet(self)
			err := s.core.Receive(from, []*pb.Message{m})
			done(err == nil)
			return err
		})
	}
	if m.GetType() != pb.MsgSnap {
		receive()
		return
	}
	d, err := quorum.NewDownload(m, s.downloads[from.NodeID])
	switch {
	case err != nil:
		s.w.fail("snapshot: %v", err)
	case d == nil:
		receive()
	default:
		s.downloads[from.NodeID] = d
		s.fetchPiece(s.life, from.NodeID, d, m, receive, done)
	}
}

// fetchPiece fetches one piece of a snapshot after another.
func (s *server) fetchPiece(life int, leader int32, d *quorum.Download, m *pb.Message, receive func(), done func(bool)) {
	req := d.Request(s.identity(), int32(m.GetTerm()))
	req.MaxBytes = 1000 + s.w.rng.Int32N(8000)
	s.w.net.call(s.id, leader, callWithin, func(answer func(any)) {
		s.w.servers[leader].fetchSnapshot(req, answer)
	}, func(answer any, ok bool) {
		if !s.alive(life) {
			return
		}
		if !ok {
			done(false)
			return
		}
		if s.downloads[leader] != d {
			done(false) // another message began it anew
			return
		}
		whole, err := d.Take(answer.(*kmsg.FetchSnapshotResponse))
		switch {
		case err != nil:
			done(false)
		case whole:
			delete(s.downloads, leader)
			d.Complete(m)
			s.w.count("snapshots fetched by controllers")
			receive()
		default:
			s.fetchPiece(life, leader, d, m, receive, done)
		}
	})
}

func (s *server) fetchSnapshot(req *kmsg.FetchSnapshotRequest, answer func(any)) {
	if s.up && s.core != nil && s.busyUntil <= s.w.now {
		answer(s.core.FetchSnapshot(req, listener))
	}
}

func (s *server) fetch(req *kmsg.FetchRequest, answer func(any)) {
	if s.up && s.core != nil && s.busyUntil <= s.w.now {
		answer(s.core.Fetch(context.Background(), req, listener))
	}
}
