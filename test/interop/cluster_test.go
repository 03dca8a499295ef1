//go:build interop

package interop

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/stelelog/stele/test/reference"
)

// newTrio starts three nodes that form one cluster, named trio; adapt may add to the settings of each.
func newTrio(t *testing.T, ctx context.Context, adapt ...func(i int, n *stele)) (nodes []*stele, bootstrap string) {
	t.Helper()
	var voters, addrs []string
	for id := 1; id <= 3; id++ {
		n := newStele(t, nil)
		n.logPath = filepath.Join(scratch, fmt.Sprintf("stele-%d-of-%s.log", id, t.Name()))
		nodes = append(nodes, n)
		voters = append(voters, fmt.Sprintf("%d@%s", id, n.ControllerAddr()))
		addrs = append(addrs, n.Addr())
	}
	var starting sync.WaitGroup
	errs := make([]error, len(nodes))
	for i, n := range nodes {
		n.settings = []string{fmt.Sprintf("node.id=%d", i+1), "cluster.id=trio", "controller.quorum.voters=" + strings.Join(voters, ","),
			"offsets.topic.replication.factor=3", "offsets.topic.num.partitions=3", "min.insync.replicas=2", "group.initial.rebalance.delay.ms=0"}
		for _, f := range adapt {
			f(i, n)
		}
		starting.Go(func() { errs[i] = n.Start(ctx) })
		t.Cleanup(n.Kill)
	}
	starting.Wait()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	return nodes, strings.Join(addrs, ",")
}

// TestClusterTools runs Apache Kafka's tools against three nodes, in order: topics, leaders, the quorum, a reassignment,
// while a producer writes and a node is killed; at the end every record that was acknowledged is there, once.
func TestClusterTools(t *testing.T) {
	if onKafka() {
		t.Skip("three nodes of Stele")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	nodes, bootstrap := newTrio(t, ctx)
	plan := filepath.Join(t.TempDir(), "plan.json")
	err := os.WriteFile(plan, []byte(`{"version":1,"partitions":[{"topic":"trio","partition":0,"replicas":[3,2]},{"topic":"trio","partition":1,"replicas":[1,2,3]}]}`), 0o644)
	if err != nil {
		t.Fatal(err)
	}
	tool := func(name, tool string, args string, want ...string) {
		t.Helper()
		out, err := reference.Run(ctx, append([]string{"tool", tool}, strings.Fields(args)...)...)
		problem := judge(out, err, false, want)
		results.add("kafka-tools", "cluster-"+name, problem == "")
		if problem != "" {
			t.Errorf("%s: %s", name, problem)
		}
	}
	at := "--bootstrap-server " + bootstrap + " "
	tool("create", "TopicCommand", at+"--create --topic trio --partitions 2 --replication-factor 3", `Created topic trio`)
	tool("describe", "TopicCommand", at+"--describe --topic trio", `ReplicationFactor: 3`, `Isr: \d,\d,\d`)

	cl, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(bootstrap, ",")...), kgo.DefaultProduceTopic("trio"), kgo.MetadataMinAge(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	produced, failures := 0, 0
	var mu sync.Mutex
	produce := func(n int) {
		for range n {
			cl.Produce(ctx, &kgo.Record{Value: fmt.Appendf(nil, "record %d", produced)}, func(_ *kgo.Record, err error) {
				if err != nil {
					mu.Lock()
					failures++
					mu.Unlock()
				}
			})
			produced++
		}
	}
	produce(1000)
	tool("quorum-status", "MetadataQuorumCommand", at+"describe --status", `LeaderId: +[123]`, `CurrentVoters: +\[\{"id": 1.*"id": 2.*"id": 3`)
	tool("quorum-replication", "MetadataQuorumCommand", at+"describe --replication", `Leader`, `Follower`)
	tool("quorum-at-controller", "MetadataQuorumCommand", "--bootstrap-controller "+nodes[1].ControllerAddr()+" describe --status", `ClusterId: +trio`)
	tool("reassign", "ReassignPartitionsCommand", at+"--reassignment-json-file "+plan+" --execute", `Successfully started partition reassignments for trio-0,trio-1`)
	produce(1000)
	if err := cl.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	tool("reassign-verify", "ReassignPartitionsCommand", at+"--reassignment-json-file "+plan+" --verify", `Reassignment of partition trio-0 is completed`, `Reassignment of partition trio-1 is completed`)
	tool("describe-after", "TopicCommand", at+"--describe --topic trio", `Partition: 0\s+Leader: [23]\s+Replicas: 3,2`)

	nodes[0].Kill()
	produce(1000)
	if err := cl.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	tool("one-killed", "TopicCommand", at+"--describe --under-replicated-partitions", `Topic: trio\s+Partition: 1\s+Leader: [23]`)
	if err := nodes[0].Start(ctx); err != nil {
		t.Fatal(err)
	}
	tool("elect", "LeaderElectionCommand", at+"--election-type PREFERRED --topic trio --partition 1", `trio-1`)
	tool("offsets", "GetOffsetShell", at+"--topic trio", `trio:0:\d+`, `trio:1:\d+`)
	if failures > 0 {
		t.Errorf("%d records were not acknowledged", failures)
	}
	out, err := reference.Run(ctx, strings.Fields("tool ConsoleConsumer "+at+fmt.Sprintf("--topic trio --from-beginning --max-messages %d --timeout-ms 20000", produced))...)
	seen := map[string]bool{}
	lines := 0
	for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
		if strings.HasPrefix(line, "record ") {
			seen[line] = true
			lines++
		}
	}
	results.add("kafka-tools", "cluster-consume", err == nil && lines == produced && len(seen) == produced)
	if err != nil || lines != produced || len(seen) != produced {
		t.Errorf("%v: %d records, %d of them different, %d were acknowledged", err, lines, len(seen), produced)
	}
}
