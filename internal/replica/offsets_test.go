package replica

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stelelog/stele/internal/log"
)

// list asks the node for one offset of topic t.
func (n *node) list(ts int64, current int32) string {
	n.t.Helper()
	return n.listAs(ListOffsetsRequest{ReplicaID: ConsumerID, Version: 11, Partitions: []ListOffsetsPartition{{Topic: "t", CurrentLeaderEpoch: current, Timestamp: ts}}})
}

func (n *node) listAs(req ListOffsetsRequest) string {
	n.t.Helper()
	r := n.m.ListOffsets(req)[0]
	out := fmt.Sprintf("(%d,%d,%d)", r.Offset, r.Timestamp, r.Epoch)
	if r.Err != nil {
		if out != "(-1,-1,-1)" {
			n.t.Errorf("values %s beside %v", out, r.Err)
		}
		return kind(r.Err)
	}
	return out
}

// TestE032_special_offsets: F1: -1 is (20,-1,c), -2 and -4 are (0,-1,a), -5 and -6 unknown.
func TestE032_special_offsets(t *testing.T) {
	t.Parallel()
	n := fixtureF1(t)
	for ts, want := range map[int64]string{-1: "(20,-1,5)", -2: "(0,-1,0)", -4: "(0,-1,0)", -5: "(-1,-1,-1)", -6: "(-1,-1,-1)"} {
		if got := n.list(ts, -1); got != want {
			t.Errorf("%d: %s, want %s", ts, got, want)
		}
	}
}

// TestE033_latest_carries_the_leaders_epoch: after a reign without data it is the new epoch, not the last batch's.
func TestE033_latest_carries_the_leaders_epoch(t *testing.T) {
	t.Parallel()
	n := fixtureF1(t)
	n.elect("t", 1)
	if got := n.list(-1, -1); got != "(20,-1,6)" {
		t.Errorf("%s", got)
	}
}

// TestE034_by_time: the time of record 12 finds (12,ts,b), later than all nothing, 0 the first record.
func TestE034_by_time(t *testing.T) {
	t.Parallel()
	n := fixtureF1(t)
	for ts, want := range map[int64]string{13000: "(12,13000,2)", 12001: "(12,13000,2)", 1 << 50: "(-1,-1,-1)", 0: "(0,1000,0)"} {
		if got := n.list(ts, -1); got != want {
			t.Errorf("%d: %s, want %s", ts, got, want)
		}
	}
}

// TestE035_max_timestamp_finds_the_first: the largest timestamp at offsets 7 and 18 is answered with 7 and its epoch.
func TestE035_max_timestamp_finds_the_first(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.create("t", 1)
	if got := n.list(-3, -1); got != "(-1,-1,-1)" {
		t.Errorf("empty log: %s", got)
	}
	stamps := make([]int64, 20)
	for i := range stamps {
		stamps[i] = int64(i)
	}
	stamps[7], stamps[18] = 500, 500
	n.produce("t", batch(stamps[:10]...))
	n.elect("t", 1)
	n.produce("t", batch(stamps[10:]...))
	if got := n.list(-3, -1); got != "(7,500,0)" {
		t.Errorf("%s", got)
	}
}

// TestE036_unknown_negative_timestamps: -7, -3 at v6 and -6 at v10 are refused; -2 at v1 works.
func TestE036_unknown_negative_timestamps(t *testing.T) {
	t.Parallel()
	n := fixtureF1(t)
	for _, c := range []struct {
		ts      int64
		version int16
		want    string
	}{{-7, 11, "35"}, {-3, 6, "35"}, {-6, 10, "35"}, {-2, 1, "(0,-1,0)"}} {
		req := ListOffsetsRequest{ReplicaID: ConsumerID, Version: c.version, Partitions: []ListOffsetsPartition{{Topic: "t", CurrentLeaderEpoch: -1, Timestamp: c.ts}}}
		if got := n.listAs(req); got != c.want {
			t.Errorf("%d at v%d: %s, want %s", c.ts, c.version, got, c.want)
		}
	}
}

// TestE037_the_same_partition_twice: every copy is refused, other partitions are answered.
func TestE037_the_same_partition_twice(t *testing.T) {
	t.Parallel()
	n := fixtureF1(t)
	n.create("other", 1)
	one := ListOffsetsPartition{Topic: "t", CurrentLeaderEpoch: -1, Timestamp: -1}
	got := n.m.ListOffsets(ListOffsetsRequest{ReplicaID: ConsumerID, Version: 7, Partitions: []ListOffsetsPartition{one,
		{Topic: "other", CurrentLeaderEpoch: -1, Timestamp: -1}, one, {Topic: "nowhere", CurrentLeaderEpoch: -1, Timestamp: -1}}})
	for i, want := range []string{"42", "0", "42", "3"} {
		if kind(got[i].Err) != want {
			t.Errorf("%d: %v, want %s", i, got[i].Err, want)
		}
	}
}

// TestE038_list_offsets_checks_the_epoch: c-1 is 74, c+1 is 75.
func TestE038_list_offsets_checks_the_epoch(t *testing.T) {
	t.Parallel()
	n := fixtureF1(t)
	for current, want := range map[int32]string{epochC - 1: "74", epochC + 1: "75", epochC: "(20,-1,5)"} {
		if got := n.list(-1, current); got != want {
			t.Errorf("epoch %d: %s", current, got)
		}
	}
}

// TestE040_everything_deleted: after deletion up to 20 earliest and latest are (20,-1,c), and times are not found (B-033).
func TestE040_everything_deleted(t *testing.T) {
	t.Parallel()
	n := fixtureF1(t)
	if r := n.deleteTo(20); r.Err != nil || r.LowWatermark != 20 {
		t.Fatalf("%+v", r)
	}
	for ts, want := range map[int64]string{-2: "(20,-1,5)", -1: "(20,-1,5)", -3: "(-1,-1,-1)", 0: "(-1,-1,-1)"} {
		if got := n.list(ts, -1); got != want {
			t.Errorf("%d: %s, want %s", ts, got, want)
		}
	}
}

// TestE041_a_lagging_leader_answers_no_latest: a new leader whose high watermark has not reached its epoch start answers
// 78 for latest until its followers have fetched, and what lies below the high watermark all the while.
func TestE041_a_lagging_leader_answers_no_latest(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.register(1, 2)
	n.create("t", 1, 1, 2)
	n.elect("t", 1)
	n.produceAcks("t", 1, stamped(10, 1000))
	shadow := func(offset int64, current int32) {
		req := consume(offset, current, current)
		req.ReplicaID, req.ReplicaEpoch = 2, 20
		n.fetch(req)
	}
	shadow(5, 1)
	n.elect("t", 2)
	n.elect("t", 1)
	for ts, want := range map[int64]string{-1: "78", -2: "(0,-1,1)", 2000: "(1,2000,1)", 8000: "78"} {
		if got := n.list(ts, -1); got != want {
			t.Errorf("%d: %s, want %s", ts, got, want)
		}
	}
	shadow(10, 3)
	if got := n.list(-1, -1); got != "(10,-1,3)" {
		t.Errorf("after the follower's fetch: %s", got)
	}
}

// TestE042_asking_a_follower: a consumer is refused, the debug consumer answered.
func TestE042_asking_a_follower(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.create("t", 1, 1, 2)
	n.elect("t", 2)
	req := ListOffsetsRequest{ReplicaID: ConsumerID, Version: 7, Partitions: []ListOffsetsPartition{{Topic: "t", CurrentLeaderEpoch: -1, Timestamp: -1}}}
	if got := n.listAs(req); got != "6" {
		t.Errorf("consumer: %s", got)
	}
	req.ReplicaID = DebugConsumerID
	if got := n.listAs(req); got != "(0,-1,1)" {
		t.Errorf("debug: %s", got)
	}
}

// TestB092_end_offsets_of_old_epochs also is E-002 to E-008 and E-014: known, skipped, unknown and empty epochs; after
// deletion below the first one; with a wrong current epoch; at a follower; nowhere.
func TestB092_end_offsets_of_old_epochs(t *testing.T) {
	t.Parallel()
	n := fixtureF1(t)
	ask := func(current, asked int32) string {
		r := n.m.OffsetForLeaderEpoch([]EpochQuery{{Topic: "t", CurrentLeaderEpoch: current, LeaderEpoch: asked}})[0]
		if r.Err != nil {
			return kind(r.Err)
		}
		return fmt.Sprintf("(%d,%d)", r.Epoch, r.Offset)
	}
	check := func(current, asked int32, want string) {
		t.Helper()
		if got := ask(current, asked); got != want {
			t.Errorf("(%d,%d): %s, want %s", current, asked, got, want)
		}
	}
	check(epochC, epochA, "(0,10)")
	check(epochC, epochA+1, "(0,10)")
	check(epochC, epochB, "(2,15)")
	check(epochC, epochC, "(5,20)")
	check(epochC, epochC+1, "(-1,-1)")
	check(epochC, -1, "(-1,-1)")
	check(epochC-1, epochA, "74")
	check(epochC+1, epochA, "75")
	check(-1, epochA, "(0,10)")
	check(-2, epochA, "74")
	n.deleteTo(12)
	check(epochC, epochA, "(0,12)")
	check(epochC, epochB, "(2,15)")
	n.elect("t", 1)
	n.elect("t", 1)
	check(7, 6, "(5,20)") // E-014: an empty reign ends where it began
	check(7, 7, "(7,20)")
	if r := n.m.OffsetForLeaderEpoch([]EpochQuery{{Topic: "nowhere", CurrentLeaderEpoch: -1}})[0]; kind(r.Err) != "3" || r.Offset != -1 {
		t.Errorf("unknown topic: %+v", r)
	}
}

// TestDeleteRecords: -1 is the high watermark; other negatives and what lies above it are out of range; below the log
// start is success without change; a compacted topic is refused; a log start inside a batch holds (B-035).
func TestDeleteRecords(t *testing.T) {
	t.Parallel()
	n := fixtureF1(t)
	n.configs["compacted"] = TopicConfig{Log: log.Config{Cleanup: log.CleanupCompact}, MinISR: 1}
	n.create("compacted", 1)
	check := func(offset int64, want string, low int64) {
		t.Helper()
		if r := n.deleteTo(offset); kind(r.Err) != want || r.LowWatermark != low {
			t.Errorf("%d: %v low watermark %d, want %s %d", offset, r.Err, r.LowWatermark, want, low)
		}
	}
	check(4, "0", 4)
	if got := n.list(-2, -1) + n.fetch(consume(4, -1, -1)) + n.fetch(consume(3, -1, -1)); got != "(4,-1,0)[0-9 e0][10-14 e2][15-19 e5]1" {
		t.Errorf("log start inside a batch: %s", got)
	}
	check(2, "0", 4)
	check(21, "1", -1)
	check(-2, "1", -1)
	check(-1, "0", 20)
	r := n.m.DeleteRecords(context.Background(), 0, []DeleteRecordsPartition{{Topic: "compacted", Offset: -1}, {Topic: "nowhere"}})
	if kind(r[0].Err) != "44" || kind(r[1].Err) != "3" {
		t.Errorf("%+v", r)
	}
}

// TestE056_delete_records_waits_for_the_followers: the low watermark is the least of all replicas; it is answered when the
// follower's fetch says that it has moved, or timed out.
func TestE056_delete_records_waits_for_the_followers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.register(1, 2)
		n.create("t", 1, 1, 2)
		n.produceAcks("t", 1, stamped(10, 0))
		shadow := func(logStart int64) {
			req := consume(10, 0, 0)
			req.ReplicaID, req.ReplicaEpoch = 2, 20
			req.Partitions[0].LogStartOffset = logStart
			n.fetch(req)
		}
		shadow(0)
		began := time.Now()
		if r := n.deleteTo(6); kind(r.Err) != "7" || time.Since(began) != time.Second {
			t.Errorf("without the follower: %+v after %v", r, time.Since(began))
		}
		got := make(chan DeletedRecords)
		go func() { got <- n.deleteTo(7) }()
		synctest.Wait()
		shadow(7)
		if r := <-got; r.Err != nil || r.LowWatermark != 7 {
			t.Errorf("%+v", r)
		}
	})
}
