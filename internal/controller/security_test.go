package controller

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
)

func scramUp(user string, mechanism int8, iterations int32) kmsg.AlterUserSCRAMCredentialsRequestUpsertion {
	return kmsg.AlterUserSCRAMCredentialsRequestUpsertion{Name: user, Mechanism: mechanism, Iterations: iterations, Salt: []byte("salt"), SaltedPassword: []byte("salted")}
}

func scramDown(user string, mechanism int8) kmsg.AlterUserSCRAMCredentialsRequestDeletion {
	return kmsg.AlterUserSCRAMCredentialsRequestDeletion{Name: user, Mechanism: mechanism}
}

// SCRAM credentials: each fault with its code, the keys that the record holds, what describing shows, and what a request
// that names a user twice does.
func TestM054_scram_credentials(t *testing.T) {
	t.Parallel()
	k := newCluster(t)
	alter := func(ups []kmsg.AlterUserSCRAMCredentialsRequestUpsertion, downs ...kmsg.AlterUserSCRAMCredentialsRequestDeletion) Result {
		req := kmsg.NewPtrAlterUserSCRAMCredentialsRequest()
		req.Upsertions, req.Deletions = ups, downs
		return k.c.AlterUserScramCredentials(k.at(), req)
	}
	type ups = []kmsg.AlterUserSCRAMCredentialsRequestUpsertion
	noPassword := scramUp("a", 1, 4096)
	noPassword.SaltedPassword = nil
	k.must(alter(ups{scramUp("there", 1, 4096)}))
	for _, c := range []struct {
		what string
		r    Result
		err  error
	}{
		{"no name", alter(ups{scramUp("", 9, 1)}), ErrUnacceptableCredential},
		{"mechanism 0", alter(ups{scramUp("a", 0, 1)}), ErrUnsupportedSASLMechanism},
		{"mechanism 3", alter(ups{scramUp("a", 3, 4096)}), ErrUnsupportedSASLMechanism},
		{"4095 iterations", alter(ups{scramUp("a", 1, 4095)}), ErrUnacceptableCredential},
		{"16385 iterations", alter(ups{scramUp("a", 1, 16385)}), ErrUnacceptableCredential},
		{"no password", alter(ups{noPassword}), ErrUnacceptableCredential},
		{"two mechanisms at once", alter(ups{scramUp("a", 1, 4096), scramUp("a", 2, 4096)}), ErrDuplicateResource},
		{"set and deleted", alter(ups{scramUp("there", 2, 4096)}, scramDown("there", 1)), ErrDuplicateResource},
		{"deleted twice", alter(nil, scramDown("there", 1), scramDown("there", 1)), ErrDuplicateResource},
		{"another's mechanism deleted", alter(nil, scramDown("there", 2)), ErrResourceNotFound},
		{"nobody deleted", alter(nil, scramDown("nobody", 1)), ErrResourceNotFound},
		{"unknown deleted, and set", alter(ups{scramUp("nobody", 1, 4096)}, scramDown("nobody", 1)), ErrResourceNotFound},
		{"no name deleted", alter(nil, scramDown("", 1)), ErrUnacceptableCredential},
		{"mechanism deleted", alter(nil, scramDown("there", 5)), ErrUnsupportedSASLMechanism},
	} {
		if users := c.r.Reply.(AlterScramReply).Users; len(users) != 1 || !errors.Is(users[0].Err, c.err) || len(c.r.Records) != 0 {
			t.Errorf("%s: %+v, %s", c.what, users, kinds(c.r.Records))
		}
	}
	r := k.must(alter(ups{scramUp("b", 2, 16384), scramUp("c", 1, 1)}, scramDown("there", 1)))
	if kinds(r.Records) != "RemoveUserScramCredential UserScramCredential" || !r.Atomic || len(r.Reply.(AlterScramReply).Users) != 3 {
		t.Errorf("good and bad: %s %+v", kinds(r.Records), r.Reply)
	}
	sign := func(text string) []byte {
		mac := hmac.New(sha512.New, []byte("salted"))
		mac.Write([]byte(text))
		return mac.Sum(nil)
	}
	stored := sha512.Sum512(sign("Client Key"))
	b, _ := k.c.Image().ScramCredentials().Get(metadata.ScramKey{User: "b", Mechanism: 2})
	if b == nil || !bytes.Equal(b.StoredKey, stored[:]) || !bytes.Equal(b.ServerKey, sign("Server Key")) || string(b.Salt) != "salt" || b.Iterations != 16384 {
		t.Errorf("%+v", b)
	}
	k.must(alter(ups{scramUp("b", 1, 4096)}))
	if b, _ := k.c.Image().ScramCredentials().Get(metadata.ScramKey{User: "b", Mechanism: 1}); b == nil || len(b.StoredKey) != sha256.Size {
		t.Errorf("%+v", b)
	}
	describe := func(users ...string) string {
		req := kmsg.NewPtrDescribeUserSCRAMCredentialsRequest()
		for _, user := range users {
			req.Users = append(req.Users, kmsg.DescribeUserSCRAMCredentialsRequestUser{Name: user})
		}
		out := ""
		for _, d := range DescribeUserScramCredentials(k.c.Committed(), req) {
			out += fmt.Sprint(d.User, d.Credentials)
			if d.Err != nil {
				out += d.Err.Err.Error()
			}
			out += " "
		}
		return out
	}
	k.must(alter(ups{scramUp("a", 1, 5000)}))
	if got := describe(); got != "a[{1 5000}] b[{1 4096} {2 16384}] " {
		t.Error(got)
	}
	if got := describe("zz", "b", "b"); got != "zz[]RESOURCE_NOT_FOUND b[]DUPLICATE_RESOURCE " {
		t.Error(got)
	}
	k.replay([]metadata.Record{&metadata.FeatureLevelRecord{Name: metadata.FeatureMetadataVersion, FeatureLevel: 10}})
	if users := alter(ups{scramUp("a", 1, 4096)}).Reply.(AlterScramReply).Users; !errors.Is(users[0].Err, ErrUnsupportedVersion) {
		t.Errorf("level 10: %+v", users)
	}
}

func rule(kind, pattern int8, name, principal, host string, operation, permission int8) kmsg.CreateACLsRequestCreation {
	return kmsg.CreateACLsRequestCreation{ResourceType: kmsg.ACLResourceType(kind), ResourcePatternType: kmsg.ACLResourcePatternType(pattern), ResourceName: name,
		Principal: principal, Host: host, Operation: kmsg.ACLOperation(operation), PermissionType: kmsg.ACLPermissionType(permission)}
}

// Access rules: each fault, one record per new rule and none for one that is there, what filters match, and a rule that
// two filters match removed once.
func TestM054_access_rules(t *testing.T) {
	t.Parallel()
	k := newCluster(t)
	create := func(rules ...kmsg.CreateACLsRequestCreation) Result {
		req := kmsg.NewPtrCreateACLsRequest()
		req.Creations = rules
		return k.c.CreateACLs(k.at(), req)
	}
	const user, all = "User:a", "*"
	for _, c := range []struct {
		rule kmsg.CreateACLsRequestCreation
		err  error
	}{
		{rule(1, 3, "t", user, all, 3, 3), ErrInvalidRequest},
		{rule(8, 3, "t", user, all, 3, 3), ErrInvalidRequest},
		{rule(2, 1, "t", user, all, 3, 3), ErrInvalidRequest},
		{rule(2, 2, "t", user, all, 3, 3), ErrInvalidRequest},
		{rule(2, 9, "t", user, all, 3, 3), ErrInvalidRequest},
		{rule(2, 3, "t", user, all, 1, 3), ErrInvalidRequest},
		{rule(2, 3, "t", user, all, 16, 3), ErrInvalidRequest},
		{rule(2, 3, "t", user, all, 3, 1), ErrInvalidRequest},
		{rule(2, 3, "t", user, all, 3, 4), ErrInvalidRequest},
		{rule(2, 3, "", user, all, 3, 3), ErrInvalidRequest},
		{rule(2, 3, "t", "a", all, 3, 3), ErrInvalidRequest},
		{rule(2, 3, "t", "", all, 3, 3), ErrInvalidRequest},
		{rule(2, 3, "t", user, "", 3, 3), ErrInvalidRequest},
		{rule(4, 3, "other", user, all, 3, 3), ErrInvalidRequest},
		{rule(2, 3, "t", user, "10.0.0.0/33", 3, 3), ErrInvalidRequest},
		{rule(2, 3, "t", user, "10.0.0/8", 3, 3), ErrInvalidRequest},
		{rule(2, 3, "t", user, "10.0.0.0/-1", 3, 3), ErrInvalidRequest},
		{rule(2, 3, "t", user, "host/8", 3, 3), ErrInvalidRequest},
		{rule(2, 3, "t", user, "fe80::1%eth0/8", 3, 3), ErrInvalidRequest},
	} {
		if r := create(c.rule); len(r.Records) > 0 || !errors.Is(r.Reply.(CreateACLsReply).Errs[0], c.err) {
			t.Errorf("%+v: %v", c.rule, r.Reply)
		}
	}
	good := []kmsg.CreateACLsRequestCreation{
		rule(2, 3, "topic", user, all, 3, 3), rule(2, 4, "to", user, "10.0.0.0/8", 3, 2), rule(2, 3, "*", "User:*", all, 2, 3), rule(2, 3, "to", user, "2001:db8::/32", 4, 3),
		rule(3, 3, "topic", user, all, 3, 3), rule(4, 3, "kafka-cluster", "User:b", all, 7, 3), rule(7, 3, user, "User:b", all, 13, 3),
	}
	r := k.must(create(append(slices.Clone(good), good[0], rule(2, 3, "", user, all, 3, 3))...))
	if len(r.Records) != len(good) || !r.Atomic {
		t.Fatalf("%s %+v", kinds(r.Records), r.Reply)
	}
	for i, err := range r.Reply.(CreateACLsReply).Errs {
		if (err != nil) != (i == len(good)+1) {
			t.Errorf("item %d: %v", i, err)
		}
	}
	if r := create(good...); len(r.Records) != 0 || slices.ContainsFunc(r.Reply.(CreateACLsReply).Errs, func(err *Error) bool { return err != nil }) {
		t.Errorf("there already: %s %+v", kinds(r.Records), r.Reply)
	}
	for _, c := range []struct {
		filter ACLFilter
		want   int
	}{
		{ACLFilter{ResourceType: 1, PatternType: 1, Operation: 1, PermissionType: 1}, 7},
		{ACLFilter{ResourceType: 2, PatternType: 1, Operation: 1, PermissionType: 1}, 4},
		{ACLFilter{ResourceType: 2, PatternType: 3, Operation: 1, PermissionType: 1}, 3},
		{ACLFilter{ResourceType: 2, PatternType: 4, Operation: 1, PermissionType: 1}, 1},
		{ACLFilter{ResourceType: 2, PatternType: 2, Operation: 1, PermissionType: 1}, 4},
		{ACLFilter{ResourceType: 2, ResourceName: new("topic"), PatternType: 2, Operation: 1, PermissionType: 1}, 3}, // itself, the prefix, *
		{ACLFilter{ResourceType: 2, ResourceName: new("topic"), PatternType: 1, Operation: 1, PermissionType: 1}, 1},
		{ACLFilter{ResourceType: 2, ResourceName: new("to"), PatternType: 1, Operation: 1, PermissionType: 1}, 2},
		{ACLFilter{ResourceType: 2, ResourceName: new("to"), PatternType: 4, Operation: 1, PermissionType: 1}, 1},
		{ACLFilter{ResourceType: 1, PatternType: 1, Principal: new("User:b"), Operation: 1, PermissionType: 1}, 2},
		{ACLFilter{ResourceType: 1, PatternType: 1, Host: new("10.0.0.1"), Operation: 1, PermissionType: 1}, 0},
		{ACLFilter{ResourceType: 1, PatternType: 1, Operation: 3, PermissionType: 1}, 3},
		{ACLFilter{ResourceType: 1, PatternType: 1, Operation: 1, PermissionType: 2}, 1},
		{ACLFilter{ResourceType: 99, PatternType: 1, Operation: 1, PermissionType: 1}, 0},
	} {
		if got := DescribeACLs(k.c.Committed(), c.filter); len(got) != c.want {
			t.Errorf("%+v: %d rules, want %d", c.filter, len(got), c.want)
		}
	}
	del := kmsg.NewPtrDeleteACLsRequest()
	del.Filters = []kmsg.DeleteACLsRequestFilter{
		{ResourceType: 2, ResourceName: new("to"), ResourcePatternType: 2, Operation: 1, PermissionType: 1},
		{ResourceType: 2, ResourcePatternType: 3, Operation: 1, PermissionType: 1},
		{ResourceType: 6, ResourcePatternType: 1, Operation: 1, PermissionType: 1},
	}
	r = k.must(k.c.DeleteACLs(k.at(), del))
	matched := r.Reply.(DeleteACLsReply).Matched
	if len(matched) != 3 || len(matched[0]) != 3 || len(matched[1]) != 3 || len(matched[2]) != 0 || len(r.Records) != 4 || k.c.Image().ACLs().Len() != 3 {
		t.Errorf("%s: %+v, %d are left", kinds(r.Records), matched, k.c.Image().ACLs().Len())
	}
	k.replay([]metadata.Record{&metadata.FeatureLevelRecord{Name: metadata.FeatureMetadataVersion, FeatureLevel: 31}})
	if r := create(rule(2, 3, "t", user, "10.0.0.0/8", 3, 3)); !errors.Is(r.Reply.(CreateACLsReply).Errs[0], ErrUnsupportedVersion) {
		t.Errorf("a range of addresses at level 31: %+v", r.Reply)
	}
	many := make([]kmsg.CreateACLsRequestCreation, MaxRecordsPerRequest+1)
	for i := range many {
		many[i] = rule(2, 3, fmt.Sprint(i), user, all, 3, 3)
	}
	if r := create(many...); !errors.Is(r.Err, ErrPolicyViolation) || len(r.Records) > 0 {
		t.Errorf("too many: %v", r.Err)
	}
	for _, part := range slices.Collect(slices.Chunk(many, 6000)) {
		k.must(create(part...))
	}
	del.Filters = []kmsg.DeleteACLsRequestFilter{{ResourceType: 1, ResourcePatternType: 1, Operation: 1, PermissionType: 1}}
	if r := k.c.DeleteACLs(k.at(), del); !errors.Is(r.Err, ErrInvalidRequest) || len(r.Records) > 0 {
		t.Errorf("too many to delete: %v", r.Err)
	}
}

// Delegation tokens: each fault with its code, the times of a token as it is made, renewed and expired, and the clean-up of
// those whose time is over.
func TestM054_delegation_tokens(t *testing.T) {
	t.Parallel()
	const owner, renewer, hour = "User:owner", "User:renewer", int64(3_600_000)
	create := func(k *cluster, life int64, renewers ...string) Result {
		req := kmsg.NewPtrCreateDelegationTokenRequest()
		req.MaxLifetimeMillis = life
		for _, r := range renewers {
			kind, name := SplitPrincipal(r)
			req.Renewers = append(req.Renewers, kmsg.CreateDelegationTokenRequestRenewer{PrincipalType: kind, PrincipalName: name})
		}
		return k.c.CreateDelegationToken(k.at(), req, owner, "User:requester")
	}
	renew := func(k *cluster, hmac []byte, by string, period int64) Result {
		req := kmsg.NewPtrRenewDelegationTokenRequest()
		req.HMAC, req.RenewTimeMillis = hmac, period
		return k.c.RenewDelegationToken(k.at(), req, by)
	}
	expire := func(k *cluster, hmac []byte, by string, period int64) Result {
		req := kmsg.NewPtrExpireDelegationTokenRequest()
		req.HMAC, req.ExpiryPeriodMillis = hmac, period
		return k.c.ExpireDelegationToken(k.at(), req, by)
	}
	none := newCluster(t)
	for _, r := range []Result{create(none, -1), renew(none, nil, owner, -1), expire(none, nil, owner, -1)} {
		if !errors.Is(r.Err, ErrTokenAuthDisabled) {
			t.Errorf("without a secret: %v", r.Err)
		}
	}
	k := newCluster(t, "delegation.token.secret.key=secret")
	if r := create(k, -1, renewer, "Group:g"); !errors.Is(r.Err, ErrInvalidPrincipalType) {
		t.Error(r.Err)
	}
	start := k.now.UnixMilli()
	r := k.must(create(k, -1, renewer))
	made := r.Reply.(TokenReply)
	mac := hmac.New(sha512.New, []byte("secret"))
	mac.Write([]byte(made.Token.TokenID))
	if kinds(r.Records) != "DelegationToken" || made.Token.Owner != owner || made.Token.Requester != "User:requester" || made.Token.IssueTimestamp != start ||
		made.Token.MaxTimestamp != start+168*hour || made.Token.ExpirationTimestamp != start+24*hour || !hmac.Equal(made.HMAC, mac.Sum(nil)) {
		t.Errorf("%s %+v", kinds(r.Records), made)
	}
	if short := create(k, hour).Reply.(TokenReply).Token; short.MaxTimestamp != start+hour || short.ExpirationTimestamp != start+hour {
		t.Errorf("a short one: %+v", short)
	}
	for _, c := range []struct {
		r   Result
		err error
	}{
		{renew(k, []byte("other"), owner, -1), ErrTokenNotFound}, {expire(k, nil, owner, -1), ErrTokenNotFound},
		{renew(k, made.HMAC, "User:requester", -1), ErrTokenOwnerMismatch}, {expire(k, made.HMAC, "User:stranger", -1), ErrTokenOwnerMismatch},
	} {
		if !errors.Is(c.r.Err, c.err) || len(c.r.Records) > 0 {
			t.Errorf("%v, want %v", c.r.Err, c.err)
		}
	}
	k.now = k.now.Add(time.Hour)
	for _, c := range []struct {
		r    Result
		ends int64
	}{
		{renew(k, made.HMAC, renewer, -1), start + 25*hour}, {renew(k, made.HMAC, owner, hour), start + 2*hour}, {renew(k, made.HMAC, owner, 1000*hour), start + 25*hour},
		{expire(k, made.HMAC, renewer, 1000), start + hour + 1000}, {expire(k, made.HMAC, owner, 0), start + hour}, {expire(k, made.HMAC, owner, 1<<62), start + 168*hour},
	} {
		if kinds(c.r.Records) != "DelegationToken" || c.r.Reply.(TokenReply).Token.ExpirationTimestamp != c.ends || c.r.Records[0].(*metadata.DelegationTokenRecord).ExpirationTimestamp != c.ends {
			t.Errorf("%s %+v, want an end at %d", kinds(c.r.Records), c.r.Reply, c.ends)
		}
	}
	if r := expire(k, made.HMAC, owner, -1); kinds(r.Records) != "RemoveDelegationToken" || r.Reply.(TokenReply).Token.ExpirationTimestamp != start+hour {
		t.Errorf("at once: %s %+v", kinds(r.Records), r.Reply)
	}
	k.now = k.now.Add(24 * time.Hour)
	if r := renew(k, made.HMAC, owner, -1); !errors.Is(r.Err, ErrTokenExpired) {
		t.Errorf("after its end: %v", r.Err)
	}
	k.must(create(k, -1))
	if found := DescribeDelegationTokens(k.c.Committed(), "secret", func(*metadata.DelegationTokenRecord) bool { return true }); len(found) != 2 || len(found[0].HMAC) != sha512.Size {
		t.Errorf("%+v", found)
	}
	k.tick()
	if left := k.c.Image().DelegationTokens().Len(); left != 1 {
		t.Errorf("%d tokens are left after the clean-up, one lives", left)
	}
	k.replay([]metadata.Record{&metadata.FeatureLevelRecord{Name: metadata.FeatureMetadataVersion, FeatureLevel: 13}})
	if r := create(k, -1); !errors.Is(r.Err, ErrUnsupportedVersion) {
		t.Errorf("level 13: %v", r.Err)
	}
}

// A snapshot of a cluster with quotas, SCRAM credentials, access rules and tokens holds all of them, and loading it gives the
// same image; so does what is left after some are removed.
func TestM054_snapshot_keeps_all(t *testing.T) {
	t.Parallel()
	k := newCluster(t, "delegation.token.secret.key=secret")
	quota := kmsg.NewPtrAlterClientQuotasRequest()
	quota.Entries = []kmsg.AlterClientQuotasRequestEntry{
		{Entity: []kmsg.AlterClientQuotasRequestEntryEntity{{Type: "user", Name: new("a")}, {Type: "client-id"}}, Ops: []kmsg.AlterClientQuotasRequestEntryOp{{Key: "producer_byte_rate", Value: 5}, {Key: "controller_mutation_rate", Value: 0.5}}},
		{Entity: []kmsg.AlterClientQuotasRequestEntryEntity{{Type: "ip", Name: new("1.2.3.4")}}, Ops: []kmsg.AlterClientQuotasRequestEntryOp{{Key: "connection_creation_rate", Value: 5}}},
	}
	k.must(k.c.AlterClientQuotas(k.at(), quota))
	scram := kmsg.NewPtrAlterUserSCRAMCredentialsRequest()
	scram.Upsertions = []kmsg.AlterUserSCRAMCredentialsRequestUpsertion{scramUp("a", 1, 4096), scramUp("b", 2, 4096)}
	k.must(k.c.AlterUserScramCredentials(k.at(), scram))
	rules := kmsg.NewPtrCreateACLsRequest()
	rules.Creations = []kmsg.CreateACLsRequestCreation{rule(2, 3, "t", "User:a", "*", 3, 3), rule(2, 4, "p", "User:a", "10.0.0.0/8", 3, 2)}
	k.must(k.c.CreateACLs(k.at(), rules))
	for range 2 {
		k.must(k.c.CreateDelegationToken(k.at(), kmsg.NewPtrCreateDelegationTokenRequest(), "User:a", "User:b"))
	}
	same := func(what, want string) {
		t.Helper()
		delta := metadata.NewDelta(metadata.EmptyImage())
		var recs []metadata.Record
		for rec := range k.c.Image().Records() {
			if err := delta.Replay(rec, 1); err != nil {
				t.Fatal(err)
			}
			switch rec.(type) {
			case *metadata.FeatureLevelRecord, *metadata.ConfigRecord, *metadata.ProducerIDsRecord:
			default:
				recs = append(recs, rec)
			}
		}
		if kinds(recs) != want {
			t.Errorf("%s: %s", what, kinds(recs))
		}
		a, errA := k.c.Image().Encoded()
		b, errB := delta.Apply(k.next-1, 1).Encoded()
		if errA != nil || errB != nil || !slices.EqualFunc(a, b, bytes.Equal) {
			t.Errorf("%s: the snapshot gives another image: %v %v", what, errA, errB)
		}
	}
	same("all", "ClientQuota ClientQuota ClientQuota AccessControlEntry AccessControlEntry UserScramCredential UserScramCredential DelegationToken DelegationToken")
	quota.Entries = quota.Entries[:1]
	quota.Entries[0].Ops = []kmsg.AlterClientQuotasRequestEntryOp{{Key: "producer_byte_rate", Remove: true}}
	k.must(k.c.AlterClientQuotas(k.at(), quota))
	scram.Upsertions, scram.Deletions = nil, []kmsg.AlterUserSCRAMCredentialsRequestDeletion{scramDown("a", 1)}
	k.must(k.c.AlterUserScramCredentials(k.at(), scram))
	del := kmsg.NewPtrDeleteACLsRequest()
	del.Filters = []kmsg.DeleteACLsRequestFilter{{ResourceType: 2, ResourcePatternType: 4, Operation: 1, PermissionType: 1}}
	k.must(k.c.DeleteACLs(k.at(), del))
	same("some removed", "ClientQuota ClientQuota AccessControlEntry UserScramCredential DelegationToken DelegationToken")
}

// The controller mutation quota: a bucket of eleven seconds' worth that may be overdrawn once; strict requests are refused
// while it is below zero and told for how long, others are done and told to wait; looking only costs as well; each user has
// a bucket of its own under a quota of all, and the nearest quota counts.
func TestMutationQuota(t *testing.T) {
	t.Parallel()
	k := newCluster(t)
	k.start(1)
	quota := func(rate float64, parts ...*string) {
		t.Helper()
		req := kmsg.NewPtrAlterClientQuotasRequest()
		entry := kmsg.AlterClientQuotasRequestEntry{Ops: []kmsg.AlterClientQuotasRequestEntryOp{{Key: "controller_mutation_rate", Value: rate, Remove: rate == 0}}}
		for i, kind := range []string{"user", "client-id"}[:len(parts)] {
			if parts[i] == nil || *parts[i] != "-" {
				entry.Entity = append(entry.Entity, kmsg.AlterClientQuotasRequestEntryEntity{Type: kind, Name: parts[i]})
			}
		}
		req.Entries = append(req.Entries, entry)
		if r := k.must(k.c.AlterClientQuotas(k.at(), req)); r.Reply.(AlterClientQuotasReply).Entries[0].Err != nil {
			t.Fatal(r.Reply)
		}
	}
	at := func(user, id string, strict bool) At {
		return At{Now: k.now, Next: k.next, Client: &Client{User: user, ID: id, Strict: strict}}
	}
	names := 0
	create := func(at At, partitions int32, topics int) (refused int, throttle time.Duration) {
		t.Helper()
		req := kmsg.NewPtrCreateTopicsRequest()
		for range topics {
			names++
			req.Topics = append(req.Topics, createRequest(fmt.Sprint("t", names), partitions, 1))
		}
		r := k.must(k.c.CreateTopics(at, req))
		for _, topic := range r.Reply.(CreateTopicsReply).Topics {
			if topic.Err != nil {
				if !errors.Is(topic.Err, ErrThrottlingQuotaExceeded) {
					t.Error(topic.Err)
				}
				refused++
			}
		}
		return refused, r.Throttle
	}
	check := func(what string, refused int, throttle time.Duration, wantRefused int, wantThrottle time.Duration) {
		t.Helper()
		if refused != wantRefused || throttle.Round(time.Millisecond) != wantThrottle {
			t.Errorf("%s: %d refused, throttled for %v; want %d, %v", what, refused, throttle, wantRefused, wantThrottle)
		}
	}
	refused, throttle := create(at("u", "c", true), 1000, 1)
	check("no quota", refused, throttle, 0, 0)
	quota(1, nil)
	// As an Apache Kafka did it: 11 - 3 - 3 - 3 - 3 is below zero, so the fifth is refused and a second is to be waited for.
	refused, throttle = create(at("u", "c", true), 3, 5)
	check("five topics of three", refused, throttle, 1, time.Second)
	refused, throttle = create(at("v", "c", true), 3, 1)
	check("another user", refused, throttle, 0, 0)
	k.now = k.now.Add(time.Second)
	refused, throttle = create(at("u", "c", true), 20, 1)
	check("twenty from nothing", refused, throttle, 0, 0)
	refused, throttle = create(at("u", "c", true), 1, 1)
	check("in debt", refused, throttle, 1, 20*time.Second)
	refused, throttle = create(at("u", "c", false), 1, 1)
	check("in debt, of an old client", refused, throttle, 0, 21*time.Second)
	grow := kmsg.NewPtrCreatePartitionsRequest()
	grow.Topics = []kmsg.CreatePartitionsRequestTopic{{Topic: "t1", Count: 1001}}
	if r := k.c.CreatePartitions(at("u", "c", true), grow); !errors.Is(r.Reply.(CreatePartitionsReply).Topics[0].Err, ErrThrottlingQuotaExceeded) || len(r.Records) > 0 || r.Throttle == 0 {
		t.Errorf("partitions: %+v", r)
	}
	drop := kmsg.NewPtrDeleteTopicsRequest()
	drop.TopicNames = []string{"t2", "no-such-topic"}
	r := k.c.DeleteTopics(at("u", "c", true), drop)
	if topics := r.Reply.(DeleteTopicsReply).Topics; !errors.Is(topics[0].Err, ErrThrottlingQuotaExceeded) || !errors.Is(topics[1].Err, ErrUnknownTopicOrPartition) || len(r.Records) > 0 {
		t.Errorf("deletion: %+v", topics)
	}
	k.now = k.now.Add(21 * time.Second)
	look := kmsg.NewPtrCreateTopicsRequest()
	look.ValidateOnly, look.Topics = true, []kmsg.CreateTopicsRequestTopic{createRequest("only-looked-at", 5, 1)}
	if r := k.c.CreateTopics(at("u", "c", true), look); r.Reply.(CreateTopicsReply).Topics[0].Err != nil || len(r.Records) > 0 {
		t.Errorf("looking: %+v", r)
	}
	refused, throttle = create(at("u", "c", true), 1, 1)
	check("looking has cost", refused, throttle, 1, 5*time.Second)
	k.now = k.now.Add(time.Hour)
	refused, throttle = create(at("u", "c", true), 4, 4)
	check("no more is saved up than the window", refused, throttle, 1, time.Second)

	user, id, anyone := "w", "d", (*string)(nil)
	skip := "-"
	for i, q := range []struct{ user, id *string }{{&skip, anyone}, {&skip, &id}, {anyone, anyone}, {anyone, &id}, {&user, anyone}, {&user, &id}} {
		rate := float64(100 * (i + 1))
		quota(rate, q.user, q.id)
		if got, _, _ := mutationQuota(k.c.Committed(), &Client{User: user, ID: id}); got != rate && i > 1 {
			t.Errorf("quota %d: %v per second, want %v", i, got, rate)
		}
	}
	k.c.Deactivate()
	k.apply(k.c.Activate(k.at(), metadata.LevelLatest))
	refused, throttle = create(at("u", "c", true), 1, 1)
	check("of another controller", refused, throttle, 0, 0)
}

// A controller with a vote, or the active one, is not unregistered; one that is not known is said to be so.
func TestUnregisterController(t *testing.T) {
	t.Parallel()
	k := newCluster(t)
	req := kmsg.NewPtrControllerRegistrationRequest()
	req.ControllerID = 9
	k.must(k.c.RegisterController(k.at(), req))
	for _, c := range []struct {
		id    int32
		votes bool
		err   error
	}{{1, true, ErrInvalidRequest}, {9, true, ErrInvalidRequest}, {77, false, ErrControllerIDNotRegistered}, {-1, false, ErrControllerIDNotRegistered}} {
		if r := k.c.UnregisterController(k.at(), c.id, c.votes); !errors.Is(r.Err, c.err) || len(r.Records) > 0 {
			t.Errorf("%d: %v", c.id, r.Err)
		}
	}
	if r := k.must(k.c.UnregisterController(k.at(), 9, false)); kinds(r.Records) != "UnregisterController" {
		t.Error(kinds(r.Records))
	}
	k.replay([]metadata.Record{&metadata.FeatureLevelRecord{Name: metadata.FeatureMetadataVersion, FeatureLevel: 32}})
	if r := k.c.UnregisterController(k.at(), 77, false); !errors.Is(r.Err, ErrUnsupportedVersion) {
		t.Errorf("level 32: %v", r.Err)
	}
}
