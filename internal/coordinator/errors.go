package coordinator

import (
	"context"
	"errors"

	"github.com/stelelog/stele/internal/replica"
	"github.com/stelelog/stele/internal/shard"
)

// ErrLoading is what a request gets while its shard is being read from the log.
// It is never answered as "no such group" or "no offset".
var ErrLoading = errors.New("the coordinator is loading")

// writeError is what a client is told when a batch of records could not be
// written or was not replicated in time: errors of the log become errors of the
// coordinator that clients know how to retry.
func writeError(err error) error {
	var storage *replica.StorageError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, replica.ErrNotEnoughReplicas), errors.Is(err, replica.ErrNotEnoughReplicasAfterAppend),
		errors.Is(err, replica.ErrUnknownTopicOrPartition), errors.Is(err, replica.ErrTimedOut),
		errors.Is(err, context.DeadlineExceeded):
		return shard.ErrCoordinatorNotAvailable
	case errors.Is(err, replica.ErrNotLeaderOrFollower), errors.Is(err, replica.ErrFencedLeaderEpoch), errors.As(err, &storage),
		errors.Is(err, shard.ErrNotCoordinator), errors.Is(err, errEndMoved):
		return shard.ErrNotCoordinator
	case errors.Is(err, replica.ErrInvalidProducerEpoch), errors.Is(err, replica.ErrInvalidTxnState):
		return err
	}
	return shard.ErrUnknownServer
}

// errEndMoved says that somebody else wrote to the partition: what the shard holds
// is no longer what the log says, and it must be loaded anew.
var errEndMoved = errors.New("the log's end is not where the shard expects it")
