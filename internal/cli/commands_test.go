package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/stelelog/stele/internal/server"
)

func lines(n int) string {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		fmt.Fprintln(&b, i)
	}
	return b.String()
}

// Every command has an example, and a help that is printed with status 0.
func TestEveryHelpHasExamples(t *testing.T) {
	t.Parallel()
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.HasParent() && cmd.Example == "" {
			t.Errorf("%s has no example", cmd.CommandPath())
		}
		for _, child := range cmd.Commands() {
			walk(child)
		}
	}
	walk(newRoot(&env{}))
	if r := runAt("127.0.0.1:1", "", "topic", "create", "--help"); r.status != 0 || !strings.Contains(r.out, "stele topic create orders --partitions 12") {
		t.Errorf("%+v", r)
	}
}

// Topics are created, listed, described, altered and deleted; tables and JSON hold the
// same facts.
func TestTopics(t *testing.T) {
	t.Parallel()
	fresh(t, "t-orders")
	ok(t, "", "topic", "create", "t-orders", "-p", "3", "-c", "retention.ms=86400000")
	if out := ok(t, "", "topic", "list"); !strings.Contains(out, "TOPIC ") || !strings.Contains(out, "t-orders") || strings.Contains(out, "__consumer") {
		t.Errorf("%s", out)
	}
	listed := asJSON[[]map[string]any](t, "topic", "list")
	if !slices.ContainsFunc(listed, func(m map[string]any) bool {
		return m["topic"] == "t-orders" && m["partitions"] == 3.0 && m["internal"] == false
	}) {
		t.Errorf("%v", listed)
	}
	out := ok(t, "", "topic", "describe", "t-orders")
	for _, words := range []string{"PARTITION", "HIGH WATERMARK", "retention.ms=86400000", "survives kill -9, not power loss"} {
		if !strings.Contains(out, words) {
			t.Errorf("%q is missing in %s", words, out)
		}
	}
	ok(t, "", "topic", "alter", "t-orders", "--partitions", "5", "--config", "flush.messages=1", "--delete-config", "retention.ms")
	views := asJSON[[]topicView](t, "topic", "describe", "t-orders")
	if len(views) != 1 || len(views[0].Partitions) != 5 || !strings.Contains(views[0].Durability, "fsync") || len(views[0].Configs) != 1 || views[0].Partitions[4].HighWatermark != 0 {
		t.Errorf("%+v", views)
	}
	ok(t, "", "topic", "create", "t-orders", "--if-not-exists")
	fails(t, 1, []string{"topic", "create", "t-orders"}, "create topic t-orders", "TOPIC_ALREADY_EXISTS", "choose another name")
	fails(t, 1, []string{"topic", "create", "no/slash"}, "INVALID_TOPIC_EXCEPTION", "use letters")
	fails(t, 1, []string{"topic", "create", "t-wide", "-r", "3"}, "INVALID_REPLICATION_FACTOR", "stele cluster describe")
	fails(t, 1, []string{"topic", "describe", "t-nowhere"}, "UNKNOWN_TOPIC_OR_PARTITION", "stele topic list")
	ok(t, "", "topic", "delete", "t-orders")
	fails(t, 1, []string{"topic", "delete", "t-orders"}, "UNKNOWN_TOPIC_OR_PARTITION")
	ok(t, "", "topic", "delete", "t-orders", "--if-exists")
}

// What is used wrongly ends with status 2 and one line that says how to do better.
func TestUsedWrongly(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args  []string
		words string
	}{
		{[]string{"fly"}, `there is no command "fly" (see`},
		{[]string{"prodcue", "x"}, "did you mean `stele produce`?"},
		{[]string{"topic", "describ", "x"}, "topic has no command \"describ\"; did you mean `stele topic describe`?"},
		{[]string{"completion", "tcsh"}, `completion has no command "tcsh"`},
		{[]string{"topic", "list", "orders"}, `topic list takes no arguments, but was given "orders"`},
		{[]string{"produce"}, "stele: produce: TOPIC is missing"},
		{[]string{"produce", "x", "y"}, "produce takes one TOPIC, but was given 2 arguments"},
		{[]string{"consume", ""}, "consume: a name is empty"},
		{[]string{"topic", "create", "x", "-p", "few"}, `invalid argument "few" for "-p, --partitions" flag: invalid syntax (see`},
		{[]string{"consume", "x", "--count", "-1"}, "0 for no limit"},
		{[]string{"consume", "x", "--format", "100%"}, "write %% for a percent sign"},
		{[]string{"produce", "x", "--max-line-bytes", "0"}, "use 1 to"},
		{[]string{"produce", "x", "--partition", "-2"}, "-1 to choose by key"},
		{[]string{"group", "list", "--state", "Happy"}, "use Empty, PreparingRebalance"},
		{[]string{"config", "set", "--topic", "x", "retention.ms"}, `"retention.ms" is no setting`},
		{[]string{"topic", "list", "--nope"}, "--help"},
		{[]string{"topic", "create"}, "topic create: TOPIC is missing"},
		{[]string{"topic", "list", "--output", "xml"}, "table or json"},
		{[]string{"topic", "alter", "x"}, "nothing to change"},
		{[]string{"topic", "create", "x", "-c", "retention"}, "name=value"},
		{[]string{"produce", "x", "--acks", "2"}, "all, 1 or 0"},
		{[]string{"produce", "x", "--compression", "rar"}, "zstd"},
		{[]string{"produce", "x", "--header", "h"}, "name=value"},
		{[]string{"produce", "x", "--file", "/nowhere/at/all"}, "--file"},
		{[]string{"consume", "x", "--from", "yesterday"}, "earliest, latest, an offset"},
		{[]string{"consume", "x", "--from", "+3"}, "a shift needs a position"},
		{[]string{"consume", "x", "--format", "%q"}, "is no field"},
		{[]string{"consume", "x", "--isolation", "dirty"}, "read_committed"},
		{[]string{"consume", "x", "-g", "g", "-p", "0"}, "exclude each other"},
		{[]string{"group", "reset-offsets", "g"}, "--to earliest"},
		{[]string{"config", "get"}, "--topic, --broker, --all-brokers"},
		{[]string{"config", "set", "--topic", "x"}, "NAME=VALUE"},
		{[]string{"log", "dump", "/nowhere/at/all"}, "log dump"},
		{[]string{"log", "verify", "/nowhere/at/all"}, "log verify"},
		{[]string{"serve", "--set", "num.partitions=none"}, "num.partitions"},
		{[]string{"serve", "--config", "/nowhere/at/all"}, "--config"},
		{[]string{"serve", "--log-level", "loud"}, "debug, info, warn or error"},
	} {
		check(t, runAt("127.0.0.1:1", "", c.args...), 2, c.args, c.words)
	}
	check(t, runAt("nowhere", "", "topic", "list"), 2, []string{"topic", "list"}, "host:port")
	check(t, runAt("", "", "topic", "list"), 2, []string{"topic", "list"}, "--bootstrap-server is empty")
}

// Keys, values, headers, null tokens, partitions and acks go through as written, and
// come back in a format and as JSON with offset and leader epoch.
func TestProduceAndConsume(t *testing.T) {
	t.Parallel()
	fresh(t, "t-kv")
	ok(t, "", "topic", "create", "t-kv", "-p", "2")
	ok(t, "k1:v1\nk2:NULL\nNULL:v3\n", "produce", "t-kv", "-k", ":", "--null", "NULL", "-H", "a=1", "-H", "b=", "-p", "1", "--acks", "1", "-z", "lz4")
	out := ok(t, "", "consume", "t-kv", "--stop-at-end", "--format", `%t/%p/%o@%e %k=%v [%h]\t100%%`)
	if want := "t-kv/1/0@0 k1=v1 [a=1,b=]\t100%\nt-kv/1/1@0 k2=null [a=1,b=]\t100%\nt-kv/1/2@0 null=v3 [a=1,b=]\t100%\n"; out != want {
		t.Errorf("got %q, want %q", out, want)
	}
	out = ok(t, "", "consume", "t-kv", "-e", "-p", "1", "--from", "1", "-n", "1", "-o", "json")
	var r jsonRecord
	if err := json.Unmarshal([]byte(out), &r); err != nil || r.Offset != 1 || r.LeaderEpoch != 0 || *r.Key != "k2" || r.Value != nil || len(r.Headers) != 2 {
		t.Errorf("%s %v", out, err)
	}
	if out = ok(t, "", "consume", "t-kv", "-e", "-p", "0"); out != "" {
		t.Errorf("an empty partition gave %q", out)
	}
	if out = ok(t, "", "consume", "t-kv", "-e", "--from", "latest"); out != "" {
		t.Errorf("from the end came %q", out)
	}
	if out = ok(t, "x\n", "produce", "t-kv", "--verbose", "-p", "0"); out != "t-kv-0 offset 0\n" {
		t.Errorf("%q", out)
	}
	file := filepath.Join(t.TempDir(), "in.txt")
	if err := os.WriteFile(file, []byte("\xff\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out = ok(t, "", "produce", "t-kv", "-p", "0", "--file", file, "-o", "json", "--acks", "0"); !strings.Contains(out, `"records": 1`) {
		t.Errorf("%q", out)
	}
	fails(t, 1, []string{"consume", "t-kv", "-e", "-p", "7"}, "no partition 7", "stele topic describe")
	fails(t, 1, []string{"consume", "t-absent", "-e"}, "UNKNOWN_TOPIC_OR_PARTITION")
	check(t, run(t, "no separator\n", "produce", "t-kv", "-k", ":"), 1, []string{"produce"}, "line 1 has no key separator")
	check(t, run(t, strings.Repeat("x", 100), "produce", "t-kv", "--max-line-bytes", "10"), 1, []string{"produce"}, "--max-line-bytes")
	check(t, run(t, strings.Repeat("x", 1<<20+1), "produce", "t-kv"), 1, []string{"produce"}, "--max-line-bytes", "max.message.bytes")
}

// 100,000 records go through a topic that did not exist, for each codec, and come back
// alone and in a group; the group begins where it stopped, and ends at once when it
// stands at the end.
func TestHundredThousandRecords(t *testing.T) {
	t.Parallel()
	fresh(t, "t-numbers-none", "t-numbers-zstd")
	want := lines(100_000)
	for _, codec := range []string{"none", "zstd"} {
		topic := "t-numbers-" + codec
		ok(t, want, "produce", topic, "-z", codec)
		if out := ok(t, "", "consume", topic, "--stop-at-end"); out != want {
			t.Errorf("%s: %d bytes came back, %d were written", codec, len(out), len(want))
		}
		if out := ok(t, "", "consume", topic, "-g", topic, "-e"); out != want {
			t.Errorf("%s: %d bytes came back in a group", codec, len(out))
		}
		if out := ok(t, "", "consume", topic, "-g", topic, "-e"); out != "" {
			t.Errorf("%s: a group at its end got %d bytes", codec, len(out))
		}
		ok(t, "more\n", "produce", topic)
		if out := ok(t, "", "consume", topic, "-g", topic, "-e"); out != "more\n" {
			t.Errorf("%s: a group that goes on got %d bytes", codec, len(out))
		}
	}
}

// Groups are listed and described with offsets, epochs and lag; their offsets move only
// with --execute; with members they are neither moved nor deleted.
func TestGroups(t *testing.T) {
	t.Parallel()
	fresh(t, "t-groups", "g-groups")
	ok(t, "", "topic", "create", "t-groups", "-p", "2")
	ok(t, lines(10), "produce", "t-groups", "-p", "0")
	ok(t, "", "consume", "t-groups", "-g", "g-groups", "-n", "4")
	type offsets = []groupOffsetView
	view := asJSON[[]groupView](t, "group", "describe", "g-groups")
	if len(view) != 1 || view[0].State != "Empty" || len(view[0].Members) != 0 {
		t.Fatalf("%+v", view)
	}
	at := slices.IndexFunc(view[0].Offsets, func(o groupOffsetView) bool { return o.Partition == 0 })
	if at < 0 || view[0].Offsets[at].CommittedOffset != 4 || view[0].Offsets[at].CommittedEpoch != 0 || view[0].Offsets[at].Lag != 6 {
		t.Errorf("%+v", offsets(view[0].Offsets))
	}
	if out := ok(t, "", "group", "describe", "g-groups"); !strings.Contains(out, "COMMITTED") || !strings.Contains(out, "t-groups") {
		t.Errorf("%s", out)
	}
	if out := ok(t, "", "group", "list"); !strings.Contains(out, "g-groups") {
		t.Errorf("%s", out)
	}
	if out := ok(t, "", "group", "reset-offsets", "g-groups", "-t", "t-groups", "--to", "-3"); !strings.Contains(out, "nothing was changed") {
		t.Errorf("%s", out)
	}
	ok(t, "", "group", "reset-offsets", "g-groups", "-t", "t-groups", "--to", "earliest", "--execute")
	if out := ok(t, "", "consume", "t-groups", "-g", "g-groups", "-e"); out != lines(10) {
		t.Errorf("after the reset came %q", out)
	}
	ok(t, "", "group", "delete", "g-groups")
	fails(t, 1, []string{"group", "describe", "g-groups"}, "g-groups", "stele group list")
	fails(t, 1, []string{"group", "delete", "g-groups"}, "GROUP_ID_NOT_FOUND")
}

// Settings are shown with their source, changed, checked and removed.
func TestConfigs(t *testing.T) {
	t.Parallel()
	fresh(t, "t-config")
	ok(t, "", "topic", "create", "t-config")
	ok(t, "", "config", "set", "-t", "t-config", "retention.ms=1000")
	if out := ok(t, "", "config", "get", "-t", "t-config"); !strings.Contains(out, "retention.ms") || !strings.Contains(out, "1000") {
		t.Errorf("%s", out)
	}
	got := asJSON[[]configView](t, "config", "get", "-t", "t-config", "retention.ms")
	if len(got) != 1 || got[0].Value != "1000" || got[0].Source != "DYNAMIC_TOPIC_CONFIG" {
		t.Errorf("%+v", got)
	}
	ok(t, "", "config", "set", "-t", "t-config", "--dry-run", "retention.ms=5")
	fails(t, 1, []string{"config", "set", "-t", "t-config", "retention.ms=soon"}, "INVALID_CONFIG", "retention.ms", "--topic TOPIC --all")
	readOnly := run(t, "", "config", "set", "--broker", "1", "num.partitions=4")
	check(t, readOnly, 1, []string{"config", "set"}, "INVALID_REQUEST", "num.partitions is read-only")
	if strings.Contains(readOnly.err, "malformed") {
		t.Errorf("the request was not malformed: %s", readOnly.err)
	}
	fails(t, 1, []string{"config", "get", "-t", "t-config", "retention.msec"}, "no setting is called retention.msec", "--all")
	ok(t, "", "config", "set", "-t", "t-config", "--delete", "retention.ms")
	if got := asJSON[[]configView](t, "config", "get", "-t", "t-config"); len(got) != 0 {
		t.Errorf("%+v", got)
	}
	if got := asJSON[[]configView](t, "config", "get", "--broker", "1", "--all"); len(got) < 200 {
		t.Errorf("a broker has %d settings", len(got))
	}
}

// The cluster shows its broker and its quorum.
func TestClusterDescribe(t *testing.T) {
	t.Parallel()
	view := asJSON[clusterView](t, "cluster", "describe")
	if len(view.Brokers) != 1 || view.Brokers[0].Fenced || view.QuorumLeader != 1 || len(view.Quorum) == 0 || view.Leaderless != 0 {
		t.Errorf("%+v", view)
	}
	if out := ok(t, "", "cluster", "describe"); !strings.Contains(out, "running") || !strings.Contains(out, "leader") {
		t.Errorf("%s", out)
	}
}

// The shell is offered the topics and groups that exist.
func TestCompletion(t *testing.T) {
	t.Parallel()
	ok(t, "x\n", "produce", "t-complete-me")
	ok(t, "", "consume", "t-complete-me", "-g", "g-complete-me", "-e")
	bootstrap := sharedNode(t)
	for _, c := range [][]string{
		{"topic", "describe", "t-comp", "t-complete-me"},
		{"consume", "t-comp", "t-complete-me"},
		{"group", "describe", "g-comp", "g-complete-me"},
		{"consume", "t", "--group", "g-comp", "g-complete-me"},
	} {
		words, want := c[:len(c)-1], c[len(c)-1]
		at := slices.Concat([]string{"__complete"}, words[:len(words)-1], []string{"--bootstrap-server=" + bootstrap}, words[len(words)-1:])
		if words[len(words)-2] == "--group" {
			at = slices.Concat([]string{"__complete", "--bootstrap-server=" + bootstrap}, words)
		}
		var out, errs bytes.Buffer
		if status := Execute(at, strings.NewReader(""), &out, &errs); status != 0 || !strings.HasPrefix(out.String(), want+"\n") {
			t.Errorf("%v: status %d, %q %q", at, status, out.String(), errs.String())
		}
	}
	if r := runAt(bootstrap, "", "completion", "bash"); r.status != 0 || !strings.Contains(r.out, "bash completion") {
		t.Errorf("status %d", r.status)
	}
}

// A reader that has seen enough, such as head, ends a consumer quietly.
func TestClosedPipeIsNoFailure(t *testing.T) {
	t.Parallel()
	ok(t, lines(5), "produce", "t-pipe")
	r, w := io.Pipe()
	r.Close()
	var errs bytes.Buffer
	if status := Execute([]string{"consume", "t-pipe", "--from", "earliest", "-b", sharedNode(t)}, strings.NewReader(""), w, &errs); status != 0 || errs.Len() > 0 {
		t.Errorf("status %d, %q", status, errs.String())
	}
}

// An address where nobody listens, and an address that a broker handed out and that
// cannot be reached, are told apart: the second names the setting to change.
func TestUnreachableAddresses(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := l.Addr().String()
	l.Close()
	check(t, runAt(closed, "", "topic", "list"), 1, []string{"topic", "list"}, "no broker answers at "+closed, "connection refused", "stele serve", "--bootstrap-server")

	n, err := startFor(t.Context(), t.TempDir(), "advertised.listeners=PLAINTEXT://"+closed)
	if err != nil {
		t.Fatal(err)
	}
	defer n.stop()
	addr := n.server.Addr("PLAINTEXT").String()
	for _, args := range [][]string{{"topic", "create", "x"}, {"group", "list"}} {
		check(t, runAt(addr, "", args...), 1, args, "the broker at "+addr, "connect to "+closed, "advertised.listeners")
	}
}

// Metrics and health are on the HTTP listener.
func TestHTTP(t *testing.T) {
	t.Parallel()
	ok(t, "x\n", "produce", "t-http")
	get := func(path string) (int, string) {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		response, err := client.Get("http://" + shared.http + path)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		return response.StatusCode, string(body)
	}
	for _, path := range []string{"/readyz", "/livez", "/debug/pprof/"} {
		if code, body := get(path); code != 200 {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	code, body := get("/metrics")
	if code != 200 {
		t.Fatalf("%d %s", code, body)
	}
	for _, name := range []string{"stele_connections ", `stele_request_seconds_count{api="Produce"}`, `stele_topic_records_in_total{topic="t-http"} 1`, `stele_topic_bytes_in_total{topic="t-http"} `, "stele_records_in_total ", "stele_fetch_sessions ", "stele_group_offsets ", "stele_cluster_topics ", `stele_cluster_brokers{state="active"} 1`, `stele_cluster_brokers{state="fenced"} 0`, "stele_cluster_leaderless_partitions 0", "stele_topics_shown ", `stele_leader_changes_total{role="leader"}`, `stele_log_events_total{event="log_truncated"}`, "stele_log_dir_online{", "stele_active_controller 1", "stele_broker_state{", "go_goroutines ", "stele_leaders "} {
		if !strings.Contains(body, "\n"+name) {
			t.Errorf("%s is missing in the metrics", name)
		}
	}
	known := map[string]bool{}
	for _, m := range slices.Concat(server.Metrics(), nodeMetrics.Metrics(), partitionCatalog.Metrics()) {
		known[m.Name] = true
	}
	_, partitions := get("/metrics/partitions?topic=t-http")
	for _, want := range []string{"stele_partition_log_end_offset{partition=\"0\",topic=\"t-http\"} 1\n", "stele_partition_high_watermark{partition=\"0\",topic=\"t-http\"} 1\n",
		"stele_partition_leader{partition=\"0\",topic=\"t-http\"} 1\n", "stele_partition_in_sync_replicas{partition=\"0\",topic=\"t-http\"} 1\n", "stele_partition_segments{partition=\"0\",topic=\"t-http\"} 1\n"} {
		if !strings.Contains(partitions, want) {
			t.Errorf("%s is missing in the partitions' metrics:\n%s", want, partitions)
		}
	}
	for line := range strings.Lines(body + partitions) {
		if name, ok := strings.CutPrefix(line, "# TYPE stele_"); ok {
			if name, _, _ = strings.Cut("stele_"+name, " "); !known[name] {
				t.Errorf("%s is not in docs/metrics.md", name)
			}
		}
	}
	for path, want := range map[string]int{"/metrics/partitions": 400, "/metrics/partitions?topic=t-http-none": 404} {
		if code, body := get(path); code != want {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
}
