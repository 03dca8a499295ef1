package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// devOptions say what a cluster on this machine is like.
type devOptions struct {
	nodes   int
	dataDir string
	port    int
	set     []string
}

// devStep is between the ports of one node and those of the next, devMetrics between a node's ports for clients and for
// metrics: 9092 and 9644 by default.
const (
	devStep    = 10
	devMetrics = 9644 - 9092
)

const devHelp = `  status            which nodes run, and how the cluster stands
  kill N            end node N at once, as kill -9 does
  stop N            stop node N cleanly
  start N           start node N again
  pause N           let node N stand still, as a long pause or a cut would
  resume N          let it go on
  quit              stop all nodes
`

func newDev(e *env) *cobra.Command {
	var o devOptions
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a cluster of several nodes on this machine, to try things with",
		Long: `Run a cluster of several nodes on this machine: each a process of its own, the same
as ` + "`stele serve`" + `, broker and controller in one. Partitions have three replicas by
default, two of which must be in sync. Data and logs are kept in --data-dir, and so
are the nodes' settings, in node-N.properties, which may be edited.

Clients go to port 9092, 9102, 9112; metrics are at 9644, 9654, 9664. Commands are
read from standard input, so that nodes can be killed and restarted:

` + devHelp,
		Example: `  stele dev
  stele dev --nodes 5 --port 19092
  (sleep 5; echo kill 2; sleep 5; echo start 2; sleep 5; echo quit) | stele dev`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return e.dev(cmd.Context(), o) },
	}
	flags := cmd.Flags()
	flags.IntVarP(&o.nodes, "nodes", "n", 3, "how many nodes, 1 to 9")
	flags.StringVarP(&o.dataDir, "data-dir", "d", "./stele-dev", "where data, settings and logs are kept")
	flags.IntVarP(&o.port, "port", "p", 9092, "port of the first node for clients; the next nodes have 10 more each")
	flags.StringArrayVarP(&o.set, "set", "s", nil, "setting name=value of every node; may be repeated")
	return cmd
}

// devCluster is the nodes and who watches them.
type devCluster struct {
	e     *env
	o     devOptions
	nodes []*devNode
	say   sync.Mutex // of what is printed
}

// devNode is one process at a time.
type devNode struct {
	c    *devCluster
	id   int
	port int

	mu     sync.Mutex
	cmd    *exec.Cmd
	done   chan struct{} // closed when the process has ended
	from   int64         // where its lines begin in the log
	paused bool
	asked  bool // it is meant to end
}

func (e *env) dev(ctx context.Context, o devOptions) error {
	if o.nodes < 1 || o.nodes > 9 {
		return usagef("--nodes %d: 1 to 9", o.nodes)
	}
	if last := o.port + (o.nodes-1)*devStep + devMetrics; o.port < 1 || last > 65535 {
		return usagef("--port %d: %d nodes need ports up to %d", o.port, o.nodes, last)
	}
	dir, err := filepath.Abs(o.dataDir)
	if err != nil {
		return err
	}
	o.dataDir = dir
	c := &devCluster{e: e, o: o}
	for id := 1; id <= o.nodes; id++ {
		c.nodes = append(c.nodes, &devNode{c: c, id: id, port: o.port + (id-1)*devStep})
	}
	if err := c.prepare(); err != nil {
		return err
	}
	defer c.stopAll()
	began := time.Now()
	for _, n := range c.nodes {
		if err := n.start(); err != nil {
			return err
		}
	}
	if err := c.waitReady(ctx); err != nil {
		return err
	}
	c.printf("%d nodes are ready after %s; clients: --bootstrap-server %s\n", o.nodes, time.Since(began).Round(time.Millisecond), c.bootstrap())
	return c.prompt(ctx)
}

func (c *devCluster) printf(format string, args ...any) {
	c.say.Lock()
	defer c.say.Unlock()
	fmt.Fprintf(c.e.out, format, args...)
}

func (c *devCluster) bootstrap() string {
	var addrs []string
	for _, n := range c.nodes {
		addrs = append(addrs, n.addr())
	}
	return strings.Join(addrs, ",")
}

func (n *devNode) addr() string     { return net.JoinHostPort("127.0.0.1", strconv.Itoa(n.port)) }
func (n *devNode) settings() string { return n.path("properties") }
func (n *devNode) path(suffix string) string {
	return filepath.Join(n.c.o.dataDir, fmt.Sprintf("node-%d.%s", n.id, suffix))
}

// prepare writes the settings of nodes that have none yet.
func (c *devCluster) prepare() error {
	if err := os.MkdirAll(c.o.dataDir, 0o755); err != nil {
		return err
	}
	var voters []string
	for _, n := range c.nodes {
		voters = append(voters, fmt.Sprintf("%d@127.0.0.1:%d", n.id, n.port+1))
	}
	copies := min(c.o.nodes, 3)
	for _, n := range c.nodes {
		text := fmt.Sprintf(`# Node %d of a cluster on one machine; kept, and read at each start.
node.id=%d
cluster.id=dev
listeners=PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d
controller.quorum.voters=%s
http.listen=127.0.0.1:%d
log.dirs=%s
default.replication.factor=%d
offsets.topic.replication.factor=%d
min.insync.replicas=%d
`, n.id, n.id, n.port, n.port+1, strings.Join(voters, ","), n.port+devMetrics, filepath.Join(c.o.dataDir, fmt.Sprintf("node-%d", n.id)), copies, copies, max(1, copies-1))
		have, err := os.ReadFile(n.settings())
		switch {
		case errors.Is(err, os.ErrNotExist):
			if err := os.WriteFile(n.settings(), []byte(text), 0o644); err != nil {
				return err
			}
		case err != nil:
			return err
		case !strings.Contains(string(have), "controller.quorum.voters="+strings.Join(voters, ",")):
			return fmt.Errorf("%s is of a cluster with other nodes or ports: give the same --nodes and --port as at first, or another --data-dir", n.settings())
		}
	}
	return nil
}

// start starts the process, if it does not run.
func (n *devNode) start() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.running() {
		return fmt.Errorf("node %d runs already", n.id)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(n.path("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	before, err := log.Stat()
	if err != nil {
		return err
	}
	args := []string{"serve", "--config", n.settings()}
	for _, s := range n.c.o.set {
		args = append(args, "--set", s)
	}
	cmd := exec.Command(self, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = devProcess()
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	n.cmd, n.done, n.from, n.paused, n.asked = cmd, done, before.Size(), false, false
	go func() {
		_ = cmd.Wait() // its state says how it ended
		close(done)
		n.mu.Lock()
		asked := n.asked
		n.mu.Unlock()
		if !asked {
			n.c.printf("node %d has ended: %v; see %s\n", n.id, cmd.ProcessState, n.path("log"))
		}
	}()
	return nil
}

// running needs mu.
func (n *devNode) running() bool {
	if n.cmd == nil {
		return false
	}
	select {
	case <-n.done:
		return false
	default:
		return true
	}
}

// signal sends a signal to the process; asked says that it is meant to end by it.
func (n *devNode) signal(s syscall.Signal, asked bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.running() {
		return fmt.Errorf("node %d does not run", n.id)
	}
	n.asked = n.asked || asked
	switch s {
	case syscall.SIGSTOP:
		n.paused = true
	case syscall.SIGCONT:
		n.paused = false
	}
	return n.cmd.Process.Signal(s)
}

// end ends the process by a signal, and waits for it. One that stands still is let go on, so that it can stop.
func (n *devNode) end(s syscall.Signal) error {
	if err := n.signal(s, true); err != nil {
		return err
	}
	n.mu.Lock()
	paused, done, process := n.paused, n.done, n.cmd.Process
	n.mu.Unlock()
	if paused && s != syscall.SIGKILL {
		_ = process.Signal(syscall.SIGCONT) // it has just been there
	}
	select {
	case <-done:
		return nil
	case <-time.After(time.Minute):
		_ = process.Kill()
		<-done
		return fmt.Errorf("node %d did not stop within a minute and was killed", n.id)
	}
}

// stopAll stops the nodes that run, all at a time, since each hands its leaderships to the others.
func (c *devCluster) stopAll() {
	var all sync.WaitGroup
	for _, n := range c.nodes {
		all.Go(func() {
			n.mu.Lock()
			running := n.running()
			n.mu.Unlock()
			if !running {
				return
			}
			if err := n.end(syscall.SIGTERM); err != nil {
				c.printf("%v\n", err)
			}
		})
	}
	all.Wait()
}

// state is one word for how a node is.
func (n *devNode) state() string {
	n.mu.Lock()
	running, paused := n.running(), n.paused
	n.mu.Unlock()
	switch {
	case !running:
		return "down"
	case paused:
		return "paused"
	case accepts(n.addr()):
		return "up"
	}
	return "starting"
}

// accepts says whether somebody takes connections at an address.
func accepts(addr string) bool {
	conn, err := net.DialTimeout("tcp", addr, 200*time.Millisecond)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// waitReady returns when every node has said in its log that it is ready.
func (c *devCluster) waitReady(ctx context.Context) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for _, n := range c.nodes {
		for !n.ready() {
			select {
			case <-ctx.Done():
				return nil
			case <-n.done:
				return fmt.Errorf("node %d has ended: %s", n.id, n.lastLine())
			case <-tick.C:
			}
		}
	}
	return nil
}

// ready says whether the process has said that it is.
func (n *devNode) ready() bool { return strings.Contains(n.said(), "msg=ready ") }

// said is what the newest process has written to its log.
func (n *devNode) said() string {
	text, err := os.ReadFile(n.path("log"))
	if err != nil || int64(len(text)) < n.from {
		return ""
	}
	return string(text[n.from:])
}

func (n *devNode) lastLine() string {
	lines := strings.Split(strings.TrimSpace(n.said()), "\n")
	return strings.TrimPrefix(lines[len(lines)-1], "stele: ")
}

// prompt does what standard input says, until it says quit or ctx ends. At its end the nodes go on.
func (c *devCluster) prompt(ctx context.Context) error {
	lines := make(chan string)
	go func() {
		defer close(lines)
		in := bufio.NewScanner(c.e.in)
		for in.Scan() {
			select {
			case lines <- in.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	c.printf("%s", devHelp)
	for {
		select {
		case <-ctx.Done():
			return nil
		case line, more := <-lines:
			if !more {
				<-ctx.Done()
				return nil
			}
			words := strings.Fields(line)
			if len(words) == 0 {
				continue
			}
			if words[0] == "quit" || words[0] == "exit" {
				return nil
			}
			if err := c.command(ctx, words); err != nil {
				c.printf("%v\n", err)
			}
		}
	}
}

func (c *devCluster) command(ctx context.Context, words []string) error {
	if words[0] == "status" {
		return c.status(ctx)
	}
	act, ok := map[string]func(*devNode) error{
		"kill":   func(n *devNode) error { return n.end(syscall.SIGKILL) },
		"stop":   func(n *devNode) error { return n.end(syscall.SIGTERM) },
		"start":  (*devNode).start,
		"pause":  func(n *devNode) error { return n.signal(syscall.SIGSTOP, false) },
		"resume": func(n *devNode) error { return n.signal(syscall.SIGCONT, false) },
	}[words[0]]
	if !ok {
		return fmt.Errorf("there is no command %q; use:\n%s", words[0], strings.TrimRight(devHelp, "\n"))
	}
	if len(words) != 2 {
		return fmt.Errorf("%s: which node? %s 1 to %d", words[0], words[0], len(c.nodes))
	}
	id, err := strconv.Atoi(words[1])
	if err != nil || id < 1 || id > len(c.nodes) {
		return fmt.Errorf("there is no node %s: 1 to %d", words[1], len(c.nodes))
	}
	n := c.nodes[id-1]
	if err := act(n); err != nil {
		return err
	}
	c.printf("node %d: %s\n", id, map[string]string{"kill": "killed", "stop": "stopped", "start": "started", "pause": "stands still", "resume": "goes on"}[words[0]])
	return nil
}

// status shows the processes, and what one of them says of the cluster.
func (c *devCluster) status(ctx context.Context) error {
	t := table{header: []string{"NODE", "STATE", "CLIENTS", "METRICS"}}
	asked := ""
	for _, n := range c.nodes {
		state := n.state()
		if state == "up" && asked == "" {
			asked = n.addr()
		}
		t.add(n.id, state, n.addr(), fmt.Sprintf("http://127.0.0.1:%d/metrics", n.port+devMetrics))
	}
	c.say.Lock()
	err := c.e.show(nil, t)
	c.say.Unlock()
	if err != nil {
		return err
	}
	if asked == "" {
		return nil
	}
	var out strings.Builder
	limited, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if execute(limited, []string{"cluster", "describe", "--bootstrap-server", asked}, strings.NewReader(""), &out, io.Discard) == exitDone {
		c.printf("%s", out.String())
	}
	return nil
}
