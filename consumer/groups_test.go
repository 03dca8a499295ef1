package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// tally is which records were seen, and how often.
type tally struct {
	mu   sync.Mutex
	seen map[string]int
}

func newTally() *tally { return &tally{seen: map[string]int{}} }

func (y *tally) add(value []byte) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.seen[string(value)]++
}

// all says whether the numbers from 0 to n were all seen.
func (y *tally) all(n int) bool {
	y.mu.Lock()
	defer y.mu.Unlock()
	return len(y.seen) >= n
}

func (y *tally) check(t *testing.T, n int) {
	t.Helper()
	y.mu.Lock()
	defer y.mu.Unlock()
	for i := range n {
		if got := y.seen[strconv.Itoa(i)]; got != 1 {
			t.Errorf("record %d was seen %d times", i, got)
		}
	}
}

// member reads in the background until it is stopped.
type member struct {
	*Consumer
	t    *testing.T
	stop context.CancelFunc
	done chan struct{}

	mu   sync.Mutex
	told []string // of rebalances
}

func join1(t *testing.T, o Options, y *tally) *member {
	t.Helper()
	m := &member{t: t, done: make(chan struct{})}
	tell := func(what string) func(context.Context, []TopicPartition) {
		return func(_ context.Context, partitions []TopicPartition) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.told = append(m.told, fmt.Sprintf("%s %d", what, len(partitions)))
		}
	}
	if o.OnAssigned == nil {
		o.OnAssigned = tell("assigned")
	}
	if o.OnRevoked == nil {
		o.OnRevoked = tell("revoked")
	}
	if o.OnLost == nil {
		o.OnLost = tell("lost")
	}
	o.HeartbeatInterval = 100 * time.Millisecond
	m.Consumer = opened(t, o)
	ctx, stop := context.WithCancel(t.Context())
	m.stop = stop
	go func() {
		defer close(m.done)
		for r, err := range m.Records(ctx) {
			if err != nil {
				t.Errorf("member: %v", err)
				return
			}
			y.add(r.Value)
		}
	}()
	t.Cleanup(m.end)
	return m
}

// end stops reading and leaves the group.
func (m *member) end() {
	m.stop()
	<-m.done
	closed(m.t, m.Consumer)
}

func (m *member) rebalances() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.told)
}

func TestGroupSharesOut(t *testing.T) {
	// With every assignor: two members share the partitions, one leaves, and all records are read once; what was consumed is committed with epochs.
	t.Parallel()
	addr := sharedNode(t)
	for _, assignors := range [][]Assignor{{Range}, {RoundRobin}, {Sticky}, {CooperativeSticky}, nil} {
		t.Run(fmt.Sprint(assignors), func(t *testing.T) {
			t.Parallel()
			client, admin := clientOf(t, kgo.SeedBrokers(addr))
			topic := created(t, admin, 4, 1, nil)
			group, y := freshName("group"), newTally()
			o := Options{BootstrapServers: []string{addr}, GroupID: group, Topics: []string{topic}, Assignors: assignors, Reset: Earliest}
			produced(t, client, topic, 4, 0, 400)
			a := join1(t, o, y)
			eventually(t, "the first 400", func() bool { return y.all(400) })
			b := join1(t, o, y)
			eventually(t, "two each", func() bool { return len(a.Assignment()) == 2 && len(b.Assignment()) == 2 })
			produced(t, client, topic, 4, 400, 400)
			eventually(t, "the next 400", func() bool { return y.all(800) })
			b.end()
			eventually(t, "all four", func() bool { return len(a.Assignment()) == 4 })
			produced(t, client, topic, 4, 800, 400)
			eventually(t, "all", func() bool { return y.all(1200) })
			cooperative := len(assignors) == 1 && assignors[0] == CooperativeSticky
			if told := a.rebalances(); cooperative == slices.Contains(told, "revoked 4") {
				t.Errorf("told %v", told)
			}
			a.end()
			y.check(t, 1200)
			committed, err := admin.FetchOffsets(t.Context(), group)
			if err != nil {
				t.Fatal(err)
			}
			for n := range int32(4) {
				o, ok := committed.Lookup(topic, n)
				if !ok || o.At != 300 || o.LeaderEpoch < 0 || o.Metadata != consumedMark {
					t.Errorf("committed %+v", o)
				}
			}
		})
	}
}

func TestSubscriptionByPattern(t *testing.T) {
	// A member that reads by a pattern reads the topics that match whole, those that are made later too, and no others.
	t.Parallel()
	addr := sharedNode(t)
	client, admin := clientOf(t, kgo.SeedBrokers(addr))
	one := created(t, admin, 1, 1, nil)
	y := newTally()
	m := join1(t, Options{BootstrapServers: []string{addr}, GroupID: freshName("group"), TopicPattern: regexp.MustCompile(one + "(-more)?"), Reset: Earliest, MetadataMaxAge: 100 * time.Millisecond}, y)
	produced(t, client, one, 1, 0, 10)
	eventually(t, "the first topic", func() bool { return y.all(10) })
	if _, err := admin.CreateTopic(t.Context(), 1, 1, nil, one+"-more"); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.CreateTopic(t.Context(), 1, 1, nil, one+"-moreover"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the second topic", func() bool { return len(m.Assignment()) == 2 })
	produced(t, client, one+"-more", 1, 10, 10)
	eventually(t, "its records", func() bool { return y.all(20) })
	y.check(t, 20)
}

func TestCommitWhenPartitionsAreRevoked(t *testing.T) {
	// A commit in OnRevoked is of what was taken so far and is accepted; a commit in OnLost, and one for a partition that has gone, is refused before it is sent.
	t.Parallel()
	addr := sharedNode(t)
	client, admin := clientOf(t, kgo.SeedBrokers(addr))
	topic := created(t, admin, 2, 1, nil)
	produced(t, client, topic, 2, 0, 200)
	group := freshName("group")
	var a *Consumer
	revoked := make(chan error, 10)
	o := Options{BootstrapServers: []string{addr}, GroupID: group, Topics: []string{topic}, Reset: Earliest, DisableAutoCommit: true, MaxPollRecords: 10, HeartbeatInterval: 100 * time.Millisecond}
	first := o
	first.OnRevoked = func(ctx context.Context, partitions []TopicPartition) { revoked <- a.Commit(ctx) }
	a = opened(t, first)
	taken := int64(0)
	for _, err := range a.Records(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if taken++; taken == 55 {
			break
		}
	}
	b := opened(t, o)
	go func() {
		for range b.Records(t.Context()) {
		}
	}()
	var sum int64
	eventually(t, "a commit", func() bool {
		ctx, cancel := contextFor(20 * time.Millisecond)
		defer cancel()
		_, _ = a.Poll(ctx) // takes nothing
		select {
		case err := <-revoked:
			if err != nil {
				t.Fatal(err)
			}
			return true
		default:
			return false
		}
	})
	committed, err := admin.FetchOffsets(t.Context(), group)
	if err != nil {
		t.Fatal(err)
	}
	committed.Each(func(o kadm.OffsetResponse) { sum += o.At })
	if sum != taken {
		t.Errorf("committed %d records, %d were taken", sum, taken)
	}
	eventually(t, "one each", func() bool {
		ctx, cancel := contextFor(20 * time.Millisecond)
		defer cancel()
		_, _ = a.Poll(ctx)
		return len(a.Assignment()) == 1
	})
	gone := TopicPartition{topic, 1 - a.Assignment()[0].Partition}
	var foreign *NotAssignedError
	if err := a.CommitPositions(t.Context(), map[TopicPartition]Position{gone: {1, Known[int32](0)}}); !errors.As(err, &foreign) || !slices.Equal(foreign.Partitions, []TopicPartition{gone}) {
		t.Errorf("a commit for a partition that has gone: %v", err)
	}
}

func TestTooSlowAProgramLosesItsPartitions(t *testing.T) {
	// A program that does not poll for max.poll.interval.ms loses its partitions: its commits are refused before they are sent, the loops over what it has end, OnLost is called at the next Poll, and it is a member again after that.
	t.Parallel()
	addr := sharedNode(t)
	client, admin := clientOf(t, kgo.SeedBrokers(addr))
	topic := created(t, admin, 1, 1, nil)
	produced(t, client, topic, 1, 0, 100)
	lost := make(chan error, 1)
	var c *Consumer
	c = opened(t, Options{BootstrapServers: []string{addr}, GroupID: freshName("group"), Topics: []string{topic}, Reset: Earliest, MaxPollInterval: 300 * time.Millisecond, HeartbeatInterval: 50 * time.Millisecond, DisableAutoCommit: true,
		OnLost: func(ctx context.Context, partitions []TopicPartition) {
			lost <- c.CommitPositions(ctx, map[TopicPartition]Position{partitions[0]: {1, Known[int32](0)}})
		}})
	f, err := c.Poll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for r := range f.Records() {
		if n++; n == 1 {
			eventually(t, "the loss", func() bool { return len(c.Assignment()) == 0 })
			var foreign *NotAssignedError
			if err := c.CommitRecords(t.Context(), r); !errors.As(err, &foreign) {
				t.Errorf("a commit after the loss: %v", err)
			}
		}
	}
	if n != 1 {
		t.Errorf("%d records were handed out after the loss", n-1)
	}
	for r, err := range c.Records(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if r.Offset != 0 {
			t.Errorf("a member again at offset %d", r.Offset)
		}
		break
	}
	if err := <-lost; !errors.As(err, new(*NotAssignedError)) {
		t.Errorf("a commit in OnLost: %v", err)
	}
}

func TestStaticMember(t *testing.T) {
	// A static member that is closed and comes back has its partitions again without a rebalance of the others.
	t.Parallel()
	addr := sharedNode(t)
	client, admin := clientOf(t, kgo.SeedBrokers(addr))
	topic := created(t, admin, 2, 1, nil)
	produced(t, client, topic, 2, 0, 20)
	y, group := newTally(), freshName("group")
	o := Options{BootstrapServers: []string{addr}, GroupID: group, Topics: []string{topic}, Reset: Earliest}
	one, two := o, o
	one.GroupInstanceID, two.GroupInstanceID = "one", "two"
	a := join1(t, one, y)
	b := join1(t, two, y)
	eventually(t, "one each", func() bool { return len(a.Assignment()) == 1 && len(b.Assignment()) == 1 })
	eventually(t, "the first records", func() bool { return y.all(20) })
	had, told := b.Assignment(), a.rebalances()
	b.end()
	b = join1(t, two, y)
	eventually(t, "the same partition", func() bool { return slices.Equal(b.Assignment(), had) })
	produced(t, client, topic, 2, 20, 20)
	eventually(t, "all records", func() bool { return y.all(40) })
	if got := a.rebalances(); !slices.Equal(got, told) {
		t.Errorf("the other was told %v, before %v", got, told)
	}
	y.check(t, 40)
}

func TestQueries(t *testing.T) {
	// Positions, committed offsets, the ends of logs, offsets by time and the lag are what the log and the group hold.
	t.Parallel()
	addr := sharedNode(t)
	client, admin := clientOf(t, kgo.SeedBrokers(addr))
	topic := created(t, admin, 1, 1, nil)
	tp := TopicPartition{topic, 0}
	ctx, cancel := contextWithPatience()
	defer cancel()
	for i := range 10 {
		if err := client.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("x"), Timestamp: time.UnixMilli(int64(1000 + i))}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	c := opened(t, Options{BootstrapServers: []string{addr}, GroupID: freshName("group"), Reset: Earliest, DisableAutoCommit: true})
	if err := c.Assign(tp); err != nil {
		t.Fatal(err)
	}
	if pos, err := c.Position(ctx, tp); err != nil || pos.Offset != 0 {
		t.Errorf("position %v, %v", pos, err)
	}
	if _, err := c.Position(ctx, TopicPartition{topic, 3}); !errors.As(err, new(*NotAssignedError)) {
		t.Errorf("position of another: %v", err)
	}
	taken := 0
	for range c.Records(ctx) {
		if taken++; taken == 4 {
			break
		}
	}
	if pos, err := c.Position(ctx, tp); err != nil || pos != (Position{4, Known[int32](0)}) {
		t.Errorf("position after 4: %v, %v", pos, err)
	}
	if err := c.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Committed(ctx, tp, TopicPartition{topic, 5}); err != nil || !maps.Equal(got, map[TopicPartition]Position{tp: {4, Known[int32](0)}}) {
		t.Errorf("committed %v, %v", got, err)
	}
	if got, err := c.BeginningOffsets(ctx, tp); err != nil || got[tp] != (Position{0, Known[int32](0)}) {
		t.Errorf("beginning %v, %v", got, err)
	}
	if got, err := c.EndOffsets(ctx, tp); err != nil || got[tp] != (Position{10, Known[int32](0)}) {
		t.Errorf("end %v, %v", got, err)
	}
	if got, err := c.Lag(ctx, tp); err != nil || got[tp] != 6 {
		t.Errorf("lag %v, %v", got, err)
	}
	got, err := c.OffsetsForTimes(ctx, map[TopicPartition]time.Time{tp: time.UnixMilli(1007)})
	if err != nil || got[tp] != (TimedPosition{Position{7, Known[int32](0)}, time.UnixMilli(1007)}) {
		t.Errorf("by time %v, %v", got, err)
	}
	if got, err := c.OffsetsForTimes(ctx, map[TopicPartition]time.Time{tp: time.UnixMilli(5000)}); err != nil || len(got) != 0 {
		t.Errorf("by a later time %v, %v", got, err)
	}
	// What was not taken comes again, and nothing twice.
	for r, err := range c.Records(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if r.Offset != int64(taken) {
			t.Fatalf("offset %d after %d records", r.Offset, taken)
		}
		if taken++; taken == 10 {
			break
		}
	}
	c.Pause(tp)
	if got := c.Paused(); !slices.Equal(got, []TopicPartition{tp}) {
		t.Errorf("paused %v", got)
	}
	if err := c.Seek(tp, Position{Offset: 2}); err != nil {
		t.Fatal(err)
	}
	short, done := contextFor(100 * time.Millisecond)
	if f, err := c.Poll(short); err == nil {
		t.Errorf("a paused partition gave %v", f)
	}
	done()
	c.Resume(tp)
	for r := range c.Records(ctx) {
		if r.Offset != 2 {
			t.Errorf("offset %d after a seek to 2", r.Offset)
		}
		break
	}
}

func TestReadCommitted(t *testing.T) {
	// With read_committed no record of an aborted transaction is seen, and the position goes past them and their markers.
	t.Parallel()
	addr := sharedNode(t)
	_, admin := clientOf(t, kgo.SeedBrokers(addr))
	topic := created(t, admin, 1, 1, nil)
	tp := TopicPartition{topic, 0}
	ctx, cancel := contextWithPatience()
	defer cancel()
	producer, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.TransactionalID(freshName("tx")), kgo.RetryTimeout(5*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	if _, _, err = producer.ProducerID(ctx); err != nil {
		t.Fatalf("the node has no coordinator of transactions: %v", err)
	}
	for i, commit := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort, kgo.TryCommit, kgo.TryAbort} {
		if err := producer.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		for j := range 5 {
			if err := producer.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: fmt.Appendf(nil, "%d", i*5+j)}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		if err := producer.EndTransaction(ctx, commit); err != nil {
			t.Fatal(err)
		}
	}
	c := opened(t, Options{BootstrapServers: []string{addr}, Reset: Earliest, Isolation: ReadCommitted})
	if err := c.Assign(tp); err != nil {
		t.Fatal(err)
	}
	var got []string
	for r, err := range c.Records(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, string(r.Value)); len(got) == 10 {
			break
		}
	}
	if want := []string{"0", "1", "2", "3", "4", "10", "11", "12", "13", "14"}; !slices.Equal(got, want) {
		t.Errorf("read %v", got)
	}
	eventually(t, "the position to go past the last marker", func() bool {
		short, done := contextFor(20 * time.Millisecond)
		defer done()
		_, _ = c.Poll(short)
		pos, err := c.Position(ctx, tp)
		return err == nil && pos.Offset == 24
	})
}
