package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/shard"
)

const (
	queueLength = 1024    // events that may wait for one shard; more wait with their senders
	loadLimit   = 1 << 31 // bytes that one compressed batch may decode to while loading
)

// runner owns one shard and the goroutine that drives it.
type runner[S machine[R], R any] struct {
	*kind[S, R]
	id        int32 // of the partition
	partition Partition
	epoch     int32 // leader epoch under which the shard was loaded
	deliver   func(shard.ReplyTo, shard.Response)
	logger    *slog.Logger
	now       func() time.Time

	slots chan struct{} // of shards that may load at once; shared
	// events are things that happen to the shard: requests, changes of the metadata. They run on the shard's goroutine.
	events chan func(*runner[S, R])
	wake   chan struct{}  // the high watermark may have moved
	jobs   sync.WaitGroup // what runs beside the shard
	cancel context.CancelFunc
	ending <-chan struct{} // closed when the shard is to end
	done   chan struct{}   // closed when the goroutine has ended: nothing is answered any more

	loads atomic.Int64 // how often the shard was loaded

	mu     sync.Mutex
	status status

	// what follows belongs to the goroutine
	shard    S
	present  bool     // there is a shard, perhaps not yet loaded
	end      int64    // where the next record goes
	batch    *pending // being filled, nil when there is none
	inFlight []*pending
	moved    error // the log's end was not where it should be: load again
}

type status int

const (
	loading status = iota
	active
	stopped // failed to load, or the leadership has ended
)

// pending is a batch and the operations that are in it.
type pending struct {
	builder *record.Builder
	base    int64
	last    int64 // offset of its last record
	replies []shard.Reply
	writes  []shard.WriteID
	expires time.Time
	txn     bool
	opts    AppendOptions
	written chan<- error // of a marker, which is in no batch; has room for the outcome
}

// waits says whether somebody waits for the batch to be committed.
func (b *pending) waits() bool { return len(b.replies)+len(b.writes) > 0 || b.written != nil }

// tell says what became of a marker.
func (b *pending) tell(err error) {
	if b.written != nil {
		b.written <- err
		b.written = nil
	}
}

// newRunner starts the shard of a partition that this broker leads in epoch.
func (h *host[S, R]) newRunner(partition int32, p Partition, epoch int32) *runner[S, R] {
	ctx, cancel := context.WithCancel(context.Background())
	one := &runner[S, R]{
		kind: &h.kind, id: partition, partition: p, epoch: epoch, deliver: h.deliver,
		logger: h.logger.With("topic", h.kind.topic, "partition", partition), now: h.now, slots: h.slots,
		events: make(chan func(*runner[S, R]), queueLength), wake: make(chan struct{}, 1), cancel: cancel, ending: ctx.Done(), done: make(chan struct{}),
	}
	go one.run(ctx)
	return one
}

// enqueue hands an event to the shard. The error is what the caller's client is to
// be told: ErrLoading, shard.ErrNotCoordinator, or ctx's.
func (r *runner[S, R]) enqueue(ctx context.Context, e func(*runner[S, R])) error {
	if err := r.unavailable(); err != nil {
		return err
	}
	select {
	case r.events <- e:
		return nil
	case <-r.done:
		return shard.ErrNotCoordinator
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *runner[S, R]) unavailable() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch r.status {
	case loading:
		return ErrLoading
	case active:
		return nil
	}
	return shard.ErrNotCoordinator
}

func (r *runner[S, R]) setStatus(s status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status = s
}

// stop ends the shard: what waits is answered "not coordinator". It returns when
// the goroutine has ended.
func (r *runner[S, R]) stop() {
	r.cancel()
	<-r.done
}

func (r *runner[S, R]) run(ctx context.Context) {
	defer close(r.done)
	defer func() {
		r.cancel()
		r.jobs.Wait()
	}()
	unwatch := r.partition.Watch(func() {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	})
	defer unwatch()
	defer r.setStatus(stopped)
	defer func() {
		if r.present {
			r.shard.Release()
		}
	}()
	for ctx.Err() == nil {
		r.setStatus(loading)
		loaded, err := r.load(ctx)
		if err != nil {
			if ctx.Err() == nil {
				r.logger.Error("coordinator shard cannot be loaded; what lives on it is unavailable until the next leader epoch", "leader_epoch", r.epoch, "cause", err)
			}
			return // what is still queued finds the shard ended
		}
		if !r.replicated(ctx) {
			return
		}
		r.setStatus(active)
		if loaded != nil {
			r.absorb(loaded(r.shard))
		}
		cause := r.loop(ctx)
		r.setStatus(loading)
		r.unload(cause)
		if ctx.Err() == nil {
			r.logger.Warn("coordinator shard is loaded again", "leader_epoch", r.epoch, "cause", cause)
		}
	}
}

// load replays the whole partition, and returns what its kind wants to do once the shard is active, or nil.
// Reads stay at the high watermark as it rises.
func (r *runner[S, R]) load(ctx context.Context) (loaded func(S) shard.Effects[R], err error) {
	r.loads.Add(1)
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	start := r.now()
	if r.present {
		r.shard.Release()
	}
	r.shard, r.present = r.make(), true
	r.prepare()
	seen := func(R) {}
	if r.watch != nil {
		seen, loaded = r.watch()
	}
	var records int
	end, err := r.partition.Scan(func(b record.Batch) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := r.replayBatch(b, seen)
		records += n
		if b.LastOffset() < r.partition.HighWatermark() {
			r.shard.Committed(b.NextOffset())
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	r.end = end
	r.shard.Committed(min(r.partition.HighWatermark(), r.end))
	r.absorb(r.shard.Loaded(r.now()))
	level := slog.LevelInfo
	if records == 0 {
		level = slog.LevelDebug // a fresh topic has fifty of these
	}
	r.logger.Log(ctx, level, "coordinator shard loaded", "leader_epoch", r.epoch, "records", records, "end_offset", end, "took", r.now().Sub(start))
	return loaded, nil
}

// replicated waits until the high watermark has passed all that was loaded. A leader that was just elected knows it only
// once its followers have fetched: until then a read of what counts as committed could go back behind one that the leader
// before has answered. It reports false when the leadership ends.
func (r *runner[S, R]) replicated(ctx context.Context) bool {
	for r.partition.HighWatermark() < r.end {
		select {
		case <-ctx.Done():
			return false
		case <-r.wake:
		}
	}
	r.shard.Committed(r.end)
	return true
}

// replayBatch applies one batch of the log: records of a type that is not known
// here are passed over, any that cannot be read fails the load.
func (r *runner[S, R]) replayBatch(b record.Batch, seen func(R)) (records int, err error) {
	producer := int64(-1)
	if b.IsTransactional() {
		producer = b.ProducerID()
	}
	it := record.NewRecordIterator(b, record.Limits{MaxDecompressed: loadLimit})
	defer it.Close()
	for it.Next() {
		rec := it.Record()
		offset := b.OffsetOf(rec)
		if b.IsControl() {
			if kind, err := record.ParseControlKey(rec.Key); err == nil && (kind == record.Commit || kind == record.Abort) {
				r.shard.ReplayEndTxn(offset, b.ProducerID(), kind == record.Commit)
			}
			continue
		}
		decoded, known, err := r.decode(rec.Key, rec.Value)
		if err != nil {
			return records, fmt.Errorf("offset %d: %w", offset, err)
		}
		if !known {
			continue
		}
		seen(decoded)
		r.shard.Replay(offset, producer, decoded)
		records++
	}
	return records, it.Err()
}

// loop runs events until ctx ends. After each it takes what else is queued into
// the same batch, then appends it.
func (r *runner[S, R]) loop(ctx context.Context) (cause error) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		r.settle()
		if r.moved == nil { // else what was replayed since is in no log, though the high watermark may be above it
			r.commit()
		}
		if r.moved != nil {
			return r.moved
		}
		r.arm(timer)
		select {
		case <-ctx.Done():
			return shard.ErrNotCoordinator
		case e := <-r.events:
			r.handle(e)
			r.drain()
		case <-r.wake:
		case <-timer.C:
			r.expire()
			r.tick()
		}
	}
}

// tick runs the clocks that have run out. A shard stops at each that writes, so
// that the next one sees its records.
func (r *runner[S, R]) tick() {
	r.prepare()
	now := r.now()
	for {
		at, ok := r.shard.NextDeadline()
		if !ok || at.After(now) {
			return
		}
		r.absorb(r.shard.Tick(now))
	}
}

// drain handles what is queued right now, so that it shares a batch.
func (r *runner[S, R]) drain() {
	for range len(r.events) {
		select {
		case e := <-r.events:
			r.handle(e)
		default:
			return
		}
	}
}

func (r *runner[S, R]) handle(e func(*runner[S, R])) {
	r.prepare()
	e(r)
}

// prepare tells the shard what its kind knows of the cluster.
func (r *runner[S, R]) prepare() {
	if r.before != nil {
		r.before(r.shard)
	}
}

// arm sets the timer to the next thing that happens by itself.
func (r *runner[S, R]) arm(timer *time.Timer) {
	next, ok := r.shard.NextDeadline()
	for _, b := range r.inFlight { // oldest first
		if b.waits() {
			if !ok || b.expires.Before(next) {
				next, ok = b.expires, true
			}
			break
		}
	}
	wait := time.Hour
	if ok {
		wait = max(next.Sub(r.now()), 0)
	}
	timer.Reset(wait)
}

// absorb takes the effects of one event: records into the batch and into the
// shard, replies to their callers now or with the batch.
func (r *runner[S, R]) absorb(fx shard.Effects[R]) {
	if fx.Beside != nil {
		r.beside(fx.Beside) // also when the write fails: the shard waits for the outcome
	}
	var holder *pending
	if len(fx.Records) > 0 {
		var err error
		if holder, err = r.write(fx); err != nil {
			r.fail(fx.Replies, []shard.WriteID{fx.Write}, err)
			return
		}
	} else if r.batch != nil {
		holder = r.batch
	} else if n := len(r.inFlight); n > 0 {
		holder = r.inFlight[n-1]
	}
	for _, reply := range fx.Replies {
		if reply.AfterCommit && holder != nil {
			holder.replies = append(holder.replies, reply)
		} else {
			r.deliver(reply.To, reply.Response)
		}
	}
	if fx.Write != 0 {
		if holder != nil {
			holder.writes = append(holder.writes, fx.Write)
		} else {
			r.absorb(r.shard.Finish(r.now(), fx.Write, nil))
		}
	}
}

// beside does work that takes long on a goroutine of its own. The shard takes the outcome as an event.
func (r *runner[S, R]) beside(work func() any) {
	r.jobs.Go(func() {
		outcome := work()
		select {
		case r.events <- func(r *runner[S, R]) { r.absorb(r.outcome(r.shard, r.now(), outcome)) }:
		case <-r.ending:
		}
	})
}

type encoded[R any] struct {
	record     R
	key, value []byte
}

// write puts records into the batch, beginning a new one where they do not fit.
// Records that must stand together and fit in no batch are refused whole. An error
// means that none of the records that must stand together were replayed: they were
// worked out on a state that does not hold any more when an earlier batch failed.
func (r *runner[S, R]) write(fx shard.Effects[R]) (*pending, error) {
	all := make([]encoded[R], len(fx.Records))
	size := 0
	limit := r.partition.MaxBatchBytes()
	for i, rec := range fx.Records {
		key, value, err := r.encode(rec)
		if err != nil {
			return nil, err
		}
		all[i] = encoded[R]{rec, key, value}
		one := record.MaxRecordSize(key, value, nil)
		size += one
		if record.HeaderSize+one > limit || !fx.Splittable && record.HeaderSize+size > limit {
			return nil, fmt.Errorf("%d bytes of records do not fit in a batch of %d: %w", size, limit, shard.ErrUnknownServer)
		}
	}
	if fx.HasProducer || r.batch != nil && (r.batch.txn || !fx.Splittable && r.batch.builder.Size()+size > limit) {
		if err := r.flush(); err != nil {
			return nil, err
		}
	}
	producer := int64(-1)
	if fx.HasProducer {
		producer = fx.ProducerID
	}
	for _, e := range all {
		if r.batch != nil && r.batch.builder.SizeWith(e.key, e.value, nil) > limit {
			if err := r.flush(); err != nil {
				return nil, err
			}
		}
		if r.batch == nil {
			r.begin(fx)
		}
		if err := r.batch.builder.Append(r.now().UnixMilli(), e.key, e.value, nil); err != nil {
			return nil, err
		}
		r.batch.last = r.end
		r.shard.Replay(r.end, producer, e.record)
		r.end++
	}
	return r.batch, nil
}

func (r *runner[S, R]) begin(fx shard.Effects[R]) {
	opts := record.BuilderOptions{}
	if fx.HasProducer {
		opts.Transactional = true
		opts.Producer = &record.Producer{ID: fx.ProducerID, Epoch: fx.ProducerEpoch, BaseSequence: record.NoSequence}
	}
	r.batch = &pending{builder: record.NewBuilder(opts), base: r.end, last: r.end - 1, expires: r.now().Add(r.timeout), txn: fx.HasProducer, opts: AppendOptions{Guard: fx.Guard}}
}

// flush appends the batch. When that fails, the shard goes back to where it was
// before the batch, and each operation in it is told why.
func (r *runner[S, R]) flush() error {
	b := r.batch
	if b == nil {
		return nil
	}
	r.batch = nil
	err := r.partition.Append(b.builder.Bytes(), r.epoch, b.base, b.opts)
	if err == nil {
		r.inFlight = append(r.inFlight, b)
		return nil
	}
	r.logger.Warn("coordinator records were not written", "leader_epoch", r.epoch, "base_offset", b.base, "records", b.last-b.base+1, "cause", err)
	r.shard.Revert(b.base)
	r.end = b.base
	if errors.Is(err, errEndMoved) {
		r.moved = err
	}
	r.fail(b.replies, b.writes, err)
	return err
}

// settle flushes until nothing is left to write: what an outcome leads to may
// write again.
func (r *runner[S, R]) settle() {
	for r.batch != nil && r.moved == nil {
		_ = r.flush() // whoever wrote has been told
	}
}

func (r *runner[S, R]) fail(replies []shard.Reply, writes []shard.WriteID, err error) {
	told := writeError(err)
	for _, reply := range replies {
		response := reply.Response
		if reply.AfterCommit {
			response = response.Failed(told)
		}
		r.deliver(reply.To, response)
	}
	for _, write := range writes {
		if write != 0 {
			r.absorb(r.shard.Finish(r.now(), write, told))
		}
	}
}

// commit lets leave what the high watermark has passed.
func (r *runner[S, R]) commit() {
	if r.after != nil {
		defer r.after(r)
	}
	for {
		hw := r.partition.HighWatermark()
		r.shard.Committed(min(hw, r.end))
		if len(r.inFlight) == 0 || r.inFlight[0].last >= hw && !mutantAnswersUncommitted {
			return
		}
		b := r.inFlight[0]
		r.inFlight = r.inFlight[1:]
		b.tell(nil)
		for _, reply := range b.replies {
			r.deliver(reply.To, reply.Response)
		}
		for _, write := range b.writes {
			r.absorb(r.shard.Finish(r.now(), write, nil))
		}
		if r.settle(); r.moved != nil {
			return
		}
	}
}

// expire gives up waiting for batches that were not replicated in time. Their
// records stay and may commit later.
func (r *runner[S, R]) expire() {
	for _, b := range r.inFlight {
		if !b.waits() || b.expires.After(r.now()) {
			continue
		}
		replies, writes := b.replies, b.writes
		b.replies, b.writes = nil, nil
		b.tell(shard.ErrCoordinatorNotAvailable)
		r.fail(replies, writes, context.DeadlineExceeded)
	}
}

// unload answers everything that waits, then ends the shard. Events still in the
// queue are dropped: whoever sent them sees that the shard stopped.
func (r *runner[S, R]) unload(cause error) {
	told := writeError(cause)
	if r.batch != nil {
		r.inFlight = append(r.inFlight, r.batch)
	}
	for _, b := range r.inFlight {
		b.tell(told)
		for _, reply := range b.replies {
			r.deliver(reply.To, reply.Response.Failed(told))
		}
	}
	for _, reply := range r.shard.Unload().Replies {
		r.deliver(reply.To, reply.Response)
	}
	r.batch, r.inFlight, r.moved = nil, nil, nil
}
