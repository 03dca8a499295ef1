package coordinator

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stelelog/stele/internal/group"
	"github.com/stelelog/stele/internal/metadata"
)

// offsetsTopicImage is a cluster with __consumer_offsets under this id, its partition led by broker 2 in leader epoch 0.
func offsetsTopicImage(t *testing.T, base *metadata.Image, remove, id metadata.UUID) (*metadata.Image, *metadata.Delta) {
	t.Helper()
	delta := metadata.NewDelta(base)
	records := []metadata.Record{
		&metadata.TopicRecord{Name: GroupTopic, TopicID: id},
		&metadata.PartitionRecord{TopicID: id, Replicas: []int32{2}, ISR: []int32{2}, Leader: 2},
	}
	if remove != metadata.ZeroUUID {
		records = append([]metadata.Record{&metadata.RemoveTopicRecord{TopicID: remove}}, records...)
	}
	for i, rec := range records {
		if err := delta.Replay(rec, int64(i)); err != nil {
			t.Fatal(err)
		}
	}
	return delta.Apply(base.Offset()+int64(len(records)), 0), delta
}

// When __consumer_offsets is made anew under its name, what was loaded of the old topic goes, although leader
// epochs begin again at the number it was loaded under.
func TestRemadeTopicUnloadsTheOldShards(t *testing.T) {
	for name, withDelta := range map[string]bool{"delta": true, "snapshot": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newTestRuntime(newMemoryPartition())
				defer r.Close()
				waitActive(t, r)
				old := metadata.UUID{1}
				before, _ := offsetsTopicImage(t, metadata.EmptyImage(), metadata.ZeroUUID, old)
				r.Apply(1, nil, before, nil)
				if r.shards[0] == nil {
					t.Fatal("the shard of the election was unloaded by an image of its own epoch")
				}
				after, delta := offsetsTopicImage(t, before, old, metadata.UUID{2})
				if !withDelta {
					delta = nil
				}
				r.Apply(1, nil, after, delta)
				if _, err := r.OffsetFetch(t.Context(), fetchOf("g"), false); !errors.Is(err, group.ErrNotCoordinator) {
					t.Errorf("the old topic's shard still answers: %v", err)
				}
			})
		})
	}
}
