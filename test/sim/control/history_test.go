package control

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/stelelog/stele/internal/controller"
	"github.com/stelelog/stele/internal/metadata"
)

// opKind is what an operation does to a register or a topic.
type opKind int

const (
	opRead opKind = iota
	opSet
	opCreate
	opDelete
	opGrow
)

// input is what was asked for. id is what a creation would call the topic; who asked need not have heard it.
type input struct {
	key    string
	kind   opKind
	number int32
	value  string
	id     metadata.UUID
}

// output is what was answered.
type output struct {
	fault error
	state register
}

// register is a topic, or a value by another name.
type register struct {
	exists bool
	id     metadata.UUID
	number int32
	value  string
}

// state is what an image says of a key.
func state(img *metadata.Image, key string) register {
	switch {
	case key == "cluster":
		value, _ := img.ConfigValue(metadata.ConfigResource{Type: metadata.ResourceBroker}, "log.retention.ms")
		return register{exists: true, value: value}
	case key == "metadata.version":
		return register{exists: true, value: fmt.Sprint(int16(img.MetadataVersion()))}
	case key[:4] == "user":
		if value, ok := img.ClientQuota(entity(key), "producer_byte_rate"); ok {
			return register{exists: true, value: fmt.Sprint(int64(value))}
		}
		return register{exists: true}
	}
	topic, ok := img.Topic(key)
	if !ok {
		return register{}
	}
	value, _ := img.ConfigValue(metadata.ConfigResource{Type: metadata.ResourceTopic, Name: key}, "retention.ms")
	return register{exists: true, id: topic.ID, number: int32(topic.NumPartitions()), value: value}
}

// step is the model: what an operation does to a register, and whether it may be answered so. Faults that name a state are
// held against it; others, of which the cluster's brokers are the cause, change nothing.
func step(before register, in *input, out output) (bool, register) {
	after := before
	switch in.kind {
	case opRead:
		return out.state == before, before
	case opSet:
		after.value = in.value
	case opCreate:
		after = register{exists: true, id: in.id, number: in.number}
	case opDelete:
		after = register{}
	case opGrow:
		after.number = in.number
	}
	may := before.exists
	switch in.kind {
	case opCreate:
		may = !before.exists
	case opGrow:
		may = before.exists && in.number > before.number
	}
	switch {
	case out.fault == nil:
		return may, after
	case errors.Is(out.fault, controller.ErrTopicAlreadyExists):
		return before.exists, before
	case errors.Is(out.fault, controller.ErrUnknownTopicOrPartition):
		return !before.exists, before
	case errors.Is(out.fault, controller.ErrInvalidPartitions):
		return before.exists && in.number <= before.number, before
	}
	return true, before
}

// history is what administrators asked and heard, by key.
type history struct {
	w      *world
	ops    map[string][]porcupine.Operation
	doubts []doubtful
}

type doubtful struct {
	a      *admin
	op     *operation
	r      *request
	called time.Duration
}

func (h *history) add(a *admin, op *operation, r *request, called, returned time.Duration, out output) {
	if op.in == nil {
		return
	}
	op.in.key = op.key
	h.ops[op.key] = append(h.ops[op.key], porcupine.Operation{ClientId: int(a.id), Input: op.in, Call: int64(called), Output: out, Return: int64(returned)})
}

// doubt is for an operation whose answer nobody has heard. If its records were committed it was carried out by the end; if
// they were not, or there were none, it changed nothing.
func (h *history) doubt(a *admin, op *operation, r *request, called time.Duration) {
	if op.in != nil {
		h.doubts = append(h.doubts, doubtful{a, op, r, called})
	}
}

// linearizable says which key's history is none of a cluster that does one thing after another.
func (h *history) linearizable() error {
	for _, d := range h.doubts {
		if d.r.ran && len(d.r.records) > 0 && h.w.check.committedAs(d.r) {
			h.add(d.a, d.op, d.r, d.called, math.MaxInt64, output{})
		}
	}
	model := porcupine.Model{
		Step:              func(before, in, out any) (bool, any) { return step(before.(register), in.(*input), out.(output)) },
		DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v -> %+v", *in.(*input), out.(output)) },
	}
	keys := make([]string, 0, len(h.ops))
	for key := range h.ops {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		model.Init = func() any { return state(h.w.begun, key) }
		if result := porcupine.CheckOperationsTimeout(model, h.ops[key], time.Minute); result != porcupine.Ok {
			return fmt.Errorf("the history of %s is not linearizable (%s); %d operations", key, result, len(h.ops[key]))
		}
	}
	return nil
}

func TestHistoryThatIsNotLinearizableIsFound(t *testing.T) {
	// A read that begins after a creation was answered sees the topic; one that overlaps it may or may not; a change that
	// nobody answered, and that was not committed, is never seen.
	id := metadata.UUID{1: 1}
	create := porcupine.Operation{Input: &input{kind: opCreate, number: 3, id: id}, Call: 0, Output: output{}, Return: 10}
	read := func(call, end int64, seen register) porcupine.Operation {
		return porcupine.Operation{ClientId: 1, Input: &input{kind: opRead}, Call: call, Output: output{state: seen}, Return: end}
	}
	there := register{exists: true, id: id, number: 3}
	for _, c := range []struct {
		name string
		ops  []porcupine.Operation
		ok   bool
	}{
		{"seen", []porcupine.Operation{create, read(11, 12, there)}, true},
		{"overlapping", []porcupine.Operation{create, read(5, 12, register{}), read(6, 7, register{})}, true},
		{"not seen", []porcupine.Operation{create, read(11, 12, register{})}, false},
		{"seen and then not", []porcupine.Operation{create, read(1, 2, there), read(3, 4, register{})}, false},
		{"another topic", []porcupine.Operation{create, read(11, 12, register{exists: true, id: metadata.UUID{1: 2}, number: 3})}, false},
		{"a value of nobody's", []porcupine.Operation{create, read(11, 12, register{exists: true, id: id, number: 3, value: "7"})}, false},
		{"refused without reason", []porcupine.Operation{create, {Input: &input{kind: opDelete}, Call: 11, Output: output{fault: controller.ErrUnknownTopicOrPartition}, Return: 12}}, false},
	} {
		w := &world{loop: newLoop(1), begun: metadata.EmptyImage()}
		h := &history{w: w, ops: map[string][]porcupine.Operation{"topic-0": c.ops}}
		if err := h.linearizable(); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
