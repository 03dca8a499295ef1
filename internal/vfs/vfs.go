// Package vfs is the narrow seam between Stele and its disks: the few file operations the log needs, an
// implementation on the operating system, one in memory that can lose what was not synced, and one that fails
// on purpose.
package vfs

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"
)

// ErrLocked says that another process, or another part of this one, holds the lock of a file.
var ErrLocked = errors.New("file is locked by another process")

// FS is a file system. All methods may be called concurrently. Errors satisfy errors.Is with fs.ErrNotExist and
// its siblings; a full disk satisfies errors.Is(err, syscall.ENOSPC).
//
// What survives a loss of power: the bytes of a file after its Sync returned nil, and the names in a directory
// (creations, renames, removals) after SyncDir on that directory returned nil. Nothing else is promised.
type FS interface {
	// OpenFile opens name with the os.O_* flags. O_APPEND is not supported: all writes carry their position.
	OpenFile(name string, flag int, perm os.FileMode) (File, error)
	// ReadDir lists a directory, sorted by name.
	ReadDir(name string) ([]os.DirEntry, error)
	// Stat describes a file or directory.
	Stat(name string) (os.FileInfo, error)
	// Rename replaces to by from, atomically as seen by other processes and by a crash.
	Rename(from, to string) error
	// Remove deletes a file or an empty directory. Open handles stay usable.
	Remove(name string) error
	// RemoveAll deletes a tree; a name that does not exist is not an error.
	RemoveAll(name string) error
	// MkdirAll creates a directory and its parents; one that exists is not an error.
	MkdirAll(name string, perm os.FileMode) error
	// SyncDir makes the names in directory name durable.
	SyncDir(name string) error
	// Lock takes the whole-file advisory lock of name, creating the file if needed. It does not wait: held
	// elsewhere is ErrLocked. Closing the result lets go; the file stays.
	Lock(name string) (io.Closer, error)
	// SetModTime sets the modification time of a file; it survives a loss of power when it happens to.
	SetModTime(name string, t time.Time) error
	// Usage says how many bytes the volume that holds dir has, and how many of them this process may still use.
	Usage(dir string) (total, usable int64, err error)
}

// File is an open file. ReadAt may be called concurrently with everything else; the other methods belong to one
// writer at a time. Writes go to a stated position; a short write returns an error, and the bytes beyond what it
// reports are in an unknown state.
type File interface {
	io.ReaderAt
	io.WriterAt
	// Truncate sets the size of the file; growth reads as zeros.
	Truncate(size int64) error
	// Sync makes the content and the size durable.
	Sync() error
	// Size is the present size in bytes.
	Size() (int64, error)
	// Close ends the use of this handle. It syncs nothing.
	Close() error
	// Name is the name the file was opened with; it does not follow renames.
	Name() string
	// OSFile is the operating system's file to lend to sendfile, when there is one. It must only be used with
	// explicit offsets: concurrent readers share it.
	OSFile() (*os.File, bool)
}

// ReadFile reads a whole file.
func ReadFile(fsys FS, name string) ([]byte, error) {
	f, err := fsys.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	data := make([]byte, size)
	n, err := f.ReadAt(data, 0)
	if err == io.EOF {
		err = nil
	}
	return data[:n], err
}

// WriteFileAtomic replaces the content of name: it writes name+".tmp", syncs it, renames it over name and syncs
// the directory. After nil the new content survives a crash; after an error or a crash on the way name holds the
// old content or the new one, whole.
func WriteFileAtomic(fsys FS, name string, data []byte) error {
	tmp := name + ".tmp"
	if err := writeWhole(fsys, tmp, data, true); err != nil {
		_ = fsys.Remove(tmp) // a full disk has better use for its bytes; else it is overwritten the next time
		return err
	}
	Failpoint("checkpoint-tmp-written")
	if err := fsys.Rename(tmp, name); err != nil {
		return err
	}
	Failpoint("checkpoint-renamed")
	return fsys.SyncDir(filepath.Dir(name))
}

// ReplaceFile is WriteFileAtomic without what it takes to survive a loss of power, for files that are rebuilt: after one
// name may hold the old content, the new one, or a part of it. A killed process leaves the old or the new, whole.
func ReplaceFile(fsys FS, name string, data []byte) error {
	return replaceFile(fsys, name, data, false)
}

// ReplaceFileSynced is WriteFileAtomic without the sync of the directory: after a loss of power name holds the old
// content or the new one, whole.
func ReplaceFileSynced(fsys FS, name string, data []byte) error {
	return replaceFile(fsys, name, data, true)
}

func replaceFile(fsys FS, name string, data []byte, sync bool) error {
	tmp := name + ".tmp"
	if err := writeWhole(fsys, tmp, data, sync); err != nil {
		_ = fsys.Remove(tmp)
		return err
	}
	return fsys.Rename(tmp, name)
}

func writeWhole(fsys FS, name string, data []byte, sync bool) error {
	f, err := fsys.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	if len(data) > 0 {
		if _, err := f.WriteAt(data, 0); err != nil {
			f.Close()
			return err
		}
	}
	if sync {
		if err := f.Sync(); err != nil {
			f.Close()
			return err
		}
	}
	return f.Close()
}
