package group

import "time"

// upgrade turns a classic group with members into one of the consumer protocol.
func (s *Shard) upgrade(time.Time, *classicGroup, *beat) error { return ErrGroupIDNotFound }

func (s *Shard) downgrade(time.Time, *consumerGroup, []string, *ConsumerMemberValue, *Effects) bool {
	return false
}

// joinConsumers is a JoinGroup of a member of the classic protocol in a group of the consumer protocol.
func (s *Shard) joinConsumers(_ time.Time, _ *consumerGroup, j *join, fx *Effects) {
	fx.Reply(j.to, joinError(ErrInconsistentGroupProtocol, j.req.MemberID))
}
