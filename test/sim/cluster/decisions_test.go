package cluster

import (
	"fmt"
	"slices"

	"github.com/stelelog/stele/internal/metadata"
)

// decisions is what the controllers have decided, as read off the committed part of the metadata log.
type decisions struct {
	w      *world
	next   int64 // the offset to be read next
	places map[int]int64
	topics map[metadata.UUID]*topicState
	names  map[string]*topicState
	alive  map[int32]*brokerState

	elections, unclean, isrChanges, recreated int
}

type brokerState struct {
	epoch  int64
	fenced bool
}

type topicState struct {
	id         metadata.UUID
	name       string
	kind       *topicKind
	deleted    bool
	partitions map[int32]*partitionState
}

// partitionState is one partition by the controllers' word.
type partitionState struct {
	topic                         *topicState
	id                            int32
	replicas, isr, elr, lastKnown []int32
	adding, removing              []int32
	leader, leaderEpoch           int32
	recovering                    bool
	// uncleanIn are the leader epochs that began with an unclean election.
	uncleanIn []int32
	leaders   map[int32]int32 // by leader epoch
	evidence  []evidence
}

func (p *partitionState) String() string { return fmt.Sprintf("%s-%d", p.topic.name, p.id) }

func newDecisions(w *world) *decisions {
	return &decisions{w: w, places: map[int]int64{}, topics: map[metadata.UUID]*topicState{}, names: map[string]*topicState{}, alive: map[int32]*brokerState{}}
}

// follow reads on, from the controller that knows most.
func (d *decisions) follow() error {
	var from *host
	end := d.next
	for _, h := range d.w.hosts[:d.w.controllers] {
		if n := h.node(); n != nil && n.Quorum() != nil {
			if hw := n.Quorum().Status().HighWatermark; hw > end {
				from, end = h, hw
			}
		}
	}
	if from == nil {
		return nil
	}
	from.mu.Lock()
	disks := from.disks
	from.mu.Unlock()
	f, err := disks.OpenFile("/meta/__cluster_metadata-0/00000000000000000000.log", 0, 0)
	if err != nil {
		return nil // it begins later there
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return err
	}
	at := d.places[from.id]
	raw := make([]byte, max(0, size-at))
	if n, _ := f.ReadAt(raw, at); n < len(raw) {
		raw = raw[:n]
	}
	return readBatchesUpTo(raw, end, func(b *readBatch, bytes int) error {
		d.places[from.id] += int64(bytes)
		if b.base < d.next {
			return nil
		}
		d.next = b.last + 1
		if b.control {
			return nil
		}
		for _, r := range b.records {
			rec, _, err := metadata.DecodeRecord(r.value)
			if err != nil {
				return fmt.Errorf("metadata record at offset %d: %w", r.offset, err)
			}
			if err := d.take(r.offset, rec); err != nil {
				return fmt.Errorf("metadata record at offset %d: %w", r.offset, err)
			}
		}
		return nil
	})
}

// readBatchesUpTo is readBatches with the size of each, and an end.
func readBatchesUpTo(raw []byte, end int64, each func(*readBatch, int) error) error {
	done := fmt.Errorf("enough")
	err := readBatches(raw, false, func(b *readBatch) error {
		if b.last >= end {
			return done
		}
		size := b.size
		return each(b, size)
	})
	if err == done {
		return nil
	}
	return err
}

func (d *decisions) take(offset int64, rec metadata.Record) error {
	switch r := rec.(type) {
	case *metadata.RegisterBrokerRecord:
		d.alive[r.BrokerID] = &brokerState{epoch: r.BrokerEpoch, fenced: r.Fenced}
	case *metadata.UnregisterBrokerRecord:
		delete(d.alive, r.BrokerID)
	case *metadata.BrokerRegistrationChangeRecord:
		if b := d.alive[r.BrokerID]; b != nil && r.Fenced != 0 {
			b.fenced = r.Fenced > 0
		}
	case *metadata.TopicRecord:
		if d.names[r.Name] != nil && !d.names[r.Name].deleted {
			return fmt.Errorf("topic %s exists", r.Name)
		}
		if d.names[r.Name] != nil {
			d.recreated++
		}
		t := &topicState{id: r.TopicID, name: r.Name, kind: d.w.kindOf(r.Name), partitions: map[int32]*partitionState{}}
		d.topics[r.TopicID], d.names[r.Name] = t, t
	case *metadata.RemoveTopicRecord:
		if t := d.topics[r.TopicID]; t != nil {
			t.deleted = true
		}
	case *metadata.PartitionRecord:
		t := d.topics[r.TopicID]
		if t == nil {
			return fmt.Errorf("partition %d of no topic", r.PartitionID)
		}
		p := t.partitions[r.PartitionID]
		if p == nil {
			p = &partitionState{topic: t, id: r.PartitionID, leaders: map[int32]int32{}, leaderEpoch: -1}
			t.partitions[r.PartitionID] = p
		}
		p.replicas, p.isr, p.elr, p.lastKnown = r.Replicas, r.ISR, r.EligibleLeaderReplicas, r.LastKnownELR
		p.adding, p.removing = r.AddingReplicas, r.RemovingReplicas
		return d.led(p, r.Leader, r.LeaderEpoch, r.LeaderRecoveryState == 1)
	case *metadata.PartitionChangeRecord:
		t := d.topics[r.TopicID]
		if t == nil || t.partitions[r.PartitionID] == nil {
			return fmt.Errorf("change of partition %d of no topic", r.PartitionID)
		}
		return d.change(t.partitions[r.PartitionID], r)
	case *metadata.ClearELRRecord:
		for _, t := range d.topics {
			if r.TopicName != "" && t.name != r.TopicName {
				continue
			}
			for _, p := range t.partitions {
				p.elr, p.lastKnown = nil, nil
			}
		}
	}
	return nil
}

func (d *decisions) led(p *partitionState, leader, epoch int32, recovering bool) error {
	if other, ok := p.leaders[epoch]; ok && other != leader {
		return fmt.Errorf("P3: %s has leaders %d and %d in epoch %d", p, other, leader, epoch)
	}
	p.leaders[epoch] = leader
	p.leader, p.leaderEpoch, p.recovering = leader, epoch, recovering
	return nil
}

func (d *decisions) change(p *partitionState, r *metadata.PartitionChangeRecord) error {
	was := *p
	if r.ISR != nil {
		p.isr = r.ISR
	}
	if r.Replicas != nil {
		p.replicas = r.Replicas
	}
	if r.AddingReplicas != nil {
		p.adding = r.AddingReplicas
	}
	if r.RemovingReplicas != nil {
		p.removing = r.RemovingReplicas
	}
	if r.EligibleLeaderReplicas != nil {
		p.elr = r.EligibleLeaderReplicas
	}
	if r.LastKnownELR != nil {
		p.lastKnown = r.LastKnownELR
	}
	recovering := p.recovering
	if r.LeaderRecoveryState >= 0 {
		recovering = r.LeaderRecoveryState == 1
	}
	if !slices.Equal(was.isr, p.isr) {
		d.isrChanges++
	}
	if r.Leader != -2 {
		if r.Leader >= 0 {
			d.elections++
		}
		if r.Leader >= 0 && !slices.Contains(was.isr, r.Leader) && !slices.Contains(was.elr, r.Leader) {
			switch {
			case recovering:
				d.unclean++
				p.uncleanIn = append(p.uncleanIn, p.leaderEpoch+1)
			case len(was.adding) == 0 && len(was.removing) == 0:
				return fmt.Errorf("%s: broker %d is elected as if cleanly, and is neither in the ISR %v nor in the ELR %v", p, r.Leader, was.isr, was.elr)
			}
		}
		if err := d.led(p, r.Leader, p.leaderEpoch+1, recovering); err != nil {
			return err
		}
	}
	p.recovering = recovering
	d.w.coverage.decided(&was, p, r.Leader != -2, d.alive)
	for _, id := range p.elr {
		if slices.Contains(p.isr, id) {
			return fmt.Errorf("%s: broker %d is in the ISR %v and in the ELR %v", p, id, p.isr, p.elr)
		}
	}
	return nil
}

// uncleanBetween says whether an unclean election lies above epoch from, up to epoch to.
func (p *partitionState) uncleanBetween(from, to int32) bool {
	for _, e := range p.uncleanIn {
		if e > from && e <= to {
			return true
		}
	}
	return false
}
