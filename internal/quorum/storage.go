package quorum

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"path/filepath"
	"time"

	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

const (
	// TopicName and TopicID are what the metadata log is called; it has partition 0 only.
	TopicName = "__cluster_metadata"

	// recentBytes bounds the entries kept in memory: the tail, which is what raft reads back at once.
	recentBytes = 4 << 20
	// scanBytes is how much of the log is read at a time.
	scanBytes = 1 << 20
)

// TopicID is the id of the metadata topic.
var TopicID = [16]byte{15: 1}

// storage is raft's storage: the metadata log, an ordinary log in which every batch is one entry, and the state
// file beside it. It implements raft.Storage; save and its siblings change it. It belongs to one goroutine, except
// that the log's views may be read by any.
//
// Invariant: runs describes exactly the batches in the log from state.base on. A voter's term is on disk before any
// batch of that term is, and nothing leaves it before both are.
type storage struct {
	fs     vfs.FS
	dir    string
	log    *log.Log
	logger *slog.Logger

	state state // as it is on disk, but for commit, which may be ahead of it
	runs  runs
	// lastTimestamp is that of the last batch, which an empty entry takes over.
	lastTimestamp int64
	// highWatermark is what the log was told last.
	highWatermark int64

	// recent holds the last entries of the log, recentSize their bytes.
	recent     []*pb.Entry
	recentSize int

	// changed is the index of the last change of the membership that was applied, 0 for none.
	changed uint64

	// waitForRoom waits a little while the disk is full; false says that it is not to be waited for. nil is never.
	waitForRoom func() bool
	// hasRoom is told that a wait is over; nil: nobody.
	hasRoom func()
}

// storageOptions say where the metadata log is and whose.
type storageOptions struct {
	fs        vfs.FS
	dir       string // of the partition, inside the metadata directory
	self      Identity
	logConfig log.Config
	now       func() time.Time // nil: time.Now
	logger    *slog.Logger
}

// LostEntriesError says that the metadata log ends before something this voter knows to be committed: its disk lost
// what had been synced. Going on could undo what the cluster was told.
type LostEntriesError struct {
	Dir             string
	EndOffset       int64
	LastIndex       uint64
	Commit          uint64
	SnapshotEndsAt  int64
	SnapshotAtIndex uint64
}

func (e *LostEntriesError) Error() string {
	return fmt.Sprintf("metadata log in %s ends at offset %d (index %d, 0 if below the snapshot), but index %d was committed (newest snapshot: offset %d, index %d): synced data is gone", e.Dir, e.EndOffset, e.LastIndex, e.Commit, e.SnapshotEndsAt, e.SnapshotAtIndex)
}

// openStorage reads back what a voter knew. ErrNotFormatted, *CorruptStateError, *ForeignDiskError and
// *LostEntriesError mean that it must not start.
func openStorage(o storageOptions) (*storage, error) {
	st, err := readState(o.fs, o.dir, o.self)
	if err != nil {
		return nil, err
	}
	if err := cleanSnapshots(o.fs, o.dir, &st); err != nil {
		return nil, err
	}
	l, err := log.Open(log.Options{
		FS: o.fs, Dir: o.dir, Topic: TopicName, Partition: 0, TopicID: TopicID, Config: o.logConfig,
		// Every append is synced before the next thing happens, so what a snapshot holds is on disk.
		RecoveryPoint: st.snapshot.EndOffset, LogStart: st.base.EndOffset, HighWatermark: -1, Now: o.now, Logger: o.logger,
	})
	if err != nil {
		return nil, err
	}
	s := &storage{fs: o.fs, dir: o.dir, log: l, logger: o.logger, state: st}
	if err := s.load(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return s, nil
}

// load makes log and state agree and builds the table of runs.
func (s *storage) load() error {
	end := s.endOffset()
	if end < s.state.snapshot.EndOffset && s.state.commit > s.state.snapshot.Index {
		return s.lost(end, 0)
	}
	if s.state.reset || end < s.state.snapshot.EndOffset {
		// Either a snapshot was being installed, or the log lost what the snapshot holds: it starts over there.
		if end > s.state.base.EndOffset || end < s.state.snapshot.EndOffset {
			s.logger.Warn("metadata log starts over at its snapshot", "from", end, "to", s.state.snapshot.EndOffset)
		}
		next := s.state
		next.base, next.reset = next.snapshot, true
		if err := s.startOver(next); err != nil {
			return err
		}
	}
	s.runs = newRuns(s.state.base)
	s.lastTimestamp = s.state.base.Timestamp
	if err := s.scan(); err != nil {
		return err
	}
	if _, ok := s.runs.indexBefore(s.state.snapshot.EndOffset); !ok {
		return fmt.Errorf("snapshot at offset %d does not end between two batches of the log", s.state.snapshot.EndOffset)
	}
	if at, _ := s.runs.indexBefore(s.state.snapshot.EndOffset); at != s.state.snapshot.Index {
		return fmt.Errorf("offset %d is after index %d, but the snapshot there is of index %d", s.state.snapshot.EndOffset, at, s.state.snapshot.Index)
	}
	if s.runs.lastIndex() < s.state.commit {
		return s.lost(s.runs.nextOffs, s.runs.lastIndex())
	}
	if s.runs.lastTerm() > s.state.term {
		return fmt.Errorf("metadata log has entries of epoch %d, the quorum state is of epoch %d", s.runs.lastTerm(), s.state.term)
	}
	// A process that was killed between writing or cutting and syncing left entries that a loss of power could still
	// take, or bring back. Raft answers for what is here from now on.
	return s.log.Flush()
}

func (s *storage) lost(endOffset int64, lastIndex uint64) error {
	return &LostEntriesError{
		Dir: s.dir, EndOffset: endOffset, LastIndex: lastIndex, Commit: s.state.commit,
		SnapshotEndsAt: s.state.snapshot.EndOffset, SnapshotAtIndex: s.state.snapshot.Index,
	}
}

// startOver empties the log and lets it begin at next.base. next.reset is on disk while that is under way, so that
// a crash in the middle does it again.
func (s *storage) startOver(next state) error {
	if err := writeState(s.fs, s.dir, &next); err != nil {
		return err
	}
	s.state = next
	if err := s.log.TruncateFullyAndStartAt(next.base.EndOffset, "a snapshot is ahead of the log"); err != nil {
		return err
	}
	if err := s.log.Flush(); err != nil {
		return err
	}
	next.reset = false
	if err := writeState(s.fs, s.dir, &next); err != nil {
		return err
	}
	s.state = next
	s.runs = newRuns(next.base)
	s.lastTimestamp = next.base.Timestamp
	s.recent, s.recentSize = nil, 0
	return nil
}

func (s *storage) endOffset() int64 {
	view := s.log.View()
	defer view.Release()
	return view.EndOffset
}

// gapError says that no batch begins at an offset inside the metadata log, which has no gaps.
type gapError struct{ offset int64 }

func (e *gapError) Error() string {
	return fmt.Sprintf("no batch of the metadata log begins at offset %d", e.offset)
}

// scan reads the headers of all batches into the table of runs. A crash in an append that rolled may have lost the end
// of a segment but not the next one; nothing of such an append was ever acknowledged, and it is dropped.
func (s *storage) scan() error {
	err := s.scanBatches()
	var gap *gapError
	if errors.As(err, &gap) {
		return s.log.TruncateTo(gap.offset, "gap left by a crash")
	}
	return err
}

func (s *storage) scanBatches() error {
	return s.batches(s.state.base.EndOffset, math.MaxInt64, scanBytes, func(b record.Batch) (bool, error) {
		if uint64(b.PartitionLeaderEpoch()) < s.runs.lastTerm() {
			return false, fmt.Errorf("batch at offset %d of epoch %d follows epoch %d", b.BaseOffset(), b.PartitionLeaderEpoch(), s.runs.lastTerm())
		}
		s.runs.append(uint64(b.PartitionLeaderEpoch()), int64(b.LastOffsetDelta())+1)
		s.lastTimestamp = b.MaxTimestamp()
		return true, nil
	})
}

// batches calls f for each batch from offset from, which begins one, up to offset to, until f says stop. The batch
// is f's only during the call unless it copies it.
func (s *storage) batches(from, to int64, chunk int, f func(record.Batch) (more bool, err error)) error {
	view := s.log.View()
	defer view.Release()
	to = min(to, view.EndOffset)
	for from < to {
		data, err := view.Read(from, to, chunk, true)
		if err != nil {
			return err
		}
		raw, err := readData(data)
		if err != nil {
			return err
		}
		start := from
		for len(raw) >= record.HeaderSize {
			b := record.Batch(raw)
			size := b.Length()
			if size < record.HeaderSize || size > len(raw) {
				break
			}
			b, raw = b[:size:size], raw[size:]
			if b.NextOffset() <= from {
				continue
			}
			if b.BaseOffset() != from {
				return &gapError{from}
			}
			from = b.NextOffset()
			more, err := f(b)
			if err != nil || !more {
				return err
			}
			if from >= to {
				return nil
			}
		}
		if from == start {
			return &gapError{from}
		}
	}
	return nil
}

// readData copies the bytes a view's read found.
func readData(data log.Data) ([]byte, error) {
	if data.Length == 0 {
		return nil, nil
	}
	raw := make([]byte, data.Length)
	if n, err := data.File.ReadAt(raw, data.Position); n < len(raw) {
		return nil, errors.Join(err, io.ErrUnexpectedEOF)
	}
	return raw, nil
}

// InitialState is raft's hard state and the membership as of the newest snapshot.
func (s *storage) InitialState() (*pb.HardState, *pb.ConfState, error) {
	hard := &pb.HardState{Term: new(s.state.term), Vote: new(s.state.vote), Commit: new(s.state.commit)}
	return hard, proto.Clone(s.state.membership).(*pb.ConfState), nil
}

// FirstIndex is the index of the first entry the log retains, or would.
func (s *storage) FirstIndex() (uint64, error) { return s.state.base.Index + 1, nil }

// LastIndex is the index of the last entry.
func (s *storage) LastIndex() (uint64, error) { return s.runs.lastIndex(), nil }

// Term is the term of an entry, also of the one before the first.
func (s *storage) Term(index uint64) (uint64, error) {
	if term, ok := s.runs.term(index); ok {
		return term, nil
	}
	if index < s.state.base.Index {
		return 0, raft.ErrCompacted
	}
	return 0, raft.ErrUnavailable
}

// Entries reads the entries in [lo, hi), as many as fit into maxSize but at least one.
func (s *storage) Entries(lo, hi, maxSize uint64) ([]*pb.Entry, error) {
	if lo <= s.state.base.Index {
		return nil, raft.ErrCompacted
	}
	if hi > s.runs.lastIndex()+1 || lo >= hi {
		return nil, raft.ErrUnavailable
	}
	var found []*pb.Entry
	size := uint64(0)
	take := func(e *pb.Entry) bool {
		size += uint64(proto.Size(e))
		if len(found) > 0 && size > maxSize {
			return false
		}
		found = append(found, e)
		return true
	}
	if first := s.firstRecent(); lo >= first {
		for _, e := range s.recent[lo-first : hi-first] {
			if !take(e) {
				break
			}
		}
		return found, nil
	}
	from, _ := s.runs.offset(lo)
	to, _ := s.runs.offset(hi)
	index := lo
	err := s.batches(from, to, int(min(maxSize, scanBytes)), func(b record.Batch) (bool, error) {
		e, err := decodeEntry(b, index)
		if err != nil {
			return false, err
		}
		index++
		return take(e), nil
	})
	return found, err
}

func (s *storage) firstRecent() uint64 { return s.runs.next - uint64(len(s.recent)) }

// Snapshot describes the newest snapshot. Its data is what install needs beside the file, which who receives it
// fetches.
//
// One from before the last change of the membership is none: a member that was added since would not find itself in it.
// The next is being made then.
func (s *storage) Snapshot() (*pb.Snapshot, error) {
	if s.state.snapshot.Index < s.changed {
		return nil, raft.ErrSnapshotTemporarilyUnavailable
	}
	data, err := appendMembership(appendPosition(nil, s.state.snapshot), s.state.membership, s.state.voters)
	if err != nil {
		return nil, err
	}
	return &pb.Snapshot{Data: data, Metadata: &pb.SnapshotMetadata{
		ConfState: proto.Clone(s.state.membership).(*pb.ConfState),
		Index:     new(s.state.snapshot.Index),
		Term:      new(s.state.snapshot.Term),
	}}, nil
}

// save makes raft's hard state and new entries durable. Entries replace whatever the log has from the first one's
// index on.
func (s *storage) save(hard *pb.HardState, entries []*pb.Entry) error {
	if hard != nil && !raft.IsEmptyHardState(hard) {
		// What is committed by now may lie in entries that are not on disk yet.
		commit := hard.GetCommit()
		if len(entries) > 0 {
			commit = min(commit, entries[0].GetIndex()-1)
		}
		commit = max(s.state.commit, min(commit, s.runs.lastIndex()))
		next := s.state
		next.term, next.vote, next.commit = hard.GetTerm(), hard.GetVote(), commit
		if next.term != s.state.term || next.vote != s.state.vote && !mutantVoteUnwritten {
			if err := s.writeState(&next); err != nil {
				return err
			}
		}
		s.state = next
	}
	if len(entries) == 0 {
		return nil
	}
	if err := s.cut(entries[0].GetIndex()); err != nil {
		return err
	}
	if err := s.untilRoom(func() error { return s.append(entries) }); err != nil {
		return err
	}
	if !mutantLogUnsynced {
		if err := s.log.Flush(); err != nil {
			return err
		}
	}
	if hard != nil && !raft.IsEmptyHardState(hard) {
		s.state.commit = max(s.state.commit, min(hard.GetCommit(), s.runs.lastIndex()))
	}
	return nil
}

// untilRoom does f again while it fails because the disk is full, which has changed nothing. Then nothing here goes on:
// what waits is not answered, and what is running goes on under the cluster's last state.
func (s *storage) untilRoom(f func() error) error {
	for told := false; ; told = true {
		err := f()
		if !log.IsFull(err) || s.waitForRoom == nil || s.log.Err() != nil {
			if told && s.hasRoom != nil {
				s.hasRoom()
			}
			return err
		}
		if !s.waitForRoom() {
			return err
		}
		if !told {
			s.logger.Error("the disk is full: the metadata log waits until there is room", "dir", s.dir, "cause", err)
		}
	}
}

func (s *storage) writeState(next *state) error {
	return s.untilRoom(func() error { return writeState(s.fs, s.dir, next) })
}

// cut drops the entries from index on, which another leader replaced before they were committed.
func (s *storage) cut(index uint64) error {
	if index == s.runs.next {
		return nil
	}
	if index <= s.state.commit || index > s.runs.next {
		return fmt.Errorf("raft replaces index %d, but the log ends at %d and %d is committed", index, s.runs.lastIndex(), s.state.commit)
	}
	offset, _ := s.runs.offset(index)
	if err := s.log.TruncateTo(offset, "raft entries of a newer epoch"); err != nil {
		return err
	}
	if keep := int(index) - int(s.firstRecent()); keep > 0 {
		s.recent = s.recent[:keep]
	} else {
		s.recent = nil
	}
	s.recentSize = 0
	for _, e := range s.recent {
		s.recentSize += len(e.GetData())
	}
	s.runs.truncate(index)
	return s.findLastTimestamp()
}

// findLastTimestamp is for after a cut. Control batches repeat the timestamp before them, so any last batch will do.
func (s *storage) findLastTimestamp() error {
	s.lastTimestamp = s.state.base.Timestamp
	last := s.runs.lastIndex()
	if last == s.state.base.Index {
		return nil
	}
	offset, _ := s.runs.offset(last)
	return s.batches(offset, s.runs.nextOffs, record.HeaderSize, func(b record.Batch) (bool, error) {
		s.lastTimestamp = b.MaxTimestamp()
		return false, nil
	})
}

// append writes entries in one go.
func (s *storage) append(entries []*pb.Entry) error {
	var raw []byte
	place := position{Index: s.runs.lastIndex(), Term: s.runs.lastTerm(), EndOffset: s.runs.nextOffs, Timestamp: s.lastTimestamp}
	appended := make([]position, 0, len(entries))
	for _, e := range entries {
		if e.GetIndex() != place.Index+1 || e.GetTerm() < place.Term || e.GetTerm() > math.MaxInt32 {
			return fmt.Errorf("entry (index %d, term %d) cannot follow (index %d, term %d)", e.GetIndex(), e.GetTerm(), place.Index, place.Term)
		}
		batch, err := encodeEntry(e, place.EndOffset, place.Timestamp)
		if err != nil {
			return err
		}
		place = follow(place, batch, e.GetTerm())
		raw = append(raw, batch...)
		appended = append(appended, place)
	}
	if _, err := s.log.AppendAsFollower(raw, int32(place.Term)); err != nil {
		return err
	}
	if end := s.endOffset(); end != place.EndOffset {
		return fmt.Errorf("metadata log ends at %d after an append that ends at %d", end, place.EndOffset)
	}
	for i, p := range appended {
		s.runs.append(p.Term, p.EndOffset-s.runs.nextOffs)
		s.recent = append(s.recent, entries[i])
		s.recentSize += len(entries[i].GetData())
	}
	s.lastTimestamp = place.Timestamp
	for s.recentSize > recentBytes && len(s.recent) > 1 {
		s.recentSize -= len(s.recent[0].GetData())
		s.recent[0] = nil
		s.recent = s.recent[1:]
	}
	return nil
}

// follow is the place after batch, an entry of that term, if the batch begins at p.
func follow(p position, batch record.Batch, term uint64) position {
	return position{Index: p.Index + 1, Term: term, EndOffset: batch.NextOffset(), Timestamp: batch.MaxTimestamp()}
}

// persistCommit writes down how far is committed, which save leaves to the next change of term: what is read back
// after a restart need not be committed a second time.
func (s *storage) persistCommit() error { return writeState(s.fs, s.dir, &s.state) }

// snapshotTaken makes place, whose file is complete, the newest snapshot.
func (s *storage) snapshotTaken(place position, membership *pb.ConfState, voters []Voter) error {
	next := s.state
	next.snapshot, next.membership, next.voters = place, membership, voters
	if err := s.writeState(&next); err != nil {
		return err
	}
	s.state = next
	return nil
}

// startAt moves the log's start up to base, the end of a retained snapshot: first on record, then in the log.
func (s *storage) startAt(base position) error {
	next := s.state
	next.base = base
	if err := s.writeState(&next); err != nil {
		return err
	}
	s.state = next
	s.runs.trim(base)
	if n := s.runs.next - 1 - base.Index; uint64(len(s.recent)) > n {
		s.recent = s.recent[uint64(len(s.recent))-n:]
	}
	// A snapshot ends at or below what is committed, which the log may not have been told yet.
	s.setHighWatermark(base.EndOffset)
	return s.log.AdvanceLogStart(base.EndOffset, "snapshot")
}

// setHighWatermark tells the log how far is committed. It never falls.
func (s *storage) setHighWatermark(hw int64) {
	if hw > s.highWatermark {
		s.highWatermark = hw
		s.log.SetHighWatermark(hw)
	}
}

// place is the position after the entry that ends at offset, which must be between two entries.
func (s *storage) place(offset int64) (position, error) {
	if offset == s.state.base.EndOffset {
		return s.state.base, nil
	}
	index, ok := s.runs.indexBefore(offset)
	if !ok {
		return position{}, fmt.Errorf("offset %d is not between two batches of the metadata log", offset)
	}
	p := position{Index: index, EndOffset: offset}
	p.Term, _ = s.runs.term(index)
	begin, _ := s.runs.offset(index)
	err := s.batches(begin, offset, record.HeaderSize, func(b record.Batch) (bool, error) {
		p.Timestamp = b.MaxTimestamp()
		return false, nil
	})
	return p, err
}

func (s *storage) close() error { return errors.Join(s.persistCommit(), s.log.Close()) }

// partitionDir is the directory of the metadata log inside a metadata directory.
func partitionDir(metadataDir string) string { return filepath.Join(metadataDir, TopicName+"-0") }
