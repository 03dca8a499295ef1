package group

import (
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// subscriptionBytes is an embedded consumer protocol subscription of version 1.
func subscriptionBytes(topics ...string) []byte {
	b := kbin.AppendInt16(nil, 1)
	b = kbin.AppendArrayLen(b, len(topics))
	for _, topic := range topics {
		b = kbin.AppendString(b, topic)
	}
	b = kbin.AppendNullableBytes(b, nil)
	return kbin.AppendArrayLen(b, 0)
}

// subscribedRig has one Stable consumer group g with member A-u1, subscribed to topic "subscribed".
func subscribedRig(config Config) *rig {
	config.InitialRebalanceDelay = -1
	r := newRig(config)
	req := joinRequest("g", "", "", 1800000, 1800000, "range")
	req.Version = 3
	req.Protocols[0].Metadata = subscriptionBytes("subscribed")
	r.apply(r.s.JoinGroup(r.now, r.handle("A"), RequestContext{ClientID: "A", ClientHost: "/10.0.0.1"}, req))
	r.advance(r.now)
	r.apply(r.s.SyncGroup(r.now, r.handle("A"), &kmsg.SyncGroupRequest{Version: 4, Group: "g", MemberID: "A-u1", Generation: 1}))
	return r
}

func (r *rig) run(t *testing.T, steps ...string) string {
	t.Helper()
	r.out.Reset()
	for _, st := range steps {
		if _, err := r.step(parseStep(st)); err != nil {
			t.Fatalf("%s: %v", st, err)
		}
	}
	return r.out.String()
}

func TestG048_topics_not_subscribed_expire(t *testing.T) {
	// A Stable consumer group keeps the offsets of topics it is subscribed to; those of another topic expire.
	t.Parallel()
	r := subscribedRig(Config{OffsetsRetention: 100 * time.Second, RetentionCheckInterval: time.Second})
	r.run(t, "commit A old-0=1 subscribed-0=2 id=A-u1 gen=1")
	if out := r.run(t, "at 99999"); out != "" {
		t.Fatalf("before the retention:\n%s", out)
	}
	out := r.run(t, "at 100000", "fetch A old-0 subscribed-0")
	if want := "t100000 | offset g old-0 tombstone\n" +
		"t100000 A <- fetch ok old-0:-1 epoch=-1 metadata=\"\" subscribed-0:2 epoch=-1 metadata=\"\"\n"; out != want {
		t.Fatalf("got\n%swant\n%s", out, want)
	}
}

func TestG048_nothing_expires_in_a_rebalance_or_a_transaction(t *testing.T) {
	// While the group rebalances its topics are not known, and an offset with an open transaction stays.
	t.Parallel()
	r := subscribedRig(Config{OffsetsRetention: 100 * time.Second, RetentionCheckInterval: time.Second})
	r.run(t, "commit A old-0=1 old-1=1 id=A-u1 gen=1", "txn-commit P old-1=2 producer=4", "at 50000")
	// A new member begins a rebalance that cannot end: A does not rejoin. The rebalance timeout is long.
	r.run(t, "join B v=3 session=1800000 rebalance=1800000")
	if out := r.run(t, "at 200000"); out != "" {
		t.Fatalf("in a rebalance:\n%s", out)
	}
	r.run(t, "leave B id=B-u2")
	if out := r.run(t, "at 201000"); out != "" {
		t.Fatalf("in a rebalance:\n%s", out)
	}
}

func TestG053_offset_delete_of_a_subscribed_topic(t *testing.T) {
	// Offsets of a topic that a consumer group is subscribed to are refused, those of another are removed,
	// pending ones too.
	t.Parallel()
	r := subscribedRig(Config{})
	out := r.run(t, "commit A subscribed-0=1 u-0=1 id=A-u1 gen=1", "txn-commit P u-1=2 producer=4",
		"delete-offsets admin subscribed-0 u-0 u-1 u-2", "end-txn commit producer=4", "fetch A")
	for _, want := range []string{
		"admin <- delete-offsets ok subscribed-0:GROUP_SUBSCRIBED_TO_TOPIC u-0:ok u-1:ok u-2:ok",
		"| offset g u-0 tombstone", "| offset g u-1 tombstone",
		"A <- fetch ok subscribed-0:1",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("missing %q in\n%s", want, out)
		}
	}
	if strings.Contains(out, "u-2 tombstone") || strings.Contains(out, "fetch ok subscribed-0:1 epoch=-1 metadata=\"\" u-") {
		t.Errorf("got\n%s", out)
	}
}

func TestSubscribedTopicsOfEveryVersion(t *testing.T) {
	// The topics are read of any version, and bytes that are no subscription are said to be none.
	t.Parallel()
	v1 := subscriptionBytes("a", "b")
	v9 := append(kbin.AppendInt16(nil, 9), v1[2:]...)
	for _, b := range [][]byte{v1, v9, append(v9, 1, 2, 3)} {
		if topics, ok := subscribedTopics(b); !ok || strings.Join(topics, " ") != "a b" {
			t.Errorf("%x: %v %t", b, topics, ok)
		}
	}
	for _, b := range [][]byte{nil, {0}, {0, 1}, v1[:8], {0, 0, 0x7f, 0xff, 0xff, 0xff}} {
		if topics, ok := subscribedTopics(b); ok {
			t.Errorf("%x is read as %v", b, topics)
		}
	}
}
