package vfs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"
)

// each runs a test on every file system that ought to behave alike.
func each(t *testing.T, f func(t *testing.T, fsys FS, dir string)) {
	for name, open := range map[string]func(t *testing.T) (FS, string){
		"os":    func(t *testing.T) (FS, string) { return OS(), t.TempDir() },
		"mem":   func(t *testing.T) (FS, string) { m := NewMem(); _ = m.MkdirAll("/d", 0o755); return m, "/d" },
		"fault": func(t *testing.T) (FS, string) { return NewFault(OS()), t.TempDir() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fsys, dir := open(t)
			f(t, fsys, dir)
		})
	}
}

func write(t *testing.T, fsys FS, name string, off int64, data string) {
	t.Helper()
	f, err := fsys.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if n, err := f.WriteAt([]byte(data), off); n != len(data) || err != nil {
		t.Fatal(n, err)
	}
}

func read(t *testing.T, fsys FS, name string) string {
	t.Helper()
	data, err := ReadFile(fsys, name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// The file systems agree on what files, directories and errors do.
func TestFileSystemsAgree(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, fsys FS, dir string) {
		a, b, sub := filepath.Join(dir, "a"), filepath.Join(dir, "b"), filepath.Join(dir, "x", "y")
		if _, err := fsys.OpenFile(a, os.O_RDONLY, 0); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("open a missing file: %v", err)
		}
		write(t, fsys, a, 0, "hello")
		write(t, fsys, a, 7, "world")
		if got := read(t, fsys, a); got != "hello\x00\x00world" {
			t.Errorf("%q", got)
		}
		f, err := fsys.OpenFile(a, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Truncate(3); err != nil {
			t.Fatal(err)
		}
		if err := f.Truncate(6); err != nil {
			t.Fatal(err)
		}
		if got := read(t, fsys, a); got != "hel\x00\x00\x00" {
			t.Errorf("%q", got)
		}
		if err := fsys.Rename(a, b); err != nil {
			t.Fatal(err)
		}
		write(t, fsys, a, 0, "new")
		if n, err := f.Size(); n != 6 || err != nil {
			t.Errorf("an open file does not follow its rename: %d %v", n, err)
		}
		if err := fsys.Remove(b); err != nil {
			t.Fatal(err)
		}
		p := make([]byte, 3)
		if _, err := f.ReadAt(p, 0); err != nil || string(p) != "hel" {
			t.Errorf("a removed file is not readable: %q %v", p, err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if _, err := f.ReadAt(p, 0); !errors.Is(err, fs.ErrClosed) {
			t.Errorf("read a closed file: %v", err)
		}
		if err := fsys.MkdirAll(sub, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := fsys.Remove(filepath.Dir(sub)); err == nil {
			t.Error("a directory with entries can be removed")
		}
		if err := fsys.Rename(filepath.Dir(sub), filepath.Join(dir, "z")); err != nil {
			t.Fatal(err)
		}
		var names []string
		entries, err := fsys.ReadDir(dir)
		for _, e := range entries {
			names = append(names, fmt.Sprint(e.Name(), e.IsDir()))
		}
		if fmt.Sprint(names) != "[afalse ztrue]" || err != nil {
			t.Errorf("%v %v", names, err)
		}
		if err := fsys.RemoveAll(filepath.Join(dir, "z")); err != nil {
			t.Error(err)
		}
		if _, err := fsys.Stat(sub); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("stat what is gone: %v", err)
		}
		lock, err := fsys.Lock(filepath.Join(dir, ".lock"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fsys.Lock(filepath.Join(dir, ".lock")); !errors.Is(err, ErrLocked) {
			t.Errorf("lock twice: %v", err)
		}
		lock.Close()
		if lock, err = fsys.Lock(filepath.Join(dir, ".lock")); err != nil {
			t.Errorf("lock again: %v", err)
		} else {
			lock.Close()
		}
		if total, usable, err := fsys.Usage(dir); total <= 0 || usable < 0 || usable > total || err != nil {
			t.Errorf("usage %d of %d, %v", usable, total, err)
		}
		if err := WriteFileAtomic(fsys, a, []byte("atomic")); err != nil || read(t, fsys, a) != "atomic" {
			t.Errorf("%v", err)
		}
	})
}

// A crash spares synced bytes and synced names, and nothing else is sure.
func TestMemCrash(t *testing.T) {
	t.Parallel()
	m := NewMem()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(m.MkdirAll("/d", 0o755))
	must(m.SyncDir("/"))
	write(t, m, "/d/a", 0, "synced")
	f, err := m.OpenFile("/d/a", os.O_RDWR, 0)
	must(err)
	must(f.Sync())
	must(m.SyncDir("/d"))
	write(t, m, "/d/a", 6, " and not")
	write(t, m, "/d/b", 0, "name not synced")
	must(m.Rename("/d/a", "/d/c"))
	lost := m.CrashClone(LoseUnsynced, 0)
	if got := read(t, lost, "/d/a"); got != "synced" {
		t.Errorf("%q", got)
	}
	for _, n := range []string{"/d/b", "/d/c"} {
		if _, err := lost.Stat(n); err == nil {
			t.Errorf("%s has survived", n)
		}
	}
	if got := read(t, m.CrashClone(LoseNothing, 0), "/d/c"); got != "synced and not" {
		t.Errorf("%q", got)
	}
	if got := read(t, m, "/d/c"); got != "synced and not" {
		t.Errorf("the original changed: %q", got)
	}
	for seed := range uint64(50) {
		c := m.CrashClone(LoseSome, seed)
		name := "/d/a"
		if _, err := c.Stat(name); err != nil {
			name = "/d/c"
		}
		if got := read(t, c, name); len(got) < 6 || got[:6] != "synced" {
			t.Errorf("seed %d: %q", seed, got)
		}
		if a, b := read(t, c, name), read(t, m.CrashClone(LoseSome, seed), name); a != b {
			t.Errorf("seed %d: %q and %q", seed, a, b)
		}
	}
}

// After any writes and truncations the worst crash leaves the bytes as they were at the last sync.
func TestMemCrashProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := NewMem()
		f, err := m.OpenFile("/f", os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil || m.SyncDir("/") != nil {
			t.Fatal(err)
		}
		var synced []byte
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			at := rapid.Int64Range(0, 40).Draw(t, "at")
			switch rapid.IntRange(0, 3).Draw(t, "op") {
			case 0, 1:
				_, err = f.WriteAt(rapid.SliceOfN(rapid.Byte(), 1, 20).Draw(t, "data"), at)
			case 2:
				err = f.Truncate(at)
			case 3:
				if err = f.Sync(); err == nil {
					synced, err = ReadFile(m, "/f")
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			got, err := ReadFile(m.CrashClone(LoseUnsynced, 0), "/f")
			if err != nil || !bytes.Equal(got, synced) {
				t.Fatalf("%x, %v; synced were %x", got, err, synced)
			}
		}
	})
}

// Rules hit the operations they name, as often as they say, with their error and no other operation.
func TestFaultRules(t *testing.T) {
	t.Parallel()
	m := NewMem()
	f := NewFault(m, Rule{Kind: OpWrite, Name: "a", Skip: 1, Short: 2})
	write(t, f, "/a", 0, "first")
	file, err := f.OpenFile("/a", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := file.WriteAt([]byte("second"), 5); n != 2 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("%d %v", n, err)
	}
	if got := read(t, m, "/a"); got != "firstse" {
		t.Errorf("%q", got)
	}
	if n, err := file.WriteAt([]byte("third"), 5); n != 5 || err != nil {
		t.Errorf("%d %v", n, err)
	}
	f.Add(Rule{Kind: OpSync, Count: -1, Err: syscall.EIO})
	for range 3 {
		if err := file.Sync(); !errors.Is(err, syscall.EIO) {
			t.Errorf("%v", err)
		}
	}
	f.Clear()
	f.Trace()
	if err := file.Sync(); err != nil || fmt.Sprint(f.Operations()) != "[sync /a]" {
		t.Errorf("%v %v", err, f.Operations())
	}
	f.Add(Rule{Kind: OpTruncate, Panic: true})
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	_ = file.Truncate(0)
}

// A loss of power spares the first so many changes of a directory, or, on a file system that keeps them in no order, any of them.
func TestMemCrashKeepsOrderOrNot(t *testing.T) {
	t.Parallel()
	m := NewMem()
	for _, name := range []string{"/d/a", "/d/b"} {
		if err := errors.Join(m.MkdirAll("/d", 0o755), WriteFileAtomic(m, name, []byte("x"))); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(m.SyncDir("/"), m.SyncDir("/d"), m.Rename("/d/a", "/d/a2"), m.Rename("/d/b", "/d/b2")); err != nil {
		t.Fatal(err)
	}
	for loss, want := range map[Loss]string{LoseNothing: "[a2 b2]", LoseUnsynced: "[a b]", LoseSome: "[a b] [a2 b2] [a2 b]", LoseAny: "[a b] [a b2] [a2 b] [a2 b2]"} {
		seen := map[string]bool{}
		for seed := range uint64(60) {
			var names []string
			entries, err := m.CrashClone(loss, seed).ReadDir("/d")
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				names = append(names, e.Name())
			}
			seen[fmt.Sprint(names)] = true
		}
		for image := range seen {
			if !strings.Contains(want, image) {
				t.Errorf("loss %d: %s", loss, image)
			}
		}
		if len(seen) != strings.Count(want, "[") {
			t.Errorf("loss %d: only %v", loss, seen)
		}
	}
}
