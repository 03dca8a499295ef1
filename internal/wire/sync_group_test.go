package wire

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"
)

// Every SyncGroup request without tagged fields passes, every one with one in an assignment or at its end
// is found, and so is one cut short.
func TestSyncGroupTagsAreFound(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		version := rapid.Int16Range(0, 5).Draw(t, "version")
		req := kmsg.NewPtrSyncGroupRequest()
		req.Version = version
		req.Group, req.MemberID = rapid.StringN(0, 9, 30).Draw(t, "group"), rapid.StringN(0, 9, 30).Draw(t, "member")
		if rapid.Bool().Draw(t, "static") {
			req.InstanceID, req.Protocol, req.ProtocolType = kmsg.StringPtr("i"), kmsg.StringPtr("p"), kmsg.StringPtr("t")
		}
		tagged := false
		for range rapid.IntRange(0, 4).Draw(t, "assignments") {
			a := kmsg.NewSyncGroupRequestGroupAssignment()
			a.MemberID, a.MemberAssignment = "m", rapid.SliceOfN(rapid.Byte(), 0, 50).Draw(t, "bytes")
			drawTags(t, &a.UnknownTags, version >= 4)
			tagged = tagged || a.UnknownTags.Len() > 0
			req.GroupAssignment = append(req.GroupAssignment, a)
		}
		drawTags(t, &req.UnknownTags, version >= 4)
		tagged = tagged || req.UnknownTags.Len() > 0
		body := req.AppendTo(nil)
		if got := SyncGroupHasStrangeTags(version, body); got != tagged {
			t.Fatalf("version %d: %v, want %v", version, got, tagged)
		}
		if n := rapid.IntRange(0, len(body)-1).Draw(t, "cut"); !SyncGroupHasStrangeTags(version, body[:n]) {
			t.Fatalf("version %d: cut at %d of %d passes", version, n, len(body))
		}
	})
}
