package consumer

import "fmt"

// LogTruncationError says that records below the position of a partition were cut from its log, and that no reset
// policy is set to go on by. The position stands where it was, and nothing more of the partition is read until a Seek;
// SeekToNearest goes to where the histories part. It is also an [OffsetOutOfRangeError].
type LogTruncationError struct {
	TopicPartition
	Position Position
	// Divergent is the first offset that differs from what was consumed, with the epoch of the record before it. It is
	// unknown when the leader knows nothing of the position's epoch or of any before it.
	Divergent Optional[Position]
	// AtMost says that records below Divergent may differ too: nothing is known of what was consumed there.
	AtMost bool
	// TopicRecreated says that the topic was deleted and made anew: all of the log is another.
	TopicRecreated bool
	LogStart       Offset // where known
	LogEnd         Offset
}

// Error names the partition, the position and where the histories part.
func (e *LogTruncationError) Error() string {
	text := fmt.Sprintf("consumer: %s was truncated below the position %v", e.TopicPartition, e.Position)
	if e.TopicRecreated {
		return fmt.Sprintf("consumer: the topic of %s was deleted and made anew; the position %v was in the old one", e.TopicPartition, e.Position)
	}
	if at, ok := e.Divergent.Get(); ok {
		text += fmt.Sprintf(": the log differs from offset %d on", at.Offset)
		if e.AtMost {
			text += " or below"
		}
	}
	return text
}

// As makes a truncation an out-of-range error too.
func (e *LogTruncationError) As(target any) bool {
	out, ok := target.(**OffsetOutOfRangeError)
	if ok {
		*out = &OffsetOutOfRangeError{TopicPartition: e.TopicPartition, Position: e.Position, LogStart: e.LogStart, LogEnd: e.LogEnd}
	}
	return ok
}

// ruling is what follows from a leader's answer about an epoch.
type ruling int8

const (
	stands     ruling = iota // no record below the position was cut
	parts                    // the histories part at a known place
	askBelow                 // ask about an older epoch before that is known
	lost                     // the leader knows neither the epoch nor any before it
	unfamiliar               // the leader's log is long enough, but its history is another
)

// judge holds a leader's answer (epoch, end) about the asked epoch against the position and what was consumed, as a
// follower does with its own log. limit is how far the histories may agree by the answers so far, at first the
// position. known says that the position's epoch is that of a consumed batch, and not of a lookup. For parts and
// askBelow the place is returned; for askBelow its epoch is the one to ask about. atMost says that the true place may
// be lower.
func judge(pos Position, known bool, h *history, asked int32, limit, end int64, epoch int32) (r ruling, at Position, atMost bool) {
	if epoch < 0 || end < 0 {
		return lost, Position{}, false
	}
	if epoch >= asked {
		if place := min(limit, end); place < pos.Offset {
			return parts, Position{place, Known(asked)}, false
		}
		return stands, pos, false
	}
	first, ok := h.first()
	if ok && epoch >= first.epoch {
		own, ownEnd := h.endOffsetFor(epoch, limit)
		place := min(ownEnd, limit)
		if own < epoch {
			return askBelow, Position{place, Known(own)}, false
		}
		if place = min(place, end); place < pos.Offset {
			return parts, Position{place, Known(epoch)}, false
		}
		return stands, pos, false
	}
	place := min(limit, end)
	if ok {
		place = min(place, first.start)
	}
	switch {
	case place < pos.Offset:
		return parts, Position{place, Known(epoch)}, true
	case known:
		return unfamiliar, pos, true
	}
	return stands, pos, false
}
