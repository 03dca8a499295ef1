package golden

import (
	"context"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

var update = flag.String("update", "", "write the directory of this version, such as v0.2")

// rec is one record as it must come back.
type rec struct {
	Offset    int64
	Epoch     int32
	Timestamp int64
	Key       *string
	Value     *string
	Headers   map[string]string `json:",omitempty"`
}

type topicState struct {
	ID            string
	LogStart, End int64
	Configs       map[string]string `json:",omitempty"`
	Records       []rec
}

type commit struct {
	Topic    string
	Offset   int64
	Epoch    int32
	Metadata string
}

// state is all that a version's directory must give back.
type state struct {
	ClusterID string
	Topics    map[string]topicState
	Commits   []commit
}

const goldenGroup = "billing"

// observe reads everything from a running node.
func observe(t *testing.T, n *node, topics ...string) state {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	admin := kadm.NewClient(n.client(t))
	s := state{Topics: map[string]topicState{}}
	meta, err := admin.Metadata(ctx, topics...)
	if err != nil {
		t.Fatal(err)
	}
	s.ClusterID = meta.Cluster
	starts, err := admin.ListStartOffsets(ctx, topics...)
	if err != nil {
		t.Fatal(err)
	}
	ends, err := admin.ListEndOffsets(ctx, topics...)
	if err != nil {
		t.Fatal(err)
	}
	configs, err := admin.DescribeTopicConfigs(ctx, topics...)
	if err != nil {
		t.Fatal(err)
	}
	for _, topic := range topics {
		startAt, _ := starts.Lookup(topic, 0)
		endAt, _ := ends.Lookup(topic, 0)
		got := topicState{ID: meta.Topics[topic].ID.String(), LogStart: startAt.Offset, End: endAt.Offset, Configs: map[string]string{}}
		for _, resource := range configs {
			for _, entry := range resource.Configs {
				if resource.Name == topic && entry.Source.String() == "DYNAMIC_TOPIC_CONFIG" {
					got.Configs[entry.Key] = entry.MaybeValue()
				}
			}
		}
		got.Records = read(ctx, t, n, topic, got.LogStart, got.End)
		s.Topics[topic] = got
	}
	committed, err := admin.FetchOffsets(ctx, goldenGroup)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range committed.Sorted() {
		s.Commits = append(s.Commits, commit{o.Topic, o.At, o.LeaderEpoch, o.Metadata})
	}
	return s
}

func read(ctx context.Context, t *testing.T, n *node, topic string, from, end int64) []rec {
	t.Helper()
	var found []rec
	client := n.client(t, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().At(from)}}))
	defer client.Close()
	for next := from; next < end; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			got := rec{Offset: r.Offset, Epoch: r.LeaderEpoch, Timestamp: r.Timestamp.UnixMilli(), Key: text(r.Key), Value: text(r.Value)}
			for _, h := range r.Headers {
				if got.Headers == nil {
					got.Headers = map[string]string{}
				}
				got.Headers[h.Key] = string(h.Value)
			}
			found, next = append(found, got), r.Offset+1
		})
	}
	return found
}

func text(b []byte) *string {
	if b == nil {
		return nil
	}
	s := string(b)
	return &s
}

func encode(t *testing.T, s state) string {
	t.Helper()
	b, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b) + "\n"
}

// The data directory of every version so far is opened by this one: each record comes
// back with its offset, leader epoch, timestamp, key, value and headers, each commit with
// its epoch, and appends go on behind the end; verify finds nothing wrong, before and after.
func TestEveryVersionOpens(t *testing.T) {
	t.Parallel()
	versions, err := filepath.Glob("testdata/v*")
	if err != nil || len(versions) == 0 {
		t.Fatal("no golden directory", err)
	}
	for _, version := range versions {
		t.Run(filepath.Base(version), func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "data")
			if err := os.CopyFS(dir, os.DirFS(filepath.Join(version, "data"))); err != nil {
				t.Fatal(err)
			}
			want, err := os.ReadFile(filepath.Join(version, "state.json"))
			if err != nil {
				t.Fatal(err)
			}
			var expected state
			if err := json.Unmarshal(want, &expected); err != nil {
				t.Fatal(err)
			}
			verify(t, dir)
			n := start(t, dir)
			var topics []string
			for topic := range expected.Topics {
				topics = append(topics, topic)
			}
			slices.Sort(topics)
			if got := encode(t, observe(t, n, topics...)); got != string(want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			for _, topic := range topics {
				end := expected.Topics[topic].End
				results := n.client(t).ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("from a later version")})
				if r, err := results.First(); err != nil || r.Offset != end {
					t.Errorf("%s: an append came to %v, not %d: %v", topic, r, end, err)
				}
			}
			n.stop(t)
			verify(t, dir)
		})
	}
}

func verify(t *testing.T, dir string) {
	t.Helper()
	if output, err := exec.Command(stele(t), "log", "verify", dir).CombinedOutput(); err != nil {
		t.Errorf("log verify: %v\n%s", err, output)
	}
}

// TestWrite writes the directory of a version, when told which: all codecs, idempotent
// producers over a restart (so several leader epochs), a group with commits, rolled
// segments, deleted records, and a snapshot of the metadata log.
func TestWrite(t *testing.T) {
	if *update == "" {
		t.Skip("-update=VERSION writes a version's directory")
	}
	target := filepath.Join("testdata", *update)
	if _, err := os.Stat(target); err == nil {
		t.Fatalf("%s is there: a version's directory is never written again", target)
	}
	dir := filepath.Join(t.TempDir(), "data")
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	snapshots := "metadata.log.max.record.bytes.between.snapshots=1"

	n := start(t, dir, snapshots)
	admin := kadm.NewClient(n.client(t))
	hour := "3600000"
	if _, err := admin.CreateTopic(ctx, 1, 1, map[string]*string{}, "codecs"); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.CreateTopic(ctx, 1, 1, map[string]*string{"segment.ms": &hour}, "rolled"); err != nil {
		t.Fatal(err)
	}
	first := time.UnixMilli(1_700_000_000_000)
	write := func(n *node, topic string, at time.Time, codec kgo.CompressionCodec, values ...string) {
		client := n.client(t, kgo.ProducerBatchCompression(codec), kgo.UnknownTopicRetries(-1))
		var records []*kgo.Record
		for i, value := range values {
			r := &kgo.Record{Topic: topic, Key: []byte(value[:1]), Value: []byte(strings.Repeat(value, 10)), Timestamp: at.Add(time.Duration(i) * time.Millisecond),
				Headers: []kgo.RecordHeader{{Key: "version", Value: []byte(*update)}}}
			if value == "-" {
				r.Value = nil
			}
			records = append(records, r)
		}
		if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	codecs := []kgo.CompressionCodec{kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression()}
	for i, codec := range codecs {
		write(n, "codecs", first.Add(time.Duration(i)*time.Minute), codec, "one ", "two ", "-")
	}
	for i := range 4 {
		write(n, "rolled", first.Add(time.Duration(i)*2*time.Hour), kgo.NoCompression(), "before ", "a restart ")
	}
	n.stop(t)

	n = start(t, dir, snapshots)
	admin = kadm.NewClient(n.client(t))
	for i, codec := range codecs {
		write(n, "codecs", first.Add(time.Hour+time.Duration(i)*time.Minute), codec, "three ")
	}
	for i := range 4 {
		write(n, "rolled", first.Add(time.Duration(8+i)*2*time.Hour), kgo.ZstdCompression(), "after ", "it ")
	}
	deleted := kadm.Offsets{}
	deleted.AddOffset("rolled", 0, 5, -1)
	if r, err := admin.DeleteRecords(ctx, deleted); err != nil || r.Error() != nil {
		t.Fatal(err, r.Error())
	}
	group := n.client(t, kgo.ConsumerGroup(goldenGroup), kgo.ConsumeTopics("codecs", "rolled"), kgo.DisableAutoCommit())
	if fetches := group.PollRecords(ctx, 7); fetches.Err() != nil {
		t.Fatal(fetches.Err())
	}
	if err := group.CommitUncommittedOffsets(ctx); err != nil {
		t.Fatal(err)
	}
	group.Close()
	commits := kadm.Offsets{}
	commits.Add(kadm.Offset{Topic: "rolled", Partition: 0, At: 11, LeaderEpoch: 2, Metadata: "by hand"})
	if err := admin.CommitAllOffsets(ctx, goldenGroup, commits); err != nil {
		t.Fatal(err)
	}
	s := observe(t, n, "codecs", "rolled")
	n.stop(t)
	verify(t, dir)

	snapshotsThere, _ := filepath.Glob(filepath.Join(dir, "__cluster_metadata-0", "*[1-9]*-*.checkpoint"))
	segments, _ := filepath.Glob(filepath.Join(dir, "rolled-0", "*.log"))
	if len(snapshotsThere) == 0 || len(segments) < 3 || s.Topics["rolled"].LogStart != 5 {
		t.Fatalf("%d snapshots, %d segments, log start %d: this is not what should be kept", len(snapshotsThere), len(segments), s.Topics["rolled"].LogStart)
	}
	os.Remove(filepath.Join(dir, ".lock"))
	if err := os.CopyFS(filepath.Join(target, "data"), os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(target, "state.json"), []byte(encode(t, s)), 0o600); err != nil {
		t.Fatal(err)
	}
}
