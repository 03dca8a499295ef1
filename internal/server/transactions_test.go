package server

import "testing"

// A pattern is of the whole id, and one that only parentheses around it make valid is not.
func TestWholePattern(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{"a|bc": true, "b": false, "bc.*": true} {
		if pattern, err := wholePattern(text); err != nil || pattern.MatchString("bc") != want {
			t.Errorf("%s: %v, %v", text, pattern, err)
		}
	}
	for _, text := range []string{"(", "a)|(b"} {
		if pattern, err := wholePattern(text); err == nil {
			t.Errorf("%s: %v", text, pattern)
		}
	}
}
