// Package reference runs Apache Kafka, the release that pom.xml names, as the judge of Stele: its server,
// its clients and its tools, by way of kafka.sh. It needs a JDK and Maven, so only tests that stand behind
// a build tag, and the recorder of the fixtures, import it.
package reference

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Script finds kafka.sh from any working directory inside the module.
func Script() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		path := filepath.Join(dir, "test", "reference", "kafka.sh")
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("test/reference/kafka.sh not found above the working directory")
		}
		dir = parent
	}
}

// Run calls kafka.sh and returns its standard output. The error holds standard error.
func Run(ctx context.Context, args ...string) (string, error) {
	return RunIn(ctx, "", "", args...)
}

// RunIn is Run in a working directory ("" is the current one) with text on standard input.
func RunIn(ctx context.Context, dir, stdin string, args ...string) (string, error) {
	script, err := Script()
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, script, args...)
	cmd.Dir = dir
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kafka.sh %s: %w\n%s", strings.Join(args, " "), err, errs.String())
	}
	return out.String(), nil
}

// ClassPath resolves Kafka's jars, once per machine, and returns them as a class path.
func ClassPath(ctx context.Context) (string, error) {
	out, err := Run(ctx, "classpath")
	return strings.TrimSpace(out), err
}

// ToolClass is the main class of a tool: a name without dots is looked up in Kafka's tools, as kafka.sh does.
func ToolClass(name string) string {
	const tools = "org.apache.kafka.tools."
	switch {
	case strings.Contains(name, "."):
		return name
	case name == "StorageTool":
		return "kafka.tools." + name
	case name == "ConsoleConsumer", name == "ConsoleShareConsumer":
		return tools + "consumer." + name
	case name == "ConsumerGroupCommand", name == "ShareGroupCommand":
		return tools + "consumer.group." + name
	case name == "ReassignPartitionsCommand":
		return tools + "reassign." + name
	}
	return tools + name
}

// FreePort returns a TCP port on 127.0.0.1 that nothing listened on a moment ago.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// Node is one Apache Kafka process, broker and controller in one. It is not safe for concurrent use.
type Node struct {
	Dir            string // server.properties, server.log and data/
	Port           int    // clients
	ControllerPort int    // controllers

	FormatArgs []string // of StorageTool format, on top of cluster id and settings

	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended; err is set before
	err  error
}

// NewNode formats a node in dir, on free ports, with settings of the form name=value on top of kafka.sh's.
// The cluster id may be empty: then it is random.
func NewNode(ctx context.Context, dir, clusterID string, settings ...string) (*Node, error) {
	n, err := Reserve(dir)
	if err != nil {
		return nil, err
	}
	return n, n.Format(ctx, clusterID, settings...)
}

// Reserve is a node in dir on free ports, which Format makes ready to start.
func Reserve(dir string) (*Node, error) {
	n := &Node{Dir: dir}
	var err error
	if n.Port, err = FreePort(); err != nil {
		return nil, err
	}
	n.ControllerPort, err = FreePort()
	return n, err
}

// Format writes the node's settings, name=value on top of kafka.sh's, and formats its directory. The cluster id may be
// empty: then it is random.
func (n *Node) Format(ctx context.Context, clusterID string, settings ...string) error {
	script, err := Script()
	if err != nil {
		return err
	}
	args := append([]string{"format", n.Dir, strconv.Itoa(n.Port), strconv.Itoa(n.ControllerPort)}, settings...)
	cmd := exec.CommandContext(ctx, script, args...)
	cmd.Env = append(os.Environ(), "STELE_REFERENCE_FORMAT="+strings.Join(n.FormatArgs, " "))
	if clusterID != "" {
		cmd.Env = append(cmd.Env, "STELE_REFERENCE_CLUSTER_ID="+clusterID)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("format: %w\n%s", err, out)
	}
	return nil
}

// Addr is where clients connect.
func (n *Node) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(n.Port)) }

// ControllerAddr is where controllers and brokers connect.
func (n *Node) ControllerAddr() string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(n.ControllerPort))
}

// Data is the node's log directory.
func (n *Node) Data() string { return filepath.Join(n.Dir, "data") }

// Start starts the process and returns when Kafka says that it has started, which is after its broker
// was unfenced. Its log goes to server.log.
func (n *Node) Start(ctx context.Context) error {
	script, err := Script()
	if err != nil {
		return err
	}
	logPath := filepath.Join(n.Dir, "server.log")
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	before, err := log.Seek(0, 2)
	if err != nil {
		return err
	}
	cmd := exec.Command(script, "serve", n.Dir, strconv.Itoa(n.Port), strconv.Itoa(n.ControllerPort))
	cmd.Stdout, cmd.Stderr = log, log
	// A test that is killed must not leave a JVM behind.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	n.cmd, n.done = cmd, done
	go func() {
		n.err = cmd.Wait()
		close(done)
	}()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		text, err := os.ReadFile(logPath)
		if err == nil && int64(len(text)) > before && bytes.Contains(text[before:], []byte("Kafka Server started")) {
			return nil
		}
		select {
		case <-done:
			return fmt.Errorf("the reference ended before it had started: %v; see %s", n.err, logPath)
		case <-ctx.Done():
			return fmt.Errorf("the reference did not start: %w; see %s", ctx.Err(), logPath)
		case <-tick.C:
		}
	}
}

// Pid is the process id, 0 when the node does not run.
func (n *Node) Pid() int {
	if n.cmd == nil {
		return 0
	}
	return n.cmd.Process.Pid
}

// Stop ends the process cleanly and waits for it. A process that takes over a minute is killed, which is an
// error. Stopping a node that does not run does nothing.
func (n *Node) Stop() error {
	if n.cmd == nil {
		return nil
	}
	cmd := n.cmd
	n.cmd = nil
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		<-n.done
		return fmt.Errorf("the reference had ended by itself: %v", n.err)
	}
	select {
	case <-n.done:
	case <-time.After(time.Minute):
		_ = cmd.Process.Kill()
		<-n.done
		return errors.New("the reference did not stop within a minute and was killed")
	}
	// 143 is a JVM's exit status after it has run its shutdown hooks for TERM.
	if exit := (*exec.ExitError)(nil); errors.As(n.err, &exit) && exit.ExitCode() == 143 {
		return nil
	}
	return n.err
}

// Kill ends the process with SIGKILL and waits for it.
func (n *Node) Kill() {
	if n.cmd == nil {
		return
	}
	_ = n.cmd.Process.Kill()
	<-n.done
	n.cmd = nil
}
