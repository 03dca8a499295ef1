package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

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
	// OwnBroker is the id of the broker in this process, -1 for none. No earlier process
	// with that id can be alive: this one holds the lock of its directories.
	OwnBroker int32
	Logger    *slog.Logger  // nil: none
	Dial      wire.DialFunc // how brokers' listeners are tried; nil: TCP
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
	a.host, a.node = host, node
	close(a.opened)
}

// controllerHandlers are the APIs that a client may send itself or through a broker
// in an Envelope, and those that only brokers and observers send.
var controllerHandlers = map[int16]func(a *ControllerAPI, r *Request) kmsg.Response{
	int16(kmsg.CreateTopics):            (*ControllerAPI).createTopics,
	int16(kmsg.DeleteTopics):            (*ControllerAPI).deleteTopics,
	int16(kmsg.CreatePartitions):        (*ControllerAPI).createPartitions,
	int16(kmsg.AlterConfigs):            (*ControllerAPI).alterConfigs,
	int16(kmsg.IncrementalAlterConfigs): (*ControllerAPI).incrementalAlterConfigs,
	int16(kmsg.DescribeQuorum):          (*ControllerAPI).describeQuorum,
	int16(kmsg.UpdateFeatures):          (*ControllerAPI).updateFeatures,
}

var brokerOnlyHandlers = map[int16]func(a *ControllerAPI, r *Request) kmsg.Response{
	int16(kmsg.FetchSnapshot):          (*ControllerAPI).fetchSnapshot,
	int16(kmsg.BrokerRegistration):     (*ControllerAPI).registerBroker,
	int16(kmsg.BrokerHeartbeat):        (*ControllerAPI).brokerHeartbeat,
	int16(kmsg.AlterPartition):         (*ControllerAPI).alterPartition,
	int16(kmsg.AllocateProducerIDs):    (*ControllerAPI).allocateProducerIDs,
	int16(kmsg.AssignReplicasToDirs):   (*ControllerAPI).assignReplicasToDirs,
	int16(kmsg.ControllerRegistration): (*ControllerAPI).registerController,
	int16(kmsg.Envelope):               (*ControllerAPI).envelope,
	int16(kmsg.DescribeCluster):        (*ControllerAPI).describeCluster,
}

// Handlers are the APIs of a controller listener.
func (a *ControllerAPI) Handlers() []Handler {
	handlers := []Handler{a.on(wire.KeyFetch, (*ControllerAPI).fetchMetadata)}
	for _, table := range []map[int16]func(*ControllerAPI, *Request) kmsg.Response{controllerHandlers, brokerOnlyHandlers} {
		for key, handle := range table {
			handlers = append(handlers, a.on(key, func(a *ControllerAPI, r *Request) Response { return Reply(handle(a, r)) }))
		}
	}
	return handlers
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
	reply, err := a.host.Do(r.Context(), func(c *controller.Controller, now time.Time, next int64) (controller.Result, error) {
		return request(c, controller.At{Now: now, Next: next}), nil
	})
	if err != nil {
		return none, err
	}
	return reply.(T), nil
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

// fault makes an item's fault of an error of the whole request.
func requestMessage(err error) *string {
	var fault *controller.Error
	if errors.As(err, &fault) {
		return textOrNil(fault.Message)
	}
	return nil
}

// fetchMetadata serves the metadata log to observers.
func (a *ControllerAPI) fetchMetadata(r *Request) Response {
	req := r.Fetch
	if !r.mayCluster(security.ClusterAction) {
		resp := req.ResponseKind().(*kmsg.FetchResponse)
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return Reply(resp)
	}
	return Reply(a.host.Fetch(r.Context(), req, r.Listener))
}

func (a *ControllerAPI) fetchSnapshot(r *Request) kmsg.Response {
	req := r.Msg.(*kmsg.FetchSnapshotRequest)
	if !r.mayCluster(security.ClusterAction) {
		resp := req.ResponseKind().(*kmsg.FetchSnapshotResponse)
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp
	}
	return a.host.FetchSnapshot(req, r.Listener)
}

func (a *ControllerAPI) registerBroker(r *Request) kmsg.Response {
	req := r.Msg.(*kmsg.BrokerRegistrationRequest)
	resp := req.ResponseKind().(*kmsg.BrokerRegistrationResponse)
	resp.BrokerEpoch = -1
	if !r.mayCluster(security.ClusterAction) {
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp
	}
	reply, err := do[controller.RegisterBrokerReply](a, r, func(c *controller.Controller, at controller.At) controller.Result {
		if req.BrokerID == a.node.OwnBroker {
			c.BrokerConnectionLost(at.Now, req.BrokerID)
		}
		return c.RegisterBroker(at, req)
	})
	if resp.ErrorCode = errorCode(err); err == nil {
		resp.BrokerEpoch = reply.BrokerEpoch
		a.watch.heard(r.ConnID, req.BrokerID, reply.BrokerEpoch)
	}
	return resp
}

func (a *ControllerAPI) brokerHeartbeat(r *Request) kmsg.Response {
	req := r.Msg.(*kmsg.BrokerHeartbeatRequest)
	resp := req.ResponseKind().(*kmsg.BrokerHeartbeatResponse)
	resp.IsFenced = true
	if !r.mayCluster(security.ClusterAction) {
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp
	}
	reply, err := do[controller.HeartbeatReply](a, r, func(c *controller.Controller, at controller.At) controller.Result { return c.Heartbeat(at, req) })
	if resp.ErrorCode = errorCode(err); err == nil {
		a.watch.heard(r.ConnID, req.BrokerID, req.BrokerEpoch)
		resp.IsCaughtUp, resp.IsFenced, resp.ShouldShutdown = reply.IsCaughtUp, reply.IsFenced, reply.ShouldShutDown
	}
	return resp
}

func (a *ControllerAPI) alterPartition(r *Request) kmsg.Response {
	req := r.Msg.(*kmsg.AlterPartitionRequest)
	resp := req.ResponseKind().(*kmsg.AlterPartitionResponse)
	if !r.mayCluster(security.ClusterAction) {
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp
	}
	reply, err := do[controller.AlterPartitionReply](a, r, func(c *controller.Controller, at controller.At) controller.Result { return c.AlterPartition(at, req) })
	if err != nil {
		resp.ErrorCode = errorCode(err)
		return resp
	}
	for _, altered := range reply.Partitions {
		if n := len(resp.Topics); n == 0 || resp.Topics[n-1].TopidID != [16]byte(altered.TopicID) {
			topic := kmsg.NewAlterPartitionResponseTopic()
			topic.TopidID = altered.TopicID
			resp.Topics = append(resp.Topics, topic)
		}
		p := kmsg.NewAlterPartitionResponseTopicPartition()
		p.Partition, p.ErrorCode = altered.Partition, faultCode(altered.Err)
		if s := altered.State; s != nil && (altered.Err == nil || errors.Is(altered.Err, controller.ErrNewLeaderElected)) {
			p.LeaderID, p.LeaderEpoch, p.ISR, p.LeaderRecoveryState, p.PartitionEpoch = s.Leader, s.LeaderEpoch, s.ISR, s.RecoveryState, s.PartitionEpoch
		}
		topic := &resp.Topics[len(resp.Topics)-1]
		topic.Partitions = append(topic.Partitions, p)
	}
	return resp
}

func (a *ControllerAPI) allocateProducerIDs(r *Request) kmsg.Response {
	req := r.Msg.(*kmsg.AllocateProducerIDsRequest)
	resp := req.ResponseKind().(*kmsg.AllocateProducerIDsResponse)
	if !r.mayCluster(security.ClusterAction) {
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp
	}
	reply, err := do[controller.AllocateProducerIDsReply](a, r, func(c *controller.Controller, at controller.At) controller.Result {
		return c.AllocateProducerIDs(at, req)
	})
	resp.ErrorCode, resp.ProducerIDStart, resp.ProducerIDLen = errorCode(err), reply.Start, reply.Length
	return resp
}

func (a *ControllerAPI) assignReplicasToDirs(r *Request) kmsg.Response {
	req := r.Msg.(*kmsg.AssignReplicasToDirsRequest)
	resp := req.ResponseKind().(*kmsg.AssignReplicasToDirsResponse)
	if !r.mayCluster(security.ClusterAction) {
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp
	}
	reply, err := do[controller.AssignReplicasReply](a, r, func(c *controller.Controller, at controller.At) controller.Result {
		return c.AssignReplicasToDirs(at, req)
	})
	if err != nil {
		resp.ErrorCode = errorCode(err)
		return resp
	}
	for _, assigned := range reply.Replicas {
		if n := len(resp.Directories); n == 0 || resp.Directories[n-1].ID != [16]byte(assigned.Directory) {
			dir := kmsg.NewAssignReplicasToDirsResponseDirectory()
			dir.ID = assigned.Directory
			resp.Directories = append(resp.Directories, dir)
		}
		dir := &resp.Directories[len(resp.Directories)-1]
		if n := len(dir.Topics); n == 0 || dir.Topics[n-1].TopicID != [16]byte(assigned.TopicID) {
			topic := kmsg.NewAssignReplicasToDirsResponseDirectoryTopic()
			topic.TopicID = assigned.TopicID
			dir.Topics = append(dir.Topics, topic)
		}
		topic := &dir.Topics[len(dir.Topics)-1]
		p := kmsg.NewAssignReplicasToDirsResponseDirectoryTopicPartition()
		p.Partition, p.ErrorCode = assigned.Partition, faultCode(assigned.Err)
		topic.Partitions = append(topic.Partitions, p)
	}
	return resp
}

func (a *ControllerAPI) registerController(r *Request) kmsg.Response {
	req := r.Msg.(*kmsg.ControllerRegistrationRequest)
	resp := req.ResponseKind().(*kmsg.ControllerRegistrationResponse)
	if !r.mayCluster(security.ClusterAction) {
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp
	}
	_, err := a.host.Do(r.Context(), func(c *controller.Controller, now time.Time, next int64) (controller.Result, error) {
		return c.RegisterController(controller.At{Now: now, Next: next}, req), nil
	})
	resp.ErrorCode, resp.ErrorMessage = errorCode(err), requestMessage(err)
	return resp
}

// Register has this node's own registration written, as controllers do once they know
// the active one: here it is this node itself, which must be active.
func (a *ControllerAPI) Register(ctx context.Context, req *kmsg.ControllerRegistrationRequest) error {
	if a.host.Committed().MetadataVersion() < metadata.LevelControllerRecords {
		return nil
	}
	_, err := a.host.Do(ctx, func(c *controller.Controller, now time.Time, next int64) (controller.Result, error) {
		return c.RegisterController(controller.At{Now: now, Next: next}, req), nil
	})
	return err
}

func (a *ControllerAPI) describeQuorum(r *Request) kmsg.Response {
	req := r.Msg.(*kmsg.DescribeQuorumRequest)
	if !r.mayCluster(security.Describe) {
		return failedResponse(req, kerr.ClusterAuthorizationFailed.Code)
	}
	resp, err := a.host.DescribeQuorum(r.Context(), req)
	if err != nil {
		return failedResponse(req, errorCode(err))
	}
	return resp
}

func (a *ControllerAPI) updateFeatures(r *Request) kmsg.Response {
	req := r.Msg.(*kmsg.UpdateFeaturesRequest)
	resp := req.ResponseKind().(*kmsg.UpdateFeaturesResponse)
	if !r.mayCluster(security.Alter) {
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp
	}
	_, err := a.host.Do(r.Context(), func(c *controller.Controller, now time.Time, next int64) (controller.Result, error) {
		return c.UpdateFeatures(controller.At{Now: now, Next: next}, req), nil
	})
	resp.ErrorCode, resp.ErrorMessage = errorCode(err), requestMessage(err)
	if err == nil && req.Version <= 1 {
		for _, u := range req.FeatureUpdates {
			result := kmsg.NewUpdateFeaturesResponseResult()
			result.Feature = u.Feature
			resp.Results = append(resp.Results, result)
		}
	}
	return resp
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
