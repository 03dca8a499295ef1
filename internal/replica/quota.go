package replica

import (
	"math"
	"sync"
	"time"
)

// Rates bound replication, in bytes per second; math.MaxInt64: not bounded.
type Rates struct {
	// Leader bounds what followers out of sync are given of throttled partitions (leader.replication.throttled.rate).
	Leader int64
	// Follower bounds what is fetched of throttled partitions that are behind (follower.replication.throttled.rate).
	Follower int64
	// Moves bounds what is copied between log directories (replica.alter.log.dirs.io.max.bytes.per.second).
	Moves int64
}

// NoRates bounds nothing.
var NoRates = Rates{Leader: math.MaxInt64, Follower: math.MaxInt64, Moves: math.MaxInt64}

// Throttled says of which partitions of a topic this broker's replica is throttled, as leader or as follower
// (leader.replication.throttled.replicas, follower.replication.throttled.replicas).
type Throttled struct {
	All        bool
	Partitions map[int32]bool
}

// Holds says whether the replica of a partition is among them.
func (t Throttled) Holds(partition int32) bool { return t.All || t.Partitions[partition] }

// byteRate lets so many bytes pass in a second: what passes beyond is a debt that has to be waited for. Nothing is saved up
// beyond one second. The zero value bounds nothing; all methods may be called concurrently.
type byteRate struct {
	mu      sync.Mutex
	bounded bool
	rate    float64 // bytes per second
	credit  float64 // bytes; negative: a debt
	at      time.Time
}

// set changes the rate.
func (r *byteRate) set(perSecond int64, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refill(now)
	bounded := perSecond != math.MaxInt64
	if bounded && !r.bounded {
		r.credit, r.at = float64(perSecond), now
	}
	r.bounded, r.rate = bounded, float64(perSecond)
	r.credit = min(r.credit, r.rate)
}

func (r *byteRate) refill(now time.Time) {
	if r.bounded && now.After(r.at) {
		r.credit = min(r.rate, r.credit+r.rate*now.Sub(r.at).Seconds())
		r.at = now
	}
}

// took counts bytes that have passed.
func (r *byteRate) took(n int, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bounded {
		r.refill(now)
		r.credit -= float64(n)
	}
}

// most is how many of n bytes may be asked for at a time: what passes in a second, and at least one.
func (r *byteRate) most(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bounded && r.rate < float64(n) {
		return max(1, int(r.rate))
	}
	return n
}

// maxPause bounds a pause: the rate may be changed meanwhile.
const maxPause = time.Second

// pause is how long nothing more may pass, zero for not at all.
func (r *byteRate) pause(now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.bounded {
		return 0
	}
	r.refill(now)
	switch {
	case r.credit > 0:
		return 0
	case r.rate <= 0:
		return maxPause
	}
	return min(maxPause, time.Duration((1-r.credit)/r.rate*float64(time.Second))+time.Millisecond)
}

// setRates takes over the configured rates.
func (m *Manager) setRates(r Rates) {
	now := m.now()
	m.leaderRate.set(r.Leader, now)
	m.followerRate.set(r.Follower, now)
	m.moveRate.set(r.Moves, now)
}

// setThrottled takes over which replicas are throttled.
func (p *Partition) setThrottled(c TopicConfig) {
	p.leaderThrottled.Store(c.LeaderThrottled.Holds(p.id))
	p.followerThrottled.Store(c.FollowerThrottled.Holds(p.id))
}
