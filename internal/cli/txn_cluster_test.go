package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/wire"
)

// replicatedTransactions are settings of three nodes that survive the loss of one without being asked first.
var replicatedTransactions = []string{
	"offsets.topic.num.partitions=3", "transaction.state.log.num.partitions=3", "offsets.topic.replication.factor=3", "transaction.state.log.replication.factor=3",
	"transaction.state.log.min.isr=2", "controlled.shutdown.enable=false", "group.initial.rebalance.delay.ms=0",
}

// addrs are the client listeners of the nodes that run.
func (tr *trio) addrs() []string {
	var all []string
	for _, n := range tr.nodes {
		all = append(all, n.server.Addr("PLAINTEXT").String())
	}
	return all
}

func (tr *trio) admin(t *testing.T) *kadm.Client {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(tr.addrs()...), kgo.MetadataMinAge(20*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return kadm.NewClient(cl)
}

// create makes a topic, once the cluster has as many brokers as it needs.
func create(ctx context.Context, t *testing.T, admin *kadm.Client, topic string, partitions int32, replicas int16) {
	t.Helper()
	for {
		resp, err := admin.CreateTopic(ctx, partitions, replicas, nil, topic)
		if err == nil && resp.Err == nil || resp.ErrMessage == "" && errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("create %s: %v", topic, err)
		}
	}
}

// coordinatorNode is the node that coordinates a transactional id.
func coordinatorNode(ctx context.Context, t *testing.T, admin *kadm.Client, id string) int {
	t.Helper()
	for {
		if found := admin.FindTxnCoordinators(ctx, id)[id]; found.Err == nil {
			return int(found.NodeID)
		}
		if ctx.Err() != nil {
			t.Fatal("no transaction coordinator")
		}
	}
}

// fixedPorts has each node keep its client port, so that clients find it again after a restart.
func (tr *trio) fixedPorts() []string {
	var listeners []string
	for i := 1; i <= 3; i++ {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			tr.t.Fatal(err)
		}
		defer l.Close()
		listeners = append(listeners, fmt.Sprintf("listeners=PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d", l.Addr().(*net.TCPAddr).Port, tr.ports[i]))
	}
	return listeners
}

// startAll starts the three nodes with settings, each at its own ports, and returns how to start one again.
func (tr *trio) startAll(set []string) (again func(i int)) {
	listeners := tr.fixedPorts()
	again = func(i int) { tr.startWith(append([]string{listeners[i-1]}, set...), i) }
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i := 1; i <= 3; i++ {
		one := *tr
		one.nodes = map[int]*node{}
		wg.Go(func() {
			one.startWith(append([]string{listeners[i-1]}, set...), i)
			mu.Lock()
			defer mu.Unlock()
			tr.nodes[i] = one.nodes[i]
		})
	}
	wg.Wait()
	return again
}

func TestT027_T028_T029_coordinator_lost(t *testing.T) {
	// Producers of both versions go on with their transactions while each node is lost and comes back in turn, the coordinator
	// first: what was committed is there once, what was aborted is not, and nothing stays open.
	t.Parallel()
	tr := newTrio(t)
	again := tr.startAll(replicatedTransactions)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
	defer cancel()
	admin := tr.admin(t)
	create(ctx, t, admin, "t", 3, 3)
	first := coordinatorNode(ctx, t, admin, "loop-0")
	stop := make(chan struct{})
	var producers sync.WaitGroup
	var mu sync.Mutex
	committed, unknown := map[string]bool{}, map[string]bool{}
	for who, opts := range [][]kgo.Opt{nil, {kgo.MaxVersions(kversion.V3_5_0())}} {
		producers.Go(func() {
			cl, err := kgo.NewClient(append(opts, kgo.SeedBrokers(tr.addrs()...), kgo.TransactionalID(fmt.Sprint("loop-", who)), kgo.DefaultProduceTopic("t"), kgo.MetadataMinAge(20*time.Millisecond))...)
			if err != nil {
				t.Error(err)
				return
			}
			defer cl.Close()
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				name := fmt.Sprintf("%d-%d", who, i)
				if err := cl.BeginTransaction(); err != nil {
					t.Errorf("begin %s: %v", name, err)
					return
				}
				results := cl.ProduceSync(ctx, kgo.StringRecord(name), kgo.StringRecord(name), kgo.StringRecord(name))
				commit := i%5 != 3 && results.FirstErr() == nil
				err := cl.EndTransaction(ctx, kgo.TransactionEndTry(commit))
				mu.Lock()
				switch {
				case commit && err == nil:
					committed[name] = true
				case commit:
					unknown[name] = true
				}
				mu.Unlock()
				if err != nil && ctx.Err() != nil {
					return
				}
			}
		})
	}
	enough := func(n int) {
		for {
			mu.Lock()
			have := len(committed)
			mu.Unlock()
			if have >= n {
				return
			}
			select {
			case <-ctx.Done():
				t.Errorf("%d transactions in time, want %d", have, n)
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
	for k := range 3 {
		enough(20 * (k + 1))
		i := (first+k-1)%3 + 1
		tr.stop(i)
		mu.Lock()
		n := len(committed)
		mu.Unlock()
		enough(n + 10)
		again(i)
	}
	close(stop)
	producers.Wait()
	for { // until nothing is open
		stable, err1 := admin.ListCommittedOffsets(ctx, "t")
		ends, err2 := admin.ListEndOffsets(ctx, "t")
		open := err1 != nil || err2 != nil
		ends.Each(func(o kadm.ListedOffset) {
			s, ok := stable.Lookup(o.Topic, o.Partition)
			open = open || !ok || s.Err != nil || o.Err != nil || s.Offset != o.Offset
		})
		if !open {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("still open: %v %v", stable, ends)
		}
	}
	seen := readCommitted(ctx, t, tr.addrs(), "t", 3*len(committed))
	mu.Lock()
	defer mu.Unlock()
	for name := range committed {
		if seen[name] != 3 {
			t.Errorf("%s was committed and is there %d times", name, seen[name])
		}
	}
	for name, n := range seen {
		if !committed[name] && !(unknown[name] && n == 3) {
			t.Errorf("%s is there %d times, although it was not committed", name, n)
		}
	}
	t.Logf("%d committed, %d of unknown outcome", len(committed), len(unknown))
}

// readCommitted counts the committed values of a topic, at least n of them, up to its end.
func readCommitted(ctx context.Context, t *testing.T, addrs []string, topic string, n int) map[string]int {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(addrs...), kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(200*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	seen, total := map[string]int{}, 0
	for quiet := false; total < n || !quiet; {
		limited, cancel := context.WithTimeout(ctx, 2*time.Second)
		fetches := cl.PollFetches(limited)
		cancel()
		if ctx.Err() != nil {
			t.Fatalf("%d of %d records", total, n)
		}
		quiet = fetches.NumRecords() == 0
		fetches.EachRecord(func(r *kgo.Record) {
			seen[string(r.Value)]++
			total++
		})
	}
	return seen
}

func TestT020_T021_T030_partitions_and_coordinator_away(t *testing.T) {
	// The leader of a partition is away when its transaction ends: the end is answered, and completed when the leader is back;
	// until then the first batch of the next transaction is 51.
	// While the coordinator is away, a first batch is answered 19 (12 below), and taken when it is back.
	t.Parallel()
	tr := newTrio(t)
	again := tr.startAll([]string{"transaction.state.log.num.partitions=1", "transaction.state.log.replication.factor=1", "controlled.shutdown.enable=false"})
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	admin := tr.admin(t)
	create(ctx, t, admin, "t", 3, 1)
	home := coordinatorNode(ctx, t, admin, "tx")
	leaders := map[int]int32{} // node: a partition
	for len(leaders) != 3 {    // every node knows of the topic soon
		details, err := admin.ListTopics(ctx, "t")
		if err != nil {
			t.Fatalf("leaders %v: %v", leaders, err)
		}
		for _, p := range details["t"].Partitions {
			leaders[int(p.Leader)] = p.Partition
		}
	}
	away, stays := home%3+1, (home+1)%3+1
	cl, err := kgo.NewClient(kgo.SeedBrokers(tr.addrs()...), kgo.TransactionalID("tx"), kgo.DefaultProduceTopic("t"), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(20*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := cl.ProduceSync(ctx, &kgo.Record{Partition: leaders[away], Value: []byte("a")}, &kgo.Record{Partition: leaders[stays], Value: []byte("b")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	tr.stop(away)
	if err := cl.EndTransaction(ctx, kgo.TryCommit); err != nil {
		t.Fatalf("end: %v", err)
	}
	describe := func() kadm.DescribedTransaction {
		for {
			described, err := admin.DescribeTransactions(ctx, "tx")
			if err == nil && described["tx"].Err == nil {
				return described["tx"]
			}
			if ctx.Err() != nil {
				t.Fatalf("describe: %v", err)
			}
		}
	}
	state := func() string { return describe().State }
	conn, err := wire.Dial(ctx, (&net.Dialer{}).DialContext, tr.nodes[stays].server.Addr("PLAINTEXT").String(), wire.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var producer kadm.DescribedTransaction
	first := func(version int16, partition int32) int16 {
		b := record.NewBuilder(record.BuilderOptions{Producer: &record.Producer{ID: producer.ProducerID, Epoch: producer.ProducerEpoch, BaseSequence: 0}, Transactional: true})
		if err := b.Append(time.Now().UnixMilli(), nil, []byte("next"), nil); err != nil {
			t.Fatal(err)
		}
		req := kmsg.NewPtrProduceRequest()
		id := "tx"
		req.Acks, req.TimeoutMillis, req.TransactionID = -1, 10000, &id
		one := kmsg.NewProduceRequestTopic()
		p := kmsg.NewProduceRequestTopicPartition()
		p.Partition, p.Records = partition, b.Bytes()
		one.Topic, one.Partitions = "t", append(one.Partitions, p)
		req.Topics = append(req.Topics, one)
		resp, err := conn.RequestVersion(ctx, req, version)
		if err != nil {
			t.Fatal(err)
		}
		got := resp.(*kmsg.ProduceResponse).Topics[0].Partitions[0]
		if got.ErrorCode == 19 && got.LogStartOffset != -1 {
			t.Errorf("version %d: log start offset %d beside 19", version, got.LogStartOffset)
		}
		return got.ErrorCode
	}
	if producer = describe(); producer.State != "PrepareCommit" {
		t.Errorf("while a leader is away: %s", producer.State)
	}
	if code := first(12, leaders[stays]); code != 51 {
		t.Errorf("the next transaction, while a leader is away: error %d", code)
	}
	again(away)
	for state() != "CompleteCommit" {
		if ctx.Err() != nil {
			t.Fatalf("when it is back: %s", state())
		}
	}
	if seen := readCommitted(ctx, t, tr.addrs(), "t", 2); seen["a"] != 1 || seen["b"] != 1 {
		t.Errorf("%v", seen)
	}

	tr.stop(home)
	for _, version := range []int16{11, 12} {
		if code := first(version, leaders[stays]); code != 19 {
			t.Errorf("version %d, while the coordinator is away: error %d", version, code)
		}
	}
	again(home)
	for code := int16(19); code != 0; {
		if code = first(12, leaders[stays]); ctx.Err() != nil || code != 0 && code != 19 {
			t.Fatalf("when the coordinator is back: error %d", code)
		}
	}
}
