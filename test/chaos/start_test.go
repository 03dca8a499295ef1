//go:build chaos

package chaos

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// listing describes every file under dir, with hash, size and mode.
func listing(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		if entry.IsDir() {
			fmt.Fprintf(&b, "%s %s\n", info.Mode(), name)
			return nil
		}
		text, err := os.ReadFile(path)
		fmt.Fprintf(&b, "%s %s %d %x\n", info.Mode(), name, len(text), sha256.Sum256(text))
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return b.String()
}

// refused starts the node and wants one line on standard error that names each of want, status 1, and nothing
// changed under the watched directory.
func refused(t *testing.T, n *node, watched string, want ...string) {
	t.Helper()
	before := listing(t, watched)
	cmd := n.command()
	var out bytes.Buffer
	cmd.Stderr = &out
	timer := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
	err := cmd.Run()
	timer.Stop()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("ended with %v, want status 1", err)
	}
	line := out.String()
	if strings.Count(line, "\n") != 1 || !strings.HasPrefix(line, "stele: ") {
		t.Errorf("standard error, want one line that says why:\n%s", line)
	}
	for _, w := range want {
		if !strings.Contains(line, w) {
			t.Errorf("standard error does not name %q:\n%s", w, line)
		}
	}
	if after := listing(t, watched); after != before {
		t.Errorf("something was changed on disk; before:\n%s\nafter:\n%s", before, after)
	}
	t.Log(strings.TrimSpace(line))
}

// formatted is a node that has run and was stopped, with a topic and a record.
func formatted(t *testing.T, settings ...string) *node {
	n := newNode(t, settings...)
	n.start()
	n.mustAck("probe", "probe-1")
	n.stop()
	return n
}

func rewrite(t *testing.T, n *node, old, new string) {
	t.Helper()
	name := filepath.Join(n.data, "meta.properties")
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(text), old, new, 1)
	if changed == string(text) {
		t.Fatalf("%s has no %q:\n%s", name, old, text)
	}
	if err := os.WriteFile(name, []byte(changed), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestStartRefusals: a data directory that is locked, of another cluster or node, newer, unreadable, not ours, or on a
// full disk: one clear line, exit status 1, nothing changed on disk.
func TestStartRefusals(t *testing.T) {
	t.Run("locked", func(t *testing.T) {
		n := newNode(t)
		n.start()
		n.mustAck("probe", "probe-1")
		second := newNode(t)
		second.data = n.data
		// The running node's own files move on by themselves; what names the directory does not.
		refused(t, second, filepath.Join(n.data, "probe-0"), n.data, "lock")
		n.mustAck("probe", "probe-2")
		n.stop()
	})
	t.Run("another cluster", func(t *testing.T) {
		n := formatted(t)
		n.settings = append(n.settings, "cluster.id=AAAAAAAAAAAAAAAAAAAAAQ")
		refused(t, n, n.data, n.data, "cluster.id", "AAAAAAAAAAAAAAAAAAAAAQ")
	})
	t.Run("another node", func(t *testing.T) {
		n := formatted(t)
		n.settings = append(n.settings, "node.id=7")
		refused(t, n, n.data, n.data, "node.id", "7")
	})
	t.Run("newer", func(t *testing.T) {
		n := formatted(t)
		rewrite(t, n, "version=1", "version=2")
		refused(t, n, n.data, n.data, "version", "2")
	})
	t.Run("torn", func(t *testing.T) {
		n := formatted(t)
		rewrite(t, n, "cluster.id=", "cluster=")
		refused(t, n, n.data, n.data, "cluster.id")
	})
	t.Run("foreign files", func(t *testing.T) {
		n := newNode(t)
		write(t, filepath.Join(n.data, "thesis.txt"), "the only copy")
		refused(t, n, n.data, n.data, "thesis.txt")
	})
	t.Run("partitions without meta.properties", func(t *testing.T) {
		n := formatted(t)
		if err := os.Remove(filepath.Join(n.data, "meta.properties")); err != nil {
			t.Fatal(err)
		}
		refused(t, n, n.data, n.data, "meta.properties")
	})
	t.Run("unreadable", func(t *testing.T) {
		n := formatted(t)
		name := filepath.Join(n.data, "meta.properties")
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(name, 0o755); err != nil {
			t.Fatal(err)
		}
		refused(t, n, n.data, n.data, "meta.properties")
	})
	t.Run("a file in its place", func(t *testing.T) {
		n := newNode(t)
		write(t, n.data, "not a directory")
		refused(t, n, n.dir, n.data)
	})
	t.Run("metadata log damaged", func(t *testing.T) {
		n := formatted(t)
		write(t, filepath.Join(n.data, "__cluster_metadata-0", "raft-state"), "garbage")
		refused(t, n, n.data, "raft-state")
	})
	t.Run("full at first start", func(t *testing.T) {
		n := newNode(t)
		disk := smallDisk(t, 1)
		n.data = filepath.Join(disk, "data")
		fill(t, disk)
		refused(t, n, disk, n.data, "full")
	})
	t.Run("full after a kill and without a reserve", func(t *testing.T) {
		n := newNode(t, "log.dir.reserve.bytes=0")
		disk := smallDisk(t, 4)
		n.data = filepath.Join(disk, "data")
		n.start()
		n.mustAck("probe", "probe-1")
		n.kill()
		name := fill(t, disk)
		refused(t, n, disk, n.data, "full")
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
		n.start()
		n.mustAck("probe", "probe-2")
		n.stop()
	})
	t.Run("port in use", func(t *testing.T) {
		n, second := newNode(t), newNode(t)
		n.start()
		n.mustAck("probe", "probe-1")
		second.settings[0] = n.settings[0]
		refused(t, second, second.dir, n.addr())
		if _, err := os.Stat(second.data); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", second.data, err)
		}
	})
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestKilledWhileFormatting: a kill at any rename, checkpoint or write of the first start leaves a directory that the
// next start takes.
func TestKilledWhileFormatting(t *testing.T) {
	for _, point := range []string{"rename-before", "rename-after", "checkpoint-tmp-written", "checkpoint-renamed", "metadata-snapshot-part", "metadata-snapshot-renamed", "log-append-written", "log-roll", "epoch-assigned"} {
		for hit := 1; ; hit++ {
			n := newNode(t)
			n.start(fmt.Sprintf("STELE_FAILPOINT=%s:%d", point, hit))
			if _, _, err := n.firstAck("probe", "probe-1"); err == nil {
				t.Logf("%s is hit %d times before the first acknowledged write", point, hit-1)
				n.kill()
				break
			}
			<-n.done
			if !n.killed() {
				t.Fatalf("%s:%d: the process ended by itself\n%s", point, hit, n.log())
			}
			n.start()
			if _, _, err := n.firstAck("probe", "probe-1"); err != nil {
				t.Fatalf("after a kill at %s:%d: %v\n%s", point, hit, err, n.log())
			}
			n.kill()
		}
	}
}
