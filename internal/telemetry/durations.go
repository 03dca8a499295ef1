package telemetry

import (
	"sync/atomic"
	"time"
)

// bounds are the upper bounds of the buckets of Durations.
var bounds = [...]time.Duration{
	100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 5 * time.Second, 30 * time.Second,
}

// Durations counts durations in buckets from 0.1 ms to 30 s. The zero value is ready; safe for concurrent use, and
// takes no memory when it observes.
type Durations struct {
	buckets [len(bounds) + 1]atomic.Uint64 // the last one has no bound
	nanos   atomic.Int64
}

// Observe counts one.
func (d *Durations) Observe(took time.Duration) {
	i := 0
	for i < len(bounds) && took > bounds[i] {
		i++
	}
	d.buckets[i].Add(1)
	d.nanos.Add(int64(took))
}

// Count is how many were observed, and Sum how long they took together.
func (d *Durations) Count() (n uint64) {
	for i := range d.buckets {
		n += d.buckets[i].Load()
	}
	return n
}

// Sum is how long the observed took together.
func (d *Durations) Sum() time.Duration { return time.Duration(d.nanos.Load()) }

// upTo are the counts at or below each bound, in seconds, and of all.
func (d *Durations) upTo() (buckets map[float64]uint64, all uint64) {
	buckets = make(map[float64]uint64, len(bounds))
	for i := range d.buckets {
		all += d.buckets[i].Load()
		if i < len(bounds) {
			buckets[bounds[i].Seconds()] = all
		}
	}
	return buckets, all
}
