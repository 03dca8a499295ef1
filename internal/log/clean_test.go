package log

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
)

// kv is one keyed record; a value of "-" is a tombstone.
type kv struct {
	key, value string
}

func keyed(ts int64, o record.BuilderOptions, records ...kv) record.Batch {
	b := record.NewBuilder(o)
	for i, r := range records {
		var key, value []byte
		if r.key != "" {
			key = []byte(r.key)
		}
		if r.value != "-" {
			value = []byte(r.value)
		}
		if err := b.Append(ts+int64(i), key, value, nil); err != nil {
			panic(err)
		}
	}
	return b.Bytes()
}

func producer(id int64, seq int32) *record.Producer {
	return &record.Producer{ID: id, BaseSequence: seq}
}

// pass cleans once, whatever the ratio.
func (x *tester) pass(change ...func(*cleanOptions)) (CleanResult, error) {
	x.t.Helper()
	d, _, err := x.log.Dirtiness(x.now)
	if err != nil {
		x.t.Fatalf("dirtiness: %v", err)
	}
	o := cleanOptions{now: x.now, mapBytes: 1 << 20, mapLoad: 0.9, throttle: func(int) error { return nil }}
	for _, c := range change {
		c(&o)
	}
	return x.log.clean(d, o)
}

func (x *tester) mustPass(change ...func(*cleanOptions)) CleanResult {
	x.t.Helper()
	r, err := x.pass(change...)
	if err != nil {
		x.t.Fatalf("clean: %v", err)
	}
	return r
}

// batches describes all batches of the log but those of the active segment that are beyond end.
func (x *tester) batches() []string {
	x.t.Helper()
	v := x.log.View()
	defer v.Release()
	var out []string
	for i, seg := range v.list.segs {
		s := &batchScanner{file: seg.file, end: v.state(i).size}
		for {
			b, err := s.next()
			if err != nil {
				break
			}
			line := fmt.Sprintf("%d-%d", b.BaseOffset(), b.LastOffset())
			if b.IsControl() {
				m, ok, err := record.ParseEndTxnMarker(b)
				if err != nil {
					x.t.Fatal(err)
				}
				if ok {
					line += " " + m.Type().String()
				}
			} else {
				for r, err := range b.Records(record.Limits{}) {
					if err != nil {
						x.t.Fatal(err)
					}
					value := "-"
					if r.Value != nil {
						value = string(r.Value)
					}
					line += fmt.Sprintf(" %d:%s=%s", b.OffsetOf(r), r.Key, value)
				}
			}
			if b.Count() == 0 {
				line += " empty"
			}
			if h, ok := b.DeleteHorizon(); ok {
				line += fmt.Sprintf(" until %d", h)
			}
			out = append(out, line)
		}
	}
	return out
}

// batchAt is the batch that begins at an offset.
func (x *tester) batchAt(offset int64) record.Batch {
	x.t.Helper()
	v := x.log.View()
	defer v.Release()
	for _, b := range readAll(x.t, v) {
		if b.BaseOffset() == offset {
			return b.Clone()
		}
	}
	x.t.Fatalf("no batch begins at %d", offset)
	return nil
}

func wantBatches(t *testing.T, x *tester, when string, want ...string) {
	t.Helper()
	if got := x.batches(); !slices.Equal(got, want) {
		t.Errorf("%s:\n  %s\nwant\n  %s", when, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func compact(c Config) Config {
	c.Cleanup = CleanupCompact
	return c
}

// The worked example: records, tombstones, an aborted transaction and idempotent producers over four passes, down to
// attributes, timestamps, the transaction index and the checkpoint.
func TestS066_example(t *testing.T) {
	t.Parallel()
	x := newTester(t, compact(Config{DeleteRetentionMs: 1000, SegmentBytes: 1 << 20}))
	x.now = time.UnixMilli(500)
	x.open()
	plain := record.BuilderOptions{}
	roll := func() {
		x.log.mu.Lock()
		defer x.log.mu.Unlock()
		if err := x.log.roll(x.log.leo); err != nil {
			t.Fatal(err)
		}
	}
	x.append(keyed(100, plain, kv{"k1", "a"}))
	x.append(keyed(110, plain, kv{"k2", "b"}))
	x.append(keyed(120, plain, kv{"k1", "c"}))
	x.append(keyed(130, plain, kv{"k3", "d"}))
	x.append(keyed(140, plain, kv{"k2", "-"}))
	roll()
	x.append(keyed(150, plain, kv{"k1", "e"}))
	x.append(keyed(160, record.BuilderOptions{Producer: producer(9, 0), Transactional: true}, kv{"k4", "f"}))
	x.end(record.NewEndTxnBatch(record.EndTxnMarker{ProducerID: 9}, 170))
	x.log.SetHighWatermark(x.leo())
	x.append(keyed(180, record.BuilderOptions{Producer: producer(8, 0)}, kv{"k3", "g"}))
	x.append(keyed(190, plain, kv{"k5", "h"}))
	roll()
	x.append(keyed(200, plain, kv{"k6", "i"}))
	x.append(keyed(210, plain, kv{"k3", "j"}))
	x.append(keyed(220, plain, kv{"k1", "m"}))
	// The active segment of the example begins with 10: 10-12 come after the first pass there, and change nothing in it.

	x.now = time.UnixMilli(10000)
	x.mustPass()
	wantBatches(t, x, "pass 1", "4-4 4:k2=- until 11000", "5-5 5:k1=e", "6-6 empty", "7-7 ABORT", "8-8 8:k3=g", "9-9 9:k5=h",
		"10-10 10:k6=i", "11-11 11:k3=j", "12-12 12:k1=m")
	v := x.log.View()
	b, err := readBatch(v.list.segs[0].file, 0, 1, nil)
	if err == nil {
		b, err = readBatch(v.list.segs[0].file, 0, int(v.list.segs[0].sealed.size), nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	for r := range b[:b.Length()].Records(record.Limits{}) {
		if b.Attributes() != 0x40 || b.BaseTimestamp() != 11000 || r.TimestampDelta != -10860 {
			t.Errorf("tombstone: attributes %#x, base timestamp %d, delta %d", b.Attributes(), b.BaseTimestamp(), r.TimestampDelta)
		}
	}
	if got, want := v.list.segs[0].sealed.txns, []txnEntry{{9, 6, 7, 8}}; !slices.Equal(got, want) || len(v.list.segs) != 2 {
		t.Errorf("%d segments, transactions %v", len(v.list.segs), got)
	}
	v.Release()
	if got := x.log.cleanedTo.Load(); got != 10 {
		t.Errorf("checkpoint %d", got)
	}

	// What is left of pid 9's batch is its header, and its marker is as it was.
	emptied := x.batchAt(6)
	if emptied.Attributes() != 0x10 || emptied.BaseTimestamp() != -1 || emptied.MaxTimestamp() != 160 || emptied.ProducerID() != 9 || emptied.ProducerEpoch() != 0 ||
		emptied.BaseSequence() != 0 || emptied.LastOffsetDelta() != 0 || emptied.Count() != 0 || emptied.Length() != record.HeaderSize || emptied.VerifyCRC() != nil {
		t.Errorf("emptied batch %x", []byte(emptied))
	}
	if m := x.batchAt(7); m.Attributes() != 0x30 || m.BaseTimestamp() != 170 {
		t.Errorf("marker after pass 1: attributes %#x, base timestamp %d", m.Attributes(), m.BaseTimestamp())
	}
	txns := func(when string, want ...txnEntry) {
		t.Helper()
		v := x.log.View()
		defer v.Release()
		var got, onDisk []txnEntry
		for i, s := range v.list.segs {
			got = append(got, v.state(i).txns...)
			if name := txnName(s.base); x.exists(name) {
				onDisk = append(onDisk, must(parseTxnIndex(x.file(name), s.base))...)
			}
		}
		if !slices.Equal(got, want) || !slices.Equal(onDisk, want) {
			t.Errorf("%s: transaction index %v, on disk %v, want %v", when, got, onDisk, want)
		}
	}
	txns("pass 1", txnEntry{9, 6, 7, 8})

	roll()
	x.log.mu.Lock()
	delete(x.log.producers.byID, 9) // it expired
	x.log.mu.Unlock()
	x.now = time.UnixMilli(20000)
	x.mustPass()
	wantBatches(t, x, "pass 2", "7-7 ABORT", "8-8 empty", "9-9 9:k5=h", "10-10 10:k6=i", "11-11 11:k3=j", "12-12 12:k1=m")
	if got := x.log.cleanedTo.Load(); got != 13 {
		t.Errorf("checkpoint %d", got)
	}
	txns("pass 2", txnEntry{9, 6, 7, 8})
	if b := x.batchAt(8); b.Attributes() != 0 || b.ProducerID() != 8 || b.BaseTimestamp() != -1 || b.MaxTimestamp() != 180 || b.Count() != 0 {
		t.Errorf("emptied batch of pid 8: %x", []byte(b))
	}

	x.append(keyed(230, plain, kv{"k7", "n"}))
	roll()
	x.now = time.UnixMilli(30000)
	x.mustPass()
	wantBatches(t, x, "pass 3", "7-7 ABORT until 31000", "8-8 empty", "9-9 9:k5=h", "10-10 10:k6=i", "11-11 11:k3=j", "12-12 12:k1=m", "13-13 13:k7=n")
	txns("pass 3")
	m := x.batchAt(7)
	for r := range m.Records(record.Limits{}) {
		if m.Attributes() != 0x70 || m.BaseTimestamp() != 31000 || m.MaxTimestamp() != 170 || r.TimestampDelta != -30830 || m.ProducerID() != 9 || m.BaseSequence() != -1 {
			t.Errorf("marker with a horizon: %x", []byte(m))
		}
	}
	if marker, ok, err := record.ParseEndTxnMarker(m); err != nil || !ok || marker != (record.EndTxnMarker{ProducerID: 9}) {
		t.Errorf("marker with a horizon: %+v, %t, %v", marker, ok, err)
	}

	x.append(keyed(240, plain, kv{"k8", "o"}))
	roll()
	x.now = time.UnixMilli(31000)
	x.mustPass()
	wantBatches(t, x, "pass 4", "8-8 empty", "9-9 9:k5=h", "10-10 10:k6=i", "11-11 11:k3=j", "12-12 12:k1=m", "13-13 13:k7=n", "14-14 14:k8=o")
	// A retry of the emptied batch is still a duplicate, also after a restart that has no snapshot.
	retry := func(when string) {
		t.Helper()
		info, err := x.try(keyed(180, record.BuilderOptions{Producer: producer(8, 0)}, kv{"k3", "g"}), 0, AppendOptions{})
		if err != nil || !info.Duplicate || info.BaseOffset != 8 {
			t.Errorf("%s: %+v, %v", when, info, err)
		}
	}
	retry("retry")
	x.close()
	names, err := fileNames(x.fs, x.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if strings.HasSuffix(n, ".snapshot") {
			if err := x.fs.Remove(x.dir + "/" + n); err != nil {
				t.Fatal(err)
			}
		}
	}
	x.open()
	retry("retry after a restart")
}

// The ratio alone decides, and strictly; a log that is overdue is cleaned below it; what is younger than the minimum
// lag, or at or above an open transaction, stays.
func TestS067_what_is_cleaned(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		clean, dirty int64
		ratio        float64
		overdue      bool
		want         bool
	}{
		{100, 100, 0.5, false, false}, {100, 101, 0.5, false, true}, {0, 1, 0.99, false, true}, {10, 0, 0, false, false}, {900, 100, 0.5, true, true},
		{10, 0, 0, true, false}, {0, 0, 0, false, false},
	} {
		if got := (Dirtiness{CleanBytes: c.clean, DirtyBytes: c.dirty, Overdue: c.overdue}).Cleanable(c.ratio); got != c.want {
			t.Errorf("%+v: %t", c, got)
		}
	}

	t.Run("lag", func(t *testing.T) {
		t.Parallel()
		x := newTester(t, compact(Config{SegmentBytes: 300, MinCompactionLagMs: 10_000})).open()
		for i := range int64(4) {
			x.append(exactlyKeyed(200, ts0+i*5000, "k"))
		}
		segments := func() (dirty int64) {
			d, _, err := x.log.Dirtiness(x.now)
			if err != nil {
				t.Fatal(err)
			}
			return d.Uncleanable
		}
		x.now = time.UnixMilli(ts0 + 9_999)
		if got := segments(); got != 0 {
			t.Errorf("cleaned up to %d, all are too young", got)
		}
		x.now = time.UnixMilli(ts0 + 15_000)
		if got := segments(); got != 2 {
			t.Errorf("cleaned up to %d, want 2: two are old enough", got)
		}
		x.now = time.UnixMilli(ts0 + 1_000_000)
		if got := segments(); got != 3 {
			t.Errorf("cleaned up to %d, want 3: never the active segment", got)
		}
	})
	t.Run("overdue", func(t *testing.T) {
		t.Parallel()
		x := newTester(t, compact(Config{SegmentBytes: 300, MaxCompactionLagMs: 10_000})).open()
		x.append(exactlyKeyed(200, ts0, "a"))
		x.append(exactlyKeyed(200, ts0, "b"))
		x.log.cleanedTo.Store(0)
		for at, want := range map[int64]bool{10_000: false, 10_001: true} {
			d, _, err := x.log.Dirtiness(time.UnixMilli(ts0 + at))
			if err != nil || d.Overdue != want {
				t.Errorf("after %d ms: overdue %t, %v", at, d.Overdue, err)
			}
		}
		// The earliest of all dirty segments counts, wherever it lies; those without a time do not.
		y := newTester(t, compact(Config{SegmentBytes: 300, MaxCompactionLagMs: 10_000})).open()
		for _, ts := range []int64{record.NoTimestamp, ts0 + 8_000, ts0, ts0 + 9_000} {
			y.append(exactlyKeyed(200, ts, "a"))
		}
		for at, want := range map[int64]bool{10_000: false, 10_001: true} {
			d, _, err := y.log.Dirtiness(time.UnixMilli(ts0 + at))
			if err != nil || d.Overdue != want {
				t.Errorf("with an old segment behind younger ones, after %d ms: overdue %t, %v", at, d.Overdue, err)
			}
		}
	})
	t.Run("open transaction", func(t *testing.T) {
		t.Parallel()
		x := newTester(t, compact(Config{SegmentBytes: 300})).open()
		x.append(exactlyKeyed(200, ts0, "a"))
		x.append(exactlyKeyed(200, ts0, "a"))
		x.append(keyed(ts0, record.BuilderOptions{Producer: producer(1, 0), Transactional: true}, kv{"a", "x"}))
		x.append(exactlyKeyed(200, ts0, "a"))
		x.append(exactlyKeyed(200, ts0, "a"))
		d, _, err := x.log.Dirtiness(x.now)
		if err != nil || d.Uncleanable > 2 || d.Uncleanable == 0 {
			t.Errorf("cleaned up to %d with a transaction open from 2: %v", d.Uncleanable, err)
		}
	})
	t.Run("checkpoint outside the log", func(t *testing.T) {
		t.Parallel()
		x := newTester(t, compact(Config{SegmentBytes: 300})).open()
		x.append(exactlyKeyed(200, ts0, "a"))
		x.log.cleanedTo.Store(7)
		d, reset, err := x.log.Dirtiness(x.now)
		if err != nil || !reset || d.FirstDirty != 0 {
			t.Errorf("%+v, reset %t, %v", d, reset, err)
		}
	})
}

func exactlyKeyed(size int, ts int64, key string) record.Batch {
	return keyed(ts, record.BuilderOptions{}, kv{key, strings.Repeat("x", size-record.HeaderSize-10-len(key))})
}

// With a map for three keys a pass ends inside a segment, at the first key too many; further passes finish, and the
// result is that of one pass with room.
func TestS068_map_full(t *testing.T) {
	t.Parallel()
	make := func() *tester {
		x := newTester(t, compact(Config{SegmentBytes: 500})).open()
		for i := range 40 {
			x.append(keyed(ts0, record.BuilderOptions{}, kv{fmt.Sprint("k", i%7), fmt.Sprint(i)}, kv{fmt.Sprint("k", i%5), fmt.Sprint(i, "b")},
				kv{fmt.Sprint("l", i%4), "c"}, kv{fmt.Sprint("m", i%3), "d"}))
		}
		return x
	}
	one, many := make(), make()
	one.mustPass()
	small := func(o *cleanOptions) { o.mapBytes, o.mapLoad = 4*offsetMapEntrySize, 0.9 }
	r := many.mustPass(small)
	if !r.MapFull || r.Keys != 3 || many.log.cleanedTo.Load() != r.To || r.To == 0 {
		t.Fatalf("%+v, checkpoint %d", r, many.log.cleanedTo.Load())
	}
	for range 200 {
		d, _, err := many.log.Dirtiness(many.now)
		if err != nil {
			t.Fatal(err)
		}
		if d.DirtyBytes == 0 || d.FirstDirty == d.Uncleanable {
			break
		}
		if r := many.mustPass(small); r.To <= r.From {
			t.Fatalf("no way forward: %+v", r)
		}
	}
	if a, b := one.table(), many.table(); !maps.Equal(a, b) {
		t.Errorf("one pass leaves %v, many leave %v", a, b)
	}
	if a, b := one.batches(), many.batches(); !slices.Equal(a, b) {
		t.Errorf("one pass leaves\n%s\nmany leave\n%s", strings.Join(a, "\n"), strings.Join(b, "\n"))
	}
}

// table is what a reader of the whole log ends up with: the last value of each key, as a read_committed consumer sees it.
func (x *tester) table() map[string]string {
	x.t.Helper()
	v := x.log.View()
	defer v.Release()
	aborted := transactionsOf(v, 0)
	out := map[string]string{}
	for i, seg := range v.list.segs {
		s := &batchScanner{file: seg.file, end: v.state(i).size}
		for {
			b, err := s.next()
			if err != nil {
				break
			}
			if b.IsControl() {
				if _, _, _, err := aborted.marker(b); err != nil {
					x.t.Fatal(err)
				}
				continue
			}
			if aborted.data(b) {
				continue
			}
			for r, err := range b.Records(record.Limits{}) {
				switch {
				case err != nil:
					x.t.Fatal(err)
				case r.Key == nil:
				case r.Value == nil:
					delete(out, string(r.Key))
				default:
					out[string(r.Key)] = string(r.Value)
				}
			}
		}
	}
	return out
}

// A damaged batch ends compaction of its partition, with the offset; other partitions go on, and so do appends and
// reads elsewhere in it. The next process tries again.
func TestS069_damage_ends_compaction_of_one_log(t *testing.T) {
	t.Parallel()
	b := newBroker(t, "/d1").start()
	cfg := compact(Config{SegmentBytes: 300})
	for _, topic := range []string{"bad", "good"} {
		l, err := b.dirs.Create(TopicPartition{topic, 0}, topicID, cfg, "", true)
		if err != nil {
			t.Fatal(err)
		}
		for range 6 {
			info, err := l.AppendAsLeader(exactlyKeyed(200, ts0, "k"), 0, AppendOptions{})
			if err != nil {
				t.Fatal(err)
			}
			l.SetHighWatermark(info.LastOffset + 1)
		}
	}
	f, err := b.fs.OpenFile("/d1/bad-0/"+logName(2), 2, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{0xff}, 100); err != nil {
		t.Fatal(err)
	}
	f.Close()
	c := NewCleaner(b.dirs, DefaultCleanerOptions())
	passes := 0
	for range 4 {
		if cleaned, _ := c.CleanOne(context.Background()); cleaned {
			passes++
		}
	}
	st := c.Stats()
	if passes != 1 || st.Passes != 1 || len(st.Uncleanable) != 1 || st.UncleanableBytes == 0 {
		t.Errorf("%d passes, %+v", passes, st)
	}
	if why := st.Uncleanable[TopicPartition{"bad", 0}]; why.Offset != 2 || why.Cause == "" {
		t.Errorf("%+v", why)
	}
	good, _ := b.dirs.Log("good", 0)
	bad, _ := b.dirs.Log("bad", 0)
	if good.Size() >= bad.Size() {
		t.Errorf("the good log has %d bytes, the bad one %d", good.Size(), bad.Size())
	}
	if info, err := bad.AppendAsLeader(exactlyKeyed(200, ts0, "k"), 0, AppendOptions{}); err != nil || info.BaseOffset != 6 {
		t.Errorf("append: %+v, %v", info, err)
	}
	v := bad.View()
	for _, offset := range []int64{0, 1, 3, 4, 5, 6} {
		d, err := v.Read(offset, 7, 1, true)
		if err != nil || d.Length < 190 || d.Length > 200 {
			t.Errorf("read at %d: %d bytes, %v", offset, d.Length, err)
		}
	}
	v.Release()
	again := NewCleaner(b.dirs, DefaultCleanerOptions())
	if _, err := again.CleanOne(context.Background()); err == nil {
		t.Error("the next process does not try again")
	}
}

// Markers go by their transactions, never by keys: a user's key with the bytes of a marker's key means nothing to them.
// After two passes exactly the last committed values are left.
func TestB078_markers_are_not_keys(t *testing.T) {
	t.Parallel()
	x := newTester(t, compact(Config{SegmentBytes: 400, DeleteRetentionMs: 1000})).open()
	want := map[string]string{}
	odd := []string{"\x00\x00\x00\x00", "\x00\x00\x00\x01"}
	for i := range 20 {
		key := string(rune('a' + i%5))
		x.append(keyed(ts0, record.BuilderOptions{Producer: producer(1, int32(2*i)), Transactional: true}, kv{key, fmt.Sprint(i)}, kv{odd[i%2], fmt.Sprint("odd", i)}))
		commit := i%3 != 0
		x.end(marker(1, 0, commit, 0))
		x.log.SetHighWatermark(x.leo())
		if commit {
			want[key], want[odd[i%2]] = fmt.Sprint(i), fmt.Sprint("odd", i)
		}
	}
	for range 3 {
		x.append(exactlyKeyed(350, ts0, "filler"))
		x.mustPass()
		x.now = x.now.Add(2 * time.Second)
		got := x.table()
		delete(got, "filler")
		if !maps.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		hidden(t, x, "compacted")
		// Whatever is left of a transaction has its marker behind it.
		open := map[int64]int64{}
		v := x.log.View()
		for _, b := range readAll(t, v) {
			switch {
			case b.IsControl() && b.Count() > 0:
				delete(open, b.ProducerID())
			case b.IsTransactional() && b.Count() > 0:
				open[b.ProducerID()] = b.BaseOffset()
			}
		}
		v.Release()
		if len(open) > 0 {
			t.Errorf("batches without their marker: %v", open)
		}
	}
}

// A tombstone can be read for delete.retention.ms from the pass that first covered it, then it goes, and the key never
// comes back, not over a restart either.
func TestB080_tombstones(t *testing.T) {
	t.Parallel()
	x := newTester(t, compact(Config{SegmentBytes: 200, DeleteRetentionMs: 5000})).open()
	for _, r := range []kv{{"a", "1"}, {"b", "1"}, {"a", "-"}} {
		x.append(keyed(ts0-1_000_000, record.BuilderOptions{}, r)) // long before
	}
	more := func() { x.append(exactlyKeyed(190, ts0, "f")); x.append(exactlyKeyed(190, ts0, "f")) }
	has := func() bool {
		return slices.ContainsFunc(x.batches(), func(b string) bool { return strings.Contains(b, ":a=-") })
	}
	more()
	x.mustPass()
	if !has() {
		t.Fatal("the tombstone is gone at once")
	}
	x.now = x.now.Add(4999 * time.Millisecond)
	more()
	x.mustPass()
	if !has() {
		t.Fatal("the tombstone is gone before its time")
	}
	x.close().open(clean)
	x.now = x.now.Add(time.Millisecond)
	more()
	x.mustPass()
	if has() {
		t.Error("the tombstone is still there")
	}
	more()
	x.mustPass()
	if got := x.table(); got["a"] != "" || got["b"] != "1" {
		t.Errorf("%v", got)
	}
}

// A log start inside a segment does not stop compaction: what is dirty begins there.
func TestB082_log_start_inside_a_segment(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{Cleanup: CleanupCompactDelete, SegmentBytes: 100_000}).open()
	for i := range 100 {
		x.append(keyed(ts0, record.BuilderOptions{}, kv{fmt.Sprint("k", i%10), fmt.Sprint(i)}))
	}
	if err := x.log.AdvanceLogStart(60, "test"); err != nil {
		t.Fatal(err)
	}
	x.cfg.SegmentBytes = 300
	x.log.SetConfig(x.cfg)
	for i := range 20 {
		x.append(keyed(ts0, record.BuilderOptions{}, kv{fmt.Sprint("k", i%10), fmt.Sprint("new", i)}))
		d, _, err := x.log.Dirtiness(x.now)
		if err != nil || d.FirstDirty < 60 || i == 0 && d.FirstDirty != 60 {
			t.Fatalf("%+v, %v", d, err)
		}
		x.mustPass()
	}
	if got := x.table(); len(got) != 10 || got["k9"] != "new19" {
		t.Errorf("%v", got)
	}
}

// At every file operation of a pass the machine dies, in each way it can: what opens has the same last value of every
// key, the same end, and offsets that rise.
func TestS058_crash_at_every_operation_of_a_swap(t *testing.T) {
	t.Parallel()
	points := 0
	for n, more := 0, true; more; n++ {
		x := newTester(t, compact(Config{SegmentBytes: 400, IndexIntervalBytes: 100}))
		f := x.onFault()
		x.open(recoverFrom(0))
		for i := range 24 {
			x.append(keyed(ts0, record.BuilderOptions{}, kv{fmt.Sprint("k", i%5), fmt.Sprint(i)}, kv{fmt.Sprint("t", i%3), "-"}))
			if i%8 == 3 {
				x.append(keyed(ts0, record.BuilderOptions{Producer: producer(int64(i), 0), Transactional: true}, kv{"k1", "aborted"}))
				x.end(marker(int64(i), 0, false, 0))
				x.log.SetHighWatermark(x.leo())
			}
		}
		if err := x.log.Flush(); err != nil {
			t.Fatal(err)
		}
		want, end := x.table(), x.leo()
		var images []*tester
		f.Add(vfs.Rule{Kind: vfs.OpAny, Skip: n, Before: func() {
			for seed := range uint64(2) {
				images = append(images, x.fork(vfs.LoseSome, seed))
			}
			for seed := range uint64(4) { // a file system that does not keep renames in order
				images = append(images, x.fork(vfs.LoseAny, seed))
			}
			images = append(images, x.fork(vfs.LoseNothing, 0), x.fork(vfs.LoseUnsynced, 0))
		}})
		x.mustPass()
		more = len(images) > 0
		points += len(images)
		for i, y := range images {
			y.open(recoverFrom(end))
			if got := y.table(); !maps.Equal(got, want) {
				t.Fatalf("operation %d, image %d: %v, want %v", n, i, got, want)
			}
			if y.leo() != end {
				t.Fatalf("operation %d, image %d: the log ends at %d, want %d", n, i, y.leo(), end)
			}
			names, err := fileNames(y.fs, y.dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range names {
				if strings.HasSuffix(name, cleanedSuffix) || strings.HasSuffix(name, swapSuffix) {
					t.Fatalf("operation %d, image %d: %s is left", n, i, name)
				}
			}
			y.mustPass()
			if got := y.table(); !maps.Equal(got, want) {
				t.Fatalf("operation %d, image %d, cleaned again: %v, want %v", n, i, got, want)
			}
		}
	}
	t.Logf("%d crash images", points)
}

// At every file operation of a pass the disk refuses: the log is as before or as after, and a full disk costs no more
// than that pass.
func TestCleanOnADiskThatFails(t *testing.T) {
	t.Parallel()
	for n, more := 0, true; more; n++ {
		x := newTester(t, compact(Config{SegmentBytes: 400}))
		f := x.onFault()
		x.open(recoverFrom(0))
		for i := range 24 {
			x.append(keyed(ts0, record.BuilderOptions{}, kv{fmt.Sprint("k", i%5), fmt.Sprint(i)}))
		}
		want := x.table()
		f.Add(vfs.Rule{Kind: vfs.OpWrite, Skip: n})
		_, err := x.pass()
		more = err != nil
		f.Clear()
		if err == nil {
			continue
		}
		var se *StorageError
		if !errors.As(err, &se) || se.Offline {
			t.Fatalf("write %d: %v", n, err)
		}
		names, err := fileNames(x.fs, x.dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if strings.HasSuffix(name, cleanedSuffix) {
				t.Errorf("write %d: %s is left", n, name)
			}
		}
		if got := x.table(); !maps.Equal(got, want) {
			t.Errorf("write %d: %v, want %v", n, got, want)
		}
		x.mustPass()
		if got := x.table(); !maps.Equal(got, want) {
			t.Errorf("write %d, once there is room: %v, want %v", n, got, want)
		}
	}
}

// A truncation, a deletion of the oldest segments, or the end of compaction while a pass is under way: the pass gives
// up and changes nothing.
func TestCleanGivesUp(t *testing.T) {
	t.Parallel()
	for name, disturb := range map[string]func(x *tester) error{
		"truncation":  func(x *tester) error { return x.log.TruncateTo(20, "test") },
		"new start":   func(x *tester) error { return x.log.TruncateFullyAndStartAt(50, "test") },
		"retention":   func(x *tester) error { _, err := x.log.Retain(x.now.Add(time.Hour)); return err },
		"policy":      func(x *tester) error { c := x.cfg; c.Cleanup = CleanupDelete; x.log.SetConfig(c); return nil },
		"close":       func(x *tester) error { return x.log.Close() },
		"renamed":     func(x *tester) error { return x.log.renameAway("/data/gone") },
		"cancelled":   nil,
		"undisturbed": func(*tester) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newTester(t, Config{Cleanup: CleanupCompactDelete, SegmentBytes: 400, RetentionMs: 60_000}).open()
			for i := range 40 {
				x.append(keyed(ts0, record.BuilderOptions{}, kv{fmt.Sprint("k", i%5), fmt.Sprint(i)}))
			}
			if name == "retention" {
				if err := x.log.AdvanceLogStart(30, "test"); err != nil {
					t.Fatal(err)
				}
			}
			cancelled := make(chan struct{})
			seen := 0
			_, err := x.pass(func(o *cleanOptions) {
				o.cancelled = cancelled
				o.throttle = func(int) error {
					if seen++; seen != 45 {
						return nil
					}
					if disturb == nil {
						close(cancelled)
						return nil
					}
					return disturb(x)
				}
			})
			if name == "undisturbed" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if !errors.Is(err, errCleanAborted) {
				t.Fatalf("got %v", err)
			}
			if name == "close" || name == "renamed" {
				return
			}
			names, err := fileNames(x.fs, x.dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range names {
				if strings.HasSuffix(n, cleanedSuffix) || strings.HasSuffix(n, swapSuffix) {
					t.Errorf("%s is left", n)
				}
			}
			if name == "truncation" && x.log.cleanedTo.Load() > 20 {
				t.Errorf("checkpoint %d above the cut", x.log.cleanedTo.Load())
			}
		})
	}
}

// A reader that holds a view from before a pass reads the same bytes as before, and one after it goes on at the next
// batch after a gap.
func TestCleanUnderReaders(t *testing.T) {
	t.Parallel()
	x := newTester(t, compact(Config{SegmentBytes: 400})).open()
	for i := range 40 {
		x.append(keyed(ts0, record.BuilderOptions{}, kv{fmt.Sprint("k", i%5), fmt.Sprint(i)}))
	}
	before := x.log.View()
	defer before.Release()
	d, err := before.Read(0, math.MaxInt64, 1<<20, true)
	if err != nil {
		t.Fatal(err)
	}
	was, err := d.ReadAll(nil)
	if err != nil {
		t.Fatal(err)
	}
	was = slices.Clone(was)
	x.mustPass()
	x.now = x.now.Add(time.Hour)
	if _, err := x.log.Retain(x.now); err != nil { // deletes the files that the pass put aside
		t.Fatal(err)
	}
	again, err := d.ReadAll(nil)
	if err != nil || !slices.Equal(was, again) {
		t.Errorf("the bytes under a view have changed: %v", err)
	}
	after := x.log.View()
	defer after.Release()
	if d, err = after.Read(3, math.MaxInt64, 1<<20, true); err != nil {
		t.Fatal(err)
	}
	data, err := d.ReadAll(nil)
	if err != nil {
		t.Fatal(err)
	}
	if b := record.Batch(data); b.BaseOffset() <= 3 {
		t.Errorf("a read at 3 begins at %d", b.BaseOffset())
	}
}

// The throttle counts what is read and written, of all threads together.
func TestCleanerThrottle(t *testing.T) {
	t.Parallel()
	b := newBroker(t, "/d1").start()
	o := DefaultCleanerOptions()
	o.MaxBytesPerSecond = 1000
	c := NewCleaner(b.dirs, o)
	var slept time.Duration
	c.sleep = func(_ context.Context, d time.Duration) error { slept += d; b.now = b.now.Add(d); return nil }
	for range 100 {
		if err := c.throttle(context.Background(), 100); err != nil {
			t.Fatal(err)
		}
	}
	if slept < 9500*time.Millisecond || slept > 10*time.Second {
		t.Errorf("10,000 bytes at 1,000 in a second took %v", slept)
	}
}

// What compression makes larger than a segment can be goes to a second one, and so does what lies too far from the
// first one's base. Both take the place of the old ones together.
func TestCleanedOutputOfSeveralSegments(t *testing.T) {
	t.Parallel()
	x := newTester(t, compact(Config{SegmentBytes: 700})).open()
	for i := range 9 {
		x.append(exactlyKeyed(200, ts0, fmt.Sprint("k", i)))
	}
	before := x.batches()
	v := x.log.View()
	defer v.Release()
	old := v.list.segs[:2]
	w := &cleanedWriter{l: x.log, dir: x.dir, limit: 450}
	defer w.close()
	if err := w.next(0); err != nil {
		t.Fatal(err)
	}
	for i := range old {
		s := &batchScanner{file: old[i].file, end: v.state(i).size}
		for b, err := s.next(); err == nil; b, err = s.next() {
			if err := w.add(b, txnEntry{}, false); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.finish(x.now); err != nil {
		t.Fatal(err)
	}
	if len(w.done) != 3 || w.done[1].base != 2 {
		t.Fatalf("%d segments", len(w.done))
	}
	c := &cleaning{l: x.log, view: v}
	if err := c.swap(old, w); err != nil {
		t.Fatal(err)
	}
	if got := x.batches(); !slices.Equal(got, before) {
		t.Errorf("%v, want %v", got, before)
	}
	x.close().open(clean)
	if got := x.batches(); !slices.Equal(got, before) {
		t.Errorf("after a restart %v, want %v", got, before)
	}
	far := &cleanedWriter{l: x.log, dir: x.dir, limit: math.MaxInt32}
	defer far.close()
	if err := far.next(0); err != nil {
		t.Fatal(err)
	}
	for _, offset := range []int64{0, math.MaxInt32, math.MaxInt32 + 1} {
		b := exactlyKeyed(200, ts0, "k")
		b.SetBaseOffset(offset)
		if err := far.add(b, txnEntry{}, false); err != nil {
			t.Fatal(err)
		}
	}
	if len(far.done) != 1 || far.cur.base != math.MaxInt32+1 {
		t.Errorf("%d segments done, the last one begins at %d", len(far.done), far.cur.base)
	}
}

// The machine dies at every file operation of a swap whose output takes several segments, on a file system that keeps renames in
// order and on one that does not: all records are there, before or after, and nothing is left over.
func TestS058_crash_in_a_swap_of_several_segments(t *testing.T) {
	t.Parallel()
	for n, more := 0, true; more; n++ {
		x := newTester(t, compact(Config{SegmentBytes: 1000}))
		f := x.onFault()
		x.open()
		for i := range 12 {
			x.append(exactlyKeyed(200, ts0, fmt.Sprint("k", i)))
		}
		if err := x.log.Flush(); err != nil {
			t.Fatal(err)
		}
		want, end := x.table(), x.leo()
		v := x.log.View()
		old := v.list.segs[:2]
		w := &cleanedWriter{l: x.log, dir: x.dir, limit: 650} // 0-2, 3-5, 6-7 and so on, across the borders of the old ones
		if err := w.next(0); err != nil {
			t.Fatal(err)
		}
		for i := range old {
			s := &batchScanner{file: old[i].file, end: v.state(i).size}
			for b, err := s.next(); err == nil; b, err = s.next() {
				if err := w.add(b, txnEntry{}, false); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := w.finish(x.now); err != nil {
			t.Fatal(err)
		}
		if len(w.done) < 3 {
			t.Fatalf("%d segments", len(w.done))
		}
		var images []*tester
		f.Add(vfs.Rule{Kind: vfs.OpAny, Skip: n, Before: func() {
			for seed := range uint64(40) {
				images = append(images, x.fork(vfs.LoseSome, seed), x.fork(vfs.LoseAny, seed))
			}
		}})
		c := &cleaning{l: x.log, view: v}
		if err := c.swap(old, w); err != nil {
			t.Fatal(err)
		}
		f.Clear()
		v.Release()
		w.close()
		more = len(images) > 0
		for i, y := range images {
			y.open(recoverFrom(end))
			if got := y.table(); !maps.Equal(got, want) || y.leo() != end {
				t.Fatalf("operation %d, image %d: %v in a log that ends at %d, want %v and %d", n, i, got, y.leo(), want, end)
			}
			for _, name := range must(fileNames(y.fs, y.dir)) {
				if strings.HasSuffix(name, cleanedSuffix) || strings.HasSuffix(name, swapSuffix) {
					t.Fatalf("operation %d, image %d: %s is left", n, i, name)
				}
			}
			y.close()
		}
	}
}

// What compaction leaves is as old as what it was made of: records without timestamps age by the time of their file, and a pass does
// not make them young again.
func TestCompactionKeepsTheTimeOfFiles(t *testing.T) {
	t.Parallel()
	x := newTester(t, Config{Cleanup: CleanupCompactDelete, SegmentBytes: 500, RetentionMs: 10_000}).open()
	for i := range 8 {
		x.append(exactlyKeyed(200, record.NoTimestamp, fmt.Sprint("k", i%2)))
		x.now = x.now.Add(time.Second)
	}
	x.now = x.now.Add(time.Second)
	before := must(x.fs.Stat(x.dir + "/" + logName(0))).ModTime()
	x.mustPass()
	if after := must(x.fs.Stat(x.dir + "/" + logName(0))).ModTime(); after.Before(before) || !after.Before(x.now.Add(-time.Second)) {
		t.Errorf("the file is of %v, its parts were of %v and later; now it is %v", after, before, x.now)
	}
	if n := must(x.log.Retain(x.now)); n != 0 {
		t.Errorf("%d segments went too early", n)
	}
	if n := must(x.log.Retain(x.now.Add(10 * time.Second))); n == 0 {
		t.Error("what is old enough stays, since it was compacted")
	}
}

// A truncation takes away the records for whose sake others were to go, in segments that it does not touch: the pass gives up, and
// the others stay.
func TestCleanGivesUpWhenNewerRecordsAreCutOff(t *testing.T) {
	t.Parallel()
	x := newTester(t, compact(Config{SegmentBytes: 450})).open()
	for i := range 8 { // four segments of two; the last two hold the same keys as the first two
		x.append(exactlyKeyed(200, ts0+int64(i), fmt.Sprint("k", i%4)))
	}
	x.append(exactlyKeyed(200, ts0, "active"))
	looked := 0
	_, err := x.pass(func(o *cleanOptions) {
		o.throttle = func(int) error {
			if looked++; looked == 9 { // the keys are known, the first segment is being rewritten
				if err := x.log.TruncateTo(4, "test"); err != nil {
					t.Error(err)
				}
			}
			return nil
		}
	})
	if !errors.Is(err, errCleanAborted) {
		t.Errorf("the pass ended with %v", err)
	}
	got := x.batches()
	if len(got) != 4 || x.leo() != 4 || len(x.table()) != 4 {
		t.Errorf("%v is left in a log that ends at %d", got, x.leo())
	}
}

// What a truncation takes away is no longer clean when other records come in its place.
func TestTruncationMovesTheCleanersCheckpoint(t *testing.T) {
	t.Parallel()
	x := newTester(t, compact(Config{SegmentBytes: 300})).open()
	for range 6 {
		x.append(exactlyKeyed(200, ts0, "k"))
	}
	x.mustPass()
	if got := x.log.cleanedTo.Load(); got != 5 {
		t.Fatalf("checkpoint %d", got)
	}
	if err := x.log.TruncateTo(4, "test"); err != nil {
		t.Fatal(err)
	}
	v := x.log.View()
	base := v.list.last().base
	v.Release()
	if got := x.log.cleanedTo.Load(); got > base {
		t.Errorf("checkpoint %d, the last segment begins at %d", got, base)
	}
	if err := x.log.TruncateFullyAndStartAt(100, "test"); err != nil {
		t.Fatal(err)
	}
	if got := x.log.cleanedTo.Load(); got >= 0 {
		t.Errorf("checkpoint %d after a new start", got)
	}
}

// Before a log is compacted its sealed segments are on disk, and the checkpoint of recovery points says so: a gap that
// compaction leaves is not what a crash has lost, even if the topic is no longer compacted by the time of the crash.
func TestCompactedGapsAreNotLosses(t *testing.T) {
	t.Parallel()
	b := newBroker(t, "/d1").start()
	tp := TopicPartition{"t", 0}
	l, err := b.dirs.Create(tp, topicID, compact(Config{SegmentBytes: 300}), "", true)
	if err != nil {
		t.Fatal(err)
	}
	for range 8 {
		info, err := l.AppendAsLeader(exactlyKeyed(200, ts0, "k"), 0, AppendOptions{})
		if err != nil {
			t.Fatal(err)
		}
		l.SetHighWatermark(info.LastOffset + 1)
	}
	if cleaned, err := NewCleaner(b.dirs, DefaultCleanerOptions()).CleanOne(context.Background()); err != nil || !cleaned {
		t.Fatalf("cleaned %t, %v", cleaned, err)
	}
	v := l.View()
	last := v.list.last().base
	v.Release()
	data, err := vfs.ReadFile(b.fs, "/d1/"+RecoveryPointCheckpoint)
	if err != nil {
		t.Fatal(err)
	}
	points, err := parseCheckpoint(data)
	if err != nil || points[tp] < last {
		t.Errorf("recovery points %v, %v; the last segment begins at %d", points, err, last)
	}
	cleaned, err := vfs.ReadFile(b.fs, "/d1/"+CleanerCheckpoint)
	if err != nil {
		t.Fatal(err)
	}
	if m, err := parseCheckpoint(cleaned); err != nil || m[tp] != last {
		t.Errorf("cleaner's checkpoint %v, %v, want %d", m, err, last)
	}
}

// Of several logs the dirtiest is cleaned first, each once, and none again until more has come.
func TestTheDirtiestLogIsCleanedFirst(t *testing.T) {
	t.Parallel()
	b := newBroker(t, "/d1").start()
	defer b.stop()
	for p, batches := range []int{4, 12, 8} { // after each has been cleaned up to its fourth
		l, err := b.dirs.Create(TopicPartition{"t", int32(p)}, topicID, compact(Config{SegmentBytes: 300, MinCleanableRatio: 0.01}), "", true)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 4 + batches {
			info, err := l.AppendAsLeader(exactlyKeyed(200, ts0, fmt.Sprint("k", i)), 0, AppendOptions{})
			if err != nil {
				t.Fatal(err)
			}
			l.SetHighWatermark(info.LastOffset + 1)
		}
		l.cleanedTo.Store(4)
	}
	c := NewCleaner(b.dirs, DefaultCleanerOptions())
	var order []int32
	for {
		before := map[int32]int64{}
		for _, l := range b.dirs.Logs() {
			before[l.o.Partition] = l.cleanedTo.Load()
		}
		cleaned, err := c.CleanOne(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if !cleaned {
			break
		}
		for _, l := range b.dirs.Logs() {
			if l.cleanedTo.Load() != before[l.o.Partition] {
				order = append(order, l.o.Partition)
			}
		}
	}
	if fmt.Sprint(order) != "[1 2 0]" {
		t.Errorf("cleaned in the order %v, want the dirtiest first: [1 2 0]", order)
	}
}
