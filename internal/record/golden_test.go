package record

import (
	"encoding/hex"
	"errors"
	"hash/crc32"
	"strings"
	"testing"
)

const ts0 = int64(1700000000000)

// unhex reads hex with blanks in it.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.NewReplacer(" ", "", "\n", "", "\t", "", "|", "").Replace(s))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The worked examples of the batch format, field by field.
const (
	recordsA = `14 00 00 00 04 6b31 04 7631 00   14 00 0a 02 04 6b32 04 7632 00`

	exampleA = `0000000000000000 00000047 ffffffff 02 6702d0b7 0000 00000001 0000018bcfe56800 0000018bcfe56805
		ffffffffffffffff ffff ffffffff 00000002 ` + recordsA
	exampleB = `0000000000000066 00000042 00000007 02 6d218b70 0030 00000000 0000018bcfe56800 0000018bcfe56800
		0000000000000fa0 0005 ffffffff 00000001
		20 00 00 00 08 00000001 0c 000000000003 00`
	exampleC = `0000000000000000 00000041 ffffffff 02 60b13622 0000 00000000 0000018bcfe56800 0000018bcfe56800
		0000000000000fa0 0005 00000000 00000001
		1e 00 00 00 01 01 04 04 6831 02 78 04 6832 01`
	exampleD = `0000000000000000 0000005b ffffffff 02 f0041bb0 0001 00000001 0000018bcfe56800 0000018bcfe56805
		ffffffffffffffff ffff ffffffff 00000002
		1f8b0800000000000000 1361606060c936642933641061e06262c936622933620000 f95c213b 16000000`
	exampleE = `0000000000000000 00000056 ffffffff 02 28eb0646 0003 00000001 0000018bcfe56800 0000018bcfe56805
		ffffffffffffffff ffff ffffffff 00000002
		04224d18 60 40 82 | 16000080 | ` + recordsA + ` | 00000000`
	exampleS = `0000000000000000 0000005d ffffffff 02 a39e967a 0002 00000001 0000018bcfe56800 0000018bcfe56805
		ffffffffffffffff ffff ffffffff 00000002
		82534e4150505900 00000001 00000001 | 00000018 | 16 54 ` + recordsA
	exampleF = `0000000000000064 0000003d 00000007 02 245191c1 0040 00000001 0000018bd50bc400 0000018bcfe56800
		ffffffffffffffff ffff ffffffff 00000001   16 00 ffefb252 00 04 6b31 01 00`
	exampleG = `0000000000000064 00000031 00000007 02 896264e9 0000 00000001 ffffffffffffffff 0000018bcfe56805
		0000000000000fa0 0005 00000000 00000000`
)

func example(t testing.TB, s string) Batch { return Batch(unhex(t, s)) }

func wantBytes(t testing.TB, got, want []byte) {
	t.Helper()
	if string(got) != string(want) {
		t.Fatalf("got  %x\nwant %x", got, want)
	}
}

// mustRecords decodes a whole batch.
func mustRecords(t testing.TB, b Batch) []*Record {
	t.Helper()
	rs, err := collect(b, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

func collect(b Batch, l Limits) ([]*Record, error) {
	var rs []*Record
	for r, err := range b.Records(l) {
		if err != nil {
			return rs, err
		}
		rs = append(rs, r.Clone())
	}
	return rs, nil
}

// The checksum is CRC32C, by its published check value.
func TestCRC32C(t *testing.T) {
	t.Parallel()
	if got := crc32.Checksum([]byte("123456789"), castagnoli); got != 0xe3069283 {
		t.Fatalf("got %08x", got)
	}
}

// xxHash32 by its published check values, and by the header byte of the usual LZ4 frame.
func TestXXHash32(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]uint32{"": 0x02cc5d05, "a": 0x550d7456, "abc": 0x32d153ff,
		"Nobody inspects the spammish repetition": 0xe2293b2f} {
		if got := xxhash32([]byte(in)); got != want {
			t.Errorf("%q: got %08x, want %08x", in, got, want)
		}
	}
	if got := byte(xxhash32([]byte{0x64, 0x40}) >> 8); got != 0xa7 {
		t.Errorf("header byte of 64 40: %02x", got)
	}
}

// Example A is built byte for byte as a producer sends it, and read back field by field.
func TestExampleA(t *testing.T) {
	t.Parallel()
	bld := NewBuilder(BuilderOptions{})
	bld.Append(ts0, []byte("k1"), []byte("v1"), nil)
	bld.Append(ts0+5, []byte("k2"), []byte("v2"), nil)
	if bld.Size() != 83 {
		t.Errorf("size %d", bld.Size())
	}
	b := bld.Bytes()
	wantBytes(t, b, unhex(t, exampleA))
	if err := b.VerifyCRC(); err != nil {
		t.Fatal(err)
	}
	if b.Length() != 83 || b.Count() != 2 || b.LastOffsetDelta() != 1 || b.BaseTimestamp() != ts0 ||
		b.MaxTimestamp() != ts0+5 || b.PartitionLeaderEpoch() != -1 || b.HasProducerID() || b.LastSequence() != -1 ||
		b.Codec() != None || b.TimestampType() != CreateTime || b.IsControl() || b.IsTransactional() || b.CRC() != 0x6702d0b7 {
		t.Fatalf("header misread: %x", b)
	}
	rs := mustRecords(t, b)
	if len(rs) != 2 || string(rs[1].Key) != "k2" || string(rs[1].Value) != "v2" || b.TimestampOf(rs[1]) != ts0+5 || b.OffsetOf(rs[1]) != 1 {
		t.Fatalf("records %+v", rs)
	}
}

// Example A stored at offset 100 in epoch 7 changes the first 16 bytes only; on a LogAppendTime topic also
// attributes, largest timestamp and CRC.
func TestExampleAStored(t *testing.T) {
	t.Parallel()
	b := example(t, exampleA)
	b.SetBaseOffset(100)
	b.SetPartitionLeaderEpoch(7)
	want := example(t, exampleA)
	copy(want, unhex(t, "0000000000000064 00000047 00000007"))
	wantBytes(t, b, want)
	if err := b.VerifyCRC(); err != nil {
		t.Fatal(err)
	}
	if b.LastOffset() != 101 || b.NextOffset() != 102 {
		t.Fatal(b.LastOffset())
	}
	b.SetMaxTimestamp(LogAppendTime, ts0+1000)
	copy(want[17:], unhex(t, "c620d773 0008"))
	copy(want[35:], unhex(t, "0000018bcfe56be8"))
	wantBytes(t, b, want)
	for _, r := range mustRecords(t, b) {
		if b.TimestampOf(r) != ts0+1000 {
			t.Fatal("record does not read as appended")
		}
	}
}

// Example B: a COMMIT marker is built and read byte for byte.
func TestExampleB(t *testing.T) {
	t.Parallel()
	m := EndTxnMarker{Commit: true, ProducerID: 4000, ProducerEpoch: 5, CoordinatorEpoch: 3}
	b := NewEndTxnBatch(m, ts0)
	b.SetBaseOffset(102)
	b.SetPartitionLeaderEpoch(7)
	wantBytes(t, b, unhex(t, exampleB))
	got, ok, err := ParseEndTxnMarker(b)
	if got != m || !ok || err != nil {
		t.Fatal(got, ok, err)
	}
}

// Example C: null key, null value and headers of an idempotent producer, built and read.
func TestExampleC(t *testing.T) {
	t.Parallel()
	bld := NewBuilder(BuilderOptions{Producer: &Producer{ID: 4000, Epoch: 5, BaseSequence: 0}})
	bld.Append(ts0, nil, nil, []Header{{[]byte("h1"), []byte("x")}, {[]byte("h2"), nil}})
	wantBytes(t, bld.Bytes(), unhex(t, exampleC))
}

// Examples D, E and S hold A's records; lz4 and snappy are written byte for byte as Kafka does.
func TestExamplesDES(t *testing.T) {
	t.Parallel()
	plain := example(t, exampleA)
	for codec, s := range map[Codec]string{Gzip: exampleD, LZ4: exampleE, Snappy: exampleS} {
		want := example(t, s)
		if err := want.VerifyCRC(); err != nil {
			t.Fatal(codec, err)
		}
		if want.Codec() != codec {
			t.Fatal(want.Codec())
		}
		bld := NewBuilder(BuilderOptions{Codec: codec})
		for _, r := range mustRecords(t, want) {
			bld.Append(want.TimestampOf(r), r.Key, r.Value, r.Headers)
		}
		b := bld.Bytes()
		if codec != Gzip {
			wantBytes(t, b, want)
		}
		back, err := ValidateForAppend(b, ValidateOptions{Now: ts0, BeforeMaxMs: 1e15, AfterMaxMs: 1e15, MaxMessageBytes: -1, Convert: true})
		if err != nil {
			t.Fatal(codec, err)
		}
		wantBytes(t, back.Batch, plain)
	}
}

// Examples F and G: what the cleaner leaves, built and read.
func TestExamplesFG(t *testing.T) {
	t.Parallel()
	horizon := ts0 + 86400000
	bld := NewBuilder(BuilderOptions{BaseOffset: 100, DeleteHorizon: &horizon})
	bld.AppendAt(0, ts0, []byte("k1"), nil, nil)
	bld.SetLastOffsetDelta(1)
	f := bld.Bytes()
	f.SetPartitionLeaderEpoch(7)
	wantBytes(t, f, unhex(t, exampleF))
	if h, ok := f.DeleteHorizon(); h != horizon || !ok {
		t.Fatal(h, ok)
	}
	if rs := mustRecords(t, f); f.TimestampOf(rs[0]) != ts0 || rs[0].Value != nil {
		t.Fatal(rs)
	}

	bld = NewBuilder(BuilderOptions{Codec: Zstd, BaseOffset: 100, Producer: &Producer{ID: 4000, Epoch: 5}})
	bld.Append(ts0, []byte("k1"), []byte("v1"), nil)
	bld.Append(ts0+5, []byte("k2"), []byte("v2"), nil)
	data := bld.Bytes()
	data.SetPartitionLeaderEpoch(7)
	g := EmptyBatch(data)
	wantBytes(t, g, unhex(t, exampleG))
	if rs := mustRecords(t, g); len(rs) != 0 {
		t.Fatal(rs)
	}
	if _, ok := g.DeleteHorizon(); ok || g.LastSequence() != 1 {
		t.Fatal("empty batch misread")
	}
}

// Varints by the format's vectors, both ways, and the malformed ones.
func TestVarint(t *testing.T) {
	t.Parallel()
	for v, enc := range map[int32]string{0: "00", -1: "01", 1: "02", 63: "7e", -64: "7f", 64: "8001", -65: "8101",
		300: "d804", 1<<31 - 1: "feffffff0f", -1 << 31: "ffffffff0f"} {
		b := unhex(t, enc)
		wantBytes(t, appendVarint(nil, v), b)
		wantBytes(t, appendVarlong(nil, int64(v)), b)
		if got, n := varint(b); got != v || n != len(b) || sizeVarint(v) != n {
			t.Errorf("%s: %d, %d bytes", enc, got, n)
		}
		if got, n := varlong(b); got != int64(v) || n != len(b) {
			t.Errorf("%s as varlong: %d, %d bytes", enc, got, n)
		}
		if _, n := varint(b[:len(b)-1]); n != 0 {
			t.Errorf("%s cut short is read", enc)
		}
	}
	for v, enc := range map[int64]string{1<<63 - 1: "feffffffffffffffff01", -1 << 63: "ffffffffffffffffff01", -86400000: "ffefb252"} {
		b := unhex(t, enc)
		wantBytes(t, appendVarlong(nil, v), b)
		if got, n := varlong(b); got != v || n != len(b) {
			t.Errorf("%s: %d, %d bytes", enc, got, n)
		}
	}
	for _, enc := range []string{"", "80", "808080808000", "ffffffff1f"} {
		if v, n := varint(unhex(t, enc)); n != 0 {
			t.Errorf("%s read as %d", enc, v)
		}
	}
	for _, enc := range []string{"8080808080808080808000", "ffffffffffffffffff02"} {
		if v, n := varlong(unhex(t, enc)); n != 0 {
			t.Errorf("%s read as %d", enc, v)
		}
	}
}

// A batch is exactly as long as it says; one without records has no codec.
func TestLengthAndEmpty(t *testing.T) {
	t.Parallel()
	if err := edit(append(example(t, exampleA), 0), func(Batch) {}).VerifyCRC(); code(err) != 2 {
		t.Error(err)
	}
	for _, codec := range allCodecs {
		b := NewBuilder(BuilderOptions{Codec: codec, Level: 1}).Bytes()
		if len(b) != HeaderSize || b.Codec() != None || b.Count() != 0 || b.LastOffsetDelta() != 0 || b.VerifyCRC() != nil {
			t.Errorf("%v: %x", codec, []byte(b))
		}
	}
}

// Sequence numbers go from the largest int32 to 0, and back.
func TestSequenceWraps(t *testing.T) {
	t.Parallel()
	for _, v := range []struct{ seq, n, want int32 }{{2147483646, 3, 1}, {2147483647, 1, 0}, {0, 5, 5}, {2147483646, 1, 2147483647}} {
		if got := IncrementSequence(v.seq, v.n); got != v.want {
			t.Errorf("%d+%d = %d", v.seq, v.n, got)
		}
		if got := DecrementSequence(v.want, v.n); got != v.seq {
			t.Errorf("%d-%d = %d", v.want, v.n, got)
		}
	}
}

// Control record keys: short ones and negative versions are invalid, later versions and unknown types pass.
func TestControlKey(t *testing.T) {
	t.Parallel()
	for typ := Abort; typ <= KRaftVoters; typ++ {
		if got, err := ParseControlKey(ControlKey(typ)); got != typ || err != nil {
			t.Error(got, err)
		}
	}
	if got, err := ParseControlKey(unhex(t, "0005 0001 77")); got != Commit || err != nil {
		t.Error(got, err)
	}
	if got, err := ParseControlKey(unhex(t, "0000 0063")); got.Known() || err != nil || got.String() != "UNKNOWN(99)" {
		t.Error(got, err)
	}
	for _, bad := range []string{"", "000000", "ffff0001"} {
		var invalid *InvalidRecordError
		if _, err := ParseControlKey(unhex(t, bad)); !errors.As(err, &invalid) {
			t.Error(bad, err)
		}
	}
	b := NewControlBatch(ts0, ControlRecord{KRaftVersion, []byte("v")}, ControlRecord{KRaftVoters, []byte("w")})
	rs := mustRecords(t, b)
	if len(rs) != 2 || !b.IsControl() || b.HasProducerID() || b.Codec() != None {
		t.Error(rs)
	}
	if _, ok, err := ParseEndTxnMarker(b); ok || err != nil {
		t.Error(ok, err)
	}
	if _, ok, err := ParseEndTxnMarker(EmptyBatch(NewEndTxnBatch(EndTxnMarker{}, 1))); ok || err != nil {
		t.Error(ok, err)
	}
}

// Peek and Batches stop quietly at a cut and loudly at damage.
func TestPeekAndBatches(t *testing.T) {
	t.Parallel()
	a := example(t, exampleA)
	if n, err := Peek(a[:16]); n != 0 || err != ErrShort {
		t.Error(n, err)
	}
	if n, err := Peek(a[:17]); n != 83 || err != ErrShort {
		t.Error(n, err)
	}
	if n, err := Peek(append(a.Clone(), 1)); n != 83 || err != nil {
		t.Error(n, err)
	}
	count := func(buf []byte) (n int, err error) {
		for b, e := range Batches(buf) {
			if e != nil {
				return n, e
			}
			if len(b) != b.Length() {
				t.Error("batch is not whole")
			}
			n++
		}
		return n, nil
	}
	two := append(a.Clone(), a...)
	if n, err := count(two[:len(two)-1]); n != 1 || err != nil {
		t.Error(n, err)
	}
	if n, err := count(two); n != 2 || err != nil {
		t.Error(n, err)
	}
	var bad *CorruptError
	for at, v := range map[int]byte{83 + 11: 48, 83 + 8: 0x80, 83 + 16: 1} {
		b := append(a.Clone(), a...)
		b[at] = v
		if at == 83+8 {
			copy(b[at:], "\xff\xff\xff\xff")
		}
		if n, err := count(b); n != 1 || !errors.As(err, &bad) {
			t.Error(at, n, err)
		}
	}
}
