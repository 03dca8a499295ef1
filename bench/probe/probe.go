// Package probe measures a broker from outside: when it first acknowledges a write, and what its process costs.
// It speaks the protocol over one plain connection, so that no client's backoff hides in the figures.
package probe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/record"
)

// Conn is one connection on which requests are sent and answered one at a time. It is not safe for concurrent use.
type Conn struct {
	conn        net.Conn
	formatter   *kmsg.RequestFormatter
	correlation int32
	timeout     time.Duration
}

// Dial connects; timeout bounds the dialling and each request.
func Dial(addr string, timeout time.Duration) (*Conn, error) {
	conn, err := net.DialTimeout("tcp", addr, timeout)
	if err != nil {
		return nil, err
	}
	return &Conn{conn: conn, formatter: kmsg.NewRequestFormatter(kmsg.FormatterClientID("probe")), timeout: timeout}, nil
}

// Close ends the connection.
func (c *Conn) Close() { c.conn.Close() }

// Request sends req in the version it is set to and returns its answer. After an error the connection is of no
// further use.
func (c *Conn) Request(req kmsg.Request) (kmsg.Response, error) {
	c.correlation++
	if err := c.conn.SetDeadline(time.Now().Add(c.timeout)); err != nil {
		return nil, err
	}
	if _, err := c.conn.Write(c.formatter.AppendRequest(nil, req, c.correlation)); err != nil {
		return nil, err
	}
	var size [4]byte
	if _, err := io.ReadFull(c.conn, size[:]); err != nil {
		return nil, err
	}
	frame := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(c.conn, frame); err != nil {
		return nil, err
	}
	if len(frame) < 4 || int32(binary.BigEndian.Uint32(frame)) != c.correlation {
		return nil, errors.New("the answer is to another request")
	}
	frame = frame[4:]
	if req.IsFlexible() && req.Key() != kmsg.ApiVersions.Int16() {
		if len(frame) == 0 || frame[0] != 0 {
			return nil, errors.New("unexpected tags in the header of an answer")
		}
		frame = frame[1:]
	}
	resp := req.ResponseKind()
	return resp, resp.ReadFrom(frame)
}

// Produce writes one record, acks=all, and returns its offset.
func (c *Conn) Produce(topic string, partition int32, key, value []byte) (int64, error) {
	b := record.NewBuilder(record.BuilderOptions{})
	if err := b.Append(time.Now().UnixMilli(), key, value, nil); err != nil {
		return -1, err
	}
	p := kmsg.NewProduceRequestTopicPartition()
	p.Partition, p.Records = partition, b.Bytes()
	t := kmsg.NewProduceRequestTopic()
	t.Topic, t.Partitions = topic, append(t.Partitions, p)
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks, req.TimeoutMillis, req.Topics = 11, -1, 5000, append(req.Topics, t)
	resp, err := c.Request(req)
	if err != nil {
		return -1, err
	}
	for _, t := range resp.(*kmsg.ProduceResponse).Topics {
		for _, p := range t.Partitions {
			return p.BaseOffset, kerr.ErrorForCode(p.ErrorCode)
		}
	}
	return -1, errors.New("an answer without the partition")
}

// CreateByMetadata asks for a topic's metadata and with that for its creation.
func (c *Conn) CreateByMetadata(topic string) error {
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = &topic
	req := kmsg.NewPtrMetadataRequest()
	req.Version, req.AllowAutoTopicCreation, req.Topics = 9, true, append(req.Topics, t)
	_, err := c.Request(req)
	return err
}

// Retry is the pause between two attempts of FirstAck.
const Retry = 5 * time.Millisecond

// FirstAck writes one record to partition 0 of topic, which is created if it does not exist, trying every 5 ms
// until it is acknowledged. It returns the moment of the acknowledgement and the record's offset. dead, which may
// be nil, ends the attempts when it is closed.
func FirstAck(ctx context.Context, addr, topic string, key, value []byte, dead <-chan struct{}) (time.Time, int64, error) {
	var conn *Conn
	defer func() {
		if conn != nil {
			conn.Close()
		}
	}()
	attempt := func() (int64, error) {
		if conn == nil {
			c, err := Dial(addr, 10*time.Second)
			if err != nil {
				return -1, err
			}
			conn = c
		}
		offset, err := conn.Produce(topic, 0, key, value)
		if errors.Is(err, kerr.UnknownTopicOrPartition) {
			err = errors.Join(err, conn.CreateByMetadata(topic))
		}
		var protocol *kerr.Error
		if err != nil && !errors.As(err, &protocol) {
			conn.Close()
			conn = nil
		}
		return offset, err
	}
	for {
		offset, err := attempt()
		if err == nil {
			return time.Now(), offset, nil
		}
		select {
		case <-ctx.Done():
			return time.Time{}, -1, fmt.Errorf("no acknowledgement: %w; last: %w", ctx.Err(), err)
		case <-dead:
			return time.Time{}, -1, errors.New("the broker's process ended before it acknowledged")
		case <-time.After(Retry):
		}
	}
}
