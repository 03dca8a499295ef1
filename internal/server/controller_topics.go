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
func (a *ControllerAPI) createTopics(r *Request) kmsg.Response {
	req := r.Msg.(*kmsg.CreateTopicsRequest)
	everything := r.mayCluster(security.Create)
	allowed := *req
	allowed.Topics = slices.DeleteFunc(slices.Clone(req.Topics), func(t kmsg.CreateTopicsRequestTopic) bool {
		return !everything && !r.mayTopic(security.Create, t.Topic)
	})
	reply, err := do[controller.CreateTopicsReply](a, r, func(c *controller.Controller, at controller.At) controller.Result {
		return c.CreateTopics(at, &allowed)
	})
	if err != nil {
		return failedResponse(req, errorCode(err))
	}
	resp := req.ResponseKind().(*kmsg.CreateTopicsResponse)
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
	return resp
}

func createdTopic(r *Request, created *controller.CreatedTopic) kmsg.CreateTopicsResponseTopic {
	t := kmsg.NewCreateTopicsResponseTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = created.Name, -1, -1
	if created.Err != nil {
		t.ErrorCode, t.ErrorMessage = faultCode(created.Err), faultMessage(created.Err)
		return t
	}
	t.TopicID = created.TopicID
	if !r.mayTopic(security.DescribeConfigs, created.Name) {
		t.ConfigErrorCode = kerr.TopicAuthorizationFailed.Code
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
func (a *ControllerAPI) deleteTopics(r *Request) kmsg.Response {
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
	reply, err := do[controller.DeleteTopicsReply](a, r, func(c *controller.Controller, at controller.At) controller.Result {
		return c.DeleteTopics(at, &allowed)
	})
	if err != nil {
		code := errorCode(err)
		if code == kerr.TopicDeletionDisabled.Code && req.Version < 3 {
			code = kerr.InvalidRequest.Code
		}
		return failedResponse(req, code)
	}
	for _, deleted := range reply.Topics {
		t := kmsg.NewDeleteTopicsResponseTopic()
		t.Topic, t.TopicID = textOrNil(deleted.Name), deleted.TopicID
		t.ErrorCode, t.ErrorMessage = faultCode(deleted.Err), faultMessage(deleted.Err)
		resp.Topics = append(resp.Topics, t)
	}
	return resp
}

// createPartitions grows topics.
func (a *ControllerAPI) createPartitions(r *Request) kmsg.Response {
	req := r.Msg.(*kmsg.CreatePartitionsRequest)
	allowed := *req
	allowed.Topics = slices.DeleteFunc(slices.Clone(req.Topics), func(t kmsg.CreatePartitionsRequestTopic) bool { return !r.mayTopic(security.Alter, t.Topic) })
	reply, err := do[controller.CreatePartitionsReply](a, r, func(c *controller.Controller, at controller.At) controller.Result {
		return c.CreatePartitions(at, &allowed)
	})
	if err != nil {
		return failedResponse(req, errorCode(err))
	}
	resp := req.ResponseKind().(*kmsg.CreatePartitionsResponse)
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
	return resp
}

// mayAlterConfigs says what a principal lacks to change a resource's settings.
func mayAlterConfigs(r *Request, kind kmsg.ConfigResourceType, name string) *kerr.Error {
	switch kind {
	case kmsg.ConfigResourceTypeTopic:
		if !r.mayTopic(security.AlterConfigs, name) {
			return kerr.TopicAuthorizationFailed
		}
	case kmsg.ConfigResourceTypeGroupConfig:
		if !r.mayGroup(security.AlterConfigs, name) {
			return kerr.GroupAuthorizationFailed
		}
	default:
		if !r.mayCluster(security.AlterConfigs) {
			return kerr.ClusterAuthorizationFailed
		}
	}
	return nil
}

func (a *ControllerAPI) incrementalAlterConfigs(r *Request) kmsg.Response {
	req := r.Msg.(*kmsg.IncrementalAlterConfigsRequest)
	resp := req.ResponseKind().(*kmsg.IncrementalAlterConfigsResponse)
	allowed := *req
	allowed.Resources = nil
	answer := func(kind kmsg.ConfigResourceType, name string, code int16, message *string) {
		resource := kmsg.NewIncrementalAlterConfigsResponseResource()
		resource.ResourceType, resource.ResourceName, resource.ErrorCode, resource.ErrorMessage = kind, name, code, message
		resp.Resources = append(resp.Resources, resource)
	}
	denied := make([]*kerr.Error, len(req.Resources))
	for i, resource := range req.Resources {
		if denied[i] = mayAlterConfigs(r, resource.ResourceType, resource.ResourceName); denied[i] == nil {
			allowed.Resources = append(allowed.Resources, resource)
		}
	}
	reply, err := do[controller.AlterConfigsReply](a, r, func(c *controller.Controller, at controller.At) controller.Result {
		return c.IncrementalAlterConfigs(at, &allowed)
	})
	if err != nil {
		return failedResponse(req, errorCode(err))
	}
	rest := reply.Resources // one for each that was allowed, in order
	for i, resource := range req.Resources {
		if denied[i] != nil {
			answer(resource.ResourceType, resource.ResourceName, denied[i].Code, nil)
			continue
		}
		answer(resource.ResourceType, resource.ResourceName, faultCode(rest[0].Err), faultMessage(rest[0].Err))
		rest = rest[1:]
	}
	return resp
}

// alterConfigs replaces all settings of a resource by those given.
func (a *ControllerAPI) alterConfigs(r *Request) kmsg.Response {
	req := r.Msg.(*kmsg.AlterConfigsRequest)
	resp := req.ResponseKind().(*kmsg.AlterConfigsResponse)
	allowed := *req
	allowed.Resources = nil
	answer := func(kind kmsg.ConfigResourceType, name string, code int16, message *string) {
		resource := kmsg.NewAlterConfigsResponseResource()
		resource.ResourceType, resource.ResourceName, resource.ErrorCode, resource.ErrorMessage = kind, name, code, message
		resp.Resources = append(resp.Resources, resource)
	}
	denied := make([]*kerr.Error, len(req.Resources))
	for i, resource := range req.Resources {
		if denied[i] = mayAlterConfigs(r, resource.ResourceType, resource.ResourceName); denied[i] == nil {
			allowed.Resources = append(allowed.Resources, resource)
		}
	}
	reply, err := do[controller.AlterConfigsReply](a, r, func(c *controller.Controller, at controller.At) controller.Result {
		return c.AlterConfigs(at, &allowed)
	})
	if err != nil {
		return failedResponse(req, errorCode(err))
	}
	rest := reply.Resources // one for each that was allowed, in order
	for i, resource := range req.Resources {
		if denied[i] != nil {
			answer(resource.ResourceType, resource.ResourceName, denied[i].Code, nil)
			continue
		}
		answer(resource.ResourceType, resource.ResourceName, faultCode(rest[0].Err), faultMessage(rest[0].Err))
		rest = rest[1:]
	}
	return resp
}
