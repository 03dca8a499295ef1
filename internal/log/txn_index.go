package log

import (
	"encoding/binary"
	"fmt"
)

const txnEntrySize = 34

// txnEntry is one aborted transaction, in the segment that holds its marker.
type txnEntry struct {
	producerID       int64
	firstOffset      int64
	lastOffset       int64 // the marker's
	lastStableOffset int64 // after the marker
}

func formatTxnEntries(entries []txnEntry) []byte {
	b := make([]byte, 0, len(entries)*txnEntrySize)
	for _, e := range entries {
		b = binary.BigEndian.AppendUint16(b, 0)
		for _, v := range [...]int64{e.producerID, e.firstOffset, e.lastOffset, e.lastStableOffset} {
			b = binary.BigEndian.AppendUint64(b, uint64(v))
		}
	}
	return b
}

// parseTxnIndex reads a whole transaction index of the segment at base. What only damage can leave is an error: a
// part of an entry, transactions that end before they begin.
func parseTxnIndex(data []byte, base int64) ([]txnEntry, error) {
	if len(data)%txnEntrySize != 0 {
		return nil, fmt.Errorf("%d bytes are not a multiple of %d", len(data), txnEntrySize)
	}
	entries := make([]txnEntry, 0, len(data)/txnEntrySize)
	for last := base - 1; len(data) >= txnEntrySize; data = data[txnEntrySize:] {
		if data[0] != 0 {
			return nil, fmt.Errorf("entry %d has version %d", len(entries), binary.BigEndian.Uint16(data))
		}
		at := func(i int) int64 { return int64(binary.BigEndian.Uint64(data[2+8*i:])) }
		e := txnEntry{at(0), at(1), at(2), at(3)}
		if e.lastOffset <= last {
			return nil, fmt.Errorf("entry %d ends at %d, not above %d", len(entries), e.lastOffset, last)
		}
		// The marker follows the data, and what is open then began elsewhere.
		if e.firstOffset < 0 || e.firstOffset >= e.lastOffset || e.producerID < 0 || e.lastStableOffset == e.lastOffset || e.lastStableOffset > e.lastOffset+1 {
			return nil, fmt.Errorf("entry %d: producer %d from %d to %d, then stable to %d", len(entries), e.producerID, e.firstOffset, e.lastOffset, e.lastStableOffset)
		}
		last = e.lastOffset
		entries = append(entries, e)
	}
	return entries, nil
}

// AbortedTxn is an aborted transaction as a Fetch response lists it.
type AbortedTxn struct {
	ProducerID, FirstOffset int64
}
