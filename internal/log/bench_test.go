package log

import (
	"fmt"
	"io"
	"log/slog"
	"testing"

	"github.com/stelelog/stele/internal/vfs"
)

func benchLog(b *testing.B) *Log {
	l, err := Open(Options{FS: vfs.OS(), Dir: b.TempDir() + "/t-0", Topic: "t", RecoveryPoint: -1, LogStart: -1, HighWatermark: -1,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), Config: Config{RetentionBytes: 1 << 28}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close() })
	return l
}

// Sixteen records of 1 KiB in one batch.
func BenchmarkAppend(b *testing.B) {
	l := benchLog(b)
	bt := batch(16, 16<<10, record0)
	b.SetBytes(int64(len(bt)))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		bt.SetBaseOffset(0)
		info, err := l.AppendAsLeader(bt, 0, AppendOptions{})
		if err != nil {
			b.Fatal(err)
		}
		l.SetHighWatermark(info.LastOffset + 1)
		if i%10000 == 9999 {
			if _, err := l.Retain(l.now()); err != nil {
				b.Fatal(err)
			}
			l.DeleteDue(l.now().Add(1 << 40))
		}
	}
}

const record0 = -1 // no timestamp: old batches pass whatever the clock says

// A fetch of 64 KiB at a random place: view, lookup, pread.
func BenchmarkRead(b *testing.B) {
	for _, size := range []int{200, 16 << 10} {
		b.Run(fmt.Sprintf("batch=%d", size), func(b *testing.B) {
			l := benchLog(b)
			bt := batch(4, size, record0)
			n := int64(64 << 20 / len(bt))
			for range n {
				bt.SetBaseOffset(0)
				if _, err := l.AppendAsLeader(bt, 0, AppendOptions{}); err != nil {
					b.Fatal(err)
				}
			}
			buf := make([]byte, 64<<10)
			b.SetBytes(64 << 10)
			b.ReportAllocs()
			for i := int64(0); b.Loop(); i++ {
				v := l.View()
				d, err := v.Read(i*7919%(4*n), v.EndOffset, 64<<10, true)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := d.ReadAll(buf); err != nil {
					b.Fatal(err)
				}
				v.Release()
			}
		})
	}
}
