package quorum

import (
	"bytes"
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
	pb "go.etcd.io/raft/v3/raftpb"
)

const kafkaLog = "../../test/reference/testdata/kafka-4.4.0/datadir/__cluster_metadata-0"

// M-005, M-010: a metadata log that Apache Kafka wrote replays to the image of the snapshot that Kafka took of it, and
// its bootstrap checkpoint says what our nodes begin with.
func TestM010_log_and_snapshot_of_kafka(t *testing.T) {
	t.Parallel()
	fs := vfs.OS()
	raw, err := vfs.ReadFile(fs, filepath.Join(kafkaLog, "00000000000000000000.log"))
	if err != nil {
		t.Fatal(err)
	}
	list, err := listSnapshots(fs, kafkaLog)
	if err != nil || len(list) == 0 {
		t.Fatal(list, err)
	}
	id := list[0]
	m := newMachine(newTestController(fs), nil, 0, quiet)
	for len(raw) >= record.HeaderSize && m.replayed < id.EndOffset {
		size := record.Batch(raw).Length()
		if size < record.HeaderSize || size > len(raw) {
			break // preallocated zeros
		}
		b := record.Batch(raw[:size])
		raw = raw[size:]
		if err := b.VerifyCRC(); err != nil {
			t.Fatal(err)
		}
		if err := m.replay(b); err != nil {
			t.Fatal(err)
		}
	}
	if m.replayed != id.EndOffset {
		t.Fatalf("log ends at %d, the snapshot at %d", m.replayed, id.EndOffset)
	}
	snapshot, err := readImage(fs, filepath.Join(kafkaLog, id.file()), position{EndOffset: id.EndOffset, Term: uint64(id.Epoch)})
	if err != nil {
		t.Fatal(err)
	}
	sameImage(t, m.controller.Image(), snapshot)

	// What we write of that image loads to the same image.
	mem := vfs.NewMem()
	values, err := snapshot.Encoded()
	if err != nil {
		t.Fatal(err)
	}
	if err := mem.MkdirAll(testDir, 0o755); err != nil {
		t.Fatal(err)
	}
	err = writeSnapshot(mem, testDir, id, 1700000000000, func(yield func([]byte) bool) {
		for _, v := range values {
			if !yield(v) {
				return
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	ours, err := readImage(mem, filepath.Join(testDir, id.file()), position{EndOffset: id.EndOffset, Term: uint64(id.Epoch)})
	if err != nil {
		t.Fatal(err)
	}
	sameImage(t, ours, snapshot)
	level, err := readBootstrap(fs, filepath.Dir(kafkaLog))
	if err != nil || level != metadata.LevelLatest {
		t.Errorf("Kafka's bootstrap checkpoint says level %d, %v", level, err)
	}
	if text, err := vfs.ReadFile(fs, filepath.Join(kafkaLog, quorumStateName)); err != nil {
		t.Error(err)
	} else if _, err := metadata.ParseQuorumState(text); err != nil {
		t.Error(err)
	}
}

// A leader's snapshot is taken over whole or not at all, whichever file operation is the last before a crash, and
// nothing of the log it replaces comes back, though that was longer.
func TestSnapshotInstallIsAtomic(t *testing.T) {
	t.Parallel()
	self := testVoter(1)
	// What the leader sends: a snapshot of index 6 in term 5.
	leader := vfs.NewMem()
	formatTest(t, leader, testVoter(2), testVoters(1, 2, 3))
	ls, err := openTest(leader, testVoter(2))
	if err != nil {
		t.Fatal(err)
	}
	saveEntries(t, ls, 5, mappingEntry{2, 5}, mappingEntry{3, 5}, mappingEntry{4, 5}, mappingEntry{5, 5}, mappingEntry{6, 5})
	ls.state.commit = 6
	at, err := ls.place(ls.runs.nextOffs)
	if err != nil {
		t.Fatal(err)
	}
	if err := writeSnapshot(leader, testDir, at.snapshotID(), at.Timestamp, func(func([]byte) bool) {}); err != nil {
		t.Fatal(err)
	}
	if err := ls.snapshotTaken(at, ls.state.membership, ls.state.voters); err != nil {
		t.Fatal(err)
	}
	snapshot, err := ls.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	message := &pb.Message{Type: pb.MsgSnap.Enum(), Snapshot: snapshot}
	if err := attachSnapshots(ls, []*pb.Message{message}); err != nil {
		t.Fatal(err)
	}
	hard := &pb.HardState{Term: new(uint64(5)), Vote: new(uint64(0)), Commit: new(uint64(6))}

	for skip := 0; ; skip++ {
		done := false
		for _, loss := range []vfs.Loss{vfs.LoseNothing, vfs.LoseUnsynced, vfs.LoseSome} {
			mem := vfs.NewMem()
			formatTest(t, mem, self, testVoters(1, 2, 3))
			disk := vfs.NewFault(mem)
			s, err := openTest(disk, self)
			if err != nil {
				t.Fatal(err)
			}
			// A longer log of an older leader, of which nothing is committed.
			var stale []mappingEntry
			for i := uint64(2); i < 12; i++ {
				stale = append(stale, mappingEntry{i, 3})
			}
			saveEntries(t, s, 3, stale...)
			disk.Add(vfs.Rule{Kind: vfs.OpAny, Skip: skip, Count: -1, Err: errPulled})
			_, _, err = s.install(message.GetSnapshot(), hard)
			if err != nil && !errors.Is(err, errPulled) {
				t.Fatal(err)
			}
			done = err == nil
			mem = mem.CrashClone(loss, uint64(skip))
			if s, err = openTest(mem, self); err != nil {
				t.Fatalf("crash at operation %d: %v", skip, err)
			}
			last, _ := s.LastIndex()
			term, _ := s.Term(last)
			first, _ := s.FirstIndex()
			switch {
			case first == 7 && last == 6 && term == 5 && s.state.term == 5 && s.endOffset() == at.EndOffset && !s.state.reset:
			case !done && first == 2 && last == 11 && term == 3 && s.state.term == 3:
			default:
				t.Errorf("crash at operation %d (installed: %v): indexes %d to %d, last of term %d, state of term %d, log ends at %d", skip, done, first, last, term, s.state.term, s.endOffset())
			}
			if first == 7 {
				a, _ := vfs.ReadFile(mem, filepath.Join(testDir, at.snapshotID().file()))
				b, _ := vfs.ReadFile(leader, filepath.Join(testDir, at.snapshotID().file()))
				if !bytes.Equal(a, b) {
					t.Errorf("crash at operation %d: the snapshot is not the leader's", skip)
				}
			}
			if err := s.close(); err != nil {
				t.Fatal(err)
			}
		}
		if done {
			return
		}
	}
}

// A snapshot that was damaged on its way is not taken over.
func TestSnapshotFromAnotherVoterIsChecked(t *testing.T) {
	t.Parallel()
	s := state{snapshot: position{Index: 9, Term: 2, EndOffset: 30}, membership: &pb.ConfState{Voters: []uint64{1}}, voters: testVoters(1)}
	data, err := appendMembership(appendPosition(nil, s.snapshot), s.membership, s.voters)
	if err != nil {
		t.Fatal(err)
	}
	mem := vfs.NewMem()
	if err := mem.MkdirAll(testDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := writeSnapshot(mem, testDir, s.snapshot.snapshotID(), 5, func(yield func([]byte) bool) { yield([]byte("record")) }); err != nil {
		t.Fatal(err)
	}
	file, err := vfs.ReadFile(mem, filepath.Join(testDir, s.snapshot.snapshotID().file()))
	if err != nil {
		t.Fatal(err)
	}
	whole := append(data, file...)
	check := func(data []byte) error {
		_, err := checkSnapshot(&pb.Snapshot{Data: data, Metadata: &pb.SnapshotMetadata{Index: new(uint64(9)), Term: new(uint64(2)), ConfState: s.membership}})
		return err
	}
	if err := check(whole); err != nil {
		t.Fatal(err)
	}
	for cut := range whole {
		if check(whole[:cut]) == nil {
			t.Errorf("cut at %d of %d passes", cut, len(whole))
		}
	}
}

// A snapshot that was finished but not recorded when the process was killed goes: the log, which still holds all of it,
// may not reach that far after the crash.
func TestUnrecordedSnapshotGoes(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	formatTest(t, fs, testVoter(1), testVoters(1))
	id := SnapshotID{EndOffset: 5, Epoch: 1}
	if err := writeSnapshot(fs, testDir, id, 0, func(func([]byte) bool) {}); err != nil {
		t.Fatal(err)
	}
	s, err := openTest(fs, testVoter(1))
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if list, err := listSnapshots(fs, testDir); err != nil || len(list) != 0 {
		t.Errorf("%v %v", list, err)
	}
}

// Whichever byte of a snapshot is damaged, it is not taken for one; only the epoch of a batch, which its checksum leaves
// out and nobody reads, may be anything.
func TestDamagedSnapshotIsRefused(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	if err := fs.MkdirAll(testDir, 0o755); err != nil {
		t.Fatal(err)
	}
	id := SnapshotID{EndOffset: 5, Epoch: 1}
	if err := writeSnapshot(fs, testDir, id, 7, slices.Values([][]byte{[]byte("one"), []byte("two")})); err != nil {
		t.Fatal(err)
	}
	data, err := vfs.ReadFile(fs, filepath.Join(testDir, id.file()))
	if err != nil {
		t.Fatal(err)
	}
	outside := map[int]bool{}
	for at := 0; at < len(data); at += record.Batch(data[at:]).Length() {
		for i := range 4 {
			outside[at+12+i] = true
		}
	}
	for i := range data {
		damaged := slices.Clone(data)
		damaged[i] ^= 0x10
		if err := walkSnapshot(damaged, func([]byte) error { return nil }); err == nil && !outside[i] {
			t.Errorf("byte %d of %d: not noticed", i, len(data))
		}
	}
	for n := range data {
		if walkSnapshot(data[:n], func([]byte) error { return nil }) == nil {
			t.Errorf("the first %d bytes of %d pass for a snapshot", n, len(data))
		}
	}
}
