package log

import (
	"os"
	"path/filepath"

	"github.com/stelelog/stele/internal/vfs"
)

// BallastName is a file of nothing that takes part of the reserve, so that no other process can: cutting it makes the
// room that a start, or a change of the metadata, needs on a disk that is full to the last byte.
const BallastName = ".stele-reserve"

const (
	mostBallast = 1 << 20
	// ballastSlice is how much of it is given up at a time.
	ballastSlice = 128 << 10
)

// tendBallast writes the ballast when there is room for it above the reserve. r.mu is held.
func (r *room) tendBallast() {
	size := min(mostBallast, r.ladder.limits.Reserve)
	if r.ballast || !r.known || size <= 0 || r.usable < r.ladder.limits.Reserve+2*size {
		return
	}
	r.ballast = true // or as good as that: a failure here is not tried again every second
	if Ballast(r.fs, r.path) >= size {
		return
	}
	name := filepath.Join(r.path, BallastName)
	if err := vfs.ReplaceFile(r.fs, name, make([]byte, size)); err != nil {
		_ = r.fs.Remove(name)
	}
}

// Ballast is the size of the ballast in a log directory, 0 without one.
func Ballast(fsys vfs.FS, dir string) int64 {
	info, err := fsys.Stat(filepath.Join(dir, BallastName))
	if err != nil {
		return 0
	}
	return info.Size()
}

// releaseBallast gives up a slice of the ballast of a directory, and says whether there was any.
func releaseBallast(fsys vfs.FS, dir string) bool {
	name := filepath.Join(dir, BallastName)
	f, err := fsys.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil || size <= ballastSlice {
		return fsys.Remove(name) == nil
	}
	return f.Truncate(size-ballastSlice) == nil
}

// ReleaseBallast gives up a slice of the ballast of the log directory at path, and says whether there was any. It is put
// back when there is room.
func (d *Dirs) ReleaseBallast(path string) bool {
	ld, ok := d.dir(path)
	if !ok {
		return false
	}
	ld.room.mu.Lock()
	defer ld.room.mu.Unlock()
	ld.room.ballast = false
	return releaseBallast(d.o.FS, path)
}

// releaseAtStart makes room for a start on a full disk.
func (d *Dirs) releaseAtStart(ld *logDir) {
	if _, usable, err := d.o.FS.Usage(ld.path); err == nil && usable < ballastSlice && releaseBallast(d.o.FS, ld.path) {
		d.o.Logger.Warn("the disk is full: part of the reserve file is given up for the start", "dir", ld.path, "usableBytes", usable)
	}
}
