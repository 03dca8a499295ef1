package consumer

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// partition is a partition that is read, and what was fetched of it.
type partition struct {
	tp     TopicPartition
	m      *machine
	paused bool
	held   bool // about to be given away: nothing is handed out

	queue      []chunk // fetched and not returned by Poll, without a gap
	bytes      int64   // in queue
	version    uint64  // of the queue; it changes when the queue is thrown away
	void       *atomic.Bool
	generation uint64 // of the machine that void belongs to
}

// live is the flag that tells the loops over what Poll returned that the partition was moved or given away.
func (p *partition) live() *atomic.Bool {
	if p.void == nil || p.generation != p.m.generation {
		if p.void != nil {
			p.void.Store(true)
		}
		p.void, p.generation = new(atomic.Bool), p.m.generation
	}
	return p.void
}

// discard throws away what was fetched and not returned.
func (c *Consumer) discard(p *partition) {
	c.buffered -= p.bytes
	p.queue, p.bytes = nil, 0
	p.version++
	p.live()
}

// drop ends a partition.
func (c *Consumer) drop(p *partition) {
	c.discard(p)
	p.live().Store(true)
	p.m.generation++
	p.m.forget()
}

// fetcher fetches from one node, one request at a time, in a session.
type fetcher struct {
	node    int32
	wake    chan struct{}
	session session
}

// session is a fetch session (KIP-227): the broker knows the partitions, and only what changes is sent.
type session struct {
	id    int32
	epoch int32
	ids   bool // topics are named by id
	parts map[TopicPartition]inSession
}

// inSession is what the broker was told of a partition.
type inSession struct {
	id      [16]byte
	offset  int64
	current Epoch
	last    Epoch
}

func (s *session) reset() { *s = session{} }

// dispatch makes sure that each node that has partitions has a fetcher, and wakes those that have something to do.
func (c *Consumer) dispatch(now time.Time) {
	if c.closed {
		return
	}
	for _, tp := range c.turn {
		tag, ok := c.parts[tp].m.fetchable(now)
		if !ok {
			continue
		}
		f := c.fetchers[tag.node]
		if f == nil {
			f = &fetcher{node: tag.node, wake: make(chan struct{}, 1)}
			c.fetchers[tag.node] = f
			c.wg.Go(func() { c.fetchFrom(f) })
		}
		signal(f.wake)
	}
}

// fetchFrom is a fetcher's loop. It ends with the consumer's context.
func (c *Consumer) fetchFrom(f *fetcher) {
	for c.ctx.Err() == nil {
		c.mu.Lock()
		tags := c.fetchable(f.node, time.Now())
		var req *kmsg.FetchRequest
		if len(tags) > 0 {
			req = c.fetchRequest(f, tags)
		}
		c.mu.Unlock()
		if req == nil {
			select {
			case <-c.ctx.Done():
				return
			case <-f.wake:
			}
			continue
		}
		resp, err := c.fetch(f, req)
		if c.ctx.Err() != nil {
			return
		}
		c.fetched(f, tags, resp, err)
	}
}

// fetchable is what is to be fetched from a node.
func (c *Consumer) fetchable(node int32, now time.Time) map[TopicPartition]fetchTag {
	if c.buffered >= int64(c.o.FetchMaxBytes) {
		return nil
	}
	tags := map[TopicPartition]fetchTag{}
	for _, tp := range c.turn {
		p := c.parts[tp]
		if p.paused || p.held || p.bytes >= int64(c.o.MaxPartitionFetchBytes) {
			continue
		}
		if tag, ok := p.m.fetchable(now); ok && tag.node == node {
			tags[tp] = tag
		}
	}
	return tags
}

// fetchRequest asks for what differs from what the session knows.
func (c *Consumer) fetchRequest(f *fetcher, tags map[TopicPartition]fetchTag) *kmsg.FetchRequest {
	ids := true
	for tp := range tags {
		ids = ids && c.parts[tp].m.id != [16]byte{}
	}
	s := &f.session
	for tp, in := range s.parts {
		if p := c.parts[tp]; p != nil && p.m.id != in.id {
			s.reset() // another topic by that name
			break
		}
	}
	if s.ids != ids {
		s.reset()
		s.ids = ids
	}
	if s.epoch == 0 {
		s.parts = map[TopicPartition]inSession{}
	}
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaID = -1
	req.MaxWaitMillis = int32(c.o.FetchMaxWait.Milliseconds())
	req.MinBytes, req.MaxBytes = c.o.FetchMinBytes, c.o.FetchMaxBytes
	req.IsolationLevel = int8(c.o.Isolation)
	req.Rack = c.o.ClientRack
	req.SessionID, req.SessionEpoch = s.id, s.epoch
	topics := map[string]int{}
	for _, tp := range c.turn {
		tag, ok := tags[tp]
		if !ok {
			continue
		}
		in := inSession{id: c.parts[tp].m.id, offset: tag.offset, current: tag.current, last: tag.last}
		if known, ok := s.parts[tp]; ok && known == in {
			continue
		}
		s.parts[tp] = in
		i, ok := topics[tp.Topic]
		if !ok {
			i = len(req.Topics)
			topics[tp.Topic] = i
			t := kmsg.NewFetchRequestTopic()
			t.Topic, t.TopicID = tp.Topic, in.id
			req.Topics = append(req.Topics, t)
		}
		p := kmsg.NewFetchRequestTopicPartition()
		p.Partition, p.FetchOffset, p.PartitionMaxBytes = tp.Partition, tag.offset, c.o.MaxPartitionFetchBytes
		p.CurrentLeaderEpoch, p.LastFetchedEpoch, p.LogStartOffset = orMinus(tag.current), orMinus(tag.last), -1
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, p)
	}
	forgotten := map[string]int{}
	for tp, in := range s.parts {
		if _, ok := tags[tp]; ok {
			continue
		}
		i, ok := forgotten[tp.Topic]
		if !ok {
			i = len(req.ForgottenTopics)
			forgotten[tp.Topic] = i
			t := kmsg.NewFetchRequestForgottenTopic()
			t.Topic, t.TopicID = tp.Topic, in.id
			req.ForgottenTopics = append(req.ForgottenTopics, t)
		}
		req.ForgottenTopics[i].Partitions = append(req.ForgottenTopics[i].Partitions, tp.Partition)
		delete(s.parts, tp)
	}
	return req
}

// named is a Fetch in the last version that names topics by name.
type named struct{ *kmsg.FetchRequest }

// MaxVersion is that version.
func (named) MaxVersion() int16 { return 12 }

func (c *Consumer) fetch(f *fetcher, req *kmsg.FetchRequest) (*kmsg.FetchResponse, error) {
	ctx, cancel := context.WithTimeout(c.ctx, c.o.RequestTimeout+c.o.FetchMaxWait)
	defer cancel()
	var sent kmsg.Request = req
	if !f.session.ids {
		sent = named{req}
	}
	resp, err := c.client.Broker(int(f.node)).Request(ctx, sent)
	if err != nil {
		return nil, err
	}
	return resp.(*kmsg.FetchResponse), nil
}

// piece is what an answer holds of one partition, read.
type piece struct {
	tp     TopicPartition
	resp   *kmsg.FetchResponseTopicPartition
	chunks []chunk
	result fetched
	at     int64 // where the bytes are damaged
	err    error
}

// fetched takes the answer to a fetch.
func (c *Consumer) fetched(f *fetcher, tags map[TopicPartition]fetchTag, resp *kmsg.FetchResponse, err error) {
	s := &f.session
	code := int16(13) // NETWORK_EXCEPTION
	if err == nil {
		code = resp.ErrorCode
	}
	if code != codeNone {
		s.reset()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.settle()
		c.log.Debug("fetch failed", "node", f.node, "code", code, "error", err)
		if code == codeFetchSessionNotFound || code == codeInvalidFetchSession || code == codeFetchSessionTopicID {
			return // a full fetch follows
		}
		delete(c.versions, f.node)
		now := time.Now()
		for tp, tag := range tags {
			if p := c.parts[tp]; p != nil {
				_, eff := p.m.take(tag, fetched{code: code, preferred: -1}, now)
				c.follow(p, eff)
			}
		}
		c.tick()
		return
	}
	if s.id = resp.SessionID; s.id != 0 {
		s.epoch++
	} else {
		s.epoch = 0
	}
	pieces := c.pieces(tags, resp)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
	now := time.Now()
	arrived := false
	for _, piece := range pieces {
		p := c.parts[piece.tp]
		if p == nil {
			continue
		}
		arrived = c.accept(p, tags[piece.tp], piece, now) || arrived
	}
	if arrived {
		signal(c.ready)
	}
	signal(c.wake)
}

// pieces reads an answer, without the lock.
func (c *Consumer) pieces(tags map[TopicPartition]fetchTag, resp *kmsg.FetchResponse) []piece {
	var pieces []piece
	names := map[[16]byte]string{}
	if resp.Version >= 13 {
		c.mu.Lock()
		for _, t := range resp.Topics {
			names[t.TopicID] = c.cluster.names[t.TopicID]
		}
		c.mu.Unlock()
	}
	for i := range resp.Topics {
		t := &resp.Topics[i]
		topic := t.Topic
		if resp.Version >= 13 {
			topic = names[t.TopicID]
		}
		for j := range t.Partitions {
			p := &t.Partitions[j]
			tag, ok := tags[TopicPartition{topic, p.Partition}]
			if !ok {
				continue
			}
			x := piece{tp: TopicPartition{topic, p.Partition}, resp: p}
			x.result = fetched{code: p.ErrorCode, preferred: p.PreferredReadReplica}
			if resp.Version < 11 {
				x.result.preferred = -1
			}
			if d := p.DivergingEpoch; p.ErrorCode == codeNone && d.Epoch >= 0 {
				x.result.diverging = Known(Position{d.EndOffset, Known(d.Epoch)})
			} else if p.ErrorCode == codeNone {
				aborted := make([]abortedTransaction, len(p.AbortedTransactions))
				for i, a := range p.AbortedTransactions {
					aborted[i] = abortedTransaction{a.ProducerID, a.FirstOffset}
				}
				slices.SortFunc(aborted, func(a, b abortedTransaction) int { return int(max(-1, min(1, a.first-b.first))) })
				var next int64
				var epoch int32
				x.chunks, next, epoch, x.at, x.err = read(p.RecordBatches, tag.offset, aborted, c.o.Isolation == ReadCommitted, !c.o.SkipCRCs)
				x.result.records, x.result.next = len(x.chunks) > 0, Position{next, fromWire(epoch)}
			}
			pieces = append(pieces, x)
		}
	}
	return pieces
}

// accept hands a piece to its partition; it says whether there is something for Poll.
func (c *Consumer) accept(p *partition, tag fetchTag, x piece, now time.Time) bool {
	use, eff := p.m.take(tag, x.result, now)
	c.follow(p, eff)
	if use {
		for _, ch := range x.chunks {
			ch.generation, ch.version = p.m.generation, p.version
			p.queue = append(p.queue, ch)
			p.bytes += int64(len(ch.batch))
			c.buffered += int64(len(ch.batch))
		}
	} else if x.err != nil && tag.generation == p.m.generation && tag.offset == p.m.ahead.Offset {
		if p.m.stalled = tag.offset != p.m.pos.Offset; !p.m.stalled {
			c.follow(p, p.m.damaged(x.at, x.err, now))
		}
	}
	if l := x.resp.CurrentLeader; x.resp.ErrorCode != codeNone && l.LeaderEpoch >= 0 {
		if c.cluster.hint(p.tp, leaderAndEpoch{l.LeaderID, fromWire(l.LeaderEpoch)}) {
			c.teach(p, now)
		}
	}
	return use
}

// damaged is told by a loop that the records of a batch cannot be read on.
func (c *Consumer) damaged(b *Batch, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
	if c.parts[b.p.tp] != b.p || b.void.Load() {
		return
	}
	c.discard(b.p)
	b.p.m.rewind()
	b.p.m.generation++
	b.p.live()
	c.follow(b.p, b.p.m.damaged(b.p.m.pos.Offset, err, time.Now()))
}
