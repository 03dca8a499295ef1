package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func newPartition(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "partition",
		Short:   "Elect leaders of partitions",
		Example: `  stele partition elect --all`,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newPartitionElect(e))
	return cmd
}

// electionView is what became of one partition.
type electionView struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Outcome   string `json:"outcome"` // elected, not needed, or the error's name
	Message   string `json:"message,omitempty"`
}

func newPartitionElect(e *env) *cobra.Command {
	var all, unclean bool
	cmd := &cobra.Command{
		Use:   "elect [TOPIC-PARTITION...]",
		Short: "Give leadership back to the preferred replicas, or, without a leader, to any that lives",
		Long: `Give leadership back to the preferred replicas: the first of each list, if it is in sync.

With --unclean a partition without a leader gets one that is not in sync, if no other lives: what it
had not copied is lost. That is for those whose other replicas will not come back.`,
		Example: `  stele partition elect --all
  stele partition elect orders-0 orders-3
  stele partition elect --unclean orders-3`,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case all == (len(args) > 0):
				return usagef("partition elect: name partitions, such as orders-3, or give --all for all of them")
			case all && unclean:
				return usagef("partition elect --unclean: name the partitions whose records may be lost, such as orders-3")
			}
			topics, err := partitionsByTopic(args)
			if err != nil {
				return err
			}
			req := kmsg.NewPtrElectLeadersRequest()
			if unclean {
				req.ElectionType = 1
			}
			for _, topic := range slices.Sorted(maps.Keys(topics)) {
				req.Topics = append(req.Topics, kmsg.ElectLeadersRequestTopic{Topic: topic, Partitions: topics[topic]})
			}
			return e.atCluster(cmd, func(ctx context.Context, client *kgo.Client) error { return e.elect(ctx, client, req) })
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "all partitions that are not led by their preferred replica")
	cmd.Flags().BoolVar(&unclean, "unclean", false, "elect also a replica that is not in sync, where there is no leader: records may be lost")
	return cmd
}

// partitionsByTopic reads names such as orders-3.
func partitionsByTopic(names []string) (map[string][]int32, error) {
	topics := map[string][]int32{}
	for _, name := range names {
		at := strings.LastIndexByte(name, '-')
		if at <= 0 {
			return nil, usagef("%s is no partition: write TOPIC-PARTITION, such as orders-3", name)
		}
		id, err := strconv.ParseInt(name[at+1:], 10, 32)
		if err != nil || id < 0 {
			return nil, usagef("%s is no partition: write TOPIC-PARTITION, such as orders-3", name)
		}
		topics[name[:at]] = append(topics[name[:at]], int32(id))
	}
	return topics, nil
}

func (e *env) elect(ctx context.Context, client *kgo.Client, req *kmsg.ElectLeadersRequest) error {
	resp, err := req.RequestWith(ctx, client)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return failed("elect leaders", err)
	}
	views := []electionView{}
	var errs []error
	for _, topic := range resp.Topics {
		for _, p := range topic.Partitions {
			view := electionView{Topic: topic.Topic, Partition: p.Partition, Outcome: "elected", Message: textOf(p.ErrorMessage)}
			var wrong *kerr.Error
			switch err := kerr.ErrorForCode(p.ErrorCode); {
			case err == kerr.ElectionNotNeeded:
				view.Outcome, view.Message = "not needed", ""
			case errors.As(err, &wrong):
				view.Outcome = wrong.Message
				errs = append(errs, failed(fmt.Sprintf("elect a leader of %s-%d", topic.Topic, p.Partition), err, view.Message))
			}
			views = append(views, view)
		}
	}
	t := table{header: []string{"PARTITION", "OUTCOME"}}
	for _, v := range views {
		t.add(fmt.Sprintf("%s-%d", v.Topic, v.Partition), v.Outcome)
	}
	if err := e.show(views, t); err != nil {
		return err
	}
	return errors.Join(errs...)
}
