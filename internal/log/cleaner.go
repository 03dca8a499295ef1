package log

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"
)

// CleanerOptions say how compaction runs, under Kafka's names (log.cleaner.*).
type CleanerOptions struct {
	Threads           int           // log.cleaner.threads
	DedupeBufferBytes int64         // log.cleaner.dedupe.buffer.size, of all threads together
	LoadFactor        float64       // log.cleaner.io.buffer.load.factor
	MaxBytesPerSecond float64       // log.cleaner.io.max.bytes.per.second, read and written; 0: no limit
	Backoff           time.Duration // log.cleaner.backoff.ms
}

// DefaultCleanerOptions are Kafka's.
func DefaultCleanerOptions() CleanerOptions {
	return CleanerOptions{Threads: 1, DedupeBufferBytes: 128 << 20, LoadFactor: 0.9, Backoff: 15 * time.Second}
}

// CleanerStats are the cleaner's numbers since it was made.
type CleanerStats struct {
	Passes                  int64
	BytesRead, BytesWritten int64 // of segments, before and after
	LastPass                time.Duration
	MaxDirtyRatio           float64 // of the logs looked at last
	UncleanableBytes        int64
	Uncleanable             map[TopicPartition]Uncleanable
	LastTime                time.Time // when the last pass ended, zero before
}

// Uncleanable says why a log is not compacted any more. It is tried again by the next process.
type Uncleanable struct {
	Dir    string
	Offset int64
	Cause  string
}

// Cleaner compacts the logs of all directories whose cleanup.policy says so, the dirtiest first. Its methods may be
// called concurrently.
type Cleaner struct {
	dirs  *Dirs
	now   func() time.Time
	sleep func(context.Context, time.Duration) error // seam for tests

	mu          sync.Mutex
	o           CleanerOptions
	busy        map[*Log]bool
	uncleanable map[*Log]Uncleanable
	stats       CleanerStats
	allowance   time.Time     // until when what was read and written so far is paid for
	changed     chan struct{} // holds one when the options have changed
}

// NewCleaner makes a cleaner; Run or CleanOne does the work.
func NewCleaner(dirs *Dirs, o CleanerOptions) *Cleaner {
	return &Cleaner{dirs: dirs, now: dirs.o.Now, sleep: sleepFor, o: o, busy: map[*Log]bool{}, uncleanable: map[*Log]Uncleanable{}, changed: make(chan struct{}, 1)}
}

func sleepFor(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// SetOptions changes how the cleaner runs: the throttle at once, the rest from the next pass on.
func (c *Cleaner) SetOptions(o CleanerOptions) {
	c.mu.Lock()
	c.o = o
	c.mu.Unlock()
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

func (c *Cleaner) options() CleanerOptions {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.o
}

// Run cleans until ctx is done, and returns when nothing is under way any more.
func (c *Cleaner) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	for threads := []context.CancelFunc{}; ; {
		for len(threads) < c.options().Threads {
			own, stop := context.WithCancel(ctx)
			threads = append(threads, stop)
			running.Go(func() { c.thread(own) })
		}
		for n := max(c.options().Threads, 0); len(threads) > n; threads = threads[:len(threads)-1] {
			threads[len(threads)-1]()
		}
		select {
		case <-c.changed:
		case <-ctx.Done():
			for _, stop := range threads {
				stop()
			}
			return
		}
	}
}

// thread cleans one log after another, and rests when there is nothing to do, or what there is cannot be done now.
func (c *Cleaner) thread(ctx context.Context) {
	for ctx.Err() == nil {
		if cleaned, _ := c.CleanOne(ctx); cleaned {
			continue
		}
		if c.sleep(ctx, max(c.options().Backoff, time.Millisecond)) != nil {
			return
		}
	}
}

// Stats are the numbers as of now.
func (c *Cleaner) Stats() CleanerStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Uncleanable = map[TopicPartition]Uncleanable{}
	for l, why := range c.uncleanable {
		s.Uncleanable[l.tp()] = why
		s.UncleanableBytes += l.Size()
	}
	return s
}

// CleanOne looks for the log that needs it most and cleans it. cleaned is false when there was none, or it could not be.
func (c *Cleaner) CleanOne(ctx context.Context) (cleaned bool, err error) {
	now := c.now()
	l, d := c.choose(now)
	if l == nil {
		return false, nil
	}
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.busy, l)
	}()
	ld := c.dirs.dirOf(l)
	// Gaps above the recovery point would be taken for what a crash has lost. And what decides transactions may lie in the
	// last segment: were it lost, records would be gone for the sake of others that nobody sees.
	if err := l.Flush(); err != nil {
		return false, err
	}
	if err := c.dirs.savePositions(ld); err != nil {
		return false, c.failed(ld, err)
	}
	o := c.options()
	r, err := l.clean(d, cleanOptions{now: now, mapBytes: o.DedupeBufferBytes / int64(max(o.Threads, 1)), mapLoad: o.LoadFactor,
		cancelled: ctx.Done(), throttle: func(bytes int) error { return c.throttle(ctx, bytes) }})
	var bad *uncleanableError
	switch {
	case errors.As(err, &bad):
		c.giveUp(l, bad)
		return false, err
	case err != nil:
		return false, err
	}
	c.mu.Lock()
	c.stats.Passes++
	c.stats.BytesRead += r.BytesBefore
	c.stats.BytesWritten += r.BytesAfter
	c.stats.LastPass, c.stats.LastTime = c.now().Sub(now), c.now()
	c.mu.Unlock()
	return true, c.failed(ld, c.dirs.saveCleanedTo(ld))
}

// failed takes a directory offline whose checkpoints could not be written, unless it is only full, and returns err.
func (c *Cleaner) failed(ld *logDir, err error) error {
	if err != nil && ld.failure() == nil && !IsFull(err) {
		c.dirs.MarkOffline(ld.path, err)
	}
	return err
}

// choose takes the dirtiest log that is not being cleaned.
func (c *Cleaner) choose(now time.Time) (best *Log, dirt Dirtiness) {
	logs := c.dirs.Logs()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget(logs)
	c.stats.MaxDirtyRatio = 0
	for _, l := range logs {
		conf := l.config.Load()
		if _, given := c.uncleanable[l]; given || c.busy[l] || !conf.Cleanup.Compacts() || l.broken.Load() != nil {
			continue
		}
		d, reset, err := l.Dirtiness(now)
		if err != nil {
			continue
		}
		if reset {
			c.dirs.o.Logger.Warn("the cleaner's checkpoint lies outside the log, cleaning from its start", "topic", l.o.Topic, "partition", l.o.Partition,
				"checkpoint", l.cleanedTo.Load(), "logStart", d.FirstDirty)
			l.cleanedTo.Store(-1)
		}
		c.stats.MaxDirtyRatio = max(c.stats.MaxDirtyRatio, d.Ratio())
		if d.Cleanable(conf.MinCleanableRatio) && (best == nil || d.Ratio() > dirt.Ratio()) {
			best, dirt = l, d
		}
	}
	if best != nil {
		c.busy[best] = true
	}
	return best, dirt
}

// forget drops what is known of logs that are gone.
func (c *Cleaner) forget(logs []*Log) {
	if len(c.uncleanable) == 0 {
		return
	}
	open := make(map[*Log]bool, len(logs))
	for _, l := range logs {
		open[l] = true
	}
	maps.DeleteFunc(c.uncleanable, func(l *Log, _ Uncleanable) bool { return !open[l] })
}

func (c *Cleaner) giveUp(l *Log, why *uncleanableError) {
	c.mu.Lock()
	c.uncleanable[l] = Uncleanable{Dir: l.logDir, Offset: why.Offset, Cause: why.Err.Error()}
	c.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.event(Event{Kind: EventUncleanable, From: why.Offset, To: l.leo, Cause: why.Err.Error()})
}

// throttleAhead is how far reading and writing may be ahead of the permitted rate before they wait.
const throttleAhead = 300 * time.Millisecond

// throttle takes note of bytes read or written, and waits when they are too many.
func (c *Cleaner) throttle(ctx context.Context, bytes int) error {
	c.mu.Lock()
	rate := c.o.MaxBytesPerSecond
	if rate <= 0 {
		c.mu.Unlock()
		return nil
	}
	now := c.now()
	if c.allowance.Before(now) {
		c.allowance = now
	}
	c.allowance = c.allowance.Add(time.Duration(float64(bytes) / rate * float64(time.Second)))
	ahead := c.allowance.Sub(now)
	c.mu.Unlock()
	if ahead <= throttleAhead {
		return nil
	}
	return c.sleep(ctx, ahead)
}
