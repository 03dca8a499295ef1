package server

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/stelelog/stele/internal/security"
	"github.com/stelelog/stele/internal/wire"
)

const (
	// peekBytes is what is looked at before a request is let in: frame size, API key, version,
	// correlation id.
	peekBytes = wire.FrameSizeBytes + 8
	// firstBytes must have come before a large request may hold memory: a claim alone gets none.
	firstBytes = 4096
	// bodyStall is how long a body may make no progress while others wait for its memory.
	bodyStall = 2 * time.Second
	// halfCloseGrace is how long a client that has closed its sending side is still answered.
	halfCloseGrace = 5 * time.Second
	// deadlineSlack is how much earlier than meant a deadline may strike, as a part of it: to set one anew for every
	// request costs more than to let it stand for some.
	deadlineSlack = 8
	// peerCheck is how often a connection that is not being read is looked at for a reset.
	peerCheck = 500 * time.Millisecond
)

var (
	errPeerClosed = errors.New("closed by the client")
	errPeerReset  = errors.New("reset by the client")
	errIdle       = errors.New("idle for too long")
	errStalled    = errors.New("request body made no progress while others waited for its memory")
	errShutdown   = errors.New("server is shutting down")
)

// conn is one connection. Its reader lets requests in, appends Produce requests, and passes all on, in
// order, to its answerer, which runs the others and writes the answers. A request that is not Produce is
// let in only when nothing is in flight, so the two never run handlers at once except for Produce behind
// Produce. A Produce request that has nothing to wait for, with none before it on its way, the reader answers
// itself. A waiting request is left in the socket: it holds no memory.
type conn struct {
	srv    *Server
	ln     *listener
	nc     net.Conn
	remote string
	ip     net.IP
	id     uint64
	r      *bufio.Reader
	names  wire.Names // the reader's

	readUntil  time.Time // the read deadline, as the reader has set it
	writeUntil time.Time // the write deadline, of whoever writes

	software, softwareVersion string // set by the answerer in ApiVersions, when nothing else is in flight

	ctx      context.Context // ends when the connection is dead
	kill     context.CancelCauseFunc
	handling context.Context // ends with ctx, and when the server drains
	drain    context.CancelCauseFunc

	queue chan *Request
	out   []byte // answers that the reader has not written yet

	mu        sync.Mutex // guards the fields below; never held over IO
	inFlight  int
	held      int // bytes of bodies not yet released
	onlyWrite bool
	muteUntil time.Time
	progress  chan struct{} // one token after each change of the above
}

func (s *Server) newConn(ln *listener, nc net.Conn, ip net.IP) *conn {
	c := &conn{
		srv: s, ln: ln, nc: nc, remote: nc.RemoteAddr().String(), ip: ip, id: s.nextConn.Add(1),
		r:        bufio.NewReaderSize(nc, firstBytes),
		queue:    make(chan *Request, s.opts.MaxInFlight),
		progress: make(chan struct{}, 1),
	}
	c.ctx, c.kill = context.WithCancelCause(context.Background())
	c.handling, c.drain = context.WithCancelCause(c.ctx)
	return c
}

// serve runs the connection to its end and returns when both of its goroutines are done.
func (c *conn) serve() {
	// Whatever kills the connection also wakes whoever is inside a read or a write.
	stop := context.AfterFunc(c.ctx, func() { _ = c.nc.Close() })
	var answerer sync.WaitGroup
	answerer.Go(c.answer)
	why := c.read()
	if err := c.flush(); err != nil {
		why = err
	}
	close(c.queue)
	if errors.Is(why, errPeerClosed) {
		timer := time.AfterFunc(halfCloseGrace, func() { c.kill(errPeerClosed) })
		answerer.Wait()
		timer.Stop()
	} else {
		c.endQueued(why)
	}
	answerer.Wait()
	if cause := context.Cause(c.ctx); cause != nil {
		why = cause
	}
	stop()
	c.kill(why)
	_ = c.nc.Close() // nothing more is to be written; a failed close loses nothing
	c.srv.tellConn(logLevel(why), "connection closed", "client", c.remote, "listener", c.ln.name, "cause", why)
}

// endQueued ends the connection at once when the peer is gone; when the reader stopped because of what
// the peer sent, or to shut down, earlier requests are answered, parked ones without more waiting.
func (c *conn) endQueued(why error) {
	var opErr *net.OpError
	if errors.As(why, &opErr) || errors.Is(why, errPeerReset) {
		c.kill(why)
	}
	c.drain(why)
}

// read lets requests in until the connection is to end, and says why.
func (c *conn) read() error {
	for {
		if !c.smallProduceIsHere() {
			if err := c.flush(); err != nil {
				return err
			}
		}
		size, key, err := c.next()
		if err != nil {
			return err
		}
		if err := c.await(key == wire.KeyProduce); err != nil {
			return err
		}
		cost, err := c.srv.budget.cost(key, size)
		if err != nil {
			return err
		}
		r, err := c.receive(size, cost)
		if err != nil {
			return err
		}
		if key == wire.KeyProduce {
			r.resp, r.ran = c.run(r), true
			if c.answerHere(r) {
				continue
			}
			if err := c.flush(); err != nil {
				r.ReleaseBody()
				return err
			}
		}
		end := r.resp.closing
		c.queue <- r // never full: await has counted; from here on r is the answerer's
		if key == wire.KeyProduce && end != nil {
			return end
		}
	}
}

// answerHere answers a Produce request that needs not wait for anything, if no earlier one is on its way: then nobody
// else writes. The answer is kept until flush, which comes before anything that may take time.
func (c *conn) answerHere(r *Request) bool {
	if !c.only() {
		return false
	}
	for r.resp.done != nil {
		select {
		case <-r.resp.done:
			r.resp = c.finished(r)
		default:
			return false
		}
	}
	if r.resp.closing != nil || r.resp.segments != nil || r.resp.mute > 0 {
		return false
	}
	if r.resp.msg != nil {
		c.out = appendAnswer(c.out, r, r.resp.msg)
	}
	c.srv.metrics.answered(r)
	if r.resp.release != nil {
		r.resp.release()
	}
	r.ReleaseBody()
	c.left(0)
	return true
}

// only says whether the request that the reader has let in is the only one on its way.
func (c *conn) only() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inFlight == 1
}

// maxUnwritten is how many bytes of answers the reader may keep.
const maxUnwritten = 16 << 10

// smallProduceIsHere says whether a whole Produce request has been read already: its answer can leave together with
// those before it.
func (c *conn) smallProduceIsHere() bool {
	have := c.r.Buffered()
	if have < peekBytes || len(c.out) >= maxUnwritten {
		return false
	}
	head, _ := c.r.Peek(peekBytes) // it has so many
	size, err := wire.ParseFrameSize(head, c.srv.opts.MaxRequest)
	key, _ := wire.PeekRequest(head[wire.FrameSizeBytes:])
	return err == nil && key == wire.KeyProduce && have >= wire.FrameSizeBytes+size
}

// flush writes the answers that the reader has kept.
func (c *conn) flush() error {
	if len(c.out) == 0 || c.ctx.Err() != nil {
		return nil
	}
	err := c.writeBytes(c.out)
	c.out = c.out[:0]
	if cap(c.out) > maxUnwritten {
		c.out = nil
	}
	if err != nil {
		c.kill(err)
	}
	return err
}

// next waits for a request and looks at its first bytes without taking them.
func (c *conn) next() (size int, key int16, err error) {
	now := time.Now()
	idleSince := now
	for ; ; now = time.Now() {
		if c.handling.Err() != nil {
			return 0, 0, context.Cause(c.handling)
		}
		if c.r.Buffered() < peekBytes && c.readBy(now, idleSince.Add(c.srv.opts.MaxIdle), c.srv.opts.MaxIdle) && c.handling.Err() != nil {
			continue // the deadline that drain set may just have been overwritten
		}
		head, err := c.r.Peek(wire.FrameSizeBytes)
		if err == nil {
			// A size that nobody may send needs no more bytes to be refused.
			if size, err = wire.ParseFrameSize(head, c.srv.opts.MaxRequest); err != nil {
				return 0, 0, err
			}
			head, err = c.r.Peek(peekBytes)
		}
		if err == nil {
			key, version := wire.PeekRequest(head[wire.FrameSizeBytes:])
			if !c.ln.handlers.supports(key, version) && key != wire.KeyApiVersions {
				return 0, 0, &UnsupportedError{Key: key, Version: version}
			}
			return size, key, nil
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			if c.busy() {
				idleSince = time.Now()
			} else if time.Since(idleSince) >= c.srv.opts.MaxIdle {
				return 0, 0, errIdle
			}
		case errors.Is(err, io.EOF):
			c.srv.peerClosed(c)
			return 0, 0, errPeerClosed
		default:
			c.srv.peerClosed(c)
			return 0, 0, err
		}
	}
}

// readBy makes reads fail at about until, which is d from when waiting began, and says whether it had to set the
// deadline for that.
func (c *conn) readBy(now, until time.Time, d time.Duration) (set bool) {
	if early := until.Sub(c.readUntil); early >= 0 && early <= d/deadlineSlack && c.readUntil.After(now) {
		return false
	}
	c.readUntil = until
	_ = c.nc.SetReadDeadline(until) // fails only on a closed socket, as the read will
	return true
}

func (c *conn) busy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inFlight > 0
}

// await waits for the turn of the request that stands next in the socket.
func (c *conn) await(produce bool) error {
	var ticker *time.Ticker
	for {
		wait, ok := c.enter(produce)
		if ok {
			return nil
		}
		if ticker == nil {
			ticker = time.NewTicker(peerCheck)
			defer ticker.Stop()
		}
		var unmuted <-chan time.Time
		if wait > 0 {
			timer := time.NewTimer(wait)
			defer timer.Stop()
			unmuted = timer.C
		}
		select {
		case <-c.progress:
		case <-unmuted:
		case <-ticker.C:
			if peerGone(c.nc) {
				c.srv.peerClosed(c)
				return errPeerReset
			}
		case <-c.ctx.Done():
			return context.Cause(c.ctx)
		}
	}
}

// enter counts the request as in flight if it may start now; else it says how long the connection is
// muted, if that is why.
func (c *conn) enter(produce bool) (muted time.Duration, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if wait := time.Until(c.muteUntil); wait > 0 {
		return wait, false
	}
	if c.inFlight > 0 {
		overlap := produce && (c.onlyWrite || mutantProduceOvertakes) && c.inFlight < c.srv.opts.MaxInFlight && c.held < c.srv.opts.MaxInFlightBytes
		if !overlap {
			return 0, false
		}
	}
	c.inFlight++
	c.onlyWrite = produce
	return 0, true
}

func (c *conn) left(mute time.Duration) {
	c.mu.Lock()
	c.inFlight--
	if mute > 0 {
		c.muteUntil = time.Now().Add(mute)
	}
	c.mu.Unlock()
	c.wake()
}

func (c *conn) bodyReleased(n int) {
	c.mu.Lock()
	c.held -= n
	c.mu.Unlock()
	c.wake()
}

func (c *conn) wake() {
	select {
	case c.progress <- struct{}{}:
	default:
	}
}

// receive takes the memory for a request, then its bytes, and decodes them. On an error nothing is held
// and nothing has been done.
func (c *conn) receive(size int, cost int64) (*Request, error) {
	if size > firstBytes {
		if err := c.peekFirst(); err != nil {
			return nil, err
		}
	}
	grant, err := c.takeMemory(size, cost)
	if err != nil {
		return nil, err
	}
	_, _ = c.r.Discard(wire.FrameSizeBytes) // they have been peeked at
	body, err := wire.ReadBody(&bodyReader{c: c, grant: &grant}, size)
	if err != nil {
		grant.Release()
		return nil, err
	}
	r := &Request{
		Received: time.Now(), Size: size, Principal: security.Anonymous, Listener: c.ln.name, Scope: c.ln.scope,
		ClientAddr: c.ip, ConnID: c.id, conn: c, body: body, grant: grant,
	}
	c.mu.Lock()
	c.held += size
	c.mu.Unlock()
	if grant.alone {
		runtime.GC() // what was given back is still garbage, and this may be as much again
	}
	h, rest, err := wire.DecodeRequestHeader(body.B, &c.names)
	if err == nil {
		r.Key, r.Version, r.CorrelationID, r.ClientID = h.Key, h.Version, h.CorrelationID, h.ClientID
		r.SoftwareName, r.SoftwareVersion = c.software, c.softwareVersion
		if c.ln.handlers.supports(h.Key, h.Version) {
			err = c.decode(r, rest)
		}
	}
	if err != nil {
		r.ReleaseBody()
		return nil, err
	}
	return r, nil
}

// takeMemory waits for the memory of a request, as long as its client is there.
func (c *conn) takeMemory(size int, cost int64) (Grant, error) {
	var checked time.Time
	grant, err := c.srv.budget.Take(c.ctx, cost, func() (whole bool, err error) {
		if now := time.Now(); now.Sub(checked) >= peerCheck {
			checked = now
			if peerGone(c.nc) {
				c.srv.peerClosed(c)
				return false, errPeerReset
			}
		}
		return c.r.Buffered()+unread(c.nc) >= wire.FrameSizeBytes+size, nil
	})
	if c.ctx.Err() != nil && err != nil {
		err = context.Cause(c.ctx)
	}
	return grant, err
}

// peekFirst waits until the first bytes of a large body are there.
func (c *conn) peekFirst() error {
	now := time.Now()
	if c.r.Buffered() < firstBytes && c.readBy(now, now.Add(c.srv.opts.MaxIdle), c.srv.opts.MaxIdle) && c.handling.Err() != nil {
		return context.Cause(c.handling) // the deadline that drain set may just have been overwritten
	}
	_, err := c.r.Peek(firstBytes)
	if errors.Is(err, io.EOF) {
		c.srv.peerClosed(c)
		return errPeerClosed
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		if c.handling.Err() != nil {
			return context.Cause(c.handling)
		}
		return errIdle
	}
	return err
}

// bodyReader reads a body that may come slowly, but not while others wait for the memory it holds.
type bodyReader struct {
	c     *conn
	grant *Grant
}

func (b *bodyReader) Read(p []byte) (int, error) {
	if b.c.r.Buffered() > 0 {
		return b.c.r.Read(p) // it is here: no clock and no deadline for a small request
	}
	since := time.Now()
	for {
		// A request that has not come whole has not begun: a server that drains does not wait for it.
		if err := b.c.handling.Err(); err != nil {
			return 0, context.Cause(b.c.handling)
		}
		now, stall := time.Now(), min(bodyStall, b.c.srv.opts.MaxIdle)
		if b.c.readBy(now, now.Add(stall), stall) && b.c.handling.Err() != nil {
			continue // the deadline that drain set may just have been overwritten
		}
		n, err := b.c.r.Read(p)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			if errors.Is(err, io.EOF) {
				b.c.srv.peerClosed(b.c)
			}
			return n, err
		}
		if b.grant.Contended() {
			return 0, errStalled
		}
		if time.Since(since) >= b.c.srv.opts.MaxIdle {
			return 0, errIdle
		}
	}
}

// answer runs and answers requests in order until the queue is closed. After a failed write, or when the
// client has gone, what is left is only let go.
func (c *conn) answer() {
	for r := range c.queue {
		if c.ctx.Err() == nil {
			if err := c.answerOne(r); err != nil {
				c.kill(err)
			}
		} else if r.resp.release != nil {
			r.resp.release()
		}
		mute := r.resp.mute
		r.done()
		c.left(mute)
	}
}

func (c *conn) answerOne(r *Request) error {
	defer c.srv.metrics.answered(r)
	if !r.ran {
		if !c.ln.handlers.supports(r.Key, r.Version) {
			// Only ApiVersions gets here: its answer says which versions there are.
			return c.write(r, Reply(unsupportedApiVersions(c.ln.handlers)))
		}
		r.resp = c.run(r)
	}
	for r.resp.done != nil {
		select {
		case <-r.resp.done:
			r.resp = c.finished(r)
		case <-c.ctx.Done():
			return context.Cause(c.ctx)
		}
	}
	if r.resp.closing != nil {
		return r.resp.closing
	}
	return c.write(r, r.resp)
}

// finished is what an answer has become now that nothing more is to be waited for.
func (c *conn) finished(r *Request) Response {
	next := c.finish(r, r.resp)
	next.mute = max(next.mute, r.resp.mute)
	return next
}
