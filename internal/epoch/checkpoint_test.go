package epoch

import (
	"errors"
	"io/fs"
	"syscall"
	"testing"

	"github.com/stelelog/stele/internal/vfs"
)

// The file holds what the format says, byte for byte, and reads back as the same value.
func TestCheckpointFormat(t *testing.T) {
	t.Parallel()
	c := cache(t, 2, 20, 3, 35, 6, 50, 7, 80)
	const want = "0\n4\n2 20\n3 35\n6 50\n7 80\n"
	if got := string(Format(c)); got != want {
		t.Fatalf("%q", got)
	}
	fsys := vfs.NewMem()
	if _, err := Read(fsys, "/"+CheckpointName); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("missing file: %v", err)
	}
	if err := Write(fsys, "/"+CheckpointName, c); err != nil {
		t.Fatal(err)
	}
	got, err := Read(fsys.CrashClone(vfs.LoseUnsynced, 0), "/"+CheckpointName)
	if err != nil || !got.Equal(c) {
		t.Fatalf("after a crash: %v, %v", got, err)
	}
}

// Damaged content is refused with its line, an empty file is an empty cache.
func TestCheckpointDamage(t *testing.T) {
	t.Parallel()
	for in, ok := range map[string]bool{
		"": true, "0": true, "0\n": true, "0\n0\n": true, "0\n1\n3 5\n": true, "0\n1\n3 5": true, "0\n1\n3\t5\n": true,
		"1\n0\n": false, "0\n5\n1 1\n": false, "0\n0\n1 1\n": false, "0\n1\n1\n": false, "0\n1\n1 2 3\n": false, "0\nx\n": false,
		"0\n1\nx 1\n": false, "0\n1\n1 -1\n": false, "0\n2\n2 1\n1 5\n": false, "0\n2\n1 5\n2 5\n": false, "0\n-1\n": false,
		"0\n9999999999\n": false, "x": false,
	} {
		_, err := Parse([]byte(in))
		var bad *CorruptError
		if (err == nil) != ok || err != nil && !errors.As(err, &bad) {
			t.Errorf("%q: %v", in, err)
		}
	}
}

// A write that fails at any of its steps leaves the old content readable.
func TestCheckpointWriteFails(t *testing.T) {
	t.Parallel()
	old, next := cache(t, 1, 1), cache(t, 1, 1, 2, 5)
	for _, kind := range []vfs.OpKind{vfs.OpCreate, vfs.OpWrite, vfs.OpSync, vfs.OpRename} {
		mem := vfs.NewMem()
		if err := Write(mem, "/"+CheckpointName, old); err != nil {
			t.Fatal(err)
		}
		err := Write(vfs.NewFault(mem, vfs.Rule{Kind: kind}), "/"+CheckpointName, next)
		if !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%v: %v", kind, err)
		}
		if got, err := Read(mem, "/"+CheckpointName); err != nil || !got.Equal(old) {
			t.Errorf("%v: %v, %v", kind, got, err)
		}
	}
}

// Any bytes either parse into a cache that formats and parses to itself, or are a *CorruptError.
func FuzzCheckpoint(f *testing.F) {
	f.Add([]byte("0\n2\n2 20\n3 35\n"))
	f.Add([]byte("0\n1\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data)
		if err != nil {
			var bad *CorruptError
			if !errors.As(err, &bad) {
				t.Fatal(err)
			}
			return
		}
		again, err := Parse(Format(c))
		if err != nil || !again.Equal(c) {
			t.Fatalf("%v, %v", again, err)
		}
	})
}
