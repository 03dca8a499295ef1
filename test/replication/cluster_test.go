package replication

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	_ "github.com/stelelog/stele/internal/cli" // what is built and run: without it results are taken from the cache
	"github.com/stelelog/stele/internal/record"
)

// patience is how long anything may take that ought to be quick, on a busy machine.
const patience = 60 * time.Second

var (
	buildDir  string
	buildOnce sync.Once
	buildErr  error
)

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "stele-replication")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	buildDir = dir
	status := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(status)
}

func built(t testing.TB) string {
	t.Helper()
	path := filepath.Join(buildDir, "stele")
	buildOnce.Do(func() {
		if out, err := exec.Command("go", "build", "-o", path, "github.com/stelelog/stele/cmd/stele").CombinedOutput(); err != nil {
			buildErr = fmt.Errorf("%w\n%s", err, out)
		}
	})
	if buildErr != nil {
		t.Fatalf("building stele: %v", buildErr)
	}
	return path
}

// node is one process, and those that follow it on the same data.
type node struct {
	t     testing.TB
	id    int32
	dirs  []string
	args  []string
	addr  string // of clients, empty for the controller
	http  string
	cmd   *exec.Cmd
	ready chan struct{}
	ended chan struct{}

	mu   sync.Mutex
	said []string
}

// cluster is a controller, id 100, and brokers from 1 on.
type cluster struct {
	t          testing.TB
	controller *node
	brokers    map[int32]*node
	client     *kgo.Client
}

// slots bounds how many clusters run at once: a machine has few processors.
var slots = make(chan struct{}, 6)

// ports hands out addresses that nobody listens on.
func ports(t testing.TB, n int) (addrs []string) {
	t.Helper()
	var held []net.Listener
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, l)
		addrs = append(addrs, l.Addr().String())
	}
	for _, l := range held {
		l.Close()
	}
	return addrs
}

// newCluster starts a controller and n brokers with settings name=value.
func newCluster(t testing.TB, n int32, set ...string) *cluster {
	t.Helper()
	slots <- struct{}{}
	t.Cleanup(func() { <-slots })
	free := ports(t, int(2*n)+1)
	dir := t.TempDir()
	common := []string{"serve", "--log-format", "json", "--set", "cluster.id=replication", "--set", "controller.quorum.voters=100@" + free[0],
		"--set", "controller.listener.names=CONTROLLER", "--set", "group.initial.rebalance.delay.ms=0", "--set", "offsets.topic.num.partitions=1",
		"--set", "broker.heartbeat.interval.ms=200", "--set", "replica.fetch.wait.max.ms=100", "--set", "replica.fetch.backoff.ms=100", "--set", "log.retention.ms=-1"}
	for _, s := range set {
		common = append(common, "--set", s)
	}
	c := &cluster{t: t, brokers: map[int32]*node{}}
	make := func(id int32, addr, http string, more ...string) *node {
		data := filepath.Join(dir, fmt.Sprint(id))
		args := append(slices.Clone(common), "--data-dir", data, "--set", fmt.Sprint("node.id=", id), "--set", "http.listen="+http)
		for _, s := range more {
			args = append(args, "--set", s)
		}
		one := &node{t: t, id: id, dirs: []string{data}, args: args, addr: addr, http: http}
		t.Cleanup(one.kill)
		return one
	}
	c.controller = make(100, "", "", "process.roles=controller", "listeners=CONTROLLER://"+free[0])
	var seeds []string
	for id := int32(1); id <= n; id++ {
		addr := free[id]
		c.brokers[id] = make(id, addr, free[n+id], "process.roles=broker", "listeners=PLAINTEXT://"+addr)
		seeds = append(seeds, addr)
	}
	c.controller.begin()
	for _, b := range c.brokers {
		b.begin()
	}
	c.controller.wait()
	for _, b := range c.brokers {
		b.wait()
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.MetadataMinAge(20*time.Millisecond), kgo.RetryTimeout(5*time.Second),
		kgo.RequestTimeoutOverhead(3*time.Second), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	c.client = client
	t.Cleanup(client.Close)
	t.Cleanup(func() {
		if t.Failed() && os.Getenv("STELE_LOGS") != "" {
			for _, b := range c.brokers {
				t.Logf("broker %d:\n%s", b.id, b.log())
			}
			t.Logf("controller:\n%s", c.controller.log())
		}
	})
	return c
}

// begin starts the process; wait waits until it is ready.
func (n *node) begin() {
	n.t.Helper()
	cmd := exec.Command(built(n.t), n.args...)
	pipe, err := cmd.StderrPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.cmd, n.ready, n.ended = cmd, make(chan struct{}), make(chan struct{})
	ready, ended := n.ready, n.ended
	go func() {
		lines := bufio.NewScanner(pipe)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			n.mu.Lock()
			n.said = append(n.said, lines.Text())
			n.mu.Unlock()
			var line struct{ Msg string }
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "ready" {
				close(ready)
			}
		}
		_ = cmd.Wait()
		close(ended)
	}()
}

func (n *node) wait() {
	n.t.Helper()
	select {
	case <-n.ready:
	case <-n.ended:
		n.t.Fatalf("node %d ended while starting:\n%s", n.id, n.log())
	case <-time.After(patience):
		n.t.Fatalf("node %d was not ready in time:\n%s", n.id, n.log())
	}
}

func (n *node) start() {
	n.t.Helper()
	n.begin()
	n.wait()
}

func (n *node) kill() {
	if n.cmd == nil {
		return
	}
	_ = n.cmd.Process.Kill()
	<-n.ended
}

// stop ends the process cleanly.
func (n *node) stop() {
	n.t.Helper()
	if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		n.t.Fatal(err)
	}
	select {
	case <-n.ended:
	case <-time.After(patience):
		n.t.Fatalf("node %d does not end:\n%s", n.id, n.log())
	}
}

func (n *node) pause()  { _ = n.cmd.Process.Signal(syscall.SIGSTOP) }
func (n *node) resume() { _ = n.cmd.Process.Signal(syscall.SIGCONT) }

func (n *node) log() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Join(n.said, "\n")
}

// lines are the log lines that have every word.
func (n *node) lines(words ...string) (found []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, line := range n.said {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			found = append(found, line)
		}
	}
	return found
}

// metric is the value of a series in the node's metrics, "" when it is not there.
func (n *node) metric(series string) string {
	n.t.Helper()
	resp, err := http.Get("http://" + n.http + "/metrics")
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, line := range strings.Split(string(text), "\n") {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return value
		}
	}
	return ""
}

// until waits for what f looks for; f says what there is instead.
func (c *cluster) until(what string, f func() (done bool, instead string)) {
	c.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		done, instead := f()
		if done {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("waited in vain until %s: %s", what, instead)
		}
		<-time.After(20 * time.Millisecond)
	}
}

// do sends a request to one broker, 0 for any.
func do[T kmsg.Response](c *cluster, broker int32, req kmsg.Request) (T, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var resp kmsg.Response
	var err error
	if broker == 0 {
		resp, err = c.client.Request(ctx, req)
	} else {
		// A connection that the broker's last process had may only be found closed now.
		resp, err = c.client.Broker(int(broker)).RetriableRequest(ctx, req)
	}
	if err != nil {
		var none T
		return none, err
	}
	return resp.(T), nil
}

func must[T kmsg.Response](c *cluster, broker int32, req kmsg.Request) T {
	c.t.Helper()
	resp, err := do[T](c, broker, req)
	if err != nil {
		c.t.Fatalf("%s to broker %d: %v", kmsg.NameForKey(req.Key()), broker, err)
	}
	return resp
}

// create makes a topic of one partition on these replicas, with settings name=value.
func (c *cluster) create(topic string, replicas []int32, set ...string) {
	c.t.Helper()
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis = 30_000
	one := kmsg.NewCreateTopicsRequestTopic()
	one.Topic, one.NumPartitions, one.ReplicationFactor = topic, -1, -1
	assigned := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
	assigned.Replicas = replicas
	one.ReplicaAssignment = append(one.ReplicaAssignment, assigned)
	for _, s := range set {
		name, value, _ := strings.Cut(s, "=")
		config := kmsg.NewCreateTopicsRequestTopicConfig()
		config.Name, config.Value = name, &value
		one.Configs = append(one.Configs, config)
	}
	req.Topics = append(req.Topics, one)
	resp := must[*kmsg.CreateTopicsResponse](c, 0, req)
	if err := kerr.ErrorForCode(resp.Topics[0].ErrorCode); err != nil {
		c.t.Fatalf("create %s: %v", topic, err)
	}
	c.state(topic, func(s state) bool { return s.leader == replicas[0] && len(s.isr) == len(replicas) })
}

// state is what a broker says of a partition.
type state struct {
	err            int16
	leader, epoch  int32
	isr, elr, last []int32
	replicas       []int32
}

// describe asks a broker, 0 for any, about partition 0.
func (c *cluster) describe(broker int32, topic string) (state, error) {
	req := kmsg.NewPtrDescribeTopicPartitionsRequest()
	req.ResponsePartitionLimit = 100
	one := kmsg.NewDescribeTopicPartitionsRequestTopic()
	one.Topic = topic
	req.Topics = append(req.Topics, one)
	resp, err := do[*kmsg.DescribeTopicPartitionsResponse](c, broker, req)
	if err != nil {
		return state{}, err
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return state{}, errors.New("no such partition")
	}
	p := resp.Topics[0].Partitions[0]
	return state{err: p.ErrorCode, leader: p.LeaderID, epoch: p.LeaderEpoch, isr: p.ISR, elr: p.EligibleLeaderReplicas, last: p.LastKnownELR, replicas: p.Replicas}, nil
}

// state waits until every broker that runs tells what is wanted, and the same.
func (c *cluster) state(topic string, wanted func(state) bool) (s state) {
	c.t.Helper()
	c.until("all brokers say what is wanted of "+topic, func() (bool, string) {
		for id, b := range c.brokers {
			select {
			case <-b.ended:
				continue
			default:
			}
			var err error
			if s, err = c.describe(id, topic); err != nil {
				return false, err.Error()
			}
			if !wanted(s) {
				return false, fmt.Sprintf("broker %d: %+v", id, s)
			}
		}
		return true, ""
	})
	return s
}

func (c *cluster) led(topic string, leader int32, isr ...int32) state {
	c.t.Helper()
	return c.state(topic, func(s state) bool { return s.leader == leader && sameMembers(s.isr, isr) })
}

func sameMembers(a, b []int32) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}

// produce sends one batch of count records, whose values are prefix and a number, to a broker; it returns the base offset
// or the error code.
func (c *cluster) produce(broker int32, topic string, acks int16, prefix string, first, count int) (int64, error) {
	build := record.NewBuilder(record.BuilderOptions{})
	for i := range count {
		if err := build.Append(time.Now().UnixMilli(), nil, fmt.Appendf(nil, "%s%d", prefix, first+i), nil); err != nil {
			return -1, err
		}
	}
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis = acks, 3000
	t := kmsg.NewProduceRequestTopic()
	t.Topic = topic
	p := kmsg.NewProduceRequestTopicPartition()
	p.Records = build.Bytes()
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	id, err := c.topicID(topic)
	if err != nil {
		return -1, err
	}
	req.Topics[0].TopicID = id
	kresp, err := c.client.Broker(int(broker)).Request(ctx, req)
	if err != nil {
		return -1, err
	}
	got := kresp.(*kmsg.ProduceResponse).Topics[0].Partitions[0]
	return got.BaseOffset, kerr.ErrorForCode(got.ErrorCode)
}

func (c *cluster) topicID(topic string) ([16]byte, error) {
	req := kmsg.NewPtrMetadataRequest()
	one := kmsg.NewMetadataRequestTopic()
	one.Topic = &topic
	req.Topics = append(req.Topics, one)
	resp, err := do[*kmsg.MetadataResponse](c, 0, req)
	if err != nil {
		return [16]byte{}, err
	}
	return resp.Topics[0].TopicID, kerr.ErrorForCode(resp.Topics[0].ErrorCode)
}

func (c *cluster) mustProduce(broker int32, topic string, acks int16, prefix string, first, count int) int64 {
	c.t.Helper()
	base := int64(-1)
	c.until("records are taken", func() (bool, string) {
		var err error
		base, err = c.produce(broker, topic, acks, prefix, first, count)
		return err == nil, fmt.Sprint(err)
	})
	return base
}

// read is the log of one broker up to its high watermark, as raw batches, and the high watermark.
func (c *cluster) read(broker int32, topic string, from int64) (raw []byte, hw int64, err error) {
	id, err := c.topicID(topic)
	if err != nil {
		return nil, -1, err
	}
	for offset := from; ; {
		req := kmsg.NewPtrFetchRequest()
		req.MaxBytes, req.MinBytes, req.MaxWaitMillis = 32<<20, 0, 0
		t := kmsg.NewFetchRequestTopic()
		t.Topic, t.TopicID = topic, id
		p := kmsg.NewFetchRequestTopicPartition()
		p.FetchOffset, p.PartitionMaxBytes, p.CurrentLeaderEpoch = offset, 32<<20, -1
		t.Partitions = append(t.Partitions, p)
		req.Topics = append(req.Topics, t)
		resp, err := do[*kmsg.FetchResponse](c, broker, req)
		if err != nil {
			return nil, -1, err
		}
		if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
			return nil, -1, err
		}
		got := &resp.Topics[0].Partitions[0]
		if err := kerr.ErrorForCode(got.ErrorCode); err != nil {
			return nil, -1, err
		}
		next := offset
		for b, err := range record.Batches(got.RecordBatches) {
			if err != nil {
				break
			}
			raw = append(raw, b[:b.Length()]...)
			next = b.LastOffset() + 1
		}
		if next == offset {
			return raw, got.HighWatermark, nil
		}
		offset = next
	}
}

// values are the records in raw batches, by offset.
func values(t testing.TB, raw []byte) map[int64]string {
	t.Helper()
	all := map[int64]string{}
	for b, err := range record.Batches(raw) {
		if err != nil {
			t.Fatal(err)
		}
		if b.IsControl() {
			continue
		}
		for r, err := range b.Records(record.Limits{}) {
			if err != nil {
				t.Fatal(err)
			}
			all[b.BaseOffset()+int64(r.OffsetDelta)] = string(r.Value)
		}
	}
	return all
}

// equal waits until the brokers show the same log, byte for byte, up to end; it returns that.
func (c *cluster) equal(topic string, end int64, brokers ...int32) []byte {
	c.t.Helper()
	var all []byte
	c.until(fmt.Sprintf("brokers %v have the same log of %s up to %d", brokers, topic, end), func() (bool, string) {
		for i, b := range brokers {
			raw, hw, err := c.read(b, topic, 0)
			if err != nil || end >= 0 && hw != end {
				return false, fmt.Sprintf("broker %d: high watermark %d, %v", b, hw, err)
			}
			if i == 0 {
				all = raw
			} else if !slices.Equal(all, raw) {
				return false, fmt.Sprintf("broker %d has %d bytes, broker %d %d", brokers[0], len(all), b, len(raw))
			}
		}
		return true, ""
	})
	return all
}

// eligibleLeaders turns KIP-966 on.
func (c *cluster) eligibleLeaders() {
	c.t.Helper()
	req := kmsg.NewPtrUpdateFeaturesRequest()
	update := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
	update.Feature, update.MaxVersionLevel, update.UpgradeType = "eligible.leader.replicas.version", 1, 1
	req.FeatureUpdates = append(req.FeatureUpdates, update)
	resp := must[*kmsg.UpdateFeaturesResponse](c, 0, req)
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		c.t.Fatalf("%v: %v", err, resp.ErrorMessage)
	}
}
