package cli

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// memoryFloor is the collector's soft limit while little is alive. What requests may
	// hold at once is bounded by queued.max.request.bytes; without a limit the collector
	// would let as much garbage again pile up behind them.
	memoryFloor = 128 << 20
	// memoryLook is how often the limit is set anew.
	memoryLook = 5 * time.Second
)

// tendMemory keeps the Go runtime's soft memory limit near what is alive, until ctx
// ends: tight on a small node, and out of the way of one that has much to hold, which
// a fixed limit would make collect without end. GOMEMLIMIT, when set, is left alone.
func tendMemory(ctx context.Context) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	ticker := time.NewTicker(memoryLook)
	defer ticker.Stop()
	for {
		metrics.Read(live)
		debug.SetMemoryLimit(max(memoryFloor, int64(2*live[0].Value.Uint64())+64<<20))
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
