package log

import (
	"github.com/stelelog/stele/internal/record"
)

// maxGuards bounds the guards of one log: who asks for them makes up producer ids at no cost.
const maxGuards = 10_000

// TxnGuard stands for one question to the transaction coordinator: is this partition part of the producer's
// transaction (KIP-890). It is taken before the question and given back with the batch, which is written only if the
// guard is still the log's: a marker that came in between has ended the transaction that the answer was about. The zero
// value is no guard.
type TxnGuard struct{ g *guard }

// Held says that there is a guard, and so something to ask.
func (g TxnGuard) Held() bool { return g.g != nil }

// guard is kept in memory alone: after a restart the coordinator is asked again.
type guard struct {
	epoch int16
	// lowest is the lowest sequence number that was to be verified in epoch. A higher one must not be written first, or the
	// lower could not be written after it.
	lowest int32
	v2     bool  // transaction.version 2: the coordinator adds the partition
	since  int64 // wall clock, ms
}

// GuardTxn looks whether a client's transactional batch must be verified with the transaction coordinator before it is
// appended, and returns the guard if so. There is none for a batch that is a duplicate, or whose transaction is open in
// this log; without transaction.partition.verification.enable only batches of transaction.version 2 (v2) have one, since
// their coordinator learns of the partition that way. The error is an *InvalidProducerEpochError.
func (l *Log) GuardTxn(b record.Batch, v2 bool) (TxnGuard, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	st := l.producers.byID[b.ProducerID()]
	if st != nil && st.epoch == b.ProducerEpoch() {
		if _, duplicate := st.duplicate(b.BaseSequence(), b.LastSequence()); duplicate {
			return TxnGuard{}, nil
		}
	}
	return l.guardTxn(b.ProducerID(), b.ProducerEpoch(), b.BaseSequence(), v2)
}

// GuardTxnOffsets is GuardTxn for offsets that a coordinator writes in a producer's transaction: they have no sequence
// numbers, and so no duplicates.
func (l *Log) GuardTxnOffsets(producerID int64, producerEpoch int16, v2 bool) (TxnGuard, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.guardTxn(producerID, producerEpoch, record.NoSequence, v2)
}

func (l *Log) guardTxn(id int64, e int16, first int32, v2 bool) (TxnGuard, error) {
	if st := l.producers.byID[id]; st != nil {
		switch {
		case st.epoch == e && st.txnFirstOffset >= 0:
			return TxnGuard{}, nil
		case e < st.epoch:
			return TxnGuard{}, &InvalidProducerEpochError{id, e, st.epoch}
		}
	}
	if !v2 && !l.config.Load().TxnVerificationStrict {
		return TxnGuard{}, nil
	}
	g := l.guards[id]
	switch {
	case g == nil:
		if l.guards == nil {
			l.guards = map[int64]*guard{}
		}
		if len(l.guards) >= maxGuards {
			l.dropOldestGuard()
		}
		g = &guard{epoch: e, lowest: first, v2: v2, since: l.now().UnixMilli()}
		l.guards[id] = g
	case e > g.epoch:
		g.epoch, g.lowest = e, first
	case e == g.epoch:
		g.lowest = min(g.lowest, first)
	}
	return TxnGuard{g}, nil
}

func (l *Log) dropOldestGuard() {
	oldest := int64(-1)
	for id, g := range l.guards {
		if oldest < 0 || g.since < l.guards[oldest].since {
			oldest = id
		}
	}
	delete(l.guards, oldest)
}

// unguard ends the guard of the producer whose batch was appended: the first data of a transaction has opened it, a
// marker has ended it. In transaction.version 2 a marker has the epoch of the next transaction: a guard of that epoch is
// not about the one that ended. mu is held.
func (l *Log) unguard(b record.Batch) {
	if len(l.guards) == 0 || !b.IsTransactional() {
		return
	}
	if g := l.guards[b.ProducerID()]; g != nil && b.IsControl() && g.v2 && g.epoch == b.ProducerEpoch() {
		return
	}
	delete(l.guards, b.ProducerID())
}

// expireGuards forgets questions that were never followed by an append.
func (l *Log) expireGuards(nowMs, expirationMs int64) {
	for id, g := range l.guards {
		if nowMs-g.since >= expirationMs {
			delete(l.guards, id)
		}
	}
}
