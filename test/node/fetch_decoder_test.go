package node

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// fetchTags are the tagged fields that a place in a Fetch answer may have, and the
// version each came with.
var (
	partitionTags = map[uint64]int16{0: 12, 1: 12, 2: 12}
	topTags       = map[uint64]int16{0: 16}
)

// checkFetchAnswer reads an answer to Fetch, from behind its correlation id, by the
// protocol's own tables and nothing else: a second opinion beside kmsg's. All bytes must be
// used, counts must be whole, and what has no value must say so.
func checkFetchAnswer(version int16, b []byte) error {
	d := &strict{b: b, flexible: version >= 12}
	d.tags(nil, version) // of the header
	d.int32()            // throttle time
	if version >= 7 {
		d.int16() // error
		d.int32() // session id
	}
	for range d.count(false) {
		if version >= 13 {
			d.take(16)
		} else {
			d.text()
		}
		for range d.count(false) {
			d.partition(version)
		}
		d.tags(nil, version)
	}
	d.tags(topTags, version)
	if d.err == nil && len(d.b) > 0 {
		d.fail("%d bytes are left over", len(d.b))
	}
	return d.err
}

func (d *strict) partition(version int16) {
	d.int32() // index
	code := d.int16()
	highWatermark := d.int64()
	lastStable := d.int64()
	logStart := int64(0)
	if version >= 5 {
		logStart = d.int64()
	}
	if code == 0 && (highWatermark < 0 || lastStable < 0 || lastStable > highWatermark || logStart < 0) {
		d.fail("without an error: high watermark %d, last stable offset %d, log start %d", highWatermark, lastStable, logStart)
	}
	for range d.count(true) {
		d.int64()
		d.int64()
		d.tags(nil, version)
	}
	preferred := int32(-1)
	if version >= 11 {
		preferred = d.int32()
	}
	records := d.bytes()
	if code != 0 && records > 0 || preferred >= 0 && records > 0 {
		d.fail("error %d, preferred replica %d and %d bytes of records", code, preferred, records)
	}
	d.tags(partitionTags, version)
}

// strict reads a message and remembers the first thing wrong with it.
type strict struct {
	b        []byte
	flexible bool
	err      error
}

func (d *strict) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf(format, args...)
	}
}

func (d *strict) take(n int) []byte {
	if d.err != nil {
		return make([]byte, max(0, min(n, 16)))
	}
	if n < 0 || n > len(d.b) {
		d.err = errors.New("the answer ends early")
		return make([]byte, max(0, min(n, 16)))
	}
	taken := d.b[:n]
	d.b = d.b[n:]
	return taken
}

func (d *strict) int16() int16 { return int16(binary.BigEndian.Uint16(d.take(2))) }
func (d *strict) int32() int32 { return int32(binary.BigEndian.Uint32(d.take(4))) }
func (d *strict) int64() int64 { return int64(binary.BigEndian.Uint64(d.take(8))) }

func (d *strict) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail("bad varint")
		return 0
	}
	d.take(n)
	return v
}

// count is the length of an array; a null one only where it may be.
func (d *strict) count(nullable bool) int {
	n := 0
	if d.flexible {
		n = int(d.uvarint()) - 1
	} else {
		n = int(d.int32())
	}
	if n < 0 && !nullable {
		d.fail("a null array where there is none")
	}
	if n > len(d.b) {
		d.fail("%d elements in %d bytes", n, len(d.b))
		return 0
	}
	return max(n, 0)
}

func (d *strict) text() {
	if d.flexible {
		d.take(int(d.uvarint()) - 1)
		return
	}
	d.take(int(d.int16()))
}

func (d *strict) bytes() int {
	n := 0
	if d.flexible {
		n = int(d.uvarint()) - 1
	} else {
		n = int(d.int32())
	}
	d.take(max(n, 0))
	return n
}

// tags reads tagged fields, which must be known, in order, and not before their version.
func (d *strict) tags(known map[uint64]int16, version int16) {
	if !d.flexible {
		return
	}
	last := -1
	for range d.uvarint() {
		if d.err != nil {
			return
		}
		tag := d.uvarint()
		if from, ok := known[tag]; !ok || version < from {
			d.fail("tag %d does not exist in this version", tag)
		}
		if int(tag) <= last {
			d.fail("tags out of order")
		}
		last = int(tag)
		d.take(int(d.uvarint()))
	}
}
