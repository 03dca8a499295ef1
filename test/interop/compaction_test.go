//go:build interop

package interop

import (
	"context"
	"fmt"
	"maps"
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
	"github.com/twmb/franz-go/pkg/kversion"

	format "github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/test/reference"
)

// workloads is how many partitions are filled, each from a seed of its own.
const workloads = 24

// step is a batch to write, or the marker of a transaction.
type step struct {
	batch         []byte
	transactional bool
	producer      int64 // whose transaction ends, when there is no batch
	commit        bool
}

// workload is what is written to one partition: keys again and again, tombstones, records without key (the topic was not
// compacted when they came), every codec, an idempotent producer, and two with transactions that overlap, committed and
// aborted. The same seed gives the same bytes.
func workload(seed uint64, start int64) (steps []step) {
	rng := rand.New(rand.NewPCG(seed, 26))
	keys, stamp, sequence := 3+rng.IntN(40), start, map[int64]int32{}
	open := map[int64]bool{}
	for range 40 + rng.IntN(40) {
		o := format.BuilderOptions{Codec: format.Codec(rng.IntN(5))}
		n := 1 + rng.IntN(8)
		switch id := 6000 + 2*int64(seed) + rng.Int64N(2); rng.IntN(4) {
		case 0:
			o.Producer = &format.Producer{ID: 5000 + int64(seed)}
		case 1:
			o.Producer, o.Transactional = &format.Producer{ID: id}, true
			open[id] = true
		case 2:
			if open[id] {
				steps = append(steps, step{producer: id, commit: rng.IntN(2) == 0})
				delete(open, id)
			}
		}
		if o.Producer != nil {
			o.Producer.BaseSequence = sequence[o.Producer.ID]
			sequence[o.Producer.ID] += int32(n)
		}
		b := format.NewBuilder(o)
		for i := range n {
			stamp += rng.Int64N(50)
			var key, value []byte
			if rng.IntN(12) > 0 {
				key = fmt.Appendf(nil, "key-%d", rng.IntN(keys))
			}
			if key == nil || rng.IntN(6) > 0 {
				value = fmt.Appendf(nil, "value %d of %s", len(steps), strings.Repeat("x", rng.IntN(60)))
			}
			headers := []format.Header{{Key: []byte("n"), Value: []byte(strconv.Itoa(i))}}
			if err := b.Append(stamp, key, value, headers[:rng.IntN(2)]); err != nil {
				panic(err)
			}
		}
		steps = append(steps, step{batch: b.Bytes(), transactional: o.Transactional})
	}
	for _, id := range slices.Sorted(maps.Keys(open)) {
		steps = append(steps, step{producer: id, commit: rng.IntN(2) == 0})
	}
	return steps
}

// request makes a step for a partition.
func (s *step) request(topic string, partition int32) kmsg.Request {
	if s.batch == nil {
		req := kmsg.NewPtrWriteTxnMarkersRequest()
		req.Markers = []kmsg.WriteTxnMarkersRequestMarker{{ProducerID: s.producer, Committed: s.commit,
			Topics: []kmsg.WriteTxnMarkersRequestMarkerTopic{{Topic: topic, Partitions: []int32{partition}}}}}
		return req
	}
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis = -1, 10000
	if s.transactional {
		req.TransactionID = kmsg.StringPtr("made-up")
	}
	req.Topics = []kmsg.ProduceRequestTopic{{Topic: topic, Partitions: []kmsg.ProduceRequestTopicPartition{{Partition: partition, Records: s.batch}}}}
	return req
}

func stepError(resp kmsg.Response) error {
	if markers, ok := resp.(*kmsg.WriteTxnMarkersResponse); ok {
		return kerr.ErrorForCode(markers.Markers[0].Topics[0].Partitions[0].ErrorCode)
	}
	return kerr.ErrorForCode(resp.(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorCode)
}

// compacted fills a topic on a broker, has it compacted, and returns what is left of each partition once nothing more
// is to be expected.
func compacted(ctx context.Context, t *testing.T, addr, data string, start int64) (left [workloads][]string) {
	t.Helper()
	const topic = "compacted"
	versions := kversion.Stable()
	versions.SetMaxKeyVersion(0, 11) // later ones ask a coordinator
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.MaxVersions(versions))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	settings := map[string]*string{"internal.segment.bytes": kadm.StringPtr("3000"), "cleanup.policy": kadm.StringPtr("delete"), "retention.ms": kadm.StringPtr("-1"),
		"min.cleanable.dirty.ratio": kadm.StringPtr("0.001"), "index.interval.bytes": kadm.StringPtr("200")}
	if _, err := admin.CreateTopic(ctx, workloads, 1, settings, topic); err != nil {
		t.Fatal(err)
	}
	for p := range left {
		for _, s := range workload(uint64(p), start) {
			for tries := 0; ; tries++ {
				resp, err := client.Request(ctx, s.request(topic, int32(p)))
				if err != nil {
					t.Fatal(err)
				}
				code := stepError(resp)
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
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().AtStart()}}), kgo.KeepControlRecords())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for last := int64(-1); last < end-1; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("partition %d: %v", partition, err)
		}
		for _, r := range fetches.Records() {
			if last = r.Offset; !r.Attrs.IsControl() {
				records = append(records, r)
			}
		}
	}
	return records
}

// Compaction by Stele and by Apache Kafka leaves the same of the same batches: offset, key, value, timestamp, headers,
// and where the last segment begins. Nothing is left of what was aborted.
func TestCompactionIsKafkas(t *testing.T) {
	if onKafka() {
		t.Skip("compares both")
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	const backoff, unverified = "log.cleaner.backoff.ms=100", "transaction.partition.verification.enable=false"
	kafka, err := reference.NewNode(ctx, filepath.Join(t.TempDir(), "kafka"), "", backoff, unverified)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kafka.Kill)
	if err := kafka.Start(ctx); err != nil {
		t.Fatal(err)
	}
	stele := newTarget(t, backoff, unverified)
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
