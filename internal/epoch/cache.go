// Package epoch holds the leader epoch cache of one replica: which leader epoch began at which offset. It is what
// makes an offset checkable: a fetcher compares histories with it and truncates where they part.
package epoch

import (
	"fmt"
	"sort"
	"strings"
)

// Entry says that the leader epoch Epoch begins at StartOffset.
type Entry struct {
	Epoch       int32
	StartOffset int64
}

// Cache maps leader epochs to their start offsets. It is an immutable value: the methods that change it return
// another one, and any number of goroutines may use the same Cache. Entries strictly rise in epoch and in start
// offset. The zero Cache is empty.
type Cache struct {
	entries []Entry // never written once shared
}

// New makes a cache of entries, which must strictly rise in both fields and hold nothing negative.
func New(entries ...Entry) (Cache, error) {
	for i, e := range entries {
		if e.Epoch < 0 || e.StartOffset < 0 {
			return Cache{}, fmt.Errorf("negative leader epoch entry %d:%d", e.Epoch, e.StartOffset)
		}
		if i > 0 && (e.Epoch <= entries[i-1].Epoch || e.StartOffset <= entries[i-1].StartOffset) {
			return Cache{}, fmt.Errorf("leader epoch entry %d:%d does not rise above %d:%d", e.Epoch, e.StartOffset,
				entries[i-1].Epoch, entries[i-1].StartOffset)
		}
	}
	return Cache{append([]Entry(nil), entries...)}, nil
}

// Len is the number of entries.
func (c Cache) Len() int { return len(c.entries) }

// Entries returns a copy of the entries, oldest first.
func (c Cache) Entries() []Entry { return append([]Entry(nil), c.entries...) }

// Latest is the newest entry; none when the cache is empty.
func (c Cache) Latest() (Entry, bool) {
	if len(c.entries) == 0 {
		return Entry{}, false
	}
	return c.entries[len(c.entries)-1], true
}

// Earliest is the oldest entry; none when the cache is empty.
func (c Cache) Earliest() (Entry, bool) {
	if len(c.entries) == 0 {
		return Entry{}, false
	}
	return c.entries[0], true
}

// Assign notes that leader epoch e begins at offset start. Entries that contradict it, by epoch or by offset, are
// dropped from the tail. The same epoch again at the same or a higher offset changes nothing. A negative epoch or
// offset is an error of the caller.
func (c Cache) Assign(e int32, start int64) (Cache, bool, error) {
	if e < 0 || start < 0 {
		return c, false, fmt.Errorf("cannot assign leader epoch %d at offset %d", e, start)
	}
	if last, ok := c.Latest(); ok && last.Epoch == e && start >= last.StartOffset {
		return c, false, nil
	}
	n := len(c.entries)
	for n > 0 && (c.entries[n-1].Epoch >= e || c.entries[n-1].StartOffset >= start) {
		n--
	}
	out := make([]Entry, n, n+1)
	copy(out, c.entries)
	return Cache{append(out, Entry{e, start})}, true, nil
}

// TruncateFromEnd drops the epochs that begin at or above offset: the log was cut to it. A negative offset
// changes nothing.
func (c Cache) TruncateFromEnd(offset int64) Cache {
	if offset < 0 {
		return c
	}
	n := len(c.entries)
	for n > 0 && c.entries[n-1].StartOffset >= offset {
		n--
	}
	return Cache{c.entries[:n:n]}
}

// TruncateFromStart drops the epochs that end at or below offset: the log start moved to it. The epoch that
// offset lies in then begins at offset.
func (c Cache) TruncateFromStart(offset int64) Cache {
	n := sort.Search(len(c.entries), func(i int) bool { return c.entries[i].StartOffset > offset })
	if n == 0 {
		return c
	}
	if c.entries[n-1].StartOffset == offset {
		return Cache{c.entries[n-1:]}
	}
	out := append([]Entry(nil), c.entries[n-1:]...)
	out[0].StartOffset = offset
	return Cache{out}
}

// Range is the part of the cache that covers the offsets [from, to); a negative from means from the first.
func (c Cache) Range(from, to int64) Cache {
	if from >= 0 {
		c = c.TruncateFromStart(from)
	}
	return c.TruncateFromEnd(to)
}

// EndOffsetFor answers where leader epoch asked ends, for a replica whose log ends at leo: the greatest epoch not
// above asked, and the start of the one after it. Both are -1 when that is unknown. An epoch older than the first
// entry is echoed together with the first start, as Kafka does.
func (c Cache) EndOffsetFor(asked int32, leo int64) (epoch int32, end int64) {
	last, ok := c.Latest()
	switch {
	case !ok || asked == -1 || asked > last.Epoch:
		return -1, -1
	case asked == last.Epoch:
		return asked, leo
	}
	next := sort.Search(len(c.entries), func(i int) bool { return c.entries[i].Epoch > asked })
	if next == 0 {
		return asked, c.entries[0].StartOffset
	}
	return c.entries[next-1].Epoch, c.entries[next].StartOffset
}

// ForOffset is the epoch that offset belongs to, or would belong to if it lies beyond the log's end; none below
// the first entry.
func (c Cache) ForOffset(offset int64) (int32, bool) {
	n := sort.Search(len(c.entries), func(i int) bool { return c.entries[i].StartOffset > offset })
	if n == 0 {
		return 0, false
	}
	return c.entries[n-1].Epoch, true
}

// String shows the cache as {epoch:start, ...}.
func (c Cache) String() string {
	var b strings.Builder
	b.WriteByte('{')
	for i, e := range c.entries {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%d:%d", e.Epoch, e.StartOffset)
	}
	b.WriteByte('}')
	return b.String()
}

// Equal says whether both hold the same entries.
func (c Cache) Equal(o Cache) bool {
	if len(c.entries) != len(o.entries) {
		return false
	}
	for i, e := range c.entries {
		if e != o.entries[i] {
			return false
		}
	}
	return true
}
