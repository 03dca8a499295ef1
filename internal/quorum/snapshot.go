package quorum

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

const (
	snapshotSuffix = ".checkpoint"
	partSuffix     = ".checkpoint.part"
	deletedSuffix  = ".checkpoint.deleted"

	// snapshotBatchRecords and snapshotBatchBytes bound the data batches of a snapshot.
	snapshotBatchRecords = 1024
	snapshotBatchBytes   = 1 << 20
)

// SnapshotID names a snapshot by where it ends: EndOffset is exclusive, Epoch that of the last record below it. The
// zero id is the bootstrap checkpoint, which is no snapshot for anybody who fetches.
type SnapshotID struct {
	EndOffset int64
	Epoch     int32
}

func (id SnapshotID) String() string { return fmt.Sprintf("%020d-%010d", id.EndOffset, id.Epoch) }

func (id SnapshotID) file() string { return id.String() + snapshotSuffix }

func (p position) snapshotID() SnapshotID {
	return SnapshotID{EndOffset: p.EndOffset, Epoch: int32(p.Term)}
}

func compareSnapshots(a, b SnapshotID) int {
	return cmp.Or(cmp.Compare(a.EndOffset, b.EndOffset), cmp.Compare(a.Epoch, b.Epoch))
}

// parseSnapshotName reads the id out of the name of a finished snapshot.
func parseSnapshotName(name string) (SnapshotID, bool) {
	stem, ok := strings.CutSuffix(name, snapshotSuffix)
	if !ok || len(stem) != 31 || stem[20] != '-' {
		return SnapshotID{}, false
	}
	offset, err1 := strconv.ParseInt(stem[:20], 10, 64)
	epoch, err2 := strconv.ParseInt(stem[21:], 10, 32)
	if err1 != nil || err2 != nil || offset < 0 || epoch < 0 {
		return SnapshotID{}, false
	}
	return SnapshotID{EndOffset: offset, Epoch: int32(epoch)}, true
}

// listSnapshots is the finished snapshots in dir, oldest first, without the bootstrap checkpoint.
func listSnapshots(fsys vfs.FS, dir string) ([]SnapshotID, error) {
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var found []SnapshotID
	for _, e := range entries {
		if id, ok := parseSnapshotName(e.Name()); ok && id != (SnapshotID{}) {
			found = append(found, id)
		}
	}
	slices.SortFunc(found, compareSnapshots)
	return found, nil
}

// cleanSnapshots removes what a stopped process left behind: half snapshots, retired ones, those below the log's
// start, and one that was finished but never recorded (the log still holds all of it). A recorded snapshot that is
// not there is an error.
func cleanSnapshots(fsys vfs.FS, dir string, st *state) error {
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return err
	}
	newest, present := st.snapshot.snapshotID(), false
	for _, e := range entries {
		id, finished := parseSnapshotName(e.Name())
		leftover := strings.HasSuffix(e.Name(), partSuffix) || strings.HasSuffix(e.Name(), deletedSuffix)
		present = present || finished && id == newest
		stale := finished && id != (SnapshotID{}) && id != newest && (id.EndOffset < st.base.EndOffset || compareSnapshots(id, newest) > 0)
		if leftover || stale {
			if err := fsys.Remove(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if newest.EndOffset > 0 && !present {
		return &CorruptStateError{File: filepath.Join(dir, newest.file()), Err: fs.ErrNotExist}
	}
	return fsys.SyncDir(dir)
}

// writeSnapshot writes a snapshot with these records, each framed, and makes it durable under its name. timestamp is
// that of the last batch it contains, in milliseconds; head follows the header in its batch. After an error or a crash
// there is no snapshot of that name, or the whole.
func writeSnapshot(fsys vfs.FS, dir string, id SnapshotID, timestamp int64, records iter.Seq[[]byte], head ...metadata.ControlRecord) error {
	return writePart(fsys, dir, id, func(write func([]byte) error) error {
		offset := int64(0)
		put := func(b record.Batch) error {
			b.SetBaseOffset(offset)
			b.SetPartitionLeaderEpoch(id.Epoch)
			offset = b.NextOffset()
			return write(b)
		}
		header := []record.ControlRecord{controlRecord(&metadata.SnapshotHeader{LastContainedLogTimestamp: timestamp})}
		for _, rec := range head {
			header = append(header, controlRecord(rec))
		}
		if err := put(record.NewControlBatch(timestamp, header...)); err != nil {
			return err
		}
		b := record.NewBuilder(record.BuilderOptions{})
		flush := func() error {
			if b.Count() == 0 {
				return nil
			}
			batch := b.Bytes()
			b = record.NewBuilder(record.BuilderOptions{})
			return put(batch)
		}
		for r := range records {
			if b.Count() == snapshotBatchRecords || b.Count() > 0 && b.SizeWith(nil, r, nil) > snapshotBatchBytes {
				if err := flush(); err != nil {
					return err
				}
			}
			if err := b.Append(timestamp, nil, r, nil); err != nil {
				return err
			}
		}
		if err := flush(); err != nil {
			return err
		}
		return put(record.NewControlBatch(timestamp, controlRecord(&metadata.SnapshotFooter{})))
	})
}

// writePart lets fill write the content of a snapshot into a half snapshot and gives that its name when it is durable.
func writePart(fsys vfs.FS, dir string, id SnapshotID, fill func(write func([]byte) error) error) (err error) {
	part := filepath.Join(dir, fmt.Sprintf("%s-%d%s", id, rand.Uint64(), partSuffix))
	// Read-only from the start: this handle may write, nobody may open another that does.
	f, err := fsys.OpenFile(part, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), fsys.Remove(part))
		}
	}()
	at := int64(0)
	err = fill(func(b []byte) error {
		n, err := f.WriteAt(b, at)
		at += int64(n)
		return err
	})
	if err != nil {
		return err
	}
	vfs.Failpoint("metadata-snapshot-part")
	if err := f.Sync(); err != nil {
		return err
	}
	if err := fsys.Rename(part, filepath.Join(dir, id.file())); err != nil {
		return err
	}
	vfs.Failpoint("metadata-snapshot-renamed")
	if err := fsys.SyncDir(dir); err != nil {
		return err
	}
	return f.Close()
}

// SnapshotError says that a file is not a whole snapshot.
type SnapshotError struct {
	File string
	Err  error
}

func (e *SnapshotError) Error() string { return fmt.Sprintf("snapshot %s: %v", e.File, e.Err) }
func (e *SnapshotError) Unwrap() error { return e.Err }

// readSnapshot reads a snapshot whole and checks it as it goes: every CRC, the header first, the footer last. f gets
// the value of each data record in order, valid during the call.
func readSnapshot(fsys vfs.FS, name string, f func(value []byte) error) error {
	return readSnapshotWith(fsys, name, f, func(metadata.ControlRecord) {})
}

// readSnapshotWith is readSnapshot that hears of the control records too, those of unknown types excepted.
func readSnapshotWith(fsys vfs.FS, name string, f func(value []byte) error, control func(metadata.ControlRecord)) error {
	data, err := vfs.ReadFile(fsys, name)
	if err != nil {
		return err
	}
	if err := walkSnapshotWith(data, f, control); err != nil {
		return &SnapshotError{File: name, Err: err}
	}
	return nil
}

func walkSnapshot(data []byte, f func(value []byte) error) error {
	return walkSnapshotWith(data, f, func(metadata.ControlRecord) {})
}

func walkSnapshotWith(data []byte, f func(value []byte) error, control func(metadata.ControlRecord)) error {
	next, footer := int64(0), false
	for len(data) > 0 {
		if len(data) < record.HeaderSize {
			return record.ErrShort
		}
		size := record.Batch(data).Length()
		if size < record.HeaderSize || size > len(data) {
			return record.ErrShort
		}
		b := record.Batch(data[:size:size])
		data = data[size:]
		if err := b.VerifyCRC(); err != nil {
			return err
		}
		if footer {
			return errors.New("a batch follows the footer")
		}
		if b.BaseOffset() != next {
			return fmt.Errorf("batch at offset %d where %d was expected", b.BaseOffset(), next)
		}
		if err := walkSnapshotBatch(b, next == 0, &footer, f, control); err != nil {
			return err
		}
		next = b.NextOffset()
	}
	if !footer {
		return errors.New("no footer")
	}
	return nil
}

func walkSnapshotBatch(b record.Batch, first bool, footer *bool, f func(value []byte) error, control func(metadata.ControlRecord)) error {
	it := record.NewRecordIterator(b, record.Limits{})
	defer it.Close()
	for i := 0; it.Next(); i++ {
		if !b.IsControl() {
			if first {
				return errors.New("no header")
			}
			if err := f(it.Record().Value); err != nil {
				return err
			}
			continue
		}
		kind, err := record.ParseControlKey(it.Record().Key)
		if err != nil {
			return err
		}
		if first && i == 0 != (kind == record.SnapshotHeader) {
			return fmt.Errorf("control record %v at the start", kind)
		}
		*footer = *footer || kind == record.SnapshotFooter
		rec, err := metadata.DecodeControl(metadata.ControlType(kind), it.Record().Value)
		var unknown *metadata.UnknownControlTypeError
		if errors.As(err, &unknown) {
			continue
		}
		if err != nil {
			return err
		}
		control(rec)
	}
	return it.Err()
}

// receivedSnapshot is a leader's snapshot taken apart.
type receivedSnapshot struct {
	place  position
	voters []Voter
	file   []byte // empty if the leader's log starts at offset 0
}

// snapshotPlace is where the snapshot in a message of raft's ends. The message brings its membership only; the file,
// if place.EndOffset is above 0, is fetched from the sender and appended to the data before raft is given the message.
func snapshotPlace(m *pb.Message) (place position, err error) {
	f := &fields{b: m.GetSnapshot().GetData()}
	place = f.position()
	return place, f.err
}

// checkSnapshot takes a snapshot from another voter apart and checks all of it.
func checkSnapshot(snapshot *pb.Snapshot) (receivedSnapshot, error) {
	f := &fields{b: snapshot.GetData()}
	r := receivedSnapshot{place: f.position()}
	_, r.voters = f.membership()
	r.file = f.b
	m := snapshot.GetMetadata()
	switch {
	case f.err != nil:
		return r, f.err
	case m.GetIndex() != r.place.Index || m.GetTerm() != r.place.Term || r.place.Term > math.MaxInt32 || r.place.EndOffset < 0:
		return r, fmt.Errorf("snapshot of index %d, term %d holds %+v", m.GetIndex(), m.GetTerm(), r.place)
	case r.place.EndOffset == 0:
		return r, nil
	}
	return r, walkSnapshot(r.file, func([]byte) error { return nil })
}

// install makes a leader's snapshot the whole of this storage: file, then state, then log, each durable before the
// next is touched.
func (s *storage) install(snapshot *pb.Snapshot, hard *pb.HardState) (position, []Voter, error) {
	r, err := checkSnapshot(snapshot)
	if err != nil {
		return position{}, nil, err
	}
	place, voters := r.place, r.voters
	if place.EndOffset > 0 {
		err := writePart(s.fs, s.dir, place.snapshotID(), func(write func([]byte) error) error { return write(r.file) })
		if err != nil {
			return position{}, nil, err
		}
	}
	next := s.state
	if hard != nil && hard.GetTerm() > 0 {
		next.term, next.vote = hard.GetTerm(), hard.GetVote()
	}
	next.commit = max(next.commit, place.Index)
	next.base, next.snapshot, next.reset = place, place, true
	next.membership, next.voters = proto.Clone(snapshot.GetMetadata().GetConfState()).(*pb.ConfState), voters
	if err := s.startOver(next); err != nil {
		return position{}, nil, err
	}
	return place, voters, nil
}
