package quorum

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
)

// Verify checks what is special to the directory of a metadata log, Stele's or Kafka's: that every record is known and
// follows from those before it, that each snapshot is whole and holds what the log holds up to it, and that the
// quorum's files can be read and fit the log. The image is the cluster at the log's end, nil where it cannot be told.
// The bytes of the log are for log.Verify. The error is the disk's.
func Verify(fsys vfs.FS, dir string) (img *metadata.Image, problems []log.Problem, err error) {
	v := &logVerifier{fs: fsys, dir: dir, next: -1, kafkas: -1}
	err = v.run()
	if v.img != nil && v.img.InTransaction() {
		v.img = v.img.Stable()
	}
	return v.img, v.problems, err
}

type logVerifier struct {
	fs       vfs.FS
	dir      string
	problems []log.Problem

	img       *metadata.Image // at next, nil before a beginning was found
	next      int64
	epoch     int32
	first     int64 // offset of the first batch read
	broken    bool  // the log does not lead on: no image behind it
	kafkas    int32 // the newest epoch that Kafka's own quorum led, -1 none
	snapshots []SnapshotID
}

func (v *logVerifier) found(file string, offset int64, format string, args ...any) {
	v.problems = append(v.problems, log.Problem{File: file, Offset: offset, Text: fmt.Sprintf(format, args...)})
}

func (v *logVerifier) run() error {
	// The state first: whatever it says of the log is in the log by now.
	st, err := v.state()
	if err != nil {
		return err
	}
	if v.snapshots, err = listSnapshots(v.fs, v.dir); err != nil {
		return err
	}
	if err := v.log(); err != nil {
		return err
	}
	// Where Kafka went on with the log after Stele, raft-state is of no account: the next start takes over again.
	if st != nil && v.kafkas <= int32(st.term) {
		v.fits(st)
	}
	return v.quorumState()
}

// state reads raft-state, nil where there is none: that is Kafka's, or nothing at all.
func (v *logVerifier) state() (*state, error) {
	data, err := vfs.ReadFile(v.fs, filepath.Join(v.dir, stateFileName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	st, err := decodeState(data)
	if err != nil {
		v.found(stateFileName, -1, "%v", err)
		return nil, nil
	}
	return &st, nil
}

// fits compares raft-state with the log.
func (v *logVerifier) fits(st *state) {
	switch {
	case v.next >= 0 && v.next < st.snapshot.EndOffset && st.commit > st.snapshot.Index:
		v.found(stateFileName, st.snapshot.EndOffset, "the log ends at %d, below the newest snapshot, and index %d was committed", v.next, st.commit)
	case v.epoch > int32(st.term):
		v.found(stateFileName, -1, "it is of epoch %d, the log of %d", st.term, v.epoch)
	case st.snapshot.EndOffset > 0 && !slices.Contains(v.snapshots, st.snapshot.snapshotID()):
		v.found(stateFileName, st.snapshot.EndOffset, "the snapshot %s is not there", st.snapshot.snapshotID())
	}
}

func (v *logVerifier) quorumState() error {
	text, err := vfs.ReadFile(v.fs, filepath.Join(v.dir, quorumStateName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := metadata.ParseQuorumState(text); err != nil {
		v.found(quorumStateName, -1, "%v", strings.TrimPrefix(err.Error(), quorumStateName+": "))
	}
	return nil
}

// log replays the log, and meets each snapshot where it ends.
func (v *logVerifier) log() error {
	pending := slices.Clone(v.snapshots)
	v.first = -1
	_, err := log.ScanPartition(v.fs, v.dir, func(b record.Batch) error {
		if v.first < 0 {
			v.first = b.BaseOffset()
			v.next = v.first
			if v.first == 0 {
				v.img = metadata.EmptyImage()
			}
		}
		for len(pending) > 0 && pending[0].EndOffset <= b.BaseOffset() {
			if err := v.meet(pending[0]); err != nil {
				return err
			}
			pending = pending[1:]
		}
		v.replay(b)
		return nil
	})
	if err != nil {
		return err
	}
	for _, id := range pending {
		if err := v.meet(id); err != nil {
			return err
		}
	}
	if v.broken {
		v.img = nil
	}
	return nil
}

func (v *logVerifier) replay(b record.Batch) {
	name := fmt.Sprintf("batch %d-%d", b.BaseOffset(), b.LastOffset())
	v.epoch = max(v.epoch, b.PartitionLeaderEpoch())
	if v.next = b.NextOffset(); v.broken {
		return
	}
	controls, records, err := recordsOf(b)
	for _, rec := range controls {
		if led, ok := rec.(*metadata.LeaderChange); ok && led.LeaderID >= 0 {
			v.kafkas = b.PartitionLeaderEpoch()
		}
	}
	if err != nil {
		v.found(name, b.BaseOffset(), "%v", err)
		v.broken = true
		return
	}
	if v.img == nil {
		return // below the first snapshot
	}
	delta := metadata.NewDelta(v.img)
	for i, rec := range records {
		if err := delta.Replay(rec, b.BaseOffset()+int64(i)); err != nil {
			v.found(name, b.BaseOffset()+int64(i), "%v", err)
			v.broken = true
			return
		}
	}
	v.img = delta.Apply(b.LastOffset(), b.PartitionLeaderEpoch())
}

// meet reads a snapshot where the log stands at its end, and compares it, or begins with it.
func (v *logVerifier) meet(id SnapshotID) error {
	img, err := readImage(v.fs, filepath.Join(v.dir, id.file()), position{EndOffset: id.EndOffset, Term: uint64(id.Epoch)})
	var broken *SnapshotError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil // retired meanwhile
	case errors.As(err, &broken):
		v.found(id.file(), -1, "%v", broken.Err)
		return nil
	case err != nil:
		return err
	}
	v.epoch = max(v.epoch, id.Epoch)
	if v.img == nil || v.next < id.EndOffset {
		v.img, v.next, v.broken = img, max(v.next, id.EndOffset), v.broken && v.next > id.EndOffset
		return nil
	}
	if v.next > id.EndOffset {
		if v.first < id.EndOffset {
			v.found(id.file(), id.EndOffset, "it does not end between two batches of the log")
		}
		return nil
	}
	if v.broken {
		v.img, v.broken = img, false
		return nil
	}
	want, err1 := v.img.Encoded()
	got, err2 := img.Encoded()
	if err := errors.Join(err1, err2); err != nil {
		v.found(id.file(), -1, "%v", err)
		return nil
	}
	if !slices.EqualFunc(want, got, slices.Equal[[]byte]) {
		v.found(id.file(), id.EndOffset, "it holds %d records, the log up to there comes to %d others", len(got), len(want))
	}
	return nil
}

// ShownState is a raft-state file for people.
type ShownState struct {
	ClusterID      string   `json:"clusterId"`
	NodeID         int32    `json:"nodeId"`
	DirectoryID    string   `json:"directoryId"`
	Term           uint64   `json:"term"`
	Vote           string   `json:"vote"` // raft id in hex, "" for none
	Commit         uint64   `json:"commit"`
	LogStart       position `json:"logStart"`
	Snapshot       position `json:"snapshot"`
	Reset          bool     `json:"reset"`
	Voters         []int32  `json:"voters"`
	VoterDirectory []string `json:"voterDirectories"`
}

// ParseState reads a raft-state file for showing it.
func ParseState(data []byte) (ShownState, error) {
	st, err := decodeState(data)
	if err != nil {
		return ShownState{}, err
	}
	shown := ShownState{
		ClusterID: st.self.ClusterID, NodeID: st.self.NodeID, DirectoryID: st.self.DirectoryID.String(), Term: st.term, Commit: st.commit,
		LogStart: st.base, Snapshot: st.snapshot, Reset: st.reset,
	}
	if st.vote != 0 {
		shown.Vote = fmt.Sprintf("%016x", st.vote)
	}
	for _, voter := range st.voters {
		shown.Voters = append(shown.Voters, voter.VoterID)
		shown.VoterDirectory = append(shown.VoterDirectory, voter.VoterDirectoryID.String())
	}
	return shown, nil
}

// VerifySnapshot says why a file is not a whole snapshot of known records, nil if it is.
func VerifySnapshot(fsys vfs.FS, name string) error {
	err := readSnapshot(fsys, name, func(value []byte) error {
		_, _, err := metadata.DecodeRecord(value)
		return err
	})
	var broken *SnapshotError
	if errors.As(err, &broken) {
		return broken.Err
	}
	return err
}
