package txn

import (
	"cmp"
	"math"
	"slices"
	"strings"
)

// A State is where a transactional id stands, as its number in __transaction_state.
type State int8

// The states of transactional ids. Prepared ones are decided, and completed ones have all their markers.
const (
	Empty State = iota
	Ongoing
	PrepareCommit
	PrepareAbort
	CompleteCommit
	CompleteAbort
	Dead              // about to be removed; never shown
	PrepareEpochFence // never written
)

var stateNames = [...]string{"Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead", "PrepareEpochFence"}

// String is the state's name on the wire.
func (s State) String() string {
	if s < 0 || int(s) >= len(stateNames) {
		return "Unknown"
	}
	return stateNames[s]
}

// ParseState finds a state by its name on the wire.
func ParseState(name string) (State, bool) {
	i := slices.Index(stateNames[:], name)
	return State(i), i >= 0
}

func (s State) prepared() bool  { return s == PrepareCommit || s == PrepareAbort }
func (s State) completed() bool { return s == CompleteCommit || s == CompleteAbort }

// Levels of transaction.version, and what a client works by.
const (
	Version0 int16 = iota
	Version1       // values of version 1 in __transaction_state
	Version2       // an epoch for each transaction (KIP-890)
)

// lastEpoch is the last producer epoch that a producer may use. From it on an epoch is exhausted: there is one above it,
// for fences and markers, and then another producer id.
const lastEpoch = math.MaxInt16 - 1

// NoProducerID, NoEpoch and NoTime stand for what there is not, on the wire too.
const (
	NoProducerID int64 = -1
	NoEpoch      int16 = -1
	NoTime       int64 = -1
)

// A TopicPartition is one partition of a transaction.
type TopicPartition struct {
	Topic     string
	Partition int32
}

func comparePartitions(a, b TopicPartition) int {
	return cmp.Or(strings.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
}

// A Client is who uses a transactional id, as far as it is known.
type Client struct {
	ID   string
	Host string // in Java's form, with a slash before the address: /10.0.0.1
}

// Metadata is what is known of one transactional id. Values are immutable once made.
type Metadata struct {
	ProducerID         int64
	PreviousProducerID int64 // the one before the last transition
	NextProducerID     int64 // what the producer was told to go on with, while the transaction completes; -1: the same
	ProducerEpoch      int16
	NextProducerEpoch  int16 // of KIP-939; -1
	ClientVersion      int16 // what the client works by: Version0 or Version2
	TimeoutMs          int32
	State              State
	Partitions         []TopicPartition // sorted
	LastUpdate         int64            // ms since 1970
	Start              int64            // of the transaction, ms since 1970; -1: none yet

	// Not in the log.
	lastProducerEpoch int16 // the epoch before, of the producer that has the present one; -1: not known
	fenced            bool  // the transaction was aborted on behalf of somebody else: its producer is not told of the present epoch
	client            Client
}

// with is a copy for the next transition at now.
func (m *Metadata) with(now int64, state State) *Metadata {
	next := *m
	next.PreviousProducerID, next.State, next.LastUpdate = m.ProducerID, state, now
	return &next
}

func (m *Metadata) exhausted() bool { return m.ProducerEpoch >= lastEpoch }

func (m *Metadata) has(tp TopicPartition) bool {
	_, found := slices.BinarySearchFunc(m.Partitions, tp, comparePartitions)
	return found
}

func (m *Metadata) hasAll(partitions []TopicPartition) bool {
	for _, tp := range partitions {
		if !m.has(tp) {
			return false
		}
	}
	return true
}

// union is the partitions of the transaction and others, sorted, each once.
func union(a, b []TopicPartition) []TopicPartition {
	all := slices.Concat(a, b)
	slices.SortFunc(all, comparePartitions)
	return slices.Compact(all)
}
