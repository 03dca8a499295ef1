package broker

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/replica"
)

// A fetch session that was given up is named by the request for the next one, which ends it at the leader: sessions of
// followers are not made room from, and a connection that is dropped again and again would leave one each time.
func TestNextFetchSessionEndsTheOneBefore(t *testing.T) {
	t.Parallel()
	l := &leaderEndpoint{broker: &Broker{life: newLifecycle(&Options{})}, id: 1}
	q := replica.FollowQuery{Topic: "t", TopicID: metadata.UUID{1}, Partition: 3}
	ask := func(session, epoch int32, partitions int) {
		t.Helper()
		req := l.fetchRequest([]replica.FollowQuery{q})
		n := 0
		for _, topic := range req.Topics {
			n += len(topic.Partitions)
		}
		if req.SessionID != session || req.SessionEpoch != epoch || n != partitions {
			t.Errorf("session %d, epoch %d, %d partitions; want %d, %d, %d", req.SessionID, req.SessionEpoch, n, session, epoch, partitions)
		}
	}
	ask(0, 0, 1)
	if _, err := l.take(&kmsg.FetchResponse{SessionID: 7}); err != nil {
		t.Fatal(err)
	}
	ask(7, 1, 0)
	l.Close()
	ask(7, 0, 1)
	if _, err := l.take(&kmsg.FetchResponse{SessionID: 8}); err != nil {
		t.Fatal(err)
	}
	ask(8, 1, 0)
	const sessionIDNotFound, invalidSessionEpoch = 70, 71
	if _, err := l.take(&kmsg.FetchResponse{ErrorCode: invalidSessionEpoch}); err != nil {
		t.Fatal(err)
	}
	ask(8, 0, 1)
	if _, err := l.take(&kmsg.FetchResponse{ErrorCode: sessionIDNotFound}); err != nil {
		t.Fatal(err)
	}
	ask(0, 0, 1)
}
