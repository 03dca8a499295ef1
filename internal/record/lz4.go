package record

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/pierrec/lz4/v4"
)

// The LZ4 frame is read and written here and only blocks are left to the library: Kafka's own reader
// refuses linked blocks, other versions and reserved bits, and reads one frame, so that nothing else may be
// stored; and what is written has to be the frame it writes.

const (
	lz4Magic       = 0x184d2204
	lz4BlockStored = 1 << 31

	lz4FlagIndependent     = 0x20
	lz4FlagBlockChecksum   = 0x10
	lz4FlagContentSize     = 0x08
	lz4FlagContentChecksum = 0x04
	lz4FlagsRefused        = 0x03 // reserved, dictionary id
	lz4VersionMask         = 0xc0
	lz4Version1            = 0x40

	lz4WrittenFlags     = lz4Version1 | lz4FlagIndependent
	lz4WrittenBlock     = 0x40 // 64 KiB, as the descriptor has it
	lz4WrittenBlockSize = 64 << 10

	// lz4MaxRatio is above what a byte of a block can become.
	lz4MaxRatio = 255
	// lz4UsualRatio is above what most do.
	lz4UsualRatio = 4
)

var errLZ4Corrupt = errors.New("lz4: corrupt block")

type lz4Reader struct {
	blockReader
	in    []byte
	flags byte
	block int // largest block
	buf   []byte
}

var lz4Readers = sync.Pool{New: func() any { return new(lz4Reader) }}

func (r *lz4Reader) reset(payload []byte, _ int64) {
	r.in = payload
	r.err = r.header()
}

func (r *lz4Reader) header() error {
	if len(r.in) < 7 {
		return io.ErrUnexpectedEOF
	}
	if m := binary.LittleEndian.Uint32(r.in); m != lz4Magic {
		return fmt.Errorf("lz4: magic %08x", m)
	}
	flags, block := r.in[4], r.in[5]
	descriptor := r.in[4:6]
	if flags&lz4FlagContentSize != 0 {
		if len(r.in) < 15 {
			return io.ErrUnexpectedEOF
		}
		descriptor = r.in[4:14]
	}
	if flags&lz4VersionMask != lz4Version1 {
		return fmt.Errorf("lz4: version %d", flags>>6)
	}
	if flags&lz4FlagIndependent == 0 {
		return errors.New("lz4: linked blocks")
	}
	if flags&lz4FlagsRefused != 0 || block&0x8f != 0 || block < 0x40 {
		return fmt.Errorf("lz4: flags %02x %02x", flags, block)
	}
	hc := r.in[4+len(descriptor)]
	if want := byte(xxhash32(descriptor) >> 8); hc != want {
		return fmt.Errorf("lz4: header checksum %02x, want %02x", hc, want)
	}
	r.flags = flags
	r.block = 1 << (8 + 2*(block>>4))
	r.in = r.in[5+len(descriptor):]
	return nil
}

func (r *lz4Reader) Read(p []byte) (int, error) { return r.read(p, r.next) }

func (r *lz4Reader) next() ([]byte, error) {
	word, err := r.uint32()
	if err != nil {
		return nil, err
	}
	if word == 0 {
		return nil, r.trailer()
	}
	size := int(word &^ lz4BlockStored)
	if size > r.block || size > len(r.in) {
		return nil, fmt.Errorf("lz4: block of %d bytes, %d allowed, %d left", size, r.block, len(r.in))
	}
	block := r.in[:size]
	r.in = r.in[size:]
	if r.flags&lz4FlagBlockChecksum != 0 {
		sum, err := r.uint32()
		if err != nil {
			return nil, err
		}
		if got := xxhash32(block); got != sum {
			return nil, fmt.Errorf("lz4: block checksum %08x, frame says %08x", got, sum)
		}
	}
	if word&lz4BlockStored != 0 {
		return block, nil
	}
	// A block does not say what it becomes. Other people's frames allow 4 MiB for a batch of a few KiB: room for all that would
	// cost more than the block.
	most := min(r.block, size*lz4MaxRatio+64)
	for room := max(size*lz4UsualRatio, lz4WrittenBlockSize); ; room *= 4 {
		r.buf = grow(r.buf, min(room, most))
		n, err := lz4.UncompressBlock(block, r.buf)
		if err == nil && n >= 0 && n <= len(r.buf) {
			return r.buf[:n], nil
		}
		if len(r.buf) >= most {
			return nil, errLZ4Corrupt
		}
	}
}

// trailer reads what follows the end mark: the content's checksum, which Kafka does not verify either, and
// then nothing.
func (r *lz4Reader) trailer() error {
	if r.flags&lz4FlagContentChecksum != 0 {
		if _, err := r.uint32(); err != nil {
			return err
		}
	}
	if len(r.in) > 0 {
		return fmt.Errorf("lz4: %d bytes follow the frame", len(r.in))
	}
	return io.EOF
}

func (r *lz4Reader) uint32() (uint32, error) {
	if len(r.in) < 4 {
		return 0, io.ErrUnexpectedEOF
	}
	v := binary.LittleEndian.Uint32(r.in)
	r.in = r.in[4:]
	return v, nil
}

func (r *lz4Reader) release() {
	if cap(r.buf) > maxPooledBlock {
		r.buf = nil
	}
	*r = lz4Reader{buf: r.buf}
	lz4Readers.Put(r)
}

type lz4Writer struct {
	out   *outBuf
	in    []byte // pending input, less than a block
	block []byte
	fast  lz4.Compressor
	high  *lz4.CompressorHC // nil until a level asks for it: its tables are large
	slow  bool
}

var lz4Writers = sync.Pool{New: func() any { return new(lz4Writer) }}

func (w *lz4Writer) reset(out *outBuf, level int) error {
	w.out, w.in = out, w.in[:0]
	// Kafka's level 9, its default, is the fast compressor; every other is the high one.
	w.slow = level != DefaultLevel && level != defaultLZ4Level
	if w.slow {
		if w.high == nil {
			w.high = new(lz4.CompressorHC)
		}
		w.high.Level = lz4.CompressionLevel(1 << (8 + min(max(level, 1), 9)))
	}
	header := [7]byte{4: lz4WrittenFlags, 5: lz4WrittenBlock}
	binary.LittleEndian.PutUint32(header[:], lz4Magic)
	header[6] = byte(xxhash32(header[4:6]) >> 8)
	_, err := out.Write(header[:])
	return err
}

func (w *lz4Writer) Write(p []byte) (int, error) {
	return chunk(p, &w.in, lz4WrittenBlockSize, w.flush)
}

func (w *lz4Writer) flush() error {
	w.block = grow(w.block, lz4.CompressBlockBound(len(w.in)))
	var n int
	var err error
	if w.slow {
		n, err = w.high.CompressBlock(w.in, w.block)
	} else {
		n, err = w.fast.CompressBlock(w.in, w.block)
	}
	block, word := w.block[:n], uint32(n)
	if err != nil || n == 0 || n >= len(w.in) {
		block, word = w.in, uint32(len(w.in))|lz4BlockStored
	}
	w.in = w.in[:0]
	if err := w.word(word); err != nil {
		return err
	}
	_, err = w.out.Write(block)
	return err
}

func (w *lz4Writer) word(v uint32) error {
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], v)
	_, err := w.out.Write(b[:])
	return err
}

func (w *lz4Writer) Close() error {
	if len(w.in) > 0 {
		if err := w.flush(); err != nil {
			return err
		}
	}
	return w.word(0)
}

func (w *lz4Writer) release() {
	w.out = nil
	lz4Writers.Put(w)
}
