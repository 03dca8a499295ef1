package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// exchange sends one request on a connection of its own and returns the answer's bytes after the length:
// the correlation id (always 1) and all that follows.
func exchange(addr string, req kmsg.Request, version int16) ([]byte, error) {
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return nil, err
	}
	req.SetVersion(version)
	f := kmsg.NewRequestFormatter(kmsg.FormatterClientID("recorder"))
	if _, err := c.Write(f.AppendRequest(nil, req, 1)); err != nil {
		return nil, err
	}
	var size [4]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return nil, fmt.Errorf("%s version %d: %w", kmsg.NameForKey(req.Key()), version, err)
	}
	body := make([]byte, binary.BigEndian.Uint32(size[:]))
	_, err = io.ReadFull(c, body)
	return body, err
}

// decode reads an answer of exchange.
func decode(req kmsg.Request, version int16, answer []byte) (kmsg.Response, error) {
	req.SetVersion(version)
	resp := req.ResponseKind()
	resp.SetVersion(version)
	header := 4
	// An ApiVersions answer has no tags in its header, at any version.
	if req.IsFlexible() && req.Key() != 18 {
		if answer[4] != 0 {
			return nil, fmt.Errorf("tags in a response header: %x", answer[:16])
		}
		header = 5
	}
	return resp, resp.ReadFrom(answer[header:])
}
