package txn

import (
	"time"

	"github.com/stelelog/stele/internal/shard"
)

// An AddRequest asks that partitions become part of a transaction, or, with VerifyOnly, whether they are.
type AddRequest struct {
	ID            string
	ProducerID    int64
	ProducerEpoch int16
	Version       int16 // what the client works by: Version0 or Version2
	Partitions    []TopicPartition
	VerifyOnly    bool
	Client        Client // nobody, if a broker asks
}

// An AddReply answers it. Err is that of all partitions; without one, Missing are the partitions that VerifyOnly did
// not find, by their place in the request.
type AddReply struct {
	Err     error
	Missing []bool // nil: none
}

// Failed is err.
func (*AddReply) Failed(err error) shard.Response { return &AddReply{Err: err} }

// AddPartitions adds partitions to the producer's transaction, and begins one unless one is open.
func (s *Shard) AddPartitions(now time.Time, to shard.ReplyTo, req AddRequest) Effects {
	var fx Effects
	if req.VerifyOnly {
		fx.Reply(to, s.verify(req))
		return fx
	}
	m, ok := s.ids.Get(req.ID)
	var err error
	switch {
	case req.ID == "":
		err = ErrInvalidRequest
	case !ok:
		err = ErrInvalidProducerIDMapping
	case s.busy(req.ID):
		err = ErrConcurrentTransactions
	case m.ProducerID != req.ProducerID:
		err = ErrInvalidProducerIDMapping
	case m.ProducerEpoch != req.ProducerEpoch && !mutantEpochUnchecked:
		err = ErrProducerFenced
	}
	if err != nil {
		fx.ReplyAfterCommit(to, &AddReply{Err: err})
		return fx
	}
	if m.State == Ongoing && m.hasAll(req.Partitions) {
		fx.ReplyAfterCommit(to, &AddReply{})
		return fx
	}
	next := m.with(now.UnixMilli(), Ongoing)
	next.ClientVersion = req.Version
	if req.Client != (Client{}) {
		next.client = req.Client
	}
	if m.State == Ongoing {
		next.Partitions = union(m.Partitions, req.Partitions)
	} else {
		next.Partitions, next.Start = union(nil, req.Partitions), next.LastUpdate
	}
	fx.Append(s.record(req.ID, next))
	fx.ReplyAfterCommit(to, &AddReply{})
	return fx
}

// verify looks whether the partitions are part of the transaction, as far as that is committed.
func (s *Shard) verify(req AddRequest) *AddReply {
	m, ok := s.ids.Committed(req.ID)
	switch {
	case req.ID == "":
		return &AddReply{Err: ErrInvalidRequest}
	case !ok:
		return &AddReply{Err: ErrInvalidProducerIDMapping}
	case m.ProducerID != req.ProducerID:
		return &AddReply{Err: ErrInvalidProducerIDMapping}
	case m.ProducerEpoch != req.ProducerEpoch:
		return &AddReply{Err: ErrProducerFenced}
	case m.State.prepared():
		return &AddReply{Err: ErrConcurrentTransactions}
	}
	reply := &AddReply{}
	for i, tp := range req.Partitions {
		if m.State == Ongoing && m.has(tp) {
			continue
		}
		if reply.Missing == nil {
			reply.Missing = make([]bool, len(req.Partitions))
		}
		reply.Missing[i] = true
	}
	return reply
}
