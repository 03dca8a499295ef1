package cli

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/stelelog/stele/internal/record"
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
	unknown := filepath.Join(t.TempDir(), "server.properties")
	if err := os.WriteFile(unknown, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	args = []string{"log", "dump", unknown}
	check(t, local(args...), 2, args, "no file that dump knows")
}

// Every damage to what can be rebuilt, or cannot, is named with its file: producer snapshots, the index of aborted
// transactions, the metadata log's snapshots and state, checkpoints and meta.properties; of Stele's directories and of
// Kafka's.
func TestLogVerifyFindsDamage(t *testing.T) {
	t.Parallel()
	local := func(args ...string) result { return runAt("127.0.0.1:1", "", args...) }
	const kafkas = "../../test/reference/testdata/kafka-4.4.0/datadir"
	steles := t.TempDir()
	n, err := startFor(t.Context(), steles, "offsets.topic.num.partitions=1", "metadata.log.max.record.bytes.between.snapshots=1")
	if err != nil {
		t.Fatal(err)
	}
	if r := runAt(n.server.Addr("PLAINTEXT").String(), lines(20), "produce", "t"); r.status != 0 {
		t.Fatal(r.err)
	}
	n.stop()
	snapshot := func(dir string) string {
		found, err := filepath.Glob(filepath.Join(dir, "__cluster_metadata-0", "*[1-9]*-*.checkpoint"))
		if err != nil || len(found) == 0 {
			t.Fatal(found, err)
		}
		name, err := filepath.Rel(dir, found[0])
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	cut := func(n int) func([]byte) []byte { return func(b []byte) []byte { return b[:len(b)-n] } }
	replace := func(old, with string) func([]byte) []byte {
		return func(b []byte) []byte { return bytes.Replace(b, []byte(old), []byte(with), 1) }
	}
	for _, c := range []struct {
		from, file string
		damage     func([]byte) []byte
		says       string
	}{
		{kafkas, "idempotent-0/00000000000000000021.snapshot", func(b []byte) []byte { // another last sequence, under a good checksum
			b[10+13]--
			binary.BigEndian.PutUint32(b[2:], crc32.Checksum(b[6:], crc32.MakeTable(crc32.Castagnoli)))
			return b
		}, "sequence"},
		{kafkas, "transactions-0/00000000000000000000.txnindex", cut(34), "is not in it"},
		{kafkas, "transactions-0/00000000000000000000.txnindex", func(b []byte) []byte { b[25]--; b[33]--; return b }, "no marker is there"},
		{kafkas, "open-0/00000000000000000001.snapshot", func(b []byte) []byte {
			for i := range 8 {
				b[10+38+i] = 0xff
			}
			binary.BigEndian.PutUint32(b[2:], crc32.Checksum(b[6:], crc32.MakeTable(crc32.Castagnoli)))
			return b
		}, "open transaction"},
		{kafkas, snapshot(kafkas), cut(1), ""},
		{kafkas, "meta.properties", replace("node.id=", "node.no="), "node.id"},
		{kafkas, "replication-offset-checkpoint", replace("codecs 0 100", "codecs 0 101"), "log ends at 100"},
		{kafkas, "recovery-point-offset-checkpoint", replace("\n", "1\n"), "damaged"},
		{kafkas, "__cluster_metadata-0/quorum-state", cut(1), "unexpected end"},
		{steles, "__cluster_metadata-0/raft-state", cut(1), "checksum"},
		{steles, "bootstrap.checkpoint", cut(1), ""},
		{steles, snapshot(steles), func([]byte) []byte { // a snapshot of another image
			data, err := os.ReadFile(filepath.Join(kafkas, snapshot(kafkas)))
			if err != nil {
				t.Fatal(err)
			}
			return data
		}, "others"},
	} {
		dir := filepath.Join(t.TempDir(), "data")
		if err := os.CopyFS(dir, os.DirFS(c.from)); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, c.file)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, c.damage(bytes.Clone(data)), 0o600); err != nil {
			t.Fatal(err)
		}
		if r := local("log", "verify", dir); r.status != 1 || !strings.Contains(r.out, path+":") || !strings.Contains(r.out, c.says) {
			t.Errorf("%s: status %d, no %q in\n%s", c.file, r.status, c.says, r.out)
		}
	}
	for _, dir := range []string{kafkas, steles} {
		if r := local("log", "verify", dir); r.status != 0 || strings.Contains(r.out, "note:") {
			t.Errorf("%s: %s", dir, r.out)
		}
	}
	// A partition that the metadata does not know is unusual, and no damage; also where the metadata lies elsewhere.
	elsewhere := t.TempDir()
	if err := os.CopyFS(filepath.Join(elsewhere, "unknown-0"), os.DirFS(filepath.Join(kafkas, "codecs-0"))); err != nil {
		t.Fatal(err)
	}
	if r := local("log", "verify", elsewhere, steles); r.status != 0 || !strings.Contains(r.out, "note: "+filepath.Join(elsewhere, "unknown-0")+": the metadata has no topic unknown") {
		t.Errorf("%+v", r)
	}
}

// Records of kinds that this version does not know, or of versions beyond those it knows, are shown as they are, with
// the reason; nothing of a record makes dump fail.
func TestLogDumpOfUnknownRecords(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "__consumer_offsets-0")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	b := record.NewBuilder(record.BuilderOptions{})
	for _, kv := range [][2]string{
		{"\x00\x63\x00\x01g", "\x00\x00"},          // type 99
		{"\x00\x03\x00\x01g", "\x00\x07\x01"},      // ConsumerGroupMetadata of version 7
		{"\x00\x03\x00\x09g", "\x00\x00\x01"},      // its key cut short
		{"\x00\x05\x00\x01g\x00\x01m", "\x00\x00"}, // a member without a body
		{"\x00\x0a\x00\x01g\x00\x01m", "\x00\x00\x01"},
		{"", "x"},
	} {
		if err := b.Append(1, []byte(kv[0]), []byte(kv[1]), nil); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "00000000000000000000.log")
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	r := runAt("127.0.0.1:1", "", "log", "dump", "--records", file)
	if r.status != 0 {
		t.Errorf("%+v", r)
	}
	for _, words := range []string{"type 99, which this version does not know; the record is kept", "version 7, known are 0 to 0", "key of ConsumerGroupMetadata ends", "bad instanceId", `ShareGroupMemberMetadata {"key":{"groupId":"g","memberId":"m"}`} {
		if !strings.Contains(r.out, words) {
			t.Errorf("no %q in\n%s", words, r.out)
		}
	}
}

// A directory that is being written to, with segments that roll and go, is verified without a false alarm, and a
// damage in it is still found.
func TestLogVerifyUnderLoad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n, err := startFor(t.Context(), dir, "log.segment.bytes=1048576", "metadata.log.max.record.bytes.between.snapshots=1", "log.retention.bytes=2000000", "log.retention.check.interval.ms=50", "log.initial.task.delay.ms=0", "file.delete.delay.ms=0")
	if err != nil {
		t.Fatal(err)
	}
	defer n.stop()
	addr := n.server.Addr("PLAINTEXT").String()
	ctx, cancel := context.WithCancel(t.Context())
	var writer sync.WaitGroup
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.DefaultProduceTopic("t"), kgo.UnknownTopicRetries(-1), kgo.AllowAutoTopicCreation())
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	value := bytes.Repeat([]byte("x"), 20_000)
	writer.Go(func() {
		for ctx.Err() == nil {
			cl.ProduceSync(ctx, &kgo.Record{Value: value}, &kgo.Record{Value: value})
		}
	})
	defer writer.Wait()
	defer cancel()
	for range 4 {
		if r := runAt("127.0.0.1:1", "", "log", "verify", dir); r.status != 0 || !strings.Contains(r.out, "in use by a running node") {
			t.Fatalf("%+v", r)
		}
	}
	file := filepath.Join(dir, "__cluster_metadata-0", "quorum-state")
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := runAt("127.0.0.1:1", "", "log", "verify", dir); r.status != 1 || !strings.Contains(r.out, file) {
		t.Errorf("%+v", r)
	}
}
