//go:build interop

package differential

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stelelog/stele/test/reference"
)

// settings are the same for both servers: short waits, little that is pre-made, and records of the past kept.
var settings = []string{
	"group.initial.rebalance.delay.ms=0",
	"offsets.topic.num.partitions=1",
	"transaction.state.log.num.partitions=1",
	"log.retention.ms=-1",
	// Kafka's controller resigns when one of its handlers fails; it need not wait long before it leads again.
	"controller.quorum.election.timeout.ms=50",
	"controller.quorum.election.backoff.max.ms=50",
}

// servers starts both.
func servers(ctx context.Context, t *testing.T, both bool) (addrs [2]string) {
	if given := os.Getenv("STELE_DIFFERENTIAL_ADDRS"); given != "" {
		kafka, stele, _ := strings.Cut(given, ",")
		return [2]string{kafka, stele}
	}
	stele := build(t)
	if !both {
		addrs[1] = startStele(ctx, t, stele)
		return addrs
	}
	node, err := reference.NewNode(ctx, filepath.Join(t.TempDir(), "kafka"), "", settings...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		node.Kill()
		if log, err := os.ReadFile(filepath.Join(node.Dir, "server.log")); err == nil {
			_ = os.WriteFile(filepath.Join(os.TempDir(), "stele-differential-kafka.log"), log, 0o644)
		}
	})
	started := make(chan error, 1)
	go func() { started <- node.Start(ctx) }()
	addrs[1] = startStele(ctx, t, stele)
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	addrs[0] = node.Addr()
	return addrs
}

func build(t *testing.T) string {
	script, err := reference.Script()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "stele")
	cmd := exec.Command("go", "build", "-o", path, "./cmd/stele")
	cmd.Dir = filepath.Dir(filepath.Dir(filepath.Dir(script)))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build ./cmd/stele: %v\n%s", err, out)
	}
	return path
}

func startStele(ctx context.Context, t *testing.T, path string) string {
	var ports [3]int
	for i := range ports {
		var err error
		if ports[i], err = reference.FreePort(); err != nil {
			t.Fatal(err)
		}
	}
	addr := fmt.Sprintf("127.0.0.1:%d", ports[0])
	args := []string{"serve", "--data-dir", filepath.Join(t.TempDir(), "stele"),
		"--set", fmt.Sprintf("listeners=PLAINTEXT://%s,CONTROLLER://127.0.0.1:%d", addr, ports[1]),
		"--set", fmt.Sprintf("controller.quorum.voters=1@127.0.0.1:%d", ports[1]),
		"--set", fmt.Sprintf("http.listen=127.0.0.1:%d", ports[2])}
	for _, s := range settings {
		args = append(args, "--set", s)
	}
	logPath := filepath.Join(os.TempDir(), "stele-differential-server.log")
	log, err := os.Create(logPath)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(path, args...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "STELE_") }) // they would be settings
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for ctx.Err() == nil {
		resp, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/readyz", ports[2]))
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return addr
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("stele was not ready in time; see %s", logPath)
	return ""
}
