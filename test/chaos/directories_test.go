//go:build chaos

package chaos

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"golang.org/x/sys/unix"
)

// dirOf waits for the directory, of those given, that a partition is made in.
func dirOf(t *testing.T, topic string, partition int32, dirs ...string) string {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		for _, dir := range dirs {
			if _, err := os.Stat(filepath.Join(dir, fmt.Sprintf("%s-%d", topic, partition))); err == nil {
				return dir
			}
		}
	}
	t.Fatalf("%s-%d is in none of %v", topic, partition, dirs)
	return ""
}

// untilRefused writes to a partition until that fails, and returns the error: a volume that has gone is met when a file is
// opened on it.
func (f *filler) untilRefused(topic string, partition int32) error {
	f.t.Helper()
	for range 2000 {
		if err := f.write(topic, partition, 16<<10); err != nil {
			return err
		}
	}
	f.t.Fatal("a volume that has gone was never missed")
	return nil
}

// TestS064_a_volume_goes_the_rest_serves: the volume of one of two log directories is unmounted under the node. Its
// partitions answer KAFKA_STORAGE_ERROR, then have no leader; the rest serves on, new partitions go elsewhere, the command
// line says what is offline. A restart without the volume serves the rest and takes no empty directory for the lost one.
// When the last log directory goes, the process ends and says why.
func TestS064_a_volume_goes_the_rest_serves(t *testing.T) {
	disk := smallDisk(t, 64)
	n := newNode(t, "log.initial.task.delay.ms=1", "replica.high.watermark.checkpoint.interval.ms=100000")
	stays, goes := filepath.Join(folder(t), "stays"), filepath.Join(disk, "goes")
	n.settings = append(n.settings, "log.dirs="+stays+","+goes, "metadata.log.dir="+stays)
	n.start()
	n.mustAck("probe", "probe-start")
	createTopics(t, n, 2, 1, "logs")
	here, there := int32(0), int32(1)
	if dirOf(t, "logs", here, stays, goes) == goes {
		here, there = there, here
	}
	if dirOf(t, "logs", there, stays, goes) != goes {
		t.Fatal("both partitions are in one directory")
	}
	ledger := newLedger()
	f := &filler{t: t, n: n, ledger: ledger}
	lost := &filler{t: t, n: n, ledger: newLedger()}
	for range 20 {
		if err := errors.Join(f.write("logs", here, 16<<10), lost.write("logs", there, 16<<10)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if err := lost.untilRefused("logs", there); !errors.Is(err, kerr.KafkaStorageError) {
		t.Fatalf("a write to a volume that has gone: %v\n%s", err, n.log())
	}
	serves := func(when string) {
		t.Helper()
		n.mustRun()
		for range 20 {
			if err := f.write("logs", here, 16<<10); err != nil {
				t.Fatalf("%s: a write to the other directory: %v\n%s", when, err, n.log())
			}
		}
		if err := lost.write("logs", there, 1<<10); err == nil {
			t.Fatalf("%s: a write to the lost directory succeeded", when)
		}
		checkLog(t, n, ledger, here)
	}
	serves("after the volume went")
	createTopics(t, n, 2, 1, "later")
	for p := range int32(2) {
		if dir := dirOf(t, "later", p, stays, goes); dir != stays {
			t.Errorf("later-%d was made in %s", p, dir)
		}
		if err := f.write("later", p, 1<<10); err != nil {
			t.Errorf("a write to a new topic: %v", err)
		}
	}
	if out, err := exec.Command(stele, "cluster", "log-dirs", "-b", n.addr()).CombinedOutput(); err != nil || strings.Count(string(out), "offline") != 1 {
		t.Errorf("log-dirs: %v\n%s", err, out)
	}
	n.stop()
	f.conn, lost.conn = nil, nil
	n.start()
	n.mustReady()
	serves("after a restart without the volume")
	if said, _ := os.ReadFile(n.logFile()); !strings.Contains(string(said), "bring its log directory back") {
		t.Errorf("nothing is said of the missing directory:\n%s", said)
	}
	n.kill()
}

// checkLog reads a partition's log back: what was acknowledged in it is there.
func checkLog(t *testing.T, n *node, l *ledger, partition int32) {
	t.Helper()
	if err := readOnce(n, "logs", partition); err != nil {
		t.Fatalf("reading what is left: %v\n%s", err, n.log())
	}
}

// TestS064_the_last_log_directory_goes: with no log directory left the process ends with an error that names it.
func TestS064_the_last_log_directory_goes(t *testing.T) {
	disk := smallDisk(t, 64)
	n := newNode(t, "log.initial.task.delay.ms=1")
	goes := filepath.Join(disk, "goes")
	n.settings = append(n.settings, "log.dirs="+goes, "metadata.log.dir="+filepath.Join(folder(t), "metadata"))
	n.start()
	n.mustAck("probe", "probe-start")
	createTopics(t, n, 1, 1, "logs")
	f := &filler{t: t, n: n, ledger: newLedger()}
	if err := f.write("logs", 0, 16<<10); err != nil {
		t.Fatal(err)
	}
	if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	_ = f.untilRefused("logs", 0)
	select {
	case <-n.done:
	case <-time.After(20 * time.Second):
		t.Fatalf("the process lives without a log directory\n%s", n.log())
	}
	if code := n.cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(n.log(), "log directory "+goes+" failed") {
		t.Errorf("it ended with status %d\n%s", code, n.log())
	}
}

// TestTheMetadataDirectoryGoes: the volume of the metadata log, which holds no partition, is unmounted under the node. Without it
// the node can neither vote nor follow: the process ends within seconds, with status 1 and an error that names the directory.
func TestTheMetadataDirectoryGoes(t *testing.T) {
	disk := smallDisk(t, 64)
	n := newNode(t, "log.initial.task.delay.ms=1")
	stays, goes := filepath.Join(folder(t), "stays"), filepath.Join(disk, "goes")
	n.settings = append(n.settings, "log.dirs="+stays, "metadata.log.dir="+goes)
	n.start()
	n.mustAck("probe", "probe-start")
	createTopics(t, n, 1, 1, "logs")
	f := &filler{t: t, n: n, ledger: newLedger()}
	for range 10 {
		if err := f.write("logs", 0, 16<<10); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	select {
	case <-n.done:
	case <-time.After(30 * time.Second):
		t.Fatalf("the process lives without its metadata directory\n%s", n.log())
	}
	if code := n.cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(n.log(), "the metadata directory "+goes) {
		t.Errorf("it ended with status %d\n%s", code, n.log())
	}
}
