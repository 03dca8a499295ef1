package controller

import (
	"fmt"
	"testing"

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
