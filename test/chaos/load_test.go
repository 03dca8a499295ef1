//go:build chaos

package chaos

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// idempotentPrefix begins the keys of records that must be stored at most once.
const idempotentPrefix = "once-"

// load is what clients do while the broker dies under them.
type load struct {
	ledger    *ledger
	wg        sync.WaitGroup
	cancel    context.CancelFunc
	producing context.Context // ends first, so that what is in flight is answered
	stopped   context.Context
	writes    atomic.Int64
	reads     atomic.Int64
}

func startLoad(n *node, l *ledger, topics []string) *load {
	producing, stopProducing := context.WithCancel(context.Background())
	stopped, stop := context.WithCancel(context.Background())
	o := &load{ledger: l, producing: producing, stopped: stopped}
	codecs := []kgo.CompressionCodec{kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression()}
	for i := range 8 {
		options := []kgo.Opt{
			kgo.RequiredAcks(kgo.AllISRAcks()), kgo.ProducerBatchCompression(codecs[i%len(codecs)]),
			kgo.MaxBufferedRecords(400), kgo.ProducerLinger(time.Duration(i%3) * 2 * time.Millisecond), kgo.UnknownTopicRetries(-1),
		}
		prefix := idempotentPrefix
		if i%2 == 0 {
			options = append(options, kgo.StopProducerOnDataLossDetected())
		} else {
			options = append(options, kgo.DisableIdempotentWrite(), kgo.MaxProduceRequestsInflightPerBroker(3))
			if len(n.seeds) == 0 && i%4 == 3 {
				options = append(options, kgo.RequiredAcks(kgo.LeaderAck())) // one node: the leader's word is everybody's
			}
			prefix = "some-"
		}
		c := n.client(options...)
		o.goes(func() { o.produce(c, fmt.Sprintf("%s%d-", prefix, i), topics) })
	}
	member := func(group string) *kgo.Client {
		return n.client(kgo.ConsumerGroup(group), kgo.ConsumeTopics(topics...), kgo.DisableAutoCommit(), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
			kgo.SessionTimeout(10*time.Second), kgo.HeartbeatInterval(500*time.Millisecond), kgo.FetchMaxWait(200*time.Millisecond), kgo.BlockRebalanceOnPoll())
	}
	for i := range 4 {
		group := fmt.Sprintf("group-%d", i)
		c := member(group)
		o.goes(func() { o.consume(stopped, c, group) })
	}
	// The first group has a second member that comes and goes, so that rebalances are cut by kills too.
	o.goes(func() {
		for stopped.Err() == nil {
			stay, leave := context.WithTimeout(stopped, 3*time.Second)
			c := member("group-0")
			o.consume(stay, c, "group-0")
			leave()
			c.CloseAllowingRebalance()
		}
	})
	churn := n.client(kgo.UnknownTopicRetries(-1))
	o.goes(func() { o.churn(churn) })
	o.cancel = func() {
		stopProducing()
		stop()
		o.wg.Wait()
	}
	return o
}

func (o *load) goes(f func()) {
	o.wg.Add(1)
	go func() {
		defer o.wg.Done()
		f()
	}()
}

// produce writes some hundred records a second until it is stopped, then waits for the last answers.
func (o *load) produce(c *kgo.Client, prefix string, topics []string) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for seq := 0; ; {
		for range 6 {
			key := fmt.Sprintf("%s%06d", prefix, seq)
			r := &kgo.Record{Topic: topics[seq%len(topics)], Key: []byte(key), Value: valueOf(key, 200+seq*37%1200)}
			seq++
			c.Produce(context.Background(), r, func(r *kgo.Record, err error) {
				switch {
				case err == nil:
					o.writes.Add(1)
					o.ledger.acknowledged(acked{topicPartition{r.Topic, r.Partition}, r.Offset, string(r.Key)})
				case !errors.Is(err, kgo.ErrClientClosed):
					o.ledger.fault("producer %s: record %s to %s-%d: %v", prefix, r.Key, r.Topic, r.Partition, err)
				}
			})
		}
		select {
		case <-o.producing.Done():
			flush, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			if err := c.Flush(flush); err != nil {
				o.ledger.fault("producer %s: the last records were not answered: %v", prefix, err)
			}
			return
		case <-tick.C:
		}
	}
}

// consume reads as a member of a group until ctx ends, commits as it goes, and notes what was acknowledged. No partition
// is taken from it between a read and its commit.
func (o *load) consume(ctx context.Context, c *kgo.Client, group string) {
	for ctx.Err() == nil {
		fetches := c.PollFetches(ctx)
		positions := map[string]map[int32]kgo.EpochOffset{}
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			if p.Err != nil {
				if !errors.Is(p.Err, context.Canceled) {
					if loss := (*kgo.ErrDataLoss)(nil); errors.As(p.Err, &loss) {
						o.ledger.fault("%s: %v", group, p.Err)
					}
				}
				return
			}
			for _, r := range p.Records {
				o.reads.Add(1)
				if !valueFits(string(r.Key), r.Value) {
					o.ledger.fault("%s: %s-%d offset %d: key %q with a value of another record", group, p.Topic, p.Partition, r.Offset, r.Key)
				}
				if positions[p.Topic] == nil {
					positions[p.Topic] = map[int32]kgo.EpochOffset{}
				}
				positions[p.Topic][p.Partition] = kgo.EpochOffset{Epoch: r.LeaderEpoch, Offset: r.Offset + 1}
			}
		})
		if len(positions) == 0 {
			c.AllowRebalance()
			continue
		}
		limit, cancel := context.WithTimeout(ctx, 2*time.Second)
		c.CommitOffsetsSync(limit, positions, func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
			if err != nil {
				return
			}
			for _, t := range resp.Topics {
				for _, p := range t.Partitions {
					if p.ErrorCode == 0 {
						at := positions[t.Topic][p.Partition]
						o.ledger.committed(group, topicPartition{t.Topic, p.Partition}, commit{at.Offset, at.Epoch})
					}
				}
			}
		})
		cancel()
		c.AllowRebalance()
	}
}

// churn creates and deletes topics, so that the metadata log grows, snapshots are due, and partitions are led for
// the first time.
func (o *load) churn(c *kgo.Client) {
	admin := kadm.NewClient(c)
	tick := time.NewTicker(150 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-o.producing.Done():
			return
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(o.producing, 3*time.Second)
		topic := fmt.Sprintf("churn-%d", i)
		if _, err := admin.CreateTopic(ctx, 1, 1, nil, topic); err == nil {
			_ = c.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("first")}).FirstErr()
		}
		if i >= 4 {
			_, _ = admin.DeleteTopic(ctx, fmt.Sprintf("churn-%d", i-4))
		}
		cancel()
	}
}

// createTopics creates the topics of the load with segments small enough to roll under it.
func createTopics(t *testing.T, n *node, partitions int32, replicas int16, topics ...string) {
	t.Helper()
	small := "131072"
	admin := kadm.NewClient(n.client())
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	resp, err := admin.CreateTopics(ctx, partitions, replicas, map[string]*string{"internal.segment.bytes": &small}, topics...)
	if err == nil {
		err = resp.Error()
	}
	if err != nil {
		t.Fatalf("create %s: %v\n%s", strings.Join(topics, ", "), err, n.log())
	}
}
