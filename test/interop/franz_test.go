//go:build interop

package interop

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// franz is franz-go's kgo, in this process.
type franz struct{ addr string }

func (f franz) name() string { return "franz-go" }

func codecOf(name string) (kgo.CompressionCodec, error) {
	switch name {
	case "none":
		return kgo.NoCompression(), nil
	case "gzip":
		return kgo.GzipCompression(), nil
	case "snappy":
		return kgo.SnappyCompression(), nil
	case "lz4":
		return kgo.Lz4Compression(), nil
	case "zstd":
		return kgo.ZstdCompression(), nil
	}
	return kgo.CompressionCodec{}, fmt.Errorf("unknown codec %q", name)
}

func (f franz) produce(ctx context.Context, b batch) error {
	codec, err := codecOf(b.codec)
	if err != nil {
		return err
	}
	opts := []kgo.Opt{
		kgo.SeedBrokers(f.addr),
		kgo.ProducerBatchCompression(codec),
		kgo.ProducerLinger(50 * time.Millisecond),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	}
	if b.maxBytes > 0 {
		opts = append(opts, kgo.ProducerBatchMaxBytes(int32(b.maxBytes)))
	}
	if b.transactionalID != "" {
		// BeginTransaction takes no context: without a limit it asks for a producer id for ever.
		opts = append(opts, kgo.TransactionalID(b.transactionalID), kgo.RetryTimeout(10*time.Second))
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return err
	}
	defer cl.Close()
	if b.transactionalID != "" {
		if err := cl.BeginTransaction(); err != nil {
			return err
		}
	}
	var mu sync.Mutex
	var failures error
	for _, r := range b.records {
		k := &kgo.Record{Topic: b.topic, Partition: r.Partition, Key: r.Key, Value: r.Value}
		if r.Timestamp != 0 {
			k.Timestamp = time.UnixMilli(r.Timestamp)
		}
		for _, h := range r.Headers {
			k.Headers = append(k.Headers, kgo.RecordHeader{Key: h.Name, Value: h.Value})
		}
		cl.Produce(ctx, k, func(_ *kgo.Record, err error) {
			mu.Lock()
			defer mu.Unlock()
			failures = errors.Join(failures, err)
		})
	}
	if err := cl.Flush(ctx); err != nil {
		return err
	}
	if b.transactionalID != "" {
		if err := cl.EndTransaction(ctx, kgo.TransactionEndTry(!b.abort)); err != nil {
			return err
		}
	}
	mu.Lock()
	defer mu.Unlock()
	return failures
}

func fromKgo(r *kgo.Record) record {
	out := record{Partition: r.Partition, Offset: r.Offset, Timestamp: r.Timestamp.UnixMilli(), Key: r.Key, Value: r.Value}
	for _, h := range r.Headers {
		out.Headers = append(out.Headers, header{h.Key, h.Value})
	}
	return out
}

// fetchAll reads a topic from its beginning to its end and hands out what kgo knows of each record.
func fetchAll(ctx context.Context, addr, topic string, committed bool) ([]*kgo.Record, error) {
	opts := []kgo.Opt{kgo.SeedBrokers(addr), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxWait(200 * time.Millisecond), kgo.KeepControlRecords()}
	if committed {
		opts = append(opts, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	list := adm.ListEndOffsets
	if committed {
		list = adm.ListCommittedOffsets
	}
	ends, err := list(ctx, topic)
	if err != nil {
		return nil, err
	}
	if err := ends.Error(); err != nil {
		return nil, err
	}
	starts, err := adm.ListStartOffsets(ctx, topic)
	if err != nil {
		return nil, err
	}
	left := map[int32]int64{}
	ends.Each(func(o kadm.ListedOffset) {
		if s, ok := starts.Lookup(topic, o.Partition); ok && s.Offset < o.Offset {
			left[o.Partition] = o.Offset
		}
	})
	var out []*kgo.Record
	for len(left) > 0 {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, fmt.Errorf("after %d records: %w", len(out), err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if !r.Attrs.IsControl() {
				out = append(out, r)
			}
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
		})
	}
	return out, nil
}

func (f franz) consume(ctx context.Context, q query) ([]record, error) {
	all, err := fetchAll(ctx, f.addr, q.topic, q.committed)
	var out []record
	for _, r := range all {
		out = append(out, fromKgo(r))
	}
	return out, err
}

func (f franz) group(ctx context.Context, topic, group string, count int) ([]record, error) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(f.addr), kgo.ConsumeTopics(topic), kgo.ConsumerGroup(group),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit())
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	var out []record
	var last []*kgo.Record
	for len(out) < count {
		fetches := cl.PollRecords(ctx, count-len(out))
		if err := fetches.Err(); err != nil {
			return out, fmt.Errorf("after %d records: %w", len(out), err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			out = append(out, fromKgo(r))
			last = append(last, r)
		})
	}
	return out, cl.CommitRecords(ctx, last...)
}

type franzMember struct {
	cl   *kgo.Client
	done chan struct{}
	mu   sync.Mutex
	seen []record
	err  error
}

func (f franz) join(_ context.Context, topic, group, protocol string) (member, error) {
	if protocol != "classic" {
		return nil, errCannot
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(f.addr), kgo.ConsumeTopics(topic), kgo.ConsumerGroup(group),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.AutoCommitInterval(200*time.Millisecond))
	if err != nil {
		return nil, err
	}
	m := &franzMember{cl: cl, done: make(chan struct{})}
	go func() {
		defer close(m.done)
		for {
			fetches := cl.PollFetches(context.Background())
			if fetches.IsClientClosed() {
				return
			}
			m.mu.Lock()
			m.err = errors.Join(m.err, fetches.Err())
			fetches.EachRecord(func(r *kgo.Record) { m.seen = append(m.seen, fromKgo(r)) })
			m.mu.Unlock()
		}
	}()
	return m, nil
}

func (m *franzMember) records() ([]record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]record(nil), m.seen...), m.err
}

func (m *franzMember) leave() ([]record, error) {
	err := m.cl.CommitUncommittedOffsets(context.Background())
	m.cl.Close()
	<-m.done
	seen, err2 := m.records()
	return seen, errors.Join(err, err2)
}
