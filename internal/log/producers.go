package log

import (
	"math"
	"sort"

	"github.com/stelelog/stele/internal/record"
)

// rememberedBatches is how many of a producer's last batches are recognised when they are sent again.
const rememberedBatches = 5

// batchMeta is what is remembered of a producer's batch. The sequences are -1 in what coordinators write in transactions.
type batchMeta struct {
	firstSequence, lastSequence int32
	offsetDelta                 int32
	lastOffset                  int64
	timestamp                   int64 // largest
}

func (m batchMeta) baseOffset() int64 { return m.lastOffset - int64(m.offsetDelta) }

// producerState is one producer in one partition.
type producerState struct {
	id               int64
	epoch            int16
	coordinatorEpoch int32 // -1: no marker seen
	lastTimestamp    int64 // as records say; what the snapshot holds
	lastSeen         int64 // the larger of lastTimestamp and the wall clock at append, ms
	txnFirstOffset   int64 // of the open transaction, -1: none
	batches          [rememberedBatches]batchMeta
	count            int // of batches, oldest first
}

func (p *producerState) lastBatch() (batchMeta, bool) {
	if p.count == 0 {
		return batchMeta{}, false
	}
	return p.batches[p.count-1], true
}

func (p *producerState) remember(m batchMeta) {
	if p.count == rememberedBatches {
		copy(p.batches[:], p.batches[1:])
		p.count--
	}
	p.batches[p.count] = m
	p.count++
}

// duplicate finds the remembered batch with exactly these sequences.
func (p *producerState) duplicate(first, last int32) (batchMeta, bool) {
	for i := p.count - 1; i >= 0; i-- {
		if m := p.batches[i]; m.firstSequence == first && m.lastSequence == last {
			return m, true
		}
	}
	return batchMeta{}, false
}

// openTxn is an undecided transaction; closedTxn one whose marker is in the log but not below the high watermark.
type openTxn struct{ producerID, first int64 }
type closedTxn struct{ producerID, first, last int64 }

// producers is the producer state of one partition. It belongs to the log's writer. The zero value is empty.
type producers struct {
	byID         map[int64]*producerState
	open         []openTxn // by first offset
	unreplicated []closedTxn
}

// firstUnstable is the first offset of the earliest transaction that is undecided, or decided above the high
// watermark.
func (p *producers) firstUnstable() (int64, bool) {
	first, ok := int64(0), false
	if len(p.open) > 0 {
		first, ok = p.open[0].first, true
	}
	for _, t := range p.unreplicated {
		if !ok || t.first < first {
			first, ok = t.first, true
		}
	}
	return first, ok
}

// seenMarkers says whether any transaction has ended here.
func (p *producers) seenMarkers() bool {
	for _, st := range p.byID {
		if st.coordinatorEpoch >= 0 {
			return true
		}
	}
	return false
}

// replicated forgets decided transactions whose marker is below the high watermark.
func (p *producers) replicated(hw int64) {
	if len(p.unreplicated) == 0 {
		return
	}
	kept := p.unreplicated[:0]
	for _, t := range p.unreplicated {
		if t.last >= hw {
			kept = append(kept, t)
		}
	}
	p.unreplicated = kept
}

// check says whether a leader may append b: nil, or a duplicate of a remembered batch, or why not. g is the guard that
// the log has for the producer, nil if none; strict is transaction.partition.verification.enable.
func (p *producers) check(b record.Batch, o *AppendOptions, g *guard, strict bool) (duplicate *batchMeta, err error) {
	st := p.byID[b.ProducerID()]
	e, first, last := b.ProducerEpoch(), b.BaseSequence(), b.LastSequence()
	client := o.Origin == OriginClient
	if st != nil && client && st.epoch == e {
		if m, ok := st.duplicate(first, last); ok {
			return &m, nil
		}
	}
	if st != nil && e < st.epoch {
		return nil, &InvalidProducerEpochError{b.ProducerID(), e, st.epoch}
	}
	if !client && o.Guard.Held() && g != o.Guard.g {
		return nil, &InvalidTxnStateError{b.ProducerID(), "the transaction that was verified with its coordinator has ended"}
	}
	// Offsets that a coordinator appends are held to it too: their transaction may have ended since it was seen open.
	inTxn := st != nil && st.txnFirstOffset >= 0
	if strict && b.IsTransactional() && !(inTxn && st.epoch == e) && !o.TxnVerified && (g == nil || o.Guard.g != g) {
		return nil, &InvalidTxnStateError{b.ProducerID(), "transaction is not verified with its coordinator"}
	}
	if !client {
		return nil, nil
	}
	if g != nil && first > g.lowest {
		return nil, &OutOfOrderSequenceError{b.ProducerID(), e, g.lowest, first, last}
	}
	if st == nil {
		if first != 0 && (o.TxnV2 || o.Guard.g != nil && o.Guard.g.v2) {
			return nil, &OutOfOrderSequenceError{b.ProducerID(), e, 0, first, last}
		}
		return nil, nil
	}
	if err := st.checkSequence(e, first, last); err != nil {
		return nil, err
	}
	if inTxn && !b.IsTransactional() {
		return nil, &InvalidTxnStateError{b.ProducerID(), "batch is not transactional inside a transaction"}
	}
	return nil, nil
}

func (p *producerState) checkSequence(e int16, first, last int32) error {
	// Without a batch of this epoch, and after a bump, only 0 can come.
	expected := int32(0)
	if m, ok := p.lastBatch(); ok && e == p.epoch {
		expected = record.IncrementSequence(m.lastSequence, 1)
	}
	if first != expected {
		return &OutOfOrderSequenceError{p.id, e, expected, first, last}
	}
	return nil
}

// checkMarker says whether the coordinator may write marker m. In transaction.version 2 (v2) it has a newer epoch than
// the transaction it ends, unless it is sent again (KAFKA-19999), or there is no newer one.
func (p *producers) checkMarker(m record.EndTxnMarker, v2 bool) error {
	st := p.byID[m.ProducerID]
	if st == nil {
		st = &producerState{epoch: -1, coordinatorEpoch: -1, txnFirstOffset: -1}
	}
	same := m.ProducerEpoch == st.epoch
	if m.ProducerEpoch < st.epoch || v2 && same && st.txnFirstOffset >= 0 && st.epoch < math.MaxInt16 {
		return &InvalidProducerEpochError{m.ProducerID, m.ProducerEpoch, st.epoch}
	}
	if m.CoordinatorEpoch < st.coordinatorEpoch {
		return &CoordinatorFencedError{m.ProducerID, m.CoordinatorEpoch, st.coordinatorEpoch}
	}
	return nil
}

func (p *producers) state(id int64, e int16) *producerState {
	st := p.byID[id]
	if st == nil {
		if p.byID == nil {
			p.byID = map[int64]*producerState{}
		}
		st = &producerState{id: id, epoch: e, coordinatorEpoch: -1, txnFirstOffset: -1, lastTimestamp: record.NoTimestamp}
		p.byID[id] = st
	}
	return st
}

// appended notes that b, with its offsets, is in the log. wallMs is the time of the append, or what stands for it in
// recovery. When b ended a transaction by abort the answer is its index entry.
func (p *producers) appended(b record.Batch, wallMs int64) (aborted txnEntry, ok bool) {
	if !b.HasProducerID() {
		return txnEntry{}, false
	}
	if b.IsControl() {
		m, isMarker, err := record.ParseEndTxnMarker(b)
		if err != nil || !isMarker {
			return txnEntry{}, false
		}
		return p.ended(m, b.LastOffset(), b.MaxTimestamp(), wallMs)
	}
	st := p.state(b.ProducerID(), b.ProducerEpoch())
	if st.epoch != b.ProducerEpoch() {
		st.epoch, st.count = b.ProducerEpoch(), 0
	}
	st.lastTimestamp = b.MaxTimestamp()
	st.lastSeen = max(st.lastTimestamp, wallMs)
	st.remember(batchMeta{firstSequence: b.BaseSequence(), lastSequence: b.LastSequence(), offsetDelta: b.LastOffsetDelta(),
		lastOffset: b.LastOffset(), timestamp: b.MaxTimestamp()})
	if b.IsTransactional() && st.txnFirstOffset < 0 {
		st.txnFirstOffset = b.BaseOffset()
		p.addOpen(openTxn{st.id, st.txnFirstOffset})
	}
	return txnEntry{}, false
}

func (p *producers) ended(m record.EndTxnMarker, offset, timestamp, wallMs int64) (aborted txnEntry, ok bool) {
	st := p.state(m.ProducerID, m.ProducerEpoch)
	if st.epoch != m.ProducerEpoch {
		st.epoch, st.count = m.ProducerEpoch, 0
	}
	st.coordinatorEpoch = m.CoordinatorEpoch
	st.lastTimestamp = timestamp
	st.lastSeen = max(timestamp, wallMs)
	first := st.txnFirstOffset
	if first < 0 {
		return txnEntry{}, false
	}
	st.txnFirstOffset = -1
	p.removeOpen(first)
	p.unreplicated = append(p.unreplicated, closedTxn{st.id, first, offset})
	if m.Commit {
		return txnEntry{}, false
	}
	stable := offset + 1
	if len(p.open) > 0 {
		stable = p.open[0].first
	}
	return txnEntry{producerID: st.id, firstOffset: first, lastOffset: offset, lastStableOffset: stable}, true
}

func (p *producers) addOpen(t openTxn) {
	i := sort.Search(len(p.open), func(i int) bool { return p.open[i].first > t.first })
	p.open = append(p.open, openTxn{})
	copy(p.open[i+1:], p.open[i:])
	p.open[i] = t
}

func (p *producers) removeOpen(first int64) {
	i := sort.Search(len(p.open), func(i int) bool { return p.open[i].first >= first })
	if i < len(p.open) && p.open[i].first == first {
		p.open = append(p.open[:i], p.open[i+1:]...)
	}
}

// expire forgets producers without an open transaction that have not been heard of for expirationMs.
func (p *producers) expire(nowMs, expirationMs int64) int {
	n := 0
	for id, st := range p.byID {
		if st.txnFirstOffset < 0 && nowMs-st.lastSeen >= expirationMs {
			delete(p.byID, id)
			n++
		}
	}
	return n
}

// ProducerState describes one producer, for DescribeProducers.
type ProducerState struct {
	ProducerID    int64
	ProducerEpoch int16
	// LastSequence is -1 when only markers are known.
	LastSequence  int32
	LastTimestamp int64
	// CoordinatorEpoch is -1 when no marker was seen, TxnStartOffset when no transaction is open.
	CoordinatorEpoch int32
	TxnStartOffset   int64
}

// ProducerStates describes all producers the log knows, by id.
func (l *Log) ProducerStates() []ProducerState {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]ProducerState, 0, len(l.producers.byID))
	for _, st := range l.producers.byID {
		s := ProducerState{st.id, st.epoch, record.NoSequence, st.lastTimestamp, st.coordinatorEpoch, st.txnFirstOffset}
		if m, ok := st.lastBatch(); ok {
			s.LastSequence = m.lastSequence
		}
		out = append(out, s)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].ProducerID < out[j].ProducerID })
	return out
}

// ProducerCount is how many producers the log knows. It waits for no write.
func (l *Log) ProducerCount() int { return int(l.producerCount.Load()) }

// OldestTxn is when the producer of an open transaction was last heard of, in ms, of the one that is silent for longest; ok
// is false when no transaction is open. It waits for no write: while one is under way it says what it said before.
func (l *Log) OldestTxn() (ms int64, ok bool) {
	if l.mu.TryLock() {
		oldest := int64(0)
		for _, t := range l.producers.open {
			if st := l.producers.byID[t.producerID]; st != nil && (oldest == 0 || st.lastSeen < oldest) {
				oldest = max(st.lastSeen, 1)
			}
		}
		l.oldestTxn.Store(oldest)
		l.mu.Unlock()
	}
	ms = l.oldestTxn.Load()
	return ms, ms > 0
}

// ExpireProducers forgets the producers that have been silent for producer.id.expiration.ms and have no open
// transaction. It returns how many.
func (l *Log) ExpireProducers() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, expiration := l.now().UnixMilli(), l.config.Load().ProducerExpirationMs
	expired := l.producers.expire(now, expiration)
	l.expireGuards(now, expiration)
	if !l.closed {
		l.countProducers(len(l.producers.byID))
	}
	return expired
}
