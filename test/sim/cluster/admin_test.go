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
		case n < 16:
			a.deleteRecords(ctx, a.w.kinds[1+2*a.rng.IntN(2)])
		case n < 18:
			a.deleteAndTurn(ctx)
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
func (a *admin) deleteRecords(ctx context.Context, k *topicKind) {
	a.deleteFrom(ctx, k, a.rng.IntN(k.partitions))
}

// deleteAndTurn deletes records while a follower is slow to hear of it, and then has that one lead: its log begins below
// the others'.
func (a *admin) deleteAndTurn(ctx context.Context) {
	k := a.w.kinds[1]
	partition := a.rng.IntN(k.partitions)
	replicas, leader := a.w.replicasOf(k.name, int32(partition))
	if len(replicas) < 3 || leader < 1 {
		return
	}
	for replicas[0] == leader {
		a.rng.Shuffle(len(replicas), func(i, j int) { replicas[i], replicas[j] = replicas[j], replicas[i] })
	}
	l := a.w.hosts[replicas[0]-1].now()
	if l == nil {
		return
	}
	l.lagging.Store(int64(3 * time.Second))
	a.w.after(3*time.Second, func() { l.lagging.Store(0) })
	a.deleteFrom(ctx, k, partition)
	req := kmsg.NewPtrAlterPartitionAssignmentsRequest()
	req.TimeoutMillis = 2000
	p := kmsg.NewAlterPartitionAssignmentsRequestTopicPartition()
	p.Partition, p.Replicas = int32(partition), replicas
	t := kmsg.NewAlterPartitionAssignmentsRequestTopic()
	t.Topic, t.Partitions = k.name, append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	if _, err := a.ask(ctx, a.anyNode(), 2*time.Second, req); err != nil {
		return
	}
	prefer := kmsg.NewPtrElectLeadersRequest()
	prefer.TimeoutMillis = 2000
	pt := kmsg.NewElectLeadersRequestTopic()
	pt.Topic, pt.Partitions = k.name, []int32{int32(partition)}
	prefer.Topics = append(prefer.Topics, pt)
	_, _ = a.ask(ctx, a.anyNode(), 2*time.Second, prefer)
}

func (a *admin) deleteFrom(ctx context.Context, k *topicKind, partition int) {
	_, to, err := a.leader(ctx, k.name, partition)
	if err != nil {
		return
	}
	req := kmsg.NewPtrDeleteRecordsRequest()
	req.TimeoutMillis = 700
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
