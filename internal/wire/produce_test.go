package wire

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"
)

// drawProduce draws any Produce request that the version can carry.
func drawProduce(t *rapid.T, version int16) *kmsg.ProduceRequest {
	req := kmsg.NewPtrProduceRequest()
	req.Version = version
	if rapid.Bool().Draw(t, "transactional") {
		req.TransactionID = kmsg.StringPtr(rapid.StringN(0, 5, 20).Draw(t, "txn"))
	}
	req.Acks = rapid.Int16().Draw(t, "acks")
	req.TimeoutMillis = rapid.Int32().Draw(t, "timeout")
	for range rapid.IntRange(0, 4).Draw(t, "topics") {
		topic := kmsg.NewProduceRequestTopic()
		if version >= 13 {
			copy(topic.TopicID[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))
		} else {
			topic.Topic = rapid.StringN(0, 10, 40).Draw(t, "name")
		}
		for range rapid.IntRange(0, 4).Draw(t, "partitions") {
			p := kmsg.NewProduceRequestTopicPartition()
			p.Partition = rapid.Int32().Draw(t, "index")
			if rapid.Bool().Draw(t, "records") {
				p.Records = append([]byte{}, rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "bytes")...)
			}
			drawTags(t, &p.UnknownTags, version >= 9)
			topic.Partitions = append(topic.Partitions, p)
		}
		drawTags(t, &topic.UnknownTags, version >= 9)
		req.Topics = append(req.Topics, topic)
	}
	drawTags(t, &req.UnknownTags, version >= 9)
	return req
}

func drawTags(t *rapid.T, tags *kmsg.Tags, flexible bool) {
	if flexible && rapid.IntRange(0, 5).Draw(t, "tagged") == 0 {
		tags.Set(rapid.Uint32Range(40, 300).Draw(t, "tag"), rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "value"))
	}
}

// clearProduceTags takes away what our decoder does not keep.
func clearProduceTags(req *kmsg.ProduceRequest) {
	req.UnknownTags = kmsg.Tags{}
	for i := range req.Topics {
		req.Topics[i].UnknownTags = kmsg.Tags{}
		for j := range req.Topics[i].Partitions {
			req.Topics[i].Partitions[j].UnknownTags = kmsg.Tags{}
		}
	}
}

// Our Produce decoder reads what kmsg writes, at every version, also into a request that held
// another one before, and leaves the record bytes where they are in the frame.
func TestDecodeProduceAgreesWithKmsg(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var got kmsg.ProduceRequest
		names := new(Names)
		for range 2 {
			version := rapid.Int16Range(3, 13).Draw(t, "version")
			want := drawProduce(t, version)
			body := want.AppendTo(nil)
			if err := DecodeProduce(&got, version, body, names); err != nil {
				t.Fatalf("version %d: %v", version, err)
			}
			clearProduceTags(want)
			if !bytes.Equal(got.AppendTo(nil), want.AppendTo(nil)) {
				t.Fatalf("version %d:\n got %+v\nwant %+v", version, got, want)
			}
			for _, topic := range got.Topics {
				for _, p := range topic.Partitions {
					if len(p.Records) > 0 && !within(p.Records, body) {
						t.Fatal("record bytes were copied")
					}
				}
			}
		}
	})
}

func within(part, whole []byte) bool {
	for i := range whole {
		if &whole[i] == &part[0] {
			return true
		}
	}
	return false
}

// A request that ends anywhere before its end is malformed; what comes after it does not matter.
func TestDecodeProduceCutAnywhere(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		version := rapid.Int16Range(3, 13).Draw(t, "version")
		body := drawProduce(t, version).AppendTo(nil)
		var got kmsg.ProduceRequest
		for n := range body {
			if err := DecodeProduce(&got, version, body[:n], nil); !errors.Is(err, ErrMalformed) {
				t.Fatalf("version %d, %d of %d bytes: %v", version, n, len(body), err)
			}
		}
		if err := DecodeProduce(&got, version, append(body, 0), nil); err != nil {
			t.Fatalf("version %d with a byte more: %v", version, err)
		}
	})
}

// Properties: no bytes make the decoder panic; what it accepts, kmsg accepts with the same
// meaning, and its own encoding comes back equal.
func FuzzDecodeProduce(f *testing.F) {
	for v := int16(3); v <= 13; v++ {
		req := kmsg.NewPtrProduceRequest()
		req.Version = v
		req.Topics = []kmsg.ProduceRequestTopic{{Topic: "t", Partitions: []kmsg.ProduceRequestTopicPartition{{Records: []byte("records")}}}}
		f.Add(v, req.AppendTo(nil))
	}
	f.Fuzz(func(t *testing.T, version int16, body []byte) {
		if version < 3 || version > 13 {
			return
		}
		var got, again kmsg.ProduceRequest
		if err := DecodeProduce(&got, version, body, nil); err != nil {
			return
		}
		want := kmsg.NewPtrProduceRequest()
		want.Version = version
		if err := want.ReadFrom(body); err != nil {
			t.Fatalf("kmsg refuses what we accept: %v", err)
		}
		clearProduceTags(want)
		round := got.AppendTo(nil)
		if !bytes.Equal(round, want.AppendTo(nil)) {
			t.Fatalf("version %d: got %+v, kmsg %+v", version, got, want)
		}
		if err := DecodeProduce(&again, version, round, nil); err != nil || !reflect.DeepEqual(again, got) {
			t.Fatalf("own encoding does not come back: %v", err)
		}
	})
}

// An array of partitions or topics too many to have records is refused before memory is made for it.
func TestDecodeProduceRefusesEmptyFloods(t *testing.T) {
	t.Parallel()
	many := kmsg.ProduceRequestTopic{Topic: "t", Partitions: make([]kmsg.ProduceRequestTopicPartition, 50_000)}
	for name, topics := range map[string][]kmsg.ProduceRequestTopic{"partitions": {many}, "topics": make([]kmsg.ProduceRequestTopic, 50_000)} {
		req := kmsg.NewPtrProduceRequest()
		req.Version, req.Topics = 9, topics
		var got kmsg.ProduceRequest
		body := req.AppendTo(nil)
		if err := DecodeProduce(&got, 9, body, nil); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
