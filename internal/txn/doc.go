// Package txn is the transaction coordinator as a pure state machine: one Shard holds the transactional ids of one
// partition of __transaction_state. A request and the time go in, records, replies and markers to be sent come out;
// nothing in here knows a clock, a goroutine, a socket or a file.
//
// It is driven as every shard is (see internal/group), and beside that by its markers: when a record that decides a
// transaction is committed, TakeMarkers has what must be written to the partitions of the transaction. The runtime
// sends them until each partition has answered, and tells MarkersWritten; when none is left, the transaction completes.
// What was decided is decided: after a load, every transaction that was decided and not completed is taken up again.
//
// # Versions
//
// In transaction.version 2 (KIP-890) each transaction has a producer epoch of its own: its end bumps the epoch, so that
// nothing sent late can get into the next one. Whether a producer works so shows in the versions of its requests, and is
// kept with the transaction; what the coordinator ends by itself follows the finalized level.
//
// # Where Kafka remembers more, or less
//
//   - While a record of an id is not committed, or its markers are out, the id is busy: ErrConcurrentTransactions.
//     Kafka gets the same from a pending state beside the real one.
//   - A request whose record is not replicated in time gets ErrCoordinatorNotAvailable, and the id stays busy until
//     the record is. In Kafka it is free at once, and a transaction that was decided may be decided again.
//   - The last epoch of a producer (KIP-360) is kept in memory only, as in Kafka.
//   - A producer id for an exhausted epoch that is expected wrongly is ErrProducerFenced, an unknown error in Kafka.
//   - The client that uses an id is remembered for DescribeTransactions, in memory.
package txn
