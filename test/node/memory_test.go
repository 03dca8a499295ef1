package node

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"
)

// A valid body of 20 MB that would decode to some 500 MB, four at a time, is refused or held back: the node never
// grows by more than 128 MB, and other clients go on meanwhile.
func TestMemory_bodies_that_decode_to_much(t *testing.T) {
	t.Parallel()
	n := start(t)
	calm := n.dial(t)
	tp := calm.topic(1)
	calm.mustProduce(tp, 0, exampleA())
	before := n.status(t, "VmHWM")

	const count = 10_000_000
	body := unhex("0003 0001 00000001 0001 78")
	body = binary.BigEndian.AppendUint32(body, count)
	body = append(body, bytes.Repeat([]byte{0, 0}, count)...) // topics with empty names
	request := framed(body)
	done := make(chan struct{})
	for range 4 {
		heavy := n.dial(t)
		go func() {
			defer func() { done <- struct{}{} }()
			_ = heavy.conn.SetDeadline(time.Now().Add(patience))
			if _, err := heavy.conn.Write(request); err != nil {
				return // closed: refused
			}
			_, _ = heavy.frame()
		}()
	}
	worst := time.Duration(0)
	for left := 4; left > 0; {
		select {
		case <-done:
			left--
		default:
			asked := time.Now()
			calm.mustProduce(tp, 0, exampleA())
			worst = max(worst, time.Since(asked))
			_ = calm.conn.SetDeadline(time.Now().Add(patience))
		}
	}
	if worst > patience/2 {
		t.Errorf("another client waited %v", worst)
	}
	if grown := n.status(t, "VmHWM") - before; grown > 128<<20 {
		t.Errorf("the node grew by %d MB", grown>>20)
	}
}
