package cli

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/broker"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/wire"
)

// ask sends one request to a listener of a node, in its newest version or the one that it has been given.
func ask[T kmsg.Response](t *testing.T, n *node, listener string, req kmsg.Request) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	conn, err := wire.Dial(ctx, (&net.Dialer{}).DialContext, n.server.Addr(listener).String(), wire.DialOptions{ClientID: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	resp, err := conn.Request(ctx, req)
	if err != nil {
		t.Fatalf("%T: %v", req, err)
	}
	return resp.(T)
}

// until waits for a condition, for as long as a machine may be busy with other things.
func until(t *testing.T, what string, met func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !met(); {
		if time.Now().After(deadline) {
			t.Fatalf("not after half a minute: %s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// A partition whose only replica is on a broker that stops is shown without a leader, with LEADER_NOT_AVAILABLE and an epoch
// above the old one; when the broker is back it leads again, in the epoch after that.
func TestE015_only_replica_away(t *testing.T) {
	t.Parallel()
	tr := newTrio(t)
	tr.start(1, 2, 3)
	create := kmsg.NewPtrCreateTopicsRequest()
	one := kmsg.NewCreateTopicsRequestTopic()
	one.Topic, one.NumPartitions, one.ReplicationFactor = "only", -1, -1
	one.ReplicaAssignment = []kmsg.CreateTopicsRequestTopicReplicaAssignment{{Partition: 0, Replicas: []int32{2}}}
	create.Topics, create.TimeoutMillis = append(create.Topics, one), 20000
	if made := ask[*kmsg.CreateTopicsResponse](t, tr.nodes[1], "PLAINTEXT", create); made.Topics[0].ErrorCode != 0 {
		t.Fatalf("%+v", made.Topics)
	}
	shown := func() kmsg.MetadataResponseTopicPartition {
		req := kmsg.NewPtrMetadataRequest()
		req.Topics = []kmsg.MetadataRequestTopic{{Topic: kmsg.StringPtr("only")}}
		resp := ask[*kmsg.MetadataResponse](t, tr.nodes[1], "PLAINTEXT", req)
		if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
			return kmsg.MetadataResponseTopicPartition{Leader: -2}
		}
		return resp.Topics[0].Partitions[0]
	}
	until(t, "broker 2 leads", func() bool { return shown().Leader == 2 })
	epoch := shown().LeaderEpoch
	tr.stop(2)
	until(t, "nobody leads", func() bool { return shown().Leader == -1 })
	if p := shown(); p.ErrorCode != 5 || p.LeaderEpoch != epoch+1 || !slices.Equal(p.Replicas, []int32{2}) || !slices.Equal(p.OfflineReplicas, []int32{2}) {
		t.Errorf("away: %+v after epoch %d", p, epoch)
	}
	tr.start(2)
	until(t, "broker 2 leads again", func() bool { return shown().Leader == 2 })
	if p := shown(); p.ErrorCode != 0 || p.LeaderEpoch != epoch+2 || !slices.Equal(p.ISR, []int32{2}) {
		t.Errorf("back: %+v after epoch %d", p, epoch)
	}
}

// AddRaftVoter and RemoveRaftVoter at three controllers: the rows with their codes, at the active controller, at another one
// and through a broker; DescribeQuorum names voters with directories and places, observers, and how far each has come.
func TestM056_voters(t *testing.T) {
	t.Parallel()
	tr := newTrio(t)
	tr.apart = true
	tr.start(1, 2, 3)
	tr.start(11)
	leader := tr.leader()
	follower := leader%3 + 1
	dir := metadata.NewUUID(bytes.NewReader(bytes.Repeat([]byte{7}, 16)))
	add := func(change func(*kmsg.AddRaftVoterRequest)) *kmsg.AddRaftVoterRequest {
		req := kmsg.NewPtrAddRaftVoterRequest()
		req.ClusterID, req.VoterID, req.VoterDirectoryID, req.TimeoutMillis = kmsg.StringPtr("trio"), 9, dir, 1000
		req.Listeners = []kmsg.AddRaftVoterRequestListener{{Name: "CONTROLLER", Host: "127.0.0.1", Port: 1}}
		change(req)
		return req
	}
	remove := func(cluster string, id int32, dir metadata.UUID) *kmsg.RemoveRaftVoterRequest {
		req := kmsg.NewPtrRemoveRaftVoterRequest()
		req.ClusterID, req.VoterID, req.VoterDirectoryID = &cluster, id, dir
		return req
	}
	describe := func() *kmsg.DescribeQuorumResponse {
		req := kmsg.NewPtrDescribeQuorumRequest()
		one := kmsg.NewDescribeQuorumRequestTopic()
		one.Topic = "__cluster_metadata"
		one.Partitions = append(one.Partitions, kmsg.NewDescribeQuorumRequestTopicPartition())
		req.Topics = append(req.Topics, one)
		return ask[*kmsg.DescribeQuorumResponse](t, tr.nodes[11], "PLAINTEXT", req)
	}
	var voters []kmsg.DescribeQuorumResponseTopicPartitionReplicaState
	until(t, "three voters and an observer, none of whom lags far behind", func() bool {
		p := describe().Topics[0].Partitions[0]
		voters = p.CurrentVoters
		close := func(r kmsg.DescribeQuorumResponseTopicPartitionReplicaState) bool {
			return r.LogEndOffset < p.HighWatermark-100 || r.ReplicaDirectoryID == [16]byte{}
		}
		return p.LeaderID == int32(leader) && p.HighWatermark > 0 && len(voters) == 3 && len(p.Observers) == 1 && p.Observers[0].ReplicaID == 11 &&
			!slices.ContainsFunc(voters, close) && !slices.ContainsFunc(p.Observers, close)
	})
	if nodes := describe().Nodes; len(nodes) != 3 || len(nodes[0].Listeners) != 1 || int(nodes[0].Listeners[0].Port) != tr.ports[int(nodes[0].NodeID)] {
		t.Errorf("%+v", nodes)
	}
	own := metadata.UUID(voters[slices.IndexFunc(voters, func(v kmsg.DescribeQuorumResponseTopicPartitionReplicaState) bool { return v.ReplicaID == 3 })].ReplicaDirectoryID)
	for _, c := range []struct {
		what string
		req  kmsg.Request
		code int16
	}{
		{"add, another cluster", add(func(r *kmsg.AddRaftVoterRequest) { r.ClusterID = kmsg.StringPtr("other") }), 104},
		{"add, no id", add(func(r *kmsg.AddRaftVoterRequest) { r.VoterID = -1 }), 42},
		{"add, no directory", add(func(r *kmsg.AddRaftVoterRequest) { r.VoterDirectoryID = [16]byte{} }), 42},
		{"add, no place", add(func(r *kmsg.AddRaftVoterRequest) { r.Listeners = nil }), 42},
		{"add, no place for controllers", add(func(r *kmsg.AddRaftVoterRequest) { r.Listeners[0].Name = "PLAINTEXT" }), 42},
		{"add a voter", add(func(r *kmsg.AddRaftVoterRequest) { r.VoterID = 3 }), 126},
		{"add who is not there", add(func(*kmsg.AddRaftVoterRequest) {}), 7},
		{"add, an old version", add(func(r *kmsg.AddRaftVoterRequest) { r.Version, r.VoterID = 0, 3 }), 126},
		{"remove, another cluster", remove("other", 3, own), 104},
		{"remove, no id", remove("trio", -1, own), 42},
		{"remove, no directory", remove("trio", 3, metadata.UUID{}), 42},
		{"remove, another directory", remove("trio", 3, dir), 127},
		{"remove nobody", remove("trio", 9, dir), 127},
	} {
		for where, n := range map[string]*node{"PLAINTEXT": tr.nodes[11], "CONTROLLER": tr.nodes[leader]} {
			if got := voterCode(ask[kmsg.Response](t, n, where, c.req)); got != c.code {
				t.Errorf("%s, at %s: code %d, want %d", c.what, where, got, c.code)
			}
		}
		if got := voterCode(ask[kmsg.Response](t, tr.nodes[follower], "CONTROLLER", c.req)); got != 6 && c.code != 104 {
			t.Errorf("%s, at a controller that does not lead: code %d", c.what, got)
		}
	}
	// M-057: an Envelope to a controller that is not active is 41 outside, so that the broker looks for the one that is.
	id := "test"
	envelope := kmsg.NewPtrEnvelopeRequest()
	wrapped := kmsg.NewPtrCreateTopicsRequest()
	wrapped.Version = 7
	envelope.RequestData = wrapped.AppendTo(wire.AppendRequestHeader(nil, wrapped.Key(), 7, 1, &id, true))
	envelope.RequestPrincipal = []byte{0, 0, 5, 'U', 's', 'e', 'r', 2, 'a', 0, 0}
	envelope.ClientHostAddress = []byte{127, 0, 0, 1}
	for node, code := range map[int]int16{leader: 0, follower: 41} {
		if got := ask[*kmsg.EnvelopeResponse](t, tr.nodes[node], "CONTROLLER", envelope); got.ErrorCode != code || (got.ResponseData == nil) != (code != 0) {
			t.Errorf("envelope to controller %d: %+v, want %d", node, got, code)
		}
	}
	if p := describe().Topics[0].Partitions[0]; len(p.CurrentVoters) != 3 {
		t.Errorf("refused requests have changed the voters: %+v", p.CurrentVoters)
	}
}

func voterCode(resp kmsg.Response) int16 {
	switch resp := resp.(type) {
	case *kmsg.AddRaftVoterResponse:
		return resp.ErrorCode
	case *kmsg.RemoveRaftVoterResponse:
		return resp.ErrorCode
	}
	return -2
}

// Three controllers and two brokers apart from them: the active controller goes away. The brokers stay running and are not
// fenced, records are produced on, heartbeats reach the next controller, which does what it is asked.
func TestM025_active_controller_goes_away(t *testing.T) {
	t.Parallel()
	tr := newTrio(t)
	tr.apart = true
	tr.start(1, 2, 3)
	tr.start(11, 12)
	brokers := []*node{tr.nodes[11], tr.nodes[12]}
	addrs := []string{brokers[0].server.Addr("PLAINTEXT").String(), brokers[1].server.Addr("PLAINTEXT").String()}
	stele := func(args ...string) {
		t.Helper()
		if r := runAt(strings.Join(addrs, ","), "", args...); r.status != 0 {
			t.Fatalf("%v: %s", args, r.err)
		}
	}
	stele("topic", "create", "t", "--partitions", "4", "--replication-factor", "2", "--config", "min.insync.replicas=2")
	client, err := kgo.NewClient(kgo.SeedBrokers(addrs...), kgo.DefaultProduceTopic("t"), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	produce := func() {
		t.Helper()
		for range 20 {
			if err := client.ProduceSync(t.Context(), kgo.StringRecord("r")).FirstErr(); err != nil {
				t.Fatalf("produce: %v", err)
			}
		}
	}
	produce()
	gone := tr.leader()
	before := tr.nodes[gone].host.Committed()
	tr.stop(gone)
	produce()
	since := time.Now()
	next := tr.leader()
	// A heartbeat that a controller answers moves what it knows of the broker's offset: here by a topic that the brokers must
	// have applied, made by the next controller.
	stele("topic", "create", "after", "--partitions", "4", "--replication-factor", "2")
	t.Logf("the next controller had made a topic after %v", time.Since(since))
	produce()
	for _, n := range brokers {
		if state := n.broker.State(); state != broker.StateRunning {
			t.Errorf("broker %d is %v", n.id, state)
		}
		until(t, fmt.Sprintf("broker %d follows controller %d", n.id, next), func() bool { id, _ := n.broker.QuorumLeader(); return id == int32(next) })
	}
	now := tr.nodes[next].host.Committed()
	for id, b := range before.Brokers().All() {
		if after, ok := now.Broker(id); !ok || after.Fenced || after.Epoch != b.Epoch || after.RegisteredAt != b.RegisteredAt {
			t.Errorf("broker %d was %+v, is %+v", id, b, after)
		}
	}
	for p := range int32(4) {
		old, _ := before.Partition("t", p)
		if is, ok := now.Partition("t", p); !ok || is.LeaderEpoch != old.LeaderEpoch || len(is.ISR) != 2 {
			t.Errorf("t-%d was %+v, is %+v", p, old, is)
		}
	}
}

// One of two log directories fails under a broker: its heartbeat says so, the registration loses the directory, the in-sync
// sets lose the replicas there, and clients see them as offline; new partitions go to the other. With the other gone too the
// process ends and names it.
func TestM029_log_directories_fail(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, second, meta := filepath.Join(dir, "first"), filepath.Join(dir, "second"), filepath.Join(dir, "meta")
	n, err := startFor(t.Context(), dir, "log.dirs="+first+","+second, "metadata.log.dir="+meta, "http.listen=", "broker.heartbeat.interval.ms=100", "log.segment.bytes=1048576")
	if err != nil {
		t.Fatal(err)
	}
	defer n.stop()
	addr := n.server.Addr("PLAINTEXT").String()
	if r := runAt(addr, "", "topic", "create", "t", "--partitions", "6", "--replication-factor", "1"); r.status != 0 {
		t.Fatal(r.err)
	}
	ids := map[string]metadata.UUID{first: properties(t, first).DirectoryID, second: properties(t, second).DirectoryID}
	placed := func() map[metadata.UUID][]int32 {
		found := map[metadata.UUID][]int32{}
		topic, _ := n.host.Committed().Topic("t")
		for id, p := range topic.Partitions().All() {
			where, _ := p.Directory(n.id)
			found[where] = append(found[where], id)
		}
		return found
	}
	until(t, "every partition has a place in one of two directories", func() bool {
		found := placed()
		return len(found[ids[first]]) == 3 && len(found[ids[second]]) == 3
	})
	lost := placed()[ids[second]]
	b := record.NewBuilder(record.BuilderOptions{})
	if err := b.Append(1, nil, make([]byte, 600_000), nil); err != nil {
		t.Fatal(err)
	}
	large := b.Bytes()
	if err := os.RemoveAll(second); err != nil {
		t.Fatal(err)
	}
	// It is missed when a file is opened in it.
	write := func(partition int32) {
		req := kmsg.NewPtrProduceRequest()
		req.Acks, req.TimeoutMillis = 1, 1000
		topic := kmsg.NewProduceRequestTopic()
		one := kmsg.NewProduceRequestTopicPartition()
		one.Partition, one.Records = partition, large
		topic.Topic, topic.Partitions = "t", append(topic.Partitions, one)
		req.Topics = append(req.Topics, topic)
		ask[*kmsg.ProduceResponse](t, n, "PLAINTEXT", atMost{req, 12})
	}
	until(t, "the registration has one directory", func() bool {
		write(lost[0])
		b, _ := n.host.Committed().Broker(n.id)
		return slices.Equal(b.Directories, []metadata.UUID{ids[first]})
	})
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{{Topic: kmsg.StringPtr("t")}}
	until(t, "clients see which replicas are offline", func() bool {
		for _, p := range ask[*kmsg.MetadataResponse](t, n, "PLAINTEXT", req).Topics[0].Partitions {
			gone := slices.Contains(lost, p.Partition)
			if gone != (p.Leader == -1) || gone != slices.Equal(p.OfflineReplicas, []int32{n.id}) {
				return false
			}
		}
		return true
	})
	select {
	case err := <-n.failed:
		t.Fatalf("one directory is left, and the process ends: %v", err)
	default:
	}
	if err := os.RemoveAll(first); err != nil {
		t.Fatal(err)
	}
	kept := placed()[ids[first]]
	until(t, "the process ends", func() bool {
		write(kept[0])
		select {
		case err := <-n.failed:
			if !strings.Contains(err.Error(), first) {
				t.Errorf("it says %v", err)
			}
			return true
		default:
			return false
		}
	})
}

// silent accepts connections and never answers: a broker that hangs, as clients see it.
func silent(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// With one of three brokers hanging, topics and cluster are described all the same: what it alone could say is missing, and it
// is named. Without a majority of the controllers the same holds of the quorum, and those that do not answer are named.
func TestDescribedThoughOneHangs(t *testing.T) {
	t.Parallel()
	tr := newTrio(t)
	tr.apart = true
	tr.start(1, 2, 3)
	tr.start(11)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := tr.try(ctx, 12, new(bytes.Buffer), "advertised.listeners=PLAINTEXT://"+silent(t)); err != nil {
		t.Fatal(err)
	}
	addr := tr.nodes[11].server.Addr("PLAINTEXT").String()
	stele := func(args ...string) result {
		t.Helper()
		r := runAt(addr, "", args...)
		if r.status != 0 {
			t.Fatalf("stele %s: status %d: %s", strings.Join(args, " "), r.status, r.err)
		}
		return r
	}
	create := kmsg.NewPtrCreateTopicsRequest()
	one := kmsg.NewCreateTopicsRequestTopic()
	one.Topic, one.NumPartitions, one.ReplicationFactor = "t", -1, -1
	one.ReplicaAssignment = []kmsg.CreateTopicsRequestTopicReplicaAssignment{{Partition: 0, Replicas: []int32{11}}, {Partition: 1, Replicas: []int32{12}}}
	create.Topics, create.TimeoutMillis = append(create.Topics, one), 20000
	if made := ask[*kmsg.CreateTopicsResponse](t, tr.nodes[11], "PLAINTEXT", create); made.Topics[0].ErrorCode != 0 {
		t.Fatalf("%+v", made.Topics)
	}
	until(t, "the topic is there", func() bool { return strings.Contains(stele("topic", "list").out, "t ") })
	described := stele("topic", "describe", "t").out
	if !strings.Contains(described, "its leader, broker 12, does not answer") || strings.Count(described, "does not answer") != 1 {
		t.Errorf("topic describe:\n%s", described)
	}
	r := stele("cluster", "describe")
	if !strings.Contains(r.err, "log directories of broker 12: no answer within 3s") || strings.Count(r.err, "note:") != 1 || strings.Count(r.out, "voter") != 2 || !strings.Contains(r.out, "topics 1, partitions 2") {
		t.Errorf("cluster describe:\n%s\n%s", r.out, r.err)
	}
	tr.stop(1)
	tr.stop(2)
	if r := runAt(addr, "", "cluster", "quorum"); r.status != 1 || !strings.Contains(r.err, "describe the quorum: ") || strings.Count(r.out, "missing") != 2 || strings.Count(r.out, "answers") != 1 {
		t.Errorf("cluster quorum without a majority: status %d\n%s\n%s", r.status, r.out, r.err)
	}
}
