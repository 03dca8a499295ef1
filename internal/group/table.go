package group

// A table is a map that remembers how it was before each change that is not yet committed. The newest
// state is what requests see; the committed one is what reads see.
//
// Changes are undone from the newest and settled from the oldest. The table knows no offsets: the journal
// of the replicated state does, and holds one entry per change, in the same order.
type table[K comparable, V any] struct {
	newest map[K]V
	undo   []tableChange[K, V]
	// first is, for each key with unsettled changes, what those were made on, oldest first.
	first    map[K][]tableValue[V]
	onChange func(key K, had, has bool) // told of each change of the newest state; may be nil
	size     func(K, V) int64           // of one entry in bytes, which held is told of; may be nil
	held     *held
}

type tableValue[V any] struct {
	value V
	ok    bool
}

type tableChange[K comparable, V any] struct {
	key K
	was tableValue[V]
}

func newTable[K comparable, V any](onChange func(key K, had, has bool)) *table[K, V] {
	return &table[K, V]{newest: map[K]V{}, first: map[K][]tableValue[V]{}, onChange: onChange}
}

func (t *table[K, V]) get(key K) (V, bool) {
	v, ok := t.newest[key]
	return v, ok
}

func (t *table[K, V]) committed(key K) (V, bool) {
	if was := t.first[key]; len(was) > 0 {
		return was[0].value, was[0].ok
	}
	v, ok := t.newest[key]
	return v, ok
}

// committedKeys calls f for each key of the committed state, in no order.
func (t *table[K, V]) committedKeys(f func(K)) {
	for key := range t.newest {
		if was := t.first[key]; len(was) == 0 || was[0].ok {
			f(key)
		}
	}
	for key, was := range t.first {
		if _, ok := t.newest[key]; !ok && was[0].ok {
			f(key)
		}
	}
}

func (t *table[K, V]) set(key K, value V) { t.change(key, tableValue[V]{value, true}) }
func (t *table[K, V]) remove(key K)       { t.change(key, tableValue[V]{}) }

func (t *table[K, V]) change(key K, to tableValue[V]) {
	v, ok := t.newest[key]
	was := tableValue[V]{v, ok}
	t.undo = append(t.undo, tableChange[K, V]{key, was})
	t.first[key] = append(t.first[key], was)
	t.put(key, to)
}

func (t *table[K, V]) put(key K, to tableValue[V]) {
	old, had := t.newest[key]
	if t.size != nil {
		if had {
			t.held.add(-t.size(key, old))
		}
		if to.ok {
			t.held.add(t.size(key, to.value))
		}
	}
	if to.ok {
		t.newest[key] = to.value
	} else {
		delete(t.newest, key)
	}
	if t.onChange != nil && had != to.ok {
		t.onChange(key, had, to.ok)
	}
}

// undoLast takes back the newest change.
func (t *table[K, V]) undoLast() {
	last := t.undo[len(t.undo)-1]
	t.undo = t.undo[:len(t.undo)-1]
	t.put(last.key, last.was)
	if was := t.first[last.key]; len(was) > 1 {
		t.first[last.key] = was[:len(was)-1]
	} else {
		delete(t.first, last.key)
	}
}

// settleFirst makes the oldest unsettled change part of the committed state.
func (t *table[K, V]) settleFirst() {
	key := t.undo[0].key
	t.undo = t.undo[1:]
	if len(t.undo) == 0 {
		t.undo = nil
	}
	if was := t.first[key]; len(was) > 1 {
		t.first[key] = was[1:]
	} else {
		delete(t.first, key)
	}
}

// vacant says that the table is empty, in its newest and in its committed state.
func (t *table[K, V]) vacant() bool { return len(t.newest) == 0 && len(t.undo) == 0 }
