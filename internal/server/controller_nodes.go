package server

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/controller"
	"github.com/stelelog/stele/internal/metadata"
)

func (a *ControllerAPI) registerBroker(r *Request) (kmsg.Response, error) {
	req := r.Msg.(*kmsg.BrokerRegistrationRequest)
	resp := req.ResponseKind().(*kmsg.BrokerRegistrationResponse)
	reply, err := do[controller.RegisterBrokerReply](a, r, func(c *controller.Controller, at controller.At) controller.Result {
		if req.BrokerID == a.node.OwnBroker {
			c.BrokerConnectionLost(at.Now, req.BrokerID)
		}
		return c.RegisterBroker(at, req)
	})
	if err != nil {
		return nil, err
	}
	resp.BrokerEpoch = reply.BrokerEpoch
	a.watch.heard(r.ConnID, req.BrokerID, reply.BrokerEpoch)
	return resp, nil
}

func (a *ControllerAPI) brokerHeartbeat(r *Request) (kmsg.Response, error) {
	req := r.Msg.(*kmsg.BrokerHeartbeatRequest)
	resp := req.ResponseKind().(*kmsg.BrokerHeartbeatResponse)
	reply, err := do[controller.HeartbeatReply](a, r, func(c *controller.Controller, at controller.At) controller.Result { return c.Heartbeat(at, req) })
	if err != nil {
		return nil, err
	}
	a.watch.heard(r.ConnID, req.BrokerID, req.BrokerEpoch)
	resp.IsCaughtUp, resp.IsFenced, resp.ShouldShutdown = reply.IsCaughtUp, reply.IsFenced, reply.ShouldShutDown
	return resp, nil
}

func (a *ControllerAPI) alterPartition(r *Request) (kmsg.Response, error) {
	req := r.Msg.(*kmsg.AlterPartitionRequest)
	resp := req.ResponseKind().(*kmsg.AlterPartitionResponse)
	reply, err := do[controller.AlterPartitionReply](a, r, func(c *controller.Controller, at controller.At) controller.Result { return c.AlterPartition(at, req) })
	if err != nil {
		return nil, err
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
	return resp, nil
}

func (a *ControllerAPI) allocateProducerIDs(r *Request) (kmsg.Response, error) {
	req := r.Msg.(*kmsg.AllocateProducerIDsRequest)
	resp := req.ResponseKind().(*kmsg.AllocateProducerIDsResponse)
	reply, err := do[controller.AllocateProducerIDsReply](a, r, func(c *controller.Controller, at controller.At) controller.Result {
		return c.AllocateProducerIDs(at, req)
	})
	resp.ProducerIDStart, resp.ProducerIDLen = reply.Start, reply.Length
	return resp, err
}

func (a *ControllerAPI) assignReplicasToDirs(r *Request) (kmsg.Response, error) {
	req := r.Msg.(*kmsg.AssignReplicasToDirsRequest)
	resp := req.ResponseKind().(*kmsg.AssignReplicasToDirsResponse)
	reply, err := do[controller.AssignReplicasReply](a, r, func(c *controller.Controller, at controller.At) controller.Result {
		return c.AssignReplicasToDirs(at, req)
	})
	if err != nil {
		return nil, err
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
	return resp, nil
}

func (a *ControllerAPI) registerController(r *Request) (kmsg.Response, error) {
	req := r.Msg.(*kmsg.ControllerRegistrationRequest)
	_, err := a.host.Do(r.Context(), func(c *controller.Controller, now time.Time, next int64) (controller.Result, error) {
		return c.RegisterController(controller.At{Now: now, Next: next}, req), nil
	})
	return req.ResponseKind(), err
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
