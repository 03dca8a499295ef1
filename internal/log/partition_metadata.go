package log

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/stelelog/stele/internal/vfs"
)

// PartitionMetadataName is the file in a partition's directory that holds the topic id.
const PartitionMetadataName = "partition.metadata"

// errNoTopicID says that a partition.metadata has the zero id.
var errNoTopicID = errors.New(PartitionMetadataName + ": topic id is zero")

// ErrInconsistentTopicID says that a directory belongs to another topic of the same name.
var ErrInconsistentTopicID = errors.New("directory belongs to another topic id")

func formatPartitionMetadata(id [16]byte) []byte {
	return []byte("version: 0\ntopic_id: " + base64.RawURLEncoding.EncodeToString(id[:]))
}

func parsePartitionMetadata(data []byte) ([16]byte, error) {
	var id [16]byte
	lines := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	if len(lines) != 2 {
		return id, fmt.Errorf("%s: %d lines instead of 2", PartitionMetadataName, len(lines))
	}
	v, ok := strings.CutPrefix(lines[0], "version: ")
	n, err := strconv.Atoi(v)
	if !ok || err != nil || n < 0 {
		return id, fmt.Errorf("%s: version line %.40q", PartitionMetadataName, lines[0])
	}
	v, ok = strings.CutPrefix(lines[1], "topic_id: ")
	b, err := base64.RawURLEncoding.DecodeString(v)
	if !ok || err != nil || len(b) != 16 {
		return id, fmt.Errorf("%s: topic id line %.60q", PartitionMetadataName, lines[1])
	}
	copy(id[:], b)
	if id == ([16]byte{}) {
		return id, errNoTopicID
	}
	return id, nil
}

// ReadPartitionMetadata reads the topic id of a partition's directory.
func ReadPartitionMetadata(fsys vfs.FS, dir string) ([16]byte, error) {
	data, err := vfs.ReadFile(fsys, filepath.Join(dir, PartitionMetadataName))
	if err != nil {
		return [16]byte{}, err
	}
	return parsePartitionMetadata(data)
}

// diskFailed says whether an error of ReadPartitionMetadata is the disk's: it tells nothing of what the file says.
func diskFailed(err error) bool {
	var pe *fs.PathError
	return errors.As(err, &pe) && !isNotExist(err)
}

// ensurePartitionMetadata writes the topic id, or compares it with what is written.
func ensurePartitionMetadata(fsys vfs.FS, dir string, id [16]byte) error {
	have, err := ReadPartitionMetadata(fsys, dir)
	switch {
	case isNotExist(err):
		return vfs.WriteFileAtomic(fsys, filepath.Join(dir, PartitionMetadataName), formatPartitionMetadata(id))
	case diskFailed(err):
		return err
	case err != nil:
		return &CorruptError{Dir: dir, Segment: PartitionMetadataName, Err: err}
	case have != id:
		return &CorruptError{Dir: dir, Segment: PartitionMetadataName, Err: ErrInconsistentTopicID}
	}
	return nil
}

// checkUnidentified answers a *CorruptError when dir, whose topic id could not be read because of cause, holds records, or has:
// a crash does not leave that (the id is on disk before the first record), so they may be those of the topic with id,
// or of an older one of its name. Without records it answers nil; an IO error is a *StorageError.
func checkUnidentified(fsys vfs.FS, dir string, id [16]byte, cause error) error {
	names, err := fileNames(fsys, dir)
	if err != nil {
		return &StorageError{Dir: filepath.Dir(dir), Op: "list " + dir, Err: err, Offline: true}
	}
	for _, n := range names {
		o, ok := fileOffset(n)
		if !ok || n != logName(o) {
			continue
		}
		info, err := fsys.Stat(filepath.Join(dir, n))
		if err != nil {
			return &StorageError{Dir: filepath.Dir(dir), Op: "stat " + n + " in " + dir, Err: err, Offline: true}
		}
		if info.Size() > 0 || o > 0 { // offsets below o were given, if their records are gone
			return &CorruptError{Dir: dir, Segment: PartitionMetadataName, Offset: o, Err: fmt.Errorf(
				"%w; there are records, so nothing is opened or put aside: if they are those of topic id %s write %q into the file, else move the directory away, and start again",
				cause, base64.RawURLEncoding.EncodeToString(id[:]), formatPartitionMetadata(id))}
		}
	}
	return nil
}
