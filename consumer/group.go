package consumer

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var balancers = map[Assignor]kgo.GroupBalancer{
	Range: kgo.RangeBalancer(), RoundRobin: kgo.RoundRobinBalancer(), Sticky: kgo.StickyBalancer(), CooperativeSticky: kgo.CooperativeStickyBalancer(),
}

// subscription is what a group member wants to read.
type subscription struct {
	topics  []string // sorted; with a pattern those that match it
	pattern *regexp.Regexp
	counts  map[string]int // partitions of the topics, as far as is known
	changed func()
}

// update takes new metadata.
func (s *subscription) update(c *cluster) {
	if s.pattern != nil {
		s.topics = s.topics[:0:0]
		for name, t := range c.topics {
			if at := s.pattern.FindStringIndex(name); !t.internal && at != nil && at[0] == 0 && at[1] == len(name) {
				s.topics = append(s.topics, name)
			}
		}
	}
	slices.Sort(s.topics)
	counts := map[string]int{}
	for _, name := range s.topics {
		if t := c.topics[name]; t != nil {
			counts[name] = len(t.partitions)
		}
	}
	if !maps.Equal(counts, s.counts) {
		s.counts = counts
		if s.changed != nil {
			s.changed()
		}
	}
}

// membership is what a member shows the coordinator.
type membership struct {
	id         string
	generation int32 // or the member epoch
	instance   *string
}

// group keeps a consumer in its group. All but started, which c.mu guards, belongs to the goroutine of run.
type group struct {
	c       *Consumer
	started bool
	wake    chan struct{} // the subscription changed, or a Poll began or ended
	ctx     context.Context
	cancel  context.CancelFunc
	done    chan struct{} // closed when run has ended

	id       string
	instance *string
	leads    bool           // this member shares out
	counts   map[string]int // by which it did
	last     map[string][]int32
	gone     bool // no longer a member, whatever partitions it has
	protocol groupProtocol
}

// groupProtocol is one way to be a member.
type groupProtocol interface {
	// live is a member until it has to begin anew: a while, or at once with an error. It returns when g.ctx ends.
	live(g *group) error
	// beat tells the coordinator that the member is there, while its program deals with a rebalance.
	beat(g *group)
	// leave tells it that the member is not.
	leave(ctx context.Context, g *group) error
}

func newGroup(c *Consumer) *group {
	g := &group{c: c, wake: make(chan struct{}, 1), done: make(chan struct{}), protocol: &classic{generation: -1}}
	g.ctx, g.cancel = context.WithCancel(c.ctx)
	if c.o.GroupInstanceID != "" {
		g.instance = kmsg.StringPtr(c.o.GroupInstanceID)
	}
	if c.o.Protocol == ConsumerProtocol {
		g.protocol = &nextGen{}
	}
	c.subscription.changed = func() { signal(g.wake) }
	return g
}

// errRejoin says that a membership ended as it should: it begins anew at once.
var errRejoin = errors.New("consumer: a rebalance has begun")

// run is the life of a member. It ends with g.ctx, or when the group will not have it.
func (g *group) run() {
	defer close(g.done)
	for wait := g.c.o.RetryBackoff; g.ctx.Err() == nil; {
		if !g.awaitTopics() {
			return
		}
		err := g.protocol.live(g)
		switch {
		case g.ctx.Err() != nil:
			return
		case err == nil, errors.Is(err, errRejoin):
			wait = g.c.o.RetryBackoff
			continue
		}
		var fatal *GroupError
		if errors.As(err, &fatal) {
			g.c.mu.Lock()
			g.c.raise(err)
			g.c.mu.Unlock()
			wait = g.c.o.RetryBackoffMax
		} else {
			g.c.log.Debug("group: trying again", "group", g.c.o.GroupID, "error", err)
		}
		if !g.pause(wait/2 + rand.N(wait/2+1)) {
			return
		}
		wait = min(2*wait, g.c.o.RetryBackoffMax)
	}
}

// awaitTopics waits until the metadata has been had once: without it a pattern matches nothing.
func (g *group) awaitTopics() bool {
	for {
		g.c.mu.Lock()
		ready := g.c.refreshing.rounds > 0 && (g.c.subscription.pattern == nil || len(g.c.cluster.nodes) > 0)
		g.c.mu.Unlock()
		if ready {
			return true
		}
		select {
		case <-g.ctx.Done():
			return false
		case <-g.wake:
		}
	}
}

func (g *group) pause(d time.Duration) bool {
	select {
	case <-g.ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// topics is the subscription now.
func (g *group) topics() ([]string, map[string]int) {
	g.c.mu.Lock()
	defer g.c.mu.Unlock()
	return slices.Clone(g.c.subscription.topics), maps.Clone(g.c.subscription.counts)
}

// owned is the partitions this consumer has, by topic.
func (g *group) owned() map[string][]int32 {
	byTopic := map[string][]int32{}
	for _, tp := range g.c.Assignment() {
		byTopic[tp.Topic] = append(byTopic[tp.Topic], tp.Partition)
	}
	return byTopic
}

// late says whether the program has not polled for too long.
func (g *group) late() bool {
	g.c.mu.Lock()
	defer g.c.mu.Unlock()
	return !g.c.idleSince.IsZero() && time.Since(g.c.idleSince) >= g.c.o.MaxPollInterval
}

// inPoll does work on the goroutine of the next Poll, and keeps the member alive meanwhile. It is false when there was
// no Poll in time, and the partitions are lost, or when g.ctx ended.
func (g *group) inPoll(do func(context.Context)) bool {
	j := job{do, make(chan struct{})}
	beat := time.NewTicker(g.c.o.HeartbeatInterval)
	defer beat.Stop()
	jobs := g.c.jobs
	for {
		select {
		case jobs <- j:
			jobs = nil
		case <-j.done:
			return true
		case <-beat.C:
			if jobs != nil && g.late() {
				g.abandon()
				return false
			}
			if !g.gone {
				g.protocol.beat(g)
			}
		case <-g.ctx.Done():
			if jobs == nil {
				<-j.done // the callback still runs
				return true
			}
			return false
		}
	}
}

// abandon leaves the group because the program does not poll, and tells the program when it does.
func (g *group) abandon() {
	g.c.log.Warn("the program has not polled for max.poll.interval.ms: its partitions go to other members; poll more often, or set max.poll.interval.ms higher or max.poll.records lower",
		"group", g.c.o.GroupID, "max_poll_interval", g.c.o.MaxPollInterval)
	lost := g.lose()
	if g.instance == nil {
		ctx, cancel := context.WithTimeout(g.ctx, g.c.o.RequestTimeout)
		_ = g.protocol.leave(ctx, g)
		cancel()
	}
	g.tellLost(lost)
}

// lose takes all partitions from this consumer at once; commits for them are refused from now on.
func (g *group) lose() []TopicPartition {
	g.c.mu.Lock()
	defer g.c.mu.Unlock()
	lost := sortedKeys(g.c.parts)
	g.c.own(nil)
	g.c.member = nil
	g.gone = true
	return lost
}

// tellLost waits for a Poll and tells the program.
func (g *group) tellLost(lost []TopicPartition) {
	j := job{func(ctx context.Context) {
		if g.c.o.OnLost != nil && len(lost) > 0 {
			g.c.o.OnLost(ctx, lost)
		}
	}, make(chan struct{})}
	select {
	case g.c.jobs <- j:
		<-j.done
	case <-g.ctx.Done():
	}
}

// forsake is what follows when the coordinator does not know the member any more.
func (g *group) forsake(cause error) {
	g.c.log.Warn("the group goes on without this member: its partitions are lost", "group", g.c.o.GroupID, "member", g.id, "cause", cause)
	g.id = ""
	if lost := g.lose(); len(lost) > 0 {
		g.tellLost(lost)
	}
}

// revoke gives partitions back, inside Poll: what was consumed is committed, and the program told, while they are still
// this consumer's. It is false when they were lost instead.
func (g *group) revoke(partitions []TopicPartition) bool {
	if len(partitions) == 0 {
		return true
	}
	return g.inPoll(func(ctx context.Context) { g.release(ctx, partitions) })
}

func (g *group) release(ctx context.Context, partitions []TopicPartition) {
	c := g.c
	c.mu.Lock()
	for _, tp := range partitions {
		if p := c.parts[tp]; p != nil {
			p.held = true
		}
	}
	c.mu.Unlock()
	if !c.o.DisableAutoCommit {
		if err := c.commitConsumed(ctx, partitions...); err != nil {
			c.log.Warn("what was consumed could not be committed before partitions are given back", "group", c.o.GroupID, "error", err)
		}
	}
	if c.o.OnRevoked != nil {
		c.o.OnRevoked(ctx, partitions)
	}
	c.mu.Lock()
	c.own(slices.DeleteFunc(sortedKeys(c.parts), func(tp TopicPartition) bool { return slices.Contains(partitions, tp) }))
	c.mu.Unlock()
}

// assign takes partitions over, inside Poll, in place of all others.
func (g *group) assign(partitions []TopicPartition) bool {
	c := g.c
	return g.inPoll(func(ctx context.Context) {
		c.mu.Lock()
		added := slices.DeleteFunc(slices.Clone(partitions), func(tp TopicPartition) bool { return c.parts[tp] != nil })
		c.stats.Rebalances++
		c.mu.Unlock()
		c.mu.Lock()
		c.own(partitions)
		c.mu.Unlock()
		if c.o.OnAssigned != nil {
			c.o.OnAssigned(ctx, added)
		}
	})
}

// leave ends the membership for good.
func (g *group) leave(ctx context.Context) error {
	g.c.mu.Lock()
	started := g.started
	g.c.mu.Unlock()
	if !started {
		return nil
	}
	g.cancel()
	<-g.done
	var err error
	owned := g.c.Assignment()
	if len(owned) > 0 {
		if !g.c.o.DisableAutoCommit {
			err = g.c.commitConsumed(ctx)
		}
		if g.c.o.OnRevoked != nil {
			g.c.o.OnRevoked(ctx, owned)
		}
	}
	if !g.gone {
		if e := g.protocol.leave(ctx, g); e != nil && err == nil {
			g.c.log.Debug("group: leaving", "group", g.c.o.GroupID, "error", e)
		}
	}
	g.c.mu.Lock()
	g.c.member = nil
	g.c.mu.Unlock()
	return err
}

// flatten lists partitions by topic, in order.
func flatten(byTopic map[string][]int32) (partitions []TopicPartition) {
	for topic, numbers := range byTopic {
		for _, n := range numbers {
			partitions = append(partitions, TopicPartition{topic, n})
		}
	}
	slices.SortFunc(partitions, compareTopicPartitions)
	return partitions
}

// without is the partitions of a that are not in b.
func without(a, b []TopicPartition) (rest []TopicPartition) {
	for _, tp := range a {
		if !slices.Contains(b, tp) {
			rest = append(rest, tp)
		}
	}
	return rest
}
