package consumer

import (
	"context"

	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// cut is a partition of two replicas: one has first records, the other was cut off and the leader went on to all.
type cut struct {
	t              *testing.T
	nodes          []*node
	admin          *kadm.Client
	client         *kgo.Client
	topic          string
	leader, behind int // nodes
}

// cutOff makes a topic in which the leader's log is all long, and that of a replica that is out of sync and down is
// first long.
func cutOff(t *testing.T, nodes []*node, first, all int) *cut {
	t.Helper()
	var seeds []string
	for _, n := range nodes {
		seeds = append(seeds, n.addr)
	}
	c := &cut{t: t, nodes: nodes}
	c.client, c.admin = clientOf(t, kgo.SeedBrokers(seeds...), kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite(), kgo.ProducerBatchMaxBytes(1000), kgo.RetryTimeout(patience))
	yes, one := "true", "1"
	c.topic = created(t, c.admin, 1, 2, map[string]*string{"unclean.leader.election.enable": &yes, "min.insync.replicas": &one})
	p := c.detail()
	c.leader = int(p.Leader)
	for _, id := range p.Replicas {
		if id != p.Leader {
			c.behind = int(id)
		}
	}
	produced(t, c.client, c.topic, 1, 0, first)
	ctx, cancel := contextWithPatience()
	defer cancel()
	eventually(t, "the records at both", func() bool {
		ends, err := c.admin.ListEndOffsets(ctx, c.topic)
		o, ok := ends.Lookup(c.topic, 0)
		return err == nil && ok && o.Offset == int64(first)
	})
	c.node(c.behind).kill()
	produced(t, c.client, c.topic, 1, first, all-first)
	eventually(t, "the replica to be out of sync", func() bool { return len(c.detail().ISR) == 1 })
	return c
}

func (c *cut) node(id int) *node { return c.nodes[id-1] }

func (c *cut) detail() kadm.PartitionDetail {
	ctx, cancel := contextFor(2 * time.Second)
	defer cancel()
	m, err := c.admin.Metadata(ctx, c.topic)
	if err != nil {
		return kadm.PartitionDetail{}
	}
	return m.Topics[c.topic].Partitions[0]
}

// elect kills the leader and starts the other again, which then leads with its shorter log.
func (c *cut) elect() {
	c.t.Helper()
	c.node(c.leader).kill()
	stele, _ := built()
	if err := c.node(c.behind).launch(stele); err != nil {
		c.t.Fatal(err)
	}
	eventually(c.t, "an unclean election", func() bool { return int(c.detail().Leader) == c.behind })
}

func TestE103_an_unclean_election_under_a_running_consumer(t *testing.T) {
	// Three nodes; an out-of-sync replica that ends at 90 is elected while a consumer is at 120: exactly one event, the position 90, and the next record has the new epoch. A member of a group that comes back to a commit made at 120 finds out as well, and one that committed by offset alone does not.
	t.Parallel()
	if testing.Short() {
		t.Skip("kills nodes")
	}
	nodes := cluster3(t)
	c := cutOff(t, nodes, 90, 120)
	var seeds []string
	for _, n := range nodes {
		seeds = append(seeds, n.addr)
	}
	tp := TopicPartition{c.topic, 0}
	var mu sync.Mutex
	var events []ResetEvent
	open := func(group string) *Consumer {
		return opened(t, Options{BootstrapServers: seeds, GroupID: group, Reset: Earliest, DisableAutoCommit: true, MetadataMaxAge: time.Second,
			OnReset: func(ev ResetEvent) {
				mu.Lock()
				defer mu.Unlock()
				events = append(events, ev)
			}})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	to := func(r *Consumer, offset int64) (first, last *Record) {
		t.Helper()
		for record, err := range r.Records(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			if first == nil {
				first = record.Clone()
			}
			if last = record.Clone(); record.Offset >= offset-1 {
				return first, last
			}
		}
		t.Fatalf("not read up to %d", offset)
		return nil, nil
	}
	running, member, blind := open(freshName("group")), open(freshName("group")), open(freshName("group"))
	for _, r := range []*Consumer{running, member, blind} {
		if err := r.Assign(tp); err != nil {
			t.Fatal(err)
		}
		to(r, 120)
	}
	if err := member.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	// As other clients do: the offset alone, or the epoch of whoever leads when the commit is made.
	if err := c.admin.CommitAllOffsets(ctx, blind.o.GroupID, kadm.Offsets{c.topic: {0: {Topic: c.topic, At: 120, LeaderEpoch: -1}}}); err != nil {
		t.Fatal(err)
	}
	closed(t, member)
	closed(t, blind)
	mu.Lock()
	events = nil
	mu.Unlock()
	polling := make(chan *Record, 1)
	go func() {
		for record, err := range running.Records(ctx) {
			if err != nil {
				t.Errorf("running: %v", err)
			} else {
				polling <- record.Clone()
			}
			return
		}
	}()
	c.elect()
	var old int32
	produced(t, c.client, c.topic, 1, 1000, 60)
	select {
	case record := <-polling:
		mu.Lock()
		if len(events) != 1 || events[0].Cause != CauseTruncated || events[0].From != Known(Position{120, Known[int32](0)}) || events[0].To != Known(Position{90, Known[int32](0)}) || events[0].AtMost {
			t.Errorf("events %v", events)
		}
		events = nil
		mu.Unlock()
		if e, _ := record.LeaderEpoch.Get(); record.Offset != 90 || e <= old || string(record.Value) != "1000" {
			t.Errorf("the next record is %d of epoch %v: %s", record.Offset, record.LeaderEpoch, record.Value)
		}
	case <-ctx.Done():
		t.Fatal("no record after the election")
	}
	back := open(member.o.GroupID)
	if err := back.Assign(tp); err != nil {
		t.Fatal(err)
	}
	if first, _ := to(back, 150); first.Offset != 90 {
		t.Errorf("a member that came back went on at %d", first.Offset)
	}
	mu.Lock()
	if len(events) != 1 || events[0].Cause != CauseTruncated {
		t.Errorf("events %v", events)
	}
	events = nil
	mu.Unlock()
	back = open(blind.o.GroupID)
	if err := back.Assign(tp); err != nil {
		t.Fatal(err)
	}
	if first, _ := to(back, 150); first.Offset != 120 {
		t.Errorf("a member that came back to an offset alone went on at %d", first.Offset)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(events) != 0 {
		t.Errorf("events %v", events)
	}
}

func TestGroupThroughKillsOfNodes(t *testing.T) {
	// Three nodes, of which each is killed and started again in turn under a producer and a group of two: every record that was acknowledged is read, none by a position that moved, and the group comes to rest.
	t.Parallel()
	if testing.Short() {
		t.Skip("kills nodes")
	}
	nodes := cluster3(t, "min.insync.replicas=2")
	var seeds []string
	for _, n := range nodes {
		seeds = append(seeds, n.addr)
	}
	client, admin := clientOf(t, kgo.SeedBrokers(seeds...))
	topic := created(t, admin, 4, 3, nil)
	y := newTally()
	var mu sync.Mutex
	var moved []ResetEvent
	o := Options{BootstrapServers: seeds, GroupID: freshName("group"), Topics: []string{topic}, Reset: Earliest, Assignors: []Assignor{CooperativeSticky}, AutoCommitInterval: 200 * time.Millisecond,
		OnReset: func(ev ResetEvent) {
			if ev.Cause != CauseNoCommit {
				mu.Lock()
				defer mu.Unlock()
				moved = append(moved, ev)
			}
		}}
	a, b := join1(t, o, y), join1(t, o, y)
	stele, _ := built()
	for i, n := range nodes {
		produced(t, client, topic, 4, 200*i, 100)
		n.kill()
		produced(t, client, topic, 4, 200*i+100, 100)
		eventually(t, fmt.Sprintf("the records of round %d", i), func() bool { return y.all(200 * (i + 1)) })
		if err := n.launch(stele); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := contextWithPatience()
		eventually(t, "all replicas in sync", func() bool {
			m, err := admin.Metadata(ctx, topic, "__consumer_offsets")
			ok := err == nil
			for _, d := range m.Topics {
				for _, p := range d.Partitions {
					ok = ok && len(p.ISR) == 3
				}
			}
			return ok
		})
		cancel()
	}
	eventually(t, "two partitions each", func() bool { return len(a.Assignment()) == 2 && len(b.Assignment()) == 2 })
	a.end()
	b.end()
	mu.Lock()
	defer mu.Unlock()
	if len(moved) != 0 {
		t.Errorf("moved: %v", moved)
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	for i := range 600 {
		if y.seen[fmt.Sprint(i)] == 0 {
			t.Errorf("record %d was not read", i)
		}
	}
}
