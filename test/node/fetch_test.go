package node

import (
	"bytes"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestB009_aborted_transactions: over the log that Apache Kafka wrote for two transactional producers, every version
// of a read_committed fetch lists the aborted transactions of the range that is returned, in the order of their
// offsets, decodable to the last byte by two decoders; read_uncommitted lists none (null).
func TestB009_aborted_transactions(t *testing.T) {
	t.Parallel()
	n := start(t)
	tp := n.dial(t).topic(1)
	n.stop(t)
	recorded := "../reference/testdata/kafka-4.4.0/datadir/transactions-0/"
	for _, file := range []string{"00000000000000000000.log", "00000000000000000000.index", "00000000000000000000.timeindex", "00000000000000000000.txnindex", "00000000000000000010.snapshot", "leader-epoch-checkpoint"} {
		b, err := os.ReadFile(recorded + file)
		if err == nil {
			err = os.WriteFile(n.path(tp.name, file), b, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	// A start that finds no clean marker reads it all.
	if err := os.Remove(filepath.Join(n.dir, ".kafka_cleanshutdown")); err != nil {
		t.Fatal(err)
	}
	n.run(t)
	c := n.dial(t)
	c.led(tp, 1)
	first, second := kmsg.FetchResponseTopicPartitionAbortedTransaction{ProducerID: 3, FirstOffset: 3}, kmsg.FetchResponseTopicPartitionAbortedTransaction{ProducerID: 4, FirstOffset: 8}
	for version := int16(4); version <= 18; version++ {
		for offset, want := range map[int64][]kmsg.FetchResponseTopicPartitionAbortedTransaction{0: {first, second}, 4: {first, second}, 6: {second}, 9: {second}, 10: {}} {
			req := fetchRequest(at(tp, offset))
			req.IsolationLevel = 1
			p := c.only(c.fetchAll(version, req))
			same := len(p.AbortedTransactions) == len(want) && p.AbortedTransactions != nil
			for i := range want {
				same = same && p.AbortedTransactions[i].ProducerID == want[i].ProducerID && p.AbortedTransactions[i].FirstOffset == want[i].FirstOffset
			}
			if p.ErrorCode != 0 || !same || p.LastStableOffset != 10 || p.HighWatermark != 10 || p.PreferredReadReplica != -1 {
				t.Errorf("v%d from %d: %+v, want %+v", version, offset, p, want)
			}
		}
		if p := c.fetch(version, at(tp, 0)); p.ErrorCode != 0 || p.AbortedTransactions != nil || len(batches(t, p.RecordBatches)) == 0 {
			t.Errorf("v%d, read_uncommitted: %+v", version, p)
		}
	}
}

// TestB009_every_fetch_version: in every version an answer without records, one with a batch, one where one of
// two partitions is in error and one of a read_committed fetch decode to the last byte, by two decoders.
func TestB009_every_fetch_version(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(2)
	c.mustProduce(tp, 0, exampleA())
	for version := int16(4); version <= 18; version++ {
		if p := c.fetch(version, at(tp, 2)); p.ErrorCode != 0 || len(p.RecordBatches) != 0 || p.HighWatermark != 2 || p.PreferredReadReplica != -1 || p.AbortedTransactions != nil {
			t.Errorf("v%d, no records: %+v", version, p)
		}
		if p := c.fetch(version, at(tp, 0)); p.ErrorCode != 0 || len(p.RecordBatches) != 83 || p.LastStableOffset != 2 || version >= 5 && p.LogStartOffset != 0 {
			t.Errorf("v%d, a batch: %+v", version, p)
		}
		missing := at(tp, 0)
		missing.partition = 5
		parts := c.fetchAll(version, fetchRequest(missing, at(tp, 0))).Topics[0].Partitions
		if len(parts) != 2 || parts[0].Partition != 5 || parts[0].ErrorCode != 3 || parts[1].ErrorCode != 0 || len(parts[1].RecordBatches) != 83 {
			t.Errorf("v%d, one in error: %+v", version, parts)
		}
		req := fetchRequest(at(tp, 0))
		req.IsolationLevel = 1
		if p := c.only(c.fetchAll(version, req)); p.ErrorCode != 0 || len(p.RecordBatches) != 83 || p.AbortedTransactions == nil || len(p.AbortedTransactions) != 0 {
			t.Errorf("v%d, read_committed: %+v", version, p)
		}
	}
}

// TestB011_first_batch_whole: a batch of 300 KB is returned whole to a fetch of one byte, and then the next
// batches one by one.
func TestB011_first_batch_whole(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1)
	c.mustProduce(tp, 0, sized(300_000, stamp))
	for range 3 {
		c.mustProduce(tp, 0, sized(100, stamp))
	}
	for version := int16(4); version <= 18; version++ {
		for offset, size := range map[int64]int{0: 300_000, 1: 100, 2: 100, 3: 100} {
			where := at(tp, offset)
			where.max = 1
			req := fetchRequest(where)
			req.MaxBytes = 1
			p := c.only(c.fetchAll(version, req))
			if found := batches(t, p.RecordBatches); p.ErrorCode != 0 || len(found) != 1 || len(found[0]) != size || found[0].BaseOffset() != offset {
				t.Errorf("v%d at %d: error %d, %d batches, %d bytes", version, offset, p.ErrorCode, len(found), len(p.RecordBatches))
			}
		}
	}
}

// TestB096_total_is_bounded: with 20 partitions of 100 KB and room for 300 KB an answer has at most that and one
// batch more; limits that make no sense are capped, and negative ones harm nobody.
func TestB096_total_is_bounded(t *testing.T) {
	t.Parallel()
	n := start(t, "fetch.max.bytes=1000000")
	c := n.dial(t)
	tp := c.topic(20)
	var positions []position
	for p := range int32(20) {
		for range 10 {
			c.mustProduce(tp, p, sized(10_000, stamp))
		}
		where := at(tp, 0)
		where.partition, where.max = p, 10<<20
		positions = append(positions, where)
	}
	total := func(c *client, limit int32) (n int) {
		req := fetchRequest(positions...)
		req.MaxBytes = limit
		for _, topic := range c.fetchAll(13, req).Topics {
			for _, p := range topic.Partitions {
				n += len(p.RecordBatches)
			}
		}
		return n
	}
	var all sync.WaitGroup
	for range 10 {
		c := n.dial(t)
		all.Go(func() {
			if got := total(c, 300_000); got < 200_000 || got > 310_000 {
				t.Errorf("%d bytes, asked for 300000", got)
			}
		})
	}
	all.Wait()
	if got := total(c, 1<<31-1); got < 900_000 || got > 1_010_000 {
		t.Errorf("%d bytes, fetch.max.bytes is 1000000", got)
	}
	for _, limit := range []int32{0, -1, -1 << 31} {
		if got := total(c, limit); got != 10_000 {
			t.Errorf("limit %d: %d bytes, want the first batch", limit, got)
		}
	}
}

// TestS043_offset_inside_a_batch: a fetch at 5 in a batch of 0 to 9 returns the batch from 0.
func TestS043_offset_inside_a_batch(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1)
	c.mustProduce(tp, 0, plain(10, stamp))
	c.mustProduce(tp, 0, plain(10, stamp))
	found := batches(t, c.stored(tp, 5))
	if len(found) != 2 || found[0].BaseOffset() != 0 || found[0].Count() != 10 || found[1].BaseOffset() != 10 {
		t.Errorf("%d batches from %d", len(found), found[0].BaseOffset())
	}
}

// TestS044_limits: with batches of 1000 bytes and a limit of 1500 the first is whole and the second cut or
// absent; with a limit of 10 the first is whole; a partition for which nothing is left is empty.
func TestS044_limits(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(2)
	for p := range int32(2) {
		for range 3 {
			c.mustProduce(tp, p, sized(1000, stamp))
		}
	}
	for limit, most := range map[int32]int{1500: 1500, 10: 1000, 1000: 1000, 2000: 2000} {
		where := at(tp, 0)
		where.max = limit
		if got := c.fetch(11, where).RecordBatches; len(got) < 1000 || len(got) > most || len(batches(t, got)) < 1 {
			t.Errorf("limit %d: %d bytes", limit, len(got))
		}
	}
	second := at(tp, 0)
	second.partition = 1
	req := fetchRequest(at(tp, 0), second)
	req.MaxBytes = 10
	parts := c.fetchAll(11, req).Topics[0].Partitions
	if len(parts) != 2 || len(parts[0].RecordBatches) != 1000 || len(parts[1].RecordBatches) != 0 || parts[1].HighWatermark != 3 {
		t.Errorf("nothing left: %d and %d bytes", len(parts[0].RecordBatches), len(parts[1].RecordBatches))
	}
	// A partition that had nothing does not use up the right to one whole batch.
	empty := at(tp, 3)
	req = fetchRequest(empty, second)
	req.MaxBytes = 10
	parts = c.fetchAll(11, req).Topics[0].Partitions
	if len(parts[0].RecordBatches) != 0 || len(parts[1].RecordBatches) != 1000 {
		t.Errorf("behind an empty one: %d and %d bytes", len(parts[0].RecordBatches), len(parts[1].RecordBatches))
	}
}

// TestS045_across_segments: a log of several segments is read without a gap, one fetch never crossing the end
// of a segment.
func TestS045_across_segments(t *testing.T) {
	t.Parallel()
	c := shared(t).dial(t)
	tp := c.topic(1, "segment.bytes=1048576")
	for range 5 {
		c.mustProduce(tp, 0, sized(600_000, stamp))
	}
	next := int64(0)
	for next < 5 {
		where := at(tp, next)
		where.max = 10 << 20
		found := batches(t, c.fetch(11, where).RecordBatches)
		if len(found) == 0 || found[0].BaseOffset() != next {
			t.Fatalf("%d batches at %d", len(found), next)
		}
		next = found[len(found)-1].LastOffset() + 1
	}
}

// TestS046_nothing_but_markers_and_empty_batches: a range of emptied batches and of a marker is returned, so
// that a consumer can move past it.
func TestS046_nothing_but_markers_and_empty_batches(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.dial(t)
	tp := c.topic(1)
	c.mustProduce(tp, 0, exampleA())
	n.stop(t)
	emptied := unhex(`0000000000000002 00000031 00000000 02 896264e9 0000 00000001 ffffffffffffffff 0000018bcfe56805
		0000000000000fa0 0005 00000000 00000000`)
	marker := put32(put64(exampleB(), 0, 4), atEpoch, 0)
	log, err := os.OpenFile(n.path(tp.name, "00000000000000000000.log"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := log.Write(append(bytes.Clone(emptied), marker...)); err != nil {
		t.Fatal(err)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(n.dir + "/.kafka_cleanshutdown"); err != nil {
		t.Fatal(err)
	}
	n.run(t)
	c = n.dial(t)
	c.led(tp, 1)
	for _, offset := range []int64{2, 3} {
		if got := c.stored(tp, offset); !bytes.Equal(got, append(bytes.Clone(emptied), marker...)) {
			t.Errorf("at %d: %x", offset, got)
		}
	}
	if got := c.stored(tp, 4); !bytes.Equal(got, marker) {
		t.Errorf("at 4: %x", got)
	}
	if p := c.fetch(11, at(tp, 5)); p.ErrorCode != 0 || p.HighWatermark != 5 {
		t.Errorf("at 5: %+v", p)
	}
}

// A long poll is answered as soon as the records are there that it asked for, and not before.
func TestFetch_long_poll_counts_bytes(t *testing.T) {
	t.Parallel()
	n := shared(t)
	c, producer := n.dial(t), n.dial(t)
	tp := c.topic(1)
	req := fetchRequest(at(tp, 0))
	req.MaxWaitMillis, req.MinBytes = 30000, 150
	correlation := c.send(12, req)
	producer.mustProduce(tp, 0, exampleA())
	producer.mustProduce(tp, 0, exampleA())
	if p := c.only(c.answer(12, req, correlation).(*kmsg.FetchResponse)); len(p.RecordBatches) != 166 {
		t.Errorf("%d bytes, want 166", len(p.RecordBatches))
	}
}
