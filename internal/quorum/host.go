// Package quorum keeps the metadata log: it hosts raft, whose log that is, and the controller, whose state machine
// runs on it, and shows the log to its observers.
//
// One goroutine owns raft and the controller. Whatever comes in waits in a queue for it; see loop. The log's bytes
// and the published Status may be read by anybody.
package quorum

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/stelelog/stele/internal/controller"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/vfs"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Config is the part of the node's settings that concerns the quorum. Zero fields take Kafka's defaults.
type Config struct {
	SegmentBytes int32         // metadata.log.segment.bytes
	SegmentMs    int64         // metadata.log.segment.ms
	Snapshots    SnapshotRules // when to snapshot, and how much to keep
	// ElectionTimeout is controller.quorum.election.timeout.ms: how long followers bear with a silent leader, up to
	// twice as long.
	ElectionTimeout time.Duration
}

func (c Config) complete() Config {
	if c.SegmentBytes == 0 {
		c.SegmentBytes = 1 << 30
	}
	if c.SegmentMs == 0 {
		c.SegmentMs = 7 * 24 * 3600 * 1000
	}
	if c.ElectionTimeout == 0 {
		c.ElectionTimeout = time.Second
	}
	c.Snapshots = c.Snapshots.complete()
	return c
}

// Options is what a host is made with. FS, Dir, Identity and Controller.Rand are required.
type Options struct {
	FS       vfs.FS
	Dir      string // the metadata directory; the log lies in its __cluster_metadata-0
	Identity Identity
	// Controller is what the hosted controller is made with.
	Controller controller.Options
	Config     Config
	// Endpoints are this node's own controller listeners, named in answers. SetEndpoints changes them.
	Endpoints []metadata.VoterEndpoint
	// Transport reaches the other voters; nil if there are none.
	Transport Transport
	// ErrorCode is the table from errors to protocol codes, the server's.
	ErrorCode func(error) int16
	// NeedRoom hears, on the goroutine that must not wait, that the disk of the metadata log is full; nil: nobody.
	NeedRoom func()
	// Pause waits that long while the disk is full; false: no more. A Host has one; without any, a full disk is an error.
	Pause func(time.Duration) bool
	// Beside runs the writing of a snapshot, whose outcome SnapshotWritten takes over; nil: a goroutine of its own.
	Beside func(work func())
	Now    func() time.Time // nil: time.Now
	Logger *slog.Logger     // nil: slog.Default()
}

const (
	// ticksPerElection is how many of raft's ticks make an election timeout.
	ticksPerElection = 10
	// maxBatchBytes is the largest batch of the metadata log.
	maxBatchBytes = 8 << 20
	// queueLength is how many requests wait before those who bring them do.
	queueLength = 1024
	// groupLimit is how many queued requests share one write to disk.
	groupLimit = 256
)

// Host runs one voter of the quorum and its controller: a Core with the machine's time.
type Host struct {
	core *Core

	queue  chan *request
	posts  chan func() error
	stop   chan struct{}
	done   chan struct{}
	start  sync.Once
	once   sync.Once
	failed error // why the loop ended; to be read after done
}

// request is a Request that somebody waits for.
type request struct {
	Request
	ctx   context.Context // whoever asked waits until its end
	reply any
	err   error
	done  chan struct{}
}

func newRequest(ctx context.Context, fn func(c *controller.Controller, now time.Time, nextOffset int64) (controller.Result, error)) *request {
	r := &request{ctx: ctx, done: make(chan struct{})}
	r.Request = Request{Run: fn, Done: func(reply any, err error) {
		r.reply, r.err = reply, err
		close(r.done)
	}}
	return r
}

// Open reads back this voter's state, log and newest snapshot. The directory must be formatted (ErrNotFormatted) and
// this node's own (*ForeignDiskError); a state that contradicts itself is refused (*CorruptStateError,
// *LostEntriesError). Nothing runs before Start.
func Open(o Options) (*Host, error) {
	h := &Host{
		queue: make(chan *request, queueLength), posts: make(chan func() error),
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	if o.Pause == nil {
		o.Pause = h.pause
	}
	var err error
	h.core, err = OpenCore(o)
	if err != nil {
		return nil, err
	}
	return h, nil
}

// pause waits, unless the host is stopped meanwhile.
func (h *Host) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-h.stop:
		return false
	case <-timer.C:
		return true
	}
}

// Start begins to vote, to lead and to answer. The only voter of a quorum leads before it is asked twice.
func (h *Host) Start() { h.start.Do(func() { go h.loop() }) }

// Close stops the host and closes the log; requests that wait get ErrNotController, fetches ErrBrokerNotAvailable.
// Its error is why the host had failed before, or what failed on closing. A closed host cannot be started.
func (h *Host) Close() error {
	h.once.Do(func() { close(h.stop) })
	h.start.Do(func() {
		h.failed = h.core.Close(nil)
		close(h.done)
	})
	<-h.done
	return h.failed
}

// Done is closed when the host has stopped: by Close, or because its disk failed, which Err tells apart.
func (h *Host) Done() <-chan struct{} { return h.done }

// Err is why the host stopped by itself, nil while it runs.
func (h *Host) Err() error {
	select {
	case <-h.done:
		return h.failed
	default:
		return nil
	}
}

// Status is the quorum as of now.
func (h *Host) Status() *Status { return h.core.Status() }

// LeaderAndEpoch is who leads (-1 if unknown) and in which epoch.
func (h *Host) LeaderAndEpoch() (leaderID, leaderEpoch int32) {
	s := h.core.Status()
	return s.LeaderID, s.LeaderEpoch
}

// Committed is the newest committed image. It holds whatever a Do that has returned changed.
func (h *Host) Committed() *metadata.Image { return h.core.Committed() }

// WaitActive returns when this node is the active controller, or with ctx's error or why the host stopped.
func (h *Host) WaitActive(ctx context.Context) error {
	return h.waitFor(ctx, func(s *Status) bool { return s.Active })
}

// WaitLed returns when some node is known to lead, or with ctx's error or why the host stopped.
func (h *Host) WaitLed(ctx context.Context) error {
	return h.waitFor(ctx, func(s *Status) bool { return s.LeaderID >= 0 })
}

func (h *Host) waitFor(ctx context.Context, met func(*Status) bool) error {
	for {
		s := h.core.Status()
		if met(s) {
			return nil
		}
		select {
		case <-s.Changed():
		case <-ctx.Done():
			return ctx.Err()
		case <-h.done:
			return errors.Join(ErrClosed, h.failed)
		}
	}
}

// SetEndpoints says where this node's controller listeners are, for answers that name it.
func (h *Host) SetEndpoints(endpoints []metadata.VoterEndpoint) error {
	return h.post(func() error {
		h.core.setEndpoints(endpoints)
		return nil
	})
}

// KRaftVersion is the finalized kraft.version: 1 where a directory that was taken over from Apache Kafka has its voters
// in the log, else 0. It never changes.
func (h *Host) KRaftVersion() int16 { return h.core.kraftVersion }

// Do runs fn on the goroutine that owns the controller, appends and replays the records it returns, which were
// computed as if the first of them stood at nextOffset, and returns its reply when they, or without records all
// before them, are committed. Without records a majority must also have said that it follows this leader still: a deposed
// one does not answer with what was true in its time. The error is fn's, the result's, ErrNotController, or ctx's; after the
// latter two the records may still get committed. fn may read the controller, and must not keep it.
func (h *Host) Do(ctx context.Context, fn func(c *controller.Controller, now time.Time, nextOffset int64) (controller.Result, error)) (any, error) {
	r := newRequest(ctx, fn)
	select {
	case h.queue <- r:
	case <-ctx.Done():
		return nil, h.gaveUp(ctx)
	case <-h.done:
		return nil, ErrNotController
	}
	select {
	case <-r.done:
		return r.reply, r.err
	case <-ctx.Done():
		return nil, h.gaveUp(ctx)
	case <-h.done:
		select {
		case <-r.done:
			return r.reply, r.err
		default:
			return nil, ErrNotController
		}
	}
}

// gaveUp is the error of a request that waited no longer.
func (h *Host) gaveUp(ctx context.Context) error {
	if h.core.full.Load() {
		return &NoRoomError{Dir: h.core.o.Dir, Err: ctx.Err()}
	}
	return ctx.Err()
}

// Fetch answers a Fetch of the metadata log that came in on the named listener, waiting as long as it says. It may be
// called concurrently.
func (h *Host) Fetch(ctx context.Context, req *kmsg.FetchRequest, listener string) *kmsg.FetchResponse {
	return h.core.observers.fetch(ctx, req, listener)
}

// FetchSnapshot answers a FetchSnapshot that came in on the named listener. It may be called concurrently.
func (h *Host) FetchSnapshot(req *kmsg.FetchSnapshotRequest, listener string) *kmsg.FetchSnapshotResponse {
	return h.core.observers.fetchSnapshot(req, listener)
}

// post runs f on the owning goroutine and waits for it to be taken, not for its end. An error of f stops the host.
func (h *Host) post(f func() error) error { return h.postWithin(context.Background(), f) }

// postWithin is post for who waits no longer than ctx: a host whose disk is full takes nothing for as long as that lasts.
func (h *Host) postWithin(ctx context.Context, f func() error) error {
	select {
	case h.posts <- f:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-h.done:
		return ErrClosed
	}
}

// loop owns the core: it takes what comes in, and gives the core its turns.
func (h *Host) loop() {
	defer close(h.done)
	err := h.run()
	h.core.Abandon()
	for {
		select {
		case r := <-h.queue:
			r.Done(nil, ErrNotController)
			continue
		default:
		}
		break
	}
	if err != nil {
		h.core.log.Error("quorum host stops", "error", err)
	}
	h.failed = h.core.Close(err)
}

func (h *Host) run() error {
	if err := h.core.Begin(); err != nil {
		return err
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(max(0, h.core.Deadline().Sub(h.core.o.Now())))
		var asked []*Request
		select {
		case <-h.stop:
			return nil
		case f := <-h.posts:
			if err := f(); err != nil {
				return err
			}
		case r := <-h.queue:
			asked = h.collect(r)
		case f := <-h.core.keeper.finished:
			if err := h.core.snapshotFinished(f); err != nil {
				return err
			}
		case <-timer.C:
			// What waits comes before the clock: a heartbeat that is in the queue is a sign of life.
			select {
			case r := <-h.queue:
				asked = h.collect(r)
			default:
			}
		}
		if err := h.core.Turn(asked); err != nil {
			return err
		}
	}
}

// collect takes the requests that wait already together with the first.
func (h *Host) collect(first *request) []*Request {
	var asked []*Request
	for r := first; ; {
		if err := r.ctx.Err(); err != nil {
			r.Done(nil, err) // whoever asked has been told that it failed: it should have
		} else {
			asked = append(asked, &r.Request)
		}
		if len(asked) == groupLimit {
			return asked
		}
		select {
		case r = <-h.queue:
		default:
			return asked
		}
	}
}
