//go:build chaos

package chaos

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"os"
	"slices"
	"sync"
)

type topicPartition struct {
	Topic     string
	Partition int32
}

// acked is one record that a producer was told is stored. Offset is -1 when the answer was that it had been
// stored before.
type acked struct {
	topicPartition
	Offset int64
	Key    string
}

// commit is a position that a group was told is stored.
type commit struct {
	Offset int64
	Epoch  int32
}

// ledger is what the broker has promised so far. Safe for concurrent use.
type ledger struct {
	mu      sync.Mutex
	records []acked
	commits map[string]map[topicPartition]commit
	faults  []string // what clients were told that must not happen
	kills   []kill
}

func newLedger() *ledger {
	return &ledger{commits: map[string]map[topicPartition]commit{}}
}

func (l *ledger) acknowledged(r acked) {
	l.mu.Lock()
	l.records = append(l.records, r)
	l.mu.Unlock()
}

func (l *ledger) committed(group string, tp topicPartition, c commit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.commits[group] == nil {
		l.commits[group] = map[topicPartition]commit{}
	}
	if c.Offset > l.commits[group][tp].Offset {
		l.commits[group][tp] = c
	}
}

func (l *ledger) fault(format string, args ...any) {
	l.mu.Lock()
	l.faults = append(l.faults, fmt.Sprintf(format, args...))
	l.mu.Unlock()
}

// promises is a copy of the ledger at one moment: what comes later is judged later.
func (l *ledger) promises() ([]acked, map[string]map[topicPartition]commit, []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	commits := map[string]map[topicPartition]commit{}
	for group, offsets := range l.commits {
		commits[group] = maps.Clone(offsets)
	}
	return l.records[:len(l.records):len(l.records)], commits, slices.Clone(l.faults)
}

// keep writes the history where a failure can be studied.
func (l *ledger) keep(path string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	commits := map[string]map[string]commit{}
	for group, offsets := range l.commits {
		commits[group] = map[string]commit{}
		for tp, c := range offsets {
			commits[group][fmt.Sprintf("%s-%d", tp.Topic, tp.Partition)] = c
		}
	}
	text, err := json.MarshalIndent(map[string]any{"acknowledged": l.records, "commits": commits, "faults": l.faults, "kills": l.kills}, "", " ")
	if err == nil {
		err = os.WriteFile(path, text, 0o644)
	}
	if err != nil {
		fmt.Println("history not kept:", err)
	}
}

// valueOf is the value that belongs to a key, so that a reader knows a record which was changed on the way. Half of
// it can be compressed.
func valueOf(key string, size int) []byte {
	h := fnv.New64a()
	h.Write([]byte(key))
	x := h.Sum64() | 1
	value := append(make([]byte, 0, size), key...)
	for len(value) < size {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		value = append(value, byte(x), byte(x>>8), '.', '.')
	}
	return value[:size]
}

func valueFits(key string, value []byte) bool {
	return bytes.Equal(value, valueOf(key, len(value))) && len(value) >= len(key)
}
