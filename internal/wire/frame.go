package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// DefaultMaxFrame is the default of socket.request.max.bytes.
const DefaultMaxFrame = 104857600

// FrameSizeBytes is the length of the size that stands before each frame.
const FrameSizeBytes = 4

// minFrame is the least a request can hold: API key, version and correlation id.
const minFrame = 8

// firstRead is how much room a frame gets before any of its bytes have come; more is made only as
// the bytes arrive, so a few bytes that claim a large frame cost nothing.
const firstRead = 256 << 10

// FrameSizeError reports a frame whose size the receiver does not accept. Nothing of the frame has
// been read, so the connection cannot be used any more.
type FrameSizeError struct {
	Size int32 // as the header claims; may be negative
	Max  int   // the largest accepted
}

func (e *FrameSizeError) Error() string {
	if e.Size >= 0 && int(e.Size) <= e.Max {
		return fmt.Sprintf("frame of %d bytes is too short to hold a request", e.Size)
	}
	return fmt.Sprintf("frame size %d is not between 0 and the limit of %d bytes", e.Size, e.Max)
}

// ParseFrameSize reads the size in front of a request from the first four bytes of b and checks it
// against max. It returns *FrameSizeError when the size is negative, too small for a request header,
// or above max.
func ParseFrameSize(b []byte, max int) (int, error) {
	size := int32(binary.BigEndian.Uint32(b))
	if size < minFrame || int(size) > max {
		return 0, &FrameSizeError{Size: size, Max: max}
	}
	return int(size), nil
}

// ReadFrame reads one whole response frame: its size, at most max, and its body. At a clean end of the
// stream, before any byte, the error is io.EOF; inside a frame it is io.ErrUnexpectedEOF.
func ReadFrame(r io.Reader, max int) (*Buffer, error) {
	var head [FrameSizeBytes]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	size := int32(binary.BigEndian.Uint32(head[:]))
	if size < 4 || int(size) > max {
		return nil, &FrameSizeError{Size: size, Max: max}
	}
	return ReadBody(r, int(size))
}

// ReadBody reads exactly n bytes into a buffer that grows as they arrive: at no time is more than
// eight times what has come, or firstRead, set aside. On error nothing is returned and the buffer
// has been released; a stream that ends early gives io.ErrUnexpectedEOF.
func ReadBody(r io.Reader, n int) (*Buffer, error) {
	buf := NewBuffer(min(n, firstRead))
	for len(buf.B) < n {
		if len(buf.B) == cap(buf.B) {
			grown := NewBuffer(min(n, 8*cap(buf.B)))
			grown.B = append(grown.B, buf.B...)
			buf.Release()
			buf = grown
		}
		have := len(buf.B)
		part := buf.B[have:min(n, cap(buf.B))]
		m, err := r.Read(part)
		buf.B = buf.B[:have+m]
		if err != nil && len(buf.B) < n {
			buf.Release()
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
	return buf, nil
}

// AppendFrame appends a frame whose body is what fill appends.
func AppendFrame(dst []byte, fill func([]byte) []byte) []byte {
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	dst = fill(dst)
	binary.BigEndian.PutUint32(dst[start:], uint32(len(dst)-start-FrameSizeBytes))
	return dst
}
