package main

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/stelelog/stele/bench/probe"
	"github.com/stelelog/stele/bench/replay"
	"github.com/stelelog/stele/internal/record"
)

const (
	compactBytes  = 384 << 20 // of values, before compression
	compactKeys   = 100_000
	compactTopic  = "compacted"
	compactBatch  = 16 << 10
	cleanerWakeup = "50"
)

// compactRow fills a topic with keys that come again and again, has its files written to disk, turns compaction on, and measures
// from there until the cleaner has noted that it is through: bytes of segments read in a second, and the broker's processor time
// for each GB of them.
func (b *bench) compactRow(servers []server, r *row) ([]figure, error) {
	samples, err := b.inTurn(servers, r, func(s server, _ int) (map[string]float64, error) {
		if err := b.alterConfig(s, kmsg.ConfigResourceTypeBroker, "", "log.cleaner.backoff.ms", cleanerWakeup); err != nil {
			return nil, err
		}
		settings := map[string]string{"cleanup.policy": "delete", "segment.bytes": strconv.Itoa(32 << 20), "min.cleanable.dirty.ratio": "0.01", "retention.ms": "-1"}
		if err := b.createTopicWith(s, compactTopic, 1, settings); err != nil {
			return nil, err
		}
		if err := b.fillKeyed(s, r.load); err != nil {
			return nil, err
		}
		if err := syncFiles(s, compactTopic); err != nil {
			return nil, err
		}
		before, active, err := segmentsOf(s, compactTopic)
		if err != nil {
			return nil, err
		}
		if err := probe.ResetPeak(s.pid()); err != nil {
			return nil, err
		}
		cpu, err := probe.CPU(s.pid())
		if err != nil {
			return nil, err
		}
		began := time.Now()
		if err := b.alterConfig(s, kmsg.ConfigResourceTypeTopic, compactTopic, "cleanup.policy", "compact"); err != nil {
			return nil, err
		}
		if err := b.until("cleaned up to "+strconv.FormatInt(active, 10), func() (bool, error) {
			to, err := cleanedTo(s, compactTopic)
			return to >= active, err
		}); err != nil {
			return nil, err
		}
		took := time.Since(began).Seconds()
		end, err := probe.CPU(s.pid())
		if err != nil {
			return nil, err
		}
		after, _, err := segmentsOf(s, compactTopic)
		if err != nil {
			return nil, err
		}
		if after*2 > before {
			return nil, fmt.Errorf("%d bytes of segments became %d: nothing was compacted", before, after)
		}
		return map[string]float64{"compacted": float64(before) / mega / took, "cpu": (end - cpu).Seconds() / (float64(before) / giga),
			"left": 100 * float64(after) / float64(before)}, b.deleteTopic(s, compactTopic)
	})
	return []figure{
		makeFigure("compacted", "MB/s", samples).atLeast(1.5),
		makeFigure("cpu", "broker CPU s/GB", samples).atMost(r.reach.cpuAtMost),
		makeFigure("left", "% of the bytes left", samples).plain(),
		makeFigure("memory", "peak RSS, MB", samples).atMost(r.reach.memoryAtMost),
	}, err
}

// fillKeyed writes the same records, in the same order, to whichever server it is.
func (b *bench) fillKeyed(s server, l load) error {
	codec := map[record.Codec]kgo.CompressionCodec{record.None: kgo.NoCompression(), record.LZ4: kgo.Lz4Compression(), record.Zstd: kgo.ZstdCompression()}[l.codec]
	c, err := kgo.NewClient(kgo.SeedBrokers(s.addr()), kgo.ProducerBatchCompression(codec), kgo.ProducerBatchMaxBytes(compactBatch), kgo.DefaultProduceTopic(compactTopic),
		kgo.MaxBufferedRecords(2000))
	if err != nil {
		return err
	}
	defer c.Close()
	rng := rand.New(rand.NewPCG(3, 4))
	values := make([][]byte, 256)
	for i := range values {
		values[i] = replay.Value(rng, l.record)
	}
	failed := make(chan error, 1)
	for n := 0; n < compactBytes; n += l.record {
		r := &kgo.Record{Key: fmt.Appendf(nil, "customer-%07d", rng.IntN(compactKeys)), Value: values[rng.IntN(len(values))]}
		c.Produce(b.ctx, r, func(_ *kgo.Record, err error) {
			if err != nil {
				select {
				case failed <- err:
				default:
				}
			}
		})
	}
	if err := c.Flush(b.ctx); err != nil {
		return err
	}
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// alterConfig sets one dynamic setting.
func (b *bench) alterConfig(s server, kind kmsg.ConfigResourceType, resource, name, value string) error {
	conn, err := probe.Dial(s.addr(), adminTimeout)
	if err != nil {
		return err
	}
	defer conn.Close()
	config := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	config.Name, config.Value = name, &value
	of := kmsg.NewIncrementalAlterConfigsRequestResource()
	of.ResourceType, of.ResourceName, of.Configs = kind, resource, append(of.Configs, config)
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	req.Version, req.Resources = 1, append(req.Resources, of)
	resp, err := conn.Request(req)
	if err != nil {
		return err
	}
	for _, r := range resp.(*kmsg.IncrementalAlterConfigsResponse).Resources {
		if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	return nil
}

// segmentsOf is how many bytes of segments a topic's only partition has, and where the one that is written begins.
func segmentsOf(s server, topic string) (bytes, active int64, err error) {
	names, err := filepath.Glob(filepath.Join(s.data(), topic+"-0", "*.log"))
	if err != nil {
		return 0, 0, err
	}
	for _, name := range names {
		info, err := os.Stat(name)
		if err != nil {
			return 0, 0, err
		}
		base, err := strconv.ParseInt(strings.TrimSuffix(filepath.Base(name), ".log"), 10, 64)
		if err != nil {
			return 0, 0, err
		}
		bytes, active = bytes+info.Size(), max(active, base)
	}
	return bytes, active, nil
}

// cleanedTo is up to where the cleaner has noted that a topic's only partition is clean, 0 before it has.
func cleanedTo(s server, topic string) (int64, error) {
	f, err := os.Open(filepath.Join(s.data(), "cleaner-offset-checkpoint"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), topic+" 0 "); ok {
			return strconv.ParseInt(rest, 10, 64)
		}
	}
	return 0, nil
}

// syncFiles writes a topic's files to disk, as a broker does behind each roll; they stay in the page cache.
func syncFiles(s server, topic string) error {
	names, err := filepath.Glob(filepath.Join(s.data(), topic+"-0", "*"))
	if err != nil {
		return err
	}
	for _, name := range names {
		f, err := os.Open(name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return err
		}
	}
	return nil
}
