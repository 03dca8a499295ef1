package wire

import (
	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A record batch has a header of 61 bytes, so a request of n partitions with records has more than 61n
// bytes. Empty partitions are a client's mistake that deserves its answer, in small numbers.
const (
	bytesPerPartition = 61
	freePartitions    = 1000
)

// DecodeProduce reads the body of a Produce request, version 3 to 13, into req, whose arrays are
// used again. The record bytes are slices of body: they live as long as its buffer and may be patched
// in place. Names are copied and stay valid. Unknown tagged fields are skipped, not kept.
//
// Partitions are refused when they are so many that they cannot all hold a record batch: an array of
// empty ones would take many times the memory of its bytes.
//
// Memory is made only for as many elements as body has bytes for; whatever the bytes, the error is
// ErrMalformed and never a panic. Bytes left over are let be, as Kafka does.
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

	spare := freePartitions + len(body)/bytesPerPartition
	byID := version >= 13
	minTopic := 3 // an empty name, an empty array and no tags, compact
	if byID {
		minTopic = 18
	}
	n := r.count(minTopic)
	if spare -= n; spare < 0 {
		return malformed("Produce names more topics than it has records for")
	}
	topics = room(topics, n)
	for range n {
		topics = topics[:len(topics)+1]
		t := &topics[len(topics)-1]
		partitions := t.Partitions[:0]
		*t = kmsg.ProduceRequestTopic{}
		if byID {
			t.TopicID = r.Uuid()
		} else {
			t.Topic = names.intern(r.str())
		}
		n := r.count(6)
		if spare -= n; spare < 0 {
			return malformed("Produce names more partitions than it has records for")
		}
		partitions = room(partitions, n)
		for range n {
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
