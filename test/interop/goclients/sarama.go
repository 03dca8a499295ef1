package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"
)

// saramaClient is github.com/IBM/sarama, which picks the versions of its requests from the release of Kafka that it
// is told. By default it then goes down to what the broker advertises.
type saramaClient struct {
	version   sarama.KafkaVersion
	negotiate bool
}

func newSarama(version string) (saramaClient, error) {
	if version == "newest" {
		return saramaClient{sarama.MaxVersion, true}, nil
	}
	v, err := sarama.ParseKafkaVersion(version)
	return saramaClient{v, false}, err
}

var saramaCodecs = map[string]sarama.CompressionCodec{"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP,
	"snappy": sarama.CompressionSnappy, "lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD}

func (s saramaClient) config() *sarama.Config {
	c := sarama.NewConfig()
	c.ClientID = "interop"
	c.Version = s.version
	c.ApiVersionsRequest = s.negotiate
	c.Metadata.AllowAutoTopicCreation = false
	return c
}

func (s saramaClient) produce(r request) error {
	codec, ok := saramaCodecs[r.Codec]
	if !ok {
		return fmt.Errorf("unknown codec %q", r.Codec)
	}
	c := s.config()
	c.Producer.RequiredAcks = sarama.WaitForAll
	c.Producer.Return.Successes = true
	c.Producer.Partitioner = sarama.NewManualPartitioner
	c.Producer.Compression = codec
	c.Producer.Flush.Frequency = 50 * time.Millisecond
	// One at a time, which is also what keeps the order.
	c.Net.MaxOpenRequests = 1
	c.Producer.Idempotent = r.Idempotent || r.Transaction != ""
	if r.Transaction != "" {
		c.Producer.Transaction.ID = r.TransactionalID
		// It asks for a producer id more often than anybody waits.
		c.Producer.Transaction.Retry.Max = 3
	}
	if r.MaxBytes > 0 {
		c.Producer.MaxMessageBytes = r.MaxBytes
	}
	p, err := sarama.NewSyncProducer([]string{r.Bootstrap}, c)
	if err != nil {
		return err
	}
	defer p.Close()
	if r.Transaction != "" {
		if err := p.BeginTxn(); err != nil {
			return err
		}
	}
	var list []*sarama.ProducerMessage
	for _, x := range r.Records {
		m := &sarama.ProducerMessage{Topic: r.Topic, Partition: x.Partition}
		// An encoder of nil bytes is not null.
		if x.Key != nil {
			m.Key = sarama.ByteEncoder(x.Key)
		}
		if x.Value != nil {
			m.Value = sarama.ByteEncoder(x.Value)
		}
		if x.Timestamp != 0 {
			m.Timestamp = time.UnixMilli(x.Timestamp)
		}
		for _, h := range x.Headers {
			m.Headers = append(m.Headers, sarama.RecordHeader{Key: []byte(h.Name), Value: h.Value})
		}
		list = append(list, m)
	}
	if err := p.SendMessages(list); err != nil {
		var all sarama.ProducerErrors
		if errors.As(err, &all) && len(all) > 0 {
			return fmt.Errorf("%w: %w", err, all[0].Err)
		}
		return err
	}
	switch r.Transaction {
	case "commit":
		return p.CommitTxn()
	case "abort":
		return p.AbortTxn()
	}
	return nil
}

func fromSarama(m *sarama.ConsumerMessage) record {
	r := record{Partition: m.Partition, Offset: m.Offset, Timestamp: m.Timestamp.UnixMilli(), Key: m.Key, Value: m.Value}
	for _, h := range m.Headers {
		r.Headers = append(r.Headers, header{string(h.Key), h.Value})
	}
	return r
}

func (s saramaClient) consume(r request) ([]record, error) {
	c := s.config()
	if r.Config["isolation.level"] == "read_committed" {
		c.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	client, err := sarama.NewClient([]string{r.Bootstrap}, c)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	consumer, err := sarama.NewConsumerFromClient(client)
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	partitions, err := consumer.Partitions(r.Topic)
	if err != nil {
		return nil, err
	}
	var out []record
	deadline := time.After(limit)
	for _, p := range partitions {
		end, err := client.GetOffset(r.Topic, p, sarama.OffsetNewest)
		if err != nil {
			return nil, err
		}
		if end == 0 {
			continue
		}
		pc, err := consumer.ConsumePartition(r.Topic, p, sarama.OffsetOldest)
		if err != nil {
			return nil, err
		}
		// The last offset may be a transaction's marker, which it does not show: then the count says that all have
		// come, and a moment more shows any too many.
		var surplus <-chan time.Time
		for done := false; !done; {
			select {
			case m := <-pc.Messages():
				out = append(out, fromSarama(m))
				done = m.Offset+1 >= end
				if len(out) == r.Count {
					surplus = time.After(300 * time.Millisecond)
				}
			case <-surplus:
				done = true
			case <-deadline:
				_ = pc.Close()
				return out, fmt.Errorf("timed out after %d records", len(out))
			}
		}
		if err := pc.Close(); err != nil {
			return out, err
		}
	}
	return out, nil
}

// groupHandler hands a group's records to each, which says whether to go on.
type groupHandler struct {
	each func(session sarama.ConsumerGroupSession, m *sarama.ConsumerMessage) bool
}

func (groupHandler) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (groupHandler) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (h groupHandler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case m, ok := <-claim.Messages():
			if !ok || !h.each(session, m) {
				return nil
			}
		case <-session.Context().Done():
			return nil
		}
	}
}

func (s saramaClient) group(r request) ([]record, error) {
	c := s.config()
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Consumer.Offsets.AutoCommit.Enable = false
	g, err := sarama.NewConsumerGroup([]string{r.Bootstrap}, r.Group, c)
	if err != nil {
		return nil, err
	}
	defer g.Close()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var out []record
	h := groupHandler{func(session sarama.ConsumerGroupSession, m *sarama.ConsumerMessage) bool {
		out = append(out, fromSarama(m))
		session.MarkMessage(m, "")
		if len(out) < r.Count {
			return true
		}
		session.Commit()
		cancel()
		return false
	}}
	for len(out) < r.Count {
		if err := g.Consume(ctx, []string{r.Topic}, h); err != nil && len(out) < r.Count {
			return out, fmt.Errorf("after %d of %d records: %w", len(out), r.Count, err)
		}
		if ctx.Err() != nil && len(out) < r.Count {
			return out, fmt.Errorf("timed out after %d of %d records", len(out), r.Count)
		}
	}
	return out, nil
}

func (s saramaClient) join(r request) (*member, error) {
	c := s.config()
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Consumer.Offsets.AutoCommit.Interval = 200 * time.Millisecond
	g, err := sarama.NewConsumerGroup([]string{r.Bootstrap}, r.Group, c)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	return startMember(cancel, func(m *member) error {
		h := groupHandler{func(session sarama.ConsumerGroupSession, x *sarama.ConsumerMessage) bool {
			m.add(fromSarama(x))
			session.MarkMessage(x, "")
			return true
		}}
		for ctx.Err() == nil {
			if err := g.Consume(ctx, []string{r.Topic}, h); err != nil && ctx.Err() == nil {
				_ = g.Close()
				return err
			}
		}
		return g.Close()
	}), nil
}

func (s saramaClient) admin(r request) (a adminAnswer, err error) {
	q := r.Admin
	adm, err := sarama.NewClusterAdmin([]string{r.Bootstrap}, s.config())
	if err != nil {
		return a, err
	}
	defer adm.Close()
	values := map[string]*string{}
	for k, v := range q.Configs {
		values[k] = &v
	}
	switch q.Do {
	case "create-topic":
		err = adm.CreateTopic(q.Topic, &sarama.TopicDetail{NumPartitions: q.Partitions, ReplicationFactor: 1, ConfigEntries: values}, false)
	case "list-topics":
		list, err := adm.ListTopics()
		for name := range list {
			a.Names = append(a.Names, name)
		}
		return a, err
	case "describe-topic":
		list, err := adm.DescribeTopics([]string{q.Topic})
		for _, t := range list {
			if t.Err != sarama.ErrNoError {
				return a, t.Err
			}
			a.Partitions = int32(len(t.Partitions))
		}
		return a, err
	case "create-partitions":
		err = adm.CreatePartitions(q.Topic, q.Partitions, nil, false)
	case "describe-configs":
		list, err := adm.DescribeConfigs([]*sarama.ConfigResource{{Type: sarama.TopicResource, Name: q.Topic}}, sarama.DescribeConfigsOptions{})
		if err != nil {
			return a, err
		}
		a.Configs = map[string]string{}
		for _, resource := range list {
			if resource.ErrorCode != sarama.ErrNoError {
				return a, resource.ErrorCode
			}
			for _, e := range resource.Configs {
				a.Configs[e.Name] = e.Value
			}
		}
	case "alter-configs":
		err = adm.AlterConfig(sarama.TopicResource, q.Topic, values, false)
	case "incremental-configs":
		changes := map[string]sarama.IncrementalAlterConfigsEntry{}
		for k, v := range values {
			changes[k] = sarama.IncrementalAlterConfigsEntry{Operation: sarama.IncrementalAlterConfigsOperationSet, Value: v}
		}
		err = adm.IncrementalAlterConfig(sarama.TopicResource, q.Topic, changes, false)
	case "list-offsets":
		list, err := adm.ListOffsets(map[string]map[int32]int64{q.Topic: {q.Partition: sarama.OffsetNewest}}, nil)
		if err != nil {
			return a, err
		}
		o := list[q.Topic][q.Partition]
		if o == nil {
			return a, errors.New("there is no offset in the answer")
		}
		a.Offset = o.Offset
		if o.Err != nil && !errors.Is(o.Err, sarama.ErrNoError) {
			return a, o.Err
		}
	case "delete-records":
		err = adm.DeleteRecords(q.Topic, map[int32]int64{q.Partition: q.Offset})
	case "list-groups":
		list, err := adm.ListConsumerGroups()
		for name := range list {
			a.Names = append(a.Names, name)
		}
		return a, err
	case "describe-group":
		list, err := adm.DescribeConsumerGroups([]string{q.Group})
		for _, g := range list {
			if g.Err != sarama.ErrNoError {
				return a, g.Err
			}
			a.State = g.State
		}
		return a, err
	case "group-offset":
		answer, err := adm.ListConsumerGroupOffsets(q.Group, map[string][]int32{q.Topic: {q.Partition}})
		if err != nil {
			return a, err
		}
		b := answer.GetBlock(q.Topic, q.Partition)
		if b == nil {
			return a, errors.New("there is no offset in the answer")
		}
		a.Offset = b.Offset
		if b.Err != sarama.ErrNoError {
			return a, b.Err
		}
	case "set-group-offset":
		answer, err := adm.AlterConsumerGroupOffsets(q.Group, map[string]map[int32]sarama.OffsetAndMetadata{
			q.Topic: {q.Partition: {Offset: q.Offset, LeaderEpoch: -1}}}, nil)
		if err != nil {
			return a, err
		}
		if e := answer.Errors[q.Topic][q.Partition]; e != sarama.ErrNoError {
			return a, e
		}
	case "delete-group-offset":
		err = adm.DeleteConsumerGroupOffset(q.Group, q.Topic, q.Partition)
	case "delete-group":
		err = adm.DeleteConsumerGroup(q.Group)
	case "delete-topic":
		err = adm.DeleteTopic(q.Topic)
	default:
		err = fmt.Errorf("unknown request %q", q.Do)
	}
	return a, err
}
