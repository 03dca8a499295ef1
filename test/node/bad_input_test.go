package node

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/wire"
)

// status is a line of the process's status, in bytes.
func (n *node) status(t testing.TB, name string) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.cmd.Process.Pid))
	if err != nil {
		t.Skipf("no process status here: %v", err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}
	t.Fatalf("no %s in the process status", name)
	return 0
}

// sockets is how many files the process has open.
func (n *node) sockets(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", n.cmd.Process.Pid))
	if err != nil {
		t.Skipf("no process files here: %v", err)
	}
	return len(entries)
}

// framed puts a size in front.
func framed(b []byte) []byte { return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...) }

// TestB015_lengths_that_lie: requests of some 40 bytes that claim huge arrays, strings or tags close their
// connection, 50 at a time, and cost the node no memory; others go on.
func TestB015_lengths_that_lie(t *testing.T) {
	t.Parallel()
	n := start(t)
	calm := n.dial(t)
	tp := calm.topic(1)
	header := func(version string) string { return "0003" + version + "00000001 0001 78" }
	liars := map[string][]byte{
		"array of 2^31-1":            framed(unhex(header("0001") + "7fffffff" + strings.Repeat("00", 20))),
		"compact array of 2^31-2":    framed(unhex(header("0009") + "00 ffffffff07" + strings.Repeat("00", 20))),
		"string of 32767":            framed(unhex(header("0001") + "00000001 7fff 616263")),
		"negative string":            framed(unhex(header("0001") + "00000001 ffff")),
		"tag beyond the end":         framed(unhex(header("0009") + "00 01 00 00 00 01 00 ffffff7f 00")),
		"header tag beyond the end":  framed(unhex(header("0009") + "01 05 ffffff7f 00")),
		"varint without an end":      framed(unhex(header("0009") + "00 ffffffffffffffffffffff")),
		"produce, 2^31-1 topics":     framed(unhex("0000 0003 00000001 0001 78 ffff 0001 00000001 7fffffff" + strings.Repeat("00", 20))),
		"produce, 2^31-1 partitions": framed(unhex("0000 0009 00000001 0001 78 00 00 0001 00000001 02 02 78 ffffffff0f" + strings.Repeat("00", 20))),
		"produce, records of 2 GiB":  framed(unhex("0000 0003 00000001 0001 78 ffff 0001 00000001 00000001 0001 78 00000001 00000000 7fffffff" + strings.Repeat("00", 20))),
		"fetch, 2^31-1 topics":       framed(unhex("0001 0004 00000001 0001 78 ffffffff 00000000 00000000 00000000 00 7fffffff" + strings.Repeat("00", 20))),
		"frame of 2 GiB":             append(unhex("7fffffff"), make([]byte, 40)...),
		"negative frame":             append(unhex("80000000"), make([]byte, 40)...),
		"client id beyond the end":   framed(unhex("0003 0001 00000001 7000 78")),
		"nothing but a key":          framed(unhex("0003")),
		"no bytes at all":            append(framed(nil), make([]byte, 40)...),
	}
	before := n.status(t, "VmHWM")
	for name, request := range liars {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			var clients []*client
			for range 50 {
				c := n.dial(t)
				_, _ = c.conn.Write(request) // it may be closed while this is written
				clients = append(clients, c)
			}
			for _, c := range clients {
				if tcp, ok := c.conn.(*net.TCPConn); ok {
					_ = tcp.CloseWrite() // a frame that is never completed ends with its sender
				}
				_ = c.conn.SetReadDeadline(time.Now().Add(patience))
				if got, err := c.frame(); err == nil {
					t.Fatalf("answered with %x", got)
				} else if os.IsTimeout(err) {
					t.Fatal("neither answered nor closed")
				}
				c.conn.Close()
			}
		})
	}
	if grown := n.status(t, "VmHWM") - before; grown > 24<<20 {
		t.Errorf("the node grew by %d MB", grown>>20)
	}
	calm.mustProduce(tp, 0, exampleA())
}

// TestS019_gzip_bomb: a batch of a few hundred KB that decompresses to a record of 2 GiB, of which 200 MB
// come, is refused, quickly and without the memory for it.
func TestS019_gzip_bomb(t *testing.T) {
	t.Parallel()
	n := start(t)
	c := n.dial(t)
	tp := c.topic(1)
	var body bytes.Buffer
	w, err := gzip.NewWriterLevel(&body, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = w.Write(unhex("feffffff0f 00 00 00 01 f6ffffff0f")) // the record and its value say 2 GiB
	zeros := make([]byte, 1<<20)
	for range 200 {
		_, _ = w.Write(zeros)
	}
	_ = w.Close()
	bomb := withBody(plain(1, stamp), 1, body.Bytes())
	if len(bomb) > 1<<20 {
		t.Fatalf("the bomb has %d bytes", len(bomb))
	}
	c.mustProduce(tp, 0, exampleA())
	before := n.status(t, "VmHWM")
	begun := time.Now()
	c.refused(9, tp, bomb, 87)
	if took := time.Since(begun); took > time.Second {
		t.Errorf("took %v", took)
	}
	if grown := n.status(t, "VmHWM") - before; grown > 64<<20 {
		t.Errorf("the node grew by %d MB", grown>>20)
	}
}

// TestHalf_a_request: a connection cut in the middle of a Produce stores nothing.
func TestHalf_a_request(t *testing.T) {
	t.Parallel()
	n := shared(t)
	c := n.dial(t)
	tp := c.topic(1)
	req := produceRequest(9, -1, tp, 0, plain(1000, stamp))
	req.SetVersion(9)
	id := "half"
	whole := wire.AppendFrame(nil, func(b []byte) []byte {
		return req.AppendTo(wire.AppendRequestHeader(b, 0, 9, 1, &id, true))
	})
	for _, part := range []int{3, 8, 20, len(whole) / 2, len(whole) - 1} {
		cut := n.dial(t)
		cut.write(whole[:part])
		_ = cut.conn.(*net.TCPConn).CloseWrite()
		cut.closed()
	}
	if end := c.end(tp); end != 0 {
		t.Errorf("the log ends at %d", end)
	}
}

// TestB058_broken_clients: connections that are reset or half closed during a long poll, and silent ones with
// half a frame, are gone soon, with their requests.
func TestB058_broken_clients(t *testing.T) {
	t.Parallel()
	n := start(t, "connections.max.idle.ms=2000")
	c := n.dial(t)
	tp := c.topic(1)
	before := n.sockets(t)
	var halves []*client
	for i := range 60 {
		broken := n.dial(t)
		if i%3 == 2 {
			broken.write(unhex("00000040 0001 000c"))
			continue
		}
		req := fetchRequest(at(tp, 0))
		req.MaxWaitMillis = 30000
		broken.send(12, req)
		if i%3 == 0 {
			_ = broken.conn.(*net.TCPConn).SetLinger(0) // a reset
			broken.conn.Close()
			continue
		}
		_ = broken.conn.(*net.TCPConn).CloseWrite()
		halves = append(halves, broken)
	}
	deadline := time.Now().Add(patience / 2)
	for _, half := range halves {
		_ = half.conn.SetReadDeadline(deadline)
		if _, err := half.frame(); os.IsTimeout(err) {
			t.Fatal("a half closed connection is neither answered nor closed")
		}
	}
	for n.sockets(t) > before {
		if time.Now().After(deadline) {
			t.Fatalf("%d files are open, were %d", n.sockets(t), before)
		}
		n.dial(t).conn.Close()
	}
}

// TestB060_every_version_works: every version of every API that is advertised answers a request of defaults,
// decodable to the last byte; only Produce 0 to 2 is refused when used.
func TestB060_every_version_works(t *testing.T) {
	t.Parallel()
	n := shared(t)
	c := n.dial(t)
	for version := int16(0); version <= 5; version++ {
		if got := do[*kmsg.ApiVersionsResponse](c, version, apiVersions()); got.ErrorCode != 0 || len(got.ApiKeys) < 20 {
			t.Errorf("ApiVersions v%d: error %d, %d APIs", version, got.ErrorCode, len(got.ApiKeys))
		}
	}
	for _, api := range do[*kmsg.ApiVersionsResponse](c, 4, apiVersions()).ApiKeys {
		for version := api.MinVersion; version <= api.MaxVersion; version++ {
			req := kmsg.RequestForKey(api.ApiKey)
			if req == nil || api.ApiKey == 18 {
				continue
			}
			if produce, ok := req.(*kmsg.ProduceRequest); ok {
				produce.Acks = 1 // 0 is not answered
			}
			if filter, ok := req.(*kmsg.DescribeACLsRequest); ok {
				filter.ResourceType, filter.ResourcePatternType, filter.Operation, filter.PermissionType = 1, 1, 1, 1 // one of unknown elements is no filter
			}
			if version > req.MaxVersion() {
				t.Logf("%s v%d is newer than this test knows", kmsg.NameForKey(api.ApiKey), version)
				continue
			}
			t.Run(fmt.Sprintf("%s_v%d", kmsg.NameForKey(api.ApiKey), version), func(t *testing.T) {
				c := n.dial(t)
				correlation := c.send(version, req)
				if api.ApiKey == 0 && version < 3 {
					c.closed()
					return
				}
				c.answer(version, req, correlation)
			})
		}
		refuse := n.dial(t)
		refuse.write(framed(wire.AppendRequestHeader(nil, api.ApiKey, api.MaxVersion+1, 1, nil, false)))
		if api.ApiKey != 18 {
			refuse.closed()
		}
	}
}

func apiVersions() *kmsg.ApiVersionsRequest {
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "node-test", "1"
	return req
}

// Requests that decode but make little sense, and bytes that almost are requests, neither end the node nor make
// a handler panic. STELE_NODE_FUZZ=10m keeps at it.
func TestRandom_requests(t *testing.T) {
	t.Parallel()
	n := start(t)
	tp := n.dial(t).topic(2)
	long := time.Second
	if d, err := time.ParseDuration(os.Getenv("STELE_NODE_FUZZ")); err == nil {
		long = d
	}
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	count := 0
	var conn *client
	for end := time.Now().Add(long); time.Now().Before(end); count++ {
		if conn == nil {
			conn = n.dial(t)
		}
		version, req := randomRequest(r, tp)
		body := req.AppendTo(nil)
		if r.IntN(4) == 0 && len(body) > 0 {
			for range 1 + r.IntN(3) {
				body[r.IntN(len(body))] ^= 1 << r.IntN(8)
			}
			body = body[:len(body)-r.IntN(min(len(body), 3))]
		}
		id := "random"
		frame := framed(append(wire.AppendRequestHeader(nil, req.Key(), version, 1, &id, req.IsFlexible()), body...))
		if _, err := conn.conn.Write(frame); err != nil {
			conn = nil
			continue
		}
		if produce, ok := req.(*kmsg.ProduceRequest); ok && produce.Acks == 0 {
			continue
		}
		_ = conn.conn.SetReadDeadline(time.Now().Add(3 * time.Second))
		if _, err := conn.frame(); err != nil {
			conn.conn.Close()
			conn = nil
		}
	}
	select {
	case <-n.ended:
		t.Fatalf("the node ended:\n%s", n.log())
	default:
	}
	if said := n.log(); strings.Contains(said, "panic") {
		t.Errorf("a handler panicked:\n%s", said)
	}
	fresh := n.topicsAnew(t)
	t.Logf("%d requests, the node then created %s", count, fresh)
}

func (n *node) topicsAnew(t testing.TB) string {
	c := n.dial(t)
	tp := c.topic(1)
	c.mustProduce(tp, 0, exampleA())
	return tp.name
}

// randomRequest is a request whose parts are right, or next to right.
func randomRequest(r *rand.Rand, tp topic) (int16, kmsg.Request) {
	pick := func(values ...int64) int64 { return values[r.IntN(len(values))] }
	odd := func() int64 { return pick(-1<<31, -7, -2, -1, 0, 1, 2, 5, 1000, 1<<31-1) }
	where := tp
	switch r.IntN(6) {
	case 0:
		where = topic{name: "no-such-topic", id: [16]byte{1}}
	case 1:
		where = topic{}
	case 2:
		where = topic{name: "__consumer_offsets", id: tp.id}
	}
	partition := int32(pick(0, 0, 1, 2, -1, 1<<30))
	var req kmsg.Request
	switch r.IntN(7) {
	case 0, 1:
		b := [][]byte{exampleA(), exampleB(), exampleC(), exampleD(), exampleE(), exampleS(), nil, {}, plain(3, stamp)}[r.IntN(9)]
		if len(b) > 0 && r.IntN(2) == 0 {
			b[r.IntN(len(b))] ^= 1 << r.IntN(8)
			if r.IntN(2) == 0 && len(b) > record.HeaderSize {
				b = resealed(b)
			}
		}
		p := produceRequest(0, int16(pick(-1, 0, 1, 2)), where, partition, b)
		p.TimeoutMillis = int32(pick(-1, 0, 1, 100))
		addProduce(p, tp, 0, exampleA())
		req = p
	case 2, 3:
		first := at(where, odd())
		first.partition, first.epoch, first.last, first.max = partition, int32(odd()), int32(odd()), int32(odd())
		f := fetchRequest(first, at(tp, odd()))
		f.ReplicaID, f.MaxBytes, f.MinBytes, f.MaxWaitMillis = int32(pick(-1, -1, -2, -3, 0, 1, 7)), int32(odd()), int32(odd()), int32(pick(0, 1, -5))
		f.SessionID, f.SessionEpoch, f.IsolationLevel = int32(pick(0, 1, -1)), int32(odd()), int8(pick(0, 1, 2, -1))
		f.Rack = "r"
		forget(f, where, partition)
		req = f
	case 4:
		o := offsetsRequest(where, int32(odd()), odd(), partition, 0, 0)
		o.ReplicaID, o.IsolationLevel = int32(odd()), int8(pick(0, 1, 2, -1))
		req = o
	case 5:
		e := kmsg.NewPtrOffsetForLeaderEpochRequest()
		out := kmsg.NewOffsetForLeaderEpochRequestTopic()
		p := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
		p.Partition, p.CurrentLeaderEpoch, p.LeaderEpoch = partition, int32(odd()), int32(odd())
		out.Topic, out.Partitions = where.name, append(out.Partitions, p, p)
		e.Topics = append(e.Topics, out)
		req = e
	default:
		d := kmsg.NewPtrDeleteRecordsRequest()
		out := kmsg.NewDeleteRecordsRequestTopic()
		p := kmsg.NewDeleteRecordsRequestTopicPartition()
		p.Partition, p.Offset = partition, odd()
		out.Topic, out.Partitions = where.name, append(out.Partitions, p, p)
		d.Topics, d.TimeoutMillis = append(d.Topics, out), int32(pick(-1, 0, 10))
		req = d
	}
	api, _ := wire.Lookup(req.Key())
	version := api.Min + int16(r.IntN(int(api.Max-api.Min)+1))
	if req.Key() == 0 {
		version = max(version, 3)
	}
	req.SetVersion(version)
	return version, req
}
