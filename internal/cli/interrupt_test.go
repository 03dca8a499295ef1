package cli

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"time"
)

// watched is a buffer that tells when it holds some text.
type watched struct {
	mu   sync.Mutex
	b    bytes.Buffer
	want string
	seen chan struct{}
	once sync.Once
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, err := w.b.Write(p)
	if strings.Contains(w.b.String(), w.want) {
		w.once.Do(func() { close(w.seen) })
	}
	return n, err
}

// An interrupted consumer has committed what it printed, leaves its group, and ends with
// status 0; while it runs the group is described with its member.
func TestInterruptedConsumerLeavesItsGroup(t *testing.T) {
	t.Parallel()
	fresh(t, "t-interrupt", "g-interrupt")
	ok(t, lines(3), "produce", "t-interrupt")
	bootstrap := sharedNode(t)
	ctx, cancel := context.WithCancel(t.Context())
	out := &watched{want: "3\n", seen: make(chan struct{})}
	var errs bytes.Buffer
	ended := make(chan int, 1)
	go func() {
		ended <- execute(ctx, []string{"consume", "t-interrupt", "-g", "g-interrupt", "-b", bootstrap}, strings.NewReader(""), out, &errs)
	}()
	select {
	case <-out.seen:
	case <-time.After(20 * time.Second):
		t.Fatal("the records did not come")
	}
	view := asJSON[[]groupView](t, "group", "describe", "g-interrupt")
	if len(view) != 1 || view[0].State != "Stable" || len(view[0].Members) != 1 || len(view[0].Members[0].Assigned["t-interrupt"]) != 1 {
		t.Errorf("while it runs: %+v", view)
	}
	fails(t, 1, []string{"group", "delete", "g-interrupt"}, "NON_EMPTY_GROUP", "stop its consumers")
	fails(t, 1, []string{"group", "reset-offsets", "g-interrupt", "-t", "t-interrupt", "--to", "earliest"}, "stop its consumers")
	cancel()
	if status := <-ended; status != 0 || errs.Len() > 0 {
		t.Errorf("status %d, %q", status, errs.String())
	}
	view = asJSON[[]groupView](t, "group", "describe", "g-interrupt")
	if view[0].State != "Empty" || len(view[0].Members) != 0 || view[0].Offsets[0].CommittedOffset != 3 {
		t.Errorf("afterwards: %+v", view)
	}
}
