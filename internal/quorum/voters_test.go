package quorum

import (
	"bytes"
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"testing/cryptotest"

	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

// simVoter is one voter of the simulated quorum: a disk that outlives the node on it.
type simVoter struct {
	self Voter
	mem  *vfs.Mem
	disk *vfs.Fault
	node *node // nil while down
}

// simQuorum runs voters on one goroutine over a network that loses, repeats, delays and reorders.
type simQuorum struct {
	t       *rapid.T
	voters  []*simVoter
	network []*pb.Message
	cut     map[[2]uint64]bool // ordered pairs that cannot talk
	// history is what was committed, by index, as the first voter to apply it saw it.
	history map[uint64][]byte
	highest uint64
}

func newSimQuorum(t *rapid.T, n int32) *simQuorum {
	q := &simQuorum{t: t, cut: map[[2]uint64]bool{}, history: map[uint64][]byte{}}
	var all []Voter
	for id := range n {
		all = append(all, testVoter(id+1))
	}
	for _, self := range all {
		v := &simVoter{self: self, mem: vfs.NewMem()}
		formatTest(t, v.mem, self, all)
		q.voters = append(q.voters, v)
		q.start(v)
	}
	return q
}

func (q *simQuorum) start(v *simVoter) {
	v.disk = vfs.NewFault(v.mem)
	s, err := openTest(v.disk, v.self)
	if err != nil {
		q.t.Fatalf("voter %d does not open: %v", v.self.VoterID, err)
	}
	v.node, err = newNode(s, nodeConfig{electionTicks: 5, heartbeatTicks: 1, maxMessage: 512, logger: quiet})
	if err != nil {
		q.t.Fatalf("voter %d does not start: %v", v.self.VoterID, err)
	}
}

// crash stops a voter as a loss of power would, or as kill -9 does, and starts it again. After kill -9 what was not
// synced is there, and not synced: the next loss of power may take it.
func (q *simQuorum) crash(v *simVoter) {
	loss := rapid.SampledFrom([]vfs.Loss{vfs.LoseNothing, vfs.LoseUnsynced, vfs.LoseSome}).Draw(q.t, "loss")
	if loss != vfs.LoseNothing {
		v.mem = v.mem.CrashClone(loss, rapid.Uint64().Draw(q.t, "seed"))
	}
	q.start(v)
}

// run lets a voter do what it has ready; a fault of its disk takes it down and up again.
func (q *simQuorum) run(v *simVoter) {
	var pulled error // a disk that fails under the reading of a snapshot
	err := v.node.drain(follower{
		send: func(messages []*pb.Message) {
			if err := attachSnapshots(v.node.store, messages); err != nil {
				pulled = err
				return
			}
			for _, m := range messages {
				q.network = append(q.network, proto.Clone(m).(*pb.Message))
			}
		},
		restored: func(position) error { return nil },
		moved:    func() {},
		applied: func(c committed) error {
			index := c.Entry.GetIndex()
			if before, ok := q.history[index]; ok && !bytes.Equal(before, c.Batch) {
				q.t.Fatalf("voter %d commits another entry at index %d", v.self.VoterID, index)
			}
			q.history[index] = bytes.Clone(c.Batch)
			q.highest = max(q.highest, index)
			return nil
		},
	})
	if err = errors.Join(err, pulled); err != nil {
		if !errors.Is(err, errPulled) {
			q.t.Fatalf("voter %d: %v", v.self.VoterID, err)
		}
		q.crash(v)
	}
}

func (q *simQuorum) deliver(i int, keep bool) {
	m := q.network[i]
	if !keep {
		q.network = slices.Delete(q.network, i, i+1)
	}
	if q.cut[[2]uint64{m.GetFrom(), m.GetTo()}] {
		q.report(m, raft.SnapshotFailure)
		return
	}
	defer q.report(m, raft.SnapshotFinish)
	for _, v := range q.voters {
		if v.node.id != m.GetTo() {
			continue
		}
		if err := v.node.step(proto.Clone(m).(*pb.Message)); err != nil {
			q.t.Fatalf("voter %d: step: %v", v.self.VoterID, err)
		}
		q.run(v)
	}
}

// report tells the sender what became of a snapshot, as a transport does.
func (q *simQuorum) report(m *pb.Message, what raft.SnapshotStatus) {
	for _, v := range q.voters {
		if m.GetType() == pb.MsgSnap && v.node.id == m.GetFrom() {
			v.node.raft.ReportSnapshot(m.GetTo(), what)
		}
	}
}

// snapshot makes what a voter has applied its newest snapshot.
func (q *simQuorum) snapshot(v *simVoter) error {
	n := v.node
	if err := writeSnapshot(v.disk, testDir, n.applied.snapshotID(), n.applied.Timestamp, func(func([]byte) bool) {}); err != nil {
		return err
	}
	return n.store.snapshotTaken(n.applied, n.membership, n.voters)
}

func (q *simQuorum) voter(t *rapid.T) *simVoter {
	return q.voters[rapid.IntRange(0, len(q.voters)-1).Draw(t, "voter")]
}

// settle heals everything and lets the quorum come to rest: one leader, everybody applied all it has.
func (q *simQuorum) settle() {
	clear(q.cut)
	for range 600 {
		for _, v := range q.voters {
			v.disk.Clear()
			v.node.raft.Tick()
			q.run(v)
			// Who is sent a snapshot must find itself in it: the host makes one after each change of the members.
			if s := v.node.store; s.state.snapshot.Index < s.changed {
				if err := q.snapshot(v); err != nil {
					q.t.Fatal(err)
				}
			}
		}
		for n := len(q.network); n > 0; n-- {
			q.deliver(0, false)
		}
		if q.settled() {
			return
		}
	}
	q.t.Fatalf("the quorum does not come to rest")
}

func (q *simQuorum) settled() bool {
	leaders, first := 0, q.voters[0].node
	for _, v := range q.voters {
		n := v.node
		if n.leading() {
			leaders++
		}
		if n.term != first.term || n.leader == 0 || n.applied != first.applied || n.applied.Index != n.store.runs.lastIndex() || n.applied.Index < q.highest {
			return false
		}
	}
	return leaders == 1
}

// Several voters over a network that loses, repeats and reorders, with cuts, kills and failing disks: what one voter
// saw committed no voter ever sees differently or loses, and at equal offsets all logs hold equal bytes.
func TestRaftMappingPropertyOfSeveralVoters(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cryptotest.SetGlobalRandom(t, rapid.Uint64().Draw(rt, "raft's seed"))
		q := newSimQuorum(rt, 3)
		q.settle()
		rt.Repeat(map[string]func(*rapid.T){
			"tick": func(t *rapid.T) {
				q.t = t
				v := q.voter(t)
				for range rapid.IntRange(1, 6).Draw(t, "ticks") {
					v.node.raft.Tick()
					q.run(v)
				}
			},
			"deliver": func(t *rapid.T) {
				q.t = t
				for range rapid.IntRange(1, 20).Draw(t, "messages") {
					if len(q.network) == 0 {
						return
					}
					i := 0
					if rapid.IntRange(0, 3).Draw(t, "out of order") == 0 {
						i = rapid.IntRange(0, len(q.network)-1).Draw(t, "which")
					}
					q.deliver(i, rapid.IntRange(0, 9).Draw(t, "twice") == 0)
				}
			},
			"lose": func(t *rapid.T) {
				q.t = t
				if len(q.network) == 0 {
					t.Skip("nothing on the way")
				}
				i := rapid.IntRange(0, len(q.network)-1).Draw(t, "which")
				q.report(q.network[i], raft.SnapshotFailure)
				q.network = slices.Delete(q.network, i, i+1)
			},
			"cut": func(t *rapid.T) {
				q.t = t
				clear(q.cut)
				lonely := q.voter(t)
				for _, v := range q.voters {
					if rapid.Bool().Draw(t, "deaf") {
						q.cut[[2]uint64{v.node.id, lonely.node.id}] = true
					}
					if rapid.Bool().Draw(t, "mute") {
						q.cut[[2]uint64{lonely.node.id, v.node.id}] = true
					}
				}
			},
			"heal": func(t *rapid.T) { q.t = t; clear(q.cut) },
			"propose": func(t *rapid.T) {
				q.t = t
				v := q.voter(t)
				last := v.node.store.runs.lastIndex()
				for i := range rapid.IntRange(1, 4).Draw(t, "proposals") {
					b := record.NewBuilder(record.BuilderOptions{})
					for range rapid.IntRange(1, 3).Draw(t, "records") {
						if err := b.Append(int64(last)*10, nil, []byte("record"), nil); err != nil {
							t.Fatal(err)
						}
					}
					err := v.node.propose(v.node.term, last+uint64(i), b.Bytes(), i)
					var stale *staleProposalError
					if err != nil && !errors.As(err, &stale) && !errors.Is(err, raft.ErrProposalDropped) {
						t.Fatal(err)
					}
				}
				q.run(v)
			},
			"change members": func(t *rapid.T) {
				q.t = t
				v := q.voter(t)
				c := &pb.ConfChangeV2{Context: encodeVoters(testVoters(1, 2, 3))}
				kind := rapid.SampledFrom([]pb.ConfChangeType{pb.ConfChangeAddLearnerNode, pb.ConfChangeRemoveNode}).Draw(t, "change")
				for _, learner := range []uint64{101, 102}[:rapid.IntRange(0, 2).Draw(t, "learners")] {
					c.Changes = append(c.Changes, &pb.ConfChangeSingle{Type: kind.Enum(), NodeId: new(learner)})
				}
				if err := v.node.raft.ProposeConfChange(c); err != nil && !errors.Is(err, raft.ErrProposalDropped) {
					t.Fatal(err)
				}
				q.run(v)
			},
			"snapshot": func(t *rapid.T) {
				q.t = t
				v := q.voter(t)
				n := v.node
				if n.applied.Index == n.store.state.snapshot.Index {
					t.Skip("nothing new applied")
				}
				err := q.snapshot(v)
				if err == nil && rapid.Bool().Draw(t, "trim") {
					err = n.store.startAt(n.applied)
				}
				if err != nil && errors.Is(err, errPulled) {
					q.crash(v)
				} else if err != nil {
					t.Fatal(err)
				}
			},
			"crash": func(t *rapid.T) { q.t = t; q.crash(q.voter(t)) },
			"fail a disk": func(t *rapid.T) {
				q.t = t
				q.voter(t).disk.Add(vfs.Rule{
					Kind: vfs.OpAny, Skip: rapid.IntRange(0, 6).Draw(t, "skip"), Count: -1, Err: errPulled, Short: rapid.IntRange(0, 80).Draw(t, "short"),
				})
			},
		})
		q.t = rt
		q.settle()
		for _, v := range q.voters {
			s := v.node.store
			for index := s.state.base.Index + 1; index <= q.highest; index++ {
				from, _ := s.runs.offset(index)
				to, _ := s.runs.offset(index + 1)
				err := s.batches(from, to, 1, func(b record.Batch) (bool, error) {
					if !bytes.Equal(b, q.history[index]) {
						rt.Fatalf("voter %d lost or changed index %d, which was committed", v.self.VoterID, index)
					}
					return true, nil
				})
				if err != nil {
					rt.Fatal(err)
				}
			}
			if !slices.Equal(v.node.membership.GetVoters(), q.voters[0].node.membership.GetVoters()) || !slices.Equal(v.node.membership.GetLearners(), q.voters[0].node.membership.GetLearners()) {
				rt.Fatalf("voter %d believes in members %v, voter 1 in %v", v.self.VoterID, v.node.membership, q.voters[0].node.membership)
			}
		}
	})
}

// What a message to another voter promises (entries it has, a vote, a term) is on disk before the message leaves.
func TestNothingLeavesBeforeItIsDurable(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem()
	self, other := testVoter(1), testVoter(2)
	formatTest(t, mem, self, testVoters(1, 2))
	s, err := openTest(mem, self)
	if err != nil {
		t.Fatal(err)
	}
	n, err := newNode(s, nodeConfig{electionTicks: 5, heartbeatTicks: 1, maxMessage: 512, logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	sent := map[pb.MessageType]int{}
	f := follower{
		send: func(messages []*pb.Message) {
			left, err := openTest(mem.CrashClone(vfs.LoseUnsynced, 0), self)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range messages {
				sent[m.GetType()]++
				if m.GetTerm() > left.state.term && m.GetType() != pb.MsgPreVote && m.GetType() != pb.MsgPreVoteResp {
					t.Errorf("%v of term %d leaves, term %d is on disk", m.GetType(), m.GetTerm(), left.state.term)
				}
				if m.GetType() == pb.MsgAppResp && !m.GetReject() && m.GetIndex() > left.runs.lastIndex() {
					t.Errorf("index %d is said to be here, the disk has %d", m.GetIndex(), left.runs.lastIndex())
				}
				if m.GetType() == pb.MsgVoteResp && !m.GetReject() && left.state.vote != m.GetTo() {
					t.Errorf("a vote leaves, the disk has one for %d", left.state.vote)
				}
			}
		},
		restored: func(position) error { return nil }, moved: func() {}, applied: func(committed) error { return nil },
	}
	from, to := raftIDOf(other), n.id
	for _, m := range []*pb.Message{
		{Type: pb.MsgVote.Enum(), Term: new(uint64(3)), LogTerm: new(uint64(0)), Index: new(uint64(1))},
		{Type: pb.MsgApp.Enum(), Term: new(uint64(3)), LogTerm: new(uint64(0)), Index: new(uint64(1)), Commit: new(uint64(1)),
			Entries: []*pb.Entry{{Index: new(uint64(2)), Term: new(uint64(3))}, {Index: new(uint64(3)), Term: new(uint64(3))}}},
		{Type: pb.MsgHeartbeat.Enum(), Term: new(uint64(4)), Commit: new(uint64(1))},
	} {
		m.From, m.To = new(from), new(to)
		if err := errors.Join(n.step(m), n.drain(f)); err != nil {
			t.Fatal(err)
		}
	}
	if sent[pb.MsgVoteResp] == 0 || sent[pb.MsgAppResp] == 0 || sent[pb.MsgHeartbeatResp] == 0 {
		t.Errorf("sent were %v: the test shows too little", sent)
	}
}

// attachSnapshots adds the snapshot's file to the messages that bring one, as a transport does for their receiver.
func attachSnapshots(s *storage, messages []*pb.Message) error {
	for _, m := range messages {
		if m.GetType() != pb.MsgSnap {
			continue
		}
		place, err := snapshotPlace(m)
		if err != nil || place.EndOffset == 0 {
			continue
		}
		file, err := vfs.ReadFile(s.fs, filepath.Join(s.dir, place.snapshotID().file()))
		if err != nil {
			return err
		}
		snapshot := proto.Clone(m.GetSnapshot()).(*pb.Snapshot)
		snapshot.Data = append(snapshot.GetData(), file...)
		m.Snapshot = snapshot
	}
	return nil
}
