package cli

import (
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// What holds other commands shows no usage line of its own, and the help of consume says
// where --stop-at-end begins.
func TestHelpSaysWhatIsSo(t *testing.T) {
	t.Parallel()
	for _, group := range []string{"topic", "group", "config", "quota", "cluster", "log"} {
		if r := runAt("127.0.0.1:1", "", group); r.status != 0 || strings.Contains(r.out, "stele "+group+" [flags]") || !strings.Contains(r.out, "stele "+group+" [command]") {
			t.Errorf("%+v", r)
		}
	}
	if r := runAt("127.0.0.1:1", "", "consume", "--help"); !strings.Contains(r.out, "with --stop-at-end: earliest") || !strings.Contains(r.out, "stele consume TOPIC... [flags]") {
		t.Errorf("%+v", r)
	}
}

// An address that is no listener for clients is named as such, not as a lack of SASL.
func TestNoListenerForClients(t *testing.T) {
	t.Parallel()
	sharedNode(t)
	check(t, runAt(shared.http, "", "topic", "list"), 1, []string{"topic", "list"}, shared.http, "does not speak Kafka's protocol")

	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := mute.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 64<<10))
			conn.Close()
		}
	}()
	r := runAt(mute.Addr().String(), "", "topic", "list")
	mute.Close()
	<-done
	check(t, r, 1, []string{"topic", "list"}, "closed the connection at the first request", "a controller's")
}

// Lines larger than a batch is by default go through when they are allowed here and by
// the topic; the topic's own limit is named when it is lower.
func TestLargeLines(t *testing.T) {
	t.Parallel()
	fresh(t, "t-large")
	ok(t, "", "topic", "create", "t-large", "-c", "max.message.bytes=4000000")
	line := strings.Repeat("x", 3_000_000)
	ok(t, line+"\n", "produce", "t-large", "--max-line-bytes", "3000000")
	if out := ok(t, "", "consume", "t-large", "-e"); out != line+"\n" {
		t.Errorf("%d bytes came back", len(out))
	}
	check(t, run(t, strings.Repeat("x", 5_000_000), "produce", "t-large", "--max-line-bytes", "5000000"), 1, []string{"produce"}, "MESSAGE_TOO_LARGE", "max.message.bytes is lower")
	check(t, run(t, line+"y", "produce", "t-large", "--max-line-bytes", "3000000"), 1, []string{"produce"}, "longer than 3000000 bytes")
}

// A line that cannot be read ends the command; those before it are written, and counted.
func TestWrittenBeforeABadLine(t *testing.T) {
	t.Parallel()
	fresh(t, "t-bad")
	check(t, run(t, "a:1\nb:2\nc\nd:4\n", "produce", "t-bad", "-k", ":"), 1, []string{"produce"}, "2 records written, then: line 3 has no key separator")
	check(t, run(t, "c\n"+strings.Repeat("x", 100), "produce", "t-bad", "--max-line-bytes", "10"), 1, []string{"produce"}, "1 records written, then: a line is longer than 10 bytes")
	if out := ok(t, "", "consume", "t-bad", "-e"); out != "1\n2\nc\n" {
		t.Errorf("%q", out)
	}
	check(t, run(t, "x\n", "produce", "t-bad", "-p", "9"), 1, []string{"produce"}, "there is no partition 9", "stele topic describe t-bad")
	if out := ok(t, "v\n", "produce", "t-bad", "-v", "-o", "json"); out != `{"topic":"t-bad","partition":0,"offset":3}`+"\n" {
		t.Errorf("%q", out)
	}
	// Without an answer nobody knows the offset.
	if out := ok(t, "v\n", "produce", "t-bad", "-v", "-a", "0") + ok(t, "v\n", "produce", "t-bad", "-v", "-a", "0", "-o", "json"); out != "t-bad-0 offset -\n"+`{"topic":"t-bad","partition":0,"offset":null}`+"\n" {
		t.Errorf("%q", out)
	}
}

// An offset beyond the end is waited for, and said.
func TestFromBeyondTheEnd(t *testing.T) {
	t.Parallel()
	fresh(t, "t-beyond")
	ok(t, "1\n2\n", "produce", "t-beyond")
	if r := run(t, "", "consume", "t-beyond", "-e", "--from", "99"); r.status != 0 || r.out != "" || r.err != "note: --from 99 is beyond the end: the next offset to be written is 2\n" {
		t.Errorf("%+v", r)
	}
	if r := run(t, "", "consume", "t-beyond", "-e", "--from", "2"); r.status != 0 || r.err != "" {
		t.Errorf("%+v", r)
	}
}

// Names that do not exist are said to be so: of brokers, of settings to remove, of groups
// whose offsets move.
func TestNamesThatDoNotExist(t *testing.T) {
	t.Parallel()
	fresh(t, "t-names")
	ok(t, "1\n2\n", "produce", "t-names")
	fails(t, 1, []string{"config", "get", "--broker", "77"}, "broker 77: there is no such broker", "stele cluster describe")
	fails(t, 1, []string{"config", "set", "--topic", "t-names", "--delete", "retention"}, "no setting is called retention", "stele config get --topic t-names --all")
	r := run(t, "", "config", "get", "--topic", "t-nowhere")
	if strings.Count(r.err, "UNKNOWN_TOPIC_OR_PARTITION") != 1 {
		t.Errorf("%+v", r)
	}
	if out := ok(t, "", "config", "set", "--topic", "t-names", "--dry-run", "retention.ms=5"); !strings.Contains(out, "the change of topic t-names is valid; nothing was changed") {
		t.Errorf("%s", out)
	}
	reset := []string{"group", "reset-offsets", "t-names", "--topic", "t-names", "--to", "9"}
	if r := run(t, "", reset...); r.status != 0 || !strings.Contains(r.err, "there is no group t-names yet") {
		t.Errorf("%+v", r)
	}
	// What is clamped to the end has the end's epoch.
	if r := run(t, "", append(reset, "--execute")...); r.status != 0 || !strings.Contains(r.err, "it was made") || !strings.Contains(r.out, "-     2   0") {
		t.Errorf("%+v", r)
	}
	if r := run(t, "", reset...); r.status != 0 || r.err != "" {
		t.Errorf("%+v", r)
	}
	if out := ok(t, "", "group", "list", "--state", "empty"); !strings.Contains(out, "t-names") {
		t.Errorf("%s", out)
	}
}

// The files of a running node are verified as they change, and dumped: of a data directory those beside the
// partitions. Neither changes anything.
func TestLogOfARunningNode(t *testing.T) {
	t.Parallel()
	fresh(t, "t-running")
	ok(t, "1\n", "produce", "t-running")
	partition := filepath.Join(shared.dir, "t-running-0")
	for _, dir := range []string{shared.dir, partition} {
		if out := ok(t, "", "log", "verify", dir); !strings.Contains(out, shared.dir+" is in use by a running node") || !strings.Contains(out, "every invariant holds") {
			t.Errorf("%s", out)
		}
	}
	if out := ok(t, "", "log", "dump", shared.dir); !strings.Contains(out, "cluster ") || !strings.Contains(out, partition) {
		t.Errorf("%s", out)
	}
	if out := ok(t, "", "log", "dump", "-r", partition); !strings.Contains(out, `value "1"`) {
		t.Errorf("%s", out)
	}
}

// In JSON a list without members is [], and a table shows errors only where there are some.
func TestTopicDescribeIsPlain(t *testing.T) {
	t.Parallel()
	fresh(t, "t-plain")
	ok(t, "", "topic", "create", "t-plain")
	if out := ok(t, "", "topic", "describe", "t-plain", "-o", "json"); strings.Contains(out, "null") || !strings.Contains(out, `"offlineReplicas": []`) {
		t.Errorf("%s", out)
	}
	if out := ok(t, "", "topic", "describe", "t-plain"); strings.Contains(out, "ERROR") {
		t.Errorf("%s", out)
	}
}

// A broker that runs is not forgotten by mistake, nor is the only voter; one that is not registered is named as such.
func TestRunningBrokerIsNotUnregistered(t *testing.T) {
	t.Parallel()
	fails(t, 1, []string{"cluster", "unregister", "1"}, "it runs", "stele cluster describe")
	fails(t, 1, []string{"cluster", "unregister", "77"}, "BROKER_ID_NOT_REGISTERED", "stele cluster describe")
	fails(t, 1, []string{"cluster", "voters", "remove", "1"}, "VOTER_NOT_FOUND (it is the only voter)")
	if view := asJSON[clusterView](t, "cluster", "describe"); len(view.Brokers) != 1 || view.Brokers[0].Fenced {
		t.Errorf("%+v", view.Brokers)
	}
}

// A partition that a member holds and has committed nothing for is shown, without an offset and without a lag.
func TestAssignedWithoutCommit(t *testing.T) {
	t.Parallel()
	fresh(t, "t-uncommitted", "g-uncommitted")
	ok(t, "", "topic", "create", "t-uncommitted", "-p", "2")
	ok(t, lines(3), "produce", "t-uncommitted", "-p", "0")
	client, err := kgo.NewClient(kgo.SeedBrokers(shared.addr), kgo.ConsumerGroup("g-uncommitted"), kgo.ConsumeTopics("t-uncommitted"), kgo.DisableAutoCommit())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	client.PollFetches(t.Context())
	view := asJSON[[]groupView](t, "group", "describe", "g-uncommitted")
	if len(view) != 1 || len(view[0].Offsets) != 2 {
		t.Fatalf("%+v", view)
	}
	for p, o := range view[0].Offsets {
		if o.Partition != int32(p) || o.CommittedOffset != -1 || o.CommittedEpoch != -1 || o.Lag != -1 || o.HighWatermark != int64(3-3*p) || o.MemberID == "" {
			t.Errorf("%+v", o)
		}
	}
}
