//go:build chaos

package chaos

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/bench/probe"
)

const (
	idleConnections   = 10_000
	activeConnections = 1_000
	// perConnection is the most resident memory that a connection which does nothing may cost, and perActive one
	// that asks now and then.
	perConnection = 16 << 10
	perActive     = 64 << 10
)

// crowdEnv makes this binary, started again, a crowd of clients that connect to the address it holds.
const crowdEnv = "STELE_CHAOS_CROWD"

// crowdReport is what the other process says at the end.
type crowdReport struct {
	Answers int64
	Errors  int64
	First   string // of the errors
}

// beCrowd connects the idle ones, and after a line on standard input the active ones, who ask until standard input
// ends. It returns the status to exit with.
func beCrowd(addr string) int {
	var idle []net.Conn
	for range idleConnections {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			fmt.Println("error:", err)
			return 1
		}
		idle = append(idle, c)
	}
	fmt.Println("idle")
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil {
		return 1
	}
	var stop atomic.Bool
	var wg sync.WaitGroup
	var report crowdReport
	var mu sync.Mutex
	for i := range activeConnections {
		wg.Go(func() {
			answers, err := beActive(addr, i, &stop)
			mu.Lock()
			defer mu.Unlock()
			report.Answers += answers
			if err != nil {
				if report.Errors++; report.First == "" {
					report.First = err.Error()
				}
			}
		})
	}
	fmt.Println("active")
	_, _ = io.Copy(io.Discard, in)
	stop.Store(true)
	wg.Wait()
	text, err := json.Marshal(report)
	if err != nil {
		return 1
	}
	fmt.Println(string(text))
	for _, c := range idle {
		c.Close()
	}
	return 0
}

// beActive asks about twice a second: for metadata, the last offset, a write, and records.
func beActive(addr string, i int, stop *atomic.Bool) (answers int64, err error) {
	c, err := probe.Dial(addr, 30*time.Second)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	for turn := i; !stop.Load(); turn++ {
		begun := time.Now()
		switch turn % 4 {
		case 0:
			req := kmsg.NewPtrMetadataRequest()
			req.Version = 12
			req.Topics = []kmsg.MetadataRequestTopic{{Topic: kmsg.StringPtr("probe")}}
			_, err = c.Request(req)
		case 1:
			_, err = c.Request(listEnd("probe"))
		case 2:
			_, err = c.Produce("probe", 0, nil, []byte("active"))
		case 3:
			_, err = c.Request(fetchOf("probe", 0, 100_000, 500*time.Millisecond, 1))
		}
		if err != nil {
			return answers, err
		}
		answers++
		time.Sleep(500*time.Millisecond - time.Since(begun)) // the pace of one client
	}
	return answers, nil
}

func listEnd(topic string) *kmsg.ListOffsetsRequest {
	req := kmsg.NewPtrListOffsetsRequest()
	req.Version = 7
	p := kmsg.NewListOffsetsRequestTopicPartition()
	p.Timestamp = -1
	req.Topics = []kmsg.ListOffsetsRequestTopic{{Topic: topic, Partitions: []kmsg.ListOffsetsRequestTopicPartition{p}}}
	return req
}

// fetchOf asks for at least minBytes from an offset of partition 0, waiting for them as long as it says.
func fetchOf(topic string, offset int64, maxBytes int32, wait time.Duration, minBytes int32) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.MaxBytes, req.MinBytes, req.MaxWaitMillis, req.SessionEpoch = 12, maxBytes, minBytes, int32(wait.Milliseconds()), -1
	p := kmsg.NewFetchRequestTopicPartition()
	p.FetchOffset, p.PartitionMaxBytes = offset, maxBytes
	req.Topics = []kmsg.FetchRequestTopic{{Topic: topic, Partitions: []kmsg.FetchRequestTopicPartition{p}}}
	return req
}

// TestCrowd: 10,000 connections that do nothing and 1,000 that do, from another process: each costs little memory,
// nobody is refused, and another client is served as before.
func TestCrowd(t *testing.T) {
	n := newNode(t)
	n.start()
	n.mustAck("probe", "probe-1")
	idle := n.settled(time.Second)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), crowdEnv+"="+n.addr())
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	alone := startBystander(n)
	time.Sleep(2 * time.Second)
	calm := alone.mustStop(t)
	begun := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	lines := bufio.NewScanner(out)
	said := func(want string) string {
		if !lines.Scan() || want != "" && lines.Text() != want {
			t.Fatalf("the crowd said %q, want %q\n%s", lines.Text(), want, n.log())
		}
		return lines.Text()
	}

	said("idle")
	connecting := time.Since(begun)
	withIdle := n.settled(time.Second)
	by := startBystander(n)
	time.Sleep(2 * time.Second)
	beside := by.mustStop(t)

	if _, err := io.WriteString(in, "now\n"); err != nil {
		t.Fatal(err)
	}
	said("active")
	if err := probe.ResetPeak(n.pid()); err != nil {
		t.Fatal(err)
	}
	by = startBystander(n)
	time.Sleep(6 * time.Second)
	busy := by.mustStop(t)
	peak, err := probe.PeakRSS(n.pid())
	if err != nil {
		t.Fatal(err)
	}
	in.Close()
	var report crowdReport
	if err := json.Unmarshal([]byte(said("")), &report); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d idle connections within %v: %d MB resident instead of %d, %d bytes each", idleConnections, connecting.Round(10*time.Millisecond), withIdle>>20, idle>>20, (withIdle-idle)/idleConnections)
	t.Logf("%d active ones: peak %d MB, %d answers, %d errors %s", activeConnections, peak>>20, report.Answers, report.Errors, report.First)
	t.Logf("bystander alone %v; beside the idle %v; beside the active %v", calm, beside, busy)
	if each := (withIdle - idle) / idleConnections; each > perConnection {
		t.Errorf("an idle connection costs %d bytes, want at most %d", each, perConnection)
	}
	if most := withIdle + activeConnections*perActive + aboveIdle; peak > most {
		t.Errorf("peak of %d MB, want at most %d", peak>>20, most>>20)
	}
	if report.Errors > 0 || report.Answers < activeConnections*5 {
		t.Errorf("the active were harmed: %+v", report)
	}
	if busy.p99 > harmed {
		t.Errorf("a bystander was harmed: %v", busy)
	}
}
