package cli

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/security"
	"github.com/stelelog/stele/internal/wire"
)

// securityAuthorization are the APIs of credentials, access rules and tokens, which both kinds of listener serve. Tokens are
// refused on every listener that does not say who asks, before anybody is asked.
func securityAuthorization() []authorizationCase {
	alter, describe := []denial{{security.Alter, onCluster}}, []denial{{security.Describe, onCluster}}
	refused, noTokens := kerr.ClusterAuthorizationFailed, kerr.DelegationTokenRequestNotAllowed
	return []authorizationCase{
		{"DescribeAcls", func() kmsg.Request { return aclFilter(1) }, func(r kmsg.Response) int16 { return r.(*kmsg.DescribeACLsResponse).ErrorCode }, describe, refused},
		{"CreateAcls", func() kmsg.Request { return aclRule("t") }, func(r kmsg.Response) int16 { return r.(*kmsg.CreateACLsResponse).Results[0].ErrorCode }, alter, refused},
		{"DeleteAcls", func() kmsg.Request { return aclRemoval("nothing") }, func(r kmsg.Response) int16 { return r.(*kmsg.DeleteACLsResponse).Results[0].ErrorCode }, alter, refused},
		{"DescribeUserScramCredentials", func() kmsg.Request { return kmsg.NewPtrDescribeUserSCRAMCredentialsRequest() },
			func(r kmsg.Response) int16 { return r.(*kmsg.DescribeUserSCRAMCredentialsResponse).ErrorCode }, describe, refused},
		{"AlterUserScramCredentials", func() kmsg.Request {
			req := kmsg.NewPtrAlterUserSCRAMCredentialsRequest()
			req.Deletions = append(req.Deletions, kmsg.AlterUserSCRAMCredentialsRequestDeletion{Name: "u", Mechanism: 1})
			return req
		}, func(r kmsg.Response) int16 {
			return r.(*kmsg.AlterUserSCRAMCredentialsResponse).Results[0].ErrorCode
		}, alter, refused},
		{"UnregisterController", func() kmsg.Request {
			req := kmsg.NewPtrUnregisterControllerRequest()
			req.ControllerID = 99
			return req
		}, func(r kmsg.Response) int16 { return r.(*kmsg.UnregisterControllerResponse).ErrorCode }, alter, refused},
		{"CreateDelegationToken", func() kmsg.Request { return kmsg.NewPtrCreateDelegationTokenRequest() },
			func(r kmsg.Response) int16 { return r.(*kmsg.CreateDelegationTokenResponse).ErrorCode }, nil, noTokens},
		{"RenewDelegationToken", func() kmsg.Request { return kmsg.NewPtrRenewDelegationTokenRequest() },
			func(r kmsg.Response) int16 { return r.(*kmsg.RenewDelegationTokenResponse).ErrorCode }, nil, noTokens},
		{"ExpireDelegationToken", func() kmsg.Request { return kmsg.NewPtrExpireDelegationTokenRequest() },
			func(r kmsg.Response) int16 { return r.(*kmsg.ExpireDelegationTokenResponse).ErrorCode }, nil, noTokens},
		{"DescribeDelegationToken", func() kmsg.Request { return kmsg.NewPtrDescribeDelegationTokenRequest() },
			func(r kmsg.Response) int16 { return r.(*kmsg.DescribeDelegationTokenResponse).ErrorCode }, nil, noTokens},
	}
}

func aclFilter(kind kmsg.ACLResourceType) *kmsg.DescribeACLsRequest {
	req := kmsg.NewPtrDescribeACLsRequest()
	req.ResourceType, req.ResourcePatternType, req.Operation, req.PermissionType = kind, 1, 1, 1
	return req
}

func aclRule(topics ...string) *kmsg.CreateACLsRequest {
	req := kmsg.NewPtrCreateACLsRequest()
	for _, topic := range topics {
		one := kmsg.NewCreateACLsRequestCreation()
		one.ResourceType, one.ResourceName, one.Principal, one.Host, one.Operation, one.PermissionType = 2, topic, "User:a", "*", 3, 3
		req.Creations = append(req.Creations, one)
	}
	return req
}

func aclRemoval(topic string) *kmsg.DeleteACLsRequest {
	req := kmsg.NewPtrDeleteACLsRequest()
	one := kmsg.NewDeleteACLsRequestFilter()
	one.ResourceType, one.ResourceName, one.ResourcePatternType, one.Operation, one.PermissionType = 2, &topic, 1, 1, 1
	req.Filters = append(req.Filters, one)
	return req
}

// Access rules on a node with an authorizer, at either listener: what is made through the one is seen at the other, a bad
// rule fails alone, a filter that is none ends the connection, and removing says what went.
func TestM054_access_rules_over_the_wire(t *testing.T) {
	t.Parallel()
	broker, controller := authorizedNode(t, &denyOne{})
	ask := func(conn *wire.Conn, req kmsg.Request) kmsg.Response {
		t.Helper()
		resp, err := conn.Request(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	for name, conn := range map[string]*wire.Conn{"b": broker, "c": controller} {
		made := ask(conn, aclRule(name, "")).(*kmsg.CreateACLsResponse)
		if len(made.Results) != 2 || made.Results[0].ErrorCode != 0 || made.Results[1].ErrorCode != kerr.InvalidRequest.Code {
			t.Errorf("made: %+v", made.Results)
		}
	}
	seen := ask(controller, aclFilter(2)).(*kmsg.DescribeACLsResponse)
	if seen.ErrorCode != 0 || len(seen.Resources) != 2 || seen.Resources[0].ResourceName != "b" || len(seen.Resources[0].ACLs) != 1 || seen.Resources[0].ACLs[0].Principal != "User:a" {
		t.Errorf("seen: %+v", seen)
	}
	gone := ask(broker, aclRemoval("c")).(*kmsg.DeleteACLsResponse)
	if len(gone.Results) != 1 || len(gone.Results[0].MatchingACLs) != 1 || gone.Results[0].MatchingACLs[0].ResourceName != "c" {
		t.Errorf("gone: %+v", gone)
	}
	if seen := ask(controller, aclFilter(2)).(*kmsg.DescribeACLsResponse); len(seen.Resources) != 1 {
		t.Errorf("left: %+v", seen)
	}
	unknown := aclRule("t")
	unknown.Creations[0].Operation = 0
	if _, err := broker.Request(t.Context(), unknown); err == nil {
		t.Error("a rule with an unknown element is answered")
	}
	if _, err := controller.Request(t.Context(), aclFilter(0)); err == nil {
		t.Error("a filter with an unknown element is answered")
	}
}
