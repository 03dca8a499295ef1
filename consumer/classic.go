package consumer

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// classic is the group protocol in which a member shares out the partitions: JoinGroup, SyncGroup, Heartbeat.
type classic struct {
	generation int32
}

// cooperative says that all assignors move partitions only after they were given back, so that those that stay are read on.
func (g *group) cooperative() bool {
	return !slices.ContainsFunc(g.c.o.Assignors, func(a Assignor) bool { return !balancers[a].IsCooperative() })
}

// live joins, takes over what it is given, and sends heartbeats until a rebalance begins.
func (p *classic) live(g *group) error {
	if !g.cooperative() && !g.revoke(g.c.Assignment()) {
		return nil
	}
	joined, err := p.join(g)
	if err != nil {
		return err
	}
	assigned, err := p.sync(g, joined)
	if err != nil {
		return err
	}
	g.c.mu.Lock()
	g.c.member = &membership{id: g.id, generation: p.generation, instance: g.instance}
	g.c.mu.Unlock()
	g.gone = false
	g.last = assigned
	partitions := flatten(assigned)
	given := without(g.c.Assignment(), partitions)
	if !g.revoke(given) || g.gone || !g.assign(partitions) || g.gone {
		return nil
	}
	if len(given) > 0 {
		return errRejoin // so that others get them
	}
	return p.beatUntil(g)
}

// join asks to be in the next generation.
func (p *classic) join(g *group) (*kmsg.JoinGroupResponse, error) {
	for {
		topics, counts := g.topics()
		req := kmsg.NewPtrJoinGroupRequest()
		req.Group, req.MemberID, req.InstanceID, req.ProtocolType = g.c.o.GroupID, g.id, g.instance, "consumer"
		req.SessionTimeoutMillis = int32(g.c.o.SessionTimeout.Milliseconds())
		req.RebalanceTimeoutMillis = int32(g.c.o.MaxPollInterval.Milliseconds())
		current := g.owned()
		if !g.cooperative() {
			current = g.last
		}
		for _, a := range g.c.o.Assignors {
			proto := kmsg.NewJoinGroupRequestProtocol()
			proto.Name = string(a)
			proto.Metadata = balancers[a].JoinGroupMetadata(slices.Clone(topics), cloneOwned(current), p.generation)
			req.Protocols = append(req.Protocols, proto)
		}
		resp, err := req.RequestWith(g.ctx, g.c.client)
		if err != nil {
			return nil, err
		}
		switch resp.ErrorCode {
		case codeNone:
			g.id, p.generation = resp.MemberID, resp.Generation
			g.leads, g.counts = resp.LeaderID == resp.MemberID, counts
			return resp, nil
		case codeMemberIDRequired:
			g.id = resp.MemberID
		case codeUnknownMemberID, codeIllegalGeneration:
			p.generation = -1
			g.forsake(codeError(resp.ErrorCode))
		case codeFencedInstanceID:
			g.forsake(codeError(resp.ErrorCode))
			return nil, &GroupError{g.c.o.GroupID, "another member has the same group.instance.id", codeError(resp.ErrorCode)}
		default:
			if retriable(resp.ErrorCode) {
				return nil, codeError(resp.ErrorCode)
			}
			return nil, &GroupError{g.c.o.GroupID, "join", codeError(resp.ErrorCode)}
		}
		if g.ctx.Err() != nil {
			return nil, g.ctx.Err()
		}
	}
}

func cloneOwned(byTopic map[string][]int32) map[string][]int32 {
	clone := map[string][]int32{}
	for topic, partitions := range byTopic {
		clone[topic] = slices.Sorted(slices.Values(partitions))
	}
	return clone
}

// sync brings the shares, if this member made them, and fetches its own.
func (p *classic) sync(g *group, joined *kmsg.JoinGroupResponse) (map[string][]int32, error) {
	req := kmsg.NewPtrSyncGroupRequest()
	req.Group, req.Generation, req.MemberID, req.InstanceID = g.c.o.GroupID, p.generation, g.id, g.instance
	req.ProtocolType, req.Protocol = kmsg.StringPtr("consumer"), joined.Protocol
	name := Assignor("")
	if joined.Protocol != nil {
		name = Assignor(*joined.Protocol)
	}
	balancer := balancers[name]
	if balancer == nil {
		return nil, &GroupError{g.c.o.GroupID, "join", fmt.Errorf("the group chose %q, which this member did not name", name)}
	}
	if g.leads && !joined.SkipAssignment {
		shares, err := p.share(g, balancer, joined)
		if err != nil {
			return nil, err
		}
		req.GroupAssignment = shares
	}
	resp, err := req.RequestWith(g.ctx, g.c.client)
	if err != nil {
		return nil, err
	}
	switch resp.ErrorCode {
	case codeNone:
		return balancer.ParseSyncAssignment(resp.MemberAssignment)
	case codeRebalanceInProgress:
		return nil, errRejoin
	case codeUnknownMemberID, codeIllegalGeneration:
		p.generation = -1
		g.forsake(codeError(resp.ErrorCode))
		return nil, errRejoin
	case codeFencedInstanceID:
		g.forsake(codeError(resp.ErrorCode))
	}
	if retriable(resp.ErrorCode) {
		return nil, codeError(resp.ErrorCode)
	}
	return nil, &GroupError{g.c.o.GroupID, "sync", codeError(resp.ErrorCode)}
}

// share gives each member its partitions.
func (p *classic) share(g *group, balancer kgo.GroupBalancer, joined *kmsg.JoinGroupResponse) ([]kmsg.SyncGroupRequestGroupAssignment, error) {
	members := joined.Members
	slices.SortFunc(members, func(a, b kmsg.JoinGroupResponseMember) int {
		switch {
		case a.InstanceID != nil && b.InstanceID != nil:
			return strings.Compare(*a.InstanceID, *b.InstanceID)
		case a.InstanceID != nil:
			return -1
		case b.InstanceID != nil:
			return 1
		}
		return strings.Compare(a.MemberID, b.MemberID)
	})
	shares, topics, err := balancer.MemberBalancer(members)
	if err != nil {
		return nil, &GroupError{g.c.o.GroupID, "share out", err}
	}
	names := slices.Sorted(maps.Keys(topics))
	counts, err := g.c.partitionCounts(g.ctx, names)
	if err != nil {
		return nil, err
	}
	var plan kgo.IntoSyncAssignment
	if b, ok := shares.(kgo.GroupMemberBalancerOrError); ok {
		if plan, err = b.BalanceOrError(counts); err != nil {
			return nil, &GroupError{g.c.o.GroupID, "share out", err}
		}
	} else {
		plan = shares.Balance(counts)
	}
	return plan.IntoSyncAssignment(), nil
}

// partitionCounts asks how many partitions topics have; those that do not exist are left out.
func (c *Consumer) partitionCounts(ctx context.Context, topics []string) (map[string]int32, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{}
	for _, name := range topics {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, t)
	}
	req.AllowAutoTopicCreation = c.o.AllowAutoCreateTopics
	resp, err := req.RequestWith(ctx, c.client)
	if err != nil {
		return nil, err
	}
	counts := map[string]int32{}
	for _, t := range resp.Topics {
		if t.Topic != nil && t.ErrorCode == codeNone {
			counts[*t.Topic] = int32(len(t.Partitions))
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cluster.update(resp)
	c.subscription.update(&c.cluster)
	return counts, nil
}

// beatUntil sends heartbeats until there is a reason to join again.
func (p *classic) beatUntil(g *group) error {
	beat := time.NewTicker(g.c.o.HeartbeatInterval)
	defer beat.Stop()
	if topics, counts := g.topics(); g.leads && !maps.Equal(counts, g.counts) && len(topics) > 0 {
		g.counts = counts // partitionCounts has just learned them, and they were shared out
	}
	for {
		select {
		case <-g.ctx.Done():
			return g.ctx.Err()
		case <-g.wake:
			_, counts := g.topics()
			if (g.leads || g.c.subscription.pattern != nil) && !maps.Equal(counts, g.counts) {
				return errRejoin
			}
		case <-beat.C:
			if g.late() {
				g.abandon()
				return nil
			}
			if err := p.heartbeat(g); err != nil {
				return err
			}
		}
	}
}

func (p *classic) heartbeat(g *group) error {
	req := kmsg.NewPtrHeartbeatRequest()
	req.Group, req.Generation, req.MemberID, req.InstanceID = g.c.o.GroupID, p.generation, g.id, g.instance
	ctx, cancel := context.WithTimeout(g.ctx, g.c.o.SessionTimeout)
	defer cancel()
	resp, err := req.RequestWith(ctx, g.c.client)
	if err != nil {
		return nil // the next one may be heard; if none is, the coordinator will say so
	}
	switch resp.ErrorCode {
	case codeNone:
		return nil
	case codeRebalanceInProgress:
		return errRejoin
	case codeUnknownMemberID, codeIllegalGeneration:
		p.generation = -1
		g.forsake(codeError(resp.ErrorCode))
		return errRejoin
	case codeFencedInstanceID:
		g.forsake(codeError(resp.ErrorCode))
		return &GroupError{g.c.o.GroupID, "another member has the same group.instance.id", codeError(resp.ErrorCode)}
	}
	if retriable(resp.ErrorCode) {
		return nil
	}
	return &GroupError{g.c.o.GroupID, "heartbeat", codeError(resp.ErrorCode)}
}

// beat is a heartbeat of which only the sign of life matters: a rebalance is being dealt with.
func (p *classic) beat(g *group) {
	req := kmsg.NewPtrHeartbeatRequest()
	req.Group, req.Generation, req.MemberID, req.InstanceID = g.c.o.GroupID, p.generation, g.id, g.instance
	if g.id == "" {
		return
	}
	ctx, cancel := context.WithTimeout(g.ctx, g.c.o.SessionTimeout)
	defer cancel()
	_, _ = req.RequestWith(ctx, g.c.client)
}

// leave says good-bye; a static member does not, so that its partitions wait for it.
func (p *classic) leave(ctx context.Context, g *group) error {
	if g.id == "" || g.instance != nil {
		return nil
	}
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group, req.MemberID = g.c.o.GroupID, g.id
	m := kmsg.NewLeaveGroupRequestMember()
	m.MemberID, m.Reason = g.id, kmsg.StringPtr("the consumer is closed")
	req.Members = append(req.Members, m)
	g.id, p.generation = "", -1
	_, err := req.RequestWith(ctx, g.c.client)
	return err
}
