package coordinator

import (
	"os"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stelelog/stele/internal/group"
	"github.com/stelelog/stele/internal/record"
)

func TestG060_segment_written_by_kafka(t *testing.T) {
	// A segment of __consumer_offsets that Apache Kafka 4.4 wrote loads to the groups and offsets that its own tools show.
	segment, err := os.ReadFile("../../test/reference/testdata/kafka-4.4.0/datadir/__consumer_offsets-0/00000000000000000000.log")
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		p := newMemoryPartition()
		for b, err := range record.Batches(segment) {
			if err != nil {
				t.Fatal(err)
			}
			p.batches = append(p.batches, slices.Clone(b))
			p.end = b.NextOffset()
		}
		p.hw = p.end
		if p.end != 28 {
			t.Fatalf("the segment ends at %d, want 28", p.end)
		}
		r := newTestRuntime(p)
		defer r.Close()
		waitActive(t, r)

		listed, err := r.ListGroups(t.Context(), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]group.ListedGroup{}
		for _, g := range listed {
			got[g.Group] = g
		}
		for id, kind := range map[string][2]string{"tx-group": {"", "classic"}, "classic-group": {"consumer", "classic"}, "consumer-group": {"consumer", "consumer"}} {
			if g, ok := got[id]; !ok || g.State != "Empty" || g.ProtocolType != kind[0] || g.Type != kind[1] {
				t.Errorf("%s: %+v, %t", id, g, ok)
			}
		}
		if len(listed) != 3 {
			t.Errorf("%d groups: %+v", len(listed), listed)
		}

		type offset struct {
			topic     string
			partition int32
			offset    int64
			epoch     int32
			metadata  string
		}
		for id, want := range map[string][]offset{
			"tx-group":       {{"codecs", 0, 42, 0, "by tx-1"}},
			"classic-group":  {{"codecs", 0, 100, 0, "codecs done"}, {"shapes", 0, 3, -1, ""}, {"shapes", 1, 1, 0, ""}},
			"consumer-group": {{"idempotent", 0, 21, 0, ""}, {"shapes", 0, 5, 0, ""}, {"shapes", 1, 3, 0, ""}, {"shapes", 2, 0, -1, ""}},
			"deleted-group":  nil,
		} {
			reply, err := r.OffsetFetch(t.Context(), fetchOf(id), true)
			if err != nil || reply.Err != nil {
				t.Fatalf("%s: %v, %+v", id, err, reply)
			}
			var found []offset
			for _, topic := range reply.Topics {
				for _, p := range topic.Partitions {
					found = append(found, offset{topic.Topic, p.Partition, p.Offset, p.LeaderEpoch, p.Metadata})
				}
			}
			if !slices.Equal(found, want) {
				t.Errorf("%s: %+v, want %+v", id, found, want)
			}
		}
	})
}
