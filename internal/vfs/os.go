package vfs

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

type osFS struct{}

// OS is the operating system's file system.
func OS() FS { return osFS{} }

func (osFS) OpenFile(name string, flag int, perm os.FileMode) (File, error) {
	f, err := os.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osFS) ReadDir(name string) ([]os.DirEntry, error)   { return os.ReadDir(name) }
func (osFS) Stat(name string) (os.FileInfo, error)        { return os.Stat(name) }
func (osFS) Remove(name string) error                     { return os.Remove(name) }
func (osFS) RemoveAll(name string) error                  { return os.RemoveAll(name) }
func (osFS) MkdirAll(name string, perm os.FileMode) error { return os.MkdirAll(name, perm) }

func (osFS) SetModTime(name string, t time.Time) error { return os.Chtimes(name, t, t) }

func (osFS) Rename(from, to string) error {
	Failpoint("rename-before")
	err := os.Rename(from, to)
	Failpoint("rename-after")
	return err
}

func (osFS) SyncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	if err := d.Sync(); err != nil {
		d.Close()
		return err
	}
	return d.Close()
}

func (osFS) Usage(dir string) (total, usable int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return int64(st.Blocks) * int64(st.Bsize), int64(st.Bavail) * int64(st.Bsize), nil
}

// heldLocks are the locks of this process. The kernel's record locks belong to processes: it would grant the
// same one twice to two brokers in one process, and drop both when either closes the file.
var heldLocks = struct {
	sync.Mutex
	names map[string]bool
}{names: map[string]bool{}}

func (osFS) Lock(name string) (io.Closer, error) {
	abs, err := filepath.Abs(name)
	if err != nil {
		return nil, err
	}
	heldLocks.Lock()
	defer heldLocks.Unlock()
	if heldLocks.names[abs] {
		return nil, &os.PathError{Op: "lock", Path: name, Err: ErrLocked}
	}
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	lk := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}
	if err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &lk); err != nil {
		f.Close()
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			err = ErrLocked
		}
		return nil, &os.PathError{Op: "lock", Path: name, Err: err}
	}
	heldLocks.names[abs] = true
	return &osLock{file: f, name: abs}, nil
}

type osLock struct {
	once sync.Once
	file *os.File
	name string
}

func (l *osLock) Close() error {
	var err error
	l.once.Do(func() {
		heldLocks.Lock()
		defer heldLocks.Unlock()
		delete(heldLocks.names, l.name)
		err = l.file.Close()
	})
	return err
}

type osFile struct{ f *os.File }

func (f osFile) ReadAt(p []byte, off int64) (int, error)  { return f.f.ReadAt(p, off) }
func (f osFile) WriteAt(p []byte, off int64) (int, error) { return f.f.WriteAt(p, off) }
func (f osFile) Truncate(size int64) error                { return f.f.Truncate(size) }
func (f osFile) Sync() error                              { return f.f.Sync() }
func (f osFile) Close() error                             { return f.f.Close() }
func (f osFile) Name() string                             { return f.f.Name() }
func (f osFile) OSFile() (*os.File, bool)                 { return f.f, true }

func (f osFile) Size() (int64, error) {
	st, err := f.f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}
