package group

import (
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Heartbeat answers one Heartbeat of a classic member. ErrRebalanceInProgress tells it to join anew, and
// keeps its session too.
func (s *Shard) Heartbeat(now time.Time, to ReplyTo, req *kmsg.HeartbeatRequest) Effects {
	var fx Effects
	fx.ReplyAfterCommit(to, &HeartbeatReply{Err: s.heartbeat(now, req)})
	return fx
}

func (s *Shard) heartbeat(now time.Time, req *kmsg.HeartbeatRequest) error {
	if req.Group == "" {
		return ErrInvalidGroupID
	}
	if consumers := s.replicated.consumers[req.Group]; consumers.exists() {
		return s.heartbeatConsumer(now, consumers, req)
	}
	g := s.group(now, req.Group)
	if g == nil {
		return ErrUnknownMemberID
	}
	m, err := g.checkMember(req.MemberID, req.InstanceID)
	switch {
	case err != nil:
		return err
	case req.Generation != g.generation && !mutantGenerationUnchecked:
		return ErrIllegalGeneration
	}
	s.restartSession(now, g, m)
	if g.state == PreparingRebalance {
		return ErrRebalanceInProgress
	}
	return nil
}
