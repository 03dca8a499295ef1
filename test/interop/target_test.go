//go:build interop

package interop

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stelelog/stele/test/reference"
)

// target is a running broker under test: Stele, or Apache Kafka when STELE_INTEROP_TARGET=kafka.
type target interface {
	Addr() string                    // where clients connect
	ControllerAddr() string          // where controllers and brokers connect
	Data() string                    // the log directory
	Pid() int                        // 0 when it does not run
	Start(ctx context.Context) error // returns when it is ready
	Stop() error                     // TERM, and waits
	Kill()                           // KILL, and waits
}

// onKafka says that the tests judge Apache Kafka itself, to show that they are right.
func onKafka() bool { return os.Getenv("STELE_INTEROP_TARGET") == "kafka" }

// newTarget starts a broker of its own for one test, with settings of the form name=value.
func newTarget(t *testing.T, settings ...string) target {
	t.Helper()
	if !onKafka() {
		// Not on the time that the start may take.
		if _, err := binary(); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	settings = append([]string{
		"group.initial.rebalance.delay.ms=0",
		"offsets.topic.num.partitions=3",
		"transaction.state.log.num.partitions=3",
	}, settings...)
	var n target
	if onKafka() {
		node, err := reference.NewNode(ctx, filepath.Join(t.TempDir(), "kafka"), "", settings...)
		if err != nil {
			t.Fatal(err)
		}
		n = node
	} else {
		n = newStele(t, settings)
	}
	if err := n.Start(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Kill)
	return n
}

// binary builds cmd/stele once for all tests.
var binary = sync.OnceValues(func() (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	path := filepath.Join(scratch, "stele")
	cmd := exec.Command("go", "build", "-o", path, "./cmd/stele")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build ./cmd/stele: %w\n%s", err, out)
	}
	return path, nil
})

func moduleRoot() (string, error) {
	script, err := reference.Script()
	if err != nil {
		return "", err
	}
	return filepath.Dir(filepath.Dir(filepath.Dir(script))), nil
}

// probe asks for readiness, on a connection of its own each time, as a supervisor does.
var probe = http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// stele is one `stele serve` process.
type stele struct {
	dir, logPath       string
	port, cport, hport int
	settings           []string
	configFile         string // of --config, instead of the flags that say where
	cmd                *exec.Cmd
	done               chan struct{}
	err                error // how it ended; set before done is closed
}

func newStele(t *testing.T, settings []string) *stele {
	t.Helper()
	s := &stele{dir: filepath.Join(t.TempDir(), "stele"), settings: settings}
	s.logPath = filepath.Join(scratch, "stele-of-"+t.Name()+".log") // outlives a test that failed
	for _, p := range []*int{&s.port, &s.cport, &s.hport} {
		var err error
		if *p, err = reference.FreePort(); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			if text, err := os.ReadFile(s.log()); err == nil {
				t.Logf("the end of %s:\n%s", s.log(), tail(string(text), 60))
			}
		}
	})
	return s
}

func (s *stele) log() string            { return s.logPath }
func (s *stele) Addr() string           { return "127.0.0.1:" + strconv.Itoa(s.port) }
func (s *stele) ControllerAddr() string { return "127.0.0.1:" + strconv.Itoa(s.cport) }
func (s *stele) Data() string           { return s.dir }

func (s *stele) Pid() int {
	if s.cmd == nil {
		return 0
	}
	return s.cmd.Process.Pid
}

func (s *stele) Start(ctx context.Context) error {
	path, err := binary()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(s.log(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{"serve", "--data-dir", s.dir,
		"--set", fmt.Sprintf("listeners=PLAINTEXT://%s,CONTROLLER://%s", s.Addr(), s.ControllerAddr()),
		"--set", fmt.Sprintf("controller.quorum.voters=1@%s", s.ControllerAddr()),
		"--set", fmt.Sprintf("http.listen=127.0.0.1:%d", s.hport),
	}
	if s.configFile != "" {
		args = []string{"serve", "--config", s.configFile, "--set", fmt.Sprintf("http.listen=127.0.0.1:%d", s.hport)}
	}
	for _, setting := range s.settings {
		args = append(args, "--set", setting)
	}
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	s.cmd, s.done = cmd, done
	go func() {
		s.err = cmd.Wait()
		close(done)
	}()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		resp, err := probe.Get(fmt.Sprintf("http://127.0.0.1:%d/readyz", s.hport))
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-done:
			text, _ := os.ReadFile(s.log())
			return fmt.Errorf("stele ended before it was ready: %v\n%s", s.err, tail(string(text), 20))
		case <-ctx.Done():
			return fmt.Errorf("stele was not ready in time: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

func (s *stele) Stop() error {
	if s.cmd == nil {
		return nil
	}
	cmd := s.cmd
	s.cmd = nil
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		<-s.done
		return fmt.Errorf("stele had ended by itself: %v", s.err)
	}
	select {
	case <-s.done:
		return s.err
	case <-time.After(30 * time.Second):
		_ = cmd.Process.Kill()
		<-s.done
		return errors.New("stele did not stop within 30 s of TERM and was killed")
	}
}

func (s *stele) Kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	<-s.done
	s.cmd = nil
}

func tail(text string, lines int) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
