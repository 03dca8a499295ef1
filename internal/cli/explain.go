package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"

	"github.com/stelelog/stele/internal/record"
)

// explanation is what is known of a group's offsets, and what it comes to.
type explanation struct {
	Group       string                 `json:"group"`
	At          time.Time              `json:"at"`
	State       string                 `json:"state"`
	Protocol    string                 `json:"protocol"`
	Coordinator int32                  `json:"coordinator"`
	Members     []groupMemberView      `json:"members"`
	Partitions  []partitionExplanation `json:"partitions"`
	Verdict     string                 `json:"verdict"`
}

// partitionExplanation is the facts of one partition and the verdict. Offsets and epochs that are not known are -1,
// times and durations null.
type partitionExplanation struct {
	Topic           string `json:"topic"`
	Partition       int32  `json:"partition"`
	Leader          int32  `json:"leader"`
	LeaderEpoch     int32  `json:"leaderEpoch"`
	CommittedOffset int64  `json:"committedOffset"`
	CommittedEpoch  int32  `json:"committedLeaderEpoch"`
	Metadata        string `json:"metadata,omitempty"`
	MemberID        string `json:"memberId,omitempty"`

	LogStart         int64 `json:"logStartOffset"`
	HighWatermark    int64 `json:"highWatermark"`
	LastStableOffset int64 `json:"lastStableOffset"`
	// EpochAnswered and EpochEnd are what the leader says of the committed epoch.
	EpochAnswered int32 `json:"epochAnswered"`
	EpochEnd      int64 `json:"epochEndOffset"`

	LogStartTime *time.Time `json:"logStartTime"`
	NextTime     *time.Time `json:"nextRecordTime"` // of the first record that is not consumed
	LogEndTime   *time.Time `json:"logEndTime"`     // the largest

	Lag       int64    `json:"lag"`        // records to the high watermark, from the log start if the commit is below it
	StableLag int64    `json:"stableLag"`  // to the last stable offset
	LagTime   *seconds `json:"lagSeconds"` // age of the first record that is not consumed
	// UntilRetention is when, at the earliest, retention takes the record at the commit.
	UntilRetention *seconds `json:"untilRetentionSeconds"`
	ProduceRate    *float64 `json:"producedPerSecond"` // with --watch, since the look before
	ConsumeRate    *float64 `json:"consumedPerSecond"`

	// OpenTransactionFrom is where the first open transaction begins, and OpenProducer whose it is.
	OpenTransactionFrom int64 `json:"openTransactionFrom"`
	OpenProducer        int64 `json:"openTransactionProducerId"`

	Finding string `json:"finding"`
	Verdict string `json:"verdict"`
	Advice  string `json:"advice,omitempty"`

	topicGone bool
	problem   string // of the partition, as the broker named it
	retention retentionOf
	size      int64 // bytes of the leader's log, -1
}

// seconds is a duration that JSON holds in seconds.
type seconds time.Duration

// MarshalJSON is the whole seconds.
func (s seconds) MarshalJSON() ([]byte, error) {
	return strconv.AppendInt(nil, int64(time.Duration(s)/time.Second), 10), nil
}

func newGroupExplain(e *env) *cobra.Command {
	var watch bool
	var interval time.Duration
	cmd := &cobra.Command{
		Use:   "explain GROUP",
		Short: "Say how a group stands, partition by partition, and what to do",
		Long: `Say how a group stands, partition by partition, and what to do: whether the committed
offset is still in the log and would pass the check of its leader epoch, and if not,
from where on the log is another; how far behind it is, in records and in time; when
retention takes what is not consumed; who consumes it; and which transaction holds
read_committed consumers up. Against Apache Kafka it says as much.`,
		Example: `  stele group explain billing
  stele group explain billing --output json
  stele group explain billing --watch --interval 10s`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if interval <= 0 {
				return usagef("--interval %v: a positive duration", interval)
			}
			return e.explainGroup(cmd, args[0], watch, interval)
		},
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "look again and again, with the rates of producers and consumers")
	cmd.Flags().DurationVar(&interval, "interval", 5*time.Second, "how long to wait between two looks")
	return cmd
}

func (e *env) explainGroup(cmd *cobra.Command, group string, watch bool, interval time.Duration) error {
	client, d, err := e.connect(cmd.Flags())
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := d.guard(cmd.Context())
	defer cancel()
	var before *explanation
	for {
		limited, done := context.WithTimeout(ctx, 2*requestTimeout)
		now, err := explain(limited, client, group, time.Now())
		done()
		if cmd.Context().Err() != nil && before != nil {
			return nil
		}
		if err != nil {
			return d.explain(err)
		}
		if before != nil {
			now.rates(before)
		}
		now.judge()
		if err := e.showExplanation(now, before != nil); err != nil {
			return err
		}
		if !watch {
			return nil
		}
		before = &now
		select {
		case <-cmd.Context().Done():
			return nil
		case <-time.After(interval):
		}
	}
}

// explain gathers the facts. What the caller has no right to see, or the brokers do not tell, is left out.
func explain(ctx context.Context, client *kgo.Client, group string, now time.Time) (explanation, error) {
	what, admin := "explain group "+group, kadm.NewClient(client)
	x, owner, err := membersOf(ctx, admin, "explain group "+group, group)
	if err != nil {
		return x, err
	}
	x.At = now
	committed, err := admin.FetchOffsets(ctx, group)
	if err != nil {
		return x, failed(what, err)
	}
	if len(committed) == 0 && len(owner) == 0 && len(x.Members) == 0 && (x.State == "Dead" || x.State == "") {
		return x, fmt.Errorf("%s: no such group; `stele group list` shows those that exist", what)
	}
	committed.Each(func(o kadm.OffsetResponse) {
		x.Partitions = append(x.Partitions, newPartitionExplanation(topicPartition{o.Topic, o.Partition}, o.At, o.LeaderEpoch, o.Metadata))
	})
	for at := range owner {
		if _, ok := committed.Lookup(at.Topic, at.Partition); !ok {
			x.Partitions = append(x.Partitions, newPartitionExplanation(at, -1, -1, ""))
		}
	}
	slices.SortFunc(x.Partitions, func(a, b partitionExplanation) int {
		if c := strings.Compare(a.Topic, b.Topic); c != 0 {
			return c
		}
		return int(a.Partition - b.Partition)
	})
	for i := range x.Partitions {
		p := &x.Partitions[i]
		p.MemberID = owner[topicPartition{p.Topic, p.Partition}]
	}
	return x, x.lookAtLogs(ctx, client, now)
}

func newPartitionExplanation(at topicPartition, offset int64, epoch int32, metadata string) partitionExplanation {
	return partitionExplanation{
		Topic: at.Topic, Partition: at.Partition, Leader: -1, LeaderEpoch: -1, CommittedOffset: offset, CommittedEpoch: epoch, Metadata: metadata,
		LogStart: -1, HighWatermark: -1, LastStableOffset: -1, EpochAnswered: -1, EpochEnd: -1, Lag: -1, StableLag: -1, OpenTransactionFrom: -1, OpenProducer: -1,
		size: -1,
	}
}

// membersOf describes a group of either protocol, and says whose each partition is.
func membersOf(ctx context.Context, admin *kadm.Client, what, group string) (explanation, map[topicPartition]string, error) {
	x := explanation{Group: group, Members: []groupMemberView{}, Partitions: []partitionExplanation{}}
	owner := map[topicPartition]string{}
	described, err := admin.DescribeGroups(ctx, group)
	if err != nil {
		return x, owner, failed(what, err)
	}
	g := described[group]
	x.State, x.Protocol, x.Coordinator = g.State, g.Protocol, g.Coordinator.NodeID
	if g.Err == nil && g.State != "Dead" {
		x.Members = classicMembers(g)
	} else if next, err := admin.DescribeConsumerGroups(ctx, group); err == nil && next[group].Err == nil && next[group].State != "" {
		g := next[group]
		x.State, x.Protocol, x.Coordinator = g.State, "consumer", g.Coordinator.NodeID
		for _, m := range g.Members {
			member := groupMemberView{MemberID: m.MemberID, ClientID: m.ClientID, Host: m.ClientHost, Assigned: map[string][]int32{}}
			if m.InstanceID != nil {
				member.InstanceID = *m.InstanceID
			}
			for topic, partitions := range m.Assignment {
				for p := range partitions {
					member.Assigned[topic] = append(member.Assigned[topic], p)
				}
				slices.Sort(member.Assigned[topic])
			}
			x.Members = append(x.Members, member)
		}
	} else if g.Err != nil && !errors.Is(g.Err, kerr.GroupIDNotFound) {
		return x, owner, failed(what, g.Err, g.ErrMessage)
	}
	for _, m := range x.Members {
		for topic, partitions := range m.Assigned {
			for _, p := range partitions {
				owner[topicPartition{topic, p}] = m.MemberID
			}
		}
	}
	return x, owner, nil
}

// lookAtLogs fills in what leaders say.
func (x *explanation) lookAtLogs(ctx context.Context, client *kgo.Client, now time.Time) error {
	if len(x.Partitions) == 0 {
		return nil
	}
	what, admin := "explain group "+x.Group, kadm.NewClient(client)
	var topics []string
	asked, set := kadm.OffsetForLeaderEpochRequest{}, kadm.TopicsSet{}
	for _, p := range x.Partitions {
		if !slices.Contains(topics, p.Topic) {
			topics = append(topics, p.Topic)
		}
		if p.CommittedEpoch >= 0 {
			asked.Add(p.Topic, p.Partition, p.CommittedEpoch)
		}
		set.Add(p.Topic, p.Partition)
	}
	details, err := admin.ListTopicsWithInternal(ctx, topics...)
	if err != nil {
		return failed(what, err)
	}
	// Topics that are gone would spoil the other questions.
	topics = slices.DeleteFunc(topics, func(name string) bool { return details[name].Err != nil })
	var starts, ends, stable, newest kadm.ListedOffsets
	var epochs kadm.OffsetsForLeaderEpochs
	var configs kadm.ResourceConfigs
	var dirs kadm.DescribedAllLogDirs
	var producers kadm.DescribedProducersTopics
	if len(topics) > 0 {
		for name := range asked {
			if !slices.Contains(topics, name) {
				delete(asked, name)
				delete(set, name)
			}
		}
		// What an error leaves open is said of the partition it concerns.
		var all errgroup.Group
		all.Go(func() error { starts, _ = settledOffsets(ctx, admin.ListStartOffsets, topics...); return nil })
		all.Go(func() error { ends, _ = settledOffsets(ctx, admin.ListEndOffsets, topics...); return nil })
		all.Go(func() error { stable, _ = settledOffsets(ctx, admin.ListCommittedOffsets, topics...); return nil })
		all.Go(func() error { newest, _ = admin.ListMaxTimestampOffsets(ctx, topics...); return nil })
		all.Go(func() error { configs, _ = admin.DescribeTopicConfigs(ctx, topics...); return nil })
		all.Go(func() error { dirs, _ = admin.DescribeAllLogDirs(ctx, set); return nil })
		all.Go(func() error { producers, _ = admin.DescribeProducers(ctx, set); return nil })
		if len(asked) > 0 {
			all.Go(func() error { epochs, _ = admin.OffsetForLeaderEpoch(ctx, asked); return nil })
		}
		_ = all.Wait()
	}
	var reads errgroup.Group
	reads.SetLimit(8)
	for i := range x.Partitions {
		p := &x.Partitions[i]
		detail, ok := details[p.Topic].Partitions[p.Partition]
		if !ok || details[p.Topic].Err != nil {
			p.topicGone = true
			continue
		}
		p.Leader, p.LeaderEpoch = detail.Leader, detail.LeaderEpoch
		if detail.Err != nil {
			p.problem = detail.Err.Error()
		}
		p.LogStart, p.HighWatermark, p.LastStableOffset = offsetIn(starts, p), offsetIn(ends, p), offsetIn(stable, p)
		if o, ok := newest.Lookup(p.Topic, p.Partition); ok && o.Err == nil && o.Timestamp >= 0 {
			p.LogEndTime = moment(o.Timestamp)
		}
		if e, ok := epochs[p.Topic][p.Partition]; ok && e.Err == nil {
			p.EpochAnswered, p.EpochEnd = e.LeaderEpoch, e.EndOffset
		}
		p.retention = retentionFrom(configs, p.Topic)
		dirs.Each(func(d kadm.DescribedLogDir) {
			if held, ok := d.Topics.Lookup(p.Topic, p.Partition); ok && d.Broker == p.Leader && !held.IsFuture {
				p.size = held.Size
			}
		})
		for _, d := range producers[p.Topic].Partitions[p.Partition].ActiveProducers {
			if from := d.CurrentTxnStartOffset; from >= 0 && (p.OpenTransactionFrom < 0 || from < p.OpenTransactionFrom) {
				p.OpenTransactionFrom, p.OpenProducer = from, d.ProducerID
			}
		}
		reads.Go(func() error {
			at := topicIDPartition{details[p.Topic].ID, p.Topic, p.Partition, p.Leader}
			if p.LogStart >= 0 && p.LogStart < p.HighWatermark {
				p.LogStartTime = at.timeOf(ctx, client, p.LogStart)
			}
			if next := max(p.CommittedOffset, p.LogStart); p.CommittedOffset >= 0 && next < p.HighWatermark {
				p.NextTime = at.timeOf(ctx, client, next)
			}
			return nil
		})
	}
	_ = reads.Wait()
	for i := range x.Partitions {
		x.Partitions[i].measure(now)
	}
	return nil
}

func offsetIn(listed kadm.ListedOffsets, p *partitionExplanation) int64 {
	if o, ok := listed.Lookup(p.Topic, p.Partition); ok && o.Err == nil {
		return o.Offset
	}
	return -1
}

func moment(ms int64) *time.Time {
	at := time.UnixMilli(ms).UTC()
	return &at
}

// topicIDPartition is where a record is to be read.
type topicIDPartition struct {
	id        kadm.TopicID
	topic     string
	partition int32
	leader    int32
}

// timeOf is the timestamp of the first record at or above an offset, nil when it cannot be read.
func (at topicIDPartition) timeOf(ctx context.Context, client *kgo.Client, offset int64) *time.Time {
	p := kmsg.NewFetchRequestTopicPartition()
	p.Partition, p.FetchOffset, p.CurrentLeaderEpoch, p.LastFetchedEpoch, p.LogStartOffset, p.PartitionMaxBytes = at.partition, offset, -1, -1, -1, 1
	t := kmsg.NewFetchRequestTopic()
	t.Topic, t.TopicID, t.Partitions = at.topic, at.id, append(t.Partitions, p)
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaID, req.MaxBytes, req.SessionEpoch, req.Topics = -1, 1, -1, append(req.Topics, t)
	resp, err := client.Broker(int(at.leader)).RetriableRequest(ctx, req)
	if err != nil {
		return nil
	}
	for _, t := range resp.(*kmsg.FetchResponse).Topics {
		for _, p := range t.Partitions {
			for b, err := range record.Batches(p.RecordBatches) {
				if err != nil || p.ErrorCode != 0 {
					return nil
				}
				for r, err := range b.Records(record.Limits{}) {
					if err == nil && b.OffsetOf(r) >= offset && b.TimestampOf(r) >= 0 {
						return moment(b.TimestampOf(r))
					}
				}
			}
		}
	}
	return nil
}

// retentionOf is a topic's rules, -1 for no limit.
type retentionOf struct {
	deletes   bool
	ms, bytes int64
}

func retentionFrom(configs kadm.ResourceConfigs, topic string) retentionOf {
	r := retentionOf{ms: -1, bytes: -1}
	c, err := configs.On(topic, nil)
	if err != nil || c.Err != nil {
		return r
	}
	for _, config := range c.Configs {
		value := config.MaybeValue()
		switch config.Key {
		case "cleanup.policy":
			r.deletes = strings.Contains(value, "delete")
		case "retention.ms":
			r.ms = parseOr(value, -1)
		case "retention.bytes":
			r.bytes = parseOr(value, -1)
		}
	}
	return r
}

func parseOr(text string, otherwise int64) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return otherwise
	}
	return n
}
