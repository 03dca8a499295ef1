package server

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/controller"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/security"
)

// Delegation tokens (KIP-48, KIP-900) are records of the metadata log. They are asked for over listeners that say for certain
// who asks, and nowhere else: over a plain one anybody could.

// allowsTokens says whether tokens may be asked for over the connection of a request.
func (r *Request) allowsTokens() bool { return r.conn.ln.protected }

// tokenOwner is who a token is asked for: the client itself if nobody is named.
func tokenOwner(r *Request, req *kmsg.CreateDelegationTokenRequest) security.Principal {
	if req.OwnerPrincipalName == nil || *req.OwnerPrincipalName == "" {
		return r.Principal
	}
	owner := security.Principal{Name: *req.OwnerPrincipalName}
	if req.OwnerPrincipalType != nil {
		owner.Type = *req.OwnerPrincipalType
	}
	return owner
}

func (a *ControllerAPI) createToken(r *Request) (kmsg.Response, error) {
	req := r.Msg.(*kmsg.CreateDelegationTokenRequest)
	resp := req.ResponseKind().(*kmsg.CreateDelegationTokenResponse)
	owner := tokenOwner(r, req)
	resp.PrincipalType, resp.PrincipalName = owner.Type, owner.Name
	resp.TokenRequesterPrincipalType, resp.TokenRequesterPrincipalName = r.Principal.Type, r.Principal.Name
	refuse := func(err error) (kmsg.Response, error) {
		resp.ErrorCode, resp.IssueTimestamp, resp.ExpiryTimestamp, resp.MaxTimestamp, resp.HMAC = errorCode(err), -1, -1, -1, []byte{}
		return resp, nil
	}
	switch {
	case !r.allowsTokens():
		return refuse(kerr.DelegationTokenRequestNotAllowed)
	case owner != r.Principal && !r.Authorize(security.CreateTokens, security.Resource{Type: security.User, Name: owner.String()}):
		return refuse(kerr.DelegationTokenAuthorizationFailed)
	}
	reply, err := do[controller.TokenReply](a, r, func(c *controller.Controller, at controller.At) controller.Result {
		return c.CreateDelegationToken(at, req, owner.String(), r.Principal.String())
	})
	if err != nil {
		if protocolError(err) == kerr.NotController {
			return nil, err
		}
		return refuse(err)
	}
	resp.IssueTimestamp, resp.ExpiryTimestamp, resp.MaxTimestamp = reply.Token.IssueTimestamp, reply.Token.ExpirationTimestamp, reply.Token.MaxTimestamp
	resp.TokenID, resp.HMAC = reply.Token.TokenID, reply.HMAC
	return resp, nil
}

func (a *ControllerAPI) renewToken(r *Request) (kmsg.Response, error) {
	req := r.Msg.(*kmsg.RenewDelegationTokenRequest)
	if !r.allowsTokens() {
		return nil, kerr.DelegationTokenRequestNotAllowed
	}
	reply, err := do[controller.TokenReply](a, r, func(c *controller.Controller, at controller.At) controller.Result {
		return c.RenewDelegationToken(at, req, r.Principal.String())
	})
	if err != nil {
		return nil, err
	}
	resp := req.ResponseKind().(*kmsg.RenewDelegationTokenResponse)
	resp.ExpiryTimestamp = reply.Token.ExpirationTimestamp
	return resp, nil
}

func (a *ControllerAPI) expireToken(r *Request) (kmsg.Response, error) {
	req := r.Msg.(*kmsg.ExpireDelegationTokenRequest)
	if !r.allowsTokens() {
		return nil, kerr.DelegationTokenRequestNotAllowed
	}
	reply, err := do[controller.TokenReply](a, r, func(c *controller.Controller, at controller.At) controller.Result {
		return c.ExpireDelegationToken(at, req, r.Principal.String())
	})
	if err != nil {
		return nil, err
	}
	resp := req.ResponseKind().(*kmsg.ExpireDelegationTokenResponse)
	resp.ExpiryTimestamp = reply.Token.ExpirationTimestamp
	return resp, nil
}

func (a *brokerAPI) describeTokens(r *Request, req *kmsg.DescribeDelegationTokenRequest) *kmsg.DescribeDelegationTokenResponse {
	return describedTokens(r, req, a.image(), a.Config.String("delegation.token.secret.key"))
}

func (a *ControllerAPI) describeTokens(r *Request) (kmsg.Response, error) {
	return describedTokens(r, r.Msg.(*kmsg.DescribeDelegationTokenRequest), a.host.Committed(), a.node.Config.String("delegation.token.secret.key")), nil
}

// describedTokens lists the tokens of the named owners, or of all: those that the client owns or may renew, and those that
// it is allowed to describe, by the token or by its owner.
func describedTokens(r *Request, req *kmsg.DescribeDelegationTokenRequest, image *metadata.Image, secret string) *kmsg.DescribeDelegationTokenResponse {
	resp := req.ResponseKind().(*kmsg.DescribeDelegationTokenResponse)
	switch {
	case !r.allowsTokens():
		resp.ErrorCode = kerr.DelegationTokenRequestNotAllowed.Code
		return resp
	case secret == "":
		resp.ErrorCode = kerr.DelegationTokenAuthDisabled.Code
		return resp
	}
	var owners []string
	for _, o := range req.Owners {
		owners = append(owners, o.PrincipalType+":"+o.PrincipalName)
	}
	self := r.Principal.String()
	found := controller.DescribeDelegationTokens(image, secret, func(token *metadata.DelegationTokenRecord) bool {
		concerns := func(principal string) bool {
			return principal == token.Owner || slices.Contains(token.Renewers, principal)
		}
		if req.Owners != nil && !slices.ContainsFunc(owners, concerns) {
			return false
		}
		return concerns(self) || r.Authorize(security.Describe, security.Resource{Type: security.DelegationToken, Name: token.TokenID}) ||
			r.Authorize(security.DescribeTokens, security.Resource{Type: security.User, Name: token.Owner})
	})
	for _, one := range found {
		detail := kmsg.NewDescribeDelegationTokenResponseTokenDetail()
		detail.PrincipalType, detail.PrincipalName = controller.SplitPrincipal(one.Token.Owner)
		detail.TokenRequesterPrincipalType, detail.TokenRequesterPrincipalName = controller.SplitPrincipal(one.Token.Requester)
		detail.IssueTimestamp, detail.ExpiryTimestamp, detail.MaxTimestamp = one.Token.IssueTimestamp, one.Token.ExpirationTimestamp, one.Token.MaxTimestamp
		detail.TokenID, detail.HMAC = one.Token.TokenID, one.HMAC
		for _, renewer := range one.Token.Renewers {
			r := kmsg.NewDescribeDelegationTokenResponseTokenDetailRenewer()
			r.PrincipalType, r.PrincipalName = controller.SplitPrincipal(renewer)
			detail.Renewers = append(detail.Renewers, r)
		}
		resp.TokenDetails = append(resp.TokenDetails, detail)
	}
	return resp
}
