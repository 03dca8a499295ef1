package replica

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stelelog/stele/internal/log"
)

// Records and bytes are counted once for all and once for their topic; a retry that was stored before counts as a
// request only, and what failed as rejected.
func TestTrafficCounts(t *testing.T) {
	t.Parallel()
	var tr traffic
	tr.produced(&ProduceResult{BaseOffset: 10, LastOffset: 14}, 100, false)
	tr.produced(&ProduceResult{BaseOffset: 10, LastOffset: 14}, 100, true)
	tr.produced(&ProduceResult{BaseOffset: NoOffset, LastOffset: NoOffset, Err: errors.New("no")}, 7, false)
	tr.fetched(&FetchedPartition{Records: log.Data{Length: 50}}, true)
	tr.fetched(&FetchedPartition{Err: errors.New("no")}, true)
	tr.fetched(&FetchedPartition{Records: log.Data{Length: 9}}, false)
	want := Traffic{RecordsIn: 5, BytesIn: 100, BytesRejected: 7, BytesOut: 50, BytesOutFollowers: 9, Produces: 3, ProducesFailed: 1, Fetches: 2, FetchesFailed: 1}
	if got := tr.read(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// However many topics there are, no more than the limit are listed: the busiest of those with traffic. Each keeps its
// place until its last partition is gone.
func TestTrafficListIsBounded(t *testing.T) {
	t.Parallel()
	var table trafficTable
	busy := func(topic string, bytes int64) { table.topics[topic].bytesIn.Add(bytes) }
	names := func(limit int) (out []string) {
		for _, l := range table.list(limit) {
			out = append(out, l.Topic)
		}
		return out
	}
	for i := range 40_000 {
		table.join(fmt.Sprintf("t%05d", i))
	}
	if got := names(3); got != nil {
		t.Fatalf("%v is listed without traffic", got)
	}
	for i := range 40_000 {
		busy(fmt.Sprintf("t%05d", i), int64(i+1))
	}
	first := []string{"t39997", "t39998", "t39999"}
	if got := names(3); !slices.Equal(got, first) {
		t.Fatalf("%v, want the busiest %v", got, first)
	}
	busy("t00000", 1<<40)
	if got := names(3); !slices.Equal(got, first) {
		t.Fatalf("%v, want as before %v", got, first)
	}
	table.join("t39998")
	table.leave("t39998")
	if got := names(3); !slices.Equal(got, first) {
		t.Fatalf("%v, want as before %v: one of its partitions is left", got, first)
	}
	table.leave("t39998")
	if got, want := names(3), []string{"t00000", "t39997", "t39999"}; !slices.Equal(got, want) {
		t.Fatalf("%v, want %v", got, want)
	}
	if got := names(0); len(got) != 3 {
		t.Fatalf("%v: a lower limit takes no place away", got)
	}
}
