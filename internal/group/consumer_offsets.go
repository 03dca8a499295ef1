package group

// checkConsumerCommitter decides whether a commit comes from a member of a consumer group as it is now. One of an earlier
// epoch counts for partitions that the member had in that epoch, and still has (KIP-1251).
func (s *Shard) checkConsumerCommitter(g *consumerGroup, c committer) error {
	if c.generation < 0 && len(g.members.Newest()) == 0 {
		return nil // an administrator
	}
	if c.transactional && c.generation < 0 && c.memberID == "" && c.instanceID == nil {
		return nil // producers of before KIP-447 say nothing of the member
	}
	m, ok := g.members.Get(c.memberID)
	if !ok {
		return ErrUnknownMemberID
	}
	stale := ErrStaleMemberEpoch
	switch {
	case m.Classic != nil, c.transactional && c.version < 6:
		stale = ErrIllegalGeneration
	case !c.transactional && c.version < 9:
		return ErrUnsupportedVersion
	}
	current := g.currentOf(c.memberID)
	if c.generation == current.Epoch {
		return nil
	}
	if c.generation > current.Epoch || c.generation < 0 {
		return stale
	}
	has := ownershipOf(current.Assigned, current.Epoch)
	for p, epoch := range ownershipOf(current.Revoking, current.Epoch) {
		has[p] = epoch
	}
	for _, t := range c.partitions {
		id := t.TopicID
		if topic, ok := s.image.Topic(t.Topic); ok && id == [16]byte{} {
			id = topic.ID
		}
		for _, p := range t.Partitions {
			if since, ok := has[partitionID{id, p.Partition}]; !ok || since > c.generation {
				return stale
			}
		}
	}
	return nil
}

// checkFetcher refuses a member of a consumer group that is not what it says.
func (s *Shard) checkFetcher(req FetchRequest) error {
	g := s.replicated.consumers[req.Group]
	if req.From == nil || !g.exists() || req.From.MemberID == nil && req.From.Epoch < 0 {
		return nil
	}
	m, ok := g.members.Get(deref(req.From.MemberID))
	switch {
	case !ok:
		return ErrUnknownMemberID
	case g.currentOf(*req.From.MemberID).Epoch == req.From.Epoch:
		return nil
	case m.Classic != nil:
		return ErrIllegalGeneration
	}
	return ErrStaleMemberEpoch
}
