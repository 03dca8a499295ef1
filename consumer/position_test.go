package consumer

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func epoch(e int32) Epoch { return Known(e) }

func TestValidationByTheTable(t *testing.T) {
	// The vectors of validation: what a leader's answer means for the position (1000,5), with and without a history that reaches back.
	t.Parallel()
	for _, c := range []struct {
		name     string
		consumed []reign
		epoch    int32
		end      int64
		want     ruling
		at       Position
		atMost   bool
	}{
		{"longer", nil, 5, 1200, stands, Position{1000, epoch(5)}, false},
		{"as long", nil, 5, 1000, stands, Position{1000, epoch(5)}, false},
		{"cut", nil, 5, 900, parts, Position{900, epoch(5)}, false},
		{"older, shorter, no history", nil, 4, 700, parts, Position{700, epoch(4)}, true},
		{"older, longer, no history", nil, 4, 1100, unfamiliar, Position{1000, epoch(5)}, true},
		{"unknown", nil, -1, -1, lost, Position{}, false},
		{"unknown end", nil, 5, -1, lost, Position{}, false},
		{"gap 1", []reign{{1, 0}, {4, 500}, {5, 650}}, 4, 700, parts, Position{650, epoch(4)}, false},
		{"gap 2", []reign{{0, 0}, {5, 50}}, 3, 1200, askBelow, Position{50, epoch(0)}, false},
		{"history that begins later", []reign{{5, 980}}, 4, 990, parts, Position{980, epoch(4)}, true},
		{"history that begins above", []reign{{5, 980}}, 4, 700, parts, Position{700, epoch(4)}, true},
	} {
		h := history{c.consumed}
		r, at, atMost := judge(Position{1000, epoch(5)}, true, &h, 5, 1000, c.end, c.epoch)
		if r != c.want || at != c.at || atMost != c.atMost {
			t.Errorf("%s: %v %v %v", c.name, r, at, atMost)
		}
	}
	var h history
	if r, _, _ := judge(Position{1000, epoch(7)}, false, &h, 7, 1000, 1000, 5); r != stands {
		t.Errorf("an epoch that was looked up in an empty reign: %v", r)
	}
	if r, at, _ := judge(Position{1000, epoch(7)}, false, &h, 7, 1000, 950, 5); r != parts || at.Offset != 950 {
		t.Errorf("an epoch that was looked up, and a cut: %v %v", r, at)
	}
}

// machineAt is a machine that fetches at a position of consumed records.
func machineAt(t *tuning, leader leaderAndEpoch, pos Position) *machine {
	if t.retryBackoff == 0 {
		t.retryBackoff, t.retryBackoffMax, t.transientLimit = time.Millisecond, time.Second, 30*time.Second
	}
	m := newMachine(tp0, t)
	m.learn(leader, [16]byte{1}, time.Time{})
	m.restore(pos, true)
	m.state = fetching
	return m
}

func TestAnswersThatComeTooLate(t *testing.T) {
	// An answer about a position that was changed since is ignored, and so is a fetch made before a move, or of an older leader epoch.
	t.Parallel()
	now := time.Now()
	m := machineAt(&tuning{}, leaderAndEpoch{1, epoch(5)}, Position{1000, epoch(5)})
	tag, ok := m.fetchable(now)
	if !ok {
		t.Fatal("not fetchable")
	}
	m.learn(leaderAndEpoch{2, epoch(6)}, [16]byte{1}, now)
	q, ok, _ := m.want(now)
	if !ok || q.kind != askEpochEnd || q.node != 2 || q.current != epoch(6) || q.epoch != 5 {
		t.Fatalf("question %+v", q)
	}
	if use, eff := m.take(tag, fetched{code: codeOffsetOutOfRange}, now); use || m.lookup != nil || eff.refresh {
		t.Error("a fetch of the old leader was judged")
	}
	m.seek(Position{500, epoch(5)}, now)
	if eff := m.reply(answer{number: q.number, epoch: 5, offset: 900}, now); len(eff.events) != 0 || m.pos.Offset != 500 {
		t.Errorf("an answer about the old position moved it to %v", m.pos)
	}
	q, _, _ = m.want(now)
	if eff := m.reply(answer{number: q.number, epoch: 5, offset: 900}, now); len(eff.events) != 0 || m.state != fetching {
		t.Errorf("state %v, events %v", m.state, eff.events)
	}
}

func TestOlderMetadataIsNotAskedAbout(t *testing.T) {
	// A position of a later epoch than the metadata's waits: an old leader would seem to have lost the epoch. Metadata that repeats itself is believed.
	t.Parallel()
	now := time.Now()
	m := machineAt(&tuning{}, leaderAndEpoch{1, epoch(5)}, Position{1000, epoch(7)})
	m.check()
	if _, ok, _ := m.want(now); ok || !m.outdated() {
		t.Fatal("the old leader is asked")
	}
	for range confirmations {
		m.learn(leaderAndEpoch{1, epoch(5)}, [16]byte{1}, now)
	}
	if q, ok, _ := m.want(now); !ok || q.epoch != 7 {
		t.Error("metadata that repeats itself is not believed")
	}
}

func TestATransientRefusalIsAnErrorAfterAWhile(t *testing.T) {
	// An offset within the log that the leader goes on refusing is an error after half a minute, and is never reset.
	t.Parallel()
	now := time.Now()
	m := machineAt(&tuning{policy: Latest}, leaderAndEpoch{1, epoch(5)}, Position{1000, epoch(5)})
	for begun := now; ; {
		tag, ok := m.fetchable(now)
		if !ok {
			now = now.Add(time.Second)
			continue
		}
		m.take(tag, fetched{code: codeOffsetOutOfRange}, now)
		var raised error
		for m.lookup != nil {
			q, ok, _ := m.want(now)
			if !ok {
				t.Fatal("nothing is asked")
			}
			end := int64(0)
			if q.kind == askEnd {
				end = 2000
			}
			eff := m.reply(answer{number: q.number, offset: end, epoch: 5}, now)
			if len(eff.events) > 0 {
				t.Fatalf("moved: %v", eff.events)
			}
			raised = eff.raise
		}
		if raised != nil {
			var out *OffsetOutOfRangeError
			if since := now.Sub(begun); !errors.As(raised, &out) || since < 30*time.Second || since > 40*time.Second {
				t.Errorf("%v after %v", raised, since)
			}
			return
		}
		if now.Sub(begun) > time.Minute {
			t.Fatal("no error")
		}
	}
}

func TestATopicMadeAnewIsAnotherLog(t *testing.T) {
	// A new topic id voids the position: it is reset by policy with the cause topic-recreated, or is an error.
	t.Parallel()
	now := time.Now()
	for _, policy := range []ResetPolicy{Earliest, None} {
		m := machineAt(&tuning{policy: policy}, leaderAndEpoch{1, epoch(0)}, Position{1000, epoch(0)})
		if eff := m.learn(leaderAndEpoch{1, epoch(0)}, [16]byte{2}, now); !eff.discard {
			t.Error("what was fetched of the old one is kept")
		}
		var events []ResetEvent
		for _, offset := range []int64{0, 1200} {
			q, _, _ := m.want(now)
			events = m.reply(answer{number: q.number, offset: offset}, now).events
		}
		if policy == None {
			var cut *LogTruncationError
			if !errors.As(m.err, &cut) || !cut.TopicRecreated {
				t.Errorf("none: %v", m.err)
			}
		} else if len(events) != 1 || events[0].Cause != CauseTopicRecreated || m.pos.Offset != 0 {
			t.Errorf("events %v, position %v", events, m.pos)
		}
	}
}

func TestADivergingFetchIsATruncation(t *testing.T) {
	// A DivergingEpoch in an answer to a fetch is judged as the answer to a validation is; when there are records above the position that were fetched already, after those.
	t.Parallel()
	now := time.Now()
	m := machineAt(&tuning{lastEpoch: true}, leaderAndEpoch{1, epoch(6)}, Position{1000, epoch(5)})
	tag, _ := m.fetchable(now)
	if tag.last != epoch(5) {
		t.Fatalf("tag %+v", tag)
	}
	_, eff := m.take(tag, fetched{diverging: Known(Position{900, epoch(5)})}, now)
	if len(eff.events) != 1 || m.pos != (Position{900, epoch(5)}) || m.state != fetching {
		t.Errorf("events %v, position %v", eff.events, m.pos)
	}
	tag, _ = m.fetchable(now)
	m.take(tag, fetched{records: true, next: Position{950, epoch(6)}}, now)
	tag, _ = m.fetchable(now)
	if _, eff := m.take(tag, fetched{diverging: Known(Position{920, epoch(6)})}, now); len(eff.events) != 0 {
		t.Errorf("moved while records were buffered: %v", eff.events)
	}
	if _, ok := m.fetchable(now); ok {
		t.Error("fetched on before the records were consumed")
	}
	m.deliver(m.generation, 6, 900, 950)
	if tag, ok := m.fetchable(now); !ok || tag.offset != 950 {
		t.Error("not fetched on after the records were consumed")
	}
}

func TestHistoryIsAFollowersCache(t *testing.T) {
	// A history that is consumed batch by batch, cut and gone on with answers as a list of every offset's epoch does.
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var h history
		var epochs []int32 // by offset
		base := rapid.Int64Range(0, 50).Draw(t, "base")
		current := int32(0)
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			if end := base + int64(len(epochs)); rapid.IntRange(0, 3).Draw(t, "step") == 0 {
				x := rapid.Int64Range(base, end).Draw(t, "cut")
				h.cut(x)
				epochs = epochs[:x-base]
				current++
			} else {
				current += rapid.Int32Range(0, 2).Draw(t, "epochs")
				h.assign(current, end)
				for range rapid.IntRange(1, 10).Draw(t, "records") {
					epochs = append(epochs, current)
				}
			}
		}
		end := base + int64(len(epochs))
		for o := base; o <= end+1; o++ {
			want := Epoch{}
			if o > base && len(epochs) > 0 {
				want = Known(epochs[min(o, end)-1-base])
			}
			if got := h.epochBefore(o); got != want {
				t.Fatalf("epoch before %d: %v, want %v in %v", o, got, want, epochs)
			}
		}
		if len(epochs) == 0 {
			return
		}
		q := rapid.Int32Range(epochs[0], current+1).Draw(t, "asked")
		wantEpoch, wantEnd := int32(-1), base
		for i, e := range epochs {
			if e <= q {
				wantEpoch, wantEnd = e, base+int64(i)+1
			}
		}
		if e, x := h.endOffsetFor(q, end); e != wantEpoch || x != wantEnd {
			t.Fatalf("end of %d: (%d,%d), want (%d,%d) in %v", q, e, x, wantEpoch, wantEnd, epochs)
		}
	})
}

// cutAgainst asks a leader's cache until a ruling, as a machine does.
func cutAgainst(pos Position, h *history, leader *scriptedLog) (ruling, Position, bool) {
	asked, limit := orMinus(pos.Epoch), pos.Offset
	for {
		e, x := leader.endOffsetFor(asked)
		r, at, atMost := judge(pos, true, h, asked, limit, x, e)
		if r != askBelow {
			return r, at, atMost
		}
		asked, limit = orMinus(at.Epoch), at.Offset
	}
}

func TestValidationFindsTheFirstOffsetThatDiffers(t *testing.T) {
	// Against any leader's log that shares a prefix with what was consumed from offset 0 on, the ruling is the truth: the first offset that differs, or that none does.
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		grow := func(reigns []reign, end int64, epochs *int32, what string) ([]reign, int64) {
			for range rapid.IntRange(0, 4).Draw(t, what) {
				*epochs += rapid.Int32Range(1, 3).Draw(t, "skip")
				reigns = append(reigns, reign{*epochs, end})
				end += rapid.Int64Range(1, 20).Draw(t, "records")
			}
			return reigns, end
		}
		next := int32(-1)
		shared, at := grow(nil, 0, &next, "shared")
		// Epochs are never given twice: the two logs go on with odd and even ones.
		ours, theirs := next+1, next+1
		own, end := shared, at
		for range rapid.IntRange(1, 4).Draw(t, "ours") {
			ours += 2
			own = append(own[:len(own):len(own)], reign{ours, end})
			end += rapid.Int64Range(1, 20).Draw(t, "records")
		}
		leader := &scriptedLog{reigns: shared, end: at}
		theirs++
		for range rapid.IntRange(1, 4).Draw(t, "theirs") {
			theirs += 2
			leader.reigns = append(leader.reigns[:len(leader.reigns):len(leader.reigns)], reign{theirs, leader.end})
			leader.end += rapid.Int64Range(1, 20).Draw(t, "records")
		}
		leader.reigns = append(leader.reigns, reign{max(ours, theirs) + 1, leader.end}) // its own reign
		h := history{own}
		r, place, atMost := cutAgainst(Position{end, Known(ours)}, &h, leader)
		if at == 0 {
			if r == stands {
				t.Fatalf("nothing is shared, and all stands: %v, %v", own, leader.reigns)
			}
			return
		}
		if r != parts || place.Offset != at || atMost {
			t.Fatalf("%v at %v (at most: %v), want %d: ours %v, the leader's %v", r, place, atMost, at, own, leader.reigns)
		}
	})
}
