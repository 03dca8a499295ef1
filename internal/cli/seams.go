package cli

import (
	"context"
	"log/slog"
	"net"

	"github.com/stelelog/stele/internal/config"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/quorum"
	"github.com/stelelog/stele/internal/replica"
	"github.com/stelelog/stele/internal/vfs"
	"github.com/stelelog/stele/internal/wire"
)

// Seams are where a node touches the world: its disks, and the network. A nil field is this machine's. They are for the
// simulator, which runs a whole cluster in one process; time comes in by testing/synctest.
type Seams struct {
	FS     vfs.FS
	Listen func(network, address string) (net.Listener, error)
	Dial   wire.DialFunc // to controllers and to other brokers
	// Leader may stand between a follower and the broker with that id, from which it copies.
	Leader func(id int32, l replica.Leader) replica.Leader
	// Follow hears what followers make of their leaders' answers; see replica.Options.
	Follow func(replica.FollowEvent)
}

func (s Seams) complete() Seams {
	if s.FS == nil {
		s.FS = vfs.OS()
	}
	if s.Listen == nil {
		s.Listen = net.Listen
	}
	if s.Dial == nil {
		s.Dial = (&net.Dialer{}).DialContext
	}
	if s.Leader == nil {
		s.Leader = func(_ int32, l replica.Leader) replica.Leader { return l }
	}
	return s
}

// Node is what `stele serve` runs, without the process around it: a simulator has several of them, and looks inside.
type Node struct{ n *node }

// StartNode begins a node on those seams, up to where its broker registers. It must be ended by Stop or Kill.
func StartNode(ctx context.Context, c *config.Broker, logger *slog.Logger, seams Seams) (*Node, error) {
	n, err := startNodeOn(ctx, c, logger, nil, nil, seams)
	if err != nil {
		return nil, err
	}
	return &Node{n}, nil
}

// Ready waits until clients may come, then lets them through.
func (n *Node) Ready(ctx context.Context) error { return n.n.ready(ctx) }

// Wait returns the error after which the process would end, or, when ctx ends first, nil.
func (n *Node) Wait(ctx context.Context) error {
	var failed <-chan error
	if n.n.broker != nil {
		failed = n.n.broker.Failed()
	}
	select {
	case err := <-n.n.failed:
		return err
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

// Stop ends the node as a signal does: leaderships are handed over first.
func (n *Node) Stop() { n.n.stop() }

// Kill ends the node without telling anybody. What it still writes to its disks and says to others is the caller's to
// suppress, where a dead process is meant.
func (n *Node) Kill() { n.n.unwind() }

// Replicas are the node's partitions, nil where it is no broker.
func (n *Node) Replicas() *replica.Manager { return n.n.replicas }

// Quorum is the node's controller, nil where it is none.
func (n *Node) Quorum() *quorum.Host { return n.n.host }

// BrokerEpoch is that of the registration, -1 before it.
func (n *Node) BrokerEpoch() int64 {
	if n.n.broker == nil {
		return -1
	}
	return n.n.broker.Epoch()
}

// Image is the metadata as the node's broker has applied it.
func (n *Node) Image() *metadata.Image { return n.n.broker.Image() }
