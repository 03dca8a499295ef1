package txn

import "errors"

// The errors that replies carry, under Kafka's names. They are values to be compared with errors.Is;
// what number each has on the wire, and in which version, is the server's to know.
var (
	ErrConcurrentTransactions    = errors.New("concurrent transactions: the one before is not finished")
	ErrInvalidProducerIDMapping  = errors.New("invalid producer id mapping: the producer id is not that of the transactional id")
	ErrInvalidRegularExpression  = errors.New("invalid regular expression")
	ErrInvalidRequest            = errors.New("invalid request")
	ErrInvalidTransactionTimeout = errors.New("invalid transaction timeout: larger than transaction.max.timeout.ms, or not positive")
	ErrInvalidTxnState           = errors.New("invalid transaction state")
	ErrNoProducerID              = errors.New("no producer id is at hand yet")
	ErrProducerFenced            = errors.New("producer fenced: a newer producer has the transactional id")
	ErrTransactionAbortable      = errors.New("transaction abortable: the partition is not part of the transaction")
	ErrTransactionalIDNotFound   = errors.New("transactional id not found")
)
