package record

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/snappy"
)

// Two forms of snappy are on the wire: the stream of snappy-java (a header, then chunks of a length and one
// block each), which is what is written, and one bare block, which many clients send. The header's first
// eight bytes tell them apart.

const (
	snappyMagic      = "\x82SNAPPY\x00"
	snappyHeaderSize = 16
	snappyVersion    = 1
	snappyChunk      = 32 << 10 // input bytes of a written chunk
)

var errSnappy = errors.New("snappy: corrupt block")

type snappyReader struct {
	blockReader
	in     []byte
	framed bool
	done   bool // the bare block has been decoded
	max    int64
	buf    []byte
	turn   largeTurn
}

var snappyReaders = sync.Pool{New: func() any { return new(snappyReader) }}

func (r *snappyReader) reset(payload []byte, max int64) {
	r.in, r.max, r.done = payload, max, false
	r.framed = len(payload) >= len(snappyMagic) && string(payload[:len(snappyMagic)]) == snappyMagic
	if r.framed {
		r.err = r.header()
	}
}

// header passes over the stream header that r.in starts with.
func (r *snappyReader) header() error {
	if len(r.in) < snappyHeaderSize || string(r.in[:len(snappyMagic)]) != snappyMagic {
		return errors.New("snappy: corrupt stream header")
	}
	if v := int32(binary.BigEndian.Uint32(r.in[8:])); v < snappyVersion {
		return fmt.Errorf("snappy: stream version %d", v)
	}
	r.in = r.in[snappyHeaderSize:]
	return nil
}

func (r *snappyReader) Read(p []byte) (int, error) { return r.read(p, r.next) }

func (r *snappyReader) next() ([]byte, error) {
	if !r.framed {
		if r.done {
			return nil, io.EOF
		}
		r.done = true
		return r.decode(r.in)
	}
	if len(r.in) == 0 {
		return nil, io.EOF
	}
	if len(r.in) < 4 {
		return nil, io.ErrUnexpectedEOF
	}
	if string(r.in[:4]) == snappyMagic[:4] { // streams may follow one another
		return nil, r.header()
	}
	size := int32(binary.BigEndian.Uint32(r.in))
	if size < 0 || int(size) > len(r.in)-4 {
		return nil, fmt.Errorf("snappy: chunk of %d bytes, %d left", size, len(r.in)-4)
	}
	block := r.in[4 : 4+size]
	r.in = r.in[4+size:]
	return r.decode(block)
}

func (r *snappyReader) decode(block []byte) ([]byte, error) {
	size, err := checkSnappy(block)
	if err != nil {
		return nil, err
	}
	if int64(size) > r.max {
		return nil, errTooMuchData
	}
	r.turn.take(uint64(size))
	r.buf = grow(r.buf, size)
	return snappy.Decode(r.buf, block)
}

func (r *snappyReader) release() {
	if cap(r.buf) > maxPooledBlock {
		r.buf = nil
	}
	r.turn.release()
	*r = snappyReader{buf: r.buf}
	snappyReaders.Put(r)
}

// checkSnappy walks the elements of a block without decoding them and answers the size of the output, which
// is therefore known to be true before it is allocated. It also refuses what the library's decoder lets
// pass and other decoders do not (offset 0, which there repeats the last one).
func checkSnappy(b []byte) (int, error) {
	size, n := binary.Uvarint(b)
	if n <= 0 || size > 1<<32-1 {
		return 0, errSnappy
	}
	b = b[n:]
	produced := uint64(0)
	for len(b) > 0 {
		tag := b[0]
		b = b[1:]
		length := uint64(tag>>2) + 1
		var offset uint64
		extra := 0 // bytes of the element after the tag, a literal's content aside
		switch tag & 3 {
		case 0:
			if length > 60 {
				extra = int(length) - 60
			}
		case 1:
			extra = 1
		case 2:
			extra = 2
		case 3:
			extra = 4
		}
		if len(b) < extra {
			return 0, errSnappy
		}
		var operand uint64
		for i := range extra {
			operand |= uint64(b[i]) << (8 * i)
		}
		b = b[extra:]
		switch tag & 3 {
		case 0:
			if extra > 0 {
				length = operand + 1
			}
			if length > uint64(len(b)) {
				return 0, errSnappy
			}
			b = b[length:]
		case 1:
			length = uint64(tag>>2&7) + 4
			offset = uint64(tag>>5)<<8 | operand
		default:
			offset = operand
		}
		if tag&3 != 0 && (offset == 0 || offset > produced) {
			return 0, errSnappy
		}
		produced += length
		if produced > size {
			return 0, errSnappy
		}
	}
	if produced != size {
		return 0, errSnappy
	}
	return int(size), nil
}

type snappyWriter struct {
	out   *outBuf
	in    []byte // pending input, less than a chunk
	block []byte
}

var snappyWriters = sync.Pool{New: func() any { return new(snappyWriter) }}

func (w *snappyWriter) reset(out *outBuf) error {
	w.out, w.in = out, w.in[:0]
	header := [snappyHeaderSize]byte{11: snappyVersion, 15: snappyVersion}
	copy(header[:], snappyMagic)
	_, err := out.Write(header[:])
	return err
}

func (w *snappyWriter) Write(p []byte) (int, error) {
	return chunk(p, &w.in, snappyChunk, w.flush)
}

func (w *snappyWriter) flush() error {
	w.block = snappy.Encode(w.block[:cap(w.block)], w.in)
	w.in = w.in[:0]
	var size [4]byte
	binary.BigEndian.PutUint32(size[:], uint32(len(w.block)))
	if _, err := w.out.Write(size[:]); err != nil {
		return err
	}
	_, err := w.out.Write(w.block)
	return err
}

func (w *snappyWriter) Close() error {
	if len(w.in) == 0 {
		return nil
	}
	return w.flush()
}

func (w *snappyWriter) release() {
	w.out = nil
	snappyWriters.Put(w)
}
