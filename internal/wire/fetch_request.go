package wire

import (
	"math"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// DecodeFetch reads the body of a Fetch request, version 4 to 18, into req, whose arrays are used
// again; nothing in req points into body. Unknown tagged fields are skipped, not kept. From version
// 15 on ReplicaID is set from ReplicaState, so that readers need only look there.
//
// Memory is made only for as many elements as body has bytes for; whatever the bytes, the error is
// ErrMalformed and never a panic. Bytes left over are let be, as Kafka does.
func DecodeFetch(req *kmsg.FetchRequest, version int16, body []byte, names *Names) error {
	topics, forgotten := req.Topics[:0], req.ForgottenTopics[:0]
	*req = kmsg.FetchRequest{}
	req.Default()
	req.Version = version
	r := fieldReader{Reader: kbin.Reader{Src: body}, flexible: version >= 12}

	if version <= 14 {
		req.ReplicaID = r.Int32()
	}
	req.MaxWaitMillis = r.Int32()
	req.MinBytes = r.Int32()
	req.MaxBytes = r.Int32()
	req.IsolationLevel = r.Int8()
	if version >= 7 {
		req.SessionID = r.Int32()
		req.SessionEpoch = r.Int32()
	}
	n := r.count(3)
	topics = room(topics, n)
	for range n {
		topics = topics[:len(topics)+1]
		decodeFetchTopic(&r, &topics[len(topics)-1], version, names)
		if !r.Ok() {
			return malformed("Fetch topic is cut short")
		}
	}
	req.Topics = topics
	if version >= 7 {
		n := r.count(3)
		forgotten = room(forgotten, n)
		for range n {
			forgotten = forgotten[:len(forgotten)+1]
			decodeForgotten(&r, &forgotten[len(forgotten)-1], version, names)
			if !r.Ok() {
				return malformed("Fetch forgotten topic is cut short")
			}
		}
		req.ForgottenTopics = forgotten
	}
	if version >= 11 {
		req.Rack = names.intern(r.str())
	}
	r.eachTag(func(tag uint32, v *fieldReader) {
		switch {
		case tag == 0:
			if id, ok := v.nullableString(); ok {
				s := string(id)
				req.ClusterID = &s
			}
			v.whole()
		case tag == 1 && version >= 15:
			req.ReplicaState.ID = v.Int32()
			req.ReplicaState.Epoch = v.Int64()
			v.tags()
			v.whole()
		}
	})
	if version >= 15 {
		req.ReplicaID = req.ReplicaState.ID
	}
	return r.end("Fetch")
}

func decodeFetchTopic(r *fieldReader, t *kmsg.FetchRequestTopic, version int16, names *Names) {
	partitions := t.Partitions[:0]
	*t = kmsg.FetchRequestTopic{}
	if version >= 13 {
		t.TopicID = r.Uuid()
	} else {
		t.Topic = names.intern(r.str())
	}
	n := r.count(16)
	partitions = room(partitions, n)
	for range n {
		p := kmsg.FetchRequestTopicPartition{
			Partition:          r.Int32(),
			CurrentLeaderEpoch: -1,
			LastFetchedEpoch:   -1,
			LogStartOffset:     -1,
			HighWatermark:      math.MaxInt64,
		}
		if version >= 9 {
			p.CurrentLeaderEpoch = r.Int32()
		}
		p.FetchOffset = r.Int64()
		if version >= 12 {
			p.LastFetchedEpoch = r.Int32()
		}
		if version >= 5 {
			p.LogStartOffset = r.Int64()
		}
		p.PartitionMaxBytes = r.Int32()
		r.eachTag(func(tag uint32, v *fieldReader) {
			switch {
			case tag == 0 && version >= 17:
				p.ReplicaDirectoryID = v.Uuid()
				v.whole()
			case tag == 1 && version >= 18:
				p.HighWatermark = v.Int64()
				v.whole()
			}
		})
		partitions = append(partitions, p)
		if !r.Ok() {
			return
		}
	}
	t.Partitions = partitions
	r.tags()
}

func decodeForgotten(r *fieldReader, t *kmsg.FetchRequestForgottenTopic, version int16, names *Names) {
	partitions := t.Partitions[:0]
	*t = kmsg.FetchRequestForgottenTopic{}
	if version >= 13 {
		t.TopicID = r.Uuid()
	} else {
		t.Topic = names.intern(r.str())
	}
	n := r.count(4)
	partitions = room(partitions, n)
	for range n {
		partitions = append(partitions, r.Int32())
	}
	t.Partitions = partitions
	r.tags()
}
