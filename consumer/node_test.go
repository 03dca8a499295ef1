package consumer

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"
)

var (
	buildDir  string
	buildOnce sync.Once
	buildErr  error
	common    struct {
		once sync.Once
		n    *node
		err  error
	}
)

func TestMain(m *testing.M) {
	var err error
	if buildDir, err = os.MkdirTemp("", "stele-consumer"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	status := m.Run()
	if common.n != nil {
		common.n.kill()
	}
	_ = os.RemoveAll(buildDir)
	if status == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			status = 1
		}
	}
	os.Exit(status)
}

// built builds stele once.
func built() (string, error) {
	path := filepath.Join(buildDir, "stele")
	buildOnce.Do(func() {
		if out, err := exec.Command("go", "build", "-o", path, "github.com/stelelog/stele/cmd/stele").CombinedOutput(); err != nil {
			buildErr = fmt.Errorf("building stele: %w\n%s", err, out)
		}
	})
	return path, buildErr
}

// node is one `stele serve` process, and those that follow it on the same data.
type node struct {
	dir  string
	set  []string
	addr string

	cmd   *exec.Cmd
	ended chan struct{}
	mu    sync.Mutex
	said  []string
}

// shared is the address of the node that most tests and the examples use.
func shared() (string, error) {
	stele, err := built()
	if err != nil {
		return "", err
	}
	common.once.Do(func() {
		n := &node{dir: filepath.Join(buildDir, "data"), set: []string{"listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0", "offsets.topic.num.partitions=1"}}
		if common.err = n.launch(stele); common.err == nil {
			common.n = n
		}
	})
	if common.err != nil {
		return "", common.err
	}
	return common.n.addr, nil
}

func sharedNode(t testing.TB) string {
	t.Helper()
	addr, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

func (n *node) launch(stele string) error {
	args := []string{"serve", "--log-format", "json", "--data-dir", n.dir, "--set", "http.listen=", "--set", "group.initial.rebalance.delay.ms=0"}
	for _, s := range n.set {
		args = append(args, "--set", s)
	}
	cmd := exec.Command(stele, args...)
	pipe, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	ready, ended := make(chan string, 1), make(chan struct{})
	go func() {
		n.listen(pipe, ready)
		_ = cmd.Wait()
		close(ended)
	}()
	n.mu.Lock()
	n.cmd, n.ended = cmd, ended
	n.mu.Unlock()
	select {
	case addr := <-ready:
		if n.addr == "" {
			n.addr = addr
		}
		return nil
	case <-ended:
		return errors.New("stele ended while starting:\n" + n.log())
	case <-time.After(3 * patience):
		n.kill()
		return errors.New("stele was not ready in time:\n" + n.log())
	}
}

func (n *node) listen(pipe io.Reader, ready chan<- string) {
	addr := ""
	lines := bufio.NewScanner(pipe)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		n.mu.Lock()
		n.said = append(n.said, lines.Text())
		n.mu.Unlock()
		var line struct{ Msg, Name, Bound string }
		if json.Unmarshal(lines.Bytes(), &line) != nil {
			continue
		}
		switch {
		case line.Msg == "listener" && line.Name == "PLAINTEXT":
			addr = line.Bound
		case line.Msg == "ready":
			ready <- addr
		}
	}
}

func (n *node) log() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Join(n.said, "\n")
}

func (n *node) kill() {
	_ = n.cmd.Process.Kill()
	<-n.ended
}

// cluster3 is three nodes, each broker and controller.
func cluster3(t *testing.T, settings ...string) []*node {
	t.Helper()
	stele, err := built()
	if err != nil {
		t.Fatal(err)
	}
	var nodes []*node
	var voters []string
	for i := range 3 {
		port, controller := freePort(t), freePort(t)
		n := &node{dir: filepath.Join(t.TempDir(), "data"), addr: fmt.Sprintf("127.0.0.1:%d", port)}
		n.set = []string{
			fmt.Sprintf("node.id=%d", i+1), "cluster.id=consumer", fmt.Sprintf("listeners=PLAINTEXT://%s,CONTROLLER://127.0.0.1:%d", n.addr, controller),
			"offsets.topic.replication.factor=3", "offsets.topic.num.partitions=1", "replica.lag.time.max.ms=1500",
		}
		voters = append(voters, fmt.Sprintf("%d@127.0.0.1:%d", i+1, controller))
		nodes = append(nodes, n)
	}
	errs := make(chan error)
	for _, n := range nodes {
		n.set = append(append(n.set, "controller.quorum.voters="+strings.Join(voters, ",")), settings...)
		go func() { errs <- n.launch(stele) }()
	}
	for range nodes {
		if e := <-errs; e != nil {
			err = e
		}
	}
	t.Cleanup(func() {
		for _, n := range nodes {
			if n.cmd != nil {
				n.kill()
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return nodes
}

// freePort is a port below those that the system hands out by itself.
func freePort(t *testing.T) int {
	t.Helper()
	for range 1000 {
		port := 12000 + rand.IntN(18000)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no free port")
	return 0
}

// clientOf is a client to prepare and judge with.
func clientOf(t testing.TB, opts ...kgo.Opt) (*kgo.Client, *kadm.Client) {
	t.Helper()
	client, err := kgo.NewClient(append(opts, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(10*time.Millisecond))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client, kadm.NewClient(client)
}

var topicNumber struct {
	sync.Mutex
	n int
}

func freshName(prefix string) string {
	topicNumber.Lock()
	defer topicNumber.Unlock()
	topicNumber.n++
	return fmt.Sprintf("%s-%d", prefix, topicNumber.n)
}

// created makes a topic of a name that no other test has.
func created(t testing.TB, admin *kadm.Client, partitions int32, replicas int16, configs map[string]*string) string {
	t.Helper()
	name := freshName("topic")
	ctx, cancel := contextWithPatience()
	defer cancel()
	if _, err := admin.CreateTopic(ctx, partitions, replicas, configs, name); err != nil {
		t.Fatal(err)
	}
	eventually(t, "leaders", func() bool {
		m, err := admin.Metadata(ctx, name)
		ok := err == nil && len(m.Topics[name].Partitions) == int(partitions)
		for _, p := range m.Topics[name].Partitions {
			ok = ok && p.Err == nil && p.Leader >= 0 && len(p.ISR) == int(replicas)
		}
		return ok
	})
	return name
}

// produced writes records whose values are numbers from first on, round the partitions.
func produced(t testing.TB, client *kgo.Client, topic string, partitions, first, n int) {
	t.Helper()
	ctx, cancel := contextWithPatience()
	defer cancel()
	var records []*kgo.Record
	for i := first; i < first+n; i++ {
		records = append(records, &kgo.Record{Topic: topic, Partition: int32(i % partitions), Value: fmt.Appendf(nil, "%d", i)})
	}
	if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// opened makes a consumer and closes it with the test.
func opened(t testing.TB, o Options) *Consumer {
	t.Helper()
	if o.RetryBackoff == 0 {
		o.RetryBackoff = 20 * time.Millisecond
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed(t, c) })
	return c
}

func closed(t testing.TB, c *Consumer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := c.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
}
