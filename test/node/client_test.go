package node

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/wire"
)

// client is one connection that sends requests as they are given.
type client struct {
	t    testing.TB
	conn net.Conn
	id   string
	next int32
}

func (n *node) dial(t testing.TB) *client {
	t.Helper()
	conn, err := net.DialTimeout("tcp", n.addr, patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	return &client{t: t, conn: conn, id: "node-test"}
}

// send writes a request and returns its correlation id.
func (c *client) send(version int16, req kmsg.Request) int32 {
	c.t.Helper()
	req.SetVersion(version)
	c.next++
	c.write(wire.AppendFrame(nil, func(b []byte) []byte {
		b = wire.AppendRequestHeader(b, req.Key(), version, c.next, &c.id, req.IsFlexible())
		return req.AppendTo(b)
	}))
	return c.next
}

func (c *client) write(b []byte) {
	c.t.Helper()
	if _, err := c.conn.Write(b); err != nil {
		c.t.Fatalf("write: %v", err)
	}
}

// frame reads one answer whole; an error is the end of the connection.
func (c *client) frame() ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(c.conn, size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > 1<<28 {
		return nil, fmt.Errorf("an answer of %d bytes", n)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(c.conn, b)
	return b, err
}

// answer reads the answer to a request that was sent. It must decode to the last
// byte: laid out again it must be what came.
func (c *client) answer(version int16, req kmsg.Request, correlation int32) kmsg.Response {
	c.t.Helper()
	frame, err := c.frame()
	if err != nil {
		c.t.Fatalf("%s v%d: no answer: %v", kmsg.NameForKey(req.Key()), version, err)
	}
	return c.decode(version, req, correlation, frame)
}

func (c *client) decode(version int16, req kmsg.Request, correlation int32, frame []byte) kmsg.Response {
	c.t.Helper()
	name := fmt.Sprintf("%s v%d", kmsg.NameForKey(req.Key()), version)
	got, body, err := wire.DecodeResponseHeader(frame, req.Key(), req.IsFlexible())
	if err != nil {
		c.t.Fatalf("%s: header: %v", name, err)
	}
	if got != correlation {
		c.t.Fatalf("%s: answer to %d, want to %d", name, got, correlation)
	}
	resp := req.ResponseKind()
	resp.SetVersion(version)
	if err := resp.ReadFrom(body); err != nil {
		c.t.Fatalf("%s: %v in %x", name, err, body)
	}
	if again := resp.AppendTo(nil); !bytes.Equal(again, body) {
		c.t.Fatalf("%s: the answer has bytes that its version has not:\n got %x\nwant %x", name, body, again)
	}
	return resp
}

// do sends one request and reads its answer.
func do[T kmsg.Response](c *client, version int16, req kmsg.Request) T {
	c.t.Helper()
	return c.answer(version, req, c.send(version, req)).(T)
}

// closed fails unless the server ends the connection without another byte.
func (c *client) closed() {
	c.t.Helper()
	_ = c.conn.SetReadDeadline(time.Now().Add(patience))
	n, err := c.conn.Read(make([]byte, 1))
	var timeout net.Error
	if n != 0 || err == nil || errors.As(err, &timeout) && timeout.Timeout() {
		c.t.Fatalf("want the connection closed, got %d bytes, %v", n, err)
	}
}

// topic is a topic of one test.
type topic struct {
	name string
	id   [16]byte
}

var topicNumber atomic.Int32

// topic creates a topic named after the test, with settings name=value, and waits
// until all its partitions are led.
func (c *client) topic(partitions int, settings ...string) topic {
	c.t.Helper()
	name := strings.Map(func(r rune) rune {
		if r == '/' || r == '#' || r == '=' || r == ' ' {
			return '-'
		}
		return r
	}, c.t.Name())
	return c.createTopic(fmt.Sprintf("%.100s-%d-%d", name, topicNumber.Add(1), time.Now().UnixMilli()%1e6), partitions, settings...)
}

func (c *client) createTopic(name string, partitions int, settings ...string) topic {
	c.t.Helper()
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis = 10000
	wanted := kmsg.NewCreateTopicsRequestTopic()
	wanted.Topic, wanted.NumPartitions, wanted.ReplicationFactor = name, int32(partitions), 1
	for _, s := range settings {
		key, value, _ := strings.Cut(s, "=")
		setting := kmsg.NewCreateTopicsRequestTopicConfig()
		setting.Name, setting.Value = key, &value
		wanted.Configs = append(wanted.Configs, setting)
	}
	req.Topics = append(req.Topics, wanted)
	created := do[*kmsg.CreateTopicsResponse](c, 7, req).Topics[0]
	if created.ErrorCode != 0 {
		c.t.Fatalf("create %s: error %d %v", name, created.ErrorCode, deref(created.ErrorMessage))
	}
	made := topic{name: name, id: created.TopicID}
	c.led(made, partitions)
	return made
}

// led waits until Metadata shows that all partitions are led, and each answers. One that is named by its id too is
// not taken for an earlier topic of its name, which may be shown for a moment.
func (c *client) led(tp topic, partitions int) {
	c.t.Helper()
	var last kmsg.MetadataResponseTopic
	for deadline := time.Now().Add(patience); ; {
		last = c.metadata(tp)
		ready := last.ErrorCode == 0 && len(last.Partitions) == partitions && (tp.id == [16]byte{} || last.TopicID == tp.id)
		for i := 0; ready && i < partitions; i++ {
			p := last.Partitions[i]
			ready = p.ErrorCode == 0 && p.Leader >= 0 && c.offset(4, tp, p.Partition, -1, p.LeaderEpoch).ErrorCode == 0
		}
		if ready {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("%s is not led: %+v", tp.name, last)
		}
	}
}

func (c *client) metadata(tp topic) kmsg.MetadataResponseTopic {
	c.t.Helper()
	req := kmsg.NewPtrMetadataRequest()
	wanted := kmsg.NewMetadataRequestTopic()
	wanted.Topic = &tp.name
	req.Topics = append(req.Topics, wanted)
	return do[*kmsg.MetadataResponse](c, 12, req).Topics[0]
}

// leaderEpoch is what Metadata says of partition 0, once it is led.
func (c *client) leaderEpoch(tp topic) int32 {
	c.t.Helper()
	c.led(tp, 1)
	return c.metadata(tp).Partitions[0].LeaderEpoch
}

// produceRequest holds records for one partition.
func produceRequest(version, acks int16, tp topic, partition int32, records []byte) *kmsg.ProduceRequest {
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks, req.TimeoutMillis = version, acks, 10000
	addProduce(req, tp, partition, records)
	return req
}

func addProduce(req *kmsg.ProduceRequest, tp topic, partition int32, records []byte) {
	p := kmsg.NewProduceRequestTopicPartition()
	p.Partition, p.Records = partition, records
	for i := range req.Topics {
		if req.Topics[i].Topic == tp.name && req.Topics[i].TopicID == tp.id {
			req.Topics[i].Partitions = append(req.Topics[i].Partitions, p)
			return
		}
	}
	out := kmsg.NewProduceRequestTopic()
	out.Topic, out.TopicID = tp.name, tp.id
	out.Partitions = append(out.Partitions, p)
	req.Topics = append(req.Topics, out)
}

// produce sends records to one partition with acks=all and returns its answer.
func (c *client) produce(version int16, tp topic, partition int32, records []byte) kmsg.ProduceResponseTopicPartition {
	c.t.Helper()
	resp := do[*kmsg.ProduceResponse](c, version, produceRequest(version, -1, tp, partition, records))
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		c.t.Fatalf("produce v%d: answer has not exactly the partition asked for: %+v", version, resp)
	}
	return resp.Topics[0].Partitions[0]
}

// mustProduce is produce that must succeed; it returns the base offset.
func (c *client) mustProduce(tp topic, partition int32, records []byte) int64 {
	c.t.Helper()
	p := c.produce(9, tp, partition, records)
	if p.ErrorCode != 0 {
		c.t.Fatalf("produce to %s-%d: error %d %s", tp.name, partition, p.ErrorCode, deref(p.ErrorMessage))
	}
	return p.BaseOffset
}

// refused fails unless producing these records gets the error and stores nothing.
func (c *client) refused(version int16, tp topic, records []byte, want int16) kmsg.ProduceResponseTopicPartition {
	c.t.Helper()
	before := c.offset(4, tp, 0, -1, -1).Offset
	p := c.produce(version, tp, 0, records)
	if p.ErrorCode != want || p.BaseOffset != -1 {
		c.t.Errorf("produce: error %d (%s), base offset %d; want error %d, base offset -1", p.ErrorCode, deref(p.ErrorMessage), p.BaseOffset, want)
	}
	if after := c.offset(4, tp, 0, -1, -1).Offset; after != before {
		c.t.Errorf("a refused batch moved the end from %d to %d", before, after)
	}
	return p
}

// position is one partition of a fetch.
type position struct {
	topic       topic
	partition   int32
	offset      int64
	epoch, last int32 // current leader epoch and last fetched epoch, -1 absent
	max         int32
}

func at(tp topic, offset int64) position {
	return position{topic: tp, offset: offset, epoch: -1, last: -1, max: 1 << 20}
}

// fetchRequest reads positions without waiting.
func fetchRequest(positions ...position) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaID, req.MinBytes, req.MaxBytes, req.SessionEpoch = -1, 1, 50<<20, -1
	for _, at := range positions {
		p := kmsg.NewFetchRequestTopicPartition()
		p.Partition, p.FetchOffset, p.CurrentLeaderEpoch, p.LastFetchedEpoch, p.LogStartOffset, p.PartitionMaxBytes =
			at.partition, at.offset, at.epoch, at.last, -1, at.max
		if n := len(req.Topics); n > 0 && req.Topics[n-1].Topic == at.topic.name && req.Topics[n-1].TopicID == at.topic.id {
			req.Topics[n-1].Partitions = append(req.Topics[n-1].Partitions, p)
			continue
		}
		out := kmsg.NewFetchRequestTopic()
		out.Topic, out.TopicID = at.topic.name, at.topic.id
		out.Partitions = append(out.Partitions, p)
		req.Topics = append(req.Topics, out)
	}
	return req
}

// fetchAll sends a fetch and checks its answer with a second decoder too.
func (c *client) fetchAll(version int16, req *kmsg.FetchRequest) *kmsg.FetchResponse {
	c.t.Helper()
	correlation := c.send(version, req)
	frame, err := c.frame()
	if err != nil {
		c.t.Fatalf("Fetch v%d: no answer: %v", version, err)
	}
	if err := checkFetchAnswer(version, frame[4:]); err != nil {
		c.t.Fatalf("Fetch v%d: %v", version, err)
	}
	return c.decode(version, req, correlation, frame).(*kmsg.FetchResponse)
}

// fetch reads one partition.
func (c *client) fetch(version int16, at position) kmsg.FetchResponseTopicPartition {
	c.t.Helper()
	return c.only(c.fetchAll(version, fetchRequest(at)))
}

// only is the one partition of an answer.
func (c *client) only(resp *kmsg.FetchResponse) kmsg.FetchResponseTopicPartition {
	c.t.Helper()
	if resp.ErrorCode != 0 || len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		c.t.Fatalf("fetch: want exactly one partition, got error %d and %+v", resp.ErrorCode, resp.Topics)
	}
	return resp.Topics[0].Partitions[0]
}

// stored is everything in the log of partition 0 from an offset on.
func (c *client) stored(tp topic, offset int64) []byte {
	c.t.Helper()
	p := c.fetch(11, at(tp, offset))
	if p.ErrorCode != 0 {
		c.t.Fatalf("fetch %s at %d: error %d", tp.name, offset, p.ErrorCode)
	}
	return p.RecordBatches
}

// offset asks ListOffsets for one partition.
func (c *client) offset(version int16, tp topic, partition int32, timestamp int64, epoch int32) kmsg.ListOffsetsResponseTopicPartition {
	c.t.Helper()
	return do[*kmsg.ListOffsetsResponse](c, version, offsetsRequest(tp, epoch, timestamp, partition)).Topics[0].Partitions[0]
}

func offsetsRequest(tp topic, epoch int32, timestamp int64, partitions ...int32) *kmsg.ListOffsetsRequest {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	out := kmsg.NewListOffsetsRequestTopic()
	out.Topic = tp.name
	for _, partition := range partitions {
		p := kmsg.NewListOffsetsRequestTopicPartition()
		p.Partition, p.Timestamp, p.CurrentLeaderEpoch = partition, timestamp, epoch
		out.Partitions = append(out.Partitions, p)
	}
	req.Topics = append(req.Topics, out)
	return req
}

// found is an answer of ListOffsets in short.
type found struct {
	offset, timestamp int64
	epoch             int32
}

// wantOffset asks at v11 and compares.
func (c *client) wantOffset(tp topic, timestamp int64, want found) {
	c.t.Helper()
	p := c.offset(11, tp, 0, timestamp, -1)
	if got := (found{p.Offset, p.Timestamp, p.LeaderEpoch}); p.ErrorCode != 0 || got != want {
		c.t.Errorf("ListOffsets %d of %s: error %d, %+v; want %+v", timestamp, tp.name, p.ErrorCode, got, want)
	}
}

// epochEnd is an answer of OffsetForLeaderEpoch in short.
type epochEnd struct {
	code  int16
	epoch int32
	end   int64
}

// offsetForEpoch asks where an epoch ends; current is the epoch the client believes in.
func (c *client) offsetForEpoch(version int16, tp topic, partition, current, asked int32) epochEnd {
	c.t.Helper()
	req := kmsg.NewPtrOffsetForLeaderEpochRequest()
	req.ReplicaID = -1
	out := kmsg.NewOffsetForLeaderEpochRequestTopic()
	out.Topic = tp.name
	p := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
	p.Partition, p.CurrentLeaderEpoch, p.LeaderEpoch = partition, current, asked
	out.Partitions = append(out.Partitions, p)
	req.Topics = append(req.Topics, out)
	got := do[*kmsg.OffsetForLeaderEpochResponse](c, version, req).Topics[0].Partitions[0]
	return epochEnd{got.ErrorCode, got.LeaderEpoch, got.EndOffset}
}

func (c *client) wantEpochEnd(tp topic, current, asked int32, want epochEnd) {
	c.t.Helper()
	if got := c.offsetForEpoch(4, tp, 0, current, asked); got != want {
		c.t.Errorf("OffsetForLeaderEpoch(%d, %d) of %s: %+v, want %+v", current, asked, tp.name, got, want)
	}
}

// deleteRecords raises the log start of partition 0 to offset.
func (c *client) deleteRecords(tp topic, offset int64) kmsg.DeleteRecordsResponseTopicPartition {
	c.t.Helper()
	req := kmsg.NewPtrDeleteRecordsRequest()
	req.TimeoutMillis = 10000
	out := kmsg.NewDeleteRecordsRequestTopic()
	out.Topic = tp.name
	p := kmsg.NewDeleteRecordsRequestTopicPartition()
	p.Partition, p.Offset = 0, offset
	out.Partitions = append(out.Partitions, p)
	req.Topics = append(req.Topics, out)
	return do[*kmsg.DeleteRecordsResponse](c, 2, req).Topics[0].Partitions[0]
}

func (c *client) mustDeleteRecords(tp topic, offset int64) {
	c.t.Helper()
	if p := c.deleteRecords(tp, offset); p.ErrorCode != 0 || p.LowWatermark != offset {
		c.t.Fatalf("DeleteRecords(%d): error %d, low watermark %d", offset, p.ErrorCode, p.LowWatermark)
	}
}

// producerID asks for a producer id.
func (c *client) producerID() int64 {
	c.t.Helper()
	req := kmsg.NewPtrInitProducerIDRequest()
	req.TransactionTimeoutMillis = 60000
	got := do[*kmsg.InitProducerIDResponse](c, 4, req)
	if got.ErrorCode != 0 {
		c.t.Fatalf("InitProducerId: error %d", got.ErrorCode)
	}
	return got.ProducerID
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
