package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"testing"
	"testing/iotest"

	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"
)

// A header that claims 2 GiB, a negative size, or less than a request header is refused by its four
// bytes alone; the limit itself passes.
func TestFrameSizeIsRefusedBeforeAnythingIsMade(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		size int64
		ok   bool
	}{{0x7fffffff, false}, {-1, false}, {-1 << 31, false}, {0, false}, {7, false}, {8, true}, {DefaultMaxFrame, true}, {DefaultMaxFrame + 1, false}} {
		head := binary.BigEndian.AppendUint32(nil, uint32(c.size))
		n, err := ParseFrameSize(head, DefaultMaxFrame)
		var refused *FrameSizeError
		if c.ok && (err != nil || int64(n) != c.size) || !c.ok && !errors.As(err, &refused) {
			t.Errorf("size %d: %d, %v", c.size, n, err)
		}
	}
}

// A frame that claims 100 MB and then ends costs what came, not what it claims.
func TestReadBodyGrowsWithWhatArrives(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := ReadBody(bytes.NewReader([]byte("four")), 100<<20)
	runtime.ReadMemStats(&after)
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatalf("got %v", err)
	}
	if made := after.TotalAlloc - before.TotalAlloc; made > 1<<20 {
		t.Fatalf("%d bytes were made for 4 that came", made)
	}
}

// A body of any length comes back whole however it is cut up on the way.
func TestReadBodyWhole(t *testing.T) {
	t.Parallel()
	for _, n := range []int{8, 1 << 10, firstRead - 1, firstRead, firstRead + 1, 3 << 20} {
		want := make([]byte, n)
		for i := range want {
			want[i] = byte(i >> 4)
		}
		for _, r := range []io.Reader{bytes.NewReader(want), iotest.HalfReader(bytes.NewReader(want)), iotest.DataErrReader(bytes.NewReader(want))} {
			b, err := ReadBody(r, n)
			if err != nil || !bytes.Equal(b.B, want) {
				t.Fatalf("%d bytes: %v", n, err)
			}
			b.Release()
		}
	}
}

// Every request header that kmsg writes comes back; flexible ones with tagged fields too.
func TestRequestHeaderComesBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		api := rapid.SampledFrom(apis).Draw(t, "api")
		version := rapid.Int16Range(api.Min, api.Max).Draw(t, "version")
		corr := rapid.Int32().Draw(t, "correlation id")
		var client *string
		if rapid.Bool().Draw(t, "client") {
			client = kmsg.StringPtr(rapid.StringN(0, 10, 300).Draw(t, "client id"))
		}
		frame := AppendRequestHeader(nil, api.Key, version, corr, client, false)
		if api.Flexible(version) {
			frame = append(frame, 2, 5, 1, 'x', 200, 1, 0)
		}
		frame = append(frame, "body"...)
		h, rest, err := DecodeRequestHeader(frame, new(Names))
		if err != nil || string(rest) != "body" {
			t.Fatalf("%s %d: rest %q, %v", api.Name, version, rest, err)
		}
		if h.Key != api.Key || h.Version != version || h.CorrelationID != corr || client != nil && h.ClientID != *client {
			t.Fatalf("got %+v", h)
		}
		for n := range len(frame) - 4 {
			if _, _, err := DecodeRequestHeader(frame[:n], nil); !errors.Is(err, ErrMalformed) {
				t.Fatalf("%d of %d bytes: %v", n, len(frame), err)
			}
		}
	})
}

// Properties: no bytes make the header decoder panic; the rest is a suffix of the frame; the client
// id is never longer than the frame.
func FuzzDecodeRequestHeader(f *testing.F) {
	f.Add(AppendRequestHeader(nil, 18, 3, 1, kmsg.StringPtr("client"), true))
	f.Add([]byte{0, 18, 0, 99, 0, 0, 0, 1, 0xff, 0xff, 1, 1, 0x7f})
	f.Fuzz(func(t *testing.T, frame []byte) {
		h, rest, err := DecodeRequestHeader(frame, new(Names))
		if err == nil && (!bytes.HasSuffix(frame, rest) || len(h.ClientID) > len(frame)) {
			t.Fatalf("%+v from %x", h, frame)
		}
	})
}

// Names stay few however many a peer sends, and are right after the memory is started over.
func TestNamesAreBounded(t *testing.T) {
	t.Parallel()
	var n Names
	for i := range 3 * maxNames {
		b := binary.BigEndian.AppendUint32(nil, uint32(i))
		if got := n.intern(b); got != string(b) {
			t.Fatalf("%q became %q", b, got)
		}
		if len(n.m) > maxNames {
			t.Fatalf("%d names are kept", len(n.m))
		}
	}
}

// A buffer that grew by append to a size of its own does not come back as one of the next larger class, which
// would lack the room that was asked for.
func TestPoolTakesOnlyItsOwnSizes(t *testing.T) {
	t.Parallel()
	for range 100 {
		(&Buffer{B: make([]byte, 0, 3<<10)}).Release()
		if b := NewBuffer(4 << 10); cap(b.B) < 4<<10 {
			t.Fatalf("room for %d bytes, not for %d", cap(b.B), 4<<10)
		}
	}
}
