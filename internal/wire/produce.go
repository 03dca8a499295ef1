package wire

import (
	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// DecodeProduce reads the body of a Produce request, version 3 to 13, into req, whose arrays are
// used again. The record bytes are slices of body: they live as long as its buffer and may be patched
// in place. Names are copied and stay valid. Unknown tagged fields are skipped, not kept.
//
// Memory is made only for as many elements as body has bytes for; whatever the bytes, the error is
// ErrMalformed and never a panic. Bytes left over are an error.
func DecodeProduce(req *kmsg.ProduceRequest, version int16, body []byte, names *Names) error {
	topics := req.Topics[:0]
	*req = kmsg.ProduceRequest{Version: version}
	r := fieldReader{Reader: kbin.Reader{Src: body}, flexible: version >= 9}

	if id, ok := r.nullableString(); ok {
		s := string(id)
		req.TransactionID = &s
	}
	req.Acks = r.Int16()
	req.TimeoutMillis = r.Int32()

	byID := version >= 13
	minTopic := 2 // an empty name and an empty array, compact
	if byID {
		minTopic = 17
	}
	for range r.count(minTopic) {
		topics = extend(topics)
		t := &topics[len(topics)-1]
		partitions := t.Partitions[:0]
		*t = kmsg.ProduceRequestTopic{}
		if byID {
			t.TopicID = r.Uuid()
		} else {
			t.Topic = names.intern(r.str())
		}
		for range r.count(5) {
			p := kmsg.ProduceRequestTopicPartition{Partition: r.Int32()}
			p.Records = r.nullableBytes()
			r.tags()
			partitions = append(partitions, p)
			if !r.Ok() {
				return malformed("Produce partition is cut short")
			}
		}
		t.Partitions = partitions
		r.tags()
		if !r.Ok() {
			return malformed("Produce topic is cut short")
		}
	}
	req.Topics = topics
	r.tags()
	return r.end("Produce")
}
