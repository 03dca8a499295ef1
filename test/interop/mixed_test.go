//go:build interop

package interop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/stelelog/stele/test/reference"
)

// mixed is a cluster of both kinds: Apache Kafka and Stele.
type mixed struct {
	t     *testing.T
	ctx   context.Context
	label string // in the table of results
	tools *toolbox
	kafka *reference.Node
	seeds []string
}

// check runs one step and counts it; the test ends with the first that fails, as the next ones build on it.
func (m *mixed) check(name string, step func() error) {
	m.t.Helper()
	err := step()
	results.add(m.label, name, err == nil)
	if err != nil {
		text, _ := os.ReadFile(filepath.Join(m.kafka.Dir, "server.log"))
		m.t.Fatalf("%s: %v\nthe end of Kafka's log:\n%s", name, err, tail(string(text), 40))
	}
}

// says runs a tool until all expressions match what it prints: what it shows may follow the change a little later.
func (m *mixed) says(want []string, tool string, args ...string) error {
	ctx, cancel := context.WithTimeout(m.ctx, 40*time.Second)
	defer cancel()
	return eventually(ctx, func() error {
		out, err := m.tools.run(tool, args...)
		if problem := judge(out, err, false, want); problem != "" {
			return fmt.Errorf("%s %s: %s", tool, strings.Join(args, " "), problem)
		}
		return nil
	})
}

// client is a client of the whole cluster, or of some brokers.
func (m *mixed) client(seeds ...string) *kgo.Client {
	m.t.Helper()
	if len(seeds) == 0 {
		seeds = m.seeds
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.MetadataMinAge(50*time.Millisecond), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(cl.Close)
	return cl
}

// produce writes records from..from+n-1 of a partition and wants all acknowledged by all in-sync replicas.
func (m *mixed) produce(topic string, partition int32, from, n int) error {
	cl := m.client()
	defer cl.Close()
	var records []*kgo.Record
	for i := range n {
		records = append(records, &kgo.Record{Topic: topic, Partition: partition, Value: fmt.Appendf(nil, "%s-%d record %d", topic, partition, from+i)})
	}
	return cl.ProduceSync(m.ctx, records...).FirstErr()
}

// holds wants exactly the records 0..n-1 of a partition, in order, as a client reads them.
func (m *mixed) holds(topic string, partition int32, n int) error {
	all, err := fetchAll(m.ctx, m.seeds[0], topic, true)
	if err != nil {
		return err
	}
	next := 0
	for _, r := range all {
		if r.Partition != partition {
			continue
		}
		if want := fmt.Sprintf("%s-%d record %d", topic, partition, next); string(r.Value) != want {
			return fmt.Errorf("offset %d of %s-%d holds %q instead of %q", r.Offset, topic, partition, r.Value, want)
		}
		next++
	}
	if next != n {
		return fmt.Errorf("%s-%d holds %d records, %d were acknowledged", topic, partition, next, n)
	}
	return nil
}

// inSync waits until a partition is led by a broker and has the named replicas in sync.
func (m *mixed) inSync(topic string, partition, leader int32, isr ...int32) error {
	cl := m.client()
	defer cl.Close()
	ctx, cancel := context.WithTimeout(m.ctx, 60*time.Second)
	defer cancel()
	return eventually(ctx, func() error {
		md, err := kadm.NewClient(cl).Metadata(ctx, topic)
		if err != nil {
			return err
		}
		p, ok := md.Topics[topic].Partitions[partition]
		slices.Sort(p.ISR)
		if !ok || p.Leader != leader || !slices.Equal(p.ISR, isr) {
			return fmt.Errorf("%s-%d: leader %d, in sync %v instead of leader %d, in sync %v", topic, partition, p.Leader, p.ISR, leader, isr)
		}
		return nil
	})
}

// groupReads has a group read to the end of a topic and commit, and wants count records.
func (m *mixed) groupReads(topic, group string, count int) error {
	got, err := franz{m.seeds[0]}.group(m.ctx, topic, group, count)
	for deadline := time.Now().Add(time.Minute); err != nil && strings.Contains(err.Error(), "after 0 records: unable to join group session") && time.Now().Before(deadline); {
		got, err = franz{m.seeds[0]}.group(m.ctx, topic, group, count) // the coordinator was named before it knew
	}
	if err == nil && len(got) != count {
		err = fmt.Errorf("the group read %d records instead of %d", len(got), count)
	}
	return err
}

// TestM044_kafka_broker_in_a_stele_quorum: a broker of Apache Kafka registers with a quorum of three Stele controllers, is unfenced and
// follows its metadata, from a snapshot and then from the log; it leads and follows partitions, beside a Stele broker, which
// clients use; it is kept informed through the death of the active controller, and is fenced and taken back after its own.
func TestM044_kafka_broker_in_a_stele_quorum(t *testing.T) {
	if onKafka() {
		t.Skip("a quorum of Stele")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	nodes, _ := newTrio(t, ctx, func(i int, n *stele) {
		// Snapshots come soon; groups and their offsets are kept by brokers of both kinds.
		n.settings = append(n.settings, "metadata.log.max.record.bytes.between.snapshots=2000", "offsets.topic.replication.factor=2", "min.insync.replicas=1")
		if i > 0 {
			n.settings = append(n.settings, "process.roles=controller", "listeners=CONTROLLER://"+n.ControllerAddr())
		}
	})
	var voters []string // by id: the quorum's kraft.version is 0, in which Kafka looks them up in its settings
	for i, n := range nodes {
		voters = append(voters, fmt.Sprintf("%d@%s", i+1, n.ControllerAddr()))
	}
	m := &mixed{t: t, ctx: ctx, label: "kafka-broker", tools: newToolbox(t), seeds: []string{nodes[0].Addr()}}
	at := []string{"--bootstrap-server", nodes[0].Addr()}
	for i := range 20 {
		if err := createTopic(ctx, nodes[0].Addr(), fmt.Sprintf("earlier-%d", i), 1, map[string]string{"retention.ms": "123456789"}); err != nil {
			t.Fatal(err)
		}
	}

	kafka, err := reference.Reserve(filepath.Join(scratch, "kafka-of-"+t.Name()))
	if err != nil {
		t.Fatal(err)
	}
	m.kafka = kafka
	err = kafka.Format(ctx, "trio", "process.roles=broker", "node.id=10", "listeners=PLAINTEXT://"+kafka.Addr(),
		"controller.quorum.voters="+strings.Join(voters, ","), "offsets.topic.replication.factor=2", "offsets.topic.num.partitions=3")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kafka.Kill)
	m.check("starts", func() error {
		start, done := context.WithTimeout(ctx, 90*time.Second)
		defer done()
		return kafka.Start(start)
	})
	m.seeds = []string{kafka.Addr(), nodes[0].Addr()}
	there := []string{"--bootstrap-server", kafka.Addr()}
	m.check("registered-and-unfenced", func() error {
		return m.says([]string{fmt.Sprintf(`(?m)^10 +127\.0\.0\.1 +%d +null +unfenced +broker`, kafka.Port)},
			"ClusterTool", "list-endpoints", "--include-fenced-brokers", "--bootstrap-server", nodes[0].Addr())
	})
	m.check("began-from-a-snapshot", func() error {
		found, err := filepath.Glob(filepath.Join(kafka.Data(), "__cluster_metadata-0", "*.checkpoint"))
		found = slices.DeleteFunc(found, func(path string) bool { return strings.HasPrefix(filepath.Base(path), strings.Repeat("0", 20)) })
		if err == nil && len(found) == 0 {
			err = errors.New("no snapshot was fetched")
		}
		return err
	})
	m.check("knows-what-was-before", func() error {
		return m.says([]string{`retention\.ms=123456789`}, "TopicCommand", append(there, "--describe", "--topic", "earlier-7")...)
	})
	m.check("follows", func() error {
		return m.says([]string{`(?m)^10\s+\S{22}\s+\d+\s+0\s.*Observer`}, "MetadataQuorumCommand", append(there, "describe", "--replication")...)
	})

	m.check("creates", func() error {
		return m.says([]string{`Created topic led`}, "TopicCommand", append(there, "--create", "--topic", "led", "--replica-assignment", "10,10")...)
	})
	m.check("creates-replicated", func() error {
		return m.says([]string{`Created topic both`}, "TopicCommand", append(there, "--create", "--topic", "both", "--replica-assignment", "10:1,1:10")...)
	})
	m.check("refuses-as-kafka", func() error {
		out, err := m.tools.run("TopicCommand", append(there, "--create", "--topic", "led", "--partitions", "1")...)
		if err == nil || !strings.Contains(out, "Topic 'led' already exists.") {
			return fmt.Errorf("a second topic of the name: %v\n%s", err, out)
		}
		return nil
	})
	m.check("leads", func() error {
		if err := m.produce("led", 1, 0, 500); err != nil {
			return err
		}
		return m.holds("led", 1, 500)
	})
	m.check("console-tools", func() error {
		_, err := reference.RunIn(ctx, "", "by hand\n", "tool", "ConsoleProducer", "--bootstrap-server", kafka.Addr(), "--topic", "earlier-0")
		if err != nil {
			return err
		}
		return m.says([]string{`(?m)^by hand$`}, "ConsoleConsumer", append(there, "--topic", "earlier-0", "--from-beginning", "--max-messages", "1", "--timeout-ms", "20000")...)
	})
	m.check("replicates-both-ways", func() error {
		if err := errors.Join(m.produce("both", 0, 0, 1000), m.produce("both", 1, 0, 1000)); err != nil {
			return err
		}
		return errors.Join(m.inSync("both", 0, 10, 1, 10), m.inSync("both", 1, 1, 1, 10), m.holds("both", 0, 1000), m.holds("both", 1, 1000))
	})
	m.check("groups", func() error { return m.groupReads("both", "readers", 2000) })
	m.check("config-changes", func() error {
		_, err := m.tools.run("ConfigCommand", append(at, "--alter", "--topic", "both", "--add-config", "max.message.bytes=765432")...)
		if err != nil {
			return err
		}
		return m.says([]string{`max\.message\.bytes=765432`}, "ConfigCommand", append(there, "--describe", "--topic", "both")...)
	})
	m.check("more-partitions", func() error {
		_, err := m.tools.run("TopicCommand", append(at, "--alter", "--topic", "led", "--partitions", "4", "--replica-assignment", "10,10,10,10")...)
		if err != nil {
			return err
		}
		return errors.Join(m.inSync("led", 3, 10, 10), m.produce("led", 3, 0, 10))
	})
	m.check("reassigns", func() error {
		plan := filepath.Join(t.TempDir(), "plan.json")
		err := os.WriteFile(plan, []byte(`{"version":1,"partitions":[{"topic":"led","partition":1,"replicas":[1]}]}`), 0o644)
		if err != nil {
			return err
		}
		if _, err := m.tools.run("ReassignPartitionsCommand", append(there, "--reassignment-json-file", plan, "--execute")...); err != nil {
			return err
		}
		return errors.Join(m.inSync("led", 1, 1, 1), m.holds("led", 1, 500))
	})

	m.check("active-controller-killed", func() error {
		out, err := m.tools.run("MetadataQuorumCommand", append(there, "describe", "--status")...)
		leader := regexp.MustCompile(`LeaderId:\s+([123])`).FindStringSubmatch(out)
		if err != nil || leader == nil {
			return fmt.Errorf("%v\n%s", err, out)
		}
		n := nodes[leader[1][0]-'1']
		n.Kill()
		if err := m.says([]string{`Created topic after`}, "TopicCommand", append(there, "--create", "--topic", "after", "--replica-assignment", "10")...); err != nil {
			return err
		}
		return errors.Join(m.inSync("after", 0, 10, 10), m.produce("after", 0, 0, 10), n.Start(ctx))
	})
	m.check("killed", func() error {
		// The Stele broker may have been the active controller, so that Kafka's leads all.
		back := m.says([]string{`(?m)Topic: both\s+Partition: 1\s+Leader: \d+\s+Replicas: 1,10\s+Isr: (1,10|10,1)`}, "TopicCommand", append(there, "--describe", "--topic", "both")...)
		_, _ = m.tools.run("LeaderElectionCommand", append(there, "--election-type", "PREFERRED", "--all-topic-partitions")...)
		if err := errors.Join(back, m.inSync("both", 0, 10, 1, 10), m.inSync("both", 1, 1, 1, 10)); err != nil {
			return err
		}
		kafka.Kill()
		m.seeds = []string{nodes[0].Addr()}
		return errors.Join(m.inSync("both", 0, 1, 1), m.produce("both", 0, 1000, 500), m.holds("both", 0, 1500))
	})
	m.check("group-goes-on-elsewhere", func() error {
		return m.groupReads("both", "readers", 500)
	})
	m.check("comes-back", func() error {
		start, done := context.WithTimeout(ctx, 90*time.Second)
		defer done()
		if err := kafka.Start(start); err != nil {
			return err
		}
		m.seeds = []string{kafka.Addr(), nodes[0].Addr()}
		return errors.Join(m.inSync("both", 0, 1, 1, 10), m.inSync("both", 1, 1, 1, 10))
	})
	m.check("elects-preferred", func() error {
		if _, err := m.tools.run("LeaderElectionCommand", append(there, "--election-type", "PREFERRED", "--topic", "both", "--partition", "0")...); err != nil {
			return err
		}
		return errors.Join(m.inSync("both", 0, 10, 1, 10), m.produce("both", 0, 1500, 100), m.holds("both", 0, 1600))
	})
	m.check("stops-controlled", func() error {
		if err := kafka.Stop(); err != nil {
			return err
		}
		m.seeds = []string{nodes[0].Addr()}
		return errors.Join(m.inSync("both", 0, 1, 1), m.produce("both", 0, 1600, 10), m.holds("both", 0, 1610))
	})
	m.check("its-copy-of-the-metadata", func() error { return sameMetadata(m.tools, kafka.Data(), nodes[0].Data()) })
}

// sameMetadata has Kafka's dump tool decode the metadata logs in two directories, and wants each offset that is in both to
// hold the same.
func sameMetadata(tools *toolbox, kafka, stele string) error {
	line := regexp.MustCompile(`^\| offset: (\d+) .*?(payload: .*|\{.*)$`)
	read := func(dir string) (map[string]string, error) {
		found, err := filepath.Glob(filepath.Join(dir, "__cluster_metadata-0", "*.log"))
		if err != nil {
			return nil, err
		}
		records := map[string]string{}
		out, err := tools.run("DumpLogSegments", "--cluster-metadata-decoder", "--files", strings.Join(found, ","))
		for l := range strings.Lines(out) {
			if match := line.FindStringSubmatch(strings.TrimSpace(l)); match != nil {
				records[match[1]] = match[2]
			}
		}
		return records, err
	}
	a, err := read(kafka)
	if err != nil {
		return err
	}
	b, err := read(stele)
	if err != nil {
		return err
	}
	both := 0
	for offset, text := range a {
		switch other, ok := b[offset]; {
		case !ok:
		case other != text:
			return fmt.Errorf("offset %s holds %s in Kafka's copy and %s in Stele's", offset, text, other)
		default:
			both++
		}
	}
	if both < 20 {
		return fmt.Errorf("only %d of %d and %d records are in both", both, len(a), len(b))
	}
	return nil
}

// TestM044_stele_broker_under_a_kafka_controller: a Stele broker registers with a controller of Apache Kafka, whose features are
// finalized at the levels that Stele serves, follows its metadata, and shares partitions with a broker of Apache Kafka.
func TestM044_stele_broker_under_a_kafka_controller(t *testing.T) {
	if onKafka() {
		t.Skip("a broker of Stele")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	kafka, err := reference.Reserve(filepath.Join(scratch, "kafka-of-"+t.Name()))
	if err != nil {
		t.Fatal(err)
	}
	for _, feature := range []string{"eligible.leader.replicas", "group", "share", "streams", "transaction"} {
		kafka.FormatArgs = append(kafka.FormatArgs, "--feature", feature+".version=0")
	}
	const cluster = "c3RlbGUtYW5kLWthZmthQQ"
	err = kafka.Format(ctx, cluster, "offsets.topic.replication.factor=2", "offsets.topic.num.partitions=3", "broker.session.timeout.ms=3000",
		"broker.heartbeat.interval.ms=500", "metadata.log.max.record.bytes.between.snapshots=2000")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kafka.Kill)
	m := &mixed{t: t, ctx: ctx, label: "kafka-controller", tools: newToolbox(t), kafka: kafka, seeds: []string{kafka.Addr()}}
	start, done := context.WithTimeout(ctx, 90*time.Second)
	defer done()
	if err := kafka.Start(start); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		if err := createTopic(ctx, kafka.Addr(), fmt.Sprintf("earlier-%d", i), 1, map[string]string{"retention.ms": "123456789"}); err != nil {
			t.Fatal(err)
		}
	}
	n := newStele(t, []string{"process.roles=broker", "node.id=10", "cluster.id=" + cluster, "broker.heartbeat.interval.ms=500",
		"offsets.topic.replication.factor=2", "group.initial.rebalance.delay.ms=0"})
	n.settings = append(n.settings, "listeners=PLAINTEXT://"+n.Addr(), "controller.quorum.voters=1@"+kafka.ControllerAddr())
	t.Cleanup(n.Kill)
	m.check("starts", func() error { return n.Start(ctx) })
	m.seeds = []string{n.Addr(), kafka.Addr()}
	here, there := []string{"--bootstrap-server", n.Addr()}, []string{"--bootstrap-server", kafka.Addr()}
	m.check("registered-and-unfenced", func() error {
		return m.says([]string{fmt.Sprintf(`(?m)^10 +127\.0\.0\.1 +%d +null +unfenced +broker`, n.port)},
			"ClusterTool", "list-endpoints", "--include-fenced-brokers", "--bootstrap-server", kafka.Addr())
	})
	m.check("knows-what-was-before", func() error {
		return m.says([]string{`retention\.ms=123456789`}, "TopicCommand", append(here, "--describe", "--topic", "earlier-7")...)
	})
	m.check("follows", func() error {
		return m.says([]string{`(?m)^10\s+\S{22}\s+\d+\s+0\s.*Observer`}, "MetadataQuorumCommand", append(here, "describe", "--replication")...)
	})
	m.check("creates", func() error {
		return m.says([]string{`Created topic both`}, "TopicCommand", append(here, "--create", "--topic", "both", "--replica-assignment", "10:1,1:10")...)
	})
	m.check("replicates-both-ways", func() error {
		if err := errors.Join(m.produce("both", 0, 0, 1000), m.produce("both", 1, 0, 1000)); err != nil {
			return err
		}
		return errors.Join(m.inSync("both", 0, 10, 1, 10), m.inSync("both", 1, 1, 1, 10), m.holds("both", 0, 1000), m.holds("both", 1, 1000))
	})
	m.check("groups", func() error { return m.groupReads("both", "readers", 2000) })
	m.check("config-changes", func() error {
		_, err := m.tools.run("ConfigCommand", append(there, "--alter", "--topic", "both", "--add-config", "max.message.bytes=765432")...)
		if err != nil {
			return err
		}
		return m.says([]string{`max\.message\.bytes=765432`}, "ConfigCommand", append(here, "--describe", "--topic", "both")...)
	})
	m.check("killed", func() error {
		n.Kill()
		m.seeds = []string{kafka.Addr()}
		return errors.Join(m.inSync("both", 0, 1, 1), m.produce("both", 0, 1000, 500), m.holds("both", 0, 1500))
	})
	m.check("comes-back", func() error {
		if err := n.Start(ctx); err != nil {
			return err
		}
		m.seeds = []string{n.Addr(), kafka.Addr()}
		return errors.Join(m.inSync("both", 0, 1, 1, 10), m.groupReads("both", "readers", 500))
	})
	m.check("controller-restarts", func() error {
		kafka.Kill()
		again, done := context.WithTimeout(ctx, 90*time.Second)
		defer done()
		if err := kafka.Start(again); err != nil {
			return err
		}
		return errors.Join(m.inSync("both", 0, 10, 1, 10), m.produce("both", 0, 1500, 10), m.holds("both", 0, 1510),
			m.says([]string{`Created topic after`}, "TopicCommand", append(here, "--create", "--topic", "after", "--replica-assignment", "10")...),
			m.produce("after", 0, 0, 10))
	})
	m.check("stops-controlled", func() error {
		if err := n.Stop(); err != nil {
			return err
		}
		m.seeds = []string{kafka.Addr()}
		return errors.Join(m.inSync("both", 0, 1, 1), m.holds("both", 0, 1510))
	})
}
