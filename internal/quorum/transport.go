package quorum

import (
	"context"
	"maps"
	"slices"

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
func (h *Host) Admit(peer Identity) error { return h.core.Admit(peer) }

// Admit is Host.Admit.
func (c *Core) Admit(peer Identity) error {
	voters := c.board.get().Voters
	if len(voters) == 0 && peer.ClusterID == c.o.Identity.ClusterID {
		return nil
	}
	return admit(c.o.Identity.ClusterID, voters, peer)
}

// Receive takes messages from a peer with that identity. Those that are not from it, or not from a voter at all, are
// dropped. It waits while the host is busy, no longer than ctx, and returns when it has taken them; it may be called
// concurrently.
func (h *Host) Receive(ctx context.Context, peer Identity, messages []*pb.Message) error {
	if err := h.Admit(peer); err != nil {
		return err
	}
	return h.postWithin(ctx, func() error { return h.core.Receive(peer, messages) })
}

// Receive takes messages from a peer that was admitted under that identity.
func (c *Core) Receive(peer Identity, messages []*pb.Message) error {
	from := RaftID(peer.NodeID, peer.DirectoryID)
	for _, m := range messages {
		if m.GetFrom() != from || m.GetTo() != c.node.id {
			// At the address of a voter whose disk was emptied there is another now, which the sender is told.
			c.log.Debug("raft message with another sender or receiver than its connection's", "peer", peer.String(), "type", m.GetType().String())
			continue
		}
		if err := c.node.step(m); err != nil {
			return err
		}
		c.hear(m)
	}
	return nil
}

// Unreachable says that messages to that voter were lost.
func (h *Host) Unreachable(v Voter) error {
	return h.post(func() error {
		h.core.Unreachable(v)
		return nil
	})
}

// Unreachable is Host.Unreachable.
func (c *Core) Unreachable(v Voter) { c.node.raft.ReportUnreachable(raftIDOf(v)) }

// SnapshotLost says that a snapshot did not reach that voter. Raft sends it nothing else until it hears that.
func (h *Host) SnapshotLost(v Voter) error {
	return h.post(func() error {
		h.core.SnapshotLost(v)
		return nil
	})
}

// SnapshotLost is Host.SnapshotLost.
func (c *Core) SnapshotLost(v Voter) { c.node.raft.ReportSnapshot(raftIDOf(v), raft.SnapshotFailure) }

// SnapshotDelivered says that a snapshot has reached that voter. Raft goes on with what follows it then, also when the
// voter's own word that it has taken it over is lost on the way back.
func (h *Host) SnapshotDelivered(v Voter) error {
	return h.post(func() error {
		h.core.SnapshotDelivered(v)
		return nil
	})
}

// SnapshotDelivered is Host.SnapshotDelivered.
func (c *Core) SnapshotDelivered(v Voter) {
	c.node.raft.ReportSnapshot(raftIDOf(v), raft.SnapshotFinish)
}

// VoterGone says that a voter's process has ended: it closed its connection, and nobody listens at its address. If it
// was the leader, it is forgotten, so that the others may elect another before its silence has lasted a whole election
// timeout. Raft's rules are what they were: evidence that is wrong costs an election, no more.
func (h *Host) VoterGone(v Voter) error {
	return h.post(func() error { return h.core.VoterGone(v) })
}

// VoterGone is Host.VoterGone.
func (c *Core) VoterGone(v Voter) error {
	if c.node.leader != raftIDOf(v) {
		return nil
	}
	c.log.Info("the leader of the metadata log is gone", "leader", v.VoterID, "epoch", c.node.term, "cause", "it closed its connection and its listener refuses a new one")
	c.canvass()
	return c.node.forgetLeader()
}

// send hands raft's messages to the transport, by receiver.
func (c *Core) send(messages []*pb.Message) {
	if c.o.Transport == nil {
		return
	}
	byVoter := map[uint64][]*pb.Message{}
	for _, m := range messages {
		byVoter[m.GetTo()] = append(byVoter[m.GetTo()], m)
	}
	for _, v := range c.node.voters {
		if batch := byVoter[raftIDOf(v)]; len(batch) > 0 {
			c.o.Transport.Send(v, batch)
			delete(byVoter, raftIDOf(v))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(byVoter)) {
		if v, ok := c.met[id]; ok {
			c.o.Transport.Send(v, byVoter[id])
		}
	}
}

// maxMet bounds those whom a controller that knows no voters yet has met.
const maxMet = 64

// meet notes where a peer is that speaks to this controller before it knows the voters: it has to be answered.
func (h *Host) meet(ctx context.Context, v Voter) error {
	if len(h.Status().Voters) > 0 {
		return nil
	}
	return h.postWithin(ctx, func() error {
		h.core.Meet(v)
		return nil
	})
}

// Meet says where a peer is that speaks to this controller, which has to answer it also before it knows the voters.
func (c *Core) Meet(v Voter) {
	if len(c.board.get().Voters) > 0 {
		return
	}
	if _, known := c.met[raftIDOf(v)]; known || len(c.met) < maxMet {
		c.met[raftIDOf(v)] = v
	}
}
