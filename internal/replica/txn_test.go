package replica

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/record"
)

// txnBatch is a batch of one record in a transaction.
func txnBatch(id int64, epoch int16, sequence int32) []byte {
	b := record.NewBuilder(record.BuilderOptions{Producer: &record.Producer{ID: id, Epoch: epoch, BaseSequence: sequence}, Transactional: true})
	if err := b.Append(1000, nil, []byte("v"), nil); err != nil {
		panic(err)
	}
	return b.Bytes()
}

func endOf(id int64, epoch int16, commit bool, coordinator int32) []byte {
	return record.NewEndTxnBatch(record.EndTxnMarker{Commit: commit, ProducerID: id, ProducerEpoch: epoch, CoordinatorEpoch: coordinator}, 1000)
}

// mark appends a marker as its coordinator asks for it.
func (n *node) mark(topic string, timeout time.Duration, marker []byte) *DelayedProduce {
	n.t.Helper()
	return n.m.Produce(ProduceRequest{Acks: -1, Timeout: timeout, Origin: log.OriginCoordinator, Partitions: []ProducePartition{{Topic: topic, Records: marker}}})
}

// coordinatorOf answers in the place of a transaction coordinator.
type coordinatorOf struct {
	asked   []TxnVerification
	answers func(TxnVerification) []error
}

func (c *coordinatorOf) verify(_ context.Context, v TxnVerification) []error {
	c.asked = append(c.asked, v)
	if c.answers != nil {
		return c.answers(v)
	}
	return make([]error, len(v.Partitions))
}

// admitted sends batches to partitions 0 of topics as one request of a transactional producer.
func (n *node) admitted(version int16, topics []string, batches ...[]byte) ([]ProduceResult, error) {
	n.t.Helper()
	req := ProduceRequest{Acks: -1, Timeout: time.Second, Version: version}
	for i, topic := range topics {
		req.Partitions = append(req.Partitions, ProducePartition{Topic: topic, Records: batches[i]})
	}
	if err := n.m.AdmitTransaction(n.t.Context(), &req, "tx"); err != nil {
		return nil, err
	}
	d := n.m.Produce(req)
	<-d.Done()
	return d.Results(), nil
}

// TestAdmitTransaction: the coordinator is asked once for the partitions in which the transaction is not open, and about
// nothing else; each partition stands by its answer, and by what it says itself. From version 12 on it is asked to add.
func TestAdmitTransaction(t *testing.T) {
	t.Parallel()
	var c coordinatorOf
	n := newNode(t, func(o *Options) { o.VerifyTxn = c.verify })
	n.register(1, 2)
	for _, topic := range []string{"a", "b", "c"} {
		n.create(topic, 1)
	}
	n.create("led-elsewhere", 1, 1, 2)
	n.elect("led-elsewhere", 2)
	errOther := errors.New("not part of it")
	c.answers = func(v TxnVerification) []error { return []error{nil, errOther} }
	got, err := n.admitted(11, []string{"a", "led-elsewhere", "b", "c", "unknown"}, txnBatch(7, 3, 0), txnBatch(7, 3, 0), txnBatch(7, 3, 0), stamped(1, 0), txnBatch(7, 3, 0))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"0", "6", errOther.Error(), "0", "3"} {
		if said := kind(got[i].Err); said != want {
			t.Errorf("%s: %s, want %s", got[i].Topic, said, want)
		}
	}
	if len(c.asked) != 1 || fmt.Sprint(c.asked[0]) != "{tx 7 3 false [{a 0} {b 0}]}" {
		t.Errorf("asked %+v", c.asked)
	}
	c.answers = nil
	if got, err := n.admitted(12, []string{"a", "b"}, txnBatch(7, 3, 1), txnBatch(7, 3, 0)); err != nil || got[0].Err != nil || got[1].Err != nil || got[0].BaseOffset != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	if len(c.asked) != 2 || fmt.Sprint(c.asked[1]) != "{tx 7 3 true [{b 0}]}" {
		t.Errorf("asked %+v", c.asked[1:])
	}
	if _, err := n.admitted(12, []string{"a", "b"}, txnBatch(7, 3, 2), txnBatch(8, 3, 0)); !errors.Is(err, ErrSeveralProducers) || len(c.asked) != 2 {
		t.Errorf("two producers: %v, asked %d times", err, len(c.asked))
	}
	if got, err := n.admitted(12, []string{"a"}, txnBatch(7, 2, 2)); err != nil || !errors.Is(got[0].Err, log.ErrInvalidProducerEpoch) || len(c.asked) != 2 {
		t.Errorf("fenced: %+v, %v, asked %d times", got, err, len(c.asked))
	}
}

// TestNoCoordinator: as long as there is no transaction coordinator nobody can confirm a transaction, and the producer is
// to try again.
func TestNoCoordinator(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.create("t", 1)
	if got, err := n.admitted(12, []string{"t"}, txnBatch(7, 3, 0)); err != nil || !errors.Is(got[0].Err, ErrTxnUnverified) || n.partition("t").Positions().End != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestB068_batch_behind_an_abort: after the marker that aborted its transaction a producer's next batch is not taken unless
// it is verified anew, and the last stable offset stays at the high watermark; so is a batch whose verification was under way.
func TestB068_batch_behind_an_abort(t *testing.T) {
	t.Parallel()
	var c coordinatorOf
	n := newNode(t, func(o *Options) { o.VerifyTxn = c.verify })
	n.create("t", 1)
	stable := func(when string, want int64) {
		t.Helper()
		if pos := n.partition("t").Positions(); pos.LastStable != want || pos.HighWatermark != want {
			t.Errorf("%s: %+v, want all at %d", when, pos, want)
		}
	}
	if got, err := n.admitted(9, []string{"t"}, txnBatch(7, 0, 0)); err != nil || got[0].Err != nil {
		t.Fatal(got, err)
	}
	<-n.mark("t", time.Second, endOf(7, 0, false, 0)).Done()
	stable("aborted", 2)
	notPart := errors.New("the partition is not part of the transaction")
	c.answers = func(TxnVerification) []error { return []error{notPart} }
	if got, err := n.admitted(9, []string{"t"}, txnBatch(7, 0, 1)); err != nil || !errors.Is(got[0].Err, notPart) {
		t.Errorf("%+v, %v", got, err)
	}
	stable("refused", 2)
	c.answers = func(TxnVerification) []error {
		<-n.mark("t", time.Second, endOf(7, 0, false, 0)).Done()
		return []error{nil}
	}
	if got, err := n.admitted(9, []string{"t"}, txnBatch(7, 0, 1)); err != nil || !errors.Is(got[0].Err, log.ErrInvalidTxnState) {
		t.Errorf("a marker in between: %+v, %v", got, err)
	}
	stable("a marker in between", 3)
}

// TestMarkersWaitForReplicas: a marker counts when the in-sync replicas have it: until then the last stable offset stays, and
// its coordinator waits, for as long as its time. With too few in sync it is not written.
func TestMarkersWaitForReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.configs["t"] = TopicConfig{MinISR: 2}
		n.register(1, 2)
		n.create("t", 1, 1, 2)
		d := n.m.Produce(ProduceRequest{Acks: 1, TxnVerified: true, Partitions: []ProducePartition{{Topic: "t", Records: txnBatch(7, 0, 0)}}})
		if r := d.Results()[0]; r.Err != nil {
			t.Fatal(r.Err)
		}
		marked := n.mark("t", 5*time.Second, endOf(7, 0, true, 0))
		synctest.Wait()
		select {
		case <-marked.Done():
			t.Fatalf("answered before the follower had it: %+v", marked.Results())
		default:
		}
		fetch := func(offset int64) {
			res := n.m.Fetch(t.Context(), FetchRequest{ReplicaID: 2, ReplicaEpoch: 20, Version: 17, MaxBytes: 1 << 20,
				Partitions: []FetchPartition{{Topic: "t", CurrentLeaderEpoch: -1, FetchOffset: offset, LastFetchedEpoch: -1, MaxBytes: 1 << 20}}})
			if res.Partitions[0].Err != nil {
				t.Fatal(res.Partitions[0].Err)
			}
			res.Release()
		}
		fetch(1)
		if pos := n.partition("t").Positions(); pos.LastStable != 0 || pos.HighWatermark != 1 {
			t.Errorf("the follower has the data alone: %+v", pos)
		}
		fetch(2)
		<-marked.Done()
		if r, pos := marked.Results()[0], n.partition("t").Positions(); r.Err != nil || pos.LastStable != 2 {
			t.Errorf("%+v, %+v", r, pos)
		}
		late := n.mark("t", 5*time.Second, endOf(7, 0, true, 0))
		began := time.Now()
		<-late.Done()
		if r := late.Results()[0]; kind(r.Err) != "7" || time.Since(began) != 5*time.Second {
			t.Errorf("%+v after %v", r, time.Since(began))
		}
		n.setISR("t", 1)
		few := n.mark("t", 5*time.Second, endOf(7, 0, true, 0))
		<-few.Done()
		if r := few.Results()[0]; kind(r.Err) != "19" || n.partition("t").Positions().End != 3 {
			t.Errorf("%+v, %+v", r, n.partition("t").Positions())
		}
		n.elect("t", 2)
		if r := n.mark("t", time.Second, endOf(7, 0, true, 0)).Results()[0]; kind(r.Err) != "6" {
			t.Errorf("not the leader: %+v", r)
		}
	})
}

// TestLateTransactions: a partition counts as one with a hanging transaction when that is open for longer than the longest
// time there is and five minutes, since its producer was last heard of, and no more when it was ended.
func TestLateTransactions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, func(o *Options) { o.TxnMaxTimeout = time.Minute })
		n.create("t", 1)
		write := func(sequence int32) {
			d := n.m.Produce(ProduceRequest{Acks: 1, TxnVerified: true, Partitions: []ProducePartition{{Topic: "t", Records: txnBatch(7, 0, sequence)}}})
			if r := d.Results()[0]; r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		late := func(when string, want int) {
			t.Helper()
			if got := n.m.Stats().LateTxns; got != want {
				t.Errorf("%s: %d partitions, want %d", when, got, want)
			}
		}
		write(0)
		<-time.After(time.Minute)
		write(1)
		<-time.After(6 * time.Minute)
		late("at the limit", 0)
		<-time.After(time.Second)
		late("beyond it", 1)
		<-n.mark("t", time.Second, endOf(7, 0, false, 0)).Done()
		late("ended", 0)
	})
}
