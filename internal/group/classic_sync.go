package group

import (
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// SyncGroup answers one SyncGroup. Until the leader's assignment is committed it is parked.
func (s *Shard) SyncGroup(now time.Time, to ReplyTo, req *kmsg.SyncGroupRequest) Effects {
	var fx Effects
	if consumers := s.replicated.consumers[req.Group]; consumers.exists() && ValidateSync(req) == nil {
		reply, err := s.syncConsumer(now, consumers, req)
		if err != nil {
			reply = syncError(err)
		}
		fx.ReplyAfterCommit(to, reply)
		return fx
	}
	g, m, err := s.checkSync(now, req)
	if err != nil {
		fx.Reply(to, syncError(err))
		return fx
	}
	if g.state == CompletingRebalance {
		m.parkSync(to, &fx)
	} else {
		fx.Reply(to, g.synced(m))
		s.restartSession(now, g, m)
	}
	m.synced = true
	if g.allSynced() {
		s.soft.timers.stop(&g.syncTimer)
	}
	if g.state == CompletingRebalance && m == g.leader {
		s.assign(g, req.GroupAssignment, &fx)
	}
	return fx
}

// checkSync makes the checks in their order. Without an error the group is Completing or Stable.
func (s *Shard) checkSync(now time.Time, req *kmsg.SyncGroupRequest) (*classicGroup, *member, error) {
	if err := ValidateSync(req); err != nil {
		return nil, nil, err
	}
	if req.Group == "" {
		return nil, nil, ErrInvalidGroupID
	}
	g := s.group(now, req.Group)
	if g == nil || len(g.members) == 0 {
		return nil, nil, ErrUnknownMemberID
	}
	m, err := g.checkMember(req.MemberID, req.InstanceID)
	switch {
	case err != nil:
		return nil, nil, err
	case req.Generation != g.generation && !mutantGenerationUnchecked:
		return nil, nil, ErrIllegalGeneration
	case req.ProtocolType != nil && *req.ProtocolType != g.protocolType,
		req.Protocol != nil && !equalStrings(req.Protocol, g.protocol):
		return nil, nil, ErrInconsistentGroupProtocol
	case g.state == PreparingRebalance:
		return nil, nil, ErrRebalanceInProgress
	}
	return g, m, nil
}

// assign writes the leader's assignment. Members that it leaves out get an empty one, ids that are no
// members are ignored. The group is Stable when it is committed.
func (s *Shard) assign(g *classicGroup, assignments []kmsg.SyncGroupRequestGroupAssignment, fx *Effects) {
	byID := make(map[string][]byte, len(assignments))
	for _, a := range assignments {
		byID[a.MemberID] = append([]byte{}, a.MemberAssignment...)
	}
	given := make(map[*member][]byte, len(g.members))
	for _, m := range g.members {
		given[m] = byID[m.id]
	}
	fx.Append(g.record(func(m *member) []byte { return given[m] }))
	generation := g.generation
	s.onFinish(fx, func(id WriteID, now time.Time, err error, fx *Effects) {
		if g.state != CompletingRebalance || g.generation != generation || g.lastSync != id {
			return
		}
		if err != nil {
			s.dropAssignments(now, g, err, fx)
			s.prepareRebalance(now, g, fx)
			return
		}
		g.enter(now, Stable)
		for _, m := range g.members {
			m.assignment = given[m]
			g.count(m)
			if m.answerSync(g.synced(m), fx) {
				s.restartSession(now, g, m)
			}
		}
	})
	g.lastSync = fx.Write
}

// syncPhaseEnds is the sync timer: members that never sent SyncGroup in this generation are removed, static
// ones too.
func (s *Shard) syncPhaseEnds(now time.Time, g *classicGroup, fx *Effects) {
	for _, m := range append([]*member(nil), g.members...) {
		if !m.synced {
			s.removeMember(g, m, fx)
		}
	}
	s.prepareRebalance(now, g, fx)
}
