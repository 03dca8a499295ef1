package controller

import (
	"time"

	"github.com/stelelog/stele/internal/metadata"
)

// Client is who asks for partitions to be made or removed: that costs from the client's controller mutation quota
// (KIP-599), one for each partition.
type Client struct {
	User, ID string
	// Strict refuses what is beyond the quota. Otherwise it is done, and the client is told how long to wait.
	Strict bool
}

// mutationRate is the quota's key.
const mutationRate = "controller_mutation_rate"

// bucket holds what a client may still do. It fills at the quota's rate up to what the window holds, and may be
// overdrawn once, by any amount: nothing is done until it is no longer below zero.
type bucket struct {
	tokens float64
	filled time.Time
}

// idleBuckets is how many buckets are kept before those that are full, and so say nothing, are forgotten.
const idleBuckets = 1000

// mutationQuota finds the quota that holds for a client, by Kafka's order, and the name of the bucket that it is counted
// in: a quota of all users, say, is each user's own.
func mutationQuota(img *metadata.Image, client *Client) (rate float64, name string, limited bool) {
	user, id := metadata.QuotaEntity{EntityType: "user", EntityName: &client.User}, metadata.QuotaEntity{EntityType: "client-id", EntityName: &client.ID}
	anyUser, anyID := metadata.QuotaEntity{EntityType: "user"}, metadata.QuotaEntity{EntityType: "client-id"}
	type entity = []metadata.QuotaEntity
	for _, candidate := range []struct{ quota, counted entity }{
		{entity{user, id}, entity{user, id}}, {entity{user, anyID}, entity{user, id}}, {entity{user}, entity{user}},
		{entity{anyUser, id}, entity{user, id}}, {entity{anyUser, anyID}, entity{user, id}}, {entity{anyUser}, entity{user}},
		{entity{id}, entity{id}}, {entity{anyID}, entity{id}},
	} {
		if rate, ok := img.ClientQuota(candidate.quota, mutationRate); ok {
			return rate, metadata.QuotaKey(candidate.counted), true
		}
	}
	return 0, "", false
}

// bucket is the client's, filled up to now; false for a client without a quota.
func (c *Controller) bucket(now time.Time, client *Client) (b *bucket, rate float64, limited bool) {
	img := c.Committed()
	if img.ClientQuotas().Len() == 0 {
		return nil, 0, false
	}
	rate, name, limited := mutationQuota(img, client)
	if !limited {
		return nil, 0, false
	}
	most := rate * float64(c.opt.Static.Int("controller.quota.window.num")) * c.opt.Static.Duration("controller.quota.window.size.seconds").Seconds()
	b = c.buckets[name]
	if b == nil {
		if len(c.buckets) >= idleBuckets {
			c.forgetBuckets(now)
		}
		b = &bucket{tokens: most, filled: now}
		c.buckets[name] = b
	}
	if passed := now.Sub(b.filled); passed > 0 {
		b.tokens, b.filled = b.tokens+rate*passed.Seconds(), now
	}
	b.tokens = min(b.tokens, most)
	return b, rate, true
}

// forgetBuckets lets go of those that have not been used for long enough to be full again, or nearly so.
func (c *Controller) forgetBuckets(now time.Time) {
	window := time.Duration(c.opt.Static.Int("controller.quota.window.num")) * c.opt.Static.Duration("controller.quota.window.size.seconds")
	for name, b := range c.buckets {
		if b.tokens >= 0 && now.Sub(b.filled) > window {
			delete(c.buckets, name)
		}
	}
}

// charge takes the partitions that one item of a request makes or removes from the client's quota. It counts also when
// the request is only to be looked at, and when it fails later on.
func (o *op) charge(partitions int) *Error {
	if o.client == nil {
		return nil
	}
	b, rate, limited := o.c.bucket(o.now, o.client)
	if !limited {
		return nil
	}
	wait := func() time.Duration { return time.Duration(-b.tokens / rate * float64(time.Second)) }
	if o.client.Strict && b.tokens < 0 {
		o.throttle = max(o.throttle, wait())
		return &Error{Err: ErrThrottlingQuotaExceeded}
	}
	b.tokens -= float64(partitions)
	if !o.client.Strict && b.tokens < 0 {
		o.throttle = max(o.throttle, wait())
	}
	return nil
}
