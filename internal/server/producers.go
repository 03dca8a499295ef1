package server

import (
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/security"
)

// describeProducers tells what partitions know of their producers: all they remember,
// idle ones and plain idempotent ones too. Any replica may be asked (KIP-664).
func (a *brokerAPI) describeProducers(r *Request, req *kmsg.DescribeProducersRequest) *kmsg.DescribeProducersResponse {
	image := a.image()
	resp := req.ResponseKind().(*kmsg.DescribeProducersResponse)
	for i := range req.Topics {
		asked := &req.Topics[i]
		var topicErr error
		switch _, known := image.Topic(asked.Topic); {
		case !legalTopicName(asked.Topic):
			topicErr = kerr.InvalidTopicException
		case !r.mayTopic(security.Read, asked.Topic):
			topicErr = kerr.TopicAuthorizationFailed
		case !known:
			topicErr = kerr.UnknownTopicOrPartition
		}
		topic := kmsg.NewDescribeProducersResponseTopic()
		topic.Topic = asked.Topic
		topic.Partitions = make([]kmsg.DescribeProducersResponseTopicPartition, 0, len(asked.Partitions))
		for _, partition := range asked.Partitions {
			p := kmsg.NewDescribeProducersResponseTopicPartition()
			p.Partition = partition
			err := topicErr
			if err == nil {
				p.ActiveProducers, err = a.producersOf(asked.Topic, partition)
			}
			if err != nil {
				p.ErrorCode, p.ErrorMessage = errorCode(err), textOrNil(protocolError(err).Description)
			}
			topic.Partitions = append(topic.Partitions, p)
		}
		resp.Topics = append(resp.Topics, topic)
	}
	return resp
}

func (a *brokerAPI) producersOf(topic string, partition int32) ([]kmsg.DescribeProducersResponseTopicPartitionActiveProducer, error) {
	hosted, err := a.Replicas.Partition(topic, partition)
	if err != nil {
		return nil, err
	}
	states, err := hosted.ProducerStates()
	if err != nil {
		return nil, err
	}
	out := make([]kmsg.DescribeProducersResponseTopicPartitionActiveProducer, 0, len(states))
	for _, s := range states {
		p := kmsg.NewDescribeProducersResponseTopicPartitionActiveProducer()
		p.ProducerID, p.ProducerEpoch, p.LastSequence, p.LastTimestamp = s.ProducerID, int32(s.ProducerEpoch), s.LastSequence, s.LastTimestamp
		p.CoordinatorEpoch, p.CurrentTxnStartOffset = s.CoordinatorEpoch, s.TxnStartOffset
		out = append(out, p)
	}
	return out, nil
}
