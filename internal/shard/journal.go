package shard

import "fmt"

// A Journal knows at which offset of the log each change of some tables was made, and so takes them back to an
// earlier offset, or settles them below one. The zero value is that of an empty log.
type Journal struct {
	// entries has one for each change that is not settled, oldest first.
	//
	// Invariant: offsets in it never decrease.
	entries   []journalEntry
	endOffset int64 // one above the last offset replayed
	settled   int64 // changes below it can no longer be reverted
}

// A Changed is the table that a record changed.
type Changed interface {
	UndoLast()
	SettleFirst()
}

type journalEntry struct {
	offset  int64
	table   Changed
	vacated func()
}

// EndOffset is one above the last offset replayed.
func (j *Journal) EndOffset() int64 { return j.endOffset }

// Open is how many changes are not settled.
func (j *Journal) Open() int { return len(j.entries) }

// Advance moves the end of what was replayed. Offsets that go back are an error of the runtime, never of a
// client or a log: carrying on would corrupt the undo log.
func (j *Journal) Advance(offset int64) {
	if offset < j.endOffset-1 {
		panic(fmt.Sprintf("shard: replay at offset %d after end offset %d", offset, j.endOffset))
	}
	j.endOffset = offset + 1
}

// Note says that the record at offset made one change of a table. vacated, unless nil, is called after the change
// was undone or settled, to drop the table if nothing is left in it.
func (j *Journal) Note(offset int64, table Changed, vacated func()) {
	j.entries = append(j.entries, journalEntry{offset, table, vacated})
}

// Revert forgets every record at or above offset, which must not be below what was committed.
func (j *Journal) Revert(offset int64) {
	if offset < j.settled {
		panic(fmt.Sprintf("shard: revert to offset %d below the committed offset %d", offset, j.settled))
	}
	for n := len(j.entries); n > 0 && j.entries[n-1].offset >= offset; n-- {
		e := j.entries[n-1]
		j.entries[n-1] = journalEntry{}
		j.entries = j.entries[:n-1]
		e.table.UndoLast()
		if e.vacated != nil {
			e.vacated()
		}
	}
	j.endOffset = min(j.endOffset, offset)
}

// Commit makes every record below the high watermark hw part of the committed state.
func (j *Journal) Commit(hw int64) {
	j.settled = max(j.settled, min(hw, j.endOffset))
	n := 0
	for ; n < len(j.entries) && j.entries[n].offset < hw; n++ {
		e := j.entries[n]
		e.table.SettleFirst()
		if e.vacated != nil {
			e.vacated()
		}
	}
	clear(j.entries[:n])
	j.entries = j.entries[n:]
	if len(j.entries) == 0 {
		j.entries = nil
	}
}
