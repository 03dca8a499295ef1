package replica

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/record"
)

// TestE045_required_acks: alone in the ISR a leader acknowledges 0, 1 and all at once and the high watermark is at the end; 2 and
// other numbers are refused (E-045), and so is a partition that is not here or not known.
func TestE045_required_acks(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.create("t", 1)
	n.create("elsewhere", 1, 2)
	for i, acks := range []int16{0, 1, -1} {
		if r := n.produceAcks("t", acks, stamped(1, 0)); r.Err != nil || r.BaseOffset != int64(i) || r.LogStartOffset != 0 || r.LogAppendTime != -1 {
			t.Errorf("acks %d: %+v", acks, r)
		}
		if pos := n.partition("t").Positions(); pos.HighWatermark != int64(i+1) {
			t.Errorf("acks %d: %+v", acks, pos)
		}
	}
	if r := n.produceAcks("t", 2, stamped(1, 0)); kind(r.Err) != "21" || r.BaseOffset != -1 {
		t.Errorf("acks 2: %+v", r)
	}
	r := n.produceAcks("elsewhere", 1, stamped(1, 0))
	var not *NotLeaderOrFollowerError
	if !errors.As(r.Err, &not) || not.Current != (LeaderAndEpoch{2, 0}) {
		t.Errorf("elsewhere: %v", r.Err)
	}
	if r := n.produceAcks("nowhere", 1, stamped(1, 0)); kind(r.Err) != "3" {
		t.Errorf("nowhere: %v", r.Err)
	}
}

// TestProduceManyPartitions: batches are appended in the order of the request, and each stands or falls alone.
func TestProduceManyPartitions(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.create("t", 2)
	d := n.m.Produce(ProduceRequest{Acks: -1, Timeout: time.Second, Partitions: []ProducePartition{
		{Topic: "t", Partition: 1, Records: stamped(2, 0)}, {Topic: "t", Partition: 9, Records: stamped(1, 0)},
		{Topic: "t", Partition: 0, Records: []byte{1, 2, 3}}, {TopicID: topicID("t"), Partition: 1, Records: stamped(3, 0)},
	}})
	<-d.Done()
	r := d.Results()
	if r[0].BaseOffset != 0 || kind(r[1].Err) != "3" || r[2].Err == nil || r[2].BaseOffset != -1 || r[3].BaseOffset != 2 || r[3].LastOffset != 4 {
		t.Errorf("%+v", r)
	}
}

// TestE044_under_min_isr: RF 2, min 2, one down: acks=all is refused with nothing written; acks=1 is written but stays
// invisible, since the high watermark stands still; when the peer is back it becomes visible.
func TestE044_under_min_isr(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.configs["t"] = TopicConfig{MinISR: 2}
	n.register(1, 2)
	n.create("t", 1, 1, 2)
	n.setISR("t", 1)
	if r := n.produce("t", stamped(1, 0)); kind(r.Err) != "19" || n.partition("t").Positions().End != 0 {
		t.Errorf("acks=all: %+v", r)
	}
	if r := n.produceAcks("t", 1, stamped(1, 0)); r.Err != nil {
		t.Errorf("acks=1: %+v", r)
	}
	if got := n.fetch(consume(0, -1, -1)); got != "empty" {
		t.Errorf("a consumer sees %s", got)
	}
	n.shadow(1, 0)
	a := <-n.altered
	if a.change.Joining != 2 || a.change.NewISR[1] != (ISRMember{2, 20}) {
		t.Errorf("%+v", a.change)
	}
	a.done(AlterAccepted, LeaderAndISR{Leader: 1, LeaderEpoch: 0, PartitionEpoch: 2, ISR: []int32{1, 2}})
	if got := n.fetch(consume(0, -1, -1)); got != "[0-0 e0]" {
		t.Errorf("with the peer back a consumer sees %s", got)
	}
}

// shadow fetches as follower 2 of topic t at offset.
func (n *node) shadow(offset int64, epoch int32) {
	n.t.Helper()
	req := consume(offset, -1, epoch)
	req.ReplicaID, req.ReplicaEpoch = 2, 20
	req.Partitions[0].LogStartOffset = 0
	if s := n.fetch(req); s == "6" || s == "74" || s == "75" {
		n.t.Fatalf("follower's fetch: %s", s)
	}
}

// TestDelayedProduce: acks=all waits until the follower has fetched past the batch; Done is not closed before.
func TestDelayedProduce(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.register(1, 2)
	n.create("t", 1, 1, 2)
	d := n.m.Produce(ProduceRequest{Acks: -1, Timeout: time.Minute, Partitions: []ProducePartition{
		{Topic: "t", Records: stamped(5, 0)}, {Topic: "t", Records: stamped(5, 0)}}})
	open := func() bool {
		select {
		case <-d.Done():
			return false
		default:
			return true
		}
	}
	for _, at := range []int64{0, 4, 5, 9} {
		n.shadow(at, 0)
		if !open() {
			t.Fatalf("acknowledged with the follower at %d", at)
		}
	}
	n.shadow(10, 0)
	<-d.Done()
	if r := d.Results(); r[0].Err != nil || r[1].Err != nil || r[1].BaseOffset != 5 {
		t.Errorf("%+v", r)
	}
	if n.m.purgatory.waiting.Load() != 0 || !n.partition("t").wait.empty() {
		t.Error("something still waits")
	}
}

// TestDelayedProduceTimesOut: without the follower the answer is 7 after the timeout, at once when that is 0 or too
// many wait already.
func TestDelayedProduceTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, func(o *Options) { o.MaxWaiting = 1 })
		n.create("t", 1, 1, 2)
		request := func(timeout time.Duration) *DelayedProduce {
			return n.m.Produce(ProduceRequest{Acks: -1, Timeout: timeout, Partitions: []ProducePartition{{Topic: "t", Records: stamped(1, 0)}}})
		}
		began := time.Now()
		if d := request(0); kind(d.Results()[0].Err) != "7" {
			t.Errorf("no time: %v", d.Results()[0].Err)
		}
		d := request(time.Second)
		if full := request(time.Hour); kind(full.Results()[0].Err) != "7" {
			t.Errorf("purgatory full: %v", full.Results()[0].Err)
		}
		<-d.Done()
		if r := d.Results()[0]; kind(r.Err) != "7" || r.BaseOffset != -1 || r.LogStartOffset != 0 || time.Since(began) != time.Second {
			t.Errorf("%+v after %v", r, time.Since(began))
		}
		if n.events.Counts().ProduceTimeouts != 1 || n.m.purgatory.waiting.Load() != 0 {
			t.Errorf("%+v", n.events.Counts())
		}
	})
}

// TestE046_leadership_lost_while_waiting: acks=all in flight when another leads: 6, at once; a re-election of this broker
// under a higher epoch goes on waiting, since nothing was cut.
func TestE046_leadership_lost_while_waiting(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.register(1, 2)
	n.create("t", 1, 1, 2)
	d := n.m.Produce(ProduceRequest{Acks: -1, Timeout: time.Minute, Partitions: []ProducePartition{{Topic: "t", Records: stamped(1, 0)}}})
	n.elect("t", 1)
	select {
	case <-d.Done():
		t.Fatalf("ended by a re-election: %+v", d.Results())
	default:
	}
	n.elect("t", 2)
	<-d.Done()
	if r := d.Results()[0]; kind(r.Err) != "6" {
		t.Errorf("%+v", r)
	}
}

// TestNotEnoughReplicasAfterAppend: replicated, but by then the ISR has shrunk below min.insync.replicas: 20, and the
// record stays.
func TestNotEnoughReplicasAfterAppend(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.configs["t"] = TopicConfig{MinISR: 2}
	n.create("t", 1, 1, 2)
	d := n.m.Produce(ProduceRequest{Acks: -1, Timeout: time.Minute, Partitions: []ProducePartition{{Topic: "t", Records: stamped(1, 0)}}})
	n.setISR("t", 1)
	n.configs["t"] = TopicConfig{MinISR: 1}
	p := n.partition("t")
	// The high watermark reaches the record while min is 1, the acknowledgement is judged when it is 2 again.
	p.mu.Lock()
	p.state.SetMinISR(1)
	p.advanceLocked(p.m.now())
	p.state.SetMinISR(2)
	p.mu.Unlock()
	p.moved()
	<-d.Done()
	if r := d.Results()[0]; kind(r.Err) != "20" || p.Positions().End != 1 {
		t.Errorf("%+v", r)
	}
}

// TestMinISRChangeMovesTheHighWatermark: lowering min.insync.replicas lets a stuck high watermark go on.
func TestMinISRChangeMovesTheHighWatermark(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.configs["t"] = TopicConfig{MinISR: 2}
	n.create("t", 1, 1, 2)
	n.setISR("t", 1)
	n.produceAcks("t", 1, stamped(3, 0))
	n.configs["t"] = TopicConfig{MinISR: 1, Log: log.Config{MaxMessageBytes: 100}}
	one := "1"
	n.replay(&metadata.ConfigRecord{ResourceType: metadata.ResourceTopic, ResourceName: "t", Name: "min.insync.replicas", Value: &one})
	if pos := n.partition("t").Positions(); pos.HighWatermark != 3 {
		t.Errorf("%+v", pos)
	}
	if r := n.produceAcks("t", 1, stamped(30, 0)); r.Err == nil {
		t.Error("max.message.bytes is not in force")
	}
}

// TestE031_read_committed_and_E039: an open transaction from offset 20 on: read_committed waits at LSO 20 while HW grows, latest
// is 25 uncommitted and 20 committed, a time above the LSO is not found; after the abort the records come with the
// aborted transaction.
func TestE031_read_committed_and_E039(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := fixtureF1(t)
		b := record.NewBuilder(record.BuilderOptions{Producer: &record.Producer{ID: 7, Epoch: 0, BaseSequence: 0}, Transactional: true})
		for i := range int64(5) {
			if err := b.Append(21000+1000*i, nil, []byte("v"), nil); err != nil {
				t.Fatal(err)
			}
		}
		d := n.m.Produce(ProduceRequest{Acks: -1, Timeout: time.Second, TxnVerified: true, Partitions: []ProducePartition{{Topic: "t", Records: b.Bytes()}}})
		if r := d.Results()[0]; r.Err != nil || r.BaseOffset != 20 {
			t.Fatalf("%+v", r)
		}
		if pos := n.partition("t").Positions(); pos.LastStable != 20 || pos.HighWatermark != 25 {
			t.Fatalf("%+v", pos)
		}
		list := func(iso Isolation, ts int64) string {
			return n.listAs(ListOffsetsRequest{ReplicaID: ConsumerID, Version: 7, Isolation: iso,
				Partitions: []ListOffsetsPartition{{Topic: "t", CurrentLeaderEpoch: -1, Timestamp: ts}}})
		}
		if got := list(0, -1) + list(1, -1) + list(0, 23000) + list(1, 23000); got != "(25,-1,5)(20,-1,5)(22,23000,5)(-1,-1,-1)" {
			t.Errorf("E-039: %s", got)
		}
		req := consume(20, -1, -1)
		req.Isolation, req.MaxWait = ReadCommitted, 30*time.Second
		got := make(chan *FetchResult)
		began := time.Now()
		go func() { got <- n.m.Fetch(t.Context(), req) }()
		synctest.Wait()
		marker := record.NewEndTxnBatch(record.EndTxnMarker{ProducerID: 7, ProducerEpoch: 0, CoordinatorEpoch: 0}, 26000)
		d = n.m.Produce(ProduceRequest{Acks: -1, Timeout: time.Second, Origin: log.OriginCoordinator, Partitions: []ProducePartition{{Topic: "t", Records: marker}}})
		if r := d.Results()[0]; r.Err != nil {
			t.Fatal(r.Err)
		}
		res := <-got
		defer res.Release()
		f := &res.Partitions[0]
		if n.say(f) != "[20-24 e5][25-25 e5]" || len(f.AbortedTxns) != 1 || f.AbortedTxns[0] != (log.AbortedTxn{ProducerID: 7, FirstOffset: 20}) || f.LastStableOffset != 26 {
			t.Errorf("%s %+v", n.say(f), f)
		}
		if time.Since(began) != 0 {
			t.Errorf("after %v", time.Since(began))
		}
		req.Isolation = ReadUncommitted
		res = n.m.Fetch(t.Context(), req)
		if res.Partitions[0].AbortedTxns != nil {
			t.Error("aborted transactions told to read_uncommitted")
		}
		res.Release()
	})
}

// TestAppendCoordinator: written only in the epoch the coordinator was elected in, at the end it expects; watchers hear of the
// high watermark; ReadLog gives back whole batches.
func TestAppendCoordinator(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.create("t", 1)
	p := n.partition("t")
	var mu sync.Mutex
	var heard int64
	stop := p.WatchHighWatermark(func(hw int64) { mu.Lock(); heard = max(heard, hw); mu.Unlock() })
	if base, last, err := p.AppendCoordinator(stamped(3, 0), 0, 0, CoordinatorAppend{}); err != nil || base != 0 || last != 2 {
		t.Fatalf("%d %d %v", base, last, err)
	}
	if mu.Lock(); heard != 3 {
		t.Errorf("heard of %d", heard)
	}
	mu.Unlock()
	stop()
	var unexpected *log.UnexpectedOffsetError
	if _, _, err := p.AppendCoordinator(stamped(3, 0), 0, 2, CoordinatorAppend{}); !errors.As(err, &unexpected) {
		t.Errorf("wrong end: %v", err)
	}
	n.elect("t", 1)
	if _, _, err := p.AppendCoordinator(stamped(3, 0), 0, 3, CoordinatorAppend{}); kind(err) != "74" {
		t.Errorf("old epoch: %v", err)
	}
	if _, _, err := p.AppendCoordinator(stamped(2, 0), 1, -1, CoordinatorAppend{}); err != nil || heard != 3 {
		t.Errorf("%v, heard of %d after stop", err, heard)
	}
	var read []int64
	for at := int64(0); ; {
		data, err := p.ReadLog(at, make([]byte, 0, 10))
		if err != nil {
			t.Fatal(err)
		}
		if len(data) == 0 {
			break
		}
		for b := range record.Batches(data) {
			read = append(read, b.BaseOffset())
			at = b.NextOffset()
		}
	}
	if len(read) != 2 || read[1] != 3 {
		t.Errorf("read %v", read)
	}
}

// TestConcurrentProduceFetchAndElections: producers, parked consumers, offset lookups and elections at once: every
// acknowledged offset is given once and in order, and consumers see each offset once (run with -race).
func TestConcurrentProduceFetchAndElections(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.create("t", 1)
	const producers, each = 4, 50
	var all sync.WaitGroup
	offsets := make(chan int64, producers*each)
	for range producers {
		all.Go(func() {
			for range each {
				r := n.produce("t", stamped(1, 0))
				if r.Err != nil {
					t.Error(r.Err)
					return
				}
				offsets <- r.BaseOffset
			}
		})
	}
	all.Go(func() {
		for next := int64(0); next < producers*each; {
			req := consume(next, -1, -1)
			req.MaxWait = time.Second
			res := n.m.Fetch(t.Context(), req)
			f := &res.Partitions[0]
			buf, err := f.Records.ReadAll(nil)
			if f.Err != nil || err != nil {
				t.Error(f.Err, err)
			}
			res.Release()
			for b := range record.Batches(buf) {
				if b.BaseOffset() != next {
					t.Errorf("offset %d instead of %d", b.BaseOffset(), next)
				}
				next = b.NextOffset()
			}
			if t.Failed() {
				return
			}
		}
	})
	all.Go(func() {
		for range 10 {
			n.elect("t", 1)
			n.list(-1, -1)
		}
	})
	all.Wait()
	close(offsets)
	seen := map[int64]bool{}
	for o := range offsets {
		if seen[o] {
			t.Errorf("offset %d given twice", o)
		}
		seen[o] = true
	}
}
