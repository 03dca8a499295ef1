//go:build interop

package differential

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/wire"
)

// patience is how long an answer may take that both servers ought to give.
const patience = 4 * time.Second

// shortPatience is for what Kafka leaves without an answer.
const shortPatience = 600 * time.Millisecond

// patience is how long to wait for the answer to a request that is whole.
func (s *side) patience(req kmsg.Request) time.Duration {
	if s.name != "kafka" {
		return patience
	}
	switch req := req.(type) {
	case *kmsg.ProduceRequest:
		for _, t := range req.Topics {
			if contains(t.Partitions, func(p kmsg.ProduceRequestTopicPartition) bool { return p.Records == nil }) {
				return shortPatience
			}
		}
	case *kmsg.AlterConfigsRequest:
		if namesTwice(req) {
			return shortPatience
		}
	}
	return patience
}

// fate is what became of a request.
type fate string

const (
	answered   fate = "answered"
	closed     fate = "connection closed"
	silent     fate = "silent"
	unreadable fate = "answered with bytes that its version has not"
)

// outcome is what one server did with one request.
type outcome struct {
	fate  fate
	resp  kmsg.Response
	frame []byte
	why   error
}

// side is one of the two servers as one lane sees it.
type side struct {
	name       string
	addr       string
	lane       string
	ids        *ids
	conns      map[string]*conn
	step       int   // of the lane
	partitions int   // of the topic that was settled last
	tape       *tape // nil unless this is Kafka's side and it is recorded or replayed
}

func (s *side) replayed() bool { return s.tape != nil && s.tape.replayed }

type conn struct {
	net.Conn
	next int32
}

// connection is the lane's connection of that name, opened when there is none.
func (s *side) connection(name string) (*conn, error) {
	if c := s.conns[name]; c != nil {
		return c, nil
	}
	c, err := net.DialTimeout("tcp", s.addr, patience)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.name, err)
	}
	s.conns[name] = &conn{Conn: c, next: 100}
	return s.conns[name], nil
}

func (s *side) hangUp(name string) {
	if c := s.conns[name]; c != nil {
		c.Close()
		delete(s.conns, name)
	}
}

// frame lays a request out. Its symbols must be resolved.
func frame(req kmsg.Request, version int16, correlation int32, client *string) []byte {
	req.SetVersion(version)
	return wire.AppendFrame(nil, func(b []byte) []byte {
		b = wire.AppendRequestHeader(b, req.Key(), version, correlation, client, req.IsFlexible())
		return req.AppendTo(b)
	})
}

// readFrame reads one answer whole.
func (c *conn) readFrame(wait time.Duration) ([]byte, error) {
	_ = c.SetReadDeadline(time.Now().Add(wait))
	var size [4]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > 1<<28 {
		return nil, fmt.Errorf("an answer of %d bytes", n)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(c, b)
	return b, err
}

// judge says what an answer, or the lack of it, amounts to.
func judge(b []byte, err error, key, version int16, correlation int32) outcome {
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return outcome{fate: silent, why: err}
	}
	if err != nil {
		return outcome{fate: closed, why: err}
	}
	if len(b) >= 4 && int32(binary.BigEndian.Uint32(b)) != correlation {
		return outcome{fate: unreadable, frame: b, why: fmt.Errorf("answer to %d, not to %d", binary.BigEndian.Uint32(b), correlation)}
	}
	return decode(b, key, version)
}

func decode(b []byte, key, version int16) (o outcome) {
	defer func() { o.frame = b }()
	req := kmsg.RequestForKey(key)
	if req == nil {
		return outcome{fate: unreadable, why: fmt.Errorf("an answer to key %d: %x", key, b)}
	}
	req.SetVersion(version)
	resp := req.ResponseKind()
	flexible := req.IsFlexible()
	if key == wire.KeyApiVersions && (version < 0 || version > 5) {
		// An unknown version is answered in the layout of the first.
		version, flexible = 0, false
	}
	_, body, err := wire.DecodeResponseHeader(b, key, flexible)
	if err != nil {
		return outcome{fate: unreadable, why: err}
	}
	resp.SetVersion(version)
	if err := resp.ReadFrom(body); err != nil {
		return outcome{fate: unreadable, why: fmt.Errorf("%w in %x", err, body)}
	}
	if again := resp.AppendTo(nil); !bytes.Equal(again, body) {
		return outcome{fate: unreadable, resp: resp, why: fmt.Errorf("laid out again %x is %x", body, again)}
	}
	return outcome{fate: answered, resp: resp}
}

// exchange sends a request and waits for its answer.
func (s *side) exchange(connection string, req kmsg.Request, version int16, client *string, wait time.Duration) (o outcome) {
	if s.tape != nil {
		name := label(s.lane, connection, frame(req, version, 0, client))
		if s.replayed() {
			return s.tape.told(name, s.step, req.Key(), version)
		}
		defer func() { s.tape.tell(name, s.step, o) }()
	}
	c, err := s.connection(connection)
	if err != nil {
		return outcome{fate: closed, why: err}
	}
	c.next++
	id := c.next
	_ = c.SetWriteDeadline(time.Now().Add(patience))
	if _, err := c.Write(frame(req, version, id, client)); err != nil {
		return outcome{fate: closed, why: err}
	}
	return s.await(connection, req.Key(), version, id, wait)
}

// await reads the answer to a request that was sent before.
func (s *side) await(connection string, key, version int16, correlation int32, wait time.Duration) outcome {
	c := s.conns[connection]
	if c == nil {
		return outcome{fate: closed, why: net.ErrClosed}
	}
	b, err := c.readFrame(wait)
	return judge(b, err, key, version, correlation)
}

// probeID is the correlation id of the probe that follows a frame that may be left without an answer.
const probeID = int32(0x7072_6f62)

func probeFrame() []byte { return frame(kmsg.NewPtrApiVersionsRequest(), 0, probeID, nil) }

// raw sends bytes, and a probe behind them: an answer to the probe alone means that the bytes were let pass in silence.
func (s *side) raw(connection string, b []byte, key, version int16, correlation int32) (o outcome) {
	if s.tape != nil {
		name := label(s.lane, "raw", b)
		if s.replayed() {
			return s.tape.told(name, s.step, key, version)
		}
		defer func() { s.tape.tell(name, s.step, o) }()
	}
	c, err := s.connection(connection)
	if err != nil {
		return outcome{fate: closed, why: err}
	}
	_ = c.SetWriteDeadline(time.Now().Add(patience))
	if _, err := c.Write(append(b[:len(b):len(b)], probeFrame()...)); err != nil {
		return outcome{fate: closed, why: err}
	}
	wait := patience
	if key == wire.KeyProduce && s.name == "kafka" {
		wait = shortPatience // damaged, it can look like one with records of null
	}
	first, err := c.readFrame(wait)
	if err == nil && len(first) >= 4 && int32(binary.BigEndian.Uint32(first)) == probeID {
		return outcome{fate: silent}
	}
	got := judge(first, err, key, version, correlation)
	if got.fate == answered || got.fate == unreadable {
		if second, err := c.readFrame(patience); err != nil || len(second) < 4 || int32(binary.BigEndian.Uint32(second)) != probeID {
			return outcome{fate: fate("answered, and then the connection did not work"), resp: got.resp, frame: got.frame, why: err}
		}
	}
	return got
}

// stub sends bytes that are not a whole frame, waits a moment, and ends its half of the connection.
func (s *side) stub(connection string, b []byte, key, version int16, correlation int32) (o outcome) {
	if s.tape != nil {
		name := label(s.lane, "stub", b)
		if s.replayed() {
			return s.tape.told(name, s.step, key, version)
		}
		defer func() { s.tape.tell(name, s.step, o) }()
	}
	c, err := s.connection(connection)
	if err != nil {
		return outcome{fate: closed, why: err}
	}
	defer s.hangUp(connection)
	if _, err := c.Write(b); err != nil {
		return outcome{fate: closed, why: err}
	}
	first, err := c.readFrame(150 * time.Millisecond)
	got := judge(first, err, key, version, correlation)
	if got.fate != silent {
		return got
	}
	_ = c.Conn.(*net.TCPConn).CloseWrite()
	first, err = c.readFrame(patience)
	if got := judge(first, err, key, version, correlation); got.fate != closed {
		return outcome{fate: "silent, and then " + got.fate, resp: got.resp, frame: got.frame, why: got.why}
	}
	return got
}
