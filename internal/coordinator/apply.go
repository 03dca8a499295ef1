package coordinator

import (
	"context"
	"errors"

	"github.com/stelelog/stele/internal/group"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/replica"
)

// Apply follows the cluster metadata after replicas has taken it over: it loads the
// shards of partitions that this broker leads now, unloads those it leads no
// longer, and removes offsets of deleted topics. delta is what led to img; nil
// makes it compare img with the image applied before. It is called from one
// goroutine.
func (r *Runtime) Apply(brokerID int32, replicas *replica.Manager, img *metadata.Image, delta *metadata.Delta) {
	before := r.image.Swap(img)
	if before == nil {
		before = metadata.EmptyImage()
	}
	offsets, exists := img.Topic(GroupTopic)
	if old, existed := before.Topic(GroupTopic); existed && (!exists || old.ID != offsets.ID) {
		// The epochs of a topic made anew begin again: they say nothing to the old shards.
		for _, partition := range r.loaded() {
			r.Resigned(partition, -1)
		}
	}
	if exists {
		r.SetPartitions(int32(offsets.NumPartitions()))
	} else {
		r.SetPartitions(0)
	}
	switch {
	case !exists:
	case delta == nil:
		for id := range offsets.Partitions().All() {
			r.follow(brokerID, replicas, offsets, id)
		}
	default:
		if change := delta.Topics[offsets.ID]; change != nil {
			for id := range change.Partitions {
				r.follow(brokerID, replicas, offsets, id)
			}
		}
	}
	if deleted := deletedTopics(before, img, delta); len(deleted) > 0 {
		r.TopicsDeleted(context.Background(), deleted)
	}
}

func deletedTopics(before, after *metadata.Image, delta *metadata.Delta) []group.DeletedTopic {
	var deleted []group.DeletedTopic
	if delta != nil {
		for id, change := range delta.Topics {
			if change.Removed {
				deleted = append(deleted, group.DeletedTopic{Topic: change.Name, TopicID: id})
			}
		}
		return deleted
	}
	for _, topic := range before.Topics().All() {
		if _, ok := after.TopicByID(topic.ID); !ok {
			deleted = append(deleted, group.DeletedTopic{Topic: topic.Name, TopicID: topic.ID})
		}
	}
	return deleted
}

// follow brings one shard in line with the metadata.
func (r *Runtime) follow(brokerID int32, replicas *replica.Manager, topic *metadata.Topic, id int32) {
	state, ok := topic.Partition(id)
	if !ok {
		return
	}
	if state.Leader != brokerID {
		r.Resigned(id, state.LeaderEpoch)
		return
	}
	hosted, err := replicas.Partition(GroupTopic, id)
	if err != nil {
		r.opts.Logger.Error("coordinator shard has no log here", "partition", id, "leader_epoch", state.LeaderEpoch, "cause", err)
		r.Resigned(id, -1)
		return
	}
	r.Elected(id, state.LeaderEpoch, replicaPartition{hosted})
}

func (r *Runtime) loaded() []int32 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	partitions := make([]int32, 0, len(r.shards))
	for partition := range r.shards {
		partitions = append(partitions, partition)
	}
	return partitions
}

// replicaPartition is a partition of an internal topic on this broker.
type replicaPartition struct{ p *replica.Partition }

func (r replicaPartition) Append(batch record.Batch, leaderEpoch int32, expectedEnd int64) error {
	_, _, err := r.p.AppendCoordinator(batch, leaderEpoch, expectedEnd)
	var moved *replica.UnexpectedOffsetError
	if errors.As(err, &moved) {
		return errors.Join(errEndMoved, err)
	}
	return err
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
