package replica

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
)

// onDisk puts a node on a real file system.
func onDisk(b *testing.B) *node {
	n := &node{t: b, fs: vfs.NewMem(), files: vfs.OS(), logs: &bytesLogger{}, img: metadata.EmptyImage(),
		configs: map[string]TopicConfig{}, events: &Events{}, path: b.TempDir()}
	n.start(func(o *Options) { o.Logger = slog.New(slog.DiscardHandler) })
	b.Cleanup(func() { n.m.Close(b.Context(), -1) })
	return n
}

// BenchmarkProduce is one batch to one partition with acks=all, alone in the ISR.
func BenchmarkProduce(b *testing.B) {
	for _, records := range []int{1, 100} {
		b.Run(fmt.Sprint(records), func(b *testing.B) {
			n := onDisk(b)
			n.create("t", 1)
			body := stamped(records, 0)
			req := ProduceRequest{Acks: -1, Timeout: time.Second, Partitions: []ProducePartition{{Topic: "t", Records: body}}}
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				record.Batch(body).SetBaseOffset(0) // as a producer sends it
				d := n.m.Produce(req)
				<-d.Done()
				if err := d.Results()[0].Err; err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkFetchIdle is a fetch of many partitions in which there is nothing new.
func BenchmarkFetchIdle(b *testing.B) {
	n := onDisk(b)
	const partitions = 100
	n.create("t", partitions)
	req := FetchRequest{ReplicaID: ConsumerID, Version: 16, MinBytes: 1, MaxBytes: 1 << 20}
	for p := range int32(partitions) {
		req.Partitions = append(req.Partitions, FetchPartition{Topic: "t", Partition: p, CurrentLeaderEpoch: -1, LastFetchedEpoch: -1, MaxBytes: 1 << 20})
	}
	b.ReportAllocs()
	for b.Loop() {
		n.m.Fetch(b.Context(), req).Release()
	}
}

// BenchmarkTakeOver is taking leadership of many partitions at once, as after another broker's death.
func BenchmarkTakeOver(b *testing.B) {
	n := onDisk(b)
	const partitions = 1000
	began := time.Now()
	n.create("t", partitions)
	b.Logf("%v for each log made", time.Since(began)/partitions)
	for b.Loop() {
		var changes []metadata.Record
		for p := range int32(partitions) {
			c := metadata.NewPartitionChange(topicID("t"), p)
			c.Leader = 1
			changes = append(changes, c)
		}
		n.replay(changes...)
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*partitions), "µs/partition")
}
