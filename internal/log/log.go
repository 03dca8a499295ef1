// Package log stores partitions: segments of record batches with their indexes, producer state, leader epochs,
// recovery after a crash, and retention, in Kafka's own file formats.
//
// One writer at a time changes a log; any number of readers use immutable views of it that are published with one
// atomic store. Everything but the .log files can be lost and is rebuilt.
package log

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stelelog/stele/internal/epoch"
	"github.com/stelelog/stele/internal/vfs"
)

// Options say which log to open, and how. FS and Dir are required.
type Options struct {
	FS        vfs.FS
	Dir       string // the partition's directory, <log dir>/<topic>-<partition>; created if it does not exist
	Topic     string
	Partition int32
	// TopicID is written to partition.metadata when that file does not exist; all zero: none.
	TopicID [16]byte
	Config  Config

	// RecoveryPoint, LogStart and HighWatermark are what the checkpoints said; -1: nothing. A recovery point of 0
	// says that nothing is known to be synced, -1 that it is not known what is.
	RecoveryPoint, LogStart, HighWatermark int64
	// CleanedTo is the cleaner's checkpoint: below it no record has a newer one there. At or below the log start it says
	// nothing.
	CleanedTo int64
	// identified says that TopicID was read from partition.metadata.
	identified bool
	// Clean says that the last stop was clean: segments need no scan.
	Clean bool

	Now    func() time.Time // nil: time.Now
	Logger *slog.Logger     // nil: slog.Default()
	// OnEvent hears of every event, on the goroutine that caused it, which may hold the log's lock.
	OnEvent func(Event)
	// OnOffline hears once that the log's directory must go offline.
	OnOffline func(*StorageError)
	// SavePositions makes the recovery points and log starts of the directory durable. It is called when the
	// recovery point was lowered or the log start was raised, before anything builds on it, with the log locked.
	SavePositions func() error
	// Producers counts what this log remembers together with others; nil: nobody does, and there is no limit.
	Producers *ProducerTotal
	// Handles bounds the open files of this log together with others'; nil: each segment's file is open all the time.
	Handles *Handles
	// room admits clients' writes; nil: all.
	room *room
	// Background runs work that an append leaves behind: syncing sealed segments. nil: on the spot.
	Background func(func())
	// OnFlushed hears that a flush which appends had left to the background has moved View.AckEnd, or has failed. It is
	// called without locks. See SetOnFlushed.
	OnFlushed func(error)
	// Scanned hears how many more bytes recovery has read and checked; it may be called concurrently with other logs'.
	Scanned func(bytes int64)
	// Flush runs such a flush; nil: a goroutine of its own. FlushSlots bounds how many are under way at once with others.
	Flush      func(func())
	FlushSlots chan struct{}
}

// Log is one partition's log. All methods may be called concurrently; those that change it wait for each other.
type Log struct {
	o      Options
	logDir string // the log directory that holds o.Dir
	config atomic.Pointer[Config]
	cur    atomic.Pointer[View]

	recoveryPoint  atomic.Int64 // everything below is on disk; written under mu
	cleanedTo      atomic.Int64 // the cleaner's checkpoint, -1 none
	cleaningPaused atomic.Bool
	retiring       atomic.Bool // the oldest segments are on their way out: what tells the log start may be lost

	broken atomic.Pointer[error] // failed, for readers

	mu     sync.Mutex
	failed error // set once, by fail; no more writes
	closed bool

	list       *segmentList
	active     segmentState // of the last segment
	sealedSize int64        // bytes in the others
	activeMeta activeMeta

	takenBackTold   time.Time // when an append that was taken back was last told of
	takenBackHidden int       // and how many since were not

	logStart, leo, hw int64
	epochs            epoch.Cache
	epochsStale       bool // the checkpoint file does not hold epochs yet
	producers         producers
	guards            map[int64]*guard // of transactions that are being verified, by producer id
	producerCount     atomic.Int32     // len of producers, for readers
	oldestTxn         atomic.Int64     // when the producer of the open transaction that is silent for longest was last heard of, ms; 0: none is open
	snapshotAt        int64            // offset of the newest producer snapshot, -1: none
	positionsUnsaved  bool             // recovery point or log start must be in the checkpoints before the next append
	loadStart         int64            // the log start while the log is being loaded
	foundUnsynced     bool             // a killed process left the files like this: its last truncation may not be on disk
	// dirChanges counts what was done to the names in the directory, and dirSynced is how much of that is durable: a
	// flush outside the lock must not hide from one inside it what is yet to be synced.
	dirChanges, dirSynced int
	lastFlush             time.Time
	heldFrom              int64 // from here on nothing is acknowledged before a flush, -1: there is no such offset
	flushing              bool  // such a flush is under way
	onFlushed             func(error)
	truncations           int // counts them, so that a flush outside the lock notices one
	pendingDeletes        []pendingDelete
	largestHeld           int64 // base of the segment last reported as held by a future timestamp
	batches               []batchInfo
	syncQueued            bool

	names   []string    // of the files in the directory while the log is being opened, nil when they may be others
	wasCopy bool        // its directory has the mark of a copy
	loaded  loadedState // what a clean start found, all of it on disk
	// sizeMarked and sizeBefore are the sizes at the last two marks of Dirs.markSizes, under its lock.
	sizeMarked, sizeBefore int64
}

// loadedState is what makes a log differ from its files.
type loadedState struct {
	list          *segmentList // nil: the files are behind
	leo, logStart int64
}

// activeMeta is what the writer alone needs to know about the last segment.
type activeMeta struct {
	created         time.Time
	jitterMs        int64
	firstTimestamp  int64 // maxTimestamp of the first batch, -1 unknown or none
	sinceIndexEntry int64 // bytes
	// entries that the index files do not hold yet
	offsetsWritten, timesWritten, txnsWritten int
	allocated                                 bool // the file may be longer than the segment
}

// pendingDelete is a file that was renamed .deleted.
type pendingDelete struct {
	path string
	due  time.Time
}

func (l *Log) now() time.Time { return l.o.Now() }

// Topic, Partition and Dir say which log this is.
func (l *Log) Topic() string    { return l.o.Topic }
func (l *Log) Partition() int32 { return l.o.Partition }

// Dir is the partition's directory. It changes when the log is renamed.
func (l *Log) Dir() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.o.Dir
}

// LogDir is the log directory that the partition's directory is in.
func (l *Log) LogDir() string { return l.logDir }

// PauseCleaning keeps the cleaner away from the log, or lets it come again.
func (l *Log) PauseCleaning(pause bool) { l.cleaningPaused.Store(pause) }

// Config is the configuration in force.
func (l *Log) Config() Config { return *l.config.Load() }

// SetConfig puts c in force: for the next append, roll or retention pass.
func (l *Log) SetConfig(c Config) {
	c = c.complete()
	same := lastConfig.Load()
	if same == nil || *same != c {
		same = &c
		lastConfig.Store(same)
	}
	l.config.Store(same)
}

// lastConfig is what SetConfig got last: the logs of a topic, and often all, share one.
var lastConfig atomic.Pointer[Config]

// View is the log at this instant. The caller must Release it. It stays valid, and readable, whatever happens to
// the log.
func (l *Log) View() *View {
	for {
		if v := l.cur.Load(); v.acquire() {
			return v
		}
	}
}

// publish makes the writer's state what readers see. mu is held.
func (l *Log) publish() {
	v := &View{
		LogStartOffset: l.logStart, LocalLogStartOffset: l.logStart, EndOffset: l.leo, HighWatermark: l.hw,
		AckEnd: l.leo, LastStableOffset: l.lastStableOffset(), Epochs: l.epochs, log: l, list: l.list, active: l.active,
		Size: l.sealedSize + l.active.size, firstBase: l.list.segs[0].base,
	}
	if l.heldFrom >= 0 {
		v.AckEnd = min(l.heldFrom, l.leo)
	}
	if mutantLazyLargest {
		v.unfilled = unfilled(l.list.last())
	}
	l.countProducers(len(l.producers.byID))
	v.refs.Store(1)
	l.list.refs.Add(1)
	if old := l.cur.Swap(v); old != nil {
		old.Release()
	}
}

func (l *Log) lastStableOffset() int64 {
	if first, ok := l.producers.firstUnstable(); ok {
		return min(max(first, l.logStart), l.hw)
	}
	return l.hw
}

// SetHighWatermark moves the high watermark to hw, or as near as log start and end offset allow. It may move it
// back, as a follower that was truncated must.
func (l *Log) SetHighWatermark(hw int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	hw = min(max(hw, l.logStart), l.leo)
	if hw == l.hw || l.closed {
		return
	}
	l.setHighWatermark(hw)
	l.publish()
}

func (l *Log) setHighWatermark(hw int64) {
	l.hw = hw
	l.producers.replicated(hw)
}

// BecomeLeader notes that leader epoch e begins at the end offset, and returns that. The entry is durable before
// the first batch of the epoch is written, not before this returns: taking over ten thousand partitions must not
// take ten thousand syncs.
func (l *Log) BecomeLeader(e int32) (startOffset int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.usable(); err != nil {
		return 0, err
	}
	if last, ok := l.epochs.Latest(); ok && last.Epoch > e {
		return 0, &UnexpectedEpochError{Latest: last.Epoch, Got: e, Offset: l.leo}
	}
	next, changed, err := l.epochs.Assign(e, l.leo)
	if err != nil {
		return 0, err
	}
	if changed {
		l.epochs, l.epochsStale = next, true
		l.publish()
	}
	last, _ := l.epochs.Latest()
	return last.StartOffset, nil
}

// usable is why the log cannot be written, or nil. mu is held.
func (l *Log) usable() error {
	if l.failed != nil {
		return l.failed
	}
	if l.closed {
		return ErrClosed
	}
	return nil
}

// Err is why the log can no longer be used: a *StorageError or *CorruptError, or nil.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed
}

// MarkOffline ends all writing and reading because the log's directory has failed elsewhere.
func (l *Log) MarkOffline(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed == nil {
		l.fail(&StorageError{Dir: l.logDir, Op: "use", Err: cause, Offline: true})
	}
}

// fail ends all use of the log. mu is held.
func (l *Log) fail(err error) {
	l.failed = err
	l.broken.Store(&err)
}

// offline takes the directory offline: what is on disk is no longer known. mu is held.
func (l *Log) offline(op string, err error) error {
	se := &StorageError{Dir: filepath.Dir(l.o.Dir), Op: op, Err: err, Offline: true}
	if l.failed == nil {
		l.fail(se)
		l.event(Event{Kind: EventOffline, From: l.leo, To: l.leo, Cause: se.Error()})
		if l.o.OnOffline != nil {
			l.o.OnOffline(se)
		}
	}
	return se
}

// corrupt makes this log alone unusable. mu is held.
func (l *Log) corrupt(offset int64, err error) error {
	ce := &CorruptError{Dir: l.o.Dir, Segment: logName(l.list.last().base), Offset: offset, Err: err}
	l.lose(ce)
	return ce
}

// MarkLost makes this log alone unusable, for the damage that a reader has met: what lies below the recovery point is neither
// cut nor passed over. It says so once.
func (l *Log) MarkLost(damage *CorruptError) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lose(damage)
}

// lose is MarkLost. mu is held.
func (l *Log) lose(damage *CorruptError) {
	if l.failed == nil && !l.closed {
		l.fail(damage)
		l.event(Event{Kind: EventLost, From: l.leo, To: l.leo, Cause: damage.Error()})
	}
}

// refused is the error of an operation that failed and was taken back.
func (l *Log) refused(op string, err error) error {
	return &StorageError{Dir: filepath.Dir(l.o.Dir), Op: op, Err: err}
}

func (l *Log) event(e Event) {
	e.Topic, e.Partition, e.LeaderEpoch = l.o.Topic, l.o.Partition, -1
	if last, ok := l.epochs.Latest(); ok {
		e.LeaderEpoch = last.Epoch
	}
	level, more := e.level(), []any(nil)
	if e.Kind == EventAppendTakenBack {
		level, more = l.takenBackLine(level)
	}
	l.o.Logger.Log(context.Background(), level, e.Kind.String(), append([]any{"topic", e.Topic, "partition", e.Partition, "from", e.From, "to", e.To,
		"leaderEpoch", e.LeaderEpoch, "bytes", e.Bytes, "cause", e.Cause}, more...)...)
	if l.o.OnEvent != nil {
		l.o.OnEvent(e)
	}
}

// takenBackLine keeps a full disk under producers that try again from filling the log: one line in a second is told,
// with how many were not.
func (l *Log) takenBackLine(level slog.Level) (slog.Level, []any) {
	now := l.now()
	if now.Sub(l.takenBackTold) < time.Second {
		l.takenBackHidden++
		return slog.LevelDebug, nil
	}
	hidden := l.takenBackHidden
	l.takenBackTold, l.takenBackHidden = now, 0
	if hidden == 0 {
		return level, nil
	}
	return level, []any{"notTold", hidden}
}

// RecoveryPoint is the offset below which everything is known to be on disk.
func (l *Log) RecoveryPoint() int64 { return l.recoveryPoint.Load() }

// Size is the log's size in bytes.
func (l *Log) Size() int64 {
	v := l.View()
	defer v.Release()
	return v.Size
}

// SegmentCount is the number of segments.
func (l *Log) SegmentCount() int {
	v := l.View()
	defer v.Release()
	return len(v.list.segs)
}

// persistEpochs writes the epoch checkpoint if it does not hold the cache. mu is held.
func (l *Log) persistEpochs() error {
	if !l.epochsStale {
		return nil
	}
	if err := epoch.Write(l.o.FS, l.path(epoch.CheckpointName), l.epochs); err != nil {
		return err
	}
	l.epochsStale = false
	return nil
}

func (l *Log) path(name string) string { return filepath.Join(l.o.Dir, name) }

func (l *Log) drawJitter() int64 {
	c := l.config.Load()
	limit := min(c.SegmentJitterMs, c.segmentMs())
	if limit <= 0 {
		return 0
	}
	return rand.Int64N(limit)
}

func logName(base int64) string      { return fmt.Sprintf("%020d.log", base) }
func indexName(base int64) string    { return fmt.Sprintf("%020d.index", base) }
func timeName(base int64) string     { return fmt.Sprintf("%020d.timeindex", base) }
func txnName(base int64) string      { return fmt.Sprintf("%020d.txnindex", base) }
func snapshotName(base int64) string { return fmt.Sprintf("%020d.snapshot", base) }

var errPanic = errors.New("panic during append")
