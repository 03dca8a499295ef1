package node

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

var memberID = regexp.MustCompile(`^node-test-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

func TestG001_first_join_gets_an_id(t *testing.T) {
	// JoinGroup v4 and up with no member id is answered 79 with <client>-<uuid>, and the group is listed as Empty.
	t.Parallel()
	n := shared(t)
	c := n.dial(t)
	group := c.groupID()
	for version := int16(4); version <= 9; version++ {
		joined := c.join(version, wish{group: group})
		if joined.ErrorCode != 79 || !memberID.MatchString(joined.MemberID) || joined.Generation != -1 || len(joined.Members) != 0 || joined.LeaderID != "" {
			t.Errorf("v%d: %+v", version, joined)
		}
	}
	if listed, ok := c.listedGroup(5, group, nil, nil); !ok || listed.GroupState != "Empty" || listed.GroupType != "classic" || listed.ProtocolType != "" {
		t.Errorf("listed: %+v, %t", listed, ok)
	}
}

func TestG002_old_versions_join_at_once(t *testing.T) {
	// JoinGroup v3 with no member id is parked, and answered after group.initial.rebalance.delay.ms.
	t.Parallel()
	n := start(t, "group.initial.rebalance.delay.ms=700")
	c := n.dial(t)
	group := c.groupID()
	begun := time.Now()
	joined := c.join(3, wish{group: group})
	if took := time.Since(begun); took < 700*time.Millisecond {
		t.Errorf("answered after %s", took)
	}
	if joined.ErrorCode != 0 || joined.Generation != 1 || joined.LeaderID != joined.MemberID || len(joined.Members) != 1 || !memberID.MatchString(joined.MemberID) {
		t.Errorf("%+v", joined)
	}
}

func TestB021_ids_by_version(t *testing.T) {
	// JoinGroup v0-v3 joins directly with a fresh id, v4 and up gets error 79; a static member joins directly in v5 and up.
	t.Parallel()
	c := shared(t).dial(t)
	base := c.groupID()
	for version := int16(0); version <= 9; version++ {
		group := base + "-" + string(rune('0'+version))
		joined := c.join(version, wish{group: group})
		if version < 4 {
			if joined.ErrorCode != 0 || joined.MemberID == "" || joined.Generation != 1 || deref(joined.Protocol) != "range" || len(joined.Members) != 1 {
				t.Errorf("v%d: %+v", version, joined)
			}
		} else if joined.ErrorCode != 79 || joined.MemberID == "" {
			t.Errorf("v%d: %+v", version, joined)
		}
		if version >= 5 {
			instance := "i1"
			static := c.join(version, wish{group: group + "-static", instance: &instance})
			if static.ErrorCode != 0 || !strings.HasPrefix(static.MemberID, "i1-") || static.Generation < 1 {
				t.Errorf("v%d static: %+v", version, static)
			}
		}
	}
}

func TestG007_empty_group_id(t *testing.T) {
	// Group "" is answered 24 by JoinGroup, SyncGroup, Heartbeat and LeaveGroup.
	t.Parallel()
	c := shared(t).dial(t)
	c.groupID()
	if joined := c.join(9, wish{member: "m"}); joined.ErrorCode != 24 || joined.MemberID != "m" {
		t.Errorf("join: %+v", joined)
	}
	if code := c.sync(5, "", "m", 1).ErrorCode; code != 24 {
		t.Errorf("sync: %d", code)
	}
	if code := c.heartbeat("", "m", nil, 1); code != 24 {
		t.Errorf("heartbeat: %d", code)
	}
	if code := c.leave(4, "", leaver{member: "m"}).ErrorCode; code != 24 {
		t.Errorf("leave: %d", code)
	}
}

func TestG008_unknown_group(t *testing.T) {
	// JoinGroup with a member id to a group that does not exist is answered 25, the id echoed.
	t.Parallel()
	c := shared(t).dial(t)
	group := c.groupID()
	if joined := c.join(9, wish{group: group, member: "m"}); joined.ErrorCode != 25 || joined.MemberID != "m" || joined.Protocol != nil {
		t.Errorf("%+v", joined)
	}
}

func TestG009_inconsistent_protocols(t *testing.T) {
	// A join to a Stable consumer group with another type or no common protocol is answered 23; the group is undisturbed.
	t.Parallel()
	n := shared(t)
	c := n.dial(t)
	group := c.groupID()
	members, ids, generation := n.stable(t, group, 1, wish{})
	for name, w := range map[string]wish{
		"type":      {group: group, kind: "connect"},
		"protocols": {group: group, protocols: []string{"sticky=m"}},
	} {
		if joined := c.join(9, w); joined.ErrorCode != 23 || joined.MemberID != "" {
			t.Errorf("%s: %+v", name, joined)
		}
	}
	if code := members[0].heartbeat(group, ids[0], nil, generation); code != 0 {
		t.Errorf("the member's heartbeat: %d", code)
	}
	c.wantState(group, "Stable")
}

func TestG010_empty_protocols(t *testing.T) {
	// A join to an Empty group with type "" or without protocols is answered 23.
	t.Parallel()
	c := shared(t).dial(t)
	group := c.groupID()
	c.join(4, wish{group: group})
	for name, w := range map[string]wish{
		"type":      {group: group, kind: "-"},
		"protocols": {group: group, protocols: []string{}},
	} {
		if joined := c.join(9, w); joined.ErrorCode != 23 || joined.MemberID != "" {
			t.Errorf("%s: %+v", name, joined)
		}
	}
	c.wantState(group, "Empty")
}

func TestG020_static_restart_of_a_follower(t *testing.T) {
	// A static follower that joins again with no id gets a new one at the same generation and its old assignment; the old id is fenced; no one else notices.
	t.Parallel()
	n := shared(t)
	a, s := n.dial(t), n.dial(t)
	group := a.groupID()
	w := wish{group: group}
	w.member = a.join(4, w).MemberID
	leader := w.member
	a.join(5, w)
	instance := "i1"
	static := s.beginJoin(5, wish{group: group, instance: &instance})
	n.dial(t).awaitMembers(group, 2)
	joined := a.join(5, w)
	second := static()
	if joined.ErrorCode != 0 || second.ErrorCode != 0 {
		t.Fatalf("%+v %+v", joined, second)
	}
	a.sync(4, group, leader, joined.Generation, leader+"=a0", second.MemberID+"=a1")
	s.sync(4, group, second.MemberID, joined.Generation)

	again := s.join(9, wish{group: group, instance: &instance})
	if again.ErrorCode != 0 || again.Generation != joined.Generation || again.LeaderID != leader || again.MemberID == second.MemberID || len(again.Members) != 0 || again.SkipAssignment {
		t.Errorf("the replacement: %+v", again)
	}
	if synced := s.sync(5, group, again.MemberID, again.Generation); synced.ErrorCode != 0 || string(synced.MemberAssignment) != "a1" {
		t.Errorf("sync: %+v", synced)
	}
	if code := s.heartbeat(group, second.MemberID, &instance, joined.Generation); code != 82 {
		t.Errorf("old id: heartbeat %d", code)
	}
	if code := a.heartbeat(group, leader, nil, joined.Generation); code != 0 {
		t.Errorf("leader: heartbeat %d", code)
	}
}

// staticLeader makes a Stable group whose one member is static.
func staticLeader(c *client, group, instance string) (member string, generation int32) {
	c.t.Helper()
	joined := c.join(5, wish{group: group, instance: &instance})
	if joined.ErrorCode != 0 {
		c.t.Fatalf("join: %+v", joined)
	}
	if code := c.sync(4, group, joined.MemberID, joined.Generation, joined.MemberID+"=a0").ErrorCode; code != 0 {
		c.t.Fatalf("sync: %d", code)
	}
	return joined.MemberID, joined.Generation
}

func TestG021_static_restart_of_a_leader(t *testing.T) {
	// A static leader that joins again: v9 names the new id as leader, lists the members and skips the assignment; v8 names the old id and lists none.
	t.Parallel()
	c := shared(t).dial(t)
	base := c.groupID()
	instance := "i1"
	old, generation := staticLeader(c, base+"9", instance)
	nine := c.join(9, wish{group: base + "9", instance: &instance})
	if nine.ErrorCode != 0 || nine.Generation != generation || nine.LeaderID != nine.MemberID || nine.MemberID == old || len(nine.Members) != 1 || !nine.SkipAssignment {
		t.Errorf("v9: %+v", nine)
	}
	if synced := c.sync(5, base+"9", nine.MemberID, generation); string(synced.MemberAssignment) != "a0" {
		t.Errorf("v9 sync: %+v", synced)
	}
	old, generation = staticLeader(c, base+"8", instance)
	eight := c.join(8, wish{group: base + "8", instance: &instance})
	if eight.ErrorCode != 0 || eight.Generation != generation || eight.LeaderID != old || len(eight.Members) != 0 {
		t.Errorf("v8: %+v", eight)
	}
	if synced := c.sync(5, base+"8", eight.MemberID, generation); string(synced.MemberAssignment) != "a0" {
		t.Errorf("v8 sync: %+v", synced)
	}
}

func TestG025_fenced_instance(t *testing.T) {
	// After a second process took over an instance id, every API answers the first one 82; an administrator removes the member by its instance id alone.
	t.Parallel()
	n := shared(t)
	c := n.dial(t)
	tp := c.topic(1)
	group := c.groupID()
	instance := "i1"
	old, generation := staticLeader(c, group, instance)
	c.join(9, wish{group: group, instance: &instance})
	if code := c.heartbeat(group, old, &instance, generation); code != 82 {
		t.Errorf("heartbeat: %d", code)
	}
	sync := syncRequest(5, group, old, generation)
	sync.InstanceID = &instance
	if code := do[*kmsg.SyncGroupResponse](c, 5, sync).ErrorCode; code != 82 {
		t.Errorf("sync: %d", code)
	}
	if code := c.commitOffset(8, committer{group, old, &instance, generation}, tp, 1); code != 82 {
		t.Errorf("commit: %d", code)
	}
	if code := c.join(9, wish{group: group, member: old, instance: &instance}).ErrorCode; code != 82 {
		t.Errorf("join: %d", code)
	}
	if left := c.leave(5, group, leaver{old, &instance}); left.ErrorCode != 0 || left.Members[0].ErrorCode != 82 {
		t.Errorf("leave: %+v", left)
	}
	if left := c.leave(5, group, leaver{"", &instance}); left.ErrorCode != 0 || left.Members[0].ErrorCode != 0 || deref(left.Members[0].InstanceID) != instance {
		t.Errorf("leave by the administrator: %+v", left)
	}
	c.wantState(group, "Empty")
}

func TestB050_static_restart_in_each_state(t *testing.T) {
	// A static member that restarts while the group prepares or completes a rebalance takes its place; its old joins and syncs are answered 82.
	t.Parallel()
	n := shared(t)
	watch := n.dial(t)
	instance := "i1"

	t.Run("PreparingRebalance", func(t *testing.T) {
		a, first, second := n.dial(t), n.dial(t), n.dial(t)
		group := a.groupID()
		_, ids, _ := n.stable(t, group, 1, wish{})
		parked := first.beginJoin(5, wish{group: group, instance: &instance})
		watch.awaitMembers(group, 2)
		replacement := second.beginJoin(5, wish{group: group, instance: &instance})
		if code := parked().ErrorCode; code != 82 {
			t.Errorf("the parked join: %d", code)
		}
		joined := a.join(5, wish{group: group, member: ids[0]})
		if taken := replacement(); taken.ErrorCode != 0 || taken.Generation != joined.Generation {
			t.Errorf("the replacement: %+v", taken)
		}
	})
	t.Run("CompletingRebalance", func(t *testing.T) {
		a, first, second := n.dial(t), n.dial(t), n.dial(t)
		group := a.groupID()
		_, ids, _ := n.stable(t, group, 1, wish{})
		parked := first.beginJoin(5, wish{group: group, instance: &instance})
		watch.awaitMembers(group, 2)
		joined := a.join(5, wish{group: group, member: ids[0]})
		old := parked()
		waiting := first.beginSync(4, group, old.MemberID, old.Generation)
		watch.awaitState(group, "CompletingRebalance")
		time.Sleep(20 * time.Millisecond) // the sync leaves no trace before it is answered
		replacement := second.beginJoin(5, wish{group: group, instance: &instance})
		if code := waiting().ErrorCode; code != 82 {
			t.Errorf("the parked sync: %d", code)
		}
		if code := a.sync(4, group, ids[0], joined.Generation).ErrorCode; code != 27 {
			t.Errorf("the leader's sync: %d", code)
		}
		again := a.join(5, wish{group: group, member: ids[0]})
		if taken := replacement(); taken.ErrorCode != 0 || taken.Generation != joined.Generation+1 || again.Generation != taken.Generation {
			t.Errorf("the replacement: %+v, the leader: %+v", taken, again)
		}
	})
}

func TestG030_sync_names_the_protocol(t *testing.T) {
	// SyncGroup v5 without type or name is answered 23, and so is one with a wrong name.
	t.Parallel()
	n := shared(t)
	c := n.dial(t)
	group := c.groupID()
	_, ids, generation := n.stable(t, group, 1, wish{})
	for name, change := range map[string]func(*kmsg.SyncGroupRequest){
		"no type":       func(r *kmsg.SyncGroupRequest) { r.ProtocolType = nil },
		"no name":       func(r *kmsg.SyncGroupRequest) { r.Protocol = nil },
		"another name":  func(r *kmsg.SyncGroupRequest) { r.Protocol = kmsg.StringPtr("sticky") },
		"another type":  func(r *kmsg.SyncGroupRequest) { r.ProtocolType = kmsg.StringPtr("connect") },
		"empty group 5": func(r *kmsg.SyncGroupRequest) { r.Group, r.Protocol = "", nil },
	} {
		req := syncRequest(5, group, ids[0], generation)
		change(req)
		if code := do[*kmsg.SyncGroupResponse](c, 5, req).ErrorCode; code != 23 {
			t.Errorf("%s: %d", name, code)
		}
	}
}

func TestG034_heartbeat_while_preparing(t *testing.T) {
	// While a rebalance is prepared, a heartbeat of the right generation is answered 27, of a wrong one 22.
	t.Parallel()
	n := shared(t)
	c := n.dial(t)
	group := c.groupID()
	members, ids, generation := n.stable(t, group, 1, wish{})
	n.dial(t).beginJoin(3, wish{group: group})
	c.awaitState(group, "PreparingRebalance")
	if code := members[0].heartbeat(group, ids[0], nil, generation); code != 27 {
		t.Errorf("right generation: %d", code)
	}
	if code := members[0].heartbeat(group, ids[0], nil, generation-1); code != 22 {
		t.Errorf("wrong generation: %d", code)
	}
}

func TestG035_leave_of_an_unknown_member(t *testing.T) {
	// LeaveGroup of an unknown member: v2 25 at the top, v3 25 for the member alone.
	t.Parallel()
	n := shared(t)
	c := n.dial(t)
	group := c.groupID()
	n.stable(t, group, 3, wish{})
	for version := int16(0); version <= 2; version++ {
		if left := c.leave(version, group, leaver{member: "stranger"}); left.ErrorCode != 25 {
			t.Errorf("v%d: %+v", version, left)
		}
	}
	for version := int16(3); version <= 5; version++ {
		if left := c.leave(version, group, leaver{member: "stranger"}); left.ErrorCode != 0 || len(left.Members) != 1 || left.Members[0].ErrorCode != 25 || left.Members[0].MemberID != "stranger" {
			t.Errorf("v%d: %+v", version, left)
		}
		if left := c.leave(version, group+"-unknown", leaver{member: "stranger"}); left.ErrorCode != 0 || len(left.Members) != 1 || left.Members[0].ErrorCode != 25 {
			t.Errorf("v%d, unknown group: %+v", version, left)
		}
	}
	c.wantState(group, "Stable")
}

func TestG036_leave_in_a_batch(t *testing.T) {
	// LeaveGroup v3 of two members and a stranger: 0, 0, 25 in the request's order, and one rebalance.
	t.Parallel()
	n := shared(t)
	c := n.dial(t)
	group := c.groupID()
	members, ids, generation := n.stable(t, group, 3, wish{})
	left := c.leave(3, group, leaver{member: ids[1]}, leaver{member: "stranger"}, leaver{member: ids[2]})
	var codes []int16
	for i, m := range left.Members {
		codes = append(codes, m.ErrorCode)
		if want := []string{ids[1], "stranger", ids[2]}[i]; m.MemberID != want {
			t.Errorf("member %d is %s, want %s", i, m.MemberID, want)
		}
	}
	if left.ErrorCode != 0 || !slices.Equal(codes, []int16{0, 25, 0}) {
		t.Errorf("%+v", left)
	}
	if code := members[0].heartbeat(group, ids[0], nil, generation); code != 27 {
		t.Errorf("heartbeat of who stayed: %d", code)
	}
	if joined := members[0].join(5, wish{group: group, member: ids[0]}); joined.ErrorCode != 0 || joined.Generation != generation+1 {
		t.Errorf("%+v", joined)
	}
}

func TestB019_leaving_ends_a_rebalance(t *testing.T) {
	// A member that leaves during a rebalance lets it finish at once; one that falls silent within its session; when all fall silent the group is Empty in the end.
	t.Parallel()
	n := start(t, "group.min.session.timeout.ms=300")
	watch := n.dial(t)
	t.Run("leaves", func(t *testing.T) {
		group := watch.groupID() + "-leaves"
		members, ids, _ := n.stable(t, group, 3, wish{rebalance: 60000})
		fourth := n.dial(t).beginJoin(3, wish{group: group, rebalance: 60000})
		watch.awaitState(group, "PreparingRebalance")
		one := members[0].beginJoin(5, wish{group: group, member: ids[0], rebalance: 60000})
		two := members[1].beginJoin(5, wish{group: group, member: ids[1], rebalance: 60000})
		begun := time.Now()
		members[2].leave(3, group, leaver{member: ids[2]})
		for _, answer := range []func() *kmsg.JoinGroupResponse{one, two, fourth} {
			if joined := answer(); joined.ErrorCode != 0 {
				t.Errorf("%+v", joined)
			}
		}
		if took := time.Since(begun); took > 5*time.Second {
			t.Errorf("took %s", took)
		}
	})
	t.Run("silent", func(t *testing.T) {
		group := watch.groupID() + "-silent"
		members, ids, _ := n.stable(t, group, 3, wish{rebalance: 60000, session: 500})
		fourth := n.dial(t).beginJoin(3, wish{group: group, rebalance: 60000, session: 500})
		one := members[0].beginJoin(5, wish{group: group, member: ids[0], rebalance: 60000, session: 500})
		two := members[1].beginJoin(5, wish{group: group, member: ids[1], rebalance: 60000, session: 500})
		members[2].conn.Close()
		begun := time.Now()
		for _, answer := range []func() *kmsg.JoinGroupResponse{one, two, fourth} {
			if joined := answer(); joined.ErrorCode != 0 {
				t.Errorf("%+v", joined)
			}
		}
		if took := time.Since(begun); took > 5*time.Second {
			t.Errorf("took %s", took)
		}
	})
	t.Run("all silent", func(t *testing.T) {
		group := watch.groupID() + "-all"
		members, _, _ := n.stable(t, group, 3, wish{rebalance: 600, session: 500})
		for _, m := range members {
			m.conn.Close()
		}
		watch.awaitState(group, "Empty")
	})
}

func TestG037_describe_by_version(t *testing.T) {
	// DescribeGroups of an unknown group: Dead with 0 up to v5, 69 with a message in v6; protocol and metadata only of a Stable group.
	t.Parallel()
	n := shared(t)
	c := n.dial(t)
	group := c.groupID()
	for version := int16(0); version <= 6; version++ {
		unknown := c.describeGroup(version, group+"-unknown")
		wantCode := int16(0)
		if version >= 6 {
			wantCode = 69
		}
		if unknown.State != "Dead" || unknown.ErrorCode != wantCode || len(unknown.Members) != 0 || unknown.AuthorizedOperations != -2147483648 {
			t.Errorf("v%d: %+v", version, unknown)
		}
		if version >= 6 && deref(unknown.ErrorMessage) == "" {
			t.Errorf("v%d: no message", version)
		}
	}
	_, ids, _ := n.stable(t, group, 1, wish{})
	for version := int16(0); version <= 6; version++ {
		found := c.describeGroup(version, group)
		if found.ErrorCode != 0 || found.State != "Stable" || found.ProtocolType != "consumer" || found.Protocol != "range" || len(found.Members) != 1 {
			t.Fatalf("v%d: %+v", version, found)
		}
		m := found.Members[0]
		if m.MemberID != ids[0] || m.ClientID != "node-test" || m.ClientHost != "/127.0.0.1" || string(m.ProtocolMetadata) != "m" || string(m.MemberAssignment) != "a0" || m.InstanceID != nil {
			t.Errorf("v%d: %+v", version, m)
		}
	}
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Groups, req.IncludeAuthorizedOperations = []string{group}, true
	if got := do[*kmsg.DescribeGroupsResponse](c, 6, req).Groups[0].AuthorizedOperations; got != 3400 {
		t.Errorf("operations %d, want 3400", got)
	}
}

func TestG038_describe_while_completing(t *testing.T) {
	// A group that completes a rebalance shows its members without protocol and metadata.
	t.Parallel()
	c := shared(t).dial(t)
	group := c.groupID()
	c.join(3, wish{group: group})
	found := c.describeGroup(5, group)
	if found.State != "CompletingRebalance" || found.Protocol != "" || found.ProtocolType != "consumer" || len(found.Members) != 1 || len(found.Members[0].ProtocolMetadata) != 0 {
		t.Errorf("%+v", found)
	}
}

func TestB054_empty_and_parked_groups(t *testing.T) {
	// An Empty group with commits keeps its protocol type; one with a parked member is described; the filters of ListGroups ignore case.
	t.Parallel()
	n := shared(t)
	c := n.dial(t)
	tp := c.topic(1)
	group := c.groupID()
	members, ids, generation := n.stable(t, group, 1, wish{})
	if code := members[0].commitOffset(8, committer{group, ids[0], nil, generation}, tp, 5); code != 0 {
		t.Fatalf("commit: %d", code)
	}
	n.dial(t).beginJoin(3, wish{group: group})
	c.awaitState(group, "PreparingRebalance")
	if found := c.describeGroup(5, group); len(found.Members) != 2 || found.Protocol != "" {
		t.Errorf("with a parked member: %+v", found)
	}
	emptied := c.freshName()
	members, ids, _ = n.stable(t, emptied, 1, wish{})
	members[0].leave(3, emptied, leaver{member: ids[0]})
	if found := c.describeGroup(5, emptied); found.State != "Empty" || found.ProtocolType != "consumer" || found.ErrorCode != 0 {
		t.Errorf("emptied: %+v", found)
	}
}

func TestG039_list_groups(t *testing.T) {
	// ListGroups v3 lists all; v4 filters by state, trimmed and in any case; v5 by type; an unknown word matches nothing and is no error.
	t.Parallel()
	n := shared(t)
	c := n.dial(t)
	tp := c.topic(1)
	stable, simple := c.groupID(), c.freshName()
	n.stable(t, stable, 1, wish{})
	if code := c.commitOffset(8, alone(simple), tp, 1); code != 0 {
		t.Fatalf("commit: %d", code)
	}
	for version := int16(0); version <= 5; version++ {
		if found, ok := c.listedGroup(version, stable, nil, nil); !ok || found.ProtocolType != "consumer" || version >= 4 && found.GroupState != "Stable" || version >= 5 && found.GroupType != "classic" {
			t.Errorf("v%d: %+v, %t", version, found, ok)
		}
	}
	if found, ok := c.listedGroup(5, simple, nil, nil); !ok || found.ProtocolType != "" || found.GroupState != "Empty" || found.GroupType != "classic" {
		t.Errorf("simple group: %+v, %t", found, ok)
	}
	if _, ok := c.listedGroup(3, stable, []string{"Empty"}, []string{"consumer"}); !ok {
		t.Error("v3 has no filters, and left the stable group out")
	}
	for _, states := range [][]string{{"stable "}, {"STABLE", "Bored"}} {
		if _, ok := c.listedGroup(4, stable, states, []string{"consumer"}); !ok {
			t.Errorf("v4, %q: the stable group is left out", states)
		}
		if _, ok := c.listedGroup(4, simple, states, nil); ok {
			t.Errorf("v4, %q: the simple group is listed", states)
		}
	}
	for _, filter := range []struct {
		states, types  []string
		stable, simple bool
	}{
		{[]string{"stable "}, nil, true, false},
		{[]string{"EMPTY"}, nil, false, true},
		{[]string{"Stable", "empty"}, nil, true, true},
		{nil, []string{"Classic"}, true, true},
		{nil, []string{"Consumer"}, false, false},
		{[]string{"Bored"}, nil, false, false},
		{nil, []string{"strange"}, false, false},
	} {
		if _, ok := c.listedGroup(5, stable, filter.states, filter.types); ok != filter.stable {
			t.Errorf("%q %q: the stable group is listed: %t", filter.states, filter.types, ok)
		}
		if _, ok := c.listedGroup(5, simple, filter.states, filter.types); ok != filter.simple {
			t.Errorf("%q %q: the simple group is listed: %t", filter.states, filter.types, ok)
		}
	}
}

func TestG040_delete_groups(t *testing.T) {
	// DeleteGroups of a Stable, an Empty and an unknown group: 68, 0, 69; the offsets go with the group.
	t.Parallel()
	n := shared(t)
	c := n.dial(t)
	tp := c.topic(1)
	group := c.groupID()
	n.stable(t, group, 1, wish{})
	for version := int16(0); version <= 3; version++ {
		empty := c.freshName()
		c.commitOffset(8, alone(empty), tp, 7)
		req := kmsg.NewPtrDeleteGroupsRequest()
		req.Groups = []string{group, empty, empty + "-unknown", empty}
		resp := do[*kmsg.DeleteGroupsResponse](c, version, req)
		codes := map[string]int16{}
		for _, g := range resp.Groups {
			codes[g.Group] = g.ErrorCode
		}
		if len(resp.Groups) != 3 || codes[group] != 68 || codes[empty] != 0 || codes[empty+"-unknown"] != 69 {
			t.Errorf("v%d: %v", version, codes)
		}
		c.wantStored(7, empty, tp, storedOffset{0, -1, -1, ""})
		if _, ok := c.listedGroup(5, empty, nil, nil); ok {
			t.Error("the deleted group is still listed")
		}
	}
}

func TestB052_named_coordinators_answer(t *testing.T) {
	// On a fresh node, a group's coordinator is named after a few 15s at most, and the named broker never says it is not the one.
	t.Parallel()
	c := start(t, "offsets.topic.num.partitions=50").dial(t)
	tries := 0
	for i := range 50 {
		group := "fresh-" + string(rune('a'+i%26)) + string(rune('a'+i/26))
		for {
			find := kmsg.NewPtrFindCoordinatorRequest()
			find.CoordinatorKey = group
			found := do[*kmsg.FindCoordinatorResponse](c, 3, find)
			if found.ErrorCode == 15 {
				if tries++; tries > 2000 {
					t.Fatal("no coordinator")
				}
				time.Sleep(2 * time.Millisecond)
				continue
			}
			if found.ErrorCode != 0 || found.NodeID != 1 || found.Host != "127.0.0.1" {
				t.Fatalf("%+v", found)
			}
			joined := c.join(3, wish{group: group})
			if joined.ErrorCode == 14 {
				time.Sleep(time.Millisecond)
				continue
			}
			if joined.ErrorCode != 0 {
				t.Fatalf("group %d: %d from the named coordinator", i, joined.ErrorCode)
			}
			break
		}
	}
}

func TestFindCoordinator_every_version(t *testing.T) {
	// FindCoordinator answers one key up to v3 and several from v4 on, in their order.
	t.Parallel()
	c := shared(t).dial(t)
	group := c.groupID()
	for version := int16(0); version <= 6; version++ {
		req := kmsg.NewPtrFindCoordinatorRequest()
		req.CoordinatorKey, req.CoordinatorKeys = group, []string{group, "another"}
		found := do[*kmsg.FindCoordinatorResponse](c, version, req)
		if version < 4 {
			if found.ErrorCode != 0 || found.NodeID != 1 || found.Port == 0 {
				t.Errorf("v%d: %+v", version, found)
			}
			continue
		}
		if len(found.Coordinators) != 2 || found.Coordinators[0].Key != group || found.Coordinators[1].Key != "another" || found.Coordinators[1].ErrorCode != 0 || found.Coordinators[1].NodeID != 1 {
			t.Errorf("v%d: %+v", version, found)
		}
	}
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.CoordinatorType, req.CoordinatorKey = 7, group
	if found := do[*kmsg.FindCoordinatorResponse](c, 3, req); found.ErrorCode != 42 || found.NodeID != -1 {
		t.Errorf("unknown type: %+v", found)
	}
}
