package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/server"
)

// logDirView is one log directory of one broker. Bytes are -1 when they are not known.
type logDirView struct {
	Broker int32  `json:"broker"`
	Dir    string `json:"dir"`
	State  string `json:"state"`
	Total  int64  `json:"totalBytes"`
	Usable int64  `json:"usableBytes"`
	Size   int64  `json:"sizeBytes"`
	// Room is there when the volume fills, or is as good as full.
	Room     *server.LogDirRoom `json:"room,omitempty"`
	Replicas []replicaView      `json:"replicas"`
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

// volumes are the log directories of all brokers, without their replicas; none when the caller may not see them.
func volumes(ctx context.Context, client *kgo.Client, brokers []brokerView) ([]logDirView, error) {
	views, errs := volumesOfEach(ctx, client, brokers)
	return views, errors.Join(errs...)
}

// volumesOfEach asks all brokers at a time: one that does not answer keeps back its own directories only.
func volumesOfEach(ctx context.Context, client *kgo.Client, brokers []brokerView) ([]logDirView, []error) {
	found, wrong := make([][]logDirView, len(brokers)), make([]error, len(brokers))
	var asked sync.WaitGroup
	for i, b := range brokers {
		if b.Fenced {
			continue
		}
		asked.Go(func() {
			req := kmsg.NewPtrDescribeLogDirsRequest()
			req.Topics = []kmsg.DescribeLogDirsRequestTopic{}
			answer, err := client.Broker(int(b.Broker)).Request(ctx, req)
			resp, ok := answer.(*kmsg.DescribeLogDirsResponse)
			if err == nil && ok {
				err = kerr.ErrorForCode(resp.ErrorCode)
			}
			switch {
			case errors.Is(err, kerr.ClusterAuthorizationFailed):
				return
			case err != nil:
				wrong[i] = failed(fmt.Sprintf("show the log directories of broker %d", b.Broker), err)
				return
			}
			for _, dir := range resp.Dirs {
				found[i] = append(found[i], newLogDirView(b.Broker, &dir))
			}
		})
	}
	asked.Wait()
	return append([]logDirView{}, slices.Concat(found...)...), slices.DeleteFunc(wrong, func(err error) bool { return err == nil })
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
	dir.UnknownTags.Each(func(tag uint32, value []byte) {
		var room server.LogDirRoom
		if tag == server.LogDirRoomTag && json.Unmarshal(value, &room) == nil {
			view.Room = &room
		}
	})
	for _, topic := range dir.Topics {
		for _, p := range topic.Partitions {
			view.Size += p.Size
			view.Replicas = append(view.Replicas, replicaView{topic.Topic, p.Partition, p.Size})
		}
	}
	return view
}

// disks shows a person the volumes: how full they are, and of those that fill, when they will be and what fills them.
func disks(views []logDirView) table {
	t := table{header: []string{"BROKER", "DIR", "STATE", "FREE", "VOLUME", "ROOM", "FULL IN", "GROWING"}}
	for _, v := range views {
		room, left, growing := "plenty", "-", "-"
		if v.State == "offline" {
			room = "-"
		}
		if r := v.Room; r != nil {
			room = r.Level
			if r.SecondsLeft != nil && *r.SecondsLeft == 0 {
				left = "now"
			} else if r.SecondsLeft != nil {
				left = (time.Duration(*r.SecondsLeft) * time.Second).String()
			}
			var names []string
			for _, g := range r.Growing {
				names = append(names, fmt.Sprintf("%s %s/s", g.Topic, bytesOf(g.BytesPerSec)))
			}
			if len(names) > 0 {
				growing = strings.Join(names, ", ")
			}
		}
		t.add(v.Broker, v.Dir, v.State, bytesOf(v.Usable), bytesOf(v.Total), room, left, growing)
	}
	return t
}

// bytesOf is a number of bytes for people to read; "-" when it is not known.
func bytesOf(n int64) string {
	if n < 0 {
		return "-"
	}
	value, unit := float64(n), 0
	for units := len(" kMGTP"); value >= 1000 && unit < units-1; unit++ {
		value /= 1000
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %cB", value, " kMGTP"[unit])
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
