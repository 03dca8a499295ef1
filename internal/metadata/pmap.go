package metadata

import (
	"cmp"
	"iter"
)

// Map is a persistent ordered map, an AVL tree whose nodes are never changed: Set and Delete return a new
// map in O(log n) that shares all but the path to the change. The zero Map is not usable; see newMap.
type Map[K, V any] struct {
	root    *node[K, V]
	size    int
	compare func(a, b K) int
}

type node[K, V any] struct {
	key         K
	value       V
	height      int8
	left, right *node[K, V]
}

func newMap[K, V any](compare func(a, b K) int) Map[K, V] { return Map[K, V]{compare: compare} }

func newOrderedMap[K cmp.Ordered, V any]() Map[K, V] { return newMap[K, V](cmp.Compare[K]) }

// Len is the number of entries.
func (m Map[K, V]) Len() int { return m.size }

// Get returns the value of a key.
func (m Map[K, V]) Get(key K) (value V, ok bool) {
	for n := m.root; n != nil; {
		switch c := m.compare(key, n.key); {
		case c < 0:
			n = n.left
		case c > 0:
			n = n.right
		default:
			return n.value, true
		}
	}
	return value, false
}

// All yields the entries in the order of their keys.
func (m Map[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) { m.root.walk(yield) }
}

// From yields the entries whose key is not below the given one, in order.
func (m Map[K, V]) From(key K) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) { m.root.walkFrom(m.compare, key, yield) }
}

func (n *node[K, V]) walk(yield func(K, V) bool) bool {
	return n == nil || n.left.walk(yield) && yield(n.key, n.value) && n.right.walk(yield)
}

func (n *node[K, V]) walkFrom(compare func(a, b K) int, key K, yield func(K, V) bool) bool {
	if n == nil {
		return true
	}
	if compare(n.key, key) < 0 {
		return n.right.walkFrom(compare, key, yield)
	}
	return n.left.walkFrom(compare, key, yield) && yield(n.key, n.value) && n.right.walk(yield)
}

// Set returns the map with the key at this value.
func (m Map[K, V]) Set(key K, value V) Map[K, V] {
	root, added := m.set(m.root, key, value)
	m.root = root
	if added {
		m.size++
	}
	return m
}

func (m Map[K, V]) set(n *node[K, V], key K, value V) (out *node[K, V], added bool) {
	if n == nil {
		return &node[K, V]{key: key, value: value, height: 1}, true
	}
	c := *n
	switch d := m.compare(key, n.key); {
	case d < 0:
		c.left, added = m.set(n.left, key, value)
	case d > 0:
		c.right, added = m.set(n.right, key, value)
	default:
		c.value = value
		return &c, false
	}
	return balance(&c), added
}

// Delete returns the map without the key.
func (m Map[K, V]) Delete(key K) Map[K, V] {
	if _, ok := m.Get(key); !ok {
		return m
	}
	m.root = m.delete(m.root, key)
	m.size--
	return m
}

func (m Map[K, V]) delete(n *node[K, V], key K) *node[K, V] {
	c := *n
	switch d := m.compare(key, n.key); {
	case d < 0:
		c.left = m.delete(n.left, key)
	case d > 0:
		c.right = m.delete(n.right, key)
	case n.left == nil:
		return n.right
	case n.right == nil:
		return n.left
	default:
		next := n.right
		for next.left != nil {
			next = next.left
		}
		c.key, c.value = next.key, next.value
		c.right = m.delete(n.right, next.key)
	}
	return balance(&c)
}

func (n *node[K, V]) tall() int8 {
	if n == nil {
		return 0
	}
	return n.height
}

// balance restores the AVL property at n, which this change owns, and its height.
func balance[K, V any](n *node[K, V]) *node[K, V] {
	switch d := n.left.tall() - n.right.tall(); {
	case d > 1:
		if n.left.left.tall() < n.left.right.tall() {
			n.left = rotateLeft(copyOf(n.left))
		}
		return rotateRight(n)
	case d < -1:
		if n.right.right.tall() < n.right.left.tall() {
			n.right = rotateRight(copyOf(n.right))
		}
		return rotateLeft(n)
	}
	n.height = 1 + max(n.left.tall(), n.right.tall())
	return n
}

func copyOf[K, V any](n *node[K, V]) *node[K, V] { c := *n; return &c }

func rotateRight[K, V any](n *node[K, V]) *node[K, V] {
	top := copyOf(n.left)
	n.left = top.right
	n.height = 1 + max(n.left.tall(), n.right.tall())
	top.right = n
	top.height = 1 + max(top.left.tall(), top.right.tall())
	return top
}

func rotateLeft[K, V any](n *node[K, V]) *node[K, V] {
	top := copyOf(n.right)
	n.right = top.left
	n.height = 1 + max(n.left.tall(), n.right.tall())
	top.left = n
	top.height = 1 + max(top.left.tall(), top.right.tall())
	return top
}
