//go:build chaos

package chaos

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/bench/probe"
	"github.com/stelelog/stele/internal/record"
)

// harmed is the 99th percentile of a write and its read from which on another client was not let alone. It is no
// figure of merit: these tests share their two cores with the attack.
const harmed = 3 * time.Second

// An attack is what many clients do at once for a while.
type attack struct {
	name  string
	conns int
	for_  time.Duration
	// once is done again and again by each; it gets a number that none has had before.
	once func(n *node, turn int64) error
	// most is what it may add to the resident memory, in bytes.
	most  int64
	times int64 // at most so often, 0 for as long as there is time
}

// TestFloods: what clients may make a node remember is bounded by settings, and others are served meanwhile.
func TestFloods(t *testing.T) {
	n := newNode(t, "group.initial.rebalance.delay.ms=3000", "offsets.topic.num.partitions=4", "num.partitions=1",
		"group.coordinator.max.bytes=33554432", "producer.id.max.count=50000", "max.incremental.fetch.session.cache.bytes=16777216")
	n.start()
	n.mustAck("probe", "probe-1")
	n.createTopic("wide", 50)
	n.createTopic("pieces", 20)
	n.fillEach("pieces", 20, 50_000)
	if _, err := kadm.NewClient(n.client()).CommitOffsets(t.Context(), "first", kadm.OffsetsFromRecords(kgo.Record{Topic: "wide"})); err != nil {
		t.Fatal(err) // with it there is a topic of offsets
	}
	for _, a := range []attack{
		{"fetch sessions", 20, 4 * time.Second, floodSession, aboveIdle, 0},
		{"groups with large members", 40, 4 * time.Second, floodMember, aboveIdle, 0},
		{"groups that commit", 20, 4 * time.Second, floodCommit, aboveIdle, 0},
		{"producer ids", 4, 6 * time.Second, floodProducers, aboveIdle, 0},
		{"large answers, not read", 50, 4 * time.Second, floodUnread, aboveIdle, 0},
		{"records, not read", 300, 4 * time.Second, floodUnreadRecords, aboveIdle, 0},
		{"requests that come slowly", 700, 4 * time.Second, floodSlowly, aboveIdle, 0},
		{"topics by Metadata", 8, 4 * time.Second, floodTopics, aboveIdle, 1200}, // each topic that is made stays, and takes memory
	} {
		t.Run(a.name, func(t *testing.T) {
			before := n.settled(500 * time.Millisecond)
			if err := probe.ResetPeak(n.pid()); err != nil {
				t.Fatal(err)
			}
			by := startBystander(n)
			var done atomic.Int64
			var first atomic.Value
			var wg sync.WaitGroup
			end := time.Now().Add(a.for_)
			for range a.conns {
				wg.Go(func() {
					for time.Now().Before(end) && (a.times == 0 || done.Load() < a.times) {
						if err := a.once(n, done.Add(1)); err != nil {
							first.CompareAndSwap(nil, err.Error())
						}
					}
				})
			}
			wg.Wait()
			served := by.mustStop(t)
			n.mustRun()
			peak, err := probe.PeakRSS(n.pid())
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d times: peak %d MB, %d above before; bystander %v; first trouble: %v", done.Load(), peak>>20, (peak-before)>>20, served, first.Load())
			if peak-before > a.most {
				t.Errorf("%d MB above before, want at most %d", (peak-before)>>20, a.most>>20)
			}
			if served.p99 > harmed {
				t.Errorf("a bystander was harmed: %v\n%s", served, n.log())
			}
		})
	}
}

func (n *node) createTopic(topic string, partitions int32) {
	n.t.Helper()
	c := kadm.NewClient(n.client())
	if _, err := c.CreateTopic(n.t.Context(), partitions, 1, nil, topic); err != nil {
		n.t.Fatal(err)
	}
}

// fillEach writes a record of size random bytes to each partition.
func (n *node) fillEach(topic string, partitions int32, size int) {
	n.t.Helper()
	c := n.client(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(kgo.NoCompression()))
	value := make([]byte, size)
	for i := range value {
		value[i] = byte(rand.Uint32())
	}
	for p := range partitions {
		if err := c.ProduceSync(n.t.Context(), &kgo.Record{Topic: topic, Partition: p, Value: value}).FirstErr(); err != nil {
			n.t.Fatal(err)
		}
	}
}

// fill writes count records of size random bytes.
func (n *node) fill(topic string, count, size int) {
	n.t.Helper()
	c := n.client(kgo.DefaultProduceTopic(topic), kgo.ProducerBatchCompression(kgo.NoCompression()))
	value := make([]byte, size)
	for i := range value {
		value[i] = byte(rand.Uint32())
	}
	for range count {
		if err := c.ProduceSync(n.t.Context(), &kgo.Record{Value: value}).FirstErr(); err != nil {
			n.t.Fatal(err)
		}
	}
}

// ask sends one request on a connection of its own and gives the answer.
func (n *node) ask(req kmsg.Request) (kmsg.Response, error) {
	c, err := probe.Dial(n.addr(), 10*time.Second)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Request(req)
}

// abandon sends one request and goes, without its answer, once the node has had time to begin with it.
func (n *node) abandon(req kmsg.Request, stay time.Duration) error {
	c, err := n.send(frameOf(req))
	if err != nil {
		return err
	}
	time.Sleep(stay)
	return c.Close()
}

func (n *node) send(frame []byte) (net.Conn, error) {
	c, err := net.Dial("tcp", n.addr())
	if err != nil {
		return nil, err
	}
	if _, err := c.Write(frame); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func frameOf(req kmsg.Request) []byte {
	return framed(req.AppendTo(header(req.Key(), req.GetVersion(), req.IsFlexible())))
}

// floodSession begins a fetch session with a thousand partitions and leaves it behind.
func floodSession(n *node, turn int64) error {
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.MaxWaitMillis, req.MinBytes, req.MaxBytes = 12, 0, 0, 1
	for i := range 20 {
		topic := kmsg.FetchRequestTopic{Topic: fmt.Sprintf("session-%d-%d", turn, i)}
		for p := range int32(50) {
			part := kmsg.NewFetchRequestTopicPartition()
			part.Partition = p
			topic.Partitions = append(topic.Partitions, part)
		}
		req.Topics = append(req.Topics, topic)
	}
	_, err := n.ask(req)
	return err
}

// floodMember joins a group of its own with 100 KB of subscription and goes at once.
func floodMember(n *node, turn int64) error {
	req := kmsg.NewPtrJoinGroupRequest()
	req.Version, req.Group, req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = 3, fmt.Sprintf("flood-%d", turn), 1_800_000, 1_800_000
	req.ProtocolType = "consumer"
	p := kmsg.NewJoinGroupRequestProtocol()
	p.Name, p.Metadata = "range", bytes.Repeat([]byte{1}, 100_000)
	req.Protocols = append(req.Protocols, p)
	return n.abandon(req, 10*time.Millisecond)
}

// floodCommit commits an offset for a group that nobody has heard of, with all the metadata that is allowed.
func floodCommit(n *node, turn int64) error {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Version, req.Group, req.Generation = 7, fmt.Sprintf("commit-%d", turn), -1
	topic := kmsg.OffsetCommitRequestTopic{Topic: "wide"}
	metadata := string(bytes.Repeat([]byte{'m'}, 4096))
	for i := range int32(50) {
		p := kmsg.NewOffsetCommitRequestTopicPartition()
		p.Partition, p.Metadata = i, &metadata
		topic.Partitions = append(topic.Partitions, p)
	}
	req.Topics = append(req.Topics, topic)
	resp, err := n.ask(req)
	if err != nil {
		return err
	}
	if code := resp.(*kmsg.OffsetCommitResponse).Topics[0].Partitions[0].ErrorCode; code != 0 {
		return kerr.ErrorForCode(code)
	}
	return nil
}

// floodProducers writes as fifty producers at once, each new, again and again.
func floodProducers(n *node, turn int64) error {
	c, err := probe.Dial(n.addr(), 10*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	for round := range int64(100) {
		req := kmsg.NewPtrProduceRequest()
		req.Version, req.Acks, req.TimeoutMillis = 9, 1, 10_000
		topic := kmsg.ProduceRequestTopic{Topic: "wide"}
		for i := range int32(50) {
			b := record.NewBuilder(record.BuilderOptions{Producer: &record.Producer{ID: 1<<40 + turn<<20 + round<<8 + int64(i)}})
			if err := b.Append(time.Now().UnixMilli(), nil, []byte("x"), nil); err != nil {
				return err
			}
			topic.Partitions = append(topic.Partitions, kmsg.ProduceRequestTopicPartition{Partition: i, Records: b.Bytes()})
		}
		req.Topics = append(req.Topics, topic)
		resp, err := c.Request(req)
		if err != nil {
			return err
		}
		if code := resp.(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorCode; code != 0 {
			return fmt.Errorf("error code %d", code)
		}
	}
	return nil
}

// floodUnread asks for what is long to tell, and reads none of it.
func floodUnread(n *node, turn int64) error {
	req := kmsg.NewPtrDescribeConfigsRequest()
	req.Version, req.IncludeSynonyms, req.IncludeDocumentation = 4, true, true
	for range 200 {
		req.Resources = append(req.Resources, kmsg.DescribeConfigsRequestResource{ResourceType: kmsg.ConfigResourceTypeTopic, ResourceName: "wide"})
	}
	c, err := n.send(frameOf(req))
	if err != nil {
		return err
	}
	time.Sleep(2 * time.Second)
	return c.Close()
}

// floodUnreadRecords asks for a MB in small pieces, which are copied, and reads none of it.
func floodUnreadRecords(n *node, turn int64) error {
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.MinBytes, req.MaxBytes, req.SessionEpoch = 12, 1, 2<<20, -1
	topic := kmsg.FetchRequestTopic{Topic: "pieces"}
	for p := range int32(20) {
		part := kmsg.NewFetchRequestTopicPartition()
		part.Partition, part.PartitionMaxBytes = p, 60_000
		topic.Partitions = append(topic.Partitions, part)
	}
	req.Topics = append(req.Topics, topic)
	c, err := n.send(frameOf(req))
	if err != nil {
		return err
	}
	time.Sleep(3 * time.Second)
	return c.Close()
}

// floodSlowly claims a request of 20 KB, sends a fifth of it and waits, until it is cut off or time is up.
func floodSlowly(n *node, turn int64) error {
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks, req.TimeoutMillis = 9, 1, 10_000
	req.Topics = []kmsg.ProduceRequestTopic{{Topic: "wide", Partitions: []kmsg.ProduceRequestTopicPartition{{Records: make([]byte, 20_000)}}}}
	c, err := n.send(frameOf(req)[:4200])
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetReadDeadline(time.Now().Add(3 * time.Second)); err != nil {
		return err
	}
	_, _ = c.Read(make([]byte, 1)) // nothing will come; it ends when the time is up or the node has had enough
	return nil
}

// floodTopics makes ten topics by asking for their metadata.
func floodTopics(n *node, turn int64) error {
	req := kmsg.NewPtrMetadataRequest()
	req.Version, req.AllowAutoTopicCreation = 7, true
	for i := range 10 {
		req.Topics = append(req.Topics, kmsg.MetadataRequestTopic{Topic: kmsg.StringPtr(fmt.Sprintf("made-%d-%d", turn, i))})
	}
	_, err := n.ask(req)
	return err
}
