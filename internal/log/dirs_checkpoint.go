package log

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"

	"github.com/stelelog/stele/internal/vfs"
)

// formatCleanShutdown is the content of a clean shutdown marker.
func formatCleanShutdown(brokerEpoch int64) []byte {
	return fmt.Appendf(nil, `{"version":0,"brokerEpoch":%d}`, brokerEpoch)
}

// parseCleanShutdown reads the broker epoch; -1 when the marker does not tell, as those of older brokers.
func parseCleanShutdown(data []byte) int64 {
	var m struct {
		Version     int    `json:"version"`
		BrokerEpoch *int64 `json:"brokerEpoch"`
	}
	if json.Unmarshal(data, &m) != nil || m.BrokerEpoch == nil || *m.BrokerEpoch < 0 {
		return -1
	}
	return *m.BrokerEpoch
}

// CheckpointPositions writes recovery points and log starts of every online directory, where they have changed.
func (d *Dirs) CheckpointPositions() error {
	return d.eachOnline(d.savePositions)
}

// CheckpointHighWatermarks writes the high watermarks likewise.
func (d *Dirs) CheckpointHighWatermarks() error {
	return d.eachOnline(d.saveHighWatermarks)
}

func (d *Dirs) saveHighWatermarks(ld *logDir) error {
	ld.writeMu.Lock()
	defer ld.writeMu.Unlock()
	return d.saveCheckpoint(ld, HighWatermarkCheckpoint, &ld.highWatermarks, func(l *Log) (int64, bool) {
		return l.cur.Load().HighWatermark, true
	})
}

// saveCleanedTo writes the cleaner's checkpoints of one directory.
func (d *Dirs) saveCleanedTo(ld *logDir) error {
	ld.writeMu.Lock()
	defer ld.writeMu.Unlock()
	return d.saveCheckpoint(ld, CleanerCheckpoint, &ld.cleanedTo, func(l *Log) (int64, bool) {
		offset := l.cleanedTo.Load()
		return offset, offset > 0
	})
}

// eachOnline runs f on each online directory. A directory in which it fails goes offline, unless it is only full.
func (d *Dirs) eachOnline(f func(*logDir) error) error {
	var first error
	for _, ld := range d.dirs {
		if ld.failure() != nil {
			continue
		}
		if err := f(ld); err != nil {
			if !IsFull(err) {
				d.MarkOffline(ld.path, err)
			}
			if first == nil {
				first = err
			}
		}
	}
	return first
}

// savePositions writes recovery points and log starts. The caller may hold a log's lock. Callers that come while a
// write is under way share the next one.
func (d *Dirs) savePositions(ld *logDir) error {
	mine := ld.requests.Add(1)
	ld.writeMu.Lock()
	defer ld.writeMu.Unlock()
	if ld.saved.Load() >= mine {
		return nil
	}
	covered := ld.requests.Load()
	if err := d.writePositions(ld); err != nil {
		return err
	}
	ld.saved.Store(covered)
	return nil
}

// writePositions does so. writeMu is held.
func (d *Dirs) writePositions(ld *logDir) error {
	// A recovery point that the log start has raised says nothing of what lies below the log start: that goes first.
	if err := d.saveCheckpoint(ld, LogStartCheckpoint, &ld.logStarts, (*Log).LogStartToSave); err != nil {
		return err
	}
	return d.saveCheckpoint(ld, RecoveryPointCheckpoint, &ld.recoveryPoints, func(l *Log) (int64, bool) {
		return l.RecoveryPoint(), true
	})
}

// saveCheckpoint writes one checkpoint file unless it holds the same already. Partitions that are not open yet, could not
// be, or have failed, keep what the file said; those that are gone lose it. writeMu is held.
func (d *Dirs) saveCheckpoint(ld *logDir, name string, saved *map[TopicPartition]int64, value func(*Log) (int64, bool)) error {
	d.mu.Lock()
	loaded := d.loaded
	d.mu.Unlock()
	ld.mu.Lock()
	next := maps.Clone(*saved)
	if loaded {
		maps.DeleteFunc(next, func(tp TopicPartition, _ int64) bool { return !ld.unopened[tp] })
	}
	ld.mu.Unlock()
	for _, l := range d.everyLog() {
		if d.dirOf(l) != ld {
			continue
		}
		if l.broken.Load() != nil {
			ld.mu.Lock()
			old, ok := (*saved)[l.tp()]
			ld.mu.Unlock()
			if ok {
				next[l.tp()] = old
			}
			continue
		}
		if v, ok := value(l); ok {
			next[l.tp()] = v
		} else {
			delete(next, l.tp())
		}
	}
	return d.writeCheckpoint(ld, name, saved, next)
}

func (d *Dirs) writeCheckpoint(ld *logDir, name string, saved *map[TopicPartition]int64, next map[TopicPartition]int64) error {
	ld.mu.Lock()
	same := maps.Equal(*saved, next)
	ld.mu.Unlock()
	if same {
		return nil
	}
	if err := vfs.WriteFileAtomic(d.o.FS, filepath.Join(ld.path, name), formatCheckpoint(next)); err != nil {
		return &StorageError{Dir: ld.path, Op: "write " + name, Err: err, Offline: !IsFull(err)}
	}
	ld.mu.Lock()
	*saved = next
	ld.mu.Unlock()
	return nil
}

// dropFromCheckpoints takes a partition that an earlier topic of that name may have left out of all checkpoints.
func (d *Dirs) dropFromCheckpoints(ld *logDir, tp TopicPartition) error {
	ld.writeMu.Lock()
	defer ld.writeMu.Unlock()
	for _, c := range ld.checkpoints() {
		ld.mu.Lock()
		_, there := (*c.content)[tp]
		if !there {
			ld.mu.Unlock()
			continue // as of nearly every new one: a copy of each map would make many new ones quadratic
		}
		next := maps.Clone(*c.content)
		ld.mu.Unlock()
		delete(next, tp)
		if err := d.writeCheckpoint(ld, c.name, c.content, next); err != nil {
			return err
		}
	}
	return nil
}
