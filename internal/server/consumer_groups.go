package server

import (
	"errors"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/group"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/security"
)

// servesConsumerGroups says whether groups of the consumer protocol are served: the cluster's features have them, and
// this broker's settings do not forbid them.
func (a *brokerAPI) servesConsumerGroups() bool {
	return a.image().Feature(metadata.FeatureGroup) >= 1 && slices.Contains(a.Config.List("group.coordinator.rebalance.protocols"), group.ConsumerType)
}

// consumerGroupHeartbeat lets a member of the consumer protocol (KIP-848) join, go on, or leave.
//
// v1 regular expressions, member ids made by clients.
func (a *brokerAPI) consumerGroupHeartbeat(r *Request, req *kmsg.ConsumerGroupHeartbeatRequest) *kmsg.ConsumerGroupHeartbeatResponse {
	resp := req.ResponseKind().(*kmsg.ConsumerGroupHeartbeatResponse)
	reply, err := a.heartbeatConsumer(r, req)
	if err == nil {
		err = reply.Err
	}
	if err != nil {
		resp.ErrorCode, resp.ErrorMessage = errorCode(err), messageOf(err)
		return resp
	}
	resp.MemberID, resp.MemberEpoch, resp.HeartbeatIntervalMillis = &reply.MemberID, reply.Epoch, int32(reply.Interval.Milliseconds())
	if reply.HasAssignment {
		assignment := kmsg.NewConsumerGroupHeartbeatResponseAssignment()
		assignment.Topics = []kmsg.ConsumerGroupHeartbeatResponseAssignmentTopic{}
		for _, t := range reply.Assignment {
			topic := kmsg.NewConsumerGroupHeartbeatResponseAssignmentTopic()
			topic.TopicID, topic.Partitions = t.TopicID, t.Partitions
			assignment.Topics = append(assignment.Topics, topic)
		}
		resp.Assignment = &assignment
	}
	return resp
}

func (a *brokerAPI) heartbeatConsumer(r *Request, req *kmsg.ConsumerGroupHeartbeatRequest) (*group.ConsumerHeartbeatReply, error) {
	if !a.servesConsumerGroups() {
		return nil, kerr.UnsupportedVersion
	}
	if !r.mayGroup(security.Read, req.Group) {
		return nil, kerr.GroupAuthorizationFailed
	}
	for _, topic := range req.SubscribedTopicNames {
		if !r.mayTopic(security.Describe, topic) {
			return nil, kerr.TopicAuthorizationFailed
		}
	}
	mayDescribe := func(topic string) bool { return r.mayTopic(security.Describe, topic) }
	return a.Groups.ConsumerGroupHeartbeat(r.Context(), group.RequestContext{ClientID: r.ClientID, ClientHost: hostText(r.ClientAddr), MayDescribe: mayDescribe}, req)
}

// messageOf is what a client is told beside the code of an error.
func messageOf(err error) *string {
	text := err.Error()
	var known *kerr.Error
	if errors.As(err, &known) {
		text = known.Description
	}
	return &text
}

// consumerGroupDescribe shows groups of the consumer protocol. v1 says which members speak the classic one.
func (a *brokerAPI) consumerGroupDescribe(r *Request, req *kmsg.ConsumerGroupDescribeRequest) *kmsg.ConsumerGroupDescribeResponse {
	resp := req.ResponseKind().(*kmsg.ConsumerGroupDescribeResponse)
	for _, id := range req.Groups {
		out := kmsg.NewConsumerGroupDescribeResponseGroup()
		out.Group, out.AuthorizedOperations = id, operationsUnknown
		out.Members = []kmsg.ConsumerGroupDescribeResponseGroupMember{}
		if err := a.describeConsumerGroup(r, req, &out); err != nil {
			out = kmsg.NewConsumerGroupDescribeResponseGroup()
			out.Group, out.AuthorizedOperations = id, operationsUnknown
			out.Members = []kmsg.ConsumerGroupDescribeResponseGroupMember{}
			out.ErrorCode, out.ErrorMessage = errorCode(err), messageOf(err)
			if errors.Is(err, group.ErrGroupIDNotFound) {
				out.ErrorMessage = kmsg.StringPtr("Group " + id + " not found.")
			}
		}
		resp.Groups = append(resp.Groups, out)
	}
	return resp
}

func (a *brokerAPI) describeConsumerGroup(r *Request, req *kmsg.ConsumerGroupDescribeRequest, out *kmsg.ConsumerGroupDescribeResponseGroup) error {
	switch {
	case !a.servesConsumerGroups():
		return kerr.UnsupportedVersion
	case !r.mayGroup(security.Describe, out.Group):
		return kerr.GroupAuthorizationFailed
	case out.Group == "":
		return group.ErrInvalidGroupID
	}
	described, err := a.Groups.DescribeConsumerGroup(r.Context(), out.Group)
	if err == nil {
		err = described.Err
	}
	if err != nil {
		return err
	}
	out.State, out.Epoch, out.AssignmentEpoch, out.AssignorName = described.State, described.Epoch, described.TargetEpoch, described.Assignor
	for _, m := range described.Members {
		for _, list := range [][]group.DescribedTopic{m.Assigned, m.Target} {
			for _, t := range list {
				if !r.mayTopic(security.Describe, t.Topic) {
					return kerr.TopicAuthorizationFailed
				}
			}
		}
		member := kmsg.NewConsumerGroupDescribeResponseGroupMember()
		member.MemberID, member.InstanceID, member.RackID, member.MemberEpoch = m.ID, m.InstanceID, m.RackID, m.Epoch
		member.ClientID, member.ClientHost = m.ClientID, m.ClientHost
		member.SubscribedTopics = append([]string{}, m.Topics...)
		member.SubscribedTopicRegex = &m.Regex
		member.Assignment.TopicPartitions, member.TargetAssignment.TopicPartitions = describedPartitions(m.Assigned), describedPartitions(m.Target)
		if member.MemberType = 1; m.SpeaksClassic {
			member.MemberType = 0
		}
		out.Members = append(out.Members, member)
	}
	if req.IncludeAuthorizedOperations {
		out.AuthorizedOperations = r.operations(security.Resource{Type: security.Group, Name: out.Group}, groupOperations)
	}
	return nil
}

func describedPartitions(topics []group.DescribedTopic) []kmsg.AssignmentTopicPartition {
	out := []kmsg.AssignmentTopicPartition{}
	for _, t := range topics {
		topic := kmsg.NewAssignmentTopicPartition()
		topic.TopicID, topic.Topic, topic.Partitions = t.TopicID, t.Topic, t.Partitions
		out = append(out, topic)
	}
	return out
}
