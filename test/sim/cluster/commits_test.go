package cluster

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
)

// commits is one group without members, in which one client commits: what it reads back must be what it committed last, or
// what it does not know the fate of (P9).
type commits struct {
	*client
	group string
	state map[int32]*committed
}

type committed struct {
	last    *oneCommit   // the last that was acknowledged
	unsure  []*oneCommit // those that were not, since the beginning: they may be on their way yet
	count   int
	unclean int // unclean elections of the offsets topic at the last acknowledgement
	there   evidence
}

type oneCommit struct {
	offset int64
	epoch  int32
	text   string
}

func newCommits(c *client, group string) *commits {
	return &commits{client: c, group: group, state: map[int32]*committed{}}
}

// forget drops all expectations: the topic is another.
func (c *commits) forget() { clear(c.state) }

// find asks who coordinates the group.
func (c *commits) find(ctx context.Context) bool {
	if c.coord > 0 {
		return true
	}
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.CoordinatorKey, req.CoordinatorKeys = c.group, []string{c.group}
	resp, err := c.ask(ctx, c.anyNode(), 4*time.Second, req)
	if err != nil {
		return false
	}
	r := resp.(*kmsg.FindCoordinatorResponse)
	if len(r.Coordinators) == 1 && r.Coordinators[0].ErrorCode == 0 {
		c.coord = int(r.Coordinators[0].NodeID)
	}
	return c.coord > 0
}

func (c *commits) commit(ctx context.Context, topic string, id metadata.UUID, partition int32, offset int64, epoch int32) {
	if !c.find(ctx) {
		return
	}
	s := c.state[partition]
	if s == nil {
		s = &committed{}
		c.state[partition] = s
	}
	s.count++
	one := &oneCommit{offset, epoch, fmt.Sprintf("%s-%d", c.name, s.count)}
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.Generation = c.group, -1
	rp := kmsg.NewOffsetCommitRequestTopicPartition()
	rp.Partition, rp.Offset, rp.LeaderEpoch, rp.Metadata = partition, offset, epoch, &one.text
	rt := kmsg.NewOffsetCommitRequestTopic()
	rt.Topic, rt.TopicID, rt.Partitions = topic, id, append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	resp, err := c.ask(ctx, c.coord, 5*time.Second, req)
	if err != nil {
		c.coord = 0
		s.unsure = append(s.unsure, one)
		return
	}
	r := resp.(*kmsg.OffsetCommitResponse)
	if len(r.Topics) != 1 || len(r.Topics[0].Partitions) != 1 {
		c.w.fail(fmt.Errorf("an answer to OffsetCommit for another number of partitions"))
		return
	}
	if code := r.Topics[0].Partitions[0].ErrorCode; code != 0 {
		c.coord = 0
		s.unsure = append(s.unsure, one)
		return
	}
	s.last, s.unclean = one, c.w.uncleanOffsets()
	_, s.there = c.w.offsets()
	c.w.committed.Add(1)
}

func (c *commits) check(ctx context.Context, topic string, id metadata.UUID, partition int32) {
	s := c.state[partition]
	if s == nil || s.last == nil || !c.find(ctx) {
		return
	}
	req := kmsg.NewPtrOffsetFetchRequest()
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group, g.MemberEpoch = c.group, -1
	gt := kmsg.NewOffsetFetchRequestGroupTopic()
	gt.Topic, gt.TopicID, gt.Partitions = topic, id, []int32{partition}
	g.Topics = append(g.Topics, gt)
	req.Groups = append(req.Groups, g)
	resp, err := c.ask(ctx, c.coord, 5*time.Second, req)
	if err != nil {
		c.coord = 0
		return
	}
	r := resp.(*kmsg.OffsetFetchResponse)
	if len(r.Groups) != 1 || r.Groups[0].ErrorCode != 0 || len(r.Groups[0].Topics) != 1 || len(r.Groups[0].Topics[0].Partitions) != 1 {
		c.coord = 0
		return
	}
	p := &r.Groups[0].Topics[0].Partitions[0]
	if p.ErrorCode != 0 || r.Groups[0].Topics[0].TopicID != id && r.Groups[0].Topics[0].TopicID != (metadata.UUID{}) {
		return
	}
	got := oneCommit{p.Offset, p.LeaderEpoch, ""}
	if p.Metadata != nil {
		got.text = *p.Metadata
	}
	if got == *s.last {
		c.w.checkedCommits.Add(1)
		return
	}
	for _, one := range s.unsure {
		if got == *one {
			return
		}
	}
	if c.w.uncleanOffsets() != s.unclean || !c.w.coordinates(c.coord) || c.w.topicGone(id) || c.w.offsetsLost(&s.there) {
		if c.w.coordinates(c.coord) {
			s.last = nil // whatever is there is the past
		}
		return
	}
	c.w.fail(fmt.Errorf("P9: group %s has %+v for %s-%d, committed was %+v", c.group, got, topic, partition, *s.last))
}
