//go:build interop

package codec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/wire"
)

// messagesEach is how many random messages there are of each key, version, direction and maker.
const messagesEach = 12

// Every version of every API, requests and answers, is read and written by two implementations that know nothing of
// each other, over the same bytes: kmsg with the decoders of ours, and Kafka's generated classes. Both make messages
// of random values; the other one reads them, finds the same values under the same names, and writes the same bytes.
func TestB009_every_message_has_one_meaning(t *testing.T) {
	t.Parallel()
	j := startJudge(t)
	c := &run{t: t}
	for _, api := range wire.APIs() {
		for version := api.Min; version <= api.Max; version++ {
			if api.Supports(version) {
				c.plan(api, version)
			}
		}
	}
	if err := j.ask(c.questions, c.judge); err != nil {
		t.Fatal(err)
	}
	fmt.Print(c.table())
}

// Answers to Fetch with no records, with a batch, with two partitions of which one is in error, and with aborted
// transactions, in every version: both implementations read them with nothing left over, and see the same.
func TestB009_fetch_answers_in_every_version(t *testing.T) {
	t.Parallel()
	batch := bytes.Repeat([]byte{0xab}, 61)
	partition := func(number int32, records []byte) kmsg.FetchResponseTopicPartition {
		p := kmsg.NewFetchResponseTopicPartition()
		p.Partition, p.HighWatermark, p.LastStableOffset, p.LogStartOffset = number, 10, 9, 1
		p.RecordBatches = records
		return p
	}
	failed := partition(1, []byte{})
	failed.ErrorCode, failed.HighWatermark, failed.LastStableOffset, failed.LogStartOffset = kerr.OffsetOutOfRange.Code, -1, -1, -1
	aborted := partition(0, batch)
	for i := range int64(3) {
		a := kmsg.NewFetchResponseTopicPartitionAbortedTransaction()
		a.ProducerID, a.FirstOffset = 4000+i, i
		aborted.AbortedTransactions = append(aborted.AbortedTransactions, a)
	}
	var questions []question
	api, _ := wire.Lookup(wire.KeyFetch)
	for version := api.Min; version <= api.Max; version++ {
		for _, partitions := range [][]kmsg.FetchResponseTopicPartition{{partition(0, []byte{})}, {partition(0, batch)}, {partition(0, batch), failed}, {aborted}} {
			f := &kmsg.FetchResponse{Version: version, ThrottleMillis: 5, SessionID: 77}
			f.Topics = []kmsg.FetchResponseTopic{{Topic: "t", TopicID: [16]byte{1}, Partitions: partitions}}
			frame, err := fetchAnswer(f, 42, true)
			if err != nil {
				t.Fatal(err)
			}
			questions = append(questions, question{kind: kindResponse, key: wire.KeyFetch, version: version, bytes: frame})
		}
	}
	c := &run{t: t}
	if err := startJudge(t).ask(questions, c.judge); err != nil {
		t.Fatal(err)
	}
}

type run struct {
	t         *testing.T
	questions []question
	rows      []*row
}

type row struct {
	api               wire.API
	versions          int
	requests, answers int
	byKafka, byStele  int
	ours              int // of them also by a codec of ours
	failed            int
}

func (c *run) row(key int16) *row {
	for _, r := range c.rows {
		if r.api.Key == key {
			return r
		}
	}
	api, _ := wire.Lookup(key)
	r := &row{api: api}
	c.rows = append(c.rows, r)
	return r
}

func (c *run) plan(api wire.API, version int16) {
	req := kmsg.RequestForKey(api.Key)
	if req == nil || req.MaxVersion() < version {
		c.t.Errorf("kmsg does not know %s version %d", api.Name, version)
		return
	}
	c.row(api.Key).versions++
	for i := range messagesEach {
		seed := int64(api.Key)<<32 | int64(version)<<16 | int64(i)
		r := &filler{rand.New(rand.NewPCG(uint64(seed), 1)), version, i%2 == 1}
		for _, kind := range []byte{kindRequest, kindResponse} {
			c.questions = append(c.questions,
				question{kind: kind, key: api.Key, version: version, bytes: r.frame(kind, api, version), strange: r.strange},
				question{kind: kind, key: api.Key, version: version, seed: seed, strange: i%2 == 1})
		}
	}
}

// frame is a random message of kmsg's as a frame without its size.
func (r *filler) frame(kind byte, api wire.API, version int16) []byte {
	if kind == kindRequest {
		req := kmsg.RequestForKey(api.Key)
		req.SetVersion(version)
		r.fill(reflect.ValueOf(req).Elem(), 0)
		var clientID *string
		if r.IntN(3) > 0 {
			clientID = &fillStrings[r.IntN(len(fillStrings))]
		}
		return req.AppendTo(wire.AppendRequestHeader(nil, api.Key, version, int32(r.Uint32()), clientID, api.Flexible(version)))
	}
	resp := kmsg.ResponseForKey(api.Key)
	resp.SetVersion(version)
	r.fill(reflect.ValueOf(resp).Elem(), 0)
	return resp.AppendTo(wire.AppendResponseHeader(nil, api.Key, int32(r.Uint32()), api.Flexible(version)))
}

func (c *run) judge(q question, r reading, refused error) {
	in := c.row(q.key)
	if q.kind == kindRequest {
		in.requests++
	} else {
		in.answers++
	}
	err := refused
	if q.bytes == nil {
		in.byKafka++
	} else {
		in.byStele++
		if err == nil && !bytes.Equal(q.bytes, r.bytes) {
			err = fmt.Errorf("Kafka writes other bytes%s", firstDifference(q.bytes, r.bytes))
		}
	}
	if err == nil && q.kind == kindRequest {
		err = c.request(in, q, r)
	} else if err == nil {
		err = c.answer(in, q, r)
	}
	if err != nil {
		in.failed++
		if in.failed <= 3 {
			c.t.Errorf("%s %v: %v", in.api.Name, q, err)
		}
	}
}

func firstDifference(a, b []byte) string {
	at := 0
	for at < len(a) && at < len(b) && a[at] == b[at] {
		at++
	}
	from := max(0, at-8)
	return fmt.Sprintf(": %d bytes and %d, from byte %d on %x and %x", len(a), len(b), at, a[from:min(len(a), at+24)], b[from:min(len(b), at+24)])
}

func (c *run) request(in *row, q question, r reading) error {
	h, rest, err := wire.DecodeRequestHeader(r.bytes, nil)
	if err != nil {
		return err
	}
	var header struct {
		RequestAPIKey, RequestAPIVersion int16
		CorrelationID                    int32
		ClientID                         string
	}
	if err := json.Unmarshal(r.json.Header, &header); err != nil {
		return err
	}
	if got := (wire.RequestHeader{Key: header.RequestAPIKey, Version: header.RequestAPIVersion, CorrelationID: header.CorrelationID, ClientID: header.ClientID}); got != h {
		return fmt.Errorf("header %+v, Kafka says %+v", h, got)
	}
	req := kmsg.RequestForKey(q.key)
	req.SetVersion(q.version)
	if err := req.ReadFrom(rest); err != nil {
		return fmt.Errorf("kmsg: %w", err)
	}
	if again := req.AppendTo(nil); !bytes.Equal(rest, again) {
		return fmt.Errorf("kmsg writes other bytes%s", firstDifference(rest, again))
	}
	if err := sameValues(req, r.json.Body); err != nil {
		return err
	}
	var ours kmsg.Request
	switch q.key {
	case wire.KeyProduce:
		p := new(kmsg.ProduceRequest)
		err, ours = wire.DecodeProduce(p, q.version, rest, nil), p
	case wire.KeyFetch:
		f := new(kmsg.FetchRequest)
		err, ours = wire.DecodeFetch(f, q.version, rest, nil), f
		if q.version >= 15 {
			f.ReplicaID = -1 // set from the tagged field
		}
	case 14:
		if !q.strange && q.bytes == nil {
			in.ours++
			switch same, err := wire.SyncGroupWithoutTags(q.version, rest); {
			case err != nil:
				return fmt.Errorf("decoder of ours: %w", err)
			case len(same) != len(rest):
				return errors.New("tagged fields seen where there are none")
			}
		}
	}
	if ours == nil {
		return nil
	}
	in.ours++
	if err != nil {
		return fmt.Errorf("decoder of ours: %w", err)
	}
	return sameValues(ours, r.json.Body)
}

func (c *run) answer(in *row, q question, r reading) error {
	api, _ := wire.Lookup(q.key)
	correlationID, rest, err := wire.DecodeResponseHeader(r.bytes, q.key, api.Flexible(q.version))
	if err != nil {
		return err
	}
	var header struct{ CorrelationID int32 }
	if err := json.Unmarshal(r.json.Header, &header); err != nil {
		return err
	}
	if header.CorrelationID != correlationID {
		return fmt.Errorf("correlation id %d, Kafka says %d", correlationID, header.CorrelationID)
	}
	resp := kmsg.ResponseForKey(q.key)
	resp.SetVersion(q.version)
	if err := resp.ReadFrom(rest); err != nil {
		return fmt.Errorf("kmsg: %w", err)
	}
	if again := resp.AppendTo(nil); !bytes.Equal(rest, again) {
		return fmt.Errorf("kmsg writes other bytes%s", firstDifference(rest, again))
	}
	if f, ok := resp.(*kmsg.FetchResponse); ok && !q.strange {
		in.ours++
		for _, fromFile := range []bool{false, true} {
			have, err := fetchAnswer(f, correlationID, fromFile)
			if err != nil {
				return err
			}
			if !bytes.Equal(have, r.bytes) {
				return fmt.Errorf("encoder of ours writes other bytes, records from a file: %v%s", fromFile, firstDifference(r.bytes, have))
			}
		}
	}
	return sameValues(resp, r.json.Body)
}

// fetchAnswer is the answer as the encoder of ours lays it out, with the records in memory or in a file.
func fetchAnswer(f *kmsg.FetchResponse, correlationID int32, fromFile bool) ([]byte, error) {
	out := wire.FetchResponse{Version: f.Version, ThrottleMillis: f.ThrottleMillis, ErrorCode: f.ErrorCode, SessionID: f.SessionID, Brokers: f.Brokers}
	for _, t := range f.Topics {
		topic := wire.FetchResponseTopic{Topic: t.Topic, TopicID: t.TopicID}
		for _, p := range t.Partitions {
			part := wire.FetchResponsePartition{FetchResponseTopicPartition: p}
			if fromFile && len(p.RecordBatches) > 0 {
				part.Range = wire.FileRange{File: recordFile{bytes.NewReader(append([]byte("before"), p.RecordBatches...))}, Position: 6, Length: len(p.RecordBatches)}
				part.RecordBatches = nil
			}
			topic.Partitions = append(topic.Partitions, part)
		}
		out.Topics = append(out.Topics, topic)
	}
	segments, err := out.Append(correlationID)
	if err != nil {
		return nil, err
	}
	defer segments.Release()
	var frame []byte
	for _, s := range segments.List {
		if s.Bytes != nil {
			frame = append(frame, s.Bytes...)
			continue
		}
		part := make([]byte, s.Range.Length)
		if _, err := s.Range.File.ReadAt(part, s.Range.Position); err != nil {
			return nil, err
		}
		frame = append(frame, part...)
	}
	if size, err := wire.ParseFrameSize(frame, math.MaxInt32); err != nil || size != len(frame)-wire.FrameSizeBytes || segments.Total != len(frame) {
		return nil, fmt.Errorf("frame of %d bytes says %d, total %d: %w", len(frame), size, segments.Total, err)
	}
	return frame[wire.FrameSizeBytes:], nil
}

type recordFile struct{ *bytes.Reader }

func (recordFile) OSFile() (*os.File, bool) { return nil, false }

func (c *run) table() string {
	var s strings.Builder
	line := func(name, key string, r row) {
		fmt.Fprintf(&s, "%-38s %4s %8d %9d %9d %9d %9d %9d %7d\n", name, key, r.versions, r.requests, r.answers, r.byKafka, r.byStele, r.ours, r.failed)
	}
	fmt.Fprintf(&s, "\n%-38s %4s %8s %9s %9s %9s %9s %9s %7s\n", "API", "key", "versions", "requests", "answers", "by Kafka", "by Stele", "own codec", "failed")
	var all row
	for _, r := range c.rows {
		line(r.api.Name, strconv.Itoa(int(r.api.Key)), *r)
		all.versions += r.versions
		all.requests += r.requests
		all.answers += r.answers
		all.byKafka += r.byKafka
		all.byStele += r.byStele
		all.failed += r.failed
		all.ours += r.ours
	}
	line("all", "", all)
	return s.String()
}
