package record

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"sync"

	"github.com/klauspost/compress/zstd"
)

const (
	zstdMagic         = 0xfd2fb528
	zstdSkippable     = 0x184d2a50 // and the 15 after it
	zstdSkippableMask = 0xfffffff0
	zstdMaxBlock      = 128 << 10

	// zstdMaxWindow is the largest window read, as in other people's decoders by default; it is what level
	// 22 asks for.
	zstdMaxWindow = 128 << 20
	// zstdMaxPooledWindow is the largest window after which a decoder is kept. Levels up to 19 stay below it.
	zstdMaxPooledWindow = 8 << 20
	// zstdWrittenWindow is the window of Kafka's default level: a reader needs no more memory than with Kafka.
	zstdWrittenWindow = 2 << 20
)

var (
	errZstd           = errors.New("zstd: corrupt frame")
	errZstdDictionary = errors.New("zstd: dictionaries are not supported")
)

// zstdFrame is what the blocks of a frame say without decoding them.
type zstdFrame struct {
	size     int    // bytes of the frame
	windowAt int    // where the window descriptor is, 0 if there is none
	window   uint64 // what the frame asks a reader to keep
	bound    uint64 // it decompresses to no more than that
}

// scanZstd measures the frame that b starts with. The library allocates a frame's window before it decodes
// anything, so that a few bytes could ask for 128 MiB; the bound says what the frame can make use of.
func scanZstd(b []byte) (f zstdFrame, err error) {
	if len(b) < 5 {
		return f, io.ErrUnexpectedEOF
	}
	descriptor := b[4]
	if descriptor&0x08 != 0 {
		return f, errZstd
	}
	single := descriptor&0x20 != 0
	at := 5
	if !single {
		if len(b) < at+1 {
			return f, io.ErrUnexpectedEOF
		}
		base := uint64(1) << (10 + b[at]>>3)
		f.window = base + base/8*uint64(b[at]&7)
		f.windowAt = at
		at++
	}
	dictSize := [4]int{0, 1, 2, 4}[descriptor&3]
	sizeSize := [4]int{0, 2, 4, 8}[descriptor>>6]
	if single && sizeSize == 0 {
		sizeSize = 1
	}
	if len(b) < at+dictSize+sizeSize {
		return f, io.ErrUnexpectedEOF
	}
	if littleEndian(b[at:at+dictSize]) != 0 {
		return f, errZstdDictionary
	}
	at += dictSize
	contentSize := littleEndian(b[at : at+sizeSize])
	if sizeSize == 2 {
		contentSize += 256
	}
	at += sizeSize
	for last := false; !last; {
		if len(b) < at+3 {
			return f, io.ErrUnexpectedEOF
		}
		head := littleEndian(b[at : at+3])
		at += 3
		last = head&1 != 0
		size := head >> 3
		stored := size
		if size > zstdMaxBlock {
			return f, errZstd
		}
		switch head >> 1 & 3 {
		case 1:
			stored = 1
		case 2:
			size = zstdMaxBlock
		case 3:
			return f, errZstd
		}
		if uint64(len(b)-at) < stored {
			return f, io.ErrUnexpectedEOF
		}
		at += int(stored)
		f.bound += size
	}
	if descriptor&0x04 != 0 {
		if len(b) < at+4 {
			return f, io.ErrUnexpectedEOF
		}
		at += 4
	}
	if sizeSize > 0 && contentSize > f.bound {
		return f, errZstd
	}
	if single {
		f.window = contentSize
	}
	if f.window > zstdMaxWindow {
		return f, fmt.Errorf("zstd: window of %d bytes, at most %d are supported", f.window, zstdMaxWindow)
	}
	f.size = at
	return f, nil
}

func littleEndian(b []byte) (v uint64) {
	for i, c := range b {
		v |= uint64(c) << (8 * i)
	}
	return v
}

// zstdReader decodes frame by frame.
type zstdReader struct {
	dec   *zstd.Decoder
	in    []byte // frames not yet begun
	frame patchedReader
	open  bool // dec is inside a frame
	large bool // dec has held a window too large to keep
	turn  largeTurn
	err   error
}

var zstdReaders = sync.Pool{New: func() any {
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(zstdMaxWindow))
	if err != nil {
		panic(fmt.Sprintf("zstd decoder: %v", err)) // its options are constants
	}
	return &zstdReader{dec: dec}
}}

func (r *zstdReader) reset(payload []byte, _ int64) {
	r.in, r.open, r.err = payload, false, nil
	if len(payload) == 0 {
		r.err = io.ErrUnexpectedEOF
	}
}

func (r *zstdReader) Read(p []byte) (int, error) {
	for {
		if r.err != nil {
			return 0, r.err
		}
		if !r.open {
			r.err = r.next()
			continue
		}
		n, err := r.dec.Read(p)
		if err == io.EOF {
			r.open = false
		} else if err != nil {
			r.err = err
		}
		if n > 0 {
			return n, nil
		}
	}
}

// next begins the next frame.
func (r *zstdReader) next() error {
	if len(r.in) == 0 {
		return io.EOF
	}
	if len(r.in) < 8 {
		return io.ErrUnexpectedEOF
	}
	magic := binary.LittleEndian.Uint32(r.in)
	if magic&zstdSkippableMask == zstdSkippable {
		size := uint64(binary.LittleEndian.Uint32(r.in[4:]))
		if uint64(len(r.in)-8) < size {
			return io.ErrUnexpectedEOF
		}
		r.in = r.in[8+size:]
		return nil
	}
	if magic != zstdMagic {
		return fmt.Errorf("zstd: magic %08x", magic)
	}
	f, err := scanZstd(r.in)
	if err != nil {
		return err
	}
	r.frame = patchedReader{b: r.in[:f.size], patchAt: -1}
	if f.windowAt > 0 && f.bound < f.window {
		// The smallest window that holds all there can be reads the same and costs less.
		exponent := max(bits.Len64(max(f.bound, 1)-1), 10)
		f.window = min(f.window, 1<<exponent)
		if f.window == 1<<exponent {
			r.frame.patchAt, r.frame.patch = f.windowAt, byte(exponent-10)<<3
		}
	}
	r.large = r.large || f.window > zstdMaxPooledWindow
	r.turn.take(f.window)
	r.in = r.in[f.size:]
	r.open = true
	return r.dec.Reset(&r.frame)
}

func (r *zstdReader) release() {
	r.in, r.frame = nil, patchedReader{}
	if r.large || r.dec.Reset(nil) != nil {
		r.dec.Close()
		r.turn.release()
		return
	}
	r.turn.release()
	zstdReaders.Put(r)
}

// patchedReader reads bytes that belong to someone else with one of them replaced.
type patchedReader struct {
	b       []byte
	at      int
	patchAt int // -1: none
	patch   byte
}

func (r *patchedReader) Read(p []byte) (int, error) {
	if r.at == len(r.b) {
		return 0, io.EOF
	}
	n := copy(p, r.b[r.at:])
	if i := r.patchAt - r.at; i >= 0 && i < n {
		p[i] = r.patch
	}
	r.at += n
	return n, nil
}

type zstdWriter struct {
	*zstd.Encoder
	level zstd.EncoderLevel
}

// zstdWriters has a pool for each of the library's levels.
var zstdWriters [zstd.SpeedBestCompression + 1]sync.Pool

func acquireZstdWriter(level int) *zstdWriter {
	if level == DefaultLevel {
		level = defaultZstdLevel
	}
	l := zstd.EncoderLevelFromZstd(level)
	if w, ok := zstdWriters[l].Get().(*zstdWriter); ok {
		return w
	}
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(l), zstd.WithEncoderConcurrency(1),
		zstd.WithEncoderCRC(false), zstd.WithLowerEncoderMem(true), zstd.WithZeroFrames(true),
		zstd.WithWindowSize(zstdWrittenWindow))
	if err != nil {
		panic(fmt.Sprintf("zstd encoder of level %d: %v", level, err)) // its options are constants
	}
	return &zstdWriter{Encoder: enc, level: l}
}

func (w *zstdWriter) release() {
	w.Reset(nil)
	zstdWriters[w.level].Put(w)
}
