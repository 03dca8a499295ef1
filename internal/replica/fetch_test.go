package replica

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stelelog/stele/internal/metadata"
)

// TestE019_batches_carry_the_epoch_they_were_appended_in: F1 read from 0 shows epochs a, b, c; a producer's own stamp in
// that field changes nothing.
func TestE019_batches_carry_the_epoch_they_were_appended_in(t *testing.T) {
	t.Parallel()
	n := fixtureF1(t)
	forged := stamped(1, 21000)
	copy(forged[12:16], []byte{0, 0, 0, 99})
	if r := n.produce("t", forged); r.Err != nil {
		t.Fatal(r.Err)
	}
	if got, want := n.fetch(consume(0, -1, -1)), "[0-9 e0][10-14 e2][15-19 e5][20-20 e5]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestE021_at_and_beyond_the_end: offset 20 is empty after the whole wait; 21 is out of range at once, with HW, LSO and
// log start -1.
func TestE021_at_and_beyond_the_end(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := fixtureF1(t)
		req := consume(20, -1, -1)
		req.MaxWait = 500 * time.Millisecond
		began := time.Now()
		if got := n.fetch(req); got != "empty" || time.Since(began) != req.MaxWait {
			t.Errorf("at the end: %s after %v", got, time.Since(began))
		}
		req = consume(21, -1, -1)
		req.MaxWait = 500 * time.Millisecond
		began = time.Now()
		if got := n.fetch(req); got != "1" || time.Since(began) != 0 {
			t.Errorf("beyond: %s after %v", got, time.Since(began))
		}
	})
}

// TestE022_below_the_log_start: after deletion up to 12, offset 11 is out of range and 12 has records.
func TestE022_below_the_log_start(t *testing.T) {
	t.Parallel()
	n := fixtureF1(t)
	n.deleteTo(12)
	if got := n.fetch(consume(11, -1, -1)); got != "1" {
		t.Errorf("11: %s", got)
	}
	if got := n.fetch(consume(12, -1, -1)); got != "[10-14 e2][15-19 e5]" {
		t.Errorf("12: %s", got)
	}
}

func (n *node) deleteTo(offset int64) DeletedRecords {
	n.t.Helper()
	return n.m.DeleteRecords(context.Background(), time.Second, []DeleteRecordsPartition{{Topic: "t", Offset: offset}})[0]
}

// TestE023_a_consumer_that_sends_its_last_epoch: (20,c) waits; (20,b) diverges at (b,15); (15,b) has records; (12,a)
// diverges at (a,10); (5,c+1) is out of range.
func TestE023_a_consumer_that_sends_its_last_epoch(t *testing.T) {
	t.Parallel()
	n := fixtureF1(t)
	for _, c := range []struct {
		offset int64
		last   int32
		want   string
	}{
		{20, epochC, "empty"}, {20, epochB, "div(2,15)"}, {15, epochB, "[15-19 e5]"}, {12, epochA, "div(0,10)"}, {5, epochC + 1, "1"},
	} {
		if got := n.fetch(consume(c.offset, c.last, -1)); got != c.want {
			t.Errorf("(%d,%d): %s, want %s", c.offset, c.last, got, c.want)
		}
	}
}

// TestE024_divergence_and_log_start: F1 with records deleted up to 12, g never used between b and c: (13, g) diverges at
// (b,15); (11, g) is out of range without a diverging epoch (KAFKA-12996).
func TestE024_divergence_and_log_start(t *testing.T) {
	t.Parallel()
	n := fixtureF1(t)
	n.deleteTo(12)
	if got := n.fetch(consume(13, epochB+1, -1)); got != "div(2,15)" {
		t.Errorf("13: %s", got)
	}
	if got := n.fetch(consume(11, epochB+1, -1)); got != "1" {
		t.Errorf("11: %s", got)
	}
}

// TestE025_beyond_the_end_with_an_epoch: (25, c) diverges at (c,20); without an epoch it is out of range.
func TestE025_beyond_the_end_with_an_epoch(t *testing.T) {
	t.Parallel()
	n := fixtureF1(t)
	if got := n.fetch(consume(25, epochC, -1)); got != "div(5,20)" {
		t.Errorf("with: %s", got)
	}
	if got := n.fetch(consume(25, -1, -1)); got != "1" {
		t.Errorf("without: %s", got)
	}
}

// TestE026_divergence_answers_at_once_every_time: a partition that diverges is answered in each fetch without waiting, as
// long as it does; HW and log start are filled in.
func TestE026_divergence_answers_at_once_every_time(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := fixtureF1(t)
		began := time.Now()
		for range 3 {
			req := consume(20, epochB, -1)
			req.MaxWait = time.Minute
			res := n.m.Fetch(t.Context(), req)
			f := res.Partitions[0]
			if !f.HasDiverging || f.HighWatermark != 20 || f.LogStartOffset != 0 || f.Records.Length != 0 {
				t.Errorf("%+v", f)
			}
			res.Release()
		}
		if time.Since(began) != 0 {
			t.Errorf("waited %v", time.Since(began))
		}
	})
}

// TestE020_fetch_checks_the_current_epoch: c-1 is 74 and names the leader, c+1 is 75.
func TestE020_fetch_checks_the_current_epoch(t *testing.T) {
	t.Parallel()
	n := fixtureF1(t)
	res := n.m.Fetch(t.Context(), consume(0, -1, epochC-1))
	defer res.Release()
	var fenced *FencedLeaderEpochError
	if !errors.As(res.Partitions[0].Err, &fenced) || fenced.Current != (LeaderAndEpoch{1, epochC}) {
		t.Errorf("older: %v", res.Partitions[0].Err)
	}
	if got := n.fetch(consume(0, -1, epochC+1)); got != "75" {
		t.Errorf("newer: %s", got)
	}
	if c := n.events.Counts(); c.EpochsFenced != 1 || c.EpochsUnknown != 1 {
		t.Errorf("%+v", c)
	}
	if want := "\"fenced leader epoch\" topic=t partition=0 requested=4 leaderEpoch=5 leader=1 cause=Fetch replica=-1"; !strings.Contains(n.logs.String(), want) {
		t.Errorf("no line says %s", want)
	}
}

// TestE027_a_consumer_reads_a_follower: below v11 it is refused, from v11 on it reads below the follower's high watermark.
func TestE027_a_consumer_reads_a_follower(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.create("t", 1, 1, 2)
	n.setISR("t", 1)
	n.mustProduce("t", 5)
	n.elect("t", 2)
	if got := n.fetch(consume(0, -1, -1)); got != "[0-4 e0]" {
		t.Errorf("v16: %s", got)
	}
	old := consume(0, -1, -1)
	old.Version = 10
	if got := n.fetch(old); got != "6" {
		t.Errorf("v10: %s", got)
	}
	if r := n.produce("t", stamped(1, 0)); kind(r.Err) != "6" || r.BaseOffset != -1 {
		t.Errorf("E-043, produce to the follower: %+v", r)
	}
}

// TestLongPollWakesOnProduce: a parked fetch is answered the moment its bytes are there, not sooner.
func TestLongPollWakesOnProduce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.create("t", 1)
		one := len(stamped(1, 0))
		req := consume(0, -1, -1)
		req.MinBytes, req.MaxWait = 2*one, time.Minute
		got := make(chan string)
		began := time.Now()
		go func() { got <- n.fetch(req) }()
		synctest.Wait()
		n.produceAcks("t", 1, stamped(1, 0))
		synctest.Wait()
		select {
		case s := <-got:
			t.Fatalf("answered with half the bytes: %s", s)
		default:
		}
		<-time.After(time.Second)
		n.produceAcks("t", 0, stamped(1, 0))
		if s := <-got; s != "[0-0 e0][1-1 e0]" || time.Since(began) != time.Second {
			t.Errorf("%s after %v", s, time.Since(began))
		}
		if w := n.m.purgatory.waiting.Load(); w != 0 {
			t.Errorf("%d still counted as waiting", w)
		}
		if p := n.partition("t"); !p.wait.empty() {
			t.Error("a watch was left behind")
		}
	})
}

// TestLongPollEndsWithItsContext: a client that went away does not keep its fetch parked (nor does a closing manager).
func TestLongPollEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.create("t", 1)
		req := consume(0, -1, -1)
		req.MaxWait = time.Hour
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{}, 2)
		began := time.Now()
		go func() { n.m.Fetch(ctx, req).Release(); done <- struct{}{} }()
		go func() { n.m.Fetch(t.Context(), req).Release(); done <- struct{}{} }()
		synctest.Wait()
		cancel()
		<-done
		n.m.Close(context.Background(), -1)
		<-done
		if time.Since(began) != 0 {
			t.Errorf("took %v", time.Since(began))
		}
	})
}

// TestB097_a_parked_fetch_learns_of_the_deletion: topics deleted while a fetch is parked and produces run: the fetch
// returns promptly with 3, the produces with 3; a new topic of that name begins at epoch 0 (E-029), and the old id is 100.
func TestB097_a_parked_fetch_learns_of_the_deletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.create("t", 1)
		n.elect("t", 1)
		n.mustProduce("t", 3)
		req := consume(3, -1, -1)
		req.MaxWait = 30 * time.Second
		got := make(chan string)
		began := time.Now()
		go func() { got <- n.fetch(req) }()
		synctest.Wait()
		old := topicID("t")
		n.replay(&metadata.RemoveTopicRecord{TopicID: old})
		if s := <-got; s != "3" || time.Since(began) != 0 {
			t.Errorf("parked fetch: %s after %v", s, time.Since(began))
		}
		if r := n.produce("t", stamped(1, 0)); kind(r.Err) != "3" {
			t.Errorf("produce: %v", r.Err)
		}
		if _, err := n.m.PartitionByID(old, 0); kind(err) != "100" {
			t.Errorf("old id: %v", err)
		}
		n.createWithID("t", metadata.UUID{7}, 1)
		if e := n.partition("t").Role().LeaderEpoch; e != 0 {
			t.Errorf("new topic at epoch %d", e)
		}
		if s := n.fetch(consume(0, -1, -1)); s != "empty" {
			t.Errorf("new topic: %s", s)
		}
		wrong := consume(0, -1, -1)
		wrong.Partitions[0].TopicID = old
		if s := n.fetch(wrong); s != "103" {
			t.Errorf("name with the old id: %s", s)
		}
	})
}

// TestRecreatedWithinOneDelta: a topic deleted and made again between two images is a new log.
func TestRecreatedWithinOneDelta(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.create("t", 1)
	n.mustProduce("t", 3)
	id := metadata.UUID{9}
	n.replay(&metadata.RemoveTopicRecord{TopicID: topicID("t")}, &metadata.TopicRecord{Name: "t", TopicID: id},
		&metadata.PartitionRecord{TopicID: id, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1, Directories: make([]metadata.UUID, 1)})
	p := n.partition("t")
	if p.TopicID() != id || p.Positions().End != 0 || p.Role().Kind != RoleLeader {
		t.Errorf("%v %+v %+v", p.TopicID(), p.Positions(), p.Role())
	}
}

// TestE030_a_parked_fetch_learns_that_leadership_left: the reply comes well before its 30 s, fenced.
func TestE030_a_parked_fetch_learns_that_leadership_left(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.create("t", 1, 1, 2)
		req := consume(0, -1, 0)
		req.MaxWait = 30 * time.Second
		old := consume(0, -1, -1)
		old.Version, old.MaxWait = 10, 30*time.Second
		got := make(chan string, 2)
		began := time.Now()
		go func() { got <- n.fetch(req) }()
		go func() { got <- n.fetch(old) }()
		synctest.Wait()
		n.elect("t", 2)
		if a, b := <-got, <-got; a+b != "746" && a+b != "674" || time.Since(began) != 0 {
			t.Errorf("%s and %s after %v", a, b, time.Since(began))
		}
	})
}

// TestB011_a_batch_larger_than_the_limit_is_returned_whole: with limits of 1 byte the first batch of the first partition
// that has any comes whole, and nothing else.
func TestB011_a_batch_larger_than_the_limit_is_returned_whole(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.create("t", 1)
	n.create("empty", 1)
	n.create("other", 1)
	n.mustProduce("t", 300)
	for range 3 {
		n.mustProduce("t", 1)
	}
	n.mustProduce("other", 1)
	req := consume(0, -1, -1)
	req.MaxBytes = 1
	req.Partitions[0].MaxBytes = 1
	req.Partitions = []FetchPartition{{Topic: "empty", CurrentLeaderEpoch: -1, LastFetchedEpoch: -1, MaxBytes: 1}, req.Partitions[0],
		{Topic: "other", CurrentLeaderEpoch: -1, LastFetchedEpoch: -1, MaxBytes: 1 << 20}}
	for _, c := range []struct {
		offset int64
		want   string
	}{{0, "[0-299 e0]"}, {300, "[300-300 e0]"}} {
		req.Partitions[1].FetchOffset = c.offset
		res := n.m.Fetch(t.Context(), req)
		got := n.say(&res.Partitions[0]) + n.say(&res.Partitions[1]) + n.say(&res.Partitions[2])
		if want := "empty" + c.want + "empty"; got != want {
			t.Errorf("from %d: %s, want %s", c.offset, got, want)
		}
		res.Release()
	}
}

// TestB096_an_answer_is_bounded_by_the_request: many partitions with a large limit each share the request's; the broker
// caps absurd limits.
func TestB096_an_answer_is_bounded_by_the_request(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(o *Options) { o.FetchMaxBytes = 4000 })
	const partitions = 20
	n.create("t", partitions)
	size := 0
	for i := range int32(partitions) {
		for range 3 {
			b := stamped(20, 0)
			size = len(b)
			d := n.m.Produce(ProduceRequest{Acks: 1, Partitions: []ProducePartition{{Topic: "t", Partition: i, Records: b}}})
			if r := d.Results()[0]; r.Err != nil {
				t.Fatal(r.Err)
			}
		}
	}
	for _, limit := range []int{1000, 1<<31 - 1} {
		req := FetchRequest{ReplicaID: ConsumerID, Version: 16, MinBytes: 1, MaxBytes: limit}
		for i := range int32(partitions) {
			req.Partitions = append(req.Partitions, FetchPartition{Topic: "t", Partition: i, CurrentLeaderEpoch: -1, LastFetchedEpoch: -1, MaxBytes: 10 << 20})
		}
		res := n.m.Fetch(t.Context(), req)
		if got := res.bytes(); got == 0 || got > min(limit, 4000)+size {
			t.Errorf("limit %d: %d bytes", limit, got)
		}
		res.Release()
	}
}

// TestE057_a_diverging_follower_makes_no_progress: a shadow follower at 20 brings the high watermark to 20; when it then
// diverges, HW, ISR and its caught-up time stay as they are (KAFKA-13141).
func TestE057_a_diverging_follower_makes_no_progress(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.register(1, 2)
	n.create("t", 1, 1, 2)
	n.elect("t", 1)
	for i := range 4 {
		if r := n.produceAcks("t", 1, stamped(5, int64(i))); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	shadow := func(offset int64, last int32, epoch int64) string {
		req := consume(offset, last, 1)
		req.ReplicaID, req.ReplicaEpoch = 2, epoch
		req.Partitions[0].LogStartOffset = 0
		return n.fetch(req)
	}
	p := n.partition("t")
	if got := shadow(15, 1, 20); got != "[15-19 e1]" || p.Positions().HighWatermark != 15 {
		t.Fatalf("%s, %+v", got, p.Positions())
	}
	if got := shadow(20, 1, 20); got != "empty" || p.Positions().HighWatermark != 20 {
		t.Fatalf("%s, %+v", got, p.Positions())
	}
	p.mu.Lock()
	before := p.state.Followers()[0]
	p.mu.Unlock()
	if got := shadow(20, 0, 20); got != "div(0,0)" {
		t.Errorf("%s", got)
	}
	// E-058: a fetch by an older process of the broker is refused, as is one by a stranger.
	if got := shadow(20, 1, 19); got != "6" {
		t.Errorf("replica epoch one lower: %s", got)
	}
	req := consume(20, 1, 1)
	req.ReplicaID = 9
	if got := n.fetch(req); got != "75" {
		t.Errorf("stranger with an epoch: %s", got)
	}
	req.Partitions[0].CurrentLeaderEpoch = -1
	if got := n.fetch(req); got != "6" {
		t.Errorf("stranger without: %s", got)
	}
	p.mu.Lock()
	after := p.state.Followers()[0]
	p.mu.Unlock()
	if before != after {
		t.Errorf("progress changed: %+v, then %+v", before, after)
	}
}

// TestE028_rack_aware_reads: the client in the follower's rack is sent there without records, with the offsets filled in; one
// in the leader's rack, in none, of an old version, or behind what the follower has is served by the leader.
func TestE028_rack_aware_reads(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(o *Options) { o.RackAware = true })
	for id, rack := range map[int32]string{1: "east", 2: "west"} {
		n.replay(&metadata.RegisterBrokerRecord{BrokerID: id, BrokerEpoch: int64(id) * 10, Rack: &rack})
	}
	n.create("t", 1, 1, 2)
	n.produceAcks("t", 1, stamped(5, 0))
	ask := func(rack string, offset int64, version int16) string {
		req := consume(offset, -1, 0)
		req.RackID, req.Version, req.MaxWait = rack, version, time.Hour
		res := n.m.Fetch(t.Context(), req)
		defer res.Release()
		if f := res.Partitions[0]; f.PreferredReadReplica >= 0 {
			if f.HighWatermark != 5 || f.LastStableOffset != 5 || f.LogStartOffset != 0 || f.Records.Length != 0 || f.Err != nil {
				t.Errorf("%+v", f)
			}
			return fmt.Sprint("ask ", f.PreferredReadReplica)
		}
		return n.say(&res.Partitions[0])
	}
	n.shadow(5, 0)
	for _, c := range []struct {
		rack    string
		offset  int64
		version int16
		want    string
	}{{"west", 0, 11, "ask 2"}, {"west", 5, 11, "ask 2"}, {"west", 0, 10, "[0-4 e0]"}, {"east", 0, 11, "[0-4 e0]"}, {"north", 0, 11, "[0-4 e0]"},
		{"", 0, 11, "[0-4 e0]"}, {"west", 6, 11, "1"}} {
		if got := ask(c.rack, c.offset, c.version); got != c.want {
			t.Errorf("%q at %d, v%d: %s, want %s", c.rack, c.offset, c.version, got, c.want)
		}
	}
	n.setISR("t", 1)
	if got := ask("west", 0, 11); got != "[0-4 e0]" {
		t.Errorf("follower out of the ISR: %s", got)
	}
	if s := n.m.Stats(); s != (Stats{Partitions: 1, Leaders: 1, UnderReplicated: 1, AtMinISR: 1}) {
		t.Errorf("%+v", s)
	}
}

// TestStormsAreSummedUp: taking over many partitions at once tells twenty in full and the rest in one line.
func TestStormsAreSummedUp(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.create("t", 50)
	if got := strings.Count(n.logs.String(), "msg=\"leader change\""); got != applyLines {
		t.Errorf("%d lines in full", got)
	}
	if !strings.Contains(n.logs.String(), "leader changes, more of the same\" leaders=45") {
		t.Errorf("no summary in:\n%s", n.logs)
	}
	if got := n.events.Counts().RoleChanges[RoleLeader]; got != 50 {
		t.Errorf("%d counted", got)
	}
	n.replay(&metadata.RemoveTopicRecord{TopicID: topicID("t")})
	if got := strings.Count(n.logs.String(), "msg=\"replica deleted\""); got != applyLines {
		t.Errorf("%d deletions told in full", got)
	}
	if !strings.Contains(n.logs.String(), "replicas deleted, more of the same\" partitions=45") {
		t.Error("no summary of the deletions")
	}
	var lines throttle
	told, hidden := 0, 0
	for i := range 50 {
		full, before := lines.take(t0.Add(time.Duration(i/40) * time.Second))
		if hidden += before; full {
			told++
		}
	}
	if told != fullLines+10 || hidden != 20 {
		t.Errorf("%d of 50 in two seconds told, %d summed up", told, hidden)
	}
	n.create("t", 1)
	n.elect("t", 1)
	want := "topic=t partition=0 role=leader fromLeader=1 toLeader=1 fromEpoch=0 leaderEpoch=1 partitionEpoch=1 endOffset=0"
	if !strings.Contains(n.logs.String(), want) {
		t.Errorf("the line does not say %q", want)
	}
}
