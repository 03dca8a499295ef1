package log

import (
	"cmp"
	"math"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stelelog/stele/internal/vfs"
)

// lookInterval is the least time between two looks at a volume for the sake of a write; in between, what was written is
// counted. Far from the limits, WatchRoom's look every second is the only one.
const lookInterval = 20 * time.Millisecond

// room is the free space of one log directory: it samples the volume, and admits clients' writes as the ladder says.
// All methods may be called concurrently, and on nil, which admits everything.
type room struct {
	fs   vfs.FS
	path string

	// slack is how many bytes may still be admitted without a look at anything else.
	slack             atomic.Int64
	refused, throttle atomic.Int64 // writes refused; nanoseconds that writers were told to wait

	mu      sync.Mutex
	limits  RoomLimits
	ladder  ladder
	pacer   pacer
	looked  time.Time
	known   bool // the volume tells how much of it is free
	total   int64
	usable  int64 // when it was looked at
	granted int64 // slack as it was set last
	written int64 // admitted since, beyond granted
	ballast bool  // the file that keeps room for the next start is there
}

func newRoom(fsys vfs.FS, path string, limits RoomLimits) *room {
	r := &room{fs: fsys, path: path, limits: limits}
	if limits == (RoomLimits{}) {
		r.slack.Store(math.MaxInt64)
	}
	return r
}

// admit lets a client write n bytes at now, and says how long it must then wait, or refuses with a *NoRoomError.
func (r *room) admit(n int, now func() time.Time) (time.Duration, error) {
	if r == nil || r.slack.Add(-int64(n)) > 0 {
		return 0, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	at := now()
	if at.Sub(r.looked) >= lookInterval {
		r.look(at)
	}
	if !r.known {
		return 0, nil
	}
	free := r.free()
	if r.ladder.settle(free) {
		r.grant(free)
	}
	if r.ladder.refuses(int64(n), free) {
		r.refused.Add(1)
		return 0, &NoRoomError{Usable: max(0, free), Reserve: r.ladder.limits.Reserve}
	}
	r.written += int64(n)
	rate, slowed := r.ladder.rate(free)
	if !slowed {
		return 0, nil
	}
	wait := r.pacer.took(int64(n), rate, at)
	r.throttle.Add(int64(wait))
	return wait, nil
}

// free estimates what is left: the last sample less what was admitted since. mu is held.
func (r *room) free() int64 {
	return r.usable - r.written - (r.granted - max(0, r.slack.Load()))
}

// grant sets what may be admitted without a look. mu is held.
func (r *room) grant(free int64) {
	r.usable, r.written = free, 0
	r.granted = r.ladder.slack(free)
	r.slack.Store(r.granted)
}

// look samples the volume. mu is held.
func (r *room) look(at time.Time) (changed bool) {
	r.looked = at
	if r.limits == (RoomLimits{}) {
		r.ladder.level, r.known = RoomPlenty, false
		r.slack.Store(math.MaxInt64)
		return false
	}
	total, usable, err := r.fs.Usage(r.path)
	if err != nil || total <= 0 {
		// Not knowing refuses nothing: the disk says itself when it is full.
		r.known = false
		r.slack.Store(math.MaxInt64)
		return false
	}
	r.known, r.total = true, total
	changed = r.ladder.observe(at, r.limits, total, usable)
	r.grant(usable)
	return changed
}

// DirRoom is how much room a log directory has, and how that changes.
type DirRoom struct {
	Path  string
	Level RoomLevel
	// Total and Usable are bytes of the volume, Limits those in force on it.
	Total, Usable int64
	Limits        RoomLimits
	// Pace is the bytes per second that the volume has been losing; negative: winning. HasPace says that it is known,
	// which takes some seconds.
	Pace    float64
	HasPace bool
	// TimeLeft is when clients' writes will be refused at that pace, if HasTimeLeft.
	TimeLeft    time.Duration
	HasTimeLeft bool
	// Refused counts the writes that were refused since the start, and Throttled the time that writers were told to wait.
	Refused   int64
	Throttled time.Duration
}

func (r *room) describe() (DirRoom, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := DirRoom{Path: r.path, Level: r.ladder.level, Total: r.total, Usable: max(0, r.free()), Limits: r.ladder.limits,
		Refused: r.refused.Load(), Throttled: time.Duration(r.throttle.Load())}
	d.Pace, d.HasPace = r.ladder.pace()
	d.TimeLeft, d.HasTimeLeft = r.ladder.timeLeft()
	return d, r.known
}

// SetRoomLimits changes the limits of all directories; they are in force within a second.
func (d *Dirs) SetRoomLimits(limits RoomLimits) {
	for _, ld := range d.dirs {
		ld.room.mu.Lock()
		if ld.room.limits != limits {
			ld.room.limits = limits
			ld.room.slack.Store(0) // the next write looks
			ld.room.looked = time.Time{}
		}
		ld.room.mu.Unlock()
	}
}

// Room describes the online directories whose volume tells how much of it is free, in the order of their paths.
func (d *Dirs) Room() []DirRoom {
	var out []DirRoom
	for _, ld := range d.dirs {
		if ld.failure() != nil {
			continue
		}
		if r, ok := ld.room.describe(); ok {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b DirRoom) int { return cmp.Compare(a.Path, b.Path) })
	return out
}

// fillingLine is the least time between two lines about a directory that stays at a level.
const fillingLine = time.Hour

// WatchRoom looks at the volumes, tells of those that have reached another level or stay at a high one, and says whether
// retention should run now to make room. It is called about once a second, by one goroutine.
func (d *Dirs) WatchRoom(now time.Time) (short bool) {
	d.markSizes(now, false)
	for _, ld := range d.dirs {
		if ld.failure() != nil {
			continue
		}
		r := ld.room
		r.mu.Lock()
		r.look(now)
		level := r.ladder.level
		r.tendBallast()
		r.mu.Unlock()
		ld.pressed.Store(level >= RoomSoft)
		ld.full.Store(level == RoomReserve)
		short = short || level >= RoomSoft
		// A level that a write has found first is told of here, too.
		if changed := level != ld.toldLevel; changed || level != RoomPlenty && now.Sub(ld.toldAt) >= fillingLine {
			d.tellRoom(ld, ld.toldLevel, level)
			ld.toldLevel, ld.toldAt = level, now
		}
	}
	return short
}

// tellRoom writes the line of a directory's room.
func (d *Dirs) tellRoom(ld *logDir, before, level RoomLevel) {
	r, ok := ld.room.describe()
	if !ok {
		return
	}
	what := []any{"dir", r.Path, "level", level.String(), "before", before.String(), "usableBytes", r.Usable, "totalBytes", r.Total,
		"softLimitBytes", r.Limits.Soft, "reserveBytes", r.Limits.Reserve}
	if r.HasPace {
		what = append(what, "bytesPerSecond", int64(r.Pace))
	}
	if r.HasTimeLeft {
		what = append(what, "fullIn", r.TimeLeft.Round(time.Second).String())
	}
	if growing := d.Growing(ld.path, 3); len(growing) > 0 {
		names := make([]string, len(growing))
		for i, g := range growing {
			names[i] = g.Topic
		}
		what = append(what, "growing", names)
	}
	switch level {
	case RoomReserve:
		d.o.Logger.Error("log directory is full: clients' writes are refused until there is room; reads, deletes and commits go on", what...)
	case RoomSoft:
		d.o.Logger.Warn("log directory is nearly full: retention runs now, producers are slowed down", what...)
	case RoomFilling:
		d.o.Logger.Warn("log directory fills: at this pace writes will be refused", what...)
	default:
		d.o.Logger.Info("log directory has room again", what...)
	}
}

// growthStretch is how far back the growth of topics is measured, at most twice as far.
const growthStretch = 5 * time.Minute

// TopicGrowth is how fast a topic's logs in one directory grow.
type TopicGrowth struct {
	Topic          string
	BytesPerSecond float64
}

// markSizes notes every log's size now and then, for Growing; at first anew.
func (d *Dirs) markSizes(now time.Time, first bool) {
	d.growth.Lock()
	defer d.growth.Unlock()
	if first {
		d.growth.marked = time.Time{}
	}
	if !d.growth.marked.IsZero() && now.Sub(d.growth.marked) < growthStretch {
		return
	}
	d.growth.markedBefore, d.growth.marked = d.growth.marked, now
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range d.logs {
		l.sizeBefore, l.sizeMarked = l.sizeMarked, l.cur.Load().Size
	}
}

// Growing lists the topics that grow fastest in the directory at path, at most so many.
func (d *Dirs) Growing(path string, most int) []TopicGrowth {
	d.growth.Lock()
	defer d.growth.Unlock()
	since, before := d.growth.markedBefore, true
	if since.IsZero() {
		since, before = d.growth.marked, false
	}
	if since.IsZero() {
		return nil
	}
	seconds := max(1, d.o.Now().Sub(since).Seconds())
	path = filepath.Clean(path)
	grown := map[string]int64{}
	d.mu.Lock()
	for _, l := range d.logs {
		if l.logDir != path {
			continue
		}
		mark := l.sizeMarked
		if before {
			mark = l.sizeBefore
		}
		if more := l.cur.Load().Size - mark; more != 0 {
			grown[l.o.Topic] += more
		}
	}
	d.mu.Unlock()
	var out []TopicGrowth
	for topic, bytes := range grown {
		if bytes > 0 {
			out = append(out, TopicGrowth{topic, float64(bytes) / seconds})
		}
	}
	slices.SortFunc(out, func(a, b TopicGrowth) int {
		return cmp.Or(cmp.Compare(b.BytesPerSecond, a.BytesPerSecond), cmp.Compare(a.Topic, b.Topic))
	})
	return out[:min(len(out), most)]
}
