package log

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"time"

	"github.com/stelelog/stele/internal/epoch"
	"github.com/stelelog/stele/internal/vfs"
)

// A partition moves from one log directory to another by way of a future log: a copy in the other directory, whose
// directory's name ends in -future, and which takes the place of the log when it has all of it.
//
// The step that decides is the renaming away of the log it replaces. Until then the copy carries copyMark, also under its
// live name: a start that finds a partition in two directories, of which one has the mark, goes on with the other, and
// nothing that was appended there is lost. Whatever the moment of a crash, one live log is left.

// copyMark is an empty file in the directory of a copy.
const copyMark = "copy"

// ErrTopicNameTooLong says that the name of a future log would be longer than file systems allow.
var ErrTopicNameTooLong = errors.New("the topic's name is too long for a move between log directories")

// ErrCordoned says that a log directory takes no new replicas.
var ErrCordoned = errors.New("the log directory is cordoned")

// ErrUnknownLogDir says that no log directory has that path.
var ErrUnknownLogDir = errors.New("no such log directory")

// CheckFuture says whether a partition could be copied to the directory at path: *StorageError when that is offline,
// ErrUnknownLogDir, ErrCordoned, ErrTopicNameTooLong.
func (d *Dirs) CheckFuture(tp TopicPartition, path string) error {
	if len(futureName(tp)) > maxDirName {
		return ErrTopicNameTooLong
	}
	ld, ok := d.dir(path)
	if !ok {
		return fmt.Errorf("%w: %s", ErrUnknownLogDir, path)
	}
	if err := ld.failure(); err != nil {
		return &StorageError{Dir: path, Op: "move " + tp.String(), Err: err, Offline: true}
	}
	if ld.cordoned.Load() {
		return fmt.Errorf("%w: %s", ErrCordoned, path)
	}
	return nil
}

func futureName(tp TopicPartition) string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // it does not fail
	return fmt.Sprintf("%s.%s%s", tp, hex.EncodeToString(id[:]), futureSuffix)
}

// futureConfig is the configuration of a copy: it is flushed when it is complete, and deletes nothing by itself.
func futureConfig(c Config) Config {
	c.FlushMessages, c.FlushMs, c.RetentionMs, c.RetentionBytes = math.MaxInt64, math.MaxInt64, -1, -1
	return c
}

// CreateFuture makes the copy of tp in the directory at path, empty and beginning at offset start.
func (d *Dirs) CreateFuture(tp TopicPartition, path string, start int64) (*Log, error) {
	if err := d.CheckFuture(tp, path); err != nil {
		return nil, err
	}
	old, ok := d.Log(tp.Topic, tp.Partition)
	if !ok {
		return nil, fmt.Errorf("move %s: %w", tp, ErrClosed)
	}
	ld, _ := d.dir(path)
	if err := d.dropFromCheckpoints(ld, tp); err != nil {
		return nil, d.reportOpen(ld, err)
	}
	dir := filepath.Join(ld.path, futureName(tp))
	l, err := Open(d.options(ld, tp, dir, old.o.TopicID, futureConfig(old.Config())))
	if err == nil {
		err = vfs.WriteFileAtomic(d.o.FS, filepath.Join(dir, copyMark), nil)
	}
	if err == nil && start > 0 {
		err = l.TruncateFullyAndStartAt(start, "the log that is copied begins there")
	}
	if err != nil {
		if l != nil {
			l.letGo()
		}
		_ = d.o.FS.RemoveAll(dir)
		return nil, d.reportOpen(ld, &StorageError{Dir: ld.path, Op: "create the copy of " + tp.String(), Err: err, Offline: !IsFull(err)})
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.futures[tp] = l
	ld.count.Add(1)
	return l, nil
}

// Future finds the copy of a partition that is moving.
func (d *Dirs) Future(tp TopicPartition) (*Log, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l, ok := d.futures[tp]
	return l, ok
}

// Futures are the copies that there are.
func (d *Dirs) Futures() []*Log {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Values(d.futures))
}

// everyLog are the logs and the copies.
func (d *Dirs) everyLog() []*Log {
	logs, futures := d.Logs(), d.Futures()
	if len(futures) == 0 {
		return logs
	}
	return append(slices.Clone(logs), futures...)
}

// DropFuture gives up a copy: its directory is renamed, and deleted by Housekeep. Without one it does nothing.
func (d *Dirs) DropFuture(tp TopicPartition) error {
	d.mu.Lock()
	l, ok := d.futures[tp]
	delete(d.futures, tp)
	d.mu.Unlock()
	if !ok {
		return nil
	}
	ld := d.dirOf(l)
	ld.count.Add(-1)
	to := filepath.Join(ld.path, suffixedName(tp, deleteSuffix))
	if err := l.renameAway(to); err != nil {
		if ld.failure() == nil {
			d.MarkOffline(ld.path, err)
		}
		return err
	}
	d.deleteLater(ld, to, 0)
	return nil
}

func (d *Dirs) deleteLater(ld *logDir, path string, delay time.Duration) {
	ld.mu.Lock()
	defer ld.mu.Unlock()
	ld.pending = append(ld.pending, pendingDelete{path, d.o.Now().Add(delay)})
}

// AdoptEpochs gives a copy the epochs of the log that it replaces, those without records too.
func (l *Log) AdoptEpochs(c epoch.Cache) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.usable(); err != nil {
		return err
	}
	if c.Equal(l.epochs) {
		return nil
	}
	l.epochs, l.epochsStale = c, true
	if err := l.persistEpochs(); err != nil {
		return l.diskError("write "+epoch.CheckpointName, err)
	}
	l.publish()
	return nil
}

// Promote puts the copy of tp in the place of its log, from which nothing may be appended meanwhile, and of which the copy
// has everything. install is called with the log that serves from now on, before the old one is closed: readers that hold
// views of that go on. On an error the old log is the one that serves, unless the error is that its directory has failed:
// whose directory is to go offline, the caller sees to.
func (d *Dirs) Promote(tp TopicPartition, install func(*Log)) error {
	d.mu.Lock()
	copied, ok := d.futures[tp]
	old, live := d.logs[tp]
	d.mu.Unlock()
	if !ok || !live {
		return fmt.Errorf("promote the copy of %s: %w", tp, ErrClosed)
	}
	to, from := d.dirOf(copied), d.dirOf(old)
	v := old.View()
	hw := v.HighWatermark
	v.Release()
	l, err := d.underLiveName(tp, copied, to, hw, old)
	if err != nil {
		return err
	}
	// From here on the copy is the log, or the directory of the log has failed.
	away := filepath.Join(from.path, suffixedName(tp, deleteSuffix))
	if err := old.renameOpen(away); err != nil {
		l.letGo()
		to.count.Add(-1)
		return err
	}
	d.mu.Lock()
	delete(d.futures, tp)
	d.logs[tp], d.sorted = l, nil
	d.mu.Unlock()
	from.count.Add(-1)
	install(l)
	old.letGo()
	d.deleteLater(from, away, time.Duration(min(l.Config().FileDeleteDelayMs, int64(365*24*time.Hour/time.Millisecond)))*time.Millisecond)
	if err := d.unmark(l.Dir()); err != nil {
		d.o.Logger.Warn("a copy's mark was not removed, the next move or start tries again", "dir", l.Dir(), "cause", err)
	}
	return nil
}

// underLiveName closes the copy, renames it, and opens it again, still marked. On an error it is gone.
func (d *Dirs) underLiveName(tp TopicPartition, copied *Log, to *logDir, hw int64, old *Log) (*Log, error) {
	d.mu.Lock()
	delete(d.futures, tp)
	d.mu.Unlock()
	failed := func(op string, err error) error {
		to.count.Add(-1)
		return &StorageError{Dir: to.path, Op: op, Err: err, Offline: !IsFull(err)}
	}
	v := copied.View()
	start, end := v.LogStartOffset, v.EndOffset
	v.Release()
	dir := copied.Dir()
	if err := copied.Flush(); err != nil {
		return nil, failed("flush the copy of "+tp.String(), err)
	}
	if err := copied.Close(); err != nil {
		return nil, failed("close the copy of "+tp.String(), err)
	}
	// A mark that an earlier move has left on the log would make the two look alike.
	if err := d.unmark(old.Dir()); err != nil {
		return nil, failed("unmark "+tp.String(), err)
	}
	if !d.marked(dir) { // another broker's copy, of which the directories were taken over
		if err := vfs.WriteFileAtomic(d.o.FS, filepath.Join(dir, copyMark), nil); err != nil {
			return nil, failed("mark the copy of "+tp.String(), err)
		}
	}
	live := filepath.Join(to.path, tp.String())
	if err := d.o.FS.Rename(dir, live); err != nil {
		return nil, failed("rename "+filepath.Base(dir), err)
	}
	if err := d.o.FS.SyncDir(to.path); err != nil {
		return nil, failed("sync directory", err)
	}
	o := d.options(to, tp, live, old.o.TopicID, old.Config())
	o.RecoveryPoint, o.LogStart, o.HighWatermark, o.CleanedTo, o.Clean = end, start, hw, -1, true
	l, err := Open(o)
	if err == nil {
		if v := l.View(); v.EndOffset != end || v.LogStartOffset != start {
			err = fmt.Errorf("it has offsets %d to %d, %d to %d were copied", v.LogStartOffset, v.EndOffset, start, end)
			v.Release()
			l.letGo()
		} else {
			v.Release()
		}
	}
	if err == nil {
		err = l.AdoptEpochs(copied.epochs) // opening drops a reign without records
	}
	if err != nil {
		d.deleteLater(to, live, 0)
		return nil, failed("open the copy of "+tp.String(), err)
	}
	l.SetHighWatermark(hw)
	return l, nil
}

// renameOpen renames the directory of a log that stays readable.
func (l *Log) renameOpen(to string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	for _, s := range l.list.segs {
		s.hold()
	}
	if err := l.o.FS.Rename(l.o.Dir, to); err != nil {
		return &StorageError{Dir: filepath.Dir(to), Op: "rename " + filepath.Base(l.o.Dir), Err: err, Offline: true}
	}
	l.o.Dir = to
	if err := l.o.FS.SyncDir(filepath.Dir(to)); err != nil {
		return &StorageError{Dir: filepath.Dir(to), Op: "sync directory", Err: err, Offline: true}
	}
	return nil
}

// letGo closes the files of a log without the care of a clean stop.
func (l *Log) letGo() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.closeFiles()
	}
}

func (d *Dirs) marked(dir string) bool {
	_, err := d.o.FS.Stat(filepath.Join(dir, copyMark))
	return err == nil
}

// unmark makes sure that a log is not taken for a copy.
func (d *Dirs) unmark(dir string) error {
	if !d.marked(dir) {
		return nil
	}
	if err := d.o.FS.Remove(filepath.Join(dir, copyMark)); err != nil && !isNotExist(err) {
		return err
	}
	return d.o.FS.SyncDir(dir)
}

// settleCopies looks at what a crash in the middle of Promote has left, before any log is opened: a partition that lies in
// two directories, in one of them as a copy. The copy goes; the move begins anew when it is asked for again. names are the
// directories found, by log directory.
func (d *Dirs) settleCopies(names map[*logDir][]string) {
	where := map[string][]*logDir{}
	for ld, all := range names {
		for _, name := range all {
			where[name] = append(where[name], ld)
		}
	}
	elsewhere := len(d.Offline()) > 0
	for name, all := range where {
		tp, suffix, ok := parseDirName(name)
		if !ok || suffix != "" || len(all) < 2 && !elsewhere {
			continue
		}
		for _, ld := range all {
			path := filepath.Join(ld.path, name)
			if !d.marked(path) {
				continue
			}
			to := filepath.Join(ld.path, futureName(tp))
			if len(all) > 1 {
				to = filepath.Join(ld.path, suffixedName(tp, deleteSuffix))
			}
			// With a directory offline the log that it is a copy of may be there: it waits beside it.
			d.o.Logger.Warn("a copy that had not replaced its log is put aside", "topic", tp.Topic, "partition", tp.Partition, "dir", path, "to", to)
			if err := d.o.FS.Rename(path, to); err != nil {
				d.MarkOffline(ld.path, err)
				continue
			}
			if err := d.o.FS.SyncDir(ld.path); err != nil {
				d.MarkOffline(ld.path, err)
				continue
			}
			i := slices.Index(names[ld], name)
			names[ld][i] = filepath.Base(to)
		}
	}
}

// loadFuture opens the copy of a partition that was moving when the last process stopped.
func (d *Dirs) loadFuture(ld *logDir, tp TopicPartition, path string, judge func(TopicPartition, [16]byte) Verdict) error {
	id, err := ReadPartitionMetadata(d.o.FS, path)
	var v Verdict
	if err == nil {
		v = judge(tp, id)
	}
	if !v.Keep {
		d.o.Logger.Info("copy of a partition that is not here any more is deleted", "topic", tp.Topic, "partition", tp.Partition, "dir", path)
		d.deleteLater(ld, path, 0)
		return nil
	}
	o := d.options(ld, tp, path, id, futureConfig(v.Config))
	o.identified = true
	l, err := Open(o)
	if err != nil {
		d.o.Logger.Warn("copy cannot be opened, the move begins anew when it is asked for again", "topic", tp.Topic, "partition", tp.Partition, "dir", path, "cause", err)
		d.deleteLater(ld, path, 0)
		return nil
	}
	d.mu.Lock()
	_, twice := d.futures[tp]
	if !twice {
		d.futures[tp] = l
	}
	d.mu.Unlock()
	if twice {
		l.letGo()
		d.deleteLater(ld, path, 0)
		return nil
	}
	ld.count.Add(1)
	return nil
}

// matchFutures looks, once all logs are open, for copies without a log that they are copied from. They are left where they
// are: the log may be in a directory that is not here now.
func (d *Dirs) matchFutures() {
	if len(d.Offline()) == 0 {
		for _, l := range d.Logs() {
			if !l.wasCopy {
				continue
			}
			// A crash came after it had replaced its log.
			if err := d.unmark(l.Dir()); err != nil {
				d.MarkOffline(d.dirOf(l).path, err)
			}
		}
	}
	for _, l := range d.Futures() {
		old, ok := d.Log(l.Topic(), l.Partition())
		switch {
		case !ok:
			d.o.Logger.Warn("copy left alone: the log that it is a copy of is not here", "topic", l.Topic(), "partition", l.Partition(), "dir", l.Dir())
			d.mu.Lock()
			delete(d.futures, l.tp())
			d.mu.Unlock()
			d.dirOf(l).count.Add(-1)
			l.letGo()
		case d.dirOf(old) == d.dirOf(l):
			_ = d.DropFuture(l.tp()) // an error has taken the directory offline
		}
	}
}
