package quorum

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/vfs"
	pb "go.etcd.io/raft/v3/raftpb"
)

// bootstrapName is the file that Kafka up to 4.3 writes at format time; later ones put the same records into the 0-0
// checkpoint. Both are written here.
const bootstrapName = "bootstrap.checkpoint"

// FormatOptions say what a metadata directory is formatted for.
type FormatOptions struct {
	FS       vfs.FS
	Dir      string // the metadata directory; it exists
	Identity Identity
	// Voters are all members of the new quorum with their directory ids, this node among them.
	Voters []Voter
	// Bootstrap is what the cluster begins with: FeatureLevel of metadata.version first.
	Bootstrap []metadata.Record
	Now       func() time.Time // nil: time.Now
}

// ErrFormatted says that a directory holds the state of a quorum already.
var ErrFormatted = errors.New("the metadata directory is formatted already")

// Format writes what a voter needs to start: the bootstrap records and, last, the quorum's state, whose presence says
// that all is there. meta.properties is not its business. It fails with ErrFormatted where that state exists, so that
// no vote is ever forgotten; an interrupted Format may be repeated.
func Format(o FormatOptions) error {
	if !slices.ContainsFunc(o.Voters, func(v Voter) bool {
		return v.VoterID == o.Identity.NodeID && v.VoterDirectoryID == o.Identity.DirectoryID
	}) {
		return fmt.Errorf("%s is not among the voters", o.Identity)
	}
	return format(o, initialState(o.Identity, o.Voters))
}

// FormatNoVoter is Format for a controller that belongs to no quorum yet (Voters stays empty): it has no vote, and what
// the quorum sends it when it is added as a voter makes it one.
func FormatNoVoter(o FormatOptions) error {
	return format(o, state{self: o.Identity, membership: &pb.ConfState{}})
}

func format(o FormatOptions, st state) error {
	if o.Now == nil {
		o.Now = time.Now
	}
	level, err := bootstrapLevel(o.Bootstrap)
	if err != nil {
		return err
	}
	var values [][]byte
	for _, rec := range o.Bootstrap {
		value, err := metadata.AppendRecord(nil, rec, level.RecordVersion(rec))
		if err != nil {
			return err
		}
		values = append(values, value)
	}
	dir := partitionDir(o.Dir)
	if err := o.FS.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := o.FS.SyncDir(o.Dir); err != nil {
		return err
	}
	if _, err := o.FS.Stat(filepath.Join(dir, stateFileName)); err == nil {
		return fmt.Errorf("%s: %w", dir, ErrFormatted)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := writeSnapshot(o.FS, dir, SnapshotID{}, o.Now().UnixMilli(), slices.Values(values)); err != nil {
		return err
	}
	checkpoint, err := vfs.ReadFile(o.FS, filepath.Join(dir, SnapshotID{}.file()))
	if err != nil {
		return err
	}
	if err := vfs.WriteFileAtomic(o.FS, filepath.Join(o.Dir, bootstrapName), checkpoint); err != nil {
		return err
	}
	return writeState(o.FS, dir, &st)
}

// bootstrapLevel is the metadata.version among bootstrap records, which must name one.
func bootstrapLevel(records []metadata.Record) (metadata.Level, error) {
	for _, rec := range records {
		if f, ok := rec.(*metadata.FeatureLevelRecord); ok && f.Name == metadata.FeatureMetadataVersion {
			return metadata.Level(f.FeatureLevel), nil
		}
	}
	return 0, errors.New("bootstrap records do not say which metadata.version the cluster begins with")
}

// readBootstrap is the metadata.version among the bootstrap records in a metadata directory: those of the 0-0
// checkpoint if it has any, else of bootstrap.checkpoint, else the newest.
func readBootstrap(fsys vfs.FS, dir string) (metadata.Level, error) {
	for _, name := range []string{filepath.Join(partitionDir(dir), SnapshotID{}.file()), filepath.Join(dir, bootstrapName)} {
		var records []metadata.Record
		err := readSnapshot(fsys, name, func(value []byte) error {
			rec, _, err := metadata.DecodeRecord(value)
			records = append(records, rec)
			return err
		})
		if errors.Is(err, fs.ErrNotExist) || err == nil && len(records) == 0 {
			continue
		}
		if err != nil {
			return 0, err
		}
		return bootstrapLevel(records)
	}
	return metadata.LevelLatest, nil
}

// initialState is the quorum state of a voter that has never voted. The log's first batch gets raft index 2: whoever
// knows nothing of the quorum is then at an index no log reaches down to, and is sent a snapshot, which brings the
// membership; from entries alone it could take itself for the only voter.
func initialState(self Identity, voters []Voter) state {
	start := position{Index: 1}
	members := &pb.ConfState{}
	for _, v := range voters {
		members.Voters = append(members.Voters, raftIDOf(v))
	}
	return state{self: self, commit: start.Index, base: start, snapshot: start, membership: members, voters: voters}
}
