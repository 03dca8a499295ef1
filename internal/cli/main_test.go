package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/stelelog/stele/internal/config"
)

func TestMain(m *testing.M) {
	code := m.Run()
	stopShared()
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// The node that most tests talk to: started by the first that asks, stopped before
// leaks are looked for.
var shared struct {
	sync.Mutex
	n    *node
	addr string
	http string
	dir  string
}

func sharedNode(t *testing.T) (bootstrap string) {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.n != nil {
		return shared.addr
	}
	dir, err := os.MkdirTemp("", "stele-cli")
	if err != nil {
		t.Fatal(err)
	}
	n, err := startFor(t.Context(), dir, "http.listen=127.0.0.1:0", "group.initial.rebalance.delay.ms=0", "offsets.topic.num.partitions=2")
	if err != nil {
		t.Fatal(err)
	}
	shared.n, shared.dir, shared.addr, shared.http = n, dir, n.server.Addr("PLAINTEXT").String(), n.httpAddr().String()
	return shared.addr
}

func stopShared() {
	shared.Lock()
	defer shared.Unlock()
	if shared.n != nil {
		shared.n.stop()
		os.RemoveAll(shared.dir)
		shared.n = nil
	}
}

// startFor starts a node on free ports and waits until it is ready.
func startFor(ctx context.Context, dir string, set ...string) (*node, error) {
	c, _, err := config.Parse(config.Sources{DataDir: dir, Set: append([]string{"listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0", "http.listen="}, set...)})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	n, err := startNode(ctx, c, slog.New(slog.DiscardHandler), nil, nil)
	if err != nil {
		return nil, err
	}
	if err := n.ready(ctx); err != nil {
		n.stop()
		return nil, err
	}
	return n, nil
}

// result is what became of one command.
type result struct {
	status   int
	out, err string
}

// run runs a command against the shared node, with its standard input.
func run(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	return runAt(sharedNode(t), stdin, args...)
}

func runAt(bootstrap, stdin string, args ...string) result {
	var out, errs bytes.Buffer
	status := Execute(append(args, "--bootstrap-server", bootstrap), strings.NewReader(stdin), &out, &errs)
	return result{status, out.String(), errs.String()}
}

// ok runs a command that must succeed, and returns what it wrote.
func ok(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	r := run(t, stdin, args...)
	if r.status != 0 {
		t.Fatalf("stele %s: status %d: %s", strings.Join(args, " "), r.status, r.err)
	}
	return r.out
}

// asJSON runs a command with --output json and reads its answer.
func asJSON[T any](t *testing.T, args ...string) T {
	t.Helper()
	var value T
	text := ok(t, "", append(args, "--output", "json")...)
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatalf("stele %s: %v in %s", strings.Join(args, " "), err, text)
	}
	return value
}

// fails runs a command that must fail with this status, in one line that holds every
// one of the words.
func fails(t *testing.T, status int, args []string, words ...string) {
	t.Helper()
	check(t, run(t, "", args...), status, args, words...)
}

func check(t *testing.T, r result, status int, args []string, words ...string) {
	t.Helper()
	if r.status != status || strings.Count(r.err, "\n") != 1 {
		t.Errorf("stele %s: status %d instead of %d, standard error %q", strings.Join(args, " "), r.status, status, r.err)
	}
	for _, word := range words {
		if !strings.Contains(r.err, word) {
			t.Errorf("stele %s: %q does not mention %q", strings.Join(args, " "), r.err, word)
		}
	}
}

// fresh removes what an earlier run of the same test left on the shared node (-count).
func fresh(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		ok(t, "", "topic", "delete", "--if-exists", name)
		run(t, "", "group", "delete", name)
	}
}
