package server

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/broker"
	"github.com/stelelog/stele/internal/coordinator"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/replica"
	"github.com/stelelog/stele/internal/security"
	"github.com/stelelog/stele/internal/txn"
)

// The first versions whose clients have an epoch for each transaction (KIP-890).
const (
	addPartitionsByBrokers = 4 // AddPartitionsToTxn, of brokers on behalf of such clients
	endTxnV2               = 5
)

// mayTransact asks whether the request's principal may do op on a transactional id.
func (r *Request) mayTransact(op security.Operation, id string) bool {
	return r.Authorize(op, security.Resource{Type: security.TransactionalID, Name: id})
}

// client is who sends the request, for people who look for the owner of a transaction.
func (r *Request) client() txn.Client {
	return txn.Client{ID: r.ClientID, Host: hostText(r.ClientAddr)}
}

// fencedBefore is the code of err, in which clients below version known do not know PRODUCER_FENCED.
func fencedBefore(known, version int16, err error) int16 {
	code := errorCode(err)
	if code == kerr.ProducerFenced.Code && version < known {
		return kerr.InvalidProducerEpoch.Code
	}
	return code
}

// transactionErrorBefore is what Produce answers to clients that do not know of what a
// coordinator said.
func transactionErrorBefore(version int16, code int16) int16 {
	switch {
	case code == kerr.TransactionAbortable.Code && version < 11:
		return kerr.InvalidTxnState.Code
	case code == kerr.ConcurrentTransactions.Code && version < 12:
		return kerr.NotEnoughReplicas.Code
	}
	return code
}

// initTransactional gives a transactional producer its id and epoch, and fences the one before.
//
// v3 a producer that knows its id asks for a new epoch (KIP-360). v4 PRODUCER_FENCED.
func (a *brokerAPI) initTransactional(r *Request, req *kmsg.InitProducerIDRequest) *kmsg.InitProducerIDResponse {
	resp := req.ResponseKind().(*kmsg.InitProducerIDResponse)
	resp.ProducerID, resp.ProducerEpoch = -1, -1
	if !r.mayTransact(security.Write, *req.TransactionalID) {
		resp.ErrorCode = kerr.TransactionalIDAuthorizationFailed.Code
		return resp
	}
	ctx, cancel := context.WithTimeout(r.Context(), a.Config.Duration("request.timeout.ms"))
	defer cancel()
	reply, err := a.Txns.InitProducerID(ctx, txn.InitRequest{
		ID: *req.TransactionalID, TimeoutMs: req.TransactionTimeoutMillis, ProducerID: req.ProducerID, ProducerEpoch: req.ProducerEpoch, Client: r.client(),
	})
	if err == nil {
		err = reply.Err
	}
	if err != nil {
		resp.ErrorCode = fencedBefore(4, req.Version, unanswered(err))
		return resp
	}
	resp.ProducerID, resp.ProducerEpoch = reply.ProducerID, reply.ProducerEpoch
	return resp
}

// unanswered is err, or if that is the end of a wait, that the coordinator is not available.
func unanswered(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return kerr.CoordinatorNotAvailable
	}
	return err
}

// addPartitionsToTxn makes partitions part of transactions.
//
// v2 PRODUCER_FENCED. v3 flexible. v4 several transactions, verification alone, for brokers (KIP-890).
func (a *brokerAPI) addPartitionsToTxn(r *Request, req *kmsg.AddPartitionsToTxnRequest) *kmsg.AddPartitionsToTxnResponse {
	resp := req.ResponseKind().(*kmsg.AddPartitionsToTxnResponse)
	if req.Version >= addPartitionsByBrokers {
		if !r.mayCluster(security.ClusterAction) {
			resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
			return resp
		}
		resp.Transactions = make([]kmsg.AddPartitionsToTxnResponseTransaction, len(req.Transactions))
		var answered sync.WaitGroup
		for i := range req.Transactions {
			t := &req.Transactions[i]
			topics := make([]kmsg.AddPartitionsToTxnRequestTopic, len(t.Topics))
			for k := range t.Topics {
				topics[k].Topic, topics[k].Partitions = t.Topics[k].Topic, t.Topics[k].Partitions
			}
			add := txn.AddRequest{ID: t.TransactionalID, ProducerID: t.ProducerID, ProducerEpoch: t.ProducerEpoch, Version: txn.Version2, VerifyOnly: t.VerifyOnly}
			answered.Go(func() {
				out := kmsg.NewAddPartitionsToTxnResponseTransaction()
				out.TransactionalID = add.ID
				for _, topic := range a.addToTransaction(r, req.Version, add, topics) {
					t := kmsg.NewAddPartitionsToTxnResponseTransactionTopic()
					t.Topic = topic.Topic
					for _, p := range topic.Partitions {
						one := kmsg.NewAddPartitionsToTxnResponseTransactionTopicPartition()
						one.Partition, one.ErrorCode = p.Partition, p.ErrorCode
						t.Partitions = append(t.Partitions, one)
					}
					out.Topics = append(out.Topics, t)
				}
				resp.Transactions[i] = out
			})
		}
		answered.Wait()
		return resp
	}
	add := txn.AddRequest{ID: req.TransactionalID, ProducerID: req.ProducerID, ProducerEpoch: req.ProducerEpoch, Version: txn.Version0, Client: r.client()}
	resp.Topics = a.addToTransaction(r, req.Version, add, req.Topics)
	return resp
}

// addToTransaction answers for one transaction. Nothing is added when anything is wrong with any of the partitions.
func (a *brokerAPI) addToTransaction(r *Request, version int16, add txn.AddRequest, topics []kmsg.AddPartitionsToTxnRequestTopic) []kmsg.AddPartitionsToTxnResponseTopic {
	client := version < addPartitionsByBrokers
	out := make([]kmsg.AddPartitionsToTxnResponseTopic, len(topics))
	each := func(code func(topic string, partition int32) int16) {
		for i := range topics {
			t := kmsg.NewAddPartitionsToTxnResponseTopic()
			t.Topic = topics[i].Topic
			for _, partition := range topics[i].Partitions {
				p := kmsg.NewAddPartitionsToTxnResponseTopicPartition()
				p.Partition, p.ErrorCode = partition, code(t.Topic, partition)
				t.Partitions = append(t.Partitions, p)
			}
			out[i] = t
		}
	}
	all := func(code int16) { each(func(string, int32) int16 { return code }) }
	if client && !r.mayTransact(security.Write, add.ID) {
		all(kerr.TransactionalIDAuthorizationFailed.Code)
		return out
	}
	image, bad := a.image(), false
	each(func(topic string, partition int32) int16 {
		add.Partitions = append(add.Partitions, txn.TopicPartition{Topic: topic, Partition: partition})
		err := a.mayAdd(r, image, client, topic, partition)
		if err == nil {
			return kerr.OperationNotAttempted.Code
		}
		bad = true
		return err.Code
	})
	if bad {
		return out
	}
	reply, err := a.Txns.AddPartitions(r.Context(), add)
	if err == nil {
		err = reply.Err
	}
	if err != nil {
		all(fencedBefore(2, version, unanswered(err)))
		return out
	}
	n := 0
	each(func(string, int32) int16 {
		n++
		if reply.Missing != nil && reply.Missing[n-1] {
			return kerr.TransactionAbortable.Code
		}
		return 0
	})
	return out
}

func (a *brokerAPI) mayAdd(r *Request, image *metadata.Image, client bool, topic string, partition int32) *kerr.Error {
	if client && (internalTopics[topic] || !r.mayTopic(security.Write, topic)) {
		return kerr.TopicAuthorizationFailed
	}
	if _, ok := image.Partition(topic, partition); !ok {
		return kerr.UnknownTopicOrPartition
	}
	return nil
}

// addOffsetsToTxn makes the offsets of a group part of a transaction.
//
// v2 PRODUCER_FENCED. v3 flexible.
func (a *brokerAPI) addOffsetsToTxn(r *Request, req *kmsg.AddOffsetsToTxnRequest) *kmsg.AddOffsetsToTxnResponse {
	resp := req.ResponseKind().(*kmsg.AddOffsetsToTxnResponse)
	if !r.mayTransact(security.Write, req.TransactionalID) {
		resp.ErrorCode = kerr.TransactionalIDAuthorizationFailed.Code
		return resp
	}
	if !r.mayGroup(security.Read, req.Group) {
		resp.ErrorCode = kerr.GroupAuthorizationFailed.Code
		return resp
	}
	partition, ok := a.Groups.PartitionFor(req.Group)
	if !ok {
		a.creating.internal(coordinator.GroupTopic)
		resp.ErrorCode = kerr.CoordinatorNotAvailable.Code
		return resp
	}
	reply, err := a.Txns.AddPartitions(r.Context(), txn.AddRequest{
		ID: req.TransactionalID, ProducerID: req.ProducerID, ProducerEpoch: req.ProducerEpoch, Version: txn.Version0,
		Partitions: []txn.TopicPartition{{Topic: coordinator.GroupTopic, Partition: partition}}, Client: r.client(),
	})
	if err == nil {
		err = reply.Err
	}
	resp.ErrorCode = fencedBefore(2, req.Version, unanswered(err))
	return resp
}

// endTxn commits or aborts a transaction.
//
// v2 PRODUCER_FENCED. v3 flexible. v5 a new epoch for the next transaction (KIP-890).
func (a *brokerAPI) endTxn(r *Request, req *kmsg.EndTxnRequest) *kmsg.EndTxnResponse {
	resp := req.ResponseKind().(*kmsg.EndTxnResponse)
	resp.ProducerID, resp.ProducerEpoch = -1, -1
	if !r.mayTransact(security.Write, req.TransactionalID) {
		resp.ErrorCode = kerr.TransactionalIDAuthorizationFailed.Code
		return resp
	}
	version := txn.Version0
	if req.Version >= endTxnV2 {
		version = txn.Version2
	}
	ctx, cancel := context.WithTimeout(r.Context(), a.Config.Duration("request.timeout.ms"))
	defer cancel()
	reply, err := a.Txns.EndTxn(ctx, txn.EndRequest{
		ID: req.TransactionalID, ProducerID: req.ProducerID, ProducerEpoch: req.ProducerEpoch, Commit: req.Commit, Version: version, Client: r.client(),
	})
	if err == nil {
		err = reply.Err
	}
	if err != nil {
		resp.ErrorCode = fencedBefore(2, req.Version, unanswered(err))
		return resp
	}
	if req.Version >= endTxnV2 {
		resp.ProducerID, resp.ProducerEpoch = reply.ProducerID, reply.ProducerEpoch
	}
	return resp
}

// txnOffsetsByID is the first version of TxnOffsetCommit that names topics by id.
const txnOffsetsByID = 6

// txnOffsetCommit stores offsets that become visible with the transaction.
//
// v2 leader epoch. v3 members of groups, flexible. v4 TRANSACTION_ABORTABLE. v5 the broker adds the
// offsets to the transaction (KIP-890). v6 topic ids.
func (a *brokerAPI) txnOffsetCommit(r *Request, req *kmsg.TxnOffsetCommitRequest) *kmsg.TxnOffsetCommitResponse {
	image := a.image()
	var whole error
	switch {
	case !r.mayTransact(security.Write, req.TransactionalID):
		whole = kerr.TransactionalIDAuthorizationFailed
	case !r.mayGroup(security.Read, req.Group):
		whole = kerr.GroupAuthorizationFailed
	}
	refused := make([][]error, len(req.Topics))
	admitted := *req
	admitted.Topics = nil
	for i := range req.Topics {
		topic := &req.Topics[i]
		refused[i] = make([]error, len(topic.Partitions))
		known, found := topicByIDOrName(image, req.Version >= txnOffsetsByID, topic.TopicID, topic.Topic)
		kept := kmsg.NewTxnOffsetCommitRequestTopic()
		if found {
			kept.Topic, kept.TopicID = known.Name, known.ID
		}
		for k := range topic.Partitions {
			err := whole
			if err == nil {
				err = a.admitOffset(r, req.Version >= txnOffsetsByID, topic.Topic, known, found, topic.Partitions[k].Partition)
			}
			if refused[i][k] = err; err == nil {
				kept.Partitions = append(kept.Partitions, topic.Partitions[k])
			}
		}
		if len(kept.Partitions) > 0 {
			admitted.Topics = append(admitted.Topics, kept)
		}
	}
	var results []error
	if len(admitted.Topics) > 0 {
		results = a.commitInTransaction(r, &admitted)
	}
	resp := req.ResponseKind().(*kmsg.TxnOffsetCommitResponse)
	for i := range req.Topics {
		out := kmsg.NewTxnOffsetCommitResponseTopic()
		out.Topic, out.TopicID = req.Topics[i].Topic, req.Topics[i].TopicID
		for k := range req.Topics[i].Partitions {
			p := kmsg.NewTxnOffsetCommitResponseTopicPartition()
			p.Partition = req.Topics[i].Partitions[k].Partition
			if err := refused[i][k]; err != nil {
				p.ErrorCode = errorCode(err)
			} else {
				p.ErrorCode = txnOffsetCode(req.Version, results[0])
				results = results[1:]
			}
			out.Partitions = append(out.Partitions, p)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

// commitInTransaction commits what passed the checks; the results are flat, in order.
func (a *brokerAPI) commitInTransaction(r *Request, req *kmsg.TxnOffsetCommitRequest) []error {
	ctx, cancel := context.WithTimeout(r.Context(), a.Config.Duration("request.timeout.ms"))
	defer cancel()
	reply, err := a.Groups.TxnOffsetCommit(ctx, req, func(ctx context.Context, partition int32, add bool) error {
		return a.Txn.Verify(ctx, replica.TxnVerification{
			TransactionalID: req.TransactionalID, ProducerID: req.ProducerID, ProducerEpoch: req.ProducerEpoch, Add: add,
			Partitions: []replica.TxnPartition{{Topic: coordinator.GroupTopic, Partition: partition}},
		})[0]
	})
	var results []error
	for i := range req.Topics {
		for k := range req.Topics[i].Partitions {
			if err != nil {
				results = append(results, unanswered(err))
			} else {
				results = append(results, reply.Topics[i].Partitions[k].Err)
			}
		}
	}
	return results
}

// txnOffsetCode is what TxnOffsetCommit answers for one partition.
func txnOffsetCode(version int16, err error) int16 {
	if errors.Is(err, broker.ErrTxnNetwork) {
		err = kerr.CoordinatorLoadInProgress
	}
	code := errorCode(err)
	switch {
	case code == kerr.TransactionAbortable.Code && version < 4:
		return kerr.InvalidTxnState.Code
	case code == kerr.CoordinatorLoadInProgress.Code && version < 2:
		return kerr.CoordinatorNotAvailable.Code // old clients do not know the other
	}
	return code
}

// Tagged fields of ours in DescribeTransactions, beyond any that Kafka may come to use: who has the transactional id,
// as far as its coordinator knows. Clients pass over them.
const (
	tagTransactionClientID   = 10000
	tagTransactionClientHost = 10001
)

// describeTransactions shows transactional ids (KIP-664).
func (a *brokerAPI) describeTransactions(r *Request, req *kmsg.DescribeTransactionsRequest) *kmsg.DescribeTransactionsResponse {
	resp := req.ResponseKind().(*kmsg.DescribeTransactionsResponse)
	for _, id := range req.TransactionalIDs {
		out := kmsg.NewDescribeTransactionsResponseTransactionState()
		out.TransactionalID, out.ProducerID, out.ProducerEpoch, out.StartTimestamp = id, -1, -1, -1
		out.Topics = []kmsg.DescribeTransactionsResponseTransactionStateTopic{}
		a.describeTransaction(r, id, &out)
		resp.TransactionStates = append(resp.TransactionStates, out)
	}
	return resp
}

func (a *brokerAPI) describeTransaction(r *Request, id string, out *kmsg.DescribeTransactionsResponseTransactionState) {
	if !r.mayTransact(security.Describe, id) {
		out.ErrorCode = kerr.TransactionalIDAuthorizationFailed.Code
		return
	}
	var found txn.Description
	err := txn.ErrInvalidRequest
	if id != "" {
		if found, err = a.Txns.Describe(r.Context(), id); err == nil {
			err = found.Err
		}
	}
	if err != nil {
		out.ErrorCode = errorCode(unanswered(err))
		return
	}
	out.State, out.TimeoutMillis, out.StartTimestamp = found.State.String(), found.TimeoutMs, found.Start
	out.ProducerID, out.ProducerEpoch = found.ProducerID, found.ProducerEpoch
	for _, tp := range found.Partitions {
		if !r.mayTopic(security.Describe, tp.Topic) {
			continue
		}
		n := len(out.Topics)
		if n == 0 || out.Topics[n-1].Topic != tp.Topic {
			t := kmsg.NewDescribeTransactionsResponseTransactionStateTopic()
			t.Topic = tp.Topic
			out.Topics = append(out.Topics, t)
			n++
		}
		out.Topics[n-1].Partitions = append(out.Topics[n-1].Partitions, tp.Partition)
	}
	if found.Client != (txn.Client{}) {
		out.UnknownTags.Set(tagTransactionClientID, []byte(found.Client.ID))
		out.UnknownTags.Set(tagTransactionClientHost, []byte(found.Client.Host))
	}
}

// listTransactions lists the transactional ids that this broker coordinates (KIP-664).
//
// v1 by duration. v2 by a pattern of the id.
func (a *brokerAPI) listTransactions(r *Request, req *kmsg.ListTransactionsRequest) *kmsg.ListTransactionsResponse {
	resp := req.ResponseKind().(*kmsg.ListTransactionsResponse)
	resp.UnknownStateFilters, resp.TransactionStates = []string{}, []kmsg.ListTransactionsResponseTransactionState{}
	filter := txn.Filter{ProducerIDs: req.ProducerIDFilters, Duration: -1}
	for _, name := range req.StateFilters {
		if state, ok := txn.ParseState(name); ok {
			filter.States = append(filter.States, state)
		} else if !slices.Contains(resp.UnknownStateFilters, name) {
			resp.UnknownStateFilters = append(resp.UnknownStateFilters, name)
		}
	}
	filter.NoState = len(req.StateFilters) > 0 && len(filter.States) == 0
	if req.Version >= 1 && req.DurationFilterMillis >= 0 {
		filter.Duration = time.Duration(min(req.DurationFilterMillis, int64(1<<63-1)/int64(time.Millisecond))) * time.Millisecond
	}
	if req.Version >= 2 && req.TransactionalIDPattern != nil && *req.TransactionalIDPattern != "" {
		pattern, err := wholePattern(*req.TransactionalIDPattern)
		if err != nil {
			resp.ErrorCode = errorCode(txn.ErrInvalidRegularExpression)
			return resp
		}
		filter.Pattern = pattern
	}
	listed, err := a.Txns.List(r.Context(), filter)
	if err != nil {
		resp.ErrorCode = errorCode(unanswered(err))
		return resp
	}
	for _, one := range listed {
		if !r.mayTransact(security.Describe, one.ID) {
			continue
		}
		out := kmsg.NewListTransactionsResponseTransactionState()
		out.TransactionalID, out.ProducerID, out.TransactionState = one.ID, one.ProducerID, one.State.String()
		resp.TransactionStates = append(resp.TransactionStates, out)
	}
	return resp
}

// wholePattern matches what text matches from beginning to end.
func wholePattern(text string) (*regexp.Regexp, error) {
	if _, err := regexp.Compile(text); err != nil { // "a)|(b" is none, though it is between parentheses
		return nil, err
	}
	return regexp.Compile("^(?:" + text + ")$")
}

// TransactionClient is who has a transactional id, as its coordinator tells it beside what Kafka tells. It is empty
// where the coordinator does not know, or is not ours.
func TransactionClient(s *kmsg.DescribeTransactionsResponseTransactionState) txn.Client {
	var client txn.Client
	s.UnknownTags.Each(func(tag uint32, value []byte) {
		switch tag {
		case tagTransactionClientID:
			client.ID = string(value)
		case tagTransactionClientHost:
			client.Host = string(value)
		}
	})
	return client
}
