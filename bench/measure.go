package main

import (
	"time"

	"github.com/stelelog/stele/bench/probe"
	"github.com/stelelog/stele/bench/replay"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// startup: exec on an empty directory, with format and automatic creation of the topic, to the first acknowledged write.
func (b *bench) startup(_ []server, _ *row) ([]figure, error) {
	servers := b.servers(-1)
	samples, err := b.fresh(servers, func(s server, _ int) (map[string]float64, error) {
		start := time.Now()
		if err := s.format(); err != nil {
			return nil, err
		}
		if err := s.exec(); err != nil {
			return nil, err
		}
		defer s.stop()
		took, err := b.firstAck(s, "first", start)
		return map[string]float64{"start": ms(took)}, err
	})
	return []figure{makeFigure("start", "ms", samples).atMost(1.0 / 20)}, err
}

// fresh measures servers that start anew, round by round.
func (b *bench) fresh(servers []server, measure func(s server, round int) (map[string]float64, error)) ([]sample, error) {
	var samples []sample
	for round := range b.rounds {
		s := sample{}
		for i := range servers {
			which := servers[(i+round)%len(servers)]
			values, err := measure(which, round)
			if err != nil {
				return nil, err
			}
			s[which.name()] = values
		}
		samples = append(samples, s)
	}
	return samples, nil
}

// restart: kill -9 of a node that has some data, to the first acknowledged write after an immediate restart.
func (b *bench) restart(_ []server, _ *row) ([]figure, error) {
	servers, stop, err := b.start(-1)
	if err != nil {
		return nil, err
	}
	defer stop()
	for _, s := range servers {
		if err := b.createTopic(s, "data", 16); err != nil {
			return nil, err
		}
		job := load{partitions: 16, record: 1 << 10, batch: 16 << 10, conns: 1, acks: -1}.job(replay.Produce, s, "data")
		job.Seconds, job.Bytes = 20, 64<<20
		if _, err := b.replayed(job); err != nil {
			return nil, err
		}
	}
	samples, err := b.fresh(servers, func(s server, _ int) (map[string]float64, error) {
		start := time.Now()
		s.kill()
		if err := s.exec(); err != nil {
			return nil, err
		}
		took, err := b.firstAck(s, "first", start)
		return map[string]float64{"start": ms(took)}, err
	})
	return []figure{makeFigure("start", "ms", samples).atMost(1)}, err
}

const (
	memoryConns      = 1000
	memoryPartitions = 2000
)

// memory: resident ten seconds after the first write; then with idle connections; then with more partitions.
func (b *bench) memory(_ []server, _ *row) ([]figure, error) {
	servers, stop, err := b.start(-1)
	if err != nil {
		return nil, err
	}
	defer stop()
	time.Sleep(10 * time.Second)
	s := sample{}
	for _, which := range servers {
		values, err := b.memoryOf(which)
		if err != nil {
			return nil, err
		}
		s[which.name()] = values
	}
	samples := []sample{s}
	return []figure{
		makeFigure("idle", "idle RSS, MB", samples).atMost(1.0 / 8), makeFigure("connection", "KB per idle connection", samples),
		makeFigure("partition", "KB per partition", samples),
	}, nil
}

func (b *bench) memoryOf(s server) (map[string]float64, error) {
	idle, err := probe.RSS(s.pid())
	if err != nil {
		return nil, err
	}
	for range memoryConns {
		conn, err := probe.Dial(s.addr(), adminTimeout)
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		req := kmsg.NewPtrApiVersionsRequest()
		req.Version, req.ClientSoftwareName, req.ClientSoftwareVersion = 3, "bench", "1"
		if _, err := conn.Request(req); err != nil {
			return nil, err
		}
	}
	connected, err := probe.RSS(s.pid())
	if err != nil {
		return nil, err
	}
	if err := b.createTopic(s, "many", memoryPartitions); err != nil {
		return nil, err
	}
	time.Sleep(3 * time.Second)
	partitions, err := probe.RSS(s.pid())
	return map[string]float64{"idle": float64(idle) / mega, "connection": float64(connected-idle) / 1e3 / memoryConns,
		"partition": float64(partitions-connected) / 1e3 / memoryPartitions}, err
}
