package vfs

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// OpKind is a kind of file operation that a Fault can make fail.
type OpKind int

// The kinds of operation. OpAny matches all those that change something (not OpRead, OpStat, OpReadDir).
const (
	OpAny OpKind = iota
	OpOpen
	OpCreate
	OpWrite
	OpRead
	OpSync
	OpTruncate
	OpRename
	OpRemove
	OpMkdir
	OpSyncDir
	OpStat
	OpReadDir
)

var opNames = [...]string{"any", "open", "create", "write", "read", "sync", "truncate", "rename", "remove", "mkdir",
	"syncdir", "stat", "readdir"}

func (k OpKind) String() string { return opNames[k] }

func (k OpKind) changes() bool {
	return k != OpRead && k != OpStat && k != OpReadDir && k != OpOpen
}

// Rule makes matching operations fail.
type Rule struct {
	Kind OpKind
	// Name, when set, must be a part of the file's name (of either name, for renames).
	Name string
	// Skip lets that many matching operations pass first.
	Skip int
	// Count is how many then fail; 0 means one, negative means all from there on.
	Count int
	// Err is what they return; nil means "no space left on device".
	Err error
	// Short is how many bytes a failing write puts down first.
	Short int
	// Panic makes the operation panic instead of returning an error.
	Panic bool
	// Before, when set, is called before the matching operation instead of failing it: a place to stand still.
	Before func()
}

// Operation is one operation on a file system, before it is done.
type Operation struct {
	Kind OpKind
	// Name is the file's, or the directory's; To is the new name of a rename.
	Name, To string
	// Bytes is how many a write would put down.
	Bytes int
}

func (o Operation) String() string {
	if o.To != "" {
		return fmt.Sprintf("%s %s to %s", o.Kind, o.Name, filepath.Base(o.To))
	}
	return fmt.Sprintf("%s %s", o.Kind, o.Name)
}

// Failure is how an operation ends that is not to be done, or, a write, to be done in part.
type Failure struct {
	Err   error
	Short int // how many bytes a write puts down all the same
}

// Fault is a file system that fails on purpose. Rules may be added and cleared at any time, from any goroutine.
type Fault struct {
	inner FS
	watch func(Operation) *Failure
	mu    sync.Mutex
	rules []*faultRule
	trace []string
	keep  bool
	count int
	usage map[string][2]int64 // by directory, in place of inner's
}

type faultRule struct {
	Rule
	seen, failed int
}

// NewFault wraps inner.
func NewFault(inner FS, rules ...Rule) *Fault {
	f := &Fault{inner: inner}
	for _, r := range rules {
		f.Add(r)
	}
	return f
}

// Add puts one more rule in force.
func (f *Fault) Add(r Rule) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = append(f.rules, &faultRule{Rule: r})
}

// Watch has fn see every operation, also those that change nothing, before rules do; what it returns ends the operation,
// unless that is nil. It must be called before the file system is used; fn is called on any goroutine that uses it.
func (f *Fault) Watch(fn func(Operation) *Failure) { f.watch = fn }

// Clear drops all rules.
func (f *Fault) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = nil
}

// Trace starts to keep a line for every operation that changes something; Operations returns them.
func (f *Fault) Trace() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.keep, f.trace, f.count = true, nil, 0
}

// Operations are the lines kept since Trace, in order: kind and name.
func (f *Fault) Operations() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.trace...)
}

// Changes counts the operations since Trace, or since the beginning, that change something.
func (f *Fault) Changes() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count
}

// check says whether the operation is to fail, and after how many bytes.
func (f *Fault) check(kind OpKind, names ...string) (short int, err error) {
	return f.checkBytes(kind, 0, names...)
}

func (f *Fault) checkBytes(kind OpKind, bytes int, names ...string) (short int, err error) {
	if f.watch != nil {
		op := Operation{Kind: kind, Name: names[0], Bytes: bytes}
		if len(names) > 1 {
			op.To = names[1]
		}
		if failure := f.watch(op); failure != nil {
			return failure.Short, &os.PathError{Op: kind.String(), Path: names[0], Err: failure.Err}
		}
	}
	f.mu.Lock()
	if kind.changes() {
		f.count++
		if f.keep {
			f.trace = append(f.trace, kind.String()+" "+strings.Join(names, " "))
		}
	}
	var hit *Rule
	for _, r := range f.rules {
		if !r.matches(kind, names) {
			continue
		}
		r.seen++
		limit := r.Count
		if limit == 0 {
			limit = 1
		}
		if r.seen <= r.Skip || (limit > 0 && r.failed >= limit) {
			continue
		}
		r.failed++
		hit = &r.Rule
		break
	}
	f.mu.Unlock()
	switch {
	case hit == nil:
		return 0, nil
	case hit.Before != nil:
		hit.Before()
		return 0, nil
	case hit.Panic:
		panic(fmt.Sprintf("injected panic: %s %s", kind, names[0]))
	case hit.Err != nil:
		return hit.Short, &os.PathError{Op: kind.String(), Path: names[0], Err: hit.Err}
	default:
		return hit.Short, &os.PathError{Op: kind.String(), Path: names[0], Err: syscall.ENOSPC}
	}
}

func (r *faultRule) matches(kind OpKind, names []string) bool {
	if r.Kind == OpAny && !kind.changes() || r.Kind != OpAny && r.Kind != kind {
		return false
	}
	if r.Name == "" {
		return true
	}
	for _, n := range names {
		if strings.Contains(n, r.Name) {
			return true
		}
	}
	return false
}

// OpenFile implements FS. Opening with O_CREATE counts as OpCreate, else as OpOpen.
func (f *Fault) OpenFile(name string, flag int, perm os.FileMode) (File, error) {
	kind := OpOpen
	if flag&os.O_CREATE != 0 {
		kind = OpCreate
	}
	if _, err := f.check(kind, name); err != nil {
		return nil, err
	}
	file, err := f.inner.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return &faultFile{File: file, fs: f, name: name}, nil
}

// ReadDir implements FS.
func (f *Fault) ReadDir(name string) ([]os.DirEntry, error) {
	if _, err := f.check(OpReadDir, name); err != nil {
		return nil, err
	}
	return f.inner.ReadDir(name)
}

// Stat implements FS.
func (f *Fault) Stat(name string) (os.FileInfo, error) {
	if _, err := f.check(OpStat, name); err != nil {
		return nil, err
	}
	return f.inner.Stat(name)
}

// Rename implements FS.
func (f *Fault) Rename(from, to string) error {
	if _, err := f.check(OpRename, from, to); err != nil {
		return err
	}
	return f.inner.Rename(from, to)
}

// Remove implements FS.
func (f *Fault) Remove(name string) error {
	if _, err := f.check(OpRemove, name); err != nil {
		return err
	}
	return f.inner.Remove(name)
}

// RemoveAll implements FS.
func (f *Fault) RemoveAll(name string) error {
	if _, err := f.check(OpRemove, name); err != nil {
		return err
	}
	return f.inner.RemoveAll(name)
}

// MkdirAll implements FS.
func (f *Fault) MkdirAll(name string, perm os.FileMode) error {
	if _, err := f.check(OpMkdir, name); err != nil {
		return err
	}
	return f.inner.MkdirAll(name, perm)
}

// SyncDir implements FS.
func (f *Fault) SyncDir(name string) error {
	if _, err := f.check(OpSyncDir, name); err != nil {
		return err
	}
	return f.inner.SyncDir(name)
}

// SetModTime never fails on purpose: nothing but retention of records without timestamps depends on it.
func (f *Fault) SetModTime(name string, t time.Time) error { return f.inner.SetModTime(name, t) }

// Lock implements FS.
func (f *Fault) Lock(name string) (io.Closer, error) { return f.inner.Lock(name) }

// Usage implements FS.
func (f *Fault) Usage(dir string) (total, usable int64, err error) {
	if _, err := f.check(OpStat, dir); err != nil {
		return 0, 0, err
	}
	f.mu.Lock()
	said, ok := f.usage[dir]
	f.mu.Unlock()
	if ok {
		return said[0], said[1], nil
	}
	return f.inner.Usage(dir)
}

// SetUsage makes Usage of a directory answer so.
func (f *Fault) SetUsage(dir string, total, usable int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.usage == nil {
		f.usage = map[string][2]int64{}
	}
	f.usage[dir] = [2]int64{total, usable}
}

type faultFile struct {
	File
	fs   *Fault
	name string
}

func (f *faultFile) ReadAt(p []byte, off int64) (int, error) {
	if _, err := f.fs.check(OpRead, f.name); err != nil {
		return 0, err
	}
	return f.File.ReadAt(p, off)
}

func (f *faultFile) WriteAt(p []byte, off int64) (int, error) {
	short, err := f.fs.checkBytes(OpWrite, len(p), f.name)
	if err == nil {
		return f.File.WriteAt(p, off)
	}
	n, werr := f.File.WriteAt(p[:min(short, len(p))], off)
	if werr != nil {
		return n, werr
	}
	return n, err
}

func (f *faultFile) Truncate(size int64) error {
	if _, err := f.fs.check(OpTruncate, f.name); err != nil {
		return err
	}
	return f.File.Truncate(size)
}

func (f *faultFile) Sync() error {
	if _, err := f.fs.check(OpSync, f.name); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *faultFile) Size() (int64, error) {
	if _, err := f.fs.check(OpStat, f.name); err != nil {
		return 0, err
	}
	return f.File.Size()
}

// OSFile lends nothing: a read that goes around this wrapper could not be made to fail.
func (f *faultFile) OSFile() (*os.File, bool) { return nil, false }
