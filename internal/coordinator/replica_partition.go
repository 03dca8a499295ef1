package coordinator

import (
	"errors"

	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/replica"
	"github.com/stelelog/stele/internal/shard"
)

// replicaPartition is a partition of an internal topic on this broker.
type replicaPartition struct{ p *replica.Partition }

func (r replicaPartition) Append(batch record.Batch, leaderEpoch int32, expectedEnd int64, opts AppendOptions) error {
	guard, _ := opts.Guard.(replica.TxnGuard)
	_, _, err := r.p.AppendCoordinator(batch, leaderEpoch, expectedEnd, replica.CoordinatorAppend{Guard: guard, TxnV2: opts.TxnV2})
	var moved *replica.UnexpectedOffsetError
	if errors.As(err, &moved) {
		return errors.Join(errEndMoved, err)
	}
	return err
}

func (r replicaPartition) Guard(producerID int64, producerEpoch int16, v2 bool) (TxnGuard, error) {
	guard, err := r.p.GuardTxnOffsets(producerID, producerEpoch, v2)
	switch {
	case errors.Is(err, replica.ErrNotLeaderOrFollower):
		return nil, shard.ErrNotCoordinator
	case err != nil || !guard.Held():
		return nil, err
	}
	return guard, nil
}

// scanBytes is how much of a partition is read at a time while a shard loads, unless
// a batch is larger.
const scanBytes = 256 << 10

func (r replicaPartition) Scan(fn func(record.Batch) error) (int64, error) {
	positions := r.p.Positions()
	offset := positions.LogStart
	var buf []byte
	if positions.End > offset {
		buf = make([]byte, 0, scanBytes)
	}
	for {
		read, err := r.p.ReadLog(offset, buf)
		var below *replica.LogOffsetOutOfRangeError
		if errors.As(err, &below) && offset < below.LogStart {
			offset = below.LogStart
			continue
		}
		if err != nil {
			return 0, err
		}
		if len(read) == 0 {
			return max(offset, r.p.Positions().LogStart), nil
		}
		for len(read) > 0 {
			size, err := record.Peek(read)
			if err != nil {
				return 0, err
			}
			batch := record.Batch(read[:size])
			if err := fn(batch); err != nil {
				return 0, err
			}
			offset, read = batch.NextOffset(), read[size:]
		}
	}
}

func (r replicaPartition) HighWatermark() int64 { return r.p.Positions().HighWatermark }

func (r replicaPartition) Watch(wake func()) func() {
	return r.p.WatchHighWatermark(func(int64) { wake() })
}

func (r replicaPartition) MaxBatchBytes() int { return r.p.MaxBatchBytes() }
