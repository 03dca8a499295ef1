package wire

import (
	"encoding/binary"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"
)

const checkedBytes = 16 << 10

var scratch = sync.Pool{New: func() any { return new([]byte) }}

// CheckCounts reports, as ErrMalformed, that a request which was read from body has a collection of null or negative
// length where the protocol allows neither: kmsg reads those as empty. It lays the request out again and looks at the
// first place where the two differ. Requests of more than 16 KiB, which hold bulk of members, are not worth the memory:
// they pass.
func CheckCounts(req kmsg.Request, body []byte) error {
	if len(body) > checkedBytes {
		return nil
	}
	buf := scratch.Get().(*[]byte)
	if cap(*buf) < len(body) {
		*buf = make([]byte, 0, len(body))
	}
	again := req.AppendTo((*buf)[:0])
	defer func() {
		*buf = again
		scratch.Put(buf)
	}()
	at := 0
	for at < len(again) && at < len(body) && again[at] == body[at] {
		at++
	}
	if at == len(again) || at == len(body) {
		return nil
	}
	if req.IsFlexible() {
		// An empty collection is 1, a null one 0, and one of a negative length takes five bytes.
		if again[at] != 1 {
			return nil
		}
		if n, size := binary.Uvarint(body[at:]); n == 0 || size == 5 && int32(uint32(n))-1 < 0 {
			return malformed(kmsg.NameForKey(req.Key()) + " has a collection without a length")
		}
		return nil
	}
	if at+4 <= len(again) && at+4 <= len(body) && binary.BigEndian.Uint32(again[at:]) == 0 && body[at] >= 0x80 {
		return malformed(kmsg.NameForKey(req.Key()) + " has a collection without a length")
	}
	return nil
}
