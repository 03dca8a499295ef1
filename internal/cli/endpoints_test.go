package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/replica"
)

// leaderContract asks an endpoint what fetchers ask, and says what it answers.
func leaderContract(t *testing.T, n *node, l replica.Leader, topic string) (answers []string) {
	t.Helper()
	p, err := n.replicas.Partition(topic, 0)
	if err != nil {
		t.Fatal(err)
	}
	current := p.Role().LeaderEpoch
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	q := replica.FollowQuery{Topic: topic, TopicID: p.TopicID(), Partition: 0}
	say := func(what string, at replica.OffsetAndEpoch, err error) {
		switch {
		case errors.Is(err, replica.ErrFencedLeaderEpoch):
			answers = append(answers, what+": fenced")
		case errors.Is(err, replica.ErrUnknownLeaderEpoch):
			answers = append(answers, what+": unknown epoch")
		case errors.Is(err, replica.ErrUnknownTopicOrPartition):
			answers = append(answers, what+": unknown partition")
		case err != nil:
			answers = append(answers, what+": "+err.Error())
		default:
			answers = append(answers, fmt.Sprintf("%s: (%d,%d)", what, at.Offset, at.Epoch))
		}
	}
	for _, of := range []struct {
		what string
		ts   int64
	}{{"earliest", replica.EarliestTimestamp}, {"latest", replica.LatestTimestamp}, {"earliest local", replica.EarliestLocalTimestamp},
		{"earliest pending upload", replica.EarliestPendingUploadTimestamp}} {
		q.CurrentLeaderEpoch = current
		at, err := l.Offset(ctx, q, of.ts)
		say(of.what, at, err)
	}
	for _, epoch := range []int32{-2, -1, 0, 1, 2, current, current + 1} {
		at, err := l.EndOffset(ctx, q, epoch)
		say(fmt.Sprintf("end of %d", epoch), at, err)
	}
	for _, wrong := range []int32{current - 1, current + 1} {
		if wrong < 0 {
			continue
		}
		q.CurrentLeaderEpoch = wrong
		at, err := l.Offset(ctx, q, replica.LatestTimestamp)
		say(fmt.Sprintf("latest, asked in %d", wrong), at, err)
		at, err = l.EndOffset(ctx, q, 0)
		say(fmt.Sprintf("end of 0, asked in %d", wrong), at, err)
	}
	q.CurrentLeaderEpoch, q.Partition = current, 99
	at, err := l.Offset(ctx, q, replica.LatestTimestamp)
	say("no such partition", at, err)
	at, err = l.EndOffset(ctx, q, 0)
	say("end of 0 of no such partition", at, err)
	q.Partition = 0

	fetch := func(what string, offset int64, last, asked int32) {
		q.FetchOffset, q.LastFetchedEpoch, q.CurrentLeaderEpoch = offset, last, asked
		got, err := l.Fetch(ctx, []replica.FollowQuery{q})
		switch {
		case err != nil:
			answers = append(answers, what+": "+err.Error())
		case len(got) == 0:
			answers = append(answers, what+": nothing")
		case got[0].Err != nil:
			say(what, replica.OffsetAndEpoch{}, got[0].Err)
		case got[0].Diverging:
			answers = append(answers, fmt.Sprintf("%s: diverging %+v", what, got[0].DivergingEpoch))
		default:
			answers = append(answers, fmt.Sprintf("%s: %d bytes, log start %d", what, len(got[0].Records), got[0].LogStart))
		}
	}
	if current > 0 {
		fetch("fetch in an old epoch", 0, -1, current-1)
	}
	fetch("fetch in a later epoch", 0, -1, current+1)
	return answers
}

// Section 6, KAFKA-20770: a fetcher asks this broker's own replica and another broker the same, and gets the same answers:
// what is not known is -1 from both, never 0, and 0 is 0 where it is meant.
func TestLeaderEndpointsKeepOneContract(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	// A broker is no follower of itself, so what it asks as one is refused; consumers' replica id -1 is not asked for here.
	n, err := startFor(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { n.stop() }()
	cl := clientOf(t, n)
	createTopic(t, cl, "empty")
	createTopic(t, cl, "t")
	produceTo(t, cl, "t", 10)
	check := func(when string, topic string, want ...string) {
		t.Helper()
		remote := n.broker.Leader(n.id, n.followOptions())
		defer remote.Close()
		local := leaderContract(t, n, n.replicas.Local(), topic)
		other := leaderContract(t, n, remote, topic)
		for i := range local {
			if local[i] != other[i] {
				t.Errorf("%s: the local endpoint says %q, the remote one %q", when, local[i], other[i])
			}
		}
		for i, w := range want {
			if local[i] != w {
				t.Errorf("%s: %q, want %q", when, local[i], w)
			}
		}
	}
	check("an empty log", "empty", "earliest: (0,0)", "latest: (0,0)", "earliest local: (0,0)", "earliest pending upload: (-1,-1)",
		"end of -2: (-1,-1)", "end of -1: (-1,-1)", "end of 0: (0,0)", "end of 1: (-1,-1)")
	check("genuine zeros", "t", "earliest: (0,0)", "latest: (10,0)", "earliest local: (0,0)", "earliest pending upload: (-1,-1)",
		"end of -2: (-1,-1)", "end of -1: (-1,-1)", "end of 0: (10,0)")
	n.stop()
	if n, err = startFor(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	p, err := n.replicas.Partition("t", 0)
	if err != nil {
		t.Fatal(err)
	}
	e := p.Role().LeaderEpoch
	check("a later reign without records", "t", "earliest: (0,0)", fmt.Sprintf("latest: (10,%d)", e), "earliest local: (0,0)", "earliest pending upload: (-1,-1)",
		"end of -2: (-1,-1)", "end of -1: (-1,-1)", "end of 0: (10,0)")
}

func clientOf(t *testing.T, n *node) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(n.server.Addr("PLAINTEXT").String()), kgo.MetadataMinAge(20*time.Millisecond), kgo.UnknownTopicRetries(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

func createTopic(t *testing.T, cl *kgo.Client, name string) {
	t.Helper()
	req := kmsg.NewPtrCreateTopicsRequest()
	one := kmsg.NewCreateTopicsRequestTopic()
	one.Topic, one.NumPartitions, one.ReplicationFactor = name, 1, 1
	req.Topics, req.TimeoutMillis = append(req.Topics, one), 10_000
	resp, err := req.RequestWith(t.Context(), cl)
	if err != nil || resp.Topics[0].ErrorCode != 0 {
		t.Fatalf("%v, %+v", err, resp)
	}
}

func produceTo(t *testing.T, cl *kgo.Client, topic string, count int) {
	t.Helper()
	for i := range count {
		if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: fmt.Append(nil, i)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

// E-078 over the wire: AlterReplicaLogDirs moves a partition at the configured rate, which may be changed meanwhile;
// DescribeLogDirs shows the copy and its lag; the controller knows where the replica is, after a restart too.
func TestE078_AlterReplicaLogDirs(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	a, b := filepath.Join(base, "a"), filepath.Join(base, "b")
	set := []string{"log.dirs=" + a + "," + b, "metadata.log.dir=" + filepath.Join(base, "m"), "replica.alter.log.dirs.io.max.bytes.per.second=1"}
	n, err := startFor(t.Context(), base, set...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { n.stop() }()
	cl := clientOf(t, n)
	createTopic(t, cl, "t")
	produceTo(t, cl, "t", 20)
	where := func() (all []string) {
		for _, d := range n.replicas.DescribeLogDirs() {
			for _, r := range d.Replicas {
				if r.Topic == "t" {
					all = append(all, fmt.Sprintf("%s %v %d", filepath.Base(d.Path), r.IsFuture, r.OffsetLag))
				}
			}
		}
		return all
	}
	from, to := a, b
	if where()[0] != "a false 0" {
		from, to = b, a
	}
	move := func(dir string, topic string, partition int32) int16 {
		t.Helper()
		req := kmsg.NewPtrAlterReplicaLogDirsRequest()
		d := kmsg.NewAlterReplicaLogDirsRequestDir()
		d.Dir = dir
		one := kmsg.NewAlterReplicaLogDirsRequestDirTopic()
		one.Topic, one.Partitions = topic, []int32{partition}
		d.Topics = append(d.Topics, one)
		req.Dirs = append(req.Dirs, d)
		resp, err := cl.Broker(1).RetriableRequest(t.Context(), req) // the client would look for the topic first
		if err != nil {
			t.Fatal(err)
		}
		return resp.(*kmsg.AlterReplicaLogDirsResponse).Topics[0].Partitions[0].ErrorCode
	}
	for _, c := range []struct {
		dir, topic string
		partition  int32
		code       int16
	}{{filepath.Join(base, "nowhere"), "t", 0, 57}, {"b", "t", 0, 57}, {from, "t", 0, 0}, {to, "t", 7, 3}, {to, "no", 0, 3}, {to, "t", 0, 0}, {to, "t", 0, 0}} {
		if code := move(c.dir, c.topic, c.partition); code != c.code {
			t.Errorf("%s-%d to %s: %d, want %d", c.topic, c.partition, c.dir, code, c.code)
		}
	}
	eventually(t, "a copy is shown", func() bool { return len(where()) == 2 })
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	r := kmsg.NewIncrementalAlterConfigsRequestResource()
	r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeBroker, "1"
	c := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	rate := "100000000"
	c.Name, c.Value = "replica.alter.log.dirs.io.max.bytes.per.second", &rate
	r.Configs = append(r.Configs, c)
	req.Resources = append(req.Resources, r)
	if resp, err := req.RequestWith(t.Context(), cl); err != nil || resp.Resources[0].ErrorCode != 0 {
		t.Fatalf("%v, %+v", err, resp)
	}
	eventually(t, "it has moved", func() bool {
		all := where()
		return len(all) == 1 && all[0] == filepath.Base(to)+" false 0"
	})
	produceTo(t, cl, "t", 5)
	place := func() string {
		state, ok := n.broker.Image().Partition("t", 0)
		if !ok {
			return ""
		}
		id, _ := state.Directory(1)
		for path, at := range n.plan.IDs {
			if at == id {
				return path
			}
		}
		return id.String()
	}
	eventually(t, "the controller knows", func() bool { return place() == to })
	n.stop()
	if n, err = startFor(t.Context(), base, set...); err != nil {
		t.Fatal(err)
	}
	p, err := n.replicas.Partition("t", 0)
	if err != nil || p.Positions().End != 25 || place() != to {
		t.Errorf("after a restart: %v, %+v, in %s", err, p.Positions(), place())
	}
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !f(); <-time.After(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}
