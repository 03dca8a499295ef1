//go:build interop

package interop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stelelog/stele/test/reference"
)

// fileCopy is a file that Kafka Connect copies to a topic, and from there to another file.
type fileCopy struct {
	dir     string
	port    int // of Connect's REST interface
	written int // lines
}

func newFileCopy(t *testing.T, ctx context.Context, target target) *fileCopy {
	t.Helper()
	if err := createTopic(ctx, target.Addr(), "lines", 1, nil); err != nil {
		t.Fatal(err)
	}
	port, err := reference.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return &fileCopy{dir: t.TempDir(), port: port}
}

func (f *fileCopy) file(name string) string { return filepath.Join(f.dir, name) }

// connectors are the configurations of the source and the sink.
func (f *fileCopy) connectors() map[string]map[string]string {
	return map[string]map[string]string{
		"source": {"name": "source", "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector", "tasks.max": "1",
			"file": f.file("in.txt"), "topic": "lines"},
		"sink": {"name": "sink", "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector", "tasks.max": "1",
			"file": f.file("out.txt"), "topics": "lines"},
	}
}

// properties writes settings to a file and returns its path.
func (f *fileCopy) properties(t *testing.T, name string, settings map[string]string) string {
	t.Helper()
	var text strings.Builder
	for k, v := range settings {
		fmt.Fprintf(&text, "%s=%s\n", k, v)
	}
	if err := os.WriteFile(f.file(name), []byte(text.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	return f.file(name)
}

// worker are the settings of either kind of worker.
func (f *fileCopy) worker(target target, more map[string]string) map[string]string {
	settings := map[string]string{
		"bootstrap.servers":        target.Addr(),
		"key.converter":            "org.apache.kafka.connect.storage.StringConverter",
		"value.converter":          "org.apache.kafka.connect.storage.StringConverter",
		"offset.flush.interval.ms": "500",
		"listeners":                fmt.Sprintf("http://127.0.0.1:%d", f.port),
	}
	for k, v := range more {
		settings[k] = v
	}
	return settings
}

// write adds lines to the file.
func (f *fileCopy) write(t *testing.T, lines int) {
	t.Helper()
	in, err := os.OpenFile(f.file("in.txt"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	for range lines {
		// ASCII alone: the source counts characters and, after a restart, skips as many bytes.
		fmt.Fprintf(in, "line %d of a file\n", f.written)
		f.written++
	}
}

// arrived waits until the other file has every line once.
func (f *fileCopy) arrived(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	return eventually(ctx, func() error {
		in, err := os.ReadFile(f.file("in.txt"))
		if err != nil {
			return err
		}
		out, err := os.ReadFile(f.file("out.txt"))
		if err != nil {
			return err
		}
		if !bytes.Equal(in, out) {
			return mismatch(fmt.Sprintf("%d lines went in, %d came out", bytes.Count(in, []byte("\n")), bytes.Count(out, []byte("\n"))))
		}
		return nil
	})
}

func connectStep(t *testing.T, name string, err error) {
	t.Helper()
	results.add("kafka-connect", name, err == nil)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// TestConnect copies a file with a standalone worker. Connect is stopped, lines are added, the broker is stopped and
// started, and Connect goes on: every line arrives once. The source keeps its position in a file, the sink in its
// group's offsets.
func TestConnect(t *testing.T) {
	cp, err := appClasses("connect")
	if err != nil {
		t.Fatal(err)
	}
	target := newTarget(t)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	f := newFileCopy(t, ctx, target)
	args := []string{"org.apache.kafka.connect.cli.ConnectStandalone",
		f.properties(t, "worker.properties", f.worker(target, map[string]string{"offset.storage.file.filename": f.file("offsets")}))}
	for name, settings := range f.connectors() {
		args = append(args, f.properties(t, name+".properties", settings))
	}

	f.write(t, 500)
	worker := startApp(t, "connect", "connect", cp, args...)
	connectStep(t, "file-to-file", f.arrived(ctx))
	f.write(t, 500)
	connectStep(t, "as-it-grows", f.arrived(ctx))
	connectStep(t, "stop", worker.stop())

	// What the sink has committed is what arrived.
	s := suite{target: target}
	at, err := s.committed(ctx, "connect-sink", "lines", 0)
	connectStep(t, "committed", errors.Join(err, expect("offset", at, int64(f.written))))
	f.write(t, 500)
	if err := errors.Join(target.Stop(), target.Start(ctx)); err != nil {
		t.Fatal(err)
	}
	worker = startApp(t, "connect", "connect", cp, args...)
	connectStep(t, "after-restart", f.arrived(ctx))
	connectStep(t, "stop-again", worker.stop())
	got, err := (franz{target.Addr()}).consume(ctx, query{topic: "lines"})
	connectStep(t, "topic", errors.Join(err, expect("records", len(got), f.written)))
}

// TestB102_connect_distributed copies a file with a distributed worker, which is a group of its own protocol and keeps
// connectors, positions and states in compacted topics: it makes them, finds them there when it is started again,
// twice, the second time on a broker that was killed, and goes on where it was.
func TestB102_connect_distributed(t *testing.T) {
	cp, err := appClasses("connect")
	if err != nil {
		t.Fatal(err)
	}
	target := newTarget(t)
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	f := newFileCopy(t, ctx, target)
	properties := f.properties(t, "worker.properties", f.worker(target, map[string]string{
		"group.id":                          "connect",
		"config.storage.topic":              "connect-configs",
		"config.storage.replication.factor": "1",
		"offset.storage.topic":              "connect-offsets",
		"offset.storage.partitions":         "3",
		"offset.storage.replication.factor": "1",
		"status.storage.topic":              "connect-status",
		"status.storage.partitions":         "2",
		"status.storage.replication.factor": "1",
		"scheduled.rebalance.max.delay.ms":  "0",
		"session.timeout.ms":                "10000",
	}))
	start := func() *app {
		return startApp(t, "connect-distributed", "connect", cp, "org.apache.kafka.connect.cli.ConnectDistributed", properties)
	}

	f.write(t, 500)
	worker := start()
	for name, settings := range f.connectors() {
		connectStep(t, "distributed-"+name, f.put(ctx, name, settings))
	}
	connectStep(t, "distributed-file-to-file", f.arrived(ctx))
	connectStep(t, "distributed-stop", worker.stop())
	f.write(t, 500)
	worker = start()
	connectStep(t, "distributed-after-restart", f.arrived(ctx))
	connectStep(t, "distributed-stop-again", worker.stop())
	target.Kill()
	if err := target.Start(ctx); err != nil {
		t.Fatal(err)
	}
	f.write(t, 500)
	worker = start()
	connectStep(t, "distributed-after-kill", f.arrived(ctx))
	connectStep(t, "distributed-end", worker.stop())
}

// put makes a connector by the REST interface, which answers when the worker has joined its group.
func (f *fileCopy) put(ctx context.Context, name string, settings map[string]string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var body strings.Builder
	for k, v := range settings {
		fmt.Fprintf(&body, ",%q:%q", k, v)
	}
	json := "{" + strings.TrimPrefix(body.String(), ",") + "}"
	url := fmt.Sprintf("http://127.0.0.1:%d/connectors/%s/config", f.port, name)
	return eventually(ctx, func() error {
		r, err := http.NewRequestWithContext(ctx, http.MethodPut, url, strings.NewReader(json))
		if err != nil {
			return err
		}
		r.Header.Set("Content-Type", "application/json")
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode >= 300 {
			text, _ := io.ReadAll(answer.Body)
			return fmt.Errorf("%s: %s", answer.Status, text)
		}
		return nil
	})
}
