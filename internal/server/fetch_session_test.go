package server

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// sessionRequest is a fetch by id of n partitions of one topic.
func sessionRequest(id, epoch, replica int32, n int) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.SessionID, req.SessionEpoch, req.ReplicaID = 13, id, epoch, replica
	topic := kmsg.NewFetchRequestTopic()
	topic.TopicID = [16]byte{1}
	for p := range n {
		partition := kmsg.NewFetchRequestTopicPartition()
		partition.Partition = int32(p)
		topic.Partitions = append(topic.Partitions, partition)
	}
	if n > 0 {
		req.Topics = append(req.Topics, topic)
	}
	return req
}

// open begins a session and returns its id, 0 when there was no room.
func open(t *testing.T, c *fetchSessions, replica int32, n int) int32 {
	t.Helper()
	ctx, err := c.begin(sessionRequest(0, initialSessionEpoch, replica, n))
	if err != nil {
		t.Fatal(err)
	}
	if len(ctx.targets) != n {
		t.Fatalf("%d targets, want %d: a fetch without a session is still served", len(ctx.targets), n)
	}
	return ctx.sessionID
}

func alive(c *fetchSessions, id int32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sessions[id] != nil
}

// With every slot taken a newcomer gets a session only if one has been idle for two minutes, or matters less: a
// follower's matters more than a consumer's, and among equals the larger one, once the smaller has had its
// two minutes.
func TestFetchSessionEviction(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	c := newFetchSessions(2, 48<<20, func() time.Time { return now })
	small, large := open(t, c, -1, 1), open(t, c, -1, 5)
	if small == 0 || large == 0 || small == large {
		t.Fatalf("ids %d and %d", small, large)
	}
	if id := open(t, c, -1, 9); id != 0 {
		t.Fatal("a young session gave way to a larger one")
	}
	follower := open(t, c, 2, 1)
	if follower == 0 || alive(c, small) || !alive(c, large) {
		t.Fatalf("a follower got session %d; the small consumer lives: %t, the large one: %t", follower, alive(c, small), alive(c, large))
	}
	now = now.Add(90 * time.Second)
	for _, id := range []int32{large, follower} {
		if _, err := c.begin(sessionRequest(id, 1, -1, 0)); err != nil {
			t.Fatal(err)
		}
	}
	now = now.Add(40 * time.Second)
	if id := open(t, c, -1, 5); id != 0 {
		t.Fatal("an equal session in use gave way")
	}
	larger := open(t, c, -1, 6)
	if larger == 0 || alive(c, large) || !alive(c, follower) {
		t.Fatalf("a larger consumer got session %d; the smaller lives: %t", larger, alive(c, large))
	}
	now = now.Add(3 * time.Minute)
	if _, err := c.begin(sessionRequest(larger, 1, -1, 0)); err != nil {
		t.Fatal(err)
	}
	if id := open(t, c, -1, 1); id == 0 || alive(c, follower) || !alive(c, larger) {
		t.Fatalf("an idle session stayed: newcomer %d, follower lives: %t", id, alive(c, follower))
	}
}

// Without slots nobody gets a session. A session's epoch goes from the largest number to 1, never to 0, which would
// ask for a new one.
func TestFetchSessionSlotsAndEpochs(t *testing.T) {
	t.Parallel()
	if id := open(t, newFetchSessions(0, 48<<20, time.Now), -1, 1); id != 0 {
		t.Errorf("session %d without a slot", id)
	}
	c := newFetchSessions(10, 48<<20, time.Now)
	id := open(t, c, -1, 1)
	c.sessions[id].epoch = math.MaxInt32
	for _, epoch := range []int32{math.MaxInt32, 1, 2} {
		if _, err := c.begin(sessionRequest(id, epoch, -1, 0)); err != nil {
			t.Fatalf("epoch %d: %v", epoch, err)
		}
	}
	if _, err := c.begin(sessionRequest(id, 2, -1, 0)); !errors.Is(err, errSessionEpochInvalid) {
		t.Errorf("an epoch used twice: %v", err)
	}
}

// An incremental answer names a partition when its high watermark or log start moved, when it has records, an
// error or a redirection, each time these are there, and not when nothing is new.
func TestFetchSessionAnswersWhatChanged(t *testing.T) {
	t.Parallel()
	c := newFetchSessions(10, 48<<20, time.Now)
	id := open(t, c, -1, 1)
	key := fetchKey{topicID: [16]byte{1}}
	base := fetched{key: key, highWatermark: 5}
	changed := func(f func(*fetched)) fetched {
		next := base
		f(&next)
		return next
	}
	first, err := c.begin(sessionRequest(id, 1, -1, 0))
	if err != nil {
		t.Fatal(err)
	}
	for i, step := range []struct {
		say  fetched
		want bool
	}{
		{base, true}, {base, false},
		{changed(func(f *fetched) { f.highWatermark = 6 }), true}, {changed(func(f *fetched) { f.highWatermark = 6 }), false},
		{base, true},
		{changed(func(f *fetched) { f.logStartOffset = 1 }), true}, {base, true},
		{changed(func(f *fetched) { f.bytes = 9 }), true}, {base, false},
		{changed(func(f *fetched) { f.redirected = true }), true}, {changed(func(f *fetched) { f.redirected = true }), true}, {base, false},
		{changed(func(f *fetched) { f.failed, f.highWatermark = true, -1 }), true}, {changed(func(f *fetched) { f.failed, f.highWatermark = true, -1 }), true},
		{base, true}, {base, false},
		// The end of an error is news even where nothing else has changed.
		{changed(func(f *fetched) { f.failed = true }), true}, {base, true}, {base, false},
	} {
		if got := first.include(step.say); got != step.want {
			t.Errorf("step %d: named %t, want %t", i, got, step.want)
		}
	}
}

// All sessions together have a bound in memory: a newcomer that does not fit is served without a session, until
// idle ones make room for it; a session that outgrows it ends, and its fetcher begins anew.
func TestFetchSessionsAreBoundedInMemory(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	c := newFetchSessions(100, 48<<20, func() time.Time { return now })
	c.maxMemory = 10 * partitionMemory
	first, second := open(t, c, -1, 4), open(t, c, -1, 4)
	if first == 0 || second == 0 {
		t.Fatal("no session where there is room")
	}
	if open(t, c, -1, 3) != 0 {
		t.Fatal("a session beyond the bound")
	}
	if _, err := c.begin(sessionRequest(second, 1, -1, 6)); err != nil {
		t.Fatalf("a session that grows within the bound: %v", err)
	}
	if _, err := c.begin(sessionRequest(second, 2, -1, 7)); !errors.Is(err, errSessionNotFound) || alive(c, second) {
		t.Fatalf("a session that outgrows the bound: %v", err)
	}
	if c.memory != 4*partitionMemory {
		t.Fatalf("%d bytes are held for one session of 4 partitions", c.memory)
	}
	now = now.Add(2*time.Minute + 1)
	if id := open(t, c, -1, 10); id == 0 || alive(c, first) {
		t.Fatal("an idle session did not make room")
	}
	c.close(first)
	if c.memory != 10*partitionMemory {
		t.Fatalf("%d bytes are held for one session of 10 partitions", c.memory)
	}
}
