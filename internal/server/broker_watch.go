package server

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/stelelog/stele/internal/controller"
)

// listenerPatience is how long a broker's listener may take to answer or refuse: one
// that does neither is no evidence that the broker is dead.
const listenerPatience = time.Second

// brokerWatch knows over which connection each broker was last heard. It is used by
// any goroutine.
type brokerWatch struct {
	mu      sync.Mutex
	brokers map[int32]heardBroker
	closed  bool

	running sync.WaitGroup
	ctx     context.Context
	cancel  context.CancelFunc
}

type heardBroker struct {
	conn  uint64
	epoch int64 // broker epoch
}

func newBrokerWatch() *brokerWatch {
	ctx, cancel := context.WithCancel(context.Background())
	return &brokerWatch{brokers: map[int32]heardBroker{}, ctx: ctx, cancel: cancel}
}

// heard notes that a broker has registered or sent a heartbeat.
func (w *brokerWatch) heard(conn uint64, broker int32, epoch int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.brokers[broker] = heardBroker{conn, epoch}
}

// hears says whether that incarnation was heard.
func (w *brokerWatch) hears(broker int32, epoch int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	h, ok := w.brokers[broker]
	return ok && h.epoch == epoch
}

// forget is for a controller that is not active: what it heard is over.
func (w *brokerWatch) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.brokers)
}

// lost are the brokers that were last heard over a connection. They are forgotten
// until they are heard again.
func (w *brokerWatch) lost(conn uint64) map[int32]int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	lost := map[int32]int64{}
	for id, heard := range w.brokers {
		if heard.conn == conn {
			lost[id] = heard.epoch
			delete(w.brokers, id)
		}
	}
	return lost
}

// start runs f, unless the watch has been closed.
func (w *brokerWatch) start(f func(ctx context.Context)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.running.Go(func() { f(w.ctx) })
	}
}

func (w *brokerWatch) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.cancel()
	w.running.Wait()
}

// followActivity looks after the brokers that nobody has heard of whenever this node becomes the active controller: the
// connections that stood with the one before say nothing here, and a broker may have died with it.
func (a *ControllerAPI) followActivity(ctx context.Context) {
	was := false
	for {
		status := a.host.Status()
		if status.Active && !was {
			for id, registration := range a.host.Committed().Brokers().All() {
				if !registration.Fenced && !a.watch.hears(id, registration.Epoch) {
					a.watch.start(func(ctx context.Context) { a.examine(ctx, id, registration.Epoch) })
				}
			}
		}
		if was = status.Active; !was {
			a.watch.forget()
		}
		select {
		case <-ctx.Done():
			return
		case <-a.host.Done():
			return
		case <-status.Changed():
		}
	}
}

// brokerMayBeDead looks after the brokers that were last heard over a connection
// which their side has closed.
func (a *ControllerAPI) brokerMayBeDead(conn uint64) {
	for id, epoch := range a.watch.lost(conn) {
		a.watch.start(func(ctx context.Context) { a.examine(ctx, id, epoch) })
	}
}

// examine collects the evidence on which the controller fences a broker before its
// session runs out: its connection was closed by its side, and its listener refuses
// a new one when the delay is over. epoch is the incarnation that was heard: of a
// later one this says nothing.
func (a *ControllerAPI) examine(ctx context.Context, id int32, epoch int64) {
	tell := func(what func(c *controller.Controller, now time.Time)) error {
		_, err := a.host.Do(ctx, func(c *controller.Controller, now time.Time, _ int64) (controller.Result, error) {
			if b, ok := c.Image().Broker(id); ok && b.Epoch == epoch {
				what(c, now)
			}
			return controller.Result{}, nil
		})
		return err
	}
	if err := tell(func(c *controller.Controller, now time.Time) { c.BrokerConnectionLost(now, id) }); err != nil {
		return // another node is the active controller, and has its own evidence
	}
	delay := time.NewTimer(controller.LostConnectionDelay)
	defer delay.Stop()
	select {
	case <-delay.C:
	case <-ctx.Done():
		return
	}
	registration, ok := a.host.Committed().Broker(id)
	if !ok || registration.Epoch != epoch || registration.Fenced || len(registration.Endpoints) == 0 {
		return
	}
	for _, endpoint := range registration.Endpoints {
		addr := net.JoinHostPort(endpoint.Host, strconv.Itoa(int(endpoint.Port)))
		if !a.refuses(ctx, addr) {
			return
		}
	}
	a.node.Logger.Info("a broker closed its connection and refuses new ones", "broker", id, "broker_epoch", epoch)
	_ = tell(func(c *controller.Controller, _ time.Time) { c.BrokerListenerRefused(id) }) // no longer ours to tell
}

// refuses says whether nobody listens at an address. A silent one is not known to.
func (a *ControllerAPI) refuses(ctx context.Context, addr string) bool {
	ctx, cancel := context.WithTimeout(ctx, listenerPatience)
	defer cancel()
	conn, err := a.node.Dial(ctx, "tcp", addr)
	if err == nil {
		_ = conn.Close() // it was only to see whether somebody is there
		return false
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}
