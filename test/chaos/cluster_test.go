//go:build chaos

package chaos

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
)

// cluster is three nodes, each broker and controller, and front, by which clients reach whoever is there.
type cluster struct {
	t     *testing.T
	nodes []*node
	front *node
}

func newCluster(t *testing.T, settings ...string) *cluster {
	c := &cluster{t: t, front: &node{t: t, dir: folder(t)}}
	var voters []string
	for i := 1; i <= 3; i++ {
		n := newNode(t)
		controller := freePort(t)
		voters = append(voters, fmt.Sprintf("%d@127.0.0.1:%d", i, controller))
		n.settings = []string{
			fmt.Sprintf("listeners=PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d", n.port, controller), "http.listen=",
			fmt.Sprintf("node.id=%d", i), "cluster.id=chaos", "offsets.topic.replication.factor=3", "min.insync.replicas=2", "default.replication.factor=3",
		}
		c.nodes = append(c.nodes, n)
		c.front.seeds = append(c.front.seeds, n.addr())
	}
	for _, n := range c.nodes {
		n.settings = append(append(n.settings, "controller.quorum.voters="+strings.Join(voters, ",")), settings...)
	}
	return c
}

func (c *cluster) start() {
	for _, n := range c.nodes {
		n.start()
	}
}

// settled waits until all nodes are there, and every partition of the topics has a leader and all its replicas in sync.
func (c *cluster) settled(when string, topics ...string) {
	c.t.Helper()
	admin := kadm.NewClient(c.front.client())
	defer admin.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	last := ""
	for ctx.Err() == nil {
		m, err := admin.Metadata(ctx, topics...)
		if err == nil {
			bad := len(c.nodes) - len(m.Brokers)
			last = fmt.Sprintf("brokers %v", m.Brokers.NodeIDs())
			m.Topics.EachPartition(func(p kadm.PartitionDetail) {
				if p.Err != nil || p.Leader < 0 || len(p.ISR) < len(p.Replicas) {
					bad++
					last = fmt.Sprintf("%s-%d: leader %d, in sync %v of %v (%v)", p.Topic, p.Partition, p.Leader, p.ISR, p.Replicas, p.Err)
				}
			})
			if bad == 0 && len(m.Topics) >= len(topics) {
				return
			}
		} else {
			last = err.Error()
		}
		<-time.After(50 * time.Millisecond)
	}
	c.t.Fatalf("%s: not all replicas are in sync: %s\n%s", when, last, c.logs())
}

func (c *cluster) logs() string {
	var all []string
	for i, n := range c.nodes {
		all = append(all, fmt.Sprintf("node %d:\n%s", i+1, n.log()))
	}
	return strings.Join(all, "\n")
}

// healed starts what is down and waits until all is well again.
func (c *cluster) healed(when string, topics ...string) {
	c.t.Helper()
	for _, n := range c.nodes {
		select {
		case <-n.done:
			n.start()
		default:
		}
	}
	c.settled(when, topics...)
}

// TestClusterKillLoop: three nodes under 8 producers and 4 groups, of which one or two are killed with -9 or stopped for a
// while, again and again: nothing that was acknowledged by all in-sync replicas is missing or twice, no record changes, no
// leader epoch and no committed offset falls, and each time all replicas get in sync again.
func TestClusterKillLoop(t *testing.T) {
	random, ledger := source(t), newLedger()
	c := newCluster(t, "offsets.topic.num.partitions=4", "group.initial.rebalance.delay.ms=0", "replica.lag.time.max.ms=3000",
		"replica.high.watermark.checkpoint.interval.ms=300", "log.flush.offset.checkpoint.interval.ms=400", "log.initial.task.delay.ms=1",
		"metadata.log.max.record.bytes.between.snapshots=4000")
	t.Cleanup(func() {
		if t.Failed() {
			ledger.keep(filepath.Join(c.front.dir, "history.json"))
		}
	})
	c.start()
	topics := []string{"orders", "clicks", "sensors"}
	c.settled("at the start")
	createTopics(t, c.front, 3, 3, topics...)
	c.settled("at the start", topics...)
	judge := newJudge(t, c.front, ledger, topics...)
	load := startLoad(c.front, ledger, topics)
	t.Cleanup(load.cancel)

	var events []string
	for i := range clusterRounds {
		<-time.After(time.Duration(300+random.IntN(1000)) * time.Millisecond)
		for _, n := range c.nodes {
			n.mustRun()
		}
		order := random.Perm(3)
		victims := order[:1]
		what := "kill"
		switch random.IntN(6) {
		case 0:
			victims, what = order[:2], "kill two"
		case 1:
			what = "stop for a while"
		}
		events = append(events, fmt.Sprintf("%s %v", what, victims))
		for _, v := range victims {
			if what == "stop for a while" {
				_ = syscall.Kill(c.nodes[v].pid(), syscall.SIGSTOP)
				<-time.After(time.Duration(500+random.IntN(6000)) * time.Millisecond)
				_ = syscall.Kill(c.nodes[v].pid(), syscall.SIGCONT)
				continue
			}
			c.nodes[v].kill()
		}
		<-time.After(time.Duration(random.IntN(2500)) * time.Millisecond)
		c.healed(fmt.Sprintf("after round %d (%s)", i+1, events[len(events)-1]), topics...)
		judge.judge(fmt.Sprintf("after round %d (%s)", i+1, events[len(events)-1]), false)
	}
	load.cancel()
	judge.judge("at the end", true)
	slices.Sort(events)
	t.Logf("%d rounds: %s", len(events), strings.Join(events, "; "))
	t.Logf("%d records acknowledged, %d read by %d groups", load.writes.Load(), load.reads.Load(), len(ledger.commits))
	if load.writes.Load() < 1000 {
		t.Errorf("only %d records were acknowledged", load.writes.Load())
	}
}

const clusterRounds = 12
