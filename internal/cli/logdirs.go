package cli

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// logDirView is one log directory of one broker. Bytes are -1 when they are not known.
type logDirView struct {
	Broker   int32         `json:"broker"`
	Dir      string        `json:"dir"`
	State    string        `json:"state"`
	Total    int64         `json:"totalBytes"`
	Usable   int64         `json:"usableBytes"`
	Size     int64         `json:"sizeBytes"`
	Replicas []replicaView `json:"replicas"`
}

type replicaView struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Size      int64  `json:"sizeBytes"`
}

func newClusterLogDirs(e *env) *cobra.Command {
	var replicas bool
	cmd := &cobra.Command{
		Use:   "log-dirs",
		Short: "Show each broker's log directories, what is free on them and what they hold",
		Example: `  stele cluster log-dirs
  stele cluster log-dirs --replicas
  stele cluster log-dirs --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, d, err := e.connect(cmd.Flags())
			if err != nil {
				return err
			}
			defer client.Close()
			ctx, cancel := context.WithTimeout(cmd.Context(), requestTimeout)
			defer cancel()
			views, err := describeLogDirs(ctx, client)
			if err != nil {
				return d.explain(err)
			}
			return e.showLogDirs(views, replicas)
		},
	}
	cmd.Flags().BoolVar(&replicas, "replicas", false, "show every replica with its size")
	return cmd
}

func describeLogDirs(ctx context.Context, client *kgo.Client) ([]logDirView, error) {
	views := []logDirView{}
	for _, shard := range client.RequestSharded(ctx, kmsg.NewPtrDescribeLogDirsRequest()) {
		err := shard.Err
		resp, ok := shard.Resp.(*kmsg.DescribeLogDirsResponse)
		if err == nil && ok {
			err = kerr.ErrorForCode(resp.ErrorCode)
		}
		if err != nil {
			return nil, failed(fmt.Sprintf("show the log directories of broker %d", shard.Meta.NodeID), err)
		}
		for _, dir := range resp.Dirs {
			views = append(views, newLogDirView(shard.Meta.NodeID, &dir))
		}
	}
	slices.SortStableFunc(views, func(a, b logDirView) int { return int(a.Broker) - int(b.Broker) })
	return views, nil
}

func newLogDirView(broker int32, dir *kmsg.DescribeLogDirsResponseDir) logDirView {
	view := logDirView{Broker: broker, Dir: dir.Dir, State: "online", Total: dir.TotalBytes, Usable: dir.UsableBytes, Replicas: []replicaView{}}
	switch err := kerr.ErrorForCode(dir.ErrorCode); {
	case err == kerr.KafkaStorageError:
		view.State = "offline"
	case err != nil:
		view.State = err.Error()
	case dir.IsCordoned:
		view.State = "cordoned"
	}
	for _, topic := range dir.Topics {
		for _, p := range topic.Partitions {
			view.Size += p.Size
			view.Replicas = append(view.Replicas, replicaView{topic.Topic, p.Partition, p.Size})
		}
	}
	return view
}

func (e *env) showLogDirs(views []logDirView, replicas bool) error {
	t := table{header: []string{"BROKER", "DIR", "STATE", "REPLICAS", "BYTES", "FREE", "VOLUME"}}
	if replicas {
		t.header = []string{"BROKER", "DIR", "TOPIC", "PARTITION", "BYTES"}
	}
	for _, v := range views {
		if !replicas {
			t.add(v.Broker, v.Dir, v.State, len(v.Replicas), v.Size, orDash(v.Usable), orDash(v.Total))
		}
		for _, r := range v.Replicas {
			if replicas {
				t.add(v.Broker, v.Dir, r.Topic, r.Partition, r.Size)
			}
		}
	}
	return e.show(views, t)
}
