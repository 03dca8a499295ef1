package wire

import (
	"math/bits"
	"sync"
)

// Buffers come in powers of two between minPooled and maxPooled bytes and are kept in one pool per
// size. What is larger is made to measure and left to the collector: a pool of huge buffers would
// pin exactly the memory that the request budget is there to bound. A Produce request with one batch of
// the default max.message.bytes, a little over 1 MiB, still has a size of its own.
const (
	minPooledBits = 10
	maxPooledBits = 21
	maxPooled     = 1 << maxPooledBits
)

var pools [maxPooledBits - minPooledBits + 1]sync.Pool

// Buffer is a byte slice with an owner. The owner alone may use B, and hands it back by Release,
// once; slices of B are dead from then on.
type Buffer struct {
	B []byte
}

// NewBuffer returns an empty buffer with room for at least n bytes.
func NewBuffer(n int) *Buffer {
	if n > maxPooled {
		return &Buffer{B: make([]byte, 0, n)}
	}
	class := sizeClass(n)
	if b, ok := pools[class].Get().(*Buffer); ok {
		b.B = b.B[:0]
		return b
	}
	return &Buffer{B: make([]byte, 0, 1<<(class+minPooledBits))}
}

// Release gives the buffer back. The caller must not touch it, or any slice of it, afterwards.
func (b *Buffer) Release() {
	c := cap(b.B)
	// A buffer that grew by append may have any capacity; only exact classes go back.
	if c < 1<<minPooledBits || c > maxPooled || c&(c-1) != 0 {
		b.B = nil
		return
	}
	pools[sizeClass(c)].Put(b)
}

// BufferSize is the memory, in bytes, that NewBuffer(n) holds on to.
func BufferSize(n int) int {
	if n > maxPooled {
		return n
	}
	return 1 << (sizeClass(n) + minPooledBits)
}

func sizeClass(n int) int {
	if n <= 1<<minPooledBits {
		return 0
	}
	return bits.Len(uint(n-1)) - minPooledBits
}
