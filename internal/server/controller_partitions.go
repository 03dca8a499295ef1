package server

import (
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/controller"
	"github.com/stelelog/stele/internal/quorum"
	"github.com/stelelog/stele/internal/security"
)

// electLeaders elects preferred leaders, or (v1, KIP-460) any live replica where there is no leader.
func (a *ControllerAPI) electLeaders(r *Request) (kmsg.Response, error) {
	req := r.Msg.(*kmsg.ElectLeadersRequest)
	if !r.mayCluster(security.Alter) {
		return nil, kerr.ClusterAuthorizationFailed
	}
	reply, err := do[controller.ElectLeadersReply](a, r, func(c *controller.Controller, at controller.At) controller.Result { return c.ElectLeaders(at, req) })
	if err != nil {
		return nil, err
	}
	resp := req.ResponseKind().(*kmsg.ElectLeadersResponse)
	for _, one := range reply.Partitions {
		if n := len(resp.Topics); n == 0 || resp.Topics[n-1].Topic != one.Topic {
			t := kmsg.NewElectLeadersResponseTopic()
			t.Topic = one.Topic
			resp.Topics = append(resp.Topics, t)
		}
		p := kmsg.NewElectLeadersResponseTopicPartition()
		p.Partition, p.ErrorCode, p.ErrorMessage = one.Partition, faultCode(one.Err), faultMessage(one.Err)
		t := &resp.Topics[len(resp.Topics)-1]
		t.Partitions = append(t.Partitions, p)
	}
	return resp, nil
}

// alterReassignments moves partitions to other replicas, or cancels moves (KIP-455). v1 may forbid that the replication
// factor changes (KIP-860).
func (a *ControllerAPI) alterReassignments(r *Request) (kmsg.Response, error) {
	req := r.Msg.(*kmsg.AlterPartitionAssignmentsRequest)
	if !r.mayCluster(security.Alter) {
		return nil, kerr.ClusterAuthorizationFailed
	}
	reply, err := do[controller.AlterReassignmentsReply](a, r, func(c *controller.Controller, at controller.At) controller.Result {
		return c.AlterPartitionAssignments(at, req)
	})
	if err != nil {
		return nil, err
	}
	resp := req.ResponseKind().(*kmsg.AlterPartitionAssignmentsResponse)
	resp.AllowReplicationFactorChange = req.AllowReplicationFactorChange
	for _, one := range reply.Partitions {
		if n := len(resp.Topics); n == 0 || resp.Topics[n-1].Topic != one.Topic {
			t := kmsg.NewAlterPartitionAssignmentsResponseTopic()
			t.Topic = one.Topic
			resp.Topics = append(resp.Topics, t)
		}
		p := kmsg.NewAlterPartitionAssignmentsResponseTopicPartition()
		p.Partition, p.ErrorCode, p.ErrorMessage = one.Partition, faultCode(one.Err), faultMessage(one.Err)
		t := &resp.Topics[len(resp.Topics)-1]
		t.Partitions = append(t.Partitions, p)
	}
	return resp, nil
}

// listReassignments lists the partitions that are on the move.
func (a *ControllerAPI) listReassignments(r *Request) (kmsg.Response, error) {
	req := r.Msg.(*kmsg.ListPartitionReassignmentsRequest)
	if !r.mayCluster(security.Describe) {
		return nil, kerr.ClusterAuthorizationFailed
	}
	reply, err := a.host.Do(r.Context(), func(c *controller.Controller, _ time.Time, _ int64) (controller.Result, error) {
		return controller.Result{Reply: c.ListPartitionReassignments(req)}, nil
	})
	if err != nil {
		return nil, err
	}
	resp := req.ResponseKind().(*kmsg.ListPartitionReassignmentsResponse)
	for _, one := range reply.([]controller.Reassignment) {
		if n := len(resp.Topics); n == 0 || resp.Topics[n-1].Topic != one.Topic {
			t := kmsg.NewListPartitionReassignmentsResponseTopic()
			t.Topic = one.Topic
			resp.Topics = append(resp.Topics, t)
		}
		p := kmsg.NewListPartitionReassignmentsResponseTopicPartition()
		p.Partition, p.Replicas = one.Partition.ID, one.Partition.Replicas
		p.AddingReplicas, p.RemovingReplicas = one.Partition.AddingReplicas, one.Partition.RemovingReplicas
		t := &resp.Topics[len(resp.Topics)-1]
		t.Partitions = append(t.Partitions, p)
	}
	return resp, nil
}

// unregisterBroker removes a broker from the cluster's metadata (KIP-631): one that will not come back.
func (a *ControllerAPI) unregisterBroker(r *Request) (kmsg.Response, error) {
	req := r.Msg.(*kmsg.UnregisterBrokerRequest)
	if !r.mayCluster(security.Alter) {
		return nil, kerr.ClusterAuthorizationFailed
	}
	_, err := a.host.Do(r.Context(), func(c *controller.Controller, now time.Time, next int64) (controller.Result, error) {
		return c.UnregisterBroker(controller.At{Now: now, Next: next}, req.BrokerID), nil
	})
	if err != nil {
		return nil, err
	}
	return req.ResponseKind(), nil
}

// unregisterController removes a controller that has no vote from the cluster's metadata: one that will not come back.
func (a *ControllerAPI) unregisterController(r *Request) (kmsg.Response, error) {
	req := r.Msg.(*kmsg.UnregisterControllerRequest)
	if !r.mayCluster(security.Alter) {
		return nil, kerr.ClusterAuthorizationFailed
	}
	votes := slices.ContainsFunc(a.host.Status().Voters, func(v quorum.Voter) bool { return v.VoterID == req.ControllerID })
	_, err := a.host.Do(r.Context(), func(c *controller.Controller, now time.Time, next int64) (controller.Result, error) {
		return c.UnregisterController(controller.At{Now: now, Next: next}, req.ControllerID, votes), nil
	})
	if err != nil {
		return nil, err
	}
	return req.ResponseKind(), nil
}
