package server

import (
	"regexp"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/wire"
)

// ApiVersions (18), versions 0 to 5: which APIs, versions and features there are.
//
// 1 throttle time; 3 flexible, client software name and version (KIP-511), features; 4 shows features
// whose lowest version is 0; 5 names the cluster and node that the client believes it has reached
// (KIP-1242). It is answered on every listener and before authentication, so nothing is asked of the
// authorizer. An unknown version is answered in the layout of version 0 with our range for this API.

// Features are the cluster's feature levels as ApiVersions shows them.
type Features struct {
	Supported      []kmsg.ApiVersionsResponseSupportedFeature
	Finalized      []kmsg.ApiVersionsResponseFinalizedFeature
	FinalizedEpoch int64 // -1: not known
}

var softwareWord = regexp.MustCompile(`^[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?$`)

func (s *Server) apiVersions() Handler {
	return Handler{Key: wire.KeyApiVersions, Scopes: wire.ScopeBroker | wire.ScopeController, Handle: s.handleApiVersions}
}

func (s *Server) handleApiVersions(r *Request) Response {
	req := r.Msg.(*kmsg.ApiVersionsRequest)
	resp := req.ResponseKind().(*kmsg.ApiVersionsResponse)
	if r.Version >= 3 {
		if !softwareWord.MatchString(req.ClientSoftwareName) || !softwareWord.MatchString(req.ClientSoftwareVersion) {
			resp.ErrorCode = kerr.InvalidRequest.Code
			return Reply(resp)
		}
		r.conn.software, r.conn.softwareVersion = req.ClientSoftwareName, req.ClientSoftwareVersion
		s.metrics.clientSoftware(req.ClientSoftwareName, req.ClientSoftwareVersion)
	} else if r.conn.software == "" {
		s.metrics.clientSoftware("unknown", "unknown") // older clients do not say
	}
	if r.Version >= 5 {
		if code := s.checkDestination(req, r.Scope); code != 0 {
			resp.ErrorCode = code
			return Reply(resp)
		}
	}
	resp.ApiKeys = r.conn.ln.handlers.ranges()
	if r.Version >= 3 {
		f := s.opts.Features()
		for _, feature := range f.Supported {
			// Clients that speak at most version 3 take a lowest version of 0 for malformed.
			if feature.MinVersion > 0 || r.Version >= 4 {
				resp.SupportedFeatures = append(resp.SupportedFeatures, feature)
			}
		}
		resp.FinalizedFeatures = f.Finalized
		resp.FinalizedFeaturesEpoch = f.FinalizedEpoch
	}
	return Reply(resp)
}

// checkDestination returns the error for a client that is looking for another cluster or node, 0 for none.
// A controller's listener looks only at whether both are given: its clients know it by voter id.
func (s *Server) checkDestination(req *kmsg.ApiVersionsRequest, scope wire.Scope) int16 {
	if req.ClusterID == nil && req.NodeID == -1 {
		return 0
	}
	if req.ClusterID == nil || req.NodeID == -1 {
		return kerr.InvalidRequest.Code
	}
	if scope == wire.ScopeBroker && (*req.ClusterID != s.opts.ClusterID || req.NodeID != s.opts.NodeID) {
		return kerr.RebootstrapRequired.Code
	}
	return 0
}

// ranges lists what the handlers serve, in the order of keys.
func (h handlers) ranges() []kmsg.ApiVersionsResponseApiKey {
	out := make([]kmsg.ApiVersionsResponseApiKey, 0, len(h))
	for key, handler := range h {
		if key == wire.KeyQuorumPeer {
			continue
		}
		api, _ := wire.Lookup(key)
		k := kmsg.NewApiVersionsResponseApiKey()
		k.ApiKey, k.MinVersion, k.MaxVersion = key, api.Min, handler.max(api)
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b kmsg.ApiVersionsResponseApiKey) int { return int(a.ApiKey) - int(b.ApiKey) })
	return out
}

// unsupportedApiVersions is the answer to a version of ApiVersions that we do not know.
func unsupportedApiVersions(h handlers) *kmsg.ApiVersionsResponse {
	resp := kmsg.NewPtrApiVersionsResponse()
	resp.ErrorCode = kerr.UnsupportedVersion.Code
	for _, k := range h.ranges() {
		if k.ApiKey == wire.KeyApiVersions {
			resp.ApiKeys = append(resp.ApiKeys, k)
		}
	}
	return resp
}
