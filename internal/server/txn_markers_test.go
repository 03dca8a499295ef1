package server

import (
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/coordinator"
)

// The markers of a request are written together, up to a bound of partitions; two of one producer for one partition one
// after the other, and the answer is the later one's.
func TestMarkersAreWrittenTogether(t *testing.T) {
	t.Parallel()
	var calls [][]coordinator.Marker
	w := markerWriter{codes: map[markedPartition]int16{}, waiting: map[markedPartition]bool{}}
	w.write = func(markers []coordinator.Marker) [][]error {
		calls = append(calls, markers)
		errs := make([][]error, len(markers))
		for i, m := range markers {
			errs[i] = make([]error, len(m.Partitions))
			if m.ProducerEpoch == 9 {
				errs[i][0] = errors.New("bad")
			}
		}
		return errs
	}
	add := func(producer int64, epoch int16, partitions ...int32) {
		m := kmsg.NewWriteTxnMarkersRequestMarker()
		m.ProducerID, m.ProducerEpoch = producer, epoch
		m.Topics = []kmsg.WriteTxnMarkersRequestMarkerTopic{{Topic: "t", Partitions: partitions}}
		w.add(&m, func(_ *kmsg.WriteTxnMarkersRequestMarker, p markedPartition) *kerr.Error {
			if p.partition == 7 {
				return kerr.UnknownTopicOrPartition
			}
			return nil
		})
	}
	add(1, 0, 0, 1, 1, 7)
	add(2, 9, 0)
	w.flush()
	if len(calls) != 1 || len(calls[0]) != 2 || len(calls[0][0].Partitions) != 2 {
		t.Fatalf("%+v", calls)
	}
	for p, want := range map[markedPartition]int16{{1, "t", 0}: 0, {1, "t", 1}: 0, {1, "t", 7}: kerr.UnknownTopicOrPartition.Code, {2, "t", 0}: kerr.UnknownServerError.Code} {
		if got, ok := w.codes[p]; !ok || got != want {
			t.Errorf("%v: %d, want %d", p, got, want)
		}
	}
	calls = nil
	add(3, 9, 0)
	add(3, 1, 0)
	w.flush()
	if len(calls) != 2 || w.codes[markedPartition{3, "t", 0}] != 0 {
		t.Errorf("two of one producer: %+v, %v", calls, w.codes)
	}
	calls = nil
	many := make([]int32, markersAtOnce+500)
	for i := range many {
		many[i] = int32(i) + 10
	}
	add(4, 0, many...)
	add(5, 0, many[:100]...)
	w.flush()
	if len(calls) != 2 || len(calls[0][0].Partitions) != markersAtOnce || len(calls[1]) != 2 || len(calls[1][0].Partitions) != 500 {
		t.Errorf("%d calls for many", len(calls))
	}
}
