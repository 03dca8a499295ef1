package log

import (
	"math"
	"path/filepath"
	"time"
)

// Dirtiness says what the cleaner would find in a log.
type Dirtiness struct {
	// FirstDirty is the first offset that was not cleaned yet; Uncleanable the base of the first segment that must stay
	// as it is.
	FirstDirty, Uncleanable int64
	CleanBytes, DirtyBytes  int64
	// Overdue: a record is longer uncleaned than max.compaction.lag.ms permits.
	Overdue bool
}

// Ratio is the dirty part of what could be cleaned, 0 to 1.
func (d Dirtiness) Ratio() float64 {
	if d.CleanBytes+d.DirtyBytes == 0 {
		return 0
	}
	return float64(d.DirtyBytes) / float64(d.CleanBytes+d.DirtyBytes)
}

// Cleanable says whether there is enough to clean for min.cleanable.dirty.ratio, or too long ago that it came.
func (d Dirtiness) Cleanable(minRatio float64) bool {
	return d.DirtyBytes > 0 && (d.Ratio() > minRatio || d.Overdue)
}

// Dirtiness looks how much there is to clean at time now. reset says that the cleaner's checkpoint lies outside the log
// and counts as absent.
func (l *Log) Dirtiness(now time.Time) (d Dirtiness, reset bool, err error) {
	v := l.View()
	defer v.Release()
	if v.closed {
		return Dirtiness{}, false, ErrClosed
	}
	if l.cleaningPaused.Load() {
		return Dirtiness{FirstDirty: v.LogStartOffset, Uncleanable: v.LogStartOffset}, false, nil
	}
	c := l.config.Load()
	first := l.cleanedTo.Load()
	if first < v.LogStartOffset || first > v.EndOffset {
		reset = first > v.EndOffset
		first = v.LogStartOffset
	}
	segs := v.list.segs
	bound := min(v.LastStableOffset, segs[len(segs)-1].base)
	from := v.list.find(first)
	nowMs := now.UnixMilli()
	if c.MinCompactionLagMs > 0 {
		for i := from; i < len(segs)-1; i++ {
			if l.largestOfSegment(v, i) > nowMs-c.MinCompactionLagMs {
				bound = min(bound, segs[i].base)
				break
			}
		}
	}
	bound = max(first, bound)
	d.FirstDirty, d.Uncleanable = first, segs[v.list.find(bound)].base
	for i, s := range segs {
		if s.base < first {
			d.CleanBytes += v.state(i).size
		}
	}
	for i := v.list.find(min(first, d.Uncleanable)); i < len(segs) && segs[i].base < d.Uncleanable; i++ {
		d.DirtyBytes += v.state(i).size
	}
	if d.DirtyBytes > 0 && c.MaxCompactionLagMs < math.MaxInt64 {
		d.Overdue, err = overdue(v, from, nowMs-c.MaxCompactionLagMs)
	}
	return d, reset, err
}

// overdue says whether one of the sealed segments from index from on begins with a batch from before a time.
func overdue(v *View, from int, before int64) (bool, error) {
	for i := from; i < len(v.list.segs)-1; i++ {
		first, err := firstTimestamp(v.list.segs[i].file, v.state(i).size)
		if err != nil {
			return false, err
		}
		if first > 0 && first < before {
			return true, nil
		}
	}
	return false, nil
}

// largestOfSegment is the largest record timestamp of segment i, or the time its file was last changed.
func (l *Log) largestOfSegment(v *View, i int) int64 {
	if t := v.state(i).largest.timestamp; t >= 0 {
		return t
	}
	info, err := l.o.FS.Stat(filepath.Join(l.Dir(), logName(v.list.segs[i].base)))
	if err != nil {
		return l.now().UnixMilli() // young: not knowing cleans nothing
	}
	return info.ModTime().UnixMilli()
}
