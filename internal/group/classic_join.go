package group

import (
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// A join is one JoinGroup on its way through the checks.
type join struct {
	to        ReplyTo
	client    RequestContext
	req       *kmsg.JoinGroupRequest
	protocols []protocol
}

// JoinGroup answers one JoinGroup, at once or, parked, when the join phase ends.
func (s *Shard) JoinGroup(now time.Time, to ReplyTo, client RequestContext, req *kmsg.JoinGroupRequest) Effects {
	var fx Effects
	if err := s.config.ValidateJoin(req); err != nil {
		fx.Reply(to, joinError(err, req.MemberID))
		return fx
	}
	j := &join{to, client, req, protocolsOf(req)}

	consumers := s.replicated.consumers[req.Group]
	if consumers.exists() && len(consumers.members.Newest()) > 0 {
		s.joinConsumers(now, consumers, j, &fx)
		return fx
	}
	g := s.group(now, req.Group)
	made := g == nil
	if made {
		if req.MemberID != "" && !s.replicated.hasOffsets(req.Group) {
			fx.Reply(to, joinError(ErrUnknownMemberID, req.MemberID))
			return fx
		}
		g = newClassicGroup(now, req.Group, s.held)
	}
	if !s.hasRoom(g, req) {
		s.refuseForSize(now, g, j, &fx)
		return fx
	}
	if !g.supports(req.ProtocolType, j.protocols) {
		// A group that only this request would have made is not made: bad input writes nothing.
		fx.Reply(to, joinError(ErrInconsistentGroupProtocol, req.MemberID))
		return fx
	}
	if consumers.exists() && (req.MemberID == "" || !made) {
		// An empty group changes its protocol for whoever comes; again, if it was to before and that was not written.
		s.deleteConsumer(consumers, &fx)
	}
	if req.MemberID != "" {
		s.joinKnown(now, g, j, &fx)
		return fx
	}
	if made {
		s.create(g, &fx)
	}
	s.joinUnknown(now, g, j, &fx)
	return fx
}

// create makes a group durable before anything else of it is written. A simple group already is. When that
// fails the group is dropped again, unless it has gone on to write more: a retry makes it anew.
func (s *Shard) create(g *classicGroup, fx *Effects) {
	s.soft.groups[g.id] = g
	s.held.add(groupSize)
	if s.replicated.hasOffsets(g.id) {
		return
	}
	fx.Append(g.record(nil))
	s.onFinish(fx, func(_ WriteID, _ time.Time, err error, fx *Effects) {
		if err == nil || s.soft.groups[g.id] != g || g.generation > 0 {
			return
		}
		for _, m := range g.members {
			m.answerJoin(joinError(err, ""), fx)
		}
		s.forget(g)
	})
}

// hasRoom is the check of group.max.size, and of the memory for all groups. While Preparing only members that are awaited count, so that
// after a restart with a lower limit the last ones to rejoin are refused.
func (s *Shard) hasRoom(g *classicGroup, req *kmsg.JoinGroupRequest) bool {
	known := g.byID[req.MemberID]
	if known == nil && req.MemberID == "" && req.InstanceID != nil {
		known = g.byInstance[*req.InstanceID] // a restart: it takes the place that it has
	}
	if !s.roomToJoin(known, req) {
		return false
	}
	switch g.state {
	case PreparingRebalance:
		return known != nil && known.joining || g.joiningCount() < s.config.MaxSize
	case CompletingRebalance, Stable:
		return known != nil || len(g.members) < s.config.MaxSize
	default:
		return true
	}
}

func (s *Shard) refuseForSize(now time.Time, g *classicGroup, j *join, fx *Effects) {
	fx.Reply(j.to, joinError(ErrGroupMaxSizeReached, ""))
	m, p := g.byID[j.req.MemberID], g.pending[j.req.MemberID]
	switch {
	case m != nil:
		s.removeMember(g, m, fx)
	case p != nil:
		s.removePending(g, p)
	default:
		return
	}
	s.completeIfAllJoined(now, g, fx)
}

// joinUnknown is a join without a member id: a new member, or a static one that restarts.
func (s *Shard) joinUnknown(now time.Time, g *classicGroup, j *join, fx *Effects) {
	if instance := j.req.InstanceID; instance != nil {
		id := *instance + "-" + s.config.NewUUID()
		if m := g.byInstance[*instance]; m != nil {
			s.replaceStatic(now, g, m, id, j, fx)
			return
		}
		s.addMember(now, g, id, j, fx)
		return
	}
	id := j.client.ClientID + "-" + s.config.NewUUID()
	if j.req.Version < 4 {
		s.addMember(now, g, id, j, fx)
		return
	}
	s.addPending(now, g, id, millis(j.req.SessionTimeoutMillis))
	reply := joinError(ErrMemberIDRequired, id)
	if fx.Records != nil {
		fx.ReplyAfterCommit(j.to, reply)
		return
	}
	fx.Reply(j.to, reply)
}

// joinKnown is a join with a member id.
func (s *Shard) joinKnown(now time.Time, g *classicGroup, j *join, fx *Effects) {
	id := j.req.MemberID
	if g.pending[id] != nil {
		if j.req.InstanceID != nil {
			fx.Reply(j.to, joinError(ErrUnknownServer, "")) // static members are never pending; Kafka names none here
			return
		}
		s.addMember(now, g, id, j, fx)
		return
	}
	m, err := g.checkMember(id, j.req.InstanceID)
	if err != nil {
		fx.Reply(j.to, joinError(err, id))
		return
	}
	same := m.sameProtocols(j.protocols)
	switch g.state {
	case PreparingRebalance:
		m.update(j)
		g.count(m)
		m.parkJoin(j.to, fx)
		s.completeIfAllJoined(now, g, fx)
	case CompletingRebalance:
		if same { // it missed the answer
			fx.Reply(j.to, g.joined(m, m == g.leader))
			return
		}
		s.rejoin(now, g, m, j, fx)
	case Stable:
		if same && m != g.leader {
			fx.Reply(j.to, g.joined(m, false))
			return
		}
		s.rejoin(now, g, m, j, fx)
	default:
		fx.Reply(j.to, joinError(ErrUnknownMemberID, id))
	}
}

// rejoin begins a rebalance for a member whose join asks for one.
func (s *Shard) rejoin(now time.Time, g *classicGroup, m *member, j *join, fx *Effects) {
	m.update(j)
	g.count(m)
	m.parkJoin(j.to, fx)
	s.prepareRebalance(now, g, fx)
}

func (s *Shard) addPending(now time.Time, g *classicGroup, id string, session time.Duration) {
	p := &pendingMember{id: id}
	p.expiry.fire = func(s *Shard, now time.Time, fx *Effects) {
		s.removePending(g, p)
		s.completeIfAllJoined(now, g, fx)
	}
	g.pending[id] = p
	s.soft.timers.set(&p.expiry, now.Add(session))
}

func (s *Shard) removePending(g *classicGroup, p *pendingMember) {
	s.soft.timers.stop(&p.expiry)
	delete(g.pending, p.id)
}

// addMember adds a new member and parks its join.
func (s *Shard) addMember(now time.Time, g *classicGroup, id string, j *join, fx *Effects) {
	if p := g.pending[id]; p != nil {
		s.removePending(g, p)
	}
	if len(g.members) == 0 {
		g.protocolType = j.req.ProtocolType
	}
	if g.state == PreparingRebalance && g.initial {
		g.added = true
	}
	m := &member{id: id, instanceID: j.req.InstanceID, isNew: true}
	m.update(j)
	m.clientID, m.clientHost = j.client.ClientID, j.client.ClientHost
	g.add(m)
	m.parkJoin(j.to, fx)
	s.setSession(g, m, now.Add(s.config.NewMemberJoinTimeout))
	if g.state == PreparingRebalance {
		s.completeIfAllJoined(now, g, fx)
		return
	}
	s.prepareRebalance(now, g, fx)
}

// update takes over what a join says of its member.
func (m *member) update(j *join) {
	m.protocols = j.protocols
	m.sessionTimeout = millis(j.req.SessionTimeoutMillis)
	m.rebalanceTimeout = millis(j.req.RebalanceTimeoutMillis)
	if j.req.Version == 0 || j.req.RebalanceTimeoutMillis < 0 {
		m.rebalanceTimeout = m.sessionTimeout
	}
}

// replaceStatic gives a static member's place to the process that restarted under its instance id. The old
// member id is fenced from now on. In a Stable group whose choice of protocol stays nobody else notices.
func (s *Shard) replaceStatic(now time.Time, g *classicGroup, m *member, id string, j *join, fx *Effects) {
	m.answerJoin(joinError(ErrFencedInstanceID, m.id), fx)
	m.answerSync(syncError(ErrFencedInstanceID), fx)
	before, oldLeader := m.identity(), g.leader.id
	g.rename(m, id)
	m.isNew = false
	m.update(j)
	g.count(m)
	m.clientID, m.clientHost = j.client.ClientID, j.client.ClientHost
	s.restartSession(now, g, m)

	if g.state == Stable && equalStrings(g.choose(), g.protocol) {
		reply := g.joined(m, false)
		switch {
		case j.req.Version < 9:
			// Versions that cannot say "skip the assignment" name the old leader, so that a leader which
			// restarts acts as a follower and takes what it had.
			reply.Leader = oldLeader
		case m == g.leader:
			reply = g.joined(m, true)
			reply.SkipAssignment = true
		}
		fx.Append(g.record(assigned))
		fx.ReplyAfterCommit(j.to, reply)
		s.onFinish(fx, s.replacementEnds(g, m, before))
		m.replacements = append(m.replacements, fx.Write)
		return
	}
	m.replacements = nil
	m.parkJoin(j.to, fx)
	if g.state == PreparingRebalance {
		s.completeIfAllJoined(now, g, fx)
		return
	}
	s.prepareRebalance(now, g, fx)
}

// replacementEnds gives the old member id its place back if the record of its replacement failed. Later
// replacements of the same member have failed too, and are undone with it.
func (s *Shard) replacementEnds(g *classicGroup, m *member, before memberIdentity) finish {
	return func(id WriteID, now time.Time, err error, _ *Effects) {
		i := slices.Index(m.replacements, id)
		switch {
		case i < 0:
		case err == nil:
			m.replacements = slices.Delete(m.replacements, i, i+1)
		default:
			m.replacements = m.replacements[:i]
			if g.byID[m.id] != m {
				return // it has left since
			}
			g.rename(m, before.id)
			m.restore(before)
			s.restartSession(now, g, m)
		}
	}
}

// A memberIdentity is what a static member's restart changes.
type memberIdentity struct {
	id, clientID, clientHost         string
	sessionTimeout, rebalanceTimeout time.Duration
	protocols                        []protocol
}

func (m *member) identity() memberIdentity {
	return memberIdentity{m.id, m.clientID, m.clientHost, m.sessionTimeout, m.rebalanceTimeout, m.protocols}
}

// restore takes back all but the id.
func (m *member) restore(i memberIdentity) {
	m.clientID, m.clientHost = i.clientID, i.clientHost
	m.sessionTimeout, m.rebalanceTimeout, m.protocols = i.sessionTimeout, i.rebalanceTimeout, i.protocols
}

func assigned(m *member) []byte { return m.assignment }
