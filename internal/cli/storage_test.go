package cli

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/config"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/record"
)

// offline runs a command that talks to nobody.
func offline(args ...string) result {
	var out, errs bytes.Buffer
	return result{Execute(args, strings.NewReader(""), &out, &errs), out.String(), errs.String()}
}

// Directories are formatted before the first start and shown, twice only where that is asked for; a node starts on them as
// they are, under the ids that were shown; one of another cluster or node is named.
func TestStorage(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	if r := offline("storage", "info", "-d", dir); r.status != 1 || !strings.Contains(r.err, "is not formatted: `stele serve` formats") {
		t.Errorf("%+v", r)
	}
	if r := offline("storage", "format", "-d", dir, "--set", "cluster.id=here", "-o", "json"); r.status != 0 || !strings.Contains(r.out, `"cluster": "here"`) || !strings.Contains(r.out, dir) {
		t.Errorf("%+v", r)
	}
	id := properties(t, dir).DirectoryID
	if r := offline("storage", "info", "-d", dir); r.status != 0 || !strings.Contains(r.out, id.String()) || !strings.Contains(r.out, "a controller's") {
		t.Errorf("%+v", r)
	}
	for args, want := range map[string]string{"cluster.id=there": "is of another cluster", "node.id=4": "is of another node"} {
		if r := offline("storage", "info", "-d", dir, "--set", args); r.status != 1 || !strings.Contains(r.err, want) {
			t.Errorf("%s: %+v", args, r)
		}
	}
	if r := offline("storage", "format", "-d", dir); r.status != 1 || !strings.Contains(r.err, "it is formatted already") {
		t.Errorf("%+v", r)
	}
	if r := offline("storage", "format", "-d", dir, "--ignore-formatted"); r.status != 0 {
		t.Errorf("%+v", r)
	}
	n, err := startFor(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	n.stop()
	if properties(t, dir).DirectoryID != id || n.plan.ClusterID != "here" {
		t.Errorf("the node started as %s of %s", properties(t, dir).DirectoryID, n.plan.ClusterID)
	}
	fresh := filepath.Join(t.TempDir(), "data")
	for _, args := range [][]string{{"--metadata-version", "6"}, {"--metadata-version", "34"}, {"--metadata-version", "30", "--set", "controller.quorum.voters=1@a:9093,2@b:9093", "--set", "cluster.id=c"}} {
		if r := offline(append([]string{"storage", "format", "-d", fresh}, args...)...); r.status != 2 || !strings.Contains(r.err, "--metadata-version") {
			t.Errorf("%v: %+v", args, r)
		}
	}
	if r := offline("storage", "format", "-d", fresh, "--set", "controller.quorum.voters=1@a:9093,2@b:9093", "--set", "cluster.id=c"); r.status != 0 {
		t.Errorf("%+v", r)
	}
	if r := offline("storage", "info", "-d", fresh); r.status != 0 || !strings.Contains(r.out, "waits for the other voters") {
		t.Errorf("%+v", r)
	}
}

// A cluster formatted at an older level writes the records' versions of that level: brokers, partitions, changes of a
// registration.
func TestM011_formatted_at_each_level(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		level                       int
		register, partition, change int16
	}{{7, 1, 0, 0}, {8, 2, 0, 0}, {14, 2, 0, 0}, {16, 2, 0, 0}, {17, 3, 1, 0}, {22, 3, 1, 0}, {23, 3, 2, 0}, {29, 3, 2, 0}, {30, 4, 2, 0}, {33, 4, 2, 0}} {
		dir := filepath.Join(t.TempDir(), "data")
		if r := offline("storage", "format", "-d", dir, "--metadata-version", fmt.Sprint(c.level)); r.status != 0 {
			t.Fatalf("level %d: %+v", c.level, r)
		}
		n, err := startFor(t.Context(), dir)
		if err != nil {
			t.Fatalf("level %d: %v", c.level, err)
		}
		r := runAt(n.server.Addr("PLAINTEXT").String(), "", "topic", "create", "t", "-c", "retention.ms=1000000")
		n.stop()
		if r.status != 0 {
			t.Errorf("level %d: %s", c.level, r.err)
		}
		versions := map[string]int16{}
		for _, one := range metadataRecords(t, dir) {
			versions[metadata.RecordName(one.rec)] = one.version
			if f, ok := one.rec.(*metadata.FeatureLevelRecord); ok && f.Name == metadata.FeatureMetadataVersion && int(f.FeatureLevel) != c.level {
				t.Errorf("level %d: the log begins at %d", c.level, f.FeatureLevel)
			}
		}
		_, topic := versions["TopicRecord"]
		_, controller := versions["RegisterControllerRecord"]
		if versions["RegisterBrokerRecord"] != c.register || versions["PartitionRecord"] != c.partition || versions["BrokerRegistrationChangeRecord"] != c.change || !topic || controller != (c.level >= 15) {
			t.Errorf("level %d: %v", c.level, versions)
		}
	}
}

type versionedRecord struct {
	rec     metadata.Record
	version int16
}

// metadataRecords reads the metadata log of a node that is stopped.
func metadataRecords(t *testing.T, dir string) (all []versionedRecord) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "__cluster_metadata-0", "*.log"))
	if err != nil || len(files) == 0 {
		t.Fatal("no metadata log", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for b, err := range record.Batches(text) {
			if err != nil {
				t.Fatal(err)
			}
			if b.IsControl() {
				continue
			}
			it := record.NewRecordIterator(b, record.Limits{})
			for it.Next() {
				rec, version, err := metadata.DecodeRecord(it.Record().Value)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, versionedRecord{rec, version})
			}
			it.Close()
		}
	}
	return all
}

// Features are listed, raised and lowered by name, all or none; what cannot be is said in the controller's words.
func TestClusterFeatures(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	if r := offline("storage", "format", "-d", dir, "--metadata-version", "23"); r.status != 0 {
		t.Fatalf("%+v", r)
	}
	n, err := startFor(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer n.stop()
	addr := n.server.Addr("PLAINTEXT").String()
	shows := func(name, level string) {
		t.Helper()
		until(t, name+" is at "+level, func() bool {
			for _, line := range strings.Split(runAt(addr, "", "cluster", "features", "describe").out, "\n") {
				if words := strings.Fields(line); len(words) == 3 && words[0] == name && words[1] == level {
					return true
				}
			}
			return false
		})
	}
	shows("metadata.version", "23")
	for _, c := range []struct {
		args   string
		status int
		words  string
	}{
		{"upgrade metadata.version=33 --dry-run", 0, "nothing was changed"},
		{"upgrade metadata.version=34", 1, "only supports versions 7-33"},
		{"upgrade metadata.version=22", 1, "Can't downgrade the version of this feature"},
		{"downgrade metadata.version=22", 1, "Unsupported metadata.version downgrade from 23 to 22"},
		{"upgrade metadata.version=29 no.such=1", 1, "does not support this feature"},
		{"upgrade metadata.version", 2, "write name=level"},
		{"upgrade metadata.version=x", 2, "write name=level"},
		{"upgrade metadata.version=29 eligible.leader.replicas.version=1", 0, "upgraded metadata.version=29"},
	} {
		if r := runAt(addr, "", append([]string{"cluster", "features"}, strings.Fields(c.args)...)...); r.status != c.status || !strings.Contains(r.out+r.err, c.words) {
			t.Errorf("%s: %+v", c.args, r)
		}
	}
	shows("metadata.version", "29")
	shows("eligible.leader.replicas.version", "1")
	if r := runAt(addr, "", "cluster", "features", "downgrade", "eligible.leader.replicas.version=0", "metadata.version=25"); r.status != 0 {
		t.Errorf("%+v", r)
	}
	shows("metadata.version", "25")
	shows("eligible.leader.replicas.version", "0")
}

// Leaders are elected for all partitions or for those that are named; what needs none is no failure, and what cannot be is.
func TestPartitionElect(t *testing.T) {
	t.Parallel()
	fresh(t, "t-elect")
	ok(t, "", "topic", "create", "t-elect", "-p", "2")
	if out := ok(t, "", "partition", "elect", "t-elect-0", "t-elect-1"); strings.Count(out, "not needed") != 2 {
		t.Errorf("%s", out)
	}
	if out := ok(t, "", "partition", "elect", "--unclean", "t-elect-0"); !strings.Contains(out, "not needed") {
		t.Errorf("%s", out)
	}
	ok(t, "", "partition", "elect", "--all", "-o", "json")
	fails(t, 1, []string{"partition", "elect", "t-elect-0", "t-elect-9"}, "elect a leader of t-elect-9", "UNKNOWN_TOPIC_OR_PARTITION")
	for _, args := range [][]string{{}, {"--all", "t-elect-0"}, {"--all", "--unclean"}, {"t"}, {"t-x"}, {"-1"}} {
		if r := run(t, "", append([]string{"partition", "elect"}, args...)...); r.status != 2 {
			t.Errorf("%v: %+v", args, r)
		}
	}
}

// A controller that has no vote, its disk being an emptied one, says in /readyz what it waits for and what to do.
func TestReadyzOfAControllerWithoutAVote(t *testing.T) {
	t.Parallel()
	tr := newTrio(t)
	tr.apart = true
	tr.start(1, 2, 3)
	tr.stop(3)
	if err := os.RemoveAll(tr.dataDir(3)); err != nil {
		t.Fatal(err)
	}
	for _, when := range []string{"emptied", "started again"} {
		c, _, err := config.Parse(config.Sources{DataDir: tr.dataDir(3), Set: []string{
			fmt.Sprintf("listeners=CONTROLLER://127.0.0.1:%d", tr.ports[3]), "http.listen=", "node.id=3", "cluster.id=trio", "process.roles=controller", "controller.quorum.voters=" + tr.voters(),
		}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		n, err := startNode(ctx, c, slog.New(slog.DiscardHandler), nil, nil)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		if missing := strings.Join(n.readiness.Missing(), "\n"); !strings.Contains(missing, "start: this controller has no vote") || !strings.Contains(missing, fmt.Sprintf("stele cluster voters add 127.0.0.1:%d", tr.ports[3])) {
			t.Errorf("%s: /readyz says %q", when, missing)
		}
		n.stop()
	}
}
