package quorum

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/stelelog/stele/internal/metadata"
	pb "go.etcd.io/raft/v3/raftpb"
)

// Errors of changes of the membership (KIP-853).
var (
	// ErrDuplicateVoter: the node is a voter already, perhaps under another directory: that one is removed first.
	ErrDuplicateVoter = errors.New("the node is a voter already")
	// ErrVoterNotFound: there is no voter of that node and directory.
	ErrVoterNotFound = errors.New("there is no such voter")
	// ErrVoterUnreachable: who is to be a voter does not answer, so the quorum could stand still if it were.
	ErrVoterUnreachable = errors.New("the new voter is not reached")
	// ErrChangePending: another change of the membership is under way.
	ErrChangePending = errors.New("another change of the voters is under way")
	// ErrLastVoter: a quorum has at least one voter.
	ErrLastVoter = errors.New("it is the only voter")
)

// memberChange is a change of the membership on its way. One is at a time.
type memberChange struct {
	context []byte // names the outcome, and by that the entry
	done    func(error)
}

// AddVoter makes v a voter, and returns when that is committed. It is asked of the leader (ErrNotController elsewhere), for
// a node whose controller runs, with a directory that was never a voter's: see Mesh.Reach.
func (h *Host) AddVoter(ctx context.Context, v Voter) error {
	return h.changeVoters(ctx, func(done func(error)) { h.core.AddVoter(v, done) })
}

// RemoveVoter takes a vote away, and returns when that is committed. The leader itself may be removed; it steps down then.
func (h *Host) RemoveVoter(ctx context.Context, nodeID int32, directoryID metadata.UUID) error {
	return h.changeVoters(ctx, func(done func(error)) { h.core.RemoveVoter(nodeID, directoryID, done) })
}

func (h *Host) changeVoters(ctx context.Context, begin func(done func(error))) error {
	outcome := make(chan error, 1)
	err := h.post(func() error {
		begin(func(err error) { outcome <- err })
		return nil
	})
	if err != nil {
		return ErrNotController
	}
	select {
	case err := <-outcome:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-h.done:
		return ErrNotController
	}
}

// AddVoter is Host.AddVoter, which is over when done hears of it.
func (c *Core) AddVoter(v Voter, done func(error)) {
	c.changeVoters(done, func(now []Voter) ([]Voter, *pb.ConfChangeSingle, error) {
		if slices.ContainsFunc(now, func(o Voter) bool { return o.VoterID == v.VoterID }) {
			return nil, nil, fmt.Errorf("%w: %d", ErrDuplicateVoter, v.VoterID)
		}
		id := raftIDOf(v)
		return append(slices.Clone(now), v), &pb.ConfChangeSingle{Type: pb.ConfChangeAddNode.Enum(), NodeId: &id}, nil
	})
}

// RemoveVoter is Host.RemoveVoter, which is over when done hears of it.
func (c *Core) RemoveVoter(nodeID int32, directoryID metadata.UUID, done func(error)) {
	c.changeVoters(done, func(now []Voter) ([]Voter, *pb.ConfChangeSingle, error) {
		i := slices.IndexFunc(now, func(o Voter) bool { return o.VoterID == nodeID && o.VoterDirectoryID == directoryID })
		switch {
		case i < 0:
			return nil, nil, fmt.Errorf("%w: node %d, directory %s", ErrVoterNotFound, nodeID, directoryID)
		case len(now) == 1:
			return nil, nil, ErrLastVoter
		}
		id := raftIDOf(now[i])
		return slices.Delete(slices.Clone(now), i, i+1), &pb.ConfChangeSingle{Type: pb.ConfChangeRemoveNode.Enum(), NodeId: &id}, nil
	})
}

// changeVoters proposes one change. Raft changes one voter at a time: any majority of before and any of after have a voter
// in common.
func (c *Core) changeVoters(done func(error), plan func(now []Voter) ([]Voter, *pb.ConfChangeSingle, error)) {
	switch {
	case !c.machine.serving():
		done(ErrNotController)
		return
	case c.change != nil:
		done(ErrChangePending)
		return
	}
	after, single, err := plan(c.node.voters)
	if err != nil {
		done(err)
		return
	}
	context := encodeVoters(after)
	if err := c.node.proposeChange(&pb.ConfChangeV2{Changes: []*pb.ConfChangeSingle{single}, Context: context}); err != nil {
		done(fmt.Errorf("%w: %w", ErrChangePending, err))
		return
	}
	c.change = &memberChange{context: context, done: done}
}

// changed follows a committed change of the membership, if the entry is one.
func (c *Core) changed(e *pb.Entry) bool {
	if e.GetType() == pb.EntryNormal {
		return false
	}
	voters, ok := outcome(e)
	if !ok {
		return true
	}
	c.log.Info("voters of the metadata log changed", "voters", members(voters), "index", e.GetIndex(), "epoch", e.GetTerm())
	c.board.update(func(s *Status) { s.Voters = c.endpoints(c.node.voters) })
	if c.change != nil && string(c.change.context) == string(encodeVoters(voters)) {
		done := c.change.done
		c.change = nil
		done(nil)
	}
	return true
}

// abandonChange ends a change whose leadership is over: it may still get committed.
func (c *Core) abandonChange() {
	if c.change != nil {
		done := c.change.done
		c.change = nil
		done(ErrNotController)
	}
}
