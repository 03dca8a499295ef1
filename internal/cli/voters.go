package cli

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/wire"
)

func newClusterVoters(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "voters",
		Short: "The controllers that vote: list, add, remove",
		Example: `  stele cluster voters list
  stele cluster voters remove 3
  stele cluster voters add 10.0.0.3:9093`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newVotersList(e), newVotersAdd(e), newVotersRemove(e))
	return cmd
}

type voterView struct {
	Node         int32    `json:"node"`
	Directory    string   `json:"directory"`
	Role         string   `json:"role"`
	Controllers  []string `json:"controllers"`
	LogEndOffset int64    `json:"logEndOffset"`
}

func newVotersList(e *env) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List the voters with the ids of their directories",
		Example: "  stele cluster voters list",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return e.atCluster(cmd, func(ctx context.Context, client *kgo.Client) error {
				voters, _, err := listVoters(ctx, client)
				if err != nil {
					return err
				}
				t := table{header: []string{"NODE", "DIRECTORY", "ROLE", "CONTROLLERS", "LOG END"}}
				for _, v := range voters {
					t.add(v.Node, v.Directory, v.Role, strings.Join(v.Controllers, " "), orDash(v.LogEndOffset))
				}
				return e.show(voters, t)
			})
		},
	}
}

// atCluster runs f with a client of the cluster, for no longer than a request may take.
func (e *env) atCluster(cmd *cobra.Command, f func(ctx context.Context, client *kgo.Client) error) error {
	client, d, err := e.connect(cmd.Flags())
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), requestTimeout)
	defer cancel()
	if err := f(ctx, client); err != nil {
		return d.explain(err)
	}
	return nil
}

// listVoters is what the active controller says of the voters, and the cluster's id.
func listVoters(ctx context.Context, client *kgo.Client) (voters []voterView, clusterID string, err error) {
	cluster, err := kmsg.NewPtrDescribeClusterRequest().RequestWith(ctx, client)
	if err == nil {
		err = kerr.ErrorForCode(cluster.ErrorCode)
	}
	if err != nil {
		return nil, "", failed("describe the cluster", err)
	}
	req := kmsg.NewPtrDescribeQuorumRequest()
	topic := kmsg.NewDescribeQuorumRequestTopic()
	topic.Topic = "__cluster_metadata"
	topic.Partitions = append(topic.Partitions, kmsg.NewDescribeQuorumRequestTopicPartition())
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(ctx, client)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return nil, "", failed("describe the quorum", err)
	}
	where := map[int32][]string{}
	for _, n := range resp.Nodes {
		for _, l := range n.Listeners {
			where[n.NodeID] = append(where[n.NodeID], net.JoinHostPort(l.Host, strconv.Itoa(int(l.Port))))
		}
	}
	voters = []voterView{}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			for _, r := range p.CurrentVoters {
				role := "voter"
				if r.ReplicaID == p.LeaderID {
					role = "leader"
				}
				voters = append(voters, voterView{r.ReplicaID, metadata.UUID(r.ReplicaDirectoryID).String(), role, where[r.ReplicaID], r.LogEndOffset})
			}
		}
	}
	return voters, cluster.ClusterID, nil
}

func newVotersAdd(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "add HOST:PORT",
		Short: "Make the controller that listens there a voter",
		Long: `Make the controller that listens at HOST:PORT a voter. It is asked who it is, its node id
and its directory's, and must run. A node whose old directory is still a voter is removed
first: a directory that was emptied must not vote in its place.`,
		Example: `  stele cluster voters remove 3
  stele cluster voters add 10.0.0.3:9093`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			host, port, err := net.SplitHostPort(args[0])
			number, bad := strconv.ParseUint(port, 10, 16)
			if err != nil || bad != nil || host == "" {
				return usagef("cluster voters add %s: write host:port of its controller listener", args[0])
			}
			return e.atCluster(cmd, func(ctx context.Context, client *kgo.Client) error {
				_, clusterID, err := listVoters(ctx, client)
				if err != nil {
					return err
				}
				voter, err := askController(ctx, args[0], clusterID)
				if err != nil {
					return fmt.Errorf("ask the controller at %s who it is: %w", args[0], err)
				}
				req := kmsg.NewPtrAddRaftVoterRequest()
				req.ClusterID, req.VoterID, req.VoterDirectoryID = &clusterID, voter.VoterID, voter.VoterDirectoryID
				listener := kmsg.NewAddRaftVoterRequestListener()
				listener.Name, listener.Host, listener.Port = voter.Endpoints[0].Name, host, uint16(number)
				req.Listeners = append(req.Listeners, listener)
				resp, err := req.RequestWith(ctx, client)
				text := ""
				if err == nil {
					err, text = kerr.ErrorForCode(resp.ErrorCode), textOf(resp.ErrorMessage)
				}
				if err != nil {
					return failed(fmt.Sprintf("add node %d, directory %s, as a voter", voter.VoterID, voter.VoterDirectoryID), err, text)
				}
				e.say("node %d, directory %s, is a voter", voter.VoterID, voter.VoterDirectoryID)
				return nil
			})
		},
	}
}

// textOf is an optional text of an answer, empty if it has none.
func textOf(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}

// askController asks a controller who it is.
func askController(ctx context.Context, addr, clusterID string) (metadata.VotersEntry, error) {
	conn, err := wire.Dial(ctx, (&net.Dialer{}).DialContext, addr, wire.DialOptions{ClientID: "stele"})
	if err != nil {
		return metadata.VotersEntry{}, err
	}
	defer conn.Close()
	resp, err := conn.Request(ctx, &wire.QuorumPeerRequest{ClusterID: clusterID, NodeID: -1})
	if err != nil {
		return metadata.VotersEntry{}, err
	}
	answer := resp.(*wire.QuorumPeerResponse)
	if answer.ClusterID != clusterID {
		return metadata.VotersEntry{}, fmt.Errorf("it is of cluster %s, this is %s", answer.ClusterID, clusterID)
	}
	rec, err := metadata.DecodeControl(metadata.ControlVoters, answer.Self)
	if err != nil {
		return metadata.VotersEntry{}, err
	}
	self, ok := rec.(*metadata.Voters)
	if !ok || len(self.Voters) != 1 || len(self.Voters[0].Endpoints) == 0 {
		return metadata.VotersEntry{}, fmt.Errorf("it does not say who it is (error code %d)", answer.ErrorCode)
	}
	return self.Voters[0], nil
}

func newVotersRemove(e *env) *cobra.Command {
	var directory string
	cmd := &cobra.Command{
		Use:   "remove NODE",
		Short: "Take a voter's vote away, alive or not",
		Long: `Take the vote of a controller away, alive or not: one that will not come back, or whose
directory is gone. The others go on; with it goes the majority it may have been needed for,
so remove the dead before you stop more.`,
		Example: `  stele cluster voters remove 3
  stele cluster voters remove 3 --directory ICEiIyQlJicoKSorLC0uLw`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := strconv.ParseInt(args[0], 10, 32)
			if err != nil {
				return usagef("cluster voters remove %s: the id of a node is a number", args[0])
			}
			return e.atCluster(cmd, func(ctx context.Context, client *kgo.Client) error {
				voters, clusterID, err := listVoters(ctx, client)
				if err != nil {
					return err
				}
				for _, v := range voters {
					if v.Node != int32(id) || directory != "" && directory != v.Directory {
						continue
					}
					req := kmsg.NewPtrRemoveRaftVoterRequest()
					req.ClusterID, req.VoterID = &clusterID, v.Node
					if req.VoterDirectoryID, err = metadata.ParseUUID(v.Directory); err != nil {
						return err
					}
					resp, err := req.RequestWith(ctx, client)
					text := ""
					if err == nil {
						err, text = kerr.ErrorForCode(resp.ErrorCode), textOf(resp.ErrorMessage)
					}
					if err != nil {
						return failed(fmt.Sprintf("remove voter %d, directory %s", v.Node, v.Directory), err, text)
					}
					e.say("node %d, directory %s, is no voter any more", v.Node, v.Directory)
					return nil
				}
				return fmt.Errorf("node %d is no voter; `stele cluster voters list` shows who is", id)
			})
		},
	}
	cmd.Flags().StringVar(&directory, "directory", "", "only if its directory has this id")
	return cmd
}

func newClusterUnregister(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "unregister BROKER",
		Short: "Forget a broker that will not come back",
		Long: `Forget a broker that will not come back: it leaves every in-sync set, and its features count
no more. Its replicas stay assigned to it; reassign them (kafka-reassign-partitions.sh does).
One that runs is refused: stop it first, and wait until it is fenced. A broker that is started
again registers again.`,
		Example: "  stele cluster unregister 4",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := strconv.ParseInt(args[0], 10, 32)
			if err != nil {
				return usagef("cluster unregister %s: the id of a broker is a number", args[0])
			}
			return e.atCluster(cmd, func(ctx context.Context, client *kgo.Client) error {
				// The cluster would take it at its word; a broker that runs would be of no use until its next start.
				running, err := runs(ctx, client, int32(id))
				if err != nil {
					return failed("describe the cluster", err)
				}
				if running {
					return fmt.Errorf("unregister broker %d: it runs, or its session has not ended yet; stop it, and try again once `stele cluster describe` shows it as fenced", id)
				}
				req := kmsg.NewPtrUnregisterBrokerRequest()
				req.BrokerID = int32(id)
				resp, err := req.RequestWith(ctx, client)
				if err == nil {
					err = kerr.ErrorForCode(resp.ErrorCode)
				}
				if err != nil {
					return failed(fmt.Sprintf("unregister broker %d", id), err)
				}
				e.say("broker %d is forgotten", id)
				return nil
			})
		},
	}
}

// runs says whether a broker is registered and not fenced.
func runs(ctx context.Context, client *kgo.Client, id int32) (bool, error) {
	req := kmsg.NewPtrDescribeClusterRequest()
	req.IncludeFencedBrokers = true
	answer, err := req.RequestWith(ctx, client)
	if err == nil {
		err = kerr.ErrorForCode(answer.ErrorCode)
	}
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(answer.Brokers, func(b kmsg.DescribeClusterResponseBroker) bool {
		return b.NodeID == id && !b.IsFenced
	}), nil
}
