package log

import (
	"errors"
	"testing"

	"github.com/stelelog/stele/internal/record"
)

// Whatever bytes a segment and its derived files hold, after a clean or an unclean stop: the log opens, or says that
// it cannot be used; it never panics; and once open it appends, reads back what it appended, and opens again.
func FuzzOpen(f *testing.F) {
	sound := at(batch(3, 200, ts0), 0)
	two := append(sound.Clone(), at(idempotent(1, 0, 0, 2, true), 3)...)
	three := append(two.Clone(), at(marker(1, 0, false, 3), 5)...)
	f.Add([]byte(sound), []byte{}, []byte{}, []byte("0\n1\n0 0\n"), false)
	f.Add([]byte(three), unhex("00000003000000c8"), unhex("0000018bcfe5680000000002"), []byte{}, true)
	f.Add([]byte(two)[:len(two)-3], []byte{1}, []byte{2}, []byte("x"), true)
	f.Add(make([]byte, 300), make([]byte, 16), make([]byte, 24), []byte{}, false)
	f.Fuzz(func(t *testing.T, log, index, times, epochs []byte, wasClean bool) {
		x := newTester(t, Config{IndexIntervalBytes: 1})
		if err := x.fs.MkdirAll(x.dir, 0o755); err != nil {
			t.Fatal(err)
		}
		// A right checksum lets the rest of a damaged batch through to where it may hurt.
		for b, err := range record.Batches(log) {
			if err == nil && b.LastOffsetDelta() >= 0 {
				b.SetMaxTimestamp(b.TimestampType(), b.MaxTimestamp())
			}
		}
		x.put(logName(0), log)
		x.put(indexName(0), index)
		x.put(timeName(0), times)
		x.put("leader-epoch-checkpoint", epochs)
		o := x.options()
		o.Clean = wasClean
		l, err := Open(o)
		if err != nil {
			var ce *CorruptError
			if !errors.As(err, &ce) {
				t.Fatal(err)
			}
			return
		}
		x.log = l
		epoch := int32(1 << 30)
		end := x.leo()
		if end >= 1<<31-2 {
			return // no room left in the segment's offsets for this test's sake
		}
		if v := l.View(); v.Epochs.Len() > 0 {
			last, _ := v.Epochs.Latest()
			epoch = max(epoch, last.Epoch)
			v.Release()
		}
		if _, err := x.try(batch(1, 100, ts0), epoch, AppendOptions{}); err != nil {
			t.Fatal(err)
		}
		v := l.View()
		d, err := v.Read(end, end+1, 1000, true)
		if err != nil || d.Length == 0 {
			t.Fatalf("read what was appended at %d: %v", end, err)
		}
		for _, ts := range []int64{0, ts0, 1 << 60} {
			_, _, _ = v.OffsetForTime(ts, v.EndOffset) // a *CorruptError is fine
		}
		_, _, _ = v.MaxTimestamp(v.EndOffset)
		v.Release()
		x.close().open(clean)
		if x.leo() != end+1 {
			t.Fatalf("end %d after a restart, want %d", x.leo(), end+1)
		}
		if err := x.log.TruncateTo(end, "fuzz"); err != nil {
			t.Fatal(err)
		}
		if _, err := Verify(x.fs, x.dir); err != nil {
			t.Fatal(err)
		}
	})
}
