package txn

import (
	"slices"
	"time"
)

// A Marker is to be written to the partitions of a transaction that is decided.
type Marker struct {
	ID            string
	ProducerID    int64
	ProducerEpoch int16
	Commit        bool
	Version       int16 // of the transaction: Version0 or Version2
	Partitions    []TopicPartition

	of *sending
}

// sending is a transaction that is decided: its markers are out, or its completion is due. It is the identity of the
// transaction too: in Version0 producer id and epoch are those of the next one as well.
type sending struct {
	producerID    int64
	producerEpoch int16
	left          []TopicPartition // sorted
	givenUp       bool
}

// decide has the markers of a transaction sent, or its completion written if there are none to send.
func (s *Shard) decide(id string, m *Metadata) {
	out := &sending{producerID: m.ProducerID, producerEpoch: m.ProducerEpoch, left: m.Partitions}
	s.sending[id] = out
	if len(m.Partitions) == 0 {
		s.due = append(s.due, completion{id: id, of: out})
		return
	}
	s.outbox = append(s.outbox, Marker{
		ID: id, ProducerID: m.ProducerID, ProducerEpoch: m.ProducerEpoch, Commit: m.State == PrepareCommit, Version: m.ClientVersion, Partitions: m.Partitions, of: out,
	})
}

// TakeMarkers gives what is to be sent, each once. Nothing is given before the shard is loaded, nor of transactions that
// turned out to be complete in the part of the log that was committed last.
func (s *Shard) TakeMarkers() []Marker {
	var out []Marker
	for _, m := range s.outbox {
		if s.sending[m.ID] == m.of {
			out = append(out, m)
		}
	}
	s.outbox = nil
	return out
}

// MarkersWritten says that the marker is in these partitions of its own, or that they are no more. When none is left,
// the transaction's completion is due.
func (s *Shard) MarkersWritten(now time.Time, marker Marker, partitions []TopicPartition) {
	out := s.sending[marker.ID]
	if out == nil || out != marker.of || len(out.left) == 0 {
		return
	}
	left := make([]TopicPartition, 0, len(out.left))
	for _, tp := range out.left {
		if !slices.Contains(partitions, tp) {
			left = append(left, tp)
		}
	}
	out.left = left
	if len(left) == 0 {
		s.due = append(s.due, completion{now, marker.ID, out})
	}
}

// MarkersRefused says that a partition has seen a newer coordinator, or a newer epoch of the producer: somebody else
// owns the transaction, and this shard leaves it alone until it is loaded again.
func (s *Shard) MarkersRefused(marker Marker) {
	out := s.sending[marker.ID]
	if out == nil || out != marker.of {
		return
	}
	out.givenUp = true
	s.givenUpTotal++
}

// complete writes what is due of the completions.
func (s *Shard) complete(now time.Time) Effects {
	var fx Effects
	var written []completion
	later := s.due[:0]
	for _, c := range s.due {
		if c.at.After(now) {
			later = append(later, c)
			continue
		}
		m, ok := s.ids.Committed(c.id)
		out := s.sending[c.id]
		if out == nil || len(out.left) > 0 || c.of != out || !ok || !m.State.prepared() || s.ids.Unsettled(c.id) {
			continue // it is written already, and only slow to commit, or the id has gone on to the next transaction
		}
		next := m.with(now.UnixMilli(), completeState(m.State == PrepareCommit))
		next.Partitions = nil
		if m.NextProducerID != NoProducerID {
			next.ProducerID, next.ProducerEpoch, next.NextProducerID = m.NextProducerID, 0, NoProducerID
		}
		if next.State == CompleteCommit {
			s.doneCommits++
		} else {
			s.doneAborts++
		}
		fx.Append(s.record(c.id, next))
		written = append(written, c)
	}
	clear(s.due[len(later):])
	s.due = later
	if written != nil {
		fx.Splittable = true
		s.lastWrite++
		fx.Write = s.lastWrite
		s.writes[fx.Write] = written
	}
	return fx
}

// left is the partitions of a decided transaction that have no marker yet.
func (s *Shard) left(id string, m *Metadata) []TopicPartition {
	if out := s.sending[id]; out != nil && m.State.prepared() && out.producerID == m.ProducerID && out.producerEpoch == m.ProducerEpoch {
		return out.left
	}
	return m.Partitions
}
