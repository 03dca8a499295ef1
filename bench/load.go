package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/stelelog/stele/bench/probe"
)

const (
	partitions = 16
	recordSize = 1 << 10
)

// write sends mb MB to a topic, which it makes if it is new, and waits for all acknowledgements.
func (b *bench) write(s server, topic string, mb, batch int) (cost, error) {
	c, err := kgo.NewClient(kgo.SeedBrokers(s.addr()), kgo.DefaultProduceTopic(topic), kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.RequiredAcks(kgo.AllISRAcks()), kgo.ProducerBatchMaxBytes(int32(batch)), kgo.MaxBufferedRecords(20_000), kgo.ProducerLinger(2*time.Millisecond),
		kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
	if err != nil {
		return cost{}, err
	}
	defer c.Close()
	if _, err := kadm.NewClient(c).CreateTopic(b.ctx, partitions, 1, nil, topic); err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		return cost{}, err
	}
	value := make([]byte, recordSize)
	random := rand.NewChaCha8([32]byte{1})
	if _, err := random.Read(value); err != nil {
		return cost{}, err
	}
	var failed atomic.Pointer[error]
	return measured(s, mb, func() error {
		ctx, cancel := context.WithTimeout(b.ctx, 2*time.Minute)
		defer cancel()
		for range mb << 20 / recordSize {
			c.Produce(ctx, &kgo.Record{Value: value}, func(_ *kgo.Record, err error) {
				if err != nil {
					failed.Store(&err)
				}
			})
		}
		if err := c.Flush(ctx); err != nil {
			return err
		}
		if err := failed.Load(); err != nil {
			return *err
		}
		return nil
	})
}

// read takes mb MB from the beginning of a topic.
func (b *bench) read(s server, topic string, mb int) (cost, error) {
	from := map[int32]kgo.Offset{}
	for p := range int32(partitions) {
		from[p] = kgo.NewOffset().AtStart()
	}
	c, err := kgo.NewClient(kgo.SeedBrokers(s.addr()), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}), kgo.FetchMaxBytes(16<<20))
	if err != nil {
		return cost{}, err
	}
	defer c.Close()
	return measured(s, mb, func() error {
		ctx, cancel := context.WithTimeout(b.ctx, 2*time.Minute)
		defer cancel()
		for left := mb << 20 / recordSize; left > 0; {
			fetches := c.PollFetches(ctx)
			if err := fetches.Err0(); err != nil {
				return err
			}
			left -= fetches.NumRecords()
		}
		return nil
	})
}

// single sends requests of one record each, one at a time on each of 8 connections: the broker's cost of a request.
func (b *bench) single(s server, requests int) (cost, error) {
	const conns = 8
	value := make([]byte, recordSize)
	return measured(s, requests*recordSize>>20, func() error {
		errs := make(chan error, conns)
		for i := range conns {
			go func() { errs <- sendSingle(s.addr(), int32(i), value, requests/conns) }()
		}
		var err error
		for range conns {
			err = errors.Join(err, <-errs)
		}
		return err
	})
}

func sendSingle(addr string, partition int32, value []byte, requests int) error {
	c, err := probe.Dial(addr, 10*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	for range requests {
		if _, err := c.Produce("warm", partition, nil, value); err != nil {
			return err
		}
	}
	return nil
}

// measured runs f and says what it cost the broker.
func measured(s server, mb int, f func() error) (cost, error) {
	before, err := probe.CPU(s.pid())
	if err != nil {
		return cost{}, err
	}
	start := time.Now()
	if err := f(); err != nil {
		return cost{}, err
	}
	took := time.Since(start)
	after, err := probe.CPU(s.pid())
	if err != nil {
		return cost{}, err
	}
	gb := float64(mb) / 1024
	return cost{cpuPerGB: (after - before).Seconds() / gb, rate: float64(mb) / took.Seconds()}, nil
}

// takeProfile keeps two seconds of the node's CPU profile.
func (s *stele) takeProfile(path string) error {
	resp, err := http.Get("http://127.0.0.1:" + strconv.Itoa(s.http) + "/debug/pprof/profile?seconds=2")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("profile: %s", resp.Status)
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(f, resp.Body)
	return err
}
