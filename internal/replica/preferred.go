package replica

// PreferredReadReplica is the replica that a consumer in rack should read offset from (KIP-392): this leader when it is in
// the rack, else the most caught up of the in-sync followers in it whose log is known to hold the offset. ok is false when
// the consumer should stay with the leader, also when nothing fits. pos is the leader's log.
func (s *State) PreferredReadReplica(rack string, offset int64, pos Positions, brokers BrokerLookup) (id int32, ok bool) {
	if s.role.Kind != RoleLeader || rack == "" || offset < pos.LogStart || offset > pos.End {
		return 0, false
	}
	if self, registered := brokers(s.self); registered && self.Rack == rack {
		return 0, false
	}
	best := NoOffset
	for i := range s.followers {
		f := &s.followers[i]
		b, registered := brokers(f.ID)
		if !registered || b.Fenced || b.Rack != rack || !s.committedISR(f.ID) {
			continue
		}
		if f.LogStart != NoOffset && f.LogStart <= offset && offset <= f.End && f.End > best {
			id, ok, best = f.ID, true, f.End
		}
	}
	return id, ok
}
