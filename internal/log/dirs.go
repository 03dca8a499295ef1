package log

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stelelog/stele/internal/vfs"
)

// LockName and CleanShutdownName are files of a log directory.
const (
	LockName          = ".lock"
	CleanShutdownName = ".kafka_cleanshutdown"
)

// ErrNoLogDir says that no log directory is online.
var ErrNoLogDir = errors.New("no log directory is online")

// DirsOptions say which log directories a broker has.
type DirsOptions struct {
	FS    vfs.FS
	Paths []string
	// RecoveryThreads is how many logs are opened at once per directory; 0 means 2.
	RecoveryThreads int
	Now             func() time.Time
	Logger          *slog.Logger
	OnEvent         func(Event)
	// OnOffline hears, once each and on a goroutine of its own, that a directory has gone offline.
	OnOffline func(dir string, cause error)
	// Failed are those of Paths that are known not to work, and why: they are offline from the start.
	Failed map[string]error
	// MaxOpenFiles bounds how many files of segments are open at once; 0: no bound.
	MaxOpenFiles int
	// Limits of the free space of every directory's volume; zero: none. SetRoomLimits changes them.
	Limits RoomLimits
	// Background is given the work that appends leave behind, to be run soon, in order and while no log is locked; nil:
	// goroutines of Dirs run it. A simulator has it run when its seed says so.
	Background func(func())
}

// Dirs is all the log directories of a broker and the logs in them. All methods may be called concurrently.
type Dirs struct {
	o    DirsOptions
	dirs []*logDir

	mu     sync.Mutex
	logs   map[TopicPartition]*Log
	sorted []*Log // in order of name, nil when it must be made anew
	// futures are the copies of partitions that move to another directory.
	futures map[TopicPartition]*Log
	loaded  bool
	closed  bool

	producers ProducerTotal
	handles   *Handles

	choosing sync.Mutex // held while a directory is chosen for a new log

	growth struct {
		sync.Mutex
		marked, markedBefore time.Time // when logs' sizes were noted, zero for never
	}

	loading loading

	wg   sync.WaitGroup
	work chan func()
}

// maxFlushes is how many flushes one directory has under way at once for appends that wait: each holds a thread.
const maxFlushes = 64

// logDir is one log directory.
type logDir struct {
	path  string
	lock  io.Closer
	count atomic.Int64 // of logs, and of those that are being created
	// cordoned directories get no new logs
	cordoned atomic.Bool

	shared Options // what those of its logs have in common
	room   *room
	// pressed says that files which wait for their deletion should not.
	pressed atomic.Bool
	// full says that the directory is down to its reserve.
	full atomic.Bool
	// what WatchRoom told last, and when
	toldLevel RoomLevel
	toldAt    time.Time

	mu      sync.Mutex
	offline error // why, nil while online
	// what the checkpoint files hold
	recoveryPoints, logStarts, highWatermarks, cleanedTo map[TopicPartition]int64
	pointsComplete                                       bool // a partition not in recoveryPoints has none, rather than a lost one
	clean                                                bool
	cleanBrokerEpoch                                     int64 // -1 unknown
	pending                                              []pendingDelete
	unopened                                             map[TopicPartition]bool // they lie here and could not be opened
	writeMu                                              sync.Mutex              // one writer of checkpoints at a time
	// flushSlots bounds how many logs are flushed at once for appends that wait for it.
	flushSlots chan struct{}
	// requests counts the calls of savePositions, and saved is how many of them the last write answers.
	requests, saved atomic.Int64
}

// OpenDirs locks every directory, creating those that do not exist, and reads clean shutdown markers and
// checkpoints. A lock that another process holds is an error that names the file and satisfies vfs.ErrLocked; then
// no directory is touched. A directory that cannot be used otherwise is offline from the start, and an error only
// when no other is left. The markers are gone when it returns: whatever stops the process now is unclean.
func OpenDirs(o DirsOptions) (*Dirs, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.RecoveryThreads <= 0 {
		o.RecoveryThreads = 2
	}
	if o.MaxOpenFiles <= 0 {
		o.MaxOpenFiles = math.MaxInt
	}
	d := &Dirs{o: o, logs: map[TopicPartition]*Log{}, futures: map[TopicPartition]*Log{}, work: make(chan func(), 1024), handles: NewHandles(o.FS, o.MaxOpenFiles)}
	for _, p := range o.Paths {
		d.dirs = append(d.dirs, &logDir{path: filepath.Clean(p), cleanBrokerEpoch: -1, flushSlots: make(chan struct{}, maxFlushes), unopened: map[TopicPartition]bool{},
			room: newRoom(o.FS, filepath.Clean(p), o.Limits)})
		d.share(d.dirs[len(d.dirs)-1])
	}
	for _, ld := range d.dirs {
		if ld.offline = o.Failed[ld.path]; ld.offline != nil {
			continue
		}
		if err := d.lockDir(ld); err != nil {
			if errors.Is(err, vfs.ErrLocked) {
				d.unlock()
				return nil, fmt.Errorf("log directory %s is in use: %w", ld.path, err)
			}
			ld.offline = err
		}
	}
	for _, ld := range d.dirs {
		if ld.offline == nil {
			d.releaseAtStart(ld)
			ld.offline = d.readDir(ld)
		}
	}
	if len(d.Online()) == 0 {
		d.unlock()
		return nil, fmt.Errorf("%w: %w", ErrNoLogDir, d.dirs[0].offline)
	}
	for _, ld := range d.dirs {
		if ld.offline != nil {
			d.o.Logger.Error("log directory is offline", "dir", ld.path, "cause", ld.offline)
		}
	}
	for range d.dirs {
		d.wg.Add(1)
		go d.background()
	}
	return d, nil
}

// background runs what appends leave behind, until Close.
func (d *Dirs) background() {
	defer d.wg.Done()
	for f := range d.work {
		f()
	}
}

func (d *Dirs) lockDir(ld *logDir) error {
	if err := d.o.FS.MkdirAll(ld.path, 0o755); err != nil {
		return err
	}
	_ = d.o.FS.SyncDir(filepath.Dir(ld.path)) // the parent is not ours: it may not be readable
	lock, err := d.o.FS.Lock(filepath.Join(ld.path, LockName))
	if err != nil {
		return err
	}
	ld.lock = lock
	return nil
}

func (d *Dirs) unlock() {
	for _, ld := range d.dirs {
		if ld.locked() {
			// The name goes while the lock is held: nobody can lock a file that then vanishes under them.
			_ = d.o.FS.Remove(filepath.Join(ld.path, LockName))
			ld.unlock()
		}
	}
}

func (ld *logDir) locked() bool {
	ld.mu.Lock()
	defer ld.mu.Unlock()
	return ld.lock != nil
}

func (ld *logDir) unlock() {
	ld.mu.Lock()
	defer ld.mu.Unlock()
	if ld.lock != nil {
		ld.lock.Close()
		ld.lock = nil
	}
}

// readDir reads what the last stop left: marker, checkpoints.
func (d *Dirs) readDir(ld *logDir) error {
	marker := filepath.Join(ld.path, CleanShutdownName)
	data, err := vfs.ReadFile(d.o.FS, marker)
	switch {
	case err == nil:
		ld.clean, ld.cleanBrokerEpoch = true, parseCleanShutdown(data)
		if err := d.o.FS.Remove(marker); err != nil {
			return err
		}
		if err := d.o.FS.SyncDir(ld.path); err != nil {
			return err
		}
	case !isNotExist(err):
		return err
	default:
		// A killed process may have renamed checkpoints and not synced that: what is read here must not be undone by a loss
		// of power.
		if err := d.o.FS.SyncDir(ld.path); err != nil {
			return err
		}
	}
	for _, c := range ld.checkpoints() {
		got, err := readCheckpoint(d.o.FS, filepath.Join(ld.path, c.name), d.o.Now(), func(err error) {
			d.o.Logger.Warn("checkpoint cannot be read, going on without it", "dir", ld.path, "cause", err)
		})
		if err != nil {
			return err
		}
		*c.content = got
	}
	return d.foundPositions(ld)
}

// checkpoint is one of a directory's checkpoint files, and what it holds.
type checkpoint struct {
	name    string
	content *map[TopicPartition]int64
}

func (ld *logDir) checkpoints() [4]checkpoint {
	return [4]checkpoint{{RecoveryPointCheckpoint, &ld.recoveryPoints}, {LogStartCheckpoint, &ld.logStarts},
		{HighWatermarkCheckpoint, &ld.highWatermarks}, {CleanerCheckpoint, &ld.cleanedTo}}
}

// foundPositions says whether the recovery points are complete: a partition they do not name was created since and
// has never been synced. That is so unless the file was lost, and there are partitions.
func (d *Dirs) foundPositions(ld *logDir) error {
	path := filepath.Join(ld.path, RecoveryPointCheckpoint)
	_, err := d.o.FS.Stat(path)
	if err == nil {
		ld.pointsComplete = true
		return nil
	}
	if !isNotExist(err) {
		return err
	}
	entries, err := d.o.FS.ReadDir(ld.path)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(entries, os.DirEntry.IsDir) {
		return nil
	}
	ld.pointsComplete = true
	return vfs.WriteFileAtomic(d.o.FS, path, formatCheckpoint(nil))
}

// Online and Offline list the directories' paths.
func (d *Dirs) Online() []string { return d.list(func(ld *logDir) bool { return ld.failure() == nil }) }
func (d *Dirs) Offline() []string {
	return d.list(func(ld *logDir) bool { return ld.failure() != nil })
}

func (d *Dirs) list(matches func(*logDir) bool) []string {
	var out []string
	for _, ld := range d.dirs {
		if matches(ld) {
			out = append(out, ld.path)
		}
	}
	return out
}

func (ld *logDir) failure() error {
	ld.mu.Lock()
	defer ld.mu.Unlock()
	return ld.offline
}

func (d *Dirs) dir(path string) (*logDir, bool) {
	path = filepath.Clean(path)
	for _, ld := range d.dirs {
		if ld.path == path {
			return ld, true
		}
	}
	return nil, false
}

// CleanBrokerEpoch is the broker epoch in the clean shutdown markers. It is known only if every directory is online
// and all of them have the same.
func (d *Dirs) CleanBrokerEpoch() (int64, bool) {
	epoch := d.dirs[0].cleanBrokerEpoch
	for _, ld := range d.dirs {
		if ld.failure() != nil || !ld.clean || ld.cleanBrokerEpoch < 0 || ld.cleanBrokerEpoch != epoch {
			return 0, false
		}
	}
	return epoch, true
}

// MarkOffline takes a directory offline: its logs are no longer written, its checkpoints neither, its lock is let
// go. It comes back only with a new process.
func (d *Dirs) MarkOffline(path string, cause error) {
	ld, ok := d.dir(path)
	if !ok {
		return
	}
	ld.mu.Lock()
	first := ld.offline == nil
	if first {
		ld.offline = cause
	}
	ld.mu.Unlock()
	if !first {
		return
	}
	d.o.Logger.Error("log directory is offline", "dir", path, "cause", cause)
	for _, l := range d.everyLog() {
		if d.dirOf(l) == ld {
			l.MarkOffline(cause)
		}
	}
	ld.unlock()
	if d.o.OnOffline != nil {
		d.o.OnOffline(ld.path, cause)
	}
}

func (d *Dirs) dirOf(l *Log) *logDir {
	for _, ld := range d.dirs {
		if ld.path == l.logDir {
			return ld
		}
	}
	return nil
}

// Log finds an open log. While its directory is offline the log is still found; it refuses.
func (d *Dirs) Log(topic string, partition int32) (*Log, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l, ok := d.logs[TopicPartition{topic, partition}]
	return l, ok
}

// Logs are all open logs, in order of name. The slice is shared and must not be changed.
func (d *Dirs) Logs() []*Log {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sorted == nil {
		out := make([]*Log, 0, len(d.logs))
		for _, l := range d.logs {
			out = append(out, l)
		}
		slices.SortFunc(out, func(a, b *Log) int { return compareTopicPartition(a.tp(), b.tp()) })
		d.sorted = out
	}
	return d.sorted
}

func (l *Log) tp() TopicPartition { return TopicPartition{l.o.Topic, l.o.Partition} }

// options are those of a log in ld.
func (d *Dirs) options(ld *logDir, tp TopicPartition, dir string, topicID [16]byte, c Config) Options {
	get := func(m map[TopicPartition]int64) int64 {
		if v, ok := m[tp]; ok {
			return v
		}
		return -1
	}
	ld.mu.Lock()
	defer ld.mu.Unlock()
	point := get(ld.recoveryPoints)
	if point < 0 && ld.pointsComplete {
		point = 0
	}
	o := ld.shared
	o.Dir, o.Topic, o.Partition, o.TopicID, o.Config = dir, tp.Topic, tp.Partition, topicID, c
	o.RecoveryPoint, o.LogStart, o.HighWatermark, o.CleanedTo = point, get(ld.logStarts), get(ld.highWatermarks), get(ld.cleanedTo)
	o.Clean = ld.clean
	return o
}

// share makes what the options of all logs in ld have in common.
func (d *Dirs) share(ld *logDir) {
	ld.shared = Options{
		FS: d.o.FS, Now: d.o.Now, Logger: d.o.Logger, OnEvent: d.o.OnEvent,
		OnOffline: func(se *StorageError) {
			// The log is locked, and so may others be: they are told from outside.
			d.enqueue(func() { d.MarkOffline(ld.path, se) })
		},
		SavePositions: func() error { return d.savePositions(ld) },
		Background:    d.enqueue,
		Flush:         d.o.Background,
		FlushSlots:    ld.flushSlots,
		Scanned:       func(bytes int64) { d.loading.bytesDone.Add(bytes) },
		Producers:     &d.producers,
		room:          ld.room,
		Handles:       d.handles,
	}
}

// Handles are the files of segments.
func (d *Dirs) Handles() HandleStats { return d.handles.Stats() }

// enqueue runs f in the background; when the queue is full, or closed, on a goroutine of its own.
func (d *Dirs) enqueue(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	if d.o.Background != nil {
		d.o.Background(f)
		return
	}
	select {
	case d.work <- f:
	default:
		d.wg.Add(1)
		go func() {
			defer d.wg.Done()
			f()
		}()
	}
}

// Create makes the log of a new partition, in the directory at path or, when that is empty, in the online one that
// has the fewest logs. When the log exists already, it is returned. Nothing is created anew while a directory
// is offline that may hold it, unless isNew says that the partition cannot be there.
func (d *Dirs) Create(tp TopicPartition, topicID [16]byte, c Config, path string, isNew bool) (*Log, error) {
	return d.Place(path).Create(tp, topicID, c, isNew)
}

// Place is where a new log is to go, and counts there already. Create is called once on each.
type Place struct {
	d   *Dirs
	ld  *logDir
	err error // why there is none
}

// Place chooses the directory of a log that Create is about to make, for those who make several at once and want them
// spread in their order.
func (d *Dirs) Place(path string) *Place {
	ld, err := d.choose(path)
	return &Place{d, ld, err}
}

// Create is Dirs.Create in the place that was chosen.
func (p *Place) Create(tp TopicPartition, topicID [16]byte, c Config, isNew bool) (*Log, error) {
	l, created, err := p.create(tp, topicID, c, isNew)
	if !created && p.ld != nil {
		p.ld.count.Add(-1)
	}
	return l, err
}

func (p *Place) create(tp TopicPartition, topicID [16]byte, c Config, isNew bool) (l *Log, created bool, err error) {
	d, ld := p.d, p.ld
	if l, ok := d.Log(tp.Topic, tp.Partition); ok {
		return l, false, l.Err()
	}
	if off := d.Offline(); len(off) > 0 && !isNew {
		return nil, false, &StorageError{Dir: off[0], Op: "create " + tp.String(), Err: errors.New("the directory is offline and may hold it"),
			Offline: true}
	}
	if p.err != nil {
		return nil, false, p.err
	}
	dir := filepath.Join(ld.path, tp.String())
	if _, err := d.o.FS.Stat(dir); isNotExist(err) {
		// What an earlier topic of that name left would be taken for this one's positions.
		if err := d.dropFromCheckpoints(ld, tp); err != nil {
			return nil, false, err
		}
	} else {
		ld.mu.Lock()
		ld.unopened[tp] = true // until it is open its positions stay
		ld.mu.Unlock()
		if _, unreadable := ReadPartitionMetadata(d.o.FS, dir); diskFailed(unreadable) {
			return nil, false, d.reportOpen(ld, &StorageError{Dir: ld.path, Op: "open " + tp.String(), Err: unreadable, Offline: true})
		} else if unreadable != nil {
			if err := checkUnidentified(d.o.FS, dir, topicID, unreadable); err != nil {
				return nil, false, d.reportOpen(ld, err)
			}
		}
	}
	l, err = Open(d.options(ld, tp, dir, topicID, c))
	if err != nil {
		return nil, false, d.reportOpen(ld, err)
	}
	if other, ok := d.add(ld, l); !ok {
		return other, false, other.Err()
	}
	return l, true, nil
}

// reportOpen takes the directory offline if that is what an error of Open asks for, and returns the error. A full disk
// does not: the log can be opened when there is room.
func (d *Dirs) reportOpen(ld *logDir, err error) error {
	var se *StorageError
	if !errors.As(err, &se) || !se.Offline {
		return err
	}
	if IsFull(err) {
		return &StorageError{Dir: se.Dir, Op: se.Op, Err: se.Err}
	}
	d.MarkOffline(ld.path, err)
	return err
}

// Cordon keeps new logs out of the directories of these paths, "*" for all, and lets them into all others. It may be
// called at any time.
func (d *Dirs) Cordon(paths []string) {
	for _, ld := range d.dirs {
		ld.cordoned.Store(slices.Contains(paths, ld.path) || slices.Contains(paths, "*"))
	}
}

// Cordoned lists the directories that get no new logs.
func (d *Dirs) Cordoned() []string {
	var paths []string
	for _, ld := range d.dirs {
		if ld.cordoned.Load() {
			paths = append(paths, ld.path)
		}
	}
	return paths
}

// choose finds the directory for a new log: the given one, else the online one with the fewest that is not cordoned;
// if all are, one of those, since a replica that is here already must lie somewhere. One that is down to its reserve
// comes after those that are not. The log counts there at once, since several are created at a time; the caller takes
// that back when there is none in the end.
func (d *Dirs) choose(path string) (*logDir, error) {
	if path != "" {
		ld, ok := d.dir(path)
		if !ok {
			return nil, fmt.Errorf("%s is not a log directory", path)
		}
		if err := ld.failure(); err != nil {
			return nil, &StorageError{Dir: path, Op: "create", Err: err, Offline: true}
		}
		ld.count.Add(1)
		return ld, nil
	}
	d.choosing.Lock()
	defer d.choosing.Unlock()
	var best *logDir
	for _, ld := range d.dirs {
		if ld.failure() != nil {
			continue
		}
		if best == nil || cmp.Or(compareBool(ld.cordoned.Load(), best.cordoned.Load()), compareBool(ld.full.Load(), best.full.Load()),
			cmp.Compare(ld.count.Load(), best.count.Load())) < 0 {
			best = ld
		}
	}
	if best == nil {
		return nil, &StorageError{Dir: d.dirs[0].path, Op: "create", Err: ErrNoLogDir, Offline: true}
	}
	best.count.Add(1)
	return best, nil
}

// compareBool orders false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// Holds finds the online directory in which a partition's log lies, open or not.
func (d *Dirs) Holds(tp TopicPartition) (path string, ok bool) {
	for _, ld := range d.dirs {
		if ld.failure() != nil {
			continue
		}
		if _, err := d.o.FS.Stat(filepath.Join(ld.path, tp.String())); err == nil {
			return ld.path, true
		}
	}
	return "", false
}

// DirOf is the path of the log directory that holds a partition.
func (d *Dirs) DirOf(tp TopicPartition) (string, bool) {
	l, ok := d.Log(tp.Topic, tp.Partition)
	if !ok {
		return "", false
	}
	return filepath.Dir(l.Dir()), true
}

// Close stops cleanly: every log is closed, positions are written, and the marker with the broker's epoch, in each
// directory in which all that succeeded. brokerEpoch -1: not known. When ctx ends first, the remaining directories
// are left as after an unclean stop.
func (d *Dirs) Close(ctx context.Context, brokerEpoch int64) error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	close(d.work)
	d.mu.Unlock()
	d.wg.Wait()
	errs := make([]error, len(d.dirs))
	var wg sync.WaitGroup
	for i, ld := range d.dirs {
		wg.Add(1)
		go func() {
			defer wg.Done()
			errs[i] = d.closeDir(ctx, ld, brokerEpoch)
		}()
	}
	wg.Wait()
	d.unlock()
	return errors.Join(errs...)
}

// Abandon lets go of the directories without writing anything into them: for a start that fails before Load.
func (d *Dirs) Abandon() {
	d.mu.Lock()
	closed := d.closed
	d.closed = true
	d.mu.Unlock()
	if closed {
		return
	}
	close(d.work)
	d.wg.Wait()
	d.unlock()
}

// closersPerThread is how many logs of a directory are closed at once for each recovery thread: each may cost a few syncs,
// which the file system merges. With one thread they are closed one by one.
const closersPerThread = 8

// closeLogs closes the logs in ld, until ctx ends.
func (d *Dirs) closeLogs(ctx context.Context, ld *logDir) (errs []error) {
	logs := make(chan *Log)
	var mu sync.Mutex
	var wg sync.WaitGroup
	closers := 1
	if d.o.RecoveryThreads > 1 {
		closers = closersPerThread * d.o.RecoveryThreads
	}
	for range closers {
		wg.Go(func() {
			for l := range logs {
				if err := l.Close(); err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
				}
			}
		})
	}
	for _, l := range d.everyLog() {
		if ctx.Err() == nil && d.dirOf(l) == ld {
			logs <- l
		}
	}
	close(logs)
	wg.Wait()
	return errs
}

func (d *Dirs) closeDir(ctx context.Context, ld *logDir, brokerEpoch int64) error {
	errs := d.closeLogs(ctx, ld)
	if err := ctx.Err(); err != nil {
		return err
	}
	if off := ld.failure(); off != nil {
		return nil
	}
	for _, save := range []func(*logDir) error{d.savePositions, d.saveHighWatermarks, d.saveCleanedTo} {
		if err := save(ld); err != nil {
			errs = append(errs, err)
		}
	}
	d.mu.Lock()
	complete := d.loaded || ld.clean
	d.mu.Unlock()
	ld.mu.Lock()
	unrecovered := len(ld.unopened) > 0 && !ld.clean
	ld.mu.Unlock()
	// A log that was not opened has not been recovered either: the next start must not take it for one that was.
	if len(errs) > 0 || !complete || unrecovered {
		return errors.Join(errs...)
	}
	return vfs.WriteFileAtomic(d.o.FS, filepath.Join(ld.path, CleanShutdownName), formatCleanShutdown(brokerEpoch))
}
