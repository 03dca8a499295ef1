package group

import (
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Groups move between the protocols while members of both are in them (KIP-848): a classic group takes in a member of the
// consumer protocol and becomes a consumer group whose other members go on to speak the classic one; when only those are
// left it becomes a classic group again.

// A subscribed member is what the metadata of a classic consumer says.
type subscribedMember struct {
	version int16
	topics  []string
	owned   map[string][]int32 // by topic; nil: it does not say, and owns nothing
	rack    *string
}

// readSubscription reads the embedded protocol's subscription. Versions above 3 are read with the layout of 3.
func readSubscription(metadata []byte) (sub subscribedMember, ok bool) {
	r := kbin.Reader{Src: metadata}
	sub.version = r.Int16()
	for n := r.ArrayLen(); n > 0 && r.Ok(); n-- {
		sub.topics = append(sub.topics, r.String())
	}
	r.NullableBytes()
	if sub.version >= 1 && r.Ok() {
		sub.owned, _ = readNamedPartitions(&r)
	}
	if sub.version >= 2 && r.Ok() {
		r.Int32() // generation
	}
	if sub.version >= 3 && r.Ok() {
		sub.rack = r.NullableString()
	}
	return sub, r.Ok() && sub.version >= 0
}

func readNamedPartitions(r *kbin.Reader) (map[string][]int32, bool) {
	named := map[string][]int32{}
	for n := r.ArrayLen(); n > 0 && r.Ok(); n-- {
		topic := r.String()
		for k := r.ArrayLen(); k > 0 && r.Ok(); k-- {
			named[topic] = append(named[topic], r.Int32())
		}
	}
	return named, r.Ok()
}

// readAssignment reads the embedded protocol's assignment; userData is whether there is any.
func readAssignment(assignment []byte) (partitions map[string][]int32, userData, ok bool) {
	if len(assignment) == 0 {
		return nil, false, true
	}
	r := kbin.Reader{Src: assignment}
	version := r.Int16()
	partitions, _ = readNamedPartitions(&r)
	data := r.NullableBytes()
	return partitions, len(data) > 0, r.Ok() && version >= 0
}

// appendAssignment is partitions as a classic consumer reads them, in the version of its subscription.
func (s *Shard) appendAssignment(version int16, list []TopicPartitions) []byte {
	b := kbin.AppendInt16(nil, max(min(version, 3), 0))
	topics := s.described(list)
	b = kbin.AppendArrayLen(b, len(topics))
	for _, t := range topics {
		b = kbin.AppendString(b, t.Topic)
		b = kbin.AppendArrayLen(b, len(t.Partitions))
		for _, p := range t.Partitions {
			b = kbin.AppendInt32(b, p)
		}
	}
	return kbin.AppendNullableBytes(b, nil)
}

// byIDs are partitions of topics that exist, by their ids.
func (s *Shard) byIDs(named map[string][]int32) ownership {
	o := ownership{}
	for name, partitions := range named {
		topic, ok := s.image.Topic(name)
		if !ok {
			continue
		}
		for _, p := range partitions {
			o[partitionID{topic.ID, p}] = 0
		}
	}
	return o
}

// upgrade turns a classic group with members into one of the consumer protocol, for a member of that which comes. What
// they were assigned stays theirs; requests that wait are told to join anew.
func (s *Shard) upgrade(now time.Time, g *classicGroup, b *beat) error {
	if s.config.NoUpgrade || g.protocolType != consumerProtocolType || g.protocol == nil || len(g.members) > s.config.ConsumerMaxSize {
		return ErrGroupIDNotFound
	}
	var members, targets, currents []Record
	for _, m := range g.members {
		sub, ok := readSubscription(m.metadataOf(g.protocol))
		if !ok {
			return ErrGroupIDNotFound
		}
		named, userData, ok := readAssignment(m.assignment)
		if !ok || userData {
			return ErrGroupIDNotFound
		}
		has := s.byIDs(named)
		for p := range has {
			has[p] = g.generation
		}
		classic := &ClassicMember{SessionTimeoutMs: int32(m.sessionTimeout.Milliseconds())}
		for _, p := range m.protocols {
			classic.Protocols = append(classic.Protocols, ClassicProtocol{p.name, p.metadata})
		}
		members = append(members, &ConsumerMemberRecord{Group: g.id, Member: m.id, Value: &ConsumerMemberValue{
			InstanceID: m.instanceID, RackID: sub.rack, ClientID: m.clientID, ClientHost: m.clientHost, Topics: sortedNames(sub.topics),
			RebalanceTimeoutMs: int32(m.rebalanceTimeout.Milliseconds()), Classic: classic,
		}})
		targets = append(targets, &ConsumerTargetMemberRecord{Group: g.id, Member: m.id, Value: &ConsumerTargetMemberValue{Partitions: listOf(has)}})
		currents = append(currents, &ConsumerCurrentRecord{Group: g.id, Member: m.id, Value: &ConsumerCurrentValue{
			Epoch: g.generation, PreviousEpoch: g.generation, State: memberStable, Assigned: has.list(),
		}})
	}
	records := append([]Record{&GroupMetadataRecord{Group: g.id}}, members...)
	records = append(records, &ConsumerGroupRecord{Group: g.id, Value: &ConsumerGroupValue{Epoch: g.generation}})
	records = append(records, targets...)
	records = append(records, &ConsumerTargetRecord{Group: g.id, Value: &ConsumerTargetValue{Epoch: g.generation}})
	records = append(records, currents...)

	// What the heartbeat goes on with is the group that these records will make.
	made := newReplicated(nil)
	for i, rec := range records {
		made.replay(int64(i), -1, rec)
	}
	b.g = made.consumers[g.id]
	b.converts = func() {
		for _, m := range g.members {
			m.answerJoin(joinError(ErrRebalanceInProgress, m.id), b.fx)
			m.answerSync(syncError(ErrRebalanceInProgress), b.fx)
			s.restartConsumerSession(now, g.id, m.id, m.sessionTimeout)
		}
		s.forget(g)
	}
	b.fx.Append(records...)
	return nil
}

// downgrade turns a consumer group into a classic one when, without the members that go, only such are left that speak
// the classic protocol. They are assigned what the target says, and rebalance at once.
func (s *Shard) downgrade(now time.Time, g *consumerGroup, gone []string, fx *Effects) bool {
	left := len(g.members.Newest()) - len(gone)
	if left == 0 || s.config.NoDowngrade || left > s.config.MaxSize || g.classic < left {
		return false
	}
	epoch, _ := g.groupEpoch()
	classic := newClassicGroup(now, g.id, s.held)
	classic.protocolType, classic.generation = consumerProtocolType, epoch
	for _, id := range sortedKeys(g.members.Newest()) {
		v, _ := g.members.Get(id)
		if slices.Contains(gone, id) {
			continue
		}
		if v.Classic == nil {
			return false
		}
		m := &member{
			id: id, instanceID: v.InstanceID, clientID: v.ClientID, clientHost: v.ClientHost,
			sessionTimeout: millis(v.Classic.SessionTimeoutMs), rebalanceTimeout: millis(v.RebalanceTimeoutMs), synced: true,
		}
		version := int16(0)
		for i, p := range v.Classic.Protocols {
			if sub, ok := readSubscription(p.Metadata); ok && i == 0 {
				version = sub.version
			}
			m.protocols = append(m.protocols, protocol{p.Name, p.Metadata})
		}
		m.assignment = s.appendAssignment(version, g.targetOf(id))
		classic.add(m)
	}
	classic.protocol = classic.choose()
	classic.enter(now, Stable)

	s.deleteConsumer(g, fx)
	fx.Append(classic.record(assigned))
	s.soft.groups[g.id] = classic
	s.held.add(groupSize)
	for _, m := range classic.members {
		s.restartSession(now, classic, m)
	}
	s.onFinish(fx, func(_ WriteID, now time.Time, err error, fx *Effects) {
		if err == nil {
			return
		}
		if s.soft.groups[g.id] == classic {
			for _, m := range classic.members { // it is a consumer group again
				m.answerJoin(joinError(err, ""), fx)
				m.answerSync(syncError(err), fx)
			}
			s.forget(classic)
		}
		s.startConsumerClocks(now, g.id)
	})
	s.prepareRebalance(now, classic, fx)
	return true
}

// joinConsumers is a JoinGroup in a group of the consumer protocol: for the one who asks it looks like a classic
// group whose leader is somebody else. It is answered as soon as it is written.
func (s *Shard) joinConsumers(now time.Time, g *consumerGroup, j *join, fx *Effects) {
	var own Effects
	reply, err := s.joinConsumer(now, g, j, &own)
	if err != nil {
		id := j.req.MemberID
		if reply != nil {
			id = reply.MemberID
		}
		fx.Reply(j.to, joinError(err, id))
		return
	}
	*fx = own
	fx.ReplyAfterCommit(j.to, reply)
}

func (s *Shard) joinConsumer(now time.Time, g *consumerGroup, j *join, fx *Effects) (*JoinReply, error) {
	req := j.req
	known, isKnown := g.members.Get(req.MemberID)
	owner, instance := "", false
	if req.InstanceID != nil {
		owner, instance = g.instances[*req.InstanceID]
	}
	switch {
	case s.config.NoUpgrade && s.config.NoDowngrade:
		return nil, ErrInconsistentGroupProtocol
	case !isKnown && !instance && (len(g.members.Newest()) >= s.config.ConsumerMaxSize || !s.roomToJoin(nil, req)):
		return nil, ErrGroupMaxSizeReached
	case req.ProtocolType != consumerProtocolType || len(j.protocols) == 0 || !g.shares(j.protocols, req.MemberID):
		return nil, ErrInconsistentGroupProtocol
	case req.MemberID == "" && req.InstanceID == nil && req.Version >= 4:
		return &JoinReply{MemberID: j.client.ClientID + "-" + s.config.NewUUID()}, ErrMemberIDRequired
	}
	sub, ok := readSubscription(j.protocols[0].metadata)
	if !ok {
		return nil, ErrInconsistentGroupProtocol
	}
	b := &beat{s: s, now: now, client: j.client, fx: fx, g: g, id: req.MemberID}
	switch {
	case b.id == "" && req.InstanceID != nil:
		b.id = *req.InstanceID + "-" + s.config.NewUUID()
		if instance {
			b.replaced = owner
			known, isKnown = g.members.Get(owner)
		}
	case b.id == "":
		b.id = j.client.ClientID + "-" + s.config.NewUUID()
	case req.InstanceID != nil:
		if _, err := g.checkMember(b.id, req.InstanceID); err != nil {
			return nil, err
		}
	}
	if isKnown {
		b.known = known
	}
	b.classic = &ClassicMember{SessionTimeoutMs: req.SessionTimeoutMillis}
	for _, p := range j.protocols {
		b.classic.Protocols = append(b.classic.Protocols, ClassicProtocol{p.name, p.metadata})
	}
	rebalance := req.RebalanceTimeoutMillis
	if req.Version == 0 || rebalance < 0 {
		rebalance = req.SessionTimeoutMillis
	}
	b.req = &kmsg.ConsumerGroupHeartbeatRequest{
		Group: req.Group, MemberID: b.id, InstanceID: req.InstanceID, RackID: sub.rack, RebalanceTimeoutMillis: rebalance,
		SubscribedTopicNames: append([]string{}, sub.topics...), Topics: []kmsg.ConsumerGroupHeartbeatRequestTopic{},
	}
	for _, t := range listOf(s.byIDs(sub.owned)) {
		b.req.Topics = append(b.req.Topics, kmsg.ConsumerGroupHeartbeatRequestTopic{TopicID: t.TopicID, Partitions: t.Partitions})
	}
	if err := b.update(); err != nil {
		return nil, err
	}
	b.raiseEpoch()
	b.assign()
	step := b.reconcile()

	clocks := s.clocksOf(g.id, b.id)
	s.soft.timers.stop(&clocks.join)
	s.startFence(now, &clocks.sync, g.id, b.id, millis(rebalance))
	protocolType, protocol := consumerProtocolType, j.protocols[0].name
	return &JoinReply{Generation: step.Epoch, ProtocolType: &protocolType, Protocol: &protocol, MemberID: b.id, Members: []JoinedMember{}}, nil
}

// shares says whether a protocol is known to all members that speak the classic one, but for one of them.
func (g *consumerGroup) shares(protocols []protocol, but string) bool {
	return slices.ContainsFunc(protocols, func(p protocol) bool {
		for id, m := range g.members.Newest() {
			if id != but && m.Classic != nil && !slices.ContainsFunc(m.Classic.Protocols, func(own ClassicProtocol) bool { return own.Name == p.name }) {
				return false
			}
		}
		return true
	})
}

// checkClassic finds the member behind a request of the classic protocol in a consumer group.
func (g *consumerGroup) checkClassic(id string, instanceID *string, generation int32) (*ConsumerMemberValue, error) {
	m, err := g.checkMember(id, instanceID)
	switch {
	case err != nil:
		return nil, err
	case m.Classic == nil:
		return nil, ErrUnknownMemberID
	case generation != g.currentOf(id).Epoch:
		return nil, ErrIllegalGeneration
	}
	return m, nil
}

// syncConsumer answers a SyncGroup in a consumer group: at once, with what the member has.
func (s *Shard) syncConsumer(now time.Time, g *consumerGroup, req *kmsg.SyncGroupRequest) (*SyncReply, error) {
	m, err := g.checkClassic(req.MemberID, req.InstanceID, req.Generation)
	if err != nil {
		return nil, err
	}
	current := g.currentOf(req.MemberID)
	named := func(p ClassicProtocol) bool { return req.Protocol == nil || p.Name == *req.Protocol }
	target, _ := g.targetEpoch()
	switch {
	case req.ProtocolType != nil && *req.ProtocolType != consumerProtocolType, !slices.ContainsFunc(m.Classic.Protocols, named):
		return nil, ErrInconsistentGroupProtocol
	case target > current.Epoch && current.State != memberUnrevoked:
		return nil, ErrRebalanceInProgress
	}
	s.soft.timers.stop(&s.clocksOf(g.id, req.MemberID).sync)
	s.restartConsumerSession(now, g.id, req.MemberID, millis(m.Classic.SessionTimeoutMs))
	sub, _ := readSubscription(m.Classic.Protocols[0].Metadata)
	protocolType, protocol := consumerProtocolType, m.Classic.Protocols[0].Name
	return &SyncReply{ProtocolType: &protocolType, Protocol: &protocol, Assignment: s.appendAssignment(sub.version, current.Assigned)}, nil
}

// heartbeatConsumer answers a Heartbeat in a consumer group: who has a step to take is told to join anew, and has its
// rebalance timeout to do so.
func (s *Shard) heartbeatConsumer(now time.Time, g *consumerGroup, req *kmsg.HeartbeatRequest) error {
	m, err := g.checkClassic(req.MemberID, req.InstanceID, req.Generation)
	if err != nil {
		return err
	}
	s.restartConsumerSession(now, g.id, req.MemberID, millis(m.Classic.SessionTimeoutMs))
	current := g.currentOf(req.MemberID)
	target, _ := g.targetEpoch()
	step := current.Epoch < target || current.State == memberUnrevoked
	if current.State == memberUnreleased {
		subscribed := s.subscriptionOf(g, m)
		for p := range eachPartition(g.targetOf(req.MemberID)) {
			if _, taken := g.owners[p]; !taken && subscribed(p.topic) {
				step = true
			}
		}
	}
	if !step {
		return nil
	}
	if clocks := s.clocksOf(g.id, req.MemberID); !clocks.join.running() {
		s.startFence(now, &clocks.join, g.id, req.MemberID, millis(m.RebalanceTimeoutMs))
	}
	return ErrRebalanceInProgress
}

// leaveConsumers answers a LeaveGroup in a consumer group. However many leave, the group epoch rises once.
func (s *Shard) leaveConsumers(now time.Time, g *consumerGroup, members []kmsg.LeaveGroupRequestMember, fx *Effects) []LeftMember {
	left := make([]LeftMember, len(members))
	var gone []string
	for i, asked := range members {
		left[i] = LeftMember{MemberID: asked.MemberID, InstanceID: asked.InstanceID}
		id := asked.MemberID
		if id == "" && asked.InstanceID != nil {
			id = g.instances[*asked.InstanceID] // an administrator's doing
		}
		if _, err := g.checkMember(id, asked.InstanceID); err != nil {
			left[i].Err = err
		} else if slices.Contains(gone, id) {
			left[i].Err = ErrUnknownMemberID
		} else {
			gone = append(gone, id)
		}
	}
	if gone != nil {
		s.removeConsumers(now, g, gone, fx)
	}
	return left
}
