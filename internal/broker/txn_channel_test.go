package broker

import (
	"context"
	"errors"
	"testing"

	"github.com/stelelog/stele/internal/coordinator"
	"github.com/stelelog/stele/internal/replica"
	"github.com/stelelog/stele/internal/txn"
)

// Markers that nobody waits for any more are not written.
func TestAppendMarkersTooLate(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	markers := []coordinator.Marker{{Partitions: []txn.TopicPartition{{Topic: "t"}, {Topic: "t", Partition: 1}}}, {Partitions: []txn.TopicPartition{{Topic: coordinator.GroupTopic}}}}
	got := (&TxnChannel{}).AppendMarkers(ctx, markers) // without replicas and groups it could write nothing
	for i, m := range markers {
		if len(got[i]) != len(m.Partitions) {
			t.Fatalf("%v", got)
		}
		for _, err := range got[i] {
			if !errors.Is(err, replica.ErrTimedOut) {
				t.Error(err)
			}
		}
	}
}
