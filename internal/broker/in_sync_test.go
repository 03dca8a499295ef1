package broker

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/replica"
)

// Many changes of in-sync sets at a time, as when a broker is lost that had thousands of partitions, go in requests of which
// each is small enough for the controller to take; each is answered.
func TestInSyncChangesGoInParts(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c := newInSyncChanges(1)
	c.epoch = func() int64 { return 5 }
	const all = 2*maxInSyncChanges + 7
	largest, asked := 0, 0
	c.do = func(_ context.Context, req kmsg.Request) (kmsg.Response, error) {
		n := 0
		for _, topic := range req.(*kmsg.AlterPartitionRequest).Topics {
			n += len(topic.Partitions)
		}
		largest, asked = max(largest, n), asked+n
		return nil, errors.New("no controller")
	}
	answered := 0
	for i := range int32(all) {
		c.add(replicaPlace{metadata.UUID{1}, i}, inSyncChange{replica.AlterPartition{Partition: i}, func(outcome replica.AlterOutcome, _ replica.LeaderAndISR) {
			if answered++; outcome != replica.AlterRetriable {
				t.Errorf("outcome %v", outcome)
			}
			if answered == all {
				cancel()
			}
		}})
	}
	c.run(ctx)
	if answered != all || asked != all || largest > maxInSyncChanges {
		t.Errorf("%d of %d asked for, %d answered, %d in one request", asked, all, answered, largest)
	}
}
