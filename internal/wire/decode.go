package wire

import "github.com/twmb/franz-go/pkg/kbin"

// fieldReader reads the fields of a message in either of the two encodings. After the first field
// that is not there, every read gives zero and Ok reports false.
type fieldReader struct {
	kbin.Reader
	flexible bool
	null     bool // a null stood where the protocol has none
}

// Ok reports whether every field so far was whole and allowed.
func (r *fieldReader) Ok() bool { return !r.null && r.Reader.Ok() }

// length reads the length of a string, of bytes or of an array; -1 stands for null. Lengths above the
// bytes left make the reader bad at once.
func (r *fieldReader) length(wide bool) int {
	var n int
	switch {
	case r.flexible:
		n = int(r.Uvarint()) - 1
	case wide:
		n = int(r.Int32())
	default:
		n = int(r.Int16())
	}
	if !r.Reader.Ok() {
		return -1
	}
	if n < -1 || n > len(r.Src) {
		r.null = true
		return -1
	}
	return n
}

// count reads the length of an array that may not be null, each element of which takes at least
// size bytes.
func (r *fieldReader) count(size int) int {
	n := r.length(true)
	if n < 0 || n*size > len(r.Src) {
		r.null = true
		return 0
	}
	return n
}

// str reads a string that may not be null. It is a slice of the message.
func (r *fieldReader) str() []byte {
	s, ok := r.nullableString()
	if !ok {
		r.null = true
	}
	return s
}

func (r *fieldReader) nullableString() ([]byte, bool) {
	n := r.length(false)
	if n < 0 {
		return nil, false
	}
	return r.Span(n), true
}

// nullableBytes reads bytes; nil is null. The result cannot be appended to without a copy.
func (r *fieldReader) nullableBytes() []byte {
	n := r.length(true)
	if n < 0 {
		return nil
	}
	b := r.Span(n)
	return b[:n:n]
}

// tags passes over the tagged fields that end a structure of a flexible version.
func (r *fieldReader) tags() {
	if r.flexible {
		skipTags(&r.Reader)
	}
}

// whole makes the reader of a tagged field bad when not all of the field has been read.
func (r *fieldReader) whole() {
	if len(r.Src) > 0 {
		r.null = true
	}
}

// eachTag calls field for each tagged field of a flexible version, with a reader over its bytes.
func (r *fieldReader) eachTag(field func(tag uint32, v *fieldReader)) {
	if !r.flexible {
		return
	}
	for n := r.Uvarint(); n > 0 && r.Ok(); n-- {
		tag, size := r.Uvarint(), r.Uvarint()
		v := fieldReader{Reader: kbin.Reader{Src: r.Span(int(size))}, flexible: true}
		if !r.Ok() {
			return
		}
		field(tag, &v)
		if !v.Ok() {
			r.null = true
		}
	}
}

// end reports whether the message was whole. Bytes behind it are let be, as Kafka does.
func (r *fieldReader) end(what string) error {
	if !r.Ok() {
		return malformed(what + " request is cut short")
	}
	return nil
}

// room returns the slice, empty, with room for exactly the n elements that are to come when it has not got
// it. What its elements held stays in the room that is kept, so that inner arrays can be used again.
func room[T any](s []T, n int) []T {
	if cap(s) >= n {
		return s[:0]
	}
	return make([]T, 0, n)
}
