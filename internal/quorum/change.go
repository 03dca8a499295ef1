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
	err     error
	done    chan struct{}
}

func (c *memberChange) finish(err error) {
	c.err = err
	close(c.done)
}

// AddVoter makes v a voter, and returns when that is committed. It is asked of the leader (ErrNotController elsewhere), for
// a node whose controller runs, with a directory that was never a voter's: see Mesh.Reach.
func (h *Host) AddVoter(ctx context.Context, v Voter) error {
	return h.changeVoters(ctx, func(now []Voter) ([]Voter, *pb.ConfChangeSingle, error) {
		if slices.ContainsFunc(now, func(o Voter) bool { return o.VoterID == v.VoterID }) {
			return nil, nil, fmt.Errorf("%w: %d", ErrDuplicateVoter, v.VoterID)
		}
		id := raftIDOf(v)
		return append(slices.Clone(now), v), &pb.ConfChangeSingle{Type: pb.ConfChangeAddNode.Enum(), NodeId: &id}, nil
	})
}

// RemoveVoter takes a vote away, and returns when that is committed. The leader itself may be removed; it steps down then.
func (h *Host) RemoveVoter(ctx context.Context, nodeID int32, directoryID metadata.UUID) error {
	return h.changeVoters(ctx, func(now []Voter) ([]Voter, *pb.ConfChangeSingle, error) {
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

// changeVoters proposes one change and waits for it. Raft changes one voter at a time: any majority of before and any of
// after have a voter in common.
func (h *Host) changeVoters(ctx context.Context, plan func(now []Voter) ([]Voter, *pb.ConfChangeSingle, error)) error {
	change := &memberChange{done: make(chan struct{})}
	err := h.post(func() error {
		switch {
		case !h.machine.serving():
			change.finish(ErrNotController)
			return nil
		case h.change != nil:
			change.finish(ErrChangePending)
			return nil
		}
		after, single, err := plan(h.node.voters)
		if err != nil {
			change.finish(err)
			return nil
		}
		change.context = encodeVoters(after)
		if err := h.node.proposeChange(&pb.ConfChangeV2{Changes: []*pb.ConfChangeSingle{single}, Context: change.context}); err != nil {
			change.finish(fmt.Errorf("%w: %w", ErrChangePending, err))
			return nil
		}
		h.change = change
		return nil
	})
	if err != nil {
		return ErrNotController
	}
	select {
	case <-change.done:
		return change.err
	case <-ctx.Done():
		return ctx.Err()
	case <-h.done:
		return ErrNotController
	}
}

// changed follows a committed change of the membership.
func (h *Host) changed(e *pb.Entry) {
	if e.GetType() == pb.EntryNormal {
		return
	}
	voters, ok := outcome(e)
	if !ok {
		return
	}
	h.log.Info("voters of the metadata log changed", "voters", members(voters), "index", e.GetIndex(), "epoch", e.GetTerm())
	h.board.update(func(s *Status) { s.Voters = h.endpoints(h.node.voters) })
	if h.change != nil && string(h.change.context) == string(encodeVoters(voters)) {
		h.change.finish(nil)
		h.change = nil
	}
}

// abandonChange ends a change whose leadership is over: it may still get committed.
func (h *Host) abandonChange() {
	if h.change != nil {
		h.change.finish(ErrNotController)
		h.change = nil
	}
}
