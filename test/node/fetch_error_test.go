package node

import (
	"testing"
	"time"
)

// A fetch that would wait for records is answered at once when one of its partitions is in error, also when that
// is found before any log is looked at.
func TestFetch_error_ends_the_wait(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1)
	missing := at(tp, 0)
	missing.partition = 5
	for _, version := range []int16{4, 12, 18} {
		req := fetchRequest(at(tp, 0), missing)
		req.MaxWaitMillis, req.MinBytes = 20_000, 1
		begin := time.Now()
		parts := c.fetchAll(version, req).Topics[0].Partitions
		if waited := time.Since(begin); waited > 10*time.Second || len(parts) != 2 || parts[1].ErrorCode != 3 {
			t.Errorf("v%d: %+v after %s", version, parts, waited)
		}
	}
}
