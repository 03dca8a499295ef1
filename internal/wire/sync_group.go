package wire

import "github.com/twmb/franz-go/pkg/kbin"

// SyncGroupHasStrangeTags reports whether an assignment in the body of a SyncGroup request carries tagged
// fields, or the body is malformed. No client has any to send, and kmsg would make a map for each: without
// them a large request, the leader's assignments of a large group, decodes to little more than its bytes.
func SyncGroupHasStrangeTags(version int16, body []byte) bool {
	r := fieldReader{Reader: kbin.Reader{Src: body}, flexible: version >= 4}
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
		if r.flexible && r.Uvarint() != 0 {
			return true
		}
		if !r.Ok() {
			return true
		}
	}
	return r.flexible && r.Uvarint() != 0 || !r.Ok()
}
