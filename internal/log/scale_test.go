package log

import (
	"context"
	"io"
	"log/slog"
	"runtime"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/vfs"
)

// What ten thousand idle partitions cost: to create, to open after a clean stop, and in memory each.
func BenchmarkTenThousandLogs(b *testing.B) {
	const n = 10000
	for b.Loop() {
		o := DirsOptions{FS: vfs.NewMem(), Paths: []string{"/d"}, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
		d, err := OpenDirs(o)
		if err != nil {
			b.Fatal(err)
		}
		start := time.Now()
		for p := range int32(n) {
			l, err := d.Create(TopicPartition{"t", p}, topicID, Config{}, "/d", true)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := l.AppendAsLeader(batch(1, 100, record0), 0, AppendOptions{}); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(time.Since(start).Microseconds())/n, "create-µs/log")
		if err := d.Close(context.Background(), 1); err != nil {
			b.Fatal(err)
		}
		if d, err = OpenDirs(o); err != nil {
			b.Fatal(err)
		}
		before := heap()
		start = time.Now()
		if _, err := d.Load(context.Background(), keepAll); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(time.Since(start).Microseconds())/n, "load-µs/log")
		b.ReportMetric(float64(heap()-before)/n, "heap-B/log")
		start = time.Now()
		if err := d.CheckpointPositions(); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(time.Since(start).Microseconds()), "checkpoint-µs")
		if err := d.Close(context.Background(), 1); err != nil {
			b.Fatal(err)
		}
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
