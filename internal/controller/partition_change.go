package controller

import (
	"slices"

	"github.com/stelelog/stele/internal/metadata"
)

// election says how far a change may go to give a partition a leader.
type election int8

const (
	// electOnline keeps a valid leader, and else takes the first valid replica.
	electOnline election = iota
	// electPreferred takes the first replica if it is valid, and else does as electOnline.
	electPreferred
	// electUnclean does as electOnline, and in the end takes any live replica.
	electUnclean
)

// partitionChange turns wishes about one partition into a record, or into none when nothing changes. It is
// filled in, then build is called once. The partition itself is not touched.
type partitionChange struct {
	topic metadata.UUID
	p     *metadata.Partition
	level metadata.Level
	// mayLead says whether a broker is alive, and its copy of this partition readable.
	mayLead func(broker int32) bool
	elr     bool
	minISR  int
	how     election

	// Targets: what the partition is to become, in the beginning what it is.
	isr      []int32
	replicas []int32
	removing []int32
	adding   []int32
	dirs     map[int32]metadata.UUID
	recovery int8
	// unclean are brokers that stopped uncleanly and may have lost data.
	unclean []int32

	targetELR  []int32
	targetLast []int32
}

func newPartitionChange(topic metadata.UUID, p *metadata.Partition) *partitionChange {
	b := &partitionChange{topic: topic, p: p, isr: p.ISR, replicas: p.Replicas, removing: p.RemovingReplicas, adding: p.AddingReplicas,
		dirs: map[int32]metadata.UUID{}, recovery: p.RecoveryState, how: electOnline, targetELR: p.ELR, targetLast: p.LastKnownELR}
	for i, replica := range p.Replicas {
		if i < len(p.Directories) {
			b.dirs[replica] = p.Directories[i]
		}
	}
	return b
}

// build makes the record, nil when nothing changes.
func (b *partitionChange) build() *metadata.PartitionChangeRecord {
	rec := metadata.NewPartitionChange(b.topic, b.p.ID)
	b.completeReassignment()
	b.fillELR()
	b.elect(rec)
	b.bumpLeaderEpoch(rec)
	if !slices.Equal(b.isr, b.p.ISR) && (b.elr || len(b.isr) > 0) {
		rec.ISR = orEmpty(b.isr)
	}
	b.noteLastLeader(rec)
	if b.level >= metadata.LevelELR {
		if !slices.Equal(b.targetELR, b.p.ELR) {
			rec.EligibleLeaderReplicas = orEmpty(b.targetELR)
		}
		if !slices.Equal(b.targetLast, b.p.LastKnownELR) {
			rec.LastKnownELR = orEmpty(b.targetLast)
		}
	}
	b.placeReplicas(rec)
	if b.recovery != b.p.RecoveryState {
		rec.LeaderRecoveryState = b.recovery
	}
	if b.isNothing(rec) {
		return nil
	}
	return rec
}

func orEmpty(ids []int32) []int32 {
	if ids == nil {
		return []int32{}
	}
	return ids
}

func without(ids []int32, gone ...int32) []int32 {
	out := make([]int32, 0, len(ids))
	for _, id := range ids {
		if !slices.Contains(gone, id) {
			out = append(out, id)
		}
	}
	return out
}

func containsAll(ids, wanted []int32) bool {
	return !slices.ContainsFunc(wanted, func(id int32) bool { return !slices.Contains(ids, id) })
}

// completeReassignment finishes a running reassignment when the in-sync set allows it.
func (b *partitionChange) completeReassignment() {
	if len(b.adding) == 0 && len(b.removing) == 0 {
		return
	}
	isr := without(b.isr, b.removing...)
	target := without(b.replicas, b.removing...)
	if len(isr) == 0 || !containsAll(isr, b.adding) || len(b.adding) < len(b.removing) && !containsAll(isr, target) {
		return
	}
	b.replicas, b.isr, b.adding, b.removing = target, isr, nil, nil
}

// fillELR moves members that leave the ISR into the eligible set while the ISR is below its minimum.
func (b *partitionChange) fillELR() {
	if !b.elr {
		return
	}
	if len(b.isr) >= min(b.minISR, len(b.replicas)) {
		b.targetELR, b.targetLast = nil, nil
		return
	}
	var elr []int32
	for _, id := range slices.Concat(b.p.ELR, b.p.ISR) {
		if slices.Contains(b.replicas, id) && !slices.Contains(b.isr, id) && !slices.Contains(b.unclean, id) && !slices.Contains(elr, id) {
			elr = append(elr, id)
		}
	}
	slices.Sort(elr)
	b.targetELR = elr
}

func (b *partitionChange) validLeader(id int32) bool {
	return slices.Contains(b.isr, id) && slices.Contains(b.replicas, id) && b.mayLead(id)
}

// choose names the leader the partition is to have. clean is false when the choice may lose data.
func (b *partitionChange) choose() (leader int32, clean bool) {
	if b.how == electPreferred && len(b.replicas) > 0 && b.validLeader(b.replicas[0]) {
		return b.replicas[0], true
	}
	if b.p.Leader != metadata.NoLeader && b.validLeader(b.p.Leader) {
		return b.p.Leader, true
	}
	for _, id := range b.replicas {
		if b.validLeader(id) {
			return id, true
		}
	}
	if b.elr && len(b.isr) == 0 {
		for _, id := range b.replicas {
			if slices.Contains(b.targetELR, id) && b.mayLead(id) {
				b.isr = []int32{id}
				b.targetELR = without(b.targetELR, id)
				return id, true
			}
		}
		if len(b.targetELR) == 0 && len(b.targetLast) == 1 && b.mayLead(b.targetLast[0]) {
			return b.targetLast[0], false
		}
	}
	if b.how == electUnclean {
		for _, id := range b.replicas {
			if b.mayLead(id) {
				return id, false
			}
		}
	}
	return metadata.NoLeader, true
}

func (b *partitionChange) elect(rec *metadata.PartitionChangeRecord) {
	leader, clean := b.choose()
	if !clean {
		b.isr = []int32{leader}
		b.targetELR = nil
		b.recovery = metadata.Recovering
	}
	if leader != b.p.Leader || !clean {
		rec.Leader = leader
	}
}

// bumpLeaderEpoch names the present leader again when its epoch must rise without a change: replicas
// were removed, or, at old levels, the ISR shrinks.
func (b *partitionChange) bumpLeaderEpoch(rec *metadata.PartitionChangeRecord) {
	if rec.Leader != metadata.LeaderUnchanged {
		return
	}
	shrinks := b.level < metadata.LevelSkipISREpochBump && !containsAll(b.isr, b.p.ISR) && len(b.isr) > 0
	if !containsAll(b.replicas, b.p.Replicas) || shrinks {
		rec.Leader = b.p.Leader
	}
}

// noteLastLeader keeps in mind who led when the partition becomes leaderless, and forgets it when one leads.
func (b *partitionChange) noteLastLeader(rec *metadata.PartitionChangeRecord) {
	if !b.elr {
		return
	}
	switch {
	case rec.Leader == metadata.NoLeader && b.p.Leader != metadata.NoLeader:
		b.targetLast = []int32{b.p.Leader}
	case rec.Leader >= 0:
		b.targetLast = nil
	case len(b.isr) == 0 && len(b.p.ISR) > 0 && len(b.targetLast) == 0:
		// It had no leader already, its last replica in sync had no directory to lead from: whoever is the last to leave the
		// in-sync set is the last one known, or nobody would ever lead again.
		b.targetLast = []int32{b.p.ISR[0]}
	}
}

func (b *partitionChange) placeReplicas(rec *metadata.PartitionChangeRecord) {
	if !slices.Equal(b.replicas, b.p.Replicas) {
		rec.Replicas = b.replicas
	}
	if !slices.Equal(b.removing, b.p.RemovingReplicas) {
		rec.RemovingReplicas = orEmpty(b.removing)
	}
	if !slices.Equal(b.adding, b.p.AddingReplicas) {
		rec.AddingReplicas = orEmpty(b.adding)
	}
	if b.level < metadata.LevelDirectories {
		return
	}
	dirs := make([]metadata.UUID, len(b.replicas))
	for i, id := range b.replicas {
		dirs[i] = b.dirs[id]
	}
	if rec.Replicas != nil || !slices.Equal(dirs, b.p.Directories) {
		rec.Directories = dirs
	}
}

func (b *partitionChange) isNothing(rec *metadata.PartitionChangeRecord) bool {
	return rec.ISR == nil && rec.Leader == metadata.LeaderUnchanged && rec.Replicas == nil && rec.RemovingReplicas == nil && rec.AddingReplicas == nil &&
		rec.LeaderRecoveryState == -1 && rec.EligibleLeaderReplicas == nil && rec.LastKnownELR == nil && rec.Directories == nil
}

// change begins a change of a partition under the operation's state: who may lead, minimum ISR, and whether
// the topic permits unclean elections. gone is a broker that counts as dead, back one that counts as alive
// (-1 for none), whatever the state says.
func (o *op) change(topic *metadata.Topic, p *metadata.Partition, gone, back int32) *partitionChange {
	b := newPartitionChange(topic.ID, p)
	settings := o.settings(topic.Name)
	b.level, b.elr, b.minISR = o.img.MetadataVersion(), o.img.ELREnabled(), settings.minISR
	if settings.unclean {
		b.how = electUnclean
	}
	img := o.img
	b.mayLead = func(id int32) bool {
		broker, ok := img.Broker(id)
		if !ok || id == gone || id != back && !broker.Active() {
			return false
		}
		dir, ok := b.dirs[id]
		return !ok || broker.DirectoryOnline(dir)
	}
	return b
}
