//go:build interop

package interop

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	format "github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/test/reference"
)

// workloads is how many partitions are filled, each from a seed of its own.
const workloads = 24

// workload is the batches of one partition: keys again and again, tombstones, records without key (the topic was not
// compacted when they came), every codec, an idempotent producer. The same seed gives the same bytes.
func workload(seed uint64, start int64) (batches [][]byte) {
	rng := rand.New(rand.NewPCG(seed, 26))
	keys, stamp, sequence := 3+rng.IntN(40), start, int32(0)
	for range 40 + rng.IntN(40) {
		o := format.BuilderOptions{Codec: format.Codec(rng.IntN(5))}
		n := 1 + rng.IntN(8)
		if rng.IntN(3) == 0 {
			o.Producer = &format.Producer{ID: 5000 + int64(seed), BaseSequence: sequence}
			sequence += int32(n)
		}
		b := format.NewBuilder(o)
		for i := range n {
			stamp += rng.Int64N(50)
			var key, value []byte
			if rng.IntN(12) > 0 {
				key = fmt.Appendf(nil, "key-%d", rng.IntN(keys))
			}
			if key == nil || rng.IntN(6) > 0 {
				value = fmt.Appendf(nil, "value %d of %s", len(batches), strings.Repeat("x", rng.IntN(60)))
			}
			headers := []format.Header{{Key: []byte("n"), Value: []byte(strconv.Itoa(i))}}
			if err := b.Append(stamp, key, value, headers[:rng.IntN(2)]); err != nil {
				panic(err)
			}
		}
		batches = append(batches, b.Bytes())
	}
	return batches
}

// compacted fills a topic on a broker, has it compacted, and returns what is left of each partition once nothing more
// is to be expected.
func compacted(ctx context.Context, t *testing.T, addr, data string, start int64) (left [workloads][]string) {
	t.Helper()
	const topic = "compacted"
	client, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	settings := map[string]*string{"internal.segment.bytes": kadm.StringPtr("3000"), "cleanup.policy": kadm.StringPtr("delete"), "retention.ms": kadm.StringPtr("-1"),
		"min.cleanable.dirty.ratio": kadm.StringPtr("0.001"), "index.interval.bytes": kadm.StringPtr("200")}
	made, err := admin.CreateTopic(ctx, workloads, 1, settings, topic)
	if err != nil {
		t.Fatal(err)
	}
	for p := range left {
		for _, b := range workload(uint64(p), start) {
			for tries := 0; ; tries++ {
				req := kmsg.NewPtrProduceRequest()
				req.Acks, req.TimeoutMillis = -1, 10000
				req.Topics = []kmsg.ProduceRequestTopic{{Topic: topic, TopicID: made.ID, Partitions: []kmsg.ProduceRequestTopicPartition{{Partition: int32(p), Records: b}}}}
				resp, err := client.Request(ctx, req)
				if err != nil {
					t.Fatal(err)
				}
				code := kerr.ErrorForCode(resp.(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorCode)
				if code == nil {
					break
				}
				if !kerr.IsRetriable(code) || tries > 100 {
					t.Fatalf("partition %d: %v", p, code)
				}
				time.Sleep(50 * time.Millisecond)
			}
		}
	}
	if _, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "cleanup.policy", Value: kadm.StringPtr("compact")}}, topic); err != nil {
		t.Fatal(err)
	}
	ends, err := admin.ListEndOffsets(ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	for p := range left {
		end, _ := ends.Lookup(topic, int32(p))
		active := activeBase(t, filepath.Join(data, fmt.Sprintf("%s-%d", topic, p)))
		for {
			records := readPartition(ctx, t, addr, topic, int32(p), end.Offset)
			if done(records, active) {
				for _, r := range records {
					left[p] = append(left[p], fmt.Sprintf("%d %q %q %d %v", r.Offset, r.Key, r.Value, r.Timestamp.UnixMilli(), r.Headers))
				}
				left[p] = append(left[p], fmt.Sprintf("active segment from %d, end %d", active, end.Offset))
				break
			}
			if ctx.Err() != nil {
				t.Fatalf("%s, partition %d was not compacted", addr, p)
			}
			time.Sleep(200 * time.Millisecond)
		}
	}
	return left
}

// done says that below active no key is there twice, and no record without one.
func done(records []*kgo.Record, active int64) bool {
	seen := map[string]bool{}
	for _, r := range records {
		if r.Offset < active {
			if r.Key == nil || seen[string(r.Key)] {
				return false
			}
			seen[string(r.Key)] = true
		}
	}
	return true
}

// activeBase is the base offset of the newest segment in a partition's directory.
func activeBase(t *testing.T, dir string) int64 {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	newest := int64(-1)
	for _, e := range entries {
		if digits, ok := strings.CutSuffix(e.Name(), ".log"); ok {
			if base, err := strconv.ParseInt(digits, 10, 64); err == nil {
				newest = max(newest, base)
			}
		}
	}
	return newest
}

func readPartition(ctx context.Context, t *testing.T, addr, topic string, partition int32, end int64) (records []*kgo.Record) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().AtStart()}}))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for len(records) == 0 || records[len(records)-1].Offset < end-1 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("partition %d: %v", partition, err)
		}
		records = append(records, fetches.Records()...)
	}
	return records
}

// Compaction by Stele and by Apache Kafka leaves the same of the same batches: offset, key, value, timestamp, headers,
// and where the last segment begins.
func TestCompactionIsKafkas(t *testing.T) {
	if onKafka() {
		t.Skip("compares both")
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	const backoff = "log.cleaner.backoff.ms=100"
	kafka, err := reference.NewNode(ctx, filepath.Join(t.TempDir(), "kafka"), "", backoff)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kafka.Kill)
	if err := kafka.Start(ctx); err != nil {
		t.Fatal(err)
	}
	stele := newTarget(t, backoff)
	start := time.Now().Add(-time.Hour).UnixMilli()
	want := compacted(ctx, t, kafka.Addr(), kafka.Data(), start)
	got := compacted(ctx, t, stele.Addr(), stele.Data(), start)
	records := 0
	for p := range want {
		records += len(want[p]) - 1
		if !slices.Equal(got[p], want[p]) {
			t.Errorf("workload %d: Stele leaves\n  %s\nApache Kafka\n  %s", p, strings.Join(got[p], "\n  "), strings.Join(want[p], "\n  "))
		}
	}
	t.Logf("%d workloads, %d records left of them, on both", workloads, records)
}
