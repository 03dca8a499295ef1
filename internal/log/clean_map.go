package log

import (
	"crypto/sha256"
	"encoding/binary"
	"math/bits"
)

// offsetMapEntrySize is what one key takes in an offset map: half of its hash, and an offset.
const offsetMapEntrySize = 24

// offsetMap holds the largest offset of each key in the part of a log that is cleaned. Keys are told apart by 128 bits
// of their SHA-256: that two of them share those is not going to happen, and nobody can make it happen. It grows with its keys,
// since a small one is found in the processor's cache. It belongs to one goroutine.
type offsetMap struct {
	slots []offsetSlot
	most  int64 // slots, at the end of all growth
	size  int
	limit int // of size
	load  float64
	// latest is the largest offset that was looked at, -1 none: nothing is known of records above it.
	latest int64
	// superseded has a bit for each offset from from on: set, once a larger one of its key was noted. So what was looked at
	// once need not be looked up again. nil where offsets are so far apart that it would take too much.
	superseded []uint64
	from       int64
}

type offsetSlot struct {
	hash  [2]uint64
	after int64 // offset+1; 0: free
}

const (
	// supersededPart of a map's bytes is what its bits for offsets may take besides.
	supersededPart = 16
	firstSlots     = 1 << 12
	// growth is how much larger a map gets at a time; the last step may be larger, so that what is left behind is an eighth of it.
	growth = 4
)

// newOffsetMap makes a map for the keys of the offsets [from, to) that takes at most maxBytes, of which a part of load is used,
// a sixteenth more, and an eighth while it grows.
func newOffsetMap(from, to, maxBytes int64, load float64) *offsetMap {
	expected := to - from
	most := max(maxBytes/offsetMapEntrySize, 1)
	n := min(most, int64(float64(expected)/load)+1)
	limit := max(int64(float64(n)*load), 1)
	n = max(n, limit+1) // one slot stays free, else a search would never end
	m := &offsetMap{most: n, limit: int(limit), load: load, latest: -1, from: from}
	m.slots = make([]offsetSlot, m.nextSize(0))
	if expected > 0 && expected/8 <= maxBytes/supersededPart {
		m.superseded = make([]uint64, (expected+63)/64)
	}
	return m
}

// nextSize is how many slots follow on now.
func (m *offsetMap) nextSize(now int64) int64 {
	next := max(now*growth, firstSlots)
	if next*8 > m.most {
		return m.most
	}
	return next
}

// room makes room for one more key.
func (m *offsetMap) room() {
	now := int64(len(m.slots))
	if now == m.most || float64(m.size) < float64(now)*min(m.load, 0.7) {
		return
	}
	old := m.slots
	m.slots = make([]offsetSlot, m.nextSize(now))
	for _, s := range old {
		if s.after != 0 {
			*m.find(s.hash) = s
		}
	}
}

func hashKey(key []byte) [2]uint64 {
	sum := sha256.Sum256(key)
	return [2]uint64{binary.LittleEndian.Uint64(sum[:]), binary.LittleEndian.Uint64(sum[8:])}
}

// find is the slot of a hash, or the free one where it would be.
func (m *offsetMap) find(h [2]uint64) *offsetSlot {
	for i, _ := bits.Mul64(h[0], uint64(len(m.slots))); ; {
		s := &m.slots[i]
		if s.after == 0 || s.hash == h {
			return s
		}
		if i++; i == uint64(len(m.slots)) {
			i = 0
		}
	}
}

// put notes a key's offset, which is above all before it. False: the map is full, and nothing was noted.
func (m *offsetMap) put(key []byte, offset int64) bool {
	if m.size >= m.limit {
		return false
	}
	m.room()
	h := hashKey(key)
	s := m.find(h)
	if s.after == 0 {
		m.size++
	} else if m.superseded != nil {
		was := s.after - 1 - m.from
		m.superseded[was/64] |= 1 << (was % 64)
	}
	*s = offsetSlot{h, offset + 1}
	m.latest = offset
	return true
}

// newer says whether the map knows a larger offset of the key than offset.
func (m *offsetMap) newer(key []byte, offset int64) bool {
	if at := offset - m.from; m.superseded != nil && at >= 0 && offset <= m.latest {
		return m.superseded[at/64]&(1<<(at%64)) != 0
	}
	return m.find(hashKey(key)).after-1 > offset
}
