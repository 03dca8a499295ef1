package log

import (
	"hash/crc32"
	"io"
	"log/slog"
	"os"
	"testing"

	"github.com/stelelog/stele/internal/vfs"
)

const recoveredBytes = 256 << 20

// writtenLog makes a log of a quarter of a gigabyte in batches of 16 KiB, and says where it is.
func writtenLog(b *testing.B) string {
	l := benchLog(b)
	bt := batch(16, 16<<10, record0)
	for n := 0; n < recoveredBytes; n += len(bt) {
		bt.SetBaseOffset(0)
		if _, err := l.AppendAsLeader(bt, 0, AppendOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	dir := l.Dir()
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
	return dir
}

// What a start reads and checks after a stop that was not clean: everything, with the page cache warm. What matters is the
// ratio to BenchmarkChecksum.
func BenchmarkRecovery(b *testing.B) {
	dir := writtenLog(b)
	b.SetBytes(recoveredBytes)
	for b.Loop() {
		l, err := Open(Options{FS: vfs.OS(), Dir: dir, Topic: "t", RecoveryPoint: 0, LogStart: -1, HighWatermark: -1, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
		if err != nil {
			b.Fatal(err)
		}
		l.Close()
	}
}

// Reading the same bytes with a checksum, and nothing else.
func BenchmarkChecksum(b *testing.B) {
	dir := writtenLog(b)
	table := crc32.MakeTable(crc32.Castagnoli)
	buf := make([]byte, scanBufSize)
	b.SetBytes(recoveredBytes)
	for b.Loop() {
		f, err := os.Open(dir + "/" + logName(0))
		if err != nil {
			b.Fatal(err)
		}
		for sum := uint32(0); ; {
			n, err := f.Read(buf)
			sum = crc32.Update(sum, table, buf[:n])
			if err == io.EOF {
				break
			}
			if err != nil {
				b.Fatal(err)
			}
		}
		f.Close()
	}
}
