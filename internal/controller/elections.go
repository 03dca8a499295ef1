package controller

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
)

const nobody int32 = -1

// eachPartition calls f for every partition. It costs a walk over all of them: it runs when a broker comes
// or goes and at long intervals, not per request.
func (o *op) eachPartition(f func(*metadata.Topic, *metadata.Partition)) {
	for _, topic := range o.img.Topics().All() {
		for _, p := range topic.Partitions().All() {
			f(topic, p)
		}
	}
}

// leaveISRs takes a broker out of the ISR and leadership of every partition. unclean says that it may have
// lost data: with eligible leaders kept, it then leaves that set as well.
func (o *op) leaveISRs(broker int32, unclean bool) {
	var recs []metadata.Record
	o.eachPartition(func(topic *metadata.Topic, p *metadata.Partition) {
		inELR := unclean && o.img.ELREnabled() && slices.Contains(p.ELR, broker)
		if !slices.Contains(p.ISR, broker) && !inELR {
			return
		}
		b := o.change(topic, p, broker, nobody)
		b.isr = without(p.ISR, broker)
		if unclean && b.elr {
			b.unclean = []int32{broker}
		}
		if rec := b.build(); rec != nil {
			recs = append(recs, rec)
		}
	})
	o.add(recs...)
}

// takeLeaderless gives a leader to each partition without one that a returning broker can lead now.
func (o *op) takeLeaderless(broker int32) {
	var recs []metadata.Record
	o.eachPartition(func(topic *metadata.Topic, p *metadata.Partition) {
		if p.Leader != metadata.NoLeader || !slices.Contains(p.Replicas, broker) {
			return
		}
		if rec := o.change(topic, p, nobody, broker).build(); rec != nil {
			recs = append(recs, rec)
		}
	})
	o.add(recs...)
}

// leadsAny says whether a broker leads some partition.
func leadsAny(img *metadata.Image, broker int32) bool {
	for _, topic := range img.Topics().All() {
		for _, p := range topic.Partitions().All() {
			if p.Leader == broker {
				return true
			}
		}
	}
	return false
}

// PartitionOutcome is the outcome for one partition: nil Err for success.
type PartitionOutcome struct {
	Topic     string
	Partition int32
	Err       *Error
}

// ElectLeadersReply answers ElectLeaders, in the order of the request.
type ElectLeadersReply struct{ Partitions []PartitionOutcome }

// ElectLeaders elects preferred leaders (type 0) or, of leaderless partitions, any live replica (type 1).
// Without topics all partitions are meant, and those that need nothing are left out of the answer.
func (c *Controller) ElectLeaders(at At, req *kmsg.ElectLeadersRequest) Result {
	w := c.begin(at)
	if req.ElectionType != 0 && req.ElectionType != 1 {
		return failed(faultf(ErrInvalidRequest, "election type %d is not known", req.ElectionType))
	}
	var reply ElectLeadersReply
	if req.Topics == nil {
		w.eachPartition(func(topic *metadata.Topic, p *metadata.Partition) {
			if err := w.electOne(topic, p, req.ElectionType); err == nil || err.Err != ErrElectionNotNeeded {
				reply.Partitions = append(reply.Partitions, PartitionOutcome{topic.Name, p.ID, err})
			}
		})
		return w.result(false, reply)
	}
	for _, t := range req.Topics {
		for _, id := range t.Partitions {
			outcome := PartitionOutcome{Topic: t.Topic, Partition: id}
			topic, known := w.img.Topic(t.Topic)
			if known {
				var p *metadata.Partition
				if p, known = topic.Partition(id); known {
					outcome.Err = w.electOne(topic, p, req.ElectionType)
				}
			}
			if !known {
				outcome.Err = faultf(ErrUnknownTopicOrPartition, "no partition %s-%d", t.Topic, id)
			}
			reply.Partitions = append(reply.Partitions, outcome)
		}
	}
	return w.result(false, reply)
}

func (o *op) electOne(topic *metadata.Topic, p *metadata.Partition, kind int8) *Error {
	if kind == 0 && p.Leader == p.Replicas[0] || kind == 1 && p.Leader != metadata.NoLeader {
		return &Error{Err: ErrElectionNotNeeded}
	}
	b := o.change(topic, p, nobody, nobody)
	b.how = electPreferred
	if kind == 1 {
		b.how = electUnclean
	}
	rec := b.build()
	if rec == nil || rec.Leader == metadata.LeaderUnchanged || kind == 0 && rec.Leader != p.Replicas[0] {
		if kind == 0 {
			return faultf(ErrPreferredLeaderNotAvailable, "broker %d cannot lead %s-%d", p.Replicas[0], topic.Name, p.ID)
		}
		return faultf(ErrEligibleLeadersNotAvailable, "no replica of %s-%d is alive", topic.Name, p.ID)
	}
	o.add(rec)
	return nil
}

// recordsPerRun bounds the records of one periodic run; what is left is done at once afterwards.
const recordsPerRun = 1000

// preferLeaders gives leadership back to first replicas that can take it. more says that it was cut short.
func (o *op) preferLeaders() (more bool) {
	var recs []metadata.Record
	o.eachPartition(func(topic *metadata.Topic, p *metadata.Partition) {
		if more || p.Leader == p.Replicas[0] || !slices.Contains(p.ISR, p.Replicas[0]) {
			return
		}
		b := o.change(topic, p, nobody, nobody)
		b.how = electPreferred
		rec := b.build()
		switch {
		case rec == nil || rec.Leader != p.Replicas[0]:
		case len(recs) == recordsPerRun:
			more = true
		default:
			recs = append(recs, rec)
		}
	})
	o.add(recs...)
	return more
}

// electUncleanLeaders gives a leader to leaderless partitions of topics that permit unclean elections.
func (o *op) electUncleanLeaders() (more bool) {
	var recs []metadata.Record
	o.eachPartition(func(topic *metadata.Topic, p *metadata.Partition) {
		if more || p.Leader != metadata.NoLeader || !o.settings(topic.Name).unclean {
			return
		}
		rec := o.change(topic, p, nobody, nobody).build()
		switch {
		case rec == nil:
		case len(recs) == recordsPerRun:
			more = true
		default:
			recs = append(recs, rec)
		}
	})
	o.add(recs...)
	return more
}
