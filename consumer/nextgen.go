package consumer

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// nextGen is the group protocol of KIP-848, in which the coordinator shares out the partitions: ConsumerGroupHeartbeat.
type nextGen struct {
	epoch       int32 // of the member; 0: it has to join
	coordinator int32 // node, -1 unknown
	interval    time.Duration
	topics      []string // as they were last told
	owned       []TopicPartition
	told        bool // owned is what the coordinator was told last
	target      map[[16]byte][]int32
	reconciling bool // target is not reached yet
}

// live joins, and sends heartbeats until the membership ends. Partitions move one by one: those that go are given back
// first, then the rest is taken over, and both are told.
func (p *nextGen) live(g *group) error {
	if g.id == "" {
		var id [16]byte
		_, _ = rand.Read(id[:])
		g.id = base64.RawURLEncoding.EncodeToString(id[:])
	}
	p.epoch, p.coordinator, p.interval, p.topics, p.owned, p.told, p.target, p.reconciling = 0, -1, g.c.o.HeartbeatInterval, nil, nil, false, nil, false
	for {
		if err := p.heartbeat(g); err != nil {
			return p.broken(g, err)
		}
		if p.reconciling {
			again := p.reconcile(g)
			if g.gone {
				return p.broken(g, errFenced)
			}
			if again {
				continue
			}
		}
		timer := time.NewTimer(p.interval)
		for waiting := true; waiting; {
			select {
			case <-g.ctx.Done():
				timer.Stop()
				return g.ctx.Err()
			case <-timer.C:
				waiting = false
			case <-g.wake:
				topics, _ := g.topics()
				waiting = slices.Equal(topics, p.topics) && !p.reconciling
			}
		}
		timer.Stop()
		if g.late() {
			g.abandon()
			return nil
		}
	}
}

// errFenced says that the coordinator has given the member up.
var errFenced = errors.New("consumer: the coordinator does not know the member in this epoch")

// broken is what follows from a heartbeat that failed.
func (p *nextGen) broken(g *group, err error) error {
	if errors.Is(err, errFenced) {
		id := g.id
		g.forsake(err)
		g.id = id // a member keeps its name for life
		return errRejoin
	}
	return err
}

// heartbeat tells the coordinator what has changed, and takes its answer.
func (p *nextGen) heartbeat(g *group) error {
	for wait := g.c.o.RetryBackoff; ; wait = min(2*wait, g.c.o.RetryBackoffMax) {
		retry, err := p.once(g)
		if !retry {
			return err
		}
		p.coordinator = -1
		p.topics, p.told = nil, false // say all again: what was heard is not known
		if !g.pause(wait) {
			return g.ctx.Err()
		}
	}
}

// once sends one heartbeat; retry says that it may not have been heard.
func (p *nextGen) once(g *group) (retry bool, err error) {
	ctx, cancel := context.WithTimeout(g.ctx, g.c.o.RequestTimeout)
	defer cancel()
	if p.coordinator < 0 {
		if p.coordinator, err = g.findCoordinator(ctx); err != nil {
			return g.ctx.Err() == nil && !errors.As(err, new(*GroupError)), err
		}
	}
	topics, _ := g.topics()
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Group, req.MemberID, req.MemberEpoch, req.RebalanceTimeoutMillis = g.c.o.GroupID, g.id, p.epoch, -1
	if p.epoch == 0 || p.topics == nil || !slices.Equal(topics, p.topics) {
		req.SubscribedTopicNames = append([]string{}, topics...)
		req.RebalanceTimeoutMillis = int32(g.c.o.MaxPollInterval.Milliseconds())
		req.InstanceID = g.instance
		if g.c.o.ClientRack != "" {
			req.RackID = kmsg.StringPtr(g.c.o.ClientRack)
		}
		if g.c.o.RemoteAssignor != "" {
			req.ServerAssignor = kmsg.StringPtr(g.c.o.RemoteAssignor)
		}
	}
	if p.epoch == 0 || !p.told {
		req.Topics = p.ownedByID(g)
	}
	got, err := g.c.client.Broker(int(p.coordinator)).Request(ctx, req)
	if err != nil {
		return g.ctx.Err() == nil, err
	}
	resp := got.(*kmsg.ConsumerGroupHeartbeatResponse)
	switch code := resp.ErrorCode; {
	case code == codeNone:
	case code == codeUnknownMemberID || code == codeFencedMemberEpoch:
		return false, errFenced
	case retriable(code):
		return true, nil
	default:
		return false, &GroupError{g.c.o.GroupID, "heartbeat", codeError(code)}
	}
	p.topics, p.told = append([]string{}, topics...), true
	p.epoch = resp.MemberEpoch
	if resp.MemberID != nil && *resp.MemberID != "" {
		g.id = *resp.MemberID
	}
	if resp.HeartbeatIntervalMillis > 0 {
		p.interval = time.Duration(resp.HeartbeatIntervalMillis) * time.Millisecond
	}
	if resp.Assignment != nil {
		p.target, p.reconciling = map[[16]byte][]int32{}, true
		for _, t := range resp.Assignment.Topics {
			p.target[t.TopicID] = t.Partitions
		}
	}
	g.gone = false
	g.c.mu.Lock()
	g.c.member = &membership{id: g.id, generation: p.epoch, instance: g.instance}
	g.c.mu.Unlock()
	return false, nil
}

// ownedByID is what the member has, by topic id.
func (p *nextGen) ownedByID(g *group) []kmsg.ConsumerGroupHeartbeatRequestTopic {
	topics := []kmsg.ConsumerGroupHeartbeatRequestTopic{}
	g.c.mu.Lock()
	defer g.c.mu.Unlock()
	at := map[string]int{}
	for _, tp := range p.owned {
		info := g.c.cluster.topics[tp.Topic]
		if info == nil {
			continue
		}
		i, ok := at[tp.Topic]
		if !ok {
			i = len(topics)
			at[tp.Topic] = i
			t := kmsg.NewConsumerGroupHeartbeatRequestTopic()
			t.TopicID = info.id
			topics = append(topics, t)
		}
		topics[i].Partitions = append(topics[i].Partitions, tp.Partition)
	}
	return topics
}

// reconcile goes towards the target. Topics of which the name is not known yet are waited for. It says whether the
// coordinator is to be told at once.
func (p *nextGen) reconcile(g *group) (tell bool) {
	var target []TopicPartition
	complete := true
	g.c.mu.Lock()
	for id, partitions := range p.target {
		name, ok := g.c.cluster.names[id]
		if !ok {
			complete = false
			g.c.refreshing.wanted = true
			continue
		}
		for _, n := range partitions {
			target = append(target, TopicPartition{name, n})
		}
	}
	if !complete {
		g.c.tick()
	}
	g.c.mu.Unlock()
	slices.SortFunc(target, compareTopicPartitions)
	asked := p.target
	owned := g.c.Assignment()
	given := without(owned, target)
	if !g.revoke(given) || g.gone {
		return false
	}
	if len(given) > 0 {
		p.owned, p.told = g.c.Assignment(), false
		return true // the rest may still be others', and follows
	}
	if len(without(target, owned)) > 0 || len(owned) == 0 && p.epoch > 0 && complete {
		if !g.assign(target) || g.gone {
			return false
		}
	}
	p.owned, p.told = target, false
	if complete && sameTarget(asked, p.target) {
		p.reconciling = false
	}
	return true
}

func sameTarget(a, b map[[16]byte][]int32) bool {
	if len(a) != len(b) {
		return false
	}
	for id, partitions := range a {
		if !slices.Equal(partitions, b[id]) {
			return false
		}
	}
	return true
}

// beat is a heartbeat while the program deals with a rebalance; what it brings is dealt with afterwards.
func (p *nextGen) beat(g *group) {
	if p.epoch <= 0 {
		return
	}
	if _, err := p.once(g); errors.Is(err, errFenced) {
		g.gone = true
	}
}

// leave says good-bye; a static member says that it will be back.
func (p *nextGen) leave(ctx context.Context, g *group) error {
	if p.epoch <= 0 {
		return nil
	}
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Group, req.MemberID, req.InstanceID, req.MemberEpoch, req.RebalanceTimeoutMillis = g.c.o.GroupID, g.id, g.instance, -1, -1
	if g.instance != nil {
		req.MemberEpoch = -2
	}
	p.epoch = 0
	_, err := req.RequestWith(ctx, g.c.client)
	return err
}

// findCoordinator asks who coordinates the group.
func (g *group) findCoordinator(ctx context.Context) (int32, error) {
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.CoordinatorKey, req.CoordinatorKeys = g.c.o.GroupID, []string{g.c.o.GroupID}
	resp, err := req.RequestWith(ctx, g.c.client)
	if err != nil {
		return -1, err
	}
	node, code := resp.NodeID, resp.ErrorCode
	for _, found := range resp.Coordinators {
		node, code = found.NodeID, found.ErrorCode
	}
	switch {
	case code == codeNone:
		return node, nil
	case retriable(code):
		return -1, codeError(code)
	}
	return -1, &GroupError{g.c.o.GroupID, "find the coordinator", codeError(code)}
}
