package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"reflect"
	"slices"
	"testing"
)

// topic is the rules of a topic with default configuration at ts0.
func topic() ValidateOptions {
	return ValidateOptions{Now: ts0, BeforeMaxMs: math.MaxInt64, AfterMaxMs: 3600000, MaxMessageBytes: 1048588}
}

// edit is a copy of a batch with bytes changed and the CRC right again.
func edit(b Batch, change func(Batch)) Batch {
	c := b.Clone()
	change(c)
	c.updateCRC()
	return c
}

func set32(b Batch, at int, v int32) { binary.BigEndian.PutUint32(b[at:], uint32(v)) }
func set64(b Batch, at int, v int64) { binary.BigEndian.PutUint64(b[at:], uint64(v)) }

// withPayload is example A's header over other records.
func withPayload(t testing.TB, codec Codec, count int32, payload []byte) Batch {
	t.Helper()
	b := append(example(t, exampleA)[:HeaderSize:HeaderSize], payload...)
	set32(b, atBatchLength, int32(len(b)-LogOverhead))
	set32(b, atCount, count)
	set32(b, atLastOffsetDelta, count-1)
	b[atAttributes+1] = byte(codec)
	b.updateCRC()
	return b
}

// produce is the path of a produced partition: split, then validate.
func produce(records []byte, opts ValidateOptions) (Info, error) {
	b, err := SplitProduce(bytes.Clone(records))
	if err != nil {
		return Info{}, err
	}
	return ValidateForAppend(b, opts)
}

// Protocol codes that the errors stand for.
func code(err error) int {
	var (
		corrupt *CorruptError
		invalid *InvalidRecordError
		time    *InvalidTimestampError
		large   *TooLargeError
		codec   *UnsupportedCodecError
	)
	switch {
	case err == nil:
		return 0
	case errors.As(err, &corrupt):
		return 2
	case errors.As(err, &large):
		return 10
	case errors.As(err, &time):
		return 32
	case errors.As(err, &codec):
		return 76
	case errors.As(err, &invalid):
		return 87
	}
	return -1
}

func wantCode(t testing.TB, name string, records []byte, opts ValidateOptions, want int) Info {
	t.Helper()
	before := bytes.Clone(records)
	info, err := produce(records, opts)
	if code(err) != want {
		t.Errorf("%s: code %d (%v), want %d", name, code(err), err, want)
	}
	if err == nil {
		if e := info.Batch.VerifyCRC(); e != nil {
			t.Errorf("%s: accepted batch: %v", name, e)
		}
		if opts.Origin == FromClient && len(info.Batch) > opts.MaxMessageBytes {
			t.Errorf("%s: accepted batch has %d bytes", name, len(info.Batch))
		}
	}
	if !bytes.Equal(records, before) {
		t.Errorf("%s: test bug, input changed", name)
	}
	return info
}

func listed(err error) []int32 {
	var (
		invalid *InvalidRecordError
		time    *InvalidTimestampError
		out     []int32
		list    []RecordError
	)
	if errors.As(err, &invalid) {
		list = invalid.Records
	} else if errors.As(err, &time) {
		list = time.Records
	}
	for _, r := range list {
		if r.Message == "" {
			return nil
		}
		out = append(out, r.Index)
	}
	return out
}

// S-001: batch A is stored as it came; only base offset and leader epoch are written over.
func TestS001_stored_as_sent(t *testing.T) {
	t.Parallel()
	info := wantCode(t, "A", example(t, exampleA), topic(), 0)
	wantBytes(t, info.Batch, example(t, exampleA))
	if info.Rebuilt || info.Count != 2 || info.LastOffsetDelta != 1 || info.MaxTimestamp != ts0+5 || info.OffsetDeltaOfMaxTimestamp != 1 {
		t.Errorf("%+v", info)
	}
}

// S-002, B-031: on a LogAppendTime topic the batch gets the flag, the append time and a new CRC; records stay.
func TestS002_log_append_time(t *testing.T) {
	t.Parallel()
	opts := topic()
	opts.TimestampType, opts.Now, opts.AfterMaxMs = LogAppendTime, ts0+1000, 0
	for _, s := range []string{exampleA, exampleD, exampleE, exampleS} {
		sent := example(t, s)
		info := wantCode(t, "LogAppendTime", sent, opts, 0)
		b := info.Batch
		if b.Attributes() != sent.Attributes()|8 || b.MaxTimestamp() != ts0+1000 || info.MaxTimestamp != ts0+1000 || info.OffsetDeltaOfMaxTimestamp != 0 {
			t.Errorf("%+v", info)
		}
		wantBytes(t, b.Payload(), sent.Payload())
		for _, r := range mustRecords(t, b) {
			if b.TimestampOf(r) != ts0+1000 {
				t.Error("record has its own time")
			}
		}
		if s == exampleA && b.CRC() != 0xc620d773 {
			t.Errorf("CRC %08x", b.CRC())
		}
	}
}

// S-002, S-018: a batch that is compressed anew for a LogAppendTime topic has the flag and the append time too.
func TestS002_log_append_time_of_a_rebuilt_batch(t *testing.T) {
	t.Parallel()
	for _, codec := range []Codec{None, Gzip, Snappy, LZ4, Zstd} {
		for _, s := range []string{exampleA, exampleD} {
			sent := example(t, s)
			if sent.Codec() == codec {
				continue
			}
			opts := topic()
			opts.TimestampType, opts.Now, opts.AfterMaxMs = LogAppendTime, ts0+1000, 0
			opts.Convert, opts.Codec, opts.Level = true, codec, 1
			info := wantCode(t, "rebuilt", sent, opts, 0)
			b := info.Batch
			if !info.Rebuilt || b.Codec() != codec || b.TimestampType() != LogAppendTime || b.MaxTimestamp() != ts0+1000 {
				t.Errorf("%v: rebuilt %t, attributes %04x, max timestamp %d", codec, info.Rebuilt, b.Attributes(), b.MaxTimestamp())
			}
			for _, r := range mustRecords(t, b) {
				if b.TimestampOf(r) != ts0+1000 {
					t.Errorf("%v: a record has its own time %d", codec, b.TimestampOf(r))
				}
			}
		}
	}
}

// S-002: a batch whose largest timestamp happens to be the append time gets the flag all the same.
func TestS002_log_append_time_as_sent(t *testing.T) {
	t.Parallel()
	for _, s := range []string{exampleA, exampleD, exampleE, exampleS} {
		sent := example(t, s)
		opts := topic()
		opts.TimestampType, opts.Now = LogAppendTime, sent.MaxTimestamp()
		b := wantCode(t, "as sent", sent, opts, 0).Batch
		if b.TimestampType() != LogAppendTime || b.MaxTimestamp() != opts.Now {
			t.Errorf("%v: attributes %04x, max timestamp %d", b.Codec(), b.Attributes(), b.MaxTimestamp())
		}
		if err := b.VerifyCRC(); err != nil {
			t.Error(err)
		}
	}
}

// S-003: a flipped bit, a batch of 60 bytes, a length of 13 and magic 3 are corrupt; magic 1 is invalid.
func TestS003_damage(t *testing.T) {
	t.Parallel()
	a := example(t, exampleA)
	flip := a.Clone()
	flip[len(flip)-2] ^= 1
	wantCode(t, "bit flipped", flip, topic(), 2)
	short := a.Clone()[:60]
	set32(short, atBatchLength, 48)
	wantCode(t, "60 bytes", short, topic(), 2)
	for n := int32(14); n < 49; n++ {
		cut := a.Clone()[:n+12]
		set32(cut, atBatchLength, n)
		wantCode(t, "less than a header", cut, topic(), 2)
	}
	set32(short, atBatchLength, 13)
	wantCode(t, "length 13", short, topic(), 2)
	set32(short, atBatchLength, -1)
	wantCode(t, "length -1", short, topic(), 2)
	for magic, want := range map[byte]int{0: 87, 1: 87, 3: 2, 0xff: 2} {
		b := a.Clone()
		b[atMagic] = magic
		wantCode(t, "magic", b, topic(), want)
	}
}

// S-004: a base offset other than 0 and a second batch are invalid; stray bytes that announce a longer batch
// than they hold are dropped.
func TestS004_one_batch_from_zero(t *testing.T) {
	t.Parallel()
	a := example(t, exampleA)
	b := a.Clone()
	b.SetBaseOffset(5)
	wantCode(t, "base offset 5", b, topic(), 87)
	wantCode(t, "twice", append(a.Clone(), a...), topic(), 87)
	for _, n := range []int{1, 11, 12, 16, 20, 82} {
		info := wantCode(t, "stray", append(a.Clone(), a[:n]...), topic(), 0)
		wantBytes(t, info.Batch, a)
	}
	for size := int32(-1); size < 14; size++ {
		bad := append(a.Clone(), a[:20]...)
		set32(bad, 83+8, size)
		wantCode(t, "stray with a size no batch has", bad, topic(), 2)
	}
}

// S-005: a batch cut by one byte, null and empty records are invalid.
func TestS005_cut_null_empty(t *testing.T) {
	t.Parallel()
	a := example(t, exampleA)
	wantCode(t, "cut", a[:82], topic(), 87)
	wantCode(t, "cut in the header", a[:11], topic(), 87)
	wantCode(t, "null", nil, topic(), 87)
	wantCode(t, "empty", []byte{}, topic(), 87)
}

// S-006, B-028: header and records must agree on how many there are; offset deltas must count from 0.
func TestS006_counts(t *testing.T) {
	t.Parallel()
	a := example(t, exampleA)
	for name, change := range map[string]func(Batch){
		"last delta 2 of 2":        func(b Batch) { set32(b, atLastOffsetDelta, 2) },
		"count 0":                  func(b Batch) { set32(b, atCount, 0) },
		"count 0 and delta -1":     func(b Batch) { set32(b, atCount, 0); set32(b, atLastOffsetDelta, -1) },
		"count -1":                 func(b Batch) { set32(b, atCount, -1) },
		"delta -1":                 func(b Batch) { set32(b, atLastOffsetDelta, -1) },
		"count 3 of 2":             func(b Batch) { set32(b, atCount, 3); set32(b, atLastOffsetDelta, 2) },
		"count 1 of 2":             func(b Batch) { set32(b, atCount, 1); set32(b, atLastOffsetDelta, 0) },
		"count max":                func(b Batch) { set32(b, atCount, math.MaxInt32); set32(b, atLastOffsetDelta, math.MaxInt32-1) },
		"count min delta max":      func(b Batch) { set32(b, atCount, math.MinInt32); set32(b, atLastOffsetDelta, math.MaxInt32) },
		"second offset delta 2":    func(b Batch) { b[75] = 4 },
		"second offset delta 0":    func(b Batch) { b[75] = 0 },
		"record length past end":   func(b Batch) { b[72] = 0x7e },
		"record length short":      func(b Batch) { b[72] = 0x12 },
		"record length negative":   func(b Batch) { b[61] = 0x01 },
		"header count negative":    func(b Batch) { b[71] = 0x01 },
		"header count over":        func(b Batch) { b[71] = 0x02 },
		"key over the record":      func(b Batch) { b[65] = 0x40 },
		"key over its own record":  func(b Batch) { b[65] = 0x14 },
		"value over the record":    func(b Batch) { b[68] = 0x06 },
		"negative key, bytes left": func(b Batch) { b[65] = 0x01 },
	} {
		wantCode(t, name, edit(a, change), topic(), 87)
	}
	for _, codec := range []Codec{None, Gzip, Snappy, LZ4, Zstd} {
		for name, count := range map[string]int32{"one more": 3, "one less": 1} {
			b := withPayload(t, codec, count, compressed(t, codec, unhex(t, recordsA)))
			wantCode(t, codec.String()+" "+name, b, topic(), 87)
		}
		for name, records := range map[string]string{
			"slack after the headers": `16 00 00 00 04 6b31 04 7631 00 77   14 00 0a 02 04 6b32 04 7632 00`,
			"second inside the first": `2a 00 00 00 04 6b31 04 7631 00   14 00 0a 02 04 6b32 04 7632 00`,
			"null header key":         `18 00 00 00 04 6b31 04 7631 02 01 01   14 00 0a 02 04 6b32 04 7632 00`,
		} {
			b := withPayload(t, codec, 2, compressed(t, codec, unhex(t, records)))
			wantCode(t, codec.String()+" "+name, b, topic(), 87)
			if rs, err := collect(b, Limits{}); code(err) != 87 || len(rs) != 0 {
				t.Errorf("%v %s: iterator: %v", codec, name, err)
			}
		}
		swapped := unhex(t, `14 00 00 02 04 6b31 04 7631 00   14 00 0a 00 04 6b32 04 7632 00`)
		wantCode(t, codec.String()+" swapped", withPayload(t, codec, 2, compressed(t, codec, swapped)), topic(), 87)
	}
}

// S-007: a marker, a delete horizon, and a producer without a sequence are refused from clients; a
// coordinator may write markers, at any base offset.
func TestS007_not_from_clients(t *testing.T) {
	t.Parallel()
	b := example(t, exampleB)
	wantCode(t, "marker with offset", b, topic(), 87)
	b.SetBaseOffset(0)
	wantCode(t, "marker", b, topic(), 87)
	wantCode(t, "control without producer", NewControlBatch(ts0, ControlRecord{Commit, nil}), topic(), 87)
	wantCode(t, "delete horizon", edit(example(t, exampleA), func(b Batch) { b[atAttributes+1] |= 0x40 }), topic(), 87)
	noSeq := edit(example(t, exampleA), func(b Batch) { set64(b, atProducerID, 1) })
	wantCode(t, "no sequence", noSeq, topic(), 87)
	opts := topic()
	opts.Origin, opts.Compact, opts.Convert, opts.Codec = FromCoordinator, true, true, Gzip
	info := wantCode(t, "coordinator", example(t, exampleB), opts, 0)
	wantBytes(t, info.Batch, example(t, exampleB))
}

// S-008: null key, null value and headers come back in order.
func TestS008_nulls_and_headers(t *testing.T) {
	t.Parallel()
	info := wantCode(t, "C", example(t, exampleC), topic(), 0)
	want := []*Record{{Headers: []Header{{[]byte("h1"), []byte("x")}, {[]byte("h2"), nil}}}}
	if got := mustRecords(t, info.Batch); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
}

// build makes a batch of records with these timestamps; no key where the key is "-".
func build(codec Codec, stamps []int64, keys ...string) Batch {
	bld := NewBuilder(BuilderOptions{Codec: codec})
	for i, ts := range stamps {
		key := []byte("k")
		if i < len(keys) && keys[i] == "-" {
			key = nil
		}
		bld.Append(ts, key, []byte("value"), nil)
	}
	return bld.Bytes()
}

var allCodecs = []Codec{None, Gzip, Snappy, LZ4, Zstd}

// S-009, B-029: on a compacted topic every record without key is listed by its index.
func TestS009_compacted_needs_keys(t *testing.T) {
	t.Parallel()
	opts := topic()
	opts.Compact = true
	for _, codec := range allCodecs {
		_, err := produce(build(codec, []int64{ts0, ts0, ts0}, "k", "-", "k"), opts)
		if got := listed(err); code(err) != 87 || !slices.Equal(got, []int32{1}) {
			t.Errorf("%v: %v, listed %v", codec, err, got)
		}
		_, err = produce(build(codec, []int64{ts0, ts0, ts0}, "-", "k", "-"), opts)
		if got := listed(err); code(err) != 87 || !slices.Equal(got, []int32{0, 2}) {
			t.Errorf("%v: %v, listed %v", codec, err, got)
		}
		wantCode(t, "with keys", build(codec, []int64{ts0, ts0}), opts, 0)
	}
	// The list is bounded, the reason is not lost.
	bld := NewBuilder(BuilderOptions{Codec: Gzip})
	for range MaxRecordErrors + 5 {
		bld.Append(ts0, nil, nil, nil)
	}
	bld.Append(ts0*2, []byte("k"), nil, nil)
	_, err := produce(bld.Bytes(), opts)
	if got := listed(err); code(err) != 32 || len(got) != MaxRecordErrors {
		t.Errorf("%v, listed %d", code(err), len(got))
	}
}

// S-010: the limits of a record's time are inclusive; a time error wins over a key error and both are listed.
func TestS010_timestamp_limits(t *testing.T) {
	t.Parallel()
	for _, codec := range allCodecs {
		opts := topic()
		wantCode(t, "after ok", build(codec, []int64{ts0, ts0 + 3600000}), opts, 0)
		_, err := produce(build(codec, []int64{ts0, ts0 + 3600001}), opts)
		if got := listed(err); code(err) != 32 || !slices.Equal(got, []int32{1}) {
			t.Errorf("after: %v %v", err, got)
		}
		opts.BeforeMaxMs = 1000
		wantCode(t, "before ok", build(codec, []int64{ts0 - 1000}), opts, 0)
		_, err = produce(build(codec, []int64{ts0 - 1001}), opts)
		if got := listed(err); code(err) != 32 || !slices.Equal(got, []int32{0}) {
			t.Errorf("before: %v %v", err, got)
		}
		opts.Compact = true
		_, err = produce(build(codec, []int64{ts0, ts0, ts0 + 3600001}, "-", "k", "k"), opts)
		if got := listed(err); code(err) != 32 || !slices.Equal(got, []int32{0, 2}) {
			t.Errorf("both: %v %v", err, got)
		}
		if _, err = produce(build(codec, []int64{ts0 + 3600001, ts0}, "k", "-"), opts); code(err) != 32 {
			t.Errorf("time, then key: %v", err)
		}
		for _, ts := range []int64{-2, math.MinInt64, math.MaxInt64} {
			wantCode(t, "far off", build(codec, []int64{ts}), topic(), 32)
		}
	}
	// Deltas that overflow do not slip through.
	opts := topic()
	opts.AfterMaxMs = math.MaxInt64
	wantCode(t, "overflow", build(None, []int64{math.MaxInt64, -5}), opts, 32)
}

// S-011: no timestamp is fine; the LogAppendTime flag is refused on a LogAppendTime topic, and on a CreateTime
// topic without a timestamp; with a good one it is cleared.
func TestS011_timestamp_types(t *testing.T) {
	t.Parallel()
	info := wantCode(t, "-1", build(None, []int64{-1, -1}), topic(), 0)
	if info.MaxTimestamp != -1 || info.OffsetDeltaOfMaxTimestamp != -1 || info.Batch.MaxTimestamp() != -1 {
		t.Errorf("%+v", info)
	}
	flagged := example(t, exampleA)
	flagged.SetMaxTimestamp(LogAppendTime, ts0+5)
	opts := topic()
	opts.TimestampType = LogAppendTime
	wantCode(t, "flag on LogAppendTime", flagged, opts, 32)
	info = wantCode(t, "flag on CreateTime", flagged, topic(), 0)
	wantBytes(t, info.Batch, example(t, exampleA))
	for _, bad := range []int64{-1, -2, ts0 + 3600001} {
		flagged.SetMaxTimestamp(LogAppendTime, bad)
		_, err := produce(flagged, topic())
		if got := listed(err); code(err) != 32 || !slices.Equal(got, []int32{0, 1}) {
			t.Errorf("flagged, %d: %v %v", bad, err, got)
		}
	}
}

// S-012: a wrong largest timestamp in the header is corrected, with the first record that has the true one.
func TestS012_max_timestamp_corrected(t *testing.T) {
	t.Parallel()
	for _, codec := range allCodecs {
		right := build(codec, []int64{ts0 - 20, ts0, ts0 - 10, ts0})
		for _, wrong := range []int64{ts0 + 1, -1, 0, math.MaxInt64} {
			info := wantCode(t, "wrong", edit(right, func(b Batch) { set64(b, atMaxTimestamp, wrong) }), topic(), 0)
			if info.MaxTimestamp != ts0 || info.OffsetDeltaOfMaxTimestamp != 1 {
				t.Errorf("%+v", info)
			}
			wantBytes(t, info.Batch, right)
		}
	}
}

// S-013, B-056: the limit counts the whole batch as sent, and again as rebuilt.
func TestS013_size_limit(t *testing.T) {
	t.Parallel()
	opts := topic()
	opts.MaxMessageBytes = 82
	wantCode(t, "82", example(t, exampleA), opts, 10)
	opts.MaxMessageBytes = 83
	wantCode(t, "83", example(t, exampleA), opts, 0)
	for _, codec := range []Codec{Gzip, Snappy, LZ4, Zstd} {
		bld := NewBuilder(BuilderOptions{Codec: codec})
		bld.Append(ts0, nil, make([]byte, 1000), nil)
		b := bld.Bytes()
		opts.MaxMessageBytes = len(b)
		wantCode(t, "as sent", b, opts, 0)
		opts.Convert = true
		wantCode(t, "as rebuilt", b, opts, 10)
		opts.MaxMessageBytes = bld.Size()
		wantCode(t, "as rebuilt, fits", b, opts, 0)
		opts.MaxMessageBytes = bld.Size() - 1
		wantCode(t, "as rebuilt, one over", b, opts, 10)
		opts.Convert = false
	}
	// Too large comes before corrupt: the size is known without reading.
	bad := example(t, exampleA)
	bad[82] ^= 1
	opts.MaxMessageBytes = 82
	wantCode(t, "large and corrupt", bad, opts, 10)
}

// S-015, B-041: every codec is stored as it came, zstd from version 7 on.
func TestS015_codecs_stored_as_sent(t *testing.T) {
	t.Parallel()
	batches := map[string]Batch{"D": example(t, exampleD), "E": example(t, exampleE), "S": example(t, exampleS),
		"bare snappy": withPayload(t, Snappy, 2, append([]byte{0x16, 0x54}, unhex(t, recordsA)...)),
		"zstd":        withPayload(t, Zstd, 2, compressed(t, Zstd, unhex(t, recordsA)))}
	want := mustRecords(t, example(t, exampleA))
	for name, b := range batches {
		opts := topic()
		opts.ProduceVersion = 7
		info := wantCode(t, name, b, opts, 0)
		wantBytes(t, info.Batch, b)
		if got := mustRecords(t, info.Batch); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	for v := int16(3); v < 7; v++ {
		opts := topic()
		opts.ProduceVersion = v
		wantCode(t, "zstd", batches["zstd"], opts, 76)
		wantCode(t, "gzip", batches["D"], opts, 0)
	}
}

// S-018: compression.type converts when it names another codec, keeping producer fields and records; control
// batches stay as they are, and a level alone converts nothing.
func TestS018_conversion(t *testing.T) {
	t.Parallel()
	opts := topic()
	opts.Convert, opts.Codec = true, Gzip
	info := wantCode(t, "A to gzip", example(t, exampleA), opts, 0)
	b := info.Batch
	if !info.Rebuilt || b.Codec() != Gzip || b.BaseTimestamp() != ts0 || b.MaxTimestamp() != ts0+5 {
		t.Errorf("%+v %x", info, b)
	}
	if got, want := mustRecords(t, b), mustRecords(t, example(t, exampleA)); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	info = wantCode(t, "C to gzip", example(t, exampleC), opts, 0)
	if b := info.Batch; b.ProducerID() != 4000 || b.ProducerEpoch() != 5 || b.BaseSequence() != 0 || b.PartitionLeaderEpoch() != -1 {
		t.Errorf("%x", b)
	}
	opts.Level = 1
	if info = wantCode(t, "level", example(t, exampleD), opts, 0); info.Rebuilt {
		t.Error("rebuilt for a level")
	}
	for _, from := range allCodecs {
		for _, to := range allCodecs {
			bld := NewBuilder(BuilderOptions{Codec: from, Transactional: true, Producer: &Producer{ID: 9, Epoch: 1, BaseSequence: 7}})
			for i := range int64(300) {
				bld.Append(ts0+i%7, []byte("key"), bytes.Repeat([]byte{byte(i)}, int(i)*3), []Header{{[]byte("h"), nil}})
			}
			sent := bld.Bytes()
			opts := topic()
			opts.Convert, opts.Codec = true, to
			info := wantCode(t, "conversion", sent, opts, 0)
			b := info.Batch
			if info.Rebuilt != (from != to) || b.Codec() != to || !b.IsTransactional() || b.ProducerID() != 9 || b.BaseSequence() != 7 {
				t.Errorf("%v to %v: %+v", from, to, info)
			}
			if !reflect.DeepEqual(mustRecords(t, b), mustRecords(t, sent)) {
				t.Errorf("%v to %v: records differ", from, to)
			}
		}
	}
	// The first record's time becomes the base, whatever the producer used.
	shifted := edit(example(t, exampleA), func(b Batch) { set64(b, atBaseTimestamp, ts0-1); b[63] = 2; b[74] = 0x0c })
	info = wantCode(t, "other base", shifted, opts, 0)
	if info.Batch.BaseTimestamp() != ts0 || !reflect.DeepEqual(mustRecords(t, info.Batch), mustRecords(t, example(t, exampleA))) {
		t.Errorf("%x", info.Batch)
	}
}

// S-020: unused attribute bits stay, until the broker has to write attributes.
func TestS020_unused_attribute_bits(t *testing.T) {
	t.Parallel()
	b := edit(example(t, exampleA), func(b Batch) { b[atAttributes], b[atAttributes+1] = 0x01, 0x80 })
	info := wantCode(t, "kept", b, topic(), 0)
	if info.Batch.Attributes() != 0x0180 {
		t.Errorf("%04x", info.Batch.Attributes())
	}
	opts := topic()
	opts.TimestampType = LogAppendTime
	info = wantCode(t, "cleared", b, opts, 0)
	if info.Batch.Attributes() != 0x0008 {
		t.Errorf("%04x", info.Batch.Attributes())
	}
}

// The checks come in Kafka's order: a batch that breaks two rules gets the error of the first.
func TestOrderOfChecks(t *testing.T) {
	t.Parallel()
	opts := topic()
	opts.MaxMessageBytes, opts.ProduceVersion, opts.Compact = 60, 3, true
	all := edit(withPayload(t, Zstd, 2, []byte("not zstd")), func(b Batch) {
		b.SetBaseOffset(1)
		set32(b, atLastOffsetDelta, -1)
	})
	all[len(all)-1] ^= 1
	steps := []struct {
		want int
		fix  func()
	}{
		{76, func() { opts.ProduceVersion = 7 }},
		{87, func() { all.SetBaseOffset(0) }},
		{10, func() { opts.MaxMessageBytes = 1000 }},
		{2, func() { all.updateCRC() }},
		{87, func() { set32(all, atLastOffsetDelta, 1); all.updateCRC() }},
		{87, nil},
	}
	for i, s := range steps {
		wantCode(t, "step "+string(rune('0'+i)), all, opts, s.want)
		if s.fix != nil {
			s.fix()
		}
	}
}

// A refused batch is not changed, not even in part.
func TestRefusedBatchUnchanged(t *testing.T) {
	t.Parallel()
	opts := topic()
	opts.Compact = true
	b := edit(build(None, []int64{ts0, ts0}, "k", "-"), func(b Batch) { set64(b, atMaxTimestamp, 7) })
	before := b.Clone()
	if _, err := ValidateForAppend(b, opts); code(err) != 87 {
		t.Fatal(err)
	}
	wantBytes(t, b, before)
}
