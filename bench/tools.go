package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"

	"github.com/stelelog/stele/bench/probe"
	"github.com/stelelog/stele/bench/replay"
	"github.com/stelelog/stele/test/reference"
)

// toolJVM are the JVM flags of Kafka's own perf tools.
const toolJVM = "-Xms512m -Xmx512m -XX:+UseSerialGC -Xshare:auto"

// tool runs one of Kafka's tools against s. It returns what it printed and the broker's CPU time meanwhile, in seconds.
func (b *bench) tool(s server, args ...string) (out string, cpu float64, err error) {
	script, err := reference.Script()
	if err != nil {
		return "", 0, err
	}
	before, err := probe.CPU(s.pid())
	if err != nil {
		return "", 0, err
	}
	cmd := exec.CommandContext(b.ctx, script, append([]string{"tool"}, args...)...)
	cmd.Env = append(os.Environ(), "STELE_REFERENCE_TOOL_JVM="+toolJVM)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	text, err := cmd.Output()
	if err != nil {
		return "", 0, fmt.Errorf("%s: %w\n%s", args[0], err, errs.String())
	}
	after, err := probe.CPU(s.pid())
	return string(text), (after - before).Seconds(), err
}

// records is how many records the tools move: a tool's own start takes a second, which is not to count for much.
func (b *bench) records(l load) int {
	return int(min(b.bytes/2, int64(b.seconds*float64(200<<20)))) / l.record
}

var sentLine = regexp.MustCompile(`(\d+) records sent, ([0-9.,]+) records/sec`)

func (b *bench) producerPerformance(servers []server, r *row) ([]figure, error) {
	acks := "all"
	if r.load.acks >= 0 {
		acks = strconv.Itoa(int(r.load.acks))
	}
	records := b.records(r.load)
	if r.load.record < 1<<10 {
		records /= 4 // small records are slow in the tool itself
	}
	samples, err := b.inTurn(servers, r, func(s server, _ int) (map[string]float64, error) {
		if err := b.createTopic(s, "tool", r.load.partitions); err != nil {
			return nil, err
		}
		out, cpu, err := b.tool(s, "ProducerPerformance", "--bootstrap-server", s.addr(), "--topic", "tool", "--num-records", strconv.Itoa(records),
			"--record-size", strconv.Itoa(r.load.record), "--throughput", "-1", "--command-property", "acks="+acks, "compression.type="+codecName(r.load.codec),
			"batch.size="+strconv.Itoa(max(r.load.batch, 16<<10)))
		if err != nil {
			return nil, err
		}
		all := sentLine.FindAllStringSubmatch(out, -1)
		if len(all) == 0 {
			return nil, fmt.Errorf("ProducerPerformance said %q", out)
		}
		last := all[len(all)-1]
		if last[1] != strconv.Itoa(records) {
			return nil, fmt.Errorf("ProducerPerformance sent %s of %d records:\n%s", last[1], records, out)
		}
		rate, err := strconv.ParseFloat(strings.ReplaceAll(last[2], ",", ""), 64)
		if err != nil {
			return nil, err
		}
		bytes := float64(records * r.load.record)
		return map[string]float64{"rate": rate * float64(r.load.record) / mega, "cpu": cpu / (bytes / giga)}, b.deleteTopic(s, "tool")
	})
	if err != nil {
		return nil, err
	}
	return r.throughputFigures(samples), nil
}

func (b *bench) consumerPerformance(servers []server, r *row) ([]figure, error) {
	for _, s := range servers {
		if err := b.fill(s, "tool", r.load); err != nil {
			return nil, err
		}
	}
	samples, err := b.inTurn(servers, r, func(s server, round int) (map[string]float64, error) {
		ends, err := replay.EndOffsets(s.addr(), "tool", r.load.partitions)
		if err != nil {
			return nil, err
		}
		records := int64(0)
		for _, end := range ends {
			records += end
		}
		out, cpu, err := b.tool(s, "ConsumerPerformance", "--bootstrap-server", s.addr(), "--topic", "tool", "--num-records", strconv.FormatInt(records, 10),
			"--group", fmt.Sprintf("bench-%d", round), "--hide-header", "--timeout", "30000")
		if err != nil {
			return nil, err
		}
		// start, end, MB, MB/s, records, records/s, ms of rebalance, ms of fetching, MB/s of that, records/s of that
		fields := strings.Split(strings.TrimSpace(out), ", ")
		if len(fields) < 10 {
			return nil, fmt.Errorf("ConsumerPerformance said %q", out)
		}
		rate, err := strconv.ParseFloat(fields[8], 64)
		if err != nil {
			return nil, err
		}
		return map[string]float64{"rate": rate * (1 << 20) / mega, "cpu": cpu / (float64(records*int64(r.load.record)) / giga)}, nil
	})
	if err != nil {
		return nil, err
	}
	for _, s := range servers {
		if err := b.deleteTopic(s, "tool"); err != nil {
			return nil, err
		}
	}
	return r.throughputFigures(samples), nil
}

var latencyLines = regexp.MustCompile(`(?s)Avg latency: ([0-9.]+) ms.*50th = (\d+), 99th = (\d+), 99.9th = (\d+)`)

// endToEnd sends one record at a time and waits for it in a consumer; Kafka's tool prints its percentiles in whole
// milliseconds.
func (b *bench) endToEnd(servers []server, r *row) ([]figure, error) {
	samples, err := b.inTurn(servers, r, func(s server, _ int) (map[string]float64, error) {
		if err := b.createTopic(s, "tool", 1); err != nil {
			return nil, err
		}
		const records = 5000
		out, cpu, err := b.tool(s, "EndToEndLatency", s.addr(), "tool", strconv.Itoa(records), "all", strconv.Itoa(r.load.record))
		if err != nil {
			return nil, err
		}
		m := latencyLines.FindStringSubmatch(out)
		if m == nil {
			return nil, fmt.Errorf("EndToEndLatency said %q", out)
		}
		values := map[string]float64{"cpu": cpu / (float64(records*r.load.record) / giga)}
		for i, name := range []string{"mean", "p50", "p99", "p99.9"} {
			if values[name], err = strconv.ParseFloat(m[i+1], 64); err != nil {
				return nil, err
			}
		}
		return values, b.deleteTopic(s, "tool")
	})
	if err != nil {
		return nil, err
	}
	return []figure{makeFigure("p50", "p50", samples), makeFigure("p99", "p99", samples).atMost(r.reach.p99AtMost), makeFigure("p99.9", "p99.9", samples),
		makeFigure("cpu", "broker CPU s/GB", samples).atMost(r.reach.cpuAtMost), makeFigure("mean", "mean", samples)}, nil
}
