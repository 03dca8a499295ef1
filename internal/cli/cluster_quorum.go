package cli

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func newClusterQuorum(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "quorum",
		Short: "Show the controllers: who leads, who votes, how far each has come, who is missing",
		Long: `Show the controllers: who leads, who votes, how far each has come. When none is active, which
takes a majority of the voters, each address in controller.quorum.voters is tried, and those that
do not answer are named.`,
		Example: "  stele cluster quorum\n  stele cluster quorum --output json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return e.lookAt(cmd, func(ctx context.Context, client *kgo.Client) error {
				view := clusterView{QuorumLeader: -1, QuorumEpoch: -1, HighWatermark: -1, Quorum: []quorumMemberView{}}
				limited, cancel := context.WithTimeout(ctx, partPatience)
				defer cancel()
				wrong := describeQuorum(limited, client, &view)
				if wrong != nil {
					cluster, err := askOne(ctx, client, kmsg.NewPtrDescribeClusterRequest())
					if err != nil {
						return failed("describe the cluster", err)
					}
					view.Quorum = roll(ctx, client, cluster.(*kmsg.DescribeClusterResponse).ClusterID)
				}
				if e.output == "json" {
					if err := e.json(view.Quorum); err != nil {
						return err
					}
				} else if err := e.showQuorum(view); err != nil {
					return err
				}
				if wrong != nil {
					return noAnswer(wrong)
				}
				return nil
			})
		},
	}
}

// Roles of controllers that were tried one by one because none is active.
const (
	roleAnswers = "answers"
	roleMissing = "missing"
)

// roll calls the controllers that brokers are configured with one by one, when nobody can say how the quorum stands.
func roll(ctx context.Context, client *kgo.Client, clusterID string) []quorumMemberView {
	members := []quorumMemberView{}
	voters := configuredVoters(ctx, client)
	members = slices.Grow(members, len(voters))[:len(voters)]
	var calls sync.WaitGroup
	for i, v := range voters {
		calls.Go(func() {
			limited, cancel := context.WithTimeout(ctx, partPatience/2)
			defer cancel()
			role := roleAnswers
			if _, err := askController(limited, v.addr, clusterID); err != nil {
				role = roleMissing
			}
			members[i] = quorumMemberView{Node: v.id, Role: role, LogEndOffset: -1, Lag: -1}
		})
	}
	calls.Wait()
	return members
}

type configuredVoter struct {
	id   int32
	addr string
}

// configuredVoters is controller.quorum.voters as a broker has it; none if that does not say.
func configuredVoters(ctx context.Context, client *kgo.Client) (voters []configuredVoter) {
	limited, cancel := context.WithTimeout(ctx, partPatience)
	defer cancel()
	brokers, err := askOne(limited, client, kmsg.NewPtrDescribeClusterRequest())
	if err != nil {
		return nil
	}
	for _, b := range brokers.(*kmsg.DescribeClusterResponse).Brokers {
		req := kmsg.NewPtrDescribeConfigsRequest()
		resource := kmsg.NewDescribeConfigsRequestResource()
		resource.ResourceType, resource.ResourceName, resource.ConfigNames = kmsg.ConfigResourceTypeBroker, strconv.Itoa(int(b.NodeID)), []string{"controller.quorum.voters"}
		req.Resources = append(req.Resources, resource)
		attempt, cancel := context.WithTimeout(limited, time.Second)
		answer, err := client.Broker(int(b.NodeID)).Request(attempt, req)
		cancel()
		resp, ok := answer.(*kmsg.DescribeConfigsResponse)
		if err != nil || !ok || len(resp.Resources) == 0 || len(resp.Resources[0].Configs) == 0 || resp.Resources[0].Configs[0].Value == nil {
			continue
		}
		for _, one := range strings.Split(*resp.Resources[0].Configs[0].Value, ",") {
			id, addr, ok := strings.Cut(strings.TrimSpace(one), "@")
			n, err := strconv.ParseInt(id, 10, 32)
			if ok && err == nil {
				voters = append(voters, configuredVoter{int32(n), addr})
			}
		}
		return voters
	}
	return nil
}
