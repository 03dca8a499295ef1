package consumer

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// errand is questions of one kind for one node, which go in one request.
type errand struct {
	kind askKind
	node int32 // -1: the coordinator
}

// asked is a question and whose it is.
type asked struct {
	p *partition
	q question
}

// ask is the loop in which the partitions' questions are asked, and metadata. It ends with the consumer's context.
func (c *Consumer) ask() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-c.wake:
		case <-timer.C:
		}
		if next := c.errands(time.Now()); !next.IsZero() {
			timer.Reset(time.Until(next))
		} else {
			timer.Stop()
		}
	}
}

// errands sends what there is to ask, and says when there will be more.
func (c *Consumer) errands(now time.Time) (next time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := func(t time.Time) {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	batches := map[errand][]asked{}
	for _, tp := range c.turn {
		p := c.parts[tp]
		if p.m.outdated() {
			c.refreshing.wanted = true
		}
		q, ok, until := p.m.want(now)
		at(until)
		if !ok {
			continue
		}
		e := errand{q.kind, q.node}
		if q.kind == askCommitted {
			e.node = -1
		}
		batches[e] = append(batches[e], asked{p, q})
	}
	for e, questions := range batches {
		c.wg.Go(func() { c.run(e, questions) })
	}
	if topics, all, wanted := c.wantedTopics(); wanted {
		if due := c.refreshing.due(&c.o); !due.IsZero() && !due.After(now) {
			c.refreshing.flying, c.refreshing.wanted = true, false
			c.wg.Go(func() { c.refresh(c.ctx, topics, all) })
		} else {
			at(due)
		}
	}
	c.dispatch(now)
	return next
}

// wantedTopics is the topics of which the leaders matter.
func (c *Consumer) wantedTopics() (topics []string, all, wanted bool) {
	if c.subscription.pattern != nil {
		return nil, true, c.group.started
	}
	seen := map[string]bool{}
	add := func(topic string) {
		if !seen[topic] {
			seen[topic] = true
			topics = append(topics, topic)
		}
	}
	if c.group != nil && c.group.started {
		for _, topic := range c.subscription.topics {
			add(topic)
		}
	}
	for tp := range c.parts {
		add(tp.Topic)
	}
	return topics, false, len(topics) > 0
}

// run asks questions of one kind at one node and takes the answers.
func (c *Consumer) run(e errand, questions []asked) {
	ctx, cancel := context.WithTimeout(c.ctx, c.o.RequestTimeout)
	defer cancel()
	var answers map[TopicPartition]answer
	var err error
	switch e.kind {
	case askCommitted:
		answers, err = c.askCommitted(ctx, questions)
	case askEpochEnd:
		answers, err = c.askEpochs(ctx, e.node, questions)
	default:
		answers, err = c.askOffsets(ctx, e.node, questions)
	}
	if c.ctx.Err() != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
	now := time.Now()
	for _, a := range questions {
		reply, ok := answers[a.p.tp]
		if !ok && err == nil {
			err = errNoAnswer
		}
		if !ok {
			reply.err = err
		}
		if c.parts[a.p.tp] != a.p {
			continue
		}
		reply.number = a.q.number
		looked := a.p.m.lookup
		eff := a.p.m.reply(reply, now)
		if looked != nil && a.p.m.lookup == nil && len(eff.events) == 0 && a.p.m.state == fetching {
			c.stats.Transient++
		}
		c.follow(a.p, eff)
	}
	c.tick()
}

// askOffsets asks a node for the ends of logs, or for offsets by time.
func (c *Consumer) askOffsets(ctx context.Context, node int32, questions []asked) (map[TopicPartition]answer, error) {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	req.IsolationLevel = int8(c.o.Isolation)
	req.TimeoutMillis = int32(c.o.RequestTimeout.Milliseconds())
	topics := map[string]int{}
	for _, a := range questions {
		i, ok := topics[a.p.tp.Topic]
		if !ok {
			i = len(req.Topics)
			topics[a.p.tp.Topic] = i
			t := kmsg.NewListOffsetsRequestTopic()
			t.Topic = a.p.tp.Topic
			req.Topics = append(req.Topics, t)
		}
		p := kmsg.NewListOffsetsRequestTopicPartition()
		p.Partition, p.CurrentLeaderEpoch, p.Timestamp = a.p.tp.Partition, orMinus(a.q.current), a.q.timestamp
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, p)
	}
	got, err := c.client.Broker(int(node)).Request(ctx, req)
	if err != nil {
		return nil, err
	}
	answers := map[TopicPartition]answer{}
	for _, t := range got.(*kmsg.ListOffsetsResponse).Topics {
		for _, p := range t.Partitions {
			answers[TopicPartition{t.Topic, p.Partition}] = answer{code: p.ErrorCode, offset: p.Offset, epoch: p.LeaderEpoch, timestamp: p.Timestamp}
		}
	}
	return answers, nil
}

// epochsVersion is the first version of OffsetForLeaderEpoch that consumers may use.
const epochsVersion = 3

// askEpochs asks a node where epochs end.
func (c *Consumer) askEpochs(ctx context.Context, node int32, questions []asked) (map[TopicPartition]answer, error) {
	answers := map[TopicPartition]answer{}
	version, err := c.epochVersionOf(ctx, node)
	if err != nil {
		return nil, err
	}
	if version < epochsVersion {
		for _, a := range questions {
			answers[a.p.tp] = answer{unsupported: true}
		}
		return answers, nil
	}
	req := kmsg.NewPtrOffsetForLeaderEpochRequest()
	req.ReplicaID = -1
	topics := map[string]int{}
	for _, a := range questions {
		i, ok := topics[a.p.tp.Topic]
		if !ok {
			i = len(req.Topics)
			topics[a.p.tp.Topic] = i
			t := kmsg.NewOffsetForLeaderEpochRequestTopic()
			t.Topic = a.p.tp.Topic
			req.Topics = append(req.Topics, t)
		}
		p := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
		p.Partition, p.CurrentLeaderEpoch, p.LeaderEpoch = a.p.tp.Partition, orMinus(a.q.current), a.q.epoch
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, p)
	}
	got, err := c.client.Broker(int(node)).Request(ctx, req)
	if err != nil {
		return nil, err
	}
	for _, t := range got.(*kmsg.OffsetForLeaderEpochResponse).Topics {
		for _, p := range t.Partitions {
			answers[TopicPartition{t.Topic, p.Partition}] = answer{code: p.ErrorCode, offset: p.EndOffset, epoch: p.LeaderEpoch}
		}
	}
	return answers, nil
}

// epochVersionOf is a node's newest version of OffsetForLeaderEpoch, -1 when it has none. A node that was upgraded since
// is known by the old one until a request to it fails.
func (c *Consumer) epochVersionOf(ctx context.Context, node int32) (int16, error) {
	c.mu.Lock()
	version, ok := c.versions[node]
	c.mu.Unlock()
	if ok {
		return version, nil
	}
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "stele-consumer", "1"
	got, err := c.client.Broker(int(node)).Request(ctx, req)
	if err != nil {
		return 0, err
	}
	version = -1
	for _, k := range got.(*kmsg.ApiVersionsResponse).ApiKeys {
		if k.ApiKey == keyOffsetEpoch {
			version = k.MaxVersion
		}
	}
	c.mu.Lock()
	c.versions[node] = version
	c.mu.Unlock()
	return version, nil
}
