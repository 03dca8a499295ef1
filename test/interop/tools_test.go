//go:build interop

package interop

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stelelog/stele/test/reference"
)

// TestTools runs Apache Kafka's command line tools, in order: each row may build on those before it.
func TestTools(t *testing.T) {
	target := newTarget(t)
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
	defer cancel()
	f := franz{target.Addr()}
	if err := createTopic(ctx, target.Addr(), "tools", 2, nil); err != nil {
		t.Fatal(err)
	}
	if err := f.produce(ctx, batch{topic: "tools", codec: "none", records: plainRecords("tools")[:10]}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.group(ctx, "tools", "tools-group", 10); err != nil {
		t.Fatal(err)
	}
	// Three records of a transaction and its marker.
	served := mustCapabilities(t, target.Addr())
	more := batch{topic: "tools", codec: "none", records: plainRecords("more")[:3], transactionalID: "tools-tx"}
	if err := f.produce(ctx, more); err != nil {
		t.Fatal(err)
	}
	deletions := filepath.Join(t.TempDir(), "delete.json")
	err := os.WriteFile(deletions, []byte(`{"version":1,"partitions":[{"topic":"tools","partition":0,"offset":4}]}`), 0o644)
	if err != nil {
		t.Fatal(err)
	}

	server := []string{"--bootstrap-server", target.Addr()}
	controller := []string{"--bootstrap-controller", target.ControllerAddr()}
	rows := []struct {
		name  string
		tool  string
		at    []string // where it connects; put before the arguments, or after them when after is set
		after bool
		args  string
		again string   // what it is run with once more when it found nothing in the time that args gives it
		want  []string // expressions that the output holds
		fails bool     // it exits with an error, whose text want is about
	}{
		{name: "topics-create", tool: "TopicCommand", at: server,
			args: "--create --topic made --partitions 2 --replication-factor 1 --config retention.ms=123456",
			want: []string{`Created topic made\.`}},
		{name: "topics-create-again", tool: "TopicCommand", at: server, args: "--create --topic made --partitions 2",
			want: []string{`Topic 'made' already exists`}, fails: true},
		{name: "topics-list", tool: "TopicCommand", at: server, args: "--list", want: []string{`(?m)^made$`, `(?m)^tools$`}},
		{name: "topics-describe", tool: "TopicCommand", at: server, args: "--describe --topic made",
			want: []string{`PartitionCount: 2\s+ReplicationFactor: 1`, `retention\.ms=123456`, `Partition: 1\s+Leader: 1\s+Replicas: 1\s+Isr: 1`}},
		{name: "topics-create-if-not-exists", tool: "TopicCommand", at: server, args: "--create --if-not-exists --topic made --partitions 7"},
		{name: "topics-alter-fewer", tool: "TopicCommand", at: server, args: "--alter --topic made --partitions 1",
			want: []string{`InvalidPartitionsException`}, fails: true},
		{name: "topics-alter", tool: "TopicCommand", at: server, args: "--alter --topic made --partitions 4"},
		{name: "topics-describe-altered", tool: "TopicCommand", at: server, args: "--describe --topic made",
			want: []string{`PartitionCount: 4`}},
		{name: "topics-under-replicated", tool: "TopicCommand", at: server, args: "--describe --under-replicated-partitions",
			want: []string{`^$`}},
		{name: "configs-alter-topic", tool: "ConfigCommand", at: server, args: "--alter --topic made --add-config max.message.bytes=2000000",
			want: []string{`Completed updating config for topic made\.`}},
		{name: "configs-describe-topic", tool: "ConfigCommand", at: server, args: "--describe --topic made",
			want: []string{`max\.message\.bytes=2000000 sensitive=false synonyms=\{DYNAMIC_TOPIC_CONFIG:max\.message\.bytes=2000000, DEFAULT_CONFIG:message\.max\.bytes=1048588\}`}},
		{name: "configs-unset-topic", tool: "ConfigCommand", at: server, args: "--alter --topic made --delete-config max.message.bytes",
			want: []string{`Completed updating config for topic made\.`}},
		{name: "configs-refuse", tool: "ConfigCommand", at: server, args: "--alter --topic made --add-config retention.ms=never",
			want: []string{`Invalid value never for configuration retention\.ms`}, fails: true},
		{name: "configs-describe-broker", tool: "ConfigCommand", at: server, args: "--describe --broker 1 --all",
			want: []string{`log\.segment\.bytes=1073741824`, `node\.id=1`}},
		{name: "configs-alter-brokers", tool: "ConfigCommand", at: server, args: "--alter --broker-defaults --add-config message.max.bytes=1500000",
			want: []string{`Completed updating default config for brokers in the cluster`}},
		{name: "configs-describe-brokers", tool: "ConfigCommand", at: server, args: "--describe --broker-defaults",
			want: []string{`message\.max\.bytes=1500000`}},
		{name: "offsets-latest", tool: "GetOffsetShell", at: server, args: "--topic tools", want: []string{`(?m)^tools:0:14$`, `(?m)^tools:1:0$`}},
		{name: "offsets-earliest", tool: "GetOffsetShell", at: server, args: "--topic tools --time earliest", want: []string{`(?m)^tools:0:0$`}},
		{name: "offsets-max-timestamp", tool: "GetOffsetShell", at: server, args: "--topic tools --time max-timestamp", want: []string{`(?m)^tools:0:\d+$`}},
		{name: "offsets-timestamp", tool: "GetOffsetShell", at: server, args: "--topic-partitions tools:0 --time 1000",
			want: []string{`^tools:0:0$`}},
		{name: "groups-list", tool: "ConsumerGroupCommand", at: server, args: "--list", want: []string{`(?m)^tools-group$`}},
		{name: "groups-list-types", tool: "GroupsCommand", at: server, args: "--list", want: []string{`tools-group\s+Classic\s+consumer`}},
		{name: "groups-describe", tool: "ConsumerGroupCommand", at: server, args: "--describe --group tools-group",
			want: []string{`tools-group\s+tools\s+0\s+10\s+14\s+4\s`}},
		{name: "groups-state", tool: "ConsumerGroupCommand", at: server, args: "--describe --state --group tools-group",
			want: []string{`tools-group\s+\S*127\.0\.0\.1:\d+ +\(1\)\s.*Empty\s+0`}},
		{name: "groups-reset-dry-run", tool: "ConsumerGroupCommand", at: server,
			args: "--reset-offsets --group tools-group --all-topics --shift-by -2 --dry-run", want: []string{`tools-group\s+tools\s+0\s+8`}},
		{name: "groups-reset", tool: "ConsumerGroupCommand", at: server, args: "--reset-offsets --group tools-group --topic tools --to-offset 3 --execute",
			want: []string{`tools-group\s+tools\s+0\s+3`}},
		{name: "groups-describe-reset", tool: "ConsumerGroupCommand", at: server, args: "--describe --group tools-group",
			want: []string{`tools-group\s+tools\s+0\s+3\s+14\s+11\s`}},
		{name: "groups-offsets-topic", tool: "ConsoleConsumer", at: server,
			args:  "--topic __consumer_offsets --from-beginning --timeout-ms 3000 --formatter org.apache.kafka.tools.consumer.OffsetsMessageFormatter",
			again: "--topic __consumer_offsets --from-beginning --timeout-ms 30000 --formatter org.apache.kafka.tools.consumer.OffsetsMessageFormatter",
			want:  []string{`"group":"tools-group","topic":"tools","partition":\d`}},
		{name: "groups-delete-offsets", tool: "ConsumerGroupCommand", at: server, args: "--delete-offsets --group tools-group --topic tools",
			want: []string{`tools\s+0\s+Successful`}},
		{name: "groups-delete", tool: "ConsumerGroupCommand", at: server, args: "--delete --group tools-group",
			want: []string{`Deletion of requested consumer groups \('tools-group'\) was successful`}},
		{name: "records-delete", tool: "DeleteRecordsCommand", at: server, args: "--offset-json-file " + deletions,
			want: []string{`partition: tools-0\s+low_watermark: 4`}},
		{name: "offsets-earliest-deleted", tool: "GetOffsetShell", at: server, args: "--topic tools --time earliest", want: []string{`(?m)^tools:0:4$`}},
		{name: "log-dirs", tool: "LogDirsCommand", at: server, args: "--describe --topic-list tools",
			want: []string{`"partition":"tools-0","size":\d{3,},"offsetLag":0,"isFuture":false`, `"error":null`}},
		{name: "api-versions", tool: "BrokerApiVersionsCommand", at: server,
			want: []string{`\(id: 1 rack: null isFenced: false\)`, `Produce\(0\): 0 to \d+ \[usable: \d+\]`, `Fetch\(1\): 4 to \d+`}},
		{name: "quorum-status", tool: "MetadataQuorumCommand", at: server, args: "describe --status",
			want: []string{`LeaderId:\s+1`, `LeaderEpoch:\s+\d+`, `HighWatermark:\s+\d+`, `CurrentVoters:\s+\[\{"id": 1`}},
		{name: "quorum-replication", tool: "MetadataQuorumCommand", at: controller, args: "describe --replication",
			want: []string{`1\s+\S+\s+\d+\s+0\s.*Leader`}},
		{name: "features", tool: "FeatureCommand", at: server, args: "describe",
			want: []string{`Feature: metadata\.version\s+SupportedMinVersion: \S+\s+SupportedMaxVersion: \S+\s+FinalizedVersionLevel: \S+\s+Epoch: \d+`}},
		{name: "cluster-id", tool: "ClusterTool", at: server, after: true, args: "cluster-id", want: []string{`Cluster ID: [A-Za-z0-9_-]{22}`}},
		{name: "cluster-endpoints", tool: "ClusterTool", at: server, after: true, args: "list-endpoints", want: []string{`1\s+127\.0\.0\.1\s+\d+\s+null\s+unfenced\s+broker`}},
		{name: "cluster-controllers", tool: "ClusterTool", at: controller, after: true, args: "list-endpoints", want: []string{`1\s+127\.0\.0\.1\s+\d+\s+null\s+controller`}},
		{name: "leader-election", tool: "LeaderElectionCommand", at: server, args: "--election-type preferred --topic tools --partition 0",
			want: []string{`Valid replica already elected for partitions tools-0`}},
		{name: "reassignments-list", tool: "ReassignPartitionsCommand", at: server, args: "--list", want: []string{`No partition reassignments found\.`}},
		{name: "quotas-alter", tool: "ConfigCommand", at: server, args: "--alter --user ursula --add-config producer_byte_rate=123456",
			want: []string{`Completed updating config for user ursula\.`}},
		{name: "quotas-describe", tool: "ConfigCommand", at: server, args: "--describe --user ursula", want: []string{`producer_byte_rate=123456`}},
		{name: "quotas-client-alter", tool: "ConfigCommand", at: server, args: "--alter --client crawler --add-config consumer_byte_rate=54321",
			want: []string{`Completed updating config for client crawler\.`}},
		{name: "quotas-client-describe", tool: "ConfigCommand", at: server, args: "--describe --client crawler", want: []string{`consumer_byte_rate=54321`}},
		{name: "group-config-alter", tool: "ConfigCommand", at: server, args: "--alter --group configured --add-config consumer.session.timeout.ms=50000",
			want: []string{`Completed updating config for group configured\.`}},
		{name: "group-config-list", tool: "ConfigCommand", at: server, args: "--describe --entity-type groups",
			want: []string{`Dynamic configs for group configured are:\s+consumer\.session\.timeout\.ms=50000`}},
		{name: "metrics-subscription-alter", tool: "ClientMetricsCommand", at: server, args: "--alter --name subs --interval 60000 --metrics org.apache.kafka.consumer.",
			want: []string{`Altered client metrics config for subs\.`}},
		{name: "metrics-subscription-describe", tool: "ClientMetricsCommand", at: server, args: "--describe --name subs", want: []string{`interval\.ms=60000`}},
		{name: "broker-logger", tool: "ConfigCommand", at: server, args: "--describe --broker-logger 1", want: []string{`root=\w+ sensitive=false`}},
		{name: "controller-configs", tool: "ConfigCommand", at: controller, args: "--describe --broker 1 --all", want: []string{`log\.retention\.bytes=-1`}},
		{name: "transactions-list", tool: "TransactionsCommand", at: server, args: "list", want: []string{`tools-tx\s+1\s+\d+\s+CompleteCommit`}},
		{name: "transactions-describe", tool: "TransactionsCommand", at: server, args: "describe --transactional-id tools-tx",
			want: []string{`1\s+tools-tx\s+\d+\s+\d+\s+CompleteCommit`}},
		{name: "transactions-producers", tool: "TransactionsCommand", at: server, args: "describe-producers --topic tools --partition 0",
			want: []string{`(?m)^\d+\s+\d+\s+-?\d+\s+-?\d+\s+\d+\s+None`}},
		{name: "verifiable-producer", tool: "VerifiableProducer", at: server, args: "--topic made --max-messages 200 --acks -1",
			want: []string{`"sent":200,"acked":200`}},
		{name: "verifiable-consumer", tool: "VerifiableConsumer", at: server, args: "--topic made --group-id verifiable --max-messages 200",
			want: []string{`"name":"partitions_assigned"`, `"name":"offsets_committed".*"success":true`, `"name":"shutdown_complete"`}},
		{name: "producer-performance", tool: "ProducerPerformance", at: server,
			args: "--topic made --num-records 5000 --record-size 300 --throughput -1 --command-property compression.type=zstd",
			want: []string{`(?m)^5000 records sent`}},
		{name: "consumer-performance", tool: "ConsumerPerformance", at: server, args: "--topic made --num-records 5000 --group performance --timeout 30000",
			want: []string{`(?m)^\d{4}-.*, 5\d{3}, `}},
		{name: "end-to-end-latency", tool: "EndToEndLatency", at: server,
			args: "--topic made --num-records 300 --producer-acks all --record-size 100",
			want: []string{`(?m)^Avg latency: \d+\.\d+ ms$`, `(?m)^Percentiles: 50th = \d+, 99th = \d+, 99\.9th = \d+$`}},
		{name: "topics-delete", tool: "TopicCommand", at: server, args: "--delete --topic made"},
		{name: "topics-describe-deleted", tool: "TopicCommand", at: server, args: "--describe --topic made",
			want: []string{`Topic 'made' does not exist as expected`}, fails: true},
	}
	for _, r := range rows {
		command := func(more string) []string {
			if r.after {
				return slices.Concat([]string{"tool", r.tool}, strings.Fields(more), r.at)
			}
			return slices.Concat([]string{"tool", r.tool}, r.at, strings.Fields(more))
		}
		args := command(r.args)
		if gap, missing := served.missing(r.name); missing {
			short, done := context.WithTimeout(ctx, 30*time.Second)
			_, err := reference.Run(short, args...)
			if err := refused(short, err); err != nil {
				t.Errorf("%s, without %s: %v", r.name, gap.capability, err)
				results.add("kafka-tools", r.name, false)
			}
			done()
			continue
		}
		out, err := reference.Run(ctx, args...)
		problem := judge(out, err, r.fails, r.want)
		if problem != "" && r.again != "" {
			out, err = reference.Run(ctx, command(r.again)...)
			problem = judge(out, err, r.fails, r.want)
		}
		if problem != "" {
			t.Errorf("%s: %s", r.name, problem)
			results.add("kafka-tools", r.name, false)
			continue
		}
		results.add("kafka-tools", r.name, true)
	}
}

// judge says what is wrong with the outcome of a tool, "" when nothing is.
func judge(out string, err error, fails bool, want []string) string {
	text := strings.TrimSpace(out)
	switch {
	case err != nil && !fails:
		return fmt.Sprintf("%v\n%s", err, out)
	case err != nil:
		text += "\n" + err.Error()
	}
	for _, w := range want {
		if !regexp.MustCompile(w).MatchString(text) {
			return fmt.Sprintf("the output does not match %q:\n%s", w, text)
		}
	}
	return ""
}
