package replica

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/metadata"
)

// ProducePartition is what a Produce request holds for one partition: one record batch.
type ProducePartition struct {
	Topic     string
	TopicID   metadata.UUID // zero: the topic is named only by Topic
	Partition int32
	// Records may be changed in place (base offset, leader epoch); it is not used once Produce has returned.
	Records []byte

	// What AdmitTransaction found out.
	guard   log.TxnGuard
	refused error
}

// ProduceRequest asks to append batches, in the order given.
type ProduceRequest struct {
	// Acks: 0 is done when the leader has written, 1 when it has flushed, too, if flush.messages says so, -1 when the in-sync
	// replicas have.
	Acks int16
	// Timeout is how long to wait for them.
	Timeout time.Duration
	Origin  log.AppendOrigin
	Version int16
	// TxnVerified and TxnV2 are as in log.AppendOptions.
	TxnVerified, TxnV2 bool
	Partitions         []ProducePartition
}

// ProduceResult is what became of one partition's batch. The offsets and the time are -1 beside an error, save that
// LogStartOffset is known when the record was written but not acknowledged.
type ProduceResult struct {
	Topic          string
	TopicID        metadata.UUID
	Partition      int32
	BaseOffset     int64
	LastOffset     int64
	LogAppendTime  int64
	LogStartOffset int64
	Err            error
	// Refused: Err is what AdmitTransaction found, and the log was not looked into.
	Refused bool
}

// DelayedProduce is a Produce under way: everything that could be written is, and acknowledgements may be outstanding.
type DelayedProduce struct {
	done     chan struct{}
	results  []ProduceResult
	throttle time.Duration

	m       *Manager
	mu      sync.Mutex
	open    int
	pending []*pendingAck
	timer   *time.Timer
}

// pendingAck is one partition's batch that the high watermark has not passed, or, with acks=1, that is not flushed.
type pendingAck struct {
	all      bool        // acks=-1
	overdue  atomic.Bool // its time has run out, and it is not flushed yet: as if the flush were a part of the append
	d        *DelayedProduce
	p        *Partition
	result   *ProduceResult
	required int64
	epoch    int32
	watch    watch
	settled  bool
}

// closedChan is the Done of every Produce that had nothing to wait for.
var closedChan = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Done is closed when every partition's result stands.
func (d *DelayedProduce) Done() <-chan struct{} { return d.done }

// Results are in the order of the request. They stand once Done is closed, and must not be read before.
func (d *DelayedProduce) Results() []ProduceResult { return d.results }

// Throttle is how long the producer should wait before its next request: a disk that it writes to is nearly full.
func (d *DelayedProduce) Throttle() time.Duration { return d.throttle }

// Produce appends the batches in order and returns at once. Batches of different partitions stand or fall alone.
func (m *Manager) Produce(req ProduceRequest) *DelayedProduce {
	d := &DelayedProduce{done: closedChan, m: m, results: make([]ProduceResult, len(req.Partitions))}
	o := log.AppendOptions{Origin: req.Origin, RequestVersion: req.Version, TxnVerified: req.TxnVerified, TxnV2: req.TxnV2}
	for i := range req.Partitions {
		size := len(req.Partitions[i].Records)
		p, duplicate := d.append(&req, i, o)
		m.traffic.all.produced(&d.results[i], size, duplicate)
		if p != nil {
			p.traffic.produced(&d.results[i], size, duplicate)
		}
	}
	if len(d.pending) > 0 {
		d.park(req.Timeout)
	}
	return d
}

// append writes the i-th batch and fills in its result. p is nil when the partition is not here.
func (d *DelayedProduce) append(req *ProduceRequest, i int, o log.AppendOptions) (p *Partition, duplicate bool) {
	in, out := &req.Partitions[i], &d.results[i]
	*out = ProduceResult{Topic: in.Topic, TopicID: in.TopicID, Partition: in.Partition,
		BaseOffset: NoOffset, LastOffset: NoOffset, LogAppendTime: -1, LogStartOffset: NoOffset}
	if req.Acks < -1 || req.Acks > 1 {
		out.Err = ErrInvalidRequiredAcks
		return nil, false
	}
	if p, out.Err = d.m.find(in.Topic, in.TopicID, in.Partition); out.Err != nil {
		return nil, false
	}
	if out.Err = in.refused; out.Err != nil {
		out.Refused = true
		return p, false
	}
	o.Guard = in.guard
	info, role, err := p.append(in.Records, req.Acks == -1, NoEpoch, o)
	if err != nil {
		out.Err = err
		return p, false
	}
	d.throttle = max(d.throttle, info.Throttle)
	out.BaseOffset, out.LastOffset = info.BaseOffset, info.LastOffset
	out.LogAppendTime, out.LogStartOffset = info.LogAppendTime, info.LogStartOffset
	if req.Acks == -1 && !info.Replicated || req.Acks == 1 && info.Held {
		a := &pendingAck{all: req.Acks == -1, d: d, p: p, result: out, required: info.LastOffset + 1, epoch: role.LeaderEpoch}
		if done, err := a.reached(); done {
			out.settle(err)
		} else {
			d.pending = append(d.pending, a)
		}
	}
	return p, info.Duplicate
}

// reached says whether what the batch waits for has come, or cannot come any more.
func (a *pendingAck) reached() (done bool, err error) {
	if a.all {
		return a.p.acked(a.required, a.epoch)
	}
	return a.p.flushedTo(a.required, a.epoch)
}

// park registers the outstanding acknowledgements and looks at each once more: one that came in between would be
// missed otherwise.
func (d *DelayedProduce) park(timeout time.Duration) {
	d.open = len(d.pending)
	d.done = make(chan struct{})
	// The timer starts last, so it never finds a watch that is yet to be added.
	if !d.m.purgatory.enter() {
		for _, a := range d.pending {
			a.result.settle(ErrTimedOut)
		}
		close(d.done)
		return
	}
	for _, a := range d.pending {
		kind := boundAck
		if a.all {
			kind = boundHighWatermark
		}
		a.watch = watch{kind: kind, offset: a.required - 1, waiter: a}
		a.p.wait.add(&a.watch)
	}
	for _, a := range d.pending {
		a.wake()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.open == 0 || !d.pending[0].all: // all of a request wait for the same
	case timeout > 0:
		d.timer = time.AfterFunc(timeout, d.expire)
	default:
		d.expireLocked(func() {})
	}
}

// settle ends the wait of one partition: nothing changes about a batch that was acknowledged.
func (r *ProduceResult) settle(err error) {
	if err != nil {
		r.Err = err
		r.BaseOffset, r.LastOffset, r.LogAppendTime = NoOffset, NoOffset, -1
	}
}

// wake looks whether the batch is acknowledged now.
func (a *pendingAck) wake() {
	done, err := a.reached()
	if !done {
		if !a.overdue.Load() {
			return
		}
		if done, err = a.p.flushedTo(a.required, a.epoch); !done {
			return
		}
		if err == nil {
			err = ErrTimedOut
		}
	}
	a.d.mu.Lock()
	defer a.d.mu.Unlock()
	a.finish(err)
}

// finish settles the batch unless it is settled, and ends the whole when it was the last. d.mu is held.
func (a *pendingAck) finish(err error) {
	if a.settled {
		return
	}
	a.settled = true
	a.result.settle(err)
	a.watch.remove()
	if a.d.open--; a.d.open == 0 {
		if a.d.timer != nil {
			a.d.timer.Stop()
		}
		a.d.m.purgatory.leave()
		close(a.d.done)
	}
}

// expire ends what is still outstanding when the time has run out.
func (d *DelayedProduce) expire() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.expireLocked(d.m.events.produceTimedOut)
}

// expireLocked does so. What is not even flushed is waited for: the time that it takes is not the replicas'. mu is held.
func (d *DelayedProduce) expireLocked(count func()) {
	for _, a := range d.pending {
		if a.settled {
			continue
		}
		if done, _ := a.p.flushedTo(a.required, a.epoch); !done {
			a.watch.remove()
			a.overdue.Store(true)
			a.watch = watch{kind: boundAck, offset: a.required - 1, waiter: a}
			a.p.wait.add(&a.watch)
			if done, _ = a.p.flushedTo(a.required, a.epoch); !done {
				continue
			}
		}
		count()
		a.finish(ErrTimedOut)
	}
}
