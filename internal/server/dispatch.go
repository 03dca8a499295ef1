package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/security"
	"github.com/stelelog/stele/internal/wire"
)

// Handler serves one API on the listeners of Scopes. An API without a handler is not advertised.
type Handler struct {
	Key    int16
	Scopes wire.Scope
	// MaxVersion, when above 0, advertises and serves fewer versions than the protocol table has.
	MaxVersion int16
	// Handle answers a request. For Produce it is called in the order of the requests of a connection
	// and must not wait for replication (it returns Later); every other request is started only when all
	// earlier ones of its connection have been answered, and may block until its context ends.
	Handle func(*Request) Response
}

// Request is one request and all that is known about who sent it. It and everything it holds is the
// handler's until the answer is on its way: what is to outlive it must be copied, save the strings and,
// of APIs decoded by kmsg, the byte slices.
type Request struct {
	Key, Version  int16
	CorrelationID int32
	ClientID      string
	Principal     security.Principal
	Listener      string // name of the listener
	Scope         wire.Scope
	ClientAddr    net.IP
	ConnID        uint64 // never used twice in the life of a process
	// SoftwareName and SoftwareVersion are what the client said in ApiVersions; "" when it did not.
	SoftwareName, SoftwareVersion string
	Received                      time.Time
	Size                          int // bytes of the frame

	// One of these is set, as the API asks for.
	Produce *kmsg.ProduceRequest // its records are slices of the frame and may be patched in place
	Fetch   *kmsg.FetchRequest
	Msg     kmsg.Request

	conn   *conn
	body   *wire.Buffer
	grant  Grant
	parked int64 // bytes, of the budget's
	turn   bool  // to make a large answer
	resp   Response
	ran    bool // Handle has been called already
}

// Context ends when the client has gone, or the server wants parked requests to come to an end.
func (r *Request) Context() context.Context { return r.conn.handling }

// Authorize asks the authorizer on behalf of the client.
func (r *Request) Authorize(op security.Operation, resource security.Resource) bool {
	return r.conn.srv.opts.Authorizer.Authorize(security.RequestContext{
		Principal: r.Principal, ClientAddr: r.ClientAddr, Listener: r.Listener,
		APIKey: r.Key, APIVersion: r.Version, ClientID: r.ClientID,
	}, op, resource)
}

// ReleaseBody gives the bytes of the request back before its answer is due: a Produce request that
// waits for replication needs its records no more. Produce's records must not be touched afterwards.
func (r *Request) ReleaseBody() {
	if r.body == nil {
		return
	}
	r.conn.bodyReleased(r.Size)
	// kmsg's byte slices point into the frame and may be kept by their handler (a group keeps its
	// members' metadata), so only frames read by decoders of ours are used again.
	if r.Produce != nil || r.Fetch != nil {
		r.body.Release()
	}
	r.body = nil
	if r.grant.alone && r.Msg != nil {
		r.Msg, r.resp = nil, Response{}
		runtime.GC() // the next one is let in when this one's memory is free, not only unused
	}
	r.grant.Release()
}

// Park is ReleaseBody for a request that is about to wait, for as long as it says, and holds n bytes
// meanwhile. It reports false when so many requests wait that this one must not: nothing is given back then.
// It is called at most once.
func (r *Request) Park(n int64) bool {
	if !r.conn.srv.budget.park(n) {
		return false
	}
	r.parked = n
	r.ReleaseBody()
	return true
}

// done lets go of all that the request has held.
func (r *Request) done() {
	r.ReleaseBody()
	r.endTurn()
	if r.parked > 0 {
		r.conn.srv.budget.unpark(r.parked)
		r.parked = 0
	}
}

// Response is what becomes of a request; make one with Reply and its kin.
type Response struct {
	msg      kmsg.Response
	segments *wire.Segments
	release  func()
	done     <-chan struct{}
	finish   func() Response
	closing  error
	mute     time.Duration
}

// Reply answers with a message; its version is set to the request's.
func Reply(msg kmsg.Response) Response { return Response{msg: msg} }

// ReplySegments answers with a whole frame. release, which may be nil, is called once, when the
// files are needed no more, also when the answer could not be sent.
func ReplySegments(s wire.Segments, release func()) Response {
	return Response{segments: &s, release: release}
}

// Later answers with what finish returns once done is closed. finish is called once, unless the client
// has gone before.
func Later(done <-chan struct{}, finish func() Response) Response {
	return Response{done: done, finish: finish}
}

// NoReply leaves the request without an answer: Produce with acks=0.
func NoReply() Response { return Response{} }

// CloseConnection ends the connection, after the answers to earlier requests, with no answer to this one.
func CloseConnection(why error) Response { return Response{closing: why} }

// Muting makes the connection wait for d after the answer before it reads on: how a client is throttled.
func (r Response) Muting(d time.Duration) Response {
	r.mute = d
	return r
}

// UnsupportedError reports a request for an API or version that this listener does not serve.
type UnsupportedError struct{ Key, Version int16 }

func (e *UnsupportedError) Error() string {
	name := "unknown API"
	if api, ok := wire.Lookup(e.Key); ok {
		name = api.Name
	}
	return fmt.Sprintf("%s (key %d) version %d is not served here", name, e.Key, e.Version)
}

const keySyncGroup int16 = 14

var errPanicked = errors.New("handler panicked")

// handlers are the APIs of one kind of listener.
type handlers map[int16]Handler

// supports reports whether the version of the API may be used here.
func (h handlers) supports(key, version int16) bool {
	handler, ok := h[key]
	if !ok {
		return false
	}
	api, known := wire.Lookup(key)
	return known && api.Supports(version) && version <= handler.max(api)
}

func (h Handler) max(api wire.API) int16 {
	if h.MaxVersion > 0 {
		return min(h.MaxVersion, api.Max)
	}
	return api.Max
}

// decode turns the bytes of a request into its message.
func (c *conn) decode(r *Request, rest []byte) error {
	switch r.Key {
	case wire.KeyProduce:
		r.Produce = new(kmsg.ProduceRequest)
		return wire.DecodeProduce(r.Produce, r.Version, rest, &c.names)
	case wire.KeyFetch:
		r.Fetch = new(kmsg.FetchRequest)
		return wire.DecodeFetch(r.Fetch, r.Version, rest, &c.names)
	}
	if r.Key == keySyncGroup {
		var err error
		if rest, err = wire.SyncGroupWithoutTags(r.Version, rest); err != nil {
			return err
		}
	}
	msg := wire.RequestForKey(r.Key)
	msg.SetVersion(r.Version)
	if err := msg.ReadFrom(rest); err != nil {
		return fmt.Errorf("%w: %s: %w", wire.ErrMalformed, kmsg.NameForKey(r.Key), err)
	}
	if err := wire.CheckCounts(msg, rest); err != nil {
		return err
	}
	r.Msg = msg
	return nil
}

// run calls the handler. A panic costs the connection, not the process: the state the handler worked
// on has its own owner and its own checks.
func (c *conn) run(r *Request) (resp Response) {
	defer func() {
		if p := recover(); p != nil {
			c.srv.metrics.panics.Add(1)
			c.srv.log.Error("handler panicked, closing its connection", "api", kmsg.NameForKey(r.Key), "version", r.Version,
				"client", c.remote, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			resp = CloseConnection(errPanicked)
		}
	}()
	return c.ln.handlers[r.Key].Handle(r)
}

func (c *conn) finish(r *Request, resp Response) (out Response) {
	defer func() {
		if p := recover(); p != nil {
			c.srv.metrics.panics.Add(1)
			c.srv.log.Error("answer panicked, closing its connection", "api", kmsg.NameForKey(r.Key), "version", r.Version,
				"client", c.remote, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			out = CloseConnection(errPanicked)
		}
	}()
	return resp.finish()
}

// logLevel says how loud the end of a connection is: what a client did wrong is shown, what it may do is not.
func logLevel(err error) slog.Level {
	var unsupported *UnsupportedError
	var frame *wire.FrameSizeError
	var costly *TooCostlyError
	switch {
	case errors.As(err, &costly), errors.As(err, &frame), errors.Is(err, wire.ErrMalformed):
		return slog.LevelWarn
	case errors.As(err, &unsupported):
		return slog.LevelInfo
	default:
		return slog.LevelDebug
	}
}
