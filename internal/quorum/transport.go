package quorum

import (
	"context"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
)

// Transport brings raft's messages to the other voters. It may lose, repeat and reorder them. Mesh is the one over
// controller listeners; tests have another.
//
// A message with a snapshot leaves with its place and membership only. Whoever receives it gets the file from the
// sender, and appends it to the data, before the message goes to Host.Receive.
type Transport interface {
	// Send takes messages for one voter and returns at once; it keeps them and must not change them. A voter that
	// cannot be reached is reported by Host.Unreachable, a snapshot that was lost by Host.SnapshotLost, one that has arrived
	// by Host.SnapshotDelivered.
	Send(to Voter, messages []*pb.Message)
}

// Admit says whether a peer that showed this identity is a voter of this quorum: nil, or a *ForeignVoterError. One that
// does not know any voter yet, because it is to become one, takes any of its cluster at its word: what it hears brings it
// the membership, and it has no vote before. It may be called concurrently.
func (h *Host) Admit(peer Identity) error {
	if len(h.board.get().Voters) == 0 && peer.ClusterID == h.o.Identity.ClusterID {
		return nil
	}
	return admit(h.o.Identity.ClusterID, h.board.get().Voters, peer)
}

// Receive takes messages from a peer with that identity. Those that are not from it, or not from a voter at all, are
// dropped. It waits while the host is busy, no longer than ctx, and returns when it has taken them; it may be called
// concurrently.
func (h *Host) Receive(ctx context.Context, peer Identity, messages []*pb.Message) error {
	if err := h.Admit(peer); err != nil {
		return err
	}
	from := RaftID(peer.NodeID, peer.DirectoryID)
	return h.postWithin(ctx, func() error {
		for _, m := range messages {
			if m.GetFrom() != from || m.GetTo() != h.node.id {
				// At the address of a voter whose disk was emptied there is another now, which the sender is told.
				h.log.Debug("raft message with another sender or receiver than its connection's", "peer", peer.String(), "type", m.GetType().String())
				continue
			}
			if err := h.node.step(m); err != nil {
				return err
			}
		}
		return nil
	})
}

// Unreachable says that messages to that voter were lost.
func (h *Host) Unreachable(v Voter) error {
	return h.post(func() error {
		h.node.raft.ReportUnreachable(raftIDOf(v))
		return nil
	})
}

// SnapshotLost says that a snapshot did not reach that voter. Raft sends it nothing else until it hears that.
func (h *Host) SnapshotLost(v Voter) error {
	return h.post(func() error {
		h.node.raft.ReportSnapshot(raftIDOf(v), raft.SnapshotFailure)
		return nil
	})
}

// SnapshotDelivered says that a snapshot has reached that voter. Raft goes on with what follows it then, also when the
// voter's own word that it has taken it over is lost on the way back.
func (h *Host) SnapshotDelivered(v Voter) error {
	return h.post(func() error {
		h.node.raft.ReportSnapshot(raftIDOf(v), raft.SnapshotFinish)
		return nil
	})
}

// VoterGone says that a voter's process has ended: it closed its connection, and nobody listens at its address. If it
// was the leader, it is forgotten, so that the others may elect another before its silence has lasted a whole election
// timeout. Raft's rules are what they were: evidence that is wrong costs an election, no more.
func (h *Host) VoterGone(v Voter) error {
	return h.post(func() error {
		if h.node.leader != raftIDOf(v) {
			return nil
		}
		h.log.Info("the leader of the metadata log is gone", "leader", v.VoterID, "epoch", h.node.term, "cause", "it closed its connection and its listener refuses a new one")
		h.canvass()
		return h.node.forgetLeader()
	})
}

// send hands raft's messages to the transport, by receiver.
func (h *Host) send(messages []*pb.Message) {
	if h.o.Transport == nil {
		return
	}
	byVoter := map[uint64][]*pb.Message{}
	for _, m := range messages {
		byVoter[m.GetTo()] = append(byVoter[m.GetTo()], m)
	}
	for _, v := range h.node.voters {
		if batch := byVoter[raftIDOf(v)]; len(batch) > 0 {
			h.o.Transport.Send(v, batch)
			delete(byVoter, raftIDOf(v))
		}
	}
	for id, batch := range byVoter {
		if v, ok := h.met[id]; ok {
			h.o.Transport.Send(v, batch)
		}
	}
}

// maxMet bounds those whom a controller that knows no voters yet has met.
const maxMet = 64

// meet notes where a peer is that speaks to this controller before it knows the voters: it has to be answered.
func (h *Host) meet(ctx context.Context, v Voter) error {
	if len(h.board.get().Voters) > 0 {
		return nil
	}
	return h.postWithin(ctx, func() error {
		if _, known := h.met[raftIDOf(v)]; known || len(h.met) < maxMet {
			h.met[raftIDOf(v)] = v
		}
		return nil
	})
}
