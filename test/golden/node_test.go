package golden

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	_ "github.com/stelelog/stele/internal/cli" // what is built and run: without it a result from before a change of the node is taken from the cache
)

// patience is how long a node may take for anything.
const patience = 30 * time.Second

var binary = sync.OnceValues(func() (string, error) {
	path := filepath.Join(os.TempDir(), "stele-golden-"+time.Now().Format("150405.000000"))
	output, err := exec.Command("go", "build", "-o", path, "github.com/stelelog/stele/cmd/stele").CombinedOutput()
	if err != nil {
		return string(output), err
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := binary(); err == nil {
		os.Remove(path)
	}
	os.Exit(code)
}

func stele(t *testing.T) string {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatalf("%v: %s", err, path)
	}
	return path
}

// node is a running stele.
type node struct {
	cmd  *exec.Cmd
	addr string
	said chan struct{}
}

func start(t *testing.T, dir string, set ...string) *node {
	t.Helper()
	args := []string{"serve", "--log-format", "json", "--data-dir", dir,
		"--set", "listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0", "--set", "http.listen=",
		"--set", "log.retention.ms=-1", "--set", "offsets.topic.num.partitions=1", "--set", "offsets.retention.minutes=2147483647",
		"--set", "group.initial.rebalance.delay.ms=0"}
	for _, s := range set {
		args = append(args, "--set", s)
	}
	n := &node{cmd: exec.Command(stele(t), args...), said: make(chan struct{})}
	pipe, err := n.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make(chan string, 1)
	var last string
	go func() {
		defer close(n.said)
		var addr string
		for lines := bufio.NewScanner(pipe); lines.Scan(); {
			last = lines.Text()
			var line struct{ Msg, Name, Bound string }
			switch _ = json.Unmarshal(lines.Bytes(), &line); {
			case line.Msg == "listener" && line.Name == "PLAINTEXT":
				addr = line.Bound
			case line.Msg == "ready":
				ready <- addr
			}
		}
	}()
	select {
	case n.addr = <-ready:
	case <-n.said:
		t.Fatalf("stele ended while starting: %s", last)
	case <-time.After(patience):
		t.Fatal("stele was not ready in time")
	}
	return n
}

// stop ends the node as an operator would.
func (n *node) stop(t *testing.T) {
	t.Helper()
	if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-n.said
	if err := n.cmd.Wait(); err != nil {
		t.Errorf("stele: %v", err)
	}
}

func (n *node) client(t *testing.T, options ...kgo.Opt) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(n.addr), kgo.MetadataMinAge(20 * time.Millisecond)}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}
