//go:build chaos

package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// linked is a cluster whose nodes know each other by proxies.
type linked struct {
	*cluster
	network *network
	proxies [][]*proxy // of each node
}

// newLinked makes three nodes whose links can be cut. They are the parties 1 to 3 of the network, clients are party 0.
func newLinked(t *testing.T, settings ...string) *linked {
	l := &linked{cluster: &cluster{t: t, front: &node{t: t, dir: folder(t)}}, network: newNetwork()}
	var voters []string
	for i := 1; i <= 3; i++ {
		n := newNode(t)
		controller := freePort(t)
		brokers, controllers := l.network.newProxy(t, i, n.addr()), l.network.newProxy(t, i, fmt.Sprintf("127.0.0.1:%d", controller))
		n.settings = append([]string{
			fmt.Sprintf("listeners=PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d", n.port, controller),
			fmt.Sprintf("advertised.listeners=PLAINTEXT://%s,CONTROLLER://%s", brokers.addr(), controllers.addr()), "http.listen=",
			fmt.Sprintf("node.id=%d", i), "cluster.id=chaos", "offsets.topic.replication.factor=3", "min.insync.replicas=2", "default.replication.factor=3",
		}, settings...)
		voters = append(voters, fmt.Sprintf("%d@%s", i, controllers.addr()))
		l.nodes = append(l.nodes, n)
		l.proxies = append(l.proxies, []*proxy{brokers, controllers})
		l.front.seeds = append(l.front.seeds, brokers.addr())
	}
	for _, n := range l.nodes {
		n.settings = append(n.settings, "controller.quorum.voters="+strings.Join(voters, ","))
	}
	return l
}

// launch starts a node and lets the others find it.
func (l *linked) launch(i int) {
	l.t.Helper()
	for _, p := range l.proxies[i] {
		if err := p.up(); err != nil {
			l.t.Fatal(err)
		}
	}
	l.nodes[i].start()
	l.network.runs(i+1, l.nodes[i].pid())
}

// fell is kill -9 of a node.
func (l *linked) fell(i int) {
	l.nodes[i].kill()
	for _, p := range l.proxies[i] {
		p.down()
	}
}

// heal makes whole what was cut, wakes what was stopped, and starts what is down.
func (l *linked) heal() {
	l.network.heal()
	for i, n := range l.nodes {
		select {
		case <-n.done:
			l.fell(i)
			l.launch(i)
		default:
			_ = syscall.Kill(n.pid(), syscall.SIGCONT)
		}
	}
}

// wipe kills a node, empties its disk and brings it back by the runbook of docs/operating.md.
func (l *linked) wipe(i int) {
	l.t.Helper()
	l.fell(i)
	if err := os.RemoveAll(l.nodes[i].data); err != nil {
		l.t.Fatal(err)
	}
	l.launch(i)
	l.awaitLog(i, "this controller has no vote")
	for _, command := range runbook(l.t, "### Replacing a voter", map[string]string{"3": strconv.Itoa(i + 1), "10.0.0.3:9093": l.proxies[i][1].addr()}) {
		l.command(command)
	}
}

// awaitLog waits until a node's log has a text.
func (l *linked) awaitLog(i int, text string) {
	l.t.Helper()
	deadline := time.After(60 * time.Second)
	for {
		log, err := os.ReadFile(l.nodes[i].logFile())
		if err == nil && strings.Contains(string(log), text) {
			return
		}
		select {
		case <-deadline:
			l.t.Fatalf("node %d did not say %q within a minute\n%s", i+1, text, l.logs())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// command runs one of stele's commands against the cluster, again for a while if it fails: an election may be under way.
func (l *linked) command(args []string) string {
	l.t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for {
		out, err := exec.Command(stele, append(args, "--bootstrap-server", strings.Join(l.front.seeds, ","))...).CombinedOutput()
		if err == nil {
			return string(out)
		}
		if time.Now().After(deadline) {
			l.t.Fatalf("stele %s: %v\n%s\n%s", strings.Join(args, " "), err, out, l.logs())
		}
		<-time.After(200 * time.Millisecond)
	}
}

// runbook is the commands of the first code block below a heading of docs/operating.md, with words put in the place of others.
func runbook(t *testing.T, heading string, words map[string]string) (commands [][]string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "operating.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, below, ok := strings.Cut(string(text), "\n"+heading+"\n")
	_, below, _ = strings.Cut(below, "```sh\n")
	block, _, found := strings.Cut(below, "```")
	if !ok || !found {
		t.Fatalf("docs/operating.md has no commands below %q", heading)
	}
	for line := range strings.Lines(block) {
		line, _, _ = strings.Cut(line, "#")
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "stele" {
			continue
		}
		for i, word := range f {
			if other, ok := words[word]; ok {
				f[i] = other
			}
		}
		commands = append(commands, f[1:])
	}
	if len(commands) == 0 {
		t.Fatalf("no command below %q", heading)
	}
	return commands
}

// voters is who votes, by node id, and the directory each votes with.
func (l *linked) voters() map[string]string {
	l.t.Helper()
	voters := map[string]string{}
	for _, line := range strings.Split(l.command([]string{"cluster", "voters", "list"}), "\n")[1:] {
		if f := strings.Fields(line); len(f) > 1 {
			voters[f[0]] = f[1]
		}
	}
	return voters
}

// TestReplaceADeadVoter follows the runbook "Replacing a voter" of docs/operating.md, word by word: the node of a dead disk
// comes back with an empty one, has no vote, is removed and added, and then is one of the two that a majority needs.
func TestReplaceADeadVoter(t *testing.T) {
	l := newLinked(t)
	for i := range l.nodes {
		l.launch(i)
	}
	l.settled("at the start")
	createTopics(t, l.front, 1, 3, "before")
	before := l.voters()
	l.wipe(2)
	after := l.voters()
	if len(after) != 3 || after["3"] == "" || after["3"] == before["3"] || after["1"] != before["1"] || after["2"] != before["2"] {
		t.Fatalf("the voters were %v and are %v", before, after)
	}
	l.settled("with the new disk", "before")
	l.fell(0) // now the replaced one is needed
	deadline := time.Now().Add(60 * time.Second)
	admin := kadm.NewClient(l.front.client())
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		_, err := admin.CreateTopic(ctx, 1, 2, nil, "after")
		cancel()
		if err == nil || strings.Contains(err.Error(), "TOPIC_ALREADY_EXISTS") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("no topic could be made with the replaced voter: %v\n%s", err, l.logs())
		}
		<-time.After(100 * time.Millisecond)
	}
	l.heal()
	l.settled("at the end", "before", "after")
	l.finish()
}

// finish stops all nodes cleanly and looks at what they leave on disk.
func (l *linked) finish() {
	l.t.Helper()
	for i, n := range l.nodes {
		n.stop()
		for _, p := range l.proxies[i] {
			p.down()
		}
		if out, err := exec.Command(stele, "log", "verify", n.data).CombinedOutput(); err != nil {
			l.t.Errorf("node %d: %v\n%s", i+1, err, out)
		}
	}
}

// hurts are what is done to a cluster in a round; each returns what it was.
var hurts = []struct {
	name string
	do   func(l *linked, random *rand.Rand, order []int)
}{
	{"kill one", func(l *linked, _ *rand.Rand, order []int) { l.fell(order[0]) }},
	{"kill two", func(l *linked, _ *rand.Rand, order []int) { l.fell(order[0]); l.fell(order[1]) }},
	{"kill all", func(l *linked, _ *rand.Rand, order []int) { l.fell(order[0]); l.fell(order[1]); l.fell(order[2]) }},
	{"kill the active controller", func(l *linked, _ *rand.Rand, _ []int) { l.fell(l.active()) }},
	{"stop and continue", func(l *linked, random *rand.Rand, order []int) {
		_ = syscall.Kill(l.nodes[order[0]].pid(), syscall.SIGSTOP)
		<-time.After(time.Duration(random.IntN(4000)) * time.Millisecond)
	}},
	{"stop the active controller", func(l *linked, random *rand.Rand, _ []int) {
		_ = syscall.Kill(l.nodes[l.active()].pid(), syscall.SIGSTOP)
		<-time.After(time.Duration(random.IntN(4000)) * time.Millisecond)
	}},
	{"isolate one", func(l *linked, random *rand.Rand, order []int) {
		l.network.isolate(order[0]+1, 3)
		<-time.After(time.Duration(random.IntN(4000)) * time.Millisecond)
	}},
	{"isolate the active controller", func(l *linked, random *rand.Rand, _ []int) {
		active := l.active() + 1
		for other := 1; other <= 3; other++ { // its clients still reach it
			if other != active {
				l.network.sever(active, other)
				l.network.sever(other, active)
			}
		}
		<-time.After(time.Duration(random.IntN(4000)) * time.Millisecond)
	}},
	{"cut one link", func(l *linked, random *rand.Rand, order []int) {
		l.network.sever(order[0]+1, order[1]+1)
		l.network.sever(order[1]+1, order[0]+1)
		<-time.After(time.Duration(random.IntN(4000)) * time.Millisecond)
	}},
	{"cut one way", func(l *linked, random *rand.Rand, order []int) {
		l.network.sever(order[0]+1, order[1]+1)
		<-time.After(time.Duration(random.IntN(4000)) * time.Millisecond)
	}},
}

// active is the node that leads the quorum as far as it can be told, else any.
func (l *linked) active() int {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, stele, "cluster", "voters", "list", "--bootstrap-server", strings.Join(l.front.seeds, ",")).Output()
	if m := regexp.MustCompile(`(?m)^([123])\s.*\sleader\s`).FindSubmatch(out); err == nil && m != nil {
		return int(m[1][0] - '1')
	}
	return 0
}

// TestAdminUnderFire: three nodes under an admin workload (topics, partitions, configs, quotas, producer ids) are killed
// with -9, stopped and continued, cut off from each other whole and one way, and one of them loses its disk: no change that
// was acknowledged is lost or undone, none happens that nobody asked for, no producer id is given twice, every broker comes
// to show the same, and what is left on the disks is in order.
func TestAdminUnderFire(t *testing.T) {
	rounds := 6
	if v := os.Getenv("ROUNDS"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatal(err)
		}
		rounds = n
	}
	random := source(t)
	l := newLinked(t, "broker.session.timeout.ms=3000", "broker.heartbeat.interval.ms=500", "metadata.log.max.record.bytes.between.snapshots=20000",
		"auto.create.topics.enable=false")
	for i := range l.nodes {
		l.launch(i)
	}
	l.settled("at the start")
	w := startAdmins(l.front, random)
	t.Cleanup(w.stop)
	done := map[string]int{}
	for round := range rounds {
		<-time.After(time.Duration(300+random.IntN(1000)) * time.Millisecond)
		name := "wiped disk"
		if round == rounds/2 {
			l.wipe(random.IntN(3))
		} else {
			h := hurts[random.IntN(len(hurts))]
			name = h.name
			h.do(l, random, random.Perm(3))
			<-time.After(time.Duration(random.IntN(2000)) * time.Millisecond)
		}
		done[name]++
		when := fmt.Sprintf("after round %d (%s)", round+1, name)
		l.heal()
		l.settled(when)
		w.pause()
		for i, n := range l.nodes {
			if wrong := w.wrongAt(n.addr(), 30*time.Second); len(wrong) > 0 {
				t.Fatalf("%s, node %d: %s\n%s", when, i+1, strings.Join(wrong[:min(10, len(wrong))], "\n"), l.logs())
			}
		}
		w.resume()
	}
	w.stop()
	var names []string
	for name, n := range done {
		names = append(names, fmt.Sprintf("%s %d", name, n))
	}
	slices.Sort(names)
	t.Logf("%d rounds: %s", rounds, strings.Join(names, ", "))
	t.Logf("%s", w.totals())
	if w.acknowledged() < int64(20*rounds) {
		t.Errorf("only %d changes were acknowledged", w.acknowledged())
	}
	l.finish()
}

// pinned is a client that asks one broker only.
func pinned(addr string) (*kgo.Client, *kgo.Broker, error) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.RequestRetries(0))
	if err != nil {
		return nil, nil, err
	}
	return cl, cl.SeedBrokers()[0], nil
}
