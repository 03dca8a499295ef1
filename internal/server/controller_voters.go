package server

import (
	"context"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/controller"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/quorum"
	"github.com/stelelog/stele/internal/security"
)

// addVoter makes a controller a voter (KIP-853). It must run and answer as who the request says, so that a mistyped id
// does not cost the quorum its majority. It is answered when the change is committed, also where v1 would do with less.
func (a *ControllerAPI) addVoter(r *Request) (kmsg.Response, error) {
	req := r.Msg.(*kmsg.AddRaftVoterRequest)
	if err := a.mayChangeVoters(r, req.ClusterID, req.VoterID, req.VoterDirectoryID); err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(req.Listeners, func(l kmsg.AddRaftVoterRequestListener) bool { return l.Name == r.Listener }) {
		return nil, &controller.Error{Err: controller.ErrInvalidRequest, Message: "the voter names no address for the listener " + r.Listener}
	}
	voter := quorum.Voter{VoterID: req.VoterID, VoterDirectoryID: req.VoterDirectoryID, KRaftVersionFeature: metadata.VersionRange{Min: 0, Max: 1}}
	for _, l := range req.Listeners {
		voter.Endpoints = append(voter.Endpoints, metadata.VoterEndpoint{Name: l.Name, Host: l.Host, Port: l.Port})
	}
	ctx, cancel := context.WithTimeout(r.Context(), time.Duration(max(req.TimeoutMillis, 0))*time.Millisecond)
	defer cancel()
	for _, known := range a.host.Status().Voters {
		if known.VoterID == voter.VoterID {
			return nil, quorum.ErrDuplicateVoter
		}
	}
	if err := a.node.Reach(ctx, voter); err != nil {
		return nil, err
	}
	return req.ResponseKind(), a.host.AddVoter(ctx, voter)
}

// removeVoter takes a voter's vote away, alive or not.
func (a *ControllerAPI) removeVoter(r *Request) (kmsg.Response, error) {
	req := r.Msg.(*kmsg.RemoveRaftVoterRequest)
	if err := a.mayChangeVoters(r, req.ClusterID, req.VoterID, req.VoterDirectoryID); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), voterTimeout)
	defer cancel()
	return req.ResponseKind(), a.host.RemoveVoter(ctx, req.VoterID, req.VoterDirectoryID)
}

// voterTimeout bounds the wait for the commit of a removal, whose request has no timeout of its own.
const voterTimeout = 15 * time.Second

func (a *ControllerAPI) mayChangeVoters(r *Request, clusterID *string, id int32, dir metadata.UUID) error {
	switch {
	case !r.mayCluster(security.Alter):
		return kerr.ClusterAuthorizationFailed
	case clusterID != nil && *clusterID != a.clusterID:
		return quorum.ErrInconsistentClusterID
	case !a.host.Status().Active:
		return quorum.ErrNotLeaderOrFollower
	case id < 0 || dir == metadata.UUID{}:
		return &controller.Error{Err: controller.ErrInvalidRequest, Message: "a voter has a node id and a directory id"}
	}
	return nil
}
