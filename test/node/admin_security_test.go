package node

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func accessRule(topic string) kmsg.CreateACLsRequestCreation {
	one := kmsg.NewCreateACLsRequestCreation()
	one.ResourceType, one.ResourceName, one.Principal, one.Host, one.Operation, one.PermissionType = 2, topic, "User:a", "*", 3, 3
	return one
}

func TestM054_access_rules_without_an_authorizer(t *testing.T) {
	// M-054 on a node as it comes: without an authorizer access rules can be neither seen nor changed, 54 in every item and in Kafka's words, at either listener; a filter or rule with an unknown element ends the connection.
	t.Parallel()
	n := start(t)
	for name, dial := range map[string]func() *client{"broker": func() *client { return n.dial(t) }, "controller": func() *client { return n.controller(t) }} {
		c := dial()
		describe := kmsg.NewPtrDescribeACLsRequest()
		describe.ResourceType, describe.ResourcePatternType, describe.Operation, describe.PermissionType = 1, 1, 1, 1
		if got := do[*kmsg.DescribeACLsResponse](c, 3, describe); got.ErrorCode != 54 || deref(got.ErrorMessage) != "No Authorizer is configured on the broker" {
			t.Errorf("%s: describe: %+v", name, got)
		}
		create := kmsg.NewPtrCreateACLsRequest()
		if got := do[*kmsg.CreateACLsResponse](c, 3, create); len(got.Results) != 0 {
			t.Errorf("%s: create nothing: %+v", name, got)
		}
		create.Creations = []kmsg.CreateACLsRequestCreation{accessRule("t"), accessRule("u")}
		if got := do[*kmsg.CreateACLsResponse](c, 3, create); len(got.Results) != 2 || got.Results[1].ErrorCode != 54 || deref(got.Results[0].ErrorMessage) != "No Authorizer is configured." {
			t.Errorf("%s: create: %+v", name, got)
		}
		remove := kmsg.NewPtrDeleteACLsRequest()
		filter := kmsg.NewDeleteACLsRequestFilter()
		filter.ResourceType, filter.ResourcePatternType, filter.Operation, filter.PermissionType = 1, 1, 1, 1
		remove.Filters = append(remove.Filters, filter)
		if got := do[*kmsg.DeleteACLsResponse](c, 3, remove); len(got.Results) != 1 || got.Results[0].ErrorCode != 54 {
			t.Errorf("%s: delete: %+v", name, got)
		}
		describe.PermissionType, create.Creations[0].ResourceType, remove.Filters[0].Operation = 0, 0, 0
		for _, req := range []kmsg.Request{describe, create, remove} {
			c := dial()
			c.send(3, req)
			c.closed()
		}
	}
}

func TestM054_scram_over_the_wire(t *testing.T) {
	// M-054: SCRAM credentials are set through a broker or a controller and described by either, by name and all, without salt or keys; each user is answered once, with its own error; a restart keeps them.
	t.Parallel()
	n := start(t)
	c, controller := n.dial(t), n.controller(t)
	up := func(user string, mechanism int8, iterations int32) kmsg.AlterUserSCRAMCredentialsRequestUpsertion {
		return kmsg.AlterUserSCRAMCredentialsRequestUpsertion{Name: user, Mechanism: mechanism, Iterations: iterations, Salt: []byte("s"), SaltedPassword: []byte("p")}
	}
	alter := func(c *client, ups []kmsg.AlterUserSCRAMCredentialsRequestUpsertion, downs ...kmsg.AlterUserSCRAMCredentialsRequestDeletion) string {
		req := kmsg.NewPtrAlterUserSCRAMCredentialsRequest()
		req.Upsertions, req.Deletions = ups, downs
		out := ""
		for _, r := range do[*kmsg.AlterUserSCRAMCredentialsResponse](c, 0, req).Results {
			out += fmt.Sprintf("%s:%d ", r.User, r.ErrorCode)
		}
		return out
	}
	describe := func(c *client, users ...string) string {
		req := kmsg.NewPtrDescribeUserSCRAMCredentialsRequest()
		for _, user := range users {
			req.Users = append(req.Users, kmsg.DescribeUserSCRAMCredentialsRequestUser{Name: user})
		}
		resp := do[*kmsg.DescribeUserSCRAMCredentialsResponse](c, 0, req)
		if resp.ErrorCode != 0 {
			t.Fatalf("%+v", resp)
		}
		out := ""
		for _, r := range resp.Results {
			out += fmt.Sprintf("%s:%d", r.User, r.ErrorCode)
			for _, info := range r.CredentialInfos {
				out += fmt.Sprintf("/%d-%d", info.Mechanism, info.Iterations)
			}
			out += " "
		}
		return out
	}
	type ups = []kmsg.AlterUserSCRAMCredentialsRequestUpsertion
	if got := alter(c, ups{up("a", 1, 4096), up("b", 2, 4095), up("c", 7, 4096), up("", 1, 4096), up("d", 1, 4096), up("d", 2, 4096)},
		kmsg.AlterUserSCRAMCredentialsRequestDeletion{Name: "e", Mechanism: 1}); got != "e:91 a:0 b:93 c:33 :93 d:92 " {
		t.Error(got)
	}
	if got := alter(controller, ups{up("b", 2, 16384)}) + alter(controller, ups{up("a", 2, 8192)}); got != "b:0 a:0 " {
		t.Error(got)
	}
	const want = "a:0/1-4096/2-8192 b:0/2-16384 "
	check := func(when string) {
		t.Helper()
		for deadline := time.Now().Add(patience); describe(c) != want; {
			if time.Now().After(deadline) {
				t.Fatalf("%s: the broker shows %s", when, describe(c))
			}
			<-time.After(10 * time.Millisecond)
		}
		if got := describe(controller); got != want {
			t.Errorf("%s: the controller shows %s", when, got)
		}
		if got := describe(c, "zz", "b", "b"); got != "zz:91 b:92 " {
			t.Error(got)
		}
	}
	check("set")
	n.kill()
	n.run(t)
	c, controller = n.dial(t), n.controller(t)
	check("after a kill")
	if got := alter(c, nil, kmsg.AlterUserSCRAMCredentialsRequestDeletion{Name: "b", Mechanism: 2}); got != "b:0 " {
		t.Error(got)
	}
}

func TestM054_tokens_over_a_plain_listener(t *testing.T) {
	// M-054: over a PLAINTEXT listener anybody could ask for a token in anybody's name: every request about tokens is 64, with a secret key and without, at either listener, and names owner and requester as Kafka does.
	t.Parallel()
	n := start(t, "delegation.token.secret.key=secret")
	for name, c := range map[string]*client{"broker": n.dial(t), "controller": n.controller(t)} {
		create := kmsg.NewPtrCreateDelegationTokenRequest()
		create.OwnerPrincipalType, create.OwnerPrincipalName, create.MaxLifetimeMillis = kmsg.StringPtr("User"), kmsg.StringPtr("bob"), -1
		if got := do[*kmsg.CreateDelegationTokenResponse](c, 3, create); got.ErrorCode != 64 || got.PrincipalName != "bob" || got.TokenRequesterPrincipalName != "ANONYMOUS" || got.ExpiryTimestamp != -1 {
			t.Errorf("%s: create: %+v", name, got)
		}
		if got := do[*kmsg.RenewDelegationTokenResponse](c, 2, kmsg.NewPtrRenewDelegationTokenRequest()); got.ErrorCode != 64 || got.ExpiryTimestamp != -1 {
			t.Errorf("%s: renew: %+v", name, got)
		}
		if got := do[*kmsg.ExpireDelegationTokenResponse](c, 2, kmsg.NewPtrExpireDelegationTokenRequest()); got.ErrorCode != 64 || got.ExpiryTimestamp != -1 {
			t.Errorf("%s: expire: %+v", name, got)
		}
		if got := do[*kmsg.DescribeDelegationTokenResponse](c, 3, kmsg.NewPtrDescribeDelegationTokenRequest()); got.ErrorCode != 64 || len(got.TokenDetails) != 0 {
			t.Errorf("%s: describe: %+v", name, got)
		}
	}
}

func TestUnregisterControllerOfOneNode(t *testing.T) {
	// UnregisterController of the active controller is 42, of one that is not there 136, at either listener.
	t.Parallel()
	n := start(t)
	for name, c := range map[string]*client{"broker": n.dial(t), "controller": n.controller(t)} {
		for id, want := range map[int32]int16{1: 42, 77: 136} {
			req := kmsg.NewPtrUnregisterControllerRequest()
			req.ControllerID = id
			if got := do[*kmsg.UnregisterControllerResponse](c, 0, req); got.ErrorCode != want || deref(got.ErrorMessage) == "" {
				t.Errorf("%s: controller %d: %+v", name, id, got)
			}
		}
	}
}

func TestMutationQuotaOverTheWire(t *testing.T) {
	// KIP-599 through a broker and at a controller: what is beyond the client's controller mutation quota is 89 from CreateTopics 6 on, with the time to wait in the answer, and the connection is read again only when that is over; an older version is served and told to wait; other clients are not concerned.
	t.Parallel()
	n := start(t)
	admin := n.dial(t)
	limit := []quota{{"controller_mutation_rate", 2}}
	if codes := admin.alterQuotas(1, false, quotaChange{who("client-id", "slow-broker"), limit}, quotaChange{who("client-id", "slow-controller"), limit}); !slices.Equal(codes, []int16{0, 0}) {
		t.Fatal(codes)
	}
	create := func(c *client, version int16, name string, partitions int32) (code int16, throttle int32) {
		resp := do[*kmsg.CreateTopicsResponse](c, version, createRequest(false, wanted{name: name, partitions: partitions}))
		return resp.Topics[0].ErrorCode, resp.ThrottleMillis
	}
	for name, dial := range map[string]func() *client{"broker": func() *client { return n.dial(t) }, "controller": func() *client { return n.controller(t) }} {
		slow := dial()
		slow.id = "slow-" + name
		// The bucket holds 22 at most, and is overdrawn by three at least.
		if code, _ := create(slow, 7, "q-"+name, 25); code != 0 {
			t.Errorf("%s: from a full bucket: %d", name, code)
		}
		code, throttle := create(slow, 7, "q-refused-"+name, 1)
		if code != 89 || throttle <= 0 || throttle > 1600 {
			t.Errorf("%s: in debt: %d, wait %d ms", name, code, throttle)
		}
		since := time.Now()
		if code, throttle := create(slow, 5, "q-old-"+name, 25); code != 0 || throttle < 11000 {
			t.Errorf("%s: an old version: %d, wait %d ms", name, code, throttle)
		}
		if waited := time.Since(since); waited < time.Duration(throttle)*time.Millisecond {
			t.Errorf("%s: read again after %v, told to wait %d ms", name, waited, throttle)
		}
		if code, throttle := create(dial(), 7, "q-other-"+name, 25); code != 0 || throttle != 0 {
			t.Errorf("%s: another client: %d, wait %d ms", name, code, throttle)
		}
	}
}
