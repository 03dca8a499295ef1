package broker

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/wire"
)

// slowController answers Envelopes only when it is let; each connection answers in order.
type slowController struct {
	accepted atomic.Int32
	arrived  chan struct{} // one for each Envelope
	let      chan struct{}
}

func (s *slowController) serve(conn net.Conn) {
	defer conn.Close()
	var names wire.Names
	for {
		frame, err := wire.ReadFrame(conn, wire.DefaultMaxFrame)
		if err != nil {
			return
		}
		header, _, err := wire.DecodeRequestHeader(frame.B, &names)
		if err != nil {
			return
		}
		req := kmsg.RequestForKey(header.Key)
		resp := req.ResponseKind()
		switch resp := resp.(type) {
		case *kmsg.ApiVersionsResponse:
			k := kmsg.NewApiVersionsResponseApiKey()
			k.ApiKey = int16(kmsg.Envelope)
			resp.ApiKeys = append(resp.ApiKeys, k)
		case *kmsg.EnvelopeResponse:
			s.arrived <- struct{}{}
			<-s.let
		}
		resp.SetVersion(header.Version)
		out := wire.AppendFrame(nil, func(b []byte) []byte {
			return resp.AppendTo(wire.AppendResponseHeader(b, header.Key, header.CorrelationID, resp.IsFlexible()))
		})
		if _, err := conn.Write(out); err != nil {
			return
		}
	}
}

// A client that goes away while its request is at the controller leaves the
// connection to the others: what they asked for is not sent a second time.
func TestGoneClientLeavesTheChannel(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &slowController{arrived: make(chan struct{}, 8), let: make(chan struct{})}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.accepted.Add(1)
			serving.Go(func() { s.serve(conn) })
		}
	})
	never := make(chan struct{})
	c := newChannel((&net.Dialer{}).DialContext, func() (string, <-chan struct{}) { return l.Addr().String(), never }, slog.New(slog.DiscardHandler))
	defer serving.Wait()
	defer l.Close()
	defer c.close()

	gone, leave := context.WithCancel(t.Context())
	first, second := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := c.Do(gone, kmsg.NewPtrEnvelopeRequest())
		first <- err
	}()
	<-s.arrived
	go func() {
		_, err := c.Do(t.Context(), kmsg.NewPtrEnvelopeRequest())
		second <- err
	}()
	leave()
	if err := <-first; !errors.Is(err, ErrNoController) {
		t.Errorf("the client that left: %v", err)
	}
	close(s.let)
	if err := <-second; err != nil {
		t.Errorf("the client that stayed: %v", err)
	}
	if n := s.accepted.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
	if n := len(s.arrived); n != 1 {
		t.Errorf("the second request arrived %d times", n)
	}
}

// Whoever waits for a connection that somebody else is making gives up when its own time is over, and closing
// the channel waits for nobody: both also while the address swallows every attempt.
func TestChannelWithAnAddressThatSwallows(t *testing.T) {
	t.Parallel()
	attempt := make(chan struct{})
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		close(attempt)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	never := make(chan struct{})
	c := newChannel(dial, func() (string, <-chan struct{}) { return "192.0.2.1:9093", never }, slog.New(slog.DiscardHandler))
	first := make(chan error, 1)
	go func() {
		_, err := c.Do(t.Context(), kmsg.NewPtrEnvelopeRequest())
		first <- err
	}()
	<-attempt
	gone, leave := context.WithCancel(t.Context())
	leave()
	if _, err := c.Do(gone, kmsg.NewPtrEnvelopeRequest()); !errors.Is(err, ErrNoController) {
		t.Errorf("the client that left: %v", err)
	}
	c.close()
	if err := <-first; !errors.Is(err, ErrNoController) || !errors.Is(err, net.ErrClosed) {
		t.Errorf("after the close: %v", err)
	}
}
