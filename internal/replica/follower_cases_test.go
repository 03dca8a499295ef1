package replica

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stelelog/stele/internal/epoch"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
)

// reopen closes a node cleanly and opens it again with what its disk has; before changes that.
func (n *node) reopen(before func(), with ...func(*Options)) {
	n.t.Helper()
	if err := n.m.Close(n.t.Context(), -1); err != nil {
		n.t.Fatal(err)
	}
	if before != nil {
		before()
	}
	n.start(with...)
	n.m.Apply(n.img, nil)
}

// cuts are the truncations that a node told, as from->to.
func (n *node) cuts() (all []string) {
	for _, line := range strings.Split(n.logs.String(), "\n") {
		from, to, leader := 0, 0, ""
		at := strings.Index(line, " from=")
		if !strings.Contains(line, "msg=truncating") || at < 0 {
			continue
		}
		if _, err := fmt.Sscanf(line[at+1:], "from=%d to=%d", &from, &to); err != nil {
			n.t.Fatalf("%v in %s", err, line)
		}
		for _, field := range []string{"lastEpoch=", "leadersEpoch=", "leadersEndOffset=", "highWatermark=", "leaderEpoch="} {
			if !strings.Contains(line, field) {
				n.t.Errorf("no %s in %s", field, line)
			}
		}
		all = append(all, fmt.Sprintf("%d->%d%s", from, to, leader))
	}
	return all
}

// crafted runs a follower with one history against a leader with another, until they are one.
func crafted(t *testing.T, f []reign, fEnd int64, l []reign, lEnd int64, check func(p *pair)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.l.history(1, 0, lEnd, l...)
		p.f.history(2, 0, fEnd, f...)
		p.l.reach(1, 20)
		p.f.reach(1, 20)
		settle(5 * time.Second)
		p.same(t)
		check(p)
	})
}

// E-018: the leader's epoch checkpoint is lost while it is down. It is rebuilt from the log at the start, so a follower
// whose records differ from offset 50 on ends there, and takes the leader's: byte for byte the same in the end.
func TestE018_the_leader_lost_its_epoch_checkpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.l.history(1, 0, 80, reign{0, 0}, reign{3, 50})
		p.f.history(2, 0, 70, reign{0, 0}, reign{2, 50})
		p.l.reopen(func() {
			if err := p.l.fs.Remove("/data/t-0/" + epoch.CheckpointName); err != nil {
				t.Fatal(err)
			}
		})
		p.l.reach(1, 4)
		p.f.reach(1, 4)
		settle(5 * time.Second)
		p.same(t)
		if cuts := p.f.cuts(); !slices.Equal(cuts, []string{"70->50"}) {
			t.Errorf("cuts: %v\n%s", cuts, p.f.logs)
		}
	})
}

// E-048, T1: a follower that comes back with a high watermark below its end, under a new leader, cuts nothing: where the
// histories part is found by epochs.
func TestE048_nothing_is_cut_to_the_high_watermark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.l.history(1, 0, 10, reign{0, 0})
		p.f.history(2, 0, 10, reign{0, 0})
		p.f.reopen(func() {
			if err := vfs.WriteFileAtomic(p.f.fs, "/data/replication-offset-checkpoint", []byte("0\n1\nt 0 7\n")); err != nil {
				t.Fatal(err)
			}
			p.f.logs.all = nil
		}, func(o *Options) {
			o.BrokerID = 2
			o.Leader = func(int32) Leader { return p.line }
		})
		if pos := p.f.partition("t").Positions(); pos.HighWatermark != 7 || pos.End != 10 {
			t.Fatalf("after the restart: %+v", pos)
		}
		p.l.reach(1, 20)
		p.f.reach(1, 20)
		settle(3 * time.Second)
		p.same(t)
		if strings.Contains(p.f.logs.String(), "truncat") {
			t.Errorf("something was cut:\n%s", p.f.logs)
		}
		if asked := p.line.exchange(); !strings.HasPrefix(asked, "fetch(10,0)") {
			t.Errorf("asked: %s", asked)
		}
	})
}

// E-049, T3: a follower cuts to 20, then to 15, each told with both offsets and epochs, and then equals the leader.
func TestE049_two_cuts(t *testing.T) {
	crafted(t, []reign{{1, 0}, {3, 20}}, 30, []reign{{1, 0}, {2, 15}, {4, 28}}, 40, func(p *pair) {
		if cuts := p.f.cuts(); !slices.Equal(cuts, []string{"30->20", "20->15"}) {
			t.Errorf("cuts: %v\n%s", cuts, p.f.logs)
		}
	})
}

// E-050, T7: no record is cut, and the follower's reign without records is gone from its checkpoint.
func TestE050_an_empty_reign_vanishes(t *testing.T) {
	crafted(t, []reign{{7, 0}, {8, 100}}, 100, []reign{{7, 0}, {9, 100}}, 150, func(p *pair) {
		if cuts := p.f.cuts(); len(cuts) > 0 {
			t.Errorf("cuts: %v", cuts)
		}
		held, err := vfs.ReadFile(p.f.fs, "/data/t-0/"+epoch.CheckpointName)
		if err != nil || string(held) != "0\n2\n7 0\n9 100\n" {
			t.Errorf("the follower's checkpoint: %q, %v", held, err)
		}
	})
}

// E-051, T8: where reigns interleave the follower cuts five times, and then equals the leader.
func TestE051_five_cuts(t *testing.T) {
	crafted(t, []reign{{0, 0}, {2, 10}, {4, 20}, {6, 30}, {8, 40}}, 50, []reign{{0, 0}, {1, 5}, {3, 15}, {5, 25}, {7, 35}, {9, 45}}, 60, func(p *pair) {
		if cuts := p.f.cuts(); !slices.Equal(cuts, []string{"50->40", "40->30", "30->20", "20->10", "10->5"}) {
			t.Errorf("cuts: %v\n%s", cuts, p.f.logs)
		}
	})
}

// E-052, T9: the leader's epoch 1 ends at 12, the follower's at 10: it cuts to 10, not to 12.
func TestE052_the_lower_end_counts(t *testing.T) {
	crafted(t, []reign{{1, 0}, {4, 10}, {5, 20}}, 25, []reign{{1, 0}, {6, 12}}, 30, func(p *pair) {
		if cuts := p.f.cuts(); !slices.Equal(cuts, []string{"25->10"}) {
			t.Errorf("cuts: %v\n%s", cuts, p.f.logs)
		}
	})
}

// E-053, T4: a follower that was away while everything below 100 was deleted starts empty at 100, with that as its log
// start, and catches up.
func TestE053_starts_over_where_the_leader_begins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.l.history(1, 100, 250, reign{5, 100})
		p.f.history(2, 0, 30, reign{1, 0}, reign{3, 20})
		p.l.reach(1, 20)
		p.f.reach(1, 20)
		settle(5 * time.Second)
		p.same(t)
		if pos := p.f.partition("t").Positions(); pos.LogStart != 100 || pos.End != 250 {
			t.Errorf("the follower: %+v", pos)
		}
		if !strings.Contains(p.f.logs.String(), "starting over") || !strings.Contains(p.f.logs.String(), "from=30 to=100") {
			t.Errorf("not told:\n%s", p.f.logs)
		}
	})
}

// spoilNext changes the next answers with records, as long as f says that it did.
func (l *nextDoor) spoilNext(f func(a *Followed) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spoil = func(_ FollowQuery, a *Followed) {
		if len(a.Records) > 0 && f != nil && !f(a) {
			f = nil
		}
	}
}

// chain builds batches of ten records, by base offset and leader epoch.
func chain(at ...[2]int64) (all []byte) {
	for _, b := range at {
		one := record.Batch(stamped(10, 1000))
		one.SetBaseOffset(b[0])
		one.SetPartitionLeaderEpoch(int32(b[1]))
		all = append(all, one...)
	}
	return all
}

// E-061: asked in epoch 5 the leader sends batches of epochs 5, 5 and 6: the follower ends at 120, and the last batch is
// not stored (KAFKA-18723).
func TestE061_batches_of_a_later_epoch_are_left(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.l.history(1, 0, 100, reign{5, 0})
		p.f.history(2, 0, 100, reign{5, 0})
		p.line.setDown(errors.New("not yet"))
		p.l.elect("t", 1)
		p.f.elect("t", 1)
		e := int64(p.f.partition("t").Role().LeaderEpoch)
		p.line.spoilNext(func(a *Followed) bool {
			a.Records = chain([2]int64{100, e}, [2]int64{110, e}, [2]int64{120, e + 1})
			p.line.down = errors.New("has said what it had to say")
			return false
		})
		p.line.setDown(nil)
		if r := p.l.produceAcks("t", 1, stamped(1, 1)); r.Err != nil {
			t.Fatal(r.Err)
		}
		settle(3 * time.Second)
		if pos := p.f.partition("t").Positions(); pos.End != 120 {
			t.Errorf("the follower ends at %d, want 120\n%s", pos.End, p.f.logs)
		}
		if n := p.f.m.Stats().Failed; n != 0 {
			t.Errorf("%d partitions have failed", n)
		}
	})
}

// E-062: a leader sends offsets that overlap. Nothing of it is stored, that partition has failed, and is counted, others go
// on; the next leader epoch heals it.
func TestE062_overlapping_offsets_fail_one_partition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		for _, n := range []*node{p.l, p.f} {
			n.create("t", 1, 1, 2)
			n.create("other", 1, 1, 2)
		}
		settle(time.Second)
		p.line.spoilNext(func(a *Followed) bool {
			if a.TopicID != topicID("t") {
				return true
			}
			a.Records = chain([2]int64{0, 0}, [2]int64{9, 0})
			return true
		})
		for _, topic := range []string{"t", "other"} {
			if r := p.l.produceAcks(topic, 1, stamped(5, 1000)); r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		settle(3 * time.Second)
		if end := p.f.partition("t").Positions().End; end != 0 {
			t.Errorf("the follower ends at %d", end)
		}
		if n := p.f.m.Stats().Failed; n != 1 {
			t.Errorf("%d partitions have failed, want 1", n)
		}
		if end := p.f.partition("other").Positions().End; end != 5 {
			t.Errorf("the other partition ends at %d", end)
		}
		p.line.spoilNext(nil)
		p.l.elect("t", 1)
		p.f.elect("t", 1)
		settle(3 * time.Second)
		p.same(t)
		if n := p.f.m.Stats().Failed; n != 0 {
			t.Errorf("%d partitions have failed after the next leader epoch", n)
		}
	})
}

// E-063: a batch whose CRC is wrong is not stored; it is asked for again after a pause, and once the bytes are good the
// follower goes on.
func TestE063_a_bad_crc_is_asked_for_again(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.l.create("t", 1, 1, 2)
		p.f.create("t", 1, 1, 2)
		settle(time.Second)
		bad := 0
		p.line.spoilNext(func(a *Followed) bool {
			bad++
			a.Records[len(a.Records)-1] ^= 0xff
			return true
		})
		if r := p.l.produceAcks("t", 1, stamped(5, 1000)); r.Err != nil {
			t.Fatal(r.Err)
		}
		settle(10 * time.Second)
		p.line.mu.Lock()
		asked := bad
		p.line.mu.Unlock()
		if asked < 8 || asked > 20 {
			t.Errorf("asked %d times in ten seconds: want a pause that grows to a second", asked)
		}
		if pos := p.f.partition("t").Positions(); pos.End != 0 || p.f.m.Stats().Failed != 0 {
			t.Errorf("the follower: %+v, %d failed", pos, p.f.m.Stats().Failed)
		}
		p.line.spoilNext(nil)
		settle(3 * time.Second)
		p.same(t)
	})
}

// E-076, A12: an append of the leader fails with a panic once its bytes are in the file. The follower, which fetches all
// the while, never meets an offset twice: it does not fail, stays in sync, and both logs are equal.
func TestE076_A12_a_panic_in_an_append_reaches_no_follower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		fault := vfs.NewFault(p.l.fs)
		p.l.files = fault
		p.l.reopen(nil)
		p.l.register(1, 2)
		p.l.create("t", 1, 1, 2)
		p.f.create("t", 1, 1, 2)
		settle(time.Second)
		refused := 0
		for i := range 30 {
			if i%3 == 1 {
				fault.Add(vfs.Rule{Kind: vfs.OpWrite, Name: "t-0/00000000000000000000.log", Panic: true, Short: 60 * (i % 2)})
			}
			if r := p.l.produce("t", stamped(7, int64(1000*i))); r.Err != nil {
				refused++
			}
			fault.Clear()
		}
		if refused != 10 {
			t.Errorf("%d of 30 appends were refused, want 10", refused)
		}
		settle(2 * time.Second)
		p.same(t)
		if end := p.f.partition("t").Positions().End; end != 140 {
			t.Errorf("the follower ends at %d, want 140", end)
		}
		if p.f.m.Stats().Failed != 0 || len(p.l.partition("t").Role().ISR) != 2 {
			t.Errorf("%d failed, in sync: %v", p.f.m.Stats().Failed, p.l.partition("t").Role().ISR)
		}
		if p.l.partition("t").Err() != nil || p.l.m.Stats().Offline != 0 {
			t.Errorf("the leader: %v", p.l.partition("t").Err())
		}
	})
}

// An epoch that goes backwards in what a leader sends is refused as an offset is: the line has what was asked, what the
// leader sent, and what this log holds.
func TestEvidenceOfBothLogs(t *testing.T) {
	for name, c := range map[string]struct {
		send [][2]int64
		said []string
	}{
		"epoch":  {[][2]int64{{10, 2}, {20, 1}}, []string{"leader sent", "10-19 epoch 2", "20-29 epoch 1", "end offset 10", "2:0"}},
		"offset": {[][2]int64{{10, 2}, {15, 2}}, []string{"leader sent", "10-19 epoch 2", "15-24 epoch 2", "end offset 10", "high watermark"}},
		"below":  {[][2]int64{{5, 2}}, []string{"asked from offset 10", "5-14 epoch 2", "end offset 10"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t)
				p.l.history(1, 0, 10, reign{2, 0})
				p.f.history(2, 0, 10, reign{2, 0})
				p.line.spoilNext(func(a *Followed) bool { a.Records = chain(c.send...); return true })
				p.l.reach(1, 4)
				p.f.reach(1, 4)
				if r := p.l.produceAcks("t", 1, stamped(1, 1)); r.Err != nil {
					t.Fatal(r.Err)
				}
				settle(time.Second)
				if n := p.f.m.Stats().Failed; n != 1 || p.f.partition("t").Positions().End != 10 {
					t.Errorf("%d failed, %+v", n, p.f.partition("t").Positions())
				}
				for _, said := range append(c.said, "following failed") {
					if !strings.Contains(p.f.logs.String(), said) {
						t.Errorf("not said: %q\n%s", said, p.f.logs)
					}
				}
			})
		})
	}
}

// E-059 at the leader: a follower that comes back with an empty disk under a new broker epoch is not proposed before it has
// everything, and what its old process asked for does not count.
func TestE059_an_empty_follower_is_proposed_when_it_has_caught_up(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.l.create("t", 1, 1, 2)
		if r := p.l.produceAcks("t", 1, stamped(50, 1000)); r.Err != nil {
			t.Fatal(r.Err)
		}
		settle(40 * time.Second)
		(<-p.l.altered).done(AlterSuperseded, LeaderAndISR{})
		p.l.setISR("t", 1)
		p.l.replay(&metadata.RegisterBrokerRecord{BrokerID: 2, BrokerEpoch: 55})
		if hw := p.l.partition("t").Positions().HighWatermark; hw != 50 {
			t.Fatalf("high watermark %d", hw)
		}
		old := consume(50, -1, p.l.partition("t").Role().LeaderEpoch)
		old.ReplicaID, old.ReplicaEpoch = 2, 20
		if got := p.l.fetch(old); got != "6" {
			t.Errorf("a fetch of the old process: %s", got)
		}
		young := old
		young.ReplicaEpoch = 55
		for _, at := range []int64{0, 25} {
			young.Partitions = slices.Clone(young.Partitions)
			young.Partitions[0].FetchOffset = at
			p.l.fetch(young)
			select {
			case a := <-p.l.altered:
				t.Fatalf("proposed at %d: %+v", at, a.change)
			default:
			}
		}
		young.Partitions[0].FetchOffset = 50
		p.l.fetch(young)
		a := <-p.l.altered
		if a.change.Joining != 2 || !slices.Contains(a.change.NewISR, ISRMember{ID: 2, BrokerEpoch: 55}) {
			t.Errorf("proposed: %+v", a.change)
		}
	})
}
