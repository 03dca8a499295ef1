package cli

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/config"
	"github.com/stelelog/stele/internal/record"
	"github.com/stelelog/stele/internal/security"
	"github.com/stelelog/stele/internal/wire"
)

// denyOne allows everything but the pairs of operation and resource it is told.
type denyOne struct {
	mu     sync.Mutex
	denied []denial
}

type denial struct {
	op       security.Operation
	resource security.Resource
}

func (d *denyOne) Authorize(_ security.RequestContext, op security.Operation, resource security.Resource) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !slices.Contains(d.denied, denial{op, resource})
}

func (d *denyOne) set(denied ...denial) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.denied = denied
}

// authorizedNode starts a node that asks d, and dials its client listener and its
// controller listener.
func authorizedNode(t *testing.T, d *denyOne) (broker, controller *wire.Conn) {
	t.Helper()
	c, _, err := config.Parse(config.Sources{DataDir: t.TempDir(), Set: []string{
		"listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0", "offsets.topic.num.partitions=1", "transaction.state.log.num.partitions=1", "group.initial.rebalance.delay.ms=0", "http.listen=",
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	n, err := startNode(ctx, c, slog.New(slog.DiscardHandler), nil, d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.stop)
	if err := n.ready(ctx); err != nil {
		t.Fatal(err)
	}
	dial := func(listener string) *wire.Conn {
		conn, err := wire.Dial(ctx, (&net.Dialer{}).DialContext, n.server.Addr(listener).String(), wire.DialOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		return conn
	}
	return dial("PLAINTEXT"), dial("CONTROLLER")
}

var (
	onTopic   = security.Resource{Type: security.Topic, Name: "t"}
	onGroup   = security.Resource{Type: security.Group, Name: "g"}
	onTxn     = security.Resource{Type: security.TransactionalID, Name: "x"}
	onCluster = security.TheCluster
)

// authorizationCase is one API: what it asks for, and where the answer says no.
type authorizationCase struct {
	name    string
	request func() kmsg.Request
	code    func(kmsg.Response) int16
	denied  []denial // all of them together refuse it
	want    *kerr.Error
}

// Every API asks the authorizer, for the resource and operation that Kafka asks for,
// and answers with Kafka's code when it says no. The same request passes when
// something else is denied.
func TestEveryAPIAsksTheAuthorizer(t *testing.T) {
	t.Parallel()
	d := &denyOne{}
	broker, controller := authorizedNode(t, d)
	request := func(conn *wire.Conn, req kmsg.Request) kmsg.Response {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		resp, err := conn.Request(ctx, req)
		if err != nil {
			t.Fatalf("%T: %v", req, err)
		}
		return resp
	}
	prepareTopicAndGroup(t, func(req kmsg.Request) kmsg.Response { return request(broker, req) })

	served := map[int16]bool{}
	security := securityAuthorization()
	for listener, cases := range map[*wire.Conn][]authorizationCase{broker: append(brokerAuthorization(), security...), controller: append(controllerAuthorization(), security...)} {
		for _, c := range cases {
			served[c.request().Key()] = true
			d.set(c.denied...)
			if got := c.code(request(listener, c.request())); got != c.want.Code {
				t.Errorf("%s with %v denied: code %d, want %s", c.name, c.denied, got, c.want.Message)
			}
			d.set(somethingElse)
			if got := c.code(request(listener, c.request())); slices.Contains([]int16{kerr.TopicAuthorizationFailed.Code, kerr.GroupAuthorizationFailed.Code, kerr.ClusterAuthorizationFailed.Code, kerr.TransactionalIDAuthorizationFailed.Code}, got) {
				t.Errorf("%s with nothing of it denied: code %d", c.name, got)
			}
		}
	}
	for _, conn := range []*wire.Conn{broker, controller} {
		for _, api := range conn.APIVersions().ApiKeys {
			if !served[api.ApiKey] && api.ApiKey != wire.KeyApiVersions {
				t.Errorf("%s is served and has no case here", kmsg.NameForKey(api.ApiKey))
			}
		}
	}
}

var somethingElse = denial{security.DescribeTokens, onCluster}

func prepareTopicAndGroup(t *testing.T, request func(kmsg.Request) kmsg.Response) {
	t.Helper()
	create := kmsg.NewPtrCreateTopicsRequest()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = "t", 1, 1
	create.Topics = append(create.Topics, topic)
	if code := request(create).(*kmsg.CreateTopicsResponse).Topics[0].ErrorCode; code != 0 {
		t.Fatalf("create topic: code %d", code)
	}
	deadline := time.Now().Add(10 * time.Second)
	for {
		find := kmsg.NewPtrFindCoordinatorRequest()
		find.CoordinatorKeys = []string{"g"}
		if resp := request(find).(*kmsg.FindCoordinatorResponse); resp.Coordinators[0].ErrorCode == 0 {
			prepareTransactionalID(t, request)
			list := kmsg.NewPtrListGroupsRequest()
			if request(list).(*kmsg.ListGroupsResponse).ErrorCode == 0 {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatal("the group coordinator did not come up")
		}
	}
}

// prepareTransactionalID has the transactional id there, so that lists can show it.
func prepareTransactionalID(t *testing.T, request func(kmsg.Request) kmsg.Response) {
	t.Helper()
	find := kmsg.NewPtrFindCoordinatorRequest()
	find.CoordinatorType, find.CoordinatorKeys = 1, []string{"x"}
	start := kmsg.NewPtrInitProducerIDRequest()
	id := "x"
	start.TransactionalID, start.TransactionTimeoutMillis = &id, 60000
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		if request(find).(*kmsg.FindCoordinatorResponse).Coordinators[0].ErrorCode == 0 && request(start).(*kmsg.InitProducerIDResponse).ErrorCode == 0 {
			return
		}
	}
	t.Fatal("the transaction coordinator did not come up")
}

func oneBatch() []byte {
	b := record.NewBuilder(record.BuilderOptions{})
	if err := b.Append(time.Now().UnixMilli(), nil, []byte("v"), nil); err != nil {
		panic(fmt.Sprintf("building a batch: %v", err))
	}
	return b.Bytes()
}

func addPartitionsRequest() kmsg.Request {
	req := kmsg.NewPtrAddPartitionsToTxnRequest()
	topic := kmsg.NewAddPartitionsToTxnRequestTopic()
	topic.Topic, topic.Partitions = "t", []int32{0}
	req.TransactionalID, req.Topics = "x", append(req.Topics, topic)
	return atMost{req, 3}
}

func addPartitionsCode(r kmsg.Response) int16 {
	return r.(*kmsg.AddPartitionsToTxnResponse).Topics[0].Partitions[0].ErrorCode
}

func addOffsetsRequest() kmsg.Request {
	req := kmsg.NewPtrAddOffsetsToTxnRequest()
	req.TransactionalID, req.Group = "x", "g"
	return req
}

func txnOffsetRequest() kmsg.Request {
	req := kmsg.NewPtrTxnOffsetCommitRequest()
	topic := kmsg.NewTxnOffsetCommitRequestTopic()
	topic.Topic, topic.Partitions = "t", append(topic.Partitions, kmsg.NewTxnOffsetCommitRequestTopicPartition())
	req.TransactionalID, req.Group, req.Topics = "x", "g", append(req.Topics, topic)
	return atMost{req, 5}
}

func txnOffsetCode(r kmsg.Response) int16 {
	return r.(*kmsg.TxnOffsetCommitResponse).Topics[0].Partitions[0].ErrorCode
}

func brokerAuthorization() []authorizationCase {
	topicPartition := func(add func(topic string)) { add("t") }
	return []authorizationCase{
		{"Produce", func() kmsg.Request {
			req := kmsg.NewPtrProduceRequest()
			req.Version, req.Acks, req.TimeoutMillis = 12, -1, 1000
			topicPartition(func(name string) {
				topic := kmsg.NewProduceRequestTopic()
				p := kmsg.NewProduceRequestTopicPartition()
				p.Records = oneBatch()
				topic.Topic, topic.Partitions = name, append(topic.Partitions, p)
				req.Topics = append(req.Topics, topic)
			})
			return atMost{req, 12}
		}, func(r kmsg.Response) int16 { return r.(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorCode }, []denial{{security.Write, onTopic}}, kerr.TopicAuthorizationFailed},
		{"Fetch", func() kmsg.Request {
			req := kmsg.NewPtrFetchRequest()
			req.MaxBytes, req.SessionEpoch = 1<<20, -1
			topic := kmsg.NewFetchRequestTopic()
			p := kmsg.NewFetchRequestTopicPartition()
			p.CurrentLeaderEpoch, p.PartitionMaxBytes = -1, 1<<20
			topic.Topic, topic.Partitions = "t", append(topic.Partitions, p)
			req.Topics = append(req.Topics, topic)
			return atMost{req, 12}
		}, func(r kmsg.Response) int16 { return r.(*kmsg.FetchResponse).Topics[0].Partitions[0].ErrorCode }, []denial{{security.Read, onTopic}}, kerr.TopicAuthorizationFailed},
		{"ListOffsets", func() kmsg.Request {
			req := kmsg.NewPtrListOffsetsRequest()
			req.ReplicaID = -1
			topic := kmsg.NewListOffsetsRequestTopic()
			p := kmsg.NewListOffsetsRequestTopicPartition()
			p.CurrentLeaderEpoch, p.Timestamp = -1, -1
			topic.Topic, topic.Partitions = "t", append(topic.Partitions, p)
			req.Topics = append(req.Topics, topic)
			return req
		}, func(r kmsg.Response) int16 {
			return r.(*kmsg.ListOffsetsResponse).Topics[0].Partitions[0].ErrorCode
		}, []denial{{security.Describe, onTopic}}, kerr.TopicAuthorizationFailed},
		{"Metadata", func() kmsg.Request {
			req := kmsg.NewPtrMetadataRequest()
			topic := kmsg.NewMetadataRequestTopic()
			name := "t"
			topic.Topic = &name
			req.Topics = append(req.Topics, topic)
			return req
		}, func(r kmsg.Response) int16 { return r.(*kmsg.MetadataResponse).Topics[0].ErrorCode }, []denial{{security.Describe, onTopic}}, kerr.TopicAuthorizationFailed},
		{"Metadata with auto-creation", func() kmsg.Request {
			req := kmsg.NewPtrMetadataRequest()
			req.AllowAutoTopicCreation = true
			topic := kmsg.NewMetadataRequestTopic()
			name := "new"
			topic.Topic = &name
			req.Topics = append(req.Topics, topic)
			return req
		}, func(r kmsg.Response) int16 { return r.(*kmsg.MetadataResponse).Topics[0].ErrorCode },
			[]denial{{security.Create, onCluster}, {security.Create, security.Resource{Type: security.Topic, Name: "new"}}}, kerr.TopicAuthorizationFailed},
		{"OffsetCommit, group", commitRequest, commitCode, []denial{{security.Read, onGroup}}, kerr.GroupAuthorizationFailed},
		{"OffsetCommit, topic", commitRequest, commitCode, []denial{{security.Read, onTopic}}, kerr.TopicAuthorizationFailed},
		{"OffsetFetch, group", offsetFetchRequest, func(r kmsg.Response) int16 { return r.(*kmsg.OffsetFetchResponse).Groups[0].ErrorCode }, []denial{{security.Describe, onGroup}}, kerr.GroupAuthorizationFailed},
		{"OffsetFetch, topic", offsetFetchRequest, func(r kmsg.Response) int16 {
			return r.(*kmsg.OffsetFetchResponse).Groups[0].Topics[0].Partitions[0].ErrorCode
		}, []denial{{security.Describe, onTopic}}, kerr.TopicAuthorizationFailed},
		{"FindCoordinator, group", func() kmsg.Request {
			req := kmsg.NewPtrFindCoordinatorRequest()
			req.CoordinatorKeys = []string{"g"}
			return req
		}, func(r kmsg.Response) int16 { return r.(*kmsg.FindCoordinatorResponse).Coordinators[0].ErrorCode }, []denial{{security.Describe, onGroup}}, kerr.GroupAuthorizationFailed},
		{"FindCoordinator, transactional id", func() kmsg.Request {
			req := kmsg.NewPtrFindCoordinatorRequest()
			req.CoordinatorType, req.CoordinatorKeys = 1, []string{"x"}
			return req
		}, func(r kmsg.Response) int16 { return r.(*kmsg.FindCoordinatorResponse).Coordinators[0].ErrorCode }, []denial{{security.Describe, onTxn}}, kerr.TransactionalIDAuthorizationFailed},
		{"JoinGroup", func() kmsg.Request {
			req := kmsg.NewPtrJoinGroupRequest()
			req.Group, req.SessionTimeoutMillis, req.RebalanceTimeoutMillis, req.ProtocolType = "g", 6000, 6000, "consumer"
			p := kmsg.NewJoinGroupRequestProtocol()
			p.Name, p.Metadata = "range", []byte{}
			req.Protocols = append(req.Protocols, p)
			return req
		}, func(r kmsg.Response) int16 { return r.(*kmsg.JoinGroupResponse).ErrorCode }, []denial{{security.Read, onGroup}}, kerr.GroupAuthorizationFailed},
		{"SyncGroup", func() kmsg.Request {
			req := kmsg.NewPtrSyncGroupRequest()
			kind, protocol := "consumer", "range"
			req.Group, req.MemberID, req.ProtocolType, req.Protocol = "g", "m", &kind, &protocol
			return req
		}, func(r kmsg.Response) int16 { return r.(*kmsg.SyncGroupResponse).ErrorCode }, []denial{{security.Read, onGroup}}, kerr.GroupAuthorizationFailed},
		{"Heartbeat", func() kmsg.Request {
			req := kmsg.NewPtrHeartbeatRequest()
			req.Group, req.MemberID = "g", "m"
			return req
		}, func(r kmsg.Response) int16 { return r.(*kmsg.HeartbeatResponse).ErrorCode }, []denial{{security.Read, onGroup}}, kerr.GroupAuthorizationFailed},
		{"ConsumerGroupHeartbeat", consumerHeartbeat, func(r kmsg.Response) int16 { return r.(*kmsg.ConsumerGroupHeartbeatResponse).ErrorCode }, []denial{{security.Read, onGroup}}, kerr.GroupAuthorizationFailed},
		{"ConsumerGroupHeartbeat, topics", consumerHeartbeat, func(r kmsg.Response) int16 { return r.(*kmsg.ConsumerGroupHeartbeatResponse).ErrorCode }, []denial{{security.Describe, onTopic}}, kerr.TopicAuthorizationFailed},
		{"ConsumerGroupDescribe", func() kmsg.Request {
			req := kmsg.NewPtrConsumerGroupDescribeRequest()
			req.Groups = []string{"g"}
			return req
		}, func(r kmsg.Response) int16 { return r.(*kmsg.ConsumerGroupDescribeResponse).Groups[0].ErrorCode }, []denial{{security.Describe, onGroup}}, kerr.GroupAuthorizationFailed},
		{"LeaveGroup", func() kmsg.Request {
			req := kmsg.NewPtrLeaveGroupRequest()
			req.Group = "g"
			return req
		}, func(r kmsg.Response) int16 { return r.(*kmsg.LeaveGroupResponse).ErrorCode }, []denial{{security.Read, onGroup}}, kerr.GroupAuthorizationFailed},
		{"DescribeGroups", func() kmsg.Request {
			req := kmsg.NewPtrDescribeGroupsRequest()
			req.Groups = []string{"g"}
			return req
		}, func(r kmsg.Response) int16 { return r.(*kmsg.DescribeGroupsResponse).Groups[0].ErrorCode }, []denial{{security.Describe, onGroup}}, kerr.GroupAuthorizationFailed},
		{"ListGroups", func() kmsg.Request { return kmsg.NewPtrListGroupsRequest() }, func(r kmsg.Response) int16 {
			for _, g := range r.(*kmsg.ListGroupsResponse).Groups {
				if g.Group == "g" {
					return 0
				}
			}
			return kerr.GroupAuthorizationFailed.Code // left out of the list
		}, []denial{{security.Describe, onCluster}, {security.Describe, onGroup}}, kerr.GroupAuthorizationFailed},
		{"OffsetDelete, topic", func() kmsg.Request {
			req := kmsg.NewPtrOffsetDeleteRequest()
			topic := kmsg.NewOffsetDeleteRequestTopic()
			topic.Topic, topic.Partitions = "t", append(topic.Partitions, kmsg.NewOffsetDeleteRequestTopicPartition())
			req.Group, req.Topics = "g", append(req.Topics, topic)
			return req
		}, func(r kmsg.Response) int16 {
			resp := r.(*kmsg.OffsetDeleteResponse)
			if resp.ErrorCode != 0 {
				return resp.ErrorCode
			}
			return resp.Topics[0].Partitions[0].ErrorCode
		}, []denial{{security.Read, onTopic}}, kerr.TopicAuthorizationFailed},
		{"OffsetDelete, group", func() kmsg.Request {
			req := kmsg.NewPtrOffsetDeleteRequest()
			req.Group = "g"
			return req
		}, func(r kmsg.Response) int16 { return r.(*kmsg.OffsetDeleteResponse).ErrorCode }, []denial{{security.Delete, onGroup}}, kerr.GroupAuthorizationFailed},
		{"DeleteGroups", func() kmsg.Request {
			req := kmsg.NewPtrDeleteGroupsRequest()
			req.Groups = []string{"g"}
			return req
		}, func(r kmsg.Response) int16 { return r.(*kmsg.DeleteGroupsResponse).Groups[0].ErrorCode }, []denial{{security.Delete, onGroup}}, kerr.GroupAuthorizationFailed},
		{"DeleteRecords", func() kmsg.Request {
			req := kmsg.NewPtrDeleteRecordsRequest()
			topic := kmsg.NewDeleteRecordsRequestTopic()
			p := kmsg.NewDeleteRecordsRequestTopicPartition()
			topic.Topic, topic.Partitions = "t", append(topic.Partitions, p)
			req.Topics, req.TimeoutMillis = append(req.Topics, topic), 1000
			return req
		}, func(r kmsg.Response) int16 {
			return r.(*kmsg.DeleteRecordsResponse).Topics[0].Partitions[0].ErrorCode
		}, []denial{{security.Delete, onTopic}}, kerr.TopicAuthorizationFailed},
		{"InitProducerId", func() kmsg.Request { return kmsg.NewPtrInitProducerIDRequest() },
			func(r kmsg.Response) int16 { return r.(*kmsg.InitProducerIDResponse).ErrorCode },
			[]denial{{security.IdempotentWrite, onCluster}, {security.Write, onTopic}, {security.Write, security.Resource{Type: security.Topic, Name: "new"}}, {security.Write, security.Resource{Type: security.Topic, Name: "__consumer_offsets"}}, {security.Write, security.Resource{Type: security.Topic, Name: "__transaction_state"}}},
			kerr.ClusterAuthorizationFailed},
		{"InitProducerId, transactional id", func() kmsg.Request {
			req := kmsg.NewPtrInitProducerIDRequest()
			id := "x"
			req.TransactionalID = &id
			return req
		}, func(r kmsg.Response) int16 { return r.(*kmsg.InitProducerIDResponse).ErrorCode }, []denial{{security.Write, onTxn}}, kerr.TransactionalIDAuthorizationFailed},
		{"AddPartitionsToTxn, transactional id", addPartitionsRequest, addPartitionsCode, []denial{{security.Write, onTxn}}, kerr.TransactionalIDAuthorizationFailed},
		{"AddPartitionsToTxn, topic", addPartitionsRequest, addPartitionsCode, []denial{{security.Write, onTopic}}, kerr.TopicAuthorizationFailed},
		{"AddPartitionsToTxn, of a broker", func() kmsg.Request { return kmsg.NewPtrAddPartitionsToTxnRequest() }, func(r kmsg.Response) int16 {
			return r.(*kmsg.AddPartitionsToTxnResponse).ErrorCode
		}, []denial{{security.ClusterAction, onCluster}}, kerr.ClusterAuthorizationFailed},
		{"AddOffsetsToTxn, transactional id", addOffsetsRequest, func(r kmsg.Response) int16 { return r.(*kmsg.AddOffsetsToTxnResponse).ErrorCode }, []denial{{security.Write, onTxn}}, kerr.TransactionalIDAuthorizationFailed},
		{"AddOffsetsToTxn, group", addOffsetsRequest, func(r kmsg.Response) int16 { return r.(*kmsg.AddOffsetsToTxnResponse).ErrorCode }, []denial{{security.Read, onGroup}}, kerr.GroupAuthorizationFailed},
		{"EndTxn", func() kmsg.Request {
			req := kmsg.NewPtrEndTxnRequest()
			req.TransactionalID = "x"
			return req
		}, func(r kmsg.Response) int16 { return r.(*kmsg.EndTxnResponse).ErrorCode }, []denial{{security.Write, onTxn}}, kerr.TransactionalIDAuthorizationFailed},
		{"TxnOffsetCommit, transactional id", txnOffsetRequest, txnOffsetCode, []denial{{security.Write, onTxn}}, kerr.TransactionalIDAuthorizationFailed},
		{"TxnOffsetCommit, group", txnOffsetRequest, txnOffsetCode, []denial{{security.Read, onGroup}}, kerr.GroupAuthorizationFailed},
		{"TxnOffsetCommit, topic", txnOffsetRequest, txnOffsetCode, []denial{{security.Read, onTopic}}, kerr.TopicAuthorizationFailed},
		{"DescribeTransactions", func() kmsg.Request {
			req := kmsg.NewPtrDescribeTransactionsRequest()
			req.TransactionalIDs = []string{"x"}
			return req
		}, func(r kmsg.Response) int16 {
			return r.(*kmsg.DescribeTransactionsResponse).TransactionStates[0].ErrorCode
		}, []denial{{security.Describe, onTxn}}, kerr.TransactionalIDAuthorizationFailed},
		{"ListTransactions", func() kmsg.Request { return kmsg.NewPtrListTransactionsRequest() }, func(r kmsg.Response) int16 {
			for _, listed := range r.(*kmsg.ListTransactionsResponse).TransactionStates {
				if listed.TransactionalID == "x" {
					return 0
				}
			}
			return kerr.TransactionalIDAuthorizationFailed.Code // left out of the list
		}, []denial{{security.Describe, onTxn}}, kerr.TransactionalIDAuthorizationFailed},
		{"OffsetForLeaderEpoch", func() kmsg.Request {
			req := kmsg.NewPtrOffsetForLeaderEpochRequest()
			topic := kmsg.NewOffsetForLeaderEpochRequestTopic()
			p := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
			p.CurrentLeaderEpoch = -1
			topic.Topic, topic.Partitions = "t", append(topic.Partitions, p)
			req.Topics = append(req.Topics, topic)
			return req
		}, func(r kmsg.Response) int16 {
			return r.(*kmsg.OffsetForLeaderEpochResponse).Topics[0].Partitions[0].ErrorCode
		}, []denial{{security.ClusterAction, onCluster}, {security.Describe, onTopic}}, kerr.TopicAuthorizationFailed},
		{"WriteTxnMarkers", func() kmsg.Request {
			req := kmsg.NewPtrWriteTxnMarkersRequest()
			marker := kmsg.NewWriteTxnMarkersRequestMarker()
			topic := kmsg.NewWriteTxnMarkersRequestMarkerTopic()
			topic.Topic, topic.Partitions = "t", []int32{0}
			marker.Topics = append(marker.Topics, topic)
			req.Markers = append(req.Markers, marker)
			return req
		}, func(r kmsg.Response) int16 {
			return r.(*kmsg.WriteTxnMarkersResponse).Markers[0].Topics[0].Partitions[0].ErrorCode
		}, []denial{{security.Alter, onCluster}, {security.ClusterAction, onCluster}}, kerr.ClusterAuthorizationFailed},
		{"DescribeProducers", func() kmsg.Request {
			req := kmsg.NewPtrDescribeProducersRequest()
			topic := kmsg.NewDescribeProducersRequestTopic()
			topic.Topic, topic.Partitions = "t", []int32{0}
			req.Topics = append(req.Topics, topic)
			return req
		}, func(r kmsg.Response) int16 {
			return r.(*kmsg.DescribeProducersResponse).Topics[0].Partitions[0].ErrorCode
		}, []denial{{security.Read, onTopic}}, kerr.TopicAuthorizationFailed},
		{"DescribeConfigs, topic", describeConfigsRequest(kmsg.ConfigResourceTypeTopic, "t"), describeConfigsCode, []denial{{security.DescribeConfigs, onTopic}}, kerr.TopicAuthorizationFailed},
		{"DescribeConfigs, broker", describeConfigsRequest(kmsg.ConfigResourceTypeBroker, "1"), describeConfigsCode, []denial{{security.DescribeConfigs, onCluster}}, kerr.ClusterAuthorizationFailed},
		{"DescribeConfigs, group", describeConfigsRequest(kmsg.ConfigResourceTypeGroupConfig, "g"), describeConfigsCode, []denial{{security.DescribeConfigs, onGroup}}, kerr.GroupAuthorizationFailed},
		{"DescribeConfigs, subscription to metrics", describeConfigsRequest(kmsg.ConfigResourceTypeClientMetrics, "m"), describeConfigsCode, []denial{{security.DescribeConfigs, onCluster}}, kerr.ClusterAuthorizationFailed},
		{"DescribeConfigs, logger", describeConfigsRequest(kmsg.ConfigResourceTypeBrokerLogger, "1"), describeConfigsCode, []denial{{security.DescribeConfigs, onCluster}}, kerr.ClusterAuthorizationFailed},
		{"DescribeLogDirs", func() kmsg.Request { return kmsg.NewPtrDescribeLogDirsRequest() }, func(r kmsg.Response) int16 {
			resp := r.(*kmsg.DescribeLogDirsResponse)
			if resp.ErrorCode != 0 && len(resp.Dirs) > 0 {
				return 0 // denied, and told nevertheless
			}
			return resp.ErrorCode
		}, []denial{{security.Describe, onCluster}}, kerr.ClusterAuthorizationFailed},
		{"AlterReplicaLogDirs", func() kmsg.Request {
			req := kmsg.NewPtrAlterReplicaLogDirsRequest()
			dir := kmsg.NewAlterReplicaLogDirsRequestDir()
			dir.Dir = "/nowhere"
			topic := kmsg.NewAlterReplicaLogDirsRequestDirTopic()
			topic.Topic, topic.Partitions = "t", []int32{0}
			dir.Topics = append(dir.Topics, topic)
			req.Dirs = append(req.Dirs, dir)
			return req
		}, func(r kmsg.Response) int16 {
			if code := r.(*kmsg.AlterReplicaLogDirsResponse).Topics[0].Partitions[0].ErrorCode; code != kerr.LogDirNotFound.Code {
				return code
			}
			return 0 // allowed, and there is no such directory
		}, []denial{{security.Alter, onCluster}}, kerr.ClusterAuthorizationFailed},
		{"ListConfigResources", func() kmsg.Request { return kmsg.NewPtrListConfigResourcesRequest() },
			func(r kmsg.Response) int16 { return r.(*kmsg.ListConfigResourcesResponse).ErrorCode }, []denial{{security.DescribeConfigs, onCluster}}, kerr.ClusterAuthorizationFailed},
		{"DescribeTopicPartitions", func() kmsg.Request {
			req := kmsg.NewPtrDescribeTopicPartitionsRequest()
			topic := kmsg.NewDescribeTopicPartitionsRequestTopic()
			topic.Topic = "t"
			req.Topics, req.ResponsePartitionLimit = append(req.Topics, topic), 10
			return req
		}, func(r kmsg.Response) int16 { return r.(*kmsg.DescribeTopicPartitionsResponse).Topics[0].ErrorCode }, []denial{{security.Describe, onTopic}}, kerr.TopicAuthorizationFailed},
		{"DescribeTopicPartitions, all", func() kmsg.Request {
			req := kmsg.NewPtrDescribeTopicPartitionsRequest()
			req.ResponsePartitionLimit = 1000
			return req
		}, func(r kmsg.Response) int16 {
			for _, topic := range r.(*kmsg.DescribeTopicPartitionsResponse).Topics {
				if *topic.Topic == "t" {
					return 0
				}
			}
			return kerr.TopicAuthorizationFailed.Code // left out
		}, []denial{{security.Describe, onTopic}}, kerr.TopicAuthorizationFailed},
		{"DescribeClientQuotas", func() kmsg.Request { return kmsg.NewPtrDescribeClientQuotasRequest() },
			func(r kmsg.Response) int16 { return r.(*kmsg.DescribeClientQuotasResponse).ErrorCode }, []denial{{security.DescribeConfigs, onCluster}}, kerr.ClusterAuthorizationFailed},
		{"AlterClientQuotas", alterQuotasRequest, alterQuotasCode, []denial{{security.AlterConfigs, onCluster}}, kerr.ClusterAuthorizationFailed},
		{"ElectLeaders", electRequest, func(r kmsg.Response) int16 { return r.(*kmsg.ElectLeadersResponse).ErrorCode }, []denial{{security.Alter, onCluster}}, kerr.ClusterAuthorizationFailed},
		{"AlterPartitionAssignments", func() kmsg.Request { return kmsg.NewPtrAlterPartitionAssignmentsRequest() },
			func(r kmsg.Response) int16 { return r.(*kmsg.AlterPartitionAssignmentsResponse).ErrorCode }, []denial{{security.Alter, onCluster}}, kerr.ClusterAuthorizationFailed},
		{"ListPartitionReassignments", func() kmsg.Request { return kmsg.NewPtrListPartitionReassignmentsRequest() },
			func(r kmsg.Response) int16 { return r.(*kmsg.ListPartitionReassignmentsResponse).ErrorCode }, []denial{{security.Describe, onCluster}}, kerr.ClusterAuthorizationFailed},
		{"UnregisterBroker", func() kmsg.Request {
			req := kmsg.NewPtrUnregisterBrokerRequest()
			req.BrokerID = 99
			return req
		}, func(r kmsg.Response) int16 {
			if code := r.(*kmsg.UnregisterBrokerResponse).ErrorCode; code != kerr.BrokerIDNotRegistered.Code {
				return code
			}
			return 0 // allowed, and there is no such broker
		}, []denial{{security.Alter, onCluster}}, kerr.ClusterAuthorizationFailed},
		{"AddRaftVoter", func() kmsg.Request { return kmsg.NewPtrAddRaftVoterRequest() }, func(r kmsg.Response) int16 {
			if code := r.(*kmsg.AddRaftVoterResponse).ErrorCode; code == kerr.ClusterAuthorizationFailed.Code {
				return code
			}
			return 0 // allowed, and it is nobody
		}, []denial{{security.Alter, onCluster}}, kerr.ClusterAuthorizationFailed},
		{"RemoveRaftVoter", func() kmsg.Request { return kmsg.NewPtrRemoveRaftVoterRequest() }, func(r kmsg.Response) int16 {
			if code := r.(*kmsg.RemoveRaftVoterResponse).ErrorCode; code != kerr.VoterNotFound.Code {
				return code
			}
			return 0 // allowed, and there is no such voter
		}, []denial{{security.Alter, onCluster}}, kerr.ClusterAuthorizationFailed},
		{"IncrementalAlterConfigs, logger", incrementalRequest(kmsg.ConfigResourceTypeBrokerLogger, "1"), incrementalCode, []denial{{security.AlterConfigs, onCluster}}, kerr.ClusterAuthorizationFailed},
		{"DescribeCluster", func() kmsg.Request {
			req := kmsg.NewPtrDescribeClusterRequest()
			req.IncludeClusterAuthorizedOperations = true
			return req
		}, func(r kmsg.Response) int16 {
			if r.(*kmsg.DescribeClusterResponse).ClusterAuthorizedOperations == 0 {
				return kerr.ClusterAuthorizationFailed.Code // the operations are kept back
			}
			return 0
		}, []denial{{security.Describe, onCluster}}, kerr.ClusterAuthorizationFailed},
		{"CreateTopics", func() kmsg.Request {
			req := kmsg.NewPtrCreateTopicsRequest()
			topic := kmsg.NewCreateTopicsRequestTopic()
			topic.Topic, topic.NumPartitions, topic.ReplicationFactor = "t", 1, 1
			req.Topics = append(req.Topics, topic)
			return req
		}, func(r kmsg.Response) int16 { return r.(*kmsg.CreateTopicsResponse).Topics[0].ErrorCode }, []denial{{security.Create, onCluster}, {security.Create, onTopic}}, kerr.TopicAuthorizationFailed},
		{"DeleteTopics", func() kmsg.Request {
			req := kmsg.NewPtrDeleteTopicsRequest()
			topic := kmsg.NewDeleteTopicsRequestTopic()
			name := "absent"
			topic.Topic = &name
			req.Topics = append(req.Topics, topic)
			return req
		}, func(r kmsg.Response) int16 { return r.(*kmsg.DeleteTopicsResponse).Topics[0].ErrorCode }, []denial{{security.Delete, security.Resource{Type: security.Topic, Name: "absent"}}}, kerr.TopicAuthorizationFailed},
		{"CreatePartitions", func() kmsg.Request {
			req := kmsg.NewPtrCreatePartitionsRequest()
			topic := kmsg.NewCreatePartitionsRequestTopic()
			topic.Topic, topic.Count = "t", 1
			req.Topics = append(req.Topics, topic)
			return req
		}, func(r kmsg.Response) int16 { return r.(*kmsg.CreatePartitionsResponse).Topics[0].ErrorCode }, []denial{{security.Alter, onTopic}}, kerr.TopicAuthorizationFailed},
		{"AlterConfigs", func() kmsg.Request {
			req := kmsg.NewPtrAlterConfigsRequest()
			resource := kmsg.NewAlterConfigsRequestResource()
			resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeTopic, "t"
			req.Resources = append(req.Resources, resource)
			return req
		}, func(r kmsg.Response) int16 { return r.(*kmsg.AlterConfigsResponse).Resources[0].ErrorCode }, []denial{{security.AlterConfigs, onTopic}}, kerr.TopicAuthorizationFailed},
		{"IncrementalAlterConfigs, topic", incrementalRequest(kmsg.ConfigResourceTypeTopic, "t"), incrementalCode, []denial{{security.AlterConfigs, onTopic}}, kerr.TopicAuthorizationFailed},
		{"IncrementalAlterConfigs, broker", incrementalRequest(kmsg.ConfigResourceTypeBroker, "1"), incrementalCode, []denial{{security.AlterConfigs, onCluster}}, kerr.ClusterAuthorizationFailed},
		{"IncrementalAlterConfigs, group", incrementalRequest(kmsg.ConfigResourceTypeGroupConfig, "g"), incrementalCode, []denial{{security.AlterConfigs, onGroup}}, kerr.GroupAuthorizationFailed},
		{"DescribeQuorum", func() kmsg.Request { return kmsg.NewPtrDescribeQuorumRequest() },
			func(r kmsg.Response) int16 { return r.(*kmsg.DescribeQuorumResponse).ErrorCode }, []denial{{security.Describe, onCluster}}, kerr.ClusterAuthorizationFailed},
		{"UpdateFeatures", func() kmsg.Request { return kmsg.NewPtrUpdateFeaturesRequest() },
			func(r kmsg.Response) int16 { return r.(*kmsg.UpdateFeaturesResponse).ErrorCode }, []denial{{security.Alter, onCluster}}, kerr.ClusterAuthorizationFailed},
	}
}

// atMost names topics by name: the versions that do.
type atMost struct {
	kmsg.Request
	max int16
}

func (a atMost) MaxVersion() int16 { return a.max }

func commitRequest() kmsg.Request {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.Generation = "g", -1
	topic := kmsg.NewOffsetCommitRequestTopic()
	topic.Topic, topic.Partitions = "t", append(topic.Partitions, kmsg.NewOffsetCommitRequestTopicPartition())
	req.Topics = append(req.Topics, topic)
	return atMost{req, 9}
}

func commitCode(r kmsg.Response) int16 {
	return r.(*kmsg.OffsetCommitResponse).Topics[0].Partitions[0].ErrorCode
}

func offsetFetchRequest() kmsg.Request {
	req := kmsg.NewPtrOffsetFetchRequest()
	group := kmsg.NewOffsetFetchRequestGroup()
	topic := kmsg.NewOffsetFetchRequestGroupTopic()
	topic.Topic, topic.Partitions = "t", []int32{0}
	group.Group, group.MemberEpoch, group.Topics = "g", -1, append(group.Topics, topic)
	req.Groups = append(req.Groups, group)
	return atMost{req, 9}
}

func describeConfigsRequest(kind kmsg.ConfigResourceType, name string) func() kmsg.Request {
	return func() kmsg.Request {
		req := kmsg.NewPtrDescribeConfigsRequest()
		resource := kmsg.NewDescribeConfigsRequestResource()
		resource.ResourceType, resource.ResourceName = kind, name
		req.Resources = append(req.Resources, resource)
		return req
	}
}

func describeConfigsCode(r kmsg.Response) int16 {
	return r.(*kmsg.DescribeConfigsResponse).Resources[0].ErrorCode
}

func incrementalRequest(kind kmsg.ConfigResourceType, name string) func() kmsg.Request {
	return func() kmsg.Request {
		req := kmsg.NewPtrIncrementalAlterConfigsRequest()
		resource := kmsg.NewIncrementalAlterConfigsRequestResource()
		resource.ResourceType, resource.ResourceName = kind, name
		req.Resources = append(req.Resources, resource)
		return req
	}
}

func incrementalCode(r kmsg.Response) int16 {
	return r.(*kmsg.IncrementalAlterConfigsResponse).Resources[0].ErrorCode
}

func controllerAuthorization() []authorizationCase {
	cluster := []denial{{security.ClusterAction, onCluster}}
	top := func(name string, request func() kmsg.Request, code func(kmsg.Response) int16) authorizationCase {
		return authorizationCase{name, request, code, cluster, kerr.ClusterAuthorizationFailed}
	}
	return []authorizationCase{
		{"DescribeConfigs at the controller", describeConfigsRequest(kmsg.ConfigResourceTypeTopic, "t"), describeConfigsCode, []denial{{security.DescribeConfigs, onTopic}}, kerr.TopicAuthorizationFailed},
		{"AlterClientQuotas at the controller", alterQuotasRequest, alterQuotasCode, []denial{{security.AlterConfigs, onCluster}}, kerr.ClusterAuthorizationFailed},
		{"ElectLeaders at the controller", electRequest, func(r kmsg.Response) int16 { return r.(*kmsg.ElectLeadersResponse).ErrorCode }, []denial{{security.Alter, onCluster}}, kerr.ClusterAuthorizationFailed},
		{"AlterPartitionAssignments at the controller", func() kmsg.Request { return kmsg.NewPtrAlterPartitionAssignmentsRequest() },
			func(r kmsg.Response) int16 { return r.(*kmsg.AlterPartitionAssignmentsResponse).ErrorCode }, []denial{{security.Alter, onCluster}}, kerr.ClusterAuthorizationFailed},
		{"ListPartitionReassignments at the controller", func() kmsg.Request { return kmsg.NewPtrListPartitionReassignmentsRequest() },
			func(r kmsg.Response) int16 { return r.(*kmsg.ListPartitionReassignmentsResponse).ErrorCode }, []denial{{security.Describe, onCluster}}, kerr.ClusterAuthorizationFailed},
		{"UnregisterBroker at the controller", func() kmsg.Request {
			req := kmsg.NewPtrUnregisterBrokerRequest()
			req.BrokerID = 99
			return req
		}, func(r kmsg.Response) int16 {
			if code := r.(*kmsg.UnregisterBrokerResponse).ErrorCode; code != kerr.BrokerIDNotRegistered.Code {
				return code
			}
			return 0 // allowed, and there is no such broker
		}, []denial{{security.Alter, onCluster}}, kerr.ClusterAuthorizationFailed},
		{"AddRaftVoter at the controller", func() kmsg.Request { return kmsg.NewPtrAddRaftVoterRequest() }, func(r kmsg.Response) int16 {
			if code := r.(*kmsg.AddRaftVoterResponse).ErrorCode; code == kerr.ClusterAuthorizationFailed.Code {
				return code
			}
			return 0 // allowed, and it is nobody
		}, []denial{{security.Alter, onCluster}}, kerr.ClusterAuthorizationFailed},
		{"RemoveRaftVoter at the controller", func() kmsg.Request { return kmsg.NewPtrRemoveRaftVoterRequest() }, func(r kmsg.Response) int16 {
			if code := r.(*kmsg.RemoveRaftVoterResponse).ErrorCode; code != kerr.VoterNotFound.Code {
				return code
			}
			return 0 // allowed, and there is no such voter
		}, []denial{{security.Alter, onCluster}}, kerr.ClusterAuthorizationFailed},
		{"IncrementalAlterConfigs at the controller, logger", incrementalRequest(kmsg.ConfigResourceTypeBrokerLogger, "1"), incrementalCode, []denial{{security.AlterConfigs, onCluster}}, kerr.ClusterAuthorizationFailed},
		top("Fetch of the metadata log", func() kmsg.Request {
			req := kmsg.NewPtrFetchRequest()
			topic := kmsg.NewFetchRequestTopic()
			topic.TopicID = [16]byte{15: 1}
			topic.Partitions = append(topic.Partitions, kmsg.NewFetchRequestTopicPartition())
			req.Topics = append(req.Topics, topic)
			return req
		}, func(r kmsg.Response) int16 { return r.(*kmsg.FetchResponse).ErrorCode }),
		top("FetchSnapshot", func() kmsg.Request { return kmsg.NewPtrFetchSnapshotRequest() }, func(r kmsg.Response) int16 { return r.(*kmsg.FetchSnapshotResponse).ErrorCode }),
		top("BrokerRegistration", func() kmsg.Request { return kmsg.NewPtrBrokerRegistrationRequest() }, func(r kmsg.Response) int16 { return r.(*kmsg.BrokerRegistrationResponse).ErrorCode }),
		top("BrokerHeartbeat", func() kmsg.Request { return kmsg.NewPtrBrokerHeartbeatRequest() }, func(r kmsg.Response) int16 { return r.(*kmsg.BrokerHeartbeatResponse).ErrorCode }),
		top("AlterPartition", func() kmsg.Request { return kmsg.NewPtrAlterPartitionRequest() }, func(r kmsg.Response) int16 { return r.(*kmsg.AlterPartitionResponse).ErrorCode }),
		top("AllocateProducerIds", func() kmsg.Request { return kmsg.NewPtrAllocateProducerIDsRequest() }, func(r kmsg.Response) int16 { return r.(*kmsg.AllocateProducerIDsResponse).ErrorCode }),
		top("AssignReplicasToDirs", func() kmsg.Request { return kmsg.NewPtrAssignReplicasToDirsRequest() }, func(r kmsg.Response) int16 { return r.(*kmsg.AssignReplicasToDirsResponse).ErrorCode }),
		top("ControllerRegistration", func() kmsg.Request { return kmsg.NewPtrControllerRegistrationRequest() }, func(r kmsg.Response) int16 { return r.(*kmsg.ControllerRegistrationResponse).ErrorCode }),
		top("Envelope", func() kmsg.Request { return kmsg.NewPtrEnvelopeRequest() }, func(r kmsg.Response) int16 { return r.(*kmsg.EnvelopeResponse).ErrorCode }),
		{"DescribeCluster of controllers", func() kmsg.Request {
			req := kmsg.NewPtrDescribeClusterRequest()
			req.EndpointType = 2
			return req
		}, func(r kmsg.Response) int16 { return r.(*kmsg.DescribeClusterResponse).ErrorCode }, []denial{{security.Alter, onCluster}}, kerr.ClusterAuthorizationFailed},
		{"CreateTopics", func() kmsg.Request {
			req := kmsg.NewPtrCreateTopicsRequest()
			topic := kmsg.NewCreateTopicsRequestTopic()
			topic.Topic = "t"
			req.Topics = append(req.Topics, topic)
			return req
		}, func(r kmsg.Response) int16 { return r.(*kmsg.CreateTopicsResponse).Topics[0].ErrorCode }, []denial{{security.Create, onCluster}, {security.Create, onTopic}}, kerr.TopicAuthorizationFailed},
		{"DescribeQuorum", func() kmsg.Request { return kmsg.NewPtrDescribeQuorumRequest() }, func(r kmsg.Response) int16 { return r.(*kmsg.DescribeQuorumResponse).ErrorCode }, []denial{{security.Describe, onCluster}}, kerr.ClusterAuthorizationFailed},
	}
}

func electRequest() kmsg.Request {
	req := kmsg.NewPtrElectLeadersRequest()
	req.Topics = append(req.Topics, kmsg.ElectLeadersRequestTopic{Topic: "t", Partitions: []int32{0}})
	return req
}

func alterQuotasRequest() kmsg.Request {
	req := kmsg.NewPtrAlterClientQuotasRequest()
	entry := kmsg.NewAlterClientQuotasRequestEntry()
	entity := kmsg.NewAlterClientQuotasRequestEntryEntity()
	entity.Type, entity.Name = "user", new("u")
	entry.Entity = append(entry.Entity, entity)
	req.Entries = append(req.Entries, entry)
	return req
}

func alterQuotasCode(r kmsg.Response) int16 {
	return r.(*kmsg.AlterClientQuotasResponse).Entries[0].ErrorCode
}

func consumerHeartbeat() kmsg.Request {
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Group, req.MemberID, req.SubscribedTopicNames, req.RebalanceTimeoutMillis = "g", "m", []string{"t"}, 1000
	req.Topics = []kmsg.ConsumerGroupHeartbeatRequestTopic{}
	return req
}
