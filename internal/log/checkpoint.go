package log

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/stelelog/stele/internal/vfs"
)

// The checkpoint files of a log directory.
const (
	RecoveryPointCheckpoint = "recovery-point-offset-checkpoint"
	LogStartCheckpoint      = "log-start-offset-checkpoint"
	HighWatermarkCheckpoint = "replication-offset-checkpoint"
	CleanerCheckpoint       = "cleaner-offset-checkpoint"
)

// TopicPartition names a partition.
type TopicPartition struct {
	Topic     string
	Partition int32
}

func (tp TopicPartition) String() string { return fmt.Sprintf("%s-%d", tp.Topic, tp.Partition) }

func compareTopicPartition(a, b TopicPartition) int {
	if a.Topic != b.Topic {
		if a.Topic < b.Topic {
			return -1
		}
		return 1
	}
	return int(a.Partition) - int(b.Partition)
}

// errCheckpoint says that a checkpoint file cannot be understood.
var errCheckpoint = errors.New("checkpoint is damaged")

// formatCheckpoint is the content of a checkpoint file: version 0, the number of entries, then one
// "topic partition offset" per line, sorted.
func formatCheckpoint(m map[TopicPartition]int64) []byte {
	b := append(strconv.AppendInt([]byte("0\n"), int64(len(m)), 10), '\n')
	for _, tp := range slices.SortedFunc(maps.Keys(m), compareTopicPartition) {
		b = append(b, tp.Topic...)
		b = append(b, ' ')
		b = strconv.AppendInt(b, int64(tp.Partition), 10)
		b = append(b, ' ')
		b = strconv.AppendInt(b, m[tp], 10)
		b = append(b, '\n')
	}
	return b
}

// parseCheckpoint reads a checkpoint file; nothing, or the version alone, is an empty map.
func parseCheckpoint(data []byte) (map[TopicPartition]int64, error) {
	m := map[TopicPartition]int64{}
	if len(data) == 0 {
		return m, nil
	}
	lines := bytes.Split(bytes.TrimSuffix(data, []byte("\n")), []byte("\n"))
	if v := string(bytes.TrimSpace(lines[0])); v != "0" {
		return nil, fmt.Errorf("%w: version %.20q", errCheckpoint, v)
	}
	if len(lines) == 1 {
		return m, nil
	}
	count, err := strconv.Atoi(string(bytes.TrimSpace(lines[1])))
	if err != nil || count != len(lines)-2 {
		return nil, fmt.Errorf("%w: %.20q entries announced, %d lines follow", errCheckpoint, lines[1], len(lines)-2)
	}
	for i, line := range lines[2:] {
		f := bytes.Fields(line)
		if len(f) != 3 {
			return nil, fmt.Errorf("%w: line %d has %d words", errCheckpoint, i+3, len(f))
		}
		p, err1 := strconv.ParseInt(string(f[1]), 10, 32)
		o, err2 := strconv.ParseInt(string(f[2]), 10, 64)
		if err1 != nil || err2 != nil || p < 0 || o < 0 {
			return nil, fmt.Errorf("%w: line %d: %.80q", errCheckpoint, i+3, line)
		}
		m[TopicPartition{string(f[0]), int32(p)}] = o
	}
	return m, nil
}

// readCheckpoint reads a checkpoint file. A missing one is empty; one that cannot be understood is renamed and
// reported, and empty too: each of them can be done without.
func readCheckpoint(fsys vfs.FS, path string, now time.Time, report func(error)) (map[TopicPartition]int64, error) {
	data, err := vfs.ReadFile(fsys, path)
	if isNotExist(err) {
		return map[TopicPartition]int64{}, nil
	}
	if err != nil {
		return nil, err
	}
	m, err := parseCheckpoint(data)
	if err == nil {
		return m, nil
	}
	report(fmt.Errorf("%s: %w", path, err))
	if err := keepCorrupt(fsys, path, now); err != nil {
		return nil, err
	}
	return map[TopicPartition]int64{}, nil
}
