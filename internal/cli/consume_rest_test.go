package cli

import (
	"net"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/wire"
)

// A consumer that stops at the end also does so where the last records below it are of an aborted transaction whose marker
// lies above the end, since another transaction is open from there on.
func TestConsumeStopsBehindAbortedRecords(t *testing.T) {
	t.Parallel()
	n, err := startFor(t.Context(), t.TempDir(), "offsets.topic.num.partitions=1", "transaction.partition.verification.enable=false")
	if err != nil {
		t.Fatal(err)
	}
	defer n.stop()
	addr := n.server.Addr("PLAINTEXT").String()
	if r := runAt(addr, "", "topic", "create", "ends"); r.status != 0 {
		t.Fatal(r.err)
	}
	conn, err := wire.Dial(t.Context(), (&net.Dialer{}).DialContext, addr, wire.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	write := func(id int64, value string) {
		t.Helper()
		o := record.BuilderOptions{}
		if id > 0 {
			o.Producer, o.Transactional = &record.Producer{ID: id}, true
		}
		b := record.NewBuilder(o)
		if err := b.Append(time.Now().UnixMilli(), nil, []byte(value), nil); err != nil {
			t.Fatal(err)
		}
		req := kmsg.NewPtrProduceRequest()
		tx := "tx"
		req.Acks, req.TimeoutMillis, req.TransactionID = -1, 10000, &tx
		req.Topics = []kmsg.ProduceRequestTopic{{Topic: "ends", Partitions: []kmsg.ProduceRequestTopicPartition{{Records: b.Bytes()}}}}
		resp, err := conn.Request(t.Context(), atMost{req, 11})
		if err != nil || resp.(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorCode != 0 {
			t.Fatal(err, resp)
		}
	}
	end := func(id int64, commit bool) {
		t.Helper()
		req := kmsg.NewPtrWriteTxnMarkersRequest()
		req.Markers = []kmsg.WriteTxnMarkersRequestMarker{{ProducerID: id, Committed: commit, Topics: []kmsg.WriteTxnMarkersRequestMarkerTopic{{Topic: "ends", Partitions: []int32{0}}}}}
		resp, err := conn.Request(t.Context(), req)
		if err != nil || resp.(*kmsg.WriteTxnMarkersResponse).Markers[0].Topics[0].Partitions[0].ErrorCode != 0 {
			t.Fatal(err, resp)
		}
	}
	write(0, "seen")
	write(1, "aborted")
	write(2, "open")
	end(1, false)
	write(0, "behind what is open")
	for _, row := range []struct{ isolation, group, want string }{
		{"read_committed", "", "seen\n"}, {"read_committed", "g", "seen\n"}, {"read_uncommitted", "", "seen\naborted\nopen\nbehind what is open\n"},
	} {
		args := []string{"consume", "ends", "--stop-at-end", "--isolation", row.isolation}
		if row.group != "" {
			args = append(args, "--group", row.group)
		}
		got := make(chan result, 1)
		go func() { got <- runAt(addr, "", args...) }()
		select {
		case r := <-got:
			if r.status != 0 || r.out != row.want {
				t.Errorf("%v: %+v, want %q", args, r, row.want)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%v does not end", args)
		}
	}
	end(2, true)
	if r := runAt(addr, "", "consume", "ends", "--stop-at-end"); r.out != "seen\nopen\nbehind what is open\n" {
		t.Errorf("%+v", r)
	}
}
