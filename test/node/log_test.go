package node

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pierrec/lz4/v4"

	"github.com/stelelog/stele/internal/record"
)

// lz4Of is one lz4 frame, written with options.
func lz4Of(t testing.TB, b []byte, options ...lz4.Option) []byte {
	t.Helper()
	var out bytes.Buffer
	w := lz4.NewWriter(&out)
	if err := w.Apply(options...); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestS016_lz4_frames: frames with a content size, with block checksums and with a content checksum are taken;
// a wrong header checksum, linked blocks and a wrong block checksum are invalid.
func TestS016_lz4_frames(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	body := exampleA()[record.HeaderSize:]
	for name, options := range map[string][]lz4.Option{
		"content size":     {lz4.SizeOption(uint64(len(body))), lz4.ChecksumOption(false)},
		"block checksums":  {lz4.BlockChecksumOption(true), lz4.ChecksumOption(false)},
		"content checksum": {lz4.ChecksumOption(true)},
	} {
		tp := c.topic(1)
		if p := c.produce(9, tp, 0, withBody(exampleA(), 3, lz4Of(t, body, options...))); p.ErrorCode != 0 {
			t.Errorf("%s: error %d %s", name, p.ErrorCode, deref(p.ErrorMessage))
		} else if got := recordsOf(t, c.stored(tp, 0)); len(got) != 2 || got[1].value != "v2" {
			t.Errorf("%s: %+v", name, got)
		}
	}
	frame := exampleE()[record.HeaderSize:]
	header := bytes.Clone(frame)
	header[6] ^= 1
	linked := bytes.Clone(frame)
	linked[4] = 0x40
	checked := lz4Of(t, body, lz4.BlockChecksumOption(true), lz4.ChecksumOption(false))
	checked[len(checked)-5] ^= 1
	refuseAll(t, []refusal{
		{"wrong header checksum", withBody(exampleA(), 3, header), 87},
		{"linked blocks", withBody(exampleA(), 3, linked), 87},
		{"wrong block checksum", withBody(exampleA(), 3, checked), 87},
	})
}

// TestS034_seven_batches: of seven batches of one record the third, sent again, is a duplicate with its first
// offset and its largest timestamp as append time; the second is out of order.
func TestS034_seven_batches(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1)
	for sequence := range int32(7) {
		c.wantAppend(tp, idempotent(4000, 0, sequence, 1), 0, int64(sequence))
	}
	if p := c.produce(9, tp, 0, idempotent(4000, 0, 2, 1)); p.ErrorCode != 0 || p.BaseOffset != 2 || p.LogAppendTime != stamp+2 {
		t.Errorf("sequence 2 again: %+v, want base offset 2, append time %d", p, stamp+2)
	}
	c.wantAppend(tp, idempotent(4000, 0, 1, 1), 45, -1)
}

// TestS035_sequences_wrap: a batch of four from 2147483646 is taken, the next sequence is 2, and 1 is out of order.
func TestS035_sequences_wrap(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1)
	high := resealed(put32(idempotent(4000, 0, 0, 4), atSequence, math.MaxInt32-1))
	c.wantAppend(tp, high, 0, 0)
	c.wantAppend(tp, high, 0, 0)
	c.wantAppend(tp, idempotent(4000, 0, 1, 1), 45, -1)
	c.wantAppend(tp, idempotent(4000, 0, 2, 1), 0, 4)
}

// TestS036_restart_between_sequences: after a clean restart and after a kill -9 the last sequence is a duplicate and
// the next one is taken.
func TestS036_restart_between_sequences(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.dial(t)
	tp := c.topic(1)
	next := int32(0)
	for _, again := range []func(){func() { n.restart(t) }, func() { n.kill(); n.run(t) }, func() { n.restart(t) }} {
		c.wantAppend(tp, idempotent(4000, 0, next, 2), 0, int64(next))
		again()
		c = n.dial(t)
		c.led(tp, 1)
		c.wantAppend(tp, idempotent(4000, 0, next, 2), 0, int64(next))
		next += 2
	}
	c.wantAppend(tp, idempotent(4000, 0, next, 2), 0, int64(next))
}

// TestS048_time_vectors: over batches stamped (100, 90), (80, 120) and (110) lookups find the first record not
// earlier; one below the log start is skipped for the next.
func TestS048_time_vectors(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1)
	for _, stamps := range [][]int64{{100, 90}, {80, 120}, {110}} {
		var records []rec
		for _, at := range stamps {
			records = append(records, rec{at, nil, nil})
		}
		c.mustProduce(tp, 0, batch(record.BuilderOptions{}, records...))
	}
	for target, want := range map[int64]found{85: {0, 100, 0}, 105: {3, 120, 0}, 119: {3, 120, 0}, 121: {-1, -1, -1}, -3: {3, 120, 0}} {
		c.wantOffset(tp, target, want)
	}
	c.mustDeleteRecords(tp, 1)
	c.wantOffset(tp, 85, found{1, 90, 0})
}

// TestE074_derived_files_deleted: with every index and snapshot deleted while the node was down, lookups by time and
// of the largest timestamp and a producer's retry behave as before.
func TestE074_derived_files_deleted(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.dial(t)
	tp := c.topic(1, "segment.bytes=1048576")
	c.wantAppend(tp, idempotent(4000, 0, 0, 3), 0, 0)
	for i := range int64(4) {
		c.mustProduce(tp, 0, sized(400_000, stamp+100*i))
	}
	c.wantAppend(tp, idempotent(4000, 0, 3, 2), 0, 7)
	check := func(when string) {
		t.Helper()
		c.wantOffset(tp, stamp+150, found{5, stamp + 200, 0})
		c.wantOffset(tp, -3, found{6, stamp + 300, 0})
		c.wantAppend(tp, idempotent(4000, 0, 3, 2), 0, 7)
		if end := c.end(tp); end != 9 {
			t.Errorf("%s: the log ends at %d", when, end)
		}
	}
	check("before")
	n.stop(t)
	gone := 0
	for _, kind := range []string{"*.index", "*.timeindex", "*.snapshot"} {
		files, err := filepath.Glob(n.path(tp.name, kind))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
			gone++
		}
	}
	if gone < 5 {
		t.Fatalf("only %d files to delete", gone)
	}
	n.run(t)
	c = n.dial(t)
	c.led(tp, 1)
	check("after")
}

// TestE075_noise_behind_the_log: 300 random bytes behind the active segment, written while the node was down, after a
// clean stop or a kill -9, are dropped with one warning that counts them; the log ends where it ended.
func TestE075_noise_behind_the_log(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*node){"stopped": func(n *node) { n.stop(t) }, "killed": (*node).kill} {
		n := start(t)
		c := n.dial(t)
		tp := c.topic(1)
		c.mustProduce(tp, 0, plain(10, stamp))
		end(n)
		noise := make([]byte, 300)
		_, _ = rand.Read(noise)
		log, err := os.OpenFile(n.path(tp.name, "00000000000000000000.log"), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := log.Write(noise); err != nil {
			t.Fatal(err)
		}
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
		n.run(t)
		c = n.dial(t)
		c.led(tp, 1)
		if end := c.end(tp); end != 10 {
			t.Errorf("%s: the log ends at %d, want 10", name, end)
		}
		warned := 0
		for line := range strings.Lines(n.log()) {
			if strings.Contains(line, `"level":"WARN"`) && strings.Contains(line, "300") {
				warned++
			}
		}
		if warned != 1 {
			t.Errorf("%s: %d warnings count the 300 bytes:\n%s", name, warned, n.log())
		}
		if base := c.mustProduce(tp, 0, exampleA()); base != 10 {
			t.Errorf("%s: the next batch is at %d", name, base)
		}
	}
}

// TestE077_timestamps_fall_after_a_roll: a record older than the one before it, the first right after a roll, is stored,
// and the largest timestamp is still that of the first.
func TestE077_timestamps_fall_after_a_roll(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1, "segment.bytes=1048576")
	c.mustProduce(tp, 0, sized(700_000, 1749554797000))
	c.mustProduce(tp, 0, sized(700_000, 1749554797191)) // rolls
	c.mustProduce(tp, 0, sized(1000, 1749554796970))
	c.wantOffset(tp, -3, found{1, 1749554797191, 0})
	c.wantOffset(tp, 1749554797100, found{1, 1749554797191, 0})
}

// Offsets of many batches over several segments and restarts are without a gap.
func TestOffsets_are_contiguous(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.dial(t)
	tp := c.topic(1, "segment.bytes=1048576")
	next := int64(0)
	for round := range 3 {
		for range 6 {
			if base := c.mustProduce(tp, 0, sized(300_000, stamp)); base != next {
				t.Fatalf("batch at %d, want %d", base, next)
			}
			next++
		}
		if round%2 == 0 {
			n.kill()
			n.run(t)
		} else {
			n.restart(t)
		}
		c = n.dial(t)
		c.led(tp, 1)
		if end := c.end(tp); end != next {
			t.Fatalf("the log ends at %d, want %d", end, next)
		}
	}
	segments, err := filepath.Glob(n.path(tp.name, "*.log"))
	if err != nil || len(segments) < 3 {
		t.Fatalf("segments %s, %v", fmt.Sprint(segments), err)
	}
}
