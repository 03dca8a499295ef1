package cli

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// producerView is one producer in one partition, as the partition's leader knows it. -1 is what it does not know.
type producerView struct {
	Partition        int32 `json:"partition"`
	ProducerID       int64 `json:"producerId"`
	Epoch            int16 `json:"epoch"`
	LastSequence     int32 `json:"lastSequence"`
	LastTimestamp    int64 `json:"lastTimestamp"` // ms
	CoordinatorEpoch int32 `json:"coordinatorEpoch"`
	TxnStartOffset   int64 `json:"transactionStartOffset"`
}

type producersView struct {
	Topic     string         `json:"topic"`
	Producers []producerView `json:"producers"`
}

func newTopicProducers(e *env) *cobra.Command {
	var partitions []int32
	var open bool
	cmd := &cobra.Command{
		Use:   "producers TOPIC...",
		Short: "Show the producers that partitions remember, and their open transactions",
		Long: `Show the producers that partitions remember: all idempotent and transactional ones
that were heard of within producer.id.expiration.ms. OPEN FROM is the first offset
of a transaction that is open there: read_committed consumers see nothing from
the earliest of those on.`,
		Example: `  stele topic producers orders
  stele topic producers orders --partition 0 --open
  stele topic producers orders --output json`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, topics []string) error {
			return e.admin(cmd.Context(), cmd.Flags(), func(ctx context.Context, admin *kadm.Client) error {
				return describeEach(e, topics, e.showProducers, func(topic string) (producersView, error) {
					return describeProducers(ctx, admin, topic, partitions, open)
				})
			})
		},
	}
	cmd.Flags().Int32SliceVarP(&partitions, "partition", "p", nil, "only these partitions")
	cmd.Flags().BoolVar(&open, "open", false, "only producers with an open transaction")
	return cmd
}

func describeProducers(ctx context.Context, admin *kadm.Client, topic string, partitions []int32, open bool) (producersView, error) {
	what := "describe producers of " + topic
	details, err := admin.ListTopicsWithInternal(ctx, topic)
	if err != nil {
		return producersView{}, failed(what, err)
	}
	if err := details[topic].Err; err != nil {
		return producersView{}, failed(what, err)
	}
	for _, p := range partitions {
		if _, ok := details[topic].Partitions[p]; !ok {
			return producersView{}, failed(fmt.Sprintf("%s-%d", what, p), kerr.UnknownTopicOrPartition)
		}
	}
	if len(partitions) == 0 {
		partitions = details[topic].Partitions.Numbers()
	}
	var asked kadm.TopicsSet
	asked.Add(topic, partitions...)
	described, err := admin.DescribeProducers(ctx, asked)
	if err != nil {
		return producersView{}, failed(what, err)
	}
	view := producersView{Topic: topic, Producers: []producerView{}}
	for _, p := range described[topic].Partitions.Sorted() {
		if p.Err != nil {
			return producersView{}, failed(fmt.Sprintf("%s-%d", what, p.Partition), p.Err, p.ErrMessage)
		}
		for _, d := range p.ActiveProducers.Sorted() {
			if open && d.CurrentTxnStartOffset < 0 {
				continue
			}
			view.Producers = append(view.Producers, producerView{p.Partition, d.ProducerID, d.ProducerEpoch, d.LastSequence, d.LastTimestamp, d.CoordinatorEpoch, d.CurrentTxnStartOffset})
		}
	}
	slices.SortStableFunc(view.Producers, func(a, b producerView) int { return int(a.Partition - b.Partition) })
	return view, nil
}

func (e *env) showProducers(view producersView) error {
	e.say("%s", view.Topic)
	t := table{header: []string{"  PARTITION", "PRODUCER", "EPOCH", "LAST SEQUENCE", "LAST TIME", "COORDINATOR EPOCH", "OPEN FROM"}}
	for _, p := range view.Producers {
		last := "-"
		if p.LastTimestamp >= 0 {
			last = time.UnixMilli(p.LastTimestamp).Format(time.RFC3339)
		}
		t.add(fmt.Sprintf("  %d", p.Partition), p.ProducerID, p.Epoch, orDash(int64(p.LastSequence)), last, orDash(int64(p.CoordinatorEpoch)), orDash(p.TxnStartOffset))
	}
	return e.show(nil, t)
}
