package group

import "fmt"

// A TopicPartition names a partition by its topic's name, as offsets are keyed.
type TopicPartition struct {
	Topic     string
	Partition int32
}

// An offsetEntry is a committed offset and the offset of the record that says so.
type offsetEntry struct {
	*OffsetCommitValue
	recordOffset int64
}

type offsetKey struct {
	group string
	TopicPartition
}

type offsetTable = table[TopicPartition, offsetEntry]

// replicated is the state that the log holds. It changes in replay, endTxn and revert only.
//
// Invariant: replaying a prefix of the log gives the same newest state as replaying all of it and
// reverting to the end of the prefix.
type replicated struct {
	groups  *table[string, *GroupMetadataValue]
	offsets map[string]*offsetTable // by group; a table that is vacant is dropped
	// pending holds offsets of open transactions, by producer id.
	pending map[int64]*table[offsetKey, offsetEntry]
	// open counts the producers with a pending offset, by group and partition. It follows from pending.
	open map[string]map[TopicPartition]int
	// journal has one entry for each change that is not settled, oldest first.
	//
	// Invariant: offsets in it never decrease.
	journal   []journalEntry
	held      *held
	endOffset int64 // one above the last offset replayed
	settled   int64 // changes below it can no longer be reverted
}

// A journalEntry names the table that a record changed. vacated is called after an undo or a settle, to
// drop the table if nothing is left in it.
type journalEntry struct {
	offset int64
	table  interface {
		undoLast()
		settleFirst()
	}
	vacated func()
}

func newReplicated(h *held) *replicated {
	r := &replicated{
		held:    h,
		groups:  newTable[string, *GroupMetadataValue](nil),
		offsets: map[string]*offsetTable{},
		pending: map[int64]*table[offsetKey, offsetEntry]{},
		open:    map[string]map[TopicPartition]int{},
	}
	r.groups.size, r.groups.held = groupValueBytes, h
	return r
}

func (r *replicated) replay(offset, producerID int64, rec Record) {
	r.advance(offset)
	switch rec := rec.(type) {
	case *GroupMetadataRecord:
		if rec.Value == nil {
			r.groups.remove(rec.Group)
		} else {
			r.groups.set(rec.Group, rec.Value)
		}
		r.note(offset, r.groups, nil)
	case *OffsetCommitRecord:
		key := offsetKey{rec.Group, TopicPartition{rec.Topic, rec.Partition}}
		switch {
		case rec.Value == nil:
			r.removeOffset(offset, key)
		case producerID >= 0:
			r.setPending(offset, producerID, key, offsetEntry{rec.Value, offset})
		default:
			r.setOffset(offset, key, offsetEntry{rec.Value, offset})
		}
	}
}

// endTxn applies a transaction's marker: of two commits to one partition the later in the log wins, so a
// pending offset gives way to a plain commit that was written after it.
func (r *replicated) endTxn(offset, producerID int64, commit bool) {
	r.advance(offset)
	t := r.pending[producerID]
	if t == nil {
		return
	}
	for key, entry := range t.newest {
		if commit {
			stored, ok := r.offset(key.group, key.TopicPartition)
			if !ok || stored.recordOffset < entry.recordOffset {
				r.setOffset(offset, key, entry)
			}
		}
		r.dropPending(offset, producerID, t, key)
	}
}

// advance moves the end of what was replayed. Offsets that go back are an error of the runtime, never of a
// client or a log: carrying on would corrupt the undo log.
func (r *replicated) advance(offset int64) {
	if offset < r.endOffset-1 {
		panic(fmt.Sprintf("group: replay at offset %d after end offset %d", offset, r.endOffset))
	}
	r.endOffset = offset + 1
}

func (r *replicated) note(offset int64, t interface {
	undoLast()
	settleFirst()
}, vacated func()) {
	r.journal = append(r.journal, journalEntry{offset, t, vacated})
}

func (r *replicated) setOffset(offset int64, key offsetKey, entry offsetEntry) {
	t := r.offsets[key.group]
	if t == nil {
		t = newTable[TopicPartition, offsetEntry](nil)
		t.held = r.held
		t.size = func(tp TopicPartition, e offsetEntry) int64 { return offsetBytes(tp.Topic, e.OffsetCommitValue) }
		r.offsets[key.group] = t
	}
	t.set(key.TopicPartition, entry)
	r.noteOffsets(offset, key.group, t)
}

func (r *replicated) noteOffsets(offset int64, group string, t *offsetTable) {
	r.note(offset, t, func() {
		if t.vacant() && r.offsets[group] == t {
			delete(r.offsets, group)
		}
	})
}

func (r *replicated) setPending(offset, producerID int64, key offsetKey, entry offsetEntry) {
	t := r.pending[producerID]
	if t == nil {
		t = newTable[offsetKey, offsetEntry](r.countOpen)
		t.held = r.held
		t.size = func(key offsetKey, e offsetEntry) int64 { return offsetBytes(key.Topic, e.OffsetCommitValue) }
		r.pending[producerID] = t
	}
	t.set(key, entry)
	r.notePending(offset, producerID, t)
}

func (r *replicated) dropPending(offset, producerID int64, t *table[offsetKey, offsetEntry], key offsetKey) {
	t.remove(key)
	r.notePending(offset, producerID, t)
}

func (r *replicated) notePending(offset, producerID int64, t *table[offsetKey, offsetEntry]) {
	r.note(offset, t, func() {
		if t.vacant() && r.pending[producerID] == t {
			delete(r.pending, producerID)
		}
	})
}

func (r *replicated) countOpen(key offsetKey, _, has bool) {
	if has {
		if r.open[key.group] == nil {
			r.open[key.group] = map[TopicPartition]int{}
		}
		r.open[key.group][key.TopicPartition]++
		return
	}
	counts := r.open[key.group]
	if counts[key.TopicPartition]--; counts[key.TopicPartition] == 0 {
		delete(counts, key.TopicPartition)
	}
	if len(counts) == 0 {
		delete(r.open, key.group)
	}
}

// removeOffset is a tombstone: it removes the stored offset and the pending ones of every producer.
func (r *replicated) removeOffset(offset int64, key offsetKey) {
	if t := r.offsets[key.group]; t != nil {
		if _, ok := t.get(key.TopicPartition); ok {
			t.remove(key.TopicPartition)
			r.noteOffsets(offset, key.group, t)
		}
	}
	if !r.isOpen(key.group, key.TopicPartition) {
		return
	}
	for producerID, t := range r.pending {
		if _, ok := t.get(key); ok {
			r.dropPending(offset, producerID, t, key)
		}
	}
}

// revert forgets every record at or above offset.
func (r *replicated) revert(offset int64) {
	if offset < r.settled {
		panic(fmt.Sprintf("group: revert to offset %d below the committed offset %d", offset, r.settled))
	}
	if mutantRevertForgetsOne {
		offset++
	}
	for n := len(r.journal); n > 0 && r.journal[n-1].offset >= offset; n-- {
		e := r.journal[n-1]
		r.journal = r.journal[:n-1]
		e.table.undoLast()
		if e.vacated != nil {
			e.vacated()
		}
	}
	r.endOffset = min(r.endOffset, offset)
}

// commit makes every record below hw part of the committed state.
func (r *replicated) commit(hw int64) {
	r.settled = max(r.settled, min(hw, r.endOffset))
	n := 0
	for ; n < len(r.journal) && r.journal[n].offset < hw; n++ {
		e := r.journal[n]
		e.table.settleFirst()
		if e.vacated != nil {
			e.vacated()
		}
	}
	clear(r.journal[:n])
	r.journal = r.journal[n:]
	if len(r.journal) == 0 {
		r.journal = nil
	}
}

// offset is the newest offset of a partition, committed or not.
func (r *replicated) offset(group string, tp TopicPartition) (offsetEntry, bool) {
	t := r.offsets[group]
	if t == nil {
		return offsetEntry{}, false
	}
	return t.get(tp)
}

// committedOffset is the offset of a partition as far as the high watermark shows it.
func (r *replicated) committedOffset(group string, tp TopicPartition) (offsetEntry, bool) {
	t := r.offsets[group]
	if t == nil {
		return offsetEntry{}, false
	}
	return t.committed(tp)
}

// isOpen says whether an open transaction holds an offset of the partition.
func (r *replicated) isOpen(group string, tp TopicPartition) bool { return r.open[group][tp] > 0 }

// hasOffsets says whether the group has any offset, stored or pending.
func (r *replicated) hasOffsets(group string) bool {
	t := r.offsets[group]
	return t != nil && len(t.newest) > 0 || len(r.open[group]) > 0
}
