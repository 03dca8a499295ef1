package group

import "github.com/stelelog/stele/internal/shard"

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

type (
	offsetTable  = shard.Table[TopicPartition, offsetEntry]
	pendingTable = shard.Table[offsetKey, offsetEntry]
)

// replicated is the state that the log holds. It changes in replay, endTxn and revert only.
//
// Invariant: replaying a prefix of the log gives the same newest state as replaying all of it and
// reverting to the end of the prefix.
type replicated struct {
	groups    *shard.Table[string, *GroupMetadataValue]
	consumers map[string]*consumerGroup // one that is vacant is dropped
	offsets   map[string]*offsetTable   // by group; a table that is vacant is dropped
	// pending holds offsets of open transactions, by producer id.
	pending map[int64]*pendingTable
	// open counts the producers with a pending offset, by group and partition. It follows from pending.
	open    map[string]map[TopicPartition]int
	journal shard.Journal
	held    *held
}

func newReplicated(h *held) *replicated {
	return &replicated{
		held:      h,
		groups:    shard.NewTable(shard.Watch[string, *GroupMetadataValue]{Size: groupValueBytes, Held: h.add}),
		consumers: map[string]*consumerGroup{},
		offsets:   map[string]*offsetTable{},
		pending:   map[int64]*pendingTable{},
		open:      map[string]map[TopicPartition]int{},
	}
}

func (r *replicated) replay(offset, producerID int64, rec Record) {
	r.journal.Advance(offset)
	switch rec := rec.(type) {
	case *GroupMetadataRecord:
		if rec.Value == nil {
			r.groups.Remove(rec.Group)
		} else {
			r.groups.Set(rec.Group, rec.Value)
		}
		r.journal.Note(offset, r.groups, nil)
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
	default:
		r.replayConsumer(offset, rec)
	}
}

// endTxn applies a transaction's marker: of two commits to one partition the later in the log wins, so a
// pending offset gives way to a plain commit that was written after it.
func (r *replicated) endTxn(offset, producerID int64, commit bool) {
	r.journal.Advance(offset)
	t := r.pending[producerID]
	if t == nil {
		return
	}
	for key, entry := range t.Newest() {
		if commit {
			stored, ok := r.offset(key.group, key.TopicPartition)
			if !ok || stored.recordOffset < entry.recordOffset {
				r.setOffset(offset, key, entry)
			}
		}
		r.dropPending(offset, producerID, t, key)
	}
}

func (r *replicated) setOffset(offset int64, key offsetKey, entry offsetEntry) {
	t := r.offsets[key.group]
	if t == nil {
		t = shard.NewTable(shard.Watch[TopicPartition, offsetEntry]{
			Size: func(tp TopicPartition, e offsetEntry) int64 { return offsetBytes(tp.Topic, e.OffsetCommitValue) }, Held: r.held.add,
		})
		r.offsets[key.group] = t
	}
	t.Set(key.TopicPartition, entry)
	r.noteOffsets(offset, key.group, t)
}

func (r *replicated) noteOffsets(offset int64, group string, t *offsetTable) {
	r.journal.Note(offset, t, func() {
		if t.Vacant() && r.offsets[group] == t {
			delete(r.offsets, group)
		}
	})
}

func (r *replicated) setPending(offset, producerID int64, key offsetKey, entry offsetEntry) {
	t := r.pending[producerID]
	if t == nil {
		t = shard.NewTable(shard.Watch[offsetKey, offsetEntry]{
			Changed: r.countOpen,
			Size:    func(key offsetKey, e offsetEntry) int64 { return offsetBytes(key.Topic, e.OffsetCommitValue) }, Held: r.held.add,
		})
		r.pending[producerID] = t
	}
	t.Set(key, entry)
	r.notePending(offset, producerID, t)
}

func (r *replicated) dropPending(offset, producerID int64, t *pendingTable, key offsetKey) {
	t.Remove(key)
	r.notePending(offset, producerID, t)
}

func (r *replicated) notePending(offset, producerID int64, t *pendingTable) {
	r.journal.Note(offset, t, func() {
		if t.Vacant() && r.pending[producerID] == t {
			delete(r.pending, producerID)
		}
	})
}

func (r *replicated) countOpen(key offsetKey, was, is shard.Value[offsetEntry]) {
	if was.OK == is.OK {
		return
	}
	if is.OK {
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
		if _, ok := t.Get(key.TopicPartition); ok {
			t.Remove(key.TopicPartition)
			r.noteOffsets(offset, key.group, t)
		}
	}
	if !r.isOpen(key.group, key.TopicPartition) {
		return
	}
	for producerID, t := range r.pending {
		if _, ok := t.Get(key); ok {
			r.dropPending(offset, producerID, t, key)
		}
	}
}

// revert forgets every record at or above offset.
func (r *replicated) revert(offset int64) {
	if mutantRevertForgetsOne {
		offset++
	}
	r.journal.Revert(offset)
}

// commit makes every record below hw part of the committed state.
func (r *replicated) commit(hw int64) { r.journal.Commit(hw) }

// offset is the newest offset of a partition, committed or not.
func (r *replicated) offset(group string, tp TopicPartition) (offsetEntry, bool) {
	t := r.offsets[group]
	if t == nil {
		return offsetEntry{}, false
	}
	return t.Get(tp)
}

// committedOffset is the offset of a partition as far as the high watermark shows it.
func (r *replicated) committedOffset(group string, tp TopicPartition) (offsetEntry, bool) {
	t := r.offsets[group]
	if t == nil {
		return offsetEntry{}, false
	}
	return t.Committed(tp)
}

// isOpen says whether an open transaction holds an offset of the partition.
func (r *replicated) isOpen(group string, tp TopicPartition) bool { return r.open[group][tp] > 0 }

// hasOffsets says whether the group has any offset, stored or pending.
func (r *replicated) hasOffsets(group string) bool {
	t := r.offsets[group]
	return t != nil && len(t.Newest()) > 0 || len(r.open[group]) > 0
}
