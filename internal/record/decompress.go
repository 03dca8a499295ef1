package record

import (
	"bytes"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
)

// decompressor turns a payload back into record bytes. Read ends with io.EOF only if the stream was whole
// and nothing followed it. How much comes out is for the reader to bound; a decompressor itself holds no
// more than a window or a block of the output, and allocates none that the payload's size does not justify.
type decompressor interface {
	io.Reader
	// reset starts over on payload. max is the most the reader is going to take: output that must be
	// allocated in one piece is refused above it. Faults of the stream's head are answered by Read.
	reset(payload []byte, max int64)
	// release gives the decompressor back; it must not be used after it.
	release()
}

func acquireDecompressor(c Codec) decompressor {
	switch c {
	case Gzip:
		return gzipReaders.Get().(*gzipReader)
	case Snappy:
		return snappyReaders.Get().(*snappyReader)
	case LZ4:
		return lz4Readers.Get().(*lz4Reader)
	default:
		return zstdReaders.Get().(*zstdReader)
	}
}

// gzipReader accepts any number of members; checksums and sizes are verified by the library.
type gzipReader struct {
	in  bytes.Reader
	gz  gzip.Reader
	err error
}

var gzipReaders = sync.Pool{New: func() any { return new(gzipReader) }}

func (g *gzipReader) reset(payload []byte, _ int64) {
	g.in.Reset(payload)
	g.err = g.gz.Reset(&g.in)
	if g.err == io.EOF {
		g.err = io.ErrUnexpectedEOF // an empty payload is no stream
	}
}

func (g *gzipReader) Read(p []byte) (int, error) {
	if g.err != nil {
		return 0, g.err
	}
	return g.gz.Read(p)
}

func (g *gzipReader) release() {
	g.in.Reset(nil)
	gzipReaders.Put(g)
}

// blockReader serves the blocks that next decodes as a stream; embedded by the codecs that decode a block
// at a time.
type blockReader struct {
	out []byte // decoded and not yet read
	err error
}

func (r *blockReader) read(p []byte, next func() ([]byte, error)) (int, error) {
	for len(r.out) == 0 {
		if r.err != nil {
			return 0, r.err
		}
		r.out, r.err = next()
	}
	n := copy(p, r.out)
	r.out = r.out[n:]
	return n, nil
}

// grow is buf with length n, allocated anew only if it is too small.
func grow(buf []byte, n int) []byte {
	if cap(buf) < n {
		return make([]byte, n)
	}
	return buf[:n]
}

// maxPooledBlock is the largest block buffer that is kept in a pool.
const maxPooledBlock = 1 << 20
