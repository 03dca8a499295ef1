package golden

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/test/golden/kafka"
)

const kafkaGolden = "testdata/kafka-4.4.0"

// kafkaDir is a copy of the data directory that Apache Kafka left, and what is known of it.
func kafkaDir(t *testing.T) (dir string, known kafka.Golden) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "data")
	if err := kafka.Unpack(filepath.Join(kafkaGolden, "data.tar.gz"), dir); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(kafkaGolden, "state.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &known); err != nil {
		t.Fatal(err)
	}
	return dir, known
}

// TestS030_takes_over_a_kafka_directory: a node started on the data directory of a cleanly stopped Apache Kafka 4.4
// gives back its topics with every record, offset, epoch and setting, its groups with their generations' members and
// every commit, and goes on with its idempotent producer: the retry is a duplicate, the next batch is appended, a gap
// is refused. So it does after every restart, and nothing that it does not serve is lost from the metadata or from the
// internal topics.
func TestS030_takes_over_a_kafka_directory(t *testing.T) {
	t.Parallel()
	dir, known := kafkaDir(t)
	internal := map[string][]byte{}
	for _, topic := range []string{"__consumer_offsets-0", "__transaction_state-0"} {
		data, err := os.ReadFile(filepath.Join(dir, topic, "00000000000000000000.log"))
		if err != nil {
			t.Fatal(err)
		}
		internal[topic] = data
	}
	verify(t, dir)
	want := known.State
	for round := range 3 {
		n := start(t, dir, "metadata.log.max.record.bytes.between.snapshots=1")
		got, err := kafka.Observe(t.Context(), n.addr, kafka.Classic, kafka.Static)
		if err != nil {
			t.Fatal(err)
		}
		same(t, want, got)
		if commits, err := kafka.Commits(t.Context(), n.addr, kafka.Consumer); err != nil || !reflect.DeepEqual(commits, known.Consumer) {
			t.Errorf("commits of group %s: %v instead of %v: %v", kafka.Consumer, commits, known.Consumer, err)
		}
		cl := n.client(t)
		p := known.Producer
		if base, err := kafka.Send(t.Context(), cl, "idempotent", p, p.LastBase, "first", "second"); err != nil || base != p.LastOffset {
			t.Errorf("the retry of the last batch came to offset %d instead of %d: %v", base, p.LastOffset, err)
		}
		if _, err := kafka.Send(t.Context(), cl, "idempotent", p, p.Next+7, "later"); err != kerr.OutOfOrderSequenceNumber {
			t.Errorf("a sequence beyond the next: %v", err)
		}
		base, err := kafka.Send(t.Context(), cl, "idempotent", p, p.Next, "third", "fourth")
		if err != nil || base != p.LastOffset+2 {
			t.Errorf("the next batch came to offset %d instead of %d: %v", base, p.LastOffset+2, err)
		}
		known.Producer.LastBase, known.Producer.LastOffset, known.Producer.Next = p.Next, base, p.Next+2
		// From now on all but that topic is as it was.
		delete(want.Topics, "idempotent")
		delete(want.LogDirs, "idempotent-0")
		n.stop(t)
		if round == 0 {
			verify(t, dir)
		}
	}
	for topic, before := range internal {
		after, err := os.ReadFile(filepath.Join(dir, topic, "00000000000000000000.log"))
		if err != nil || !bytes.HasPrefix(after, before) {
			t.Errorf("%s does not begin with what Kafka wrote: %v", topic, err)
		}
	}
	snapshots, err := filepath.Glob(filepath.Join(dir, "__cluster_metadata-0", "*[1-9]*-*.checkpoint"))
	if err != nil || len(snapshots) < 2 {
		t.Fatal(snapshots, err)
	}
	out, err := exec.Command(stele(t), "log", "dump", "--records", snapshots[len(snapshots)-1]).CombinedOutput()
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"AccessControlEntryRecord", "UserScramCredentialRecord", "ClientQuotaRecord", `"Name":"group.version","FeatureLevel":1`, `"Name":"transaction.version","FeatureLevel":2`, "NextProducerID"} {
		if !strings.Contains(string(out), word) {
			t.Errorf("no %s in a snapshot that was taken later:\n%s", word, out)
		}
	}
	verify(t, dir)
}

// A Kafka that was killed is taken over too: torn ends of a partition's log and of the metadata log are cut, the
// rest is recovered, and all that was whole is there.
func TestTakeoverAfterAnUncleanStop(t *testing.T) {
	t.Parallel()
	dir, known := kafkaDir(t)
	if err := os.Remove(filepath.Join(dir, ".kafka_cleanshutdown")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "recovery-point-offset-checkpoint"), []byte("0\n0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, log := range []string{"codecs-0", "transactions-0", "__consumer_offsets-0", "__cluster_metadata-0"} {
		name := filepath.Join(dir, log, "00000000000000000000.log")
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, append(data, data[len(data)-70:len(data)-9]...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, gone := range []string{"idempotent-0/00000000000000000006.snapshot", "rolled-0/00000000000000000005.index", "codecs-1/leader-epoch-checkpoint", "transactions-0/00000000000000000000.txnindex"} {
		if err := os.Remove(filepath.Join(dir, gone)); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	n := start(t, dir)
	got, err := kafka.Observe(t.Context(), n.addr, kafka.Classic, kafka.Static)
	if err != nil {
		t.Fatal(err)
	}
	same(t, known.State, got)
	p := known.Producer
	cl := n.client(t)
	if base, err := kafka.Send(t.Context(), cl, "idempotent", p, p.LastBase, "first", "second"); err != nil || base != p.LastOffset {
		t.Errorf("the retry of the last batch came to offset %d instead of %d: %v", base, p.LastOffset, err)
	}
	if base, err := kafka.Send(t.Context(), cl, "idempotent", p, p.Next, "third", "fourth"); err != nil || base != p.LastOffset+2 {
		t.Errorf("the next batch came to offset %d instead of %d: %v", base, p.LastOffset+2, err)
	}
	n.stop(t)
	verify(t, dir)
}

// same compares part by part, so that a difference is readable.
func same(t *testing.T, want, got kafka.State) {
	t.Helper()
	maps.DeleteFunc(got.Topics, func(name string, _ kafka.Topic) bool { _, known := want.Topics[name]; return !known })
	maps.DeleteFunc(got.LogDirs, func(name string, _ int64) bool { _, known := want.LogDirs[name]; return !known })
	if got.ClusterID != want.ClusterID || got.Broker != want.Broker {
		t.Errorf("cluster %s, node %d instead of %s, %d", got.ClusterID, got.Broker, want.ClusterID, want.Broker)
	}
	for _, part := range []struct {
		name      string
		want, got any
	}{
		{"groups", want.Groups, got.Groups}, {"broker settings", want.BrokerConfigs, got.BrokerConfigs}, {"features", want.Features, got.Features}, {"sizes", want.LogDirs, got.LogDirs},
	} {
		if !reflect.DeepEqual(part.want, part.got) {
			t.Errorf("%s:\n%s\ninstead of\n%s", part.name, pretty(part.got), pretty(part.want))
		}
	}
	for name := range maps.Keys(want.Topics) {
		if w, g := pretty(want.Topics[name]), pretty(got.Topics[name]); w != g {
			t.Errorf("topic %s:\n%s\ninstead of\n%s", name, g, w)
		}
	}
}

func pretty(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// refused says that a start on a directory ends with one line that holds all these words, and nothing changed.
func refused(t *testing.T, dir string, words ...string) {
	t.Helper()
	before := listing(t, dir)
	out, err := exec.Command(stele(t), "serve", "--data-dir", dir, "--set", "listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0", "--set", "http.listen=").CombinedOutput()
	if err == nil {
		t.Fatalf("it was served:\n%s", out)
	}
	for _, words := range append(words, "nothing was changed") {
		if strings.Count(string(out), "\n") != 1 || !strings.Contains(string(out), words) {
			t.Errorf("no %q in one line:\n%s", words, out)
		}
	}
	if after := listing(t, dir); !reflect.DeepEqual(before, after) {
		t.Errorf("changed from\n%v\nto\n%v", before, after)
	}
}

// A directory of Kafka's with an open transaction is taken over: its coordinator finds it out of time and aborts it, and
// readers of committed records go on.
func TestTakeoverOfAnOpenTransaction(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.CopyFS(dir, os.DirFS("../reference/testdata/kafka-4.4.0/datadir")); err != nil {
		t.Fatal(err)
	}
	n := start(t, dir, "transaction.abort.timed.out.transaction.cleanup.interval.ms=100")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	admin := kadm.NewClient(n.client(t))
	for {
		described, err := admin.DescribeTransactions(ctx, "tx-open")
		if err == nil && described["tx-open"].State == "CompleteAbort" {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("%+v, %v", described, err)
		}
	}
	stable, err1 := admin.ListCommittedOffsets(ctx, "open")
	ends, err2 := admin.ListEndOffsets(ctx, "open")
	if a, b := stable["open"][0].Offset, ends["open"][0].Offset; err1 != nil || err2 != nil || a != b || b <= 0 {
		t.Errorf("last stable offset %d, end %d: %v, %v", a, b, err1, err2)
	}
	n.stop(t)
}

// Members of groups of other protocols and a partition whose directory is gone after a clean stop are all named
// together; so is a metadata log that was lost.
func TestTakeoverRefusesWhatIsInUse(t *testing.T) {
	t.Parallel()
	dir, _ := kafkaDir(t)
	log := filepath.Join(dir, "__consumer_offsets-0", "00000000000000000000.log")
	data, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	b := record.NewBuilder(record.BuilderOptions{})
	key := func(typ byte, group string) []byte {
		return append(append([]byte{0, typ, 0, byte(len(group))}, group...), 0, 1, 'm')
	}
	for _, kv := range []struct {
		key   []byte
		value []byte
	}{
		{key(10, "sharers"), []byte{0, 0}}, {key(19, "streamers"), []byte{0, 0}},
		{key(10, "left"), []byte{0, 0}}, {key(10, "left"), nil},
	} {
		if err := b.Append(1, kv.key, kv.value, nil); err != nil {
			t.Fatal(err)
		}
	}
	batch := b.Bytes()
	batch.SetBaseOffset(20)
	batch.SetPartitionLeaderEpoch(0)
	if err := os.WriteFile(log, append(data, batch...), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "codecs-1")); err != nil {
		t.Fatal(err)
	}
	refused(t, dir, "share group sharers has 1 members", "streams group streamers has 1 members", "partition codecs-1 has no directory")
	if out, _ := exec.Command(stele(t), "serve", "--data-dir", dir, "--set", "http.listen=").CombinedOutput(); strings.Contains(string(out), "group left") {
		t.Errorf("a member that left is in the way:\n%s", out)
	}
	// Without a metadata log there is nothing to say whose partitions these are.
	for _, name := range []string{"00000000000000000000.log", "quorum-state", "leader-epoch-checkpoint"} {
		if err := os.Remove(filepath.Join(dir, "__cluster_metadata-0", name)); err != nil {
			t.Fatal(err)
		}
	}
	refused(t, dir, "the metadata log is empty, but there are partitions")
}

// listing is every file with its content.
func listing(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			files[path] = "directory"
			return err
		}
		data, err := os.ReadFile(path)
		files[path] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// The cleaner leaves the newest record of each key in an internal topic, also of the kinds that this version does not
// know: groups of other protocols and transactional ids come through compaction as they are.
func TestTakeoverKeepsThroughCompaction(t *testing.T) {
	t.Parallel()
	dir, _ := kafkaDir(t)
	newest := func(topic string) map[string]string {
		found := map[string]string{}
		files, err := filepath.Glob(filepath.Join(dir, topic, "*.log"))
		if err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(stele(t), append([]string{"log", "dump", "--records", "--output", "json"}, files...)...).Output()
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(out) {
			var entry struct {
				Kind, Type string
				Payload    struct{ Key, Value, Undecoded json.RawMessage }
			}
			if err := json.Unmarshal(line, &entry); err != nil {
				t.Fatal(err)
			}
			if entry.Kind == "record" && entry.Payload.Key != nil {
				found[entry.Type+string(entry.Payload.Key)] = string(entry.Payload.Value) + string(entry.Payload.Undecoded)
			}
		}
		return found
	}
	topics := []string{"__consumer_offsets", "__transaction_state"}
	before := map[string]map[string]string{}
	for _, topic := range topics {
		before[topic] = newest(topic + "-0")
	}
	if len(before[topics[0]]) < 4 || len(before[topics[1]]) == 0 {
		t.Fatalf("%v", before)
	}
	n := start(t, dir, "log.cleaner.backoff.ms=20", "log.initial.task.delay.ms=0")
	admin := kadm.NewClient(n.client(t))
	roll, dirty := "1", "0.0"
	for _, topic := range topics[:1] {
		resp, err := admin.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Name: "segment.ms", Value: &roll}, {Name: "min.cleanable.dirty.ratio", Value: &dirty}}, topic)
		if err != nil || resp[0].Err != nil {
			t.Fatal(err, resp)
		}
	}
	cleaned := regexp.MustCompile(`__consumer_offsets 0 (\d+)`)
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.After(patience); ; {
		offsets := kadm.Offsets{}
		offsets.AddOffset("codecs", 1, 3, 0)
		if err := admin.CommitAllOffsets(t.Context(), "another", offsets); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(dir, "cleaner-offset-checkpoint"))
		if m := cleaned.FindSubmatch(text); err == nil && m != nil {
			if to, err := strconv.Atoi(string(m[1])); err == nil && to > 20 { // past all that Kafka wrote
				break
			}
		}
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("not cleaned: %s", text)
		}
	}
	n.stop(t)
	for _, topic := range topics {
		after := newest(topic + "-0")
		for key, value := range before[topic] {
			if got, ok := after[key]; value == "null" && !ok {
				continue // a tombstone may go
			} else if got != value {
				t.Errorf("%s: %s is %q now, it was %q", topic, key, got, value)
			}
		}
	}
	verify(t, dir)
}
