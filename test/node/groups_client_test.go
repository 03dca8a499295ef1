package node

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// freshName is a name that nothing else has, made of the test's.
func (c *client) freshName() string {
	name := strings.Map(func(r rune) rune {
		if r == '/' || r == '#' || r == '=' || r == ' ' {
			return '-'
		}
		return r
	}, c.t.Name())
	return fmt.Sprintf("%.60s-%d-%d", name, topicNumber.Add(1), time.Now().UnixMilli()%1e6)
}

// groupID is a group of one test, whose coordinator is there.
func (c *client) groupID() string {
	c.t.Helper()
	id := c.freshName()
	c.coordinator(id)
	return id
}

// coordinator waits until a group's coordinator has been named and answers.
func (c *client) coordinator(id string) {
	c.t.Helper()
	var last int16
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		find := kmsg.NewPtrFindCoordinatorRequest()
		find.CoordinatorKey = id
		if last = do[*kmsg.FindCoordinatorResponse](c, 2, find).ErrorCode; last != 0 {
			continue
		}
		if last = c.fetchOffsets(7, id, nil).ErrorCode; last == 0 {
			return
		}
	}
	c.t.Fatalf("group %s has no coordinator: error %d", id, last)
}

// wish is a JoinGroup in short.
type wish struct {
	group, member string
	instance      *string
	session       int32 // ms; 0: 10 s
	rebalance     int32 // ms; 0: 10 s
	kind          string
	protocols     []string // name=metadata; none: range=m
}

func joinRequest(w wish) *kmsg.JoinGroupRequest {
	req := kmsg.NewPtrJoinGroupRequest()
	req.Group, req.MemberID, req.InstanceID = w.group, w.member, w.instance
	req.SessionTimeoutMillis, req.RebalanceTimeoutMillis, req.ProtocolType = 10000, 10000, "consumer"
	if w.session != 0 {
		req.SessionTimeoutMillis = w.session
	}
	if w.rebalance != 0 {
		req.RebalanceTimeoutMillis = w.rebalance
	}
	if w.kind != "" {
		req.ProtocolType = w.kind
		if w.kind == "-" {
			req.ProtocolType = ""
		}
	}
	if w.protocols == nil {
		w.protocols = []string{"range=m"}
	}
	for _, p := range w.protocols {
		name, metadata, _ := strings.Cut(p, "=")
		one := kmsg.NewJoinGroupRequestProtocol()
		one.Name, one.Metadata = name, []byte(metadata)
		req.Protocols = append(req.Protocols, one)
	}
	return req
}

func (c *client) join(version int16, w wish) *kmsg.JoinGroupResponse {
	c.t.Helper()
	return do[*kmsg.JoinGroupResponse](c, version, joinRequest(w))
}

// beginJoin sends a join and returns how to wait for its answer.
func (c *client) beginJoin(version int16, w wish) func() *kmsg.JoinGroupResponse {
	c.t.Helper()
	req := joinRequest(w)
	correlation := c.send(version, req)
	return func() *kmsg.JoinGroupResponse {
		c.t.Helper()
		return c.answer(version, req, correlation).(*kmsg.JoinGroupResponse)
	}
}

func syncRequest(version int16, group, member string, generation int32, assignments ...string) *kmsg.SyncGroupRequest {
	req := kmsg.NewPtrSyncGroupRequest()
	req.Group, req.MemberID, req.Generation = group, member, generation
	if version >= 5 {
		kind, protocol := "consumer", "range"
		req.ProtocolType, req.Protocol = &kind, &protocol
	}
	for _, a := range assignments {
		id, bytes, _ := strings.Cut(a, "=")
		one := kmsg.NewSyncGroupRequestGroupAssignment()
		one.MemberID, one.MemberAssignment = id, []byte(bytes)
		req.GroupAssignment = append(req.GroupAssignment, one)
	}
	return req
}

func (c *client) sync(version int16, group, member string, generation int32, assignments ...string) *kmsg.SyncGroupResponse {
	c.t.Helper()
	return do[*kmsg.SyncGroupResponse](c, version, syncRequest(version, group, member, generation, assignments...))
}

func (c *client) beginSync(version int16, group, member string, generation int32) func() *kmsg.SyncGroupResponse {
	c.t.Helper()
	req := syncRequest(version, group, member, generation)
	correlation := c.send(version, req)
	return func() *kmsg.SyncGroupResponse {
		c.t.Helper()
		return c.answer(version, req, correlation).(*kmsg.SyncGroupResponse)
	}
}

// heartbeat returns the error code.
func (c *client) heartbeat(group, member string, instance *string, generation int32) int16 {
	c.t.Helper()
	req := kmsg.NewPtrHeartbeatRequest()
	req.Group, req.MemberID, req.InstanceID, req.Generation = group, member, instance, generation
	return do[*kmsg.HeartbeatResponse](c, 4, req).ErrorCode
}

// leaver is one member of a LeaveGroup.
type leaver struct {
	member   string
	instance *string
}

func (c *client) leave(version int16, group string, leavers ...leaver) *kmsg.LeaveGroupResponse {
	c.t.Helper()
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group = group
	if version < 3 {
		req.MemberID = leavers[0].member
	} else {
		for _, l := range leavers {
			one := kmsg.NewLeaveGroupRequestMember()
			one.MemberID, one.InstanceID = l.member, l.instance
			req.Members = append(req.Members, one)
		}
	}
	return do[*kmsg.LeaveGroupResponse](c, version, req)
}

// commit is one offset to commit.
type commit struct {
	partition int32
	offset    int64
	epoch     int32
	metadata  *string
}

// committer says on whose behalf.
type committer struct {
	group, member string
	instance      *string
	generation    int32
}

func alone(group string) committer { return committer{group: group, generation: -1} }

func (c *client) commitOffsets(version int16, by committer, tp topic, commits ...commit) []int16 {
	c.t.Helper()
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.MemberID, req.InstanceID, req.Generation = by.group, by.member, by.instance, by.generation
	out := kmsg.NewOffsetCommitRequestTopic()
	out.Topic, out.TopicID = tp.name, tp.id
	for _, one := range commits {
		p := kmsg.NewOffsetCommitRequestTopicPartition()
		p.Partition, p.Offset, p.LeaderEpoch, p.Metadata = one.partition, one.offset, one.epoch, one.metadata
		out.Partitions = append(out.Partitions, p)
	}
	req.Topics = append(req.Topics, out)
	resp := do[*kmsg.OffsetCommitResponse](c, version, req)
	var codes []int16
	for _, p := range resp.Topics[0].Partitions {
		codes = append(codes, p.ErrorCode)
	}
	return codes
}

func (c *client) commitOffset(version int16, by committer, tp topic, offset int64) int16 {
	c.t.Helper()
	return c.commitOffsets(version, by, tp, commit{offset: offset, epoch: -1})[0]
}

// fetchOffsets asks in any version up to 9 for partition 0 of some topics, or for all
// with nil. The answer is in the form of version 8.
func (c *client) fetchOffsets(version int16, group string, topics []topic, partitions ...int32) kmsg.OffsetFetchResponseGroup {
	c.t.Helper()
	if partitions == nil {
		partitions = []int32{0}
	}
	req := kmsg.NewPtrOffsetFetchRequest()
	if version < 8 {
		req.Group = group
		for _, tp := range topics {
			one := kmsg.NewOffsetFetchRequestTopic()
			one.Topic, one.Partitions = tp.name, partitions
			req.Topics = append(req.Topics, one)
		}
		resp := do[*kmsg.OffsetFetchResponse](c, version, req)
		out := kmsg.NewOffsetFetchResponseGroup()
		out.Group, out.ErrorCode = group, resp.ErrorCode
		for _, t := range resp.Topics {
			topic := kmsg.NewOffsetFetchResponseGroupTopic()
			topic.Topic = t.Topic
			for _, p := range t.Partitions {
				topic.Partitions = append(topic.Partitions, kmsg.OffsetFetchResponseGroupTopicPartition(p))
			}
			out.Topics = append(out.Topics, topic)
		}
		return out
	}
	asked := kmsg.NewOffsetFetchRequestGroup()
	asked.Group = group
	for _, tp := range topics {
		one := kmsg.NewOffsetFetchRequestGroupTopic()
		one.Topic, one.TopicID, one.Partitions = tp.name, tp.id, partitions
		asked.Topics = append(asked.Topics, one)
	}
	req.Groups = append(req.Groups, asked)
	resp := do[*kmsg.OffsetFetchResponse](c, version, req)
	if len(resp.Groups) != 1 {
		c.t.Fatalf("OffsetFetch v%d: %d groups", version, len(resp.Groups))
	}
	return resp.Groups[0]
}

// stored is one committed offset in short.
type storedOffset struct {
	code     int16
	offset   int64
	epoch    int32
	metadata string
}

func (c *client) storedOffset(version int16, group string, tp topic) storedOffset {
	c.t.Helper()
	found := c.fetchOffsets(version, group, []topic{tp})
	if found.ErrorCode != 0 || len(found.Topics) != 1 || len(found.Topics[0].Partitions) != 1 {
		c.t.Fatalf("OffsetFetch v%d of %s: %+v", version, group, found)
	}
	p := found.Topics[0].Partitions[0]
	if p.Metadata == nil {
		c.t.Errorf("OffsetFetch v%d: metadata is null", version)
	}
	return storedOffset{p.ErrorCode, p.Offset, p.LeaderEpoch, deref(p.Metadata)}
}

func (c *client) wantStored(version int16, group string, tp topic, want storedOffset) {
	c.t.Helper()
	if version < 5 {
		want.epoch = -1
	}
	if got := c.storedOffset(version, group, tp); got != want {
		c.t.Errorf("OffsetFetch v%d of %s: %+v, want %+v", version, group, got, want)
	}
}

// describeGroup asks for one group.
func (c *client) describeGroup(version int16, group string) kmsg.DescribeGroupsResponseGroup {
	c.t.Helper()
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Groups = []string{group}
	return do[*kmsg.DescribeGroupsResponse](c, version, req).Groups[0]
}

func (c *client) wantState(group, want string) {
	c.t.Helper()
	if got := c.describeGroup(5, group).State; got != want {
		c.t.Errorf("group %s is %s, want %s", group, got, want)
	}
}

// awaitState polls: nothing tells a client that somebody else's request has arrived.
func (c *client) awaitState(group, want string) {
	c.t.Helper()
	got := ""
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if got = c.describeGroup(5, group).State; got == want {
			return
		}
	}
	c.t.Fatalf("group %s stays %s, want %s", group, got, want)
}

// awaitMembers waits until a group has so many members.
func (c *client) awaitMembers(group string, want int) {
	c.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if len(c.describeGroup(5, group).Members) == want {
			return
		}
	}
	c.t.Fatalf("group %s does not come to %d members", group, want)
}

// listedGroup finds a group in ListGroups.
func (c *client) listedGroup(version int16, group string, states, types []string) (kmsg.ListGroupsResponseGroup, bool) {
	c.t.Helper()
	req := kmsg.NewPtrListGroupsRequest()
	req.StatesFilter, req.TypesFilter = states, types
	resp := do[*kmsg.ListGroupsResponse](c, version, req)
	if resp.ErrorCode != 0 {
		c.t.Fatalf("ListGroups v%d: error %d", version, resp.ErrorCode)
	}
	for _, g := range resp.Groups {
		if g.Group == group {
			return g, true
		}
	}
	return kmsg.ListGroupsResponseGroup{}, false
}

// stable brings a group of n dynamic members, each on a connection of its own, to
// Stable, and returns their ids, the leader first.
func (n *node) stable(t *testing.T, group string, members int, w wish) (clients []*client, ids []string, generation int32) {
	t.Helper()
	w.group = group
	for range members {
		clients = append(clients, n.dial(t))
		ids = append(ids, clients[len(clients)-1].join(4, w).MemberID)
	}
	// The first completes a generation alone; the others make it join again.
	watch := n.dial(t)
	w.member = ids[0]
	first := clients[0].join(5, w)
	if first.ErrorCode != 0 {
		t.Fatalf("join: error %d", first.ErrorCode)
	}
	generation = first.Generation
	if members > 1 {
		answers := make([]func() *kmsg.JoinGroupResponse, members)
		for i := 1; i < members; i++ {
			w.member = ids[i]
			answers[i] = clients[i].beginJoin(5, w)
			watch.awaitMembers(group, i+1)
		}
		w.member = ids[0]
		answers[0] = clients[0].beginJoin(5, w)
		for i := range answers {
			joined := answers[i]()
			if joined.ErrorCode != 0 {
				t.Fatalf("join: error %d", joined.ErrorCode)
			}
			generation = joined.Generation
		}
	}
	assignments := make([]string, members)
	for i, id := range ids {
		assignments[i] = id + "=a" + string(rune('0'+i))
	}
	if code := clients[0].sync(4, group, ids[0], generation, assignments...).ErrorCode; code != 0 {
		t.Fatalf("sync: error %d", code)
	}
	for i := 1; i < members; i++ {
		if code := clients[i].sync(4, group, ids[i], generation).ErrorCode; code != 0 {
			t.Fatalf("sync: error %d", code)
		}
	}
	watch.wantState(group, "Stable")
	return clients, ids, generation
}
