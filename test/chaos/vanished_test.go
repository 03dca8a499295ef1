//go:build chaos

package chaos

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stelelog/stele/bench/probe"
)

// burden is what a node's connections cost it.
type burden struct {
	descriptors, goroutines int
	resident                int64
}

func (b burden) String() string {
	return fmt.Sprintf("%d descriptors, %d goroutines, %d MB", b.descriptors, b.goroutines, b.resident>>20)
}

var goroutineTotal = regexp.MustCompile(`goroutine profile: total (\d+)`)

// burden looks at the process, and asks its HTTP listener for goroutines.
func (n *node) burden(httpPort int) burden {
	n.t.Helper()
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", n.pid()))
	if err != nil {
		n.t.Fatal(err)
	}
	resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/debug/pprof/goroutine?debug=1", httpPort))
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	m := goroutineTotal.FindSubmatch(text)
	if m == nil {
		n.t.Fatalf("no goroutines in %.200s", text)
	}
	goroutines, _ := strconv.Atoi(string(m[1]))
	resident, err := probe.RSS(n.pid())
	if err != nil {
		n.t.Fatal(err)
	}
	return burden{len(fds), goroutines, resident}
}

// Clients that close half of their connection or reset it with a fetch parked, that send half a frame and fall silent,
// or that never read a large answer: after connections.max.idle.ms, and a little, nothing of them is left.
func TestB058_broken_and_vanished_clients(t *testing.T) {
	port := freePort(t)
	n := newNode(t, "connections.max.idle.ms=5000", fmt.Sprintf("http.listen=127.0.0.1:%d", port))
	n.start()
	n.mustAck("probe", "probe-1")
	n.createTopic("large", 1)
	n.fill("large", 6, 900_000)
	n.settled(6 * time.Second) // what filled it is idle by now
	before := n.burden(port)
	if err := probe.ResetPeak(n.pid()); err != nil {
		t.Fatal(err)
	}

	parked := frameOf(fetchOf("probe", 1, 1<<20, 30*time.Second, 1<<20)) // more than there will be
	unread := frameOf(fetchOf("large", 0, 5<<20, 0, 1))
	open := func(count int, frame []byte) (conns []*net.TCPConn) {
		for range count {
			c, err := n.send(frame)
			if err != nil {
				t.Fatal(err)
			}
			conns = append(conns, c.(*net.TCPConn))
		}
		return conns
	}
	by := startBystander(n)
	halves, resets := open(250, parked), open(250, parked)
	silent, deaf := open(200, parked[:len(parked)/2]), open(200, unread)
	time.Sleep(500 * time.Millisecond)
	during := n.burden(port)
	for _, c := range halves {
		_ = c.CloseWrite()
	}
	for _, c := range resets {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
	begun := time.Now()
	var after burden
	// The bystander's connections and those that look are among what is counted.
	gone := func(b burden) bool {
		return b.descriptors <= before.descriptors+20 && b.goroutines <= before.goroutines+60
	}
	for {
		after = n.burden(port)
		if gone(after) || time.Since(begun) > 20*time.Second {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	took := time.Since(begun)
	served := by.mustStop(t)
	peak, err := probe.PeakRSS(n.pid())
	if err != nil {
		t.Fatal(err)
	}
	for _, conns := range [][]*net.TCPConn{halves, silent, deaf} {
		for _, c := range conns {
			c.Close()
		}
	}
	t.Logf("before: %v; with 900 of them: %v; %v later: %v; peak %d MB; bystander %v", before, during, took.Round(100*time.Millisecond), after, peak>>20, served)
	if !gone(after) || took > 12*time.Second {
		t.Errorf("what vanished is still there after %v: %v instead of %v", took, after, before)
	}
	if during.descriptors < before.descriptors+800 {
		t.Errorf("the clients were not there: %v", during)
	}
	if peak-before.resident > aboveIdle {
		t.Errorf("%d MB above before, want at most %d", (peak-before.resident)>>20, aboveIdle>>20)
	}
	if served.p99 > harmed {
		t.Errorf("a bystander was harmed: %v", served)
	}
}
