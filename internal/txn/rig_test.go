package txn

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/shard"
)

// rig drives one shard over a log in memory, as a runtime does.
type rig struct {
	t       *testing.T
	s       *Shard
	log     []*Record
	hw      int
	now     time.Time
	start   time.Time
	nextID  int64
	noIDs   bool
	fail    error // of the next append
	held    bool  // the high watermark stays where it is
	waiting []waitingReply
	writes  []waitingWrite
	replies map[shard.ReplyTo]shard.Response
	last    shard.ReplyTo
	markers []Marker // taken, and not yet written
	level   int16
	config  Config
}

type waitingReply struct {
	after int
	reply shard.Reply
}

type waitingWrite struct {
	after int
	id    shard.WriteID
}

const second = time.Second

func newRig(t *testing.T, level int16) *rig {
	r := &rig{t: t, nextID: 4000, replies: map[shard.ReplyTo]shard.Response{}, level: level, start: time.UnixMilli(1_000_000), now: time.UnixMilli(1_000_000)}
	r.config.NextProducerID = func() (int64, bool) {
		if r.noIDs {
			return 0, false
		}
		r.nextID += 1000
		return r.nextID - 1000, true
	}
	r.load()
	return r
}

// load replays the log into a new shard, as the next coordinator does.
func (r *rig) load() {
	r.s = NewShard(r.config)
	r.s.SetLevel(r.level)
	for i, rec := range r.log {
		key, value, err := EncodeRecord(rec)
		if err != nil {
			r.t.Fatal(err)
		}
		decoded, _, err := DecodeRecord(key, value)
		if err != nil {
			r.t.Fatal(err)
		}
		r.s.Replay(int64(i), -1, decoded)
	}
	r.waiting, r.writes, r.markers, r.held = nil, nil, nil, false
	r.s.Loaded(r.now)
	r.commit()
}

func (r *rig) apply(fx Effects) {
	base := len(r.log)
	if len(fx.Records) > 0 {
		for i, rec := range fx.Records {
			r.log = append(r.log, rec)
			r.s.Replay(int64(base+i), -1, rec)
		}
		if err := r.fail; err != nil {
			r.fail = nil
			r.log = r.log[:base]
			r.s.Revert(int64(base))
			for _, reply := range fx.Replies {
				if reply.AfterCommit {
					reply.Response = reply.Response.Failed(err)
				}
				r.replies[reply.To] = reply.Response
			}
			if fx.Write != 0 {
				r.apply(r.s.Finish(r.now, fx.Write, err))
			}
			return
		}
	}
	for _, reply := range fx.Replies {
		if reply.AfterCommit {
			r.waiting = append(r.waiting, waitingReply{len(r.log), reply})
		} else {
			r.replies[reply.To] = reply.Response
		}
	}
	if fx.Write != 0 {
		r.writes = append(r.writes, waitingWrite{len(r.log), fx.Write})
	}
	if !r.held {
		r.commit()
	}
}

// commit lets the high watermark reach the end of the log.
func (r *rig) commit() {
	r.held, r.hw = false, len(r.log)
	r.s.Committed(int64(r.hw))
	for _, w := range r.waiting {
		r.replies[w.reply.To] = w.reply.Response
	}
	writes := r.writes
	r.waiting, r.writes = nil, nil
	for _, w := range writes {
		r.apply(r.s.Finish(r.now, w.id, nil))
	}
	r.markers = append(r.markers, r.s.TakeMarkers()...)
	r.tick()
}

// tick does what is due at the present time.
func (r *rig) tick() {
	for {
		at, ok := r.s.NextDeadline()
		if !ok || at.After(r.now) {
			return
		}
		r.apply(r.s.Tick(r.now))
	}
}

// at goes to a time after the start.
func (r *rig) at(d time.Duration) {
	r.now = r.start.Add(d)
	r.tick()
}

// mark writes all markers that are out.
func (r *rig) mark() {
	markers := r.markers
	r.markers = nil
	for _, m := range markers {
		r.s.MarkersWritten(r.now, m, m.Partitions)
	}
	r.tick()
}

func reply[T shard.Response](r *rig, request func(to shard.ReplyTo) Effects) T {
	r.last++
	to := r.last
	r.apply(request(to))
	got, _ := r.replies[to].(T)
	return got
}

func (r *rig) init(id string, producerID int64, epoch int16) string {
	got := reply[*InitReply](r, func(to shard.ReplyTo) Effects {
		return r.s.InitProducerID(r.now, to, InitRequest{ID: id, TimeoutMs: 60000, ProducerID: producerID, ProducerEpoch: epoch})
	})
	if got == nil {
		return "parked"
	}
	return outcome(got.Err, got.ProducerID, got.ProducerEpoch)
}

func outcome(err error, producerID int64, epoch int16) string {
	if err != nil {
		if producerID != NoProducerID || epoch != NoEpoch {
			return fmt.Sprintf("%s beside (%d,%d)", code(err), producerID, epoch)
		}
		return code(err)
	}
	return fmt.Sprintf("(%d,%d)", producerID, epoch)
}

func (r *rig) add(id string, producerID int64, epoch, version int16, partitions ...string) string {
	return r.ask(AddRequest{ID: id, ProducerID: producerID, ProducerEpoch: epoch, Version: version}, partitions)
}

func (r *rig) verify(id string, producerID int64, epoch int16, partitions ...string) string {
	return r.ask(AddRequest{ID: id, ProducerID: producerID, ProducerEpoch: epoch, Version: Version2, VerifyOnly: true}, partitions)
}

func (r *rig) ask(req AddRequest, partitions []string) string {
	for _, p := range partitions {
		req.Partitions = append(req.Partitions, tp(p))
	}
	got := reply[*AddReply](r, func(to shard.ReplyTo) Effects { return r.s.AddPartitions(r.now, to, req) })
	switch {
	case got == nil:
		return "parked"
	case got.Err != nil:
		return code(got.Err)
	}
	var text []string
	for i := range req.Partitions {
		if got.Missing != nil && got.Missing[i] {
			text = append(text, "120")
		} else {
			text = append(text, "0")
		}
	}
	return strings.Join(text, " ")
}

func (r *rig) end(id string, producerID int64, epoch, version int16, commit bool) string {
	got := reply[*EndReply](r, func(to shard.ReplyTo) Effects {
		return r.s.EndTxn(r.now, to, EndRequest{ID: id, ProducerID: producerID, ProducerEpoch: epoch, Version: version, Commit: commit})
	})
	if got == nil {
		return "parked"
	}
	if got.Err == nil && version < Version2 {
		return "0"
	}
	return outcome(got.Err, got.ProducerID, got.ProducerEpoch)
}

func tp(text string) TopicPartition {
	return TopicPartition{strings.TrimRight(text, "0123456789"), int32(text[len(text)-1] - '0')}
}

var codes = map[error]string{
	ErrConcurrentTransactions: "51", ErrInvalidProducerIDMapping: "49", ErrInvalidRequest: "42", ErrInvalidTransactionTimeout: "50", ErrInvalidTxnState: "48",
	ErrNoProducerID: "14", ErrProducerFenced: "90", ErrTransactionalIDNotFound: "105", shard.ErrCoordinatorNotAvailable: "15", shard.ErrNotCoordinator: "16",
}

func code(err error) string {
	if c, ok := codes[err]; ok {
		return c
	}
	return err.Error()
}

// newest is the last record of the log: state, id and epoch, and what else there is to say of it.
func (r *rig) newest() string {
	if len(r.log) == 0 {
		return "none"
	}
	return describe(r.log[len(r.log)-1])
}

func describe(rec *Record) string {
	m := rec.Value
	if m == nil {
		return "tombstone " + rec.ID
	}
	text := fmt.Sprintf("%s (%d,%d)", m.State, m.ProducerID, m.ProducerEpoch)
	if m.PreviousProducerID != m.ProducerID {
		text += fmt.Sprintf(" previous %d", m.PreviousProducerID)
	}
	if m.NextProducerID != NoProducerID {
		text += fmt.Sprintf(" next %d", m.NextProducerID)
	}
	for _, p := range m.Partitions {
		text += fmt.Sprintf(" %s%d", p.Topic, p.Partition)
	}
	return text
}

// out is the markers that are to be written.
func (r *rig) out() string {
	var text []string
	for _, m := range r.markers {
		kind := "abort"
		if m.Commit {
			kind = "commit"
		}
		one := fmt.Sprintf("%s (%d,%d) v%d", kind, m.ProducerID, m.ProducerEpoch, m.Version)
		for _, p := range m.Partitions {
			one += fmt.Sprintf(" %s%d", p.Topic, p.Partition)
		}
		text = append(text, one)
	}
	return strings.Join(text, "; ")
}

// want compares what was said with what ought to be.
func (r *rig) want(what, got, want string) {
	r.t.Helper()
	if got != want {
		r.t.Errorf("%s: %s, want %s", what, got, want)
	}
}

// put brings an id to a state by a record of the log.
func (r *rig) put(id string, m Metadata) {
	if m.NextProducerID == 0 {
		m.NextProducerID = NoProducerID
	}
	if m.PreviousProducerID == 0 {
		m.PreviousProducerID = m.ProducerID
	}
	m.TimeoutMs, m.LastUpdate, m.NextProducerEpoch = 60000, r.now.UnixMilli(), NoEpoch
	if m.State == Empty {
		m.Start = NoTime
	} else {
		m.Start = r.now.UnixMilli()
	}
	r.apply(Effects{Records: []*Record{{ID: id, Value: &m, Version: 1}}})
}

// dump is all that the shard holds of the log.
func (s *Shard) dump() string {
	var text strings.Builder
	for _, id := range slices.Sorted(maps.Keys(s.ids.Newest())) {
		fmt.Fprintf(&text, "%s: %+v\n", id, *s.ids.Newest()[id])
	}
	var committed []string
	s.ids.CommittedKeys(func(id string) { committed = append(committed, id) })
	slices.Sort(committed)
	for _, id := range committed {
		m, _ := s.ids.Committed(id)
		fmt.Fprintf(&text, "committed %s: %+v, unsettled %t\n", id, *m, s.ids.Unsettled(id))
	}
	fmt.Fprintf(&text, "end %d\n", s.EndOffset())
	return text.String()
}
