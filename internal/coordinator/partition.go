package coordinator

import (
	"github.com/stelelog/stele/internal/record"
)

// Partition is one partition of an internal topic that this broker leads, as a
// shard's runtime uses it. *replica.Partition stands behind it; tests put memory
// in its place.
type Partition interface {
	// Append writes one batch as the leader of leaderEpoch, whose base offset must
	// become expectedEnd. It returns once the batch is in the local log.
	Append(batch record.Batch, leaderEpoch int32, expectedEnd int64, opts AppendOptions) error
	// Guard begins the question whether a transaction of the producer holds offsets here, see replica.Partition's
	// GuardTxnOffsets; nil when there is nothing to ask. v2 is for producers of transaction.version 2.
	Guard(producerID int64, producerEpoch int16, v2 bool) (TxnGuard, error)
	// Scan calls fn with every batch from the log start to the log end, and
	// returns that end.
	Scan(fn func(record.Batch) error) (end int64, err error)
	// HighWatermark is the present high watermark.
	HighWatermark() int64
	// Watch calls wake, from any goroutine and without blocking it, whenever the
	// high watermark may have moved or the leadership ended, until stop is called.
	Watch(wake func()) (stop func())
	// MaxBatchBytes is the largest batch the topic takes.
	MaxBatchBytes() int
}

// TxnGuard is what Guard gives for Append, nil for none. It means something to the partition alone.
type TxnGuard any

// AppendOptions are of batches of transactions.
type AppendOptions struct {
	Guard TxnGuard
	TxnV2 bool // a marker of transaction.version 2
}
