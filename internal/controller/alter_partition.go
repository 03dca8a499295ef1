package controller

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
)

// AlteredPartition is the outcome for one partition: its new state, or why not. With ErrNewLeaderElected
// the change was made all the same.
type AlteredPartition struct {
	TopicID   metadata.UUID
	Partition int32
	State     *metadata.Partition
	Err       *Error
}

// AlterPartitionReply answers AlterPartition, in the order of the request.
type AlterPartitionReply struct{ Partitions []AlteredPartition }

// AlterPartition changes the in-sync sets of partitions at the wish of their leader.
func (c *Controller) AlterPartition(at At, req *kmsg.AlterPartitionRequest) Result {
	w := c.begin(at)
	if _, err := w.checkEpoch(req.BrokerID, req.BrokerEpoch); err != nil {
		return failed(err)
	}
	var reply AlterPartitionReply
	for _, t := range req.Topics {
		id := metadata.UUID(t.TopicID)
		topic, known := w.img.TopicByID(id)
		if req.Version < 2 {
			if topic, known = w.img.Topic(t.Topic); known {
				id = topic.ID
			}
		}
		for i := range t.Partitions {
			r := &t.Partitions[i]
			out := AlteredPartition{TopicID: id, Partition: r.Partition}
			switch {
			case !known && req.Version < 2:
				out.Err = faultf(ErrUnknownTopicOrPartition, "no topic %s", t.Topic)
			case !known:
				out.Err = faultf(ErrUnknownTopicID, "no topic has id %s", id)
			default:
				out.State, out.Err = w.alterOne(req, topic, r)
			}
			reply.Partitions = append(reply.Partitions, out)
		}
	}
	return w.result(false, reply)
}

func (o *op) checkEpoch(broker int32, epoch int64) (*metadata.BrokerRegistration, *Error) {
	b, ok := o.img.Broker(broker)
	if !ok {
		return nil, faultf(ErrStaleBrokerEpoch, "broker %d is not registered", broker)
	}
	if b.Epoch != epoch && !mutantStaleEpoch {
		return nil, faultf(ErrStaleBrokerEpoch, "broker %d has epoch %d, not %d", broker, b.Epoch, epoch)
	}
	return b, nil
}

func (o *op) alterOne(req *kmsg.AlterPartitionRequest, topic *metadata.Topic, r *kmsg.AlterPartitionRequestTopicPartition) (*metadata.Partition, *Error) {
	p, ok := topic.Partition(r.Partition)
	if !ok {
		return nil, faultf(ErrUnknownTopicOrPartition, "no partition %s-%d", topic.Name, r.Partition)
	}
	// An earlier item of the same request may have changed it.
	p, _ = o.img.Partition(topic.Name, p.ID)
	isr := newISR(req.Version, r)
	if err := o.checkAlter(req.BrokerID, p, r, isr); err != nil {
		return nil, err
	}
	b := o.change(topic, p, nobody, nobody)
	b.isr = make([]int32, 0, len(isr))
	for _, m := range isr {
		b.isr = append(b.isr, m.BrokerID)
	}
	if req.Version >= 1 {
		b.recovery = r.LeaderRecoveryState
	}
	rec := b.build()
	if rec == nil {
		return p, nil
	}
	o.add(rec)
	changed, _ := o.img.Partition(topic.Name, p.ID)
	if changed.Leader != req.BrokerID {
		return changed, faultf(ErrNewLeaderElected, "%s-%d is led by %d at epoch %d now", topic.Name, p.ID, changed.Leader, changed.LeaderEpoch)
	}
	return changed, nil
}

// newISR is the wanted in-sync set; below version 3 members come without epochs (-1).
func newISR(version int16, r *kmsg.AlterPartitionRequestTopicPartition) []kmsg.AlterPartitionRequestTopicPartitionNewEpochISR {
	if version >= 3 {
		return r.NewEpochISR
	}
	out := make([]kmsg.AlterPartitionRequestTopicPartitionNewEpochISR, len(r.NewISR))
	for i, id := range r.NewISR {
		out[i].BrokerID, out[i].BrokerEpoch = id, -1
	}
	return out
}

func (o *op) checkAlter(sender int32, p *metadata.Partition, r *kmsg.AlterPartitionRequestTopicPartition, isr []kmsg.AlterPartitionRequestTopicPartitionNewEpochISR) *Error {
	switch {
	case r.LeaderEpoch > p.LeaderEpoch:
		return faultf(ErrNotController, "leader epoch %d is above %d, which is all this controller knows of", r.LeaderEpoch, p.LeaderEpoch)
	case r.PartitionEpoch > p.PartitionEpoch:
		return faultf(ErrNotController, "partition epoch %d is above %d, which is all this controller knows of", r.PartitionEpoch, p.PartitionEpoch)
	case r.LeaderEpoch < p.LeaderEpoch:
		return faultf(ErrFencedLeaderEpoch, "leader epoch is %d, not %d", p.LeaderEpoch, r.LeaderEpoch)
	case sender != p.Leader:
		return faultf(ErrInvalidRequest, "broker %d is not the leader, %d is", sender, p.Leader)
	case r.PartitionEpoch < p.PartitionEpoch:
		return faultf(ErrInvalidUpdateVersion, "partition epoch is %d, not %d", p.PartitionEpoch, r.PartitionEpoch)
	}
	for i, m := range isr {
		if !slices.Contains(p.Replicas, m.BrokerID) {
			return faultf(ErrInvalidRequest, "broker %d is no replica", m.BrokerID)
		}
		for _, before := range isr[:i] {
			if before.BrokerID == m.BrokerID {
				return faultf(ErrInvalidRequest, "the ISR names broker %d twice", m.BrokerID)
			}
		}
	}
	switch {
	case !slices.ContainsFunc(isr, func(m kmsg.AlterPartitionRequestTopicPartitionNewEpochISR) bool { return m.BrokerID == sender }):
		return faultf(ErrInvalidRequest, "the ISR lacks the leader")
	case r.LeaderRecoveryState == metadata.Recovering && len(isr) > 1:
		return faultf(ErrInvalidRequest, "the ISR has more than one member while the leader recovers")
	case p.RecoveryState == metadata.Recovered && r.LeaderRecoveryState == metadata.Recovering:
		return faultf(ErrInvalidRequest, "a leader that has recovered cannot go back")
	case r.LeaderRecoveryState != metadata.Recovered && r.LeaderRecoveryState != metadata.Recovering:
		return faultf(ErrInvalidRequest, "leader recovery state %d is not known", r.LeaderRecoveryState)
	}
	for _, m := range isr {
		b, ok := o.img.Broker(m.BrokerID)
		switch {
		case !ok:
			return faultf(ErrIneligibleReplica, "broker %d is not registered", m.BrokerID)
		case b.Fenced:
			return faultf(ErrIneligibleReplica, "broker %d is fenced", m.BrokerID)
		case b.InControlledShutdown:
			return faultf(ErrIneligibleReplica, "broker %d is shutting down", m.BrokerID)
		case m.BrokerEpoch != -1 && m.BrokerEpoch != b.Epoch:
			return faultf(ErrIneligibleReplica, "broker %d has epoch %d, not %d", m.BrokerID, b.Epoch, m.BrokerEpoch)
		}
	}
	return nil
}
