package cli

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/config"
	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/vfs"
)

// While a node recovers its logs after an unclean stop /readyz says no, how far that is in percent of the bytes, and how many
// logs; then yes. Standing still is the disk's doing, and holds up nobody who asks.
func TestReadyzTellsHowFarARecoveryIs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n, err := startFor(t.Context(), dir, "offsets.topic.num.partitions=1")
	if err != nil {
		t.Fatal(err)
	}
	for _, topic := range []string{"a", "b", "c"} {
		if r := runAt(n.server.Addr("PLAINTEXT").String(), lines(2000), "produce", topic); r.status != 0 {
			t.Fatal(r.err)
		}
	}
	n.stop()
	// As a killed process leaves it: no word of a clean stop, nothing known to be on disk.
	for _, name := range []string{log.CleanShutdownName, log.RecoveryPointCheckpoint} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}

	disk := vfs.NewFault(vfs.OS())
	release, stuck := make(chan struct{}), make(chan struct{})
	var done atomic.Bool
	var once, opened sync.Once
	disk.Watch(func(o vfs.Operation) *vfs.Failure {
		if o.Kind == vfs.OpRead && strings.Contains(o.Name, string(filepath.Separator)+"c-0") && strings.HasSuffix(o.Name, ".log") && !done.Load() {
			once.Do(func() { close(stuck) })
			<-release
		}
		return nil
	})
	letGo := func() { opened.Do(func() { done.Store(true); close(release) }) }
	c, _, err := config.Parse(config.Sources{DataDir: dir, Set: []string{"listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0", "http.listen=127.0.0.1:0"}})
	if err != nil {
		t.Fatal(err)
	}
	var said lockedBuffer
	again := &node{config: c, fs: disk, seams: Seams{FS: disk}.complete(), logger: slog.New(slog.NewTextHandler(&said, nil)), id: int32(c.Int("node.id")), incarnation: metadata.NewUUID(rand.Reader), failed: make(chan error, 1)}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := again.start(ctx); err != nil {
		again.unwind()
		t.Fatal(err)
	}
	defer again.stop()
	defer letGo()
	ask := func() (int, string) {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		response, err := client.Get("http://" + again.httpAddr().String() + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		return response.StatusCode, string(body)
	}
	select {
	case <-stuck:
	case <-ctx.Done():
		t.Fatal("the log of c-0 is not read")
	}
	for {
		code, body := ask()
		if code == http.StatusOK {
			t.Fatalf("ready in the middle of a recovery: %s", body)
		}
		// All but one of the logs are through, or about to be: a third of the bytes or more.
		if strings.Contains(body, "recovering logs: ") && strings.Contains(body, "2 of 3 logs loaded") && !strings.Contains(body, "100%") && strings.Contains(body, "left") {
			break
		}
		select {
		case <-ctx.Done():
			t.Fatalf("/readyz says %d: %s", code, body)
		case <-time.After(5 * time.Millisecond):
		}
	}
	letGo()
	if err := again.ready(ctx); err != nil {
		t.Fatal(err)
	}
	if code, body := ask(); code != http.StatusOK {
		t.Errorf("when all is recovered: %d %s", code, body)
	}
	if !strings.Contains(said.String(), `msg="logs loaded"`) || !strings.Contains(said.String(), "cleanStop=false") {
		t.Errorf("the log says nothing of it:\n%s", said.String())
	}
	if r := runAt(again.server.Addr("PLAINTEXT").String(), "", "consume", "c", "-e"); r.status != 0 || strings.Count(r.out, "\n") != 2000 {
		t.Errorf("%d lines, status %d %s", strings.Count(r.out, "\n"), r.status, r.err)
	}
}

// lockedBuffer may be written by several goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
