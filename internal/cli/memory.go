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

	// A node that allocates less than quietBytes between two looks and holds more than half
	// as much again as is alive, and wasteFloor, gives that back, at most every giveBack: what
	// a start or a storm took is not kept for the next one.
	quietBytes = 4 << 20
	wasteFloor = 8 << 20
	giveBack   = 30 * time.Second
)

// tendMemory keeps the Go runtime's soft memory limit near what is alive, until ctx
// ends: tight on a small node, and out of the way of one that has much to hold, which
// a fixed limit would make collect without end. In quiet times it gives memory back.
// GOMEMLIMIT, when set, is left alone.
func tendMemory(ctx context.Context) {
	limited := os.Getenv("GOMEMLIMIT") != ""
	ticker := time.NewTicker(memoryLook)
	defer ticker.Stop()
	var m memoryUse
	var last, given time.Time
	for {
		before := m.allocated
		m.read()
		if !limited {
			debug.SetMemoryLimit(max(memoryFloor, 2*m.live+64<<20))
		}
		now := time.Now()
		if quiet := !last.IsZero() && m.allocated-before < quietBytes; quiet && m.wasteful() && now.Sub(given) >= giveBack {
			debug.FreeOSMemory()
			given = now
		}
		last = now
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// memoryUse is what the runtime says of the heap, in bytes.
type memoryUse struct {
	live      int64 // after the last collection
	held      int64 // objects, dead ones too, and what is kept for more
	allocated int64 // over time
}

func (m *memoryUse) read() {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/free:bytes"}, {Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	value := func(i int) int64 { return int64(s[i].Value.Uint64()) }
	m.live, m.held, m.allocated = value(0), value(1)+value(2)+value(3), value(4)
}

func (m *memoryUse) wasteful() bool { return m.held-m.live > max(wasteFloor, m.live/2) }
