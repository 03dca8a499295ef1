package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/wire"
)

// Endpoint is an advertised listener, as it goes into the registration.
type Endpoint struct {
	Name             string
	Host             string
	Port             uint16
	SecurityProtocol int16
}

// FeatureRange is a feature and the levels of it that this broker can work with.
type FeatureRange struct {
	Name     string
	Min, Max int16
}

// Options of a Broker.
type Options struct {
	NodeID        int32
	ClusterID     string
	IncarnationID [16]byte // random, one per process
	Rack          string   // "" none
	Advertised    []Endpoint
	Features      []FeatureRange
	LogDirIDs     [][16]byte // ids of the online log directories
	MetadataDirID [16]byte   // directory id that the metadata observer shows
	// PreviousBrokerEpoch is what the clean-shutdown files agree on, -1 unknown (KIP-966).
	PreviousBrokerEpoch int64
	Controllers         []Controller // where to look for the quorum
	Dial                wire.DialFunc

	HeartbeatInterval    time.Duration // broker.heartbeat.interval.ms
	RegistrationTimeout  time.Duration // initial.broker.registration.timeout.ms
	QuorumRequestTimeout time.Duration // controller.quorum.request.timeout.ms
	ShutdownTimeout      time.Duration // how long a controlled shutdown may take
	LogDirFailureTimeout time.Duration // log.dir.failure.timeout.ms; 0: never

	// Publish applies an image to the parts of the node, before readers see it. It
	// runs on one goroutine, in the order of the log. delta is what led from the image
	// published last to this one; nil when that is not known: everything is new at
	// the first publication and after a snapshot.
	Publish func(image *metadata.Image, delta *metadata.Delta) error
	// OnStanding hears what is wrong between this broker and its controller: that it is
	// fenced, or that its heartbeats are refused (a broker that was unregistered stays so
	// until it is started again); "" when all is well again. It must not block.
	OnStanding func(trouble string)
	Logger     *slog.Logger
}

// Broker is this node's part as a broker. Create it with New, then Start it once.
type Broker struct {
	opts       Options
	channel    *channel // of the broker's own requests
	forwarding *channel // of clients' requests: however many wait there, no heartbeat waits behind them
	observer   *observer
	builder    *imageBuilder
	life       *lifecycle
	producers  producerIDs
	places     *assignments
	inSync     *inSyncChanges

	image     atomic.Pointer[metadata.Image]
	published chan struct{} // closed at the first publication
	shown     chan struct{} // closed once the image published last has this registration, unfenced
	failed    chan error    // what ends the process, at most one
	cancel    context.CancelFunc
	running   sync.WaitGroup
}

// New makes a broker that has not started.
func New(opts Options) *Broker {
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	b := &Broker{opts: opts, published: make(chan struct{}), shown: make(chan struct{}), failed: make(chan error, 1)}
	b.image.Store(metadata.EmptyImage())
	b.builder = newImageBuilder(b.registered, b.publish)
	b.observer = newObserver(&b.opts, b.builder.apply, b.builder.restore)
	b.channel = newChannel(opts.Dial, b.observer.leaderAddr, opts.Logger)
	b.forwarding = newChannel(opts.Dial, b.observer.leaderAddr, opts.Logger)
	b.life = newLifecycle(&b.opts)
	b.life.do = b.channel.Do
	b.life.image = b.known
	b.life.applied = func() int64 { return b.known().Offset() }
	b.producers.allocate = b.allocateProducerIDs
	b.places = newAssignments(opts.NodeID, opts.Logger)
	b.places.do, b.places.epoch = b.channel.Do, b.Epoch
	b.inSync = newInSyncChanges(opts.NodeID)
	b.inSync.do, b.inSync.epoch = b.channel.Do, b.Epoch
	return b
}

// Start begins to follow the metadata log and to register. It returns at once;
// Ready says when clients may come.
func (b *Broker) Start() {
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel = cancel
	b.running.Go(func() {
		if err := b.observer.run(ctx); err != nil {
			b.fail(err)
		}
	})
	b.running.Go(func() { b.life.run(ctx) })
	b.running.Go(func() { b.inSync.run(ctx) })
	b.running.Go(func() {
		select {
		case <-b.life.caughtUp: // before that there is no broker epoch to tell it under
			b.places.run(ctx)
		case <-ctx.Done():
		}
	})
}

func (b *Broker) fail(err error) {
	select {
	case b.failed <- err:
	default:
	}
}

// Failed delivers the error after which the process must end.
func (b *Broker) Failed() <-chan error { return b.failed }

// Ready waits until the broker is unfenced and has applied the image that says so:
// it may be named to clients. The error says what it was waiting for.
func (b *Broker) Ready(ctx context.Context) error {
	register, cancel := context.WithTimeout(ctx, b.opts.RegistrationTimeout)
	defer cancel()
	select {
	case <-b.life.caughtUp:
	case err := <-b.failed:
		b.fail(err)
		return err
	case <-register.Done():
		if ctx.Err() != nil {
			return ctx.Err()
		}
		reason := "no controller answered"
		if refused := b.life.refused.Load(); refused != nil {
			reason = *refused
		}
		return fmt.Errorf("broker %d could not register within %s: %s: check controller.quorum.voters and that a controller runs there", b.opts.NodeID, b.opts.RegistrationTimeout, reason)
	}
	b.life.setState(StateRecovery)
	select {
	case <-b.published:
	case err := <-b.failed:
		b.fail(err)
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
	b.life.setReady()
	select {
	case <-b.life.unfenced:
	case err := <-b.failed:
		b.fail(err)
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
	// The controller's answer may overtake the records: partitions are led anew from
	// these, and a client that came before them would be told the old leader epochs.
	select {
	case <-b.shown:
	case err := <-b.failed:
		b.fail(err)
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
	b.life.setState(StateRunning)
	return nil
}

// known is the newest image: the one published last, or, before the first, what has been read so far.
func (b *Broker) known() *metadata.Image {
	if image := b.image.Load(); image.Offset() >= 0 {
		return image
	}
	return b.builder.followed.Load()
}

// registered says whether an image has the registration of this process.
func (b *Broker) registered(image *metadata.Image) bool {
	self, ok := image.Broker(b.opts.NodeID)
	return ok && self.IncarnationID == b.opts.IncarnationID
}

// publish runs on the observer's goroutine.
func (b *Broker) publish(image *metadata.Image, delta *metadata.Delta) error {
	if b.opts.Publish != nil {
		if err := b.opts.Publish(image, delta); err != nil {
			return fatalf("applying the metadata image at offset %d: %v", image.Offset(), err)
		}
	}
	b.image.Store(image)
	select {
	case <-b.published:
	default:
		close(b.published)
	}
	if self, ok := image.Broker(b.opts.NodeID); ok && !self.Fenced && self.IncarnationID == b.opts.IncarnationID {
		closeOnce(b.shown)
	}
	return nil
}

// Image is the newest published metadata image; never nil.
func (b *Broker) Image() *metadata.Image { return b.image.Load() }

// Epoch is the broker epoch of this process's registration, -1 before it.
func (b *Broker) Epoch() int64 { return b.life.epoch.Load() }

// State is where the broker is in its life.
func (b *Broker) State() State { return b.life.State() }

// Refused says why the controller refuses this broker, "" if it does not.
func (b *Broker) Refused() string {
	if reason := b.life.refused.Load(); reason != nil {
		return *reason
	}
	return ""
}

// QuorumLeader is the leader of the metadata quorum as this broker knows it; id -1
// when it knows none.
func (b *Broker) QuorumLeader() (id, epoch int32) {
	known := b.observer.leads.Load()
	return known.id, known.epoch
}

// NextProducerID hands out a producer id, asking the controller for a block of
// them when need be.
func (b *Broker) NextProducerID(ctx context.Context) (int64, error) { return b.producers.Next(ctx) }

// TryProducerID is NextProducerID for whoever must not wait, and false when no id is at hand just now.
func (b *Broker) TryProducerID() (int64, bool) { return b.producers.Try() }

// WaitProducerID waits until producer ids are at hand.
func (b *Broker) WaitProducerID(ctx context.Context) error { return b.producers.Wait(ctx) }

// Controller sends a request of this broker to the active controller.
func (b *Broker) Controller(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
	return b.channel.Do(ctx, req)
}

// ReportPlace tells the controller in which directory a replica of this broker is;
// metadata.DirLost says that its log cannot be used. It does not block.
func (b *Broker) ReportPlace(topic metadata.UUID, partition int32, dir metadata.UUID) {
	b.places.add(replicaPlace{topic, partition}, dir)
}

// SetOfflineDirs reports the log directories that have failed since start.
// When the controller has not taken note of them in time the broker fails: it would go on naming leaders here whose
// records nobody can read.
func (b *Broker) SetOfflineDirs(dirs [][16]byte) {
	b.life.setOffline(dirs)
	if timeout := b.opts.LogDirFailureTimeout; timeout > 0 {
		time.AfterFunc(timeout, func() {
			if int(b.life.noted.Load()) < len(dirs) {
				b.fail(fmt.Errorf("the controller has not taken note within %s (log.dir.failure.timeout.ms) that log directories have failed", timeout))
			}
		})
	}
}

// SetCordonedDirs reports the log directories that take no new replicas.
func (b *Broker) SetCordonedDirs(dirs [][16]byte) { b.life.setCordoned(dirs) }

// shutdownPatience is how long a broker that stops waits for any controller at all: about an election's time. The other
// nodes may be stopping too.
const shutdownPatience = 2 * time.Second

// ErrShutdownTimeout says that the controller did not release the broker in time:
// some leaderships could not be moved, or no controller answered.
var ErrShutdownTimeout = errors.New("controlled shutdown did not finish in time")

// ControlledShutdown asks the controller to move leaderships away, and waits until
// it lets the broker go. Afterwards, or after ErrShutdownTimeout, call Stop. Where no controller answers for
// shutdownPatience there is nobody to wait for: ErrNoController.
func (b *Broker) ControlledShutdown(ctx context.Context) error {
	if b.Epoch() < 0 {
		return nil // never registered: nothing to hand over
	}
	b.life.beginShutdown()
	timer := time.NewTimer(b.opts.ShutdownTimeout)
	defer timer.Stop()
	began := time.Now()
	look := time.NewTicker(shutdownInterval)
	defer look.Stop()
	for {
		select {
		case <-b.life.released:
			return nil
		case <-timer.C:
			return ErrShutdownTimeout
		case <-ctx.Done():
			return ctx.Err()
		case now := <-look.C:
			heard := time.Unix(0, b.life.answered.Load())
			if now.Sub(began) > shutdownPatience && now.Sub(heard) > shutdownPatience {
				return ErrNoController
			}
		}
	}
}

// Stop ends the broker's goroutines and connections, and waits for them.
func (b *Broker) Stop() {
	b.life.setState(StateShuttingDown)
	if b.cancel != nil {
		b.cancel()
	}
	b.channel.close()
	b.forwarding.close()
	b.running.Wait()
	b.life.setState(StateNotRunning)
}
