package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/internal/record"
)

// Settings are what a node of Apache Kafka needs for the workload, as name=value.
var Settings = []string{
	"offsets.topic.num.partitions=1",
	"transaction.state.log.num.partitions=1",
	"log.cleaner.backoff.ms=100",
	"log.cleaner.dedupe.buffer.size=4194304",
	"log.initial.task.delay.ms=100",
	"log.retention.check.interval.ms=1000",
	"metadata.log.max.record.bytes.between.snapshots=6000",
	"metadata.max.idle.interval.ms=2000",
	"authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
	"allow.everyone.if.no.acl.found=true",
	"super.users=User:ANONYMOUS",
}

// Groups of the workload: Classic commits and has left, Static has a static member that stays, Consumer (of the
// consumer protocol) has commits and no members any more.
const (
	Classic  = "billing"
	Static   = "static"
	Consumer = "modern"
)

// Producer is an idempotent producer and how far it came in topic idempotent, partition 0.
type Producer struct {
	ID    int64
	Epoch int16
	// Next is the sequence that comes next, LastBase and LastOffset the first sequence and offset of its last batch.
	Next, LastBase int32
	LastOffset     int64
}

// Send sends one batch of one record per value to partition 0 of a topic as that producer, and returns the base offset
// that the broker gave it and its error.
func Send(ctx context.Context, cl *kgo.Client, topic string, p Producer, sequence int32, values ...string) (int64, error) {
	b := record.NewBuilder(record.BuilderOptions{Producer: &record.Producer{ID: p.ID, Epoch: p.Epoch, BaseSequence: sequence}})
	for i, v := range values {
		if err := b.Append(time.Now().UnixMilli(), fmt.Appendf(nil, "%d", sequence+int32(i)), []byte(v), nil); err != nil {
			return -1, err
		}
	}
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis = -1, 10_000
	t := kmsg.NewProduceRequestTopic()
	t.Topic = topic
	meta, err := kadm.NewClient(cl).Metadata(ctx, topic)
	if err != nil {
		return -1, err
	}
	t.TopicID = meta.Topics[topic].ID
	part := kmsg.NewProduceRequestTopicPartition()
	part.Records = b.Bytes()
	t.Partitions = append(t.Partitions, part)
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return -1, err
	}
	got := resp.Topics[0].Partitions[0]
	return got.BaseOffset, kerr.ErrorForCode(got.ErrorCode)
}

// Workload fills a new node, and says how far its idempotent producer came.
func Workload(ctx context.Context, addr string) (Producer, error) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.UnknownTopicRetries(-1))
	if err != nil {
		return Producer{}, err
	}
	defer cl.Close()
	w := workload{addr, cl, kadm.NewClient(cl)}
	for _, step := range []func(context.Context) error{w.topics, w.codecs, w.rolled, w.compacted, w.transactions, w.groups, w.settings, w.gone} {
		if err := step(ctx); err != nil {
			return Producer{}, err
		}
	}
	return w.idempotent(ctx)
}

type workload struct {
	addr  string
	cl    *kgo.Client
	admin *kadm.Client
}

func (w workload) topics(ctx context.Context) error {
	forever := "-1"
	for _, t := range []struct {
		name       string
		partitions int32
		configs    map[string]string
	}{
		{"codecs", 2, nil}, {"rolled", 1, map[string]string{"segment.ms": "3600000", "index.interval.bytes": "200"}},
		{"compacted", 1, map[string]string{"cleanup.policy": "compact", "segment.ms": "3600000", "min.cleanable.dirty.ratio": "0.01"}},
		{"transactions", 1, nil}, {"idempotent", 1, map[string]string{"max.message.bytes": "100000"}}, {"gone", 1, nil}, {"empty", 3, nil},
	} {
		configs := map[string]*string{"retention.ms": &forever}
		for name, value := range t.configs {
			configs[name] = &value
		}
		if _, err := w.admin.CreateTopic(ctx, t.partitions, 1, configs, t.name); err != nil {
			return fmt.Errorf("create %s: %w", t.name, err)
		}
	}
	return nil
}

var first = time.UnixMilli(1_780_000_000_000)

func (w workload) write(ctx context.Context, topic string, partition int32, codec kgo.CompressionCodec, at time.Time, keyed bool, values ...string) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(w.addr), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(codec), kgo.UnknownTopicRetries(-1))
	if err != nil {
		return err
	}
	defer cl.Close()
	var records []*kgo.Record
	for i, v := range values {
		r := &kgo.Record{Topic: topic, Partition: partition, Value: []byte(v), Timestamp: at.Add(time.Duration(i) * time.Millisecond), Headers: []kgo.RecordHeader{{Key: "n", Value: fmt.Append(nil, i)}}}
		if keyed {
			r.Key = fmt.Appendf(nil, "key-%d", i)
		}
		if v == "" {
			r.Value = nil
		}
		records = append(records, r)
	}
	if err := cl.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return fmt.Errorf("produce to %s: %w", topic, err)
	}
	return nil
}

func (w workload) codecs(ctx context.Context) error {
	for i, codec := range []kgo.CompressionCodec{kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression()} {
		for p := range int32(2) {
			if err := w.write(ctx, "codecs", p, codec, first.Add(time.Duration(i)*time.Minute), true, "one one one one one one", "two two two two two two", "", "three three three three"); err != nil {
				return err
			}
		}
	}
	return nil
}

// rolled is four segments, and its records before offset 5 deleted.
func (w workload) rolled(ctx context.Context) error {
	for i := range 8 {
		if err := w.write(ctx, "rolled", 0, kgo.NoCompression(), first.Add(time.Duration(i/2)*2*time.Hour), true, "a", "b", "c"); err != nil {
			return err
		}
	}
	offsets := kadm.Offsets{}
	offsets.AddOffset("rolled", 0, 5, -1)
	deleted, err := w.admin.DeleteRecords(ctx, offsets)
	return errors.Join(err, deleted.Error())
}

// compacted is four rounds of the same keys in segments of their own; the last two rounds are not cleaned yet.
func (w workload) compacted(ctx context.Context) error {
	for i := range 4 {
		if err := w.write(ctx, "compacted", 0, kgo.NoCompression(), first.Add(time.Duration(i)*2*time.Hour), true, fmt.Sprintf("round %d", i), "", fmt.Sprintf("again %d", i)); err != nil {
			return err
		}
	}
	return nil
}

// transactions commits two, aborts one, and commits a third that also commits an offset.
func (w workload) transactions(ctx context.Context) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(w.addr), kgo.TransactionalID("tx-1"), kgo.UnknownTopicRetries(-1))
	if err != nil {
		return err
	}
	defer cl.Close()
	for i, commit := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort, kgo.TryCommit} {
		if err := cl.BeginTransaction(); err != nil {
			return err
		}
		for j := range 3 {
			if err := cl.ProduceSync(ctx, &kgo.Record{Topic: "transactions", Value: fmt.Appendf(nil, "transaction %d record %d", i, j)}).FirstErr(); err != nil {
				return fmt.Errorf("transaction %d: %w", i, err)
			}
		}
		if err := cl.EndTransaction(ctx, commit); err != nil {
			return fmt.Errorf("end of transaction %d: %w", i, err)
		}
	}
	return nil
}

func (w workload) groups(ctx context.Context) error {
	for _, group := range []string{Classic, Static} {
		opts := []kgo.Opt{kgo.SeedBrokers(w.addr), kgo.ConsumerGroup(group), kgo.ConsumeTopics("codecs"), kgo.DisableAutoCommit(), kgo.SessionTimeout(5 * time.Minute)}
		if group == Static {
			opts = append(opts, kgo.InstanceID("instance-1"))
		}
		cl, err := kgo.NewClient(opts...)
		if err != nil {
			return err
		}
		fetches := cl.PollRecords(ctx, 13)
		err = fetches.Err()
		if err == nil {
			err = cl.CommitUncommittedOffsets(ctx)
		}
		cl.Close() // a static member does not leave
		if err != nil {
			return fmt.Errorf("group %s: %w", group, err)
		}
	}
	commits := kadm.Offsets{}
	commits.Add(kadm.Offset{Topic: "rolled", Partition: 0, At: 11, LeaderEpoch: 0, Metadata: "by hand"})
	commits.Add(kadm.Offset{Topic: "empty", Partition: 1, At: 0, LeaderEpoch: -1})
	if err := w.admin.CommitAllOffsets(ctx, Classic, commits); err != nil {
		return err
	}
	member, epoch, err := JoinConsumerGroup(ctx, w.cl, Consumer, "rolled")
	if err != nil {
		return err
	}
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.MemberID, req.Generation = Consumer, member, epoch
	topic := kmsg.NewOffsetCommitRequestTopic()
	topic.Topic = "rolled"
	meta, err := w.admin.Metadata(ctx, "rolled")
	if err != nil {
		return err
	}
	topic.TopicID = meta.Topics["rolled"].ID
	part := kmsg.NewOffsetCommitRequestTopicPartition()
	part.Offset, part.LeaderEpoch = 7, 0
	topic.Partitions = append(topic.Partitions, part)
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(ctx, w.cl)
	if err != nil {
		return err
	}
	if err := kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode); err != nil {
		return fmt.Errorf("commit of group %s: %w", Consumer, err)
	}
	return LeaveConsumerGroup(ctx, w.cl, Consumer, member)
}

// JoinConsumerGroup joins a group of the consumer protocol, as a member that nothing keeps alive.
func JoinConsumerGroup(ctx context.Context, cl *kgo.Client, group, topic string) (member string, epoch int32, err error) {
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Group, req.MemberID, req.MemberEpoch, req.RebalanceTimeoutMillis = group, "member-of-"+group, 0, 60_000
	req.SubscribedTopicNames, req.Topics = []string{topic}, []kmsg.ConsumerGroupHeartbeatRequestTopic{}
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return "", 0, err
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return "", 0, fmt.Errorf("join %s: %w", group, err)
	}
	return req.MemberID, resp.MemberEpoch, nil
}

// LeaveConsumerGroup takes a member out of a group of the consumer protocol.
func LeaveConsumerGroup(ctx context.Context, cl *kgo.Client, group, member string) error {
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Group, req.MemberID, req.MemberEpoch = group, member, -1
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(resp.ErrorCode)
}

// settings leaves configurations, quotas, a credential and an access rule.
func (w workload) settings(ctx context.Context) error {
	alter := func(name, value string, broker ...int32) error {
		resp, err := w.admin.AlterBrokerConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: name, Value: &value}}, broker...)
		for _, r := range resp {
			err = errors.Join(err, r.Err)
		}
		return err
	}
	acl := kadm.NewACLs().Allow("User:alice").AllowHosts("*").Topics("codecs").ResourcePatternType(kadm.ACLPatternPrefixed).Operations(kadm.OpRead)
	alice, rate := "alice", 1048576.0
	_, err1 := w.admin.AlterClientQuotas(ctx, []kadm.AlterClientQuotaEntry{{
		Entity: kadm.ClientQuotaEntity{{Type: "user", Name: &alice}}, Ops: []kadm.AlterClientQuotaOp{{Key: "producer_byte_rate", Value: rate}},
	}})
	_, err2 := w.admin.CreateACLs(ctx, acl)
	_, err3 := w.admin.AlterUserSCRAMs(ctx, nil, []kadm.UpsertSCRAM{{User: "alice", Mechanism: kadm.ScramSha256, Iterations: 4096, Password: "alice-secret"}})
	return errors.Join(alter("message.max.bytes", "1100000"), alter("log.cleaner.threads", "2", 1), err1, err2, err3)
}

// gone is a topic with records, deleted.
func (w workload) gone(ctx context.Context) error {
	if err := w.write(ctx, "gone", 0, kgo.NoCompression(), first, true, "x", "y"); err != nil {
		return err
	}
	deleted, err := w.admin.DeleteTopics(ctx, "gone")
	return errors.Join(err, deleted.Error())
}

// idempotent writes three batches of two as one producer.
func (w workload) idempotent(ctx context.Context) (Producer, error) {
	req := kmsg.NewPtrInitProducerIDRequest()
	resp, err := req.RequestWith(ctx, w.cl)
	if err != nil {
		return Producer{}, err
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return Producer{}, err
	}
	p := Producer{ID: resp.ProducerID, Epoch: resp.ProducerEpoch}
	for range 3 {
		base, err := Send(ctx, w.cl, "idempotent", p, p.Next, "first", "second")
		if err != nil {
			return p, fmt.Errorf("sequence %d: %w", p.Next, err)
		}
		p.LastBase, p.LastOffset = p.Next, base
		p.Next += 2
	}
	return p, nil
}
