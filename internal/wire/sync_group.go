package wire

import "github.com/twmb/franz-go/pkg/kbin"

// SyncGroupWithoutTags returns the body of a SyncGroup request without its tagged fields, none of which is known, or
// ErrMalformed. kmsg would make a map for each: without them a large request, the leader's assignments of a large
// group, decodes to little more than its bytes. A body that has none, as is usual, is returned as it is; otherwise its
// bytes are moved in place.
func SyncGroupWithoutTags(version int16, body []byte) ([]byte, error) {
	r := fieldReader{Reader: kbin.Reader{Src: body}, flexible: version >= 4}
	kept, from := 0, 0 // body[:kept] is done; what stands from `from` on is yet to be moved there
	strip := func() {
		if !r.flexible {
			return
		}
		at := len(body) - len(r.Src)
		skipTags(&r.Reader)
		if end := len(body) - len(r.Src); r.Ok() && end > at+1 {
			kept += copy(body[kept:], body[from:at])
			body[kept] = 0
			kept, from = kept+1, end
		}
	}
	r.str()
	r.Int32()
	r.str()
	if version >= 3 {
		r.nullableString()
	}
	if version >= 5 {
		r.nullableString()
		r.nullableString()
	}
	for range r.count(2) {
		r.str()
		r.nullableBytes()
		if strip(); !r.Ok() {
			break
		}
	}
	if strip(); !r.Ok() {
		return nil, malformed("SyncGroup request is cut short")
	}
	if from == 0 {
		return body, nil
	}
	kept += copy(body[kept:], body[from:])
	return body[:kept], nil
}
