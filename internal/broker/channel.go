package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/wire"
)

// Controller is an address at which a controller may answer.
type Controller struct {
	ID   int32 // -1 when only the address is known (bootstrap servers)
	Addr string
}

// channelRetry is how long the channel waits, unless another leader becomes known,
// before it tries the active controller again.
const channelRetry = 20 * time.Millisecond

// ErrNoController is returned when no active controller took a request in time.
var ErrNoController = errors.New("no active controller answered in time")

// connectTimeout bounds one attempt to connect, so that an address where nothing answers is given up for
// another. Kafka's default of socket.connection.setup.timeout.ms.
const connectTimeout = 10 * time.Second

// channel carries requests to the active controller: it finds it, keeps one
// connection to it, and sends a request again after a disconnect or a
// NOT_CONTROLLER. Safe for concurrent use.
type channel struct {
	dial   wire.DialFunc
	target func() (addr string, changed <-chan struct{}) // the leader, as the observer knows it
	logger *slog.Logger

	life    context.Context // ends when the channel is closed
	end     context.CancelFunc
	dialing chan struct{} // holds a token while somebody connects; the others wait for that connection

	mu   sync.Mutex // guards the fields below; never held over IO
	conn *wire.Conn
	addr string
}

func newChannel(dial wire.DialFunc, target func() (string, <-chan struct{}), logger *slog.Logger) *channel {
	c := &channel{dial: dial, target: target, logger: logger, dialing: make(chan struct{}, 1)}
	c.life, c.end = context.WithCancel(context.Background())
	return c
}

// Do sends req until a controller that is active has answered it, ctx ends, or the channel is closed.
// The answer may carry any error code but NOT_CONTROLLER.
func (c *channel) Do(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
	var last error
	for {
		_, changed := c.target()
		resp, err := c.try(ctx, req)
		if err == nil {
			return resp, nil
		}
		last = err
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrNoController, last)
		case <-c.life.Done():
			return nil, fmt.Errorf("%w: %w", ErrNoController, net.ErrClosed)
		case <-changed:
		case <-time.After(channelRetry):
		}
	}
}

var errNotController = errors.New("that controller is not active")

func (c *channel) try(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
	conn, err := c.connection(ctx)
	if err != nil {
		return nil, err
	}
	resp, err := conn.Request(ctx, req)
	if err != nil {
		// A client that has gone away takes nothing from the others: their requests are under way on the same
		// connection, and would be sent, and done, twice. One that ran out of time shows that it is dead.
		if !errors.Is(err, context.Canceled) {
			c.drop(conn)
		}
		return nil, err
	}
	if topLevelError(resp) == kerr.NotController.Code {
		c.drop(conn)
		return nil, errNotController
	}
	return resp, nil
}

// connection returns the connection to the active controller, and makes it when there is none.
func (c *channel) connection(ctx context.Context) (*wire.Conn, error) {
	select {
	case c.dialing <- struct{}{}:
		defer func() { <-c.dialing }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	addr, _ := c.target()
	if addr == "" {
		return nil, errors.New("the active controller is not known yet")
	}
	if conn := c.present(addr); conn != nil {
		return conn, nil
	}
	connecting, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	defer context.AfterFunc(c.life, cancel)()
	conn, err := wire.Dial(connecting, c.dial, addr, wire.DialOptions{ClientID: "broker"})
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.life.Err() != nil {
		conn.Close()
		return nil, net.ErrClosed
	}
	c.conn, c.addr = conn, addr
	return conn, nil
}

// present is the connection to addr, nil if there is none; one to another address is closed.
func (c *channel) present(addr string) *wire.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil && c.addr != addr {
		c.conn.Close()
		c.conn = nil
	}
	return c.conn
}

func (c *channel) drop(conn *wire.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == conn {
		c.conn = nil
	}
	conn.Close()
}

func (c *channel) close() {
	c.end()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}

// topLevelError reads the error of the answers that a controller gives a broker;
// 0 for answers that have none at the top.
func topLevelError(resp kmsg.Response) int16 {
	switch resp := resp.(type) {
	case *kmsg.BrokerRegistrationResponse:
		return resp.ErrorCode
	case *kmsg.BrokerHeartbeatResponse:
		return resp.ErrorCode
	case *kmsg.AllocateProducerIDsResponse:
		return resp.ErrorCode
	case *kmsg.AlterPartitionResponse:
		return resp.ErrorCode
	case *kmsg.AssignReplicasToDirsResponse:
		return resp.ErrorCode
	case *kmsg.EnvelopeResponse:
		return resp.ErrorCode
	}
	return 0
}

// anyOf picks a bootstrap address at random, so that a fleet does not ask one
// controller only.
func anyOf(controllers []Controller) string {
	return controllers[rand.IntN(len(controllers))].Addr
}
