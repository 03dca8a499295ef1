package server

import (
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/controller"
	"github.com/stelelog/stele/internal/security"
)

// alteredConfig is the answer for one resource whose settings were to be altered. AlterConfigs, which replaces
// settings, and IncrementalAlterConfigs differ in what they ask for, and not in their answers.
type alteredConfig = kmsg.IncrementalAlterConfigsResponseResource

// incrementalAlterConfigs changes single settings of resources.
func (a *ControllerAPI) incrementalAlterConfigs(r *Request) (kmsg.Response, error) {
	req := r.Msg.(*kmsg.IncrementalAlterConfigsRequest)
	resp := req.ResponseKind().(*kmsg.IncrementalAlterConfigsResponse)
	allowed := *req
	allowed.Resources = nil
	var places []int // of the allowed
	for i, resource := range req.Resources {
		answer := askAlterConfigs(r, resource.ResourceType, resource.ResourceName)
		switch {
		case answer.ErrorCode != 0:
		case resource.ResourceType == kmsg.ConfigResourceTypeBrokerLogger:
			answer.ErrorCode, answer.ErrorMessage = refusal(a.alterLoggers(&resource, req.ValidateOnly))
		default:
			allowed.Resources, places = append(allowed.Resources, resource), append(places, i)
		}
		resp.Resources = append(resp.Resources, answer)
	}
	reply, err := do[controller.AlterConfigsReply](a, r, func(c *controller.Controller, at controller.At) controller.Result {
		return c.IncrementalAlterConfigs(at, &allowed)
	})
	tellOutcomes(resp.Resources, places, reply.Resources)
	return resp, err
}

func (a *ControllerAPI) alterLoggers(resource *kmsg.IncrementalAlterConfigsRequestResource, validateOnly bool) error {
	var ops []configOp
	for _, c := range resource.Configs {
		ops = append(ops, configOp{c.Name, c.Op, c.Value})
	}
	if err := checkOps(ops); err != nil {
		return err
	}
	return nodeLoggers{a.node.ID, a.node.LogLevel}.alter(resource.ResourceName, ops, validateOnly)
}

// alterConfigs replaces all settings of a resource by those given.
func (a *ControllerAPI) alterConfigs(r *Request) (kmsg.Response, error) {
	req := r.Msg.(*kmsg.AlterConfigsRequest)
	allowed := *req
	allowed.Resources = nil
	var answers []alteredConfig
	var places []int // of the allowed
	for i, resource := range req.Resources {
		answer := askAlterConfigs(r, resource.ResourceType, resource.ResourceName)
		if answer.ErrorCode == 0 {
			allowed.Resources, places = append(allowed.Resources, resource), append(places, i)
		}
		answers = append(answers, answer)
	}
	reply, err := do[controller.AlterConfigsReply](a, r, func(c *controller.Controller, at controller.At) controller.Result {
		return c.AlterConfigs(at, &allowed)
	})
	tellOutcomes(answers, places, reply.Resources)
	return alterConfigsResponse(req, answers), err
}

// askAlterConfigs is the answer for a resource before its settings are altered: with an error when the principal
// may not do that.
func askAlterConfigs(r *Request, kind kmsg.ConfigResourceType, name string) alteredConfig {
	answer := kmsg.NewIncrementalAlterConfigsResponseResource()
	answer.ResourceType, answer.ResourceName = kind, name
	switch kind {
	case kmsg.ConfigResourceTypeTopic:
		if !r.mayTopic(security.AlterConfigs, name) {
			answer.ErrorCode = kerr.TopicAuthorizationFailed.Code
		}
	case kmsg.ConfigResourceTypeGroupConfig:
		if !r.mayGroup(security.AlterConfigs, name) {
			answer.ErrorCode = kerr.GroupAuthorizationFailed.Code
		}
	default:
		if !r.mayCluster(security.AlterConfigs) {
			answer.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		}
	}
	return answer
}

// tellOutcomes puts what became of the resources that were allowed into their answers, which stand at places.
func tellOutcomes(answers []alteredConfig, places []int, outcomes []controller.AlteredResource) {
	for i, outcome := range outcomes {
		answer := &answers[places[i]]
		answer.ErrorCode, answer.ErrorMessage = faultCode(outcome.Err), faultMessage(outcome.Err)
	}
}

func alterConfigsResponse(req *kmsg.AlterConfigsRequest, answers []alteredConfig) *kmsg.AlterConfigsResponse {
	resp := req.ResponseKind().(*kmsg.AlterConfigsResponse)
	for _, answer := range answers {
		resp.Resources = append(resp.Resources, kmsg.AlterConfigsResponseResource(answer))
	}
	return resp
}
