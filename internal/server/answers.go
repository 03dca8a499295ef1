package server

import (
	"errors"
	"os"
	"runtime"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/wire"
)

// largeAnswer is the size in bytes from which an answer counts while it is being sent.
const largeAnswer = 64 << 10

// unreadStall is how long an answer may go unread while others wait for the memory that it takes, and unreadCheck how
// often that is looked at.
const (
	unreadStall = time.Second
	unreadCheck = 250 * time.Millisecond
)

var errUnread = errors.New("answer was not read while others waited for its memory")

// answers bounds the memory of answers that may be long: descriptions of topics, configurations, groups. A small
// request is enough to ask for one, and who asks may be slow to read it, or never do so. A few at a time are made, each
// then counts by its bytes until it is sent, and while there are as many as the request memory, the next ones wait.
// Whoever does not read meanwhile is cut off. Produce, Fetch, and what keeps groups alive have no part in it.
type answers struct {
	turns   chan struct{}
	sending *Budget
}

func newAnswers(memory int64) *answers {
	return &answers{turns: make(chan struct{}, 2*runtime.GOMAXPROCS(0)), sending: NewBudget(memory)}
}

// large makes a handler of a function whose answer may be long.
func large[Req kmsg.Request, Resp kmsg.Response](b *BrokerAPI, handle func(a *brokerAPI, r *Request, req Req) Resp) Handler {
	var none Req
	return b.on(none.Key(), func(a *brokerAPI, r *Request) Response {
		if err := r.takeTurn(); err != nil {
			return CloseConnection(err)
		}
		return Reply(handle(a, r, r.Msg.(Req)))
	})
}

// takeTurn waits until the request may make its answer. The turn ends when the answer is being sent, or never will be.
func (r *Request) takeTurn() error {
	select {
	case r.conn.srv.answers.turns <- struct{}{}:
		r.turn = true
		return nil
	case <-r.Context().Done():
		return r.Context().Err()
	}
}

func (r *Request) endTurn() {
	if r.turn {
		r.turn = false
		<-r.conn.srv.answers.turns
	}
}

// writeInTurn sends an answer that was made in a turn. What it was made of is let go of first.
func (c *conn) writeInTurn(r *Request, b []byte) error {
	defer r.endTurn()
	r.resp.msg, r.Msg = nil, nil
	if len(b) < largeAnswer {
		r.endTurn()
		return c.writeBytes(b)
	}
	grant, err := c.srv.answers.sending.Take(c.ctx, int64(len(b)), nil)
	if err != nil {
		return err
	}
	defer grant.Release()
	r.endTurn()
	c.writeUntil = time.Time{} // it is not true any more
	for since := time.Now(); len(b) > 0; {
		if err := c.nc.SetWriteDeadline(time.Now().Add(min(unreadCheck, c.srv.opts.WriteTimeout))); err != nil {
			return err
		}
		n, err := c.nc.Write(b[:min(len(b), writeStep)])
		if b = b[n:]; n > 0 {
			since = time.Now()
		}
		switch {
		case err == nil:
		case !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(since) >= c.srv.opts.WriteTimeout:
			return err
		case time.Since(since) >= unreadStall && grant.Contended():
			return errUnread
		}
	}
	return nil
}

// appendAnswer appends the frame of an answer.
func appendAnswer(b []byte, r *Request, msg kmsg.Response) []byte {
	if r.Key != wire.KeyApiVersions {
		msg.SetVersion(r.Version)
	}
	return wire.AppendFrame(b, func(b []byte) []byte {
		return msg.AppendTo(wire.AppendResponseHeader(b, r.Key, r.CorrelationID, msg.IsFlexible()))
	})
}
