package log

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/vfs"
)

// A full disk under producers that try again is told once a second, with how often it was not; every one is counted.
func TestRefusedAppendsDoNotFillTheLog(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{})
	disk := x.onFault()
	var lines bytes.Buffer
	x.open(func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&lines, nil)) })
	x.append(batch(1, 200, ts0))
	disk.Add(vfs.Rule{Kind: vfs.OpWrite, Name: ".log", Count: -1})
	for range 100 {
		if _, err := x.try(batch(1, 200, ts0), 0, AppendOptions{}); !IsFull(err) {
			t.Fatalf("append on a full disk: %v", err)
		}
	}
	x.now = x.now.Add(time.Second)
	if _, err := x.try(batch(1, 200, ts0), 0, AppendOptions{}); !IsFull(err) {
		t.Fatalf("append on a full disk: %v", err)
	}
	if told := strings.Count(lines.String(), "append taken back"); told != 2 || !strings.Contains(lines.String(), "notTold=99") {
		t.Errorf("%d lines:\n%s", told, lines.String())
	}
	if counted := x.count(EventAppendTakenBack); counted != 101 {
		t.Errorf("%d events, want 101", counted)
	}
}
