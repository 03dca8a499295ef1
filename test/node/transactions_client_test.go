package node

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/record"
)

// verificationOff lets transactional batches in that no coordinator knows of.
const verificationOff = "transaction.partition.verification.enable=false"

// calm keeps a marker, which has the node's time, in the segment of old records.
const calm = "segment.ms=9000000000000000000"

var unverified struct {
	once sync.Once
	n    *node
	err  error
}

// transactional is a node that takes transactional batches unverified, shared by the tests, each with topics and
// producer ids of its own.
func transactional(t testing.TB) *client {
	t.Helper()
	if target := os.Getenv("STELE_NODE_TARGET"); target != "" {
		return (&node{addr: target}).dial(t)
	}
	stele := built(t)
	unverified.once.Do(func() {
		n := &node{dir: filepath.Join(buildDir, "unverified"), set: []string{verificationOff}}
		if unverified.err = n.launch(stele); unverified.err == nil {
			unverified.n = n
		}
	})
	if unverified.err != nil {
		t.Fatal(unverified.err)
	}
	return unverified.n.dial(t)
}

// txnBatch is a batch of n records in a transaction.
func txnBatch(id int64, epoch int16, sequence int32, n int) []byte {
	records := make([]rec, n)
	for i := range records {
		records[i] = rec{stamp + int64(sequence) + int64(i), []byte("k"), fmt.Appendf(nil, "t%d", int(sequence)+i)}
	}
	return batch(record.BuilderOptions{Producer: &record.Producer{ID: id, Epoch: epoch, BaseSequence: sequence}, Transactional: true}, records...)
}

// inTransaction produces a batch under a transactional id, at the last version whose producers add partitions to their
// transactions themselves.
func (c *client) inTransaction(version int16, tp topic, records []byte) kmsg.ProduceResponseTopicPartition {
	c.t.Helper()
	req := produceRequest(version, -1, tp, 0, records)
	id := "tx-" + tp.name
	req.TransactionID = &id
	return do[*kmsg.ProduceResponse](c, version, req).Topics[0].Partitions[0]
}

// store appends a transactional batch, which must get this offset.
func (c *client) store(tp topic, records []byte, want int64) {
	c.t.Helper()
	if p := c.inTransaction(11, tp, records); p.ErrorCode != 0 || p.BaseOffset != want {
		c.t.Fatalf("produce in a transaction: error %d (%s), base offset %d, want %d", p.ErrorCode, deref(p.ErrorMessage), p.BaseOffset, want)
	}
}

// mark is a marker for partitions of one topic.
func mark(id int64, epoch int16, commit bool, coordinator int32, tp topic, partitions ...int32) kmsg.WriteTxnMarkersRequestMarker {
	m := kmsg.NewWriteTxnMarkersRequestMarker()
	m.ProducerID, m.ProducerEpoch, m.Committed, m.CoordinatorEpoch = id, epoch, commit, coordinator
	topic := kmsg.NewWriteTxnMarkersRequestMarkerTopic()
	topic.Topic, topic.Partitions = tp.name, partitions
	m.Topics = append(m.Topics, topic)
	return m
}

func (c *client) markers(version int16, markers ...kmsg.WriteTxnMarkersRequestMarker) *kmsg.WriteTxnMarkersResponse {
	c.t.Helper()
	req := kmsg.NewPtrWriteTxnMarkersRequest()
	req.Markers = markers
	return do[*kmsg.WriteTxnMarkersResponse](c, version, req)
}

// endTxn writes one marker to partition 0 and returns its error.
func (c *client) endTxn(m kmsg.WriteTxnMarkersRequestMarker) int16 {
	c.t.Helper()
	version := int16(1)
	if m.TransactionVersion > 0 {
		version = 2
	}
	return c.markers(version, m).Markers[0].Topics[0].Partitions[0].ErrorCode
}

// mustEnd is endTxn that must succeed.
func (c *client) mustEnd(tp topic, id int64, epoch int16, commit bool) {
	c.t.Helper()
	if code := c.endTxn(mark(id, epoch, commit, 0, tp, 0)); code != 0 {
		c.t.Fatalf("marker of producer %d: error %d", id, code)
	}
}

// producers describes those of partition 0.
func (c *client) producers(tp topic, partitions ...int32) []kmsg.DescribeProducersResponseTopicPartition {
	c.t.Helper()
	req := kmsg.NewPtrDescribeProducersRequest()
	wanted := kmsg.NewDescribeProducersRequestTopic()
	wanted.Topic, wanted.Partitions = tp.name, partitions
	req.Topics = append(req.Topics, wanted)
	return do[*kmsg.DescribeProducersResponse](c, 0, req).Topics[0].Partitions
}

// committed fetches as a read_committed consumer does.
func (c *client) committed(tp topic, offset int64) kmsg.FetchResponseTopicPartition {
	c.t.Helper()
	req := fetchRequest(at(tp, offset))
	req.IsolationLevel = 1
	return c.only(c.fetchAll(11, req))
}

// aborted is the list of a fetch in short; "null" is not the same as an empty one.
func aborted(p kmsg.FetchResponseTopicPartition) string {
	if p.AbortedTransactions == nil {
		return "null"
	}
	text := []string{}
	for _, a := range p.AbortedTransactions {
		text = append(text, fmt.Sprintf("%d@%d", a.ProducerID, a.FirstOffset))
	}
	return fmt.Sprint(text)
}

// baseOffsets are those of the batches of a fetch.
func baseOffsets(t testing.TB, p kmsg.FetchResponseTopicPartition) string {
	t.Helper()
	var all []int64
	for _, b := range batches(t, p.RecordBatches) {
		all = append(all, b.BaseOffset())
	}
	return fmt.Sprint(all)
}

// stable is the last stable offset as ListOffsets says it to read_committed.
func (c *client) stable(tp topic) int64 {
	c.t.Helper()
	req := offsetsRequest(tp, -1, -1, 0)
	req.IsolationLevel = 1
	return do[*kmsg.ListOffsetsResponse](c, 11, req).Topics[0].Partitions[0].Offset
}
