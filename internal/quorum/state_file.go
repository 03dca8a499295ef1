package quorum

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"path/filepath"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/vfs"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

const (
	stateFileName   = "raft-state"
	quorumStateName = "quorum-state"
	stateMagic      = "STLQ"
	stateVersion    = 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// state is what a voter must remember beside its log and cannot rebuild from it. It lies in raft-state, next to the
// log's segments, and is always replaced whole: tmp, fsync, rename, fsync of the directory.
//
// The file is four bytes "STLQ", a version byte, then fields in the order below (fixed 64-bit big-endian numbers,
// uvarint lengths) and a CRC-32C of everything before it.
type state struct {
	// self is whose disk this is. Somebody else's file is refused.
	self Identity
	// term, vote and commit are raft's hard state. commit may lag: losing its last rises is harmless.
	term, vote, commit uint64
	// base is where the log starts: the end of a snapshot, or of nothing at all.
	base position
	// reset says that the log is being emptied to start at base.
	reset bool
	// snapshot is the newest snapshot, base if there is none but the bootstrap one; its EndOffset and Term name
	// the file. Invariant: base.Index <= snapshot.Index <= commit.
	snapshot position
	// membership and voters are raft's and Kafka's view of the quorum as of snapshot.
	membership *pb.ConfState
	voters     []Voter
}

// CorruptStateError says that the quorum state is there but unreadable. It cannot be rebuilt.
type CorruptStateError struct {
	File string
	Err  error
}

func (e *CorruptStateError) Error() string {
	return fmt.Sprintf("quorum state %s is corrupt and cannot be rebuilt: %v; put the file back from a copy, or, where other voters have the metadata, remove this voter and add it again with an empty directory", e.File, e.Err)
}
func (e *CorruptStateError) Unwrap() error { return e.Err }

func appendString(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

func appendPosition(b []byte, p position) []byte {
	b = binary.BigEndian.AppendUint64(b, p.Index)
	b = binary.BigEndian.AppendUint64(b, p.Term)
	b = binary.BigEndian.AppendUint64(b, uint64(p.EndOffset))
	return binary.BigEndian.AppendUint64(b, uint64(p.Timestamp))
}

// appendMembership writes the part of the state that also travels with a snapshot.
func appendMembership(b []byte, membership *pb.ConfState, voters []Voter) ([]byte, error) {
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(membership)
	if err != nil {
		return nil, err
	}
	b = binary.AppendUvarint(b, uint64(len(raw)))
	b = append(b, raw...)
	body := encodeVoters(voters)
	b = binary.AppendUvarint(b, uint64(len(body)))
	return append(b, body...), nil
}

func (s *state) encode() ([]byte, error) {
	b := append([]byte(stateMagic), stateVersion)
	b = appendString(b, s.self.ClusterID)
	b = binary.BigEndian.AppendUint32(b, uint32(s.self.NodeID))
	b = append(b, s.self.DirectoryID[:]...)
	b = binary.BigEndian.AppendUint64(b, s.term)
	b = binary.BigEndian.AppendUint64(b, s.vote)
	b = binary.BigEndian.AppendUint64(b, s.commit)
	b = appendPosition(b, s.base)
	if s.reset {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	b = appendPosition(b, s.snapshot)
	b, err := appendMembership(b, s.membership, s.voters)
	if err != nil {
		return nil, err
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)), nil
}

var errShort = errors.New("ends early")

// fields reads what the append functions wrote; the first short read sticks.
type fields struct {
	b   []byte
	err error
}

func (f *fields) take(n uint64) []byte {
	if f.err != nil || n > uint64(len(f.b)) {
		f.err = errShort
		return nil
	}
	head := f.b[:n:n]
	f.b = f.b[n:]
	return head
}

func (f *fields) u64() uint64 {
	if b := f.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (f *fields) bytes() []byte {
	n, size := binary.Uvarint(f.b)
	if f.err != nil || size <= 0 {
		f.err = errShort
		return nil
	}
	f.b = f.b[size:]
	return f.take(n)
}

func (f *fields) position() position {
	return position{Index: f.u64(), Term: f.u64(), EndOffset: int64(f.u64()), Timestamp: int64(f.u64())}
}

func (f *fields) membership() (*pb.ConfState, []Voter) {
	membership := &pb.ConfState{}
	if err := proto.Unmarshal(f.bytes(), membership); err != nil && f.err == nil {
		f.err = err
	}
	body := f.bytes()
	if f.err != nil {
		return membership, nil
	}
	voters, err := decodeVoters(body)
	if err != nil {
		f.err = err
	}
	return membership, voters
}

func decodeState(data []byte) (state, error) {
	if len(data) < len(stateMagic)+1+4 || string(data[:len(stateMagic)]) != stateMagic {
		return state{}, errors.New("not a quorum state")
	}
	body, sum := data[:len(data)-4], binary.BigEndian.Uint32(data[len(data)-4:])
	if got := crc32.Checksum(body, castagnoli); got != sum {
		return state{}, fmt.Errorf("checksum %08x, computed %08x", sum, got)
	}
	if v := body[len(stateMagic)]; v != stateVersion {
		return state{}, fmt.Errorf("version %d, only %d is known", v, stateVersion)
	}
	f := &fields{b: body[len(stateMagic)+1:]}
	var s state
	s.self.ClusterID = string(f.bytes())
	if b := f.take(4); b != nil {
		s.self.NodeID = int32(binary.BigEndian.Uint32(b))
	}
	copy(s.self.DirectoryID[:], f.take(16))
	s.term, s.vote, s.commit = f.u64(), f.u64(), f.u64()
	s.base = f.position()
	if b := f.take(1); b != nil {
		s.reset = b[0] != 0
	}
	s.snapshot = f.position()
	s.membership, s.voters = f.membership()
	if f.err != nil {
		return state{}, f.err
	}
	if len(f.b) != 0 {
		return state{}, fmt.Errorf("%d bytes left over", len(f.b))
	}
	if s.base.Index > s.snapshot.Index || s.snapshot.Index > s.commit || s.base.EndOffset > s.snapshot.EndOffset || s.base.EndOffset < 0 {
		return state{}, fmt.Errorf("log start %+v, snapshot %+v and commit index %d are out of order", s.base, s.snapshot, s.commit)
	}
	return s, nil
}

// readState reads the state in dir: ErrNotFormatted if there is none, *CorruptStateError, *ForeignDiskError if it is
// not self's.
func readState(fsys vfs.FS, dir string, self Identity) (state, error) {
	name := filepath.Join(dir, stateFileName)
	data, err := vfs.ReadFile(fsys, name)
	if errors.Is(err, fs.ErrNotExist) {
		return state{}, fmt.Errorf("%s: %w", dir, ErrNotFormatted)
	}
	if err != nil {
		return state{}, err
	}
	s, err := decodeState(data)
	if err != nil {
		return state{}, &CorruptStateError{File: name, Err: err}
	}
	if s.self != self {
		return state{}, &ForeignDiskError{Dir: dir, Want: self, Got: s.self}
	}
	return s, nil
}

// StoredDirectoryID is the directory id under which the quorum state in a metadata directory was written; ok is false
// where there is none that can be read. A voter that lost only the id in meta.properties is still that voter: a new id
// would make it a stranger to its own quorum.
func StoredDirectoryID(fsys vfs.FS, dir string) (id metadata.UUID, ok bool) {
	data, err := vfs.ReadFile(fsys, filepath.Join(partitionDir(dir), stateFileName))
	if err != nil {
		return id, false
	}
	s, err := decodeState(data)
	return s.self.DirectoryID, err == nil
}

func writeState(fsys vfs.FS, dir string, s *state) error {
	data, err := s.encode()
	if err != nil {
		return err
	}
	return vfs.WriteFileAtomic(fsys, filepath.Join(dir, stateFileName), data)
}

// writeQuorumState writes the file that Kafka's tools read. It mirrors raft-state, and nothing here reads it back.
func writeQuorumState(fsys vfs.FS, dir string, q metadata.QuorumState) error {
	return vfs.WriteFileAtomic(fsys, filepath.Join(dir, quorumStateName), q.Format())
}
