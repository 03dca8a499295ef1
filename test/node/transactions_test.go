package node

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/record"
)

// TestS038_last_stable_offset: of two overlapping transactions, ended one after the other, the last stable offset is
// the first offset of the earliest that is open: in ListOffsets with read_committed, and in Fetch, which gives nothing at
// or above it to read_committed.
func TestS038_last_stable_offset(t *testing.T) {
	t.Parallel()
	c := transactional(t)
	tp, one, two := c.topic(1, calm), c.producerID(), c.producerID()
	c.mustProduce(tp, 0, plain(10, stamp))
	c.store(tp, txnBatch(one, 0, 0, 5), 10)
	c.store(tp, txnBatch(two, 0, 0, 3), 15)
	look := func(when string, lso, hw int64, batches string) {
		t.Helper()
		if got := c.stable(tp); got != lso {
			t.Errorf("%s: ListOffsets says %d, want %d", when, got, lso)
		}
		p := c.committed(tp, 10)
		if p.LastStableOffset != lso || p.HighWatermark != hw || baseOffsets(t, p) != batches {
			t.Errorf("%s: last stable offset %d, high watermark %d, batches %s; want %d, %d, %s", when, p.LastStableOffset, p.HighWatermark, baseOffsets(t, p), lso, hw, batches)
		}
		if all := c.fetch(11, at(tp, 10)); all.LastStableOffset != lso || aborted(all) != "null" {
			t.Errorf("%s: read_uncommitted is told of %d and %s", when, all.LastStableOffset, aborted(all))
		}
	}
	look("two open", 10, 18, "[]")
	c.mustEnd(tp, one, 0, false)
	look("one aborted", 15, 19, "[10]")
	c.mustEnd(tp, two, 0, true)
	look("both ended", 20, 20, "[10 15 18 19]")
}

// TestS039_marker_errors: a marker of an older coordinator is refused with 52, one of an older producer with 47, a plain
// batch inside a transaction with 48. In transaction.version 2 a marker with the epoch of an open transaction is 47, and
// the marker that ended it is taken again.
func TestS039_marker_errors(t *testing.T) {
	t.Parallel()
	c := transactional(t)
	tp, id := c.topic(1, calm), c.producerID()
	if code := c.endTxn(mark(c.producerID(), 0, true, -2, tp, 0)); code != 52 {
		t.Errorf("a coordinator older than none: error %d", code)
	}
	c.store(tp, txnBatch(id, 5, 0, 1), 0)
	c.refused(9, tp, idempotent(id, 5, 1, 1), 48)
	v2 := func(epoch int16, coordinator int32) kmsg.WriteTxnMarkersRequestMarker {
		m := mark(id, epoch, true, coordinator, tp, 0)
		m.TransactionVersion = 2
		return m
	}
	for i, step := range []struct {
		marker kmsg.WriteTxnMarkersRequestMarker
		code   int16
		end    int64
	}{
		{mark(id, 4, true, 7, tp, 0), 47, 1},
		{v2(5, 7), 47, 1},
		{v2(6, 7), 0, 2},
		{v2(6, 7), 0, 3},
		{mark(id, 6, true, 6, tp, 0), 52, 3},
		{v2(7, 6), 52, 3},
		{mark(id, 5, true, 7, tp, 0), 47, 3},
		{mark(id, 6, false, 7, tp, 0), 0, 4}, // nothing is open: it changes nothing, and is written
	} {
		if code := c.endTxn(step.marker); code != step.code || c.end(tp) != step.end {
			t.Errorf("step %d: error %d, end %d; want %d, %d", i, code, c.end(tp), step.code, step.end)
		}
	}
	if p := c.committed(tp, 0); aborted(p) != "[]" || p.LastStableOffset != 4 {
		t.Errorf("aborted %s, last stable offset %d", aborted(p), p.LastStableOffset)
	}
	// The bumped epoch begins at sequence 0, the one before is fenced.
	if p := c.inTransaction(11, tp, txnBatch(id, 6, 1, 1)); p.ErrorCode != 45 {
		t.Errorf("sequence 1 of the new epoch: error %d", p.ErrorCode)
	}
	if p := c.inTransaction(11, tp, txnBatch(id, 5, 1, 1)); p.ErrorCode != 47 {
		t.Errorf("the old epoch: error %d", p.ErrorCode)
	}
	c.store(tp, txnBatch(id, 6, 0, 1), 4)
}

// TestS047_aborted_lists: two transactions from 10 and 15, aborted at 18 and committed at 19: fetches from 10 and 12 name
// the aborted one, from 19 there is an empty list, and no list for read_uncommitted. In every version, and in a session.
func TestS047_aborted_lists(t *testing.T) {
	t.Parallel()
	c := transactional(t)
	tp, one, two := c.topic(1, calm), c.producerID(), c.producerID()
	c.mustProduce(tp, 0, plain(10, stamp))
	c.store(tp, txnBatch(one, 0, 0, 5), 10)
	c.store(tp, txnBatch(two, 0, 0, 3), 15)
	c.mustEnd(tp, one, 0, false)
	c.mustEnd(tp, two, 0, true)
	named := fmt.Sprintf("[%d@10]", one)
	for version := int16(4); version <= 18; version++ {
		from := tp
		if version < 13 {
			from.id = [16]byte{}
		}
		for _, row := range []struct {
			offset int64
			want   string
		}{{10, named}, {12, named}, {18, named}, {19, "[]"}, {20, "[]"}} {
			req := fetchRequest(at(from, row.offset))
			req.IsolationLevel = 1
			if got := aborted(c.only(c.fetchAll(version, req))); got != row.want {
				t.Errorf("v%d from %d: %s, want %s", version, row.offset, got, row.want)
			}
		}
		if got := aborted(c.only(c.fetchAll(version, fetchRequest(at(from, 10))))); got != "null" {
			t.Errorf("v%d: read_uncommitted is given %s", version, got)
		}
	}
	begin := fetchRequest(at(tp, 0))
	begin.IsolationLevel, begin.SessionEpoch = 1, 0
	first := c.fetchAll(12, begin)
	if got := c.only(first); aborted(got) != named {
		t.Errorf("session: %s", aborted(got))
	}
	s := &session{c: c, version: 12, id: first.SessionID, epoch: 1}
	next := s.request(0, at(tp, 19))
	next.IsolationLevel = 1
	if got := c.only(s.send(next)); aborted(got) != "[]" || baseOffsets(t, got) != "[19]" {
		t.Errorf("session from 19: %s %s", aborted(got), baseOffsets(t, got))
	}
	idle := s.request(0, at(tp, 20))
	idle.IsolationLevel = 1
	if got := s.send(idle); len(got.Topics) != 0 {
		t.Errorf("nothing is new: %+v", got.Topics)
	}
}

// TestB074_fetch_inside_an_aborted_transaction: aborted from 10 to its marker at 15: named for fetches from 10, 12 and 15,
// not from 16.
func TestB074_fetch_inside_an_aborted_transaction(t *testing.T) {
	t.Parallel()
	c := transactional(t)
	tp, id := c.topic(1, calm), c.producerID()
	c.mustProduce(tp, 0, plain(10, stamp))
	c.store(tp, txnBatch(id, 0, 0, 5), 10)
	c.mustEnd(tp, id, 0, false)
	c.store(tp, txnBatch(id, 0, 5, 1), 16)
	c.mustEnd(tp, id, 0, true)
	named := fmt.Sprintf("[%d@10]", id)
	for offset, want := range map[int64]string{10: named, 12: named, 15: named, 16: "[]"} {
		if got := aborted(c.committed(tp, offset)); got != want {
			t.Errorf("from %d: %s, want %s", offset, got, want)
		}
	}
}

// TestE031_E039_read_committed_waits: a transaction is open from 20, the log ends at 25: latest is 25 for read_uncommitted
// and 20 for read_committed, the time of record 22 is found by the former alone. A read_committed fetch at 20 waits while
// the high watermark rises, and the abort brings it the records with the aborted transaction.
func TestE031_E039_read_committed_waits(t *testing.T) {
	t.Parallel()
	c, other := transactional(t), transactional(t)
	tp, id := c.topic(1, calm), c.producerID()
	epoch := c.leaderEpoch(tp)
	c.mustProduce(tp, 0, plain(20, stamp-100))
	c.store(tp, txnBatch(id, 0, 0, 5), 20)
	list := func(isolation int8, timestamp int64) found {
		req := offsetsRequest(tp, -1, timestamp, 0)
		req.IsolationLevel = isolation
		p := do[*kmsg.ListOffsetsResponse](c, 11, req).Topics[0].Partitions[0]
		return found{p.Offset, p.Timestamp, p.LeaderEpoch}
	}
	for _, row := range []struct {
		isolation int8
		timestamp int64
		want      found
	}{{0, -1, found{25, -1, epoch}}, {1, -1, found{20, -1, epoch}}, {0, stamp + 2, found{22, stamp + 2, epoch}}, {1, stamp + 2, found{-1, -1, -1}},
		{0, -3, found{24, stamp + 4, epoch}}, {1, -3, found{-1, -1, -1}}, {1, -2, found{0, -1, epoch}}} {
		if got := list(row.isolation, row.timestamp); got != row.want {
			t.Errorf("isolation %d, time %d: %+v, want %+v", row.isolation, row.timestamp, got, row.want)
		}
	}
	req := fetchRequest(at(tp, 20))
	req.IsolationLevel, req.MaxWaitMillis = 1, int32(patience.Milliseconds())
	correlation := c.send(12, req)
	other.mustProduce(tp, 0, plain(1, stamp)) // the high watermark rises, the last stable offset does not
	if p := other.committed(tp, 20); p.LastStableOffset != 20 || p.HighWatermark != 26 || len(p.RecordBatches) != 0 {
		t.Errorf("open: last stable offset %d, high watermark %d, %d bytes", p.LastStableOffset, p.HighWatermark, len(p.RecordBatches))
	}
	_ = c.conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if _, err := c.conn.Read(make([]byte, 1)); err == nil {
		t.Fatal("the fetch was answered while the transaction was open")
	}
	_ = c.conn.SetReadDeadline(time.Now().Add(patience))
	began := time.Now()
	other.mustEnd(tp, id, 0, false)
	p := c.only(c.answer(12, req, correlation).(*kmsg.FetchResponse))
	if baseOffsets(t, p) != "[20 25 26]" || aborted(p) != fmt.Sprintf("[%d@20]", id) || p.LastStableOffset != 27 {
		t.Errorf("answer: %s %s, last stable offset %d", baseOffsets(t, p), aborted(p), p.LastStableOffset)
	}
	if took := time.Since(began); took > patience/2 {
		t.Errorf("after %v", took)
	}
}

// TestB005_parked_fetch_names_aborted: a fetch that waits at the end of the log is answered with the records of an aborted
// transaction and its name; one from an offset in a second segment names both that were aborted there, by first offset.
func TestB005_parked_fetch_names_aborted(t *testing.T) {
	t.Parallel()
	c, other := transactional(t), transactional(t)
	tp, id := c.topic(1, calm, "segment.bytes=1048576"), c.producerID()
	big := func(stamp int64) []byte { return sized(600_000, stamp) }
	req := fetchRequest(at(tp, 0))
	req.IsolationLevel, req.MaxWaitMillis = 1, int32(patience.Milliseconds())
	correlation := c.send(12, req)
	other.store(tp, txnBatch(id, 0, 0, 3), 0)
	other.mustEnd(tp, id, 0, false)
	p := c.only(c.answer(12, req, correlation).(*kmsg.FetchResponse))
	if baseOffsets(t, p) != "[0 3]" || aborted(p) != fmt.Sprintf("[%d@0]", id) {
		t.Errorf("parked: %s %s", baseOffsets(t, p), aborted(p))
	}
	c.mustProduce(tp, 0, big(stamp))
	c.mustProduce(tp, 0, big(stamp)) // 5: a segment of its own
	one, two := c.producerID(), c.producerID()
	c.store(tp, txnBatch(one, 0, 0, 1), 6)
	c.store(tp, txnBatch(two, 0, 0, 1), 7)
	c.mustProduce(tp, 0, plain(1, stamp))
	c.mustEnd(tp, two, 0, false)
	c.mustEnd(tp, one, 0, false)
	if p := c.committed(tp, 6); aborted(p) != fmt.Sprintf("[%d@6 %d@7]", one, two) {
		t.Errorf("second segment: %s, want those of %d and %d", aborted(p), one, two)
	}
}

// TestB129_all_producers_are_described: an idempotent producer, one whose transaction has ended and one whose transaction
// is open are described, with what is known of each and -1 for what is not; a partition that is not there is 3; the same
// after a kill and a restart.
func TestB129_all_producers_are_described(t *testing.T) {
	t.Parallel()
	n := start(t, verificationOff)
	c := n.dial(t)
	tp := c.topic(1, calm)
	c.mustProduce(tp, 0, idempotent(100, 3, 0, 5))
	c.store(tp, txnBatch(101, 1, 0, 2), 5)
	if code := c.endTxn(mark(101, 1, true, 9, tp, 0)); code != 0 {
		t.Fatal(code)
	}
	c.store(tp, txnBatch(102, 0, 0, 1), 8)
	c.store(tp, txnBatch(102, 0, 1, 1), 9)
	describe := func() string {
		var text string
		for _, p := range c.producers(tp, 0)[0].ActiveProducers {
			text += fmt.Sprintf("(%d e%d seq %d time %d coordinator %d from %d)", p.ProducerID, p.ProducerEpoch, p.LastSequence, p.LastTimestamp-stamp, p.CoordinatorEpoch, p.CurrentTxnStartOffset)
		}
		return text
	}
	first := describe()
	ended := c.producers(tp, 0)[0].ActiveProducers[1].LastTimestamp // the marker's time is the node's
	want := fmt.Sprintf("(100 e3 seq 4 time 4 coordinator -1 from -1)(101 e1 seq 1 time %d coordinator 9 from -1)(102 e0 seq 1 time 1 coordinator -1 from 8)", ended-stamp)
	if first != want {
		t.Errorf("%s\nwant %s", first, want)
	}
	if got := c.producers(tp, 1, 0); got[0].ErrorCode != 3 || got[1].ErrorCode != 0 || got[0].Partition != 1 {
		t.Errorf("a partition that is not there: %+v", got)
	}
	for name, code := range map[string]int16{"no-such-topic": 3, "no such topic": 17, "": 17} {
		if got := c.producers(topic{name: name}, 0, 1); len(got) != 2 || got[0].ErrorCode != code || got[1].ErrorCode != code {
			t.Errorf("topic %q: %+v", name, got)
		}
	}
	for _, restart := range []func(){func() { n.kill() }, func() { n.stop(t) }} {
		restart()
		n.run(t)
		c = n.dial(t)
		c.led(tp, 1)
		if got := describe(); got != want {
			t.Errorf("after a restart: %s\nwant %s", got, want)
		}
		if got := c.stable(tp); got != 8 {
			t.Errorf("after a restart the last stable offset is %d, want 8", got)
		}
	}
	c.mustEnd(tp, 102, 0, false)
	if p := c.committed(tp, 0); aborted(p) != "[102@8]" || p.LastStableOffset != 11 {
		t.Errorf("aborted %s, last stable offset %d", aborted(p), p.LastStableOffset)
	}
}

// TestB147_operator_aborts: an administrator ends a transaction that hangs: 0, and the last stable offset moves; with an
// older epoch 47; in a partition without such a transaction 0; and the commit that its coordinator sends later adds no harm.
func TestB147_operator_aborts(t *testing.T) {
	t.Parallel()
	c := transactional(t)
	tp, id := c.topic(2, calm), c.producerID()
	c.store(tp, txnBatch(id, 2, 0, 3), 0)
	found := c.producers(tp, 0)[0].ActiveProducers[0]
	if found.ProducerID != id || found.ProducerEpoch != 2 || found.CurrentTxnStartOffset != 0 {
		t.Fatalf("%+v", found)
	}
	if code := c.endTxn(mark(id, 1, false, 0, tp, 0)); code != 47 || c.stable(tp) != 0 {
		t.Errorf("older epoch: %d, last stable offset %d", code, c.stable(tp))
	}
	if code := c.endTxn(mark(id, 2, false, 0, tp, 0)); code != 0 || c.stable(tp) != 4 {
		t.Errorf("abort: %d, last stable offset %d", code, c.stable(tp))
	}
	if code := c.endTxn(mark(id, 2, false, 0, tp, 1)); code != 0 {
		t.Errorf("no transaction there: %d", code)
	}
	if code := c.endTxn(mark(id, 2, true, 0, tp, 0)); code != 0 || c.stable(tp) != 5 {
		t.Errorf("late commit: %d, last stable offset %d", code, c.stable(tp))
	}
	if p := c.committed(tp, 0); aborted(p) != fmt.Sprintf("[%d@0]", id) {
		t.Errorf("aborted %s", aborted(p))
	}
}

// TestWriteTxnMarkers_many: markers of several producers, for several topics and partitions, are answered by producer, topic
// and partition: one error spoils no other, what is not here is 3, producers that cannot be are 42, two markers of one
// producer have one answer, and a partition that is named twice gets one marker.
func TestWriteTxnMarkers_many(t *testing.T) {
	t.Parallel()
	c := transactional(t)
	a, b := c.topic(2, calm), c.topic(1, calm)
	one, two := c.producerID(), c.producerID()
	c.store(a, txnBatch(one, 0, 0, 1), 0)
	first := mark(one, 0, true, 0, a, 0, 7, 1, 0)
	for _, name := range []string{b.name, "no-such-topic", "__cluster_metadata"} {
		topic := kmsg.NewWriteTxnMarkersRequestMarkerTopic()
		topic.Topic, topic.Partitions = name, []int32{0}
		first.Topics = append(first.Topics, topic)
	}
	impossible := []kmsg.WriteTxnMarkersRequestMarker{mark(-1, 0, true, 0, a, 0), mark(math.MaxInt64, -1, true, 0, a, 0)}
	for version := int16(1); version <= 2; version++ {
		resp := c.markers(version, first, mark(two, 0, false, 0, a, 1), mark(one, 0, true, 0, a, 9), impossible[0], impossible[1])
		got := ""
		for _, m := range resp.Markers {
			got += fmt.Sprintf("%d:", m.ProducerID)
			for _, topic := range m.Topics {
				got += fmt.Sprintf(" %s", topic.Topic)
				for _, p := range topic.Partitions {
					got += fmt.Sprintf(" %d=%d", p.Partition, p.ErrorCode)
				}
			}
			got += "\n"
		}
		want := fmt.Sprintf("%d: %s 0=0 7=3 1=0 9=3 %s 0=0 no-such-topic 0=3 __cluster_metadata 0=3\n%d: %s 1=0\n-1: %s 0=42\n%d: %s 0=42\n",
			one, a.name, b.name, two, a.name, a.name, int64(math.MaxInt64), a.name)
		if got != want {
			t.Errorf("v%d:\n%swant\n%s", version, got, want)
		}
		if end := c.end(a); end != 1+int64(version) {
			t.Errorf("v%d: the log ends at %d, one marker was wanted", version, end)
		}
	}
	if resp := c.markers(1); len(resp.Markers) != 0 {
		t.Errorf("no markers: %+v", resp)
	}
}

// TestS018_marker_on_a_compressed_topic: a marker on a topic with a codec of its own is stored without one, with Kafka's
// bytes; on a topic that takes the server's time it has that.
func TestS018_marker_on_a_compressed_topic(t *testing.T) {
	t.Parallel()
	c := transactional(t)
	for _, settings := range [][]string{{calm, "compression.type=gzip"}, {calm, "compression.type=zstd", "message.timestamp.type=LogAppendTime"}} {
		tp, id := c.topic(1, settings...), c.producerID()
		c.store(tp, txnBatch(id, 5, 0, 2), 0)
		if code := c.endTxn(mark(id, 5, true, 3, tp, 0)); code != 0 {
			t.Fatal(code)
		}
		found := batches(t, c.stored(tp, 0))
		if found[0].Codec() == record.None || !found[0].IsTransactional() || found[0].ProducerID() != id || found[0].BaseSequence() != 0 {
			t.Errorf("%v: data: codec %v, attributes %#x", settings, found[0].Codec(), found[0].Attributes())
		}
		m := found[1]
		at := m.MaxTimestamp()
		if off := time.Since(time.UnixMilli(at)); off < -time.Minute || off > time.Minute {
			t.Errorf("%v: the marker's time is %d", settings, at)
		}
		want := record.NewEndTxnBatch(record.EndTxnMarker{Commit: true, ProducerID: id, ProducerEpoch: 5, CoordinatorEpoch: 3}, m.BaseTimestamp())
		want.SetBaseOffset(2)
		want.SetPartitionLeaderEpoch(m.PartitionLeaderEpoch())
		if len(settings) > 2 {
			want = record.Batch(resealed(put64(put16(want, atAttributes, 0x38), atMaxStamp, at)))
		}
		if string(m) != string(want) {
			t.Errorf("%v: marker\n%x, want\n%x", settings, m, want)
		}
	}
}

// TestTransactionalProduce_is_verified: as long as partitions are verified, a transactional batch is taken only when its
// coordinator confirms it. Where that cannot be asked every version is told to try again (19), and where it knows no such
// transactional id 49: which of them it is depends on whether another test has made the coordinators. Nothing is stored, and the
// neighbours in the request are not touched. Without a transactional id it is 53, and two producers in one request are 49.
// With verification switched off the producers up to version 11 are let in; later ones ask for their partition to be added.
func TestTransactionalProduce_is_verified(t *testing.T) {
	t.Parallel()
	n := shared(t)
	c := n.dial(t)
	tp, id := c.topic(2, calm), c.producerID()
	refused := func(code int16) bool { return code == 19 || code == 49 }
	for version := int16(3); version <= 13; version++ {
		from := tp
		if version < 13 {
			from.id = [16]byte{}
		} else {
			from.name = ""
		}
		if p := c.inTransaction(version, from, txnBatch(id, 0, 0, 1)); !refused(p.ErrorCode) || p.BaseOffset != -1 || version >= 5 && p.LogStartOffset != -1 {
			t.Errorf("v%d: error %d, base offset %d, log start %d", version, p.ErrorCode, p.BaseOffset, p.LogStartOffset)
		}
		p := do[*kmsg.ProduceResponse](c, version, produceRequest(version, -1, from, 0, txnBatch(id, 0, 0, 1))).Topics[0].Partitions[0]
		if p.ErrorCode != 53 {
			t.Errorf("v%d without a transactional id: error %d", version, p.ErrorCode)
		}
	}
	tx := "tx"
	mixed := produceRequest(11, -1, tp, 0, txnBatch(id, 0, 0, 1))
	addProduce(mixed, tp, 1, plain(1, stamp))
	mixed.TransactionID = &tx
	got := do[*kmsg.ProduceResponse](c, 11, mixed).Topics[0].Partitions
	if !refused(got[0].ErrorCode) || got[1].ErrorCode != 0 || got[1].BaseOffset != 0 {
		t.Errorf("neighbours: %+v", got)
	}
	two := produceRequest(11, -1, tp, 0, txnBatch(id, 0, 0, 1))
	addProduce(two, tp, 1, txnBatch(id, 1, 0, 1))
	two.TransactionID = &tx
	for _, p := range do[*kmsg.ProduceResponse](c, 11, two).Topics[0].Partitions {
		if p.ErrorCode != 49 {
			t.Errorf("two producers, partition %d: error %d", p.Partition, p.ErrorCode)
		}
	}
	if got := c.end(tp); got != 0 {
		t.Errorf("the log ends at %d", got)
	}

	open := transactional(t)
	tp = open.topic(1, calm)
	if p := open.inTransaction(12, tp, txnBatch(id, 0, 0, 1)); p.ErrorCode != 19 {
		t.Errorf("v12, not verified: error %d", p.ErrorCode)
	}
	open.store(tp, txnBatch(id, 0, 0, 1), 0)
	if p := open.inTransaction(12, tp, txnBatch(id, 0, 1, 1)); p.ErrorCode != 0 || p.BaseOffset != 1 {
		t.Errorf("v12 in a transaction that is open here: error %d", p.ErrorCode)
	}
}
