package log

import (
	"fmt"
	"log/slog"
)

// EventKind is a kind of event in the life of a log that changes a position or loses something.
type EventKind int

// The kinds of event.
const (
	EventTruncated       EventKind = iota // end offset moved back: From the old, To the new one
	EventStartedAt                        // everything dropped, the log starts over at To
	EventLogStartMoved                    // From, To
	EventRecovered                        // at open: Bytes were cut off the end, which is To; From is higher when checkpoints had seen more
	EventRebuilt                          // a lost or damaged index, snapshot or checkpoint was rebuilt (Cause says which)
	EventSegmentRolled                    // To is the new segment's base offset
	EventSegmentsDeleted                  // From, To: the offsets that went
	EventAppendTakenBack                  // a failed append was cut off again; To is the end offset
	EventOffline                          // the log's directory failed
	EventHeldByFuture                     // a segment at From is kept by a timestamp in the future
	EventCleaned                          // compaction went over the log: From, To: the offsets that were dirty; Bytes it saved
	EventLost                             // this log alone cannot be used any more: From, To: its end offset; Cause says what is damaged
	EventUncleanable                      // compaction of this log has stopped: it cannot read what is at From
)

var eventNames = [...]string{"log truncated", "log started over", "log start moved", "log recovered", "log file rebuilt",
	"segment rolled", "segments deleted", "append taken back", "log directory failed", "segment held by a future timestamp", "log cleaned", "log lost", "log not cleanable"}

func (k EventKind) String() string { return eventNames[k] }

// Event is one such change, with all that is needed to explain it.
type Event struct {
	Kind      EventKind
	Topic     string
	Partition int32
	From, To  int64
	// LeaderEpoch is the log's latest leader epoch at that moment, -1 when it has none.
	LeaderEpoch int32
	Bytes       int64
	Cause       string
}

func (e Event) String() string {
	return fmt.Sprintf("%v: %s-%d from %d to %d, leader epoch %d: %s", e.Kind, e.Topic, e.Partition, e.From, e.To,
		e.LeaderEpoch, e.Cause)
}

func (e Event) level() slog.Level {
	switch e.Kind {
	case EventSegmentRolled:
		return slog.LevelDebug
	case EventRecovered, EventRebuilt, EventAppendTakenBack, EventHeldByFuture, EventUncleanable:
		return slog.LevelWarn
	case EventOffline, EventLost:
		return slog.LevelError
	default:
		return slog.LevelInfo
	}
}
