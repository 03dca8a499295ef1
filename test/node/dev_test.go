package node

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// devCluster is a `stele dev` process and what it says.
type devCluster struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
}

func startDev(t *testing.T, dir string, port int, settings ...string) *devCluster {
	t.Helper()
	args := []string{"dev", "--data-dir", dir, "--port", fmt.Sprint(port), "--set", "http.listen="}
	for _, setting := range settings {
		args = append(args, "--set", setting)
	}
	d := &devCluster{t: t, cmd: exec.Command(built(t), args...), lines: make(chan string, 1000)}
	var err error
	if d.in, err = d.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(d.lines)
		for in := bufio.NewScanner(out); in.Scan(); {
			d.lines <- in.Text()
		}
	}()
	t.Cleanup(func() { d.cmd.Process.Kill() })
	return d
}

// until reads lines up to one that holds the text.
func (d *devCluster) until(text string) string {
	d.t.Helper()
	timeout := time.After(patience)
	var seen []string
	for {
		select {
		case line, ok := <-d.lines:
			seen = append(seen, line)
			if !ok {
				d.t.Fatalf("%q was not said:\n%s", text, strings.Join(seen, "\n"))
			}
			if strings.Contains(line, text) {
				return line
			}
		case <-timeout:
			d.t.Fatalf("%q was not said:\n%s", text, strings.Join(seen, "\n"))
		}
	}
}

func (d *devCluster) tell(command string) { fmt.Fprintln(d.in, command) }

// freePorts is a port from which on those of three nodes are free.
func freePorts(t *testing.T) int {
	t.Helper()
	for range 100 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		l.Close()
		free := true
		for _, p := range []int{port, port + 1, port + 10, port + 11, port + 20, port + 21} {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p))
			if err != nil {
				free = false
				break
			}
			l.Close()
		}
		if free {
			return port
		}
	}
	t.Fatal("no free ports")
	return 0
}

func TestDevelopersCluster(t *testing.T) {
	// `stele dev` runs three nodes; a record that was acknowledged is there when one is killed, when that one is back and the others stopped in turn, and at the next start; a line that means nothing is answered.
	t.Parallel()
	dir, port := filepath.Join(t.TempDir(), "dev"), freePorts(t)
	d := startDev(t, dir, port)
	line := d.until("nodes are ready")
	_, bootstrap, _ := strings.Cut(line, "--bootstrap-server ")
	stele := func(in string, args ...string) string {
		t.Helper()
		cmd := exec.Command(built(t), append(args, "--bootstrap-server", bootstrap)...)
		cmd.Stdin = strings.NewReader(in)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("stele %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	stele("", "topic", "create", "kept")
	if described := stele("", "topic", "describe", "kept"); !strings.Contains(described, "at least 2 of 3") {
		t.Errorf("a topic by default:\n%s", described)
	}
	stele("one\n", "produce", "kept")
	d.tell("kill 2")
	d.until("node 2: killed")
	stele("two\n", "produce", "kept")
	var brokers []struct {
		Broker    int32
		Fenced    bool
		Leads     int
		Replicas  int
		OutOfSync int
	}
	if err := json.Unmarshal([]byte(stele("", "cluster", "brokers", "--output", "json")), &brokers); err != nil || len(brokers) != 3 || !brokers[1].Fenced || brokers[1].Leads != 0 ||
		brokers[1].OutOfSync != brokers[1].Replicas || brokers[0].OutOfSync != 0 || brokers[0].Replicas == 0 {
		t.Errorf("brokers without node 2: %v, %+v", err, brokers)
	}
	d.tell("start 2")
	d.until("node 2: started")
	d.tell("start 2")
	d.until("runs already")
	d.tell("pause 7")
	d.until("no node 7")
	d.tell("dance")
	d.until("no command")
	d.tell("status")
	d.until("voter")
	d.tell("quit")
	if err := d.cmd.Wait(); err != nil {
		t.Fatalf("quit: %v", err)
	}
	d = startDev(t, dir, port)
	d.until("nodes are ready")
	if got := stele("", "consume", "kept", "--stop-at-end"); got != "one\ntwo\n" {
		t.Errorf("after the next start: %q", got)
	}
	d.cmd.Process.Signal(os.Interrupt)
	if err := d.cmd.Wait(); err != nil {
		t.Errorf("interrupted: %v", err)
	}
}

func TestB052_coordinators_through_a_rolling_restart(t *testing.T) {
	// On three nodes that were never used, and again while each is restarted in turn, fifty groups find a coordinator that takes their member: who is named is the one before long.
	t.Parallel()
	d := startDev(t, filepath.Join(t.TempDir(), "dev"), freePorts(t), "group.initial.rebalance.delay.ms=0", "offsets.topic.num.partitions=12")
	line := d.until("nodes are ready")
	_, bootstrap, _ := strings.Cut(line, "--bootstrap-server ")
	cl, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(strings.TrimSpace(bootstrap), ",")...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()

	// join makes one group stable with a new member, and says how long that took from the moment a coordinator was named.
	join := func(group string) (took time.Duration) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		var named time.Time
		member, pause := "", time.NewTicker(10*time.Millisecond)
		defer pause.Stop()
		for last := "nothing"; ; <-pause.C {
			if ctx.Err() != nil {
				t.Errorf("%s: no coordinator took its member: %s", group, last)
				return 0
			}
			find := kmsg.NewPtrFindCoordinatorRequest()
			find.CoordinatorKey, find.CoordinatorKeys = group, []string{group}
			found, err := find.RequestWith(ctx, cl)
			if err != nil || len(found.Coordinators) != 1 || found.Coordinators[0].ErrorCode != 0 {
				last = fmt.Sprint("find: ", err, found)
				continue
			}
			if named.IsZero() {
				named = time.Now()
			}
			coordinator := cl.Broker(int(found.Coordinators[0].NodeID))
			joined, err := joinRequest(wish{group: group, member: member}).RequestWith(ctx, coordinator)
			if err != nil {
				last = fmt.Sprint("join: ", err)
				continue
			}
			if joined.ErrorCode == 79 {
				member = joined.MemberID
				continue
			}
			if joined.ErrorCode != 0 {
				last = fmt.Sprintf("join: error %d of node %d", joined.ErrorCode, found.Coordinators[0].NodeID)
				continue
			}
			leave := kmsg.NewPtrLeaveGroupRequest()
			leave.Group, leave.MemberID = group, joined.MemberID
			leave.Members = []kmsg.LeaveGroupRequestMember{{MemberID: joined.MemberID}}
			if _, err := coordinator.Request(ctx, leave); err != nil {
				last = fmt.Sprint("leave: ", err)
				continue
			}
			return time.Since(named)
		}
	}
	round := func(when string) {
		t.Helper()
		var longest atomic.Int64
		var all sync.WaitGroup
		for worker := range 5 {
			all.Go(func() {
				for i := worker; i < 50; i += 5 {
					took := join(fmt.Sprintf("fresh-%d", i))
					for old := longest.Load(); int64(took) > old && !longest.CompareAndSwap(old, int64(took)); old = longest.Load() {
					}
				}
			})
		}
		all.Wait()
		t.Logf("%s: up to %v", when, time.Duration(longest.Load()))
		if took := time.Duration(longest.Load()); took > patience {
			t.Errorf("%s: a group had to wait %v", when, took)
		}
	}
	round("never used")
	for id := 1; id <= 3; id++ {
		d.tell(fmt.Sprint("stop ", id))
		d.until(fmt.Sprintf("node %d: stopped", id))
		round(fmt.Sprint("without node ", id))
		d.tell(fmt.Sprint("start ", id))
		d.until(fmt.Sprintf("node %d: started", id))
		round(fmt.Sprint("with node ", id, " again"))
	}
}
