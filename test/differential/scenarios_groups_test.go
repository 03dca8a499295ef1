//go:build interop

package differential

import (
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func init() {
	scenarios = append(scenarios,
		scenario{name: "join", needs: []int16{11, 12, 13, 14, 15}, turns: 6, play: joinPlay},
		scenario{name: "rebalance", needs: []int16{11, 12, 13, 14, 15}, turns: 3, play: rebalancePlay},
		scenario{name: "static", needs: []int16{11, 12, 13, 14, 15}, turns: 3, play: staticPlay},
		scenario{name: "offsets", needs: []int16{8, 9, 47, 42}, turns: 4, play: offsetsPlay},
		scenario{name: "coordinators", needs: []int16{10}, turns: 4, play: coordinatorsPlay},
		scenario{name: "listing-groups", needs: []int16{15, 16, 42}, alone: true, turns: 2, play: listGroupsPlay},
	)
}

func heartbeat(group, member string, generation int32, instance *string) *kmsg.HeartbeatRequest {
	req := kmsg.NewPtrHeartbeatRequest()
	req.Group, req.MemberID, req.Generation, req.InstanceID = group, member, generation, instance
	return req
}

func leave(group string, members ...string) *kmsg.LeaveGroupRequest {
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group = group
	for _, m := range members {
		req.MemberID = m
		one := kmsg.NewLeaveGroupRequestMember()
		one.MemberID = m
		req.Members = append(req.Members, one)
	}
	return req
}

func describeGroups(groups ...string) *kmsg.DescribeGroupsRequest {
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Groups = groups
	return req
}

func joinPlay(l *lane) {
	v := l.version(11)
	m := l.joined(v)
	nobodys := l.fresh("never-was")
	l.do(l.version(15), describeGroups(m.group, m.group, nobodys, ""))
	l.do(l.version(12), heartbeat(m.group, member(m.symbol), 1, nil)) // before the sync
	l.do(l.version(8), memberCommit(m, 1))
	l.do(l.version(14), syncRequest(m, true))
	l.do(l.version(14), syncRequest(m, false))
	l.do(l.version(12), heartbeat(m.group, member(m.symbol), 1, nil))
	l.do(l.version(15), describeGroups(m.group))
	for _, g := range []int32{0, 2, -1, -2} {
		l.do(l.version(12), heartbeat(m.group, member(m.symbol), g, nil))
		wrong := *m
		wrong.generation = g
		l.do(l.version(14), syncRequest(&wrong, true))
		l.do(l.version(8), memberCommit(&wrong, 5))
	}
	for _, who := range []string{"", "nobody", member("never-was")} {
		l.do(l.version(12), heartbeat(m.group, who, 1, nil))
		req := syncRequest(m, true)
		req.MemberID = who
		l.do(l.version(14), req)
		l.do(l.version(13), leave(m.group, who))
		commit := memberCommit(m, 5)
		commit.MemberID = who
		l.do(l.version(8), commit)
		l.do(v, joinRequest(m.group, who+"x", v))
	}
	for _, group := range []string{"", nobodys, l.fresh(strings.Repeat("j", 300)), l.fresh("gr\u00fcppe"), l.fresh("a b")} {
		l.do(l.version(12), heartbeat(group, member(m.symbol), 1, nil))
		req := syncRequest(m, true)
		req.Group = group
		l.do(l.version(14), req)
		l.do(l.version(13), leave(group, member(m.symbol)))
		l.do(l.version(13), leave(group))
		l.do(l.version(11, 4), joinRequest(group, "", v))
		l.do(l.version(11), joinRequest(group, "unknown", v))
	}
	// Wrong protocol names in sync.
	for _, p := range [][2]*string{{ptr("other"), ptr("range")}, {ptr("consumer"), ptr("other")}, {nil, nil}, {ptr(""), ptr("")}, {nil, ptr("range")}} {
		req := syncRequest(m, false)
		req.ProtocolType, req.Protocol = p[0], p[1]
		l.do(l.version(14, 5), req)
	}
	// Joins that cannot be.
	for _, change := range []func(*kmsg.JoinGroupRequest){
		func(r *kmsg.JoinGroupRequest) { r.SessionTimeoutMillis = 1 },
		func(r *kmsg.JoinGroupRequest) { r.SessionTimeoutMillis = 1 << 30 },
		func(r *kmsg.JoinGroupRequest) { r.SessionTimeoutMillis = -1 },
		func(r *kmsg.JoinGroupRequest) { r.Protocols = nil },
		func(r *kmsg.JoinGroupRequest) { r.ProtocolType = "" },
		func(r *kmsg.JoinGroupRequest) { r.Protocols = append(r.Protocols, r.Protocols[0]) },
		func(r *kmsg.JoinGroupRequest) { r.Protocols[0].Metadata = nil; r.Protocols[0].Name = "" },
		func(r *kmsg.JoinGroupRequest) { r.Protocols[0].Metadata = []byte("rubbish") },
	} {
		group := l.fresh("g")
		l.join(mainConn, group, group, l.version(11), change)
		if l.chance(30) {
			l.do(l.version(15), describeGroups(group))
		}
	}
	nameless := l.fresh("g")
	l.join(mainConn, nameless, nameless, l.version(11, 7), func(r *kmsg.JoinGroupRequest) { r.Protocols[0].Name = "" })
	for _, change := range []func(*kmsg.JoinGroupRequest){
		func(r *kmsg.JoinGroupRequest) { r.ProtocolType = "other" },
		func(r *kmsg.JoinGroupRequest) { r.Protocols = r.Protocols[:1]; r.Protocols[0].Name = "other" },
		func(r *kmsg.JoinGroupRequest) { r.ProtocolType = "" },
	} {
		req := joinRequest(m.group, "", v)
		change(req)
		l.do(l.version(11), req)
	}
	// Again as the same member: at once, in a next generation where something changed.
	again := joinRequest(m.group, member(m.symbol), v)
	l.do(l.version(11), again)
	l.do(l.version(12), heartbeat(m.group, member(m.symbol), 1, nil))
	l.do(l.version(12), heartbeat(m.group, member(m.symbol), 2, nil))
	m.generation = 2
	l.do(l.version(14), syncRequest(m, true))
	changed := joinRequest(m.group, member(m.symbol), v)
	changed.Protocols[0].Metadata = append(changed.Protocols[0].Metadata, 7)
	l.do(l.version(11), changed)
	l.do(l.version(15), describeGroups(m.group))
	m.generation = 3
	l.do(l.version(14), syncRequest(m, false)) // the leader without assignments
	l.do(l.version(15), describeGroups(m.group))
	l.do(l.version(8), memberCommit(m, 9))
	l.do(l.version(42), deleteGroups(m.group))
	l.do(l.version(13), leave(m.group, member(m.symbol)))
	l.do(l.version(13), leave(m.group, member(m.symbol)))
	l.do(l.version(12), heartbeat(m.group, member(m.symbol), 3, nil))
	l.do(l.version(15), describeGroups(m.group))
	l.do(l.version(14), syncRequest(m, true))
	l.do(l.version(11), joinRequest(m.group, member(m.symbol), v))
	next := &membership{group: m.group, symbol: m.group + "/n"}
	l.join(mainConn, m.group, next.symbol, l.version(11), nil)
	l.do(l.version(15), describeGroups(m.group))
	l.do(l.version(13), leave(m.group, member(next.symbol), "nobody", member(next.symbol)))
	l.do(l.version(42), deleteGroups(m.group, l.fresh("never-was")))
	l.do(l.version(15), describeGroups(m.group))
	// A member that has its id and never comes.
	if v >= 4 {
		group := l.fresh("pending")
		l.do(v, joinRequest(group, "", v))
		l.do(l.version(15), describeGroups(group))
		l.do(l.version(42), deleteGroups(group))
		l.do(l.version(12), heartbeat(group, member(group), 0, nil))
	}
	// A member that has its id, and comes as a static one.
	confused := l.fresh("confused")
	for _, instance := range []*string{nil, ptr("static"), nil} {
		req := joinRequest(confused, member(confused), 0)
		if instance == nil {
			req.MemberID = ""
		}
		req.InstanceID = instance
		l.keepText("member:"+confused, l.do(l.version(11, 5), req), func(resp kmsg.Response) string { return resp.(*kmsg.JoinGroupResponse).MemberID })
	}
}

func memberCommit(m *membership, offset int64) *kmsg.OffsetCommitRequest {
	req := commitRequest(m.group, "no-such-topic", 0, offset)
	req.Generation, req.MemberID = m.generation, member(m.symbol)
	return req
}

func deleteGroups(groups ...string) *kmsg.DeleteGroupsRequest {
	req := kmsg.NewPtrDeleteGroupsRequest()
	req.Groups = groups
	return req
}

// rebalancePlay has a second member come and go.
func rebalancePlay(l *lane) {
	a := l.joined(l.version(11))
	b := &membership{group: a.group, symbol: a.group + "/b"}
	l.do(l.version(14), syncRequest(a, true))
	v := l.version(11)
	req := joinRequest(a.group, "", v)
	if v >= 4 {
		first := l.on("second", v, req)
		l.keepText("member:"+b.symbol, first, func(resp kmsg.Response) string { return resp.(*kmsg.JoinGroupResponse).MemberID })
		req = joinRequest(a.group, member(b.symbol), v)
	}
	waiting := l.send("second", v, req)
	// The first member learns by its heartbeat; it may be a moment until the second has joined.
	l.until(func() bool {
		got := l.attempt(mainConn, l.version(12), heartbeat(a.group, member(a.symbol), 1, nil))
		return got.ok()
	})
	l.do(l.version(12), heartbeat(a.group, member(a.symbol), 1, nil))
	l.do(l.version(14), syncRequest(a, false))
	l.do(l.version(8), memberCommit(a, 3))
	l.do(l.version(15), describeGroups(a.group))
	l.do(l.version(11), joinRequest(a.group, member(a.symbol), v))
	joined := l.await(waiting)
	l.keepText("member:"+b.symbol, joined, func(resp kmsg.Response) string { return resp.(*kmsg.JoinGroupResponse).MemberID })
	a.generation, b.generation = 2, 2
	l.do(l.version(15), describeGroups(a.group))
	follower := l.send("second", l.version(14), syncRequest(b, false))
	lead := syncRequest(a, true)
	for _, m := range []*membership{b} {
		as := kmsg.NewSyncGroupRequestGroupAssignment()
		as.MemberID, as.MemberAssignment = member(m.symbol), []byte("\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01")
		lead.GroupAssignment = append(lead.GroupAssignment, as)
	}
	as := kmsg.NewSyncGroupRequestGroupAssignment()
	as.MemberID, as.MemberAssignment = "nobody", []byte("x")
	lead.GroupAssignment = append(lead.GroupAssignment, as)
	l.do(l.version(14), lead)
	l.await(follower)
	l.do(l.version(15), describeGroups(a.group))
	l.on("second", l.version(12), heartbeat(b.group, member(b.symbol), 2, nil))
	// The follower joins again as it is: an answer at once, no rebalance.
	l.on("second", l.version(11), joinRequest(b.group, member(b.symbol), v))
	l.do(l.version(12), heartbeat(a.group, member(a.symbol), 2, nil))
	// The second leaves; the first learns.
	l.on("second", l.version(13), leave(b.group, member(b.symbol)))
	l.do(l.version(12), heartbeat(a.group, member(a.symbol), 2, nil))
	l.do(l.version(11), joinRequest(a.group, member(a.symbol), v))
	a.generation = 3
	l.do(l.version(12), heartbeat(a.group, member(a.symbol), 3, nil))
	l.do(l.version(14), syncRequest(a, true))
	l.do(l.version(15), describeGroups(a.group))
	l.do(l.version(13), leave(a.group, member(a.symbol)))
	l.do(l.version(15), describeGroups(a.group))
}

// until waits until a thing is no longer so.
func (l *lane) until(so func() bool) {
	for i := 0; i < 50 && so(); i++ {
		l.pause()
	}
}

func staticPlay(l *lane) {
	group := l.fresh("static")
	join := func(name, id, instance string, change func(*kmsg.JoinGroupRequest)) sent {
		req := joinRequest(group, id, 0)
		req.InstanceID = &instance
		if change != nil {
			change(req)
		}
		got := l.do(l.version(11, 5), req)
		l.keepText("member:"+name, got, func(resp kmsg.Response) string { return resp.(*kmsg.JoinGroupResponse).MemberID })
		return got
	}
	first := l.fresh("m")
	join(first, "", "one", nil)
	m := &membership{group: group, symbol: first, generation: 1}
	sync := syncRequest(m, true)
	sync.InstanceID = ptr("one")
	l.do(l.version(14, 3), sync)
	l.do(l.version(15, 4), describeGroups(group))
	l.do(l.version(12, 3), heartbeat(group, member(first), 1, ptr("one")))
	l.do(l.version(12, 3), heartbeat(group, member(first), 1, ptr("two")))
	l.do(l.version(12, 3), heartbeat(group, "nobody", 1, ptr("one")))
	l.do(l.version(12, 3), heartbeat(group, member(first), 2, ptr("one")))
	// The same instance comes back without its member id: a new id, the same generation, no rebalance.
	second := l.fresh("m")
	join(second, "", "one", nil)
	l.do(l.version(12, 3), heartbeat(group, member(first), 1, ptr("one")))
	l.do(l.version(12), heartbeat(group, member(first), 1, nil))
	l.do(l.version(12, 3), heartbeat(group, member(second), 1, ptr("one")))
	l.do(l.version(15, 4), describeGroups(group))
	fenced := commitRequest(group, "no-such-topic", 0, 1)
	fenced.Generation, fenced.MemberID, fenced.InstanceID = 1, member(first), ptr("one")
	l.do(l.version(8, 7), fenced)
	join(l.fresh("m"), member(first), "one", nil)
	join(l.fresh("m"), "nobody", "two", nil)
	// With another subscription: the group rebalances.
	third := l.fresh("m")
	join(third, "", "one", func(r *kmsg.JoinGroupRequest) { r.Protocols[0].Metadata = append(r.Protocols[0].Metadata, 1) })
	l.do(l.version(15, 4), describeGroups(group))
	for _, instance := range []string{"", ".", "..", "sl/ash", "sp ace", strings.Repeat("i", 249), strings.Repeat("i", 250), "\u00fc"} {
		req := joinRequest(l.fresh("g"), "", 0)
		req.InstanceID = &instance
		l.do(l.version(11, 5), req)
	}
	// Leaving by instance.
	for _, ids := range [][2]string{{"", "two"}, {"nobody", "one"}, {member(first), "one"}, {"", ""}, {"", "one"}, {"", "one"}} {
		req := kmsg.NewPtrLeaveGroupRequest()
		req.Group = group
		one := kmsg.NewLeaveGroupRequestMember()
		one.MemberID, one.InstanceID, one.Reason = ids[0], &ids[1], ptr("reason")
		req.Members = append(req.Members, one)
		l.do(l.version(13, 3), req)
	}
	l.do(l.version(15, 4), describeGroups(group))
	none := kmsg.NewPtrLeaveGroupRequest()
	none.Group = group
	l.do(l.version(13, 3), none)
}

func offsetsPlay(l *lane) {
	topic, other, group := l.fresh("t"), l.fresh("t"), l.fresh("g")
	l.createTopic(topic, 3)
	l.createTopic(other, 1)
	commit := func(version int16, change func(*kmsg.OffsetCommitRequest)) {
		req := kmsg.NewPtrOffsetCommitRequest()
		req.Group, req.Generation = group, -1
		change(req)
		l.do(version, req)
	}
	fetch := func(version int16, groups ...func() (string, []string, []int32)) {
		req := kmsg.NewPtrOffsetFetchRequest()
		req.RequireStable = l.chance(20)
		for _, g := range groups {
			name, topics, partitions := g()
			one := kmsg.NewOffsetFetchRequestGroup()
			one.Group, one.MemberEpoch = name, -1
			req.Group = name
			req.Topics = nil
			for _, t := range topics {
				gt := kmsg.NewOffsetFetchRequestGroupTopic()
				gt.Topic, gt.TopicID, gt.Partitions = t, topicID(t), partitions
				one.Topics = append(one.Topics, gt)
				req.Topics = append(req.Topics, kmsg.OffsetFetchRequestTopic{Topic: t, Partitions: partitions})
			}
			if topics != nil && len(topics) == 0 {
				one.Topics, req.Topics = []kmsg.OffsetFetchRequestGroupTopic{}, []kmsg.OffsetFetchRequestTopic{}
			}
			req.Groups = append(req.Groups, one)
		}
		l.do(version, req)
	}
	of := func(group string, topics []string, partitions ...int32) func() (string, []string, []int32) {
		return func() (string, []string, []int32) { return group, topics, partitions }
	}
	fetch(l.version(9), of(group, []string{topic}, 0, 1))
	fetch(l.version(9, 2), of(group, nil))
	commit(l.version(8), func(r *kmsg.OffsetCommitRequest) {
		addCommit(r, topic, 0, 5)
		addCommit(r, topic, 1, 6)
		addCommit(r, "no-such-topic", 0, 7)
		addCommit(r, "bad name", 0, 7)
		addCommit(r, "", 0, 7)
		addCommit(r, topic, 9, 8)
		addCommit(r, topic, -1, 8)
		addCommit(r, other, 0, -1)
	})
	fetch(l.version(9), of(group, []string{topic, other, "no-such-topic"}, 0, 1, 2, 9, -1))
	fetch(l.version(9, 2), of(group, nil))
	fetch(l.version(9), of(group, []string{}))
	for _, at := range []int64{0, -1, -2, 1 << 62, -1 << 63} {
		commit(l.version(8), func(r *kmsg.OffsetCommitRequest) { addCommit(r, topic, 0, at) })
		fetch(l.version(9), of(group, []string{topic}, 0))
	}
	for _, size := range []int{0, 1, 4095, 4096, 4097, 30000} {
		commit(l.version(8), func(r *kmsg.OffsetCommitRequest) {
			addCommit(r, topic, 2, int64(size))
			r.Topics[0].Partitions[0].Metadata = ptr(strings.Repeat("m", size))
			addCommit(r, other, 0, 3)
		})
	}
	commit(l.version(8), func(r *kmsg.OffsetCommitRequest) {
		addCommit(r, topic, 2, 1)
		r.Topics[0].Partitions[0].Metadata = nil
	})
	fetch(l.version(9), of(group, []string{topic}, 2))
	for _, epoch := range []int32{-1, 0, 5, -2, 1<<31 - 1} {
		commit(l.version(8, 6), func(r *kmsg.OffsetCommitRequest) {
			addCommit(r, topic, 0, 10)
			r.Topics[0].Partitions[0].LeaderEpoch = epoch
		})
		fetch(l.version(9, 5), of(group, []string{topic}, 0))
	}
	for _, retention := range []int64{0, 1, -1, -2, 1 << 40} {
		commit(l.version(8, 2, 4), func(r *kmsg.OffsetCommitRequest) { addCommit(r, topic, 0, 11); r.RetentionTimeMillis = retention })
	}
	commit(l.version(8), func(r *kmsg.OffsetCommitRequest) { addCommit(r, topic, 0, 12); addCommit(r, topic, 0, 13) })
	fetch(l.version(9), of(group, []string{topic, topic}, 0, 0))
	commit(l.version(8), func(r *kmsg.OffsetCommitRequest) {})
	commit(l.version(8), func(r *kmsg.OffsetCommitRequest) { addCommit(r, topic, 0, 12); r.Topics[0].Partitions = nil })
	for _, g := range []int32{0, 1, -2} {
		commit(l.version(8), func(r *kmsg.OffsetCommitRequest) { addCommit(r, topic, 0, 14); r.Generation = g })
	}
	commit(l.version(8), func(r *kmsg.OffsetCommitRequest) { addCommit(r, topic, 0, 14); r.MemberID = "nobody" })
	commit(l.version(8, 7), func(r *kmsg.OffsetCommitRequest) { addCommit(r, topic, 0, 14); r.InstanceID = ptr("nobody") })
	for _, name := range []string{"", l.fresh("sp ace"), l.fresh(strings.Repeat("g", 300))} {
		commit(l.version(8), func(r *kmsg.OffsetCommitRequest) { addCommit(r, topic, 0, 14); r.Group = name })
		fetch(l.version(9), of(name, []string{topic}, 0))
		fetch(l.version(9, 2), of(name, nil))
	}
	fetch(l.version(9, 8), of(group, []string{topic}, 0), of(l.fresh("never-was"), nil), of("", []string{topic}, 1), of(group, nil))
	fetch(l.version(9, 8))
	if l.versions[9][1] >= 9 {
		for _, epoch := range []int32{0, 1, -2} {
			req := kmsg.NewPtrOffsetFetchRequest()
			one := kmsg.NewOffsetFetchRequestGroup()
			one.Group, one.MemberID, one.MemberEpoch = group, ptr("nobody"), epoch
			gt := kmsg.NewOffsetFetchRequestGroupTopic()
			gt.Topic, gt.TopicID, gt.Partitions = topic, topicID(topic), []int32{0}
			one.Topics = append(one.Topics, gt)
			req.Groups = append(req.Groups, one)
			l.do(l.version(9, 9), req)
		}
	}
	forget := func(group string, at ...any) {
		req := kmsg.NewPtrOffsetDeleteRequest()
		req.Group = group
		for i := 0; i < len(at); i += 2 {
			t := kmsg.NewOffsetDeleteRequestTopic()
			t.Topic = at[i].(string)
			t.Partitions = append(t.Partitions, kmsg.OffsetDeleteRequestTopicPartition{Partition: int32(at[i+1].(int))})
			req.Topics = append(req.Topics, t)
		}
		l.do(0, req)
	}
	forget(group, topic, 0)
	forget(group, topic, 0)
	forget(group, topic, 1, topic, 2, other, 0)
	forget(group, topic, 9, "no-such-topic", 0, "bad name", 0, "", 0, other, -1)
	forget(group)
	forget(l.fresh("never-was"), topic, 0)
	forget("", topic, 0)
	fetch(l.version(9, 2), of(group, nil))
	m := l.joined(l.version(11))
	l.do(l.version(14), syncRequest(m, true))
	forget(m.group, topic, 0)
	l.do(l.version(42), deleteGroups(m.group, group))
	commit(l.version(8), func(r *kmsg.OffsetCommitRequest) { addCommit(r, topic, 0, 12) })
	l.do(l.version(42), deleteGroups(group, group, l.fresh("never-was"), ""))
	l.do(l.version(42), deleteGroups())
	fetch(l.version(9, 2), of(group, nil))
	// The topic goes, and its offsets with it.
	commit(l.version(8), func(r *kmsg.OffsetCommitRequest) { addCommit(r, other, 0, 12); addCommit(r, topic, 0, 3) })
	l.finish(l.do(l.version(20), deleteRequest(other, false)))
	fetch(l.version(9, 2, 9), of(group, nil))
	fetch(l.version(9, 1, 9), of(group, []string{other, topic}, 0))
	l.do(l.version(42), deleteGroups(group))
}

func coordinatorsPlay(l *lane) {
	for _, kind := range []int8{0, 1, 2, 3, -1, 127} {
		for _, key := range []string{"a-group", "", "sp ace", "AAAAAAAAAAAAAAAAAAAAAA:x:0", "group:AAAAAAAAAAAAAAAAAAAAAA:0", strings.Repeat("k", 300)} {
			req := kmsg.NewPtrFindCoordinatorRequest()
			req.CoordinatorType, req.CoordinatorKey, req.CoordinatorKeys = kind, key, []string{key}
			l.do(l.version(10), req)
		}
	}
	share := kmsg.NewPtrFindCoordinatorRequest()
	share.CoordinatorType, share.CoordinatorKeys = 2, []string{"group:AAAAAAAAAAAAAAAAAAAAAA:0"}
	l.do(l.version(10, 6), share)
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.CoordinatorKeys = []string{"a", "b", "a", ""}
	l.do(l.version(10, 4), req)
	req.CoordinatorKeys = nil
	l.do(l.version(10, 4), req)
}

func listGroupsPlay(l *lane) {
	for i := range 3 {
		l.do(l.version(8), commitRequest(fmt.Sprint(l.name, "-empty-", i), "no-such-topic", 0, 1))
	}
	m := l.joined(l.version(11))
	list := func(version int16, states, types []string) {
		req := kmsg.NewPtrListGroupsRequest()
		req.StatesFilter, req.TypesFilter = states, types
		l.do(version, req)
	}
	for range 3 {
		list(l.version(16), nil, nil)
	}
	for _, states := range [][]string{{"Empty"}, {"CompletingRebalance"}, {"completingrebalance", "EMPTY"}, {"Nonsense"}, {""}, {"Empty", "Nonsense"}, {"PreparingRebalance", "Dead"}, {"Assigning"}} {
		list(l.version(16, 4), states, nil)
	}
	l.do(l.version(14), syncRequest(m, true))
	for _, types := range [][]string{{"classic"}, {"Classic"}, {"consumer"}, {"nonsense"}, {""}, {"classic", "nonsense"}, {"share", "streams"}} {
		list(l.version(16, 5), nil, types)
		list(l.version(16, 5), []string{"Stable"}, types)
	}
	l.do(l.version(13), leave(m.group, member(m.symbol)))
	list(l.version(16), nil, nil)
}
