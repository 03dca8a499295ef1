package group

import (
	"bytes"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// The states of a classic group, spelled as on the wire.
const (
	Empty               = "Empty"
	PreparingRebalance  = "PreparingRebalance"
	CompletingRebalance = "CompletingRebalance"
	Stable              = "Stable"
	Dead                = "Dead"
)

// A classicGroup is the soft state of one classic group.
//
// Invariants: the generation never falls; the leader is a member, or there is none and no members; in
// Preparing every parked request is a join, in Completing a sync, and in Empty and Stable none is parked.
type classicGroup struct {
	id           string
	state        string
	stateSince   int64  // milliseconds since 1970; -1: unknown
	protocolType string // "": none
	protocol     *string
	generation   int32
	leader       *member
	members      []*member          // in the order in which they were added
	byID         map[string]*member // the same; static members also in byInstance
	byInstance   map[string]*member
	pending      map[string]*pendingMember // by member id

	// While Preparing: the join phase. initial says that the group was Empty before it, and then added
	// that a member came since the timer was last set, delay what that was set to, and remaining how much
	// longer it may be put off.
	joinTimer        timer
	initial, added   bool
	delay, remaining time.Duration

	// While Completing, and Stable until every member has synced.
	syncTimer timer
	// lastSync is the leader's sync that counts: a second one overwrites the first, and 0 means none yet.
	lastSync WriteID

	held *held // what its members take is counted here
}

// A member of a classic group.
type member struct {
	id               string
	instanceID       *string
	clientID         string
	clientHost       string
	sessionTimeout   time.Duration
	rebalanceTimeout time.Duration
	protocols        []protocol // by preference
	assignment       []byte
	session          timer
	isNew            bool // parked in its first join: the session clock runs for the new-member timeout
	synced           bool // has sent SyncGroup in this generation
	join, sync       ReplyTo
	joining, syncing bool // join, sync hold a parked request
	// replacements are the writes, oldest first, by which restarts took this static member over, and whose
	// outcome is open.
	replacements []WriteID
	counted      int64 // bytes that are held for it
}

// A pendingMember has been given a member id (MEMBER_ID_REQUIRED) and not yet come back with it.
type pendingMember struct {
	id     string
	expiry timer
}

type protocol struct {
	name     string
	metadata []byte
}

func newClassicGroup(now time.Time, id string, h *held) *classicGroup {
	g := &classicGroup{id: id, held: h, state: Empty, stateSince: now.UnixMilli()}
	g.init()
	return g
}

// init makes the group's maps, and gives its two timers their steps.
func (g *classicGroup) init() {
	g.pending = map[string]*pendingMember{}
	g.byID, g.byInstance = map[string]*member{}, map[string]*member{}
	g.joinTimer.fire = func(s *Shard, now time.Time, fx *Effects) { s.joinPhaseEnds(now, g, fx) }
	g.syncTimer.fire = func(s *Shard, now time.Time, fx *Effects) { s.syncPhaseEnds(now, g, fx) }
}

// groupFromRecord makes a group as it was last written: Stable if it has members. Each supports only the
// protocol that was chosen, since no other was written.
func groupFromRecord(id string, v *GroupMetadataValue, h *held) *classicGroup {
	g := &classicGroup{
		held:         h,
		id:           id,
		state:        Empty,
		stateSince:   v.CurrentStateTimestamp,
		protocolType: v.ProtocolType,
		protocol:     v.Protocol,
		generation:   v.Generation,
	}
	g.init()
	for i := range v.Members {
		w := &v.Members[i]
		m := &member{
			id:               w.MemberID,
			instanceID:       w.InstanceID,
			clientID:         w.ClientID,
			clientHost:       w.ClientHost,
			sessionTimeout:   millis(w.SessionTimeoutMs),
			rebalanceTimeout: millis(w.RebalanceTimeoutMs),
			protocols:        []protocol{{name: deref(v.Protocol), metadata: w.Subscription}},
			assignment:       w.Assignment,
			synced:           true,
		}
		if w.RebalanceTimeoutMs < 0 {
			m.rebalanceTimeout = m.sessionTimeout
		}
		g.add(m)
		if v.Leader != nil && *v.Leader == m.id {
			g.leader = m
		}
	}
	if len(g.members) > 0 {
		g.state = Stable
	}
	return g
}

// record is the group as it is written, with the given assignment of each member.
func (g *classicGroup) record(assignment func(*member) []byte) *GroupMetadataRecord {
	v := &GroupMetadataValue{
		ProtocolType:          g.protocolType,
		Generation:            g.generation,
		Protocol:              g.protocol,
		CurrentStateTimestamp: g.stateSince,
	}
	if g.leader != nil {
		leader := g.leader.id
		v.Leader = &leader
	}
	for _, m := range g.members {
		v.Members = append(v.Members, GroupMetadataMember{
			MemberID:           m.id,
			InstanceID:         m.instanceID,
			ClientID:           m.clientID,
			ClientHost:         m.clientHost,
			RebalanceTimeoutMs: int32(m.rebalanceTimeout / time.Millisecond),
			SessionTimeoutMs:   int32(m.sessionTimeout / time.Millisecond),
			Subscription:       m.metadataOf(g.protocol),
			Assignment:         assignment(m),
		})
	}
	return &GroupMetadataRecord{Group: g.id, Value: v}
}

func (g *classicGroup) enter(now time.Time, state string) {
	g.state = state
	g.stateSince = now.UnixMilli()
}

// checkMember finds the member that a request comes from: ErrUnknownMemberID, or ErrFencedInstanceID when
// its instance id has passed to another member id. Pending members are unknown.
func (g *classicGroup) checkMember(id string, instanceID *string) (*member, error) {
	if instanceID != nil {
		switch owner := g.byInstance[*instanceID]; {
		case owner == nil:
			return nil, ErrUnknownMemberID
		case owner.id != id:
			return nil, ErrFencedInstanceID
		}
	}
	if m := g.byID[id]; m != nil {
		return m, nil
	}
	return nil, ErrUnknownMemberID
}

func (g *classicGroup) joiningCount() int {
	n := 0
	for _, m := range g.members {
		if m.joining {
			n++
		}
	}
	return n
}

// allJoined says that nobody has to be waited for.
func (g *classicGroup) allJoined() bool {
	return len(g.pending) == 0 && g.joiningCount() == len(g.members)
}

func (g *classicGroup) allSynced() bool {
	return !slices.ContainsFunc(g.members, func(m *member) bool { return !m.synced })
}

// rebalanceTimeout of a group is the longest of its members'.
func (g *classicGroup) rebalanceTimeout() time.Duration {
	var longest time.Duration
	for _, m := range g.members {
		longest = max(longest, m.rebalanceTimeout)
	}
	return longest
}

// supports says whether a member with this protocol type and list could join: one of its protocols must be
// known to all members.
func (g *classicGroup) supports(protocolType string, protocols []protocol) bool {
	if len(g.members) == 0 {
		return protocolType != "" && len(protocols) > 0
	}
	return protocolType == g.protocolType &&
		slices.ContainsFunc(protocols, func(p protocol) bool { return g.allSupport(p.name) })
}

func (g *classicGroup) allSupport(name string) bool {
	return !slices.ContainsFunc(g.members, func(m *member) bool { return !m.supports(name) })
}

// choose is the vote on the protocol: each member for the first of its list that all support. A tie goes to
// the leader's preference. Nil if they have none in common.
func (g *classicGroup) choose() *string {
	votes := map[string]int{}
	most := 0
	for _, m := range g.members {
		for _, p := range m.protocols {
			if g.allSupport(p.name) {
				votes[p.name]++
				most = max(most, votes[p.name])
				break
			}
		}
	}
	if g.leader == nil {
		return nil
	}
	for _, p := range g.leader.protocols {
		if n := votes[p.name]; n > 0 && n == most {
			name := p.name
			return &name
		}
	}
	return nil
}

func (g *classicGroup) add(m *member) {
	g.members = append(g.members, m)
	g.byID[m.id] = m
	if m.instanceID != nil {
		g.byInstance[*m.instanceID] = m
	}
	if g.leader == nil {
		g.leader = m
	}
	g.count(m)
}

// remove takes a member out of the group. Its leadership passes to the member that has been there longest.
func (g *classicGroup) remove(m *member) {
	g.uncount(m)
	delete(g.byID, m.id)
	if m.instanceID != nil {
		delete(g.byInstance, *m.instanceID)
	}
	g.members = slices.DeleteFunc(g.members, func(other *member) bool { return other == m })
	if g.leader == m {
		g.leader = nil
		if len(g.members) > 0 {
			g.leader = g.members[0]
		}
	}
}

// rename gives a static member another member id.
func (g *classicGroup) rename(m *member, id string) {
	delete(g.byID, m.id)
	m.id = id
	g.byID[id] = m
}

func (g *classicGroup) joinedMembers() []JoinedMember {
	joined := make([]JoinedMember, len(g.members))
	for i, m := range g.members {
		joined[i] = JoinedMember{MemberID: m.id, InstanceID: m.instanceID, Metadata: m.metadataOf(g.protocol)}
	}
	return joined
}

// joined is the answer to a join of m in the current generation.
func (g *classicGroup) joined(m *member, withMembers bool) *JoinReply {
	protocolType := g.protocolType
	r := &JoinReply{
		Generation:   g.generation,
		ProtocolType: &protocolType,
		Protocol:     g.protocol,
		Leader:       g.leader.id,
		MemberID:     m.id,
		Members:      []JoinedMember{},
	}
	if withMembers {
		r.Members = g.joinedMembers()
	}
	return r
}

// synced is the answer to a sync of m.
func (g *classicGroup) synced(m *member) *SyncReply {
	protocolType := g.protocolType
	assignment := m.assignment
	if assignment == nil {
		assignment = []byte{}
	}
	return &SyncReply{ProtocolType: &protocolType, Protocol: g.protocol, Assignment: assignment}
}

func (m *member) supports(name string) bool {
	return slices.ContainsFunc(m.protocols, func(p protocol) bool { return p.name == name })
}

// metadataOf is the member's metadata for a protocol; empty if it has none.
func (m *member) metadataOf(name *string) []byte {
	if name != nil {
		for _, p := range m.protocols {
			if p.name == *name {
				return p.metadata
			}
		}
	}
	return []byte{}
}

// sameProtocols says that the list is what the member has, byte for byte and in the same order.
func (m *member) sameProtocols(protocols []protocol) bool {
	return slices.EqualFunc(m.protocols, protocols, func(a, b protocol) bool {
		return a.name == b.name && bytes.Equal(a.metadata, b.metadata)
	})
}

func (m *member) parked() bool { return m.joining || m.syncing }

// parkJoin keeps a join until the join phase ends. An earlier one of the same member, sent again by a client
// that gave up on it, is told to join anew.
func (m *member) parkJoin(to ReplyTo, fx *Effects) {
	m.answerJoin(joinError(ErrRebalanceInProgress, m.id), fx)
	m.join, m.joining = to, true
}

func (m *member) parkSync(to ReplyTo, fx *Effects) {
	m.answerSync(syncError(ErrRebalanceInProgress), fx)
	m.sync, m.syncing = to, true
}

// answerJoin answers the member's parked join, if it has one.
func (m *member) answerJoin(r *JoinReply, fx *Effects) bool {
	if !m.joining {
		return false
	}
	m.joining = false
	fx.Reply(m.join, r)
	return true
}

// answerSync answers the member's parked sync, if it has one.
func (m *member) answerSync(r *SyncReply, fx *Effects) bool {
	if !m.syncing {
		return false
	}
	m.syncing = false
	fx.Reply(m.sync, r)
	return true
}

// protocolsOf copies the list of a request, which may share memory with the request's buffer.
func protocolsOf(req *kmsg.JoinGroupRequest) []protocol {
	protocols := make([]protocol, len(req.Protocols))
	for i, p := range req.Protocols {
		protocols[i] = protocol{p.Name, append([]byte{}, p.Metadata...)}
	}
	return protocols
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func equalStrings(a, b *string) bool { return a == b || a != nil && b != nil && *a == *b }
