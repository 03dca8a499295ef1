package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func newCluster(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "cluster",
		Short:   "Look at the cluster: brokers, controllers, log directories; change who votes",
		Example: `  stele cluster describe`,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newClusterDescribe(e), newClusterBrokers(e), newClusterQuorum(e), newClusterFeatures(e), newClusterLogDirs(e), newClusterVoters(e), newClusterUnregister(e))
	return cmd
}

type brokerView struct {
	Broker int32  `json:"broker"`
	Host   string `json:"host"`
	Port   int32  `json:"port"`
	Rack   string `json:"rack,omitempty"`
	Fenced bool   `json:"fenced"`
}

type quorumMemberView struct {
	Node         int32  `json:"node"`
	Role         string `json:"role"`
	LogEndOffset int64  `json:"logEndOffset"`
	Lag          int64  `json:"lag"`
	LastFetch    string `json:"lastFetch,omitempty"`
}

type clusterView struct {
	ClusterID     string             `json:"clusterId"`
	Brokers       []brokerView       `json:"brokers"`
	QuorumLeader  int32              `json:"quorumLeader"`
	QuorumEpoch   int32              `json:"quorumEpoch"`
	HighWatermark int64              `json:"metadataHighWatermark"`
	Quorum        []quorumMemberView `json:"quorum"`
	Topics        int                `json:"topics"`
	Partitions    int                `json:"partitions"`
	Leaderless    int                `json:"leaderlessPartitions"`
	UnderISR      int                `json:"underReplicatedPartitions"`
	LogDirs       []logDirView       `json:"logDirs"`
	Features      []featureView      `json:"features"`
	// Missing says what could not be found out, and why: the rest is shown all the same.
	Missing []string `json:"missing"`
}

// featureView is a feature with its finalized level, 0 for none, and the levels that the node which was asked serves.
// A level beyond those was finalized before the disk was taken over from Apache Kafka.
type featureView struct {
	Name  string `json:"name"`
	Level int16  `json:"level"`
	Min   int16  `json:"min"`
	Max   int16  `json:"max"`
}

func newClusterDescribe(e *env) *cobra.Command {
	return &cobra.Command{
		Use:     "describe",
		Short:   "Show brokers, their disks, the controller quorum, features, and partitions in trouble",
		Example: "  stele cluster describe\n  stele cluster describe --output json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return e.lookAt(cmd, func(ctx context.Context, client *kgo.Client) error {
				view, err := describeCluster(ctx, client)
				if err != nil {
					return err
				}
				return e.showCluster(view)
			})
		},
	}
}

// partPatience is how long one part of a description may take: who does not answer by then is named, and the rest is shown.
const partPatience = 3 * time.Second

// lookAt runs f, which describes something by parts, with a client that soon tries another broker when one does not answer.
func (e *env) lookAt(cmd *cobra.Command, f func(ctx context.Context, client *kgo.Client) error) error {
	client, d, err := e.connect(cmd.Flags(), kgo.RequestTimeoutOverhead(partPatience/2))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), 2*requestTimeout)
	defer cancel()
	if err := f(ctx, client); err != nil {
		return d.explain(err)
	}
	return nil
}

func describeCluster(ctx context.Context, client *kgo.Client) (clusterView, error) {
	view := clusterView{QuorumLeader: -1, QuorumEpoch: -1, HighWatermark: -1, Brokers: []brokerView{}, Quorum: []quorumMemberView{}}
	req := kmsg.NewPtrDescribeClusterRequest()
	req.IncludeFencedBrokers = true
	answer, err := req.RequestWith(ctx, client)
	if err != nil {
		return view, failed("describe the cluster", err)
	}
	if err := kerr.ErrorForCode(answer.ErrorCode); err != nil {
		return view, failed("describe the cluster", err)
	}
	view.ClusterID = answer.ClusterID
	for _, b := range answer.Brokers {
		rack := ""
		if b.Rack != nil {
			rack = *b.Rack
		}
		view.Brokers = append(view.Brokers, brokerView{b.NodeID, b.Host, b.Port, rack, b.IsFenced})
	}
	view.describeParts(ctx, client)
	return view, nil
}

// describeParts fills in the rest, all parts at a time. Each writes fields of its own.
func (v *clusterView) describeParts(ctx context.Context, client *kgo.Client) {
	var parts sync.WaitGroup
	var mu sync.Mutex
	part := func(describe func(ctx context.Context) []error) {
		parts.Go(func() {
			limited, cancel := context.WithTimeout(ctx, partPatience)
			defer cancel()
			for _, err := range describe(limited) {
				mu.Lock()
				v.Missing = append(v.Missing, noAnswer(err).Error())
				mu.Unlock()
			}
		})
	}
	one := func(err error) []error {
		if err != nil {
			return []error{err}
		}
		return nil
	}
	v.Missing, v.Features = []string{}, []featureView{}
	part(func(limited context.Context) []error {
		err := describeQuorum(limited, client, v)
		if err != nil {
			v.Quorum = roll(ctx, client, v.ClusterID)
		}
		return one(err)
	})
	part(func(ctx context.Context) []error { return one(describeFeatures(ctx, client, v)) })
	part(func(ctx context.Context) []error { return one(countTopics(ctx, client, v)) })
	part(func(ctx context.Context) (errs []error) {
		v.LogDirs, errs = volumesOfEach(ctx, client, v.Brokers)
		return errs
	})
	parts.Wait()
	slices.Sort(v.Missing)
}

// askOne sends a request to the first of the bootstrap servers that answers: it is any broker's to answer, and a client that
// is free to choose may choose the one that hangs.
func askOne(ctx context.Context, client *kgo.Client, req kmsg.Request) (kmsg.Response, error) {
	var first error
	for _, seed := range client.SeedBrokers() {
		resp, err := seed.Request(ctx, req)
		if err == nil {
			return resp, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

// noAnswer says in plain words that time ran out.
func noAnswer(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		what, _, _ := strings.Cut(err.Error(), ": ")
		return fmt.Errorf("%s: no answer within %v", what, partPatience)
	}
	return err
}

func countTopics(ctx context.Context, client *kgo.Client, view *clusterView) error {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = nil // all
	answer, err := askOne(ctx, client, req)
	if err != nil {
		return failed("list topics", err)
	}
	topics := answer.(*kmsg.MetadataResponse).Topics
	view.Topics = len(topics)
	for _, topic := range topics {
		view.Partitions += len(topic.Partitions)
		for _, p := range topic.Partitions {
			if p.Leader < 0 {
				view.Leaderless++
			}
			if len(p.ISR) < len(p.Replicas) {
				view.UnderISR++
			}
		}
	}
	return nil
}

func describeQuorum(ctx context.Context, client *kgo.Client, view *clusterView) error {
	req := kmsg.NewPtrDescribeQuorumRequest()
	topic := kmsg.NewDescribeQuorumRequestTopic()
	topic.Topic = "__cluster_metadata"
	topic.Partitions = append(topic.Partitions, kmsg.NewDescribeQuorumRequestTopicPartition())
	req.Topics = append(req.Topics, topic)
	resp, err := askOne(ctx, client, req)
	if err != nil {
		return failed("describe the quorum", err)
	}
	answer := resp.(*kmsg.DescribeQuorumResponse)
	if err := kerr.ErrorForCode(answer.ErrorCode); err != nil {
		return failed("describe the quorum", err)
	}
	for _, t := range answer.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return failed("describe the quorum", err)
			}
			view.QuorumLeader, view.QuorumEpoch, view.HighWatermark = p.LeaderID, p.LeaderEpoch, p.HighWatermark
			for _, voter := range p.CurrentVoters {
				view.addQuorum("voter", voter)
			}
			for _, observer := range p.Observers {
				view.addQuorum("observer", observer)
			}
		}
	}
	return nil
}

func describeFeatures(ctx context.Context, client *kgo.Client, view *clusterView) error {
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "stele", "cli"
	resp, err := askOne(ctx, client, req)
	if err != nil {
		return failed("describe the features", err)
	}
	answer := resp.(*kmsg.ApiVersionsResponse)
	if err := kerr.ErrorForCode(answer.ErrorCode); err != nil {
		return failed("describe the features", err)
	}
	features := map[string]featureView{}
	for _, f := range answer.SupportedFeatures {
		features[f.Name] = featureView{Name: f.Name, Min: f.MinVersion, Max: f.MaxVersion}
	}
	for _, f := range answer.FinalizedFeatures {
		one := features[f.Name]
		one.Name, one.Level = f.Name, f.MaxVersionLevel
		features[f.Name] = one
	}
	for _, name := range slices.Sorted(maps.Keys(features)) {
		view.Features = append(view.Features, features[name])
	}
	return nil
}

func (v *clusterView) addQuorum(role string, r kmsg.DescribeQuorumResponseTopicPartitionReplicaState) {
	if role == "voter" && r.ReplicaID == v.QuorumLeader {
		role = "leader"
	}
	member := quorumMemberView{Node: r.ReplicaID, Role: role, LogEndOffset: r.LogEndOffset, Lag: -1}
	if r.LogEndOffset >= 0 && v.HighWatermark >= 0 {
		member.Lag = max(v.HighWatermark-r.LogEndOffset, 0)
	}
	if r.LastFetchTimestamp >= 0 {
		member.LastFetch = time.UnixMilli(r.LastFetchTimestamp).Format(time.RFC3339)
	}
	v.Quorum = append(v.Quorum, member)
}

func (e *env) showCluster(view clusterView) error {
	for _, what := range view.Missing {
		fmt.Fprintf(e.err, "note: %s\n", what)
	}
	if e.output == "json" {
		return e.json(view)
	}
	e.say("cluster %s", view.ClusterID)
	e.say("topics %d, partitions %d, without leader %d, under-replicated %d", view.Topics, view.Partitions, view.Leaderless, view.UnderISR)
	brokers := table{header: []string{"BROKER", "ADDRESS", "RACK", "STATE"}}
	for _, b := range view.Brokers {
		state := "running"
		if b.Fenced {
			state = "fenced"
		}
		brokers.add(b.Broker, fmt.Sprintf("%s:%d", b.Host, b.Port), orNone(b.Rack), state)
	}
	if err := e.show(nil, brokers); err != nil {
		return err
	}
	if err := e.show(nil, disks(view.LogDirs)); err != nil {
		return err
	}
	if err := e.showQuorum(view); err != nil {
		return err
	}
	return e.show(nil, featureTable(view.Features))
}

func (e *env) showQuorum(view clusterView) error {
	e.say("quorum epoch %s, metadata high watermark %s", orDash(int64(view.QuorumEpoch)), orDash(view.HighWatermark))
	quorum := table{header: []string{"NODE", "ROLE", "LOG END", "LAG", "LAST FETCH"}}
	for _, m := range view.Quorum {
		quorum.add(m.Node, m.Role, orDash(m.LogEndOffset), orDash(m.Lag), orNone(m.LastFetch))
	}
	return e.show(nil, quorum)
}
