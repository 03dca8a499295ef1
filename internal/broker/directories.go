package broker

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/quorum"
	"github.com/stelelog/stele/internal/vfs"
)

// metaPropertiesName is the file that says whose a directory is.
const metaPropertiesName = "meta.properties"

// wholeMetaProperties tells a person what the file holds.
const wholeMetaProperties = "version=1, and cluster.id, node.id and directory.id as they were"

// DirectoryError says why a data directory is not used, and what to do. Nothing was
// changed in it.
type DirectoryError struct {
	Dir    string
	Reason string
	Err    error
}

func (e *DirectoryError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("data directory %s: %s: %v", e.Dir, e.Reason, e.Err)
	}
	return fmt.Sprintf("data directory %s: %s", e.Dir, e.Reason)
}

func (e *DirectoryError) Unwrap() error { return e.Err }

// DirectoryPlan is what a look at the data directories found: whose they are, and
// which of them are to be formatted.
type DirectoryPlan struct {
	ClusterID   string
	NodeID      int32
	MetadataDir string
	// IDs are the directory ids by cleaned path (as log.Dirs names them), of new ones too.
	IDs map[string]metadata.UUID
	// Failed are log directories that the disk does not let us read, and why. The node goes on without them.
	Failed map[string]error
	fresh  []string
	// missing are those of fresh that do not exist yet.
	missing []string
	// rewrite are directories of before directory ids: they get one now.
	rewrite []string
	v0      map[string]bool
}

// PlanDirectories looks at the data directories without changing anything. A missing
// or empty directory will be formatted; one that holds other things and no
// meta.properties, and one of another cluster or node, are refused; so are a metadata directory that cannot be read, and
// log directories if none can. One of several that cannot be read is noted as failed. clusterID is the configured one, "" for none.
func PlanDirectories(fsys vfs.FS, dirs []string, metadataDir string, nodeID int32, clusterID string) (*DirectoryPlan, error) {
	plan := &DirectoryPlan{ClusterID: clusterID, NodeID: nodeID, MetadataDir: filepath.Clean(metadataDir), IDs: map[string]metadata.UUID{}, Failed: map[string]error{}, v0: map[string]bool{}}
	var all []string
	for _, dir := range append(slices.Clone(dirs), metadataDir) {
		if dir = filepath.Clean(dir); !slices.Contains(all, dir) {
			all = append(all, dir)
		}
	}
	from := "cluster.id in the configuration"
	seen := map[metadata.UUID]string{}
	for _, dir := range all {
		file := filepath.Join(dir, metaPropertiesName)
		text, err := vfs.ReadFile(fsys, file)
		if full := roomToStart(fsys, dir, err == nil); full != nil {
			return nil, full
		}
		if errors.Is(err, fs.ErrNotExist) {
			err := emptyOrUnfinished(fsys, dir)
			var unreadable *unreadableError
			if dir != plan.MetadataDir && errors.As(err, &unreadable) {
				plan.Failed[dir] = err
				continue
			}
			if err != nil {
				return nil, err
			}
			plan.fresh = append(plan.fresh, dir)
			if _, err := fsys.Stat(dir); errors.Is(err, fs.ErrNotExist) {
				plan.missing = append(plan.missing, dir)
			}
			continue
		}
		if err != nil {
			err = &DirectoryError{Dir: dir, Reason: "cannot be read", Err: err}
			if dir == plan.MetadataDir {
				return nil, err
			}
			plan.Failed[dir] = err
			continue
		}
		props, err := metadata.ParseMetaProperties(text)
		if err != nil {
			return nil, &DirectoryError{Dir: dir, Reason: file, Err: err}
		}
		if props.ClusterID == "" && props.NodeID == nil {
			return nil, &DirectoryError{Dir: dir, Reason: fmt.Sprintf("%s is damaged: it names neither a cluster nor a node; restore it (%s)", file, wholeMetaProperties)}
		}
		if props.NodeID != nil && *props.NodeID != nodeID {
			return nil, &DirectoryError{Dir: dir, Reason: fmt.Sprintf("%s says node.id=%d, this node is configured as %d: set node.id=%d, or give this node a directory of its own", file, *props.NodeID, nodeID, *props.NodeID)}
		}
		if plan.ClusterID == "" {
			plan.ClusterID, from = props.ClusterID, file
		} else if props.ClusterID != "" && props.ClusterID != plan.ClusterID {
			return nil, &DirectoryError{Dir: dir, Reason: fmt.Sprintf("%s says cluster.id=%s, but %s says %s: this directory belongs to another cluster", file, props.ClusterID, from, plan.ClusterID)}
		}
		id := props.DirectoryID
		switch {
		case id == metadata.ZeroUUID:
			id = metadata.NewUUID(rand.Reader)
			if voter, ok := quorum.StoredDirectoryID(fsys, dir); ok && dir == metadataDir {
				id = voter
			}
			plan.rewrite = append(plan.rewrite, dir)
			plan.v0[dir] = props.Version == 0
		case id.Reserved():
			return nil, &DirectoryError{Dir: dir, Reason: fmt.Sprintf("%s says directory.id=%s, which is reserved", file, id)}
		}
		if other, twice := seen[id]; twice {
			return nil, &DirectoryError{Dir: dir, Reason: fmt.Sprintf("directory.id=%s is also that of %s: one of them is a copy", id, other)}
		}
		seen[id], plan.IDs[dir] = dir, id
	}
	if err := plan.anyLeft(dirs); err != nil {
		return nil, err
	}
	for _, dir := range plan.fresh {
		plan.IDs[dir] = metadata.NewUUID(rand.Reader)
	}
	if plan.ClusterID == "" {
		plan.ClusterID = metadata.NewUUID(rand.Reader).String()
	}
	return plan, nil
}

// anyLeft is an error when every log directory has failed.
func (p *DirectoryPlan) anyLeft(dirs []string) (first error) {
	for _, dir := range dirs {
		failed := p.Failed[filepath.Clean(dir)]
		if failed == nil {
			return nil
		}
		if first == nil {
			first = failed
		}
	}
	return first
}

// unreadableError says that the disk does not let a directory be read.
type unreadableError struct{ err error }

func (e *unreadableError) Error() string { return e.err.Error() }
func (e *unreadableError) Unwrap() error { return e.err }

// leastRoom is the space, in bytes, that a first start needs on a disk, and leastRoomAgain what a later one does: a few
// small files are written before it can serve.
const (
	leastRoom      = 256 << 10
	leastRoomAgain = 32 << 10
)

// roomToStart refuses a full disk before anything is begun there. What was kept for this is room.
func roomToStart(fsys vfs.FS, dir string, formatted bool) error {
	at := filepath.Clean(dir)
	least := int64(leastRoom)
	if formatted {
		least = leastRoomAgain - log.Ballast(fsys, dir)
	}
	for {
		_, usable, err := fsys.Usage(at)
		if errors.Is(err, fs.ErrNotExist) && filepath.Dir(at) != at {
			at = filepath.Dir(at)
			continue
		}
		if err == nil && usable < least {
			return &DirectoryError{Dir: dir, Reason: fmt.Sprintf("the disk is full (%d bytes are free): make room, or name another directory", usable)}
		}
		return nil // what is wrong otherwise, reading the directory says better
	}
}

// emptyOrUnfinished lets a directory be formatted that is missing, empty, or holds
// only what an interrupted format leaves: nothing in it was ever used.
func emptyOrUnfinished(fsys vfs.FS, dir string) error {
	entries, err := fsys.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return &DirectoryError{Dir: dir, Reason: "cannot be read", Err: &unreadableError{err}}
	}
	if used := filepath.Join(dir, quorum.TopicName+"-0"); slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == filepath.Base(used) }) && everUsed(fsys, used) {
		return &DirectoryError{Dir: dir, Reason: fmt.Sprintf("it holds a metadata log but no %s: do not empty it, restore that file (%s)", metaPropertiesName, wholeMetaProperties)}
	}
	for _, entry := range entries {
		name := entry.Name()
		switch {
		case name == "lost+found", leftByFormat(name):
		case name == quorum.TopicName+"-0" && entry.IsDir() && !everUsed(fsys, filepath.Join(dir, name)):
		default:
			return &DirectoryError{Dir: dir, Reason: fmt.Sprintf("it holds %s but no %s, so it is not Stele's or Kafka's: name another directory, or empty this one", name, metaPropertiesName)}
		}
	}
	return nil
}

// leftByFormat says whether a file of that name may be in a directory that is not formatted yet: it holds nothing while
// there are no partitions.
func leftByFormat(name string) bool {
	switch name {
	case log.LockName, log.CleanShutdownName, log.RecoveryPointCheckpoint, log.LogStartCheckpoint, log.HighWatermarkCheckpoint, "bootstrap.checkpoint":
		return true
	}
	return strings.HasSuffix(name, ".tmp")
}

// Undo takes back what a start that failed has put into new directories. It is called with the directories locked;
// RemoveMissing comes after.
func (p *DirectoryPlan) Undo(fsys vfs.FS) {
	for _, dir := range p.fresh {
		entries, err := fsys.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, entry := range entries {
			// What cannot be removed is what an interrupted format leaves too.
			switch name := entry.Name(); {
			case name == log.LockName: // held
			case name == metaPropertiesName, leftByFormat(name):
				_ = fsys.Remove(filepath.Join(dir, name))
			case name == quorum.TopicName+"-0" && !everUsed(fsys, filepath.Join(dir, name)):
				_ = fsys.RemoveAll(filepath.Join(dir, name))
			}
		}
	}
}

// RemoveMissing removes the directories that did not exist, if they are empty.
func (p *DirectoryPlan) RemoveMissing(fsys vfs.FS) {
	for _, dir := range p.missing {
		_ = fsys.Remove(dir)
	}
}

// everUsed says whether a metadata log was ever opened in the directory.
func everUsed(fsys vfs.FS, dir string) bool {
	entries, err := fsys.ReadDir(dir)
	return err != nil || slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return strings.HasSuffix(e.Name(), ".log") })
}

// Fresh are the directories that are to be formatted, sorted.
func (p *DirectoryPlan) Fresh() []string { return slices.Sorted(slices.Values(p.fresh)) }

// FormatsQuorum says whether this start formats the metadata directory.
func (p *DirectoryPlan) FormatsQuorum() bool { return slices.Contains(p.fresh, p.MetadataDir) }

// Carry formats what the plan says. It is called with the directories locked. format
// writes the quorum's first state into the metadata directory, when that is new;
// meta.properties comes last, so that a directory which has it is whole.
func (p *DirectoryPlan) Carry(fsys vfs.FS, format func(dir string, id metadata.UUID) error) error {
	for _, dir := range p.fresh {
		if err := fsys.MkdirAll(dir, 0o755); err != nil {
			return &DirectoryError{Dir: dir, Reason: "cannot be created", Err: err}
		}
		// A directory that goes with the power takes a voter's vote with it. The parent is not ours: it may not be readable.
		_ = fsys.SyncDir(filepath.Dir(dir))
		if dir == p.MetadataDir && format != nil {
			if err := fsys.RemoveAll(filepath.Join(dir, quorum.TopicName+"-0")); err != nil {
				return &DirectoryError{Dir: dir, Reason: "cannot be formatted", Err: err}
			}
			if err := format(dir, p.IDs[dir]); err != nil {
				return &DirectoryError{Dir: dir, Reason: "cannot be formatted", Err: err}
			}
		}
		if err := p.write(fsys, dir, 1); err != nil {
			return err
		}
	}
	for _, dir := range p.rewrite {
		version := 1
		if p.v0[dir] {
			version = 0
		}
		if err := p.write(fsys, dir, version); err != nil {
			return err
		}
	}
	return nil
}

func (p *DirectoryPlan) write(fsys vfs.FS, dir string, version int) error {
	props := metadata.MetaProperties{Version: version, ClusterID: p.ClusterID, NodeID: &p.NodeID, DirectoryID: p.IDs[dir]}
	if err := vfs.WriteFileAtomic(fsys, filepath.Join(dir, metaPropertiesName), props.Format()); err != nil {
		return &DirectoryError{Dir: dir, Reason: "cannot be formatted", Err: err}
	}
	return nil
}
