package cli

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func newTopic(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "topic",
		Short: "Create, list, describe, alter and delete topics, show their producers",
		Example: `  stele topic create orders --partitions 3
  stele topic list
  stele topic describe orders`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newTopicCreate(e), newTopicList(e), newTopicDescribe(e), newTopicAlter(e), newTopicDelete(e), newTopicProducers(e))
	return cmd
}

func newTopicCreate(e *env) *cobra.Command {
	var partitions int32
	var factor int16
	var settings []string
	var ifAbsent bool
	cmd := &cobra.Command{
		Use:   "create TOPIC...",
		Short: "Create topics",
		Example: `  stele topic create orders
  stele topic create orders --partitions 12 --config retention.ms=86400000
  stele topic create orders --if-not-exists --config cleanup.policy=compact,delete`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, topics []string) error {
			configs, err := parseSettings(settings)
			if err != nil {
				return err
			}
			return e.admin(cmd.Context(), cmd.Flags(), func(ctx context.Context, admin *kadm.Client) error {
				results, err := admin.CreateTopics(ctx, partitions, factor, configs, topics...)
				if err != nil {
					return failed("create topics", err)
				}
				wanted := map[string]int{}
				for topic, result := range results {
					if result.Err == nil {
						wanted[topic] = int(result.NumPartitions)
					}
				}
				awaitPartitions(ctx, admin, wanted)
				return e.created(results, topics, ifAbsent)
			})
		},
	}
	cmd.Flags().Int32VarP(&partitions, "partitions", "p", -1, "number of partitions (-1: the broker's num.partitions)")
	cmd.Flags().Int16VarP(&factor, "replication-factor", "r", -1, "copies of each partition (-1: the broker's default.replication.factor)")
	cmd.Flags().StringArrayVarP(&settings, "config", "c", nil, "topic configuration name=value; may be repeated")
	cmd.Flags().BoolVar(&ifAbsent, "if-not-exists", false, "succeed when the topic is there already")
	return cmd
}

// awaitPartitions waits, for a few seconds at most, until the broker that is asked knows
// as many partitions of each topic as wanted, and leads them: the controller answers
// before brokers have read what it wrote, and whoever makes a topic uses it next.
func awaitPartitions(ctx context.Context, admin *kadm.Client, wanted map[string]int) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	for len(wanted) > 0 {
		ends, err := settledOffsets(ctx, admin.ListEndOffsets, slices.Collect(maps.Keys(wanted))...)
		if err == nil && ends.Error() == nil {
			for topic, partitions := range ends {
				if len(partitions) >= wanted[topic] {
					delete(wanted, topic)
				}
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

type createdTopic struct {
	Topic             string `json:"topic"`
	TopicID           string `json:"topicId,omitempty"`
	Partitions        int32  `json:"partitions"`
	ReplicationFactor int16  `json:"replicationFactor"`
	Existed           bool   `json:"existed"`
}

func (e *env) created(results kadm.CreateTopicResponses, topics []string, ifAbsent bool) error {
	var made []createdTopic
	var errs []error
	t := table{header: []string{"TOPIC", "PARTITIONS", "REPLICATION", "ID"}}
	for _, topic := range topics {
		result, ok := results[topic]
		switch {
		case !ok:
			errs = append(errs, failed("create topic "+topic, errors.New("the broker did not mention it in its answer")))
		case result.Err != nil && ifAbsent && isAlreadyThere(result.Err):
			made = append(made, createdTopic{Topic: topic, Partitions: -1, ReplicationFactor: -1, Existed: true})
			t.add(topic, "exists", "-", "-")
		case result.Err != nil:
			errs = append(errs, failed("create topic "+topic, result.Err, result.ErrMessage))
		default:
			made = append(made, createdTopic{Topic: topic, TopicID: topicIDText(result.ID), Partitions: result.NumPartitions, ReplicationFactor: result.ReplicationFactor})
			t.add(topic, result.NumPartitions, result.ReplicationFactor, topicIDText(result.ID))
		}
	}
	if len(made) > 0 {
		if err := e.show(made, t); err != nil {
			return err
		}
	}
	return errors.Join(errs...)
}

func newTopicList(e *env) *cobra.Command {
	var internal bool
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List topics",
		Example: "  stele topic list\n  stele topic list --internal --output json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return e.admin(cmd.Context(), cmd.Flags(), func(ctx context.Context, admin *kadm.Client) error {
				topics, err := admin.ListTopicsWithInternal(ctx)
				if err != nil {
					return failed("list topics", err)
				}
				type row struct {
					Topic             string `json:"topic"`
					Partitions        int    `json:"partitions"`
					ReplicationFactor int    `json:"replicationFactor"`
					Internal          bool   `json:"internal"`
				}
				rows := []row{}
				t := table{header: []string{"TOPIC", "PARTITIONS", "REPLICATION"}}
				for _, topic := range topics.Sorted() {
					if topic.IsInternal && !internal {
						continue
					}
					rows = append(rows, row{topic.Topic, len(topic.Partitions), topic.Partitions.NumReplicas(), topic.IsInternal})
					t.add(topic.Topic, len(topic.Partitions), topic.Partitions.NumReplicas())
				}
				return e.show(rows, t)
			})
		},
	}
	cmd.Flags().BoolVar(&internal, "internal", false, "show internal topics too")
	return cmd
}

type partitionView struct {
	Partition      int32   `json:"partition"`
	Leader         int32   `json:"leader"`
	LeaderEpoch    int32   `json:"leaderEpoch"`
	Replicas       []int32 `json:"replicas"`
	ISR            []int32 `json:"isr"`
	Offline        []int32 `json:"offlineReplicas"`
	LogStartOffset int64   `json:"logStartOffset"`
	HighWatermark  int64   `json:"highWatermark"`
	Error          string  `json:"error,omitempty"`
}

type configView struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Source string `json:"source"`
}

type topicView struct {
	Topic      string          `json:"topic"`
	TopicID    string          `json:"topicId"`
	Internal   bool            `json:"internal"`
	Durability string          `json:"durability"`
	Partitions []partitionView `json:"partitions"`
	Configs    []configView    `json:"configs"`
}

func newTopicDescribe(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "describe TOPIC...",
		Short: "Show partitions, leaders, epochs, offsets and what an acknowledgement means",
		Example: `  stele topic describe orders
  stele topic describe orders --output json`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, topics []string) error {
			return e.lookAt(cmd, func(ctx context.Context, client *kgo.Client) error {
				admin := kadm.NewClient(client)
				return describeEach(e, topics, e.showTopic, func(topic string) (topicView, error) { return describeTopic(ctx, admin, topic) })
			})
		},
	}
}

func describeTopic(ctx context.Context, admin *kadm.Client, topic string) (topicView, error) {
	what := "describe topic " + topic
	details, err := admin.ListTopicsWithInternal(ctx, topic)
	if err != nil {
		return topicView{}, failed(what, err)
	}
	detail := details[topic]
	if detail.Err != nil {
		return topicView{}, failed(what, detail.Err)
	}
	configs, err := admin.DescribeTopicConfigs(ctx, topic)
	if err != nil {
		return topicView{}, failed(what, err)
	}
	starts, ends, err := offsetsOf(ctx, admin, topic)
	if err != nil {
		return topicView{}, failed(what, err)
	}
	view := topicView{Topic: topic, TopicID: topicIDText(detail.ID), Internal: detail.IsInternal, Configs: []configView{}}
	effective := map[string]string{}
	for _, resource := range configs {
		if resource.Err != nil {
			return topicView{}, failed(what, resource.Err, resource.ErrMessage)
		}
		for _, entry := range resource.Configs {
			effective[entry.Key] = entry.MaybeValue()
			if entry.Source == kmsg.ConfigSourceDynamicTopicConfig {
				view.Configs = append(view.Configs, configView{entry.Key, entry.MaybeValue(), entry.Source.String()})
			}
		}
	}
	for _, p := range detail.Partitions.Sorted() {
		partition := partitionView{
			Partition: p.Partition, Leader: p.Leader, LeaderEpoch: p.LeaderEpoch,
			Replicas: orEmpty(p.Replicas), ISR: orEmpty(p.ISR), Offline: orEmpty(p.OfflineReplicas), LogStartOffset: -1, HighWatermark: -1,
		}
		_, answered := ends.Lookup(topic, p.Partition)
		switch {
		case p.Err != nil:
			partition.Error = p.Err.Error()
		case p.Leader >= 0 && !answered:
			partition.Error = fmt.Sprintf("its leader, broker %d, does not answer", p.Leader)
		}
		if start, ok := starts.Lookup(topic, p.Partition); ok && start.Err == nil {
			partition.LogStartOffset = start.Offset
		}
		if end, ok := ends.Lookup(topic, p.Partition); ok && end.Err == nil {
			partition.HighWatermark = end.Offset
		}
		view.Partitions = append(view.Partitions, partition)
	}
	view.Durability = durability(detail.Partitions.NumReplicas(), effective["min.insync.replicas"], effective["flush.messages"])
	return view, nil
}

// offsetsOf are the log starts and high watermarks of a topic. Those of partitions whose leader does not answer, or that
// have none, are left out.
func offsetsOf(ctx context.Context, admin *kadm.Client, topic string) (starts, ends kadm.ListedOffsets, err error) {
	limited, cancel := context.WithTimeout(ctx, partPatience)
	defer cancel()
	var both sync.WaitGroup
	var ofStarts, ofEnds error
	both.Go(func() { starts, ofStarts = settledOffsets(limited, admin.ListStartOffsets, topic) })
	both.Go(func() { ends, ofEnds = settledOffsets(limited, admin.ListEndOffsets, topic) })
	both.Wait()
	for _, err := range []error{ofStarts, ofEnds} {
		var authorization *kadm.AuthError
		if errors.As(err, &authorization) || ctx.Err() != nil {
			return nil, nil, err
		}
	}
	return starts, ends, nil
}

// durability says what an acknowledged record (acks=all) means on a topic, in
// words that need no knowledge of the settings behind it.
func durability(replicas int, minISR, flushMessages string) string {
	place := "in the page cache"
	if flushMessages == "1" {
		place = "on disk (fsync)"
	}
	if replicas <= 1 {
		if flushMessages == "1" {
			return "acknowledged = " + place + " of the one replica: survives kill -9 and power loss, not the loss of its disk"
		}
		return "acknowledged = " + place + " of the one replica: survives kill -9, not power loss (flush.messages=1 would) and not the loss of its disk"
	}
	return fmt.Sprintf("acknowledged with acks=all = %s of every in-sync replica, at least %s of %d", place, minISR, replicas)
}

func (e *env) showTopic(view topicView) error {
	e.say("%s  id %s", view.Topic, view.TopicID)
	e.say("  %s", view.Durability)
	for _, c := range view.Configs {
		e.say("  %s=%s", c.Name, c.Value)
	}
	t := table{header: []string{"  PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "OFFLINE", "LOG START", "HIGH WATERMARK"}}
	trouble := slices.ContainsFunc(view.Partitions, func(p partitionView) bool { return p.Error != "" })
	if trouble {
		t.header = append(t.header, "ERROR")
	}
	for _, p := range view.Partitions {
		row := []any{fmt.Sprintf("  %d", p.Partition), orDash(int64(p.Leader)), orDash(int64(p.LeaderEpoch)), orNone(joinInts(p.Replicas)), orNone(joinInts(p.ISR)), orNone(joinInts(p.Offline)), orDash(p.LogStartOffset), orDash(p.HighWatermark)}
		if trouble {
			row = append(row, orNone(p.Error))
		}
		t.add(row...)
	}
	return e.show(nil, t)
}

func newTopicAlter(e *env) *cobra.Command {
	var partitions int
	var settings, removals []string
	cmd := &cobra.Command{
		Use:   "alter TOPIC",
		Short: "Add partitions, set or remove configuration",
		Example: `  stele topic alter orders --partitions 24
  stele topic alter orders --config retention.ms=3600000 --delete-config flush.messages`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			topic := args[0]
			changes, err := parseChanges(settings, removals)
			if err != nil {
				return err
			}
			if partitions == 0 && len(changes) == 0 {
				return usagef("topic alter %s: nothing to change: give --partitions, --config or --delete-config", topic)
			}
			return e.admin(cmd.Context(), cmd.Flags(), func(ctx context.Context, admin *kadm.Client) error {
				if len(changes) > 0 {
					if err := alterTopicConfigs(ctx, admin, topic, changes); err != nil {
						return err
					}
				}
				if partitions > 0 {
					results, err := admin.UpdatePartitions(ctx, partitions, topic)
					if err != nil {
						return failed("alter topic "+topic, err)
					}
					for _, result := range results {
						if result.Err != nil {
							return failed("alter topic "+topic, result.Err, result.ErrMessage)
						}
					}
					awaitPartitions(ctx, admin, map[string]int{topic: partitions})
				}
				return e.done("altered", topic)
			})
		},
	}
	cmd.Flags().IntVarP(&partitions, "partitions", "p", 0, "new total number of partitions; it can only grow")
	cmd.Flags().StringArrayVarP(&settings, "config", "c", nil, "configuration to set, name=value; may be repeated")
	cmd.Flags().StringArrayVar(&removals, "delete-config", nil, "configuration to remove, by name; may be repeated")
	return cmd
}

func newTopicDelete(e *env) *cobra.Command {
	var ifThere bool
	cmd := &cobra.Command{
		Use:     "delete TOPIC...",
		Short:   "Delete topics and their records",
		Example: "  stele topic delete orders\n  stele topic delete orders --if-exists",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, topics []string) error {
			return e.admin(cmd.Context(), cmd.Flags(), func(ctx context.Context, admin *kadm.Client) error {
				results, err := admin.DeleteTopics(ctx, topics...)
				if err != nil {
					return failed("delete topics", err)
				}
				var errs []error
				var deleted []string
				for _, topic := range topics {
					result := results[topic]
					switch {
					case result.Err == nil:
						deleted = append(deleted, topic)
					case ifThere && isNotThere(result.Err):
					default:
						errs = append(errs, failed("delete topic "+topic, result.Err, result.ErrMessage))
					}
				}
				awaitGone(ctx, admin, deleted)
				if err := e.done("deleted", deleted...); err != nil {
					return err
				}
				return errors.Join(errs...)
			})
		},
	}
	cmd.Flags().BoolVar(&ifThere, "if-exists", false, "succeed when the topic is not there")
	return cmd
}

// awaitGone waits, for a few seconds at most, until the broker that is asked knows the
// topics no more, so that one made again by the same name is not taken for the old one.
func awaitGone(ctx context.Context, admin *kadm.Client, topics []string) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	for len(topics) > 0 {
		known, err := admin.ListTopics(ctx)
		if err == nil && !slices.ContainsFunc(topics, known.Has) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// done reports what was changed, by name.
func (e *env) done(what string, names ...string) error {
	if e.output == "json" {
		if names == nil {
			names = []string{}
		}
		return e.json(map[string][]string{what: names})
	}
	for _, name := range names {
		e.say("%s %s", what, name)
	}
	return nil
}

// parseSettings reads name=value pairs.
func parseSettings(settings []string) (map[string]*string, error) {
	configs := map[string]*string{}
	for _, setting := range settings {
		name, value, ok := strings.Cut(setting, "=")
		if name = strings.TrimSpace(name); !ok || name == "" {
			return nil, usagef("%q is no setting: write name=value, such as retention.ms=3600000", setting)
		}
		if _, twice := configs[name]; twice {
			return nil, usagef("%s is given twice", name)
		}
		configs[name] = &value
	}
	return configs, nil
}

func parseChanges(settings, removals []string) ([]kadm.AlterConfig, error) {
	configs, err := parseSettings(settings)
	if err != nil {
		return nil, err
	}
	var changes []kadm.AlterConfig
	for _, name := range slices.Sorted(maps.Keys(configs)) {
		changes = append(changes, kadm.AlterConfig{Op: kadm.SetConfig, Name: name, Value: configs[name]})
	}
	for _, name := range removals {
		if _, both := configs[name]; both {
			return nil, usagef("%s is both set and removed", name)
		}
		changes = append(changes, kadm.AlterConfig{Op: kadm.DeleteConfig, Name: name})
	}
	return changes, nil
}

func alterTopicConfigs(ctx context.Context, admin *kadm.Client, topic string, changes []kadm.AlterConfig) error {
	results, err := admin.AlterTopicConfigs(ctx, changes, topic)
	if err != nil {
		return failed("alter topic "+topic, err)
	}
	for _, result := range results {
		if result.Err != nil {
			return failed("alter topic "+topic, result.Err, result.ErrMessage)
		}
	}
	awaitConfigs(ctx, admin, configTarget{topic: topic}, changes)
	return nil
}

// topicIDText is a topic id as Kafka's tools and partition.metadata write it.
func topicIDText(id kadm.TopicID) string { return base64.RawURLEncoding.EncodeToString(id[:]) }
