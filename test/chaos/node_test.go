//go:build chaos

package chaos

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/stelelog/stele/bench/probe"
)

// node is one `stele serve` process at a time on one data directory and fixed ports.
type node struct {
	t        *testing.T
	dir      string // holds data/ and a log per start
	data     string
	port     int
	settings []string
	wrap     []string // what runs the process, with its arguments appended; nil: nothing
	seeds    []string // where clients begin, if not at this node alone

	starts int
	cmd    *exec.Cmd
	done   chan struct{} // closed when the process has ended
}

func newNode(t *testing.T, settings ...string) *node {
	dir := folder(t)
	n := &node{t: t, dir: dir, data: filepath.Join(dir, "data")}
	n.port = freePort(t)
	n.settings = append([]string{
		fmt.Sprintf("listeners=PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d", n.port, freePort(t)), "http.listen=",
	}, settings...)
	t.Cleanup(n.kill)
	return n
}

func freePort(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func (n *node) addr() string { return fmt.Sprintf("127.0.0.1:%d", n.port) }
func (n *node) bootstrap() []string {
	if len(n.seeds) > 0 {
		return n.seeds
	}
	return []string{n.addr()}
}
func (n *node) pid() int        { return n.cmd.Process.Pid }
func (n *node) logFile() string { return filepath.Join(n.dir, fmt.Sprintf("stele-%d.log", n.starts)) }

func (n *node) command() *exec.Cmd {
	args := []string{"serve", "--data-dir", n.data}
	for _, s := range n.settings {
		args = append(args, "--set", s)
	}
	command := append(append([]string(nil), n.wrap...), stele)
	cmd := exec.Command(command[0], append(command[1:], args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// start executes the process; environment is added to ours.
func (n *node) start(environment ...string) {
	n.t.Helper()
	n.starts++
	log, err := os.Create(n.logFile())
	if err != nil {
		n.t.Fatal(err)
	}
	defer log.Close()
	cmd := n.command()
	cmd.Env = append(os.Environ(), environment...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	done := make(chan struct{})
	n.cmd, n.done = cmd, done
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
}

// killed says how a process that has ended did so: by SIGKILL, or (false) by itself.
func (n *node) killed() bool {
	status, ok := n.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// mustRun fails the test, with the process's log, if it has ended.
func (n *node) mustRun() {
	n.t.Helper()
	select {
	case <-n.done:
		n.t.Fatalf("the process ended by itself: %v\n%s", n.cmd.ProcessState, n.log())
	default:
	}
}

// log is the end of what the last process said.
func (n *node) log() string {
	if n.cmd == nil {
		return "(see the logs of the cluster's nodes)"
	}
	text, err := os.ReadFile(n.logFile())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-30):], "\n")
}

// kill is kill -9, and waits until the process is gone.
func (n *node) kill() {
	if n.cmd == nil {
		return
	}
	_ = n.cmd.Process.Kill()
	<-n.done
}

// stop is a clean stop.
func (n *node) stop() {
	n.t.Helper()
	_ = n.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-n.done:
	case <-time.After(30 * time.Second):
		n.t.Fatalf("the process did not stop within 30 s\n%s", n.log())
	}
	if how, ok := n.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && how.Signaled() && how.Signal() == syscall.SIGTERM && strings.TrimSpace(n.log()) == "" {
		return // it had just been started, and did not listen yet
	}
	if code := n.cmd.ProcessState.ExitCode(); code != 0 {
		n.t.Fatalf("a stop by SIGTERM ended with status %d\n%s", code, n.log())
	}
}

// firstAck waits for the first acknowledged write to topic, and returns its moment and offset.
func (n *node) firstAck(topic, key string) (time.Time, int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return probe.FirstAck(ctx, n.addr(), topic, []byte(key), valueOf(key, 100), n.done)
}

func (n *node) mustAck(topic, key string) (time.Time, int64) {
	n.t.Helper()
	at, offset, err := n.firstAck(topic, key)
	if err != nil {
		n.t.Fatalf("first acknowledgement: %v\n%s", err, n.log())
	}
	return at, offset
}

// client is a franz-go client that comes back quickly after a kill.
func (n *node) client(options ...kgo.Opt) *kgo.Client {
	n.t.Helper()
	c, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(n.bootstrap()...), kgo.RetryBackoffFn(func(int) time.Duration { return 25 * time.Millisecond }),
		kgo.AlwaysRetryEOF(), kgo.MetadataMinAge(50 * time.Millisecond), kgo.MetadataMaxAge(2 * time.Second),
	}, options...)...)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(c.CloseAllowingRebalance)
	return c
}

// settled is the resident memory after a while in which nothing was asked of the node.
func (n *node) settled(wait time.Duration) int64 {
	n.t.Helper()
	time.Sleep(wait)
	bytes, err := probe.RSS(n.pid())
	if err != nil {
		n.t.Fatal(err)
	}
	return bytes
}
