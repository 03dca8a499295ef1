package replica

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stelelog/stele/internal/epoch"
)

// copyOf is a log without records: what truncation looks at.
type copyOf struct {
	epochs            epoch.Cache
	logStart, hw, end int64
}

// exchange lets a follower fetch from a leader until they agree, and says what happened, in the words of the table. A
// follower that is at the same place twice ends with "for ever".
func exchange(f, l *copyOf) []string {
	role := &Role{Topic: "t", Kind: RoleLeader, LeaderAndISR: LeaderAndISR{Leader: 1, Replicas: []int32{1, 2}}}
	lpos := Positions{LogStart: l.logStart, LocalLogStart: l.logStart, HighWatermark: l.end, LastStable: l.end, End: l.end}
	var said []string
	last := NoEpoch
	if e, ok := f.epochs.Latest(); ok {
		last = e.Epoch
	}
	cut := func(to int64) {
		f.epochs = f.epochs.TruncateFromEnd(min(to, f.end))
		f.end = min(f.end, to)
		f.hw = min(f.hw, f.end)
		last = NoEpoch
		if e, ok := f.epochs.Latest(); ok {
			last = e.Epoch
		}
	}
	for range 20 {
		ask := fmt.Sprintf("fetch(%d,%d)", f.end, last)
		if len(said) > 0 && slices.Contains(said, ask+" out of range") {
			return append(said, "for ever")
		}
		d, err := role.CheckFetchOffset(FetchQuery{ReplicaID: 2, FetchOffset: f.end, LastFetchedEpoch: last}, lpos, l.epochs)
		switch {
		case errors.Is(err, ErrOffsetOutOfRange):
			said = append(said, ask+" out of range")
			step, to := OutOfRange(f.end, l.end, l.logStart)
			switch step {
			case RangeTruncate:
				said = append(said, fmt.Sprintf("cut %d", to))
				cut(to)
			case RangeStartOver:
				said = append(said, fmt.Sprintf("start over at %d", to))
				*f, last = copyOf{logStart: to, hw: to, end: to}, NoEpoch
			case RangeGoOn:
				said = append(said, fmt.Sprintf("stay at %d", to))
			}
		case d.Diverging:
			said = append(said, fmt.Sprintf("%s diverges (%d,%d)", ask, d.DivergingEpoch.Epoch, d.DivergingEpoch.Offset))
			c := TruncationFor(d.DivergingEpoch, f.epochs, f.hw, f.end)
			said = append(said, fmt.Sprintf("cut %d", c.To))
			if !c.Finished {
				said = append(said, "not finished")
			}
			cut(c.To)
		default:
			return append(said, ask+" ok")
		}
	}
	return append(said, "no end")
}

func wantExchange(t *testing.T, f, l copyOf, end int64, epochs epoch.Cache, want ...string) {
	t.Helper()
	if got := exchange(&f, &l); !slices.Equal(got, want) {
		t.Errorf("exchange\n got  %q\n want %q", got, want)
	}
	if f.end != end || !f.epochs.Equal(epochs) {
		t.Errorf("follower ends at %d with %v, want %d with %v", f.end, f.epochs, end, epochs)
	}
}

// TestT1_nothing_is_cut_above_the_high_watermark: a follower with HW 7 below its end 10 just goes on fetching.
func TestT1_nothing_is_cut_above_the_high_watermark(t *testing.T) {
	t.Parallel()
	wantExchange(t, copyOf{epochs: caches(0, 0), hw: 7, end: 10}, copyOf{epochs: caches(0, 0, 1, 10), end: 12}, 10, caches(0, 0),
		"fetch(10,0) ok")
}

// TestT2_same_end_other_history: the follower's offset 1 is of epoch 0, the leader's of epoch 1.
func TestT2_same_end_other_history(t *testing.T) {
	t.Parallel()
	wantExchange(t, copyOf{epochs: caches(0, 0), end: 2}, copyOf{epochs: caches(0, 0, 1, 1), end: 2}, 1, caches(0, 0),
		"fetch(2,0) diverges (0,1)", "cut 1", "fetch(1,0) ok")
}

// TestT3_two_steps: an epoch the follower never saw takes it to its own greatest lower one first.
func TestT3_two_steps(t *testing.T) {
	t.Parallel()
	wantExchange(t, copyOf{epochs: caches(1, 0, 3, 20), end: 30}, copyOf{epochs: caches(1, 0, 2, 15, 4, 28), end: 40}, 15, caches(1, 0),
		"fetch(30,3) diverges (2,28)", "cut 20", "not finished", "fetch(20,1) diverges (1,15)", "cut 15", "fetch(15,1) ok")
}

// TestT4_leader_begins_above: nothing in common is left on the leader, so the follower starts over at its log start.
func TestT4_leader_begins_above(t *testing.T) {
	t.Parallel()
	wantExchange(t, copyOf{epochs: caches(1, 0, 3, 20), end: 30}, copyOf{epochs: caches(5, 100), logStart: 100, end: 250}, 100, epoch.Cache{},
		"fetch(30,3) out of range", "start over at 100", "fetch(100,-1) ok")
}

// TestT5_no_epochs_on_either_side: out of range, then cut to the leader's end.
func TestT5_no_epochs_on_either_side(t *testing.T) {
	t.Parallel()
	wantExchange(t, copyOf{hw: 120, end: 120}, copyOf{end: 90}, 90, epoch.Cache{},
		"fetch(120,-1) out of range", "cut 90", "fetch(90,-1) ok")
}

// TestT6_ahead_in_the_same_epoch: divergence, not an out of range.
func TestT6_ahead_in_the_same_epoch(t *testing.T) {
	t.Parallel()
	wantExchange(t, copyOf{epochs: caches(3, 0), end: 120}, copyOf{epochs: caches(3, 0), end: 90}, 90, caches(3, 0),
		"fetch(120,3) diverges (3,90)", "cut 90", "fetch(90,3) ok")
}

// TestT7_an_empty_reign_is_forgotten: no data is cut, but the follower's own empty epoch 8 goes.
func TestT7_an_empty_reign_is_forgotten(t *testing.T) {
	t.Parallel()
	wantExchange(t, copyOf{epochs: caches(7, 0, 8, 100), end: 100}, copyOf{epochs: caches(7, 0, 9, 100), end: 150}, 100, caches(7, 0),
		"fetch(100,8) diverges (7,100)", "cut 100", "fetch(100,7) ok")
}

// TestT8_interleaved_reigns: five diverging answers and five cuts.
func TestT8_interleaved_reigns(t *testing.T) {
	t.Parallel()
	wantExchange(t, copyOf{epochs: caches(0, 0, 2, 10, 4, 20, 6, 30, 8, 40), end: 50},
		copyOf{epochs: caches(0, 0, 1, 5, 3, 15, 5, 25, 7, 35, 9, 45), end: 60}, 5, caches(0, 0),
		"fetch(50,8) diverges (7,45)", "cut 40", "not finished",
		"fetch(40,6) diverges (5,35)", "cut 30", "not finished",
		"fetch(30,4) diverges (3,25)", "cut 20", "not finished",
		"fetch(20,2) diverges (1,15)", "cut 10", "not finished",
		"fetch(10,0) diverges (0,5)", "cut 5", "fetch(5,0) ok")
}

// TestT9_own_end_of_the_epoch_is_lower: cut to the own end of epoch 1, not to the leader's.
func TestT9_own_end_of_the_epoch_is_lower(t *testing.T) {
	t.Parallel()
	wantExchange(t, copyOf{epochs: caches(1, 0, 4, 10, 5, 20), end: 25}, copyOf{epochs: caches(1, 0, 6, 12), end: 30}, 10, caches(1, 0),
		"fetch(25,5) diverges (1,12)", "cut 10", "fetch(10,1) ok")
}

// TestT10_a_lost_cache_at_the_leader_loops: a leader that forgot epoch 5 and its own cannot say more than out of range;
// this is why a lost cache is rebuilt.
func TestT10_a_lost_cache_at_the_leader_loops(t *testing.T) {
	t.Parallel()
	wantExchange(t, copyOf{epochs: caches(1, 0, 5, 20), end: 30}, copyOf{epochs: caches(1, 0, 4, 20), end: 40}, 30, caches(1, 0, 5, 20),
		"fetch(30,5) out of range", "stay at 30", "for ever")
}

// TestTruncationRows covers the rows of the truncation table that Fetch alone does not reach.
func TestTruncationRows(t *testing.T) {
	t.Parallel()
	own := caches(2, 0, 5, 20)
	for _, c := range []struct {
		name   string
		leader OffsetAndEpoch
		epochs epoch.Cache
		want   Truncation
	}{
		{"no end known", OffsetAndEpoch{-1, -1}, own, Truncation{To: 17, Finished: true, Epoch: -1}},
		{"peer without epochs", OffsetAndEpoch{25, -1}, own, Truncation{To: 25, Finished: true, Epoch: -1}},
		{"peer without epochs, longer", OffsetAndEpoch{99, -1}, own, Truncation{To: 30, Finished: true, Epoch: -1}},
		{"same epoch", OffsetAndEpoch{22, 5}, own, Truncation{To: 22, Finished: true, Epoch: 5}},
		{"lower own epoch", OffsetAndEpoch{22, 4}, own, Truncation{To: 20, Epoch: 2}},
		{"own cache knows nothing", OffsetAndEpoch{22, 4}, epoch.Cache{}, Truncation{To: 22, Finished: true, Epoch: -1}},
		{"above all own", OffsetAndEpoch{22, 9}, own, Truncation{To: 22, Finished: true, Epoch: -1}},
	} {
		if got := TruncationFor(c.leader, c.epochs, 17, 30); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// TestE065_unknown_answers_are_no_offsets: -1 as latest or earliest means back off, never truncate; and the vectors out
// of range.
func TestE065_unknown_answers_are_no_offsets(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		end, latest, earliest int64
		step                  OutOfRangeStep
		to                    int64
	}{
		{120, 90, 0, RangeTruncate, 90}, {30, 250, 100, RangeStartOver, 100}, {30, 250, 10, RangeGoOn, 30}, {30, 30, 10, RangeGoOn, 30},
		{120, -1, 0, RangeUnknown, -1}, {30, 250, -1, RangeUnknown, -1},
	} {
		if step, to := OutOfRange(c.end, c.latest, c.earliest); step != c.step || to != c.to {
			t.Errorf("%+v: %d %d", c, step, to)
		}
	}
}

// TestE064_what_a_follower_does_with_an_answer: the table of answers, and that an answer to another question is ignored.
func TestE064_what_a_follower_does_with_an_answer(t *testing.T) {
	t.Parallel()
	now := FollowPosition{FetchOffset: 100, CurrentLeaderEpoch: 5, LastFetchedEpoch: 4}
	for _, c := range []struct {
		answer FollowAnswer
		want   FollowStep
	}{
		{FollowAnswer{}, FollowAppend}, {FollowAnswer{Diverging: true}, FollowTruncate},
		{FollowAnswer{Err: &OffsetOutOfRangeError{}}, FollowRange}, {FollowAnswer{Err: ErrOffsetMovedToTieredStorage}, FollowTiered},
		{FollowAnswer{Err: &FencedLeaderEpochError{}}, FollowStop}, {FollowAnswer{Err: &UnknownLeaderEpochError{}}, FollowBackoff},
		{FollowAnswer{Err: &NotLeaderOrFollowerError{}}, FollowBackoff}, {FollowAnswer{Err: ErrUnknownTopicOrPartition}, FollowBackoff},
		{FollowAnswer{Err: ErrUnknownTopicID}, FollowBackoff}, {FollowAnswer{Err: &InconsistentTopicIDError{}}, FollowBackoff},
		{FollowAnswer{Err: fmt.Errorf("crc: %w", ErrCorrupt)}, FollowBackoff}, {FollowAnswer{Err: errors.New("disk")}, FollowFail},
	} {
		if got := Follow(now, now, c.answer); got != c.want {
			t.Errorf("%+v: %d, want %d", c.answer, got, c.want)
		}
	}
	for _, asked := range []FollowPosition{{99, 5, 4}, {100, 4, 4}} {
		if got := Follow(asked, now, FollowAnswer{Err: &FencedLeaderEpochError{}}); got != FollowIgnore {
			t.Errorf("answer to %+v: %d", asked, got)
		}
	}
}
