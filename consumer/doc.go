// Package consumer reads records from Apache Kafka and from Stele, alone or as a member of a group, and always knows
// where it is: each position carries the epoch of the last record before it, so that a log that was cut below the
// position is noticed, and nothing moves a position without saying so.
//
//	c, err := consumer.New(consumer.Options{
//		BootstrapServers: []string{"127.0.0.1:9092"},
//		GroupID:          "billing",
//		Topics:           []string{"orders"},
//		OnReset:          func(e consumer.ResetEvent) { log.Print(e) },
//	})
//	if err != nil {
//		return err
//	}
//	defer c.Close(context.Background())
//	for record, err := range c.Records(ctx) {
//		if err != nil {
//			return err
//		}
//		handle(record)
//	}
//
// # Positions
//
// The position of a partition is the offset of the next record, together with the epoch of the record before it. It
// follows the loop that reads: it is after the last record that the loop has taken, and records of a [Fetch] that no
// loop took come again with the next Poll. [Consumer.Commit] commits the positions, with their epochs; so does the
// automatic commit, at Poll, before partitions are given away and at Close.
//
// When the leader of a partition changes, the position is checked against the new leader's log. If records below it
// were cut (an election that was not clean), a [Consumer] with a reset policy goes on at the first offset that
// differs, whatever the policy is, and says so in a [ResetEvent]; one without a policy fails with a
// [LogTruncationError]. An offset out of range is looked into before anything moves: only an answer by the leader
// counts, and what passes by itself (a high watermark that lags) is waited for. The committed epoch is always that of
// the last record consumed, never that of the current leader: it is a claim about records, and the claim is checked
// when the next owner of the partition begins.
//
// # Records
//
// A [Record] and the bytes it points to are valid in the step of the loop that was given it: the memory is used again
// for the next one. [Record.Clone] makes a copy that lasts. Nothing is allocated per record.
//
// # Groups
//
// With a GroupID the partitions are shared out among the members of the group, by the classic protocol or that of
// KIP-848. The callbacks of a rebalance and OnReset run inside Poll, on the goroutine that calls it, so that all
// records returned before have been dealt with and a commit in OnRevoked is safe. A program that does not call Poll
// for max.poll.interval.ms loses its partitions, as in Kafka.
package consumer
