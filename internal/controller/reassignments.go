package controller

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
)

// AlterReassignmentsReply answers AlterPartitionReassignments, in the order of the request.
type AlterReassignmentsReply struct{ Partitions []PartitionOutcome }

// AlterPartitionAssignments moves partitions to other replicas, or, without replicas, cancels a move. A move
// ends by itself when the in-sync set allows it, inside any later change of the partition.
func (c *Controller) AlterPartitionAssignments(at At, req *kmsg.AlterPartitionAssignmentsRequest) Result {
	o := c.begin(at)
	fixedFactor := req.Version >= 1 && !req.AllowReplicationFactorChange
	var reply AlterReassignmentsReply
	for _, t := range req.Topics {
		for i := range t.Partitions {
			r := &t.Partitions[i]
			out := PartitionOutcome{Topic: t.Topic, Partition: r.Partition}
			topic, known := o.img.Topic(t.Topic)
			var p *metadata.Partition
			if known {
				p, known = topic.Partition(r.Partition)
			}
			switch {
			case !known:
				out.Err = faultf(ErrUnknownTopicOrPartition, "no partition %s-%d", t.Topic, r.Partition)
			case r.Replicas == nil:
				out.Err = o.cancelReassignment(topic, p)
			default:
				out.Err = o.reassign(topic, p, r.Replicas, fixedFactor)
			}
			reply.Partitions = append(reply.Partitions, out)
		}
	}
	return o.result(true, reply)
}

func (o *op) reassign(topic *metadata.Topic, p *metadata.Partition, target []int32, fixedFactor bool) *Error {
	if err := o.checkTarget(target); err != nil {
		return err
	}
	if factor := len(p.Replicas) - len(p.RemovingReplicas); fixedFactor && len(target) != factor {
		return faultf(ErrInvalidReplicationFactor, "the replication factor would change from %d to %d", factor, len(target))
	}
	if !p.Reassigning() && slices.Equal(target, p.Replicas) {
		return nil
	}
	b := o.change(topic, p, nobody, nobody)
	b.removing, b.adding = without(p.Replicas, target...), without(target, p.Replicas...)
	// A replica that an unfinished move was adding is still being added when it has not caught up.
	for _, id := range p.AddingReplicas {
		if slices.Contains(target, id) && !slices.Contains(p.ISR, id) {
			b.adding = append(b.adding, id)
		}
	}
	slices.Sort(b.removing)
	slices.Sort(b.adding)
	b.replicas = slices.Concat(target, b.removing)
	for _, id := range target {
		if _, placed := b.dirs[id]; !placed {
			b.dirs[id] = o.directoryFor(id)
		}
	}
	if rec := b.build(); rec != nil {
		o.add(rec)
	}
	return nil
}

func (o *op) checkTarget(target []int32) *Error {
	if len(target) == 0 {
		return faultf(ErrInvalidReplicaAssignment, "the assignment has no replicas")
	}
	for i, id := range target {
		b, ok := o.img.Broker(id)
		switch {
		case !ok:
			return faultf(ErrInvalidReplicaAssignment, "broker %d is not registered", id)
		case b.AllCordoned():
			return faultf(ErrInvalidReplicaAssignment, "all log directories of broker %d are cordoned", id)
		case slices.Contains(target[:i], id):
			return faultf(ErrInvalidReplicaAssignment, "broker %d is assigned twice", id)
		}
	}
	return nil
}

// cancelReassignment goes back to the replicas without those that were being added.
func (o *op) cancelReassignment(topic *metadata.Topic, p *metadata.Partition) *Error {
	if !p.Reassigning() {
		return faultf(ErrNoReassignmentInProgress, "%s-%d is not being reassigned", topic.Name, p.ID)
	}
	b := o.change(topic, p, nobody, nobody)
	b.replicas, b.isr = without(p.Replicas, p.AddingReplicas...), without(p.ISR, p.AddingReplicas...)
	b.adding, b.removing = nil, nil
	if len(b.isr) == 0 && b.how != electUnclean {
		return faultf(ErrInvalidReplicaAssignment, "no replica of before is in sync, and unclean.leader.election.enable is false")
	}
	if rec := b.build(); rec != nil {
		o.add(rec)
	}
	return nil
}

// Reassignment is a partition on the move.
type Reassignment struct {
	Topic     string
	Partition *metadata.Partition
}

// ListPartitionReassignments lists the partitions on the move, of the given ones or of all (nil). It reads
// committed state; what is not known or not on the move is left out.
func (c *Controller) ListPartitionReassignments(req *kmsg.ListPartitionReassignmentsRequest) []Reassignment {
	var out []Reassignment
	img := c.Committed()
	if req.Topics == nil {
		for _, topic := range img.Topics().All() {
			for _, p := range topic.Partitions().All() {
				if p.Reassigning() {
					out = append(out, Reassignment{topic.Name, p})
				}
			}
		}
		return out
	}
	for _, t := range req.Topics {
		for _, id := range t.Partitions {
			if p, ok := img.Partition(t.Topic, id); ok && p.Reassigning() {
				out = append(out, Reassignment{t.Topic, p})
			}
		}
	}
	return out
}
