package wire

import (
	"bytes"
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"
)

// A SyncGroup request without tagged fields passes as it is; of one with some, in assignments or at its end, all but
// those is left; one that is cut short is malformed.
func TestSyncGroupTagsAreStripped(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		version := rapid.Int16Range(0, 5).Draw(t, "version")
		req := kmsg.NewPtrSyncGroupRequest()
		req.Version = version
		req.Group, req.MemberID = rapid.StringN(0, 9, 30).Draw(t, "group"), rapid.StringN(0, 9, 30).Draw(t, "member")
		if rapid.Bool().Draw(t, "static") {
			req.InstanceID, req.Protocol, req.ProtocolType = kmsg.StringPtr("i"), kmsg.StringPtr("p"), kmsg.StringPtr("t")
		}
		plain := *req
		for range rapid.IntRange(0, 4).Draw(t, "assignments") {
			a := kmsg.NewSyncGroupRequestGroupAssignment()
			a.MemberID, a.MemberAssignment = "m", rapid.SliceOfN(rapid.Byte(), 0, 50).Draw(t, "bytes")
			plain.GroupAssignment = append(plain.GroupAssignment, a)
			drawTags(t, &a.UnknownTags, version >= 4)
			req.GroupAssignment = append(req.GroupAssignment, a)
		}
		drawTags(t, &req.UnknownTags, version >= 4)
		body, want := req.AppendTo(nil), plain.AppendTo(nil)
		if n := rapid.IntRange(0, len(body)-1).Draw(t, "cut"); true {
			if _, err := SyncGroupWithoutTags(version, bytes.Clone(body[:n])); !errors.Is(err, ErrMalformed) {
				t.Fatalf("version %d: cut at %d of %d: %v", version, n, len(body), err)
			}
		}
		got, err := SyncGroupWithoutTags(version, bytes.Clone(body))
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("version %d: %x, %v, want %x", version, got, err, want)
		}
	})
}
