package log

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
)

// BenchmarkCompaction is one pass over 128 MiB of batches of 16 KiB with values of 512 bytes, of which a fifth is left.
func BenchmarkCompaction(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	value := strings.Repeat("v", 512)
	for b.Loop() {
		b.StopTimer()
		c := DefaultConfig()
		c.Cleanup, c.SegmentBytes = CleanupCompact, 32<<20
		l, err := Open(Options{FS: vfs.OS(), Dir: b.TempDir() + "/t-0", Topic: "t", Config: c, RecoveryPoint: -1, LogStart: -1, HighWatermark: -1, CleanedTo: -1})
		if err != nil {
			b.Fatal(err)
		}
		for size := 0; size < 128<<20; {
			builder := record.NewBuilder(record.BuilderOptions{})
			for range 30 {
				if err := builder.Append(time.Now().UnixMilli(), fmt.Appendf(nil, "customer-%07d", rng.IntN(33_000)), []byte(value), nil); err != nil {
					b.Fatal(err)
				}
			}
			batch := builder.Bytes()
			size += len(batch)
			info, err := l.AppendAsLeader(batch, 0, AppendOptions{})
			if err != nil {
				b.Fatal(err)
			}
			l.SetHighWatermark(info.LastOffset + 1)
		}
		if err := l.Flush(); err != nil {
			b.Fatal(err)
		}
		d, _, err := l.Dirtiness(time.Now())
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(d.DirtyBytes)
		b.StartTimer()
		r, err := l.clean(d, cleanOptions{now: time.Now(), mapBytes: 128 << 20, mapLoad: 0.9, throttle: func(int) error { return nil }})
		b.StopTimer()
		if err != nil || r.BytesAfter*3 > r.BytesBefore {
			b.Fatalf("%+v, %v", r, err)
		}
		if err := l.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
