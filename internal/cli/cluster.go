package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
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
	cmd.AddCommand(newClusterDescribe(e), newClusterLogDirs(e), newClusterVoters(e), newClusterUnregister(e))
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
			client, d, err := e.connect(cmd.Flags())
			if err != nil {
				return err
			}
			defer client.Close()
			ctx, cancel := context.WithTimeout(cmd.Context(), requestTimeout)
			defer cancel()
			view, err := describeCluster(ctx, client)
			if err != nil {
				return d.explain(err)
			}
			return e.showCluster(view)
		},
	}
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
	if err := describeQuorum(ctx, client, &view); err != nil {
		return view, err
	}
	if err := describeFeatures(ctx, client, &view); err != nil {
		return view, err
	}
	topics, err := kadm.NewClient(client).ListTopicsWithInternal(ctx)
	if err != nil {
		return view, failed("list topics", err)
	}
	view.Topics = len(topics)
	topics.EachPartition(func(p kadm.PartitionDetail) {
		view.Partitions++
		if p.Leader < 0 {
			view.Leaderless++
		}
		if len(p.ISR) < len(p.Replicas) {
			view.UnderISR++
		}
	})
	view.LogDirs, err = volumes(ctx, client, view.Brokers)
	return view, err
}

func describeQuorum(ctx context.Context, client *kgo.Client, view *clusterView) error {
	req := kmsg.NewPtrDescribeQuorumRequest()
	topic := kmsg.NewDescribeQuorumRequestTopic()
	topic.Topic = "__cluster_metadata"
	topic.Partitions = append(topic.Partitions, kmsg.NewDescribeQuorumRequestTopicPartition())
	req.Topics = append(req.Topics, topic)
	answer, err := req.RequestWith(ctx, client)
	if err != nil {
		return failed("describe the quorum", err)
	}
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
	answer, err := req.RequestWith(ctx, client)
	if err == nil {
		err = kerr.ErrorForCode(answer.ErrorCode)
	}
	if err != nil {
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
	view.Features = []featureView{}
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
	e.say("quorum epoch %s, metadata high watermark %s", orDash(int64(view.QuorumEpoch)), orDash(view.HighWatermark))
	quorum := table{header: []string{"NODE", "ROLE", "LOG END", "LAG", "LAST FETCH"}}
	for _, m := range view.Quorum {
		quorum.add(m.Node, m.Role, orDash(m.LogEndOffset), orDash(m.Lag), orNone(m.LastFetch))
	}
	if err := e.show(nil, quorum); err != nil {
		return err
	}
	features := table{header: []string{"FEATURE", "LEVEL", "SERVED"}}
	for _, f := range view.Features {
		served := fmt.Sprintf("%d-%d", f.Min, f.Max)
		if f.Max == 0 {
			served = "-"
		}
		features.add(f.Name, f.Level, served)
	}
	return e.show(nil, features)
}
