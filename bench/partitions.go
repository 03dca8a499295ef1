package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/stelelog/stele/bench/probe"
)

const (
	restartPartitions = 8000
	mostPartitions    = 20000
	// perTopic is how many of them a topic has: one request creates no more than 10,000.
	perTopic = 4000
	// settleTime is how long a node is left alone before its memory is looked at.
	settleTime = 45 * time.Second
	quitTime   = 3 * time.Minute
)

// manyRow: a clean restart with 8,000 partitions, from exec to the first acknowledged write to one of them, and what each
// takes of memory once the node has settled.
func (b *bench) manyRow(_ []server, _ *row) ([]figure, error) {
	samples, err := b.cleanRestarts(b.servers(-1), restartPartitions)
	return []figure{makeFigure("start", "ms", samples).atMost(1.0 / 5), makeFigure("partition", "KB per idle partition", samples).atMost(1.0 / 4)}, err
}

// mostRow is that with 20,000 partitions, on Stele alone.
func (b *bench) mostRow(_ []server, _ *row) ([]figure, error) {
	samples, err := b.cleanRestarts(b.servers(-1)[:1], mostPartitions)
	return []figure{makeFigure("start", "ms", samples), makeFigure("partition", "KB per idle partition", samples),
		makeFigure("files", "file handles", samples)}, err
}

// cleanRestarts measures servers one after the other, so that none takes memory or processor time from another.
func (b *bench) cleanRestarts(servers []server, partitions int) ([]sample, error) {
	samples := make([]sample, b.rounds)
	for round := range samples {
		samples[round] = sample{}
	}
	for _, s := range servers {
		if err := b.restartsOf(s, partitions, samples); err != nil {
			return nil, fmt.Errorf("%s: %w", s.name(), err)
		}
	}
	return samples, nil
}

func (b *bench) restartsOf(s server, partitions int, samples []sample) error {
	defer s.stop()
	if err := s.format(); err != nil {
		return err
	}
	if err := s.exec(); err != nil {
		return err
	}
	if _, err := b.firstAck(s, "first", time.Now()); err != nil {
		return err
	}
	if err := quit(s); err != nil {
		return err
	}
	empty, _, err := b.restarted(s, "first")
	if err != nil {
		return err
	}
	for made := 0; made < partitions; made += perTopic {
		if err := b.createTopic(s, fmt.Sprintf("many-%d", made/perTopic), min(perTopic, partitions-made)); err != nil {
			return err
		}
	}
	for _, one := range samples {
		if err := quit(s); err != nil {
			return err
		}
		rss, took, err := b.restarted(s, "many-0")
		if err != nil {
			return err
		}
		handles, err := os.ReadDir(filepath.Join("/proc", fmt.Sprint(s.pid()), "fd"))
		if err != nil {
			return err
		}
		one[s.name()] = map[string]float64{"start": ms(took), "partition": float64(rss-empty) / 1e3 / float64(partitions), "files": float64(len(handles))}
	}
	return nil
}

// restarted starts a server, waits for the first acknowledged write to a topic, and then until the memory has settled.
func (b *bench) restarted(s server, topic string) (rss int64, took time.Duration, err error) {
	start := time.Now()
	if err := s.exec(); err != nil {
		return 0, 0, err
	}
	if took, err = b.firstAck(s, topic, start); err != nil {
		return 0, 0, err
	}
	select {
	case <-time.After(settleTime):
	case <-b.ctx.Done():
		return 0, 0, b.ctx.Err()
	}
	rss, err = probe.RSS(s.pid())
	return rss, took, err
}

// quit ends a server's process cleanly; its data stays.
func quit(s server) error {
	if err := syscall.Kill(s.pid(), syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-s.dead():
		return nil
	case <-time.After(quitTime):
		return fmt.Errorf("the process did not stop within %s", quitTime)
	}
}
