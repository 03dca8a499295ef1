package sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/group"
)

// An entry is one record of the simulated log, as bytes, or the marker that ends a transaction.
type entry struct {
	key, value []byte
	producerID int64 // -1: not transactional
	marker     bool
	commit     bool
}

// A request is on its way to the coordinator. Sent twice by the network, it is two requests.
type request struct {
	from   func(*request, group.Response) // takes the answer
	member *consumer                      // nil: an administrator or a producer
	body   any                            // a kmsg request, fetchCommitted, fetchStable or endTxn
	at     time.Time                      // of arrival
	// positions are the log offsets of the records that it had written, and end the shard's end offset
	// after it.
	positions []int64
	end       int64
	// generation is what the group had when the request came.
	generation int32
}

type (
	fetchCommitted struct{ req group.FetchRequest }
	fetchStable    struct{ req group.FetchRequest }
	endTxn         struct {
		producerID int64
		commit     bool
	}
)

// A world is one simulated partition of __consumer_offsets with its clients.
type world struct {
	*loop
	log   []entry
	hw    int64
	lead  *coordinator // nil: none
	check *checker
	uuids int
	// handles are the requests that the present coordinator has not answered.
	handles map[group.ReplyTo]*request
	last    group.ReplyTo
	calm    bool // no more faults
	// sessions are the session timeouts of the consumers, by name.
	sessions map[string]time.Duration
}

// A coordinator is the runtime of one shard in one reign.
type coordinator struct {
	w        *world
	shard    *group.Shard
	batch    []entry // replayed, not yet appended
	batchAt  int64
	waiting  []*operation
	flushing bool
}

// An operation is what waits for the high watermark.
type operation struct {
	end     int64
	replies []group.Reply
	write   group.WriteID
	done    bool
}

const (
	initialDelay = 3 * time.Second
	writeTimeout = 5 * time.Second
)

var errTimedOut = fmt.Errorf("%w: the write was not committed in time", group.ErrCoordinatorNotAvailable)

// elect makes a new coordinator from the log.
func (w *world) elect() {
	c := &coordinator{w: w, shard: group.NewShard(group.Config{
		InitialRebalanceDelay:  initialDelay,
		OffsetsRetention:       1000 * time.Hour,
		RetentionCheckInterval: 1000 * time.Hour,
		NewUUID:                func() string { w.uuids++; return fmt.Sprintf("u%d", w.uuids) },
	})}
	for i, e := range w.log {
		c.replay(int64(i), e)
	}
	c.shard.Committed(w.hw)
	w.lead = c
	w.check.elected()
	w.note("coordinator: %d records, high watermark %d", len(w.log), w.hw)
	c.apply(c.shard.Loaded(w.now), nil)
	w.replicateSoon()
}

// depose ends the reign. A coordinator that resigns answers what is parked; one that crashes does not. What
// was above the high watermark may be lost with it.
func (w *world) depose(crash bool) {
	c := w.lead
	if c == nil {
		return
	}
	w.note("coordinator ends, crash %t", crash)
	if !crash {
		for _, op := range c.waiting {
			for _, r := range op.replies {
				w.answer(r.To, r.Response.Failed(group.ErrNotCoordinator))
			}
		}
		for _, r := range c.shard.Unload().Replies {
			w.answer(r.To, r.Response)
		}
		w.check.answeredAll()
	}
	w.handles = map[group.ReplyTo]*request{}
	w.lead = nil
	keep := w.hw + w.rng.Int64N(int64(len(w.log))-w.hw+1)
	w.log = w.log[:keep]
	w.check.truncated(keep)
}

func (c *coordinator) replay(offset int64, e entry) {
	if e.marker {
		c.shard.ReplayEndTxn(offset, e.producerID, e.commit)
		return
	}
	rec, err := group.DecodeRecord(e.key, e.value)
	if err != nil {
		panic(err)
	}
	c.shard.Replay(offset, e.producerID, rec)
}

// deliver hands a request to the coordinator, if there is one.
func (w *world) deliver(r *request) {
	r.at = w.now
	c := w.lead
	if c == nil {
		r.from(r, nil)
		return
	}
	w.last++
	to := w.last
	w.handles[to] = r
	w.check.arrived(r)
	now := w.now
	switch body := r.body.(type) {
	case *kmsg.JoinGroupRequest:
		c.apply(c.shard.JoinGroup(now, to, group.RequestContext{ClientID: r.member.name, ClientHost: "/10.0.0.1"}, body), r)
	case *kmsg.SyncGroupRequest:
		c.apply(c.shard.SyncGroup(now, to, body), r)
	case *kmsg.HeartbeatRequest:
		c.apply(c.shard.Heartbeat(now, to, body), r)
	case *kmsg.LeaveGroupRequest:
		c.apply(c.shard.LeaveGroup(now, to, body), r)
	case *kmsg.OffsetCommitRequest:
		c.apply(c.shard.OffsetCommit(now, to, body), r)
	case *kmsg.TxnOffsetCommitRequest:
		c.apply(c.shard.TxnOffsetCommit(now, to, body), r)
	case fetchStable:
		c.apply(c.shard.FetchStable(to, body.req), r)
	case fetchCommitted:
		w.answer(to, c.shard.FetchCommitted(body.req))
	case endTxn:
		c.flush()
		e := entry{producerID: body.producerID, marker: true, commit: body.commit}
		c.batchAt = c.shard.EndOffset()
		c.batch = []entry{e}
		c.replay(c.batchAt, e)
		c.flush()
		delete(w.handles, to)
	default:
		panic(fmt.Sprintf("no request: %T", r.body))
	}
}

// apply does what effects say; r is the request they come from, nil for a timer.
func (c *coordinator) apply(fx group.Effects, r *request) {
	if fx.HasProducer {
		c.flush()
	}
	for _, rec := range fx.Records {
		key, value, err := group.EncodeRecord(rec)
		if err != nil {
			panic(err)
		}
		e := entry{key: key, value: value, producerID: -1}
		if fx.HasProducer {
			e.producerID = fx.ProducerID
		}
		if len(c.batch) == 0 {
			c.batchAt = c.shard.EndOffset()
		}
		offset := c.batchAt + int64(len(c.batch))
		c.batch = append(c.batch, e)
		c.replay(offset, e)
		c.w.check.written(e)
		if r != nil {
			r.positions = append(r.positions, offset)
		}
	}
	op := &operation{end: c.shard.EndOffset(), write: fx.Write}
	if r != nil {
		r.end = op.end
	}
	for _, reply := range fx.Replies {
		if reply.AfterCommit {
			op.replies = append(op.replies, reply)
		} else {
			c.w.answer(reply.To, reply.Response)
		}
	}
	if op.write != 0 || len(op.replies) > 0 {
		c.waiting = append(c.waiting, op)
		c.w.after(writeTimeout, func() {
			if c.w.lead == c {
				c.finish(op, errTimedOut)
			}
		})
	}
	switch {
	case fx.HasProducer:
		c.flush()
	case len(c.batch) > 0 && !c.flushing:
		c.flushing = true
		c.w.after(c.w.between(0, 5*time.Millisecond), func() {
			if c.flushing = false; c.w.lead == c {
				c.flush()
			}
		})
	}
	c.release()
}

// flush appends the open batch, or fails to.
func (c *coordinator) flush() {
	if len(c.batch) == 0 {
		return
	}
	batch := c.batch
	c.batch = nil
	if !c.w.calm && !batch[0].marker && c.w.chance(2) {
		c.w.note("append of %d records at %d fails", len(batch), c.batchAt)
		c.shard.Revert(c.batchAt)
		c.w.check.reverted(c.batchAt)
		for _, op := range append([]*operation(nil), c.waiting...) {
			if op.end > c.batchAt {
				c.finish(op, group.ErrCoordinatorNotAvailable)
			}
		}
		return
	}
	if c.batchAt != int64(len(c.w.log)) {
		panic(fmt.Sprintf("batch at %d, log ends at %d", c.batchAt, len(c.w.log)))
	}
	c.w.log = append(c.w.log, batch...)
	c.w.replicateSoon()
}

// replicateSoon moves the high watermark to what is now the end, after a while.
func (w *world) replicateSoon() {
	c, end := w.lead, int64(len(w.log))
	lag := w.between(0, 20*time.Millisecond)
	if !w.calm && w.chance(1) {
		lag = w.between(0, 8*time.Second)
	}
	w.after(lag, func() {
		if w.lead != c || end <= w.hw {
			return
		}
		w.hw = end
		c.shard.Committed(end)
		c.release()
	})
}

// release finishes what the high watermark has passed.
func (c *coordinator) release() {
	for {
		var next *operation
		for _, op := range c.waiting {
			if op.end <= c.w.hw {
				next = op
				break
			}
		}
		if next == nil {
			return
		}
		c.finish(next, nil)
	}
}

func (c *coordinator) finish(op *operation, err error) {
	if op.done {
		return
	}
	op.done = true
	for i, other := range c.waiting {
		if other == op {
			c.waiting = append(c.waiting[:i:i], c.waiting[i+1:]...)
			break
		}
	}
	for _, reply := range op.replies {
		response := reply.Response
		if err != nil {
			response = response.Failed(err)
		}
		c.w.answer(reply.To, response)
	}
	if op.write != 0 {
		c.apply(c.shard.Finish(c.w.now, op.write, err), nil)
	}
}

// answer checks an answer and sends it back.
func (w *world) answer(to group.ReplyTo, response group.Response) {
	r := w.handles[to]
	if r == nil {
		w.check.fail("handle %d is answered twice, or was never given out: %+v", to, response)
		return
	}
	delete(w.handles, to)
	w.note("%d: %T of %s -> %v", to, r.body, nameOf(r), describe(response))
	w.check.answered(r, response)
	r.from(r, response)
}

// errorOf is the error of any answer; the first of a commit's.
func errorOf(response group.Response) error {
	switch r := response.(type) {
	case nil:
		return group.ErrNotCoordinator
	case *group.JoinReply:
		return r.Err
	case *group.SyncReply:
		return r.Err
	case *group.HeartbeatReply:
		return r.Err
	case *group.LeaveReply:
		return r.Err
	case *group.FetchReply:
		return r.Err
	case *group.CommitReply:
		for _, t := range r.Topics {
			for _, p := range t.Partitions {
				if p.Err != nil {
					return p.Err
				}
			}
		}
		return nil
	}
	return errors.New("unknown answer")
}

func nameOf(r *request) string {
	if r.member == nil {
		return "an administrator"
	}
	return r.member.name
}

// describe is an answer in a line of the trace.
func describe(response group.Response) string {
	err := errorOf(response)
	if join, ok := response.(*group.JoinReply); ok && err == nil {
		return fmt.Sprintf("member %s generation %d leader %s", join.MemberID, join.Generation, join.Leader)
	}
	if err != nil {
		return err.Error()
	}
	return "ok"
}
