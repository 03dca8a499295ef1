package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"
)

func drawFetch(t *rapid.T, version int16) *kmsg.FetchRequest {
	i32, i64 := rapid.Int32(), rapid.Int64()
	req := kmsg.NewPtrFetchRequest()
	req.Version = version
	if version <= 14 {
		req.ReplicaID = i32.Draw(t, "replica")
	} else if rapid.Bool().Draw(t, "state") {
		req.ReplicaState.ID, req.ReplicaState.Epoch = i32.Draw(t, "replica"), i64.Draw(t, "epoch")
	}
	req.MaxWaitMillis, req.MinBytes, req.MaxBytes = i32.Draw(t, "wait"), i32.Draw(t, "min"), i32.Draw(t, "max")
	req.IsolationLevel = rapid.Int8().Draw(t, "isolation")
	if version >= 7 {
		req.SessionID, req.SessionEpoch = i32.Draw(t, "session"), i32.Draw(t, "session epoch")
	}
	name := func() (n string, id [16]byte) {
		if version < 13 {
			return rapid.StringN(0, 8, 30).Draw(t, "name"), id
		}
		copy(id[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))
		return "", id
	}
	for range rapid.IntRange(0, 3).Draw(t, "topics") {
		topic := kmsg.NewFetchRequestTopic()
		topic.Topic, topic.TopicID = name()
		for range rapid.IntRange(0, 4).Draw(t, "partitions") {
			p := kmsg.NewFetchRequestTopicPartition()
			p.Partition, p.FetchOffset, p.PartitionMaxBytes = i32.Draw(t, "p"), i64.Draw(t, "offset"), i32.Draw(t, "bytes")
			if version >= 5 {
				p.LogStartOffset = i64.Draw(t, "start")
			}
			if version >= 9 {
				p.CurrentLeaderEpoch = i32.Draw(t, "current")
			}
			if version >= 12 {
				p.LastFetchedEpoch = i32.Draw(t, "last")
			}
			if version >= 17 && rapid.Bool().Draw(t, "directory") {
				copy(p.ReplicaDirectoryID[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "dir"))
			}
			if version >= 18 && rapid.Bool().Draw(t, "hw") {
				p.HighWatermark = i64.Draw(t, "high watermark")
			}
			drawTags(t, &p.UnknownTags, version >= 12)
			topic.Partitions = append(topic.Partitions, p)
		}
		req.Topics = append(req.Topics, topic)
	}
	if version >= 7 {
		for range rapid.IntRange(0, 3).Draw(t, "forgotten") {
			topic := kmsg.NewFetchRequestForgottenTopic()
			topic.Topic, topic.TopicID = name()
			topic.Partitions = rapid.SliceOfN(i32, 0, 4).Draw(t, "partitions")
			req.ForgottenTopics = append(req.ForgottenTopics, topic)
		}
	}
	if version >= 11 {
		req.Rack = rapid.StringN(0, 8, 30).Draw(t, "rack")
	}
	if version >= 12 && rapid.Bool().Draw(t, "cluster") {
		req.ClusterID = kmsg.StringPtr(rapid.StringN(0, 8, 30).Draw(t, "cluster id"))
	}
	drawTags(t, &req.UnknownTags, version >= 12)
	return req
}

func clearFetchTags(req *kmsg.FetchRequest) {
	req.UnknownTags, req.ReplicaState.UnknownTags = kmsg.Tags{}, kmsg.Tags{}
	for i := range req.Topics {
		req.Topics[i].UnknownTags = kmsg.Tags{}
		for j := range req.Topics[i].Partitions {
			p := &req.Topics[i].Partitions[j]
			p.UnknownTags = kmsg.Tags{}
			if req.Version < 17 {
				p.ReplicaDirectoryID = [16]byte{}
			}
			if req.Version < 18 {
				p.HighWatermark = math.MaxInt64
			}
		}
	}
	for i := range req.ForgottenTopics {
		req.ForgottenTopics[i].UnknownTags = kmsg.Tags{}
	}
	if req.Version < 15 {
		req.ReplicaState.ID, req.ReplicaState.Epoch = -1, -1
	}
}

// Our Fetch decoder reads what kmsg writes, at every version, also into a request that held another
// one before; a request that ends early is malformed, and what comes after it does not matter.
func TestDecodeFetchAgreesWithKmsg(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var got kmsg.FetchRequest
		names := new(Names)
		for range 2 {
			version := rapid.Int16Range(4, 18).Draw(t, "version")
			want := drawFetch(t, version)
			body := want.AppendTo(nil)
			if err := DecodeFetch(&got, version, body, names); err != nil {
				t.Fatalf("version %d: %v", version, err)
			}
			clearFetchTags(want)
			if a, b := got.AppendTo(nil), want.AppendTo(nil); !bytes.Equal(a, b) {
				t.Fatalf("version %d:\n got %+v\nwant %+v", version, got, want)
			}
			if version >= 15 && got.ReplicaID != want.ReplicaState.ID {
				t.Fatalf("version %d: replica id %d, want %d", version, got.ReplicaID, want.ReplicaState.ID)
			}
			n := rapid.IntRange(0, len(body)-1).Draw(t, "cut")
			if err := DecodeFetch(&got, version, body[:n], nil); !errors.Is(err, ErrMalformed) {
				t.Fatalf("version %d, %d of %d bytes: %v", version, n, len(body), err)
			}
			if err := DecodeFetch(&got, version, append(body, 0), nil); err != nil {
				t.Fatalf("version %d with a byte more: %v", version, err)
			}
		}
	})
}

// A count that the bytes cannot hold makes no array: what is set aside stays within the cost that a request is
// let in with.
func TestDecodeFetchMakesNoMoreThanItsBytesHold(t *testing.T) {
	head := append(make([]byte, 25), 0, 0, 0x80, 0) // version 7, then the claim of 32768 topics
	body := append(head, make([]byte, 40000)...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var req kmsg.FetchRequest
	err := DecodeFetch(&req, 7, body, nil)
	runtime.ReadMemStats(&after)
	if made := after.TotalAlloc - before.TotalAlloc; err == nil || made > 1<<20 {
		t.Errorf("%v, and %d bytes were set aside", err, made)
	}
}

// Properties: no bytes make the decoder panic; what it accepts, kmsg accepts with the same meaning.
func FuzzDecodeFetch(f *testing.F) {
	for v := int16(4); v <= 18; v++ {
		req := kmsg.NewPtrFetchRequest()
		req.Version = v
		p := kmsg.NewFetchRequestTopicPartition()
		req.Topics = []kmsg.FetchRequestTopic{{Topic: "t", Partitions: []kmsg.FetchRequestTopicPartition{p}}}
		req.ReplicaState.ID = 3
		f.Add(v, req.AppendTo(nil))
	}
	f.Fuzz(func(t *testing.T, version int16, body []byte) {
		if version < 4 || version > 18 {
			return
		}
		var got kmsg.FetchRequest
		if err := DecodeFetch(&got, version, body, nil); err != nil {
			return
		}
		want := kmsg.NewPtrFetchRequest()
		want.Version = version
		if err := want.ReadFrom(body); err != nil {
			if version < 18 {
				return // kmsg reads tags in versions before the one they were added in
			}
			t.Fatalf("kmsg refuses what we accept: %v", err)
		}
		clearFetchTags(want)
		if a, b := got.AppendTo(nil), want.AppendTo(nil); !bytes.Equal(a, b) {
			t.Fatalf("version %d: got %+v, kmsg %+v", version, got, want)
		}
	})
}

// memFile is a file that is not one of the operating system's.
type memFile []byte

func (m memFile) ReadAt(p []byte, at int64) (int, error) {
	if at >= int64(len(m)) {
		return 0, io.EOF
	}
	n := copy(p, m[at:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (memFile) OSFile() (*os.File, bool) { return nil, false }

// flatten puts the parts of a frame together as the receiver sees them.
func flatten(t testing.TB, s Segments) []byte {
	t.Helper()
	var b []byte
	for _, seg := range s.List {
		if seg.Bytes != nil {
			b = append(b, seg.Bytes...)
			continue
		}
		part := make([]byte, seg.Range.Length)
		if _, err := seg.Range.File.ReadAt(part, seg.Range.Position); err != nil {
			t.Fatal(err)
		}
		b = append(b, part...)
	}
	if len(b) != s.Total {
		t.Fatalf("frame has %d bytes, Total says %d", len(b), s.Total)
	}
	return b
}

// B-009: every Fetch version decodes exactly. Our answer is byte for byte what kmsg writes for the
// same content, wherever the records come from: given, read from a file, or left in it.
func TestB009_fetch_response_equals_kmsg_at_every_version(t *testing.T) {
	t.Parallel()
	file := make(memFile, 1<<20)
	for i := range file {
		file[i] = byte(i * 7 >> 3)
	}
	rapid.Check(t, func(rt *rapid.T) {
		version := rapid.Int16Range(4, 18).Draw(rt, "version")
		ours, theirs := drawFetchResponse(rt, version, file)
		segs, err := ours.Append(77)
		if err != nil {
			rt.Fatal(err)
		}
		want := AppendFrame(nil, func(b []byte) []byte {
			return theirs.AppendTo(AppendResponseHeader(b, KeyFetch, 77, version >= 12))
		})
		if got := flatten(t, segs); !bytes.Equal(got, want) {
			rt.Fatalf("version %d:\n got %x\nwant %x", version, got, want)
		}
		segs.Release()
	})
}

func drawFetchResponse(t *rapid.T, version int16, file memFile) (*FetchResponse, *kmsg.FetchResponse) {
	i32 := rapid.Int32()
	ours := &FetchResponse{Version: version, ThrottleMillis: i32.Draw(t, "throttle")}
	theirs := kmsg.NewPtrFetchResponse()
	theirs.Version, theirs.ThrottleMillis = version, ours.ThrottleMillis
	if version >= 7 {
		ours.ErrorCode, ours.SessionID = rapid.Int16().Draw(t, "error"), i32.Draw(t, "session")
		theirs.ErrorCode, theirs.SessionID = ours.ErrorCode, ours.SessionID
	}
	for range rapid.IntRange(0, 3).Draw(t, "topics") {
		var ot FetchResponseTopic
		tt := kmsg.NewFetchResponseTopic()
		ot.Topic = rapid.StringN(0, 8, 30).Draw(t, "name")
		copy(ot.TopicID[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))
		tt.Topic, tt.TopicID = ot.Topic, ot.TopicID
		for range rapid.IntRange(0, 4).Draw(t, "partitions") {
			p := drawFetchedPartition(t, version)
			op := FetchResponsePartition{FetchResponseTopicPartition: p}
			if n := rapid.SampledFrom([]int{0, 1, 500, SendfileThreshold - 1, SendfileThreshold, 200_000}).Draw(t, "length"); n > 0 {
				at := rapid.IntRange(0, len(file)-n).Draw(t, "position")
				op.Range = FileRange{File: file, Position: int64(at), Length: n}
				p.RecordBatches = file[at : at+n]
			}
			ot.Partitions = append(ot.Partitions, op)
			tt.Partitions = append(tt.Partitions, p)
		}
		ours.Topics = append(ours.Topics, ot)
		theirs.Topics = append(theirs.Topics, tt)
	}
	for range rapid.IntRange(0, 2).Draw(t, "brokers") {
		b := kmsg.NewFetchResponseBroker()
		b.NodeID, b.Host, b.Port = i32.Draw(t, "node"), rapid.StringN(0, 8, 200).Draw(t, "host"), i32.Draw(t, "port")
		if rapid.Bool().Draw(t, "rack") {
			b.Rack = kmsg.StringPtr("r")
		}
		ours.Brokers = append(ours.Brokers, b)
		if version >= 16 {
			theirs.Brokers = append(theirs.Brokers, b)
		}
	}
	return ours, theirs
}

func drawFetchedPartition(t *rapid.T, version int16) kmsg.FetchResponseTopicPartition {
	i32, i64 := rapid.Int32(), rapid.Int64()
	p := kmsg.NewFetchResponseTopicPartition()
	p.Partition, p.ErrorCode = i32.Draw(t, "p"), rapid.Int16().Draw(t, "error")
	p.HighWatermark, p.LastStableOffset, p.LogStartOffset = i64.Draw(t, "hw"), i64.Draw(t, "lso"), i64.Draw(t, "start")
	p.PreferredReadReplica = i32.Draw(t, "preferred")
	if rapid.Bool().Draw(t, "aborted") {
		p.AbortedTransactions = []kmsg.FetchResponseTopicPartitionAbortedTransaction{}
		for range rapid.IntRange(0, 3).Draw(t, "transactions") {
			a := kmsg.NewFetchResponseTopicPartitionAbortedTransaction()
			a.ProducerID, a.FirstOffset = i64.Draw(t, "pid"), i64.Draw(t, "first")
			p.AbortedTransactions = append(p.AbortedTransactions, a)
		}
	}
	if rapid.Bool().Draw(t, "diverging") {
		p.DivergingEpoch.Epoch, p.DivergingEpoch.EndOffset = i32.Draw(t, "epoch"), i64.Draw(t, "end")
	}
	if rapid.Bool().Draw(t, "leader") {
		p.CurrentLeader.LeaderID, p.CurrentLeader.LeaderEpoch = i32.Draw(t, "leader"), i32.Draw(t, "epoch")
	}
	if rapid.Bool().Draw(t, "snapshot") {
		p.SnapshotID.EndOffset, p.SnapshotID.Epoch = i64.Draw(t, "end"), i32.Draw(t, "epoch")
	}
	switch rapid.IntRange(0, 2).Draw(t, "records") {
	case 1:
		p.RecordBatches = []byte{}
	case 2:
		p.RecordBatches = []byte("given")
	}
	return p
}

// A file that ends before the range is an error with its place, not an answer with other bytes in it.
func TestFetchResponseShortFile(t *testing.T) {
	t.Parallel()
	p := FetchResponsePartition{Range: FileRange{File: memFile("short"), Position: 2, Length: 10}}
	r := FetchResponse{Version: 11, Topics: []FetchResponseTopic{{Topic: "t", Partitions: []FetchResponsePartition{p}}}}
	_, err := r.Append(1)
	var short *ShortFileError
	if !errors.As(err, &short) || short.Position != 2 || short.Length != 10 || !errors.Is(err, io.EOF) {
		t.Fatalf("got %v", err)
	}
}

// Many small ranges do not add up to an answer that is all in memory.
func TestFetchResponseCopiesLittle(t *testing.T) {
	t.Parallel()
	file := make(memFile, SendfileThreshold-1)
	var parts []FetchResponsePartition
	for range 200 {
		parts = append(parts, FetchResponsePartition{Range: FileRange{File: file, Length: len(file)}})
	}
	r := FetchResponse{Version: 12, Topics: []FetchResponseTopic{{Topic: "t", Partitions: parts}}}
	segs, err := r.Append(1)
	if err != nil {
		t.Fatal(err)
	}
	defer segs.Release()
	inMemory := 0
	for _, s := range segs.List {
		inMemory += len(s.Bytes)
	}
	if inMemory > maxInline+100*200 {
		t.Fatalf("%d bytes of %d were copied", inMemory, segs.Total)
	}
}

func ExampleFetchResponse_Append() {
	r := FetchResponse{Version: 4}
	segs, _ := r.Append(1)
	fmt.Printf("%x\n", segs.List[0].Bytes)
	// Output: 0000000c000000010000000000000000
}
