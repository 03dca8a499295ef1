package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/wire"
)

// client is what all clients have: connections, and what they believe of the cluster. It belongs to one goroutine.
type client struct {
	w     *world
	name  string
	rng   *rand.Rand
	net   *attachment
	conns map[int]*wire.Conn
	known map[string]*knownTopic
	stale bool // known is to be asked for anew
	coord int  // the group coordinator, 0 unknown
}

type knownTopic struct {
	id         metadata.UUID
	partitions []knownPartition
}

type knownPartition struct {
	leader int
	epoch  int32
}

func (w *world) newClient(name string, number uint64) *client {
	return &client{w: w, name: name, rng: rand.New(rand.NewPCG(w.seed, 0xc11e<<16|number)), net: w.net.attach(clientHost), conns: map[int]*wire.Conn{}, stale: true}
}

func (c *client) close() {
	for _, conn := range c.conns {
		conn.Close()
	}
}

// rest waits up to twice d; false when the load ends.
func (c *client) rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d/4 + time.Duration(c.rng.Int64N(int64(2*d))))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// ask sends a request to a node and waits for its answer.
func (c *client) ask(ctx context.Context, node int, patience time.Duration, req kmsg.Request) (kmsg.Response, error) {
	c.w.ops.Add(1)
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn := c.conns[node]
	if conn != nil {
		select {
		case <-conn.Done():
			conn.Close()
			conn = nil
		default:
		}
	}
	if conn == nil {
		var err error
		if conn, err = wire.Dial(limited, c.net.dial, fmt.Sprintf("n%d:9092", node), wire.DialOptions{ClientID: c.name}); err != nil {
			return nil, err
		}
		c.conns[node] = conn
	}
	resp, err := conn.Request(limited, req)
	if err != nil {
		conn.Close()
		delete(c.conns, node)
	}
	return resp, err
}

func (c *client) anyNode() int { return 1 + c.rng.IntN(len(c.w.hosts)) }

var errNoLeader = errors.New("no leader is known")

// refresh asks any node for metadata, if what is known is stale.
func (c *client) refresh(ctx context.Context) error {
	if !c.stale {
		return nil
	}
	req := kmsg.NewPtrMetadataRequest()
	for _, k := range c.w.kinds {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(k.name)
		req.Topics = append(req.Topics, t)
	}
	resp, err := c.ask(ctx, c.anyNode(), 3*time.Second, req)
	if err != nil {
		return err
	}
	known := map[string]*knownTopic{}
	for _, t := range resp.(*kmsg.MetadataResponse).Topics {
		if t.ErrorCode != 0 || t.Topic == nil {
			continue
		}
		k := &knownTopic{id: t.TopicID, partitions: make([]knownPartition, len(t.Partitions))}
		before := c.known[*t.Topic]
		for _, p := range t.Partitions {
			if int(p.Partition) >= len(k.partitions) {
				continue
			}
			is := knownPartition{int(p.Leader), p.LeaderEpoch}
			if before != nil && before.id == k.id && int(p.Partition) < len(before.partitions) && before.partitions[p.Partition].epoch > is.epoch {
				is = before.partitions[p.Partition] // an old answer
			}
			k.partitions[p.Partition] = is
		}
		known[*t.Topic] = k
	}
	c.known, c.stale = known, false
	return nil
}

// leader is where a partition is asked for now.
func (c *client) leader(ctx context.Context, topic string, partition int) (*knownTopic, knownPartition, error) {
	if err := c.refresh(ctx); err != nil {
		return nil, knownPartition{}, err
	}
	t := c.known[topic]
	if t == nil || partition >= len(t.partitions) || t.partitions[partition].leader < 1 {
		c.stale = true
		return nil, knownPartition{}, errNoLeader
	}
	return t, t.partitions[partition], nil
}

// producer writes batches to one topic and writes each again until it knows what became of it.
type producer struct {
	*client
	kind       *topicKind
	acks       int16
	idempotent bool
	number     uint64
	pace       time.Duration

	id    int64
	epoch int16
	next  []int32 // sequence, by partition
	count uint64

	acked, unsure int
}

func (p *producer) run(ctx context.Context) {
	defer p.close()
	p.id, p.next = -1, make([]int32, p.kind.partitions)
	for p.rest(ctx, p.pace) {
		if p.idempotent && p.id < 0 && !p.initialize(ctx) {
			continue
		}
		p.produce(ctx, p.rng.IntN(p.kind.partitions))
	}
}

func (p *producer) initialize(ctx context.Context) bool {
	req := kmsg.NewPtrInitProducerIDRequest()
	req.ProducerID, req.ProducerEpoch, req.TransactionTimeoutMillis = -1, -1, 1000
	resp, err := p.ask(ctx, p.anyNode(), 5*time.Second, req)
	if err != nil || resp.(*kmsg.InitProducerIDResponse).ErrorCode != 0 {
		return false
	}
	r := resp.(*kmsg.InitProducerIDResponse)
	p.id, p.epoch = r.ProducerID, r.ProducerEpoch
	clear(p.next)
	return true
}

// produce writes one batch, as often as it takes.
func (p *producer) produce(ctx context.Context, partition int) {
	ids := make([]uint64, 1+p.rng.IntN(3))
	for i := range ids {
		p.count++
		ids[i] = p.number<<40 | p.count
	}
	var raw []byte
	if p.idempotent {
		raw = buildBatch(ids, p.id, p.epoch, p.next[partition], time.Now().UnixMilli())
	} else {
		raw = buildBatch(ids, -1, -1, -1, time.Now().UnixMilli())
	}
	var first metadata.UUID
	for try := 0; try < 1 || p.idempotent; try++ {
		if try > 0 && !p.rest(ctx, 200*time.Millisecond) {
			break
		}
		t, to, err := p.leader(ctx, p.kind.name, partition)
		if err != nil {
			continue
		}
		if first == (metadata.UUID{}) {
			first = t.id
		} else if first != t.id {
			p.id = -1 // another topic of the same name: whatever was written is gone
			p.w.abandon(ids)
			return
		}
		req := kmsg.NewPtrProduceRequest()
		req.Acks, req.TimeoutMillis = p.acks, 4000
		rp := kmsg.NewProduceRequestTopicPartition()
		rp.Partition, rp.Records = int32(partition), raw
		rt := kmsg.NewProduceRequestTopic()
		rt.Topic, rt.TopicID, rt.Partitions = p.kind.name, t.id, append(rt.Partitions, rp)
		req.Topics = append(req.Topics, rt)
		resp, err := p.ask(ctx, to.leader, 6*time.Second, req)
		if err != nil {
			p.stale = true
			continue
		}
		r := resp.(*kmsg.ProduceResponse)
		if len(r.Topics) != 1 || len(r.Topics[0].Partitions) != 1 {
			p.w.fail(fmt.Errorf("an answer to Produce for another number of partitions"))
			return
		}
		one := &r.Topics[0].Partitions[0]
		switch err := kerr.ErrorForCode(one.ErrorCode); {
		case err == nil:
			p.next[partition] += int32(len(ids))
			p.acked++
			p.w.acked.Add(1)
			if one.BaseOffset >= 0 {
				p.w.acknowledged(to.leader, t.id, int32(partition), one.BaseOffset, ids, p.acks == -1)
			}
			return
		case errors.Is(err, kerr.DuplicateSequenceNumber):
			p.next[partition] += int32(len(ids))
			return
		case errors.Is(err, kerr.NotLeaderForPartition), errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.UnknownTopicID),
			errors.Is(err, kerr.FencedLeaderEpoch), errors.Is(err, kerr.KafkaStorageError), errors.Is(err, kerr.LeaderNotAvailable):
			p.stale = true
		case errors.Is(err, kerr.OutOfOrderSequenceNumber), errors.Is(err, kerr.UnknownProducerID), errors.Is(err, kerr.InvalidProducerEpoch):
			p.w.abandon(ids)
			p.id = -1
			return
		case errors.Is(err, kerr.RequestTimedOut), errors.Is(err, kerr.NotEnoughReplicas), errors.Is(err, kerr.NotEnoughReplicasAfterAppend):
		default:
			p.w.fail(fmt.Errorf("%s: produce to %s-%d: %w", p.name, p.kind.name, partition, err))
			return
		}
	}
	p.unsure++
}

// consumer reads one topic from its beginning on, and commits where it is.
type consumer struct {
	*client
	kind  *topicKind
	group string
	pace  time.Duration

	topic     metadata.UUID
	positions []position
	commits   *commits
	read      int
	truncated int
}

type position struct {
	offset int64
	epoch  int32 // of the record before, -1 unknown
	set    bool
}

func (c *consumer) run(ctx context.Context) {
	defer c.close()
	c.commits = newCommits(c.client, c.group)
	for c.rest(ctx, c.pace) {
		partition := c.rng.IntN(c.kind.partitions)
		c.fetch(ctx, partition)
		if c.rng.IntN(3) == 0 && c.kind.unclean == false && c.positions != nil {
			if at := c.positions[partition]; at.set {
				c.commits.commit(ctx, c.kind.name, c.topic, int32(partition), at.offset, at.epoch)
			}
		}
		if c.rng.IntN(6) == 0 && c.positions != nil {
			c.commits.check(ctx, c.kind.name, c.topic, int32(partition))
		}
	}
}

func (c *consumer) fetch(ctx context.Context, partition int) {
	t, from, err := c.leader(ctx, c.kind.name, partition)
	if err != nil {
		return
	}
	if t.id != c.topic {
		c.topic, c.positions = t.id, make([]position, c.kind.partitions)
		c.commits.forget()
	}
	at := &c.positions[partition]
	if !at.set {
		c.reset(ctx, t, from, partition, -2)
		return
	}
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaID, req.MaxWaitMillis, req.MinBytes, req.MaxBytes, req.SessionEpoch = -1, 500, 1, 1<<20, -1
	rp := kmsg.NewFetchRequestTopicPartition()
	rp.Partition, rp.CurrentLeaderEpoch, rp.FetchOffset, rp.LastFetchedEpoch, rp.PartitionMaxBytes = int32(partition), from.epoch, at.offset, at.epoch, 1<<18
	rt := kmsg.NewFetchRequestTopic()
	rt.Topic, rt.TopicID, rt.Partitions = c.kind.name, t.id, append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	resp, err := c.ask(ctx, from.leader, 4*time.Second, req)
	if err != nil {
		c.stale = true
		return
	}
	r := resp.(*kmsg.FetchResponse)
	if r.ErrorCode != 0 || len(r.Topics) != 1 || len(r.Topics[0].Partitions) != 1 {
		c.stale = true
		return
	}
	one := &r.Topics[0].Partitions[0]
	switch err := kerr.ErrorForCode(one.ErrorCode); {
	case errors.Is(err, kerr.OffsetOutOfRange):
		c.reset(ctx, t, from, partition, -2)
		return
	case err != nil:
		c.stale = true
		return
	}
	if one.DivergingEpoch.Epoch >= 0 {
		c.truncated++
		c.w.shownTruncations.Add(1)
		at.offset, at.epoch = min(at.offset, one.DivergingEpoch.EndOffset), -1 // what stands before it now is not known
		return
	}
	isr := c.w.inSync(from.leader, t.id, int32(partition))
	err = readBatches(one.RecordBatches, true, func(b *readBatch) error {
		for _, rec := range b.records {
			if rec.offset < at.offset {
				continue
			}
			if rec.offset >= one.HighWatermark {
				return fmt.Errorf("P6: offset %d was given at high watermark %d", rec.offset, one.HighWatermark)
			}
			if rec.offset != at.offset && at.offset >= one.LogStartOffset {
				return fmt.Errorf("offset %d was given, %d is due, log start %d", rec.offset, at.offset, one.LogStartOffset)
			}
			if b.epoch > from.epoch {
				return fmt.Errorf("offset %d has epoch %d, and epoch %d was asked for: a fenced epoch was answered", rec.offset, b.epoch, from.epoch)
			}
			if b.epoch < at.epoch {
				return fmt.Errorf("P1: offset %d has epoch %d, the one before %d", rec.offset, b.epoch, at.epoch)
			}
			at.offset, at.epoch = rec.offset+1, b.epoch
			c.read++
			c.w.shown.Add(1)
			c.w.promise(t.id, int32(partition), evidence{offset: rec.offset, id: rec.id, low: from.epoch, high: from.epoch, what: "shown to a consumer", judgedIn: -1, isr: isr, at: b.written})
		}
		return nil
	})
	if err != nil {
		c.w.fail(fmt.Errorf("%s reads %s-%d from node %d in epoch %d: %w", c.name, c.kind.name, partition, from.leader, from.epoch, err))
	}
}

// reset takes the position that ListOffsets answers.
func (c *consumer) reset(ctx context.Context, t *knownTopic, from knownPartition, partition int, timestamp int64) {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	rp := kmsg.NewListOffsetsRequestTopicPartition()
	rp.Partition, rp.CurrentLeaderEpoch, rp.Timestamp = int32(partition), from.epoch, timestamp
	rt := kmsg.NewListOffsetsRequestTopic()
	rt.Topic, rt.Partitions = c.kind.name, append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	resp, err := c.ask(ctx, from.leader, 4*time.Second, req)
	if err != nil {
		c.stale = true
		return
	}
	r := resp.(*kmsg.ListOffsetsResponse)
	if len(r.Topics) != 1 || len(r.Topics[0].Partitions) != 1 || r.Topics[0].Partitions[0].ErrorCode != 0 {
		c.stale = true
		return
	}
	c.positions[partition] = position{offset: r.Topics[0].Partitions[0].Offset, epoch: -1, set: true}
}
