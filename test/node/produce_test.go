package node

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/wire"
)

// allOf is every record of the batches, with absolute offsets and timestamps.
type stored struct {
	offset, stamp int64
	key, value    string
	null          string // "k" and "v" for what is null
	headers       string
}

func recordsOf(t testing.TB, raw []byte) []stored {
	t.Helper()
	var all []stored
	for _, b := range batches(t, raw) {
		for r, err := range b.Records(record.Limits{}) {
			if err != nil {
				t.Fatalf("batch at %d: %v", b.BaseOffset(), err)
			}
			s := stored{offset: b.OffsetOf(r), stamp: b.TimestampOf(r), key: string(r.Key), value: string(r.Value)}
			if r.Key == nil {
				s.null += "k"
			}
			if r.Value == nil {
				s.null += "v"
			}
			for _, h := range r.Headers {
				s.headers += fmt.Sprintf("%s=%q(%t) ", h.Key, h.Value, h.Value == nil)
			}
			all = append(all, s)
		}
	}
	return all
}

// TestS001_stored_as_sent: a batch gets base offset 0, keeps its own time, and comes back byte for byte but
// for the leader epoch; behind 100 records its base offset changes too, and the CRC never.
func TestS001_stored_as_sent(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	for version := int16(3); version <= 13; version++ {
		tp := c.topic(1)
		p := c.produce(version, tp, 0, exampleA())
		if p.ErrorCode != 0 || p.BaseOffset != 0 || p.LogAppendTime != -1 || version >= 5 && p.LogStartOffset != 0 {
			t.Fatalf("v%d: %+v", version, p)
		}
		want := put32(exampleA(), atEpoch, c.leaderEpoch(tp))
		if got := c.stored(tp, 0); !bytes.Equal(got, want) {
			t.Errorf("v%d: stored %x\nwant %x", version, got, want)
		}
	}
	tp := c.topic(1)
	c.mustProduce(tp, 0, plain(100, stamp))
	c.mustProduce(tp, 0, exampleA())
	want := put64(put32(exampleA(), atEpoch, c.leaderEpoch(tp)), 0, 100)
	if got := c.stored(tp, 100); !bytes.Equal(got, want) {
		t.Errorf("stored %x\nwant %x", got, want)
	}
}

// TestS002_log_append_time: on a LogAppendTime topic the answer has the append time, the stored batch
// has it as its largest timestamp, with the flag and a right CRC, and its records are as sent.
func TestS002_log_append_time(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1, "message.timestamp.type=LogAppendTime")
	before := time.Now().UnixMilli()
	p := c.produce(9, tp, 0, exampleA())
	after := time.Now().UnixMilli()
	if p.ErrorCode != 0 || p.LogAppendTime < before || p.LogAppendTime > after {
		t.Fatalf("error %d, append time %d, not in %d..%d", p.ErrorCode, p.LogAppendTime, before, after)
	}
	raw := c.stored(tp, 0)
	b := batches(t, raw)[0]
	if b.Attributes() != 8 || b.MaxTimestamp() != p.LogAppendTime || !bytes.Equal(b.Payload(), exampleA()[record.HeaderSize:]) {
		t.Errorf("attributes %04x, max timestamp %d, records %x", b.Attributes(), b.MaxTimestamp(), b.Payload())
	}
	for _, r := range recordsOf(t, raw) {
		if r.stamp != p.LogAppendTime {
			t.Errorf("record %d has time %d", r.offset, r.stamp)
		}
	}
}

// refusal is a batch that is not taken, and the error it gets.
type refusal struct {
	name    string
	records []byte
	want    int16
}

func refuseAll(t *testing.T, refusals []refusal, settings ...string) {
	t.Helper()
	c := shared(t).dial(t)
	tp := c.topic(1, settings...)
	c.mustProduce(tp, 0, plain(1, stamp))
	for _, r := range refusals {
		t.Run(r.name, func(t *testing.T) {
			c := *c
			c.t = t
			for _, version := range []int16{3, 7, 9, 13} {
				c.refused(version, tp, bytes.Clone(r.records), r.want)
			}
		})
	}
}

// TestS003_corrupt_or_foreign: a flipped bit, sizes that no batch has and an unknown magic are corrupt; the
// older magic is invalid. Nothing is stored.
func TestS003_corrupt_or_foreign(t *testing.T) {
	t.Parallel()
	flipped := exampleA()
	flipped[len(flipped)-2] ^= 1
	magic := func(m byte) []byte {
		b := exampleA()
		b[atMagic] = m
		return b
	}
	refuseAll(t, []refusal{
		{"bit flipped in a value", flipped, 2},
		{"60 bytes", put32(exampleA()[:60], atLength, 48), 2},
		{"length 13", put32(exampleA(), atLength, 13), 2},
		{"length negative", put32(exampleA(), atLength, -1), 2},
		{"magic 3", magic(3), 2},
		{"magic 1", magic(1), 87},
		{"magic 0", magic(0), 87},
	})
}

// TestS004_one_batch_from_zero: a base offset other than 0 and a second batch are invalid; stray bytes that
// announce a batch they do not hold are dropped.
func TestS004_one_batch_from_zero(t *testing.T) {
	t.Parallel()
	refuseAll(t, []refusal{
		{"base offset 5", put64(exampleA(), 0, 5), 87},
		{"twice", append(exampleA(), exampleA()...), 87},
	})
	c := shared(t).dial(t)
	tp := c.topic(1)
	c.mustProduce(tp, 0, append(exampleA(), exampleA()[:20]...))
	if got := c.stored(tp, 0); len(got) != 83 {
		t.Errorf("%d bytes stored, want 83", len(got))
	}
}

// TestS005_cut_null_empty: a batch cut by one byte, null records and no bytes are invalid.
func TestS005_cut_null_empty(t *testing.T) {
	t.Parallel()
	refuseAll(t, []refusal{
		{"cut by a byte", exampleA()[:82], 87},
		{"null", nil, 87},
		{"empty", []byte{}, 87},
	})
}

// TestS006_counts: a last offset delta, a count and records that do not agree are invalid.
func TestS006_counts(t *testing.T) {
	t.Parallel()
	counts := func(last, count int32) []byte {
		return resealed(put32(put32(exampleA(), atLastDelta, last), atCount, count))
	}
	refuseAll(t, []refusal{
		{"delta 2 count 2", counts(2, 2), 87},
		{"count 0", counts(1, 0), 87},
		{"count 3 delta 2 two records", counts(2, 3), 87},
		{"count 1 delta 0 two records", counts(0, 1), 87},
	})
}

// TestS007_flags: a marker from a client, the delete horizon flag and a producer without a sequence are
// invalid.
func TestS007_flags(t *testing.T) {
	t.Parallel()
	refuseAll(t, []refusal{
		{"marker", exampleB(), 87},
		{"delete horizon", resealed(put16(exampleA(), atAttributes, 0x40)), 87},
		{"producer without sequence", resealed(put64(put16(exampleA(), atProducer+8, 0), atProducer, 1)), 87},
	})
}

// TestS008_nulls_and_headers: null key, null value and the headers come back in order.
func TestS008_nulls_and_headers(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1)
	c.mustProduce(tp, 0, exampleC())
	want := []stored{{0, stamp, "", "", "kv", `h1="x"(false) h2=""(true) `}}
	if got := recordsOf(t, c.stored(tp, 0)); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestProduce_transactional_without_id: transactional records under no transactional id are refused with the
// id's error, in every partition.
func TestProduce_transactional_without_id(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(2)
	b := idempotent(c.producerID(), 0, 0, 1)
	req := produceRequest(9, -1, tp, 0, resealed(put16(b, atAttributes, 0x10)))
	addProduce(req, tp, 1, exampleA())
	for _, p := range do[*kmsg.ProduceResponse](c, 9, req).Topics[0].Partitions {
		if p.ErrorCode != 53 {
			t.Errorf("partition %d: error %d, want 53", p.Partition, p.ErrorCode)
		}
	}
}

// errorRecords are the indexes an answer lists; each must have a text.
func errorRecords(t testing.TB, p kmsg.ProduceResponseTopicPartition) []int32 {
	t.Helper()
	indexes := []int32{}
	for _, r := range p.ErrorRecords {
		indexes = append(indexes, r.RelativeOffset)
		if deref(r.ErrorMessage) == "" {
			t.Errorf("record %d has no message", r.RelativeOffset)
		}
	}
	return indexes
}

// TestS009_compacted_topic_wants_keys: on a compacted topic a record without a key is invalid, and named by
// its index from v8 on.
func TestS009_compacted_topic_wants_keys(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1, "cleanup.policy=compact")
	c.mustProduce(tp, 0, plain(3, stamp))
	bad := batch(record.BuilderOptions{}, rec{stamp, []byte("a"), nil}, rec{stamp, nil, []byte("b")}, rec{stamp, []byte("c"), nil})
	for version, want := range map[int16]string{7: "[]", 8: "[1]", 9: "[1]", 13: "[1]"} {
		p := c.refused(version, tp, bytes.Clone(bad), 87)
		if got := fmt.Sprint(errorRecords(t, p)); got != want || (version >= 8) != (deref(p.ErrorMessage) != "") || p.LogStartOffset != 0 {
			t.Errorf("v%d: records %s, message %q, log start %d; want records %s", version, got, deref(p.ErrorMessage), p.LogStartOffset, want)
		}
	}
}

// TestB029_bad_records_beside_good_partitions: of two partitions on a compacted topic the one with records
// 0 and 2 without key is refused and lists both; the other is stored.
func TestB029_bad_records_beside_good_partitions(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(2, "cleanup.policy=compact")
	bad := batch(record.BuilderOptions{}, rec{stamp, nil, []byte("a")}, rec{stamp, []byte("b"), nil}, rec{stamp, nil, []byte("c")})
	for version := int16(3); version <= 13; version++ {
		req := produceRequest(version, -1, tp, 0, bytes.Clone(bad))
		addProduce(req, tp, 1, plain(2, stamp))
		parts := do[*kmsg.ProduceResponse](c, version, req).Topics[0].Partitions
		want := "[0 2]"
		if version < 8 {
			want = "[]"
		}
		if parts[0].Partition != 0 || parts[0].ErrorCode != 87 || fmt.Sprint(errorRecords(t, parts[0])) != want {
			t.Errorf("v%d, bad: %+v", version, parts[0])
		}
		if parts[1].Partition != 1 || parts[1].ErrorCode != 0 || parts[1].BaseOffset != int64(version-3)*2 {
			t.Errorf("v%d, good: %+v", version, parts[1])
		}
	}
	if end := c.offset(4, tp, 0, -1, -1).Offset; end != 0 {
		t.Errorf("the refused partition ends at %d", end)
	}
}

// TestS010_time_limits: timestamps too far ahead or behind are refused with their index; beside a missing
// key the error is that of the timestamp, and both are listed.
func TestS010_time_limits(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1, "message.timestamp.after.max.ms=3600000", "message.timestamp.before.max.ms=60000", "cleanup.policy=compact")
	now := time.Now().UnixMilli()
	key := []byte("k")
	one := func(at int64) []byte { return batch(record.BuilderOptions{}, rec{now, key, nil}, rec{at, key, nil}) }
	for _, at := range []int64{now + 3590000, now - 50000} {
		c.mustProduce(tp, 0, one(at))
	}
	for _, at := range []int64{now + 3660000, now - 70000} {
		if p := c.refused(9, tp, one(at), 32); fmt.Sprint(errorRecords(t, p)) != "[1]" {
			t.Errorf("listed %v, want [1]", errorRecords(t, p))
		}
	}
	both := batch(record.BuilderOptions{}, rec{now, nil, nil}, rec{now, key, nil}, rec{now + 3660000, key, nil})
	if p := c.refused(9, tp, both, 32); fmt.Sprint(errorRecords(t, p)) != "[0 2]" {
		t.Errorf("listed %v, want [0 2]", errorRecords(t, p))
	}
}

// TestS011_time_flags: no timestamp is stored on a CreateTime topic; the LogAppendTime flag is refused on a
// LogAppendTime topic and taken off on a CreateTime one.
func TestS011_time_flags(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	create, appended := c.topic(1), c.topic(1, "message.timestamp.type=LogAppendTime")
	c.mustProduce(create, 0, batch(record.BuilderOptions{}, rec{-1, nil, []byte("v")}))
	flagged := resealed(put16(exampleA(), atAttributes, 8))
	c.refused(9, appended, bytes.Clone(flagged), 32)
	base := c.mustProduce(create, 0, flagged)
	if b := batches(t, c.stored(create, base))[0]; b.Attributes() != 0 || b.MaxTimestamp() != stamp+5 {
		t.Errorf("attributes %04x, max timestamp %d", b.Attributes(), b.MaxTimestamp())
	}
}

// TestS012_max_timestamp_corrected: a largest timestamp that is wrong in the header is stored right, with a
// right CRC, and the lookup of the largest timestamp answers the true one.
func TestS012_max_timestamp_corrected(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1)
	c.mustProduce(tp, 0, resealed(put64(exampleA(), atMaxStamp, stamp+99999)))
	if b := batches(t, c.stored(tp, 0))[0]; b.MaxTimestamp() != stamp+5 {
		t.Errorf("max timestamp %d, want %d", b.MaxTimestamp(), stamp+5)
	}
	c.wantOffset(tp, -3, found{1, stamp + 5, 0})
}

// TestS013_max_message_bytes: the limit counts the batch as sent, to the byte; where the broker
// decompresses, what it makes counts as well.
func TestS013_max_message_bytes(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	c.refused(9, c.topic(1, "max.message.bytes=82"), exampleA(), 10)
	c.mustProduce(c.topic(1, "max.message.bytes=83"), 0, exampleA())
	zeros := batch(record.BuilderOptions{Codec: record.Gzip}, rec{stamp, nil, make([]byte, 1000)})
	c.refused(9, c.topic(1, "max.message.bytes=500", "compression.type=uncompressed"), zeros, 10)
}

// TestS014_larger_than_a_segment: a batch within max.message.bytes but larger than a segment is refused.
func TestS014_larger_than_a_segment(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1, "segment.bytes=1048576", "max.message.bytes=2000000")
	c.refused(9, tp, sized(1200000, stamp), 18)
}

func zstdOf(b []byte) []byte {
	w, err := zstd.NewWriter(nil)
	if err != nil {
		panic(err)
	}
	return w.EncodeAll(b, nil)
}

// TestS015_codecs: gzip, lz4, snappy with and without framing and zstd are stored as sent; zstd below v7 is
// refused.
func TestS015_codecs(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	body := exampleA()[record.HeaderSize:]
	bare := append([]byte{byte(len(body)), byte(len(body)-1) << 2}, body...) // one literal
	packed := withBody(exampleA(), 4, zstdOf(body))
	for name, b := range map[string][]byte{"gzip": exampleD(), "lz4": exampleE(), "snappy": exampleS(), "bare snappy": withBody(exampleA(), 2, bare), "zstd": packed} {
		tp := c.topic(1)
		if p := c.produce(7, tp, 0, bytes.Clone(b)); p.ErrorCode != 0 {
			t.Errorf("%s: error %d %s", name, p.ErrorCode, deref(p.ErrorMessage))
			continue
		}
		if got := c.stored(tp, 0); !bytes.Equal(got[atMagic:], b[atMagic:]) {
			t.Errorf("%s: stored %x, sent %x", name, got, b)
		}
	}
	c.refused(6, c.topic(1), packed, 76)
}

// TestB039_snappy_in_both_framings: snappy in one bare block and in chunks is taken by a plain topic, by a compacted one
// and by one that packs with gzip, each readable to the last record and, where nothing is repacked, byte for byte.
func TestB039_snappy_in_both_framings(t *testing.T) {
	t.Parallel()
	n := start(t, "log.cleaner.backoff.ms=20")
	c := n.dial(t)
	plainOne := func(from int) []byte {
		return batch(record.BuilderOptions{}, rec{stamp, []byte("a"), fmt.Append(nil, from)}, rec{stamp + 1, []byte("b"), fmt.Append(nil, from+1)}, rec{stamp + 2, fmt.Append(nil, "c", from), nil})
	}
	bare := func(from int) []byte {
		b := plainOne(from)
		body := b[record.HeaderSize:]
		return withBody(b, 2, append([]byte{byte(len(body)), byte(len(body)-1) << 2}, body...)) // one literal
	}
	chunks := func(from int) []byte {
		b := plainOne(from)
		body := b[record.HeaderSize:]
		out := unhex("82534e4150505900 00000001 00000001")
		for len(body) > 0 {
			part := body[:min(7, len(body))]
			out = binary.BigEndian.AppendUint32(out, uint32(len(part)+2))
			out = append(append(out, byte(len(part)), byte(len(part)-1)<<2), part...)
			body = body[len(part):]
		}
		return withBody(b, 2, out)
	}
	for name, pack := range map[string]func(int) []byte{"bare": bare, "chunks": chunks} {
		for kind, settings := range map[string][]string{"plain": nil, "compacted": {"cleanup.policy=compact"}, "gzip": {"compression.type=gzip"}} {
			tp := c.topic(1, settings...)
			c.mustProduce(tp, 0, pack(10))
			raw := c.stored(tp, 0)
			if got, want := fmt.Sprint(recordsOf(t, raw)), fmt.Sprint(recordsOf(t, plainOne(10))); got != want {
				t.Errorf("%s, %s: %s, want %s", name, kind, got, want)
			}
			if kind == "gzip" {
				if got := batches(t, raw)[0].Codec(); got != record.Gzip {
					t.Errorf("%s: repacked with %v", name, got)
				}
			} else if want := pack(10); !bytes.Equal(raw[atMagic:], want[atMagic:]) {
				t.Errorf("%s, %s: stored %x, sent %x", name, kind, raw, want)
			}
		}
		// The cleaner reads both, too: of each key the last value is left.
		tp := c.topic(1, "cleanup.policy=compact", "min.cleanable.dirty.ratio=0.01", "segment.ms=1", "delete.retention.ms=100000000")
		for i := range 4 {
			b := pack(20 + i)
			now := time.Now().UnixMilli() + int64(10*i)
			c.mustProduce(tp, 0, resealed(put64(put64(b, 27, now), atMaxStamp, now+2)))
		}
		var left []stored
		c.eventually(name+" is compacted", func() bool {
			var raw []byte
			for _, b := range c.all(tp) {
				raw = append(raw, b...)
			}
			left = recordsOf(t, raw)
			return len(left) == 8 // what is written to last is not cleaned
		})
		values := map[string]string{}
		for _, r := range left {
			values[r.key] = r.value
		}
		if values["a"] != "23" || values["b"] != "24" || len(values) != 6 {
			t.Errorf("%s: after compaction %v", name, values)
		}
	}
}

// TestB041_zstd_and_old_versions: zstd is taken from Produce 7 on, older ones are 76 and store nothing. A topic that
// is packed with zstd is not read below Fetch 10 (76); from one that takes what producers send, zstd is passed on
// to every version.
func TestB041_zstd_and_old_versions(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	packed := withBody(exampleA(), 4, zstdOf(exampleA()[record.HeaderSize:]))
	for kind, refusesOld := range map[string]bool{"zstd": true, "producer": false, "gzip": false} {
		tp := c.topic(1, "compression.type="+kind)
		for version := int16(3); version <= 6; version++ {
			c.refused(version, tp, bytes.Clone(packed), 76)
		}
		if p := c.produce(7, tp, 0, bytes.Clone(packed)); p.ErrorCode != 0 {
			t.Errorf("%s, Produce 7: error %d", kind, p.ErrorCode)
		}
		for version := int16(4); version <= 18; version++ {
			p := c.fetch(version, at(tp, 0))
			switch {
			case refusesOld && version < 10:
				if p.ErrorCode != 76 || len(p.RecordBatches) != 0 || p.HighWatermark != -1 {
					t.Errorf("%s, Fetch %d: %+v, want error 76", kind, version, p)
				}
			case p.ErrorCode != 0 || len(recordsOf(t, p.RecordBatches)) != 2:
				t.Errorf("%s, Fetch %d: %+v", kind, version, p)
			}
		}
	}
	c.refused(6, c.topic(1), packed, 76)
}

// TestS017_streams_with_too_much: two gzip members are read as one, bytes behind the last record are
// invalid, and so is a codec that does not exist.
func TestS017_streams_with_too_much(t *testing.T) {
	t.Parallel()
	body := exampleA()[record.HeaderSize:]
	pack := func(parts ...[]byte) []byte {
		var out bytes.Buffer
		for _, part := range parts {
			w := gzip.NewWriter(&out)
			_, _ = w.Write(part)
			_ = w.Close()
		}
		return out.Bytes()
	}
	c := shared(t).dial(t)
	tp := c.topic(1)
	c.mustProduce(tp, 0, withBody(exampleA(), 1, pack(body[:11], body[11:])))
	if got := recordsOf(t, c.stored(tp, 0)); len(got) != 2 {
		t.Errorf("%d records, want 2", len(got))
	}
	refuseAll(t, []refusal{
		{"bytes behind the last record", withBody(exampleA(), 1, pack(body, []byte{0})), 87},
		{"codec 6", withBody(exampleA(), 6, body), 87},
		{"not gzip at all", withBody(exampleA(), 1, body), 87},
	})
}

// TestS018_topic_compression: a topic with a codec of its own stores batches in it, records and producer
// fields unchanged; one that keeps the producer's stores what came.
func TestS018_topic_compression(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1, "compression.type=gzip")
	c.mustProduce(tp, 0, exampleA())
	c.mustProduce(tp, 0, exampleC())
	raw := c.stored(tp, 0)
	found := batches(t, raw)
	if found[0].Codec() != record.Gzip || found[0].BaseTimestamp() != stamp || found[1].ProducerID() != 4000 || found[1].ProducerEpoch() != 5 || found[1].BaseSequence() != 0 {
		t.Errorf("codec %v, base timestamp %d, producer %d/%d/%d", found[0].Codec(), found[0].BaseTimestamp(), found[1].ProducerID(), found[1].ProducerEpoch(), found[1].BaseSequence())
	}
	want := []stored{{0, stamp, "k1", "v1", "", ""}, {1, stamp + 5, "k2", "v2", "", ""}, {2, stamp, "", "", "kv", `h1="x"(false) h2=""(true) `}}
	if got := recordsOf(t, raw); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for name, kept := range map[string]struct {
		settings []string
		sent     []byte
	}{
		"the producer's codec": {[]string{"compression.type=producer"}, exampleE()},
		"no codec":             {[]string{"compression.type=producer"}, exampleA()},
		"the same codec":       {[]string{"compression.type=gzip"}, exampleD()},
		"another level":        {[]string{"compression.type=gzip", "compression.gzip.level=9"}, exampleD()},
	} {
		tp := c.topic(1, kept.settings...)
		c.mustProduce(tp, 0, bytes.Clone(kept.sent))
		if got := c.stored(tp, 0); !bytes.Equal(got[atMagic:], kept.sent[atMagic:]) {
			t.Errorf("%s: stored %x, sent %x", name, got, kept.sent)
		}
	}
}

// TestS020_unused_attribute_bits: bits without a meaning are stored, and cleared where the broker writes
// the attributes anyway.
func TestS020_unused_attribute_bits(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	odd := resealed(put16(exampleA(), atAttributes, 0x0180))
	for setting, want := range map[string]int16{"message.timestamp.type=CreateTime": 0x0180, "message.timestamp.type=LogAppendTime": 8} {
		tp := c.topic(1, setting)
		c.mustProduce(tp, 0, bytes.Clone(odd))
		if b := batches(t, c.stored(tp, 0))[0]; b.Attributes() != want {
			t.Errorf("%s: attributes %04x, want %04x", setting, b.Attributes(), want)
		}
	}
}

// TestE045_refused_produce: acks=2 is refused for each partition that passed the earlier checks, a client
// may not write an internal topic, and acks=0 to a partition that is not there closes the connection.
func TestE045_refused_produce(t *testing.T) {
	t.Parallel()
	n := shared(t)
	c := n.dial(t)
	tp := c.topic(3)
	flipped := exampleA()
	flipped[82] ^= 1
	req := produceRequest(9, 2, tp, 0, exampleA())
	addProduce(req, tp, 9, exampleA())
	addProduce(req, tp, 1, nil)
	addProduce(req, topic{name: "no-such-topic"}, 0, exampleA())
	addProduce(req, tp, 2, flipped)
	var got []string
	for _, out := range do[*kmsg.ProduceResponse](c, 9, req).Topics {
		for _, p := range out.Partitions {
			got = append(got, fmt.Sprintf("%d:%d", p.Partition, p.ErrorCode))
			if p.BaseOffset != -1 {
				t.Errorf("partition %d: base offset %d beside an error", p.Partition, p.BaseOffset)
			}
		}
	}
	if want := "[0:21 9:3 1:87 2:21 0:3]"; fmt.Sprint(got) != want {
		t.Errorf("acks=2: %v, want %s", got, want)
	}

	find := kmsg.NewPtrFindCoordinatorRequest()
	find.CoordinatorKey = "g"
	offsets := topic{name: "__consumer_offsets"}
	for deadline := time.Now().Add(patience); do[*kmsg.FindCoordinatorResponse](c, 2, find).ErrorCode != 0; {
		if time.Now().After(deadline) {
			t.Fatal("no coordinator")
		}
	}
	if p := c.produce(9, offsets, 0, exampleA()); p.ErrorCode != 17 {
		t.Errorf("write to an internal topic: error %d, want 17", p.ErrorCode)
	}

	c.send(9, produceRequest(9, 0, tp, 9, exampleA()))
	c.closed()
}

// TestB007_acks_zero_is_silent: of two produces with acks=0 and a Metadata on one connection only the last
// is answered, and the records are there; a produce with acks=0 that fails closes the connection without
// a byte.
func TestB007_acks_zero_is_silent(t *testing.T) {
	t.Parallel()
	n := shared(t)
	c := n.dial(t)
	tp := c.topic(1)
	c.send(9, produceRequest(9, 0, tp, 0, exampleA()))
	c.send(9, produceRequest(9, 0, tp, 0, exampleA()))
	if end := c.offset(4, tp, 0, -1, -1).Offset; end != 4 { // checks the correlation id
		t.Errorf("the log ends at %d, want 4", end)
	}
	flipped := exampleA()
	flipped[82] ^= 1
	for name, req := range map[string]*kmsg.ProduceRequest{
		"unknown topic": produceRequest(9, 0, topic{name: "no-such-topic"}, 0, exampleA()),
		"bad CRC":       produceRequest(9, 0, tp, 0, flipped),
	} {
		t.Run(name, func(t *testing.T) {
			c := n.dial(t)
			c.send(9, req)
			c.closed()
		})
	}
}

// TestB028_header_disagrees_with_records: batches whose counts, deltas, record sizes or base offset are wrong
// are refused though their CRC is right.
func TestB028_header_disagrees_with_records(t *testing.T) {
	t.Parallel()
	three := plain(3, stamp)
	with := func(last, count int32) []byte {
		return resealed(put32(put32(bytes.Clone(three), atLastDelta, last), atCount, count))
	}
	long := bytes.Clone(three)
	long[record.HeaderSize] = 0x7e // the first record says it has 63 bytes
	swapped := bytes.Clone(three)
	size := (len(three) - record.HeaderSize) / 3
	second := record.HeaderSize + size
	swapped[second+3], swapped[second+size+3] = 4, 2 // offset deltas 0, 2, 1
	refuseAll(t, []refusal{
		{"count 3 delta 4", with(4, 3), 87},
		{"count 0", with(2, 0), 87},
		{"count -1", with(2, -1), 87},
		{"delta -1", with(-1, 3), 87},
		{"record longer than the batch", resealed(long), 87},
		{"offset deltas 0 2 1", resealed(swapped), 87},
		{"base offset 77", put64(bytes.Clone(three), 0, 77), 87},
	})
	c := shared(t).dial(t)
	tp := c.topic(1)
	c.mustProduce(tp, 0, resealed(put64(bytes.Clone(three), atMaxStamp, stamp-5)))
	c.wantOffset(tp, -3, found{2, stamp + 2, 0})
	c.wantOffset(tp, stamp+2, found{2, stamp + 2, 0})
}

// TestB031_broker_stamped_batches: on a LogAppendTime topic plain and compressed batches get the flag, the
// wall clock and a right CRC; after the topic goes back to CreateTime they stay readable.
func TestB031_broker_stamped_batches(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1, "message.timestamp.type=LogAppendTime")
	begun := time.Now()
	check := func(raw []byte, flag int16) {
		t.Helper()
		for i, b := range batches(t, raw) { // checks the CRC
			if i > 1 {
				flag = 0
			}
			if b.Attributes()&8 != flag {
				t.Errorf("batch %d: attributes %04x", i, b.Attributes())
			}
			if at := b.MaxTimestamp(); flag != 0 && (at < begun.UnixMilli() || at > time.Now().UnixMilli()) {
				t.Errorf("batch %d: max timestamp %d, appended after %d", i, at, begun.UnixMilli())
			}
		}
	}
	c.mustProduce(tp, 0, exampleA())
	c.mustProduce(tp, 0, exampleD())
	check(c.stored(tp, 0), 8)
	c.alterTopic(tp, "message.timestamp.type", "CreateTime")
	for deadline := time.Now().Add(patience); ; {
		if p := c.produce(9, tp, 0, exampleA()); p.LogAppendTime == -1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the topic stays on LogAppendTime")
		}
	}
	raw := c.stored(tp, 0)
	found := batches(t, raw)
	if last := found[len(found)-1]; last.Attributes() != 0 || last.MaxTimestamp() != stamp+5 {
		t.Errorf("after the flip: attributes %04x, max timestamp %d", last.Attributes(), last.MaxTimestamp())
	}
	check(raw[:len(exampleA())+len(exampleD())], 8)
}

func (c *client) alterTopic(tp topic, name, value string) {
	c.t.Helper()
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	resource := kmsg.NewIncrementalAlterConfigsRequestResource()
	resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeTopic, tp.name
	setting := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	setting.Name, setting.Value = name, &value
	resource.Configs = append(resource.Configs, setting)
	req.Resources = append(req.Resources, resource)
	if got := do[*kmsg.IncrementalAlterConfigsResponse](c, 1, req).Resources[0]; got.ErrorCode != 0 {
		c.t.Fatalf("alter %s: error %d %s", tp.name, got.ErrorCode, deref(got.ErrorMessage))
	}
}

// TestB056_size_limits: max.message.bytes counts the batch as sent: 9 KB that expand to 500 KB pass, 10001
// bytes do not, 10000 do. A request above socket.request.max.bytes closes the connection before it is sent.
func TestB056_size_limits(t *testing.T) {
	t.Parallel()
	n := shared(t)
	c := n.dial(t)
	tp := c.topic(1, "max.message.bytes=10000")
	value := make([]byte, 500_000)
	for i, r := 0, rand.New(rand.NewPCG(1, 2)); i < 8_000; i++ {
		value[i] = byte(r.Uint32())
	}
	packed := batch(record.BuilderOptions{Codec: record.Gzip}, rec{stamp, nil, value})
	if len(packed) < 8_000 || len(packed) > 10_000 {
		t.Fatalf("the batch has %d bytes", len(packed))
	}
	c.mustProduce(tp, 0, packed)
	c.refused(9, tp, sized(10_001, stamp), 10)
	c.mustProduce(tp, 0, sized(10_000, stamp))
	c.write(append(binary.BigEndian.AppendUint32(nil, 104857601), unhex("0000 0009 00000001 0001 78")...))
	c.closed()
	// A request of just that many bytes is taken.
	small := start(t, "socket.request.max.bytes=20000")
	c = small.dial(t)
	tp = c.topic(1)
	frame := func(size int) []byte {
		req := produceRequest(9, -1, tp, 0, sized(size, stamp))
		return wire.AppendFrame(nil, func(b []byte) []byte {
			return req.AppendTo(wire.AppendRequestHeader(b, 0, 9, 1, &c.id, true))
		})
	}
	exact := 20000 - (len(frame(19000)) - 4 - 19000)
	c.write(frame(exact))
	if answer, err := c.frame(); err != nil || len(frame(exact)) != 20004 {
		t.Errorf("a request of %d bytes: %x, %v", len(frame(exact))-4, answer, err)
	}
	if end := c.offset(4, tp, 0, -1, -1).Offset; end != 1 {
		t.Errorf("the log ends at %d", end)
	}
	c.write(frame(exact + 1)[:100])
	c.closed()
}

// Errors of one partition leave its neighbours alone, and the answer lists topics and partitions in the order of
// the request, also one that is named twice.
func TestProduce_order_of_answers(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	one, two := c.topic(3), c.topic(1)
	for _, version := range []int16{3, 9, 12, 13} {
		req := produceRequest(version, -1, one, 2, exampleA())
		addProduce(req, one, 0, nil)
		nowhere := topic{name: "no-such-topic", id: [16]byte{9}}
		unknown := int16(3)
		if version >= 13 {
			unknown = 100
		}
		addProduce(req, nowhere, 0, exampleA())
		addProduce(req, two, 0, exampleA())
		addProduce(req, one, 1, exampleA())
		var got []string
		for _, out := range do[*kmsg.ProduceResponse](c, version, req).Topics {
			if version < 13 != (out.Topic != "") || version >= 13 != (out.TopicID != [16]byte{}) {
				t.Errorf("v%d: topic %q, id %x", version, out.Topic, out.TopicID)
			}
			for _, p := range out.Partitions {
				got = append(got, fmt.Sprintf("%d:%d", p.Partition, p.ErrorCode))
			}
		}
		if want := fmt.Sprintf("[2:0 0:87 1:0 0:%d 0:0]", unknown); fmt.Sprint(got) != want {
			t.Errorf("v%d: %v, want %s", version, got, want)
		}
	}
}
