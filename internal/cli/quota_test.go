package cli

import (
	"strings"
	"testing"
)

// Quotas are set, listed by whom they are for, checked without a change, and removed; whoever sets one is told
// that it is stored alone.
func TestQuotas(t *testing.T) {
	t.Parallel()
	ok(t, "", "quota", "set", "--user", "q-ann", "producer_byte_rate=1048576", "request_percentage=12.5")
	ok(t, "", "quota", "set", "--user", "q-ann", "--client-id", "", "consumer_byte_rate=7")
	ok(t, "", "quota", "set", "--ip", "10.9.8.7", "connection_creation_rate=20")
	out := ok(t, "", "quota", "list", "--user", "q-ann")
	for _, words := range []string{"ENTITY", "user=q-ann,client-id=<default>", "consumer_byte_rate", "1048576", "12.5"} {
		if !strings.Contains(out, words) {
			t.Errorf("%q is missing in %s", words, out)
		}
	}
	views := asJSON[[]quotaView](t, "quota", "list", "--user", "q-ann", "--client-id", "")
	if len(views) != 1 || views[0].Entity["user"] != "q-ann" || views[0].Quotas["consumer_byte_rate"] != 7 {
		t.Errorf("%+v", views)
	}
	if out := ok(t, "", "quota", "list", "--ip", "10.9.8.7"); !strings.Contains(out, "ip=10.9.8.7") {
		t.Errorf("%s", out)
	}
	ok(t, "", "quota", "set", "--user", "q-ann", "producer_byte_rate=5", "--dry-run")
	ok(t, "", "quota", "set", "--user", "q-ann", "--delete", "request_percentage")
	for _, view := range asJSON[[]quotaView](t, "quota", "list", "--user", "q-ann") {
		if _, pair := view.Entity["client-id"]; !pair && (len(view.Quotas) != 1 || view.Quotas["producer_byte_rate"] != 1048576) {
			t.Errorf("%+v", view)
		}
	}
	if r := run(t, "", "quota", "set", "--user", "q-bob", "producer_byte_rate=5"); r.status != 0 || !strings.Contains(r.err, "not held to them yet") {
		t.Errorf("%+v", r)
	}
	fails(t, 1, []string{"quota", "set", "--user", "q-ann", "speed=5"}, "quotas of user=q-ann", "Invalid configuration key speed")
	fails(t, 2, []string{"quota", "set", "--user", "q-ann", "producer_byte_rate"}, "QUOTA=NUMBER")
	fails(t, 2, []string{"quota", "set", "--user", "q-ann"}, "nothing to change")
	fails(t, 2, []string{"quota", "set", "producer_byte_rate=5"}, "whose?")
	fails(t, 2, []string{"quota", "list", "--ip", "1.2.3.4", "--user", "x"}, "--ip stands alone")
}

// Log directories are shown with their volume and what they hold, replica by replica on request.
func TestClusterLogDirs(t *testing.T) {
	t.Parallel()
	fresh(t, "t-dirs")
	ok(t, "", "topic", "create", "t-dirs", "-p", "2")
	ok(t, lines(100), "produce", "t-dirs", "-p", "1")
	if out := ok(t, "", "cluster", "log-dirs"); !strings.Contains(out, "BROKER") || !strings.Contains(out, "online") {
		t.Errorf("%s", out)
	}
	if out := ok(t, "", "cluster", "log-dirs", "--replicas"); !strings.Contains(out, "t-dirs") {
		t.Errorf("%s", out)
	}
	views := asJSON[[]logDirView](t, "cluster", "log-dirs")
	if len(views) != 1 || views[0].Broker != 1 || views[0].Total <= views[0].Usable || views[0].Usable <= 0 || views[0].Size <= 0 {
		t.Fatalf("%+v", views)
	}
	found := 0
	for _, r := range views[0].Replicas {
		if r.Topic == "t-dirs" {
			if found++; (r.Size > 0) != (r.Partition == 1) {
				t.Errorf("%+v", r)
			}
		}
	}
	if found != 2 {
		t.Errorf("%+v", views[0].Replicas)
	}
}
