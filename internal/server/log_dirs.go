package server

import (
	"encoding/json"
	"path/filepath"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/replica"
	"github.com/stelelog/stele/internal/security"
)

// describeLogDirs lists this broker's log directories with the replicas in them: all of them, or of those that are
// asked for the ones that are here. A directory that has failed is listed with an error and no replicas.
//
// v3 a top-level error. v4 the bytes of the volume. v5 whether the directory takes new replicas. A directory that fills
// says so in a tagged field of Stele's own, from v2 on, which other clients skip.
func (a *brokerAPI) describeLogDirs(r *Request, req *kmsg.DescribeLogDirsRequest) *kmsg.DescribeLogDirsResponse {
	resp := req.ResponseKind().(*kmsg.DescribeLogDirsResponse)
	if !r.mayCluster(security.Describe) {
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp
	}
	type replicaName struct {
		topic     string
		partition int32
	}
	wanted := map[replicaName]bool{}
	for _, topic := range req.Topics {
		for _, p := range topic.Partitions {
			wanted[replicaName{topic.Topic, p}] = true
		}
	}
	for _, dir := range a.Replicas.DescribeLogDirs() {
		out := kmsg.NewDescribeLogDirsResponseDir()
		out.ErrorCode, out.Dir = errorCode(dir.Err), absolute(dir.Path)
		out.TotalBytes, out.UsableBytes = dir.Total, dir.Usable
		out.IsCordoned = dir.Cordoned
		if room := newLogDirRoom(dir); room != nil {
			if value, err := json.Marshal(room); err == nil {
				out.UnknownTags.Set(LogDirRoomTag, value)
			}
		}
		for _, found := range dir.Replicas {
			if req.Topics == nil || wanted[replicaName{found.Topic, found.Partition}] {
				addReplica(&out, found)
			}
		}
		resp.Dirs = append(resp.Dirs, out)
	}
	return resp
}

// alterReplicaLogDirs makes replicas of this broker move to other log directories: their copies are made in the background,
// and DescribeLogDirs shows how far they are.
func (a *brokerAPI) alterReplicaLogDirs(r *Request, req *kmsg.AlterReplicaLogDirsRequest) *kmsg.AlterReplicaLogDirsResponse {
	resp := req.ResponseKind().(*kmsg.AlterReplicaLogDirsResponse)
	allowed := r.mayCluster(security.Alter)
	at := map[string]int{}
	for _, dir := range req.Dirs {
		path := dir.Dir
		for _, known := range a.Replicas.LogDirs() {
			if SameDirectory(known, path) {
				path = known
			}
		}
		for _, topic := range dir.Topics {
			i, known := at[topic.Topic]
			if !known {
				i = len(resp.Topics)
				at[topic.Topic] = i
				out := kmsg.NewAlterReplicaLogDirsResponseTopic()
				out.Topic = topic.Topic
				resp.Topics = append(resp.Topics, out)
			}
			for _, partition := range topic.Partitions {
				p := kmsg.NewAlterReplicaLogDirsResponseTopicPartition()
				p.Partition = partition
				switch {
				case !allowed:
					p.ErrorCode = kerr.ClusterAuthorizationFailed.Code
				case !filepath.IsAbs(dir.Dir):
					p.ErrorCode = kerr.LogDirNotFound.Code
				default:
					p.ErrorCode = errorCode(a.Replicas.MoveReplica(topic.Topic, partition, path))
				}
				resp.Topics[i].Partitions = append(resp.Topics[i].Partitions, p)
			}
		}
	}
	return resp
}

// LogDirRoomTag is the tagged field in which a directory of a DescribeLogDirs answer has a LogDirRoom, as JSON.
const LogDirRoomTag = 21332

// LogDirRoom says how near to full a log directory's volume is.
type LogDirRoom struct {
	Level       string `json:"level"` // log.RoomLevel's word
	SoftLimit   int64  `json:"softLimitBytes"`
	Reserve     int64  `json:"reserveBytes"`
	BytesPerSec int64  `json:"bytesPerSecond"` // that it loses; 0 also while that is not known
	SecondsLeft *int64 `json:"secondsLeft,omitempty"`
	// Growing are the topics that grow fastest there, fastest first.
	Growing []TopicGrowth `json:"growing,omitempty"`
}

// TopicGrowth is how fast a topic grows in a log directory.
type TopicGrowth struct {
	Topic       string `json:"topic"`
	BytesPerSec int64  `json:"bytesPerSecond"`
}

// newLogDirRoom is nil when there is nothing to tell.
func newLogDirRoom(dir replica.LogDirDescription) *LogDirRoom {
	r := dir.Room
	if r == nil || r.Level == log.RoomPlenty && !r.HasTimeLeft {
		return nil
	}
	out := &LogDirRoom{Level: r.Level.String(), SoftLimit: r.Limits.Soft, Reserve: r.Limits.Reserve, BytesPerSec: int64(r.Pace)}
	if r.HasTimeLeft {
		out.SecondsLeft = new(int64(r.TimeLeft.Seconds()))
	}
	for _, g := range dir.Growing {
		out.Growing = append(out.Growing, TopicGrowth{g.Topic, int64(g.BytesPerSecond)})
	}
	return out
}

// absolute is the path of a directory as the rest of the machine knows it: log.dirs may be relative to where the node
// was started.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// SameDirectory says whether two paths name one directory, of which one may be relative.
func SameDirectory(a, b string) bool { return absolute(a) == absolute(b) }

// addReplica puts a replica under its topic; replicas come in the order of their topics.
func addReplica(dir *kmsg.DescribeLogDirsResponseDir, found replica.ReplicaDescription) {
	if n := len(dir.Topics); n == 0 || dir.Topics[n-1].Topic != found.Topic {
		topic := kmsg.NewDescribeLogDirsResponseDirTopic()
		topic.Topic = found.Topic
		dir.Topics = append(dir.Topics, topic)
	}
	p := kmsg.NewDescribeLogDirsResponseDirTopicPartition()
	p.Partition, p.Size, p.OffsetLag, p.IsFuture = found.Partition, found.Size, found.OffsetLag, found.IsFuture
	topic := &dir.Topics[len(dir.Topics)-1]
	topic.Partitions = append(topic.Partitions, p)
}
