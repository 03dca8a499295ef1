package replica

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// model is a second, dumber leader: it keeps every fetch ever made and works everything out anew from them.
type model struct {
	end, hw  int64
	minISR   int
	isr      map[int32]bool
	joining  int32 // -1 none
	leaving  bool
	history  map[int32][]modelFetch
	fenced   map[int32]bool
	now      time.Time
	startISR map[int32]bool
}

type modelFetch struct {
	offset, leaderEnd int64
	at                time.Time
}

// lastCaughtUp walks the whole history: each fetch proves the replica equal to the leader now, or as of a fetch before.
func (m *model) lastCaughtUp(id int32) time.Time {
	var best time.Time
	if m.startISR[id] {
		best = t0
	}
	h := m.history[id]
	for i, f := range h {
		switch {
		case f.offset >= f.leaderEnd:
			best = f.at
		case i > 0 && f.offset >= h[i-1].leaderEnd && h[i-1].at.After(best):
			best = h[i-1].at
		}
	}
	return best
}

func (m *model) endOf(id int32) int64 {
	if h := m.history[id]; len(h) > 0 {
		return h[len(h)-1].offset
	}
	return -1
}

func (m *model) slow(id int32) bool {
	return m.endOf(id) != m.end && m.now.After(m.lastCaughtUp(id).Add(lag))
}

// advance moves the high watermark one offset at a time while everyone who counts has the record below it.
func (m *model) advance() {
	if len(m.isr) < m.minISR {
		return
	}
	for m.hw < m.end {
		for id := int32(2); id <= 4; id++ {
			counts := m.isr[id] || id == m.joining || !m.fenced[id] && !m.slow(id)
			if counts && m.endOf(id) <= m.hw {
				return
			}
		}
		m.hw++
	}
}

// TestHighWatermarkAndISRAgreeWithADumberImplementation drives a leader of four replicas and the model with the same
// produces, fetches, fencings, passing time and controller answers, and compares high watermark, ISR and proposals after each.
func TestHighWatermarkAndISRAgreeWithADumberImplementation(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		replicas := []int32{1, 2, 3, 4}
		isr := []int32{1}
		m := &model{minISR: rapid.IntRange(1, 4).Draw(t, "min"), joining: -1, isr: map[int32]bool{1: true},
			history: map[int32][]modelFetch{}, fenced: map[int32]bool{}, now: t0, startISR: map[int32]bool{}}
		for _, id := range replicas[1:] {
			if rapid.Bool().Draw(t, "in isr") {
				isr = append(isr, id)
				m.isr[id], m.startISR[id] = true, true
			}
		}
		brokers := func(id int32) (BrokerStatus, bool) { return BrokerStatus{Fenced: m.fenced[id]}, true }
		s := NewState(1, "t", 0, m.minISR)
		s.BecomeLeader(LeaderAndISR{Leader: 1, Replicas: replicas, ISR: isr}, 0, t0)
		var hw int64
		var sent AlterPartition
		inFlight := false

		t.Repeat(map[string]func(*rapid.T){
			"produce": func(t *rapid.T) { m.end += rapid.Int64Range(1, 5).Draw(t, "n") },
			"wait": func(t *rapid.T) {
				m.now = m.now.Add(time.Duration(rapid.IntRange(1, 40).Draw(t, "s")) * time.Second)
			},
			"fence": func(t *rapid.T) { id := rapid.Int32Range(2, 4).Draw(t, "id"); m.fenced[id] = !m.fenced[id] },
			"fetch": func(t *rapid.T) {
				id := rapid.Int32Range(2, 4).Draw(t, "id")
				// Mostly forward, now and then back: an unclean follower may have been cut.
				at := rapid.Int64Range(max(0, m.endOf(id)-1), m.end).Draw(t, "at")
				m.history[id] = append(m.history[id], modelFetch{at, m.end, m.now})
				fetchAt(t, s, id, at, m.end, m.now)
			},
			"expand": func(t *rapid.T) {
				id := rapid.Int32Range(2, 4).Draw(t, "id")
				c, ok := s.ProposeExpand(id, hw, brokers)
				want := !inFlight && !m.isr[id] && m.endOf(id) >= max(m.hw, 0) && !m.fenced[id]
				if ok != want {
					t.Fatalf("expand by %d: %v, want %v", id, ok, want)
				}
				if ok {
					sent, inFlight, m.joining = c, true, id
				}
			},
			"shrink": func(t *rapid.T) {
				c, ok := s.ProposeShrink(m.end, m.now, lag, brokers)
				var leave []int32
				for _, id := range replicas[1:] {
					if m.isr[id] && m.slow(id) {
						leave = append(leave, id)
					}
				}
				if want := !inFlight && len(leave) > 0; ok != want || ok && len(c.Leaving) != len(leave) {
					t.Fatalf("shrink: %v %v, want %v", ok, c.Leaving, leave)
				}
				if ok {
					sent, inFlight, m.leaving = c, true, true
				}
			},
			"answer": func(t *rapid.T) {
				if !inFlight {
					return
				}
				inFlight = false
				if rapid.Bool().Draw(t, "accepted") {
					m.isr = map[int32]bool{}
					for _, member := range sent.NewISR {
						m.isr[member.ID] = true
					}
					adopt(t, s, sent)
				} else if s.AlterPartitionDone(sent, AlterRefused, LeaderAndISR{}) != AlterDropped {
					t.Fatal("refusal not taken")
				}
				m.joining, m.leaving = -1, false
			},
			"": func(t *rapid.T) {
				m.advance()
				if next, ok := s.NextHighWatermark(hw, m.end, m.now, lag, brokers); ok {
					hw = next
				}
				if hw != m.hw {
					t.Fatalf("high watermark %d, the model has %d", hw, m.hw)
				}
				if len(s.Role().ISR) != len(m.isr) || s.InFlight() != inFlight {
					t.Fatalf("ISR %v in flight %v, the model has %v %v", s.Role().ISR, s.InFlight(), m.isr, inFlight)
				}
			},
		})
	})
}
