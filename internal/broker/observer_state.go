package broker

import (
	"errors"
	"fmt"

	"github.com/stelelog/stele/internal/epoch"
	"github.com/stelelog/stele/internal/record"
)

// leader is what an observer knows of the quorum's leader: the epoch always, the
// id when somebody named it (noLeader otherwise).
type leader struct {
	id    int32
	epoch int32
}

const noLeader int32 = -1

// position is where an observer's copy of the metadata log ends.
type position struct {
	endOffset int64
	lastEpoch int32
}

// observerState is the pure part of following the metadata log (KIP-595 as seen
// by an observer): what was fetched, what of it is below the high watermark and
// may be applied, and who leads. It knows no network and no clock.
//
// Batches above the high watermark wait in pending. A Stele quorum shows only
// committed batches, so there pending stays empty; Apache Kafka's controllers
// show uncommitted ones, and may take them back.
type observerState struct {
	leader        leader
	highWatermark int64 // -1 until a leader told it
	applied       int64 // end offset of what was handed out to be applied
	end           position
	epochs        epoch.Cache
	pending       []record.Batch
}

func newObserverState() *observerState {
	return &observerState{leader: leader{id: noLeader}, highWatermark: -1}
}

// errObserver marks answers that no correct controller gives: going on would risk
// an image that differs from the quorum's.
type errObserver struct{ reason string }

func (e *errObserver) Error() string { return "metadata log: " + e.reason }

func fatalf(format string, args ...any) error {
	return &errObserver{reason: fmt.Sprintf(format, args...)}
}

// errStaleAnswer says that an answer belongs to an epoch this observer has left.
var errStaleAnswer = errors.New("answer of an older quorum epoch")

// learn adopts the leader and epoch that an answer carries. A named leader in an
// epoch for which another one is known contradicts P3 and is fatal.
func (s *observerState) learn(answer leader) error {
	switch {
	case answer.epoch < s.leader.epoch:
		return errStaleAnswer
	case answer.epoch > s.leader.epoch:
		s.leader = answer
	case answer.id != noLeader && s.leader.id == noLeader:
		s.leader.id = answer.id
	case answer.id != noLeader && answer.id != s.leader.id:
		return fatalf("leaders %d and %d both claim epoch %d", s.leader.id, answer.id, answer.epoch)
	}
	return nil
}

// forgetLeader keeps the epoch but asks anybody next: the leader did not answer.
func (s *observerState) forgetLeader() { s.leader.id = noLeader }

// append takes fetched bytes behind the present end. It stops at the first batch
// that is torn, corrupt, of a later epoch than the one known, or not behind its
// predecessor: the next fetch asks for it again.
func (s *observerState) append(bytes []byte) error {
	for len(bytes) > 0 {
		size, err := record.Peek(bytes)
		if err != nil || size > len(bytes) {
			return nil
		}
		batch := record.Batch(bytes[:size:size])
		bytes = bytes[size:]
		if err := batch.VerifyCRC(); err != nil {
			return fmt.Errorf("metadata log at offset %d: %w", s.end.endOffset, err)
		}
		if batch.PartitionLeaderEpoch() > s.leader.epoch {
			return nil
		}
		if batch.BaseOffset() != s.end.endOffset {
			return fatalf("batch at offset %d, expected %d", batch.BaseOffset(), s.end.endOffset)
		}
		epochs, _, err := s.epochs.Assign(batch.PartitionLeaderEpoch(), batch.BaseOffset())
		if err != nil {
			return fatalf("batch at offset %d: %v", batch.BaseOffset(), err)
		}
		s.epochs = epochs
		s.pending = append(s.pending, batch)
		s.end = position{endOffset: batch.LastOffset() + 1, lastEpoch: batch.PartitionLeaderEpoch()}
	}
	return nil
}

// advance raises the high watermark, which never falls and never passes the end,
// and returns the batches that may now be applied, in order.
func (s *observerState) advance(highWatermark int64) []record.Batch {
	s.highWatermark = max(s.highWatermark, min(highWatermark, s.end.endOffset))
	ready := 0
	for ready < len(s.pending) && s.pending[ready].LastOffset() < s.highWatermark {
		ready++
	}
	batches := s.pending[:ready:ready]
	s.pending = s.pending[ready:]
	if ready > 0 {
		s.applied = batches[ready-1].LastOffset() + 1
	}
	return batches
}

// truncate follows a diverging epoch: it drops what the leader does not have.
// What was applied can never be taken back, so divergence below it is fatal.
func (s *observerState) truncate(divergingEpoch int32, divergingEnd int64) error {
	target := min(divergingEnd, s.end.endOffset)
	if divergingEpoch > 0 {
		foundEpoch, foundEnd := s.epochs.EndOffsetFor(divergingEpoch, s.end.endOffset)
		if foundEpoch == divergingEpoch {
			target = min(foundEnd, divergingEnd)
		} else if foundEnd >= 0 {
			target = foundEnd
		}
	}
	if target < max(s.highWatermark, s.applied) {
		return fatalf("leader's log ends at %d in epoch %d, below the high watermark %d of this observer", divergingEnd, divergingEpoch, s.highWatermark)
	}
	for len(s.pending) > 0 && s.pending[len(s.pending)-1].LastOffset() >= target {
		s.pending = s.pending[:len(s.pending)-1]
	}
	s.end = position{endOffset: s.applied}
	if n := len(s.pending); n > 0 {
		s.end.endOffset = s.pending[n-1].NextOffset()
	}
	s.epochs = s.epochs.TruncateFromEnd(s.end.endOffset)
	if latest, ok := s.epochs.Latest(); ok {
		s.end.lastEpoch = latest.Epoch
	}
	return nil
}

// restart begins anew behind a snapshot that ends at (endOffset, lastEpoch).
func (s *observerState) restart(endOffset int64, lastEpoch int32) error {
	if endOffset < s.applied {
		return fatalf("snapshot ends at %d, below offset %d that was applied", endOffset, s.applied)
	}
	epochs, _, err := epoch.Cache{}.Assign(lastEpoch, endOffset)
	if err != nil {
		return err
	}
	s.epochs, s.pending = epochs, nil
	s.end = position{endOffset: endOffset, lastEpoch: lastEpoch}
	s.highWatermark, s.applied = max(s.highWatermark, endOffset), endOffset
	return nil
}
