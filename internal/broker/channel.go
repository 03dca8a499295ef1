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

// channel carries requests to the active controller: it finds it, keeps one
// connection to it, and sends a request again after a disconnect or a
// NOT_CONTROLLER. Safe for concurrent use.
type channel struct {
	dial   wire.DialFunc
	target func() (addr string, changed <-chan struct{}) // the leader, as the observer knows it
	logger *slog.Logger

	mu     sync.Mutex
	conn   *wire.Conn
	addr   string
	closed bool
}

// Do sends req until a controller that is active has answered it, or ctx ends.
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

func (c *channel) connection(ctx context.Context) (*wire.Conn, error) {
	addr, _ := c.target()
	if addr == "" {
		return nil, errors.New("the active controller is not known yet")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return nil, net.ErrClosed
	case c.conn != nil && c.addr == addr:
		return c.conn, nil
	case c.conn != nil:
		c.conn.Close()
		c.conn = nil
	}
	conn, err := wire.Dial(ctx, c.dial, addr, wire.DialOptions{ClientID: "broker"})
	if err != nil {
		return nil, err
	}
	c.conn, c.addr = conn, addr
	return conn, nil
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
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
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
