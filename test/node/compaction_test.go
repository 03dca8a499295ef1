package node

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/record"
)

// A running node compacts: of a topic with cleanup.policy compact only the last value of a key is left in what is no
// longer written to, the topic that nobody compacts keeps all, and a change of log.cleaner.threads takes effect at once.
func TestCompaction(t *testing.T) {
	t.Parallel()
	n := start(t, "log.cleaner.backoff.ms=20", "log.cleaner.threads=0")
	c := n.dial(t)
	settings := []string{"segment.ms=1", "min.cleanable.dirty.ratio=0.01"}
	compacted, kept := c.topic(1, append(settings, "cleanup.policy=compact")...), c.topic(1, settings...)
	for i := range 10 {
		for _, tp := range []topic{compacted, kept} {
			c.mustProduce(tp, 0, batch(record.BuilderOptions{}, rec{time.Now().UnixMilli() + int64(10*i), []byte("k"), []byte{byte('a' + i)}}))
		}
	}
	if got := len(c.all(compacted)); got != 10 {
		t.Fatalf("%d batches before the cleaner runs", got)
	}
	if code := c.alter(kmsg.ConfigResourceTypeBroker, "", set("log.cleaner.threads", "1")); code != 0 {
		t.Fatalf("error %d", code)
	}
	deadline := time.Now().Add(patience)
	for {
		left := c.all(compacted)
		if len(left) <= 2 {
			if last := left[len(left)-1]; last.LastOffset() != 9 {
				t.Errorf("the last offset is %d", last.LastOffset())
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d batches are left", len(left))
		}
		time.Sleep(10 * time.Millisecond)
	}
	if got := len(c.all(kept)); got != 10 {
		t.Errorf("%d batches of a topic that is not compacted", got)
	}
}

// all are the batches of partition 0, over all its segments.
func (c *client) all(tp topic) (out []record.Batch) {
	c.t.Helper()
	end := c.offset(5, tp, 0, -1, -1).Offset
	for offset := int64(0); offset < end; offset = out[len(out)-1].NextOffset() {
		got := batches(c.t, c.stored(tp, offset))
		if len(got) == 0 {
			c.t.Fatalf("nothing at offset %d of %d", offset, end)
		}
		out = append(out, got...)
	}
	return out
}
