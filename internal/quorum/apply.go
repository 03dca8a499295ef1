package quorum

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/stelelog/stele/internal/controller"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
	"go.etcd.io/raft/v3"
)

// machine is the controller and its place in the metadata log. Committed entries are replayed into it; while it is
// active it proposes, and replays at once, what the controller makes of requests.
//
// Invariant: the controller has replayed everything below replayed. While active, that is the end of the log with all
// that was proposed; else it is what was applied.
type machine struct {
	controller *controller.Controller
	node       *node
	log        *slog.Logger
	image      atomic.Pointer[metadata.Image] // newest committed image, for readers
	level      metadata.Level                 // metadata.version of a new cluster

	replayed int64
	// active: leader, and everything of earlier leaders is applied. What follows counts while it is.
	active    bool
	term      uint64 // the leadership it is active in
	lastIndex uint64 // of the entry that ends at replayed
	proposed  int    // entries of those that were proposed since the last drain
	begun     uint64 // index of the last entry the controller began with

	// waiting are those whose records are on their way, reading those without any; both in order of index.
	waiting, reading []waiter
	asked            uint64 // the last question whether this is still the leader
}

// waiter is a request whose answer leaves when index is committed. Without records of its own nobody but this leader has
// seen it, which may be deposed and not know: then a majority must have said that it follows it, after it was computed.
type waiter struct {
	index  uint64
	asked  uint64 // the question that must be answered, 0: none
	r      *Request
	result controller.Result
	err    error
}

func newMachine(c *controller.Controller, n *node, level metadata.Level, logger *slog.Logger) *machine {
	m := &machine{controller: c, node: n, level: level, log: logger}
	m.publish()
	return m
}

// load starts from the snapshot at that place.
func (m *machine) load(fsys vfs.FS, dir string, at position) error {
	if at.EndOffset > 0 {
		img, err := readImage(fsys, filepath.Join(dir, at.snapshotID().file()), at)
		if err != nil {
			return err
		}
		m.controller.Load(img)
	}
	m.replayed = at.EndOffset
	m.publish()
	return nil
}

// readImage reads a snapshot into an image.
func readImage(fsys vfs.FS, name string, at position) (*metadata.Image, error) {
	delta := metadata.NewDelta(metadata.EmptyImage())
	err := readSnapshot(fsys, name, func(value []byte) error {
		rec, _, err := metadata.DecodeRecord(value)
		if err != nil {
			return err
		}
		return delta.Replay(rec, at.EndOffset-1)
	})
	if err != nil {
		return nil, err
	}
	return delta.Apply(at.EndOffset-1, int32(at.Term)), nil
}

// publish shows the newest committed image to readers.
func (m *machine) publish() { m.image.Store(m.controller.Committed()) }

// known says whether the leader's high watermark is: that takes a committed entry of its own term.
func (m *machine) known() bool {
	if !m.node.leading() {
		return m.node.applied.EndOffset > 0
	}
	return m.node.applied.Term == m.node.term
}

// apply takes a committed entry: it is replayed if the controller did not make it itself, and those who wait for it
// are answered.
func (m *machine) apply(c committed) error {
	if c.Place.EndOffset > m.replayed {
		if err := m.replay(c.Batch); err != nil {
			return err
		}
		// While active, an entry of raft's own behind all that was proposed.
		m.lastIndex = c.Place.Index
	}
	m.controller.CommittedTo(c.Place.EndOffset)
	// Who is answered may look at once.
	m.publish()
	m.answer(c.Place.Index)
	return nil
}

// replay lets the controller follow a batch of the log, which begins where it stands.
func (m *machine) replay(b record.Batch) error {
	if b.BaseOffset() != m.replayed {
		return fmt.Errorf("batch at offset %d to replay, the controller is at %d", b.BaseOffset(), m.replayed)
	}
	recs, err := decodeRecords(b)
	if err != nil {
		return err
	}
	if err := m.controller.Replay(b.BaseOffset(), b.LastOffset(), b.PartitionLeaderEpoch(), recs); err != nil {
		return err
	}
	m.replayed = b.NextOffset()
	return nil
}

func decodeRecords(b record.Batch) ([]metadata.Record, error) {
	if b.IsControl() {
		return nil, nil
	}
	it := record.NewRecordIterator(b, record.Limits{})
	defer it.Close()
	recs := make([]metadata.Record, 0, b.Count())
	for it.Next() {
		rec, _, err := metadata.DecodeRecord(it.Record().Value)
		if err != nil {
			return nil, fmt.Errorf("metadata record at offset %d: %w", b.OffsetOf(it.Record()), err)
		}
		recs = append(recs, rec)
	}
	return recs, it.Err()
}

// answer lets go of those who waited for index or an earlier one, now that index is committed.
func (m *machine) answer(index uint64) {
	for len(m.waiting) > 0 && m.waiting[0].index <= index {
		m.waiting[0].finish()
		m.waiting = m.waiting[1:]
	}
	m.release(index)
}

// release lets go of those without records who wait for nothing any more.
func (m *machine) release(index uint64) {
	for len(m.reading) > 0 && m.reading[0].index <= index && m.reading[0].asked == 0 {
		m.reading[0].finish()
		m.reading = m.reading[1:]
	}
}

// ask asks the other voters whether they follow this leader, if somebody waits for that who has come since it was asked last.
func (m *machine) ask() error {
	if n := len(m.reading); n == 0 || m.reading[n-1].asked <= m.asked {
		return nil
	}
	return m.askAgain()
}

// askAgain asks for all who wait. It is for other voters than before, whose answers to earlier questions may be none.
func (m *machine) askAgain() error {
	if len(m.reading) == 0 {
		return nil
	}
	m.asked++
	return m.node.askLeading(m.asked)
}

// confirmed says that a majority followed this leader when, or after, it asked.
func (m *machine) confirmed(asked uint64) {
	for i := range m.reading {
		if m.reading[i].asked <= asked {
			m.reading[i].asked = 0
		}
	}
	m.release(m.node.applied.Index)
}

func (w waiter) finish() {
	switch {
	case w.err != nil:
		w.r.Done(nil, w.err)
	case w.result.Err != nil:
		w.r.Done(w.result.Reply, w.result.Err)
	default:
		w.r.Done(w.result.Reply, nil)
	}
}

// abandon tells all who wait that their records may be lost.
func (m *machine) abandon() {
	waiting := append(m.waiting, m.reading...)
	m.waiting, m.reading = nil, nil
	for _, w := range waiting {
		w.r.Done(nil, ErrNotController)
	}
}

// moved notices that the leadership the controller is active in is over.
func (m *machine) moved() {
	if m.active && (!m.node.leading() || m.node.term != m.term) {
		m.resign()
	}
}

// resign ends the activity: what was not committed is forgotten here, and comes back by apply if the next leader has it.
func (m *machine) resign() {
	m.active = false
	m.abandon()
	m.controller.Deactivate()
	m.replayed = m.node.applied.EndOffset
	m.proposed = 0
}

// activate makes the controller active once the leader has applied its own first entry, and with that everything
// before. It says whether it did, and so proposed.
func (m *machine) activate(now time.Time) (bool, error) {
	if m.active || !m.node.leading() || m.node.applied.Term != m.node.term && !mutantActiveEarly {
		return false, nil
	}
	if err := m.catchUp(); err != nil {
		return false, err
	}
	m.active, m.term = true, m.node.term
	m.log.Info("active controller", "epoch", m.term, "offset", m.replayed)
	err := m.take(m.controller.Activate(controller.At{Now: now, Next: m.replayed}, m.level), now)
	m.begun = m.lastIndex
	return true, err
}

// serving says whether the controller is active and what it began with is committed.
func (m *machine) serving() bool { return m.active && m.node.applied.Index >= m.begun }

// catchUp replays what raft appended by itself behind what the controller proposed, and counts from there.
func (m *machine) catchUp() error {
	s := m.node.store
	m.lastIndex, m.proposed = s.runs.lastIndex(), 0
	if m.replayed == s.runs.nextOffs {
		return nil
	}
	return s.batches(m.replayed, s.runs.nextOffs, scanBytes, func(b record.Batch) (bool, error) {
		return true, m.replay(b.Clone())
	})
}

// verify checks, after a drain, that the log holds what the controller replayed, where it replayed it.
func (m *machine) verify() error {
	if !m.active || !m.node.leading() || m.node.term != m.term {
		return nil
	}
	if end, ok := m.node.store.runs.offset(m.lastIndex + 1); !ok || end != m.replayed {
		return fmt.Errorf("controller replayed up to offset %d with index %d, in the log that ends at %d", m.replayed, m.lastIndex, end)
	}
	return m.catchUp()
}

// handle runs requests, each on what the one before it made, and parks their answers.
func (m *machine) handle(asked []*Request, now time.Time) error {
	if mutantStaleProposal {
		return m.handleTogether(asked, now)
	}
	for _, r := range asked {
		result, err := m.compute(r, now)
		if err := m.park(r, result, err, now); err != nil {
			return err
		}
	}
	return nil
}

// handleTogether is a planted bug: requests that come together do not see each other.
func (m *machine) handleTogether(asked []*Request, now time.Time) error {
	results, errs := make([]controller.Result, len(asked)), make([]error, len(asked))
	for i, r := range asked {
		results[i], errs[i] = m.compute(r, now)
	}
	for i, r := range asked {
		if err := m.park(r, results[i], errs[i], now); err != nil {
			return err
		}
	}
	return nil
}

// park takes what a request came to, and keeps its answer until it may leave.
func (m *machine) park(r *Request, result controller.Result, err error, now time.Time) error {
	if err == nil {
		err2 := m.take(result, now)
		if errors.Is(err2, ErrNotController) {
			r.Done(nil, err2)
			return nil
		}
		var refused *recordsError
		if errors.As(err2, &refused) {
			err = refused
		} else if err2 != nil {
			return err2
		}
	}
	w := waiter{index: m.lastIndex, r: r, result: result, err: err}
	if err == nil && len(result.Records) > 0 {
		if mutantAnswersUncommitted {
			w.finish()
			return nil
		}
		m.waiting = append(m.waiting, w)
		return nil
	}
	if mutantAnswersUnasked {
		w.finish()
		return nil
	}
	w.asked = m.asked + 1
	m.reading = append(m.reading, w)
	return nil
}

// compute runs a request's function. It changes nothing of the cluster, so a mistake in it costs only its own request.
func (m *machine) compute(r *Request, now time.Time) (result controller.Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			m.log.Error("request to the controller panicked", "panic", p, "stack", string(debug.Stack()))
			result, err = controller.Result{}, &PanicError{Value: p}
		}
	}()
	return r.Run(m.controller, now, m.replayed)
}

// nextDeadline is when tick has something to do.
func (m *machine) nextDeadline() (time.Time, bool) { return m.controller.NextDeadline() }

// tick does what is due by the clock, a bounded part of it at a time.
func (m *machine) tick(now time.Time) error {
	for range groupLimit {
		at, ok := m.controller.NextDeadline()
		if !ok || at.After(now) {
			return nil
		}
		result := m.controller.Tick(controller.At{Now: now, Next: m.replayed})
		if err := m.take(result, now); errors.Is(err, ErrNotController) {
			return nil
		} else if err != nil {
			return err
		}
		if f, ok := result.Reply.(controller.Fenced); ok {
			m.log.Info("broker fenced", "broker", f.Broker, "brokerEpoch", f.Epoch, "listenerRefused", f.Refused)
		}
	}
	return nil
}

// recordsError says that the controller made records that cannot be written; nothing of them was.
type recordsError struct{ err error }

func (e *recordsError) Error() string { return "records cannot be written: " + e.err.Error() }
func (e *recordsError) Unwrap() error { return e.err }

// take proposes the records of a result and replays them, in as few batches as they fit. ErrNotController and
// *recordsError mean that nothing was taken.
func (m *machine) take(result controller.Result, now time.Time) error {
	batches, err := m.build(result, now)
	if err != nil {
		return &recordsError{err}
	}
	for i, b := range batches {
		err := m.node.propose(m.term, m.lastIndex, b.data, m.proposed)
		var stale *staleProposalError
		if errors.As(err, &stale) || errors.Is(err, raft.ErrProposalDropped) {
			if i > 0 {
				return fmt.Errorf("raft refused batch %d of an operation after it took the first: %w", i, err)
			}
			return ErrNotController
		}
		if err != nil {
			return err
		}
		m.lastIndex, m.proposed = m.lastIndex+1, m.proposed+1
		last := m.replayed + int64(len(b.records)) - 1
		if err := m.controller.Replay(m.replayed, last, int32(m.term), b.records); err != nil {
			return err
		}
		m.replayed = last + 1
	}
	return nil
}

// built is one batch and the records in it.
type built struct {
	data    []byte
	records []metadata.Record
}

// build makes batches of a result's records: one if it is atomic, else as many as their size asks for.
func (m *machine) build(result controller.Result, now time.Time) ([]built, error) {
	if len(result.Records) == 0 {
		return nil, nil
	}
	level := m.controller.Image().MetadataVersion()
	timestamp := now.UnixMilli()
	var out []built
	b, first := record.NewBuilder(record.BuilderOptions{}), 0
	for i, rec := range result.Records {
		value, err := metadata.AppendRecord(nil, rec, level.RecordVersion(rec))
		if err != nil {
			return nil, err
		}
		full := b.Count() == controller.MaxRecordsPerRequest || b.SizeWith(nil, value, nil) > maxBatchBytes
		if full && result.Atomic && b.SizeWith(nil, value, nil) > maxBatchBytes {
			return nil, fmt.Errorf("%d records that must be one batch are larger than %d bytes", len(result.Records), maxBatchBytes)
		}
		if full && !result.Atomic && b.Count() > 0 {
			out = append(out, built{b.Bytes(), result.Records[first:i]})
			b, first = record.NewBuilder(record.BuilderOptions{}), i
		}
		if err := b.Append(timestamp, nil, value, nil); err != nil {
			return nil, err
		}
	}
	return append(out, built{b.Bytes(), result.Records[first:]}), nil
}
