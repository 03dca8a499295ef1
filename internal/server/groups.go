package server

import (
	"errors"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/coordinator"
	"github.com/stelelog/stele/internal/group"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/security"
)

// Coordinator types of FindCoordinator.
const (
	groupCoordinator       int8 = 0
	transactionCoordinator int8 = 1
)

// findCoordinator names the broker that leads a key's partition of the internal
// topic, and has the topic created when it is missing.
//
// v1 key types, error message. v4 several keys (KIP-699).
func (a *brokerAPI) findCoordinator(r *Request, req *kmsg.FindCoordinatorRequest) *kmsg.FindCoordinatorResponse {
	resp := req.ResponseKind().(*kmsg.FindCoordinatorResponse)
	if req.Version >= 4 {
		for _, key := range req.CoordinatorKeys {
			resp.Coordinators = append(resp.Coordinators, a.coordinatorOf(r, req.CoordinatorType, key))
		}
		return resp
	}
	found := a.coordinatorOf(r, req.CoordinatorType, req.CoordinatorKey)
	resp.ErrorCode = found.ErrorCode
	if text := "NONE"; req.Version >= 1 {
		if found.ErrorCode != 0 {
			text = kerr.TypedErrorForCode(found.ErrorCode).Description
		}
		resp.ErrorMessage = &text
	}
	resp.NodeID, resp.Host, resp.Port = found.NodeID, found.Host, found.Port
	return resp
}

func (a *brokerAPI) coordinatorOf(r *Request, kind int8, key string) kmsg.FindCoordinatorResponseCoordinator {
	out := kmsg.NewFindCoordinatorResponseCoordinator()
	out.Key, out.NodeID, out.Port, out.ErrorMessage = key, -1, -1, new(string) // Kafka leaves the message empty here
	fail := func(err *kerr.Error) kmsg.FindCoordinatorResponseCoordinator {
		out.ErrorCode = err.Code
		return out
	}
	topic, partitionFor := coordinator.GroupTopic, a.Groups.PartitionFor
	switch kind {
	case groupCoordinator:
		if !r.mayGroup(security.Describe, key) {
			return fail(kerr.GroupAuthorizationFailed)
		}
	case transactionCoordinator:
		if !r.Authorize(security.Describe, security.Resource{Type: security.TransactionalID, Name: key}) {
			return fail(kerr.TransactionalIDAuthorizationFailed)
		}
		topic, partitionFor = coordinator.TransactionTopic, a.Txns.PartitionFor
	default:
		return fail(kerr.InvalidRequest)
	}
	image := a.image()
	partition, ok := partitionFor(key)
	if !ok {
		a.creating.internal(topic)
		return fail(kerr.CoordinatorNotAvailable)
	}
	state, ok := image.Partition(topic, partition)
	if !ok {
		return fail(kerr.CoordinatorNotAvailable)
	}
	leader, ok := image.Broker(state.Leader)
	if !ok || leader.Fenced {
		return fail(kerr.CoordinatorNotAvailable)
	}
	endpoint, ok := leader.Endpoint(r.Listener)
	if !ok {
		return fail(kerr.CoordinatorNotAvailable)
	}
	out.NodeID, out.Host, out.Port = state.Leader, endpoint.Host, int32(endpoint.Port)
	return out
}

// parkMember gives back what the request of a member takes that waits for others: its group holds what there is to
// hold, and others must be let in, for whom it waits.
func (r *Request) parkMember() {
	r.Msg = nil
	r.ReleaseBody()
}

// joinGroup parks a member until its join phase ends.
//
// v2 throttle time. v4 MEMBER_ID_REQUIRED (KIP-394). v5 static members (KIP-345). v7
// protocol type, null protocol. v8 reason. v9 the leader may skip the assignment.
func (a *brokerAPI) joinGroup(r *Request, req *kmsg.JoinGroupRequest) *kmsg.JoinGroupResponse {
	resp := req.ResponseKind().(*kmsg.JoinGroupResponse)
	resp.Generation = -1
	var reply *group.JoinReply
	var err error = kerr.GroupAuthorizationFailed
	version, memberID := req.Version, req.MemberID // the rest of the request is not kept while it waits
	if r.mayGroup(security.Read, req.Group) {
		reply, err = a.Groups.JoinGroup(r.Context(), group.RequestContext{ClientID: r.ClientID, ClientHost: hostText(r.ClientAddr)}, req, r.parkMember)
	}
	if err != nil {
		reply = &group.JoinReply{Err: err, Generation: -1, MemberID: memberID}
	}
	resp.ErrorCode, resp.Generation, resp.LeaderID, resp.MemberID = errorCode(reply.Err), reply.Generation, reply.Leader, reply.MemberID
	resp.SkipAssignment = reply.SkipAssignment
	resp.ProtocolType, resp.Protocol = reply.ProtocolType, reply.Protocol
	if version < 7 && resp.Protocol == nil {
		none := ""
		resp.Protocol = &none
	}
	resp.Members = make([]kmsg.JoinGroupResponseMember, 0, len(reply.Members))
	for _, m := range reply.Members {
		member := kmsg.NewJoinGroupResponseMember()
		member.MemberID, member.InstanceID, member.ProtocolMetadata = m.MemberID, m.InstanceID, m.Metadata
		resp.Members = append(resp.Members, member)
	}
	return resp
}

// syncGroup gives a member its assignment, once the leader has sent it. v5 checks
// the protocol.
func (a *brokerAPI) syncGroup(r *Request, req *kmsg.SyncGroupRequest) *kmsg.SyncGroupResponse {
	resp := req.ResponseKind().(*kmsg.SyncGroupResponse)
	resp.MemberAssignment = []byte{}
	var reply *group.SyncReply
	err := group.ValidateSync(req)
	if err == nil && !r.mayGroup(security.Read, req.Group) {
		err = kerr.GroupAuthorizationFailed
	}
	if err == nil && req.Group == "" {
		err = group.ErrInvalidGroupID
	}
	if err == nil {
		reply, err = a.Groups.SyncGroup(r.Context(), req, r.parkMember)
	}
	if err != nil {
		resp.ErrorCode = errorCode(err)
		return resp
	}
	resp.ErrorCode, resp.ProtocolType, resp.Protocol, resp.MemberAssignment = errorCode(reply.Err), reply.ProtocolType, reply.Protocol, reply.Assignment
	return resp
}

// heartbeat keeps a member's session. While the coordinator loads, members are told
// that all is well, as Kafka does: they would otherwise rejoin for nothing.
func (a *brokerAPI) heartbeat(r *Request, req *kmsg.HeartbeatRequest) *kmsg.HeartbeatResponse {
	resp := req.ResponseKind().(*kmsg.HeartbeatResponse)
	switch {
	case !r.mayGroup(security.Read, req.Group):
		resp.ErrorCode = kerr.GroupAuthorizationFailed.Code
	case req.Group == "":
		resp.ErrorCode = kerr.InvalidGroupID.Code
	default:
		reply, err := a.Groups.Heartbeat(r.Context(), req)
		switch {
		case errors.Is(err, coordinator.ErrLoading):
		case err != nil:
			resp.ErrorCode = errorCode(err)
		default:
			resp.ErrorCode = errorCode(reply.Err)
		}
	}
	return resp
}

// leaveGroup removes members. v3 several of them, by instance id too (KIP-345).
func (a *brokerAPI) leaveGroup(r *Request, req *kmsg.LeaveGroupRequest) *kmsg.LeaveGroupResponse {
	resp := req.ResponseKind().(*kmsg.LeaveGroupResponse)
	switch {
	case !r.mayGroup(security.Read, req.Group):
		resp.ErrorCode = kerr.GroupAuthorizationFailed.Code
		return resp
	case req.Group == "":
		resp.ErrorCode = kerr.InvalidGroupID.Code
		return resp
	}
	reply, err := a.Groups.LeaveGroup(r.Context(), req)
	if err != nil {
		resp.ErrorCode = errorCode(err)
		return resp
	}
	resp.ErrorCode = errorCode(reply.Err)
	for _, m := range reply.Members {
		member := kmsg.NewLeaveGroupResponseMember()
		member.MemberID, member.InstanceID, member.ErrorCode = m.MemberID, m.InstanceID, errorCode(m.Err)
		resp.Members = append(resp.Members, member)
	}
	return resp
}

// describeGroups shows classic groups. v3 operations. v4 instance ids. v6 says when a
// group does not exist.
func (a *brokerAPI) describeGroups(r *Request, req *kmsg.DescribeGroupsRequest) *kmsg.DescribeGroupsResponse {
	resp := req.ResponseKind().(*kmsg.DescribeGroupsResponse)
	for _, id := range req.Groups {
		out := kmsg.NewDescribeGroupsResponseGroup()
		out.Group, out.AuthorizedOperations = id, operationsUnknown
		out.Members = []kmsg.DescribeGroupsResponseGroupMember{}
		if !r.mayGroup(security.Describe, id) {
			out.ErrorCode = kerr.GroupAuthorizationFailed.Code
			resp.Groups = append(resp.Groups, out)
			continue
		}
		described, err := a.Groups.DescribeGroup(r.Context(), id)
		if err == nil {
			err = described.Err
		}
		out.State, out.ProtocolType, out.Protocol = described.State, described.ProtocolType, described.Protocol
		switch {
		case errors.Is(err, group.ErrGroupIDNotFound) && req.Version < 6:
		case err != nil:
			out.ErrorCode = errorCode(err)
			message := "Group " + id + " not found."
			if errors.Is(err, group.ErrGroupIDNotFound) {
				out.ErrorMessage = &message
			}
		}
		for _, m := range described.Members {
			member := kmsg.NewDescribeGroupsResponseGroupMember()
			member.MemberID, member.InstanceID, member.ClientID, member.ClientHost = m.MemberID, m.InstanceID, m.ClientID, m.ClientHost
			member.ProtocolMetadata, member.MemberAssignment = m.Metadata, m.Assignment
			out.Members = append(out.Members, member)
		}
		if req.Version >= 3 && req.IncludeAuthorizedOperations && out.ErrorCode == 0 {
			out.AuthorizedOperations = r.operations(security.Resource{Type: security.Group, Name: id}, groupOperations)
		}
		resp.Groups = append(resp.Groups, out)
	}
	return resp
}

// listGroups lists the groups that this broker coordinates. Whoever may describe the
// cluster sees all, others those they may describe.
func (a *brokerAPI) listGroups(r *Request, req *kmsg.ListGroupsRequest) *kmsg.ListGroupsResponse {
	resp := req.ResponseKind().(*kmsg.ListGroupsResponse)
	resp.Groups = []kmsg.ListGroupsResponseGroup{}
	listed, err := a.Groups.ListGroups(r.Context(), req.StatesFilter, req.TypesFilter)
	if err != nil {
		resp.ErrorCode = errorCode(err)
		return resp
	}
	all := r.mayCluster(security.Describe)
	for _, g := range listed {
		if !all && !r.mayGroup(security.Describe, g.Group) {
			continue
		}
		out := kmsg.NewListGroupsResponseGroup()
		out.Group, out.ProtocolType, out.GroupState, out.GroupType = g.Group, g.ProtocolType, g.State, g.Type
		resp.Groups = append(resp.Groups, out)
	}
	return resp
}

// deleteGroups deletes groups without members, with their offsets.
func (a *brokerAPI) deleteGroups(r *Request, req *kmsg.DeleteGroupsRequest) *kmsg.DeleteGroupsResponse {
	resp := req.ResponseKind().(*kmsg.DeleteGroupsResponse)
	seen := map[string]bool{}
	for _, id := range req.Groups {
		if seen[id] {
			continue
		}
		seen[id] = true
		out := kmsg.NewDeleteGroupsResponseGroup()
		out.Group = id
		if !r.mayGroup(security.Delete, id) {
			out.ErrorCode = kerr.GroupAuthorizationFailed.Code
		} else if reply, err := a.Groups.DeleteGroup(r.Context(), id); err != nil {
			out.ErrorCode = errorCode(err)
		} else {
			out.ErrorCode = errorCode(reply.Err)
		}
		resp.Groups = append(resp.Groups, out)
	}
	return resp
}

// topicByIDOrName finds a topic that a request of a group names: by id from version 10
// of the offset APIs on.
func topicByIDOrName(image *metadata.Image, byID bool, id [16]byte, name string) (*metadata.Topic, bool) {
	if byID {
		return image.TopicByID(id)
	}
	return image.Topic(name)
}
