package server

import (
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/controller"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/security"
)

// describeScram lists users' SCRAM credentials (KIP-554) as this broker's image has them: mechanisms and iterations,
// never salts or keys.
func (a *brokerAPI) describeScram(r *Request, req *kmsg.DescribeUserSCRAMCredentialsRequest) *kmsg.DescribeUserSCRAMCredentialsResponse {
	return describedScram(r, req, a.image())
}

// describeScram is the same by a controller, of the committed state.
func (a *ControllerAPI) describeScram(r *Request) (kmsg.Response, error) {
	return describedScram(r, r.Msg.(*kmsg.DescribeUserSCRAMCredentialsRequest), a.host.Committed()), nil
}

func describedScram(r *Request, req *kmsg.DescribeUserSCRAMCredentialsRequest, image *metadata.Image) *kmsg.DescribeUserSCRAMCredentialsResponse {
	resp := req.ResponseKind().(*kmsg.DescribeUserSCRAMCredentialsResponse)
	if !r.mayCluster(security.Describe) {
		resp.ErrorCode, resp.ErrorMessage = kerr.ClusterAuthorizationFailed.Code, &kerr.ClusterAuthorizationFailed.Description
		return resp
	}
	resp.ErrorMessage = new("")
	for _, user := range controller.DescribeUserScramCredentials(image, req) {
		one := kmsg.NewDescribeUserSCRAMCredentialsResponseResult()
		one.User, one.ErrorCode, one.ErrorMessage = user.User, faultCode(user.Err), new("")
		if user.Err != nil {
			one.ErrorMessage = &user.Err.Message
		}
		for _, credential := range user.Credentials {
			info := kmsg.NewDescribeUserSCRAMCredentialsResponseResultCredentialInfo()
			info.Mechanism, info.Iterations = credential.Mechanism, credential.Iterations
			one.CredentialInfos = append(one.CredentialInfos, info)
		}
		resp.Results = append(resp.Results, one)
	}
	return resp
}

// alterScram sets and deletes credentials. Each user is answered once.
func (a *ControllerAPI) alterScram(r *Request) (kmsg.Response, error) {
	req := r.Msg.(*kmsg.AlterUserSCRAMCredentialsRequest)
	if !r.mayCluster(security.Alter) {
		return nil, kerr.ClusterAuthorizationFailed
	}
	reply, err := do[controller.AlterScramReply](a, r, func(c *controller.Controller, at controller.At) controller.Result {
		return c.AlterUserScramCredentials(at, req)
	})
	if err != nil {
		return nil, err
	}
	resp := req.ResponseKind().(*kmsg.AlterUserSCRAMCredentialsResponse)
	for _, user := range reply.Users {
		resp.Results = append(resp.Results, alteredScram(user.User, faultCode(user.Err), faultMessage(user.Err)))
	}
	return resp, nil
}

func alteredScram(user string, code int16, message *string) kmsg.AlterUserSCRAMCredentialsResponseResult {
	one := kmsg.NewAlterUserSCRAMCredentialsResponseResult()
	one.User, one.ErrorCode, one.ErrorMessage = user, code, message
	return one
}
