package server

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/config"
	"github.com/stelelog/stele/internal/controller"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/quorum"
	"github.com/stelelog/stele/internal/security"
	"github.com/stelelog/stele/internal/wire"
)

// ControllerAPI answers on controller listeners: the brokers' side of KRaft, the
// metadata log for its observers, and the administrative requests that brokers
// forward.
type ControllerAPI struct {
	opened    chan struct{}
	clusterID string
	host      *quorum.Host
	node      ControllerNode
	watch     *brokerWatch
}

// ControllerNode is what a controller knows of the process it runs in.
type ControllerNode struct {
	// ID and Config are the node's own: what DescribeConfigs shows of it. A nil Config stands for all defaults.
	ID     int32
	Config *config.Broker
	// OwnBroker is the id of the broker in this process, -1 for none. No earlier process
	// with that id can be alive: this one holds the lock of its directories.
	OwnBroker int32
	Logger    *slog.Logger   // nil: none
	LogLevel  *slog.LevelVar // see Node
	Dial      wire.DialFunc  // how brokers' listeners are tried; nil: TCP
	// Reach asks whether a controller that is to become a voter is there; nil: none is.
	Reach func(context.Context, quorum.Voter) error
}

// NewControllerAPI makes an API that is not open yet: requests wait.
func NewControllerAPI(clusterID string) *ControllerAPI {
	return &ControllerAPI{opened: make(chan struct{}), clusterID: clusterID, watch: newBrokerWatch()}
}

// Close ends what the API has begun of itself, and waits for it.
func (a *ControllerAPI) Close() { a.watch.close() }

// PeerClosed is told that the other side has closed a connection: when a broker's
// heartbeats came over it, that broker may be dead. It does not block.
func (a *ControllerAPI) PeerClosed(closed PeerClosed) {
	select {
	case <-a.opened:
		a.brokerMayBeDead(closed.ConnID)
	default: // nobody has been let in yet
	}
}

// Open lets requests through to host. It is called once.
func (a *ControllerAPI) Open(host *quorum.Host, node ControllerNode) {
	if node.Logger == nil {
		node.Logger = slog.New(slog.DiscardHandler)
	}
	if node.Dial == nil {
		node.Dial = (&net.Dialer{}).DialContext
	}
	if node.LogLevel == nil {
		node.LogLevel = new(slog.LevelVar)
	}
	if node.Config == nil {
		node.Config = config.Defaults()
	}
	if node.Reach == nil {
		node.Reach = func(context.Context, quorum.Voter) error { return quorum.ErrVoterUnreachable }
	}
	a.host, a.node = host, node
	close(a.opened)
	a.watch.start(a.followActivity)
}

// controllerHandler answers one request. An error is one of the whole request: it is answered by failedResponse.
type controllerHandler func(a *ControllerAPI, r *Request) (kmsg.Response, error)

// forwardableHandlers are the APIs that a client may send itself, or through a broker in an Envelope. Each asks
// the authorizer for what it does.
var forwardableHandlers = map[int16]controllerHandler{
	int16(kmsg.CreateTopics):            (*ControllerAPI).createTopics,
	int16(kmsg.DeleteTopics):            (*ControllerAPI).deleteTopics,
	int16(kmsg.CreatePartitions):        (*ControllerAPI).createPartitions,
	int16(kmsg.AlterConfigs):            (*ControllerAPI).alterConfigs,
	int16(kmsg.IncrementalAlterConfigs): (*ControllerAPI).incrementalAlterConfigs,
	int16(kmsg.DescribeQuorum):          (*ControllerAPI).describeQuorum,
	int16(kmsg.UpdateFeatures):          (*ControllerAPI).updateFeatures,
	int16(kmsg.AlterClientQuotas):       (*ControllerAPI).alterClientQuotas,
	int16(kmsg.ElectLeaders):            (*ControllerAPI).electLeaders,
	int16(kmsg.UnregisterBroker):        (*ControllerAPI).unregisterBroker,

	int16(kmsg.UnregisterController): (*ControllerAPI).unregisterController,

	int16(kmsg.CreateACLs):                (*ControllerAPI).createACLs,
	int16(kmsg.DeleteACLs):                (*ControllerAPI).deleteACLs,
	int16(kmsg.AlterUserSCRAMCredentials): (*ControllerAPI).alterScram,
	int16(kmsg.CreateDelegationToken):     (*ControllerAPI).createToken,
	int16(kmsg.RenewDelegationToken):      (*ControllerAPI).renewToken,
	int16(kmsg.ExpireDelegationToken):     (*ControllerAPI).expireToken,

	int16(kmsg.AddRaftVoter):    (*ControllerAPI).addVoter,
	int16(kmsg.RemoveRaftVoter): (*ControllerAPI).removeVoter,

	int16(kmsg.AlterPartitionAssignments):  (*ControllerAPI).alterReassignments,
	int16(kmsg.ListPartitionReassignments): (*ControllerAPI).listReassignments,
}

// clusterHandlers are the APIs of the cluster's own nodes: who sends them must be allowed CLUSTER_ACTION.
var clusterHandlers = map[int16]controllerHandler{
	int16(kmsg.FetchSnapshot):          (*ControllerAPI).fetchSnapshot,
	int16(kmsg.BrokerRegistration):     (*ControllerAPI).registerBroker,
	int16(kmsg.BrokerHeartbeat):        (*ControllerAPI).brokerHeartbeat,
	int16(kmsg.AlterPartition):         (*ControllerAPI).alterPartition,
	int16(kmsg.AllocateProducerIDs):    (*ControllerAPI).allocateProducerIDs,
	int16(kmsg.AssignReplicasToDirs):   (*ControllerAPI).assignReplicasToDirs,
	int16(kmsg.ControllerRegistration): (*ControllerAPI).registerController,
	int16(kmsg.Envelope):               (*ControllerAPI).envelope,
}

// Handlers are the APIs of a controller listener.
func (a *ControllerAPI) Handlers() []Handler {
	handlers := []Handler{
		a.on(wire.KeyFetch, (*ControllerAPI).fetchMetadata),
		a.on(int16(kmsg.DescribeCluster), func(a *ControllerAPI, r *Request) Response { return Reply(a.describeCluster(r)) }),
		a.on(int16(kmsg.DescribeACLs), (*ControllerAPI).describeACLs),
		a.on(int16(kmsg.DescribeUserSCRAMCredentials), func(a *ControllerAPI, r *Request) Response { return a.answer(r, (*ControllerAPI).describeScram) }),
		a.on(int16(kmsg.DescribeDelegationToken), func(a *ControllerAPI, r *Request) Response { return a.answer(r, (*ControllerAPI).describeTokens) }),
		a.on(int16(kmsg.DescribeConfigs), func(a *ControllerAPI, r *Request) Response {
			return Reply(a.describeConfigs(r, r.Msg.(*kmsg.DescribeConfigsRequest)))
		}),
	}
	for key, handle := range forwardableHandlers {
		handlers = append(handlers, a.on(key, func(a *ControllerAPI, r *Request) Response { return a.answer(r, handle) }))
	}
	for key, handle := range clusterHandlers {
		handlers = append(handlers, a.on(key, func(a *ControllerAPI, r *Request) Response {
			if !r.mayCluster(security.ClusterAction) {
				return Reply(failedResponse(r.Msg, kerr.ClusterAuthorizationFailed))
			}
			return a.answer(r, handle)
		}))
	}
	return handlers
}

func (a *ControllerAPI) answer(r *Request, handle controllerHandler) Response {
	resp, err := handle(a, r)
	if errors.Is(err, errUnknownElement) {
		return CloseConnection(err)
	}
	if err != nil {
		resp = failedResponse(r.Msg, err)
	}
	answer := Reply(resp)
	if throttled, ok := resp.(kmsg.ThrottleResponse); ok {
		wait, _ := throttled.Throttle()
		answer = answer.Muting(time.Duration(wait) * time.Millisecond)
	}
	return answer
}

func (a *ControllerAPI) on(key int16, handle func(a *ControllerAPI, r *Request) Response) Handler {
	return Handler{Key: key, Scopes: wire.ScopeController, Handle: func(r *Request) Response {
		select {
		case <-a.opened:
			return handle(a, r)
		case <-r.Context().Done():
			return CloseConnection(r.Context().Err())
		}
	}}
}

// do runs one request on the controller. T is its reply.
func do[T any](a *ControllerAPI, r *Request, request func(c *controller.Controller, at controller.At) controller.Result) (T, error) {
	var none T
	ctx, cancel := patience(r)
	defer cancel()
	reply, err := a.host.Do(ctx, func(c *controller.Controller, now time.Time, next int64) (controller.Result, error) {
		return request(c, controller.At{Now: now, Next: next}), nil
	})
	if err != nil {
		return none, err
	}
	return reply.(T), nil
}

// doCharged is do for a request that makes or removes partitions, which counts against the client's controller mutation
// quota: from version strictSince on what is beyond it is refused. throttle is in milliseconds.
func doCharged[T any](a *ControllerAPI, r *Request, strictSince int16, request func(c *controller.Controller, at controller.At) controller.Result) (reply T, throttle int32, err error) {
	var result controller.Result
	reply, err = do[T](a, r, func(c *controller.Controller, at controller.At) controller.Result {
		at.Client = &controller.Client{User: r.Principal.Name, ID: r.ClientID, Strict: r.Version >= strictSince}
		result = request(c, at)
		return result
	})
	if err != nil {
		return reply, 0, err
	}
	return reply, int32(min(result.Throttle.Milliseconds(), math.MaxInt32)), nil
}

// patience bounds how long a client's request waits to be carried out: by the timeout that it names, which is looked at
// from a second on, or by forwardTimeout. The cluster's own nodes end their requests by themselves.
func patience(r *Request) (context.Context, context.CancelFunc) {
	switch r.Msg.(type) {
	case *kmsg.BrokerRegistrationRequest, *kmsg.BrokerHeartbeatRequest, *kmsg.AlterPartitionRequest, *kmsg.AllocateProducerIDsRequest,
		*kmsg.AssignReplicasToDirsRequest, *kmsg.ControllerRegistrationRequest:
		return context.WithCancel(r.Context())
	}
	wait := forwardTimeout
	if named, ok := r.Msg.(interface{ Timeout() int32 }); ok && named.Timeout() > 0 {
		wait = min(wait, max(time.Second, time.Duration(named.Timeout())*time.Millisecond))
	}
	return context.WithTimeout(r.Context(), wait)
}

// faultCode and faultMessage read an item's fault, which is nil for success.
func faultCode(fault *controller.Error) int16 {
	if fault == nil {
		return 0
	}
	return errorCode(fault)
}

func faultMessage(fault *controller.Error) *string {
	if fault == nil {
		return nil
	}
	return textOrNil(fault.Message)
}

// fetchMetadata serves the metadata log to observers.
func (a *ControllerAPI) fetchMetadata(r *Request) Response {
	req := r.Fetch
	if !r.mayCluster(security.ClusterAction) {
		resp := req.ResponseKind().(*kmsg.FetchResponse)
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return Reply(resp)
	}
	if req.MaxWaitMillis > 0 && !r.Park(fetchParked) {
		req.MaxWaitMillis = 0
	}
	return Reply(a.host.Fetch(r.Context(), req, r.Listener))
}

func (a *ControllerAPI) fetchSnapshot(r *Request) (kmsg.Response, error) {
	return a.host.FetchSnapshot(r.Msg.(*kmsg.FetchSnapshotRequest), r.Listener), nil
}

func (a *ControllerAPI) describeQuorum(r *Request) (kmsg.Response, error) {
	req := r.Msg.(*kmsg.DescribeQuorumRequest)
	if !r.mayCluster(security.Describe) {
		return nil, kerr.ClusterAuthorizationFailed
	}
	ctx, cancel := patience(r)
	defer cancel()
	return a.host.DescribeQuorum(ctx, req)
}

func (a *ControllerAPI) updateFeatures(r *Request) (kmsg.Response, error) {
	req := r.Msg.(*kmsg.UpdateFeaturesRequest)
	resp := req.ResponseKind().(*kmsg.UpdateFeaturesResponse)
	if !r.mayCluster(security.Alter) {
		return nil, kerr.ClusterAuthorizationFailed
	}
	ctx, cancel := patience(r)
	defer cancel()
	_, err := a.host.Do(ctx, func(c *controller.Controller, now time.Time, next int64) (controller.Result, error) {
		return c.UpdateFeatures(controller.At{Now: now, Next: next}, req), nil
	})
	if err != nil {
		return nil, err
	}
	if req.Version <= 1 {
		for _, u := range req.FeatureUpdates {
			result := kmsg.NewUpdateFeaturesResponseResult()
			result.Feature, result.ErrorMessage = u.Feature, new("NONE")
			resp.Results = append(resp.Results, result)
		}
	}
	return resp, nil
}

// describeCluster lists the controllers: clients may bootstrap from them (KIP-919).
func (a *ControllerAPI) describeCluster(r *Request) kmsg.Response {
	req := r.Msg.(*kmsg.DescribeClusterRequest)
	resp := req.ResponseKind().(*kmsg.DescribeClusterResponse)
	resp.ControllerID, resp.ClusterAuthorizedOperations, resp.EndpointType = -1, operationsUnknown, controllerEndpoints
	fail := func(err *kerr.Error) kmsg.Response {
		resp.ErrorCode, resp.ErrorMessage = err.Code, &err.Description
		return resp
	}
	image := a.host.Committed()
	switch {
	case !r.mayCluster(security.Alter):
		return fail(kerr.ClusterAuthorizationFailed)
	case req.Version == 0:
		return fail(kerr.InvalidRequest)
	case req.EndpointType == brokerEndpoints:
		return fail(kerr.MismatchedEndpointType)
	case req.EndpointType != controllerEndpoints:
		return fail(kerr.UnsupportedEndpointType)
	case image.MetadataVersion() < metadata.LevelControllerRecords:
		return fail(kerr.UnsupportedVersion)
	}
	resp.ClusterID = a.clusterID
	resp.ControllerID, _ = a.host.LeaderAndEpoch()
	for id, registration := range image.Controllers().All() {
		endpoint, ok := registration.Endpoint(r.Listener)
		if !ok {
			continue
		}
		b := kmsg.NewDescribeClusterResponseBroker()
		b.NodeID, b.Host, b.Port = id, endpoint.Host, int32(endpoint.Port)
		resp.Brokers = append(resp.Brokers, b)
	}
	if req.IncludeClusterAuthorizedOperations {
		resp.ClusterAuthorizedOperations = r.operations(security.TheCluster, clusterOperations)
	}
	return resp
}
