package log

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sort"

	"github.com/stelelog/stele/internal/vfs"
)

const timeEntrySize = 12

// timeEntry says that no record up to and including the batch whose last offset is base+rel is later than
// timestamp.
type timeEntry struct {
	timestamp int64
	rel       int32
}

// timeIndex finds the offset from which to look for a timestamp. Like the offset index it is a cache, kept in
// memory or in its file.
type timeIndex struct {
	entries []timeEntry
	file    vfs.File
	count   int
}

func (x *timeIndex) len() int {
	if x.file != nil {
		return x.count
	}
	return len(x.entries)
}

func (x *timeIndex) at(i int) (timeEntry, error) {
	if x.file == nil {
		return x.entries[i], nil
	}
	var b [timeEntrySize]byte
	if _, err := x.file.ReadAt(b[:], int64(i)*timeEntrySize); err != nil {
		return timeEntry{}, err
	}
	return parseTimeEntry(b[:]), nil
}

// lookup is the relative offset up to which all records are earlier than timestamp; 0 when none is known to be.
func (x *timeIndex) lookup(timestamp int64) (int64, error) {
	var failed error
	i := sort.Search(x.len(), func(i int) bool {
		e, err := x.at(i)
		if err != nil {
			failed = err
			return true
		}
		return e.timestamp > timestamp
	})
	if failed != nil || i == 0 {
		return 0, failed
	}
	e, err := x.at(i - 1)
	return int64(e.rel), err
}

func parseTimeEntry(b []byte) timeEntry {
	return timeEntry{int64(binary.BigEndian.Uint64(b)), int32(binary.BigEndian.Uint32(b[8:]))}
}

func formatTimeEntries(entries []timeEntry) []byte {
	b := make([]byte, 0, len(entries)*timeEntrySize)
	for _, e := range entries {
		b = binary.BigEndian.AppendUint64(b, uint64(e.timestamp))
		b = binary.BigEndian.AppendUint32(b, uint32(e.rel))
	}
	return b
}

// errZeroTail says that an index ends in zeros: what stood there is lost, or room was made for it.
var errZeroTail = errors.New("zeros at the end")

// errNoTimes says that the time index of a segment with batches has no entry.
var errNoTimes = errors.New("is empty")

// parseTimeIndex reads a whole time index file. One that ends in zeros is an error: its last entry tells of the latest
// record.
func parseTimeIndex(data []byte) ([]timeEntry, error) {
	if len(data)%timeEntrySize != 0 {
		return nil, fmt.Errorf("%d bytes are not a multiple of %d", len(data), timeEntrySize)
	}
	if len(data) > 0 && parseTimeEntry(data[len(data)-timeEntrySize:]) == (timeEntry{}) {
		return nil, errZeroTail
	}
	entries := make([]timeEntry, 0, len(data)/timeEntrySize)
	last := timeEntry{-1, 0}
	for ; len(data) > 0; data = data[timeEntrySize:] {
		e := parseTimeEntry(data)
		if e.timestamp <= last.timestamp || e.rel < last.rel {
			return nil, fmt.Errorf("entry %d (%d at %d) does not follow (%d at %d)", len(entries), e.timestamp, e.rel,
				last.timestamp, last.rel)
		}
		entries = append(entries, e)
		last = e
	}
	return entries, nil
}
