package record

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// hundred is a batch of 100 records of 1 KiB, half compressible.
func hundred(codec Codec) Batch {
	rng := rand.New(rand.NewPCG(3, 4))
	bld := NewBuilder(BuilderOptions{Codec: codec})
	for i := range int64(100) {
		value := bytes.Repeat([]byte("0123456789abcdef"), 64)
		for j := range 512 {
			value[j] = byte(rng.Uint32())
		}
		bld.Append(ts0+i, []byte("key"), value, []Header{{[]byte("h"), []byte("v")}})
	}
	return bld.Bytes()
}

// The produce path of an uncompressed batch allocates nothing; nor does a walk over its records, nor, once
// pools are warm, over those of the block codecs.
// (Not parallel: it measures allocation.)
func TestNoAllocations(t *testing.T) {
	b := hundred(None)
	opts := topic()
	if n := testing.AllocsPerRun(100, func() {
		split, err := SplitProduce(b)
		if err == nil {
			_, err = ValidateForAppend(split, opts)
		}
		if err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("validation: %v allocations", n)
	}
	for _, codec := range []Codec{None, Snappy, LZ4, Gzip, Zstd} {
		b := hundred(codec)
		n := testing.AllocsPerRun(50, func() {
			it := NewRecordIterator(b, Limits{})
			for it.Next() {
			}
			if it.Err() != nil {
				t.Fatal(it.Err())
			}
			it.Close()
		})
		if n > 20 { // a hundred records: none of them costs one
			t.Errorf("%v: %v allocations for 100 records", codec, n)
		}
		t.Logf("%v: %v allocations for 100 records", codec, n)
	}
}

func BenchmarkValidate(b *testing.B) {
	for _, codec := range allCodecs {
		b.Run(codec.String(), func(b *testing.B) {
			batch, opts := hundred(codec), topic()
			b.SetBytes(100 << 10)
			b.ReportAllocs()
			for b.Loop() {
				split, err := SplitProduce(batch)
				if err == nil {
					_, err = ValidateForAppend(split, opts)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Small records: what a record costs, not what a byte does.
func BenchmarkValidateSmall(b *testing.B) {
	for _, codec := range []Codec{None, LZ4} {
		b.Run(codec.String(), func(b *testing.B) {
			bld := NewBuilder(BuilderOptions{Codec: codec})
			for i := range int64(1000) {
				bld.Append(ts0+i, nil, bytes.Repeat([]byte{byte(i)}, 100), nil)
			}
			batch, opts := Batch(bld.Bytes()), topic()
			b.SetBytes(100 << 10)
			for b.Loop() {
				split, err := SplitProduce(batch)
				if err == nil {
					_, err = ValidateForAppend(split, opts)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkIterate(b *testing.B) {
	for _, codec := range allCodecs {
		b.Run(codec.String(), func(b *testing.B) {
			batch := hundred(codec)
			b.SetBytes(100 << 10)
			b.ReportAllocs()
			for b.Loop() {
				it := NewRecordIterator(batch, Limits{})
				for it.Next() {
				}
				it.Close()
			}
		})
	}
}

func BenchmarkBuild(b *testing.B) {
	value := bytes.Repeat([]byte("0123456789abcdef"), 64)
	for _, codec := range allCodecs {
		b.Run(codec.String(), func(b *testing.B) {
			b.SetBytes(100 << 10)
			b.ReportAllocs()
			for b.Loop() {
				bld := NewBuilder(BuilderOptions{Codec: codec, SizeHint: 110 << 10})
				for i := range int64(100) {
					bld.Append(ts0+i, nil, value, nil)
				}
				bld.Bytes()
			}
		})
	}
}
