package record

import (
	"testing"

	"pgregory.net/rapid"
)

// The quick pass over a record takes it exactly when the careful one does, and finds the same: of whole records, of cut
// and damaged ones, and of anything at all.
func TestQuickAgreesWithCareful(t *testing.T) {
	t.Parallel()
	bytesOf := func(max int) *rapid.Generator[[]byte] { return rapid.SliceOfN(rapid.Byte(), 0, max) }
	check := func(t *rapid.T) {
		var b []byte
		if rapid.Bool().Draw(t, "a record") {
			var body []byte
			field := func(label string, nullable bool, max int) {
				if nullable && rapid.Bool().Draw(t, label+" null") {
					body = appendVarint(body, -1-rapid.Int32Range(0, 2).Draw(t, label+" how null"))
					return
				}
				v := bytesOf(max).Draw(t, label)
				body = append(appendVarint(body, int32(len(v))), v...)
			}
			body = append(body, rapid.Byte().Draw(t, "attributes"))
			body = appendVarlong(body, rapid.Int64().Draw(t, "timestamp"))
			body = appendVarint(body, rapid.Int32().Draw(t, "offset"))
			field("key", true, 100)
			field("value", true, 300)
			headers := rapid.Int32Range(-1, 3).Draw(t, "headers")
			said := headers
			if rapid.IntRange(0, 3).Draw(t, "miscounted") == 0 {
				said = rapid.Int32Range(-1, 4).Draw(t, "said")
			}
			body = appendVarint(body, said)
			for range headers {
				field("header key", rapid.IntRange(0, 9).Draw(t, "null header key") == 0, 10)
				field("header value", true, 80)
			}
			b = append(appendVarint(b, int32(len(body))), body...)
			if rapid.IntRange(0, 2).Draw(t, "damage") == 0 {
				b[rapid.IntRange(0, len(b)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "with")
			}
			b = append(b[:len(b)-rapid.IntRange(0, min(3, len(b))).Draw(t, "cut")], bytesOf(3).Draw(t, "after")...)
		} else {
			b = bytesOf(40).Draw(t, "anything")
		}
		quick, careful := source{buf: b, w: len(b)}, source{buf: b, w: len(b)}
		var got, want recordHead
		gotNull, ok := quick.quick(&got)
		reason := careful.head(&want)
		wantNull := false
		if reason == "" {
			wantNull, reason = careful.skipBody(want.left)
		}
		if ok != (reason == "") {
			t.Fatalf("quick: %v, careful: %q, of % x", ok, reason, b)
		}
		if ok && (quick.r != careful.r || gotNull != wantNull || got.timestampDelta != want.timestampDelta || got.offsetDelta != want.offsetDelta) {
			t.Fatalf("quick: %+v at %d, careful: %+v at %d, of % x", got, quick.r, want, careful.r, b)
		}
		if !ok && quick.r != 0 {
			t.Fatalf("quick took %d bytes of what it refused", quick.r)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		for range 100 {
			check(t)
		}
	})
}
