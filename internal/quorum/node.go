package quorum

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"runtime"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// node is one voter without goroutine, clock or socket: raft over a storage, stepped by whoever owns it. What must
// be durable before something is sent or applied is decided here, in drain, and nowhere else.
type node struct {
	id    uint64
	raft  *raft.RawNode
	store *storage

	// term, leader and role are raft's as of the last drain. leader is 0 while nobody is known.
	term   uint64
	vote   uint64
	leader uint64
	role   raft.StateType

	// applied is how far entries were handed to apply; membership and voters are as of there.
	applied    position
	membership *pb.ConfState
	voters     []Voter
}

// committed is one entry that a majority has.
type committed struct {
	Entry *pb.Entry
	// Batch is the entry as the log holds it: offsets, epoch and all.
	Batch []byte
	Place position // what follows it
}

// nodeConfig are the few numbers of raft that matter here, in ticks and bytes.
type nodeConfig struct {
	electionTicks  int
	heartbeatTicks int
	maxMessage     uint64
	logger         *slog.Logger
}

func newNode(store *storage, c nodeConfig) (*node, error) {
	id := RaftID(store.state.self.NodeID, store.state.self.DirectoryID)
	n := &node{
		id: id, store: store, term: store.state.term, vote: store.state.vote,
		applied: store.state.snapshot, membership: proto.Clone(store.state.membership).(*pb.ConfState), voters: store.state.voters,
	}
	config := &raft.Config{
		ID:            id,
		ElectionTick:  c.electionTicks,
		HeartbeatTick: c.heartbeatTicks,
		Storage:       store,
		// Whatever the newest snapshot holds is in the image already.
		Applied:         store.state.snapshot.Index,
		MaxSizePerMsg:   c.maxMessage,
		MaxInflightMsgs: 64,
		CheckQuorum:     true,
		PreVote:         true,
		// Records are computed for one place in the log; proposed from elsewhere they would be wrong.
		DisableProposalForwarding: true,
		StepDownOnRemoval:         true,
		Logger:                    raftLogger{c.logger},
	}
	err := guard(func() (err error) {
		n.raft, err = raft.NewRawNode(config)
		return err
	})
	return n, err
}

// guard turns raft's panics, which are how it reports storage that fails or contradicts itself, into errors.
func guard(f func() error) (err error) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		failure, ok := p.(error)
		if _, bug := p.(runtime.Error); !ok || bug {
			panic(p)
		}
		err = failure
	}()
	return f()
}

// alone says whether this voter is the whole quorum, so that nobody has to be waited for.
func (n *node) alone() bool {
	m := n.membership
	return len(m.GetVoters()) == 1 && m.GetVoters()[0] == n.id && len(m.GetVotersOutgoing()) == 0 && len(m.GetLearners()) == 0
}

func (n *node) leading() bool { return n.role == raft.StateLeader }

// propose appends data, a batch as encodeEntry wants it, to the leader's log if term and lastIndex are still those
// it was computed for. The caller has drained the node and has proposed whatever follows the stored log since.
func (n *node) propose(term, lastIndex uint64, data []byte, since int) error {
	stored := n.store.runs.lastIndex()
	if !n.leading() || n.term != term || stored+uint64(since) != lastIndex {
		return &staleProposalError{term: term, lastIndex: lastIndex, nowTerm: n.term, nowLastIndex: stored + uint64(since)}
	}
	return guard(func() error { return n.raft.Propose(data) })
}

// staleProposalError says that the log moved on under records that were computed for another place in it.
type staleProposalError struct{ term, lastIndex, nowTerm, nowLastIndex uint64 }

func (e *staleProposalError) Error() string {
	return fmt.Sprintf("records were computed for term %d after index %d, the log is at term %d, index %d", e.term, e.lastIndex, e.nowTerm, e.nowLastIndex)
}

// follower is who a node tells what happens, in this order within one round.
type follower struct {
	// send takes messages for other voters. All they promise is durable.
	send func([]*pb.Message)
	// restored: everything here was replaced by a leader's snapshot that ends at that place.
	restored func(position) error
	// moved: term, leader or role may be others now. It comes before entries that were committed under them.
	moved func()
	// applied takes the next committed entry.
	applied func(committed) error
	// confirmed hears that a majority followed this leader since it asked; see askLeading. nil: nobody asks.
	confirmed func(asked uint64)
}

// drain does all that raft has ready, in the one order that is safe: hard state and entries become durable, then
// messages leave, then committed entries are applied. An error means that this voter's disk can no longer be
// trusted; it must not go on.
func (n *node) drain(f follower) error {
	return guard(func() error { return n.drainAll(f) })
}

func (n *node) drainAll(f follower) error {
	for n.raft.HasReady() {
		rd := n.raft.Ready()
		if !raft.IsEmptySnap(rd.Snapshot) {
			if err := n.install(rd.Snapshot, rd.HardState, f); err != nil {
				return err
			}
		}
		if err := n.store.save(rd.HardState, rd.Entries); err != nil {
			return err
		}
		if rd.HardState != nil && !raft.IsEmptyHardState(rd.HardState) {
			n.term, n.vote = rd.HardState.GetTerm(), rd.HardState.GetVote()
		}
		if rd.SoftState != nil {
			n.leader, n.role = rd.SoftState.Lead, rd.SoftState.RaftState
		}
		if len(rd.Messages) > 0 {
			f.send(rd.Messages)
		}
		f.moved()
		if err := n.apply(rd.CommittedEntries, f.applied); err != nil {
			return err
		}
		for _, confirmed := range rd.ReadStates {
			f.confirmed(binary.BigEndian.Uint64(confirmed.RequestCtx))
		}
		n.raft.Advance(rd)
	}
	return nil
}

func (n *node) apply(entries []*pb.Entry, apply func(committed) error) error {
	for _, e := range entries {
		if e.GetIndex() != n.applied.Index+1 {
			return fmt.Errorf("raft hands out index %d after %d", e.GetIndex(), n.applied.Index)
		}
		batch, err := encodeEntry(e, n.applied.EndOffset, n.applied.Timestamp)
		if err != nil {
			return err
		}
		n.applied = follow(n.applied, batch, e.GetTerm())
		n.applied.Index = e.GetIndex()
		if end, ok := n.store.runs.offset(e.GetIndex() + 1); !ok || end != n.applied.EndOffset {
			return fmt.Errorf("index %d ends at offset %d, the log says %d", e.GetIndex(), n.applied.EndOffset, end)
		}
		if err := n.applyMembership(e); err != nil {
			return err
		}
		if err := apply(committed{Entry: e, Batch: batch, Place: n.applied}); err != nil {
			return err
		}
	}
	return nil
}

// applyMembership tells raft of a committed membership change and keeps Kafka's view of it in step.
func (n *node) applyMembership(e *pb.Entry) error {
	if e.GetType() == pb.EntryNormal {
		return nil
	}
	c, err := change(e)
	if err != nil {
		return err
	}
	n.membership = n.raft.ApplyConfChange(c)
	n.store.changed = e.GetIndex()
	if voters, ok := outcome(e); ok {
		n.voters = voters
	}
	return nil
}

// install replaces everything here by a leader's snapshot.
func (n *node) install(snapshot *pb.Snapshot, hard *pb.HardState, f follower) error {
	place, voters, err := n.store.install(snapshot, hard)
	if err != nil {
		return err
	}
	n.applied, n.voters = place, voters
	n.membership = proto.Clone(snapshot.GetMetadata().GetConfState()).(*pb.ConfState)
	f.moved()
	return f.restored(place)
}

// tick moves raft's clock on by one.
func (n *node) tick() error {
	return guard(func() error {
		n.raft.Tick()
		return nil
	})
}

// campaign stands for election at once. Raft does not while membership changes wait to be applied: drain first.
func (n *node) campaign() error { return guard(n.raft.Campaign) }

// proposeChange appends a change of the membership. While an earlier one is not applied yet raft puts an empty entry in
// its place and says nothing: the caller has none under way, and has applied all that was there when its reign began.
func (n *node) proposeChange(c *pb.ConfChangeV2) error {
	return guard(func() error { return n.raft.ProposeConfChange(c) })
}

// askLeading asks the other voters whether they still follow this leader. A later question answers earlier ones; raft asks
// again, with its heartbeats, until it hears from a majority or is deposed.
func (n *node) askLeading(asked uint64) error {
	return guard(func() error {
		n.raft.ReadIndex(binary.BigEndian.AppendUint64(nil, asked))
		return nil
	})
}

// forgetLeader makes a follower ready to vote for another than the leader it knows.
func (n *node) forgetLeader() error { return guard(n.raft.ForgetLeader) }

// step gives raft a message of another voter. Messages raft has no use for are dropped, as a network might, and so are
// those whose content could not be stored: raft never takes a message back.
func (n *node) step(m *pb.Message) error {
	if err := checkMessage(m); err != nil {
		n.store.logger.Warn("raft message refused", "from", m.GetFrom(), "type", m.GetType().String(), "error", err)
		return nil
	}
	return guard(func() error {
		err := n.raft.Step(m)
		if errors.Is(err, raft.ErrStepPeerNotFound) || errors.Is(err, raft.ErrStepLocalMsg) || errors.Is(err, raft.ErrProposalDropped) {
			return nil
		}
		return err
	})
}

// checkMessage says why a message of another voter is not for raft, whose own checks end at terms and indexes.
func checkMessage(m *pb.Message) error {
	switch m.GetType() {
	case pb.MsgProp:
		return errors.New("proposals are made where records are computed, and nowhere else")
	case pb.MsgSnap:
		_, err := checkSnapshot(m.GetSnapshot())
		return err
	case pb.MsgApp:
		for _, e := range m.GetEntries() {
			if err := checkEntry(e); err != nil {
				return &EntryError{Index: e.GetIndex(), Err: err}
			}
		}
	}
	return nil
}

// raftLogger gives raft's messages to slog, one level down: Stele reports leader changes itself.
type raftLogger struct{ l *slog.Logger }

// raftPanic is a panic that raft's code raised through its logger.
type raftPanic struct{ msg string }

func (p raftPanic) Error() string { return "raft: " + p.msg }

func (r raftLogger) Debug(v ...any)              {}
func (r raftLogger) Debugf(string, ...any)       {}
func (r raftLogger) Info(v ...any)               { r.l.Debug("raft: " + fmt.Sprint(v...)) }
func (r raftLogger) Infof(f string, v ...any)    { r.l.Debug("raft: " + fmt.Sprintf(f, v...)) }
func (r raftLogger) Warning(v ...any)            { r.l.Info("raft: " + fmt.Sprint(v...)) }
func (r raftLogger) Warningf(f string, v ...any) { r.l.Info("raft: " + fmt.Sprintf(f, v...)) }
func (r raftLogger) Error(v ...any)              { r.l.Error("raft: " + fmt.Sprint(v...)) }
func (r raftLogger) Errorf(f string, v ...any)   { r.l.Error("raft: " + fmt.Sprintf(f, v...)) }
func (r raftLogger) Fatal(v ...any)              { panic(raftPanic{fmt.Sprint(v...)}) }
func (r raftLogger) Fatalf(f string, v ...any)   { panic(raftPanic{fmt.Sprintf(f, v...)}) }
func (r raftLogger) Panic(v ...any)              { panic(raftPanic{fmt.Sprint(v...)}) }
func (r raftLogger) Panicf(f string, v ...any)   { panic(raftPanic{fmt.Sprintf(f, v...)}) }
