package cli

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/wire"
)

// The producers of a topic are shown by partition: what is not known of one as a dash, or -1 for scripts; with --open only
// those whose transaction is.
func TestTopicProducers(t *testing.T) {
	t.Parallel()
	n, err := startFor(t.Context(), t.TempDir(), "offsets.topic.num.partitions=1", "transaction.partition.verification.enable=false")
	if err != nil {
		t.Fatal(err)
	}
	defer n.stop()
	addr := n.server.Addr("PLAINTEXT").String()
	must := func(args ...string) string {
		t.Helper()
		r := runAt(addr, "", args...)
		if r.status != 0 {
			t.Fatalf("%v: %s", args, r.err)
		}
		return r.out
	}
	must("topic", "create", "made", "-p", "3")
	conn, err := wire.Dial(t.Context(), (&net.Dialer{}).DialContext, addr, wire.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for partition, transactional := range []bool{false, true} {
		b := record.NewBuilder(record.BuilderOptions{Producer: &record.Producer{ID: int64(70 + partition), Epoch: 4, BaseSequence: 0}, Transactional: transactional})
		for range 3 {
			if err := b.Append(1700000000000, nil, []byte("v"), nil); err != nil {
				t.Fatal(err)
			}
		}
		req := kmsg.NewPtrProduceRequest()
		req.Acks, req.TimeoutMillis = -1, 10000
		if id := "tx"; transactional {
			req.TransactionID = &id
		}
		topic := kmsg.NewProduceRequestTopic()
		p := kmsg.NewProduceRequestTopicPartition()
		p.Partition, p.Records = int32(partition), b.Bytes()
		topic.Topic, topic.Partitions = "made", append(topic.Partitions, p)
		req.Topics = append(req.Topics, topic)
		resp, err := conn.Request(t.Context(), atMost{req, 11})
		if err != nil {
			t.Fatal(err)
		}
		if got := resp.(*kmsg.ProduceResponse).Topics[0].Partitions[0]; got.ErrorCode != 0 {
			t.Fatalf("produce: error %d", got.ErrorCode)
		}
	}
	at := time.UnixMilli(1700000000000).Format(time.RFC3339)
	fields := func(out string) string { return strings.Join(strings.Fields(out), " ") }
	first, second := "0 70 4 2 "+at+" - -", "1 71 4 2 "+at+" - 0"
	if out := fields(must("topic", "producers", "made")); !strings.HasSuffix(out, "OPEN FROM "+first+" "+second) {
		t.Errorf("%s", out)
	}
	if out := fields(must("topic", "producers", "made", "--open", "-p", "0,1")); strings.Contains(out, first) || !strings.HasSuffix(out, second) {
		t.Errorf("%s", out)
	}
	const want = `[ { "topic": "made", "producers": [ { "partition": 0, "producerId": 70, "epoch": 4, "lastSequence": 2, "lastTimestamp": 1700000000000, "coordinatorEpoch": -1, "transactionStartOffset": -1 } ] } ]`
	if out := fields(must("topic", "producers", "made", "-p", "0", "--output", "json")); out != want {
		t.Errorf("%s", out)
	}
	if out := fields(must("topic", "producers", "made", "-p", "2", "--output", "json")); out != `[ { "topic": "made", "producers": [] } ]` {
		t.Errorf("%s", out)
	}
	for _, args := range [][]string{{"topic", "producers", "nowhere"}, {"topic", "producers", "made", "-p", "3"}} {
		if r := runAt(addr, "", args...); r.status != 1 || !strings.Contains(r.err, "UNKNOWN_TOPIC_OR_PARTITION") {
			t.Errorf("%v: %+v", args, r)
		}
	}
}
