package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// incident is a group made for one test, and what to make trouble with.
type incident struct {
	t     *testing.T
	name  string // of the topic and the group
	admin *kadm.Client
}

func newIncident(t *testing.T) *incident {
	t.Helper()
	name := "t-explain-" + strings.ToLower(strings.TrimPrefix(t.Name(), "TestExplain"))
	fresh(t, name)
	client, err := kgo.NewClient(kgo.SeedBrokers(sharedNode(t)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	ok(t, lines(10), "produce", name)
	return &incident{t, name, kadm.NewClient(client)}
}

// commit commits for partition 0 as any client may.
func (i *incident) commit(offset int64, epoch int32) {
	i.t.Helper()
	if err := i.admin.CommitAllOffsets(i.t.Context(), i.name, kadm.Offsets{i.name: {0: {Topic: i.name, At: offset, LeaderEpoch: epoch}}}); err != nil {
		i.t.Fatal(err)
	}
}

// explained is the finding about partition 0; the text has to hold the words too, and to come within 2 seconds.
func (i *incident) explained(finding string, words ...string) explanation {
	i.t.Helper()
	x := asJSON[explanation](i.t, "group", "explain", i.name)
	if len(x.Partitions) != 1 || x.Partitions[0].Finding != finding {
		i.t.Fatalf("found %+v, want %s", x.Partitions, finding)
	}
	out := ok(i.t, "", "group", "explain", i.name)
	for _, w := range words {
		if !strings.Contains(out, w) {
			i.t.Errorf("%q is missing in\n%s", w, out)
		}
	}
	return x
}

// A group that has read everything is said to be fine; one that nobody consumes is told what waits for it, and how old that is.
func TestExplainFine(t *testing.T) {
	t.Parallel()
	i := newIncident(t)
	ok(t, "", "consume", i.name, "-g", i.name, "-e")
	i.explained(findFine, "all is well", "[0, 10)", "it has no member")
	ok(t, "more\n", "produce", i.name)
	x := i.explained(findNobody, "1 record behind", "start its consumers")
	if p := x.Partitions[0]; p.Lag != 1 || p.LagTime == nil || p.UntilRetention == nil || p.NextTime == nil || p.CommittedEpoch < 0 || p.EpochEnd != 11 {
		t.Errorf("%+v", p)
	}
	fails(t, 1, []string{"group", "explain", "g-nowhere"}, "no such group", "stele group list")
}

// Retention that overtook a committed offset: how many records are lost, and where the consumer will go.
func TestExplainBelowLogStart(t *testing.T) {
	t.Parallel()
	i := newIncident(t)
	i.commit(3, 0)
	if _, err := i.admin.DeleteRecords(t.Context(), kadm.Offsets{i.name: {0: {Topic: i.name, At: 8}}}); err != nil {
		t.Fatal(err)
	}
	i.explained(findBelowLogStart, "5 records from 3 to 7 were deleted before they were consumed: the log starts at 8", "earliest goes to 8, latest skips 2 records more")
}

// A commit beyond the end without an epoch cannot be explained further; one of an epoch that the topic never had is of another topic.
func TestExplainBeyond(t *testing.T) {
	t.Parallel()
	i := newIncident(t)
	i.commit(50, -1)
	i.explained(findAboveLogEnd, "40 records beyond the end of the log at 10", "no epoch")
	i.commit(10, -1)
	i.explained(findUnchecked, "the commit has no epoch")
	i.commit(5, 77)
	i.explained(findEpochUnknown, "epoch 77 was committed, and the partition is only at 0", "made anew")
	i.commit(50, 0)
	i.explained(findTruncated, "the log differs from 10 on or below, 40 records before the commit", "go on at 10")
}

// What each set of facts comes to, and what it says; the group's verdict counts them from the worst down.
func TestExplainVerdicts(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_700_000_000_000)
	ago := func(d time.Duration) *time.Time { at := now.Add(-d); return &at }
	well := func() partitionExplanation {
		p := newPartitionExplanation(topicPartition{"t", 0}, 50, 3, "")
		p.Leader, p.LeaderEpoch, p.LogStart, p.HighWatermark, p.LastStableOffset = 1, 4, 0, 100, 100
		p.EpochAnswered, p.EpochEnd, p.MemberID = 3, 80, "m"
		p.LogStartTime, p.NextTime, p.LogEndTime = ago(100*time.Minute), ago(50*time.Minute), ago(time.Second)
		p.retention = retentionOf{deletes: true, ms: (7 * 24 * time.Hour).Milliseconds(), bytes: -1}
		return p
	}
	rate := func(v float64) *float64 { return &v }
	for name, c := range map[string]struct {
		change  func(*partitionExplanation)
		finding string
		words   string
	}{
		"behind":         {func(*partitionExplanation) {}, findBehind, "50 records behind, the first of them 50m old"},
		"fine":           {func(p *partitionExplanation) { p.CommittedOffset = 100; p.EpochEnd = 100 }, findFine, "caught up"},
		"topic gone":     {func(p *partitionExplanation) { p.topicGone = true }, findTopicGone, "does not exist any more"},
		"no leader":      {func(p *partitionExplanation) { p.Leader, p.HighWatermark = -1, -1 }, findUnavailable, "no leader"},
		"cut":            {func(p *partitionExplanation) { p.EpochEnd = 40 }, findTruncated, "differs from 40 on or below, 10 records before"},
		"stranger":       {func(p *partitionExplanation) { p.EpochAnswered, p.EpochEnd = 2, 90 }, findHistory, "records of epoch 2 up to 90 instead"},
		"at risk":        {func(p *partitionExplanation) { p.retention.ms = (55 * time.Minute).Milliseconds() }, findAtRisk, "retention may delete from 50 on in 5m"},
		"at risk, bytes": {func(p *partitionExplanation) { p.size, p.retention.bytes = 1000, 550 }, findAtRisk, "in 5m"},
		"compacted":      {func(p *partitionExplanation) { p.retention.ms, p.retention.deletes = 1, false }, findBehind, "50 records behind"},
		"no commit":      {func(p *partitionExplanation) { p.CommittedOffset = -1 }, findNoCommit, "auto.offset.reset"},
		"transaction":    {func(p *partitionExplanation) { p.LastStableOffset, p.OpenTransactionFrom, p.OpenProducer = 50, 50, 77 }, findTransaction, "producer id 77 is open from 50 on"},
		"catching up":    {func(p *partitionExplanation) { p.ProduceRate, p.ConsumeRate = rate(5), rate(10) }, findBehind, "caught up in 10s"},
		"falling behind": {func(p *partitionExplanation) { p.ProduceRate, p.ConsumeRate = rate(10), rate(5) }, findBehind, "it falls behind"},
		"stuck":          {func(p *partitionExplanation) { p.ProduceRate, p.ConsumeRate = rate(10), rate(0) }, findBehind, "it stands still"},
		"another's":      {func(p *partitionExplanation) { p.MemberID = "" }, findNobody, "no member has this partition"},
		"no epoch":       {func(p *partitionExplanation) { p.CommittedEpoch, p.EpochAnswered, p.EpochEnd = -1, -1, -1 }, findBehind, "cannot be checked"},
	} {
		p := well()
		c.change(&p)
		p.measure(now)
		p.judge(true)
		if p.Finding != c.finding || !strings.Contains(p.Verdict, c.words) {
			t.Errorf("%s: %s: %s", name, p.Finding, p.Verdict)
		}
	}
	findings := []string{findTopicGone, findBehind, findFine}
	x := explanation{Members: []groupMemberView{{}}}
	for range findings {
		x.Partitions = append(x.Partitions, well())
	}
	x.Partitions[0].topicGone = true
	x.Partitions[2].CommittedOffset, x.Partitions[2].EpochEnd = 100, 100
	for i := range x.Partitions {
		x.Partitions[i].measure(now)
	}
	x.judge()
	if x.Verdict != "of 3 partitions: 1 topic-gone, 1 behind, 1 fine" {
		t.Errorf("%s", x.Verdict)
	}
	if !slices.IsSorted([]int{slices.Index(gravity, findTopicGone), slices.Index(gravity, findBehind), slices.Index(gravity, findFine)}) {
		t.Error("the order of gravity")
	}
}

// With --watch it looks again and again, until it is interrupted, which is no failure.
func TestExplainWatch(t *testing.T) {
	t.Parallel()
	i := newIncident(t)
	i.commit(5, 0)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	looks := &countingWriter{want: fmt.Sprintf("%s  Empty", i.name), enough: 2, done: cancel}
	if status := execute(ctx, []string{"group", "explain", i.name, "--watch", "--interval", "10ms", "-b", sharedNode(t)}, strings.NewReader(""), looks, looks); status != 0 {
		t.Errorf("status %d: %s", status, looks.text)
	}
	fails(t, 2, []string{"group", "explain", i.name, "--watch", "--interval", "0s"}, "a positive duration")
}

// countingWriter calls done when a text was written often enough.
type countingWriter struct {
	text   string
	want   string
	enough int
	done   func()
}

func (w *countingWriter) Write(b []byte) (int, error) {
	w.text += string(b)
	if strings.Count(w.text, w.want) >= w.enough {
		w.done()
	}
	return len(b), nil
}
