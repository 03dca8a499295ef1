//go:build interop

package differential

import (
	"encoding/binary"
	"math"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/record"
)

var plainOptions = record.BuilderOptions{}

func init() {
	scenarios = append(scenarios,
		scenario{name: "produce", needs: []int16{0, 1}, turns: 3, play: producePlay},
		scenario{name: "produce-settings", needs: []int16{0, 1, 2}, turns: 2, play: produceSettingsPlay},
		scenario{name: "idempotence", needs: []int16{0, 22, 1}, turns: 3, play: idempotencePlay},
		scenario{name: "fetch", needs: []int16{0, 1}, turns: 4, play: fetchPlay},
		scenario{name: "sessions", needs: []int16{0, 1}, turns: 4, play: sessionsPlay},
		scenario{name: "list-offsets", needs: []int16{0, 2}, turns: 4, play: listOffsetsPlay},
		scenario{name: "epochs", needs: []int16{1, 2, 23}, turns: 3, play: epochsPlay},
	)
}

func producePlay(l *lane) {
	topic, wide, many := l.fresh("p"), l.fresh("wide"), l.fresh("many")
	l.createTopic(topic, 1)
	l.createTopic(wide, 3)
	const partitions = 80
	l.createTopic(many, partitions)
	// What either stores is followed in another partition: whether one is stored says nothing about the next.
	next, sends := int32(0), 0
	send := func(records []byte) {
		got := l.do(l.version(0, 3), produceRequest(-1, many, next, records))
		if sends++; sends%3 == 0 && successful(got.outcomes[0]) == successful(got.outcomes[1]) {
			l.do(l.version(1), fetchRequest(fetchAt{many, next, 0}))
		}
		if !declined(got.outcomes[0]) || !declined(got.outcomes[1]) {
			if next++; next == partitions {
				panic("no partition is left")
			}
		}
	}
	for codec := record.None; codec <= record.Zstd; codec++ {
		l.do(l.version(0, 3), produceRequest(-1, topic, 0, batch(record.BuilderOptions{Codec: codec}, some(20, stamp)...)))
	}
	l.do(l.version(1, 10), fetchRequest(fetchAt{topic, 0, 0}))
	for _, acks := range []int16{-2, 2, 32767, -1, 1} {
		l.do(l.version(0, 3), produceRequest(acks, topic, 0, plain(1, stamp)))
	}
	l.quiet(l.version(0, 3), produceRequest(0, topic, 0, plain(1, stamp)))
	bad := plain(2, stamp)
	bad[len(bad)-1]++
	l.quiet(l.version(0, 3), produceRequest(0, topic, 0, bad))
	l.quiet(l.version(0, 3, 12), produceRequest(0, "bad name", 0, plain(1, stamp)))
	l.quiet(l.version(0, 3), produceRequest(0, topic, 7, plain(1, stamp)))
	for v := int16(0); v < 3; v++ {
		l.do(v, produceRequest(-1, topic, 0, plain(1, stamp)))
		l.quiet(v, produceRequest(0, topic, 0, plain(1, stamp)))
	}
	// What is not a batch, or a broken one.
	good := func() []byte { return plain(3, stamp) }
	if strings.HasSuffix(l.name, "/0") {
		send(nil) // Kafka never answers that
	}
	send([]byte{})
	send([]byte{1, 2, 3})
	send(make([]byte, 17))
	send(make([]byte, 61))
	send(good()[:60])
	send(good()[:len(good())-1])
	send(append(good(), 0))
	send(append(good(), good()...)) // two batches
	send(bad)
	b := good()
	b[atMagic] = 1
	send(b)
	b = good()
	b[atMagic] = 0
	send(b)
	b = good()
	b[atMagic] = 3
	send(b)
	b = good()
	b[atMagic] = 0xff
	send(b)
	for _, length := range []int32{-1, 0, 1, 48, 49, 50, math.MaxInt32, math.MinInt32} {
		send(put32(good(), atLength, length))
	}
	for _, count := range []int32{-1, 0, 2, 4, math.MaxInt32} {
		send(resealed(put32(good(), atCount, count)))
	}
	for _, last := range []int32{-1, 0, 1, 3, math.MaxInt32} {
		send(resealed(put32(good(), atLastDelta, last)))
	}
	send(put64(good(), atBaseOffset, 77))
	send(put64(good(), atBaseOffset, -1))
	send(put32(good(), atEpoch, 9))
	for _, attributes := range []int16{0x08, 0x10, 0x20, 0x40, 0x80, 0x100, 5, 6, 7, 1, 2, 3, 4, 0x30, -1} {
		send(resealed(put16(good(), atAttributes, attributes)))
	}
	send(resealed(put64(good(), atFirstStamp, -1)))
	send(resealed(put64(good(), atMaxStamp, -1)))
	send(resealed(put64(good(), atMaxStamp, 5)))
	send(resealed(put64(good(), atFirstStamp, math.MaxInt64)))
	send(resealed(put64(good(), atProducer, 5)))
	send(resealed(put16(put64(good(), atProducer, 5), atProducerE, 0)))
	send(resealed(put32(put16(put64(good(), atProducer, -5), atProducerE, 0), atSequence, 0)))
	send(resealed(put32(good(), atSequence, 5)))
	send(resealed(put16(good(), atProducerE, 3)))
	send(record.NewControlBatch(stamp, record.ControlRecord{Type: record.ControlType(0)}))
	// Bodies: a broken record inside a good batch.
	inner := func(change func(body []byte) []byte) {
		b := good()
		b = append(b[:record.HeaderSize:record.HeaderSize], change(append([]byte{}, b[record.HeaderSize:]...))...)
		binary.BigEndian.PutUint32(b[atLength:], uint32(len(b)-12))
		send(resealed(b))
	}
	inner(func(b []byte) []byte { return b[:len(b)-1] })
	inner(func(b []byte) []byte { return append(b, 0) })
	inner(func(b []byte) []byte { return nil })
	for i := range 6 {
		inner(func(b []byte) []byte { b[i] ^= 0x7f; return b })
		inner(func(b []byte) []byte { b[i] = 0xff; return b })
		inner(func(b []byte) []byte { b[i]++; return b })
	}
	inner(func(b []byte) []byte { b[3] = 2; return b }) // the first record's offset delta
	// Compressed rubbish.
	for codec := int16(1); codec <= 4; codec++ {
		send(resealed(put16(good(), atAttributes, codec)))
		z := batch(record.BuilderOptions{Codec: record.Codec(codec)}, some(5, stamp)...)
		z[len(z)-3] ^= 0x55
		send(resealed(z))
		z = batch(record.BuilderOptions{Codec: record.Codec(codec)}, some(5, stamp)...)
		send(resealed(put32(z, atCount, 4)))
		z = batch(record.BuilderOptions{Codec: record.Codec(codec)}, some(5, stamp)...)
		send(resealed(put32(put32(z, atCount, 6), atLastDelta, 5)))
	}
	// Records with nothing in them, with headers, with strange times.
	send(batch(plainOptions, rec{stamp: stamp}, rec{stamp: stamp, key: []byte{}, value: []byte{}}))
	send(batch(plainOptions, rec{stamp: stamp, headers: []record.Header{{Key: []byte("h"), Value: nil}, {Key: []byte(""), Value: []byte{}}}}))
	send(batch(plainOptions, rec{stamp: -1}))
	send(batch(plainOptions, rec{stamp: 0}))
	send(batch(plainOptions, rec{stamp: stamp + 5}, rec{stamp: stamp}))
	send(batch(plainOptions, rec{stamp: time.Now().Add(24*time.Hour).UnixMilli() / 86400000 * 86400000}, rec{stamp: stamp}))
	send(batch(plainOptions, rec{stamp: math.MaxInt64 - 10}))
	send(batch(plainOptions, rec{stamp: stamp, value: make([]byte, 1<<20)}))
	send(batch(record.BuilderOptions{Codec: record.Gzip}, rec{stamp: stamp, value: make([]byte, 1<<20)}))
	// Several topics and partitions: each fails by itself; the same partition twice.
	for range 4 {
		req := produceRequest(-1, wide, 0, plain(1, stamp))
		addProduce(req, wide, 1, bad)
		addProduce(req, wide, 9, plain(1, stamp))
		addProduce(req, wide, -1, plain(1, stamp))
		addProduce(req, wide, 2, plain(2, stamp))
		addProduce(req, "no-such-topic", 0, plain(2, stamp))
		addProduce(req, "bad name", 0, plain(2, stamp))
		addProduce(req, "", 0, plain(2, stamp))
		addProduce(req, "__consumer_offsets", 0, plain(2, stamp))
		addProduce(req, "__cluster_metadata", 0, plain(2, stamp))
		l.do(l.version(0, 3), req)
	}
	twice := l.fresh("twice") // the two store different things there
	l.createTopic(twice, 3)
	beside := l.fresh("beside")
	l.createTopic(beside, 6)
	for i, rubbish := range [][]byte{{}, {1, 2, 3}, make([]byte, 17), make([]byte, 61), good()[:30]} {
		req := produceRequest(-1, beside, int32(i), plain(1, stamp))
		addProduce(req, beside, 5, rubbish)
		l.do(l.version(0, 3), req)
	}
	req := produceRequest(-1, twice, 0, plain(1, stamp))
	addProduce(req, twice, 0, plain(2, stamp))
	l.do(l.version(0, 3), req)
	req = produceRequest(-1, twice, 0, plain(1, stamp))
	req.Topics = append(req.Topics, produceRequest(-1, twice, 1, plain(1, stamp)).Topics...)
	l.do(l.version(0, 3), req)
	req.Topics = nil
	l.do(l.version(0, 3), req)
	req = produceRequest(-1, wide, 0, plain(1, stamp))
	req.Topics[0].Partitions = nil
	l.do(l.version(0, 3), req)
	// Transactions that nobody has begun.
	req = produceRequest(-1, wide, 0, plain(1, stamp))
	req.TransactionID = ptr("nobody")
	l.do(l.version(0, 3), req)
	req = produceRequest(-1, wide, 0, batch(record.BuilderOptions{Transactional: true, Producer: &record.Producer{ID: 4000, Epoch: 0, BaseSequence: 0}}, some(2, stamp)...))
	l.do(l.version(0, 3), req)
	req.TransactionID = ptr("nobody")
	l.do(l.version(0, 3), req)
	req = produceRequest(1, wide, 0, plain(1, stamp))
	req.TimeoutMillis = -1
	l.do(l.version(0, 3), req)
	req.TimeoutMillis = 0
	l.do(l.version(0, 3), req)
	// What is there after all that.
	l.do(l.version(1, 10), fetchRequest(fetchAt{topic, 0, 0}, fetchAt{wide, 0, 0}, fetchAt{wide, 1, 0}, fetchAt{wide, 2, 0}))
}

// produceSettingsPlay sends records to topics whose settings judge or change them.
func produceSettingsPlay(l *lane) {
	for _, s := range [][]string{
		{"message.timestamp.type", "LogAppendTime"},
		{"message.timestamp.type", "LogAppendTime", "compression.type", "gzip"},
		{"compression.type", "gzip"}, {"compression.type", "snappy"}, {"compression.type", "lz4"}, {"compression.type", "zstd"}, {"compression.type", "uncompressed"},
		{"max.message.bytes", "200"},
		{"cleanup.policy", "compact"},
		{"message.timestamp.before.max.ms", "1000"},
		{"message.timestamp.after.max.ms", "1000"},
		{"min.insync.replicas", "2"},
		{"segment.bytes", "1048576"},
	} {
		topic := l.fresh("s")
		l.createTopic(topic, 1, s...)
		now := l.started.UnixMilli()
		for _, b := range [][]byte{
			plain(3, stamp), batch(record.BuilderOptions{Codec: record.LZ4}, some(30, stamp)...), batch(record.BuilderOptions{Codec: record.Zstd}, some(3, stamp)...),
			batchKeyed(3), batch(plainOptions, rec{stamp: now + 600000, key: []byte("k")}, rec{stamp: now - 600000, key: []byte("k")}),
			batch(plainOptions, rec{stamp: stamp, key: []byte("k"), value: []byte("v")}, rec{stamp: stamp, value: []byte("without key")}),
			batch(plainOptions, rec{stamp: stamp, key: []byte("k"), value: make([]byte, 300)}),
			batch(record.BuilderOptions{Codec: record.Gzip}, rec{stamp: stamp, key: []byte("k"), value: make([]byte, 300)}),
			batch(plainOptions, rec{stamp: -1, key: []byte("k")}),
			append(plain(1, stamp), plain(1, stamp)...),
		} {
			l.do(l.version(0, 3), produceRequest(pick[int16](l, -1, 1), topic, 0, b))
		}
		if s[1] != "LogAppendTime" {
			l.do(l.version(2, 7), offsetsRequest(topic, -3))
		}
		l.do(l.version(1, 10), fetchRequest(fetchAt{topic, 0, 0}))
		l.do(l.version(2, 1), offsetsRequest(topic, -1))
		l.do(l.version(2, 1), offsetsRequest(topic, stamp+1))
	}
}

func idempotencePlay(l *lane) {
	topic, other := l.fresh("i"), l.fresh("i")
	l.createTopic(topic, 1)
	l.createTopic(other, 1)
	name := l.fresh("producer")
	initID := func(change func(*kmsg.InitProducerIDRequest)) sent {
		req := kmsg.NewPtrInitProducerIDRequest()
		req.TransactionTimeoutMillis = 60000
		if change != nil {
			change(req)
		}
		return l.do(l.version(22), req)
	}
	got := initID(nil)
	l.keep("producer:"+name, got, func(resp kmsg.Response) int64 { return resp.(*kmsg.InitProducerIDResponse).ProducerID })
	id := producer(name)
	send := func(topic string, id int64, epoch int16, sequence int32, n int) {
		l.do(l.version(0, 3), produceRequest(-1, topic, 0, idempotent(id, epoch, sequence, n)))
	}
	send(topic, id, 0, 0, 2)
	send(topic, id, 0, 0, 2) // again
	send(topic, id, 0, 2, 1)
	send(topic, id, 0, 3, 1)
	send(topic, id, 0, 4, 1)
	send(topic, id, 0, 5, 1)
	send(topic, id, 0, 6, 1)
	send(topic, id, 0, 3, 1)  // one of the last five
	send(topic, id, 0, 0, 2)  // no longer
	send(topic, id, 0, 6, 2)  // begins like one of them
	send(topic, id, 0, 9, 1)  // a gap
	send(topic, id, 0, 1, 1)  // long past
	send(topic, id, 0, 7, 1)  // goes on
	send(topic, id, 2, 5, 1)  // a new epoch that does not begin at 0
	send(topic, id, 1, 0, 1)  // a new epoch
	send(topic, id, 0, 8, 1)  // the old one
	send(topic, id, 1, 1, 1)  // goes on
	send(topic, id, 1, -1, 1) // no sequence
	send(topic, id, -1, 0, 1) // no epoch
	send(other, id, 1, 7, 1)  // not from 0 where the producer is new
	send(other, id, 1, 8, 1)
	send(other, 700000+int64(l.rng.IntN(1000)), 0, 3, 1)
	send(other, 800000+int64(l.rng.IntN(1000)), 5, 0, 1)
	send(other, id, 1, math.MaxInt32, 1)
	two := append(idempotent(id, 1, 9, 1), idempotent(id, 1, 10, 1)...)
	l.do(l.version(0, 3), produceRequest(-1, other, 0, two))
	wrap := l.fresh("producer")
	l.keep("producer:"+wrap, initID(nil), func(resp kmsg.Response) int64 { return resp.(*kmsg.InitProducerIDResponse).ProducerID })
	send(other, producer(wrap), 0, math.MaxInt32-1, 2)
	send(other, producer(wrap), 0, 0, 2)
	send(other, producer(wrap), 0, 2, 1)
	for codec := record.None; codec <= record.Zstd; codec++ {
		l.do(l.version(0, 3), produceRequest(-1, other, 0, batch(record.BuilderOptions{Codec: codec, Producer: &record.Producer{ID: producer(wrap), Epoch: 0, BaseSequence: 3 + 2*int32(codec)}}, some(2, stamp)...)))
	}
	l.do(l.version(1, 10), fetchRequest(fetchAt{topic, 0, 0}, fetchAt{other, 0, 0}))
	// Epochs of producers without a transactional id.
	for _, pair := range [][2]int64{{-1, -1}, {5, -1}, {-1, 5}, {5, 5}, {0, 0}, {id, 0}, {-2, -2}} {
		initID(func(req *kmsg.InitProducerIDRequest) { req.ProducerID, req.ProducerEpoch = pair[0], int16(pair[1]) })
	}
	for _, timeout := range []int32{0, -1, 1 << 30} {
		initID(func(req *kmsg.InitProducerIDRequest) { req.TransactionTimeoutMillis = timeout })
	}
	initID(func(req *kmsg.InitProducerIDRequest) { req.TransactionalID = ptr("") })
}

func fetchPlay(l *lane) {
	topic, wide, empty := l.fresh("f"), l.fresh("wide"), l.fresh("empty")
	l.createTopic(topic, 1)
	l.createTopic(wide, 3)
	l.createTopic(empty, 1)
	for i := range 6 {
		l.do(9, produceRequest(-1, topic, 0, plain(10, stamp+int64(i)*100)))
	}
	for p := range int32(3) {
		l.do(9, produceRequest(-1, wide, p, batch(record.BuilderOptions{Codec: record.Codec(p)}, some(20, stamp)...)))
		l.do(9, produceRequest(-1, wide, p, plain(20, stamp)))
	}
	for _, at := range []int64{0, 1, 9, 10, 11, 59, 60, 61, -1, -2, math.MaxInt64, math.MinInt64} {
		l.do(l.version(1), fetchRequest(fetchAt{topic, 0, at}))
	}
	l.do(l.version(1), fetchRequest(fetchAt{empty, 0, 0}, fetchAt{empty, 0, 1}))
	for _, size := range []int32{0, 1, 60, 61, 250, 400, 1000, -1, math.MaxInt32, math.MinInt32} {
		req := fetchRequest(fetchAt{topic, 0, 0}, fetchAt{wide, 0, 0}, fetchAt{wide, 1, 0})
		req.MaxBytes = size
		l.do(l.version(1), req)
		req = fetchRequest(fetchAt{topic, 0, 0}, fetchAt{wide, 0, 0}, fetchAt{wide, 1, 0}, fetchAt{wide, 2, 0})
		for i := range req.Topics {
			for j := range req.Topics[i].Partitions {
				req.Topics[i].Partitions[j].PartitionMaxBytes = size
			}
		}
		l.do(l.version(1), req)
	}
	nameless := fetchRequest(fetchAt{topic, 0, 0}, fetchAt{wide, 0, 0}, fetchAt{wide, 1, 0})
	nameless.Topics[1].TopicID = [16]byte{}
	l.do(l.version(1, 13), nameless)
	for _, least := range []int32{-1, 0, 1, 100, math.MaxInt32} {
		req := fetchRequest(fetchAt{topic, 0, 0})
		req.MinBytes, req.MaxWaitMillis = least, 20
		l.do(l.version(1), req)
		req = fetchRequest(fetchAt{topic, 0, 60})
		req.MinBytes, req.MaxWaitMillis = least, pick[int32](l, 0, -1, 20)
		l.do(l.version(1), req)
	}
	for _, isolation := range []int8{0, 1, 2, -1, 127} {
		req := fetchRequest(fetchAt{topic, 0, 0})
		req.IsolationLevel = isolation
		l.do(l.version(1), req)
	}
	for _, replica := range []int32{-1, -2, -3, 0, 1, 2, 99} {
		req := fetchRequest(fetchAt{topic, 0, 0})
		req.ReplicaID = replica
		req.ReplicaState.ID, req.ReplicaState.Epoch = replica, -1
		l.do(l.version(1), req)
	}
	elsewhere := fetchRequest(fetchAt{topic, 0, 0})
	elsewhere.ReplicaState.ID = 99
	l.do(l.version(1, 16), elsewhere)
	// Unknown and bad ones beside good ones, and the same one twice.
	for range 4 {
		l.do(l.version(1), fetchRequest(fetchAt{"no-such-topic", 0, 0}, fetchAt{topic, 0, 55}, fetchAt{topic, 1, 0}, fetchAt{topic, -1, 0}, fetchAt{"bad name", 0, 0}, fetchAt{"", 0, 0}, fetchAt{wide, 2, 30}, fetchAt{"__cluster_metadata", 0, 0}))
		l.do(l.version(1), fetchRequest(fetchAt{topic, 0, 50}, fetchAt{topic, 0, 40}, fetchAt{wide, 0, 30}))
	}
	zero := fetchRequest(fetchAt{topic, 0, 50}, fetchAt{wide, 0, 30})
	zero.Topics[0].TopicID = [16]byte{}
	l.do(l.version(1, 13), zero)
	for _, epochs := range [][2]int32{{0, -1}, {0, 0}, {1, -1}, {-1, 0}, {-1, 5}, {-2, -2}, {math.MaxInt32, 0}} {
		req := fetchRequest(fetchAt{topic, 0, 60})
		req.Topics[0].Partitions[0].CurrentLeaderEpoch, req.Topics[0].Partitions[0].LastFetchedEpoch = epochs[0], epochs[1]
		l.do(l.version(1, 9), req)
		req.Topics[0].Partitions[0].FetchOffset = 70
		l.do(l.version(1, 9), req)
	}
	l.do(l.version(1), fetchRequest())
	rack := fetchRequest(fetchAt{topic, 0, 55})
	rack.Rack = "rack-a"
	l.do(l.version(1, 11), rack)
}

func sessionsPlay(l *lane) {
	topic, wide := l.fresh("f"), l.fresh("wide")
	l.createTopic(topic, 1)
	l.createTopic(wide, 3)
	l.do(9, produceRequest(-1, topic, 0, plain(3, stamp)))
	l.do(9, produceRequest(-1, wide, 0, plain(3, stamp)))
	v := l.version(1, 7)
	name := l.fresh("session")
	ask := func(version int16, id int32, epoch int32, at ...fetchAt) sent {
		req := fetchRequest(at...)
		req.SessionID, req.SessionEpoch = id, epoch
		return l.do(version, req)
	}
	forget := func(version int16, id int32, epoch int32, topic string, partitions ...int32) {
		req := fetchRequest()
		req.SessionID, req.SessionEpoch = id, epoch
		t := kmsg.NewFetchRequestForgottenTopic()
		t.Topic, t.TopicID, t.Partitions = topic, topicID(topic), partitions
		req.ForgottenTopics = append(req.ForgottenTopics, t)
		l.do(version, req)
	}
	got := ask(v, 0, 0, fetchAt{topic, 0, 0}, fetchAt{wide, 0, 0}, fetchAt{wide, 1, 0}, fetchAt{"no-such-topic", 0, 0})
	l.keep("session:"+name, got, func(resp kmsg.Response) int64 { return int64(resp.(*kmsg.FetchResponse).SessionID) })
	id := session(name)
	ask(v, id, 1)
	ask(v, id, 2, fetchAt{topic, 0, 3}, fetchAt{wide, 0, 3})
	ask(v, id, 3)
	l.do(9, produceRequest(-1, topic, 0, plain(2, stamp)))
	ask(v, id, 4)
	ask(v, id, 5, fetchAt{topic, 0, 5}, fetchAt{wide, 2, 0})
	ask(v, id, 6, fetchAt{topic, 0, 99})
	ask(v, id, 7)
	forget(v, id, 8, wide, 2)
	forget(v, id, 9, wide, 7)
	forget(v, id, 10, "no-such-topic", 0)
	ask(v, id, 11, fetchAt{topic, 0, 5}, fetchAt{"bad name", 0, 0})
	ask(v, id, 11) // an epoch twice
	ask(v, id, 12)
	ask(v, id, 14)     // too far
	ask(v, id, 13)     // and the right one
	ask(v, id+7777, 1) // nobody's
	ask(v, 0, 1)       // no session, but an epoch
	ask(v, 0, -2)      // below the last
	ask(v, id, -5)     // below zero
	ask(v, math.MinInt32, -1, fetchAt{topic, 0, 0})
	ask(v, 99999999, 0) // a new one in place of nobody's
	other := ask(v, id, 0, fetchAt{topic, 0, 0})
	l.keep("session:"+name+"b", other, func(resp kmsg.Response) int64 { return int64(resp.(*kmsg.FetchResponse).SessionID) })
	ask(v, id, 14)
	ask(v, session(name+"b"), 1, fetchAt{topic, 0, 5})
	ask(v, session(name+"b"), -1, fetchAt{topic, 0, 0}) // ends it
	ask(v, session(name+"b"), 2)
	// From names to ids, and back.
	third := ask(l.version(1, 7, 12), 0, 0, fetchAt{topic, 0, 0}, fetchAt{wide, 1, 0})
	l.keep("session:"+name+"c", third, func(resp kmsg.Response) int64 { return int64(resp.(*kmsg.FetchResponse).SessionID) })
	ask(l.version(1, 13), session(name+"c"), 1)
	ask(l.version(1, 13), session(name+"c"), 1, fetchAt{topic, 0, 5})
	ask(l.version(1, 7, 12), session(name+"c"), 2)
	fourth := ask(l.version(1, 13), 0, 0, fetchAt{topic, 0, 0}, fetchAt{wide, 1, 0}, fetchAt{"never-was", 0, 0})
	l.keep("session:"+name+"d", fourth, func(resp kmsg.Response) int64 { return int64(resp.(*kmsg.FetchResponse).SessionID) })
	ask(l.version(1, 13), session(name+"d"), 1)
	ask(l.version(1, 7, 12), session(name+"d"), 2)
	// The topic goes away under a session.
	gone := l.fresh("gone")
	l.createTopic(gone, 1)
	l.do(9, produceRequest(-1, gone, 0, plain(3, stamp)))
	fifth := ask(v, 0, 0, fetchAt{gone, 0, 0}, fetchAt{topic, 0, 0})
	l.keep("session:"+name+"e", fifth, func(resp kmsg.Response) int64 { return int64(resp.(*kmsg.FetchResponse).SessionID) })
	l.finish(l.do(l.version(20), deleteRequest(gone, false)))
	ask(v, session(name+"e"), 1)
	ask(v, session(name+"e"), 2)
	l.createTopic(gone, 1)
	ask(v, session(name+"e"), 3)
	ask(v, session(name+"e"), 4)
}

func listOffsetsPlay(l *lane) {
	topic, stamped, empty, zipped := l.fresh("o"), l.fresh("o"), l.fresh("o"), l.fresh("o")
	l.createTopic(topic, 3)
	l.createTopic(stamped, 1, "message.timestamp.type", "LogAppendTime")
	l.createTopic(empty, 1)
	l.createTopic(zipped, 1)
	l.do(9, produceRequest(-1, topic, 0, plain(10, stamp)))
	l.do(9, produceRequest(-1, topic, 0, batch(plainOptions, rec{stamp: stamp + 500}, rec{stamp: stamp + 100}, rec{stamp: stamp + 500})))
	l.do(9, produceRequest(-1, topic, 0, batch(plainOptions, rec{stamp: stamp + 50}, rec{stamp: stamp + 300})))
	l.do(9, produceRequest(-1, topic, 1, batch(plainOptions, rec{stamp: -1})))
	l.do(9, produceRequest(-1, stamped, 0, plain(3, stamp)))
	for codec := record.Gzip; codec <= record.Zstd; codec++ {
		l.do(9, produceRequest(-1, zipped, 0, batch(record.BuilderOptions{Codec: codec}, some(10, stamp+int64(codec)*100)...)))
	}
	stamps := []int64{-1, -2, -3, -4, -5, -6, -7, 0, 1, stamp - 1, stamp, stamp + 5, stamp + 9, stamp + 10, stamp + 50, stamp + 100, stamp + 101, stamp + 205, stamp + 299, stamp + 301, stamp + 409, stamp + 410, stamp + 500, stamp + 501, math.MaxInt64, math.MinInt64}
	for _, at := range stamps {
		for _, name := range []string{topic, stamped, empty, zipped} {
			req := offsetsRequest(name, at)
			req.IsolationLevel = int8(l.rng.IntN(2))
			req.TimeoutMillis = 1000
			l.do(l.version(2), req)
		}
	}
	l.do(l.version(2), offsetsRequest(topic, -1, -1, -1, -1))
	twice := offsetsRequest(topic, -1, -2)
	twice.Topics[0].Partitions[1].Partition = 0
	l.do(l.version(2), twice)
	twice = offsetsRequest(topic, -1)
	twice.Topics = append(twice.Topics, offsetsRequest(topic, -2).Topics[0], offsetsRequest("no-such-topic", -1).Topics[0], offsetsRequest("bad name", -1).Topics[0], offsetsRequest("", -1).Topics[0], offsetsRequest(empty, -1).Topics[0])
	l.do(l.version(2), twice)
	for _, p := range []int32{-1, 3, math.MaxInt32} {
		req := offsetsRequest(topic, -1)
		req.Topics[0].Partitions[0].Partition = p
		l.do(l.version(2), req)
	}
	for _, replica := range []int32{-1, -2, -3, 0, 1, 9} {
		req := offsetsRequest(topic, -1)
		req.ReplicaID = replica
		l.do(l.version(2), req)
	}
	for _, isolation := range []int8{0, 1, 2, -1} {
		req := offsetsRequest(topic, -1)
		req.IsolationLevel = isolation
		l.do(l.version(2, 2), req)
	}
	for _, epoch := range []int32{-1, 0, 1, -2, math.MaxInt32} {
		for _, at := range []int64{-1, -2, stamp} {
			req := offsetsRequest(topic, at)
			req.Topics[0].Partitions[0].CurrentLeaderEpoch = epoch
			l.do(l.version(2, 4), req)
		}
	}
	l.do(l.version(2), kmsg.NewPtrListOffsetsRequest())
}

func epochsPlay(l *lane) {
	topic, empty := l.fresh("e"), l.fresh("e")
	l.createTopic(topic, 2)
	l.createTopic(empty, 1)
	l.do(9, produceRequest(-1, topic, 0, plain(4, stamp)))
	ask := func(topic string, partition, current, asked int32) {
		req := kmsg.NewPtrOffsetForLeaderEpochRequest()
		req.ReplicaID = pick[int32](l, -1, -2, 1)
		t := kmsg.NewOffsetForLeaderEpochRequestTopic()
		t.Topic = topic
		p := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
		p.Partition, p.CurrentLeaderEpoch, p.LeaderEpoch = partition, current, asked
		t.Partitions = append(t.Partitions, p)
		req.Topics = append(req.Topics, t)
		l.do(l.version(23), req)
	}
	for _, current := range []int32{-1, 0, 1, -2} {
		for _, asked := range []int32{-1, 0, 1, -2, math.MaxInt32} {
			ask(topic, 0, current, asked)
			ask(empty, 0, current, asked)
		}
	}
	for _, name := range []string{"no-such-topic", "", "bad name", "__cluster_metadata"} {
		ask(name, 0, -1, 0)
	}
	ask(topic, 5, -1, 0)
	ask(topic, -1, -1, 0)
	l.do(l.version(23), kmsg.NewPtrOffsetForLeaderEpochRequest())
}
