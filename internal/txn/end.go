package txn

import (
	"time"

	"github.com/stelelog/stele/internal/shard"
)

// An EndRequest ends a transaction.
type EndRequest struct {
	ID            string
	ProducerID    int64
	ProducerEpoch int16
	Commit        bool
	Version       int16 // what the client works by: Version0 or Version2
	Client        Client
}

// An EndReply answers it. To a client of Version2 it tells what the next transaction is to be sent with; otherwise, and
// with Err, the id and the epoch are -1.
type EndReply struct {
	Err           error
	ProducerID    int64
	ProducerEpoch int16
}

// Failed is err.
func (*EndReply) Failed(err error) shard.Response { return endError(err) }

func endError(err error) *EndReply { return &EndReply{err, NoProducerID, NoEpoch} }

// EndTxn decides a transaction. The reply leaves when the decision is committed; markers and the completion follow.
func (s *Shard) EndTxn(now time.Time, to shard.ReplyTo, req EndRequest) Effects {
	var fx Effects
	m, ok := s.ids.Get(req.ID)
	next, reply := (*Metadata)(nil), endError(nil)
	switch {
	case req.ID == "":
		reply.Err = ErrInvalidRequest
	case !ok:
		reply.Err = ErrInvalidProducerIDMapping
	case req.Version >= Version2:
		next, reply = s.endV2(now, m, req)
	default:
		next, reply.Err = s.endV0(now, m, req)
	}
	if reply.Err == ErrNoProducerID {
		fx.Reply(to, reply)
		return fx
	}
	if next != nil {
		next.client = req.Client
		fx.Append(s.record(req.ID, next))
	}
	fx.ReplyAfterCommit(to, reply)
	return fx
}

// endV0 is for producers whose epoch stays as it is. A nil transition without an error: it is done already.
func (s *Shard) endV0(now time.Time, m *Metadata, req EndRequest) (*Metadata, error) {
	switch {
	case m.ProducerID != req.ProducerID:
		return nil, ErrInvalidProducerIDMapping
	case m.ProducerEpoch != req.ProducerEpoch:
		return nil, ErrProducerFenced
	case s.busy(req.ID):
		return nil, ErrConcurrentTransactions
	}
	switch {
	case m.State == Ongoing:
		next := m.with(now.UnixMilli(), prepareState(req.Commit))
		next.ClientVersion = Version0
		return next, nil
	case m.State == completeState(req.Commit):
		return nil, nil
	}
	return nil, ErrInvalidTxnState
}

// endV2 is for producers that have an epoch for each transaction.
func (s *Shard) endV2(now time.Time, m *Metadata, req EndRequest) (*Metadata, *EndReply) {
	rotated := req.ProducerID == m.PreviousProducerID && req.ProducerEpoch == lastEpoch && m.ProducerEpoch == 0 && m.ProducerID != req.ProducerID
	switch {
	case s.busy(req.ID):
		return nil, endError(ErrConcurrentTransactions)
	case m.ProducerID != req.ProducerID && !rotated:
		return nil, endError(ErrInvalidProducerIDMapping)
	}
	current := !rotated && req.ProducerEpoch == m.ProducerEpoch
	// Sent again, unless it was the coordinator who ended the transaction: then the producer is fenced.
	again := m.State.completed() && !m.fenced && (rotated || req.ProducerEpoch < lastEpoch && m.ProducerEpoch == req.ProducerEpoch+1)
	switch {
	case again:
		if m.State != completeState(req.Commit) {
			return nil, endError(ErrInvalidTxnState)
		}
		return nil, &EndReply{ProducerID: m.ProducerID, ProducerEpoch: m.ProducerEpoch}
	case !current:
		return nil, endError(ErrProducerFenced)
	case m.State != Ongoing && req.Commit:
		return nil, endError(ErrInvalidTxnState) // nothing was written
	}
	next := m.with(now.UnixMilli(), prepareState(req.Commit))
	next.fenced, next.ClientVersion = false, Version2
	if m.State != Ongoing { // an abort of nothing: it ends whatever may be on its way in the present epoch
		next.Partitions, next.Start = nil, next.LastUpdate
	}
	reply := &EndReply{ProducerID: m.ProducerID, ProducerEpoch: m.ProducerEpoch + 1}
	if m.exhausted() {
		id, ok := s.config.NextProducerID()
		if !ok {
			return nil, endError(ErrNoProducerID)
		}
		next.NextProducerID = id
		reply.ProducerID, reply.ProducerEpoch = id, 0
	}
	if m.ProducerEpoch <= lastEpoch {
		next.ProducerEpoch, next.lastProducerEpoch = m.ProducerEpoch+1, m.ProducerEpoch
	}
	return next, reply
}

func prepareState(commit bool) State {
	if commit {
		return PrepareCommit
	}
	return PrepareAbort
}

func completeState(commit bool) State {
	if commit {
		return CompleteCommit
	}
	return CompleteAbort
}
