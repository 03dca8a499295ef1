package server

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Every error that the rooms below name for requests has its place in the table: one that was forgotten would be answered
// as an unknown server error.
func TestEveryNamedErrorHasACode(t *testing.T) {
	t.Parallel()
	table, err := os.ReadFile("errors.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, room := range []string{"controller", "group", "quorum", "replica", "txn"} {
		text, err := os.ReadFile("../" + room + "/errors.go")
		if err != nil {
			t.Fatal(err)
		}
		names := regexp.MustCompile(`(?m)^\t(Err[A-Za-z]+)\s+=`).FindAllStringSubmatch(string(text), -1)
		if len(names) < 5 {
			t.Errorf("%s: %d errors found", room, len(names))
		}
		for _, name := range names {
			if qualified := room + "." + name[1]; !strings.Contains(string(table), qualified) && !inside[qualified] {
				t.Errorf("%s has no code", qualified)
			}
		}
	}
}

// inside are errors that never reach a client, since followers act on them, and some that are another's.
var inside = map[string]bool{"replica.ErrCorrupt": true, "replica.ErrInvalidProducerEpoch": true, "replica.ErrInvalidTxnState": true, "replica.ErrLeaderFailed": true, "quorum.ErrNotController": true}
