package main

import (
	"fmt"

	"github.com/stelelog/stele/internal/record"
)

// fixture says which servers a row is measured on.
type fixture int

const (
	own   fixture = iota // the row starts its own
	bound                // both bound to one core; the generator has the other
	free                 // both on all cores, which they share with their clients
)

// row is one line of the table.
type row struct {
	name    string
	section string
	fixture fixture
	quick   bool // also measured with -quick
	load    load
	reach   reach
	measure func(b *bench, servers []server, r *row) ([]figure, error)
}

// load is what a row's generator does.
type load struct {
	partitions, record, batch, conns int
	acks                             int16
	codec                            record.Codec
	rate                             int
}

// reach is what the ratios of Stele's figures to Kafka's are meant to come to; 0: nothing.
type reach struct {
	cpuAtMost, rateAtLeast, p99AtMost, memoryAtMost float64
}

// The sections of the table.
const (
	sectionProduce = "Produce, replayed: the broker on one core, the generator on the other"
	sectionConsume = "Consume, replayed: the broker on one core, the generator on the other"
	sectionFlush   = "Durable produce: flush.messages=1, the broker on one core, the generator on the other"
	sectionCompact = "Compaction: the broker on one core"
	sectionTools   = "Kafka's own tools, on the same two cores as the broker"
	sectionLatency = "End-to-end latency, ms"
	sectionProcess = "Starts and memory"
	sectionCluster = "Three nodes, each broker and controller, default settings"
)

func allRows(every bool) []row {
	rows := []row{
		{name: "start: empty directory to first acknowledged write", section: sectionProcess, quick: true, measure: (*bench).startup},
		{name: "start: kill -9 to first acknowledged write", section: sectionProcess, measure: (*bench).restart},
		{name: "memory: idle, per connection, per partition", section: sectionProcess, quick: true, measure: (*bench).memory},
		{name: "clean restart with 8,000 partitions: to the first acknowledged write, memory", section: sectionProcess, measure: (*bench).manyRow},
		{name: "clean restart with 20,000 partitions, Stele alone", section: sectionProcess, measure: (*bench).mostRow},
	}
	rows = append(rows,
		row{name: "kill -9 of the active controller to the next created topic", section: sectionCluster, measure: (*bench).controllerFailover},
		row{name: fmt.Sprintf("kill -9 of a broker to an acknowledged write in each of the partitions it led (of %d)", failoverPartitions), section: sectionCluster, measure: (*bench).brokerDeath})
	base := load{partitions: 16, record: 1 << 10, batch: 16 << 10, conns: 1, acks: -1}
	with := func(change func(*load)) load {
		l := base
		change(&l)
		return l
	}
	produce := func(l load, quick bool) {
		rows = append(rows, row{name: "produce " + l.String(), section: sectionProduce, fixture: bound, quick: quick, load: l,
			reach: reach{cpuAtMost: 0.6, rateAtLeast: 1.5, memoryAtMost: 0.2}, measure: (*bench).produceRow})
	}
	codecs := []record.Codec{record.None, record.LZ4, record.Zstd}
	if every {
		for _, size := range []int{100, 1 << 10} {
			for _, codec := range codecs {
				for _, partitions := range []int{1, 16, 500} {
					for _, conns := range []int{1, 64} {
						for _, acks := range []int16{1, -1} {
							produce(with(func(l *load) {
								l.record, l.codec, l.partitions, l.conns, l.acks = size, codec, partitions, conns, acks
								l.batch = batchFor(partitions)
							}), true)
						}
					}
				}
			}
		}
	} else {
		for _, size := range []int{1 << 10, 100} {
			for _, codec := range codecs {
				for _, conns := range []int{1, 64} {
					produce(with(func(l *load) { l.record, l.codec, l.conns = size, codec, conns }), conns == 1 && size == 1<<10)
				}
			}
		}
		for _, conns := range []int{1, 64} {
			for _, partitions := range []int{1, 500} {
				produce(with(func(l *load) { l.partitions, l.conns, l.batch = partitions, conns, batchFor(partitions) }), conns == 64)
			}
			produce(with(func(l *load) { l.acks, l.conns = 1, conns }), false)
		}
		produce(with(func(l *load) { l.acks, l.partitions = 1, 1 }), false)
		produce(with(func(l *load) { l.acks, l.partitions, l.batch = 1, 500, batchFor(500) }), false)
		produce(with(func(l *load) { l.record, l.partitions = 100, 1 }), false)
		produce(with(func(l *load) { l.record, l.partitions, l.batch = 100, 500, batchFor(500) }), false)
		produce(with(func(l *load) { l.codec, l.partitions, l.batch = record.LZ4, 500, batchFor(500) }), false)
		produce(with(func(l *load) { l.codec, l.partitions, l.batch = record.Zstd, 500, batchFor(500) }), false)
	}
	for _, conns := range []int{1, 64} {
		produce(with(func(l *load) { l.batch, l.conns = 1000<<10, conns }), conns == 1)
		produce(with(func(l *load) { l.batch, l.conns = 0, conns }), conns == 64)
	}
	durable := with(func(l *load) { l.batch, l.conns = 0, 64 })
	rows = append(rows, row{name: "flush.messages=1 " + durable.String(), section: sectionFlush, fixture: bound, quick: true, load: durable,
		reach: reach{memoryAtMost: 0.2}, measure: (*bench).flushRow})
	for _, codec := range []record.Codec{record.None, record.LZ4} {
		rows = append(rows, row{name: fmt.Sprintf("compaction, %s, 1 partition of 384 MB, 100,000 keys", codecName(codec)), section: sectionCompact, fixture: bound,
			quick: codec == record.None, load: with(func(l *load) { l.partitions, l.record, l.codec = 1, 512, codec }), reach: reach{cpuAtMost: 0.6, memoryAtMost: 0.2},
			measure: (*bench).compactRow})
	}
	consume := func(name string, groups int, codec record.Codec, quick bool, measure func(*bench, []server, *row) ([]figure, error)) {
		rows = append(rows, row{name: fmt.Sprintf("consume %s, %s, groups=%d", name, codecName(codec), groups), section: sectionConsume, fixture: bound,
			quick: quick, load: with(func(l *load) { l.conns, l.codec = groups, codec }), reach: reach{cpuAtMost: 0.6, rateAtLeast: 1.5}, measure: measure})
	}
	for _, groups := range []int{1, 10} {
		consume("hot", groups, record.None, groups == 1, (*bench).hotRow)
		consume("cold", groups, record.None, groups == 1, (*bench).coldRow)
		consume("hot", groups, record.Zstd, false, (*bench).hotRow)
	}
	for _, rate := range []int{200, 1000, 5000} {
		rows = append(rows, row{name: fmt.Sprintf("replayed, %d records/s of 1 KiB", rate), section: sectionLatency, fixture: bound, quick: rate == 1000,
			load: load{partitions: 1, record: 1 << 10, conns: 1, acks: -1, rate: rate}, reach: reach{cpuAtMost: 0.6, p99AtMost: 0.5}, measure: (*bench).latencyRow})
	}

	tool := func(name string, l load, quick bool, measure func(*bench, []server, *row) ([]figure, error)) {
		rows = append(rows, row{name: name + " " + l.String(), section: sectionTools, fixture: free, quick: quick, load: l,
			reach: reach{cpuAtMost: 0.6, rateAtLeast: 1}, measure: measure})
	}
	producer := (*bench).producerPerformance
	tool("ProducerPerformance", base, true, producer)
	tool("ProducerPerformance", with(func(l *load) { l.acks = 1 }), false, producer)
	tool("ProducerPerformance", with(func(l *load) { l.record = 100 }), false, producer)
	tool("ProducerPerformance", with(func(l *load) { l.codec = record.LZ4 }), false, producer)
	tool("ProducerPerformance", with(func(l *load) { l.codec = record.Zstd }), false, producer)
	tool("ProducerPerformance", with(func(l *load) { l.partitions = 500 }), false, producer)
	tool("ProducerPerformance", with(func(l *load) { l.batch = 1000 << 10 }), false, producer)
	tool("ConsumerPerformance", base, true, (*bench).consumerPerformance)
	rows = append(rows, row{name: "EndToEndLatency, a record of 1 KiB at a time", section: sectionLatency, fixture: free, quick: false,
		load: load{partitions: 1, record: 1 << 10, conns: 1, acks: -1}, reach: reach{p99AtMost: 0.5}, measure: (*bench).endToEnd})
	return rows
}

// batchFor is the size of batches of a producer that fills its requests: with many partitions each gets a small one.
func batchFor(partitions int) int {
	if partitions > 64 {
		return 2 << 10
	}
	return 16 << 10
}

func codecName(c record.Codec) string {
	if c == record.None {
		return "none"
	}
	return c.String()
}

func (l load) String() string {
	size := func(n int) string {
		if n >= 1<<10 {
			return fmt.Sprintf("%d KiB", n>>10)
		}
		return fmt.Sprintf("%d B", n)
	}
	batch := size(l.batch)
	if l.batch == 0 {
		batch = "one record"
	}
	acks := fmt.Sprint(l.acks)
	if l.acks < 0 {
		acks = "all"
	}
	return fmt.Sprintf("%s, %s, acks=%s, partitions=%d, connections=%d, batch %s", size(l.record), codecName(l.codec), acks, l.partitions, l.conns, batch)
}
