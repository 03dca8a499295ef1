package shard

// A Table is a map that remembers how it was before each change that is not yet committed. The newest
// state is what requests see; the committed one is what reads see.
//
// Changes are undone from the newest and settled from the oldest. The table knows no offsets: a Journal does,
// and holds one entry per change, in the same order.
type Table[K comparable, V any] struct {
	newest map[K]V
	undo   []tableChange[K, V]
	// first is, for each key with unsettled changes, what those were made on, oldest first.
	first map[K][]Value[V]
	watch Watch[K, V]
}

// A Watch is told of what happens to a Table. Each function may be nil.
type Watch[K comparable, V any] struct {
	// Changed is told of each change of the newest state, made or undone.
	Changed func(key K, was, is Value[V])
	// Settled is told of each key whose value became the committed one; ok is false when it went.
	Settled func(key K, value V, ok bool)
	// Size is that of one entry in bytes, of whose sum Held is told the changes.
	Size func(K, V) int64
	Held func(delta int64)
}

// A Value is that of a key, if it has one.
type Value[V any] struct {
	V  V
	OK bool
}

type tableChange[K comparable, V any] struct {
	key K
	to  Value[V]
	was Value[V]
}

// NewTable makes an empty table.
func NewTable[K comparable, V any](watch Watch[K, V]) *Table[K, V] {
	return &Table[K, V]{newest: map[K]V{}, first: map[K][]Value[V]{}, watch: watch}
}

// Newest is the newest state, for reading.
func (t *Table[K, V]) Newest() map[K]V { return t.newest }

// Get is the newest value of a key.
func (t *Table[K, V]) Get(key K) (V, bool) {
	v, ok := t.newest[key]
	return v, ok
}

// Committed is the committed value of a key.
func (t *Table[K, V]) Committed(key K) (V, bool) {
	if was := t.first[key]; len(was) > 0 {
		return was[0].V, was[0].OK
	}
	v, ok := t.newest[key]
	return v, ok
}

// Unsettled says whether the key has a change that is not yet committed.
func (t *Table[K, V]) Unsettled(key K) bool { return len(t.first[key]) > 0 }

// CommittedKeys calls f for each key of the committed state, in no order.
func (t *Table[K, V]) CommittedKeys(f func(K)) {
	for key := range t.newest {
		if was := t.first[key]; len(was) == 0 || was[0].OK {
			f(key)
		}
	}
	for key, was := range t.first {
		if _, ok := t.newest[key]; !ok && was[0].OK {
			f(key)
		}
	}
}

// Set gives a key a value.
func (t *Table[K, V]) Set(key K, value V) { t.change(key, Value[V]{value, true}) }

// Remove takes a key away.
func (t *Table[K, V]) Remove(key K) { t.change(key, Value[V]{}) }

func (t *Table[K, V]) change(key K, to Value[V]) {
	v, ok := t.newest[key]
	was := Value[V]{v, ok}
	t.undo = append(t.undo, tableChange[K, V]{key, to, was})
	t.first[key] = append(t.first[key], was)
	t.put(key, to)
}

func (t *Table[K, V]) put(key K, to Value[V]) {
	old, had := t.newest[key]
	if t.watch.Size != nil && t.watch.Held != nil {
		if had {
			t.watch.Held(-t.watch.Size(key, old))
		}
		if to.OK {
			t.watch.Held(t.watch.Size(key, to.V))
		}
	}
	if to.OK {
		t.newest[key] = to.V
	} else {
		delete(t.newest, key)
	}
	if t.watch.Changed != nil {
		t.watch.Changed(key, Value[V]{old, had}, to)
	}
}

// UndoLast takes back the newest change.
func (t *Table[K, V]) UndoLast() {
	last := t.undo[len(t.undo)-1]
	t.undo = t.undo[:len(t.undo)-1]
	t.put(last.key, last.was)
	if was := t.first[last.key]; len(was) > 1 {
		t.first[last.key] = was[:len(was)-1]
	} else {
		delete(t.first, last.key)
	}
}

// SettleFirst makes the oldest unsettled change part of the committed state.
func (t *Table[K, V]) SettleFirst() {
	settled := t.undo[0]
	t.undo[0] = tableChange[K, V]{} // its values are not kept by the array
	t.undo = t.undo[1:]
	if len(t.undo) == 0 {
		t.undo = nil
	}
	if was := t.first[settled.key]; len(was) > 1 {
		t.first[settled.key] = was[1:]
	} else {
		delete(t.first, settled.key)
	}
	if t.watch.Settled != nil {
		t.watch.Settled(settled.key, settled.to.V, settled.to.OK)
	}
}

// Vacant says that the table is empty, in its newest and in its committed state.
func (t *Table[K, V]) Vacant() bool { return len(t.newest) == 0 && len(t.undo) == 0 }
