package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/wire"
)

// A transaction that is open is listed, described and found with its client and host; one that no coordinator knows of is
// found as hanging, and aborted, after which consumers go on. One that its coordinator has open, or that is young, is not
// aborted without force.
func TestTxn(t *testing.T) {
	t.Parallel()
	n, err := startFor(t.Context(), t.TempDir(), "offsets.topic.num.partitions=1", "transaction.state.log.num.partitions=1", "transaction.partition.verification.enable=false")
	if err != nil {
		t.Fatal(err)
	}
	defer n.stop()
	addr := n.server.Addr("PLAINTEXT").String()
	run := func(status int, args ...string) string {
		t.Helper()
		r := runAt(addr, "", args...)
		if r.status != status {
			t.Fatalf("%v: status %d: %s%s", args, r.status, r.out, r.err)
		}
		return r.out + r.err
	}
	show := func(value any, args ...string) {
		t.Helper()
		if err := json.Unmarshal([]byte(run(0, append(args, "--output", "json")...)), value); err != nil {
			t.Fatal(err)
		}
	}
	run(0, "topic", "create", "made", "-p", "2")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.TransactionalID("billing"), kgo.ClientID("biller"), kgo.DefaultProduceTopic("made"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := cl.ProduceSync(ctx, kgo.StringRecord("v")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	hang(t, addr, "made", 1, 987654, time.UnixMilli(1700000000000))

	var listed []listedTxn
	if show(&listed, "txn", "list", "--state", "ongoing"); len(listed) != 1 || listed[0].ID != "billing" || listed[0].State != "Ongoing" || listed[0].Coordinator != 1 {
		t.Errorf("%+v", listed)
	}
	for _, args := range [][]string{{"--state", "Empty"}, {"--longer-than", "1h"}, {"--pattern", "bill"}, {"--producer-id", "987654"}} {
		if show(&listed, append([]string{"txn", "list"}, args...)...); len(listed) != 0 {
			t.Errorf("%v: %+v", args, listed)
		}
	}
	var described []txnView
	show(&described, "txn", "describe", "billing")
	if v := described[0]; v.State != "Ongoing" || v.ClientID != "biller" || !strings.HasPrefix(v.ClientHost, "/127.0.0.1") || v.AgeMs < 0 || fmt.Sprint(v.Partitions["made"]) != "[0]" {
		t.Errorf("%+v", v)
	}
	if out := run(0, "txn", "describe", "billing"); !strings.Contains(out, "biller at /127.0.0.1") {
		t.Error(out)
	}
	if out := run(1, "txn", "describe", "nobody"); !strings.Contains(out, "stele txn list") {
		t.Error(out)
	}

	var held []heldView
	show(&held, "txn", "find-hanging", "--all", "--topic", "made")
	if len(held) != 2 || held[0].Hanging || held[0].ID != "billing" || held[0].ClientID != "biller" || held[0].StartOffset != 0 || held[1].ID != "" || held[1].ProducerID != 987654 {
		t.Errorf("%+v", held)
	}
	if show(&held, "txn", "find-hanging", "--older-than", "1ms"); len(held) != 1 || !held[0].Hanging || held[0].Partition != 1 {
		t.Errorf("%+v", held)
	}
	if out := run(0, "txn", "find-hanging", "--all"); !strings.Contains(out, "HANGING") || !strings.Contains(out, "biller") {
		t.Error(out)
	}
	if out := run(1, "txn", "abort", "made", "0", "--producer-id", fmt.Sprint(described[0].ProducerID)); !strings.Contains(out, "biller") || !strings.Contains(out, "--force") {
		t.Error(out)
	}
	run(1, "txn", "abort", "made", "1", "--producer-id", "1")
	run(2, "txn", "abort", "made", "1")
	run(2, "txn", "abort", "made", "x", "--producer-id", "1")
	run(0, "txn", "abort", "made", "1", "--producer-id", "987654")
	if show(&held, "txn", "find-hanging", "--all", "--topic", "made"); len(held) != 1 {
		t.Errorf("after the abort: %+v", held)
	}
	if err := cl.EndTransaction(ctx, kgo.TryCommit); err != nil {
		t.Error(err)
	}
	hang(t, addr, "made", 1, 987655, time.Now())
	if out := run(1, "txn", "abort", "made", "1", "--producer-id", "987655"); !strings.Contains(out, "15m0s") || !strings.Contains(out, "--force") {
		t.Error(out)
	}
	run(0, "txn", "abort", "made", "1", "--producer-id", "987655", "--force")
}

// hang leaves a transaction in a partition that no coordinator knows of.
func hang(t *testing.T, addr, topic string, partition int32, producer int64, at time.Time) {
	t.Helper()
	conn, err := wire.Dial(t.Context(), (&net.Dialer{}).DialContext, addr, wire.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	b := record.NewBuilder(record.BuilderOptions{Producer: &record.Producer{ID: producer, Epoch: 4, BaseSequence: 0}, Transactional: true})
	if err := b.Append(at.UnixMilli(), nil, []byte("v"), nil); err != nil {
		t.Fatal(err)
	}
	req := kmsg.NewPtrProduceRequest()
	id := "gone"
	req.Acks, req.TimeoutMillis, req.TransactionID = -1, 10000, &id
	one := kmsg.NewProduceRequestTopic()
	p := kmsg.NewProduceRequestTopicPartition()
	p.Partition, p.Records = partition, b.Bytes()
	one.Topic, one.Partitions = topic, append(one.Partitions, p)
	req.Topics = append(req.Topics, one)
	resp, err := conn.Request(t.Context(), atMost{req, 11})
	if err != nil {
		t.Fatal(err)
	}
	if got := resp.(*kmsg.ProduceResponse).Topics[0].Partitions[0]; got.ErrorCode != 0 {
		t.Fatalf("produce: error %d", got.ErrorCode)
	}
}
