package server

import (
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/replica"
	"github.com/stelelog/stele/internal/security"
)

// listOffsets looks up offsets by time, and special ones.
//
// v2 isolation level. v4 leader epochs. v5 may answer OFFSET_NOT_AVAILABLE, which is
// LEADER_NOT_AVAILABLE before. v6 flexible. v7, v8, v9, v11 add special timestamps.
func (a *brokerAPI) listOffsets(r *Request, req *kmsg.ListOffsetsRequest) *kmsg.ListOffsetsResponse {
	query := replica.ListOffsetsRequest{ReplicaID: req.ReplicaID, Isolation: replica.Isolation(req.IsolationLevel), Version: req.Version}
	allowed := make([]bool, len(req.Topics))
	for i := range req.Topics {
		topic := &req.Topics[i]
		if allowed[i] = r.mayTopic(security.Describe, topic.Topic); !allowed[i] {
			continue
		}
		for k := range topic.Partitions {
			p := &topic.Partitions[k]
			query.Partitions = append(query.Partitions, replica.ListOffsetsPartition{
				Topic: topic.Topic, Partition: p.Partition, CurrentLeaderEpoch: p.CurrentLeaderEpoch, Timestamp: p.Timestamp,
			})
		}
	}
	listed := a.Replicas.ListOffsets(query)

	resp := req.ResponseKind().(*kmsg.ListOffsetsResponse)
	for i := range req.Topics {
		topic := &req.Topics[i]
		out := kmsg.NewListOffsetsResponseTopic()
		out.Topic = topic.Topic
		for k := range topic.Partitions {
			p := kmsg.NewListOffsetsResponseTopicPartition()
			p.Partition, p.Timestamp, p.Offset, p.LeaderEpoch = topic.Partitions[k].Partition, -1, -1, -1
			if !allowed[i] {
				p.ErrorCode = kerr.TopicAuthorizationFailed.Code
			} else {
				found := listed[0]
				listed = listed[1:]
				p.Timestamp, p.Offset, p.LeaderEpoch = found.Timestamp, found.Offset, found.Epoch
				p.ErrorCode = errorCode(found.Err)
				if p.ErrorCode == kerr.OffsetNotAvailable.Code && req.Version < 5 {
					p.ErrorCode = kerr.LeaderNotAvailable.Code
				}
			}
			out.Partitions = append(out.Partitions, p)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

// offsetForLeaderEpoch says where an epoch ends in the leader's log (KIP-101,
// KIP-320). Whoever may act for the cluster, or describe the topic, may ask.
func (a *brokerAPI) offsetForLeaderEpoch(r *Request, req *kmsg.OffsetForLeaderEpochRequest) *kmsg.OffsetForLeaderEpochResponse {
	clusterAllowed := r.mayCluster(security.ClusterAction)
	allowed := make([]bool, len(req.Topics))
	var queries []replica.EpochQuery
	for i := range req.Topics {
		topic := &req.Topics[i]
		if allowed[i] = clusterAllowed || r.mayTopic(security.Describe, topic.Topic); !allowed[i] {
			continue
		}
		for k := range topic.Partitions {
			p := &topic.Partitions[k]
			queries = append(queries, replica.EpochQuery{
				Topic: topic.Topic, Partition: p.Partition, CurrentLeaderEpoch: p.CurrentLeaderEpoch, LeaderEpoch: p.LeaderEpoch,
			})
		}
	}
	ends := a.Replicas.OffsetForLeaderEpoch(queries)

	resp := req.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
	for i := range req.Topics {
		topic := &req.Topics[i]
		out := kmsg.NewOffsetForLeaderEpochResponseTopic()
		out.Topic = topic.Topic
		for k := range topic.Partitions {
			p := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
			p.Partition, p.LeaderEpoch, p.EndOffset = topic.Partitions[k].Partition, -1, -1
			if !allowed[i] {
				p.ErrorCode = kerr.TopicAuthorizationFailed.Code
			} else {
				end := ends[0]
				ends = ends[1:]
				p.LeaderEpoch, p.EndOffset, p.ErrorCode = end.Epoch, end.Offset, errorCode(end.Err)
			}
			out.Partitions = append(out.Partitions, p)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

// deleteRecords raises log starts; -1 stands for the high watermark.
func (a *brokerAPI) deleteRecords(r *Request, req *kmsg.DeleteRecordsRequest) *kmsg.DeleteRecordsResponse {
	image := a.image()
	refused := func(topic string, partition int32) error {
		switch _, known := image.Partition(topic, partition); {
		case !r.mayTopic(security.Delete, topic):
			return kerr.TopicAuthorizationFailed
		case !known:
			return kerr.UnknownTopicOrPartition
		case internalTopics[topic]:
			return kerr.InvalidTopicException
		}
		return nil
	}
	var wanted []replica.DeleteRecordsPartition
	var refusals []error // of every partition, nil for those that are wanted
	for i := range req.Topics {
		for _, p := range req.Topics[i].Partitions {
			err := refused(req.Topics[i].Topic, p.Partition)
			if err == nil {
				wanted = append(wanted, replica.DeleteRecordsPartition{Topic: req.Topics[i].Topic, Partition: p.Partition, Offset: p.Offset})
			}
			refusals = append(refusals, err)
		}
	}
	deleted := a.Replicas.DeleteRecords(r.Context(), time.Duration(req.TimeoutMillis)*time.Millisecond, wanted)
	resp := req.ResponseKind().(*kmsg.DeleteRecordsResponse)
	for i := range req.Topics {
		out := kmsg.NewDeleteRecordsResponseTopic()
		out.Topic = req.Topics[i].Topic
		for _, asked := range req.Topics[i].Partitions {
			p := kmsg.NewDeleteRecordsResponseTopicPartition()
			p.Partition, p.LowWatermark = asked.Partition, -1
			if err := refusals[0]; err != nil {
				p.ErrorCode = errorCode(err)
			} else {
				p.LowWatermark, p.ErrorCode = deleted[0].LowWatermark, errorCode(deleted[0].Err)
				deleted = deleted[1:]
			}
			refusals = refusals[1:]
			out.Partitions = append(out.Partitions, p)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}
