package server

import (
	"errors"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/controller"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/security"
)

// Access rules (KIP-140, KIP-290) are records of the metadata log. Without an authorizer, which would look at them, they
// can be neither seen nor changed: SECURITY_DISABLED.

// errUnknownElement is a filter or rule with a code that means "unknown", which no client that knows its own words
// sends: it ends the connection.
var errUnknownElement = errors.New("an access rule or filter with an unknown element")

// noAuthorizer is SECURITY_DISABLED in the words of those requests.
var noAuthorizer = &controller.Error{Err: kerr.SecurityDisabled, Message: "No Authorizer is configured."}

// hasAuthorizer says whether somebody looks at access rules.
func (r *Request) hasAuthorizer() bool {
	_, none := r.conn.srv.opts.Authorizer.(security.AllowAll)
	return !none
}

func (a *brokerAPI) describeACLs(r *Request) Response { return describedACLs(r, a.image()) }

func (a *ControllerAPI) describeACLs(r *Request) Response {
	return describedACLs(r, a.host.Committed())
}

func describedACLs(r *Request, image *metadata.Image) Response {
	req := r.Msg.(*kmsg.DescribeACLsRequest)
	resp := req.ResponseKind().(*kmsg.DescribeACLsResponse)
	filter := controller.ACLFilter{
		ResourceType: int8(req.ResourceType), ResourceName: req.ResourceName, PatternType: int8(req.ResourcePatternType),
		Principal: req.Principal, Host: req.Host, Operation: int8(req.Operation), PermissionType: int8(req.PermissionType),
	}
	switch {
	case filter.Unknown():
		return CloseConnection(errUnknownElement)
	case !r.mayCluster(security.Describe):
		resp.ErrorCode, resp.ErrorMessage = kerr.ClusterAuthorizationFailed.Code, &kerr.ClusterAuthorizationFailed.Description
		return Reply(resp)
	case !r.hasAuthorizer():
		resp.ErrorCode, resp.ErrorMessage = kerr.SecurityDisabled.Code, new("No Authorizer is configured on the broker")
		return Reply(resp)
	}
	resp.ErrorMessage = new("")
	for _, rule := range controller.DescribeACLs(image, filter) {
		kind, pattern := kmsg.ACLResourceType(rule.ResourceType), kmsg.ACLResourcePatternType(rule.PatternType)
		if n := len(resp.Resources); n == 0 || resp.Resources[n-1].ResourceType != kind || resp.Resources[n-1].ResourcePatternType != pattern || resp.Resources[n-1].ResourceName != rule.ResourceName {
			resource := kmsg.NewDescribeACLsResponseResource()
			resource.ResourceType, resource.ResourcePatternType, resource.ResourceName = kind, pattern, rule.ResourceName
			resp.Resources = append(resp.Resources, resource)
		}
		one := kmsg.NewDescribeACLsResponseResourceACL()
		one.Principal, one.Host, one.Operation, one.PermissionType = rule.Principal, rule.Host, kmsg.ACLOperation(rule.Operation), kmsg.ACLPermissionType(rule.PermissionType)
		resource := &resp.Resources[len(resp.Resources)-1]
		resource.ACLs = append(resource.ACLs, one)
	}
	return Reply(resp)
}

func (a *ControllerAPI) createACLs(r *Request) (kmsg.Response, error) {
	req := r.Msg.(*kmsg.CreateACLsRequest)
	for _, c := range req.Creations {
		rule := controller.ACLFilter{ResourceType: int8(c.ResourceType), PatternType: int8(c.ResourcePatternType), Operation: int8(c.Operation), PermissionType: int8(c.PermissionType)}
		if rule.Unknown() {
			return nil, errUnknownElement
		}
	}
	if err := r.mayChangeACLs(); err != nil {
		return nil, err
	}
	reply, err := do[controller.CreateACLsReply](a, r, func(c *controller.Controller, at controller.At) controller.Result { return c.CreateACLs(at, req) })
	if err != nil {
		return nil, err
	}
	resp := req.ResponseKind().(*kmsg.CreateACLsResponse)
	for _, fault := range reply.Errs {
		one := kmsg.NewCreateACLsResponseResult()
		one.ErrorCode, one.ErrorMessage = faultCode(fault), new("")
		if fault != nil {
			one.ErrorMessage = &fault.Message
		}
		resp.Results = append(resp.Results, one)
	}
	return resp, nil
}

// mayChangeACLs is why the client may not, nil if it may.
func (r *Request) mayChangeACLs() error {
	switch {
	case !r.mayCluster(security.Alter):
		return kerr.ClusterAuthorizationFailed
	case !r.hasAuthorizer():
		return noAuthorizer
	}
	return nil
}

func (a *ControllerAPI) deleteACLs(r *Request) (kmsg.Response, error) {
	req := r.Msg.(*kmsg.DeleteACLsRequest)
	for _, f := range req.Filters {
		filter := controller.ACLFilter{ResourceType: int8(f.ResourceType), PatternType: int8(f.ResourcePatternType), Operation: int8(f.Operation), PermissionType: int8(f.PermissionType)}
		if filter.Unknown() {
			return nil, errUnknownElement
		}
	}
	if err := r.mayChangeACLs(); err != nil {
		return nil, err
	}
	reply, err := do[controller.DeleteACLsReply](a, r, func(c *controller.Controller, at controller.At) controller.Result { return c.DeleteACLs(at, req) })
	if err != nil {
		return nil, err
	}
	resp := req.ResponseKind().(*kmsg.DeleteACLsResponse)
	for _, matched := range reply.Matched {
		result := kmsg.NewDeleteACLsResponseResult()
		for _, rule := range matched {
			one := kmsg.NewDeleteACLsResponseResultMatchingACL()
			one.ResourceType, one.ResourceName, one.ResourcePatternType = kmsg.ACLResourceType(rule.ResourceType), rule.ResourceName, kmsg.ACLResourcePatternType(rule.PatternType)
			one.Principal, one.Host, one.Operation, one.PermissionType = rule.Principal, rule.Host, kmsg.ACLOperation(rule.Operation), kmsg.ACLPermissionType(rule.PermissionType)
			result.MatchingACLs = append(result.MatchingACLs, one)
		}
		resp.Results = append(resp.Results, result)
	}
	return resp, nil
}
