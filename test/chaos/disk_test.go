//go:build chaos

package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"golang.org/x/sys/unix"

	"github.com/stelelog/stele/bench/probe"
)

// smallDisk mounts a file system of so many MiB on a new directory.
func smallDisk(t *testing.T, mib int) string {
	t.Helper()
	dir := filepath.Join(folder(t), "disk")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", mib)); err != nil {
		t.Fatalf("mount: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			keepDisk(dir)
		}
		_ = unix.Unmount(dir, unix.MNT_DETACH)
	})
	return dir
}

// keepDisk copies what a failed test left before the mount goes.
func keepDisk(dir string) {
	if err := os.CopyFS(dir+"-kept", os.DirFS(dir)); err != nil {
		fmt.Println("disk not kept:", err)
	}
}

// fill takes all that is left of the file system under dir, and returns the file that holds it.
func fill(t *testing.T, dir string) string {
	t.Helper()
	name := filepath.Join(dir, "filler")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 64<<10)
	for len(block) > 0 {
		if _, err := f.Write(block); err != nil {
			block = block[:len(block)/2]
		}
	}
	return name
}

// filler writes records with one connection and remembers what was acknowledged.
type filler struct {
	t      *testing.T
	n      *node
	ledger *ledger
	conn   *probe.Conn
	next   int
}

func (f *filler) write(topic string, partition int32, size int) error {
	if f.conn == nil {
		c, err := probe.Dial(f.n.addr(), 10*time.Second)
		if err != nil {
			return err
		}
		f.conn = c
		f.t.Cleanup(c.Close)
	}
	key := fmt.Sprintf("full-%06d", f.next)
	f.next++
	offset, err := f.conn.Produce(topic, partition, []byte(key), valueOf(key, size))
	// A topic is there a moment after its creation was answered, as in Kafka.
	for deadline := time.Now().Add(2 * time.Second); errors.Is(err, kerr.UnknownTopicOrPartition) && time.Now().Before(deadline); {
		time.Sleep(5 * time.Millisecond)
		offset, err = f.conn.Produce(topic, partition, []byte(key), valueOf(key, size))
	}
	if err == nil {
		f.ledger.acknowledged(acked{topicPartition{topic, partition}, offset, key})
	}
	return err
}

// untilFull writes until a write fails, and returns that error.
func (f *filler) untilFull(topic string, size, most int) error {
	for i := range most {
		if err := f.write(topic, int32(i%2), size); err != nil {
			return err
		}
	}
	f.t.Fatalf("%d writes of %d bytes did not fill the disk", most, size)
	return nil
}

// untilWritable writes until a write succeeds: a disk that has space again is noticed by itself.
func (f *filler) untilWritable(when, topic string) {
	f.t.Helper()
	var err error
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if err = errors.Join(f.write(topic, 0, 16<<10), f.write(topic, 1, 16<<10)); err == nil {
			return
		}
		f.n.mustRun()
	}
	f.t.Fatalf("%s: writes did not come back: %v\n%s", when, err, f.n.log())
}

// TestFullDisk: when the disk is full a write gets KAFKA_STORAGE_ERROR, the process lives, reads go on, space made
// free brings writes back without a restart, and after one every offset is there and every acknowledged record
// once; also when the process is killed while the disk is full, and when it starts on a full one. No reserve is kept, so
// that it is the disk that refuses.
func TestFullDisk(t *testing.T) {
	disk := smallDisk(t, 64)
	n := newNode(t, "replica.high.watermark.checkpoint.interval.ms=300", "log.flush.offset.checkpoint.interval.ms=400", "log.initial.task.delay.ms=1", "offsets.topic.num.partitions=2",
		"log.segment.delete.delay.ms=100", "log.dir.soft.limit.bytes=0", "log.dir.reserve.bytes=0")
	n.data = filepath.Join(disk, "data")
	n.start()
	n.mustAck("probe", "probe-start")
	createTopics(t, n, 2, 1, "logs", "ballast")
	ledger := newLedger()
	judge := newJudge(t, n, ledger, "logs")
	f := &filler{t: t, n: n, ledger: ledger}
	other := &filler{t: t, n: n, ledger: newLedger()}
	for i := range 128 {
		if err := other.write("ballast", int32(i%2), 100<<10); err != nil {
			t.Fatal(err)
		}
	}

	full := func(err error) {
		t.Helper()
		n.mustRun()
		if !errors.Is(err, kerr.KafkaStorageError) {
			t.Fatalf("a write to a full disk: %v, want %v\n%s", err, kerr.KafkaStorageError, n.log())
		}
		if err := f.write("logs", 0, 16<<10); !errors.Is(err, kerr.KafkaStorageError) {
			t.Fatalf("a second write to a full disk: %v, want %v\n%s", err, kerr.KafkaStorageError, n.log())
		}
	}
	full(f.untilFull("logs", 48<<10, 3000))
	time.Sleep(time.Second) // checkpoints come due on the full disk
	n.mustRun()
	judge.judge("on a full disk", true)

	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	admin := kadm.NewClient(n.client())
	if _, err := admin.DeleteTopic(ctx, "ballast"); err != nil {
		t.Fatalf("deleting a topic on a full disk: %v\n%s", err, n.log())
	}
	f.untilWritable("after a topic was deleted", "logs")
	judge.judge("after a topic was deleted", true)

	name := fill(t, disk)
	full(f.untilFull("logs", 20<<10, 100))
	n.kill()
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	f.conn = nil
	n.start()
	f.untilWritable("killed on a full disk, started with space", "logs")
	judge.judge("killed on a full disk, started with space", true)

	name = fill(t, disk)
	full(f.untilFull("logs", 20<<10, 100))
	n.stop()
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	f.conn = nil
	n.start()
	f.untilWritable("stopped on a full disk, started with space", "logs")
	judge.judge("stopped on a full disk, started with space", true)
	t.Logf("%d records acknowledged around a disk that was full three times", len(ledger.records))
}

// TestFullDiskUnderClients: clients of every kind meet a disk that fills and is freed again and again; nothing
// acknowledged is lost or doubled.
func TestFullDiskUnderClients(t *testing.T) {
	disk := smallDisk(t, 160)
	n := newNode(t, "offsets.topic.num.partitions=4", "group.initial.rebalance.delay.ms=0",
		"replica.high.watermark.checkpoint.interval.ms=300", "log.flush.offset.checkpoint.interval.ms=400", "log.initial.task.delay.ms=1")
	n.data = filepath.Join(disk, "data")
	n.start()
	n.mustAck("probe", "probe-start")
	topics := []string{"orders", "clicks", "sensors"}
	createTopics(t, n, 4, 1, topics...)
	random, ledger := source(t), newLedger()
	judge := newJudge(t, n, ledger, topics...)
	load := startLoad(n, ledger, topics)
	t.Cleanup(load.cancel)
	for range 4 {
		time.Sleep(time.Duration(500+random.IntN(500)) * time.Millisecond)
		name := fill(t, disk)
		time.Sleep(time.Duration(300+random.IntN(1200)) * time.Millisecond)
		n.mustRun()
		if random.IntN(2) == 0 {
			n.kill()
		}
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
		select {
		case <-n.done:
			n.start()
			n.mustAck("probe", "probe-again")
		default:
		}
	}
	before := load.writes.Load()
	for deadline := time.Now().Add(10 * time.Second); load.writes.Load() < before+500; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("producers did not come back: %d writes\n%s", load.writes.Load()-before, n.log())
		}
	}
	load.cancel()
	judge.judge("at the end", true)
	n.kill()
	n.start()
	n.mustAck("probe", "probe-end")
	judge.judge("after a kill", true)
	t.Logf("%d records acknowledged", load.writes.Load())
}
