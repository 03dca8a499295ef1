package cli

import (
	"bytes"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/wire"
)

func dialNode(t *testing.T, addr string) *wire.Conn {
	t.Helper()
	c, err := wire.Dial(t.Context(), (&net.Dialer{}).DialContext, addr, wire.DialOptions{ClientID: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// joinRequest is the first join of a member of a client that is old enough to be let in by it, with a subscription
// of size bytes.
func joinRequest(group string, size int) *kmsg.JoinGroupRequest {
	req := kmsg.NewPtrJoinGroupRequest()
	req.Version, req.Group, req.ProtocolType = 3, group, "consumer"
	req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = 30000, 30000
	p := kmsg.NewJoinGroupRequestProtocol()
	p.Name, p.Metadata = "range", bytes.Repeat([]byte{1}, size)
	req.Protocols = append(req.Protocols, p)
	return req
}

// startWithGroups starts a node whose coordinator is there.
func startWithGroups(t *testing.T, set ...string) *node {
	t.Helper()
	n, err := startFor(t.Context(), t.TempDir(), append([]string{"offsets.topic.num.partitions=1"}, set...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.stop)
	addr := n.server.Addr("PLAINTEXT").String()
	if r := runAt(addr, "", "topic", "create", "t"); r.status != 0 {
		t.Fatal(r.err)
	}
	c, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := kadm.NewClient(c).CommitOffsets(t.Context(), "first", kadm.OffsetsFromRecords(kgo.Record{Topic: "t"})); err != nil {
		t.Fatal(err)
	}
	return n
}

// Requests that wait, for records or for the other members of a group, do not keep others out: a group whose joins
// would not all fit into the memory for requests at once still forms, and with thousands of fetches parked a large
// request is served.
func TestParkedRequestsKeepNobodyOut(t *testing.T) {
	t.Parallel()
	n := startWithGroups(t, "group.initial.rebalance.delay.ms=3000", "queued.max.request.bytes=8388608")
	addr := n.server.Addr("PLAINTEXT").String()
	const members = 40
	var wg sync.WaitGroup
	var mu sync.Mutex
	sizes := map[int]int{} // members that a leader was told of, and how many were told of none
	for range members {
		c := dialNode(t, addr)
		wg.Go(func() {
			resp, err := c.RequestVersion(t.Context(), joinRequest("g", 20_000), 3)
			if err != nil {
				t.Error(err)
				return
			}
			joined := resp.(*kmsg.JoinGroupResponse)
			mu.Lock()
			defer mu.Unlock()
			if joined.ErrorCode != 0 || joined.Generation != 1 {
				t.Errorf("error %d, generation %d", joined.ErrorCode, joined.Generation)
			}
			sizes[len(joined.Members)]++
		})
	}
	wg.Wait()
	if sizes[members] != 1 || sizes[0] != members-1 {
		t.Errorf("members told of: %v", sizes)
	}

	for range 300 {
		c := dialNode(t, addr)
		req := kmsg.NewPtrFetchRequest()
		req.Version, req.MaxWaitMillis, req.MinBytes, req.MaxBytes, req.SessionEpoch = 12, 600_000, 1, 1<<20, -1
		for range 20 {
			p := kmsg.NewFetchRequestTopicPartition()
			p.PartitionMaxBytes = 1 << 20
			req.Topics = append(req.Topics, kmsg.FetchRequestTopic{Topic: "t", Partitions: []kmsg.FetchRequestTopicPartition{p}})
		}
		go func() { _, _ = c.Request(t.Context(), req) }() // it ends with the connection
	}
	c := dialNode(t, addr)
	begun := time.Now()
	large := kmsg.NewPtrMetadataRequest()
	large.Version = 9
	for range 500 {
		large.Topics = append(large.Topics, kmsg.MetadataRequestTopic{Topic: new("t")})
	}
	if _, err := c.Request(t.Context(), large); err != nil || time.Since(begun) > 10*time.Second {
		t.Errorf("%v after %v", err, time.Since(begun))
	}
}
