package cluster

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// admin is an operator who is never done: replicas are moved, leaders elected, topics made anew, records deleted.
type admin struct {
	*client
	moved, elected, unclean, recreated, deleted int
}

func (a *admin) run(ctx context.Context) {
	defer a.close()
	for a.rest(ctx, 5*time.Second) {
		k := a.w.kinds[a.rng.IntN(len(a.w.kinds))]
		switch n := a.rng.IntN(20); {
		case n < 6:
			a.reassign(ctx, k)
		case n < 10:
			a.elect(ctx, k, 0)
		case n < 12:
			if k.unclean {
				a.elect(ctx, k, 1)
			}
		case n < 18:
			a.deleteRecords(ctx)
		case n < 19:
			a.recreate(ctx)
		default:
		}
	}
}

// reassign moves a partition to other brokers, or takes a move back.
func (a *admin) reassign(ctx context.Context, k *topicKind) {
	req := kmsg.NewPtrAlterPartitionAssignmentsRequest()
	req.TimeoutMillis = 3000
	p := kmsg.NewAlterPartitionAssignmentsRequestTopicPartition()
	p.Partition = int32(a.rng.IntN(k.partitions))
	if a.rng.IntN(6) > 0 {
		for _, i := range a.rng.Perm(len(a.w.hosts))[:k.replicas] {
			p.Replicas = append(p.Replicas, int32(i+1))
		}
	}
	t := kmsg.NewAlterPartitionAssignmentsRequestTopic()
	t.Topic, t.Partitions = k.name, append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	resp, err := a.ask(ctx, a.anyNode(), 4*time.Second, req)
	if err != nil {
		return
	}
	if r := resp.(*kmsg.AlterPartitionAssignmentsResponse); r.ErrorCode == 0 && len(r.Topics) == 1 && len(r.Topics[0].Partitions) == 1 && r.Topics[0].Partitions[0].ErrorCode == 0 {
		a.moved++
		a.w.lines.say("%s-%d is moved to %v", k.name, p.Partition, p.Replicas)
	}
}

// elect asks for an election: kind 0 of the preferred replica, kind 1 unclean.
func (a *admin) elect(ctx context.Context, k *topicKind, kind int8) {
	req := kmsg.NewPtrElectLeadersRequest()
	req.ElectionType, req.TimeoutMillis = kind, 3000
	t := kmsg.NewElectLeadersRequestTopic()
	t.Topic, t.Partitions = k.name, []int32{int32(a.rng.IntN(k.partitions))}
	req.Topics = append(req.Topics, t)
	resp, err := a.ask(ctx, a.anyNode(), 4*time.Second, req)
	if err != nil || resp.(*kmsg.ElectLeadersResponse).ErrorCode != 0 {
		return
	}
	if kind == 0 {
		a.elected++
	} else {
		a.unclean++
	}
}

// deleteRecords takes away what consumers may see of a partition whose records are not for ever.
func (a *admin) deleteRecords(ctx context.Context) {
	k := a.w.kinds[1+2*a.rng.IntN(2)]
	partition := a.rng.IntN(k.partitions)
	_, to, err := a.leader(ctx, k.name, partition)
	if err != nil {
		return
	}
	req := kmsg.NewPtrDeleteRecordsRequest()
	req.TimeoutMillis = 3000
	p := kmsg.NewDeleteRecordsRequestTopicPartition()
	p.Partition, p.Offset = int32(partition), -1
	t := kmsg.NewDeleteRecordsRequestTopic()
	t.Topic, t.Partitions = k.name, append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	resp, err := a.ask(ctx, to.leader, 5*time.Second, req)
	a.stale = true
	if err != nil {
		return
	}
	if r := resp.(*kmsg.DeleteRecordsResponse); len(r.Topics) == 1 && len(r.Topics[0].Partitions) == 1 && r.Topics[0].Partitions[0].ErrorCode == 0 {
		a.deleted++
		a.w.lines.say("records of %s are deleted up to %d", k.name, r.Topics[0].Partitions[0].LowWatermark)
	}
}

// recreate deletes the volatile topic, and makes another of its name.
func (a *admin) recreate(ctx context.Context) {
	k := a.w.kinds[3]
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TimeoutMillis = 3000
	t := kmsg.NewDeleteTopicsRequestTopic()
	t.Topic = &k.name
	req.Topics, req.TopicNames = append(req.Topics, t), []string{k.name}
	if resp, err := a.ask(ctx, a.anyNode(), 4*time.Second, req); err == nil {
		if r := resp.(*kmsg.DeleteTopicsResponse); len(r.Topics) == 1 && r.Topics[0].ErrorCode == 0 {
			a.recreated++
			a.w.lines.say("%s is deleted", k.name)
		}
	}
	for range 20 {
		if a.w.createTopic(a.client, k) == nil || !a.rest(ctx, time.Second) {
			return
		}
	}
}
