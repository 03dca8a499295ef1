package txn

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stelelog/stele/internal/shard"
)

func drawRecord(t *rapid.T) *Record {
	rec := &Record{ID: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "id"), Version: 1}
	if rapid.IntRange(0, 5).Draw(t, "tombstone") > 0 {
		rec.Value = &Metadata{ProducerID: rapid.Int64Range(0, 3).Draw(t, "producer"), ProducerEpoch: rapid.Int16Range(0, 9).Draw(t, "epoch"),
			State: State(rapid.IntRange(0, 5).Draw(t, "state")), lastProducerEpoch: NoEpoch}
	}
	return rec
}

func shardOf(log []*Record, hw int) *Shard {
	s := NewShard(Config{})
	for i, rec := range log {
		s.Replay(int64(i), -1, rec)
	}
	s.Committed(int64(hw))
	return s
}

func TestRevertIsReplayOfThePrefix(t *testing.T) {
	// At every offset, replaying a whole log and reverting to that offset leaves exactly what replaying the log up to there
	// does, in the newest and in the committed state; the same holds when other records then follow.
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		log := rapid.SliceOfN(rapid.Custom(drawRecord), 0, 20).Draw(t, "log")
		hw := rapid.IntRange(0, len(log)).Draw(t, "hw")
		other := rapid.SliceOfN(rapid.Custom(drawRecord), 0, 5).Draw(t, "other")
		for to := hw; to <= len(log); to++ {
			s := shardOf(log, hw)
			s.Revert(int64(to))
			if got, want := s.dump(), shardOf(log[:to], hw).dump(); got != want {
				t.Fatalf("high watermark %d, reverted to %d:\n%s\nreplayed:\n%s", hw, to, got, want)
			}
			again := append(append([]*Record{}, log[:to]...), other...)
			for i := to; i < len(again); i++ {
				s.Replay(int64(i), -1, again[i])
			}
			s.Committed(int64(len(again)))
			if got, want := s.dump(), shardOf(again, len(again)).dump(); got != want {
				t.Fatalf("after other records:\n%s\nreplayed:\n%s", got, want)
			}
			if n := s.journal.Open(); n != 0 {
				t.Fatalf("%d journal entries are left although all is committed", n)
			}
		}
	})
}

// model is what a producer knows of its id, and the partitions it writes to: data of each transaction, and how its markers
// decided it.
type model struct {
	producerID int64
	epoch      int16
}

func TestT041_random_faults(t *testing.T) {
	// Whatever order requests of two producers of one id, of both versions, markers, failovers, failed appends and late
	// replication come in: no transaction has two decisions, no marker goes to a partition with another outcome than its
	// transaction's record, epochs of a producer id never fall, and once all is well no id is left undecided.
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		r := newRig(t, rapid.SampledFrom([]int16{0, 1, 2}).Draw(rt, "level"))
		if rapid.Bool().Draw(rt, "late epochs") {
			r.put("tx", Metadata{ProducerID: 3000, ProducerEpoch: 32764, State: CompleteCommit, lastProducerEpoch: NoEpoch})
		}
		producers := [2]model{}
		outcomes := map[string]string{} // by producer id and marker epoch
		check := func() {
			epochs := map[int64]int16{}
			for i, rec := range r.log {
				m := rec.Value
				if m == nil {
					continue
				}
				if last, ok := epochs[m.ProducerID]; ok && m.ProducerEpoch < last {
					rt.Fatalf("record %d: epoch %d of %d after %d", i, m.ProducerEpoch, m.ProducerID, last)
				}
				epochs[m.ProducerID] = m.ProducerEpoch
				if i == 0 || r.log[i-1].Value == nil {
					continue
				}
				before := r.log[i-1].Value
				ok := false
				switch m.State {
				case Empty:
					ok = before.State == Empty || before.State.completed()
				case Ongoing:
					ok = !before.State.prepared() && before.State != Dead
				case PrepareCommit:
					ok = before.State == Ongoing
				case PrepareAbort:
					ok = !before.State.prepared()
				case CompleteCommit:
					ok = before.State == PrepareCommit
				case CompleteAbort:
					ok = before.State == PrepareAbort
				}
				if !ok {
					rt.Fatalf("record %d: %s after %s", i, describe(rec), describe(r.log[i-1]))
				}
			}
		}
		for range rapid.IntRange(1, 50).Draw(rt, "steps") {
			p := &producers[rapid.IntRange(0, 1).Draw(rt, "who")]
			version := rapid.SampledFrom([]int16{Version0, Version2}).Draw(rt, "version")
			switch rapid.IntRange(0, 9).Draw(rt, "what") {
			case 0:
				got := reply[*InitReply](r, func(to shard.ReplyTo) Effects {
					return r.s.InitProducerID(r.now, to, InitRequest{ID: "tx", TimeoutMs: 60000, ProducerID: NoProducerID, ProducerEpoch: NoEpoch})
				})
				if got != nil && got.Err == nil {
					*p = model{producerID: got.ProducerID, epoch: got.ProducerEpoch}
				}
			case 1, 2, 3:
				r.add("tx", p.producerID, p.epoch, version, rapid.SampledFrom([]string{"p0", "p1"}).Draw(rt, "partition"))
			case 4, 5:
				got := reply[*EndReply](r, func(to shard.ReplyTo) Effects {
					return r.s.EndTxn(r.now, to, EndRequest{ID: "tx", ProducerID: p.producerID, ProducerEpoch: p.epoch, Version: version, Commit: rapid.Bool().Draw(rt, "commit")})
				})
				if got != nil && got.Err == nil && version == Version2 {
					p.producerID, p.epoch = got.ProducerID, got.ProducerEpoch
				}
			case 6:
				for _, m := range r.markers {
					if m.Version < Version2 {
						continue // the epoch is that of the transaction, and of the next
					}
					name := fmt.Sprintf("%d/%d", m.ProducerID, m.ProducerEpoch)
					decision := fmt.Sprintf("%t %v", m.Commit, m.Partitions)
					if before, ok := outcomes[name]; ok && before != decision {
						rt.Fatalf("%s was decided %s and %s", name, before, decision)
					}
					outcomes[name] = decision
				}
				r.mark()
			case 7:
				r.fail = shard.ErrCoordinatorNotAvailable
			case 8:
				r.held = true
			case 9:
				switch rapid.IntRange(0, 2).Draw(rt, "event") {
				case 0:
					r.commit()
				case 1:
					r.log = r.log[:rapid.IntRange(r.hw, len(r.log)).Draw(rt, "kept")]
					r.load()
				case 2:
					r.now = r.now.Add(rapid.SampledFrom([]time.Duration{second, 61 * second}).Draw(rt, "time"))
					r.tick()
				}
			}
			check()
		}
		r.fail = nil
		r.commit()
		for range 3 {
			r.mark()
			r.now = r.now.Add(second)
			r.tick()
		}
		if m, ok := r.s.ids.Newest()["tx"]; ok && m.State.prepared() {
			rt.Fatalf("stuck: %s", r.newest())
		}
		check()
	})
}
