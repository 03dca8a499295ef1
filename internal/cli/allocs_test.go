package cli

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/wire"
)

// rawNode is a whole node in this process and one plain connection to it, whose own side allocates nothing: what is
// counted is the node's.
type rawNode struct {
	tb     testing.TB
	nc     net.Conn
	answer []byte
}

func startRaw(tb testing.TB, topic string, partitions int32) *rawNode {
	tb.Helper()
	n, err := startFor(tb.Context(), tb.TempDir())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(n.stop)
	addr := n.server.Addr("PLAINTEXT").String()
	conn, err := wire.Dial(tb.Context(), (&net.Dialer{}).DialContext, addr, wire.DialOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	defer conn.Close()
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = topic, partitions, 1
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis, req.Topics = 10_000, append(req.Topics, t)
	resp, err := conn.Request(tb.Context(), req)
	if err != nil {
		tb.Fatal(err)
	}
	if err := kerr.ErrorForCode(resp.(*kmsg.CreateTopicsResponse).Topics[0].ErrorCode); err != nil {
		tb.Fatal(err)
	}
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { nc.Close() })
	r := &rawNode{tb: tb, nc: nc, answer: make([]byte, 4<<20)}
	first := produceFrame(tb, topic, partitions, 1, record.None)
	for deadline := time.Now().Add(10 * time.Second); r.code(topic, r.ask(first)) == kerr.UnknownTopicOrPartition.Code; {
		if time.Now().After(deadline) {
			tb.Fatal("the topic does not appear")
		}
	}
	return r
}

// ask sends a frame and returns the answer's, without its size; it is valid until the next.
func (r *rawNode) ask(frame []byte) []byte {
	if _, err := r.nc.Write(frame); err != nil {
		r.tb.Fatal(err)
	}
	if _, err := io.ReadFull(r.nc, r.answer[:4]); err != nil {
		r.tb.Fatal(err)
	}
	b := r.answer[:binary.BigEndian.Uint32(r.answer)]
	if _, err := io.ReadFull(r.nc, b); err != nil {
		r.tb.Fatal(err)
	}
	return b
}

func frameOf(req kmsg.Request) []byte {
	return kmsg.NewRequestFormatter(kmsg.FormatterClientID("allocs")).AppendRequest(nil, req, 1)
}

func produceFrame(tb testing.TB, topic string, partitions int32, records int, codec record.Codec) []byte {
	tb.Helper()
	builder := record.NewBuilder(record.BuilderOptions{Codec: codec, Level: record.DefaultLevel})
	for i := range records {
		if err := builder.Append(time.Now().UnixMilli(), fmt.Appendf(nil, "key-%d", i), fmt.Appendf(nil, "value %d of many, and it goes on for a while", i), nil); err != nil {
			tb.Fatal(err)
		}
	}
	batch := builder.Bytes()
	t := kmsg.NewProduceRequestTopic()
	t.Topic = topic
	for p := range partitions {
		part := kmsg.NewProduceRequestTopicPartition()
		part.Partition, part.Records = p, batch
		t.Partitions = append(t.Partitions, part)
	}
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks, req.TimeoutMillis, req.Topics = 12, -1, 10_000, append(req.Topics, t)
	return frameOf(req)
}

func fetchFrame(topic string, maxBytes int32) []byte {
	part := kmsg.NewFetchRequestTopicPartition()
	part.CurrentLeaderEpoch, part.PartitionMaxBytes = -1, maxBytes
	t := kmsg.NewFetchRequestTopic()
	t.Topic, t.Partitions = topic, append(t.Partitions, part)
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.MinBytes, req.MaxBytes, req.SessionEpoch, req.Topics = 12, 1, maxBytes, -1, append(req.Topics, t)
	return frameOf(req)
}

// code is the first error code of an answer to produceFrame: after correlation id, tags, topics, name and partitions.
func (r *rawNode) code(topic string, answer []byte) int16 {
	return int16(binary.BigEndian.Uint16(answer[4+1+1+1+len(topic)+1+4:]))
}

func (r *rawNode) produced(topic string, answer []byte) {
	if code := r.code(topic, answer); code != 0 {
		r.tb.Fatalf("produce: %v", kerr.ErrorForCode(code))
	}
}

// allocsBound is more than a request of one partition takes through the whole node, and far less than its records.
const allocsBound = 60

// A Produce request costs the same few allocations however many records it holds, through the whole node: socket,
// decoding, validation (of decompressed records, too), log, answer.
func TestProduceAllocatesNothingPerRecord(t *testing.T) {
	if underRace {
		t.Skip("pools forget at random under the race detector")
	}
	const topic = "t"
	r := startRaw(t, topic, 1)
	for _, codec := range []record.Codec{record.None, record.LZ4, record.Zstd, record.Snappy, record.Gzip} {
		var allocs []float64
		for _, records := range []int{1, 100, 10_000} {
			frame := produceFrame(t, topic, 1, records, codec)
			n := testing.AllocsPerRun(100, func() { r.produced(topic, r.ask(frame)) })
			t.Logf("codec %d, %d records: %.0f allocations", codec, records, n)
			allocs = append(allocs, n)
		}
		if allocs[2] > allocs[0]+10 || allocs[2] > allocsBound {
			t.Errorf("codec %d: a request with 10000 records takes %.0f allocations, one with a single record %.0f", codec, allocs[2], allocs[0])
		}
	}
}

// A Fetch costs the same few allocations however many records it returns, copied into the answer or sent from the file.
func TestFetchAllocatesNothingPerRecord(t *testing.T) {
	if underRace {
		t.Skip("pools forget at random under the race detector")
	}
	const topic = "t"
	r := startRaw(t, topic, 1)
	for range 20 {
		r.produced(topic, r.ask(produceFrame(t, topic, 1, 1000, record.None)))
	}
	var allocs []float64
	for _, maxBytes := range []int32{1, wire.SendfileThreshold - 1, 1 << 20} {
		frame := fetchFrame(topic, maxBytes)
		got := 0
		n := testing.AllocsPerRun(100, func() { got = len(r.ask(frame)) })
		t.Logf("%d bytes: %.0f allocations", got, n)
		allocs = append(allocs, n)
	}
	if allocs[2] > allocs[0]+10 || allocs[2] > allocsBound {
		t.Errorf("a fetch of 20 batches takes %.0f allocations, one of a single batch %.0f", allocs[2], allocs[0])
	}
}

func BenchmarkProduce(b *testing.B) {
	for _, c := range []struct {
		partitions int32
		records    int
		codec      record.Codec
	}{{1, 1, record.None}, {1, 1000, record.None}, {1, 1000, record.LZ4}, {1, 1000, record.Zstd}, {100, 10, record.None}} {
		b.Run(fmt.Sprintf("partitions=%d/records=%d/codec=%d", c.partitions, c.records, c.codec), func(b *testing.B) {
			const topic = "t"
			r := startRaw(b, topic, c.partitions)
			frame := produceFrame(b, topic, c.partitions, c.records, c.codec)
			b.ReportAllocs()
			b.SetBytes(int64(len(frame)))
			for b.Loop() {
				r.produced(topic, r.ask(frame))
			}
		})
	}
}

func BenchmarkFetch(b *testing.B) {
	for _, maxBytes := range []int32{1, 1 << 20} {
		b.Run(fmt.Sprintf("bytes=%d", maxBytes), func(b *testing.B) {
			const topic = "t"
			r := startRaw(b, topic, 1)
			for range 20 {
				r.produced(topic, r.ask(produceFrame(b, topic, 1, 1000, record.None)))
			}
			frame := fetchFrame(topic, maxBytes)
			b.ReportAllocs()
			b.SetBytes(int64(len(r.ask(frame))))
			for b.Loop() {
				r.ask(frame)
			}
		})
	}
}
