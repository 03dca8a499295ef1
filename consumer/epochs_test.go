package consumer

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func contextFor(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}

func contextWithPatience() (context.Context, context.CancelFunc) { return contextFor(patience) }

// at1000 is a cluster whose first partition holds 1000 records of epoch 5, and a consumer that has read them all.
func at1000(t *testing.T, change func(*Options)) (*scriptedCluster, *reader) {
	t.Helper()
	s := script(t, 2)
	s.set(func() {
		s.logs[0].elect(1, 5, []reign{{5, 0}}, 1000)
		s.commits[0] = scriptedCommit{900, 5, consumedMark}
	})
	r := s.read(change)
	r.upTo(1000)
	return s, r
}

// elected makes node 2 the leader in epoch 6, and tells the consumer by refusing its next fetch.
func (s *scriptedCluster) elected(reigns []reign, end int64) {
	s.set(func() { s.logs[0].elect(2, 6, reigns, end) })
}

func reset(o *Options, p ResetPolicy) { o.Reset = p }

func TestE092_a_position_that_is_still_right_stays(t *testing.T) {
	// Position (1000,5), the leader epoch goes from 5 to 6, and the answer is (5,1200): one question with current 6, asked 5; reading goes on at 1000.
	t.Parallel()
	s, r := at1000(t, nil)
	before := len(s.noted("epoch"))
	s.elected([]reign{{5, 0}, {6, 1200}}, 1300)
	if got := r.upTo(1300); len(got) != 300 || got[0] != "1000@5" {
		t.Errorf("%d records, from %s", len(got), got[0])
	}
	if got := s.noted("epoch")[before:]; !slices.Equal(got, []string{"epoch 0/6 5 at 2"}) {
		t.Errorf("asked %q", got)
	}
	if got := r.happened(); len(got) != 0 {
		t.Errorf("events %v", got)
	}
}

func TestE093_a_cut_log_is_gone_on_with_where_it_was_cut(t *testing.T) {
	// The answer (5,900) with the policy latest: reading goes on at 900, not at the end, with an event truncated 1000 -> 900. With the policy none: an error, divergent (900,5).
	t.Parallel()
	s, r := at1000(t, nil)
	s.elected([]reign{{5, 0}, {6, 900}}, 1200)
	if got := r.upTo(1200); len(got) != 300 || got[0] != "900@6" {
		t.Errorf("%d records, from %s", len(got), got[0])
	}
	events := r.happened()
	if len(events) != 1 {
		t.Fatalf("events %v", events)
	}
	ev := events[0]
	if ev.Cause != CauseTruncated || ev.From != Known(Position{1000, Known[int32](5)}) || ev.To != Known(Position{900, Known[int32](5)}) || ev.Divergent != Known[int64](900) || ev.AtMost || ev.Repeated != 100 || ev.LeaderEpoch != Known[int32](6) || ev.Leader != 2 {
		t.Errorf("event %+v", ev)
	}
	if n := strings.Count(r.logged(), "level=WARN"); n != 1 || !strings.Contains(r.logged(), "cause=truncated") {
		t.Errorf("logged %d warnings:\n%s", n, r.logged())
	}
	if r.Stats().Resets[CauseTruncated] != 1 {
		t.Errorf("counted %v", r.Stats().Resets)
	}

	s, r = at1000(t, func(o *Options) { reset(o, None) })
	s.elected([]reign{{5, 0}, {6, 900}}, 1200)
	err := r.fails()
	var cut *LogTruncationError
	if !errors.As(err, &cut) || cut.Position != (Position{1000, Known[int32](5)}) || cut.Divergent != Known(Position{900, Known[int32](5)}) || cut.TopicPartition != tp0 {
		t.Fatalf("error %#v", err)
	}
	var out *OffsetOutOfRangeError
	if !errors.As(err, &out) || out.Position.Offset != 1000 {
		t.Errorf("is no out-of-range error: %v", err)
	}
	if again := r.fails(); !errors.As(again, &cut) {
		t.Errorf("the next Poll: %v", again)
	}
	if err := r.SeekToNearest(tp0); err != nil {
		t.Fatal(err)
	}
	if got := r.upTo(1200); got[0] != "900@6" {
		t.Errorf("after SeekToNearest: %s", got[0])
	}
}

func TestE094_an_epoch_that_nobody_knows(t *testing.T) {
	// The answer (-1,-1): the policy earliest resets by policy, none is a truncation error without a divergent offset.
	t.Parallel()
	s, r := at1000(t, func(o *Options) { reset(o, Earliest) })
	s.elected([]reign{{4, 0}}, 2000)
	if got := r.upTo(2000); got[0] != "0@4" {
		t.Errorf("from %s", got[0])
	}
	if ev := r.happened(); len(ev) != 1 || ev[0].Cause != CauseTruncated || ev[0].Divergent.known || ev[0].LogStart != Known[int64](0) || ev[0].LogEnd != Known[int64](2000) {
		t.Errorf("events %+v", ev)
	}
	s, r = at1000(t, func(o *Options) { reset(o, None) })
	s.elected([]reign{{4, 0}}, 2000)
	var cut *LogTruncationError
	if err := r.fails(); !errors.As(err, &cut) || cut.Divergent.known {
		t.Errorf("error %v", err)
	}
}

func TestE095_moved_as_far_as_was_read_of_the_older_epoch(t *testing.T) {
	// Consumed {1:0, 4:500, 5:650} up to (1000,5), the leader has {1:0, 4:500, 6:700}: reading goes on at 650. Begun again from the commit alone: at 700, and the event says "at most".
	t.Parallel()
	s := script(t, 2)
	s.set(func() { s.logs[0].elect(1, 5, []reign{{1, 0}, {4, 500}, {5, 650}}, 1000) })
	r := s.read(func(o *Options) { reset(o, Earliest) })
	r.upTo(1000)
	cut := []reign{{1, 0}, {4, 500}, {6, 700}}
	s.elected(cut, 1200)
	if got := r.upTo(1200); got[0] != "650@4" {
		t.Errorf("went on with %s", got[0])
	}
	if ev := r.happened(); len(ev) != 2 || ev[1].Divergent != Known[int64](650) || ev[1].AtMost {
		t.Errorf("events %v", ev)
	}
	s.set(func() { s.commits[0] = scriptedCommit{1000, 5, consumedMark} })
	r = s.read(nil)
	if got := r.upTo(1200); got[0] != "700@6" {
		t.Errorf("begun again, went on with %s", got[0])
	}
	if ev := r.happened(); len(ev) != 1 || ev[0].Divergent != Known[int64](700) || !ev[0].AtMost {
		t.Errorf("events %v", ev)
	}
}

func TestE096_a_longer_stranger_is_found_out(t *testing.T) {
	// Consumed {0:0, 5:50} up to (100,5); {0:0, 3:50, 6:120} is elected: reading goes on at 50. Begun again from (100,5) alone: it stays, with the event history-differs; unless the epoch is not known to be a consumed batch's.
	t.Parallel()
	s := script(t, 2)
	s.set(func() { s.logs[0].elect(1, 5, []reign{{0, 0}, {5, 50}}, 100) })
	r := s.read(func(o *Options) { reset(o, Earliest) })
	r.upTo(100)
	s.elected([]reign{{0, 0}, {3, 50}, {6, 120}}, 150)
	if got := r.upTo(150); got[0] != "50@3" || len(got) != 100 {
		t.Errorf("went on with %s", got[0])
	}
	if ev := r.happened(); len(ev) != 2 || ev[1].To != Known(Position{50, Known[int32](0)}) || ev[1].AtMost {
		t.Errorf("events %v", ev)
	}
	if got := s.noted("epoch"); !slices.Equal(got, []string{"epoch 0/6 5 at 2", "epoch 0/6 0 at 2"}) {
		t.Errorf("asked %q", got)
	}
	for mark, want := range map[string]int{consumedMark: 1, "": 0, "of the program": 0} {
		s.set(func() { s.commits[0] = scriptedCommit{100, 5, mark} })
		r = s.read(nil)
		if got := r.upTo(150); got[0] != "100@3" {
			t.Errorf("commit marked %q: went on with %s", mark, got[0])
		}
		ev := r.happened()
		if len(ev) != want || want == 1 && (ev[0].Cause != CauseHistoryDiffers || ev[0].Moved()) {
			t.Errorf("commit marked %q: events %v", mark, ev)
		}
	}
}

func TestE097_questions_that_are_refused_are_asked_again(t *testing.T) {
	// OffsetForLeaderEpoch answered 74, 75, 6 or 78: no move, metadata is asked for (75: not needed), then the position is checked. A commit meanwhile leaves the partition out.
	t.Parallel()
	for _, code := range []int16{74, 75, 6, 78} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			t.Parallel()
			s, r := at1000(t, nil)
			if err := r.CommitPositions(t.Context(), map[TopicPartition]Position{tp0: {500, Known[int32](5)}}); err != nil {
				t.Fatal(err)
			}
			refuse := make(chan struct{})
			var refusals, metadata int
			s.set(func() {
				s.answer[23] = func(_ int32, req kmsg.Request) kmsg.Response {
					select {
					case <-refuse:
						return nil
					default:
					}
					resp := s.epochs(0, req.(*kmsg.OffsetForLeaderEpochRequest)).(*kmsg.OffsetForLeaderEpochResponse)
					resp.Topics[0].Partitions[0].ErrorCode = code
					s.set(func() {
						if refusals++; refusals == 1 {
							metadata = s.metadata
						}
					})
					return resp
				}
			})
			s.elected([]reign{{5, 0}, {6, 1000}}, 1100)
			ctx, cancel := contextWithPatience()
			defer cancel()
			polled := make(chan error, 1)
			go func() {
				_, err := r.Poll(ctx)
				polled <- err
			}()
			eventually(t, "refusals", func() bool {
				s.mu.Lock()
				defer s.mu.Unlock()
				return refusals >= 3
			})
			if err := r.Commit(ctx); err != nil {
				t.Error(err)
			}
			s.mu.Lock()
			if got := s.commits[0]; got.offset != 500 {
				t.Errorf("committed %v while the position was checked", got)
			}
			if code != 75 && s.metadata == metadata {
				t.Error("metadata was not asked for")
			}
			s.mu.Unlock()
			close(refuse)
			if err := <-polled; err != nil {
				t.Error(err)
			}
			if got := r.upTo(1100); got[0] != "1000@6" {
				t.Errorf("went on with %s", got[0])
			}
			if ev := r.happened(); len(ev) != 0 {
				t.Errorf("events %v", ev)
			}
		})
	}
}

func TestE098_brokers_that_cannot_check(t *testing.T) {
	// A broker offers OffsetForLeaderEpoch up to version 2: positions are not checked, and nothing fails.
	t.Parallel()
	s := script(t, 2)
	s.set(func() {
		s.max[23] = 2
		s.logs[0].elect(1, 5, []reign{{5, 0}}, 1000)
		s.commits[0] = scriptedCommit{900, 5, consumedMark}
	})
	r := s.read(nil)
	r.upTo(1000)
	s.elected([]reign{{5, 0}, {6, 1000}}, 1100)
	r.upTo(1100)
	if got := s.noted("epoch"); len(got) != 0 {
		t.Errorf("asked %q", got)
	}
}

func TestE099_a_replica_that_lags_moves_nothing(t *testing.T) {
	// 1 from the preferred replica: the leader is asked, with no reset and no event. The same when the choice of the replica ends while the fetch is under way.
	t.Parallel()
	for _, expires := range []bool{false, true} {
		t.Run(fmt.Sprintf("expires=%v", expires), func(t *testing.T) {
			t.Parallel()
			s := script(t, 2)
			s.set(func() {
				s.logs[0].elect(1, 5, []reign{{5, 0}}, 1000)
				s.logs[0].replica = 2
				s.commits[0] = scriptedCommit{900, 5, consumedMark}
			})
			asked, answer := make(chan struct{}, 100), make(chan struct{})
			s.answer[1] = func(node int32, req kmsg.Request) kmsg.Response {
				if node != 2 {
					return nil
				}
				asked <- struct{}{}
				<-answer
				r := req.(*kmsg.FetchRequest)
				resp := r.ResponseKind().(*kmsg.FetchResponse)
				topic := kmsg.NewFetchResponseTopic()
				topic.TopicID = r.Topics[0].TopicID
				p := kmsg.NewFetchResponseTopicPartition()
				p.ErrorCode, p.PreferredReadReplica = 1, -1
				topic.Partitions = append(topic.Partitions, p)
				resp.Topics = append(resp.Topics, topic)
				return resp
			}
			r := s.read(func(o *Options) {
				o.ClientRack = "near"
				if expires {
					o.MetadataMaxAge = 50 * time.Millisecond
				}
			})
			<-asked
			if expires {
				eventually(t, "the choice of the replica to end", func() bool {
					r.Consumer.mu.Lock()
					defer r.Consumer.mu.Unlock()
					return time.Now().After(r.parts[tp0].m.replicaUntil)
				})
			}
			s.set(func() { s.logs[0].replica = -1 })
			close(answer)
			if got := r.upTo(1000); got[0] != "900@5" {
				t.Errorf("from %s", got[0])
			}
			if ev, resets := r.happened(), r.Stats().Resets; len(ev) != 0 || len(resets) != 0 {
				t.Errorf("events %v, %v", ev, resets)
			}
			if got := s.noted("offsets"); len(got) != 0 {
				t.Errorf("asked %q", got)
			}
		})
	}
}

func TestE100_out_of_range_is_looked_into_before_anything_moves(t *testing.T) {
	// The leader says 1 at 1000. With log start 1500 and the policy earliest: 1500, below-log-start. With a log [0,800) and a known epoch: its end is asked before anything moves. With a log [0,2000): fetched again, no reset.
	t.Parallel()
	begin := func(t *testing.T, policy ResetPolicy, c scriptedCommit, l func(*scriptedLog)) (*scriptedCluster, *reader) {
		s := script(t, 1)
		s.set(func() {
			l(s.logs[0])
			s.commits[0] = c
		})
		return s, s.read(func(o *Options) { reset(o, policy) })
	}
	t.Run("below", func(t *testing.T) {
		t.Parallel()
		short := func(l *scriptedLog) {
			l.elect(1, 6, []reign{{6, 1500}}, 2000)
			l.start = 1500
		}
		_, r := begin(t, Earliest, scriptedCommit{1000, 5, ""}, short)
		if got := r.upTo(2000); got[0] != "1500@6" {
			t.Errorf("from %s", got[0])
		}
		ev := r.happened()
		if len(ev) != 1 || ev[0].Cause != CauseBelowLogStart || ev[0].Skipped != 500 || ev[0].LogStart != Known[int64](1500) || ev[0].LogEnd != Known[int64](2000) || ev[0].To != Known(Position{1500, Known[int32](6)}) {
			t.Errorf("events %+v", ev)
		}
		_, r = begin(t, Nearest, scriptedCommit{1000, 5, ""}, short)
		if got := r.upTo(2000); got[0] != "1500@6" {
			t.Errorf("nearest: from %s", got[0])
		}
		_, r = begin(t, None, scriptedCommit{1000, 5, ""}, short)
		var out *OffsetOutOfRangeError
		if err := r.fails(); !errors.As(err, &out) || errors.As(err, new(*LogTruncationError)) || out.LogStart != Known[int64](1500) || out.LogEnd != Known[int64](2000) {
			t.Errorf("none: %v", err)
		}
	})
	t.Run("cut", func(t *testing.T) {
		t.Parallel()
		// The commit has no epoch: only the fetch tells. Then the same with one, which the leader changes under.
		_, r := begin(t, Nearest, scriptedCommit{1000, -1, ""}, func(l *scriptedLog) { l.elect(1, 6, []reign{{5, 0}}, 800) })
		if ev := r.awaitEvents(1); ev[0].Cause != CauseAboveLogEnd || ev[0].To != Known(Position{800, Known[int32](6)}) {
			t.Errorf("events %+v", ev)
		}
		s, r := at1000(t, nil)
		s.set(func() {
			// A leader that lost records in its own reign: nothing but the fetch shows it.
			s.logs[0].elect(1, 5, []reign{{5, 0}}, 800)
		})
		ev := r.awaitEvents(1)
		if ev[0].Cause != CauseTruncated || ev[0].To != Known(Position{800, Known[int32](5)}) || ev[0].LogEnd != Known[int64](800) {
			t.Errorf("events %+v", ev)
		}
		if got := s.noted("epoch"); !slices.Contains(got, "epoch 0/5 5 at 1") {
			t.Errorf("asked %q", got)
		}
	})
	t.Run("transient", func(t *testing.T) {
		t.Parallel()
		s := script(t, 1)
		s.set(func() {
			s.logs[0].elect(1, 6, []reign{{5, 0}}, 2000)
			s.commits[0] = scriptedCommit{1000, 5, ""}
		})
		refusals := 0
		s.answer[1] = func(node int32, req kmsg.Request) kmsg.Response {
			s.mu.Lock()
			defer s.mu.Unlock()
			if refusals++; refusals > 3 {
				return nil
			}
			resp, _ := s.fetchOnce(node, req.(*kmsg.FetchRequest))
			resp.Topics[0].Partitions[0].ErrorCode, resp.Topics[0].Partitions[0].RecordBatches = 1, nil
			return resp
		}
		r := s.read(nil)
		if got := r.upTo(2000); got[0] != "1000@5" {
			t.Errorf("from %s", got[0])
		}
		if ev := r.happened(); len(ev) != 0 || r.Stats().Transient != 3 {
			t.Errorf("events %v, %d transient", ev, r.Stats().Transient)
		}
	})
}

func TestE101_by_duration(t *testing.T) {
	// by_duration:PT1H with records two hours and half an hour old begins at the latter. With old ones alone it waits, and begins at a new one when it arrives.
	t.Parallel()
	ago := func(d time.Duration) int64 { return time.Now().Add(-d).UnixMilli() }
	s := script(t, 1)
	stamps := []int64{ago(2 * time.Hour), ago(2 * time.Hour), ago(30 * time.Minute), ago(20 * time.Minute)}
	s.set(func() {
		s.logs[0].elect(1, 5, []reign{{5, 0}}, 4)
		s.logs[0].stamp = func(o int64) int64 { return stamps[o] }
	})
	policy, err := ParseResetPolicy("by_duration:PT1H")
	if err != nil {
		t.Fatal(err)
	}
	r := s.read(func(o *Options) { reset(o, policy) })
	if got := r.upTo(4); got[0] != "2@5" {
		t.Errorf("from %s", got[0])
	}
	s = script(t, 1)
	s.set(func() {
		s.logs[0].elect(1, 5, []reign{{5, 0}}, 2)
		s.logs[0].stamp = func(o int64) int64 { return stamps[o] }
	})
	r = s.read(func(o *Options) { reset(o, policy); o.RequestTimeout = 300 * time.Millisecond })
	ev := r.awaitEvents(1)
	if ev[0].Cause != CauseNoRecordYet || ev[0].Moved() || ev[0].To.known {
		t.Errorf("event %+v", ev[0])
	}
	s.set(func() { s.logs[0].end, s.logs[0].hw = 4, 4 })
	if got := r.upTo(4); got[0] != "2@5" {
		t.Errorf("from %s", got[0])
	}
	if ev := r.happened(); len(ev) != 2 || ev[1].To != Known(Position{2, Known[int32](5)}) {
		t.Errorf("events %v", ev)
	}
}

func TestE101_durations_that_are_none(t *testing.T) {
	// `by_duration`, `by_duration:-PT1H` and others that are no duration of ISO 8601 are configuration errors.
	t.Parallel()
	for text, want := range map[string]time.Duration{"P7D": 7 * 24 * time.Hour, "PT0S": 0, "P1DT2H3M4.5S": 26*time.Hour + 3*time.Minute + 4500*time.Millisecond, "pt1h": time.Hour} {
		p, err := ParseResetPolicy("by_duration:" + text)
		if err != nil || p.back != want {
			t.Errorf("%s: %v, %v", text, p.back, err)
		}
		if again, err := ParseResetPolicy(p.String()); err != nil || again != p {
			t.Errorf("%s: written as %s: %v", text, p, err)
		}
	}
	for _, text := range []string{"by_duration", "by_duration:", "by_duration:-PT1H", "by_duration:PT-1H", "by_duration:1h", "by_duration:P", "by_duration:PT", "by_duration:P1H", "by_duration:PT1D", "by_duration:PT1.5H", "by_duration:PTS", "by_duration:P1000000D", "newest", ""} {
		o := Options{}
		if err := o.Set("auto.offset.reset", text); err == nil {
			t.Errorf("%q: %v", text, o.Reset)
		}
	}
}

func TestE102_which_metadata_is_believed(t *testing.T) {
	// Metadata with a lower leader epoch is ignored; a new topic id is accepted at epoch 0, and the old one never again. A hint equal to the known epoch is ignored, a newer one applied, a node that is not known refused.
	t.Parallel()
	c := newCluster()
	told := func(id byte, node, epoch int32) {
		resp := kmsg.NewPtrMetadataResponse()
		for n := range int32(3) {
			b := kmsg.NewMetadataResponseBroker()
			b.NodeID = n + 1
			resp.Brokers = append(resp.Brokers, b)
		}
		topic := kmsg.NewMetadataResponseTopic()
		topic.Topic, topic.TopicID = kmsg.StringPtr("t"), [16]byte{id}
		p := kmsg.NewMetadataResponseTopicPartition()
		p.Leader, p.LeaderEpoch = node, epoch
		topic.Partitions = append(topic.Partitions, p)
		resp.Topics = append(resp.Topics, topic)
		c.update(resp)
	}
	want := func(node, epoch int32) {
		t.Helper()
		if got := c.topics["t"].partitions[0]; got != (leaderAndEpoch{node, Known(epoch)}) {
			t.Errorf("leader %v, want %d in %d", got, node, epoch)
		}
	}
	told(1, 1, 5)
	told(1, 2, 4)
	want(1, 5)
	told(1, 2, 6)
	want(2, 6)
	if c.hint(tp0, leaderAndEpoch{3, Known[int32](6)}) {
		t.Error("a hint of the same epoch was taken")
	}
	if c.hint(tp0, leaderAndEpoch{9, Known[int32](7)}) {
		t.Error("a hint of an unknown node was taken")
	}
	if !c.hint(tp0, leaderAndEpoch{3, Known[int32](7)}) {
		t.Error("a newer hint was not taken")
	}
	want(3, 7)
	told(2, 1, 0)
	want(1, 0)
	told(1, 2, 9)
	want(1, 0)
}

func TestE102_a_hint_is_applied_at_once(t *testing.T) {
	// A fetch refused with 74 that names the new leader: it is gone to without asking for metadata.
	t.Parallel()
	s := script(t, 2)
	s.set(func() {
		s.logs[0].elect(1, 5, []reign{{5, 0}}, 1000)
		s.commits[0] = scriptedCommit{900, 5, consumedMark}
		s.answer[1] = func(node int32, req kmsg.Request) kmsg.Response {
			resp := s.fetch(node, req.(*kmsg.FetchRequest)).(*kmsg.FetchResponse)
			s.mu.Lock()
			defer s.mu.Unlock()
			for i := range resp.Topics {
				for j := range resp.Topics[i].Partitions {
					if p := &resp.Topics[i].Partitions[j]; p.ErrorCode == 74 {
						p.CurrentLeader.LeaderID, p.CurrentLeader.LeaderEpoch = s.logs[0].leader, s.logs[0].epoch
					}
				}
			}
			return resp
		}
	})
	r := s.read(func(o *Options) { o.RetryBackoff, o.RetryBackoffMax = 5*time.Second, 5*time.Second })
	r.upTo(1000)
	s.mu.Lock()
	before := s.metadata
	s.mu.Unlock()
	s.elected([]reign{{5, 0}, {6, 1000}}, 1100)
	r.upTo(1100)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.metadata != before {
		t.Errorf("metadata was asked for %d times", s.metadata-before)
	}
}

func TestE104_why_the_current_epoch_is_not_committed(t *testing.T) {
	// A commit (1000,5) finds the log cut at 900; a raw commit (1000,6) by the current leader's epoch does not, which is why it is not made.
	t.Parallel()
	s := script(t, 1)
	s.set(func() {
		s.logs[0].elect(1, 6, []reign{{5, 0}, {6, 900}}, 1200)
		s.commits[0] = scriptedCommit{1000, 5, ""}
	})
	if got := s.read(nil).upTo(1200); got[0] != "900@6" {
		t.Errorf("committed with 5: from %s", got[0])
	}
	s.set(func() { s.commits[0] = scriptedCommit{1000, 6, ""} })
	r := s.read(nil)
	if got := r.upTo(1200); got[0] != "1000@6" || len(r.happened()) != 0 {
		t.Errorf("committed with 6: from %s, events %v", got[0], r.happened())
	}
}

func TestE105_commits_carry_epochs(t *testing.T) {
	// A commit before consuming, after a reset to latest, carries an epoch; so does that of a bare offset equal to the position, and of one that was consumed. Of one that was not, it has to be spelled out, is counted and warned of once.
	t.Parallel()
	s := script(t, 1)
	s.set(func() { s.logs[0].elect(1, 7, []reign{{5, 0}, {6, 500}}, 1000) })
	r := s.read(nil)
	r.awaitEvents(1)
	committed := func(offset int64, epoch int32, metadata string) {
		t.Helper()
		s.mu.Lock()
		defer s.mu.Unlock()
		if got, want := s.commits[0], (scriptedCommit{offset, epoch, metadata}); got != want {
			t.Errorf("committed %v, want %v", got, want)
		}
	}
	bare := func(offset int64) map[TopicPartition]Position {
		return map[TopicPartition]Position{tp0: {Offset: offset}}
	}
	if err := r.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	committed(1000, 7, "")
	if err := r.CommitPositions(t.Context(), bare(1000)); err != nil {
		t.Fatal(err)
	}
	committed(1000, 7, "")
	if err := r.SeekToBeginning(tp0); err != nil {
		t.Fatal(err)
	}
	r.upTo(700)
	for offset, epoch := range map[int64]int32{700: 6, 600: 6, 501: 6, 500: 5, 1: 5} {
		if err := r.CommitPositions(t.Context(), bare(offset)); err != nil {
			t.Fatal(err)
		}
		committed(offset, epoch, consumedMark)
	}
	if err := r.Commit(t.Context(), WithMetadata("mine")); err != nil {
		t.Fatal(err)
	}
	committed(700, 6, "mine")
	var none *NoEpochError
	if err := r.CommitPositions(t.Context(), bare(900)); !errors.As(err, &none) || !reflect.DeepEqual(none.Partitions, []TopicPartition{tp0}) {
		t.Errorf("an offset that was not consumed: %v", err)
	}
	committed(700, 6, "mine")
	for range 2 {
		if err := r.CommitPositions(t.Context(), bare(900), WithoutEpoch()); err != nil {
			t.Fatal(err)
		}
	}
	committed(900, -1, "")
	if n := r.Stats().CommitsWithoutEpoch; n != 2 {
		t.Errorf("counted %d", n)
	}
	if n := strings.Count(r.logged(), "commit without an epoch"); n != 1 {
		t.Errorf("warned %d times", n)
	}
	var foreign *NotAssignedError
	if err := r.CommitPositions(t.Context(), map[TopicPartition]Position{{"t", 7}: {Offset: 1, Epoch: Known[int32](1)}}); !errors.As(err, &foreign) {
		t.Errorf("a partition that is not assigned: %v", err)
	}
}
