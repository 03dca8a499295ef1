//go:build interop

package interop

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/stelelog/stele/test/reference"
)

// sameClusterID is the cluster id of both clusters.
const sameClusterID = "c3RlbGUtYW5kLWthZmthQQ"

// three is a cluster of three nodes with the ids 1 to 3, of either kind.
type three struct {
	nodes [3]target
	tools *toolbox
	said  map[string]string // by the name of the step: status and normalised output
}

func (c *three) bootstrap() string {
	var all []string
	for _, n := range c.nodes {
		all = append(all, n.Addr())
	}
	return strings.Join(all, ",")
}

// clustersMade makes the names of directories differ.
var clustersMade atomic.Int64

// newThree makes the nodes of a cluster, not started, each with the same settings.
func newThree(ctx context.Context, t *testing.T, kafka bool) (*three, error) {
	settings := []string{"offsets.topic.replication.factor=3", "offsets.topic.num.partitions=3", "min.insync.replicas=2", "group.initial.rebalance.delay.ms=0",
		"broker.session.timeout.ms=3000", "broker.heartbeat.interval.ms=500", "auto.leader.rebalance.enable=false"}
	c := &three{tools: newToolbox(t), said: map[string]string{}}
	var voters []string
	var foreign [3]*reference.Node
	for i := range c.nodes {
		if !kafka {
			n := newStele(t, nil)
			n.logPath = filepath.Join(scratch, fmt.Sprintf("stele-%d-of-%s.log", i+1, t.Name()))
			c.nodes[i] = n
		} else {
			n, err := reference.Reserve(filepath.Join(scratch, fmt.Sprintf("kafka-%d-of-%s-%d", i+1, t.Name(), clustersMade.Add(1))))
			if err != nil {
				return nil, err
			}
			for _, feature := range []string{"eligible.leader.replicas", "group", "share", "streams", "transaction"} {
				n.FormatArgs = append(n.FormatArgs, "--feature", feature+".version=0")
			}
			foreign[i], c.nodes[i] = n, n
		}
		voters = append(voters, fmt.Sprintf("%d@%s", i+1, c.nodes[i].ControllerAddr()))
	}
	settings = append(settings, "controller.quorum.voters="+strings.Join(voters, ","))
	return c, c.each(func(i int, n target) error {
		t.Cleanup(n.Kill)
		own := append([]string{fmt.Sprintf("node.id=%d", i+1)}, settings...)
		if s, ok := n.(*stele); ok {
			s.settings = append(own, "cluster.id="+sameClusterID)
			return nil
		}
		return foreign[i].Format(ctx, sameClusterID, own...)
	})
}

// each does something with all nodes at once.
func (c *three) each(do func(i int, n target) error) error {
	var all sync.WaitGroup
	var errs [3]error
	for i, n := range c.nodes {
		all.Go(func() { errs[i] = do(i, n) })
	}
	all.Wait()
	return errors.Join(errs[:]...)
}

// settled waits until every partition of a topic has the wanted replicas in sync and a leader among them.
func (c *three) settled(ctx context.Context, topic string, isr ...int32) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(c.bootstrap(), ",")...), kgo.MetadataMinAge(50*time.Millisecond))
	if err != nil {
		return err
	}
	defer cl.Close()
	limited, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	return eventually(limited, func() error {
		md, err := kadm.NewClient(cl).Metadata(limited, topic)
		if err != nil {
			return err
		}
		var last error
		if len(md.Topics[topic].Partitions) == 0 {
			last = fmt.Errorf("%s has no partitions yet", topic)
		}
		for _, p := range md.Topics[topic].Partitions {
			slices.Sort(p.ISR)
			if !slices.Equal(p.ISR, isr) || !slices.Contains(isr, p.Leader) {
				last = fmt.Errorf("%s-%d: leader %d, in sync %v", topic, p.Partition, p.Leader, p.ISR)
			}
		}
		return last
	})
}

var (
	traceLine   = regexp.MustCompile(`(?m)^\s+at .*\n|^\s*\.\.\. \d+ more\n`)
	identifier  = regexp.MustCompile(`\b[A-Za-z0-9_-]{22}\b`)
	moment      = regexp.MustCompile(`\b1[6-9]\d{11}\b`)
	spaces      = regexp.MustCompile(`[ \t]+`)
	wording     = regexp.MustCompile(`(?m)(Exception|Error while executing topic command |Could not (?:up|down)grade \S+ to \S+\.)[: ].*$`)
	inSyncList  = regexp.MustCompile(`Isr: [\d,]+`)
	nodeAddress = regexp.MustCompile(`127\.0\.0\.1[: ]+\d+`)
)

// normal takes out of a tool's output what two clusters cannot have in common: ports, ids that are drawn, moments.
func (c *three) normal(text string) string {
	text = traceLine.ReplaceAllString(text+"\n", "")
	text = strings.ReplaceAll(text, sameClusterID, "CLUSTER")
	for i, n := range c.nodes {
		text = strings.ReplaceAll(text, n.Data(), fmt.Sprintf("DIR-%d", i+1))
	}
	text = nodeAddress.ReplaceAllStringFunc(text, func(found string) string {
		port := found[strings.LastIndexAny(found, ": ")+1:]
		for i, n := range c.nodes {
			switch {
			case strings.HasSuffix(n.Addr(), ":"+port):
				return fmt.Sprintf("BROKER-%d", i+1)
			case strings.HasSuffix(n.ControllerAddr(), ":"+port):
				return fmt.Sprintf("CONTROLLER-%d", i+1)
			}
		}
		return found
	})
	// What went wrong is compared, not how it is put.
	text = wording.ReplaceAllString(text, "$1")
	text = inSyncList.ReplaceAllStringFunc(text, func(found string) string {
		ids := strings.Split(strings.TrimPrefix(found, "Isr: "), ",")
		slices.Sort(ids)
		return "Isr: " + strings.Join(ids, ",")
	})
	text = identifier.ReplaceAllString(text, "ID")
	text = moment.ReplaceAllString(text, "TIME")
	return strings.TrimSpace(spaces.ReplaceAllString(text, " "))
}

// toolStep is one command. In its arguments BOOTSTRAP, CONTROLLERS and FILE-x stand for what each cluster has in their place.
type toolStep struct {
	name, tool, args string
	// ignore takes out of both outputs what may differ, and why is said where it is used.
	ignore func(string) string
	fails  bool // the tool's exit status is not 0: a check that both do not fail for a reason of the test's own
	// wait repeats the command until its output matches: what it shows comes a little after what was done before.
	wait string
}

// sortedLines is for lists that have no order.
func sortedLines(text string) string {
	lines := strings.Split(text, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// only keeps the lines that match.
func only(expression string) func(string) string {
	keep := regexp.MustCompile(expression)
	return func(text string) string {
		return strings.Join(slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool { return !keep.MatchString(line) }), "\n")
	}
}

// do runs steps and keeps what they say.
func (c *three) do(ctx context.Context, files map[string]string, steps []toolStep) error {
	var controllers []string
	for _, n := range c.nodes {
		controllers = append(controllers, n.ControllerAddr())
	}
	for _, s := range steps {
		var args []string
		for _, word := range strings.Fields(s.args) {
			word = strings.NewReplacer("BOOTSTRAP", c.bootstrap(), "CONTROLLERS", strings.Join(controllers, ",")).Replace(word)
			if path, ok := files[word]; ok {
				word = path
			}
			args = append(args, strings.ReplaceAll(word, "+", " "))
		}
		var out string
		var err error
		run := func() error {
			out, err = c.tools.run(s.tool, args...)
			if s.wait != "" && !regexp.MustCompile(s.wait).MatchString(out) {
				return fmt.Errorf("%s: %v\n%s", s.name, err, out)
			}
			return nil
		}
		limited, cancel := context.WithTimeout(ctx, 40*time.Second)
		late := eventually(limited, run)
		cancel()
		if late != nil {
			return late
		}
		text := c.normal(out)
		if s.ignore != nil {
			text = s.ignore(text)
		}
		switch {
		case s.fails && err == nil:
			text = "(status 0, although it should fail)\n" + text
		case !s.fails && err != nil:
			text = "(failed, although it should not)\n" + text
		}
		c.said[s.name] = text
	}
	return nil
}

// healthy is what is asked of three nodes of which all are there.
var healthy = []toolStep{
	{name: "create", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --create --topic a --replica-assignment 1:2:3,2:3:1,3:1:2 --config retention.ms=123456 --config cleanup.policy=compact,delete"},
	{name: "create-again", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --create --topic a --partitions 1", fails: true},
	{name: "create-if-not-exists", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --create --topic a --partitions 1 --if-not-exists"},
	{name: "create-too-many-replicas", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --create --topic b --partitions 2 --replication-factor 4", fails: true},
	{name: "create-unknown-broker", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --create --topic b --replica-assignment 1:9", fails: true},
	{name: "create-uneven", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --create --topic b --replica-assignment 1:2,3", fails: true},
	{name: "create-twice-there", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --create --topic b --replica-assignment 1:1", fails: true},
	{name: "create-bad-name", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --create --topic b/c --partitions 1", fails: true},
	{name: "create-colliding", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --create --topic with.dot --replica-assignment 1:2"},
	{name: "create-collides", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --create --topic with_dot --replica-assignment 1:2", fails: true},
	{name: "create-no-partitions", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --create --topic b --partitions 0 --replication-factor 1", fails: true},
	{name: "create-bad-config", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --create --topic b --partitions 1 --config retention.ms=soon", fails: true},
	{name: "create-unknown-config", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --create --topic b --partitions 1 --config retention=1", fails: true},
	{name: "create-min-isr", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --create --topic strict --replica-assignment 3:1:2 --config min.insync.replicas=3"},
	{name: "create-gone-later", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --create --topic gone --replica-assignment 2:3,3:2"},
	{name: "list", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --list"},
	{name: "describe", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --describe --topic a"},
	{name: "describe-missing", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --describe --topic missing", fails: true},
	{name: "describe-overrides", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --describe --topics-with-overrides"},
	{name: "describe-unavailable", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --describe --unavailable-partitions"},
	{name: "fewer-partitions", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --alter --topic a --partitions 2", fails: true},
	{name: "as-many-partitions", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --alter --topic a --partitions 3", fails: true},
	{name: "more-partitions", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --alter --topic a --partitions 4 --replica-assignment 1:2:3,2:3:1,3:1:2,1:3:2"},
	{name: "describe-more", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --describe --topic a", wait: `Partition: 3`},
	{name: "delete", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --delete --topic with.dot"},
	{name: "delete-missing", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --delete --topic missing", fails: true},

	{name: "config-describe", tool: "ConfigCommand", args: "--bootstrap-server BOOTSTRAP --describe --topic a"},
	{name: "config-alter", tool: "ConfigCommand", args: "--bootstrap-server BOOTSTRAP --alter --topic a --add-config max.message.bytes=1234567,segment.bytes=1048576 --delete-config retention.ms"},
	{name: "config-altered", tool: "ConfigCommand", args: "--bootstrap-server BOOTSTRAP --describe --topic a", wait: `max\.message\.bytes`},
	{name: "config-bad", tool: "ConfigCommand", args: "--bootstrap-server BOOTSTRAP --alter --topic a --add-config cleanup.policy=burn", fails: true},
	{name: "config-unknown", tool: "ConfigCommand", args: "--bootstrap-server BOOTSTRAP --alter --topic a --add-config retention=1", fails: true},
	{name: "config-delete-unset", tool: "ConfigCommand", args: "--bootstrap-server BOOTSTRAP --alter --topic a --delete-config flush.ms"},
	{name: "config-missing-topic", tool: "ConfigCommand", args: "--bootstrap-server BOOTSTRAP --describe --topic missing"},
	{name: "config-alter-missing", tool: "ConfigCommand", args: "--bootstrap-server BOOTSTRAP --alter --topic missing --add-config flush.ms=1", fails: true},
	{name: "config-broker-alter", tool: "ConfigCommand", args: "--bootstrap-server BOOTSTRAP --alter --broker 2 --add-config max.connections=1000"},
	{name: "config-broker", tool: "ConfigCommand", args: "--bootstrap-server BOOTSTRAP --describe --broker 2", wait: `max\.connections=1000 sensitive`},
	{name: "config-other-broker", tool: "ConfigCommand", args: "--bootstrap-server BOOTSTRAP --describe --broker 3"},
	{name: "config-defaults-alter", tool: "ConfigCommand", args: "--bootstrap-server BOOTSTRAP --alter --broker-defaults --add-config message.max.bytes=2000000"},
	{name: "config-defaults", tool: "ConfigCommand", args: "--bootstrap-server BOOTSTRAP --describe --broker-defaults", wait: `message\.max\.bytes`},
	{name: "config-read-only", tool: "ConfigCommand", args: "--bootstrap-server BOOTSTRAP --alter --broker 2 --add-config node.id=7", fails: true},
	{name: "config-unknown-broker", tool: "ConfigCommand", args: "--bootstrap-server BOOTSTRAP --alter --broker 9 --add-config max.connections=1000", fails: true},
	{name: "config-broker-delete", tool: "ConfigCommand", args: "--bootstrap-server BOOTSTRAP --alter --broker 2 --delete-config max.connections"},
	{name: "quota-user", tool: "ConfigCommand", args: "--bootstrap-server BOOTSTRAP --alter --user ursula --add-config producer_byte_rate=123456,consumer_byte_rate=77"},
	{name: "quota-user-client", tool: "ConfigCommand", args: "--bootstrap-server BOOTSTRAP --alter --user ursula --client crawler --add-config request_percentage=25"},
	{name: "quota-users", tool: "ConfigCommand", args: "--bootstrap-server BOOTSTRAP --describe --user ursula --client crawler"},
	{name: "quota-bad", tool: "ConfigCommand", args: "--bootstrap-server BOOTSTRAP --alter --user ursula --add-config producer_byte_rate=-5", fails: true},
	{name: "quota-delete", tool: "ConfigCommand", args: "--bootstrap-server BOOTSTRAP --alter --user ursula --delete-config consumer_byte_rate"},

	{name: "elect-elected", tool: "LeaderElectionCommand", args: "--bootstrap-server BOOTSTRAP --election-type preferred --topic a --partition 0"},
	{name: "elect-unclean-healthy", tool: "LeaderElectionCommand", args: "--bootstrap-server BOOTSTRAP --election-type unclean --topic a --partition 1"},
	{name: "elect-all", tool: "LeaderElectionCommand", args: "--bootstrap-server BOOTSTRAP --election-type preferred --all-topic-partitions", ignore: sortedLines},
	{name: "elect-missing", tool: "LeaderElectionCommand", args: "--bootstrap-server BOOTSTRAP --election-type preferred --topic missing --partition 0", fails: true},
	{name: "elect-missing-partition", tool: "LeaderElectionCommand", args: "--bootstrap-server BOOTSTRAP --election-type preferred --topic a --partition 17", fails: true},
	{name: "elect-file", tool: "LeaderElectionCommand", args: "--bootstrap-server BOOTSTRAP --election-type preferred --path-to-json-file ELECT"},

	// Kafka has more features than Stele serves, and the epoch is an offset of the metadata log.
	{name: "features", tool: "FeatureCommand", args: "--bootstrap-server BOOTSTRAP describe", ignore: func(text string) string {
		return regexp.MustCompile(`Epoch: \d+`).ReplaceAllString(only(`metadata|kraft`)(text), "Epoch: N")
	}},
	{name: "features-at-controllers", tool: "FeatureCommand", args: "--bootstrap-controller CONTROLLERS describe", ignore: func(text string) string {
		return regexp.MustCompile(`Epoch: \d+`).ReplaceAllString(only(`metadata|kraft`)(text), "Epoch: N")
	}},
	{name: "features-same", tool: "FeatureCommand", args: "--bootstrap-server BOOTSTRAP upgrade --feature metadata.version=33"},
	{name: "features-downgrade", tool: "FeatureCommand", args: "--bootstrap-server BOOTSTRAP downgrade --feature metadata.version=20", fails: true},
	{name: "features-unknown", tool: "FeatureCommand", args: "--bootstrap-server BOOTSTRAP upgrade --feature no.such.version=1", fails: true},
	{name: "features-future", tool: "FeatureCommand", args: "--bootstrap-server BOOTSTRAP upgrade --metadata 5.9", fails: true, ignore: only(`5\.9`)},
	{name: "features-dry-run", tool: "FeatureCommand", args: "--bootstrap-server BOOTSTRAP upgrade --feature metadata.version=33 --dry-run"},

	// Who leads, since when and how far the log goes is each cluster's own affair; static voters have no directory ids in Kafka.
	{name: "quorum-status", tool: "MetadataQuorumCommand", args: "--bootstrap-server BOOTSTRAP describe --status", wait: `MaxFollowerLag:\s+0`, ignore: quorumText},
	{name: "quorum-status-at-controllers", tool: "MetadataQuorumCommand", args: "--bootstrap-controller CONTROLLERS describe --status", wait: `MaxFollowerLag:\s+0`, ignore: quorumText},
	{name: "quorum-replication", tool: "MetadataQuorumCommand", args: "--bootstrap-server BOOTSTRAP describe --replication", wait: `(?s)Follower.*Follower`, ignore: func(text string) string {
		return sortedLines(regexp.MustCompile(`(?m)^\d ID \d+ \d+ (\S+ \S+ \S+) ?$`).ReplaceAllString(text, "$1"))
	}},

	{name: "cluster-id", tool: "ClusterTool", args: "cluster-id --bootstrap-server BOOTSTRAP"},
	{name: "endpoints", tool: "ClusterTool", args: "list-endpoints --bootstrap-server BOOTSTRAP"},
	{name: "endpoints-of-controllers", tool: "ClusterTool", args: "list-endpoints --bootstrap-controller CONTROLLERS"},
	{name: "endpoints-fenced-at-controllers", tool: "ClusterTool", args: "list-endpoints --include-fenced-brokers --bootstrap-controller CONTROLLERS", fails: true},
	{name: "unregister-unknown", tool: "ClusterTool", args: "unregister --id 9 --bootstrap-server BOOTSTRAP", fails: true},

	{name: "reassign", tool: "ReassignPartitionsCommand", args: "--bootstrap-server BOOTSTRAP --reassignment-json-file PLAN --execute", ignore: func(text string) string {
		// The assignment of before is printed from a set.
		return only(`Successfully|Current`)(text)
	}},
	{name: "reassign-verify", tool: "ReassignPartitionsCommand", args: "--bootstrap-server BOOTSTRAP --reassignment-json-file PLAN --verify", wait: `(?s)gone-0 is completed.*gone-1 is completed|gone-1 is completed.*gone-0 is completed`, ignore: sortedLines},
	{name: "reassign-list", tool: "ReassignPartitionsCommand", args: "--bootstrap-server BOOTSTRAP --list"},
	{name: "reassign-bad", tool: "ReassignPartitionsCommand", args: "--bootstrap-server BOOTSTRAP --reassignment-json-file BADPLAN --execute", fails: true},
	{name: "reassign-cancel", tool: "ReassignPartitionsCommand", args: "--bootstrap-server BOOTSTRAP --reassignment-json-file PLAN --cancel", ignore: sortedLines},
	{name: "describe-reassigned", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --describe --topic gone"},
}

// quorumText keeps of the quorum's status which fields there are and who votes and observes.
func quorumText(text string) string {
	text = regexp.MustCompile(`"directoryId": "ID",? ?`).ReplaceAllString(text, "")
	text = regexp.MustCompile(`(LeaderId|LeaderEpoch|HighWatermark|MaxFollowerLagTimeMs): -?\d+`).ReplaceAllString(text, "$1: N")
	return strings.ReplaceAll(text, ", }", "}")
}

// wounded is what is asked while node 3 is dead, and known to be.
var wounded = []toolStep{
	{name: "dead-endpoints", tool: "ClusterTool", args: "list-endpoints --bootstrap-server BOOTSTRAP"},
	{name: "dead-endpoints-fenced", tool: "ClusterTool", args: "list-endpoints --include-fenced-brokers --bootstrap-server BOOTSTRAP", wait: ` fenced`},
	{name: "dead-describe", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --describe --topic a"},
	{name: "dead-under-replicated", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --describe --under-replicated-partitions --exclude-internal"},
	{name: "dead-at-min-isr", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --describe --at-min-isr-partitions --exclude-internal"},
	{name: "dead-under-min-isr", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --describe --under-min-isr-partitions --exclude-internal"},
	{name: "dead-elect", tool: "LeaderElectionCommand", args: "--bootstrap-server BOOTSTRAP --election-type preferred --topic a --partition 2", fails: true},
	{name: "dead-create", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --create --topic meanwhile --replica-assignment 3:1:2"},
	{name: "dead-create-alone", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --create --topic alone --replica-assignment 3", fails: true},
	{name: "dead-create-placed", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --create --topic placed --partitions 1 --replication-factor 4", fails: true},
	{name: "dead-described", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --describe --topic meanwhile", wait: `Partition: 0`},
	{name: "dead-delete", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --delete --topic gone"},
	{name: "dead-list", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --list", wait: `(?s)\A[^g]*meanwhile[^g]*\z`},
	{name: "dead-quorum", tool: "MetadataQuorumCommand", args: "--bootstrap-server BOOTSTRAP describe --status", ignore: func(text string) string {
		return regexp.MustCompile(`MaxFollowerLag: \d+`).ReplaceAllString(quorumText(text), "MaxFollowerLag: N")
	}},
}

// healed is what is asked when it is back.
var healed = []toolStep{
	{name: "back-describe", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --describe --topic a"},
	{name: "back-under-replicated", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --describe --under-replicated-partitions"},
	{name: "back-elect", tool: "LeaderElectionCommand", args: "--bootstrap-server BOOTSTRAP --election-type preferred --topic a --partition 2"},
	{name: "back-elected", tool: "TopicCommand", args: "--bootstrap-server BOOTSTRAP --describe --topic a", wait: `Partition: 2\s+Leader: 3`},
	{name: "back-endpoints", tool: "ClusterTool", args: "list-endpoints --bootstrap-server BOOTSTRAP"},
}

// TestToolsMeanTheSame runs Apache Kafka's tools against three nodes of Stele and three of Apache Kafka, with the same
// arguments, through the death of a node and its return: what they say, and what the metadata log holds afterwards, is the
// same but for what is drawn or measured.
func TestToolsMeanTheSame(t *testing.T) {
	if onKafka() {
		t.Skip("both clusters are there anyway")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if _, err := binary(); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for name, text := range map[string]string{
		"PLAN":    `{"version":1,"partitions":[{"topic":"gone","partition":0,"replicas":[1,2]},{"topic":"gone","partition":1,"replicas":[3,1,2]}]}`,
		"BADPLAN": `{"version":1,"partitions":[{"topic":"gone","partition":0,"replicas":[1,9]}]}`,
		"ELECT":   `{"partitions":[{"topic":"a","partition":0},{"topic":"a","partition":1}]}`,
	} {
		files[name] = filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(files[name], []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	said, err := bothSay(ctx, t, files)
	if err == nil && !maps.Equal(said[0], said[1]) {
		// What a tool shows may come a little later on one of them: only what differs again is a difference.
		var again [2]map[string]string
		if again, err = bothSay(ctx, t, files); err == nil {
			for name, text := range again[1] {
				if again[0][name] == text {
					said[0][name], said[1][name] = text, text
				}
			}
		}
	}
	var judge *referenceError
	if errors.As(err, &judge) {
		t.Logf("nothing was compared: %v", err) // three nodes of Java beside everything else may be too much for a machine
		return
	}
	if err != nil {
		t.Error(err)
		results.add("kafka-tools", "same-meaning", false)
		return
	}
	for _, name := range slices.Sorted(maps.Keys(said[1])) {
		stele, kafka := said[0][name], said[1][name]
		results.add("kafka-tools", "same-"+name, stele == kafka)
		if strings.HasPrefix(kafka, "(") {
			t.Errorf("%s: Apache Kafka itself: %s", name, kafka)
		}
		if stele != kafka {
			t.Errorf("%s:\n--- Apache Kafka\n%s\n--- Stele\n%s", name, kafka, stele)
		}
	}
	t.Logf("%d outputs compared", len(said[1]))
}

// A referenceError says that the three nodes of Apache Kafka, which are the judge, did not get through.
type referenceError struct{ error }

// bothSay runs every step against three nodes of Stele and three of Apache Kafka, at the same time, and gives what the tools
// said of the one and of the other.
func bothSay(ctx context.Context, t *testing.T, files map[string]string) (said [2]map[string]string, err error) {
	var clusters [2]*three
	var errs [2]error
	var both sync.WaitGroup
	for i, kind := range []string{"Stele", "Apache Kafka"} {
		c, err := newThree(ctx, t, i == 1)
		if err != nil {
			t.Fatal(err)
		}
		clusters[i] = c
		both.Go(func() {
			switch err := c.live(ctx, files); {
			case err == nil:
			case i == 1:
				errs[i] = &referenceError{err}
			default:
				errs[i] = fmt.Errorf("three nodes of %s: %w", kind, err)
			}
		})
	}
	both.Wait()
	said = [2]map[string]string{clusters[0].said, clusters[1].said}
	if errs[0] != nil {
		return said, errs[0]
	}
	return said, errs[1]
}

// live takes a cluster from its start to its end.
func (c *three) live(ctx context.Context, files map[string]string) error {
	start := func(_ int, n target) error {
		limited, cancel := context.WithTimeout(ctx, 90*time.Second)
		defer cancel()
		return n.Start(limited)
	}
	if err := c.each(start); err != nil {
		return err
	}
	if err := c.do(ctx, files, healthy); err != nil {
		return err
	}
	c.nodes[2].Kill()
	if err := c.settled(ctx, "a", 1, 2); err != nil {
		return err
	}
	if err := c.do(ctx, files, wounded); err != nil {
		return err
	}
	if err := start(2, c.nodes[2]); err != nil {
		return err
	}
	for _, topic := range []string{"a", "strict", "meanwhile"} {
		if err := c.settled(ctx, topic, 1, 2, 3); err != nil {
			return err
		}
	}
	if err := c.do(ctx, files, healed); err != nil {
		return err
	}
	if err := c.each(func(_ int, n target) error { return n.Stop() }); err != nil {
		return err
	}
	return c.dump()
}

// dump has the dump tool decode the metadata log of the first node, and keeps what was written of topics, their partitions,
// configs and quotas.
func (c *three) dump() error {
	found, err := filepath.Glob(filepath.Join(c.nodes[0].Data(), "__cluster_metadata-0", "*.log"))
	if err != nil {
		return err
	}
	out, err := c.tools.run("DumpLogSegments", "--cluster-metadata-decoder", "--files", strings.Join(found, ","))
	if err != nil {
		return err
	}
	kinds := map[string][]string{}
	record := regexp.MustCompile(`\{"type":"([A-Z_]+)","version":(\d+),.*`)
	for line := range strings.Lines(out) {
		match := record.FindStringSubmatch(strings.TrimSpace(line))
		if match == nil || strings.Contains(line, "__consumer_offsets") {
			continue
		}
		kinds[match[1]] = append(kinds[match[1]], c.normal(match[0]))
	}
	for _, kind := range []string{"TOPIC_RECORD", "PARTITION_RECORD", "CONFIG_RECORD", "CLIENT_QUOTA_RECORD", "REMOVE_TOPIC_RECORD"} {
		slices.Sort(kinds[kind]) // the records of one request have no order
		c.said["dump-"+kind] = strings.Join(kinds[kind], "\n")
	}
	// Of brokers and features the log says more often how often they came and changed than what.
	for _, kind := range []string{"REGISTER_BROKER_RECORD", "REGISTER_CONTROLLER_RECORD", "FEATURE_LEVEL_RECORD", "PARTITION_CHANGE_RECORD"} {
		versions := map[string]bool{}
		for _, text := range kinds[kind] {
			versions[text[:strings.Index(text, `,"data"`)]] = true
		}
		c.said["dump-"+kind] = strings.Join(slices.Sorted(maps.Keys(versions)), "\n")
	}
	return nil
}
