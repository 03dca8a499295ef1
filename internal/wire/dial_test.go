package wire

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// peer is a scripted other end: answer is called for each request in order and returns the bytes to
// send, or nil to send nothing.
func peer(t *testing.T, answer func(h RequestHeader, body []byte) []byte) DialFunc {
	t.Helper()
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	return func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		wg.Go(func() {
			defer theirs.Close()
			r := bufio.NewReader(theirs)
			for {
				frame, err := ReadFrame(r, DefaultMaxFrame)
				if err != nil {
					return
				}
				h, body, err := DecodeRequestHeader(frame.B, nil)
				if err != nil {
					return
				}
				if out := answer(h, body); out != nil {
					if _, err := theirs.Write(out); err != nil {
						return
					}
				}
			}
		})
		return ours, nil
	}
}

func respond(h RequestHeader, resp kmsg.Response) []byte {
	return AppendFrame(nil, func(b []byte) []byte {
		return resp.AppendTo(AppendResponseHeader(b, h.Key, h.CorrelationID, resp.IsFlexible()))
	})
}

func apiVersions(version int16, code int16, keys ...kmsg.ApiVersionsResponseApiKey) *kmsg.ApiVersionsResponse {
	resp := kmsg.NewPtrApiVersionsResponse()
	resp.Version, resp.ErrorCode, resp.ApiKeys = version, code, keys
	return resp
}

// The dialling end takes the highest common version, and falls back when ApiVersions itself is too new.
func TestDialNegotiates(t *testing.T) {
	t.Parallel()
	var asked []int16
	dial := peer(t, func(h RequestHeader, body []byte) []byte {
		switch {
		case h.Key == KeyApiVersions && h.Version > 2:
			asked = append(asked, h.Version)
			return respond(h, apiVersions(0, 35, kmsg.ApiVersionsResponseApiKey{ApiKey: 18, MaxVersion: 2}))
		case h.Key == KeyApiVersions:
			asked = append(asked, h.Version)
			return respond(h, apiVersions(h.Version, 0, kmsg.ApiVersionsResponseApiKey{ApiKey: 3, MinVersion: 1, MaxVersion: 8}, kmsg.ApiVersionsResponseApiKey{ApiKey: 1, MinVersion: 19, MaxVersion: 20}))
		default:
			resp := kmsg.NewPtrMetadataResponse()
			resp.Version = h.Version
			resp.ControllerID = int32(h.Version)
			return respond(h, resp)
		}
	})
	ctx := t.Context()
	c, err := Dial(ctx, dial, "peer", DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if len(asked) != 2 || asked[0] != 5 || asked[1] != 2 {
		t.Fatalf("ApiVersions was asked in versions %v", asked)
	}
	resp, err := c.Request(ctx, kmsg.NewPtrMetadataRequest())
	if err != nil || resp.(*kmsg.MetadataResponse).ControllerID != 8 {
		t.Fatalf("%+v, %v", resp, err)
	}
	var none *UnsupportedVersionError
	for _, req := range []kmsg.Request{kmsg.NewPtrFetchRequest(), kmsg.NewPtrHeartbeatRequest()} {
		if _, err := c.Request(ctx, req); !errors.As(err, &none) {
			t.Fatalf("got %v", err)
		}
	}
	if _, err := c.RequestVersion(ctx, kmsg.NewPtrMetadataRequest(), 9); !errors.As(err, &none) || none.Want != 9 {
		t.Fatalf("got %v", err)
	}
}

// withVersions answers ApiVersions with Metadata only and leaves the rest to next.
func withVersions(next func(h RequestHeader, body []byte) []byte) func(RequestHeader, []byte) []byte {
	return func(h RequestHeader, body []byte) []byte {
		if h.Key == KeyApiVersions {
			return respond(h, apiVersions(h.Version, 0, kmsg.ApiVersionsResponseApiKey{ApiKey: 3, MaxVersion: 12}))
		}
		return next(h, body)
	}
}

// Concurrent requests each get their own answer.
func TestConnPipelines(t *testing.T) {
	t.Parallel()
	dial := peer(t, withVersions(func(h RequestHeader, body []byte) []byte {
		req := kmsg.NewPtrMetadataRequest()
		req.Version = h.Version
		if err := req.ReadFrom(body); err != nil {
			return nil
		}
		resp := kmsg.NewPtrMetadataResponse()
		resp.Version = h.Version
		resp.ClusterID = req.Topics[0].Topic
		return respond(h, resp)
	}))
	c, err := Dial(t.Context(), dial, "peer", DialOptions{ClientID: "me"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			name := string(rune('a' + i))
			req := kmsg.NewPtrMetadataRequest()
			req.Topics = []kmsg.MetadataRequestTopic{{Topic: &name}}
			resp, err := c.Request(t.Context(), req)
			if err != nil || *resp.(*kmsg.MetadataResponse).ClusterID != name {
				t.Errorf("%q: %+v, %v", name, resp, err)
			}
		})
	}
	wg.Wait()
}

// A request whose context ends gives up alone; its late answer is dropped and the next one is right.
func TestConnOutlivesALateAnswer(t *testing.T) {
	t.Parallel()
	held := make(chan struct{})
	n := int32(0)
	dial := peer(t, withVersions(func(h RequestHeader, body []byte) []byte {
		n++
		if n == 1 {
			<-held
		}
		resp := kmsg.NewPtrMetadataResponse()
		resp.Version, resp.ControllerID = h.Version, n
		return respond(h, resp)
	}))
	c, err := Dial(t.Context(), dial, "peer", DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, err := c.Request(ctx, kmsg.NewPtrMetadataRequest()); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	close(held)
	resp, err := c.Request(t.Context(), kmsg.NewPtrMetadataRequest())
	if err != nil || resp.(*kmsg.MetadataResponse).ControllerID != 2 {
		t.Fatalf("%+v, %v", resp, err)
	}
}

// Whatever nonsense the other end sends, waiting requests get an error and the connection ends.
func TestConnEndsOnNonsense(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(h RequestHeader) []byte{
		"other correlation id": func(h RequestHeader) []byte {
			h.CorrelationID++
			return respond(h, kmsg.NewPtrMetadataResponse())
		},
		"two gigabytes": func(RequestHeader) []byte { return []byte{0x7f, 0xff, 0xff, 0xff} },
		"negative size": func(RequestHeader) []byte { return []byte{0xff, 0xff, 0xff, 0xff} },
		"body cut short": func(h RequestHeader) []byte {
			return binary.BigEndian.AppendUint32([]byte{0, 0, 0, 4}, uint32(h.CorrelationID))
		},
		"unasked for": func(h RequestHeader) []byte {
			resp := kmsg.NewPtrMetadataResponse()
			resp.Version = h.Version
			h.CorrelationID += 7
			return respond(h, resp)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := Dial(t.Context(), peer(t, withVersions(func(h RequestHeader, _ []byte) []byte { return answer(h) })), "peer", DialOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := c.Request(t.Context(), kmsg.NewPtrMetadataRequest()); err == nil {
				t.Fatal("no error")
			}
			<-c.Done()
		})
	}
}

// Close ends waiting requests with ErrConnClosed and leaves no goroutine.
func TestConnClose(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{})
	c, err := Dial(t.Context(), peer(t, withVersions(func(RequestHeader, []byte) []byte { close(arrived); return nil })), "peer", DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	go func() { <-arrived; c.Close() }()
	if _, err := c.Request(t.Context(), kmsg.NewPtrMetadataRequest()); !errors.Is(err, ErrConnClosed) {
		t.Fatalf("got %v", err)
	}
	c.Close()
	if _, err := c.Request(t.Context(), kmsg.NewPtrMetadataRequest()); !errors.Is(err, ErrConnClosed) {
		t.Fatalf("got %v", err)
	}
}

// A peer that takes no more bytes holds a request no longer than its context, and the connection, on which a
// request was cut short, has ended.
func TestConnGivesUpAPeerThatTakesNothing(t *testing.T) {
	t.Parallel()
	gate := make(chan struct{})
	heartbeat := kmsg.NewApiVersionsResponseApiKey()
	heartbeat.ApiKey = int16(kmsg.Heartbeat)
	dial := peer(t, func(h RequestHeader, _ []byte) []byte {
		if h.Key == KeyApiVersions {
			return respond(h, apiVersions(h.Version, 0, heartbeat))
		}
		<-gate // while it reads nothing, a pipe takes nothing
		return nil
	})
	c, err := Dial(t.Context(), dial, "peer:1", DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	defer close(gate)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	for tries := 0; ; tries++ { // the first is read, and has its peer stop reading; one that comes too late is not sent
		failed := make(chan error, 1)
		go func() {
			_, err := c.Request(ctx, kmsg.NewPtrHeartbeatRequest())
			failed <- err
		}()
		select {
		case err := <-failed:
			if err == nil {
				t.Error("a request was answered")
			}
		case <-time.After(5 * time.Second):
			t.Fatal("a request outlived its context")
		}
		select {
		case <-c.Done():
			return
		default:
		}
		if tries == 100 {
			t.Fatal("the connection lives on")
		}
		ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
	}
}
