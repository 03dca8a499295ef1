package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
)

// State is where a broker is in its life, with Kafka's numbers.
type State int32

// The states of KIP-631. A node is ready for clients in StateRunning.
const (
	StateNotRunning                State = 0
	StateStarting                  State = 1
	StateRecovery                  State = 2
	StateRunning                   State = 3
	StatePendingControlledShutdown State = 6
	StateShuttingDown              State = 7
)

func (s State) String() string {
	switch s {
	case StateNotRunning:
		return "not running"
	case StateStarting:
		return "starting"
	case StateRecovery:
		return "recovery"
	case StateRunning:
		return "running"
	case StatePendingControlledShutdown:
		return "pending controlled shutdown"
	case StateShuttingDown:
		return "shutting down"
	}
	return "unknown"
}

const (
	catchUpInterval  = 10 * time.Millisecond // heartbeats until the broker is caught up
	shutdownInterval = 50 * time.Millisecond // first heartbeats of a controlled shutdown
	registerInterval = 50 * time.Millisecond // between attempts to register, at first
)

// lifecycle owns registration and heartbeats. One request is in flight at a time;
// a wish that arrives meanwhile makes the next one immediate.
type lifecycle struct {
	opts    *Options
	do      func(ctx context.Context, req kmsg.Request) (kmsg.Response, error)
	applied func() int64 // last metadata offset applied to the image; -1 before the first
	image   func() *metadata.Image
	logger  *slog.Logger

	state    atomic.Int32
	epoch    atomic.Int64
	wake     chan struct{}
	caughtUp chan struct{} // closed once the controller said so
	unfenced chan struct{} // closed at the first answer that is not fenced
	released chan struct{} // closed when the controller lets a shutdown proceed
	ready    atomic.Bool
	stop     atomic.Bool
	offline  atomic.Pointer[[][16]byte]
	noted    atomic.Int32 // how many offline directories the controller has taken note of
	cordoned atomic.Pointer[[][16]byte]
	fenced   atomic.Bool
	answered atomic.Int64           // when a controller answered last, in nanoseconds of Unix time
	refused  atomic.Pointer[string] // why the controller refuses this broker
	trouble  string                 // what OnStanding was told last; the loop's
}

func newLifecycle(opts *Options) *lifecycle {
	l := &lifecycle{
		opts: opts, logger: opts.Logger,
		wake: make(chan struct{}, 1), caughtUp: make(chan struct{}), unfenced: make(chan struct{}), released: make(chan struct{}),
	}
	l.epoch.Store(-1)
	l.fenced.Store(true)
	return l
}

func (l *lifecycle) State() State { return State(l.state.Load()) }

func (l *lifecycle) setState(s State) {
	if old := State(l.state.Swap(int32(s))); old != s {
		l.logger.Info("broker state", "from", old.String(), "to", s.String())
	}
}

func (l *lifecycle) nudge() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// setReady says that the image is applied and logs are recovered: the broker
// wants to be unfenced.
func (l *lifecycle) setReady() { l.ready.Store(true); l.nudge() }

// beginShutdown asks the controller to move leaderships away.
func (l *lifecycle) beginShutdown() {
	l.setState(StatePendingControlledShutdown)
	l.stop.Store(true)
	l.nudge()
}

// setOffline lists the log directories that failed since start.
func (l *lifecycle) setOffline(dirs [][16]byte) { l.offline.Store(&dirs); l.nudge() }

// setCordoned lists the log directories that take no new replicas.
func (l *lifecycle) setCordoned(dirs [][16]byte) { l.cordoned.Store(&dirs); l.nudge() }

// run registers and heartbeats until ctx ends or the controller has released
// the broker for shutdown.
func (l *lifecycle) run(ctx context.Context) {
	l.setState(StateStarting)
	if !l.register(ctx) {
		return
	}
	for {
		interval, done := l.heartbeat(ctx)
		if done {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		case <-time.After(interval):
		}
	}
}

func (l *lifecycle) register(ctx context.Context) bool {
	req := kmsg.NewPtrBrokerRegistrationRequest()
	req.BrokerID = l.opts.NodeID
	req.ClusterID = l.opts.ClusterID
	req.IncarnationID = l.opts.IncarnationID
	req.PreviousBrokerEpoch = l.opts.PreviousBrokerEpoch
	req.LogDirs = l.opts.LogDirIDs
	if l.opts.Rack != "" {
		req.Rack = &l.opts.Rack
	}
	for _, e := range l.opts.Advertised {
		listener := kmsg.NewBrokerRegistrationRequestListener()
		listener.Name, listener.Host, listener.Port, listener.SecurityProtocol = e.Name, e.Host, e.Port, e.SecurityProtocol
		req.Listeners = append(req.Listeners, listener)
	}
	for _, f := range l.opts.Features {
		feature := kmsg.NewBrokerRegistrationRequestFeature()
		feature.Name, feature.MinSupportedVersion, feature.MaxSupportedVersion = f.Name, f.Min, f.Max
		req.Features = append(req.Features, feature)
	}
	var last string
	for {
		resp, err := l.do(ctx, req)
		if err == nil {
			answer := resp.(*kmsg.BrokerRegistrationResponse)
			if answer.ErrorCode == 0 {
				l.epoch.Store(answer.BrokerEpoch)
				l.refused.Store(nil)
				l.logger.Info("registered with the controller", "broker", l.opts.NodeID, "broker_epoch", answer.BrokerEpoch)
				return true
			}
			err = kerr.ErrorForCode(answer.ErrorCode)
			if unserved := l.unserved(); errors.Is(err, kerr.UnsupportedVersion) && len(unserved) > 0 {
				err = fmt.Errorf("the cluster has finalized %s: lower that there (kafka-features.sh downgrade), or run a release that serves it", strings.Join(unserved, ", "))
			}
		}
		if ctx.Err() != nil {
			return false
		}
		if reason := err.Error(); reason != last {
			last = reason
			l.refused.Store(&reason)
			l.logger.Warn("registration refused, trying again", "broker", l.opts.NodeID, "cause", reason)
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(registerInterval):
		}
	}
}

// unserved names the features that the cluster has finalized at levels which this broker does not serve, as far as its
// image tells.
func (l *lifecycle) unserved() []string {
	var all []string
	for name, level := range l.image().Features().All() {
		i := slices.IndexFunc(l.opts.Features, func(f FeatureRange) bool { return f.Name == name && f.Min <= level && level <= f.Max })
		if i < 0 {
			all = append(all, fmt.Sprintf("%s %d", name, level))
		}
	}
	return all
}

// heartbeat sends one request and says how long to wait for the next.
func (l *lifecycle) heartbeat(ctx context.Context) (next time.Duration, done bool) {
	interval := l.opts.HeartbeatInterval
	req := kmsg.NewPtrBrokerHeartbeatRequest()
	req.BrokerID, req.BrokerEpoch = l.opts.NodeID, l.epoch.Load()
	req.CurrentMetadataOffset = l.applied()
	req.WantFence = !l.ready.Load()
	req.WantShutdown = l.stop.Load()
	offline := l.offline.Load()
	if offline != nil {
		req.OfflineLogDirs = *offline
	}
	if cordoned := l.cordoned.Load(); cordoned != nil {
		req.CordonedLogDirs = append([][16]byte{}, *cordoned...) // null would say nothing of them
	}
	attempt, cancel := context.WithTimeout(ctx, interval)
	defer cancel()
	resp, err := l.do(attempt, req)
	if err != nil {
		return channelRetry, ctx.Err() != nil
	}
	l.answered.Store(time.Now().UnixNano())
	answer := resp.(*kmsg.BrokerHeartbeatResponse)
	if err := kerr.ErrorForCode(answer.ErrorCode); err != nil {
		reason := err.Error()
		if old := l.refused.Swap(&reason); old == nil || *old != reason {
			l.logger.Error("the controller refuses this broker's heartbeats", "broker", l.opts.NodeID, "broker_epoch", req.BrokerEpoch, "cause", reason)
		}
		l.stands("the controller refuses this broker's heartbeats: " + reason)
		return interval, false
	}
	if offline != nil {
		l.noted.Store(int32(len(*offline)))
	}
	l.refused.Store(nil)
	if was := l.fenced.Swap(answer.IsFenced); was != answer.IsFenced {
		l.logger.Info("fencing changed", "broker", l.opts.NodeID, "broker_epoch", req.BrokerEpoch, "fenced", answer.IsFenced)
	}
	if answer.IsCaughtUp {
		closeOnce(l.caughtUp)
	}
	if !answer.IsFenced && !req.WantFence {
		closeOnce(l.unfenced)
	}
	if answer.IsFenced && l.State() == StateRunning {
		l.stands("is fenced: the controller had not heard of this broker in time")
	} else {
		l.stands("")
	}
	switch {
	case answer.ShouldShutdown && req.WantShutdown:
		closeOnce(l.released)
		return 0, true
	case req.WantShutdown:
		return shutdownInterval, false
	case !answer.IsCaughtUp, answer.IsFenced:
		return catchUpInterval, false
	}
	return interval, false
}

// stands tells how the broker stands with its controller, when that has changed.
func (l *lifecycle) stands(trouble string) {
	if trouble != l.trouble {
		l.trouble = trouble
		if l.opts.OnStanding != nil {
			l.opts.OnStanding(trouble)
		}
	}
}

// closeOnce closes a channel that only the lifecycle's goroutine closes.
func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}
