package log

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/vfs"
)

// broker is the log directories of one broker in memory.
type broker struct {
	t       testing.TB
	mem     *vfs.Mem
	fs      vfs.FS
	paths   []string
	now     time.Time
	dirs    *Dirs
	mu      sync.Mutex
	offline chan string
	out     strings.Builder
	limit   int // of open files, 0 none
}

func newBroker(t testing.TB, paths ...string) *broker {
	m := vfs.NewMem()
	return &broker{t: t, mem: m, fs: m, paths: paths, now: time.UnixMilli(ts0), offline: make(chan string, 8)}
}

func (b *broker) options() DirsOptions {
	return DirsOptions{FS: b.fs, Paths: b.paths, MaxOpenFiles: b.limit, Now: func() time.Time { return b.now },
		Logger:    slog.New(slog.NewTextHandler(&lockedWriter{b: b}, nil)),
		OnOffline: func(dir string, _ error) { b.offline <- dir }}
}

type lockedWriter struct{ b *broker }

func (w *lockedWriter) Write(p []byte) (int, error) {
	w.b.mu.Lock()
	defer w.b.mu.Unlock()
	return w.b.out.Write(p)
}

func (b *broker) warnings() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Count(b.out.String(), "level=WARN")
}

var topicID = [16]byte{7}

func keepAll(TopicPartition, [16]byte) Verdict { return Verdict{Keep: true} }

func (b *broker) start() *broker {
	b.t.Helper()
	d, err := OpenDirs(b.options())
	if err != nil {
		b.t.Fatal(err)
	}
	b.dirs = d
	if failed, err := d.Load(context.Background(), keepAll); err != nil || len(failed) > 0 {
		b.t.Fatal(err, failed)
	}
	return b
}

func (b *broker) stop() *broker {
	b.t.Helper()
	if err := b.dirs.Close(context.Background(), 42); err != nil {
		b.t.Fatal(err)
	}
	return b
}

func (b *broker) kill(loss vfs.Loss) *broker {
	clone := b.mem.CrashClone(loss, 1)
	b.dirs.Abandon()
	b.mem, b.fs = clone, clone
	return b
}

func (b *broker) create(topic string, p int32, cfg Config) *Log {
	b.t.Helper()
	l, err := b.dirs.Create(TopicPartition{topic, p}, topicID, cfg, "", true)
	if err != nil {
		b.t.Fatal(err)
	}
	return l
}

func (b *broker) produce(topic string, p int32, n int) {
	b.t.Helper()
	l, ok := b.dirs.Log(topic, p)
	if !ok {
		b.t.Fatalf("no log %s-%d", topic, p)
	}
	for range n {
		info, err := l.AppendAsLeader(batch(1, 100, ts0), 0, AppendOptions{})
		if err != nil {
			b.t.Fatal(err)
		}
		l.SetHighWatermark(info.LastOffset + 1)
	}
}

func (b *broker) file(path string) string {
	b.t.Helper()
	data, err := vfs.ReadFile(b.fs, path)
	if err != nil {
		b.t.Fatal(err)
	}
	return string(data)
}

// The checkpoints have Kafka's format, one line per partition; the log-start file names a partition only when its
// log start is not its first segment's base; a clean stop leaves the marker and no lock.
func TestS026_checkpoints(t *testing.T) {
	t.Parallel()
	b := newBroker(t, "/d").start()
	b.create("t", 0, Config{})
	b.create("u-v", 17, Config{})
	b.produce("t", 0, 5)
	b.produce("u-v", 17, 2)
	if err := b.dirs.CheckpointHighWatermarks(); err != nil {
		t.Fatal(err)
	}
	if got := b.file("/d/replication-offset-checkpoint"); got != "0\n2\nt 0 5\nu-v 17 2\n" {
		t.Errorf("high watermarks %q", got)
	}
	l, _ := b.dirs.Log("t", 0)
	if err := l.AdvanceLogStart(3, "DeleteRecords"); err != nil {
		t.Fatal(err)
	}
	if got := b.file("/d/log-start-offset-checkpoint"); got != "0\n1\nt 0 3\n" {
		t.Errorf("log starts %q", got)
	}
	if c := b.mem.CrashClone(vfs.LoseUnsynced, 0); string(must(vfs.ReadFile(c, "/d/log-start-offset-checkpoint"))) != "0\n1\nt 0 3\n" {
		t.Error("the log start is not durable")
	}
	b.stop()
	if got := b.file("/d/recovery-point-offset-checkpoint"); got != "0\n2\nt 0 5\nu-v 17 2\n" {
		t.Errorf("recovery points %q", got)
	}
	if got := b.file("/d/.kafka_cleanshutdown"); got != `{"version":0,"brokerEpoch":42}` {
		t.Errorf("marker %q", got)
	}
	if _, err := b.fs.Stat("/d/.lock"); err == nil {
		t.Error("the lock file is left")
	}
	b.start()
	if e, ok := b.dirs.CleanBrokerEpoch(); !ok || e != 42 {
		t.Errorf("broker epoch %d %v", e, ok)
	}
	if _, err := b.fs.Stat("/d/.kafka_cleanshutdown"); err == nil {
		t.Error("the marker is left")
	}
	l, _ = b.dirs.Log("t", 0)
	v := l.View()
	defer v.Release()
	if v.LogStartOffset != 3 || v.EndOffset != 5 || v.HighWatermark != 5 {
		t.Errorf("[%d,%d) hw %d", v.LogStartOffset, v.EndOffset, v.HighWatermark)
	}
	b.stop()
}

// A second process on the same directory fails and names the lock; the first one is unharmed.
func TestS027_lock(t *testing.T) {
	t.Parallel()
	for name, b := range map[string]*broker{"mem": newBroker(t, "/d"), "os": {t: t, mem: vfs.NewMem(), fs: vfs.OS(), paths: []string{t.TempDir()}, now: time.UnixMilli(ts0)}} {
		b.start()
		b.create("t", 0, Config{})
		_, err := OpenDirs(b.options())
		if !errors.Is(err, vfs.ErrLocked) || !strings.Contains(err.Error(), ".lock") {
			t.Errorf("%s: %v", name, err)
		}
		b.produce("t", 0, 1)
		b.stop().start()
		b.produce("t", 0, 1)
		b.stop()
	}
}

// A deleted topic's directory is renamed to at most 255 bytes and gone after the delay; one that a crash left is
// deleted by the next process.
func TestS028_delete(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 249)
	b := newBroker(t, "/d").start()
	b.create(long, 0, Config{})
	b.create("kept", 0, Config{})
	b.create("late", 0, Config{})
	b.produce(long, 0, 1)
	if err := b.dirs.Delete(TopicPartition{long, 0}); err != nil {
		t.Fatal(err)
	}
	names := func() (out []string) {
		for _, e := range must(b.fs.ReadDir("/d")) {
			if e.IsDir() {
				out = append(out, e.Name())
			}
		}
		return out
	}
	deleted := names()[2]
	if tp, suffix, ok := parseDirName(deleted); len(deleted) > 255 || !ok || suffix != "-delete" || !strings.HasPrefix(long, tp.Topic) {
		t.Errorf("%d bytes: %s", len(deleted), deleted)
	}
	b.dirs.Housekeep(b.now.Add(59 * time.Second))
	if len(names()) != 3 {
		t.Errorf("too early: %v", names())
	}
	b.dirs.Housekeep(b.now.Add(60 * time.Second))
	if got := fmt.Sprint(names()); got != "[kept-0 late-0]" {
		t.Errorf("directories %s", got)
	}
	if err := b.dirs.Delete(TopicPartition{"late", 0}); err != nil {
		t.Fatal(err)
	}
	b.kill(vfs.LoseNothing).start()
	b.dirs.Housekeep(b.now.Add(61 * time.Second))
	if got := fmt.Sprint(names()); got != "[kept-0]" {
		t.Errorf("after a restart: directories %s", got)
	}
	b.stop()
}

// After a roll the sealed segment is synced in the background and the recovery point is its successor's base.
func TestS041_roll_raises_the_recovery_point(t *testing.T) {
	t.Parallel()
	b := newBroker(t, "/d").start()
	l := b.create("t", 0, Config{SegmentBytes: 500})
	b.produce("t", 0, 6)
	done := make(chan struct{})
	b.dirs.enqueue(func() { close(done) }) // one directory has one worker: what was queued before is done by then
	<-done
	if l.RecoveryPoint() != l.cur.Load().list.last().base {
		t.Fatalf("recovery point %d", l.RecoveryPoint())
	}
	c := b.mem.CrashClone(vfs.LoseUnsynced, 0)
	if _, err := c.Stat("/d/t-0/" + snapshotName(l.RecoveryPoint())); err != nil {
		t.Errorf("the snapshot is not durable: %v", err)
	}
	// What runs every log.flush.offset.checkpoint.interval.ms puts it on record.
	if err := b.dirs.CheckpointPositions(); err != nil {
		t.Fatal(err)
	}
	if got, want := b.file("/d/"+RecoveryPointCheckpoint), fmt.Sprintf("0\n1\nt 0 %d\n", l.RecoveryPoint()); got != want {
		t.Errorf("recovery points %q, want %q", got, want)
	}
	b.stop()
}

// Damaged checkpoints are put aside with one warning each; nothing is lost.
func TestS060_damaged_checkpoints(t *testing.T) {
	t.Parallel()
	for _, content := range []string{"", "0\n", "9\n0\n", "0\n5\nt 0 1\n", "0\n1\nt zero 1\n", "0\n1\nt 0 x\n", "abc"} {
		b := newBroker(t, "/d").start()
		b.create("t", 0, Config{})
		b.produce("t", 0, 7)
		b.stop()
		for _, n := range []string{RecoveryPointCheckpoint, LogStartCheckpoint, HighWatermarkCheckpoint, CleanerCheckpoint} {
			if err := vfs.WriteFileAtomic(b.fs, "/d/"+n, []byte(content)); err != nil {
				t.Fatal(err)
			}
		}
		before := b.warnings()
		b.start()
		want := 4
		if content == "" || content == "0\n" {
			want = 0 // Kafka makes the files empty before it writes them
		}
		if got := b.warnings() - before; got != want {
			t.Errorf("%q: %d warnings", content, got)
		}
		l, _ := b.dirs.Log("t", 0)
		if v := l.View(); v.EndOffset != 7 || v.HighWatermark != 0 {
			t.Errorf("%q: end %d, hw %d", content, v.EndOffset, v.HighWatermark)
		}
		v := l.View()
		if got := len(readAll(t, v)); got != 7 {
			t.Errorf("%q: %d batches are left of 7", content, got)
		}
		v.Release()
		b.stop()
	}
}

// Without the marker everything unsynced is scanned; a marker of any content means clean: nothing is scanned, and its epoch is
// perhaps unknown. It is gone, durably, before anything is loaded.
func TestS061_marker(t *testing.T) {
	t.Parallel()
	type start struct {
		content string
		removed bool
		scanned bool
		epoch   int64
	}
	for _, c := range []start{{removed: true, scanned: true, epoch: -1}, {content: "", epoch: -1}, {content: "{}", epoch: -1}, {content: `{"version":0}`, epoch: -1},
		{content: "rubbish", epoch: -1}, {content: `{"version":0,"brokerEpoch":9}`, epoch: 9}} {
		b := newBroker(t, "/d").start()
		b.create("t", 0, Config{SegmentBytes: 350})
		b.produce("t", 0, 7)
		b.stop()
		if c.removed {
			if err := b.fs.Remove("/d/" + CleanShutdownName); err != nil {
				t.Fatal(err)
			}
		} else if err := vfs.WriteFileAtomic(b.fs, "/d/"+CleanShutdownName, []byte(c.content)); err != nil {
			t.Fatal(err)
		}
		if err := vfs.WriteFileAtomic(b.fs, "/d/"+RecoveryPointCheckpoint, []byte("0\n1\nt 0 4\n")); err != nil {
			t.Fatal(err)
		}
		d, err := OpenDirs(b.options())
		if err != nil {
			t.Fatal(err)
		}
		b.dirs = d
		if _, err := b.mem.CrashClone(vfs.LoseUnsynced, 0).Stat("/d/" + CleanShutdownName); err == nil {
			t.Errorf("%+v: the marker would be back after a crash", c)
		}
		if failed, err := d.Load(context.Background(), keepAll); err != nil || len(failed) > 0 {
			t.Fatal(err, failed)
		}
		if got := d.LoadProgress().BytesDone > 0; got != c.scanned {
			t.Errorf("%+v: scanned %v", c, got)
		}
		if got, ok := d.CleanBrokerEpoch(); ok != (c.epoch >= 0) || ok && got != c.epoch {
			t.Errorf("%+v: broker epoch %d %v", c, got, ok)
		}
		l, _ := d.Log("t", 0)
		if v := l.View(); v.EndOffset != 7 {
			t.Errorf("%+v: end %d", c, v.EndOffset)
		}
		b.stop()
	}
}

// Directories that belong to nobody are renamed or left alone, with a warning, and never deleted.
func TestS062_strays(t *testing.T) {
	t.Parallel()
	b := newBroker(t, "/d").start()
	b.create("t", 0, Config{})
	b.create("u", 0, Config{})
	b.produce("t", 0, 3)
	b.stop()
	for _, n := range []string{"/d/nodash", "/d/x-y", "/d/z-1-delete", "/d/remote-log-index-cache", "/d/__cluster_metadata-0"} {
		if err := b.fs.MkdirAll(n, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	d, err := OpenDirs(b.options())
	if err != nil {
		t.Fatal(err)
	}
	before := b.warnings()
	failed, err := d.Load(context.Background(), func(tp TopicPartition, id [16]byte) Verdict {
		if id != topicID {
			t.Errorf("%v: topic id %v", tp, id)
		}
		return Verdict{Keep: tp.Topic == "u", Reason: "deleted"}
	})
	if err != nil || len(failed) > 0 {
		t.Fatal(err, failed)
	}
	if len(d.Logs()) != 1 || b.warnings()-before != 4 {
		t.Errorf("%d logs, %d warnings", len(d.Logs()), b.warnings()-before)
	}
	found := false
	for _, e := range must(b.fs.ReadDir("/d")) {
		tp, suffix, ok := parseDirName(e.Name())
		found = found || ok && suffix == "-stray" && tp.Topic == "t"
	}
	if !found {
		t.Error("no stray directory")
	}
	b.dirs = d
	b.stop()
}

// When a write is not to be had from one directory, it goes offline and the other one serves on; without any the
// broker is told so.
func TestS064_directory_fails(t *testing.T) {
	t.Parallel()
	b := newBroker(t, "/a", "/b")
	f := vfs.NewFault(b.mem)
	b.fs = f
	b.start()
	b.create("t", 0, Config{})
	b.create("t", 1, Config{})
	dirA, _ := b.dirs.DirOf(TopicPartition{"t", 0})
	dirB, _ := b.dirs.DirOf(TopicPartition{"t", 1})
	if dirA == dirB {
		t.Fatalf("both logs are in %s", dirA)
	}
	b.produce("t", 0, 1)
	b.produce("t", 1, 1)
	f.Add(vfs.Rule{Kind: vfs.OpSync, Name: dirA + "/", Err: syscall.EIO, Count: -1})
	l, _ := b.dirs.Log("t", 0)
	var se *StorageError
	if err := l.Flush(); !errors.As(err, &se) || !se.Offline {
		t.Fatalf("%v", err)
	}
	if _, err := l.AppendAsLeader(batch(1, 100, ts0), 0, AppendOptions{}); !errors.As(err, &se) {
		t.Errorf("append: %v", err)
	}
	if got := <-b.offline; got != dirA || len(b.dirs.Offline()) != 1 {
		t.Fatalf("offline are %s, %v", got, b.dirs.Offline())
	}
	b.produce("t", 1, 1)
	if _, err := b.dirs.Create(TopicPartition{"t", 2}, topicID, Config{}, "", false); !errors.As(err, &se) {
		t.Errorf("a partition that may be in the failed directory: %v", err)
	}
	if l := b.create("t", 3, Config{}); l.logDir != dirB {
		t.Errorf("created in %s", l.logDir)
	}
	b.stop()
	if _, err := b.mem.Stat(dirA + "/" + CleanShutdownName); err == nil {
		t.Error("the failed directory has a marker")
	}
	if _, err := b.mem.Stat(dirB + "/" + CleanShutdownName); err != nil {
		t.Error("the other has none")
	}
	for _, p := range b.paths {
		f.Add(vfs.Rule{Kind: vfs.OpMkdir, Name: p, Err: syscall.EIO, Count: -1})
	}
	if _, err := OpenDirs(b.options()); !errors.Is(err, ErrNoLogDir) {
		t.Errorf("no directory: %v", err)
	}
}

// After a kill of a hundred partitions only what was not synced is scanned, and quickly.
func TestS065_start_after_a_kill(t *testing.T) {
	t.Parallel()
	b := newBroker(t, "/d").start()
	for p := range int32(100) {
		l := b.create("t", p, Config{SegmentBytes: 400})
		b.produce("t", p, 9)
		if err := l.flushSealed(); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.dirs.CheckpointPositions(); err != nil {
		t.Fatal(err)
	}
	b.kill(vfs.LoseNothing)
	f := vfs.NewFault(b.mem)
	b.fs = f
	start := time.Now()
	b.start()
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("the start took %v", d)
	}
	last := int64(0)
	for _, l := range b.dirs.Logs() {
		v := l.View()
		last += v.active.size
		v.Release()
	}
	if p := b.dirs.LoadProgress(); p.Bytes != last || p.BytesDone != last || p.LogsDone != 100 || p.Percent() != 100 {
		t.Errorf("%+v were read, the segments that were not flushed have %d bytes", p, last)
	}
	for _, l := range b.dirs.Logs() {
		v := l.View()
		if v.EndOffset != 9 || l.RecoveryPoint() == 0 {
			t.Errorf("%v: end %d, recovery point %d", l.tp(), v.EndOffset, l.RecoveryPoint())
		}
		v.Release()
	}
	b.stop()
}

// A new topic never starts from the positions that an earlier one of its name has left in the checkpoints.
func TestPositionsOfAnEarlierTopic(t *testing.T) {
	t.Parallel()
	b := newBroker(t, "/d").start()
	l := b.create("t", 0, Config{})
	b.produce("t", 0, 9)
	if err := l.AdvanceLogStart(7, "DeleteRecords"); err != nil {
		t.Fatal(err)
	}
	b.stop()
	d, err := OpenDirs(b.options())
	if err != nil {
		t.Fatal(err)
	}
	b.dirs = d
	if _, err := d.Load(context.Background(), func(TopicPartition, [16]byte) Verdict { return Verdict{Reason: "deleted"} }); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Create(TopicPartition{"t", 0}, [16]byte{8}, Config{}, "", true); err != nil {
		t.Fatal(err)
	}
	b.produce("t", 0, 2)
	b.kill(vfs.LoseNothing).start()
	l, _ = b.dirs.Log("t", 0)
	v := l.View()
	defer v.Release()
	if v.LogStartOffset != 0 || v.EndOffset != 2 {
		t.Errorf("[%d,%d)", v.LogStartOffset, v.EndOffset)
	}
	b.stop()
}

// DeleteRecords on many partitions at once is durable for each when it returns, and writes fewer checkpoints than
// there are partitions only by sharing.
func TestConcurrentLogStartsAreDurable(t *testing.T) {
	t.Parallel()
	b := newBroker(t, "/d").start()
	const n = 40
	for p := range int32(n) {
		b.create("t", p, Config{})
		b.produce("t", p, 3)
	}
	var wg sync.WaitGroup
	for p := range int32(n) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			l, _ := b.dirs.Log("t", p)
			if err := l.AdvanceLogStart(2, "DeleteRecords"); err != nil {
				t.Error(err)
			}
			m, err := parseCheckpoint(must(vfs.ReadFile(b.mem.CrashClone(vfs.LoseUnsynced, 0), "/d/"+LogStartCheckpoint)))
			if err != nil || m[TopicPartition{"t", p}] != 2 {
				t.Errorf("partition %d: %v %v", p, m[TopicPartition{"t", p}], err)
			}
		}()
	}
	wg.Wait()
	b.stop()
}

// One partition in two directories stops the start, naming both.
func TestPartitionInTwoDirectories(t *testing.T) {
	t.Parallel()
	b := newBroker(t, "/a", "/b").start()
	b.create("t", 0, Config{})
	b.stop()
	for _, p := range b.paths {
		if err := b.fs.MkdirAll(p+"/t-0", 0o755); err != nil {
			t.Fatal(err)
		}
	}
	d, err := OpenDirs(b.options())
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.Load(context.Background(), keepAll)
	if err == nil || !strings.Contains(err.Error(), "/a/t-0") || !strings.Contains(err.Error(), "/b/t-0") {
		t.Errorf("%v", err)
	}
	b.dirs = d
	if err := d.Close(context.Background(), 1); err != nil {
		t.Error(err)
	}
}

// Verify finds nothing in a sound log, and each kind of damage where it is.
func TestVerify(t *testing.T) {
	t.Parallel()
	sound := func() *tester {
		x := newTester(t, Config{SegmentBytes: 2000, IndexIntervalBytes: 300}).open()
		for i := range int32(30) {
			if _, err := x.try(idempotent(1, 0, i*2, 2, false), i/10, AppendOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		return x.close()
	}
	x := sound()
	if p, err := Verify(x.fs, x.dir); err != nil || len(p) > 0 {
		t.Fatalf("%v %v", p, err)
	}
	for name, damage := range map[string]func(x *tester) string{
		"byte":  func(x *tester) string { flip(x, 0, 4); return logName(0) },
		"index": func(x *tester) string { x.put(indexName(0), unhex("0000000100000007")); return indexName(0) },
		"time": func(x *tester) string {
			x.put(timeName(0), unhex("0000000000000001 00000003"))
			return timeName(0)
		},
		"topic id": func(x *tester) string {
			x.put(PartitionMetadataName, []byte("version: 0\n"))
			return PartitionMetadataName
		},
		"no topic id": func(x *tester) string { x.remove(PartitionMetadataName); return PartitionMetadataName },
		"snapshot":    func(x *tester) string { x.put(snapshotName(60), []byte{1}); return snapshotName(60) },
		"epochs": func(x *tester) string {
			x.put("leader-epoch-checkpoint", []byte("0\n1\n0 0\n"))
			return "leader-epoch-checkpoint"
		},
		"overlap": func(x *tester) string {
			appendTo(x, 0, at(batch(1, 100, ts0), 0))
			return logName(0)
		},
	} {
		x := sound()
		file := damage(x)
		p, err := Verify(x.fs, x.dir)
		if err != nil || len(p) == 0 || p[0].File != file {
			t.Errorf("%s: %v %v", name, p, err)
		}
	}
}

// Logs that are created at the same time are spread over the directories as those that are created in turn.
func TestNewLogsAreSpreadOverDirectories(t *testing.T) {
	t.Parallel()
	b := newBroker(t, "/a", "/b", "/c").start()
	defer b.stop()
	var all sync.WaitGroup
	for p := range int32(12) {
		all.Go(func() {
			if _, err := b.dirs.Create(TopicPartition{"t", p}, [16]byte{1}, DefaultConfig(), "", true); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	in := map[string]int{}
	for p := range int32(12) {
		dir, _ := b.dirs.DirOf(TopicPartition{"t", p})
		in[dir]++
	}
	if in["/a"] != 4 || in["/b"] != 4 || in["/c"] != 4 {
		t.Errorf("%v", in)
	}
}

// A cordoned directory gets no new logs while another is there.
func TestNewLogsAvoidCordonedDirectories(t *testing.T) {
	t.Parallel()
	b := newBroker(t, "/a", "/b", "/c").start()
	defer b.stop()
	place := func(p int32) string {
		t.Helper()
		if _, err := b.dirs.Create(TopicPartition{"t", p}, topicID, DefaultConfig(), "", true); err != nil {
			t.Fatal(err)
		}
		dir, _ := b.dirs.DirOf(TopicPartition{"t", p})
		return dir
	}
	b.dirs.Cordon([]string{"/a", "/c", "/elsewhere"})
	for p := range int32(4) {
		if dir := place(p); dir != "/b" {
			t.Errorf("log %d is in %s", p, dir)
		}
	}
	if got := fmt.Sprint(b.dirs.Cordoned()); got != "[/a /c]" {
		t.Error(got)
	}
	b.dirs.Cordon([]string{"*"})
	if dir := place(4); dir == "/b" {
		t.Errorf("with all cordoned the fullest was taken")
	}
	b.dirs.Cordon(nil)
	if dir := place(5); dir == "/b" {
		t.Errorf("log 5 is in %s", dir)
	}
}
