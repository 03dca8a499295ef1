package quorum

import (
	"testing"

	"pgregory.net/rapid"
)

// The table of runs answers as a plain list of entries does, through appends, cuts at either end and resets.
func TestRunsAgreeWithAPlainList(t *testing.T) {
	t.Parallel()
	type entry struct {
		index, term   uint64
		offset, count int64
	}
	rapid.Check(t, func(t *rapid.T) {
		base := position{Index: 1}
		r := newRuns(base)
		var list []entry
		next, nextOffset, term := uint64(2), int64(0), uint64(1)
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) {
				term += uint64(rapid.IntRange(0, 8).Draw(t, "term") / 8)
				count := int64(rapid.IntRange(1, 3).Draw(t, "count"))
				for range rapid.IntRange(1, 5).Draw(t, "times") {
					list = append(list, entry{next, term, nextOffset, count})
					r.append(term, count)
					next, nextOffset = next+1, nextOffset+count
				}
			},
			"truncate": func(t *rapid.T) {
				if len(list) == 0 {
					t.Skip("nothing to cut")
				}
				at := rapid.IntRange(0, len(list)-1).Draw(t, "at")
				next, nextOffset = list[at].index, list[at].offset
				list = list[:at]
				r.truncate(next)
			},
			"trim": func(t *rapid.T) {
				if len(list) == 0 {
					t.Skip("nothing to trim")
				}
				at := rapid.IntRange(0, len(list)-1).Draw(t, "at")
				e := list[at]
				base = position{Index: e.index, Term: e.term, EndOffset: e.offset + e.count}
				list = list[at+1:]
				r.trim(base)
			},
			"": func(t *rapid.T) {
				if r.lastIndex() != next-1 || r.nextOffs != nextOffset {
					t.Fatalf("end is index %d offset %d, want %d %d", r.lastIndex(), r.nextOffs, next-1, nextOffset)
				}
				if got, ok := r.term(base.Index); !ok || got != base.Term {
					t.Fatalf("term of base %d is %d %v, want %d", base.Index, got, ok, base.Term)
				}
				if _, ok := r.term(base.Index - 1); ok {
					t.Fatalf("an index below the base has a term")
				}
				if _, ok := r.term(next); ok {
					t.Fatalf("an index above the end has a term")
				}
				for _, e := range list {
					offset, ok := r.offset(e.index)
					got, ok2 := r.term(e.index)
					if !ok || !ok2 || offset != e.offset || got != e.term {
						t.Fatalf("entry %+v: offset %d %v term %d %v", e, offset, ok, got, ok2)
					}
					before, ok := r.indexBefore(e.offset + e.count)
					if !ok || before != e.index {
						t.Fatalf("entry %+v: ends at %d, index there %d %v", e, e.offset+e.count, before, ok)
					}
				}
			},
		})
	})
}
