//go:build chaos

package chaos

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// TestManyPartitionsFewHandles: a node that may have 1,024 file handles serves 3,000 partitions, all of which are written to
// and read: files are opened as they are used, nothing runs out of handles, and after a restart it is all there.
func TestManyPartitionsFewHandles(t *testing.T) {
	const topics, partitions = 2, 1500
	n := newNode(t, "log.initial.task.delay.ms=1")
	n.wrap = []string{"sh", "-c", `ulimit -n 1024; exec "$@"`, "sh"}
	n.start()
	n.mustAck("probe", "probe-start")
	names := []string{"many-0", "many-1"}
	createTopics(t, n, partitions, 1, names...)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	write := func(round int) {
		c := n.client(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.UnknownTopicRetries(-1), kgo.MaxBufferedRecords(20000))
		defer c.Close()
		for p := range int32(partitions) {
			for _, topic := range names {
				key := fmt.Sprintf("few-%d-%s-%d", round, topic, p)
				c.Produce(ctx, &kgo.Record{Topic: topic, Partition: p, Key: []byte(key), Value: valueOf(key, 300)}, func(r *kgo.Record, err error) {
					if err != nil {
						t.Errorf("%s-%d: %v", r.Topic, r.Partition, err)
					}
				})
			}
		}
		if err := c.Flush(ctx); err != nil {
			t.Fatalf("%v\n%s", err, n.log())
		}
	}
	read := func(each int) {
		t.Helper()
		c := n.client(kgo.ConsumeTopics(names...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
		defer c.Close()
		seen := map[topicPartition]int{}
		for total := 0; total < topics*partitions*each; {
			fetches := c.PollFetches(ctx)
			if ctx.Err() != nil {
				t.Fatalf("%d of %d records were read\n%s", total, topics*partitions*each, n.log())
			}
			fetches.EachRecord(func(r *kgo.Record) {
				total++
				if seen[topicPartition{r.Topic, r.Partition}]++; !valueFits(string(r.Key), r.Value) {
					t.Errorf("%s-%d offset %d: key %q with a value of another record", r.Topic, r.Partition, r.Offset, r.Key)
				}
			})
		}
		for tp, count := range seen {
			if count != each {
				t.Errorf("%v has %d records, want %d", tp, count, each)
			}
		}
	}
	write(0)
	write(1)
	read(2)
	handles, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", n.pid()))
	if err != nil {
		t.Fatal(err)
	}
	if len(handles) > 600 {
		t.Errorf("%d handles are open", len(handles))
	}
	n.stop()
	said, err := os.ReadFile(n.logFile())
	if err != nil || strings.Contains(string(said), "too many open files") {
		t.Errorf("%v\n%s", err, n.log())
	}
	n.start()
	n.mustReady()
	read(2)
	write(2)
	read(3)
	t.Logf("%d handles for %d partitions", len(handles), topics*partitions)
}
