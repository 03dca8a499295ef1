package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/stelelog/stele/bench/probe"
	"github.com/stelelog/stele/bench/replay"
	"github.com/stelelog/stele/internal/record"
)

// replayed runs a job of the replaying generator, on the first processor.
func (b *bench) replayed(job replay.Job) (*replay.Result, error) {
	cmd, err := generator(job)
	if err != nil {
		return nil, err
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := startOn(cmd, 0); err != nil {
		return nil, err
	}
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(errs.String()))
	}
	var r replay.Result
	return &r, json.Unmarshal(out.Bytes(), &r)
}

func generator(job replay.Job) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(job)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, "replay")
	cmd.Stdin = bytes.NewReader(text)
	return cmd, nil
}

func (l load) job(kind string, s server, topic string) replay.Job {
	return replay.Job{Kind: kind, Addr: s.addr(), PID: s.pid(), Topic: topic, Partitions: l.partitions, RecordSize: l.record, BatchSize: l.batch,
		Codec: l.codec, Acks: l.acks, Conns: l.conns, Rate: l.rate}
}

// warm puts the servers to work before anything is measured: a JVM is judged warm.
func (b *bench) warm(servers []server) error {
	seconds := 4 * b.seconds / 2
	for _, s := range servers {
		for _, l := range []load{
			{partitions: 16, record: 1 << 10, batch: 16 << 10, conns: 4, acks: -1},
			{partitions: 16, record: 1 << 10, batch: 16 << 10, conns: 1, acks: -1, codec: record.Zstd},
			{partitions: 16, record: 1 << 10, batch: 0, conns: 4, acks: -1},
		} {
			if err := b.createTopic(s, "warm", l.partitions); err != nil {
				return err
			}
			job := l.job(replay.Produce, s, "warm")
			job.Seconds, job.Bytes = seconds, b.bytes
			if _, err := b.replayed(job); err != nil {
				return err
			}
			if l.codec == record.None {
				job.Kind, job.Seconds = replay.Consume, seconds/2
				if _, err := b.replayed(job); err != nil {
					return err
				}
			}
			if err := b.deleteTopic(s, "warm"); err != nil {
				return err
			}
		}
	}
	return nil
}

// inTurn measures the servers beside each other: once for nothing, then round by round, in alternating order.
func (b *bench) inTurn(servers []server, r *row, measure func(s server, round int) (map[string]float64, error)) ([]sample, error) {
	var samples []sample
	for round := -1; round < b.rounds; round++ {
		s := sample{}
		for i := range servers {
			which := servers[(i+max(round, 0))%len(servers)]
			profiled := func() {}
			if st, ok := which.(*stele); ok && b.profile != "" && round == 0 {
				profiled = b.profiled(st, r.name)
			}
			if err := probe.ResetPeak(which.pid()); err != nil {
				return nil, err
			}
			values, err := measure(which, round)
			profiled()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", which.name(), err)
			}
			peak, err := probe.PeakRSS(which.pid())
			if err != nil {
				return nil, err
			}
			values["memory"] = float64(peak) / mega
			s[which.name()] = values
		}
		if round >= 0 {
			samples = append(samples, s)
		}
	}
	return samples, nil
}

const mega, giga = 1e6, 1e9

// throughput is what a result says, in the units of the table.
func throughput(r *replay.Result) map[string]float64 {
	return map[string]float64{
		"rate": float64(r.Bytes) / mega / r.Seconds, "cpu": r.BrokerCPU / (float64(r.Bytes) / giga), "generator": 100 * r.OwnCPU / r.Seconds,
	}
}

func (r *row) throughputFigures(samples []sample) []figure {
	return []figure{
		makeFigure("rate", "MB/s", samples).atLeast(r.reach.rateAtLeast),
		makeFigure("cpu", "broker CPU s/GB", samples).atMost(r.reach.cpuAtMost),
		makeFigure("memory", "peak RSS, MB", samples).atMost(r.reach.memoryAtMost),
	}
}

// manyPartitions is from when on a row keeps its topic: to create and delete so many is work that goes on for a while
// after the answer, and would be measured with the next round.
const manyPartitions = 100

// produceRow replays a producer's requests, to a new topic each time if that costs little.
func (b *bench) produceRow(servers []server, r *row) ([]figure, error) {
	keep := r.load.partitions >= manyPartitions
	samples, err := b.inTurn(servers, r, func(s server, round int) (map[string]float64, error) {
		if !keep || round < 0 {
			if err := b.createTopic(s, "produce", r.load.partitions); err != nil {
				return nil, err
			}
		}
		job := r.load.job(replay.Produce, s, "produce")
		job.Seconds, job.Bytes = b.seconds, b.bytes
		result, err := b.replayed(job)
		if err != nil {
			return nil, err
		}
		if keep {
			return throughput(result), nil
		}
		return throughput(result), b.deleteTopic(s, "produce")
	})
	if err != nil {
		return nil, err
	}
	if keep {
		for _, s := range servers {
			if err := b.deleteTopic(s, "produce"); err != nil {
				return nil, err
			}
		}
	}
	return append(r.throughputFigures(samples), makeFigure("generator", "generator, % of its core", samples).plain()), nil
}

// fill writes what the rows of consume read.
func (b *bench) fill(s server, topic string, l load) error {
	if err := b.createTopic(s, topic, l.partitions); err != nil {
		return err
	}
	l.conns = 1
	job := l.job(replay.Produce, s, topic)
	job.Seconds, job.Bytes = 60, 512<<20
	_, err := b.replayed(job)
	return err
}

// hotRow reads what is in the page cache, over and over, and beside it measures what bare sendfile moves.
func (b *bench) hotRow(servers []server, r *row) ([]figure, error) {
	for _, s := range servers {
		if err := b.fill(s, "hot", r.load); err != nil {
			return nil, err
		}
	}
	bare := 0.0
	samples, err := b.inTurn(servers, r, func(s server, _ int) (map[string]float64, error) {
		if s.name() == "stele" && r.load.codec == record.None {
			var err error
			if bare, err = b.bareSendfile(s, "hot"); err != nil {
				return nil, err
			}
		}
		job := r.load.job(replay.Consume, s, "hot")
		job.Seconds = b.seconds
		result, err := b.replayed(job)
		if err != nil {
			return nil, err
		}
		values := throughput(result)
		if bare > 0 && s.name() == "stele" {
			values["bare"] = values["rate"] / bare
		}
		return values, nil
	})
	if err != nil {
		return nil, err
	}
	for _, s := range servers {
		if err := b.deleteTopic(s, "hot"); err != nil {
			return nil, err
		}
	}
	figures := r.throughputFigures(samples)
	if bare > 0 {
		figures = append(figures, makeFigure("bare", "part of bare sendfile's rate", samples).steleAtLeast(0.6))
	}
	return append(figures, makeFigure("generator", "generator, % of its core", samples).plain()), nil
}

// coldRow reads from disk: each time the page cache is emptied of the topic's files before.
func (b *bench) coldRow(servers []server, r *row) ([]figure, error) {
	for _, s := range servers {
		if err := b.fill(s, "cold", r.load); err != nil {
			return nil, err
		}
	}
	samples, err := b.inTurn(servers, r, func(s server, _ int) (map[string]float64, error) {
		if err := chill(s, "cold"); err != nil {
			return nil, err
		}
		job := r.load.job(replay.Consume, s, "cold")
		job.Passes = 1
		result, err := b.replayed(job)
		if err != nil {
			return nil, err
		}
		return throughput(result), nil
	})
	if err != nil {
		return nil, err
	}
	for _, s := range servers {
		if err := b.deleteTopic(s, "cold"); err != nil {
			return nil, err
		}
	}
	return r.throughputFigures(samples), nil
}

// bareSendfile is the rate at which a process on the broker's processor, which does nothing else, sends the files of a
// topic's first partition.
func (b *bench) bareSendfile(s server, topic string) (rate float64, err error) {
	dirs, err := partitionDirs(s, topic)
	if err != nil || len(dirs) == 0 {
		return 0, fmt.Errorf("no files of %s: %w", topic, err)
	}
	cmd, err := generator(replay.Job{Kind: replay.Sendfile, Dir: dirs[0]})
	if err != nil {
		return 0, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := startOn(cmd, 1); err != nil {
		return 0, err
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	addr := make([]byte, 64)
	n, err := out.Read(addr)
	if err != nil {
		return 0, err
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	result, err := b.replayed(replay.Job{Kind: replay.Discard, Addr: strings.TrimSpace(string(addr[:n])), Seconds: b.seconds / 2})
	if err != nil {
		return 0, err
	}
	return float64(result.Bytes) / mega / result.Seconds, nil
}

// latencyRow sends records at a fixed rate to a consumer that waits for them.
func (b *bench) latencyRow(servers []server, r *row) ([]figure, error) {
	samples, err := b.inTurn(servers, r, func(s server, _ int) (map[string]float64, error) {
		if err := b.createTopic(s, "latency", 1); err != nil {
			return nil, err
		}
		job := r.load.job(replay.Latency, s, "latency")
		job.Seconds = 2 * b.seconds
		result, err := b.replayed(job)
		if err != nil {
			return nil, err
		}
		values := map[string]float64{"p50": result.P50, "p99": result.P99, "p99.9": result.P999, "cpu": result.BrokerCPU / (float64(result.Bytes) / giga)}
		return values, b.deleteTopic(s, "latency")
	})
	if err != nil {
		return nil, err
	}
	return []figure{makeFigure("p50", "p50", samples), makeFigure("p99", "p99", samples).atMost(r.reach.p99AtMost), makeFigure("p99.9", "p99.9", samples),
		makeFigure("cpu", "broker CPU s/GB", samples).atMost(r.reach.cpuAtMost)}, nil
}

var unsafeInName = regexp.MustCompile(`[^a-zA-Z0-9=.]+`)

// profiled takes a CPU profile of Stele for about as long as a measurement is.
func (b *bench) profiled(s *stele, row string) (finish func()) {
	done := make(chan error, 1)
	path := filepath.Join(b.profile, unsafeInName.ReplaceAllString(row, "_")+".pprof")
	go func() { done <- s.takeProfile(path, max(int(b.seconds), 1)) }()
	return func() {
		if err := <-done; err != nil {
			fmt.Fprintln(os.Stderr, "profile:", err)
		}
	}
}

func (s *stele) takeProfile(path string, seconds int) error {
	time.Sleep(200 * time.Millisecond) // the generator is on its way
	resp, err := http.Get("http://127.0.0.1:" + strconv.Itoa(s.http) + "/debug/pprof/profile?seconds=" + strconv.Itoa(seconds))
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
