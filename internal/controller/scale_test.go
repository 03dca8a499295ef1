package controller

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
)

// BenchmarkFence is the cost of fencing one of three brokers in a cluster of 100,000 partitions.
func BenchmarkFence(b *testing.B) {
	k := newCluster(b)
	k.start(1, 2, 3)
	for i := range 100 {
		req := kmsg.NewPtrCreateTopicsRequest()
		req.Topics = []kmsg.CreateTopicsRequestTopic{createRequest(fmt.Sprintf("t%d", i), 1000, 3)}
		k.must(k.c.CreateTopics(k.at(), req))
	}
	for b.Loop() {
		r := k.heartbeat(1, func(h *kmsg.BrokerHeartbeatRequest) { h.WantFence = true })
		if len(r.Records) != 100_001 {
			b.Fatal(len(r.Records))
		}
	}
}

// BenchmarkDecodePartition is the cost of reading one partition record.
func BenchmarkDecodePartition(b *testing.B) {
	rec := &metadata.PartitionRecord{Replicas: []int32{1, 2, 3}, ISR: []int32{1, 2, 3}, Directories: make([]metadata.UUID, 3)}
	value, err := metadata.AppendRecord(nil, rec, 2)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, _, err := metadata.DecodeRecord(value); err != nil {
			b.Fatal(err)
		}
	}
}

// A cluster of 100,000 partitions: how long an image takes to load from a snapshot and what it holds in memory, and how long
// 9,000 partitions take that one request makes. The figures are printed; what is checked is that all is there.
func TestHundredThousandPartitions(t *testing.T) {
	k := newCluster(t)
	k.start(1, 2, 3)
	create := func(name string, partitions int32) time.Duration {
		t.Helper()
		req := kmsg.NewPtrCreateTopicsRequest()
		req.Topics = []kmsg.CreateTopicsRequestTopic{createRequest(name, partitions, 3)}
		since := time.Now()
		r := k.must(k.c.CreateTopics(k.at(), req))
		if made := r.Reply.(CreateTopicsReply).Topics[0]; made.Err != nil || len(r.Records) != int(partitions)+1 || !r.Atomic {
			t.Fatalf("%s: %v, %d records", name, made.Err, len(r.Records))
		}
		return time.Since(since)
	}
	for i := range 91 {
		id := metadata.UUID{0: 1, 1: byte(i)}
		recs := []metadata.Record{&metadata.TopicRecord{Name: fmt.Sprint("t", i), TopicID: id}}
		for p := range int32(1000) {
			recs = append(recs, &metadata.PartitionRecord{PartitionID: p, TopicID: id, Replicas: []int32{1, 2, 3}, ISR: []int32{1, 2, 3}, Leader: 1, Directories: []metadata.UUID{dirOf(1), dirOf(2), dirOf(3)}})
		}
		k.replay(recs)
	}
	whole := create("at-once", 9000)
	values, err := k.c.Image().Encoded()
	if err != nil {
		t.Fatal(err)
	}
	size := 0
	for _, v := range values {
		size += len(v)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	since := time.Now()
	delta := metadata.NewDelta(metadata.EmptyImage())
	for _, v := range values {
		rec, _, err := metadata.DecodeRecord(v)
		if err != nil {
			t.Fatal(err)
		}
		if err := delta.Replay(rec, 1); err != nil {
			t.Fatal(err)
		}
	}
	img := delta.Apply(1, 1)
	load := time.Since(since)
	runtime.GC()
	runtime.ReadMemStats(&after)
	partitions := 0
	for _, topic := range img.Topics().All() {
		partitions += topic.NumPartitions()
	}
	if partitions != 100_000 {
		t.Errorf("%d partitions", partitions)
	}
	t.Logf("9,000 partitions by one request: %v; a snapshot of %d partitions, %d records of %d bytes: loaded in %v, %d MB of memory",
		whole.Round(time.Millisecond), partitions, len(values), size, load.Round(time.Millisecond), (int64(after.HeapAlloc)-int64(before.HeapAlloc))>>20)
	runtime.KeepAlive(values)
}
