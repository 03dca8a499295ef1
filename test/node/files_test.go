package node

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stelelog/stele/internal/record"
)

// hexOf is a file in hex, "" when there is none.
func hexOf(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return hex.EncodeToString(b)
}

// TestFiles covers what one node has on disk after a clean stop.
//
// S-021: after one batch of 83 bytes the log has 83 bytes, the index none, the time index one entry, and a
// snapshot without producers stands at 2; no transaction index; partition.metadata has no final newline, the
// lock is gone, and the marker parses as JSON version 0.
//
// S-022: sixteen batches of 1000 bytes leave three index entries, at 5000, 10000 and 15000.
//
// S-023: falling timestamps leave one time index entry, written at the close.
//
// S-024: an idempotent producer's state is in the snapshot, field by field.
//
// S-026: checkpoints have one line per partition; log starts list a topic only after DeleteRecords moved
// it off its first segment's base.
func TestFiles_S021_S022_S023_S024_S026(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.dial(t)
	one, many, falling, producer, deleted := c.createTopic("one", 1), c.createTopic("many", 1), c.createTopic("falling", 1), c.createTopic("producer", 1), c.createTopic("deleted", 1)
	c.mustProduce(one, 0, exampleA())
	for i := range int64(16) {
		c.mustProduce(many, 0, sized(1000, stamp+i))
	}
	for i := range int64(3) {
		c.mustProduce(falling, 0, batch(record.BuilderOptions{}, rec{stamp + 10 - i, nil, nil}))
	}
	c.mustProduce(producer, 0, idempotent(4000, 5, 0, 8))
	c.mustProduce(producer, 0, idempotent(4000, 5, 8, 2))
	c.mustProduce(deleted, 0, plain(10, stamp))
	c.mustDeleteRecords(deleted, 4)
	n.stop(t)

	t.Run("S021_one_batch", func(t *testing.T) {
		for file, want := range map[string]string{
			"00000000000000000000.log":       hex.EncodeToString(put32(exampleA(), atEpoch, 0)),
			"00000000000000000000.index":     "",
			"00000000000000000000.timeindex": "0000018bcfe5680500000001",
			"00000000000000000000.txnindex":  "",
			"00000000000000000002.snapshot":  "000148674bc700000000",
			"leader-epoch-checkpoint":        hex.EncodeToString([]byte("0\n1\n0 0\n")),
		} {
			if got := hexOf(t, n.path("one", file)); got != want {
				t.Errorf("%s: %s, want %s", file, got, want)
			}
		}
		if _, err := os.Stat(n.path("one", "00000000000000000000.txnindex")); err == nil {
			t.Error("there is a transaction index")
		}
		if got := string(n.read(t, n.path("one", "partition.metadata"))); !regexp.MustCompile(`^version: 0\ntopic_id: [A-Za-z0-9_-]{22}$`).MatchString(got) {
			t.Errorf("partition.metadata: %q", got)
		}
		if _, err := os.Stat(filepath.Join(n.dir, ".lock")); err == nil {
			t.Error("the lock file is still there")
		}
		var marker struct{ Version, BrokerEpoch *int64 }
		if err := json.Unmarshal(n.read(t, filepath.Join(n.dir, ".kafka_cleanshutdown")), &marker); err != nil || marker.Version == nil || *marker.Version != 0 || marker.BrokerEpoch == nil || *marker.BrokerEpoch < 0 {
			t.Errorf("clean shutdown marker: %v, %+v", err, marker)
		}
	})
	t.Run("S022_index_entries", func(t *testing.T) {
		if got, want := hexOf(t, n.path("many", "00000000000000000000.index")), "0000000500001388"+"0000000a00002710"+"0000000f00003a98"; got != want {
			t.Errorf("index %s, want %s", got, want)
		}
		if got, want := hexOf(t, n.path("many", "00000000000000000000.timeindex")), "0000018bcfe5680500000005"+"0000018bcfe5680a0000000a"+"0000018bcfe5680f0000000f"; got != want {
			t.Errorf("time index %s, want %s", got, want)
		}
	})
	t.Run("S023_falling_timestamps", func(t *testing.T) {
		if got, want := hexOf(t, n.path("falling", "00000000000000000000.timeindex")), "0000018bcfe5680a00000000"; got != want {
			t.Errorf("time index %s, want %s", got, want)
		}
	})
	t.Run("S024_producer_snapshot", func(t *testing.T) {
		// Last sequence 9 at offset 9, two records, of time stamp+9.
		want := "0000000000000fa0" + "0005" + "00000009" + "0000000000000009" + "00000001" + "0000018bcfe56809" + "ffffffff" + "ffffffffffffffff"
		got := hexOf(t, n.path("producer", "00000000000000000010.snapshot"))
		if len(got) != 2*(10+46) || got[:4] != "0001" || got[12:20] != "00000001" || got[20:] != want {
			t.Errorf("snapshot %s, want 0001, a CRC, 00000001 and %s", got, want)
		}
	})
	t.Run("S026_checkpoints", func(t *testing.T) {
		for file, want := range map[string][]string{
			"recovery-point-offset-checkpoint": {"deleted 0 10", "falling 0 3", "many 0 16", "one 0 2", "producer 0 10"},
			"replication-offset-checkpoint":    {"deleted 0 10", "falling 0 3", "many 0 16", "one 0 2", "producer 0 10"},
			"log-start-offset-checkpoint":      {"deleted 0 4"},
		} {
			text := string(n.read(t, filepath.Join(n.dir, file)))
			lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
			rest := strings.Join(lines[min(2, len(lines)):], "\n")
			if lines[0] != "0" || len(lines) != len(want)+2 || lines[1] != itoa(len(want)) {
				t.Errorf("%s: %q", file, text)
			}
			for _, line := range want {
				if !strings.Contains("\n"+rest+"\n", "\n"+line+"\n") {
					t.Errorf("%s has no line %q: %q", file, line, text)
				}
			}
		}
	})

	// What was stopped cleanly starts as it was.
	n.run(t)
	c = n.dial(t)
	c.led(many, 1)
	if got := c.end(many); got != 16 {
		t.Errorf("after the restart the log ends at %d", got)
	}
	c.led(producer, 1)
	c.wantAppend(producer, idempotent(4000, 5, 8, 2), 0, 8)
}

func itoa(n int) string { return string(rune('0' + n)) }

// attempt runs a node that ought to fail, and returns what it said last and its status.
func attempt(t testing.TB, dir string, set ...string) (said string, status int) {
	t.Helper()
	args := []string{"serve", "--data-dir", dir, "--set", "listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0", "--set", "http.listen="}
	for _, s := range set {
		args = append(args, "--set", s)
	}
	out, err := exec.Command(built(t), args...).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("stele ended without an error: %v\n%s", err, out)
	}
	return string(out), exit.ExitCode()
}

// snapshotOf is every file below dir with its content.
func snapshotOf(t testing.TB, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			files[path] = "dir"
			return err
		}
		b, err := os.ReadFile(path)
		files[path] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestS027_second_process: a second process on the same directory fails and names the lock; the first goes on
// unharmed.
func TestS027_second_process(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.dial(t)
	tp := c.topic(1)
	said, status := attempt(t, n.dir)
	if status != 1 || !strings.Contains(said, ".lock") || strings.Count(said, "stele: ") != 1 {
		t.Errorf("status %d: %s", status, said)
	}
	c.mustProduce(tp, 0, exampleA())
	n.restart(t)
	c = n.dial(t)
	c.led(tp, 1)
	if got := c.end(tp); got != 2 {
		t.Errorf("the log ends at %d", got)
	}
}

// A data directory of another cluster or another node, of a newer version, with metadata that cannot be
// read, and one that holds something else: one clear line, exit 1, and not a byte changed on disk.
func TestForeign_data_directories(t *testing.T) {
	t.Parallel()
	n := start(t)
	n.stop(t)
	properties := filepath.Join(n.dir, "meta.properties")
	good := string(n.read(t, properties))
	for _, test := range []struct {
		name    string
		content string // of meta.properties; "" for none
		set     []string
		says    string
	}{
		{"another cluster", good, []string{"cluster.id=AAAAAAAAAAAAAAAAAAAAAQ"}, "cluster"},
		{"another node", good, []string{"node.id=7"}, "node"},
		{"newer version", strings.Replace(good, "version=1", "version=9", 1), nil, "version"},
		{"unreadable", "version=1\nnode.id=\\u00", nil, "meta.properties"},
		{"not a number", strings.Replace(good, "node.id=1", "node.id=x", 1), nil, "node.id"},
		{"something else's", "", nil, n.dir},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.content == "" {
				if err := os.Remove(properties); err != nil {
					t.Fatal(err)
				}
			} else if err := os.WriteFile(properties, []byte(test.content), 0o644); err != nil {
				t.Fatal(err)
			}
			before := snapshotOf(t, n.dir)
			said, status := attempt(t, n.dir, test.set...)
			var last string
			for _, line := range strings.Split(said, "\n") {
				if strings.HasPrefix(line, "stele: ") {
					last += line
				}
			}
			if status != 1 || !strings.Contains(last, test.says) || strings.Count(last, "stele: ") != 1 {
				t.Errorf("status %d, said %q", status, said)
			}
			after := snapshotOf(t, n.dir)
			for path, content := range before {
				if after[path] != content {
					t.Errorf("%s changed", path)
				}
			}
			if len(after) != len(before) {
				t.Errorf("%d files, were %d", len(after), len(before))
			}
		})
	}
}
