package txn

import (
	"time"

	"github.com/stelelog/stele/internal/shard"
)

// An InitRequest asks for the producer id and epoch of a transactional id.
type InitRequest struct {
	ID            string
	TimeoutMs     int32
	ProducerID    int64 // what the producer has already (KIP-360); -1: nothing
	ProducerEpoch int16
	Client        Client
}

// An InitReply answers it. With Err, the id and the epoch are -1.
type InitReply struct {
	Err           error
	ProducerID    int64
	ProducerEpoch int16
}

// Failed is err.
func (*InitReply) Failed(err error) shard.Response { return initError(err) }

func initError(err error) *InitReply { return &InitReply{err, NoProducerID, NoEpoch} }

// Validate makes the checks that need no shard, and so come before whether one is loaded: ErrInvalidRequest,
// ErrInvalidTransactionTimeout.
func (c Config) Validate(req InitRequest) error {
	switch {
	case req.ID == "", (req.ProducerID == NoProducerID) != (req.ProducerEpoch == NoEpoch):
		return ErrInvalidRequest
	case req.TimeoutMs < 1, time.Duration(req.TimeoutMs)*time.Millisecond > c.withDefaults().MaxTimeout:
		return ErrInvalidTransactionTimeout
	}
	return nil
}

// InitProducerID gives a producer its id and epoch, and fences whoever had the transactional id before. What that left
// open is aborted first: the producer is told ErrConcurrentTransactions, and asks again.
func (s *Shard) InitProducerID(now time.Time, to shard.ReplyTo, req InitRequest) Effects {
	var fx Effects
	ms := now.UnixMilli()
	m, known := s.ids.Get(req.ID)
	if known && s.busy(req.ID) || !known && s.ids.Unsettled(req.ID) {
		fx.ReplyAfterCommit(to, initError(ErrConcurrentTransactions))
		return fx
	}
	if !known {
		id, ok := s.config.NextProducerID()
		if !ok {
			fx.Reply(to, initError(ErrNoProducerID))
			return fx
		}
		m = &Metadata{
			ProducerID: id, PreviousProducerID: id, NextProducerID: NoProducerID, ProducerEpoch: NoEpoch, NextProducerEpoch: NoEpoch,
			lastProducerEpoch: NoEpoch, Start: NoTime,
		}
	}
	expected := req.ProducerEpoch
	if expected != NoEpoch && m.ProducerEpoch != NoEpoch && req.ProducerID != m.ProducerID &&
		!(req.ProducerID == m.PreviousProducerID && expected >= lastEpoch) {
		fx.ReplyAfterCommit(to, initError(ErrProducerFenced))
		return fx
	}
	if m.State == Ongoing {
		next, err := s.fence(now, m)
		if err != nil {
			fx.Reply(to, initError(err))
			return fx
		}
		fx.Append(s.record(req.ID, next))
		fx.ReplyAfterCommit(to, initError(ErrConcurrentTransactions))
		return fx
	}
	next := m.with(ms, Empty)
	next.TimeoutMs, next.Partitions, next.Start, next.client = req.TimeoutMs, nil, NoTime, req.Client
	next.fenced = false
	if err := s.nextEpoch(next, m, req); err != nil {
		if err == ErrNoProducerID {
			fx.Reply(to, initError(err))
		} else {
			fx.ReplyAfterCommit(to, initError(err))
		}
		return fx
	}
	fx.Append(s.record(req.ID, next))
	fx.ReplyAfterCommit(to, &InitReply{ProducerID: next.ProducerID, ProducerEpoch: next.ProducerEpoch})
	return fx
}

// nextEpoch sets the producer id and epoch that the producer gets, from those that the id has.
func (s *Shard) nextEpoch(next, m *Metadata, req InitRequest) error {
	expected, e := req.ProducerEpoch, m.ProducerEpoch
	switch {
	case e == NoEpoch:
		next.ProducerEpoch, next.lastProducerEpoch = 0, NoEpoch
		return nil
	case expected != NoEpoch && req.ProducerID != m.ProducerID:
		// Of the producer id before, whose epochs were used up: what it was given instead may not have reached it.
		if e == 0 && m.lastProducerEpoch == expected {
			next.PreviousProducerID = m.PreviousProducerID // this reply may be lost too
			return nil
		}
		return ErrProducerFenced
	case m.exhausted():
		if expected != NoEpoch && expected != e {
			return ErrProducerFenced
		}
		id, ok := s.config.NextProducerID()
		if !ok {
			return ErrNoProducerID
		}
		next.ProducerID, next.ProducerEpoch, next.lastProducerEpoch = id, 0, expected
		return nil
	case expected == NoEpoch:
		next.ProducerEpoch, next.lastProducerEpoch = e+1, NoEpoch
		return nil
	case expected == e:
		next.ProducerEpoch, next.lastProducerEpoch = e+1, e
		return nil
	case expected == m.lastProducerEpoch: // sent again
		return nil
	}
	return ErrProducerFenced
}

// fence is the transition that aborts an open transaction on behalf of somebody else than its producer: the epoch goes up,
// and nobody is told of the new one. It is the marker's.
func (s *Shard) fence(now time.Time, m *Metadata) (*Metadata, error) {
	next := m.with(now.UnixMilli(), PrepareAbort)
	next.fenced, next.ClientVersion = true, Version0
	if s.level >= Version2 {
		next.ClientVersion = Version2
	}
	if m.ProducerEpoch > lastEpoch { // damage: there is no epoch above it
		return next, nil
	}
	if m.exhausted() && s.level >= Version2 {
		id, ok := s.config.NextProducerID()
		if !ok {
			return nil, ErrNoProducerID
		}
		next.NextProducerID = id
	}
	next.ProducerEpoch, next.lastProducerEpoch = m.ProducerEpoch+1, NoEpoch
	return next, nil
}
