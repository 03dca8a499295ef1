package log

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
)

// BenchmarkCompaction is one pass over 128 MiB of batches of 16 KiB with values of 512 bytes, of which a fifth is left.
func BenchmarkCompaction(b *testing.B) {
	for _, codec := range []record.Codec{record.None, record.LZ4, record.Zstd, record.Snappy, record.Gzip} {
		b.Run(codec.String(), func(b *testing.B) { compaction(b, codec) })
	}
}

func compaction(b *testing.B, codec record.Codec) {
	rng := rand.New(rand.NewPCG(1, 2))
	values := make([][]byte, 256) // about half of which can be compressed
	for i := range values {
		for len(values[i]) < 512 {
			values[i] = fmt.Appendf(values[i], "%q:%x,", []string{"account", "balance", "customer", "latency", "session"}[rng.IntN(5)], rng.Uint64())
		}
	}
	for b.Loop() {
		b.StopTimer()
		c := DefaultConfig()
		c.Cleanup, c.SegmentBytes = CleanupCompact, 32<<20
		l, err := Open(Options{FS: vfs.OS(), Dir: b.TempDir() + "/t-0", Topic: "t", Config: c, RecoveryPoint: -1, LogStart: -1, HighWatermark: -1, CleanedTo: -1})
		if err != nil {
			b.Fatal(err)
		}
		for size := 0; size < 128<<20; {
			builder := record.NewBuilder(record.BuilderOptions{Codec: codec})
			for range 30 {
				if err := builder.Append(time.Now().UnixMilli(), fmt.Appendf(nil, "customer-%07d", rng.IntN(33_000)), values[rng.IntN(len(values))], nil); err != nil {
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
