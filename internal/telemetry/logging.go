// Package telemetry is how a node shows what it is doing: its log, its metrics, whether it is ready, and the
// HTTP endpoint for all of these. What is worth telling is decided by the packages that know.
package telemetry

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// NewLogger returns a logger that writes to w. format is text or json; level is debug, info, warn or error,
// in any case, and empty values mean text and info. The level can be changed while the logger is used.
func NewLogger(w io.Writer, format, level string) (*slog.Logger, *slog.LevelVar, error) {
	l := new(slog.LevelVar)
	if level != "" {
		if err := l.UnmarshalText([]byte(level)); err != nil {
			return nil, nil, fmt.Errorf("log level %q is not debug, info, warn or error", level)
		}
	}
	opts := &slog.HandlerOptions{Level: l}
	switch strings.ToLower(format) {
	case "", "text":
		return slog.New(slog.NewTextHandler(w, opts)), l, nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, opts)), l, nil
	}
	return nil, nil, fmt.Errorf("log format %q is not text or json", format)
}
