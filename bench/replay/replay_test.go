package replay

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/record"
)

// framed is an answer as it comes over the wire: size, correlation id, header tags, body.
func framed(resp kmsg.Response) []byte {
	body := resp.AppendTo([]byte{0, 0, 0, 1, 0})
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

// The generator's own reading of answers to Produce finds the error of any partition and nothing else.
func TestCheckAnswer(t *testing.T) {
	t.Parallel()
	const topic, partitions = "produce", 300
	answer := func(failing int32) []byte {
		resp := kmsg.NewPtrProduceResponse()
		resp.Version = produceVersion
		out := kmsg.NewProduceResponseTopic()
		out.Topic = topic
		for p := range int32(partitions) {
			part := kmsg.NewProduceResponseTopicPartition()
			part.Partition = p
			if p == failing {
				part.ErrorCode = kerr.NotLeaderForPartition.Code
			}
			out.Partitions = append(out.Partitions, part)
		}
		resp.Topics = append(resp.Topics, out)
		return framed(resp)
	}
	for _, failing := range []int32{-1, 0, 150, partitions - 1} {
		_, err := checkAnswer(bufio.NewReader(bytes.NewReader(answer(failing))), nil, len(topic))
		if failed := errors.Is(err, kerr.NotLeaderForPartition); failed != (failing >= 0) || err != nil && !failed {
			t.Errorf("partition %d failing: %v", failing, err)
		}
	}
	cut := answer(-1)
	cut = append(binary.BigEndian.AppendUint32(nil, uint32(len(cut)-14)), cut[4:len(cut)-10]...)
	if _, err := checkAnswer(bufio.NewReader(bytes.NewReader(cut)), nil, len(topic)); err == nil {
		t.Error("a short answer went through")
	}
}

// The generator counts the whole batches of an answer to Fetch, moves on by as many records, and takes exactly the bytes
// of the answer off the connection, small ones copied and large ones dropped in the kernel.
func TestFetchCountsWhatItDrops(t *testing.T) {
	t.Parallel()
	j := &Job{Topic: "consume", Partitions: 3, RecordSize: 100, BatchSize: 8 << 10, Codec: record.None}
	batch, records, _, err := j.batch()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	j.Addr = l.Addr().String()
	lengths := []int{40 * len(batch), 2*len(batch) + 17, 0}
	resp := kmsg.NewPtrFetchResponse()
	resp.Version = fetchVersion
	topic := kmsg.NewFetchResponseTopic()
	topic.Topic = j.Topic
	for p, n := range lengths {
		part := kmsg.NewFetchResponseTopicPartition()
		part.Partition, part.RecordBatches = int32(p), bytes.Repeat(batch, 41)[:n]
		part.DivergingEpoch.Epoch, part.DivergingEpoch.EndOffset = 1, 2 // tagged fields
		topic.Partitions = append(topic.Partitions, part)
	}
	resp.Topics = append(resp.Topics, topic)
	served := make(chan error, 1)
	go func() {
		nc, err := l.Accept()
		if err != nil {
			served <- err
			return
		}
		defer nc.Close()
		for range 2 {
			size := make([]byte, 4)
			if _, err = nc.Read(size); err == nil {
				_, err = nc.Read(make([]byte, binary.BigEndian.Uint32(size)))
			}
			if err == nil {
				_, err = nc.Write(framed(resp))
			}
		}
		served <- err
	}()
	f, err := newFetcher(j, len(batch), records)
	if err != nil {
		t.Fatal(err)
	}
	defer f.in.nc.Close()
	for round := range int64(2) {
		if n, err := f.fetch(); err != nil || n != 42 {
			t.Fatalf("%d batches, %v; want 42", n, err)
		}
		for p, want := range []int64{40, 2, 0} {
			if f.next[p] != (round+1)*want*int64(records) {
				t.Errorf("partition %d is at offset %d after round %d", p, f.next[p], round)
			}
		}
	}
	if err := <-served; err != nil {
		t.Fatal(err)
	}
}

// Every request that a job sends decodes to one batch for each partition, and together they name all partitions.
func TestFramesCoverAllPartitions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ partitions, batch, frames int }{{1, 16 << 10, 1}, {16, 16 << 10, 1}, {500, 2 << 10, 1}, {16, 1000 << 10, 16}, {16, 0, 16}, {100, 16 << 10, 2}} {
		j := &Job{Topic: "t", Partitions: c.partitions, RecordSize: 100, BatchSize: c.batch, Acks: -1}
		batch, _, _, err := j.batch()
		if err != nil {
			t.Fatal(err)
		}
		frames, seen := j.frames(batch), map[int32]bool{}
		for _, frame := range frames {
			req := kmsg.NewPtrProduceRequest()
			req.Version = produceVersion
			// Size, key, version, correlation id, client id, header tags.
			if err := req.ReadFrom(frame[4+2+2+4+2+len("replay")+1:]); err != nil {
				t.Fatal(err)
			}
			for _, p := range req.Topics[0].Partitions {
				seen[p.Partition] = true
			}
		}
		if len(frames) != c.frames || len(seen) != c.partitions {
			t.Errorf("%d partitions, batches of %d: %d frames for %d partitions", c.partitions, c.batch, len(frames), len(seen))
		}
	}
}
