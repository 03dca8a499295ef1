package quorum

import "sort"

// run is a stretch of raft entries of one term that take equally many offsets each: entry index+i begins at
// offset + i*stride.
type run struct {
	index  uint64
	offset int64
	term   uint64
	stride int64
}

// runs maps raft indexes to offsets and terms for the entries a log retains. An idle quorum, whose entries are all
// alike, takes one run however long it idles.
//
// Invariant: runs are in order, gapless and not empty; next.index and next.offset follow the last entry.
type runs struct {
	list []run
	// base is the place of the entry before the first retained one; its term is what raft compares.
	base     position
	next     uint64
	nextOffs int64
}

// position is a place between two entries: what follows raft index Index, that is the metadata log from offset
// EndOffset on. Term is the entry's at Index, Timestamp that of its batch (milliseconds), both 0 where nothing was
// ever written.
type position struct {
	Index     uint64 `json:"index"`
	Term      uint64 `json:"term"`
	EndOffset int64  `json:"endOffset"`
	Timestamp int64  `json:"timestamp"`
}

func newRuns(base position) runs {
	return runs{base: base, next: base.Index + 1, nextOffs: base.EndOffset}
}

// lastIndex is the index of the last entry, base's if there is none.
func (r *runs) lastIndex() uint64 { return r.next - 1 }

// lastTerm is the term of the last entry, base's if there is none.
func (r *runs) lastTerm() uint64 {
	if len(r.list) == 0 {
		return r.base.Term
	}
	return r.list[len(r.list)-1].term
}

// append adds the next entry, which takes count offsets.
func (r *runs) append(term uint64, count int64) {
	if n := len(r.list); n > 0 {
		last := &r.list[n-1]
		if last.term == term && last.stride == count {
			r.next++
			r.nextOffs += count
			return
		}
	}
	r.list = append(r.list, run{index: r.next, offset: r.nextOffs, term: term, stride: count})
	r.next++
	r.nextOffs += count
}

// find is the run that holds index; ok is false outside the retained entries.
func (r *runs) find(index uint64) (run, bool) {
	if index <= r.base.Index || index >= r.next {
		return run{}, false
	}
	i := sort.Search(len(r.list), func(i int) bool { return r.list[i].index > index })
	return r.list[i-1], true
}

// offset is where entry index begins; for the index after the last, where it will begin.
func (r *runs) offset(index uint64) (int64, bool) {
	if index == r.next {
		return r.nextOffs, true
	}
	found, ok := r.find(index)
	if !ok {
		return 0, false
	}
	return found.offset + int64(index-found.index)*found.stride, true
}

// term is the term of entry index, or of base.
func (r *runs) term(index uint64) (uint64, bool) {
	if index == r.base.Index {
		return r.base.Term, true
	}
	found, ok := r.find(index)
	return found.term, ok
}

// indexBefore is the index of the entry that ends at offset, which must be a boundary between two entries at or
// above base.
func (r *runs) indexBefore(offset int64) (uint64, bool) {
	if offset == r.base.EndOffset {
		return r.base.Index, true
	}
	if offset == r.nextOffs {
		return r.next - 1, true
	}
	if offset < r.base.EndOffset || offset > r.nextOffs {
		return 0, false
	}
	i := sort.Search(len(r.list), func(i int) bool { return r.list[i].offset > offset })
	found := r.list[i-1]
	if (offset-found.offset)%found.stride != 0 {
		return 0, false
	}
	return found.index + uint64((offset-found.offset)/found.stride) - 1, true
}

// truncate forgets the entries from index on; index must be retained or the next.
func (r *runs) truncate(index uint64) {
	offset, ok := r.offset(index)
	if !ok {
		return
	}
	for n := len(r.list); n > 0 && r.list[n-1].index >= index; n = len(r.list) {
		r.list = r.list[:n-1]
	}
	r.next, r.nextOffs = index, offset
}

// trim forgets the entries up to and including base.Index, which becomes the base.
func (r *runs) trim(base position) {
	if base.Index >= r.next {
		*r = newRuns(base)
		return
	}
	i := sort.Search(len(r.list), func(i int) bool { return r.list[i].index > base.Index+1 })
	if i > 0 {
		first := r.list[i-1]
		first.offset += int64(base.Index+1-first.index) * first.stride
		first.index = base.Index + 1
		kept := append([]run(nil), r.list[i-1:]...)
		kept[0] = first
		// The run that holds the base's last entry may end with it.
		if len(kept) > 1 && kept[1].index == first.index || first.index == r.next {
			kept = kept[1:]
		}
		r.list = kept
	}
	r.base = base
}
