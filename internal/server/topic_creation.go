package server

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/broker"
	"github.com/stelelog/stele/internal/config"
	"github.com/stelelog/stele/internal/coordinator"
	"github.com/stelelog/stele/internal/security"
	"github.com/stelelog/stele/internal/wire"
)

// createTimeout bounds one attempt to have a topic created.
const createTimeout = 30 * time.Second

// Bounds on the names that clients make up.
const (
	createAtOnce    = 1000  // topics in one request to the controller
	createInWaiting = 10000 // topics asked for and not yet answered; more are left for clients to ask again
)

// topicCreation has missing topics created by the controller, each name once at a
// time. Its goroutines end with stop.
type topicCreation struct {
	broker *broker.Broker
	config *config.Broker
	logger *slog.Logger

	mu       sync.Mutex
	inFlight map[string]bool
	running  sync.WaitGroup
	ctx      context.Context
	cancel   context.CancelFunc
}

func newTopicCreation(b *broker.Broker, c *config.Broker, logger *slog.Logger) *topicCreation {
	ctx, cancel := context.WithCancel(context.Background())
	return &topicCreation{broker: b, config: c, logger: logger, inFlight: map[string]bool{}, ctx: ctx, cancel: cancel}
}

func (t *topicCreation) stop() {
	t.mu.Lock()
	t.cancel()
	t.mu.Unlock()
	t.running.Wait()
}

// forClient creates topics on behalf of a client, with its rights. Partitions and
// factor are the controller's defaults, unless this broker was given its own.
func (t *topicCreation) forClient(r *Request, names []string) {
	topics := make([]kmsg.CreateTopicsRequestTopic, 0, len(names))
	for _, name := range names {
		topic := kmsg.NewCreateTopicsRequestTopic()
		topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, -1, -1
		if t.config.IsSet("num.partitions") {
			topic.NumPartitions = int32(t.config.Int("num.partitions"))
		}
		if t.config.IsSet("default.replication.factor") {
			topic.ReplicationFactor = int16(t.config.Int("default.replication.factor"))
		}
		topics = append(topics, topic)
	}
	t.start(topics, r.Principal, r.ClientAddr)
}

// internal creates an internal topic with its own settings, whoever asked for it:
// one of ordinary settings would lose committed offsets to retention.
func (t *topicCreation) internal(name string) {
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic = name
	set := func(name, value string) {
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		c.Name, c.Value = name, &value
		topic.Configs = append(topic.Configs, c)
	}
	switch name {
	case coordinator.GroupTopic:
		topic.NumPartitions = int32(t.config.Int("offsets.topic.num.partitions"))
		topic.ReplicationFactor = int16(t.config.Int("offsets.topic.replication.factor"))
		set("cleanup.policy", "compact")
		set("compression.type", "producer")
		set("segment.bytes", t.config.String("offsets.topic.segment.bytes"))
	case coordinator.TransactionTopic:
		topic.NumPartitions = int32(t.config.Int("transaction.state.log.num.partitions"))
		topic.ReplicationFactor = int16(t.config.Int("transaction.state.log.replication.factor"))
		set("cleanup.policy", "compact")
		set("compression.type", "uncompressed")
		set("unclean.leader.election.enable", "false")
		set("min.insync.replicas", t.config.String("transaction.state.log.min.isr"))
		set("segment.bytes", t.config.String("transaction.state.log.segment.bytes"))
	default:
		return // the coordinators of the others are not here yet
	}
	t.start([]kmsg.CreateTopicsRequestTopic{topic}, security.Anonymous, net.IPv4zero)
}

// start has those of the topics created that are not under way already.
func (t *topicCreation) start(topics []kmsg.CreateTopicsRequestTopic, principal security.Principal, client net.IP) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ctx.Err() != nil {
		return
	}
	var wanted []kmsg.CreateTopicsRequestTopic
	for _, topic := range topics {
		if !t.inFlight[topic.Topic] && len(t.inFlight) < createInWaiting {
			t.inFlight[topic.Topic] = true
			wanted = append(wanted, topic)
		}
	}
	if len(wanted) == 0 {
		return
	}
	t.running.Go(func() {
		for part := range slices.Chunk(wanted, createAtOnce) {
			t.createAndTell(part, principal, client)
		}
	})
}

func (t *topicCreation) createAndTell(topics []kmsg.CreateTopicsRequestTopic, principal security.Principal, client net.IP) {
	failed, err := t.create(topics, principal, client)
	if err != nil && t.ctx.Err() == nil {
		t.logger.Warn("topics were not created", "topics", failed, "of", len(topics), "cause", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, topic := range topics {
		delete(t.inFlight, topic.Topic)
	}
}

// create asks the controller once. It returns how many topics were not created, and why the first of them was
// not.
func (t *topicCreation) create(topics []kmsg.CreateTopicsRequestTopic, principal security.Principal, client net.IP) (failed int, first error) {
	ctx, cancel := context.WithTimeout(t.ctx, createTimeout)
	defer cancel()
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Version = 5 // the last that the controller mutation quota slows down and does not refuse: clients were not asked
	req.TimeoutMillis = int32(createTimeout.Milliseconds())
	req.Topics = topics
	frame := kmsg.NewRequestFormatter(kmsg.FormatterClientID("broker")).AppendRequest(nil, req, 0)
	answer, err := t.broker.Forward(ctx, broker.Forwarded{
		Request: frame[wire.FrameSizeBytes:], PrincipalType: principal.Type, PrincipalName: principal.Name, ClientAddress: client,
	})
	if err != nil {
		return len(topics), err
	}
	resp := req.ResponseKind().(*kmsg.CreateTopicsResponse)
	_, body, err := wire.DecodeResponseHeader(answer, req.Key(), req.IsFlexible())
	if err == nil {
		err = resp.ReadFrom(body)
	}
	if err != nil {
		return len(topics), err
	}
	for i := range resp.Topics {
		err := kerr.ErrorForCode(resp.Topics[i].ErrorCode)
		if err == nil || err == kerr.TopicAlreadyExists {
			continue
		}
		if failed++; first == nil {
			first = fmt.Errorf("%s: %w", resp.Topics[i].Topic, err)
		}
	}
	return failed, first
}
