package coordinator

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/group"
	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/shard"
)

// txnV2Offsets is the first version of TxnOffsetCommit whose producers leave it to the broker to add the offsets to
// their transactions (KIP-890).
const txnV2Offsets = 5

// TxnOffsetCommit stores offsets in a transaction. verify asks the transaction's coordinator whether the partition of
// __consumer_offsets is part of it, or, with add, makes it so; it is not called where the transaction is open already.
func (r *Runtime) TxnOffsetCommit(ctx context.Context, req *kmsg.TxnOffsetCommitRequest, verify func(ctx context.Context, partition int32, add bool) error) (*group.CommitReply, error) {
	one, err := r.shardOf(req.Group)
	if err == nil {
		err = one.unavailable()
	}
	if err != nil {
		return nil, err
	}
	add := req.Version >= txnV2Offsets
	guard, err := one.partition.Guard(req.ProducerID, req.ProducerEpoch, add)
	if err != nil {
		return nil, err
	}
	if guard != nil {
		if err := verify(ctx, one.id, add); err != nil {
			return nil, err
		}
	}
	return ask[*group.CommitReply](ctx, r.host, req.Group, func(s *group.Shard, now time.Time, to shard.ReplyTo) group.Effects {
		fx := s.TxnOffsetCommit(now, to, req)
		fx.Guard = guard
		return fx
	})
}

// CompleteTransaction writes a transaction's marker to a partition of __consumer_offsets, through its shard: the offsets
// that the transaction holds become visible, or are dropped. It waits until the marker is replicated. The error is the
// log's, ErrLoading, shard.ErrNotCoordinator or shard.ErrCoordinatorNotAvailable.
func (r *Runtime) CompleteTransaction(ctx context.Context, partition int32, m record.EndTxnMarker, v2 bool) error {
	one, err := r.shardAt(partition)
	if err != nil {
		return err
	}
	written := make(chan error, 1)
	err = one.enqueue(ctx, func(r *runner[*group.Shard, group.Record]) { r.mark(m, v2, written) })
	if err != nil {
		return err
	}
	select {
	case err := <-written:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-one.done:
		return shard.ErrNotCoordinator
	}
}

// mark appends a marker and replays it. What is in the batch goes before it.
func (r *runner[S, R]) mark(m record.EndTxnMarker, v2 bool, written chan<- error) {
	_ = r.flush() // whoever wrote has been told
	if r.moved != nil {
		written <- shard.ErrNotCoordinator
		return
	}
	b := &pending{base: r.end, last: r.end, expires: r.now().Add(r.timeout), written: written}
	err := r.partition.Append(record.NewEndTxnBatch(m, r.now().UnixMilli()), r.epoch, b.base, AppendOptions{TxnV2: v2})
	if err != nil {
		if errors.Is(err, errEndMoved) {
			r.moved, err = err, shard.ErrNotCoordinator
		}
		written <- err
		return
	}
	r.shard.ReplayEndTxn(r.end, m.ProducerID, m.Commit)
	r.end++
	r.inFlight = append(r.inFlight, b)
}
