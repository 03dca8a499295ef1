package node

import (
	"os"
	"sync"
	"testing"
	"time"
)

// TestE071_largest_timestamp_under_a_rolling_writer: sixteen clients ask for the largest timestamp over and over while
// segments roll and timestamps go up and down: the answers never fall, and no produce fails. Two seconds; E071_SECONDS=60
// gives it the minute that the case asks for.
func TestE071_largest_timestamp_under_a_rolling_writer(t *testing.T) {
	t.Parallel()
	n := shared(t)
	writer := n.dial(t)
	tp := writer.topic(1, "segment.bytes=1048576")
	length := 2 * time.Second
	if os.Getenv("E071_SECONDS") != "" {
		d, err := time.ParseDuration(os.Getenv("E071_SECONDS") + "s")
		if err != nil {
			t.Fatal(err)
		}
		length = d
	}
	const first = 1749554797191
	writer.mustProduce(tp, 0, sized(100_000, first))
	until := time.Now().Add(length)
	lasts := func(c *client) { // a connection has patience for less
		if err := c.conn.SetDeadline(until.Add(patience)); err != nil {
			t.Fatal(err)
		}
	}
	lasts(writer)
	var asking sync.WaitGroup
	for range 16 {
		c := n.dial(t)
		lasts(c)
		asking.Go(func() {
			for best := int64(0); time.Now().Before(until); {
				p := c.offset(11, tp, 0, -3, -1)
				if p.ErrorCode != 0 || p.Timestamp < best {
					t.Errorf("the largest timestamp fell from %d to %d, error %d", best, p.Timestamp, p.ErrorCode)
					return
				}
				best = p.Timestamp
			}
		})
	}
	written := int64(1)
	for ; time.Now().Before(until); written++ {
		ts := first + written
		if written%2 == 1 {
			ts -= 250
		}
		if base := writer.mustProduce(tp, 0, sized(100_000, ts)); base != written {
			t.Fatalf("batch at %d, want %d", base, written)
		}
	}
	asking.Wait()
	if end := writer.end(tp); end != written || written < 30 {
		t.Errorf("%d batches written, the log ends at %d", written, end)
	}
}
