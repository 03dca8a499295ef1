package vfs

import (
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Mem is a file system in memory that knows which of its bytes and names a loss of power would spare.
// CrashClone makes the image that a machine would find afterwards.
type Mem struct {
	mu    sync.Mutex // guards the tree, the locks and the clock
	root  *memNode
	locks map[string]bool
	now   func() time.Time
}

// memNode is a file or a directory. It lives on while handles or durable names refer to it.
type memNode struct {
	dir bool

	// a directory, guarded by Mem.mu
	entries map[string]*memNode
	durable map[string]*memNode
	changes []dirChange // since the last SyncDir, in order

	// a file
	mu      sync.RWMutex
	data    []byte
	modTime time.Time
	undo    []undoWrite // since the last Sync, in order
}

// dirChange is one atomic change of a directory: a creation, a removal, or a rename within it.
type dirChange []struct {
	name string
	node *memNode // nil: the name is gone
}

// undoWrite takes one unsynced write or truncation back.
type undoWrite struct {
	off     int64
	old     []byte // what the write overwrote, or the truncation cut off
	oldSize int64
	written int // bytes written at off; 0 for a truncation
}

// NewMem makes an empty file system.
func NewMem() *Mem {
	return &Mem{root: newMemDir(), locks: map[string]bool{}, now: time.Now}
}

// SetClock makes now the source of modification times.
func (m *Mem) SetClock(now func() time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = now
}

// SetModTime sets the modification time of a file.
func (m *Mem) SetModTime(name string, t time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.lookup("chtimes", name)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.modTime = t
	return nil
}

func newMemDir() *memNode {
	return &memNode{dir: true, entries: map[string]*memNode{}, durable: map[string]*memNode{}}
}

func parts(name string) []string {
	name = strings.Trim(filepath.ToSlash(filepath.Clean(name)), "/")
	if name == "" || name == "." {
		return nil
	}
	return strings.Split(name, "/")
}

func (m *Mem) lookup(op, name string) (*memNode, error) {
	n := m.root
	for _, p := range parts(name) {
		if !n.dir {
			return nil, &os.PathError{Op: op, Path: name, Err: syscall.ENOTDIR}
		}
		next, ok := n.entries[p]
		if !ok {
			return nil, &os.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
		}
		n = next
	}
	return n, nil
}

// parent finds the directory that holds name.
func (m *Mem) parent(op, name string) (*memNode, string, error) {
	ps := parts(name)
	if len(ps) == 0 {
		return nil, "", &os.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	d, err := m.lookup(op, strings.Join(ps[:len(ps)-1], "/"))
	if err != nil {
		return nil, "", &os.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
	}
	if !d.dir {
		return nil, "", &os.PathError{Op: op, Path: name, Err: syscall.ENOTDIR}
	}
	return d, ps[len(ps)-1], nil
}

func (d *memNode) change(c dirChange) {
	for _, e := range c {
		if e.node == nil {
			delete(d.entries, e.name)
		} else {
			d.entries[e.name] = e.node
		}
	}
	d.changes = append(d.changes, c)
}

// OpenFile implements FS.
func (m *Mem) OpenFile(name string, flag int, _ os.FileMode) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, base, err := m.parent("open", name)
	if err != nil {
		return nil, err
	}
	n, ok := d.entries[base]
	switch {
	case !ok && flag&os.O_CREATE == 0:
		return nil, &os.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	case !ok:
		n = &memNode{modTime: m.now()}
		d.change(dirChange{{base, n}})
	case n.dir:
		return nil, &os.PathError{Op: "open", Path: name, Err: syscall.EISDIR}
	case flag&os.O_EXCL != 0:
		return nil, &os.PathError{Op: "open", Path: name, Err: fs.ErrExist}
	}
	f := &memFile{fs: m, node: n, name: name, readOnly: flag&(os.O_RDWR|os.O_WRONLY) == 0}
	if flag&os.O_TRUNC != 0 {
		n.truncate(0, m.now())
	}
	return f, nil
}

type memEntry struct {
	name string
	info memInfo
}

func (e memEntry) Name() string               { return e.name }
func (e memEntry) IsDir() bool                { return e.info.dir }
func (e memEntry) Type() fs.FileMode          { return e.info.Mode().Type() }
func (e memEntry) Info() (fs.FileInfo, error) { return e.info, nil }

type memInfo struct {
	name string
	size int64
	dir  bool
	mod  time.Time
}

func (i memInfo) Name() string       { return i.name }
func (i memInfo) Size() int64        { return i.size }
func (i memInfo) ModTime() time.Time { return i.mod }
func (i memInfo) IsDir() bool        { return i.dir }
func (i memInfo) Sys() any           { return nil }
func (i memInfo) Mode() fs.FileMode {
	if i.dir {
		return fs.ModeDir | 0o755
	}
	return 0o644
}

func (n *memNode) info(name string) memInfo {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return memInfo{name: name, size: int64(len(n.data)), dir: n.dir, mod: n.modTime}
}

// ReadDir implements FS.
func (m *Mem) ReadDir(name string) ([]os.DirEntry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, err := m.lookup("readdir", name)
	if err != nil {
		return nil, err
	}
	if !d.dir {
		return nil, &os.PathError{Op: "readdir", Path: name, Err: syscall.ENOTDIR}
	}
	out := make([]os.DirEntry, 0, len(d.entries))
	for k, n := range d.entries {
		out = append(out, memEntry{k, n.info(k)})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name() < out[j].Name() })
	return out, nil
}

// Stat implements FS.
func (m *Mem) Stat(name string) (os.FileInfo, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.lookup("stat", name)
	if err != nil {
		return nil, err
	}
	return n.info(filepath.Base(name)), nil
}

// Rename implements FS.
func (m *Mem) Rename(from, to string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	fd, fb, err := m.parent("rename", from)
	if err != nil {
		return err
	}
	n, ok := fd.entries[fb]
	if !ok {
		return &os.PathError{Op: "rename", Path: from, Err: fs.ErrNotExist}
	}
	td, tb, err := m.parent("rename", to)
	if err != nil {
		return err
	}
	if old, ok := td.entries[tb]; ok && old.dir && (len(old.entries) > 0 || !n.dir) {
		return &os.PathError{Op: "rename", Path: to, Err: fs.ErrExist}
	}
	if fd == td {
		fd.change(dirChange{{fb, nil}, {tb, n}})
		return nil
	}
	td.change(dirChange{{tb, n}})
	fd.change(dirChange{{fb, nil}})
	return nil
}

// Remove implements FS.
func (m *Mem) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, base, err := m.parent("remove", name)
	if err != nil {
		return err
	}
	n, ok := d.entries[base]
	if !ok {
		return &os.PathError{Op: "remove", Path: name, Err: fs.ErrNotExist}
	}
	if n.dir && len(n.entries) > 0 {
		return &os.PathError{Op: "remove", Path: name, Err: syscall.ENOTEMPTY}
	}
	d.change(dirChange{{base, nil}})
	return nil
}

// RemoveAll implements FS.
func (m *Mem) RemoveAll(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, base, err := m.parent("remove", name)
	if err != nil {
		return nil
	}
	if _, ok := d.entries[base]; ok {
		d.change(dirChange{{base, nil}})
	}
	return nil
}

// MkdirAll implements FS.
func (m *Mem) MkdirAll(name string, _ os.FileMode) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.root
	for _, p := range parts(name) {
		next, ok := n.entries[p]
		if !ok {
			next = newMemDir()
			next.modTime = m.now()
			n.change(dirChange{{p, next}})
		}
		if !next.dir {
			return &os.PathError{Op: "mkdir", Path: name, Err: syscall.ENOTDIR}
		}
		n = next
	}
	return nil
}

// SyncDir implements FS.
func (m *Mem) SyncDir(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, err := m.lookup("syncdir", name)
	if err != nil {
		return err
	}
	if !d.dir {
		return &os.PathError{Op: "syncdir", Path: name, Err: syscall.ENOTDIR}
	}
	d.durable = make(map[string]*memNode, len(d.entries))
	for k, n := range d.entries {
		d.durable[k] = n
	}
	d.changes = nil
	return nil
}

// Lock implements FS.
func (m *Mem) Lock(name string) (io.Closer, error) {
	f, err := m.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	f.Close()
	key := strings.Join(parts(name), "/")
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.locks[key] {
		return nil, &os.PathError{Op: "lock", Path: name, Err: ErrLocked}
	}
	m.locks[key] = true
	return &memLock{m, key}, nil
}

type memLock struct {
	m   *Mem
	key string
}

func (l *memLock) Close() error {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	delete(l.m.locks, l.key)
	return nil
}

// Usage implements FS.
func (m *Mem) Usage(string) (total, usable int64, err error) {
	const size = int64(1) << 40
	return size, size, nil
}

type memFile struct {
	fs       *Mem
	node     *memNode
	name     string
	readOnly bool
	closeMu  sync.Mutex
	closed   bool
}

func (f *memFile) use(op string) error {
	f.closeMu.Lock()
	defer f.closeMu.Unlock()
	if f.closed {
		return &os.PathError{Op: op, Path: f.name, Err: fs.ErrClosed}
	}
	return nil
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.use("read"); err != nil {
		return 0, err
	}
	f.node.mu.RLock()
	defer f.node.mu.RUnlock()
	if off >= int64(len(f.node.data)) {
		return 0, io.EOF
	}
	n := copy(p, f.node.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	if err := f.use("write"); err != nil {
		return 0, err
	}
	if f.readOnly {
		return 0, &os.PathError{Op: "write", Path: f.name, Err: syscall.EBADF}
	}
	if len(p) == 0 {
		return 0, nil
	}
	now := f.now()
	n := f.node
	n.mu.Lock()
	defer n.mu.Unlock()
	size, end := int64(len(n.data)), off+int64(len(p))
	u := undoWrite{off: off, oldSize: size, written: len(p)}
	if off < size {
		u.old = append([]byte(nil), n.data[off:min(end, size)]...)
	}
	n.undo = append(n.undo, u)
	if end > size {
		n.grow(end)
	}
	copy(n.data[off:end], p)
	n.modTime = now
	return len(p), nil
}

func (f *memFile) now() time.Time {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	return f.fs.now()
}

// grow makes the file longer; the new bytes are zero.
func (n *memNode) grow(size int64) {
	old := len(n.data)
	if int64(cap(n.data)) < size {
		data := make([]byte, size, max(size, 2*int64(cap(n.data))))
		copy(data, n.data)
		n.data = data
		return
	}
	n.data = n.data[:size]
	clear(n.data[old:])
}

func (n *memNode) truncate(size int64, now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	old := int64(len(n.data))
	if size == old {
		return
	}
	u := undoWrite{off: size, oldSize: old}
	if size < old {
		u.old = append([]byte(nil), n.data[size:]...)
		n.data = n.data[:size]
	} else {
		n.grow(size)
	}
	n.undo = append(n.undo, u)
	n.modTime = now
}

func (f *memFile) Truncate(size int64) error {
	if err := f.use("truncate"); err != nil {
		return err
	}
	if size < 0 || f.readOnly {
		return &os.PathError{Op: "truncate", Path: f.name, Err: syscall.EINVAL}
	}
	f.node.truncate(size, f.now())
	return nil
}

func (f *memFile) Sync() error {
	if err := f.use("sync"); err != nil {
		return err
	}
	f.node.mu.Lock()
	defer f.node.mu.Unlock()
	f.node.undo = nil
	return nil
}

func (f *memFile) Size() (int64, error) {
	if err := f.use("stat"); err != nil {
		return 0, err
	}
	f.node.mu.RLock()
	defer f.node.mu.RUnlock()
	return int64(len(f.node.data)), nil
}

func (f *memFile) Close() error {
	f.closeMu.Lock()
	defer f.closeMu.Unlock()
	if f.closed {
		return &os.PathError{Op: "close", Path: f.name, Err: fs.ErrClosed}
	}
	f.closed = true
	return nil
}

func (f *memFile) Name() string             { return f.name }
func (f *memFile) OSFile() (*os.File, bool) { return nil, false }

// Loss says what a crash does to bytes and names that were not synced.
type Loss int

// The kinds of loss.
const (
	LoseNothing  Loss = iota // a killed process: the kernel still has everything
	LoseUnsynced             // the worst loss of power: only what was synced is there
	LoseSome                 // per file and directory some of the unsynced operations, the last one perhaps torn
	LoseAny                  // as LoseSome, but of a directory's changes any may be there, whatever came before them
)

// CrashClone makes the file system that is found after a crash at this instant. m itself is unchanged and may be
// in use. With LoseSome the same seed and the same history give the same image.
func (m *Mem) CrashClone(loss Loss, seed uint64) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &crash{loss: loss, rng: rand.New(rand.NewPCG(seed, 0x57e1e)), seen: map[*memNode]*memNode{}}
	return &Mem{root: c.clone(m.root), locks: map[string]bool{}, now: m.now}
}

type crash struct {
	loss Loss
	rng  *rand.Rand
	seen map[*memNode]*memNode
}

func (c *crash) clone(n *memNode) *memNode {
	if done, ok := c.seen[n]; ok {
		return done
	}
	if !n.dir {
		out := &memNode{}
		c.seen[n] = out
		n.mu.RLock()
		defer n.mu.RUnlock()
		out.data, out.modTime = c.content(n), n.modTime
		return out
	}
	out := newMemDir()
	out.modTime = n.modTime
	c.seen[n] = out
	names := c.names(n)
	keys := make([]string, 0, len(names))
	for k := range names {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for _, k := range keys {
		child := c.clone(names[k])
		out.entries[k], out.durable[k] = child, child
	}
	return out
}

func (c *crash) names(n *memNode) map[string]*memNode {
	if c.loss == LoseNothing {
		return n.entries
	}
	names := make(map[string]*memNode, len(n.durable))
	for k, v := range n.durable {
		names[k] = v
	}
	if c.loss == LoseUnsynced {
		return names
	}
	changes := n.changes[:c.rng.IntN(len(n.changes)+1)]
	if c.loss == LoseAny {
		changes = n.changes
	}
	for _, ch := range changes {
		if c.loss == LoseAny && c.rng.IntN(2) == 0 {
			continue
		}
		for _, e := range ch {
			if e.node == nil {
				delete(names, e.name)
			} else {
				names[e.name] = e.node
			}
		}
	}
	return names
}

func (c *crash) content(n *memNode) []byte {
	data := append([]byte(nil), n.data...)
	keep := len(n.undo)
	switch c.loss {
	case LoseUnsynced:
		keep = 0
	case LoseSome, LoseAny:
		keep = c.rng.IntN(len(n.undo) + 1)
	}
	for i := len(n.undo) - 1; i >= keep; i-- {
		data = n.undo[i].apply(data)
	}
	if c.loss >= LoseSome && keep > 0 {
		data = c.tear(data, n.undo[keep-1])
	}
	return data
}

// tear damages the last write that reached the disk, as disks do: a part of it is missing, or the size is there
// and the bytes are not.
func (c *crash) tear(data []byte, u undoWrite) []byte {
	end := u.off + int64(u.written)
	if u.written == 0 || u.oldSize > u.off || int64(len(data)) != end {
		return data // a truncation, or an overwrite in the middle
	}
	switch at := u.off + c.rng.Int64N(int64(u.written)); c.rng.IntN(4) {
	case 0:
		return data[:at]
	case 1:
		clear(data[at:])
	}
	return data
}

func (u undoWrite) apply(data []byte) []byte {
	size := int64(len(data))
	if u.oldSize > size {
		data = append(data, make([]byte, u.oldSize-size)...)
	}
	data = data[:u.oldSize]
	copy(data[min(u.off, u.oldSize):], u.old)
	return data
}
