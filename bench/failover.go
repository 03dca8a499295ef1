package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/test/reference"
)

// member is one node of three, broker and controller.
type member interface {
	Addr() string
	Start(ctx context.Context) error
	Kill()
}

// trio is three nodes of either kind, with default settings.
type trio struct {
	kind    string
	members [3]member
	dir     string
	client  *kgo.Client
}

// steleMember is one of three nodes of Stele.
type steleMember struct {
	process
	b        *bench
	settings []string
}

func (m *steleMember) Addr() string { return m.addr() }
func (m *steleMember) Kill() {
	if m.cmd != nil {
		m.kill()
	}
}

func (m *steleMember) Start(context.Context) error {
	args := []string{"serve", "--data-dir", filepath.Join(m.dir, "data")}
	for _, s := range m.settings {
		args = append(args, "--set", s)
	}
	return m.start(exec.Command(m.b.stele, args...))
}

// newTrio starts three nodes and waits until each has all three for brokers.
func (b *bench) newTrio(kind string) (*trio, error) {
	dir, err := os.MkdirTemp(b.scratch, "trio-")
	if err != nil {
		return nil, err
	}
	c := &trio{kind: kind, dir: dir}
	var voters, seeds []string
	var formats []func(voters string) error
	for i := range c.members {
		id := i + 1
		if kind == "stele" {
			m := &steleMember{b: b, process: process{cpu: -1}}
			if err := m.fresh(b); err != nil {
				return nil, err
			}
			voters = append(voters, fmt.Sprintf("%d@127.0.0.1:%d", id, m.cport))
			formats = append(formats, func(voters string) error {
				m.settings = []string{fmt.Sprintf("listeners=PLAINTEXT://%s,CONTROLLER://127.0.0.1:%d", m.Addr(), m.cport), "http.listen=",
					fmt.Sprintf("node.id=%d", id), "cluster.id=bench", "controller.quorum.voters=" + voters}
				return nil
			})
			c.members[i] = m
		} else {
			n, err := reference.Reserve(filepath.Join(dir, strconv.Itoa(id)))
			if err != nil {
				return nil, err
			}
			voters = append(voters, fmt.Sprintf("%d@%s", id, n.ControllerAddr()))
			formats = append(formats, func(voters string) error {
				return n.Format(b.ctx, "c3RlbGUtYW5kLWthZmthQQ", fmt.Sprintf("node.id=%d", id), "controller.quorum.voters="+voters)
			})
			c.members[i] = n
		}
		seeds = append(seeds, c.members[i].Addr())
	}
	err = c.each(func(i int, m member) error {
		if err := formats[i](strings.Join(voters, ",")); err != nil {
			return err
		}
		return m.Start(b.ctx)
	})
	if err != nil {
		c.stop()
		return nil, err
	}
	// A client asks again at once, so that what is measured is the cluster's.
	c.client, err = kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.MetadataMinAge(20*time.Millisecond), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }), kgo.DialTimeout(time.Second), kgo.ProducerLinger(0), kgo.DisableIdempotentWrite(), kgo.UnknownTopicRetries(-1))
	if err == nil {
		err = c.whole(b.ctx)
	}
	if err != nil {
		c.stop()
		return nil, err
	}
	return c, nil
}

func (c *trio) each(do func(i int, m member) error) error {
	var all sync.WaitGroup
	errs := make([]error, len(c.members))
	for i, m := range c.members {
		all.Go(func() { errs[i] = do(i, m) })
	}
	all.Wait()
	return errors.Join(errs...)
}

func (c *trio) stop() {
	if c.client != nil {
		c.client.Close()
	}
	_ = c.each(func(_ int, m member) error { m.Kill(); return nil })
	os.RemoveAll(c.dir)
}

// whole waits until all three are brokers, all vote with their logs at the leader's end, and no replica is out of sync.
func (c *trio) whole(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	last := errors.New("not asked yet")
	for limited.Err() == nil {
		if last = c.isWhole(limited); last == nil {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return fmt.Errorf("three nodes of %s: %w", c.kind, last)
}

func (c *trio) isWhole(ctx context.Context) error {
	once, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	md, err := kadm.NewClient(c.client).Metadata(once)
	if err != nil {
		return err
	}
	behind := 3 - len(md.Brokers)
	md.Topics.EachPartition(func(p kadm.PartitionDetail) {
		if len(p.ISR) < len(p.Replicas) || p.Leader < 0 {
			behind++
		}
	})
	if behind > 0 {
		return fmt.Errorf("%d brokers or partitions are not there yet", behind)
	}
	quorum, err := c.quorum(once)
	if err != nil {
		return err
	}
	for _, v := range quorum.CurrentVoters {
		if quorum.HighWatermark-v.LogEndOffset > 20 || v.LogEndOffset < 0 {
			return fmt.Errorf("voter %d is at %d of %d", v.ReplicaID, v.LogEndOffset, quorum.HighWatermark)
		}
	}
	return nil
}

func (c *trio) quorum(ctx context.Context) (*kmsg.DescribeQuorumResponseTopicPartition, error) {
	req := kmsg.NewPtrDescribeQuorumRequest()
	topic := kmsg.NewDescribeQuorumRequestTopic()
	topic.Topic = "__cluster_metadata"
	topic.Partitions = append(topic.Partitions, kmsg.NewDescribeQuorumRequestTopicPartition())
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(ctx, c.client)
	if err != nil {
		return nil, err
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 || resp.Topics[0].Partitions[0].LeaderID <= 0 {
		return nil, errors.New("no leader is known")
	}
	return &resp.Topics[0].Partitions[0], nil
}

// creates asks for a topic until it is there, and says how long after since that was.
func (c *trio) creates(ctx context.Context, topic string, since time.Time) (time.Duration, error) {
	admin := kadm.NewClient(c.client)
	for {
		once, cancel := context.WithTimeout(ctx, 2*time.Second)
		_, err := admin.CreateTopic(once, 1, 1, nil, topic)
		cancel()
		if err == nil || strings.Contains(err.Error(), "TOPIC_ALREADY_EXISTS") {
			return time.Since(since), nil
		}
		if time.Since(since) > 90*time.Second || ctx.Err() != nil {
			return 0, fmt.Errorf("%s created nothing: %w", c.kind, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// controllerFailover: kill -9 of the active controller to the next topic that is created, with default settings.
func (b *bench) controllerFailover(_ []server, _ *row) ([]figure, error) {
	samples, err := b.trios(func(c *trio, round int) (map[string]float64, error) {
		quorum, err := c.quorum(b.ctx)
		if err != nil {
			return nil, err
		}
		victim := c.members[quorum.LeaderID-1]
		since := time.Now()
		victim.Kill()
		took, err := c.creates(b.ctx, fmt.Sprintf("after-%d", round), since)
		if err != nil {
			return nil, err
		}
		return map[string]float64{"failover": ms(took)}, errors.Join(victim.Start(b.ctx), c.whole(b.ctx))
	})
	if err != nil {
		return nil, err
	}
	return []figure{makeFigure("failover", "ms", samples).atMost(1.0 / 3)}, nil
}

// failoverPartitions is how many partitions three brokers share in the row about the death of one.
const failoverPartitions = 900

// brokerDeath: kill -9 of a broker that is not the active controller, until every partition that it led has acknowledged
// a record of one client.
func (b *bench) brokerDeath(_ []server, _ *row) ([]figure, error) {
	samples, err := b.trios(func(c *trio, round int) (map[string]float64, error) {
		admin := kadm.NewClient(c.client)
		topic := fmt.Sprintf("led-%d", round)
		if _, err := admin.CreateTopic(b.ctx, failoverPartitions, 3, nil, topic); err != nil {
			return nil, err
		}
		if err := c.whole(b.ctx); err != nil {
			return nil, err
		}
		quorum, err := c.quorum(b.ctx)
		if err != nil {
			return nil, err
		}
		dead := quorum.LeaderID%3 + 1
		records, err := c.ledBy(b.ctx, topic, dead)
		if err != nil {
			return nil, err
		}
		since := time.Now()
		c.members[dead-1].Kill()
		limited, cancel := context.WithTimeout(b.ctx, 90*time.Second)
		defer cancel()
		if err := c.client.ProduceSync(limited, records...).FirstErr(); err != nil {
			return nil, fmt.Errorf("%s: %w", c.kind, err)
		}
		took := time.Since(since)
		if err := errors.Join(c.members[dead-1].Start(b.ctx), c.whole(b.ctx)); err != nil {
			return nil, err
		}
		_, err = admin.DeleteTopic(b.ctx, topic)
		return map[string]float64{"served": ms(took)}, err
	})
	if err != nil {
		return nil, err
	}
	return []figure{makeFigure("served", "ms", samples).atMost(1)}, nil
}

// ledBy is a record for each partition of a topic of failoverPartitions that a broker leads. It waits until the topic is
// known where it asks.
func (c *trio) ledBy(ctx context.Context, topic string, broker int32) ([]*kgo.Record, error) {
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for limited.Err() == nil {
		md, err := kadm.NewClient(c.client).Metadata(limited, topic)
		if err != nil {
			return nil, err
		}
		led := 0
		var records []*kgo.Record
		for _, p := range md.Topics[topic].Partitions {
			if p.Leader >= 0 && len(p.ISR) == 3 {
				led++
			}
			if p.Leader == broker {
				records = append(records, &kgo.Record{Topic: topic, Partition: p.Partition, Value: []byte("after")})
			}
		}
		if led == failoverPartitions && len(records) >= failoverPartitions/4 {
			return records, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return nil, fmt.Errorf("three nodes of %s: broker %d does not lead its share of %s", c.kind, broker, topic)
}

// trios measures three nodes of either kind, which live through all rounds; one cluster idles while the other is measured.
func (b *bench) trios(measure func(c *trio, round int) (map[string]float64, error)) ([]sample, error) {
	os.Setenv("STELE_REFERENCE_SERVER_JVM", kafkaJVM)
	kinds := []string{"stele"}
	if b.kafka {
		kinds = append(kinds, "kafka")
	}
	var clusters []*trio
	for _, kind := range kinds {
		c, err := b.newTrio(kind)
		if err != nil {
			return nil, err
		}
		defer c.stop()
		clusters = append(clusters, c)
	}
	var samples []sample
	for round := range b.rounds {
		s := sample{}
		for i := range clusters {
			c := clusters[(i+round)%len(clusters)]
			values, err := measure(c, round)
			if err != nil {
				return nil, err
			}
			s[c.kind] = values
			fmt.Fprintf(os.Stderr, "round %d: %s: %v\n", round+1, c.kind, values)
		}
		samples = append(samples, s)
	}
	return samples, nil
}
