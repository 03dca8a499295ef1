package replica

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/epoch"
)

// The epoch cache most vectors are told on: E = {2:20, 3:35, 6:50, 7:80}, log end 100.
func vectorEpochs() epoch.Cache {
	return caches(2, 20, 3, 35, 6, 50, 7, 80)
}

// caches builds a cache from epoch, start pairs.
func caches(pairs ...int64) epoch.Cache {
	var entries []epoch.Entry
	for i := 0; i < len(pairs); i += 2 {
		entries = append(entries, epoch.Entry{Epoch: int32(pairs[i]), StartOffset: pairs[i+1]})
	}
	c, err := epoch.New(entries...)
	if err != nil {
		panic(err)
	}
	return c
}

var vectorPositions = Positions{LogStart: 20, LocalLogStart: 20, HighWatermark: 95, LastStable: 95, End: 100}

// t0 is when every pure test begins.
var t0 = time.Date(2024, 10, 1, 0, 0, 0, 0, time.UTC)

const lag = 30 * time.Second

// allAlive registers every broker with epoch 0.
func allAlive(int32) (BrokerStatus, bool) { return BrokerStatus{}, true }

// leaderState is a state of broker 1 leading at epoch with the given replicas, all in sync.
func leaderState(t testing.TB, leaderEpoch int32, minISR int, end int64, replicas ...int32) *State {
	t.Helper()
	s := NewState(1, "t", 0, minISR)
	if _, ok := s.BecomeLeader(LeaderAndISR{Leader: 1, LeaderEpoch: leaderEpoch, Replicas: replicas, ISR: replicas}, end, t0); !ok {
		t.Fatal("leadership refused")
	}
	return s
}

// failer is what *testing.T and *rapid.T have in common here.
type failer interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

// fetchAt records that follower id fetched at offset while the leader ended at end.
func fetchAt(t failer, s *State, id int32, offset, end int64, at time.Time) {
	t.Helper()
	if err := s.UpdateFollower(FollowerFetch{ReplicaID: id, BrokerEpoch: -1, FetchOffset: offset, LogStart: 0, LeaderEnd: end, At: at}, allAlive); err != nil {
		t.Fatal(err)
	}
}

// kind names an error the way the tables do.
func kind(err error) string {
	for _, k := range []struct {
		err  error
		name string
	}{
		{ErrOffsetOutOfRange, "1"}, {ErrUnknownTopicOrPartition, "3"}, {ErrNotLeaderOrFollower, "6"}, {ErrTimedOut, "7"},
		{ErrNotEnoughReplicas, "19"}, {ErrNotEnoughReplicasAfterAppend, "20"}, {ErrInvalidRequiredAcks, "21"},
		{ErrUnsupportedTimestamp, "35"}, {ErrDuplicatePartition, "42"}, {ErrPolicyViolation, "44"}, {ErrFencedLeaderEpoch, "74"},
		{ErrUnknownLeaderEpoch, "75"}, {ErrOffsetNotAvailable, "78"}, {ErrUnknownTopicID, "100"}, {ErrInconsistentTopicID, "103"},
		{ErrOffsetMovedToTieredStorage, "109"},
	} {
		if errors.Is(err, k.err) {
			return k.name
		}
	}
	if err == nil {
		return "0"
	}
	return err.Error()
}

// TestCommonCheckComparesTheEpochBeforeTheRole: a leader at epoch 5 takes an absent or equal epoch; older is 74, newer
// 75. A follower at 5 answers 74 and 75 just so, and 6 only to 5.
func TestCommonCheckComparesTheEpochBeforeTheRole(t *testing.T) {
	t.Parallel()
	leader := leaderState(t, 5, 1, 0, 1).Role()
	f := NewState(1, "t", 0, 1)
	f.BecomeFollower(LeaderAndISR{Leader: 2, LeaderEpoch: 5, Replicas: []int32{1, 2}, ISR: []int32{2}}, Positions{}, 0, false)
	follower := f.Role()
	for _, c := range []struct {
		epoch            int32
		leader, follower string
	}{
		{-1, "0", "6"}, {5, "0", "6"}, {4, "74", "74"}, {6, "75", "75"}, {0, "74", "74"}, {2147483647, "75", "75"},
		{-2, "74", "74"}, // only -1 is absent here
	} {
		if got := kind(leader.Check(c.epoch, c.epoch != NoEpoch, true)); got != c.leader {
			t.Errorf("leader, epoch %d: %s, want %s", c.epoch, got, c.leader)
		}
		if got := kind(follower.Check(c.epoch, c.epoch != NoEpoch, true)); got != c.follower {
			t.Errorf("follower, epoch %d: %s, want %s", c.epoch, got, c.follower)
		}
	}
	var fenced *FencedLeaderEpochError
	if err := leader.Check(4, true, true); !errors.As(err, &fenced) || fenced.Current != (LeaderAndEpoch{1, 5}) {
		t.Errorf("the fenced error does not name the leader: %v", err)
	}
	if got := kind(NewState(1, "t", 0, 1).Role().Check(-1, false, false)); got != "6" {
		t.Errorf("no role: %s, want 6", got)
	}
}

// TestFetchPrecedence replays the table of fetches against a leader at epoch 7 with log start 20, high watermark 95
// and log end 100.
func TestFetchPrecedence(t *testing.T) {
	t.Parallel()
	role := leaderState(t, 7, 1, 80, 1, 2).Role()
	const replica, consumer = int32(2), ConsumerID
	for _, c := range []struct {
		id, current int32
		offset      int64
		last        int32
		want        string
	}{
		{replica, 7, 100, 7, "wait"},
		{replica, 7, 90, 8, "1"},
		{replica, 7, 90, 6, "div(6,80)"},
		{replica, 7, 80, 6, "read<100"},
		{replica, 7, 60, 5, "div(3,50)"},
		{replica, 7, 10, 5, "1"},
		{replica, 7, 20, 0, "read<100"},
		{replica, 7, 21, 0, "div(0,20)"},
		{replica, 7, 120, 7, "div(7,100)"},
		{replica, 7, 120, -1, "1"},
		{replica, 6, 100, 7, "74"},
		{replica, 6, 1000, 9, "74"},
		{replica, 8, 100, 7, "75"},
		{replica, 8, 0, -1, "75"},
		{consumer, 7, 95, -1, "wait"},
		{consumer, 7, 100, -1, "wait"},
		{consumer, 7, 101, -1, "1"},
		{consumer, -1, 19, -1, "1"},
		{consumer, -1, 94, -1, "read<95"},
		{consumer, -2, 94, -2, "read<95"}, // any negative epoch is absent in Fetch
		{DebugConsumerID, -1, 94, -1, "read<95"},
		{FutureReplicaID, -1, 99, -1, "read<100"},
		{9, 7, 90, 7, "75"}, // no replica of ours, epoch given
		{9, -1, 90, 7, "6"}, // and not given
	} {
		q := FetchQuery{ReplicaID: c.id, CurrentLeaderEpoch: c.current, FetchOffset: c.offset, LastFetchedEpoch: c.last, MayReadFollower: true}
		if got := fetchOutcome(role, q, vectorPositions, vectorEpochs()); got != c.want {
			t.Errorf("fetch by %d at (%d, epoch %d, last %d): %s, want %s", c.id, c.offset, c.current, c.last, got, c.want)
		}
	}
}

func fetchOutcome(r *Role, q FetchQuery, pos Positions, epochs epoch.Cache) string {
	if err := r.CheckFetchRole(q); err != nil {
		return kind(err)
	}
	d, err := r.CheckFetchOffset(q, pos, epochs)
	switch {
	case err != nil:
		return kind(err)
	case d.Diverging:
		return fmt.Sprintf("div(%d,%d)", d.DivergingEpoch.Epoch, d.DivergingEpoch.Offset)
	case d.Remote:
		return "remote"
	case d.AtEnd:
		return "wait"
	default:
		return fmt.Sprintf("read<%d", d.Bound)
	}
}

// TestFetchFromAFollower: consumers that know how may read a follower, up to its high watermark; older ones and
// other replicas may not.
func TestFetchFromAFollower(t *testing.T) {
	t.Parallel()
	s := NewState(1, "t", 0, 1)
	s.BecomeFollower(LeaderAndISR{Leader: 2, LeaderEpoch: 7, Replicas: []int32{1, 2, 3}, ISR: []int32{2}}, vectorPositions, 7, true)
	for _, c := range []struct {
		id   int32
		may  bool
		want string
	}{{ConsumerID, true, "read<95"}, {ConsumerID, false, "6"}, {3, true, "6"}, {FutureReplicaID, false, "read<100"}} {
		q := FetchQuery{ReplicaID: c.id, CurrentLeaderEpoch: 7, FetchOffset: 50, LastFetchedEpoch: -1, MayReadFollower: c.may}
		if got := fetchOutcome(s.Role(), q, vectorPositions, vectorEpochs()); got != c.want {
			t.Errorf("fetch by %d (may read follower %v): %s, want %s", c.id, c.may, got, c.want)
		}
	}
}

// TestFetchBelowTheLocalLogStart: a replica is told that the offset moved to tiered storage, a consumer is served.
func TestFetchBelowTheLocalLogStart(t *testing.T) {
	t.Parallel()
	role := leaderState(t, 7, 1, 80, 1, 2).Role()
	pos := vectorPositions
	pos.LocalLogStart = 40
	for _, c := range []struct {
		id     int32
		offset int64
		want   string
	}{{2, 30, "109"}, {ConsumerID, 30, "remote"}, {2, 40, "read<100"}, {ConsumerID, 19, "1"}} {
		q := FetchQuery{ReplicaID: c.id, CurrentLeaderEpoch: 7, FetchOffset: c.offset, LastFetchedEpoch: -1, MayReadFollower: true}
		if got := fetchOutcome(role, q, pos, vectorEpochs()); got != c.want {
			t.Errorf("fetch by %d at %d: %s, want %s", c.id, c.offset, got, c.want)
		}
	}
}

// TestE024_below_the_log_start_wins_over_divergence: a position below the log start is out of range even when its epoch
// diverges too (KAFKA-12996); with an empty cache any last epoch is.
func TestE024_below_the_log_start_wins_over_divergence(t *testing.T) {
	t.Parallel()
	role := leaderState(t, 7, 1, 20, 1).Role()
	epochs := caches(2, 12, 5, 15)
	pos := Positions{LogStart: 12, LocalLogStart: 12, HighWatermark: 20, LastStable: 20, End: 20}
	for _, c := range []struct {
		offset int64
		last   int32
		epochs epoch.Cache
		want   string
	}{{13, 3, epochs, "div(2,15)"}, {16, 3, epochs, "div(2,15)"}, {11, 3, epochs, "1"}, {13, 3, epoch.Cache{}, "1"}} {
		q := FetchQuery{ReplicaID: ConsumerID, CurrentLeaderEpoch: -1, FetchOffset: c.offset, LastFetchedEpoch: c.last, MayReadFollower: true}
		got := fetchOutcome(role, q, pos, c.epochs)
		if got != c.want {
			t.Errorf("(%d, last %d): %s, want %s", c.offset, c.last, got, c.want)
		}
	}
}

// TestListOffsetsVectors replays the table of ListOffsets against a leader at epoch 7.
func TestListOffsetsVectors(t *testing.T) {
	t.Parallel()
	pos := Positions{LogStart: 20, LocalLogStart: 20, HighWatermark: 95, LastStable: 90, End: 100}
	// The record at offset o is stamped 100 o.
	source := func(p Positions) OffsetSource {
		epochs := vectorEpochs()
		at := func(o int64) TimestampAndOffset {
			e, _ := epochs.ForOffset(o)
			return TimestampAndOffset{Offset: o, Timestamp: 100 * o, Epoch: e}
		}
		return OffsetSource{
			Positions: p, Epochs: epochs, HighestRemote: -1,
			ForTime: func(ts int64) (TimestampAndOffset, bool, error) {
				o := max((ts+99)/100, p.LogStart)
				return at(o), o < p.End, nil
			},
			ForMaxTimestamp: func() (TimestampAndOffset, bool, error) { return at(p.End - 1), p.End > p.LogStart, nil },
		}
	}
	with := func(f func(*OffsetSource)) OffsetSource { s := source(pos); f(&s); return s }
	lagging := func() OffsetSource { p := pos; p.HighWatermark, p.LastStable = 70, 70; return source(p) }()
	tiered := func(remote int64) OffsetSource {
		return with(func(s *OffsetSource) { s.Tiered, s.HighestRemote, s.LocalLogStart = true, remote, 40 })
	}
	role := leaderState(t, 7, 1, 80, 1, 2).Role()
	type call struct {
		ts  int64
		id  int32
		iso Isolation
	}
	for _, c := range []struct {
		name string
		src  OffsetSource
		call call
		want string
	}{
		{"latest ru", source(pos), call{-1, -1, 0}, "(95,-1,7)"},
		{"latest rc", source(pos), call{-1, -1, 1}, "(90,-1,7)"},
		{"latest replica", source(pos), call{-1, 2, 1}, "(100,-1,7)"},
		{"latest debug", source(pos), call{-1, -2, 0}, "(100,-1,7)"},
		{"earliest", source(pos), call{-2, -1, 0}, "(20,-1,2)"},
		{"earliest below the first epoch", with(func(s *OffsetSource) { s.LogStart, s.LocalLogStart = 15, 15 }), call{-2, -1, 0}, "(15,-1,-1)"},
		{"earliest local", source(pos), call{-4, -1, 0}, "(20,-1,2)"},
		{"tiered, not tiered", source(pos), call{-5, -1, 0}, "(-1,-1,-1)"},
		{"pending, not tiered", source(pos), call{-6, -1, 0}, "(-1,-1,-1)"},
		{"time 6000", source(pos), call{6000, -1, 0}, "(60,6000,6)"},
		{"time beyond all", source(pos), call{1 << 40, -1, 0}, "(-1,-1,-1)"},
		{"time at 92 ru", source(pos), call{9200, -1, 0}, "(92,9200,7)"},
		{"time at 92 rc", source(pos), call{9200, -1, 1}, "(-1,-1,-1)"},
		{"max above hw", source(pos), call{-3, -1, 0}, "(-1,-1,-1)"},
		{"max replica", source(pos), call{-3, 2, 0}, "(99,9900,7)"},
		{"lagging latest", lagging, call{-1, -1, 0}, "78"},
		{"lagging latest by a replica", lagging, call{-1, 2, 0}, "(100,-1,7)"},
		{"lagging earliest", lagging, call{-2, -1, 0}, "(20,-1,2)"},
		{"lagging earliest local", lagging, call{-4, -1, 0}, "(20,-1,2)"},
		{"lagging time at 60", lagging, call{6000, -1, 0}, "(60,6000,6)"},
		{"lagging time at 75", lagging, call{7500, -1, 0}, "78"},
		{"lagging time beyond all", lagging, call{1 << 40, -1, 0}, "78"},
		{"lagging unknown tier offset", lagging, call{-5, -1, 0}, "(-1,-1,-1)"},
		{"earliest local, tiered", tiered(59), call{-4, -1, 0}, "(40,-1,3)"},
		{"tiered 59", tiered(59), call{-5, -1, 0}, "(59,-1,6)"},
		{"pending after 59", tiered(59), call{-6, -1, 0}, "(60,-1,6)"},
		{"pending, nothing uploaded", with(func(s *OffsetSource) { s.Tiered = true }), call{-6, -1, 0}, "(20,-1,2)"},
		{"pending, nothing uploaded, local ahead", tiered(-1), call{-6, -1, 0}, "(-1,-1,-1)"},
		{"pending above hw", tiered(94), call{-6, -1, 0}, "(-1,-1,-1)"},
		{"pending above hw, replica", tiered(94), call{-6, 2, 0}, "(95,-1,7)"},
		{"other negative", source(pos), call{-7, -1, 0}, "35"},
		{"empty cache", OffsetSource{Positions: Positions{}, HighestRemote: -1}, call{-2, -1, 0}, "(0,-1,-1)"},
	} {
		got, err := role.ListOffset(OffsetQuery{Timestamp: c.call.ts, ReplicaID: c.call.id, CurrentLeaderEpoch: 7, Isolation: c.call.iso}, c.src)
		out := fmt.Sprintf("(%d,%d,%d)", got.Offset, got.Timestamp, got.Epoch)
		if err != nil {
			if out != "(-1,-1,-1)" {
				t.Errorf("%s: values %s beside an error", c.name, out)
			}
			out = kind(err)
		}
		if out != c.want {
			t.Errorf("%s: %s, want %s", c.name, out, c.want)
		}
	}
}

// TestE036_negative_timestamps_by_version: -3 needs version 7, -4 8, -5 9, -6 11; -7 is never known; -1 and -2 always.
func TestE036_negative_timestamps_by_version(t *testing.T) {
	t.Parallel()
	for ts, from := range map[int64]int16{-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11, 0: 1, 5: 1, -7: 100} {
		for v := int16(1); v <= 11; v++ {
			if got := SupportedTimestamp(ts, v); got != (v >= from) {
				t.Errorf("timestamp %d at v%d: %v", ts, v, got)
			}
		}
	}
}

// TestOffsetForLeaderEpochVectors: endOffsetFor on E at a leader of epoch 7; 74 and 75 when the current epoch is off.
func TestOffsetForLeaderEpochVectors(t *testing.T) {
	t.Parallel()
	role := leaderState(t, 7, 1, 80, 1).Role()
	for _, c := range []struct {
		current, asked int32
		want           string
	}{
		{7, -1, "(-1,-1)"}, {7, 0, "(0,20)"}, {7, 1, "(1,20)"}, {7, 2, "(2,35)"}, {7, 3, "(3,50)"}, {7, 4, "(3,50)"}, {7, 5, "(3,50)"},
		{7, 6, "(6,80)"}, {7, 7, "(7,100)"}, {7, 8, "(-1,-1)"}, {-1, 7, "(7,100)"}, {6, 7, "74"}, {8, 7, "75"}, {-2, 7, "74"},
	} {
		got, err := role.EndOffsetForEpoch(c.current, c.asked, vectorPositions, vectorEpochs())
		out := fmt.Sprintf("(%d,%d)", got.Epoch, got.Offset)
		if err != nil {
			out = kind(err)
		}
		if out != c.want {
			t.Errorf("current %d, asked %d: %s, want %s", c.current, c.asked, out, c.want)
		}
	}
}

// TestE067_high_watermark_table replays the table of the high watermark: RF 3, min ISR 2, leader 1.
func TestE067_high_watermark_table(t *testing.T) {
	t.Parallel()
	s := leaderState(t, 0, 2, 0, 1, 2, 3)
	now, hw, end := t0, int64(0), int64(0)
	step := func(name string, want int64) {
		t.Helper()
		if next, ok := s.NextHighWatermark(hw, end, now, lag, allAlive); ok {
			hw = next
		}
		if hw != want {
			t.Fatalf("%s: high watermark %d, want %d", name, hw, want)
		}
	}
	end = 10
	step("produce 10", 0)
	fetchAt(t, s, 2, 10, end, now)
	step("fetch by 2 at 10", 0)
	fetchAt(t, s, 3, 8, end, now)
	step("fetch by 3 at 8", 8)

	now = now.Add(31 * time.Second)
	fetchAt(t, s, 2, 10, end, now)
	shrink, ok := s.ProposeShrink(end, now, lag, allAlive)
	if !ok || !slices.Equal(shrink.Leaving, []int32{3}) {
		t.Fatalf("shrink: %+v %v", shrink, ok)
	}
	step("3 stops, shrink in flight", 8)
	adopt(t, s, shrink)
	step("shrink committed", 10)

	now = now.Add(31 * time.Second)
	end = 15
	shrink, ok = s.ProposeShrink(end, now, lag, allAlive)
	if !ok || !slices.Equal(shrink.Leaving, []int32{2}) {
		t.Fatalf("second shrink: %+v %v", shrink, ok)
	}
	adopt(t, s, shrink)
	step("2 stops, ISR 1, produce 5 with acks=1", 10)
	if kind(s.CheckAppendAll()) != "19" {
		t.Error("acks=all is not refused under min ISR")
	}

	now = now.Add(time.Second)
	fetchAt(t, s, 3, 15, end, now)
	expand, ok := s.ProposeExpand(3, hw, allAlive)
	if !ok {
		t.Fatal("3 may not join")
	}
	step("3 at 15, expansion pending", 10)
	adopt(t, s, expand)
	step("expansion committed", 15)
}

// adopt lets the controller accept a change.
func adopt(t failer, s *State, c AlterPartition) {
	t.Helper()
	var isr []int32
	for _, m := range c.NewISR {
		isr = append(isr, m.ID)
	}
	r := s.AlterPartitionDone(c, AlterAccepted, LeaderAndISR{Leader: 1, LeaderEpoch: c.LeaderEpoch, PartitionEpoch: c.PartitionEpoch + 1, ISR: isr})
	if r != AlterAdopted {
		t.Fatalf("change %+v not adopted: %d", c, r)
	}
}

// TestSoleMemberAdvancesAtOnce: alone in the ISR with an effective min ISR of 1 a leader's high watermark is its end,
// also when min.insync.replicas is above the replication factor.
func TestSoleMemberAdvancesAtOnce(t *testing.T) {
	t.Parallel()
	s := leaderState(t, 0, 3, 0, 1)
	if hw, ok := s.NextHighWatermark(0, 10, t0, lag, nil); !ok || hw != 10 {
		t.Errorf("high watermark %d %v", hw, ok)
	}
	if s.CheckAppendAll() != nil {
		t.Error("acks=all refused")
	}
}

// TestNewLeaderWaitsForItsFollowers: after taking over, unknown follower ends hold the high watermark where it is;
// taking a higher epoch while leading keeps what is known; an ISR change of the same epoch resets nothing.
func TestNewLeaderWaitsForItsFollowers(t *testing.T) {
	t.Parallel()
	s := NewState(1, "t", 0, 1)
	both := []int32{1, 2}
	s.BecomeFollower(LeaderAndISR{Leader: 2, LeaderEpoch: 3, PartitionEpoch: 3, Replicas: both, ISR: both}, Positions{End: 100}, 3, true)
	start, ok := s.BecomeLeader(LeaderAndISR{Leader: 1, LeaderEpoch: 4, PartitionEpoch: 4, Replicas: both, ISR: both, Recovering: true}, 100, t0)
	if !ok || !start.NewEpoch || start.EpochStart != 100 || s.Role().Recovering {
		t.Fatalf("start %+v %v, recovering %v", start, ok, s.Role().Recovering)
	}
	if _, moved := s.NextHighWatermark(80, 100, t0, lag, allAlive); moved {
		t.Error("the high watermark moved before the follower fetched")
	}
	fetchAt(t, s, 2, 90, 100, t0)
	if hw, _ := s.NextHighWatermark(80, 100, t0, lag, allAlive); hw != 90 {
		t.Errorf("high watermark %d", hw)
	}
	start, _ = s.BecomeLeader(LeaderAndISR{Leader: 1, LeaderEpoch: 4, PartitionEpoch: 5, Replicas: both, ISR: both}, 120, t0)
	if start.NewEpoch || s.Role().EpochStart != 100 || s.Followers()[0].End != 90 {
		t.Errorf("an ISR change reset something: %+v, %+v", start, s.Followers())
	}
	start, _ = s.BecomeLeader(LeaderAndISR{Leader: 1, LeaderEpoch: 5, PartitionEpoch: 6, Replicas: both, ISR: both}, 120, t0)
	if !start.NewEpoch || s.Role().EpochStart != 120 || s.Followers()[0].End != 90 {
		t.Errorf("re-elected: %+v, %+v", start, s.Followers())
	}
	if _, ok := s.BecomeLeader(LeaderAndISR{Leader: 1, LeaderEpoch: 9, PartitionEpoch: 5, Replicas: both, ISR: both}, 120, t0); ok {
		t.Error("an older partition epoch was accepted")
	}
}

// TestFollowerStartsWhereItsHistoryIs: at its end with its latest epoch; without any epoch at its high watermark, cut to
// it; the fetcher restarts only when the leader epoch rose.
func TestFollowerStartsWhereItsHistoryIs(t *testing.T) {
	t.Parallel()
	both := []int32{1, 2}
	pos := Positions{HighWatermark: 7, End: 10}
	s := NewState(1, "t", 0, 1)
	got, _ := s.BecomeFollower(LeaderAndISR{Leader: 2, LeaderEpoch: 3, PartitionEpoch: 3, Replicas: both}, pos, 0, true)
	if got != (FollowerStart{Restart: true, FetchOffset: 10, LastFetchedEpoch: 0}) {
		t.Errorf("with epochs: %+v", got)
	}
	got, _ = s.BecomeFollower(LeaderAndISR{Leader: 2, LeaderEpoch: 3, PartitionEpoch: 4, Replicas: both}, pos, 0, true)
	if got.Restart {
		t.Error("restarted without a new leader epoch")
	}
	got, _ = s.BecomeFollower(LeaderAndISR{Leader: 2, LeaderEpoch: 4, PartitionEpoch: 5, Replicas: both}, pos, 0, false)
	if got != (FollowerStart{Restart: true, Truncate: true, FetchOffset: 7, LastFetchedEpoch: -1}) {
		t.Errorf("without epochs: %+v", got)
	}
	if _, ok := s.BecomeFollower(LeaderAndISR{Leader: 2, LeaderEpoch: 9, PartitionEpoch: 4}, pos, 0, true); ok {
		t.Error("an older partition epoch was accepted")
	}
}

// TestE060_no_expansion_below_the_epoch_start: new leader with epoch start 100 and high watermark 80: a follower at 90
// is not added, at 100 it is.
func TestE060_no_expansion_below_the_epoch_start(t *testing.T) {
	t.Parallel()
	s := NewState(1, "t", 0, 1)
	s.BecomeLeader(LeaderAndISR{Leader: 1, LeaderEpoch: 4, Replicas: []int32{1, 2}, ISR: []int32{1}}, 100, t0)
	fetchAt(t, s, 2, 90, 100, t0)
	if _, ok := s.ProposeExpand(2, 80, allAlive); ok {
		t.Error("added at 90")
	}
	fetchAt(t, s, 2, 100, 100, t0)
	if _, ok := s.ProposeExpand(2, 101, allAlive); ok {
		t.Error("added below the high watermark")
	}
	c, ok := s.ProposeExpand(2, 80, allAlive)
	if !ok || c.Joining != 2 || len(c.NewISR) != 2 {
		t.Errorf("not added at 100: %+v", c)
	}
	if _, ok := s.ProposeExpand(2, 80, allAlive); ok {
		t.Error("two changes in flight")
	}
}

// TestE058_a_restarted_follower_counts_only_under_its_new_epoch: broker 2 comes back with an empty disk (40 -> 55); a
// fetch of the old process at 1000 arrives late: 6, not counted, not added (KIP-903).
func TestE058_a_restarted_follower_counts_only_under_its_new_epoch(t *testing.T) {
	t.Parallel()
	s := NewState(1, "t", 0, 1)
	s.BecomeLeader(LeaderAndISR{Leader: 1, LeaderEpoch: 4, Replicas: []int32{1, 2}, ISR: []int32{1}}, 1000, t0)
	registered := int64(40)
	brokers := func(id int32) (BrokerStatus, bool) { return BrokerStatus{Epoch: registered}, true }
	f := FollowerFetch{ReplicaID: 2, BrokerEpoch: 40, FetchOffset: 1000, LeaderEnd: 1000, At: t0}
	if err := s.UpdateFollower(f, brokers); err != nil {
		t.Fatal(err)
	}
	registered = 55
	if _, ok := s.ProposeExpand(2, 1000, brokers); ok {
		t.Error("added under its old epoch")
	}
	before := s.Followers()[0]
	f.At = t0.Add(time.Second)
	if got := kind(s.UpdateFollower(f, brokers)); got != "6" {
		t.Errorf("late fetch: %s", got)
	}
	if s.Followers()[0] != before {
		t.Error("the late fetch was counted")
	}
	f.BrokerEpoch = 55
	if err := s.UpdateFollower(f, brokers); err != nil {
		t.Fatal(err)
	}
	c, ok := s.ProposeExpand(2, 1000, brokers)
	if !ok || c.NewISR[1] != (ISRMember{2, 55}) {
		t.Errorf("not added under its new epoch: %+v", c)
	}
	if got := kind(s.UpdateFollower(FollowerFetch{ReplicaID: 9, BrokerEpoch: -1}, brokers)); got != "6" {
		t.Errorf("no replica: %s", got)
	}
}

// A change of the in-sync set names each member under the epoch in which it fetched, not the one that is registered since:
// the controller refuses a member that has restarted, and with it perhaps lost what it had (KIP-903).
func TestISRChangeNamesTheEpochsThatFetched(t *testing.T) {
	t.Parallel()
	s := NewState(1, "t", 0, 1)
	s.BecomeLeader(LeaderAndISR{Leader: 1, LeaderEpoch: 4, Replicas: []int32{1, 2, 3}, ISR: []int32{1, 2}}, 10, t0)
	registered := map[int32]int64{1: 10, 2: 20, 3: 30}
	brokers := func(id int32) (BrokerStatus, bool) { return BrokerStatus{Epoch: registered[id]}, true }
	for _, id := range []int32{2, 3} {
		if err := s.UpdateFollower(FollowerFetch{ReplicaID: id, BrokerEpoch: registered[id], FetchOffset: 10, LeaderEnd: 10, At: t0}, brokers); err != nil {
			t.Fatal(err)
		}
	}
	registered[2] = 25
	c, ok := s.ProposeExpand(3, 10, brokers)
	if want := []ISRMember{{1, 10}, {2, 20}, {3, 30}}; !ok || !slices.Equal(c.NewISR, want) {
		t.Errorf("proposed %+v, want %+v", c.NewISR, want)
	}
}

// TestExpansionNeedsALiveBroker: fenced, shutting down and unregistered followers do not join, nor hold the high
// watermark back.
func TestExpansionNeedsALiveBroker(t *testing.T) {
	t.Parallel()
	for name, status := range map[string]func(int32) (BrokerStatus, bool){
		"fenced":        func(int32) (BrokerStatus, bool) { return BrokerStatus{Fenced: true}, true },
		"shutting down": func(int32) (BrokerStatus, bool) { return BrokerStatus{ShuttingDown: true}, true },
		"unregistered":  func(int32) (BrokerStatus, bool) { return BrokerStatus{}, false },
	} {
		s := NewState(1, "t", 0, 1)
		s.BecomeLeader(LeaderAndISR{Leader: 1, Replicas: []int32{1, 2}, ISR: []int32{1}}, 10, t0)
		fetchAt(t, s, 2, 10, 10, t0)
		if _, ok := s.ProposeExpand(2, 10, status); ok {
			t.Errorf("%s: added", name)
		}
		if hw, _ := s.NextHighWatermark(10, 12, t0, lag, status); hw != 12 {
			t.Errorf("%s: holds the high watermark at %d", name, hw)
		}
		if hw, _ := s.NextHighWatermark(9, 12, t0, lag, allAlive); hw != 10 {
			t.Errorf("alive and about to join, but the high watermark went to %d", hw)
		}
	}
}

// TestLastCaughtUp: a fetch at the leader's end counts from now; one that reaches the end of the previous fetch counts
// from then; others do not count.
func TestLastCaughtUp(t *testing.T) {
	t.Parallel()
	s := leaderState(t, 0, 1, 0, 1, 2)
	at := func(sec int) time.Time { return t0.Add(time.Duration(sec) * time.Second) }
	want := func(sec int) {
		t.Helper()
		if got := s.Followers()[0].LastCaughtUp; !got.Equal(at(sec)) {
			t.Errorf("last caught up %v, want +%ds", got.Sub(t0), sec)
		}
	}
	fetchAt(t, s, 2, 0, 10, at(1))
	want(0)
	fetchAt(t, s, 2, 10, 20, at(2))
	want(1)
	fetchAt(t, s, 2, 15, 30, at(3))
	want(1)
	fetchAt(t, s, 2, 30, 30, at(4))
	want(4)
	if _, ok := s.ProposeShrink(40, at(34), lag, allAlive); ok {
		t.Error("shrunk at exactly the lag time")
	}
	if _, ok := s.ProposeShrink(30, at(100), lag, allAlive); ok {
		t.Error("shrunk though nothing is missing")
	}
	if _, ok := s.ProposeShrink(40, at(35), lag, allAlive); !ok {
		t.Error("not shrunk after the lag time")
	}
}

// TestAlterPartitionReactions: what the leader does with each answer of the controller.
func TestAlterPartitionReactions(t *testing.T) {
	t.Parallel()
	all := []int32{1, 2}
	for _, c := range []struct {
		code     int16
		returned LeaderAndISR
		want     AlterReaction
		inFlight bool
	}{
		{0, LeaderAndISR{LeaderEpoch: 4, PartitionEpoch: 8, ISR: all}, AlterAdopted, false},
		{0, LeaderAndISR{LeaderEpoch: 5, PartitionEpoch: 8, ISR: all}, AlterIgnored, true},
		{0, LeaderAndISR{LeaderEpoch: 4, PartitionEpoch: 6, ISR: all}, AlterIgnored, true},
		{55, LeaderAndISR{}, AlterDropped, false},
		{107, LeaderAndISR{}, AlterDropped, false},
		{100, LeaderAndISR{}, AlterWaiting, true},
		{3, LeaderAndISR{}, AlterWaiting, true},
		{74, LeaderAndISR{}, AlterWaiting, true},
		{95, LeaderAndISR{}, AlterWaiting, true},
		{42, LeaderAndISR{}, AlterWaiting, true},
		{108, LeaderAndISR{}, AlterWaiting, true},
		{41, LeaderAndISR{}, AlterRetry, true},
		{-1, LeaderAndISR{}, AlterRetry, true},
	} {
		s := NewState(1, "t", 0, 2)
		s.BecomeLeader(LeaderAndISR{Leader: 1, LeaderEpoch: 4, PartitionEpoch: 7, Replicas: all, ISR: []int32{1}}, 10, t0)
		fetchAt(t, s, 2, 10, 10, t0)
		sent, ok := s.ProposeExpand(2, 10, allAlive)
		if !ok {
			t.Fatal("no proposal")
		}
		if got := s.AlterPartitionDone(sent, AlterOutcomeOf(c.code), c.returned); got != c.want || s.InFlight() != c.inFlight {
			t.Errorf("code %d, %+v: reaction %d, in flight %v", c.code, c.returned, got, s.InFlight())
		}
		if wantISR := map[bool]int{true: 2, false: 1}[c.want == AlterAdopted]; len(s.Role().ISR) != wantISR {
			t.Errorf("code %d: committed ISR %v", c.code, s.Role().ISR)
		}
		// Metadata moves on; a late answer changes nothing.
		s.BecomeLeader(LeaderAndISR{Leader: 1, LeaderEpoch: 4, PartitionEpoch: 9, Replicas: all, ISR: all}, 10, t0)
		if got := s.AlterPartitionDone(sent, AlterRefused, LeaderAndISR{}); got != AlterIgnored || s.Role().PartitionEpoch != 9 {
			t.Errorf("a late answer was taken: %d", got)
		}
	}
}

// TestRepeatedDecisionKeepsTheChangeInFlight: a decision that arrives once more, by metadata after the answer to
// AlterPartition, does not end the next change, which the controller may have committed: the replica that joins by it
// still holds back the high watermark (P5). Once adopted, the answer counts.
func TestRepeatedDecisionKeepsTheChangeInFlight(t *testing.T) {
	t.Parallel()
	all := []int32{1, 2, 3}
	s := NewState(1, "t", 0, 1)
	s.BecomeLeader(LeaderAndISR{Leader: 1, LeaderEpoch: 4, PartitionEpoch: 7, Replicas: all, ISR: []int32{1}}, 10, t0)
	fetchAt(t, s, 2, 10, 10, t0)
	first, ok := s.ProposeExpand(2, 10, allAlive)
	if !ok {
		t.Fatal("2 may not join")
	}
	adopt(t, s, first)
	fetchAt(t, s, 3, 10, 10, t0)
	second, ok := s.ProposeExpand(3, 10, allAlive)
	if !ok {
		t.Fatal("3 may not join")
	}
	repeated := LeaderAndISR{Leader: 1, LeaderEpoch: 4, PartitionEpoch: 8, Replicas: all, ISR: []int32{1, 2}}
	if start, ok := s.BecomeLeader(repeated, 10, t0); !ok || start.NewEpoch || !s.InFlight() {
		t.Fatalf("%+v %v, in flight %v", start, ok, s.InFlight())
	}
	later := t0.Add(2 * lag)
	fetchAt(t, s, 2, 20, 20, later)
	if hw, _ := s.NextHighWatermark(10, 20, later, lag, allAlive); hw != 10 {
		t.Errorf("high watermark %d, though 3 may be in the ISR and is at 10", hw)
	}
	adopt(t, s, second)
}

// TestAcknowledgement: acks=all is complete at the high watermark; with too small a maximal ISR by then it is 20.
func TestAcknowledgement(t *testing.T) {
	t.Parallel()
	s := leaderState(t, 0, 2, 0, 1, 2)
	if done, _ := s.AckedAll(10, 9); done {
		t.Error("acknowledged below the high watermark")
	}
	if done, err := s.AckedAll(10, 10); !done || err != nil {
		t.Errorf("%v %v", done, err)
	}
	shrink, ok := s.ProposeShrink(10, t0.Add(time.Minute), lag, allAlive)
	if !ok {
		t.Fatal("no shrink")
	}
	if done, err := s.AckedAll(10, 10); !done || err != nil {
		t.Errorf("a shrink in flight does not count yet: %v", err)
	}
	adopt(t, s, shrink)
	if done, err := s.AckedAll(10, 10); !done || kind(err) != "20" {
		t.Errorf("%v %v", done, err)
	}
}

// TestLowWatermark is the least log start of the leader and its live followers, unknown while one has not told.
func TestLowWatermark(t *testing.T) {
	t.Parallel()
	s := leaderState(t, 0, 1, 0, 1, 2, 3)
	if _, known := s.LowWatermark(50, allAlive); known {
		t.Error("known before the followers fetched")
	}
	fenced := func(id int32) (BrokerStatus, bool) { return BrokerStatus{Fenced: id == 3}, true }
	if err := s.UpdateFollower(FollowerFetch{ReplicaID: 2, BrokerEpoch: -1, FetchOffset: 60, LogStart: 30, LeaderEnd: 60, At: t0}, allAlive); err != nil {
		t.Fatal(err)
	}
	if low, known := s.LowWatermark(50, fenced); !known || low != 30 {
		t.Errorf("%d %v", low, known)
	}
}

// TestFollowerTakesHighWatermarkAndLogStart: clamped to its own log; the log start only up to the high watermark.
func TestFollowerTakesHighWatermarkAndLogStart(t *testing.T) {
	t.Parallel()
	pos := Positions{LogStart: 10, HighWatermark: 40, End: 50}
	for leader, want := range map[int64]int64{5: 10, 30: 30, 45: 45, 90: 50} {
		if got := FollowerHighWatermark(leader, pos); got != want {
			t.Errorf("leader's high watermark %d: %d, want %d", leader, got, want)
		}
	}
	for leader, want := range map[int64]int64{5: 10, 30: 30, 40: 40, 41: 10} {
		if got, _ := FollowerLogStart(leader, pos); got != want {
			t.Errorf("leader's log start %d: %d, want %d", leader, got, want)
		}
	}
}

// 4.1: a leader that hears of its next reign, and never of the other's between them, takes nothing that it knew of its
// followers for granted: they may have cut what they had to the other's log. In neighbouring reigns they cannot have.
func TestLeaderAgainAfterAReignItMissed(t *testing.T) {
	t.Parallel()
	replicas := []int32{1, 2, 3}
	for _, c := range []struct {
		epoch int32
		want  int64
	}{{6, 120}, {7, 100}} {
		s := leaderState(t, 5, 2, 120, replicas...)
		fetchAt(t, s, 2, 120, 120, t0)
		fetchAt(t, s, 3, 100, 120, t0)
		if hw, _ := s.NextHighWatermark(90, 120, t0, lag, allAlive); hw != 100 {
			t.Fatalf("high watermark %d in epoch 5, want 100", hw)
		}
		// Broker 3 left the in-sync set: it does not hold the high watermark back any more, and broker 2 does by what it has.
		next := LeaderAndISR{Leader: 1, LeaderEpoch: c.epoch, PartitionEpoch: 3, Replicas: replicas, ISR: []int32{1, 2}}
		if _, ok := s.BecomeLeader(next, 120, t0); !ok {
			t.Fatal("leadership refused")
		}
		if hw, _ := s.NextHighWatermark(100, 120, t0.Add(2*lag), lag, allAlive); hw != c.want {
			t.Errorf("epoch 5 then %d: high watermark %d, want %d", c.epoch, hw, c.want)
		}
		fetchAt(t, s, 2, 110, 120, t0.Add(2*lag))
		if hw, _ := s.NextHighWatermark(100, 120, t0.Add(2*lag), lag, allAlive); hw != 110 {
			t.Errorf("epoch 5 then %d: high watermark %d after a fetch at 110", c.epoch, hw)
		}
	}
}
