package log

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/stelelog/stele/internal/epoch"
	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
)

// TruncateTo cuts the log so that it ends at offset, or before the batch that offset lies inside. Below the first
// segment everything goes and the log starts over at offset. At or above the end only epochs without data go.
// Readers keep what they hold: bytes under a view never change. When it returns the cut is durable.
func (l *Log) TruncateTo(offset int64, reason string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.usable(); err != nil {
		return err
	}
	switch {
	case offset < 0:
		return fmt.Errorf("cannot truncate %s to offset %d", l.o.Dir, offset)
	case offset >= l.leo && mutantEpochsNotCut:
		return nil
	case offset >= l.leo:
		if cut := l.epochs.TruncateFromEnd(l.leo); !cut.Equal(l.epochs) {
			l.epochs, l.epochsStale = cut, true
			l.publish()
		}
		return nil
	case offset < l.list.segs[0].base:
		return l.startAt(offset, reason)
	}
	from, bytes := l.leo, l.sealedSize+l.active.size
	if err := l.cutAt(offset); err != nil {
		return l.offlineUnlessTyped("truncate", err)
	}
	l.event(Event{Kind: EventTruncated, From: from, To: l.leo, Bytes: bytes - l.sealedSize - l.active.size, Cause: reason})
	return nil
}

func (l *Log) offlineUnlessTyped(op string, err error) error {
	var se *StorageError
	var ce *CorruptError
	switch {
	case errors.As(err, &se):
		return err
	case errors.As(err, &ce):
		l.lose(ce)
		return err
	}
	return l.offline(op, err)
}

func (l *Log) cutAt(offset int64) error {
	i := l.list.find(offset)
	seg := l.list.segs[i]
	st := l.active
	if i < len(l.list.segs)-1 {
		var err error
		if st, err = seg.sealed.inMemory(); err != nil {
			return err
		}
	}
	pos, end, err := findCut(seg, &st, offset)
	if err != nil {
		return err
	}
	st = st.cut(seg.base, pos, end)
	if st.largest, err = largestOf(seg.file, seg.base, &st); err != nil {
		return err
	}
	first, err := firstTimestamp(seg.file, st.size)
	if err != nil {
		return err
	}
	l.truncations++
	if err := l.retireSegments(l.list.segs[i+1:], true); err != nil {
		return err
	}
	l.cleanedTo.Store(min(l.cleanedTo.Load(), seg.base))
	kept := slices.Clip(slices.Clone(l.list.segs[:i]))
	if err := l.replaceTail(kept, seg, st, first); err != nil {
		return err
	}
	return l.afterCut()
}

// findCut is the position of the first batch that reaches offset, and the end offset once it is gone.
func findCut(seg *segment, st *segmentState, offset int64) (pos, end int64, err error) {
	if offset >= st.end {
		return st.size, st.end, nil
	}
	if pos, err = st.offsets.lookup(offset - seg.base); err != nil {
		return 0, 0, err
	}
	r := newHeaderReader(seg.file, st.size)
	defer r.close()
	for {
		b, err := r.header(pos)
		if err == io.EOF {
			return st.size, offset, nil
		}
		if err != nil {
			return 0, 0, err
		}
		if b.LastOffset() >= offset {
			return pos, min(offset, b.BaseOffset()), nil
		}
		pos += int64(b.Length())
	}
}

// firstTimestamp is the largest timestamp of the first batch, -1 without one.
func firstTimestamp(f vfs.File, size int64) (int64, error) {
	r := newHeaderReader(f, size)
	defer r.close()
	b, err := r.header(0)
	if err == io.EOF {
		return record.NoTimestamp, nil
	}
	if err != nil {
		return 0, err
	}
	return b.MaxTimestamp(), nil
}

// replaceTail makes kept, followed by seg cut to st, the segments of the log. The cut is published first. If then
// nobody holds the old segment any more the file is cut where it lies, else the part to keep is copied to a new
// file that takes the old one's name, and the old one lives on, nameless, until its readers are done.
func (l *Log) replaceTail(kept []*segment, seg *segment, st segmentState, first int64) error {
	path := l.path(logName(seg.base))
	f, err := l.o.Handles.lazy(l.o.FS, l.o.Dir, seg.base, logFile)
	if err != nil {
		return err
	}
	tail := &segment{base: seg.base, file: f}
	l.installTail(kept, tail, st, first)
	if seg.refs.Load() == 0 || mutantCutsUnderReaders {
		if err := f.Truncate(st.size); err != nil {
			return err
		}
		return f.Sync()
	}
	tmp := path + ".tmp"
	if err := copyFile(l.o.FS, tail.file, st.size, tmp); err != nil {
		return err
	}
	holdFile(seg.file)
	holdFile(tail.file)
	if err := l.o.FS.Rename(tmp, path); err != nil {
		return err
	}
	if err := l.o.FS.SyncDir(l.o.Dir); err != nil {
		return err
	}
	if f, err = l.o.Handles.lazy(l.o.FS, l.o.Dir, seg.base, logFile); err != nil {
		return err
	}
	l.installTail(kept, &segment{base: seg.base, file: f}, st, first)
	return nil
}

// installTail publishes a list that ends in tail.
func (l *Log) installTail(kept []*segment, tail *segment, st segmentState, first int64) {
	l.setSegments(append(slices.Clip(kept), tail))
	l.active = st
	l.activeMeta = l.newMeta()
	l.activeMeta.allocated = false
	l.activeMeta.firstTimestamp = first
	l.activeMeta.offsetsWritten, l.activeMeta.timesWritten, l.activeMeta.txnsWritten = -1, -1, -1
	l.leo = st.end
	if l.heldFrom >= l.leo {
		l.heldFrom = -1
	}
	if l.leo < l.logStart {
		// With the higher one of the checkpoint the next start would drop whatever is appended from here on.
		l.logStart, l.positionsUnsaved = l.leo, true
	}
	l.hw = min(l.hw, l.leo)
	if !mutantEpochsNotCut {
		l.epochs, l.epochsStale = l.epochs.TruncateFromEnd(l.leo), true
	}
	l.publish()
}

// copyFile copies the first size bytes of f to a new file at path, durably.
func copyFile(fsys vfs.FS, f vfs.File, size int64, path string) error {
	out, err := fsys.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	buf := make([]byte, min(size, 1<<20))
	for at := int64(0); at < size; {
		n, err := f.ReadAt(buf[:min(int64(len(buf)), size-at)], at)
		if n == 0 && err != nil {
			out.Close()
			return err
		}
		if _, err := out.WriteAt(buf[:n], at); err != nil {
			out.Close()
			return err
		}
		at += int64(n)
	}
	if err := out.Sync(); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

// afterCut brings everything else down to the new end: recovery point, producers, snapshots, indexes.
func (l *Log) afterCut() error {
	if err := l.removeSnapshotsAbove(l.leo); err != nil {
		return err
	}
	if l.dirSynced < l.dirChanges {
		// A snapshot of what was cut must not come back over other records that end at its offset.
		if err := l.o.FS.SyncDir(l.o.Dir); err != nil {
			return err
		}
		l.dirSynced = l.dirChanges
	}
	if !mutantProducersNotCut {
		if err := l.restoreProducers(l.leo); err != nil {
			return err
		}
	}
	l.producers.replicated(l.hw)
	if l.recoveryPoint.Load() > l.leo {
		l.recoveryPoint.Store(l.leo)
		l.positionsUnsaved = true
	}
	if err := l.writeIndexes(true); err != nil {
		l.indexTrouble(err)
	}
	l.publish()
	return ifNotFull(l.savePositionsDue())
}

// savePositionsDue makes a lowered recovery point or a raised log start durable, if one has not been yet. Nothing is
// appended before that has succeeded: a truncation on a full disk may leave it to the next append.
func (l *Log) savePositionsDue() error {
	if !l.positionsUnsaved {
		return nil
	}
	if l.o.SavePositions != nil {
		if err := l.o.SavePositions(); err != nil {
			return l.diskError("write positions", err)
		}
	}
	l.positionsUnsaved = false
	return nil
}

// TruncateFullyAndStartAt drops everything: the log starts over, empty, at offset, which may lie above the old end.
func (l *Log) TruncateFullyAndStartAt(offset int64, reason string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.usable(); err != nil {
		return err
	}
	if offset < 0 {
		return fmt.Errorf("cannot start %s at offset %d", l.o.Dir, offset)
	}
	return l.startAt(offset, reason)
}

func (l *Log) startAt(offset int64, reason string) error {
	from, bytes := l.leo, l.sealedSize+l.active.size
	if err := l.dropAll(offset); err != nil {
		return l.offlineUnlessTyped("truncate", err)
	}
	l.event(Event{Kind: EventStartedAt, From: from, To: offset, Bytes: bytes, Cause: reason})
	return nil
}

func (l *Log) dropAll(offset int64) error {
	l.truncations++
	l.cleanedTo.Store(-1)
	if err := l.retireSegments(l.list.segs, true); err != nil {
		return err
	}
	if err := l.removeSnapshotsAbove(-1); err != nil {
		return err
	}
	seg, err := l.createSegment(offset)
	if err != nil {
		return err
	}
	l.setSegments([]*segment{seg})
	l.active, l.activeMeta = emptyState(offset), l.newMeta()
	l.logStart, l.leo, l.hw, l.heldFrom = offset, offset, offset, -1
	l.epochs, l.epochsStale = epoch.Cache{}, true
	l.producers = producers{}
	l.recoveryPoint.Store(offset)
	if err := l.o.FS.SyncDir(l.o.Dir); err != nil {
		return err
	}
	l.dirSynced = l.dirChanges
	if err := l.persistEpochs(); err != nil {
		return err
	}
	l.publish()
	l.positionsUnsaved = true
	return ifNotFull(l.savePositionsDue())
}
