package replica

import (
	"context"

	"github.com/stelelog/stele/internal/record"
)

// TxnVerification is a question to the coordinator of a transaction: are these partitions part of it?
type TxnVerification struct {
	TransactionalID string
	ProducerID      int64
	ProducerEpoch   int16
	// Add asks the coordinator to make them part of it (transaction.version 2) instead of looking whether they are.
	Add        bool
	Partitions []TxnPartition
}

// TxnPartition names a partition of a transaction.
type TxnPartition struct {
	Topic     string
	Partition int32
}

// txnV2Produce is the first version of Produce whose producers leave it to the broker to add partitions to their
// transactions (KIP-890).
const txnV2Produce = 12

// AdmitTransaction asks the transaction coordinator about the transactional batches of req, which the producer sends under
// transactionalID, and notes in req what it says: Produce then writes those that are part of the transaction, and answers
// for the others. It waits for the coordinator, until ctx is done, and asks nobody about a batch whose transaction is open
// in its partition already. Origin is a client's.
//
// The error is of the whole request: ErrSeveralProducers.
func (m *Manager) AdmitTransaction(ctx context.Context, req *ProduceRequest, transactionalID string) error {
	v := TxnVerification{TransactionalID: transactionalID, Add: req.Version >= txnV2Produce}
	var batches []record.Batch // by partition of req, nil unless transactional
	for i := range req.Partitions {
		batch, err := record.SplitProduce(req.Partitions[i].Records)
		if err != nil || !batch.IsTransactional() || batch.IsControl() || !batch.HasProducerID() {
			continue // Produce says what is wrong with it
		}
		if batches == nil {
			batches = make([]record.Batch, len(req.Partitions))
			v.ProducerID, v.ProducerEpoch = batch.ProducerID(), batch.ProducerEpoch()
		} else if batch.ProducerID() != v.ProducerID || batch.ProducerEpoch() != v.ProducerEpoch {
			return ErrSeveralProducers
		}
		batches[i] = batch
	}
	var asked []*ProducePartition
	for i, batch := range batches {
		if batch == nil {
			continue
		}
		in := &req.Partitions[i]
		p, err := m.find(in.Topic, in.TopicID, in.Partition)
		if err == nil {
			err = p.Role().Check(NoEpoch, false, true)
		}
		if err == nil {
			in.guard, err = p.log().GuardTxn(batch, v.Add)
		}
		in.refused = err
		if in.guard.Held() {
			asked = append(asked, in)
			v.Partitions = append(v.Partitions, TxnPartition{Topic: p.topic, Partition: p.id})
		}
	}
	if len(asked) == 0 {
		return nil
	}
	answers := m.verifyTxn(ctx, v)
	for i, in := range asked {
		in.refused = answers[i]
	}
	return nil
}

func (m *Manager) verifyTxn(ctx context.Context, v TxnVerification) []error {
	if m.o.VerifyTxn != nil {
		return m.o.VerifyTxn(ctx, v)
	}
	answers := make([]error, len(v.Partitions))
	for i := range answers {
		answers[i] = ErrTxnUnverified
	}
	return answers
}
