package record

import (
	"context"

	"golang.org/x/sync/semaphore"
)

// Most batches are decompressed through buffers that stay in a pool. A batch may ask for much more: a bare
// snappy block of 1 MB holds up to 20 MB, and a zstd frame may ask for a window of 128 MB. Such batches take
// turns, so that many at once need no more memory than a few: decompression is bound by the cores anyway.
const (
	// largeOutput is the size in bytes above which a block or window takes turns: that of Kafka's default
	// zstd level and of everything smaller does not.
	largeOutput = zstdWrittenWindow
	// largeTotal is what those at work may hold together, in bytes; a larger one works alone.
	largeTotal = 32 << 20
)

var largeTurns = semaphore.NewWeighted(largeTotal)

// largeTurn is what a decompressor holds of largeTurns. The zero largeTurn holds nothing.
type largeTurn struct{ held int64 }

// take waits until a block or window of size bytes may be allocated. What was held is given back first:
// whoever waits holds nothing, so that no two can wait for each other.
func (t *largeTurn) take(size uint64) {
	if size <= largeOutput || size <= uint64(t.held) {
		return
	}
	t.release()
	n := int64(min(size, largeTotal))
	_ = largeTurns.Acquire(context.Background(), n) // fails only when its context ends
	t.held = n
}

func (t *largeTurn) release() {
	if t.held > 0 {
		largeTurns.Release(t.held)
		t.held = 0
	}
}
