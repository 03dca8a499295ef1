package controller

import (
	"time"

	"github.com/stelelog/stele/internal/config"
	"github.com/stelelog/stele/internal/metadata"
)

// schedules are the next times of periodic tasks; zero means never.
type schedules struct {
	noOp      time.Time
	stale     time.Time
	preferred time.Time
	unclean   time.Time
	tokens    time.Time
}

func (s *schedules) begin(now time.Time, static *config.Broker) {
	*s = schedules{}
	s.noOp = now.Add(static.Duration("metadata.max.idle.interval.ms"))
	if static.Duration("metadata.max.idle.interval.ms") == 0 {
		s.noOp = time.Time{}
	}
	s.stale = now.Add(static.Duration("broker.session.timeout.ms") / 8)
	if static.Bool("auto.leader.rebalance.enable") {
		s.preferred = now.Add(static.Duration("leader.imbalance.check.interval.seconds"))
	}
	s.unclean = now.Add(static.Duration("unclean.leader.election.interval.ms"))
	if static.String("delegation.token.secret.key") != "" {
		s.tokens = now.Add(static.Duration("delegation.token.expiry.check.interval.ms"))
	}
}

// NextDeadline is when Tick has something to do; false for a controller that is not active.
func (c *Controller) NextDeadline() (at time.Time, ok bool) {
	if !c.active {
		return time.Time{}, false
	}
	earliest := func(t time.Time) {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	earliest(c.schedules.noOp)
	earliest(c.schedules.stale)
	earliest(c.schedules.preferred)
	earliest(c.schedules.unclean)
	earliest(c.schedules.tokens)
	for id, k := range c.contacts {
		if b, known := c.img.Broker(id); known && !b.Fenced && !k.lost.IsZero() && k.refused {
			earliest(k.lost.Add(LostConnectionDelay))
		}
	}
	return at, !at.IsZero()
}

// Fenced says in a Tick's Reply which broker was fenced, and why.
type Fenced struct {
	Broker int32
	Epoch  int64
	// Refused is true when its connection was lost and its listener refuses; false when its session ran out.
	Refused bool
}

// Tick does the first task that is due at at.Now. The caller calls again, after replaying the records,
// while NextDeadline is not after now. The reply is a Fenced, or nil.
func (c *Controller) Tick(at At) Result {
	o := c.begin(at)
	now := at.Now
	due := func(t time.Time) bool { return !t.IsZero() && !now.Before(t) }
	if !c.active {
		return Result{}
	}
	if b := c.refusedBroker(now); b != nil {
		o.fence(b)
		*c.contact(b.ID) = contact{offset: -1}
		return o.result(false, Fenced{b.ID, b.Epoch, true})
	}
	if due(c.schedules.stale) {
		if b := c.staleBroker(now); b != nil {
			o.fence(b)
			*c.contact(b.ID) = contact{offset: -1}
			return o.result(false, Fenced{b.ID, b.Epoch, false})
		}
		c.schedules.stale = now.Add(c.sessionTimeout() / 8)
	}
	if due(c.schedules.preferred) {
		if !o.preferLeaders() {
			c.schedules.preferred = now.Add(c.opt.Static.Duration("leader.imbalance.check.interval.seconds"))
		}
		return o.result(false, nil)
	}
	if due(c.schedules.unclean) {
		if !o.electUncleanLeaders() {
			c.schedules.unclean = now.Add(c.opt.Static.Duration("unclean.leader.election.interval.ms"))
		}
		return o.result(false, nil)
	}
	if due(c.schedules.tokens) {
		if !o.expireTokens() {
			c.schedules.tokens = now.Add(c.opt.Static.Duration("delegation.token.expiry.check.interval.ms"))
		}
		return o.result(false, nil)
	}
	if due(c.schedules.noOp) {
		c.schedules.noOp = now.Add(c.opt.Static.Duration("metadata.max.idle.interval.ms"))
		o.add(&metadata.NoOpRecord{})
	}
	return o.result(false, nil)
}

// staleBroker is the first unfenced broker whose session has run out. One that was never heard of since
// this controller is active has its session from the first look on.
func (c *Controller) staleBroker(now time.Time) *metadata.BrokerRegistration {
	for id, b := range c.img.Brokers().All() {
		if b.Fenced {
			continue
		}
		k := c.contact(id)
		if k.last.IsZero() {
			k.last = now
		}
		if now.Sub(k.last) >= c.sessionTimeout() {
			return b
		}
	}
	return nil
}

func (c *Controller) refusedBroker(now time.Time) *metadata.BrokerRegistration {
	for id, b := range c.img.Brokers().All() {
		if k := c.contacts[id]; !b.Fenced && k != nil && !k.lost.IsZero() && k.refused && now.Sub(k.lost) >= LostConnectionDelay {
			return b
		}
	}
	return nil
}
