package server

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// connLinesPerSecond is how many lines about connections are shown in each second.
const connLinesPerSecond = 20

// connLines counts lines about connections: a client that is at fault is so again at once, and thousands of
// lines in a second would tell nothing more and fill a disk.
type connLines struct {
	mu           sync.Mutex
	since        time.Time // when the present second began
	told, untold int
}

// admit says whether a line may be shown now, and how many were not since the last one that was.
func (l *connLines) admit(now time.Time) (ok bool, untold int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.since) >= time.Second {
		l.since, l.told = now, 0
	}
	if l.told == connLinesPerSecond {
		l.untold++
		return false, 0
	}
	l.told++
	untold, l.untold = l.untold, 0
	return true, untold
}

// tellConn writes a line about a connection. Lines at debug are never left out.
func (s *Server) tellConn(level slog.Level, message string, args ...any) {
	if level > slog.LevelDebug {
		ok, untold := s.lines.admit(time.Now())
		if !ok {
			return
		}
		if untold > 0 {
			args = append(args, "lines_left_out", untold)
		}
	}
	s.log.Log(context.Background(), level, message, args...)
}
