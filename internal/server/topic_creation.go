package server

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/broker"
	"github.com/stelelog/stele/internal/config"
	"github.com/stelelog/stele/internal/coordinator"
	"github.com/stelelog/stele/internal/security"
)

// createTimeout bounds one attempt to have a topic created.
const createTimeout = 30 * time.Second

// topicCreation has missing topics created by the controller, one request for each
// name at a time. Its goroutines end with stop.
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

// forClient creates a topic on behalf of a client, with its rights. Partitions and
// factor are the controller's defaults, unless this broker was given its own.
func (t *topicCreation) forClient(r *Request, name string) {
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, -1, -1
	if t.config.IsSet("num.partitions") {
		topic.NumPartitions = int32(t.config.Int("num.partitions"))
	}
	if t.config.IsSet("default.replication.factor") {
		topic.ReplicationFactor = int16(t.config.Int("default.replication.factor"))
	}
	t.start(topic, r.Principal, r.ClientAddr)
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
	default:
		return // the coordinators of the others are not here yet
	}
	t.start(topic, security.Anonymous, net.IPv4zero)
}

func (t *topicCreation) start(topic kmsg.CreateTopicsRequestTopic, principal security.Principal, client net.IP) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.inFlight[topic.Topic] || t.ctx.Err() != nil {
		return
	}
	t.inFlight[topic.Topic] = true
	t.running.Go(func() {
		defer func() {
			t.mu.Lock()
			delete(t.inFlight, topic.Topic)
			t.mu.Unlock()
		}()
		if err := t.create(topic, principal, client); err != nil && t.ctx.Err() == nil {
			t.logger.Warn("topic was not created", "topic", topic.Topic, "cause", err)
		}
	})
}

func (t *topicCreation) create(topic kmsg.CreateTopicsRequestTopic, principal security.Principal, client net.IP) error {
	ctx, cancel := context.WithTimeout(t.ctx, createTimeout)
	defer cancel()
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Version = 7
	req.TimeoutMillis = int32(createTimeout.Milliseconds())
	req.Topics = append(req.Topics, topic)
	frame := kmsg.NewRequestFormatter(kmsg.FormatterClientID("broker")).AppendRequest(nil, req, 0)
	answer, err := t.broker.Forward(ctx, broker.Forwarded{
		Request: frame[4:], PrincipalType: principal.Type, PrincipalName: principal.Name, ClientAddress: client,
	})
	if err != nil {
		return err
	}
	const header = 5 // correlation id and empty tags
	resp := req.ResponseKind().(*kmsg.CreateTopicsResponse)
	if len(answer) < header {
		return kerr.UnknownServerError
	}
	if err := resp.ReadFrom(answer[header:]); err != nil {
		return err
	}
	for i := range resp.Topics {
		if err := kerr.ErrorForCode(resp.Topics[i].ErrorCode); err != nil && err != kerr.TopicAlreadyExists {
			return err
		}
	}
	return nil
}
