package record

import (
	"errors"
	"fmt"
	"io"
	"math"
	"sync"

	"github.com/klauspost/compress/gzip"
)

// DefaultLevel is the compression level that means the codec's default. Other levels are those of
// compression.gzip.level (1-9, or -1, the default), compression.lz4.level (1-17) and
// compression.zstd.level (-131072-22); the libraries map them to the ones they have.
const DefaultLevel = 0

const (
	defaultLZ4Level  = 9
	defaultZstdLevel = 3
)

// compressor writes the compressed form of what is written to it; Close ends the stream.
type compressor interface {
	io.WriteCloser
	// release gives the compressor back, finished or not; it must not be used after it.
	release()
}

// newCompressor starts a stream into out, which must stay where it is. Writes fail with what out's fail with.
func newCompressor(c Codec, level int, out *outBuf) (compressor, error) {
	switch c {
	case Gzip:
		w := acquireGzipWriter(level)
		w.Reset(out)
		return w, nil
	case Snappy:
		w := snappyWriters.Get().(*snappyWriter)
		if err := w.reset(out); err != nil {
			w.release()
			return nil, err
		}
		return w, nil
	case LZ4:
		w := lz4Writers.Get().(*lz4Writer)
		if err := w.reset(out, level); err != nil {
			w.release()
			return nil, err
		}
		return w, nil
	case Zstd:
		w := acquireZstdWriter(level)
		w.Reset(out)
		return w, nil
	default:
		return nil, fmt.Errorf("record: no compressor for %v", c)
	}
}

var errOutputFull = errors.New("record: output is full")

// outBuf collects a batch's bytes up to a limit.
type outBuf struct {
	b   []byte
	max int // 0: none but what a batch can have
}

func (o *outBuf) Write(p []byte) (int, error) {
	limit := o.max
	if limit == 0 {
		limit = math.MaxInt32
	}
	if len(p) > limit-len(o.b) {
		return 0, errOutputFull
	}
	o.b = append(o.b, p...)
	return len(p), nil
}

// chunk adds p to pending, calling flush, which empties it, whenever pending has size bytes.
func chunk(p []byte, pending *[]byte, size int, flush func() error) (int, error) {
	written := 0
	for len(p) > 0 {
		if cap(*pending) < size {
			*pending = append(make([]byte, 0, size), *pending...)
		}
		n := min(len(p), size-len(*pending))
		*pending = append(*pending, p[:n]...)
		p = p[n:]
		written += n
		if len(*pending) == size {
			if err := flush(); err != nil {
				return written, err
			}
		}
	}
	return written, nil
}

type gzipWriter struct {
	*gzip.Writer
	level int
}

// gzipWriters has a pool for each level from -1 to 9.
var gzipWriters [11]sync.Pool

func acquireGzipWriter(level int) *gzipWriter {
	if level == DefaultLevel || level < gzip.BestSpeed || level > gzip.BestCompression {
		level = gzip.DefaultCompression
	}
	if w, ok := gzipWriters[level+1].Get().(*gzipWriter); ok {
		return w
	}
	w, err := gzip.NewWriterLevel(nil, level)
	if err != nil {
		panic(fmt.Sprintf("gzip writer of level %d: %v", level, err)) // the level is one it has
	}
	return &gzipWriter{Writer: w, level: level}
}

func (w *gzipWriter) release() {
	w.Reset(io.Discard)
	gzipWriters[w.level+1].Put(w)
}
