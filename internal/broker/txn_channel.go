package broker

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/coordinator"
	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/replica"
	"github.com/stelelog/stele/internal/shard"
	"github.com/stelelog/stele/internal/txn"
	"github.com/stelelog/stele/internal/wire"
)

// ErrTxnNetwork: the transaction's coordinator could not be reached.
var ErrTxnNetwork = errors.New("the coordinator of the transaction could not be reached")

// addForBrokers is the first version of AddPartitionsToTxn that brokers may ask in.
const addForBrokers = 4

// TxnChannelOptions are the parts that a TxnChannel brings together.
type TxnChannelOptions struct {
	Listener       string // by which brokers reach each other
	Replicas       *replica.Manager
	Groups         *coordinator.Runtime
	RequestTimeout time.Duration // request.timeout.ms
	// RetryBackoff and RetryMax: how soon, and for how long, a coordinator is asked again that has not finished the
	// transaction before: add.partitions.to.txn.retry.backoff.ms and .max.ms.
	RetryBackoff, RetryMax time.Duration
	Now                    func() time.Time // nil: time.Now
}

// TxnChannel carries what brokers say to each other about transactions: questions to coordinators whether partitions
// are part of a transaction, and their markers to the leaders of partitions. What is on this broker is asked directly.
// Safe for concurrent use.
type TxnChannel struct {
	o       TxnChannelOptions
	broker  *Broker
	asks    *peers
	markers *peers

	mu       sync.Mutex
	batchers map[int32]*addBatcher
	local    func() *coordinator.Transactions
}

// NewTxnChannel makes the channel of b. local is this broker's coordinator, which may come later than the channel.
func NewTxnChannel(b *Broker, local func() *coordinator.Transactions, o TxnChannelOptions) *TxnChannel {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &TxnChannel{o: o, broker: b, local: local, asks: newPeers(b, o.Listener, "txn-verifier"), markers: newPeers(b, o.Listener, "txn-markers"),
		batchers: map[int32]*addBatcher{}}
}

// Close ends the connections to other brokers.
func (c *TxnChannel) Close() {
	c.asks.close()
	c.markers.close()
}

// VerifyProduce is Verify as replica.Options wants it: whatever is wrong with the coordinator itself is
// replica.ErrTxnUnverified, which makes producers of any age try again.
func (c *TxnChannel) VerifyProduce(ctx context.Context, v replica.TxnVerification) []error {
	answers := c.Verify(ctx, v)
	for i, err := range answers {
		if errors.Is(err, ErrTxnNetwork) || errors.Is(err, coordinator.ErrLoading) || errors.Is(err, shard.ErrCoordinatorNotAvailable) || errors.Is(err, shard.ErrNotCoordinator) {
			answers[i] = errors.Join(replica.ErrTxnUnverified, err)
		}
	}
	return answers
}

// Verify asks the transaction's coordinator whether partitions are part of it, or has them added, and answers for each.
// Errors are txn's, log.ErrInvalidProducerEpoch for a producer that is fenced, log.ErrInvalidTxnState where this broker
// may not ask, and for a coordinator that is not there ErrTxnNetwork, coordinator.ErrLoading,
// shard.ErrCoordinatorNotAvailable or shard.ErrNotCoordinator.
//
// A transaction that is just being completed is waited for as long as RetryMax.
func (c *TxnChannel) Verify(ctx context.Context, v replica.TxnVerification) []error {
	deadline := c.o.Now().Add(c.o.RetryMax)
	for pause := time.Millisecond; ; pause = min(2*pause, max(c.o.RetryBackoff, time.Millisecond)) {
		answers := c.verifyOnce(ctx, v)
		if !v.Add || !anyConcurrent(answers) || c.o.Now().Add(pause).After(deadline) {
			return answers
		}
		select {
		case <-ctx.Done():
			return answers
		case <-time.After(pause):
		}
	}
}

func anyConcurrent(answers []error) bool {
	for _, err := range answers {
		if errors.Is(err, txn.ErrConcurrentTransactions) {
			return true
		}
	}
	return false
}

func (c *TxnChannel) verifyOnce(ctx context.Context, v replica.TxnVerification) []error {
	req := txn.AddRequest{ID: v.TransactionalID, ProducerID: v.ProducerID, ProducerEpoch: v.ProducerEpoch, Version: txn.Version2, VerifyOnly: !v.Add}
	for _, p := range v.Partitions {
		req.Partitions = append(req.Partitions, txn.TopicPartition{Topic: p.Topic, Partition: p.Partition})
	}
	all := func(err error) []error {
		answers := make([]error, len(req.Partitions))
		for i := range answers {
			answers[i] = verifyError(err)
		}
		return answers
	}
	leader, err := c.coordinatorOf(req.ID)
	if err != nil {
		return all(err)
	}
	if leader != c.broker.opts.NodeID {
		return c.batcher(leader).add(ctx, req)
	}
	reply, err := c.local().AddPartitions(ctx, req)
	if err == nil {
		err = reply.Err
	}
	if err != nil {
		return all(err)
	}
	answers := make([]error, len(req.Partitions))
	for i, missing := range reply.Missing {
		if missing {
			answers[i] = txn.ErrTransactionAbortable
		}
	}
	return answers
}

// verifyError is what an error of the coordinator means to whoever asked.
func verifyError(err error) error {
	switch {
	case errors.Is(err, txn.ErrProducerFenced):
		return errors.Join(log.ErrInvalidProducerEpoch, err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return errors.Join(ErrTxnNetwork, err)
	}
	return err
}

func (c *TxnChannel) coordinatorOf(transactionalID string) (int32, error) {
	image := c.broker.Image()
	topic, ok := image.Topic(coordinator.TransactionTopic)
	if !ok {
		return -1, shard.ErrCoordinatorNotAvailable
	}
	state, ok := topic.Partition(coordinator.PartitionOf(transactionalID, int32(topic.NumPartitions())))
	if !ok || state.Leader < 0 {
		return -1, shard.ErrCoordinatorNotAvailable
	}
	return state.Leader, nil
}

func (c *TxnChannel) batcher(id int32) *addBatcher {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.batchers[id]
	if b == nil {
		b = &addBatcher{channel: c, id: id}
		c.batchers[id] = b
	}
	return b
}

// addBatcher gathers questions to one broker: while one AddPartitionsToTxn is under way, what comes waits and goes with
// the next.
type addBatcher struct {
	channel *TxnChannel
	id      int32

	mu      sync.Mutex
	waiting []*addCall
	running bool
}

type addCall struct {
	req     txn.AddRequest
	answers chan []error // has room for the answer
}

func (b *addBatcher) add(ctx context.Context, req txn.AddRequest) []error {
	call := &addCall{req: req, answers: make(chan []error, 1)}
	b.mu.Lock()
	b.waiting = append(b.waiting, call)
	if !b.running {
		b.running = true
		go b.run()
	}
	b.mu.Unlock()
	select {
	case answers := <-call.answers:
		return answers
	case <-ctx.Done():
		return call.failed(errors.Join(ErrTxnNetwork, ctx.Err()))
	}
}

func (c *addCall) failed(err error) []error {
	answers := make([]error, len(c.req.Partitions))
	for i := range answers {
		answers[i] = err
	}
	return answers
}

// run sends until nothing waits. A transactional id is once in a request: its answer goes by the id.
func (b *addBatcher) run() {
	for {
		b.mu.Lock()
		var calls, later []*addCall
		named := map[string]bool{}
		for _, call := range b.waiting {
			if named[call.req.ID] {
				later = append(later, call)
				continue
			}
			named[call.req.ID] = true
			calls = append(calls, call)
		}
		b.waiting = later
		if len(calls) == 0 {
			b.running = false
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		b.send(calls)
	}
}

func (b *addBatcher) send(calls []*addCall) {
	ctx, cancel := context.WithTimeout(context.Background(), b.channel.o.RequestTimeout)
	defer cancel()
	req := kmsg.NewPtrAddPartitionsToTxnRequest()
	for _, call := range calls {
		t := kmsg.NewAddPartitionsToTxnRequestTransaction()
		t.TransactionalID, t.ProducerID, t.ProducerEpoch, t.VerifyOnly = call.req.ID, call.req.ProducerID, call.req.ProducerEpoch, call.req.VerifyOnly
		at := map[string]int{}
		for _, tp := range call.req.Partitions {
			i, ok := at[tp.Topic]
			if !ok {
				i = len(t.Topics)
				at[tp.Topic] = i
				topic := kmsg.NewAddPartitionsToTxnRequestTransactionTopic()
				topic.Topic = tp.Topic
				t.Topics = append(t.Topics, topic)
			}
			t.Topics[i].Partitions = append(t.Topics[i].Partitions, tp.Partition)
		}
		req.Transactions = append(req.Transactions, t)
	}
	resp, err := b.channel.asks.do(ctx, b.id, req, addForBrokers)
	if err != nil {
		var old *wire.UnsupportedVersionError
		for _, call := range calls {
			switch {
			case errors.As(err, &old):
				call.answers <- make([]error, len(call.req.Partitions)) // a coordinator that cannot verify: as before there was any of it
			default:
				call.answers <- call.failed(errors.Join(ErrTxnNetwork, err))
			}
		}
		return
	}
	answer := resp.(*kmsg.AddPartitionsToTxnResponse)
	for _, call := range calls {
		call.answers <- call.read(answer)
	}
}

func (c *addCall) read(answer *kmsg.AddPartitionsToTxnResponse) []error {
	if answer.ErrorCode != 0 {
		return c.failed(addError(answer.ErrorCode))
	}
	codes := map[txn.TopicPartition]int16{}
	for i := range answer.Transactions {
		t := &answer.Transactions[i]
		if t.TransactionalID != c.req.ID {
			continue
		}
		for k := range t.Topics {
			for _, p := range t.Topics[k].Partitions {
				codes[txn.TopicPartition{Topic: t.Topics[k].Topic, Partition: p.Partition}] = p.ErrorCode
			}
		}
	}
	answers := make([]error, len(c.req.Partitions))
	for i, tp := range c.req.Partitions {
		code, ok := codes[tp]
		if !ok {
			answers[i] = ErrTxnNetwork
			continue
		}
		answers[i] = addError(code)
	}
	return answers
}

// addError is what a coordinator's code for a partition means.
func addError(code int16) error {
	err := kerr.ErrorForCode(code)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, kerr.ProducerFenced), errors.Is(err, kerr.InvalidProducerEpoch):
		return log.ErrInvalidProducerEpoch
	case errors.Is(err, kerr.TransactionAbortable):
		return txn.ErrTransactionAbortable
	case errors.Is(err, kerr.ConcurrentTransactions):
		return txn.ErrConcurrentTransactions
	case errors.Is(err, kerr.InvalidProducerIDMapping):
		return txn.ErrInvalidProducerIDMapping
	case errors.Is(err, kerr.InvalidRequest):
		return txn.ErrInvalidRequest
	case errors.Is(err, kerr.CoordinatorLoadInProgress):
		return coordinator.ErrLoading
	case errors.Is(err, kerr.CoordinatorNotAvailable):
		return shard.ErrCoordinatorNotAvailable
	case errors.Is(err, kerr.NotCoordinator):
		return shard.ErrNotCoordinator
	case errors.Is(err, kerr.ClusterAuthorizationFailed):
		return log.ErrInvalidTxnState
	}
	return errors.Join(ErrTxnNetwork, err)
}

// WriteMarkers is coordinator.TransactionOptions': it brings markers to the broker that leads their partitions.
func (c *TxnChannel) WriteMarkers(ctx context.Context, id int32, markers []coordinator.Marker) [][]coordinator.MarkerOutcome {
	if id == c.broker.opts.NodeID {
		return c.writeHere(ctx, markers)
	}
	limited, cancel := context.WithTimeout(ctx, c.o.RequestTimeout)
	defer cancel()
	req := kmsg.NewPtrWriteTxnMarkersRequest()
	for _, m := range markers {
		req.Markers = append(req.Markers, markerRequest(m))
	}
	resp, err := c.markers.do(limited, id, req, 1)
	if err != nil {
		return nil // each is tried again, with the leader looked up anew
	}
	return markerOutcomes(markers, resp.(*kmsg.WriteTxnMarkersResponse))
}

func markerRequest(m coordinator.Marker) kmsg.WriteTxnMarkersRequestMarker {
	marker := kmsg.NewWriteTxnMarkersRequestMarker()
	marker.ProducerID, marker.ProducerEpoch, marker.Committed = m.ProducerID, m.ProducerEpoch, m.Commit
	marker.CoordinatorEpoch, marker.TransactionVersion = m.CoordinatorEpoch, int8(m.Version)
	for _, tp := range m.Partitions {
		n := len(marker.Topics)
		if n == 0 || marker.Topics[n-1].Topic != tp.Topic {
			topic := kmsg.NewWriteTxnMarkersRequestMarkerTopic()
			topic.Topic = tp.Topic
			marker.Topics = append(marker.Topics, topic)
			n++
		}
		marker.Topics[n-1].Partitions = append(marker.Topics[n-1].Partitions, tp.Partition)
	}
	return marker
}

// markerOutcomes reads an answer, which goes by producer id.
func markerOutcomes(markers []coordinator.Marker, answer *kmsg.WriteTxnMarkersResponse) [][]coordinator.MarkerOutcome {
	type place struct {
		producerID int64
		tp         txn.TopicPartition
	}
	codes := map[place]int16{}
	for i := range answer.Markers {
		m := &answer.Markers[i]
		for k := range m.Topics {
			for _, p := range m.Topics[k].Partitions {
				codes[place{m.ProducerID, txn.TopicPartition{Topic: m.Topics[k].Topic, Partition: p.Partition}}] = p.ErrorCode
			}
		}
	}
	outcomes := make([][]coordinator.MarkerOutcome, len(markers))
	for i, m := range markers {
		outcomes[i] = make([]coordinator.MarkerOutcome, len(m.Partitions))
		for k, tp := range m.Partitions {
			if code, ok := codes[place{m.ProducerID, tp}]; ok {
				outcomes[i][k] = markerOutcome(kerr.ErrorForCode(code))
			}
		}
	}
	return outcomes
}

func markerOutcome(err error) coordinator.MarkerOutcome {
	switch {
	case err == nil, errors.Is(err, kerr.UnsupportedForMessageFormat), errors.Is(err, kerr.UnsupportedVersion):
		return coordinator.MarkerWritten
	case errors.Is(err, kerr.InvalidProducerEpoch), errors.Is(err, kerr.TransactionCoordinatorFenced),
		errors.Is(err, log.ErrInvalidProducerEpoch), errors.Is(err, log.ErrCoordinatorFenced):
		return coordinator.MarkerRefused
	}
	return coordinator.MarkerRetry
}

func (c *TxnChannel) writeHere(ctx context.Context, markers []coordinator.Marker) [][]coordinator.MarkerOutcome {
	outcomes := make([][]coordinator.MarkerOutcome, len(markers))
	for i, errs := range c.AppendMarkers(ctx, markers) {
		outcomes[i] = make([]coordinator.MarkerOutcome, len(errs))
		for k, err := range errs {
			outcomes[i][k] = markerOutcome(err)
		}
	}
	return outcomes
}

// AppendMarkers writes markers to partitions that this broker leads, waits until the in-sync replicas have them, and
// says for each what was wrong, in their order: what replica.Manager's Produce gives, and for partitions of
// __consumer_offsets, whose markers go through the group coordinator, what coordinator.Runtime's CompleteTransaction does.
func (c *TxnChannel) AppendMarkers(ctx context.Context, markers []coordinator.Marker) [][]error {
	errs := make([][]error, len(markers))
	if ctx.Err() != nil { // whoever asked is gone, or sends them again: a marker that comes late could meet the next transaction
		for i, m := range markers {
			errs[i] = slices.Repeat([]error{replica.ErrTimedOut}, len(m.Partitions))
		}
		return errs
	}
	now := c.o.Now().UnixMilli()
	type place struct{ marker, partition int }
	var waiting sync.WaitGroup
	// One request for both versions would do, were the version not the request's.
	requests := map[bool]*replica.ProduceRequest{}
	placesOf := map[bool][]place{}
	for i, m := range markers {
		errs[i] = make([]error, len(m.Partitions))
		marker := record.EndTxnMarker{Commit: m.Commit, ProducerID: m.ProducerID, ProducerEpoch: m.ProducerEpoch, CoordinatorEpoch: m.CoordinatorEpoch}
		v2 := m.Version >= txn.Version2
		for k, tp := range m.Partitions {
			if tp.Topic == coordinator.GroupTopic {
				waiting.Go(func() { errs[i][k] = c.o.Groups.CompleteTransaction(ctx, tp.Partition, marker, v2) })
				continue
			}
			req := requests[v2]
			if req == nil {
				req = &replica.ProduceRequest{Acks: -1, Timeout: c.o.RequestTimeout, Origin: log.OriginCoordinator, TxnV2: v2}
				requests[v2] = req
			}
			req.Partitions = append(req.Partitions, replica.ProducePartition{Topic: tp.Topic, Partition: tp.Partition, Records: record.NewEndTxnBatch(marker, now)})
			placesOf[v2] = append(placesOf[v2], place{i, k})
		}
	}
	for v2, req := range requests {
		delayed := c.o.Replicas.Produce(*req)
		waiting.Go(func() {
			select {
			case <-delayed.Done():
				for n, result := range delayed.Results() {
					at := placesOf[v2][n]
					errs[at.marker][at.partition] = result.Err
				}
			case <-ctx.Done():
				for _, at := range placesOf[v2] {
					errs[at.marker][at.partition] = replica.ErrTimedOut
				}
			}
		})
	}
	waiting.Wait()
	return errs
}
