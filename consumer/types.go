package consumer

import (
	"cmp"
	"fmt"
	"strconv"
)

// Optional is a value that may be unknown. The zero value is unknown. Values are compared with ==.
type Optional[T comparable] struct {
	value T
	known bool
}

// Known is a value that is known.
func Known[T comparable](value T) Optional[T] { return Optional[T]{value: value, known: true} }

// Get is the value, and whether it is known.
func (o Optional[T]) Get() (value T, known bool) { return o.value, o.known }

// String is the value, or "unknown".
func (o Optional[T]) String() string {
	if !o.known {
		return "unknown"
	}
	return fmt.Sprint(o.value)
}

// orMinus is the value as the wire has it, -1 for unknown.
func orMinus[T int32 | int64](o Optional[T]) T {
	if !o.known {
		return -1
	}
	return o.value
}

// fromWire reads a value of which any negative one means unknown.
func fromWire[T int32 | int64](v T) Optional[T] {
	if v < 0 {
		return Optional[T]{}
	}
	return Known(v)
}

// Epoch is a leader epoch, which may be unknown.
type Epoch = Optional[int32]

// Offset is an offset that may be unknown.
type Offset = Optional[int64]

// TopicPartition names a partition.
type TopicPartition struct {
	Topic     string
	Partition int32
}

// String is the topic, a dash and the partition.
func (tp TopicPartition) String() string {
	return tp.Topic + "-" + strconv.Itoa(int(tp.Partition))
}

func compareTopicPartitions(a, b TopicPartition) int {
	if c := cmp.Compare(a.Topic, b.Topic); c != 0 {
		return c
	}
	return cmp.Compare(a.Partition, b.Partition)
}

// Position is a place in a partition that can be checked.
type Position struct {
	Offset int64 // of the next record, >= 0
	// Epoch is that of the last record before Offset. Unknown: the position cannot be checked.
	Epoch Epoch
}

// String is the offset, and the epoch after an @ if it is known.
func (p Position) String() string {
	if e, ok := p.Epoch.Get(); ok {
		return fmt.Sprintf("%d@%d", p.Offset, e)
	}
	return strconv.FormatInt(p.Offset, 10)
}
