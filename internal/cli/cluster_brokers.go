package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// brokerLoad is a broker with what it leads and holds.
type brokerLoad struct {
	brokerView
	Leads     int `json:"leads"`     // partitions
	Replicas  int `json:"replicas"`  // of partitions, led ones included
	OutOfSync int `json:"outOfSync"` // of these, not in sync
}

func newClusterBrokers(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "brokers",
		Short: "Show the brokers: where they are, who is fenced, what each leads and holds",
		Long: `Show the registered brokers: their addresses and racks, which are fenced, how many partitions each leads
and has a replica of, and how many of its replicas are out of sync.`,
		Example: "  stele cluster brokers\n  stele cluster brokers --output json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return e.lookAt(cmd, func(ctx context.Context, client *kgo.Client) error {
				brokers, err := brokerLoads(ctx, client)
				if err != nil {
					return err
				}
				t := table{header: []string{"BROKER", "ADDRESS", "RACK", "STATE", "LEADS", "REPLICAS", "OUT OF SYNC"}}
				for _, b := range brokers {
					state := "active"
					if b.Fenced {
						state = "fenced"
					}
					t.add(b.Broker, fmt.Sprintf("%s:%d", b.Host, b.Port), orNone(b.Rack), state, b.Leads, b.Replicas, b.OutOfSync)
				}
				return e.show(brokers, t)
			})
		},
	}
}

func brokerLoads(ctx context.Context, client *kgo.Client) ([]*brokerLoad, error) {
	described := kmsg.NewPtrDescribeClusterRequest()
	described.IncludeFencedBrokers = true
	answer, err := askOne(ctx, client, described)
	if err == nil {
		err = kerr.ErrorForCode(answer.(*kmsg.DescribeClusterResponse).ErrorCode)
	}
	if err != nil {
		return nil, failed("describe the cluster", err)
	}
	brokers, byID := []*brokerLoad{}, map[int32]*brokerLoad{}
	for _, b := range answer.(*kmsg.DescribeClusterResponse).Brokers {
		rack := ""
		if b.Rack != nil {
			rack = *b.Rack
		}
		load := &brokerLoad{brokerView: brokerView{b.NodeID, b.Host, b.Port, rack, b.IsFenced}}
		brokers, byID[b.NodeID] = append(brokers, load), load
	}
	metadata := kmsg.NewPtrMetadataRequest()
	metadata.Topics = nil // all
	if answer, err = askOne(ctx, client, metadata); err != nil {
		return nil, failed("list topics", err)
	}
	for _, topic := range answer.(*kmsg.MetadataResponse).Topics {
		for _, p := range topic.Partitions {
			if leader := byID[p.Leader]; leader != nil {
				leader.Leads++
			}
			for _, id := range p.Replicas {
				if holder := byID[id]; holder != nil {
					holder.Replicas++
					holder.OutOfSync++
				}
			}
			for _, id := range p.ISR {
				if holder := byID[id]; holder != nil {
					holder.OutOfSync--
				}
			}
		}
	}
	return brokers, nil
}
