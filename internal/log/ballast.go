package log

import (
	"path/filepath"

	"github.com/stelelog/stele/internal/vfs"
)

// BallastName is a file of nothing that takes part of the reserve, so that no other process can: removing it makes the
// room that a start, or a change of the metadata, needs on a disk that is full to the last byte.
const BallastName = ".stele-reserve"

const mostBallast = 1 << 20

// tendBallast writes the ballast when there is room for it. r.mu is held.
func (r *room) tendBallast() {
	if r.ballast || !r.known || r.ladder.limits.Reserve <= 0 || r.ladder.level >= RoomSoft {
		return
	}
	size := min(mostBallast, r.ladder.limits.Reserve)
	r.ballast = true // or as good as that: a failure here is not tried again every second
	name := filepath.Join(r.path, BallastName)
	if have, err := r.fs.Stat(name); err == nil && have.Size() >= size {
		return
	}
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

// ReleaseBallast gives up the ballast of a directory, and says whether there was any. Dirs puts it back when there is
// room.
func ReleaseBallast(fsys vfs.FS, dir string) bool {
	return fsys.Remove(filepath.Join(dir, BallastName)) == nil
}

// ReleaseBallast gives up the ballast of the log directory at path.
func (d *Dirs) ReleaseBallast(path string) bool {
	ld, ok := d.dir(path)
	if !ok {
		return ReleaseBallast(d.o.FS, path)
	}
	ld.room.mu.Lock()
	defer ld.room.mu.Unlock()
	ld.room.ballast = false
	return ReleaseBallast(d.o.FS, path)
}

// leastBallastRoom is the free space, in bytes, below which a start gives up the ballast.
const leastBallastRoom = 512 << 10

// releaseAtStart makes room for a start on a full disk.
func (d *Dirs) releaseAtStart(ld *logDir) {
	if _, usable, err := d.o.FS.Usage(ld.path); err == nil && usable < leastBallastRoom && ReleaseBallast(d.o.FS, ld.path) {
		d.o.Logger.Warn("the disk is full: the reserve file is given up for the start", "dir", ld.path, "usableBytes", usable)
	}
}
