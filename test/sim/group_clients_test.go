package sim

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/group"
)

const (
	topic      = "t"
	partitions = 4
)

// A consumer is one slot for a consumer process: it crashes, and comes back as a new process under the same
// name. Its member ids are NAME-uN, so that an id tells whose it is.
type consumer struct {
	w           *world
	name        string
	group       string
	instanceID  *string
	version     int16 // of JoinGroup
	session     time.Duration
	rebalance   time.Duration
	commitsOnly bool // keeps its session by commits alone

	alive    bool
	process  int // counts the processes: what belongs to an earlier one is ignored
	memberID string
	gen      int32
	stable   bool
	owned    []int32
	attempt  int // counts join rounds: answers to an earlier one are ignored
	offset   int64
}

// send puts a request on the network: it may be lost, repeated or late, and so may the answer, as long as
// there are faults. Requests are told apart by r alone, so a repeated one is a copy.
func (w *world) send(member *consumer, body any, answer func(group.Response)) {
	deliveries := 1
	if !w.calm && w.chance(2) {
		deliveries = 0
	} else if !w.calm && w.chance(2) {
		deliveries = 2
	}
	for range deliveries {
		r := &request{member: member, body: body, from: func(_ *request, response group.Response) {
			if !w.calm && w.chance(2) {
				return
			}
			w.after(w.delay(), func() { answer(response) })
		}}
		w.after(w.delay(), func() { w.deliver(r) })
	}
}

func (w *world) delay() time.Duration {
	if !w.calm && w.chance(1) {
		return w.between(0, 3*time.Second)
	}
	return w.between(0, 10*time.Millisecond)
}

// call sends a request of this process and takes its answer once, or nil after the timeout.
func (c *consumer) call(body any, timeout time.Duration, answer func(group.Response)) {
	process, done := c.process, false
	once := func(response group.Response) {
		if !done && c.alive && c.process == process {
			done = true
			answer(response)
		}
	}
	c.w.send(c, body, once)
	c.w.after(timeout, func() { once(nil) })
}

func (c *consumer) startProcess() {
	c.alive = true
	c.process++
	c.memberID, c.gen, c.stable, c.owned = "", -1, false, nil
	c.join()
	c.every(func() time.Duration { return c.session / 3 }, c.heartbeat)
	c.every(func() time.Duration { return c.w.between(c.session/8, c.session/3) }, c.commit)
}

// every does something again and again while the process lives.
func (c *consumer) every(interval func() time.Duration, do func()) {
	process := c.process
	var again func()
	again = func() {
		if c.alive && c.process == process {
			do()
			c.w.after(interval(), again)
		}
	}
	c.w.after(interval(), again)
}

func (c *consumer) crash() {
	c.w.note("%s crashes", c.name)
	c.alive = false
	c.w.after(c.w.between(0, 20*time.Second), func() {
		if !c.alive {
			c.startProcess()
		}
	})
}

func (c *consumer) leave() {
	if c.instanceID != nil || c.memberID == "" {
		c.crash()
		return
	}
	c.w.send(c, &kmsg.LeaveGroupRequest{Version: 5, Group: c.group, Members: []kmsg.LeaveGroupRequestMember{{MemberID: c.memberID}}}, func(group.Response) {})
	c.crash()
}

func (c *consumer) join() {
	c.stable, c.owned = false, nil
	c.attempt++
	attempt := c.attempt
	req := &kmsg.JoinGroupRequest{
		Version: c.version, Group: c.group, MemberID: c.memberID, InstanceID: c.instanceID, ProtocolType: "consumer",
		SessionTimeoutMillis: int32(c.session.Milliseconds()), RebalanceTimeoutMillis: int32(c.rebalance.Milliseconds()),
		Protocols: []kmsg.JoinGroupRequestProtocol{{Name: "range", Metadata: []byte(c.name)}},
	}
	c.call(req, c.rebalance+5*time.Second, func(response group.Response) {
		if c.attempt != attempt {
			return
		}
		r, _ := response.(*group.JoinReply)
		if r == nil {
			c.retry(c.join)
			return
		}
		switch {
		case r.Err == nil:
			c.memberID, c.gen = r.MemberID, r.Generation
			c.sync(r)
		case errors.Is(r.Err, group.ErrMemberIDRequired):
			c.memberID = r.MemberID
			c.join()
		default:
			c.failed(r.Err)
		}
	})
}

// sync asks for the assignment. The leader deals the partitions out in turn.
func (c *consumer) sync(joined *group.JoinReply) {
	attempt := c.attempt
	req := &kmsg.SyncGroupRequest{
		Version: 5, Group: c.group, Generation: c.gen, MemberID: c.memberID, InstanceID: c.instanceID,
		ProtocolType: joined.ProtocolType, Protocol: joined.Protocol,
	}
	if joined.Leader == joined.MemberID && !joined.SkipAssignment {
		members := slices.Clone(joined.Members)
		slices.SortFunc(members, func(a, b group.JoinedMember) int { return cmp.Compare(a.MemberID, b.MemberID) })
		for i, m := range members {
			var mine []byte
			for p := i; p < partitions; p += len(members) {
				mine = append(mine, byte(p))
			}
			req.GroupAssignment = append(req.GroupAssignment, kmsg.SyncGroupRequestGroupAssignment{MemberID: m.MemberID, MemberAssignment: mine})
		}
	}
	// The leader takes a while to think.
	process := c.process
	c.w.after(c.w.between(0, 50*time.Millisecond), func() {
		if !c.alive || c.process != process || c.attempt != attempt {
			return
		}
		c.call(req, c.rebalance+5*time.Second, func(response group.Response) {
			if c.attempt != attempt {
				return
			}
			if r, _ := response.(*group.SyncReply); r != nil && r.Err == nil {
				c.stable = true
				for _, p := range r.Assignment {
					c.owned = append(c.owned, int32(p))
				}
				return
			}
			c.failed(errorOf(response))
		})
	})
}

func (c *consumer) heartbeat() {
	// Commits do not say that a rebalance has begun: once in a while, and at the end, it asks.
	if !c.stable || c.commitsOnly && len(c.owned) > 0 && !c.w.calm && !c.w.chance(5) {
		return
	}
	attempt := c.attempt
	req := &kmsg.HeartbeatRequest{Version: 4, Group: c.group, Generation: c.gen, MemberID: c.memberID, InstanceID: c.instanceID}
	c.call(req, 3*time.Second, func(response group.Response) { c.checkup(attempt, response) })
}

func (c *consumer) commit() {
	if !c.stable || len(c.owned) == 0 {
		return
	}
	attempt := c.attempt
	req := &kmsg.OffsetCommitRequest{Version: 9, Group: c.group, Generation: c.gen, MemberID: c.memberID, InstanceID: c.instanceID, RetentionTimeMillis: -1}
	req.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: topic}}
	for _, p := range c.owned {
		c.offset++
		req.Topics[0].Partitions = append(req.Topics[0].Partitions, kmsg.OffsetCommitRequestTopicPartition{
			Partition: p, Offset: c.offset, LeaderEpoch: int32(c.w.rng.IntN(5)) - 1,
		})
	}
	c.call(req, 3*time.Second, func(response group.Response) { c.checkup(attempt, response) })
}

// checkup is what a member does on the answer to a heartbeat or commit.
func (c *consumer) checkup(attempt int, response group.Response) {
	if response == nil || attempt != c.attempt {
		return
	}
	if err := errorOf(response); err != nil && !errors.Is(err, group.ErrCoordinatorNotAvailable) && !errors.Is(err, group.ErrNotCoordinator) {
		c.failed(err)
	}
}

func (c *consumer) retry(do func()) {
	process, attempt := c.process, c.attempt
	c.stable = false
	c.w.after(c.w.between(50*time.Millisecond, 500*time.Millisecond), func() {
		if c.alive && c.process == process && c.attempt == attempt {
			do()
		}
	})
}

func (c *consumer) failed(err error) {
	switch {
	case errors.Is(err, group.ErrFencedInstanceID):
		c.crash() // another process has the instance; here it is the late answer to one of its own
		return
	case errors.Is(err, group.ErrUnknownMemberID):
		c.memberID = ""
	}
	c.retry(c.join)
}

// identity tells whose a member id is.
func identity(memberID string) string {
	i := strings.LastIndex(memberID, "-")
	return memberID[:max(i, 0)]
}

// administrate is one step of all that is not a member: simple commits, transactions, fetches.
func (w *world) administrate() {
	commit := func(body any) { w.send(nil, body, func(group.Response) {}) }
	w.uuids++
	offset, partition := int64(w.uuids), int32(w.rng.IntN(partitions))
	producerID := int64(w.rng.IntN(3))
	target := []string{"simple", "c0", "c1"}[w.rng.IntN(3)]
	switch w.rng.IntN(6) {
	case 0:
		commit(&kmsg.OffsetCommitRequest{Version: 9, Group: "simple", Generation: -1, RetentionTimeMillis: -1, Topics: []kmsg.OffsetCommitRequestTopic{{
			Topic: topic, Partitions: []kmsg.OffsetCommitRequestTopicPartition{{Partition: partition, Offset: offset, LeaderEpoch: 7}},
		}}})
	case 1:
		commit(&kmsg.TxnOffsetCommitRequest{Version: 5, Group: target, Generation: -1, ProducerID: producerID, Topics: []kmsg.TxnOffsetCommitRequestTopic{{
			Topic: topic, Partitions: []kmsg.TxnOffsetCommitRequestTopicPartition{{Partition: partition, Offset: offset, LeaderEpoch: 8}},
		}}})
	case 2:
		if w.lead != nil {
			w.deliver(&request{body: endTxn{producerID, w.chance(70)}, from: func(*request, group.Response) {}})
		}
	case 3:
		commit(&kmsg.OffsetCommitRequest{Version: 8, Group: target, Generation: int32(w.rng.IntN(4)), MemberID: "stranger", Topics: []kmsg.OffsetCommitRequestTopic{{
			Topic: topic, Partitions: []kmsg.OffsetCommitRequestTopicPartition{{Partition: partition, Offset: offset}},
		}}})
	default:
		commit(fetchStable{group.FetchRequest{Group: target, Topics: []group.FetchTopic{{Topic: topic, Partitions: []int32{0, 1, 2, 3}}}}})
	}
}
