package server

import (
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/coordinator"
	"github.com/stelelog/stele/internal/security"
	"github.com/stelelog/stele/internal/txn"
)

// markersAtOnce bounds the markers that wait for their acknowledgement together.
const markersAtOnce = 1000

// markedPartition is where a marker goes.
type markedPartition struct {
	producerID int64
	topic      string
	partition  int32
}

// writeTxnMarkers ends transactions in partitions led here, and answers when the
// in-sync replicas have the markers: what transaction coordinators ask for, and
// administrators who abort a transaction that hangs.
//
// v1 flexible. v2 says which version of transactions the marker is of (KIP-1228).
func (a *brokerAPI) writeTxnMarkers(r *Request, req *kmsg.WriteTxnMarkersRequest) *kmsg.WriteTxnMarkersResponse {
	w := markerWriter{
		write: func(markers []coordinator.Marker) [][]error { return a.Txn.AppendMarkers(r.Context(), markers) },
		codes: map[markedPartition]int16{}, waiting: map[markedPartition]bool{},
	}
	allowed := r.mayCluster(security.Alter) || r.mayCluster(security.ClusterAction)
	for i := range req.Markers {
		if allowed {
			w.add(&req.Markers[i], a.mayMark)
		} else {
			eachMarked(&req.Markers[i], func(p markedPartition) { w.codes[p] = kerr.ClusterAuthorizationFailed.Code })
		}
	}
	w.flush()
	return markersResponse(req, w.codes)
}

// eachMarked calls fn with the partitions of a marker, in order.
func eachMarked(m *kmsg.WriteTxnMarkersRequestMarker, fn func(markedPartition)) {
	for i := range m.Topics {
		for _, partition := range m.Topics[i].Partitions {
			fn(markedPartition{m.ProducerID, m.Topics[i].Topic, partition})
		}
	}
}

// markerWriter writes the markers of a request, many together: they wait for their replicas at the same time.
type markerWriter struct {
	write   func([]coordinator.Marker) [][]error
	codes   map[markedPartition]int16 // what became of each
	markers []coordinator.Marker      // to be written
	waiting map[markedPartition]bool  // where those go
}

// add takes one marker for all its partitions, once for one that is named twice, unless refuse says what is wrong with it.
func (w *markerWriter) add(m *kmsg.WriteTxnMarkersRequestMarker, refuse func(*kmsg.WriteTxnMarkersRequestMarker, markedPartition) *kerr.Error) {
	marker := coordinator.Marker{
		ProducerID: m.ProducerID, ProducerEpoch: m.ProducerEpoch, Commit: m.Committed, CoordinatorEpoch: m.CoordinatorEpoch, Version: int16(m.TransactionVersion),
	}
	take := func() {
		if len(marker.Partitions) > 0 {
			w.markers = append(w.markers, marker)
			marker.Partitions = nil
		}
	}
	named := map[markedPartition]bool{}
	eachMarked(m, func(p markedPartition) {
		if named[p] {
			return
		}
		named[p] = true
		if w.waiting[p] || len(w.waiting) == markersAtOnce { // two of one producer are written in their order
			take()
			w.flush()
		}
		if err := refuse(m, p); err != nil {
			w.codes[p] = err.Code
			return
		}
		w.waiting[p] = true
		marker.Partitions = append(marker.Partitions, txn.TopicPartition{Topic: p.topic, Partition: p.partition})
	})
	take()
}

// flush writes what was added.
func (w *markerWriter) flush() {
	if len(w.markers) == 0 {
		return
	}
	for i, errs := range w.write(w.markers) {
		for k, err := range errs {
			tp := w.markers[i].Partitions[k]
			w.codes[markedPartition{w.markers[i].ProducerID, tp.Topic, tp.Partition}] = markerCode(tp.Topic, err)
		}
	}
	w.markers = nil
	clear(w.waiting)
}

// markerCode is what a transaction coordinator is told of one partition: a group coordinator that
// is not ready is to be looked for anew.
func markerCode(topic string, err error) int16 {
	code := errorCode(err)
	if topic == coordinator.GroupTopic {
		switch code {
		case kerr.CoordinatorLoadInProgress.Code, kerr.CoordinatorNotAvailable.Code, kerr.NotCoordinator.Code:
			return kerr.NotLeaderForPartition.Code
		}
	}
	return code
}

// mayMark looks at what needs no log.
func (a *brokerAPI) mayMark(m *kmsg.WriteTxnMarkersRequestMarker, p markedPartition) *kerr.Error {
	if m.ProducerID < 0 || m.ProducerEpoch < 0 || m.TransactionVersion < 0 {
		return kerr.InvalidRequest
	}
	if _, err := a.Replicas.Partition(p.topic, p.partition); err != nil {
		return kerr.UnknownTopicOrPartition // whatever the reason that it is not here: its coordinator looks for the leader anew
	}
	return nil
}

// markersResponse answers by producer id, in the order of the request: two markers of
// one producer have one answer, as in Kafka.
func markersResponse(req *kmsg.WriteTxnMarkersRequest, codes map[markedPartition]int16) *kmsg.WriteTxnMarkersResponse {
	resp := req.ResponseKind().(*kmsg.WriteTxnMarkersResponse)
	type inProducer struct {
		producerID int64
		topic      string
	}
	producers, topics, done := map[int64]int{}, map[inProducer]int{}, map[markedPartition]bool{}
	for i := range req.Markers {
		eachMarked(&req.Markers[i], func(p markedPartition) {
			if done[p] {
				return
			}
			done[p] = true
			at, ok := producers[p.producerID]
			if !ok {
				at = len(resp.Markers)
				producers[p.producerID] = at
				marker := kmsg.NewWriteTxnMarkersResponseMarker()
				marker.ProducerID = p.producerID
				resp.Markers = append(resp.Markers, marker)
			}
			marker := &resp.Markers[at]
			topic := inProducer{p.producerID, p.topic}
			if at, ok = topics[topic]; !ok {
				at = len(marker.Topics)
				topics[topic] = at
				t := kmsg.NewWriteTxnMarkersResponseMarkerTopic()
				t.Topic = p.topic
				marker.Topics = append(marker.Topics, t)
			}
			out := kmsg.NewWriteTxnMarkersResponseMarkerTopicPartition()
			out.Partition, out.ErrorCode = p.partition, codes[p]
			marker.Topics[at].Partitions = append(marker.Topics[at].Partitions, out)
		})
	}
	return resp
}
