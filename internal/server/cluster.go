package server

import (
	"math/rand/v2"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/security"
)

// Endpoint types of DescribeCluster.
const (
	brokerEndpoints     int8 = 1
	controllerEndpoints int8 = 2
)

// describeCluster lists brokers. v1 endpoint type. v2 fenced brokers.
func (a *brokerAPI) describeCluster(r *Request, req *kmsg.DescribeClusterRequest) *kmsg.DescribeClusterResponse {
	resp := req.ResponseKind().(*kmsg.DescribeClusterResponse)
	resp.ControllerID, resp.ClusterAuthorizedOperations = -1, operationsUnknown
	resp.EndpointType = brokerEndpoints
	if req.Version >= 1 && req.EndpointType != brokerEndpoints {
		err := kerr.UnsupportedEndpointType
		if req.EndpointType == controllerEndpoints {
			err = kerr.MismatchedEndpointType
		}
		resp.ErrorCode, resp.ErrorMessage = err.Code, &err.Description
		return resp
	}
	image := a.image()
	resp.ClusterID = a.ClusterID
	if req.IncludeClusterAuthorizedOperations {
		resp.ClusterAuthorizedOperations = 0
		if r.mayCluster(security.Describe) {
			resp.ClusterAuthorizedOperations = r.operations(security.TheCluster, clusterOperations)
		}
	}
	var alive []int32
	for id, registration := range image.Brokers().All() {
		endpoint, ok := registration.Endpoint(r.Listener)
		if !ok || registration.Fenced && !req.IncludeFencedBrokers {
			continue
		}
		b := kmsg.NewDescribeClusterResponseBroker()
		b.NodeID, b.Host, b.Port, b.Rack, b.IsFenced = id, endpoint.Host, int32(endpoint.Port), registration.Rack, registration.Fenced
		resp.Brokers = append(resp.Brokers, b)
		if !registration.Fenced {
			alive = append(alive, id)
		}
	}
	if len(alive) > 0 {
		resp.ControllerID = alive[rand.IntN(len(alive))]
	}
	return resp
}
