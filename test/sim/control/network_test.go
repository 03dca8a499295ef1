package control

import "time"

// network carries what nodes say to each other, by node id: late, twice, in another order, or not at all.
type network struct {
	w   *world
	cut map[[2]int32]bool // ordered pairs that cannot talk
	// loss, twice and slow are how many percent get lost, repeated, and delayed by more than usual.
	loss, twice, slow float64
}

func (n *network) delay() time.Duration {
	switch {
	case n.w.chance(n.slow / 10):
		return n.w.between(200*time.Millisecond, 4*time.Second)
	case n.w.chance(n.slow):
		return n.w.between(2*time.Millisecond, 150*time.Millisecond)
	}
	return n.w.between(100*time.Microsecond, 2*time.Millisecond)
}

// send carries one thing one way, extra after now. It says whether it is on its way; it may be lost later all the same.
func (n *network) send(from, to int32, extra time.Duration, deliver func()) bool {
	if n.cut[[2]int32{from, to}] || n.w.chance(n.loss) {
		n.w.counts["messages lost"]++
		return false
	}
	arrive := func() {
		if n.cut[[2]int32{from, to}] {
			n.w.counts["messages lost"]++
			return
		}
		deliver()
	}
	n.w.counts["messages"]++
	delay := extra + n.delay()
	n.w.mark("send", int64(from), int64(to), int64(delay))
	n.w.after(delay, arrive)
	if n.w.chance(n.twice) {
		n.w.counts["messages repeated"]++
		n.w.after(extra+n.delay(), arrive)
	}
	return true
}

// once is send that repeats nothing, as a connection does not.
func (n *network) once(from, to int32, deliver func()) {
	twice := n.twice
	n.twice = 0
	n.send(from, to, 0, deliver)
	n.twice = twice
}

// call asks and hears the answer, or, after timeout, that there is none.
func (n *network) call(from, to int32, timeout time.Duration, serve func(answer func(any)), done func(answer any, ok bool)) {
	over := false
	finish := func(answer any, ok bool) {
		if !over {
			over = true
			done(answer, ok)
		}
	}
	n.w.after(timeout, func() { finish(nil, false) })
	n.once(from, to, func() {
		serve(func(answer any) {
			n.once(to, from, func() { finish(answer, true) })
		})
	})
}
