package main

import (
	"os"
	"path/filepath"
	"time"

	"github.com/stelelog/stele/bench/replay"
)

// flushOne is the setting under which nothing is acknowledged before it is on disk.
var flushOne = map[string]string{"flush.messages": "1"}

// flushRow replays a producer's requests to a topic with flush.messages=1, and beside it measures a loop that writes the
// same bytes to a file on the same disk and syncs it for each request.
func (b *bench) flushRow(servers []server, r *row) ([]figure, error) {
	samples, err := b.inTurn(servers, r, func(s server, _ int) (map[string]float64, error) {
		loop, err := b.syncLoop(r.load.record + 100)
		if err != nil {
			return nil, err
		}
		if err := b.createTopicWith(s, "flush", r.load.partitions, flushOne); err != nil {
			return nil, err
		}
		job := r.load.job(replay.Produce, s, "flush")
		job.Seconds = b.seconds
		result, err := b.replayed(job)
		if err != nil {
			return nil, err
		}
		rate := float64(result.Requests) / result.Seconds
		return map[string]float64{"requests": rate, "loop": rate / loop}, b.deleteTopic(s, "flush")
	})
	return []figure{
		makeFigure("requests", "requests/s", samples).atLeast(3),
		makeFigure("loop", "times a loop that syncs for each", samples).plain().steleAtLeast(10),
		makeFigure("memory", "peak RSS, MB", samples).atMost(r.reach.memoryAtMost),
	}, err
}

// syncLoop is how many times a second a write of that size and a sync go one after the other.
func (b *bench) syncLoop(size int) (perSecond float64, err error) {
	f, err := os.Create(filepath.Join(b.scratch, "loop"))
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	data := make([]byte, size)
	began, n := time.Now(), 0
	for time.Since(began) < 2*time.Second {
		if _, err := f.WriteAt(data, int64(n*size)); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
		n++
	}
	return float64(n) / time.Since(began).Seconds(), nil
}
