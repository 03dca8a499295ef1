package group

// A reconciliation is one member's step from what it has towards its target.
type reconciliation struct {
	member      string
	current     *ConsumerCurrentValue
	target      []TopicPartitions
	targetEpoch int32
	// owned is what the member says it has; ownedKnown is false when it says nothing, which acknowledges nothing.
	owned      map[partitionID]struct{}
	ownedKnown bool
	// subscribed says whether the member subscribes to a topic that exists; changed, that its subscription is
	// another than at its last heartbeat.
	subscribed func(topic [16]byte) bool
	changed    bool
	owner      func(partitionID) (string, bool)
}

// next is what the member has from now on: the same value when nothing changes.
//
// A partition goes to its new owner only when the old one has let go of it, by saying so, by leaving, or by being
// removed for its silence. A member's epoch rises only when it has nothing left to let go of.
func (r *reconciliation) next() *ConsumerCurrentValue {
	c := r.current
	switch c.State {
	case memberStable:
		switch {
		case c.Epoch != r.targetEpoch:
			return r.compute()
		case r.changed:
			return r.drop()
		}
		return c
	case memberUnrevoked:
		if r.meets(ownershipOf(c.Revoking, c.Epoch)) {
			if r.changed {
				return r.drop()
			}
			return c
		}
	}
	return r.compute()
}

// meets says whether the member may still have one of these partitions.
func (r *reconciliation) meets(partitions ownership) bool {
	if !r.ownedKnown {
		return true
	}
	for p := range partitions {
		if _, ok := r.owned[p]; ok {
			return true
		}
	}
	return false
}

// drop takes away what is outside the subscription, at once and in the same epoch.
func (r *reconciliation) drop() *ConsumerCurrentValue {
	c := r.current
	keep, revoke := ownership{}, ownership{}
	for p, epoch := range ownershipOf(c.Assigned, c.Epoch) {
		if r.subscribed(p.topic) {
			keep[p] = epoch
		} else {
			revoke[p] = epoch
		}
	}
	if len(revoke) == 0 {
		return c
	}
	if !r.meets(revoke) && c.State == memberStable {
		return r.changedTo(&ConsumerCurrentValue{Epoch: c.Epoch, State: memberStable, Assigned: keep.list()})
	}
	for p, epoch := range ownershipOf(c.Revoking, c.Epoch) {
		revoke[p] = epoch
	}
	return r.changedTo(&ConsumerCurrentValue{Epoch: c.Epoch, State: memberUnrevoked, Assigned: keep.list(), Revoking: revoke.list()})
}

func (r *reconciliation) compute() *ConsumerCurrentValue {
	c := r.current
	goal := map[partitionID]struct{}{}
	for p := range eachPartition(r.target) {
		if r.subscribed(p.topic) {
			goal[p] = struct{}{}
		}
	}
	keep, revoke := ownership{}, ownership{}
	for p, epoch := range ownershipOf(c.Assigned, c.Epoch) {
		if _, ok := goal[p]; ok {
			keep[p] = epoch
		} else {
			revoke[p] = epoch
		}
	}
	if len(revoke) > 0 && r.meets(revoke) && !mutantRevokesAtOnce {
		return r.changedTo(&ConsumerCurrentValue{Epoch: c.Epoch, State: memberUnrevoked, Assigned: keep.list(), Revoking: revoke.list()})
	}
	state := memberStable
	for p := range goal {
		if _, ok := keep[p]; ok {
			continue
		}
		if owner, taken := r.owner(p); taken && owner != r.member {
			state = memberUnreleased
			continue
		}
		keep[p] = r.targetEpoch
	}
	return r.changedTo(&ConsumerCurrentValue{Epoch: r.targetEpoch, State: state, Assigned: keep.list()})
}

// changedTo gives next, or what there is if that says the same.
func (r *reconciliation) changedTo(next *ConsumerCurrentValue) *ConsumerCurrentValue {
	c := r.current
	next.PreviousEpoch = c.Epoch
	if next.Epoch == c.Epoch && next.State == c.State && samePartitions(next.Assigned, c.Assigned) && samePartitions(next.Revoking, c.Revoking) {
		return c
	}
	return next
}
