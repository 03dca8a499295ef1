package golden

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stelelog/stele/test/golden/kafka"
)

// What `stele log dump` shows of every file in a directory that Apache Kafka wrote is what Kafka's own tool was
// recorded to show of it: batches, index entries, aborted transactions, producers, and the records of the metadata
// log and its snapshots, of groups of both kinds and of transactions, field by field.
func TestDumpIsKafkas(t *testing.T) {
	t.Parallel()
	const recorded = "../reference/testdata/kafka-4.4.0"
	var files []string
	said := map[string][]byte{}
	err := filepath.WalkDir(filepath.Join(recorded, "dump"), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(filepath.Join(recorded, "dump"), strings.TrimSuffix(path, ".txt"))
		if err != nil {
			return err
		}
		file := filepath.Join(recorded, "datadir", rel)
		files = append(files, file)
		said[file], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(stele(t), append([]string{"log", "dump", "--records", "--output", "json"}, files...)...).Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	shown := map[string][]byte{}
	for line := range bytes.Lines(out) {
		var entry struct{ File string }
		if err := json.Unmarshal(line, &entry); err != nil {
			t.Fatal(err)
		}
		shown[entry.File] = append(shown[entry.File], line...)
	}
	entries := map[string]int{}
	for _, file := range files {
		n, err := kafka.CompareDump(said[file], shown[file])
		if err != nil {
			t.Errorf("%s: %v", file, err)
		}
		entries[filepath.Ext(file)] += n
	}
	for kind, least := range map[string]int{".log": 300, ".index": 10, ".timeindex": 10, ".txnindex": 2, ".snapshot": 3, ".checkpoint": 50} {
		if entries[kind] < least {
			t.Errorf("%d entries of %s files were compared", entries[kind], kind)
		}
	}
}
