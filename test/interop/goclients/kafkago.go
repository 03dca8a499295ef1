package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"
)

// segmentio is github.com/segmentio/kafka-go.
type segmentio struct{}

// The zero value of kafka.Compression is none, which has no name.
var segmentioCodecs = map[string]kafka.Compression{"none": 0, "gzip": kafka.Gzip, "snappy": kafka.Snappy,
	"lz4": kafka.Lz4, "zstd": kafka.Zstd}

func (segmentio) produce(r request) error {
	codec, ok := segmentioCodecs[r.Codec]
	if !ok {
		return fmt.Errorf("unknown codec %q", r.Codec)
	}
	if r.Transaction != "" || r.Idempotent {
		return errCannot
	}
	transport := &kafka.Transport{ClientID: "interop"}
	defer transport.CloseIdleConnections()
	w := &kafka.Writer{
		Addr: kafka.TCP(r.Bootstrap), Topic: r.Topic, Transport: transport, RequiredAcks: kafka.RequireAll,
		Compression: codec, BatchTimeout: 50 * time.Millisecond, BatchBytes: int64(r.MaxBytes),
		Balancer: kafka.BalancerFunc(func(m kafka.Message, _ ...int) int { return m.WriterData.(int) }),
	}
	var list []kafka.Message
	for _, x := range r.Records {
		m := kafka.Message{Key: x.Key, Value: x.Value, WriterData: int(x.Partition)}
		if x.Timestamp != 0 {
			m.Time = time.UnixMilli(x.Timestamp)
		}
		for _, h := range x.Headers {
			m.Headers = append(m.Headers, kafka.Header{Key: h.Name, Value: h.Value})
		}
		list = append(list, m)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	err := w.WriteMessages(ctx, list...)
	if each := (kafka.WriteErrors)(nil); errors.As(err, &each) {
		for _, e := range each {
			if e != nil {
				err = fmt.Errorf("%w: %w", err, e)
				break
			}
		}
	}
	return errors.Join(err, w.Close())
}

func fromSegmentio(m kafka.Message) record {
	r := record{Partition: int32(m.Partition), Offset: m.Offset, Timestamp: m.Time.UnixMilli(), Key: m.Key, Value: m.Value}
	for _, h := range m.Headers {
		r.Headers = append(r.Headers, header{h.Key, h.Value})
	}
	return r
}

func segmentioClient(r request) (*kafka.Client, func()) {
	transport := &kafka.Transport{ClientID: "interop", MetadataTTL: 100 * time.Millisecond}
	return &kafka.Client{Addr: kafka.TCP(r.Bootstrap), Timeout: limit, Transport: transport}, transport.CloseIdleConnections
}

func (segmentio) topic(ctx context.Context, cl *kafka.Client, name string) (kafka.Topic, error) {
	answer, err := cl.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{name}})
	if err != nil {
		return kafka.Topic{}, err
	}
	if len(answer.Topics) != 1 {
		return kafka.Topic{}, fmt.Errorf("%d topics in the answer", len(answer.Topics))
	}
	return answer.Topics[0], answer.Topics[0].Error
}

func (segmentio) offset(ctx context.Context, cl *kafka.Client, topic string, o kafka.OffsetRequest) (kafka.PartitionOffsets, error) {
	answer, err := cl.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{topic: {o}}})
	if err != nil {
		return kafka.PartitionOffsets{}, err
	}
	if len(answer.Topics[topic]) != 1 {
		return kafka.PartitionOffsets{}, errors.New("there is no offset in the answer")
	}
	return answer.Topics[topic][0], answer.Topics[topic][0].Error
}

func (s segmentio) consume(r request) ([]record, error) {
	cl, done := segmentioClient(r)
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	topic, err := s.topic(ctx, cl, r.Topic)
	if err != nil {
		return nil, err
	}
	var out []record
	for _, p := range topic.Partitions {
		end, err := s.offset(ctx, cl, r.Topic, kafka.LastOffsetOf(p.ID))
		if err != nil {
			return out, err
		}
		if end.LastOffset == 0 {
			continue
		}
		c := kafka.ReaderConfig{Brokers: []string{r.Bootstrap}, Topic: r.Topic, Partition: p.ID, MaxWait: 200 * time.Millisecond, MaxBytes: r.MaxBytes}
		if r.Config["isolation.level"] == "read_committed" {
			c.IsolationLevel = kafka.ReadCommitted
		}
		reader := kafka.NewReader(c)
		for {
			// The last offset may be a transaction's marker, which it does not show: then the count says that all have
			// come, and a moment more shows any too many.
			wait, cancel := ctx, context.CancelFunc(func() {})
			if len(out) == r.Count {
				wait, cancel = context.WithTimeout(ctx, 300*time.Millisecond)
			}
			m, err := reader.ReadMessage(wait)
			cancel()
			if err != nil && len(out) == r.Count && ctx.Err() == nil {
				break
			}
			if err != nil {
				_ = reader.Close()
				return out, fmt.Errorf("after %d records: %w", len(out), err)
			}
			out = append(out, fromSegmentio(m))
			if m.Offset+1 >= end.LastOffset {
				break
			}
		}
		if err := reader.Close(); err != nil {
			return out, err
		}
	}
	return out, nil
}

func segmentioReader(r request) *kafka.Reader {
	return kafka.NewReader(kafka.ReaderConfig{Brokers: []string{r.Bootstrap}, GroupID: r.Group, Topic: r.Topic,
		StartOffset: kafka.FirstOffset, MaxWait: 200 * time.Millisecond, SessionTimeout: 10 * time.Second})
}

func (segmentio) group(r request) ([]record, error) {
	reader := segmentioReader(r)
	defer reader.Close()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var out []record
	for len(out) < r.Count {
		m, err := reader.FetchMessage(ctx)
		if err != nil {
			return out, fmt.Errorf("after %d of %d records: %w", len(out), r.Count, err)
		}
		out = append(out, fromSegmentio(m))
		if len(out) == r.Count {
			if err := reader.CommitMessages(ctx, m); err != nil {
				return out, err
			}
		}
	}
	return out, nil
}

func (segmentio) join(r request) (*member, error) {
	reader := segmentioReader(r)
	ctx, cancel := context.WithCancel(context.Background())
	return startMember(cancel, func(m *member) error {
		for {
			x, err := reader.FetchMessage(ctx)
			if ctx.Err() != nil {
				return reader.Close()
			}
			if err != nil {
				_ = reader.Close()
				return err
			}
			m.add(fromSegmentio(x))
			// In the middle of a rebalance it may fail, which costs nothing.
			_ = reader.CommitMessages(ctx, x)
		}
	}), nil
}

func (s segmentio) admin(r request) (a adminAnswer, err error) {
	cl, done := segmentioClient(r)
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	q := r.Admin
	switch q.Do {
	case "create-topic":
		c := kafka.TopicConfig{Topic: q.Topic, NumPartitions: int(q.Partitions), ReplicationFactor: 1}
		for k, v := range q.Configs {
			c.ConfigEntries = append(c.ConfigEntries, kafka.ConfigEntry{ConfigName: k, ConfigValue: v})
		}
		answer, err := cl.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{c}})
		if err != nil {
			return a, err
		}
		return a, answer.Errors[q.Topic]
	case "list-topics":
		answer, err := cl.Metadata(ctx, &kafka.MetadataRequest{})
		if err != nil {
			return a, err
		}
		for _, t := range answer.Topics {
			a.Names = append(a.Names, t.Name)
		}
	case "describe-topic":
		t, err := s.topic(ctx, cl, q.Topic)
		a.Partitions = int32(len(t.Partitions))
		return a, err
	case "create-partitions":
		answer, err := cl.CreatePartitions(ctx, &kafka.CreatePartitionsRequest{
			Topics: []kafka.TopicPartitionsConfig{{Name: q.Topic, Count: q.Partitions}}})
		if err != nil {
			return a, err
		}
		return a, answer.Errors[q.Topic]
	case "describe-configs":
		answer, err := cl.DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{
			Resources: []kafka.DescribeConfigRequestResource{{ResourceType: kafka.ResourceTypeTopic, ResourceName: q.Topic}}})
		if err != nil {
			return a, err
		}
		a.Configs = map[string]string{}
		for _, resource := range answer.Resources {
			err = errors.Join(err, resource.Error)
			for _, e := range resource.ConfigEntries {
				a.Configs[e.ConfigName] = e.ConfigValue
			}
		}
		return a, err
	case "alter-configs":
		resource := kafka.AlterConfigRequestResource{ResourceType: kafka.ResourceTypeTopic, ResourceName: q.Topic}
		for k, v := range q.Configs {
			resource.Configs = append(resource.Configs, kafka.AlterConfigRequestConfig{Name: k, Value: v})
		}
		answer, err := cl.AlterConfigs(ctx, &kafka.AlterConfigsRequest{Resources: []kafka.AlterConfigRequestResource{resource}})
		if err != nil {
			return a, err
		}
		for _, e := range answer.Errors {
			err = errors.Join(err, e)
		}
		return a, err
	case "incremental-configs":
		resource := kafka.IncrementalAlterConfigsRequestResource{ResourceType: kafka.ResourceTypeTopic, ResourceName: q.Topic}
		for k, v := range q.Configs {
			resource.Configs = append(resource.Configs, kafka.IncrementalAlterConfigsRequestConfig{Name: k, Value: v})
		}
		answer, err := cl.IncrementalAlterConfigs(ctx, &kafka.IncrementalAlterConfigsRequest{
			Resources: []kafka.IncrementalAlterConfigsRequestResource{resource}})
		if err != nil {
			return a, err
		}
		for _, x := range answer.Resources {
			err = errors.Join(err, x.Error)
		}
		return a, err
	case "list-offsets":
		o, err := s.offset(ctx, cl, q.Topic, kafka.LastOffsetOf(int(q.Partition)))
		a.Offset = o.LastOffset
		return a, err
	case "list-groups":
		answer, err := cl.ListGroups(ctx, &kafka.ListGroupsRequest{})
		if err != nil {
			return a, err
		}
		for _, g := range answer.Groups {
			a.Names = append(a.Names, g.GroupID)
		}
		return a, answer.Error
	case "describe-group":
		answer, err := cl.DescribeGroups(ctx, &kafka.DescribeGroupsRequest{GroupIDs: []string{q.Group}})
		if err != nil {
			return a, err
		}
		for _, g := range answer.Groups {
			a.State, err = g.GroupState, errors.Join(err, g.Error)
		}
		return a, err
	case "group-offset":
		answer, err := cl.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: q.Group, Topics: map[string][]int{q.Topic: {int(q.Partition)}}})
		if err != nil {
			return a, err
		}
		err = answer.Error
		for _, p := range answer.Topics[q.Topic] {
			a.Offset, err = p.CommittedOffset, errors.Join(err, p.Error)
		}
		return a, err
	case "set-group-offset":
		answer, err := cl.OffsetCommit(ctx, &kafka.OffsetCommitRequest{GroupID: q.Group, GenerationID: -1,
			Topics: map[string][]kafka.OffsetCommit{q.Topic: {{Partition: int(q.Partition), Offset: q.Offset}}}})
		if err != nil {
			return a, err
		}
		for _, p := range answer.Topics[q.Topic] {
			err = errors.Join(err, p.Error)
		}
		return a, err
	case "delete-group-offset":
		answer, err := cl.OffsetDelete(ctx, &kafka.OffsetDeleteRequest{GroupID: q.Group, Topics: map[string][]int{q.Topic: {int(q.Partition)}}})
		if err != nil {
			return a, err
		}
		err = answer.Error
		for _, p := range answer.Topics[q.Topic] {
			err = errors.Join(err, p.Error)
		}
		return a, err
	case "delete-group":
		answer, err := cl.DeleteGroups(ctx, &kafka.DeleteGroupsRequest{GroupIDs: []string{q.Group}})
		if err != nil {
			return a, err
		}
		return a, answer.Errors[q.Group]
	case "delete-topic":
		answer, err := cl.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{q.Topic}})
		if err != nil {
			return a, err
		}
		return a, answer.Errors[q.Topic]
	default: // delete-records: it has no such request
		return a, errCannot
	}
	return a, nil
}
