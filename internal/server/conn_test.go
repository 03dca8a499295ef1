package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/stelelog/stele/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a server with one broker listener and stops it with the test.
func start(t testing.TB, o Options) (*Server, string) {
	t.Helper()
	if o.Listeners == nil {
		o.Listeners = []Listener{{Name: "PLAINTEXT", Address: "127.0.0.1:0", Scope: wire.ScopeBroker}}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(testLog{t}, &slog.HandlerOptions{Level: slog.LevelError}))
	}
	s := New(o)
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
	})
	return s, s.Addr(s.opts.Listeners[0].Name).String()
}

type testLog struct{ t testing.TB }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// rawClient speaks to the server byte by byte.
type rawClient struct {
	t testing.TB
	net.Conn
	r *bufio.Reader
}

func dialRaw(t testing.TB, addr string) *rawClient {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	if err := nc.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return &rawClient{t: t, Conn: nc, r: bufio.NewReader(nc)}
}

func frame(req kmsg.Request, corr int32) []byte {
	return wire.AppendFrame(nil, func(b []byte) []byte {
		return req.AppendTo(wire.AppendRequestHeader(b, req.Key(), req.GetVersion(), corr, kmsg.StringPtr("test"), req.IsFlexible()))
	})
}

func (c *rawClient) send(b []byte) {
	c.t.Helper()
	if _, err := c.Write(b); err != nil {
		c.t.Fatal(err)
	}
}

// answer reads one answer and returns its correlation id and the rest.
func (c *rawClient) answer() (int32, []byte) {
	c.t.Helper()
	f, err := wire.ReadFrame(c.r, 64<<20)
	if err != nil {
		c.t.Fatalf("reading an answer: %v", err)
	}
	return int32(binary.BigEndian.Uint32(f.B)), f.B[4:]
}

func (c *rawClient) wantAnswer(corr int32) []byte {
	c.t.Helper()
	got, body := c.answer()
	if got != corr {
		c.t.Fatalf("answer %d came, want %d", got, corr)
	}
	return body
}

// wantClosed demands that the server closes without another byte.
func (c *rawClient) wantClosed() {
	c.t.Helper()
	rest, err := io.ReadAll(c.r)
	if len(rest) > 0 {
		c.t.Fatalf("%d bytes came before the end: %x", len(rest), rest)
	}
	if err != nil && !strings.Contains(err.Error(), "reset") {
		c.t.Fatalf("connection was not closed: %v", err)
	}
}

func metadataRequest() *kmsg.MetadataRequest {
	req := kmsg.NewPtrMetadataRequest()
	req.Version = 1
	return req
}

func produceRequest(acks int16) *kmsg.ProduceRequest {
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks = 9, acks
	req.Topics = []kmsg.ProduceRequestTopic{{Topic: "t", Partitions: []kmsg.ProduceRequestTopicPartition{{Records: []byte("r")}}}}
	return req
}

func metadataHandler(handle func(r *Request) Response) Handler {
	return Handler{Key: 3, Scopes: wire.ScopeBroker, Handle: handle}
}

func produceHandler(handle func(r *Request) Response) Handler {
	return Handler{Key: 0, Scopes: wire.ScopeBroker, Handle: handle}
}

func okMetadata(r *Request) Response { return Reply(r.Msg.ResponseKind()) }

func okProduce(r *Request) Response { return Reply(r.Produce.ResponseKind()) }

// Consecutive Produce requests of a connection overlap: each is appended while earlier ones wait, they
// are answered in order, and another request starts only after them.
func TestProduceOverlapsAndOthersWait(t *testing.T) {
	t.Parallel()
	var appended atomic.Int32
	gates := []chan struct{}{make(chan struct{}), make(chan struct{}), make(chan struct{})}
	arrived := make(chan int32, 8)
	var metadataAfter atomic.Int32
	metadataAfter.Store(-1)
	var answered atomic.Int32
	_, addr := start(t, Options{Handlers: []Handler{
		produceHandler(func(r *Request) Response {
			n := appended.Add(1) - 1
			r.ReleaseBody()
			arrived <- n
			return Later(gates[n], func() Response { answered.Add(1); return okProduce(r) })
		}),
		metadataHandler(func(r *Request) Response { metadataAfter.Store(answered.Load()); return okMetadata(r) }),
	}})
	c := dialRaw(t, addr)
	for i := range int32(3) {
		c.send(frame(produceRequest(-1), i))
	}
	c.send(frame(metadataRequest(), 3))
	for want := range int32(3) {
		if got := <-arrived; got != want {
			t.Fatalf("request %d was appended, want %d", got, want)
		}
	}
	close(gates[2])
	close(gates[1])
	if metadataAfter.Load() != -1 {
		t.Fatal("another request started before the Produce requests were answered")
	}
	close(gates[0])
	for want := range int32(4) {
		c.wantAnswer(want)
	}
	if got := metadataAfter.Load(); got != 3 {
		t.Fatalf("the other request started after %d answers, want 3", got)
	}
}

// A Produce request behind one of another kind starts only when that is done.
func TestProduceWaitsForOthers(t *testing.T) {
	t.Parallel()
	produced := make(chan struct{})
	overtaken := make(chan bool, 1)
	_, addr := start(t, Options{Handlers: []Handler{
		produceHandler(func(r *Request) Response { close(produced); return okProduce(r) }),
		metadataHandler(func(r *Request) Response {
			select {
			case <-produced:
				overtaken <- true
			case <-time.After(100 * time.Millisecond):
				overtaken <- false
			}
			return okMetadata(r)
		}),
	}})
	c := dialRaw(t, addr)
	c.send(append(frame(metadataRequest(), 0), frame(produceRequest(-1), 1)...))
	c.wantAnswer(0)
	c.wantAnswer(1)
	if <-overtaken {
		t.Fatal("a Produce request ran before the request ahead of it was answered")
	}
}

// No more Produce requests of one connection are in flight than the limit allows; the rest stays in
// the socket and is served later.
func TestInFlightIsBounded(t *testing.T) {
	t.Parallel()
	gate := make(chan struct{})
	var running, most atomic.Int32
	arrived := make(chan struct{}, 100)
	_, addr := start(t, Options{MaxInFlight: 3, Handlers: []Handler{produceHandler(func(r *Request) Response {
		most.Store(max(most.Load(), running.Add(1)))
		arrived <- struct{}{}
		return Later(gate, func() Response { running.Add(-1); return okProduce(r) })
	})}})
	c := dialRaw(t, addr)
	for i := range int32(10) {
		c.send(frame(produceRequest(1), i))
	}
	for range 3 {
		<-arrived
	}
	close(gate)
	for i := range int32(10) {
		c.wantAnswer(i)
	}
	if most.Load() > 3 {
		t.Fatalf("%d were in flight at once", most.Load())
	}
}

// B-007: acks=0 gets no answer, so the next answer is that of the next request; when it fails the
// connection is closed with no bytes sent for it.
func TestB007_acks_zero(t *testing.T) {
	t.Parallel()
	_, addr := start(t, Options{Handlers: []Handler{
		produceHandler(func(r *Request) Response {
			if r.Produce.Topics[0].Topic == "bad" {
				return CloseConnection(errors.New("no such topic"))
			}
			return NoReply()
		}),
		metadataHandler(okMetadata),
	}})
	c := dialRaw(t, addr)
	c.send(append(append(frame(produceRequest(0), 1), frame(produceRequest(0), 2)...), frame(metadataRequest(), 3)...))
	c.wantAnswer(3)

	bad := produceRequest(0)
	bad.Topics[0].Topic = "bad"
	c.send(append(frame(bad, 4), frame(metadataRequest(), 5)...))
	c.wantClosed()
}

// Half a request and a cut connection: no handler runs, and the memory is given back.
func TestHalfARequestDoesNothing(t *testing.T) {
	t.Parallel()
	var ran atomic.Bool
	closed := make(chan PeerClosed, 1)
	s, addr := start(t, Options{OnPeerClosed: func(p PeerClosed) { closed <- p }, Handlers: []Handler{
		produceHandler(func(r *Request) Response { ran.Store(true); return okProduce(r) }),
	}})
	req := produceRequest(1)
	req.Topics[0].Partitions[0].Records = make([]byte, 20<<10)
	whole := frame(req, 1)
	for _, n := range []int{3, 11, 12, 100, 5000, len(whole) - 1} {
		c := dialRaw(t, addr)
		c.send(whole[:n])
		c.Close()
		<-closed
	}
	waitFor(t, "connections to end", func() bool { return s.Connections() == 0 && s.budget.Used() == 0 })
	if ran.Load() {
		t.Fatal("a handler ran on half a request")
	}
}

// waitFor polls a condition that has no event to wait for.
func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(time.Millisecond) // house:allow counters of the server under test change without an event; waitFor bounds the polling
	}
}

// Unknown keys and versions close the connection without an answer; so do frames that are too
// large, too short, or not what their header says.
func TestRefusedRequestsCloseTheConnection(t *testing.T) {
	t.Parallel()
	_, addr := start(t, Options{MaxRequest: 1 << 20, Handlers: []Handler{metadataHandler(okMetadata), produceHandler(okProduce)}})
	header := func(key, version int16) []byte {
		return wire.AppendFrame(nil, func(b []byte) []byte { return wire.AppendRequestHeader(b, key, version, 1, nil, false) })
	}
	for name, b := range map[string][]byte{
		"unknown key":            header(1000, 0),
		"negative key":           header(-1, 0),
		"key without a handler":  header(1, 11),
		"key of a removed API":   header(4, 0),
		"version above":          header(3, 14),
		"negative version":       header(3, -1),
		"produce 2":              header(0, 2),
		"two gigabytes":          {0x7f, 0xff, 0xff, 0xff, 0, 3, 0, 1, 0, 0, 0, 1},
		"a byte above the limit": append(binary.BigEndian.AppendUint32(nil, 1<<20+1), 0, 3, 0, 1, 0, 0, 0, 1),
		"negative size":          {0xff, 0xff, 0xff, 0xff, 0, 3, 0, 1, 0, 0, 0, 1},
		"size zero":              {0, 0, 0, 0, 0, 3, 0, 1, 0, 0, 0, 1},
		"body cut short":         header(3, 9),
		"TLS":                    []byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello"),
		"HTTP":                   []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := dialRaw(t, addr)
			c.send(b)
			c.wantClosed()
		})
	}
}

// B-015: a tiny request that claims 2^31 items, or lengths past its end, is refused for next to no
// memory, while another connection goes on.
func TestB015_large_counts_in_tiny_requests(t *testing.T) {
	t.Parallel()
	s, addr := start(t, Options{Handlers: []Handler{metadataHandler(okMetadata), produceHandler(okProduce), {Key: 1, Scopes: wire.ScopeBroker, Handle: func(r *Request) Response { return Reply(r.Fetch.ResponseKind()) }}}})
	request := func(key, version int16, flexible bool, body ...byte) []byte {
		return wire.AppendFrame(nil, func(b []byte) []byte {
			return append(wire.AppendRequestHeader(b, key, version, 1, nil, flexible), body...)
		})
	}
	other := dialRaw(t, addr)
	for range 10 {
		for name, b := range map[string][]byte{
			"count":           request(3, 1, false, 0x7f, 0xff, 0xff, 0xff),
			"compact count":   request(3, 9, true, 0xff, 0xff, 0xff, 0xff, 0x0f),
			"string length":   request(3, 1, false, 0, 0, 0, 1, 0x7f, 0xff, 1, 2, 3),
			"negative string": request(0, 3, false, 0xff, 0xff, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0x80, 0),
			"tag size":        request(3, 9, true, 1, 0, 0, 0, 1, 5, 0xff, 0xff, 0xff, 0x7f),
			"tag count":       request(3, 9, true, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f),
			"header tag count": wire.AppendFrame(nil, func(b []byte) []byte {
				return append(wire.AppendRequestHeader(b, 3, 9, 1, nil, false), 0xff, 0xff, 0xff, 0xff, 0x0f)
			}),
			"produce partitions": request(0, 3, false, 0xff, 0xff, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 't', 0x7f, 0xff, 0xff, 0xff),
			"produce records":    request(0, 9, true, 0, 0, 1, 0, 0, 0, 1, 2, 2, 't', 2, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f),
			"fetch topics":       request(1, 11, false, append(make([]byte, 25), 0x7f, 0xff, 0xff, 0xff)...),
		} {
			c := dialRaw(t, addr)
			c.send(b)
			c.wantClosed()
			c.Close()
			other.send(frame(metadataRequest(), 7))
			other.wantAnswer(7)
			if used := s.budget.Used(); used > 1<<20 {
				t.Fatalf("%s: %d bytes of memory are taken", name, used)
			}
		}
	}
}

// A handler that panics costs its own connection only, and is counted.
func TestPanicClosesOneConnection(t *testing.T) {
	t.Parallel()
	var now atomic.Bool
	s, addr := start(t, Options{Logger: slog.New(slog.DiscardHandler), Handlers: []Handler{metadataHandler(func(r *Request) Response {
		if now.Load() {
			panic("on purpose")
		}
		return okMetadata(r)
	}), produceHandler(func(r *Request) Response {
		done := make(chan struct{})
		close(done)
		return Later(done, func() Response { panic("on purpose, later") })
	})}})
	other := dialRaw(t, addr)
	other.send(frame(metadataRequest(), 1))
	other.wantAnswer(1)
	now.Store(true)
	for _, req := range []kmsg.Request{metadataRequest(), produceRequest(1)} {
		c := dialRaw(t, addr)
		c.send(frame(req, 1))
		c.wantClosed()
	}
	now.Store(false)
	other.send(frame(metadataRequest(), 2))
	other.wantAnswer(2)
	if n := s.Stats().Panics; n != 2 {
		t.Fatalf("%d panics are counted", n)
	}
}

// An idle connection, and one that has sent half a frame, is closed after connections.max.idle.ms; one that
// waits for its answer is not.
func TestIdleConnectionsAreClosed(t *testing.T) {
	t.Parallel()
	gate := make(chan struct{})
	_, addr := start(t, Options{MaxIdle: 400 * time.Millisecond, Handlers: []Handler{metadataHandler(func(r *Request) Response { <-gate; return okMetadata(r) })}})
	waiting := dialRaw(t, addr)
	waiting.send(frame(metadataRequest(), 1))
	for _, part := range [][]byte{nil, {0, 0}, frame(metadataRequest(), 1)[:14]} {
		c := dialRaw(t, addr)
		c.send(part)
		c.wantClosed()
	}
	close(gate)
	waiting.wantAnswer(1)
}

// connections.max.idle.ms=-1 closes no connection for being idle, and max.connections=0 lets none in.
func TestLimitsThatAreOffOrNothing(t *testing.T) {
	t.Parallel()
	_, addr := start(t, Options{MaxIdle: -1, Handlers: []Handler{metadataHandler(okMetadata)}})
	c := dialRaw(t, addr)
	for i := range int32(3) {
		c.send(frame(metadataRequest(), i))
		c.wantAnswer(i)
	}
	_, addr = start(t, Options{MaxConnections: -1, Handlers: []Handler{metadataHandler(okMetadata)}})
	dialRaw(t, addr).wantClosed()
}

// B-058: a reset connection wakes its parked request at once; a half-closed one is answered once; one that
// does not read its answer is cut off.
func TestB058_vanished_clients(t *testing.T) {
	t.Parallel()
	parked, woken := make(chan struct{}, 1), make(chan struct{}, 1)
	big := make([]byte, 64<<20)
	s, addr := start(t, Options{WriteTimeout: 500 * time.Millisecond, Handlers: []Handler{
		metadataHandler(func(r *Request) Response {
			parked <- struct{}{}
			<-r.Context().Done()
			woken <- struct{}{}
			return okMetadata(r)
		}),
		produceHandler(func(r *Request) Response {
			resp := r.Produce.ResponseKind().(*kmsg.ProduceResponse)
			if r.Produce.Acks == 1 {
				resp.Topics = []kmsg.ProduceResponseTopic{{Topic: string(big)}}
			}
			return Reply(resp)
		}),
	}})
	for _, behind := range [][]byte{nil, frame(metadataRequest(), 2)} { // also with a request standing in the socket
		c := dialRaw(t, addr)
		c.send(append(frame(metadataRequest(), 1), behind...))
		<-parked
		if err := c.Conn.(*net.TCPConn).SetLinger(0); err != nil {
			t.Fatal(err)
		}
		c.Close()
		<-woken
	}
	half := dialRaw(t, addr)
	half.send(frame(produceRequest(-1), 3))
	if err := half.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	half.wantAnswer(3)
	half.wantClosed()

	deaf := dialRaw(t, addr)
	deaf.send(frame(produceRequest(1), 4))
	waitFor(t, "the deaf client's connection to end", func() bool { return s.Connections() == 0 })
}

// max.connections and max.connections.per.ip close what is too much at once, an override wins, and a place
// becomes free when a connection ends.
func TestConnectionLimits(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Options{
		"max.connections":        {MaxConnections: 2},
		"max.connections.per.ip": {MaxConnectionsPerIP: 2},
		"overrides":              {MaxConnectionsPerIP: 1, MaxConnectionsPerIPOverrides: map[string]int{"127.0.0.1": 2}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o.Handlers = []Handler{metadataHandler(okMetadata)}
			s, addr := start(t, o)
			open := []*rawClient{dialRaw(t, addr), dialRaw(t, addr)}
			for i, c := range open {
				c.send(frame(metadataRequest(), int32(i)))
				c.wantAnswer(int32(i))
			}
			dialRaw(t, addr).wantClosed()
			open[0].Close()
			waitFor(t, "a free place", func() bool { return s.Connections() == 1 })
			c := dialRaw(t, addr)
			c.send(frame(metadataRequest(), 9))
			c.wantAnswer(9)
			dialRaw(t, addr).wantClosed() // one place became free, not more
		})
	}
}

// A muted connection is not read until the time is over, and then nothing of what was sent is missing.
func TestMutingLosesNothing(t *testing.T) {
	t.Parallel()
	const mute = 200 * time.Millisecond
	_, addr := start(t, Options{Handlers: []Handler{metadataHandler(func(r *Request) Response { return okMetadata(r).Muting(mute) })}})
	c := dialRaw(t, addr)
	begin := time.Now()
	c.send(append(append(frame(metadataRequest(), 1), frame(metadataRequest(), 2)...), frame(metadataRequest(), 3)...))
	c.wantAnswer(1)
	if late := time.Since(begin); late > mute {
		t.Errorf("the answer itself was delayed by %v", late)
	}
	c.wantAnswer(2)
	c.wantAnswer(3)
	if took := time.Since(begin); took < 2*mute {
		t.Errorf("three requests took %v", took)
	}
}

// Shutdown answers what is in flight, wakes parked requests, closes all, and cuts off at its deadline.
func TestShutdown(t *testing.T) {
	t.Parallel()
	started := make(chan struct{}, 2)
	stuck := make(chan struct{})
	s, addr := start(t, Options{Handlers: []Handler{
		metadataHandler(func(r *Request) Response { started <- struct{}{}; <-r.Context().Done(); return okMetadata(r) }),
		produceHandler(func(r *Request) Response {
			started <- struct{}{}
			return Later(stuck, func() Response { return okProduce(r) })
		}),
	}})
	idle, parked, never := dialRaw(t, addr), dialRaw(t, addr), dialRaw(t, addr)
	parked.send(frame(metadataRequest(), 1))
	never.send(frame(produceRequest(-1), 2))
	<-started
	<-started
	waitFor(t, "three connections", func() bool { return s.Connections() == 3 })
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := s.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
	parked.wantAnswer(1)
	for _, c := range []*rawClient{idle, parked, never} {
		c.wantClosed()
	}
	if _, err := net.Dial("tcp", addr); err == nil {
		t.Fatal("still listening")
	}
}

// A port in use is reported with the listener's name, the address and what to do; no other listener
// stays open.
func TestPortInUse(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	s := New(Options{Listeners: []Listener{
		{Name: "PLAINTEXT", Address: "127.0.0.1:0", Scope: wire.ScopeBroker},
		{Name: "CONTROLLER", Address: taken.Addr().String(), Scope: wire.ScopeController},
	}})
	err = s.Start()
	var failed *ListenError
	if !errors.As(err, &failed) || failed.Listener != "CONTROLLER" || failed.Address != taken.Addr().String() {
		t.Fatalf("got %v", err)
	}
	for _, word := range []string{"CONTROLLER", taken.Addr().String(), "in use", "listeners"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q is not in %q", word, err)
		}
	}
	if s.Addr("PLAINTEXT") != nil {
		t.Error("the first listener is still open")
	}
}

// diskFile lends its file to sendfile.
type diskFile struct{ *os.File }

func (f diskFile) OSFile() (*os.File, bool) { return f.File, true }

// bytesFile has no file to lend.
type bytesFile struct{ *bytes.Reader }

func (bytesFile) OSFile() (*os.File, bool) { return nil, false }

// Ranges of files come out whole and in place, by sendfile and without, to several slow readers of one
// file at once; a file that ends early closes the connection.
func TestFetchFromFiles(t *testing.T) {
	t.Parallel()
	content := make([]byte, 3<<20)
	for i := range content {
		content[i] = byte(i ^ i>>8 ^ i>>16)
	}
	name := filepath.Join(t.TempDir(), "segment")
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var released atomic.Int32
	_, addr := start(t, Options{Handlers: []Handler{{Key: 1, Scopes: wire.ScopeBroker, Handle: func(r *Request) Response {
		p := &r.Fetch.Topics[0].Partitions[0]
		var file wire.File = diskFile{f}
		if p.Partition == 1 {
			file = bytesFile{bytes.NewReader(content)}
		}
		out := wire.FetchResponsePartition{Range: wire.FileRange{File: file, Position: p.FetchOffset, Length: int(p.PartitionMaxBytes)}}
		answer := wire.FetchResponse{Version: r.Version, Topics: []wire.FetchResponseTopic{{Topic: "t", Partitions: []wire.FetchResponsePartition{out, out}}}}
		segs, err := answer.Append(r.CorrelationID)
		if err != nil {
			return CloseConnection(err)
		}
		return ReplySegments(segs, func() { released.Add(1) })
	}}}})
	ask := func(c *rawClient, partition int32, at, n int) {
		req := kmsg.NewPtrFetchRequest()
		req.Version = 11
		p := kmsg.NewFetchRequestTopicPartition()
		p.Partition, p.FetchOffset, p.PartitionMaxBytes = partition, int64(at), int32(n)
		req.Topics = []kmsg.FetchRequestTopic{{Topic: "t", Partitions: []kmsg.FetchRequestTopicPartition{p}}}
		c.send(frame(req, 1))
	}
	var readers sync.WaitGroup
	for i := range 8 {
		readers.Go(func() {
			c := dialRaw(t, addr)
			at, n := i*1000, 2<<20+i
			if i == 7 {
				n = 1000
			}
			ask(c, int32(i%2), at, n)
			resp := kmsg.NewPtrFetchResponse()
			resp.Version = 11
			if err := resp.ReadFrom(c.wantAnswer(1)); err != nil {
				t.Error(err)
				return
			}
			for _, p := range resp.Topics[0].Partitions {
				if !bytes.Equal(p.RecordBatches, content[at:at+n]) {
					t.Errorf("reader %d got other bytes", i)
				}
			}
		})
	}
	readers.Wait()
	for partition := range int32(2) {
		c := dialRaw(t, addr)
		ask(c, partition, len(content)-100, 100_000)
		if _, err := wire.ReadFrame(c.r, 64<<20); err == nil {
			t.Error("an answer came whole from a file that is too short")
		}
	}
	waitFor(t, "every file to be let go", func() bool { return released.Load() == 10 })
}

// Properties of whole connections: whatever bytes come, the server does not panic, answers at most what
// was asked, ends the connection when the client has, and gives all memory back.
func FuzzConnection(f *testing.F) {
	f.Add(frame(metadataRequest(), 1))
	f.Add(append(frame(produceRequest(1), 1), frame(metadataRequest(), 2)...))
	f.Add([]byte{0, 0, 0, 20, 0, 18, 0, 99, 0, 0, 0, 1, 0xff, 0xff, 0})
	s, addr := start(f, Options{MaxRequest: 1 << 20, MaxIdle: time.Second, Handlers: []Handler{metadataHandler(okMetadata), produceHandler(okProduce)}})
	f.Fuzz(func(t *testing.T, b []byte) {
		c := dialRaw(t, addr)
		_, _ = c.Write(b) // may be cut off before the end
		_ = c.Conn.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, c.r)
		c.Close()
		waitFor(t, "the memory to be given back", func() bool { return s.budget.Used() == 0 })
		if n := s.Stats().Panics; n != 0 {
			t.Fatalf("%d handlers panicked", n)
		}
	})
}

// A size above the limit is refused on sight: four bytes that claim 2 GiB end their
// connection at once, not when it has been idle for long enough.
func TestOversizedFrameIsRefusedBySizeAlone(t *testing.T) {
	t.Parallel()
	_, addr := start(t, Options{Handlers: []Handler{metadataHandler(okMetadata)}})
	c := dialRaw(t, addr)
	c.send([]byte{0x7f, 0xff, 0xff, 0xff})
	c.wantClosed()
}
