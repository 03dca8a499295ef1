package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// compressed is data as one of the codecs writes it.
func compressed(t testing.TB, c Codec, data []byte) []byte {
	t.Helper()
	if c == None {
		return data
	}
	return compressedAt(t, c, DefaultLevel, data)
}

func compressedAt(t testing.TB, c Codec, level int, data []byte) []byte {
	t.Helper()
	var out outBuf
	w, err := newCompressor(c, level, &out)
	if err != nil {
		t.Fatal(err)
	}
	defer w.release()
	for len(data) > 0 { // in pieces of odd sizes
		n := min(len(data), 1+len(data)/3)
		if _, err := w.Write(data[:n]); err != nil {
			t.Fatal(err)
		}
		data = data[n:]
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.b
}

func decompressed(c Codec, payload []byte) ([]byte, error) {
	d := acquireDecompressor(c)
	defer d.release()
	d.reset(payload, defaultMaxDecompressed)
	return io.ReadAll(d)
}

// corpus is data that compresses well, badly and not at all, of sizes around the codecs' blocks.
func corpus() [][]byte {
	rng := rand.New(rand.NewPCG(1, 2))
	var out [][]byte
	for _, n := range []int{1, 2, 15, 16, 17, 100, 32767, 32768, 32769, 65535, 65536, 65537, 300000} {
		random := make([]byte, n)
		for i := range random {
			random[i] = byte(rng.Uint32())
		}
		text := make([]byte, n)
		for i := range text {
			text[i] = "the quick brown fox "[(i*i/7+i)%20]
		}
		out = append(out, random, text, make([]byte, n))
	}
	return out
}

// Every codec at every level gives back what went in, and other people's decoders read it too.
func TestRoundTripEveryLevel(t *testing.T) {
	t.Parallel()
	levels := map[Codec][]int{Gzip: {DefaultLevel, -1, 1, 6, 9}, Snappy: {DefaultLevel}, LZ4: {DefaultLevel, 1, 9, 12, 17},
		Zstd: {DefaultLevel, -131072, -5, 1, 3, 9, 22}}
	zd, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	defer zd.Close()
	for codec, ls := range levels {
		for _, level := range ls {
			for _, data := range corpus() {
				if len(data) > 33000 && level != DefaultLevel {
					continue
				}
				c := compressedAt(t, codec, level, data)
				got, err := decompressed(codec, c)
				if err != nil || !bytes.Equal(got, data) {
					t.Fatalf("%v level %d, %d bytes: %v", codec, level, len(data), err)
				}
				var other []byte
				switch codec {
				case Gzip:
					zr, e := gzip.NewReader(bytes.NewReader(c))
					if e != nil {
						t.Fatal(e)
					}
					other, err = io.ReadAll(zr)
				case LZ4:
					other, err = io.ReadAll(lz4.NewReader(bytes.NewReader(c)))
				case Zstd:
					other, err = zd.DecodeAll(c, nil)
				default:
					continue
				}
				if err != nil || !bytes.Equal(other, data) {
					t.Fatalf("%v level %d, %d bytes, elsewhere: %v", codec, level, len(data), err)
				}
			}
		}
	}
}

// B-039: snappy in one bare block, in chunks of any size, and in several streams after one another.
func TestB039_snappy_framings(t *testing.T) {
	t.Parallel()
	for _, data := range corpus() {
		got, err := decompressed(Snappy, snappy.Encode(nil, data))
		if err != nil || !bytes.Equal(got, data) {
			t.Fatal(len(data), err)
		}
		framed := unhex(t, "82534e4150505900 00000001 00000001")
		for i := 0; i < len(data); i += 1000 {
			block := snappy.Encode(nil, data[i:min(i+1000, len(data))])
			framed = binary.BigEndian.AppendUint32(framed, uint32(len(block)))
			framed = append(framed, block...)
		}
		got, err = decompressed(Snappy, append(bytes.Clone(framed), framed...))
		if err != nil || !bytes.Equal(got, append(bytes.Clone(data), data...)) {
			t.Fatal(len(data), err)
		}
	}
	// S2's extension, the repeated offset, is not snappy: nobody else could read it.
	for _, bad := range []string{"", "05", "ffffffffff01", "0a 04 6161 0101 0100", "08 04 6161 1503", "0600 61 0500",
		"82534e4150505900 00000000 00000001 00000003 01 00 61", "82534e4150505900 00000001", "82534e4150505900 00000001 00000001 000000",
		"82534e4150505900 00000001 00000001 00000004 01 00 61", "82534e4150505900 00000001 00000001 ffffffff 01 00 61"} {
		if got, err := decompressed(Snappy, unhex(t, bad)); err == nil {
			t.Errorf("%s decoded to %x", bad, got)
		}
	}
}

// lz4Frame makes a frame of stored blocks with the given descriptor flags.
func lz4Frame(flags, block byte, blocks ...[]byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, lz4Magic)
	b = append(b, flags, block)
	size := 0
	for _, blk := range blocks {
		size += len(blk)
	}
	if flags&lz4FlagContentSize != 0 {
		b = binary.LittleEndian.AppendUint64(b, uint64(size))
	}
	b = append(b, byte(xxhash32(b[4:])>>8))
	var all []byte
	for _, blk := range blocks {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(blk))|lz4BlockStored)
		b = append(b, blk...)
		if flags&lz4FlagBlockChecksum != 0 {
			b = binary.LittleEndian.AppendUint32(b, xxhash32(blk))
		}
		all = append(all, blk...)
	}
	b = append(b, 0, 0, 0, 0)
	if flags&lz4FlagContentChecksum != 0 {
		b = binary.LittleEndian.AppendUint32(b, xxhash32(all))
	}
	return b
}

// S-016, B-133: lz4 with content size, block and content checksums is read; a wrong header or block checksum,
// linked blocks, reserved bits, another version, a dictionary and bytes after the frame are refused.
func TestS016_lz4_flavours(t *testing.T) {
	t.Parallel()
	a := unhex(t, recordsA)
	wantCode(t, "plain", withPayload(t, LZ4, 2, lz4Frame(0x60, 0x40, a)), topic(), 0)
	wantCode(t, "two blocks", withPayload(t, LZ4, 2, lz4Frame(0x60, 0x70, a[:5], a[5:])), topic(), 0)
	wantCode(t, "content size", withPayload(t, LZ4, 2, lz4Frame(0x68, 0x50, a)), topic(), 0)
	wantCode(t, "block checksum", withPayload(t, LZ4, 2, lz4Frame(0x70, 0x40, a[:5], a[5:])), topic(), 0)
	wantCode(t, "content checksum", withPayload(t, LZ4, 2, lz4Frame(0x64, 0x40, a)), topic(), 0)
	wantCode(t, "all", withPayload(t, LZ4, 2, lz4Frame(0x7c, 0x60, a)), topic(), 0)
	for name, frame := range map[string][]byte{
		"linked":          lz4Frame(0x40, 0x40, a),
		"reserved flag":   lz4Frame(0x62, 0x40, a),
		"dictionary":      lz4Frame(0x61, 0x40, a),
		"version 0":       lz4Frame(0x20, 0x40, a),
		"version 2":       lz4Frame(0xa0, 0x40, a),
		"block size 3":    lz4Frame(0x60, 0x30, a),
		"block reserved":  lz4Frame(0x60, 0x48, a),
		"block top bit":   lz4Frame(0x60, 0xc0, a),
		"bytes after":     append(lz4Frame(0x60, 0x40, a), 0),
		"second frame":    append(lz4Frame(0x60, 0x40, a[:11]), lz4Frame(0x60, 0x40, a[11:])...),
		"no end mark":     lz4Frame(0x60, 0x40, a)[:7+4+len(a)],
		"checksum cut":    lz4Frame(0x64, 0x40, a)[:7+4+len(a)+4+3],
		"block too large": lz4Frame(0x60, 0x40, append(bytes.Clone(a), make([]byte, 65536)...)),
		"empty":           {},
	} {
		wantCode(t, name, withPayload(t, LZ4, 2, frame), topic(), 87)
	}
	if _, err := decompressed(LZ4, lz4Frame(0x60, 0x40, make([]byte, 65537))); err == nil {
		t.Error("block above the descriptor's size is read")
	}
	wrongHC := lz4Frame(0x60, 0x40, a)
	wrongHC[6]++
	wantCode(t, "header checksum", withPayload(t, LZ4, 2, wrongHC), topic(), 87)
	wrongBlock := lz4Frame(0x70, 0x40, a)
	wrongBlock[7+4+len(a)]++
	wantCode(t, "block checksum", withPayload(t, LZ4, 2, wrongBlock), topic(), 87)
}

// B-133: frames of the lz4 library with its own choice of block size and checksums are read.
func TestB133_lz4_of_others(t *testing.T) {
	t.Parallel()
	for _, size := range []lz4.BlockSize{lz4.Block64Kb, lz4.Block256Kb, lz4.Block1Mb, lz4.Block4Mb} {
		for _, sums := range []bool{false, true} {
			for _, data := range corpus()[25:] { // the larger ones
				var buf bytes.Buffer
				w := lz4.NewWriter(&buf)
				if err := w.Apply(lz4.BlockSizeOption(size), lz4.BlockChecksumOption(sums), lz4.ChecksumOption(sums), lz4.ConcurrencyOption(1)); err != nil {
					t.Fatal(err)
				}
				if _, err := w.Write(data); err != nil {
					t.Fatal(err)
				}
				if err := w.Close(); err != nil {
					t.Fatal(err)
				}
				got, err := decompressed(LZ4, buf.Bytes())
				if err != nil || !bytes.Equal(got, data) {
					t.Fatal(size, sums, len(data), err)
				}
			}
		}
	}
}

// S-017: gzip of two members gives both their records; bytes after the last record, a damaged trailer and
// unknown codecs are refused.
func TestS017_gzip_members(t *testing.T) {
	t.Parallel()
	a := unhex(t, recordsA)
	two := append(compressed(t, Gzip, a[:13]), compressed(t, Gzip, a[13:])...)
	wantCode(t, "two members", withPayload(t, Gzip, 2, two), topic(), 0)
	for _, codec := range allCodecs {
		more := compressed(t, codec, append(bytes.Clone(a), 0))
		wantCode(t, codec.String()+" bytes left", withPayload(t, codec, 2, more), topic(), 87)
		if codec == None {
			continue
		}
		whole := compressed(t, codec, a)
		for n := range len(whole) {
			wantCode(t, codec.String()+" cut", withPayload(t, codec, 2, whole[:n]), topic(), 87)
		}
		wantCode(t, codec.String()+" trailing", withPayload(t, codec, 2, append(whole, 0x55)), topic(), 87)
		wantCode(t, codec.String()+" noise", withPayload(t, codec, 2, []byte("these are not compressed records")), topic(), 87)
	}
	for at := 1; at <= 8; at++ {
		sum := compressed(t, Gzip, a)
		sum[len(sum)-at] ^= 1
		wantCode(t, "trailer", withPayload(t, Gzip, 2, sum), topic(), 87)
	}
	for _, codec := range allCodecs[1:] {
		if _, err := decompressed(codec, nil); err == nil {
			t.Errorf("%v: an empty payload is a stream", codec)
		}
	}
	for codec := Codec(5); codec <= 7; codec++ {
		wantCode(t, "unknown codec", withPayload(t, codec, 2, a), topic(), 87)
	}
}

// Zstd in several frames, with skippable ones, with and without sizes and checksums; no dictionaries.
func TestZstdFrames(t *testing.T) {
	t.Parallel()
	a := unhex(t, recordsA)
	skip := unhex(t, "502a4d18 03000000 616263")
	frames := slicesConcat(skip, compressed(t, Zstd, a[:7]), skip, compressed(t, Zstd, a[7:]), skip)
	wantCode(t, "frames", withPayload(t, Zstd, 2, frames), topic(), 0)
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderCRC(true), zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	sum := enc.EncodeAll(a, nil)
	wantCode(t, "checksum", withPayload(t, Zstd, 2, sum), topic(), 0)
	sum[len(sum)-1] ^= 1
	wantCode(t, "wrong checksum", withPayload(t, Zstd, 2, sum), topic(), 87)
	raw := func(descriptor string) []byte {
		return slicesConcat(unhex(t, "28b52ffd"+descriptor), []byte{byte(len(a)<<3 | 1), 0, 0}, a)
	}
	wantCode(t, "window", withPayload(t, Zstd, 2, raw("00 00")), topic(), 0)
	wantCode(t, "window of 128 MiB", withPayload(t, Zstd, 2, raw("00 88")), topic(), 0)
	wantCode(t, "window of 144 MiB", withPayload(t, Zstd, 2, raw("00 89")), topic(), 87)
	wantCode(t, "size", withPayload(t, Zstd, 2, raw("20 16")), topic(), 0)
	wantCode(t, "wrong size", withPayload(t, Zstd, 2, raw("20 15")), topic(), 87)
	wantCode(t, "size out of reach", withPayload(t, Zstd, 2, raw("a0 00000008")), topic(), 87)
	wantCode(t, "dictionary 0", withPayload(t, Zstd, 2, raw("01 00 00")), topic(), 0)
	wantCode(t, "dictionary 1", withPayload(t, Zstd, 2, raw("01 00 01")), topic(), 87)
	wantCode(t, "reserved", withPayload(t, Zstd, 2, raw("08 00")), topic(), 87)
}

func slicesConcat(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// bomb is a record of n zeros in a payload of the codec, much smaller than it.
func bomb(t testing.TB, codec Codec, length int32, n int) Batch {
	t.Helper()
	var out outBuf
	w, err := newCompressor(codec, DefaultLevel, &out)
	if err != nil {
		t.Fatal(err)
	}
	defer w.release()
	w.Write(append(appendVarint(nil, length), 0, 0, 0, 1))
	w.Write(appendVarint(nil, length-10))
	zeros := make([]byte, 1<<20)
	for ; n > 0; n -= len(zeros) {
		w.Write(zeros[:min(n, len(zeros))])
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return withPayload(t, codec, 1, out.b)
}

// allocated is how many bytes f makes the process allocate.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// S-019: a small batch that declares or holds an enormous record is refused at once, at no cost in memory.
// (Not parallel: it measures allocation.)
func TestS019_bombs(t *testing.T) {
	opts := topic()
	opts.MaxMessageBytes = 4 << 20
	declared := withPayload(t, Gzip, 1, compressed(t, Gzip, append(unhex(t, "8080808018"), make([]byte, 1<<20)...)))
	start := time.Now()
	if n := allocated(func() { wantCode(t, "3 GiB declared", declared, opts, 87) }); n > 8<<20 {
		t.Errorf("3 GiB declared: %d bytes allocated", n)
	}
	if d := time.Since(start); d > time.Second {
		t.Errorf("3 GiB declared: took %v", d)
	}
	for _, codec := range []Codec{Gzip, LZ4, Snappy, Zstd} {
		declared := bomb(t, codec, 2000<<20, 1<<20)
		held := bomb(t, codec, 40<<20, 40<<20)
		small := opts
		small.MaxDecompressed = 10 << 20
		n := allocated(func() {
			wantCode(t, codec.String()+" 2000 MiB declared, 1 held", declared, opts, 87)
			wantCode(t, codec.String()+" 40 MiB held over the limit", held, small, 87)
		})
		if n > 24<<20 {
			t.Errorf("%v: %d bytes allocated", codec, n)
		}
		n = allocated(func() {
			_, err := collect(declared, Limits{MaxDecompressed: 4 << 20})
			_, err2 := collect(held, Limits{MaxDecompressed: 4 << 20})
			if code(err) != 87 || code(err2) != 87 {
				t.Errorf("%v: iterator: %v, %v", codec, err, err2)
			}
		})
		if n > 16<<20 {
			t.Errorf("%v: %d bytes allocated by iterators", codec, n)
		}
	}
	// A bare snappy block must prove its size before it is allocated.
	lie := append(binary.AppendUvarint(nil, 1<<31-1), 0, 0)
	if n := allocated(func() { wantCode(t, "snappy", withPayload(t, Snappy, 1, lie), opts, 87) }); n > 1<<20 {
		t.Errorf("snappy: %d bytes allocated", n)
	}
	block := snappy.Encode(nil, make([]byte, 40<<20))
	if n := allocated(func() {
		if _, err := collect(withPayload(t, Snappy, 1, block), Limits{MaxDecompressed: 1 << 20}); code(err) != 87 {
			t.Error(err)
		}
	}); n > 8<<20 {
		t.Errorf("bare snappy block over the limit: %d bytes allocated", n)
	}
	// So must a zstd window, and a content size.
	a := unhex(t, recordsA)
	for descriptor, want := range map[string]int{"00 88": 0, "a0 00000008": 87} {
		frame := slicesConcat(unhex(t, "28b52ffd"+descriptor), []byte{byte(len(a)<<3 | 1), 0, 0}, a)
		b := withPayload(t, Zstd, 2, frame)
		if n := allocated(func() { wantCode(t, "zstd "+descriptor, b, opts, want) }); n > 4<<20 {
			t.Errorf("zstd %s: %d bytes allocated", descriptor, n)
		}
	}
}

// The limit on decompressed bytes is exact, and is told apart from a damaged stream.
func TestMaxDecompressed(t *testing.T) {
	t.Parallel()
	for _, codec := range []Codec{Gzip, Snappy, LZ4, Zstd} {
		b := withPayload(t, codec, 2, compressed(t, codec, unhex(t, recordsA)))
		if _, err := collect(b, Limits{MaxDecompressed: 22}); err != nil {
			t.Error(codec, err)
		}
		_, err := collect(b, Limits{MaxDecompressed: 21})
		if code(err) != 87 || !errors.Is(err, errTooMuchData) {
			t.Error(codec, err)
		}
	}
}

// Codec names are those of compression.type.
func TestCodecNames(t *testing.T) {
	t.Parallel()
	for _, c := range allCodecs {
		if got, ok := ParseCodec(c.String()); got != c || !ok {
			t.Error(c, got)
		}
	}
	if c, ok := ParseCodec("none"); c != None || !ok {
		t.Error(c)
	}
	for _, bad := range []string{"producer", "", "LZ4", "codec(5)"} {
		if _, ok := ParseCodec(bad); ok {
			t.Error(bad)
		}
	}
	if Codec(5).Known() || Codec(5).String() != "codec(5)" {
		t.Error("codec 5")
	}
}

// A record with more headers than memory should be spent on is refused, by validation and by every walk.
// (Not parallel: it measures allocation.)
func TestTooManyHeaders(t *testing.T) {
	record := func(n int32) Batch {
		body := appendVarint([]byte{0, 0, 0, 1, 1}, n)
		body = append(body, make([]byte, 2*n)...)
		return withPayload(t, Gzip, 1, compressed(t, Gzip, append(appendVarint(nil, int32(len(body))), body...)))
	}
	wantCode(t, "at the limit", record(maxHeaders), topic(), 0)
	if rs := mustRecords(t, record(maxHeaders)); len(rs[0].Headers) != maxHeaders {
		t.Error(len(rs[0].Headers))
	}
	over := record(maxHeaders + 1)
	wantCode(t, "over", over, topic(), 87)
	if n := allocated(func() {
		if _, err := collect(over, Limits{}); code(err) != 87 {
			t.Error(err)
		}
	}); n > 16<<20 {
		t.Errorf("%d bytes allocated", n)
	}
}

// Stamps gives offsets and times without holding a record, in either timestamp type and after cleaning.
// (Not parallel: it measures allocation.)
func TestStamps(t *testing.T) {
	stamps := func(b Batch) (out []Stamp, err error) {
		for s, e := range b.Stamps(Limits{}) {
			if e != nil {
				return out, e
			}
			out = append(out, s)
		}
		return out, nil
	}
	a := example(t, exampleA)
	a.SetBaseOffset(100)
	if got, err := stamps(a); err != nil || !slices.Equal(got, []Stamp{{100, ts0}, {101, ts0 + 5}}) {
		t.Error(got, err)
	}
	a.SetMaxTimestamp(LogAppendTime, ts0+9)
	if got, err := stamps(a); err != nil || !slices.Equal(got, []Stamp{{100, ts0 + 9}, {101, ts0 + 9}}) {
		t.Error(got, err)
	}
	if got, err := stamps(example(t, exampleF)); err != nil || !slices.Equal(got, []Stamp{{100, ts0}}) {
		t.Error(got, err)
	}
	if got, err := stamps(example(t, exampleG)); err != nil || len(got) != 0 {
		t.Error(got, err)
	}
	if got, err := stamps(edit(example(t, exampleA), func(b Batch) { set32(b, atCount, 3) })); code(err) != 87 || len(got) != 2 {
		t.Error(got, err)
	}
	large := bomb(t, Zstd, 64<<20, 64<<20-5)
	if n := allocated(func() {
		if _, err := stamps(large); code(err) != 87 { // not quite a record: what matters is that all of it was passed over
			t.Error(err)
		}
	}); n > 16<<20 {
		t.Errorf("%d bytes allocated", n)
	}
}

// A frame that allows blocks of 4 MiB, as other people's clients write, takes no more memory to read than what is in it; what does
// become large is read all the same, and a corrupt block ends.
func TestLZ4LargeBlocksOfSmallBatches(t *testing.T) {
	frame := func(data []byte) []byte {
		var out bytes.Buffer
		w := lz4.NewWriter(&out)
		if err := w.Apply(lz4.BlockSizeOption(lz4.Block4Mb), lz4.ChecksumOption(false)); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	read := func(payload []byte) ([]byte, error) {
		r := lz4Readers.Get().(*lz4Reader)
		defer r.release()
		r.reset(payload, 0)
		return io.ReadAll(r)
	}
	small := frame(bytes.Repeat([]byte("some words and a number 12345; "), 500))
	if got, err := read(small); err != nil || len(got) != 31*500 {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const times = 50
	for range times {
		r := lz4Readers.Get().(*lz4Reader)
		r.reset(small, 0)
		if _, err := io.Copy(io.Discard, r); err != nil {
			t.Fatal(err)
		}
		r.release()
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / times; each > 256<<10 {
		t.Errorf("%d bytes were allocated to read 15 KB", each)
	}
	for _, size := range []int{100, 60 << 10, 70 << 10, 1 << 20, 4<<20 - 1, 4 << 20, 4<<20 + 1, 9 << 20} {
		want := make([]byte, size) // all alike: 255 times less
		if got, err := read(frame(want)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes: %d, %v", size, len(got), err)
		}
	}
	broken := append(binary.LittleEndian.AppendUint32(small[:7:7], 5000), bytes.Repeat([]byte{0xff}, 5000)...)
	if got, err := read(broken); err == nil {
		t.Errorf("a corrupt block gave %d bytes", len(got))
	}
}
