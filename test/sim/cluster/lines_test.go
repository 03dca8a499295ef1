package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// lines keeps the last log lines of all nodes, to be shown with a failure.
type lines struct {
	mu    sync.Mutex
	began time.Time
	ring  []line
	next  int
}

type line struct {
	at     time.Time
	who    string
	text   string
	record slog.Record
	attrs  []slog.Attr
}

const keptLines = 30000

func newLines() *lines { return &lines{began: time.Now()} }

func (l *lines) add(one line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	one.at = time.Now()
	if len(l.ring) < keptLines {
		l.ring = append(l.ring, one)
		return
	}
	l.ring[l.next] = one
	l.next = (l.next + 1) % keptLines
}

// say adds a line of the simulator's own.
func (l *lines) say(format string, args ...any) {
	l.add(line{who: "sim", text: fmt.Sprintf(format, args...)})
}

func (l *lines) handler(host, life int) slog.Handler {
	return &lineHandler{l: l, who: fmt.Sprintf("n%d.%d", host, life)}
}

type lineHandler struct {
	l     *lines
	who   string
	attrs []slog.Attr
}

func (h *lineHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo
}

func (h *lineHandler) Handle(_ context.Context, r slog.Record) error {
	h.l.add(line{who: h.who, record: r, attrs: h.attrs})
	return nil
}

func (h *lineHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &lineHandler{l: h.l, who: h.who, attrs: append(append([]slog.Attr(nil), h.attrs...), attrs...)}
}

func (h *lineHandler) WithGroup(string) slog.Handler { return h }

// dump is the text of all that is kept.
func (l *lines) dump() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b strings.Builder
	for i := range l.ring {
		one := &l.ring[(l.next+i)%len(l.ring)]
		fmt.Fprintf(&b, "%10.4f %-6s ", one.at.Sub(l.began).Seconds(), one.who)
		if one.text != "" {
			b.WriteString(one.text)
		} else {
			b.WriteString(one.record.Level.String() + " " + one.record.Message)
			for _, a := range one.attrs {
				b.WriteString(" " + a.String())
			}
			one.record.Attrs(func(a slog.Attr) bool { b.WriteString(" " + a.String()); return true })
		}
		b.WriteByte('\n')
	}
	return b.String()
}
