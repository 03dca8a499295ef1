package quorum

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func testVoter(node int32) Voter {
	return Voter{
		VoterID: node, VoterDirectoryID: metadata.UUID{0: 0xd1, 15: byte(node)},
		Endpoints:           []metadata.VoterEndpoint{{Name: "CONTROLLER", Host: fmt.Sprintf("c%d", node), Port: uint16(9000 + node)}},
		KRaftVersionFeature: metadata.VersionRange{Max: 1},
	}
}

func testVoters(nodes ...int32) []Voter {
	var voters []Voter
	for _, n := range nodes {
		voters = append(voters, testVoter(n))
	}
	return voters
}

func identityOf(v Voter) Identity {
	return Identity{ClusterID: "test-cluster", NodeID: v.VoterID, DirectoryID: v.VoterDirectoryID}
}

const testDir = "/meta/__cluster_metadata-0"

// formatTest gives a disk the quorum state of one of voters.
func formatTest(t interface{ Fatal(...any) }, fs vfs.FS, self Voter, voters []Voter) {
	if err := fs.MkdirAll(testDir, 0o755); err != nil {
		t.Fatal(err)
	}
	st := initialState(identityOf(self), voters)
	if err := writeState(fs, testDir, &st); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"/", "/meta"} {
		if err := fs.SyncDir(dir); err != nil {
			t.Fatal(err)
		}
	}
}

func openTest(fs vfs.FS, self Voter) (*storage, error) {
	c := log.DefaultConfig()
	c.Cleanup = log.CleanupNone
	c.SegmentBytes = 2048
	return openStorage(storageOptions{fs: fs, dir: testDir, self: identityOf(self), logConfig: c, logger: quiet})
}

func drawEntry(t *rapid.T, index, term uint64) *pb.Entry {
	e := &pb.Entry{Index: new(index), Term: new(term), Type: pb.EntryNormal.Enum()}
	switch rapid.SampledFrom([]string{"data", "data", "data", "empty", "v1", "v2", "voters", "leave"}).Draw(t, "kind") {
	case "data":
		b := record.NewBuilder(record.BuilderOptions{})
		for range rapid.IntRange(1, 4).Draw(t, "records") {
			value := rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "value")
			if err := b.Append(rapid.Int64Range(0, 1<<41).Draw(t, "timestamp"), nil, value, nil); err != nil {
				t.Fatal(err)
			}
		}
		e.Data = b.Bytes()
	case "v1":
		e.Type = pb.EntryConfChange.Enum()
		e.Data = marshal(t, &pb.ConfChange{
			Type: pb.ConfChangeAddLearnerNode.Enum(), NodeId: new(rapid.Uint64().Draw(t, "node")), Context: rapid.SliceOfN(rapid.Byte(), 0, 9).Draw(t, "context"),
		})
	case "v2", "voters":
		c := &pb.ConfChangeV2{Transition: pb.ConfChangeTransitionJointImplicit.Enum()}
		for range rapid.IntRange(0, 3).Draw(t, "changes") {
			c.Changes = append(c.Changes, &pb.ConfChangeSingle{Type: pb.ConfChangeAddNode.Enum(), NodeId: new(rapid.Uint64().Draw(t, "node"))})
		}
		if rapid.Bool().Draw(t, "named") {
			c.Context = encodeVoters(testVoters(1, int32(rapid.IntRange(2, 9).Draw(t, "voter"))))
		}
		e.Type = pb.EntryConfChangeV2.Enum()
		e.Data = marshal(t, c)
	case "leave":
		e.Type = pb.EntryConfChangeV2.Enum()
	}
	return e
}

func marshal(t interface{ Fatal(...any) }, m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func sameEntry(a, b *pb.Entry) bool {
	return a.GetIndex() == b.GetIndex() && a.GetTerm() == b.GetTerm() && a.GetType() == b.GetType() && bytes.Equal(a.GetData(), b.GetData())
}

// mappingModel is what a storage should hold: all entries ever, as they stand now, and how much of them.
type mappingModel struct {
	entries  []*pb.Entry // entries[i] has index i+2
	ends     []position  // after entries[i]
	term     uint64
	commit   uint64
	base     position
	snapshot position
}

func (m *mappingModel) last() uint64 { return uint64(len(m.entries)) + 1 }

func (m *mappingModel) place(index uint64) position {
	if index == 1 {
		return position{Index: 1}
	}
	return m.ends[index-2]
}

// replace puts entries behind the ones before the first's index, working out their places on its own.
func (m *mappingModel) replace(t *rapid.T, entries []*pb.Entry) {
	keep := entries[0].GetIndex() - 2
	m.entries, m.ends = append([]*pb.Entry(nil), m.entries[:keep]...), append([]position(nil), m.ends[:keep]...)
	for _, e := range entries {
		p := m.place(m.last())
		p.Index, p.Term = e.GetIndex(), e.GetTerm()
		p.EndOffset++
		if e.GetType() == pb.EntryNormal && len(e.GetData()) > 0 {
			b := record.Batch(e.GetData())
			p.EndOffset += int64(b.Count()) - 1
			p.Timestamp = b.MaxTimestamp()
		}
		m.entries, m.ends = append(m.entries, e), append(m.ends, p)
	}
}

// holds says whether the log ends with exactly these entries.
func (m *mappingModel) holds(s *storage, entries []*pb.Entry) bool {
	got, err := s.Entries(entries[0].GetIndex(), s.runs.lastIndex()+1, 1<<30)
	return err == nil && slices.EqualFunc(got, entries, sameEntry)
}

// check compares all that raft can ask a storage with the model.
func (m *mappingModel) check(t *rapid.T, s *storage) {
	first, _ := s.FirstIndex()
	last, _ := s.LastIndex()
	if first != m.base.Index+1 || last != m.last() {
		t.Fatalf("storage holds indexes %d to %d, want %d to %d", first, last, m.base.Index+1, m.last())
	}
	for i := m.base.Index; i <= last; i++ {
		if term, err := s.Term(i); err != nil || term != m.place(i).Term {
			t.Fatalf("term of %d is %d (%v), want %d", i, term, err, m.place(i).Term)
		}
	}
	for _, drop := range []bool{false, true} {
		if drop { // read the log itself, not what is kept of it in memory
			s.recent, s.recentSize = nil, 0
		}
		if first > last {
			continue
		}
		lo := rapid.Uint64Range(first, last).Draw(t, "lo")
		for next := lo; next <= last; {
			limit := rapid.SampledFrom([]uint64{0, 100, 1 << 20}).Draw(t, "limit")
			got, err := s.Entries(next, last+1, limit)
			if err != nil || len(got) == 0 {
				t.Fatalf("entries from %d to %d: %d of them, %v", next, last, len(got), err)
			}
			for _, e := range got {
				if want := m.entries[next-2]; !sameEntry(e, want) {
					t.Fatalf("entry %d came back as %v, was %v", next, e, want)
				}
				next++
			}
		}
	}
	if end := s.endOffset(); end != m.place(m.last()).EndOffset {
		t.Fatalf("log ends at %d, want %d", end, m.place(m.last()).EndOffset)
	}
}

// logBytes is the log from its start, as raw batches.
func logBytes(t interface{ Fatal(...any) }, s *storage, from int64) []byte {
	var all []byte
	err := s.batches(from, 1<<62, 1<<20, func(b record.Batch) (bool, error) {
		all = append(all, b...)
		return true, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

var errPulled = errors.New("plug pulled")

// Whatever raft stores comes back byte for byte, at offsets that follow from the entries alone: through random data,
// empty entries and membership changes in mid-term, conflicts that cut the log, snapshots, and a crash at any file
// operation with any loss of what was not synced.
func TestRaftMappingProperty(t *testing.T) {
	t.Parallel()
	self := testVoter(1)
	rapid.Check(t, func(t *rapid.T) {
		mem := vfs.NewMem()
		formatTest(t, mem, self, testVoters(1, 2, 3))
		disk := vfs.NewFault(mem)
		s, err := openTest(disk, self)
		if err != nil {
			t.Fatal(err)
		}
		m := &mappingModel{base: position{Index: 1}, snapshot: position{Index: 1}, commit: 1}

		// attempt runs f, perhaps with the plug pulled at one of its file operations. It says whether f was done; if
		// not, the storage was opened again on what the crash left.
		attempt := func(t *rapid.T, f func() error) bool {
			pull := rapid.IntRange(-8, 12).Draw(t, "pull the plug at")
			if pull >= 0 {
				disk.Add(vfs.Rule{Kind: vfs.OpAny, Skip: pull, Count: -1, Err: errPulled, Short: rapid.IntRange(0, 80).Draw(t, "short")})
			}
			err := f()
			if err != nil && !errors.Is(err, errPulled) {
				t.Fatalf("failed for another reason than the fault: %v", err)
			}
			if err == nil && pull < 0 {
				return true
			}
			loss := rapid.SampledFrom([]vfs.Loss{vfs.LoseNothing, vfs.LoseUnsynced, vfs.LoseSome}).Draw(t, "loss")
			if loss != vfs.LoseNothing { // else what is not synced stays so: the next loss may take it
				mem = mem.CrashClone(loss, rapid.Uint64().Draw(t, "seed"))
			}
			disk = vfs.NewFault(mem)
			opened, openErr := openTest(disk, self)
			if openErr != nil {
				t.Fatalf("open after a crash: %v", openErr)
			}
			s = opened
			return err == nil
		}
		// hard checks what a crash must not take back, and follows what it may have let through.
		hard := func(t *rapid.T, done bool, term, commit uint64) {
			if s.state.term != m.term && s.state.term != term || done && s.state.term != term {
				t.Fatalf("term is %d after saving %d over %d (done: %v)", s.state.term, term, m.term, done)
			}
			m.term, m.commit = s.state.term, max(m.commit, s.state.commit)
			if done {
				m.commit = max(m.commit, commit)
			}
		}

		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) {
				from := m.last() + 1
				term := max(m.term, 1)
				if m.commit < m.last() && rapid.IntRange(0, 2).Draw(t, "conflict") == 0 {
					from = rapid.Uint64Range(m.commit+1, m.last()).Draw(t, "from")
					term++
				} else {
					term += uint64(rapid.IntRange(0, 3).Draw(t, "new term") / 3)
				}
				var entries []*pb.Entry
				for i := range uint64(rapid.IntRange(1, 6).Draw(t, "entries")) {
					entries = append(entries, drawEntry(t, from+i, term))
				}
				commit := rapid.Uint64Range(m.commit, max(m.commit, from-1)).Draw(t, "commit")
				done := attempt(t, func() error {
					return s.save(&pb.HardState{Term: new(term), Vote: new(uint64(0)), Commit: new(commit)}, entries)
				})
				if done {
					m.replace(t, entries)
				} else {
					// The old log cut anywhere from the first new index on, or a beginning of the new entries there.
					last := s.runs.lastIndex()
					if last < from-1 {
						t.Fatalf("crash while appending from %d left the log at %d", from, last)
					}
					switch {
					case last < from || last <= m.last() && m.holds(s, m.entries[from-2:last-1]):
						m.entries, m.ends = m.entries[:last-1], m.ends[:last-1]
					case last-from < uint64(len(entries)) && m.holds(s, entries[:last-from+1]):
						m.replace(t, entries[:last-from+1])
					default:
						t.Fatalf("crash while appending %d entries from %d left something else up to %d", len(entries), from, last)
					}
				}
				hard(t, done, term, commit)
			},
			"vote": func(t *rapid.T) {
				term := m.term + 1
				commit := rapid.Uint64Range(m.commit, m.last()).Draw(t, "commit")
				done := attempt(t, func() error {
					return s.save(&pb.HardState{Term: new(term), Vote: new(uint64(7)), Commit: new(commit)}, nil)
				})
				hard(t, done, term, commit)
				if done && s.state.vote != 7 {
					t.Fatalf("vote is %d", s.state.vote)
				}
			},
			"snapshot": func(t *rapid.T) {
				if m.commit <= m.snapshot.Index {
					t.Skip("nothing new is committed")
				}
				at := m.place(rapid.Uint64Range(m.snapshot.Index+1, m.commit).Draw(t, "at"))
				// A restart may have forgotten how far was committed; raft would have said so again by now.
				s.state.commit = m.commit
				membership := &pb.ConfState{Voters: []uint64{rapid.Uint64().Draw(t, "member")}}
				done := attempt(t, func() error {
					if err := writeSnapshot(disk, testDir, at.snapshotID(), at.Timestamp, func(func([]byte) bool) {}); err != nil {
						return err
					}
					return s.snapshotTaken(at, membership, testVoters(1))
				})
				if done || s.state.snapshot == at {
					m.snapshot = at
					if !proto.Equal(s.state.membership, membership) {
						t.Fatalf("membership is %v, want %v", s.state.membership, membership)
					}
				}
				if s.state.snapshot != m.snapshot {
					t.Fatalf("snapshot is %+v, want %+v", s.state.snapshot, m.snapshot)
				}
			},
			"log start": func(t *rapid.T) {
				if m.base.Index == m.snapshot.Index {
					t.Skip("starts at the snapshot")
				}
				at, err := s.place(m.place(rapid.Uint64Range(m.base.Index+1, m.snapshot.Index).Draw(t, "at")).EndOffset)
				if err != nil || at != m.place(at.Index) {
					t.Fatalf("place is %+v (%v), want %+v", at, err, m.place(at.Index))
				}
				if done := attempt(t, func() error { return s.startAt(at) }); done || s.state.base == at {
					m.base = at
				}
				if s.state.base != m.base {
					t.Fatalf("log starts at %+v, want %+v", s.state.base, m.base)
				}
			},
			"restart": func(t *rapid.T) {
				if err := s.close(); err != nil {
					t.Fatal(err)
				}
				if s, err = openTest(disk, self); err != nil {
					t.Fatal(err)
				}
			},
			"": func(t *rapid.T) { m.check(t, s) },
		})

		// Another voter that is given the same entries, in other portions, has the same bytes at the same offsets.
		other := vfs.NewMem()
		formatTest(t, other, testVoter(2), testVoters(1, 2, 3))
		o, err := openTest(other, testVoter(2))
		if err != nil {
			t.Fatal(err)
		}
		for rest := m.entries; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "portion")
			if err := o.save(&pb.HardState{Term: new(m.term), Vote: new(uint64(0)), Commit: new(uint64(1))}, rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if !bytes.Equal(logBytes(t, s, m.base.EndOffset), logBytes(t, o, m.base.EndOffset)) {
			t.Fatalf("two voters hold different bytes from offset %d on", m.base.EndOffset)
		}
	})
}

// M-001: what raft's empty entry and a membership change become is a LeaderChange of nobody and a Voters record.
func TestM001_control_records_of_entries(t *testing.T) {
	t.Parallel()
	empty := &pb.Entry{Term: new(uint64(1)), Index: new(uint64(2))}
	b, err := encodeEntry(empty, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if value := hex.EncodeToString(b[len(b)-10 : len(b)-1]); value != "0000ffffffff010100" || b.MaxTimestamp() != 0 || !b.IsControl() {
		t.Errorf("LeaderChange %s, timestamp %d", value, b.MaxTimestamp())
	}
	change := marshal(t, &pb.ConfChangeV2{Context: encodeVoters(testVoters(1, 2))})
	e := &pb.Entry{Term: new(uint64(3)), Index: new(uint64(9)), Type: pb.EntryConfChangeV2.Enum(), Data: change}
	if b, err = encodeEntry(e, 40, 1700000000000); err != nil {
		t.Fatal(err)
	}
	rec, err := onlyControl(b)
	if err != nil {
		t.Fatal(err)
	}
	voters, ok := rec.(*metadata.Voters)
	if !ok || len(voters.Voters) != 2 || voters.Voters[1].Endpoints[0].Host != "c2" {
		t.Errorf("membership change became %+v", rec)
	}
	if b.BaseOffset() != 40 || b.PartitionLeaderEpoch() != 3 || b.MaxTimestamp() != 1700000000000 || b.LastOffsetDelta() != 0 {
		t.Errorf("header %v", b[:record.HeaderSize])
	}
}

// Bytes that no voter wrote are refused as entries, whatever they are, and nothing panics.
func FuzzDecodeEntry(f *testing.F) {
	f.Add([]byte(controlBatch(0, 1, 0, leaderChange(raftTag([]byte{2, 1, 2, 3})))))
	f.Add([]byte(controlBatch(0, 1, 0, &metadata.Voters{Voters: testVoters(1, 2)})))
	f.Fuzz(func(t *testing.T, data []byte) {
		if e, err := decodeEntry(data, 5); err == nil {
			b, err := encodeEntry(e, record.Batch(data).BaseOffset(), record.Batch(data).MaxTimestamp())
			if err == nil && e.GetType() == pb.EntryNormal && len(e.GetData()) > 0 && !bytes.Equal(b, data) {
				t.Fatalf("%x came back as %x", data, b)
			}
		}
		decodeState(data)
		walkSnapshot(data, func([]byte) error { return nil })
	})
}

// mappingEntry names an empty entry.
type mappingEntry struct{ index, term uint64 }

// saveEntries stores empty entries under that term.
func saveEntries(t testing.TB, s *storage, term uint64, list ...mappingEntry) {
	t.Helper()
	var entries []*pb.Entry
	for _, e := range list {
		entries = append(entries, &pb.Entry{Index: new(e.index), Term: new(e.term)})
	}
	if err := s.save(&pb.HardState{Term: new(term), Vote: new(uint64(0)), Commit: new(s.state.commit)}, entries); err != nil {
		t.Fatal(err)
	}
}

// Whatever another voter sends that could not be stored is refused before raft takes it, and proposals always are.
func TestMessagesThatCannotBeStoredAreRefused(t *testing.T) {
	t.Parallel()
	good := record.NewBuilder(record.BuilderOptions{})
	if err := good.Append(1, nil, []byte("record"), nil); err != nil {
		t.Fatal(err)
	}
	data := []byte(good.Bytes())
	placed := record.Batch(data).Clone()
	placed.SetBaseOffset(3)
	broken := append([]byte(nil), data...)
	broken[len(broken)-1] ^= 1
	entry := func(kind pb.EntryType, term uint64, data []byte) *pb.Message {
		return &pb.Message{Type: pb.MsgApp.Enum(), Entries: []*pb.Entry{{Type: kind.Enum(), Term: new(term), Index: new(uint64(5)), Data: data}}}
	}
	for name, c := range map[string]struct {
		m  *pb.Message
		ok bool
	}{
		"data":            {entry(pb.EntryNormal, 1, data), true},
		"empty":           {entry(pb.EntryNormal, 1, nil), true},
		"leave":           {entry(pb.EntryConfChangeV2, 1, nil), true},
		"vote":            {&pb.Message{Type: pb.MsgVote.Enum()}, true},
		"proposal":        {&pb.Message{Type: pb.MsgProp.Enum()}, false},
		"placed":          {entry(pb.EntryNormal, 1, placed), false},
		"broken":          {entry(pb.EntryNormal, 1, broken), false},
		"two batches":     {entry(pb.EntryNormal, 1, append(append([]byte(nil), data...), data...)), false},
		"control batch":   {entry(pb.EntryNormal, 1, controlBatch(0, -1, 0, leaderChange(nil))), false},
		"text":            {entry(pb.EntryNormal, 1, []byte("text")), false},
		"term":            {entry(pb.EntryNormal, 1<<31, data), false},
		"garbled change":  {entry(pb.EntryConfChange, 1, []byte{0xff}), false},
		"unknown type":    {entry(pb.EntryType(9), 1, nil), false},
		"empty snapshot":  {&pb.Message{Type: pb.MsgSnap.Enum()}, false},
		"random snapshot": {&pb.Message{Type: pb.MsgSnap.Enum(), Snapshot: &pb.Snapshot{Data: bytes.Repeat([]byte{1}, 99)}}, false},
	} {
		if err := checkMessage(c.m); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A vote in a term that is known already is on disk when save returns: a voter that forgot it could vote twice.
func TestVoteAloneIsWritten(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	formatTest(t, fs, testVoter(1), testVoters(1, 2, 3))
	s, err := openTest(fs, testVoter(1))
	if err != nil {
		t.Fatal(err)
	}
	for _, vote := range []uint64{0, 7} {
		if err := s.save(&pb.HardState{Term: new(uint64(5)), Vote: new(vote), Commit: new(uint64(1))}, nil); err != nil {
			t.Fatal(err)
		}
	}
	left, err := openTest(fs.CrashClone(vfs.LoseUnsynced, 0), testVoter(1))
	if err != nil {
		t.Fatal(err)
	}
	if left.state.term != 5 || left.state.vote != 7 {
		t.Errorf("term %d, vote %d", left.state.term, left.state.vote)
	}
}

// Entries that would replace committed ones are refused, and the log stays as it is.
func TestCommittedEntriesAreNotReplaced(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	formatTest(t, fs, testVoter(1), testVoters(1, 2, 3))
	s, err := openTest(fs, testVoter(1))
	if err != nil {
		t.Fatal(err)
	}
	saveEntries(t, s, 1, mappingEntry{2, 1}, mappingEntry{3, 1}, mappingEntry{4, 1})
	err = s.save(&pb.HardState{Term: new(uint64(2)), Vote: new(uint64(0)), Commit: new(uint64(3))}, []*pb.Entry{{Index: new(uint64(4)), Term: new(uint64(2))}})
	if err != nil {
		t.Fatal(err)
	}
	err = s.save(&pb.HardState{Term: new(uint64(3)), Vote: new(uint64(0)), Commit: new(uint64(3))}, []*pb.Entry{{Index: new(uint64(3)), Term: new(uint64(3))}})
	if term, _ := s.Term(3); err == nil || term != 1 || s.runs.lastIndex() != 4 {
		t.Errorf("%v; index 3 is of term %d, the log ends at %d", err, term, s.runs.lastIndex())
	}
}

// What a killed process had written and not synced is synced when the log opens: raft tells the others how far this
// log reaches without writing anything more.
func TestUnsyncedEntriesAreSyncedAtOpen(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	formatTest(t, fs, testVoter(1), testVoters(1, 2))
	s, err := openTest(fs, testVoter(1))
	if err != nil {
		t.Fatal(err)
	}
	saveEntries(t, s, 1, mappingEntry{2, 1})
	if err := s.append([]*pb.Entry{{Index: new(uint64(3)), Term: new(uint64(1))}}); err != nil {
		t.Fatal(err)
	}
	again, err := openTest(fs, testVoter(1)) // the kernel has what the first one wrote
	if err != nil {
		t.Fatal(err)
	}
	if last, _ := again.LastIndex(); last != 3 {
		t.Fatalf("last index %d", last)
	}
	left, err := openTest(fs.CrashClone(vfs.LoseUnsynced, 0), testVoter(1))
	if err != nil {
		t.Fatal(err)
	}
	if last, _ := left.LastIndex(); last != 3 {
		t.Errorf("the log reached to index 3, after a loss of power to %d", last)
	}
}

// An append that rolled, of which a crash lost the end of one segment but not the next: nothing of it was ever
// acknowledged, and the log ends before the gap.
func TestGapLeftByACrashIsCut(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	formatTest(t, fs, testVoter(1), testVoters(1))
	s, err := openTest(fs, testVoter(1))
	if err != nil {
		t.Fatal(err)
	}
	var list []mappingEntry
	for i := uint64(2); i < 80; i++ { // 78 batches of 78 bytes or so: three segments
		list = append(list, mappingEntry{i, 1})
	}
	saveEntries(t, s, 1, list...)
	segments := func() []log.SegmentInfo {
		view := s.log.View()
		defer view.Release()
		return view.Segments()
	}
	before := segments()
	if len(before) < 3 {
		t.Fatalf("%d segments", len(before))
	}
	oneBatch := before[0].Size / before[1].BaseOffset // all are alike
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	f, err := fs.OpenFile(filepath.Join(testDir, fmt.Sprintf("%020d.log", before[0].BaseOffset)), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(before[0].Size-oneBatch), f.Close()); err != nil {
		t.Fatal(err)
	}
	if s, err = openTest(fs, testVoter(1)); err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if last, _ := s.LastIndex(); s.endOffset() != before[1].BaseOffset-1 || last != uint64(before[1].BaseOffset) {
		t.Errorf("log ends at offset %d, index %d; segments were %+v", s.endOffset(), last, before)
	}
	saveEntries(t, s, 2, mappingEntry{s.runs.next, 2})
}
