package cli

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/config"
	"github.com/stelelog/stele/internal/quorum"
)

// trio is three nodes in this process that form one cluster.
type trio struct {
	t     *testing.T
	dir   string
	ports map[int]int // of controller listeners
	nodes map[int]*node
	// apart: nodes 1 to 3 are controllers only, those from 11 on brokers only.
	apart bool
}

func newTrio(t *testing.T) *trio {
	tr := &trio{t: t, dir: t.TempDir(), ports: map[int]int{}, nodes: map[int]*node{}}
	var held []net.Listener
	for i := 1; i <= 3; i++ {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		held, tr.ports[i] = append(held, l), l.Addr().(*net.TCPAddr).Port
	}
	for _, l := range held {
		l.Close()
	}
	t.Cleanup(tr.stopAll)
	return tr
}

func (tr *trio) voters() string {
	var parts []string
	for i := 1; i <= 3; i++ {
		parts = append(parts, fmt.Sprintf("%d@127.0.0.1:%d", i, tr.ports[i]))
	}
	return strings.Join(parts, ",")
}

func (tr *trio) dataDir(i int) string { return filepath.Join(tr.dir, fmt.Sprint(i)) }

// try starts node i and waits until it is ready; its log goes to w.
func (tr *trio) try(ctx context.Context, i int, w *bytes.Buffer, set ...string) error {
	role := fmt.Sprintf("listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:%d", tr.ports[i])
	switch {
	case tr.apart && i > 10:
		set = append([]string{"process.roles=broker"}, set...)
		role = "listeners=PLAINTEXT://127.0.0.1:0"
	case tr.apart:
		set = append([]string{"process.roles=controller"}, set...)
		role = fmt.Sprintf("listeners=CONTROLLER://127.0.0.1:%d", tr.ports[i])
	}
	c, _, err := config.Parse(config.Sources{DataDir: tr.dataDir(i), Set: append([]string{
		role, "http.listen=", fmt.Sprint("node.id=", i),
		"cluster.id=trio", "broker.heartbeat.interval.ms=200", "controller.quorum.voters=" + tr.voters(),
	}, set...)})
	if err != nil {
		return err
	}
	n, err := startNode(ctx, c, slog.New(slog.NewTextHandler(w, nil)), nil, nil)
	if err != nil {
		return err
	}
	if err := n.ready(ctx); err != nil {
		n.stop()
		return err
	}
	tr.nodes[i] = n
	return nil
}

// start starts the nodes named, all at a time.
func (tr *trio) start(ids ...int) {
	tr.t.Helper()
	tr.startWith(nil, ids...)
}

// startWith is start with settings.
func (tr *trio) startWith(set []string, ids ...int) {
	tr.t.Helper()
	ctx, cancel := context.WithTimeout(tr.t.Context(), 30*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	started := make([]*trio, len(ids))
	errs := make([]error, len(ids))
	for k, i := range ids {
		one := *tr
		one.nodes = map[int]*node{}
		started[k] = &one
		wg.Go(func() { errs[k] = one.try(ctx, i, new(bytes.Buffer), set...) })
	}
	wg.Wait()
	for k, i := range ids {
		if errs[k] != nil {
			tr.t.Fatalf("node %d: %v", i, errs[k])
		}
		tr.nodes[i] = started[k].nodes[i]
	}
}

func (tr *trio) stop(i int) {
	tr.nodes[i].stop()
	delete(tr.nodes, i)
}

func (tr *trio) stopAll() {
	var wg sync.WaitGroup
	for _, n := range tr.nodes {
		wg.Go(n.stop)
	}
	wg.Wait()
	clear(tr.nodes)
}

func (tr *trio) bootstrap() string {
	var addrs []string
	for _, n := range tr.nodes {
		addrs = append(addrs, n.server.Addr("PLAINTEXT").String())
	}
	return strings.Join(addrs, ",")
}

func (tr *trio) ok(args ...string) string {
	tr.t.Helper()
	r := runAt(tr.bootstrap(), "", args...)
	if r.status != 0 {
		tr.t.Fatalf("stele %s: status %d: %s", strings.Join(args, " "), r.status, r.err)
	}
	return r.out
}

// leader is the node that is the active controller.
func (tr *trio) leader() int {
	tr.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) {
		for i, n := range tr.nodes {
			if n.host != nil && n.host.Status().Active {
				return i
			}
		}
		<-time.After(5 * time.Millisecond)
	}
	tr.t.Fatal("no active controller")
	return 0
}

// Three nodes that are started with the same list of voters form one cluster by themselves; it goes on without its
// active controller, remembers everything, and all three agree when that one is back.
func TestThreeNodesFormOneCluster(t *testing.T) {
	t.Parallel()
	tr := newTrio(t)
	tr.start(1, 2, 3)
	tr.ok("topic", "create", "before", "--partitions", "3", "--replication-factor", "1")
	first := tr.leader()
	epoch := tr.nodes[first].host.Status().LeaderEpoch
	tr.stop(first)
	second := tr.leader()
	if now := tr.nodes[second].host.Status().LeaderEpoch; second == first || now <= epoch {
		t.Errorf("node %d leads in epoch %d after node %d in %d", second, now, first, epoch)
	}
	tr.ok("topic", "create", "between", "--partitions", "3", "--replication-factor", "1")
	tr.start(first)
	listed := tr.ok("topic", "list")
	for _, topic := range []string{"before", "between"} {
		if !strings.Contains(listed, topic) {
			t.Errorf("%s is not in the list: %s", topic, listed)
		}
	}
	described := tr.ok("cluster", "describe")
	if strings.Count(described, "running") != 3 || strings.Count(described, "voter") != 2 {
		t.Errorf("cluster describe:\n%s", described)
	}
	tr.stopAll()
	tr.start(1, 2, 3)
	if listed := tr.ok("topic", "list"); !strings.Contains(listed, "between") {
		t.Errorf("after all were stopped: %s", listed)
	}
}

// A topic of three replicas goes on without any one of them: what was acknowledged is there, and who comes back catches up
// and is in sync again.
func TestThreeNodesReplicate(t *testing.T) {
	t.Parallel()
	tr := newTrio(t)
	tr.start(1, 2, 3)
	tr.ok("topic", "create", "copied", "--partitions", "3", "--replication-factor", "3", "--config", "min.insync.replicas=2")
	produced := 0
	produce := func() {
		t.Helper()
		var lines strings.Builder
		for range 300 {
			fmt.Fprintln(&lines, "record", produced)
			produced++
		}
		if r := runAt(tr.bootstrap(), lines.String(), "produce", "copied"); r.status != 0 {
			t.Fatalf("produce: %s", r.err)
		}
	}
	produce()
	for _, gone := range []int{1, 2, 3} {
		tr.stop(gone)
		produce()
		tr.start(gone)
		deadline := time.Now().Add(20 * time.Second)
		for tr.outOfSync("copied") > 0 {
			if time.Now().After(deadline) {
				t.Fatalf("node %d does not get in sync again:\n%s", gone, tr.ok("topic", "describe", "copied"))
			}
			<-time.After(10 * time.Millisecond)
		}
	}
	got := strings.Split(strings.TrimSpace(tr.ok("consume", "copied", "--stop-at-end")), "\n")
	seen := map[string]bool{}
	for _, line := range got {
		seen[line] = true
	}
	if len(got) != produced || len(seen) != produced {
		t.Errorf("%d records, %d of them different, of %d that were acknowledged", len(got), len(seen), produced)
	}
}

// outOfSync counts the partitions of a topic with less than three replicas in sync.
func (tr *trio) outOfSync(topic string) (n int) {
	tr.t.Helper()
	t, ok := tr.nodes[tr.leader()].host.Committed().Topic(topic)
	if !ok {
		tr.t.Fatalf("no topic %s", topic)
	}
	for _, p := range t.Partitions().All() {
		if len(p.ISR) < 3 {
			n++
		}
	}
	return n
}

// Every controller is in the metadata log with its listeners, whoever is active.
func TestControllersRegisterWithTheActiveOne(t *testing.T) {
	t.Parallel()
	tr := newTrio(t)
	tr.start(1, 2, 3)
	deadline := time.Now().Add(20 * time.Second)
	for {
		known := 0
		for i, n := range tr.nodes {
			if c, ok := tr.nodes[tr.leader()].host.Committed().Controller(int32(i)); ok && c.IncarnationID == n.incarnation {
				known++
			}
		}
		if known == 3 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of 3 are registered", known)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// A voter whose disk was emptied is told by the others that the quorum is there without it, and has no vote; removed and
// added again under its new directory it has one, and the quorum can do without another. M-056's rows on the way.
func TestEmptiedVoterIsReplaced(t *testing.T) {
	t.Parallel()
	tr := newTrio(t)
	tr.start(1, 2, 3)
	tr.ok("topic", "create", "kept", "--partitions", "3", "--replication-factor", "3")
	tr.stop(3)
	if err := os.RemoveAll(tr.dataDir(3)); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := tr.try(ctx, 3, &said); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(said.String(), "this controller has no vote") {
		t.Errorf("the emptied voter says nothing:\n%s", said.String())
	}
	voters := func() map[string]string {
		t.Helper()
		found := map[string]string{}
		for _, line := range strings.Split(tr.ok("cluster", "voters", "list"), "\n")[1:] {
			if words := strings.Fields(line); len(words) > 1 {
				found[words[0]] = words[1]
			}
		}
		return found
	}
	old := voters()["3"]
	controller := fmt.Sprintf("127.0.0.1:%d", tr.ports[3])
	fails := func(word string, args ...string) {
		t.Helper()
		if r := runAt(tr.bootstrap(), "", args...); r.status != 1 || !strings.Contains(r.err, word) {
			t.Errorf("stele %s: status %d, %s", strings.Join(args, " "), r.status, r.err)
		}
	}
	fails("DUPLICATE_VOTER", "cluster", "voters", "add", controller)
	fails("is no voter", "cluster", "voters", "remove", "7")
	fails("is no voter", "cluster", "voters", "remove", "3", "--directory", "AAAAAAAAAAAAAAAAAAAAAA")
	tr.ok("cluster", "voters", "remove", "3")
	if now := voters(); len(now) != 2 {
		t.Fatalf("after the removal: %v", now)
	}
	tr.ok("cluster", "voters", "add", controller)
	now := voters()
	if len(now) != 3 || now["3"] == old {
		t.Fatalf("after it was added: %v, before %s", now, old)
	}
	// Two of three are enough, and the new one is needed for that.
	first := 1
	if tr.leader() == 3 {
		first = 2
	}
	tr.stop(first)
	tr.ok("topic", "create", "later", "--partitions", "1", "--replication-factor", "1")
	tr.start(first)
	tr.stopAll()
	tr.start(1, 2, 3)
	if listed := tr.ok("topic", "list"); !strings.Contains(listed, "kept") || !strings.Contains(listed, "later") {
		t.Errorf("after all were stopped: %s", listed)
	}
	if again := voters(); len(again) != 3 || again["3"] != now["3"] {
		t.Errorf("after all were stopped: %v", again)
	}
}

// A voter whose state alone is gone, and whose directory has the id it had, makes no vote up.
func TestVoterWithoutItsStateIsRefused(t *testing.T) {
	t.Parallel()
	tr := newTrio(t)
	tr.start(1, 2, 3)
	tr.stop(2)
	if err := os.RemoveAll(filepath.Join(tr.dataDir(2), quorum.TopicName+"-0")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := tr.try(ctx, 2, new(bytes.Buffer)); err == nil || !strings.Contains(err.Error(), "holds no quorum state") {
		t.Errorf("the voter without its state: %v", err)
	}
}

// Several voters need to know that they belong together, and each must be among them.
func TestQuorumSettingsThatCannotWork(t *testing.T) {
	t.Parallel()
	tr := newTrio(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := tr.try(ctx, 1, new(bytes.Buffer), "cluster.id="); err == nil || !strings.Contains(err.Error(), "set cluster.id to the same value on each") {
		t.Errorf("without a cluster id: %v", err)
	}
	if err := tr.try(ctx, 1, new(bytes.Buffer), "node.id=4"); err == nil || !strings.Contains(err.Error(), "is not in controller.quorum.voters") {
		t.Errorf("a voter that is not listed: %v", err)
	}
	if entries, err := os.ReadDir(tr.dataDir(1)); err == nil && len(entries) > 0 {
		t.Errorf("left behind: %v", entries)
	}
}
