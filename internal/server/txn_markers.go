package server

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/replica"
	"github.com/stelelog/stele/internal/security"
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
	codes := map[markedPartition]int16{}
	allowed := r.mayCluster(security.Alter) || r.mayCluster(security.ClusterAction)
	for i := range req.Markers {
		if allowed {
			a.writeMarker(r.Context(), &req.Markers[i], codes)
		} else {
			eachMarked(&req.Markers[i], func(p markedPartition) { codes[p] = kerr.ClusterAuthorizationFailed.Code })
		}
	}
	return markersResponse(req, codes)
}

// eachMarked calls fn with the partitions of a marker, in order.
func eachMarked(m *kmsg.WriteTxnMarkersRequestMarker, fn func(markedPartition)) {
	for i := range m.Topics {
		for _, partition := range m.Topics[i].Partitions {
			fn(markedPartition{m.ProducerID, m.Topics[i].Topic, partition})
		}
	}
}

// writeMarker writes one marker to all its partitions, once to one that is named twice,
// and puts what became of it in codes.
func (a *brokerAPI) writeMarker(ctx context.Context, m *kmsg.WriteTxnMarkersRequestMarker, codes map[markedPartition]int16) {
	marker := record.EndTxnMarker{Commit: m.Committed, ProducerID: m.ProducerID, ProducerEpoch: m.ProducerEpoch, CoordinatorEpoch: m.CoordinatorEpoch}
	var waiting []markedPartition
	write := func() {
		a.appendMarkers(ctx, marker, m.TransactionVersion >= 2, waiting, codes)
		waiting = waiting[:0]
	}
	named := map[markedPartition]bool{}
	eachMarked(m, func(p markedPartition) {
		if named[p] {
			return
		}
		named[p] = true
		if err := a.mayMark(m, p); err != nil {
			codes[p] = err.Code
			return
		}
		if waiting = append(waiting, p); len(waiting) == markersAtOnce {
			write()
		}
	})
	write()
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

func (a *brokerAPI) appendMarkers(ctx context.Context, m record.EndTxnMarker, v2 bool, to []markedPartition, codes map[markedPartition]int16) {
	if len(to) == 0 {
		return
	}
	now := a.Now().UnixMilli()
	appends := replica.ProduceRequest{Acks: -1, Timeout: a.Config.Duration("request.timeout.ms"), Origin: log.OriginCoordinator, TxnV2: v2}
	for _, p := range to {
		appends.Partitions = append(appends.Partitions, replica.ProducePartition{Topic: p.topic, Partition: p.partition, Records: record.NewEndTxnBatch(m, now)})
	}
	delayed := a.Replicas.Produce(appends)
	select {
	case <-delayed.Done():
		for i, result := range delayed.Results() {
			codes[to[i]] = errorCode(result.Err)
		}
	case <-ctx.Done():
		for _, p := range to {
			codes[p] = kerr.RequestTimedOut.Code
		}
	}
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
