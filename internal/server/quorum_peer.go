package server

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/stelelog/stele/internal/security"
	"github.com/stelelog/stele/internal/wire"
)

// QuorumPeer is the API by which controllers speak with each other. It is served before the controller's others are: a
// quorum that is being formed has no controller yet.
func QuorumPeer(serve func(context.Context, *wire.QuorumPeerRequest) *wire.QuorumPeerResponse) Handler {
	return Handler{Key: wire.KeyQuorumPeer, Scopes: wire.ScopeController, Handle: func(r *Request) Response {
		req := r.Msg.(*wire.QuorumPeerRequest)
		if !r.mayCluster(security.ClusterAction) {
			resp := req.ResponseKind().(*wire.QuorumPeerResponse)
			resp.ErrorCode, resp.ErrorMessage = kerr.ClusterAuthorizationFailed.Code, &kerr.ClusterAuthorizationFailed.Description
			return Reply(resp)
		}
		return Reply(serve(r.Context(), req))
	}}
}
