package server

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/controller"
	"github.com/stelelog/stele/internal/security"
)

// createTopics makes topics. v5 answers with effective settings. v7 with ids. Names
// that may not be created are answered after all others.
func (a *ControllerAPI) createTopics(r *Request) (kmsg.Response, error) {
	req := r.Msg.(*kmsg.CreateTopicsRequest)
	everything := r.mayCluster(security.Create)
	allowed := *req
	allowed.Topics = slices.DeleteFunc(slices.Clone(req.Topics), func(t kmsg.CreateTopicsRequestTopic) bool {
		return !everything && !r.mayTopic(security.Create, t.Topic)
	})
	reply, throttle, err := doCharged[controller.CreateTopicsReply](a, r, 6, func(c *controller.Controller, at controller.At) controller.Result {
		return c.CreateTopics(at, &allowed)
	})
	if err != nil {
		return nil, err
	}
	resp := req.ResponseKind().(*kmsg.CreateTopicsResponse)
	resp.ThrottleMillis = throttle
	for i := range reply.Topics {
		resp.Topics = append(resp.Topics, createdTopic(r, &reply.Topics[i]))
	}
	for i := range req.Topics {
		name := req.Topics[i].Topic
		if !everything && !r.mayTopic(security.Create, name) {
			t := kmsg.NewCreateTopicsResponseTopic()
			t.Topic, t.ErrorCode, t.NumPartitions, t.ReplicationFactor = name, kerr.TopicAuthorizationFailed.Code, -1, -1
			resp.Topics = append(resp.Topics, t)
		}
	}
	return resp, nil
}

func createdTopic(r *Request, created *controller.CreatedTopic) kmsg.CreateTopicsResponseTopic {
	t := kmsg.NewCreateTopicsResponseTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor, t.Configs = created.Name, -1, -1, []kmsg.CreateTopicsResponseTopicConfig{}
	if created.Err != nil {
		t.ErrorCode, t.ErrorMessage = faultCode(created.Err), faultMessage(created.Err)
		return t
	}
	t.TopicID = created.TopicID
	if !r.mayTopic(security.DescribeConfigs, created.Name) {
		t.ConfigErrorCode, t.Configs = kerr.TopicAuthorizationFailed.Code, nil
		return t
	}
	t.NumPartitions, t.ReplicationFactor = created.NumPartitions, created.ReplicationFactor
	t.Configs = make([]kmsg.CreateTopicsResponseTopicConfig, 0, len(created.Configs))
	for _, entry := range created.Configs {
		c := kmsg.NewCreateTopicsResponseTopicConfig()
		c.Name, c.Value, c.ReadOnly, c.Source, c.IsSensitive = entry.Name, entry.Value, entry.ReadOnly, int8(entry.Source), entry.Sensitive
		t.Configs = append(t.Configs, c)
	}
	return t
}

// deleteTopics removes topics by name, from v6 on also by id. Whoever may not
// describe a topic learns neither its name nor whether it exists.
func (a *ControllerAPI) deleteTopics(r *Request) (kmsg.Response, error) {
	req := r.Msg.(*kmsg.DeleteTopicsRequest)
	image := a.host.Committed()
	wanted := slices.Clone(req.Topics)
	for _, name := range req.TopicNames {
		wanted = append(wanted, kmsg.DeleteTopicsRequestTopic{Topic: &name})
	}
	resp := req.ResponseKind().(*kmsg.DeleteTopicsResponse)
	allowed := *req
	allowed.TopicNames, allowed.Topics = nil, nil
	for _, t := range wanted {
		name, byID := "", t.Topic == nil
		if !byID {
			name = *t.Topic
		} else if topic, ok := image.TopicByID(t.TopicID); ok {
			name = topic.Name
		}
		refused := kmsg.NewDeleteTopicsResponseTopic()
		refused.Topic, refused.TopicID, refused.ErrorCode = t.Topic, t.TopicID, kerr.TopicAuthorizationFailed.Code
		switch {
		case name == "":
			allowed.Topics = append(allowed.Topics, t)
		case !r.mayTopic(security.Describe, name):
			resp.Topics = append(resp.Topics, refused)
		case !r.mayTopic(security.Delete, name):
			refused.Topic = &name
			resp.Topics = append(resp.Topics, refused)
		default:
			allowed.Topics = append(allowed.Topics, t)
		}
	}
	reply, throttle, err := doCharged[controller.DeleteTopicsReply](a, r, 5, func(c *controller.Controller, at controller.At) controller.Result {
		return c.DeleteTopics(at, &allowed)
	})
	if err != nil {
		if protocolError(err) == kerr.TopicDeletionDisabled && req.Version < 3 {
			err = kerr.InvalidRequest
		}
		return nil, err
	}
	resp.ThrottleMillis = throttle
	for _, deleted := range reply.Topics {
		t := kmsg.NewDeleteTopicsResponseTopic()
		if t.Topic, t.TopicID = textOrNil(deleted.Name), deleted.TopicID; t.TopicID == [16]byte{} && protocolError(deleted.Err) != kerr.InvalidRequest {
			t.Topic = &deleted.Name // asked for by name, be it the empty one
		}
		t.ErrorCode, t.ErrorMessage = faultCode(deleted.Err), faultMessage(deleted.Err)
		resp.Topics = append(resp.Topics, t)
	}
	return resp, nil
}

// createPartitions grows topics.
func (a *ControllerAPI) createPartitions(r *Request) (kmsg.Response, error) {
	req := r.Msg.(*kmsg.CreatePartitionsRequest)
	allowed := *req
	allowed.Topics = slices.DeleteFunc(slices.Clone(req.Topics), func(t kmsg.CreatePartitionsRequestTopic) bool { return !r.mayTopic(security.Alter, t.Topic) })
	reply, throttle, err := doCharged[controller.CreatePartitionsReply](a, r, 3, func(c *controller.Controller, at controller.At) controller.Result {
		return c.CreatePartitions(at, &allowed)
	})
	if err != nil {
		return nil, err
	}
	resp := req.ResponseKind().(*kmsg.CreatePartitionsResponse)
	resp.ThrottleMillis = throttle
	for _, grown := range reply.Topics {
		t := kmsg.NewCreatePartitionsResponseTopic()
		t.Topic, t.ErrorCode, t.ErrorMessage = grown.Name, faultCode(grown.Err), faultMessage(grown.Err)
		resp.Topics = append(resp.Topics, t)
	}
	for i := range req.Topics {
		if name := req.Topics[i].Topic; !r.mayTopic(security.Alter, name) {
			t := kmsg.NewCreatePartitionsResponseTopic()
			t.Topic, t.ErrorCode = name, kerr.TopicAuthorizationFailed.Code
			resp.Topics = append(resp.Topics, t)
		}
	}
	return resp, nil
}
