package group

import (
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// LeaveGroup removes one member (below version 3) or several. However many leave, they cause one rebalance.
func (s *Shard) LeaveGroup(now time.Time, to ReplyTo, req *kmsg.LeaveGroupRequest) Effects {
	var fx Effects
	if req.Group == "" {
		fx.ReplyAfterCommit(to, &LeaveReply{Err: ErrInvalidGroupID})
		return fx
	}
	if consumers := s.replicated.consumers[req.Group]; consumers.exists() {
		members := req.Members
		if req.Version < 3 {
			members = []kmsg.LeaveGroupRequestMember{{MemberID: req.MemberID}}
		}
		reply := &LeaveReply{Members: s.leaveConsumers(now, consumers, members, &fx)}
		if req.Version < 3 {
			reply.Err, reply.Members = reply.Members[0].Err, nil
		}
		fx.ReplyAfterCommit(to, reply)
		return fx
	}
	g := s.group(now, req.Group)
	if req.Version < 3 {
		err := s.leave(g, req.MemberID, nil, &fx)
		fx.ReplyAfterCommit(to, &LeaveReply{Err: err})
		if err == nil {
			s.memberGone(now, g, &fx)
		}
		return fx
	}
	reply := &LeaveReply{Members: make([]LeftMember, len(req.Members))}
	left := false
	for i, m := range req.Members {
		err := s.leave(g, m.MemberID, m.InstanceID, &fx)
		reply.Members[i] = LeftMember{MemberID: m.MemberID, InstanceID: m.InstanceID, Err: err}
		left = left || err == nil
	}
	fx.ReplyAfterCommit(to, reply)
	if left {
		s.memberGone(now, g, &fx)
	}
	return fx
}

// leave removes one member, or forgets a pending one. A static member may be removed by its instance id
// alone: that is an administrator's doing, and fences nobody.
func (s *Shard) leave(g *classicGroup, id string, instanceID *string, fx *Effects) error {
	if g == nil {
		return ErrUnknownMemberID
	}
	if id == "" {
		if instanceID == nil {
			return ErrUnknownMemberID
		}
		m := g.byInstance[*instanceID]
		if m == nil {
			return ErrUnknownMemberID
		}
		s.removeMember(g, m, fx)
		return nil
	}
	if p := g.pending[id]; p != nil {
		s.removePending(g, p)
		return nil
	}
	m, err := g.checkMember(id, instanceID)
	if err != nil {
		return err
	}
	s.removeMember(g, m, fx)
	return nil
}
