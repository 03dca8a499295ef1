package server

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/replica"
	"github.com/stelelog/stele/internal/security"
)

// adminClientID is the client id whose writes to internal topics are let through,
// as Kafka does for its own tools.
const adminClientID = "__admin_client"

// produceSlot ties one partition of a Produce request to where its result is.
type produceSlot struct {
	topic     string // "" when its id is unknown
	partition int32
	err       error
	pending   int // index among the partitions handed to replicas, -1 when refused before
}

// handleProduce appends the batches of one Produce request in order, and returns at
// once; the answer leaves when the acknowledgements are in. Only the first batch of a
// transaction in a partition waits, for the transaction's coordinator: the requests
// behind it, which may be of the same transaction, must not overtake it.
//
// v3 first with record batches v2. v7 zstd. v8 errors per record. v9 flexible.
// v10 names the new leader and its address (KIP-951). v12 KIP-890. v13 topic ids.
func (a *brokerAPI) handleProduce(r *Request) Response {
	req := r.Produce
	slots, partitions := a.admitProduce(r, req)
	appends := replica.ProduceRequest{
		Acks: req.Acks, Timeout: time.Duration(req.TimeoutMillis) * time.Millisecond, Origin: log.OriginClient,
		Version: req.Version, Partitions: partitions,
	}
	if req.TransactionID != nil {
		if err := a.admitTransaction(r, &appends, *req.TransactionID); err != nil {
			for i := range slots {
				slots[i].err, slots[i].pending = err, -1
			}
			appends.Partitions = nil
		}
	}
	delayed := a.Replicas.Produce(appends)
	r.ReleaseBody()
	return Later(delayed.Done(), func() Response {
		resp := a.produceResponse(r, req, slots, delayed.Results())
		throttle := delayed.Throttle().Truncate(time.Millisecond)
		resp.ThrottleMillis = int32(throttle / time.Millisecond)
		switch {
		case req.Acks != 0:
			return Reply(resp).Muting(throttle)
		case produceFailed(resp):
			return CloseConnection(errUnacknowledged)
		}
		return NoReply().Muting(throttle)
	})
}

// errUnacknowledged: a producer that wants no answers learns of an error by the end
// of its connection.
var errUnacknowledged = errors.New("a produce with acks=0 failed")

// admitProduce makes the checks that need no log, each in its place: a later one is
// never reported where an earlier one fails.
func (a *brokerAPI) admitProduce(r *Request, req *kmsg.ProduceRequest) ([]produceSlot, []replica.ProducePartition) {
	image := a.image()
	var slots []produceSlot
	var partitions []replica.ProducePartition
	refusedID := a.refusesTransaction(r, req)
	for i := range req.Topics {
		topic := &req.Topics[i]
		name, topicErr := topic.Topic, error(nil)
		if req.Version >= 13 {
			if found, ok := image.TopicByID(topic.TopicID); ok {
				name = found.Name
			} else {
				name, topicErr = "", kerr.UnknownTopicID
			}
		}
		switch {
		case refusedID:
			topicErr = kerr.TransactionalIDAuthorizationFailed
		case topicErr == nil && !r.mayTopic(security.Write, name):
			topicErr = kerr.TopicAuthorizationFailed
		}
		for k := range topic.Partitions {
			p := &topic.Partitions[k]
			slot := produceSlot{topic: name, partition: p.Partition, err: topicErr, pending: -1}
			if slot.err == nil {
				slot.err = a.admitPartition(r, req, name, p)
			}
			if slot.err == nil {
				slot.pending = len(partitions)
				partitions = append(partitions, replica.ProducePartition{Topic: name, TopicID: topic.TopicID, Partition: p.Partition, Records: p.Records})
			}
			slots = append(slots, slot)
		}
	}
	return slots, partitions
}

// refusesTransaction says whether the request writes in a transaction that is not its
// to write in: whoever sends transactional records must name a transactional id.
// Markers are left to the check of the batch, which refuses them of every client.
func (a *brokerAPI) refusesTransaction(r *Request, req *kmsg.ProduceRequest) bool {
	for i := range req.Topics {
		for k := range req.Topics[i].Partitions {
			batch, err := record.SplitProduce(req.Topics[i].Partitions[k].Records)
			if err == nil && batch.IsTransactional() && !batch.IsControl() {
				return req.TransactionID == nil || !r.Authorize(security.Write, security.Resource{Type: security.TransactionalID, Name: *req.TransactionID})
			}
		}
	}
	return false
}

// admitTransaction has the transaction's coordinator asked about transactional batches.
func (a *brokerAPI) admitTransaction(r *Request, appends *replica.ProduceRequest, transactionalID string) error {
	ctx, cancel := context.WithTimeout(r.Context(), a.Config.Duration("request.timeout.ms"))
	defer cancel()
	return a.Replicas.AdmitTransaction(ctx, appends, transactionalID)
}

func (a *brokerAPI) admitPartition(r *Request, req *kmsg.ProduceRequest, topic string, p *kmsg.ProduceRequestTopicPartition) error {
	if _, ok := a.image().Partition(topic, p.Partition); !ok {
		return kerr.UnknownTopicOrPartition
	}
	batch, err := record.SplitProduce(p.Records)
	switch {
	case err != nil:
		return err
	case batch.Codec() == record.Zstd && req.Version < 7:
		return kerr.UnsupportedCompressionType
	case req.Acks < -1 || req.Acks > 1:
		return kerr.InvalidRequiredAcks
	case internalTopics[topic] && r.ClientID != adminClientID:
		return kerr.InvalidTopicException
	}
	return nil
}

func (a *brokerAPI) produceResponse(r *Request, req *kmsg.ProduceRequest, slots []produceSlot, results []replica.ProduceResult) *kmsg.ProduceResponse {
	resp := req.ResponseKind().(*kmsg.ProduceResponse)
	endpoints := leaderEndpoints{image: a.image(), listener: r.Listener}
	next := 0
	for i := range req.Topics {
		topic := &req.Topics[i]
		out := kmsg.NewProduceResponseTopic()
		out.Topic, out.TopicID = topic.Topic, topic.TopicID
		out.Partitions = make([]kmsg.ProduceResponseTopicPartition, 0, len(topic.Partitions))
		for range topic.Partitions {
			slot := &slots[next]
			next++
			p := kmsg.NewProduceResponseTopicPartition()
			p.Partition, p.BaseOffset, p.LogAppendTime, p.LogStartOffset = slot.partition, -1, -1, -1
			err := slot.err
			if slot.pending >= 0 {
				result := &results[slot.pending]
				p.BaseOffset, p.LogAppendTime, p.LogStartOffset, err = result.BaseOffset, result.LogAppendTime, result.LogStartOffset, result.Err
			}
			if err != nil {
				describeProduceError(&p, err)
				p.ErrorCode = storageErrorBefore(4, req.Version, p.ErrorCode)
				p.ErrorCode = transactionErrorBefore(req.Version, p.ErrorCode)
				if p.LogStartOffset < 0 && !(slot.pending >= 0 && results[slot.pending].Refused) {
					p.LogStartOffset = a.logStartBeside(p.ErrorCode, slot)
				}
				var elsewhere *replica.NotLeaderOrFollowerError
				if errors.As(err, &elsewhere) && req.Version >= 10 {
					p.CurrentLeader.LeaderID, p.CurrentLeader.LeaderEpoch = elsewhere.Current.Leader, elsewhere.Current.Epoch
					endpoints.add(elsewhere.Current.Leader)
				}
			}
			out.Partitions = append(out.Partitions, p)
		}
		resp.Topics = append(resp.Topics, out)
	}
	if req.Version >= 10 {
		for _, node := range endpoints.found {
			b := kmsg.NewProduceResponseBroker()
			b.NodeID, b.Host, b.Port, b.Rack = node.NodeID, node.Host, node.Port, node.Rack
			resp.Brokers = append(resp.Brokers, b)
		}
	}
	return resp
}

// logStartBeside is the log start that goes with a refused batch: that of the log which
// looked into it, -1 where none did or what it found says nothing of the log.
func (a *brokerAPI) logStartBeside(code int16, slot *produceSlot) int64 {
	if slot.pending < 0 {
		return -1
	}
	switch code {
	case kerr.UnknownTopicOrPartition.Code, kerr.UnknownTopicID.Code, kerr.NotLeaderForPartition.Code, kerr.KafkaStorageError.Code,
		kerr.CorruptMessage.Code, kerr.MessageTooLarge.Code, kerr.RecordListTooLarge.Code:
		return -1
	}
	hosted, err := a.Replicas.Partition(slot.topic, slot.partition)
	if err != nil {
		return -1
	}
	return hosted.Positions().LogStart
}

// describeProduceError puts an error and what is known of the records at fault.
func describeProduceError(p *kmsg.ProduceResponseTopicPartition, err error) {
	p.ErrorCode = errorCode(err)
	var invalid *record.InvalidRecordError
	var timestamp *record.InvalidTimestampError
	var records []record.RecordError
	switch {
	case errors.As(err, &timestamp):
		records = timestamp.Records
	case errors.As(err, &invalid):
		records = invalid.Records
	}
	for _, bad := range records {
		e := kmsg.NewProduceResponseTopicPartitionErrorRecord()
		e.RelativeOffset, e.ErrorMessage = bad.Index, textOrNil(bad.Message)
		p.ErrorRecords = append(p.ErrorRecords, e)
	}
	var protocol *kerr.Error
	if !errors.As(err, &protocol) {
		message := err.Error()
		p.ErrorMessage = &message
	}
}

// produceFailed says whether any partition of an answer has an error: with acks=0
// there is no answer, and the connection is closed instead.
func produceFailed(resp *kmsg.ProduceResponse) bool {
	for i := range resp.Topics {
		for k := range resp.Topics[i].Partitions {
			if resp.Topics[i].Partitions[k].ErrorCode != 0 {
				return true
			}
		}
	}
	return false
}

// initProducerID hands out a producer id to an idempotent producer.
//
// v2 flexible. v3 a producer that knows its id asks for a new epoch (KIP-360): that
// is for transactional producers, and one without a transactional id gets a new id.
func (a *brokerAPI) initProducerID(r *Request, req *kmsg.InitProducerIDRequest) *kmsg.InitProducerIDResponse {
	resp := req.ResponseKind().(*kmsg.InitProducerIDResponse)
	resp.ProducerID, resp.ProducerEpoch = -1, -1
	if req.TransactionalID != nil {
		return a.initTransactional(r, req)
	}
	if !r.mayCluster(security.IdempotentWrite) && !a.mayWriteSomeTopic(r) {
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp
	}
	if (req.ProducerID == -1) != (req.ProducerEpoch == -1) {
		resp.ErrorCode = kerr.InvalidRequest.Code
		return resp
	}
	ctx, cancel := context.WithTimeout(r.Context(), 30*time.Second)
	defer cancel()
	id, err := a.Broker.NextProducerID(ctx)
	if err != nil {
		resp.ErrorCode = kerr.CoordinatorLoadInProgress.Code // retriable: the controller did not answer in time
		return resp
	}
	resp.ProducerID, resp.ProducerEpoch = id, 0
	return resp
}

// mayWriteSomeTopic: whoever may write some topic may be an idempotent producer
// (KIP-679).
func (a *brokerAPI) mayWriteSomeTopic(r *Request) bool {
	for name := range a.image().Topics().All() {
		if r.mayTopic(security.Write, name) {
			return true
		}
	}
	return false
}
