package log

import (
	"fmt"
	"syscall"
	"time"
)

// RoomLevel is how far up the ladder towards a full disk a log directory stands.
type RoomLevel int32

// The levels, each with what it does beside those before it.
const (
	// RoomPlenty does nothing.
	RoomPlenty RoomLevel = iota
	// RoomFilling warns: at the present pace clients' writes will be refused within forecastNear.
	RoomFilling
	// RoomSoft runs retention early, deletes files without their delay, and slows producers.
	RoomSoft
	// RoomReserve refuses clients' writes; what is left is for everything else.
	RoomReserve
)

func (l RoomLevel) String() string {
	return [...]string{"plenty", "filling", "soft limit", "reserve"}[l]
}

// RoomLimits are the free bytes of a volume at which a log directory on it takes measures. A negative limit stands for
// one that fits the volume, 0 for none.
type RoomLimits struct {
	Soft, Reserve int64
}

const (
	mostReserve = 256 << 20
	mostSoft    = 2 << 30
)

// on are the limits for a volume of total bytes: a hundredth of it in reserve and a twentieth as the soft limit, on
// large ones 256 MiB and 2 GiB, unless they were given. The soft limit is never below the reserve.
func (l RoomLimits) on(total int64) RoomLimits {
	if l.Reserve < 0 {
		l.Reserve = min(total/100, mostReserve)
	}
	if l.Soft < 0 {
		l.Soft = min(total/20, mostSoft)
	}
	if l.Soft > 0 {
		l.Soft = max(l.Soft, l.Reserve)
	}
	return l
}

const (
	// forecastNear is how near the end must be for a warning, and forecastFar for the warning to end.
	forecastNear = 6 * time.Hour
	forecastFar  = 24 * time.Hour
	// forecastReach is how many times as far ahead as it has looked back a forecast may see.
	forecastReach = 72
	// forecastStep and forecastSteps make the stretch that is looked back on: ten minutes.
	forecastStep  = 10 * time.Second
	forecastSteps = 60

	// slowingTime is the time in which producers, slowed down, may take what lies between them and the reserve; since
	// that is looked at again all the time, they come ever closer and ever slower.
	slowingTime = time.Minute
	// slowestRate is the bytes per second that they are always given.
	slowestRate = 16 << 10
	// longestThrottle is the longest that one request is held.
	longestThrottle = 5 * time.Second
)

// ladder decides what is done about a volume that fills: a pure state machine over samples of how much of it is free.
type ladder struct {
	limits RoomLimits // in force, for the volume's size
	level  RoomLevel
	// wanted is the size of the largest write that the reserve has refused since it was entered: it is left when there
	// is room for that.
	wanted int64
	past   []roomSample // at least forecastStep apart, oldest first
	newest roomSample
}

type roomSample struct {
	at   time.Time
	free int64
}

// observe takes a sample, whose time must not lie before the last one's, and says whether the level has changed.
func (l *ladder) observe(at time.Time, limits RoomLimits, total, free int64) (changed bool) {
	l.limits = limits.on(total)
	l.newest = roomSample{at, free}
	if n := len(l.past); n == 0 || at.Sub(l.past[n-1].at) >= forecastStep {
		if n == forecastSteps {
			l.past = append(l.past[:0], l.past[1:]...)
		}
		l.past = append(l.past, l.newest)
	}
	return l.settle(free)
}

// settle sets the level for so many free bytes. A level that was entered at a limit is left a little above it.
func (l *ladder) settle(free int64) (changed bool) {
	before := l.level
	above := func(level RoomLevel, limit, margin int64) bool {
		if before >= level {
			limit += margin
		}
		return free > limit
	}
	switch {
	case l.limits.Reserve > 0 && !above(RoomReserve, l.limits.Reserve, max(l.wanted, l.limits.Reserve/4)):
		l.level = RoomReserve
	case l.limits.Soft > 0 && !above(RoomSoft, l.limits.Soft, l.limits.Soft/10):
		l.level = RoomSoft
	default:
		l.level = RoomPlenty
		near := forecastNear
		if before == RoomFilling {
			near = forecastFar
		}
		if left, ok := l.timeLeft(); ok && left < near {
			l.level = RoomFilling
		}
	}
	if l.level != RoomReserve {
		l.wanted = 0
	}
	return l.level != before
}

// refuses says whether a client's write of n bytes must be refused with so many free: it would take of the reserve.
func (l *ladder) refuses(n, free int64) bool {
	if l.limits.Reserve <= 0 || l.level != RoomReserve && free-n >= l.limits.Reserve {
		return false
	}
	l.level, l.wanted = RoomReserve, max(l.wanted, n)
	return true
}

// pace is how many bytes per second the volume has lost over the stretch that is looked back on, negative when it has
// won some; ok is false while the stretch is too short to tell.
func (l *ladder) pace() (perSecond float64, ok bool) {
	if len(l.past) == 0 {
		return 0, false
	}
	seen := l.newest.at.Sub(l.past[0].at)
	if seen < forecastStep {
		return 0, false
	}
	return float64(l.past[0].free-l.newest.free) / seen.Seconds(), true
}

// timeLeft is when clients' writes will be refused at the present pace. It is not known when the volume does not fill,
// or so slowly that what has been seen of it does not tell.
func (l *ladder) timeLeft() (left time.Duration, ok bool) {
	pace, ok := l.pace()
	if !ok || pace <= 0 {
		return 0, false
	}
	seconds := float64(max(0, l.newest.free-l.limits.Reserve)) / pace
	if seconds > forecastReach*l.newest.at.Sub(l.past[0].at).Seconds() {
		return 0, false
	}
	return time.Duration(seconds * float64(time.Second)), true
}

// rate is how many bytes per second producers get with so many bytes free; ok is false when they get what they want.
func (l *ladder) rate(free int64) (perSecond float64, ok bool) {
	if l.level < RoomSoft {
		return 0, false
	}
	return max(float64(free-l.limits.Reserve)/slowingTime.Seconds(), slowestRate), true
}

// leastSlack is what is left to be written without a look when a limit is near, in bytes.
const leastSlack = 1 << 20

// slack is how many bytes may be written before the volume should be looked at again: half of what lies above the next
// limit, since a write takes more of a volume than its bytes: indexes, snapshots, ends of blocks.
func (l *ladder) slack(free int64) int64 {
	if l.level >= RoomSoft {
		return 0
	}
	above := max(0, free-max(l.limits.Soft, l.limits.Reserve))
	return max(above/2, min(above, leastSlack))
}

// pacer holds writers to a rate together, by telling each how long to wait after its write. The zero value is ready.
type pacer struct {
	owed float64 // bytes written above the rate
	at   time.Time
}

// took notes n bytes written at now under the rate, and says how long their writer must wait: nothing for what comes to
// no more than a second's worth.
func (p *pacer) took(n int64, perSecond float64, now time.Time) time.Duration {
	if elapsed := now.Sub(p.at).Seconds(); elapsed > 0 {
		p.owed = max(0, p.owed-elapsed*perSecond)
		p.at = now
	}
	p.owed = min(p.owed+float64(n), perSecond*(1+longestThrottle.Seconds()))
	return time.Duration(max(0, p.owed/perSecond-1) * float64(time.Second))
}

// NoRoomError says that a client's write was refused because the free space of its log directory is down to the
// reserve. It is a full disk to IsFull: writes come back by themselves when there is room.
type NoRoomError struct {
	// Usable is what the volume has left, in bytes, and Reserve what is kept of that.
	Usable, Reserve int64
}

func (e *NoRoomError) Error() string {
	return fmt.Sprintf("the disk is full: %d bytes are free and %d are kept in reserve (log.dir.reserve.bytes); writes go on by themselves when there is room", e.Usable, e.Reserve)
}

// Is makes it a full disk.
func (e *NoRoomError) Is(target error) bool { return target == syscall.ENOSPC }
