package consumer

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// CommitOption says how to commit.
type CommitOption func(*commitOptions)

type commitOptions struct {
	withoutEpoch bool
	metadata     Optional[string]
}

// WithoutEpoch lets offsets be committed of which no epoch is known. Their next owner cannot check them: a log that was
// cut below them goes unnoticed. Each such commit is counted, and warned of once for each group and partition.
func WithoutEpoch() CommitOption { return func(o *commitOptions) { o.withoutEpoch = true } }

// WithMetadata stores a text of the program's with the offsets. Without one the consumer notes there whether the epoch is
// that of a consumed record, which lets the next owner find out more.
func WithMetadata(text string) CommitOption {
	return func(o *commitOptions) { o.metadata = Known(text) }
}

// consumedMark is the metadata of a commit whose epoch is that of a consumed batch, and not of a lookup.
const consumedMark = "epoch=consumed"

var errNoAnswer = errors.New("consumer: the answer lacks a partition that was asked for")

// offset is what is committed for a partition.
type commitEntry struct {
	Position
	metadata string
}

// Commit commits the positions of all assigned partitions, each with its epoch: of everything that a loop over a Fetch
// has taken. Partitions whose position is being looked up or checked are left out, and so is what is committed already, unless
// a text is to go with it.
func (c *Consumer) Commit(ctx context.Context, opts ...CommitOption) error {
	var o commitOptions
	for _, opt := range opts {
		opt(&o)
	}
	c.mu.Lock()
	c.settle()
	positions := map[TopicPartition]Position{}
	for tp, p := range c.parts {
		if p.m.usable() && (p.m.committed != Known(p.m.pos) || o.metadata.known) {
			positions[tp] = p.m.pos
		}
	}
	c.mu.Unlock()
	return c.CommitPositions(ctx, positions, opts...)
}

// CommitRecords commits records as consumed: of each partition up to and including the last one given.
func (c *Consumer) CommitRecords(ctx context.Context, records ...*Record) error {
	positions := map[TopicPartition]Position{}
	for _, r := range records {
		tp := r.TopicPartition()
		if old, ok := positions[tp]; !ok || r.Offset >= old.Offset {
			positions[tp] = r.Next()
		}
	}
	return c.CommitPositions(ctx, positions)
}

// CommitPositions commits positions of partitions that are assigned to this consumer; if one is not, the error is a
// NotAssignedError and nothing is sent. A position without an epoch gets that of the record before it, if it was consumed
// since the assignment; otherwise the error is a NoEpochError, unless WithoutEpoch is given. A refusal by the coordinator
// is a CommitError.
func (c *Consumer) CommitPositions(ctx context.Context, positions map[TopicPartition]Position, opts ...CommitOption) error {
	if c.o.GroupID == "" {
		return errors.New("consumer: a commit needs a group.id")
	}
	var o commitOptions
	for _, opt := range opts {
		opt(&o)
	}
	c.mu.Lock()
	entries, err := c.prepare(positions, o)
	c.mu.Unlock()
	if err != nil {
		return err
	}
	return c.send(ctx, entries)
}

// prepare makes what is sent of positions.
func (c *Consumer) prepare(positions map[TopicPartition]Position, o commitOptions) (map[TopicPartition]commitEntry, error) {
	c.settle()
	entries := map[TopicPartition]commitEntry{}
	var foreign, epochless []TopicPartition
	for _, tp := range sortedKeys(positions) {
		p, to := c.parts[tp], positions[tp]
		if p == nil || to.Offset < 0 {
			foreign = append(foreign, tp)
			continue
		}
		consumed := false
		switch at := p.m.history.epochBefore(to.Offset); {
		case p.m.has && to.Offset == p.m.pos.Offset && (!to.Epoch.known || to.Epoch == p.m.pos.Epoch) && p.m.pos.Epoch.known:
			to.Epoch, consumed = p.m.pos.Epoch, p.m.known
		case !at.known || to.Offset > p.m.pos.Offset:
		case !to.Epoch.known, to.Epoch == at:
			to.Epoch, consumed = at, true
		}
		// Batches of brokers from before epochs have none; that of a record that was consumed is then said to be unknown.
		if !to.Epoch.known && !(p.m.known && p.m.has && to.Offset <= p.m.pos.Offset && !p.m.pos.Epoch.known) {
			epochless = append(epochless, tp)
		}
		e := commitEntry{Position: to}
		if text, ok := o.metadata.Get(); ok {
			e.metadata = text
		} else if consumed {
			e.metadata = consumedMark
		}
		entries[tp] = e
	}
	if len(foreign) > 0 {
		return nil, &NotAssignedError{foreign}
	}
	if len(epochless) > 0 && !o.withoutEpoch {
		return nil, &NoEpochError{epochless}
	}
	for tp, e := range entries {
		if e.Epoch.known {
			continue
		}
		c.stats.CommitsWithoutEpoch++
		if !c.warned[tp] {
			c.warned[tp] = true
			c.log.Warn("commit without an epoch: whoever reads on from it cannot notice that the log was cut", "group", c.o.GroupID, "topic", tp.Topic, "partition", tp.Partition, "offset", e.Offset)
		}
	}
	return entries, nil
}

// prepareConsumed makes what an automatic commit sends: what was consumed, where that has an epoch.
func (c *Consumer) prepareConsumed(only ...TopicPartition) map[TopicPartition]commitEntry {
	c.settle()
	positions := map[TopicPartition]Position{}
	consider := func(tp TopicPartition) {
		if p := c.parts[tp]; p != nil && p.m.usable() && p.m.committed != Known(p.m.pos) && (p.m.pos.Epoch.known || p.m.known) {
			positions[tp] = p.m.pos
		}
	}
	if len(only) > 0 {
		for _, tp := range only {
			consider(tp)
		}
	} else {
		for tp := range c.parts {
			consider(tp)
		}
	}
	entries, err := c.prepare(positions, commitOptions{})
	if err != nil || len(entries) == 0 {
		return nil
	}
	return entries
}

// commitConsumed commits what was consumed and waits for it.
func (c *Consumer) commitConsumed(ctx context.Context, only ...TopicPartition) error {
	c.mu.Lock()
	entries := c.prepareConsumed(only...)
	c.mu.Unlock()
	return c.send(ctx, entries)
}

// autoCommit is the automatic commit of a Poll, beside it.
func (c *Consumer) autoCommit(entries map[TopicPartition]commitEntry) {
	if err := c.send(c.ctx, entries); err != nil && c.ctx.Err() == nil {
		c.log.Warn("automatic commit failed", "group", c.o.GroupID, "error", err)
	}
	c.mu.Lock()
	c.committing = false
	c.mu.Unlock()
}

// send commits, and tries again what may succeed later, for as long as ctx lets it and at most twice request.timeout.ms.
func (c *Consumer) send(ctx context.Context, entries map[TopicPartition]commitEntry) error {
	if len(entries) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*c.o.RequestTimeout)
	defer cancel()
	select {
	case c.committer <- struct{}{}:
		defer func() { <-c.committer }()
	case <-ctx.Done():
		return ctx.Err()
	}
	entries = maps.Clone(entries)
	fatal := map[TopicPartition]error{}
	for wait := c.o.RetryBackoff; ; wait = min(2*wait, c.o.RetryBackoffMax) {
		codes, err := c.sendOnce(ctx, entries)
		if err != nil {
			return err
		}
		again := map[TopicPartition]error{}
		for tp := range entries {
			switch code, ok := codes[tp]; {
			case !ok:
				fatal[tp] = errNoAnswer
			case code == codeNone:
			case retriable(code) || code == codeStaleMemberEpoch:
				again[tp] = codeError(code)
				continue
			default:
				fatal[tp] = codeError(code)
			}
			delete(entries, tp)
		}
		if len(again) > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(wait):
				continue
			}
			maps.Copy(fatal, again)
		}
		if len(fatal) > 0 {
			return &CommitError{Group: c.o.GroupID, Failed: fatal}
		}
		return nil
	}
}

func (c *Consumer) sendOnce(ctx context.Context, entries map[TopicPartition]commitEntry) (map[TopicPartition]int16, error) {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.Generation = c.o.GroupID, -1
	c.mu.Lock()
	if m := c.member; m != nil {
		req.Generation, req.MemberID, req.InstanceID = m.generation, m.id, m.instance
	}
	c.mu.Unlock()
	topics := map[string]int{}
	for _, tp := range sortedKeys(entries) {
		i, ok := topics[tp.Topic]
		if !ok {
			i = len(req.Topics)
			topics[tp.Topic] = i
			t := kmsg.NewOffsetCommitRequestTopic()
			t.Topic = tp.Topic
			req.Topics = append(req.Topics, t)
		}
		e := entries[tp]
		p := kmsg.NewOffsetCommitRequestTopicPartition()
		p.Partition, p.Offset, p.LeaderEpoch, p.Metadata = tp.Partition, e.Offset, orMinus(e.Epoch), kmsg.StringPtr(e.metadata)
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, p)
	}
	resp, err := req.RequestWith(ctx, c.client)
	if err != nil {
		return nil, &GroupError{c.o.GroupID, "commit", err}
	}
	codes := map[TopicPartition]int16{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range resp.Topics {
		for _, r := range t.Partitions {
			tp := TopicPartition{t.Topic, r.Partition}
			codes[tp] = r.ErrorCode
			if p := c.parts[tp]; p != nil && r.ErrorCode == codeNone {
				p.m.committed = Known(entries[tp].Position)
			}
		}
	}
	return codes, nil
}

// fetchCommitted asks the coordinator for committed offsets.
func (c *Consumer) fetchCommitted(ctx context.Context, partitions []TopicPartition) (map[TopicPartition]answer, error) {
	req := kmsg.NewPtrOffsetFetchRequest()
	req.RequireStable = true
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group, g.MemberEpoch = c.o.GroupID, -1
	c.mu.Lock()
	if m := c.member; m != nil && c.o.Protocol == ConsumerProtocol {
		g.MemberID, g.MemberEpoch = kmsg.StringPtr(m.id), m.generation
	}
	c.mu.Unlock()
	topics := map[string]int{}
	for _, tp := range partitions {
		i, ok := topics[tp.Topic]
		if !ok {
			i = len(g.Topics)
			topics[tp.Topic] = i
			t := kmsg.NewOffsetFetchRequestGroupTopic()
			t.Topic = tp.Topic
			g.Topics = append(g.Topics, t)
		}
		g.Topics[i].Partitions = append(g.Topics[i].Partitions, tp.Partition)
	}
	// The older form, of one group, for brokers that know no other.
	req.Group = g.Group
	for _, t := range g.Topics {
		old := kmsg.NewOffsetFetchRequestTopic()
		old.Topic, old.Partitions = t.Topic, t.Partitions
		req.Topics = append(req.Topics, old)
	}
	req.Groups = append(req.Groups, g)
	resp, err := req.RequestWith(ctx, c.client)
	if err != nil {
		return nil, err
	}
	answers := map[TopicPartition]answer{}
	take := func(topic string, partition int32, offset int64, epoch int32, metadata *string, code, top int16) {
		if top != codeNone {
			code = top
		}
		answers[TopicPartition{topic, partition}] = answer{code: code, offset: offset, epoch: epoch, consumed: metadata != nil && *metadata == consumedMark}
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			take(t.Topic, p.Partition, p.Offset, p.LeaderEpoch, p.Metadata, p.ErrorCode, resp.ErrorCode)
		}
	}
	top := resp.ErrorCode
	for _, g := range resp.Groups {
		if g.ErrorCode != codeNone {
			top = g.ErrorCode
		}
		for _, t := range g.Topics {
			for _, p := range t.Partitions {
				take(t.Topic, p.Partition, p.Offset, p.LeaderEpoch, p.Metadata, p.ErrorCode, g.ErrorCode)
			}
		}
	}
	if top != codeNone {
		for _, tp := range partitions {
			answers[tp] = answer{code: top}
		}
	}
	return answers, nil
}

// askCommitted asks the coordinator for the committed offsets of partitions that begin.
func (c *Consumer) askCommitted(ctx context.Context, questions []asked) (map[TopicPartition]answer, error) {
	partitions := make([]TopicPartition, len(questions))
	for i, a := range questions {
		partitions[i] = a.p.tp
	}
	answers, err := c.fetchCommitted(ctx, partitions)
	for tp, a := range answers {
		if a.code == codeUnknownMemberID || a.code == codeIllegalGeneration || a.code == codeStaleMemberEpoch || a.code == codeFencedMemberEpoch {
			a.err = codeError(a.code) // a rebalance is under way, and decides
			answers[tp] = a
		}
	}
	return answers, err
}
