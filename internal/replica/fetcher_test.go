package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/record"
)

// nextDoor is a leader in this process, as broker 2 sees it. It keeps what was asked.
type nextDoor struct {
	leader *node

	mu    sync.Mutex
	asked []string
	// spoil, if not nil, changes an answer on its way.
	spoil func(q FollowQuery, a *Followed)
	// down, if not nil, is the error of every request.
	down error
	// most bounds the bytes of one answer, 0 not.
	most int
	// interrupted is how many fetches were given up.
	interrupted int
}

func (l *nextDoor) Close() {}

func (l *nextDoor) refuse() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.down
}

func (l *nextDoor) setDown(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = err
}

func (l *nextDoor) Fetch(ctx context.Context, asked []FollowQuery) ([]Followed, error) {
	if err := l.refuse(); err != nil {
		return nil, err
	}
	req := FetchRequest{ReplicaID: 2, ReplicaEpoch: 20, Version: 17, MinBytes: 1, MaxBytes: 10 << 20, MaxWait: 500 * time.Millisecond}
	l.mu.Lock()
	for _, q := range asked {
		l.asked = append(l.asked, fmt.Sprintf("fetch(%d,%d)", q.FetchOffset, q.LastFetchedEpoch))
		req.Partitions = append(req.Partitions, FetchPartition{Topic: q.Topic, TopicID: q.TopicID, Partition: q.Partition, CurrentLeaderEpoch: q.CurrentLeaderEpoch,
			FetchOffset: q.FetchOffset, LastFetchedEpoch: q.LastFetchedEpoch, LogStartOffset: q.LogStart, MaxBytes: 1 << 20})
	}
	if l.most > 0 {
		req.MaxBytes = l.most
	}
	l.mu.Unlock()
	res := l.leader.m.Fetch(ctx, req)
	defer res.Release()
	if ctx.Err() != nil {
		l.mu.Lock()
		l.interrupted++
		l.mu.Unlock()
	}
	var out []Followed
	for i := range res.Partitions {
		f := &res.Partitions[i]
		a := Followed{TopicID: asked[i].TopicID, Partition: f.Partition, FollowAnswer: FollowAnswer{Err: f.Err, Diverging: f.HasDiverging},
			DivergingEpoch: f.DivergingEpoch, HighWatermark: f.HighWatermark, LogStart: f.LogStartOffset}
		if f.Records.Length > 0 {
			records, err := f.Records.ReadAll(nil)
			if err != nil {
				return nil, err
			}
			a.Records = records
		}
		l.mu.Lock()
		if l.spoil != nil {
			l.spoil(asked[i], &a)
		}
		l.mu.Unlock()
		out = append(out, a)
	}
	return out, ctx.Err()
}

func (l *nextDoor) Offset(_ context.Context, q FollowQuery, timestamp int64) (OffsetAndEpoch, error) {
	if err := l.refuse(); err != nil {
		return OffsetAndEpoch{NoOffset, NoEpoch}, err
	}
	l.mu.Lock()
	l.asked = append(l.asked, map[int64]string{-1: "latest", -2: "earliest"}[timestamp])
	l.mu.Unlock()
	res := l.leader.m.ListOffsets(ListOffsetsRequest{ReplicaID: 2, Version: 9, Partitions: []ListOffsetsPartition{{Topic: q.Topic, Partition: q.Partition,
		CurrentLeaderEpoch: q.CurrentLeaderEpoch, Timestamp: timestamp}}})
	return OffsetAndEpoch{res[0].Offset, res[0].Epoch}, res[0].Err
}

func (l *nextDoor) EndOffset(context.Context, FollowQuery, int32) (OffsetAndEpoch, error) {
	return OffsetAndEpoch{NoOffset, NoEpoch}, nil
}

func (l *nextDoor) exchange() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(slices.Compact(slices.Clone(l.asked)), " ")
}

// pair is a leader, broker 1, and a follower, broker 2, of topic t, each with its own metadata. Inside a synctest bubble.
type pair struct {
	l, f *node
	line *nextDoor
}

func newPair(t *testing.T) *pair {
	p := &pair{line: &nextDoor{}}
	p.l = newNode(t)
	p.line.leader = p.l
	p.f = newNode(t, func(o *Options) {
		o.BrokerID = 2
		o.Leader = func(int32) Leader { return p.line }
	})
	p.l.register(1, 2)
	p.f.register(1, 2)
	return p
}

// reign is a leader epoch and where it begins.
type reign struct {
	epoch int32
	start int64
}

// history gives a node a log of these reigns, by letting it lead in each.
func (n *node) history(id int32, logStart, end int64, reigns ...reign) {
	n.t.Helper()
	n.create("t", 1, id, 3-id)
	p := n.partition("t")
	if logStart > 0 {
		if err := p.log().TruncateFullyAndStartAt(logStart, "for the test"); err != nil {
			n.t.Fatal(err)
		}
	}
	for i, r := range reigns {
		for p.Role().LeaderEpoch < r.epoch {
			n.elect("t", id)
		}
		next := end
		if i+1 < len(reigns) {
			next = reigns[i+1].start
		}
		// What the two write in one epoch is the same: it was one leader's.
		for at := p.Positions().End; at < next; at++ {
			if res := n.produceAcks("t", 1, stamped(1, int64(r.epoch)*1_000_000+at)); res.Err != nil || res.BaseOffset != at {
				n.t.Fatalf("%+v", res)
			}
		}
	}
}

// reach makes broker leader the leader in an epoch above all before.
func (n *node) reach(leader int32, epoch int32) {
	n.t.Helper()
	p := n.partition("t")
	for p.Role().LeaderEpoch < epoch-1 {
		n.elect("t", -1)
	}
	n.elect("t", leader)
}

// settle lets the follower do all it can.
func settle(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// same compares the two logs, byte for byte above the start, and their epochs.
func (p *pair) same(t *testing.T) {
	t.Helper()
	a, b := p.l.partition("t"), p.f.partition("t")
	if a.Positions().End != b.Positions().End || a.Positions().LogStart != b.Positions().LogStart {
		t.Fatalf("leader %+v, follower %+v", a.Positions(), b.Positions())
	}
	start := a.Positions().LogStart
	want, err := a.ReadLog(start, make([]byte, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	got, err := b.ReadLog(start, make([]byte, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, got) {
		t.Fatalf("the logs differ: %d and %d bytes", len(want), len(got))
	}
	v, w := a.log().View(), b.log().View()
	defer v.Release()
	defer w.Release()
	// The leader's own reign is known to the follower once it has records.
	latest, _ := v.Epochs.Latest()
	epochs := v.Epochs.Entries()
	if latest.StartOffset == v.EndOffset {
		epochs = epochs[:len(epochs)-1]
	}
	if fmt.Sprint(epochs) != fmt.Sprint(w.Epochs.Entries()) {
		t.Errorf("epochs of the leader %v, of the follower %v", epochs, w.Epochs.Entries())
	}
}

// The vectors of truncation by epoch: what is asked, step by step, and that both logs are one in the end. T1 to T4 and T6
// to T9; T5 has no epochs, which no log of ours is without.
func TestTruncationVectors(t *testing.T) {
	for _, v := range []struct {
		id              string
		f               []reign
		fEnd            int64
		l               []reign
		lStart, lEnd    int64
		exchange        string
		neverTruncating bool
	}{
		{"T1", []reign{{0, 0}}, 10, []reign{{0, 0}, {1, 10}}, 0, 12, "fetch(10,0)", true},
		{"T2", []reign{{0, 0}}, 2, []reign{{0, 0}, {1, 1}}, 0, 2, "fetch(2,0) fetch(1,0)", false},
		{"T3", []reign{{1, 0}, {3, 20}}, 30, []reign{{1, 0}, {2, 15}, {4, 28}}, 0, 40, "fetch(30,3) fetch(20,1) fetch(15,1)", false},
		{"T4", []reign{{1, 0}, {3, 20}}, 30, []reign{{5, 100}}, 100, 250, "fetch(30,3) latest earliest fetch(100,-1)", true},
		{"T6", []reign{{3, 0}}, 120, []reign{{3, 0}}, 0, 90, "fetch(120,3) fetch(90,3)", false},
		{"T7", []reign{{7, 0}, {8, 100}}, 100, []reign{{7, 0}, {9, 100}}, 0, 150, "fetch(100,8) fetch(100,7)", true},
		{"T8", []reign{{0, 0}, {2, 10}, {4, 20}, {6, 30}, {8, 40}}, 50, []reign{{0, 0}, {1, 5}, {3, 15}, {5, 25}, {7, 35}, {9, 45}}, 0, 60,
			"fetch(50,8) fetch(40,6) fetch(30,4) fetch(20,2) fetch(10,0) fetch(5,0)", false},
		{"T9", []reign{{1, 0}, {4, 10}, {5, 20}}, 25, []reign{{1, 0}, {6, 12}}, 0, 30, "fetch(25,5) fetch(10,1)", false},
	} {
		t.Run(v.id, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t)
				p.l.history(1, v.lStart, v.lEnd, v.l...)
				p.f.history(2, 0, v.fEnd, v.f...)
				p.l.reach(1, 20)
				p.f.reach(1, 20)
				settle(5 * time.Second)
				p.same(t)
				got := p.line.exchange()
				if !strings.HasPrefix(got+" ", v.exchange+" ") {
					t.Errorf("asked: %s\n want: %s ...", got, v.exchange)
				}
				if said := strings.Contains(p.f.logs.String(), "truncating"); said == v.neverTruncating {
					t.Errorf("a truncation is told: %v\n%s", said, p.f.logs)
				}
			})
		})
	}
}

// A follower learns the high watermark one fetch late, the leader the follower's end with its fetch; acks=all is answered
// when the follower has it.
func TestFollowerMovesTheHighWatermark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.l.create("t", 1, 1, 2)
		p.f.create("t", 1, 1, 2)
		settle(time.Second)
		if r := p.l.produce("t", stamped(3, 1000)); r.Err != nil {
			t.Fatal(r.Err)
		}
		if hw := p.l.partition("t").Positions().HighWatermark; hw != 3 {
			t.Errorf("acknowledged at high watermark %d", hw)
		}
		settle(time.Second)
		if pos := p.f.partition("t").Positions(); pos.End != 3 || pos.HighWatermark != 3 {
			t.Errorf("the follower: %+v", pos)
		}
		p.same(t)
		// DeleteRecords at the leader comes along.
		if err := p.l.partition("t").log().AdvanceLogStart(2, "for the test"); err != nil {
			t.Fatal(err)
		}
		settle(time.Second)
		if pos := p.f.partition("t").Positions(); pos.LogStart != 2 {
			t.Errorf("the follower's log starts at %d", pos.LogStart)
		}
	})
}

// A follower that cannot reach its leader asks again, at growing intervals, and goes on where it was; the leader takes it
// out of the in-sync set meanwhile, and back in when it has caught up.
func TestFollowerComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.l.create("t", 1, 1, 2)
		p.f.create("t", 1, 1, 2)
		settle(time.Second)
		p.line.setDown(errors.New("cut off"))
		settle(time.Second)
		d := p.l.m.Produce(ProduceRequest{Acks: 1, Timeout: time.Second, Partitions: []ProducePartition{{Topic: "t", Records: stamped(5, 1000)}}})
		<-d.Done()
		settle(50 * time.Second)
		shrink := <-p.l.altered
		if !slices.Equal(shrink.change.Leaving, []int32{2}) {
			t.Fatalf("asked for: %+v", shrink.change)
		}
		p.l.setISR("t", 1)
		shrink.done(AlterSuperseded, LeaderAndISR{})
		p.line.setDown(nil)
		settle(3 * time.Second)
		expand := <-p.l.altered
		if expand.change.Joining != 2 || len(expand.change.NewISR) != 2 || expand.change.NewISR[1] != (ISRMember{ID: 2, BrokerEpoch: 20}) {
			t.Fatalf("asked for: %+v", expand.change)
		}
		p.same(t)
	})
}

// What does not continue the log is never appended: the partition fails, with both ends in the log line, and is tried
// again when the leader epoch rises. Damaged bytes are asked for again.
func TestFollowerRefusesWhatCannotBe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.l.create("t", 1, 1, 2)
		p.f.create("t", 1, 1, 2)
		settle(time.Second)
		damage := 2
		p.line.spoil = func(_ FollowQuery, a *Followed) {
			if len(a.Records) > 0 && damage > 0 {
				damage--
				a.Records[len(a.Records)-1] ^= 0xff
			}
		}
		if r := p.l.produce("t", stamped(3, 1000)); r.Err != nil {
			t.Fatalf("damaged twice on the way: %v", r.Err)
		}
		p.line.mu.Lock()
		p.line.spoil = func(_ FollowQuery, a *Followed) {
			if len(a.Records) > 0 {
				record.Batch(a.Records).SetBaseOffset(1) // again offsets that are there already
			}
		}
		p.line.mu.Unlock()
		d := p.l.m.Produce(ProduceRequest{Acks: 1, Timeout: time.Second, Partitions: []ProducePartition{{Topic: "t", Records: stamped(2, 5000)}}})
		<-d.Done()
		settle(5 * time.Second)
		if end := p.f.partition("t").Positions().End; end != 3 {
			t.Errorf("the follower ends at %d", end)
		}
		if p.f.m.Stats().Failed != 1 {
			t.Errorf("%d partitions have failed", p.f.m.Stats().Failed)
		}
		for _, said := range []string{"following failed", "asked from offset 3", "1-2 epoch 0"} {
			if !strings.Contains(p.f.logs.String(), said) {
				t.Errorf("not said: %q\n%s", said, p.f.logs)
			}
		}
		p.line.mu.Lock()
		p.line.spoil = nil
		p.line.mu.Unlock()
		p.l.elect("t", 1)
		p.f.elect("t", 1)
		settle(5 * time.Second)
		p.same(t)
		if p.f.m.Stats().Failed != 0 {
			t.Error("it counts as failed after the next leader epoch")
		}
	})
}

// KAFKA-18723: batches of a later leader epoch than the one asked in are not appended.
func TestFollowerTakesNothingOfALaterEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.l.create("t", 1, 1, 2)
		p.f.create("t", 1, 1, 2)
		settle(time.Second)
		p.line.mu.Lock()
		p.line.spoil = func(_ FollowQuery, a *Followed) {
			if len(a.Records) > 0 {
				record.Batch(a.Records).SetPartitionLeaderEpoch(1)
			}
		}
		p.line.mu.Unlock()
		d := p.l.m.Produce(ProduceRequest{Acks: 1, Timeout: time.Second, Partitions: []ProducePartition{{Topic: "t", Records: stamped(2, 5000)}}})
		<-d.Done()
		settle(2 * time.Second)
		if end := p.f.partition("t").Positions().End; end != 0 {
			t.Errorf("the follower ends at %d", end)
		}
	})
}

// An empty log that begins inside of the leader's first batch takes the whole batch, from its first offset.
func TestFollowerBeginsWithAWholeBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.l.create("t", 1, 1)
		p.l.mustProduce("t", 8)
		if err := p.l.partition("t").log().AdvanceLogStart(5, "for the test"); err != nil {
			t.Fatal(err)
		}
		p.f.create("t", 1, 2, 1)
		if err := p.f.partition("t").log().TruncateFullyAndStartAt(5, "for the test"); err != nil {
			t.Fatal(err)
		}
		wider := metadata.NewPartitionChange(topicID("t"), 0)
		wider.Replicas, wider.Directories = []int32{1, 2}, make([]metadata.UUID, 2)
		p.l.replay(wider)
		p.l.elect("t", 1)
		p.f.reach(1, p.l.partition("t").Role().LeaderEpoch)
		settle(3 * time.Second)
		if pos := p.f.partition("t").Positions(); pos.End != 8 || pos.LogStart != 5 {
			t.Errorf("the follower: %+v\n%s", pos, p.f.logs)
		}
	})
}

// T10: a leader that says out of range of a position which its range holds, again and again, is asked at intervals.
func TestFollowerPausesWhenItsPositionIsInRange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.l.create("t", 1, 1, 2)
		p.f.create("t", 1, 1, 2)
		settle(time.Second)
		refused := 0
		p.line.mu.Lock()
		p.line.spoil = func(_ FollowQuery, a *Followed) {
			if refused < 10_000 { // without a pause it would have no end
				refused++
				*a = Followed{TopicID: a.TopicID, Partition: a.Partition, FollowAnswer: FollowAnswer{Err: ErrOffsetOutOfRange}, HighWatermark: -1, LogStart: -1}
			}
		}
		p.line.mu.Unlock()
		d := p.l.m.Produce(ProduceRequest{Acks: 1, Timeout: time.Second, Partitions: []ProducePartition{{Topic: "t", Records: stamped(2, 5000)}}})
		<-d.Done()
		settle(10 * time.Second)
		p.line.mu.Lock()
		if refused < 5 || refused > 30 {
			t.Errorf("asked %d times in ten seconds", refused)
		}
		p.line.spoil = nil
		p.line.mu.Unlock()
		settle(3 * time.Second)
		p.same(t)
	})
}

// A fetch is given up for partitions that it does not ask for, not for those it does: each costs the connection and the
// session at the leader.
func TestFetchIsNotGivenUpForWhatItAsksFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.l.create("t", 1, 1, 2)
		p.f.create("t", 1, 1, 2)
		settle(time.Second)
		p.line.mu.Lock()
		defer p.line.mu.Unlock()
		if p.line.interrupted > 0 {
			t.Errorf("%d fetches were given up", p.line.interrupted)
		}
	})
}

// An answer that was looked at under one leader epoch and is to be stored under the next changes nothing: who leads now may
// have another history.
func TestAnswerOfAnEarlierEpochIsNotStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.l.create("t", 1, 1, 2)
		if res := p.l.produceAcks("t", 1, stamped(5, 1000)); res.Err != nil {
			t.Fatal(res.Err)
		}
		p.line.setDown(errors.New("cut off"))
		p.f.create("t", 1, 1, 2)
		settle(time.Second)
		follower := p.f.partition("t")
		q, ok := follower.followQuery(1)
		if !ok {
			t.Fatal("it does not follow")
		}
		records, err := p.l.partition("t").ReadLog(0, make([]byte, 1<<20))
		if err != nil {
			t.Fatal(err)
		}
		answer := Followed{TopicID: q.TopicID, Partition: q.Partition, HighWatermark: 5, Records: records}
		p.f.elect("t", 1)
		for what, do := range map[string]func() (FollowStep, error){
			"append":   func() (FollowStep, error) { return follower.appendFollowed(q, &answer) },
			"truncate": func() (FollowStep, error) { return follower.truncateFollowed(q, OffsetAndEpoch{Offset: 0, Epoch: 0}) },
			"range":    func() (FollowStep, error) { return follower.takeRange(q, 100, 50) },
		} {
			if step, err := do(); step != FollowIgnore || err != nil || follower.Positions().End != 0 {
				t.Errorf("%s: step %v, %v, positions %+v", what, step, err, follower.Positions())
			}
		}
	})
}
