package server

import (
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/broker"
	"github.com/stelelog/stele/internal/config"
	"github.com/stelelog/stele/internal/coordinator"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/replica"
	"github.com/stelelog/stele/internal/security"
	"github.com/stelelog/stele/internal/wire"
)

// Node is what the handlers of a client listener serve: the parts of this broker.
type Node struct {
	ID        int32
	ClusterID string
	Config    *config.Broker
	Broker    *broker.Broker
	Replicas  *replica.Manager
	Groups    *coordinator.Runtime
	Txns      *coordinator.Transactions
	Txn       *broker.TxnChannel
	Logger    *slog.Logger
	LogLevel  *slog.LevelVar   // of Logger, as DescribeConfigs shows and AlterConfigs changes it; nil: one that nothing follows
	Now       func() time.Time // nil: time.Now
}

// BrokerAPI answers on client listeners. Its handlers are registered before the node
// is there, since its listeners must be bound before the broker can say where it is;
// requests that come early wait for Open.
type BrokerAPI struct {
	opened chan struct{}
	node   *brokerAPI
}

// NewBrokerAPI makes an API that is not open yet.
func NewBrokerAPI() *BrokerAPI { return &BrokerAPI{opened: make(chan struct{})} }

// Open lets requests through to node. It is called once.
func (b *BrokerAPI) Open(node Node) {
	if node.Now == nil {
		node.Now = time.Now
	}
	if node.LogLevel == nil {
		node.LogLevel = new(slog.LevelVar)
	}
	b.node = &brokerAPI{
		Node:     node,
		sessions: newFetchSessions(node.Config.Int("max.incremental.fetch.session.cache.slots"), node.Config.Int("max.incremental.fetch.session.cache.bytes"), node.Now),
		creating: newTopicCreation(node.Broker, node.Config, node.Logger),
	}
	close(b.opened)
}

// Close ends what handlers have begun of themselves, and waits for it.
func (b *BrokerAPI) Close() {
	select {
	case <-b.opened:
		b.node.creating.stop()
	default:
	}
}

// on makes a handler that waits until the node is open.
func (b *BrokerAPI) on(key int16, handle func(a *brokerAPI, r *Request) Response) Handler {
	return Handler{Key: key, Scopes: wire.ScopeBroker, Handle: func(r *Request) Response {
		select {
		case <-b.opened:
			return handle(b.node, r)
		case <-r.Context().Done():
			return CloseConnection(r.Context().Err())
		}
	}}
}

// reply makes a handler of a function from one message to another.
func reply[Req kmsg.Request, Resp kmsg.Response](b *BrokerAPI, handle func(a *brokerAPI, r *Request, req Req) Resp) Handler {
	var none Req
	return b.on(none.Key(), func(a *brokerAPI, r *Request) Response { return Reply(handle(a, r, r.Msg.(Req))) })
}

// Handlers are the APIs of a client listener. What is not in this list is not
// advertised.
func (b *BrokerAPI) Handlers() []Handler {
	handlers := []Handler{
		b.on(wire.KeyProduce, (*brokerAPI).handleProduce),
		b.on(wire.KeyFetch, (*brokerAPI).handleFetch),
		reply(b, (*brokerAPI).listOffsets),
		large(b, (*brokerAPI).metadata),
		reply(b, (*brokerAPI).offsetCommit),
		large(b, (*brokerAPI).offsetFetch),
		reply(b, (*brokerAPI).findCoordinator),
		reply(b, (*brokerAPI).joinGroup),
		reply(b, (*brokerAPI).heartbeat),
		reply(b, (*brokerAPI).leaveGroup),
		reply(b, (*brokerAPI).syncGroup),
		large(b, (*brokerAPI).describeGroups),
		large(b, (*brokerAPI).listGroups),
		reply(b, (*brokerAPI).consumerGroupHeartbeat),
		large(b, (*brokerAPI).consumerGroupDescribe),
		reply(b, (*brokerAPI).deleteGroups),
		reply(b, (*brokerAPI).offsetDelete),
		reply(b, (*brokerAPI).deleteRecords),
		reply(b, (*brokerAPI).initProducerID),
		reply(b, (*brokerAPI).offsetForLeaderEpoch),
		reply(b, (*brokerAPI).addPartitionsToTxn),
		reply(b, (*brokerAPI).addOffsetsToTxn),
		reply(b, (*brokerAPI).endTxn),
		reply(b, (*brokerAPI).writeTxnMarkers),
		reply(b, (*brokerAPI).txnOffsetCommit),
		large(b, (*brokerAPI).describeTransactions),
		large(b, (*brokerAPI).listTransactions),
		large(b, (*brokerAPI).describeProducers),
		large(b, (*brokerAPI).describeConfigs),
		reply(b, (*brokerAPI).describeCluster),
		large(b, (*brokerAPI).describeLogDirs),
		reply(b, (*brokerAPI).alterReplicaLogDirs),
		large(b, (*brokerAPI).describeClientQuotas),
		large(b, (*brokerAPI).listConfigResources),
		large(b, (*brokerAPI).describeTopicPartitions),
		large(b, (*brokerAPI).describeScram),
		large(b, (*brokerAPI).describeTokens),
		b.on(int16(kmsg.DescribeACLs), func(a *brokerAPI, r *Request) Response {
			if err := r.takeTurn(); err != nil {
				return CloseConnection(err)
			}
			return a.describeACLs(r)
		}),
	}
	handlers = append(handlers,
		b.on(int16(kmsg.AlterConfigs), (*brokerAPI).alterConfigs),
		b.on(int16(kmsg.IncrementalAlterConfigs), (*brokerAPI).incrementalAlterConfigs))
	for _, key := range forwardedKeys {
		handlers = append(handlers, b.on(key, (*brokerAPI).forward))
	}
	return handlers
}

// brokerAPI holds the handlers of client listeners.
type brokerAPI struct {
	Node
	sessions *fetchSessions
	creating *topicCreation
}

// image is the metadata that this broker has applied.
func (a *brokerAPI) image() *metadata.Image { return a.Broker.Image() }

// internalTopics are those that clients may read but not write.
var internalTopics = map[string]bool{coordinator.GroupTopic: true, coordinator.TransactionTopic: true, shareTopic: true}

const (
	shareTopic    = "__share_group_state"
	metadataTopic = "__cluster_metadata"
)

// mayTopic asks whether the request's principal may do op on a topic.
func (r *Request) mayTopic(op security.Operation, topic string) bool {
	return r.Authorize(op, security.Resource{Type: security.Topic, Name: topic})
}

// mayGroup asks the same of a group.
func (r *Request) mayGroup(op security.Operation, group string) bool {
	return r.Authorize(op, security.Resource{Type: security.Group, Name: group})
}

// mayCluster asks the same of the cluster.
func (r *Request) mayCluster(op security.Operation) bool {
	return r.Authorize(op, security.TheCluster)
}

// leaderEndpoints collects, for answers that name leaders, where those listen
// (KIP-951): so a client that was wrong need not ask for metadata.
type leaderEndpoints struct {
	image    *metadata.Image
	listener string
	seen     map[int32]bool
	found    []kmsg.FetchResponseBroker
}

func (l *leaderEndpoints) add(id int32) {
	if id < 0 || l.seen[id] {
		return
	}
	if l.seen == nil {
		l.seen = map[int32]bool{}
	}
	l.seen[id] = true
	registration, ok := l.image.Broker(id)
	if !ok {
		return
	}
	endpoint, ok := registration.Endpoint(l.listener)
	if !ok {
		return
	}
	node := kmsg.NewFetchResponseBroker()
	node.NodeID, node.Host, node.Port, node.Rack = id, endpoint.Host, int32(endpoint.Port), rackOf(registration)
	l.found = append(l.found, node)
}

func rackOf(b *metadata.BrokerRegistration) *string { return b.Rack }

// hostText is an address in the form in which Java prints it: /10.0.0.1.
func hostText(addr net.IP) string { return "/" + addr.String() }

// legalTopicName is the rule for names of topics.
func legalTopicName(name string) bool {
	if name == "" || name == "." || name == ".." || len(name) > 249 {
		return false
	}
	return strings.IndexFunc(name, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-'
	}) < 0
}

func textOrNil(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}
