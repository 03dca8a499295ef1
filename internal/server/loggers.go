package server

import (
	"errors"
	"log/slog"
	"strconv"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/config"
)

// rootLogger is the one logger that a node has (config resource type BROKER_LOGGER). Its level is not stored: a
// restart takes it back to what --log-level says.
const rootLogger = "root"

// logLevels are Kafka's names of levels; slog has none for the first and the last.
var logLevels = []struct {
	name  string
	level slog.Level
}{
	{"TRACE", slog.LevelDebug - 4}, {"DEBUG", slog.LevelDebug}, {"INFO", slog.LevelInfo},
	{"WARN", slog.LevelWarn}, {"ERROR", slog.LevelError}, {"FATAL", slog.LevelError + 4},
}

// nodeLoggers is what the settings of a node's loggers are kept in.
type nodeLoggers struct {
	id    int32
	level *slog.LevelVar
}

// describe lists the loggers and their levels.
func (l nodeLoggers) describe(name string) ([]config.Entry, error) {
	if name == "" {
		return nil, describe(kerr.InvalidRequest, "Broker id must not be empty")
	}
	if id, err := strconv.ParseInt(name, 10, 32); err != nil {
		return nil, describe(kerr.InvalidRequest, "Broker id must be an integer, but it is: %s", name)
	} else if int32(id) != l.id {
		return nil, describe(kerr.InvalidRequest, "Unexpected broker id, expected %d but received %s", l.id, name)
	}
	at := logLevels[0].name
	for _, known := range logLevels {
		if l.level.Level() >= known.level {
			at = known.name
		}
	}
	return []config.Entry{{Name: rootLogger, Value: &at, Source: config.DynamicBrokerLogger}}, nil
}

// errAltered stands for a resource whose alteration is done: nothing is left for the controller.
var errAltered = errors.New("altered here")

// alter changes levels, or only checks the change. It returns errAltered when all is well.
func (l nodeLoggers) alter(name string, ops []configOp, validateOnly bool) error {
	if id, err := strconv.ParseInt(name, 10, 32); err != nil {
		return describe(kerr.InvalidRequest, "Node id must be an integer, but it is: %s", name)
	} else if int32(id) != l.id {
		return describe(kerr.InvalidRequest, "Unexpected node id. Expected %d, but received %s", l.id, name)
	}
	after := l.level.Level()
	for _, op := range ops {
		switch {
		case op.op != kmsg.IncrementalAlterConfigOpSet && op.op != kmsg.IncrementalAlterConfigOpDelete:
			return describe(kerr.InvalidRequest, "%v operation is not allowed for the BROKER_LOGGER resource", op.op)
		case op.name != rootLogger:
			return describe(kerr.InvalidConfig, "Logger %s does not exist!", op.name)
		case op.op == kmsg.IncrementalAlterConfigOpDelete:
			return describe(kerr.InvalidRequest, "Removing the log level of the root logger is not allowed")
		}
		known := false
		for _, level := range logLevels {
			if level.name == *op.value {
				after, known = level.level, true
			}
		}
		if !known {
			return describe(kerr.InvalidConfig, "Cannot set the log level of %s to %s as it is not a supported log level. Valid log levels are DEBUG, ERROR, FATAL, INFO, TRACE, WARN", op.name, *op.value)
		}
	}
	if !validateOnly {
		l.level.Set(after)
	}
	return errAltered
}
