package group

import (
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// A committer is who a commit says it comes from.
type committer struct {
	group         string
	generation    int32
	memberID      string
	instanceID    *string
	transactional bool
	version       int16
	partitions    []kmsg.OffsetCommitRequestTopic
	// unknownGroup is the error for a group that is not known, by the request's version.
	unknownGroup error
}

// OffsetCommit stores the offsets of one OffsetCommit. The request holds what survived the checks of the
// caller: topics that exist and may be read, with their names, and with their ids where these are known.
func (s *Shard) OffsetCommit(now time.Time, to ReplyTo, req *kmsg.OffsetCommitRequest) Effects {
	var fx Effects
	c := committer{req.Group, req.Generation, req.MemberID, req.InstanceID, false, req.Version, req.Topics, ErrIllegalGeneration}
	if req.Version >= 9 {
		c.unknownGroup = ErrGroupIDNotFound
	}
	expires := int64(-1)
	if req.RetentionTimeMillis >= 0 && req.Version >= 2 && req.Version <= 4 {
		expires = now.UnixMilli() + req.RetentionTimeMillis
	}
	fx.ReplyAfterCommit(to, s.store(now, &fx, c, expires, req.Topics))
	return fx
}

// TxnOffsetCommit stores offsets in a transaction, once the transaction itself has been checked. The records
// are one transactional batch of the producer; they become visible with its commit marker.
func (s *Shard) TxnOffsetCommit(now time.Time, to ReplyTo, req *kmsg.TxnOffsetCommitRequest) Effects {
	fx := Effects{ProducerID: req.ProducerID, ProducerEpoch: req.ProducerEpoch, HasProducer: true}
	c := committer{req.Group, req.Generation, req.MemberID, req.InstanceID, true, req.Version, nil, ErrIllegalGeneration}
	if req.Version >= 6 {
		c.unknownGroup = ErrGroupIDNotFound
	}
	topics := make([]kmsg.OffsetCommitRequestTopic, len(req.Topics))
	for i, t := range req.Topics {
		topics[i] = kmsg.OffsetCommitRequestTopic{Topic: t.Topic, TopicID: t.TopicID}
		for _, p := range t.Partitions {
			topics[i].Partitions = append(topics[i].Partitions, kmsg.OffsetCommitRequestTopicPartition{
				Partition: p.Partition, Offset: p.Offset, LeaderEpoch: p.LeaderEpoch, Metadata: p.Metadata,
			})
		}
	}
	c.partitions = topics
	reply := s.store(now, &fx, c, -1, topics)
	if fx.Records == nil {
		fx = Effects{} // nothing to write in the transaction
	}
	fx.ReplyAfterCommit(to, reply)
	return fx
}

// store writes an offset for each partition that nothing is wrong with.
func (s *Shard) store(now time.Time, fx *Effects, c committer, expires int64, topics []kmsg.OffsetCommitRequestTopic) *CommitReply {
	groupErr := s.checkCommitter(now, c)
	adds := int64(0) // bytes that are held in addition
	reply := &CommitReply{Topics: make([]CommittedTopic, len(topics))}
	for i, t := range topics {
		results := make([]PartitionResult, len(t.Partitions))
		for k, p := range t.Partitions {
			metadata := deref(p.Metadata)
			err := groupErr
			if err == nil && utf16Len(metadata) > s.config.OffsetMetadataMaxBytes {
				err = ErrOffsetMetadataTooLarge
			}
			value := &OffsetCommitValue{
				Offset:          p.Offset,
				LeaderEpoch:     p.LeaderEpoch,
				Metadata:        metadata,
				CommitTimestamp: now.UnixMilli(),
				ExpireTimestamp: expires,
				TopicID:         t.TopicID,
			}
			if err == nil {
				more := offsetBytes(t.Topic, value)
				if old, ok := s.replicated.offset(c.group, TopicPartition{t.Topic, p.Partition}); ok {
					more -= offsetBytes(t.Topic, old.OffsetCommitValue)
				}
				if adds += max(more, 0); more > 0 && !s.held.room(adds) {
					err = ErrInvalidCommitOffsetSize
				}
			}
			results[k] = PartitionResult{p.Partition, err}
			if err != nil {
				continue
			}
			fx.Append(&OffsetCommitRecord{Group: c.group, Topic: t.Topic, Partition: p.Partition, Value: value})
		}
		reply.Topics[i] = CommittedTopic{t.Topic, t.TopicID, results}
	}
	return reply
}

// utf16Len is the length of a Java string with these characters.
func utf16Len(s string) int {
	n := 0
	for _, r := range s {
		n++
		if r > 0xffff {
			n++
		}
	}
	return n
}

// checkCommitter decides whether the commit comes from the group as it is now. A commit of a member, not in
// a transaction, keeps its session.
func (s *Shard) checkCommitter(now time.Time, c committer) error {
	if consumers := s.replicated.consumers[c.group]; consumers.exists() {
		return s.checkConsumerCommitter(consumers, c)
	}
	g := s.group(now, c.group)
	if g == nil && !s.replicated.hasOffsets(c.group) {
		if c.generation >= 0 {
			return c.unknownGroup
		}
		return nil
	}
	empty := g == nil || g.state == Empty
	if c.generation < 0 && empty {
		return nil // an administrator, or a consumer that assigns partitions itself, whatever ids it gives
	}
	if c.generation < 0 && c.memberID == "" && c.instanceID == nil {
		if c.transactional {
			return nil // producers of before KIP-447 say nothing of the member
		}
		return ErrUnknownMemberID
	}
	if g == nil {
		return ErrUnknownMemberID
	}
	m, err := g.checkMember(c.memberID, c.instanceID)
	switch {
	case err != nil:
		return err
	case c.generation != g.generation && !mutantGenerationUnchecked:
		return ErrIllegalGeneration
	case c.transactional:
		return nil
	case g.state == CompletingRebalance:
		return ErrRebalanceInProgress
	}
	if !mutantCommitKeepsClock {
		s.restartSession(now, g, m)
	}
	return nil
}

// A FetchRequest asks for offsets of one group: of the partitions named in Topics, or of all.
type FetchRequest struct {
	Group  string
	All    bool
	Topics []FetchTopic
	// From, unless nil, says which member asks. Members of the consumer protocol are checked by it.
	From *Fetcher
}

// A Fetcher is the member that asks for offsets, as it says.
type Fetcher struct {
	MemberID *string
	Epoch    int32
}

// A FetchTopic names partitions of a topic. An offset that was committed for another topic of the same name
// is not shown: with TopicID set, the ids are compared where the stored one is known.
type FetchTopic struct {
	Topic      string
	TopicID    [16]byte // zero: not known
	Partitions []int32
}

// FetchCommitted reads offsets as of the last committed one; open transactions are ignored. It may be
// answered at once. A group that is not known has no offsets, and that is no error: only a loaded shard
// may be asked.
func (s *Shard) FetchCommitted(req FetchRequest) *FetchReply {
	if err := s.checkFetcher(req); err != nil {
		return &FetchReply{Group: req.Group, Err: err}
	}
	return s.fetch(req, (*offsetTable).CommittedKeys, s.replicated.committedOffset, func(TopicPartition) bool { return false })
}

// FetchStable reads offsets for a client that requires stable ones: the newest, once every write so far is
// committed, and ErrUnstableOffsetCommit where a transaction is open.
func (s *Shard) FetchStable(to ReplyTo, req FetchRequest) Effects {
	var fx Effects
	if err := s.checkFetcher(req); err != nil {
		fx.ReplyAfterCommit(to, &FetchReply{Group: req.Group, Err: err})
		return fx
	}
	newestKeys := func(t *offsetTable, f func(TopicPartition)) {
		for tp := range t.Newest() {
			f(tp)
		}
	}
	fx.ReplyAfterCommit(to, s.fetch(req, newestKeys, s.replicated.offset, func(tp TopicPartition) bool {
		return s.replicated.isOpen(req.Group, tp)
	}))
	return fx
}

func (s *Shard) fetch(req FetchRequest, keys func(*offsetTable, func(TopicPartition)),
	offset func(string, TopicPartition) (offsetEntry, bool), unstable func(TopicPartition) bool) *FetchReply {
	topics := req.Topics
	if req.All {
		var all []TopicPartition
		if t := s.replicated.offsets[req.Group]; t != nil {
			keys(t, func(tp TopicPartition) { all = append(all, tp) })
		}
		topics = byTopic(all)
	}
	reply := &FetchReply{Group: req.Group, Topics: make([]FetchedTopic, len(topics))}
	for i, t := range topics {
		f := FetchedTopic{Topic: t.Topic, TopicID: t.TopicID, Partitions: make([]FetchedPartition, len(t.Partitions))}
		for k, partition := range t.Partitions {
			tp := TopicPartition{t.Topic, partition}
			p := FetchedPartition{Partition: partition, Offset: -1, LeaderEpoch: -1}
			entry, ok := offset(req.Group, tp)
			switch {
			case unstable(tp):
				p.Err = ErrUnstableOffsetCommit
			case ok && (t.TopicID == [16]byte{} || entry.TopicID == [16]byte{} || entry.TopicID == t.TopicID):
				p.Offset, p.LeaderEpoch, p.Metadata = entry.Offset, entry.LeaderEpoch, entry.Metadata
				if req.All && entry.TopicID != [16]byte{} {
					f.TopicID = entry.TopicID
				}
			}
			f.Partitions[k] = p
		}
		reply.Topics[i] = f
	}
	return reply
}

// byTopic sorts partitions and gathers them by topic.
func byTopic(partitions []TopicPartition) []FetchTopic {
	sortPartitions(partitions)
	var topics []FetchTopic
	for _, tp := range partitions {
		if n := len(topics); n == 0 || topics[n-1].Topic != tp.Topic {
			topics = append(topics, FetchTopic{Topic: tp.Topic})
		}
		last := &topics[len(topics)-1]
		last.Partitions = append(last.Partitions, tp.Partition)
	}
	return topics
}

func sortPartitions(partitions []TopicPartition) {
	slices.SortFunc(partitions, func(a, b TopicPartition) int {
		if c := strings.Compare(a.Topic, b.Topic); c != 0 {
			return c
		}
		return int(a.Partition) - int(b.Partition)
	})
}

// OffsetDelete removes offsets of a group, but not of topics to which it is subscribed.
func (s *Shard) OffsetDelete(now time.Time, to ReplyTo, req *kmsg.OffsetDeleteRequest) Effects {
	var fx Effects
	g, consumers := s.group(now, req.Group), s.replicated.consumers[req.Group]
	if req.Group == "" {
		fx.ReplyAfterCommit(to, &OffsetDeleteReply{Err: ErrInvalidGroupID})
		return fx
	}
	if g == nil && !consumers.exists() && !s.replicated.hasOffsets(req.Group) {
		fx.ReplyAfterCommit(to, &OffsetDeleteReply{Err: ErrGroupIDNotFound})
		return fx
	}
	subscribes := func(string) bool { return false }
	if consumers.exists() {
		subscribes = consumers.subscribes
	}
	if g != nil && g.state != Empty {
		if g.protocolType != consumerProtocolType {
			fx.ReplyAfterCommit(to, &OffsetDeleteReply{Err: ErrNonEmptyGroup})
			return fx
		}
		subscribes = g.subscription().has
	}
	reply := &OffsetDeleteReply{Topics: make([]CommittedTopic, len(req.Topics))}
	for i, t := range req.Topics {
		results := make([]PartitionResult, len(t.Partitions))
		for k, p := range t.Partitions {
			results[k].Partition = p.Partition
			if subscribes(t.Topic) {
				results[k].Err = ErrGroupSubscribedToTopic
				continue
			}
			tp := TopicPartition{t.Topic, p.Partition}
			_, stored := s.replicated.offset(req.Group, tp)
			if stored || s.replicated.isOpen(req.Group, tp) {
				fx.Append(offsetTombstone(req.Group, tp))
			}
		}
		reply.Topics[i] = CommittedTopic{Topic: t.Topic, Partitions: results}
	}
	fx.ReplyAfterCommit(to, reply)
	return fx
}

func offsetTombstone(group string, tp TopicPartition) *OffsetCommitRecord {
	return &OffsetCommitRecord{Group: group, Topic: tp.Topic, Partition: tp.Partition}
}

// partitionsOf lists the partitions for which a group has an offset, stored or pending, in order.
func (s *Shard) partitionsOf(group string) []TopicPartition {
	var partitions []TopicPartition
	if t := s.replicated.offsets[group]; t != nil {
		for tp := range t.Newest() {
			partitions = append(partitions, tp)
		}
	}
	for tp := range s.replicated.open[group] {
		if _, stored := s.replicated.offset(group, tp); !stored {
			partitions = append(partitions, tp)
		}
	}
	sortPartitions(partitions)
	return partitions
}

// A DeletedTopic is a topic that is gone from the metadata.
type DeletedTopic struct {
	Topic   string
	TopicID [16]byte
}

// TopicsDeleted removes every group's offsets of topics that were deleted, so that a new topic of the same
// name starts clean. Offsets that are known to be of another topic of that name stay.
func (s *Shard) TopicsDeleted(topics []DeletedTopic) Effects {
	fx := Effects{Splittable: true}
	deleted := make(map[string][][16]byte, len(topics))
	for _, t := range topics {
		deleted[t.Topic] = append(deleted[t.Topic], t.TopicID)
	}
	for _, group := range s.groupsWithOffsets() {
		for _, tp := range s.partitionsOf(group) {
			ids, ok := deleted[tp.Topic]
			if !ok {
				continue
			}
			if entry, stored := s.replicated.offset(group, tp); stored &&
				entry.TopicID != [16]byte{} && !slices.Contains(ids, entry.TopicID) {
				continue
			}
			fx.Append(offsetTombstone(group, tp))
		}
	}
	return fx
}

func (s *Shard) groupsWithOffsets() []string {
	groups := sortedKeys(s.replicated.offsets)
	for group := range s.replicated.open {
		if _, ok := s.replicated.offsets[group]; !ok {
			groups = append(groups, group)
		}
	}
	slices.Sort(groups)
	return groups
}
