package log

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
)

// errTorn says that the bytes at a position are not a whole batch.
var errTorn = errors.New("not a whole batch")

const headerBufSize = 4096

var headerBufs = sync.Pool{New: func() any { b := make([]byte, headerBufSize); return &b }}

// headerReader reads batch headers from a file with few system calls. It belongs to one goroutine; close gives its
// buffer back.
type headerReader struct {
	file vfs.File
	end  int64
	buf  *[]byte
	at   int64 // position of the buffer's first byte
	n    int   // bytes in the buffer
}

func newHeaderReader(f vfs.File, end int64) *headerReader {
	return &headerReader{file: f, end: end, buf: headerBufs.Get().(*[]byte)}
}

func (r *headerReader) close() { headerBufs.Put(r.buf) }

// header is the header of the batch at pos: a record.Batch of which only the header may be read, valid until the
// next call. io.EOF at the end, errTorn when what lies there is no whole batch, else the file's own error.
func (r *headerReader) header(pos int64) (record.Batch, error) {
	if pos >= r.end {
		return nil, io.EOF
	}
	if r.end-pos < record.HeaderSize {
		return nil, errTorn
	}
	if pos < r.at || pos+record.HeaderSize > r.at+int64(r.n) {
		want := min(int64(len(*r.buf)), r.end-pos)
		n, err := r.file.ReadAt((*r.buf)[:want], pos)
		if err != nil && err != io.EOF {
			return nil, err
		}
		if n < record.HeaderSize {
			return nil, errTorn
		}
		r.at, r.n = pos, n
	}
	b := record.Batch((*r.buf)[pos-r.at:][:record.HeaderSize])
	if b.Magic() != record.Magic || b.Length() < record.HeaderSize || pos+int64(b.Length()) > r.end || b.LastOffsetDelta() < 0 {
		return nil, errTorn
	}
	return b, nil
}

// readBatch reads a whole batch of size bytes into buf, which grows if needed.
func readBatch(f vfs.File, pos int64, size int, buf []byte) (record.Batch, error) {
	if cap(buf) < size {
		buf = make([]byte, size)
	}
	buf = buf[:size]
	if n, err := f.ReadAt(buf, pos); n < size {
		if err == nil || err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return record.Batch(buf), nil
}

const scanBufSize = 256 << 10

// batchScanner reads whole batches in sequence, checking size, magic and CRC.
type batchScanner struct {
	file vfs.File
	end  int64
	pos  int64 // of the next batch
	buf  []byte
	r, w int
}

// next is the next batch, valid until the call after. io.EOF at the end; errTorn (wrapped, with the reason) when
// what follows is no sound batch; else the file's own error.
func (s *batchScanner) next() (record.Batch, error) {
	if s.pos >= s.end {
		return nil, io.EOF
	}
	if err := s.fill(record.HeaderSize); err != nil {
		return nil, err
	}
	length := int64(int32(binary.BigEndian.Uint32(s.buf[s.r+8:]))) + record.LogOverhead
	if length < record.HeaderSize || length > s.end-s.pos {
		return nil, fmt.Errorf("%w: %d bytes announced, %d left", errTorn, length, s.end-s.pos)
	}
	if s.buf[s.r+16] != record.Magic {
		return nil, fmt.Errorf("%w: magic %d", errTorn, s.buf[s.r+16])
	}
	if err := s.fill(int(length)); err != nil {
		return nil, err
	}
	b := record.Batch(s.buf[s.r : s.r+int(length) : s.r+int(length)])
	if err := b.VerifyCRC(); err != nil {
		return nil, fmt.Errorf("%w: %w", errTorn, err)
	}
	s.r += int(length)
	s.pos += length
	return b, nil
}

// fill gets n bytes from pos on into the buffer.
func (s *batchScanner) fill(n int) error {
	if s.w-s.r >= n {
		return nil
	}
	if s.end-s.pos < int64(n) {
		return fmt.Errorf("%w: %d bytes left", errTorn, s.end-s.pos)
	}
	if len(s.buf) < n || s.buf == nil {
		buf := make([]byte, max(n, int(min(scanBufSize, s.end-s.pos))))
		s.w = copy(buf, s.buf[s.r:s.w])
		s.buf, s.r = buf, 0
	} else {
		s.w = copy(s.buf, s.buf[s.r:s.w])
		s.r = 0
	}
	want := min(int64(len(s.buf)-s.w), s.end-s.pos-int64(s.w))
	m, err := s.file.ReadAt(s.buf[s.w:s.w+int(want)], s.pos+int64(s.w))
	s.w += m
	if err != nil && err != io.EOF {
		return err
	}
	if s.w < n {
		return fmt.Errorf("%w: file ends early", errTorn)
	}
	return nil
}

// ScanSegment calls fn for each batch of the segment file at path, in order, with its position; the batch is valid
// during the call. It ends with fn's first error, with the file's own, or, at bytes that are not a whole and
// undamaged batch, with a *CorruptError whose Offset is the position.
func ScanSegment(fsys vfs.FS, path string, fn func(pos int64, b record.Batch) error) error {
	f, err := fsys.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return err
	}
	s := &batchScanner{file: f, end: size}
	for {
		pos := s.pos
		b, err := s.next()
		switch {
		case err == io.EOF:
			return nil
		case errors.Is(err, errTorn):
			return &CorruptError{Segment: path, Offset: pos, Err: err}
		case err != nil:
			return err
		}
		if err := fn(pos, b); err != nil {
			return err
		}
	}
}
