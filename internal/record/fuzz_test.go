package record

import (
	"bytes"
	"errors"
	"math"
	"testing"
)

// fuzzLimit bounds what one fuzz input may decompress to.
const fuzzLimit = 1 << 20

func addExamples(f *testing.F) {
	for _, s := range []string{exampleA, exampleB, exampleC, exampleD, exampleE, exampleS, exampleF, exampleG} {
		f.Add(unhex(f, s))
	}
}

// FuzzBatch: over any bytes,
//   - Batches yields whole, adjoining batches and ends without panic; an error is a CorruptError and comes last;
//   - no accessor panics on what it yields;
//   - walking the records yields no more than the count, and an error is an InvalidRecordError and comes last.
func FuzzBatch(f *testing.F) {
	addExamples(f)
	f.Add(append(unhex(f, exampleA), unhex(f, exampleD)[:70]...))
	f.Fuzz(func(t *testing.T, data []byte) {
		at := 0
		for b, err := range Batches(data) {
			if err != nil {
				var bad *CorruptError
				if !errors.As(err, &bad) || b != nil {
					t.Fatal(err)
				}
				at = -1
				continue
			}
			if at < 0 || !bytes.Equal(b, data[at:at+len(b)]) || b.Length() != len(b) {
				t.Fatalf("batch at %d", at)
			}
			at += len(b)
			_ = b.VerifyCRC()
			_, _, _ = b.LastOffset(), b.LastSequence(), b.Attributes()
			_, _ = b.DeleteHorizon()
			_, _, _ = ParseEndTxnMarker(b)
			n, failed := int32(0), false
			for r, err := range b.Records(Limits{MaxDecompressed: fuzzLimit}) {
				if failed {
					t.Fatal("walk went on after an error")
				}
				if err != nil {
					var invalid *InvalidRecordError
					if !errors.As(err, &invalid) || r != nil {
						t.Fatal(err)
					}
					failed = true
					continue
				}
				n++
				_, _ = b.OffsetOf(r), b.TimestampOf(r)
			}
			if n > max(b.Count(), 0) || !failed && n != b.Count() {
				t.Fatalf("%d records, count %d, failed %t", n, b.Count(), failed)
			}
		}
	})
}

// FuzzRecords: any bytes as the records of a batch, in any codec and with any count,
//   - are accepted by the validator only if the iterator reads them too, with offsets 0, 1, 2...;
//   - are accepted by both or by neither, apart from those offsets, and Stamps agrees with the iterator;
//   - come out the same after conversion to any codec;
//   - are left alone when refused.
func FuzzRecords(f *testing.F) {
	for _, s := range []string{exampleA, exampleC, exampleD, exampleE, exampleS} {
		b := Batch(unhex(f, s))
		f.Add(byte(b.Codec()), b.Count(), []byte(b.Payload()))
	}
	f.Add(byte(Zstd), int32(2), compressed(f, Zstd, unhex(f, recordsA)))
	f.Fuzz(func(t *testing.T, codec byte, count int32, payload []byte) {
		if count < 1 || count > 1<<16 || len(payload) > 1<<16 {
			return
		}
		b := withPayload(t, Codec(codec&codecMask), count, payload)
		sent := b.Clone()
		opts := ValidateOptions{Now: ts0, BeforeMaxMs: math.MaxInt64, AfterMaxMs: math.MaxInt64, MaxMessageBytes: 4 << 20, MaxDecompressed: fuzzLimit}
		info, err := ValidateForAppend(b, opts)
		records, walkErr := collect(sent, Limits{MaxDecompressed: fuzzLimit})
		if c := code(err); c != 0 && c != 87 && c != 32 {
			t.Fatal(err)
		}
		stamps := 0
		var stampErr error
		for s, err := range sent.Stamps(Limits{MaxDecompressed: fuzzLimit}) {
			if stampErr = err; err != nil {
				break
			}
			if r := records[stamps]; s.Offset != sent.OffsetOf(r) || s.Timestamp != sent.TimestampOf(r) {
				t.Fatalf("stamp %+v of %+v", s, r)
			}
			stamps++
		}
		if stamps != len(records) || (stampErr == nil) != (walkErr == nil) {
			t.Fatalf("%d stamps, %v; %d records, %v", stamps, stampErr, len(records), walkErr)
		}
		counted := true
		for i, r := range records {
			counted = counted && r.OffsetDelta == int32(i)
		}
		if structural := code(err) != 87; structural != (walkErr == nil && counted) {
			t.Fatalf("validator: %v; iterator: %v, offsets count: %t", err, walkErr, counted)
		}
		if err != nil {
			wantBytes(t, b, sent)
			return
		}
		if e := info.Batch.VerifyCRC(); e != nil {
			t.Fatal(e)
		}
		opts.Convert = true
		for _, opts.Codec = range allCodecs {
			conv, err := ValidateForAppend(sent.Clone(), opts)
			if err != nil {
				t.Fatalf("to %v: %v", opts.Codec, err)
			}
			got := mustRecords(t, conv.Batch)
			if len(got) != len(records) {
				t.Fatalf("to %v: %d records of %d", opts.Codec, len(got), len(records))
			}
			for i, r := range got {
				if conv.Batch.TimestampOf(r) != sent.TimestampOf(records[i]) || !bytes.Equal(r.Key, records[i].Key) ||
					!bytes.Equal(r.Value, records[i].Value) || len(r.Headers) != len(records[i].Headers) {
					t.Fatalf("to %v: record %d differs", opts.Codec, i)
				}
			}
		}
	})
}

// fuzzDecompress: any payload either fails or decodes to bytes which, compressed again, decode to themselves;
// never more is held than the limit, however little the payload is.
func fuzzDecompress(f *testing.F, codec Codec) {
	for _, data := range corpus() {
		if len(data) < 1000 {
			f.Add(compressed(f, codec, data))
		}
	}
	for _, s := range []string{exampleD, exampleE, exampleS} {
		if b := Batch(unhex(f, s)); b.Codec() == codec {
			f.Add([]byte(b.Payload()))
		}
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		var s source
		if err := s.open(withPayload(t, codec, 1, payload), fuzzLimit); err != nil {
			t.Fatal(err)
		}
		defer s.close()
		var got []byte
		for s.fill() {
			got = append(got, s.buf[s.r:s.w]...)
			s.r = s.w
		}
		if len(got) > fuzzLimit {
			t.Fatalf("%d bytes passed the limit", len(got))
		}
		if !s.end() {
			if s.malformed(0, "") == nil {
				t.Fatal("failed without an error")
			}
			return
		}
		again, err := decompressed(codec, compressed(t, codec, got))
		if err != nil || !bytes.Equal(again, got) {
			t.Fatalf("%d bytes came back as %d: %v", len(got), len(again), err)
		}
	})
}

func FuzzDecompressGzip(f *testing.F)   { fuzzDecompress(f, Gzip) }
func FuzzDecompressSnappy(f *testing.F) { fuzzDecompress(f, Snappy) }
func FuzzDecompressLZ4(f *testing.F)    { fuzzDecompress(f, LZ4) }
func FuzzDecompressZstd(f *testing.F)   { fuzzDecompress(f, Zstd) }

// FuzzSplitProduce: any record bytes of a request
//   - are split into a prefix that is exactly as long as its header says, or refused with 2 or 87;
//   - and the split, whatever it is, is accepted with a right CRC and its own count, or refused with one of
//     the codes of the table, and then unchanged.
func FuzzSplitProduce(f *testing.F) {
	addExamples(f)
	f.Add(append(unhex(f, exampleA), unhex(f, exampleA)[:20]...))
	f.Add(unhex(f, exampleA)[:60])
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := SplitProduce(data)
		if err != nil {
			if c := code(err); c != 2 && c != 87 {
				t.Fatal(err)
			}
			return
		}
		if !bytes.HasPrefix(data, b) || b.Length() != len(b) || b.Magic() != Magic {
			t.Fatalf("split %x", []byte(b))
		}
		_ = CheckProduceVersion(b, 3)
		sent := b.Clone()
		opts := topic()
		opts.MaxDecompressed, opts.ProduceVersion = fuzzLimit, 9
		info, err := ValidateForAppend(b, opts)
		switch code(err) {
		case 0:
			if info.Batch.VerifyCRC() != nil || info.Count != info.Batch.Count() || info.Count != info.LastOffsetDelta+1 ||
				info.MaxTimestamp != info.Batch.MaxTimestamp() || info.OffsetDeltaOfMaxTimestamp >= info.Count {
				t.Fatalf("%+v", info)
			}
		case 2, 10, 32, 76, 87:
			wantBytes(t, b, sent)
		default:
			t.Fatal(err)
		}
	})
}
