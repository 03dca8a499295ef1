package node

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"
)

// transactionalClients are franz-go as it is, with an epoch for each transaction, and as it was before.
var transactionalClients = map[string][]kgo.Opt{
	"v2": nil,
	"v0": {kgo.MaxVersions(kversion.V3_5_0())},
}

func kgoClient(t *testing.T, n *node, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(n.addr), kgo.AllowAutoTopicCreation(), kgo.MetadataMinAge(20 * time.Millisecond)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// A transactional producer commits and aborts by turns; whoever reads committed records sees exactly those of the
// transactions that were committed.
func TestTransactionsOfAClient(t *testing.T) {
	t.Parallel()
	n := shared(t)
	for name, opts := range transactionalClients {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := n.dial(t)
			in := c.topic(3)
			ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
			defer cancel()
			cl := kgoClient(t, n, append(opts, kgo.TransactionalID("client-"+in.name), kgo.DefaultProduceTopic(in.name))...)
			want := 0
			for i := range 20 {
				if err := cl.BeginTransaction(); err != nil {
					t.Fatal(err)
				}
				for k := range 10 {
					cl.Produce(ctx, &kgo.Record{Value: fmt.Appendf(nil, "%d-%d", i, k)}, func(_ *kgo.Record, err error) {
						if err != nil {
							t.Errorf("transaction %d: %v", i, err)
						}
					})
				}
				if err := cl.Flush(ctx); err != nil {
					t.Fatal(err)
				}
				commit := i%3 != 1
				if err := cl.EndTransaction(ctx, kgo.TransactionEndTry(commit)); err != nil {
					t.Fatalf("transaction %d: %v", i, err)
				}
				if commit {
					want += 10
				}
			}
			reader := kgoClient(t, n, kgo.ConsumeTopics(in.name), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
			seen := map[string]int{}
			for len(seen) < want {
				fetches := reader.PollFetches(ctx)
				if err := fetches.Err(); err != nil {
					t.Fatalf("%d of %d: %v", len(seen), want, err)
				}
				fetches.EachRecord(func(r *kgo.Record) { seen[string(r.Value)]++ })
			}
			if got := c.stable(in); got != c.end(in) {
				t.Errorf("the last stable offset is %d, the end %d", got, c.end(in))
			}
			for value, count := range seen {
				var i, k int
				if _, err := fmt.Sscanf(value, "%d-%d", &i, &k); err != nil || count != 1 || i%3 == 1 {
					t.Errorf("%s was read %d times", value, count)
				}
			}
		})
	}
}

// A consume-transform-produce loop in transactions: what it commits of offsets and output stands and falls together, also
// when it aborts and when its producer is fenced by the next.
func TestTransactionsWithOffsets(t *testing.T) {
	t.Parallel()
	n := shared(t)
	for name, opts := range transactionalClients {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := n.dial(t)
			in, out := c.topic(2), c.topic(2)
			const records = 200
			for i := range records {
				c.mustProduce(in, int32(i%2), plain(1, stamp+int64(i)))
			}
			ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
			defer cancel()
			turns := 0
			session := func() *kgo.GroupTransactSession {
				s, err := kgo.NewGroupTransactSession(append(opts, kgo.SeedBrokers(n.addr), kgo.TransactionalID("loop-"+in.name), kgo.DefaultProduceTopic(out.name), kgo.MetadataMinAge(20*time.Millisecond),
					kgo.ConsumerGroup("loop-"+in.name), kgo.ConsumeTopics(in.name), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
					kgo.FetchMaxBytes(1000))...)
				if err != nil {
					t.Fatal(err)
				}
				return s
			}
			moved := 0
			for s := session(); moved < records; turns++ {
				fetches := s.PollRecords(ctx, 17)
				if err := fetches.Err(); err != nil {
					t.Fatalf("%d moved: %v", moved, err)
				}
				if err := s.Begin(); err != nil {
					t.Fatal(err)
				}
				batch := 0
				fetches.EachRecord(func(r *kgo.Record) {
					batch++
					s.Produce(ctx, &kgo.Record{Key: fmt.Appendf(nil, "%d-%d", r.Partition, r.Offset)}, func(_ *kgo.Record, err error) {
						if err != nil && !errors.Is(err, kgo.ErrAborting) {
							t.Errorf("produce: %v", err)
						}
					})
				})
				committed, err := s.End(ctx, kgo.TransactionEndTry(turns%4 != 2))
				if err != nil {
					t.Fatal(err)
				}
				if committed {
					moved += batch
				}
				if turns == 5 {
					s.Close()
					s = session()
				}
			}
			reader := kgoClient(t, n, kgo.ConsumeTopics(out.name), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
			seen := map[string]int{}
			for len(seen) < records {
				fetches := reader.PollFetches(ctx)
				if err := fetches.Err(); err != nil {
					t.Fatalf("%d: %v", len(seen), err)
				}
				fetches.EachRecord(func(r *kgo.Record) { seen[string(r.Key)]++ })
			}
			for key, count := range seen {
				if count != 1 {
					t.Errorf("%s is there %d times", key, count)
				}
			}
		})
	}
}

// A producer whose transactional id another took is fenced, and what it left open is aborted.
func TestFencedClient(t *testing.T) {
	t.Parallel()
	n := shared(t)
	for name, opts := range transactionalClients {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := n.dial(t)
			tp := c.topic(1)
			ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
			defer cancel()
			first := kgoClient(t, n, append(opts, kgo.TransactionalID("fenced-"+tp.name), kgo.DefaultProduceTopic(tp.name))...)
			second := kgoClient(t, n, append(opts, kgo.TransactionalID("fenced-"+tp.name), kgo.DefaultProduceTopic(tp.name))...)
			begin := func(cl *kgo.Client, value string) error {
				if err := cl.BeginTransaction(); err != nil {
					return err
				}
				return cl.ProduceSync(ctx, kgo.StringRecord(value)).FirstErr()
			}
			if err := begin(first, "lost"); err != nil {
				t.Fatal(err)
			}
			if err := begin(second, "kept"); err != nil {
				t.Fatal(err)
			}
			err := first.EndTransaction(ctx, kgo.TryCommit)
			if !errors.Is(err, kerr.ProducerFenced) && !errors.Is(err, kerr.InvalidProducerEpoch) {
				t.Errorf("the first commits: %v", err)
			}
			if err := second.EndTransaction(ctx, kgo.TryCommit); err != nil {
				t.Fatal(err)
			}
			reader := kgoClient(t, n, kgo.ConsumeTopics(tp.name), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
			fetches := reader.PollFetches(ctx)
			if err := fetches.Err(); err != nil {
				t.Fatal(err)
			}
			if got := fetches.Records(); len(got) != 1 || string(got[0].Value) != "kept" {
				t.Errorf("%d records are committed, the first %q", len(got), got[0].Value)
			}
		})
	}
}
