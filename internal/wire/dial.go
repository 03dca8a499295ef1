package wire

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// DialFunc opens a network connection; (*net.Dialer).DialContext is one.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// DialOptions shape a connection. The zero value is fit for use.
type DialOptions struct {
	ClientID        string // sent with every request; "" is sent as null
	SoftwareName    string // default "stele"
	SoftwareVersion string // default "0"
	MaxFrame        int    // largest answer accepted, in bytes; default DefaultMaxFrame
}

// ErrConnClosed is what requests get that were waiting, or come, when the connection is closed by us.
var ErrConnClosed = errors.New("connection is closed")

// UnsupportedVersionError reports that this end and the other have no version of an API in common.
type UnsupportedVersionError struct {
	Key                  int16
	PeerMin, PeerMax     int16 // -1, -1: the peer does not serve the API at all
	OurMin, OurMax, Want int16 // Want is -1 unless the caller asked for one version
}

func (e *UnsupportedVersionError) Error() string {
	name := kmsg.NameForKey(e.Key)
	if e.PeerMax < 0 {
		return fmt.Sprintf("the peer does not serve %s", name)
	}
	if e.Want >= 0 {
		return fmt.Sprintf("the peer serves %s in versions %d to %d, not %d", name, e.PeerMin, e.PeerMax, e.Want)
	}
	return fmt.Sprintf("no common version of %s: the peer serves %d to %d, we speak %d to %d", name, e.PeerMin, e.PeerMax, e.OurMin, e.OurMax)
}

// Conn is the dialling end of a connection. Requests may be made concurrently: they are pipelined
// and answered in order. The first error of any kind ends the connection, because after it there is
// no telling whose answer comes next; every request then gets that error.
type Conn struct {
	opts     DialOptions
	conn     net.Conn
	versions map[int16][2]int16
	features *kmsg.ApiVersionsResponse

	writing sync.Mutex // one writer at a time; taken before mu, and the only one held over IO
	mu      sync.Mutex // guards the fields below; never held over IO, so that reading never waits for a write
	nextID  int32
	waiting []*call // in the order of their requests on the wire
	err     error

	dead chan struct{} // closed when the connection is of no use any more
	done chan struct{} // closed when the reader has ended
}

type call struct {
	id     int32
	key    int16
	flex   bool
	answer chan []byte // receives the answer's body, or is closed when there will be none
}

// Dial connects and asks the other end which versions it speaks. ctx bounds both; afterwards it has no
// hold over the connection, which lives until Close or an error.
func Dial(ctx context.Context, dial DialFunc, address string, opts DialOptions) (*Conn, error) {
	if opts.SoftwareName == "" {
		opts.SoftwareName = "stele"
	}
	if opts.SoftwareVersion == "" {
		opts.SoftwareVersion = "0"
	}
	if opts.MaxFrame == 0 {
		opts.MaxFrame = DefaultMaxFrame
	}
	nc, err := dial(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	c := &Conn{opts: opts, conn: nc, dead: make(chan struct{}), done: make(chan struct{})}
	go c.read()
	if err := c.negotiate(ctx); err != nil {
		c.Close()
		return nil, fmt.Errorf("cannot agree on versions with %s: %w", address, err)
	}
	return c, nil
}

// negotiate asks with the newest version we know and falls back to the one the answer names. Cluster and
// node are not named: whoever dials by address checks whom it has reached by other means.
func (c *Conn) negotiate(ctx context.Context) error {
	api, _ := Lookup(KeyApiVersions)
	version := api.Max
	for range 2 {
		req := kmsg.NewPtrApiVersionsRequest()
		req.Version = version
		req.ClientSoftwareName, req.ClientSoftwareVersion = c.opts.SoftwareName, c.opts.SoftwareVersion
		body, err := c.roundTrip(ctx, req)
		if err != nil {
			return err
		}
		resp := kmsg.NewPtrApiVersionsResponse()
		resp.Version = version
		const unsupported = 35
		if len(body) >= 2 && body[0] == 0 && body[1] == unsupported {
			resp.Version = 0
		}
		if err := resp.ReadFrom(body); err != nil {
			return err
		}
		if resp.ErrorCode == 0 {
			c.features = resp
			c.versions = make(map[int16][2]int16, len(resp.ApiKeys))
			for _, k := range resp.ApiKeys {
				c.versions[k.ApiKey] = [2]int16{k.MinVersion, k.MaxVersion}
			}
			return nil
		}
		if resp.ErrorCode != unsupported || version == 0 {
			return fmt.Errorf("ApiVersions was answered with error code %d", resp.ErrorCode)
		}
		version = 0
		for _, k := range resp.ApiKeys {
			if k.ApiKey == KeyApiVersions {
				version = min(api.Max, k.MaxVersion)
			}
		}
	}
	return errors.New("ApiVersions was refused in the version that the peer named")
}

// PeerVersions returns the range that the other end advertised for an API.
func (c *Conn) PeerVersions(key int16) (minVersion, maxVersion int16, ok bool) {
	r, ok := c.versions[key]
	return r[0], r[1], ok
}

// APIVersions returns the other end's whole answer to ApiVersions; it must not be changed.
func (c *Conn) APIVersions() *kmsg.ApiVersionsResponse { return c.features }

// RemoteAddr is the address of the other end.
func (c *Conn) RemoteAddr() net.Addr { return c.conn.RemoteAddr() }

// Done is closed when the connection has ended, for whatever reason.
func (c *Conn) Done() <-chan struct{} { return c.dead }

// Request sends req in the highest version that both ends speak and waits for its answer. When ctx
// ends first its error is returned, and the answer is dropped when it comes; the connection lives on.
func (c *Conn) Request(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
	return c.request(ctx, req, -1)
}

// RequestVersion is Request with a version of the caller's choice.
func (c *Conn) RequestVersion(ctx context.Context, req kmsg.Request, version int16) (kmsg.Response, error) {
	return c.request(ctx, req, version)
}

func (c *Conn) request(ctx context.Context, req kmsg.Request, want int16) (kmsg.Response, error) {
	version, err := c.pick(req, want)
	if err != nil {
		return nil, err
	}
	req.SetVersion(version)
	body, err := c.roundTrip(ctx, req)
	if err != nil {
		return nil, err
	}
	resp := req.ResponseKind()
	resp.SetVersion(version)
	if err := resp.ReadFrom(body); err != nil {
		err = fmt.Errorf("answer to %s version %d from %s: %w", kmsg.NameForKey(req.Key()), version, c.conn.RemoteAddr(), err)
		return nil, c.fail(err)
	}
	return resp, nil
}

func (c *Conn) pick(req kmsg.Request, want int16) (int16, error) {
	e := &UnsupportedVersionError{Key: req.Key(), PeerMin: -1, PeerMax: -1, OurMax: req.MaxVersion(), Want: want}
	if api, ok := Lookup(req.Key()); ok {
		e.OurMin, e.OurMax = api.Min, min(api.Max, req.MaxVersion())
	}
	peer, ok := c.versions[req.Key()]
	if req.Key() == KeyQuorumPeer { // its versions are agreed on in its own answers
		peer, ok = [2]int16{0, req.MaxVersion()}, true
	}
	if !ok {
		return 0, e
	}
	e.PeerMin, e.PeerMax = peer[0], peer[1]
	version := min(e.OurMax, e.PeerMax)
	if want >= 0 {
		version = want
	}
	if version < max(e.PeerMin, e.OurMin) || version > min(e.OurMax, e.PeerMax) {
		return 0, e
	}
	return version, nil
}

// roundTrip sends a request as it is and returns the body of its answer.
func (c *Conn) roundTrip(ctx context.Context, req kmsg.Request) ([]byte, error) {
	call := &call{key: req.Key(), flex: req.IsFlexible(), answer: make(chan []byte, 1)}
	if err := c.send(ctx, call, req); err != nil {
		return nil, err
	}
	select {
	case body, ok := <-call.answer:
		if !ok {
			return nil, c.failure()
		}
		return body, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (c *Conn) send(ctx context.Context, call *call, req kmsg.Request) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var client *string
	if c.opts.ClientID != "" {
		client = &c.opts.ClientID
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.enqueue(call); err != nil {
		return err
	}
	buf := NewBuffer(0)
	buf.B = AppendFrame(buf.B, func(b []byte) []byte {
		return req.AppendTo(AppendRequestHeader(b, call.key, req.GetVersion(), call.id, client, call.flex))
	})
	defer buf.Release()
	// A request that was cut short leaves nothing behind it readable, so a late write ends the connection.
	deadline, _ := ctx.Deadline()
	if err := c.conn.SetWriteDeadline(deadline); err != nil {
		return c.fail(err)
	}
	if _, err := c.conn.Write(buf.B); err != nil {
		return c.fail(err)
	}
	return nil
}

// enqueue gives the call its correlation id and its place in the order of answers.
func (c *Conn) enqueue(call *call) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	call.id = c.nextID
	c.nextID++
	c.waiting = append(c.waiting, call)
	return nil
}

// read hands answers to those who wait for them, until the connection ends.
func (c *Conn) read() {
	defer close(c.done)
	r := bufio.NewReader(c.conn)
	for {
		frame, err := ReadFrame(r, c.opts.MaxFrame)
		if err == nil {
			err = c.deliver(frame.B)
		}
		if err != nil {
			_ = c.fail(err) // those who wait are told
			return
		}
	}
}

func (c *Conn) deliver(frame []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) == 0 {
		return malformed("an answer that nobody asked for")
	}
	call := c.waiting[0]
	id, body, err := DecodeResponseHeader(frame, call.key, call.flex)
	if err != nil {
		return err
	}
	if id != call.id {
		return malformed(fmt.Sprintf("answer with correlation id %d where %d is due", id, call.id))
	}
	c.waiting[0] = nil
	c.waiting = c.waiting[1:]
	call.answer <- body
	return nil
}

// fail ends the connection with err, unless it has ended already, and returns the error that ended it.
func (c *Conn) fail(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	c.err = fmt.Errorf("connection to %s: %w", c.conn.RemoteAddr(), err)
	for _, call := range c.waiting {
		close(call.answer)
	}
	c.waiting = nil
	close(c.dead)
	_ = c.conn.Close() // the connection is lost already; why is in c.err
	return c.err
}

func (c *Conn) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection and waits until its goroutine has. It may be called more than once.
func (c *Conn) Close() {
	_ = c.fail(ErrConnClosed)
	<-c.done
}
