package broker

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/wire"
)

// peers are connections to other brokers, one each, made when they are first used. Requests to one broker are answered
// in their order. Safe for concurrent use.
type peers struct {
	broker   *Broker
	listener string // by which brokers reach each other
	clientID string

	mu     sync.Mutex
	byID   map[int32]*peer
	closed bool
}

type peer struct {
	dialing chan struct{} // holds a token while somebody connects
	conn    *wire.Conn    // guarded by peers.mu
	addr    string
}

func newPeers(b *Broker, listener, clientID string) *peers {
	return &peers{broker: b, listener: listener, clientID: clientID, byID: map[int32]*peer{}}
}

// do sends a request to a broker, and waits for its answer until ctx ends. After an error the connection is made anew.
// A broker that does not serve at least version is not asked: *wire.UnsupportedVersionError.
func (p *peers) do(ctx context.Context, id int32, req kmsg.Request, version int16) (kmsg.Response, error) {
	conn, err := p.connection(ctx, id)
	if err != nil {
		return nil, err
	}
	if from, to, ok := conn.PeerVersions(req.Key()); ok && to < version {
		return nil, &wire.UnsupportedVersionError{Key: req.Key(), PeerMin: from, PeerMax: to, OurMin: version, OurMax: req.MaxVersion(), Want: -1}
	}
	resp, err := conn.Request(ctx, req)
	if err != nil {
		p.drop(id, conn)
		return nil, err
	}
	return resp, nil
}

func (p *peers) connection(ctx context.Context, id int32) (*wire.Conn, error) {
	registration, ok := p.broker.Image().Broker(id)
	if !ok || registration.Fenced {
		return nil, errLeaderUnknown
	}
	endpoint, ok := registration.Endpoint(p.listener)
	if !ok {
		return nil, errLeaderUnknown
	}
	addr := net.JoinHostPort(endpoint.Host, strconv.Itoa(int(endpoint.Port)))
	p.mu.Lock()
	one := p.byID[id]
	if one == nil {
		one = &peer{dialing: make(chan struct{}, 1)}
		p.byID[id] = one
	}
	p.mu.Unlock()
	select {
	case one.dialing <- struct{}{}:
		defer func() { <-one.dialing }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if conn := p.present(one, addr); conn != nil {
		return conn, nil
	}
	limited, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := wire.Dial(limited, p.broker.opts.Dial, addr, wire.DialOptions{ClientID: fmt.Sprintf("broker-%d-%s", p.broker.opts.NodeID, p.clientID)})
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		conn.Close()
		return nil, net.ErrClosed
	}
	one.conn, one.addr = conn, addr
	return conn, nil
}

// present is the connection that there is, nil if it has ended, or leads somewhere else than the broker is now.
func (p *peers) present(one *peer, addr string) *wire.Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	if one.conn == nil {
		return nil
	}
	select {
	case <-one.conn.Done():
		one.conn = nil
	default:
		if one.addr != addr {
			one.conn.Close()
			one.conn = nil
		}
	}
	return one.conn
}

func (p *peers) drop(id int32, conn *wire.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if one := p.byID[id]; one != nil && one.conn == conn {
		one.conn = nil
	}
	conn.Close()
}

func (p *peers) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, one := range p.byID {
		if one.conn != nil {
			one.conn.Close()
		}
	}
}
