package wire

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kbin"
)

// ErrMalformed is the base of every error about bytes that are not a well-formed message. The
// sender of such bytes cannot be answered: where the next message starts is still known, but what
// this one meant is not, so the connection is closed.
var ErrMalformed = errors.New("malformed message")

func malformed(what string) error { return fmt.Errorf("%w: %s", ErrMalformed, what) }

// RequestHeader is what stands before every request. ClientID is "" both when the client sent null
// and when it sent an empty string; nothing in the protocol tells the two apart.
type RequestHeader struct {
	Key           int16
	Version       int16
	CorrelationID int32
	ClientID      string
}

// PeekRequest reads the API key and version from the first four bytes of a request frame's body.
func PeekRequest(b []byte) (key, version int16) {
	return int16(binary.BigEndian.Uint16(b)), int16(binary.BigEndian.Uint16(b[2:]))
}

// DecodeRequestHeader reads a request header, version 1 or 2 as the API and its version ask for,
// and returns the rest of the frame. Of a key that no table knows, only Key, Version and
// CorrelationID are set, and rest is nil. names, when not nil, saves an allocation per request.
func DecodeRequestHeader(frame []byte, names *Names) (h RequestHeader, rest []byte, err error) {
	r := kbin.Reader{Src: frame}
	h.Key = r.Int16()
	h.Version = r.Int16()
	h.CorrelationID = r.Int32()
	if !r.Ok() {
		return h, nil, malformed("request header is cut short")
	}
	api, known := Lookup(h.Key)
	if !known {
		return h, nil, nil
	}
	if n := r.Int16(); n >= 0 { // any negative length is null, as in Kafka
		h.ClientID = names.intern(r.Span(int(n)))
	}
	if api.Flexible(h.Version) {
		skipTags(&r)
	}
	if !r.Ok() {
		return h, nil, malformed("request header is cut short")
	}
	return h, r.Src, nil
}

// AppendRequestHeader appends the header of a request; clientID nil is sent as null.
func AppendRequestHeader(dst []byte, key, version int16, correlationID int32, clientID *string, flexible bool) []byte {
	dst = kbin.AppendInt16(dst, key)
	dst = kbin.AppendInt16(dst, version)
	dst = kbin.AppendInt32(dst, correlationID)
	dst = kbin.AppendNullableString(dst, clientID)
	if flexible {
		dst = append(dst, 0)
	}
	return dst
}

// AppendResponseHeader appends the header of a response, version 1 for flexible versions and 0 for
// the others. ApiVersions always has version 0: a client reads that answer before it can know which
// versions the server speaks.
func AppendResponseHeader(dst []byte, key int16, correlationID int32, flexible bool) []byte {
	dst = kbin.AppendInt32(dst, correlationID)
	if flexible && key != KeyApiVersions {
		dst = append(dst, 0)
	}
	return dst
}

// DecodeResponseHeader reads the header of a response to a request that was sent flexible or not.
func DecodeResponseHeader(frame []byte, key int16, flexible bool) (correlationID int32, rest []byte, err error) {
	r := kbin.Reader{Src: frame}
	correlationID = r.Int32()
	if flexible && key != KeyApiVersions {
		skipTags(&r)
	}
	if !r.Ok() {
		return 0, nil, malformed("response header is cut short")
	}
	return correlationID, r.Src, nil
}

// skipTags passes over tagged fields. The loop is bounded by the bytes left: each field takes two.
func skipTags(r *kbin.Reader) {
	for n := r.Uvarint(); n > 0 && r.Ok(); n-- {
		r.Uvarint()
		r.Span(int(r.Uvarint()))
	}
}

// Names remembers strings that come again and again on one connection (client id, topics), so that
// reading them allocates once. It is bounded; one goroutine may use it. A nil *Names remembers
// nothing.
type Names struct {
	m map[string]string
}

const maxNames = 1024

func (n *Names) intern(b []byte) string {
	if n == nil || len(b) == 0 || len(b) > 255 {
		return string(b)
	}
	if s, ok := n.m[string(b)]; ok {
		return s
	}
	if len(n.m) >= maxNames {
		// Starting over keeps the common names after one more round, and needs no order of use.
		clear(n.m)
	}
	if n.m == nil {
		n.m = make(map[string]string)
	}
	s := string(b)
	n.m[s] = s
	return s
}
