//go:build interop

package interop

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/test/golden/kafka"
	"github.com/stelelog/stele/test/reference"
)

// carried are Java clients that live through a change of the server under them (java/Carry.java).
type carried struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// carryClasses compiles java/Carry.java once.
var carryClasses = sync.OnceValues(func() (string, error) {
	cp, err := reference.ClassPath(context.Background())
	if err != nil {
		return "", err
	}
	dir := filepath.Join(scratch, "carry")
	if out, err := exec.Command("javac", "-cp", cp, "-d", dir, "java/Carry.java").CombinedOutput(); err != nil {
		return "", fmt.Errorf("javac: %w\n%s", err, out)
	}
	return cp + ":" + dir, nil
})

func newCarried(t *testing.T, addr string) *carried {
	t.Helper()
	cp, err := carryClasses()
	if err != nil {
		t.Fatal(err)
	}
	script, err := reference.Script()
	if err != nil {
		t.Fatal(err)
	}
	c := &carried{cmd: exec.Command(script, "java", "-cp", cp, "Carry", addr)}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	c.cmd.Stderr = clientLog("carry")
	in, err1 := c.cmd.StdinPipe()
	out, err2 := c.cmd.StdoutPipe()
	if err := errors.Join(err1, err2, c.cmd.Start()); err != nil {
		t.Fatal(err)
	}
	c.in, c.out = in, bufio.NewScanner(out)
	t.Cleanup(c.kill)
	return c
}

func (c *carried) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

// do runs one command and returns the offsets it is answered with.
func (c *carried) do(format string, args ...any) ([]string, error) {
	command := fmt.Sprintf(format, args...)
	if _, err := fmt.Fprintln(c.in, command); err != nil {
		return nil, err
	}
	if !c.out.Scan() {
		return nil, fmt.Errorf("%s: the clients have ended: %v", command, c.out.Err())
	}
	rest, ok := strings.CutPrefix(c.out.Text(), "ok")
	if !ok {
		return nil, fmt.Errorf("%s: %s", command, c.out.Text())
	}
	return strings.Fields(rest), nil
}

// follows says whether offsets are those from a number on.
func follows(got []string, err error, from, count int) error {
	var want []string
	for i := range count {
		want = append(want, fmt.Sprint(from+i))
	}
	if err == nil && !slices.Equal(got, want) {
		err = fmt.Errorf("offsets %v instead of %v", got, want)
	}
	return err
}

// kafkasOwn starts Stele on Kafka's own server.properties, without what Stele refuses: an authorizer.
func (s *stele) kafkasOwn(node *reference.Node, data string) error {
	text, err := os.ReadFile(filepath.Join(node.Dir, "server.properties"))
	if err != nil {
		return err
	}
	var kept []string
	for line := range strings.Lines(string(text)) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch name {
		case "authorizer.class.name", "super.users", "allow.everyone.if.no.acl.found":
		case "log.dirs":
			kept = append(kept, "log.dirs="+data+"\n")
		default:
			kept = append(kept, line)
		}
	}
	return os.WriteFile(s.configFile, []byte(strings.Join(kept, "")), 0o644)
}

// takeoverTest is one data directory on its way between Apache Kafka and Stele.
type takeoverTest struct {
	*testing.T
	ctx  context.Context
	node *reference.Node
	s    *stele
	java *carried
	want kafka.State
	at   kafka.Producer
	next int // offset in topic java
	read int // of its group

	protocol string // of group switched
}

func (x *takeoverTest) check(name string, err error) {
	x.Helper()
	if err != nil {
		x.Errorf("%s: %v", name, err)
	}
	results.add("takeover", name, err == nil)
}

// observe compares what clients see with what they saw before. Groups' members move on by themselves.
func (x *takeoverTest) observe(addr string) error {
	got, err := kafka.Observe(x.ctx, addr, kafka.Classic, kafka.Static)
	if err != nil {
		return err
	}
	differ := func(what string, want, got any) {
		if !reflect.DeepEqual(want, got) {
			w, _ := json.Marshal(want)
			g, _ := json.Marshal(got)
			err = errors.Join(err, fmt.Errorf("%s: %s instead of %s", what, g, w))
		}
	}
	differ("cluster", x.want.ClusterID, got.ClusterID)
	differ("node", x.want.Broker, got.Broker)
	differ("groups", x.want.Groups, got.Groups)
	differ("broker settings", x.want.BrokerConfigs, got.BrokerConfigs)
	differ("features", x.want.Features, got.Features)
	differ("topics", slices.Sorted(maps.Keys(x.want.Topics)), slices.Sorted(maps.Keys(got.Topics)))
	for topic := range x.want.Topics {
		if topic != "compacted" { // whose cleaner is at work
			differ("topic "+topic, x.want.Topics[topic], got.Topics[topic])
		}
	}
	differ("topic compacted", newestByKey(x.want.Topics["compacted"]), newestByKey(got.Topics["compacted"]))
	return err
}

// newestByKey is what compaction must leave of a topic of one partition, but for tombstones.
func newestByKey(topic kafka.Topic) map[string]kafka.Record {
	newest := map[string]kafka.Record{}
	for _, p := range topic.Partitions {
		for _, r := range p.Records {
			if r.Codec = 0; r.Value == nil { // the cleaner may write it anew
				delete(newest, *r.Key)
			} else {
				newest[*r.Key] = r
			}
		}
	}
	return newest
}

// carryOn has the clients of before go on, and takes note of what is there then.
func (x *takeoverTest) carryOn(addr string) error {
	got, err := x.java.do("produce java 5")
	if err := follows(got, err, x.next, 5); err != nil {
		return fmt.Errorf("the producer in Java: %w", err)
	}
	x.next += 5
	got, err = x.java.do("consume java java-group classic 5")
	if err := follows(got, err, x.read, 5); err != nil {
		return fmt.Errorf("the consumer in Java: %w", err)
	}
	x.read += 5
	// A group whose members used the newer protocol under Kafka, and the classic one since.
	got, err = x.java.do("consume java switched %s 5", x.protocol)
	if err := errors.Join(follows(got, err, x.read-5, 5), x.leave("switched")); err != nil {
		return fmt.Errorf("the group that changes its protocol: %w", err)
	}
	x.protocol = "classic"
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		return err
	}
	defer cl.Close()
	if base, err := kafka.Send(x.ctx, cl, "idempotent", x.at, x.at.LastBase, "first", "second"); err != nil || base != x.at.LastOffset {
		return fmt.Errorf("the retry of a batch came to %d instead of %d: %v", base, x.at.LastOffset, err)
	}
	base, err := kafka.Send(x.ctx, cl, "idempotent", x.at, x.at.Next, "first", "second")
	if err != nil || base != x.at.LastOffset+2 {
		return fmt.Errorf("the batch after it came to %d instead of %d: %v", base, x.at.LastOffset+2, err)
	}
	x.at.LastBase, x.at.LastOffset, x.at.Next = x.at.Next, base, x.at.Next+2
	for _, codec := range codecs {
		if err := (franz{addr}).produce(x.ctx, batch{topic: "codecs", codec: codec, records: plainRecords(codec)[:3]}); err != nil {
			return err
		}
	}
	if err := (franz{addr}).produce(x.ctx, batch{topic: "compacted", codec: "gzip", records: plainRecords("compacted")[:3]}); err != nil {
		return err
	}
	if err := x.producers(cl); err != nil {
		return err
	}
	x.want, err = kafka.Observe(x.ctx, addr, kafka.Classic, kafka.Static)
	return err
}

func (x *takeoverTest) leave(group string) error {
	_, err := x.java.do("close %s", group)
	return err
}

// producers asks the broker what it knows of the idempotent producer, where it serves that.
func (x *takeoverTest) producers(cl *kgo.Client) error {
	adm := kadm.NewClient(cl)
	served, err := adm.ApiVersions(x.ctx)
	if err != nil {
		return err
	}
	for _, broker := range served {
		if _, _, ok := broker.KeyVersions(kmsg.DescribeProducers.Int16()); !ok {
			return nil
		}
	}
	described, err := adm.DescribeProducers(x.ctx, kadm.TopicsSet{"idempotent": {0: {}}})
	if err != nil {
		return err
	}
	for _, p := range described.SortedProducers() {
		if p.ProducerID != x.at.ID {
			continue
		}
		if p.ProducerEpoch != x.at.Epoch || p.LastSequence != x.at.Next-1 || p.CurrentTxnStartOffset >= 0 {
			return fmt.Errorf("producer %+v, which came to %+v", p, x.at)
		}
		return nil
	}
	return fmt.Errorf("producer %d is not known", x.at.ID)
}

func (x *takeoverTest) verify(dir string) error {
	path, err := binary()
	if err != nil {
		return err
	}
	if out, err := exec.Command(path, "log", "verify", dir).CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// dumps compares what Kafka's DumpLogSegments and `stele log dump` show of every file here.
func (x *takeoverTest) dumps(dir string) error {
	kinds := map[string][]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		ext, in := filepath.Ext(path), filepath.Base(filepath.Dir(path))
		switch {
		case ext == ".checkpoint", ext == ".log" && strings.HasPrefix(in, "__cluster_metadata-"):
			kinds["--cluster-metadata-decoder --deep-iteration"] = append(kinds["--cluster-metadata-decoder --deep-iteration"], path)
		case ext == ".log" && strings.HasPrefix(in, "__consumer_offsets-"):
			kinds["--offsets-decoder --deep-iteration"] = append(kinds["--offsets-decoder --deep-iteration"], path)
		case ext == ".log" && strings.HasPrefix(in, "__transaction_state-"):
			kinds["--transaction-log-decoder --deep-iteration"] = append(kinds["--transaction-log-decoder --deep-iteration"], path)
		case ext == ".log":
			kinds["--print-data-log --deep-iteration"] = append(kinds["--print-data-log --deep-iteration"], path)
		case strings.HasPrefix(in, "__cluster_metadata-"): // Kafka's own tool stumbles over its preallocated indexes
		case slices.Contains([]string{".index", ".timeindex", ".txnindex", ".snapshot"}, ext):
			kinds[""] = append(kinds[""], path)
		}
		return nil
	})
	if err != nil {
		return err
	}
	path, err := binary()
	if err != nil {
		return err
	}
	files, entries := 0, 0
	for flags, paths := range kinds {
		args := append([]string{"tool", "DumpLogSegments", "--files", strings.Join(paths, ",")}, strings.Fields(flags)...)
		said, err := reference.Run(x.ctx, args...)
		if err != nil {
			return err
		}
		byFile, at := map[string]*bytes.Buffer{}, ""
		for line := range strings.Lines(said) {
			if name, ok := strings.CutPrefix(line, "Dumping "); ok {
				at = strings.TrimSpace(name)
				byFile[at] = &bytes.Buffer{}
			} else if at != "" {
				byFile[at].WriteString(line)
			}
		}
		shown, err := exec.Command(path, append([]string{"log", "dump", "--records", "--output", "json"}, paths...)...).Output()
		if err != nil {
			return fmt.Errorf("log dump: %w", err)
		}
		ours := map[string][]byte{}
		for line := range bytes.Lines(shown) {
			var entry struct{ File string }
			if err := json.Unmarshal(line, &entry); err != nil {
				return err
			}
			ours[entry.File] = append(ours[entry.File], line...)
		}
		for _, file := range paths {
			if byFile[file] == nil {
				return fmt.Errorf("DumpLogSegments did not get to %s", file)
			}
			n, err := kafka.CompareDump(byFile[file].Bytes(), ours[file])
			if err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			files, entries = files+1, entries+n
		}
	}
	x.Logf("%d entries of %d files are shown alike", entries, files)
	if entries < 300 {
		return fmt.Errorf("only %d entries were compared", entries)
	}
	return nil
}

func (x *takeoverTest) startKafka() {
	x.Helper()
	ctx, cancel := context.WithTimeout(x.ctx, 90*time.Second)
	defer cancel()
	if err := x.node.Start(ctx); err != nil {
		text, _ := os.ReadFile(filepath.Join(x.node.Dir, "server.log"))
		x.Fatalf("%v\n%s", err, tail(string(text), 40))
	}
}

// TestS030_stele_takes_over: Stele, started with Kafka's own server.properties on the data directory of an Apache
// Kafka that was stopped, has its topics with every record, offset, epoch and setting, its groups and its idempotent
// producers, under clients that never noticed; so after each restart. Apache Kafka goes on with what Stele left, and
// Stele with what Kafka, killed this time, left of that. At last a directory with an open transaction and a group of the
// consumer protocol that has a member: both go on.
func TestS030_stele_takes_over(t *testing.T) {
	if onKafka() {
		t.Skip("Apache Kafka does not take over from itself here")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if _, err := binary(); err != nil {
		t.Fatal(err)
	}
	node, err := reference.NewNode(ctx, filepath.Join(t.TempDir(), "kafka"), "", append(slices.Clone(kafka.Settings), "group.consumer.session.timeout.ms=45000")...)
	if err != nil {
		t.Fatal(err)
	}
	if err := standalone(ctx, node); err != nil {
		t.Fatal(err)
	}
	x := &takeoverTest{T: t, ctx: ctx, node: node, protocol: "consumer"}
	x.startKafka()
	t.Cleanup(node.Kill)
	x.java = newCarried(t, node.Addr())
	if x.at, err = kafka.Workload(ctx, node.Addr()); err != nil {
		t.Fatal(err)
	}
	if err := createTopic(ctx, node.Addr(), "java", 1, nil); err != nil {
		t.Fatal(err)
	}
	if err := x.carryOn(node.Addr()); err != nil {
		t.Fatal(err)
	}
	if err := node.Stop(); err != nil {
		t.Fatal(err)
	}
	// A partition of a topic that the cluster does not know.
	if err := os.CopyFS(filepath.Join(node.Data(), "stray-0"), os.DirFS(filepath.Join(node.Data(), "empty-0"))); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(node.Data(), "stray-0", "partition.metadata"), []byte("version: 0\ntopic_id: c3RyYXktdG9waWMtaWQtMQ"), 0o644); err != nil {
		t.Fatal(err)
	}

	x.s = newStele(t, nil)
	x.s.dir, x.s.port, x.s.cport, x.s.configFile = node.Data(), node.Port, node.ControllerPort, filepath.Join(t.TempDir(), "server.properties")
	if err := x.s.kafkasOwn(node, node.Data()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.s.Kill)
	x.check("kafkas-directory-verifies", x.verify(node.Data()))
	for round := range 3 {
		if err := x.s.Start(ctx); err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprintf("-start-%d", round+1)
		x.check("contents"+name, x.observe(x.s.Addr()))
		x.check("carries-on"+name, x.carryOn(x.s.Addr()))
		if err := x.s.Stop(); err != nil {
			t.Fatal(err)
		}
		x.check("verify"+name, x.verify(x.s.Data()))
	}
	x.check("dumps", x.dumps(x.s.Data()))
	strays, err := filepath.Glob(filepath.Join(node.Data(), "stray-0.*-stray"))
	if err != nil || len(strays) != 1 {
		t.Errorf("strays: %v %v", strays, err)
	}

	x.startKafka()
	x.check("contents-back", x.observe(node.Addr()))
	x.check("carries-on-back", x.carryOn(node.Addr()))
	node.Kill()
	x.check("verify-back", x.verify(node.Data()))
	if err := x.s.Start(ctx); err != nil {
		t.Fatal(err)
	}
	x.check("contents-after-a-kill", x.observe(x.s.Addr()))
	x.check("carries-on-after-a-kill", x.carryOn(x.s.Addr()))
	if err := x.s.Stop(); err != nil {
		t.Fatal(err)
	}
	x.check("verify-after-a-kill", x.verify(x.s.Data()))

	x.startKafka()
	x.check("contents-back-again", x.observe(node.Addr()))
	for _, command := range []string{"open codecs tx-open", "consume java modern-java consumer 1"} {
		if _, err := x.java.do("%s", command); err != nil {
			t.Fatal(err)
		}
	}
	x.java.kill()
	if err := node.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := x.s.Start(ctx); err != nil {
		t.Fatal(err)
	}
	x.check("in-use", x.inUse())
	if err := x.s.Stop(); err != nil {
		t.Fatal(err)
	}
	x.check("verify-in-use", x.verify(x.s.Data()))
}

// standalone formats a node anew as Kafka's own instructions do: its voters stand in the log (kraft.version 1). The
// golden directory is of a static quorum.
func standalone(ctx context.Context, node *reference.Node) error {
	settings := fmt.Sprintf("controller.quorum.voters=\ncontroller.quorum.bootstrap.servers=%s\n", node.ControllerAddr())
	for _, name := range []string{"extra.properties", "server.properties"} {
		file := filepath.Join(node.Dir, name)
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if err := os.WriteFile(file, append(text, settings...), 0o644); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(node.Data()); err != nil {
		return err
	}
	_, err := reference.Run(ctx, "tool", "StorageTool", "format", "--standalone", "-t", "SteleTakesOver4400000A", "-c", filepath.Join(node.Dir, "server.properties"))
	return err
}

// inUse looks for the open transaction and the group with a member that Kafka left.
func (x *takeoverTest) inUse() error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(x.s.Addr()))
	if err != nil {
		return err
	}
	defer cl.Close()
	admin := kadm.NewClient(cl)
	transactions, err := admin.DescribeTransactions(x.ctx, "tx-open")
	if err != nil {
		return err
	}
	if tx := transactions["tx-open"]; tx.Err != nil || tx.State != "Ongoing" && tx.State != "CompleteAbort" {
		return fmt.Errorf("the open transaction: %+v", tx)
	}
	groups, err := admin.DescribeConsumerGroups(x.ctx, "modern-java")
	if err != nil {
		return err
	}
	if g := groups["modern-java"]; g.Err != nil || len(g.Members) != 1 {
		return fmt.Errorf("the group with a member: %+v", g)
	}
	return nil
}
