package log

import (
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const deletedSuffix = ".deleted"

// AdvanceLogStart moves the log start up to offset: DeleteRecords, or the leader's word. It is durable when this
// returns. An offset at or below the log start changes nothing; above the high watermark it is an
// *OffsetOutOfRangeError. Whole segments below go with the next Retain.
func (l *Log) AdvanceLogStart(offset int64, reason string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.usable(); err != nil {
		return err
	}
	if offset > l.hw {
		return &OffsetOutOfRangeError{Requested: offset, LogStart: l.logStart, EndOffset: l.hw}
	}
	if offset > l.logStart || mutantLogStartBack && offset >= l.list.segs[0].base && offset < l.logStart {
		l.moveLogStart(offset, reason)
		l.positionsUnsaved = true
	}
	return l.savePositionsDue()
}

// moveLogStart moves the log start up and publishes. mu is held.
func (l *Log) moveLogStart(offset int64, reason string) {
	from := l.logStart
	l.logStart = offset
	l.hw = max(l.hw, offset)
	l.recoveryPoint.Store(max(l.recoveryPoint.Load(), offset))
	if cut := l.epochs.TruncateFromStart(offset); !cut.Equal(l.epochs) {
		l.epochs, l.epochsStale = cut, true
	}
	l.publish()
	l.event(Event{Kind: EventLogStartMoved, From: from, To: offset, Cause: reason})
}

// LogStartToSave is the log start, when it must be kept in log-start-offset-checkpoint: no segment's name tells it.
func (l *Log) LogStartToSave() (int64, bool) {
	v := l.cur.Load()
	return v.LogStartOffset, v.LogStartOffset > v.firstBase || l.retiring.Load()
}

// Retain deletes the oldest segments that lie below the log start, are too much (retention.bytes) or too old
// (retention.ms), and the files whose delay has passed. It returns how many segments went.
func (l *Log) Retain(now time.Time) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.usable(); err != nil {
		return 0, err
	}
	l.deleteDue(now)
	c := l.config.Load()
	n, err := l.retainWhile("log start", func(i int) bool {
		return i+1 < len(l.list.segs) && l.list.segs[i+1].base <= l.logStart
	})
	if err != nil || !c.Cleanup.Deletes() {
		return n, err
	}
	if total := l.sealedSize + l.active.size; c.RetentionBytes >= 0 && total >= c.RetentionBytes {
		surplus := total - c.RetentionBytes
		m, err := l.retainWhile("retention.bytes", func(i int) bool {
			surplus -= l.stateOf(i).size
			return surplus >= 0
		})
		if n += m; err != nil {
			return n, err
		}
	}
	if c.RetentionMs < 0 {
		return n, nil
	}
	nowMs := now.UnixMilli()
	m, err := l.retainWhile("retention.ms", func(i int) bool {
		largest := l.largestTimestamp(i)
		if largest-nowMs > c.TimestampAfterMaxMs {
			l.heldByFuture(l.list.segs[i].base, largest)
		}
		return nowMs-largest > c.RetentionMs
	})
	return n + m, err
}

func (l *Log) stateOf(i int) *segmentState {
	if i == len(l.list.segs)-1 {
		return &l.active
	}
	return &l.list.segs[i].sealed
}

// largestTimestamp is the segment's largest record timestamp in ms, or the time its file was last changed.
func (l *Log) largestTimestamp(i int) int64 {
	if t := l.stateOf(i).largest.timestamp; t >= 0 {
		return t
	}
	info, err := l.o.FS.Stat(l.path(logName(l.list.segs[i].base)))
	if err != nil {
		return l.now().UnixMilli() // young: not knowing deletes nothing
	}
	return info.ModTime().UnixMilli()
}

func (l *Log) heldByFuture(base, largest int64) {
	if l.largestHeld == base {
		return
	}
	l.largestHeld = base
	l.event(Event{Kind: EventHeldByFuture, From: base, To: l.leo,
		Cause: "largest timestamp " + time.UnixMilli(largest).UTC().Format(time.RFC3339)})
}

// retainWhile deletes from the oldest segment on while the predicate holds and the high watermark has passed.
func (l *Log) retainWhile(cause string, qualifies func(i int) bool) (int, error) {
	n, last := 0, len(l.list.segs)-1
	for ; n <= last; n++ {
		end := l.leo
		if n < last {
			end = l.list.segs[n+1].base
		}
		if n == last && l.active.size == 0 || l.hw < end || !qualifies(n) {
			break
		}
	}
	if n == 0 {
		return 0, nil
	}
	if n > last {
		switch err := l.roll(l.leo); {
		case IsFull(err) && last > 0:
			n = last // there is no room for an empty segment, yet: what goes without it makes some
		case err != nil:
			return 0, l.diskError("roll", err)
		}
	}
	return n, l.deleteOldest(n, cause)
}

// deleteOldest takes the n oldest segments out of the log, then renames their files.
func (l *Log) deleteOldest(n int, cause string) error {
	gone := l.list.segs[:n]
	newStart := l.list.segs[n].base
	event := Event{Kind: EventSegmentsDeleted, From: gone[0].base, To: newStart, Cause: cause}
	for i := range gone {
		event.Bytes += l.stateOf(i).size
	}
	if newStart > l.logStart {
		l.moveLogStart(newStart, cause)
	}
	// Until the names are gone for good the log start must stay in the checkpoint: they may come back with a crash.
	l.retiring.Store(true)
	l.setSegments(slices.Clone(l.list.segs[n:]))
	l.publish()
	if err := l.retireSegments(gone, false); err != nil {
		return l.offlineUnlessTyped("delete segments", err)
	}
	l.retiring.Store(false)
	// On a full disk the files go all the same; the checkpoint's old head is cut at the next start, too.
	_ = l.persistEpochs()
	l.event(event)
	return nil
}

// retireSegments renames the files of segments that are no longer, or soon not, in the log; they are deleted after
// file.delete.delay.ms. Newest first when the log's end goes, so that a crash on the way leaves no hole.
func (l *Log) retireSegments(segs []*segment, newestFirst bool) error {
	if len(segs) == 0 {
		return nil
	}
	order := slices.Clone(segs)
	if newestFirst {
		slices.Reverse(order)
	}
	due := l.now().Add(time.Duration(min(l.config.Load().FileDeleteDelayMs, int64(time.Hour.Milliseconds()*24*365))) * time.Millisecond)
	for _, s := range order {
		s.hold()
		for _, name := range [...]string{logName(s.base), indexName(s.base), timeName(s.base), txnName(s.base), snapshotName(s.base)} {
			if err := l.retireFile(name, due); err != nil {
				return err
			}
		}
	}
	return l.o.FS.SyncDir(l.o.Dir)
}

func (l *Log) retireFile(name string, due time.Time) error {
	from, to := l.path(name), l.path(name+deletedSuffix)
	if err := l.o.FS.Rename(from, to); err != nil {
		if isNotExist(err) {
			return nil
		}
		return err
	}
	l.names = nil
	if strings.HasSuffix(name, ".snapshot") && snapshotOffset(name) == l.snapshotAt {
		l.snapshotAt = -1
	}
	l.pendingDeletes = append(l.pendingDeletes, pendingDelete{to, due})
	return nil
}

// DeleteDue removes the files whose delay has passed.
func (l *Log) DeleteDue(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.deleteDue(now)
	}
}

func (l *Log) deleteDue(now time.Time) {
	kept := l.pendingDeletes[:0]
	for _, p := range l.pendingDeletes {
		if p.due.After(now) {
			kept = append(kept, p)
			continue
		}
		// What cannot be removed now is removed at the next start.
		_ = l.o.FS.Remove(filepath.Join(l.o.Dir, filepath.Base(p.path)))
	}
	l.pendingDeletes = kept
}
