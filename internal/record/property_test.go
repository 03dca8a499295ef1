package record

import (
	"bytes"
	"math"
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

// drawField draws null, empty, short and long keys and values.
func drawField(t *rapid.T, label string) []byte {
	switch rapid.IntRange(0, 5).Draw(t, label+" kind") {
	case 0:
		return nil
	case 1:
		return []byte{}
	case 2:
		return bytes.Repeat([]byte{byte(rapid.IntRange(0, 255).Draw(t, label+" byte"))}, rapid.IntRange(60, 70000).Draw(t, label+" size"))
	default:
		return rapid.SliceOfN(rapid.Byte(), 1, 200).Draw(t, label)
	}
}

func drawRecords(t *rapid.T) []*Record {
	var out []*Record
	for i := range rapid.IntRange(1, 20).Draw(t, "records") {
		r := &Record{
			TimestampDelta: rapid.OneOf(rapid.Int64Range(ts0-1000, ts0+1000), rapid.Int64Range(-1, math.MaxInt64)).Draw(t, "timestamp"),
			OffsetDelta:    int32(i),
			Key:            drawField(t, "key"),
			Value:          drawField(t, "value"),
		}
		for range rapid.IntRange(0, 3).Draw(t, "headers") {
			r.Headers = append(r.Headers, Header{Key: rapid.SliceOf(rapid.Byte()).Draw(t, "header"), Value: drawField(t, "header value")})
		}
		out = append(out, r)
	}
	return out
}

// Whatever is built is read back the same in every codec, passes validation unchanged, fits the size that was
// promised, and survives conversion from any codec to any other.
func TestPropertyBuildIterateConvert(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		records := drawRecords(t) // timestamps absolute
		codec := rapid.SampledFrom(allCodecs).Draw(t, "codec")
		to := rapid.SampledFrom(allCodecs).Draw(t, "to")
		opts := BuilderOptions{Codec: codec, Transactional: rapid.Bool().Draw(t, "transactional")}
		if rapid.Bool().Draw(t, "idempotent") {
			opts.Producer = &Producer{ID: rapid.Int64Range(0, math.MaxInt64).Draw(t, "pid"), Epoch: rapid.Int16Min(0).Draw(t, "epoch"),
				BaseSequence: rapid.Int32Min(0).Draw(t, "sequence")}
		}
		bld := NewBuilder(opts)
		maxTimestamp, first := int64(-1), int32(-1)
		for i, r := range records {
			bound := bld.SizeWith(r.Key, r.Value, r.Headers)
			if err := bld.Append(r.TimestampDelta, r.Key, r.Value, r.Headers); err != nil {
				t.Fatal(err)
			}
			if bld.Size() > bound {
				t.Fatalf("size %d is above its bound %d", bld.Size(), bound)
			}
			if r.TimestampDelta > maxTimestamp {
				maxTimestamp, first = r.TimestampDelta, int32(i)
			}
		}
		b := bld.Bytes()
		if codec == None && len(b) != bld.Size() {
			t.Fatalf("%d bytes, Size %d", len(b), bld.Size())
		}
		same := func(b Batch) {
			i := 0
			for r, err := range b.Records(Limits{}) {
				if err != nil {
					t.Fatal(err)
				}
				got := r.Clone()
				got.TimestampDelta = b.TimestampOf(r)
				want := records[i]
				if got.Headers == nil {
					got.Headers = want.Headers[:0:0]
				}
				if !reflect.DeepEqual(got, want) {
					t.Fatalf("record %d: %+v, want %+v", i, got, want)
				}
				i++
			}
			if i != len(records) {
				t.Fatalf("%d records of %d", i, len(records))
			}
		}
		same(b)
		sent := b.Clone()
		rules := ValidateOptions{Now: ts0, BeforeMaxMs: math.MaxInt64, AfterMaxMs: math.MaxInt64, MaxMessageBytes: -1}
		info, err := ValidateForAppend(b, rules)
		if err != nil || info.Rebuilt || info.MaxTimestamp != maxTimestamp || info.OffsetDeltaOfMaxTimestamp != first {
			t.Fatal(info, err, maxTimestamp, first)
		}
		if !bytes.Equal(b, sent) {
			t.Fatal("validation changed a right batch")
		}
		rules.Convert, rules.Codec = true, to
		info, err = ValidateForAppend(b, rules)
		if err != nil || info.Batch.Codec() != to || info.Rebuilt != (to != codec) {
			t.Fatal(info, err)
		}
		same(info.Batch)
	})
}

// One byte changed anywhere after the leader epoch never goes unnoticed.
func TestPropertyOneByteChanged(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := build(rapid.SampledFrom(allCodecs).Draw(t, "codec"), []int64{ts0, ts0 + 1, ts0 - 7})
		b[rapid.IntRange(atMagic, len(b)-1).Draw(t, "at")] ^= byte(rapid.IntRange(1, 255).Draw(t, "bits"))
		if code(b.VerifyCRC()) != 2 {
			t.Fatal("not noticed")
		}
	})
}

// The sequence after the largest is 0: a batch may begin before it and end after it.
func TestSequencesWrapInsideABatch(t *testing.T) {
	t.Parallel()
	b := NewBuilder(BuilderOptions{Producer: &Producer{ID: 1, Epoch: 0, BaseSequence: math.MaxInt32 - 1}})
	for range 4 {
		if err := b.Append(1, nil, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := b.Bytes().LastSequence(); got != 1 {
		t.Errorf("last sequence %d, want 1", got)
	}
}
