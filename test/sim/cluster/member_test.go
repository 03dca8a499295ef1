package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// ledger is what the members of one group have committed: one of them at a time, since only the one to whom a partition
// is assigned in the present generation may.
type ledger struct {
	mu    sync.Mutex
	state map[int32]*committed
}

// member is a consumer in a group, by the classic protocol.
type member struct {
	*consumer
	ledger *ledger

	id         string
	generation int32
	assigned   []int32
	joins      int
}

func (m *member) run(ctx context.Context) {
	defer m.close()
	m.commits = newCommits(m.client, m.group)
	m.generation = -1
	for m.rest(ctx, m.pace) {
		if m.generation < 0 {
			if !m.join(ctx) || !m.resume(ctx) {
				m.generation = -1
				continue
			}
		}
		if !m.heartbeat(ctx) {
			m.generation = -1
			continue
		}
		for _, partition := range m.assigned {
			if m.positions == nil || int(partition) >= len(m.positions) {
				continue
			}
			m.fetch(ctx, int(partition))
			if m.rng.IntN(3) == 0 && m.positions[partition].set && !m.commit(ctx, partition) {
				m.generation = -1
				break
			}
		}
		if m.rng.IntN(60) == 0 {
			m.leave(ctx)
		}
	}
}

// join enters the group and gets partitions. Its leader deals them out in turn.
func (m *member) join(ctx context.Context) bool {
	if !m.commits.find(ctx) {
		return false
	}
	req := kmsg.NewPtrJoinGroupRequest()
	req.Group, req.MemberID, req.ProtocolType = m.group, m.id, "consumer"
	req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = 6000, 6000
	one := kmsg.NewJoinGroupRequestProtocol()
	one.Name, one.Metadata = "turns", []byte(m.name)
	req.Protocols = append(req.Protocols, one)
	var r *kmsg.JoinGroupResponse
	for range 2 {
		req.MemberID = m.id
		resp, err := m.ask(ctx, m.commits.coord, 15*time.Second, req)
		if err != nil {
			m.commits.coord = 0
			return false
		}
		r = resp.(*kmsg.JoinGroupResponse)
		if !errors.Is(kerr.ErrorForCode(r.ErrorCode), kerr.MemberIDRequired) {
			break
		}
		m.id = r.MemberID
	}
	if !m.goesOn(r.ErrorCode) {
		return false
	}
	m.id, m.generation = r.MemberID, r.Generation
	sync := kmsg.NewPtrSyncGroupRequest()
	sync.Group, sync.Generation, sync.MemberID = m.group, m.generation, m.id
	sync.ProtocolType, sync.Protocol = kmsg.StringPtr("consumer"), kmsg.StringPtr("turns")
	if r.LeaderID == m.id {
		for i, other := range r.Members {
			a := kmsg.NewSyncGroupRequestGroupAssignment()
			a.MemberID = other.MemberID
			for p := range m.kind.partitions {
				if p%len(r.Members) == i {
					a.MemberAssignment = append(a.MemberAssignment, byte(p))
				}
			}
			sync.GroupAssignment = append(sync.GroupAssignment, a)
		}
	}
	resp, err := m.ask(ctx, m.commits.coord, 15*time.Second, sync)
	if err != nil {
		m.commits.coord = 0
		return false
	}
	s := resp.(*kmsg.SyncGroupResponse)
	if !m.goesOn(s.ErrorCode) {
		return false
	}
	m.assigned = m.assigned[:0]
	for _, p := range s.MemberAssignment {
		m.assigned = append(m.assigned, int32(p))
	}
	m.joins++
	m.w.joins.Add(1)
	return true
}

// goesOn says whether an answer of the coordinator lets the member go on as it is; else it is to join, perhaps anew.
func (m *member) goesOn(code int16) bool {
	switch err := kerr.ErrorForCode(code); {
	case err == nil:
		return true
	case errors.Is(err, kerr.UnknownMemberID), errors.Is(err, kerr.FencedInstanceID):
		m.id = ""
	case errors.Is(err, kerr.RebalanceInProgress), errors.Is(err, kerr.IllegalGeneration):
	default:
		m.commits.coord = 0
	}
	return false
}

func (m *member) heartbeat(ctx context.Context) bool {
	if m.commits.coord == 0 && !m.commits.find(ctx) {
		return false
	}
	req := kmsg.NewPtrHeartbeatRequest()
	req.Group, req.Generation, req.MemberID = m.group, m.generation, m.id
	resp, err := m.ask(ctx, m.commits.coord, 3*time.Second, req)
	if err != nil {
		m.commits.coord = 0
		return true // it may be found elsewhere, and go on
	}
	return m.goesOn(resp.(*kmsg.HeartbeatResponse).ErrorCode)
}

func (m *member) leave(ctx context.Context) {
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group, req.MemberID = m.group, m.id
	one := kmsg.NewLeaveGroupRequestMember()
	one.MemberID = m.id
	req.Members = append(req.Members, one)
	if m.commits.coord > 0 {
		_, _ = m.ask(ctx, m.commits.coord, 3*time.Second, req)
	}
	m.generation, m.id = -1, ""
}

// resume takes the positions that the group has committed (P9), else the beginning.
func (m *member) resume(ctx context.Context) bool {
	t, _, err := m.leader(ctx, m.kind.name, 0)
	if err != nil {
		return false
	}
	if t.id != m.topic {
		m.topic = t.id
	}
	m.positions = make([]position, m.kind.partitions)
	if len(m.assigned) == 0 {
		return true
	}
	req := kmsg.NewPtrOffsetFetchRequest()
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group, g.MemberEpoch = m.group, -1
	gt := kmsg.NewOffsetFetchRequestGroupTopic()
	gt.Topic, gt.TopicID, gt.Partitions = m.kind.name, m.topic, m.assigned
	g.Topics = append(g.Topics, gt)
	req.Groups = append(req.Groups, g)
	resp, err := m.ask(ctx, m.commits.coord, 5*time.Second, req)
	if err != nil {
		m.commits.coord = 0
		return false
	}
	r := resp.(*kmsg.OffsetFetchResponse)
	if len(r.Groups) != 1 || !m.goesOn(r.Groups[0].ErrorCode) || len(r.Groups[0].Topics) != 1 {
		return false
	}
	for _, p := range r.Groups[0].Topics[0].Partitions {
		if p.ErrorCode != 0 {
			return false
		}
		got := oneCommit{p.Offset, p.LeaderEpoch, ""}
		if p.Metadata != nil {
			got.text = *p.Metadata
		}
		m.judge(p.Partition, got)
		if p.Offset >= 0 {
			m.positions[p.Partition] = position{offset: p.Offset, epoch: p.LeaderEpoch, set: true}
		}
	}
	return true
}

// judge holds what the group has against what was committed.
func (m *member) judge(partition int32, got oneCommit) {
	unclean := m.w.uncleanOffsets()
	m.ledger.mu.Lock()
	defer m.ledger.mu.Unlock()
	s := m.ledger.state[partition]
	if s == nil || s.last == nil {
		return
	}
	if got == *s.last {
		m.w.checkedCommits.Add(1)
		return
	}
	for _, one := range s.unsure {
		if got == *one {
			return
		}
	}
	if !m.w.coordinates(m.commits.coord) {
		return
	}
	if unclean != s.unclean || m.w.topicGone(m.topic) || m.w.offsetsLost(&s.there) {
		s.last = nil
		return
	}
	m.w.fail(fmt.Errorf("P9: member %s of group %s in generation %d was given %+v for %s-%d, committed was %+v", m.name, m.group, m.generation, got, m.kind.name, partition, *s.last))
}

func (m *member) commit(ctx context.Context, partition int32) bool {
	if m.commits.coord == 0 {
		return true
	}
	at := m.positions[partition]
	m.ledger.mu.Lock()
	s := m.ledger.state[partition]
	if s == nil {
		s = &committed{}
		m.ledger.state[partition] = s
	}
	s.count++
	one := &oneCommit{at.offset, at.epoch, fmt.Sprintf("%s-%d", m.name, s.count)}
	// Until it is answered nobody knows: another member may be given it already.
	s.unsure = append(s.unsure, one)
	m.ledger.mu.Unlock()
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.Generation, req.MemberID = m.group, m.generation, m.id
	rp := kmsg.NewOffsetCommitRequestTopicPartition()
	rp.Partition, rp.Offset, rp.LeaderEpoch, rp.Metadata = partition, at.offset, at.epoch, &one.text
	rt := kmsg.NewOffsetCommitRequestTopic()
	rt.Topic, rt.TopicID, rt.Partitions = m.kind.name, m.topic, append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	resp, err := m.ask(ctx, m.commits.coord, 5*time.Second, req)
	if err != nil {
		m.commits.coord = 0
		return true
	}
	r := resp.(*kmsg.OffsetCommitResponse)
	if len(r.Topics) != 1 || len(r.Topics[0].Partitions) != 1 {
		m.w.fail(fmt.Errorf("an answer to OffsetCommit for another number of partitions"))
		return false
	}
	if !m.goesOn(r.Topics[0].Partitions[0].ErrorCode) {
		return false
	}
	unclean := m.w.uncleanOffsets()
	_, there := m.w.offsets()
	m.ledger.mu.Lock()
	defer m.ledger.mu.Unlock()
	s.last, s.unclean, s.there = one, unclean, there
	m.w.committed.Add(1)
	return true
}
