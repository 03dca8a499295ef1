package group

import (
	"strings"
	"testing"
)

func TestG045_length_of_metadata(t *testing.T) {
	// The length of metadata counts as Java counts a string: one for each character, and two for one beyond the basic plane.
	t.Parallel()
	for _, c := range []struct {
		text string
		want int
	}{
		{"", 0}, {"abc", 3}, {"é", 1}, {"日本", 2}, {"\U0001d11e", 2}, {"a\U0001f600b", 4}, {strings.Repeat("\U0001d11e", 2048), 4096},
	} {
		if got := utf16Len(c.text); got != c.want {
			t.Errorf("%.20q has length %d, want %d", c.text, got, c.want)
		}
	}
}
