package log

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/stelelog/stele/internal/vfs"
)

// Handles bounds how many files of segments are open at once: files are opened when they are used and, when there are
// too many, those that were not used for a while are closed. The bound is exceeded only by files that are in use or have
// lost their name. All methods may be called concurrently.
type Handles struct {
	fs    vfs.FS
	limit int

	mu   sync.Mutex
	open []*handle // in the order of a clock, whose hand looks for what was not used since it last came by
	hand int

	opened, closed atomic.Int64 // files, over time
}

// leastHandles is the least bound: a few files are needed at a time.
const leastHandles = 16

// NewHandles bounds the files of fsys.
func NewHandles(fsys vfs.FS, limit int) *Handles {
	return &Handles{fs: fsys, limit: max(limit, leastHandles)}
}

// HandleStats are the numbers of Handles.
type HandleStats struct {
	Limit, Open    int
	Opened, Closed int64
}

// Stats are the numbers as of now.
func (hs *Handles) Stats() HandleStats {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	return HandleStats{Limit: hs.limit, Open: len(hs.open), Opened: hs.opened.Load(), Closed: hs.closed.Load()}
}

// fileKind says which of a segment's files a handle is for.
type fileKind uint8

const (
	logFile fileKind = iota
	offsetIndexFile
	timeIndexFile
)

func (k fileKind) name(base int64) string {
	switch k {
	case offsetIndexFile:
		return indexName(base)
	case timeIndexFile:
		return timeName(base)
	}
	return logName(base)
}

// handle is a file of a segment that may be closed while nobody uses it, and is opened again by name. While the file is
// about to lose its name to another one, or has, it is held: open until Close.
type handle struct {
	owner *Handles
	dir   string // of the partition
	base  int64
	kind  fileKind

	// users is how many calls use the file right now; notOpen while it is closed. Whoever makes it 0 out of notOpen, or the
	// reverse, holds owner.mu.
	users atomic.Int32
	file  vfs.File // while users >= 0
	slot  int32    // in owner.open; under owner.mu, as is the next
	held  bool
	final atomic.Bool // set by Close

	used  atomic.Bool // since the clock's hand last came by
	dirty atomic.Bool // written to and not synced
	// lost is why what was written may not be on disk: a sync before the file was closed failed.
	lost atomic.Pointer[error]
}

const notOpen = -1 << 30

// lazy is a file that exists, to be opened when it is used. Without Handles it is opened at once.
func (hs *Handles) lazy(fsys vfs.FS, dir string, base int64, kind fileKind) (vfs.File, error) {
	if hs == nil {
		flag := os.O_RDONLY
		if kind == logFile {
			flag = os.O_RDWR
		}
		return fsys.OpenFile(filepath.Join(dir, kind.name(base)), flag, 0)
	}
	h := &handle{owner: hs, dir: dir, base: base, kind: kind}
	h.users.Store(notOpen)
	return h, nil
}

// adopt takes a file that is open. held: its name is not the one it will have.
func (hs *Handles) adopt(f vfs.File, dir string, base int64, kind fileKind, held bool) vfs.File {
	if hs == nil {
		return f
	}
	h := &handle{owner: hs, dir: dir, base: base, kind: kind, file: f, held: held}
	hs.mu.Lock()
	defer hs.mu.Unlock()
	hs.makeRoom()
	hs.insert(h)
	return h
}

// holdFile keeps a file open whose name is about to go.
func holdFile(f vfs.File) {
	if h, ok := f.(*handle); ok {
		h.hold()
	}
}

// nameFile says that a file which was held has its name now.
func nameFile(f vfs.File) {
	if h, ok := f.(*handle); ok {
		h.owner.mu.Lock()
		h.held = false
		h.owner.mu.Unlock()
	}
}

// insert puts an open handle into the clock. hs.mu is held.
func (hs *Handles) insert(h *handle) {
	h.slot = int32(len(hs.open))
	hs.open = append(hs.open, h)
	hs.opened.Add(1)
}

// remove takes a handle out of the clock. hs.mu is held.
func (hs *Handles) remove(h *handle) {
	last := hs.open[len(hs.open)-1]
	hs.open[h.slot], last.slot = last, h.slot
	hs.open[len(hs.open)-1] = nil
	hs.open = hs.open[:len(hs.open)-1]
	hs.closed.Add(1)
}

// makeRoom closes files until one more may be opened, or no more can be closed. Files with writes that were not synced
// come last, since they are synced first: that those writes failed to reach the disk must not get lost with the file.
// hs.mu is held.
func (hs *Handles) makeRoom() {
	for len(hs.open) >= hs.limit {
		if !hs.closeOne(false) && !hs.closeOne(true) {
			return
		}
	}
}

func (hs *Handles) closeOne(dirtyToo bool) bool {
	for range 2 * len(hs.open) {
		if hs.hand >= len(hs.open) {
			hs.hand = 0
		}
		h := hs.open[hs.hand]
		if h.held || h.dirty.Load() && !dirtyToo || h.used.Swap(false) || !h.users.CompareAndSwap(0, notOpen) {
			hs.hand++
			continue
		}
		if h.dirty.Swap(false) {
			if err := h.file.Sync(); err != nil {
				h.lost.Store(&err)
			}
		}
		h.file.Close()
		h.file = nil
		hs.remove(h) // the hand stands on another now
		return true
	}
	return false
}

// take gives the open file for one call; give ends that.
func (h *handle) take() (vfs.File, error) {
	for {
		n := h.users.Load()
		if n < 0 {
			break
		}
		if h.users.CompareAndSwap(n, n+1) {
			if !h.used.Load() {
				h.used.Store(true)
			}
			return h.file, nil
		}
	}
	hs := h.owner
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if h.final.Load() {
		return nil, ErrClosed
	}
	if h.users.Load() >= 0 { // another was quicker, and only we could close it again
		h.users.Add(1)
		return h.file, nil
	}
	hs.makeRoom()
	f, err := hs.openFile(h)
	for try := 0; outOfHandles(err) && try < outOfHandlesTries; try++ {
		// Others in this process have taken what the bound leaves them, and more.
		if !hs.closeOne(false) && !hs.closeOne(true) {
			<-time.After(time.Millisecond) // for those to give some back
		}
		f, err = hs.openFile(h)
	}
	if err != nil {
		return nil, err
	}
	h.file = f
	hs.insert(h)
	h.used.Store(true)
	h.users.Store(1)
	return f, nil
}

const outOfHandlesTries = 100

// outOfHandles says whether an error is that this process, or the machine, has no file handles left: that passes, and
// says nothing about a disk.
func outOfHandles(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

func (hs *Handles) openFile(h *handle) (vfs.File, error) {
	flag := os.O_RDONLY
	if h.kind == logFile {
		flag = os.O_RDWR
	}
	return hs.fs.OpenFile(h.path(), flag, 0)
}

func (h *handle) path() string { return filepath.Join(h.dir, h.kind.name(h.base)) }

func (h *handle) give() {
	if h.users.Add(-1) == 0 && h.final.Load() {
		h.Close()
	}
}

func (h *handle) hold() {
	if _, err := h.take(); err != nil {
		return // it cannot be opened even now: whoever reads it is told
	}
	h.owner.mu.Lock()
	h.held = true
	h.owner.mu.Unlock()
	h.give()
}

// Close ends the use of the file; calls that are under way end first.
func (h *handle) Close() error {
	hs := h.owner
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h.final.Store(true)
	if !h.users.CompareAndSwap(0, notOpen) {
		return nil // it is closed, or the last user closes it
	}
	f := h.file
	h.file = nil
	hs.remove(h)
	return f.Close()
}

func (h *handle) ReadAt(p []byte, off int64) (int, error) {
	f, err := h.take()
	if err != nil {
		return 0, err
	}
	defer h.give()
	return f.ReadAt(p, off)
}

func (h *handle) WriteAt(p []byte, off int64) (int, error) {
	f, err := h.takeToWrite()
	if err != nil {
		return 0, err
	}
	defer h.give()
	return f.WriteAt(p, off)
}

func (h *handle) Truncate(size int64) error {
	f, err := h.takeToWrite()
	if err != nil {
		return err
	}
	defer h.give()
	return f.Truncate(size)
}

func (h *handle) takeToWrite() (vfs.File, error) {
	f, err := h.take()
	if err == nil {
		h.dirty.Store(true)
	}
	return f, err
}

// Sync is also told of a sync that failed when the file was closed for want of handles.
func (h *handle) Sync() error {
	if err := h.lost.Load(); err != nil {
		return *err
	}
	f, err := h.take()
	if err != nil {
		return err
	}
	defer h.give()
	h.dirty.Store(false)
	if err := f.Sync(); err != nil {
		h.dirty.Store(true)
		return err
	}
	return nil
}

// Size looks at the file's name when it is not open.
func (h *handle) Size() (int64, error) {
	if h.users.Load() < 0 {
		info, err := h.owner.fs.Stat(h.path())
		if err != nil {
			return 0, err
		}
		return info.Size(), nil
	}
	f, err := h.take()
	if err != nil {
		return 0, err
	}
	defer h.give()
	return f.Size()
}

// Name is the name that the file has while it is not held.
func (h *handle) Name() string { return h.path() }

// OSFile lends nothing that may be closed meanwhile; Lend does.
func (h *handle) OSFile() (*os.File, bool) { return nil, false }

// Lend lends the operating system's file until done is called.
func (h *handle) Lend() (f *os.File, done func(), ok bool) {
	file, err := h.take()
	if err != nil {
		return nil, nil, false // the read that comes instead says why
	}
	if f, ok = file.OSFile(); !ok {
		h.give()
		return nil, nil, false
	}
	return f, h.give, true
}
