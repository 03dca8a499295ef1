package log

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	deleteSuffix = "-delete"
	straySuffix  = "-stray"
	futureSuffix = "-future"

	maxDirName = 255
)

// Verdict says what to do with a partition's directory that is found at start.
type Verdict struct {
	// Keep says that this broker has the partition; otherwise the directory is renamed -stray and left alone.
	Keep   bool
	Config Config
	// Reason says why not.
	Reason string
	// TopicID is the id this broker's partition of that name has, when only a directory without a readable id keeps
	// the two apart; all zero otherwise. Records in such a directory may be the partition's: they are neither taken
	// for it nor put aside for an empty log, the partition fails instead.
	TopicID [16]byte
}

var suffixed = regexp.MustCompile(`^(.+)-(\d+)\.([0-9a-f]{32})-(delete|stray|future)$`)

// parseDirName reads the name of a partition's directory. suffix is empty for a live one.
func parseDirName(name string) (tp TopicPartition, suffix string, ok bool) {
	topic, number := "", ""
	if m := suffixed.FindStringSubmatch(name); m != nil {
		topic, number, suffix = m[1], m[2], "-"+m[4]
	} else {
		if strings.HasSuffix(name, deleteSuffix) || strings.HasSuffix(name, straySuffix) || strings.HasSuffix(name, futureSuffix) {
			return tp, "", false
		}
		i := strings.LastIndexByte(name, '-')
		if i <= 0 {
			return tp, "", false
		}
		topic, number = name[:i], name[i+1:]
	}
	p, err := strconv.ParseInt(number, 10, 32)
	if err != nil || p < 0 || strconv.FormatInt(p, 10) != number {
		return tp, "", false
	}
	return TopicPartition{topic, int32(p)}, suffix, true
}

// suffixedName is the name a directory gets when it is to be deleted or is a stray: the topic is cut so that the
// whole is no longer than file systems allow.
func suffixedName(tp TopicPartition, suffix string) string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // it does not fail
	tail := fmt.Sprintf("-%d.%s%s", tp.Partition, hex.EncodeToString(id[:]), suffix)
	return tp.Topic[:min(len(tp.Topic), maxDirName-len(tail))] + tail
}

// notLogs are directories among the partitions' that are none.
var notLogs = map[string]bool{"remote-log-index-cache": true, "__cluster_metadata-0": true}

// Load opens the logs in all online directories, RecoveryThreads at a time in each. judge decides, for each
// directory found, by its topic id (all zero when it has none): it may be called concurrently. Logs that cannot be
// opened are in the returned map; a disk error among them takes its directory offline. A partition that lives in
// two directories is an error.
func (d *Dirs) Load(ctx context.Context, judge func(tp TopicPartition, topicID [16]byte) Verdict) (failed map[TopicPartition]error, err error) {
	failed = map[TopicPartition]error{}
	start := d.o.Now()
	d.loading.began.Store(start.UnixNano())
	clean := true
	var mu sync.Mutex
	var wg sync.WaitGroup
	var fatal error
	found := map[*logDir][]string{}
	for _, ld := range d.dirs {
		if ld.failure() != nil {
			continue
		}
		entries, err := d.o.FS.ReadDir(ld.path)
		if err != nil {
			d.MarkOffline(ld.path, err)
			continue
		}
		found[ld] = []string{}
		for _, e := range entries {
			if e.IsDir() && !notLogs[e.Name()] {
				found[ld] = append(found[ld], e.Name())
			}
		}
	}
	d.settleCopies(found)
	for _, ld := range d.dirs {
		all, ok := found[ld]
		if !ok || ld.failure() != nil {
			continue
		}
		clean = clean && ld.clean
		names := make(chan string, len(all))
		for _, name := range all {
			names <- name
		}
		close(names)
		d.expect(ld, all)
		for range d.o.RecoveryThreads {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for name := range names {
					if ctx.Err() != nil || ld.failure() != nil {
						return
					}
					tp, err := d.loadDir(ld, name, judge)
					d.loading.logsDone.Add(1)
					var twice *duplicateDirError
					mu.Lock()
					if errors.As(err, &twice) {
						fatal = err
					} else if err != nil {
						failed[tp] = err
					}
					mu.Unlock()
				}
			}()
		}
	}
	done := make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() { d.tellProgress(done) })
	wg.Wait()
	close(done)
	telling.Wait()
	if fatal == nil {
		fatal = ctx.Err()
	}
	d.matchFutures()
	d.markSizes(start, true)
	d.mu.Lock()
	d.loaded = fatal == nil
	loaded := len(d.logs)
	d.mu.Unlock()
	if loaded+len(failed) > 0 {
		d.o.Logger.Info("logs loaded", "logs", loaded, "failed", len(failed), "cleanStop", clean, "took", d.o.Now().Sub(start).Round(time.Microsecond).String())
	}
	return failed, fatal
}

// duplicateDirError says that one partition is in two directories.
type duplicateDirError struct{ first, second string }

func (e *duplicateDirError) Error() string {
	return fmt.Sprintf("the same partition is in %s and in %s", e.first, e.second)
}

func (d *Dirs) loadDir(ld *logDir, name string, judge func(TopicPartition, [16]byte) Verdict) (TopicPartition, error) {
	tp, suffix, ok := parseDirName(name)
	path := filepath.Join(ld.path, name)
	switch {
	case !ok:
		d.o.Logger.Warn("directory is not a partition's, left alone", "dir", path)
		return tp, nil
	case suffix == deleteSuffix:
		ld.mu.Lock()
		ld.pending = append(ld.pending, pendingDelete{path, d.o.Now().Add(defaultDeleteDelay)})
		ld.mu.Unlock()
		return tp, nil
	case suffix == futureSuffix:
		return tp, d.loadFuture(ld, tp, path, judge)
	case suffix != "":
		d.o.Logger.Warn("directory left alone", "dir", path)
		return tp, nil
	}
	id, unreadable := ReadPartitionMetadata(d.o.FS, path)
	if diskFailed(unreadable) {
		ld.mu.Lock()
		ld.unopened[tp] = true
		ld.mu.Unlock()
		return tp, d.reportOpen(ld, &StorageError{Dir: ld.path, Op: "open " + tp.String(), Err: unreadable, Offline: true})
	}
	if unreadable != nil {
		id = [16]byte{} // only the judge can tell whose it may be
	}
	v := judge(tp, id)
	if !v.Keep {
		if unreadable != nil && v.TopicID != ([16]byte{}) {
			if err := checkUnidentified(d.o.FS, path, v.TopicID, unreadable); err != nil {
				ld.mu.Lock()
				ld.unopened[tp] = true
				ld.mu.Unlock()
				return tp, d.reportOpen(ld, err)
			}
		}
		return tp, d.stray(ld, tp, path, v.Reason)
	}
	o := d.options(ld, tp, path, id, v.Config)
	o.identified = unreadable == nil
	l, err := Open(o)
	if err != nil {
		ld.mu.Lock()
		ld.unopened[tp] = true
		ld.mu.Unlock()
		return tp, d.reportOpen(ld, err)
	}
	if other, ok := d.add(ld, l); !ok {
		return tp, &duplicateDirError{other.Dir(), path}
	}
	ld.count.Add(1)
	return tp, nil
}

// add makes l the log of its partition. When there is one already, that is returned, and l is let go of.
func (d *Dirs) add(ld *logDir, l *Log) (other *Log, ok bool) {
	d.mu.Lock()
	other, exists := d.logs[l.tp()]
	if !exists {
		d.logs[l.tp()], d.sorted = l, nil
	}
	d.mu.Unlock()
	if exists {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.closeFiles()
		return other, false
	}
	ld.mu.Lock()
	defer ld.mu.Unlock()
	delete(ld.unopened, l.tp())
	return nil, true
}

const defaultDeleteDelay = 60 * time.Second

// stray renames a directory that belongs to no partition of this broker. It is never deleted by us.
func (d *Dirs) stray(ld *logDir, tp TopicPartition, path, reason string) error {
	to := filepath.Join(ld.path, suffixedName(tp, straySuffix))
	d.o.Logger.Warn("stray partition directory renamed", "topic", tp.Topic, "partition", tp.Partition, "dir", path, "to", to,
		"cause", reason)
	if err := d.o.FS.Rename(path, to); err != nil {
		return &StorageError{Dir: ld.path, Op: "rename stray " + tp.String(), Err: err, Offline: true}
	}
	return d.o.FS.SyncDir(ld.path)
}

// Delete takes a partition's log away: it is closed, its directory renamed, and deleted after file.delete.delay.ms
// by Housekeep, or by the next process. A partition without a log is not an error.
func (d *Dirs) Delete(tp TopicPartition) error {
	d.mu.Lock()
	l, ok := d.logs[tp]
	delete(d.logs, tp)
	d.sorted = nil
	d.mu.Unlock()
	if !ok {
		return nil
	}
	ld := d.dirOf(l)
	ld.count.Add(-1)
	delay := time.Duration(min(l.Config().FileDeleteDelayMs, int64(365*24*time.Hour/time.Millisecond))) * time.Millisecond
	to := filepath.Join(ld.path, suffixedName(tp, deleteSuffix))
	if err := l.renameAway(to); err != nil {
		if ld.failure() == nil {
			d.MarkOffline(ld.path, err)
		}
		return err
	}
	ld.mu.Lock()
	ld.pending = append(ld.pending, pendingDelete{to, d.o.Now().Add(delay)})
	ld.mu.Unlock()
	return nil // the checkpoints lose it when they are written next, all that go together at once
}

// renameAway closes the log, without the care of a clean stop, and renames its directory.
func (l *Log) renameAway(to string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		segs := l.list.segs
		l.closeFiles()
		for _, s := range segs {
			s.hold()
		}
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

// Housekeep does what is due: deletes files and directories whose delay has passed, or that lie where there is little
// room left, and flushes by flush.ms.
func (d *Dirs) Housekeep(now time.Time) {
	for _, l := range d.everyLog() {
		if d.dirOf(l).pressed.Load() {
			l.DeleteDue(now.Add(farAhead))
		} else {
			l.DeleteDue(now)
		}
		_ = l.FlushDue(now) // an error has taken the directory offline
	}
	for _, ld := range d.dirs {
		due := now
		if ld.pressed.Load() {
			due = now.Add(farAhead)
		}
		for _, p := range ld.takeDue(due) {
			if err := d.o.FS.RemoveAll(p.path); err != nil {
				d.o.Logger.Warn("directory not deleted, the next start tries again", "dir", p.path, "cause", err)
			}
		}
	}
}

// farAhead is later than any file's deletion is due.
const farAhead = 2 * 365 * 24 * time.Hour

func (ld *logDir) takeDue(now time.Time) []pendingDelete {
	ld.mu.Lock()
	defer ld.mu.Unlock()
	if ld.offline != nil {
		return nil
	}
	var due, kept []pendingDelete
	for _, p := range ld.pending {
		if p.due.After(now) {
			kept = append(kept, p)
		} else {
			due = append(due, p)
		}
	}
	ld.pending = kept
	return due
}

// ExpireProducers forgets expired producers in every log. It returns how many.
func (d *Dirs) ExpireProducers() int {
	n := 0
	for _, l := range d.Logs() {
		n += l.ExpireProducers()
	}
	return n
}
