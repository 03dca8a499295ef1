//go:build chaos

package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sys/unix"

	"github.com/stelelog/stele/bench/probe"
)

// reader reads a topic's first partition over and over, on a connection of its own.
type reader struct {
	reads  atomic.Int64
	failed atomic.Pointer[error]
	stop   chan struct{}
	done   chan struct{}
}

// startReader begins; a read that fails or gives nothing is kept.
func startReader(n *node, topic string) *reader {
	r := &reader{stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(r.done)
		for {
			select {
			case <-r.stop:
				return
			default:
			}
			if err := readOnce(n, topic, 0); err != nil {
				r.failed.CompareAndSwap(nil, &err)
				return
			}
			r.reads.Add(1)
			time.Sleep(10 * time.Millisecond)
		}
	}()
	return r
}

func readOnce(n *node, topic string, partition int32) error {
	c, err := probe.Dial(n.addr(), 5*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.MaxBytes, req.MaxWaitMillis = 11, 1<<20, 100
	one := kmsg.NewFetchRequestTopic()
	one.Topic = topic
	p := kmsg.NewFetchRequestTopicPartition()
	p.Partition, p.PartitionMaxBytes = partition, 64<<10
	one.Partitions = append(one.Partitions, p)
	req.Topics = append(req.Topics, one)
	resp, err := c.Request(req)
	if err != nil {
		return err
	}
	got := resp.(*kmsg.FetchResponse).Topics[0].Partitions[0]
	if got.ErrorCode != 0 || len(got.RecordBatches) == 0 {
		return fmt.Errorf("a read of %s: %w, %d bytes", topic, kerr.ErrorForCode(got.ErrorCode), len(got.RecordBatches))
	}
	return nil
}

// end stops the reader and says what went wrong.
func (r *reader) end(t *testing.T, n *node) {
	t.Helper()
	close(r.stop)
	<-r.done
	if err := r.failed.Load(); err != nil {
		t.Fatalf("reads stopped after %d: %v\n%s", r.reads.Load(), *err, n.log())
	}
}

// roomOf asks the command line how full the node's directories are.
func roomOf(t *testing.T, n *node, dir string) (level string, growing []string) {
	t.Helper()
	out, err := exec.Command(stele, "cluster", "describe", "-o", "json", "-b", n.addr()).Output()
	if err != nil {
		t.Fatalf("cluster describe: %v\n%s", err, n.log())
	}
	var view struct {
		LogDirs []struct {
			Dir  string
			Room *struct {
				Level   string
				Growing []struct{ Topic string }
			}
		}
	}
	if err := json.Unmarshal(out, &view); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, d := range view.LogDirs {
		if d.Dir != dir {
			continue
		}
		if d.Room == nil {
			return "plenty", nil
		}
		for _, g := range d.Room.Growing {
			growing = append(growing, g.Topic)
		}
		return d.Room.Level, growing
	}
	t.Fatalf("%s is not described: %s", dir, out)
	return "", nil
}

// TestE072_disk_ladder: the disk of one of two log directories is filled and freed three times, under load, each time by
// other means. Writes there get KAFKA_STORAGE_ERROR while a reserve is left, reads never stop, the other directory,
// deletes and offset commits go on, the command line says which topic fills the disk, writes come back by themselves, and
// at the end all that was acknowledged is there once. Then the node is killed, all of the disk is taken from outside,
// and the node starts all the same.
func TestE072_disk_ladder(t *testing.T) {
	disk := smallDisk(t, 64)
	const reserve = 4 << 20
	n := newNode(t, "offsets.topic.num.partitions=2", "log.initial.task.delay.ms=1", "log.segment.delete.delay.ms=600000",
		"log.dir.soft.limit.bytes=0", fmt.Sprintf("log.dir.reserve.bytes=%d", reserve), "log.retention.check.interval.ms=600000")
	full, roomy := filepath.Join(disk, "data"), filepath.Join(folder(t), "roomy")
	n.data = full
	n.settings = append(n.settings, "log.dirs="+full+","+roomy, "metadata.log.dir="+full)
	n.start()
	n.mustAck("probe", "probe-start")
	createTopics(t, n, 2, 1, "logs", "ballast", "short")
	// Two partitions of each topic: one in each directory.
	at := func(topic, dir string) int32 {
		for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
			for p := range int32(2) {
				if _, err := os.Stat(filepath.Join(dir, fmt.Sprintf("%s-%d", topic, p))); err == nil {
					return p
				}
			}
		}
		t.Fatalf("no partition of %s is in %s", topic, dir)
		return -1
	}
	logs, elsewhere := at("logs", full), at("logs", roomy)
	ledger := newLedger()
	judge := newJudge(t, n, ledger, "logs")
	f := &filler{t: t, n: n, ledger: ledger}
	for p := range int32(2) {
		if err := f.write("logs", p, 1<<10); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	admin := kadm.NewClient(n.client())
	if err := admin.CommitAllOffsets(ctx, "warm", commitOf("logs", logs, 1)); err != nil {
		t.Fatal(err)
	}
	reads := startReader(n, "logs")

	// background: clients that keep trying on the full disk.
	stop := make(chan struct{})
	var tried, refused atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := &filler{t: t, n: n, ledger: ledger, next: 500000}
		for {
			select {
			case <-stop:
				return
			default:
			}
			tried.Add(1)
			if err := b.write("logs", logs, 2<<10); errors.Is(err, kerr.KafkaStorageError) {
				refused.Add(1)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	other := &filler{t: t, n: n, ledger: newLedger()}
	var external string
	for round, kind := range []string{"a topic is deleted", "records are deleted", "another process's file is removed"} {
		var err error
		switch round {
		case 0:
			for err == nil {
				err = other.write("ballast", at("ballast", full), 100<<10)
			}
		case 1:
			for err == nil {
				err = other.write("short", at("short", full), 100<<10)
			}
		case 2:
			external = fillTo(t, disk, reserve-1<<20)
			time.Sleep(1500 * time.Millisecond) // a look at the volume is due
			err = f.write("logs", logs, 2<<10)
		}
		if !errors.Is(err, kerr.KafkaStorageError) {
			t.Fatalf("round %d: a write to a full disk: %v\n%s", round, err, n.log())
		}
		n.mustRun()
		before := reads.reads.Load()
		if err := f.write("logs", elsewhere, 16<<10); err != nil {
			t.Fatalf("round %d: a write to the other directory: %v\n%s", round, err, n.log())
		}
		if err := admin.CommitAllOffsets(ctx, fmt.Sprintf("group-on-full-%d", round), commitOf("logs", logs, int64(round))); err != nil {
			t.Fatalf("round %d: a commit on a full disk: %v\n%s", round, err, n.log())
		}
		level, growing := roomOf(t, n, full)
		if level != "reserve" {
			t.Errorf("round %d: the directory's room is %q, growing %v", round, level, growing)
		}
		if topic := []string{"ballast", "short", ""}[round]; topic != "" && (len(growing) == 0 || growing[0] != topic) {
			t.Errorf("round %d: %s fills the disk, growing are %v", round, topic, growing)
		}
		if _, err := admin.CreateTopics(ctx, 1, 1, nil, fmt.Sprintf("new-%d", round)); err != nil {
			t.Errorf("round %d: a topic's creation: %v", round, err)
		}
		judge.judge("round "+fmt.Sprint(round)+", full", true)
		switch round {
		case 0:
			if _, err := admin.DeleteTopic(ctx, "ballast"); err != nil {
				t.Fatalf("deleting a topic on a full disk: %v\n%s", err, n.log())
			}
		case 1:
			ends, err := admin.ListEndOffsets(ctx, "short")
			if err == nil {
				_, err = admin.DeleteRecords(ctx, ends.Offsets())
			}
			if err != nil {
				t.Fatalf("deleting records on a full disk: %v\n%s", err, n.log())
			}
		case 2:
			if err := os.Remove(external); err != nil {
				t.Fatal(err)
			}
		}
		f.untilWritable(fmt.Sprintf("round %d, %s", round, kind), "logs")
		// Writes are back as soon as there is room for one; the next round begins when all of it is free.
		for deadline := time.Now().Add(20 * time.Second); freeOn(t, disk) < 40<<20; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("round %d: %d bytes are free after %s\n%s", round, freeOn(t, disk), kind, n.log())
			}
		}
		if after := reads.reads.Load(); after == before {
			t.Errorf("round %d: no read in the meantime", round)
		}
	}
	close(stop)
	<-done
	judge.judge("after three rounds", true)
	reads.end(t, n)
	t.Logf("%d reads; %d of %d writes in the background were refused; %d acknowledged in all", reads.reads.Load(), refused.Load(), tried.Load(), len(ledger.records))

	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(full, ".stele-reserve")); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("what is kept for a start on a full disk did not come back\n%s", n.log())
		}
	}
	n.kill()
	external = fill(t, disk)
	f.conn = nil
	n.start()
	n.mustReady()
	f.conn = nil
	if err := f.write("logs", logs, 2<<10); !errors.Is(err, kerr.KafkaStorageError) {
		t.Fatalf("a write after a start on a full disk: %v\n%s", err, n.log())
	}
	if err := f.write("logs", elsewhere, 2<<10); err != nil {
		t.Fatalf("a write to the other directory after a start on a full disk: %v\n%s", err, n.log())
	}
	judge.judge("started on a full disk", true)
	if err := os.Remove(external); err != nil {
		t.Fatal(err)
	}
	f.untilWritable("started on a full disk, then freed", "logs")
	judge.judge("at the end", true)
	if said, err := os.ReadFile(n.logFile()); err != nil || !strings.Contains(string(said), "log directory is full") {
		t.Errorf("the log does not say that the directory is full: %v\n%s", err, n.log())
	}
}

// TestSoftLimitSlowsProducers: below the soft limit producers are told to wait, and the disk fills far slower than they
// could fill it; what retention allows goes at once, and then they are as fast as before.
func TestSoftLimitSlowsProducers(t *testing.T) {
	disk := smallDisk(t, 64)
	n := newNode(t, "log.initial.task.delay.ms=1", "log.segment.delete.delay.ms=600000", "log.retention.check.interval.ms=600000",
		fmt.Sprintf("log.dir.soft.limit.bytes=%d", 24<<20), fmt.Sprintf("log.dir.reserve.bytes=%d", 2<<20))
	n.data = filepath.Join(disk, "data")
	n.start()
	n.mustAck("probe", "probe-start")
	createTopics(t, n, 1, 1, "logs")
	c := n.client(kgo.ProducerBatchMaxBytes(100<<10), kgo.DefaultProduceTopic("logs"), kgo.MaxBufferedRecords(50))
	write := func(d time.Duration) (bytes int64) {
		ctx, cancel := context.WithTimeout(context.Background(), d)
		defer cancel()
		for i := 0; ctx.Err() == nil; i++ {
			key := fmt.Sprintf("slow-%06d", i)
			if c.ProduceSync(ctx, &kgo.Record{Key: []byte(key), Value: valueOf(key, 60<<10)}).FirstErr() == nil {
				bytes += 60 << 10
			}
		}
		return bytes
	}
	fast := write(500 * time.Millisecond)
	for range 40 {
		if level, _ := roomOf(t, n, n.data); level == "soft limit" {
			break
		}
		write(100 * time.Millisecond)
	}
	if level, _ := roomOf(t, n, n.data); level != "soft limit" {
		t.Fatalf("the directory's room is %q\n%s", level, n.log())
	}
	slow := write(6 * time.Second)
	if slow*2 > fast*12 || slow == 0 {
		t.Errorf("%d bytes in half a second above the soft limit, %d in six seconds below", fast, slow)
	}
	admin := kadm.NewClient(n.client())
	little := "1000000"
	if _, err := admin.AlterTopicConfigs(context.Background(), []kadm.AlterConfig{{Name: "retention.bytes", Value: &little}}, "logs"); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		level, _ := roomOf(t, n, n.data)
		if level == "plenty" || level == "filling" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("retention made no room: %q\n%s", level, n.log())
		}
	}
	t.Logf("%d bytes in 0.5 s above the soft limit, %d in 6 s below it", fast, slow)
}

// freeOn is how many bytes are free on the file system of a directory.
func freeOn(t *testing.T, dir string) int64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Bavail) * int64(st.Bsize)
}

// commitOf is one committed offset.
func commitOf(topic string, partition int32, at int64) kadm.Offsets {
	var o kadm.Offsets
	o.AddOffset(topic, partition, at, -1)
	return o
}

// mustReady waits until the node answers requests.
func (n *node) mustReady() {
	n.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		n.mustRun()
		if exec.Command(stele, "cluster", "describe", "-b", n.addr()).Run() == nil {
			return
		}
	}
	n.t.Fatalf("not ready\n%s", n.log())
}

// fillTo leaves so many bytes of the file system under dir, and returns the file that takes the rest.
func fillTo(t *testing.T, dir string, left int64) string {
	t.Helper()
	name := fill(t, dir)
	info, err := os.Stat(name)
	if err == nil {
		err = os.Truncate(name, info.Size()-left)
	}
	if err != nil {
		t.Fatal(err)
	}
	return name
}
