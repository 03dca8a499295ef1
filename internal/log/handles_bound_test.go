package log

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/vfs"
)

// boundedBroker is a broker whose logs may have so many files open, on a file system that counts them.
func boundedBroker(t *testing.T, limit int) (*broker, *atomic.Int64, *vfs.Fault) {
	t.Helper()
	b := newBroker(t, "/d")
	open := &atomic.Int64{}
	fault := vfs.NewFault(b.mem)
	b.fs = countingFS{fault, open}
	b.limit = limit
	return b.start(), open, fault
}

// Many logs share few handles: files are opened when they are used and closed for others, reads and writes find what was
// written whatever was closed in between, after a clean start idle logs have none open, and in the end none is.
func TestManyLogsShareFewHandles(t *testing.T) {
	t.Parallel()
	const limit, logs = 20, 100
	b, open, _ := boundedBroker(t, limit)
	for p := range int32(logs) {
		b.create("t", p, Config{SegmentBytes: 1000, FileDeleteDelayMs: 1})
	}
	for range 5 {
		for p := range int32(logs) {
			b.produce("t", p, 2)
		}
		if n := open.Load(); n > limit+1 { // the lock is no file
			t.Errorf("%d files are open", n)
		}
	}
	check := func(when string) {
		t.Helper()
		for p := range int32(logs) {
			l, _ := b.dirs.Log("t", p)
			v := l.View()
			for offset := int64(0); offset < v.EndOffset; offset++ {
				d, err := v.Read(offset, v.EndOffset, 100, true)
				if err != nil {
					t.Fatalf("%s: %d of t-%d: %v", when, offset, p, err)
				}
				if raw, err := d.ReadAll(nil); err != nil || len(raw) == 0 {
					t.Fatalf("%s: %d of t-%d: %v", when, offset, p, err)
				}
			}
			v.Release()
		}
		if n := open.Load(); n > limit+1 {
			t.Errorf("%s: %d files are open", when, n)
		}
	}
	check("while running")
	if s := b.dirs.Handles(); s.Limit != limit || s.Open > limit || s.Closed == 0 || s.Opened-s.Closed != int64(s.Open) {
		t.Errorf("%+v", s)
	}
	b.stop()
	if n := open.Load(); n != 0 {
		t.Errorf("%d files are open after the stop", n)
	}
	b.start()
	check("started again")
	b.stop()
	if n := open.Load(); n != 0 {
		t.Errorf("%d files are open after all", n)
	}
}

// A reader keeps what it reads through everything that takes names away: retention, truncation, a cut under it, compaction
// and the deletion of the log, each with the file closed for want of handles at that moment.
func TestClosedFilesOutliveTheirNames(t *testing.T) {
	t.Parallel()
	for name, act := range map[string]func(b *broker, l *Log){
		"retention": func(b *broker, l *Log) {
			l.SetConfig(Config{SegmentBytes: 1000, RetentionBytes: 1})
			if n, err := l.Retain(b.now); n == 0 || err != nil {
				t.Error(n, err)
			}
			l.DeleteDue(b.now.Add(farAhead))
		},
		"truncation": func(b *broker, l *Log) {
			if err := l.TruncateTo(9, "test"); err != nil {
				t.Error(err)
			}
			l.DeleteDue(b.now.Add(farAhead))
		},
		"start over": func(b *broker, l *Log) {
			if err := l.TruncateFullyAndStartAt(100, "test"); err != nil {
				t.Error(err)
			}
			l.DeleteDue(b.now.Add(farAhead))
		},
		"deletion": func(b *broker, l *Log) {
			if err := b.dirs.Delete(l.tp()); err != nil {
				t.Error(err)
			}
			b.dirs.Housekeep(b.now.Add(farAhead))
		},
	} {
		b, open, _ := boundedBroker(t, leastHandles)
		l := b.create("t", 0, Config{SegmentBytes: 1000})
		b.produce("t", 0, 40)
		for p := range int32(4) { // pushes every file of t out
			b.create("other", p, Config{SegmentBytes: 1000})
			b.produce("other", p, 40)
		}
		v := l.View()
		act(b, l)
		for p := range int32(4) {
			b.produce("other", p, 40)
		}
		for offset := int64(0); offset < v.EndOffset; offset++ {
			d, err := v.Read(offset, v.EndOffset, 100, true)
			if name == "deletion" && errors.Is(err, ErrClosed) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %d: %v", name, offset, err)
			}
			if raw, err := d.ReadAll(nil); err != nil || len(raw) == 0 {
				t.Fatalf("%s: %d: %v", name, offset, err)
			}
		}
		if off := b.dirs.Offline(); len(off) > 0 {
			t.Errorf("%s: offline %v", name, off)
		}
		v.Release()
		b.stop()
		if n := open.Load(); n != 0 {
			t.Errorf("%s: %d files are open after all", name, n)
		}
	}
}

// A file with writes that were not synced is synced before it is closed for want of handles; when that fails, the next
// sync says so, and the log's directory goes offline as it would have.
func TestAFailedSyncIsNotLostWithTheHandle(t *testing.T) {
	t.Parallel()
	b, _, fault := boundedBroker(t, leastHandles)
	l := b.create("t", 0, Config{})
	b.produce("t", 0, 1)
	fault.Add(vfs.Rule{Kind: vfs.OpSync, Name: "t-0", Err: syscall.EIO})
	for p := range int32(3 * leastHandles) {
		b.create("other", p, Config{})
		b.produce("other", p, 1)
	}
	fault.Clear() // the disk would take a second sync for the first
	var se *StorageError
	if err := l.Flush(); !errors.As(err, &se) || !se.Offline || !errors.Is(err, syscall.EIO) {
		t.Fatalf("flush: %v", err)
	}
	if dir := <-b.offline; dir != "/d" {
		t.Error(dir)
	}
	b.dirs.Abandon()
}

// Missing file handles take nothing offline: the call is refused, or waits until there are some.
func TestMissingHandlesTakeNothingOffline(t *testing.T) {
	t.Parallel()
	b, _, fault := boundedBroker(t, leastHandles)
	l := b.create("t", 0, Config{})
	b.produce("t", 0, 1)
	for p := range int32(2 * leastHandles) {
		b.create("other", p, Config{})
		b.produce("other", p, 1)
	}
	fault.Add(vfs.Rule{Kind: vfs.OpOpen, Name: "t-0/", Count: 5, Err: syscall.EMFILE})
	b.produce("t", 0, 1)
	if l.Err() != nil || len(b.dirs.Offline()) > 0 {
		t.Error(l.Err(), b.dirs.Offline())
	}
	b.stop()
}

// Under many goroutines every call finds its file open, whatever is closed meanwhile, and closes end.
func TestHandlesUnderLoad(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem()
	hs := NewHandles(mem, leastHandles)
	var files []vfs.File
	for i := range int64(60) {
		f, err := mem.OpenFile("/"+logName(i), os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(fmt.Appendf(nil, "%08d", i), 0); err != nil {
			t.Fatal(err)
		}
		files = append(files, hs.adopt(f, "/", i, logFile, false))
	}
	var wg sync.WaitGroup
	until := time.Now().Add(300 * time.Millisecond)
	for w := range uint64(8) {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(w, 1))
			buf := make([]byte, 8)
			for time.Now().Before(until) {
				i := random.IntN(50)
				var err error
				switch random.IntN(10) {
				case 0:
					_, err = files[i].WriteAt(fmt.Appendf(nil, "%08d", i), 0)
				case 1:
					err = files[i].Sync()
				case 2:
					_, err = files[i].Size()
				case 3:
					holdFile(files[i])
					nameFile(files[i])
				}
				if _, e := files[i].ReadAt(buf, 0); e != nil || err != nil || string(buf) != fmt.Sprintf("%08d", i) {
					t.Errorf("%d: %q, %v, %v", i, buf, e, err)
					return
				}
			}
		})
	}
	for _, f := range files[50:] {
		wg.Go(func() { f.Close() })
	}
	wg.Wait()
	for _, f := range files {
		f.Close()
		if _, err := f.ReadAt(make([]byte, 1), 0); !errors.Is(err, ErrClosed) {
			t.Errorf("a read of a closed file: %v", err)
		}
	}
	if s := hs.Stats(); s.Open != 0 {
		t.Errorf("%+v", s)
	}
}
