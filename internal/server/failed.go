package server

import (
	"errors"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/controller"
	"github.com/stelelog/stele/internal/quorum"
)

// failedResponse answers a request to a controller that failed as a whole: at the top where the answer has room
// for an error there, else in each of the items that were asked for.
func failedResponse(req kmsg.Request, err error) kmsg.Response {
	code, message := errorCode(err), (*string)(nil)
	var fault *controller.Error
	if errors.As(err, &fault) {
		message = textOrNil(fault.Message)
	}
	var full *quorum.NoRoomError
	if errors.As(err, &full) {
		message = textOrNil(full.Error())
	}
	switch req := req.(type) {
	case *kmsg.CreateTopicsRequest:
		resp := req.ResponseKind().(*kmsg.CreateTopicsResponse)
		for _, topic := range req.Topics {
			t := kmsg.NewCreateTopicsResponseTopic()
			t.Configs = []kmsg.CreateTopicsResponseTopicConfig{}
			t.Topic, t.ErrorCode, t.ErrorMessage = topic.Topic, code, message
			resp.Topics = append(resp.Topics, t)
		}
		return resp
	case *kmsg.DeleteTopicsRequest:
		resp := req.ResponseKind().(*kmsg.DeleteTopicsResponse)
		for _, name := range req.TopicNames {
			t := kmsg.NewDeleteTopicsResponseTopic()
			t.Topic, t.ErrorCode, t.ErrorMessage = &name, code, message
			resp.Topics = append(resp.Topics, t)
		}
		for _, topic := range req.Topics {
			t := kmsg.NewDeleteTopicsResponseTopic()
			t.Topic, t.TopicID, t.ErrorCode, t.ErrorMessage = topic.Topic, topic.TopicID, code, message
			resp.Topics = append(resp.Topics, t)
		}
		return resp
	case *kmsg.CreatePartitionsRequest:
		resp := req.ResponseKind().(*kmsg.CreatePartitionsResponse)
		for _, topic := range req.Topics {
			t := kmsg.NewCreatePartitionsResponseTopic()
			t.Topic, t.ErrorCode, t.ErrorMessage = topic.Topic, code, message
			resp.Topics = append(resp.Topics, t)
		}
		return resp
	case *kmsg.AlterConfigsRequest:
		resp := req.ResponseKind().(*kmsg.AlterConfigsResponse)
		for _, resource := range req.Resources {
			t := kmsg.NewAlterConfigsResponseResource()
			t.ResourceType, t.ResourceName, t.ErrorCode, t.ErrorMessage = resource.ResourceType, resource.ResourceName, code, message
			resp.Resources = append(resp.Resources, t)
		}
		return resp
	case *kmsg.IncrementalAlterConfigsRequest:
		resp := req.ResponseKind().(*kmsg.IncrementalAlterConfigsResponse)
		for _, resource := range req.Resources {
			t := kmsg.NewIncrementalAlterConfigsResponseResource()
			t.ResourceType, t.ResourceName, t.ErrorCode, t.ErrorMessage = resource.ResourceType, resource.ResourceName, code, message
			resp.Resources = append(resp.Resources, t)
		}
		return resp
	case *kmsg.AlterClientQuotasRequest:
		resp := req.ResponseKind().(*kmsg.AlterClientQuotasResponse)
		for _, entry := range req.Entries {
			t := kmsg.NewAlterClientQuotasResponseEntry()
			t.ErrorCode, t.ErrorMessage = code, message
			for _, part := range entry.Entity {
				entity := kmsg.NewAlterClientQuotasResponseEntryEntity()
				entity.Type, entity.Name = part.Type, part.Name
				t.Entity = append(t.Entity, entity)
			}
			resp.Entries = append(resp.Entries, t)
		}
		return resp
	case *kmsg.CreateACLsRequest:
		resp := req.ResponseKind().(*kmsg.CreateACLsResponse)
		for range req.Creations {
			one := kmsg.NewCreateACLsResponseResult()
			one.ErrorCode, one.ErrorMessage = code, message
			resp.Results = append(resp.Results, one)
		}
		return resp
	case *kmsg.DeleteACLsRequest:
		resp := req.ResponseKind().(*kmsg.DeleteACLsResponse)
		for range req.Filters {
			one := kmsg.NewDeleteACLsResponseResult()
			one.ErrorCode, one.ErrorMessage = code, message
			resp.Results = append(resp.Results, one)
		}
		return resp
	case *kmsg.AlterUserSCRAMCredentialsRequest:
		resp := req.ResponseKind().(*kmsg.AlterUserSCRAMCredentialsResponse)
		told := map[string]bool{}
		tell := func(user string) {
			if !told[user] {
				resp.Results = append(resp.Results, alteredScram(user, code, message))
			}
			told[user] = true
		}
		for _, d := range req.Deletions {
			tell(d.Name)
		}
		for _, u := range req.Upsertions {
			tell(u.Name)
		}
		return resp
	case *kmsg.ElectLeadersRequest:
		resp := req.ResponseKind().(*kmsg.ElectLeadersResponse)
		resp.ErrorCode = code // from v1 on
		for _, topic := range req.Topics {
			t := kmsg.NewElectLeadersResponseTopic()
			t.Topic = topic.Topic
			for _, id := range topic.Partitions {
				p := kmsg.NewElectLeadersResponseTopicPartition()
				p.Partition, p.ErrorCode, p.ErrorMessage = id, code, message
				t.Partitions = append(t.Partitions, p)
			}
			resp.Topics = append(resp.Topics, t)
		}
		return resp
	}
	resp := req.ResponseKind()
	switch resp := resp.(type) {
	case *kmsg.DescribeQuorumResponse:
		resp.ErrorCode, resp.ErrorMessage = code, message
	case *kmsg.UpdateFeaturesResponse:
		resp.ErrorCode, resp.ErrorMessage = code, message
	case *kmsg.ControllerRegistrationResponse:
		resp.ErrorCode, resp.ErrorMessage = code, message
	case *kmsg.BrokerRegistrationResponse:
		resp.ErrorCode, resp.BrokerEpoch = code, -1
	case *kmsg.BrokerHeartbeatResponse:
		resp.ErrorCode, resp.IsFenced = code, true
	case *kmsg.AlterPartitionResponse:
		resp.ErrorCode = code
	case *kmsg.AlterPartitionAssignmentsResponse:
		resp.ErrorCode, resp.ErrorMessage = code, message
	case *kmsg.ListPartitionReassignmentsResponse:
		resp.ErrorCode, resp.ErrorMessage = code, message
	case *kmsg.AddRaftVoterResponse:
		resp.ErrorCode, resp.ErrorMessage = code, orText(message, err)
	case *kmsg.RemoveRaftVoterResponse:
		resp.ErrorCode, resp.ErrorMessage = code, orText(message, err)
	case *kmsg.UnregisterBrokerResponse:
		resp.ErrorCode, resp.ErrorMessage = code, message
	case *kmsg.UnregisterControllerResponse:
		resp.ErrorCode, resp.ErrorMessage = code, message
	case *kmsg.CreateDelegationTokenResponse:
		resp.ErrorCode, resp.IssueTimestamp, resp.ExpiryTimestamp, resp.MaxTimestamp, resp.HMAC = code, -1, -1, -1, []byte{}
	case *kmsg.RenewDelegationTokenResponse:
		resp.ErrorCode, resp.ExpiryTimestamp = code, -1
	case *kmsg.ExpireDelegationTokenResponse:
		resp.ErrorCode, resp.ExpiryTimestamp = code, -1
	case *kmsg.AllocateProducerIDsResponse:
		resp.ErrorCode = code
	case *kmsg.AssignReplicasToDirsResponse:
		resp.ErrorCode = code
	case *kmsg.FetchSnapshotResponse:
		resp.ErrorCode = code
	case *kmsg.EnvelopeResponse:
		resp.ErrorCode = code
	}
	return resp
}

// orText is the message there is, or the error's own words.
func orText(message *string, err error) *string {
	if message == nil {
		message = new(err.Error())
	}
	return message
}
