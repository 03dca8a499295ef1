package log

import (
	"encoding/binary"
	"fmt"
	"sort"

	"github.com/stelelog/stele/internal/vfs"
)

const offsetEntrySize = 8

// offsetEntry says that the batch whose last offset is base+rel starts at position pos of the segment.
type offsetEntry struct {
	rel, pos int32
}

// offsetIndex finds the position to start looking for an offset. It is a cache: without entries, or without some
// of them, lookups are slower and not different. The entries are in memory, or, in large sealed segments, in the
// file, which is then open for as long as the segment is.
type offsetIndex struct {
	entries []offsetEntry
	file    vfs.File // nil: entries is all
	count   int      // of entries in file
}

func (x *offsetIndex) len() int {
	if x.file != nil {
		return x.count
	}
	return len(x.entries)
}

func (x *offsetIndex) at(i int) (offsetEntry, error) {
	if x.file == nil {
		return x.entries[i], nil
	}
	var b [offsetEntrySize]byte
	if _, err := x.file.ReadAt(b[:], int64(i)*offsetEntrySize); err != nil {
		return offsetEntry{}, err
	}
	return parseOffsetEntry(b[:]), nil
}

// search is the first entry for which after says true; after must be false, then true along the index.
func (x *offsetIndex) search(after func(offsetEntry) bool) (int, error) {
	var failed error
	i := sort.Search(x.len(), func(i int) bool {
		e, err := x.at(i)
		if err != nil {
			failed = err
			return true
		}
		return after(e)
	})
	return i, failed
}

// lookup is the position of the last indexed batch whose last offset is <= base+rel; 0 without one.
func (x *offsetIndex) lookup(rel int64) (int64, error) {
	i, err := x.search(func(e offsetEntry) bool { return int64(e.rel) > rel })
	if err != nil || i == 0 {
		return 0, err
	}
	e, err := x.at(i - 1)
	return int64(e.pos), err
}

// offsetAfter is the relative offset of the first entry whose position is >= pos.
func (x *offsetIndex) offsetAfter(pos int64) (rel int64, ok bool, err error) {
	i, err := x.search(func(e offsetEntry) bool { return int64(e.pos) >= pos })
	if err != nil || i == x.len() {
		return 0, false, err
	}
	e, err := x.at(i)
	return int64(e.rel), true, err
}

func parseOffsetEntry(b []byte) offsetEntry {
	return offsetEntry{int32(binary.BigEndian.Uint32(b)), int32(binary.BigEndian.Uint32(b[4:]))}
}

func formatOffsetEntries(entries []offsetEntry) []byte {
	b := make([]byte, 0, len(entries)*offsetEntrySize)
	for _, e := range entries {
		b = binary.BigEndian.AppendUint32(b, uint32(e.rel))
		b = binary.BigEndian.AppendUint32(b, uint32(e.pos))
	}
	return b
}

// parseOffsetIndex reads a whole index file of a segment of logSize bytes. Zeros at the end, which Kafka leaves in
// the index of an active segment when it is killed, are dropped.
func parseOffsetIndex(data []byte, logSize int64) ([]offsetEntry, error) {
	if len(data)%offsetEntrySize != 0 {
		return nil, fmt.Errorf("%d bytes are not a multiple of %d", len(data), offsetEntrySize)
	}
	for len(data) > 0 && parseOffsetEntry(data[len(data)-offsetEntrySize:]) == (offsetEntry{}) {
		data = data[:len(data)-offsetEntrySize]
	}
	entries := make([]offsetEntry, 0, len(data)/offsetEntrySize)
	last := offsetEntry{-1, 0}
	for ; len(data) > 0; data = data[offsetEntrySize:] {
		e := parseOffsetEntry(data)
		if e.rel <= last.rel || e.pos <= last.pos || int64(e.pos) >= logSize {
			return nil, fmt.Errorf("entry %d (%d at %d) does not follow (%d at %d) in a log of %d bytes", len(entries), e.rel,
				e.pos, last.rel, last.pos, logSize)
		}
		entries = append(entries, e)
		last = e
	}
	return entries, nil
}
