package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Dump and verify read what a node wrote, decode the internal topics, and name a damaged
// byte by file, position and offset, with status 1.
func TestLogDumpAndVerify(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n, err := startFor(t.Context(), dir, "group.initial.rebalance.delay.ms=0", "offsets.topic.num.partitions=1")
	if err != nil {
		t.Fatal(err)
	}
	addr := n.server.Addr("PLAINTEXT").String()
	for _, r := range []result{
		runAt(addr, "k:v\n", "produce", "t", "-k", ":", "-H", "h=1"),
		runAt(addr, lines(2000), "produce", "t", "-k", "0", "--null", "1"),
		runAt(addr, lines(2000), "produce", "t"),
		runAt(addr, "", "consume", "t", "-g", "g", "-e"),
	} {
		if r.status != 0 && !strings.Contains(r.err, "no key separator") {
			t.Error(r.err)
		}
	}
	n.stop()
	local := func(args ...string) result { return runAt("127.0.0.1:1", "", args...) }

	if r := local("log", "verify", dir); r.status != 0 || !strings.Contains(r.out, "every invariant holds") {
		t.Errorf("%+v", r)
	}
	if r := local("log", "verify", filepath.Join(dir, "t-0"), "-o", "json"); r.status != 0 || !strings.Contains(r.out, `"problems": []`) {
		t.Errorf("%+v", r)
	}
	for path, words := range map[string][]string{
		"t-0":                  {"batch 0-0 leader epoch 0", `key "k" value "v" header "h"="1"`, "leader epoch 0 starts at offset 0", "topic_id", "producer "},
		"__consumer_offsets-0": {"OffsetCommit", `"Topic":"t"`, "GroupMetadata"},
		"__cluster_metadata-0": {"RegisterBrokerRecord", "TopicRecord", "LEADER_CHANGE", "SNAPSHOT_HEADER"},
	} {
		r := local("log", "dump", "--records", filepath.Join(dir, path))
		for _, word := range words {
			if !strings.Contains(r.out, word) {
				t.Errorf("%s: %q is missing; status %d %s", path, word, r.status, r.err)
			}
		}
		r = local("log", "dump", "--records", filepath.Join(dir, path), "--output", "json")
		for line := range strings.Lines(r.out) {
			var entry struct{ File, Kind string }
			if err := json.Unmarshal([]byte(line), &entry); err != nil || entry.File == "" || entry.Kind == "" {
				t.Fatalf("%s: %v in %s", path, err, line)
			}
		}
	}

	segment := filepath.Join(dir, "t-0", "00000000000000000000.log")
	data, err := os.ReadFile(segment)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-1] ^= 1
	if err := os.WriteFile(segment, data, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"log", "verify", dir}, {"log", "verify", dir, "-o", "json"}} {
		r := local(args...)
		check(t, r, 1, args, dir)
		if !strings.Contains(r.out, "00000000000000000000.log") || !strings.Contains(r.out, "position") {
			t.Errorf("%s", r.out)
		}
	}
	args := []string{"log", "dump", segment}
	if r := local(args...); !strings.Contains(r.out, "! position") || !strings.Contains(r.out, "batch 0-0") {
		t.Errorf("%+v", r)
	} else {
		check(t, r, 1, args, segment, "position")
	}
	args = []string{"log", "verify", t.TempDir()}
	check(t, local(args...), 2, args, "holds no partition")
	args = []string{"log", "dump", filepath.Join(dir, "meta.properties")}
	check(t, local(args...), 2, args, "no file of a partition")
}
