package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stelelog/stele/bench/probe"
	"github.com/stelelog/stele/test/reference"
)

// kafkaJVM are the flags of Kafka's own kafka-server-start.sh.
const kafkaJVM = "-Xmx1G -Xms1G -server -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35 -XX:+ExplicitGCInvokesConcurrent -Djava.awt.headless=true"

// deleteSoon makes the files of deleted topics go at once, so that those of earlier measurements are not written back
// to disk during the next. It is the only setting that is not the default.
const deleteSoon = "log.segment.delete.delay.ms=0"

// server is a broker of either kind: a data directory, ports, and at most one process.
type server interface {
	name() string
	// format makes an empty data directory and whatever must be done before the first start.
	format() error
	// exec starts the process and does not wait for it.
	exec() error
	addr() string
	// data is the directory with the partitions' directories.
	data() string
	pid() int
	dead() <-chan struct{}
	kill()
	// stop ends the process cleanly and removes its data.
	stop()
}

// process is what both have in common.
type process struct {
	dir         string
	port, cport int
	cpu         int // the only one it may use, -1: all
	cmd         *exec.Cmd
	done        chan struct{}
}

func (p *process) fresh(b *bench) (err error) {
	if p.dir, err = os.MkdirTemp(b.scratch, "node-"); err != nil {
		return err
	}
	if p.port, err = reference.FreePort(); err != nil {
		return err
	}
	p.cport, err = reference.FreePort()
	return err
}

func (p *process) start(cmd *exec.Cmd) error {
	log, err := os.OpenFile(filepath.Join(p.dir, "out.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := startOn(cmd, p.cpu); err != nil {
		return err
	}
	done := make(chan struct{})
	p.cmd, p.done = cmd, done
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
	return nil
}

// startOn starts a process that may use only one processor, or all if cpu is -1.
func startOn(cmd *exec.Cmd, cpu int) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if cpu < 0 {
		return cmd.Start()
	}
	// A child has the affinity of the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return err
	}
	one.Set(cpu)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return fmt.Errorf("bind to processor %d: %w", cpu, err)
	}
	return errors.Join(cmd.Start(), unix.SchedSetaffinity(0, &before))
}

func (p *process) data() string          { return filepath.Join(p.dir, "data") }
func (p *process) addr() string          { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port)) }
func (p *process) pid() int              { return p.cmd.Process.Pid }
func (p *process) dead() <-chan struct{} { return p.done }

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(20 * time.Second):
		p.kill()
	}
	os.RemoveAll(p.dir)
}

type stele struct {
	process
	b    *bench
	http int // port of profiles, 0 for none
}

func (s *stele) name() string { return "stele" }

func (s *stele) format() (err error) {
	if s.b.profile != "" {
		if s.http, err = reference.FreePort(); err != nil {
			return err
		}
	}
	return s.fresh(s.b)
}

func (s *stele) exec() error {
	listen := ""
	if s.http != 0 {
		listen = net.JoinHostPort("127.0.0.1", strconv.Itoa(s.http))
	}
	return s.start(exec.Command(s.b.stele, "serve", "--data-dir", filepath.Join(s.dir, "data"),
		"--set", fmt.Sprintf("listeners=PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d", s.port, s.cport), "--set", "http.listen="+listen, "--set", deleteSoon))
}

type kafka struct {
	process
	b *bench
}

func (k *kafka) name() string { return "kafka" }

func (k *kafka) format() error {
	if err := k.fresh(k.b); err != nil {
		return err
	}
	_, err := reference.Run(k.b.ctx, "format", k.dir, strconv.Itoa(k.port), strconv.Itoa(k.cport), deleteSoon)
	return err
}

func (k *kafka) exec() error {
	script, err := reference.Script()
	if err != nil {
		return err
	}
	cmd := exec.Command(script, "serve", k.dir, strconv.Itoa(k.port), strconv.Itoa(k.cport))
	cmd.Env = append(os.Environ(), "STELE_REFERENCE_SERVER_JVM="+kafkaJVM)
	return k.start(cmd)
}

// firstAck waits for the first acknowledged write, and says how long after since it came.
func (b *bench) firstAck(s server, topic string, since time.Time) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(b.ctx, 2*time.Minute)
	defer cancel()
	at, _, err := probe.FirstAck(ctx, s.addr(), topic, nil, []byte("first"), s.dead())
	if err != nil {
		return 0, fmt.Errorf("%s: %w", s.name(), err)
	}
	return at.Sub(since), nil
}
