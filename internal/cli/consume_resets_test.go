package cli

import (
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A consumer whose committed records were deleted says from where to where it went, and why; so does one that begins at an
// offset that a group never committed, by --from.
func TestConsumeShowsResets(t *testing.T) {
	t.Parallel()
	fresh(t, "t-resets")
	ok(t, lines(10), "produce", "t-resets")
	ok(t, "", "consume", "t-resets", "-g", "g-resets", "-n", "4")
	client, err := kgo.NewClient(kgo.SeedBrokers(sharedNode(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := kadm.NewClient(client).DeleteRecords(t.Context(), kadm.Offsets{"t-resets": {0: {Topic: "t-resets", At: 7}}}); err != nil {
		t.Fatal(err)
	}
	r := run(t, "", "consume", "t-resets", "-g", "g-resets", "-e")
	if want := "note: t-resets-0: moved from 4@0 to 7@0: below-log-start, log [7, 10), 3 skipped\n"; r.status != 0 || r.out != "8\n9\n10\n" || r.err != want {
		t.Errorf("%+v", r)
	}
	r = run(t, "", "consume", "t-resets", "-g", "g-resets-from", "-e", "--from", "8")
	if r.status != 0 || r.out != "9\n10\n" || r.err != "" {
		t.Errorf("%+v", r)
	}
	r = run(t, "", "consume", "t-resets", "-g", "g-resets-time", "-e", "--from", "-1h")
	if r.status != 0 || r.out != "8\n9\n10\n" || strings.Contains(r.err, "note") {
		t.Errorf("%+v", r)
	}
}
