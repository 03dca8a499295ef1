package log

import (
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/vfs"
)

// countingFS counts the files that are open.
type countingFS struct {
	vfs.FS
	open *atomic.Int64
}

type countedFile struct {
	vfs.File
	open   *atomic.Int64
	closed atomic.Bool
}

func (c countingFS) OpenFile(name string, flag int, perm os.FileMode) (vfs.File, error) {
	f, err := c.FS.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	c.open.Add(1)
	return &countedFile{File: f, open: c.open}, nil
}

func (f *countedFile) Close() error {
	if !f.closed.Swap(true) {
		f.open.Add(-1)
	}
	return f.File.Close()
}

// Rolls, truncations, retention, new starts and failed openings leave no file open that neither the log nor a view
// needs: one for each segment, two more for a large sealed one, and none once all is closed.
func TestFilesAreClosed(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{SegmentBytes: 1 << 17, IndexIntervalBytes: 1, RetentionMs: 1000})
	open := &atomic.Int64{}
	fault := vfs.NewFault(x.mem)
	x.fs = countingFS{fault, open}
	x.open()
	fill := func(segments int) {
		for i := int64(0); x.log.SegmentCount() < segments; i++ {
			x.append(batch(1, 100, ts0+i))
		}
	}
	expect := func(when string, want int64) {
		t.Helper()
		if got := open.Load(); got != want {
			t.Errorf("%s: %d files are open, want %d", when, got, want)
		}
	}
	fill(4)
	expect("after rolls", 3*3+1)
	v := x.log.View()
	if err := x.log.TruncateTo(x.leo()/2, "test"); err != nil {
		t.Fatal(err)
	}
	expect("after a truncation under a view", 3*3+1+1)
	v.Release()
	expect("after the view", 3+1)
	fill(4)
	if n, err := x.log.Retain(x.now.Add(time.Hour)); err != nil || n != 4 {
		t.Fatal(n, err)
	}
	expect("after retention", 1)
	fill(3)
	if err := x.log.TruncateFullyAndStartAt(9, "test"); err != nil {
		t.Fatal(err)
	}
	expect("after a new start", 1)
	fill(3)
	x.close()
	expect("after closing", 0)
	fault.Add(vfs.Rule{Kind: vfs.OpRead, Name: "checkpoint"})
	if _, err := Open(x.options()); err == nil {
		t.Fatal("opened without its checkpoint")
	}
	expect("after a failed opening", 0)
	x.open(clean).close()
	expect("after all", 0)
}
