package log

import (
	"errors"
	"math"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// The limits that fit a volume: small ones keep a hundredth and a twentieth, large ones no more than is of use, and what
// was given is taken.
func TestRoomLimitsFitTheVolume(t *testing.T) {
	t.Parallel()
	const mib, tib = 1 << 20, 1 << 40
	for _, c := range []struct {
		given         RoomLimits
		total         int64
		soft, reserve int64
	}{
		{RoomLimits{-1, -1}, 64 * mib, 64 * mib / 20, 64 * mib / 100},
		{RoomLimits{-1, -1}, 10 * tib, 2 << 30, 256 * mib},
		{RoomLimits{0, 0}, 64 * mib, 0, 0},
		{RoomLimits{0, -1}, 64 * mib, 0, 64 * mib / 100},
		{RoomLimits{-1, 8 * mib}, 64 * mib, 8 * mib, 8 * mib},
		{RoomLimits{100, 7}, 64 * mib, 100, 7},
		{RoomLimits{-1, -1}, 0, 0, 0},
	} {
		if got := c.given.on(c.total); got.Soft != c.soft || got.Reserve != c.reserve {
			t.Errorf("%+v on %d: %+v, want soft %d, reserve %d", c.given, c.total, got, c.soft, c.reserve)
		}
	}
}

// TestE072_levels_of_the_ladder: samples in, level and forecast out: the warning comes before the soft limit, that before
// the reserve, each is left a little above where it was entered, and freed space leads back by itself.
func TestE072_levels_of_the_ladder(t *testing.T) {
	t.Parallel()
	type step struct {
		seconds int // since the step before
		free    int64
		level   RoomLevel
		left    time.Duration // -1: not known
	}
	const unknown = -1
	limits := RoomLimits{Soft: 1000, Reserve: 400}
	for name, steps := range map[string][]step{
		"constant": {{0, 5000, RoomPlenty, unknown}, {60, 5000, RoomPlenty, unknown}, {600, 5000, RoomPlenty, unknown}},
		"a burst is not believed before it has lasted": {{0, 1e6, RoomPlenty, unknown}, {5, 1e6 - 500, RoomPlenty, unknown},
			{5, 1e6 - 1000, RoomPlenty, unknown}}, // full in 9986 s, of which 10 s tell an hour
		"filling": {{0, 9000, RoomPlenty, unknown}, {10, 8990, RoomPlenty, unknown}, {10, 8400, RoomFilling, 266666666666},
			{10, 8400, RoomFilling, 400 * time.Second}},
		"slowly": {{0, 1e6, RoomPlenty, unknown}, {600, 1e6 - 600, RoomPlenty, unknown}}, // 11 days
		"to the end and back": {{0, 9000, RoomPlenty, unknown}, {1, 1001, RoomPlenty, unknown}, {1, 1000, RoomSoft, unknown},
			{1, 401, RoomSoft, unknown}, {1, 400, RoomReserve, unknown}, {1, 0, RoomReserve, unknown}, {1, 500, RoomReserve, unknown},
			{1, 501, RoomSoft, unknown}, {1, 1100, RoomSoft, unknown}, {1, 1101, RoomPlenty, unknown}},
		"all at once": {{0, 9000, RoomPlenty, unknown}, {1, 10, RoomReserve, unknown}, {1, 9000, RoomPlenty, unknown}},
	} {
		var l ladder
		now := time.UnixMilli(ts0)
		level := RoomPlenty
		for i, s := range steps {
			now = now.Add(time.Duration(s.seconds) * time.Second)
			changed := l.observe(now, limits, 1<<40, s.free)
			left, ok := l.timeLeft()
			if !ok {
				left = unknown
			}
			if l.level != s.level || left.Round(time.Millisecond) != s.left.Round(time.Millisecond) && s.left != unknown || ok != (s.left != unknown) {
				t.Errorf("%s, step %d: %v, %v left, want %v, %v", name, i, l.level, left, s.level, s.left)
			}
			if changed != (level != l.level) {
				t.Errorf("%s, step %d: changed %v from %v to %v", name, i, changed, level, l.level)
			}
			level = l.level
		}
	}
}

// Without limits there is neither level nor slack to look for; a volume that is looked back on forgets what is old.
func TestLadderForgets(t *testing.T) {
	t.Parallel()
	var l ladder
	now := time.UnixMilli(ts0)
	free := int64(1 << 40)
	for range 3 * forecastSteps {
		free -= 1 << 30
		now = now.Add(forecastStep)
		l.observe(now, RoomLimits{}, 1<<41, free)
	}
	if len(l.past) != forecastSteps || l.level != RoomFilling {
		t.Errorf("%d samples, %v", len(l.past), l.level)
	}
	for range 2 * forecastSteps {
		now = now.Add(forecastStep)
		l.observe(now, RoomLimits{}, 1<<41, free)
	}
	if pace, ok := l.pace(); !ok || pace != 0 || l.level != RoomPlenty {
		t.Errorf("after it stopped: %v %v %v", pace, ok, l.level)
	}
}

// Producers that are slowed down come ever closer to the reserve and ever slower; however they come, a wait is never
// longer than longestThrottle, and together they write no faster than the rate while none of their waits is cut.
func TestPacerHoldsTheRate(t *testing.T) {
	t.Parallel()
	l := ladder{limits: RoomLimits{Soft: 1 << 30, Reserve: 1 << 28}, level: RoomSoft}
	last := math.Inf(1)
	for free := int64(1 << 30); free > 0; free /= 2 {
		rate, ok := l.rate(free)
		if !ok || rate > last || rate < slowestRate {
			t.Errorf("%d free: %v, %v", free, rate, ok)
		}
		last = rate
	}
	if l.level = RoomFilling; func() bool { _, ok := l.rate(1); return ok }() {
		t.Error("slowed above the soft limit")
	}
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.Float64Range(slowestRate, 1e9).Draw(t, "rate")
		var p pacer
		now, start, total := time.UnixMilli(ts0), time.UnixMilli(ts0), float64(0)
		for range 100 {
			n := rapid.Int64Range(1, int64(3*rate)).Draw(t, "bytes")
			wait := p.took(n, rate, now)
			if wait < 0 || wait > longestThrottle {
				t.Fatalf("wait of %v", wait)
			}
			total += float64(n)
			now = now.Add(wait)
			if most := rate * (now.Sub(start).Seconds() + 1.001); total > most+rate*0.001 {
				t.Fatalf("%v bytes in %v at %v/s", total, now.Sub(start), rate)
			}
			now = now.Add(time.Duration(rapid.IntRange(0, 2000).Draw(t, "idle")) * time.Millisecond)
		}
	})
}

// A refusal for want of room is a full disk to whoever asks, and says what to do.
func TestNoRoomIsAFullDisk(t *testing.T) {
	t.Parallel()
	var err error = &StorageError{Dir: "/d", Op: "append", Err: &NoRoomError{Usable: 1, Reserve: 2}}
	if !IsFull(err) || !errors.Is(err, syscall.ENOSPC) {
		t.Error(err)
	}
}
