package group

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// drawRecord draws one log entry over few enough groups, partitions and producers that they meet.
func drawRecord(t *rapid.T) rigRecord {
	group := rapid.SampledFrom([]string{"g", "h"}).Draw(t, "group")
	producerID := rapid.SampledFrom([]int64{-1, -1, 1, 2}).Draw(t, "producer")
	switch kind := rapid.IntRange(0, 9).Draw(t, "kind"); {
	case kind == 0:
		return rigRecord{producerID: -1, rec: &GroupMetadataRecord{Group: group}}
	case kind == 1:
		generation := rapid.Int32Range(0, 9).Draw(t, "generation")
		return rigRecord{producerID: -1, rec: &GroupMetadataRecord{Group: group, Value: &GroupMetadataValue{Generation: generation}}}
	case kind == 2 || kind == 3:
		return rigRecord{producerID: max(producerID, 1), end: true, commit: kind == 2}
	default:
		rec := &OffsetCommitRecord{Group: group, Topic: "t", Partition: rapid.Int32Range(0, 2).Draw(t, "partition")}
		if kind > 4 {
			rec.Value = &OffsetCommitValue{Offset: rapid.Int64Range(0, 99).Draw(t, "offset"), ExpireTimestamp: -1}
		} else {
			producerID = -1
		}
		return rigRecord{producerID: producerID, rec: rec}
	}
}

func shardOf(log []rigRecord, hw int) *Shard {
	r := &rig{s: NewShard(Config{}), log: log}
	for i := range log {
		r.replay(int64(i))
	}
	r.s.Committed(int64(hw))
	return r.s
}

func TestRevertIsReplayOfThePrefix(t *testing.T) {
	// At every offset, replaying a whole log and reverting to that offset leaves exactly what replaying the log
	// up to there does: newest state, committed state and what is pending, with nothing left over. The same
	// holds when other records then follow.
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		log := rapid.SliceOfN(rapid.Custom(drawRecord), 0, 25).Draw(t, "log")
		hw := rapid.IntRange(0, len(log)).Draw(t, "hw")
		other := rapid.SliceOfN(rapid.Custom(drawRecord), 0, 5).Draw(t, "other")
		for to := hw; to <= len(log); to++ {
			s := shardOf(log, hw)
			s.Revert(int64(to))
			if got, want := s.dump(), shardOf(log[:to], hw).dump(); got != want {
				t.Fatalf("high watermark %d, reverted to %d:\n%s\nreplayed:\n%s", hw, to, got, want)
			}
			again := append(append([]rigRecord{}, log[:to]...), other...)
			r := &rig{s: s, log: again}
			for i := to; i < len(again); i++ {
				r.replay(int64(i))
			}
			s.Committed(int64(len(again)))
			if got, want := s.dump(), shardOf(again, len(again)).dump(); got != want {
				t.Fatalf("after other records:\n%s\nreplayed:\n%s", got, want)
			}
			if s.replicated.journal.Open() != 0 {
				t.Fatalf("%d journal entries are left although all is committed", s.replicated.journal.Open())
			}
		}
	})
}

func TestCommittedStateIsReplayOfTheCommittedPrefix(t *testing.T) {
	// What reads see is what the log up to the high watermark says, however the high watermark got there.
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		log := rapid.SliceOfN(rapid.Custom(drawRecord), 0, 25).Draw(t, "log")
		s := &rig{s: NewShard(Config{}), log: log}
		hw := 0
		for i := range log {
			s.replay(int64(i))
			hw = rapid.IntRange(hw, i+1).Draw(t, "hw")
			s.s.Committed(int64(hw))
			prefix := shardOf(log[:hw], hw)
			for _, group := range []string{"g", "h"} {
				got, want := s.s.FetchCommitted(FetchRequest{Group: group, All: true}), prefix.FetchCommitted(FetchRequest{Group: group, All: true})
				if describeResponse(got) != describeResponse(want) {
					t.Fatalf("%d records, high watermark %d: %s, want %s", i+1, hw, describeResponse(got), describeResponse(want))
				}
			}
		}
	})
}

// check demands the invariants of every classic group.
func (s *Shard) check(generations map[string]int32) error {
	for id, g := range s.soft.groups {
		fail := func(format string, args ...any) error {
			return fmt.Errorf("group %s, %s, generation %d: %s", id, g.state, g.generation, fmt.Sprintf(format, args...))
		}
		if g.generation < generations[id] {
			return fail("the generation fell from %d", generations[id])
		}
		generations[id] = g.generation
		if (g.leader == nil) != (len(g.members) == 0) {
			return fail("leader %v of %d members", g.leader, len(g.members))
		}
		if g.leader != nil && g.byID[g.leader.id] != g.leader {
			return fail("leader %s is no member", g.leader.id)
		}
		ids, instances := map[string]bool{}, map[string]bool{}
		for _, m := range g.members {
			if ids[m.id] || m.instanceID != nil && instances[*m.instanceID] {
				return fail("member %s is there twice", m.id)
			}
			ids[m.id] = true
			if g.byID[m.id] != m || m.instanceID != nil && g.byInstance[*m.instanceID] != m {
				return fail("member %s is not indexed", m.id)
			}
			if m.instanceID != nil {
				instances[*m.instanceID] = true
			}
			if m.joining && g.state != PreparingRebalance {
				return fail("a join of %s is parked", m.id)
			}
			if m.syncing && g.state != CompletingRebalance {
				return fail("a sync of %s is parked", m.id)
			}
			if !m.session.running() && !m.parked() {
				return fail("%s has no session clock and nothing parked", m.id)
			}
		}
		if len(g.byID) != len(g.members) || len(g.byInstance) != len(instances) {
			return fail("%d members, %d and %d indexed", len(g.members), len(g.byID), len(g.byInstance))
		}
		for _, p := range g.pending {
			if ids[p.id] {
				return fail("%s is pending and a member", p.id)
			}
			if !p.expiry.running() {
				return fail("pending %s has no clock", p.id)
			}
		}
		if (g.state == Empty) != (len(g.members) == 0) && g.state != PreparingRebalance {
			return fail("%d members", len(g.members))
		}
		if g.joinTimer.running() != (g.state == PreparingRebalance) {
			return fail("join timer runs: %t", g.joinTimer.running())
		}
		if g.syncTimer.running() && g.state != CompletingRebalance && g.state != Stable {
			return fail("sync timer runs")
		}
		if g.state == CompletingRebalance && !g.syncTimer.running() && !g.allSynced() {
			return fail("the sync timer does not run")
		}
	}
	return nil
}

func TestRandomRequestsKeepTheInvariants(t *testing.T) {
	// Whatever members, strangers and failures of the log do: generations never fall, there is one leader and it
	// is a member, parked requests are of their state, every clock that must run runs, and no request is
	// answered twice.
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := newRig(Config{MaxSize: rapid.SampledFrom([]int{0, 2}).Draw(t, "max")})
		generations := map[string]int32{}
		id := rapid.Custom(func(t *rapid.T) string {
			prefix := rapid.SampledFrom([]string{"A", "B", "i1", "i2"}).Draw(t, "prefix")
			return fmt.Sprintf("%s-u%d", prefix, max(1, r.uuids-rapid.IntRange(0, 4).Draw(t, "age")))
		})
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			args := map[string]string{"id": id.Draw(t, "id"), "gen": fmt.Sprint(int(generations["g"]) - rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "lag"))}
			st := step{args: args, words: []string{"A"}}
			switch rapid.IntRange(0, 14).Draw(t, "verb") {
			case 0, 1:
				st.verb = "join"
				args["v"] = rapid.SampledFrom([]string{"3", "9"}).Draw(t, "v")
				args["id"] = ""
			case 2, 3, 4:
				st.verb = "join"
				args["protocols"] = rapid.SampledFrom([]string{"range:a", "range:b", "range:a,sticky:b"}).Draw(t, "protocols")
			case 5:
				st.verb = "join"
				args["id"] = rapid.SampledFrom([]string{"", args["id"]}).Draw(t, "static id")
				args["instance"] = rapid.SampledFrom([]string{"i1", "i2"}).Draw(t, "instance")
				args["v"] = rapid.SampledFrom([]string{"8", "9"}).Draw(t, "v")
			case 6, 7, 8:
				st.verb = "sync"
				args["v"] = "4"
				args["assign"] = args["id"] + ":x"
			case 9:
				st.verb = "heartbeat"
			case 10:
				st.verb = "leave"
			case 11:
				st.verb = "commit"
				st.words = append(st.words, "t-0=1")
			case 12:
				st.verb = "at"
				ms := r.now.Sub(r.start).Milliseconds() + rapid.Int64Range(0, 70000).Draw(t, "ms")
				st.words[0] = fmt.Sprint(ms)
			case 13:
				st.verb = rapid.SampledFrom([]string{"hold", "release"}).Draw(t, "log")
			case 14:
				st.verb = "fail"
				st.words[0] = "NOT_AVAILABLE"
			}
			if _, err := r.step(st); err != nil {
				t.Fatal(err)
			}
			if err := r.s.check(generations); err != nil {
				t.Fatalf("after %v: %v\n%s", st, err, r.out.String())
			}
			if _, ok := r.s.soft.groups["g"]; !ok {
				delete(generations, "g") // expired or never durable: it begins anew
			}
		}
	})
}
