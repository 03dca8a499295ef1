//go:build interop

package differential

import (
	"math"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/record"
)

// Transactions at the log: their markers, and what a partition remembers of producers. There is no coordinator on one of
// the two, and none can be asked on the other for the transaction of a made up producer: so no transaction is open here.

func init() {
	scenarios = append(scenarios,
		scenario{name: "markers", needs: []int16{27, 61, 0, 1, 2}, turns: 3, play: markersPlay},
		scenario{name: "producers", needs: []int16{61, 0, 22}, turns: 3, play: producersPlay},
	)
	generators[27] = func(l *lane, f *fixture, version int16) kmsg.Request {
		first := markerOf(l.anybody(), int16(l.rng.IntN(5)), l.chance(50), f.one, 0)
		addMarked(&first, f.three, []int32{0, 1, 2}[:1+l.rng.IntN(3)]...)
		markers := []kmsg.WriteTxnMarkersRequestMarker{first}
		if l.chance(40) {
			markers = append(markers, markerOf(l.anybody(), 0, l.chance(50), f.three, int32(l.rng.IntN(3))))
		}
		req := markersRequest(markers...)
		for i := range req.Markers {
			req.Markers[i].CoordinatorEpoch, req.Markers[i].TransactionVersion = int32(l.rng.IntN(3)), int8(l.rng.IntN(3))
		}
		return req
	}
	generators[61] = func(l *lane, f *fixture, version int16) kmsg.Request {
		if l.chance(30) {
			l.prepare(func() {
				l.do(l.version(27), markersRequest(markerOf(l.anybody(), 1, true, f.three, 0, 1)))
				l.do(l.version(0, 3), produceRequest(-1, f.three, 1, idempotent(l.anybody(), 0, 0, 2)))
			})
		}
		req := describeProducers(f.three, []int32{0, 1, 2}[:1+l.rng.IntN(3)]...)
		if l.chance(40) {
			req.Topics = append(req.Topics, describeProducers(f.one, 0).Topics...)
		}
		return req
	}
	readers[61] = true
}

// anybody is a producer id that neither server gives out, nor any lane has twice.
func (l *lane) anybody() int64 { return 1<<50 + l.rng.Int64N(1<<50) }

func markerOf(id int64, epoch int16, commit bool, topic string, partitions ...int32) kmsg.WriteTxnMarkersRequestMarker {
	m := kmsg.NewWriteTxnMarkersRequestMarker()
	m.ProducerID, m.ProducerEpoch, m.Committed = id, epoch, commit
	addMarked(&m, topic, partitions...)
	return m
}

func addMarked(m *kmsg.WriteTxnMarkersRequestMarker, topic string, partitions ...int32) {
	t := kmsg.NewWriteTxnMarkersRequestMarkerTopic()
	t.Topic, t.Partitions = topic, partitions
	m.Topics = append(m.Topics, t)
}

func markersRequest(markers ...kmsg.WriteTxnMarkersRequestMarker) *kmsg.WriteTxnMarkersRequest {
	req := kmsg.NewPtrWriteTxnMarkersRequest()
	req.Markers = markers
	return req
}

func describeProducers(topic string, partitions ...int32) *kmsg.DescribeProducersRequest {
	req := kmsg.NewPtrDescribeProducersRequest()
	t := kmsg.NewDescribeProducersRequestTopic()
	t.Topic, t.Partitions = topic, partitions
	req.Topics = append(req.Topics, t)
	return req
}

func markersPlay(l *lane) {
	topic, wide := l.fresh("m"), l.fresh("wide")
	l.createTopic(topic, 1, "segment.ms", "9000000000000000000")
	l.createTopic(wide, 3)
	id := l.anybody()
	end := func(epoch int16, coordinator int32, version int8) {
		m := markerOf(id, epoch, l.chance(50), topic, 0)
		m.CoordinatorEpoch, m.TransactionVersion = coordinator, version
		l.do(l.version(27), markersRequest(m))
		l.do(l.version(61), describeProducers(topic, 0))
	}
	// Of a producer that is not known, and then is: epochs and coordinators older, equal and newer.
	for _, at := range [][2]int32{{3, 5}, {3, 5}, {3, 4}, {2, 5}, {2, 6}, {4, 5}, {4, 6}, {3, 7}, {math.MaxInt16, 7}, {math.MaxInt16, 7}, {0, 8}} {
		end(int16(at[0]), at[1], 0)
	}
	id = l.anybody()
	for _, at := range [][3]int32{{3, 0, 2}, {3, 0, 2}, {3, 1, 1}, {2, 1, 2}, {4, 0, 2}, {4, 1, 2}, {4, 1, 3}, {5, 1, -1}, {5, -1, 0}, {6, math.MaxInt32, 2}} {
		end(int16(at[0]), at[1], int8(at[2]))
	}
	// Of a producer that has written: an older epoch is refused, an equal one keeps its sequences, a newer one begins anew.
	id = l.anybody()
	send := func(epoch int16, sequence int32) {
		l.do(l.version(0, 3), produceRequest(-1, topic, 0, idempotent(id, epoch, sequence, 2)))
	}
	send(4, 0)
	end(3, 0, 0)
	end(4, 0, 0)
	send(4, 2)
	end(5, 0, 2)
	send(5, 2)
	send(5, 0)
	send(4, 4)
	l.do(l.version(1, 10), fetchRequest(fetchAt{topic, 0, 0}))
	committed := fetchRequest(fetchAt{topic, 0, 0})
	committed.IsolationLevel = 1
	l.do(l.version(1, 10), committed)
	stable := offsetsRequest(topic, -1)
	stable.IsolationLevel = 1
	l.do(l.version(2, 2), stable)
	// Several markers, topics and partitions; what is not there; nothing at all; who cannot be.
	several := markerOf(l.anybody(), 0, true, wide, 0, 1, 2, 3, -1)
	addMarked(&several, topic, 0)
	addMarked(&several, l.fresh("nowhere"), 0, 1)
	addMarked(&several, "no such topic", 0)
	addMarked(&several, "", 0)
	addMarked(&several, "__cluster_metadata", 0)
	l.do(l.version(27), markersRequest(several, markerOf(l.anybody(), 0, false, wide, 1), markerOf(several.ProducerID, 0, true, wide, 2, 7)))
	l.do(l.version(27), markersRequest())
	l.do(l.version(27), markersRequest(markerOf(l.anybody(), 0, true, wide)))
	l.do(l.version(27), markersRequest(markerOf(-1, 0, true, wide, 0)))
	l.do(l.version(27), markersRequest(markerOf(l.anybody(), -1, true, wide, 0)))
	l.do(l.version(61), describeProducers(wide, 0, 1, 2))
	apart := l.fresh("apart") // what is written besides one that cannot be differs
	l.createTopic(apart, 1)
	l.do(l.version(27), markersRequest(markerOf(l.anybody(), -1, true, apart, 0), markerOf(l.anybody(), 0, true, apart, 0)))
	// A topic that is packed, and one with the server's time.
	for _, settings := range [][]string{{"compression.type", "gzip"}, {"message.timestamp.type", "LogAppendTime"}, {"cleanup.policy", "compact"}} {
		other := l.fresh("other")
		l.createTopic(other, 1, settings...)
		l.do(l.version(27), markersRequest(markerOf(l.anybody(), 0, true, other, 0)))
		l.do(l.version(1, 10), fetchRequest(fetchAt{other, 0, 0}))
	}
}

func producersPlay(l *lane) {
	topic, wide := l.fresh("d"), l.fresh("wide")
	l.createTopic(topic, 1)
	l.createTopic(wide, 3)
	describe := func() { l.do(l.version(61), describeProducers(topic, 0)) }
	describe()
	name := l.fresh("id")
	ids := kmsg.NewPtrInitProducerIDRequest()
	ids.TransactionTimeoutMillis = 60000
	l.keep("producer:"+name, l.do(l.version(22), ids), func(resp kmsg.Response) int64 { return resp.(*kmsg.InitProducerIDResponse).ProducerID })
	for sequence := range int32(7) {
		l.do(l.version(0, 3), produceRequest(-1, topic, 0, idempotent(producer(name), 0, sequence, 1)))
		if sequence%3 == 0 {
			describe()
		}
	}
	l.do(l.version(0, 3), produceRequest(-1, topic, 0, idempotent(producer(name), 3, 0, 4)))
	l.do(l.version(0, 3), produceRequest(-1, topic, 0, idempotent(l.anybody(), 2, 5, 1)))
	l.do(l.version(0, 3), produceRequest(-1, topic, 0, batch(record.BuilderOptions{Producer: &record.Producer{ID: l.anybody(), Epoch: 0, BaseSequence: math.MaxInt32}}, some(2, stamp)...)))
	l.do(l.version(0, 3), produceRequest(-1, topic, 0, plain(2, stamp)))
	describe()
	l.do(l.version(61), describeProducers(wide, 0, 1, 2, 3, -1, math.MaxInt32))
	l.do(l.version(61), describeProducers(topic))
	l.do(l.version(61), kmsg.NewPtrDescribeProducersRequest())
	for _, odd := range []string{"", "no such topic", "..", l.fresh("nowhere"), "__consumer_offsets", "__cluster_metadata"} {
		req := describeProducers(odd, 0, 1)
		req.Topics = append(req.Topics, describeProducers(topic, 0).Topics...)
		l.do(l.version(61), req)
	}
}
