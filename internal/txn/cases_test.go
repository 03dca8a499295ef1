package txn

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/shard"
)

func TestT003_init_twice(t *testing.T) {
	// A new id gets a producer id at epoch 0, and the same with epoch 1 the second time.
	t.Parallel()
	r := newRig(t, 2)
	r.want("first", r.init("tx", -1, -1), "(4000,0)")
	r.want("record", r.newest(), "Empty (4000,0)")
	r.want("second", r.init("tx", -1, -1), "(4000,1)")
}

func TestT002_init_refused(t *testing.T) {
	// An empty id and half of a producer are 42, a timeout of 0 or above the largest 50.
	t.Parallel()
	for want, reqs := range map[error][]InitRequest{
		ErrInvalidRequest:            {{TimeoutMs: 1, ProducerID: -1, ProducerEpoch: -1}, {ID: "x", TimeoutMs: 1, ProducerID: 5, ProducerEpoch: -1}, {ID: "x", TimeoutMs: 1, ProducerID: -1, ProducerEpoch: 3}},
		ErrInvalidTransactionTimeout: {{ID: "x", ProducerID: -1, ProducerEpoch: -1}, {ID: "x", TimeoutMs: 900001, ProducerID: -1, ProducerEpoch: -1}},
		nil:                          {{ID: "x", TimeoutMs: 900000, ProducerID: -1, ProducerEpoch: -1}, {ID: "x", TimeoutMs: 1, ProducerID: 4, ProducerEpoch: 0}},
	} {
		for _, req := range reqs {
			if err := (Config{}).Validate(req); !errors.Is(err, want) {
				t.Errorf("%+v: %v, want %v", req, err, want)
			}
		}
	}
}

func TestT004_retried_init(t *testing.T) {
	// KIP-360: a producer that asks again with the epoch it had gets what it was given; another takes the id over; the
	// epochs before are fenced.
	t.Parallel()
	r := newRig(t, 2)
	r.put("tx", Metadata{ProducerID: 4000, ProducerEpoch: 3, State: CompleteCommit, lastProducerEpoch: NoEpoch})
	r.want("asks", r.init("tx", 4000, 3), "(4000,4)")
	r.want("asks again", r.init("tx", 4000, 3), "(4000,4)")
	r.want("another", r.init("tx", -1, -1), "(4000,5)")
	r.want("epoch 3", r.init("tx", 4000, 3), "90")
	r.want("epoch 4", r.init("tx", 4000, 4), "90")
	r.want("another producer id", r.init("tx", 4001, 5), "90")
}

func TestT005_init_table(t *testing.T) {
	// Every row of the table by which InitProducerId finds the epoch, from Empty and from both completed states.
	t.Parallel()
	for _, row := range []struct {
		epoch, last, expected int16
		want                  string
	}{
		{3, 1, -1, "(4000,4)"}, {3, 1, 3, "(4000,4)"}, {3, 1, 1, "(4000,3)"}, {3, 1, 2, "90"}, {3, -1, 2, "90"}, {0, -1, 1, "90"},
		{32765, -1, -1, "(4000,32766)"}, {32766, -1, -1, "(5000,0)"}, {32766, 32765, 32766, "(5000,0)"}, {32766, 32765, 32765, "90"}, {32767, -1, -1, "(5000,0)"},
	} {
		for _, state := range []State{Empty, CompleteCommit, CompleteAbort} {
			r := newRig(t, 2)
			r.nextID = 5000
			r.put("tx", Metadata{ProducerID: 4000, ProducerEpoch: row.epoch, State: state, lastProducerEpoch: row.last})
			producer := int64(4000)
			if row.expected < 0 {
				producer = -1
			}
			r.want(fmt.Sprintf("%s, %+v", state, row), r.init("tx", producer, row.expected), row.want)
		}
	}
	r := newRig(t, 2)
	r.nextID = 5000
	r.put("tx", Metadata{ProducerID: 4000, ProducerEpoch: 32766, State: CompleteCommit, lastProducerEpoch: NoEpoch})
	r.want("the epochs are used up", r.init("tx", 4000, 32766), "(5000,0)")
	r.want("again", r.init("tx", 4000, 32766), "(5000,0)")
	r.want("and again", r.init("tx", 4000, 32766), "(5000,0)")
	r.want("record", r.newest(), "Empty (5000,0) previous 4000")
	r.load()
	r.want("again, after a failover", r.init("tx", 4000, 32766), "90")
	r.noIDs = true
	r.want("no producer id at hand", r.init("new", -1, -1), "14")
}

func TestT006_zombie(t *testing.T) {
	// A's transaction is open when B takes the id: it is aborted in epoch 1, which nobody is told, B gets 2, and A is fenced.
	t.Parallel()
	for _, level := range []int16{1, 2} {
		r := newRig(t, level)
		version := Version0
		if level == 2 {
			version = Version2
		}
		r.want("A", r.init("tx", -1, -1), "(4000,0)")
		r.want("A adds", r.add("tx", 4000, 0, version, "p0"), "0")
		r.want("B", r.init("tx", -1, -1), "51")
		r.want("record", r.newest(), "PrepareAbort (4000,1) p0")
		r.want("markers", r.out(), fmt.Sprintf("abort (4000,1) v%d p0", version))
		r.want("B, while markers are out", r.init("tx", -1, -1), "51")
		r.mark()
		r.want("record", r.newest(), "CompleteAbort (4000,1)")
		r.want("B again", r.init("tx", -1, -1), "(4000,2)")
		r.want("A ends", r.end("tx", 4000, 0, version, true), "90")
		r.want("A adds", r.add("tx", 4000, 0, version, "p0"), "90")
		r.want("A begins anew", r.init("tx", 4000, 0), "90")
	}
}

func TestT007_failed_fence(t *testing.T) {
	// The append that aborts A's transaction fails: asked again the same epoch is used, and B gets the one above.
	t.Parallel()
	for _, level := range []int16{1, 2} {
		r := newRig(t, level)
		r.init("tx", -1, -1)
		r.add("tx", 4000, 0, Version2, "p0")
		r.fail = shard.ErrCoordinatorNotAvailable
		r.want("B, the append fails", r.init("tx", -1, -1), "15")
		r.want("B", r.init("tx", -1, -1), "51")
		r.want("record", r.newest(), "PrepareAbort (4000,1) p0")
		r.mark()
		r.want("B again", r.init("tx", -1, -1), "(4000,2)")
	}
}

func TestT008_commit(t *testing.T) {
	// transaction.version 2: each end gives the epoch of the next transaction, which needs no InitProducerId.
	t.Parallel()
	r := newRig(t, 2)
	r.want("init", r.init("tx", -1, -1), "(4000,0)")
	r.want("record", r.newest(), "Empty (4000,0)")
	r.want("add", r.add("tx", 4000, 0, Version2, "p0"), "0")
	r.want("record", r.newest(), "Ongoing (4000,0) p0")
	r.want("end", r.end("tx", 4000, 0, Version2, true), "(4000,1)")
	r.want("record", r.newest(), "PrepareCommit (4000,1) p0")
	r.want("markers", r.out(), "commit (4000,1) v2 p0")
	r.want("next, while markers are out", r.add("tx", 4000, 1, Version2, "p1"), "51")
	r.mark()
	r.want("record", r.newest(), "CompleteCommit (4000,1)")
	r.want("next", r.add("tx", 4000, 1, Version2, "p1"), "0")
	r.want("record", r.newest(), "Ongoing (4000,1) p1")
}

func TestT009_lost_reply(t *testing.T) {
	// An EndTxn that is sent again gets the same answer once the markers are written, and 48 if it wants the other end; with
	// the new epoch and nothing added a commit is 48, an abort ends what may be on its way.
	t.Parallel()
	r := newRig(t, 2)
	r.init("tx", -1, -1)
	r.add("tx", 4000, 0, Version2, "p0")
	r.end("tx", 4000, 0, Version2, true)
	r.want("again, markers out", r.end("tx", 4000, 0, Version2, true), "51")
	r.mark()
	r.want("again", r.end("tx", 4000, 0, Version2, true), "(4000,1)")
	r.want("again as abort", r.end("tx", 4000, 0, Version2, false), "48")
	r.want("nothing added, commit", r.end("tx", 4000, 1, Version2, true), "48")
	r.want("nothing added, abort", r.end("tx", 4000, 1, Version2, false), "(4000,2)")
	r.want("record", r.newest(), "CompleteAbort (4000,2)")
}

func TestT010_end_table_v2(t *testing.T) {
	// Every cell of the table by which EndTxn 5 answers.
	t.Parallel()
	type row struct {
		state         State
		epoch         int16 // the request's, where 5 is stored
		commit, abort string
		record        string // of the abort, unless ""
	}
	for _, row := range []row{
		{Ongoing, 5, "(4000,6)", "(4000,6)", "PrepareAbort (4000,6) p0"},
		{Ongoing, 4, "90", "90", ""}, {Ongoing, 6, "90", "90", ""},
		{Empty, 5, "48", "(4000,6)", "CompleteAbort (4000,6)"}, {Empty, 4, "90", "90", ""},
		{CompleteCommit, 5, "48", "(4000,6)", "CompleteAbort (4000,6)"}, {CompleteCommit, 4, "(4000,5)", "48", ""}, {CompleteCommit, 3, "90", "90", ""},
		{CompleteAbort, 5, "48", "(4000,6)", "CompleteAbort (4000,6)"}, {CompleteAbort, 4, "48", "(4000,5)", ""}, {CompleteAbort, 6, "90", "90", ""},
		{PrepareCommit, 4, "51", "51", ""}, {PrepareAbort, 4, "51", "51", ""},
	} {
		for _, commit := range []bool{true, false} {
			r := newRig(t, 2)
			m := Metadata{ProducerID: 4000, ProducerEpoch: 5, State: row.state, lastProducerEpoch: NoEpoch}
			if row.state == Ongoing || row.state.prepared() {
				m.Partitions = []TopicPartition{tp("p0")}
			}
			r.put("tx", m)
			want := row.abort
			if commit {
				want = row.commit
			}
			r.want("another producer id", r.end("tx", 4001, row.epoch, Version2, commit), map[bool]string{true: "51", false: "49"}[row.state.prepared()])
			r.want(fmt.Sprintf("%s, epoch %d, commit %t", row.state, row.epoch, commit), r.end("tx", 4000, row.epoch, Version2, commit), want)
			if !commit && row.record != "" {
				r.want("record", r.newest(), row.record)
			}
		}
	}
	r := newRig(t, 2)
	r.want("unknown id", r.end("tx", 4000, 0, Version2, true), "49")
	r.want("no id", r.end("", 4000, 0, Version2, true), "42")
}

func TestT011_end_table_v0(t *testing.T) {
	// Every cell of the table by which EndTxn up to 4 answers; the epoch stays as it is.
	t.Parallel()
	for _, row := range []struct {
		state         State
		commit, abort string
	}{
		{Ongoing, "0", "0"}, {PrepareCommit, "51", "51"}, {PrepareAbort, "51", "51"}, {CompleteCommit, "0", "48"}, {CompleteAbort, "48", "0"}, {Empty, "48", "48"},
	} {
		for _, commit := range []bool{true, false} {
			r := newRig(t, 1)
			m := Metadata{ProducerID: 4000, ProducerEpoch: 5, State: row.state}
			if row.state == Ongoing || row.state.prepared() {
				m.Partitions = []TopicPartition{tp("p0")}
			}
			r.put("tx", m)
			want := row.abort
			if commit {
				want = row.commit
			}
			for _, epoch := range []int16{4, 6} {
				r.want(fmt.Sprintf("%s, epoch %d", row.state, epoch), r.end("tx", 4000, epoch, Version0, commit), "90")
			}
			r.want("another producer id", r.end("tx", 4001, 5, Version0, commit), "49")
			r.want(fmt.Sprintf("%s, commit %t", row.state, commit), r.end("tx", 4000, 5, Version0, commit), want)
			if row.state == Ongoing {
				r.mark()
				r.want("record", r.newest(), completeState(commit).String()+" (4000,5)")
			}
		}
	}
}

func TestT012_overflow(t *testing.T) {
	// The last epoch of a producer id ends in a new id: told with the end in version 2, given by the next InitProducerId
	// in version 1.
	t.Parallel()
	r := newRig(t, 2)
	r.nextID = 5000
	r.put("tx", Metadata{ProducerID: 4000, ProducerEpoch: 32766, State: Ongoing, Partitions: []TopicPartition{tp("p0")}, lastProducerEpoch: NoEpoch})
	r.want("end", r.end("tx", 4000, 32766, Version2, true), "(5000,0)")
	r.want("record", r.newest(), "PrepareCommit (4000,32767) next 5000 p0")
	r.want("markers", r.out(), "commit (4000,32767) v2 p0")
	r.want("next, while markers are out", r.add("tx", 5000, 0, Version2, "p0"), "51")
	r.mark()
	r.want("record", r.newest(), "CompleteCommit (5000,0) previous 4000")
	r.want("again", r.end("tx", 4000, 32766, Version2, true), "(5000,0)")
	r.want("again as abort", r.end("tx", 4000, 32766, Version2, false), "48")
	r.load()
	r.want("again after a failover", r.end("tx", 4000, 32766, Version2, true), "(5000,0)")
	r.want("next", r.add("tx", 5000, 0, Version2, "p0"), "0")

	r = newRig(t, 2)
	r.nextID = 5000
	r.put("tx", Metadata{ProducerID: 4000, ProducerEpoch: 32766, State: Ongoing, Partitions: []TopicPartition{tp("p0")}, lastProducerEpoch: NoEpoch})
	r.want("another, version 2", r.init("tx", -1, -1), "51")
	r.want("record", r.newest(), "PrepareAbort (4000,32767) next 5000 p0")
	r.mark()
	r.want("record", r.newest(), "CompleteAbort (5000,0) previous 4000")
	r.want("another again", r.init("tx", -1, -1), "(5000,1)")

	r = newRig(t, 1)
	r.nextID = 5000
	r.put("tx", Metadata{ProducerID: 4000, ProducerEpoch: 32766, State: Ongoing, Partitions: []TopicPartition{tp("p0")}, lastProducerEpoch: NoEpoch})
	r.want("another, version 1", r.init("tx", -1, -1), "51")
	r.want("record", r.newest(), "PrepareAbort (4000,32767) p0")
	r.mark()
	r.want("another again", r.init("tx", -1, -1), "(5000,0)")
}

func TestT013_timeout_of_the_last_epoch(t *testing.T) {
	// A transaction in the last epoch runs out of time: it is aborted in 32767, the next producer id is allocated, and the
	// id is usable. While no id is at hand it waits for the next look.
	t.Parallel()
	r := newRig(t, 2)
	r.nextID = 5000
	r.put("tx", Metadata{ProducerID: 4000, ProducerEpoch: 32766, State: Ongoing, Partitions: []TopicPartition{tp("p0")}, lastProducerEpoch: NoEpoch})
	r.noIDs = true
	r.at(70 * second)
	r.want("no producer id at hand", r.newest(), "Ongoing (4000,32766) p0")
	r.noIDs = false
	r.at(80 * second)
	r.want("record", r.newest(), "PrepareAbort (4000,32767) next 5000 p0")
	r.mark()
	r.want("record", r.newest(), "CompleteAbort (5000,0) previous 4000")
	r.want("init", r.init("tx", -1, -1), "(5000,1)")
	r.put("damaged", Metadata{ProducerID: 4500, ProducerEpoch: math.MaxInt16, State: Ongoing, Partitions: []TopicPartition{tp("p0")}, lastProducerEpoch: NoEpoch})
	r.at(200 * second)
	r.want("damage", r.newest(), "PrepareAbort (4500,32767) p0")
}

func TestT017_T018_verify(t *testing.T) {
	// VerifyOnly answers 0 for a partition of the open transaction and 120 for another, 51 once it is decided, 90 for another
	// epoch, and writes nothing; nor does an addition of what is there.
	t.Parallel()
	r := newRig(t, 2)
	r.init("tx", -1, -1)
	r.want("nothing open", r.verify("tx", 4000, 0, "p0"), "120")
	r.add("tx", 4000, 0, Version0, "p0")
	records := len(r.log)
	r.want("open", r.verify("tx", 4000, 0, "p0", "p1"), "0 120")
	r.want("another epoch", r.verify("tx", 4000, 1, "p0"), "90")
	r.want("another producer id", r.verify("tx", 4001, 0, "p0"), "49")
	r.want("unknown", r.verify("ty", 4000, 0, "p0"), "49")
	r.want("no id", r.verify("", 4000, 0, "p0"), "42")
	r.want("p0 again", r.add("tx", 4000, 0, Version0, "p0"), "0")
	if len(r.log) != records {
		t.Errorf("%d records were written", len(r.log)-records)
	}
	r.held = true
	r.want("p1, not replicated", r.add("tx", 4000, 0, Version0, "p1"), "parked")
	r.want("p1 is not committed", r.verify("tx", 4000, 0, "p1"), "120")
	r.commit()
	r.want("p1 is", r.verify("tx", 4000, 0, "p1"), "0")
	r.end("tx", 4000, 0, Version0, true)
	r.want("decided", r.verify("tx", 4000, 0, "p0"), "51")
	r.mark()
	r.want("done", r.verify("tx", 4000, 0, "p0"), "120")
}

func TestT016_fenced_and_unknown(t *testing.T) {
	// Additions of another epoch are 90, of another producer id and of an unknown id 49, of no id 42, while something is
	// under way 51.
	t.Parallel()
	r := newRig(t, 2)
	r.init("tx", -1, -1)
	r.want("epoch above", r.add("tx", 4000, 1, Version2, "p0"), "90")
	r.want("another producer id", r.add("tx", 4001, 0, Version2, "p0"), "49")
	r.want("unknown", r.add("ty", 4000, 0, Version2, "p0"), "49")
	r.want("no id", r.add("", 4000, 0, Version2, "p0"), "42")
	r.held = true
	r.want("not replicated", r.add("tx", 4000, 0, Version2, "p0"), "parked")
	r.want("meanwhile", r.add("tx", 4000, 0, Version2, "p1"), "parked")
	r.commit()
	if got := r.replies[r.last].(*AddReply).Err; !errors.Is(got, ErrConcurrentTransactions) {
		t.Errorf("meanwhile: %v", got)
	}
}

func TestT027_T029_failover(t *testing.T) {
	// The next coordinator sends all markers of a transaction that was decided, and completes it; one that is open goes on,
	// and nobody notices; what only memory knew (the last epoch) is lost.
	t.Parallel()
	r := newRig(t, 2)
	r.init("tx", -1, -1)
	r.add("tx", 4000, 0, Version2, "p0", "p1")
	r.want("end", r.end("tx", 4000, 0, Version2, true), "(4000,1)")
	r.s.MarkersWritten(r.now, r.markers[0], []TopicPartition{tp("p0")})
	if got := r.s.Describe("tx"); len(got.Partitions) != 1 || got.Partitions[0] != tp("p1") || got.State != PrepareCommit {
		t.Errorf("described while markers are out: %+v", got)
	}
	r.load()
	r.want("markers of the next", r.out(), "commit (4000,1) v2 p0 p1")
	r.want("the producer goes on", r.add("tx", 4000, 1, Version2, "p0"), "51")
	r.mark()
	r.want("record", r.newest(), "CompleteCommit (4000,1)")
	r.want("the producer goes on", r.add("tx", 4000, 1, Version2, "p0"), "0")
	r.load()
	r.want("markers of an open one", r.out(), "")
	r.want("the producer goes on", r.add("tx", 4000, 1, Version2, "p1"), "0")
	r.want("end", r.end("tx", 4000, 1, Version2, false), "(4000,2)")
	r.mark()
	r.want("asks", r.init("tx", 4000, 2), "(4000,3)")
	r.load()
	r.want("asks again after the failover", r.init("tx", 4000, 2), "90")
}

func TestT032_timeout(t *testing.T) {
	// Open from 0 with 60 s: not at the look at 60 s, but at the one at 70 s. The producer is fenced and may begin anew.
	t.Parallel()
	r := newRig(t, 2)
	r.init("tx", -1, -1)
	r.add("tx", 4000, 0, Version2, "p0")
	for at := 10 * second; at <= 60*second; at += 10 * second {
		r.at(at)
	}
	r.want("at 60 s", r.newest(), "Ongoing (4000,0) p0")
	r.at(70 * second)
	r.want("at 70 s", r.newest(), "PrepareAbort (4000,1) p0")
	r.mark()
	r.want("the producer commits", r.end("tx", 4000, 0, Version2, true), "90")
	r.want("the producer aborts", r.end("tx", 4000, 0, Version2, false), "90")
	r.want("and begins anew", r.init("tx", -1, -1), "(4000,2)")
}

func TestT033_expiry(t *testing.T) {
	// After 7 days the hourly look forgets ids that are empty or completed; one that is open stays. A forgotten one is new,
	// with a new producer id, and its old producers are told 49.
	t.Parallel()
	r := newRig(t, 2)
	r.init("empty", -1, -1)
	r.put("done", Metadata{ProducerID: 100, State: CompleteCommit})
	r.put("open", Metadata{ProducerID: 101, State: Ongoing, Partitions: []TopicPartition{tp("p0")}})
	m := *r.s.ids.Newest()["open"]
	m.TimeoutMs = noTimeLimit
	r.apply(Effects{Records: []*Record{{ID: "open", Value: &m, Version: 1}}})
	r.at(7*24*time.Hour - time.Minute)
	if n := len(r.s.ids.Newest()); n != 3 {
		t.Fatalf("%d ids before", n)
	}
	r.fail = shard.ErrCoordinatorNotAvailable
	r.at(7*24*time.Hour + time.Hour)
	if n := len(r.s.ids.Newest()); n != 3 {
		t.Fatalf("%d ids although nothing was written", n)
	}
	r.at(7*24*time.Hour + 2*time.Hour)
	if n := len(r.s.ids.Newest()); n != 1 {
		t.Errorf("%d ids are left", n)
	}
	r.want("described", code(r.s.Describe("done").Err), "105")
	r.want("an old producer", r.add("empty", 4000, 0, Version2, "p0"), "49")
	r.want("init", r.init("empty", -1, -1), "(5000,0)")
}

func TestT038_T039_describe_and_list(t *testing.T) {
	// What is described and listed is what is committed; filters work together; a transaction that never began passes the
	// filter by duration, as in Kafka.
	t.Parallel()
	r := newRig(t, 2)
	r.init("empty", -1, -1)
	r.init("open", -1, -1)
	r.add("open", 5000, 0, Version2, "p1", "a0")
	r.at(5 * second)
	d := r.s.Describe("open")
	if d.Err != nil || d.State != Ongoing || d.TimeoutMs != 60000 || d.Start != r.start.UnixMilli() || d.ProducerID != 5000 || d.ProducerEpoch != 0 ||
		len(d.Partitions) != 2 || d.Partitions[0] != tp("a0") {
		t.Errorf("%+v", d)
	}
	if d := r.s.Describe("empty"); d.Start != NoTime || d.State != Empty {
		t.Errorf("%+v", d)
	}
	r.want("unknown", code(r.s.Describe("nobody").Err), "105")
	for want, f := range map[string]Filter{
		"empty open": {Duration: -1}, "": {Duration: -1, NoState: true}, "open": {Duration: -1, States: []State{Ongoing}},
		"empty": {Duration: -1, ProducerIDs: []int64{4000}},
	} {
		r.want(fmt.Sprintf("%+v", f), listed(r.s.List(r.now, f)), want)
	}
	r.want("longer than 4 s", listed(r.s.List(r.now, Filter{Duration: 4 * second})), "empty open")
	r.want("longer than 5 s", listed(r.s.List(r.now, Filter{Duration: 5 * second})), "empty")
	r.want("by pattern", listed(r.s.List(r.now, Filter{Duration: -1, Pattern: regexp.MustCompile("^(?:o.*)$")})), "open")
	r.held = true
	r.end("open", 5000, 0, Version2, true)
	r.want("a decision that is not replicated", r.s.Describe("open").State.String(), "Ongoing")
}

func listed(all []Listed) string {
	text := ""
	for i, one := range all {
		if i > 0 {
			text += " "
		}
		text += one.ID
	}
	return text
}

func TestT040_failed_append(t *testing.T) {
	// A record that could not be written leaves nothing behind: the request gets the error, and works when it is sent again.
	// So does a completion, by itself.
	t.Parallel()
	r := newRig(t, 2)
	r.init("tx", -1, -1)
	for _, err := range []error{shard.ErrCoordinatorNotAvailable, shard.ErrNotCoordinator} {
		r.fail = err
		r.want("add", r.add("tx", 4000, 0, Version2, "p0"), code(err))
		r.want("nothing is left", r.verify("tx", 4000, 0, "p0"), "120")
	}
	r.want("add", r.add("tx", 4000, 0, Version2, "p0"), "0")
	r.fail = shard.ErrCoordinatorNotAvailable
	r.want("end", r.end("tx", 4000, 0, Version2, true), "15")
	r.want("markers of what was not decided", r.out(), "")
	r.want("end again", r.end("tx", 4000, 0, Version2, true), "(4000,1)")
	r.fail = shard.ErrCoordinatorNotAvailable
	r.mark()
	r.want("the completion failed", r.newest(), "PrepareCommit (4000,1) p0")
	r.at(second)
	r.want("and is tried again", r.newest(), "CompleteCommit (4000,1)")
}

// A decision whose record is late is answered with an error, and stands: when the record is committed, the markers go out.
func TestLateDecision(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.init("tx", -1, -1)
	r.add("tx", 4000, 0, Version2, "p0")
	r.held = true
	r.want("end", r.end("tx", 4000, 0, Version2, true), "parked")
	r.waiting = nil // the producer was told that the coordinator is not available
	r.held = true
	r.want("again", r.end("tx", 4000, 0, Version2, false), "parked")
	r.want("markers", r.out(), "")
	r.commit()
	r.want("markers", r.out(), "commit (4000,1) v2 p0")
	r.mark()
	r.want("record", r.newest(), "CompleteCommit (4000,1)")
}

// A partition that has seen a newer owner stops the transaction here: nothing more is written of it by this shard.
func TestRefusedMarker(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.init("tx", -1, -1)
	r.add("tx", 4000, 0, Version2, "p0", "p1")
	r.end("tx", 4000, 0, Version2, true)
	r.s.MarkersRefused(r.markers[0])
	r.s.MarkersWritten(r.now, r.markers[0], []TopicPartition{tp("p1")})
	r.at(second)
	r.want("record", r.newest(), "PrepareCommit (4000,1) p0 p1")
	r.load()
	r.want("markers of the next", r.out(), "commit (4000,1) v2 p0 p1")
	r.mark()
	r.want("the next coordinator", r.newest(), "CompleteCommit (4000,1)")
}

// A transaction that turns out to be complete has no marker sent, though the next one has its producer id and epoch: such a
// marker would end the next. Nor does its task of the past count for the next.
func TestMarkersOfTheTransactionBefore(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.put("tx", Metadata{ProducerID: 4000, State: Empty})
	r.held = true
	p0 := []TopicPartition{tp("p0")}
	r.put("tx", Metadata{ProducerID: 4000, State: PrepareCommit, Partitions: p0})
	r.put("tx", Metadata{ProducerID: 4000, State: CompleteCommit})
	r.put("tx", Metadata{ProducerID: 4000, State: Ongoing, Partitions: p0})
	r.put("tx", Metadata{ProducerID: 4000, State: PrepareAbort, Partitions: p0})
	r.commit()
	r.want("markers", r.out(), "abort (4000,0) v0 p0")
	before := r.markers[0]
	r.mark()
	r.want("record", r.newest(), "CompleteAbort (4000,0)")
	r.want("next", r.add("tx", 4000, 0, Version0, "p0"), "0")
	r.want("end", r.end("tx", 4000, 0, Version0, true), "0")
	r.s.MarkersWritten(r.now, before, p0)
	r.s.MarkersRefused(before)
	r.tick()
	r.want("after word of the one before", r.newest(), "PrepareCommit (4000,0) p0")
	r.mark()
	r.want("after its own", r.newest(), "CompleteCommit (4000,0)")
}

// A completion that was late, and then committed after all, is not written again to the next transaction, whose markers
// are still out.
func TestLateCompletion(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.init("tx", -1, -1)
	r.add("tx", 4000, 0, Version0, "p0")
	r.end("tx", 4000, 0, Version0, true)
	r.held = true
	r.mark()
	late := r.writes
	r.writes = nil
	if len(late) != 1 {
		t.Fatalf("%d completions are being written", len(late))
	}
	r.apply(r.s.Finish(r.now, late[0].id, shard.ErrCoordinatorNotAvailable))
	r.commit()
	r.want("record", r.newest(), "CompleteCommit (4000,0)")
	r.want("next", r.add("tx", 4000, 0, Version0, "p0"), "0")
	r.want("end", r.end("tx", 4000, 0, Version0, false), "0")
	r.at(second)
	r.want("while markers are out", r.newest(), "PrepareAbort (4000,0) p0")
	r.mark()
	r.want("record", r.newest(), "CompleteAbort (4000,0)")
}

// Records are of version 0 below transaction.version 1, and then of version 1; the level may change at any time, and what
// the coordinator aborts goes by the level.
func TestT042_levels(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	r.init("tx", -1, -1)
	r.add("tx", 4000, 0, Version0, "p0")
	if v := r.log[len(r.log)-1].Version; v != 0 {
		t.Errorf("version %d at level 0", v)
	}
	r.level = 2
	r.s.SetLevel(2)
	r.want("an old transaction ends in its own version", r.end("tx", 4000, 0, Version0, true), "0")
	r.want("markers", r.out(), "commit (4000,0) v0 p0")
	if v := r.log[len(r.log)-1].Version; v != 1 {
		t.Errorf("version %d at level 2", v)
	}
	r.mark()
	r.want("the next is of the new", r.add("tx", 4000, 0, Version2, "p0"), "0")
	r.want("and ends so", r.end("tx", 4000, 0, Version2, true), "(4000,1)")
	r.mark()
	r.s.SetLevel(0)
	r.want("downgraded", r.add("tx", 4000, 1, Version0, "p0"), "0")
	r.want("another", r.init("tx", -1, -1), "51")
	r.want("markers", r.out(), "abort (4000,2) v0 p0")
}
