package group

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// The states of a consumer group beside Empty and Stable, spelled as on the wire.
const (
	Assigning   = "Assigning"
	Reconciling = "Reconciling"
)

// Epochs by which a member says that it goes.
const (
	leaves          = -1
	leavesForAWhile = -2
)

// An InvalidRequestError says what is wrong with a request by itself.
type InvalidRequestError struct{ Reason string }

func (e *InvalidRequestError) Error() string { return e.Reason }

// Unwrap is ErrInvalidRequest.
func (e *InvalidRequestError) Unwrap() error { return ErrInvalidRequest }

// A ConsumerHeartbeatReply answers ConsumerGroupHeartbeat. With an error, all but Err is empty.
type ConsumerHeartbeatReply struct {
	Err      error
	MemberID string
	Epoch    int32
	Interval time.Duration // until the next heartbeat
	// Assignment is all the member has; it is told only when HasAssignment.
	Assignment    []TopicPartitions
	HasAssignment bool
}

// Failed is err.
func (*ConsumerHeartbeatReply) Failed(err error) Response { return &ConsumerHeartbeatReply{Err: err} }

// ValidateConsumerHeartbeat makes the checks of a ConsumerGroupHeartbeat that need no group, and so come before whether
// the shard is loaded: *InvalidRequestError, ErrUnsupportedAssignor.
func (c Config) ValidateConsumerHeartbeat(req *kmsg.ConsumerGroupHeartbeatRequest) error {
	c = c.withDefaults()
	bad := func(reason string) error { return &InvalidRequestError{Reason: reason} }
	epoch := req.MemberEpoch
	switch {
	case req.MemberID == "" && (req.Version >= 1 || epoch > 0 || epoch == leaves):
		return bad("MemberId can't be empty.")
	case req.Group == "":
		return bad("GroupId can't be empty.")
	case req.InstanceID != nil && *req.InstanceID == "":
		return bad("InstanceId can't be empty.")
	case req.RackID != nil && *req.RackID == "":
		return bad("RackId can't be empty.")
	case epoch == 0 && req.RebalanceTimeoutMillis == -1:
		return bad("RebalanceTimeoutMs must be provided in first request.")
	case epoch == 0 && (req.Topics == nil || len(req.Topics) > 0):
		return bad("TopicPartitions must be empty when (re-)joining.")
	case epoch == 0 && req.SubscribedTopicNames == nil && req.SubscribedTopicRegex == nil:
		return bad("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")
	case epoch == leavesForAWhile && req.InstanceID == nil:
		return bad("InstanceId can't be null.")
	case epoch < leavesForAWhile:
		return bad(fmt.Sprintf("MemberEpoch is less than %d.", leavesForAWhile))
	}
	if req.ServerAssignor != nil && !slices.Contains(c.ConsumerAssignors, *req.ServerAssignor) {
		return fmt.Errorf("%w: %q; there are %v", ErrUnsupportedAssignor, *req.ServerAssignor, c.ConsumerAssignors)
	}
	return nil
}

// ConsumerGroupHeartbeat answers one ConsumerGroupHeartbeat (KIP-848): a member joins, goes on, or leaves.
func (s *Shard) ConsumerGroupHeartbeat(now time.Time, to ReplyTo, client RequestContext, req *kmsg.ConsumerGroupHeartbeatRequest) Effects {
	var fx Effects
	reply, err := s.consumerHeartbeat(now, client, req, &fx)
	if err != nil {
		fx, reply = Effects{}, &ConsumerHeartbeatReply{Err: err}
	}
	fx.ReplyAfterCommit(to, reply)
	return fx
}

func (s *Shard) consumerHeartbeat(now time.Time, client RequestContext, req *kmsg.ConsumerGroupHeartbeatRequest, fx *Effects) (*ConsumerHeartbeatReply, error) {
	if err := s.config.ValidateConsumerHeartbeat(req); err != nil {
		return nil, err
	}
	if req.MemberEpoch < 0 {
		return s.consumerLeaves(now, req, fx)
	}
	b := &beat{s: s, now: now, client: client, req: req, fx: fx}
	if err := b.findGroup(); err != nil {
		return nil, err
	}
	if err := b.findMember(); err != nil {
		return nil, err
	}
	if err := b.checkEpoch(); err != nil {
		return nil, err
	}
	if err := b.update(); err != nil {
		return nil, err
	}
	b.raiseEpoch()
	b.assign()
	reply := b.reconcile()
	if b.converts != nil {
		b.converts()
	}
	return reply, nil
}

// consumerLeaves removes a member, or a static one for a while: then what it has stays its own until its session ends.
func (s *Shard) consumerLeaves(now time.Time, req *kmsg.ConsumerGroupHeartbeatRequest, fx *Effects) (*ConsumerHeartbeatReply, error) {
	g := s.replicated.consumers[req.Group]
	if !g.exists() {
		return nil, ErrGroupIDNotFound
	}
	if _, err := g.checkMember(req.MemberID, req.InstanceID); err != nil {
		return nil, err
	}
	if req.MemberEpoch == leavesForAWhile {
		current := g.currentOf(req.MemberID)
		kept := ownership{}
		for p := range eachPartition(current.Assigned) {
			kept[p] = 0
		}
		s.writeCurrent(now, g, req.MemberID, &ConsumerCurrentValue{Epoch: leavesForAWhile, PreviousEpoch: current.Epoch, State: memberStable, Assigned: kept.list()}, 0, fx)
	} else {
		s.removeConsumers(now, g, []string{req.MemberID}, fx)
	}
	return &ConsumerHeartbeatReply{MemberID: req.MemberID, Epoch: req.MemberEpoch}, nil
}

// A beat is one heartbeat on its way: what the group will be when its records are replayed.
type beat struct {
	s      *Shard
	now    time.Time
	client RequestContext
	req    *kmsg.ConsumerGroupHeartbeatRequest
	fx     *Effects

	g        *consumerGroup
	id       string               // of the member, made here if the client has none
	known    *ConsumerMemberValue // the member as it was; nil: it is new
	replaced string               // id of the process whose place this one takes, or ""
	member   *ConsumerMemberValue // the member as it will be
	changed  bool                 // its subscription did
	classic  *ClassicMember       // of one that speaks the classic protocol
	converts func()               // takes leave of the classic group that becomes this one; nil: there is none

	epoch       int32 // the group's
	hash        int64
	raise       bool // the group epoch is to rise
	targetEpoch int32
	target      []TopicPartitions // the member's
}

// findGroup finds the group, or makes one in place of what may give way to it.
func (b *beat) findGroup() error {
	b.g = b.s.replicated.consumers[b.req.Group]
	if b.g.exists() {
		return nil
	}
	if b.req.MemberEpoch > 0 {
		return ErrGroupIDNotFound
	}
	if b.g == nil {
		b.g = newConsumerGroup(b.req.Group, nil) // the real one is made by its records
	}
	classic := b.s.group(b.now, b.req.Group)
	switch {
	case classic == nil:
		return nil
	case classic.state == Empty:
		b.fx.Append(&GroupMetadataRecord{Group: classic.id})
		b.converts = func() { b.s.forget(classic) }
		return nil
	}
	return b.s.upgrade(b.now, classic, b)
}

// findMember finds the member, by its instance id if it is a static one, and makes the checks of who it is.
func (b *beat) findMember() error {
	g, req := b.g, b.req
	b.id = req.MemberID
	if b.id == "" {
		b.id = b.s.config.NewUUID()
	}
	owner, instance := "", false
	if req.InstanceID != nil {
		owner, instance = g.instances[*req.InstanceID]
	}
	known, ok := g.members.Get(b.id)
	if !ok && !instance && len(g.members.Newest()) >= b.s.config.ConsumerMaxSize || !b.room(known) {
		return ErrGroupMaxSizeReached
	}
	switch {
	case req.InstanceID == nil:
		if !ok && req.MemberEpoch > 0 {
			return ErrUnknownMemberID
		}
	case req.MemberEpoch > 0:
		if _, err := g.checkMember(b.id, req.InstanceID); err != nil {
			return err
		}
	case instance:
		known, ok = g.members.Get(owner)
		if g.currentOf(owner).Epoch != leavesForAWhile && known.Classic == nil {
			return ErrUnreleasedInstanceID
		}
		b.replaced = owner
	}
	if ok {
		b.known = known
	}
	return nil
}

// room says whether what the heartbeat brings may be held: of a member that is known, what is more than it has.
func (b *beat) room(known *ConsumerMemberValue) bool {
	n := int64(memberSize + len(deref(b.req.SubscribedTopicRegex)))
	for _, topic := range b.req.SubscribedTopicNames {
		n += int64(len(topic) + 16)
	}
	if known != nil {
		return n <= consumerMemberBytes("", known) || b.s.held.room(n-consumerMemberBytes("", known))
	}
	return b.s.held.room(n + consumerGroupSize)
}

// checkEpoch refuses a member that is ahead of what is known of it, or behind. One step behind is the member that missed
// its last answer, if it has nothing that it should not have.
func (b *beat) checkEpoch() error {
	current := b.current()
	epoch := b.req.MemberEpoch
	switch {
	case epoch > current.Epoch && b.known != nil && epoch > 0:
		return ErrFencedMemberEpoch
	case epoch > 0 && epoch < current.Epoch:
		if epoch != current.PreviousEpoch || b.req.Topics == nil {
			return ErrFencedMemberEpoch
		}
		assigned := ownershipOf(current.Assigned, current.Epoch)
		for p := range b.owned() {
			if _, ok := assigned[p]; !ok {
				return ErrFencedMemberEpoch
			}
		}
	}
	if unknown := current.State < memberStable || current.State > memberUnreleased; unknown && (b.req.Topics == nil || len(b.req.Topics) > 0) {
		return ErrFencedMemberEpoch // a state that a later version wrote
	}
	return nil
}

// current is what the member has, or the one whose place it takes.
func (b *beat) current() *ConsumerCurrentValue {
	if b.replaced != "" {
		return b.g.currentOf(b.replaced)
	}
	return b.g.currentOf(b.id)
}

func (b *beat) owned() map[partitionID]struct{} {
	owned := map[partitionID]struct{}{}
	for _, t := range b.req.Topics {
		for _, partition := range t.Partitions {
			owned[partitionID{t.TopicID, partition}] = struct{}{}
		}
	}
	return owned
}

// update takes over what the heartbeat says of the member, and writes it if it is new.
func (b *beat) update() error {
	req := b.req
	m := &ConsumerMemberValue{RebalanceTimeoutMs: req.RebalanceTimeoutMillis}
	if b.known != nil {
		*m = *b.known
	}
	m.ClientID, m.ClientHost, m.Classic = b.client.ClientID, b.client.ClientHost, b.classic
	if b.classic != nil {
		m.Regex, m.Assignor = nil, nil // it cannot say that it has any
	}
	if req.InstanceID != nil {
		m.InstanceID = req.InstanceID
	}
	if req.RackID != nil {
		m.RackID = req.RackID
	}
	if req.RebalanceTimeoutMillis != -1 {
		m.RebalanceTimeoutMs = req.RebalanceTimeoutMillis
	}
	if req.SubscribedTopicNames != nil {
		m.Topics = sortedNames(req.SubscribedTopicNames)
	}
	if req.SubscribedTopicRegex != nil {
		m.Regex = req.SubscribedTopicRegex
	}
	if req.ServerAssignor != nil {
		m.Assignor = req.ServerAssignor
	}
	b.member = m

	var was ConsumerMemberValue
	if b.known != nil {
		was = *b.known
	}
	names := !slices.Equal(was.Topics, m.Topics)
	oldRegex, newRegex := deref(was.Regex), deref(m.Regex)
	b.changed = names || oldRegex != newRegex
	b.raise = names
	dropRegex := ""
	if oldRegex != newRegex {
		if oldRegex != "" && b.g.byRegex[oldRegex] == 1 {
			dropRegex = oldRegex
		}
		_, resolved := b.g.regexes.Get(newRegex)
		switch {
		case newRegex == "" || resolved:
			b.raise = true
		case b.g.byRegex[newRegex] == 0:
			if _, err := compileRegex(newRegex); err != nil {
				return fmt.Errorf("%w: %v", ErrInvalidRegularExpression, err)
			}
		}
	}
	if b.known != nil && deref(was.Assignor) != deref(m.Assignor) && b.preferred(b.g.assignors) != b.preferred(b.assignors()) {
		b.raise = true
	}

	if b.replaced != "" {
		b.takePlace()
	} else if b.known == nil || !sameMember(b.known, m) {
		b.fx.Append(&ConsumerMemberRecord{Group: b.g.id, Member: b.id, Value: m})
	}
	if _, ok := b.g.regexes.Get(dropRegex); ok && dropRegex != "" {
		b.fx.Append(&ConsumerRegexRecord{Group: b.g.id, Regex: dropRegex})
	}
	return nil
}

func sameMember(a, b *ConsumerMemberValue) bool {
	return equalStrings(a.InstanceID, b.InstanceID) && equalStrings(a.RackID, b.RackID) && a.ClientID == b.ClientID && a.ClientHost == b.ClientHost &&
		slices.Equal(a.Topics, b.Topics) && equalStrings(a.Regex, b.Regex) && a.RebalanceTimeoutMs == b.RebalanceTimeoutMs &&
		equalStrings(a.Assignor, b.Assignor) && sameClassic(a.Classic, b.Classic)
}

func sameClassic(a, b *ClassicMember) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.SessionTimeoutMs == b.SessionTimeoutMs && slices.EqualFunc(a.Protocols, b.Protocols, func(a, b ClassicProtocol) bool {
		return a.Name == b.Name && bytes.Equal(a.Metadata, b.Metadata)
	})
}

// takePlace gives what a static member had to the process that came back under its instance id.
func (b *beat) takePlace() {
	g := b.g
	current := *g.currentOf(b.replaced)
	current.Epoch, current.PreviousEpoch = 0, 0
	target := g.targetOf(b.replaced)
	if b.replaced != b.id {
		b.fx.Append(consumerTombstones(g.id, b.replaced)...)
	}
	b.fx.Append(
		&ConsumerMemberRecord{Group: g.id, Member: b.id, Value: b.member},
		&ConsumerTargetMemberRecord{Group: g.id, Member: b.id, Value: &ConsumerTargetMemberValue{Partitions: target}},
		&ConsumerCurrentRecord{Group: g.id, Member: b.id, Value: &current},
	)
}

// consumerTombstones remove a member.
func consumerTombstones(group, member string) []Record {
	return []Record{
		&ConsumerCurrentRecord{Group: group, Member: member},
		&ConsumerTargetMemberRecord{Group: group, Member: member},
		&ConsumerMemberRecord{Group: group, Member: member},
	}
}

// raiseEpoch lets the group epoch rise if the heartbeat, or the topics since the last one, changed what there is to
// assign.
func (b *beat) raiseEpoch() {
	soft := b.s.softConsumer(b.g.id)
	b.epoch, b.hash = b.g.groupEpoch()
	if b.raise || soft.checked != b.s.image || soft.hash != b.hash { // the last: what it was raised for was not written
		hash := b.s.topicsHash(b.topics())
		b.raise = b.raise || hash != b.hash
		b.hash, soft.hash, soft.checked = hash, hash, b.s.image
	}
	if b.raise {
		b.epoch++
		b.fx.Append(&ConsumerGroupRecord{Group: b.g.id, Value: &ConsumerGroupValue{Epoch: b.epoch, MetadataHash: b.hash}})
		if len(b.g.oldHash.Newest()) > 0 {
			b.fx.Append(&ConsumerPartitionsRecord{Group: b.g.id})
		}
	}
}

// topics are the names that the members subscribe to, this one as it will be.
func (b *beat) topics() map[string]int {
	change := map[string]*ConsumerMemberValue{b.id: b.member}
	if b.replaced != "" && b.replaced != b.id {
		change[b.replaced] = nil
	}
	return b.g.topics(change, nil)
}

// topics counts the members by the topics they subscribe to, with some as they will be, nil if they will not be there,
// and some regular expressions as they were just resolved.
func (g *consumerGroup) topics(change map[string]*ConsumerMemberValue, resolved map[string][]string) map[string]int {
	counts := make(map[string]int, len(g.byTopic))
	for topic, n := range g.byTopic {
		counts[topic] = n
	}
	regexes := make(map[string]int, len(g.byRegex))
	for regex, n := range g.byRegex {
		regexes[regex] = n
	}
	count := func(m *ConsumerMemberValue, n int) {
		for _, topic := range m.Topics {
			add(counts, topic, n)
		}
		if regex := deref(m.Regex); regex != "" {
			add(regexes, regex, n)
		}
	}
	for id, is := range change {
		if was, ok := g.members.Get(id); ok {
			count(was, -1)
		}
		if is != nil {
			count(is, 1)
		}
	}
	for regex := range regexes {
		matched, ok := resolved[regex]
		if v, old := g.regexes.Get(regex); old && !ok {
			matched = v.Topics
		}
		for _, topic := range matched {
			counts[topic]++
		}
	}
	return counts
}

// assignors counts the members by the assignor they prefer, this one as it will be.
func (b *beat) assignors() map[string]int {
	counts := map[string]int{}
	for name, n := range b.g.assignors {
		counts[name] = n
	}
	if b.known != nil && deref(b.known.Assignor) != "" {
		add(counts, *b.known.Assignor, -1)
	}
	if deref(b.member.Assignor) != "" {
		add(counts, *b.member.Assignor, 1)
	}
	return counts
}

// preferred is the assignor that most members prefer; of several the first that is configured, and so of none.
func (b *beat) preferred(counts map[string]int) string { return b.s.config.preferred(counts) }

func (c *Config) preferred(counts map[string]int) string {
	best := c.ConsumerAssignors[0]
	for _, name := range c.ConsumerAssignors {
		if counts[name] > counts[best] {
			best = name
		}
	}
	return best
}

// assign works out a new target if the group epoch asks for one, and the last is old enough.
func (b *beat) assign() {
	at := int64(0)
	b.targetEpoch, at = b.g.targetEpoch()
	b.target = b.g.targetOf(b.id)
	if b.replaced != "" {
		b.target = b.g.targetOf(b.replaced)
	}
	interval := b.s.consumerSettings(b.g.id).AssignmentInterval
	since := b.now.UnixMilli() - at // below zero: by the clock of another coordinator
	if b.epoch <= b.targetEpoch || at != 0 && since >= 0 && since < interval.Milliseconds() {
		return
	}
	members := make(map[string]*ConsumerMemberValue, len(b.g.members.Newest())+1)
	for id, m := range b.g.members.Newest() {
		members[id] = m
	}
	delete(members, b.replaced)
	members[b.id] = b.member
	had := func(id string) []TopicPartitions {
		if id == b.id {
			return b.target
		}
		return b.g.targetOf(id)
	}
	target := b.s.newTarget(b.g, members, b.preferred(b.assignors()), had)
	for _, id := range sortedKeys(target) {
		v := &ConsumerTargetMemberValue{Partitions: target[id]}
		if _, there := b.g.targets.Get(id); there && samePartitions(had(id), v.Partitions) || !there && len(v.Partitions) == 0 && id != b.id {
			continue
		}
		b.fx.Append(&ConsumerTargetMemberRecord{Group: b.g.id, Member: id, Value: v})
	}
	b.target, b.targetEpoch = target[b.id], b.epoch
	b.fx.Append(&ConsumerTargetRecord{Group: b.g.id, Value: &ConsumerTargetValue{Epoch: b.epoch, Timestamp: b.now.UnixMilli()}})
}

// reconcile lets the member take its step, and makes the answer.
func (b *beat) reconcile() *ConsumerHeartbeatReply {
	g, req := b.g, b.req
	settings := b.s.consumerSettings(g.id)
	current := b.current()
	if b.replaced != "" {
		came := *current
		came.Epoch, came.PreviousEpoch = 0, 0
		current = &came
	}
	if current.State < memberStable || current.State > memberUnreleased {
		came := *current
		came.State = memberUnreleased
		current = &came
	}
	step := &reconciliation{
		member: b.id, current: current, target: b.target, targetEpoch: b.targetEpoch,
		owned: b.owned(), ownedKnown: req.Topics != nil, changed: b.changed && b.known != nil,
		subscribed: b.s.subscriptionOf(g, b.member),
		owner: func(p partitionID) (string, bool) {
			owner, ok := g.owners[p]
			if ok && owner == b.replaced {
				owner = b.id
			}
			return owner, ok
		},
	}
	next := step.next()
	session, rebalance := settings.SessionTimeout, max(millis(b.member.RebalanceTimeoutMs), time.Millisecond)
	if b.classic != nil {
		session, rebalance = millis(b.classic.SessionTimeoutMs), 0
	} else {
		clocks := b.s.clocksOf(g.id, b.id)
		b.s.soft.timers.stop(&clocks.join)
		b.s.soft.timers.stop(&clocks.sync)
	}
	if next != current {
		b.s.writeCurrent(b.now, g, b.id, next, rebalance, b.fx)
	}
	b.s.restartConsumerSession(b.now, g.id, b.id, session)
	b.s.refreshRegexes(b)

	full := req.RebalanceTimeoutMillis != -1 && (req.SubscribedTopicNames != nil || req.SubscribedTopicRegex != nil) && req.Topics != nil
	reply := &ConsumerHeartbeatReply{MemberID: b.id, Epoch: next.Epoch, Interval: settings.HeartbeatInterval}
	if req.MemberEpoch == 0 || full || !samePartitions(next.Assigned, current.Assigned) {
		reply.Assignment, reply.HasAssignment = next.Assigned, true
	}
	return reply
}

// subscriptionOf says by a topic's id whether a member subscribes to it.
func (s *Shard) subscriptionOf(g *consumerGroup, m *ConsumerMemberValue) func(topic [16]byte) bool {
	var matched []string
	if regex := deref(m.Regex); regex != "" {
		if v, ok := g.regexes.Get(regex); ok {
			matched = v.Topics
		}
	}
	return func(id [16]byte) bool {
		topic, ok := s.image.TopicByID(id)
		if !ok {
			return false
		}
		if _, named := slices.BinarySearch(m.Topics, topic.Name); named {
			return true
		}
		_, named := slices.BinarySearch(matched, topic.Name)
		return named
	}
}

// writeCurrent writes what a member has from now on. While it has something to let go of, the time for that runs; 0: not
// here, for a member of the classic protocol has to join within its time.
func (s *Shard) writeCurrent(now time.Time, g *consumerGroup, id string, v *ConsumerCurrentValue, rebalanceTimeout time.Duration, fx *Effects) {
	fx.Append(&ConsumerCurrentRecord{Group: g.id, Member: id, Value: v})
	if v.State == memberUnrevoked && rebalanceTimeout > 0 {
		s.startRebalanceClock(now, g.id, id, v.Epoch, rebalanceTimeout)
	}
}
