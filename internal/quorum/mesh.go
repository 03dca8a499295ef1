package quorum

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/wire"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// MeshOptions is what a mesh is made with. All but Addresses are required.
type MeshOptions struct {
	Identity Identity
	// Addresses are those of controller.quorum.voters, by node id. They go before what voters say of themselves.
	Addresses map[int32]string
	// Listeners are the names of controller listeners by which voters are reached, the best first.
	Listeners []string
	Dial      wire.DialFunc
	// Timeout is controller.quorum.request.timeout.ms.
	Timeout   time.Duration
	ErrorCode func(error) int16
	Logger    *slog.Logger
}

const (
	// peerBatchBytes is about how many bytes of raft's messages go in one request.
	peerBatchBytes = 1 << 20
	// peerQueueBytes bounds what waits for one voter. What is beyond is lost, which raft makes up for.
	peerQueueBytes = 16 << 20
	// examineFor is the longest pause between looks at a voter that ended a connection and then, too soon, the next.
	examineFor = 128 * time.Millisecond
	// peerBackoff and peerBackoffMax are the pause after a voter could not be reached: doubled each time.
	peerBackoff, peerBackoffMax = 20 * time.Millisecond, 500 * time.Millisecond
	// peerIdle is after how long without a message the connection to a voter is given up.
	peerIdle = time.Minute
)

// Mesh connects this controller with the others, over their controller listeners: it carries raft's messages, brings
// snapshots, and forms a new quorum. It is a Transport.
//
// Messages to one voter go over one connection, one request at a time, so that they arrive in order; snapshots have a
// connection of their own. All methods may be called concurrently.
type Mesh struct {
	o       MeshOptions
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex
	closed bool
	self   Voter
	host   *Host // nil until it is there
	peers  map[uint64]*peer
	// downloads are snapshots that came in part.
	downloads map[uint64]*Download
	formation *Formation    // nil unless a quorum is being formed
	heard     chan struct{} // holds a token when formation has heard something
}

// NewMesh makes a mesh that knows nobody yet.
func NewMesh(o MeshOptions) *Mesh {
	m := &Mesh{o: o, peers: map[uint64]*peer{}, downloads: map[uint64]*Download{}, heard: make(chan struct{}, 1)}
	m.self = Voter{VoterID: o.Identity.NodeID, VoterDirectoryID: o.Identity.DirectoryID, KRaftVersionFeature: metadata.VersionRange{Min: 0, Max: 1}}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	return m
}

// SetEndpoints says where this node's own controller listeners are, before it speaks with others.
func (m *Mesh) SetEndpoints(endpoints []metadata.VoterEndpoint) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.self.Endpoints = endpoints
}

// Attach lets raft's messages through to host, which was opened with this mesh as its Transport.
func (m *Mesh) Attach(host *Host) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.host, m.formation = host, nil
}

// Close ends all that the mesh does, and waits for it. What is sent afterwards is lost.
func (m *Mesh) Close() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.cancel()
	m.running.Wait()
}

// Send queues messages for a voter.
func (m *Mesh) Send(to Voter, messages []*pb.Message) {
	var plain, snapshots []*pb.Message
	for _, message := range messages {
		if message.GetType() == pb.MsgSnap {
			snapshots = append(snapshots, message)
		} else {
			plain = append(plain, message)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed || m.host == nil {
		return
	}
	p := m.peerOf(to)
	p.voter = to
	p.messages.add(plain)
	p.snapshots.add(snapshots)
}

// peerOf is the peer for a voter; mu is held.
func (m *Mesh) peerOf(v Voter) *peer {
	id := raftIDOf(v)
	p := m.peers[id]
	if p == nil {
		p = &peer{mesh: m, voter: v}
		p.messages = newLane(p, false)
		p.snapshots = newLane(p, true)
		m.peers[id] = p
		m.running.Go(p.messages.run)
		m.running.Go(p.snapshots.run)
	}
	return p
}

// address is where a voter is reached, "" if nobody said.
func (m *Mesh) address(v Voter) string {
	if a, ok := m.o.Addresses[v.VoterID]; ok {
		return a
	}
	for _, name := range m.o.Listeners {
		if e, ok := endpointOf(v, name); ok {
			return net.JoinHostPort(e.Host, strconv.Itoa(int(e.Port)))
		}
	}
	return ""
}

// LeaderAddress is where the leader of that status is reached, "" if there is none or nobody said.
func (m *Mesh) LeaderAddress(s *Status) string {
	v, ok := s.voter(s.LeaderID)
	if !ok {
		return ""
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.address(v)
}

// Reach asks whether v's controller runs at its endpoints, with v's directory, in this cluster: a quorum must not be given
// a voter that is not there. Its error is ErrVoterUnreachable.
func (m *Mesh) Reach(ctx context.Context, v Voter) error {
	m.mu.Lock()
	addr := m.address(v)
	m.mu.Unlock()
	if addr == "" {
		return fmt.Errorf("%w: it names no listener among %v", ErrVoterUnreachable, m.o.Listeners)
	}
	limited, cancel := context.WithTimeout(ctx, m.o.Timeout)
	defer cancel()
	conn, err := m.dial(limited, addr)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrVoterUnreachable, err)
	}
	defer conn.Close()
	resp, err := conn.Request(limited, m.request(nil))
	if err == nil {
		err = m.check(v, resp.(*wire.QuorumPeerResponse))
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrVoterUnreachable, err)
	}
	return nil
}

// statement is what this node says of itself with each request and answer; mu is held.
func (m *Mesh) statement() Statement {
	switch {
	case m.host != nil:
		return m.host.core.Statement(m.self)
	case m.formation != nil:
		return m.formation.Statement()
	}
	return Statement{Self: encodeVoters([]Voter{m.self})}
}

// Statement is what a controller states that is one of a quorum, or is to become one; self is how it is reached.
func (c *Core) Statement(self Voter) Statement {
	return Statement{Voters: encodeVoters(c.board.get().Voters), Formed: true, Self: encodeVoters([]Voter{self})}
}

// Who is the controller that made the statement under that identity, with where it is reached; ok is false if it does not
// say so.
func (s Statement) Who(from Identity) (v Voter, ok bool) {
	one, err := decodeVoters(s.Self)
	if err != nil || len(one) != 1 || one[0].VoterID != from.NodeID || one[0].VoterDirectoryID != from.DirectoryID {
		return Voter{}, false
	}
	return one[0], true
}

// request makes a request with those messages, which may be none.
func (m *Mesh) request(messages [][]byte) *wire.QuorumPeerRequest {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.statement()
	id := m.o.Identity
	return &wire.QuorumPeerRequest{
		ClusterID: id.ClusterID, NodeID: id.NodeID, DirectoryID: id.DirectoryID,
		Voters: s.Voters, Formed: s.Formed, Self: s.Self, Messages: messages,
	}
}

// Serve answers what another controller said. It waits while this host is busy, and, for a snapshot, until that is
// here: whoever sent it learns from the answer what became of it.
func (m *Mesh) Serve(ctx context.Context, req *wire.QuorumPeerRequest) *wire.QuorumPeerResponse {
	err := m.take(ctx, req)
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.statement()
	id := m.o.Identity
	resp := &wire.QuorumPeerResponse{
		NewestVersion: req.MaxVersion(), ClusterID: id.ClusterID, NodeID: id.NodeID, DirectoryID: id.DirectoryID,
		Voters: s.Voters, Formed: s.Formed, Self: s.Self,
	}
	if err != nil {
		text := err.Error()
		resp.ErrorCode, resp.ErrorMessage = m.o.ErrorCode(err), &text
	}
	return resp
}

func (m *Mesh) take(ctx context.Context, req *wire.QuorumPeerRequest) error {
	from := Identity{ClusterID: req.ClusterID, NodeID: req.NodeID, DirectoryID: req.DirectoryID}
	if from.ClusterID != m.o.Identity.ClusterID {
		return ErrInconsistentClusterID
	}
	m.mu.Lock()
	m.hear(from, Statement{Voters: req.Voters, Formed: req.Formed, Self: req.Self})
	host := m.host
	m.mu.Unlock()
	switch {
	case host == nil && len(req.Messages) > 0:
		return ErrBrokerNotAvailable
	case len(req.Messages) == 0:
		return nil // it asks who is here
	}
	if err := host.Admit(from); err != nil {
		m.o.Logger.Warn("controller refused", "cause", err)
		return err
	}
	if one, ok := (Statement{Self: req.Self}).Who(from); ok {
		if err := host.meet(ctx, one); err != nil {
			return err
		}
	}
	messages := make([]*pb.Message, 0, len(req.Messages))
	for _, b := range req.Messages {
		message := new(pb.Message)
		if err := proto.Unmarshal(b, message); err != nil {
			return fmt.Errorf("%w: %w", ErrInvalidRequest, err)
		}
		if message.GetType() == pb.MsgSnap {
			if err := m.fetchSnapshot(ctx, from, Statement{Self: req.Self}, message); err != nil {
				m.o.Logger.Warn("snapshot of the metadata log not taken over", "from", from.NodeID, "cause", err)
				return err
			}
		}
		messages = append(messages, message)
	}
	return host.Receive(ctx, from, messages)
}

// peer is one voter as this mesh reaches it.
type peer struct {
	mesh      *Mesh
	voter     Voter // mesh.mu guards it
	messages  *lane
	snapshots *lane
}

func (p *peer) target() (Voter, string) {
	p.mesh.mu.Lock()
	defer p.mesh.mu.Unlock()
	return p.voter, p.mesh.address(p.voter)
}

// lane is a queue of messages to one voter, and the connection they go over. Its goroutine sends them.
type lane struct {
	peer     *peer
	snapshot bool // lane of the snapshots: slow, and reported apart

	mu      sync.Mutex
	waiting [][]byte
	bytes   int
	lost    bool // something was dropped
	wake    chan struct{}

	// The goroutine's own.
	conn    *wire.Conn
	pause   time.Duration // before the next attempt
	trouble string        // why the last attempt failed, as it was logged
}

func newLane(p *peer, snapshot bool) *lane {
	return &lane{peer: p, snapshot: snapshot, wake: make(chan struct{}, 1)}
}

func (l *lane) add(messages []*pb.Message) {
	if len(messages) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, message := range messages {
		b, err := proto.Marshal(message)
		if err != nil || l.bytes+len(b) > peerQueueBytes && len(l.waiting) > 0 {
			l.lost = true
			continue
		}
		l.waiting, l.bytes = append(l.waiting, b), l.bytes+len(b)
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// take is what goes into the next request.
func (l *lane) take() (batch [][]byte, lost bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	size, n := 0, 0
	for n < min(len(l.waiting), wire.MaxQuorumPeerMessages) && (n == 0 || size+len(l.waiting[n]) <= peerBatchBytes) {
		size += len(l.waiting[n])
		n++
	}
	batch, l.waiting, l.bytes = l.waiting[:n:n], l.waiting[n:], l.bytes-size
	lost, l.lost = l.lost, false
	return batch, lost
}

// drop forgets what waits: it is old by the time the voter is back.
func (l *lane) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting, l.bytes, l.lost = nil, 0, false
}

func (l *lane) run() {
	m := l.peer.mesh
	idle := time.NewTimer(peerIdle)
	defer idle.Stop()
	defer l.hangUp()
	for {
		batch, lost := l.take()
		if lost {
			l.report()
		}
		if len(batch) > 0 {
			if err := l.deliver(batch); err != nil {
				l.failed(err)
			} else {
				l.reached()
			}
			idle.Reset(peerIdle)
			if m.ctx.Err() == nil {
				continue
			}
		}
		var ended <-chan struct{}
		if l.conn != nil {
			ended = l.conn.Done()
		}
		select {
		case <-m.ctx.Done():
			return
		case <-l.wake:
		case <-ended:
			l.hangUp()
			l.examine()
		case <-idle.C:
			l.hangUp()
		}
	}
}

// examine looks whether a voter that has closed its connection is dead: then its listener refuses a new one, and the
// host need not wait for its silence to be long enough. A process that is just ending may close a connection before its
// listener, and then ends the new one as well: that is no answer yet.
func (l *lane) examine() {
	m := l.peer.mesh
	voter, addr := l.peer.target()
	for pause := time.Millisecond; pause <= examineFor; pause *= 2 {
		conn, err := m.dial(m.ctx, addr)
		if err == nil {
			l.conn = conn
			return
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			if !l.snapshot {
				m.mu.Lock()
				host := m.host
				m.mu.Unlock()
				_ = host.VoterGone(voter) // a host that is gone itself need not know
			}
			return
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-m.ctx.Done():
			timer.Stop()
			return
		}
	}
}

func (l *lane) hangUp() {
	if l.conn != nil {
		l.conn.Close()
		l.conn = nil
	}
}

// deliver sends one request and waits for its answer.
func (l *lane) deliver(batch [][]byte) error {
	m := l.peer.mesh
	voter, addr := l.peer.target()
	if addr == "" {
		return errors.New("its address is not known")
	}
	ctx := m.ctx
	if !l.snapshot {
		limited, cancel := context.WithTimeout(ctx, m.o.Timeout)
		defer cancel()
		ctx = limited
	}
	if l.conn == nil {
		conn, err := m.dial(ctx, addr)
		if err != nil {
			return err
		}
		l.conn = conn
	}
	resp, err := l.conn.Request(ctx, m.request(batch))
	if err != nil {
		return err
	}
	return m.check(voter, resp.(*wire.QuorumPeerResponse))
}

func (m *Mesh) dial(ctx context.Context, addr string) (*wire.Conn, error) {
	limited, cancel := context.WithTimeout(ctx, m.o.Timeout)
	defer cancel()
	return wire.Dial(limited, m.o.Dial, addr, wire.DialOptions{ClientID: "controller-" + strconv.Itoa(int(m.o.Identity.NodeID))})
}

// check says whether the voter that was meant has answered, and well.
func (m *Mesh) check(voter Voter, resp *wire.QuorumPeerResponse) error {
	got := Identity{ClusterID: resp.ClusterID, NodeID: resp.NodeID, DirectoryID: resp.DirectoryID}
	want := Identity{ClusterID: m.o.Identity.ClusterID, NodeID: voter.VoterID, DirectoryID: voter.VoterDirectoryID}
	switch {
	case got != want:
		return fmt.Errorf("another answers at its address: %s; this quorum's voter is %s", got, want)
	case resp.ErrorCode != 0 && resp.ErrorMessage != nil:
		return errors.New(*resp.ErrorMessage)
	case resp.ErrorCode != 0:
		return fmt.Errorf("error code %d", resp.ErrorCode)
	}
	return nil
}

// failed gives up what waits, says so to raft, and pauses.
func (l *lane) failed(err error) {
	m := l.peer.mesh
	stood := l.conn != nil
	l.hangUp()
	if m.ctx.Err() != nil {
		return
	}
	if stood {
		l.examine()
	}
	if reason := err.Error(); reason != l.trouble {
		voter, addr := l.peer.target()
		m.o.Logger.Warn("voter not reached", "voter", voter.VoterID, "address", addr, "cause", reason)
		l.trouble = reason
	}
	l.drop()
	l.report()
	l.pause = min(max(2*l.pause, peerBackoff), peerBackoffMax)
	timer := time.NewTimer(l.pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-m.ctx.Done():
	}
	l.drop()
}

func (l *lane) reached() {
	l.pause = 0
	if l.snapshot {
		m := l.peer.mesh
		m.mu.Lock()
		host, voter := m.host, l.peer.voter
		m.mu.Unlock()
		_ = host.SnapshotDelivered(voter) // a host that is gone itself need not know
	}
	if l.trouble != "" {
		voter, addr := l.peer.target()
		l.peer.mesh.o.Logger.Info("voter reached again", "voter", voter.VoterID, "address", addr)
		l.trouble = ""
	}
}

// report tells raft that messages were lost. A host that is gone need not know.
func (l *lane) report() {
	m := l.peer.mesh
	m.mu.Lock()
	host, voter := m.host, l.peer.voter
	m.mu.Unlock()
	if l.snapshot {
		_ = host.SnapshotLost(voter)
	} else {
		_ = host.Unreachable(voter)
	}
}
