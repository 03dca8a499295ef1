package group

import "time"

// prepareRebalance begins a join phase. From Completing, the syncs that wait are told to join anew. From
// Empty it is the initial rebalance, which waits a while for more members; otherwise members have the
// group's rebalance timeout to come back.
func (s *Shard) prepareRebalance(now time.Time, g *classicGroup, fx *Effects) {
	if g.state == CompletingRebalance {
		s.dropAssignments(now, g, ErrRebalanceInProgress, fx)
	}
	s.soft.timers.stop(&g.syncTimer)
	g.lastSync = 0
	g.initial, g.added = g.state == Empty, false
	g.enter(now, PreparingRebalance)
	switch {
	case g.initial:
		g.delay = s.config.InitialRebalanceDelay
		g.remaining = max(g.rebalanceTimeout()-g.delay, 0)
		s.soft.timers.set(&g.joinTimer, now.Add(g.delay))
	case g.allJoined():
		s.completeJoin(now, g, fx)
	default:
		s.soft.timers.set(&g.joinTimer, now.Add(g.rebalanceTimeout()))
	}
}

// dropAssignments clears what a generation had been assigned and answers its parked syncs.
func (s *Shard) dropAssignments(now time.Time, g *classicGroup, err error, fx *Effects) {
	for _, m := range g.members {
		m.assignment = nil
		if m.answerSync(syncError(err), fx) {
			s.restartSession(now, g, m)
		}
	}
}

// completeIfAllJoined ends the join phase when nobody is awaited any more. An initial one runs its time.
func (s *Shard) completeIfAllJoined(now time.Time, g *classicGroup, fx *Effects) {
	if g.state == PreparingRebalance && !g.initial && g.allJoined() {
		s.completeJoin(now, g, fx)
	}
}

// joinPhaseEnds is the join timer. The initial rebalance is put off again while members keep coming, by at
// most the group's rebalance timeout in all.
func (s *Shard) joinPhaseEnds(now time.Time, g *classicGroup, fx *Effects) {
	if g.initial && g.added && g.remaining > 0 {
		waited := g.delay
		g.added = false
		g.delay = min(s.config.InitialRebalanceDelay, g.remaining)
		g.remaining = max(g.remaining-waited, 0)
		s.soft.timers.set(&g.joinTimer, now.Add(g.delay))
		return
	}
	s.completeJoin(now, g, fx)
}

// completeJoin ends the join phase with those who joined: a new generation. Static members keep their
// places even if they did not come.
func (s *Shard) completeJoin(now time.Time, g *classicGroup, fx *Effects) {
	s.soft.timers.stop(&g.joinTimer)
	for _, m := range append([]*member(nil), g.members...) {
		if !m.joining && m.instanceID == nil {
			s.removeMember(g, m, fx)
		}
	}
	if len(g.members) > 0 && !g.electJoined() {
		s.soft.timers.set(&g.joinTimer, now.Add(g.rebalanceTimeout()))
		return
	}
	g.generation++
	g.initial = false
	if len(g.members) == 0 {
		g.protocol = nil
		g.enter(now, Empty)
		fx.Append(g.record(nil))
		return
	}
	g.protocol = g.choose()
	g.enter(now, CompletingRebalance)
	for _, m := range g.members {
		m.isNew, m.synced = false, false
		m.answerJoin(g.joined(m, m == g.leader), fx)
		s.restartSession(now, g, m)
	}
	s.soft.timers.set(&g.syncTimer, now.Add(g.rebalanceTimeout()))
}

// electJoined passes the leadership to a member that joined, if the leader did not; false if none did.
func (g *classicGroup) electJoined() bool {
	if g.leader.joining {
		return true
	}
	for _, m := range g.members {
		if m.joining {
			g.leader = m
			return true
		}
	}
	return false
}

// removeMember takes a member out, and answers what it has parked. What that means for the group is the
// caller's to say: memberGone, as a rule.
func (s *Shard) removeMember(g *classicGroup, m *member, fx *Effects) {
	m.answerJoin(joinError(ErrUnknownMemberID, ""), fx)
	m.answerSync(syncError(ErrUnknownMemberID), fx)
	s.soft.timers.stop(&m.session)
	g.remove(m)
}

// memberGone goes on after members were removed, or pending ones left.
func (s *Shard) memberGone(now time.Time, g *classicGroup, fx *Effects) {
	switch g.state {
	case Stable, CompletingRebalance:
		s.prepareRebalance(now, g, fx)
	case PreparingRebalance:
		s.completeIfAllJoined(now, g, fx)
	}
}

// restartSession begins a member's session anew.
func (s *Shard) restartSession(now time.Time, g *classicGroup, m *member) {
	s.setSession(g, m, now.Add(m.sessionTimeout))
}

func (s *Shard) setSession(g *classicGroup, m *member, at time.Time) {
	if m.session.fire == nil {
		m.session.fire = func(s *Shard, now time.Time, fx *Effects) { s.sessionEnds(now, g, m, fx) }
	}
	s.soft.timers.set(&m.session, at)
}

// sessionEnds removes a member that was silent for its session timeout. One with a parked request cannot
// speak, so it stays, and its clock starts anew when it is answered; a new member's first join, however,
// is parked for a bounded time.
func (s *Shard) sessionEnds(now time.Time, g *classicGroup, m *member, fx *Effects) {
	if !m.isNew && m.parked() {
		return
	}
	s.removeMember(g, m, fx)
	s.memberGone(now, g, fx)
}
