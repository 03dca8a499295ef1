package log

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Flush makes everything appended so far durable and raises the recovery point to the end offset. Appends may go on
// meanwhile. An error takes the directory offline.
func (l *Log) Flush() error {
	return l.flushView(func(v *View) int64 { return v.EndOffset })
}

// flushSealed makes all segments but the last durable, with their indexes and the producer snapshot that the last
// one begins with, and raises the recovery point to the last one's base.
func (l *Log) flushSealed() error {
	return l.flushView(func(v *View) int64 { return v.list.last().base })
}

// flushView syncs the segments between the recovery point and upTo outside the lock.
func (l *Log) flushView(upTo func(*View) int64) error {
	l.mu.Lock()
	if err := l.usable(); err != nil {
		l.mu.Unlock()
		return err
	}
	v := l.View()
	defer v.Release()
	truncations, dir, changes := l.truncations, l.o.Dir, l.dirChanges
	dirDirty := l.dirSynced < changes
	l.mu.Unlock()

	target := upTo(v)
	err := l.syncView(v, dir, dirDirty, target)

	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) && (l.truncations != truncations || l.closed || l.o.Dir != dir) {
			return nil // it went while we looked
		}
		return l.offline("flush", err)
	}
	l.lastFlush = l.now()
	l.dirSynced = max(l.dirSynced, changes)
	if l.truncations == truncations && target > l.recoveryPoint.Load() {
		l.recoveryPoint.Store(target)
	}
	if l.truncations == truncations && l.heldFrom >= 0 && target > l.heldFrom {
		if l.heldFrom = target; target >= l.leo {
			l.heldFrom = -1
		}
		l.publish()
	}
	return nil
}

// SetOnFlushed puts another function in the place of Options.OnFlushed.
func (l *Log) SetOnFlushed(f func(error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.onFlushed = f
}

// flushLater holds acknowledgements from offset from on, and has the log flushed in the background: once for all that is
// appended until the flush begins. mu is held.
func (l *Log) flushLater(from int64) {
	if l.heldFrom < 0 {
		l.heldFrom = from
	}
	if l.flushing {
		return
	}
	l.flushing = true
	if l.o.Flush != nil {
		l.o.Flush(l.flushHeld)
		return
	}
	go l.flushHeld()
}

// held says whether the record at offset waits for a flush. mu is held.
func (l *Log) held(offset int64) bool { return l.heldFrom >= 0 && l.heldFrom <= offset }

// flushHeld flushes until nothing is held any more.
func (l *Log) flushHeld() {
	for more := true; more; {
		if l.o.FlushSlots != nil {
			l.o.FlushSlots <- struct{}{}
		}
		err := l.Flush()
		if l.o.FlushSlots != nil {
			<-l.o.FlushSlots
		}
		l.mu.Lock()
		more = err == nil && l.heldFrom >= 0
		l.flushing = more
		told := l.onFlushed
		l.mu.Unlock()
		if told != nil {
			told(err)
		}
	}
}

// flushLocked is Flush for the writer itself. mu is held.
func (l *Log) flushLocked() error {
	// The writer's state may be ahead of the published view.
	v := &View{EndOffset: l.leo, log: l, list: l.list, active: l.active}
	if err := l.syncView(v, l.o.Dir, l.dirSynced < l.dirChanges, l.leo); err != nil {
		return l.offline("flush", err)
	}
	l.dirSynced = l.dirChanges
	l.lastFlush = l.now()
	l.recoveryPoint.Store(max(l.recoveryPoint.Load(), l.leo))
	l.heldFrom = -1
	return nil
}

// syncFound makes the end durable that an unclean start has found, before anything is appended to it: what a killed
// process had cut off, and not synced, would otherwise come back with a loss of power, at offsets that are given anew.
func (l *Log) syncFound() error {
	if !l.foundUnsynced {
		return nil
	}
	if err := l.list.last().file.Sync(); err != nil {
		return l.offline("sync", err)
	}
	if err := l.o.FS.SyncDir(l.o.Dir); err != nil {
		return l.offline("sync", err)
	}
	l.dirSynced, l.foundUnsynced = l.dirChanges, false
	l.retiring.Store(false)
	return nil
}

// syncView syncs what lies between the recovery point and target. The last segment's indexes are not synced: a
// crash makes recovery rebuild them from the segment.
func (l *Log) syncView(v *View, dir string, dirDirty bool, target int64) error {
	point := l.recoveryPoint.Load()
	last := len(v.list.segs) - 1
	if first := v.list.segs[0].base; first >= point {
		if err := l.syncFile(filepath.Join(dir, snapshotName(first))); err != nil {
			return err
		}
	}
	for i, s := range v.list.segs {
		// A segment that ends at the recovery point was synced while it was the last one; its indexes and the
		// snapshot after it were not.
		if i != last && v.list.segs[i+1].base < point || s.base >= target && !(i == last && target == v.EndOffset) {
			continue
		}
		if err := s.file.Sync(); err != nil {
			return err
		}
		if i == last {
			continue
		}
		if err := l.syncDerived(dir, s.base, v.list.segs[i+1].base); err != nil {
			return err
		}
	}
	if dirDirty {
		return l.o.FS.SyncDir(dir)
	}
	return nil
}

// syncDerived syncs the indexes of the sealed segment at base, and the producer snapshot at next.
func (l *Log) syncDerived(dir string, base, next int64) error {
	if err := l.syncIndexes(dir, base); err != nil {
		return err
	}
	return l.syncFile(filepath.Join(dir, snapshotName(next)))
}

// syncIndexes syncs the indexes of the sealed segment at base.
func (l *Log) syncIndexes(dir string, base int64) error {
	for _, name := range [...]string{indexName(base), timeName(base), txnName(base)} {
		if err := l.syncFile(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// syncFile syncs a file by name; one that is not there needs none.
func (l *Log) syncFile(path string) error {
	f, err := l.o.FS.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// queueSync has the sealed segments synced in the background, once however many rolls there were. mu is held.
func (l *Log) queueSync() {
	if l.syncQueued {
		return
	}
	if l.o.Background == nil {
		return // whoever has no background calls Flush, or relies on recovery
	}
	l.syncQueued = true
	l.o.Background(func() {
		l.mu.Lock()
		l.syncQueued = false
		l.mu.Unlock()
		_ = l.flushSealed() // an error has taken the directory offline
	})
}

// FlushDue flushes if flush.ms has passed since the last flush and there is something to flush.
func (l *Log) FlushDue(now time.Time) error {
	c := l.config.Load()
	l.mu.Lock()
	due := now.Sub(l.lastFlush).Milliseconds() >= c.FlushMs && l.leo > l.recoveryPoint.Load() && l.failed == nil && !l.closed
	l.mu.Unlock()
	if !due {
		return nil
	}
	return l.Flush()
}

// Close stops the log cleanly: everything is durable, the producer state is in a snapshot at the end offset,
// indexes have their true size. Views that are still held stay readable. A log that has failed is closed without
// all that, and its error is returned. Closing again does nothing.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	err := l.failed
	if err == nil {
		err = l.closeClean()
	}
	l.closeFiles()
	return err
}

// closesAsIs says whether a clean stop finds nothing to write: nothing has happened since a clean start, or ever. An epoch
// that began and has no batch yet is dropped by the next start anyway.
func (l *Log) closesAsIs() bool {
	if l.positionsUnsaved || l.activeMeta.allocated {
		return false
	}
	if l.loaded.list == l.list && l.loaded.leo == l.leo && l.loaded.logStart == l.logStart {
		return true
	}
	// A new log's directory was made durable when it was made, and without batches there is nothing in it to lose.
	return l.leo == 0 && len(l.list.segs) == 1 && l.loaded.list == nil && l.truncations == 0 && len(l.producers.byID) == 0
}

func (l *Log) closeClean() error {
	if l.closesAsIs() {
		return nil
	}
	seg := l.list.last()
	l.active.addTimeEntry(seg.base)
	if l.activeMeta.allocated {
		if err := seg.file.Truncate(l.active.size); err != nil {
			return l.offline("close", err)
		}
	}
	l.dirChanges++
	if err := l.flushLocked(); err != nil {
		return err
	}
	if err := l.writeIndexes(true); err != nil {
		return l.diskError("close", err)
	}
	for _, name := range [...]string{indexName(seg.base), timeName(seg.base), txnName(seg.base)} {
		if err := l.syncFile(l.path(name)); err != nil {
			return l.offline("close", err)
		}
	}
	if err := l.persistEpochs(); err != nil {
		return l.diskError("close", err)
	}
	if err := l.writeSnapshot(l.leo, true); err != nil {
		return l.diskError("close", err)
	}
	if err := l.o.FS.SyncDir(l.o.Dir); err != nil {
		return l.offline("close", err)
	}
	l.publish()
	return nil
}

// closeFiles lets go of the log's own references; files close when the last reader has gone. From now on View is a
// view of nothing, whose reads say ErrClosed.
func (l *Log) closeFiles() {
	l.closed = true
	l.countProducers(0)
	none := &View{LogStartOffset: l.logStart, LocalLogStartOffset: l.logStart, EndOffset: l.leo, HighWatermark: l.hw,
		AckEnd: l.leo, LastStableOffset: l.hw, Epochs: l.epochs, log: l, list: newSegmentList(nil), closed: true,
		firstBase: l.list.segs[0].base}
	none.refs.Store(1)
	if old := l.cur.Swap(none); old != nil {
		old.Release()
	}
	l.list.release()
}
