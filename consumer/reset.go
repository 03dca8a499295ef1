package consumer

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// ResetPolicy says where to go on when there is no position to go on from: auto.offset.reset. The zero value is Latest,
// as in Kafka. Records that were cut from a log are another matter: every policy but None goes on where the histories
// part.
type ResetPolicy struct {
	kind resetKind
	back time.Duration
}

type resetKind int8

const (
	resetLatest resetKind = iota
	resetEarliest
	resetNone
	resetNearest
	resetByDuration
)

var (
	// Latest goes on at the end: the high watermark, or the last stable offset with read_committed.
	Latest = ResetPolicy{kind: resetLatest}
	// Earliest goes on at the log start.
	Earliest = ResetPolicy{kind: resetEarliest}
	// None makes it an error.
	None = ResetPolicy{kind: resetNone}
	// Nearest goes on at the end of the log that the position was beyond; without a position at the log start.
	Nearest = ResetPolicy{kind: resetNearest}
)

// ByDuration goes on at the first record that is not older than d (KIP-1106). While there is none, it is waited for:
// going to the end instead would pass over records that come in between.
func ByDuration(d time.Duration) ResetPolicy { return ResetPolicy{kind: resetByDuration, back: d} }

// String is the policy as auto.offset.reset has it.
func (p ResetPolicy) String() string {
	switch p.kind {
	case resetEarliest:
		return "earliest"
	case resetNone:
		return "none"
	case resetNearest:
		return "nearest"
	case resetByDuration:
		return "by_duration:" + isoDuration(p.back)
	}
	return "latest"
}

// ParseResetPolicy reads a value of auto.offset.reset: earliest, latest, none, nearest, or by_duration: and a duration
// of ISO 8601 that is not negative, such as by_duration:P7D.
func ParseResetPolicy(text string) (ResetPolicy, error) {
	for _, p := range []ResetPolicy{Earliest, Latest, None, Nearest} {
		if text == p.String() {
			return p, nil
		}
	}
	iso, ok := strings.CutPrefix(text, "by_duration:")
	if !ok {
		return ResetPolicy{}, fmt.Errorf("consumer: auto.offset.reset=%s: use earliest, latest, none, nearest or by_duration:<ISO 8601 duration>", text)
	}
	d, err := parseISODuration(iso)
	if err != nil {
		return ResetPolicy{}, fmt.Errorf("consumer: auto.offset.reset=%s: %w", text, err)
	}
	return ByDuration(d), nil
}

func isoDuration(d time.Duration) string {
	if days := d / (24 * time.Hour); days > 0 && d%(24*time.Hour) == 0 {
		return fmt.Sprintf("P%dD", days)
	}
	return "PT" + strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "S"
}

// parseISODuration reads days, hours, minutes and seconds, as Java's Duration does; a fraction only of seconds.
func parseISODuration(text string) (time.Duration, error) {
	bad := fmt.Errorf("%q is not a duration of ISO 8601 that is not negative, such as P7D or PT1H30M", text)
	rest, ok := strings.CutPrefix(strings.ToUpper(text), "P")
	if !ok {
		return 0, bad
	}
	days, clock, timed := strings.Cut(rest, "T")
	var total float64
	read := func(part, units string, sizes ...time.Duration) bool {
		for part != "" {
			i := strings.IndexFunc(part, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
			if i <= 0 {
				return false
			}
			at := strings.IndexByte(units, part[i])
			n, err := strconv.ParseFloat(part[:i], 64)
			if at < 0 || err != nil || strings.Contains(part[:i], ".") && part[i] != 'S' {
				return false
			}
			total += n * float64(sizes[at])
			units, sizes, part = units[at+1:], sizes[at+1:], part[i+1:]
		}
		return true
	}
	if rest == "" || timed && clock == "" || !read(days, "D", 24*time.Hour) || !read(clock, "HMS", time.Hour, time.Minute, time.Second) || total > math.MaxInt64 {
		return 0, bad
	}
	return time.Duration(total), nil
}

// Cause says why a position was moved, or could not be.
type Cause string

const (
	// CauseNoCommit: the partition had no committed offset, or no group to commit in.
	CauseNoCommit Cause = "no-committed-offset"
	// CauseBelowLogStart: retention or DeleteRecords took the records at the position.
	CauseBelowLogStart Cause = "below-log-start"
	// CauseAboveLogEnd: the position is beyond the log's end, and has no epoch by which to find out why.
	CauseAboveLogEnd Cause = "above-log-end"
	// CauseTruncated: records below the position were cut, by an election that was not clean.
	CauseTruncated Cause = "truncated"
	// CauseTopicRecreated: the topic was deleted and made anew.
	CauseTopicRecreated Cause = "topic-recreated"
	// CauseHistoryDiffers: the log is long enough, but its history below the position is not the one that was consumed,
	// and where they part is not known. The position is not moved.
	CauseHistoryDiffers Cause = "history-differs"
	// CauseNoRecordYet: there is no record as young as the policy's duration yet. It is waited for.
	CauseNoRecordYet Cause = "no-record-yet"
	// CauseSeek: the program asked for it.
	CauseSeek Cause = "seek"
)

// ResetEvent is one move of a position, or the finding that one could not be made. Each is handed to OnReset, logged in
// one line, and counted in Stats.
type ResetEvent struct {
	Time  time.Time
	Group string // "" without one
	TopicPartition
	From   Optional[Position] // unknown: there was none
	To     Optional[Position] // unknown: there is none yet
	Cause  Cause
	Policy ResetPolicy // the one in force; CauseTruncated goes by it only where Divergent is unknown

	LogStart    Offset // where it was asked for
	LogEnd      Offset // likewise: the high watermark, or the last stable offset with read_committed
	Leader      int32  // node that answered, -1 when none was asked
	LeaderEpoch Epoch

	// Divergent is the first offset that differs from what was consumed; AtMost says that it may be lower.
	Divergent Offset
	AtMost    bool

	// Skipped is how many offsets were passed over unread, Repeated how many are read again or anew. There may be fewer
	// records than offsets.
	Skipped, Repeated int64
}

// Moved says whether the position is another than before.
func (e ResetEvent) Moved() bool { return e.To.known && e.To != e.From }

// String is the event in one line.
func (e ResetEvent) String() string {
	from := "no position"
	if p, ok := e.From.Get(); ok {
		from = p.String()
	}
	var text string
	switch to, ok := e.To.Get(); {
	case !ok:
		text = fmt.Sprintf("%s: waiting at %s: %s", e.TopicPartition, from, e.Cause)
	case !e.Moved():
		text = fmt.Sprintf("%s: staying at %s: %s", e.TopicPartition, from, e.Cause)
	default:
		text = fmt.Sprintf("%s: moved from %s to %s: %s", e.TopicPartition, from, to, e.Cause)
	}
	if e.AtMost {
		text += " (the log may differ further down)"
	}
	if e.LogStart.known || e.LogEnd.known {
		text += fmt.Sprintf(", log [%v, %v)", e.LogStart, e.LogEnd)
	}
	if e.Skipped > 0 {
		text += fmt.Sprintf(", %d skipped", e.Skipped)
	}
	if e.Repeated > 0 {
		text += fmt.Sprintf(", %d repeated", e.Repeated)
	}
	return text
}
