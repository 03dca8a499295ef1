package replica

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/stelelog/stele/internal/log"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/vfs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node is a broker's replica manager with broker id 1 on a file system in memory, and the metadata it is told.
type node struct {
	t     testing.TB
	m     *Manager
	fs    *vfs.Mem
	files vfs.FS // fs, perhaps with faults
	path  string // of the log directory, "" for /data
	more  []string
	// losesLog says that the test loses one: then a stop is not clean.
	losesLog bool
	logs     *bytesLogger
	img      *metadata.Image
	offset   int64
	configs  map[string]TopicConfig
	events   *Events
	altered  chan altered
}

// altered is an AlterPartition the manager asked for.
type altered struct {
	change AlterPartition
	done   func(AlterOutcome, LeaderAndISR)
}

// bytesLogger collects log lines.
type bytesLogger struct {
	mu  sync.Mutex
	all []byte
}

func (b *bytesLogger) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all = append(b.all, p...)
	return len(p), nil
}

func (b *bytesLogger) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.all)
}

// newNode starts a node; the test's end closes it.
func newNode(t testing.TB, with ...func(*Options)) *node {
	t.Helper()
	n := &node{t: t, fs: vfs.NewMem(), logs: &bytesLogger{}, img: metadata.EmptyImage(), configs: map[string]TopicConfig{},
		events: &Events{}, altered: make(chan altered, 100)}
	n.files = n.fs
	n.start(with...)
	t.Cleanup(func() {
		var corrupt *log.CorruptError
		if err := n.m.Close(context.Background(), -1); err != nil && !(n.losesLog && errors.As(err, &corrupt)) {
			t.Errorf("close: %v", err)
		}
	})
	return n
}

// newNodeOn starts a node on files, which stand before mem.
func newNodeOn(t testing.TB, mem *vfs.Mem, files vfs.FS) *node {
	t.Helper()
	n := &node{t: t, fs: mem, files: files, logs: &bytesLogger{}, img: metadata.EmptyImage(), configs: map[string]TopicConfig{},
		events: &Events{}, altered: make(chan altered, 100)}
	n.start()
	t.Cleanup(func() { _ = n.m.Close(context.Background(), -1) })
	return n
}

func (n *node) start(with ...func(*Options)) {
	o := Options{
		BrokerID: 1, Events: n.events, Logger: slog.New(slog.NewTextHandler(n.logs, nil)),
		TopicConfig: func(_ *metadata.Image, topic string) TopicConfig {
			if c, ok := n.configs[topic]; ok {
				return c
			}
			return TopicConfig{MinISR: 1}
		},
		AlterPartition: func(_ metadata.UUID, c AlterPartition, done func(AlterOutcome, LeaderAndISR)) {
			n.altered <- altered{c, done}
		},
	}
	for _, f := range with {
		f(&o)
	}
	n.openDirs(&o)
	n.m = New(o)
	if err := n.m.Load(context.Background(), n.img); err != nil {
		n.t.Fatal(err)
	}
}

// replay applies metadata records as one delta.
func (n *node) replay(records ...metadata.Record) {
	n.t.Helper()
	d := metadata.NewDelta(n.img)
	for _, r := range records {
		if err := d.Replay(r, n.offset); err != nil {
			n.t.Fatal(err)
		}
		n.offset++
	}
	n.img = d.Apply(n.offset-1, 0)
	n.m.Apply(n.img, d)
}

func topicID(name string) metadata.UUID {
	var id metadata.UUID
	copy(id[1:], name)
	return id
}

// create makes a topic whose partitions this node alone holds, or the replicas given.
func (n *node) create(topic string, partitions int32, replicas ...int32) {
	n.t.Helper()
	n.createWithID(topic, topicID(topic), partitions, replicas...)
}

func (n *node) createWithID(topic string, id metadata.UUID, partitions int32, replicas ...int32) {
	n.t.Helper()
	if len(replicas) == 0 {
		replicas = []int32{1}
	}
	records := []metadata.Record{&metadata.TopicRecord{Name: topic, TopicID: id}}
	for p := range partitions {
		records = append(records, &metadata.PartitionRecord{PartitionID: p, TopicID: id, Replicas: replicas, ISR: replicas,
			Leader: replicas[0], Directories: make([]metadata.UUID, len(replicas))})
	}
	n.replay(records...)
}

// elect gives partition 0 of a topic a leader, which raises its leader epoch.
func (n *node) elect(topic string, leader int32) {
	n.t.Helper()
	c := metadata.NewPartitionChange(topicID(topic), 0)
	c.Leader = leader
	n.replay(c)
}

// setISR changes the committed ISR of partition 0.
func (n *node) setISR(topic string, isr ...int32) {
	n.t.Helper()
	c := metadata.NewPartitionChange(topicID(topic), 0)
	c.ISR = isr
	n.replay(c)
}

// register makes brokers known, unfenced, with their id times ten as epoch.
func (n *node) register(ids ...int32) {
	n.t.Helper()
	for _, id := range ids {
		n.replay(&metadata.RegisterBrokerRecord{BrokerID: id, BrokerEpoch: int64(id) * 10})
	}
}

// batch builds a batch with one record per timestamp.
func batch(timestamps ...int64) []byte {
	b := record.NewBuilder(record.BuilderOptions{})
	for i, ts := range timestamps {
		if err := b.Append(ts, nil, fmt.Appendf(nil, "value %d", i), nil); err != nil {
			panic(err)
		}
	}
	return b.Bytes()
}

// stamped builds a batch of count records with timestamps 1000 apart from first.
func stamped(count int, first int64) []byte {
	ts := make([]int64, count)
	for i := range ts {
		ts[i] = first + int64(i)*1000
	}
	return batch(ts...)
}

// produce appends one batch to partition 0 with acks=all and returns its result.
func (n *node) produce(topic string, records []byte) ProduceResult {
	n.t.Helper()
	return n.produceAcks(topic, -1, records)
}

func (n *node) produceAcks(topic string, acks int16, records []byte) ProduceResult {
	n.t.Helper()
	d := n.m.Produce(ProduceRequest{Acks: acks, Timeout: time.Second, Partitions: []ProducePartition{{Topic: topic, Records: records}}})
	<-d.Done()
	return d.Results()[0]
}

func (n *node) mustProduce(topic string, count int) {
	n.t.Helper()
	if r := n.produce(topic, stamped(count, 1000)); r.Err != nil {
		n.t.Fatal(r.Err)
	}
}

// The epochs of fixture F1.
const epochA, epochB, epochC = int32(0), int32(2), int32(5)

// fixtureF1 is topic t: 10 records in epoch a, 5 in b, 5 in c, each with the timestamp 1000 + 1000 times its offset.
func fixtureF1(t testing.TB, with ...func(*Options)) *node {
	t.Helper()
	n := newNode(t, with...)
	n.create("t", 1)
	for epoch, count := range []int{10, 0, 5, 0, 0, 5} {
		if epoch > 0 {
			n.elect("t", 1)
		}
		if count > 0 {
			end := n.partition("t").Positions().End
			if r := n.produce("t", stamped(count, 1000+1000*end)); r.Err != nil || r.BaseOffset != end {
				t.Fatalf("produce at %d: %+v", end, r)
			}
		}
	}
	return n
}

func (n *node) partition(topic string) *Partition {
	n.t.Helper()
	p, err := n.m.Partition(topic, 0)
	if err != nil {
		n.t.Fatal(err)
	}
	return p
}

// consume is a raw consumer's request for partition 0 of topic t.
func consume(offset int64, last, current int32) FetchRequest {
	return FetchRequest{ReplicaID: ConsumerID, ReplicaEpoch: -1, Version: 16, MinBytes: 1, MaxBytes: 1 << 20,
		Partitions: []FetchPartition{{Topic: "t", CurrentLeaderEpoch: current, FetchOffset: offset, LastFetchedEpoch: last,
			LogStartOffset: -1, MaxBytes: 1 << 20}}}
}

// fetch runs a fetch and says what came, in the words of the tables: an error, div(epoch,offset), empty, or the offsets and
// epochs of the batches.
func (n *node) fetch(req FetchRequest) string {
	n.t.Helper()
	res := n.m.Fetch(context.Background(), req)
	defer res.Release()
	return n.say(&res.Partitions[0])
}

func (n *node) say(f *FetchedPartition) string {
	n.t.Helper()
	if f.Err != nil {
		if f.HighWatermark != -1 || f.LastStableOffset != -1 || f.LogStartOffset != -1 {
			n.t.Errorf("offsets beside an error: %+v", f)
		}
		return kind(f.Err)
	}
	if f.HasDiverging {
		return fmt.Sprintf("div(%d,%d)", f.DivergingEpoch.Epoch, f.DivergingEpoch.Offset)
	}
	if f.Records.Length == 0 {
		return "empty"
	}
	buf, err := f.Records.ReadAll(nil)
	if err != nil {
		n.t.Fatal(err)
	}
	s := ""
	for b, err := range record.Batches(buf) {
		if err != nil {
			n.t.Fatal(err)
		}
		s += fmt.Sprintf("[%d-%d e%d]", b.BaseOffset(), b.LastOffset(), b.PartitionLeaderEpoch())
	}
	return s
}

func (n *node) openDirs(o *Options) {
	n.t.Helper()
	dirs, err := log.OpenDirs(log.DirsOptions{FS: n.files, Paths: append([]string{cmp.Or(n.path, "/data")}, n.more...), Logger: o.Logger, OnEvent: n.events.LogEvent,
		OnOffline: func(dir string, cause error) { n.m.DirectoryOffline(dir, cause) }})
	if err != nil {
		n.t.Fatal(err)
	}
	o.Dirs = dirs
}
