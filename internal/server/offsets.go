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
	for i := range req.Topics {
		topic := &req.Topics[i]
		if !r.mayTopic(security.Describe, topic.Topic) {
			continue
		}
		for k := range topic.Partitions {
			p := &topic.Partitions[k]
			epoch := p.CurrentLeaderEpoch
			if req.Version < 4 {
				epoch = -1
			}
			query.Partitions = append(query.Partitions, replica.ListOffsetsPartition{
				Topic: topic.Topic, Partition: p.Partition, CurrentLeaderEpoch: epoch, Timestamp: p.Timestamp,
			})
		}
	}
	listed := a.Replicas.ListOffsets(query)

	resp := req.ResponseKind().(*kmsg.ListOffsetsResponse)
	for i := range req.Topics {
		topic := &req.Topics[i]
		allowed := r.mayTopic(security.Describe, topic.Topic)
		out := kmsg.NewListOffsetsResponseTopic()
		out.Topic = topic.Topic
		for k := range topic.Partitions {
			p := kmsg.NewListOffsetsResponseTopicPartition()
			p.Partition, p.Timestamp, p.Offset, p.LeaderEpoch = topic.Partitions[k].Partition, -1, -1, -1
			if !allowed {
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
	resp := req.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
	for i := range req.Topics {
		topic := &req.Topics[i]
		allowed := clusterAllowed || r.mayTopic(security.Describe, topic.Topic)
		out := kmsg.NewOffsetForLeaderEpochResponseTopic()
		out.Topic = topic.Topic
		for k := range topic.Partitions {
			asked := &topic.Partitions[k]
			p := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
			p.Partition, p.LeaderEpoch, p.EndOffset = asked.Partition, -1, -1
			if !allowed {
				p.ErrorCode = kerr.TopicAuthorizationFailed.Code
			} else if hosted, err := a.Replicas.Partition(topic.Topic, asked.Partition); err != nil {
				p.ErrorCode = errorCode(err)
			} else if end, err := hosted.OffsetForLeaderEpoch(asked.CurrentLeaderEpoch, asked.LeaderEpoch); err != nil {
				p.ErrorCode = errorCode(err)
			} else {
				p.LeaderEpoch, p.EndOffset = end.Epoch, end.Offset
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
	for i := range req.Topics {
		for _, p := range req.Topics[i].Partitions {
			if refused(req.Topics[i].Topic, p.Partition) == nil {
				wanted = append(wanted, replica.DeleteRecordsPartition{Topic: req.Topics[i].Topic, Partition: p.Partition, Offset: p.Offset})
			}
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
			if err := refused(out.Topic, asked.Partition); err != nil {
				p.ErrorCode = errorCode(err)
			} else {
				p.LowWatermark, p.ErrorCode = deleted[0].LowWatermark, errorCode(deleted[0].Err)
				deleted = deleted[1:]
			}
			out.Partitions = append(out.Partitions, p)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}
