package node

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	_ "github.com/stelelog/stele/internal/cli" // what is built and run: without it a result from before a change of the node is taken from the cache
)

// patience is how long anything may take that ought to be quick, on a busy machine.
const patience = 20 * time.Second

var (
	buildDir  string
	buildOnce sync.Once
	buildErr  error
)

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "stele-node")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	buildDir = dir
	status := m.Run()
	for _, n := range []*node{common.n, past.n, unverified.n} {
		if n != nil {
			n.kill()
		}
	}
	_ = os.RemoveAll(dir)
	os.Exit(status)
}

// built builds stele once.
func built(t testing.TB) string {
	t.Helper()
	path := filepath.Join(buildDir, "stele")
	buildOnce.Do(func() {
		out, err := exec.Command("go", "build", "-o", path, "github.com/stelelog/stele/cmd/stele").CombinedOutput()
		if err != nil {
			buildErr = fmt.Errorf("%w\n%s", err, out)
		}
	})
	if buildErr != nil {
		t.Fatalf("building stele: %v", buildErr)
	}
	return path
}

// node is one stele process, and those that follow it on the same data.
type node struct {
	dir   string
	in    string // working directory, "" for the test's
	set   []string
	addr  string // of the client listener
	cmd   *exec.Cmd
	ended chan struct{}

	mu   sync.Mutex
	said []string
}

// start runs a node on a new directory, with settings name=value, and stops it with
// the test.
func start(t testing.TB, set ...string) *node {
	t.Helper()
	if os.Getenv("STELE_NODE_TARGET") != "" {
		t.Skip("needs a node of its own")
	}
	n := &node{dir: filepath.Join(t.TempDir(), "data"), set: set}
	n.run(t)
	t.Cleanup(n.kill)
	return n
}

var common struct {
	once sync.Once
	n    *node
	err  error
}

// shared is the node that most tests use, each with topics of its own.
func shared(t testing.TB) *node {
	t.Helper()
	if target := os.Getenv("STELE_NODE_TARGET"); target != "" {
		return &node{addr: target}
	}
	stele := built(t) // outside: a test that ends inside would leave nothing to those after it
	common.once.Do(func() {
		n := &node{dir: filepath.Join(buildDir, "data")}
		if common.err = n.launch(stele); common.err == nil {
			common.n = n
		}
	})
	if common.err != nil {
		t.Fatal(common.err)
	}
	return common.n
}

// run starts the process again after it ended.
func (n *node) run(t testing.TB) {
	t.Helper()
	if err := n.launch(built(t)); err != nil {
		t.Fatal(err)
	}
}

func (n *node) launch(stele string) error {
	args := []string{"serve", "--log-format", "json", "--data-dir", n.dir,
		"--set", "listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0", "--set", "http.listen=",
		"--set", "log.retention.ms=-1", "--set", "offsets.topic.num.partitions=1", "--set", "transaction.state.log.num.partitions=1", "--set", "group.initial.rebalance.delay.ms=0"}
	for _, s := range n.set {
		args = append(args, "--set", s)
	}
	cmd := exec.Command(stele, args...)
	cmd.Dir = n.in
	pipe, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	ready := make(chan string, 1)
	ended := make(chan struct{})
	go func() {
		n.listen(pipe, ready)
		_ = cmd.Wait()
		close(ended)
	}()
	n.cmd, n.ended = cmd, ended
	select {
	case n.addr = <-ready:
		return nil
	case <-ended:
		return errors.New("stele ended while starting:\n" + n.log())
	case <-time.After(patience):
		n.kill()
		return errors.New("stele was not ready in time:\n" + n.log())
	}
}

// listen keeps what the process says, and learns its address.
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

// kill ends the process as kill -9 does.
func (n *node) kill() {
	_ = n.cmd.Process.Kill()
	<-n.ended
}

// stop ends the process cleanly.
func (n *node) stop(t testing.TB) {
	t.Helper()
	if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-n.ended:
		if code := n.cmd.ProcessState.ExitCode(); code != 0 {
			t.Fatalf("stele ended with %d:\n%s", code, n.log())
		}
	case <-time.After(patience):
		t.Fatalf("stele did not stop:\n%s", n.log())
	}
}

// restart stops the node cleanly and runs it again.
func (n *node) restart(t testing.TB) {
	t.Helper()
	n.stop(t)
	n.run(t)
}

// path is a file of a partition.
func (n *node) path(topic string, file string) string {
	return filepath.Join(n.dir, topic+"-0", file)
}

func (n *node) read(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
